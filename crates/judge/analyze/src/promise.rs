//! Promises about metrics: read before anything starts, judged after the run.

use fathom_model::{
    Better, Confidence, Metric, Unit,
    finding::PromiseOutcome,
    settings::nearest,
    units::{BitsPerSec, Bytes, Nanos, PerSec, UnitError, approximate},
};

/// How the value must relate to the promised bound.
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
    pub relation: Relation,
    /// The bound in the metric's unit: bit/s, ns, a share from 0 to 1.
    pub bound: f64,
}

/// The reason why a promise cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PromiseError {
    /// The test has no metric of that name.
    #[error("there is no metric `{name}` to promise{}", nearest.as_ref().map_or(String::new(), |near| format!("; did you mean `{near}`?")))]
    UnknownMetric {
        name: String,
        /// The most similar name.
        nearest: Option<String>,
        /// All names that exist.
        known: Vec<String>,
    },
    /// The bound is not a quantity of the metric's unit.
    #[error("the promise `{text}` for `{metric}` cannot be read: {cause}")]
    Unit {
        metric: String,
        /// The unit of the metric.
        unit: Unit,
        /// The text of the promise.
        text: String,
        /// The parse error.
        cause: UnitError,
    },
    /// Neither higher nor lower is better for this metric, so a bare value promises nothing.
    #[error("the promise `{text}` for `{metric}` does not say whether more or less is meant")]
    NoRelation {
        metric: String,
        /// The text of the promise.
        text: String,
    },
}

impl PromiseError {
    /// Returns advice on what to write instead.
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

/// Finds the metric that a promise names: by its name, by its title, or as `requests/s` for `requests_per_sec`.
///
/// # Errors
/// Returns an error with the names of all metrics if none matches.
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

/// Reads `>= 10G`, `< 20ms`, `<= 0.1 %`. A bare value means at least or at most, depending on which direction is better.
///
/// # Errors
/// Returns an error that says what is wrong with the text; [`PromiseError::hint`] says what to write instead.
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

/// Reads `p99 < 20ms`: the name or the title of a metric, followed by a promise.
///
/// # Errors
/// Returns the errors of [`find`] and [`parse`]. Without a relation, the whole text is taken as a name.
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
    /// Returns the relation as typed.
    #[must_use]
    pub const fn sign(self) -> &'static str {
        match self {
            Self::AtLeast => ">=",
            Self::MoreThan => ">",
            Self::AtMost => "<=",
            Self::LessThan => "<",
        }
    }

    /// Returns the opposite relation, which breaks the promise.
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
    /// Judges a value. The outcome is open if the bound is strictly inside the confidence interval of the value.
    ///
    /// If the bound is exactly at an end of the interval, the value decides: no loss at all keeps a promise of no loss.
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
