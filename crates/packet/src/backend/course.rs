//! The course of a worker in user space: which frames are due, and what is written to them.

use fathom_engine::Worker;
use fathom_model::units::Nanos;
use fathom_sys::clock;

use super::{Load, Stamping, counter, departures::Departures};
use crate::wire::Mark;

/// A sleep ends up to this much late (timer slack, and waking), so shorter waits are spent awake.
const SLEEP_ERROR: Nanos = Nanos::from_micros(100);
/// How long to sleep at most before looking whether the trial is over.
const LOOK_UP: Nanos = Nanos::from_millis(20);

/// What one worker has yet to send.
#[derive(Debug)]
pub(super) struct Course {
    load: Load,
    departures: Option<Departures>,
    left: u64,
    turns: Turns,
}

/// The frames of one worker's flows, in order: the number of the flow, and the number within it.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    flow: u32,
    sequence: u64,
    first: u32,
    step: u32,
    n_flows: u32,
}

/// Which shape a piece of memory holds, so that only what changes is written again.
pub(super) type Held = Option<u16>;

impl Turns {
    pub(super) fn of(load: &Load) -> Self {
        let (first, step) = load.flows();
        Self { flow: first, sequence: 0, first, step, n_flows: load.blueprint.n_flows }
    }
}

impl Iterator for Turns {
    type Item = (u32, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let turn = (self.flow, self.sequence);
        self.flow = self.flow.saturating_add(self.step);
        if self.flow >= self.n_flows {
            (self.flow, self.sequence) = (self.first, self.sequence + 1);
        }
        Some(turn)
    }
}

impl Course {
    pub(super) fn of(load: Load) -> Self {
        let (departures, turns) = (load.departures.clone(), Turns::of(&load));
        Self { left: load.count.unwrap_or(u64::MAX), load, departures, turns }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.left == 0
    }

    /// How many frames are to leave now, at most so many; when none is due, waits for the next one first, but not long.
    pub(super) fn due(&mut self, worker: &Worker<'_>, most: usize) -> usize {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(most);
        let Some(departures) = &mut self.departures else { return most };
        let now = clock::now();
        let elapsed = now - worker.start;
        let wait = departures.due().since(elapsed);
        if wait > SLEEP_ERROR {
            clock::sleep_until(now + (wait - SLEEP_ERROR).min(LOOK_UP));
            return 0;
        }
        if wait > Nanos::ZERO {
            std::hint::spin_loop();
            return 0;
        }
        worker.raise(counter::LAG, elapsed.since(departures.due()).0);
        let unsent = departures.give_up_late(elapsed);
        if unsent > 0 {
            worker.add(counter::UNSENT, unsent);
            worker.add(counter::INTENDED, unsent);
        }
        departures.count_due(elapsed, most)
    }

    /// The turns to come, without taking them.
    pub(super) fn turns(&self) -> Turns {
        self.turns.clone()
    }

    /// Takes the next turns: their frames have left, or never will.
    pub(super) fn take(&mut self, worker: &Worker<'_>, n: usize) {
        self.left -= n as u64;
        for _ in 0..n {
            self.turns.next();
        }
        if let Some(departures) = &mut self.departures {
            (0..n).for_each(|_| departures.advance());
            worker.add(counter::INTENDED, n as u64);
        }
    }

    /// Counts what was due until the end and has not left.
    pub(super) fn end(&mut self, worker: &Worker<'_>) {
        let elapsed = clock::now() - worker.start;
        if let Some(departures) = self.departures.as_mut().filter(|_| self.left > 0) {
            let unsent = departures.give_up_due(elapsed);
            worker.add(counter::UNSENT, unsent);
            worker.add(counter::INTENDED, unsent);
        }
    }

    /// Writes the frame of a turn to memory that may hold another one of this load; its length.
    ///
    /// `now` is what it says of when it left.
    #[inline]
    pub(super) fn write(&self, frame: &mut [u8], held: &mut Held, (turn, now): ((u32, u64), Nanos)) -> usize {
        let (flow, sequence) = turn;
        let blueprint = &*self.load.blueprint;
        let place = sequence.wrapping_add(flow.into()) % blueprint.order.len() as u64;
        let number = blueprint.order[usize::try_from(place).expect("a place in a list fits")];
        let shape = &blueprint.shapes[usize::from(number)];
        let length = shape.bytes.len();
        if *held != Some(number) {
            frame[..length].copy_from_slice(&shape.bytes);
            *held = Some(number);
        }
        let sent = match self.load.stamping {
            Stamping::Clock => low_word(now),
            Stamping::None => 0,
        };
        let mark = Mark { tag: self.load.tag, flow, sequence, sent };
        shape.write(&mut frame[..length], &blueprint.turn(flow, sequence, mark.bytes()));
        length
    }
}

/// The low 32 bits of a time, as a mark has room for.
fn low_word(now: Nanos) -> u32 {
    u32::try_from(now.0 & u64::from(u32::MAX)).expect("32 bits are left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_worker_has_every_so_manyth_flow_and_sends_them_in_turn() {
        let turns = Turns { flow: 1, sequence: 0, first: 1, step: 2, n_flows: 4 };
        assert_eq!(turns.take(5).collect::<Vec<_>>(), [(1, 0), (3, 0), (1, 1), (3, 1), (1, 2)]);
        let one = Turns { flow: 0, sequence: 0, first: 0, step: 1, n_flows: 1 };
        assert_eq!(one.take(3).collect::<Vec<_>>(), [(0, 0), (0, 1), (0, 2)]);
    }
}
