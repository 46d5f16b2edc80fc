//! What is sampled, one source each: files, and one socket where there is no file.
//!
//! A source knows where its counters stand and what they are called, not when it is asked nor who reads them.

mod cpu;
mod named;
mod netdev;
mod netstat;
mod nft;
mod qdisc;
mod snmp;
mod snmp6;
mod socket;
mod sockstat;
mod softnet;
mod source;
mod xdp;

use source::counters_of;
pub use source::{CounterSink, Source};

/// Every source, as a function that makes a fresh one.
pub const SOURCES: &[fn() -> Box<dyn Source>] = &[
    || Box::new(cpu::Cpu::new()),
    || Box::new(softnet::Softnet::new()),
    || Box::new(netdev::NetDev::new()),
    || Box::new(qdisc::Qdisc::new()),
    || Box::new(xdp::Xdp::new()),
    || Box::new(nft::Nft::new()),
    || Box::new(snmp::source()),
    || Box::new(snmp6::Snmp6::new()),
    || Box::new(netstat::source()),
    || Box::new(sockstat::Sockstat::new()),
];

/// A fresh one of each.
#[must_use]
pub fn every_source() -> Vec<Box<dyn Source>> {
    SOURCES.iter().map(|fresh| fresh()).collect()
}
