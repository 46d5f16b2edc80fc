//! What carries a test between its hosts: a wire with its speed, or the memory of a machine.

use std::collections::BTreeMap;

use fathom_model::{
    Run,
    run::{Host, TestRun},
    units::{BitsPerSec, Bytes},
};

/// Drivers of devices that are memory and no wire: what they report as their speed is a constant, or nothing.
const VIRTUAL: [&str; 14] = [
    "veth",
    "bridge",
    "tun",
    "tap",
    "dummy",
    "ifb",
    "macvlan",
    "ipvlan",
    "vxlan",
    "geneve",
    "gre",
    "wireguard",
    "lo",
    "loopback",
];

/// Whether a device of this driver is memory and no wire.
pub(crate) fn is_virtual(driver: &str) -> bool {
    VIRTUAL.contains(&driver)
}

/// What carries a test between two hosts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathLink {
    /// A wire, with the rate and the MTU of its slower end.
    Wire { speed: BitsPerSec, mtu: Option<Bytes> },
    /// No wire: the host and the driver that says so, where it is known.
    NoWire { host: String, interface: String, driver: Option<String> },
}

/// The hosts of a test, the one that begins first.
pub(crate) fn hosts_of(test: &TestRun) -> impl Iterator<Item = &str> {
    let to = test.to.as_deref().filter(|to| *to != test.from);
    std::iter::once(test.from.as_str()).chain(to)
}

/// A fact of the interface that a host was tested on.
fn fact<'a>(run: &'a Run, host: &str, name: &str) -> Option<&'a str> {
    let host = run.hosts.get(host)?;
    host.environment.get(host.interface.as_deref()?, name)
}

/// The MTU of the path, which is that of its narrower end.
pub(crate) fn mtu(run: &Run, test: &TestRun) -> Option<Bytes> {
    hosts_of(test).filter_map(|host| fact(run, host, "mtu_bytes")?.parse().ok().map(Bytes)).min_by_key(|mtu| mtu.0)
}

/// What carries a test; nothing when no host tells of its interface.
pub(crate) fn link_of(run: &Run, test: &TestRun) -> Option<PathLink> {
    let mut slowest: Option<BitsPerSec> = None;
    for host in hosts_of(test) {
        let Some(interface) = run.hosts.get(host).and_then(|host| host.interface.clone()) else { continue };
        // The loopback device has no driver that it could tell.
        let loopback = (interface == "lo").then_some("loopback");
        let driver = fact(run, host, "driver").or(loopback).map(str::to_owned);
        let speed = fact(run, host, "speed_bps").and_then(|speed| speed.parse::<BitsPerSec>().ok());
        let nominal = fact(run, host, "line_rate").is_some_and(|rate| rate != "real");
        let real = !nominal && !driver.as_deref().is_some_and(is_virtual);
        match speed.filter(|speed| real && speed.get() > 0.0) {
            Some(speed) => slowest = Some(slowest.map_or(speed, |other| if other < speed { other } else { speed })),
            None => return Some(PathLink::NoWire { host: host.to_owned(), interface, driver }),
        }
    }
    Some(PathLink::Wire { speed: slowest?, mtu: mtu(run, test) })
}

/// Whether a host's device hands packets over within one machine.
pub(crate) fn is_memory(hosts: &BTreeMap<String, Host>, host: &str) -> bool {
    let driver = |host: &Host| Some(is_virtual(host.environment.get(host.interface.as_deref()?, "driver")?));
    hosts.get(host).and_then(driver).unwrap_or(false)
}
