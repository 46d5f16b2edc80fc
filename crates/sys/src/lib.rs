//! Linux: the only crate with unsafe code.
