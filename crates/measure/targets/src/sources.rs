//! The addresses that flows come from: a whole network, if wanted, without any setting of the host.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use fathom_engine::Error;
use fathom_model::{Note, Role, Settings};
use fathom_sys::{
    netlink::{LocalNetwork, Netlink},
    policy::{Destination, Policy, Refused},
    socket,
};
use fathom_transport::options::{SOURCE, invalid_value};
use ipnet::IpNet;

use crate::options::{LOCAL_SOURCES, SOURCE_ORDER};

/// Where the flows of a test come from.
#[derive(Debug)]
pub(crate) struct Sources {
    networks: Vec<IpNet>,
    /// Whether all addresses belong to this host by a route, although no interface has them.
    are_local: bool,
    is_random: bool,
    random: fastrand::Rng,
    n_given: u64,
    /// The networks that belong to this host while the test runs.
    local: Vec<(IpNet, LocalNetwork)>,
}

/// Reads networks and addresses with commas between them.
fn networks(text: &str) -> Result<Vec<IpNet>, Error> {
    let one = |word: &str| {
        let word = word.trim();
        let network = word.parse::<IpNet>().ok().or_else(|| word.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(|network| network.trunc()).ok_or_else(|| {
            invalid_value(SOURCE.name, "addresses or networks, such as 10.0.0.0/16 or 2001:db8::/64", &word)
        })
    };
    text.split(',').map(one).collect()
}

/// Checks the options of sources.
///
/// # Errors
/// A network is none, or there is none to make local.
pub(crate) fn check(settings: &Settings) -> Result<(), Error> {
    let given = settings.text(SOURCE.name).map(|text| networks(&text)).transpose()?;
    if given.is_none() && settings.flag(LOCAL_SOURCES.name) {
        let hint = Some("--source 10.0.0.0/16 --local-sources".to_owned());
        return Err(Error::BadRequest { what: "`local-sources` needs `source`".to_owned(), hint });
    }
    Ok(())
}

impl Sources {
    /// Prepares the sources for a destination.
    ///
    /// # Errors
    /// No network is of its family, or one cannot be made local. A served host changes no routes for others.
    pub(crate) fn of(role: &Role, policy: &Policy, to: &Destination) -> Result<Self, Error> {
        let settings = &role.settings;
        if settings.flag(LOCAL_SOURCES.name) && policy.is_for_others() {
            let what = "changing the routes of a served host is refused".to_owned();
            let hint = Some("leave out --local-sources; its owner may add a local route".to_owned());
            return Err(Refused { what, hint }.into());
        }
        let all = settings.text(SOURCE.name).map(|text| networks(&text)).transpose()?.unwrap_or_default();
        let is_v4 = to.address().is_some_and(|to| to.is_ipv4());
        let fitting: Vec<IpNet> = all.iter().copied().filter(|net| net.addr().is_ipv4() == is_v4).collect();
        if fitting.is_empty() && !all.is_empty() {
            let family =
                if is_v4 { "an IPv4 address, as the target has one" } else { "an IPv6 address, as the target has one" };
            return Err(invalid_value(SOURCE.name, family, &settings.text(SOURCE.name).unwrap_or_default()));
        }
        let local = if settings.flag(LOCAL_SOURCES.name) { make_local(&fitting, to)? } else { Vec::new() };
        let is_random = settings.text(SOURCE_ORDER.name).as_deref() == Some("random");
        let are_local = settings.flag(LOCAL_SOURCES.name);
        Ok(Self {
            networks: fitting,
            are_local,
            is_random,
            random: fastrand::Rng::with_seed(role.seed),
            n_given: 0,
            local,
        })
    }

    /// Says what was changed on this host.
    pub(crate) fn note(&self) -> Option<Note> {
        let names: Vec<String> = self.local.iter().map(|(network, _)| network.to_string()).collect();
        let text = format!("the addresses of {} belonged to this host during the test", names.join(", "));
        (!self.local.is_empty()).then(|| Note::new("local-sources", text))
    }

    /// Returns the next source; `None` if the kernel chooses.
    pub(crate) fn next(&mut self) -> Option<IpAddr> {
        let n = self.n_given;
        self.n_given += 1;
        let place = usize::try_from(n % u64::try_from(self.networks.len().max(1)).unwrap_or(1)).unwrap_or(0);
        let network = *self.networks.get(place)?;
        let round = n / u64::try_from(self.networks.len()).unwrap_or(1);
        let turn = if self.is_random { self.random.u128(..) } else { round.into() };
        Some(address_in(network, turn))
    }

    /// Binds a socket to the next source.
    pub(crate) fn bind(&mut self, socket: &socket::Socket) -> fathom_sys::Result<()> {
        let Some(from) = self.next() else { return Ok(()) };
        if self.are_local {
            socket::set_freebind(socket, from)?;
        }
        socket::set_bind_address_no_port(socket)?;
        socket.bind(&SocketAddr::new(from, 0).into()).map_err(socket::error_of("bind"))
    }
}

/// Makes the addresses of networks belong to this host, apart from those that do already.
fn make_local(networks: &[IpNet], to: &Destination) -> Result<Vec<(IpNet, LocalNetwork)>, Error> {
    let failed = |what: &str, cause| Error::system(what.to_owned(), "CAP_NET_ADMIN", cause);
    let mut netlink = Netlink::open().map_err(|cause| failed("read the routes of this host", cause))?;
    let addresses = netlink.addresses().map_err(|cause| failed("read the addresses of this host", cause))?;
    let gateways = netlink.gateways().map_err(|cause| failed("read the routes of this host", cause))?;
    let is_own = |network: &IpNet| {
        network.prefix_len() == network.max_prefix_len() && addresses.iter().any(|(_, own)| *own == network.addr())
    };
    // One that is named twice has more turns, and one route.
    let networks: BTreeSet<IpNet> = networks.iter().copied().filter(|network| !is_own(network)).collect();
    // All are looked at before the first is changed.
    networks.iter().try_for_each(|network| check_needed(*network, to.address().map(|to| to.ip()), &gateways))?;
    let add = |network: IpNet| match LocalNetwork::add(network.network(), network.prefix_len()) {
        Ok(added) => Ok((network, added)),
        Err(cause) if cause.source.kind() == ErrorKind::AlreadyExists => Err(is_local_already(network)),
        Err(cause) => Err(failed(&format!("make the addresses of {network} local"), cause)),
    };
    networks.into_iter().map(add).collect()
}

/// Refuses a network with an address that this host could not reach any more if it were its own.
fn check_needed(network: IpNet, target: Option<IpAddr>, gateways: &[IpAddr]) -> Result<(), Error> {
    let target = target.map(|target| (target, "the target"));
    let mut needed = target.into_iter().chain(gateways.iter().map(|gateway| (*gateway, "a gateway of this host")));
    let Some((address, who)) = needed.find(|(address, _)| network.contains(address)) else { return Ok(()) };
    let what = format!("--local-sources would make {address}, {who}, belong to this host: it is in {network}");
    let hint = Some(format!("--source with a network without {address}"));
    Err(Error::BadRequest { what, hint })
}

/// The error for a route that somebody else has added, and may remove.
fn is_local_already(network: IpNet) -> Error {
    Error::Unsupported {
        what: format!("the addresses of {network} belong to this host already, by the route `local {network} dev lo`"),
        hint: Some(format!("if no other test has added it: ip route del local {network} dev lo")),
    }
}

/// Returns one address of a network, by its turn; neither the network's own nor its broadcast address, if it has others.
fn address_in(network: IpNet, turn: u128) -> IpAddr {
    let bits = u32::from(network.max_prefix_len() - network.prefix_len());
    let n = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
    let (first, n) = if network.addr().is_ipv4() && n > 2 {
        (1, n - 2)
    } else if n > 2 {
        // The first address of an IPv6 network is that of its routers (RFC 4291 section 2.6.1).
        (1, n - 1)
    } else {
        (0, n)
    };
    let offset = first + turn % n;
    match network.network() {
        IpAddr::V4(base) => {
            let offset = u32::try_from(offset).expect("an IPv4 network has no more addresses");
            IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() + offset))
        }
        IpAddr::V6(base) => IpAddr::V6(Ipv6Addr::from_bits(base.to_bits() + offset)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_a_network_take_turns_without_its_ends() {
        let of = |network: &str, turn| address_in(network.parse().unwrap(), turn).to_string();
        assert_eq!([0, 1, 2].map(|turn| of("10.0.0.0/30", turn)), ["10.0.0.1", "10.0.0.2", "10.0.0.1"]);
        assert_eq!((of("10.0.0.7/32", 5), of("10.0.0.6/31", 3)), ("10.0.0.7".to_owned(), "10.0.0.7".to_owned()));
        assert_eq!(of("2001:db8::/64", 0), "2001:db8::1");
        assert_eq!(of("::/0", u128::MAX), "::2", "the largest network wraps around");
    }

    #[test]
    fn a_network_with_the_target_or_a_gateway_is_refused() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let gateways = [address("10.0.1.1"), address("fe80::1")];
        let of = |network: &str, target: &str| {
            let checked = check_needed(network.parse().unwrap(), Some(address(target)), &gateways);
            checked.map_err(|error| error.to_string())
        };
        assert_eq!(of("10.0.0.0/24", "10.0.2.1"), Ok(()));
        let gateway =
            "--local-sources would make 10.0.1.1, a gateway of this host, belong to this host: it is in 10.0.0.0/16";
        assert_eq!(of("10.0.0.0/16", "10.1.2.1"), Err(gateway.to_owned()));
        assert!(of("10.0.2.0/24", "10.0.2.1").unwrap_err().contains("10.0.2.1, the target,"));
        assert!(of("fe80::/10", "2001:db8::1").unwrap_err().contains("fe80::1, a gateway"));
        assert_eq!(of("2001:db8::/64", "10.0.2.1"), Ok(()));
    }

    #[test]
    fn wrong_networks_are_named() {
        assert!(networks("10.0.0.0/33").unwrap_err().to_string().contains("10.0.0.0/33"));
        assert_eq!(networks("10.0.0.9/24, ::1").unwrap()[0].to_string(), "10.0.0.0/24");
        assert!(check(&Settings::default().with("local-sources", "true")).is_err());
    }
}
