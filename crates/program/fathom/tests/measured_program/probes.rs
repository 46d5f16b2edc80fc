//! Single packets through a router of a lab, with planted conditions, and `as hping3` compared with hping3.

use fathom_model::{
    Run, TestRun,
    probe::{
        PortState::{Closed, Filtered, Open, OpenOrFiltered},
        ProbeRecord,
    },
};

use crate::{
    compat::is_installed,
    test_bed::{ProgramResult, RunningLab, TestBed, lacks_root, until},
};

/// The addresses of the router lab.
const NEAR: &str = "198.18.0.254";
const B: &str = "198.18.1.1";
/// A user without any files.
const NOBODY: u32 = 65_534;

/// Returns the probe results of one kind.
#[track_caller]
fn probe<'a>(run: &'a Run, kind: &str) -> &'a ProbeRecord {
    let mut records = test(run, kind).trials[0].records.values();
    records.find_map(|record| record.probe.as_ref()).unwrap()
}

#[track_caller]
fn test<'a>(run: &'a Run, kind: &str) -> &'a TestRun {
    run.tests.iter().find(|test| test.kind == kind).unwrap()
}

#[track_caller]
fn total(run: &Run, kind: &str, counter: &str) -> u64 {
    let mut records = test(run, kind).trials[0].records.values();
    records.find_map(|record| record.totals.get(counter)).copied().unwrap()
}

fn findings(run: &Run) -> Vec<&str> {
    run.findings.iter().map(|finding| finding.id.as_str()).collect()
}

/// Returns true and reports it if a program for planting conditions is missing.
pub(crate) fn lacks(tools: &[&str]) -> bool {
    let missing =
        tools.iter().find(|tool| !is_installed(tool) && !std::path::Path::new("/usr/sbin").join(tool).exists());
    if let Some(tool) = missing {
        fathom_testkit::skip(&format!("needs {tool}"));
    }
    missing.is_some()
}

/// Plants filter rules on a host, all in the chain of one hook.
fn plant(lab: &RunningLab<'_>, host: &str, hook: &str, rules: &[&str]) {
    let rules = rules.join("\n  ");
    let table =
        format!("table inet planted {{\n chain c {{\n  type filter hook {hook} priority 0\n  {rules}\n }}\n}}\n");
    let script = format!("nft -f - <<'X'\n{table}X\n");
    lab.exec(host, &["sh", "-c", &script]).ends().succeeded();
}

#[test]
fn probes_through_a_lab_show_its_router_its_mtu_and_no_loss() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let run = stage.fathom(["probe", "--lab", "router", "--json"]).succeeded().run();
    for (counter, n) in [("sent", 10), ("received", 10), ("lost", 0), ("late", 0), ("duplicates", 0), ("reordered", 0)]
    {
        assert_eq!(total(&run, "probe", counter), n, "{counter}");
    }
    let rtt = test(&run, "probe").summaries[0].value.unwrap();
    assert!(rtt > 1e3 && rtt < 1e9, "{rtt} ns");
    let loss = test(&run, "probe").summaries.iter().find(|summary| summary.metric.name == "loss_ratio").unwrap();
    let interval = loss.confidence.unwrap();
    // With 0 of 10 lost, the true loss can be up to 28 % (Wilson).
    assert!(loss.value == Some(0.0) && interval.low == 0.0 && (0.27..0.29).contains(&interval.high), "{interval:?}");
    let mtu = probe(&run, "probe_mtu").path_mtu.clone().unwrap();
    assert_eq!((mtu.mtu_bytes, mtu.vanishing_from_bytes, mtu.too_big.len()), (Some(1500), None, 0));
    let hops = &probe(&run, "probe_route").hops;
    let seen: Vec<_> =
        hops.iter().map(|hop| (hop.addresses.join(" "), hop.n_sent, hop.rtt_ns.len(), hop.target)).collect();
    assert_eq!(seen, [(NEAR.to_owned(), 3, 3, false), (B.to_owned(), 3, 3, true)]);

    let text = stage.fathom(["probe", "--lab", "router"]).succeeded().stdout;
    for word in ["packets of up to 1,500 B come through", NEAR, "the host", "hop"] {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

#[test]
fn every_protocol_reaches_a_host_of_both_versions_of_ip() {
    if lacks_root() {
        return;
    }
    // The kernel limits its error messages for the whole loopback interface.
    let stage = TestBed::of_low_rates();
    for host in ["127.0.0.1", "::1"] {
        for protocol in ["icmp", "tcp", "udp", "ip"] {
            // Nobody listens on port 1, but the refusal is also a reply.
            let port: &[&str] = if ["tcp", "udp"].contains(&protocol) { &["--port", "1"] } else { &[] };
            // The kernel of the host limits its error messages: RFC 1812 section 4.3.2.8, RFC 4443 section 2.4.
            let words = [
                "probe",
                host,
                "--test",
                "rtt",
                "--protocol",
                protocol,
                "--count",
                "3",
                "--interval",
                "20ms",
                "--json",
            ];
            let run = stage.fathom([&words[..], port].concat()).succeeded().run();
            assert_eq!((total(&run, "probe", "received"), total(&run, "probe", "sent")), (3, 3), "{host} {protocol}");
        }
        let run = stage.fathom(["probe", host, "--test", "route", "--protocol", "tcp", "--json"]).succeeded().run();
        assert_eq!(probe(&run, "probe_route").hops.len(), 1);
        let mtu = stage.fathom(["probe", host, "--test", "mtu", "--json"]).succeeded().run();
        assert!(probe(&mtu, "probe_mtu").path_mtu.as_ref().unwrap().mtu_bytes.unwrap() > 1500);
    }
}

#[test]
fn an_answer_that_passes_a_port_and_its_bridge_came_once() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_with(&["lab", "up", "pair", "--device", "bridge", "--name", "bridged"], "bridged");
    for protocol in ["icmp", "udp", "tcp"] {
        let words =
            ["probe", "198.18.0.2", "--test", "rtt", "--protocol", protocol, "--count", "3", "--interval", "20ms"];
        let run = lab.fathom("dut", &[&words[..], &["--json"]].concat()).run();
        let counts = ["received", "duplicates"].map(|counter| total(&run, "probe", counter));
        assert_eq!(counts, [3, 0], "{protocol}");
    }
}

#[test]
fn a_narrow_link_is_found_whether_its_router_speaks_or_not() {
    if lacks_root() || lacks(&["ip", "nft"]) {
        return;
    }
    // A packet that nobody answers in time counts as lost.
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("router", "narrow");
    lab.exec("dut", &["ip", "link", "set", "eth1", "mtu", "1400"]).ends().succeeded();
    let search = || {
        let words = ["probe", B, "--test", "mtu", "--timeout", "200ms", "--json"];
        let run = lab.fathom("a", &words).succeeded().run();
        (probe(&run, "probe_mtu").path_mtu.clone().unwrap(), findings(&run).contains(&"path-mtu-black-hole"))
    };
    let (told, is_black_hole) = search();
    assert_eq!((told.mtu_bytes, told.vanishing_from_bytes, is_black_hole), (Some(1400), None, false));
    assert_eq!(
        told.too_big.iter().map(|said| (said.from.as_str(), said.mtu_bytes)).collect::<Vec<_>>(),
        [(NEAR, 1400)]
    );

    plant(&lab, "dut", "output", &["icmp type destination-unreachable drop"]);
    let (silent, is_black_hole) = search();
    assert_eq!((silent.mtu_bytes, silent.vanishing_from_bytes, is_black_hole), (Some(1400), Some(1401), true));
    assert_eq!(silent.too_big, []);
    let text = lab.fathom("a", &["probe", B, "--test", "mtu", "--timeout", "200ms"]).succeeded().stdout;
    assert!(text.contains("black hole: packets of 1,401 B and more vanish"), "{text}");
}

#[test]
fn lost_probes_and_an_outage_are_those_that_were_planted() {
    if lacks_root() || lacks(&["nft"]) {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("router", "lossy");
    let rules =
        ["icmp type echo-request icmp sequence { 3, 7, 11 } drop", "icmp type echo-request icmp sequence 20-29 drop"];
    plant(&lab, "dut", "forward", &rules);
    let words = ["probe", B, "--count", "50", "--interval", "10ms", "--timeout", "300ms", "--json"];
    let run = lab.fathom("a", &words).succeeded().run();
    assert_eq!((total(&run, "probe", "sent"), total(&run, "probe", "lost")), (50, 13));
    let outages = &probe(&run, "probe").outages;
    assert_eq!(outages.len(), 1, "{outages:?}");
    let (from, length) = (outages[0].from_ns.as_secs_f64(), outages[0].length_ns.unwrap().as_secs_f64());
    assert!(outages[0].n_probes == 10 && from >= 0.19 && length >= 0.05, "from {from} s, {length} s");
    assert!(findings(&run).contains(&"outage"));

    // A closed port is reported six times in a row and then once per second, which is not an outage.
    let words =
        ["probe", B, "--protocol", "udp", "--count", "12", "--interval", "10ms", "--timeout", "100ms", "--json"];
    let limited = lab.fathom("a", &words).succeeded().run();
    let record = limited.tests[0].trials[0].records.values().next().unwrap();
    let notes: Vec<&str> = record.notes.iter().map(|note| note.id.as_str()).collect();
    assert!(notes.contains(&"answers-limited") && probe(&limited, "probe").outages.is_empty(), "{notes:?}");

    plant(&lab, "b", "input", &["ip protocol icmp drop"]);
    let silent = lab.fathom("a", &["probe", B, "--count", "3", "--timeout", "100ms", "--json"]).code(1).run();
    assert_eq!((total(&silent, "probe", "received"), findings(&silent).contains(&"unreachable")), (0, true));
    let route = lab.fathom("a", &["probe", B, "--test", "route", "--timeout", "100ms"]);
    assert!(!route.stderr.contains("defect"), "{}", route.stderr);
    // By another protocol the host is reachable, and a promise is judged.
    let tcp = ["probe", B, "--protocol", "tcp", "--count", "3", "--expect"];
    lab.fathom("a", &[&tcp[..], &["loss_ratio<=0.9"]].concat()).succeeded();
    lab.fathom("a", &[&tcp[..], &["rtt_ns_max<1ns"]].concat()).broke_its_promise();
}

#[test]
fn a_link_of_one_s_own_that_goes_down_is_an_outage_and_not_the_end() {
    if lacks_root() || lacks(&["ip"]) {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("pair", "down");
    let n_sent = || {
        // The name is followed by eight receive columns, then by the bytes and packets sent.
        let read = lab.exec("a", &["grep", "eth0:", "/proc/net/dev"]).ends().succeeded();
        read.stdout.split_whitespace().nth(10).unwrap().parse::<u64>().unwrap()
    };
    let link = |word: &str| {
        lab.exec("a", &["ip", "link", "set", "eth0", word]).ends().succeeded();
    };
    let before = n_sent();
    // Two processes start and end between down and up. More than one probe is due in that time.
    let words =
        ["probe", "198.18.0.2", "--until", "4s", "--interval", "1ms", "--timeout", "100ms", "--outage-probes", "1"];
    let probing = lab.start("a", &[&words[..], &["--json"]].concat());
    until(|| (n_sent() > before + 50).then_some(()));
    link("down");
    link("up");
    let run = probing.ends().succeeded().run();
    assert_eq!(run.completeness, fathom_model::run::Completeness::Complete);
    let outages = &probe(&run, "probe").outages;
    let is_whole = |outage: &fathom_model::probe::OutageRecord| outage.length_ns.is_some();
    assert!(!outages.is_empty() && outages.iter().all(is_whole), "{outages:?}");
    assert!(total(&run, "probe", "lost") > 0 && findings(&run).contains(&"outage"));
    let errors = test(&run, "probe").trials[0].records.values().flat_map(|record| record.errors.keys());
    assert!(errors.map(ToString::to_string).any(|error| error == "no way from the own host"));
}

#[test]
fn ports_are_open_closed_or_filtered_as_they_were_planted() {
    if lacks_root() || lacks(&["nft"]) {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("router", "ports");
    let server = lab.start("b", &["serve", "--only", "http", "--listen", "0.0.0.0", "--http-port", "80"]);
    server.says("http");
    let rules = ["tcp dport 82 drop", "tcp dport 83 reject with icmp type admin-prohibited", "udp dport 82 drop"];
    plant(&lab, "b", "input", &rules);
    let scan = |words: &[&str]| {
        let scan = ["probe", B, "--ports", "79-83", "--timeout", "200ms", "--json"];
        let run = lab.fathom("a", &[&scan[..], words].concat()).succeeded().run();
        probe(&run, "probe_ports").ports.clone()
    };
    let ports = scan(&[]);
    let states: Vec<_> = ports.iter().map(|port| (port.port, port.state)).collect();
    assert_eq!(states, [(79, Closed), (80, Open), (81, Closed), (82, Filtered), (83, Filtered)]);
    assert_eq!(ports[4].answer, format!("prohibited by a filter, says {B}"));
    assert_eq!((ports[3].answer.as_str(), ports[3].rtt_ns), ("nothing", None));
    let states: Vec<_> = scan(&["--protocol", "udp"]).iter().map(|port| port.state).collect();
    assert_eq!(states, [Closed, Closed, Closed, OpenOrFiltered, Closed]);
}

#[test]
fn a_flood_reads_its_answers_and_counts_them_truly() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let run = stage.fathom(["probe", "127.0.0.1", "--flood", "--count", "5000", "--json"]).succeeded().run();
    let (sent, received) = (total(&run, "probe", "sent"), total(&run, "probe", "received"));
    assert_eq!((sent, received + total(&run, "probe", "lost")), (5000, 5000));
    assert!(received > 4000, "{received} answers");
    let rate = test(&run, "probe").summaries.iter().find(|summary| summary.metric.name == "sent_per_sec").unwrap();
    assert!(rate.value.unwrap() > 1000.0, "{rate:?}");
}

#[test]
fn what_cannot_be_probed_is_refused_with_the_way_out() {
    let stage = TestBed::beside_others();
    let refused = |code, words: &[&str], said: &[&str]| stage.fathom([&["probe"], words].concat()).refused(code, said);
    refused(3, &["192.0.2.1", "--flood"], &["192.0.2.1 is not a target you have allowed", "--allow 192.0.2.1"]);
    refused(3, &["224.0.0.1", "--allow", "224.0.0.0/4"], &["224.0.0.1 is never a target"]);
    refused(2, &[], &["needs a HOST", "--lab router"]);
    refused(2, &["127.0.0.1", "--test", "mtu", "--count", "3"], &["--count has no effect on --test mtu"]);
    refused(2, &["127.0.0.1", "--until", "2001-01-01T00:00"], &["is not a time in the future"]);
    refused(2, &["127.0.0.1", "--test", "ports", "--protocol", "icmp"], &["protocol"]);
    refused(3, &["127.0.0.1", "--ports", "80-70"], &["`80-70` is neither a port nor a range", "--ports 22,80"]);
    refused(3, &["127.0.0.1", "--count", "1", "--source", "192.0.2.9"], &["cannot send from 192.0.2.9"]);
    refused(3, &["127.0.0.1", "--count", "1", "--timeout", "1h"], &["option `timeout` takes"]);
    let drop_in =
        |code, words: &[&str], said: &[&str]| stage.fathom([&["as", "hping3"], words].concat()).refused(code, said);
    let flood = "fathom as --allow 192.0.2.1 hping3 --flood 192.0.2.1";
    drop_in(3, &["--flood", "192.0.2.1"], &["192.0.2.1 is not a target", flood]);
    drop_in(3, &["224.0.0.1"], &["224.0.0.1 is never a target"]);
    drop_in(3, &["-S", "-a", "192.0.2.9", "127.0.0.1"], &["192.0.2.9 is not this host's address", "only in labs"]);
    drop_in(3, &["-S", "--rand-source", "127.0.0.1"], &["--rand-source is not this host", "only in labs"]);
    drop_in(1, &["--listen", ""], &["--listen needs a signature"]);
    drop_in(1, &["--lsrr", "x", "127.0.0.1"], &["hping3 --lsrr, --ssrr and --icmp-gw is not done here", "RFC 7126"]);
    drop_in(1, &["-2", "-d", "9", "-E", "/no/such", "127.0.0.1"], &["cannot send /no/such", "No such file"]);
    drop_in(1, &["-1", "-G", "::1"], &["is an IPv6 address", "-G"]);
    drop_in(1, &["--nosuch", "127.0.0.1"], &["unrecognized option `--nosuch'"]);
}

#[test]
fn without_root_a_lab_of_one_s_own_is_probed_and_elsewhere_the_ways_out_are_told() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::owned_by(NOBODY);
    let as_nobody = |words: &[&str]| {
        let mut command = stage.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(stage.program()).args(words);
        stage.spawn(command).ends()
    };
    as_nobody(&["probe", "127.0.0.1", "--count", "1"])
        .refused(3, &["needs CAP_NET_RAW", "sudo fathom", "setcap", "in a user namespace"]);
    let none = as_nobody(&["probe", "127.0.0.1"]).code(3);
    assert_eq!(none.stdout.matches("needs CAP_NET_RAW").count(), 3, "{}", none.stdout);
    assert!(none.stderr.contains("no test could be started") && none.stderr.contains("fathom doctor"));
    let run = as_nobody(&["probe", "--lab", "router", "--json"]).succeeded().run();
    assert_eq!(probe(&run, "probe_route").hops.len(), 2);
}

#[test]
fn without_a_capability_the_kernel_s_own_socket_for_echo_requests_probes_where_the_sysctl_lets_it() {
    if lacks_root() || lacks(&["ip", "nft", "setpriv"]) {
        return;
    }
    let stage = TestBed::owned_by(NOBODY);
    let lab = stage.lab_of("router", "nobody");
    let program = stage.program().to_str().unwrap();
    // The state of the test bed is that of the lab, which root started.
    let state = format!("FATHOM_STATE={}", stage.path("own").display());
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", &state, program, "probe"];
    let as_nobody =
        |words: &[&str]| lab.exec("a", &[&nobody[..], words, &["--allow", "198.18.0.0/15"]].concat()).ends();
    let set = |groups: &str| {
        let script = format!("echo '{groups}' > /proc/sys/net/ipv4/ping_group_range");
        lab.exec("a", &["sh", "-c", &script]).ends().succeeded();
    };
    set("1 0");
    let ways = ["needs CAP_NET_RAW, or a group that net.ipv4.ping_group_range names", "sudo fathom", "setcap"];
    let ways = [&ways[..], &["sysctl -w net.ipv4.ping_group_range='0 2147483647'"]].concat();
    as_nobody(&[B, "--count", "1"]).refused(3, &ways);
    set("0 2147483647");
    lab.exec("dut", &["ip", "link", "set", "eth1", "mtu", "1400"]).ends().succeeded();
    let run = as_nobody(&[B, "--json"]).succeeded().run();
    assert_eq!((total(&run, "probe", "sent"), total(&run, "probe", "received")), (10, 10));
    let notes = test(&run, "probe").trials[0].records.values().flat_map(|record| &record.notes);
    assert!(notes.map(|note| note.id.as_str()).any(|id| id == "probe-unprivileged"));
    // Error messages of routers arrive as well.
    let mtu = probe(&run, "probe_mtu").path_mtu.clone().unwrap();
    let told: Vec<_> = mtu.too_big.iter().map(|said| (said.from.as_str(), said.mtu_bytes)).collect();
    assert_eq!((mtu.mtu_bytes, told), (Some(1400), vec![(NEAR, 1400)]));
    let hops: Vec<_> =
        probe(&run, "probe_route").hops.iter().map(|hop| (hop.addresses.join(" "), hop.target)).collect();
    assert_eq!(hops, [(NEAR.to_owned(), false), (B.to_owned(), true)]);
    let run = as_nobody(&["127.0.0.1", "--json"]).succeeded().run();
    assert_eq!((total(&run, "probe", "received"), probe(&run, "probe_route").hops.len()), (10, 1));
    assert!(probe(&run, "probe_mtu").path_mtu.as_ref().unwrap().mtu_bytes.unwrap() > 60_000);
    let silent = as_nobody(&["198.18.1.77", "--count", "2", "--timeout", "100ms", "--json"]).code(1).run();
    assert_eq!(total(&silent, "probe", "received"), 0);
    let text = as_nobody(&[B, "--count", "2"]).succeeded().stdout;
    assert!(text.contains("without CAP_NET_RAW the kernel's own socket"), "{text}");
    as_nobody(&[B, "--protocol", "udp", "--test", "rtt"])
        .refused(3, &["needs CAP_NET_RAW", "--protocol icmp", "--protocol tcp"]);
    as_nobody(&[B, "--protocol", "tcp", "--test", "route"]).refused(3, &["needs CAP_NET_RAW", "--protocol icmp"]);
    let server = lab.start("b", &["serve", "--only", "http", "--listen", "0.0.0.0", "--http-port", "80"]);
    server.says("http");
    for port in ["80", "81"] {
        let words = [B, "--protocol", "tcp", "--port", port, "--count", "5", "--json"];
        let run = as_nobody(&words).succeeded().run();
        assert_eq!((total(&run, "probe", "sent"), total(&run, "probe", "received")), (5, 5), "port {port}");
    }
    plant(&lab, "b", "input", &["tcp dport 82 drop"]);
    let words = [B, "--protocol", "tcp", "--port", "82", "--count", "2", "--timeout", "200ms", "--json"];
    assert_eq!(total(&as_nobody(&words).code(1).run(), "probe", "received"), 0);
    let ports = as_nobody(&[B, "--ports", "80-82", "--timeout", "300ms", "--json"]).succeeded().run();
    let states: Vec<_> = probe(&ports, "probe_ports").ports.iter().map(|port| port.state).collect();
    assert_eq!(states, [Open, Closed, Filtered]);
}

/// Returns a line without its numbers and hexadecimal numbers, and without its alignment.
fn shape(line: &str) -> String {
    // Only the length of a dump is the same in two runs.
    if line.starts_with("\t\t") {
        return format!("dump of {} characters", line.len());
    }
    let mut shape = String::new();
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        let word = if word.starts_with("sum=") { "sum=#" } else { word };
        for c in word.chars() {
            let c = if c.is_ascii_digit() { '#' } else { c };
            if !(c == '#' && shape.ends_with('#')) {
                shape.push(c);
            }
        }
        shape.push(' ');
    }
    shape
}

/// Returns the lines of both streams in comparable form.
fn shapes(ending: &ProgramResult) -> (Vec<String>, Vec<String>) {
    // hping3 leaves out the first of nine places of a route, and prints needless warnings.
    let of = |text: &str| {
        let text = text.replace("RR: \t1.2.3.4\n\t", "RR: \t");
        let warns = |line: &&str| line.starts_with("[main] memlockall") || line.starts_with("Warning: can't disable");
        text.lines().filter(|line| !warns(line)).map(shape).collect()
    };
    (of(&ending.stdout), of(&ending.stderr))
}

/// Compares the data that our listener receives from a file sent by hping3 and by fathom.
fn listening(stage: &TestBed, lab: &RunningLab<'_>) {
    let file = stage.path("pieces");
    std::fs::write(&file, "ABCDEFGHIJ").unwrap();
    let words =
        ["-n", "-i", "u20000", "-2", "-p", "9", "-c", "4", "-e", "SIGN", "-d", "8", "-E", file.to_str().unwrap(), B];
    let heard = |send: &dyn Fn()| {
        let program = stage.program().display();
        let script = format!("exec {program} as hping3 --listen SIGN -I eth0 -c 4 2>&1");
        let listener = lab.exec("b", &["sh", "-c", &script]);
        listener.says("hping3 listen mode");
        send();
        listener.ends().code(0).stdout
    };
    let theirs = heard(&|| {
        lab.exec("a", &[&["hping3"], &words[..]].concat()).ends().code(0);
    });
    let ours = heard(&|| {
        lab.fathom("a", &[&["as", "hping3"], &words[..]].concat()).code(0);
    });
    let expected = "hping3 listen mode\nABCDEFGHIJ\0\0ABCD\n---";
    assert!(ours.starts_with(expected) && theirs.starts_with(expected), "{ours:?} {theirs:?}");
}

/// The arguments for both programs, and the expected exit codes.
const CASES: &[(&[&str], i32)] = &[
    (&["-S", "-p", "80", "-c", "3"], 0),
    (&["-S", "-p", "81", "-c", "2"], 0),
    (&["-S", "-p", "82", "-c", "1"], 1),
    (&["-A", "-p", "80", "-c", "2"], 0),
    (&["-F", "-p", "81", "-c", "2"], 0),
    (&["-F", "-p", "80", "-c", "1"], 1),
    (&["-F", "-P", "-U", "-R", "-X", "-Y", "-p", "80", "-c", "1"], 1),
    (&["-1", "-c", "2"], 0),
    (&["-1", "-c", "2", "-d", "56"], 0),
    (&["-1", "-C", "13", "-c", "2"], 0),
    (&["-2", "-p", "9", "-c", "2"], 0),
    (&["-S", "-p", "80", "-c", "2", "-V"], 0),
    (&["-S", "-p", "80", "-c", "2", "-Q"], 0),
    (&["-S", "-p", "80", "-c", "2", "-q"], 0),
    (&["-S", "-p", "++79", "-c", "3"], 0),
    (&["-S", "-p", "80", "-c", "2", "-r"], 0),
    (&["-S", "-p", "80", "-c", "1", "--tcp-timestamp", "-V"], 0),
    (&["-S", "-p", "80", "-c", "1", "--tcp-mss", "1000", "-d", "20"], 0),
    (&["-S", "-p", "80", "-c", "2", "--tcpexitcode"], 18),
    (&["-S", "-p", "80", "-y", "-t", "9", "-N", "7", "-w", "99", "-s", "5000", "-M", "9", "-L", "3", "-c", "2"], 0),
    // Far enough apart for the rate limit of the router.
    (&["-T", "-1", "-c", "3", "-i", "u400000"], 0),
    (&["-T", "-S", "-p", "80", "-c", "9", "--tr-stop", "-i", "u400000"], 0),
    (&["-1", "-t", "1", "-c", "1"], 0),
    (&["-S", "-p", "80", "-c", "1", "-a", "198.18.0.77"], 1),
    (&["-1", "-c", "2", "--rand-source"], 1),
    // hping3 gives all packets the same identification, so fragments of two packets in flight would be mixed up. Without
    // -N it is the low byte of the process's number; 0 the kernel replaces for each fragment, and nothing reassembles.
    (&["-1", "-c", "1", "-d", "40", "-f", "-N", "7"], 0),
    (&["-1", "-c", "1", "-d", "40", "-m", "24", "-N", "8"], 0),
    (&["-2", "-p", "9", "-c", "1", "-d", "4000", "-N", "9"], 0),
    (&["-1", "-c", "1", "-x"], 1),
    (&["-S", "-p", "80", "-c", "1", "-g", "8"], 1),
    (&["-S", "-p", "80", "-c", "1", "-b"], 1),
    (&["-1", "-c", "3", "-G"], 0),
    (&["-2", "-p", "9", "-c", "1", "-G"], 0),
    (&["-S", "-p", "80", "-c", "2", "-V", "-G"], 0),
    (&["-1", "-c", "2", "-d", "21", "-j"], 0),
    (&["-2", "-p", "9", "-c", "1", "-J"], 0),
    (&["-S", "-p", "80", "-c", "2", "-j", "-J", "-V"], 0),
    (&["-1", "-c", "1", "-G", "-j"], 0),
    (&["-S", "-p", "80", "-c", "1", "-j", "-q"], 0),
    (&["-2", "-p", "9", "-c", "1", "-e", "hello"], 0),
];

#[test]
fn the_face_of_hping3_prints_what_hping3_prints() {
    if lacks_root() || lacks(&["hping3", "nft"]) {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab_of("router", "hping");
    let server = lab.start("b", &["serve", "--only", "http", "--listen", "0.0.0.0", "--http-port", "80"]);
    server.says("http");
    plant(&lab, "b", "input", &["tcp dport 82 drop"]);
    // Both programs make the router send errors, which it limits to six in a row and then one per second.
    lab.exec("dut", &["sh", "-c", "echo 0 > /proc/sys/net/ipv4/icmp_ratelimit"]).ends().succeeded();
    let fast = ["-n", "-i", "u20000"];
    for (words, code) in CASES {
        let words = [&fast[..], words, &[B]].concat();
        let theirs = lab.exec("a", &[&["hping3"], &words[..]].concat()).ends().code(*code);
        let ours = lab.fathom("a", &[&["as", "hping3"], &words[..]].concat()).code(*code);
        assert_eq!(shapes(&ours), shapes(&theirs), "{words:?}\n{}{}", ours.stdout, theirs.stdout);
    }
    // With -V, hping3 repeats its first line for each of its processes.
    for words in [&["-8", "79-82", "-S", B][..], &["-8", "80,81", "-S", B]] {
        let theirs = lab.exec("a", &[&["hping3"], words].concat()).ends().code(0);
        let ours = lab.fathom("a", &[&["as", "hping3"], words].concat()).code(0);
        assert_eq!(shapes(&ours).0, shapes(&theirs).0, "{words:?}\n{}{}", ours.stdout, theirs.stdout);
        // hping3 moves the cursor in its last line of stderr.
        assert_eq!(shapes(&ours).1[..5], shapes(&theirs).1[..5], "{words:?}");
    }
    listening(&stage, &lab);
    let flood = ["-S", "-p", "80", "--flood", "-c", "2000", B];
    let ours = lab.fathom("a", &[&["as", "hping3"], &flood[..]].concat()).code(0);
    assert!(
        ours.stderr.contains("hping in flood mode") && ours.stderr.contains("2000 packets transmitted"),
        "{}",
        ours.stderr
    );
    assert!(!ours.stderr.contains(", 0 packets received"), "replies are counted: {}", ours.stderr);
}
