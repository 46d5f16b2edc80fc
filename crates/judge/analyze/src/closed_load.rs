//! A load that waits for each answer before it sends again.

use fathom_model::{
    Derivation, Histogram, Layer, Side,
    names::{
        count, distribution,
        host::{TCP_LOSS_PROBES, TCP_SYN_RETRANS, TCP_TIMEOUTS},
    },
    units::{Nanos, approximate, ratio, rounded},
};

use crate::{evidence::TestEvidence, summaries::main_rate};

/// The least time after which TCP sends again what was not acknowledged (`TCP_RTO_MIN` of Linux, RFC 6298 section 2), and slightly less, to find it
/// among measured times.
const TIMER: Nanos = Nanos::from_millis(200);
/// The same for the first packet of a connection (`TCP_TIMEOUT_INIT`).
const SYN_TIMER: Nanos = Nanos::from_secs(1);
const NEARLY_TIMER: Nanos = Nanos::from_millis(190);
/// From this share of its time on, waiting for timers makes a load do markedly less.
const MATTERS: f64 = 0.05;

/// So many units at once, each of which begins when the one before it has ended.
pub(crate) struct ClosedLoad {
    /// The option that sets the number at once, such as `connections`.
    pub(crate) option: &'static str,
    pub(crate) at_once: u64,
    n_units: u64,
    /// The measured time of all that go at once together.
    spent: Nanos,
    /// Whether a unit begins with a connection of its own.
    pub(crate) connects_each: bool,
}

impl ClosedLoad {
    /// `None` for any other load, and for one of several pairs, which share what goes at once.
    pub(crate) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        const UNITS: [&str; 3] = [count::REQUESTS, count::TRANSACTIONS, count::CONNECTIONS];
        let test = seen.test;
        let Derivation::Rate { counter, side: Side::Initiator } = &main_rate(test)?.metric.from else { return None };
        let options = &test.options;
        let is_closed = matches!(test.layer, Layer::App | Layer::Http | Layer::Tcp | Layer::Udp)
            && UNITS.contains(&counter.as_ref())
            && test.links.len() <= 1
            && ["rate", "profile"].iter().all(|option| options.text(option).is_none())
            && options.count("pipeline").unwrap_or(1) == 1;
        let at_once = |option| Some((option, options.count(option).filter(|n| *n > 0)?));
        let (option, at_once) =
            ["connections", "flows", "users"].into_iter().find_map(at_once).filter(|_| is_closed)?;
        // Totals have those of the warm-up, too.
        let n_units = seen.distribution(Side::Initiator, distribution::SERVICE_TIME).count();
        let n_connects = seen.distribution(Side::Initiator, distribution::CONNECT_TIME).count();
        let spent = Nanos(seen.measured_time().0.saturating_mul(at_once));
        let connects_each = n_units > 0 && 2 * n_connects >= n_units;
        (spent > Nanos::ZERO).then_some(Self { option, at_once, n_units, spent, connects_each })
    }

    /// Returns the mean time from the begin of a unit to that of the next one.
    pub(crate) fn time_of_each(&self) -> Option<Nanos> {
        self.spent.0.checked_div(self.n_units).map(Nanos)
    }

    /// Returns the share of all its time that this much of each unit is; `None` if it is more than there was.
    pub(crate) fn share_of(&self, of_each: Nanos) -> Option<f64> {
        // Units that began before the measured part end in it.
        const WHOLE: f64 = 1.1;
        let share = ratio(of_each.0.saturating_mul(self.n_units), self.spent.0)?;
        (share <= WHOLE).then(|| share.min(1.0))
    }

    /// Returns the nanoseconds of all its time that passed in no unit that ended before a timer would.
    fn waited(&self, seen: &TestEvidence<'_>) -> f64 {
        let whole = whole_times(seen);
        let fast = whole.buckets().filter(|(low, ..)| *low < NEARLY_TIMER.0);
        let of_bucket = |(low, high, n)| approximate(n) * f64::midpoint(approximate(low), approximate(high));
        (approximate(self.spent.0) - fast.map(of_bucket).sum::<f64>()).max(0.0)
    }
}

/// Returns the times of whole units, with the connections that they open.
fn whole_times(seen: &TestEvidence<'_>) -> Histogram {
    let whole = seen.distribution(Side::Initiator, distribution::TOTAL_TIME);
    if whole.count() == 0 { seen.distribution(Side::Initiator, distribution::SERVICE_TIME) } else { whole }
}

/// What was lost in a closed load of TCP, and the share of its time that passed until timers sent it again.
pub(crate) struct TimerWaits {
    /// How often a timer sent something again, at both ends.
    pub(crate) n: u64,
    pub(crate) share: f64,
}

impl TimerWaits {
    /// `None` if the load waited for other things most of the time, or hardly.
    pub(crate) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let load = ClosedLoad::of(seen).filter(|_| matches!(seen.test.layer, Layer::Http | Layer::Tcp))?;
        let (whole, waited) = (whole_times(seen), load.waited(seen));
        // The usual unit has to be fast, or a slow server looks like a timer.
        whole.quantile(0.5).filter(|median| 2 * median < TIMER.0)?;
        let all = |counter| seen.hosts().map(|host| seen.growth(host, counter, None)).sum::<u64>();
        let (n, n_syn) = (all(TCP_TIMEOUTS) + all(TCP_LOSS_PROBES), all(TCP_SYN_RETRANS));
        let share = ratio(rounded(waited), load.spent.0)?;
        // Each waited at least this long, so that they explain at least half of it.
        let least = TIMER.0.saturating_mul(n) + SYN_TIMER.0.saturating_mul(n_syn);
        let is_theirs = 2.0 * approximate(least) >= waited;
        (n > 0 && is_theirs && share >= MATTERS).then_some(Self { n, share })
    }
}
