//! The TCP connections of this host that move the most bytes, and the listeners whose accept queue is not empty.
//!
//! Connections that begin and end between two readings are not seen.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use fathom_model::{
    record::ProgramTime,
    units::{Bytes, Nanos, approximate},
};
use fathom_sys::{
    netlink::sock_diag::{DiagSocket, DiagStates, SocketDump, SocketReader},
    socket::tcp_info::TcpState,
};
use serde::{Deserialize, Serialize};

use crate::{pace::ReadingPace, programs::ProgramReadings};

/// The shortest interval of samples.
const READ_EVERY: Nanos = Nanos::from_millis(90);
/// While no segment moves, sockets are read this often: some end by a timer.
const READ_AT_REST_EVERY: Nanos = Nanos::from_secs(10);
/// The most sockets that are looked at: some ten milliseconds of work.
const SOCKETS_MAX: usize = 10_000;
/// The most rows of a document. The text shows fewer.
const ROWS_MAX: usize = 20;
/// SYN and FIN count as a byte each, so that no more than this is no payload.
const BYTES_WITHOUT_PAYLOAD: u64 = 2;

/// The connections that moved the most bytes in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BusySockets {
    /// The time between the two readings.
    pub interval_ns: Nanos,
    /// The number of connections that were looked at.
    pub n_connections: usize,
    /// Those that moved bytes, the busiest first.
    pub busiest: Vec<BusySocket>,
}

/// A connection that moved bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BusySocket {
    /// Its own address.
    pub local: SocketAddr,
    /// The address of its peer.
    pub peer: SocketAddr,
    /// Payload received in order.
    pub rate_rx_bps: f64,
    /// Payload that the peer acknowledged.
    pub rate_tx_bps: f64,
    /// The smoothed round-trip time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ns: Option<Nanos>,
    /// Segments that were sent again in the interval.
    pub n_resent: u32,
    /// Bytes that its program has not read.
    pub rx_queue_bytes: u32,
    /// Bytes that its peer has not acknowledged.
    pub tx_queue_bytes: u32,
    /// The number of its file.
    pub inode: u32,
    /// The user who opened it.
    pub uid: u32,
    /// Its program, if that is one of the busiest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<SocketOwner>,
}

/// The program that holds a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOwner {
    /// The name of its process, at most 15 bytes.
    pub name: String,
    /// The number of its process.
    pub pid: u32,
}

/// A listener with connections that wait for accept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingListener {
    /// Its address.
    pub address: SocketAddr,
    /// The connections that wait for accept.
    pub n_waiting: u32,
    /// The length of its accept queue. The kernel takes one more.
    pub n_length: u32,
    /// Whether the kernel drops the next connection.
    pub is_full: bool,
}

/// The counters of all connections at one time.
#[derive(Debug)]
struct Reading {
    at: Nanos,
    /// Bytes acknowledged, bytes received and segments resent by cookie.
    counts: BTreeMap<u64, (u64, u64, u32)>,
    is_complete: bool,
}

/// Reads the sockets of this host, and makes tables of them.
pub(crate) struct Sockets {
    reader: SocketReader,
    /// The clock of the CPU time of this thread.
    cpu: fn() -> Nanos,
    pace: ReadingPace,
    before: Option<Reading>,
    /// When the sockets were read last, and the TCP segments of the host at that time.
    read_at: Nanos,
    n_segments: Option<u64>,
    owners: BTreeMap<u64, SocketOwner>,
    busy: Option<BusySockets>,
    listeners: Option<Vec<WaitingListener>>,
    loss: Option<String>,
}

impl Sockets {
    /// Creates a reader of the network namespace of this thread; `cpu` is the clock of its CPU time.
    pub(crate) fn new(cpu: fn() -> Nanos) -> Self {
        Self {
            reader: SocketReader::default(),
            cpu,
            pace: ReadingPace::new(READ_EVERY),
            before: None,
            read_at: Nanos::ZERO,
            n_segments: None,
            owners: BTreeMap::new(),
            busy: None,
            listeners: None,
            loss: None,
        }
    }

    /// Reads all sockets, if that is due and one of them can have changed; `now` is the monotonic clock, and `n_segments` what the host has received
    /// and sent so far.
    pub(crate) fn read(&mut self, now: Nanos, programs: &ProgramReadings, n_segments: Option<u64>) {
        if !self.pace.is_due(now) || self.rests(now, n_segments) {
            return;
        }
        (self.read_at, self.n_segments) = (now, n_segments);
        let began = (self.cpu)();
        match self.reader.tcp(DiagStates::LISTENING_OR_CONNECTED, SOCKETS_MAX) {
            Ok(dump) => self.take(&dump, now, programs),
            Err(error) => {
                (self.before, self.busy, self.listeners) = (None, None, None);
                self.loss = Some(format!("TCP sockets: {error}: {}", error.source));
            }
        }
        self.pace.took(now, (self.cpu)().since(began));
    }

    /// Returns true if the sockets are as at the last reading, and notes an interval in which no connection moved a byte: no segment came or went, and
    /// no connection waits for accept, which takes no segment.
    fn rests(&mut self, now: Nanos, n_segments: Option<u64>) -> bool {
        let is_still = n_segments.is_some()
            && n_segments == self.n_segments
            && now.since(self.read_at) < READ_AT_REST_EVERY
            && self.listeners.as_ref().is_some_and(Vec::is_empty);
        let (Some(before), Some(busy)) = (&mut self.before, &mut self.busy) else { return false };
        if is_still {
            busy.interval_ns = now.since(before.at);
            busy.busiest.clear();
            before.at = now;
        }
        is_still
    }

    fn take(&mut self, dump: &SocketDump, now: Nanos, programs: &ProgramReadings) {
        let (counts, n_silent) = counts(dump);
        self.loss = match n_silent {
            0 if dump.is_complete => None,
            0 => Some(format!("TCP sockets: there are more than {SOCKETS_MAX}, and the others are not looked at")),
            _ => Some(format!("TCP sockets: the kernel has no byte counters for {n_silent} of them")),
        };
        self.listeners = Some(waiting(dump));
        let later = Reading { at: now, counts, is_complete: dump.is_complete };
        if let Some(before) = self.before.take() {
            let busiest = busiest(&before, &later, &dump.sockets);
            self.owners.retain(|cookie, _| later.counts.contains_key(cookie));
            let unknown = busiest.iter().any(|(socket, _)| !self.owners.contains_key(&socket.cookie));
            let holders = if unknown { programs.with_sockets() } else { Vec::new() };
            let rows =
                busiest.into_iter().map(|(socket, row)| BusySocket { program: self.owner(socket, &holders), ..row });
            let busiest = rows.collect();
            self.busy = Some(BusySockets {
                interval_ns: now.since(before.at),
                n_connections: later.counts.len() + n_silent,
                busiest,
            });
        }
        self.before = Some(later);
    }

    /// Returns the program of a socket, if it is known or one of these holds it.
    fn owner(&mut self, socket: &DiagSocket, holders: &[(ProgramTime, BTreeSet<u64>)]) -> Option<SocketOwner> {
        if let Some(known) = self.owners.get(&socket.cookie) {
            return Some(known.clone());
        }
        let (program, _) = holders.iter().find(|(_, inodes)| inodes.contains(&socket.inode.into()))?;
        let owner = SocketOwner { name: program.name.clone(), pid: program.pid };
        self.owners.insert(socket.cookie, owner.clone());
        Some(owner)
    }

    /// Returns true if the program of a connection that moved bytes is not known.
    pub(crate) fn lacks_owners(&self) -> bool {
        self.busy.as_ref().is_some_and(|busy| busy.busiest.iter().any(|socket| socket.program.is_none()))
    }

    /// The connections of the newest interval; absent before the second reading, or if they cannot be read.
    pub(crate) fn busy(&self) -> Option<&BusySockets> {
        self.busy.as_ref()
    }

    /// The listeners at the newest reading; absent if they cannot be read.
    pub(crate) fn listeners(&self) -> Option<&Vec<WaitingListener>> {
        self.listeners.as_ref()
    }

    /// The reason why the last reading is missing or incomplete.
    pub(crate) fn loss(&self) -> Option<&String> {
        self.loss.as_ref()
    }
}

/// Returns the counters by cookie, and the number of connections without.
fn counts(dump: &SocketDump) -> (BTreeMap<u64, (u64, u64, u32)>, usize) {
    // Listeners have no counters, and neither has the rest of a closed socket.
    let open = dump.sockets.iter().filter_map(|socket| Some((socket.cookie, socket.counts?)));
    let mut n_silent = 0;
    let mut known = BTreeMap::new();
    for (cookie, counts) in open {
        match (counts.acked, counts.received) {
            (Some(Bytes(acked)), Some(Bytes(received))) => {
                known.insert(cookie, (acked, received, counts.n_resent));
            }
            _ => n_silent += 1,
        }
    }
    (known, n_silent)
}

/// Returns the connections that moved bytes between two readings, the busiest first.
fn busiest<'a>(before: &Reading, later: &Reading, sockets: &'a [DiagSocket]) -> Vec<(&'a DiagSocket, BusySocket)> {
    let seconds = later.at.since(before.at).as_secs_f64();
    let grown = |socket: &'a DiagSocket| {
        let (acked, received, resent) = later.counts.get(&socket.cookie)?;
        // A connection that a complete reading did not have began after it.
        let new = before.is_complete.then_some((0, 0, 0));
        let past = before.counts.get(&socket.cookie).copied().or(new)?;
        let (sent, received) = (acked.saturating_sub(past.0), received.saturating_sub(past.1));
        let moved = sent.saturating_add(received);
        (moved > BYTES_WITHOUT_PAYLOAD).then_some((moved, sent, received, resent.saturating_sub(past.2), socket))
    };
    let mut all: Vec<_> = sockets.iter().filter_map(grown).collect();
    all.sort_by_key(|(moved, ..)| Reverse(*moved));
    let row = |(_, sent, received, n_resent, socket): (u64, u64, u64, u32, &'a DiagSocket)| {
        let row = BusySocket {
            local: socket.local,
            peer: socket.peer,
            rate_rx_bps: approximate(received) * 8.0 / seconds,
            rate_tx_bps: approximate(sent) * 8.0 / seconds,
            rtt_ns: socket.counts.and_then(|counts| counts.rtt),
            n_resent,
            rx_queue_bytes: socket.rx_queue,
            tx_queue_bytes: socket.tx_queue,
            inode: socket.inode,
            uid: socket.uid,
            program: None,
        };
        (socket, row)
    };
    all.into_iter().take(ROWS_MAX).map(row).collect()
}

/// Returns the listeners with connections that wait, the fullest first.
fn waiting(dump: &SocketDump) -> Vec<WaitingListener> {
    let of = |socket: &DiagSocket| WaitingListener {
        address: socket.local,
        n_waiting: socket.rx_queue,
        n_length: socket.tx_queue,
        // `sk_acceptq_is_full` in include/net/sock.h.
        is_full: socket.rx_queue > socket.tx_queue,
    };
    let mut all: Vec<_> =
        dump.sockets.iter().filter(|socket| socket.state == TcpState::Listen && socket.rx_queue > 0).map(of).collect();
    all.sort_by_key(|listener| Reverse((listener.is_full, listener.n_waiting)));
    all.truncate(ROWS_MAX);
    all
}

#[cfg(test)]
mod tests {
    use fathom_sys::netlink::sock_diag::DiagCounts;

    use super::*;

    fn socket(cookie: u64, acked: u64, received: u64) -> DiagSocket {
        let counts = DiagCounts { acked: Some(Bytes(acked)), received: Some(Bytes(received)), rtt: None, n_resent: 0 };
        DiagSocket {
            cookie,
            state: TcpState::Established,
            local: "198.18.0.1:7".parse().unwrap(),
            peer: "198.18.0.2:9".parse().unwrap(),
            inode: 5,
            uid: 0,
            rx_queue: 0,
            tx_queue: 0,
            counts: Some(counts),
            n_dropped: None,
        }
    }

    fn reading(second: u64, dump: &SocketDump) -> Reading {
        Reading { at: Nanos::from_secs(second), counts: counts(dump).0, is_complete: dump.is_complete }
    }

    /// The cookies of the busiest connections with their rates.
    fn rates(before: &SocketDump, later: &SocketDump) -> Vec<(u64, f64, f64)> {
        let found = busiest(&reading(1, before), &reading(3, later), &later.sockets);
        found.into_iter().map(|(socket, row)| (socket.cookie, row.rate_rx_bps, row.rate_tx_bps)).collect()
    }

    #[test]
    fn the_connections_that_moved_most_come_first_and_those_at_rest_are_left_out() {
        let before = [socket(1, 100, 0), socket(2, 5_000, 5_000), socket(3, 7, 7)];
        let later = [socket(1, 1_100, 0), socket(2, 5_000, 9_000), socket(3, 8, 8), socket(4, 1, 500)];
        let dump = |sockets: &[DiagSocket]| SocketDump { sockets: sockets.to_vec(), is_complete: true };
        let (before, later) = (dump(&before), dump(&later));
        assert_eq!(rates(&before, &later), [(2, 16_000.0, 0.0), (1, 0.0, 4_000.0), (4, 2_000.0, 4.0)]);
        // A connection that an incomplete reading did not have may be an old one.
        let cut = SocketDump { is_complete: false, ..before };
        assert_eq!(rates(&cut, &later), [(2, 16_000.0, 0.0), (1, 0.0, 4_000.0)]);
    }

    #[test]
    fn a_listener_is_full_with_one_more_than_its_length_and_one_at_rest_is_left_out() {
        let state = TcpState::Listen;
        let listener = |rx_queue, tx_queue| DiagSocket { state, rx_queue, tx_queue, counts: None, ..socket(1, 0, 0) };
        let listening =
            SocketDump { sockets: vec![listener(0, 128), listener(90, 128), listener(2, 1)], is_complete: true };
        let found: Vec<_> = waiting(&listening).iter().map(|l| (l.n_waiting, l.n_length, l.is_full)).collect();
        assert_eq!(found, [(2, 1, true), (90, 128, false)]);
    }

    #[test]
    fn sockets_are_at_rest_while_no_segment_moves_and_nothing_waits_for_accept() {
        let mut sockets = Sockets::new(|| Nanos::ZERO);
        let programs = ProgramReadings::new("/nowhere", Nanos::from_secs(10), || Nanos::ZERO);
        let dump = SocketDump { sockets: vec![socket(1, 100, 0)], is_complete: true };
        let seen = |sockets: &mut Sockets, second, n_segments, dump: &SocketDump| {
            let now = Nanos::from_secs(second);
            let rests = sockets.rests(now, n_segments);
            if !rests {
                (sockets.read_at, sockets.n_segments) = (now, n_segments);
                sockets.take(dump, now, &programs);
            }
            rests
        };
        assert!(!seen(&mut sockets, 0, Some(7), &dump), "nothing is known");
        assert!(!seen(&mut sockets, 1, Some(7), &dump), "without a second reading there is no interval");
        assert!(seen(&mut sockets, 3, Some(7), &dump));
        let busy = sockets.busy().unwrap();
        assert_eq!((busy.interval_ns, busy.n_connections, busy.busiest.len()), (Nanos::from_secs(2), 1, 0));
        let moved = SocketDump { sockets: vec![socket(1, 1_100, 0)], is_complete: true };
        assert!(!seen(&mut sockets, 4, Some(8), &moved));
        let busy = sockets.busy().unwrap();
        assert_eq!(
            (busy.interval_ns, busy.busiest[0].rate_tx_bps.to_bits()),
            (Nanos::from_secs(1), 8_000_f64.to_bits())
        );
        assert!(sockets.lacks_owners());
        assert!(seen(&mut sockets, 5, Some(8), &moved) && !sockets.lacks_owners());
        assert!(!seen(&mut sockets, 6, None, &moved), "a host that does not tell its segments");
        let waiting =
            DiagSocket { state: TcpState::Listen, rx_queue: 3, tx_queue: 128, counts: None, ..socket(2, 0, 0) };
        let waiting = SocketDump { sockets: vec![waiting], is_complete: true };
        assert!(!seen(&mut sockets, 7, Some(8), &waiting));
        assert!(!seen(&mut sockets, 8, Some(8), &dump), "a server accepts without a segment");
        assert!(
            seen(&mut sockets, 9, Some(8), &dump) && !seen(&mut sockets, 19, Some(8), &dump),
            "a timer may end one"
        );
    }

    #[test]
    fn sockets_without_counters_are_counted_apart() {
        let mut older = socket(1, 0, 0);
        older.counts = older.counts.map(|counts| DiagCounts { acked: None, received: None, ..counts });
        let closed = DiagSocket { counts: None, ..socket(2, 0, 0) };
        let dump = SocketDump { sockets: vec![older, closed, socket(3, 4, 5)], is_complete: true };
        assert_eq!(counts(&dump), ([(3, (4, 5, 0))].into(), 1));
    }
}
