//! Periods in which a responder does nothing, like a server during garbage collection.

use std::str::FromStr;

use fathom_model::units::Nanos;

use super::InvalidText;

/// Once per period no answer is sent for a span. Requests wait in the kernel and are read afterwards.
///
/// The first stall begins one period after the start, the next one period later. As text: `200ms/1s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallPattern {
    span: Nanos,
    period: Nanos,
}

impl StallPattern {
    /// The end of the stall in progress at `elapsed`, a time since the start.
    pub(super) fn end(self, elapsed: Nanos) -> Option<Nanos> {
        let within = elapsed.0 % self.period.0;
        let stalls = elapsed >= self.period && within < self.span.0;
        stalls.then(|| elapsed + self.span - Nanos(within))
    }
}

impl FromStr for StallPattern {
    type Err = InvalidText;

    fn from_str(text: &str) -> Result<Self, InvalidText> {
        let (span, period) = text.split_once('/').ok_or(InvalidText)?;
        let read = |text: &str| text.trim().parse::<Nanos>().map_err(|_| InvalidText);
        let stall = Self { span: read(span)?, period: read(period)? };
        let is_sound = stall.span > Nanos::ZERO && stall.span < stall.period;
        if is_sound { Ok(stall) } else { Err(InvalidText) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_begins_with_each_period_but_the_first() {
        let stall: StallPattern = "200ms/1s".parse().unwrap();
        let end = |ms| stall.end(Nanos::from_millis(ms));
        for (ms, until) in [(0, None), (199, None), (999, None), (1000, Some(1200)), (1199, Some(1200)), (1200, None)] {
            assert_eq!(end(ms), until.map(Nanos::from_millis), "{ms} ms");
        }
        assert_eq!(end(5_100), Some(Nanos::from_millis(5_200)));
    }

    #[test]
    fn a_stall_that_never_ends_or_never_is_is_refused() {
        for text in ["1s/1s", "2s/1s", "0s/1s", "200ms", "200ms/0s", "a/b", "/"] {
            assert_eq!(text.parse::<StallPattern>(), Err(InvalidText), "{text}");
        }
    }
}
