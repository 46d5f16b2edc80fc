//! The sources of samples: files, and sockets where there is no file.
//!
//! A source knows where its counters are and what they are called. It does not know when it is sampled or who reads it.

use std::{collections::BTreeSet, sync::LazyLock};

mod core_columns;
mod cpu;
mod frequency;
mod interrupts;
mod lab_device;
mod links;
mod listeners;
mod martians;
mod memory_events;
mod named_lines;
mod neighbors;
mod netdev;
mod netstat;
mod nfqueue;
mod nft;
mod pause;
mod pressure;
mod qdisc;
mod snmp;
mod snmp6;
mod socket;
mod sockstat;
mod softirqs;
mod softnet;
mod source;
mod supplies;
mod tables;
mod thermal;
pub(crate) mod throttling;
mod wrapping_counter;

pub use source::{CounterSink, Source, silence};
use source::{SampleLosses, counters_of};

/// All sources, as functions that create a new one.
pub const SOURCES: &[fn() -> Box<dyn Source>] = &[
    || Box::new(cpu::Cpu::new()),
    || Box::new(softnet::Softnet::new()),
    || Box::new(softirqs::Softirqs::new()),
    || Box::new(netdev::NetDev::new()),
    || Box::new(qdisc::Qdisc::new()),
    || Box::new(links::Links::new()),
    || Box::new(nft::Nft::new()),
    || Box::new(nfqueue::NfQueue::new()),
    || Box::new(pause::Pause::new()),
    || Box::new(snmp::source()),
    || Box::new(snmp6::Snmp6::new()),
    || Box::new(netstat::source()),
    || Box::new(sockstat::Sockstat::new()),
    || Box::new(listeners::Listeners::new()),
    || Box::new(tables::Tables::new()),
    || Box::new(neighbors::Neighbors::new()),
    || Box::new(martians::Martians::new()),
    || Box::new(throttling::Throttling::new()),
    || Box::new(thermal::Thermal::new()),
    || Box::new(frequency::Frequency::new()),
    || Box::new(lab_device::LabDevice::new()),
    || Box::new(pressure::Pressure::new()),
    || Box::new(memory_events::MemoryEvents::new()),
    || Box::new(supplies::Supplies::new()),
    // The last one, because it has the most instances.
    || Box::new(interrupts::Interrupts::new()),
];

/// The counters of slow sources.
static SLOW: LazyLock<BTreeSet<&'static str>> = LazyLock::new(|| {
    let slow = SOURCES.iter().map(|fresh| fresh()).filter(|source| source.is_slow());
    slow.flat_map(|source| source.counters().iter().copied()).collect()
});

/// Returns true if a counter belongs to a source that a live view reads only about once per second.
#[must_use]
pub fn is_slow(counter: &str) -> bool {
    SLOW.contains(counter)
}

/// Creates one of each source.
#[must_use]
pub fn every_source() -> Vec<Box<dyn Source>> {
    SOURCES.iter().map(|fresh| fresh()).collect()
}
