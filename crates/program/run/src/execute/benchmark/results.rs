//! The results of the methods as rows of a table.

use std::borrow::Cow;

use fathom_engine::search::mlr::{GoalEnding, GoalResult};
use fathom_model::{
    Better, Derivation, Metric, Unit,
    benchmark::{BenchmarkResult, LossPoint, Reference},
    units::{Nanos, approximate},
};
use fathom_rfc2544::{
    BackToBackResult, ForwardingResult, LatencyResult, LossAtLoad, OVERLOAD, RecoveryResult, ResetResult, StopReason,
    ThroughputResult,
};

const RATE: (Unit, Better) = (Unit::FramesPerSec, Better::Higher);
const TIME: (Unit, Better) = (Unit::Nanos, Better::Lower);

/// Creates a row without a value.
fn row(
    (name, title): (impl Into<Cow<'static, str>>, impl Into<Cow<'static, str>>),
    unit: Unit,
    better: Better,
    source: &'static str,
) -> BenchmarkResult {
    let (name, title, source) = (name.into(), title.into(), source.into());
    let metric = Metric { name, title, unit, better, source, from: Derivation::Benchmark, inapplicable: None };
    BenchmarkResult { metric, value: None, low: None, high: None, is_irregular: false, note: None }
}

fn nanos(span: Nanos) -> f64 {
    approximate(span.0)
}

/// Fills in the row of a search: the conditional throughput between the relevant bounds.
fn searched(into: BenchmarkResult, found: &GoalResult) -> BenchmarkResult {
    let note = match found.ending {
        GoalEnding::Regular => None,
        GoalEnding::MaxLoad => Some("irregular: the highest rate is a lower bound, so the throughput may lie above it"),
        GoalEnding::MinLoad => Some("irregular: the lowest rate is an upper bound, so the throughput lies below it"),
        GoalEnding::Unfinished => Some("irregular: the search ended before its bounds were near enough"),
    };
    BenchmarkResult {
        value: found.conditional_throughput.filter(|_| found.lower.is_some()),
        low: found.lower.map(fathom_engine::search::LoadLevel::get),
        high: found.upper.map(fathom_engine::search::LoadLevel::get),
        is_irregular: found.ending != GoalEnding::Regular,
        note: note.map(str::to_owned),
        ..into
    }
}

/// Returns the rows of the RFC 2544 throughput.
pub(super) fn throughput(found: &ThroughputResult) -> Vec<BenchmarkResult> {
    let into = || row(("throughput_per_sec", "throughput"), RATE.0, RATE.1, "RFC 2544 section 26.1");
    found.goals.iter().map(|goal| searched(into(), goal)).collect()
}

/// Returns the rows of the `MLRsearch` goals, with their names.
pub(super) fn goals(names: &[String], found: &ThroughputResult) -> Vec<BenchmarkResult> {
    let named = |(nth, (name, goal)): (usize, (&String, &GoalResult))| {
        let metric = match name.as_str() {
            "NDR" | "PDR" => format!("{}_per_sec", name.to_lowercase()),
            _ => format!("goal_{}_per_sec", nth + 1),
        };
        searched(row((metric, name.clone()), RATE.0, RATE.1, "RFC 9971 section 4.8"), goal)
    };
    names.iter().zip(&found.goals).enumerate().map(named).collect()
}

/// Returns the rates of a search, each with its median loss ratio.
pub(super) fn points(found: &ThroughputResult) -> Vec<LossPoint> {
    let point = |(load, trials): &(fathom_engine::search::LoadLevel, Vec<fathom_engine::search::mlr::TrialResult>)| {
        let mut losses: Vec<f64> = trials.iter().map(|trial| trial.loss_ratio).collect();
        losses.sort_by(f64::total_cmp);
        let loss_ratio = losses.get(losses.len() / 2).copied().unwrap_or(0.0);
        LossPoint { rate: load.get(), n_trials: u64::try_from(trials.len()).unwrap_or(0), loss_ratio }
    };
    found.loads.iter().map(point).collect()
}

/// Returns the row of the loss at the maximum rate. The other rates are points of a curve.
pub(super) fn loss(found: &[LossAtLoad]) -> Vec<BenchmarkResult> {
    let into = row(("loss_at_max_ratio", "lost at 100 %"), Unit::Ratio, Better::Lower, "RFC 2544 section 26.3");
    found.first().map(|at| BenchmarkResult { value: Some(at.loss_ratio), ..into }).into_iter().collect()
}

/// Returns the points of the loss curve.
pub(super) fn loss_points(found: &[LossAtLoad]) -> Vec<LossPoint> {
    found.iter().map(|at| LossPoint { rate: at.rate, n_trials: 1, loss_ratio: at.loss_ratio }).collect()
}

/// Returns the rows of the longest burst and of the buffer size derived from it.
pub(super) fn back_to_back(found: &BackToBackResult, step: u64) -> Vec<BenchmarkResult> {
    let ends = |of: fn(&[u64]) -> Option<u64>| of(&found.bursts).map(approximate);
    let low = ends(|bursts| bursts.iter().min().copied());
    let high = ends(|bursts| bursts.iter().max().copied());
    let deviation = found.deviation.map(|deviation| format!(", standard deviation {deviation:.1}")).unwrap_or_default();
    let mut note = format!("{} searches to {step} frames{deviation}", found.bursts.len());
    if found.is_at_limit {
        note = format!("invalid: the longest burst that was allowed lost nothing, so raise --burst-max; {note}");
    }
    let irregular = |row: BenchmarkResult| BenchmarkResult { is_irregular: found.is_at_limit, ..row };
    let frames = (Unit::Count, Better::Higher);
    vec![
        irregular(BenchmarkResult {
            value: Some(found.mean),
            low,
            high,
            note: Some(note),
            ..row(("burst_frames", "longest burst"), frames.0, frames.1, "RFC 9004 section 6.5")
        }),
        irregular(BenchmarkResult {
            value: Some(nanos(found.corrected)),
            note: Some(format!("implied {}, corrected for the frames that were forwarded meanwhile", found.implied)),
            ..row(("buffer_ns", "buffer"), TIME.0, TIME.1, "RFC 9004 section 6.5")
        }),
        irregular(BenchmarkResult {
            value: Some(found.corrected_frames),
            ..row(("buffer_frames", "buffer in frames"), frames.0, frames.1, "docs/methods/rfc9004.md")
        }),
    ]
}

/// Returns the row of the back-to-back method if no buffer fills.
pub(super) fn no_buffer() -> Vec<BenchmarkResult> {
    let note = "the throughput is the highest rate that is offered, so no buffer ever fills (RFC 9004 section 5)";
    let into = row(("burst_frames", "longest burst"), Unit::Count, Better::Higher, "RFC 9004 section 6.5");
    vec![BenchmarkResult { note: Some(note.to_owned()), ..into }]
}

/// Returns the rows of the latencies, or of the reason why there are none.
pub(super) fn latency(found: Option<&LatencyResult>) -> Vec<BenchmarkResult> {
    let values = [
        (("latency_typical_ns", "typical latency"), found.map(|found| found.typical), "RFC 8219 section 7.2"),
        (("latency_worst_ns", "worst-case latency"), found.map(|found| found.worst), "RFC 8219 section 7.2"),
        (("pdv_ns", "packet delay variation"), found.map(|found| found.pdv), "RFC 8219 section 7.3.1"),
        (
            ("ipdv_median_ns", "IPDV, median"),
            found.and_then(|found| Some(found.ipdv?.median)),
            "RFC 8219 section 7.3.2",
        ),
        (("ipdv_max_ns", "IPDV, longest"), found.and_then(|found| Some(found.ipdv?.max)), "RFC 8219 section 7.3.2"),
    ];
    let of = |(named, value, source): ((&'static str, &'static str), Option<Nanos>, &'static str)| BenchmarkResult {
        value: value.map(nanos),
        note: match found {
            Some(found) => Some(format!("median of {} streams", found.runs.len())),
            None => Some("the trials have no timestamps, so the latency is unknown".to_owned()),
        },
        ..row(named, TIME.0, TIME.1, source)
    };
    values.into_iter().map(of).collect()
}

/// Returns the rows of the forwarding rates under overload.
pub(super) fn forwarding(found: &ForwardingResult) -> Vec<BenchmarkResult> {
    let at = format!("at {} offered", Unit::FramesPerSec.show(found.max_at));
    vec![
        BenchmarkResult {
            value: Some(found.at_max),
            ..row(("forwarding_at_max_per_sec", "forwarding at maximum load"), RATE.0, RATE.1, "RFC 2285 section 3.6.2")
        },
        BenchmarkResult {
            value: Some(found.max),
            note: Some(at),
            ..row(("forwarding_max_per_sec", "maximum forwarding rate"), RATE.0, RATE.1, "RFC 2285 section 3.6.3")
        },
    ]
}

/// Returns the row of the time from the rate drop to the last lost frame, or of the reason why there is none.
pub(super) fn recovery(found: Option<&RecoveryResult>, overload: f64, duration: Nanos) -> Vec<BenchmarkResult> {
    let into = row(("recovery_ns", "system recovery"), TIME.0, TIME.1, "RFC 2544 section 26.5");
    let Some(found) = found else {
        let note = "the time of a loss is unknown: it takes marked frames and a counter in XDP";
        return vec![BenchmarkResult { note: Some(note.to_owned()), ..into }];
    };
    let n_runs = found.runs.len();
    let of = format!("{n_runs} drops from {} to a half, after {duration}", Unit::FramesPerSec.show(overload));
    let times = |n: u32| if n_runs == 1 { String::new() } else { format!("{n} times of {n_runs}, ") };
    let note = match (found.n_lossless, found.n_unrecovered) {
        (0, 0) => format!("average of {of}"),
        (0, n) => format!("invalid: {}frames were still lost at the end of the trial; {of}", times(n)),
        (n, _) => format!("invalid: {}the overload lost nothing, so there was nothing to recover from; {of}", times(n)),
    };
    let ends = |run: Option<&Nanos>| run.map(|run| nanos(*run));
    vec![BenchmarkResult {
        value: Some(nanos(found.mean)),
        low: ends(found.runs.iter().min()),
        high: ends(found.runs.iter().max()),
        is_irregular: found.n_lossless + found.n_unrecovered > 0,
        note: Some(note),
        ..into
    }]
}

/// Returns the row that explains why the overload for a recovery cannot be offered.
pub(super) fn no_overload(throughput: f64, most: f64, reference: Reference) -> Vec<BenchmarkResult> {
    let show = |rate: f64| Unit::FramesPerSec.show(rate);
    let (overload, most) = (show(throughput * OVERLOAD), show(most));
    let note = match reference {
        Reference::LineRate => {
            format!("withheld: the throughput is the line rate, {most}, so the link cannot overload the device")
        }
        Reference::Asked => format!("withheld: the overload of 110 % is {overload}, and --max-rate allows {most}"),
        Reference::OwnMaximum => {
            format!(
                "withheld: the overload of 110 % is {overload}, and fathom itself sends {most} of these frames here"
            )
        }
    };
    let into = row(("recovery_ns", "system recovery"), TIME.0, TIME.1, "RFC 2544 section 26.5");
    vec![BenchmarkResult { note: Some(note), ..into }]
}

/// Returns the row of the time without forwarding.
pub(super) fn reset(found: &ResetResult) -> Vec<BenchmarkResult> {
    let note = if found.lost == 0 { "nothing was lost: was the device reset?" } else { "by the frames that were lost" };
    let into = row(("reset_ns", "reset"), TIME.0, TIME.1, "RFC 6201 section 4");
    vec![BenchmarkResult { value: Some(nanos(found.time)), note: Some(note.to_owned()), ..into }]
}

/// Describes in a sentence why a method ended early.
pub(super) fn cut_short_text<E>(method: &str, cut: &StopReason<E>, words: impl Fn(&E) -> String) -> String {
    match cut {
        StopReason::RateNotSent { rate } => format!(
            "{method}: fathom itself did not keep to its schedule at {} in ten consecutive trials, so the results are for lower rates; \
             use a lower --max-rate, or a machine that nobody else uses",
            Unit::FramesPerSec.show(approximate(*rate))
        ),
        StopReason::OutOfTime => format!("{method}: the time that a search may take is used up"),
        StopReason::Failed(error) => format!("{method}: {}", words(error)),
    }
}
