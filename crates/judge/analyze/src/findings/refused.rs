//! Nothing arrived, and ICMP says why.

use fathom_model::{Cause, Finding, Layer, NextStep, Severity, names::host as counter, units::approximate};

use super::{FindingRule, errors::has_errors_of};
use crate::{
    evidence::{TestEvidence, counter_evidence},
    summaries::main_rate,
};

/// Looks for ICMP messages at a host whose datagrams did not arrive. A socket that is not connected does not get them.
pub(crate) struct RefusedDatagrams;

impl FindingRule for RefusedDatagrams {
    fn id(&self) -> &'static str {
        "no-listener"
    }

    // Its own kernel tells a host of a neighbor without an answer by the same message.
    fn effect_of(&self) -> &'static [&'static str] {
        &["neighbor-unresolved", "no-route", "device-forwarding"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let is_nothing = main_rate(seen.test).is_some_and(|rate| rate.value == Some(0.0));
        // A prohibition has its own error, which is told with its cause.
        if seen.test.layer != Layer::Udp || !is_nothing || has_errors_of(seen, &Cause::Forbidden) {
            return Vec::new();
        }
        // A host that sends nothing got its messages for something else.
        let sender = seen.one_way().and_then(|(from, _)| seen.host_of(from));
        let hosts = seen.hosts().filter(|host| sender.is_none_or(|sender| sender == *host));
        let refused = hosts.map(|host| (host, seen.growth(host, counter::ICMP_IN_UNREACHABLE, None)));
        let Some((host, n)) = refused.max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0) else { return Vec::new() };
        let told_by = |host: &str| seen.growth(host, counter::ICMP_OUT_UNREACHABLE, None);
        let by_other = seen.hosts().filter(|other| *other != host).map(told_by).max().unwrap_or(0);
        // A router on the way tells it about once a second at least (`net.ipv4.icmp_ratelimit`). Fewer are those of other programs.
        let is_told_again = seen.sampled_time(host).is_none_or(|time| approximate(n) >= time.as_secs_f64() / 2.0);
        if by_other == 0 && !is_told_again && seen.via().is_none_or(|via| told_by(via) == 0) {
            return Vec::new();
        }
        let by_device = seen.via().filter(|via| 2 * told_by(via) >= n && told_by(via) > by_other);
        let (on, next) = if let Some(device) = by_device {
            let routes = if seen.is_ipv6() { "ip -6 route" } else { "ip route" };
            let next = NextStep::new(format!("{routes}; nft list ruleset"));
            (Some(device), next.expected("show the routes, and rules that reject"))
        } else {
            let next = NextStep::new("ss -lun; nft list ruleset");
            let other = seen.hosts().find(|other| *other != host);
            (other, next.expected("show the ports that programs listen on, and rules that reject"))
        };
        let title = if let Some(device) = by_device {
            format!(
                "the device {device} told {host} by ICMP that it does not forward its datagrams: it has no route for them, or a filter there refuses them"
            )
        } else if has_errors_of(seen, &Cause::Other("host unreachable".to_owned())) {
            format!(
                "ICMP told {host} that a firewall on the way prohibits its datagrams, or that a router does not reach their target"
            )
        } else {
            format!(
                "ICMP told {host} that its datagrams are refused: nobody listens where it sends to, or a firewall refuses them"
            )
        };
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "refused", title)
                .evidence([counter_evidence(host, counter::ICMP_IN_UNREACHABLE, n)])
                .next(NextStep { on: on.map(str::to_owned), ..next }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::{Severity, names::host as counter};

    use crate::run_builder::RunBuilder;

    #[test]
    fn datagrams_that_icmp_refuses_are_named_only_if_none_arrived() {
        let refused = |n_arrived: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, n_arrived)]);
            builder.host_counter("client", (counter::ICMP_IN_UNREACHABLE, ""), 12);
            builder.finding("no-listener")
        };
        let found = refused(0).unwrap();
        assert!(found.title.starts_with("ICMP told client that its datagrams are refused"), "{}", found.title);
        assert_eq!(found.severity, Severity::Invalidates, "it leads a test without a result");
        assert_eq!(refused(999), None);
    }

    #[test]
    fn a_device_that_does_not_forward_is_told_from_a_host_where_nobody_listens() {
        let title = |by_device: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 0)]);
            builder.device_between("dut");
            builder.host_counter("client", (counter::ICMP_IN_UNREACHABLE, ""), 12);
            builder.host_counter("dut", (counter::ICMP_OUT_UNREACHABLE, ""), by_device);
            builder.finding("no-listener").unwrap().title
        };
        assert!(title(12).starts_with("the device dut told client by ICMP"), "{}", title(12));
        assert!(title(0).starts_with("ICMP told client that its datagrams are refused"), "{}", title(0));
    }

    #[test]
    fn a_single_message_for_another_program_explains_no_silence() {
        let found = |n: u64, by_target: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(10_000, 0)]);
            builder.series("client", (counter::ICMP_IN_UNREACHABLE, ""), &[0, n]);
            builder.host_counter("target", (counter::ICMP_OUT_UNREACHABLE, ""), by_target);
            let host = builder.run.tests[0].trials[0].hosts.get_mut("client").unwrap();
            let first = host.at_ns[0];
            host.at_ns = vec![first, first + fathom_model::units::Nanos::from_secs(10)];
            builder.finding("no-listener").is_some()
        };
        assert!(!found(1, 0), "of ten seconds");
        assert!(found(1, 1) && found(9, 0));
    }
}
