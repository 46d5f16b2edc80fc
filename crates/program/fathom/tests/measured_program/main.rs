//! Tests the program like a user: started as a process, and judged by its output, its exit code and its traces.
//!
//! Traffic stays on loopback and in labs that a test has built for itself.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

mod nginx;
mod test_bed;
mod traces;
mod tree;

mod allow;
mod balancer;
mod benchmark;
mod commands;
mod compat;
mod counters;
mod delays;
mod devices;
mod endings;
mod engines;
mod evaluation;
mod faults;
mod fragments;
mod guarded;
mod iperf;
mod iperf3;
mod latency;
mod line;
mod many;
mod many_kinds;
mod netperf;
mod onlookers;
mod paths;
mod pktgen;
mod probes;
mod proofs;
mod raw_replays;
mod readme;
mod record;
mod refusals;
mod replays;
mod scenarios;
mod scripts;
mod search;
mod served;
mod streams;
mod targets;
mod truth;
mod users;
mod walk;
mod watch;
mod wire;
mod writing;
