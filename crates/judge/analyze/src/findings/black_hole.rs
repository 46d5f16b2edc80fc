//! Long packets are lost without a `too big` message.

use fathom_model::{Evidence, Finding, NextStep, Severity, units::grouped};

use super::FindingRule;
use crate::evidence::TestEvidence;

/// Looks for a packet length from which the path MTU search got neither an answer nor an error message.
pub(crate) struct BlackHole;

impl FindingRule for BlackHole {
    fn id(&self) -> &'static str {
        "path-mtu-black-hole"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let found = seen.probes().find_map(|(host, _, probe)| {
            let path_mtu = probe.path_mtu.as_ref()?;
            Some((host, probe, path_mtu.mtu_bytes?, path_mtu.vanishing_from_bytes?))
        });
        let Some((host, probe, mtu, from)) = found else { return Vec::new() };
        let what = format!("packets of {} B and more to {} vanish", grouped(from), probe.target);
        vec![Finding {
            id: self.id().to_owned(),
            short: "black hole".to_owned(),
            title: format!("a black hole: {what}, and no router says that they are too big (ICMP is missing)"),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: vec![Evidence {
                host: host.to_owned(),
                counter: "path_mtu_bytes".to_owned(),
                value: format!("{} B answered, {} B neither answered nor refused", grouped(mtu), grouped(from)),
            }],
            explains: None,
            next: Some(NextStep {
                command: format!("ip route replace {} mtu lock {mtu}", probe.target),
                on: Some(host.to_owned()),
                expected: Some("avoid it, until ICMP type 3 code 4 (IPv6: type 2) is let through".to_owned()),
            }),
        }]
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::probe::{PathMtuRecord, ProbeRecord};

    use crate::run_builder::RunBuilder;

    #[test]
    fn only_packets_that_vanish_without_a_word_are_a_black_hole() {
        for (vanishing_from_bytes, is_found) in [(None, false), (Some(1401), true)] {
            let path_mtu = PathMtuRecord {
                mtu_bytes: Some(1400),
                device_bytes: 1500,
                vanishing_from_bytes,
                ..PathMtuRecord::default()
            };
            let mut builder = RunBuilder::new();
            builder.probed((9, 5), ProbeRecord { path_mtu: Some(path_mtu), ..ProbeRecord::default() });
            assert_eq!(builder.finding("path-mtu-black-hole").is_some(), is_found);
        }
    }
}
