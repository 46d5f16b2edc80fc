//! Is every answer counted once, whatever the channel and the server do?

use std::ops::Range;

use super::{
    MS,
    channel::Weather,
    frames::{Over, setup},
    interpreted::InterpretedLoad,
    play::{Books, Script, play},
    server::{Closing, Manners, Unusual},
    slot::{Answerer, MachineAnswerer},
};
use crate::machine::{Event, Rules};

const LENGTHS: [u32; 5] = [1, 840, 1_460, 1_461, 65_778];
const LOST: [u32; 5] = [0, 0, 10, 50, 200];
const DOUBLED: [u32; 3] = [0, 20, 100];
const JITTER: [u64; 3] = [0, MS / 10, 5 * MS];
const THINK: [u64; 5] = [0, 0, 3 * MS, 60 * MS, 300 * MS];
const PORT_MASKS: [u16; 3] = [0, 3, 255];
const KEPT: [Closing; 6] = [
    Closing::Never,
    Closing::Never,
    Closing::AfterAnswers(5),
    Closing::InPlaceOf(3),
    Closing::ResetInPlaceOf(3),
    Closing::AfterIdle(30 * MS),
];
const EACH: [Closing; 4] = [Closing::WithAnswer, Closing::WithAnswer, Closing::AfterAnswers(1), Closing::Never];

fn any<T: Copy>(random: &mut fastrand::Rng, of: &[T]) -> T {
    of[random.usize(..of.len())]
}

/// The script of a seed.
fn script(seed: u64) -> Script {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x5eed);
    let answer_length = any(&mut random, &LENGTHS);
    let closes = random.bool();
    let is_open_load = random.u8(..4) == 0;
    let closing = any(&mut random, if closes { &EACH } else { &KEPT });
    let weather = Weather {
        lost: any(&mut random, &LOST),
        doubled: any(&mut random, &DOUBLED),
        jitter: any(&mut random, &JITTER),
    };
    let port_mask = any(&mut random, &PORT_MASKS);
    Script {
        seed,
        weather,
        manners: Manners {
            answer_length,
            think: any(&mut random, &THINK),
            closing,
            announces: random.bool(),
            unusual: None,
        },
        rules: Rules { request_length: 57, closes, is_open_load, port_mask },
        n_wanted: if closing == Closing::Never && closes {
            1
        } else if answer_length > 2_000 {
            4
        } else {
            12
        },
        interval: any(&mut random, &[MS, 10 * MS, 100 * MS]),
    }
}

/// What is wrong with the books of a play.
fn fault(script: &Script, books: &Books) -> Option<String> {
    let n = |event| books.n(event);
    let n_unanswered = n(Event::ClosedEarly) + n(Event::Reset) + n(Event::TimedOut);
    let is_open = matches!(script.manners.closing, Closing::Never | Closing::WithAnswer);
    let is_announced = matches!(script.manners.closing, Closing::AfterAnswers(_)) && script.manners.announces;
    let closes_early = !is_open && !script.rules.closes && !is_announced;
    let never = [
        (Event::Reset, !closes_early),
        (Event::ClosedEarly, !closes_early),
        // A server that resets does so once.
        (Event::TimedOut, script.weather.lost < 100 && !matches!(script.manners.closing, Closing::ResetInPlaceOf(_))),
        (Event::UnknownAnswer, true),
        (Event::Excess, true),
        (Event::NotSuccess, true),
        (Event::Stray, script.weather.is_clean() && !closes_early),
        (Event::Gap, script.weather.is_clean()),
        (Event::Duplicate, script.weather.is_clean()),
        (Event::Resent, script.weather.is_clean()),
    ];
    if let Some((event, _)) = never.iter().find(|(event, is_wrong)| *is_wrong && n(*event) > 0) {
        return Some(format!("{} × {event:?}", n(*event)));
    }
    let n_ended = n(Event::Answered) + n_unanswered;
    // A connection that is given up or refused before it is open takes no request with it.
    if books.n_requests > n_ended || n_ended - books.n_requests > n(Event::TimedOut) + n(Event::Reset) {
        return Some(format!("{} requests, {n_ended} ends", books.n_requests));
    }
    if books.n_served < n(Event::Answered) || books.n_served > n_ended {
        return Some(format!("{} served, {} answered, {n_ended} ends", books.n_served, n(Event::Answered)));
    }
    let is_steady = script.weather.is_clean() && is_open && script.manners.think == 0 && !script.rules.is_open_load;
    // Nothing waits for a timer, but the start, the end and a server that is expected to close.
    let most = (script.n_wanted + 20) * MS;
    let waits = script.rules.closes && script.manners.closing == Closing::Never;
    (is_steady && !waits && books.elapsed > most).then(|| format!("{} ms", books.elapsed / MS))
}

/// Plays the worlds of some seeds; returns how often each event happened in all.
fn play_all<A: Answerer>(
    seeds: Range<u64>,
    script: impl Fn(u64) -> Script,
    answerer: impl Fn(&Script) -> A,
) -> [u64; Event::ALL.len()] {
    let mut faults = Vec::new();
    let mut counts = [0; Event::ALL.len()];
    for seed in seeds {
        let script = script(seed);
        let outcome = play(&script, &mut answerer(&script));
        let wrong = match &outcome {
            Ok(books) => {
                counts.iter_mut().zip(books.counts).for_each(|(sum, count)| *sum += count);
                fault(&script, books)
            }
            Err(error) => Some(error.clone()),
        };
        faults.extend(wrong.map(|wrong| format!("{wrong}: {script:?} {outcome:?}")));
    }
    assert!(
        faults.is_empty(),
        "{} worlds are wrong, such as\n{}",
        faults.len(),
        faults[..faults.len().min(8)].join("\n")
    );
    counts
}

/// Events that no server of these worlds is the cause of.
const NEVER: [Event; 4] = [Event::UnknownAnswer, Event::Excess, Event::NotSuccess, Event::HandedOver];

#[test]
fn every_answer_is_counted_once_in_ten_thousand_worlds() {
    let counts = play_all(0..10_000, script, |script| MachineAnswerer::new(script.manners.answer_length));
    for event in Event::ALL {
        assert_eq!(counts[event as usize] == 0, NEVER.contains(&event), "{event:?}: {}", counts[event as usize]);
    }
}

const FORMS: [Unusual; 4] = [Unusual::Chunked, Unusual::UntilClose, Unusual::Interim, Unusual::LongHead];

/// The script of a seed, with some answers or all that the program cannot follow.
fn unusual_script(seed: u64) -> Script {
    let mut random = fastrand::Rng::with_seed(seed ^ 0x0dd);
    let mut script = script(seed);
    let form = any(&mut random, &FORMS);
    let manners = &mut script.manners;
    manners.answer_length = manners.answer_length.max(if form == Unusual::LongHead { 1_700 } else { 200 });
    manners.unusual = Some((form, any(&mut random, &[1, 1, 2, 3])));
    if form == Unusual::UntilClose {
        // Only such a connection has such an answer, whoever asks for it.
        (manners.closing, script.rules.closes) =
            (any(&mut random, &[Closing::WithAnswer, Closing::AfterAnswers(1)]), true);
        manners.unusual = Some((form, 1));
    }
    if manners.answer_length > 2_000 {
        script.n_wanted = script.n_wanted.min(4);
    }
    script
}

#[test]
fn answers_that_user_space_follows_are_counted_once_in_ten_thousand_worlds() {
    let counts = play_all(0..10_000, unusual_script, |script| MachineAnswerer::new(script.manners.answer_length));
    assert!(counts[Event::HandedOver as usize] > 10_000, "{}", counts[Event::HandedOver as usize]);
}

#[test]
fn the_program_hands_over_what_the_machine_does() {
    for seed in 0..400 {
        let script = unusual_script(seed);
        let by_machine = play(&script, &mut MachineAnswerer::new(script.manners.answer_length));
        let by_program = play(&script, &mut with_program(&script));
        assert_eq!(by_machine, by_program, "{script:?}");
        assert!(by_machine.is_ok_and(|books| fault(&script, &books).is_none()), "{script:?}");
    }
}

/// The same world with the program in the place of the machine.
fn with_program(script: &Script) -> InterpretedLoad {
    let over = Over::ALL[usize::from(script.seed.is_multiple_of(3))];
    let mut load = InterpretedLoad::new(setup(over, script.rules, script.manners.answer_length));
    load.tail_room = if script.seed.is_multiple_of(2) { 0 } else { 320 };
    load
}

#[test]
fn the_program_lives_in_the_same_worlds() {
    for seed in 0..400 {
        let mut script = script(seed);
        // An answer has at least a head.
        script.manners.answer_length = script.manners.answer_length.max(100);
        let by_machine = play(&script, &mut MachineAnswerer::new(script.manners.answer_length));
        let by_program = play(&script, &mut with_program(&script));
        // All that the machine is checked for holds for the program, since the books are the same.
        assert_eq!(by_machine, by_program, "{script:?}");
        assert!(by_machine.is_ok_and(|books| fault(&script, &books).is_none()), "{script:?}");
    }
}
