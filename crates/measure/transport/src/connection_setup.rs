//! Sets up TCP connections before the start: the responder listens, the initiator connects.
//!
//! This module does not know what the connections are for.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd,
};

use fathom_engine::{Error, Stop, TrialContext};
use fathom_model::{Endpoints, Histogram, Note, OptionDoc, Role, Side, ValueKind, units::Nanos};
use fathom_sys::{
    clock,
    process::limits,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Listener, Socket},
};

use crate::{
    flow_layout::FlowLayout,
    options::{self, SocketOptions, Target},
    resource_error::resource_error,
};

/// How long after the start a connection of the initiator may still arrive.
const ACCEPT_MAX: Nanos = Nanos::from_secs(2);
/// The longest blocking wait between two checks for the end of the trial.
pub const BLOCKING_TIMEOUT: Nanos = Nanos::from_millis(50);
/// The key of the responder's address in its endpoints.
const ADDRESS: &str = "address";

/// The connections of one side before the start.
#[derive(Debug)]
pub enum FlowConnections {
    /// The responder's connections wait in the listener's queue.
    Listening(Listener),
    /// The initiator's connections, with the time that each took to open.
    Connected(Vec<Socket>, Histogram),
}

/// The ports of the responder.
pub const PORTS: OptionDoc = OptionDoc {
    name: "ports",
    value: ValueKind::Count(1, 4096),
    default: None,
    help: "number of ports that the responder listens on, starting at --port; each takes one flow per local port and address",
};
/// The kernel tries every second local port first, and all of those before the others. With half of the usual 28,232 ports in use
/// a connect tries 14,116 of them, with a quarter in use it tries two.
const FLOWS_PER_PORT: usize = 7_000;
/// The most source addresses: with this many, ports are not the limit.
const SOURCES_MAX: usize = 4096;

/// The listening addresses of each worker of a responder.
#[derive(Debug, Clone, Copy)]
pub struct ListenAddresses {
    first: SocketAddr,
    n_ports: usize,
    n_workers: usize,
}

impl ListenAddresses {
    /// With ports chosen by the kernel each worker has its own. A single fixed port is shared by all workers; several are distributed.
    ///
    /// # Errors
    /// There are not that many ports from the first one on.
    pub(crate) fn of(role: &Role, spread: FlowLayout) -> Result<Self, Error> {
        let FlowLayout { n_flows, n_workers, .. } = spread;
        let first = options::listen_address(role);
        let asked = options::count(&role.settings, &PORTS);
        let n_ports = match first.port() {
            // The same number for each worker, so that each has the same number of flows.
            0 => asked.unwrap_or(n_flows.div_ceil(FLOWS_PER_PORT)).div_ceil(n_workers) * n_workers,
            _ => asked.unwrap_or(1),
        };
        if usize::from(first.port()) + n_ports > usize::from(u16::MAX) + 1 {
            return Err(options::invalid_value(PORTS.name, "at most the number of ports from `port` on", &n_ports));
        }
        Ok(Self { first, n_ports, n_workers })
    }

    /// The addresses of a worker; several workers may share one.
    pub fn of_worker(self, worker: usize) -> impl Iterator<Item = SocketAddr> {
        let Self { first, n_ports, n_workers } = self;
        let at = move |place: usize| {
            let port = if first.port() == 0 { 0 } else { first.port() + u16::try_from(place).expect("it was checked") };
            SocketAddr::new(first.ip(), port)
        };
        let places = if n_ports < n_workers {
            (worker % n_ports..n_ports).step_by(n_ports)
        } else {
            (worker..n_ports).step_by(n_workers)
        };
        places.map(at)
    }
}

/// The destination and source of each of an initiator's connections.
#[derive(Debug, Clone)]
pub struct ConnectTargets {
    to: Vec<Target>,
    /// The address to bind to; `None` if the kernel chooses the same.
    from: Vec<Option<IpAddr>>,
}

impl ConnectTargets {
    /// Takes the responder's reported addresses, and the addresses of this host.
    ///
    /// # Errors
    /// The responder reported no address, or the kernel refuses the requested options.
    pub fn of(role: &Role, kind: &'static str, options: &SocketOptions) -> Result<Self, Error> {
        let to = options.targets(&responder_addresses(role, kind)?)?;
        let first = to[0].address;
        let sources = options.sources(first, SOURCES_MAX)?;
        let from = match sources.as_slice() {
            [] => vec![role.address.filter(|from| !is_default_source(*from, first))],
            sources => sources.iter().copied().map(Some).collect(),
        };
        // One temporary socket shows what the kernel refuses, before many are opened.
        let probe = socket::stream(first).map_err(|cause| Error::System { what: "open a socket".to_owned(), cause })?;
        options.bind(&probe, role.address, 0, &to[0])?;
        options.apply(&probe)?;
        options.connect_destination(&probe, &to[0])?;
        Ok(Self { to, from })
    }

    /// The destination and the source address of a connection, by its number.
    pub fn addresses_of(&self, number: usize) -> (&Target, Option<IpAddr>) {
        (&self.to[number % self.to.len()], self.from[number / self.to.len() % self.from.len()])
    }

    /// Checks that there are local ports for `n_flows` concurrent connections.
    ///
    /// # Errors
    /// There are not enough; the error names the remedy.
    pub fn check_ports(&self, n_flows: usize) -> Result<(), Error> {
        let ports = limits::local_ports()
            .map_err(|cause| Error::System { what: "read the range of local ports".to_owned(), cause })?;
        let (n_ports, n_pairs) = (ports.len(), self.to.len() * self.from.len());
        if n_flows <= n_ports * n_pairs {
            return Ok(());
        }
        let what = format!(
            "{n_flows} flows are more than there are local ports: {n_ports} for each of {n_pairs} pairs of a source address and \
             a destination port"
        );
        let n_needed = n_flows.div_ceil(FLOWS_PER_PORT.min(n_ports) * self.from.len());
        let hint =
            format!("set --ports {n_needed}, give more addresses with --source, or widen net.ipv4.ip_local_port_range");
        Err(Error::Unsupported { what, hint: Some(hint) })
    }

    /// The error of a connection, by its number, that could not be opened.
    pub fn connect_error(&self, number: usize, cause: fathom_sys::Error) -> Error {
        let (to, from) = self.addresses_of(number);
        let from = from.map_or_else(String::new, |from| format!(" from {from}"));
        resource_error(&format!("connect to {}{from}", to.address), cause)
    }
}

/// Whether the kernel chooses this address by itself for the destination, which saves two system calls per connection.
fn is_default_source(from: IpAddr, to: SocketAddr) -> bool {
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let chosen = UdpSocket::bind((any, 0)).and_then(|probe| {
        // Nothing is sent: the connect only looks up the route.
        probe.connect(to)?;
        probe.local_addr()
    });
    chosen.is_ok_and(|chosen| chosen.ip() == from)
}

/// The secret that identifies the datagrams of this trial; only the token in it is unguessable.
pub fn trial_secret(role: &Role) -> u64 {
    role.meeting.token ^ role.seed
}

/// The endpoints of a responder that listens at one address.
pub fn endpoint(address: SocketAddr) -> Endpoints {
    BTreeMap::from([(ADDRESS.to_owned(), address.to_string())])
}

/// The endpoints of a responder that listens at several addresses.
pub fn endpoints_of(addresses: &[SocketAddr]) -> Endpoints {
    let all: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    BTreeMap::from([(ADDRESS.to_owned(), all.join(","))])
}

/// The first address of the responder.
pub fn responder_address(role: &Role, kind: &'static str) -> Result<SocketAddr, Error> {
    responder_addresses(role, kind).map(|told| told[0])
}

/// The addresses of the responder, at least one.
pub fn responder_addresses(role: &Role, kind: &'static str) -> Result<Vec<SocketAddr>, Error> {
    let missing = || Error::Endpoint { kind, what: ADDRESS };
    let text = role.peer.get(ADDRESS).ok_or_else(missing)?;
    text.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| missing())
}

pub fn local_address(socket: impl AsFd) -> Result<SocketAddr, Error> {
    let what = || "read the address of a socket".to_owned();
    socket::local_address(socket).map_err(|cause| Error::System { what: what(), cause })
}

impl FlowConnections {
    /// Listens, or connects every flow.
    pub fn prepare(
        role: &Role,
        kind: &'static str,
        socket_options: &SocketOptions,
    ) -> Result<(Self, Vec<Note>), Error> {
        let n_flows = options::flows_and_workers(role).0;
        if role.side == Side::Responder {
            let (listener, notes) = socket_options.listen(options::listen_address(role), n_flows.max(64))?;
            return Ok((Self::Listening(listener), notes));
        }
        let to = &socket_options.targets(&[responder_address(role, kind)?])?[0];
        let (mut notes, mut times) = (Vec::new(), Histogram::new());
        let connect = |idx| {
            let begin = clock::now();
            let (socket, told) = socket_options.connect(to, role.address, idx)?;
            times.record((clock::now() - begin).0);
            notes = told;
            Ok(socket)
        };
        let sockets = (0..n_flows).map(connect).collect::<Result<_, Error>>()?;
        Ok((Self::Connected(sockets, times), notes))
    }

    /// The endpoints for the other side.
    pub fn endpoints(&self) -> Endpoints {
        match self {
            Self::Listening(listener) => local_address(listener).map(endpoint).unwrap_or_default(),
            Self::Connected(..) => Endpoints::new(),
        }
    }

    /// The time that each of the initiator's connections took to open.
    pub fn connect_times(&self) -> Histogram {
        match self {
            Self::Listening(_) => Histogram::new(),
            Self::Connected(_, times) => times.clone(),
        }
    }

    /// Returns all connections, with blocking calls limited to [`BLOCKING_TIMEOUT`].
    pub fn establish(self, n_flows: usize, context: &TrialContext) -> Result<Vec<Socket>, Error> {
        let sockets = match self {
            Self::Connected(sockets, _) => sockets,
            Self::Listening(listener) => accept_all(&listener, n_flows, context)?,
        };
        for socket in &sockets {
            set_blocking_timeout(socket)
                .map_err(|cause| Error::System { what: "make a connection ready for the start".to_owned(), cause })?;
        }
        Ok(sockets)
    }
}

fn set_blocking_timeout(socket: &Socket) -> fathom_sys::Result<()> {
    socket.set_nonblocking(false).map_err(socket::error_of("fcntl(O_NONBLOCK)"))?;
    socket::set_timeout(socket, BLOCKING_TIMEOUT)
}

fn accept_all(listener: &Listener, n_flows: usize, context: &TrialContext) -> Result<Vec<Socket>, Error> {
    let cannot = |cause| Error::System { what: "accept the connections of the other side".to_owned(), cause };
    let (epoll, mut events) = (Epoll::new().map_err(cannot)?, ReadyList::with_capacity(1));
    epoll.add(listener, 0, Interest::READ).map_err(cannot)?;
    let deadline = context.start + ACCEPT_MAX;
    let mut sockets = Vec::with_capacity(n_flows);
    while sockets.len() < n_flows {
        if let Some((socket, _)) = socket::accept(listener).map_err(cannot)? {
            sockets.push(socket);
        } else if clock::now() >= deadline || context.stop.state() != Stop::Continue {
            return Err(Error::Peer { what: format!("opened {} of {n_flows} connections", sockets.len()) });
        } else {
            epoll.wait(&mut events, Some(BLOCKING_TIMEOUT)).map_err(cannot)?;
        }
    }
    Ok(sockets)
}

/// Distributes items to `n_hands` groups as evenly as possible.
pub fn distribute<T>(things: Vec<T>, n_hands: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..n_hands).map(|_| Vec::new()).collect();
    for (idx, thing) in things.into_iter().enumerate() {
        hands[idx % n_hands].push(thing);
    }
    hands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{flow_layout::DescriptorTables, request_response::sizes::tests::role};

    /// The ports of each worker.
    fn doors(options: &[(&str, &str)], (n_flows, n_workers): (usize, usize)) -> Result<Vec<Vec<u16>>, Error> {
        let mut role = role("1", "1");
        for (name, text) in options {
            role.settings.set(name, *text);
        }
        let doors = ListenAddresses::of(&role, FlowLayout { n_flows, n_workers, tables: DescriptorTables::Shared })?;
        let of = |worker| doors.of_worker(worker).map(|address| address.port()).collect();
        Ok((0..n_workers).map(of).collect())
    }

    #[test]
    fn each_worker_listens_on_as_many_ports_of_the_kernels_choice() {
        assert_eq!(doors(&[], (10, 2)).unwrap(), [[0], [0]]);
        assert_eq!(doors(&[], (100_000, 6)).unwrap(), [[0, 0, 0]; 6]);
        assert_eq!(doors(&[("ports", "3")], (10, 2)).unwrap(), [[0, 0], [0, 0]]);
    }

    #[test]
    fn ports_from_a_fixed_one_on_are_dealt_out_or_shared() {
        assert_eq!(doors(&[("port", "5000")], (10, 3)).unwrap(), [[5000], [5000], [5000]]);
        assert_eq!(
            doors(&[("port", "5000"), ("ports", "4")], (10, 3)).unwrap(),
            [vec![5000, 5003], vec![5001], vec![5002]]
        );
        assert!(doors(&[("port", "65534"), ("ports", "3")], (10, 3)).is_err());
    }

    #[test]
    fn flows_are_dealt_out_evenly() {
        assert_eq!(distribute((0..5).collect(), 2), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(distribute(vec![0], 2), [vec![0], vec![]]);
    }
}
