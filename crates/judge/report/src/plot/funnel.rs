//! Draws the number of users at each step as a bar with its failed part, and the times of the steps next to it.
//!
//! Both drawings have a row per step at the same height, so that they can be read together.

use fathom_model::{
    JudgedPromise, StepKind, StepSummary, UsersSummary,
    finding::PromiseOutcome,
    units::{approximate, percent},
};
use maud::{Markup, html};

use super::{
    Plot, float,
    percentiles::time,
    px,
    scale::{Scale, log_ticks},
};
use crate::words::{TIMES, step_name};

const WIDTH: f64 = 510.0;
/// The left end of the bars, after the names.
const LEFT: f64 = 132.0;
/// The space for the shares, right of the bars.
const RIGHT: f64 = 76.0;
const TOP: f64 = 22.0;
const ROW: f64 = 30.0;
const BAR: f64 = 16.0;
/// The maximum number of steps in a drawing. The table has all of them.
pub(crate) const STEPS_MAX: usize = 40;
/// The maximum number of characters of a name.
const NAME_MAX: usize = 17;

fn drawn(users: &UsersSummary) -> &[StepSummary] {
    &users.steps[..users.steps.len().min(STEPS_MAX)]
}

fn height(n: usize) -> f64 {
    TOP + ROW * float(n) + 6.0
}

/// Returns a name, shortened if necessary. The tooltip shows the full name.
fn label(step: &StepSummary, row: usize) -> Markup {
    let whole = step_name(step);
    let cut = whole.chars().count() > NAME_MAX;
    let shown: String = if cut { whole.chars().take(NAME_MAX - 1).chain(['…']).collect() } else { whole.clone() };
    html! {
        text.strong x="0" y=(px(middle(row) + 4.0)) { (shown) @if cut { title { (whole) } } }
    }
}

fn middle(row: usize) -> f64 {
    TOP + ROW * float(row) + ROW / 2.0
}

pub(crate) fn funnel(users: &UsersSummary) -> Plot {
    let steps = drawn(users);
    let most = steps.iter().map(|step| step.n_reached).max().unwrap_or(0);
    if most == 0 {
        return Err("No user came to a step in the measured part.");
    }
    let x = Scale::linear((0.0, approximate(most)), (LEFT, WIDTH - RIGHT));
    Ok(html! {
        svg.plot viewBox={ "0 0 " (px(WIDTH)) " " (px(height(steps.len()))) } role="img" aria-label="how many users came to each step" {
            @for (row, step) in steps.iter().enumerate() {
                (label(step, row))
                (bar(step, row, &x))
            }
        }
        ul.legend {
            li { span class="key s1" {} "passed" }
            @if steps.iter().any(|step| !step.errors.is_empty()) { li { span class="key lost" {} "failed" } }
            @if steps.iter().any(|step| n_ended(step) < step.n_reached) { li { span class="key rest" {} "under way at the end" } }
        }
    })
}

/// Returns how often a step passed or failed.
fn n_ended(step: &StepSummary) -> u64 {
    step.n_passed + step.errors.values().sum::<u64>()
}

fn bar(step: &StepSummary, row: usize, x: &Scale) -> Markup {
    let n_failed: u64 = step.errors.values().sum();
    let (passed, failed) = (approximate(step.n_passed), approximate(n_failed));
    let reached = approximate(step.n_reached).max(passed + failed);
    let y = px(middle(row) - BAR / 2.0);
    let part = |class: &str, from: f64, to: f64| {
        let (from, to) = (x.at(from), x.at(to));
        html! {
            @if to - from > 0.05 {
                rect class=(class) x=(px(from)) y=(y) width=(format!("{:.2}", to - from)) height=(px(BAR)) {}
            }
        }
    };
    let class = if step.kind == StepKind::Transaction { "part s1 whole" } else { "part s1" };
    let share = step.reached_ratio.map(percent).unwrap_or_default();
    html! {
        g {
            title { (step.name) ": reached " (step.n_reached) ", passed " (step.n_passed) ", failed " (n_failed) }
            (part("part rest", passed + failed, reached))
            (part(class, 0.0, passed))
            (part("part lost", passed, passed + failed))
        }
        text.tick x=(px(WIDTH)) y=(px(middle(row) + 4.0)) text-anchor="end" { (share) }
    }
}

/// Returns the quantiles of a step that have a value.
fn times(step: &StepSummary) -> Vec<(&'static str, f64)> {
    let value = |name: &str| step.summaries.iter().find(|s| s.metric.name == name).and_then(|s| s.value);
    TIMES.iter().filter_map(|(title, name)| Some((*title, value(name)?))).collect()
}

/// Returns the promised bounds of a step's times.
fn bounds(step: &StepSummary) -> impl Iterator<Item = (&JudgedPromise, f64)> {
    let of_times = |promise: &&JudgedPromise| promise.metric.as_deref().is_some_and(|name| name.starts_with("time_ns"));
    step.promises.iter().filter(of_times).filter_map(|promise| Some((promise, promise.bound?)))
}

/// Draws the times of the steps from the median to the maximum, with the promised bounds. `judged` returns what an outcome counts as.
pub(crate) fn step_times(users: &UsersSummary, judged: impl Fn(PromiseOutcome) -> PromiseOutcome) -> Plot {
    let steps = drawn(users);
    let promised = steps.iter().flat_map(bounds).map(|(_, bound)| bound);
    let values = steps.iter().flat_map(times).map(|(_, ns)| ns).chain(promised).filter(|ns| *ns > 0.0);
    let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), ns| (low.min(ns), high.max(ns)));
    if high <= 0.0 {
        return Err("No step passed in the measured part, so there are no times.");
    }
    let is_broken = |promise: &JudgedPromise| judged(promise.outcome) == PromiseOutcome::Broken;
    let stands = |broken| steps.iter().flat_map(bounds).any(|(promise, _)| is_broken(promise) == broken);
    let ticks = log_ticks(low, high);
    let (first, last) = (ticks[0], ticks[ticks.len() - 1].max(ticks[0] * 10.0));
    let x = Scale::log((first, last), (LEFT, WIDTH - 24.0));
    let bottom = height(steps.len()) - 6.0;
    // Keeps neighboring labels from touching.
    let every = ticks.len().div_ceil(7).max(1);
    Ok(html! {
        svg.plot viewBox={ "0 0 " (px(WIDTH)) " " (px(height(steps.len()))) } role="img" aria-label="how long the steps took" {
            @for (index, tick) in ticks.iter().enumerate() {
                line.grid x1=(px(x.at(*tick))) x2=(px(x.at(*tick))) y1=(px(TOP)) y2=(px(bottom)) {}
                @if index % every == 0 {
                    text.tick x=(px(x.at(*tick))) y=(px(TOP - 8.0)) text-anchor="middle" { (time(*tick)) }
                }
            }
            @for (row, step) in steps.iter().enumerate() {
                (label(step, row))
                (span(step, row, &x, is_broken))
            }
        }
        ul.legend {
            li { span class="key s1" {} "p50 · p90 · p99, and thin to the maximum" }
            @if stands(false) { li { span class="key bound" {} "promised" } }
            @if stands(true) { li { span class="key bound lost" {} "promised, not kept" } }
        }
    })
}

fn span(step: &StepSummary, row: usize, x: &Scale, is_broken: impl Fn(&JudgedPromise) -> bool) -> Markup {
    let times = times(step);
    let of = |title: &str| times.iter().find(|(other, _)| *other == title).map(|(_, ns)| x.at(*ns));
    let y = px(middle(row));
    let words: Vec<String> =
        times.iter().map(|(title, ns)| format!("{title} {}", fathom_model::Unit::Nanos.show(*ns))).collect();
    html! {
        g {
            title { (step.name) ": " (words.join(", ")) }
            @if let (Some(p50), Some(p99), Some(max)) = (of("p50"), of("p99"), of("max")) {
                line.thin x1=(px(p50)) x2=(px(max)) y1=(y) y2=(y) {}
                line.thick x1=(px(p50)) x2=(px(p99)) y1=(y) y2=(y) {}
            }
            @for title in ["p50", "p90", "p99"] {
                @if let Some(at) = of(title) { circle.mark cx=(px(at)) cy=(y) r=(if title == "p50" { "5" } else { "3.6" }) {} }
            }
            @for (promise, bound) in bounds(step) {
                @let class = if is_broken(promise) { "bound lost" } else { "bound" };
                line class=(class) x1=(px(x.at(bound))) x2=(px(x.at(bound))) y1=(px(middle(row) - 10.0)) y2=(px(middle(row) + 10.0)) {
                    title { "promised " (promise.text) }
                }
            }
        }
    }
}
