//! The drop-in for iperf 2 compared with the original, line by line, and the tests of a plan against its server.

use std::collections::BTreeSet;

use fathom_sys::process::signal::Signal;

use crate::{
    compat::is_installed,
    test_bed::{self, ProgramResult, RunningProgram, TestBed, lacks_root, side_by_side},
};

/// The address of the second host of a lab.
const B: &str = "198.18.0.2";

/// Returns true if the original iperf is installed. Reports it if it is missing.
fn is_there() -> bool {
    let is_there = is_installed("iperf");
    if !is_there {
        fathom_testkit::skip("needs iperf");
    }
    is_there
}

fn free_port() -> String {
    test_bed::free_port().to_string()
}

/// Whose program runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Real,
    Ours,
}

fn started(stage: &TestBed, whose: Whose, words: &[&str]) -> RunningProgram {
    let mut command = match whose {
        Whose::Real => stage.command("iperf"),
        Whose::Ours => {
            let mut command = stage.command(stage.program());
            command.args(["as", "iperf"]);
            command
        }
    };
    command.args(words);
    stage.spawn(command)
}

/// Runs one test; returns the text of both ends, the client's first.
fn texts(stage: &TestBed, [client, server]: [Whose; 2], server_words: &[&str], words: &[&str]) -> [String; 2] {
    // The original takes a lower port for connections of the server for the beginning of a range.
    let (one, other): (u16, u16) = (free_port().parse().unwrap(), free_port().parse().unwrap());
    let (port, back) = (one.min(other).to_string(), one.max(other).to_string());
    let serving = started(stage, server, &[&["-s", "-p", &port], server_words].concat());
    serving.says("Server listening");
    serving.says("---");
    // The original prints this before it listens.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let asked = [&["-c", "127.0.0.1", "-p", &port, "-L", &back], words].concat();
    let ending = started(stage, client, &asked).ends().succeeded();
    // A server prints its last rows when it has noticed the end.
    std::thread::sleep(std::time::Duration::from_millis(700));
    serving.handle().send(Signal::Terminate).unwrap();
    [ending.stdout, serving.ends().stdout]
}

/// Returns the distinct lines of a text, with every number replaced by a single 0, every run of spaces by one, and without prefixes of units.
fn form(text: &str) -> BTreeSet<String> {
    let shown = |word: &str| {
        let is_number = word.bytes().any(|byte| byte.is_ascii_digit());
        // A ratio to a time of zero is NAN.
        if is_number || word == "NAN" { "0".to_owned() } else { word.replace(['K', 'M', 'G'], "") }
    };
    text.lines().map(|line| line.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")).collect()
}

/// A mode of the test: the words of the server and of the client.
type Mode = (&'static [&'static str], &'static [&'static str]);

const MODES: &[Mode] = &[
    (&["-i", "1"], &["-t", "2", "-i", "1", "-b", "20M"]),
    (&["-i", "1"], &["-t", "2", "-i", "1", "-b", "20M", "-P", "2"]),
    (&["-e", "-i", "1"], &["-e", "-t", "2", "-i", "1", "-b", "20M"]),
    (&[], &["-R", "-t", "1", "-b", "20M"]),
    (&[], &["--trip-times", "-t", "1", "-b", "20M"]),
    (&[], &["-r", "-t", "1", "-b", "20M"]),
    (&["-u", "-i", "1"], &["-u", "-t", "2", "-i", "1", "-b", "2M"]),
    (&["-u", "-e"], &["-u", "-e", "-t", "1", "-b", "2M"]),
    (&["-u"], &["-u", "-t", "1", "-b", "2M", "-P", "2"]),
    (&["-u"], &["-u", "--trip-times", "-t", "1", "-b", "2M"]),
];

#[test]
fn the_text_of_both_ends_has_the_form_of_the_real_one() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    side_by_side(MODES, |(server, client)| {
        let [real_client, real_server] = texts(&stage, [Whose::Real, Whose::Real], server, client);
        let [our_client, _] = texts(&stage, [Whose::Ours, Whose::Real], server, client);
        let [_, our_server] = texts(&stage, [Whose::Real, Whose::Ours], server, client);
        // Rows of a few milliseconds at the end may or may not exist, but they have the form of the others. With -r the original server
        // prints the settings of its own client, and a flow in datagrams may have arrived in another order.
        let is_optional =
            |line: &String| ["Client connecting", "TCP window", "out-of-order"].iter().any(|part| line.contains(part));
        let compared = |text: &str| form(text).into_iter().filter(|line| !is_optional(line)).collect::<BTreeSet<_>>();
        assert_eq!(
            compared(&our_client),
            compared(&real_client),
            "the client of {client:?}\n{our_client}\n{real_client}"
        );
        assert_eq!(
            compared(&our_server),
            compared(&real_server),
            "the server of {client:?}\n{our_server}\n{real_server}"
        );
    });
}

#[test]
fn a_test_against_a_server_of_iperf_is_a_test_like_any_other() {
    if !is_there() {
        return;
    }
    let stage = TestBed::new();
    let brief = ["--duration", "600ms", "--warmup", "100ms", "--rounds", "2", "--json"];
    for (layer, way) in [("tcp", "up"), ("tcp", "down"), ("udp", "up"), ("udp", "down")] {
        let port = free_port();
        // The original's server sometimes crashes when one flow of datagrams follows another, whoever its client is.
        let (whose, protocol): (Whose, &[&str]) =
            if layer == "udp" { (Whose::Ours, &["-u"]) } else { (Whose::Real, &[]) };
        let server = started(&stage, whose, &[&["-s", "-p", &port], protocol].concat());
        server.says("Server listening");
        std::thread::sleep(std::time::Duration::from_millis(200));
        let target = format!("127.0.0.1:{port}");
        let rate: &[&str] = if layer == "udp" { &["--rate", "20M", "--size", "1400"] } else { &[] };
        let words = [&[layer, &target, "--protocol", "iperf", "--direction", way][..], rate, &brief].concat();
        let run = stage.fathom(words).succeeded().run();
        let value = |name: &str| {
            let summary = run.tests[0].summaries.iter().find(|summary| summary.metric.name == name);
            summary.and_then(|summary| summary.value).unwrap_or_else(|| panic!("{layer} {way}: no {name}"))
        };
        assert!(value("throughput_bps") > 0.0, "{layer} {way}");
        if layer == "udp" {
            let off = value("throughput_bps") / 20e6;
            assert!((0.8..1.2).contains(&off), "{way}: {off} of the rate that was asked for");
            assert!(value("loss_ratio") < 0.05, "{way}");
        }
        server.handle().send(Signal::Terminate).unwrap();
    }
}

#[test]
fn a_target_that_does_not_answer_as_iperf_gets_no_load_without_permission() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("iperfed");
    let (_server, _) = lab.serve(&["--iperf"]);
    let datagrams_back = ["as", "iperf", "-c", B, "-u", "-R", "-t", "0.5"];
    let ending = lab.fathom("a", &datagrams_back).code(1);
    assert!(ending.stderr.contains("the server sent nothing"), "{}", ending.stderr);
    lab.fathom("a", &["as", "iperf", "-c", B, "-t", "0.5"]).succeeded();
    // The handshake of the test over TCP has proven the address.
    lab.fathom("a", &datagrams_back).succeeded();
    lab.fathom("a", &["as", "iperf", "-c", "224.0.0.1", "-t", "1"]).refused(3, &["never a target"]);
    // The port of http answers something else.
    let words = ["tcp", B, "--protocol", "iperf", "--port", "8080", "--duration", "300ms", "--rounds", "1"];
    let ending = lab.fathom("a", &words);
    assert!(!ending.has_succeeded() && ending.stderr.contains("no iperf server answered"), "{}", ending.stderr);
    let words = ["tcp", B, "--protocol", "iperf", "--duration", "300ms", "--warmup", "0s", "--rounds", "1"];
    lab.fathom("a", &words).succeeded();
    lab.fathom("a", &[&words[..], &["--unproven"]].concat()).refused(3, &["--allow"]);
}

#[test]
fn what_goes_wrong_is_said_in_one_line() {
    let stage = TestBed::beside_others();
    let ours = |words: &[&str]| -> ProgramResult { started(&stage, Whose::Ours, words).ends().code(1) };
    let nobody = free_port();
    let refused = ours(&["-c", "127.0.0.1", "-p", &nobody, "-t", "1"]);
    assert!(refused.stderr.starts_with("tcp connect failed: Connection refused\n"), "{}", refused.stderr);
    let refused = ours(&["-c", "127.0.0.1", "-u", "-p", &nobody, "-t", "1"]);
    assert!(refused.stderr.contains("failed: Connection refused"), "{}", refused.stderr);
    let unknown = ours(&["-c", "nohost.invalid", "-t", "1"]);
    assert!(unknown.stderr.starts_with("nohost.invalid: "), "{}", unknown.stderr);
    let usage = ours(&["-e"]);
    assert!(usage.stderr.starts_with("Usage: iperf [-s|-c host] [options]"), "{}", usage.stderr);
    let port = free_port();
    let server = started(&stage, Whose::Ours, &["-s", "-p", &port]);
    server.says("Server listening");
    let busy = ours(&["-s", "-p", &port]);
    assert!(busy.stderr.starts_with("bind failed: Address already in use\n"), "{}", busy.stderr);
    let mut piped = stage.command("sh");
    let line =
        format!("'{}' as iperf -c 127.0.0.1 -p {port} -t 1 -i 0.2 | head -n 1; echo ended", stage.program().display());
    piped.args(["-c", &line]);
    let ending = stage.spawn(piped).ends().succeeded();
    assert!(ending.stdout.ends_with("ended\n") && !ending.stderr.contains("panicked"), "{}", ending.stderr);
    server.handle().send(Signal::Terminate).unwrap();
}
