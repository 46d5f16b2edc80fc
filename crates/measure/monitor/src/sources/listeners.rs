//! What each listening TCP socket dropped, for want of a place in its queues: `sock_diag`, because `/proc` counts all sockets of a host together.
//!
//! Works only on the running system: another root has nothing to query.

use std::{collections::BTreeMap, io, ops::RangeInclusive, path::Path};

use fathom_model::names::host;
use fathom_sys::netlink::sock_diag::{DiagSocket, DiagStates, SocketReader};

use super::{
    CounterSink, Source,
    socket::{Socket, cause},
};
use crate::procfs::{fields, number, read_short};

/// More addresses than the server of a test listens on; those beyond are left out, so that a host with thousands does not displace other counters.
const ADDRESSES_MAX: usize = 64;
/// More listeners than a host has.
const LISTENERS_MAX: usize = 4096;
/// The ports that the kernel hands out. Who listens on one of them listens on another the next time.
const LOCAL_PORTS: &str = "proc/sys/net/ipv4/ip_local_port_range";
/// The kernel's default of them (Documentation/networking/ip-sysctl.rst).
const LOCAL_PORTS_USUAL: RangeInclusive<u16> = 32_768..=60_999;

/// The source. Each sample asks in the network namespace of the thread that takes it.
pub(super) struct Listeners {
    reader: Socket<SocketReader>,
    local_ports: Option<RangeInclusive<u16>>,
    dropped: DropsByAddress,
}

impl Listeners {
    pub(super) const fn new() -> Self {
        let dropped = DropsByAddress { all: BTreeMap::new(), open: BTreeMap::new(), is_begun: false, is_full: false };
        Self { reader: Socket::new(|| Ok(SocketReader::default())), local_ports: None, dropped }
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
    fn take(&mut self, sockets: &[&DiagSocket]) {
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

    // Kernels before Linux 4.7 do not tell.
    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let Some(reader) = self.reader.below(root)? else { return Ok(()) };
        let local_ports = match &mut self.local_ports {
            Some(ports) => ports,
            none => none.insert(local_ports(&read_short(&root.join(LOCAL_PORTS))?).unwrap_or(LOCAL_PORTS_USUAL)),
        };
        let dump = reader.tcp(DiagStates::LISTENING, LISTENERS_MAX).map_err(cause)?;
        let is_lasting = |socket: &&DiagSocket| !local_ports.contains(&socket.local.port());
        self.dropped.take(&dump.sockets.iter().filter(is_lasting).collect::<Vec<_>>());
        for (address, n) in &self.dropped.all {
            out.value(host::TCP_LISTENER_DROPPED, address, *n);
        }
        if self.dropped.is_full || !dump.is_complete {
            return Err(io::Error::other(format!(
                "the drops of {ADDRESSES_MAX} listening addresses are read, not of more"
            )));
        }
        if self.dropped.all.is_empty() {
            out.value(host::TCP_LISTENER_DROPPED, "", 0);
        }
        Ok(())
    }
}

/// Returns the ports that the kernel hands out, by the text of its setting.
fn local_ports(text: &[u8]) -> Option<RangeInclusive<u16>> {
    let mut ports = fields(text).map(number);
    Some(ports.next()??..=ports.next()??)
}

#[cfg(test)]
mod tests {
    use std::{
        net::{SocketAddr, TcpStream},
        time::Duration,
    };

    use fathom_sys::{
        policy::AllowedPeers,
        socket::{listen, tcp_info::TcpState},
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
            let sockets = both.iter_mut().zip(counts).map(|(socket, n)| {
                socket.n_dropped = Some(*n);
                &*socket
            });
            dropped.take(&sockets.collect::<Vec<_>>());
            dropped.all.clone().into_iter().collect::<Vec<_>>()
        };
        let of = |n: u64| vec![("0.0.0.0:80".to_owned(), n)];
        assert_eq!([after(&[7]), after(&[9]), after(&[9, 5])], [of(0), of(2), of(7)], "one may join later");
        assert_eq!([after(&[10]), after(&[])], [of(8), of(8)]);
    }

    #[test]
    fn a_host_with_many_listeners_is_watched_in_part() {
        let mut dropped = Listeners::new().dropped;
        let all = dump(1000, 100);
        dropped.take(&all.iter().collect::<Vec<_>>());
        assert_eq!((dropped.all.len(), dropped.is_full), (ADDRESSES_MAX, true));
    }

    #[test]
    fn ports_of_the_kernel_are_read() {
        assert_eq!(local_ports(b"32768\t60999\n"), Some(32768..=60999));
        assert_eq!((local_ports(b""), local_ports(b"7")), (None, None));
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
        // A port below those that the kernel hands out.
        let free = |port: u16| listen(([127, 0, 0, 1], port).into(), 1, &AllowedPeers::anybody()).ok().zip(Some(port));
        let (listener, port) = (20_000..30_000).find_map(free).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
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
