//! The target answered nothing for a while, which a closed-loop load hides.
//!
//! A closed loop sends nothing while it waits (coordinated omission): a stall of any length is one slow request per connection.

use fathom_model::{
    Finding, Histogram, Layer, NextStep, Severity, Side,
    names::{
        count,
        distribution::{SCHEDULE_LAG, SERVICE_TIME},
    },
    units::{Nanos, approximate, ratio, rounded},
};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::{
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
/// A wait of fewer than this many times p99 is visible in the percentiles.
const HIDDEN_FACTOR: u64 = 10;

/// Compares the longest wait of each trial with its percentiles and with the intervals without any answer.
pub(crate) struct Stall;

impl FindingRule for Stall {
    fn id(&self) -> &'static str {
        "stall"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["other-programs", "connect-delays", "link-down", PLANNED_EVENT]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        if cause != "other-programs" {
            return false;
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
        let way_out = if next.is_some() { " (use --rate)" } else { "" };
        let title = format!(
            "no request was answered for {} of {}{round}; this load waits for answers before it sends again, so the percentiles hide it{way_out}",
            worst.longest, worst.measured
        );
        let host = &seen.test.from;
        let longest = text_evidence(host, "longest wait", worst.longest);
        let of_trials = format!("{} of {}", stalls.len(), seen.trials().len());
        let severity = if worst.silent >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        vec![
            seen.finding(self.id(), severity, "stall", title)
                .evidence([
                    longest,
                    ratio_evidence(host, "time without an answer", worst.silent),
                    text_evidence(host, "rounds with a stall", of_trials),
                ])
                .explains(gap::explained_by_time(seen, worst.silent))
                .next(next),
        ]
    }
}

/// Suggests the same requests on a schedule, at a rate that leaves the target time to recover.
fn next(seen: &TestEvidence<'_>, worst: &StallWait) -> Option<NextStep> {
    if seen.test.layer != Layer::Http {
        // For scripted users, a rate starts users, and the times of their requests are not measured from the schedule.
        return None;
    }
    let rate = rounded(worst.per_second / 2.0).max(1);
    // If the command names a test, that is the closed-loop one, which takes no rate.
    let command = seen.repeat_with_option("rate", &rate.to_string()).filter(|command| !command.contains(" --test"))?;
    Some(NextStep::new(command).expected("show the latency of all requests that are due during a stall"))
}

/// The longest wait of a trial that its percentiles hide.
struct StallWait {
    round: u32,
    longest: Nanos,
    measured: Nanos,
    /// The part of the measured time without any answer.
    silent: f64,
    per_second: f64,
}

/// Returns the hidden waits of all trials of a closed-loop load.
fn stall_waits(seen: &TestEvidence<'_>) -> Vec<StallWait> {
    let (answers, wait_min) = match seen.test.layer {
        Layer::Http | Layer::App => (count::REQUESTS, WAIT_MIN),
        Layer::Tcp | Layer::Udp => (count::TRANSACTIONS, WAIT_OF_TRANSACTIONS_MIN),
        _ => return Vec::new(),
    };
    let of_trial = |trial| {
        let (host, record) = record_of(trial, Side::Initiator)?;
        let (from, to) = MeasuredWindow::common(trial, &seen.run.hosts)?.in_record(&seen.run.hosts, host, record);
        let times = record.distributions.get(SERVICE_TIME)?;
        // With a schedule, latencies are measured from the scheduled times.
        let is_closed = !record.distributions.contains_key(SCHEDULE_LAG);
        let longest = hidden_wait(times, wait_min)?.min(to - from);
        let rates = rates(&record.timeline, answers, (from, to));
        let silences = || rates.split(|rate| *rate > 0.0).map(<[f64]>::len);
        let share =
            |n: usize| Some(approximate(u64::try_from(n).ok()?) / approximate(u64::try_from(rates.len()).ok()?));
        let longest_silence = share(silences().max()?)?;
        // One interval may be silent by chance between two answers.
        let silent = share(silences().filter(|n| *n > 1).sum())?;
        let waited = ratio(longest.0, (to - from).0)?;
        let per_second = rates.iter().sum::<f64>() / approximate(u64::try_from(rates.len()).ok()?);
        // Intervals are not aligned with the stall. If the stall is long enough, at least half of it covers whole intervals: these show that
        // nobody was answered, and the wait itself shows for how long.
        let is_stall = is_closed && waited >= MATTERS && longest_silence >= waited / 2.0;
        let silent = silent.max(waited);
        is_stall.then_some(StallWait { round: trial.round, longest, measured: to - from, silent, per_second })
    };
    seen.trials().iter().filter_map(|trial| of_trial(trial)).collect()
}

/// Returns the longest time, if it is long and the percentiles do not show it.
fn hidden_wait(times: &Histogram, wait_min: Nanos) -> Option<Nanos> {
    let (longest, p99) = (times.max()?, times.quantile(0.99)?);
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
    fn what_is_short_or_seen_or_of_one_connection_or_scheduled_is_no_stall() {
        assert_eq!(stalled(140, 2).finding("stall"), None, "short");
        assert_eq!(stalled(400, 1).finding("stall"), None, "others were answered");
        let mut seen = stalled(400, 7);
        let record = seen.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.distributions.get_mut(SERVICE_TIME).unwrap().record_n(50_000_000, 20);
        assert_eq!(seen.finding("stall"), None, "p99 tells");
        let mut scheduled = stalled(400, 7);
        let record = scheduled.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.distributions.insert(SCHEDULE_LAG.to_owned(), Histogram::new());
        assert_eq!(scheduled.finding("stall"), None, "open");
    }
}
