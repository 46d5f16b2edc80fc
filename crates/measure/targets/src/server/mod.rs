//! A server that tells who it is, over TCP and UDP on one port.
//!
//! It answers from the address that was asked, so that it may stand behind an address that several targets share. It sends nothing on its
//! own and no more than it gets, apart from the name of at most 64 bytes that mconnect's protocol wants.

mod connection;

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::{AllowedPeers, Network},
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Domain, Listener, Protocol, Socket, Type, Wait, answer_source},
};

use self::connection::{ReadDatagram, ServedConnection, answer_datagram};
use crate::{dialect::Dialect, identity::Identity};

/// The port of servers of identities, unless another one is chosen.
pub const PORT: u16 = 7701;
/// The longest wait before the end is looked for.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(50);
/// The backlog of the listener; the kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// More unwritten bytes than this, and nothing more is read until they are written.
const UNWRITTEN_MAX: usize = 256 * 1024;
/// The datagrams that are answered before connections are looked at again.
const DATAGRAMS_AT_ONCE: usize = 256;
/// The connections that are accepted before others are looked at.
const ACCEPTS_AT_ONCE: usize = 64;
/// The reads of a connection before others are looked at: four of the longest messages, so that one client starves no other.
const READS_AT_ONCE: usize = 4;
/// How often connections without messages are looked for.
const SILENCE_LOOK_EVERY: Nanos = Nanos::from_millis(500);
/// The pause after descriptors have run out.
const NO_DESCRIPTOR_PAUSE: Nanos = Nanos::from_millis(10);

const LISTENER: u64 = u64::MAX;
const DATAGRAMS: u64 = u64::MAX - 1;

/// What the clients of a server got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServedTotals {
    /// The connections that were opened.
    pub connections: u64,
    /// The messages and datagrams that were answered.
    pub answers: u64,
    /// The connections and datagrams that did not keep to the protocol.
    pub refused: u64,
    /// The connections that were closed: of strangers, above the most that may be open, and without messages.
    pub connections_turned_away: u64,
    /// The datagrams of strangers.
    pub datagrams_turned_away: u64,
}

/// Whom a server serves, and how much of it clients may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLimits {
    /// The networks of its clients; without any, it serves everybody.
    pub networks: Vec<Network>,
    /// The most open connections.
    pub connections: usize,
    /// How long a connection may be open before its first whole message, once more than half of the connections are open.
    pub first_within: Nanos,
    /// How long a connection may then be without another one.
    pub next_within: Nanos,
}

impl Default for ClientLimits {
    /// Serves everybody without limits, as the servers of other tools do.
    fn default() -> Self {
        Self { networks: Vec::new(), connections: usize::MAX, first_within: Nanos::MAX, next_within: Nanos::MAX }
    }
}

impl ClientLimits {
    fn admit(&self, from: Option<IpAddr>) -> bool {
        self.networks.is_empty() || from.is_some_and(|from| self.networks.iter().any(|network| network.contains(from)))
    }
}

/// A server that listens.
#[derive(Debug)]
pub struct IdentityServer {
    listener: Listener,
    datagrams: Socket,
    address: SocketAddr,
    identity: Identity,
    dialect: Dialect,
    limits: ClientLimits,
}

impl IdentityServer {
    /// Listens for TCP and UDP at an address; port 0 means one that the kernel chooses. `::` takes IPv4 as well.
    ///
    /// # Errors
    /// `bind` and `listen`, such as a port in use.
    pub fn bind(address: SocketAddr, identity: Identity, dialect: Dialect) -> fathom_sys::Result<Self> {
        let listener = Listener::new(open(address, Type::STREAM)?, &AllowedPeers::anybody())?;
        listener.start(BACKLOG).map_err(socket::error_of("listen"))?;
        let address = socket::local_address(&listener)?;
        let datagrams = open(address, Type::DGRAM)?;
        answer_source::enable(&datagrams)?;
        Ok(Self { listener, datagrams, address, identity, dialect, limits: ClientLimits::default() })
    }

    /// Limits whom it serves.
    #[must_use]
    pub fn limited(self, limits: ClientLimits) -> Self {
        Self { limits, ..self }
    }

    /// The address that it listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who it says it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Serves until the flag is set.
    ///
    /// # Errors
    /// Those of `epoll`.
    pub fn run(self, stop: &StopFlag) -> fathom_sys::Result<ServedTotals> {
        let epoll = Epoll::new()?;
        epoll.add(&self.listener, LISTENER, Interest::READ)?;
        epoll.add(&self.datagrams, DATAGRAMS, Interest::READ)?;
        let mut serving = Serving {
            server: &self,
            epoll,
            open: BTreeMap::new(),
            next: 0,
            room: vec![0; usize::from(u16::MAX)],
            datagram: Vec::new(),
            totals: ServedTotals::default(),
        };
        let mut events = ReadyList::with_capacity(256);
        let mut next_look = clock::now() + SILENCE_LOOK_EVERY;
        while stop.state() == Stop::Continue {
            serving.epoll.wait(&mut events, Some(STOP_CHECK_EVERY))?;
            for event in events.iter() {
                match event.token {
                    LISTENER => serving.accept()?,
                    DATAGRAMS => serving.answer_datagrams(),
                    token => serving.serve(token)?,
                }
            }
            let now = clock::now();
            if now >= next_look {
                serving.close_silent(now);
                next_look = now + SILENCE_LOOK_EVERY;
            }
        }
        let unclosed: u64 = serving.open.values().map(|open| open.connection.n_answered).sum();
        serving.totals.answers += unclosed;
        Ok(serving.totals)
    }
}

/// Opens a socket at an address, which no other socket has.
fn open(address: SocketAddr, kind: Type) -> fathom_sys::Result<Socket> {
    let protocol = if kind == Type::STREAM { Protocol::TCP } else { Protocol::UDP };
    let opened = Socket::new(Domain::for_address(address), kind.nonblocking(), Some(protocol)).and_then(|socket| {
        if address.is_ipv6() {
            socket.set_only_v6(!address.ip().is_unspecified())?;
        }
        if kind == Type::STREAM {
            socket.set_reuse_address(true)?;
        }
        Ok(socket)
    });
    let socket = opened.map_err(socket::error_of("socket"))?;
    let bound: io::Result<()> = socket.bind(&address.into());
    bound.map_err(|error| fathom_sys::Error::new(format!("bind({address})"), error))?;
    Ok(socket)
}

/// A server that runs.
struct Serving<'a> {
    server: &'a IdentityServer,
    epoll: Epoll,
    open: BTreeMap<u64, OpenConnection>,
    next: u64,
    /// Room for a datagram, and for its answer.
    room: Vec<u8>,
    datagram: Vec<u8>,
    totals: ServedTotals,
}

struct OpenConnection {
    socket: Socket,
    connection: ServedConnection,
    /// What its events are for.
    interest: Interest,
    /// The messages that were answered when it was looked at last, and since when there are no more.
    n_seen: u64,
    silent_since: Nanos,
}

impl Serving<'_> {
    fn accept(&mut self) -> fathom_sys::Result<()> {
        for _ in 0..ACCEPTS_AT_ONCE {
            let (socket, from) = match socket::accept(&self.server.listener) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return Ok(()),
                Err(error) if error.shortage().is_some() => {
                    // Those that wait are served when others have closed; without a pause this would take a whole core.
                    clock::sleep_until(clock::now() + NO_DESCRIPTOR_PAUSE);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            let limits = &self.server.limits;
            if self.open.len() >= limits.connections || !limits.admit(Some(from.ip())) {
                self.totals.connections_turned_away += 1;
                continue;
            }
            // An answer is small and is waited for. A socket that cannot have the option is slower, and no less right.
            let _ = socket.set_tcp_nodelay(true);
            let token = self.next;
            self.next += 1;
            self.totals.connections += 1;
            let connection = ServedConnection::open(self.server.dialect, &self.server.identity);
            self.epoll.add(&socket, token, Interest::READ)?;
            let (interest, silent_since) = (Interest::READ, clock::now());
            self.open.insert(token, OpenConnection { socket, connection, interest, n_seen: 0, silent_since });
            self.serve(token)?;
        }
        Ok(())
    }

    /// Closes the connections that have sent no whole message for too long, if there is a lack of connections: flows that are opened one
    /// after another ask nothing before the last one is open.
    fn close_silent(&mut self, now: Nanos) {
        let ClientLimits { connections, first_within, next_within, .. } = self.server.limits;
        if self.open.len() <= connections / 2 {
            return;
        }
        let totals = &mut self.totals;
        self.open.retain(|_, open| {
            let n = open.connection.n_answered;
            if open.n_seen != n {
                (open.n_seen, open.silent_since) = (n, now);
            }
            let limit = if n == 0 { first_within } else { next_within };
            let is_kept = now.since(open.silent_since) <= limit;
            if !is_kept {
                totals.answers += n;
                totals.connections_turned_away += 1;
            }
            is_kept
        });
    }

    /// Reads, answers and writes on a connection as far as possible now.
    fn serve(&mut self, token: u64) -> fathom_sys::Result<()> {
        let Some(open) = self.open.get_mut(&token) else { return Ok(()) };
        if !serve_connection(&open.socket, &mut open.connection, self.server) {
            self.totals.answers += open.connection.n_answered;
            self.totals.refused += u64::from(open.connection.is_strange);
            self.open.remove(&token);
            return Ok(());
        }
        let interest = match open.connection.to_write.len() {
            0 => Interest::READ,
            n => Interest { read: n <= UNWRITTEN_MAX, ..Interest::WRITE },
        };
        if (open.interest.read, open.interest.write) != (interest.read, interest.write) {
            open.interest = interest;
            self.epoll.modify(&open.socket, token, interest)?;
        }
        Ok(())
    }

    fn answer_datagrams(&mut self) {
        let IdentityServer { datagrams, dialect, identity, limits, .. } = self.server;
        for _ in 0..DATAGRAMS_AT_ONCE {
            let question = match answer_source::receive(datagrams, &mut self.room, Wait::Never) {
                Ok(Some(question)) => question,
                Ok(None) => return,
                // A client that is gone refuses its answer; the next datagram is of another one.
                Err(_) => continue,
            };
            let from = question.sender_address();
            if !limits.admit(from.map(|from| from.ip())) {
                self.totals.datagrams_turned_away += 1;
                continue;
            }
            self.datagram.clear();
            self.datagram.extend_from_slice(&self.room[..question.n_bytes]);
            let from_port = from.map_or(0, |from| from.port());
            let read = ReadDatagram { bytes: &mut self.datagram, from_port, to_port: self.server.address.port() };
            if answer_datagram(read, *dialect, identity).is_err() {
                self.totals.refused += 1;
                continue;
            }
            if matches!(answer_source::answer(datagrams, &self.datagram, &question, Wait::Never), Ok(Some(_))) {
                self.totals.answers += 1;
            }
        }
    }
}

/// Reads, answers and writes as far as possible in one turn. Returns false if the connection is over.
fn serve_connection(socket: &Socket, connection: &mut ServedConnection, server: &IdentityServer) -> bool {
    let mut bytes = [0; 16 * 1024];
    for _ in 0..READS_AT_ONCE {
        if !write(socket, &mut connection.to_write) {
            return false;
        }
        if connection.to_write.len() > UNWRITTEN_MAX {
            return true;
        }
        match socket::recv(socket, &mut bytes, Wait::Never) {
            Ok(None) => return true,
            Ok(Some(count)) if count > 0 => {
                if connection.absorb(&bytes[..count], server.dialect, &server.identity).is_err() {
                    connection.is_strange = true;
                    return false;
                }
            }
            Ok(Some(_)) | Err(_) => return false,
        }
    }
    write(socket, &mut connection.to_write)
}

/// Writes as far as possible now. Returns false if the connection is over.
fn write(socket: &Socket, to_write: &mut Vec<u8>) -> bool {
    while !to_write.is_empty() {
        match socket::send(socket, to_write, Wait::Never) {
            Ok(Some(count)) => drop(to_write.drain(..count)),
            Ok(None) => break,
            Err(_) => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpStream, UdpSocket},
        thread,
    };

    use super::*;
    use crate::message::{self, HEADER, Question};

    /// Runs a server while a client talks to it.
    fn serving(dialect: Dialect, client: impl FnOnce(SocketAddr)) -> ServedTotals {
        limited(dialect, ClientLimits::default(), client)
    }

    fn limited(dialect: Dialect, limits: ClientLimits, client: impl FnOnce(SocketAddr)) -> ServedTotals {
        let server = IdentityServer::bind("127.0.0.1:0".parse().unwrap(), Identity::new("t1", 5), dialect).unwrap();
        let server = server.limited(limits);
        let (address, stop) = (server.address(), StopFlag::default());
        thread::scope(|scope| {
            let running = scope.spawn(|| server.run(&stop).unwrap());
            client(address);
            stop.finish();
            running.join().unwrap()
        })
    }

    #[test]
    fn both_protocols_of_a_port_tell_who_answers() {
        let mut question = [0; HEADER];
        Question { number: 4, flow: 2 }.write(&mut question);
        let totals = serving(Dialect::Fathom, |address| {
            let mut answer = [0; HEADER];
            let mut stream = TcpStream::connect(address).unwrap();
            for _ in 0..3 {
                stream.write_all(&question).unwrap();
                stream.read_exact(&mut answer).unwrap();
                assert_eq!(message::read(&answer).unwrap().identity.unwrap().to_string(), "t1#0000000000000005");
            }
            drop(stream);
            let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
            datagrams.send_to(b"strange", address).unwrap();
            datagrams.send_to(&question, address).unwrap();
            assert_eq!(datagrams.recv_from(&mut answer).unwrap(), (HEADER, address));
            assert_eq!(message::read(&answer).unwrap().number, 4);
        });
        assert_eq!((totals.connections, totals.refused), (1, 1));
        assert!(totals.answers >= 1, "{totals:?}");
    }

    #[test]
    fn the_answer_of_another_server_is_not_answered() {
        let mut answer = [0; HEADER];
        Question { number: 4, flow: 2 }.write(&mut answer);
        let mut question = answer;
        question[79] = 5;
        message::sign(&mut answer, &Identity::new("t2", 6)).unwrap();
        let totals = serving(Dialect::Fathom, |address| {
            let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&answer).unwrap();
            assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0, "the connection ends");
            datagrams.send_to(&answer, address).unwrap();
            datagrams.send_to(&question, address).unwrap();
            datagrams.recv_from(&mut answer).unwrap();
            assert_eq!(message::read(&answer).unwrap().number, 5);
        });
        assert_eq!((totals.answers, totals.refused), (1, 2));
    }

    #[test]
    fn a_greeting_needs_no_question() {
        serving(Dialect::Mconnect, |address| {
            let mut name = [0; 8];
            let count = TcpStream::connect(address).unwrap().read(&mut name).unwrap();
            assert_eq!(&name[..count], b"t1");
        });
    }

    #[test]
    fn a_port_has_one_server() {
        let first =
            IdentityServer::bind("127.0.0.1:0".parse().unwrap(), Identity::new("a", 1), Dialect::Fathom).unwrap();
        let second = IdentityServer::bind(first.address(), Identity::new("b", 2), Dialect::Fathom);
        assert!(second.is_err());
    }

    fn question() -> [u8; HEADER] {
        let mut question = [0; HEADER];
        Question { number: 4, flow: 2 }.write(&mut question);
        question
    }

    #[test]
    fn one_turn_of_a_connection_ends_although_more_is_there_to_read() {
        let server =
            IdentityServer::bind("127.0.0.1:0".parse().unwrap(), Identity::new("t1", 5), Dialect::Fathom).unwrap();
        socket::SockRef::from(&server.listener).set_recv_buffer_size(200_000).unwrap();
        let mut client = TcpStream::connect(server.address()).unwrap();
        let (socket, _) = socket::accept(&server.listener).unwrap().unwrap();
        let n = 1000;
        client.write_all(&question().repeat(n)).unwrap();
        let mut room = vec![std::mem::MaybeUninit::uninit(); n * HEADER];
        while socket.peek(&mut room).unwrap_or(0) < n * HEADER {
            thread::yield_now();
        }
        let mut connection = ServedConnection::open(Dialect::Fathom, &server.identity);
        assert!(serve_connection(&socket, &mut connection, &server));
        let most = u64::try_from(READS_AT_ONCE * 16 * 1024 / HEADER).unwrap();
        assert_eq!(connection.n_answered, most);
        assert!(serve_connection(&socket, &mut connection, &server));
        assert_eq!(connection.n_answered, u64::try_from(n).unwrap());
    }

    #[test]
    fn connections_above_the_limit_are_closed_and_others_stay() {
        let limits = ClientLimits { connections: 2, ..ClientLimits::default() };
        let totals = limited(Dialect::Fathom, limits, |address| {
            let mut open: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
            assert_eq!(open[2].read(&mut [0; 8]).unwrap(), 0);
            open[0].write_all(&question()).unwrap();
            open[0].read_exact(&mut [0; HEADER]).unwrap();
        });
        assert_eq!((totals.connections, totals.connections_turned_away, totals.answers), (2, 1, 1));
    }

    #[test]
    fn a_connection_without_a_whole_message_is_closed_once_connections_are_scarce() {
        let limits = ClientLimits { first_within: Nanos(1), connections: 3, ..ClientLimits::default() };
        let totals = limited(Dialect::Fathom, limits, |address| {
            let mut asking = TcpStream::connect(address).unwrap();
            asking.write_all(&question()).unwrap();
            asking.read_exact(&mut [0; HEADER]).unwrap();
            let mut silent = TcpStream::connect(address).unwrap();
            silent.write_all(&question()[..HEADER - 1]).unwrap();
            assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
            asking.write_all(&question()).unwrap();
            asking.read_exact(&mut [0; HEADER]).unwrap();
        });
        assert_eq!((totals.connections_turned_away, totals.answers), (1, 2));
    }

    #[test]
    fn strangers_are_not_served() {
        let limits = ClientLimits { networks: vec!["10.0.0.0/8".parse().unwrap()], ..ClientLimits::default() };
        let totals = limited(Dialect::Fathom, limits, |address| {
            let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
            datagrams.send_to(&question(), address).unwrap();
            assert_eq!(TcpStream::connect(address).unwrap().read(&mut [0; 8]).unwrap(), 0);
        });
        assert_eq!((totals.connections_turned_away, totals.answers), (1, 0));
    }
}
