//! Segments that were sent again, and the paths that lost them.

use fathom_model::{
    Bottleneck, Layer, Side,
    names::{
        host::{TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS},
        tcp,
    },
    record::FlowSample,
    units::{Nanos, ratio},
};

use crate::evidence::TestEvidence;

/// The least time after which a retransmission timer of TCP ends (`TCP_RTO_MIN` of Linux), unless a route or `tcp_rto_min_us` sets it shorter.
pub(crate) const TIMEOUT_MIN: Nanos = Nanos::from_millis(200);
/// A tail loss probe waits for 2 ms and two round trips at least (`TCP_TIMEOUT_MIN_US` in `tcp_schedule_loss_probe`; before Linux 6.7, for two ticks of
/// 1 ms or more), and for as long as a timer where a single segment is in flight.
pub(crate) const PROBE_MIN: Nanos = Nanos::from_millis(2);
/// The time until the first retransmission of a SYN (RFC 6298 section 2).
pub(crate) const SYN_TIMEOUT: Nanos = Nanos::from_secs(1);
/// At one segment in a thousand and above, loss affects the rate.
pub(crate) const LOSS_MATTERS: f64 = 1e-3;
/// The most segments that one counted drop holds, with room for ACKs that were lost with them: GSO joins 45 of 1,448 bytes in 64 KiB.
pub(crate) const SEGMENTS_OF_A_DROP: u64 = 100;
/// With fewer segments than this, a share is meaningless unless it is of enough segments that were sent again.
const SEGMENTS_MIN: u64 = 1000;
/// Of so many, chance changes a share by no more than a third (one standard deviation of a Poisson count).
const RESENT_MIN: u64 = 10;

/// Returns the host that sent the largest share of its segments again, with that share.
pub(crate) fn most_resent<'a>(seen: &TestEvidence<'a>) -> Option<(&'a str, f64)> {
    all_resent(seen).into_iter().next()
}

/// Returns the hosts with the shares of their segments that they sent again, the largest first.
pub(crate) fn all_resent<'a>(seen: &TestEvidence<'a>) -> Vec<(&'a str, f64)> {
    let share = |host: &'a str| {
        let (again, all) = resent_by(seen, host);
        ratio(again, all).filter(|_| all >= SEGMENTS_MIN || again >= RESENT_MIN)
    };
    let mut all: Vec<_> = seen.hosts_of_tcp().filter_map(|host| Some((host, share(host)?))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

/// Returns the segments that a host sent again, and all that it sent: by the counts of the host, or by those of the connections of the test if the host
/// has far more, which are those of others.
pub(crate) fn resent_by(seen: &TestEvidence<'_>, host: &str) -> (u64, u64) {
    let (again, new) = (seen.growth(host, TCP_RETRANS_SEGMENTS, None), seen.growth(host, TCP_OUT_SEGMENTS, None));
    let has_others = |own: &(u64, u64)| again > 2 * own.0 + RESENT_MIN;
    // Segments that only repeat are no sent ones there (RFC 4022, tcpOutSegs).
    of_connections(seen, host).filter(has_others).unwrap_or((again, new + again))
}

/// Returns the segments that the connections of a stream sent again from a host, and all that they sent; `None` if they were not all watched.
fn of_connections(seen: &TestEvidence<'_>, host: &str) -> Option<(u64, u64)> {
    let side = [Side::Initiator, Side::Responder].into_iter().find(|side| seen.host_of(*side) == Some(host))?;
    let is_stream = seen.test.layer == Layer::Tcp && seen.test.links.is_empty() && seen.one_way().is_some();
    let flows: Vec<_> = seen.measured_flows(side).collect();
    let asked = seen.test.options.count("flows").filter(|_| is_stream)?;
    let is_whole = flows.len() as u64 == asked.saturating_mul(seen.trials().len() as u64);
    let sum = |name: &str| -> Option<u64> {
        let of_flow = |samples: &[FlowSample]| {
            let (first, last) = (samples.first()?.values.get(name)?, samples.last()?.values.get(name)?);
            Some(last.saturating_sub(*first))
        };
        flows.iter().map(|(_, samples)| of_flow(samples)).sum()
    };
    Some((sum(tcp::RETRANS_TOTAL)?, sum(tcp::SEGMENTS_OUT)?)).filter(|_| is_whole)
}

/// Returns the segments that the ends of a test sent again, first ones among them.
pub(crate) fn n_resent(seen: &TestEvidence<'_>) -> u64 {
    seen.hosts_of_tcp().map(|host| resent_by(seen, host).0).sum()
}

/// Returns true if most connections of a test share a full path whose queue overflows. What arrives behind a lost segment fills the window and
/// the buffers of a connection then, so that these explain nothing.
pub(crate) fn path_overflows(seen: &TestEvidence<'_>) -> bool {
    let flows = &seen.test.flows;
    let n_queued = flows.iter().filter(|flow| flow.held_by == Bottleneck::Queue).count();
    let sends = |host: &str| flows.iter().any(|flow| flow.sender == host);
    let is_lossy = || most_resent(seen).is_some_and(|(host, share)| sends(host) && share > LOSS_MATTERS);
    n_queued > 0 && 2 * n_queued >= flows.len() && is_lossy()
}
