//! The times of a socket's bytes in the kernel.
//!
//! `SO_TIMESTAMPING` (Documentation/networking/timestamping.rst) stamps a packet when it enters the queue of its interface, when the driver
//! takes it and when the stack receives it. The time from driver to stack includes neither the sender's event queue nor its wake-up. These
//! are software timestamps on `CLOCK_REALTIME`; [`KernelClockOffset`] converts them to the monotonic clock. Needs no privilege; Linux 4.13
//! on veth, whose driver stamps.

use std::os::fd::AsFd;

use fathom_model::units::Nanos;

pub use super::stamped_message::SendMoment;
use crate::{
    Result, clock,
    socket::{
        self, Sender, Wait, error_of, not_now,
        stamped_message::{SendTarget, StampedMessage, send_with_stamps},
    },
};

/// Enables timestamps of all further sends and receives; the connection must be established.
///
/// The first socket of a system that enables them gets receive timestamps only after a moment: the kernel enables them in a work queue
/// (`net_enable_timestamp` in `net/core/dev.c`).
///
/// # Errors
/// `setsockopt(SO_TIMESTAMPING)`, if it is not a connected socket.
pub fn enable(connection: impl AsFd) -> Result<()> {
    let both_ways = libc::SOF_TIMESTAMPING_TX_SOFTWARE | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    // Timestamps of sends are identified by the stream position of their last byte, and come without a copy of the bytes.
    let form = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    socket::set(connection, (libc::SOL_SOCKET, libc::SO_TIMESTAMPING), &(both_ways | form))
        .map_err(error_of("setsockopt(SO_TIMESTAMPING)"))
}

/// Enables timestamps of all further receives, and of those sends that are made by [`send`] or [`send_to`]: the others cost nothing.
///
/// Otherwise as [`enable`]; a UDP socket need not be connected.
///
/// # Errors
/// `setsockopt(SO_TIMESTAMPING)`, if it is neither a connected TCP socket nor a UDP socket.
pub fn enable_for_some(socket: impl AsFd) -> Result<()> {
    let form = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    let flags = form | libc::SOF_TIMESTAMPING_RX_SOFTWARE;
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_TIMESTAMPING), &flags)
        .map_err(error_of("setsockopt(SO_TIMESTAMPING)"))
}

/// Between two offsets, a change by more than this is a step: an uninterrupted reading of two clocks in succession takes less.
const CHANGE_MAX: Nanos = Nanos::from_micros(50);
/// Of a single reading, a change by more than this is a step of the wall clock, and neither drift nor an interruption.
const STEP_MIN: Nanos = Nanos::from_millis(1);
/// No packet waits so long for a program that reads all the time. A shorter step remains in the times of the packets that wait just then.
const AGE_MAX: Nanos = Nanos::from_secs(60);

/// The offset between the kernel's two clocks, sampled once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelClockOffset(Nanos);

impl KernelClockOffset {
    /// The offset now, accurate to half the time of the fastest of several readings: an interrupted reading is not used.
    #[must_use]
    pub fn now() -> Self {
        Self::between(clock::now, clock::wall)
    }

    fn between(monotonic: impl Fn() -> Nanos, wall: impl Fn() -> Nanos) -> Self {
        const READINGS: usize = 16;
        let reading = || {
            let before = monotonic();
            let wall = wall();
            let took = monotonic() - before;
            (took, wall.since(before + took / 2))
        };
        let (_, difference) = (1..READINGS).fold(reading(), |best, _| best.min(reading()));
        Self(difference)
    }

    /// Whether the wall clock was not set between the two samples.
    #[must_use]
    pub fn is_unchanged(self, later: Self) -> bool {
        self.0.since(later.0).max(later.0.since(self.0)) < CHANGE_MAX
    }

    /// The amount by which the wall clock is ahead of the monotonic clock.
    #[must_use]
    pub const fn ahead(self) -> Nanos {
        self.0
    }

    /// Follows a wall clock that is set, and returns the time on the monotonic clock.
    #[must_use]
    pub fn follow(&mut self) -> Nanos {
        let (now, wall) = (clock::now(), clock::wall());
        let offset = wall.since(now);
        if offset.since(self.0).max(self.0.since(offset)) > STEP_MIN {
            *self = Self::now();
        }
        now
    }

    /// Converts the timestamp of a packet that was read before the last [`Self::follow`], which returned `now`. `None` for a packet that waited
    /// while the wall clock was set.
    #[must_use]
    pub fn arrival(self, stamp: Nanos, now: Nanos) -> Option<Nanos> {
        let at = self.monotonic(stamp);
        (at <= now + STEP_MIN && now.since(at) < AGE_MAX).then_some(at)
    }

    /// Converts the timestamp of a packet that was read just now, as [`Self::follow`] and [`Self::arrival`] do.
    #[must_use]
    pub fn of_packet(&mut self, stamp: Nanos) -> Option<Nanos> {
        let now = self.follow();
        self.arrival(stamp, now)
    }

    /// Converts a timestamp to the monotonic clock, if the wall clock was not set since the offset was sampled.
    #[must_use]
    pub fn monotonic(self, stamp: Nanos) -> Nanos {
        stamp.since(self.0)
    }
}

/// Received bytes with the arrival time of their last segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedReceive {
    /// The number of bytes; zero at the end of the stream.
    pub n_bytes: usize,
    /// The time on `CLOCK_REALTIME`; `None` for a segment without a timestamp.
    pub at: Option<Nanos>,
}

/// A moment of a send: of its last segment, if it had several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StampedSend {
    /// The stream position of the last byte of the send, or the number of the datagram, counted from [`enable`]; wraps around.
    pub last_byte: u32,
    /// The moment.
    pub moment: SendMoment,
    /// The time on `CLOCK_REALTIME`.
    pub at: Nanos,
}

/// Receives bytes with their time; `None` means not now.
///
/// # Errors
/// `recv`: reset by the peer.
pub fn recv(connection: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<StampedReceive>> {
    let received = not_now(StampedMessage::receive(connection, bytes, wait.flag()), "recv")?;
    Ok(received.map(|message| StampedReceive { n_bytes: message.n_bytes, at: message.stamp() }))
}

/// Receives a datagram with its time and its sender; `None` means not now.
///
/// # Errors
/// As [`socket::recv_from`].
pub fn recv_from(socket: impl AsFd, bytes: &mut [u8], wait: Wait) -> Result<Option<(StampedReceive, Sender)>> {
    let received = not_now(StampedMessage::receive(socket, bytes, wait.flag()), "recvfrom")?;
    Ok(received.and_then(|message| {
        Some((StampedReceive { n_bytes: message.n_bytes, at: message.stamp() }, message.sender()?))
    }))
}

/// Sends on a connected socket, with timestamps of [`SendMoment::Queued`] and [`SendMoment::Left`]; `None` means not now.
///
/// # Errors
/// As [`socket::send`].
pub fn send(connection: impl AsFd, bytes: &[u8], wait: Wait) -> Result<Option<usize>> {
    not_now(send_with_stamps(connection, bytes, SendTarget::Peer, wait.flag()), "send")
}

/// Sends a datagram back to a sender, with timestamps as of [`send`]; `None` means not now.
///
/// # Errors
/// As [`socket::send_to`].
pub fn send_to(socket: impl AsFd, bytes: &[u8], to: &Sender, wait: Wait) -> Result<Option<usize>> {
    not_now(send_with_stamps(socket, bytes, SendTarget::Sender(to), wait.flag()), "sendto")
}

/// Returns the next moment of a send; `None` if all have been reported.
///
/// # Errors
/// `recvmsg(MSG_ERRQUEUE)`, if it is not a socket.
pub fn departure(connection: impl AsFd) -> Result<Option<StampedSend>> {
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let received = not_now(StampedMessage::receive(connection, &mut [], flags), "recvmsg(MSG_ERRQUEUE)")?;
    Ok(received.and_then(|message| {
        let (moment, last_byte) = message.send_moment()?;
        Some(StampedSend { last_byte, moment, at: message.stamp()? })
    }))
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        io::{Read, Write},
        net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    };

    use super::*;
    use crate::{policy::AllowedPeers, socket::Socket};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A connection with timestamps enabled and already working.
    fn stamped_pair() -> (TcpStream, TcpStream) {
        let (near, mut far) = pair();
        enable(&near).unwrap();
        let mut is_stamped = || {
            far.write_all(b"1").unwrap();
            near.peek(&mut [0]).unwrap();
            recv(&near, &mut [0], Wait::Never).unwrap().unwrap().at.is_some()
        };
        while !is_stamped() {}
        (near, far)
    }

    #[test]
    fn a_send_leaves_after_it_was_asked_for_and_before_its_answer_arrives() {
        let (mut near, mut far) = stamped_pair();
        let (epoch, before) = (KernelClockOffset::now(), clock::now());
        near.write_all(b"12345").unwrap();
        let mut asked = [0; 5];
        far.read_exact(&mut asked).unwrap();
        far.write_all(b"answer").unwrap();
        let mut answer = [0; 16];
        near.peek(&mut answer).unwrap();
        let arrival = recv(&near, &mut answer, Wait::Never).unwrap().unwrap();
        let departure_told = departure(&near).unwrap().unwrap();
        assert_eq!(departure_told.moment, SendMoment::Left);
        assert_eq!((arrival.n_bytes, departure_told.last_byte), (6, 4));
        let (left, came) = (epoch.monotonic(departure_told.at), epoch.monotonic(arrival.at.unwrap()));
        assert!(before <= left && left <= came && came <= clock::now(), "{before} {left} {came}");
        assert_eq!(departure(&near).unwrap(), None);
        assert_eq!(recv(&near, &mut answer, Wait::Never).unwrap(), None);
        drop(far);
        near.peek(&mut answer).unwrap();
        assert_eq!(recv(&near, &mut answer, Wait::Never).unwrap().unwrap().n_bytes, 0);
    }

    #[test]
    fn the_reading_that_was_not_interrupted_counts_and_a_step_is_noticed() {
        let (time, n) = (Cell::new(1_000_000_u64), Cell::new(0_usize));
        let spans = [900_000, 40, 30, 500_000];
        let monotonic = || {
            let read = n.replace(n.get() + 1);
            time.set(time.get() + spans[read % spans.len()]);
            Nanos(time.get())
        };
        let offset = KernelClockOffset::between(monotonic, || Nanos(time.get() + 7_000_000_000));
        assert!(offset.0.0.abs_diff(7_000_000_000) <= 20, "{offset:?}");
        assert!(offset.monotonic(Nanos(7_000_000_500)).0.abs_diff(500) <= 20);
        assert!(offset.is_unchanged(KernelClockOffset(offset.0 + Nanos::from_micros(40))));
        assert!(!offset.is_unchanged(KernelClockOffset(offset.0 + Nanos::from_millis(1))));
    }

    #[test]
    fn a_wall_clock_that_is_set_moves_no_packet() {
        let hour = Nanos::from_secs(3600);
        for is_ahead in [true, false] {
            // As if the clock had been an hour off when the offset was sampled.
            let sampled = KernelClockOffset::now().0;
            let mut clocks = KernelClockOffset(if is_ahead { sampled + hour } else { sampled - hour });
            let before = clock::now();
            let at = clocks.of_packet(clock::wall()).unwrap();
            let slack = Nanos::from_micros(100);
            assert!(before <= at + slack && at <= clock::now() + slack, "{before} {at}");
            // Packets from before the step.
            assert_eq!(clocks.of_packet(clock::wall() - hour), None);
            assert_eq!(clocks.of_packet(clock::wall() + hour), None);
        }
    }

    #[test]
    fn a_socket_without_a_connection_has_no_stream_to_count() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(enable(&listener).unwrap_err().to_string(), "setsockopt(SO_TIMESTAMPING)");
    }
    /// The stamps of a send, received and awaited by the other end, and the arrival of its answer.
    fn moments(socket: &Socket, asked: Nanos, arrival: StampedReceive) {
        let sent = std::iter::from_fn(|| departure(socket).unwrap()).collect::<Vec<_>>();
        let moments = sent.iter().map(|sent| sent.moment).collect::<Vec<_>>();
        assert_eq!(moments, [SendMoment::Queued, SendMoment::Left]);
        let epoch = KernelClockOffset::now();
        let [queued, left, came] = [sent[0].at, sent[1].at, arrival.at.unwrap()].map(|at| epoch.monotonic(at));
        // Half the time of the fastest of several readings of two clocks.
        let slack = Nanos::from_micros(5);
        assert!(asked <= queued + slack && queued <= left && left <= came, "{asked} {queued} {left} {came}");
        assert!(came <= clock::now() + slack);
    }

    #[test]
    fn a_chosen_send_tells_when_it_was_queued_and_when_it_left_and_others_tell_nothing() {
        let (near, mut far) = pair();
        let near = Socket::from(near);
        enable_for_some(&near).unwrap();
        let mut exchange = |stamped: bool| {
            let asked = clock::now();
            let send = if stamped { send } else { socket::send };
            assert_eq!(send(&near, b"12345", Wait::Block).unwrap(), Some(5));
            let mut request = [0; 5];
            far.read_exact(&mut request).unwrap();
            far.write_all(b"answer").unwrap();
            (asked, recv(&near, &mut [0; 16], Wait::Block).unwrap().unwrap())
        };
        while exchange(false).1.at.is_none() {}
        assert_eq!(departure(&near).unwrap(), None);
        let (asked, arrival) = exchange(true);
        moments(&near, asked, arrival);
        exchange(false);
        assert_eq!(departure(&near).unwrap(), None);
    }

    #[test]
    fn a_datagram_tells_its_arrival_and_its_answer_the_way_out() {
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let responder = socket::datagram((ip, 0).into(), &AllowedPeers::anybody()).unwrap();
            enable_for_some(&responder).unwrap();
            let client = UdpSocket::bind((ip, 0)).unwrap();
            client.connect(responder.local_addr().unwrap().as_socket().unwrap()).unwrap();
            let receive = || {
                client.send(b"asked").unwrap();
                recv_from(&responder, &mut [0; 16], Wait::Block).unwrap().unwrap()
            };
            while receive().0.at.is_none() {}
            let (arrival, sender) = receive();
            assert_eq!((arrival.n_bytes, sender.address()), (5, client.local_addr().ok()));
            let (asked, came) = (clock::now(), arrival.at.unwrap());
            assert!(KernelClockOffset::now().monotonic(came) <= asked + Nanos::from_micros(5));
            send_to(&responder, b"answer", &sender, Wait::Block).unwrap();
            client.recv(&mut [0; 16]).unwrap();
            client.send(b"asked").unwrap();
            let (next, _) = recv_from(&responder, &mut [0; 16], Wait::Block).unwrap().unwrap();
            moments(&responder, asked, next);
        }
    }
}
