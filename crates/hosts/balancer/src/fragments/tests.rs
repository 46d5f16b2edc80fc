//! The table by hand, and its pools in random histories.

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::classify::DatagramKey;

const MS: u64 = 1_000_000;

fn settings() -> FragmentSettings {
    FragmentSettings { n_slots: 7, n_buckets: 5, n_stored: 4, n_shards: 1, n_swept: 0, ..FragmentSettings::USUAL }
}

fn table(settings: FragmentSettings) -> FragmentTable<u32> {
    FragmentTable::new(settings).unwrap()
}

/// A fragment of a datagram: the third is its last one.
fn fragment(id: u32, number: u16) -> Fragment {
    let (source, destination) = (Ipv4Addr::new(198, 18, 0, 1).into(), Ipv4Addr::new(198, 18, 8, 1).into());
    let datagram = DatagramKey { source, destination, id, protocol: 17 };
    Fragment { datagram, offset: number * 1480, length: 1480, is_last: number == 2 }
}

fn first(table: &FragmentTable<u32>, id: u32, value: u32, at_ms: u64) -> (FirstFragment, Vec<Vec<u8>>) {
    let mut released = Released::default();
    let outcome = table.first(&fragment(id, 0), value, Nanos(at_ms * MS), &mut released);
    (outcome, released.packets().map(<[u8]>::to_vec).collect())
}

fn later(table: &FragmentTable<u32>, id: u32, number: u16, at_ms: u64) -> LaterFragment<u32> {
    table.later(&fragment(id, number), Some(&[u8::try_from(number).unwrap(); 3]), Nanos(at_ms * MS))
}

#[test]
fn later_fragments_follow_the_first_one_of_their_datagram() {
    let table = table(settings());
    assert_eq!(first(&table, 1, 11, 0), (FirstFragment::Known, vec![]));
    assert_eq!(first(&table, 2, 22, 0), (FirstFragment::Known, vec![]));
    assert_eq!(later(&table, 1, 1, 1), LaterFragment::Known(11));
    assert_eq!(later(&table, 2, 1, 1), LaterFragment::Known(22));
}

#[test]
fn fragments_that_come_before_the_first_one_wait_for_it_in_their_order() {
    let table = table(settings());
    assert_eq!(later(&table, 1, 2, 0), LaterFragment::Held);
    assert_eq!(later(&table, 1, 1, 1), LaterFragment::Held);
    assert_eq!(table.counters().n_stored, 2);
    assert_eq!(first(&table, 1, 11, 2), (FirstFragment::Known, vec![vec![2; 3], vec![1; 3]]));
    assert_eq!(later(&table, 1, 2, 3), LaterFragment::Known(11), "they come again");
    let counters = table.counters();
    assert_eq!((counters.n_stored, counters.n_stored_total, counters.n_discarded), (0, 2, 0));
}

#[test]
fn a_datagram_without_room_for_a_fragment_is_lost_as_a_whole() {
    let table = table(FragmentSettings { n_stored: 1, ..settings() });
    assert_eq!(later(&table, 1, 2, 0), LaterFragment::Held);
    assert_eq!(later(&table, 1, 1, 0), LaterFragment::StoreFull);
    assert_eq!(first(&table, 1, 11, 0), (FirstFragment::Incomplete, vec![]));
    assert_eq!(later(&table, 1, 1, 0), LaterFragment::Incomplete);
    let counters = table.counters();
    assert_eq!((counters.n_stored, counters.n_discarded), (0, 1));
    assert_eq!(later(&table, 2, 1, 0), LaterFragment::Held, "its buffer is free for another datagram");
}

#[test]
fn a_fragment_longer_than_the_buffers_does_not_wait() {
    let table = table(FragmentSettings { stored_bytes_max: 2, ..settings() });
    assert_eq!(later(&table, 1, 1, 0), LaterFragment::StoreFull);
}

#[test]
fn an_entry_lives_for_its_time_after_the_last_fragment() {
    let table = table(settings());
    first(&table, 1, 11, 0);
    assert_eq!(later(&table, 1, 1, 200), LaterFragment::Known(11));
    assert_eq!(later(&table, 1, 2, 400), LaterFragment::Known(11));
    assert_eq!(later(&table, 1, 2, 601), LaterFragment::Held, "it is the first that is seen of this datagram");
    assert_eq!(table.counters().n_expired, 1);
}

#[test]
fn an_entry_that_a_faster_clock_wrote_is_not_old() {
    let table = table(settings());
    first(&table, 1, 11, 1000);
    assert_eq!(later(&table, 1, 1, 10), LaterFragment::Known(11));
}

#[test]
fn what_waits_in_vain_gives_its_buffers_back_when_its_slot_is_touched() {
    let table = table(FragmentSettings { n_slots: 1, ..settings() });
    for number in 0..4 {
        assert_eq!(later(&table, number, 1, 0), LaterFragment::Held);
    }
    assert_eq!(later(&table, 9, 1, 201), LaterFragment::Held);
    let counters = table.counters();
    assert_eq!((counters.n_stored, counters.n_discarded, counters.n_entries, counters.n_buckets), (1, 4, 1, 0));
}

#[test]
fn what_waits_in_vain_in_other_slots_gives_its_buffers_back_if_they_are_swept() {
    // A fragment every 20 ms whose first one never comes: ten live at a time, and 16 more until all slots were searched.
    let n_held = |n_swept| {
        let table = table(FragmentSettings { n_slots: 1009, n_stored: 32, n_swept, ..settings() });
        (0..1000).filter(|id| later(&table, *id, 1, 20 * u64::from(*id)) == LaterFragment::Held).count()
    };
    assert!(n_held(0) < 500, "{}", n_held(0));
    assert_eq!(n_held(64), 1000);
}

#[test]
fn a_table_is_full_when_its_slot_is_taken_and_no_bucket_is_left() {
    let table = table(FragmentSettings { n_slots: 1, n_buckets: 2, ..settings() });
    for id in 0..3 {
        assert_eq!(first(&table, id, id, 0).0, FirstFragment::Known);
    }
    assert_eq!(first(&table, 3, 3, 0).0, FirstFragment::TableFull);
    assert_eq!(later(&table, 4, 1, 0), LaterFragment::TableFull);
    let counters = table.counters();
    assert_eq!((counters.n_inserts, counters.n_rejected, counters.n_collisions), (5, 2, 4));
    assert_eq!(first(&table, 5, 5, 201).0, FirstFragment::Known, "the old ones make room");
}

#[test]
fn old_entries_of_other_slots_give_buckets_only_if_they_are_swept() {
    let run = |n_swept| {
        // Buckets of slots that nobody touches any more: the identifications 0 to 999 fill the table, 1000 to 1099 come when they are old.
        let table = table(FragmentSettings { n_slots: 50, n_buckets: 20, n_swept, ..settings() });
        for id in 0..1000 {
            first(&table, id, 0, 0);
        }
        let before = table.counters().n_rejected;
        for id in 1000..1100 {
            first(&table, id, 0, 201);
        }
        table.counters().n_rejected - before
    };
    assert!(run(50) < run(0), "{} and {}", run(50), run(0));
}

#[test]
fn a_complete_datagram_leaves_the_table_if_it_is_to() {
    let table = table(FragmentSettings { completion: Completion::Remove, ..settings() });
    first(&table, 1, 11, 0);
    later(&table, 1, 2, 0);
    assert_eq!(table.counters().n_entries, 1);
    assert_eq!(later(&table, 1, 1, 0), LaterFragment::Known(11));
    assert_eq!((table.counters().n_entries, table.counters().n_completed), (0, 1));
}

#[test]
fn sizes_out_of_range_are_named() {
    let check = |settings: FragmentSettings| settings.check().unwrap_err();
    assert_eq!(check(FragmentSettings { n_slots: 0, ..settings() }), FragmentSettingsError::Slots(0));
    assert_eq!(check(FragmentSettings { n_buckets: 1 << 30, ..settings() }), FragmentSettingsError::Buckets(1 << 30));
    assert_eq!(check(FragmentSettings { ttl: Nanos::ZERO, ..settings() }), FragmentSettingsError::Ttl);
    let shards = FragmentSettingsError::Shards { n_shards: 8, n_slots: 7 };
    assert_eq!(check(FragmentSettings { n_shards: 8, ..settings() }), shards);
}

/// A step of a random history.
#[derive(Debug, Clone)]
enum Step {
    First(u32),
    Later(u32, u16),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u32..40).prop_map(Step::First),
        (0_u32..40, 1_u16..3).prop_map(|(id, number)| Step::Later(id, number)),
        (0_u64..150).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Pools add up after every step, and a datagram is never given the value of another one.
    #[test]
    fn pools_add_up_in_every_history(
        steps in prop::collection::vec(step(), 1..300),
        n_swept in 0_u32..4,
        completion in prop::sample::select(vec![Completion::Keep, Completion::Remove]),
    ) {
        let settings = FragmentSettings { n_swept, completion, ..settings() };
        let mut shard: FragmentShard<u32> = FragmentShard::new(settings).unwrap();
        let mut released = Released::default();
        let mut now = Nanos::ZERO;
        for step in steps {
            released.clear();
            match step {
                Step::Wait(ms) => now += Nanos(ms * MS),
                Step::First(id) => {
                    let fragment = fragment(id, 0);
                    let hash = settings.hash.of(&fragment.datagram, 0);
                    shard.first((&fragment, hash), id, now, &mut released);
                }
                Step::Later(id, number) => {
                    let fragment = fragment(id, number);
                    let hash = settings.hash.of(&fragment.datagram, 0);
                    if let LaterFragment::Known(value) = shard.later((&fragment, hash), Some(&[1]), now) {
                        prop_assert_eq!(value, id);
                    }
                }
            }
            let counters = shard.counters();
            prop_assert!(counters.n_buckets <= 5 && counters.n_stored <= 4 && counters.n_entries <= 12);
            prop_assert_eq!(
                counters.n_inserts,
                counters.n_rejected + counters.n_expired + counters.n_completed + counters.n_entries
            );
            prop_assert!(counters.n_stored + counters.n_discarded <= counters.n_stored_total);
            shard.check_pools();
        }
    }
}
