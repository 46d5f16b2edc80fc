//! Layer 7: HTTP requests.

pub mod h1;
pub mod url;
