//! How much of what a test lacks a cause explains: its part of a budget of rate or of time.

use fathom_model::{
    Limit, LimitKind, Unit,
    finding::PromiseOutcome,
    units::{BitsPerSec, percent},
};

pub(crate) use crate::limits::REACHED;
use crate::{
    evidence::TestEvidence,
    judged_promise::find_promise,
    limits::{KEPT, is_rate},
    promise::Relation,
};

/// A cause that explains less than this part of what a test lacks is not why.
pub(crate) const HALF: f64 = 0.5;

/// Returns the limits whose distance a cause has to explain: a promise that the rate missed, then those that the test could have reached, the
/// nearest first.
fn limits<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = &'a Limit> {
    missed_promise(seen).into_iter().chain(reachable(seen))
}

/// Returns the limits that are no promises, the nearest first.
fn reachable<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = &'a Limit> {
    seen.test.limits.iter().filter(|limit| limit.kind != LimitKind::Promise && limit.used.is_some())
}

/// Returns the promised rate that a test missed, if it asked for as much and the line, the layer below and fathom itself can do it.
///
/// It is what the test lacks, however much more a faster limit lets pass. A rate of the layer below or of fathom itself varies, so that
/// [`REACHED`] of it must be enough.
pub(crate) fn missed_promise<'a>(seen: &TestEvidence<'a>) -> Option<&'a Limit> {
    // The rate that was asked for may be in another unit.
    if reachable(seen).any(|limit| limit.kind == LimitKind::Asked && limit.used.is_some_and(|used| used >= KEPT)) {
        return None;
    }
    let is_missed = |limit: &&Limit| {
        let promises = seen.test.expect.iter().filter_map(|(name, text)| find_promise(seen.test, name, text).ok());
        let mut of_rate =
            promises.filter(|(rate, _)| is_rate(&rate.metric) && rate.metric.name == limit.metric.as_str());
        let is_broken = of_rate.any(|(rate, promise)| {
            let outcome = rate.value.map(|value| promise.judge(value, rate.confidence.as_ref()));
            matches!(promise.relation, Relation::AtLeast | Relation::MoreThan)
                && outcome == Some(PromiseOutcome::Broken)
        });
        limit.kind == LimitKind::Promise && is_broken
    };
    let lets_pass = |promise: &Limit, limit: &Limit| {
        let is_exact = matches!(limit.kind, LimitKind::Asked | LimitKind::Ideal | LimitKind::LineRate);
        let part = if is_exact { 1.0 } else { REACHED };
        limit.metric != promise.metric || limit.value * part >= promise.value
    };
    let can_be_kept = |promise: &&Limit| reachable(seen).all(|limit| lets_pass(promise, limit));
    seen.test.limits.iter().filter(is_missed).find(can_be_kept)
}

/// Returns true if a test is so close to a limit that it lacks hardly anything.
pub(crate) fn reaches_a_limit(seen: &TestEvidence<'_>) -> bool {
    missed_promise(seen).is_none() && reachable(seen).any(|limit| limit.used.is_some_and(|used| used >= REACHED))
}

/// Returns the share of the nearest limit, or of a missed promise, that a test reaches, as in `61 % of line 941 Mbit/s`.
pub(crate) fn reached(seen: &TestEvidence<'_>) -> Option<String> {
    let limit = limits(seen).next()?;
    let reached = percent(limit.used?);
    Some(match limit.kind {
        LimitKind::Promise => format!("{reached} of the promised {}", limit.text.trim_start_matches(['>', '=', ' '])),
        _ => format!("{reached} of {}", limit.text),
    })
}

/// Returns the part of the gap that a cause explains which took a share of the time, from 0 to 1.
///
/// Of the time, a test that reaches a share of its nearest limit lacks the rest. Without a limit the gap is unknown, but no larger than the
/// whole: half of the time and more explains at least that, and less says nothing.
pub(crate) fn explained_by_time(seen: &TestEvidence<'_>, share: f64) -> Option<f64> {
    let lacks = limits(seen).next().and_then(|limit| Some(1.0 - limit.used?)).filter(|lacks| *lacks > 0.0);
    let part = lacks.map_or(share, |lacks| share / lacks).clamp(0.0, 1.0);
    (lacks.is_some() || part >= HALF).then_some(part)
}

/// Returns the same for a share of the time that is the least that a cause took, such as that of timers, which double their time when they end in vain.
///
/// A part that may be most of the gap is not known.
pub(crate) fn explained_by_least_time(seen: &TestEvidence<'_>, share: f64) -> Option<f64> {
    explained_by_time(seen, share).filter(|part| !(HALF / 2.0..HALF).contains(part))
}

/// Returns the part of the gap that a full core explains of which the test used a share itself, both from 0 to 1.
///
/// With the whole core, the test would reach more of its nearest limit in proportion; what it would still lack, the core explains. The rest is
/// that of the others who used it. Without a limit the gap is unknown, and the core explains the share that the test used.
pub(crate) fn explained_by_core(seen: &TestEvidence<'_>, own: f64) -> f64 {
    let used = limits(seen).find_map(|limit| limit.used).filter(|used| *used < 1.0);
    let part = used.map_or(own, |used| (1.0 - used / own.max(f64::EPSILON)) / (1.0 - used));
    part.clamp(0.0, 1.0)
}

/// Returns the part of the gap that a core explains which is full and runs at a part of its speed, from 0 to 1.
///
/// At its full speed, the test would reach more of its nearest limit in proportion. Without a limit, that is all that the test is known to lack.
pub(crate) fn explained_by_speed(seen: &TestEvidence<'_>, part: f64) -> f64 {
    let used = limits(seen).find_map(|limit| limit.used).filter(|used| *used < 1.0);
    used.map_or(1.0 - part, |used| ((used / part).min(1.0) - used) / (1.0 - used)).clamp(0.0, 1.0)
}

/// Returns the part of the gap that a cause explains which lets a rate pass: what that rate lacks of what the test lacks.
///
/// `None` without a limit in bits per second.
pub(crate) fn explained_by_rate(seen: &TestEvidence<'_>, rate: BitsPerSec) -> Option<f64> {
    let of_limit = |limit: &Limit| {
        let summary = seen.test.summaries.iter().find(|summary| summary.metric.name == limit.metric.as_str())?;
        let lacks = limit.value - summary.value.filter(|_| summary.metric.unit == Unit::BitsPerSec)?;
        (lacks > 0.0).then(|| ((limit.value - rate.get()) / lacks).clamp(0.0, 1.0))
    };
    limits(seen).find_map(of_limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{context::AnalysisContext, run_builder::RunBuilder};

    /// Calls `look` with a stream of 10 Mbit/s for which 40 Mbit/s were asked, or nothing.
    fn with_stream<T>(asked: Option<&str>, look: impl Fn(&TestEvidence<'_>) -> T) -> T {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_250_000]);
        if let Some(asked) = asked {
            builder.run.tests[0].options.set("rate", asked);
        }
        let run = builder.analyzed();
        look(&TestEvidence::new(&run, &run.tests[0], &AnalysisContext::default()))
    }

    #[test]
    fn a_share_of_the_time_is_compared_with_the_time_that_is_lacking() {
        let explained = |asked, share| with_stream(asked, |seen| explained_by_time(seen, share));
        assert_eq!(explained(Some("40M"), 0.75), Some(1.0));
        assert_eq!(explained(Some("40M"), 0.375), Some(0.5));
        assert_eq!(explained(None, 0.6), Some(0.6));
        assert_eq!(explained(None, 0.3), None, "a third of the time may be the whole gap");
    }

    #[test]
    fn a_full_core_explains_what_the_test_would_lack_if_it_had_it_alone() {
        let cases = [
            (Some("40M"), 1.0, 1.0, "nobody else used it"),
            (Some("40M"), 0.5, 2.0 / 3.0, "with twice the core it lacks 20 of 30 Mbit/s"),
            (Some("40M"), 0.25, 0.0, "the whole core would be enough"),
            (None, 0.7, 0.7, "the gap is not known"),
        ];
        for (asked, own, explained, why) in cases {
            let found = with_stream(asked, |seen| explained_by_core(seen, own));
            assert!((found - explained).abs() < 1e-9, "{found}: {why}");
        }
    }

    #[test]
    fn a_slow_core_explains_what_the_test_would_reach_at_full_speed() {
        let cases = [
            (Some("40M"), 0.5, 1.0 / 3.0, "10 of the 30 Mbit/s that it lacks"),
            (Some("40M"), 0.2, 1.0, "five times as fast, it would reach all"),
            (None, 0.4, 0.6, "the gap is not known"),
        ];
        for (asked, part, explained, why) in cases {
            let found = with_stream(asked, |seen| explained_by_speed(seen, part));
            assert!((found - explained).abs() < 1e-9, "{found}: {why}");
        }
    }

    #[test]
    fn a_missed_promise_is_what_a_test_lacks_if_it_could_keep_it() {
        let with = |options: &[(&str, &str)], metric: &str, promise: &str, look: &dyn Fn(&TestEvidence<'_>)| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1_250_000]);
            let test = &mut builder.run.tests[0];
            for (name, value) in options {
                test.options.set(name, *value);
            }
            test.expect.insert(metric.to_owned(), promise.to_owned());
            let run = builder.analyzed();
            look(&TestEvidence::new(&run, &run.tests[0], &AnalysisContext::default()));
        };
        let asked: &[_] = &[("rate", "40M")];
        with(asked, "throughput_bps", ">= 20M", &|seen| {
            assert_eq!(reached(seen).unwrap(), "50 % of the promised 20.0 Mbit/s");
            assert_eq!(explained_by_time(seen, 0.25), Some(0.5), "the rest of 40 Mbit/s was not promised");
            assert_eq!(explained_by_rate(seen, BitsPerSec::new(10e6).unwrap()), Some(1.0));
            assert!(explained_by_core(seen, 0.5) < 1e-9, "a whole core is enough for twice as much");
        });
        with(&[("rate", "10.5M")], "throughput_bps", ">= 10.2M", &|seen| assert!(!reaches_a_limit(seen)));
        let cases = [
            (asked, "throughput_bps", ">= 9M", "it is kept"),
            (asked, "throughput_bps", "<= 20M", "it is kept"),
            (asked, "throughput_bps", ">= 50M", "less was asked for"),
        ];
        for (options, metric, promise, why) in cases {
            with(options, metric, promise, &|seen| assert_eq!(missed_promise(seen), None, "{why}"));
        }
    }

    #[test]
    fn a_rate_explains_what_it_lacks_itself() {
        let explained = |asked, rate| with_stream(asked, |seen| explained_by_rate(seen, BitsPerSec::new(rate)?));
        assert_eq!(explained(Some("40M"), 10e6), Some(1.0));
        assert_eq!(explained(Some("40M"), 34e6), Some(0.2));
        assert_eq!(explained(Some("40M"), 50e6), Some(0.0), "it lets more pass than was asked");
        assert_eq!(explained(None, 10e6), None);
    }
}
