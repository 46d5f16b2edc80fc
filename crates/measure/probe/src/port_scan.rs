//! Scans a list of ports.

use std::{collections::VecDeque, net::IpAddr};

use fathom_model::units::Nanos;

use super::{
    driver::{ProbeDriver, ProbeEvent, ProbeStep},
    reply::{IcmpErrorKind, Reply, ReplyContent, TcpFlags},
    template::{ProbeFields, TAGS},
};

/// The parameters of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanOptions {
    pub ports: Vec<u16>,
    /// How often a port without an answer is probed.
    pub tries: u8,
    /// How long an answer may take.
    pub timeout: Nanos,
    /// The gap between two probes.
    pub gap: Nanos,
}

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortStatus {
    /// A process listens.
    Open,
    /// The host reports that no process listens.
    Closed,
    /// A device on the path reports that it does not forward the probe.
    Prohibited(IpAddr, IcmpErrorKind),
    /// A reset for a probe that does not open a connection: the host is up, and the port may be open or closed.
    Unfiltered,
    /// No answer.
    Silent,
}

/// The result of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScannedPort {
    pub number: u16,
    pub state: PortStatus,
    /// The round trip of the answer.
    pub rtt: Option<Nanos>,
    /// The reply, without its IP addresses.
    pub reply: Option<Reply>,
}

/// A scan in progress.
#[derive(Debug)]
pub struct PortScan {
    options: ScanOptions,
    ports: Vec<ScannedPort>,
    /// Indices of the ports still to be probed in this pass.
    queue: VecDeque<usize>,
    /// The index of the port that the last probe with each tag went to, and when.
    probes: Vec<Option<(usize, Nanos)>>,
    n_sent: u64,
    n_passes: u8,
    next_send: Nanos,
    last_sent: Nanos,
}

impl PortScan {
    /// Starts a scan without any probe.
    #[must_use]
    pub fn new(scan: ScanOptions) -> Self {
        let blank = |number: &u16| ScannedPort { number: *number, state: PortStatus::Silent, rtt: None, reply: None };
        Self {
            ports: scan.ports.iter().map(blank).collect(),
            queue: (0..scan.ports.len()).collect(),
            probes: vec![None; TAGS.into()],
            options: scan,
            n_sent: 0,
            n_passes: 1,
            next_send: Nanos::ZERO,
            last_sent: Nanos::ZERO,
        }
    }

    /// Returns the ports in the order of the list.
    #[must_use]
    pub fn ports(&self) -> &[ScannedPort] {
        &self.ports
    }

    /// Returns the number of sent probes.
    #[must_use]
    pub fn n_sent(&self) -> u64 {
        self.n_sent
    }

    /// Records an event; returns a port whose state has just become known.
    pub fn on_event_with_port(&mut self, event: &ProbeEvent<'_>, at: Nanos) -> Option<ScannedPort> {
        match event {
            ProbeEvent::Sent(order) | ProbeEvent::NoRoute(order) => {
                let idx = self.queue.pop_front()?;
                self.probes[usize::from(order.tag)] = Some((idx, at));
                self.n_sent += 1;
                self.last_sent = at;
                self.next_send = at + self.options.gap;
                None
            }
            // Probes of a scan have the minimum length.
            ProbeEvent::TooLong(_) => {
                self.queue.pop_front();
                None
            }
            ProbeEvent::Transmitted { tag } => {
                if let Some((_, sent)) = self.probes.get_mut(usize::from(*tag)).and_then(Option::as_mut) {
                    *sent = at;
                }
                None
            }
            ProbeEvent::Reply(reply, _) => self.on_reply(reply, at),
        }
    }

    fn on_reply(&mut self, reply: &Reply, at: Nanos) -> Option<ScannedPort> {
        let (idx, sent) = (*self.probes.get(usize::from(reply.tag?))?)?;
        let port = &mut self.ports[idx];
        let state = match reply.content {
            ReplyContent::Tcp(seen) if seen.source_port != port.number => return None,
            ReplyContent::Tcp(seen) if seen.flags.has(TcpFlags::SYN.with(TcpFlags::ACK)) => PortStatus::Open,
            // A reset without an acknowledgment number answers an ACK, whether or not a process listens.
            ReplyContent::Tcp(seen) if seen.flags.has(TcpFlags::RST) && !seen.flags.has(TcpFlags::ACK) => {
                PortStatus::Unfiltered
            }
            ReplyContent::Tcp(_) => PortStatus::Closed,
            ReplyContent::Udp { source_port } if source_port != port.number => return None,
            ReplyContent::Udp { .. } => PortStatus::Open,
            ReplyContent::Error(trouble)
                if trouble.error_kind == IcmpErrorKind::PortUnreachable && reply.is_from_target =>
            {
                PortStatus::Closed
            }
            ReplyContent::Error(trouble) => PortStatus::Prohibited(reply.from, trouble.error_kind),
            ReplyContent::Icmp { .. } | ReplyContent::Protocol(_) => return None,
        };
        if port.state != PortStatus::Silent {
            return None;
        }
        *port = ScannedPort { state, rtt: Some(at.since(sent)), reply: Some(*reply), ..*port };
        Some(*port)
    }
}

impl ProbeDriver for PortScan {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if self.queue.is_empty() {
            let silent = |(idx, port): (usize, &ScannedPort)| (port.state == PortStatus::Silent).then_some(idx);
            let silent: VecDeque<usize> = self.ports.iter().enumerate().filter_map(silent).collect();
            let end = self.last_sent + self.options.timeout;
            if silent.is_empty() || (now >= end && self.n_passes >= self.options.tries) {
                return ProbeStep::Done;
            }
            if now < end {
                return ProbeStep::Wait(end);
            }
            self.n_passes += 1;
            self.queue = silent;
        }
        if now < self.next_send {
            return ProbeStep::Wait(self.next_send);
        }
        let port = self.queue.front().map(|idx| self.ports[*idx].number);
        let tag = u16::try_from(self.n_sent % u64::from(TAGS)).expect("a tag is below 2^15");
        ProbeStep::Send(ProbeFields { tag, port, ..ProbeFields::default() })
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.on_event_with_port(event, at);
    }
}
