//! A search finds the planted limit, keeps to its bounds, and can be interrupted.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use fathom_model::{
    Finding, Severity, TestRun,
    run::Completeness,
    search::{Decision, Ending, Vote},
    units::PerSec,
};
use fathom_packet::xdp::{FrameMatch, PolicerLimit, policer};
use fathom_sys::process::signal::Signal;

use crate::{
    test_bed::{TestBed, is_disturbed, lacks_root},
    truth::in_front_of_b,
};

/// The destination port of the datagrams, which the policer matches.
const PORT: u16 = 40_124;
/// Short times, because the limit is planted and its precision is not under test.
const SHORT: &[&str] = &["--warmup", "0s", "--duration", "300ms"];

#[track_caller]
fn limit(test: &TestRun) -> (Option<f64>, Option<f64>) {
    let curve = test.curve.as_ref().unwrap();
    assert!(curve.points.windows(2).all(|two| two[0].offered < two[1].offered));
    assert_eq!(test.summaries[0].metric.name, "limit_per_sec");
    assert_eq!(test.summaries[0].value, curve.kept);
    (curve.kept, curve.broken)
}

#[test]
fn the_rate_of_a_policer_is_found_as_the_limit_of_a_stream() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("policed");
    let rate = PolicerLimit { rate: PerSec::new(1_500.0).unwrap(), burst: 64 };
    let gate = policer(FrameMatch::UdpPort(PORT), rate).unwrap();
    let _link = in_front_of_b(&stage, &lab, &gate);
    let port = PORT.to_string();
    let words = ["udp", "--lab", "policed", "--port", &port, "--size", "100", "--json"];
    let find = ["--find-limit", "lost<1%", "--find-low", "250pps", "--find-precision", "5%"];
    let run = stage.fathom([&words[..], &find, SHORT].concat()).succeeded().run();
    let (kept, broken) = limit(&run.tests[0]);
    println!(
        "{:#?}",
        run.tests[0].curve.as_ref().map(|c| (
            c.ending,
            c.points
                .iter()
                .map(|p| (p.offered, p.trials.iter().map(|t| (t.vote, t.value)).collect::<Vec<_>>()))
                .collect::<Vec<_>>()
        ))
    );
    // In 0.3 s, the policer passes 1 % and a burst of 64 beyond its rate: 1,500 / 0.99 + 64 / 0.3 / 0.99.
    assert!(kept.unwrap() <= 1_500.0 / 0.99 + 64.0 / 0.3 / 0.99 + 30.0, "{kept:?} {broken:?}");
    assert!(broken.unwrap() >= 1_500.0, "{kept:?} {broken:?}");
    let curve = run.tests[0].curve.as_ref().unwrap();
    assert_eq!(curve.objective, "loss_ratio < 1%");
    let beyond = curve.points.last().unwrap();
    assert!(beyond.decision == Decision::Broken && beyond.value.unwrap() > 0.01, "{beyond:?}");
    assert!(run.findings[0].title.starts_with("b keeps lost < 1.0 % up to "), "{}", run.findings[0].title);
    // The trials beyond the limit tell its cause.
    let told = run.tests[0].beyond.as_ref().unwrap();
    assert!(told.rate >= broken.unwrap() && (1..=2).contains(&told.trials.len()), "{broken:?} {}", told.rate);
    let is_cause = |finding: &&Finding| finding.severity == Severity::HoldsBack && finding.id != "limit";
    let cause = run.findings.iter().find(is_cause).unwrap();
    assert!(cause.title.starts_with("at ") && cause.title.contains(" of the datagrams were lost "), "{}", cause.title);
}

#[test]
fn a_limit_beyond_the_highest_rate_that_is_allowed_is_told_as_such() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let find = ["--find-limit", "loss_ratio <= 50%", "--find-low", "500", "--find-high", "1k"];
    let run = stage.fathom([&["packet", "--lab", "pair", "--json"][..], &find, SHORT].concat()).succeeded().run();
    if is_disturbed(&run) {
        return;
    }
    assert_eq!(limit(&run.tests[0]), (Some(1_000.0), None));
    assert_eq!(run.tests[0].curve.as_ref().unwrap().ending, Ending::AllKept);
    assert_eq!(run.tests[0].options.text("rate").as_deref(), Some("1k/s"), "the values are those of the limit");
    assert!(run.findings[0].title.contains("the highest that was allowed"), "{}", run.findings[0].title);
}

#[test]
fn requests_are_searched_with_the_open_kind_and_judged_from_their_intended_start() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let find = ["--find-limit", "p99<2s, errors<1%", "--find-low", "2k", "--find-high", "3k", "--json"];
    let run = stage.fathom([&["http", "--lab", "pair"][..], &find, SHORT].concat()).succeeded().run();
    let test = &run.tests[0];
    assert_eq!((test.kind.as_str(), limit(test)), ("http_open", (Some(3_000.0), None)));
    let curve = test.curve.as_ref().unwrap();
    assert_eq!(
        (curve.objective.as_str(), curve.metric.as_str()),
        ("latency_ns_p99 < 2s, errors_ratio < 1%", "latency_ns_p99")
    );
    assert!(run.findings[0].title.contains("keeps p99 < 2.00 s and errors < 1.0 %"), "{}", run.findings[0].title);
    // A p99 needs a thousand samples. 2,000 per second for 0.3 s are not enough, so the trials are longer.
    let samples: u64 = test.trials[0].records["a"].distributions["response_time_ns"].count();
    assert!(samples >= 900, "{samples}");
    assert!(curve.points.iter().all(|point| point.median_ns.unwrap() <= point.value.unwrap()), "{:?}", curve.points);
}

/// A server that serves one request at a time for all clients together, and records the time of each.
struct SerialServer {
    address: SocketAddr,
    served: Arc<Mutex<Vec<Duration>>>,
}

impl SerialServer {
    fn start(each: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let served = Arc::clone(&shared);
                // A thread ends when its client disconnects, all others when the program exits.
                thread::spawn(move || answer(&stream.unwrap(), &served, each));
            }
        });
        Self { address, served }
    }

    /// Returns the requests per second that the server could handle.
    fn capacity(&self) -> f64 {
        let served = self.served.lock().unwrap();
        f64::from(u32::try_from(served.len()).unwrap()) / served.iter().sum::<Duration>().as_secs_f64()
    }
}

fn answer(stream: &TcpStream, served: &Mutex<Vec<Duration>>, each: Duration) {
    stream.set_nodelay(true).unwrap();
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        if !line.is_empty() {
            continue;
        }
        let mut served = served.lock().unwrap();
        let began = Instant::now();
        thread::sleep(each);
        let is_sent = (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_ok();
        served.push(began.elapsed());
        if !is_sent {
            return;
        }
    }
}

#[test]
fn the_capacity_of_a_server_is_found_as_the_limit_of_its_latency() {
    let stage = TestBed::of_low_rates();
    let server = SerialServer::start(Duration::from_millis(4));
    let url = format!("http://{}/", server.address);
    let find = ["--find-limit", "p90<300ms, errors<1%", "--find-low", "150", "--find-precision", "20%", "--json"];
    let spans = ["--warmup", "100ms", "--duration", "500ms", "--connections", "64"];
    let run = stage.fathom([&["http", &url][..], &find, &spans].concat()).succeeded().run();
    let (kept, broken) = limit(&run.tests[0]);
    let capacity = server.capacity();
    // For the queue to reach 300 ms in a trial of 0.6 s, the rate would have to be 50 % higher. Falling behind is detected
    // earlier.
    assert!(kept.unwrap() < 1.25 * capacity, "{kept:?} {broken:?} of {capacity}");
    assert!(broken.unwrap() > 0.75 * capacity, "{kept:?} {broken:?} of {capacity}");
    let beyond = run.tests[0].curve.as_ref().unwrap().points.last().unwrap();
    assert!(beyond.achieved.unwrap() < 1.2 * capacity && beyond.cause.is_some(), "{beyond:?}");
}

#[test]
fn a_search_that_is_interrupted_keeps_its_curve() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let find = ["--find-limit", "loss_ratio<50%", "--find-low", "100", "--find-high", "1k", "--find-trials", "10000"];
    let words = [&["packet", "--lab", "pair", "--ndjson"][..], &find, SHORT].concat();
    let search = stage.start(words);
    search.says("{\"event\":\"step\"");
    search.handle().send(Signal::Interrupt).unwrap();
    let ending = search.ends().code(130);
    let run: fathom_model::Run = serde_json::from_str(ending.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(run.completeness, Completeness::Incomplete { reason: "interrupted by ctrl-C".to_owned() });
    let curve = run.tests[0].curve.as_ref().unwrap();
    assert_eq!((curve.ending, curve.points[0].trials[0].vote), (Ending::Stopped, Vote::Kept));
}

#[test]
fn an_objective_that_cannot_be_searched_is_refused_before_anything_is_touched() {
    let stage = TestBed::beside_others();
    let cases = [
        (&["udp", "--find-limit", "p99<20ms"][..], &["no metric `p99`", "lost"][..]),
        (&["udp", "--find-limit", "lost"], &["has no comparison", "p99<20ms"]),
        (&["udp", "--find-limit", "lost>1%"], &["not one that a higher rate breaks"]),
        (&["udp", "--find-limit", "lost<20ms"], &["20ms"]),
        (&["udp", "--find-limit", "lost<1%", "--rate", "1M"], &["the search sets `rate` itself"]),
        (&["udp", "--find-limit", "lost<1%", "--find-low", "2G", "--find-high", "1G"], &["low"]),
        (&["udp", "--find-limit", "lost<1%", "--find-precision", "0%"], &["precision", "0.2%"]),
        (&["udp", "--find-limit", "lost<1%", "--find-option", "batch"], &["batch", "rate, pps"]),
        (&["tcp", "--test", "rr", "--find-limit", "p99<1ms"], &["no option `rate`"]),
        (&["udp", "--find-low", "1k"], &["--find-limit"]),
    ];
    for (words, said) in cases {
        stage.fathom([words, &["--lab", "pair"]].concat()).refused(2, said);
    }
}
