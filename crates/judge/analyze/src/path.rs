//! What connects the hosts of a test: a wire with a speed, or memory of one machine.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    Run,
    run::{Host, TestRun},
    units::{BitsPerSec, Bytes},
};

/// Drivers of memory devices, which have no wire. The speed they report is a constant, or missing.
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

/// Returns true if devices of this driver are memory and have no wire.
pub(crate) fn is_virtual(driver: &str) -> bool {
    VIRTUAL.contains(&driver)
}

/// The link between the two hosts of a test.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathLink {
    /// A wire, with the rate and the MTU of its slower end.
    Wire { speed: BitsPerSec, mtu: Option<Bytes> },
    /// No wire. Names the host and, if known, the driver that shows this.
    NoWire { host: String, interface: String, driver: Option<String> },
}

/// Returns the hosts of a test, each once, the initiating ones first.
pub(crate) fn hosts_of(test: &TestRun) -> impl Iterator<Item = &str> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let initiating = test.links.iter().map(|link| link.from.as_str());
    let answering = test.links.iter().filter_map(|link| link.to.as_deref());
    let of_two = std::iter::once(test.from.as_str()).chain(test.to.as_deref());
    let of_two = of_two.filter(|_| test.links.is_empty());
    initiating.chain(answering).chain(of_two).filter(move |host| known.insert(host))
}

/// Returns the host that takes part in every pair of a test of several pairs, if only one does.
pub(crate) fn center(test: &TestRun) -> Option<&str> {
    let first = test.links.first().filter(|_| test.links.len() > 1)?;
    let is_in_all = |host: &&str| test.links.iter().all(|link| link.from == *host || link.to.as_deref() == Some(*host));
    first.to.as_deref().filter(is_in_all).or_else(|| Some(first.from.as_str()).filter(is_in_all))
}

/// Returns the address and the interface of a host on the path of a test.
pub(crate) fn place_on_path<'a>(run: &'a Run, test: &TestRun, host: &str) -> (Option<&'a str>, Option<&'a str>) {
    let Some(host) = run.hosts.get(host) else { return (None, None) };
    match test.path.as_ref().and_then(|path| host.on_paths.get(path)) {
        Some(place) => (Some(place.address.as_str()), place.interface.as_deref()),
        None => (host.address.as_deref(), host.interface.as_deref()),
    }
}

/// Returns a fact about the interface that a host was tested on.
fn fact<'a>(run: &'a Run, test: &TestRun, host: &str, name: &str) -> Option<&'a str> {
    run.hosts.get(host)?.environment.get(place_on_path(run, test, host).1?, name)
}

/// Returns the MTU of the path, which is the smaller MTU of its ends.
pub(crate) fn mtu(run: &Run, test: &TestRun) -> Option<Bytes> {
    hosts_of(test)
        .filter_map(|host| fact(run, test, host, "mtu_bytes")?.parse().ok().map(Bytes))
        .min_by_key(|mtu| mtu.0)
}

/// Returns the link of a test, or `None` if no host reports its interface.
///
/// The traffic of a star crosses the link of its center. In a ring or a mesh, no single link carries all of it.
pub(crate) fn link_of(run: &Run, test: &TestRun) -> Option<PathLink> {
    let mut slowest: Option<BitsPerSec> = None;
    let hosts: Vec<&str> = match (test.links.as_slice(), center(test)) {
        ([], _) => hosts_of(test).collect(),
        (_, center) => vec![center?],
    };
    for host in hosts {
        let Some(interface) = place_on_path(run, test, host).1.map(str::to_owned) else { continue };
        // The loopback device reports no driver.
        let loopback = (interface == "lo").then_some("loopback");
        let driver = fact(run, test, host, "driver").or(loopback).map(str::to_owned);
        let speed = fact(run, test, host, "speed_bps").and_then(|speed| speed.parse::<BitsPerSec>().ok());
        let nominal = fact(run, test, host, "line_rate").is_some_and(|rate| rate != "real");
        let real = !nominal && !driver.as_deref().is_some_and(is_virtual);
        match speed.filter(|speed| real && speed.get() > 0.0) {
            Some(speed) => slowest = Some(slowest.map_or(speed, |other| if other < speed { other } else { speed })),
            None => return Some(PathLink::NoWire { host: host.to_owned(), interface, driver }),
        }
    }
    Some(PathLink::Wire { speed: slowest?, mtu: mtu(run, test) })
}

/// Returns true if the host's device passes packets within one machine.
pub(crate) fn is_memory(hosts: &BTreeMap<String, Host>, host: &str) -> bool {
    // The loopback device reports no driver.
    let passes_within = |host: &Host| {
        let interface = host.interface.as_deref()?;
        Some(interface == "lo" || is_virtual(host.environment.get(interface, "driver")?))
    };
    hosts.get(host).and_then(passes_within).unwrap_or(false)
}
