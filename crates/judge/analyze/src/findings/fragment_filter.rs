//! A device on the way drops fragments, so that no datagram above the MTU arrives.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::{count, host as counter},
    units::{grouped, ratio},
};

use super::FindingRule;
use crate::{
    change::{Change, smaller_datagrams},
    evidence::{TestEvidence, counter_evidence},
};

/// The id of this rule's findings.
pub(super) const FRAGMENT_FILTER: &str = "fragments-dropped";
/// Fewer fragments are those of other programs.
const FRAGMENTS_MIN: u64 = 10;
/// Below this share of the sent fragments, a device drops them; chance drops single ones.
const ARRIVES: f64 = 0.9;
/// Below this share, those that came are of other programs.
const NONE: f64 = 0.01;
/// The first fragments of all datagrams, which alone have ports.
const ONE_OF_EACH: std::ops::Range<f64> = 0.9..1.1;

/// Compares the fragments that one host made with those that reached the other one, where none of its datagrams was put together.
pub(crate) struct FragmentFilter;

impl FindingRule for FragmentFilter {
    fn id(&self) -> &'static str {
        FRAGMENT_FILTER
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let (Layer::Udp, Some((from, to))) = (seen.test.layer, seen.one_way()) else { return Vec::new() };
        let (Some(sender), Some(receiver)) = (seen.host_of(from), seen.host_of(to)) else { return Vec::new() };
        let n_sent = seen.growth(sender, counter::IP_FRAGMENTS_CREATED, None);
        let [n_came, n_whole] =
            [counter::IP_FRAGMENTS_RECEIVED, counter::IP_REASSEMBLED].map(|name| seen.growth(receiver, name, None));
        // Where nothing passes, not even the short marks of the end, it is not for being fragments.
        let passes = seen.test.conservation.as_ref().is_some_and(|sum| sum.n_received > 0);
        // A filter drops all, or those without ports: a loss hits one of many fragments of nearly each datagram too.
        let is_none = ratio(n_came, n_sent).is_some_and(|share| share < NONE);
        let are_first_ones =
            ratio(n_came, seen.total(from, count::SENT)).is_some_and(|share| ONE_OF_EACH.contains(&share));
        let is_filtered = seen.has_counter(receiver, counter::IP_FRAGMENTS_RECEIVED)
            && n_sent >= FRAGMENTS_MIN
            && n_whole == 0
            && ratio(n_came, n_sent).is_some_and(|share| share < ARRIVES)
            && (is_none || are_first_ones);
        if !passes || !is_filtered {
            return Vec::new();
        }
        let title = if n_came < FRAGMENTS_MIN {
            format!(
                "a device between {sender} and {receiver} drops fragments: the datagrams are larger than the MTU, and none of the {} \
                 fragments arrived",
                grouped(n_sent)
            )
        } else {
            format!(
                "a device between {sender} and {receiver} drops fragments: {} of {} arrived, and no datagram was complete",
                grouped(n_came),
                grouped(n_sent)
            )
        };
        let next = seen.repeat_with_option("size", "1400B");
        let next = next.map(|command| NextStep::new(command).expected("pass, since these datagrams need no fragments"));
        vec![
            seen.finding(FRAGMENT_FILTER, Severity::HoldsBack, "fragments", title)
                .evidence([
                    counter_evidence(sender, counter::IP_FRAGMENTS_CREATED, n_sent),
                    counter_evidence(receiver, counter::IP_FRAGMENTS_RECEIVED, n_came),
                    counter_evidence(receiver, counter::IP_REASSEMBLED, n_whole),
                ])
                .explains(1.0)
                .next(next),
        ]
    }

    fn change(&self, _: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        smaller_datagrams(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn fragments_that_do_not_arrive_are_no_black_hole() {
        let told = |n_came: u64, n_whole: u64, n_arrived: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, n_arrived)]);
            builder.total("client", count::BYTES_SENT, 4_000_000);
            builder.host_counter("client", (counter::IP_FRAGMENTS_CREATED, ""), 3_000);
            builder.host_counter("target", (counter::IP_FRAGMENTS_RECEIVED, ""), n_came);
            builder.host_counter("target", (counter::IP_REASSEMBLED, ""), n_whole);
            builder.analyzed().findings.remove(0)
        };
        let finding = told(0, 0, 2);
        assert_eq!((finding.id.as_str(), finding.severity), (FRAGMENT_FILTER, Severity::Invalidates));
        assert!(finding.title.ends_with("none of the 3,000 fragments arrived"), "{}", finding.title);
        let some = told(1_000, 0, 2);
        assert!(some.title.contains("1,000 of 3,000 arrived"), "{}", some.title);
        assert_ne!(told(2_700, 700, 702).id, FRAGMENT_FILTER, "a loss hits single fragments");
        assert_ne!(told(0, 0, 0).id, FRAGMENT_FILTER, "nothing of any kind arrives");
    }

    #[test]
    fn a_loss_of_single_fragments_of_each_datagram_is_no_filter() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 2)]);
        builder.total("client", count::BYTES_SENT, 60_000_000);
        builder.host_counter("client", (counter::IP_FRAGMENTS_CREATED, ""), 41_000);
        builder.host_counter("target", (counter::IP_FRAGMENTS_RECEIVED, ""), 34_850);
        builder.host_counter("target", (counter::IP_REASSEMBLED, ""), 0);
        assert_eq!(builder.finding(FRAGMENT_FILTER), None);
    }
}
