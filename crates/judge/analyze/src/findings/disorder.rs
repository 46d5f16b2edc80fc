//! Datagrams or frames arrived out of order, or more than once.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::count,
    units::{percent, ratio},
};

use super::FindingRule;
use crate::{
    conservation::unit_name,
    evidence::{TestEvidence, counter_evidence},
    path::place_on_path,
};

/// A smaller share appears only in the table.
const REPORT_MIN: f64 = 1e-3;
/// At this share and above, applications that take datagrams in order (voice, tunnels) notice.
const HOLDS_BACK: f64 = 5e-3;

/// One kind of disorder, found by its counter at the receiver.
pub(crate) struct Disorder {
    id: &'static str,
    counter: &'static str,
    /// The words after the share and the unit.
    event: &'static str,
    cause: &'static str,
    /// What a capture of datagrams at the receiver shows of the cause.
    capture: &'static str,
}

/// Later datagrams arrived before earlier ones.
pub(crate) const REORDERING: Disorder = Disorder {
    id: "reordering",
    counter: count::REORDERED,
    event: "arrived after later ones",
    cause: "several paths, links or queues share one flow",
    capture: "whether datagrams of one flow have several TTLs or source MAC addresses: then routers divide it packet by packet; if not, the ports of an \
              aggregated link, or queues, do",
};

/// One datagram arrived several times.
pub(crate) const DUPLICATES: Disorder = Disorder {
    id: "duplicates",
    counter: count::DUPLICATES,
    event: "arrived more than once",
    cause: "a device on the way sends them twice, or two paths lead to the target",
    capture: "both copies: two source MAC addresses are two devices that forward, two TTLs a router that one copy passed twice; equal \
              ones come from a switch (a mirrored port, a loop) or from a bond that broadcasts",
};

impl FindingRule for Disorder {
    fn id(&self) -> &'static str {
        self.id
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp | Layer::Frames, Some((from, to))) = (seen.test.layer, seen.one_way()) else {
            return Vec::new();
        };
        let Some(receiver) = seen.host_of(to) else { return Vec::new() };
        let (n, received) = (seen.total(to, self.counter), seen.total(to, count::RECEIVED));
        let Some(share) = ratio(n, received).filter(|share| *share >= REPORT_MIN) else { return Vec::new() };
        let units = unit_name(seen.test.layer).unwrap_or("packets");
        let severity = if share >= HOLDS_BACK { Severity::HoldsBack } else { Severity::Remark };
        let title = format!("{} of the {units} {}: {}", percent(share), self.event, self.cause);
        let next = seen.host_of(from).and_then(|sender| self.next(seen, (sender, receiver)));
        vec![
            seen.finding(self.id, severity, self.id, title)
                .evidence([
                    counter_evidence(receiver, self.counter, n),
                    counter_evidence(receiver, count::RECEIVED, received),
                ])
                .next(next.filter(|_| severity > Severity::Remark)),
        ]
    }
}

impl Disorder {
    /// Suggests to look at the bond by which the sender divides its packets, or else at what arrives. Frames that an XDP program takes, as in a test
    /// of frames, are seen by no capture.
    fn next(&self, seen: &TestEvidence<'_>, (sender, receiver): (&str, &str)) -> Option<NextStep> {
        let is_bond =
            |device: &&str| seen.environment(sender).and_then(|facts| facts.get(device, "driver")) == Some("bonding");
        if let Some(bond) = seen.devices(sender).into_iter().find(is_bond) {
            return Some(NextStep::new(format!("cat /proc/net/bonding/{bond}")).on(sender).expected(
                "show its mode: round-robin sends the packets of one flow over all ports in turn, and broadcast each packet over all of them; 802.3ad and xor do \
                 neither",
            ));
        }
        let from = place_on_path(seen.run, seen.test, sender).0.filter(|_| seen.test.layer == Layer::Udp)?;
        let command = format!("tcpdump -nevi {} -c 200 udp and src {from}", seen.interface(receiver));
        Some(NextStep::new(command).on(receiver).expected(format!("show, while the test runs, {}", self.capture)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_path_that_reorders_or_doubles_is_named_with_its_share() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 10_000)]);
        assert_eq!((builder.finding("reordering"), builder.finding("duplicates")), (None, None));
        builder.total("target", count::REORDERED, 200);
        builder.total("target", count::DUPLICATES, 40);
        let (reordered, doubled) = (builder.finding("reordering").unwrap(), builder.finding("duplicates").unwrap());
        assert!(reordered.title.starts_with("2.0 % of the datagrams arrived after later ones"), "{}", reordered.title);
        assert_eq!((reordered.severity, doubled.severity), (Severity::HoldsBack, Severity::Remark));
        let next = reordered.next.unwrap();
        assert_eq!(next.command, "tcpdump -nevi eth0 -c 200 udp and src 198.18.0.1");
        assert_eq!((next.on.as_deref(), doubled.next), (Some("target"), None), "a remark asks for nothing");
        let client = &mut builder.run.hosts.get_mut("client").unwrap().environment;
        client.note("eth0", "lower", "bond0");
        client.note("bond0", "driver", "bonding");
        let next = builder.finding("reordering").unwrap().next.unwrap();
        assert_eq!((next.command.as_str(), next.on.as_deref()), ("cat /proc/net/bonding/bond0", Some("client")));
    }

    #[test]
    fn no_capture_is_suggested_where_xdp_takes_the_frames() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 10_000)]);
        builder.run.tests[0].layer = Layer::Frames;
        builder.total("target", count::DUPLICATES, 200);
        let doubled = builder.finding("duplicates").unwrap();
        assert_eq!((doubled.severity, doubled.next), (Severity::HoldsBack, None));
    }
}
