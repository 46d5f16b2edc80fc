//! Test kinds that use the servers of other tools.

use fathom_engine::TestKind;

pub(crate) mod iperf2;
pub(crate) mod iperf3;
pub(crate) mod netperf;
mod own_server;
mod server_kind;

/// All test kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[
    &iperf3::TCP,
    &iperf3::UDP,
    &iperf2::TCP,
    &iperf2::UDP,
    &netperf::TCP_STREAM,
    &netperf::TCP_RR,
    &netperf::TCP_CRR,
    &netperf::UDP_STREAM,
    &netperf::UDP_RR,
];
