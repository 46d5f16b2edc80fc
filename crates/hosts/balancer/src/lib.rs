//! A load balancer of layer 4 whose faults are known: the device that tests of in-path devices are tested against.
//!
//! This half is pure: bytes and the time come in, a [`Decision`] comes out. The device, the simulations and the tests run the same lines. It
//! knows no socket, no clock and no thread.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod balancer;
pub mod classify;
pub mod counters;
pub mod defects;
pub mod flows;
pub mod fragments;
pub mod maglev;
pub mod targets;

pub use balancer::{Balancer, BalancerError, BalancerSettings, BalancerWorker, Decision, DropCause, Unmatched};
pub use classify::{ClassifyError, FlowKey, Packet, Ports, classify};
pub use counters::BalancerCounters;
pub use defects::{Defects, DefectsError, OneIn};
pub use targets::Target;
