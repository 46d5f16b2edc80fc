//! The TCP transport of a host without `CAP_NET_RAW`: the kernel's own connections replace SYN probes.
//!
//! The outcome of a connect is translated into the segment that caused it, so no other file needs to know the difference.

use std::{
    collections::{BTreeMap, VecDeque},
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
};

use etherparse::{IpNumber, LaxIpSlice, TcpHeader};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::{Destination, Policy},
    reactor::epoll_wait::{Epoll, Interest, ReadyList},
    socket::{self, Connect, SockRef, Socket},
};

use super::{
    driver::{CapturedPacket, ProbeTransport, SendOutcome},
    echo::ip_header,
    raw::allowed_destination,
};

/// The kernel retransmits its first segment after a second (RFC 6298). That would be a probe that nobody asked for.
const CONNECT_TIMEOUT: Nanos = Nanos::from_millis(900);
/// The most concurrent connections, well below the default limit of file descriptors per process.
const ATTEMPTS_MAX: usize = 256;

/// A connection attempt.
#[derive(Debug)]
struct Attempt {
    socket: Socket,
    sent: Nanos,
    /// The header of the probe that it replaces.
    probe: TcpHeader,
}

/// Opens a connection for each probe, and closes it as soon as its outcome is known.
#[derive(Debug)]
pub struct ConnectTransport {
    source: IpAddr,
    destination: IpAddr,
    to: Destination,
    epoll: Epoll,
    /// By number, so the first one is the oldest.
    attempts: BTreeMap<u64, Attempt>,
    n_attempts: u64,
    replies: VecDeque<(Vec<u8>, Nanos)>,
}

impl ConnectTransport {
    /// Connects from a local address to one host.
    ///
    /// # Errors
    /// If no more descriptors are allowed.
    pub fn open(source: IpAddr, destination: IpAddr, policy: &Policy) -> fathom_sys::Result<Self> {
        Ok(Self {
            to: allowed_destination(destination, policy)?,
            source,
            destination,
            epoll: Epoll::new()?,
            attempts: BTreeMap::new(),
            n_attempts: 0,
            replies: VecDeque::new(),
        })
    }

    /// Creates a socket that sends like the probe, but from a port that the kernel chooses.
    fn socket(&self, hops: u8, traffic_class: u8) -> fathom_sys::Result<Socket> {
        let from = SocketAddr::new(self.source, 0);
        let socket = socket::stream_nonblocking(from)?;
        let error_of = |call: &'static str| move |error| fathom_sys::Error::new(call, error);
        let options = SockRef::from(&socket);
        if self.source.is_ipv4() {
            options.set_ttl_v4(hops.into()).map_err(error_of("setsockopt(IP_TTL)"))?;
        } else {
            options.set_unicast_hops_v6(hops.into()).map_err(error_of("setsockopt(IPV6_UNICAST_HOPS)"))?;
        }
        if traffic_class > 0 {
            socket::set_traffic_class(&socket, traffic_class)?;
        }
        socket::set_bind_address_no_port(&socket)?;
        options.bind(&from.into()).map_err(error_of("bind"))?;
        // A probe is not a real client: nothing may wait for its end on either side.
        socket::set_reset_on_close(&socket)?;
        Ok(socket)
    }

    /// Adds the segment that caused the outcome of a connect. Other errors are not answers of the host.
    fn push_reply(&mut self, attempt: &Attempt, outcome: fathom_sys::Result<()>, at: Nanos) {
        let is_open = match outcome {
            Ok(()) => true,
            Err(error) if error.source.kind() == ErrorKind::ConnectionRefused => false,
            Err(_) => return,
        };
        let probe = &attempt.probe;
        let mut answer = TcpHeader::new(probe.destination_port, probe.source_port, 0, 0);
        (answer.ack, answer.syn, answer.rst) = (true, is_open, !is_open);
        answer.acknowledgment_number = probe.sequence_number.wrapping_add(1);
        let segment = answer.to_bytes();
        // Only the kernel knows the TTL of the answer.
        let ip = ip_header(IpNumber::TCP, (self.destination, self.source), segment.len(), None);
        self.replies.push_back(([&ip[..], &segment].concat(), at));
    }

    /// Drops unanswered attempts before the kernel retransmits.
    fn expire(&mut self, now: Nanos) {
        while let Some(oldest) =
            self.attempts.first_entry().filter(|oldest| now.since(oldest.get().sent) > CONNECT_TIMEOUT)
        {
            oldest.remove();
        }
    }

    fn poll(&mut self, timeout: Nanos) -> fathom_sys::Result<()> {
        let mut events = ReadyList::with_capacity(ATTEMPTS_MAX);
        let outcome = self.epoll.wait(&mut events, Some(timeout));
        let at = clock::now();
        for event in events.iter() {
            if let Some(attempt) = self.attempts.remove(&event.token) {
                let outcome = socket::connect_result(&attempt.socket);
                self.push_reply(&attempt, outcome, at);
            }
        }
        self.expire(at);
        outcome.map(|_| ())
    }
}

impl ProbeTransport for ConnectTransport {
    type Error = fathom_sys::Error;

    fn now(&self) -> Nanos {
        clock::now()
    }

    fn send(&mut self, packet: &[u8]) -> fathom_sys::Result<SendOutcome> {
        let parsed = LaxIpSlice::from_slice(packet).ok();
        let probe = parsed.and_then(|(ip, _)| Some(TcpHeader::from_slice(ip.payload().payload).ok()?.0));
        let probe = probe.expect("probes of this line are TCP segments");
        if self.attempts.len() >= ATTEMPTS_MAX {
            self.poll(Nanos::ZERO)?;
            return Ok(SendOutcome::WouldBlock);
        }
        let (hops, traffic_class) = match self.destination {
            IpAddr::V4(_) => (packet[8], packet[1]),
            IpAddr::V6(_) => (packet[7], packet[0] << 4 | packet[1] >> 4),
        };
        let socket = self.socket(hops, traffic_class)?;
        let sent = clock::now();
        let begun = socket::connect_begin(&socket, &self.to.at(probe.destination_port));
        let attempt = Attempt { socket, sent, probe };
        match begun {
            Ok(Connect::Done) => self.push_reply(&attempt, Ok(()), clock::now()),
            Ok(Connect::Pending) => {
                self.epoll.add(&attempt.socket, self.n_attempts, Interest::WRITE)?;
                self.attempts.insert(self.n_attempts, attempt);
                self.n_attempts += 1;
            }
            Err(error) if error.source.kind() == ErrorKind::ConnectionRefused => {
                self.push_reply(&attempt, Err(error), clock::now());
            }
            Err(error) if matches!(error.source.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable) => {
                return Ok(SendOutcome::NoRoute(sent));
            }
            Err(error) => return Err(error),
        }
        Ok(SendOutcome::Sent(sent))
    }

    fn receive(&mut self, room: &mut [u8]) -> fathom_sys::Result<Option<CapturedPacket>> {
        if self.replies.is_empty() {
            self.poll(Nanos::ZERO)?;
        }
        let Some((packet, at)) = self.replies.pop_front() else { return Ok(None) };
        room[..packet.len()].copy_from_slice(&packet);
        Ok(Some(CapturedPacket::Incoming(packet.len(), at)))
    }

    fn wait(&mut self, until: Nanos) -> fathom_sys::Result<()> {
        let left = until.since(clock::now());
        if left > Nanos::ZERO && self.replies.is_empty() {
            self.poll(left)?;
        }
        Ok(())
    }

    fn n_dropped_replies(&self) -> Option<u64> {
        // The outcome of a connection is kept in its socket, not in a buffer, so none can be dropped.
        Some(0)
    }
}
