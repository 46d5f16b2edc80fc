//! Recordings and plans of other tools, as scenarios.
