//! Courses that print each reply when it comes.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr},
};

use fathom_model::units::Nanos;
use fathom_packet::probe::{
    Complaint, Conversation, Course, Event, Fate, Reply, Schedule, Series, Step, TcpFlags, What,
    port_scan::{PortScan, Scan, State},
    random_source, recorded_route,
};
use fathom_sys::clock;

use super::{
    super::load,
    PATIENCE,
    options::{Mode, Options, Stepping},
    show::{self, RoundTrips, Told},
};

/// A series of packets as hping3 sends and shows it.
pub(super) struct Speaking<'a> {
    options: &'a Options,
    series: Series,
    hops: u8,
    port: u16,
    trips: RoundTrips,
    last_id: Option<u16>,
    last_sequence: u32,
    last_route: Option<Vec<Ipv4Addr>>,
    /// What addresses to pretend to come from follow from, and whom packets are for.
    chance: (u64, IpAddr),
    is_over: bool,
    pub(super) n_received: u64,
    pub(super) last_flags: TcpFlags,
    /// Why nothing can be printed any more.
    pub(super) failed: Option<io::Error>,
}

/// Milliseconds of a day.
const DAY_MS: u64 = 24 * 3600 * 1000;

fn now_ms() -> u32 {
    u32::try_from(clock::wall().0 / 1_000_000 % DAY_MS).expect("a day has fewer than 2^32 milliseconds")
}

fn print(text: &str, failed: &mut Option<io::Error>) {
    if let Err(error) = load::say(text) {
        *failed = Some(error.downcast().unwrap_or_else(io::Error::other));
    }
}

impl<'a> Speaking<'a> {
    pub(super) fn new(options: &'a Options, conversation: &Conversation, end: Nanos) -> Self {
        let interval = if options.flood { Nanos::ZERO } else { options.interval };
        let schedule = Schedule { interval, count: options.count, end, patience: PATIENCE };
        Self {
            options,
            // Outages are no business of hping3's.
            series: Series::new(schedule, u64::MAX),
            hops: conversation.ip.hops,
            port: options.port,
            trips: RoundTrips::default(),
            last_id: None,
            last_sequence: 0,
            last_route: None,
            chance: (u64::from(conversation.secret) << 32, conversation.destination),
            is_over: false,
            n_received: 0,
            last_flags: TcpFlags(0),
            failed: None,
        }
    }

    pub(super) fn n_too_long(&self) -> u64 {
        self.series.n_too_long()
    }

    pub(super) fn tail(&self) -> String {
        let n_sent = self.series.ledger().counts().n_sent;
        show::tail(&self.options.host, (n_sent, self.n_received), &self.trips)
    }

    /// The identification, or how far it is from the one before.
    fn id(&mut self, reply: &Reply) -> String {
        let id = reply.ip.identification.unwrap_or(0);
        let before = self.last_id.replace(id);
        match before {
            Some(before) if self.options.relative_id => format!("+{}", id.wrapping_sub(before)),
            _ => id.to_string(),
        }
    }

    fn heard(&mut self, reply: &Reply, packet: &[u8], at: Nanos) {
        let tag = reply.tag.or_else(|| self.series.ledger().oldest_waiting());
        let sent = tag.and_then(|tag| self.series.ledger().sent_at(tag));
        let fate = self.series.take(&Event::Heard(reply, packet), at);
        let (Some(tag), Some(sent)) = (tag, sent) else { return };
        self.n_received += 1;
        let rtt_ms = at.since(sent).as_secs_f64() * 1e3;
        let is_quiet = self.options.quiet || self.options.flood;
        let mut told = Told {
            number: self.series.ledger().number(tag).unwrap_or(0),
            rtt_ms,
            is_duplicate: matches!(fate, Some(Fate::Duplicate(_))),
            id: String::new(),
            now_ms: now_ms(),
        };
        let text = if let What::Error(trouble) = reply.what {
            told.id = self.hops.to_string();
            let is_hop = self.options.traceroute && trouble.complaint == Complaint::HopsExceeded;
            let is_asked = self.options.mode == Mode::Udp && trouble.complaint == Complaint::PortUnreachable;
            if is_asked || is_hop && !self.options.without_hop_rtt {
                self.trips.add(rtt_ms);
            }
            let text = show::trouble(self.options, reply, &trouble, &told);
            if is_hop && !self.options.keep_ttl {
                self.hops = self.hops.saturating_add(1);
            }
            text
        } else {
            self.trips.add(rtt_ms);
            told.id = self.id(reply);
            self.answered(reply, &told)
        };
        if reply.is_from_target && self.options.traceroute && self.options.stops_at_host {
            self.is_over = true;
        }
        if !is_quiet {
            let bell = if self.options.beep { "\u{7}" } else { "" };
            let beside = self.beside(packet);
            print(&format!("{bell}{text}{beside}"), &mut self.failed);
        }
    }

    /// The packet itself and the route that it recorded, for those who asked.
    fn beside(&mut self, packet: &[u8]) -> String {
        let mut text = String::new();
        if self.options.dump {
            text += &show::hexadecimal(packet);
        }
        if self.options.print {
            text += &show::printable(packet);
        }
        if let Some(route) = recorded_route(packet).filter(|_| self.options.record_route) {
            text += &show::route(&route, self.last_route.as_deref());
            self.last_route = Some(route);
        }
        text
    }

    fn answered(&mut self, reply: &Reply, told: &Told) -> String {
        if self.options.stepping == Stepping::ByReply {
            self.port = self.port.wrapping_add(1);
        }
        let What::Tcp(seen) = reply.what else { return show::reply(self.options, reply, told) };
        self.last_flags = seen.flags;
        if self.options.sequence_only {
            let before = std::mem::replace(&mut self.last_sequence, seen.sequence);
            return show::sequence(seen.sequence, before);
        }
        show::reply(self.options, reply, told)
    }
}

impl Course for Speaking<'_> {
    fn step(&mut self, now: Nanos) -> Step {
        if self.is_over || self.failed.is_some() {
            return Step::Over;
        }
        match self.series.step(now) {
            Step::Send(mut order) => {
                order.hops = Some(self.hops);
                order.port = Some(self.port);
                order.originate = Some(now_ms());
                let n_sent = self.series.ledger().counts().n_sent;
                order.payload = usize::try_from(n_sent).unwrap_or(0);
                let (seed, destination) = self.chance;
                order.source = self.options.random_source.then(|| random_source(seed ^ n_sent, destination));
                Step::Send(order)
            }
            other => other,
        }
    }

    fn note(&mut self, event: &Event<'_>, at: Nanos) {
        if let Event::Heard(reply, packet) = event {
            return self.heard(reply, packet, at);
        }
        if matches!(event, Event::NoWay(_)) {
            self.failed = Some(io::ErrorKind::NetworkUnreachable.into());
        }
        if matches!(event, Event::Sent(_)) && self.options.stepping == Stepping::ByPacket {
            self.port = self.port.wrapping_add(1);
        }
        self.series.take(event, at);
    }
}

/// The names of TCP services by port, as far as this machine knows them.
pub(super) fn services() -> BTreeMap<u16, String> {
    let text = fs::read_to_string("/etc/services").unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?.parse().ok()?;
        Some((port, name.to_owned()))
    };
    // The first line of a port is its own name, as getservbyport has it.
    text.lines().rev().filter_map(entry).collect()
}

/// Ports of a scan: numbers, ranges, `all`, `known`, and `!` before what is left out again.
pub(super) fn ports(text: &str, services: &BTreeMap<u16, String>) -> Option<Vec<u16>> {
    let mut chosen = vec![false; 1 << 16];
    for part in text.split(',').map(str::trim) {
        let (rest, is_in) = part.strip_prefix('!').map_or((part, true), |rest| (rest, false));
        let range: Vec<u16> = match (rest, rest.split_once('-')) {
            ("all", _) => (0..=u16::MAX).collect(),
            ("known", _) => services.keys().copied().collect(),
            (_, Some((first, last))) => {
                let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
                (first.min(last)..=first.max(last)).collect()
            }
            (port, None) => vec![port.parse().ok()?],
        };
        for port in range {
            chosen[usize::from(port)] = is_in;
        }
    }
    let ports: Vec<u16> = (0..=u16::MAX).filter(|port| chosen[usize::from(*port)]).collect();
    (!ports.is_empty()).then_some(ports)
}

/// A scan that prints each port when it answers.
pub(super) struct Scanning<'a> {
    options: &'a Options,
    scan: PortScan,
    services: &'a BTreeMap<u16, String>,
    pub(super) failed: Option<io::Error>,
}

impl<'a> Scanning<'a> {
    pub(super) fn new(options: &'a Options, scan: Scan, services: &'a BTreeMap<u16, String>) -> Self {
        Self { options, scan: PortScan::new(scan), services, failed: None }
    }

    fn service(&self, port: u16) -> &'a str {
        self.services.get(&port).map_or("", String::as_str)
    }

    pub(super) fn tail(&self) -> String {
        let silent =
            self.scan.ports().iter().filter(|port| matches!(port.state, State::Silent | State::Prohibited(..)));
        let silent: Vec<(u16, &str)> = silent.map(|port| (port.number, self.service(port.number))).collect();
        show::scan_tail(&silent)
    }
}

impl Course for Scanning<'_> {
    fn step(&mut self, now: Nanos) -> Step {
        if self.failed.is_some() { Step::Over } else { self.scan.step(now) }
    }

    fn note(&mut self, event: &Event<'_>, at: Nanos) {
        let Some(port) = self.scan.take(event, at) else { return };
        // Closed ports are shown to those who ask for all replies.
        if (port.state == State::Open || self.options.verbose)
            && let Some(row) = show::scan_row(&port, self.service(port.number))
        {
            print(&row, &mut self.failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_scan_are_added_and_taken_away_in_turn() {
        let services = BTreeMap::from([(22, "ssh".to_owned()), (80, "http".to_owned())]);
        assert_eq!(ports("1-4,!2,known", &services).unwrap(), [1, 3, 4, 22, 80]);
        assert_eq!(ports("4-2", &services).unwrap(), [2, 3, 4]);
        assert_eq!(ports("all", &services).unwrap().len(), 1 << 16);
        assert_eq!(ports("http", &services), None);
    }
}
