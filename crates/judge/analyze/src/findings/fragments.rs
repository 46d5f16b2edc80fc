//! What a path does to datagrams in fragments: it loses them, takes them to another target, or puts them together.

use std::collections::BTreeMap;

use fathom_model::{
    Evidence, Finding, NextStep, Severity, Side,
    names::host,
    probe::{FragmentOrderRecord, FragmentsRecord, OrderOutcome},
    units::{grouped, ratio},
};
use fathom_statistics::proportion_interval;

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence, text_evidence};

/// Every order is judged, so one of 17 must not stand out by chance.
const LEVEL: f64 = 0.999;
/// Fewer fragments in the counters of a device are those of other traffic.
const FRAGMENTS_MIN: u64 = 10;
/// The share of our fragments from which on a counter is about them, and not about other traffic.
const SHARE: f64 = 0.1;
/// The share of incomplete datagrams that is missing at the receiver if something holds them back.
const HELD: f64 = 0.9;

/// The orders of all trials of a test together, with the host that sent and the target.
struct FragmentTotals<'a> {
    host: &'a str,
    target: &'a str,
    is_ipv6: bool,
    orders: Vec<FragmentOrderRecord>,
    n_flows: u64,
    n_flows_unsteady: u64,
}

fn fragments<'a>(seen: &TestEvidence<'a>) -> Option<FragmentTotals<'a>> {
    let records: Vec<_> =
        seen.probes().filter_map(|(host, _, probe)| Some((host, probe, probe.fragments.as_ref()?))).collect();
    let (host, probe, first) = records.first()?;
    let mut orders: BTreeMap<&str, FragmentOrderRecord> = BTreeMap::new();
    for order in records.iter().flat_map(|(.., record)| &record.orders) {
        let empty = || FragmentOrderRecord {
            order: order.order.clone(),
            outcome: order.outcome,
            ..FragmentOrderRecord::default()
        };
        let sum = orders.entry(&order.order).or_insert_with(empty);
        sum.n_sent += order.n_sent;
        sum.n_fragments += order.n_fragments;
        sum.n_answered += order.n_answered;
        sum.n_elsewhere += order.n_elsewhere;
        sum.n_unjudged += order.n_unjudged;
        sum.n_duplicates += order.n_duplicates;
    }
    // The order of sending is that of the tables.
    let names = records.iter().flat_map(|(.., record)| &record.orders).map(|order| order.order.as_str());
    let orders = names.filter_map(|name| orders.remove(name)).collect();
    let sum = |of: fn(&FragmentsRecord) -> u64| records.iter().map(|(.., record)| of(record)).sum();
    Some(FragmentTotals {
        host,
        target: &probe.target,
        is_ipv6: first.ip_version == 6,
        orders,
        n_flows: sum(|record| record.n_flows),
        n_flows_unsteady: sum(|record| record.n_flows_unsteady),
    })
}

impl FragmentTotals<'_> {
    fn whole(&self) -> Option<&FragmentOrderRecord> {
        self.orders.iter().find(|order| order.order == FragmentOrderRecord::WHOLE)
    }

    /// The orders of a class that lose more than their number of packets explains by the loss of whole datagrams; those with any loss if
    /// only all together do.
    fn lossy<'a>(&self, class: &[&'a FragmentOrderRecord]) -> Vec<&'a FragmentOrderRecord> {
        let whole = self.whole().and_then(|whole| proportion_interval((whole.n_lost(), whole.n_sent), 1, LEVEL));
        let Some(whole) = whole else { return Vec::new() };
        let is_lossy = |n_lost, n_sent, n_fragments| {
            let n_packets = ratio(n_fragments, n_sent).unwrap_or(1.0).max(1.0);
            let expected = 1.0 - (1.0 - whole.high).powf(n_packets);
            proportion_interval((n_lost, n_sent), 1, LEVEL).is_some_and(|lost| lost.low > expected)
        };
        let stands_out = |order: &FragmentOrderRecord| is_lossy(order.n_lost(), order.n_sent, order.n_fragments);
        let single: Vec<_> = class.iter().copied().filter(|order| stands_out(order)).collect();
        let sum = |of: fn(&FragmentOrderRecord) -> u64| class.iter().map(|order| of(order)).sum::<u64>();
        let all = (sum(FragmentOrderRecord::n_lost), sum(|order| order.n_sent), sum(|order| order.n_fragments));
        if single.is_empty() && is_lossy(all.0, all.1, all.2) {
            return class.iter().copied().filter(|order| order.n_lost() > 0).collect();
        }
        single
    }

    /// The evidence of orders: how many of their datagrams something happened to.
    fn evidence(&self, orders: &[&FragmentOrderRecord], of: fn(&FragmentOrderRecord) -> (u64, u64)) -> Vec<Evidence> {
        let of_order = |order: &&FragmentOrderRecord| {
            let (part, all) = of(order);
            text_evidence(self.host, order.order.clone(), format!("{} of {}", grouped(part), grouped(all)))
        };
        orders.iter().map(of_order).collect()
    }
}

/// Names orders, or all of them by what they are.
fn named(orders: &[&FragmentOrderRecord]) -> String {
    orders.iter().map(|order| order.order.as_str()).collect::<Vec<_>>().join(", ")
}

/// Datagrams in fragments, or behind extension headers, do not arrive although whole ones do.
pub(crate) struct FragmentsLost;

impl FindingRule for FragmentsLost {
    fn id(&self) -> &'static str {
        "fragments-lost"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(fragments) = fragments(seen) else { return Vec::new() };
        let is_due = |order: &&FragmentOrderRecord| {
            order.outcome == OrderOutcome::Answered && order.order != FragmentOrderRecord::WHOLE
        };
        let (cut, plain): (Vec<_>, Vec<_>) =
            fragments.orders.iter().filter(is_due).partition(|order| order.n_fragments > 0);
        let whole = fragments.whole().map_or((0, 0), |whole| (whole.n_lost(), whole.n_sent));
        let cases = [
            (cut, "fragments", "datagrams in fragments"),
            (plain, "ext headers", "datagrams behind extension headers of IPv6"),
        ];
        let of_case = |(class, short, what): (Vec<&FragmentOrderRecord>, &str, &str)| {
            let orders = fragments.lossy(&class);
            let sum = |of: fn(&FragmentOrderRecord) -> u64| orders.iter().map(|order| of(order)).sum::<u64>();
            let (n_lost, n_sent) = (sum(FragmentOrderRecord::n_lost), sum(|order| order.n_sent));
            if n_lost == 0 {
                return None;
            }
            let title = format!(
                "{what} to {} are lost: {} of {} ({}), and {} of {} whole ones",
                fragments.target,
                grouped(n_lost),
                grouped(n_sent),
                named(&orders),
                grouped(whole.0),
                grouped(whole.1)
            );
            let evidence = fragments.evidence(&orders, |order| (order.n_lost(), order.n_sent));
            let next = NextStep::new("nstat -az 'Ip*'");
            let next = next.expected("show on the device and on each target where fragments end");
            Some(seen.finding(self.id(), Severity::HoldsBack, short, title).evidence(evidence).next(next))
        };
        cases.into_iter().filter_map(of_case).collect()
    }
}

/// Datagrams in fragments reach another target than the whole ones of their flow.
pub(crate) struct FragmentsElsewhere;

impl FindingRule for FragmentsElsewhere {
    fn id(&self) -> &'static str {
        "fragments-elsewhere"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(fragments) = fragments(seen) else { return Vec::new() };
        let orders: Vec<_> = fragments.orders.iter().filter(|order| order.n_elsewhere > 0).collect();
        let judged = |order: &FragmentOrderRecord| order.n_answered.saturating_sub(order.n_unjudged);
        let n: u64 = orders.iter().map(|order| order.n_elsewhere).sum();
        let all: u64 = orders.iter().map(|order| judged(order)).sum();
        let mut findings = Vec::new();
        if n > 0 {
            let title = format!(
                "the device does not keep flows together: {} of {} datagrams to {} reached another target than the whole datagrams of \
                 their flow ({})",
                grouped(n),
                grouped(all),
                fragments.target,
                named(&orders)
            );
            let evidence = fragments
                .evidence(&orders, |order| (order.n_elsewhere, order.n_answered.saturating_sub(order.n_unjudged)));
            let next = NextStep::new("tcpdump -ni any 'ip[6:2] & 0x3fff != 0 or ip6[6] == 44'");
            let next = next.expected(
                "show on each target which fragments reach it; only the first of a datagram has ports, in IPv6 behind the fragment header",
            );
            findings.push(
                seen.finding(self.id(), Severity::HoldsBack, "other target", title).evidence(evidence).next(next),
            );
        }
        if fragments.n_flows_unsteady > 0 {
            let title = format!(
                "whole datagrams of {} of {} flows to {} reached several targets, so their fragments cannot be judged",
                grouped(fragments.n_flows_unsteady),
                grouped(fragments.n_flows),
                fragments.target
            );
            findings.push(seen.finding(self.id(), Severity::Disturbs, "moving flows", title));
        }
        findings
    }
}

/// A datagram was answered that no host may put together.
pub(crate) struct FragmentsUnexpected;

impl FindingRule for FragmentsUnexpected {
    fn id(&self) -> &'static str {
        "fragments-unexpected"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(fragments) = fragments(seen) else { return Vec::new() };
        let orders: Vec<_> = fragments.orders.iter().filter(|order| order.n_unexpected() > 0).collect();
        let n: u64 = orders.iter().map(|order| order.n_unexpected()).sum();
        if n == 0 {
            return Vec::new();
        }
        let title = format!(
            "{} datagrams to {} were answered that no host may put together ({}; RFC 8200 section 4.5, RFC 5722)",
            grouped(n),
            fragments.target,
            named(&orders)
        );
        let evidence = fragments.evidence(&orders, |order| (order.n_unexpected(), order.n_sent));
        vec![seen.finding(self.id(), Severity::HoldsBack, "unexpected", title).evidence(evidence)]
    }
}

/// Something on the path puts fragments together.
pub(crate) struct FragmentsReassembled;

impl FindingRule for FragmentsReassembled {
    fn id(&self) -> &'static str {
        "fragments-reassembled"
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(fragments) = fragments(seen) else { return Vec::new() };
        let n_sent: u64 = fragments.orders.iter().map(|order| order.n_fragments).sum();
        let found = at_device(seen, &fragments, n_sent).or_else(|| before_receiver(seen, &fragments, n_sent));
        let Some((title, evidence, next)) = found else { return Vec::new() };
        vec![seen.finding(self.id(), Severity::HoldsBack, "reassembly", title).evidence(evidence).next(next)]
    }
}

type Reassembly = (String, Vec<Evidence>, NextStep);

/// The counters of the device in between: it received fragments for itself, or made new ones of what had come in fragments.
fn at_device(seen: &TestEvidence<'_>, fragments: &FragmentTotals<'_>, n_sent: u64) -> Option<Reassembly> {
    let via = seen.via()?;
    // A router cuts IPv4 packets, fragments too, for a narrow link. It never cuts those of IPv6 (RFC 8200 section 5).
    let created = Some(host::IP_FRAGMENTS_CREATED).filter(|_| fragments.is_ipv6);
    let counters = [host::IP_FRAGMENTS_RECEIVED, host::IP_REASSEMBLED].into_iter().chain(created);
    let grown: Vec<(&str, u64)> = counters.map(|counter| (counter, seen.growth(via, counter, None))).collect();
    let is_ours = |n: u64| n >= FRAGMENTS_MIN && ratio(n, n_sent).is_some_and(|share| share >= SHARE);
    let (_, most) = grown.iter().copied().max_by_key(|(_, n)| *n)?;
    if !is_ours(most) {
        return None;
    }
    let title = format!(
        "the device {via} puts fragments together before it forwards them ({} of {} fragments): it needs memory and time for each, and \
         incomplete datagrams end there",
        grouped(most.min(n_sent)),
        grouped(n_sent)
    );
    let evidence =
        grown.into_iter().filter(|(_, n)| *n > 0).map(|(counter, n)| counter_evidence(via, counter, n)).collect();
    let next = NextStep::new("nft list ruleset").on(via);
    let next =
        next.expected("show the rules that need connection tracking; one before priority -400 with notrack avoids it");
    Some((title, evidence, next))
}

/// The counter of the receiver, where fragments of incomplete datagrams are missing and those of complete ones are not.
fn before_receiver(seen: &TestEvidence<'_>, fragments: &FragmentTotals<'_>, n_sent: u64) -> Option<Reassembly> {
    let receiver = seen.host_of(Side::Responder)?;
    if !seen.has_counter(receiver, host::IP_FRAGMENTS_RECEIVED) {
        return None;
    }
    let n_lost: u64 = fragments.orders.iter().map(FragmentOrderRecord::n_lost).sum();
    let incomplete = fragments.orders.iter().filter(|order| order.outcome != OrderOutcome::Answered);
    let n_incomplete: u64 = incomplete.map(|order| order.n_fragments).sum();
    let n_received = seen.growth(receiver, host::IP_FRAGMENTS_RECEIVED, None);
    let n_missing = n_sent.saturating_sub(n_received);
    let is_held = ratio(n_missing, n_incomplete).is_some_and(|share| share >= HELD);
    if n_lost > 0 || n_incomplete < FRAGMENTS_MIN || !is_held {
        return None;
    }
    let title = format!(
        "something on the path puts fragments together: all complete datagrams arrived, and {} fragments of incomplete ones did not reach \
         {receiver} ({} of {} did)",
        grouped(n_missing),
        grouped(n_received),
        grouped(n_sent)
    );
    let evidence = vec![counter_evidence(receiver, host::IP_FRAGMENTS_RECEIVED, n_received)];
    let next = NextStep::new("nstat -az 'Ip*'").expected("show on each device whether it puts fragments together");
    Some((title, evidence, next))
}

#[cfg(test)]
mod tests {
    use fathom_model::probe::ProbeRecord;

    use super::*;
    use crate::run_builder::RunBuilder;

    /// An order as sent, answered, and answered elsewhere.
    fn order(name: &str, outcome: OrderOutcome, [sent, answered, elsewhere]: [u64; 3]) -> FragmentOrderRecord {
        let is_whole = name == FragmentOrderRecord::WHOLE || name.starts_with("v6-hbh");
        FragmentOrderRecord {
            order: name.to_owned(),
            outcome,
            n_sent: sent,
            n_fragments: if is_whole { 0 } else { 3 * sent },
            n_answered: answered,
            n_elsewhere: elsewhere,
            ..FragmentOrderRecord::default()
        }
    }

    fn run(orders: &[(&str, OrderOutcome, [u64; 3])]) -> RunBuilder {
        run_of(6, orders)
    }

    fn run_of(ip_version: u8, orders: &[(&str, OrderOutcome, [u64; 3])]) -> RunBuilder {
        let orders = orders.iter().map(|(name, outcome, counts)| order(name, *outcome, *counts)).collect();
        let fragments = FragmentsRecord { ip_version, n_flows: 100, orders, ..FragmentsRecord::default() };
        let mut builder = RunBuilder::new();
        let target = "192.0.2.9:7701".to_owned();
        builder.probed((300, 300), ProbeRecord { target, fragments: Some(fragments), ..ProbeRecord::default() });
        builder
    }

    const WHOLE: (&str, OrderOutcome, [u64; 3]) = (FragmentOrderRecord::WHOLE, OrderOutcome::Answered, [200, 200, 0]);

    #[test]
    fn an_order_that_loses_more_than_its_packets_explain_is_named() {
        let lost = |whole, reversed| {
            let whole = (WHOLE.0, WHOLE.1, [200, whole, 0]);
            let orders = [
                whole,
                ("forward", OrderOutcome::Answered, [100, 100, 0]),
                ("reversed", OrderOutcome::Answered, [100, reversed, 0]),
            ];
            run(&orders).finding("fragments-lost")
        };
        assert_eq!((lost(200, 100), lost(200, 95)), (None, None), "a few may be lost by chance");
        let found = lost(200, 0).unwrap();
        assert!(found.title.ends_with("are lost: 100 of 100 (reversed), and 0 of 200 whole ones"), "{}", found.title);
        assert_eq!(found.evidence[0].value, "100 of 100");
        assert_eq!(lost(140, 40), None, "three packets are lost more often than one");
    }

    #[test]
    fn a_small_loss_of_all_orders_is_seen_in_their_sum() {
        let of = |whole| {
            let order = |name| (name, OrderOutcome::Answered, [1_000, 970, 0]);
            run(&[(WHOLE.0, WHOLE.1, [whole, whole, 0]), order("forward"), order("reversed"), order("random")])
                .finding("fragments-lost")
        };
        assert!(of(2_500).unwrap().title.contains("90 of 3,000 (forward, reversed, random)"));
        assert_eq!(of(200), None, "too few whole ones to know their loss");
    }

    #[test]
    fn extension_headers_that_are_lost_are_no_fragments() {
        let found = run(&[WHOLE, ("v6-hbh8", OrderOutcome::Answered, [100, 0, 0])]).finding("fragments-lost").unwrap();
        assert_eq!(found.short, "ext headers");
        assert!(found.title.contains("behind extension headers"), "{}", found.title);
    }

    #[test]
    fn one_datagram_at_another_target_is_a_finding() {
        let of = |elsewhere| {
            run(&[WHOLE, ("forward", OrderOutcome::Answered, [100, 100, elsewhere])]).finding("fragments-elsewhere")
        };
        assert_eq!(of(0), None);
        assert!(of(90).unwrap().title.contains("90 of 100 datagrams to 192.0.2.9:7701 reached another target"));
        assert!(of(1).is_some());
    }

    #[test]
    fn an_answer_to_an_incomplete_datagram_is_a_defect_unless_it_is_allowed() {
        for (outcome, is_found) in [(OrderOutcome::Dropped, true), (OrderOutcome::Either, false)] {
            let builder = run(&[WHOLE, ("overlapping", outcome, [20, 20, 0])]);
            assert_eq!(builder.finding("fragments-unexpected").is_some(), is_found);
        }
        assert_eq!(
            run(&[WHOLE, ("last-missing", OrderOutcome::Dropped, [20, 0, 0])]).finding("fragments-unexpected"),
            None
        );
    }

    #[test]
    fn a_device_whose_reassembly_counters_grow_puts_fragments_together() {
        let orders = [WHOLE, ("forward", OrderOutcome::Answered, [100, 100, 0])];
        for (counter, growth, ip_version, is_found) in [
            (host::IP_FRAGMENTS_RECEIVED, 300, 4, true),
            (host::IP_FRAGMENTS_CREATED, 300, 6, true),
            // A router cuts what is too long for its next link.
            (host::IP_FRAGMENTS_CREATED, 300, 4, false),
            (host::IP_FRAGMENTS_RECEIVED, 9, 4, false),
        ] {
            let mut builder = run_of(ip_version, &orders);
            builder.device_between("dut");
            builder.host_counter("dut", (counter, ""), growth);
            assert_eq!(builder.finding("fragments-reassembled").is_some(), is_found, "{counter} {growth}");
        }
    }

    #[test]
    fn incomplete_datagrams_that_do_not_arrive_although_complete_ones_do_are_held_back() {
        let incomplete = ("last-missing", OrderOutcome::Dropped, [20, 0, 0]);
        let of = |answered, received| {
            let mut builder = run(&[WHOLE, ("forward", OrderOutcome::Answered, [100, answered, 0]), incomplete]);
            builder.host_counter("target", (host::IP_FRAGMENTS_RECEIVED, ""), received);
            builder.finding("fragments-reassembled")
        };
        assert_eq!(of(100, 360), None);
        let found = of(100, 300).unwrap();
        assert!(
            found.title.contains("60 fragments of incomplete ones did not reach target (300 of 360 did)"),
            "{}",
            found.title
        );
        assert_eq!(of(80, 300), None, "what is lost is missing too");
    }
}
