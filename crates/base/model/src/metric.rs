//! What can be measured, in which unit, by which definition.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{
    role::Side,
    units::{BitsPerSec, Bytes, Nanos, PerSec, approximate, grouped, percent, rounded, significant},
};

/// A layer of the network, as the ladder of an evaluation shows it, from the top down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Users that follow a script.
    App,
    /// Requests of HTTP.
    Http,
    /// Streams, transactions and connections of TCP.
    Tcp,
    /// Datagrams of UDP.
    Udp,
    /// Ethernet frames.
    Frames,
    /// Single packets of IP and what comes back for them.
    Path,
}

impl Layer {
    /// The lower-case word that stands in tables, plans and JSON.
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

/// What one of something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bits per second; the name of the metric says of which layer.
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
    /// What one counted thing adds to a rate of this unit: counters count bytes, and rates of them are in bits.
    #[must_use]
    pub const fn per_counted(self) -> f64 {
        if matches!(self, Self::BitsPerSec) { 8.0 } else { 1.0 }
    }

    /// A value of this unit as people read it: `9.10 Gbit/s`, `3.10 Mpps`, `0.31 %`.
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

/// Which way of a metric is the good one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better, as for a throughput.
    Higher,
    /// Less is better, as for a latency or a loss.
    Lower,
    /// Neither: the value describes.
    Neither,
}

/// How a value follows from what the two sides of a trial recorded.
///
/// Records hold counts, times and distributions; every rate, quantile and share is derived from them by this description, so
/// that the analysis needs to know no kind of test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Derivation {
    /// A counter's growth over the common window, per second; times eight where the unit is bit/s and the counter bytes.
    Rate {
        /// Which side counted.
        side: Side,
        /// Its counter in the timeline.
        counter: Cow<'static, str>,
    },
    /// The same counter's growth on both sides together, for what goes both ways at once.
    RateOfBoth {
        /// The counter in the timelines.
        counter: Cow<'static, str>,
    },
    /// A quantile of a distribution, merged over the trials.
    Quantile {
        /// Which side recorded it.
        side: Side,
        /// The name of the distribution.
        distribution: Cow<'static, str>,
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
    /// How many spans as long as a quantile of a distribution of times fit into a minute.
    PerMinute {
        /// Which side recorded it.
        side: Side,
        /// The name of the distribution.
        distribution: Cow<'static, str>,
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
    /// A counter's total over the whole trial.
    Total {
        /// Which side counted.
        side: Side,
        /// Its counter among the totals.
        counter: Cow<'static, str>,
    },
    /// One total as a share of another, which may be the other side's.
    Share {
        /// The side and the counter of the part.
        part: (Side, Cow<'static, str>),
        /// The side and the counter of the whole.
        whole: (Side, Cow<'static, str>),
    },
    /// One total as a share of another whose units fail or hold one by one, so that their number alone makes an interval.
    Proportion {
        /// The side and the counter of the part.
        part: (Side, Cow<'static, str>),
        /// The side and the counter of the whole.
        whole: (Side, Cow<'static, str>),
    },
    /// One total over another, which may be less than it: the mean over the trials.
    Quotient {
        /// The side and the counter of what is divided.
        of: (Side, Cow<'static, str>),
        /// The side and the counter that it is divided by.
        over: (Side, Cow<'static, str>),
    },
    /// What of a total is missing in another: `1 − arrived / sent`, which may be negative when things are duplicated.
    Missing {
        /// The side and the counter of what was sent.
        sent: (Side, Cow<'static, str>),
        /// The side and the counter of what arrived.
        arrived: (Side, Cow<'static, str>),
    },
    /// Processor time of one side's own threads per unit of its work, in nanoseconds.
    Cost {
        /// Whose processor time.
        side: Side,
        /// The total that is the work.
        counter: Cow<'static, str>,
    },
    /// Work of all cores of one side's host per unit of its work while all sides measured, in nanoseconds.
    ///
    /// The unit of work is a GiB where the counter counts bytes. Softirqs, the kernel's own threads and other programs are in it; ends that share a machine have the same value.
    HostCost {
        /// Whose host.
        side: Side,
        /// The counter in the timeline that is the work.
        counter: Cow<'static, str>,
    },
    /// What scripted users did in the measured part (`docs/methods/steps.md`).
    Users {
        /// Which value of it.
        of: UsersValue,
    },
    /// What happened at one step of scripted users in the measured part (`docs/methods/steps.md`).
    Step {
        /// The name of the step.
        step: Cow<'static, str>,
        /// Which value of it.
        of: StepValue,
    },
    /// The highest rate of a search that keeps its objective.
    Limit,
    /// A result of a benchmark, by the name of its metric.
    Benchmark,
}

/// What can be said of the users of a script.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsersValue {
    /// Visits that began, per second.
    Begun,
    /// Visits that came to the end of the script, per second.
    Finished,
    /// Visits that were given up, per second.
    GaveUp,
    /// Visits that were given up, as a share of those that ended.
    GaveUpShare,
    /// What failed at any step, as a share of what ended.
    Errors,
    /// A quantile of the times of all steps together, without transactions.
    Time {
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
}

/// What can be said of one step of a script.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepValue {
    /// What failed, as a share of what ended.
    Errors,
    /// What went as expected, per second.
    Passed,
    /// A quantile of the times of what went as expected, merged over the trials.
    Time {
        /// The quantile, 0 to 1; 1 is the maximum.
        q: f64,
    },
}

/// The tables of kinds are constants, and so are what stands in them.
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

    /// Spans as long as a quantile, per minute.
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

    /// One total over another.
    #[must_use]
    pub const fn quotient(of: (Side, &'static str), over: (Side, &'static str)) -> Self {
        Self::Quotient { of: (of.0, Cow::Borrowed(of.1)), over: (over.0, Cow::Borrowed(over.1)) }
    }

    /// What of a total is missing in another.
    #[must_use]
    pub const fn missing(sent: (Side, &'static str), arrived: (Side, &'static str)) -> Self {
        Self::Missing { sent: (sent.0, Cow::Borrowed(sent.1)), arrived: (arrived.0, Cow::Borrowed(arrived.1)) }
    }

    /// Processor time per unit of work.
    #[must_use]
    pub const fn cost(side: Side, counter: &'static str) -> Self {
        Self::Cost { side, counter: Cow::Borrowed(counter) }
    }

    /// Work of a whole host per unit of work.
    #[must_use]
    pub const fn host_cost(side: Side, counter: &'static str) -> Self {
        Self::HostCost { side, counter: Cow::Borrowed(counter) }
    }
}

/// Something measured, with where its definition stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Metric {
    /// Its name, most significant word first, unit last: `latency_ns_p99`, `throughput_bps`.
    pub name: Cow<'static, str>,
    /// What people call it: `p99`, `goodput`.
    pub title: Cow<'static, str>,
    /// What one of it is.
    pub unit: Unit,
    /// Which way is good.
    pub better: Better,
    /// Where the definition comes from: `RFC 2544 section 26.1`, or a page of docs/methods such as `docs/methods/tcp_rr.md`.
    pub source: Cow<'static, str>,
    /// How it follows from the records.
    pub from: Derivation,
    /// Why there is none where no side counted it: such a value does not apply, and is not told as missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inapplicable: Option<Cow<'static, str>>,
}

/// The name of a metric in results, and what people call it.
#[derive(Debug, Clone, Copy)]
pub struct MetricName(pub &'static str, pub &'static str);

/// What one of a metric is, and which way of it is good.
#[derive(Debug, Clone, Copy)]
pub struct UnitAndSense(pub Unit, pub Better);

impl UnitAndSense {
    /// A time, the shorter the better.
    pub const TIME: Self = Self(Unit::Nanos, Better::Lower);
}

impl Metric {
    /// A row of a kind's table.
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

    /// A row of a kind's table that only some tests of the kind can have, with why the others have none.
    #[must_use]
    pub const fn unless(mut self, why: &'static str) -> Self {
        // Constants drop nothing, so what was there is forgotten.
        std::mem::forget(self.inapplicable.replace(Cow::Borrowed(why)));
        self
    }

    /// A value of this metric as people read it.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        self.unit.show(value)
    }
}

/// The share of `limit` that `value` is, whatever the unit; nothing for a limit of zero.
#[must_use]
pub fn used(value: f64, limit: f64) -> Option<f64> {
    (limit > 0.0 && value.is_finite()).then_some(value / limit)
}

/// The mean of a count per another, or nothing when there is none of the other.
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
