//! Meeting points: users of all workers wait for each other, and continue together.
//!
//! Joining takes a lock, once per user and meeting; checking whether a meeting is over takes none.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use fathom_http::users::UserSlot;
use fathom_model::units::Nanos;

/// A point where users meet.
#[derive(Debug)]
pub(crate) struct MeetingPoint {
    /// The number of users who continue together.
    n: u64,
    /// The longest wait of the first user.
    within: Nanos,
    /// The number of meetings so far.
    round: AtomicU64,
    /// When the first waiting user has waited long enough; the end of time if nobody waits.
    deadline: AtomicU64,
    n_waiting: Mutex<u64>,
    n_unfilled: AtomicU64,
}

/// The result of joining.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinResult {
    /// The last user has arrived: all continue.
    Complete,
    /// The user waits for the end of this round.
    Waits(u64),
}

impl MeetingPoint {
    pub(crate) fn new(n: u64, within: Nanos) -> Self {
        Self {
            n,
            within,
            round: AtomicU64::new(0),
            deadline: AtomicU64::new(u64::MAX),
            n_waiting: Mutex::new(0),
            n_unfilled: AtomicU64::new(0),
        }
    }

    /// A user arrives.
    pub(crate) fn join(&self, now: Nanos) -> JoinResult {
        let mut n_waiting = self.n_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *n_waiting += 1;
        if *n_waiting >= self.n {
            self.release(&mut n_waiting);
            return JoinResult::Complete;
        }
        if *n_waiting == 1 {
            self.deadline.store((now + self.within).0, Relaxed);
        }
        JoinResult::Waits(self.round.load(Relaxed))
    }

    fn release(&self, n_waiting: &mut u64) {
        *n_waiting = 0;
        self.deadline.store(u64::MAX, Relaxed);
        self.round.fetch_add(1, Release);
    }

    /// Whether the users who wait for the end of a round continue, because all are there or the time is over.
    pub(crate) fn is_over(&self, round: u64, now: Nanos) -> bool {
        if self.round.load(Acquire) != round {
            return true;
        }
        if now.0 < self.deadline.load(Relaxed) {
            return false;
        }
        let mut n_waiting = self.n_waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // Another worker may have been first.
        if self.round.load(Acquire) == round && now.0 >= self.deadline.load(Relaxed) {
            self.n_unfilled.fetch_add(1, Relaxed);
            self.release(&mut n_waiting);
        }
        self.round.load(Acquire) != round
    }

    /// How often users continued without the rest.
    pub(crate) fn n_unfilled(&self) -> u64 {
        self.n_unfilled.load(Relaxed)
    }

    /// The number of meetings, those included.
    pub(crate) fn n_rounds(&self) -> u64 {
        self.round.load(Relaxed)
    }

    /// The number of users who continue together.
    pub(crate) fn size(&self) -> u64 {
        self.n
    }
}

/// The waiting users of one worker, with a queue for each meeting: within a queue, rounds never decrease.
#[derive(Debug)]
pub(crate) struct MeetingQueues {
    queues: Vec<VecDeque<(UserSlot, u64)>>,
    n: usize,
}

impl MeetingQueues {
    /// Creates empty queues for `n_meetings` meetings.
    pub(crate) fn at(n_meetings: usize) -> Self {
        Self { queues: vec![VecDeque::new(); n_meetings], n: 0 }
    }

    /// A user waits for the end of a round.
    pub(crate) fn add(&mut self, meeting: u16, slot: UserSlot, round: u64) {
        self.queues[usize::from(meeting)].push_back((slot, round));
        self.n += 1;
    }

    /// Returns a user whose round is over, each once; `is_over` takes the index of a meeting and the round.
    pub(crate) fn next_over(&mut self, mut is_over: impl FnMut(usize, u64) -> bool) -> Option<UserSlot> {
        if self.n == 0 {
            return None;
        }
        let (slot, _) = self.queues.iter_mut().enumerate().find_map(|(place, queue)| {
            let is_over = queue.front().is_some_and(|(_, round)| is_over(place, *round));
            if is_over { queue.pop_front() } else { None }
        })?;
        self.n -= 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_to_come_lets_all_go_on() {
        let meeting = MeetingPoint::new(3, Nanos(100));
        assert_eq!([0, 1].map(|now| meeting.join(Nanos(now))), [JoinResult::Waits(0); 2]);
        assert!(!meeting.is_over(0, Nanos(2)));
        assert_eq!(meeting.join(Nanos(3)), JoinResult::Complete);
        assert!(meeting.is_over(0, Nanos(4)));
        assert_eq!(meeting.join(Nanos(5)), JoinResult::Waits(1), "the next round begins");
        assert_eq!((meeting.n_unfilled(), meeting.n_rounds()), (0, 1));
    }

    #[test]
    fn one_that_never_fills_goes_on_after_its_time_and_is_counted() {
        let meeting = MeetingPoint::new(3, Nanos(100));
        meeting.join(Nanos(50));
        meeting.join(Nanos(90));
        assert!(!meeting.is_over(0, Nanos(149)));
        assert!(meeting.is_over(0, Nanos(150)), "the first has waited long enough");
        assert!(meeting.is_over(0, Nanos(151)));
        assert_eq!((meeting.n_unfilled(), meeting.n_rounds()), (1, 1));
        assert!(!meeting.is_over(1, Nanos(10_000)), "nobody waits");
    }

    #[test]
    fn of_those_who_wait_only_the_first_of_each_meeting_is_looked_at() {
        const N: u32 = 20_000;
        let mut waiting = MeetingQueues::at(3);
        // Two rounds at the first meeting, one at the last, and nobody at the one between.
        for slot in 0..N {
            waiting.add(0, UserSlot(slot), u64::from(slot >= N / 2));
            waiting.add(2, UserSlot(N + slot), 7);
        }
        let mut n_looks = 0;
        let mut woken = |waiting: &mut MeetingQueues, over: [u64; 3]| {
            let next = || {
                waiting.next_over(|place, round| {
                    n_looks += 1;
                    round < over[place]
                })
            };
            let slots: Vec<u32> = std::iter::from_fn(next).map(|slot| slot.0).collect();
            (slots, std::mem::take(&mut n_looks))
        };
        assert_eq!(woken(&mut waiting, [0, 0, 7]), (vec![], 2), "a look at each that has somebody");
        let (slots, n_looks) = woken(&mut waiting, [1, 0, 7]);
        assert_eq!((slots, n_looks), ((0..N / 2).collect(), N / 2 + 2), "in their order, a look for each");
        let (slots, n_looks) = woken(&mut waiting, [2, 0, 8]);
        assert_eq!((slots, n_looks), ((N / 2..2 * N).collect(), N / 2 + N));
        assert_eq!(woken(&mut waiting, [9, 9, 9]), (vec![], 0), "nobody is left");
    }
}
