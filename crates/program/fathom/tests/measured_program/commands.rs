//! The other commands, and the repetition of printed commands.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
};

use fathom_model::{LimitKind, Plan, Run, TestPlan};
use fathom_sys::process::signal::Signal;

use crate::{
    nginx::Nginx,
    test_bed::{BRIEF, TestBed, lacks_root, side_by_side, tree},
};

fn plans() -> Vec<PathBuf> {
    // Scenarios and their data files are in the same folder; other tests cover them.
    let files = fs::read_dir(tree().join("plans")).unwrap().map(|entry| entry.unwrap().path());
    let plans: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")).collect();
    assert!(!plans.is_empty());
    plans
}

#[test]
fn every_plan_of_the_tree_runs() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    side_by_side(&plans(), |plan| {
        let path = plan.to_str().unwrap();
        // A promise of a plan can be broken on a busy machine. That is a valid result too.
        let ending = stage.fathom([&["run", path, "--json"], BRIEF].concat());
        if path.ends_with("/pktgen_receive.toml") {
            // Nobody sends packets to the receiver alone.
            ending.refused(1, &["no packet of a pktgen arrived at eth0"]);
            return;
        }
        let run = ending.run();
        for test in &run.tests {
            assert!(test.summaries.iter().any(|summary| summary.value.is_some()), "{path}: {}: {:?}", test.name, test);
        }
    });
}

#[test]
fn a_printed_plan_is_a_plan_and_starts_nothing() {
    let stage = TestBed::beside_others();
    let commands = [
        &["evaluate"][..],
        &["evaluate", "--quick", "--expect", "10Gbit"],
        &["evaluate", "192.0.2.1", "--key", "secret"],
        &["http", "http://127.0.0.1:8080/", "--connections", "7"],
        &["http", "--lab", "pair"],
        &["tcp", "127.0.0.1", "--test", "rr", "--flows", "3"],
        &["tcp", "--lab", "pair", "--test", "crr"],
        &["udp", "127.0.0.1", "--rate", "10M", "--size", "1200"],
        &["packet", "--lab", "pair", "--size", "64", "--rate", "10kpps"],
        &["packet", "--device", "nft:10,1/5", "--rate", "10kpps"],
        &["packet", "--lab", "pair", "--test", "stack-receive", "--end", "socket"],
        &["packet", "--receive", "lo", "--ports-each", "1"],
        &["path", "--device", "nft:10"],
        &["path", "tcp", "--device", "router", "--sweep", "rules=1,2", "--set", "true {rules}", "--set-on", "dut"],
    ];
    for words in commands {
        let plan = stage.fathom([words, &["--plan"]].concat()).succeeded().stdout;
        assert!(!plan.contains("secret"), "the key is not printed");
        let path = stage.path("printed.toml");
        fs::write(&path, &plan).unwrap();
        assert_eq!(stage.fathom(["run", path.to_str().unwrap(), "--plan"]).succeeded().stdout, plan, "{words:?}");
    }
    for plan in plans() {
        stage.fathom(["run", plan.to_str().unwrap(), "--plan"]).succeeded();
    }
    assert!(stage.journals().is_empty() && !stage.path("runs").exists());
}

#[test]
fn a_kept_run_is_rendered_again_in_every_format() {
    let stage = TestBed::beside_others();
    stage.fathom([&["tcp", "127.0.0.1", "--test", "rr", "--output", "kept"], BRIEF].concat()).succeeded();
    let document = fs::read_to_string(stage.path("kept/run.json")).unwrap();
    let again: Run = stage.fathom(["report", "kept", "--json"]).succeeded().run();
    assert_eq!(again, serde_json::from_str::<Run>(&document).unwrap());
    for words in
        [&["report", "kept"][..], &["report", "kept/run.json", "--csv"], &["report", "kept", "--format", "html"]]
    {
        assert!(stage.fathom(words).succeeded().stdout.contains("transactions"), "{words:?}");
    }
    for file in ["again.html", "again.csv", "again.txt", "again.json"] {
        stage.fathom(["report", "kept", "--file", file]).succeeded();
        assert!(fs::metadata(stage.path(file)).unwrap().len() > 100, "{file}");
    }
    let report = |name: &str| fs::read(stage.path(name)).unwrap();
    assert_eq!(report("again.html"), report("kept/report.html"));
}

#[test]
fn a_promise_decides_the_exit_code() {
    let stage = TestBed::new();
    let tcp = |promise: &[&str]| stage.fathom([&["tcp", "127.0.0.1"], promise, BRIEF].concat());
    // A paced stream carries about the same in each round, whatever else the machine does; the interval of two rounds is wide.
    let paced = |promise: &str| tcp(&["--rate", "10M", "--expect", promise]);
    paced("tcp_stream.throughput_bps=3Mbit").kept_its_promise();
    paced("tcp_stream.throughput_bps=30Mbit").broke_its_promise();
    // A rate alone is about tests that run as fast as they can.
    tcp(&["--expect", "100Tbit"]).broke_its_promise();
}

#[test]
fn the_responder_alone_answers_as_it_was_told() {
    let stage = TestBed::beside_others();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let path = stage.path("socket");
    let words = ["serve", "--only", "http", "--listen", "127.0.0.1", "--http-port", &port];
    let how = ["--http-delay", "1ms", "--http-keep-alive", "1", "--http-statuses", "503", "--http-seed", "7"];
    let server = stage.start([&words[..], &how, &["--http-unix", path.to_str().unwrap()]].concat());
    let said = server.says("seed");
    assert_eq!(said, format!("http    127.0.0.1:{port}\nhttp    unix:{}\nseed    7\n", path.display()));
    let mut answers = [String::new(), String::new()];
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut tcp = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    tcp.write_all(request).unwrap();
    tcp.read_to_string(&mut answers[0]).unwrap();
    let mut unix = UnixStream::connect(&path).unwrap();
    unix.write_all(request).unwrap();
    unix.read_to_string(&mut answers[1]).unwrap();
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{answer}");
        assert!(answer.contains("\r\nConnection: close\r\n"), "{answer}");
    }
    server.handle().send(Signal::Interrupt).unwrap();
    server.ends().code(130);
    assert!(!path.exists(), "the socket's name is gone");

    let refused = |words: &[&str], said: &[&str]| stage.fathom([&["serve"], words].concat()).refused(2, said);
    refused(&["--http-stall", "1s"], &["--http-stall takes", "200ms/1s", "`1s`"]);
    refused(&["--http-size", "many"], &["--http-size: "]);
    refused(&["--only", "http", "--http-port", "0"], &["nothing is left to serve", "--http-unix"]);
}

#[test]
fn our_own_responder_and_that_of_another_are_loaded_alike() {
    let stage = TestBed::beside_others();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = stage.start(["serve", "--listen", "127.0.0.1", "--port", "0", "--http-port", &port]);
    server.says("http");
    answers(&stage, &format!("http://127.0.0.1:{port}/"));
    drop(server);

    let Some(nginx) = Nginx::start(&stage, "as small as an answer gets", "") else {
        return fathom_testkit::skip("needs nginx");
    };
    answers(&stage, &nginx.url("/"));
}

#[track_caller]
fn answers(stage: &TestBed, url: &str) {
    let run = stage.fathom([&["http", url, "--connections", "8", "--json"], BRIEF].concat()).succeeded().run();
    let value = |name: &str| run.tests[0].summaries.iter().find(|summary| summary.metric.name == name).unwrap().value;
    assert!(value("requests_per_sec").is_some_and(|rate| rate > 0.0));
    assert_eq!((value("errors_ratio"), value("not_2xx_ratio")), (Some(0.0), Some(0.0)));
}

#[test]
fn ceilings_are_kept_and_found_again() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    assert!(stage.fathom(["doctor"]).succeeded().stdout.contains("not measured"));
    let ceilings = stage.fathom(["calibrate", "--quiet"]).succeeded().stdout;
    for kind in crate::evaluation::KINDS {
        assert!(ceilings.contains(kind), "{kind} is missing in\n{ceilings}");
    }
    assert!(!stage.fathom(["doctor"]).succeeded().stdout.contains("not measured"));
    let run = stage.fathom([&["evaluate", "--quick", "--json"], BRIEF].concat()).run();
    for test in run.tests.iter().filter(|test| ["app", "http"].contains(&test.name.as_str())) {
        let limits = test.limits.iter().map(|limit| limit.kind);
        // A ceiling that was exceeded, or that other programs disturbed, does not count.
        let value = test.summaries[0].value.unwrap_or_default();
        let is_below = ceiling(&stage, &test.kind).is_some_and(|ceiling| value <= ceiling);
        assert_eq!(limits.clone().any(|kind| kind == LimitKind::OwnCeiling), is_below, "{}: {limits:?}", test.name);
    }
}

/// Returns the saved ceiling of a kind, unless other programs disturbed it.
fn ceiling(stage: &TestBed, kind: &str) -> Option<f64> {
    let kept = fs::read_to_string(stage.path(".cache/fathom/calibration.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    let ceiling = &kept["ceilings"][kind][0];
    let reached = ceiling["reached"]["requests_per_sec"].as_f64().unwrap();
    (!ceiling["disturbed"].as_bool().unwrap()).then_some(reached)
}

#[test]
fn doctor_says_what_is_allowed() {
    let stage = TestBed::beside_others();
    let text = stage.fathom(["doctor"]).succeeded().stdout;
    for word in ["network namespaces", "user namespaces", "XDP programs", "cores"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
    let checks = stage.fathom(["doctor", "--json"]).succeeded().stdout;
    let checks: Vec<serde_json::Value> = serde_json::from_str(&checks).unwrap();
    let tells_of_pktgen = |check: &&serde_json::Value| check.to_string().contains("pktgen");
    assert_eq!(checks.iter().filter(tells_of_pktgen).count(), 1, "one check tells of the kernel's pktgen: {checks:?}");
}

#[test]
fn man_pages_and_completions_are_written() {
    let stage = TestBed::beside_others();
    stage.fathom(["generate", "man", "man"]).succeeded();
    for page in ["fathom.1", "fathom-evaluate.1", "fathom-lab-up.1"] {
        assert!(fs::read_to_string(stage.path("man").join(page)).unwrap().contains(".SH NAME"), "{page}");
    }
    for shell in ["bash", "fish", "zsh"] {
        assert!(stage.fathom(["generate", "completions", shell]).succeeded().stdout.contains("evaluate"), "{shell}");
    }
}

#[test]
fn every_command_has_a_help() {
    let stage = TestBed::beside_others();
    let help = stage.fathom(["--help"]).succeeded().stdout;
    for command in
        ["evaluate", "run", "http", "tcp", "udp", "packet", "probe", "serve", "lab", "report", "calibrate", "doctor"]
    {
        assert!(help.contains(command), "{command} is missing in\n{help}");
        assert!(stage.fathom([command, "--help"]).succeeded().stdout.contains("Usage"), "{command}");
    }
}

#[test]
fn a_command_on_a_host_decides_the_exit_code() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let _lab = stage.lab("codes");
    for code in [0, 1, 42, 255] {
        stage.fathom(["lab", "exec", "codes", "a", "--", "sh", "-c", &format!("exit {code}")]).code(code);
    }
    stage.fathom(["lab", "exec", "codes", "a", "--", "sh", "-c", "kill -9 $$"]).code(137);
    let own = stage.fathom(["lab", "exec", "codes", "a", "--", "cat", "/proc/self/net/dev"]).succeeded().stdout;
    assert!(own.contains("eth0") && own.lines().count() == 4, "two lines of heading, lo and eth0: {own}");
    stage.fathom(["lab", "exec", "codes", "z", "--", "true"]).refused(3, &["z", "a, b"]);
    stage
        .fathom(["lab", "exec", "codes", "a", "--", "no-such-program"])
        .refused(3, &["there is no program `no-such-program` on host a", "fathom lab exec codes a"]);
    stage.fathom(["lab", "up", "pair", "--name", "codes"]).refused(3, &["lab `codes` exists already"]);
}

#[test]
fn a_command_on_a_host_gets_the_signals_and_cleans_up() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("signals");
    for (signal, word) in [(Signal::Interrupt, "INT"), (Signal::Terminate, "TERM"), (Signal::Hangup, "HUP")] {
        let script = format!("trap 'echo cleaned up; exit 7' {word}; echo ready; while :; do sleep 0.05; done");
        let command = lab.exec("a", &["sh", "-c", &script]);
        command.says("ready");
        command.handle().send(signal).unwrap();
        assert_eq!(command.ends().code(7).stdout, "ready\ncleaned up\n", "{word}");
    }
}

/// Arguments of former releases, which scripts may still use, and the current ones.
const FORMER: &[(&[&str], &[&str])] = &[
    (&["tcp", "127.0.0.1", "--test", "down"], &["tcp", "127.0.0.1", "--direction", "down"]),
    (&["tcp", "127.0.0.1", "--test", "both"], &["tcp", "127.0.0.1", "--direction", "both"]),
    (
        &["tcp", "127.0.0.1", "--test", "rfc6349-down", "--bandwidth", "1G", "--baseline-rtt", "1ms"],
        &["tcp", "127.0.0.1", "--test", "rfc6349", "--direction", "down", "--bandwidth", "1G", "--baseline-rtt", "1ms"],
    ),
    (
        &["tcp", "--lab", "pair", "--test", "loaded", "--load", "up"],
        &["tcp", "--lab", "pair", "--test", "loaded", "--direction", "up"],
    ),
    (&["tcp", "127.0.0.1", "--test", "rr", "--workers", "2"], &["tcp", "127.0.0.1", "--test", "rr", "--threads", "2"]),
    (&["udp", "127.0.0.1", "--test", "down"], &["udp", "127.0.0.1", "--direction", "down"]),
    (
        &["tcp", "127.0.0.1", "--protocol", "iperf3", "--way", "both"],
        &["tcp", "127.0.0.1", "--protocol", "iperf3", "--direction", "both"],
    ),
    (&["http", "http://127.0.0.1:1/", "--requests", "9"], &["http", "http://127.0.0.1:1/", "--count", "9"]),
    (&["packet", "--lab", "pair", "--workers", "2"], &["packet", "--lab", "pair", "--threads", "2"]),
];

#[test]
fn words_of_former_releases_mean_the_same_as_those_of_today() {
    let stage = TestBed::beside_others();
    let tests = |words: &[&str]| -> Vec<TestPlan> {
        let text = stage.fathom([words, &["--plan"]].concat()).succeeded().stdout;
        toml::from_str::<Plan>(&text).unwrap().tests
    };
    for (former, now) in FORMER {
        assert_eq!(tests(former), tests(now), "{former:?}");
    }
    let one_way = ["tcp", "127.0.0.1", "--test", "rr", "--direction", "down"];
    stage.fathom(one_way).refused(2, &["--test rr has no --direction down", "--direction up"]);
}
