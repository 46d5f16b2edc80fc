//! Impossible requests are refused on one screen, with an exit code, before anything is started.

use std::{fs, net::TcpListener};

use crate::test_bed::{BRIEF, TestBed, lacks_root};

const B: &str = "198.18.0.2";

/// Returns the key with one character changed.
fn changed(key: &str, at: usize) -> String {
    let mut letters: Vec<char> = key.chars().collect();
    letters[at] = if letters[at] == 'a' { 'b' } else { 'a' };
    letters.into_iter().collect()
}

#[test]
fn a_wrong_key_opens_nothing() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("locked");
    let (_server, key) = lab.serve(&[]);
    // The last letter encodes fewer bits than the others, so not every letter is valid there.
    let last_but_one = key.chars().count() - 2;
    let evaluate = |key: &str| lab.fathom("a", &["evaluate", B, "--key", key, "--quick"]);
    evaluate(&changed(&key, 2)).refused(3, &[B, "key"]);
    evaluate(&changed(&key, last_but_one)).refused(3, &[B, "key"]);
    evaluate("open-sesame").refused(2, &["key"]);
    lab.fathom("a", &["evaluate", B, "--quick"]).refused(3, &["fathom serve", "--key KEY"]);
}

#[test]
fn a_host_without_a_server_is_told_from_one_that_is_not_there() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("silent");
    let (server, key) = lab.serve(&[]);
    lab.fathom("b", &["serve"]).refused(3, &["cannot listen on", "7700", "in use", "--port"]);
    lab.fathom("b", &["serve", "--port", "7701"]).refused(3, &["8080", "in use", "--http-port"]);
    // The HTTP responder does not use keys.
    let wrong_port = format!("{B}:8080");
    lab.fathom("a", &["evaluate", &wrong_port, "--key", &key, "--quick"]).refused(3, &[&wrong_port, "why"]);
    drop(server);
    lab.fathom("a", &["evaluate", B, "--key", &key, "--quick"]).refused(3, &[B, "refused", "fathom serve"]);
    lab.fathom("a", &["evaluate", "203.0.113.9", "--key", &key, "--quick"]).refused(3, &["203.0.113.9", "unreachable"]);
    // An address on the wire where no host answers.
    lab.fathom("a", &["evaluate", "198.18.0.3", "--key", &key, "--quick"]).refused(3, &["198.18.0.3", "why"]);
}

#[test]
fn a_plan_lets_a_script_connect_to_nothing_that_its_user_has_not_allowed() {
    let stage = TestBed::beside_others();
    fs::write(stage.path("x.lua"), "function setup(thread) print(wrk.addrs[1]) end").unwrap();
    let plan = |allowed: &str| {
        format!(
            r#"
            schema = "fathom.plan/1"
            title = "a script that chooses"
            rounds = 1
            [hosts]
            here = "self"
            [[tests]]
            name = "lua"
            kind = "app_lua"
            from = "here"
            to = "here"
            warmup = "0s"
            duration = "100ms"
            options = {{ script = "x.lua", script-allow = "{allowed}" }}
            "#
        )
    };
    let run = |allowed: &str, words: &[&str]| {
        fs::write(stage.path("plan.toml"), plan(allowed)).unwrap();
        stage.fathom([&["run", "plan.toml"], words].concat())
    };
    let refused = ["198.51.100.0/24 is not a target you have allowed", "--allow 198.51.100.0/24"];
    run("198.51.100.0/24", &[]).refused(3, &refused);
    run("127.0.0.1, 198.51.100.0/24", &["--allow", "198.51.100.0/25"]).refused(3, &refused);
    run("198.51.100.7", &["--allow", "198.51.100.8"]).refused(3, &["--allow 198.51.100.7"]);
    run("everywhere", &[]).refused(2, &["`everywhere` is not an address or a network"]);
    run("127.0.0.0/8 ::1", &[]).succeeded();
    run("198.51.100.0/25", &["--allow", "198.51.100.0/24"]).succeeded();
}

#[test]
fn a_taken_port_is_told_on_loopback_too() {
    let stage = TestBed::beside_others();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ending = stage.fathom(["serve", "--listen", "127.0.0.1", "--port", &port, "--http-port", "0"]);
    ending.refused(3, &["cannot listen on", &port, "in use"]);
}

#[test]
fn targets_that_nobody_allowed_are_not_touched() {
    let stage = TestBed::beside_others();
    let refused = "not a target you have allowed";
    for (words, said) in [
        (&["http", "http://192.0.2.1/"][..], &[refused, "--allow 192.0.2.1"][..]),
        (&["http", "http://192.0.2.1/", "--allow", "192.0.2.128/25"], &[refused]),
        (&["http", "http://224.0.0.1/", "--allow", "224.0.0.0/4"], &["never a target", "multicast"]),
        (&["http", "http://255.255.255.255/", "--allow", "0.0.0.0/0"], &["never a target"]),
        (&["http", "http://0.0.0.0/", "--allow", "0.0.0.0/0"], &["never a target"]),
        (&["tcp", "192.0.2.1"], &[refused, "fathom serve"]),
        (&["evaluate", "no-such-host.invalid"], &["there is no host `no-such-host.invalid`"]),
    ] {
        stage.fathom(words).refused(3, said);
    }
}

#[test]
fn a_wrong_command_line_is_answered_with_what_is_right() {
    let stage = TestBed::beside_others();
    for (words, said) in [
        (&["evaluate", "--colour"][..], &["--colour"][..]),
        (&["evaluat"], &["evaluat", "evaluate"]),
        (&["tcp", "127.0.0.1", "--flow", "2"], &["--flow", "--flows"]),
        (&["tcp", "127.0.0.1", "--flows", "0"], &["flows"]),
        (&["tcp", "127.0.0.1", "--duration", "1 parsec"], &["--duration", "parsec"]),
        (&["tcp"], &["needs a TARGET", "--lab pair"]),
        (
            &["tcp", "127.0.0.1", "--test", "rr-open"],
            &["no rate is given", "--rate 20k", "--find-limit", "tcp_rr_open"],
        ),
        (&["http", "http://127.0.0.1/", "-c", "100"], &["'-c'", "--connections 100"]),
        (&["http", "http://127.0.0.1/", "--size", "1k"], &["--size has no effect with a URL", "fathom serve"]),
        (&["http", "http://127.0.0.1/", "--engine", "xdp", "--port", "80"], &["--port has no effect"]),
        (&["tcp", "127.0.0.1", "-P", "4"], &["'-P'", "--flows 4"]),
        (&["serve", "--plan"], &["commands that measure"]),
        (&["serve", "--only", "http", "--iperf3-rate", "1G"], &["--iperf3-rate has no effect without --iperf3"]),
        (&["serve", "--only", "http", "--netperf-rate", "1G"], &["--netperf-rate has no effect without --netperf"]),
        (&["tcp", "127.0.0.1", "--lab", "pair"], &["either a target or --lab"]),
        (
            &["udp", "--lab", "pair", "--method", "throughput", "--at", "1s true"],
            &["--at cannot be used with --method"],
        ),
        (
            &["tcp", "--lab", "pair", "--test", "rfc6349", "--at", "1s true"],
            &["--at cannot be used with --test rfc6349"],
        ),
        (&["tcp", "127.0.0.1", "--allow", "10.0.0/8"], &["`10.0.0/8` is not an address"]),
        (&["tcp", "127.0.0.1", "--expect", "10kpps"], &["--expect 10kpps", "use"]),
        (&["tcp", "127.0.0.1", "--lab", "ring", "--json", "--csv"], &["--json", "--csv"]),
        (&["evaluate", "--lab", "moebius"], &["moebius", "pair"]),
        (&["lab", "up", "moebius"], &["moebius", "pair"]),
        (&["lab", "up", "pair", "--name", "../x"], &["../x"]),
        (&["as", "nobody"], &["nobody"]),
    ] {
        stage.fathom(words).refused(2, said);
    }
}

#[test]
fn a_value_that_cannot_be_is_told_once_and_before_anything_starts() {
    let stage = TestBed::beside_others();
    for (words, said) in [
        (&["udp", "127.0.0.1", "--mix", "64"][..], &["option `mix` takes imix, or sizes", "not `64`"][..]),
        (&["udp", "127.0.0.1", "--size", "0"], &["option `size` takes 1 to 65507 B"]),
        (&["udp", "127.0.0.1", "--rate", "1M", "--pps", "5"], &["option `pps` takes a rate only without `rate`"]),
        (&["udp", "127.0.0.1", "--traffic", "poisson"], &["option `traffic` takes a pattern only with"]),
        (&["udp", "127.0.0.1", "--test", "rr", "--timeout", "1h"], &["option `timeout` takes 1 ms to 10 s"]),
        (&["udp", "127.0.0.1", "--test", "rr", "--request", "70000"], &["option `request` takes"]),
        (&["tcp", "127.0.0.1", "--test", "rr", "--request", "0"], &["option `request` takes"]),
        (&["tcp", "127.0.0.1", "--test", "loaded", "--probe-rate", "1M"], &["option `probe-rate` takes 1 to 10k"]),
        (&["tcp", "127.0.0.1", "--test", "crr", "--source", "lo"], &["option `source` takes addresses and networks"]),
        (&["tcp", "127.0.0.1", "--keepalive", "500ms"], &["option `keepalive` takes whole seconds"]),
        (&["tcp", "127.0.0.1", "--bytes", "3", "--flows", "4"], &["option `bytes` takes at least a byte per flow"]),
        (&["tcp", "127.0.0.1", "--scan", "write=64KiB,1GiB"], &["option `write` takes 1 B to 16 MiB", "write=1GiB"]),
        (&["tcp", "127.0.0.1", "--protocol", "iperf3", "--write", "2MiB"], &["option `write` takes 1 B to 1048576 B"]),
    ] {
        let ending = stage.fathom([words, &["--plan"]].concat());
        assert_eq!(ending.stderr.matches("option `").count(), 1, "{}", ending.stderr);
        assert!(!ending.stderr.contains("host `"), "no host has anything to do with it: {}", ending.stderr);
        ending.refused(2, said);
    }
    // A search sets the missing rate.
    let search = ["tcp", "127.0.0.1", "--test", "rr-open", "--find-limit", "p99<20ms", "--plan"];
    stage.fathom(search).succeeded();
}

#[test]
fn a_wrong_plan_is_answered_with_the_line_that_is_wrong() {
    let stage = TestBed::beside_others();
    let plan = r#"
        schema = "fathom.plan/1"
        title = "one"
        rounds = 1
        [hosts]
        here = "self"
        [[tests]]
        name = "rr"
        kind = "tcp_rr"
        from = "here"
        to = "here"
        warmup = "0s"
        duration = "100ms"
    "#;
    for (right, wrong, said) in [
        ("rounds = 1", "rounds = 1\nroundz = 2", "roundz"),
        ("to = \"here\"", "to = \"there\"", "there is no host `there`"),
        ("\"self\"", "\"selfish\"", "selfish"),
        ("tcp_rr", "tcp_qq", "tcp_qq"),
        ("schema =", "schema", "schema"),
    ] {
        let path = stage.path("wrong.toml");
        fs::write(&path, plan.replace(right, wrong)).unwrap();
        stage.fathom(["run", path.to_str().unwrap()]).refused(2, &[said]);
    }
    stage.fathom(["run", "no-such-plan.toml"]).refused(2, &["cannot read no-such-plan.toml"]);
    fs::write(stage.path("right.toml"), plan).unwrap();
    stage.fathom([&["run", "right.toml"], BRIEF].concat()).succeeded();
}

#[test]
fn what_is_not_there_is_named() {
    let stage = TestBed::beside_others();
    fs::write(stage.path("other.json"), "{}").unwrap();
    stage.fathom(["report", "nothing"]).refused(2, &["cannot read nothing", "fathom report"]);
    stage.fathom(["report"]).refused(2, &["no run is kept under runs/"]);
    stage.fathom(["report", "other.json"]).refused(1, &["other.json is not a document of fathom"]);
    stage.fathom(["lab", "exec", "nowhere", "a", "--", "true"]).refused(3, &["nowhere"]);
    stage.fathom(["lab", "down", "nowhere"]).refused(3, &["nowhere"]);
}
