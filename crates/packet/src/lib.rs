//! Layers 2 and 3: frames.
