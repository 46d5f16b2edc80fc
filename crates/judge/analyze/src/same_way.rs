//! Rates that datagrams and frames of other tests of a run have shown a way to carry.

use fathom_model::{
    Derivation, Layer, Run, Summary, TestRun,
    names::count,
    units::{approximate, ratio},
};

use crate::{conservation::one_way, evidence::TestEvidence, limits::headers};

/// Two rates that differ by less are the same limit.
const SAME: f64 = 0.1;
/// What was offered differs by at least this factor between two tests that show a limit: else both may have met one of the sender.
const OTHER_OFFER: f64 = 1.5;
/// A test that loses less shows no limit.
const LIMITED: f64 = 0.05;
/// A way on which another test carried so much more is not full.
const CARRIES_MORE: f64 = 1.3;
/// The bytes of an Ethernet header, and of the FCS, which sizes of frames include and queues do not see.
const ETHERNET: u64 = 14;
const FCS: u64 = 4;

/// What a test of datagrams or frames offered and what arrived, in bits per second of frames with their Ethernet header.
struct CarriedRate {
    offered: f64,
    carried: f64,
}

impl CarriedRate {
    fn of(run: &Run, test: &TestRun) -> Option<Self> {
        let size = test.options.size("size")?.0;
        let frame = match test.layer {
            Layer::Frames => size.checked_sub(FCS)?,
            Layer::Udp => size + headers(run, test).length().0 + ETHERNET,
            _ => return None,
        };
        let sum = test.conservation.as_ref()?;
        let counts_arrivals = |summary: &&Summary| matches!(&summary.metric.from, Derivation::Rate { counter, .. } if counter == count::RECEIVED);
        let arrived = test.summaries.iter().find(counts_arrivals)?.value?;
        let carried = arrived * 8.0 * approximate(frame);
        let share = ratio(sum.n_received, sum.n_sent).filter(|share| *share > 0.0)?;
        Some(Self { offered: carried / share, carried })
    }

    fn is_limited(&self) -> bool {
        self.carried < (1.0 - LIMITED) * self.offered
    }
}

/// The rates of the other tests between the same hosts in the same direction.
fn others<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = CarriedRate> + use<'a> {
    let (run, test) = (seen.run, seen.test);
    let way = seen.one_way();
    let is_same = move |other: &&TestRun| {
        let ends = |test: &TestRun| (test.from.clone(), test.to.clone(), test.path.clone());
        other.name != test.name
            && ends(other) == ends(test)
            && (way.is_none() || one_way(other, count::SENT, count::RECEIVED) == way)
    };
    run.tests.iter().filter(is_same).filter_map(move |other| CarriedRate::of(run, other))
}

/// Returns true if this test and another one of the same way carried the same rate although they offered different ones: something lets
/// that rate pass.
pub(crate) fn share_a_limit(seen: &TestEvidence<'_>) -> bool {
    let Some(own) = CarriedRate::of(seen.run, seen.test).filter(CarriedRate::is_limited) else { return false };
    let differs = |a: f64, b: f64, by: f64| a.max(b) > by * a.min(b);
    others(seen).any(|other| {
        other.is_limited()
            && differs(own.offered, other.offered, OTHER_OFFER)
            && !differs(own.carried, other.carried, 1.0 + SAME)
    })
}

/// Returns what a test of datagrams or frames carried, in bits per second of frames with their Ethernet header.
pub(crate) fn carried_bits(seen: &TestEvidence<'_>) -> Option<f64> {
    CarriedRate::of(seen.run, seen.test).map(|rate| rate.carried)
}

/// Returns true if another test of the same way carried clearly more bits per second, so that this one does not fill it.
pub(crate) fn carries_more(seen: &TestEvidence<'_>, bits_per_sec: f64) -> bool {
    bits_per_sec > 0.0 && others(seen).any(|other| other.carried > CARRIES_MORE * bits_per_sec)
}

#[cfg(test)]
mod tests {
    use crate::run_builder::RunBuilder;

    /// Datagrams of 1,000 bytes, and frames that carry as many bits if they pass at the same rate.
    fn datagrams_and_frames((sent, received): (u64, u64), (frames_sent, frames_received): (u64, u64)) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(sent, received)]);
        builder.udp_stream(&[(frames_sent, frames_received)]);
        for (test, size) in builder.run.tests.iter_mut().zip(["1000", "1046"]) {
            test.options.set("size", size);
        }
        builder.run.tests[1].layer = fathom_model::Layer::Frames;
        builder.run.tests[1].name = "frames".to_owned();
        builder
    }

    fn findings_of_frames(builder: &RunBuilder) -> Vec<String> {
        let run = builder.analyzed();
        let of_frames = run.findings.iter().filter(|finding| finding.tests.contains(&"frames".to_owned()));
        of_frames.map(|finding| finding.id.clone()).collect()
    }

    #[test]
    fn what_two_tests_carry_whatever_they_offer_is_a_rate_limit() {
        let limited = datagrams_and_frames((10_000, 1_000), (100_000, 1_010));
        assert!(findings_of_frames(&limited).contains(&"rate-limit".to_owned()), "{:?}", findings_of_frames(&limited));
        for (datagrams, frames) in [
            ((10_000, 1_000), (100_000, 5_000)),
            ((10_000, 1_000), (10_500, 1_000)),
            ((1_000, 1_000), (100_000, 1_000)),
        ] {
            let other = datagrams_and_frames(datagrams, frames);
            let found = findings_of_frames(&other);
            assert!(
                found.contains(&"loss".to_owned()) && !found.contains(&"rate-limit".to_owned()),
                "{datagrams:?} {frames:?} {found:?}"
            );
        }
    }
}
