//! How many were refused at the door and why: told now and then, so that guessing shows and no log is flooded.

use std::{fmt, net::IpAddr};

use fathom_model::units::Nanos;

/// Refusals are told at most this often.
const TELL_EVERY: Nanos = Nanos::from_secs(10);

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// It showed a token that is not ours.
    WrongToken,
    /// It showed none: another protocol, silence, or too slow.
    NoToken,
    /// It had shown none yet when newer ones came.
    Crowded,
    /// It knows the key, and there are as many controllers as there may be.
    Busy,
    /// This host has no thread or descriptor left for it.
    Exhausted,
}

impl Refusal {
    const ALL: [Self; 5] = [Self::WrongToken, Self::NoToken, Self::Crowded, Self::Busy, Self::Exhausted];

    const fn words(self) -> &'static str {
        match self {
            Self::WrongToken => "with a wrong token",
            Self::NoToken => "without a token",
            Self::Crowded => "turned away for newer ones",
            Self::Busy => "beyond the most controllers",
            Self::Exhausted => "for want of threads or descriptors",
        }
    }
}

/// Refused connections since they were last told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refusals {
    counts: [u64; Refusal::ALL.len()],
    last: Option<IpAddr>,
}

impl fmt::Display for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused {}", self.counts.iter().sum::<u64>())?;
        for (refusal, count) in Refusal::ALL.iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            write!(f, ", {count} {}", refusal.words())?;
        }
        self.last.map_or(Ok(()), |last| write!(f, "; the last from {last}"))
    }
}

/// Counts refusals, and says when they are to be told.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    since: Refusals,
    next: Nanos,
}

impl RefusalLog {
    pub(super) fn count(&mut self, refusal: Refusal, from: IpAddr) {
        self.since.counts[refusal as usize] += 1;
        self.since.last = Some(from.to_canonical());
    }

    /// What is to be told now: the first at once, others when the last are long enough ago.
    pub(super) fn due(&mut self, now: Nanos) -> Option<Refusals> {
        if self.since.last.is_none() || now < self.next {
            return None;
        }
        self.next = now + TELL_EVERY;
        Some(std::mem::take(&mut self.since))
    }

    /// What was not told yet.
    pub(super) fn rest(&mut self) -> Option<Refusals> {
        self.next = Nanos::ZERO;
        self.due(Nanos::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_told_at_once_and_a_flood_of_them_every_ten_seconds() {
        let (mut log, from) = (RefusalLog::default(), IpAddr::from([198, 18, 0, 3]));
        let told = |log: &mut RefusalLog, second| log.due(Nanos::from_secs(second)).map(|told| told.to_string());
        assert_eq!(told(&mut log, 100), None);
        log.count(Refusal::WrongToken, from);
        let first = "refused 1, 1 with a wrong token; the last from 198.18.0.3";
        assert_eq!(told(&mut log, 100).as_deref(), Some(first));
        for second in 100..110 {
            log.count(Refusal::NoToken, from);
            log.count(Refusal::Crowded, from);
            assert_eq!(told(&mut log, second), None);
        }
        let many = "refused 20, 10 without a token, 10 turned away for newer ones; the last from 198.18.0.3";
        assert_eq!(told(&mut log, 110).as_deref(), Some(many));
        log.count(Refusal::Busy, from);
        assert!(log.rest().is_some() && log.rest().is_none());
    }
}
