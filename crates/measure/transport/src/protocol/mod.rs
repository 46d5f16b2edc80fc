//! Protocols of other tools: one folder each.

pub mod iperf3;
