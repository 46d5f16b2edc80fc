//! What layer 4 can run: one file per kind.

use fathom_engine::TestKind;
use fathom_model::metric::{Better, Measure, Unit};

mod tcp_crr;
mod tcp_loaded;
mod tcp_rfc6349;
mod tcp_rr;
mod tcp_stream;
mod udp_stream;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[
    &tcp_stream::UP,
    &tcp_stream::DOWN,
    &tcp_stream::BOTH,
    &tcp_loaded::TcpLoaded,
    &tcp_rfc6349::TcpRfc6349,
    &tcp_rr::TcpRr,
    &tcp_rr::TcpRrOpen,
    &tcp_crr::TcpCrr,
    &tcp_crr::TcpCc,
    &udp_stream::UdpStream,
];

const LATENCY: Measure = Measure(Unit::Nanos, Better::Lower);
