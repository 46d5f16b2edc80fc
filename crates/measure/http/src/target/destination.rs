//! The destination of connections: the addresses of a name, and when it is looked up.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
};

use fathom_model::{Settings, host_port::port_number, settings::SettingError, units::Nanos};
use fathom_sys::{
    policy::{Destination as Permitted, Policy},
    socket::{self, Domain, Socket, Type, error_of},
};

use super::{SourceAddresses, TargetConfigError};
use crate::url::host_and_port;

/// A server with addresses of both families that accepts no connection within this time is tried with the other family. It is
/// longer than the round trip of any path on earth.
const PROBE_TIMEOUT: Nanos = Nanos::from_secs(1);

/// The allowed versions of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressFamily {
    /// The family of the first address that accepts a connection.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl AddressFamily {
    pub(super) fn from(settings: &Settings) -> Self {
        match settings.text("ip").as_deref() {
            Some("4") => Self::V4,
            Some("6") => Self::V6,
            _ => Self::Any,
        }
    }

    fn allows(self, address: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

/// How long the result of a lookup is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DnsRefresh {
    /// For the whole test.
    Once,
    /// For this long. Then the next connect starts a new lookup and uses the old result until the new one arrives.
    For(Nanos),
    /// For one connection.
    Connection,
}

impl DnsRefresh {
    pub(super) fn from(settings: &Settings) -> Result<Self, TargetConfigError> {
        let text = settings.text("dns").unwrap_or_else(|| "once".to_owned());
        let refused = || SettingError::NotAllowed {
            name: "dns".to_owned(),
            expected: "once, connection or a span such as 30s".to_owned(),
            given: text.clone(),
        };
        Ok(match text.as_str() {
            "once" => Self::Once,
            "connection" => Self::Connection,
            span => match span.parse::<Nanos>() {
                Ok(span) if span > Nanos::ZERO => Self::For(span),
                _ => return Err(refused().into()),
            },
        })
    }
}

/// A host and a port as written by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

impl HostPort {
    /// Parses `host:port`, such as `[::1]:80`.
    pub(super) fn parse(option: &str, text: &str) -> Result<Self, TargetConfigError> {
        let parsed = host_and_port(text).and_then(|(host, port)| {
            let port = port_number(port?)?;
            Some(Self { host: host.to_owned(), port })
        });
        let refused = || SettingError::NotAllowed {
            name: option.to_owned(),
            expected: "host:port, such as 10.0.0.1:8080 or [::1]:80".to_owned(),
            given: text.to_owned(),
        };
        parsed.ok_or_else(|| refused().into())
    }

    /// Asks the system's resolver, and keeps its order. An address that the policy refuses is an error.
    pub(super) fn look_up(&self, policy: &Policy) -> io::Result<Vec<Permitted>> {
        policy.look_up(&self.host, self.port)
    }

    /// Whether the host is an address, which never needs a lookup.
    pub(super) fn is_address(&self) -> bool {
        self.host.parse::<IpAddr>().is_ok()
    }
}

/// The peer of connections.
#[derive(Debug, Clone)]
pub(super) enum Destination {
    /// A unix socket.
    Unix(Permitted),
    /// TCP, to addresses of one family.
    Tcp(TcpDestination),
}

/// The addresses of a name.
#[derive(Debug, Clone)]
pub(super) struct TcpDestination {
    pub(super) name: HostPort,
    /// The addresses found before the start; never empty.
    pub(super) addresses: Vec<Permitted>,
    /// Whether the addresses are IPv6.
    is_six: bool,
}

impl TcpDestination {
    /// The addresses of a later lookup that have the same family as the first ones.
    pub(super) fn filter_usable(&self, found: Vec<Permitted>) -> Vec<Permitted> {
        found.into_iter().filter(|to| is_six(to) == self.is_six).collect()
    }
}

impl Destination {
    pub(super) fn unix(path: &str, policy: &Policy) -> Result<Self, TargetConfigError> {
        let refused = |cause| TargetConfigError::File { option: "unix", path: path.into(), cause };
        let address = policy.permit_unix(Path::new(path)).map_err(refused)?;
        std::fs::metadata(path).map_err(refused)?;
        Ok(Self::Unix(address))
    }

    /// Looks the name up and chooses one family of its addresses.
    pub(super) fn tcp(
        name: HostPort,
        (family, sources): (AddressFamily, Option<&SourceAddresses>),
        policy: &Policy,
    ) -> Result<Self, TargetConfigError> {
        let failed = |cause| TargetConfigError::Resolve { host: name.host.clone(), cause };
        let found = policy.resolve(&name.host, name.port).map_err(failed)?;
        if found.is_empty() {
            return Err(failed(io::ErrorKind::NotFound.into()));
        }
        let is_usable = |to: &&Permitted| {
            let ip = to.address().map(|address| address.ip());
            ip.is_some_and(|ip| family.allows(ip) && sources.is_none_or(|sources| sources.can_reach(ip)))
        };
        let usable: Vec<Permitted> = found.iter().filter(is_usable).cloned().collect();
        let Some(first) = usable.first() else {
            let version = if is_six(&found[0]) { 4 } else { 6 };
            return Err(TargetConfigError::Family { host: name.host, version });
        };
        let has_both = usable.iter().any(|to| is_six(to) != is_six(first));
        let chosen = if has_both { usable.iter().find(|to| takes_connections(to)).unwrap_or(first) } else { first };
        let is_six = is_six(chosen);
        let tcp = TcpDestination { name, addresses: Vec::new(), is_six };
        Ok(Self::Tcp(TcpDestination { addresses: tcp.filter_usable(usable), ..tcp }))
    }
}

fn is_six(to: &Permitted) -> bool {
    to.address().is_some_and(|address| address.is_ipv6())
}

/// Names such as `localhost` have addresses of both families, and many servers listen on only one.
fn takes_connections(to: &Permitted) -> bool {
    let connect = |address| socket::stream(address).and_then(|own| socket::connect(&own, to, PROBE_TIMEOUT));
    to.address().is_some_and(|address| connect(address).is_ok())
}

/// The destination and source of one connection.
#[derive(Debug, Clone)]
pub struct ConnectEndpoints {
    /// The address to connect to.
    pub address: Permitted,
    /// The source address, unless the kernel chooses it.
    pub source: Option<IpAddr>,
}

impl ConnectEndpoints {
    /// Creates a nonblocking socket, ready to be connected to `address`.
    ///
    /// The kernel chooses the local port at the connect, so that all ports are available for each destination.
    ///
    /// # Errors
    /// `socket`, if descriptors have run out; `setsockopt` and `bind`, if the source is not an address of this host.
    pub fn open_socket(&self) -> fathom_sys::Result<Socket> {
        let Some(target) = self.address.address() else { return unix_stream() };
        let own = socket::stream_nonblocking(target)?;
        own.set_tcp_nodelay(true).map_err(error_of("setsockopt(TCP_NODELAY)"))?;
        if let Some(source) = self.source {
            socket::set_bind_address_no_port(&own)?;
            own.bind(&SocketAddr::new(source, 0).into()).map_err(error_of("bind"))?;
        }
        Ok(own)
    }
}

fn unix_stream() -> fathom_sys::Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(error_of("socket(AF_UNIX)"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn name(text: &str) -> HostPort {
        HostPort::parse("connect-to", text).unwrap()
    }

    fn addresses(destination: Destination) -> Vec<String> {
        match destination {
            Destination::Tcp(tcp) => tcp.addresses.iter().map(ToString::to_string).collect(),
            Destination::Unix(_) => Vec::new(),
        }
    }

    #[test]
    fn a_place_to_connect_to_has_a_host_and_a_port() {
        assert_eq!(name("[::1]:80"), HostPort { host: "::1".to_owned(), port: 80 });
        assert!(name("10.0.0.1:8080").is_address() && !name("a.example:1").is_address());
        for text in ["", "a", "a:", "a:0", "a:65536", ":80", "::1", "[::1]", "a b:1"] {
            let error = HostPort::parse("connect-to", text).unwrap_err().to_string();
            assert!(error.starts_with("option `connect-to` takes host:port"), "{text}: {error}");
        }
    }

    #[test]
    fn the_version_of_ip_decides_which_addresses_are_used() {
        assert_eq!(
            addresses(Destination::tcp(name("127.0.0.1:1"), (AddressFamily::Any, None), &Policy::anything()).unwrap()),
            ["127.0.0.1:1"]
        );
        assert_eq!(
            addresses(Destination::tcp(name("[::1]:1"), (AddressFamily::V6, None), &Policy::anything()).unwrap()),
            ["[::1]:1"]
        );
        let error = Destination::tcp(name("127.0.0.1:1"), (AddressFamily::V6, None), &Policy::anything()).unwrap_err();
        assert_eq!(error.to_string(), "`127.0.0.1` has no address of IPv6");
        let sources = SourceAddresses::parse("10.0.0.1").unwrap();
        let error =
            Destination::tcp(name("[::1]:1"), (AddressFamily::Any, Some(&sources)), &Policy::anything()).unwrap_err();
        assert_eq!(error.to_string(), "`::1` has no address of IPv4");
    }

    #[test]
    fn of_two_families_the_one_that_takes_connections_is_used() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let localhost = HostPort { host: "localhost".to_owned(), port };
        let found = addresses(Destination::tcp(localhost, (AddressFamily::Any, None), &Policy::anything()).unwrap());
        assert_eq!(found, [format!("127.0.0.1:{port}")]);
    }

    #[test]
    fn a_name_without_address_is_found_before_the_load() {
        // RFC 6761 section 6.4: names under `invalid` never have an address.
        let error =
            Destination::tcp(name("nowhere.invalid:80"), (AddressFamily::Any, None), &Policy::anything()).unwrap_err();
        assert!(matches!(error, TargetConfigError::Resolve { ref host, .. } if host == "nowhere.invalid"), "{error}");
    }

    #[test]
    fn the_freshness_of_an_answer_is_one_of_three() {
        let parse = |text: &str| DnsRefresh::from(&Settings::default().with("dns", text));
        assert_eq!(parse("once").unwrap(), DnsRefresh::Once);
        assert_eq!(parse("connection").unwrap(), DnsRefresh::Connection);
        assert_eq!(parse("30s").unwrap(), DnsRefresh::For(Nanos::from_secs(30)));
        for text in ["0s", "always", "-1s", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_socket_sends_from_the_source_and_takes_its_port_at_the_connect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let place = ConnectEndpoints {
            address: Policy::anything().permit(address).unwrap(),
            source: Some("127.0.0.77".parse().unwrap()),
        };
        let own = place.open_socket().unwrap();
        assert_eq!(socket::local_address(&own).unwrap().port(), 0);
        socket::connect_begin(&own, &place.address).unwrap();
        let (_, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), "127.0.0.77");
    }
}
