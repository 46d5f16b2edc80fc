//! The kinds of layer 4, one file per kind.

use fathom_engine::TestKind;

mod rr;
mod tcp_crr;
mod tcp_loaded;
mod tcp_rfc6349;
mod tcp_stream;
mod udp_stream;

/// All kinds of this layer.
pub const KINDS: &[&dyn TestKind] = &[
    &tcp_stream::UP,
    &tcp_stream::DOWN,
    &tcp_stream::BOTH,
    &rr::TCP,
    &rr::TCP_OPEN,
    &tcp_crr::TcpCrr,
    &tcp_crr::TcpCc,
    &tcp_loaded::TcpLoaded,
    &tcp_rfc6349::UP,
    &tcp_rfc6349::DOWN,
    &udp_stream::UP,
    &udp_stream::DOWN,
    &rr::UDP,
    &rr::UDP_OPEN,
];
