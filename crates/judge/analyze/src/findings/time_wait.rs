//! A host had no room for more connections in TIME-WAIT.

use fathom_model::{Finding, Layer, Severity, names::host as counter, units::grouped};

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
            seen.finding(self.id(), Severity::Remark, "time-wait", title).evidence([evidence])
        };
        grown.filter(|(_, n)| *n > 0).map(on_host).collect()
    }
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
    }
}
