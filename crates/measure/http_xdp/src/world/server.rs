//! A server with the manners of Linux and nginx: one listening port, a socket for each port of the client.

use std::collections::{BTreeMap, BTreeSet};

use super::{MS, Packet};
use crate::machine::{Segment, WINDOW, flag, is_after};

/// When the server ends connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closing {
    /// It keeps them.
    Never,
    /// With the last segment of each answer.
    WithAnswer,
    /// With a FIN alone after so many answers (nginx's `keepalive_requests`).
    AfterAnswers(u32),
    /// With a FIN in place of this answer.
    InPlaceOf(u32),
    /// With a reset in place of this answer.
    ResetInPlaceOf(u32),
    /// With a FIN after so many nanoseconds without a request (nginx's `keepalive_timeout`).
    AfterIdle(u64),
}

/// How the server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manners {
    /// The bytes of each answer.
    pub(super) answer_length: u32,
    /// From a request to its answer, in nanoseconds.
    pub(super) think: u64,
    /// When it ends connections.
    pub(super) closing: Closing,
    /// The last one of so many answers says so (`Connection: close`).
    pub(super) announces: bool,
    /// A form that the program cannot follow, which every so many answers have.
    pub(super) unusual: Option<(Unusual, u32)>,
}

/// A form of answers that the program cannot follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusual {
    /// In chunks.
    Chunked,
    /// Without a length, up to the end of the connection.
    UntilClose,
    /// Behind an interim answer.
    Interim,
    /// With a head that the first segment does not hold.
    LongHead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    SynReceived,
    Open,
    TimeWait,
}

/// A socket of the server, with the names of RFC 9293.
#[derive(Debug)]
struct Endpoint {
    phase: Phase,
    initial: u32,
    unacknowledged: u32,
    send_next: u32,
    /// The end of what the application has written.
    written: u32,
    /// The application has closed, so a FIN follows what it has written.
    is_closed: bool,
    receive_next: u32,
    has_peer_closed: bool,
    /// The client closed first.
    closes_last: bool,
    congestion_window: u32,
    n_equal: u32,
    /// The end of what was sent when the loss was noticed.
    recovers_to: Option<u32>,
    /// What is before has been sent again since then.
    resent_to: u32,
    /// The ranges that the client has selectively acknowledged.
    selective: Vec<(u32, u32)>,
    n_timeouts: u32,
    resend_at: Option<u64>,
    answer_at: Option<u64>,
    acknowledge_at: Option<u64>,
    close_at: Option<u64>,
    n_requests: u32,
    n_answers: u32,
}

/// All sockets.
#[derive(Debug)]
pub(super) struct LinuxServer {
    manners: Manners,
    sockets: BTreeMap<u16, Endpoint>,
    random: fastrand::Rng,
    /// The answers that were sent and not yet counted: their port and the number of the byte behind them.
    pub(super) answers: BTreeSet<(u16, u32)>,
    /// All answers that were ever written.
    pub(super) n_answers: u64,
}

const SEGMENT: u32 = 1_460;
const RETRANSMISSION: u64 = 200 * MS;
const HANDSHAKE: u64 = 1_000 * MS;
const DELAYED: u64 = 40 * MS;
/// After so many retransmissions the socket is given up.
const TIMEOUTS_MAX: u32 = 12;
/// How far the numbers of a connection are from those of the one before it in TIME-WAIT (`tcp_timewait_state_process`).
const BEYOND_TIME_WAIT: u32 = 65_535 + 2;

impl LinuxServer {
    pub(super) fn new(manners: Manners, random: fastrand::Rng) -> Self {
        Self { manners, sockets: BTreeMap::new(), random, answers: BTreeSet::new(), n_answers: 0 }
    }

    /// When a timer of a socket is next due.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.sockets.values().filter_map(Endpoint::next_at).min()
    }

    /// Does what is due.
    pub(super) fn on_time(&mut self, now: u64, out: &mut Vec<Packet>) {
        let ports: Vec<u16> = self
            .sockets
            .iter()
            .filter(|(_, it)| it.next_at().is_some_and(|at| at <= now))
            .map(|(port, _)| *port)
            .collect();
        for port in ports {
            let first = out.len();
            let socket = self.sockets.get_mut(&port).expect("the port was found");
            if socket.answer_at.is_some_and(|at| at <= now) {
                socket.answer_at = None;
                self.on_request_read(port, now, out);
            }
            if let Some(socket) = self.sockets.get_mut(&port)
                && !socket.on_time(now, &mut self.random, out)
            {
                self.sockets.remove(&port);
            }
            self.address(port, &mut out[first..]);
        }
    }

    /// Answers a packet.
    pub(super) fn on_packet(&mut self, packet: &Packet, now: u64, out: &mut Vec<Packet>) {
        let (port, first) = (packet.port_idx, out.len());
        let segment = packet.segment;
        match self.sockets.get_mut(&port) {
            None => self.on_unknown(packet, now, out),
            Some(socket) if socket.phase == Phase::TimeWait => {
                let next = socket.send_next;
                if packet.has(flag::SYN) && is_after(segment.sequence, socket.receive_next) {
                    self.listen(packet, next.wrapping_add(BEYOND_TIME_WAIT), now, out);
                } else if packet.has(flag::RST) {
                    if segment.sequence == socket.receive_next {
                        self.sockets.remove(&port);
                    }
                } else if segment.sequence != socket.receive_next || segment.length > 0 || packet.has(flag::FIN) {
                    out.push(socket.acknowledgement());
                }
            }
            Some(socket) => match socket.on_packet(packet, now, &mut self.random, out) {
                Outcome::Nothing => {}
                Outcome::Ended => {
                    self.sockets.remove(&port);
                }
                Outcome::Request => {
                    socket.n_requests += 1;
                    (socket.answer_at, socket.close_at) = (Some(now + self.manners.think), None);
                    if self.manners.think == 0 {
                        socket.answer_at = None;
                        self.on_request_read(port, now, out);
                    } else {
                        socket.acknowledge_at = Some(now + DELAYED);
                    }
                }
            },
        }
        self.address(port, &mut out[first..]);
    }

    /// Fills in what follows from the port.
    fn address(&self, port: u16, out: &mut [Packet]) {
        let first = self.sockets.get(&port).map_or(0, |socket| socket.initial.wrapping_add(1));
        for packet in out {
            packet.port_idx = port;
            let place = packet.segment.sequence.wrapping_sub(first);
            packet.answer_offset = place % self.manners.answer_length;
            let number = (place / self.manners.answer_length).wrapping_add(1);
            packet.is_last_answer = self.manners.announces && self.manners.closing == Closing::AfterAnswers(number);
            packet.is_unusual_answer = self.manners.unusual.is_some_and(|(_, every)| number.is_multiple_of(every));
        }
    }

    fn on_unknown(&mut self, packet: &Packet, now: u64, out: &mut Vec<Packet>) {
        if packet.has(flag::RST) {
        } else if packet.has(flag::SYN) {
            // `secure_tcp_seq`: a secret for each pair of ports, and a clock of 64 ns.
            let clock = u32::try_from((now >> 6) & u64::from(u32::MAX)).expect("32 bits are left");
            let initial = clock.wrapping_add(u32::from(packet.port_idx).wrapping_mul(0x9e37_79b9));
            self.listen(packet, initial, now, out);
        } else {
            out.push(reset(packet.segment.acknowledgement));
        }
    }

    fn listen(&mut self, packet: &Packet, initial: u32, now: u64, out: &mut Vec<Packet>) {
        let socket = Endpoint::accepting(initial, packet.segment.sequence, now);
        out.push(socket.synchronisation());
        self.sockets.insert(packet.port_idx, socket);
    }

    /// The application has read a request.
    fn on_request_read(&mut self, port: u16, now: u64, out: &mut Vec<Packet>) {
        let socket = self.sockets.get_mut(&port).expect("a request has a connection");
        match self.manners.closing {
            Closing::ResetInPlaceOf(n) if socket.n_requests == n => {
                out.push(reset(socket.send_next));
                self.sockets.remove(&port);
                return;
            }
            Closing::InPlaceOf(n) if socket.n_requests == n => socket.is_closed = true,
            closing => {
                socket.written = socket.written.wrapping_add(self.manners.answer_length);
                socket.n_answers += 1;
                self.n_answers += 1;
                self.answers.insert((port, socket.written));
                match closing {
                    Closing::WithAnswer => socket.is_closed = true,
                    Closing::AfterAnswers(n) if socket.n_answers == n => {
                        socket.transmit(now, out);
                        socket.is_closed = true;
                    }
                    Closing::AfterIdle(wait) => socket.close_at = Some(now + wait),
                    _ => {}
                }
            }
        }
        socket.transmit(now, out);
    }
}

/// What a packet means to the application.
enum Outcome {
    Nothing,
    Request,
    /// The socket is gone.
    Ended,
}

impl Endpoint {
    fn accepting(initial: u32, peer: u32, now: u64) -> Self {
        let first = initial.wrapping_add(1);
        Self {
            phase: Phase::SynReceived,
            initial,
            unacknowledged: initial,
            send_next: first,
            written: first,
            is_closed: false,
            receive_next: peer.wrapping_add(1),
            has_peer_closed: false,
            closes_last: false,
            congestion_window: 10 * SEGMENT,
            n_equal: 0,
            recovers_to: None,
            resent_to: first,
            selective: Vec::new(),
            n_timeouts: 0,
            resend_at: Some(now + HANDSHAKE),
            answer_at: None,
            acknowledge_at: None,
            close_at: None,
            n_requests: 0,
            n_answers: 0,
        }
    }

    fn next_at(&self) -> Option<u64> {
        [self.resend_at, self.answer_at, self.acknowledge_at, self.close_at].into_iter().flatten().min()
    }

    fn segment(&self, sequence: u32, length: u32, flags: u8) -> Packet {
        packet(flags | flag::ACK, sequence, self.receive_next, length)
    }

    fn acknowledgement(&self) -> Packet {
        self.segment(self.send_next, 0, 0)
    }

    fn synchronisation(&self) -> Packet {
        self.segment(self.initial, 0, flag::SYN)
    }

    fn has_sent_fin(&self) -> bool {
        self.send_next == self.written.wrapping_add(1)
    }

    /// Sends what the windows allow.
    fn transmit(&mut self, now: u64, out: &mut Vec<Packet>) {
        let window = self.congestion_window.min(WINDOW);
        while is_after(self.written, self.send_next) {
            let room = window.saturating_sub(self.send_next.wrapping_sub(self.unacknowledged));
            let length = SEGMENT.min(self.written.wrapping_sub(self.send_next));
            if room < length {
                break;
            }
            let is_last = self.is_closed && self.send_next.wrapping_add(length) == self.written;
            out.push(self.segment(self.send_next, length, if is_last { flag::FIN } else { 0 }));
            self.send_next = self.send_next.wrapping_add(length + u32::from(is_last));
            self.acknowledge_at = None;
        }
        if self.is_closed && self.send_next == self.written {
            out.push(self.segment(self.send_next, 0, flag::FIN));
            self.send_next = self.send_next.wrapping_add(1);
        }
        if self.send_next != self.unacknowledged && self.resend_at.is_none() {
            self.resend_at = Some(now + (RETRANSMISSION << self.n_timeouts));
        }
    }

    /// Sends the next range again that is not known to have arrived, if there is one before `to`.
    fn send_again(&mut self, to: u32, random: &mut fastrand::Rng, out: &mut Vec<Packet>) {
        let mut from = if is_after(self.unacknowledged, self.resent_to) { self.unacknowledged } else { self.resent_to };
        while let Some((_, end)) =
            self.selective.iter().find(|(start, end)| !is_after(*start, from) && is_after(*end, from))
        {
            from = *end;
        }
        if !is_after(to, from) {
            return;
        }
        let before = |to: u32| if is_after(to, from) { to.wrapping_sub(from) } else { u32::MAX };
        let next = self.selective.iter().map(|(start, _)| before(*start)).min().unwrap_or(u32::MAX);
        let length = SEGMENT.min(next).min(self.written.wrapping_sub(from));
        // A FIN of its own may be joined to the data before it (`tcp_retrans_try_collapse`).
        let is_last = self.has_sent_fin()
            && (length == 0 || (length < SEGMENT && from.wrapping_add(length) == self.written && random.bool()));
        out.push(self.segment(from, length, if is_last { flag::FIN } else { 0 }));
        self.resent_to = from.wrapping_add(length + u32::from(is_last));
    }

    /// Does what is due; returns whether the socket lives on.
    fn on_time(&mut self, now: u64, random: &mut fastrand::Rng, out: &mut Vec<Packet>) -> bool {
        if self.acknowledge_at.is_some_and(|at| at <= now) {
            self.acknowledge_at = None;
            out.push(self.acknowledgement());
        }
        if self.close_at.is_some_and(|at| at <= now) {
            (self.close_at, self.is_closed) = (None, true);
            self.transmit(now, out);
        }
        if self.resend_at.is_some_and(|at| at <= now) {
            self.n_timeouts += 1;
            if self.n_timeouts > TIMEOUTS_MAX {
                return false;
            }
            if self.phase == Phase::SynReceived {
                out.push(self.synchronisation());
                self.resend_at = Some(now + (HANDSHAKE << self.n_timeouts));
                return true;
            }
            self.resend_at = Some(now + (RETRANSMISSION << self.n_timeouts));
            (self.recovers_to, self.resent_to, self.n_equal) = (Some(self.send_next), self.unacknowledged, 0);
            self.congestion_window = 2 * SEGMENT;
            self.selective.clear();
            self.send_again(self.send_next, random, out);
        }
        true
    }

    fn on_packet(&mut self, packet: &Packet, now: u64, random: &mut fastrand::Rng, out: &mut Vec<Packet>) -> Outcome {
        let segment = packet.segment;
        if packet.has(flag::RST) {
            if segment.sequence == self.receive_next {
                return Outcome::Ended;
            }
            if segment.sequence.wrapping_sub(self.receive_next) < WINDOW {
                out.push(self.acknowledgement());
            }
            return Outcome::Nothing;
        }
        if packet.has(flag::SYN) {
            let is_same = self.phase == Phase::SynReceived && segment.sequence.wrapping_add(1) == self.receive_next;
            out.push(if is_same { self.synchronisation() } else { self.acknowledgement() });
            return Outcome::Nothing;
        }
        if self.phase == Phase::SynReceived {
            if segment.acknowledgement != self.send_next {
                out.push(reset(segment.acknowledgement));
                return Outcome::Nothing;
            }
            self.phase = Phase::Open;
        }
        if is_after(segment.acknowledgement, self.send_next) {
            out.push(self.acknowledgement());
            return Outcome::Nothing;
        }
        self.on_acknowledgement(packet, now, random, out);
        self.on_data(packet, now, out)
    }

    fn on_acknowledgement(&mut self, packet: &Packet, now: u64, random: &mut fastrand::Rng, out: &mut Vec<Packet>) {
        let segment = packet.segment;
        if packet.sack.0 != packet.sack.1 && is_after(packet.sack.1, self.unacknowledged) {
            assert!(!is_after(packet.sack.1, self.send_next), "{packet:?} acknowledges what was not sent");
            self.selective.push(packet.sack);
        }
        if is_after(segment.acknowledgement, self.unacknowledged) {
            let acknowledged = segment.acknowledgement.wrapping_sub(self.unacknowledged);
            self.unacknowledged = segment.acknowledgement;
            self.selective.retain(|(_, end)| is_after(*end, segment.acknowledgement));
            (self.n_equal, self.n_timeouts) = (0, 0);
            self.congestion_window = (self.congestion_window + acknowledged).min(1 << 20);
            let has_more = self.unacknowledged != self.send_next;
            self.resend_at = has_more.then_some(now + RETRANSMISSION);
            self.recovers_to = self.recovers_to.filter(|to| is_after(*to, self.unacknowledged));
            if let Some(to) = self.recovers_to {
                // What is missing at a partial acknowledgement is lost (RFC 6582 section 3.2).
                self.send_again(to, random, out);
                self.send_again(to, random, out);
            }
        } else if segment.acknowledgement == self.unacknowledged
            && segment.length == 0
            && !packet.has(flag::FIN)
            && self.unacknowledged != self.send_next
        {
            self.n_equal += 1;
            if let Some(to) = self.recovers_to {
                // What is missing before a range that has arrived is lost (RFC 6675 section 4).
                let ahead = self.selective.iter().map(|(start, _)| start.wrapping_sub(self.unacknowledged)).max();
                let highest = self.unacknowledged.wrapping_add(ahead.unwrap_or(0));
                self.send_again(if is_after(highest, to) { to } else { highest }, random, out);
            } else if self.n_equal == 3 {
                (self.recovers_to, self.resent_to) = (Some(self.send_next), self.unacknowledged);
                self.congestion_window = (self.congestion_window / 2).max(2 * SEGMENT);
                self.send_again(self.send_next, random, out);
            }
        }
        if self.recovers_to.is_none() {
            self.transmit(now, out);
        }
    }

    fn on_data(&mut self, packet: &Packet, now: u64, out: &mut Vec<Packet>) -> Outcome {
        let segment = packet.segment;
        let has_fin = packet.has(flag::FIN);
        let is_fin_acknowledged = self.has_sent_fin() && self.unacknowledged == self.send_next;
        if segment.sequence != self.receive_next {
            if segment.length > 0 || has_fin || is_after(self.receive_next, segment.sequence) {
                out.push(self.acknowledgement());
            }
        } else if segment.length > 0 {
            if self.is_closed {
                // Nobody will read it (`tcp_rcv_state_process`, TCPABORTONDATA).
                out.push(reset(segment.acknowledgement));
                return Outcome::Ended;
            }
            self.receive_next = self.receive_next.wrapping_add(segment.length);
            return Outcome::Request;
        } else if has_fin {
            self.receive_next = self.receive_next.wrapping_add(1);
            self.has_peer_closed = true;
            out.push(self.acknowledgement());
            if !self.is_closed {
                // The application reads the end of the stream, and closes too.
                (self.is_closed, self.closes_last) = (true, true);
                (self.answer_at, self.close_at) = (None, None);
                self.transmit(now, out);
                return Outcome::Nothing;
            }
        }
        if !self.has_peer_closed || !is_fin_acknowledged {
            return Outcome::Nothing;
        }
        // Who closes last does not wait.
        if self.closes_last {
            return Outcome::Ended;
        }
        self.phase = Phase::TimeWait;
        (self.resend_at, self.acknowledge_at, self.answer_at, self.close_at) = (None, None, None, None);
        Outcome::Nothing
    }
}

fn packet(flags: u8, sequence: u32, acknowledgement: u32, length: u32) -> Packet {
    let segment = Segment { flags, sequence, acknowledgement, length };
    Packet { port_idx: 0, segment, sack: (0, 0), answer_offset: 0, is_last_answer: false, is_unusual_answer: false }
}

fn reset(sequence: u32) -> Packet {
    packet(flag::RST, sequence, 0, 0)
}
