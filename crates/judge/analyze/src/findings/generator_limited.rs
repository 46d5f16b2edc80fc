//! The bottleneck was fathom itself, not the target.

use fathom_model::{
    Evidence, Finding, Layer, LimitKind, NextStep, Record, Severity, Side,
    names::{count, distribution, host},
    units::{Nanos, approximate, percent, ratio},
};

use super::{FindingRule, errors::are_sends_forbidden, link_down::LINK_DOWN, other_programs::OtherPrograms};
use crate::change::{Change, another_core};
use crate::evidence::{OfferedLoad, TestEvidence, counter_evidence, ratio_evidence};
use crate::gap::{self, HALF};

/// At this share of its own ceiling and above, fathom is the limit.
const CEILING: f64 = 0.9;
/// Threads that are busy for at least this share of the time have no capacity left.
const FULL: f64 = 0.95;
/// A target whose cores are all busy for less than this share could do more.
const FREE: f64 = 0.5;
/// The minimum share of the intended load that must be offered (the rule of CSIT).
pub(super) const OFFERED: f64 = 0.99;
/// Below this share of the intended load, the test is not the requested one.
const OFFERED_MIN: f64 = 0.9;
/// At this share of the sent packets and above, everything counts as arrived, because the window cuts off a little at both
/// ends.
const ALL_CAME: f64 = 0.99;
/// Makes a sender slow only if it is on the way out of its host, where it refuses what is sent.
const FILTER_DROPS: &str = "filter-drops";
/// Queueing disciplines that limit a sender to a rate.
const SHAPERS: [&str; 6] = ["tbf", "htb", "hfsc", "cake", "cbs", "netem"];

/// Compares the value with fathom's own ceiling, and fathom's threads with the target's cores.
///
/// Full threads explain as much as a full core does. A ceiling is a limit itself: a value next to it lacks nothing that could be explained.
pub(crate) struct GeneratorLimited;

/// The finding that fathom is the limit.
pub(crate) struct OwnLimit {
    title: String,
    evidence: Evidence,
    /// The share of the time for which its threads were busy, unless the ceiling tells it.
    busy: Option<f64>,
}

impl FindingRule for GeneratorLimited {
    fn id(&self) -> &'static str {
        "generator-limited"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "low-frequency", "other-programs", FILTER_DROPS, LINK_DOWN]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        cause == FILTER_DROPS && !are_sends_forbidden(seen)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // If both ends share full cores, each limits the other. That was already so when the ceiling was measured.
        if seen.reached_target() || seen.shares_full_cores() {
            return Vec::new();
        }
        let limit = near_ceiling(seen).or_else(|| threads_saturated(seen)).or_else(|| script_saturated(seen));
        let Some(OwnLimit { title, evidence, busy }) = limit else { return Vec::new() };
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "own limit", title)
                .evidence([evidence])
                .explains(busy.map(|busy| gap::explained_by_core(seen, busy)))
                .next(next_step(seen)),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        another_core(seen, &seen.test.from)
    }
}

/// Requests over sockets can be sent without them; everything else has a ceiling to compare with.
fn next_step(seen: &TestEvidence<'_>) -> NextStep {
    if seen.test.layer == Layer::App {
        return NextStep::new("top -H").on(&seen.test.from).expected(
            "show the full threads; let the script do less for each answer, use more --threads, or run it on several hosts",
        );
    }
    let chooses = |option: &str| seen.run.command.contains(option);
    let is_over_sockets =
        seen.test.layer == Layer::Http && !["--engine", "--test"].iter().any(|option| chooses(option));
    // Between two hosts of fathom there is no server to choose an engine for.
    let engine = if seen.test.options.text("url").is_some() { "--engine auto" } else { "--engine xdp" };
    let without = is_over_sockets.then(|| seen.repeat_run_command(engine)).flatten();
    match without.filter(|command| command.starts_with("fathom http ")) {
        Some(command) => NextStep::new(command).expected("send more, by an XDP program in the place of sockets"),
        None => NextStep::new("fathom calibrate")
            .on(&seen.test.from)
            .expected("show the maximum that this machine can generate"),
    }
}

fn near_ceiling(seen: &TestEvidence<'_>) -> Option<OwnLimit> {
    let near = |limit: &&fathom_model::Limit| {
        limit.kind == LimitKind::OwnCeiling && limit.used.is_some_and(|used| used >= CEILING)
    };
    let limit = seen.test.limits.iter().find(near)?;
    let used = limit.used?;
    let title = format!("fathom itself was the limit: {} of its {}", percent(used), limit.text);
    let evidence = ratio_evidence(&seen.test.from, format!("{} of its own ceiling", limit.metric), used);
    Some(OwnLimit { title, evidence, busy: None })
}

/// Returns the finding that fathom's threads have no CPU time left while every core of the target has.
///
/// The number of threads is not recorded. It is taken as the smallest number that could have used that much CPU time, and only
/// if at least as many cores were full. If both ends share a machine, they cannot be told apart in this way.
pub(crate) fn threads_saturated(seen: &TestEvidence<'_>) -> Option<OwnLimit> {
    let to = seen.test.to.as_deref().filter(|_| !seen.is_one_machine())?;
    // A sender that keeps its schedule spins between packets, and threads that poll for answers take a whole core at any load.
    let keeps_schedule = || seen.offered().is_some_and(|offered| offered.share >= OFFERED);
    if keeps_schedule() || seen.polls_all_the_time() {
        return None;
    }
    let target = seen.cores(to);
    if target.is_empty() || target.iter().any(|core| core.busy() >= FREE) {
        return None;
    }
    let worked: u64 = seen.records(Side::Initiator).map(|record| record.cpu_ns.0).sum();
    let lasted: u64 = seen.records(Side::Initiator).map(|record| record.measured_ns.1.0).sum();
    let cores_used = ratio(worked, lasted)?;
    // A thread's CPU time is exact but the end of the trial is not, so one thread can appear to use slightly more than one
    // core.
    let threads = (cores_used - 0.05).ceil().max(1.0);
    let busy = (cores_used / threads).min(1.0);
    let n_full = seen.cores(&seen.test.from).iter().filter(|core| core.is_full()).count();
    let enough = approximate(u64::try_from(n_full).ok()?) >= threads;
    (busy >= FULL && enough).then(|| {
        let title = format!(
            "fathom itself was the limit: its threads on {} worked {} of the time while {to} had cores to spare",
            seen.test.from,
            percent(busy),
        );
        let evidence = ratio_evidence(&seen.test.from, "cpu_ns of fathom's threads", busy);
        OwnLimit { title, evidence, busy: Some(busy) }
    })
}

/// Returns the finding that the threads that run the users of a script have no time left: each of them worked all the time on its core.
///
/// Only where each answer is followed by what the script does next: with a schedule, users wait for their time.
fn script_saturated(seen: &TestEvidence<'_>) -> Option<OwnLimit> {
    let is_scheduled = || seen.distribution(Side::Initiator, distribution::SCHEDULE_LAG).max().is_some();
    (seen.test.layer == Layer::App && !is_scheduled()).then_some(())?;
    let of_record = |record: &Record| -> Vec<Option<f64>> {
        let (from, to) = record.measured_ns;
        // Threads without a core of their own share the time under an empty name: nobody knows how many there are.
        let of_core = |(core, spent): (&String, &Nanos)| ratio(spent.0, (to - from).0).filter(|_| !core.is_empty());
        record.cpu_ns_by_core.iter().map(of_core).collect()
    };
    let shares = seen.records(Side::Initiator).flat_map(of_record).collect::<Option<Vec<f64>>>()?;
    let least = shares.into_iter().reduce(f64::min).filter(|least| *least >= FULL)?;
    let title = format!(
        "fathom itself was the limit: its threads on {} worked {} of the time on the users and their script",
        seen.test.from,
        percent(least.min(1.0))
    );
    let evidence = ratio_evidence(&seen.test.from, "cpu_ns of fathom's threads, the least busy one", least);
    Some(OwnLimit { title, evidence, busy: Some(least.min(1.0)) })
}

/// An open-loop test that offers less than intended measures fathom itself, no matter how much was lost.
pub(crate) struct OfferedTooLittle;

impl FindingRule for OfferedTooLittle {
    fn id(&self) -> &'static str {
        "offered-too-little"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", "low-frequency", "other-programs", FILTER_DROPS]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        if cause == FILTER_DROPS {
            return !are_sends_forbidden(seen);
        }
        // Far below the asked rate, the test is not the one that was asked for, whoever took the sender's time.
        cause == OtherPrograms.id() && seen.offered().is_some_and(|offered| offered.share < OFFERED_MIN)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(offered) = seen.offered().filter(|offered| offered.share < OFFERED) else { return Vec::new() };
        let OfferedLoad { host: sender, side, sent, intended, share } = offered;
        // A search judges each of its trials separately and reports whose limit it found.
        if seen.test.curve.is_some() {
            return Vec::new();
        }
        // Requests that wait for a connection, some of them in vain, wait for the target. Showing that is the purpose of an open-loop load.
        let late_itself = seen.total(side, count::LATE_OWN_CPU);
        let waited = seen.total(side, count::LATE_NO_CONNECTION);
        // What a sender that is late itself did not send may be its own lack.
        let in_vain = if 2 * late_itself < sent { seen.total(side, count::NOT_STARTED) } else { 0 };
        if waited + in_vain > late_itself {
            return Vec::new();
        }
        let mut evidence =
            vec![counter_evidence(sender, count::INTENDED, intended), counter_evidence(sender, count::SENT, sent)];
        let refused = seen.growth(sender, host::UDP_SNDBUF_ERRORS, None) + seen.total(side, count::SEND_REFUSED);
        if refused > 0 {
            evidence.push(counter_evidence(sender, count::SEND_REFUSED, refused));
        }
        let waited = wait_of_sender(seen, side).filter(|wait| *wait >= HALF * (1.0 - share));
        let (held, command, expected) = match (shaper(seen, sender), waited) {
            (Some((shaper, device)), _) => (
                format!("; the queueing discipline {shaper} on {device} of {sender} may hold it back"),
                format!("tc -s qdisc show dev {device}"),
                "show its rate",
            ),
            (None, Some(wait)) => (
                format!("; the sender waited for a core {} of the time", percent(wait)),
                "top".to_owned(),
                "show which programs use its cores; end them, or give the sender cores of its own",
            ),
            _ => (String::new(), "fathom calibrate".to_owned(), "show the highest rate that this machine can offer"),
        };
        let severity = match waited {
            // Below that, the test is not the one that was asked for, whoever took the sender's time.
            _ if share < OFFERED_MIN => Severity::Invalidates,
            // Another program had the core, so this is no limit of the sender.
            Some(_) => Severity::Remark,
            None => Severity::HoldsBack,
        };
        let title =
            format!("only {:.1} % of the asked rate was sent{}{held}", 100.0 * share, offered_rate_text(seen, share));
        vec![
            seen.finding(self.id(), severity, "offered less", title)
                .evidence(evidence)
                .next(NextStep::new(command).on(sender).expected(expected)),
        ]
    }
}

/// Returns the share of the measured time in which a thread of the sender had work and no core; `None` if it does not tell it.
fn wait_of_sender(seen: &TestEvidence<'_>, side: Side) -> Option<f64> {
    let (mut waited, mut of_threads) = (0, 0);
    for record in seen.records(side) {
        let (from, to) = record.measured_ns;
        waited += record.run_delay_ns?.0;
        // Threads have a core each, or share the time without a fixed one.
        of_threads += (to - from).0.saturating_mul(u64::try_from(record.cpu_ns_by_core.len()).ok()?);
    }
    ratio(waited, of_threads)
}

/// Returns the sent rate, if the requested rate is known, and the rate that arrived: `: 42.5 kpps, of which 37.2 kpps arrived`.
fn offered_rate_text(seen: &TestEvidence<'_>, share: f64) -> String {
    let asked = seen.test.limits.iter().find(|limit| limit.kind == LimitKind::Asked);
    let of = |limit: &fathom_model::Limit| {
        let summary = seen.test.summaries.iter().find(|summary| summary.metric.name == limit.metric.as_str())?;
        let sent = share * limit.value;
        let what_came = if matches!(seen.test.layer, Layer::App | Layer::Http) { "were answered" } else { "arrived" };
        let came = summary.value.filter(|value| *value < ALL_CAME * sent);
        let came = came.map(|value| format!(", of which {} {what_came}", summary.metric.show(value)));
        Some(format!(": {}{}", summary.metric.show(sent), came.unwrap_or_default()))
    };
    asked.and_then(of).unwrap_or_default()
}

/// Returns the queueing discipline of a device of the sender that limits the rate, and the device.
fn shaper<'a>(seen: &TestEvidence<'a>, sender: &str) -> Option<(&'static str, &'a str)> {
    let facts = seen.environment(sender)?;
    seen.devices(sender).into_iter().find_map(|device| {
        let kinds = facts.get(device, "qdisc")?;
        Some((SHAPERS.into_iter().find(|shaper| kinds.contains(shaper))?, device))
    })
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;
    use fathom_model::{Severity, names::count, units::Nanos};

    #[test]
    fn a_value_near_the_own_ceiling_is_said_to_be_ours() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.context.ceilings.insert("http".to_owned(), [("requests_per_sec".to_owned(), 1050.0)].into());
        let finding = builder.finding("generator-limited").unwrap();
        assert_eq!(finding.title, "fathom itself was the limit: 95 % of its ceiling 1.05 k req/s");
        assert_eq!(finding.explains, None, "it lacks nothing");
        assert_eq!(finding.next.unwrap().command, "fathom calibrate");
        builder.run.command = "fathom http --lab pair".to_owned();
        let next = builder.finding("generator-limited").unwrap().next.unwrap();
        assert_eq!(next.command, "fathom http --lab pair --engine xdp");
        builder.run.command = "fathom http http://192.0.2.7/ --connections 100".to_owned();
        builder.run.tests[0].options.set("url", "http://192.0.2.7/");
        let next = builder.finding("generator-limited").unwrap().next.unwrap();
        assert_eq!(next.command, "fathom http http://192.0.2.7/ --connections 100 --engine auto");
    }

    #[test]
    fn threads_without_time_left_are_the_limit_when_the_target_is_idle() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().cpu_ns = Nanos::from_millis(1_180);
        builder.cpu("client", "cpu0", [60, 30, 9, 0]);
        builder.cpu("target", "cpu0", [10, 10, 10, 0]);
        let finding = builder.finding("generator-limited").unwrap();
        assert!(finding.title.contains("had cores to spare"), "{}", finding.title);
        assert!(finding.explains.is_some_and(|share| share >= 0.95), "{finding:?}");
        assert_eq!(builder.finding("core-saturated"), None, "the same core is not a second cause");
        builder.cpu("target", "cpu1", [10, 80, 9, 0]);
        assert_eq!(builder.finding("generator-limited"), None);
    }

    #[test]
    fn four_threads_at_a_quarter_are_not_one_at_its_limit() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 100);
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().cpu_ns = Nanos::from_millis(1_180);
        for core in ["cpu0", "cpu1", "cpu2", "cpu3"] {
            builder.cpu("client", core, [20, 5, 0, 0]);
        }
        builder.cpu("target", "cpu0", [10, 10, 10, 0]);
        assert_eq!(builder.finding("generator-limited"), None);
    }

    #[test]
    fn a_script_that_takes_all_of_its_threads_time_is_the_limit_and_not_the_server() {
        let found = |busy_ms| {
            let mut builder = RunBuilder::new();
            builder.http(1000, 10);
            builder.run.tests[0].layer = fathom_model::Layer::App;
            builder.run.tests[0].to = None;
            builder.own_cpu("client", &[("cpu0", 990), ("cpu1", busy_ms)]);
            builder.finding("generator-limited")
        };
        let finding = found(970).unwrap();
        let words = "worked 97 % of the time on the users and their script";
        assert!(finding.title.ends_with(words) && finding.explains == Some(0.97), "{finding:?}");
        assert_eq!(found(500), None, "a thread has time left");
    }

    #[test]
    fn requests_that_waited_for_a_connection_in_vain_are_no_lack_of_the_sender() {
        let found = |late_itself: u64, not_started: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(900, 900)]);
            builder.total("client", count::INTENDED, 1000);
            builder.total("client", count::LATE_OWN_CPU, late_itself);
            builder.total("client", count::NOT_STARTED, not_started);
            builder.finding("offered-too-little").is_some()
        };
        assert_eq!([found(20, 0), found(20, 100), found(800, 1_000)], [true, false, true]);
    }

    #[test]
    fn offering_less_than_intended_is_no_test_of_the_target() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(900, 900)]);
        builder.total("client", count::INTENDED, 1000);
        let finding = builder.finding("offered-too-little").unwrap();
        assert!(finding.title.starts_with("only 90.0 % of the asked rate was sent"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::HoldsBack, "it is a result for the lower rate");
        builder.run.tests[0].options.set("rate", "1000/s");
        assert!(builder.finding("offered-too-little").unwrap().title.ends_with("was sent: 900 pps"));
        let lossy = builder.run.tests[0].clone();
        builder.run.tests.clear();
        builder.udp_stream(&[(900, 700)]);
        builder.total("client", count::INTENDED, 1000);
        builder.run.tests[0].options.set("rate", "1000/s");
        let title = builder.finding("offered-too-little").unwrap().title;
        assert!(title.ends_with("was sent: 900 pps, of which 700 pps arrived"), "{title}");
        builder.run.tests = vec![lossy];
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "qdisc", "noqueue, tbf");
        let finding = builder.finding("offered-too-little").unwrap();
        assert!(finding.title.ends_with("tbf on eth0 of client may hold it back"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "tc -s qdisc show dev eth0");
        builder.total("client", count::INTENDED, 905);
        assert_eq!(builder.finding("offered-too-little"), None);
    }

    #[test]
    fn a_sender_that_waited_for_a_core_names_that_and_not_its_own_limit() {
        for (sent, waited_ms, severity, command) in [
            (950, 40, Severity::Remark, "top"),
            (950, 10, Severity::HoldsBack, "fathom calibrate"),
            // Of a lab beside busy programs: 36 of 50 kpps were sent.
            (724, 430, Severity::Invalidates, "top"),
            (724, 50, Severity::Invalidates, "fathom calibrate"),
        ] {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(sent, sent)]);
            builder.total("client", count::INTENDED, 1000);
            builder.own_cpu("client", &[("", 500)]);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.run_delay_ns = Some(Nanos::from_millis(waited_ms));
            let finding = builder.finding("offered-too-little").unwrap();
            let told = (finding.severity, finding.title.contains("waited for a core"));
            assert_eq!(told, (severity, command == "top"), "{sent} {waited_ms}: {}", finding.title);
            let next = finding.next.map(|next| next.command);
            assert_eq!(next.as_deref(), Some(command));
        }
    }

    #[test]
    fn requests_that_wait_for_the_target_are_not_what_the_tool_failed_to_offer() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(900, 900)]);
        builder.total("client", count::INTENDED, 1000);
        builder.total("client", count::LATE_NO_CONNECTION, 90);
        builder.total("client", count::LATE_OWN_CPU, 10);
        assert_eq!(builder.finding("offered-too-little"), None);
        builder.total("client", count::LATE_OWN_CPU, 100);
        assert!(builder.finding("offered-too-little").is_some());
    }

    #[test]
    fn a_sender_that_keeps_its_schedule_or_polls_is_full_and_no_limit() {
        let found = |intended: u64, polls: bool| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 990)]);
            builder.total("client", count::INTENDED, intended);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.cpu_ns = Nanos::from_millis(1_180);
            record.notes.extend(polls.then(|| fathom_model::Note::new("spin", "it polled")));
            builder.cpu("client", "cpu0", [60, 30, 9, 0]);
            builder.cpu("target", "cpu0", [10, 10, 10, 0]);
            (builder.finding("generator-limited").is_some(), builder.finding("core-saturated").is_some())
        };
        assert_eq!(found(2_000, false), (true, false));
        assert_eq!(found(1_000, false), (false, false), "it spins between packets");
        assert_eq!(found(2_000, true), (false, false), "it polls for answers");
    }
}
