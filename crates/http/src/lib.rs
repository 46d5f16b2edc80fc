//! Layer 7: HTTP requests.
