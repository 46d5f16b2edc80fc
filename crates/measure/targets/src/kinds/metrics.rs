//! What the tests of targets tell.

use fathom_model::{
    Better, Derivation, Metric, Side, Unit,
    metric::{MetricName, TargetsValue, UnitAndSense},
    names::{
        count,
        distribution::{CONNECT_TIME, RESPONSE_TIME, SERVICE_TIME},
    },
};

use crate::names::{counter, distribution};

const SPREAD_PAGE: &str = "docs/methods/spread.md";
const CONSISTENCY_PAGE: &str = "docs/methods/consistency.md";
const CONTINUITY_PAGE: &str = "docs/methods/continuity.md";

const CLIENT: Side = Side::Initiator;
const RATE: UnitAndSense = UnitAndSense(Unit::PerSec, Better::Higher);
const LESS: UnitAndSense = UnitAndSense(Unit::Ratio, Better::Lower);
const FEWER: UnitAndSense = UnitAndSense(Unit::Count, Better::Lower);

/// A page of docs/methods.
#[derive(Clone, Copy)]
struct Page(&'static str);

impl Page {
    const fn rate(self, name: MetricName, counter: &'static str) -> Metric {
        Metric::of(name, RATE, self.0, Derivation::rate(CLIENT, counter))
    }

    const fn time(self, name: MetricName, distribution: &'static str, q: f64) -> Metric {
        Metric::of(name, UnitAndSense::TIME, self.0, Derivation::quantile(CLIENT, distribution, q))
    }

    const fn share(self, name: MetricName, part: &'static str, whole: &'static str) -> Metric {
        Metric::of(name, LESS, self.0, Derivation::proportion((CLIENT, part), (CLIENT, whole)))
    }

    const fn total(self, name: MetricName, counter: &'static str) -> Metric {
        Metric::of(name, FEWER, self.0, Derivation::total(CLIENT, counter))
    }

    const fn targets(self, name: MetricName, sense: UnitAndSense, of: TargetsValue) -> Metric {
        Metric::of(name, sense, self.0, Derivation::Targets { of })
    }
}

const SPREAD: Page = Page(SPREAD_PAGE);
const CONSISTENCY: Page = Page(CONSISTENCY_PAGE);
const CONTINUITY: Page = Page(CONTINUITY_PAGE);

const NOT_EXPECTED: &str = "no targets are expected: --targets or --weights";
const NO_EVENT: &str = "no event: --at";
const ONE_TARGET: &str = "one target alone";

macro_rules! spread {
    ($unit:literal) => {
        &[
            SPREAD
                .targets(MetricName("variation_ratio", "variation"), LESS, TargetsValue::Variation)
                .unless(ONE_TARGET),
            SPREAD
                .targets(
                    MetricName("chi_square_p", "p of the spread"),
                    UnitAndSense(Unit::Ratio, Better::Neither),
                    TargetsValue::ChiSquareP,
                )
                .unless(ONE_TARGET),
            SPREAD
                .targets(MetricName("most_to_mean_ratio", "most to mean"), LESS, TargetsValue::MostToMean)
                .unless(ONE_TARGET),
            SPREAD.targets(
                MetricName("targets", "targets that answered"),
                UnitAndSense(Unit::Count, Better::Higher),
                TargetsValue::Answering,
            ),
            SPREAD
                .targets(MetricName("targets_missing", "targets missing"), FEWER, TargetsValue::Missing)
                .unless(NOT_EXPECTED),
            SPREAD.share(MetricName("failed_ratio", "failed"), counter::FAILED, counter::ATTEMPTS),
            SPREAD.rate(MetricName("answers_per_sec", $unit), count::CONNECTIONS),
            SPREAD.time(MetricName("latency_ns_p50", "answer p50"), SERVICE_TIME, 0.5),
            SPREAD.time(MetricName("latency_ns_p99", "answer p99"), SERVICE_TIME, 0.99),
            SPREAD.time(MetricName("latency_ns_max", "answer max"), SERVICE_TIME, 1.0),
            SPREAD.time(MetricName("connect_ns_p50", "connect p50"), CONNECT_TIME, 0.5).unless("datagrams"),
            SPREAD.time(MetricName("connect_ns_p99", "connect p99"), CONNECT_TIME, 0.99).unless("datagrams"),
        ]
    };
}

pub(super) const SPREAD_TCP: &[Metric] = spread!("connections");
pub(super) const SPREAD_UDP: &[Metric] = spread!("datagrams");

pub(super) const OF_CONSISTENCY: &[Metric] = &[
    CONSISTENCY.share(MetricName("moved_ratio", "flows moved"), counter::MOVED_FLOWS, counter::FLOWS),
    CONSISTENCY.total(MetricName("moves", "moves"), counter::MOVES),
    CONSISTENCY.total(MetricName("connections_broken", "connections broken"), counter::BROKEN),
    CONSISTENCY.share(MetricName("loss_ratio", "lost"), counter::LOST, counter::DUE),
    CONSISTENCY.rate(MetricName("answers_per_sec", "answers"), count::RECEIVED),
    CONSISTENCY.time(MetricName("latency_ns_p50", "p50"), RESPONSE_TIME, 0.5),
    CONSISTENCY.time(MetricName("latency_ns_p99", "p99"), RESPONSE_TIME, 0.99),
    CONSISTENCY.time(MetricName("latency_ns_max", "max"), RESPONSE_TIME, 1.0),
];

pub(super) const OF_CONTINUITY: &[Metric] = &[
    CONTINUITY.share(MetricName("loss_ratio", "lost"), counter::LOST, counter::DUE),
    CONTINUITY.time(MetricName("outage_ns_max", "longest outage"), distribution::OUTAGE, 1.0),
    CONTINUITY.time(MetricName("outage_ns_p50", "outage p50"), distribution::OUTAGE, 0.5),
    CONTINUITY.share(
        MetricName("outage_flows_ratio", "flows with an outage"),
        counter::FLOWS_WITH_OUTAGE,
        counter::FLOWS,
    ),
    CONTINUITY
        .targets(MetricName("own_ratio", "flows of lost targets (ideal)"), LESS, TargetsValue::Own)
        .unless(NO_EVENT),
    CONTINUITY
        .targets(MetricName("collateral_ratio", "other flows hurt"), LESS, TargetsValue::Collateral)
        .unless(NO_EVENT),
    CONTINUITY.share(MetricName("late_ratio", "late"), counter::LATE, counter::DUE),
    CONTINUITY.total(MetricName("connections_broken", "connections broken"), counter::BROKEN),
    CONTINUITY.total(MetricName("moves", "moves"), counter::MOVES),
    CONTINUITY.total(MetricName("duplicates", "duplicates"), count::DUPLICATES),
    CONTINUITY.total(MetricName("reordered", "reordered"), count::REORDERED),
    CONTINUITY.rate(MetricName("answers_per_sec", "answers"), count::RECEIVED),
    CONTINUITY.time(MetricName("latency_ns_p50", "p50"), RESPONSE_TIME, 0.5),
    CONTINUITY.time(MetricName("latency_ns_p99", "p99"), RESPONSE_TIME, 0.99),
    CONTINUITY.time(MetricName("latency_ns_max", "max"), RESPONSE_TIME, 1.0),
    CONTINUITY.time(MetricName("reconnect_ns_p50", "connect p50"), CONNECT_TIME, 0.5).unless("datagrams"),
];
