//! Pause frames stopped an interface of the test.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::host::{DEV_RX_PAUSE, DEV_TX_PAUSE},
    units::{BitsPerSec, approximate, grouped, percent},
};

use super::FindingRule;
use crate::{
    evidence::{TestEvidence, counter_evidence},
    gap::{HALF, reaches_a_limit},
};

/// The longest stop that one frame asks for: 65,535 quanta of 512 bits (IEEE 802.3 annex 31B.2).
const BITS_STOPPED_MAX: f64 = 65_535.0 * 512.0;
/// If all frames together could stop the interface for this share of the time, they may be why; below it they could not be.
const MATTERS: f64 = 0.05;

/// Looks at the pause frames that the interfaces of the test received and sent (`ethtool --include-statistics -a`).
///
/// With them, a test measures the slowest receiver behind the cable and not its own path. How long each frame stopped the interface is known
/// to the device alone, and a stop ends early with a second frame, so they are a cause only if half of them can have stopped it for half of the time, and if the test lacks something; what they explain
/// is not told, as that is the most. Silent without a counter in the driver, as on
/// virtual devices, and where all frames together could not have stopped the interface for a twentieth of the time.
pub(crate) struct PauseFrames;

impl FindingRule for PauseFrames {
    fn id(&self) -> &'static str {
        "pause-frames"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["one-core-receives", "receive-budget", "core-saturated"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Single packets do not fill a receiver.
        if seen.test.layer == Layer::Path {
            return Vec::new();
        }
        seen.hosts()
            .flat_map(|host| seen.cards(host).into_iter().filter_map(move |card| self.of_card(seen, (host, card))))
            .collect()
    }
}

impl PauseFrames {
    fn of_card(&self, seen: &TestEvidence<'_>, (host, card): (&str, &str)) -> Option<Finding> {
        let [received, sent] = [DEV_RX_PAUSE, DEV_TX_PAUSE].map(|name| seen.growth(host, name, Some(card)));
        let stopped = stopped_share(seen, (host, card), received.max(sent))?;
        if stopped < MATTERS {
            return None;
        }
        let up_to = percent(stopped.min(1.0));
        let (title, next) = if received >= sent {
            let title = format!(
                "{card} of {host} was asked to stop by {} pause frames, for up to {up_to} of the time: its link partner is congested",
                grouped(received),
            );
            (title, "show whether it goes on; then look at the switch for the port that sends them")
        } else {
            let title = format!(
                "{card} of {host} sent {} pause frames to its link partner, for up to {up_to} of the time: the host does not take frames as \
                 fast as they come",
                grouped(sent),
            );
            (title, "show its drops and its queues; the core that takes its frames is too slow, or its ring too small")
        };
        // A stop ends early with a second frame, and what is asked to stop are the frames of one direction alone.
        let role = seen.role_of(host);
        let carries = if received >= sent { role != "receiver" } else { role != "sender" };
        let counters = [(DEV_RX_PAUSE, received), (DEV_TX_PAUSE, sent)].into_iter().filter(|(_, n)| *n > 0);
        let evidence = counters.map(|(name, n)| counter_evidence(host, format!("{name} {card}"), n));
        let next = NextStep::new(format!("ethtool -S {card}")).on(host).expected(next);
        let is_cause = stopped / 2.0 >= HALF && carries && !reaches_a_limit(seen);
        let severity = if is_cause { Severity::HoldsBack } else { Severity::Remark };
        Some(seen.finding(self.id(), severity, "pause frames", title).evidence(evidence).next(next))
    }
}

/// Returns the largest share of the time for which frames can have stopped an interface, above 1 if they overlap; `None` if the speed of its line or
/// the time is not known.
fn stopped_share(seen: &TestEvidence<'_>, (host, card): (&str, &str), n: u64) -> Option<f64> {
    let fact = |name: &str| seen.environment(host)?.get(card, name);
    // The number that a device without a line reports says nothing about the length of a quantum.
    let has_line = fact("line_rate").is_none_or(|rate| rate == "real");
    let speed = fact("speed_bps").filter(|_| has_line)?.parse::<BitsPerSec>().ok()?;
    let time = seen.sampled_time(host)?.as_secs_f64();
    let stopped = approximate(n) * BITS_STOPPED_MAX / speed.get();
    (n > 0 && time > 0.0 && speed.get() > 0.0).then(|| stopped / time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn paused(host: &str, counter: &str, n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[100_000_000]);
        builder.wire("10000000000", "1500");
        builder.host_counter(host, (counter, "eth0"), n);
        builder
    }

    #[test]
    fn a_sender_that_was_asked_to_stop_is_held_back_by_what_is_behind_its_cable() {
        let finding = paused("client", DEV_RX_PAUSE, 900).finding("pause-frames").unwrap();
        assert!(finding.title.starts_with("eth0 of client was asked to stop by 900 pause frames"), "{}", finding.title);
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.evidence[0].counter, "dev_rx_pause eth0");
        assert_eq!(finding.next.unwrap().command, "ethtool -S eth0");
    }

    #[test]
    fn a_receiver_that_asks_to_stop_does_not_keep_up() {
        let title = paused("target", DEV_TX_PAUSE, 900).finding("pause-frames").unwrap().title;
        assert!(title.starts_with("eth0 of target sent 900 pause frames to its link partner"), "{title}");
    }

    #[test]
    fn frames_that_stop_an_interface_for_less_than_half_of_the_time_are_a_remark() {
        let finding = paused("client", DEV_RX_PAUSE, 50).finding("pause-frames").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "{}", finding.title);
    }

    #[test]
    fn a_few_frames_and_devices_without_a_speed_are_silent() {
        assert_eq!(paused("client", DEV_RX_PAUSE, 2).finding("pause-frames"), None, "3.4 ms each at most");
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("client", (DEV_RX_PAUSE, "eth0"), 900);
        assert_eq!(builder.finding("pause-frames"), None);
    }

    #[test]
    fn the_number_of_a_device_without_a_line_gives_no_time() {
        let mut builder = paused("client", DEV_RX_PAUSE, 900);
        for (line_rate, is_told) in [("real", true), ("nominal", false)] {
            let client = builder.run.hosts.get_mut("client").unwrap();
            client.environment.note("eth0", "line_rate", line_rate);
            assert_eq!(builder.finding("pause-frames").is_some(), is_told, "{line_rate}");
        }
    }

    #[test]
    fn frames_that_stop_acknowledgments_alone_hold_nothing_back() {
        let severity = |host, counter| paused(host, counter, 900).finding("pause-frames").unwrap().severity;
        assert_eq!(severity("target", DEV_RX_PAUSE), Severity::Remark, "the receiver sends no data");
        assert_eq!(severity("client", DEV_TX_PAUSE), Severity::Remark, "the sender gets none");
    }
}
