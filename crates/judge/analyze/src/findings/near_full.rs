//! A table or a supply of a host is almost used up, so that the next connections will fail.

use fathom_model::{
    Cause, Finding, Layer, NextStep, Severity, Side,
    names::{count, host},
    units::{grouped, percent, ratio},
};

use super::FindingRule;
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
    /// The gauge that is shown as evidence.
    gauge: &'static str,
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
    gauge: host::CONNTRACK_ENTRIES,
    level: |seen, host| {
        let used = seen.highest_value(host, host::CONNTRACK_ENTRIES)?;
        Some(Level { used, max: seen.last_value(host, host::CONNTRACK_ENTRIES_MAX)? })
    },
    has_failed: |seen, host| {
        [host::CONNTRACK_DROPPED, host::CONNTRACK_EVICTED]
            .into_iter()
            .any(|counter| seen.growth(host, counter, None) > 0)
    },
    what: |host| format!("the connection tracking table of {host}"),
    next: |level| {
        NextStep::new(format!("sysctl -w net.netfilter.nf_conntrack_max={}", level.max.saturating_mul(4)))
            .expected("make room for more connections; or exempt the test with a notrack rule")
    },
};

/// The file descriptors of the process that ran the test.
pub(crate) const DESCRIPTORS: NearFull = NearFull {
    id: "descriptors-near-full",
    short: "descriptors",
    gauge: host::DESCRIPTORS_OPEN,
    level: |seen, host| {
        let used = seen.highest_value(host, host::DESCRIPTORS_OPEN)?;
        Some(Level { used, max: seen.last_value(host, host::DESCRIPTORS_MAX)? })
    },
    has_failed: |seen, _| has_error(seen, &Cause::NoDescriptor),
    what: |host| format!("the descriptor table of fathom on {host}"),
    next: |_| more_descriptors(),
};

/// The local ports of the side that opens connections: as many as its open connections and those in TIME-WAIT, if all go to one server.
pub(crate) const LOCAL_PORTS: NearFull = NearFull {
    id: "ports-near-full",
    short: "ports",
    gauge: "sock_tcp_in_use + sock_tcp_time_wait",
    level: |seen, host| {
        let opens = host == seen.test.from && seen.total(Side::Initiator, count::CONNECTIONS) > 0;
        // On the host of the server, half of the connections in TIME-WAIT are the server's.
        let is_two = seen.test.to.as_deref() != Some(host) && !seen.is_server_here();
        let used =
            seen.highest_sum(host, &[host::SOCK_TCP_IN_USE, host::SOCK_TCP_TIME_WAIT]).filter(|_| opens && is_two)?;
        Some(Level { used, max: seen.last_value(host, host::LOCAL_PORTS_MAX)? })
    },
    has_failed: |seen, _| has_error(seen, &Cause::NoPort),
    what: |host| format!("the range of local ports of {host} for one server"),
    next: |level| more_local_ports(Some(level.max)),
};

/// All ports but those below 1024, which need a privilege.
const LOCAL_PORTS_ALL: u64 = 64_512;

/// Suggests more local ports: a wider range, or more addresses where it is as wide as it can be.
pub(super) fn more_local_ports(n_ports: Option<u64>) -> NextStep {
    if n_ports.is_some_and(|n| n >= LOCAL_PORTS_ALL) {
        return NextStep::new("ip address").expected(
            "show the addresses of this host; give several with --source, as each has these ports of its own",
        );
    }
    NextStep::new("sysctl -w net.ipv4.ip_local_port_range=\"1024 65535\"")
        .expected("allow more connections to one server; or use several source addresses")
}

/// Suggests more descriptors for the program that ran the test.
pub(super) fn more_descriptors() -> NextStep {
    NextStep::new("ulimit -Hn").expected(
        "show the limit of this user, up to which fathom raises its own; raise it in /etc/security/limits.conf, or by LimitNOFILE= in the unit of a \
         service, or ask for fewer connections",
    )
}

/// Returns true if a test had errors of a cause.
fn has_error(seen: &TestEvidence<'_>, cause: &Cause) -> bool {
    let records = seen.test.trials.iter().flat_map(|trial| trial.records.values());
    records.flat_map(|record| record.errors.iter()).any(|(failure, _)| failure.cause == *cause)
}

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
        // More than there is room for is a count of something else, such as the connections that came from elsewhere.
        let share = ratio(level.used, level.max).filter(|share| (NEARLY..=1.0).contains(share))?;
        if (self.has_failed)(seen, host) {
            return None;
        }
        let (used, max) = (grouped(level.used), grouped(level.max));
        let title = format!(
            "{} is {} full ({used} of {max}): new connections will fail when it is full",
            (self.what)(host),
            percent(share)
        );
        Some(
            seen.finding(self.id, Severity::Remark, self.short, title)
                .evidence([counter_evidence(host, self.gauge, level.used)])
                .next((self.next)(level).on(host)),
        )
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
        let title = "the connection tracking table of target is 98 % full (64,000 of 65,536): new connections will fail when it is full";
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
    fn the_descriptors_of_the_test_are_told_before_they_run_out() {
        let mut builder = RunBuilder::new();
        builder.tcp_rr(1_000, 100);
        builder.series("client", (host::DESCRIPTORS_MAX, ""), &[1024]);
        assert_eq!(builder.finding("descriptors-near-full"), None, "an older kernel does not tell how many are open");
        builder.series("client", (host::DESCRIPTORS_OPEN, ""), &[20, 1_000, 1_000, 20]);
        let finding = builder.finding("descriptors-near-full").unwrap();
        assert_eq!(
            finding.title,
            "the descriptor table of fathom on client is 98 % full (1,000 of 1,024): new connections will fail when it is full"
        );
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: no descriptors left", 5);
        assert_eq!(builder.finding("descriptors-near-full"), None, "the errors say it");
    }

    #[test]
    fn more_connections_than_ports_are_not_all_of_one_server() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, 900);
        builder.series("client", (host::LOCAL_PORTS_MAX, ""), &[1_000]);
        builder.series("client", (host::SOCK_TCP_IN_USE, ""), &[10, 100, 100, 10]);
        builder.series("client", (host::SOCK_TCP_TIME_WAIT, ""), &[0, 0, 1_880, 900]);
        assert_eq!(builder.finding("ports-near-full"), None);
    }

    #[test]
    fn the_ports_of_the_side_that_connects_are_told_before_they_run_out() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        for host in ["client", "target"] {
            builder.series(host, (host::LOCAL_PORTS_MAX, ""), &[1_000]);
            builder.series(host, (host::SOCK_TCP_IN_USE, ""), &[10, 100, 100, 10]);
            builder.series(host, (host::SOCK_TCP_TIME_WAIT, ""), &[0, 0, 880, 900]);
        }
        assert_eq!(builder.finding("ports-near-full"), None, "no connection was opened in the test");
        builder.total("client", count::CONNECTIONS, 900);
        let finding = builder.finding("ports-near-full").unwrap();
        assert!(finding.title.contains("of client for one server is 98 % full (980 of 1,000)"), "{}", finding.title);
        builder.run.tests[0].options.set("url", "http://[::1]:8080/");
        assert_eq!(builder.finding("ports-near-full"), None, "half of them are the server's");
        builder.run.tests[0].options.set("url", "http://192.0.2.1:8080/");
        assert!(builder.finding("ports-near-full").is_some());
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: no local port is free", 5);
        assert_eq!(builder.finding("ports-near-full"), None, "the errors say it");
    }

    #[test]
    fn a_table_that_dropped_packets_is_told_once() {
        let mut builder = with_entries([10, 65_536, 65_536, 65_536], 65_536);
        builder.host_counter("target", (host::CONNTRACK_DROPPED, ""), 500);
        assert_eq!(builder.finding("conntrack-near-full"), None);
        assert!(builder.finding("conntrack-full").is_some());
    }
}
