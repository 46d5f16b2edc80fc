//! Tests of targets behind a device that is not ours: address translation of the kernel in a router, with four targets behind it.

use std::process::Command;

use fathom_model::{EventEffect, Run, Severity, TargetsRecord, units::Nanos};

use crate::test_bed::{ProgramResult, RunningLab, RunningProgram, TestBed, lacks_root, until};

/// The address that the targets share. No host has it.
const SHARED: &str = "198.18.9.1:7701";
const N_TARGETS: u16 = 4;

/// A lab whose router divides connections among servers on ports of one host, by a hash of the source port.
struct Balanced<'a> {
    lab: RunningLab<'a>,
    servers: Vec<RunningProgram>,
}

/// The rules of a device that divides among these targets.
fn rules(targets: &[u16], address: &str) -> String {
    let n = targets.len();
    let places = targets.iter().enumerate();
    let map: Vec<String> = places.map(|(place, target)| format!("{place} : {address} . {}", 7700 + target)).collect();
    let map = map.join(", ");
    let of = |protocol: &str| {
        format!("ip daddr 198.18.9.1 {protocol} dport 7701 dnat ip to jhash {protocol} sport mod {n} map {{ {map} }}")
    };
    let chain = "type nat hook prerouting priority dstnat";
    format!("table ip balance {{\n chain pre {{\n {chain}\n {}\n {}\n }}\n}}\n", of("tcp"), of("udp"))
}

impl<'a> Balanced<'a> {
    fn up(stage: &'a TestBed) -> Self {
        let lab = stage.lab_of("router", "balanced");
        let address = lab.exec("b", &["ip", "-4", "-o", "addr", "show", "eth0"]).ends().succeeded().stdout;
        let address = address.split_whitespace().nth(3).and_then(|net| net.split('/').next()).unwrap().to_owned();
        let device = lab.exec("a", &["ip", "-4", "-o", "route"]).ends().succeeded().stdout;
        let gateway = device.split_whitespace().skip_while(|word| *word != "via").nth(1).unwrap().to_owned();
        lab.exec("a", &["ip", "route", "add", "198.18.9.1/32", "via", &gateway]).ends().succeeded();
        let servers = (1..=N_TARGETS).map(|n| {
            let (port, name) = ((7700 + n).to_string(), format!("t{n}"));
            let server = lab
                .start("b", &["serve", "--only", "identity", &format!("--identity={port}"), "--identity-name", &name]);
            server.says("identity");
            server
        });
        let servers = servers.collect();
        let all: Vec<u16> = (1..=N_TARGETS).collect();
        lab.exec("dut", &["nft", &rules(&all, &address)]).ends().succeeded();
        Self { lab, servers }
    }

    fn run(&self, words: &[&str]) -> ProgramResult {
        self.lab.fathom("a", &[&["tcp", SHARED, "--allow", "198.18.9.1", "--json"], words].concat())
    }
}

fn lacks_nft() -> bool {
    let has = Command::new("nft").arg("--version").output().is_ok_and(|output| output.status.success());
    !has && {
        fathom_testkit::skip("needs nft");
        true
    }
}

fn record(run: &Run) -> &TargetsRecord {
    run.tests[0].trials[0].records.values().find_map(|record| record.targets.as_ref()).unwrap()
}

#[test]
fn a_fair_device_spreads_by_the_weights_and_an_absent_target_is_missed() {
    if lacks_root() || lacks_nft() {
        return;
    }
    let stage = TestBed::beside_others();
    let balanced = Balanced::up(&stage);
    // A SYN that a busy machine drops is sent again after a second.
    let spread = ["--test", "spread", "--timeout", "30s"];
    let run = |words: &[&str]| balanced.run(&[&spread, words].concat()).run();
    let spread = run(&["--connections", "2000", "--targets", "t1,t2,t3,t4"]);
    let targets = spread.tests[0].targets.as_ref().unwrap();
    assert_eq!(targets.targets.iter().map(|target| target.n).sum::<u64>(), 2000);
    assert!(targets.targets.iter().all(|target| target.n > 400), "{targets:?}");
    let missing = run(&["--connections", "200", "--targets", "t1,t2,t3,t4,t5"]);
    assert!(missing.findings.iter().any(|finding| finding.id == "targets-missing"), "{:?}", missing.findings);
}

#[test]
fn a_target_that_is_killed_loses_its_own_flows_and_no_others() {
    if lacks_root() || lacks_nft() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let balanced = Balanced::up(&stage);
    let event = format!("800ms kill -9 {}", balanced.servers[1].pid());
    let words = [
        "--test",
        "continuity",
        "--flows",
        "40",
        "--rate",
        "2k/s",
        "--duration",
        "2s",
        "--timeout",
        "1s",
        "--at",
        &event,
    ];
    let run = balanced.run(&words).run();
    let effects: &[EventEffect] = &run.tests[0].targets.as_ref().unwrap().effects;
    let effect = &effects[0];
    let seen = (effects.len(), effect.event.status, effect.lost_targets.len());
    assert_eq!(seen, (1, Some(0), 1), "{effects:?}: {:#?}", record(&run).flows);
    assert!(effect.lost_targets[0].starts_with("t2#") && effect.n_own > 0 && effect.n_own < 40, "{effect:?}");
    let flows = &record(&run).flows;
    let is_own =
        |flow: &&fathom_model::TargetFlow| flow.spells.first().is_some_and(|spell| spell.target.starts_with("t2#"));
    let hurt = flows.iter().filter(|flow| !flow.outages.is_empty() && !is_own(flow)).count();
    assert_eq!(hurt, 0, "{flows:?}");
    for flow in flows.iter().filter(is_own) {
        // One that connects anew before its next message is due loses none.
        assert!(
            flow.n_broken() > 0 && flow.spells.last().is_some_and(|spell| !spell.target.starts_with("t2#")),
            "{flow:?}"
        );
        assert_eq!(flow.n_due, flow.n_answered + flow.n_late + flow.n_lost, "{flow:?}");
    }
}

/// A lab of two hosts with one target on host b.
struct OneTarget<'a> {
    lab: RunningLab<'a>,
    address: String,
    server: RunningProgram,
}

impl<'a> OneTarget<'a> {
    fn up(stage: &'a TestBed, name: &'static str) -> Self {
        let lab = stage.lab(name);
        let server = lab.start("b", &["serve", "--only", "identity", "--identity-name", "t1"]);
        server.says("identity");
        let address = lab.exec("b", &["ip", "-4", "-o", "addr", "show", "scope", "global"]).ends().succeeded().stdout;
        let address = address.split_whitespace().nth(3).and_then(|net| net.split('/').next()).unwrap().to_owned();
        Self { lab, address, server }
    }

    fn run(&self, test: &str, words: &[&str]) -> ProgramResult {
        let target = ["tcp", &self.address, "--allow", &self.address, "--json", "--test", test];
        self.lab.fathom("a", &[&target[..], words].concat())
    }
}

#[test]
fn without_local_ports_a_test_of_spread_ends_when_its_time_is_over() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let one = OneTarget::up(&stage, "ports");
    let few = "echo 40000 40099 > /proc/sys/net/ipv4/ip_local_port_range";
    one.lab.exec("a", &["sh", "-c", few]).ends().succeeded();
    let run = one.run("spread", &["--connections", "100M", "--duration", "1s"]).run();
    let record = run.tests[0].trials[0].records.values().find(|record| record.targets.is_some()).unwrap();
    assert!(record.notes.iter().any(|note| note.id == "cut-short"), "{:?}", record.notes);
    let n_failed: u64 = record.errors.values().sum();
    assert!(n_failed > 0 && n_failed < 10_000, "{:?}", record.errors);
}

#[test]
fn a_rate_above_what_this_host_sends_ends_in_time_and_says_what_is_left() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let one = OneTarget::up(&stage, "fast");
    let run = one.run("continuity", &["--rate", "2M/s", "--duration", "1s"]).run();
    let record = run.tests[0].trials[0].records.values().find(|record| record.targets.is_some()).unwrap();
    let note = record.notes.iter().find(|note| note.id == "sent-late").unwrap();
    assert!(note.text.contains("were due at the end and were not sent"), "{}", note.text);
    assert!(record.totals["messages_due"] < 2_000_000, "{:?}", record.totals);
}

#[test]
fn connects_that_fail_during_a_test_are_counted() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let one = OneTarget::up(&stage, "refused");
    let event = format!("500ms kill -9 {}", one.server.pid());
    let run = one.run("continuity", &["--flows", "4", "--rate", "400/s", "--duration", "1s", "--at", &event]).run();
    let record = run.tests[0].trials[0].records.values().find(|record| record.targets.is_some()).unwrap();
    let n_refused: u64 = record
        .errors
        .iter()
        .filter(|(failure, _)| failure.to_string() == "connect: connection refused")
        .map(|(_, n)| n)
        .sum();
    assert!(n_refused >= 4, "{:?}", record.errors);
}

#[test]
fn local_sources_neither_take_nor_cut_off_what_is_in_use() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let one = OneTarget::up(&stage, "local");
    let local = |words: &[&str]| one.lab.exec("a", &[&["ip", "route"], words].concat()).ends().succeeded().stdout;
    let run = |source: &str| one.run("spread", &["--connections", "10", "--source", source, "--local-sources"]);
    local(&["add", "local", "10.77.0.0/16", "dev", "lo"]);
    run("10.77.0.0/16").refused(3, &["10.77.0.0/16", "ip route del local 10.77.0.0/16 dev lo"]);
    assert!(local(&["show", "table", "local"]).contains("10.77.0.0/16"), "it belongs to somebody else");
    let with_target = format!("10.78.0.0/16,{}/24", one.address);
    run(&with_target).refused(2, &[&one.address, "the target"]);
    assert!(!local(&["show", "table", "local"]).contains("10.78.0.0/16"), "nothing was changed");
}

#[test]
fn an_event_that_the_end_of_the_test_forestalled_makes_it_invalid() {
    if lacks_root() || lacks_nft() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let balanced = Balanced::up(&stage);
    let never = stage.path("never");
    let event = format!("9s touch {}", never.display());
    let run = balanced.run(&["--test", "spread", "--connections", "100", "--duration", "10s", "--at", &event]).run();
    assert!(run.findings.iter().any(|finding| finding.id == "event-failed"), "{:?}", run.findings);
    let [event] = run.tests[0].trials[0].events.as_slice() else { panic!("{:?}", run.tests[0].trials) };
    assert_eq!(event.failure.as_deref(), Some("the trial was over before it was due"));
    assert!(!never.exists());
}

#[test]
fn a_planned_outage_is_the_first_finding_of_any_test_and_other_losses_are_remarks() {
    if lacks_root() || lacks_nft() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("planned");
    let common = ["--lab", lab.name, "--duration", "2s", "--rounds", "1", "--warmup", "0s"];
    for (test, event) in [
        ("tcp", "500ms-1500ms black-hole=b"),
        ("tcp --test rr", "500ms-1500ms black-hole=b"),
        ("udp --rate 1M", "500ms-1500ms link-down=a:eth0"),
        ("http --rate 200", "500ms-1500ms black-hole=b"),
    ] {
        let words: Vec<&str> = test.split(' ').chain(common).chain(["--at", event, "--json"]).collect();
        let run = stage.fathom(words).run();
        let causes = run.findings.iter().filter(|finding| finding.severity == Severity::HoldsBack);
        let causes: Vec<&str> = causes.map(|finding| finding.id.as_str()).collect();
        assert_eq!(causes.first(), Some(&"planned-event"), "{test}: {causes:?}");
        let effects = ["loss", "outage", "retransmissions", "connect-delays", "stall"];
        assert!(!causes.iter().any(|id| effects.contains(id)), "{test}: {causes:?}");
    }
}

#[test]
fn a_killed_run_leaves_neither_a_black_hole_nor_a_command() {
    if lacks_root() || lacks_nft() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("killed");
    let file = stage.path("pid");
    let command = format!("10ms sh -c 'sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait'", file.display());
    let test = ["tcp", "--lab", "killed", "--test", "rr", "--duration", "60s", "--rounds", "1"];
    let run = stage.start([&test[..], &["--at", "10ms black-hole=b", "--at", &command]].concat());
    let tables = || lab.exec("b", &["nft", "list", "tables"]).ends().succeeded().stdout;
    until(|| (file.exists() && tables().contains("black_hole")).then_some(()));
    let pid = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    run.handle().kill().unwrap();
    until(|| tables().is_empty().then_some(()));
    // Its number may be gone already.
    until(|| fathom_sys::process::Pidfd::open(pid).map_or(true, |it| it.wait(Nanos::ZERO).unwrap()).then_some(()));
}

#[test]
fn nobody_and_wrong_events_are_told_before_anything_is_measured() {
    let stage = TestBed::beside_others();
    let nobody = stage.fathom(["tcp", "127.0.0.1:1", "--test", "spread"]);
    assert!(nobody.stderr.contains("nobody at 127.0.0.1:1 tells who it is"), "{}", nobody.stderr);
    let twice = stage.fathom(["tcp", "127.0.0.1:1", "--test", "spread", "--targets", "t1,t1"]);
    assert!(twice.stderr.contains("each name once"), "{}", twice.stderr);
    let late = stage.fathom(["tcp", "127.0.0.1:1", "--test", "continuity", "--duration", "2s", "--at", "3s true"]);
    assert!(late.stderr.contains("the trial may be over after 2.00 s"), "{}", late.stderr);
}
