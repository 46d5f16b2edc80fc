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
mod xdp;

use std::{io, path::Path};

/// A file of counters, or what stands for one, which can be asked again and again.
///
/// It keeps its file open, so it stays with the root of its first sample, and with the network namespace that the process had
/// then: `/proc/net` is that of the process' first thread, whichever thread reads it.
pub trait Source: Send {
    /// What it is called in tables and losses.
    fn name(&self) -> &'static str;

    /// The counters that it may record: constants of `fathom_model::names::host`.
    fn counters(&self) -> &'static [&'static str];

    /// Records what each counter shows now; what the file does not say is left out, never recorded as 0.
    ///
    /// # Errors
    /// When the file cannot be read. Lines that are not understood are passed over.
    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()>;
}

/// Where a source writes what it read.
pub trait CounterSink {
    /// Takes one counter of one instance: `cpu1`, `eth0`, or nothing for the whole host.
    fn value(&mut self, name: &'static str, of: &str, value: u64);
}

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

/// The counters of a table, which stand first in each of its rows.
const fn counters_of<T: Copy, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut row = 0;
    while row < N {
        names[row] = table[row].0;
        row += 1;
    }
    names
}
