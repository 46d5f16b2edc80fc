//! Hand-made runs for tests: two hosts, a few tests, and counters with chosen values.

use std::collections::BTreeMap;

use fathom_model::{
    Better, Confidence, Derivation, Environment, EventRecord, Example, Finding, Histogram, HostRecord, Layer, Link,
    LinkTrial, Metric, Plan, Record, Run, Side, StepRecord, TargetsRecord, TestPlan, Timeline, Trial, TrialTimes, Unit,
    UsersRecord, Visits,
    metric::{MetricName, TargetsValue, UnitAndSense},
    names::{count, distribution, host as counter, tcp},
    plan::HostReach,
    probe::ProbeRecord,
    record::{Flow, FlowSample, Series},
    run::{Host, TestRun},
    search::{CurvePoint, Decision, Ending, LoadCurve, MissReason, Purpose, SearchTrial, Vote},
    units::Nanos,
};

use crate::{AnalysisContext, ClockOffsets, analyze, join_pairs, next_lines::fault_of};

const MS: u64 = 1_000_000;
const INTERVAL_MS: u64 = 50;
const MEASURED_MS: (u64, u64) = (200, 1200);
/// The sample times of the host counters: before, at the start of, at the end of, and after the measured part.
const SAMPLES_MS: [u64; 4] = [100, 200, 1200, 1300];

/// Builds a run and analyzes it.
pub(crate) struct RunBuilder {
    pub(crate) run: Run,
    pub(crate) context: AnalysisContext,
}

pub(crate) fn throughput() -> Metric {
    rate("throughput_bps", "goodput", Unit::BitsPerSec, Side::Responder, count::BYTES_RECEIVED)
}

pub(crate) fn loss() -> Metric {
    let from = Derivation::Missing {
        sent: (Side::Initiator, count::SENT.into()),
        arrived: (Side::Responder, count::RECEIVED.into()),
    };
    Metric { better: Better::Lower, from, ..rate("loss", "loss", Unit::Ratio, Side::Responder, "") }
}

pub(crate) fn p999() -> Metric {
    let distribution = distribution::SERVICE_TIME.into();
    let from = Derivation::Quantile { side: Side::Initiator, distribution, q: 0.999 };
    Metric { better: Better::Lower, from, ..rate("latency_ns_p999", "p99.9", Unit::Nanos, Side::Initiator, "") }
}

fn rate(name: &'static str, title: &'static str, unit: Unit, side: Side, counter: &'static str) -> Metric {
    Metric {
        name: name.into(),
        title: title.into(),
        unit,
        better: Better::Higher,
        source: "RFC 6349 section 4.1.1".into(),
        from: Derivation::Rate { side, counter: counter.into() },
        inapplicable: None,
    }
}

/// A step that `n_reached` users reached and `n_failed` failed, all in one way. The others took 1, 2, 3, … times `nanos`.
pub(crate) fn step(name: &str, (n_reached, n_failed): (u64, u64), nanos: u64) -> StepRecord {
    let mut times = Histogram::new();
    (1..=n_reached - n_failed).for_each(|value| times.record(value * nanos));
    let cause = "status 500, expected 200".to_owned();
    let example = Example {
        cause: cause.clone(),
        at_ns: Nanos::from_millis(700),
        request: format!("GET /{name} HTTP/1.1"),
        answer: "HTTP/1.1 500 Internal Server Error".to_owned(),
    };
    StepRecord {
        name: name.to_owned(),
        n_reached,
        n_passed: n_reached - n_failed,
        errors: if n_failed > 0 { [(cause, n_failed)].into() } else { BTreeMap::new() },
        examples: if n_failed > 0 { vec![example] } else { Vec::new() },
        times,
        ..StepRecord::default()
    }
}

/// Users of whom `n_begun` began in the measured part and `n_gave_up` gave up.
pub(crate) fn visits((n_begun, n_gave_up): (u64, u64), steps: Vec<StepRecord>) -> UsersRecord {
    let measured = Visits { n_begun, n_gave_up, n_finished: n_begun - n_gave_up };
    UsersRecord {
        n_started: n_begun + 100,
        n_finished: n_begun,
        n_gave_up,
        n_most: 30,
        measured: Some(measured),
        steps,
        promises: Vec::new(),
    }
}

/// A record of a trial that began at ten seconds on the clock.
pub(crate) fn record(side: Side) -> Record {
    Record {
        start_ns: Nanos::from_secs(10),
        measured_ns: (Nanos(MEASURED_MS.0 * MS), Nanos(MEASURED_MS.1 * MS)),
        cpu_ns: Nanos(100 * MS),
        ..Record::empty(side)
    }
}

fn counting(side: Side, name: &str, per_second: u64) -> Record {
    let mut timeline = Timeline::of(&[name]);
    for interval in 1..=MEASURED_MS.1 / INTERVAL_MS {
        let growth = per_second * INTERVAL_MS / 1000;
        timeline.push(Nanos(interval * INTERVAL_MS * MS), &[name], &[growth]);
    }
    Record { timeline, totals: [(name.to_owned(), per_second)].into(), ..record(side) }
}

fn trial(round: usize, client: Record, target: Record) -> Trial {
    let at_ns = SAMPLES_MS.map(|ms| Nanos::from_secs(10) + Nanos(ms * MS)).to_vec();
    let host = HostRecord { at_ns, ..HostRecord::default() };
    Trial {
        round: u32::try_from(round).unwrap(),
        records: [("client".to_owned(), client), ("target".to_owned(), target)].into(),
        hosts: [("client".to_owned(), host.clone()), ("target".to_owned(), host)].into(),
        events: Vec::new(),
        start_skew_ns: Nanos::ZERO,
        links: Vec::new(),
        lost: Vec::new(),
    }
}

impl RunBuilder {
    pub(crate) fn new() -> Self {
        let host = |address: &str| Host {
            address: Some(address.to_owned()),
            interface: Some("eth0".to_owned()),
            ..Host::default()
        };
        let tls = |address: &str| HostReach::Tls { address: address.to_owned(), key: None, data: None };
        let hosts = [("client".to_owned(), tls("10.0.0.1:7700")), ("target".to_owned(), tls("10.0.0.2:7700"))].into();
        let plan = Plan { hosts, ..Plan::new("a story", Vec::new()) };
        let run = Run {
            command: "fathom tcp 198.18.0.2".to_owned(),
            hosts: [("client".to_owned(), host("198.18.0.1")), ("target".to_owned(), host("198.18.0.2"))].into(),
            ..Run::new(plan)
        };
        Self { run, context: AnalysisContext::default() }
    }

    fn add_test(&mut self, layer: Layer, kind: &str, metrics: &[Metric], trials: Vec<Trial>) -> &mut TestRun {
        self.context.metrics.insert(kind.to_owned(), metrics.to_vec());
        self.run.tests.push(TestRun {
            from: "client".to_owned(),
            to: Some("target".to_owned()),
            trials,
            ..TestRun::new(layer, kind)
        });
        self.run.tests.last_mut().unwrap()
    }

    /// Adds a stream with this many bytes per second in each trial.
    pub(crate) fn tcp_stream(&mut self, bytes_per_sec: &[u64]) {
        let trials = bytes_per_sec.iter().enumerate().map(|(round, rate)| {
            let sender = counting(Side::Initiator, count::BYTES_SENT, *rate);
            trial(round, sender, counting(Side::Responder, count::BYTES_RECEIVED, *rate))
        });
        let trials = trials.collect();
        self.add_test(Layer::Tcp, "tcp_stream", &[throughput()], trials);
    }

    /// Adds a stream with a server of another tool, in either direction: its host is none of the run.
    pub(crate) fn foreign_stream(&mut self, bytes_per_sec: u64) {
        let client = counting(Side::Initiator, count::BYTES_MOVED, bytes_per_sec);
        let mut trial = trial(0, client, record(Side::Responder));
        trial.records.remove("target");
        trial.hosts.remove("target");
        let goodput = rate("throughput_bps", "goodput", Unit::BitsPerSec, Side::Initiator, count::BYTES_MOVED);
        self.add_test(Layer::Tcp, "iperf3", &[goodput], vec![trial]).to = None;
    }

    /// Adds a test of datagrams, sent and received, in each trial.
    pub(crate) fn udp_stream(&mut self, datagrams: &[(u64, u64)]) {
        let trials = datagrams.iter().enumerate().map(|(round, (sent, received))| {
            let sender = counting(Side::Initiator, count::SENT, *sent);
            trial(round, sender, counting(Side::Responder, count::RECEIVED, *received))
        });
        let rate = rate("packets_pps", "rate", Unit::FramesPerSec, Side::Responder, count::RECEIVED);
        let trials = trials.collect();
        self.add_test(Layer::Udp, "udp_stream", &[rate, loss()], trials);
    }

    /// Adds a stream from companions to the target, each with its bytes per second in each trial.
    pub(crate) fn star(&mut self, companions: &[(&str, &[u64])]) {
        let n_trials = companions[0].1.len();
        let link_trial = |(from, rates): &(&str, &[u64]), round: usize| LinkTrial {
            from: (*from).to_owned(),
            to: Some("target".to_owned()),
            records: [
                ((*from).to_owned(), counting(Side::Initiator, count::BYTES_SENT, rates[round])),
                ("target".to_owned(), counting(Side::Responder, count::BYTES_RECEIVED, rates[round])),
            ]
            .into(),
        };
        let mut trials: Vec<Trial> = (0..n_trials)
            .map(|round| Trial {
                links: companions.iter().map(|companion| link_trial(companion, round)).collect(),
                ..trial(round, record(Side::Initiator), record(Side::Responder))
            })
            .collect();
        for one in &mut trials {
            let watched = one.hosts["target"].clone();
            one.hosts.extend(companions.iter().map(|(host, _)| ((*host).to_owned(), watched.clone())));
            one.hosts.remove("client");
            join_pairs(one, ("companions", Some("target")), &ClockOffsets::new(), &[]);
        }
        for (host, _) in companions {
            self.run.hosts.insert((*host).to_owned(), self.run.hosts["client"].clone());
        }
        let test = self.add_test(Layer::Tcp, "tcp_stream", &[throughput()], trials);
        test.from = "companions".to_owned();
        let link =
            |(host, _): &(&str, _)| Link { from: (*host).to_owned(), to: Some("target".to_owned()), ..Link::default() };
        test.links = companions.iter().map(link).collect();
    }

    /// Adds the last test to the plan; with `each`, every pair gets the whole of its totals.
    pub(crate) fn plan_last_test(&mut self, each: bool) {
        let test = self.run.tests.last().unwrap();
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        self.run.plan.tests.push(TestPlan {
            name: test.name.clone(),
            to: test.to.clone(),
            each,
            options: test.options.clone(),
            ..TestPlan::new(&test.kind, times, &test.from)
        });
    }

    /// Loses a companion of the last test, in a round.
    pub(crate) fn lose(&mut self, companion: &str, round: usize) {
        let trial = &mut self.run.tests.last_mut().unwrap().trials[round];
        trial.lost.push(companion.to_owned());
        let link = trial.links.iter_mut().find(|link| link.from == companion).unwrap();
        link.records.remove(companion);
        join_pairs(trial, ("companions", Some("target")), &ClockOffsets::new(), &[]);
    }

    /// Adds the reverse direction of the last test, to run together with it, in one trial with these sent and received counts.
    pub(crate) fn add_reverse(&mut self, (sent, received): (u64, u64)) {
        let there = self.run.tests.last().unwrap();
        let sender = counting(Side::Initiator, count::SENT, sent);
        let trial = trial(0, counting(Side::Responder, count::RECEIVED, received), sender);
        let back = TestRun {
            name: "back".to_owned(),
            from: "target".to_owned(),
            to: Some("client".to_owned()),
            trials: vec![trial],
            ..there.clone()
        };
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        self.run.plan.tests.push(TestPlan {
            name: back.name.clone(),
            to: back.to.clone(),
            paired_with: Some(there.name.clone()),
            options: back.options.clone(),
            ..TestPlan::new(&back.kind, times, &back.from)
        });
        self.run.tests.push(back);
    }

    /// Adds a test of probes, sent and answered, with their other results.
    pub(crate) fn probed(&mut self, (sent, answered): (u64, u64), probe: ProbeRecord) {
        let totals =
            [(count::SENT, sent), (count::RECEIVED, answered), ("lost", sent - answered), (count::REORDERED, 0)];
        let totals = totals.map(|(name, n)| (name.to_owned(), n)).into();
        let asks = Record { totals, probe: Some(probe), ..record(Side::Initiator) };
        let lost = Derivation::proportion((Side::Initiator, "lost"), (Side::Initiator, count::SENT));
        let metric =
            Metric::of(MetricName("loss_ratio", "lost"), UnitAndSense(Unit::Ratio, Better::Lower), "RFC 6673", lost);
        let trial = trial(0, asks, record(Side::Responder));
        self.add_test(Layer::Path, "probe", &[metric], vec![trial]);
    }

    /// Divides the last test of probes among pairs of hosts, each with its probes sent and answered and its other results.
    pub(crate) fn probed_by(&mut self, pairs: &[(&str, &str, (u64, u64), ProbeRecord)]) {
        self.probed((0, 0), ProbeRecord::default());
        let test = self.run.tests.last_mut().unwrap();
        let link_trial = |(from, to, (sent, answered), probe): &(&str, &str, (u64, u64), ProbeRecord)| {
            let totals = [(count::SENT, *sent), (count::RECEIVED, *answered), ("lost", sent - answered)];
            let totals = totals.map(|(name, n)| (name.to_owned(), n)).into();
            let probe = ProbeRecord { target: format!("address of {to}"), ..probe.clone() };
            let asks = Record { totals, probe: Some(probe), ..record(Side::Initiator) };
            let records = [((*from).to_owned(), asks), (format!("{to}/responder"), record(Side::Responder))].into();
            LinkTrial { from: (*from).to_owned(), to: Some((*to).to_owned()), records }
        };
        test.trials[0].links = pairs.iter().map(link_trial).collect();
        join_pairs(&mut test.trials[0], ("all", Some("all")), &ClockOffsets::new(), &[]);
        let link = |(from, to, ..): &(&str, &str, _, _)| Link {
            from: (*from).to_owned(),
            to: Some((*to).to_owned()),
            ..Link::default()
        };
        test.links = pairs.iter().map(link).collect();
        (test.from, test.to) = ("all".to_owned(), Some("all".to_owned()));
    }

    /// Adds a test about targets with what answered and what happened.
    pub(crate) fn targets(&mut self, targets: TargetsRecord, events: Vec<EventRecord>) {
        let asks = Record { targets: Some(targets), ..record(Side::Initiator) };
        let from = Derivation::Targets { of: TargetsValue::ChiSquareP };
        let sense = UnitAndSense(Unit::Ratio, Better::Neither);
        let metric = Metric::of(MetricName("chi_square_p", "p"), sense, "docs/methods/spread.md", from);
        let trial = Trial { events, ..trial(0, asks, record(Side::Responder)) };
        self.add_test(Layer::Tcp, "tcp_spread", &[metric], vec![trial]);
    }

    /// Turns the last test into a search with the objective of at most 0.1 % loss: 4,000 per second keep it and 4,100 do not.
    pub(crate) fn search(&mut self, ending: Ending, cause: MissReason) {
        let trial = |n: u32, offered: f64, vote: Vote| SearchTrial {
            n,
            purpose: Purpose::Confirm,
            sent: Some(offered),
            achieved: Some(offered - f64::from(n % 3)),
            value: Some(0.0),
            // The response time of a queue that serves 4,200 per second.
            median_ns: Some(1e9 / (4_200.0 - offered)),
            vote,
            took_ns: Nanos::from_secs(1),
        };
        let point = |offered: f64, votes: [Vote; 3]| CurvePoint {
            offered,
            decision: Decision::Undecided,
            cause: None,
            achieved: None,
            value: None,
            median_ns: None,
            trials: (0..).zip(votes).map(|(n, vote)| trial(n, offered, vote)).collect(),
        };
        let (kept, broken) = (Vote::Kept, Vote::Broken(cause));
        let sure = (ending == Ending::Found).then_some(Confidence { low: 4e3, high: 4.1e3, level: 0.95, n_trials: 12 });
        self.run.tests.last_mut().unwrap().curve = Some(LoadCurve {
            objective: "loss <= 0.1%".to_owned(),
            metric: "loss".to_owned(),
            bound: 0.001,
            option: "pps".to_owned(),
            unit: Unit::FramesPerSec,
            ending,
            kept: Some(4_000.0),
            broken: Some(4_100.0),
            confidence: sure,
            knee: None,
            points: vec![
                point(1_000.0, [kept, kept, kept]),
                point(2_000.0, [kept, kept, kept]),
                point(4_000.0, [kept, broken, kept]),
                point(4_050.0, [kept, broken, broken]),
                point(4_100.0, [broken, broken, broken]),
            ],
        });
    }

    /// Adds one trial of requests over this many connections.
    pub(crate) fn http(&mut self, per_second: u64, connections: u64) {
        let client = counting(Side::Initiator, count::REQUESTS, per_second);
        let rate = rate("requests_per_sec", "rate", Unit::RequestsPerSec, Side::Initiator, count::REQUESTS);
        let test = self.add_test(Layer::Http, "http", &[rate], vec![trial(0, client, record(Side::Responder))]);
        test.options.set("connections", connections.to_string());
    }

    /// Adds one trial of transactions over this many flows.
    pub(crate) fn tcp_rr(&mut self, per_second: u64, flows: u64) {
        let client = counting(Side::Initiator, count::TRANSACTIONS, per_second);
        let rate = rate("transactions_per_sec", "rate", Unit::PerSec, Side::Initiator, count::TRANSACTIONS);
        let test = self.add_test(Layer::Tcp, "tcp_rr", &[rate], vec![trial(0, client, record(Side::Responder))]);
        test.options.set("flows", flows.to_string());
    }

    /// Adds a test of probes. In each trial, half took the first time and half the second, in nanoseconds.
    pub(crate) fn probes(&mut self, trials: &[(u64, u64)]) {
        let quantile = |name: &'static str, q| Metric {
            better: Better::Lower,
            from: Derivation::quantile(Side::Initiator, distribution::RESPONSE_TIME, q),
            ..rate(name, name, Unit::Nanos, Side::Initiator, "")
        };
        let of_trial = |(round, (half, other)): (usize, &(u64, u64))| {
            let mut times = Histogram::new();
            (0..500).for_each(|_| times.record(*half));
            (0..500).for_each(|_| times.record(*other));
            let mut client = record(Side::Initiator);
            client.distributions.insert(distribution::RESPONSE_TIME.to_owned(), times);
            trial(round, client, record(Side::Responder))
        };
        let trials = trials.iter().enumerate().map(of_trial).collect();
        let metrics = [quantile("latency_ns_p50", 0.5), quantile("latency_ns_p99", 0.99)];
        self.add_test(Layer::Tcp, "tcp_loaded", &metrics, trials);
    }

    /// Adds users of a script with their actions in each trial, at a thousand requests per second.
    pub(crate) fn users(&mut self, trials: &[UsersRecord]) {
        let rate = rate("requests_per_sec", "rate", Unit::RequestsPerSec, Side::Initiator, count::REQUESTS);
        let of_trial = |(round, users): (usize, &UsersRecord)| {
            let client = Record { users: Some(users.clone()), ..counting(Side::Initiator, count::REQUESTS, 1_000) };
            trial(round, client, record(Side::Responder))
        };
        let trials = trials.iter().enumerate().map(of_trial).collect();
        self.add_test(Layer::App, "shop", &[rate], trials);
    }

    /// Sets the samples of a counter of a host in every trial so far; a single one is the same in all samples.
    pub(crate) fn series(&mut self, host: &str, (name, of): (&str, &str), values: &[u64]) {
        for trial in self.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
            let series = &mut trial.hosts.get_mut(host).unwrap().series;
            series.retain(|series| (series.name.as_str(), series.of.as_str()) != (name, of));
            series.push(Series { name: name.to_owned(), of: of.to_owned(), values: values.to_vec() });
        }
    }

    /// Adds a host counter that grew by this much in every trial so far.
    pub(crate) fn host_counter(&mut self, host: &str, counter: (&str, &str), growth: u64) {
        self.series(host, counter, &[7, 7, 7 + growth, 7 + growth]);
    }

    /// Adds a stream whose receiver offers a window of this size all the time, each round trip of 27 µs of which carries up to 4.5 KiB, and
    /// further values of its connection.
    pub(crate) fn windowed_stream(&mut self, wnd: u64, further: &[(&str, u64)]) {
        self.tcp_stream(&[1000]);
        let values = [
            (tcp::BUSY_NS, 2_000_000_000),
            (tcp::BYTES_ACKED, (wnd * 30_000).clamp(135_000_000, 2_000_000_000)),
            (tcp::RTT_NS, 27_000),
            (tcp::SND_WND_BYTES, wnd),
            (tcp::CWND_SEGMENTS, 146),
            (tcp::SND_MSS_BYTES, 1448),
        ];
        let of = |share: u64| {
            let scaled = |(name, value): (&str, u64)| {
                (name.to_owned(), if name == tcp::BYTES_ACKED { value * share } else { value })
            };
            values.into_iter().chain(further.iter().copied()).map(scaled).collect()
        };
        let at = |ms: u64, values| FlowSample { at_ns: Nanos::from_millis(ms), values };
        let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![at(200, of(0)), at(1200, of(1))] };
        self.run.tests[0].trials[0].records.get_mut("client").unwrap().flows = vec![flow];
        self.cpu("client", "cpu0", [40, 59, 0, 0]);
    }

    /// Adds a stream of a second whose ends count its segments: of 100,000 of its sender, 4,000 of them sent again, and of 5,000 ACKs, so many arrived.
    pub(crate) fn counted_stream(&mut self, (n_arrived, n_acks_arrived): (u64, u64)) {
        self.tcp_stream(&[125_000_000]);
        let of_sender = [
            (tcp::SEGMENTS_OUT, 100_000),
            (tcp::SEGMENTS_IN, n_acks_arrived),
            (tcp::RETRANS_TOTAL, 4_000),
            (tcp::BYTES_SENT, 1_010_000),
            (tcp::BYTES_RETRANS, 10_000),
            (tcp::BYTES_RECEIVED, 0),
        ];
        // The end of a stream counts as a byte where it arrives.
        let of_receiver = [
            (tcp::SEGMENTS_OUT, 5_000),
            (tcp::SEGMENTS_IN, n_arrived),
            (tcp::RETRANS_TOTAL, 0),
            (tcp::BYTES_SENT, 0),
            (tcp::BYTES_RETRANS, 0),
            (tcp::BYTES_RECEIVED, 1_000_001),
        ];
        let records = &mut self.run.tests[0].trials[0].records;
        for (host, id, values) in [("client", "a:1 b:2", of_sender), ("target", "b:2 a:1", of_receiver)] {
            let values = values.map(|(name, value)| (name.to_owned(), value)).into();
            let samples = vec![FlowSample { at_ns: Nanos::from_secs(1), values }];
            records.get_mut(host).unwrap().flows = vec![Flow { id: id.to_owned(), samples }];
        }
    }

    /// Sets the share of the measured time in which a time of a host grew in every trial so far, in percent.
    pub(crate) fn spent(&mut self, host: &str, counter: (&str, &str), percent: u64) {
        let grown = percent * (SAMPLES_MS[2] - SAMPLES_MS[1]) * MS / 100;
        self.series(host, counter, &[0, 0, grown, grown]);
    }

    /// Sets how a core spent its time in every trial so far: user, system, softirq and irq, in percent.
    pub(crate) fn cpu(&mut self, host: &str, core: &str, percent: [u64; 4]) {
        let idle = 100 - percent.iter().sum::<u64>();
        let names = [counter::CPU_USER_NS, counter::CPU_SYSTEM_NS, counter::CPU_SOFTIRQ_NS, counter::CPU_IRQ_NS];
        let states = names.into_iter().zip(percent).chain([(counter::CPU_IDLE_NS, idle), (counter::CPU_STEAL_NS, 0)]);
        for (name, percent) in states {
            // Outside the measured part the core is always idle.
            let worked = percent * (SAMPLES_MS[2] - SAMPLES_MS[1]) * MS / 100;
            let beside = if name == counter::CPU_IDLE_NS { 100 * MS } else { 0 };
            self.series(host, (name, core), &[0, beside, beside + worked, 2 * beside + worked]);
        }
    }

    /// Sets the CPU time of a host's threads in the measured second, by core, in milliseconds, in every trial so far.
    pub(crate) fn own_cpu(&mut self, host: &str, by_core: &[(&str, u64)]) {
        for trial in self.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
            let used = by_core.iter().map(|(core, ms)| ((*core).to_owned(), Nanos::from_millis(*ms)));
            trial.records.get_mut(host).unwrap().cpu_ns_by_core = used.collect();
        }
    }

    /// Adds a core that works for a tenth of a second, and is idle except for the stolen time.
    pub(crate) fn steal(&mut self, host: &str, time: Nanos) {
        self.series(host, (counter::CPU_STEAL_NS, "cpu3"), &[0, 0, time.0, time.0]);
        self.series(host, (counter::CPU_SOFTIRQ_NS, "cpu3"), &[0, 0, 100 * MS, 100 * MS]);
        self.series(host, (counter::CPU_IDLE_NS, "cpu3"), &[0, 0, 900 * MS - time.0, 900 * MS - time.0]);
    }

    /// Compares the stream with the ideal of its window in bits per second.
    pub(crate) fn ideal(&mut self, bits_per_sec: u64) {
        let from = Derivation::total(Side::Initiator, "ideal_at_window_bps");
        let of = rate("ideal_bps", "ideal at this window", Unit::BitsPerSec, Side::Initiator, "");
        let ideal = Metric { better: Better::Neither, from, ..of };
        self.context.metrics.get_mut("tcp_stream").unwrap().push(ideal);
        self.total("client", "ideal_at_window_bps", bits_per_sec);
    }

    /// Sets a total of a host's record in every trial so far.
    pub(crate) fn total(&mut self, host: &str, name: &str, value: u64) {
        for trial in self.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
            trial.records.get_mut(host).unwrap().totals.insert(name.to_owned(), value);
        }
    }

    /// Sets the growth of the stream in each interval, where it is received or moved, in every trial so far.
    pub(crate) fn growth_per_interval(&mut self, growth: impl Fn(u64) -> u64) {
        for trial in self.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
            let all = trial.records.values_mut().flat_map(|record| &mut record.timeline.counters);
            let is_of_stream = |name: &str| [count::BYTES_RECEIVED, count::BYTES_MOVED].contains(&name);
            for (_, column) in all.filter(|(name, _)| is_of_stream(name)) {
                for (interval, value) in (0..).zip(column) {
                    *value = growth(interval);
                }
            }
        }
    }

    fn note(&mut self, name: &str, value: &str) {
        for host in self.run.hosts.values_mut() {
            Environment::note(&mut host.environment, "eth0", name, value);
        }
    }

    /// Gives both hosts a real device with this speed.
    pub(crate) fn wire(&mut self, speed_bps: &str, mtu_bytes: &str) {
        self.note("speed_bps", speed_bps);
        self.note("mtu_bytes", mtu_bytes);
        self.driver("ice");
    }

    /// Sets the driver of both hosts' devices.
    pub(crate) fn driver(&mut self, name: &str) {
        self.note("driver", name);
    }

    /// Puts a device with two interfaces between the hosts in every trial so far, connected to them through memory.
    pub(crate) fn device_between(&mut self, name: &str) {
        let device =
            Host { interface: Some("eth0".to_owned()), further_interfaces: vec!["eth1".to_owned()], ..Host::default() };
        self.run.hosts.insert(name.to_owned(), device);
        self.run.plan.via = Some(name.to_owned());
        self.driver("veth");
        for trial in self.run.tests.iter_mut().flat_map(|test| &mut test.trials) {
            let seen = HostRecord { series: Vec::new(), ..trial.hosts["client"].clone() };
            trial.hosts.insert(name.to_owned(), seen);
        }
    }

    /// Makes both hosts namespaces of one machine.
    pub(crate) fn one_machine(&mut self) {
        for (name, reach) in &mut self.run.plan.hosts {
            *reach = HostReach::Lab(name.clone());
        }
    }

    /// Returns the analyzed run. The command of each of its findings is checked.
    pub(crate) fn analyzed(&self) -> Run {
        let mut run = self.run.clone();
        analyze(&mut run, &self.context);
        let commands = run.findings.iter().filter_map(|finding| Some(&finding.next.as_ref()?.command));
        let faults: Vec<String> = commands.filter_map(|command| fault_of(command)).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        run
    }

    /// Returns the first finding with this id.
    pub(crate) fn finding(&self, id: &str) -> Option<Finding> {
        self.analyzed().findings.into_iter().find(|finding| finding.id == id)
    }
}
