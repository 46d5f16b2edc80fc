//! A text that says what users do.
