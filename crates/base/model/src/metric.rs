//! Metrics with their units and definitions.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    role::Side,
    units::{BitsPerSec, Bytes, Nanos, PerSec, approximate, grouped, percent, rounded, significant},
};

/// A layer of the network, in the order of an evaluation's ladder, from the top down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Users that follow a script.
    App,
    /// HTTP requests.
    Http,
    /// TCP streams, transactions and connections.
    Tcp,
    /// UDP datagrams.
    Udp,
    /// Ethernet frames.
    Frames,
    /// Single IP packets and the replies to them.
    Path,
}

impl Layer {
    /// All layers, from the top down.
    pub const ALL: [Self; 6] = [Self::App, Self::Http, Self::Tcp, Self::Udp, Self::Frames, Self::Path];

    /// The command that measures it: `fathom packet`.
    #[must_use]
    pub const fn command(self) -> &'static str {
        match self {
            Self::Frames => "packet",
            Self::Path => "probe",
            _ => self.name(),
        }
    }

    /// The lower-case name used in tables, plans and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Http => "http",
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Frames => "frames",
            Self::Path => "path",
        }
    }
}

/// The unit of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bits per second; the name of the metric states the layer.
    BitsPerSec,
    /// Requests per second.
    RequestsPerSec,
    /// Frames or datagrams per second.
    FramesPerSec,
    /// Other countable things per second.
    PerSec,
    /// Nanoseconds.
    Nanos,
    /// Bytes of eight bits.
    Bytes,
    /// Countable things.
    Count,
    /// A share of a whole, 0 to 1.
    Ratio,
}

impl Unit {
    /// The factor from one count to this unit: counters count bytes, but their rates are in bits.
    #[must_use]
    pub const fn per_counted(self) -> f64 {
        if matches!(self, Self::BitsPerSec) { 8.0 } else { 1.0 }
    }

    /// Formats a value of this unit for people, such as `9.10 Gbit/s`, `3.10 Mpps`, `0.31 %`.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        let per_sec = |thing: &str| match PerSec::new(value) {
            Some(rate) => format!("{}{thing}", rate.to_string().trim_end_matches("/s")),
            None => significant(value),
        };
        match self {
            Self::BitsPerSec => BitsPerSec::new(value).map_or_else(|| significant(value), |rate| rate.to_string()),
            Self::RequestsPerSec => {
                let text = per_sec("");
                format!(
                    "{}{}req/s",
                    text,
                    if text.ends_with(char::is_alphabetic) || !text.ends_with(' ') { " " } else { "" }
                )
            }
            Self::FramesPerSec => per_sec("pps"),
            Self::PerSec => per_sec("/s"),
            Self::Nanos => Nanos(rounded(value)).to_string(),
            Self::Bytes => Bytes(rounded(value)).to_string(),
            Self::Count if value.fract() == 0.0 => grouped(rounded(value)),
            Self::Count => significant(value),
            Self::Ratio => percent(value),
        }
    }
}

/// The direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better, as for a throughput.
    Higher,
    /// Less is better, as for a latency or a loss.
    Lower,
    /// Neither: the value is only descriptive.
    Neither,
}

/// How a value is derived from the records of the two sides of a trial.
///
/// Records hold counts, times and distributions. Every rate, quantile and share is derived from them by this description, so the analysis
/// does not depend on the kind of test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Derivation {
    /// A counter's growth over the common window, per second; times eight if the unit is bit/s and the counter counts bytes.
    Rate {
        /// The side that counted.
        side: Side,
        /// The counter in its timeline.
        counter: Cow<'static, str>,
    },
    /// The growth of the same counter on both sides together, for traffic in both directions at once.
    RateOfBoth {
        /// The counter in the timelines.
        counter: Cow<'static, str>,
    },
    /// A quantile of a distribution, merged over the trials.
    Quantile {
        /// The side that recorded it.
        side: Side,
        /// The name of the distribution.
        distribution: Cow<'static, str>,
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
    /// How often a quantile of a distribution of times fits into a minute.
    PerMinute {
        /// The side that recorded it.
        side: Side,
        /// The name of the distribution.
        distribution: Cow<'static, str>,
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
    /// A counter's total over the whole trial.
    Total {
        /// The side that counted.
        side: Side,
        /// The counter among its totals.
        counter: Cow<'static, str>,
    },
    /// One total as a share of another, which may be the other side's.
    Share {
        /// The side and the counter of the part.
        part: (Side, Cow<'static, str>),
        /// The side and the counter of the whole.
        whole: (Side, Cow<'static, str>),
    },
    /// One total as a share of another whose units fail independently of each other, so that the counts alone give an interval.
    Proportion {
        /// The side and the counter of the part.
        part: (Side, Cow<'static, str>),
        /// The side and the counter of the whole.
        whole: (Side, Cow<'static, str>),
    },
    /// One total divided by another, which may be smaller: the mean over the trials.
    Quotient {
        /// The side and the counter of the dividend.
        of: (Side, Cow<'static, str>),
        /// The side and the counter of the divisor.
        over: (Side, Cow<'static, str>),
    },
    /// The missing share of a total: `1 − arrived / sent`. It may be negative if packets are duplicated.
    Missing {
        /// The side and the counter of the sent units.
        sent: (Side, Cow<'static, str>),
        /// The side and the counter of the arrived units.
        arrived: (Side, Cow<'static, str>),
    },
    /// CPU time of one side's own threads per unit of its work, in nanoseconds.
    Cost {
        /// The side whose CPU time counts.
        side: Side,
        /// The total that measures the work.
        counter: Cow<'static, str>,
    },
    /// CPU time of all cores of one side's host per unit of its work while all sides measured, in nanoseconds.
    ///
    /// The unit of work is a GiB if the counter counts bytes. Softirqs, kernel threads and other programs are included. Ends that share a
    /// machine have the same value.
    HostCost {
        /// The side whose host counts.
        side: Side,
        /// The counter in the timeline that measures the work.
        counter: Cow<'static, str>,
    },
    /// CPU time of all cores of a device between the two ends per unit of a side's work while all sides measured, in nanoseconds.
    ///
    /// The unit of work is a GiB if the counter counts bytes.
    DeviceCost {
        /// The host of the device.
        host: Cow<'static, str>,
        /// The side that counts the work.
        side: Side,
        /// The counter in its timeline.
        counter: Cow<'static, str>,
    },
    /// A value of scripted users in the measured phase (`docs/methods/steps.md`).
    Users {
        /// The selected value.
        of: UsersValue,
    },
    /// A value of one step of scripted users in the measured phase (`docs/methods/steps.md`).
    Step {
        /// The name of the step.
        step: Cow<'static, str>,
        /// The selected value.
        of: StepValue,
    },
    /// The highest rate of a search that keeps its objective.
    Limit,
    /// A result of a benchmark, by the name of its metric.
    Benchmark,
}

/// The values available for the users of a script.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsersValue {
    /// Visits that began, per second.
    Begun,
    /// Visits that finished the script, per second.
    Finished,
    /// Visits that gave up, per second.
    GaveUp,
    /// Visits that gave up, as a share of the visits that ended.
    GaveUpShare,
    /// Failures at any step, as a share of all ended steps.
    Errors,
    /// A quantile of the times of all steps together, without transactions.
    Time {
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
}

/// The values available for one step of a script.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepValue {
    /// Failures as a share of all ended attempts.
    Errors,
    /// Attempts with the expected result, per second.
    Passed,
    /// A quantile of the times of attempts with the expected result, merged over the trials.
    Time {
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
}

/// Const constructors, because the tables of kinds are constants.
impl Derivation {
    /// A counter's growth per second.
    #[must_use]
    pub const fn rate(side: Side, counter: &'static str) -> Self {
        Self::Rate { side, counter: Cow::Borrowed(counter) }
    }

    /// A counter's growth per second on both sides together.
    #[must_use]
    pub const fn rate_of_both(counter: &'static str) -> Self {
        Self::RateOfBoth { counter: Cow::Borrowed(counter) }
    }

    /// A quantile of a distribution.
    #[must_use]
    pub const fn quantile(side: Side, distribution: &'static str, q: f64) -> Self {
        Self::Quantile { side, distribution: Cow::Borrowed(distribution), q }
    }

    /// How often a quantile of a distribution of times fits into a minute.
    #[must_use]
    pub const fn per_minute(side: Side, distribution: &'static str, q: f64) -> Self {
        Self::PerMinute { side, distribution: Cow::Borrowed(distribution), q }
    }

    /// A counter's total.
    #[must_use]
    pub const fn total(side: Side, counter: &'static str) -> Self {
        Self::Total { side, counter: Cow::Borrowed(counter) }
    }

    /// One total as a share of another.
    #[must_use]
    pub const fn share(part: (Side, &'static str), whole: (Side, &'static str)) -> Self {
        Self::Share { part: (part.0, Cow::Borrowed(part.1)), whole: (whole.0, Cow::Borrowed(whole.1)) }
    }

    /// One total as a share of another, with the interval of a proportion.
    #[must_use]
    pub const fn proportion(part: (Side, &'static str), whole: (Side, &'static str)) -> Self {
        Self::Proportion { part: (part.0, Cow::Borrowed(part.1)), whole: (whole.0, Cow::Borrowed(whole.1)) }
    }

    /// One total divided by another.
    #[must_use]
    pub const fn quotient(of: (Side, &'static str), over: (Side, &'static str)) -> Self {
        Self::Quotient { of: (of.0, Cow::Borrowed(of.1)), over: (over.0, Cow::Borrowed(over.1)) }
    }

    /// The share of one total that is missing in another.
    #[must_use]
    pub const fn missing(sent: (Side, &'static str), arrived: (Side, &'static str)) -> Self {
        Self::Missing { sent: (sent.0, Cow::Borrowed(sent.1)), arrived: (arrived.0, Cow::Borrowed(arrived.1)) }
    }

    /// CPU time per unit of work.
    #[must_use]
    pub const fn cost(side: Side, counter: &'static str) -> Self {
        Self::Cost { side, counter: Cow::Borrowed(counter) }
    }

    /// CPU time of a whole host per unit of work.
    #[must_use]
    pub const fn host_cost(side: Side, counter: &'static str) -> Self {
        Self::HostCost { side, counter: Cow::Borrowed(counter) }
    }
}

/// A metric with a reference to its definition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Metric {
    /// Its name, most significant word first, unit last: `latency_ns_p99`, `throughput_bps`.
    pub name: Cow<'static, str>,
    /// The name shown to people: `p99`, `goodput`.
    pub title: Cow<'static, str>,
    /// The unit of the value.
    pub unit: Unit,
    /// The direction in which it improves.
    pub better: Better,
    /// The source of the definition: `RFC 2544 section 26.1`, or a page of docs/methods such as `docs/methods/tcp_rr.md`.
    pub source: Cow<'static, str>,
    /// How it is derived from the records.
    pub from: Derivation,
    /// The reason why the value does not exist if no side counted it: such a value does not apply and is not reported as missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inapplicable: Option<Cow<'static, str>>,
}

/// The name of a metric in results, and the name shown to people.
#[derive(Debug, Clone, Copy)]
pub struct MetricName(pub &'static str, pub &'static str);

/// The unit of a metric and the direction in which it improves.
#[derive(Debug, Clone, Copy)]
pub struct UnitAndSense(pub Unit, pub Better);

impl UnitAndSense {
    /// A time; shorter is better.
    pub const TIME: Self = Self(Unit::Nanos, Better::Lower);
}

impl Metric {
    /// A row in a kind's table.
    #[must_use]
    pub const fn of(
        MetricName(name, title): MetricName,
        UnitAndSense(unit, better): UnitAndSense,
        source: &'static str,
        from: Derivation,
    ) -> Self {
        let (name, title, source) = (Cow::Borrowed(name), Cow::Borrowed(title), Cow::Borrowed(source));
        Self { name, title, unit, better, source, from, inapplicable: None }
    }

    /// Marks a row that applies only to some tests of the kind, with the reason why the others lack it.
    #[must_use]
    pub const fn unless(mut self, why: &'static str) -> Self {
        // Constants cannot run destructors, so the old value is forgotten.
        std::mem::forget(self.inapplicable.replace(Cow::Borrowed(why)));
        self
    }

    /// Formats a value of this metric for people.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        self.unit.show(value)
    }
}

/// The ratio of `value` to `limit`, in any unit; `None` for a limit of zero.
#[must_use]
pub fn used(value: f64, limit: f64) -> Option<f64> {
    (limit > 0.0 && value.is_finite()).then_some(value / limit)
}

/// One count divided by another; `None` if the divisor is zero.
#[must_use]
pub fn per(total: u64, units: u64) -> Option<f64> {
    (units > 0).then(|| approximate(total) / approximate(units))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_people_of_the_field_write_them() {
        let cases = [
            (Unit::BitsPerSec, 9.1e9, "9.10 Gbit/s"),
            (Unit::FramesPerSec, 3.1e6, "3.10 Mpps"),
            (Unit::FramesPerSec, 800.0, "800 pps"),
            (Unit::RequestsPerSec, 182_000.0, "182 k req/s"),
            (Unit::RequestsPerSec, 182.0, "182 req/s"),
            (Unit::PerSec, 38_000.0, "38.0 k/s"),
            (Unit::Nanos, 48_200.0, "48.2 µs"),
            (Unit::Ratio, 0.0031, "0.31 %"),
            (Unit::Count, 41_200_000.0, "41,200,000"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(unit.show(value), text);
        }
    }
}
