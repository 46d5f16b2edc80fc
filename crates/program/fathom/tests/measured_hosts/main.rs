//! Many hosts like a user has them: nine namespaces with an sshd each, a Slurm of three nodes, and the program as a process.
//!
//! Traffic stays between namespaces that a test has made itself; they vanish with it.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

mod rack;
#[path = "../measured_program/test_bed.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod test_bed;

mod failures;
mod ready;
mod slurm;
mod tree;
