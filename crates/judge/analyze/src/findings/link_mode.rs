//! The links of the two ends do not fit: half duplex, or different speeds.

use fathom_model::{Evidence, Finding, Layer, NextStep, Severity, units::BitsPerSec};

use super::FindingRule;
use crate::evidence::TestEvidence;

/// Compares the speed and the duplex mode of the two ends.
///
/// A link runs at half duplex if autonegotiation failed at one of its ends (IEEE 802.3 clause 28): the other end sends whenever it wants, and
/// what collides is lost. Different speeds are a remark, since a switch is then between the ends: its buffer takes the bursts of the faster one.
/// Silent for devices of memory and for those that do not know their link.
pub(crate) struct LinkMode;

/// An end of the test with a real link.
struct LinkEnd<'a> {
    host: &'a str,
    card: &'a str,
    speed: Option<BitsPerSec>,
    duplex: Option<&'a str>,
}

impl FindingRule for LinkMode {
    fn id(&self) -> &'static str {
        "link-mode"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let ends: Vec<LinkEnd<'_>> = seen.hosts().filter_map(|host| end(seen, host)).collect();
        let half = ends.iter().filter(|end| end.duplex == Some("half")).map(|end| self.half_duplex(seen, end));
        let found: Vec<Finding> = half.collect();
        if !found.is_empty() {
            return found;
        }
        self.different_speeds(seen, &ends).into_iter().collect()
    }
}

impl LinkMode {
    fn half_duplex(&self, seen: &TestEvidence<'_>, end: &LinkEnd<'_>) -> Finding {
        let LinkEnd { host, card, .. } = end;
        let title = format!(
            "{card} of {host} runs at half duplex: it cannot send while it receives, and if the other end of its cable runs at full \
             duplex, frames collide and are lost"
        );
        let next = link_settings(end)
            .expected("show what both ends of the cable offer; let both negotiate, or set both alike");
        seen.finding(self.id(), Severity::HoldsBack, "half duplex", title)
            .evidence(vec![evidence(end, "duplex", "half".to_owned())])
            .next(next)
    }

    fn different_speeds(&self, seen: &TestEvidence<'_>, ends: &[LinkEnd<'_>]) -> Option<Finding> {
        let [from, to] = ends else { return None };
        let (of_from, of_to) = (from.speed?, to.speed?);
        if of_from == of_to {
            return None;
        }
        let (slower, faster) = if of_from < of_to { (from, to) } else { (to, from) };
        let speed = |end: &LinkEnd<'_>| end.speed.map_or_else(String::new, |speed| speed.to_string());
        let has = |end: &LinkEnd<'_>| format!("{} of {} has {}", end.card, end.host, speed(end));
        let title = format!(
            "the links of the two ends have different speeds: {}, {}; bursts of the faster one wait or are lost where the speeds meet",
            has(slower),
            has(faster)
        );
        let next = link_settings(slower).expected(
            "show whether its link could be faster: what the device supports, and what the other end of the cable offers",
        );
        let evidence: Vec<Evidence> =
            [slower, faster].into_iter().map(|end| evidence(end, "speed_bps", speed(end))).collect();
        Some(seen.finding(self.id(), Severity::Remark, "link speeds", title).evidence(evidence).next(next))
    }
}

/// The command that shows the settings of a link.
fn link_settings(end: &LinkEnd<'_>) -> NextStep {
    NextStep::new(format!("ethtool {}", end.card)).on(end.host)
}

/// Returns the end of a test at a host; `None` for a device of memory, and for one whose speed is only a number.
fn end<'a>(seen: &TestEvidence<'a>, host: &'a str) -> Option<LinkEnd<'a>> {
    let cards = seen.cards(host);
    let card = cards.first()?;
    let facts = seen.environment(host)?;
    if seen.is_memory(host) || facts.get(card, "line_rate").is_some_and(|rate| rate != "real") {
        return None;
    }
    // Of a bond, the speed of one port is not that of the end.
    let speed = facts.get(card, "speed_bps").filter(|_| cards.len() == 1).and_then(|speed| speed.parse().ok());
    Some(LinkEnd { host, card, speed, duplex: facts.get(card, "duplex") })
}

fn evidence(end: &LinkEnd<'_>, fact: &str, value: String) -> Evidence {
    Evidence { host: end.host.to_owned(), counter: format!("{fact} {}", end.card), value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn on_wires() -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000_000]);
        builder.wire("1000000000", "1500");
        builder
    }

    fn note(builder: &mut RunBuilder, host: &str, name: &str, value: &str) {
        builder.run.hosts.get_mut(host).unwrap().environment.note("eth0", name, value);
    }

    #[test]
    fn an_end_at_half_duplex_holds_back() {
        let mut builder = on_wires();
        note(&mut builder, "client", "duplex", "full");
        note(&mut builder, "target", "duplex", "full");
        assert_eq!(builder.finding("link-mode"), None);
        note(&mut builder, "target", "duplex", "half");
        let finding = builder.finding("link-mode").unwrap();
        assert!(finding.title.starts_with("eth0 of target runs at half duplex"), "{}", finding.title);
        assert_eq!((finding.severity, finding.next.unwrap().command.as_str()), (Severity::HoldsBack, "ethtool eth0"));
    }

    #[test]
    fn ends_with_different_speeds_are_a_remark_that_names_the_slower_one_first() {
        let mut builder = on_wires();
        note(&mut builder, "target", "speed_bps", "100000000");
        let finding = builder.finding("link-mode").unwrap();
        assert!(
            finding.title.contains("eth0 of target has 100 Mbit/s, eth0 of client has 1.00 Gbit/s"),
            "{}",
            finding.title
        );
        assert_eq!(finding.severity, Severity::Remark);
    }

    #[test]
    fn the_speed_of_a_device_of_memory_is_no_link() {
        let mut builder = on_wires();
        note(&mut builder, "target", "speed_bps", "10000000");
        note(&mut builder, "target", "duplex", "half");
        note(&mut builder, "target", "line_rate", "nominal");
        assert_eq!(builder.finding("link-mode"), None);
    }
}
