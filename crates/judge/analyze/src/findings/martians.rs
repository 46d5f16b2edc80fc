//! A host dropped packets whose source or destination address cannot be right.

use std::collections::BTreeSet;

use fathom_model::{Finding, Layer, NextStep, names::host, units::ratio};

use super::{
    FindingRule,
    drops::{DropReport, PACKETS_MIN, may_be_of_connections, packets_received},
    duplicate_address::DUPLICATE_ADDRESS,
};
use crate::evidence::{TestEvidence, counter_evidence};

/// Looks for martian packets (RFC 1812 section 5.3.7) other than those of the reverse path filter, which has a rule of its own.
///
/// The usual reason is an address that two hosts have: a host drops packets that come from one of its own addresses. The kernel has one
/// count for all network namespaces of a machine, so a test from which nothing is missing says that they were others' packets.
pub(crate) struct Martians;

impl FindingRule for Martians {
    fn id(&self) -> &'static str {
        "martian-packets"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["reverse-path-filter", DUPLICATE_ADDRESS]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // A test of the path sends odd packets on purpose, and frames need no IP stack.
        if seen.test.layer == Layer::Frames || seen.provokes_losses() {
            return Vec::new();
        }
        // The counter belongs to the machine. Which of its hosts dropped is not known then; most often it is the one that was sent to.
        let is_one = seen.is_one_machine();
        let hosts = seen.hosts().skip(usize::from(is_one)).chain(seen.hosts().take(usize::from(is_one)));
        hosts.take(if is_one { 1 } else { usize::MAX }).filter_map(|host| self.on_host(seen, host)).collect()
    }
}

impl Martians {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let counters @ [(_, source), (_, destination)] = dropped(seen, host);
        let n = source + destination;
        let share = ratio(n, packets_received(seen, host));
        if n < PACKETS_MIN || seen.lost_nothing() || !may_be_of_connections(seen, n, share) {
            return None;
        }
        let place =
            if seen.is_one_machine() { format!("{host}, or another host of its machine,") } else { host.to_owned() };
        let why = if source >= destination {
            "their source address is impossible on the interface where they arrived (martian packets, which the kernel counts for all \
             namespaces of a machine together): most often two hosts have the same address"
        } else {
            "no network may carry their destination address (martian packets, which the kernel counts for all namespaces of a machine together)"
        };
        let report = DropReport {
            id: self.id(),
            short: "martians",
            host,
            what: format!("{place} dropped packets because {why}"),
            evidence: counters
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(name, n)| counter_evidence(host, name, n))
                .collect(),
            n,
            of: packets_received(seen, host).max(n),
            next: Some(NextStep::new("sysctl -w net.ipv4.conf.all.log_martians=1").expected(
                "write their addresses to the kernel log (dmesg); compare them with ip address on both hosts",
            )),
        };
        report.into_finding(seen)
    }
}

/// Returns the packets that a host dropped for their source and for their destination, without those of the reverse path filter.
pub(super) fn dropped(seen: &TestEvidence<'_>, host: &str) -> [(&'static str, u64); 2] {
    let filtered = |host: &str| seen.growth(host, host::IP_RP_FILTER_DROPPED, None);
    // A device between the hosts has a namespace of this machine too.
    let all = || seen.trials().iter().flat_map(|trial| trial.hosts.keys()).collect::<BTreeSet<_>>();
    let by_filter: u64 =
        if seen.is_one_machine() { all().into_iter().map(|host| filtered(host)).sum() } else { filtered(host) };
    let source = seen.growth(host, host::IP_MARTIAN_SOURCE, None).saturating_sub(by_filter);
    [
        (host::IP_MARTIAN_SOURCE, source),
        (host::IP_MARTIAN_DESTINATION, seen.growth(host, host::IP_MARTIAN_DESTINATION, None)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::Severity;

    fn dropping(martians: u64, filtered: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 5_000)]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10_000);
        builder.host_counter("target", (host::IP_MARTIAN_SOURCE, ""), martians);
        builder.host_counter("target", (host::IP_RP_FILTER_DROPPED, ""), filtered);
        builder
    }

    #[test]
    fn packets_from_an_own_address_are_told() {
        let builder = dropping(5_000, 0);
        let finding = builder.finding("martian-packets").unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, Some(1.0)));
        assert!(finding.title.contains("most often two hosts have the same address"), "{}", finding.title);
        assert!(finding.title.ends_with("5,000 dropped of 10,000 (50 %)"), "{}", finding.title);
        assert_eq!(builder.finding("loss").unwrap().severity, Severity::Remark, "one fault is told once");
    }

    #[test]
    fn a_host_that_drops_all_as_martians_is_no_black_hole() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 0)]);
        builder.total("client", fathom_model::names::count::BYTES_SENT, 1_450_000);
        builder.host_counter("target", (host::IP_MARTIAN_SOURCE, ""), 1_000);
        let run = builder.analyzed();
        assert_eq!((run.findings[0].id.as_str(), run.findings[0].severity), ("martian-packets", Severity::Invalidates));
        assert!(
            !run.findings
                .iter()
                .any(|finding| finding.id == "path-mtu-black-hole" && finding.severity > Severity::Remark)
        );
    }

    #[test]
    fn those_of_the_reverse_path_filter_are_told_by_its_own_rule() {
        let builder = dropping(5_000, 5_000);
        assert_eq!(builder.finding("martian-packets"), None);
        assert!(builder.finding("reverse-path-filter").is_some());
    }

    #[test]
    fn a_connection_that_sent_nothing_again_lacks_nothing() {
        let with_resent = |resent| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10_000);
            builder.host_counter("target", (host::IP_MARTIAN_SOURCE, ""), 5_000);
            for name in ["client", "target"] {
                builder.host_counter(name, (host::TCP_RETRANS_SEGMENTS, ""), resent);
                builder.host_counter(name, (host::TCP_SYN_RETRANS, ""), 0);
            }
            builder.finding("martian-packets")
        };
        assert_eq!(with_resent(0), None, "another namespace of the machine dropped them");
        let title = with_resent(700).unwrap().title;
        assert!(title.contains("counts for all namespaces of a machine together"), "{title}");
    }

    #[test]
    fn single_ones_and_uncounted_ones_are_not_told() {
        assert_eq!(dropping(9, 0).finding("martian-packets"), None);
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 5_000)]);
        assert_eq!(builder.finding("martian-packets"), None);
    }
}
