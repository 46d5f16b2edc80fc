//! The addresses that flows come from: a whole network, if wanted, without any setting of the host.

use std::{
    io::ErrorKind,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use fathom_engine::Error;
use fathom_model::{Note, Role, Settings};
use fathom_sys::{
    netlink::LocalNetwork,
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
    local: Vec<LocalNetwork>,
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
        let mut local = Vec::new();
        if settings.flag(LOCAL_SOURCES.name) {
            for network in &fitting {
                let what = format!("make the addresses of {network} local");
                match LocalNetwork::add(network.network(), network.prefix_len()) {
                    Ok(added) => local.push(added),
                    // Somebody has added the same route before, and will remove it.
                    Err(cause) if cause.source.kind() == ErrorKind::AlreadyExists => {}
                    Err(cause) => return Err(Error::system(what, "CAP_NET_ADMIN", cause)),
                }
            }
        }
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
        let names: Vec<String> = self.networks.iter().map(ToString::to_string).collect();
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
    fn wrong_networks_are_named() {
        assert!(networks("10.0.0.0/33").unwrap_err().to_string().contains("10.0.0.0/33"));
        assert_eq!(networks("10.0.0.9/24, ::1").unwrap()[0].to_string(), "10.0.0.0/24");
        assert!(check(&Settings::default().with("local-sources", "true")).is_err());
    }
}
