//! fathom.

fn main() {}
