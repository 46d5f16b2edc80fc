//! Paths under the same work, side by side, and what one costs against another.

use fathom_model::{
    ComparedArm, Comparison, CostOutcome, Derivation, LossBound, Metric, Run, Sweep, SweepCurve, SweptValue, TestRun,
    Unit, metric::Better, units::percent,
};

use super::block::{Block, Cell, Column, Figure, Row, Table, section};
use crate::{
    plot::{
        cost::{ShownValue, costs},
        sweep::sweep_curves,
    },
    words::{self, MISSING, Mark},
};

/// Returns the blocks about all comparisons of a run; none for a run without.
pub(super) fn blocks(run: &Run) -> Vec<Block<'_>> {
    if run.comparisons.is_empty() {
        return Vec::new();
    }
    let is_swept = |comparison: &&Comparison| comparison.at.is_some();
    let of_sweep = |sweep| std::iter::once(Block::Figure(curves(run, sweep))).chain(loss_bounds(sweep));
    let mut blocks: Vec<Block<'_>> = run.sweeps.iter().flat_map(of_sweep).collect();
    let (swept, single): (Vec<&Comparison>, Vec<&Comparison>) = run.comparisons.iter().partition(is_swept);
    if !single.is_empty() {
        blocks.push(Block::Table(table(run, &single)));
        blocks.push(Block::Figure(cost_figure(run, single)).on_page());
    }
    if !swept.is_empty() {
        blocks.push(Block::Table(table(run, &swept)).on_page());
    }
    let void = run
        .comparisons
        .iter()
        .filter_map(|comparison| Some(format!("{}: no number: {}", comparison.name, comparison.void.as_ref()?)));
    blocks.extend(void.map(|text| Block::caution(text, Mark::Broken)));
    vec![section("paths", "What the paths cost", blocks)]
}

/// Returns the values of a comparison that a reader looks for: a rate, a median and a tail, a loss, and the CPU of a host.
fn shown_values<'a>(run: &'a Run, comparison: &'a Comparison) -> Vec<ShownValue<'a>> {
    let Some(test) = run.tests.iter().find(|test| test.name == comparison.test) else { return Vec::new() };
    let null = comparison.arms.iter().find(|arm| arm.is_null);
    let of_arm = |arm: &'a ComparedArm| {
        let known = |metric: &&Metric| arm.values.iter().any(|value| metric.name == value.metric.as_str());
        let metrics: Vec<&Metric> = test.summaries.iter().map(|summary| &summary.metric).filter(known).collect();
        let first = |is: &dyn Fn(&Metric) -> bool| metrics.iter().copied().find(|metric| is(metric));
        let quantile = |wanted: f64| {
            first(&|metric| matches!(metric.from, Derivation::Quantile { q, .. } if (q - wanted).abs() < 1e-9))
        };
        let is_rate = |metric: &Metric| matches!(metric.from, Derivation::Rate { .. } | Derivation::RateOfBoth { .. });
        let is_loss = |metric: &Metric| metric.unit == Unit::Ratio && metric.better == Better::Lower;
        let host = first(&|metric| matches!(metric.from, Derivation::HostCost { .. }));
        let cpu = host.or_else(|| first(&|metric| matches!(metric.from, Derivation::Cost { .. })));
        let device = first(&|metric| matches!(metric.from, Derivation::DeviceCost { .. }));
        let wanted = [first(&is_rate), quantile(0.5), quantile(0.99), first(&is_loss), cpu, device];
        let shown = wanted.into_iter().flatten().filter_map(move |metric| {
            let of = |arm: &'a ComparedArm| arm.values.iter().find(|value| metric.name == value.metric.as_str());
            Some(ShownValue { comparison, arm, metric, value: of(arm)?, null: null.and_then(of) })
        });
        shown.collect::<Vec<_>>()
    };
    comparison.arms.iter().filter(|arm| !arm.is_null).flat_map(of_arm).collect()
}

fn table(run: &Run, comparisons: &[&Comparison]) -> Table {
    let first = comparisons.iter().find(|comparison| comparison.void.is_none());
    let reference = first.map_or("reference", |comparison| comparison.reference.as_str());
    let mut others: Vec<&str> = Vec::new();
    for arm in comparisons.iter().flat_map(|comparison| &comparison.arms).filter(|arm| !arm.is_null) {
        others.extend((!others.contains(&arm.path.as_str())).then_some(arm.path.as_str()));
    }
    // The rows of several paths stand below each other, each under its name.
    let (path, has_several) = match others.as_slice() {
        [only] => (*only, false),
        [] => ("path", false),
        _ => ("path", true),
    };
    let columns = vec![
        Column::text(""),
        Column { gives_way: 1, ..Column::number(reference) },
        Column { gives_way: 2, ..Column::number(path) },
        Column { wraps: true, ..Column::text(format!("what {path} does")) },
        Column { gives_way: 3, ..Column::text(format!("{reference} against itself")) },
    ];
    let rows = comparisons.iter().filter(|comparison| comparison.void.is_none()).flat_map(|comparison| {
        let heading = |text: String| Row::new([Cell::from(text).strong()].into_iter().chain(vec![Cell::default(); 4]));
        let shown = shown_values(run, comparison);
        let of_path = |shown: &[ShownValue<'_>]| {
            let named = format!("{}, {}", comparison.name, shown[0].arm.path);
            let name = if has_several { named } else { comparison.name.clone() };
            std::iter::once(heading(name)).chain(shown.iter().map(row)).collect::<Vec<_>>()
        };
        shown.chunk_by(|one, other| one.arm.test == other.arm.test).flat_map(of_path).collect::<Vec<_>>()
    });
    Table { class: "costs", columns, rows: rows.collect(), flows: false }
}

fn row(shown: &ShownValue<'_>) -> Row {
    let show = |value: f64| words::show(shown.metric, value);
    let mark = match shown.value.outcome {
        CostOutcome::Inconclusive => Mark::Open,
        CostOutcome::Costs | CostOutcome::Gains | CostOutcome::Differs | CostOutcome::NoDifference => Mark::Plain,
    };
    let hint = format!("{} pairs of trials", shown.arm.n_pairs);
    Row::new([
        Cell { hint: shown.metric.title.to_string(), ..Cell::from(format!("  {}", short_title(shown.metric))) },
        Cell::from(show(shown.value.reference)),
        Cell::from(show(shown.value.value)),
        Cell { hint, ..Cell::from(&shown.value.text).marked(mark) },
        Cell::from(shown.null.map_or(MISSING, |null| null.text.as_str())).faint(),
    ])
}

/// Returns the title of a metric without the host that it is about: `CPU per transaction`.
fn short_title(metric: &Metric) -> &str {
    match metric.from {
        Derivation::Cost { .. } | Derivation::HostCost { .. } => {
            metric.title.split_once("'s ").map_or(metric.title.as_ref(), |(_, what)| what)
        }
        // It has the unit of the row above.
        Derivation::DeviceCost { .. } => "device's CPU",
        _ => &metric.title,
    }
}

/// Draws the values that are compared as factors, each with its interval and that of the noise.
fn cost_figure<'a>(run: &'a Run, comparisons: Vec<&'a Comparison>) -> Figure<'a> {
    let about =
        "each bar is the interval of a value as a part of the reference; the thin one is the reference against itself";
    let drawing = move || {
        let all: Vec<ShownValue<'_>> =
            comparisons.iter().flat_map(|comparison| shown_values(run, comparison)).collect();
        costs(&all)
    };
    Figure { is_wide: true, ..Figure::new("values as parts of the reference", about, drawing) }
}

fn curves<'a>(run: &'a Run, sweep: &'a Sweep) -> Figure<'a> {
    let about = "each point is the mean of its trials; the bars are 95 % intervals";
    let metric = metric_of(run, sweep);
    let title = format!("{} over {}", metric.map_or(sweep.metric.as_str(), |metric| &metric.title), sweep.parameter);
    Figure {
        is_wide: true,
        table: Some(sweep_table(metric, sweep)),
        on_screen: true,
        ..Figure::new(title, about, move || sweep_curves(metric, sweep))
    }
}

/// Says of each path how far the parameter goes without a higher loss.
fn loss_bounds<'a>(sweep: &Sweep) -> impl Iterator<Item = Block<'a>> {
    let of_bound = |bound: &LossBound| match (&bound.at, bound.loss_ratio > 0.0) {
        (Some(at), false) => format!("no loss up to {at}"),
        (Some(at), true) => format!("at most {} up to {at}", percent(bound.loss_ratio)),
        (None, false) => "loss at every value".to_owned(),
        (None, true) => format!("more than {} at every value", percent(bound.loss_ratio)),
    };
    let of_curve = |curve: &SweepCurve| {
        let told: Vec<String> = curve.loss_bounds.iter().map(of_bound).collect();
        (!told.is_empty()).then(|| Block::sentence(format!("{}: {}", curve.path, told.join(", "))))
    };
    sweep.curves.iter().filter_map(of_curve).collect::<Vec<_>>().into_iter()
}

fn metric_of<'a>(run: &'a Run, sweep: &Sweep) -> Option<&'a Metric> {
    let tests = run.tests.iter().filter(|test: &&TestRun| test.kind == sweep.kind);
    let mut metrics = tests.flat_map(|test| &test.summaries).map(|summary| &summary.metric);
    metrics.find(|metric| metric.name == sweep.metric.as_str())
}

/// The index of the curve that the others are parts of.
const REFERENCE: usize = 0;

fn sweep_table(metric: Option<&Metric>, sweep: &Sweep) -> Table {
    let show = |value: f64| metric.map_or_else(|| value.to_string(), |metric| words::show(metric, value));
    let mut columns = vec![Column::number(sweep.parameter.as_str())];
    for (idx, curve) in sweep.curves.iter().enumerate() {
        columns.extend([Column::number(curve.path.as_str()), Column::number("95 % interval")]);
        columns.extend((idx != REFERENCE).then(|| Column::number("as a part")));
    }
    columns.push(Column::text(""));
    let of = |curve: &'_ SweepCurve, at: &str| curve.points.iter().find(|point| point.at == at).cloned();
    let row = |at: &String| {
        let mut cells = vec![Cell::from(at)];
        let points: Vec<Option<SweptValue>> = sweep.curves.iter().map(|curve| of(curve, at)).collect();
        for (idx, point) in points.iter().enumerate() {
            let interval = point.as_ref().and_then(|point| point.confidence);
            let interval = interval.map(|interval| format!("{} – {}", show(interval.low), show(interval.high)));
            let value = point.as_ref().map_or_else(|| MISSING.to_owned(), |point| show(point.value));
            cells.extend([Cell::from(value), Cell::from(interval.unwrap_or_default())]);
            let ratio = point.as_ref().and_then(|point| point.ratio).map(words::factor);
            cells.extend((idx != REFERENCE).then(|| Cell::from(ratio.unwrap_or_default())));
        }
        let knees: Vec<&str> = (sweep.curves.iter())
            .filter(|curve| curve.knee.as_ref() == Some(at))
            .map(|curve| curve.path.as_str())
            .collect();
        let knees = if knees.is_empty() { String::new() } else { format!("◂ knee of {}", knees.join(", ")) };
        cells.push(Cell::from(knees).strong());
        Row { cells, ..Row::default() }
    };
    let all = sweep.curves.first().map(|curve| curve.points.iter().map(|point| &point.at).collect::<Vec<_>>());
    Table { columns, rows: all.unwrap_or_default().into_iter().map(row).collect(), ..Table::default() }
}
