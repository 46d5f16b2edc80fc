//! Where each host is on each path of a plan, and whether the paths of a comparison begin and end alike.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr};

use fathom_model::{
    Environment, PathPlan, Plan,
    host_port::split_host_port,
    plan::HostReach,
    run::{Host, PathPlace},
};
use fathom_sys::netlink::{Netlink, nftables::Nftables};

use super::{Hosts, PathHost, own_address::ToldAddress};
use crate::{
    allow::AllowList,
    exit::{Exit, UserError},
    target,
};

/// The facts of an interface that change what a path carries, with the command that shows or sets them.
const ALIKE: [(&str, &str); 2] =
    [("mtu_bytes", "ip link set dev IFACE mtu BYTES"), ("offloads", "ethtool --features IFACE")];

/// Offloads that no test on both paths meets: they are for SCTP, for accurate ECN, and for packets that a host forwards. A program on the device takes
/// them from the interface at the other end of a wire in memory.
const NOT_COMPARED: [&str; 3] = ["tx-sctp-segmentation", "tx-tcp-accecn-segmentation", "tx-gso-list"];

/// The address and the interface of a host on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    address: IpAddr,
    /// Absent if no interface has the address.
    interface: Option<String>,
}

/// An address of this machine on a path that a served host does not take packets from, unless its owner allowed it: it knows its controller by
/// another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UnknownAddress {
    /// Absent for the addresses of the hosts.
    path: Option<String>,
    server: String,
    known: IpAddr,
    used: IpAddr,
}

/// Returns the address from which this machine reaches another one.
type OwnAddress<'a> = &'a dyn Fn(IpAddr) -> anyhow::Result<IpAddr>;

/// The positions of the hosts on each path.
pub(super) type Positions = BTreeMap<String, BTreeMap<String, Position>>;

impl Hosts {
    /// Returns a host as it is on a path; without a path, at its usual address.
    pub fn at(&self, host: &str, path: Option<&str>) -> Cow<'_, PathHost> {
        let place = &self.by_name[host];
        match path.and_then(|path| self.positions.get(path)?.get(host)) {
            Some(position) => Cow::Owned(PathHost {
                address: position.address,
                interface: position.interface.clone(),
                ..place.clone()
            }),
            None => Cow::Borrowed(place),
        }
    }

    /// Adds to an error of a path that carries nothing what a served host at its end may need.
    pub fn with_allowance(&self, user_error: UserError, path: Option<&str>) -> UserError {
        self.unknown_on(path).fold(user_error, |user_error, unknown| {
            user_error.with_line("why", unknown.why()).with_line("fix", unknown.fix())
        })
    }

    /// Returns the same as sentences; none if the served hosts know this machine as it is on the path.
    pub fn allowances(&self, path: Option<&str>) -> Vec<String> {
        self.unknown_on(path).map(|unknown| format!("{}; {}", unknown.why(), unknown.fix())).collect()
    }

    fn unknown_on(&self, path: Option<&str>) -> impl Iterator<Item = &UnknownAddress> {
        self.unknown.iter().filter(move |one| path == one.path.as_deref())
    }

    /// Finds where the hosts are on the paths of a plan, and records it in their descriptions. `own_address` is the address from which this
    /// machine reaches another one.
    ///
    /// # Errors
    /// If a host has no such interface or address, or if the interfaces of two paths differ in what they carry.
    pub fn find_paths(
        &mut self,
        plan: &Plan,
        described: &mut BTreeMap<String, Host>,
        own_address: OwnAddress<'_>,
        allowed: &AllowList,
    ) -> Result<(), UserError> {
        for path in &plan.paths {
            let positions = self.positions_on(plan, path, described, own_address)?;
            for (name, position) in &positions {
                let (reach, own) = (&plan.hosts[name], self.own_addresses(name));
                let reached_at = self.by_name[name].reached_at;
                let told = ToldAddress { name, reach, address: position.address, reached_at, own: &own };
                told.check(allowed).map_err(|error| error.with_line("in", format!("path `{}`", path.name)))?;
            }
            for (name, position) in &positions {
                let place = PathPlace { address: position.address.to_string(), interface: position.interface.clone() };
                if let Some(host) = described.get_mut(name) {
                    host.on_paths.insert(path.name.clone(), place);
                }
            }
            let of_this_machine = plan.hosts.iter().filter(|(_, reach)| is_here(reach));
            let used: Vec<IpAddr> =
                of_this_machine.filter_map(|(name, _)| Some(positions.get(name)?.address)).collect();
            let at = |server: &str| path.at.contains_key(server);
            let unknown = unknown_addresses(&plan.hosts, at, &used, own_address);
            self.unknown.extend(unknown.into_iter().map(|one| UnknownAddress { path: Some(path.name.clone()), ..one }));
            self.positions.insert(path.name.clone(), positions);
        }
        for (name, reach) in &plan.hosts {
            // Without a path, a served host is tested at an address that may be another one than that of its agent.
            let used =
                reach.data().filter(|_| plan.hosts.values().any(is_here)).and_then(|data| own_address(data).ok());
            let used: Vec<IpAddr> = used.into_iter().collect();
            self.unknown.extend(unknown_addresses(&plan.hosts, |server| server == name, &used, own_address));
        }
        check_interfaces(plan, described)
    }

    /// Checks that no two paths of a comparison lead from this machine straight to the same one, as far as its kernel knows the Ethernet addresses of
    /// its neighbors. Behind a router, and for a device within one of the two, nobody can tell.
    ///
    /// # Errors
    /// With the way that two paths share.
    pub fn check_ways(&self, plan: &Plan) -> Result<(), UserError> {
        if may_be_within_an_end(plan) {
            return Ok(());
        }
        let compared: Vec<_> = plan.tests.iter().filter(|test| test.comparison.is_some()).collect();
        for pair in compared.windows(2).filter(|pair| pair[0].comparison == pair[1].comparison) {
            let [one, other] = [pair[0], pair[1]];
            let (Some(from), Some(to)) = (plan.hosts.get(&one.from), &one.to) else { continue };
            let (Some(path), Some(other_path)) = (&one.path, &other.path) else { continue };
            if !is_here(from) || path == other_path {
                continue;
            }
            let [address, other_address] = [path, other_path].map(|path| self.at(to, Some(path)).address);
            let shared = Netlink::open().ok().and_then(|mut kernel| shared_way(&mut kernel, address, other_address));
            if let Some(way) = shared {
                let what = format!("nothing is measured: `{path}` and `{other_path}` are the same path");
                return Err(UserError::new(Exit::Preflight, what)
                    .with_line("why", format!("{address} and {other_address} are {way}, with no device between"))
                    .with_line("fix", "an address behind the device for one of them")
                    .with_line(
                        "or",
                        "if the device is within one of the two ends: --device-start or --device-counters",
                    ));
            }
        }
        Ok(())
    }

    fn positions_on(
        &self,
        plan: &Plan,
        path: &PathPlan,
        described: &BTreeMap<String, Host>,
        own_address: OwnAddress<'_>,
    ) -> Result<BTreeMap<String, Position>, UserError> {
        let mut positions = BTreeMap::new();
        for (name, text) in &path.at {
            let usual = self.by_name[name].address;
            let position = position(text, usual, &described[name].environment)
                .ok_or_else(|| no_position(path, name, text, &described[name].environment, &plan.hosts[name]))?;
            positions.insert(name.clone(), position);
        }
        // This machine has the address from which it reaches the others.
        let peer = positions.values().map(|position| position.address).next();
        for (name, reach) in &plan.hosts {
            if let Some(peer) = peer.filter(|_| is_here(reach) && !positions.contains_key(name)) {
                let address = own_address(peer).map_err(|error| match error.downcast::<UserError>() {
                    Ok(error) => error.with_line("in", format!("path `{}`", path.name)),
                    Err(error) => UserError::from_error(Exit::Preflight, &error),
                })?;
                let interface = interface_with(address, &described[name].environment);
                positions.insert(name.clone(), Position { address, interface });
            }
        }
        Ok(positions)
    }
}

fn is_here(reach: &HostReach) -> bool {
    matches!(reach, HostReach::This | HostReach::At(_))
}

/// Returns true if the device may work within an end of the paths, so that they differ in nothing that the routes show: it has commands, or the packet
/// filter of this machine has rules.
fn may_be_within_an_end(plan: &Plan) -> bool {
    let has_commands = !plan.device.is_default() || plan.comparisons.iter().any(|comparison| comparison.set.is_some());
    let has_rules = || Nftables::open().and_then(|mut filter| filter.base_chains()).is_ok_and(|all| !all.is_empty());
    has_commands || has_rules()
}

/// Returns the words for the way that two addresses share: both are of this machine, or of the same neighbor. `None` if that is not known, and
/// behind a router.
fn shared_way(kernel: &mut Netlink, one: IpAddr, other: IpAddr) -> Option<String> {
    let [hop, other_hop] = [kernel.next_hop(one).ok()?, kernel.next_hop(other).ok()?];
    // Two gateways say nothing about what is behind them.
    if hop.link != other_hop.link || hop.gateway.is_some() && other_hop.gateway.is_some() {
        return None;
    }
    let link = kernel.links().ok()?.into_iter().find(|link| link.index == hop.link)?;
    if link.name == "lo" {
        return Some("addresses of this machine".to_owned());
    }
    let neighbors = [hop.gateway.unwrap_or(one), other_hop.gateway.unwrap_or(other)];
    if neighbors[0] == neighbors[1] {
        return Some(format!("both at the neighbor {} on {}", neighbors[0], link.name));
    }
    let [mac, other_mac] = [kernel.neighbour(link.index, neighbors[0]), kernel.neighbour(link.index, neighbors[1])];
    let is_same = mac.ok()?? == other_mac.ok()??;
    is_same.then(|| format!("addresses of the same neighbor on {}", link.name))
}

/// Returns the addresses of this machine that differ from the one by which a served host that is `at` the other end knows its controller.
fn unknown_addresses(
    hosts: &BTreeMap<String, HostReach>,
    at: impl Fn(&str) -> bool,
    used: &[IpAddr],
    own_address: OwnAddress<'_>,
) -> Vec<UnknownAddress> {
    let known_to = |(server, reach): (&String, &HostReach)| match reach {
        HostReach::Tls { address, .. } if at(server) => {
            let (host, _) = split_host_port(address)?;
            let known = own_address(*target::resolve(host).ok()?.first()?).ok()?;
            Some((server.clone(), known))
        }
        _ => None,
    };
    let of_server = |(server, known): (String, IpAddr)| {
        let others = used.iter().filter(move |used| **used != known);
        others.map(move |used| UnknownAddress { path: None, server: server.clone(), known, used: *used })
    };
    hosts.iter().filter_map(known_to).flat_map(of_server).collect()
}

impl UnknownAddress {
    fn why(&self) -> String {
        let Self { path, server, known, used } = self;
        let place = path.as_ref().map_or(String::new(), |path| format!("on the path `{path}` "));
        format!("{server} expects this machine at {known}, but {place}test traffic comes from {used}")
    }

    fn fix(&self) -> String {
        format!("on {}, run: fathom serve --allow {}", self.server, self.used)
    }
}

/// Returns the position that a text names: an address, or an interface with its address of the same IP version as the usual one.
fn position(text: &str, usual: IpAddr, environment: &Environment) -> Option<Position> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(Position { address, interface: interface_with(address, environment) });
    }
    let mut addresses = environment.get(text, "addresses")?.split(' ').filter_map(|one| one.parse::<IpAddr>().ok());
    let address = addresses.find(|address| address.is_ipv4() == usual.is_ipv4() && !is_link_local(*address))?;
    Some(Position { address, interface: Some(text.to_owned()) })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn interface_with(address: IpAddr, environment: &Environment) -> Option<String> {
    let address_text = address.to_string();
    let has_it = |facts: &BTreeMap<String, String>| {
        facts.get("addresses").is_some_and(|all| all.split(' ').any(|one| one == address_text))
    };
    let found = environment.0.iter().find(|(_, facts)| has_it(facts)).map(|(topic, _)| topic.clone());
    // Loopback answers for addresses that are not configured on it.
    found.or_else(|| address.is_loopback().then(|| "lo".to_owned()))
}

fn no_position(path: &PathPlan, host: &str, text: &str, environment: &Environment, reach: &HostReach) -> UserError {
    let known =
        environment.0.iter().filter(|(_, facts)| facts.contains_key("addresses")).map(|(name, _)| name.as_str());
    let what = format!("path `{}`: host `{host}` has no interface `{text}` with an address", path.name);
    let error = UserError::new(Exit::Usage, what)
        .with_line("use", format!("an address, or one of {}", known.collect::<Vec<_>>().join(", ")));
    match reach {
        HostReach::LabUp(..) => error.with_line("fix", "fathom lab up pair --direct-wire --device DEVICE"),
        _ => error,
    }
}

/// Checks that each host has interfaces with the same MTU and offloads on all paths: what differs would be measured as the device.
fn check_interfaces(plan: &Plan, described: &BTreeMap<String, Host>) -> Result<(), UserError> {
    for (name, host) in described.iter().filter(|(name, _)| plan.via.as_ref() != Some(*name)) {
        let on_paths: Vec<(&String, &String)> =
            (host.on_paths.iter()).filter_map(|(path, place)| Some((path, place.interface.as_ref()?))).collect();
        for pair in on_paths.windows(2) {
            let [(path, interface), (other_path, other)] = [pair[0], pair[1]];
            // An address on loopback, such as that of a balanced service, says nothing about the wire.
            if [interface, other].into_iter().any(|interface| interface == "lo") {
                continue;
            }
            for (fact, command) in ALIKE {
                let words = |interface: &str| -> Vec<&str> {
                    let all = host.environment.get(interface, fact).unwrap_or_default().split(' ');
                    all.filter(|word| !NOT_COMPARED.contains(word)).collect()
                };
                let (one, another) = (words(interface), words(other));
                if one == another {
                    continue;
                }
                let what = format!(
                    "the paths `{path}` and `{other_path}` differ in more than the device: {}",
                    difference(fact, name)
                );
                return Err(UserError::new(Exit::Preflight, what)
                    .with_line("why", format!("{interface}: {}", shown(&one, &another)))
                    .with_line("why", format!("{other}: {}", shown(&another, &one)))
                    .with_line("fix", format!("{command}        # on {name}, until both are alike")));
            }
        }
    }
    Ok(())
}

fn difference(fact: &str, host: &str) -> String {
    let what = if fact == "offloads" { "the offloads" } else { "the MTU" };
    format!("{what} of their interfaces on {host}")
}

/// Returns the words of one list that the other lacks.
fn shown(of: &[&str], other: &[&str]) -> String {
    let own: Vec<&str> = of.iter().copied().filter(|word| !word.is_empty() && !other.contains(word)).collect();
    if own.is_empty() { "none of these".to_owned() } else { own.join(" ") }
}

#[cfg(test)]
mod tests {
    use fathom_model::Plan;

    use super::*;

    fn environment(interfaces: &[(&str, &str, &str, &str)]) -> Environment {
        let mut environment = Environment::default();
        for (name, addresses, mtu, offloads) in interfaces {
            environment.note(name, "addresses", *addresses);
            environment.note(name, "mtu_bytes", *mtu);
            environment.note(name, "offloads", *offloads);
        }
        environment
    }

    #[test]
    fn a_position_is_an_address_or_an_interface_of_the_same_ip_version() {
        let known =
            environment(&[("eth0", "198.18.0.1", "1500", ""), ("eth1", "fe80::1 2001:2::1 198.18.2.1", "1500", "")]);
        let of = |text: &str, usual: &str| {
            position(text, usual.parse().unwrap(), &known).map(|at| (at.address.to_string(), at.interface))
        };
        let eth1 = || Some("eth1".to_owned());
        assert_eq!(of("eth1", "198.18.0.1"), Some(("198.18.2.1".to_owned(), eth1())));
        assert_eq!(of("eth1", "::1"), Some(("2001:2::1".to_owned(), eth1())));
        assert_eq!(of("2001:2::1", "198.18.0.1"), Some(("2001:2::1".to_owned(), eth1())));
        assert_eq!(of("10.0.0.100", "198.18.0.1"), Some(("10.0.0.100".to_owned(), None)), "behind address translation");
        assert_eq!((of("eth0", "::1"), of("eth7", "::1")), (None, None));
    }

    #[test]
    fn an_address_by_which_a_served_host_does_not_know_its_controller_is_found() {
        let served = HostReach::Tls { address: "10.0.1.2:7700".to_owned(), key: None, data: None };
        let hosts = [("here".to_owned(), HostReach::This), ("target".to_owned(), served)].into();
        let own = |octet: u8| IpAddr::from([10, 0, octet, 9]);
        // This machine has an address in each network.
        let own_address = |peer: IpAddr| match peer {
            IpAddr::V4(peer) => Ok(own(peer.octets()[2])),
            IpAddr::V6(_) => Err(anyhow::anyhow!("no route")),
        };
        let unknown = |used: IpAddr| {
            let found = unknown_addresses(&hosts, |server| server == "target", &[used], &own_address);
            found.iter().map(|unknown| (unknown.why(), unknown.fix())).collect::<Vec<_>>()
        };
        assert_eq!(unknown(own(1)), []);
        let why = "target expects this machine at 10.0.1.9, but test traffic comes from 10.0.2.9";
        let fix = "on target, run: fathom serve --allow 10.0.2.9";
        assert_eq!(unknown(own(2)), [(why.to_owned(), fix.to_owned())]);
    }

    #[test]
    fn paths_whose_interfaces_differ_are_refused_with_what_differs() {
        let on_paths: BTreeMap<String, PathPlace> = [("direct", "eth1"), ("via", "eth0")]
            .map(|(path, interface)| {
                (path.to_owned(), PathPlace { address: String::new(), interface: Some(interface.to_owned()) })
            })
            .into();
        let checked = |facts: &[(&str, &str, &str, &str)]| {
            let host = Host { environment: environment(facts), on_paths: on_paths.clone(), ..Host::default() };
            check_interfaces(&Plan::new("x", Vec::new()), &[("a".to_owned(), host)].into())
                .map_err(|error| error.to_string())
        };
        assert_eq!(checked(&[("eth0", "", "1500", "rx-gro"), ("eth1", "", "1500", "rx-gro")]), Ok(()));
        assert_eq!(checked(&[("eth0", "", "1500", "rx-gro"), ("eth1", "", "1500", "rx-gro tx-gso-list")]), Ok(()));
        let error = checked(&[("eth0", "", "1500", "rx-gro"), ("eth1", "", "1500", "rx-gro tx-tso")]).unwrap_err();
        assert!(error.contains("the offloads of their interfaces on a") && error.contains("eth1: tx-tso"), "{error}");
        let error = checked(&[("eth0", "", "1400", ""), ("eth1", "", "1500", "")]).unwrap_err();
        assert!(
            error.contains("the MTU") && error.contains("eth0: 1400") && error.contains("ip link set dev"),
            "{error}"
        );
    }
}
