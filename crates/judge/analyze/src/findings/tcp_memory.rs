//! The kernel's memory for TCP sockets was used up.

use fathom_model::{Finding, Layer, NextStep, Severity, names::host as counter};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// Looks for memory pressure of TCP: above the second value of `net.ipv4.tcp_mem` the kernel shrinks the buffers of all sockets.
///
/// The counter grows once each time that the limit is passed (`tcp_enter_memory_pressure` in `net/ipv4/tcp.c`), so any growth means that
/// buffers were cut. It does not tell for how long or how far, so that the part of the gap is not known.
pub(crate) struct TcpMemory;

impl FindingRule for TcpMemory {
    fn id(&self) -> &'static str {
        "tcp-memory"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::Tcp | Layer::Http | Layer::App) {
            return Vec::new();
        }
        let grown = |host: &str| seen.growth(host, counter::TCP_MEMORY_PRESSURES, None);
        let hosts = seen.hosts().map(|host| (host, grown(host))).filter(|(_, n)| *n > 0);
        let Some((host, n)) = hosts.max_by_key(|(_, n)| *n) else { return Vec::new() };
        let title = format!("the memory for TCP sockets of {host} was used up, so the kernel shrank their buffers");
        // What has all that it asked for needed no larger buffers.
        let severity = if seen.reached_target() { Severity::Remark } else { Severity::HoldsBack };
        vec![
            seen.finding(self.id(), severity, "tcp memory", title)
                .evidence([counter_evidence(host, counter::TCP_MEMORY_PRESSURES, n)])
                .next(
                    NextStep::new("sysctl net.ipv4.tcp_mem")
                        .on(host)
                        .expected("show its limits in pages, outside of containers: raise the second and the third, or use fewer connections"),
                ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn buffers_that_the_kernel_cut_are_told_for_tests_over_tcp_alone() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000_000]);
        assert_eq!(builder.finding("tcp-memory"), None);
        builder.host_counter("target", (counter::TCP_MEMORY_PRESSURES, ""), 2);
        let finding = builder.finding("tcp-memory").unwrap();
        assert_eq!((finding.severity, finding.evidence[0].host.as_str()), (Severity::HoldsBack, "target"));

        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 1_000)]);
        builder.host_counter("target", (counter::TCP_MEMORY_PRESSURES, ""), 2);
        assert_eq!(builder.finding("tcp-memory"), None);
    }
}
