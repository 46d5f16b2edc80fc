//! Reports agree with the machine's own counters, and planted conditions are found.

use std::num::NonZeroU32;

use fathom_lab::{Lab, StateFolder};
use fathom_model::{
    Metric, Run, Side, TestRun,
    names::host::{DEV_RX_BYTES, DEV_RX_FRAMES},
    units::{PerSec, approximate},
};
use fathom_packet::xdp::{DropProgram, FrameMatch, PolicerLimit, dropper, policer};
use fathom_sys::{
    bpf::{XdpLink, XdpMode},
    netlink::Netlink,
};

use crate::test_bed::{RunningLab, TestBed, is_disturbed, lacks_root};

/// The destination port of a test's datagrams, which the gate matches.
const PORT: u16 = 40_123;

fn value(test: &TestRun, metric: &str) -> f64 {
    let is_it = |found: &Metric| found.name == metric;
    let summary = test.summaries.iter().find(|summary| is_it(&summary.metric)).unwrap();
    summary.value.unwrap()
}

/// Returns the growth of a counter at the receiver's interface per second of sending.
fn counted(test: &TestRun, counter: &str) -> f64 {
    let rates = test.trials.iter().map(|trial| {
        let growth = trial.hosts["b"].growth(counter, "eth0").unwrap();
        let sender = trial.records.values().find(|record| record.side == Side::Initiator).unwrap();
        // Without a warm-up, sending starts at zero and lasts until the end of the measured time.
        approximate(growth) / sender.measured_ns.1.as_secs_f64()
    });
    rates.sum::<f64>() / approximate(u64::try_from(test.trials.len()).unwrap())
}

#[track_caller]
fn within_one_percent(reported: f64, counted: f64) {
    assert!((reported / counted - 1.0).abs() < 0.01, "reported {reported}, counted {counted}");
}

#[test]
fn reported_rates_agree_with_the_counters_of_the_interface() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    // The interface is read a little before and after the test, which is 1 % of it only if the sender is steady.
    let measure = |words: &[&str]| -> Option<Run> {
        let spans = ["--lab", "pair", "--json", "--warmup", "0s", "--duration", "4s", "--rounds", "2"];
        let run = stage.fathom([words, &spans].concat()).run();
        (!is_disturbed(&run)).then_some(run)
    };
    let Some(run) = measure(&["packet", "--size", "64", "--rate", "10k"]) else { return };
    within_one_percent(value(&run.tests[0], "received_per_sec"), counted(&run.tests[0], DEV_RX_FRAMES));
    let Some(run) = measure(&["udp", "--size", "1000", "--rate", "40M"]) else { return };
    within_one_percent(value(&run.tests[0], "received_per_sec"), counted(&run.tests[0], DEV_RX_FRAMES));
    // For each datagram, the interface also counts 14 bytes of Ethernet, 20 of IPv4 and 8 of UDP.
    let payload = counted(&run.tests[0], DEV_RX_BYTES) * 1000.0 / 1042.0 * 8.0;
    within_one_percent(value(&run.tests[0], "throughput_bps"), payload);
    let Some(run) = measure(&["tcp"]) else { return };
    // A stream at full speed is not sent evenly, so only the totals must agree. A segment crosses a veth in one piece of up to
    // 64 KiB, with 66 bytes of headers.
    for trial in &run.tests[0].trials {
        let received = trial.records["b"].timeline.counters["bytes_received"].iter().sum::<u64>();
        let grown = |counter: &str| trial.hosts["b"].growth(counter, "eth0").unwrap();
        within_one_percent(approximate(received), approximate(grown(DEV_RX_BYTES) - 66 * grown(DEV_RX_FRAMES)));
    }
}

/// Attaches a gate in front of host b until the link is dropped.
pub(crate) fn in_front_of_b(stage: &TestBed, lab: &RunningLab<'_>, gate: &DropProgram) -> XdpLink {
    let state = StateFolder::open(&stage.state()).unwrap();
    let lab = Lab::find(&state, &lab.name.parse().unwrap()).unwrap();
    // In native mode, a veth passes frames in a ring that a burst can overflow, which would be an unplanned loss.
    let attach = || gate.attach(Netlink::open()?.link("eth0")?.index, XdpMode::Generic);
    lab.host("b").unwrap().enter_with(attach).unwrap().unwrap()
}

/// Returns the test of a stream through the gate, and the loss that the gate caused.
fn loss_behind(gate: &DropProgram) -> (TestRun, f64) {
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("lossy");
    let _link = in_front_of_b(&stage, &lab, gate);
    let port = PORT.to_string();
    let words = ["udp", "--lab", "lossy", "--port", &port, "--size", "200", "--rate", "8M", "--json"];
    let spans = ["--warmup", "0s", "--duration", "4s", "--rounds", "2"];
    let run = stage.fathom([&words[..], &spans].concat()).succeeded().run();
    let fate = gate.counts().unwrap();
    let planted = approximate(fate.dropped.0) / approximate(fate.passed.0 + fate.dropped.0);
    (run.tests.into_iter().next().unwrap(), planted)
}

/// Checks that the planted loss is reported in full, and not attributed to a wrong place.
///
/// A receiver that got no CPU time loses datagrams too. That loss is reported in addition to the planted one, with its own
/// cause.
#[track_caller]
fn is_reported(test: &TestRun, planted: f64) {
    let balance = test.conservation.as_ref().unwrap();
    let share = |n: u64| approximate(n) / approximate(balance.n_sent);
    let elsewhere = balance.drops.iter().filter(|drops| drops.place != "receiver's device");
    let elsewhere: u64 = elsewhere.map(|drops| drops.n_dropped).sum();
    let lost = balance.n_sent - balance.n_received;
    assert!((share(lost - elsewhere) - planted).abs() < 0.001, "{planted} was planted: {balance:?}");
    let reported = value(test, "loss_ratio");
    assert!((reported - share(lost)).abs() < 0.001, "{reported} is reported: {balance:?}");
}

#[test]
fn one_datagram_in_a_hundred_that_is_dropped_on_the_way_is_one_percent_of_loss() {
    if lacks_root() {
        return;
    }
    let gate = dropper(FrameMatch::UdpPort(PORT), NonZeroU32::new(100).unwrap()).unwrap();
    let (test, planted) = loss_behind(&gate);
    assert!((planted - 0.01).abs() < 0.0001);
    is_reported(&test, planted);
}

#[test]
fn what_a_policer_drops_is_reported_as_loss() {
    if lacks_root() {
        return;
    }
    // 8 Mbit/s with datagrams of 200 bytes are 5,000 datagrams per second, a tenth more than the limit.
    let limit = PolicerLimit { rate: PerSec::new(4_500.0).unwrap(), burst: 64 };
    let gate = policer(FrameMatch::UdpPort(PORT), limit).unwrap();
    let (test, planted) = loss_behind(&gate);
    assert!(planted > 0.01, "the policer dropped {planted}");
    is_reported(&test, planted);
}

/// Of the first 24 datagrams of eight flows, eight return challenges. If one of these is the 20th, it is dropped and takes no request with it,
/// because another flow has proven the same address.
const CHALLENGES_DROPPED: u64 = 1;

#[test]
fn requests_that_are_dropped_on_the_way_are_lost_and_no_others() {
    if lacks_root() {
        return;
    }
    let gate = dropper(FrameMatch::UdpPort(PORT), NonZeroU32::new(20).unwrap()).unwrap();
    let stage = TestBed::of_low_rates();
    let lab = stage.lab("lossy");
    let _link = in_front_of_b(&stage, &lab, &gate);
    let port = PORT.to_string();
    let words = ["udp", "--lab", "lossy", "--test", "rr", "--port", &port, "--flows", "8", "--timeout", "100ms"];
    let spans = ["--warmup", "0s", "--duration", "2s", "--rounds", "1", "--json"];
    let run = stage.fathom([&words[..], &spans].concat()).succeeded().run();
    let dropped = gate.counts().unwrap().dropped.0;
    let totals = &run.tests[0].trials[0].records["a"].totals;
    let (sent, lost, late) = (totals["sent"], totals["lost"], totals["late"]);
    // On a busy machine, a response after its timeout was not dropped, but counts as lost.
    let expected = dropped - CHALLENGES_DROPPED..=dropped + late;
    assert!(dropped > 5 && expected.contains(&lost), "{dropped} dropped, {lost} lost, {late} late");
    assert_eq!(sent, totals["transactions"] + lost + totals["unfinished"]);
    let missing = value(&run.tests[0], "request_loss_ratio") * approximate(sent);
    let off = (missing - approximate(dropped)).abs();
    assert!(off < approximate(CHALLENGES_DROPPED) + 0.5, "{missing} of {dropped} requests are said to be missing");
}
