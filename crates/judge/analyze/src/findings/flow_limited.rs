//! Connections waited for a buffer: the peer's receive window or their own send buffer.

use std::collections::BTreeMap;

use fathom_model::{
    Finding, NextStep, Severity, Side,
    names::tcp,
    record::Flow,
    units::{Nanos, percent, ratio},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, ratio_evidence};

/// If connections wait for a buffer for more than this share of their busy time, the stream is held back.
const HOLDS_BACK: f64 = 0.2;
/// Connections that were busy for less than this are ignored.
const BUSY_MIN: Nanos = Nanos::from_millis(100);

/// The peer's window was closed.
pub(crate) struct ReceiveWindow;

impl FindingRule for ReceiveWindow {
    fn id(&self) -> &'static str {
        "receive-window"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let limited = SIDES
            .into_iter()
            .find_map(|(side, peer)| Some((side, peer, wait_ratio(seen, side, tcp::RWND_LIMITED_NS)?)));
        let Some((side, peer, share)) = limited else { return Vec::new() };
        let (Some(sender), Some(receiver)) = (seen.host_of(side), seen.host_of(peer)) else { return Vec::new() };
        vec![Finding {
            id: self.id().to_owned(),
            short: "peer window".to_owned(),
            title: format!(
                "the sender on {sender} waited {} of its time for room in the receiver on {receiver}: it reads too slowly, or its buffer is smaller than the path holds",
                percent(share)
            ),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: vec![ratio_evidence(sender, &format!("{} of {}", tcp::RWND_LIMITED_NS, tcp::BUSY_NS), share)],
            explains: None,
            next: Some(larger_buffer(seen, receiver, "net.ipv4.tcp_rmem", [4096, 131_072, 6 << 20])),
        }]
    }
}

/// The send buffer was full of data that the peer had not acknowledged.
pub(crate) struct SendBuffer;

impl FindingRule for SendBuffer {
    fn id(&self) -> &'static str {
        "send-buffer"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let limited =
            SIDES.into_iter().find_map(|(side, _)| Some((side, wait_ratio(seen, side, tcp::SNDBUF_LIMITED_NS)?)));
        let Some((side, share)) = limited else { return Vec::new() };
        let Some(sender) = seen.host_of(side) else { return Vec::new() };
        vec![Finding {
            id: self.id().to_owned(),
            short: "send buffer".to_owned(),
            title: format!("the send buffer on {sender} was too small for the path {} of the time", percent(share)),
            severity: Severity::HoldsBack,
            tests: vec![seen.test.name.clone()],
            evidence: vec![ratio_evidence(sender, &format!("{} of {}", tcp::SNDBUF_LIMITED_NS, tcp::BUSY_NS), share)],
            explains: None,
            next: Some(larger_buffer(seen, sender, "net.ipv4.tcp_wmem", [4096, 16_384, 4 << 20])),
        }]
    }
}

/// The pairs of sender and peer: either side may have sent.
const SIDES: [(Side, Side); 2] = [(Side::Initiator, Side::Responder), (Side::Responder, Side::Initiator)];

/// Returns the growth of a counter as a share of the connections' busy time, if it is large enough to matter.
fn wait_ratio(seen: &TestEvidence<'_>, side: Side, counter: &str) -> Option<f64> {
    let flows = || seen.records(side).flat_map(|record| &record.flows);
    let busy = Nanos(flows().map(|flow| growth(flow, tcp::BUSY_NS)).sum());
    let limited = flows().map(|flow| growth(flow, counter)).sum();
    ratio(limited, busy.0).filter(|share| *share > HOLDS_BACK && busy >= BUSY_MIN)
}

/// Returns the growth of a value over the samples of a connection. A single sample counts from zero.
fn growth(flow: &Flow, name: &str) -> u64 {
    let value = |values: &BTreeMap<String, u64>| values.get(name).copied().unwrap_or(0);
    match &flow.samples[..] {
        [] => 0,
        [only] => value(&only.values),
        [first, .., last] => value(&last.values).saturating_sub(value(&first.values)),
    }
}

/// Suggests twice the largest buffer that a host allows, at least the kernel's defaults. Suggests 32 MiB if it is unknown.
fn larger_buffer(seen: &TestEvidence<'_>, host: &str, name: &str, usual: [u64; 3]) -> NextStep {
    const UNKNOWN: u64 = 32 << 20;
    let now = seen.environment(host).and_then(|facts| facts.get("sysctl", name)).unwrap_or_default();
    let now: Vec<u64> = now.split_whitespace().filter_map(|part| part.parse().ok()).collect();
    let at_least = |idx: usize| now.get(idx).copied().unwrap_or(0).max(usual[idx]);
    let most = now.get(2).map_or(UNKNOWN, |most| most.saturating_mul(2).max(usual[2]));
    NextStep {
        command: format!("sysctl -w {name}=\"{} {} {most}\"", at_least(0), at_least(1)),
        on: Some(host.to_owned()),
        expected: Some("let more data be on its way at once".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::record::FlowSample;

    fn flow(values: &[(&str, u64)]) -> Flow {
        let sample = |factor: u64| FlowSample {
            at_ns: Nanos(factor),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), value * factor)).collect(),
        };
        Flow { id: "a:1 b:2".to_owned(), samples: vec![sample(1), sample(2), sample(3)] }
    }

    fn streaming(values: &[(&str, u64)]) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.flows = vec![flow(values), flow(values)];
        builder
    }

    #[test]
    fn a_sender_that_waits_for_the_receivers_window_is_told_where_to_enlarge_it() {
        let mut builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)]);
        builder.run.hosts.get_mut("target").unwrap().environment.note(
            "sysctl",
            "net.ipv4.tcp_rmem",
            "4096\t131072\t6291456",
        );
        let finding = builder.finding("receive-window").unwrap();
        assert_eq!(finding.evidence[0].value, "40 %");
        let next = finding.next.unwrap();
        assert_eq!(next.command, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 12582912\"");
        assert_eq!(next.on.as_deref(), Some("target"));
        assert_eq!(builder.finding("send-buffer"), None);
    }

    #[test]
    fn a_buffer_that_somebody_made_tiny_is_set_back_to_the_kernels_default() {
        let mut builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 200_000_000)]);
        let target = builder.run.hosts.get_mut("target").unwrap();
        target.environment.note("sysctl", "net.ipv4.tcp_rmem", "4096 8192 8192");
        let command = builder.finding("receive-window").unwrap().next.unwrap().command;
        assert_eq!(command, "sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"");
    }

    #[test]
    fn a_send_buffer_that_is_too_small_is_the_senders() {
        let builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::SNDBUF_LIMITED_NS, 300_000_000)]);
        let finding = builder.finding("send-buffer").unwrap();
        assert_eq!(finding.next.unwrap().on.as_deref(), Some("client"));
    }

    #[test]
    fn a_window_that_is_closed_now_and_then_holds_nothing_back() {
        let builder = streaming(&[(tcp::BUSY_NS, 500_000_000), (tcp::RWND_LIMITED_NS, 50_000_000)]);
        assert_eq!(builder.finding("receive-window"), None);
    }

    #[test]
    fn connections_that_were_hardly_busy_tell_nothing() {
        let builder = streaming(&[(tcp::BUSY_NS, 10_000_000), (tcp::RWND_LIMITED_NS, 9_000_000)]);
        assert_eq!(builder.finding("receive-window"), None);
    }
}
