//! What was promised of a metric: read before anything starts, judged when everything is over.

use fathom_model::{
    Better, Confidence, Metric, Unit,
    finding::PromiseOutcome,
    settings::nearest,
    units::{BitsPerSec, Bytes, Nanos, PerSec, UnitError, approximate},
};

/// How a value must stand to the promised one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// `>=`
    AtLeast,
    /// `>`
    MoreThan,
    /// `<=`
    AtMost,
    /// `<`
    LessThan,
}

/// A promise in the unit of its metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Promise {
    /// How the value must stand to the bound.
    pub relation: Relation,
    /// The bound in the metric's unit: bit/s, ns, a share from 0 to 1.
    pub bound: f64,
}

/// Why a promise cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    /// The test has no metric of that name.
    #[error("there is no metric `{name}` to promise{}", nearest.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    UnknownMetric {
        /// The name that was given.
        name: String,
        /// The name that it resembles.
        nearest: Option<String>,
        /// All names that there are.
        known: Vec<String>,
    },
    /// The bound is not a quantity of the metric's unit.
    #[error("the promise `{text}` for `{metric}` cannot be read: {cause}")]
    Unit {
        /// The metric.
        metric: String,
        /// What it is counted in.
        unit: Unit,
        /// What was promised.
        text: String,
        /// What is wrong with it.
        cause: UnitError,
    },
    /// Neither more nor less of the metric is better, so a bare value promises nothing.
    #[error("the promise `{text}` for `{metric}` does not say whether more or less is meant")]
    NoRelation {
        /// The metric.
        metric: String,
        /// What was promised.
        text: String,
    },
}

impl PromiseError {
    /// What to write instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::UnknownMetric { known, .. } => format!("this test measures {}", known.join(", ")),
            Self::Unit { metric, unit, .. } => format!(
                "write a relation, a number and its unit, such as `{metric} {}`",
                match unit {
                    Unit::BitsPerSec => ">= 10G",
                    Unit::RequestsPerSec | Unit::FramesPerSec | Unit::PerSec | Unit::Count => ">= 20k",
                    Unit::Nanos => "< 20ms",
                    Unit::Bytes => "< 4KiB",
                    Unit::Ratio => "<= 0.1%",
                }
            ),
            Self::NoRelation { text, .. } => format!("write `>= {text}` or `<= {text}`"),
        }
    }
}

/// The metric that a promise names, by its name, by its title, or `requests/s` for `requests_per_sec`.
///
/// # Errors
/// Names the metrics that there are.
pub fn find<'a>(metrics: &'a [Metric], name: &str) -> Result<&'a Metric, PromiseError> {
    let rate = name.strip_suffix("/s").map(|thing| format!("{thing}_per_sec"));
    let named = |metric: &&Metric| {
        metric.name == name || metric.title.eq_ignore_ascii_case(name) || rate.as_deref() == Some(&*metric.name)
    };
    metrics.iter().find(named).ok_or_else(|| PromiseError::UnknownMetric {
        name: name.to_owned(),
        nearest: nearest(name, metrics.iter().map(|metric| metric.name.as_ref())),
        known: metrics.iter().map(|metric| metric.name.to_string()).collect(),
    })
}

/// Reads `>= 10G`, `< 20ms`, `<= 0.1 %`; a bare value means at least or at most, whichever is the good way.
///
/// # Errors
/// Says what is wrong with the text, and in [`PromiseError::hint`] what to write.
pub fn parse(text: &str, metric: &Metric) -> Result<Promise, PromiseError> {
    const RELATIONS: [(&str, Relation); 6] = [
        (">=", Relation::AtLeast),
        ("≥", Relation::AtLeast),
        ("<=", Relation::AtMost),
        ("≤", Relation::AtMost),
        (">", Relation::MoreThan),
        ("<", Relation::LessThan),
    ];
    let text = text.trim();
    let written = RELATIONS.iter().find_map(|(sign, relation)| Some((*relation, text.strip_prefix(sign)?)));
    let (relation, quantity) = match (written, metric.better) {
        (Some(written), _) => written,
        (None, Better::Higher) => (Relation::AtLeast, text),
        (None, Better::Lower) => (Relation::AtMost, text),
        (None, Better::Neither) => {
            return Err(PromiseError::NoRelation { metric: metric.name.to_string(), text: text.to_owned() });
        }
    };
    let unit =
        |cause| PromiseError::Unit { metric: metric.name.to_string(), unit: metric.unit, text: text.to_owned(), cause };
    Ok(Promise { relation, bound: quantity_of(quantity.trim(), metric.unit).map_err(unit)? })
}

/// Reads `p99 < 20ms`: a promise with the name or the title of its metric before it.
///
/// # Errors
/// As [`find`] and [`parse`] say; without a relation the whole text is taken for a name.
pub fn split<'a>(text: &str, metrics: &'a [Metric]) -> Result<(&'a Metric, Promise), PromiseError> {
    let at = text.find(['<', '>', '≤', '≥', '=']).unwrap_or(text.len());
    let metric = find(metrics, text[..at].trim())?;
    Ok((metric, parse(text[at..].trim_start_matches('='), metric)?))
}

fn quantity_of(text: &str, unit: Unit) -> Result<f64, UnitError> {
    Ok(match unit {
        Unit::BitsPerSec => text.parse::<BitsPerSec>()?.get(),
        Unit::RequestsPerSec | Unit::FramesPerSec | Unit::PerSec | Unit::Count => text.parse::<PerSec>()?.get(),
        Unit::Nanos => approximate(text.parse::<Nanos>()?.0),
        Unit::Bytes => approximate(text.parse::<Bytes>()?.0),
        Unit::Ratio => match text.strip_suffix('%') {
            Some(percent) => percent.trim().parse::<PerSec>()?.get() / 100.0,
            None => text.parse::<PerSec>()?.get(),
        },
    })
}

impl Relation {
    /// The sign as one types it.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::MoreThan => ">",
            Self::AtMost => "<=",
            Self::LessThan => "<",
        }
    }

    /// The sign of what breaks it.
    #[must_use]
    pub const fn broken_sign(self) -> &'static str {
        match self {
            Self::AtLeast => "<",
            Self::MoreThan => "<=",
            Self::AtMost => ">",
            Self::LessThan => ">=",
        }
    }
}

impl Promise {
    /// Whether a value keeps it; open when the bound lies strictly within the value's interval.
    ///
    /// A bound at the very end of an interval is decided by the value: no loss at all keeps a promise of none.
    #[must_use]
    pub fn judge(self, value: f64, confidence: Option<&Confidence>) -> PromiseOutcome {
        if confidence.is_some_and(|interval| interval.low < self.bound && self.bound < interval.high) {
            return PromiseOutcome::Open;
        }
        let kept = match self.relation {
            Relation::AtLeast => value >= self.bound,
            Relation::MoreThan => value > self.bound,
            Relation::AtMost => value <= self.bound,
            Relation::LessThan => value < self.bound,
        };
        if kept { PromiseOutcome::Kept } else { PromiseOutcome::Broken }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{loss, p999, throughput};

    #[test]
    fn promises_are_read_in_the_unit_of_their_metric() {
        let cases = [
            (">= 10G", throughput(), Relation::AtLeast, 1e10),
            ("10Gbit/s", throughput(), Relation::AtLeast, 1e10),
            ("< 20ms", p999(), Relation::LessThan, 2e7),
            ("300us", p999(), Relation::AtMost, 3e5),
            ("<= 0.1 %", loss(), Relation::AtMost, 0.001),
            ("≤0.1%", loss(), Relation::AtMost, 0.001),
            ("0", loss(), Relation::AtMost, 0.0),
        ];
        for (text, metric, relation, bound) in cases {
            assert_eq!(parse(text, &metric), Ok(Promise { relation, bound }), "{text}");
        }
    }

    #[test]
    fn a_promise_that_cannot_be_read_says_what_to_write() {
        let refused = parse(">= 20ms", &throughput()).unwrap_err();
        assert!(
            refused.to_string().starts_with("the promise `>= 20ms` for `throughput_bps` cannot be read"),
            "{refused}"
        );
        assert!(refused.hint().contains(">= 10G"));
        assert!(parse("< 3kg", &p999()).unwrap_err().hint().ends_with(" < 20ms`"), "in the metric's own unit");
        let neither = Metric { better: Better::Neither, ..throughput() };
        assert_eq!(parse("10G", &neither).unwrap_err().hint(), "write `>= 10G` or `<= 10G`");
    }

    #[test]
    fn a_promise_may_stand_behind_its_metric() {
        let metrics = [throughput(), loss(), p999()];
        let (metric, promise) = split(" p99.9<20ms", &metrics).unwrap();
        assert_eq!((metric, promise), (&metrics[2], Promise { relation: Relation::LessThan, bound: 2e7 }));
        assert!(matches!(split("loss", &metrics), Err(PromiseError::Unit { .. })));
        assert!(matches!(split("lost <= 1 %", &metrics), Err(PromiseError::UnknownMetric { .. })));
    }

    #[test]
    fn a_metric_is_found_by_name_and_by_title() {
        let metrics = [throughput(), loss()];
        assert_eq!(find(&metrics, "Goodput").unwrap().name, "throughput_bps");
        let refused = find(&metrics, "throughput_bsp").unwrap_err();
        assert!(refused.to_string().contains("did you mean `throughput_bps`?"), "{refused}");
    }

    #[test]
    fn a_promise_within_the_interval_is_open() {
        let promise = Promise { relation: Relation::AtLeast, bound: 10.0 };
        let interval = Confidence { low: 9.0, high: 11.5, level: 0.95, n_trials: 3 };
        assert_eq!(promise.judge(10.2, Some(&interval)), PromiseOutcome::Open);
        assert_eq!(promise.judge(10.2, None), PromiseOutcome::Kept);
        assert_eq!(promise.judge(9.9, None), PromiseOutcome::Broken);
    }

    #[test]
    fn no_loss_at_all_keeps_a_promise_of_none() {
        let promise = Promise { relation: Relation::AtMost, bound: 0.0 };
        let interval = Confidence { low: 0.0, high: 0.003, level: 0.95, n_trials: 3 };
        assert_eq!(promise.judge(0.0, Some(&interval)), PromiseOutcome::Kept);
        assert_eq!(promise.judge(0.001, Some(&interval)), PromiseOutcome::Broken);
    }
}
