//! The intervention that a test needs next: one change that proves or refutes the cause that was found, or asks for one.

use fathom_model::{Derivation, Finding, Intervention, Layer, ProofOutcome, Run, Severity, TestRun, names::count};

use crate::{
    change::{Change, more_flows},
    context::AnalysisContext,
    evidence::TestEvidence,
    findings::FINDING_RULES,
    summaries::main_rate,
};

/// Returns the next intervention of a test of an analyzed run, without trials. `None` if there is nothing (more) to try.
///
/// A cause is tried once. The next one of a test is tried only after the first was refuted, and a cause that was proven with another
/// test is not tried again.
#[must_use]
pub fn next_intervention(run: &Run, test: &TestRun, context: &AnalysisContext) -> Option<Intervention> {
    if test.unavailable.is_some() || test.trials.is_empty() {
        return None;
    }
    let seen = TestEvidence::new(run, test, context);
    let is_cause = |finding: &&Finding| {
        matches!(finding.severity, Severity::HoldsBack | Severity::Invalidates) && finding.tests.contains(&test.name)
    };
    let causes: Vec<&Finding> = run.findings.iter().filter(is_cause).collect();
    for finding in &causes {
        let is_proven = finding.proof.as_ref().is_some_and(|proof| proof.outcome == ProofOutcome::Proven);
        if is_proven || is_tried(test, Some(&finding.id)) {
            return None;
        }
        if let Some(change) = change_of(finding, &seen) {
            return Some(intervention(test, Some(finding.id.clone()), change));
        }
    }
    if !causes.is_empty() || test.no_cause.is_none() || is_tried(test, None) {
        return None;
    }
    Some(intervention(test, None, question(&seen)?))
}

/// Returns true if a cause, or the lack of one, was already tried with a test.
fn is_tried(test: &TestRun, cause: Option<&String>) -> bool {
    test.interventions.iter().any(|tried| tried.cause.as_ref() == cause)
}

/// Returns the change that the rule of a finding states for this test.
fn change_of(finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
    FINDING_RULES.iter().find_map(|rule| {
        let found = rule.evaluate(seen).into_iter().find(|found| found.id == finding.id)?;
        rule.change(&found, seen)
    })
}

/// Returns what people try first when nothing shows a cause: whether twice as many streams, or questions at once, carry more.
fn question(seen: &TestEvidence<'_>) -> Option<Change> {
    let test = seen.test;
    let counted = [count::BYTES_RECEIVED, count::REQUESTS, count::TRANSACTIONS];
    let Derivation::Rate { counter, .. } = &main_rate(test)?.metric.from else { return None };
    let is_of_connections = matches!(test.layer, Layer::Http | Layer::Tcp) && counted.contains(&counter.as_ref());
    let is_scheduled = ["rate", "pacing", "profile"].iter().any(|option| test.options.text(option).is_some());
    if is_of_connections && !is_scheduled { Some(more_flows(seen)?.into_clue()) } else { None }
}

fn intervention(test: &TestRun, cause: Option<String>, change: Change) -> Intervention {
    Intervention {
        cause,
        from: test.options.text(change.option),
        option: change.option.to_owned(),
        to: change.to,
        metric: change.metric,
        effect_min: change.effect_min,
        aim: change.aim,
        unchanged: Vec::new(),
        changed: Vec::new(),
        cut: None,
        effect: None,
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Effect, InterventionAim, names::host, units::Nanos};

    use super::*;
    use crate::{CHANGEABLE_OPTIONS, run_builder::RunBuilder};

    fn next(builder: &RunBuilder, idx: usize) -> Option<Intervention> {
        let run = builder.analyzed();
        next_intervention(&run, &run.tests[idx], &builder.context)
    }

    /// The change that the first test needs next, behind its cause.
    fn told(builder: &RunBuilder) -> Option<String> {
        next(builder, 0).map(|tried| {
            assert!(CHANGEABLE_OPTIONS.contains(&tried.option.as_str()), "{tried:?}");
            format!("{}: {}", tried.cause.as_deref().unwrap_or("no cause"), tried.change())
        })
    }

    fn small_buffer() -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 7_000), (10_000, 7_010)]);
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 3_000);
        builder.run.tests[0].options.set("buffer", "4KiB");
        builder
    }

    #[test]
    fn a_full_socket_gets_a_larger_buffer() {
        let builder = small_buffer();
        assert_eq!(told(&builder).as_deref(), Some("udp-receive-buffer: --buffer 4MiB"));
        let tried = next(&builder, 0).unwrap();
        assert_eq!((tried.from.as_deref(), tried.metric.as_str()), (Some("4KiB"), "loss"));
        assert_eq!(tried.aim, InterventionAim::Verdict);
    }

    #[test]
    fn a_cause_is_tried_once_and_the_next_one_only_if_it_was_refuted() {
        let mut builder = small_buffer();
        let mut tried = next(&builder, 0).unwrap();
        let lossy = builder.run.tests[0].trials.clone();
        (tried.unchanged, tried.changed) = (lossy.clone(), lossy);
        builder.run.tests[0].interventions.push(tried.clone());
        assert_eq!(told(&builder), None, "it was refuted, and nothing else is known");
        builder.host_counter("client", (host::QDISC_DROPPED, "eth0"), 2_000);
        builder.run.tests[0].options.set("pps", "20k/s");
        assert_eq!(told(&builder).as_deref(), Some("qdisc-drops: --pps 5600/s"));
        builder.run.tests[0].interventions[0].changed.clear();
        assert_eq!(told(&builder), None, "it was tried without an answer");
    }

    #[test]
    fn a_cause_that_was_proven_with_another_test_is_not_tried_again() {
        let mut builder = small_buffer();
        builder.udp_stream(&[(10_000, 7_000), (10_000, 7_010)]);
        let second = &mut builder.run.tests[1];
        second.name = "second".to_owned();
        second.options.set("buffer", "4KiB");
        builder.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 3_000);
        assert!(next(&builder, 1).is_some());
        let mut tried = next(&builder, 0).unwrap();
        tried.unchanged = builder.run.tests[0].trials.clone();
        let mut clean = RunBuilder::new();
        clean.udp_stream(&[(10_000, 10_000), (10_000, 10_000)]);
        tried.changed = clean.run.tests.remove(0).trials;
        builder.run.tests[0].interventions.push(tried);
        let run = builder.analyzed();
        let proven: Option<&Effect> = run.tests[0].interventions[0].effect.as_ref();
        assert_eq!(proven.unwrap().outcome, ProofOutcome::Proven);
        assert_eq!((next(&builder, 0), next(&builder, 1)), (None, None));
    }

    #[test]
    fn a_row_without_a_cause_is_asked_whether_more_at_once_carry_more() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[12_500_000, 12_500_000]);
        builder.run.tests[0].options.set("flows", "4");
        assert_eq!(told(&builder).as_deref(), Some("no cause: --flows 8"));
        assert_eq!(next(&builder, 0).unwrap().aim, InterventionAim::Clue);
        builder.run.tests[0].options.set("pacing", "100Mbit/s");
        assert_eq!(told(&builder), None, "its rate was asked");
        let mut builder = RunBuilder::new();
        builder.http(1000, 32);
        assert_eq!(told(&builder).as_deref(), Some("no cause: --connections 64"));
    }

    #[test]
    fn nothing_is_tried_where_nothing_holds_back_or_no_option_would_show_it() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.run.tests[0].options.set("pps", "1000/s");
        assert_eq!(told(&builder), None);
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.run.tests[0].options.set("flows", "1");
        builder.steal("client", Nanos::from_millis(600));
        builder.host_counter("client", (host::CGROUP_THROTTLED_NS, ""), 800_000_000);
        assert_eq!(told(&builder), None, "no option of the test lifts a quota");
    }

    #[test]
    fn a_full_core_is_relieved_by_another_flow_only_where_another_core_is_idle() {
        let story = |second: [u64; 4]| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000, 1000]);
            builder.run.tests[0].options.set("flows", "1");
            builder.cpu("client", "cpu0", [10, 88, 1, 0]);
            builder.cpu("client", "cpu1", second);
            builder.cpu("target", "cpu0", [10, 60, 10, 0]);
            builder
        };
        assert_eq!(told(&story([1, 1, 1, 0])).as_deref(), Some("core-saturated: --flows 2"));
        assert_eq!(told(&story([10, 60, 1, 0])), None);
        let mut shared = story([1, 1, 1, 0]);
        shared.one_machine();
        assert_eq!(told(&shared), None, "the other core is the other end's");
    }

    #[test]
    fn a_sender_that_takes_losses_for_a_full_path_tries_one_that_does_not() {
        let story = |used: &str| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_250_000, 1_250_000]);
            builder.host_counter("client", (host::TCP_OUT_SEGMENTS, ""), 100_000);
            builder.host_counter("client", (host::TCP_RETRANS_SEGMENTS, ""), 500);
            let facts = &mut builder.run.hosts.get_mut("client").unwrap().environment;
            facts.note("tcp", "congestion_control", used);
            facts.note("tcp", "congestion_control_available", "reno cubic bbr");
            builder
        };
        assert_eq!(told(&story("cubic\n")).as_deref(), Some("retransmissions: --congestion bbr"));
        assert_eq!(told(&story("bbr")), None, "and the share of retransmissions has no metric here");
        let mut builder = story("bbr");
        builder.run.tests[0].options.set("congestion", "reno");
        assert_eq!(told(&builder).as_deref(), Some("retransmissions: --congestion bbr"));
    }

    #[test]
    fn a_rate_limit_lets_a_rate_below_it_pass() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_000), (10_000, 9_000)]);
        assert_eq!(told(&builder), None, "no rate in bits is known of it");
        builder.run.tests[0].options.set("pps", "10k/s");
        assert_eq!(told(&builder).as_deref(), Some("loss: --pps 5k/s"), "half of what was asked");
        assert_eq!(next(&builder, 0).unwrap().aim, InterventionAim::Clue);
        builder.run.tests[0].options.set("pps", "1M/s");
        assert_eq!(told(&builder).as_deref(), Some("loss: --pps 7200/s"), "less than what arrived");
    }

    #[test]
    fn datagrams_that_are_too_large_for_the_path_are_made_smaller() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 1), (1_000, 1)]);
        builder.total("client", count::BYTES_SENT, 1_450_000);
        builder.run.tests[0].options.set("size", "1450");
        assert_eq!(told(&builder).as_deref(), Some("path-mtu-black-hole: --size 500"));
        builder.run.tests[0].options.set("mix", "imix");
        assert_eq!(told(&builder), None, "a mix has more than one size");
    }

    #[test]
    fn a_queue_that_stands_under_load_is_kept_short_by_small_buffers() {
        const MS: u64 = 1_000_000;
        let mut builder = RunBuilder::new();
        for (load, time) in [("none", MS / 10), ("up", 36 * MS)] {
            builder.probes(&[(time, 2 * time), (time, 2 * time), (time, 2 * time)]);
            let test = builder.run.tests.last_mut().unwrap();
            test.options.set("direction", load);
            test.name = format!("load={load}");
        }
        let tried = next(&builder, 1).unwrap();
        assert_eq!((tried.change().as_str(), tried.metric.as_str()), ("--buffer 16KiB", "latency_ns_p50"));
        assert_eq!(next(&builder, 0), None, "the idle test has nothing to prove");
    }
}
