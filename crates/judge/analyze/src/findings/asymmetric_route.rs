//! Packets of the peer arrived on another interface than the one by which a host sends to it.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{DEV_RX_BYTES, DEV_TX_BYTES, DEV_TX_FRAMES},
    units::{Bytes, approximate},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// With fewer frames of either end, a test has no traffic whose answers could be followed.
const FRAMES_MIN: u64 = 100;
/// Another interface took about this part of what the peer sent. More is traffic of others.
const ARRIVED_ELSEWHERE: std::ops::Range<f64> = 0.5..1.5;
/// The interface of the test took at most this part of it: below this are neighbor discovery and other tests.
const ARRIVED_HERE: f64 = 0.1;

/// Compares, at each host, the bytes that each interface received with all that the peer sent.
///
/// Each way of an asymmetric route has its own limits and losses, and a firewall with state, or the reverse path filter, drops what it only sees
/// one way. It is a remark, because it may be intended. Silent with little traffic, where the counters of the peer are not known, and where more
/// than a tenth arrives by the interface of the test.
pub(crate) struct AsymmetricRoute;

impl FindingRule for AsymmetricRoute {
    fn id(&self) -> &'static str {
        "asymmetric-route"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if matches!(seen.test.layer, Layer::Path | Layer::Frames) {
            return Vec::new();
        }
        let hosts: Vec<&str> = seen.hosts().collect();
        let [a, b] = hosts.as_slice() else { return Vec::new() };
        // Both ends see the same way, so it is told once.
        self.on_host(seen, a, b).or_else(|| self.on_host(seen, b, a)).into_iter().collect()
    }
}

impl AsymmetricRoute {
    fn on_host(&self, seen: &TestEvidence<'_>, host: &str, peer: &str) -> Option<Finding> {
        let leaves_by = seen.interface(host);
        let is_wire = |of: &&(&str, u64)| of.0 != "lo";
        let sent_by_peer =
            |counter| seen.growth_by_instance(peer, counter).iter().filter(is_wire).map(|(_, n)| n).sum::<u64>();
        if seen.growth(host, DEV_TX_FRAMES, Some(leaves_by)) < FRAMES_MIN || sent_by_peer(DEV_TX_FRAMES) < FRAMES_MIN {
            return None;
        }
        let sent = sent_by_peer(DEV_TX_BYTES);
        let arrived = seen.growth_by_instance(host, DEV_RX_BYTES);
        let (arrives_by, there) = *arrived.iter().filter(is_wire).find(|(of, _)| *of != leaves_by)?;
        let here = seen.growth(host, DEV_RX_BYTES, Some(leaves_by));
        let part = |n: u64| approximate(n) / approximate(sent);
        if sent == 0 || !ARRIVED_ELSEWHERE.contains(&part(there)) || part(here) > ARRIVED_HERE {
            return None;
        }
        let address = seen.run.hosts.get(peer).and_then(|peer| peer.address.as_deref());
        let title = format!(
            "the route is asymmetric: {host} sends to {peer} by {leaves_by}, but {} of the {} that {peer} sent arrived by {arrives_by}",
            Bytes(there),
            Bytes(sent)
        );
        let evidence = [
            counter_evidence(host, format!("{DEV_RX_BYTES} {arrives_by}"), there),
            counter_evidence(host, format!("{DEV_RX_BYTES} {leaves_by}"), here),
            counter_evidence(peer, DEV_TX_BYTES, sent),
        ];
        let next = address.map(|address| {
            NextStep::new(format!("ip route get {address}"))
                .on(host)
                .expected("show the way out; the other host shows its own way back")
        });
        Some(seen.finding(self.id(), Severity::Remark, "asymmetric", title).evidence(evidence).next(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    /// A test whose answers arrive at the client by two interfaces with these bytes.
    fn answered(by_eth0: u64, by_eth1: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_rr(10_000, 1);
        builder.host_counter("client", (DEV_TX_FRAMES, "eth0"), 20_000);
        builder.host_counter("client", (DEV_RX_BYTES, "eth0"), by_eth0);
        builder.host_counter("client", (DEV_RX_BYTES, "eth1"), by_eth1);
        builder.host_counter("client", (DEV_RX_BYTES, "lo"), 9_000_000);
        builder.host_counter("target", (DEV_TX_FRAMES, "eth0"), 20_000);
        builder.host_counter("target", (DEV_TX_BYTES, "eth0"), 1_320_000);
        builder
    }

    #[test]
    fn answers_that_arrive_by_another_interface_are_a_remark() {
        let finding = answered(420, 1_310_000).finding("asymmetric-route").unwrap();
        assert!(
            finding.title.starts_with("the route is asymmetric: client sends to target by eth0, but"),
            "{}",
            finding.title
        );
        assert!(finding.title.ends_with("arrived by eth1"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::Remark);
        assert_eq!(finding.next.unwrap().command, "ip route get 198.18.0.2");
    }

    #[test]
    fn answers_by_the_same_interface_and_other_traffic_are_silent() {
        assert_eq!(answered(1_310_000, 0).finding("asymmetric-route"), None);
        assert_eq!(answered(1_310_000, 5_000_000).finding("asymmetric-route"), None, "eth1 is busy with other things");
        assert_eq!(answered(0, 400_000).finding("asymmetric-route"), None, "most of it arrived nowhere");
        assert_eq!(answered(0, 5_000_000).finding("asymmetric-route"), None, "the peer sent less than that");
        let mut silent_peer = answered(0, 170);
        silent_peer.host_counter("target", (DEV_TX_FRAMES, "eth0"), 2);
        silent_peer.host_counter("target", (DEV_TX_BYTES, "eth0"), 118);
        assert_eq!(silent_peer.finding("asymmetric-route"), None);
        let mut unknown = RunBuilder::new();
        unknown.tcp_rr(10_000, 1);
        unknown.host_counter("client", (DEV_TX_FRAMES, "eth0"), 20_000);
        assert_eq!(unknown.finding("asymmetric-route"), None);
    }
}
