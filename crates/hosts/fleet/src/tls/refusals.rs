//! Counts refused connections by reason and reports them periodically, so that guessing is visible without flooding the log.

use std::{fmt, net::IpAddr};

use fathom_model::units::Nanos;

/// The minimum interval between reports.
const REPORT_EVERY: Nanos = Nanos::from_secs(10);

/// The reason for refusing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// It sent a wrong token.
    WrongToken,
    /// It sent no token: another protocol, silence, or too slow.
    NoToken,
    /// It had not sent a token yet when newer connections needed its slot.
    TooManyConnections,
    /// It has the key, but the maximum number of controllers is reached.
    Busy,
    /// This host has no free thread or descriptor for it.
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

/// The refused connections since the last report.
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

/// Counts refusals, and determines when to report them.
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

    /// Returns the counts to report now: the first refusal at once, later ones after the interval.
    pub(super) fn take_due(&mut self, now: Nanos) -> Option<RefusalCounts> {
        if self.since.last.is_none() || now < self.next {
            return None;
        }
        self.next = now + REPORT_EVERY;
        Some(std::mem::take(&mut self.since))
    }

    /// Returns the unreported counts.
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
