//! When users come, rest and have their turn.

use std::io::Write;

use fathom_engine::pace::{Process, Profile};
use fathom_http::{names, users::Coming};
use fathom_model::{
    Phases,
    names::{count, distribution},
    units::{Nanos, PerSec},
};

use crate::{
    cast::{Act, Cast, Memories, Told, answers, get},
    common::over_both,
    stage::{LONG, answering, crowd, ok, play, play_for, population, url},
};

over_both! {
    a_rest_ends_when_it_is_to_end
    a_population_comes_evenly_and_each_in_its_own_seat
    users_without_a_free_seat_wait_for_one
    a_profile_is_gone_through_once
    cheap_pacing_lets_users_begin_together
    thousands_of_users_rest_at_once
    workers_share_the_seats
}

fn quiet() -> std::net::SocketAddr {
    answering(|stream, _| stream.write_all(ok("").as_bytes()))
}

/// How much later than it was to be each rest of this length ended.
fn lateness(memories: &Memories, rest: Nanos) -> Vec<Nanos> {
    let rests = memories.by_seat.values().flatten().flat_map(|memory| {
        memory.windows(2).filter_map(|two| match two {
            [Told::Turn { now: begin }, Told::Turn { now: end }] => Some((*begin + rest, *end)),
            _ => None,
        })
    });
    let mut late: Vec<Nanos> = rests
        .map(|(until, end)| {
            assert!(end >= until, "{end} is before {until}");
            end - until
        })
        .collect();
    late.sort_unstable();
    late
}

fn a_rest_ends_when_it_is_to_end() {
    let rest = Nanos::from_micros(3_300);
    let (_, memories) = play(&crowd(&url(quiet()), &[], population(2)), move |_, memory| match memory.len() {
        0..2 => Act::Rest(rest),
        _ if memory.len() < 40 => Act::Rest(rest),
        _ if answers(memory).is_empty() => Act::Ask(get("/")),
        _ => Act::Leave,
    })
    .unwrap();
    let late = lateness(&memories, rest);
    assert!(late.len() >= 70, "{}", late.len());
    // Half a millisecond is far more than it takes, and less than a tick of whatever wakes up by the way.
    assert!(late[late.len() / 4] < Nanos::from_micros(500), "{late:?}");
}

fn a_population_comes_evenly_and_each_in_its_own_seat() {
    let over = Nanos::from_millis(100);
    let (record, memories) = play(&crowd(&url(quiet()), &[], Coming::Population { n: 10, over }), |_, memory| {
        if answers(memory).is_empty() { Act::Ask(get("/")) } else { Act::Leave }
    })
    .unwrap();
    assert_eq!(memories.by_seat.len(), 10);
    for (seat, users) in &memories.by_seat {
        assert_eq!(users.len(), 1);
        let Told::Arrived { now, late } = users[0][0] else { panic!("{:?}", users[0][0]) };
        let intended = memories.start + Nanos::from_millis(10) * u64::from(*seat);
        assert!(now >= intended && now - late == intended, "{seat}: {now} is not {late} behind {intended}");
    }
    assert!(!record.distributions.contains_key(distribution::SCHEDULE_LAG));
}

/// Arrivals at so many per second.
fn arrivals(rate: f64, n_seats: u64) -> Coming {
    Coming::Arrivals {
        profile: Profile::steady(PerSec::new(rate).unwrap()).unwrap(),
        process: Process::Constant,
        n_seats,
    }
}

fn users_without_a_free_seat_wait_for_one() {
    // Each stays for 20 ms and more, so that a seat serves fewer than 50 of 200 in a second.
    let script = |_, memory: &Vec<Told>| match &memory[..] {
        [Told::Arrived { .. }, Told::Turn { .. }] => Act::Ask(get("/")),
        [.., Told::Answered(_), Told::Turn { .. }] => Act::Rest(Nanos::from_millis(20)),
        _ => Act::Leave,
    };
    let phases = Phases { measure_ns: Nanos::from_millis(400), ..LONG };
    let (record, memories) = play_for(phases, &crowd(&url(quiet()), &[], arrivals(200.0, 2)), script).unwrap();
    let total = |name: &str| record.totals[name];
    assert_eq!(memories.by_seat.len(), 2);
    let users = memories.by_seat.values().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(total(count::SENT), users);
    assert_eq!(total(count::INTENDED), users + total(names::NOT_STARTED));
    assert!(total(count::LATE_NO_CONNECTION) > users / 2, "{} of {users}", total(count::LATE_NO_CONNECTION));
    let lag = &record.distributions[distribution::SCHEDULE_LAG];
    assert_eq!(lag.count(), total(count::INTENDED));
    assert!(lag.max() > Some(100_000_000), "{:?}", lag.max());
    // Each is told how late it is.
    for (seat, memory) in memories.by_seat.iter().flat_map(|(seat, all)| all.iter().map(move |one| (seat, one))) {
        let Told::Arrived { now, late } = memory[0] else { panic!("{seat}: {:?}", memory[0]) };
        assert_eq!((now - late - memories.start).0 % 5_000_000, 0, "{seat}");
    }
    // With seats enough nobody waits for one.
    let (record, _) = play_for(phases, &crowd(&url(quiet()), &[], arrivals(200.0, 50)), script).unwrap();
    let n_late = record.totals[count::LATE_NO_CONNECTION];
    // A worker that loses its processor between two looks at the clock is taken for one without a seat.
    assert!(n_late <= record.totals[count::INTENDED] / 10, "{n_late}");
    assert_eq!(record.totals[names::NOT_STARTED], 0);
}

fn a_profile_is_gone_through_once() {
    let coming = Coming::Arrivals { profile: "200:100ms".parse().unwrap(), process: Process::Constant, n_seats: 8 };
    let (record, memories) = play(&crowd(&url(quiet()), &[], coming), |_, memory| {
        if answers(memory).len() < 2 { Act::Ask(get("/")) } else { Act::Leave }
    })
    .unwrap();
    assert_eq!(memories.by_seat.values().map(Vec::len).sum::<usize>(), 20);
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::NOT_STARTED]), (40, 0));
    let (from, to) = record.measured_ns;
    assert!(from == Nanos::ZERO && to >= Nanos::from_millis(95) && to < Nanos::from_secs(10), "{from} to {to}");
    assert_eq!(record.distributions[distribution::SERVICE_TIME].count(), 40);
}

fn cheap_pacing_lets_users_begin_together() {
    let coming = Coming::Arrivals { profile: "10k:100ms".parse().unwrap(), process: Process::Constant, n_seats: 100 };
    let (record, memories) = play(&crowd(&url(quiet()), &[("pacing", "cheap")], coming), |_, memory| {
        if answers(memory).is_empty() { Act::Ask(get("/")) } else { Act::Leave }
    })
    .unwrap();
    assert_eq!(memories.by_seat.values().map(Vec::len).sum::<usize>(), 1_000);
    // Between two looks is at least a millisecond, so that those due within it wait for half of that on average.
    let lag = record.distributions[distribution::SCHEDULE_LAG].mean().unwrap();
    assert!(lag > 400_000.0, "{lag}");
    assert!(record.notes.iter().any(|note| note.id == "pacing"), "{:?}", record.notes);
}

fn thousands_of_users_rest_at_once() {
    const N: u64 = 10_000;
    let rest = Nanos::from_millis(50);
    let (_, memories) = play(&crowd(&url(quiet()), &[], population(N)), move |seat, memory| match memory.len() {
        0..6 => Act::Rest(rest),
        _ if seat.0 == 0 && answers(memory).is_empty() => Act::Ask(get("/")),
        _ => Act::Leave,
    })
    .unwrap();
    let late = lateness(&memories, rest);
    assert_eq!(late.len() as u64, 4 * N);
    // All turns of a round together take as long as they take, which grows with their number and not with its square.
    assert!(late[late.len() / 4] < Nanos::from_millis(100), "{}", late[late.len() / 4]);
}

fn workers_share_the_seats() {
    let crowd = crowd(&url(quiet()), &[("threads", "3")], population(10));
    assert_eq!(crowd.n_workers(), 3);
    let session = fathom_engine::Session::new(fathom_sys::clock::now(), LONG);
    let (record, memories) = crowd
        .run(&session, |row| {
            assert_eq!((row.n_workers, row.n_seats), (3, if row.idx == 0 { 4 } else { 3 }));
            Ok(Cast::new(
                row,
                |_, memory: &Vec<Told>| {
                    if answers(memory).is_empty() { Act::Ask(get("/")) } else { Act::Leave }
                },
            ))
        })
        .unwrap();
    let seats: Vec<usize> = memories.iter().map(|memories| memories.by_seat.len()).collect();
    assert_eq!((seats, record.totals[count::REQUESTS]), (vec![4, 3, 3], 10));
}
