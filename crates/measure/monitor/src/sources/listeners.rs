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

/// More addresses than the server of a test listens on; those beyond are left out, so that a host with thousands does not displace other counters.
const ADDRESSES_MAX: usize = 64;
/// More listeners than a host has.
const LISTENERS_MAX: usize = 4096;

/// The source. Each sample asks in the network namespace of the thread that takes it.
pub(super) struct Listeners {
    reader: Socket<SocketReader>,
    dropped: DropsByAddress,
}

impl Listeners {
    pub(super) const fn new() -> Self {
        let dropped = DropsByAddress { all: BTreeMap::new(), open: BTreeMap::new(), is_begun: false, is_full: false };
        Self { reader: Socket::new(|| Ok(SocketReader::default())), dropped }
    }
}

/// What the sockets of each address dropped since the first sample. Several may share one (`SO_REUSEPORT`), and the count of an address does not fall
/// when one of them is closed.
struct DropsByAddress {
    all: BTreeMap<String, u64>,
    /// What the open sockets had dropped in the last sample, by cookie.
    open: BTreeMap<u64, u64>,
    is_begun: bool,
    /// Whether there was an address too many.
    is_full: bool,
}

impl DropsByAddress {
    fn take(&mut self, sockets: &[DiagSocket]) {
        let mut open = BTreeMap::new();
        for (socket, n) in sockets.iter().filter_map(|socket| Some((socket, u64::from(socket.n_dropped?)))) {
            // A socket that is new since the first sample began with nothing.
            let before = self.open.get(&socket.cookie).copied().unwrap_or(if self.is_begun { 0 } else { n });
            let address = socket.local.to_string();
            if self.all.len() < ADDRESSES_MAX || self.all.contains_key(&address) {
                *self.all.entry(address).or_default() += n.saturating_sub(before);
            } else {
                self.is_full = true;
            }
            open.insert(socket.cookie, n);
        }
        (self.open, self.is_begun) = (open, true);
    }
}

impl Source for Listeners {
    fn name(&self) -> &'static str {
        "listeners"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::TCP_LISTENER_DROPPED]
    }

    // Another root than that of the running system has no sockets to ask for.
    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(reader) = self.reader.below(root)? else { return Ok(()) };
        let dump = reader.tcp(DiagStates::LISTENING, LISTENERS_MAX).map_err(cause)?;
        self.dropped.take(&dump.sockets);
        for (address, n) in &self.dropped.all {
            out.value(host::TCP_LISTENER_DROPPED, address, *n);
        }
        if self.dropped.is_full || !dump.is_complete {
            return Err(io::Error::other(format!(
                "the drops of {ADDRESSES_MAX} listening addresses are read, not of more"
            )));
        }
        match (self.dropped.all.is_empty(), dump.sockets.is_empty()) {
            // Without a listener the count is known to be zero.
            (true, true) => out.value(host::TCP_LISTENER_DROPPED, "", 0),
            (true, false) => {
                return Err(io::Error::other("kernels before Linux 4.7 do not tell what a listener dropped"));
            }
            (false, _) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, TcpStream},
        time::Duration,
    };

    use fathom_sys::{
        policy::AllowedPeers,
        socket::{SockRef, listen, tcp_info::TcpState},
    };

    use super::*;

    fn dump(first_port: u16, n: u16) -> Vec<DiagSocket> {
        let socket = |nth: u16| DiagSocket {
            cookie: nth.into(),
            state: TcpState::Listen,
            local: ([0, 0, 0, 0], first_port + nth).into(),
            peer: ([0, 0, 0, 0], 0).into(),
            inode: 0,
            uid: 0,
            rx_queue: 0,
            tx_queue: 0,
            counts: None,
            n_dropped: Some(0),
        };
        (0..n).map(socket).collect()
    }

    #[test]
    fn what_an_address_dropped_counts_from_the_first_sample_and_does_not_fall() {
        let mut dropped = Listeners::new().dropped;
        let mut both = dump(80, 2);
        both[1].local = both[0].local;
        let mut after = |counts: &[u32]| {
            for (socket, n) in both.iter_mut().zip(counts) {
                socket.n_dropped = Some(*n);
            }
            dropped.take(&both[..counts.len()]);
            dropped.all.clone().into_iter().collect::<Vec<_>>()
        };
        let of = |n: u64| vec![("0.0.0.0:80".to_owned(), n)];
        assert_eq!([after(&[7]), after(&[9]), after(&[9, 5])], [of(0), of(2), of(7)], "one may join later");
        assert_eq!([after(&[10]), after(&[])], [of(8), of(8)]);
    }

    #[test]
    fn a_host_with_many_listeners_is_watched_in_part() {
        let mut dropped = Listeners::new().dropped;
        dropped.take(&dump(1000, 100));
        assert_eq!((dropped.all.len(), dropped.is_full), (ADDRESSES_MAX, true));
    }

    /// Takes the value of one address.
    struct Found<'a>(SocketAddr, &'a mut Option<u64>);

    impl CounterSink for Found<'_> {
        fn value(&mut self, _: &'static str, of: &str, value: u64) {
            if of == self.0.to_string() {
                *self.1 = Some(value);
            }
        }
    }

    #[test]
    fn a_listener_that_is_full_is_named_by_its_address() {
        let listener = listen(([127, 0, 0, 1], 0).into(), 1, &AllowedPeers::anybody()).unwrap();
        let address = SockRef::from(&listener).local_addr().unwrap().as_socket().unwrap();
        let mut source = Listeners::new();
        let mut dropped = || {
            let mut found = None;
            // A machine with more listeners than are read is one to test on, too.
            let _ = source.sample(Path::new("/"), &mut Found(address, &mut found));
            found
        };
        assert_eq!(dropped(), Some(0));
        let wait = Duration::from_millis(50);
        let _clients: Vec<_> = (0..6).map(|_| TcpStream::connect_timeout(&address, wait)).collect();
        assert!(dropped().is_some_and(|n| n > 0));
        drop(listener);
    }
}
