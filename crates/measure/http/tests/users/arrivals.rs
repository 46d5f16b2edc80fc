//! When users arrive, rest and run.

use std::io::Write;

use fathom_engine::pace::{ArrivalProcess, Profile};
use fathom_http::{names, users::UserArrivals};
use fathom_model::{
    Phases,
    names::{count, distribution},
    units::{Nanos, PerSec},
};

use crate::{
    common::over_both,
    harness::{LONG, answering_server, ok, population, run, run_for, url, virtual_users},
    scripted_users::{EventLogs, ScriptedAction, ScriptedUsers, UserEvent, answers, get},
};

over_both! {
    a_rest_ends_when_it_is_to_end
    a_population_comes_evenly_and_each_in_its_own_seat
    users_without_a_free_seat_wait_for_one
    a_profile_is_gone_through_once
    cheap_pacing_lets_users_begin_together
    thousands_of_users_rest_at_once
    workers_share_the_most_users_at_once
}

fn quiet() -> std::net::SocketAddr {
    answering_server(|stream, _| stream.write_all(ok("").as_bytes()))
}

/// The delay of the end of each rest of this length.
fn lateness(memories: &EventLogs, rest: Nanos) -> Vec<Nanos> {
    let rests = memories.by_slot.values().flatten().flat_map(|memory| {
        memory.windows(2).filter_map(|two| match two {
            [UserEvent::NextAction { now: begin }, UserEvent::NextAction { now: end }] => Some((*begin + rest, *end)),
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
    let (_, memories) = run(&virtual_users(&url(quiet()), &[], population(2)), move |_, memory| match memory.len() {
        0..2 => ScriptedAction::Sleep(rest),
        _ if memory.len() < 40 => ScriptedAction::Sleep(rest),
        _ if answers(memory).is_empty() => ScriptedAction::Send(get("/")),
        _ => ScriptedAction::Leave,
    })
    .unwrap();
    let late = lateness(&memories, rest);
    assert!(late.len() >= 70, "{}", late.len());
    // Half a millisecond is far more than a wake-up takes, and less than a tick of the loop.
    assert!(late[late.len() / 4] < Nanos::from_micros(500), "{late:?}");
}

fn a_population_comes_evenly_and_each_in_its_own_seat() {
    let over = Nanos::from_millis(100);
    let (record, memories) =
        run(&virtual_users(&url(quiet()), &[], UserArrivals::Population { n: 10, ramp_up: over }), |_, memory| {
            if answers(memory).is_empty() { ScriptedAction::Send(get("/")) } else { ScriptedAction::Leave }
        })
        .unwrap();
    assert_eq!(memories.by_slot.len(), 10);
    for (slot, users) in &memories.by_slot {
        assert_eq!(users.len(), 1);
        let UserEvent::Arrived { now, late } = users[0][0] else { panic!("{:?}", users[0][0]) };
        let intended = memories.start + Nanos::from_millis(10) * u64::from(*slot);
        assert!(now >= intended && now - late == intended, "{slot}: {now} is not {late} behind {intended}");
    }
    assert!(!record.distributions.contains_key(distribution::SCHEDULE_LAG));
}

/// Arrivals at `rate` per second.
fn arrivals(rate: f64, n_slots: u64) -> UserArrivals {
    UserArrivals::Arrivals {
        profile: Profile::steady(PerSec::new(rate).unwrap()).unwrap(),
        process: ArrivalProcess::Constant,
        n_slots,
    }
}

fn users_without_a_free_seat_wait_for_one() {
    // Each stays for at least 20 ms, so that a slot serves fewer than 50 of 200 users in a second.
    let script = |_, memory: &Vec<UserEvent>| match &memory[..] {
        [UserEvent::Arrived { .. }, UserEvent::NextAction { .. }] => ScriptedAction::Send(get("/")),
        [.., UserEvent::Answered(_), UserEvent::NextAction { .. }] => ScriptedAction::Sleep(Nanos::from_millis(20)),
        _ => ScriptedAction::Leave,
    };
    let phases = Phases { measure_ns: Nanos::from_millis(400), ..LONG };
    let (record, memories) = run_for(phases, &virtual_users(&url(quiet()), &[], arrivals(200.0, 2)), script).unwrap();
    let total = |name: &str| record.totals[name];
    assert_eq!(memories.by_slot.len(), 2);
    let users = memories.by_slot.values().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(total(count::SENT), users);
    assert_eq!(total(count::INTENDED), users + total(names::NOT_STARTED));
    assert!(total(count::LATE_NO_CONNECTION) > users / 2, "{} of {users}", total(count::LATE_NO_CONNECTION));
    let lag = &record.distributions[distribution::SCHEDULE_LAG];
    assert_eq!(lag.count(), total(count::INTENDED));
    assert!(lag.max() > Some(100_000_000), "{:?}", lag.max());
    // Each user learns how late it is.
    for (slot, memory) in memories.by_slot.iter().flat_map(|(slot, all)| all.iter().map(move |one| (slot, one))) {
        let UserEvent::Arrived { now, late } = memory[0] else { panic!("{slot}: {:?}", memory[0]) };
        assert_eq!((now - late - memories.start).0 % 5_000_000, 0, "{slot}");
    }
    // With enough slots nobody waits for one.
    let (record, _) = run_for(phases, &virtual_users(&url(quiet()), &[], arrivals(200.0, 50)), script).unwrap();
    let n_late = record.totals[count::LATE_NO_CONNECTION];
    // A worker that loses its processor between two clock reads counts as one without a slot.
    assert!(n_late <= record.totals[count::INTENDED] / 10, "{n_late}");
    assert_eq!(record.totals[names::NOT_STARTED], 0);
}

fn a_profile_is_gone_through_once() {
    let arrivals =
        UserArrivals::Arrivals { profile: "200:100ms".parse().unwrap(), process: ArrivalProcess::Constant, n_slots: 8 };
    let (record, memories) = run(&virtual_users(&url(quiet()), &[], arrivals), |_, memory| {
        if answers(memory).len() < 2 { ScriptedAction::Send(get("/")) } else { ScriptedAction::Leave }
    })
    .unwrap();
    assert_eq!(memories.by_slot.values().map(Vec::len).sum::<usize>(), 20);
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::NOT_STARTED]), (40, 0));
    let (from, to) = record.measured_ns;
    assert!(from == Nanos::ZERO && to >= Nanos::from_millis(95) && to < Nanos::from_secs(10), "{from} to {to}");
    assert_eq!(record.distributions[distribution::SERVICE_TIME].count(), 40);
}

fn cheap_pacing_lets_users_begin_together() {
    let arrivals = UserArrivals::Arrivals {
        profile: "10k:100ms".parse().unwrap(),
        process: ArrivalProcess::Constant,
        n_slots: 100,
    };
    let (record, memories) = run(&virtual_users(&url(quiet()), &[("pacing", "cheap")], arrivals), |_, memory| {
        if answers(memory).is_empty() { ScriptedAction::Send(get("/")) } else { ScriptedAction::Leave }
    })
    .unwrap();
    assert_eq!(memories.by_slot.values().map(Vec::len).sum::<usize>(), 1_000);
    // At least a millisecond passes between two checks, so users due within it wait for half of that on average.
    let lag = record.distributions[distribution::SCHEDULE_LAG].mean().unwrap();
    assert!(lag > 400_000.0, "{lag}");
    assert!(record.notes.iter().any(|note| note.id == "pacing"), "{:?}", record.notes);
}

fn thousands_of_users_rest_at_once() {
    const N: u64 = 10_000;
    let rest = Nanos::from_millis(50);
    let (_, memories) =
        run(&virtual_users(&url(quiet()), &[], population(N)), move |slot, memory| match memory.len() {
            0..6 => ScriptedAction::Sleep(rest),
            _ if slot.0 == 0 && answers(memory).is_empty() => ScriptedAction::Send(get("/")),
            _ => ScriptedAction::Leave,
        })
        .unwrap();
    let late = lateness(&memories, rest);
    assert_eq!(late.len() as u64, 4 * N);
    // One round over all users takes time, which grows linearly with their number and not with its square.
    assert!(late[late.len() / 4] < Nanos::from_millis(100), "{}", late[late.len() / 4]);
}

fn workers_share_the_most_users_at_once() {
    let crowd = virtual_users(&url(quiet()), &[("threads", "3")], population(10));
    assert_eq!(crowd.n_workers(), 3);
    let session = fathom_engine::TrialContext::new(fathom_sys::clock::now(), LONG);
    let (record, memories) = crowd
        .run(&session, |row| {
            assert_eq!((row.n_workers, row.n_slots), (3, if row.idx == 0 { 4 } else { 3 }));
            Ok(ScriptedUsers::new(row, &|_, memory: &Vec<UserEvent>| {
                if answers(memory).is_empty() { ScriptedAction::Send(get("/")) } else { ScriptedAction::Leave }
            }))
        })
        .unwrap();
    let slots: Vec<usize> = memories.iter().map(|memories| memories.by_slot.len()).collect();
    assert_eq!((slots, record.totals[count::REQUESTS]), (vec![4, 3, 3], 10));
}
