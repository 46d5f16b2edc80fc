//! Hosts that are nodes of a Kubernetes cluster: the real one, with three kubelets in namespaces, and the program as a process.
//!
//! `cluster/build.sh` builds its programs once, `cluster/run.sh` runs it. Traffic stays between namespaces, which vanish with the test.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

mod cluster;
#[path = "../measured_program/test_bed.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod test_bed;

mod endings;
mod ready;
mod refusals;
