//! The effect of load on the round trip: a test next to streams, compared with the same test without streams.

use fathom_model::{Evidence, Finding, NextStep, Severity, Summary, run::TestRun, units::Nanos, units::rounded};

use super::FindingRule;
use crate::{
    change::{Change, smaller_stream_buffer},
    cores::CoreLoad,
    evidence::{TestEvidence, text_evidence},
};

/// The option for the direction of the streams, and its value for no streams.
const LOAD: (&str, &str) = ("direction", "none");
/// The latencies that are compared.
const MEDIAN: &str = "latency_ns_p50";
const TAIL: &str = "latency_ns_p99";
/// The delay in ns that busy CPUs alone add to a round trip. A relevant queue adds more.
const BY_PROCESSORS: f64 = 1e6;
/// A tail that has not even doubled does not matter.
const MATTERS: f64 = 2.0;

/// Compares the round trip under load with the idle one.
pub(crate) struct LatencyUnderLoad;

impl FindingRule for LatencyUnderLoad {
    fn id(&self) -> &'static str {
        "latency-under-load"
    }

    // An end that is stopped answers late, without a queue in the path.
    fn effect_of(&self) -> &'static [&'static str] {
        &["cpu-quota"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        self.compare(seen).into_iter().collect()
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        smaller_stream_buffer(seen)
    }
}

/// One value without and with load, with separate confidence intervals.
struct LatencyGrowth<'a> {
    idle: &'a Summary,
    loaded: &'a Summary,
    from: f64,
    to: f64,
}

impl<'a> LatencyGrowth<'a> {
    /// Returns `None` if the difference could be chance: the intervals overlap, and so do the rounds.
    ///
    /// The interval of two rounds is as wide as an order of magnitude. Rounds that are all twice as long as all others are apart, too.
    fn of((idle, loaded): (&'a TestRun, &'a TestRun), metric: &str) -> Option<Self> {
        let value = |test: &'a TestRun| test.summaries.iter().find(|summary| summary.metric.name == metric);
        let (idle, loaded) = (value(idle)?, value(loaded)?);
        let apart = loaded.confidence?.low > idle.confidence?.high || {
            let most_idle = idle.trials.iter().copied().fold(f64::MIN, f64::max);
            loaded.trials.len() > 1 && loaded.trials.iter().all(|round| *round >= MATTERS * most_idle)
        };
        let (from, to) = (idle.value?, loaded.value?);
        (apart && to >= MATTERS * from).then_some(Self { idle, loaded, from, to })
    }

    fn added(&self) -> f64 {
        self.to - self.from
    }

    fn evidence(&self, (idle, loaded): (&TestRun, &TestRun)) -> [Evidence; 2] {
        [(idle, self.idle), (loaded, self.loaded)].map(|(test, summary)| {
            let span = |value: f64| Nanos(rounded(value)).to_string();
            let interval =
                summary.confidence.map_or_else(String::new, |c| format!(" ({} to {})", span(c.low), span(c.high)));
            text_evidence(
                &test.from,
                format!("{} of {}", summary.metric.name, test.name),
                format!("{}{interval}", summary.value.map_or_else(String::new, span)),
            )
        })
    }
}

impl LatencyUnderLoad {
    fn compare(&self, seen: &TestEvidence<'_>) -> Option<Finding> {
        let idle = idle_twin(seen)?;
        let pair = (idle, seen.test);
        // A standing queue delays most probes, so the median shows it even if the idle tail is noisy. Busy CPUs delay only a
        // few.
        let queue = LatencyGrowth::of(pair, MEDIAN).filter(|median| median.added() >= BY_PROCESSORS);
        let tail = LatencyGrowth::of(pair, TAIL);
        let Some(grown) = tail.as_ref().or(queue.as_ref()) else {
            return idle_disturbed_finding(self.id(), seen, idle);
        };
        let load = load(seen.test)?;
        let show = |value: f64| Nanos(rounded(value)).to_string();
        let q = if tail.is_some() { "p99" } else { "p50" };
        let grows =
            format!("under load {load} the round trip grows from {} to {} ({q})", show(grown.from), show(grown.to));
        // Packets that wait for a core stand in a queue too, that of the host.
        let is_full = |host: &str| seen.cores(host).first().is_some_and(CoreLoad::is_full_of_own_work);
        let lacks_cores = seen.hosts().any(|host| is_full(host) || seen.waits_for_core(host));
        let (why, short) = match &queue {
            Some(median) if lacks_cores => (
                format!("a queue in the path or a busy processor adds {} (p50)", show(median.added())),
                format!("p50 +{}", show(median.added())),
            ),
            Some(median) => (
                format!("a queue of {} (p50) stands in the path", show(median.added())),
                format!("+{} in a queue", show(median.added())),
            ),
            None => (
                "most probes meet no queue, some wait for a burst or a busy processor".to_owned(),
                format!("p99 +{}", show(grown.added())),
            ),
        };
        let median = queue.as_ref().filter(|_| tail.is_some()).map(|median| median.evidence(pair));
        let is_of_path = queue.is_some() && !lacks_cores;
        let severity = if is_of_path { Severity::HoldsBack } else { Severity::Remark };
        Some(
            seen.finding(self.id(), severity, short, format!("{grows}: {why}"))
                .tests([idle, seen.test].map(|test| test.name.clone()))
                .evidence(grown.evidence(pair).into_iter().chain(median.into_iter().flatten()))
                .next(is_of_path.then(|| next(seen))),
        )
    }
}

/// Reports idle probes that took longer than those under load: something else delayed them.
fn idle_disturbed_finding(id: &str, seen: &TestEvidence<'_>, idle: &TestRun) -> Option<Finding> {
    let value = |test: &TestRun| test.summaries.iter().find(|summary| summary.metric.name == TAIL)?.value;
    let (reference, other) = (value(idle)?, value(seen.test)?);
    let show = |value: f64| Nanos(rounded(value)).to_string();
    (reference >= MATTERS * other).then(|| {
        let title = format!(
            "the idle round trip ({} p99) was longer than the loaded one ({} p99): something else delayed it, so the two cannot be compared",
            show(reference),
            show(other)
        );
        let tests = [idle, seen.test].map(|test| test.name.clone());
        seen.finding(id, Severity::Remark, "idle spoilt", title).tests(tests)
    })
}

/// Returns the load in words that follow "under load".
fn load(test: &TestRun) -> Option<String> {
    let load = test.options.text(LOAD.0)?;
    Some(if load == "both" { "both ways".to_owned() } else { load })
}

/// Returns the test that differs only in having no load.
fn idle_twin<'a>(seen: &TestEvidence<'a>) -> Option<&'a TestRun> {
    let others = |test: &TestRun| {
        let mut options = test.options.clone();
        options.0.remove(LOAD.0);
        options
    };
    let is_idle = |test: &TestRun| test.options.text(LOAD.0).as_deref() == Some(LOAD.1);
    let here = seen.test;
    let is_twin = |test: &&TestRun| {
        is_idle(test)
            && (&test.kind, &test.from, &test.to) == (&here.kind, &here.from, &here.to)
            && others(test) == others(here)
    };
    if is_idle(here) { None } else { seen.run.tests.iter().find(is_twin) }
}

fn next(seen: &TestEvidence<'_>) -> NextStep {
    let sender = match (seen.test.options.text(LOAD.0).as_deref(), &seen.test.to) {
        (Some("down"), Some(to)) => to,
        _ => &seen.test.from,
    };
    shorter_queue(seen, sender)
}

/// Suggests a congestion control that watches the delay, unless it is in use already; then a look at the queues.
pub(super) fn shorter_queue(seen: &TestEvidence<'_>, sender: &str) -> NextStep {
    let watches_delay = seen.congestion_control(sender).is_some_and(|name| name.starts_with("bbr"));
    let known = seen.environment(sender).and_then(|facts| facts.get("tcp", "congestion_control_available"));
    // The kernel loads it for who may set up the network.
    let may_load = || {
        let capabilities = seen.environment(sender).and_then(|facts| facts.get("tool", "capabilities"));
        capabilities.is_none_or(|all| all.split(' ').any(|one| one == "net_admin"))
    };
    let is_missing = known.is_some_and(|names| !names.split_whitespace().any(|name| name == "bbr")) && !may_load();
    let (command, expected) = if watches_delay || is_missing {
        (
            "tc -s qdisc show".to_owned(),
            "show which queue holds the packets, if it is one of this host; fq_codel or cake at the bottleneck keeps it short",
        )
    } else {
        (
            seen.repeat_test_command("--congestion bbr").unwrap_or_else(|| "tc -s qdisc show".to_owned()),
            "show a shorter queue if senders can keep it short; else the bottleneck needs fq_codel or cake",
        )
    };
    let next = NextStep::new(command).expected(expected);
    if next.command.starts_with("tc ") { next.on(sender) } else { next }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    const MS: u64 = 1_000_000;

    /// Tests of one plan: the load, and the median and the tail of each round in microseconds.
    fn told(tests: &[(&str, &[(u64, u64)])]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        for (load, rounds) in tests {
            builder.probes(rounds);
            let test = builder.run.tests.last_mut().unwrap();
            test.options.set("direction", *load);
            test.name = format!("load={load}");
        }
        builder
    }

    const IDLE: (&str, &[(u64, u64)]) = ("none", &[(MS / 10, MS / 5), (MS / 10, MS / 4), (MS / 11, MS / 5)]);

    #[test]
    fn a_round_trip_that_grows_beyond_chance_tells_of_the_queue() {
        let loaded = [(36 * MS, 38 * MS), (35 * MS, 38 * MS), (36 * MS, 39 * MS)];
        let finding = told(&[IDLE, ("up", &loaded)]).finding("latency-under-load").unwrap();
        assert!(finding.title.contains("grows from 250 µs to 39.0 ms (p99)"), "{}", finding.title);
        assert!(finding.title.ends_with("stands in the path"), "{}", finding.title);
        assert_eq!((finding.tests.len(), finding.evidence.len()), (2, 4));
        assert!(finding.next.unwrap().command.ends_with("--congestion bbr"));
    }

    #[test]
    fn senders_that_watch_the_delay_already_are_not_proposed() {
        let loaded = [(36 * MS, 38 * MS), (35 * MS, 38 * MS), (36 * MS, 39 * MS)];
        let mut builder = told(&[IDLE, ("down", &loaded)]);
        let next = |builder: &RunBuilder| builder.finding("latency-under-load").unwrap().next.unwrap();
        assert_eq!(next(&builder).on, None, "a test is repeated where it was started");
        let target = &mut builder.run.hosts.get_mut("target").unwrap().environment;
        target.note("tcp", "congestion_control", "bbr");
        let found = next(&builder);
        assert_eq!(
            (found.command.as_str(), found.on.as_deref()),
            ("tc -s qdisc show", Some("target")),
            "it sends what goes down"
        );
    }

    #[test]
    fn where_a_core_is_full_the_queue_may_be_that_of_the_processor() {
        let loaded = [(3 * MS, 8 * MS), (3 * MS, 8 * MS), (3 * MS, 9 * MS)];
        let mut builder = told(&[IDLE, ("up", &loaded)]);
        builder.cpu("target", "cpu0", [1, 1, 97, 0]);
        let finding = builder.finding("latency-under-load").unwrap();
        assert!(
            finding.title.ends_with("a queue in the path or a busy processor adds 2.90 ms (p50)"),
            "{}",
            finding.title
        );
        assert_eq!((finding.severity, finding.next), (fathom_model::Severity::Remark, None));
    }

    #[test]
    fn rounds_that_differ_as_much_as_the_loads_say_nothing() {
        let loaded = [(MS / 10, MS / 5), (9 * MS, 90 * MS), (MS / 10, MS / 5)];
        assert_eq!(told(&[IDLE, ("up", &loaded)]).finding("latency-under-load"), None);
    }

    #[test]
    fn two_rounds_are_enough_if_each_is_twice_as_long_as_every_idle_one() {
        let idle: (&str, &[(u64, u64)]) = ("none", &[(MS / 2, MS), (MS / 2, 2 * MS)]);
        let loaded = [(4 * MS, 9 * MS), (7 * MS, 8 * MS)];
        let finding = told(&[idle, ("up", &loaded)]).finding("latency-under-load").unwrap();
        assert!(finding.title.ends_with("stands in the path"), "{}", finding.title);
        let mixed = [(MS * 4 / 5, 9 * MS), (7 * MS, 8 * MS)];
        let finding = told(&[idle, ("up", &mixed)]).finding("latency-under-load");
        assert!(finding.is_none_or(|finding| !finding.title.ends_with("stands in the path")));
    }

    #[test]
    fn a_queue_that_stands_is_told_although_the_tail_of_the_idle_probes_is_noisy() {
        let noisy: (&str, &[(u64, u64)]) = ("none", &[(MS / 10, 150 * MS), (MS / 10, MS), (MS / 11, 2 * MS)]);
        let loaded = [(36 * MS, 38 * MS), (35 * MS, 38 * MS), (36 * MS, 39 * MS)];
        let finding = told(&[noisy, ("up", &loaded)]).finding("latency-under-load").unwrap();
        assert!(finding.title.ends_with("stands in the path"), "{}", finding.title);
        assert!(finding.title.contains("(p50)"), "{}", finding.title);
    }

    #[test]
    fn idle_probes_that_took_longer_than_loaded_ones_are_remarked() {
        let spoilt: (&str, &[(u64, u64)]) = ("none", &[(MS, 156 * MS), (MS, 150 * MS), (MS, 160 * MS)]);
        let loaded = [(MS, 2 * MS), (MS, 2 * MS), (MS, 2 * MS)];
        let finding = told(&[spoilt, ("up", &loaded)]).finding("latency-under-load").unwrap();
        assert_eq!(finding.severity, crate::findings::Severity::Remark);
        assert!(finding.title.contains("cannot be compared"), "{}", finding.title);
    }

    #[test]
    fn a_tail_alone_is_no_queue_that_stands() {
        let loaded = [(MS / 5, 2 * MS), (MS / 5, 2 * MS), (MS / 5, 2 * MS + 1000)];
        let finding = told(&[IDLE, ("down", &loaded)]).finding("latency-under-load").unwrap();
        assert!(finding.title.contains("most probes meet no queue"), "{}", finding.title);
        assert_eq!(finding.next, None);
    }

    #[test]
    fn without_an_idle_twin_there_is_nothing_to_compare() {
        let loaded = [(36 * MS, 38 * MS), (35 * MS, 38 * MS)];
        assert_eq!(told(&[("up", &loaded)]).finding("latency-under-load"), None);
        let mut builder = told(&[IDLE, ("up", &loaded)]);
        builder.run.tests[0].options.set("flows", "8");
        assert_eq!(builder.finding("latency-under-load"), None, "a test with other flows is no twin");
    }
}
