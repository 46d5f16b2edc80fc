//! Packets were dropped at a place that counts them.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::{count, host},
    units::{Bytes, grouped, percent, ratio},
};

use super::{Cause, Evidenced, counted, explained};

/// Fewer drops than one packet in a hundred thousand are not told: devices also count what nobody asked them to carry.
const TOLD: f64 = 1e-5;
/// From one packet in a thousand on, drops hold a test back.
const HOLDS_BACK: f64 = 1e-3;

/// Some drops of one host, as a finding about them.
struct Dropped<'a> {
    id: &'static str,
    short: &'static str,
    host: &'a str,
    /// What happened, in front of the numbers.
    what: String,
    evidence: Vec<fathom_model::Evidence>,
    n: u64,
    /// Of how many packets, where that is known.
    of: u64,
    next: NextStep,
}

impl Dropped<'_> {
    fn finding(self, seen: &Evidenced<'_>) -> Option<Finding> {
        let share = ratio(self.n, self.of).unwrap_or(1.0);
        // A test that accounts for every packet tells of every drop.
        let accounted = seen.n_lost().is_some_and(|lost| lost > 0);
        if self.n == 0 || (share < TOLD && !accounted) {
            return None;
        }
        let of =
            if self.of > 0 { format!(" of {} ({})", grouped(self.of), percent(share.min(1.0))) } else { String::new() };
        Some(Finding {
            id: self.id.to_owned(),
            short: self.short.to_owned(),
            title: format!("{}: {} dropped{of}", self.what, grouped(self.n)),
            severity: if share >= HOLDS_BACK || accounted { Severity::HoldsBack } else { Severity::Remark },
            tests: vec![seen.test.name.clone()],
            evidence: self.evidence,
            explains: explained(self.n, seen.n_lost()),
            next: Some(NextStep { on: Some(self.host.to_owned()), ..self.next }),
        })
    }
}

fn step(command: String, expected: &str) -> NextStep {
    NextStep { command, on: None, expected: Some(expected.to_owned()) }
}

/// Twice what a `sysctl` is now, but at least this much.
fn doubled(seen: &Evidenced<'_>, host: &str, name: &str, least: u64) -> u64 {
    let now = seen.environment(host).and_then(|facts| facts.get("sysctl", name)?.parse::<u64>().ok());
    now.map_or(least, |now| now.saturating_mul(2).max(least))
}

/// The packets that a host received in the test, as far as its devices counted them.
fn arrived(seen: &Evidenced<'_>, host: &str) -> u64 {
    seen.growth(host, host::DEV_RX_FRAMES, None)
}

/// The receiving socket had no room.
pub(crate) struct UdpReceiveBuffer;

impl Cause for UdpReceiveBuffer {
    fn id(&self) -> &'static str {
        "udp-receive-buffer"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let Some(receiver) = seen.host_of(to) else { return Vec::new() };
        let of_host = seen.growth(receiver, host::UDP_RCVBUF_ERRORS, None);
        let own = seen.total(to, count::SOCKET_DROPPED);
        let evidence = [(host::UDP_RCVBUF_ERRORS, of_host), (count::SOCKET_DROPPED, own)];
        let starved = seen.shares_full_cores();
        let room = doubled(seen, receiver, "net.core.rmem_max", 16 << 20);
        let dropped = Dropped {
            id: self.id(),
            short: "socket full",
            host: receiver,
            what: format!(
                "the buffer of the receiving socket on {receiver} was full{}",
                if starved { ", as its reader shares full cores with the sender" } else { "" }
            ),
            evidence: evidence
                .into_iter()
                .filter(|(_, n)| *n > 0)
                .map(|(name, n)| counted(receiver, name, n))
                .collect(),
            n: of_host.max(own),
            of: seen.total(from, count::SENT),
            next: step(
                format!("sysctl -w net.core.rmem_max={room}"),
                &format!("hold bursts of {}, unless the reader is always too slow", Bytes(room)),
            ),
        };
        let finding = dropped.finding(seen);
        // No buffer is large enough for a reader that gets no processor.
        finding.map(|finding| if starved { Finding { next: None, ..finding } } else { finding }).into_iter().collect()
    }
}

/// A core's queue of packets that wait to be processed was full.
pub(crate) struct Backlog;

impl Cause for Backlog {
    fn id(&self) -> &'static str {
        "backlog-overflow"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let on_host = |host: &str| {
            let grown = seen.growth_by_instance(host, host::SOFTNET_DROPPED);
            let (core, _) = grown.first()?;
            let most = doubled(seen, host, "net.core.netdev_max_backlog", 10_000);
            let dropped = Dropped {
                id: self.id(),
                short: "backlog",
                host,
                what: format!("the backlog of {core} on {host} was full"),
                evidence: grown.iter().map(|(core, n)| counted(host, &format!("softnet_dropped {core}"), *n)).collect(),
                n: grown.iter().map(|(_, n)| n).sum(),
                of: seen.growth(host, host::SOFTNET_PROCESSED, None),
                next: step(
                    format!("sysctl -w net.core.netdev_max_backlog={most}"),
                    "let longer bursts wait instead of being dropped",
                ),
            };
            dropped.finding(seen)
        };
        // The backlog belongs to a core, so hosts of one machine show the same drops.
        let hosts = seen.hosts().take(if seen.one_machine() { 1 } else { usize::MAX });
        hosts.filter_map(on_host).collect()
    }
}

/// A device dropped what arrived.
pub(crate) struct DeviceReceive;

impl Cause for DeviceReceive {
    fn id(&self) -> &'static str {
        "device-receive-drops"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let on_host = |host| {
            let interface = seen.interface(host);
            let dropped = seen.growth(host, host::DEV_RX_DROPPED, Some(interface));
            let fifo = seen.growth(host, host::DEV_RX_FIFO, Some(interface));
            let counters =
                [(host::DEV_RX_DROPPED, dropped), (host::DEV_RX_FIFO, fifo)].into_iter().filter(|(_, n)| *n > 0);
            let evidence = counters.map(|(name, n)| counted(host, &format!("{name} {interface}"), n)).collect();
            let dropped = Dropped {
                id: self.id(),
                short: "device drops",
                host,
                what: format!("{interface} on {host} dropped what arrived"),
                evidence,
                // The device counts again what the backlog of a core behind it drops.
                n: dropped.saturating_sub(seen.growth(host, host::SOFTNET_DROPPED, None)).max(fifo),
                of: arrived(seen, host),
                next: step(format!("ethtool -G {interface} rx 4096"), "hold longer bursts in the ring"),
            };
            dropped.finding(seen)
        };
        seen.hosts().filter(|host| !seen.is_of_device(host)).filter_map(on_host).collect()
    }
}

/// A device or its queue dropped what was to be sent.
pub(crate) struct DeviceSend;

impl Cause for DeviceSend {
    fn id(&self) -> &'static str {
        "device-send-drops"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let on_host = |host| {
            let interface = seen.interface(host);
            let counted_all = seen.growth(host, host::DEV_TX_DROPPED, Some(interface));
            // A device that is memory also counts what the backlog behind it drops.
            let backlog = |host| seen.growth(host, host::SOFTNET_DROPPED, None);
            let behind = if seen.is_memory(host) { seen.hosts().map(backlog).max().unwrap_or(0) } else { 0 };
            let n = counted_all.saturating_sub(behind);
            let dropped = Dropped {
                id: self.id(),
                short: "device drops",
                host,
                what: format!("{interface} on {host} dropped what was to be sent"),
                evidence: vec![counted(host, &format!("{} {interface}", host::DEV_TX_DROPPED), n)],
                n,
                of: seen.growth(host, host::DEV_TX_FRAMES, Some(interface)),
                next: step(format!("ip link set {interface} txqueuelen 10000"), "hold longer bursts in the queue"),
            };
            dropped.finding(seen)
        };
        seen.hosts().filter(|host| !seen.is_of_device(host)).filter_map(on_host).collect()
    }
}

/// The queueing discipline of a device dropped what was to be sent.
pub(crate) struct QdiscSend;

impl Cause for QdiscSend {
    fn id(&self) -> &'static str {
        "qdisc-drops"
    }

    fn look(&self, seen: &Evidenced<'_>) -> Vec<Finding> {
        let on_host = |host| {
            let interface = seen.interface(host);
            let n = seen.growth(host, host::QDISC_DROPPED, Some(interface));
            let dropped = Dropped {
                id: self.id(),
                short: "qdisc drops",
                host,
                what: format!("the queueing discipline of {interface} on {host} dropped what was to be sent"),
                evidence: vec![counted(host, &format!("{} {interface}", host::QDISC_DROPPED), n)],
                n,
                of: n + seen.growth(host, host::DEV_TX_FRAMES, Some(interface)),
                next: step(format!("tc -s qdisc show dev {interface}"), "show which discipline drops, and its limit"),
            };
            dropped.finding(seen)
        };
        seen.hosts().filter_map(on_host).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    #[test]
    fn a_receiver_that_is_too_slow_is_named_with_its_counter() {
        let mut story = Story::new();
        story.udp_stream(&[(100_000, 90_000), (100_000, 90_000)]);
        story.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 9_000);
        story.run.hosts.get_mut("target").unwrap().environment.note("sysctl", "net.core.rmem_max", "20000000");
        let finding = story.finding("udp-receive-buffer").unwrap();
        assert_eq!(finding.evidence[0].counter, "udp_rcvbuf_errors");
        assert_eq!((finding.evidence[0].host.as_str(), finding.evidence[0].value.as_str()), ("target", "18,000"));
        assert_eq!(finding.explains, Some(0.9));
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.core.rmem_max=40000000");
        assert!(finding.title.ends_with("18,000 dropped of 200,000 (9.0 %)"), "{}", finding.title);
    }

    #[test]
    fn a_backlog_that_overflowed_is_named_with_its_core() {
        let mut story = Story::new();
        story.udp_stream(&[(1000, 900)]);
        story.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), 0);
        story.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 100);
        let finding = story.finding("backlog-overflow").unwrap();
        assert_eq!(finding.evidence[0].counter, "softnet_dropped cpu1");
        assert_eq!((finding.explains, finding.severity), (Some(1.0), Severity::HoldsBack));
    }

    #[test]
    fn a_device_that_drops_one_in_a_million_is_not_told_of() {
        let mut story = Story::new();
        story.tcp_stream(&[1000]);
        story.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 2_000_000);
        story.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 2);
        assert_eq!(story.finding("device-receive-drops"), None);
        story.host_counter("target", (host::DEV_RX_DROPPED, "eth0"), 20_000);
        let finding = story.finding("device-receive-drops").unwrap();
        assert_eq!((finding.severity, finding.explains), (Severity::HoldsBack, None));
        assert_eq!(finding.next.unwrap().command, "ethtool -G eth0 rx 4096");
    }

    #[test]
    fn a_queueing_discipline_that_drops_is_named_with_what_shows_it() {
        let mut story = Story::new();
        story.udp_stream(&[(1000, 900)]);
        story.host_counter("client", (host::DEV_TX_FRAMES, "eth0"), 900);
        story.host_counter("client", (host::QDISC_DROPPED, "eth0"), 100);
        let finding = story.finding("qdisc-drops").unwrap();
        assert_eq!((finding.explains, finding.severity), (Some(1.0), Severity::HoldsBack));
        assert!(finding.title.ends_with("100 dropped of 1,000 (10 %)"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "tc -s qdisc show dev eth0");
        assert_eq!(story.finding("device-send-drops"), None);
    }

    #[test]
    fn another_interface_of_the_host_is_not_the_path() {
        let mut story = Story::new();
        story.tcp_stream(&[1000]);
        story.host_counter("client", (host::DEV_TX_DROPPED, "eth7"), 20_000);
        assert_eq!(story.finding("device-send-drops"), None);
        story.host_counter("client", (host::DEV_TX_DROPPED, "eth0"), 20_000);
        assert_eq!(story.finding("device-send-drops").unwrap().next.unwrap().on.as_deref(), Some("client"));
    }
}
