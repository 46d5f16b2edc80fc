//! How many were refused at the door and why: told now and then, so that guessing shows and no log is flooded.

use std::{fmt, net::IpAddr};

use fathom_model::units::Nanos;

/// Refusals are told at most this often.
const REPORT_EVERY: Nanos = Nanos::from_secs(10);

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// It showed a token that is not ours.
    WrongToken,
    /// It showed none: another protocol, silence, or too slow.
    NoToken,
    /// It had shown none yet when newer ones came.
    TooManyConnections,
    /// It knows the key, and there are as many controllers as there may be.
    Busy,
    /// This host has no thread or descriptor left for it.
    Exhausted,
}

impl RefusalReason {
    const ALL: [Self; 5] = [Self::WrongToken, Self::NoToken, Self::TooManyConnections, Self::Busy, Self::Exhausted];

    const fn words(self) -> &'static str {
        match self {
            Self::WrongToken => "with a wrong token",
            Self::NoToken => "without a token",
            Self::TooManyConnections => "turned away for newer ones",
            Self::Busy => "beyond the most controllers",
            Self::Exhausted => "for want of threads or descriptors",
        }
    }
}

/// Refused connections since they were last told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RefusalCounts {
    counts: [u64; RefusalReason::ALL.len()],
    last: Option<IpAddr>,
}

impl fmt::Display for RefusalCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused {}", self.counts.iter().sum::<u64>())?;
        for (refusal, count) in RefusalReason::ALL.iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            write!(f, ", {count} {}", refusal.words())?;
        }
        self.last.map_or(Ok(()), |last| write!(f, "; the last from {last}"))
    }
}

/// Counts refusals, and says when they are to be told.
#[derive(Debug, Default)]
pub(super) struct RefusalLog {
    since: RefusalCounts,
    next: Nanos,
}

impl RefusalLog {
    pub(super) fn count(&mut self, refusal: RefusalReason, from: IpAddr) {
        self.since.counts[refusal as usize] += 1;
        self.since.last = Some(from.to_canonical());
    }

    /// What is to be told now: the first at once, others when the last are long enough ago.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<RefusalCounts> {
        if self.since.last.is_none() || now < self.next {
            return None;
        }
        self.next = now + REPORT_EVERY;
        Some(std::mem::take(&mut self.since))
    }

    /// What was not told yet.
    pub(super) fn take_rest(&mut self) -> Option<RefusalCounts> {
        self.next = Nanos::ZERO;
        self.take_due(Nanos::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_told_at_once_and_a_flood_of_them_every_ten_seconds() {
        let (mut log, from) = (RefusalLog::default(), IpAddr::from([198, 18, 0, 3]));
        let told = |log: &mut RefusalLog, second| log.take_due(Nanos::from_secs(second)).map(|told| told.to_string());
        assert_eq!(told(&mut log, 100), None);
        log.count(RefusalReason::WrongToken, from);
        let first = "refused 1, 1 with a wrong token; the last from 198.18.0.3";
        assert_eq!(told(&mut log, 100).as_deref(), Some(first));
        for second in 100..110 {
            log.count(RefusalReason::NoToken, from);
            log.count(RefusalReason::TooManyConnections, from);
            assert_eq!(told(&mut log, second), None);
        }
        let many = "refused 20, 10 without a token, 10 turned away for newer ones; the last from 198.18.0.3";
        assert_eq!(told(&mut log, 110).as_deref(), Some(many));
        log.count(RefusalReason::Busy, from);
        assert!(log.take_rest().is_some() && log.take_rest().is_none());
    }
}
