//! A server that tells who it is, over TCP and UDP on one port.
//!
//! It answers from the address that was asked, so that it may stand behind an address that several targets share. It sends nothing on its
//! own and no more than it gets, apart from the name of at most 64 bytes that mconnect's protocol wants.

mod connection;

use std::{collections::BTreeMap, io, net::SocketAddr};

use fathom_engine::{Stop, StopFlag};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Domain, Protocol, Socket, Type, Wait, answer_source},
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
}

/// A server that listens.
#[derive(Debug)]
pub struct IdentityServer {
    listener: Socket,
    datagrams: Socket,
    address: SocketAddr,
    identity: Identity,
    dialect: Dialect,
}

impl IdentityServer {
    /// Listens for TCP and UDP at an address; port 0 means one that the kernel chooses. `::` takes IPv4 as well.
    ///
    /// # Errors
    /// `bind` and `listen`, such as a port in use.
    pub fn bind(address: SocketAddr, identity: Identity, dialect: Dialect) -> fathom_sys::Result<Self> {
        let listener = open(address, Type::STREAM)?;
        listener.listen(BACKLOG).map_err(socket::error_of("listen"))?;
        let address = socket::local_address(&listener)?;
        let datagrams = open(address, Type::DGRAM)?;
        answer_source::enable(&datagrams)?;
        Ok(Self { listener, datagrams, address, identity, dialect })
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
        while stop.state() == Stop::Continue {
            serving.epoll.wait(&mut events, Some(STOP_CHECK_EVERY))?;
            for event in events.iter() {
                match event.token {
                    LISTENER => serving.accept()?,
                    DATAGRAMS => serving.answer_datagrams(),
                    token => serving.serve(token)?,
                }
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
}

impl Serving<'_> {
    fn accept(&mut self) -> fathom_sys::Result<()> {
        loop {
            let socket = match socket::accept(&self.server.listener) {
                Ok(Some((socket, _))) => socket,
                Ok(None) => return Ok(()),
                Err(error) if error.shortage().is_some() => {
                    // Those that wait are served when others have closed; without a pause this would take a whole core.
                    clock::sleep_until(clock::now() + NO_DESCRIPTOR_PAUSE);
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            // An answer is small and is waited for. A socket that cannot have the option is slower, and no less right.
            let _ = socket.set_tcp_nodelay(true);
            let token = self.next;
            self.next += 1;
            self.totals.connections += 1;
            let connection = ServedConnection::open(self.server.dialect, &self.server.identity);
            self.epoll.add(&socket, token, Interest::READ)?;
            self.open.insert(token, OpenConnection { socket, connection, interest: Interest::READ });
            self.serve(token)?;
        }
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
        let IdentityServer { datagrams, dialect, identity, .. } = self.server;
        for _ in 0..DATAGRAMS_AT_ONCE {
            let question = match answer_source::receive(datagrams, &mut self.room, Wait::Never) {
                Ok(Some(question)) => question,
                Ok(None) => return,
                // A client that is gone refuses its answer; the next datagram is of another one.
                Err(_) => continue,
            };
            self.datagram.clear();
            self.datagram.extend_from_slice(&self.room[..question.n_bytes]);
            let from_port = question.sender_address().map_or(0, |from| from.port());
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

/// Reads, answers and writes as far as possible now. Returns false if the connection is over.
fn serve_connection(socket: &Socket, connection: &mut ServedConnection, server: &IdentityServer) -> bool {
    let mut bytes = [0; 16 * 1024];
    loop {
        while !connection.to_write.is_empty() {
            match socket::send(socket, &connection.to_write, Wait::Never) {
                Ok(Some(count)) => drop(connection.to_write.drain(..count)),
                Ok(None) => break,
                Err(_) => return false,
            }
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
        let server = IdentityServer::bind("127.0.0.1:0".parse().unwrap(), Identity::new("t1", 5), dialect).unwrap();
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
}
