//! Layers 2 and 3: builds, sends, counts and deliberately drops frames.
//!
//! This crate knows no other layer, no output and no way to reach a host.

pub mod backend;
pub mod craft;
pub mod kinds;
pub mod xdp;

pub use kinds::KINDS;
