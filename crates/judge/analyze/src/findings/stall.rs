//! The target answered nothing for a while.
//!
//! A closed loop sends nothing while it waits (coordinated omission): a stall of any length is one slow request per connection, which its
//! percentiles hide. With a schedule, all requests that were due meanwhile have waited.

use fathom_model::{
    Finding, Histogram, Layer, NextStep, Severity, Side, Trial,
    names::{
        count,
        distribution::{RESPONSE_TIME, SCHEDULE_LAG, SERVICE_TIME},
    },
    units::{Nanos, approximate, percent, ratio, rounded},
};

use super::{FindingRule, drops::BACKLOG_OVERFLOW, neighbor_changes::NEIGHBOR_CHANGES, planned_event::PLANNED_EVENT};
use crate::{
    closed_load::losses_silence,
    evidence::{TestEvidence, ratio_evidence, text_evidence},
    gap,
    window::{MeasuredWindow, rates, record_of},
};

/// A busy machine can cause shorter waits. This value is just below the 200 ms after which TCP retransmits.
const WAIT_MIN: Nanos = Nanos::from_millis(150);
/// With one connection, a single retransmission stops all transactions for 200 ms (RFC 6298 section 2: a second at least, in Linux 200 ms).
const WAIT_OF_TRANSACTIONS_MIN: Nanos = Nanos::from_millis(300);
/// If a wait takes at least this part of the measured time, it would have changed the percentiles of an open loop.
const MATTERS: f64 = 0.1;
/// A closed load loses this share of its rate or more to silence: that holds it back.
const HOLDS_BACK: f64 = 0.2;
/// With so many times the longest silence in all, there were several.
const RECURS: f64 = 1.5;
/// A wait of fewer than this many times p99 is visible in the percentiles.
const HIDDEN_FACTOR: u64 = 10;

/// If so few requests are due in a silence on average, it may be one by chance.
const DUE_MIN: f64 = 10.0;

/// The id of this rule's findings.
pub(super) const STALL: &str = "stall";

/// Compares the longest wait of each trial with its percentiles and with the intervals without any answer.
pub(crate) struct Stall;

impl FindingRule for Stall {
    fn id(&self) -> &'static str {
        STALL
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "other-programs",
            "cpu-quota",
            "connect-delays",
            "latency-under-load",
            "link-down",
            NEIGHBOR_CHANGES,
            PLANNED_EVENT,
            BACKLOG_OVERFLOW,
            "retransmissions",
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        if cause != "other-programs" {
            return [BACKLOG_OVERFLOW, "retransmissions"].contains(&cause) && !losses_silence(seen);
        }
        // Other programs take many short times, which the percentiles show. A long silence in every round is the target's own.
        let stalls = stall_waits(seen);
        let is_long = |wait: &StallWait| wait.silent >= HOLDS_BACK;
        stalls.len() > 1 && stalls.len() == seen.trials().len() && stalls.iter().all(is_long)
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let stalls = stall_waits(seen);
        let Some(worst) = stalls.iter().max_by_key(|wait| wait.longest) else { return Vec::new() };
        let round = if seen.test.trials.len() > 1 { format!(" (round {})", worst.round + 1) } else { String::new() };
        let next = next(seen, worst);
        let effect = match (worst.waited, &next) {
            (Some(share), _) => format!(
                ": requests that were due meanwhile waited for it, and {} of all took {} or longer",
                percent(share),
                worst.longest / 2
            ),
            (None, next) => format!(
                "; this load waits for answers before it sends again, so the percentiles hide it{}",
                if next.is_some() { " (use --rate)" } else { "" }
            ),
        };
        let silence = if worst.recurs() {
            format!("{} of {}, {} at the longest", percent(worst.silent), worst.measured, worst.longest)
        } else {
            format!("{} of {}", worst.longest, worst.measured)
        };
        let title = format!("no request was answered for {silence}{round}{effect}");
        let host = &seen.test.from;
        let longest = text_evidence(host, "longest wait", worst.longest);
        let of_trials = format!("{} of {}", stalls.len(), seen.trials().len());
        // A schedule lacks no rate, but its latencies are those of the silence.
        let holds_back = worst.waited.is_some() || worst.silent >= HOLDS_BACK;
        let severity = if holds_back { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(self.id(), severity, "stall", title)
                .evidence([
                    longest,
                    ratio_evidence(host, "time without an answer", worst.silent),
                    text_evidence(host, "rounds with a stall", of_trials),
                ])
                .explains(gap::explained_by_time(seen, worst.silent).filter(|_| worst.waited.is_none()))
                .next(next),
        ]
    }
}

/// Returns the longest silence of all trials, as a share of the measured time.
pub(super) fn longest_silence(seen: &TestEvidence<'_>) -> f64 {
    stall_waits(seen).iter().map(|wait| wait.silent).fold(0.0, f64::max)
}

/// Suggests the same requests on a schedule, at a rate that leaves the target time to recover.
fn next(seen: &TestEvidence<'_>, worst: &StallWait) -> Option<NextStep> {
    if seen.test.layer != Layer::Http || worst.waited.is_some() {
        // For scripted users, a rate starts users, and the times of their requests are not measured from the schedule.
        return None;
    }
    let rate = rounded(worst.per_second / 2.0).max(1);
    // If the command names a test, that is the closed-loop one, which takes no rate.
    let command = seen.repeat_with_option("rate", &rate.to_string()).filter(|command| !command.contains(" --test"))?;
    Some(NextStep::new(command).expected("show the latency of all requests that are due during a stall"))
}

/// A long time in which a trial got no answer.
struct StallWait {
    round: u32,
    longest: Nanos,
    measured: Nanos,
    /// The part of the measured time without any answer.
    silent: f64,
    per_second: f64,
    /// The share of the requests that took at least half as long as the longest, measured from when they were due; `None` without a schedule.
    waited: Option<f64>,
}

impl StallWait {
    /// Whether the longest silence is only a part of those of its trial.
    fn recurs(&self) -> bool {
        ratio(self.longest.0, self.measured.0).is_some_and(|longest| self.silent >= RECURS * longest)
    }
}

/// Returns the silences of all trials.
fn stall_waits(seen: &TestEvidence<'_>) -> Vec<StallWait> {
    let (answers, wait_min) = match seen.test.layer {
        Layer::Http | Layer::App => (count::REQUESTS, WAIT_MIN),
        Layer::Tcp | Layer::Udp => (count::TRANSACTIONS, WAIT_OF_TRANSACTIONS_MIN),
        _ => return Vec::new(),
    };
    let of_trial = |trial: &&Trial| {
        let (host, record) = record_of(trial, Side::Initiator)?;
        let (from, to) = MeasuredWindow::common(trial, &seen.run.hosts)?.in_record(&seen.run.hosts, host, record);
        let silences = Silences::of(&rates(&record.timeline, answers, (from, to)))?;
        // With a schedule, latencies are measured from the scheduled times.
        let is_open = record.distributions.contains_key(SCHEDULE_LAG);
        let (longest, waited) = if is_open {
            let times = record.distributions.get(RESPONSE_TIME)?;
            let longest = seen_wait(times, wait_min, silences.per_second)?.min(to - from);
            (longest, Some(ratio(times.count_above(longest.0 / 2), times.count())?))
        } else {
            // What a silence at the end holds up is answered after it, and counted nowhere. Users of a script, and a recording, may have nothing
            // to send there.
            let always_sends = seen.test.layer != Layer::App && record.replay.is_none();
            let at_end = if always_sends { silences.at_end } else { 0.0 };
            let at_end = Nanos(rounded(at_end * approximate((to - from).0)));
            (hidden_wait(record.distributions.get(SERVICE_TIME)?, at_end, wait_min)?.min(to - from), None)
        };
        let share = ratio(longest.0, (to - from).0)?;
        // Intervals are not aligned with the stall. If the stall is long enough, at least half of it covers whole intervals: these show that
        // nobody was answered, and the wait itself shows for how long.
        let silent = silences.all.max(share);
        let is_stall = silent >= MATTERS && silences.longest >= share / 2.0;
        let (round, measured, per_second) = (trial.round, to - from, silences.per_second);
        is_stall.then_some(StallWait { round, longest, measured, silent, per_second, waited })
    };
    seen.trials().iter().filter_map(of_trial).collect()
}

/// The intervals of a trial without an answer, as parts of the measured time.
struct Silences {
    longest: f64,
    /// The one that lasts until the end.
    at_end: f64,
    /// All but single intervals, which may be silent by chance between two answers.
    all: f64,
    /// The answers per second.
    per_second: f64,
}

impl Silences {
    fn of(rates: &[f64]) -> Option<Self> {
        let lengths = || rates.split(|rate| *rate > 0.0).map(<[f64]>::len);
        let n = approximate(u64::try_from(rates.len()).ok()?);
        let share = |length: usize| Some(approximate(u64::try_from(length).ok()?) / n);
        let all = share(lengths().filter(|length| *length > 1).sum())?;
        let (longest, at_end) = (share(lengths().max()?)?, share(lengths().next_back()?)?);
        Some(Self { longest, at_end, all, per_second: rates.iter().sum::<f64>() / n })
    }
}

/// Returns the longest time from when a request was due, if it is long, others took far less, and several were due in it.
fn seen_wait(times: &Histogram, wait_min: Nanos, per_second: f64) -> Option<Nanos> {
    let (longest, fast) = (times.max()?, times.quantile(0.25)?);
    let n_due = Nanos(longest).as_secs_f64() * per_second;
    (longest >= wait_min.0 && longest / HIDDEN_FACTOR >= fast && n_due >= DUE_MIN).then_some(Nanos(longest))
}

/// Returns the longest time, which may be that of the silence at the end, if it is long and the percentiles do not show it.
fn hidden_wait(times: &Histogram, at_end: Nanos, wait_min: Nanos) -> Option<Nanos> {
    let (longest, p99) = (times.max()?.max(at_end.0), times.quantile(0.99)?);
    (longest >= wait_min.0 && longest / HIDDEN_FACTOR >= p99).then_some(Nanos(longest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// One second of requests of 1 ms. One request took longer, and nothing else was answered for some intervals of 50 ms.
    fn stalled(wait_ms: u64, n_silent: usize) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 1);
        builder.run.command = "fathom http http://198.18.0.2/".to_owned();
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let column = record.timeline.counters.get_mut(count::REQUESTS).unwrap();
        column[10..10 + n_silent].fill(0);
        let mut times = Histogram::new();
        times.record_n(1_000_000, 999);
        times.record(wait_ms * 1_000_000);
        record.distributions.insert(SERVICE_TIME.to_owned(), times);
        builder
    }

    #[test]
    fn a_stall_that_percentiles_hide_is_told_with_the_command_that_shows_it() {
        let finding = stalled(400, 7).finding("stall").unwrap();
        let expected = "no request was answered for 400 ms of 1.00 s; this load waits for answers before it sends again, \
                        so the percentiles hide it (use --rate)";
        assert_eq!(finding.title, expected);
        assert_eq!(finding.evidence[1].value, "40 %");
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, None));
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --rate 325");
        let mut users = stalled(400, 7);
        users.run.command = "fathom app run a.lua http://198.18.0.2/".to_owned();
        users.run.tests[0].layer = Layer::App;
        let finding = users.finding("stall").unwrap();
        assert!(finding.title.ends_with("hide it") && finding.next.is_none(), "{finding:?}");
    }

    #[test]
    fn short_silences_that_recur_are_a_stall_however_long_the_test_is() {
        let mut builder = stalled(160, 0);
        let trial = &mut builder.run.tests[0].trials[0];
        let record = trial.records.get_mut("client").unwrap();
        record.distributions.get_mut(SERVICE_TIME).unwrap().record_n(1_000_000, 100_000);
        assert_eq!(builder.finding("stall"), None, "nothing was silent");
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let column = record.timeline.counters.get_mut(count::REQUESTS).unwrap();
        for from in [5, 10, 15] {
            column[from..from + 2].fill(0);
        }
        let finding = builder.finding("stall").unwrap();
        assert!(
            finding.title.starts_with("no request was answered for 30 % of 1.00 s, 160 ms at the longest; "),
            "{}",
            finding.title
        );
        assert_eq!(finding.severity, Severity::HoldsBack);
    }

    #[test]
    fn a_silence_of_transactions_is_told_beyond_a_single_retransmission() {
        let found = |wait_ms: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(1_000, 1);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let column = record.timeline.counters.get_mut(count::TRANSACTIONS).unwrap();
            let n_silent = usize::try_from(wait_ms / 50).unwrap();
            column[5..5 + n_silent].fill(0);
            let mut times = Histogram::new();
            times.record_n(1_000_000, 999);
            times.record(wait_ms * 1_000_000);
            record.distributions.insert(SERVICE_TIME.to_owned(), times);
            builder.finding("stall").map(|finding| finding.severity)
        };
        assert_eq!([210, 400].map(found), [None, Some(Severity::HoldsBack)]);
    }

    #[test]
    fn a_stall_is_as_long_as_its_wait_although_fewer_intervals_lie_in_it() {
        assert_eq!(stalled(210, 3).finding("stall").unwrap().severity, Severity::HoldsBack);
        assert_eq!(stalled(190, 3).finding("stall").unwrap().severity, Severity::Remark);
    }

    #[test]
    fn a_long_silence_in_every_round_is_no_work_of_other_programs() {
        let severity = |n_trials| {
            let mut builder = stalled(400, 7);
            builder.cpu("client", "cpu0", [60, 30, 5, 0]);
            for host in ["client", "target"] {
                builder.own_cpu(host, &[("cpu0", 100)]);
            }
            let trials = &mut builder.run.tests[0].trials;
            *trials = vec![trials[0].clone(); n_trials];
            assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
            builder.finding("stall").unwrap().severity
        };
        assert_eq!(severity(1), Severity::Remark);
        assert_eq!(severity(2), Severity::HoldsBack);
    }

    #[test]
    fn a_stall_at_the_end_is_told_although_nothing_that_waited_for_it_was_answered() {
        let mut builder = stalled(1, 0);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let column = record.timeline.counters.get_mut(count::REQUESTS).unwrap();
        let n = column.len();
        column[n - 8..].fill(0);
        let finding = builder.finding("stall").unwrap();
        assert!(finding.title.starts_with("no request was answered for 400 ms of 1.00 s"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::HoldsBack);
        builder.run.tests[0].layer = Layer::App;
        assert_eq!(builder.finding("stall"), None, "its users may think");
    }

    #[test]
    fn what_is_short_or_seen_or_of_one_connection_or_scheduled_is_no_stall() {
        assert_eq!(stalled(140, 2).finding("stall"), None, "short");
        assert_eq!(stalled(400, 1).finding("stall"), None, "others were answered");
        let mut seen = stalled(400, 7);
        let record = seen.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.distributions.get_mut(SERVICE_TIME).unwrap().record_n(50_000_000, 20);
        assert_eq!(seen.finding("stall"), None, "p99 tells");
    }

    /// The same on a schedule: all requests that were due in the silence waited for its end.
    fn scheduled(silent_ms: u64) -> RunBuilder {
        let mut builder = stalled(silent_ms, usize::try_from(silent_ms / 50).unwrap());
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let mut times = Histogram::new();
        times.record_n(300_000, 1_000 - silent_ms);
        (1..=silent_ms).for_each(|waited| times.record(waited * 1_000_000));
        for name in [SCHEDULE_LAG, RESPONSE_TIME] {
            record.distributions.insert(name.to_owned(), times.clone());
        }
        builder
    }

    #[test]
    fn a_silence_in_which_requests_were_due_is_told_with_the_share_that_waited() {
        let finding = scheduled(300).finding("stall").unwrap();
        let expected = "no request was answered for 300 ms of 1.00 s: requests that were due meanwhile waited for it, and 15 % of all took 150 ms \
                        or longer";
        assert_eq!(finding.title, expected);
        assert_eq!((finding.severity, finding.next), (Severity::HoldsBack, None));
        assert_eq!(scheduled(100).finding("stall"), None, "short");
    }

    #[test]
    fn slow_answers_at_a_low_rate_are_no_silence() {
        let mut rare = scheduled(300);
        let record = rare.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.timeline.counters.get_mut(count::REQUESTS).unwrap().iter_mut().for_each(|n| *n = (*n).min(1));
        assert_eq!(rare.finding("stall"), None, "ten or so in a second");
        let mut slow = scheduled(300);
        let record = slow.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.distributions.get_mut(RESPONSE_TIME).unwrap().record_n(250_000_000, 9_000);
        assert_eq!(slow.finding("stall"), None, "all are");
    }
}
