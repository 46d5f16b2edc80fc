//! The values of compared paths over a swept parameter, and where their curves bend.

use fathom_model::{
    Comparison, LossBound, Run, Summary, Sweep, SweepCurve, SweptValue, TestRun,
    units::{BitsPerSec, Bytes, Nanos, PerSec, approximate},
};

use crate::{comparison::tests_of, growth::grows, summaries::main_rate};

/// Above this part of its highest value, a curve has not fallen.
const AS_GOOD: f64 = 0.95;
/// Two points make a line, which has no bend.
const POINTS_MIN: usize = 3;

/// The name of the metric.
const LOSS: &str = "loss_ratio";
/// No loss, and the bounds of loss that are usual for a rate that a path carries.
const LOSS_BOUNDS: [f64; 3] = [0.0, 0.001, 0.005];

/// Returns the sweeps of a run whose comparisons are known: one for each parameter and kind of test, and one more for the loss of datagrams and
/// frames.
pub(crate) fn sweeps(run: &Run) -> Vec<Sweep> {
    let mut sweeps: Vec<Sweep> = Vec::new();
    for comparison in run.comparisons.iter().filter(|comparison| comparison.void.is_none()) {
        let Some(at) = &comparison.at else { continue };
        for test in tests_of(run, &comparison.name) {
            for summary in main_rate(test).into_iter().chain(loss(test)) {
                let Some(point) = point(comparison, test, summary) else { continue };
                let (parameter, kind) = (at.parameter.clone(), test.kind.clone());
                let metric = summary.metric.name.to_string();
                let is_same =
                    |sweep: &Sweep| (&sweep.parameter, &sweep.kind, &sweep.metric) == (&parameter, &kind, &metric);
                let place = sweeps.iter().position(is_same).unwrap_or_else(|| {
                    sweeps.push(Sweep { parameter, kind, metric, curves: Vec::new() });
                    sweeps.len() - 1
                });
                add(&mut sweeps[place].curves, test, point);
            }
        }
    }
    // The rates come first, each sweep of a loss behind all of them.
    sweeps.sort_by_key(|sweep| sweep.metric == LOSS);
    for (is_loss, curve) in sweeps.iter_mut().flat_map(|sweep| {
        let is_loss = sweep.metric == LOSS;
        sweep.curves.iter_mut().map(move |curve| (is_loss, curve))
    }) {
        curve.points.sort_by(|a, b| a.number.total_cmp(&b.number));
        if is_loss {
            curve.loss_bounds = LOSS_BOUNDS.map(|bound| loss_bound(&curve.points, bound)).to_vec();
            continue;
        }
        let points: Vec<(f64, f64)> = curve.points.iter().map(|point| (point.number, point.value)).collect();
        curve.knee = knee(&points).map(|place| curve.points[place].at.clone());
    }
    sweeps
}

fn add(curves: &mut Vec<SweepCurve>, test: &TestRun, point: SweptValue) {
    let path = test.path.clone().unwrap_or_else(|| test.name.clone());
    match curves.iter_mut().find(|curve| curve.path == path) {
        Some(curve) => curve.points.push(point),
        None => curves.push(SweepCurve { path, points: vec![point], knee: None, loss_bounds: Vec::new() }),
    }
}

/// Returns the loss of a test that counts what it sends.
fn loss(test: &TestRun) -> Option<&Summary> {
    test.summaries.iter().find(|summary| summary.metric.name == LOSS)
}

/// Returns how far the points go without a higher loss than the bound.
fn loss_bound(points: &[SweptValue], bound: f64) -> LossBound {
    let n_within = points.iter().take_while(|point| point.value <= bound).count();
    LossBound { loss_ratio: bound, at: n_within.checked_sub(1).map(|place| points[place].at.clone()) }
}

/// Returns the point of a test; `None` for the reference once more, and for a test without the value.
fn point(comparison: &Comparison, test: &TestRun, summary: &Summary) -> Option<SweptValue> {
    let arm = comparison.arms.iter().find(|arm| arm.test == test.name);
    if arm.is_some_and(|arm| arm.is_null) {
        return None;
    }
    let at = comparison.at.as_ref()?;
    let compared = arm.and_then(|arm| arm.values.iter().find(|value| summary.metric.name == value.metric.as_str()));
    Some(SweptValue {
        at: at.value.clone(),
        number: number(&at.value)?,
        test: test.name.clone(),
        value: summary.value?,
        confidence: summary.confidence,
        ratio: compared.and_then(|value| value.ratio),
    })
}

/// Returns the number of a value of a sweep: a decimal number, a count, a size, a rate or a time.
#[must_use]
pub fn number(text: &str) -> Option<f64> {
    let size = || text.parse::<Bytes>().ok().map(|bytes| approximate(bytes.0));
    let bits = || text.parse::<BitsPerSec>().ok().map(BitsPerSec::get);
    let events = || text.parse::<PerSec>().ok().map(PerSec::get);
    let time = || text.parse::<Nanos>().ok().map(Nanos::as_secs_f64);
    let plain = text.parse::<f64>().ok().filter(|number| number.is_finite());
    plain.or_else(size).or_else(bits).or_else(events).or_else(time)
}

/// Returns the place of the bend: the last point before a curve falls, or the first one from which it hardly grows any more.
fn knee(points: &[(f64, f64)]) -> Option<usize> {
    if points.len() < POINTS_MIN {
        return None;
    }
    let most = points.iter().map(|point| point.1).fold(f64::MIN, f64::max);
    let best = points.iter().position(|point| point.1 >= most)?;
    let is_fallen = points.last().is_some_and(|last| last.1 < AS_GOOD * most);
    if is_fallen {
        return points.iter().rposition(|point| point.1 >= AS_GOOD * most).map(|place| place.max(best));
    }
    let last_growing = points.windows(2).rposition(|pair| grows(pair[0], pair[1]));
    let place = last_growing.map_or(0, |step| step + 1);
    (place > 0 && place + 1 < points.len()).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_of_a_loss_end_before_the_first_point_above_them() {
        let point = |(at, value): (&str, f64)| SweptValue {
            at: at.to_owned(),
            number: number(at).unwrap(),
            test: String::new(),
            value,
            confidence: None,
            ratio: None,
        };
        let points = [("1k", 0.0), ("2k", 0.0), ("4k", 0.0009), ("8k", 0.2), ("16k", 0.0)].map(point);
        let at = |bound| loss_bound(&points, bound).at;
        assert_eq!(LOSS_BOUNDS.map(at).map(Option::unwrap), ["2k", "4k", "4k"]);
        assert_eq!(loss_bound(&points[3..], 0.001).at, None, "a lower point that loses nothing is by chance");
    }

    #[test]
    fn a_curve_bends_where_it_falls_or_where_it_stops_to_grow() {
        let at = |values: &[f64]| {
            let points: Vec<(f64, f64)> = values
                .iter()
                .enumerate()
                .map(|(place, value)| (2_f64.powi(i32::try_from(place).unwrap()), *value))
                .collect();
            knee(&points)
        };
        assert_eq!(at(&[100.0, 99.0, 98.0, 60.0, 30.0]), Some(2), "the last one that is as good");
        assert_eq!(at(&[100.0, 200.0, 390.0, 400.0]), Some(2));
        assert_eq!(at(&[100.0, 200.0, 400.0]), None, "it grows to the end");
        assert_eq!(at(&[100.0, 101.0, 99.0]), None, "a flat line");
        assert_eq!(at(&[100.0, 50.0]), None, "two points");
        assert_eq!(at(&[100.0, 200.0, 120.0, 110.0]), Some(1));
    }

    #[test]
    fn a_value_of_a_sweep_is_a_number_with_or_without_a_prefix() {
        assert_eq!(
            (number("1"), number("2.5"), number("64KiB"), number("1k")),
            (Some(1.0), Some(2.5), Some(65_536.0), Some(1000.0))
        );
        assert_eq!((number("10kpps"), number("1.5Mbit"), number("250us")), (Some(1e4), Some(1.5e6), Some(0.000_25)));
        assert_eq!((number("fast"), number("inf"), number("1;reboot")), (None, None, None));
    }
}
