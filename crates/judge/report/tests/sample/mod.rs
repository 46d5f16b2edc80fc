//! A run with all cases that a report must handle. The figures are invented but realistic.

use std::collections::BTreeMap;

use fathom_model::{
    Anatomy, AnatomyPart, Benchmark, Better, Confidence, Conservation, Derivation, Environment, Evidence, Example,
    FailureCounts, Finding, Histogram, HostRecord, Layer, Limit, LimitKind, Metric, NextStep, NoCause, Note, Part,
    Plan, Record, Run, Severity, Side, StepKind, StepRecord, Summary, TestPlan, TestRun, TimeDivision, TimeOwner,
    TimeShare, TimeUse, Timeline, Trial, TrialTimes, Unit, UsersRecord, Verdict, VerdictState, Visits,
    benchmark::{BenchmarkResult, LossPoint, OwnMaximum, Reference, TrafficUnit},
    names::{count, distribution, host as counter, tcp},
    plan::HostReach,
    record::{Flow, FlowSample, Series},
    run::{Completeness, Host},
    search::{CurvePoint, Decision, Ending, LoadCurve, MissReason, Purpose, SearchTrial, Vote},
    summary::Drops,
    units::{Nanos, approximate, rounded},
};

/// The missing part of the run.
const LACKING: &str = "tcp_crr: web-1 did not answer in rounds 4 and 5; what was measured is kept";

const ROUNDS: u32 = 5;
const CORES: usize = 8;
const INTERVAL_MS: u64 = 50;
const WARMUP_MS: u64 = 400;
const MEASURE_MS: u64 = 2000;

/// Reproducible noise.
struct Noise(u64);

impl Noise {
    /// Returns a number from 0 to 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        approximate(self.0 >> 40) / approximate(1 << 24)
    }

    /// Returns a number near 1 that differs by at most `spread`.
    fn near(&mut self, spread: f64) -> f64 {
        1.0 + spread * (self.next() + self.next() - 1.0)
    }
}

/// The properties of one kind of test.
struct Shape {
    name: &'static str,
    title: &'static str,
    layer: Layer,
    counter: &'static str,
    side: Side,
    unit: Unit,
    rate: f64,
    /// The median latency in nanoseconds, if the test has one.
    latency: Option<f64>,
    /// The load of core 0 of the target, mostly softirq.
    core0: f64,
    rounds: u32,
}

fn record(shape: &Shape, noise: &mut Noise, side: Side, speed: f64) -> Record {
    let names = [shape.counter];
    let mut timeline = Timeline::of(&names);
    let mut total = 0;
    for step in 1..=(WARMUP_MS + MEASURE_MS) / INTERVAL_MS {
        let at = step * INTERVAL_MS;
        let warm = (approximate(at) / approximate(WARMUP_MS)).min(1.0).powf(0.6);
        let per_unit = if shape.unit == Unit::BitsPerSec { 8.0 } else { 1.0 };
        let grown = rounded(shape.rate * speed * warm * noise.near(0.05) / per_unit * approximate(INTERVAL_MS) / 1e3);
        timeline.push(Nanos::from_millis(at), &names, &[grown]);
        total += grown;
    }
    let mut distributions = BTreeMap::new();
    if let (Some(median), Side::Initiator) = (shape.latency, side) {
        let mut histogram = Histogram::new();
        for _ in 0..6_000 {
            let tail = 1.0 / (1.0 - noise.next().min(0.999_95));
            histogram.record(rounded(median * 0.8 * noise.near(0.25) * (1.0 + 0.12 * tail.powf(0.62))));
        }
        distributions.insert(distribution::SERVICE_TIME.to_owned(), histogram);
    }
    Record {
        side,
        start_ns: Nanos::from_secs(1000),
        start_late_ns: Nanos(12_000),
        measured_ns: (Nanos::from_millis(WARMUP_MS), Nanos::from_millis(WARMUP_MS + MEASURE_MS)),
        steady: true,
        complete: true,
        cpu_ns: Nanos::from_millis(1900),
        cpu_ns_by_core: BTreeMap::new(),
        run_delay_ns: None,
        n_threads: None,
        timeline,
        totals: BTreeMap::from([(shape.counter.to_owned(), total)]),
        distributions,
        flows: Vec::new(),
        sampled: Vec::new(),
        errors: FailureCounts::default(),
        facts: BTreeMap::new(),
        users: None,
        probe: None,
        targets: None,
        replay: None,
        notes: Vec::new(),
    }
}

fn cpu(noise: &mut Noise, core0: f64, others: f64) -> HostRecord {
    let steps = (WARMUP_MS + MEASURE_MS) / 100;
    let at_ns = (0..=steps).map(|step| Nanos::from_secs(1000) + Nanos::from_millis(step * 100)).collect();
    let mut series = Vec::new();
    for core in 0..CORES {
        let load = if core == 0 { core0 } else { others };
        let names = [
            counter::CPU_USER_NS,
            counter::CPU_SYSTEM_NS,
            counter::CPU_IRQ_NS,
            counter::CPU_SOFTIRQ_NS,
            counter::CPU_STEAL_NS,
            counter::CPU_IDLE_NS,
        ];
        let mut values = vec![vec![0_u64]; names.len()];
        for _ in 0..steps {
            let busy = (load * noise.near(0.3)).clamp(0.0, 1.0);
            let softirq = if core == 0 { 0.85 } else { 0.3 };
            let shares =
                [busy * (1.0 - softirq) * 0.4, busy * (1.0 - softirq) * 0.6, 0.0, busy * softirq, 0.0, 1.0 - busy];
            for (column, share) in values.iter_mut().zip(shares) {
                let last = column[column.len() - 1];
                column.push(last + rounded(share * 1e8));
            }
        }
        for (name, values) in names.into_iter().zip(values) {
            series.push(Series { name: name.to_owned(), of: format!("cpu{core}"), values });
        }
    }
    HostRecord { at_ns, series, ..HostRecord::default() }
}

fn flows(noise: &mut Noise) -> Vec<Flow> {
    let one = |n: u64| {
        let values = BTreeMap::from([
            (tcp::RTT_NS.to_owned(), rounded(412_000.0 * noise.near(0.2))),
            (tcp::RTT_MIN_NS.to_owned(), 31_400),
            (tcp::CWND_SEGMENTS.to_owned(), rounded(88.0 * noise.near(0.3))),
            (tcp::SND_MSS_BYTES.to_owned(), 8_949),
            (tcp::RETRANS_TOTAL.to_owned(), n % 3),
            (tcp::BUSY_NS.to_owned(), 2_400_000_000),
            (tcp::RWND_LIMITED_NS.to_owned(), 48_000_000),
            (tcp::DELIVERY_RATE_BPS.to_owned(), rounded(1.14e9 * noise.near(0.1))),
        ]);
        Flow {
            id: format!("10.0.0.1:{} > 10.0.0.2:40123", 51_000 + n),
            samples: vec![FlowSample { at_ns: Nanos::from_secs(2), values }],
        }
    };
    (0..8).map(one).collect()
}

fn trial(shape: &Shape, round: u32) -> Trial {
    let mut noise = Noise(u64::from(round) * 7919 + rounded(shape.rate));
    let speed = noise.near(0.006);
    let mut sender = record(shape, &mut noise, Side::Initiator, speed);
    if shape.name == "tcp_stream" {
        sender.flows = flows(&mut noise);
    }
    if shape.name == "http" && round == 3 {
        sender.errors.add("read: connection reset by peer", 2);
    }
    if shape.name == "tcp_crr" {
        let mut connect = Histogram::new();
        (0..6_000)
            .for_each(|_| connect.record(rounded(61_000.0 * noise.near(0.2) / noise.next().max(0.000_5).powf(0.3))));
        sender.distributions.insert(distribution::CONNECT_TIME.to_owned(), connect);
    }
    if shape.name == "tcp_crr" && round == 1 {
        sender.steady = false;
        let text = "the rate was not steady after 400 ms of warm-up; the interval is wider than it had to be";
        sender.notes.push(Note { id: "no-steady-state".to_owned(), text: text.to_owned() });
    }
    let receiver = record(shape, &mut noise, Side::Responder, speed);
    Trial {
        round,
        records: BTreeMap::from([("gen-1".to_owned(), sender), ("web-1".to_owned(), receiver)]),
        hosts: BTreeMap::from([
            ("gen-1".to_owned(), cpu(&mut noise, 0.35, 0.28)),
            ("web-1".to_owned(), cpu(&mut noise, shape.core0, 0.12)),
        ]),
        start_skew_ns: Nanos(41_000),
        ..Trial::default()
    }
}

fn metric(name: &'static str, title: &'static str, unit: Unit, from: Derivation) -> Metric {
    let better = match unit {
        Unit::Nanos | Unit::Ratio => Better::Lower,
        _ => Better::Higher,
    };
    Metric { name: name.into(), title: title.into(), unit, better, source: "RFC 2544".into(), from, inapplicable: None }
}

fn summary(metric: Metric, value: f64, spread: f64, rounds: u32) -> Summary {
    let trials = (0..rounds).map(|round| value * (1.0 + spread * (f64::from(round) / 2.0 - 1.0) * 0.6)).collect();
    let interval = Confidence { low: value * (1.0 - spread), high: value * (1.0 + spread), level: 0.95, n_trials: 5 };
    let confidence = (rounds > 1).then_some(interval);
    Summary { metric, value: Some(value), confidence, trials, n_above: None, n_samples: None, note: None }
}

fn quantile(name: &'static str, title: &'static str, q: f64, value: f64) -> Summary {
    let from = Derivation::Quantile { side: Side::Initiator, distribution: distribution::SERVICE_TIME.into(), q };
    let n_above = rounded(30_000.0 * (1.0 - q));
    let of = summary(metric(name, title, Unit::Nanos, from), value, 0.007, ROUNDS);
    Summary { n_above: Some(n_above), n_samples: Some(30_000), ..of }
}

fn test(shape: &Shape) -> TestRun {
    let from = Derivation::Rate { side: shape.side, counter: shape.counter.into() };
    let (name, title) = match shape.unit {
        Unit::BitsPerSec => ("throughput_bps", "goodput"),
        Unit::RequestsPerSec => ("request_rate", "requests"),
        Unit::FramesPerSec => ("frame_rate", "frames"),
        _ => ("transaction_rate", "transactions"),
    };
    let mut summaries = vec![summary(metric(name, title, shape.unit, from), shape.rate, 0.004, shape.rounds)];
    if let Some(median) = shape.latency {
        summaries.push(quantile("service_time_ns_p50", "p50", 0.5, median));
        summaries.push(quantile("service_time_ns_p99", "p99", 0.99, median * 3.7));
        let few = Some("too few samples (30,000 of 100,000)".to_owned());
        summaries.push(Summary { note: few, ..quantile("service_time_ns_p999", "p99.9", 0.9999, median * 8.2) });
    }
    let cost = Derivation::Cost { side: Side::Initiator, counter: shape.counter.into() };
    summaries.push(summary(
        metric("cost_ns", "own cpu", Unit::Nanos, cost),
        1.9e9 / shape.rate * 8.0,
        0.01,
        shape.rounds,
    ));
    TestRun {
        title: shape.title.to_owned(),
        from: "gen-1".to_owned(),
        to: Some("web-1".to_owned()),
        trials: (0..shape.rounds).map(|round| trial(shape, round)).collect(),
        summaries,
        anatomy: (shape.name == "tcp_rr").then(anatomy),
        time: if shape.name == "tcp_stream" { time() } else { Vec::new() },
        no_cause: (shape.name == "tcp_crr").then(no_cause),
        ..TestRun::new(shape.layer, shape.name)
    }
}

/// Where the time of a transaction goes: most of it in the wake-ups of both ends.
fn no_cause() -> NoCause {
    NoCause {
        parts: Vec::new(),
        reached: None,
        ruled_out: vec!["cores (the busiest, cpu1 of target, is busy 60 %)".to_owned(), "drops (0)".to_owned()],
        not_seen: vec!["the cores of client".to_owned()],
        clue: Some("its one flow waits 26.3 µs for an answer, so more of them may carry more".to_owned()),
    }
}

fn anatomy() -> Anatomy {
    let (near, far) = (Some(Side::Initiator), Some(Side::Responder));
    let parts = [
        (Part::SendCall, near, 2_400, 3_100),
        (Part::LocalQueue, near, 520, 900),
        (Part::Path, None, 6_800, 31_000),
        (Part::WakeUp, far, 9_700, 88_000),
        (Part::Program, far, 180, 260),
        (Part::SendCall, far, 2_300, 2_900),
        (Part::LocalQueue, far, 480, 640),
        (Part::WakeUp, near, 11_200, 141_000),
    ];
    let part =
        |(part, side, median, slow)| AnatomyPart { part, side, median_ns: Nanos(median), slow_ns: Some(Nanos(slow)) };
    Anatomy { n_units: 2_931, parts: parts.map(part).to_vec(), all_median_ns: Some(Nanos(32_100)) }
}

/// A sender that waits for its core, and connections that have little to send meanwhile.
fn time() -> Vec<TimeDivision> {
    let division = |owner, host: &str, shares: &[(TimeUse, f64)]| TimeDivision {
        owner,
        host: host.to_owned(),
        shares: shares.iter().map(|(to, share)| TimeShare { to: *to, share: *share }).collect(),
    };
    vec![
        division(
            TimeOwner::SendingThreads,
            "gen-1",
            &[(TimeUse::OnCore, 0.41), (TimeUse::CoreWait, 0.52), (TimeUse::Asleep, 0.07)],
        ),
        division(
            TimeOwner::Connections,
            "gen-1",
            &[(TimeUse::Network, 0.37), (TimeUse::SendBuffer, 0.018), (TimeUse::NoData, 0.612)],
        ),
        division(
            TimeOwner::ReceivingThreads,
            "web-1",
            &[(TimeUse::OnCore, 0.33), (TimeUse::CoreWait, 0.002), (TimeUse::Asleep, 0.668)],
        ),
    ]
}

fn limit(of: &mut TestRun, kind: LimitKind, value: f64, words: &str) {
    let first = &of.summaries[0];
    let used = first.value.map(|reached| reached / value);
    let limit = Limit { kind, metric: first.metric.name.to_string(), value, text: words.to_owned(), used };
    of.limits.push(limit);
}

const HTTP: Shape = Shape {
    name: "http",
    title: "GET /, 100 connections",
    layer: Layer::Http,
    counter: count::REQUESTS,
    side: Side::Initiator,
    unit: Unit::RequestsPerSec,
    rate: 182_000.0,
    latency: Some(510_000.0),
    core0: 0.7,
    rounds: ROUNDS,
};

fn shapes() -> [Shape; 6] {
    let base = HTTP;
    let transactions =
        Shape { layer: Layer::Tcp, counter: count::TRANSACTIONS, unit: Unit::PerSec, rounds: ROUNDS, ..base };
    [
        Shape {
            name: "tcp_stream",
            title: "stream, 8 flows",
            layer: Layer::Tcp,
            counter: count::BYTES_RECEIVED,
            side: Side::Responder,
            unit: Unit::BitsPerSec,
            rate: 9.1e9,
            latency: None,
            core0: 0.97,
            ..base
        },
        Shape {
            name: "tcp_rr",
            title: "request/response, 1 flow",
            rate: 20_400.0,
            latency: Some(48_200.0),
            core0: 0.2,
            ..transactions
        },
        Shape {
            name: "tcp_crr",
            title: "connect + request/response",
            rate: 38_000.0,
            latency: Some(151_000.0),
            core0: 0.6,
            rounds: 3,
            ..transactions
        },
        Shape {
            name: "udp_stream",
            title: "1,400 B at 5 Gbit/s",
            layer: Layer::Udp,
            counter: count::BYTES_RECEIVED,
            side: Side::Responder,
            unit: Unit::BitsPerSec,
            rate: 4.985e9,
            latency: None,
            core0: 0.9,
            ..base
        },
        Shape {
            name: "frames",
            title: "64 B",
            layer: Layer::Frames,
            counter: count::RECEIVED,
            side: Side::Responder,
            unit: Unit::FramesPerSec,
            rate: 3.1e6,
            latency: None,
            core0: 0.85,
            ..base
        },
        base,
    ]
}

fn lossy(test: &mut TestRun) {
    let derivation = Derivation::Missing {
        sent: (Side::Initiator, count::SENT.into()),
        arrived: (Side::Responder, count::RECEIVED.into()),
    };
    let share = summary(metric("loss_ratio", "loss", Unit::Ratio, derivation), 0.0031, 0.06, ROUNDS);
    test.summaries.insert(0, share);
    test.expect.insert("loss_ratio".to_owned(), "<= 0".to_owned());
    let promise = "<= 0 %".to_owned();
    test.limits.push(Limit {
        kind: LimitKind::Promise,
        metric: "loss_ratio".to_owned(),
        value: 0.0,
        text: promise,
        used: None,
    });
    let drops = [
        ("receiver's socket buffer", "web-1 udp_rcvbuf_errors", 93_114),
        ("softnet backlog", "web-1 softnet_dropped cpu0", 2_880),
        ("device", "web-1 dev_rx_dropped ens5", 0),
    ];
    let drops = drops.map(|(place, counter, n_dropped)| Drops {
        place: place.to_owned(),
        counter: counter.to_owned(),
        n_dropped,
    });
    test.conservation = Some(Conservation {
        what: "datagrams".to_owned(),
        n_intended: Some(31_250_000),
        n_sent: 31_248_112,
        n_received: 31_151_998,
        drops: drops.to_vec(),
        n_unexplained: 120,
    });
}

fn tests() -> Vec<TestRun> {
    let [mut stream, rr, crr, mut udp, mut frames, mut http] = shapes().map(|shape| test(&shape));
    limit(&mut http, LimitKind::OwnCeiling, 610_000.0, "ceiling 610 k req/s");
    limit(&mut stream, LimitKind::LineRate, 23.5e9, "line 23.5 Gbit/s");
    limit(&mut frames, LimitKind::OwnCeiling, 3.4e6, "ceiling 3.40 Mpps");
    limit(&mut frames, LimitKind::LineRate, 37.2e6, "line 37.2 Mpps");
    limit(&mut udp, LimitKind::Asked, 5e9, "asked 5 Gbit/s");
    lossy(&mut udp);
    let mut rr = rr;
    rr.summaries.swap(0, 1);
    for (test, id) in [(&mut stream, "one-queue"), (&mut http, "one-queue"), (&mut udp, "socket-buffer")] {
        test.findings.push(id.to_owned());
    }
    let none = Shape { name: "frames_1518", title: "1518 B", rounds: 0, ..shapes()[4] };
    let unavailable = TestRun {
        trials: Vec::new(),
        flows: Vec::new(),
        anatomy: None,
        time: Vec::new(),
        no_cause: None,
        summaries: Vec::new(),
        unavailable: Some("needs CAP_NET_RAW".to_owned()),
        ..test(&none)
    };
    vec![http, stream, rr, crr, udp, frames, unavailable]
}

fn findings() -> Vec<Finding> {
    let evidence = |host: &str, counter: &str, value: &str| Evidence {
        host: host.to_owned(),
        counter: counter.to_owned(),
        value: value.to_owned(),
    };
    vec![
        Finding {
            id: "one-queue".to_owned(),
            short: "one queue".to_owned(),
            title: "TCP is held back by the target's core 0: softirq 97 % there, 11 % on the others; all frames \
                    arrive in 1 of 8 queues."
                .to_owned(),
            severity: Severity::HoldsBack,
            tests: vec!["tcp_stream".to_owned(), "http".to_owned()],
            evidence: vec![
                evidence("web-1", "cpu_softirq_ns cpu0", "97 %"),
                evidence("web-1", "cpu_softirq_ns cpu1 … cpu7", "11 % on average"),
                evidence("web-1", "dev_rx_frames ens5 queue 0", "41.2 M of 41.2 M frames"),
            ],
            explains: Some(0.82),
            proof: None,
            next: Some(NextStep {
                command: "ethtool -L ens5 combined 8".to_owned(),
                on: Some("web-1".to_owned()),
                expected: Some("lift TCP from 9.1 to about 24 Gbit/s".to_owned()),
            }),
        },
        Finding {
            id: "socket-buffer".to_owned(),
            short: "socket full".to_owned(),
            title: "UDP loses 0.30 % at the receiver's socket: its buffer of 208 KiB holds 0.3 ms at 5 Gbit/s."
                .to_owned(),
            severity: Severity::HoldsBack,
            tests: vec!["udp_stream".to_owned()],
            evidence: vec![evidence("web-1", "udp_rcvbuf_errors", "93,114 datagrams")],
            explains: Some(0.969),
            proof: None,
            next: Some(NextStep {
                command: "sysctl -w net.core.rmem_max=8388608".to_owned(),
                on: Some("web-1".to_owned()),
                expected: Some("end the loss at this rate".to_owned()),
            }),
        },
        Finding {
            id: "low-frequency".to_owned(),
            short: "low clock".to_owned(),
            title: "gen-1 runs with the powersave governor; rates may vary with its clock.".to_owned(),
            severity: Severity::Remark,
            tests: Vec::new(),
            evidence: Vec::new(),
            explains: None,
            proof: None,
            next: None,
        },
    ]
}

fn host(address: &str, kernel: &str, queues: &str) -> Host {
    let mut environment = Environment::default();
    for (topic, name, value) in [
        ("kernel", "release", kernel),
        ("kernel", "mitigations", "auto"),
        ("cpu", "model", "Xeon Platinum 8375C @ 2.90GHz"),
        ("cpu", "cores", "8"),
        ("ens5", "driver", "ena"),
        ("ens5", "speed_bps", "25000000000"),
        ("ens5", "line_rate", "real"),
        ("ens5", "mtu_bytes", "9001"),
        ("ens5", "queues", queues),
        ("sysctl", "net.ipv4.tcp_congestion_control", "bbr"),
        ("sysctl", "net.core.rmem_max", "212992"),
    ] {
        environment.note(topic, name, value);
    }
    Host {
        on_paths: BTreeMap::new(),
        address: Some(address.to_owned()),
        interface: Some("ens5".to_owned()),
        further_interfaces: Vec::new(),
        reached: format!("tls {address}:7700"),
        clock_offset_ns: -18_400,
        clock_error_ns: Nanos(16_000),
        environment,
        changed: Environment::default(),
        unavailable: Vec::new(),
    }
}

/// Returns a run of six tests with five rounds each: one could not be measured; two findings and a broken promise.
pub(crate) fn run() -> Run {
    let mut target = host("10.0.0.2", "6.12.57", "1");
    target.unavailable.push("the driver's own counters could not be read: ethtool -S is not permitted".to_owned());
    target.environment.note("cpu", "governor", "performance");
    let tests = tests();
    let times = TrialTimes { warmup: Nanos::from_millis(400), duration: Nanos::from_secs(2) };
    let planned = |test: &TestRun| TestPlan {
        name: test.name.clone(),
        to: test.to.clone(),
        options: test.options.clone(),
        expect: test.expect.clone(),
        ..TestPlan::new(&test.kind, times, &test.from)
    };
    Run {
        comparisons: Vec::new(),
        sweeps: Vec::new(),
        schema: fathom_model::run::SCHEMA.to_owned(),
        id: "2026-11-21-0923-a1f3".to_owned(),
        tool: "fathom 0.1.0".to_owned(),
        command: "fathom evaluate 10.0.0.2 --expect 'udp_stream.loss_ratio <= 0'".to_owned(),
        started: "2026-11-21T09:23:07+01:00".to_owned(),
        took_ns: Nanos::from_secs(92),
        plan: Plan {
            rounds: ROUNDS,
            seed: 42,
            hosts: BTreeMap::from([
                ("gen-1".to_owned(), HostReach::This),
                ("web-1".to_owned(), HostReach::Tls { address: "10.0.0.2:7700".to_owned(), key: None, data: None }),
            ]),
            ..Plan::new("Every layer between gen-1 and web-1", tests.iter().map(planned).collect())
        },
        hosts: BTreeMap::from([("gen-1".to_owned(), host("10.0.0.1", "6.18.5", "8")), ("web-1".to_owned(), target)]),
        tests,
        findings: findings(),
        verdict: Verdict { state: VerdictState::Incomplete, reasons: vec![LACKING.to_owned()], ..Verdict::default() },
        completeness: Completeness::Incomplete { reason: LACKING.to_owned() },
    }
}

/// Returns the same run with only one of its tests.
pub(crate) fn run_of(name: &str) -> Run {
    let mut run = run();
    run.tests.retain(|test| test.name == name);
    run.plan.tests.retain(|test| test.name == name);
    run.findings.retain(|finding| finding.tests.iter().any(|test| test == name));
    run.completeness = Completeness::Complete;
    run
}

/// Returns a run that searched for the highest request rate with a p99 below 2 ms, of a queue that serves 50,000 per second.
pub(crate) fn searched() -> Run {
    const LIMIT: (f64, f64) = (47_600.0, 48_200.0);
    let mut run = run_of("http");
    run.findings.clear();
    "fathom http http://10.0.0.2/ --find-limit 'p99<2ms'".clone_into(&mut run.command);
    let rates = [4e3, 8e3, 16e3, 24e3, 32e3, 40e3, 45e3, LIMIT.0, 47_900.0, LIMIT.1, 52e3, 64e3];
    let mean = |offered: f64| if offered < 49_500.0 { 1e9 / (50e3 - offered) } else { 2e7 };
    let points = rates.iter().enumerate().map(|(place, offered)| {
        let decision = match *offered {
            offered if offered <= LIMIT.0 => Decision::Kept,
            offered if offered < LIMIT.1 => Decision::Undecided,
            _ => Decision::Broken,
        };
        let cause = if *offered > 5e4 { MissReason::FellBehind } else { MissReason::Objective };
        let (achieved, value) = (Some(offered.min(50e3)), Some(mean(*offered) * 100_f64.ln()));
        let median_ns = Some(mean(*offered) * 2_f64.ln());
        let trial = |n| SearchTrial {
            n,
            purpose: Purpose::Confirm,
            sent: Some(*offered),
            achieved,
            value,
            median_ns,
            vote: if decision == Decision::Kept { Vote::Kept } else { Vote::Broken(cause) },
            took_ns: Nanos::from_millis(1_600),
        };
        let first = u32::try_from(3 * place).expect("there are few points");
        CurvePoint {
            offered: *offered,
            decision,
            cause: (decision == Decision::Broken).then_some(cause),
            achieved,
            value,
            median_ns,
            trials: (first..first + 3).map(trial).collect(),
        }
    });
    let confidence = Some(Confidence { low: LIMIT.0, high: LIMIT.1, level: 0.95, n_trials: 13 });
    let curve = LoadCurve {
        objective: "service_time_ns_p99 < 2ms".to_owned(),
        metric: "service_time_ns_p99".to_owned(),
        bound: 2e6,
        option: "rate".to_owned(),
        unit: Unit::RequestsPerSec,
        ending: Ending::Found,
        kept: Some(LIMIT.0),
        broken: Some(LIMIT.1),
        confidence,
        knee: Some(24e3),
        points: points.collect(),
    };
    let test = &mut run.tests[0];
    let limit = metric("limit_per_sec", "limit", Unit::RequestsPerSec, Derivation::Limit);
    let limit = Summary { value: Some(LIMIT.0), confidence, trials: Vec::new(), ..summary(limit, LIMIT.0, 0.0, 1) };
    test.summaries.insert(0, limit);
    test.curve = Some(curve);
    run
}

/// Returns a benchmark run at two frame sizes with a policer of 50,000 per second. The second size was stopped early.
pub(crate) fn benchmarked() -> Run {
    let mut run = run_of("udp_stream");
    run.findings.clear();
    "fathom packet --lab pair --method throughput,loss --sizes 64,1518".clone_into(&mut run.command);
    let result = |value: Option<f64>, (low, high): (f64, f64), note: Option<&str>| BenchmarkResult {
        metric: metric("throughput_per_sec", "throughput", Unit::FramesPerSec, Derivation::Benchmark),
        value,
        low: Some(low),
        high: Some(high),
        is_irregular: note.is_some(),
        note: note.map(str::to_owned),
    };
    let point = |rate: f64| LossPoint { rate, n_trials: 1, loss_ratio: (1.0 - 50e3 / rate).max(0.0) };
    let own = OwnMaximum { rate: 250e3, flat_out: 300e3, loss_ratio: 0.0, unsent_ratio: 0.001, lag_ns: Nanos::ZERO };
    let first = Benchmark {
        unit: TrafficUnit::Frames,
        size_bytes: 64,
        max_rate: 250e3,
        reference: Reference::OwnMaximum,
        line_rate: None,
        own: Some(own),
        results: vec![result(Some(50e3), (50e3, 50.2e3), None)],
        loss: (0..9).map(|down| point(250e3 * (1.0 - 0.1 * f64::from(down)))).collect(),
        searched: vec![point(50e3), point(50.2e3), point(250e3)],
        remarks: vec!["a virtual device has no line rate".to_owned()],
        cut: None,
        trials: Vec::new(),
    };
    let unfinished =
        result(Some(40e3), (40e3, 60e3), Some("irregular: the search ended before its bounds were near enough"));
    let second = Benchmark {
        size_bytes: 1518,
        results: vec![unfinished],
        loss: Vec::new(),
        cut: Some("throughput: interrupted".to_owned()),
        ..first.clone()
    };
    let mut other = run.tests[0].clone();
    "1518 B".clone_into(&mut other.name);
    other.benchmark = Some(second);
    "64 B".clone_into(&mut run.tests[0].name);
    run.tests[0].benchmark = Some(first);
    run.tests.push(other);
    run
}

/// The results at a step of the sample's script.
struct Scripted {
    name: &'static str,
    kind: StepKind,
    /// The share of the visits that began.
    reached: f64,
    median: f64,
    errors: &'static [(&'static str, f64)],
    promises: &'static [&'static str],
}

const SCRIPT: [Scripted; 6] = [
    Scripted {
        name: "home",
        kind: StepKind::Step,
        reached: 1.0,
        median: 1_100_000.0,
        errors: &[],
        promises: &["p99 < 40ms"],
    },
    Scripted {
        name: "search for a product",
        kind: StepKind::Step,
        reached: 2.4,
        median: 6_300_000.0,
        errors: &[("no answer within 500 ms", 0.002)],
        promises: &["p99 < 300ms", "errors < 1%"],
    },
    Scripted {
        name: "login",
        kind: StepKind::Step,
        reached: 0.62,
        median: 4_200_000.0,
        errors: &[("status 500, expected 200", 0.06), ("`token` is not in the answer", 0.004)],
        promises: &["errors < 0.1%", "p99.9 < 1s"],
    },
    Scripted {
        name: "buying",
        kind: StepKind::Transaction,
        reached: 0.55,
        median: 31_000_000.0,
        errors: &[("checkout: status 503, expected 201", 0.012)],
        promises: &["p90 < 150ms"],
    },
    Scripted { name: "cart", kind: StepKind::Step, reached: 0.55, median: 2_900_000.0, errors: &[], promises: &[] },
    Scripted {
        name: "checkout",
        kind: StepKind::Step,
        reached: 0.54,
        median: 24_000_000.0,
        errors: &[("status 503, expected 201", 0.012)],
        promises: &["p99 < 50ms"],
    },
];

fn step_record(step: &Scripted, visits: f64, noise: &mut Noise) -> StepRecord {
    let n_reached = rounded(visits * step.reached * noise.near(0.02));
    let errors: BTreeMap<String, u64> = step
        .errors
        .iter()
        .map(|(cause, share)| ((*cause).to_owned(), rounded(approximate(n_reached) * share)))
        .filter(|(_, n)| *n > 0)
        .collect();
    let n_passed = n_reached - errors.values().sum::<u64>();
    let mut times = Histogram::new();
    for _ in 0..n_passed {
        let tail = 1.0 / (1.0 - noise.next().min(0.999_8));
        times.record(rounded(step.median * 0.8 * noise.near(0.3) * (1.0 + 0.14 * tail.powf(0.6))));
    }
    let example = |cause: &String| Example {
        cause: cause.clone(),
        at_ns: Nanos::from_millis(731),
        request: format!(
            "POST /{} HTTP/1.1\r\nHost: shop.test\r\nAuthorization: Bearer ••••••\r\nContent-Type: application/json\r\n\r\n{{\"user\":\"anna\",\"pass\":\"••••••\"}}",
            step.name
        ),
        answer: if cause.starts_with("no answer") {
            String::new()
        } else {
            "HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/html\r\n\r\n<!DOCTYPE html><title>Error</title><script>alert(1)</script><p>The pool of database connections is exhausted (64 of 64 in use). Trace 7f3a9c00d1."
                .to_owned()
        },
    };
    StepRecord {
        name: step.name.to_owned(),
        kind: step.kind,
        n_reached,
        n_passed,
        examples: errors.keys().map(example).collect(),
        errors,
        times,
        promises: step.promises.iter().map(|text| (*text).to_owned()).collect(),
    }
}

/// Returns an analyzed run of scripted users: a shop whose login fails now and then.
pub(crate) fn scripted() -> Run {
    const VISITS: f64 = 3_000.0;
    let mut run = run_of("http");
    run.findings.clear();
    run.completeness = Completeness::Complete;
    let reasons = vec!["app shop.scenario login errors 6.4 % >= 0.10 %".to_owned()];
    run.verdict = Verdict { state: VerdictState::Broken, reasons, ..Verdict::default() };
    "fathom app run shop.scenario http://10.0.0.2/".clone_into(&mut run.command);
    "shop.scenario against web-1".clone_into(&mut run.plan.title);
    run.plan.rounds = 3;
    let test = &mut run.tests[0];
    (test.layer, test.limits) = (Layer::App, Vec::new());
    test.findings.clear();
    for (text, into) in
        [("shop", &mut test.name), ("shop.scenario, 1,500 users/s", &mut test.title), ("app_scenario", &mut test.kind)]
    {
        text.clone_into(into);
    }
    test.options.set("file", "shop.scenario");
    test.trials.truncate(3);
    for trial in &mut test.trials {
        let mut noise = Noise(u64::from(trial.round) * 104_729 + 11);
        let record = trial.records.get_mut("gen-1").expect("the sample has a client");
        record.errors = FailureCounts::default();
        let n = rounded(VISITS * noise.near(0.01));
        let steps = SCRIPT.iter().map(|step| step_record(step, approximate(n), &mut noise)).collect();
        let measured = Visits { n_begun: n, n_finished: n * 54 / 100, n_gave_up: n * 4 / 100 };
        record.users = Some(UsersRecord {
            n_started: n + 600,
            n_finished: n * 6 / 10,
            n_gave_up: n * 5 / 100,
            n_most: 412,
            measured: Some(measured),
            promises: vec!["users/s > 1000".to_owned(), "requests/s > 500k".to_owned()],
            steps,
        });
    }
    let from = Derivation::Rate { side: Side::Initiator, counter: count::REQUESTS.into() };
    let kept = metric("requests_per_sec", "requests", Unit::RequestsPerSec, from);
    let median = test.summaries[1].metric.clone();
    let context = fathom_analyze::AnalysisContext {
        metrics: BTreeMap::from([("app_scenario".to_owned(), vec![kept, median])]),
        ..fathom_analyze::AnalysisContext::default()
    };
    run.plan.tests.clear();
    fathom_analyze::analyze(&mut run, &context);
    run
}

/// Returns the evaluation with the scripted users as its top row.
pub(crate) fn with_script() -> Run {
    let (mut run, scripted) = (run(), scripted());
    run.tests.insert(0, scripted.tests.into_iter().next().expect("the sample has its test"));
    run.findings.extend(scripted.findings);
    run.verdict = scripted.verdict;
    run
}
