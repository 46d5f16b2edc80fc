//! Layer 4: TCP and UDP.
