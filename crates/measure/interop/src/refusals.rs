//! Datagrams that the other host refuses: when they mean that nobody listens.

/// The refusals of datagrams by the other host.
///
/// iperf closes its port for a moment after the first datagram of each flow, and opens that for `-d` late; a netperf client may open its port
/// late too. So a few mean nothing.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    n: u64,
    /// How many datagrams had been sent at the first one.
    first_at: u64,
}

impl Refusals {
    /// Takes a refusal after this many datagrams; returns whether nobody listens.
    pub(crate) fn is_final(&mut self, n_sent: u64) -> bool {
        /// As many come in 0.2 s at iperf's default rate.
        const SEVERAL: u64 = 20;
        if self.n == 0 {
            self.first_at = n_sent;
        }
        self.n += 1;
        // A refusal belongs to one of the datagrams before it, so at full speed there are fewer refusals than datagrams.
        self.n >= SEVERAL && self.n * 100 >= n_sent - self.first_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_refusals_are_forgiven_and_many_in_a_row_are_not() {
        let mut few = Refusals::default();
        assert!((1..20).all(|n| !few.is_final(n)), "a port that was closed for a moment");
        assert!(!few.is_final(5000), "and that took thousands afterwards");
        let mut many = Refusals::default();
        assert_eq!((1..=20).filter(|n| many.is_final(*n)).collect::<Vec<_>>(), [20]);
    }
}
