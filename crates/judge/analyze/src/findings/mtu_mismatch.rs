//! The interfaces of the two ends have different MTUs.

use fathom_model::{Finding, Layer, NextStep, Severity, units::Bytes};

use super::FindingRule;
use crate::evidence::{TestEvidence, text_evidence};

/// Compares the MTUs of the two ends. It is a remark, because path MTU discovery copes with it where a router is between them.
///
/// On one link it does not: the end with the smaller MTU drops larger frames without a word.
pub(crate) struct MtuMismatch;

impl FindingRule for MtuMismatch {
    fn id(&self) -> &'static str {
        "mtu-mismatch"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        let mtu = |host| seen.environment(host)?.get(seen.interface(host), "mtu_bytes")?.parse::<u64>().ok();
        let ends: Vec<(&str, u64)> = seen.hosts().filter_map(|host| Some((host, mtu(host)?))).collect();
        let [(from, of_from), (to, of_to)] = ends.as_slice() else { return Vec::new() };
        if of_from == of_to {
            return Vec::new();
        }
        let end = |host, mtu: u64| format!("{} of {host} has {}", seen.interface(host), Bytes(mtu).exact());
        let evidence =
            |(host, mtu): &(&str, u64)| text_evidence(host, format!("mtu_bytes {}", seen.interface(host)), mtu);
        let address = seen.run.hosts.get(*to).and_then(|host| host.address.as_deref());
        let title = format!(
            "the MTU of the two ends differs: {}, {}; on one link the larger frames of one end are dropped at the other",
            end(from, *of_from),
            end(to, *of_to)
        );
        vec![seen.finding(self.id(), Severity::Remark, "mtu differs", title).evidence(ends.iter().map(evidence)).next(
            address.map(|address| {
                NextStep::new(format!("fathom probe {address} --test mtu"))
                    .on(from)
                    .expected("show the largest packet that the path carries")
            }),
        )]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn ends_with_different_mtus_are_a_remark() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.wire("10000000000", "1500");
        assert_eq!(builder.finding("mtu-mismatch"), None, "both have 1500");
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "mtu_bytes", "9000");
        let finding = builder.finding("mtu-mismatch").unwrap();
        assert_eq!(finding.severity, Severity::Remark);
        assert!(
            finding.title.starts_with("the MTU of the two ends differs: eth0 of client has 9000"),
            "{}",
            finding.title
        );
        assert_eq!(finding.next.unwrap().command, "fathom probe 198.18.0.2 --test mtu");
    }

    #[test]
    fn an_end_whose_mtu_is_unknown_is_not_compared() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.run.hosts.get_mut("client").unwrap().environment.note("eth0", "mtu_bytes", "9000");
        assert_eq!(builder.finding("mtu-mismatch"), None);
    }
}
