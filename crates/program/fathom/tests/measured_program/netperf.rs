//! Both ends of netperf compared with the original: every test and option in either role, the text, and many clients at once.

use std::fs;

use crate::{
    compat::is_installed,
    test_bed::{self, ProgramResult, RunningProgram, TestBed, lacks_root, side_by_side, tree, until},
};

/// The far host of a lab.
const B: &str = "198.18.0.2";

/// The options for either client against either server: those before `--`, and those of the test.
const CASES: &[(&str, &[&str], &[&str])] = &[
    ("TCP_STREAM", &["-t", "TCP_STREAM"], &[]),
    ("TCP_MAERTS", &["-t", "TCP_MAERTS"], &[]),
    ("TCP_SENDFILE", &["-t", "TCP_SENDFILE"], &[]),
    ("TCP_RR", &["-t", "TCP_RR"], &[]),
    ("TCP_CRR", &["-t", "TCP_CRR"], &[]),
    ("UDP_STREAM", &["-t", "UDP_STREAM"], &[]),
    ("UDP_STREAM `-- -m 1`", &["-t", "UDP_STREAM"], &["-m", "1"]),
    ("UDP_RR", &["-t", "UDP_RR"], &[]),
    ("omni `-d send`", &["-t", "omni"], &["-d", "send"]),
    ("omni `-d recv`", &["-t", "omni"], &["-d", "recv"]),
    ("omni `-d rr -r 64,1024`", &["-t", "omni"], &["-d", "rr", "-r", "64,1024"]),
    ("omni `-d rr -T udp`", &["-t", "omni"], &["-d", "rr", "-T", "udp"]),
    ("omni `-c -d rr`", &["-t", "omni"], &["-c", "-d", "rr"]),
    ("`-c -C` (TCP_STREAM)", &["-t", "TCP_STREAM", "-c", "-C"], &[]),
    ("`-c -C` (TCP_MAERTS)", &["-t", "TCP_MAERTS", "-c", "-C"], &[]),
    ("`-c -C` (TCP_RR)", &["-t", "TCP_RR", "-c", "-C"], &[]),
    ("`-c -C` (TCP_CRR)", &["-t", "TCP_CRR", "-c", "-C"], &[]),
    ("`-c -C` (UDP_STREAM)", &["-t", "UDP_STREAM", "-c", "-C"], &["-m", "1000"]),
    ("`-c -C` (UDP_RR)", &["-t", "UDP_RR", "-c", "-C"], &[]),
    ("`-P 0`", &["-t", "TCP_STREAM", "-P", "0"], &[]),
    ("`-P 0 -v 0`", &["-t", "TCP_RR", "-P", "0", "-v", "0"], &[]),
    ("`-P 0 -v 0 -B tag`", &["-t", "TCP_RR", "-P", "0", "-v", "0", "-B", "tag"], &[]),
    ("`-v 2` (TCP_STREAM)", &["-t", "TCP_STREAM", "-v", "2"], &[]),
    ("`-v 2` (TCP_RR)", &["-t", "TCP_RR", "-v", "2"], &[]),
    ("`-f M`", &["-t", "TCP_STREAM", "-f", "M"], &[]),
    ("`-f k` (TCP_RR)", &["-t", "TCP_RR", "-f", "k"], &["-r", "100,100"]),
    ("`-l -1000` (TCP_RR)", &["-t", "TCP_RR", "-l", "-1000"], &[]),
    ("`-l -100M` (TCP_STREAM)", &["-t", "TCP_STREAM", "-l", "-100M"], &[]),
    ("`-i 10,3 -I 95,9999`", &["-t", "TCP_RR", "-i", "10,3", "-I", "95,9999"], &[]),
    ("`-i 4,3 -I 99,0.0001 -r`", &["-t", "TCP_RR", "-i", "4,3", "-I", "99,0.0001", "-r"], &[]),
    ("`-4`", &["-t", "TCP_RR", "-4"], &[]),
    ("`-- -m 8K -M 16K`", &["-t", "TCP_STREAM"], &["-m", "8K", "-M", "16K"]),
    ("`-- -s 64K -S 128K`", &["-t", "TCP_STREAM"], &["-s", "64K", "-S", "128K"]),
    ("`-- -r 100,200`", &["-t", "TCP_RR"], &["-r", "100,200"]),
    ("`-- -b 8`", &["-t", "TCP_RR"], &["-b", "8"]),
    ("`-- -D`", &["-t", "TCP_RR"], &["-D"]),
    ("`-- -P ,26100`", &["-t", "TCP_RR"], &["-P", ",26100"]),
    ("`-- -o THROUGHPUT,ELAPSED_TIME`", &["-t", "TCP_RR"], &["-o", "THROUGHPUT,ELAPSED_TIME"]),
    ("`-- -O THROUGHPUT,P99_LATENCY`", &["-t", "TCP_RR"], &["-O", "THROUGHPUT,P99_LATENCY"]),
    ("`-- -k LSS_SIZE_END,REMOTE_SEND_CALLS`", &["-t", "TCP_RR"], &["-k", "LSS_SIZE_END,REMOTE_SEND_CALLS"]),
    ("`-- -o` (TCP_MAERTS)", &["-t", "TCP_MAERTS", "-c", "-C"], &["-o"]),
];
/// The same over IPv6, if the machine supports it.
const IPV6: &[(&str, &[&str], &[&str])] =
    &[("`-6` (TCP_STREAM)", &["-t", "TCP_STREAM", "-6"], &[]), ("`-6` (UDP_RR)", &["-t", "UDP_RR", "-6"], &[])];

/// Returns true if the original is installed. Reports it if it is missing.
fn is_there() -> bool {
    let is_there = is_installed("netperf") && is_installed("netserver");
    if !is_there {
        fathom_testkit::skip("needs netperf");
    }
    is_there
}

fn free_port() -> String {
    test_bed::free_port().to_string()
}

/// Starts the original server and fathom's, for both families.
fn servers(stage: &TestBed) -> [(RunningProgram, String); 2] {
    let (real, own) = (free_port(), free_port());
    let mut command = stage.command("netserver");
    command.args(["-D", "-p", &real]);
    let first = stage.spawn(command);
    first.says("Starting netserver");
    let second = stage.start(["as", "netserver", "-D", "-p", &own]);
    second.says("Starting netserver");
    [(first, real), (second, own)]
}

/// The words of a client for a server on the loopback.
fn words<'a>(port: &'a str, global: &[&'a str], of_test: &[&'a str]) -> Vec<&'a str> {
    let host = if global.contains(&"-6") { "::1" } else { "127.0.0.1" };
    let length: &[&str] = if global.contains(&"-l") { &[] } else { &["-l", "1"] };
    [&["-H", host, "-p", port][..], length, global, &["--"], of_test].concat()
}

fn theirs(stage: &TestBed, port: &str, global: &[&str], of_test: &[&str]) -> ProgramResult {
    let mut command = stage.command("netperf");
    command.args(words(port, global, of_test));
    stage.spawn(command).ends()
}

fn ours(stage: &TestBed, port: &str, global: &[&str], of_test: &[&str]) -> ProgramResult {
    stage.fathom([&["as", "netperf"][..], &words(port, global, of_test)].concat())
}

/// The words of a text with every number as `#`, so that two results of the same form are the same.
///
/// Without the line that the original adds if its timer fires before it has read the result of the signal before: how long it waits there
/// is up to the machine.
fn shape(text: &str) -> Vec<Vec<String>> {
    let is_number = |word: &str| word.trim_end_matches('%').parse::<f64>().is_ok();
    let word = |word: &str| -> String {
        let parts: Vec<&str> = word.split([',', '=']).map(|part| if is_number(part) { "#" } else { part }).collect();
        parts.join("|")
    };
    let lines = text.lines().filter(|line| !line.starts_with("catcher: timer popped"));
    lines.map(|line| line.split_whitespace().map(word).collect()).collect()
}

/// Whether a result shows a test that moved something: its last number line has a positive throughput.
fn has_result(ending: &ProgramResult) -> Result<(), String> {
    if !ending.has_succeeded() {
        return Err(format!("{} {}", ending.stdout.trim(), ending.stderr.trim()));
    }
    let numbers = ending.stdout.split([' ', '\n', ',', '=']).filter_map(|word| word.parse::<f64>().ok());
    if numbers.into_iter().any(|number| number > 1.0) { Ok(()) } else { Err(format!("no result: {}", ending.stdout)) }
}

#[test]
fn every_test_works_in_both_roles_against_the_real_netperf_with_its_text_as_the_table_says() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let [(_real, real), (_own, own)] = servers(&stage);
    let has_ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    let cases = [CASES, if has_ipv6 { IPV6 } else { &[] }].concat();
    let lines = side_by_side(&cases, |(name, global, of_test)| {
        let forward = ours(&stage, &real, global, of_test);
        let backward = theirs(&stage, &own, global, of_test);
        let model = theirs(&stage, &real, global, of_test);
        let (got, expected) = (shape(&forward.stdout), shape(&model.stdout));
        assert_eq!(got, expected, "{name}: the text is\n{}instead of\n{}", forward.stdout, model.stdout);
        let shown =
            |ending: &ProgramResult| has_result(ending).map_or_else(|why| format!("no: {why}"), |()| "yes".into());
        format!("| {name} | {} | {} |", shown(&forward), shown(&backward))
    });
    let table = lines.join("\n");
    assert!(!table.contains("| no"), "{table}");
    let page = fs::read_to_string(tree().join("docs/netperf.md")).unwrap();
    if has_ipv6 {
        assert!(page.contains(&table), "docs/netperf.md should hold\n{table}");
    }
}

#[test]
fn the_columns_of_a_result_begin_where_those_of_netperf_begin() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let [(_real, real), _] = servers(&stage);
    side_by_side(&["TCP_STREAM", "TCP_MAERTS", "TCP_RR", "TCP_CRR", "UDP_STREAM", "UDP_RR"], |test| {
        for cpu in [&[][..], &["-c", "-C"]] {
            let global = [&["-t", *test][..], cpu].concat();
            let of_test: &[&str] = if *test == "UDP_STREAM" { &["-m", "1000"] } else { &[] };
            let texts = [ours(&stage, &real, &global, of_test), theirs(&stage, &real, &global, of_test)];
            // Headers are the same to the blank.
            let headers = texts.each_ref().map(|ending| {
                let is_number = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
                ending.stdout.lines().filter(|line| !is_number(line)).map(str::to_owned).collect::<Vec<_>>()
            });
            assert_eq!(headers[0], headers[1], "{test} {cpu:?}");
            // The first columns are sizes, which do not depend on the speed.
            let columns = texts.each_ref().map(|ending| {
                let line =
                    ending.stdout.lines().find(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit()));
                line.unwrap_or_else(|| panic!("{}", ending.stdout))[..17].to_owned()
            });
            assert_eq!(columns[0], columns[1], "{test} {cpu:?}");
        }
    });
}

#[test]
fn real_clients_reach_our_server_from_another_host() {
    if lacks_root() || !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("netperf");
    let server = lab.exec("b", &[stage.program().to_str().unwrap(), "serve", "--only", "netperf"]);
    server.says("netperf ");
    for test in ["TCP_STREAM", "TCP_MAERTS", "TCP_SENDFILE", "TCP_RR", "TCP_CRR", "UDP_STREAM", "UDP_RR"] {
        let client = lab.exec("a", &["netperf", "-H", B, "-l", "1", "-P", "0", "-t", test]).ends();
        has_result(&client).unwrap_or_else(|why| panic!("{test}: {why}"));
        let client = lab.fathom("a", &["as", "netperf", "-H", B, "-l", "1", "-P", "0", "-t", test]);
        has_result(&client).unwrap_or_else(|why| panic!("{test}: {why}"));
    }
    lab.fathom("a", &["as", "netperf", "-H", "224.0.0.1", "-l", "1"]).refused(3, &["never a target"]);
}

#[test]
fn three_hundred_clients_are_served_at_once() {
    if !is_there() {
        return;
    }
    let stage = TestBed::new();
    let server = stage.start(["serve", "--only", "netperf", "--listen", "127.0.0.1", "--netperf=0"]);
    let port = server.says("netperf ").rsplit(':').next().unwrap().trim().to_owned();
    let client = || {
        let mut command = stage.command("netperf");
        command.args([
            "-H",
            "127.0.0.1",
            "-p",
            &port,
            "-l",
            "1",
            "-t",
            "TCP_RR",
            "-P",
            "0",
            "-v",
            "0",
            "--",
            "-r",
            "1,1",
        ]);
        stage.spawn(command)
    };
    let clients: Vec<RunningProgram> = (0..300).map(|_| client()).collect();
    let rates: Vec<f64> = clients
        .into_iter()
        .map(|client| {
            let ending = client.ends().succeeded();
            ending.stdout.trim().parse().unwrap_or_else(|_| panic!("{}{}", ending.stdout, ending.stderr))
        })
        .collect();
    assert!(rates.iter().all(|rate| *rate > 0.0), "{rates:?}");
}

#[test]
fn a_test_against_a_netserver_is_a_test_like_any_other() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let servers = servers(&stage);
    let brief = ["--duration", "600ms", "--warmup", "100ms", "--rounds", "2", "--json"];
    let cases: &[(&[&str], &[&str])] = &[
        (&["tcp", "--direction", "up"], &["throughput_bps", "server_throughput_bps", "server_host_cpu_ratio"]),
        (&["tcp", "--direction", "down"], &["throughput_bps", "server_throughput_bps"]),
        (
            &["tcp", "--test", "rr", "--flows", "4"],
            &["transactions_per_sec", "latency_ns_p99", "server_host_cpu_ratio"],
        ),
        (&["tcp", "--test", "crr"], &["transactions_per_sec", "latency_ns_p50"]),
        (&["udp", "--size", "100"], &["throughput_bps", "server_throughput_bps", "datagrams_per_sec"]),
        (&["udp", "--test", "rr", "--burst", "4"], &["transactions_per_sec", "latency_ns_p99"]),
    ];
    for (_, port) in &servers {
        let target = format!("127.0.0.1:{port}");
        side_by_side(cases, |(words, metrics)| {
            let words = [&words[..1], &[&target, "--protocol", "netperf"], &words[1..], &brief].concat();
            let run = stage.fathom(&words).succeeded().run();
            for name in *metrics {
                let summary = run.tests[0].summaries.iter().find(|summary| summary.metric.name == *name);
                let value = summary.and_then(|summary| summary.value).unwrap_or_else(|| panic!("{words:?}: no {name}"));
                assert!(value > 0.0, "{words:?}: {name} is {value}");
            }
        });
    }
    let words = ["tcp", "127.0.0.1", "--protocol", "netperf", "--test", "loaded"];
    stage.fathom(words).refused(2, &["--protocol netperf does not have this --test", "--test stream, rr, crr"]);
}

#[test]
fn errors_are_told_in_netperfs_words_and_end_the_program() {
    let stage = TestBed::beside_others();
    let port = free_port();
    let refused = ours(&stage, &port, &["-t", "TCP_RR"], &[]).code(1);
    assert!(refused.stdout.contains("are you sure there is a netserver listening on 127.0.0.1"), "{}", refused.stdout);
    assert!(refused.stderr.contains("Connection refused") && refused.stderr.contains("hint:"), "{}", refused.stderr);
    let unknown = ours(&stage, &port, &["-t", "SCTP_RR"], &[]).code(1);
    assert!(unknown.stdout.contains("The test you requested (SCTP_RR) is unknown"), "{}", unknown.stdout);
    let listed = ours(&stage, &port, &["-t", "omni"], &["-o", "THROUGHPUTS"]).code(1);
    assert!(listed.stderr.contains("no output"), "{}", listed.stderr);
    assert!(ours(&stage, &port, &["-h"], &[]).code(1).stdout.starts_with("Usage: netperf"));
    // A server that is killed in the middle of a test.
    let server = stage.start(["as", "netserver", "-D", "-L", "127.0.0.1", "-p", &port]);
    server.says("Starting netserver");
    let client =
        stage.start(["as", "netperf", "-H", "127.0.0.1", "-p", &port, "-l", "60", "-t", "TCP_RR", "-D", "0.1"]);
    client.says("Interim result");
    server.handle().kill().unwrap();
    let broken = client.ends().code(1);
    assert!(broken.stderr.contains("netperf: "), "{}", broken.stderr);
}

#[test]
fn a_netserver_goes_to_the_background_as_the_original_does() {
    let stage = TestBed::beside_others();
    let port = free_port();
    let started = stage.fathom(["as", "netserver", "-L", "127.0.0.1", "-p", &port]).succeeded();
    assert_eq!(
        started.stdout,
        format!("Starting netserver with host '127.0.0.1' port '{port}' and family AF_UNSPEC\n")
    );
    let test = || ours(&stage, &port, &["-t", "TCP_RR", "-l", "-10"], &[]);
    let served = until(|| Some(test()).filter(ProgramResult::has_succeeded));
    has_result(&served).unwrap();
    // The daemon has no parent to end it; it is found by the port in its command line.
    let daemons = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.unwrap().file_name().to_str()?.parse().ok()?;
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        words.contains(&format!("netserver\0-L\0127.0.0.1\0-p\0{port}\0")).then_some(pid)
    });
    let daemons: Vec<u32> = daemons.collect();
    assert_eq!(daemons.len(), 1);
    fathom_sys::process::Pidfd::open(daemons[0]).unwrap().kill().unwrap();
}
