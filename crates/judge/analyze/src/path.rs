//! What connects the hosts of a test: the devices of their interfaces, and a wire with a speed or memory of one machine between them.

use std::collections::{BTreeMap, BTreeSet};

use fathom_model::{
    Environment, Run,
    run::{Host, TestRun},
    units::{BitsPerSec, Bytes},
};

/// Drivers of devices without a wire. The speed they report is a constant, or missing.
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

/// Those whose packets another device of the machine takes, possibly in another namespace, and which may leave the machine.
const TUNNELS: [&str; 6] = ["macvlan", "ipvlan", "vxlan", "geneve", "gre", "wireguard"];

/// Returns true if devices of this driver have no wire.
pub(crate) fn is_virtual(driver: &str) -> bool {
    VIRTUAL.contains(&driver)
}

/// Returns an interface and the devices below it that carry its frames, from the top: the ports of a bond or a team, the ports of a bridge that
/// lead to a wire, and what a VLAN or a macvlan was made on.
pub(crate) fn devices<'a>(facts: &'a Environment, interface: &'a str) -> Vec<&'a str> {
    let mut all = vec![interface];
    let mut place = 0;
    while let Some(device) = all.get(place).copied() {
        for lower in lower(facts, device) {
            if !all.contains(&lower) {
                all.push(lower);
            }
        }
        place += 1;
    }
    all
}

/// Returns the devices of a host that queue the frames that a filter hands to them (ifb), as those that an interface receives.
pub(crate) fn redirects(facts: &Environment) -> impl Iterator<Item = &str> {
    let is_redirect = |facts: &BTreeMap<String, String>| facts.get("driver").is_some_and(|driver| driver == "ifb");
    facts.0.iter().filter(move |(_, facts)| is_redirect(facts)).map(|(device, _)| device.as_str())
}

/// Returns the cards that carry the frames of an interface: the devices below it that have a wire. An interface without any is its own.
pub(crate) fn cards<'a>(facts: &'a Environment, interface: &'a str) -> Vec<&'a str> {
    let cards: Vec<&str> = lowest(facts, interface).filter(|device| !has_no_wire(facts, device)).collect();
    if cards.is_empty() { vec![interface] } else { cards }
}

/// The devices of an interface that have none below them.
fn lowest<'a>(facts: &'a Environment, interface: &'a str) -> impl Iterator<Item = &'a str> {
    devices(facts, interface).into_iter().filter(|device| lower(facts, device).is_empty())
}

/// The devices right below a device. Of several ports of a bridge, others may belong to containers and guests.
fn lower<'a>(facts: &'a Environment, device: &str) -> Vec<&'a str> {
    let mut lower: Vec<&str> = facts.get(device, "lower").into_iter().flat_map(|names| names.split(' ')).collect();
    if lower.len() > 1 && facts.get(device, "driver") == Some("bridge") {
        lower.retain(|port| !has_no_wire(facts, port));
    }
    lower
}

fn has_no_wire(facts: &Environment, device: &str) -> bool {
    facts.get(device, "driver").is_some_and(is_virtual)
}

/// Returns the speed of a device with a wire; `None` if it tells none, or only a number.
fn wire_speed(facts: &Environment, device: &str) -> Option<BitsPerSec> {
    let is_number = facts.get(device, "line_rate").is_some_and(|rate| rate != "real");
    let speed: BitsPerSec = facts.get(device, "speed_bps")?.parse().ok()?;
    (!is_number && !has_no_wire(facts, device) && speed.get() > 0.0).then_some(speed)
}

/// Returns the speed of the wire that carries the frames of an interface. A bond tells the speed of its ports; which of several cards a bridge
/// uses is not known.
fn link_speed(facts: &Environment, interface: &str) -> Option<BitsPerSec> {
    // The function of a card below it belongs to a guest, whose size allows a part of the card.
    if facts.get(interface, "driver") == Some("hv_netvsc") {
        return None;
    }
    let cards = cards(facts, interface);
    if cards == [interface] && !lower(facts, interface).is_empty() {
        return None;
    }
    let speeds: Vec<BitsPerSec> = cards.iter().map(|card| wire_speed(facts, card)).collect::<Option<_>>()?;
    match speeds.as_slice() {
        [one] => Some(*one),
        _ => wire_speed(facts, interface),
    }
}

/// The link between the two hosts of a test.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PathLink {
    /// A wire, with the rate and the MTU of its slower end.
    Wire { speed: BitsPerSec, mtu: Option<Bytes> },
    /// No wire. Names the host and, if known, the driver that shows this.
    NoWire { host: String, interface: String, driver: Option<String> },
}

/// Returns the hosts of a test, each once, the initiating ones first. That of a server is the last.
pub(crate) fn hosts_of(test: &TestRun) -> impl Iterator<Item = &str> {
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let initiating = test.links.iter().map(|link| link.from.as_str());
    let answering = test.links.iter().filter_map(|link| link.to.as_deref());
    let of_two = std::iter::once(test.from.as_str()).chain(test.to.as_deref());
    let of_two = of_two.filter(|_| test.links.is_empty());
    let all = initiating.chain(answering).chain(of_two).chain(test.server.as_deref());
    all.filter(move |host| known.insert(host))
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

/// Returns the hosts whose links carry all traffic of a test; `None` if no link does.
fn ends_of_link(test: &TestRun) -> Option<Vec<&str>> {
    match (test.links.as_slice(), center(test)) {
        ([], _) => Some(hosts_of(test).collect()),
        (_, center) => Some(vec![center.or(test.server.as_deref())?]),
    }
}

/// Returns the link of a test, or `None` if no host reports its interface.
///
/// The traffic of a star crosses the link of its center. In a ring or a mesh, no single link carries all of it.
pub(crate) fn link_of(run: &Run, test: &TestRun) -> Option<PathLink> {
    let mut slowest: Option<BitsPerSec> = None;
    for host in ends_of_link(test)? {
        let Some(interface) = place_on_path(run, test, host).1 else { continue };
        let facts = &run.hosts.get(host)?.environment;
        let Some(speed) = link_speed(facts, interface) else {
            // The loopback device reports no driver.
            let loopback = (interface == "lo").then_some("loopback");
            let driver = facts.get(interface, "driver").or(loopback).map(str::to_owned);
            return Some(PathLink::NoWire { host: host.to_owned(), interface: interface.to_owned(), driver });
        };
        slowest = Some(slowest.map_or(speed, |other| if other < speed { other } else { speed }));
    }
    Some(PathLink::Wire { speed: slowest?, mtu: mtu(run, test) })
}

/// Returns the host whose end of the [link](link_of) is the slowest, the first of equal ones.
pub(crate) fn slowest_end<'a>(run: &'a Run, test: &'a TestRun) -> Option<&'a str> {
    let speed = |host: &'a str| {
        let interface = place_on_path(run, test, host).1?;
        Some((host, link_speed(&run.hosts.get(host)?.environment, interface)?))
    };
    let ends = ends_of_link(test)?.into_iter().filter_map(speed);
    ends.reduce(|slowest, one| if one.1 < slowest.1 { one } else { slowest }).map(|(host, _)| host)
}

/// Returns true if the host's device passes packets within one machine.
pub(crate) fn is_memory(hosts: &BTreeMap<String, Host>, host: &str) -> bool {
    let passes_within = |host: &Host| {
        let interface = host.interface.as_deref()?;
        // A veth of a pod leads to the network of its machine, and so to the pods of other machines.
        let own = host.environment.get("kernel", "boot_id");
        let is_elsewhere = |other: &Host| {
            let boot = other.environment.get("kernel", "boot_id");
            own.is_some() && boot.is_some() && boot != own
        };
        let driver = |device: &str| match device {
            // The loopback device reports no driver.
            "lo" => Some("loopback"),
            device => host.environment.get(device, "driver"),
        };
        let is_inside = |device: &str| driver(device).is_some_and(|name| is_virtual(name) && !TUNNELS.contains(&name));
        Some(!hosts.values().any(is_elsewhere) && lowest(&host.environment, interface).all(is_inside))
    };
    hosts.get(host).and_then(passes_within).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn facts(devices: &[(&str, &str, &str)]) -> Environment {
        let mut facts = Environment::default();
        for (name, driver, lower) in devices {
            facts.note(name, "driver", *driver);
            if !lower.is_empty() {
                facts.note(name, "lower", *lower);
            }
        }
        facts
    }

    #[test]
    fn frames_of_a_vlan_on_a_bond_leave_by_its_ports() {
        let facts = facts(&[
            ("v7", "802.1Q VLAN Support", "bond0"),
            ("bond0", "bonding", "p1 p2"),
            ("p1", "ice", ""),
            ("p2", "ice", ""),
        ]);
        assert_eq!(devices(&facts, "v7"), ["v7", "bond0", "p1", "p2"]);
        assert_eq!(cards(&facts, "v7"), ["p1", "p2"]);
        assert_eq!(cards(&facts, "p1"), ["p1"]);
    }

    #[test]
    fn of_the_ports_of_a_bridge_those_of_containers_carry_no_frames_of_the_host() {
        let with_wire = facts(&[("br0", "bridge", "eth0 veth1"), ("eth0", "ice", ""), ("veth1", "veth", "")]);
        assert_eq!((devices(&with_wire, "br0"), cards(&with_wire, "br0")), (vec!["br0", "eth0"], vec!["eth0"]));
        let inside = facts(&[("br0", "bridge", "veth0 veth1"), ("veth0", "veth", ""), ("veth1", "veth", "")]);
        assert_eq!((devices(&inside, "br0"), cards(&inside, "br0")), (vec!["br0"], vec!["br0"]));
        let alone = facts(&[("br0", "bridge", "veth0"), ("veth0", "veth", "")]);
        assert_eq!((devices(&alone, "br0"), cards(&alone, "br0")), (vec!["br0", "veth0"], vec!["br0"]));
    }

    #[test]
    fn a_device_without_a_wire_below_it_is_memory_unless_it_leads_elsewhere() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let mut is_memory = |driver: &str, lower: &str| {
            builder.run.hosts.get_mut("client").unwrap().environment =
                facts(&[("eth0", driver, lower), ("p1", "ice", ""), ("veth1", "veth", "")]);
            super::is_memory(&builder.run.hosts, "client")
        };
        for (driver, lower, memory) in [
            ("veth", "", true),
            ("bridge", "veth1", true),
            ("bridge", "p1 veth1", false),
            ("macvlan", "veth1", true),
            ("macvlan", "p1", false),
            ("macvlan", "", false),
            ("vxlan", "", false),
            ("ice", "", false),
        ] {
            assert_eq!(is_memory(driver, lower), memory, "{driver} {lower}");
        }
        assert!(is_memory("veth", ""));
        for (host, boot) in [("client", "1"), ("target", "2")] {
            builder.run.hosts.get_mut(host).unwrap().environment.note("kernel", "boot_id", boot);
        }
        assert!(!super::is_memory(&builder.run.hosts, "client"), "pods of two machines");
    }

    #[test]
    fn a_bridge_has_the_speed_of_its_only_wire_and_a_bond_its_own() {
        let mut environment =
            facts(&[("br0", "bridge", "p1 veth1"), ("veth1", "veth", ""), ("p1", "ice", ""), ("p2", "ice", "")]);
        environment.note("p1", "speed_bps", "25000000000");
        environment.note("p2", "speed_bps", "25000000000");
        let speed = |environment: &Environment| link_speed(environment, "br0").map(BitsPerSec::get);
        assert_eq!(speed(&environment), Some(25e9));
        environment.note("br0", "lower", "p1 p2");
        environment.note("br0", "driver", "bonding");
        environment.note("br0", "speed_bps", "50000000000");
        assert_eq!(speed(&environment), Some(50e9));
        let mut inside = facts(&[("br0", "802.1Q VLAN Support", "veth1"), ("veth1", "veth", "")]);
        inside.note("br0", "speed_bps", "10000000000");
        assert_eq!(speed(&inside), None, "a VLAN repeats the number of a veth");
        let mut guest = facts(&[("br0", "hv_netvsc", "p1"), ("p1", "mlx5_core", "")]);
        guest.note("p1", "speed_bps", "100000000000");
        assert_eq!(speed(&guest), None, "a guest has a part of the card");
    }
}
