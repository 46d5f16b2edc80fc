//! Faults are planted in a lab, named by the findings, and gone when they are removed.
//!
//! These are a few of the cases of `make findings` (docs/findings.md), chosen for loads that leave most of a small machine idle.

use fathom_model::{
    Run, Severity,
    names::{count, host as counter},
};

use crate::test_bed::{ProgramResult, RunningLab, TestBed, is_disturbed, lacks_root};

/// Rounds long enough for a few hundred datagrams and a few samples of the host's counters.
const SHORT: &[&str] = &["--rounds", "2", "--warmup", "200ms", "--duration", "1600ms", "--json"];

/// Returns true and reports it if a command that faults consist of is missing here.
pub(crate) fn lacks_commands() -> bool {
    let is_missing = |name: &&str| {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        !std::env::split_paths(&folders).any(|folder| folder.join(name).exists())
    };
    let missing: Vec<&str> = ["tc", "nft", "sysctl"].into_iter().filter(is_missing).collect();
    if !missing.is_empty() {
        fathom_testkit::skip(&format!("faults are planted with {} (iproute2, nftables, procps)", missing.join(", ")));
    }
    !missing.is_empty()
}

/// Returns the ids of the findings above a remark, in their order.
fn told(run: &Run) -> Vec<&str> {
    run.findings
        .iter()
        .filter(|finding| finding.severity != Severity::Remark)
        .map(|finding| finding.id.as_str())
        .collect()
}

/// Asserts that a finding leads. A run that says itself that others disturbed it claims nothing of the kind.
fn assert_leads(run: &Run, expected: &str, fault: &str) {
    if is_disturbed(run) {
        return;
    }
    assert_eq!(told(run).first(), Some(&expected), "{fault}: {:#?}", run.findings);
}

fn measured(stage: &TestBed, test: &str, lab: &[&str]) -> Run {
    ran(stage, test, lab).run()
}

fn ran(stage: &TestBed, test: &str, lab: &[&str]) -> ProgramResult {
    let words: Vec<&str> = test.split(' ').chain(lab.iter().copied()).chain(SHORT.iter().copied()).collect();
    stage.fathom(words)
}

/// Returns true if a fault that resets connections did that to one of the first, so that the test could not begin. The error names it.
fn is_reset_before_it_begins(fault: &str, ending: &ProgramResult) -> bool {
    let is_reset = ["Connection reset by peer", "Connection refused"].iter().any(|words| ending.stderr.contains(words));
    fault == "resets" && ending.stdout.is_empty() && ending.stderr.contains("cannot connect to") && is_reset
}

/// Runs a test with a fault, which is gone afterwards. `None` if this kernel cannot make the fault, or if it prevents the test.
fn measured_with(stage: &TestBed, lab: &RunningLab<'_>, fault: &[&str], test: &str) -> Option<Run> {
    let added = stage.fathom([&["lab", "fault", "add", lab.name], fault].concat());
    if !added.has_succeeded() && added.stderr.contains("this kernel") {
        fathom_testkit::skip_everywhere(&format!("this kernel cannot make the fault {}: {}", fault[0], added.stderr));
        return None;
    }
    added.succeeded();
    let planted = stage.fathom(["lab", "fault", "list", lab.name]).succeeded().stdout;
    assert!(planted.starts_with(fault[0]), "{planted}");
    let ending = ran(stage, test, &["--lab", lab.name]);
    stage.fathom(["lab", "fault", "remove", lab.name, fault[0]]).succeeded();
    assert_eq!(stage.fathom(["lab", "fault", "list", lab.name]).succeeded().stdout, "");
    (!is_reset_before_it_begins(fault[0], &ending)).then(|| ending.run())
}

#[test]
fn a_fault_that_holds_nothing_back_is_a_remark() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("beside");
    let Some(run) = measured_with(&stage, &lab, &["time-wait"], "tcp --test crr --flows 20") else { return };
    let found = run.findings.iter().find(|finding| finding.id == "time-wait-overflow");
    assert_eq!(found.map(|finding| finding.severity), Some(Severity::Remark));
}

#[test]
fn a_planted_fault_leads_the_findings_and_is_gone_when_it_is_removed() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("faulty");
    let cases: [(&[&str], &str, &str); 5] = [
        (&["shaper", "rate=20mbit", "--host", "a"], "udp --rate 40M", "local-shaper"),
        (&["policer", "rate=1000"], "udp --rate 20M", "rate-limit"),
        (&["resets", "permille=20"], "tcp --test rr --flows 4", "resets"),
        (&["syn-loss"], "tcp --test crr --flows 20", "connect-delays"),
        (&["mtu-hole"], "udp --rate 10M --size 1450B", "path-mtu-black-hole"),
    ];
    for (fault, test, expected) in cases {
        let Some(run) = measured_with(&stage, &lab, fault, test) else { continue };
        assert_leads(&run, expected, &format!("{fault:?}"));
    }
    let run = measured(&stage, "udp --rate 10M --size 1450B", &["--lab", lab.name]);
    assert!(!told(&run).contains(&"path-mtu-black-hole"), "removed: {:#?}", run.findings);
}

#[test]
fn a_firewall_without_a_counter_is_told_with_its_host_even_if_no_connection_opens() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("silent");
    let Some(run) = measured_with(&stage, &lab, &["silent-firewall", "permille=100"], "udp --rate 20M") else { return };
    let title = run.findings.iter().find(|finding| finding.id == "loss").map(|finding| finding.title.as_str());
    assert!(title.is_some_and(|title| title.starts_with("a packet filter on b dropped")), "{:#?}", run.findings);
    stage.fathom(["lab", "fault", "add", lab.name, "silent-firewall", "permille=999"]).succeeded();
    let ending = ran(&stage, "tcp", &["--lab", lab.name]);
    let words = " packets that it gave to no program: a packet filter may drop them, while a sent ";
    assert!(
        ending.stderr.contains(words) && ending.stderr.contains("run `nft list ruleset` on b"),
        "{}",
        ending.stderr
    );
    stage.fathom(["lab", "fault", "remove", lab.name, "silent-firewall"]).succeeded();
    stage.fathom(["lab", "fault", "add", lab.name, "other-mac", "--host", "a"]).succeeded();
    let ending = ran(&stage, "tcp --test rr", &["--lab", lab.name]);
    let words =
        "frames with a destination Ethernet address other than its own reached eth0 of b, perhaps those of this test, ";
    assert!(ending.stderr.contains(words), "{}", ending.stderr);
}

#[test]
fn a_path_that_harms_traffic_is_named_by_what_it_does() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    // A datagram is overtaken only by one that follows within half a millisecond.
    let cases = [
        ("impair:corrupt=5%", "udp --rate 20M", "bad-checksums"),
        ("impair:reorder=5%", "udp --rate 10M --size 200B", "reordering"),
        ("impair:duplicate=5%", "udp --rate 20M", "duplicates"),
        ("impair:rate=10Mbit", "udp --rate 20M", "rate-limit"),
    ];
    for (device, test, expected) in cases {
        let run = measured(&stage, test, &["--lab", "pair", "--device", device]);
        assert_leads(&run, expected, device);
    }
    let run = measured(&stage, "udp --rate 5M", &["--lab", "pair", "--device", "impair"]);
    assert_eq!(run.tests[0].conservation.as_ref().unwrap().n_unexplained, 0, "{:#?}", run.tests[0].conservation);
}

/// Returns how often the device did something to frames, in one direction or in both.
fn deeds(run: &Run, counter: &str, direction: Option<&str>) -> u64 {
    let devices = run.tests[0].trials.iter().filter_map(|trial| trial.hosts.get("dut"));
    let series = devices.flat_map(|device| device.series_of(counter));
    series
        .filter(|series| direction.is_none_or(|wanted| series.of == wanted))
        .map(fathom_model::record::Series::growth)
        .sum()
}

#[test]
fn what_is_found_is_as_much_as_the_device_did() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let through = |device: &str, test: &str| {
        let run = measured(&stage, test, &["--lab", "pair", "--device", device]);
        assert!(deeds(&run, counter::IMPAIR_ARRIVED, Some("forward")) > 100, "{device}");
        run
    };
    // Samples do not fall on the ends of a test, and a busy machine drops a few itself.
    let is_near = |found: u64, done: u64| done > 20 && found.abs_diff(done) <= 3 + done / 20;
    let run = through("impair:loss=5%,direction=forward,seed=5", "udp --rate 10M");
    let lost = run.tests[0].conservation.as_ref().unwrap().n_unexplained.unsigned_abs();
    assert!(is_near(lost, deeds(&run, counter::IMPAIR_LOST, Some("forward"))), "{lost}: {:#?}", run.findings);
    assert_eq!(deeds(&run, counter::IMPAIR_LOST, Some("back")), 0);
    let run = through("impair:loss=50%,direction=back", "udp --rate 10M");
    let lost = run.tests[0].conservation.as_ref().unwrap().n_unexplained;
    assert_eq!((lost, deeds(&run, counter::IMPAIR_LOST, Some("forward"))), (0, 0), "{:#?}", run.findings);
    let run = through("impair:duplicate=5%", "udp --rate 10M");
    let records = run.tests[0].trials.iter().flat_map(|trial| trial.records.values());
    let doubled = records.filter_map(|record| record.totals.get(count::DUPLICATES)).sum();
    assert!(is_near(doubled, deeds(&run, counter::IMPAIR_DUPLICATED, Some("forward"))), "{doubled}");
    let run = through("impair:rst=0.5%", "http --connections 10");
    assert_eq!(told(&run).first(), Some(&"resets"), "{:#?}", run.findings);
    let records = run.tests[0].trials.iter().flat_map(|trial| trial.records.values());
    let reset: u64 = records.flat_map(|record| record.errors.iter()).map(|(_, n)| *n).sum();
    assert!(is_near(reset, deeds(&run, counter::IMPAIR_RESET, None)), "{reset}");
}

#[test]
fn a_fault_that_does_not_exist_or_is_planted_already_is_refused_with_what_there_is() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("refusing");
    let add = |words: &[&str]| stage.fathom([&["lab", "fault", "add", lab.name], words].concat());
    add(&["gremlin"]).refused(3, &["gremlin", "shaper"]);
    add(&["shaper", "speed=1"]).refused(3, &["speed=1", "rate=100mbit"]);
    add(&["shaper", "rate=fast"]).refused(3, &["tc qdisc replace"]);
    assert_eq!(stage.fathom(["lab", "fault", "list", lab.name]).succeeded().stdout, "", "nothing is left of a failure");
    add(&["shaper"]).succeeded();
    add(&["shaper"]).refused(3, &["fathom lab fault remove refusing shaper"]);
    stage.fathom(["lab", "fault", "remove", lab.name, "loss"]).refused(3, &["loss", "shaper"]);
    stage.fathom(["lab", "fault", "remove", lab.name, "shaper", "--host", "a"]).refused(3, &["shaper on b"]);
    stage.fathom(["lab", "fault", "remove", lab.name, "shaper", "--host", "b"]).succeeded();
    assert!(stage.fathom(["lab", "fault", "list"]).succeeded().stdout.lines().count() >= 15);
}

#[test]
fn answers_that_arrive_by_another_wire_are_told_with_both() {
    if lacks_root() || lacks_commands() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let up = ["lab", "up", "pair", "--device", "router", "--direct-wire", "--name", "two-ways", "--for", "5m"];
    let lab = stage.lab_with(&up, "two-ways");
    stage.fathom(["lab", "fault", "add", lab.name, "asymmetric-route", "--host", "a"]).succeeded();
    let words = ["http", "--lab", lab.name, "--rate", "300", "--rounds", "1", "--duration", "500ms", "--json"];
    let run = stage.fathom(words).succeeded().run();
    let finding = run.findings.iter().find(|finding| finding.id == "asymmetric-route").unwrap();
    let title = &finding.title;
    assert!(title.contains("b sends to a by eth0") && title.ends_with("arrived by eth1"), "{title}");
}
