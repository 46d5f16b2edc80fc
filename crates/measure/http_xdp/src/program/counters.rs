//! What the program counts, for each processor.

use crate::machine::{Event, Events};

/// The counters of frames; those of [`Event`]s follow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Frames for a slot.
    Received,
    /// Frames sent.
    Sent,
    /// Frames that could not be sent for want of room in the frame that they answer.
    NoRoom,
    /// An event of a connection.
    Of(Event),
}

impl Counter {
    /// The number of words, a power of two.
    pub const WORDS: usize = Self::BYTES.unsigned_abs() as usize / 8;
    /// The same in bytes.
    pub(super) const BYTES: i16 = 256;

    /// The word of this counter.
    #[must_use]
    pub const fn word(self) -> usize {
        match self {
            Self::Received => 0,
            Self::Sent => 1,
            Self::NoRoom => 2,
            Self::Of(event) => 3 + event as usize,
        }
    }

    /// Its offset in bytes.
    pub(super) fn offset(self) -> i16 {
        i16::try_from(self.word() * 8).expect("there are few counters")
    }
}

const _: () = assert!(3 + Event::ALL.len() <= Counter::WORDS, "every event has a word");

/// What was counted, by the program or by user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts([u64; Counter::WORDS]);

impl Counts {
    pub(super) fn from_words(words: &[u64]) -> Self {
        Self(*words.first_chunk().expect("counters are the first words"))
    }

    /// Counts what happened.
    pub(crate) fn add_events(&mut self, events: Events) {
        for event in Event::ALL {
            self.0[Counter::Of(event).word()] += u64::from(events.has(event));
        }
    }

    /// The sum of both.
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum += count);
        self
    }

    /// The count of one counter.
    #[must_use]
    pub const fn of(&self, counter: Counter) -> u64 {
        self.0[counter.word()]
    }

    /// The count of an event.
    #[must_use]
    pub const fn n(&self, event: Event) -> u64 {
        self.of(Counter::Of(event))
    }
}
