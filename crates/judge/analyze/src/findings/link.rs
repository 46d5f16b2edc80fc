//! The wire between the hosts is full, or there is none.

use fathom_model::{Finding, Layer, LimitKind, NextStep, Severity, Unit, units::percent};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, ratio_evidence, text_evidence},
    path::{PathLink, is_virtual, link_of, slowest_end},
    summaries::main_rate,
};

/// At this share of the line rate and above, the wire itself is the limit.
const FULL: f64 = 0.98;

/// The wire carries all it can, so nothing else holds the test back.
pub(crate) struct LinkFull;

impl FindingRule for LinkFull {
    fn id(&self) -> &'static str {
        "link-full"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let mut limits = seen.test.limits.iter().filter(|limit| limit.kind == LimitKind::LineRate);
        let full = limits.find_map(|limit| Some((limit, limit.used.filter(|used| *used >= FULL)?)));
        let Some((limit, used)) = full else { return Vec::new() };
        let title = format!("the link is full: {} of its {}", percent(used), limit.text);
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "link full", title)
                .evidence([ratio_evidence(&seen.test.from, format!("{} of the line rate", limit.metric), used)])
                .explains(1.0)
                .next(next(seen)),
        ]
    }
}

/// Suggests to look whether the link could be faster: a port that negotiated less than it can is full as well.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    let host = slowest_end(seen.run, seen.test)?;
    Some(NextStep::new(format!("ethtool {}", seen.card(host))).on(host).expected(
        "show its speed beside those that it and the other end of its cable support; if this is the highest one, only a faster link, or one more, \
         carries more",
    ))
}

/// Explains why a throughput test has no line rate to compare with.
pub(crate) struct NoLineRate;

impl FindingRule for NoLineRate {
    fn id(&self) -> &'static str {
        "no-line-rate"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(PathLink::NoWire { host, interface, driver }) = link_of(seen.run, seen.test) else {
            return Vec::new();
        };
        // Probes never come close to filling a line.
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let of_wire = |unit| matches!(unit, Unit::BitsPerSec | Unit::FramesPerSec);
        if !main_rate(seen.test).is_some_and(|main| of_wire(main.metric.unit)) {
            return Vec::new();
        }
        let title = match driver.as_deref() {
            Some(driver) if is_virtual(driver) => {
                format!("there is no line rate: {interface} on {host} is a {driver} device, memory and no wire")
            }
            Some(driver) => format!("there is no line rate: {driver} tells no speed of {interface} on {host}"),
            None => format!("there is no line rate: the speed of {interface} on {host} is not known"),
        };
        let driver = text_evidence(&host, format!("driver {interface}"), driver.as_deref().unwrap_or("unknown"));
        vec![seen.finding(self.id(), Severity::Remark, "no line rate", title).evidence([driver])]
    }
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_wire_that_carries_all_it_can_is_the_limit() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[117_000_000]);
        builder.wire("1000000000", "1500");
        let finding = builder.finding("link-full").unwrap();
        assert_eq!(finding.title, "the link is full: 99 % of its line 941 Mbit/s");
        assert_eq!(builder.finding("no-line-rate"), None);
        let on = |builder: &RunBuilder| {
            let next = builder.finding("link-full").unwrap().next.unwrap();
            (next.command, next.on.unwrap())
        };
        assert_eq!(on(&builder), ("ethtool eth0".to_owned(), "client".to_owned()));
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "speed_bps", "10000000000");
        assert_eq!(on(&builder).1, "target", "the slower end is the one that is full");
    }

    #[test]
    fn a_device_without_a_speed_is_told_of_once_for_all_tests() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.udp_stream(&[(1000, 1000)]);
        builder.driver("virtio_net");
        let finding = builder.finding("no-line-rate").unwrap();
        assert_eq!(finding.title, "there is no line rate: virtio_net tells no speed of eth0 on client");
        assert_eq!(finding.tests.len(), 2);
    }
}
