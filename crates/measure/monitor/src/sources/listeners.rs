//! What each listening TCP socket dropped, for want of a place in its queues: `sock_diag`, because `/proc` counts all sockets of a host together.
//!
//! Works only on the running system: another root has nothing to query.

use std::{collections::BTreeMap, io, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::sock_diag::{DiagSocket, DiagStates, SocketReader};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};

/// More listeners than the server of a test has; those beyond are left out, so that a host with thousands does not displace other counters.
const LISTENERS_MAX: usize = 64;

/// The source. Each sample asks in the network namespace of the thread that takes it.
pub(super) struct Listeners {
    reader: Socket<SocketReader>,
    /// The sockets with their addresses and drops, by cookie. One that dropped something stays when it is closed: several sockets may share an
    /// address (`SO_REUSEPORT`), whose count must not fall.
    known: BTreeMap<u64, (String, u64)>,
}

impl Listeners {
    pub(super) const fn new() -> Self {
        Self { reader: Socket::new(|| Ok(SocketReader::default())), known: BTreeMap::new() }
    }

    /// Takes the sockets of a dump, and returns the drops by address.
    fn by_address(&mut self, sockets: &[DiagSocket]) -> BTreeMap<&str, u64> {
        let is_open = |cookie: u64| sockets.iter().any(|socket| socket.cookie == cookie);
        self.known.retain(|cookie, (_, n)| *n > 0 || is_open(*cookie));
        for (socket, n) in sockets.iter().filter_map(|socket| Some((socket, socket.n_dropped?.into()))) {
            if let Some((_, known)) = self.known.get_mut(&socket.cookie) {
                *known = n;
            } else if self.known.len() < LISTENERS_MAX {
                self.known.insert(socket.cookie, (socket.local.to_string(), n));
            }
        }
        let mut dropped = BTreeMap::new();
        for (address, n) in self.known.values() {
            *dropped.entry(address.as_str()).or_default() += n;
        }
        dropped
    }
}

impl Source for Listeners {
    fn name(&self) -> &'static str {
        "listeners"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::TCP_LISTENER_DROPPED]
    }

    // Kernels before Linux 4.7 do not tell.
    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(reader) = self.reader.below(root)? else { return Ok(()) };
        let dump = reader.tcp(DiagStates::LISTENING, LISTENERS_MAX).map_err(cause)?;
        if dump.sockets.is_empty() {
            out.value(host::TCP_LISTENER_DROPPED, "", 0);
        }
        for (address, n) in self.by_address(&dump.sockets) {
            out.value(host::TCP_LISTENER_DROPPED, address, n);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, TcpListener, TcpStream},
        time::Duration,
    };

    use fathom_sys::{
        policy::AllowedPeers,
        socket::{SockRef, listen},
    };

    use super::*;

    #[derive(Default)]
    struct Values(BTreeMap<String, u64>);

    impl CounterSink for Values {
        fn value(&mut self, _: &'static str, of: &str, value: u64) {
            assert_eq!(self.0.insert(of.to_owned(), value), None, "{of} twice");
        }
    }

    fn dropped(source: &mut Listeners, address: SocketAddr) -> Option<u64> {
        let mut values = Values::default();
        source.sample(Path::new("/"), &mut values).unwrap();
        values.0.get(&address.to_string()).copied()
    }

    #[test]
    fn a_listener_that_is_full_is_named_by_its_address() {
        let listener = listen(([127, 0, 0, 1], 0).into(), 1, &AllowedPeers::anybody()).unwrap();
        let address = SockRef::from(&listener).local_addr().unwrap().as_socket().unwrap();
        let mut source = Listeners::new();
        assert_eq!(dropped(&mut source, address), Some(0));
        let wait = Duration::from_millis(50);
        let clients: Vec<_> = (0..6).map(|_| TcpStream::connect_timeout(&address, wait)).collect();
        let n_full = dropped(&mut source, address);
        assert!(n_full.is_some_and(|n| n > 0));
        drop((clients, listener));
        assert_eq!(dropped(&mut source, address), n_full, "another socket may have its address");
    }

    #[test]
    fn a_listener_that_dropped_nothing_ends_with_its_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut source = Listeners::new();
        assert_eq!(dropped(&mut source, address), Some(0));
        drop(listener);
        assert_eq!(dropped(&mut source, address), None);
    }
}
