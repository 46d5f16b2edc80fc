//! A load balancer of layer 4 whose faults are known: the device that tests of in-path devices are tested against.
//!
//! All of it but [`device`] is pure: bytes and the time come in, a [`Decision`] comes out. The device, the simulations and the tests run the
//! same lines, which know no socket and no clock.

#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod balancer;
pub mod classify;
mod counters;
mod decision;
pub mod defects;
pub mod device;
pub mod flows;
pub mod fragments;
pub mod hash;
pub mod maglev;
pub mod simulation;
pub mod targets;

pub use balancer::{Balancer, BalancerError, BalancerSettings, BalancerWorker, DEFAULT_GROUP, Unmatched};
pub use classify::{ClassifyError, FlowKey, Packet, Ports, classify};
pub use counters::BalancerCounters;
pub use decision::{Decision, DropCause};
pub use defects::{DEFECTS, Defect, Defects, DefectsError, OneIn};
pub use targets::{Target, TargetError};
