//! Requests and connects that are still unanswered when a trial ends before their timeout.

use fathom_engine::load::OfferedLoad;
use fathom_model::units::Nanos;

use super::{Connection, FaultCause, RequestFault, RequestStage};

/// A server that answers at all answers within this time, and a lost SYN has been retransmitted by then.
const LONG_WAIT: Nanos = Nanos::from_secs(1);

/// A connection is stuck whose request has waited so many times as long as 99 % of the answers took.
const STUCK_FACTOR: u64 = 10;
/// A shorter wait is one for a core, or for a lost segment (the least retransmission timeout of Linux is 200 ms).
const STUCK_MIN: Nanos = Nanos::from_millis(250);

/// The end of a trial as one worker sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnansweredCheck {
    now: Nanos,
    /// 90 % of the measured time: requests that began with it began a little later.
    measured: Nanos,
    /// The longest time that an answer took; zero if some never came.
    slowest: Nanos,
}

impl UnansweredCheck {
    /// The end of a load at `now`; `None` if it was never measured, or not to its end.
    pub(crate) fn of<I: Iterator<Item = Nanos> + Clone>(now: Nanos, load: &OfferedLoad<'_, I>) -> Option<Self> {
        let is_ended = load.window().is_over() && !load.is_aborted();
        let slowest = load.times.service.max().filter(|_| load.times.n_lower_bounds == 0).unwrap_or(0);
        load.window().from().filter(|_| is_ended).map(|from| Self::since(from, now, Nanos(slowest)))
    }

    fn since(measured_from: Nanos, now: Nanos, slowest: Nanos) -> Self {
        Self { now, measured: now.since(measured_from) / 10 * 9, slowest }
    }

    /// The failure of a connection that is not open yet.
    pub(crate) fn connect(self, line: &Connection) -> Option<RequestFault> {
        let (stage, since) = line.stage().zip(line.since())?;
        self.is_long(since).then_some(RequestFault { stage, cause: FaultCause::Unanswered })
    }

    /// The failure of a request that has no answer, or whose answer has been incomplete for the whole time. `silent_for` is the time since data
    /// arrived on its connection, if that is known.
    pub(crate) fn request(
        self,
        sent_at: Nanos,
        first_byte_at: Option<Nanos>,
        silent_for: impl FnOnce() -> Option<Nanos>,
    ) -> Option<RequestFault> {
        let cause = match first_byte_at {
            // A server that took as long for an answer may still give this one.
            None if self.is_long(sent_at) && self.now.since(sent_at) > self.slowest => FaultCause::Unanswered,
            // Large bodies take long on a full path, and each byte shows that the server is alive.
            Some(_)
                if self.now.since(sent_at) >= self.measured.max(LONG_WAIT)
                    && silent_for().is_none_or(|silent| silent >= LONG_WAIT) =>
            {
                FaultCause::Incomplete
            }
            _ => return None,
        };
        Some(RequestFault { stage: RequestStage::Read, cause })
    }

    /// Whether a request, sent then, had waited far longer than the slowest hundredth of the answers took when the newest answer came to
    /// another one. Where nothing is answered any more, no connection is worse off than the others.
    pub(crate) const fn is_stuck(sent_at: Nanos, last_answer_at: Nanos, slow_answer: Nanos) -> bool {
        let waited = last_answer_at.since(sent_at).0;
        waited >= STUCK_MIN.0 && waited >= slow_answer.0.saturating_mul(STUCK_FACTOR)
    }

    fn is_long(self, since: Nanos) -> bool {
        self.now.since(since) >= self.measured.min(LONG_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_a_second_or_a_whole_round_is_unanswered() {
        let ms = Nanos::from_millis;
        // In ms: length of the measurement, age of the request, time of the first byte. The trial ends at 10 s.
        let cases = [
            (300, 280, None, Some(FaultCause::Unanswered)),
            (300, 200, None, None),
            (5_000, 1_000, None, Some(FaultCause::Unanswered)),
            (5_000, 900, None, None),
            (5_000, 2_000, Some(1), None),
            (5_000, 4_900, Some(1), Some(FaultCause::Incomplete)),
            (300, 290, Some(1), None),
        ];
        for (round, waited, first_byte, cause) in cases {
            let now = ms(10_000);
            let closing = UnansweredCheck::since(now.since(ms(round)), now, Nanos::ZERO);
            let fault = closing.request(now.since(ms(waited)), first_byte.map(ms), || None);
            assert_eq!(fault.map(|fault| fault.cause), cause, "{round} {waited}");
        }
    }

    #[test]
    fn a_request_that_waits_no_longer_than_another_one_did_may_still_be_answered() {
        let ms = Nanos::from_millis;
        let closing = UnansweredCheck::since(ms(5_000), ms(10_000), ms(1_500));
        assert_eq!(closing.request(ms(8_600), None, || None), None);
        assert!(closing.request(ms(8_400), None, || None).is_some());
    }

    #[test]
    fn a_body_that_still_comes_at_the_end_is_no_failure() {
        let ms = Nanos::from_millis;
        let closing = UnansweredCheck::since(ms(8_800), ms(10_000), Nanos::ZERO);
        let fault = |silent| closing.request(ms(8_500), Some(ms(8_600)), || silent).map(|fault| fault.cause);
        let incomplete = Some(FaultCause::Incomplete);
        assert_eq!([Some(ms(20)), Some(ms(1_400)), None].map(fault), [None, incomplete, incomplete]);
    }

    #[test]
    fn a_request_is_stuck_that_waits_ten_times_as_long_as_slow_answers_take_while_others_are_answered() {
        let ms = Nanos::from_millis;
        // In ms: time of slow answers, time from the request to the newest answer on another connection.
        let cases = [(1, 240, false), (1, 260, true), (40, 390, false), (40, 410, true)];
        for (slow, waited, is_stuck) in cases {
            assert_eq!(UnansweredCheck::is_stuck(ms(700), ms(700 + waited), ms(slow)), is_stuck, "{slow} {waited}");
        }
        assert!(!UnansweredCheck::is_stuck(ms(700), ms(600), ms(1)), "nothing was answered since then");
    }
}
