//! How a plan runs: test kinds, phases, pacing, workers.
