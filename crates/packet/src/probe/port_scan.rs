//! Which of the listed ports answer, and how.

use std::{collections::VecDeque, net::IpAddr};

use fathom_model::units::Nanos;

use super::{
    conversation::{Order, TAGS},
    course::{Course, Event, Step},
    reply::{Complaint, Reply, TcpFlags, What},
};

/// How ports are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scan {
    /// Which.
    pub ports: Vec<u16>,
    /// How often one is asked that does not answer.
    pub tries: u8,
    /// How long an answer may take.
    pub patience: Nanos,
    /// From one probe to the next.
    pub gap: Nanos,
}

/// What a port is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Somebody listens.
    Open,
    /// The host says that nobody listens.
    Closed,
    /// Something on the way says that it does not pass.
    Prohibited(IpAddr, Complaint),
    /// A reset for a probe that asks for no connection: the host is there, and says no more.
    Unfiltered,
    /// Nothing came back.
    Silent,
}

/// One port with what is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// Its number.
    pub number: u16,
    /// What it is.
    pub state: State,
    /// How long the answer took.
    pub rtt: Option<Nanos>,
    /// The reply itself, but for the IP addresses.
    pub reply: Option<Reply>,
}

/// A scan on its way.
#[derive(Debug)]
pub struct PortScan {
    scan: Scan,
    found: Vec<Port>,
    /// Which ports are to be asked in this pass.
    queue: VecDeque<usize>,
    /// Which port the last probe with each tag asked, and when.
    asked: Vec<Option<(usize, Nanos)>>,
    n_sent: u64,
    n_passes: u8,
    next_send: Nanos,
    last_sent: Nanos,
}

impl PortScan {
    /// Nothing is sent yet.
    #[must_use]
    pub fn new(scan: Scan) -> Self {
        let blank = |number: &u16| Port { number: *number, state: State::Silent, rtt: None, reply: None };
        Self {
            found: scan.ports.iter().map(blank).collect(),
            queue: (0..scan.ports.len()).collect(),
            asked: vec![None; TAGS.into()],
            scan,
            n_sent: 0,
            n_passes: 1,
            next_send: Nanos::ZERO,
            last_sent: Nanos::ZERO,
        }
    }

    /// The ports in the order in which they were listed.
    #[must_use]
    pub fn ports(&self) -> &[Port] {
        &self.found
    }

    /// How many probes were sent.
    #[must_use]
    pub fn n_sent(&self) -> u64 {
        self.n_sent
    }

    /// Takes note of what happened; a port of which something is known now for the first time.
    pub fn take(&mut self, event: &Event<'_>, at: Nanos) -> Option<Port> {
        match event {
            Event::Sent(order) | Event::NoWay(order) => {
                let idx = self.queue.pop_front()?;
                self.asked[usize::from(order.tag)] = Some((idx, at));
                self.n_sent += 1;
                self.last_sent = at;
                self.next_send = at + self.scan.gap;
                None
            }
            // Probes of a scan are as short as they can be.
            Event::TooLong(_) => {
                self.queue.pop_front();
                None
            }
            Event::Left { tag } => {
                if let Some((_, sent)) = self.asked.get_mut(usize::from(*tag)).and_then(Option::as_mut) {
                    *sent = at;
                }
                None
            }
            Event::Heard(reply, _) => self.heard(reply, at),
        }
    }

    fn heard(&mut self, reply: &Reply, at: Nanos) -> Option<Port> {
        let (idx, sent) = (*self.asked.get(usize::from(reply.tag?))?)?;
        let port = &mut self.found[idx];
        let state = match reply.what {
            What::Tcp(seen) if seen.source_port != port.number => return None,
            What::Tcp(seen) if seen.flags.has(TcpFlags::SYN.with(TcpFlags::ACK)) => State::Open,
            // A reset without an acknowledgment answers an acknowledgment, whether somebody listens or not.
            What::Tcp(seen) if seen.flags.has(TcpFlags::RST) && !seen.flags.has(TcpFlags::ACK) => State::Unfiltered,
            What::Tcp(_) => State::Closed,
            What::Udp { source_port } if source_port != port.number => return None,
            What::Udp { .. } => State::Open,
            What::Error(trouble) if trouble.complaint == Complaint::PortUnreachable && reply.is_from_target => {
                State::Closed
            }
            What::Error(trouble) => State::Prohibited(reply.from, trouble.complaint),
            What::Icmp { .. } | What::Protocol(_) => return None,
        };
        if port.state != State::Silent {
            return None;
        }
        *port = Port { state, rtt: Some(at.since(sent)), reply: Some(*reply), ..*port };
        Some(*port)
    }
}

impl Course for PortScan {
    fn step(&mut self, now: Nanos) -> Step {
        if self.queue.is_empty() {
            let silent = |(idx, port): (usize, &Port)| (port.state == State::Silent).then_some(idx);
            let silent: VecDeque<usize> = self.found.iter().enumerate().filter_map(silent).collect();
            let end = self.last_sent + self.scan.patience;
            if silent.is_empty() || (now >= end && self.n_passes >= self.scan.tries) {
                return Step::Over;
            }
            if now < end {
                return Step::Wait(end);
            }
            self.n_passes += 1;
            self.queue = silent;
        }
        if now < self.next_send {
            return Step::Wait(self.next_send);
        }
        let port = self.queue.front().map(|idx| self.found[*idx].number);
        let tag = u16::try_from(self.n_sent % u64::from(TAGS)).expect("a tag is below 2^15");
        Step::Send(Order { tag, port, ..Order::default() })
    }

    fn note(&mut self, event: &Event<'_>, at: Nanos) {
        self.take(event, at);
    }
}
