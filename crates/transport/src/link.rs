//! How the two sides of a TCP test find each other: the responder listens, the initiator connects, before the start.
//!
//! It does not know what the connections are for.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use fathom_engine::{Error, Session, Stop};
use fathom_model::{Endpoints, Note, Role, Side, units::Nanos};
use fathom_sys::{
    clock,
    epoll::{Epoll, Events, Interest},
    socket::{self, Socket},
};

use crate::options::{self, SocketOptions};

/// How long after the start a connection of the other side may still arrive.
const ACCEPT_MAX: Nanos = Nanos::from_secs(2);
/// How long a blocking call waits before it looks whether the trial is over.
pub(crate) const PATIENCE: Nanos = Nanos::from_millis(50);
/// The key of the responder's address in its endpoints.
const ADDRESS: &str = "address";

/// The connections of one side as they are before the start.
#[derive(Debug)]
pub(crate) enum Opening {
    /// The responder's: they wait in the listener's queue.
    Listening(Socket),
    /// The initiator's.
    Connected(Vec<Socket>),
}

/// Binds a socket of the initiator to the host's address on the path, where it has one.
pub(crate) fn bind_initiator(socket: &Socket, from: Option<IpAddr>) -> fathom_sys::Result<()> {
    let Some(from) = from else { return Ok(()) };
    socket::set_bind_address_no_port(socket)?;
    socket.bind(&SocketAddr::new(from, 0).into()).map_err(socket::named("bind"))
}

/// A listener at the responder's address.
pub(crate) fn listener(at: SocketAddr, backlog: usize) -> Result<Socket, Error> {
    socket::listen(at, u16::try_from(backlog).unwrap_or(u16::MAX))
        .map_err(|cause| Error::system(format!("listen on {at}"), "CAP_NET_BIND_SERVICE", cause))
}

/// What a responder tells: where it listens.
pub(crate) fn tell(address: SocketAddr) -> Endpoints {
    BTreeMap::from([(ADDRESS.to_owned(), address.to_string())])
}

/// Where the responder listens.
pub(crate) fn told(role: &Role, kind: &'static str) -> Result<SocketAddr, Error> {
    let told = role.peer.get(ADDRESS).and_then(|text| text.parse().ok());
    told.ok_or(Error::Endpoint { kind, what: ADDRESS })
}

pub(crate) fn local_address(socket: &Socket) -> Result<SocketAddr, Error> {
    let what = || "read the address of a socket".to_owned();
    socket::local_address(socket).map_err(|cause| Error::System { what: what(), cause })
}

impl Opening {
    /// Listens, or connects every flow.
    pub(crate) fn prepare(
        role: &Role,
        kind: &'static str,
        socket_options: &SocketOptions,
    ) -> Result<(Self, Vec<Note>), Error> {
        let n_flows = options::flows_and_workers(role).0;
        if role.side == Side::Responder {
            let (listener, notes) = socket_options.listen(options::listen_address(role), n_flows.max(64))?;
            return Ok((Self::Listening(listener), notes));
        }
        let to = told(role, kind)?;
        let mut notes = Vec::new();
        let connect = |idx| {
            let (socket, told) = socket_options.connect(to, (role.address, idx))?;
            notes = told;
            Ok(socket)
        };
        let sockets = (0..n_flows).map(connect).collect::<Result<_, Error>>()?;
        Ok((Self::Connected(sockets), notes))
    }

    /// What the other side needs to know.
    pub(crate) fn endpoints(&self) -> Endpoints {
        match self {
            Self::Listening(listener) => local_address(listener).map(tell).unwrap_or_default(),
            Self::Connected(_) => Endpoints::new(),
        }
    }

    /// All connections, blocking at most [`PATIENCE`].
    pub(crate) fn complete(self, n_flows: usize, session: &Session) -> Result<Vec<Socket>, Error> {
        let sockets = match self {
            Self::Connected(sockets) => sockets,
            Self::Listening(listener) => accept_all(&listener, n_flows, session)?,
        };
        for socket in &sockets {
            make_ready(socket)
                .map_err(|cause| Error::System { what: "make a connection ready for the start".to_owned(), cause })?;
        }
        Ok(sockets)
    }
}

fn make_ready(socket: &Socket) -> fathom_sys::Result<()> {
    socket.set_nonblocking(false).map_err(socket::named("fcntl(O_NONBLOCK)"))?;
    socket::set_timeout(socket, PATIENCE)
}

fn accept_all(listener: &Socket, n_flows: usize, session: &Session) -> Result<Vec<Socket>, Error> {
    let cannot = |cause| Error::System { what: "accept the connections of the other side".to_owned(), cause };
    let (epoll, mut events) = (Epoll::new().map_err(cannot)?, Events::with_capacity(1));
    epoll.add(listener, 0, Interest::READ).map_err(cannot)?;
    let deadline = session.start + ACCEPT_MAX;
    let mut sockets = Vec::with_capacity(n_flows);
    while sockets.len() < n_flows {
        if let Some((socket, _)) = socket::accept(listener).map_err(cannot)? {
            sockets.push(socket);
        } else if clock::now() >= deadline || session.stop.told() != Stop::GoOn {
            return Err(Error::Peer { what: format!("opened {} of {n_flows} connections", sockets.len()) });
        } else {
            epoll.wait(&mut events, Some(PATIENCE)).map_err(cannot)?;
        }
    }
    Ok(sockets)
}

/// Deals things out to `n_hands` as evenly as they go.
pub(crate) fn deal<T>(things: Vec<T>, n_hands: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..n_hands).map(|_| Vec::new()).collect();
    for (idx, thing) in things.into_iter().enumerate() {
        hands[idx % n_hands].push(thing);
    }
    hands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_dealt_out_evenly() {
        assert_eq!(deal((0..5).collect(), 2), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(deal(vec![0], 2), [vec![0], vec![]]);
    }
}
