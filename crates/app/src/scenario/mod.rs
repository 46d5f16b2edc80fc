//! A text that says what users do.

pub mod tree;
