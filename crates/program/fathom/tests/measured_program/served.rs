//! Two hosts that know only an address and a key of each other.

use std::{
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use fathom_model::{TestRun, run::Completeness, units::Nanos};
use fathom_sys::process::signal::Signal;
use fathom_wire::{ETHERTYPE_IPV4, Ethernet, Ipv4, PROTOCOL_UDP};

use crate::{
    evaluation::is_whole,
    faults::lacks_commands,
    probes::lacks,
    test_bed::{BRIEF, RunningLab, TestBed, lacks_root, until},
};

/// Host b of the preset `pair`.
const B: &str = "198.18.0.2";
/// The maximum difference between the starts of both sides of a trial.
const SKEW_MAX: Nanos = Nanos::from_millis(10);

/// Lets host b of a lab take new connections and datagrams at these ports alone.
fn open_only(lab: &RunningLab<'_>, ports: &str) {
    let rules = format!(
        "table inet gate {{\n chain arriving {{\n type filter hook input priority 0\n ct state established accept\n \
         iif eth0 meta l4proto {{ tcp, udp }} th dport != {{ {ports} }} drop\n }}\n}}\n"
    );
    lab.exec("b", &["nft", &rules]).ends().succeeded();
}

#[test]
fn a_served_host_is_evaluated_by_its_address_and_key_through_a_firewall_with_two_open_ports() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab("strangers");
    let (server, key) = lab.serve(&[]);
    open_only(&lab, "7700, 7701");
    let words = [&["evaluate", B, "--key", &key, "--port", "7701", "--quick", "--json"], BRIEF].concat();
    let run = lab.fathom("a", &words).succeeded().run();
    is_whole(&run);
    assert!(
        run.hosts.values().all(|host| host.interface.as_deref() == Some("eth0")),
        "interfaces are found by address"
    );
    let trials = run.tests.iter().flat_map(|test| &test.trials);
    let mut skews: Vec<Nanos> = trials.map(|trial| trial.start_skew_ns).collect();
    skews.sort_unstable();
    assert!(skews[skews.len() / 2] < SKEW_MAX, "{skews:?}");
    assert!(!serde_json::to_string(&run).unwrap().contains(&key), "the key is not in the document");
    drop(server);
}

#[test]
fn a_firewall_that_lets_the_port_of_controllers_pass_alone_is_told_once() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("gated");
    let (_server, key) = lab.serve(&[]);
    open_only(&lab, "7700");
    let test = |name: &str| {
        format!(
            "[[tests]]\nname = \"{name}\"\nkind = \"tcp_rr\"\nfrom = \"here\"\nto = \"there\"\nwarmup = \"0s\"\nduration = \"100ms\"\n"
        )
    };
    let hosts =
        format!("[hosts]\nhere = \"self\"\nthere = {{ tls = {{ address = \"{B}:7700\", key = \"{key}\" }} }}\n");
    let plan = stage.path("gated.toml");
    let head = "schema = \"fathom.plan/1\"\ntitle = \"gated\"\nrounds = 1\n";
    fs::write(&plan, [head, &hosts, &test("one"), &test("two")].concat()).unwrap();
    let run = lab.fathom("a", &["run", plan.to_str().unwrap(), "--json"]).run();
    let Completeness::Incomplete { reason } = &run.completeness else { panic!("{:?}", run.completeness) };
    assert_eq!(reason.matches("open one port and pass it with --port").count(), 1, "{reason}");
    assert!(run.tests.iter().all(|test| test.unavailable.is_some()), "{reason}");
}

#[test]
fn a_server_whose_file_was_replaced_still_starts_its_own_agents() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::owned_by(0);
    let lab = stage.lab("upgraded");
    let (_server, key) = lab.serve(&[]);
    let installed = stage.path("installed");
    fathom_testkit::copy_program("/bin/false", &installed);
    fs::rename(&installed, stage.program()).unwrap();
    let mut measure = stage.command(env!("CARGO_BIN_EXE_fathom"));
    measure.args(["lab", "exec", lab.name, "a", "--", env!("CARGO_BIN_EXE_fathom"), "tcp", B, "--key", &key, "--json"]);
    measure.args(BRIEF);
    let measured = stage.spawn(measure).ends();
    // The lab is taken down by it.
    fathom_testkit::copy_program(env!("CARGO_BIN_EXE_fathom"), &installed);
    fs::rename(&installed, stage.program()).unwrap();
    let run = measured.run();
    assert_eq!(run.tests[0].trials.len(), 2, "{:?}", run.completeness);
}

#[test]
fn every_layer_alone_reaches_a_served_host() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("layers");
    let (_server, key) = lab.serve(&[]);
    let both_ways = ["packet", B, "--rate", "10k", "--direction", "both"];
    for words in [&["tcp", B, "--test", "rr"][..], &["udp", B, "--rate", "20M"], &both_ways[..4], &both_ways] {
        // A busy machine may not reach the rate, which does not matter here.
        let run = lab.fathom("a", &[words, &["--key", &key, "--json"], BRIEF].concat()).run();
        let is_measured = |test: &TestRun| test.summaries[0].value.is_some_and(|value| value > 0.0);
        assert!(run.tests.iter().all(is_measured), "{words:?}");
    }
    let url = format!("http://{B}:8080/");
    lab.fathom("a", &[&["http", &url], BRIEF].concat()).refused(3, &["not a target you have allowed", "--allow"]);
    let run = lab.fathom("a", &[&["http", &url, "--allow", B, "--json"], BRIEF].concat()).succeeded().run();
    assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));
}

#[test]
fn a_served_host_does_not_tell_the_names_of_its_programs() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab("names");
    let (_server, key) = lab.serve(&[]);
    let mut endless = stage.command("sha1sum");
    endless.arg("/dev/zero");
    let busy = stage.spawn(endless);
    let run = lab.fathom("a", &[&["tcp", B, "--test", "rr", "--key", &key, "--json"], BRIEF].concat()).run();
    drop(busy);
    // Both hosts are this machine, where the program runs.
    for (host, record) in run.tests[0].trials.iter().flat_map(|trial| &trial.hosts) {
        assert_eq!(!record.programs.is_empty(), *host == run.tests[0].from, "{host}: {:?}", record.programs);
    }
}

#[test]
fn a_served_host_sends_to_nobody_but_its_controller() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("third");
    let (_server, key) = lab.serve(&[]);
    let plan = format!(
        r#"
        schema = "fathom.plan/1"
        title = "a third party"
        rounds = 1
        [hosts]
        target = {{ tls = {{ address = "{B}:7700", key = "{key}" }} }}
        [[tests]]
        name = "http"
        kind = "http_closed"
        from = "target"
        warmup = "0s"
        duration = "100ms"
        options = {{ url = "http://198.18.0.77/" }}
        "#
    );
    fs::write(stage.path("third.toml"), plan).unwrap();
    let path = stage.path("third.toml");
    // The controller's own allow-list permits the target, so the refusal comes from the served host.
    let ending = lab.fathom("a", &["run", path.to_str().unwrap(), "--allow", "198.18.0.77"]);
    ending.refused(3, &["sending to 198.18.0.77 is refused", "--allow 198.18.0.77"]);
}

#[test]
fn a_capture_is_counted_by_a_served_host_that_has_no_such_file() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("captured");
    let (_server, key) = lab.serve(&[]);
    let [from, to] = ["a", "b"].map(|host| lab.mac(host));
    let packet = Ipv4 {
        total_length: 46,
        time_to_live: 64,
        protocol: PROTOCOL_UDP,
        source: "198.18.0.1".parse().unwrap(),
        destination: B.parse().unwrap(),
    };
    let ethernet = Ethernet { destination: to, source: from, ethertype: ETHERTYPE_IPV4 };
    let frame = [&ethernet.bytes()[..], &packet.bytes(), &[0; 46 - Ipv4::LENGTH]].concat();
    // The header of a pcap file, and the header of a record.
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1, 0, 0, 60, 60];
    let head: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let path = stage.path("one.pcap");
    fs::write(&path, [head, frame].concat()).unwrap();
    let words = ["packet", B, "--key", &key, "--json", "--capture", path.to_str().unwrap(), "--count", "50"];
    let run = lab.fathom("a", &[&words[..], &["--rounds", "1"]].concat()).succeeded().run();
    let sum = run.tests[0].conservation.as_ref().unwrap();
    // The control connection is not counted, but a kernel may send an address request meanwhile.
    assert!(sum.n_sent == 50 && (50..=51).contains(&sum.n_received), "{sum:#?}");

    // A pipe without a writer must not block the command.
    let pipe = stage.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let words = ["packet", B, "--key", &key, "--capture", pipe.to_str().unwrap(), "--count", "1"];
    lab.fathom("a", &words).refused(3, &["it is a pipe, and a file is needed"]);
}

#[test]
fn a_script_with_data_beside_it_runs_against_a_served_host() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("data");
    let (_server, key) = lab.serve(&[]);
    fs::write(stage.path("names.csv"), "name\nada\ngrace\n").unwrap();
    let text = "closed 4\ndata person from names.csv random\nstep greet\n  GET /hello/${person.name}\n  expect 200\n";
    let path = stage.path("greet.scenario");
    fs::write(&path, text).unwrap();
    let words = ["evaluate", B, "--key", &key, "--quick", "--json", "--script", path.to_str().unwrap()];
    let run = lab.fathom("a", &[&words, BRIEF].concat()).succeeded().run();
    assert_eq!((run.tests[0].name.as_str(), &run.tests[0].unavailable), ("app", &None));
    let users = run.tests[0].users.as_ref().expect("users of a script");
    assert!(users.steps[0].n_passed > 0, "{users:?}");
    fs::remove_file(stage.path("names.csv")).unwrap();
    lab.fathom("a", &[&words, BRIEF].concat()).refused(3, &["names.csv"]);
}

#[test]
fn a_script_for_wrk_runs_against_a_served_host_which_opens_no_file() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("lua");
    let (_server, key) = lab.serve(&[]);
    let script = stage.path("x.lua");
    fs::write(&script, "function request() return wrk.format('GET', '/x') end").unwrap();
    let plan = |from: &str, to: &str| {
        let path = stage.path("lua.toml");
        let text = format!(
            r#"
            schema = "fathom.plan/1"
            title = "a script"
            rounds = 1
            [hosts]
            here = "self"
            target = {{ tls = {{ address = "{B}:7700", key = "{key}" }} }}
            [[tests]]
            name = "lua"
            kind = "app_lua"
            from = "{from}"
            to = "{to}"
            warmup = "0s"
            duration = "200ms"
            options = {{ script = "{}" }}
            "#,
            script.display()
        );
        fs::write(&path, text).unwrap();
        lab.fathom("a", &["run", path.to_str().unwrap(), "--json"])
    };
    let run = plan("here", "target").succeeded().run();
    assert!(run.tests[0].summaries[0].value.is_some_and(|rate| rate > 0.0));
    // A controller with the key cannot run a script on the served host.
    plan("target", "here").refused(3, &["`script` is refused"]);
}

#[test]
fn a_key_file_gives_the_same_key_at_every_start() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("keys");
    let path = stage.path("key");
    let words = ["--key-file", path.to_str().unwrap()];
    let (first, key) = lab.serve(&words);
    drop(first);
    assert_eq!(lab.serve(&words).1, key);
}

#[test]
fn this_host_is_at_its_address_towards_whatever_target_a_test_names() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("towards");
    let _http = lab.serve(&[]);
    let iperf3 =
        lab.exec("b", &[stage.program().to_str().unwrap(), "as", "iperf3", "-s", "-p", "5333", "--forceflush"]);
    iperf3.says("Server listening");
    let url = format!("http://{B}:8080/");
    let iperf3 = ["--protocol", "iperf3", "--port", "5333"];
    for words in [&["http", &url][..], &[&["tcp", B], &iperf3[..]].concat(), &["probe", B, "--count", "5"]] {
        let spans = if words[0] == "probe" { &BRIEF[4..] } else { BRIEF };
        let run = lab.fathom("a", &[words, &["--allow", B, "--json"], spans].concat()).succeeded().run();
        let here = &run.hosts["this machine"];
        let place = (here.address.as_deref(), here.interface.as_deref());
        assert_eq!(place, (Some("198.18.0.1"), Some("eth0")), "{words:?}");
        assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0), "{words:?}");
    }
}

#[test]
fn a_program_answers_in_the_place_of_sockets() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("in-xdp");
    // Generic mode, because the other end of the wire has no program.
    let words = ["serve", "--only", "http", "--http-xdp", "eth0", "--http-xdp-mode", "generic", "--http-size", "100"];
    let server = lab.start("b", &[&words[..], &["--http-xdp-from", "198.18.0.0/24"]].concat());
    let said = server.says("http");
    assert_eq!(said, format!("http    {B}:8080  generic XDP on eth0, answers of 140 bytes\n"));
    let url = format!("http://{B}:8080/");
    let ask = [&["http", &url, "--allow", B, "--json"], BRIEF].concat();
    let run = lab.fathom("a", &ask).succeeded().run();
    let value = |name: &str| run.tests[0].summaries.iter().find(|summary| summary.metric.name == name).unwrap().value;
    assert!(value("requests_per_sec").is_some_and(|rate| rate > 0.0));
    assert_eq!((value("errors_ratio"), value("not_2xx_ratio")), (Some(0.0), Some(0.0)));
    lab.fathom("b", &words).refused(2, &["--http-xdp needs the addresses", "--http-xdp-from"]);
    let second = [&words[..], &["--http-xdp-from", "0.0.0.0/0", "--http-port", "81"]].concat();
    lab.fathom("b", &second).refused(3, &["eth0 has an XDP program already", "ip link set dev eth0 xdp off"]);
    server.handle().send(Signal::Interrupt).unwrap();
    server.ends().code(130);
    let third = [&words[..], &["--http-xdp-from", "0.0.0.0/0", "--for", "1ms"]].concat();
    lab.fathom("b", &third).succeeded();
}

/// Connects from a host as soon as somebody listens, and sends a request; returns whether the connection was reset without an answer, or
/// none if the host drops connects.
fn is_turned_away(lab: &RunningLab<'_>, host: &str, to: SocketAddr) -> Option<bool> {
    let connect = || TcpStream::connect_timeout(&to, Duration::from_millis(500));
    let connected = until(|| match lab.enter_with(host, connect) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => None,
        outcome => Some(outcome.map_err(|error| error.kind())),
    });
    let mut stranger = match connected {
        Err(ErrorKind::TimedOut) => return None,
        outcome => outcome.unwrap(),
    };
    stranger.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let answer = stranger.write_all(&[0; 64]).and_then(|()| stranger.read(&mut [0; 64]));
    Some(answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset))
}

#[test]
fn a_user_without_privileges_serves_tests_of_tcp_to_the_controller_and_nothing_to_a_stranger() {
    if lacks_root() || lacks(&["setpriv"]) {
        return;
    }
    for (preset, name) in [("star:3", "guarded"), ("star6:3", "guarded6")] {
        let stage = TestBed::owned_by(65_534);
        let lab = stage.lab_of(preset, name);
        let (sut, program) = (lab.address("sut").to_string(), stage.program().to_str().unwrap());
        // Root built the lab, so the folder of its state is closed to the user.
        let state = format!("FATHOM_STATE={}", stage.path("own").display());
        let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", &state, program, "serve"];
        let server = lab.exec("sut", &[&user[..], &["--listen", &sut, "--only", "agents"]].concat());
        let key = server.says("key").lines().find_map(|line| line.strip_prefix("key")).unwrap().trim().to_owned();
        let is_filtered = !server.warns("on the other machine").contains("without CAP_NET_ADMIN");
        // With a connection for each transaction, the port listens during the whole test.
        let options =
            ["--test", "crr", "--port", "5001", "--rounds", "1", "--warmup", "0s", "--duration", "2s", "--json"];
        let measuring = lab.start("c1", &[&["tcp", &sut, "--key", &key][..], &options].concat());
        let outcome = is_turned_away(&lab, "c2", SocketAddr::new(lab.address("sut"), 5001));
        assert_eq!(outcome, (!is_filtered).then_some(true), "{preset}");
        let run = measuring.ends().succeeded().run();
        let records = || run.tests[0].trials.iter().flat_map(|trial| trial.records.values());
        let n_reset: u64 = records().filter_map(|record| record.totals.get("port_reset")).sum();
        let n_noted = records().flat_map(|record| &record.notes).filter(|note| note.id == "port-reset").count();
        if is_filtered {
            fathom_testkit::skip_everywhere("resets by the program: this kernel filters TCP sockets for every user");
        }
        assert_eq!((n_reset, n_noted), if is_filtered { (0, 0) } else { (1, 1) }, "{preset}");
        assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0), "the controller is served");
    }
}
