//! A load balancer of layer 4 whose faults are known: the device that tests of in-path devices are tested against.
//!
//! All of it but [`device`] is pure: bytes and the time come in, a [`Decision`] comes out. The device, the simulations and the tests run the
//! same lines, which know no socket and no clock.
//!
//! # Words
//!
//! - `Balancer`: the tables, which all threads share; a `BalancerWorker` is what one thread decides packets with, and a `Decision` what it
//!   says of one.
//! - `Defect`: what the balancer does wrong on purpose, and counts.
//! - `PacketQueue`, verdict: packets that wait for a program (NFQUEUE); what it says about them.
//! - `Steering`: the rules, routes and tun device of a balancer, which are undone with it.
//! - fast path, `Hook`: the program before the queues, which decides by the same table; where it runs: in the driver or behind it.
//! - `Way`: the link and the Ethernet addresses by which the fast path sends to a target.

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
