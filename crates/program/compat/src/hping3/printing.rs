//! Probe sequences that print each reply when it arrives.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, Ipv4Addr},
};

use fathom_model::units::Nanos;
use fathom_probe::{
    IcmpErrorKind, ProbeDriver, ProbeEvent, ProbeOutcome, ProbeSeries, ProbeStep, ProbeTemplate, Reply, ReplyContent,
    Schedule, TcpFlags,
    port_scan::{PortScan, PortStatus, ScanOptions},
    random_source, recorded_route,
};
use fathom_sys::clock;

use super::{
    super::closed_loop,
    LAST_REPLY_TIMEOUT,
    options::{Mode, Options, PortStep},
    show::{self, ReplyContext, RttStats},
};

/// A series of packets that is sent and displayed like hping3's.
pub(super) struct PrintingSeries<'a> {
    options: &'a Options,
    series: ProbeSeries,
    hops: u8,
    port: u16,
    rtt: RttStats,
    last_id: Option<u16>,
    last_sequence: u32,
    last_route: Option<Vec<Ipv4Addr>>,
    /// The seed of random source addresses, and the destination.
    random_source: (u64, IpAddr),
    is_over: bool,
    pub(super) n_received: u64,
    pub(super) last_flags: TcpFlags,
    /// The error that prevents further output.
    pub(super) failed: Option<io::Error>,
}

/// The number of milliseconds per day.
const DAY_MS: u64 = 24 * 3600 * 1000;

fn now_ms() -> u32 {
    u32::try_from(clock::wall().0 / 1_000_000 % DAY_MS).expect("a day has fewer than 2^32 milliseconds")
}

fn print(text: &str, failed: &mut Option<io::Error>) {
    if let Err(error) = closed_loop::print_now(text) {
        *failed = Some(error.downcast().unwrap_or_else(io::Error::other));
    }
}

impl<'a> PrintingSeries<'a> {
    pub(super) fn new(options: &'a Options, conversation: &ProbeTemplate, end: Nanos) -> Self {
        let interval = if options.flood { Nanos::ZERO } else { options.interval };
        let schedule = Schedule { interval, count: options.count, end, timeout: LAST_REPLY_TIMEOUT };
        Self {
            options,
            // hping3 does not report outages.
            series: ProbeSeries::new(schedule, u64::MAX),
            hops: conversation.ip.hops,
            port: options.port,
            rtt: RttStats::default(),
            last_id: None,
            last_sequence: 0,
            last_route: None,
            random_source: (u64::from(conversation.secret) << 32, conversation.destination),
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
        let n_sent = self.series.tracker().counts().n_sent;
        show::tail(&self.options.host, (n_sent, self.n_received), &self.rtt)
    }

    /// Formats the identification, or its distance from the previous one.
    fn id(&mut self, reply: &Reply) -> String {
        let id = reply.ip.identification.unwrap_or(0);
        let before = self.last_id.replace(id);
        match before {
            Some(before) if self.options.relative_id => format!("+{}", id.wrapping_sub(before)),
            _ => id.to_string(),
        }
    }

    fn on_reply(&mut self, reply: &Reply, packet: &[u8], at: Nanos) {
        let tag = reply.tag.or_else(|| self.series.tracker().oldest_waiting());
        let sent = tag.and_then(|tag| self.series.tracker().sent_at(tag));
        let fate = self.series.on_event_with_outcome(&ProbeEvent::Reply(reply, packet), at);
        let (Some(tag), Some(sent)) = (tag, sent) else { return };
        self.n_received += 1;
        let rtt_ms = at.since(sent).as_secs_f64() * 1e3;
        let is_quiet = self.options.quiet || self.options.flood;
        let mut told = ReplyContext {
            number: self.series.tracker().number(tag).unwrap_or(0),
            rtt_ms,
            is_duplicate: matches!(fate, Some(ProbeOutcome::Duplicate(_))),
            id: String::new(),
            now_ms: now_ms(),
        };
        let text = if let ReplyContent::Error(trouble) = reply.content {
            told.id = self.hops.to_string();
            let is_hop = self.options.traceroute && trouble.error_kind == IcmpErrorKind::HopsExceeded;
            let is_asked = self.options.mode == Mode::Udp && trouble.error_kind == IcmpErrorKind::PortUnreachable;
            if is_asked || is_hop && !self.options.without_hop_rtt {
                self.rtt.add(rtt_ms);
            }
            let text = show::icmp_error(self.options, reply, &trouble, &told);
            if is_hop && !self.options.keep_ttl {
                self.hops = self.hops.saturating_add(1);
            }
            text
        } else {
            self.rtt.add(rtt_ms);
            told.id = self.id(reply);
            self.reply_text(reply, &told)
        };
        if reply.is_from_target && self.options.traceroute && self.options.stops_at_host {
            self.is_over = true;
        }
        if !is_quiet {
            let bell = if self.options.beep { "\u{7}" } else { "" };
            let beside = self.dump_and_route(packet);
            print(&format!("{bell}{text}{beside}"), &mut self.failed);
        }
    }

    /// Formats the packet itself and its recorded route, if requested.
    fn dump_and_route(&mut self, packet: &[u8]) -> String {
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

    fn reply_text(&mut self, reply: &Reply, told: &ReplyContext) -> String {
        if self.options.stepping == PortStep::ByReply {
            self.port = self.port.wrapping_add(1);
        }
        let ReplyContent::Tcp(seen) = reply.content else { return show::reply(self.options, reply, told) };
        self.last_flags = seen.flags;
        if self.options.sequence_only {
            let before = std::mem::replace(&mut self.last_sequence, seen.sequence);
            return show::sequence(seen.sequence, before);
        }
        show::reply(self.options, reply, told)
    }
}

impl ProbeDriver for PrintingSeries<'_> {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if self.is_over || self.failed.is_some() {
            return ProbeStep::Done;
        }
        match self.series.step(now) {
            ProbeStep::Send(mut order) => {
                order.hops = Some(self.hops);
                order.port = Some(self.port);
                order.originate = Some(now_ms());
                let n_sent = self.series.tracker().counts().n_sent;
                order.payload = usize::try_from(n_sent).unwrap_or(0);
                let (seed, destination) = self.random_source;
                order.source = self.options.random_source.then(|| random_source(seed ^ n_sent, destination));
                ProbeStep::Send(order)
            }
            other => other,
        }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        if let ProbeEvent::Reply(reply, packet) = event {
            return self.on_reply(reply, packet, at);
        }
        if matches!(event, ProbeEvent::NoRoute(_)) {
            self.failed = Some(io::ErrorKind::NetworkUnreachable.into());
        }
        if matches!(event, ProbeEvent::Sent(_)) && self.options.stepping == PortStep::ByPacket {
            self.port = self.port.wrapping_add(1);
        }
        self.series.on_event_with_outcome(event, at);
    }
}

/// Returns the names of TCP services by port, as far as this machine knows them.
pub(super) fn services() -> BTreeMap<u16, String> {
    let text = fs::read_to_string("/etc/services").unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split('#').next()?.split_whitespace();
        let name = words.next()?;
        let port = words.next()?.strip_suffix("/tcp")?.parse().ok()?;
        Some((port, name.to_owned()))
    };
    // The first line of a port wins, as in getservbyport.
    text.lines().rev().filter_map(entry).collect()
}

/// Parses the ports of a scan: numbers, ranges, `all`, `known`, and `!` for exclusions.
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
pub(super) struct PrintingScan<'a> {
    options: &'a Options,
    scan: PortScan,
    services: &'a BTreeMap<u16, String>,
    pub(super) failed: Option<io::Error>,
}

impl<'a> PrintingScan<'a> {
    pub(super) fn new(options: &'a Options, scan: ScanOptions, services: &'a BTreeMap<u16, String>) -> Self {
        Self { options, scan: PortScan::new(scan), services, failed: None }
    }

    fn service(&self, port: u16) -> &'a str {
        self.services.get(&port).map_or("", String::as_str)
    }

    pub(super) fn tail(&self) -> String {
        let silent = self
            .scan
            .ports()
            .iter()
            .filter(|port| matches!(port.state, PortStatus::Silent | PortStatus::Prohibited(..)));
        let silent: Vec<(u16, &str)> = silent.map(|port| (port.number, self.service(port.number))).collect();
        show::scan_tail(&silent)
    }
}

impl ProbeDriver for PrintingScan<'_> {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if self.failed.is_some() { ProbeStep::Done } else { self.scan.step(now) }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        let Some(port) = self.scan.on_event_with_port(event, at) else { return };
        // Closed ports are shown only if all replies were requested.
        if (port.state == PortStatus::Open || self.options.verbose)
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
