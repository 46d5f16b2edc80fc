//! A table or a supply of a host is almost used up, so that the next connections will fail.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host,
    units::{grouped, percent, ratio},
};

use super::{FindingRule, drops::next_step};
use crate::evidence::{TestEvidence, counter_evidence};

/// At this share of its maximum a table has no room for a burst of connections.
const NEARLY: f64 = 0.95;

/// A level and its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Level {
    used: u64,
    max: u64,
}

/// A table or a supply, judged by the highest level of the test.
pub(crate) struct NearFull {
    id: &'static str,
    short: &'static str,
    level: fn(&TestEvidence<'_>, &str) -> Option<Level>,
    /// Whether the test failed because of it: then another finding says so.
    has_failed: fn(&TestEvidence<'_>, &str) -> bool,
    /// Describes the table or supply of a host.
    what: fn(&str) -> String,
    next: fn(Level) -> NextStep,
}

/// The table of tracked connections.
pub(crate) const CONNECTION_TABLE: NearFull = NearFull {
    id: "conntrack-near-full",
    short: "conntrack",
    level: |seen, host| {
        let used = seen.highest_value(host, host::CONNTRACK_ENTRIES)?;
        Some(Level { used, max: seen.last_value(host, host::CONNTRACK_ENTRIES_MAX)? })
    },
    has_failed: |seen, host| seen.growth(host, host::CONNTRACK_DROPPED, None) > 0,
    what: |host| format!("the connection tracking table of {host}"),
    next: |level| {
        next_step(
            format!("sysctl -w net.netfilter.nf_conntrack_max={}", level.max.saturating_mul(4)),
            "make room for more connections; or exempt the test with a notrack rule",
        )
    },
};

impl FindingRule for NearFull {
    fn id(&self) -> &'static str {
        self.id
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Frames need no IP stack.
        if seen.test.layer == Layer::Frames {
            return Vec::new();
        }
        seen.hosts().filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl NearFull {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let level = (self.level)(seen, host)?;
        let share = ratio(level.used, level.max).filter(|share| *share >= NEARLY)?;
        if (self.has_failed)(seen, host) {
            return None;
        }
        let (used, max) = (grouped(level.used), grouped(level.max));
        Some(Finding {
            id: self.id.to_owned(),
            short: self.short.to_owned(),
            title: format!(
                "{} is {} full ({used} of {max}): what does not fit will fail",
                (self.what)(host),
                percent(share)
            ),
            severity: Severity::Remark,
            tests: vec![seen.test.name.clone()],
            evidence: vec![counter_evidence(host, self.id, level.used)],
            explains: None,
            next: Some(NextStep { on: Some(host.to_owned()), ..(self.next)(level) }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn with_entries(levels: [u64; 4], max: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_rr(1_000, 100);
        builder.series("target", (host::CONNTRACK_ENTRIES, ""), &levels);
        builder.series("target", (host::CONNTRACK_ENTRIES_MAX, ""), &[max]);
        builder
    }

    #[test]
    fn a_table_that_came_near_its_maximum_is_told_with_its_highest_level() {
        let finding = with_entries([10, 64_000, 10, 10], 65_536).finding("conntrack-near-full").unwrap();
        let title =
            "the connection tracking table of target is 98 % full (64,000 of 65,536): what does not fit will fail";
        assert_eq!((finding.title.as_str(), finding.severity), (title, Severity::Remark));
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.netfilter.nf_conntrack_max=262144");
    }

    #[test]
    fn a_table_with_room_or_without_a_known_maximum_is_not_told() {
        assert_eq!(with_entries([10, 60_000, 10, 10], 65_536).finding("conntrack-near-full"), None);
        assert_eq!(with_entries([0, 0, 0, 0], 0).finding("conntrack-near-full"), None);
        let mut builder = RunBuilder::new();
        builder.tcp_rr(1_000, 100);
        builder.series("target", (host::CONNTRACK_ENTRIES, ""), &[65_000]);
        assert_eq!(builder.finding("conntrack-near-full"), None);
    }

    #[test]
    fn a_table_that_dropped_packets_is_told_once() {
        let mut builder = with_entries([10, 65_536, 65_536, 65_536], 65_536);
        builder.host_counter("target", (host::CONNTRACK_DROPPED, ""), 500);
        assert_eq!(builder.finding("conntrack-near-full"), None);
        assert!(builder.finding("conntrack-full").is_some());
    }
}
