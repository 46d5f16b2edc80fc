//! A run as bytes: text, JSON, CSV, HTML.
