//! Options that reach a socket, for all kinds of tests, and the sockets that have them.
//!
//! An option that the kernel refuses is an error that names the option; a value that it reduces is a note in the result.

use std::net::{IpAddr, SocketAddr};

use fathom_engine::Error;
use fathom_model::{
    Note, OptionDoc, Role, Settings, ValueKind,
    units::{BitsPerSec, Bytes, Nanos},
};
use fathom_sys::{
    netlink::Netlink,
    policy::{AllowedPeers, Destination, Policy},
    socket::{self, Buffer, Listener, SockRef, Socket, error_of, socket_options},
};
use ipnet::IpNet;

use super::invalid_value;

/// How long a connect may take while a test is prepared.
const CONNECT_MAX: Nanos = Nanos::from_secs(5);

const SECOND: Nanos = Nanos::from_secs(1);

/// The congestion control algorithm.
pub const CONGESTION: OptionDoc = OptionDoc {
    name: "congestion",
    value: ValueKind::Text,
    default: None,
    help: "congestion control on both sides, such as cubic; default: the host's",
};
/// The size of the kernel's buffers.
pub const BUFFER: OptionDoc = OptionDoc {
    name: "buffer",
    value: ValueKind::Size,
    default: None,
    help: "send and receive buffer of each socket, which limits the window; default: the kernel's autotuning",
};
/// The maximum segment size.
pub const MSS: OptionDoc = OptionDoc {
    name: "mss",
    value: ValueKind::Count(88, 32_767),
    default: None,
    help: "maximum segment size in bytes; default: the size that the path allows",
};
/// The differentiated services code point.
pub const DSCP: OptionDoc =
    OptionDoc { name: "dscp", value: ValueKind::Count(0, 63), default: None, help: "DSCP of both sides' packets" };
/// The rate limit of the kernel for the segments of all flows together.
pub const PACING: OptionDoc = OptionDoc {
    name: "pacing",
    value: ValueKind::BitRate,
    default: None,
    help: "total rate limit of all flows in one direction, kept by the kernel (SO_MAX_PACING_RATE)",
};
/// Whether a small segment is sent without waiting for outstanding acknowledgements.
pub const NODELAY: OptionDoc = OptionDoc {
    name: "nodelay",
    value: ValueKind::Choice(&["on", "off"]),
    default: Some("on"),
    help: "TCP_NODELAY on both sides; off: Nagle's algorithm",
};
/// The label by which routers keep a flow on one path.
pub const FLOW_LABEL: OptionDoc = OptionDoc {
    name: "flow-label",
    value: ValueKind::Count(1, 0xf_ffff),
    default: None,
    help: "IPv6 flow label of the initiator's packets; default: the kernel chooses one per connection",
};
/// The initiator's addresses.
pub const SOURCE: OptionDoc = OptionDoc {
    name: "source",
    value: ValueKind::Source,
    default: None,
    help: "source addresses or networks (CIDR) of the initiator, used in turn, comma separated",
};
/// The initiator's interface.
pub const DEVICE: OptionDoc = OptionDoc {
    name: "interface",
    value: ValueKind::Source,
    default: None,
    help: "interface of the initiator (SO_BINDTODEVICE)",
};
/// Whether a connection may use several paths.
pub const MPTCP: OptionDoc = OptionDoc {
    name: "mptcp",
    value: ValueKind::Flag,
    default: None,
    help: "Multipath TCP on both sides (RFC 8684); a fallback to TCP is reported",
};
/// Probes of idle connections.
pub const KEEPALIVE: OptionDoc = OptionDoc {
    name: "keepalive",
    value: ValueKind::Span,
    default: None,
    help: "TCP keepalive after this idle time, in whole seconds, on both sides",
};
/// Polling instead of sleeping.
pub const BUSY_POLL: OptionDoc = OptionDoc {
    name: "busy-poll",
    value: ValueKind::Span,
    default: None,
    help: "busy-poll the device for this time before a receive sleeps (SO_BUSY_POLL), on both sides",
};

/// The options of every socket of a test, the allowed destinations, and the allowed peers.
#[derive(Debug, Clone)]
pub struct SocketOptions {
    congestion: Option<String>,
    buffer: Option<Bytes>,
    mss: Option<u32>,
    class: Option<u8>,
    nodelay: Option<bool>,
    keepalive: Option<Nanos>,
    busy_poll: Option<Nanos>,
    flow_label: Option<u32>,
    sources: Option<String>,
    device: Option<String>,
    is_multipath: bool,
    policy: Policy,
    allowed_peers: AllowedPeers,
    /// The kernel's rate limit for each flow.
    pub pacing: Option<BitsPerSec>,
}

/// An allowed destination of an initiator; only [`SocketOptions::targets`] creates it, when a test is prepared.
#[derive(Debug, Clone)]
pub struct Target {
    pub address: SocketAddr,
    to: Destination,
}

impl SocketOptions {
    pub fn of(role: &Role, policy: &Policy) -> Self {
        let guests = fathom_engine::guests(role, policy);
        Self { policy: policy.clone(), allowed_peers: guests, ..Self::read(&role.settings) }
    }

    fn read(settings: &Settings) -> Self {
        let number = |option: &OptionDoc| settings.count(option.name).and_then(|count| u32::try_from(count).ok());
        Self {
            congestion: settings.text(CONGESTION.name),
            buffer: settings.size(BUFFER.name),
            mss: number(&MSS),
            class: settings.count(DSCP.name).and_then(|dscp| u8::try_from(dscp << 2).ok()),
            nodelay: settings.text(NODELAY.name).map(|word| word == "on"),
            keepalive: settings.span(KEEPALIVE.name),
            busy_poll: settings.span(BUSY_POLL.name),
            flow_label: number(&FLOW_LABEL),
            sources: settings.text(SOURCE.name),
            device: settings.text(DEVICE.name),
            is_multipath: settings.flag(MPTCP.name),
            policy: Policy::anything(),
            allowed_peers: AllowedPeers::anybody(),
            pacing: None,
        }
    }

    /// Checks whether each option is possible on any host.
    ///
    /// # Errors
    /// An option is not; the error names it.
    pub fn check(settings: &Settings) -> Result<(), Error> {
        Self::read(settings).validate()
    }

    fn validate(&self) -> Result<(), Error> {
        let is_possible = |idle: Nanos| idle.0.is_multiple_of(SECOND.0) && (SECOND..=SECOND * 32_767).contains(&idle);
        if let Some(idle) = self.keepalive.filter(|idle| !is_possible(*idle)) {
            return Err(invalid_value(KEEPALIVE.name, "whole seconds from 1 s to 32767 s", &idle));
        }
        self.sources.as_deref().map_or(Ok(()), |text| networks(text).map(drop))
    }

    /// Opens a TCP listener whose connections have these options.
    pub fn listen(&self, at: SocketAddr, backlog: usize) -> Result<(Listener, Vec<Note>), Error> {
        let backlog = u16::try_from(backlog).unwrap_or(u16::MAX);
        let opened = if self.is_multipath {
            self.may_add_paths()?;
            listen_multipath(at, backlog, &self.allowed_peers)
        } else {
            socket::listen(at, backlog, &self.allowed_peers)
        };
        let listener =
            opened.map_err(|cause| Error::system(format!("listen on {at}"), "CAP_NET_BIND_SERVICE", cause))?;
        let notes = self.apply_tcp(&SockRef::from(&listener))?;
        Ok((listener, notes))
    }

    /// Refuses paths that the other side may add, where sending to addresses that the owner did not allow is wrong.
    fn may_add_paths(&self) -> Result<(), Error> {
        if !self.policy.is_for_others() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "a served host does not listen for MPTCP: the other side could add paths from addresses that its owner does not allow"
                .to_owned(),
            hint: Some("leave out --mptcp, or start the agent over SSH".to_owned()),
        })
    }

    /// Opens a TCP connection with these options: the initiator's number `idx`, from the role's address unless another is requested.
    pub fn connect(&self, to: &Target, from: Option<IpAddr>, idx: usize) -> Result<(Socket, Vec<Note>), Error> {
        let at = to.address;
        let opened = if self.is_multipath { socket_options::multipath_stream(at) } else { socket::stream(at) };
        let socket = opened.map_err(|cause| Error::System { what: "open a socket".to_owned(), cause })?;
        self.bind(&socket, from, idx, to)?;
        let mut notes = self.apply_tcp(&socket)?;
        let towards = self.connect_destination(&socket, to)?;
        socket::connect(&socket, &towards, CONNECT_MAX).map_err(|cause| Error::unreachable(at, cause))?;
        notes.extend(self.mptcp_fallback_note(&socket));
        Ok((socket, notes))
    }

    /// Opens a UDP socket with these options that receives from the guests only.
    pub fn bind_udp(&self, at: SocketAddr) -> Result<(Socket, Vec<Note>), Error> {
        let cannot = |cause| Error::system(format!("open a UDP socket at {at}"), "CAP_NET_BIND_SERVICE", cause);
        let socket = socket::datagram(at, &self.allowed_peers).map_err(cannot)?;
        let notes = self.apply(&socket)?;
        Ok((socket, notes))
    }

    /// The same on a port that several workers share.
    pub fn bind_udp_shared(&self, at: SocketAddr) -> Result<(Socket, Vec<Note>), Error> {
        let cannot = |cause| Error::system(format!("open a UDP socket at {at}"), "CAP_NET_BIND_SERVICE", cause);
        let socket = socket::datagram_sharing(at, &self.allowed_peers).map_err(cannot)?;
        let notes = self.apply(&socket)?;
        Ok((socket, notes))
    }

    /// Opens a UDP socket with these options, connected to one peer: the initiator's number `idx`.
    pub fn connect_udp(&self, to: &Target, from: Option<IpAddr>, idx: usize) -> Result<(Socket, Vec<Note>), Error> {
        let cannot =
            |cause| crate::resource_error::resource_error(&format!("connect a UDP socket to {}", to.address), cause);
        let socket = socket::datagram_unbound(to.address).map_err(cannot)?;
        self.bind(&socket, from, idx, to)?;
        let notes = self.apply(&socket)?;
        let towards = self.connect_destination(&socket, to)?;
        socket::associate(&socket, &towards).map_err(cannot)?;
        Ok((socket, notes))
    }

    /// Permits addresses of the responder as destinations, through the requested interface.
    ///
    /// # Errors
    /// One of them is not allowed.
    pub fn targets(&self, places: &[SocketAddr]) -> Result<Vec<Target>, Error> {
        let mut targets: Vec<Target> = Vec::with_capacity(places.len());
        for &address in places {
            // All ports of a host have the same answer: with an interface, permission needs a route lookup in the kernel.
            let known =
                targets.last().map(|last| last.to.at(address.port())).filter(|to| to.address() == Some(address));
            let to = match (known, &self.device) {
                (Some(known), _) => known,
                (None, Some(device)) => self.policy.permit_through(device, address)?,
                (None, None) => self.policy.permit(address)?,
            };
            targets.push(Target { address, to });
        }
        Ok(targets)
    }

    /// Permits a validated address as the destination of a responder.
    ///
    /// # Errors
    /// It is not allowed.
    pub fn destination(&self, to: SocketAddr) -> fathom_sys::Result<Destination> {
        self.policy.permit(to).map_err(error_of("connect"))
    }

    /// Opens a nonblocking TCP socket, for a caller that opens many.
    pub fn open_nonblocking(&self, to: SocketAddr) -> fathom_sys::Result<Socket> {
        if self.is_multipath {
            socket_options::multipath_stream_nonblocking(to)
        } else {
            socket::stream_nonblocking(to)
        }
    }

    /// A note if a connection uses TCP although Multipath TCP was requested.
    pub fn mptcp_fallback_note(&self, connected: &Socket) -> Option<Note> {
        if !self.is_multipath || socket_options::is_multipath(connected).unwrap_or(false) {
            return None;
        }
        let text = "connections fell back from Multipath TCP to TCP: the other side or something on the path does not speak it";
        Some(Note::new("mptcp-fell-back", text))
    }

    /// Binds a socket of the initiator to its source: a device, and an address chosen in turn by the number of the socket.
    pub fn bind(&self, socket: &Socket, from: Option<IpAddr>, idx: usize, to: &Target) -> Result<(), Error> {
        socket_options::bind_to_device(socket, &to.to).map_err(|cause| {
            let device = self.device.as_deref().unwrap_or_default();
            Error::system(format!("send through the interface {device}"), "CAP_NET_RAW", cause)
        })?;
        let Some(address) = self.source(idx, to.address)?.or(from) else { return Ok(()) };
        let cannot = |cause| Error::System { what: format!("send from {address}"), cause };
        socket::set_bind_address_no_port(socket).map_err(cannot)?;
        let bind = || socket.bind(&SocketAddr::new(address, 0).into()).map_err(error_of("bind"));
        let bound = bind();
        if bound.is_err() && address.is_ipv6() && is_local_by_route(address) {
            // IPv4 takes such an address as it is.
            socket::set_freebind(socket, address).map_err(cannot)?;
            return bind().map_err(cannot);
        }
        bound.map_err(cannot)
    }

    /// The source address for number `idx`, among the requested ones that can send to `to`.
    fn source(&self, idx: usize, to: SocketAddr) -> Result<Option<IpAddr>, Error> {
        let Some(networks) = self.networks(to)? else { return Ok(None) };
        Ok(networks.iter().flat_map(IpNet::hosts).cycle().nth(idx))
    }

    /// The first requested source addresses that can send to `to`, for a caller that opens many connections; empty means any.
    pub fn sources(&self, to: SocketAddr, most: usize) -> Result<Vec<IpAddr>, Error> {
        let networks = self.networks(to)?.unwrap_or_default();
        Ok(networks.iter().flat_map(IpNet::hosts).take(most).collect())
    }

    /// The requested networks of the target's family, at least one.
    fn networks(&self, to: SocketAddr) -> Result<Option<Vec<IpNet>>, Error> {
        let Some(text) = &self.sources else { return Ok(None) };
        let fits = |network: &IpNet| network.addr().is_ipv4() == to.is_ipv4();
        let fitting: Vec<IpNet> = networks(text)?.into_iter().filter(fits).collect();
        let family = if to.is_ipv4() {
            "an IPv4 address, as the target has one"
        } else {
            "an IPv6 address, as the target has one"
        };
        if fitting.is_empty() { Err(invalid_value(SOURCE.name, family, text)) } else { Ok(Some(fitting)) }
    }

    /// Whether small segments are sent at once.
    pub fn nodelay(&self) -> bool {
        self.nodelay.unwrap_or(true)
    }

    /// Prepares a new socket of the initiator for connecting, for a caller that opens many. Returns the destination.
    ///
    /// It leaves `TCP_NODELAY` to the caller, who knows whether it makes a difference.
    pub fn configure_outgoing(
        &self,
        socket: &Socket,
        from: Option<IpAddr>,
        target: &Target,
    ) -> fathom_sys::Result<(Destination, Vec<Note>)> {
        socket_options::bind_to_device(socket, &target.to)?;
        if let Some(from) = from {
            socket::set_bind_address_no_port(socket)?;
            socket.bind(&SocketAddr::new(from, 0).into()).map_err(error_of("bind"))?;
        }
        let notes = self.set(socket)?;
        let to = match self.flow_label {
            Some(label) => socket_options::set_flow_label(socket, &target.to, label)?,
            None => target.to.clone(),
        };
        Ok((to, notes))
    }

    /// The destination, with the requested flow label.
    pub fn connect_destination(&self, socket: &Socket, target: &Target) -> Result<Destination, Error> {
        let Some(label) = self.flow_label else { return Ok(target.to.clone()) };
        if target.address.is_ipv4() {
            return Err(invalid_value(FLOW_LABEL.name, "a target with an IPv6 address", &target.address.ip()));
        }
        socket_options::set_flow_label(socket, &target.to, label)
            .map_err(|cause| Error::System { what: format!("use the flow label {label}"), cause })
    }

    fn apply_tcp(&self, socket: &Socket) -> Result<Vec<Note>, Error> {
        // Every kind writes whole messages, so delaying small segments gains nothing unless its effect is the subject of the test.
        socket
            .set_tcp_nodelay(self.nodelay())
            .map_err(error_of("setsockopt(TCP_NODELAY)"))
            .map_err(|cause| Error::System { what: "set --nodelay".to_owned(), cause })?;
        self.apply(socket)
    }

    /// Sets the options on a socket before it connects or listens; accepted sockets inherit them.
    ///
    /// Returns notes on values that the kernel reduced.
    pub fn apply(&self, socket: &Socket) -> Result<Vec<Note>, Error> {
        self.validate()?;
        self.set(socket).map_err(|cause| match &self.congestion {
            Some(name) if cause.call.contains("TCP_CONGESTION") => no_congestion_control(name, &cause),
            _ => Error::system("set the socket options that were asked for", "CAP_NET_ADMIN", cause),
        })
    }

    pub fn set(&self, socket: &Socket) -> fathom_sys::Result<Vec<Note>> {
        if let Some(name) = &self.congestion {
            socket::set_congestion(socket, name)?;
        }
        if let Some(mss) = self.mss {
            socket.set_tcp_mss(mss).map_err(error_of("setsockopt(TCP_MAXSEG)"))?;
        }
        if let Some(class) = self.class {
            socket::set_traffic_class(socket, class)?;
        }
        if let Some(rate) = self.pacing {
            socket::set_max_pacing_rate(socket, rate)?;
        }
        if let Some(idle) = self.keepalive {
            socket_options::set_keepalive(socket, idle)?;
        }
        if let Some(span) = self.busy_poll {
            socket_options::set_busy_poll(socket, span)?;
        }
        let Some(size) = self.buffer else { return Ok(Vec::new()) };
        let buffers = [(Buffer::Receive, "receive", "net.core.rmem_max"), (Buffer::Send, "send", "net.core.wmem_max")];
        let set = |(which, name, bound): (Buffer, &str, &str)| {
            let granted = socket::set_buffer(socket, which, size)?;
            let text = || {
                format!(
                    "the kernel granted a {name} buffer of {granted} where {size} was asked; without CAP_NET_ADMIN {bound} is the most"
                )
            };
            Ok((granted < size).then(|| Note::new(format!("{name}-buffer-smaller"), text())))
        };
        buffers.into_iter().filter_map(|buffer| set(buffer).transpose()).collect()
    }
}

/// Returns whether an address of no interface belongs to this host by a route, as all of a network do by `ip -6 route add local NETWORK dev lo`.
fn is_local_by_route(address: IpAddr) -> bool {
    let by_loopback = || {
        let mut kernel = Netlink::open()?;
        Ok::<_, fathom_sys::Error>(kernel.next_hop(address)?.link == kernel.link("lo")?.index)
    };
    by_loopback().unwrap_or(false)
}

/// Parses the option `source`.
fn networks(text: &str) -> Result<Vec<IpNet>, Error> {
    let network = |part: &str| {
        let network = part.parse::<IpNet>().ok().or_else(|| part.parse::<IpAddr>().ok().map(IpNet::from));
        network.ok_or_else(|| invalid_value(SOURCE.name, "addresses and networks such as 10.0.0.2,10.0.1.0/24", &part))
    };
    text.split(',').map(|part| network(part.trim())).collect()
}

/// A note if busy polling was requested and had nothing to poll.
pub fn busy_poll_note(settings: &Settings, socket: &Socket) -> Option<Note> {
    let asked = settings.span(BUSY_POLL.name)?;
    let text = || {
        format!("nothing was polled in spite of --busy-poll {asked}: no packet came through a queue that can be polled")
    };
    let is_idle = !socket_options::is_polled(socket).unwrap_or(true);
    is_idle.then(|| Note::new("busy-poll-idle", text()))
}

fn listen_multipath(at: SocketAddr, backlog: u16, guests: &AllowedPeers) -> fathom_sys::Result<Listener> {
    let socket = socket_options::multipath_stream(at)?;
    socket.set_reuse_address(true).map_err(error_of("setsockopt(SO_REUSEADDR)"))?;
    socket.set_reuse_port(true).map_err(error_of("setsockopt(SO_REUSEPORT)"))?;
    socket.bind(&at.into()).map_err(error_of("bind"))?;
    socket.set_nonblocking(true).map_err(error_of("fcntl(O_NONBLOCK)"))?;
    let listener = Listener::multipath(socket, guests);
    listener.start(backlog.into()).map_err(error_of("listen"))?;
    Ok(listener)
}

/// The error of an unknown congestion control, with the available ones as the kernel lists them.
fn no_congestion_control(name: &str, cause: &fathom_sys::Error) -> Error {
    let there_are = |file: &str| {
        std::fs::read_to_string(format!("/proc/sys/net/ipv4/{file}"))
            .map_or_else(|_| "not known".to_owned(), |names| names.split_whitespace().collect::<Vec<_>>().join(", "))
    };
    if cause.is_permission() {
        let what = format!("congestion control `{name}` is kept for programs with CAP_NET_ADMIN on this host");
        let hint = format!("use one of {}", there_are("tcp_allowed_congestion_control"));
        return Error::Unsupported { what, hint: Some(hint) };
    }
    let what = format!("this host has no congestion control `{name}`");
    let hint = format!("use one of {}, or load it: modprobe tcp_{name}", there_are("tcp_available_congestion_control"));
    Error::Unsupported { what, hint: Some(hint) }
}

#[cfg(test)]
mod tests {
    use fathom_sys::{
        netlink::{Netlink, namespace::NetNs},
        socket::tcp_info::TcpInfo,
    };

    use super::*;

    const ALL: &[OptionDoc] =
        &[CONGESTION, BUFFER, MSS, DSCP, NODELAY, FLOW_LABEL, SOURCE, DEVICE, MPTCP, KEEPALIVE, BUSY_POLL];

    fn options(given: &[(&str, &str)]) -> SocketOptions {
        let settings = given.iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, *text));
        SocketOptions::read(&settings.complete(ALL).unwrap())
    }

    fn on(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    /// The connecting and the accepted end, both with these options, and the notes of both.
    fn ends(options: &SocketOptions, at: &str) -> Result<(Socket, Socket, Vec<Note>), Error> {
        let (listener, mut notes) = options.listen(on(at), 4)?;
        let to = socket::local_address(&listener).unwrap();
        let (near, told) = options.connect(&options.targets(&[to])?[0], None, 0)?;
        notes.extend(told);
        SockRef::from(&listener).set_nonblocking(false).unwrap();
        let (far, _) = socket::accept(&listener).unwrap().unwrap();
        Ok((near, far, notes))
    }

    #[test]
    fn every_option_reaches_both_ends_of_a_connection() {
        let mut options = options(&[
            ("congestion", "reno"),
            ("buffer", "100000"),
            ("mss", "1000"),
            ("dscp", "46"),
            ("nodelay", "off"),
            ("keepalive", "9s"),
            ("interface", "lo"),
            ("source", "127.0.0.9"),
        ]);
        options.pacing = BitsPerSec::new(8e6);
        let (near, far, notes) = ends(&options, "127.0.0.1:0").unwrap();
        for end in [&near, &far] {
            assert_eq!(socket::congestion(end).unwrap(), "reno");
            assert_eq!(socket::buffer(end, Buffer::Receive).unwrap(), Bytes(100_000));
            assert_eq!(socket::buffer(end, Buffer::Send).unwrap(), Bytes(100_000));
            // The timestamps of RFC 7323 take 12 of the 1000 bytes.
            assert_eq!(TcpInfo::of(end).unwrap().snd_mss, Bytes(988));
            assert_eq!(end.tos_v4().unwrap(), 46 << 2);
            assert!(!end.tcp_nodelay().unwrap());
            assert_eq!(socket_options::keepalive(end).unwrap(), Some(Nanos::from_secs(9)));
            assert_eq!(socket::max_pacing_rate(end).unwrap(), BitsPerSec::new(8e6));
        }
        assert_eq!(socket_options::device(&near).unwrap().as_deref(), Some("lo"));
        assert_eq!(far.peer_addr().unwrap().as_socket().unwrap().ip().to_string(), "127.0.0.9");
        assert_eq!(notes, []);
    }

    #[test]
    fn small_segments_do_not_wait_unless_they_are_asked_to() {
        let (near, far, _) = ends(&options(&[]), "127.0.0.1:0").unwrap();
        assert!(near.tcp_nodelay().unwrap() && far.tcp_nodelay().unwrap());
    }

    #[test]
    fn a_flow_label_and_a_class_go_with_ipv6() {
        let (near, far, _) = ends(&options(&[("flow-label", "703710"), ("dscp", "10")]), "[::1]:0").unwrap();
        assert_eq!(socket_options::flow_label(&near).unwrap(), Some(703_710));
        assert_eq!((near.tclass_v6().unwrap(), far.tclass_v6().unwrap()), (40, 40));
        let refused = ends(&options(&[("flow-label", "703710")]), "127.0.0.1:0").unwrap_err();
        assert_eq!(refused.to_string(), "option `flow-label` takes a target with an IPv6 address, not `127.0.0.1`");
    }

    #[test]
    fn sources_are_gone_through_in_turn_and_only_those_of_the_targets_family() {
        let options = options(&[("source", "127.0.0.8/30, ::1, 127.1.0.1")]);
        let from = |idx, to: &str| options.source(idx, on(to)).unwrap().unwrap().to_string();
        let four = [0, 1, 2, 3].map(|idx| from(idx, "127.0.0.1:9"));
        assert_eq!(four, ["127.0.0.9", "127.0.0.10", "127.1.0.1", "127.0.0.9"]);
        assert_eq!(from(5, "[::1]:9"), "::1");
    }

    #[test]
    fn sources_that_cannot_be_used_are_refused_by_name() {
        let refusal = |source: &str| ends(&options(&[("source", source)]), "127.0.0.1:0").unwrap_err();
        let refused = refusal("lo");
        assert_eq!(
            refused.to_string(),
            "option `source` takes addresses and networks such as 10.0.0.2,10.0.1.0/24, not `lo`"
        );
        assert_eq!(
            refusal("::1").to_string(),
            "option `source` takes an IPv4 address, as the target has one, not `::1`"
        );
        assert_eq!(refusal("192.0.2.77").to_string(), "cannot send from 192.0.2.77");
        let refused = ends(&options(&[("interface", "none0")]), "127.0.0.1:0").unwrap_err();
        assert_eq!(refused.to_string(), "cannot send through the interface none0");
    }

    #[test]
    fn a_congestion_control_that_is_not_there_is_answered_with_those_that_are() {
        let refused = ends(&options(&[("congestion", "nonesuch")]), "127.0.0.1:0").unwrap_err();
        assert_eq!(refused.to_string(), "this host has no congestion control `nonesuch`");
        let hint = refused.hint().unwrap();
        assert!(hint.contains("reno") && hint.contains("cubic") && hint.ends_with("modprobe tcp_nonesuch"), "{hint}");
    }

    #[test]
    fn a_buffer_that_the_kernel_makes_smaller_is_told_by_both_ends() {
        let (near, _, notes) = ends(&options(&[("buffer", "3GB")]), "127.0.0.1:0").unwrap();
        assert!(socket::buffer(&near, Buffer::Receive).unwrap() < Bytes(3_000_000_000));
        let mut ids: Vec<_> = notes.iter().map(|note| note.id.as_str()).collect();
        ids.sort_unstable();
        assert_eq!(ids, [["receive-buffer-smaller"; 2], ["send-buffer-smaller"; 2]].concat());
    }

    #[test]
    fn keepalive_is_in_whole_seconds() {
        for span in ["500ms", "1500ms", "40000s"] {
            let refused = ends(&options(&[("keepalive", span)]), "127.0.0.1:0").unwrap_err().to_string();
            assert!(refused.starts_with("option `keepalive` takes whole seconds from 1 s to 32767 s"), "{refused}");
        }
    }

    #[test]
    fn multipath_is_spoken_by_both_ends() {
        let options = options(&[("mptcp", "true")]);
        let (near, far, notes) = match ends(&options, "127.0.0.1:0") {
            Ok(ends) => ends,
            Err(error) => {
                fathom_testkit::skip_everywhere(&format!("no Multipath TCP here: {error}"));
                return;
            }
        };
        assert!(
            socket_options::is_multipath(&near).unwrap() && socket_options::is_multipath(&far).unwrap(),
            "{notes:?}"
        );
        let (listener, _) = SocketOptions::read(&Settings::default()).listen(on("127.0.0.1:0"), 4).unwrap();
        let to = &options.targets(&[socket::local_address(&listener).unwrap()]).unwrap()[0];
        let (_, notes) = options.connect(to, None, 0).unwrap();
        assert_eq!(notes[0].id, "mptcp-fell-back");
    }

    #[test]
    fn busy_polling_reaches_the_socket_or_names_the_privilege_that_is_missing() {
        match ends(&options(&[("busy-poll", "50us")]), "127.0.0.1:0") {
            Ok((near, far, _)) => {
                let spans = [&near, &far].map(|end| socket_options::busy_poll(end).unwrap());
                assert_eq!(spans, [Nanos::from_micros(50); 2]);
            }
            Err(error) => {
                let asked = "set the socket options that were asked for needs CAP_NET_ADMIN";
                assert_eq!(error.to_string(), asked);
            }
        }
    }

    #[test]
    fn nobody_who_listens_is_told_from_no_way_there() {
        let (listener, _) = options(&[]).listen(on("127.0.0.1:0"), 4).unwrap();
        let gone = socket::local_address(&listener).unwrap();
        drop(listener);
        let connect = |given: &[(&str, &str)], to: SocketAddr| {
            let options = options(given);
            options.connect(&options.targets(&[to]).unwrap()[0], None, 0).unwrap_err()
        };
        let refused = connect(&[], gone);
        assert_eq!(refused.to_string(), format!("cannot connect to {gone}"));
        assert!(refused.hint().unwrap().starts_with("a firewall"), "{:?}", refused.hint());
        // No route of this host leads from its loopback address to the outside.
        let outside = connect(&[("source", "127.0.0.1")], on("192.0.2.1:9"));
        assert!(outside.to_string().starts_with("cannot connect to 192.0.2.1:9"), "{outside}");
    }

    #[test]
    fn the_kernel_is_asked_for_the_route_to_a_host_once_when_the_test_is_prepared() {
        let [here, other]: [IpAddr; 2] = ["127.0.0.1", "192.0.2.1"].map(|text| text.parse().unwrap());
        let policy = Policy::served(here, vec![other.into()]);
        let options = SocketOptions { policy, ..options(&[("interface", "lo")]) };
        let ports = [SocketAddr::new(other, 9), SocketAddr::new(other, 10)];
        let refused = options.targets(&ports).unwrap_err();
        assert!(refused.to_string().starts_with("sending to 192.0.2.1 through lo is refused"), "{refused}");
        let Some(elsewhere) = fathom_testkit::or_skip(NetNs::new(), fathom_sys::Error::is_permission) else { return };
        // While `lo` has the address, the route leads there; a later lookup from this host is refused.
        let prepare = || {
            let mut netlink = Netlink::open().unwrap();
            let lo = netlink.link("lo").unwrap().index;
            netlink.add_address(lo, other, 32).unwrap();
            options.targets(&ports).unwrap()
        };
        for target in elsewhere.enter_with(prepare).unwrap() {
            let socket = options.open_nonblocking(target.address).unwrap();
            let (to, _) = options.configure_outgoing(&socket, None, &target).unwrap();
            assert_eq!(to.address(), Some(target.address));
            assert_eq!(socket_options::device(&socket).unwrap().as_deref(), Some("lo"));
        }
    }
}
