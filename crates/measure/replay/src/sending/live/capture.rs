//! Follows the connections that a device carries, and gives their requests to the workers.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fathom_capture::{CapturedFrame, ETHERNET, LinkType, RAW_IP, TrafficLimits, TrafficReader};
use fathom_engine::Error;
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{
    clock,
    netlink::Netlink,
    packet::packet_socket::{MAX_BATCH, ReceiveBuffer, Receiver},
};

use super::queue::{QueueSender, SessionKey};
use crate::{
    ExchangeSink, HttpObserver, RecordedExchange, RequestFate,
    sending::{
        choice::Choice,
        request,
        rewrite::{COPY, Rewrite},
    },
    servers::FollowedServers,
};

/// Room for a tenth of a second of a link with 2.5 Gbit/s.
const BUFFER: Bytes = Bytes(32 << 20);
/// The longest frame that the kernel hands over: segments that it has put together (GRO) or not yet divided (TSO).
const FRAME_MAX: usize = (64 << 10) + 64;
/// The longest wait for a frame between two checks for the end.
const POLL_INTERVAL: Nanos = Nanos::from_millis(20);
/// Frames that come within this time are taken together: a wake-up for each would take the time of the server that sends them.
const GATHERING: Nanos = Nanos::from_millis(1);
/// The loopback device: it receives each frame that it sends.
const LOOPBACK: &str = "lo";

/// Which connections are followed.
#[derive(Debug, Clone, Default)]
pub(super) struct Followed {
    pub(super) servers: FollowedServers,
    /// Where the copies go: copies are not copied again.
    pub(super) targets: Vec<SocketAddr>,
}

impl Followed {
    fn has(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let is_target = |end: SocketAddr| self.targets.contains(&end);
        self.servers.has(one, other) && !is_target(one) && !is_target(other)
    }
}

/// What is done with the requests.
#[derive(Debug)]
pub(super) struct Copying {
    pub(super) choice: Choice,
    pub(super) rewrite: Rewrite,
    pub(super) n_copies: usize,
    /// Whether a request waits for its answer, because this is compared.
    pub(super) awaits_answers: bool,
}

/// A device that is listened to.
#[derive(Debug)]
pub(super) struct LiveCapture {
    receiver: Receiver,
    link: LinkType,
    followed: Followed,
}

/// What was seen until the end.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) n_requests: u64,
    pub(super) n_sessions: u64,
    pub(super) left_out: BTreeMap<String, u64>,
    /// The requests that were copied and came over HTTP/2.
    pub(super) n_over_http2: u64,
    /// Frames that the kernel dropped because this program was too slow.
    pub(super) n_dropped: u64,
    /// The times of the first request and of the last.
    pub(super) times: Option<(Nanos, Nanos)>,
    /// Why it ended before it should.
    pub(super) error: Option<fathom_sys::Error>,
}

impl LiveCapture {
    /// Listens to a device.
    ///
    /// # Errors
    /// There is no such device, or this process may not listen to it (`CAP_NET_RAW`).
    pub(super) fn open(device: &str, followed: Followed) -> Result<Self, Error> {
        let link = Netlink::open().and_then(|mut netlink| netlink.link(device));
        let link = link.map_err(|cause| Error::System { what: format!("find the device {device}"), cause })?;
        if !link.is_up {
            let hint = Some(format!("ip link set {device} up"));
            return Err(Error::Unsupported { what: format!("{device} is down"), hint });
        }
        let opened = if device == LOOPBACK {
            Receiver::open_stamped(link.index, BUFFER)
        } else {
            Receiver::open_both_ways(link.index, BUFFER)
        };
        let receiver =
            opened.map_err(|cause| Error::system(format!("open a packet socket on {device}"), "CAP_NET_RAW", cause))?;
        // Tunnels (tun, WireGuard, PPP, IP in IP) have no Ethernet address, and their frames begin with the IP header.
        let link = if link.mac.is_some() { ETHERNET } else { RAW_IP };
        Ok(Self { receiver, link, followed })
    }

    /// Gives the requests to the workers until `is_over`, or until the device is gone.
    pub(super) fn run(self, copying: Copying, queue: QueueSender, is_over: &AtomicBool) -> Seen {
        let Self { receiver, link, followed } = self;
        let awaits_answers = copying.awaits_answers;
        let sink = CopySink {
            copying,
            queue,
            wall_offset: clock::wall() - clock::now(),
            copied: BTreeSet::new(),
            seen: Seen::default(),
        };
        let observer = if awaits_answers { HttpObserver::new(sink) } else { HttpObserver::of_requests(sink) };
        let mut reader =
            TrafficReader::new(observer, TrafficLimits::USUAL).choosing(move |one, other| followed.has(one, other));
        let (n_dropped, error) = follow((&receiver, link), &mut reader, is_over);
        let (observer, _) = reader.finish();
        let (sink, counts) = observer.finish();
        let mut seen = Seen { n_dropped, error, ..sink.seen };
        for (fate, n) in counts.requests.into_iter().filter(|(fate, _)| *fate != RequestFate::Whole) {
            *seen.left_out.entry(fate.words().to_owned()).or_default() += n;
            seen.n_requests += n;
        }
        seen
    }
}

/// Takes frames until it is over. Returns how many the kernel dropped, and the error that ended it.
fn follow(
    (receiver, link): (&Receiver, LinkType),
    reader: &mut TrafficReader<HttpObserver<CopySink>>,
    is_over: &AtomicBool,
) -> (u64, Option<fathom_sys::Error>) {
    let mut inbox = ReceiveBuffer::of_frames(FRAME_MAX);
    let (mut number, mut n_dropped) = (0, 0);
    let mut take = |number: &mut u64| -> fathom_sys::Result<u64> {
        let n = receiver.receive(&mut inbox)?;
        if n == 0 {
            receiver.wait(POLL_INTERVAL)?;
            return Ok(receiver.take_counts()?.dropped.0);
        }
        for ((bytes, length), time) in inbox.frames().zip(inbox.stamps()) {
            *number += 1;
            let original_length = usize::try_from(length.0).unwrap_or(usize::MAX);
            reader.take(&CapturedFrame { number: *number, time, link, bytes, original_length });
        }
        if n < MAX_BATCH {
            thread::sleep(GATHERING.as_duration());
        }
        Ok(0)
    };
    while !is_over.load(Ordering::Relaxed) {
        match take(&mut number) {
            Ok(dropped) => n_dropped += dropped,
            Err(error) => {
                // Without the device there is nothing more to copy.
                is_over.store(true, Ordering::Relaxed);
                return (n_dropped, Some(error));
            }
        }
    }
    let last = receiver.take_counts().map_or(0, |counts| counts.dropped.0);
    (n_dropped + last, None)
}

/// Gives each request to the workers of its copies.
struct CopySink {
    copying: Copying,
    queue: QueueSender,
    /// The wall clock minus the monotonic clock.
    wall_offset: Nanos,
    /// The lanes of open connections of which requests were copied.
    copied: BTreeSet<(u64, u32)>,
    seen: Seen,
}

impl CopySink {
    fn leave_out(&mut self, why: &str) {
        *self.seen.left_out.entry(why.to_owned()).or_default() += 1;
    }

    fn keys(&self, (connection, lane): (u64, u32)) -> impl Iterator<Item = SessionKey> + use<> {
        (0..self.copying.n_copies).map(move |copy| SessionKey { connection, lane, copy })
    }
}

impl ExchangeSink for CopySink {
    fn take(&mut self, mut exchange: RecordedExchange) {
        self.seen.n_requests += 1;
        let (first, last) = self.seen.times.get_or_insert((exchange.first_byte, exchange.first_byte));
        (*first, *last) = ((*first).min(exchange.first_byte), (*last).max(exchange.first_byte));
        if request::has_field(&exchange.request[..exchange.head_length], COPY) {
            return self.leave_out("copies of our own, which the target sends here");
        }
        if let Some(why) = self.copying.choice.refuses(&exchange) {
            return self.leave_out(why);
        }
        self.copying.rewrite.apply(&mut exchange);
        let known = exchange.answer.as_ref().map_or(exchange.last_byte, |answer| answer.last_byte);
        self.seen.n_over_http2 += u64::from(exchange.lane.is_some());
        let lane = (exchange.connection, exchange.lane.unwrap_or_default());
        let exchange = Arc::new(exchange);
        // All copies of a request are sent, or none.
        if !self.queue.has_room_for(&exchange, self.copying.n_copies) {
            return self.leave_out("too many waited to be sent");
        }
        self.seen.n_sessions += u64::from(self.copied.insert(lane));
        for key in self.keys(lane) {
            self.queue.send(key, &exchange, known.since(self.wall_offset));
        }
    }

    fn end_connection(&mut self, connection: u64) {
        let lanes: Vec<_> = self.copied.range((connection, 0)..=(connection, u32::MAX)).copied().collect();
        for lane in lanes {
            self.copied.remove(&lane);
            for key in self.keys(lane) {
                self.queue.end(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_never_followed() {
        let at = |text: &str| text.parse().unwrap();
        let (client, server, target) = (at("10.0.0.1:50000"), at("10.0.0.2:80"), at("10.0.0.3:80"));
        let all = Followed { servers: FollowedServers::default(), targets: vec![target] };
        assert!(all.has(client, server) && !all.has(server, target) && !all.has(target, client));
    }
}
