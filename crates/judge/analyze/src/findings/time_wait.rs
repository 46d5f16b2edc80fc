//! A host had no room for more connections in TIME-WAIT.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::host as counter,
    units::{Nanos, grouped},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// Looks for connections that were closed without TIME-WAIT, because `net.ipv4.tcp_max_tw_buckets` was reached.
///
/// It is always a remark. The kernel frees such a connection at once (`tcp_time_wait` in `net/ipv4/tcp_minisocks.c`), which costs no rate; a
/// late segment of the connection is no longer recognized (RFC 9293 section 3.6.1).
pub(crate) struct TimeWaitOverflow;

impl FindingRule for TimeWaitOverflow {
    fn id(&self) -> &'static str {
        "time-wait-overflow"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::Tcp | Layer::Http | Layer::App) {
            return Vec::new();
        }
        let grown = seen.hosts().map(|host| (host, seen.growth(host, counter::TCP_TIME_WAIT_OVERFLOWS, None)));
        let on_host = |(host, n): (&str, u64)| {
            let title = format!(
                "{host} closed {} connections without TIME-WAIT: net.ipv4.tcp_max_tw_buckets was reached, which costs no rate",
                grouped(n)
            );
            let evidence = counter_evidence(host, counter::TCP_TIME_WAIT_OVERFLOWS, n);
            seen.finding(self.id(), Severity::Remark, "time-wait", title).evidence([evidence]).next(next(seen, host, n))
        };
        grown.filter(|(_, n)| *n > 0).map(on_host).collect()
    }
}

const MAX_TW_BUCKETS: &str = "net.ipv4.tcp_max_tw_buckets";
/// How long Linux keeps a connection in TIME-WAIT (`TCP_TIMEWAIT_LEN`, include/net/tcp.h).
const TIME_WAIT: Nanos = Nanos::from_secs(60);
/// The most that Linux allows by itself, however much memory there is: half of a hash table of 524,288 (`tcp_init` and `tcp_sk_init`).
const MOST_BY_DEFAULT: u64 = 262_144;

/// Suggests room for what a host closes within the time of TIME-WAIT, but no more than the kernel takes by itself on a large machine; if a host has
/// more already, twice as much.
///
/// Not on the side that opens connections: there each one that waits keeps a local port from the next one to the same server.
fn next(seen: &TestEvidence<'_>, host: &str, n_without: u64) -> Option<NextStep> {
    if seen.host_of(Side::Initiator) == Some(host) {
        return None;
    }
    let now: u64 = seen.environment(host)?.get("sysctl", MAX_TW_BUCKETS)?.parse().ok()?;
    let time = seen.sampled_time(host)?;
    let closed = n_without.saturating_mul(TIME_WAIT.0.div_ceil(time.0));
    let most = MOST_BY_DEFAULT.max(now.saturating_mul(2));
    let enough = now.saturating_add(closed).min(most).checked_next_power_of_two().map_or(most, |n| n.min(most));
    Some(
        NextStep::new(format!("sysctl -w {MAX_TW_BUCKETS}={enough}"))
            .on(host)
            .expected("recognize late segments of more connections, for about a quarter of a KiB each"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn connections_without_time_wait_are_a_remark_and_hold_nothing_back() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        assert_eq!(builder.finding("time-wait-overflow"), None);
        builder.host_counter("target", (counter::TCP_TIME_WAIT_OVERFLOWS, ""), 42_198);
        let finding = builder.finding("time-wait-overflow").unwrap();
        assert_eq!(finding.severity, Severity::Remark);
        assert!(finding.title.starts_with("target closed 42,198 connections without TIME-WAIT"), "{}", finding.title);
        assert_eq!(finding.next, None, "nobody knows how many there may be now");
    }

    #[test]
    fn room_for_a_minute_of_connections_is_suggested_and_no_more_than_a_large_machine_has() {
        for (now, n, expected) in
            [("10", 42_198, "262144"), ("1000", 100, "8192"), ("262144", 42_198, "524288"), ("400000", 9, "524288")]
        {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 100);
            builder.host_counter("target", (counter::TCP_TIME_WAIT_OVERFLOWS, ""), n);
            let target = &mut builder.run.hosts.get_mut("target").unwrap().environment;
            target.note("sysctl", "net.ipv4.tcp_max_tw_buckets", now);
            let next = builder.finding("time-wait-overflow").unwrap().next.unwrap();
            assert_eq!(next.command, format!("sysctl -w net.ipv4.tcp_max_tw_buckets={expected}"));
            assert_eq!(next.on.as_deref(), Some("target"));
        }
    }

    #[test]
    fn the_side_that_connects_gets_no_room_for_connections_that_keep_its_ports() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.host_counter("client", (counter::TCP_TIME_WAIT_OVERFLOWS, ""), 9);
        let client = &mut builder.run.hosts.get_mut("client").unwrap().environment;
        client.note("sysctl", "net.ipv4.tcp_max_tw_buckets", "4096");
        assert_eq!(builder.finding("time-wait-overflow").unwrap().next, None);
    }
}
