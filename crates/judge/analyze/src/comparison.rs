//! What a path costs against another under the same work: pairs of trials, round by round, and what they show.
//!
//! The formulas and the words are those of `docs/methods/comparison.md`.

use fathom_model::{
    Better, ComparedArm, Comparison, ComparisonPlan, Confidence, CostOutcome, Derivation, Estimate, Metric,
    PairedValue, Run, Side, TestRun, Trial, Unit,
    metric::{MetricName, UnitAndSense},
    names::{count, host::DEVICE_CPU_NS},
    units::{Nanos, percent, rounded, significant},
};
use fathom_statistics::{LEVEL, PairedDifferences, mean};

use crate::{
    path::hosts_of,
    path_check::path_fault,
    summaries::{is_main_rate, main_rate, value_in},
    window::{is_complete, record_of},
};

/// Pairs whose interval leaves room for a larger difference than this do not show that there is none.
const SMALL: f64 = 0.1;
/// The same for the difference of two shares.
const SMALL_SHARE: f64 = 0.01;
/// An interval that reaches this factor says nothing.
const VAGUE: f64 = 10.0;
/// Half of the width of a bucket of a histogram, as a share of its value: two quantiles in one bucket may differ by that.
const BUCKET: f64 = 0.002;

/// Returns the comparisons of an analyzed run, in the order of the plan.
pub(crate) fn comparisons(run: &Run) -> Vec<Comparison> {
    run.plan.comparisons.iter().filter_map(|planned| comparison(run, planned)).collect()
}

/// Returns the tests of a comparison, the reference first.
pub(crate) fn tests_of<'a>(run: &'a Run, comparison: &str) -> Vec<&'a TestRun> {
    let planned = run.plan.tests.iter().filter(|test| test.comparison.as_deref() == Some(comparison));
    planned.filter_map(|planned| run.tests.iter().find(|test| test.name == planned.name)).collect()
}

fn comparison(run: &Run, planned: &ComparisonPlan) -> Option<Comparison> {
    let tests = tests_of(run, &planned.name);
    let (reference, others) = tests.split_first()?;
    let path = |test: &TestRun| test.path.clone().unwrap_or_else(|| test.name.clone());
    let void = tests.iter().find_map(|test| void(run, test));
    let arms = if void.is_some() { Vec::new() } else { arms(run, reference, others) };
    Some(Comparison {
        name: planned.name.clone(),
        reference: path(reference),
        test: reference.name.clone(),
        at: planned.at.clone(),
        arms,
        void,
    })
}

/// Returns the reason why a test gives no number to a comparison.
fn void(run: &Run, test: &TestRun) -> Option<String> {
    let main = main_rate(test).map(|summary| &summary.metric);
    let of_test = |why: &String| format!("{}: {why}", test.name);
    let not_run = test.unavailable.as_ref().map(of_test);
    not_run.or_else(|| test.trials.iter().find_map(|trial| path_fault(run, test, trial, main)))
}

fn arms(run: &Run, reference: &TestRun, others: &[&TestRun]) -> Vec<ComparedArm> {
    let is_null = |test: &TestRun| test.path == reference.path;
    let of_null = others.iter().find(|test| is_null(test)).map(|test| TrialPairs::of(run, reference, test));
    let metrics: Vec<&Metric> =
        reference.summaries.iter().map(|summary| &summary.metric).filter(|metric| is_compared(metric)).collect();
    let arm = |test: &&TestRun| {
        let pairs = TrialPairs::of(run, reference, test);
        let null = of_null.as_ref().filter(|_| !is_null(test));
        let value = |metric: &&Metric| pairs.value(metric, null.and_then(|null| null.compared(metric)).as_ref());
        ComparedArm {
            path: test.path.clone().unwrap_or_else(|| test.name.clone()),
            test: test.name.clone(),
            is_null: is_null(test),
            n_pairs: pairs.trials.len(),
            values: metrics.iter().filter_map(value).collect(),
        }
    };
    others.iter().map(arm).collect()
}

/// Returns true for values that a path can make better or worse.
fn is_compared(metric: &Metric) -> bool {
    let is_plain = matches!(
        metric.from,
        Derivation::Rate { .. }
            | Derivation::RateOfBoth { .. }
            | Derivation::Quantile { .. }
            | Derivation::Share { .. }
            | Derivation::Proportion { .. }
            | Derivation::Missing { .. }
            | Derivation::Cost { .. }
            | Derivation::HostCost { .. }
            | Derivation::DeviceCost { .. }
            | Derivation::Users { .. }
            | Derivation::Step { .. }
    );
    is_plain && metric.better != Better::Neither
}

/// Returns true if a host is another machine than the ends of a test.
pub(crate) fn is_machine_apart(run: &Run, test: &TestRun, host: &str) -> bool {
    let boot = |host: &str| run.hosts.get(host)?.environment.get("kernel", "boot_id");
    hosts_of(test).all(|end| boot(end).is_some() && boot(host).is_some() && boot(end) != boot(host))
}

/// Returns the metric for the CPU time of the device between the ends of a test, per unit of its work. `None` without a device, and for one that
/// shares the cores of an end and does not tell the time of its threads: its time is in that of the end.
pub(crate) fn device_metric(run: &Run, test: &TestRun, metrics: &[Metric]) -> Option<Metric> {
    let host = run.plan.via.as_ref().filter(|_| test.path.is_some())?;
    let tells_threads = || {
        let mut watched = test.trials.iter().filter_map(|trial| trial.hosts.get(host));
        watched.any(|record| record.series_of(DEVICE_CPU_NS).next().is_some())
    };
    let is_known = metrics.iter().any(|metric| matches!(metric.from, Derivation::DeviceCost { .. }));
    let has_own_time = is_machine_apart(run, test, host) || tells_threads();
    let (side, counter, title) = counted_work(metrics).filter(|_| has_own_time && !is_known)?;
    let from = Derivation::DeviceCost { host: host.clone().into(), side, counter: counter.to_owned().into() };
    let named = if count::OF_BYTES.contains(&counter) {
        MetricName("device_cost_ns_per_gib", "device's CPU per GiB")
    } else {
        MetricName("device_cost_ns", "device's CPU per unit")
    };
    let metric = Metric::of(named, UnitAndSense::TIME, "docs/methods/comparison.md", from);
    let unit = title.split_once(" per ").map(|(_, unit)| unit.split(',').next().unwrap_or(unit));
    match unit.filter(|_| !count::OF_BYTES.contains(&counter)) {
        Some(unit) => Some(Metric { title: format!("device's CPU per {unit}").into(), ..metric }),
        None => Some(metric),
    }
}

/// Returns the work that the CPU time of an end is divided by, or else the first rate of the test: the side, the counter, and the title.
fn counted_work(metrics: &[Metric]) -> Option<(Side, &str, &str)> {
    let first = |of: &dyn Fn(&Metric) -> bool| metrics.iter().find(|metric| of(metric));
    let of_host = first(&|metric| matches!(metric.from, Derivation::HostCost { .. }));
    let of_threads = || first(&|metric| matches!(metric.from, Derivation::Cost { .. }));
    let work = of_host.or_else(of_threads).or_else(|| first(&is_main_rate))?;
    match &work.from {
        Derivation::HostCost { side, counter }
        | Derivation::Cost { side, counter }
        | Derivation::Rate { side, counter } => Some((*side, counter, &work.title)),
        _ => None,
    }
}

/// The trials of two tests in the rounds that both completed: that of the reference and the other one.
struct TrialPairs<'a> {
    run: &'a Run,
    trials: Vec<(&'a Trial, &'a Trial)>,
}

/// How a value of two paths is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// By its logarithm, as rates and times vary by factors.
    Factor,
    /// By the difference of two shares.
    Share,
    /// By the difference of two times, of which one may be 0.
    Time,
}

/// The values of the pairs and what they have in common.
struct ComparedPairs {
    scale: Scale,
    /// The means of the reference and of the other one.
    means: (f64, f64),
    /// In logarithms or shares, as the scale says.
    distance: Estimate,
    /// In the unit of the metric.
    difference: Option<Estimate>,
    n_pairs: usize,
}

impl<'a> TrialPairs<'a> {
    fn of(run: &'a Run, reference: &'a TestRun, other: &'a TestRun) -> Self {
        let partner = |trial: &'a Trial| {
            let of_round = other.trials.iter().find(|one| one.round == trial.round && is_complete(one));
            of_round.map(|one| (trial, one))
        };
        let complete = reference.trials.iter().filter(|trial| is_complete(trial));
        Self { run, trials: complete.filter_map(partner).collect() }
    }

    /// Returns what the pairs say about a metric; `None` if it has no value in any pair.
    fn compared(&self, metric: &Metric) -> Option<ComparedPairs> {
        let value = |trial| value_in(trial, &self.run.hosts, metric);
        let pairs: Vec<(bool, f64, f64)> = (self.trials.iter())
            .filter_map(|(one, other)| Some((is_before(one, other), value(one)?, value(other)?)))
            .collect();
        let means = (mean(&pairs.iter().map(|pair| pair.1).collect::<Vec<_>>())?, {
            mean(&pairs.iter().map(|pair| pair.2).collect::<Vec<_>>())?
        });
        let is_positive = pairs.iter().all(|(_, one, other)| *one > 0.0 && *other > 0.0);
        let scale = match metric.unit {
            Unit::Ratio => Scale::Share,
            // A path without the device takes nothing of its time.
            _ if matches!(metric.from, Derivation::DeviceCost { .. }) => Scale::Time,
            _ if is_positive => Scale::Factor,
            // A value of 0 has no logarithm, and as a part of the reference it is no number either.
            _ => return None,
        };
        let of = |distance: fn(f64, f64) -> f64| {
            let mut all = PairedDifferences::default();
            for (is_first, one, other) in &pairs {
                let into = if *is_first { &mut all.reference_first } else { &mut all.reference_last };
                into.push(distance(*one, *other));
            }
            all
        };
        let difference = estimate(&of(|one, other| other - one), 0.0);
        let is_of_buckets = matches!(metric.from, Derivation::Quantile { .. } | Derivation::PerMinute { .. });
        let distance = match scale {
            Scale::Share | Scale::Time => difference,
            Scale::Factor => estimate(&of(|one, other| (other / one).ln()), if is_of_buckets { BUCKET } else { 0.0 }),
        };
        Some(ComparedPairs { scale, means, distance: distance?, difference, n_pairs: pairs.len() })
    }

    /// Returns the compared value of a metric, judged against the noise of the reference.
    fn value(&self, metric: &Metric, null: Option<&ComparedPairs>) -> Option<PairedValue> {
        let compared = self.compared(metric)?;
        let noise = null.map_or(0.0, |null| noise(&null.distance));
        let outcome = compared.outcome(metric, noise);
        Some(PairedValue {
            metric: metric.name.to_string(),
            reference: compared.means.0,
            value: compared.means.1,
            ratio: (compared.scale == Scale::Factor).then(|| exponential(&compared.distance)),
            difference: compared.difference,
            outcome,
            text: compared.text(metric, outcome, noise),
        })
    }
}

/// Returns true if the first trial of a pair was made first. Both have the same initiator, and so the same clock.
fn is_before(one: &Trial, other: &Trial) -> bool {
    let start = |trial| record_of(trial, Side::Initiator).map(|(_, record)| record.start_ns);
    start(one) <= start(other)
}

/// Returns the mean of differences with its interval, which is at least `resolution` wide to either side.
fn estimate(differences: &PairedDifferences, resolution: f64) -> Option<Estimate> {
    let value = differences.mean()?;
    let widened = |interval: Confidence| Confidence {
        low: interval.low.min(value - resolution),
        high: interval.high.max(value + resolution),
        ..interval
    };
    Some(Estimate { value, confidence: differences.interval(LEVEL).map(widened) })
}

fn exponential(log: &Estimate) -> Estimate {
    let of_interval = |t: Confidence| Confidence { low: t.low.exp(), high: t.high.exp(), ..t };
    Estimate { value: log.value.exp(), confidence: log.confidence.map(of_interval) }
}

/// Returns true if an interval does not contain zero.
fn is_apart(of: &Estimate) -> bool {
    of.confidence.is_some_and(|interval| interval.low > 0.0 || interval.high < 0.0)
}

/// Returns the end of an interval that is farther from zero.
fn farthest(interval: Confidence) -> f64 {
    interval.low.abs().max(interval.high.abs())
}

/// Returns true if an interval does not contain zero and its value is larger than the noise.
fn is_beyond(of: &Estimate, noise: f64) -> bool {
    is_apart(of) && of.value.abs() > noise
}

/// Returns how far the reference differs from itself: its mean distance, or the farther end of an interval that does not contain zero.
fn noise(null: &Estimate) -> f64 {
    match null.confidence {
        Some(interval) if is_apart(null) => farthest(interval),
        _ => null.value.abs(),
    }
}

impl ComparedPairs {
    fn outcome(&self, metric: &Metric, noise: f64) -> CostOutcome {
        let Some(interval) = self.distance.confidence else { return CostOutcome::Inconclusive };
        let is_apart = is_apart(&self.distance);
        let is_more = self.distance.value > 0.0;
        let small = match self.scale {
            Scale::Factor => SMALL,
            Scale::Share => SMALL_SHARE,
            Scale::Time => 0.0,
        };
        let farthest = farthest(interval);
        match metric.better {
            // Such noise may hide any difference, and such an interval too.
            _ if !is_beyond(&self.distance, noise) && self.is_vague(farthest.max(noise)) => CostOutcome::Inconclusive,
            _ if is_apart && self.distance.value.abs() <= noise => CostOutcome::NoDifference,
            _ if !is_apart && farthest <= noise.max(small) => CostOutcome::NoDifference,
            _ if !is_apart => CostOutcome::Inconclusive,
            Better::Neither => CostOutcome::Differs,
            Better::Higher if is_more => CostOutcome::Gains,
            Better::Lower if !is_more => CostOutcome::Gains,
            Better::Higher | Better::Lower => CostOutcome::Costs,
        }
    }

    /// Returns the sentence about the pairs: `costs 38 ± 2 %`, `adds 101 ± 2 µs`.
    fn text(&self, metric: &Metric, outcome: CostOutcome, noise: f64) -> String {
        let Some(interval) = self.distance.confidence else {
            let n = self.n_pairs;
            return format!(
                "inconclusive: {n} {} of trials, and at least 3 are needed",
                if n == 1 { "pair" } else { "pairs" }
            );
        };
        match outcome {
            CostOutcome::Inconclusive if self.is_vague(farthest(interval).max(noise)) => {
                format!("inconclusive: not known from {} pairs", self.n_pairs)
            }
            CostOutcome::Inconclusive => {
                format!("inconclusive: from {} to {}", self.signed(interval.low), self.signed(interval.high))
            }
            CostOutcome::NoDifference
                if self.means.0.total_cmp(&self.means.1).is_eq() && interval.low.total_cmp(&interval.high).is_eq() =>
            {
                format!("no difference ({} on both)", metric.show(self.means.0))
            }
            CostOutcome::NoDifference => {
                let within = self.signed(farthest(interval).max(noise));
                format!("no difference beyond noise (within ± {})", within.trim_start_matches(['+', '−']))
            }
            CostOutcome::Costs | CostOutcome::Gains | CostOutcome::Differs => self.effect(metric, outcome),
        }
    }

    fn effect(&self, metric: &Metric, outcome: CostOutcome) -> String {
        let is_more = self.distance.value > 0.0;
        let verb = match (outcome, metric.better, is_more) {
            (CostOutcome::Costs, Better::Higher, _) => "costs",
            (CostOutcome::Gains, Better::Higher, _) => "gains",
            (_, _, true) => "adds",
            (_, _, false) => "saves",
        };
        match (self.scale, metric.unit, &self.difference) {
            // The difference of times is what a device adds, whatever they were before.
            (Scale::Factor, Unit::Nanos, Some(difference)) if is_apart(difference) => {
                let factor = exponential(&self.distance).value;
                format!("{verb} {} (× {})", with_half(difference, &time), significant(factor))
            }
            (Scale::Time, ..) => format!("{verb} {}", with_half(&self.distance, &time)),
            (Scale::Share, ..) => format!("{verb} {} points", with_half(&self.distance, &|share| points(share.abs()))),
            _ => {
                let share = |log: f64| (log.exp() - 1.0) * 100.0;
                let linear = Estimate {
                    value: share(self.distance.value),
                    confidence: self.distance.confidence.map(|t| Confidence {
                        low: share(t.low),
                        high: share(t.high),
                        ..t
                    }),
                };
                format!("{verb} {} %", with_half(&linear, &|share| decimals(share.abs())))
            }
        }
    }

    /// Returns true if a distance that is possible does not even tell the order of magnitude.
    fn is_vague(&self, reach: f64) -> bool {
        self.scale == Scale::Factor && reach > VAGUE.ln()
    }

    /// Formats a distance as the change that it is: `−20 %`, `+0.3 points`.
    fn signed(&self, distance: f64) -> String {
        let sign = if distance < 0.0 { '−' } else { '+' };
        match self.scale {
            Scale::Share => format!("{sign}{} points", points(distance.abs())),
            Scale::Time => format!("{sign}{}", time(distance)),
            Scale::Factor => format!("{sign}{}", percent((distance.exp() - 1.0).abs())),
        }
    }
}

/// Formats a value and its interval as `38 ± 2`, or with both ends where it is not symmetric. The interval has the unit of the value.
fn with_half(of: &Estimate, show: &dyn Fn(f64) -> String) -> String {
    let shown = show(of.value);
    let (number, unit) = shown.split_once(' ').map_or((shown.as_str(), None), |(number, unit)| (number, Some(unit)));
    let unit = unit.map(|unit| format!(" {unit}")).unwrap_or_default();
    let Some(interval) = of.confidence else { return shown };
    let size = number
        .replace(',', "")
        .parse::<f64>()
        .ok()
        .filter(|number| *number > 0.0)
        .map(|number| of.value.abs() / number);
    let in_unit = |value: f64| decimals(value.abs() / size.unwrap_or(1.0));
    let (below, above) = (of.value - interval.low, interval.high - of.value);
    // A half-width as large as the value would look like an interval with zero in it.
    let seems_to_contain_zero = is_apart(of) && below.max(above) >= of.value.abs();
    if below.min(above) * 2.0 < below.max(above) || seems_to_contain_zero {
        let mut ends = [in_unit(interval.low), in_unit(interval.high)];
        if interval.high <= 0.0 {
            ends.reverse();
        }
        return format!("{number} [{} – {}]{unit}", ends[0], ends[1]);
    }
    format!("{number} ± {}{unit}", in_unit(below.max(above)))
}

fn time(nanos: f64) -> String {
    Nanos(rounded(nanos.abs())).to_string()
}

fn points(share: f64) -> String {
    decimals(share * 100.0)
}

/// Formats a number with two or three digits, and at most two decimals.
fn decimals(number: f64) -> String {
    match number {
        number if number >= 99.5 => format!("{number:.0}"),
        number if number >= 9.95 => format!("{number:.1}"),
        number => format!("{number:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{PathPlan, Settings, TestPlan, TrialTimes, names::host::DEV_RX_FRAMES, units::approximate};
    use fathom_statistics::splitmix;

    use super::*;
    use crate::{path_check::ends_in_silence, run_builder::RunBuilder};

    /// Seeded noise with mean 0 and standard deviation 1.
    struct Noise(u64, u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            let mut uniform = || {
                self.1 += 1;
                approximate(splitmix(self.0, self.1) >> 11) / approximate(1 << 53)
            };
            (0..12).map(|_| uniform()).sum::<f64>() - 6.0
        }
    }

    /// What the trials of a simulated comparison have.
    #[derive(Clone, Copy)]
    struct Simulated {
        rounds: u32,
        /// The rate of the other path as a part of that of the reference.
        ratio: f64,
        /// The growth of every rate from one trial to the next.
        drift: f64,
        /// The standard deviation of a trial, as a part of its value.
        noise: f64,
        seed: u64,
    }

    const STEADY: Simulated = Simulated { rounds: 6, ratio: 0.6, drift: 0.0, noise: 0.02, seed: 1 };
    const PATHS: [(&str, Option<&str>); 3] = [("direct", None), ("via", Some("dut")), ("direct", None)];

    /// Makes a run of three tests in the order of the executor: forth in even rounds, back in odd ones.
    fn simulated(of: Simulated) -> RunBuilder {
        let mut noise = Noise(of.seed, 0);
        let mut rates: [Vec<u64>; 3] = Default::default();
        let mut starts: [Vec<u64>; 3] = Default::default();
        let mut n_trials = 0_u32;
        for round in 0..of.rounds {
            let order = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
            for place in order {
                let ratio = if place == 1 { of.ratio } else { 1.0 };
                let drifted = 1e9 * ratio * (1.0 + of.drift).powi(i32::try_from(n_trials).unwrap());
                rates[place].push(rounded(drifted * (1.0 + of.noise * noise.next())));
                starts[place].push(u64::from(n_trials));
                n_trials += 1;
            }
        }
        let mut builder = RunBuilder::new();
        for (place, (path, via)) in PATHS.into_iter().enumerate() {
            builder.tcp_stream(&rates[place]);
            let test = builder.run.tests.last_mut().unwrap();
            test.name = format!("stream {path}{}", if place == 2 { " again" } else { "" });
            test.path = Some(path.to_owned());
            for (trial, start) in test.trials.iter_mut().zip(&starts[place]) {
                trial.records.values_mut().for_each(|record| record.start_ns = Nanos::from_secs(10 + start));
                for host in trial.hosts.values_mut() {
                    host.at_ns.iter_mut().for_each(|at| *at += Nanos::from_secs(*start));
                }
            }
            let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
            let planned = TestPlan {
                name: test.name.clone(),
                path: test.path.clone(),
                comparison: Some("stream".to_owned()),
                options: Settings::default(),
                ..TestPlan::new("tcp_stream", times, "client")
            };
            builder.run.plan.tests.push(planned);
            if place < 2 {
                let via = via.map(str::to_owned);
                builder.run.plan.paths.push(PathPlan {
                    name: path.to_owned(),
                    at: [].into(),
                    via,
                    translated: Vec::new(),
                });
            }
        }
        builder.run.plan.comparisons.push(ComparisonPlan { name: "stream".to_owned(), at: None, set: None });
        builder
    }

    fn value_of(run: &Run, arm: usize) -> &PairedValue {
        &run.comparisons[0].arms[arm].values[0]
    }

    #[test]
    fn the_interval_of_a_ratio_covers_the_truth_in_spite_of_drift_and_noise() {
        let cases = [(0.6, 0.0, 0.02), (0.6, 0.01, 0.02), (0.98, -0.02, 0.01), (1.0, 0.005, 0.05), (0.5, 0.0, 0.2)];
        for (ratio, drift, noise) in cases {
            let is_covered = |seed: &u64| {
                let run = simulated(Simulated { ratio, drift, noise, seed: *seed, ..STEADY }).analyzed();
                let interval = value_of(&run, 0).ratio.unwrap().confidence.unwrap();
                (interval.low..=interval.high).contains(&ratio)
            };
            let n_covered = (1..=100).filter(is_covered).count();
            assert!(n_covered >= 90, "{n_covered} of 100 at {ratio} with a drift of {drift} and noise of {noise}");
        }
    }

    #[test]
    fn a_path_against_itself_is_seldom_taken_for_a_cost() {
        let is_wrong = |seed: &u64| {
            let run = simulated(Simulated { ratio: 1.0, drift: 0.01, seed: *seed, ..STEADY }).analyzed();
            matches!(value_of(&run, 0).outcome, CostOutcome::Costs | CostOutcome::Gains)
        };
        let n_wrong = (1..=100).filter(is_wrong).count();
        assert!(n_wrong <= 8, "{n_wrong} of 100");
    }

    #[test]
    fn a_cost_is_told_with_its_interval_and_small_or_wide_ones_are_not() {
        let told = |of: Simulated| {
            let run = simulated(of).analyzed();
            let value = value_of(&run, 0).clone();
            (value.outcome, value.text)
        };
        let (outcome, text) = told(STEADY);
        assert!(
            outcome == CostOutcome::Costs
                && text.starts_with("costs 4")
                && text.contains(" ± ")
                && text.ends_with(" %"),
            "{text}"
        );
        let (outcome, text) = told(Simulated { ratio: 1.5, ..STEADY });
        assert!(outcome == CostOutcome::Gains && text.starts_with("gains "), "{text}");
        let (outcome, text) = told(Simulated { ratio: 1.0, ..STEADY });
        assert!(
            outcome == CostOutcome::NoDifference && text.starts_with("no difference beyond noise (within ± "),
            "{text}"
        );
        let (outcome, text) = told(Simulated { ratio: 0.9, noise: 0.3, ..STEADY });
        assert!(outcome == CostOutcome::Inconclusive && text.starts_with("inconclusive: from −"), "{text}");
        let (outcome, text) = told(Simulated { rounds: 2, ..STEADY });
        assert_eq!(
            (outcome, text.as_str()),
            (CostOutcome::Inconclusive, "inconclusive: 2 pairs of trials, and at least 3 are needed")
        );
    }

    #[test]
    fn a_difference_below_that_of_the_reference_from_itself_is_noise() {
        let mut builder = simulated(Simulated { noise: 0.001, ratio: 0.97, ..STEADY });
        assert_eq!(value_of(&builder.analyzed(), 0).outcome, CostOutcome::Costs);
        // Something slows every second test of the reference down by a tenth.
        builder.run.tests[2].trials = {
            let mut slow = simulated(Simulated { noise: 0.001, ratio: 0.9, ..STEADY });
            slow.run.tests.remove(1).trials
        };
        let run = builder.analyzed();
        assert_eq!(value_of(&run, 0).outcome, CostOutcome::NoDifference);
        let null = &run.comparisons[0].arms[1];
        assert!(
            null.is_null && null.values[0].outcome == CostOutcome::Costs,
            "it is told that the null comparison failed"
        );
    }

    #[test]
    fn noise_of_a_factor_of_ten_shows_no_absence_of_a_difference() {
        let mut builder = simulated(Simulated { noise: 0.001, ratio: 0.97, ..STEADY });
        // The reference is a hundred times slower than itself.
        builder.run.tests[2].trials = {
            let mut slow = simulated(Simulated { noise: 0.001, ratio: 0.01, ..STEADY });
            slow.run.tests.remove(1).trials
        };
        let run = builder.analyzed();
        let value = value_of(&run, 0);
        assert_eq!(
            (value.outcome, value.text.as_str()),
            (CostOutcome::Inconclusive, "inconclusive: not known from 6 pairs")
        );
    }

    #[test]
    fn incomplete_trials_take_their_pair_with_them() {
        let mut builder = simulated(STEADY);
        builder.run.tests[1].trials[2].records.get_mut("target").unwrap().complete = false;
        let run = builder.analyzed();
        assert_eq!(run.comparisons[0].arms.iter().map(|arm| arm.n_pairs).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn a_loss_is_compared_by_points_and_a_time_by_what_is_added() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 1000), (1000, 1000), (1000, 999), (1000, 1000)]);
        builder.udp_stream(&[(1000, 500), (1000, 502), (1000, 499), (1000, 501)]);
        builder.probes(&[(20_000, 30_000), (20_200, 30_000), (19_900, 30_000), (20_100, 30_000)]);
        builder.probes(&[(70_000, 80_000), (70_100, 80_000), (70_200, 80_000), (69_900, 80_000)]);
        let tests = &mut builder.run.tests;
        for (test, path) in tests.iter_mut().zip(["direct", "via", "direct", "via"]) {
            test.path = Some(path.to_owned());
        }
        let run = builder.analyzed();
        let text = |first: usize, name: &str| {
            let arms = arms(&run, &run.tests[first], &[&run.tests[first + 1]]);
            arms[0].values.iter().find(|value| value.metric == name).unwrap().text.clone()
        };
        assert!(text(0, "loss").starts_with("adds 49.9 ± 0."), "{}", text(0, "loss"));
        assert!(text(0, "loss").ends_with(" points"));
        let of_median = text(2, "latency_ns_p50");
        assert!(of_median.starts_with("adds 50.") && of_median.contains(" µs (× 3.5"), "{of_median}");
    }

    #[test]
    fn a_path_that_does_not_go_where_it_should_has_no_number() {
        let frames = |direct: u64, via: u64| {
            let mut builder = simulated(STEADY);
            builder.device_between("dut");
            for test in &mut builder.run.tests {
                let taken = if test.path.as_deref() == Some("via") { via } else { direct };
                for trial in &mut test.trials {
                    for (host, counter, growth) in [("client", "dev_tx_frames", 10_000), ("dut", DEV_RX_FRAMES, taken)]
                    {
                        let series = fathom_model::record::Series {
                            name: counter.to_owned(),
                            of: "eth0".to_owned(),
                            values: vec![0, 0, growth, growth],
                        };
                        trial.hosts.get_mut(host).unwrap().series.push(series);
                    }
                }
            }
            let run = builder.analyzed();
            (run.comparisons[0].void.clone(), run.comparisons[0].arms.len(), run.verdict.state.word())
        };
        assert_eq!(frames(3, 9_990), (None, 2, "MEASURED"));
        let (void, n_arms, state) = frames(9_900, 9_990);
        let void = void.unwrap();
        assert!(
            void.starts_with("both paths go through dut: on `direct` it took 9,900 frames of the 10,000 sent"),
            "{void}"
        );
        assert_eq!((n_arms, state), (0, "INVALID"));
        let (void, ..) = frames(3, 7);
        assert!(void.unwrap().starts_with("the path `via` does not go through dut"));
    }

    #[test]
    fn rules_of_a_device_that_track_the_path_without_it_give_no_number() {
        let void = |path: &str, change: &dyn Fn(&mut Run)| {
            let mut builder = simulated(STEADY);
            for test in builder.run.tests.iter_mut().filter(|test| test.path.as_deref() == Some(path)) {
                for trial in &mut test.trials {
                    let values = vec![5, 5, 9, 7];
                    let series = fathom_model::record::Series {
                        name: fathom_model::names::host::CONNTRACK_ENTRIES.to_owned(),
                        of: String::new(),
                        values,
                    };
                    trial.hosts.get_mut("client").unwrap().series.push(series);
                }
            }
            change(&mut builder.run);
            builder.analyzed().comparisons[0].void.clone()
        };
        let started = |run: &mut Run| run.plan.device.counters = Some("true".to_owned());
        let set = |run: &mut Run| run.plan.comparisons[0].set = Some("true".to_owned());
        let in_lab = |run: &mut Run| {
            let reach = fathom_model::plan::HostReach::Lab("a".to_owned());
            run.plan.hosts.insert("client".to_owned(), reach);
        };
        let told = "rules work on the path `direct` too: client tracks its connections (4 more)";
        for change in [&started as &dyn Fn(&mut Run), &set, &in_lab] {
            assert_eq!(void("direct", change).as_deref(), Some(told));
            assert_eq!(void("via", change), None, "there they may belong to the device");
        }
        assert_eq!(void("direct", &|_| ()), None, "they may be those of the owner");
    }

    #[test]
    fn a_path_that_carries_nothing_any_more_has_no_number() {
        let mut builder = simulated(STEADY);
        let is_silent = |builder: &RunBuilder| {
            let metric = crate::run_builder::throughput();
            ends_in_silence(&builder.run, &builder.run.tests[1].trials[3], Some(&metric))
        };
        let end = |builder: &mut RunBuilder, last: usize| {
            let record = builder.run.tests[1].trials[3].records.get_mut("target").unwrap();
            let column = record.timeline.counters.values_mut().next().unwrap();
            let n = column.len();
            column[n - last..].fill(0);
        };
        assert!(!is_silent(&builder));
        end(&mut builder, 2);
        assert!(!is_silent(&builder), "a short gap");
        end(&mut builder, 10);
        assert!(is_silent(&builder));
        assert_eq!(builder.analyzed().comparisons[0].void, None, "it may be a retransmission");
        let record = builder.run.tests[1].trials[3].records.get_mut("target").unwrap();
        record.totals.values_mut().for_each(|total| *total = 0);
        let void = builder.analyzed().comparisons[0].void.clone();
        assert_eq!(void.as_deref(), Some("the path `via` carried nothing in round 4"));
        let Derivation::Rate { counter, .. } = crate::run_builder::throughput().from else { panic!("it is a rate") };
        let other = builder.run.tests[1].trials[3].records.get_mut("client").unwrap();
        other.totals.insert(counter.to_string(), 1);
        assert_eq!(builder.analyzed().comparisons[0].void, None, "something arrived at the other end");
    }
}
