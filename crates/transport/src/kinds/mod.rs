//! What layer 4 can run: one file per kind.

use std::borrow::Cow;

use fathom_engine::TestKind;
use fathom_model::{
    Side,
    metric::{Better, Derivation, Metric, Unit},
};

mod tcp_crr;
mod tcp_rr;
mod tcp_stream;
mod udp_stream;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] =
    &[&tcp_stream::UP, &tcp_stream::DOWN, &tcp_rr::TcpRr, &tcp_crr::TcpCrr, &udp_stream::UdpStream];

/// The name and the title of a metric.
#[derive(Clone, Copy)]
struct Named(&'static str, &'static str);

/// What one of a metric is, and which way of it is good.
#[derive(Clone, Copy)]
struct Measure(Unit, Better);

const LATENCY: Measure = Measure(Unit::Nanos, Better::Lower);

const fn metric(
    Named(name, title): Named,
    Measure(unit, better): Measure,
    source: &'static str,
    from: Derivation,
) -> Metric {
    Metric { name: Cow::Borrowed(name), title: Cow::Borrowed(title), unit, better, source: Cow::Borrowed(source), from }
}

const fn rate(side: Side, counter: &'static str) -> Derivation {
    Derivation::Rate { side, counter: Cow::Borrowed(counter) }
}

const fn quantile(side: Side, distribution: &'static str, q: f64) -> Derivation {
    Derivation::Quantile { side, distribution: Cow::Borrowed(distribution), q }
}

const fn total(side: Side, counter: &'static str) -> Derivation {
    Derivation::Total { side, counter: Cow::Borrowed(counter) }
}

const fn cost(side: Side, counter: &'static str) -> Derivation {
    Derivation::Cost { side, counter: Cow::Borrowed(counter) }
}

const fn of(side: Side, counter: &'static str) -> (Side, Cow<'static, str>) {
    (side, Cow::Borrowed(counter))
}
