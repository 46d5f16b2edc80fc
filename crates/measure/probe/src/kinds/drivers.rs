//! The four probe drivers, and the results that they record.

use fathom_engine::Error;
use fathom_model::{
    Note, Record, Role,
    names::{
        count::{DUPLICATES, HOPS, PATH_MTU, RECEIVED, REORDERED, SENT},
        distribution::ROUND_TRIP,
    },
    probe::{HopRecord, OutageRecord, PathMtuRecord, PortRecord, PortState, ProbeRecord, TooBigRecord},
    record::Timeline,
    units::{Nanos, PerSec},
};
use fathom_sys::clock;

use super::{
    metrics::{CLOSED, FILTERED, LATE, LOST, OPEN, OTHER, REFUSED},
    options::{bounded_span, ports, timeout, unsupported},
    recording_driver::RecordingDriver,
};
use crate::{
    FlowRule, Outage, ProbeEvent, ProbeFields, ProbeKind, ProbeSeries, ProbeStep, ProbeTemplate, ReplyContent,
    Schedule, TcpFlags,
    path_mtu::{PathMtuOptions, PathMtuResult, PathMtuSearch, ReplyLimit},
    port_scan::{PortScan, PortStatus, ScanOptions, ScannedPort},
    route::{RouteOptions, RouteTrace},
};

/// At a shorter interval, probes are a flood.
const INTERVAL_MIN: Nanos = Nanos::from_micros(10);
const INTERVAL_MAX: Nanos = Nanos::from_secs(3600);
/// The gap between two probes of a search: routers limit their ICMP errors.
const GAP: Nanos = Nanos::from_millis(1);

/// Linux reports closed ports once a second (`net.ipv4.icmp_ratelimit`) after a burst of six. Other systems are similar.
const ICMP_ERROR_GAP: Nanos = Nanos::from_millis(1100);

fn probe(record: &mut Record) -> &mut ProbeRecord {
    record.probe.get_or_insert_default()
}

fn count_of(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn option_u8(role: &Role, name: &str) -> u8 {
    role.settings.count(name).and_then(|n| u8::try_from(n).ok()).unwrap_or(1)
}

/// A series of probes.
pub(super) struct SeriesDriver {
    schedule: Schedule,
    outage_probes: u64,
    size: Option<u16>,
    series: ProbeSeries,
    start: Nanos,
    /// The wall-clock start of the trial, since the epoch.
    wall: Nanos,
    last_sent: Nanos,
    /// Whether probes are answered by ICMP errors, at a faster rate than hosts send these.
    is_unanswerable: bool,
}

impl SeriesDriver {
    pub(super) fn new(role: &Role) -> Result<Self, Error> {
        let settings = &role.settings;
        let interval = if settings.flag("flood") {
            Nanos::ZERO
        } else {
            bounded_span(settings, "interval", INTERVAL_MIN..=INTERVAL_MAX)?
        };
        let size = settings.size("size").map(|size| {
            let most = "an IP packet has at most 65,535 bytes";
            u16::try_from(size.0).map_err(|_| unsupported(format!("option `size`: {most}"), "--size 1500"))
        });
        let schedule =
            Schedule { interval, count: settings.count("count"), end: Nanos::MAX, timeout: timeout(settings)? };
        let outage_probes = settings.count("outage-probes").unwrap_or(3);
        Ok(Self {
            schedule,
            outage_probes,
            size: size.transpose()?,
            series: ProbeSeries::new(schedule, outage_probes),
            start: Nanos::ZERO,
            wall: Nanos::ZERO,
            last_sent: Nanos::ZERO,
            is_unanswerable: false,
        })
    }

    fn outage(&self, gap: &Outage) -> OutageRecord {
        let from_ns = gap.from.since(self.start);
        let wall = i128::from((self.wall + from_ns).0);
        OutageRecord {
            from_ns,
            from: jiff::Timestamp::from_nanosecond(wall).map_or_else(|_| "?".to_owned(), |at| format!("{at:.3}")),
            length_ns: gap.until.map(|until| until.since(gap.from)),
            n_probes: gap.n_probes,
        }
    }
}

impl crate::ProbeDriver for SeriesDriver {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        match self.series.step(now) {
            ProbeStep::Send(order) => ProbeStep::Send(ProbeFields { length: order.length.or(self.size), ..order }),
            other => other,
        }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        if matches!(event, ProbeEvent::Sent(_) | ProbeEvent::NoRoute(_)) {
            self.last_sent = at;
        }
        self.series.on_event(event, at);
    }
}

impl RecordingDriver for SeriesDriver {
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, _device_mtu: u16) -> Result<(), Error> {
        // Each TCP or UDP probe is a new client. Echo requests differ only in their sequence numbers.
        conversation.flow = if matches!(conversation.kind, ProbeKind::Tcp(_) | ProbeKind::Udp) {
            FlowRule::PerProbe
        } else {
            FlowRule::Constant
        };
        self.is_unanswerable = conversation.kind == ProbeKind::Udp && self.schedule.interval < Nanos::from_secs(1);
        let least = conversation.shortest();
        match self.size {
            Some(size) if size < least => Err(unsupported(
                format!("option `size`: the headers alone are {least} bytes"),
                format!("--size {least}"),
            )),
            _ => Ok(()),
        }
    }

    fn set_times(&mut self, start: Nanos, end: Nanos) {
        (self.start, self.wall) = (start, clock::wall());
        self.series = ProbeSeries::new(Schedule { end, ..self.schedule }, self.outage_probes);
    }

    fn n_sent(&self) -> u64 {
        self.series.tracker().counts().n_sent
    }

    fn record(&mut self, now: Nanos, record: &mut Record) {
        self.series.finish(now);
        let tracker = self.series.tracker();
        let counts = tracker.counts();
        for (name, n) in [
            (SENT, counts.n_sent),
            (RECEIVED, counts.n_answered + counts.n_late),
            (LOST, counts.n_lost()),
            (LATE, counts.n_late),
            (REFUSED, counts.n_refused),
            (DUPLICATES, counts.n_duplicates),
            (REORDERED, counts.n_reordered),
        ] {
            record.totals.insert(name.to_owned(), n);
        }
        // Rates refer to the time in which probes were sent, without the wait for the last answers. That time includes the
        // interval of the last probe; otherwise a few probes would seem faster than they were.
        let sending = (self.last_sent.since(self.start) + self.schedule.interval).max(Nanos(1));
        let mut timeline = Timeline::of(&[SENT, RECEIVED]);
        timeline.push(sending, &[SENT, RECEIVED], &[counts.n_sent, counts.n_answered + counts.n_late]);
        record.timeline = timeline;
        record.measured_ns = (Nanos::ZERO, sending);
        record.distributions.insert(ROUND_TRIP.to_owned(), tracker.rtts().clone());
        for (complaint, n) in self.series.icmp_errors() {
            record.errors.add(complaint.as_str(), *n);
        }
        let n_too_long = self.series.n_too_long();
        if n_too_long > 0 {
            record.errors.add("longer than the own device takes", n_too_long);
        }
        if self.is_unanswerable && counts.n_lost() > 0 {
            // An apparent outage is the pause of a host that sends one error per second.
            let text = "hosts report closed UDP ports about once a second, so faster probes go unanswered without being \
                        lost: probe with --interval 1.1s, or with --protocol icmp or tcp";
            record.notes.push(Note::new("answers-limited", text));
            return;
        }
        let n_further = tracker.n_further_outages();
        if n_further > 0 {
            let text = format!("{n_further} more outages were counted and not kept");
            record.notes.push(Note::new("outages-cut", text));
        }
        probe(record).outages = tracker.outages().iter().map(|gap| self.outage(gap)).collect();
    }
}

/// A search for the path MTU.
pub(super) struct MtuDriver {
    range: PathMtuOptions,
    search: PathMtuSearch,
    n_sent: u64,
    end: Nanos,
}

impl MtuDriver {
    pub(super) fn new(role: &Role) -> Result<Self, Error> {
        let patience = timeout(&role.settings)?;
        let tries = option_u8(role, "tries");
        let range =
            PathMtuOptions { floor: 0, ceiling: 0, tries, timeout: patience, gap: GAP, reply_limit: ReplyLimit::Free };
        Ok(Self { range, search: PathMtuSearch::new(range), n_sent: 0, end: Nanos::MAX })
    }
}

impl crate::ProbeDriver for MtuDriver {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if now >= self.end { ProbeStep::Done } else { self.search.step(now) }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.n_sent += u64::from(matches!(event, ProbeEvent::Sent(_) | ProbeEvent::NoRoute(_)));
        self.search.on_event(event, at);
    }
}

impl RecordingDriver for MtuDriver {
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, device_mtu: u16) -> Result<(), Error> {
        // RFC 791 and RFC 8200 section 5: every link must accept this length.
        let least = if conversation.destination.is_ipv4() { 68 } else { 1280 };
        self.range.floor = conversation.shortest().max(least);
        self.range.ceiling = device_mtu;
        if conversation.kind == ProbeKind::Udp {
            (self.range.gap, self.range.reply_limit) = (ICMP_ERROR_GAP, ReplyLimit::RateLimited);
        }
        if self.range.floor >= device_mtu {
            let what = format!("the own device takes packets of {device_mtu} bytes only");
            return Err(unsupported(what, "ip link set DEVICE mtu 1500"));
        }
        Ok(())
    }

    fn set_times(&mut self, _start: Nanos, end: Nanos) {
        self.search = PathMtuSearch::new(self.range);
        self.end = end;
    }

    fn n_sent(&self) -> u64 {
        self.n_sent
    }

    fn record(&mut self, now: Nanos, record: &mut Record) {
        let PathMtuResult { mtu, reported: told, black_hole_from: vanishing_from } = self.search.result();
        record.totals.insert(SENT.to_owned(), self.n_sent);
        if now >= self.end {
            record.complete = false;
        }
        if let Some(mtu) = mtu {
            record.totals.insert(PATH_MTU.to_owned(), mtu.into());
        }
        let too_big = told.iter().map(|(from, mtu)| TooBigRecord { from: from.to_string(), mtu_bytes: (*mtu).into() });
        probe(record).path_mtu = Some(PathMtuRecord {
            mtu_bytes: mtu.map(u64::from),
            device_bytes: self.range.ceiling.into(),
            too_big: too_big.collect(),
            vanishing_from_bytes: vanishing_from.map(u64::from),
        });
    }
}

/// A trace of a route.
pub(super) struct RouteDriver {
    search: RouteOptions,
    route: RouteTrace,
    n_sent: u64,
    end: Nanos,
}

impl RouteDriver {
    pub(super) fn new(role: &Role) -> Result<Self, Error> {
        let search = RouteOptions {
            hops_max: option_u8(role, "hops"),
            queries: option_u8(role, "queries"),
            timeout: timeout(&role.settings)?,
            gap: GAP,
            pause: bounded_span(&role.settings, "pause", Nanos::ZERO..=Nanos::from_secs(10))?,
        };
        Ok(Self { search, route: RouteTrace::new(search), n_sent: 0, end: Nanos::MAX })
    }
}

impl crate::ProbeDriver for RouteDriver {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if now >= self.end { ProbeStep::Done } else { self.route.step(now) }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.n_sent += u64::from(matches!(event, ProbeEvent::Sent(_) | ProbeEvent::NoRoute(_)));
        self.route.on_event(event, at);
    }
}

impl RecordingDriver for RouteDriver {
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, _device_mtu: u16) -> Result<(), Error> {
        conversation.flow = FlowRule::Constant;
        Ok(())
    }

    fn set_times(&mut self, _start: Nanos, end: Nanos) {
        self.route = RouteTrace::new(self.search);
        self.end = end;
    }

    fn n_sent(&self) -> u64 {
        self.n_sent
    }

    fn record(&mut self, now: Nanos, record: &mut Record) {
        if now >= self.end {
            record.complete = false;
        }
        let mut rtts = fathom_model::Histogram::new();
        if let Some(n_hops) = self.route.reached() {
            record.totals.insert(HOPS.to_owned(), n_hops.into());
            let last = &self.route.hops()[usize::from(n_hops) - 1];
            last.rtts.iter().for_each(|rtt| rtts.record(rtt.0));
            let (n_sent, n_answered) = (u64::from(last.n_sent), count_of(last.rtts.len()));
            record.totals.insert(SENT.to_owned(), n_sent);
            record.totals.insert(RECEIVED.to_owned(), n_answered);
            record.totals.insert(LOST.to_owned(), n_sent.saturating_sub(n_answered));
        }
        record.distributions.insert(ROUND_TRIP.to_owned(), rtts);
        let hops = self.route.hops().iter().zip(1_u8..).map(|(hop, number)| HopRecord {
            hop: number,
            addresses: hop.addresses.iter().map(ToString::to_string).collect(),
            n_sent: hop.n_sent.into(),
            rtt_ns: hop.rtts.clone(),
            target: hop.is_target,
            complaint: hop.icmp_error.map(|complaint| complaint.to_string()),
        });
        probe(record).hops = hops.collect();
    }
}

pub(super) struct PortScanDriver {
    scan: ScanOptions,
    scan_driver: PortScan,
    /// The state of a port that does not answer.
    silent: PortState,
    end: Nanos,
}

/// The allowed probes per second of a scan: no host must suffer from a scan.
const SCAN_RATE: std::ops::RangeInclusive<f64> = 1.0..=3000.0;

impl PortScanDriver {
    pub(super) fn new(role: &Role) -> Result<Self, Error> {
        let settings = &role.settings;
        let rate = settings.rate("rate").map_or(500.0, PerSec::get);
        if !SCAN_RATE.contains(&rate) {
            return Err(unsupported(
                format!("option `rate` takes 1 to 3000 probes per second, not {rate}"),
                "--rate 500",
            ));
        }
        let scan = ScanOptions {
            ports: ports(&settings.text("ports").unwrap_or_default())?,
            tries: option_u8(role, "tries"),
            timeout: timeout(settings)?,
            gap: PerSec::new(rate).and_then(PerSec::gap).unwrap_or(GAP),
        };
        let is_tcp = settings.text("protocol").as_deref() == Some("tcp");
        let flags = settings.text("flags").unwrap_or_default();
        // A host answers every SYN and every ACK. It ignores a FIN for an open port, and most datagrams.
        let is_answered = is_tcp && ["syn", "ack", "syn-ack"].contains(&flags.as_str());
        let silent = if is_answered { PortState::Filtered } else { PortState::OpenOrFiltered };
        Ok(Self { scan_driver: PortScan::new(scan.clone()), scan, silent, end: Nanos::MAX })
    }
}

impl crate::ProbeDriver for PortScanDriver {
    fn step(&mut self, now: Nanos) -> ProbeStep {
        if now >= self.end { ProbeStep::Done } else { self.scan_driver.step(now) }
    }

    fn on_event(&mut self, event: &ProbeEvent<'_>, at: Nanos) {
        self.scan_driver.on_event(event, at);
    }
}

impl RecordingDriver for PortScanDriver {
    fn adapt_template(&mut self, conversation: &mut ProbeTemplate, _device_mtu: u16) -> Result<(), Error> {
        conversation.flow = FlowRule::PerProbe;
        Ok(())
    }

    fn set_times(&mut self, _start: Nanos, end: Nanos) {
        self.scan_driver = PortScan::new(self.scan.clone());
        self.end = end;
    }

    fn n_sent(&self) -> u64 {
        self.scan_driver.n_sent()
    }

    fn record(&mut self, now: Nanos, record: &mut Record) {
        let ports: Vec<PortRecord> =
            self.scan_driver.ports().iter().map(|port| port_record(port, self.silent)).collect();
        let count = |states: &[PortState]| count_of(ports.iter().filter(|port| states.contains(&port.state)).count());
        for (name, states) in [
            (OPEN, &[PortState::Open][..]),
            (CLOSED, &[PortState::Closed]),
            (FILTERED, &[PortState::Filtered]),
            (OTHER, &[PortState::OpenOrFiltered, PortState::Unfiltered]),
        ] {
            record.totals.insert(name.to_owned(), count(states));
        }
        record.totals.insert(SENT.to_owned(), self.scan_driver.n_sent());
        let mut rtts = fathom_model::Histogram::new();
        self.scan_driver.ports().iter().filter_map(|port| port.rtt).for_each(|rtt| rtts.record(rtt.0));
        record.distributions.insert(ROUND_TRIP.to_owned(), rtts);
        probe(record).ports = ports;
        if now >= self.end {
            record.complete = false;
            let text = "the time was over before all ports had been asked often enough".to_owned();
            record.notes.push(Note::new("ports-unasked", text));
        }
    }
}

fn port_record(port: &ScannedPort, silent: PortState) -> PortRecord {
    let answer = match (port.reply.map(|reply| reply.content), port.state) {
        (_, PortStatus::Prohibited(from, complaint)) => format!("{complaint}, says {from}"),
        (Some(ReplyContent::Tcp(seen)), _) if seen.flags.has(TcpFlags::SYN) => "SYN-ACK".to_owned(),
        (Some(ReplyContent::Tcp(_)), _) => "reset".to_owned(),
        (Some(ReplyContent::Udp { .. }), _) => "datagram".to_owned(),
        (Some(_), _) => "port unreachable".to_owned(),
        (None, _) => "nothing".to_owned(),
    };
    let state = match port.state {
        PortStatus::Open => PortState::Open,
        PortStatus::Closed => PortState::Closed,
        PortStatus::Unfiltered => PortState::Unfiltered,
        PortStatus::Prohibited(..) => PortState::Filtered,
        PortStatus::Silent => silent,
    };
    PortRecord { port: port.number, state, rtt_ns: port.rtt, answer }
}
