//! The search of a plan. It is parsed and checked before anything is touched.

use fathom_analyze::{curve, promise};
use fathom_engine::{
    TestKind,
    search::{LoadLevel, SearchAim, SearchBudget},
};
use fathom_model::{
    Metric, OptionDoc, Settings, TestPlan, ValueKind,
    plan::SearchPlan,
    settings::{PACKET_RATE, Setting, is_packet_rate},
    units::{BitsPerSec, Nanos, PerSec, share_of_percent},
};
use promise::{Promise, PromiseError, Relation};

use crate::exit::{Exit, UserError};

/// The default option that sets the rate.
const OPTION: &str = "rate";
/// Twice the repeatability of a careful test. The interval is narrower than the difference between two searches.
const PRECISION: &str = "2.5%";
/// The same confidence as that of every other interval of a run.
const CONFIDENCE: &str = "95%";
/// Five times the trials of a search of a target without outliers.
const TRIALS: u32 = 200;
/// The first rate of a search without a lowest rate: far below the load of any real target, but enough for a p99.
const START: (f64, f64) = (10e6, 1e3);
/// The lowest rate of a search without a bound: in bit/s, and in events per second.
const LOWEST: (f64, f64) = (1e3, 1.0);
/// The highest rate, in the same units: more than any interface carries.
const HIGHEST: (f64, f64) = (1e13, 1e10);
/// The loads of the curve as shares of the limit, all but one below it: dense enough to see where the curve bends.
const CURVE: [f64; 9] = [0.1, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1];

/// A parsed search.
#[derive(Clone)]
pub(super) struct SearchSpec {
    /// The objective as it is written in the plan.
    pub objective: String,
    /// The parts of the objective. All of them must be kept; the first is plotted. Never empty.
    pub parts: Vec<ObjectivePart>,
    /// The option that sets the rate.
    pub option: &'static OptionDoc,
    /// The metric of the achieved rate.
    pub achieved: Metric,
    /// The metric of the median latency, if the kind has one.
    pub median: Option<Metric>,
    pub bounds: SearchAim,
}

fn invalid_search(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks the search of a test against its kind and fills in the defaults.
pub(super) fn complete(test: &mut TestPlan, kind: &dyn TestKind) -> Result<Option<SearchSpec>, UserError> {
    let Some(search) = &mut test.search else { return Ok(None) };
    let parts = parse_objective(&search.objective, kind.metrics())?;
    search.objective = parts.iter().map(|part| part.written.as_str()).collect::<Vec<_>>().join(", ");
    let counts_packets = search.low.iter().chain(&search.high).any(|bound| is_packet_rate(bound));
    let has_packet_rate = kind.options().iter().any(|option| option.name == PACKET_RATE);
    let option = if counts_packets && has_packet_rate { PACKET_RATE } else { OPTION };
    search.option.get_or_insert_with(|| option.to_owned());
    search.precision.get_or_insert_with(|| PRECISION.to_owned());
    search.confidence.get_or_insert_with(|| CONFIDENCE.to_owned());
    search.trials.get_or_insert(TRIALS);
    let option = rate_option(search, kind)?;
    for bound in [&mut search.low, &mut search.high].into_iter().flatten() {
        if let Setting::Text(exact) = option.exact(bound).map_err(|error| invalid_search(error.to_string()))? {
            *bound = exact;
        }
    }
    if let Some(rate) = test.options.text(option.name) {
        return Err(invalid_search(format!(
            "the search sets `{}` itself, so {rate} cannot be asked for too",
            option.name
        ))
        .with_line("use", "low and high to bound the search"));
    }
    SearchSpec::of(search, kind).map(Some)
}

/// One part of an objective: a metric, its promise, and the text of both.
#[derive(Clone)]
pub(super) struct ObjectivePart {
    pub metric: Metric,
    pub promise: Promise,
    written: String,
}

/// Parses an objective such as `p99 < 20ms, errors < 0.1%`. The first part is plotted.
fn parse_objective(text: &str, metrics: &[Metric]) -> Result<Vec<ObjectivePart>, UserError> {
    text.split(',').map(|text| parse_objective_part(text.trim(), metrics)).collect()
}

fn parse_objective_part(text: &str, metrics: &[Metric]) -> Result<ObjectivePart, UserError> {
    const EXAMPLE: &str = "'p99<20ms', 'lost<0.1%', 'p99<20ms, errors<1%'";
    let cannot = |why: &str| invalid_search(format!("the objective `{text}` {why}")).with_line("use", EXAMPLE);
    let at = text.find(['<', '>', '≤', '≥', '=']).ok_or_else(|| cannot("has no comparison"))?;
    let (metric, promise) = promise::split(text, metrics).map_err(|error| {
        let user_error = invalid_search(format!("the objective `{text}`: {error}")).with_line("use", error.hint());
        let titles: Vec<&str> = metrics.iter().map(|metric| metric.title.as_ref()).collect();
        let is_unknown = matches!(error, PromiseError::UnknownMetric { .. });
        if is_unknown { user_error.with_line("or", titles.join(", ")) } else { user_error }
    })?;
    if matches!(promise.relation, Relation::AtLeast | Relation::MoreThan) {
        return Err(cannot("is not one that a higher rate breaks"));
    }
    let bound = text[at..].trim_start_matches(['<', '=', '≤', ' ']).trim();
    let written = format!("{} {} {bound}", metric.name, promise.relation.sign());
    Ok(ObjectivePart { metric: metric.clone(), promise, written })
}

/// Finds the option that sets the rate.
fn rate_option(search: &SearchPlan, kind: &dyn TestKind) -> Result<&'static OptionDoc, UserError> {
    let is_rate = |option: &&OptionDoc| matches!(option.value, ValueKind::BitRate | ValueKind::Rate);
    let name = search.option.as_deref().unwrap_or(OPTION);
    kind.options().iter().filter(is_rate).find(|option| option.name == name).ok_or_else(|| {
        let rates: Vec<&str> = kind.options().iter().filter(is_rate).map(|option| option.name).collect();
        let user_error = invalid_search(format!(
            "`{}` has no option `{name}` that sets a rate, so no limit can be searched",
            kind.name()
        ));
        if rates.is_empty() {
            user_error
        } else {
            user_error.with_line("use", format!("option = one of {}", rates.join(", ")))
        }
    })
}

/// Parses a share such as `2.5%`.
pub(super) fn parse_share(text: &str, name: &str, range: std::ops::RangeInclusive<f64>) -> Result<f64, UserError> {
    share_of_percent(text).filter(|share| range.contains(share)).ok_or_else(|| {
        let (low, high) = (100.0 * range.start(), 100.0 * range.end());
        invalid_search(format!("{name}: `{text}` is not between {low}% and {high}%"))
    })
}

/// Parses a rate in the unit of its option.
fn parse_rate(text: &str, option: &OptionDoc) -> Option<LoadLevel> {
    let per_second = match option.value {
        ValueKind::BitRate => text.parse::<BitsPerSec>().ok()?.get(),
        _ => text.parse::<PerSec>().ok()?.get(),
    };
    LoadLevel::new(per_second)
}

impl SearchSpec {
    /// Parses a search whose defaults are filled in.
    pub(super) fn of(search: &SearchPlan, kind: &dyn TestKind) -> Result<Self, UserError> {
        let parts = parse_objective(&search.objective, kind.metrics())?;
        let option = rate_option(search, kind)?;
        let is_bits = option.value == ValueKind::BitRate;
        let achieved = curve::achieved_metric(kind.metrics(), is_bits).ok_or_else(|| {
            invalid_search(format!("`{}` has no metric for the achieved `{}`", kind.name(), option.name))
        })?;
        Ok(Self {
            objective: search.objective.clone(),
            parts,
            option,
            achieved: achieved.clone(),
            median: curve::median_metric(kind.metrics()).cloned(),
            bounds: bounds(search, option)?,
        })
    }

    /// Returns the objective for people: `p99 < 20.0 ms`.
    pub(super) fn objective_text(&self) -> String {
        let words = |ObjectivePart { metric, promise, .. }: &ObjectivePart| {
            format!("{} {} {}", metric.title, promise.relation.sign(), metric.show(promise.bound))
        };
        self.parts.iter().map(words).collect::<Vec<_>>().join(" and ")
    }

    /// Returns the options of the first trial.
    pub(super) fn first_options(&self, options: &Settings) -> Settings {
        self.options_at(options, self.bounds.start)
    }

    /// Returns the limit as a metric, so that a plan can promise it.
    pub(super) fn limit_metric(&self) -> Metric {
        curve::limit_metric(self.achieved.unit)
    }

    /// Returns the options of a trial at a load.
    pub(super) fn options_at(&self, options: &Settings, load: LoadLevel) -> Settings {
        let text = match self.option.value {
            ValueKind::BitRate => BitsPerSec::new(load.get()).map(BitsPerSec::exact),
            _ => PerSec::new(load.get()).map(PerSec::exact),
        };
        options.clone().with(self.option.name, text.expect("a load is a number above zero"))
    }
}

fn bounds(search: &SearchPlan, option: &OptionDoc) -> Result<SearchAim, UserError> {
    let of_unit = |(bits, events): (f64, f64)| if option.value == ValueKind::BitRate { bits } else { events };
    let known = |number: f64| LoadLevel::new(of_unit((number, number))).expect("the constants are above zero");
    let bound = |text: &Option<String>, name: &str| match text {
        Some(text) => parse_rate(text, option)
            .map(Some)
            .ok_or_else(|| invalid_search(format!("{name}: `{text}` is not a rate above zero"))),
        None => Ok(None),
    };
    let (low, high) = (bound(&search.low, "low")?, bound(&search.high, "high")?);
    let highest = high.unwrap_or_else(|| known(of_unit(HIGHEST)));
    let usual = known(of_unit(START));
    let start = low.unwrap_or(if usual > highest { highest } else { usual });
    if start > highest {
        return Err(invalid_search("low: the lowest rate is above the highest"));
    }
    let lowest = low.unwrap_or_else(|| known(of_unit(LOWEST)));
    let trials = search.trials.unwrap_or(TRIALS);
    if trials == 0 {
        return Err(invalid_search("trials: a search needs at least one"));
    }
    Ok(SearchAim {
        start,
        low: if lowest > highest { highest } else { lowest },
        high: highest,
        precision: parse_share(search.precision.as_deref().unwrap_or(PRECISION), "precision", 0.002..=0.5)?,
        confidence: parse_share(search.confidence.as_deref().unwrap_or(CONFIDENCE), "confidence", 0.5..=0.999)?,
        curve: CURVE.to_vec(),
        // The number of trials bounds the time, since the time of each trial is bounded.
        budget: SearchBudget { n_trials: trials, time: Nanos::MAX },
    })
}
