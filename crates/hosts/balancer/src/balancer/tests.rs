//! Decisions of whole packets and fragments, changes, and what each defect does.

use std::collections::BTreeSet;

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, PacketBuilder};

use super::*;
use crate::{Decision, DropCause, classify::classify};
use fathom_model::units::Nanos;

const VIP: [u8; 4] = [198, 18, 8, 1];
const N_TARGETS: u32 = 10;

fn target(number: u32) -> Target {
    Target { name: format!("t{number}"), mark: number, weight: 1 }
}

/// A balancer of ten targets, with these defects.
fn balancer(defects: &str) -> Arc<Balancer> {
    let settings = BalancerSettings { defects: defects.parse().unwrap(), ..BalancerSettings::default() };
    let balancer = Balancer::new(settings).unwrap();
    for number in 1..=N_TARGETS {
        balancer.set_target(DEFAULT_GROUP, target(number)).unwrap();
    }
    Arc::new(balancer)
}

fn udp(source_port: u16) -> Vec<u8> {
    let mut packet = Vec::new();
    PacketBuilder::ipv4([198, 18, 0, 1], VIP, 64).udp(source_port, 53).write(&mut packet, &[0; 64]).unwrap();
    packet
}

/// The datagram of [`udp`] in pieces: the first with the ports, and the rest of it.
fn fragments(source_port: u16, id: u16) -> [Vec<u8>; 3] {
    let whole = udp(source_port);
    [(0, 24), (24, 24), (48, 24)].map(|(offset, length)| {
        let payload = &whole[20 + offset..20 + offset + length];
        let mut header =
            Ipv4Header::new(u16::try_from(length).unwrap(), 64, IpNumber::UDP, [198, 18, 0, 1], VIP).unwrap();
        header.identification = id;
        header.fragment_offset = IpFragOffset::try_from(u16::try_from(offset / 8).unwrap()).unwrap();
        header.more_fragments = offset < 48;
        [header.to_bytes().to_vec(), payload.to_vec()].concat()
    })
}

fn mark(decision: Decision) -> u32 {
    match decision {
        Decision::Forward { mark } => mark,
        other => panic!("{other:?}"),
    }
}

/// The marks that whole packets of a thousand flows get.
fn marks(worker: &mut BalancerWorker) -> Vec<u32> {
    (0..1000).map(|port| mark(worker.decide(&udp(port), Nanos::ZERO))).collect()
}

fn n_different(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).filter(|(one, other)| one != other).count()
}

#[test]
fn flows_keep_their_targets_and_use_all_of_them() {
    let balancer = balancer("");
    let (mut one, mut other) = (balancer.worker(), balancer.worker());
    let all = marks(&mut one);
    assert_eq!(all, marks(&mut other));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 10);
    let counters = balancer.counters();
    assert_eq!((counters.n_packets, counters.n_forwarded), (2000, 2000));
    assert_eq!(counters.targets.values().sum::<u64>(), 2000);
    let key = classify(&udp(7)).unwrap().key;
    assert_eq!(balancer.target_of(&key).unwrap().mark, all[7]);
}

#[test]
fn all_fragments_of_a_datagram_go_where_the_whole_one_goes_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let balancer = balancer("");
        let mut worker = balancer.worker();
        for port in 0..20 {
            let expected = mark(worker.decide(&udp(port), Nanos::ZERO));
            let pieces = fragments(port, port);
            // What was released is decided again behind the others, as it is in the device.
            let mut queue: Vec<Vec<u8>> = order.iter().rev().map(|place| pieces[*place].clone()).collect();
            let mut n_forwarded = 0;
            while let Some(packet) = queue.pop() {
                match worker.decide(&packet, Nanos::ZERO) {
                    Decision::Hold => {}
                    decision => {
                        assert_eq!(mark(decision), expected, "{order:?}");
                        n_forwarded += 1;
                    }
                }
                queue.splice(0..0, worker.released().map(<[u8]>::to_vec));
            }
            assert_eq!(n_forwarded, 3, "{order:?}");
        }
        let counters = balancer.counters();
        assert_eq!(counters.n_held, counters.n_released);
    }
}

#[test]
fn a_change_moves_the_flows_of_the_target_that_goes_and_few_others() {
    let balancer = balancer("");
    let mut worker = balancer.worker();
    let before = marks(&mut worker);
    balancer.remove_target(DEFAULT_GROUP, "t3").unwrap();
    let after = marks(&mut worker);
    assert!(!after.contains(&3));
    let n_collateral = before.iter().zip(&after).filter(|(before, after)| **before != 3 && before != after).count();
    assert!(n_collateral <= 20, "{n_collateral} of 1000 flows");
    balancer.set_target(DEFAULT_GROUP, target(3)).unwrap();
    assert_eq!(marks(&mut worker), before);
}

#[test]
fn the_order_in_which_targets_came_does_not_matter() {
    let other = Arc::new(Balancer::new(BalancerSettings::default()).unwrap());
    for number in (1..=N_TARGETS).rev() {
        other.set_target(DEFAULT_GROUP, target(number)).unwrap();
    }
    assert_eq!(marks(&mut balancer("").worker()), marks(&mut other.worker()));
}

#[test]
fn rules_choose_the_group_and_the_rest_is_dropped_or_passes() {
    for (unmatched, expected) in
        [(Unmatched::Drop, Decision::Drop(DropCause::NoFlow)), (Unmatched::Pass, Decision::Pass)]
    {
        let settings = BalancerSettings { unmatched, ..BalancerSettings::default() };
        let balancer = Arc::new(Balancer::new(settings).unwrap());
        let mut worker = balancer.worker();
        assert_eq!(worker.decide(&udp(1), Nanos::ZERO), Decision::Drop(DropCause::NoTarget));
        balancer.set_target("dns", Target { name: "d".to_owned(), mark: 77, weight: 1 }).unwrap();
        balancer.set_flow("dns,protocols=udp,source-ports=0-9".parse().unwrap()).unwrap();
        assert_eq!(worker.decide(&udp(9), Nanos::ZERO), Decision::Forward { mark: 77 });
        assert_eq!(worker.decide(&udp(10), Nanos::ZERO), expected);
        let [first, later, _] = fragments(10, 1);
        assert_eq!(worker.decide(&first, Nanos::ZERO), expected);
        assert_eq!(worker.decide(&later, Nanos::ZERO), expected, "the later ones follow the first");
        balancer.set_flow("dns,group=other".parse().unwrap()).unwrap();
        assert_eq!(worker.decide(&udp(9), Nanos::ZERO), Decision::Drop(DropCause::NoTarget));
        balancer.remove_flow("dns").unwrap();
        assert_eq!(worker.decide(&udp(9), Nanos::ZERO), Decision::Drop(DropCause::NoTarget));
        assert_eq!(balancer.counters().flows["dns"], 2);
    }
}

#[test]
fn changes_that_are_not_possible_change_nothing() {
    let balancer = balancer("");
    let taken = Target { name: "other".to_owned(), mark: 3, weight: 1 };
    let error = BalancerError::MarkTaken { name: "other".to_owned(), mark: 3, other: "t3".to_owned() };
    assert_eq!(balancer.set_target("g", taken), Err(error));
    let missing = BalancerError::NoSuchTarget { group: "g".to_owned(), name: "t1".to_owned() };
    assert_eq!(balancer.remove_target("g", "t1"), Err(missing));
    assert_eq!(balancer.remove_flow("x"), Err(BalancerError::NoSuchFlow("x".to_owned())));
    let twice = vec!["a".parse().unwrap(), "a,ports=1".parse().unwrap()];
    assert_eq!(balancer.set_flows(twice), Err(BalancerError::FlowTwice("a".to_owned())));
    assert_eq!(balancer.counters().n_changes, u64::from(N_TARGETS));
    assert_eq!(balancer.groups().keys().collect::<Vec<_>>(), [DEFAULT_GROUP]);
}

/// A tier of three, with the marks 101 to 103.
fn tier() -> [Target; 3] {
    [("one", 101), ("two", 102), ("three", 103)].map(|(name, mark)| Target { name: name.to_owned(), mark, weight: 1 })
}

/// A balancer before this tier, or in it by its name.
fn with_tier(own_name: Option<String>) -> Arc<Balancer> {
    let balancer = Arc::new(Balancer::new(BalancerSettings { own_name, ..BalancerSettings::default() }).unwrap());
    balancer.set_tier(&tier()).unwrap();
    balancer
}

#[test]
fn balancers_of_a_tier_agree_on_who_has_a_datagram() {
    let balancers = tier().map(|own| {
        let balancer = with_tier(Some(own.name));
        balancer.set_target(DEFAULT_GROUP, target(1)).unwrap();
        balancer
    });
    let mut workers = balancers.each_ref().map(Balancer::worker);
    for id in 0..10 {
        let [first, later, last] = fragments(id, id);
        // Two of three send it on to the third, whatever part of it they get.
        let of = |workers: &mut [BalancerWorker; 3], packet: &[u8]| {
            workers.each_mut().map(|worker| mark(worker.decide(packet, Nanos::ZERO)))
        };
        let by_first = of(&mut workers, &first);
        assert_eq!(by_first.iter().filter(|mark| **mark == 1).count(), 1, "{by_first:?}");
        assert_eq!(of(&mut workers, &later), by_first);
        assert_eq!(of(&mut workers, &last), by_first);
        assert_eq!(
            workers.each_mut().map(|worker| mark(worker.decide(&udp(id), Nanos::ZERO))),
            [1; 3],
            "whole packets stay"
        );
    }
}

#[test]
fn a_first_tier_sends_fragments_by_their_addresses_and_whole_packets_by_their_flows() {
    let (one, other) = (with_tier(None), with_tier(None));
    let (mut worker, mut other) = (one.worker(), other.worker());
    let flows: BTreeSet<u32> = (0..100).map(|port| mark(worker.decide(&udp(port), Nanos::ZERO))).collect();
    assert_eq!(flows.into_iter().collect::<Vec<_>>(), [101, 102, 103]);
    for id in 0..10 {
        let [first, later, last] = fragments(id, id);
        let by_first = mark(worker.decide(&first, Nanos::ZERO));
        assert_eq!(mark(other.decide(&later, Nanos::ZERO)), by_first, "another of the first tier agrees");
        assert_eq!(mark(worker.decide(&last, Nanos::ZERO)), by_first);
    }
    let counters = one.counters();
    assert_eq!((counters.n_to_balancer, counters.n_packets), (120, 120));
    assert_eq!(counters.balancers.values().sum::<u64>(), 120);
    assert_eq!(one.set_tier(&[]), Ok(()));
    assert_eq!(worker.decide(&udp(1), Nanos::ZERO), Decision::Drop(DropCause::NoTarget), "the tier has ended");
    let stranger = Balancer::new(BalancerSettings { own_name: Some("four".to_owned()), ..BalancerSettings::default() });
    assert_eq!(stranger.unwrap().set_tier(&tier()), Err(BalancerError::NotInTier("four".to_owned())));
}

/// What a defect does to a thousand flows of whole packets: how many get another target than without it.
fn n_moved(defects: &str) -> usize {
    n_different(&marks(&mut balancer("").worker()), &marks(&mut balancer(defects).worker()))
}

#[test]
fn defects_of_the_hash_move_flows() {
    // 100 of 1000, with a standard deviation of 9.5; nine tenths of what is hashed anew has another target.
    let n = n_moved("mis-hash=1/10");
    assert!((50..150).contains(&n), "{n}");
    assert!(n_moved("ignore-ports") > 800);
    assert_eq!(marks(&mut balancer("ignore-ports").worker()).iter().collect::<BTreeSet<_>>().len(), 1);
    assert!(n_moved("tiny-table=3") > 500);
    assert_eq!(
        n_moved("drop=1/2,duplicate=1/2,reorder=1/2,no-gso,wrong-source,copy-range=9,fragments-without-ports"),
        0
    );
}

#[test]
fn what_a_defect_did_is_counted() {
    let balancer = balancer("mis-hash=1/10,blackhole=t4,leak=1/10");
    let mut worker = balancer.worker();
    let decisions: Vec<_> = (0..1000).map(|port| worker.decide(&udp(port), Nanos::ZERO)).collect();
    let n_dropped = decisions.iter().filter(|decision| **decision == Decision::Drop(DropCause::Blackhole)).count();
    let counters = balancer.counters();
    assert!(n_dropped > 50 && !decisions.contains(&Decision::Forward { mark: 4 }), "{n_dropped}");
    assert_eq!(counters.defects["blackhole"], u64::try_from(n_dropped).unwrap());
    assert_eq!(counters.dropped["blackhole"], counters.defects["blackhole"]);
    assert!((50..150).contains(&counters.defects["mis-hash"]), "{counters:?}");
    assert!((50..150).contains(&counters.defects["leak"]), "{counters:?}");
    assert_eq!(counters.defects["drop"], 0);
}

#[test]
fn fragments_hashed_without_ports_leave_the_target_of_their_flow() {
    let balancer = balancer("fragments-without-ports");
    let mut worker = balancer.worker();
    let whole: Vec<u32> = (0..100).map(|port| mark(worker.decide(&udp(port), Nanos::ZERO))).collect();
    let cut: Vec<u32> = (0..100).map(|port| mark(worker.decide(&fragments(port, port)[0], Nanos::ZERO))).collect();
    assert_eq!(cut.iter().collect::<BTreeSet<_>>().len(), 1);
    assert!(n_different(&whole, &cut) > 70);
}

#[test]
fn a_forgotten_datagram_has_later_fragments_that_wait_in_vain() {
    let balancer = balancer("forget-fragment=1/1");
    let mut worker = balancer.worker();
    let [first, later, _] = fragments(1, 1);
    mark(worker.decide(&first, Nanos::ZERO));
    assert_eq!(worker.decide(&later, Nanos::ZERO), Decision::Hold);
    assert_eq!(balancer.counters().defects["forget-fragment"], 1);
}

#[test]
fn a_table_that_is_rebuilt_in_place_is_empty_in_between() {
    for (defects, n_tables) in [("", 1), ("in-place-rebuild", 2)] {
        let balancer = balancer(defects);
        let before = balancer.counters().n_changes;
        balancer.remove_target(DEFAULT_GROUP, "t1").unwrap();
        assert_eq!(balancer.counters().n_changes - before, n_tables);
        let mut control = lock(&balancer.control);
        control.group_tables.insert(DEFAULT_GROUP.to_owned(), Arc::default());
        balancer.publish(&mut control);
        drop(control);
        assert_eq!(balancer.worker().decide(&udp(1), Nanos::ZERO), Decision::Drop(DropCause::NoTarget));
    }
}

#[test]
fn a_packet_that_cannot_be_read_is_dropped_and_one_that_is_cut_does_not_wait() {
    let balancer = balancer("");
    let mut worker = balancer.worker();
    assert!(matches!(worker.decide(&udp(1)[..22], Nanos::ZERO), Decision::Drop(DropCause::Unreadable(_))));
    assert!(matches!(worker.decide(&[], Nanos::ZERO), Decision::Drop(DropCause::Unreadable(_))));
    let [_, later, _] = fragments(1, 1);
    assert_eq!(worker.decide(&later[..30], Nanos::ZERO), Decision::Drop(DropCause::StoreFull));
    let counters = balancer.counters();
    assert_eq!((counters.dropped["unreadable"], counters.dropped["store_full"]), (2, 1));
}

#[test]
fn an_icmp_error_goes_to_the_target_of_its_flow() {
    let balancer = balancer("");
    let mut worker = balancer.worker();
    for port in 0..50 {
        let expected = worker.decide(&udp(port), Nanos::ZERO);
        let mut answer = Vec::new();
        PacketBuilder::ipv4(VIP, [198, 18, 0, 1], 64).udp(53, port).write(&mut answer, &[0; 64]).unwrap();
        let body = [&[3, 4, 0, 0, 0, 0, 5, 0], &answer[..28]].concat();
        let header =
            Ipv4Header::new(u16::try_from(body.len()).unwrap(), 64, IpNumber::ICMP, [10, 0, 0, 1], VIP).unwrap();
        assert_eq!(worker.decide(&[header.to_bytes().to_vec(), body].concat(), Nanos::ZERO), expected);
    }
    assert_eq!(balancer.counters().n_icmp_errors, 50);
}

#[test]
fn every_packet_is_in_exactly_one_counter() {
    let settings = BalancerSettings {
        defects: "blackhole=t1,forget-fragment=1/3,mis-hash=1/5".parse().unwrap(),
        fragments: FragmentSettings { n_slots: 5, n_buckets: 5, n_stored: 2, n_shards: 1, ..FragmentSettings::USUAL },
        unmatched: Unmatched::Pass,
        ..BalancerSettings::default()
    };
    let balancer = Arc::new(Balancer::new(settings).unwrap());
    for number in 1..=3 {
        balancer.set_target("g", target(number)).unwrap();
    }
    balancer.set_flow("g,source-ports=0-49".parse().unwrap()).unwrap();
    let mut worker = balancer.worker();
    for port in 0..100 {
        let pieces = fragments(port, port);
        for packet in [&udp(port), &pieces[0], &pieces[2], &pieces[1], &vec![0x45], &pieces[usize::from(port % 3)]] {
            worker.decide(packet, Nanos::from_millis(u64::from(port)));
        }
    }
    let counters = balancer.counters();
    let n_dropped: u64 = counters.dropped.values().sum();
    let parts = [counters.n_forwarded, counters.n_to_balancer, counters.n_passed, counters.n_held, n_dropped];
    assert_eq!(counters.n_packets, parts.iter().sum::<u64>(), "{counters:?}");
    assert!(parts[0] > 0 && parts[2] > 0 && parts[3] > 0 && parts[4] > 0, "{parts:?}");
    assert_eq!(counters.n_forwarded, counters.targets.values().sum::<u64>());
}

#[test]
fn counters_are_one_object_of_json() {
    let json = serde_json::to_value(balancer("").counters()).unwrap();
    assert_eq!(json["n_packets"], 0);
    assert_eq!(json["targets"]["default/t1"], 0);
    assert_eq!(json["dropped"]["no_target"], 0);
    assert_eq!(json["fragments"]["n_entries"], 0);
}
