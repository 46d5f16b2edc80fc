//! A load that waits for each answer before it sends again.

use fathom_model::{
    Derivation, Histogram, Layer, Side,
    names::{
        count, distribution,
        host::{TCP_IN_SEGMENTS, TCP_LOSS_PROBES, TCP_SYN_RETRANS, TCP_TIMEOUTS},
    },
    units::{Nanos, approximate, ratio},
};

use crate::{
    evidence::TestEvidence,
    resent::{PROBE_MIN, SYN_TIMEOUT, TIMEOUT_MIN},
    summaries::main_rate,
};

/// Slightly less than a timer takes, to find it among measured times.
const NEARLY_TIMER: Nanos = Nanos::from_millis(190);
/// With at most so many segments in a unit, each message is a single one: the handshake and the end of a connection take the others.
const SHORT: u64 = 5;
/// From this share of its time on, waiting for timers makes a load do markedly less.
const MATTERS: f64 = 0.05;
/// So many or more wait for lost segments at the same time only if the path lost all for a while, unless chance makes them.
const MANY: u64 = 5;
const BY_CHANCE: f64 = 0.01;

/// So many units at once, each of which begins when the one before it has ended.
pub(crate) struct ClosedLoad {
    /// The option that sets the number at once, such as `connections`.
    pub(crate) option: &'static str,
    pub(crate) at_once: u64,
    n_units: u64,
    /// The measured time of all that go at once together.
    spent: Nanos,
    /// The connections that are opened for a unit, from 0 to 1.
    pub(crate) connects: f64,
}

impl ClosedLoad {
    /// `None` for any other load, and for one of several pairs, which share what goes at once.
    pub(crate) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let (test, options) = (seen.test, &seen.test.options);
        let Derivation::Rate { counter, side: Side::Initiator } = &main_rate(test)?.metric.from else { return None };
        let mut records = seen.trials().iter().flat_map(|trial| trial.records.values());
        let is_closed = matches!(test.layer, Layer::App | Layer::Http | Layer::Tcp | Layer::Udp)
            && [count::REQUESTS, count::TRANSACTIONS].contains(&counter.as_ref())
            && test.links.len() <= 1
            // More than one in flight on each connection: those of a script may be.
            && ["rate", "profile", "script"].iter().all(|option| options.text(option).is_none())
            && ["pipeline", "burst"].iter().all(|option| options.count(option).unwrap_or(1) == 1)
            && records.all(|record| record.replay.is_none());
        let of = |name| seen.distribution(Side::Initiator, name);
        let at_once = |option| Some((option, options.count(option).filter(|n| *n > 0)?));
        let (option, at_once) =
            ["connections", "flows", "users"].into_iter().find_map(at_once).filter(|_| is_closed)?;
        if of(distribution::SCHEDULE_LAG).count() > 0 {
            return None;
        }
        // Totals have those of the warm-up too.
        let n_units = of(distribution::SERVICE_TIME).count();
        let total = |counter| seen.total(Side::Initiator, counter);
        let n_first = at_once.saturating_mul(u64::try_from(seen.trials().len()).unwrap_or(u64::MAX));
        let connects = match test.layer {
            Layer::App | Layer::Http => {
                ratio(total(count::CONNECTIONS).saturating_sub(n_first), total(count::REQUESTS))
            }
            _ => ratio(of(distribution::CONNECT_TIME).count(), n_units),
        };
        let spent = Nanos(seen.measured_time().0.saturating_mul(at_once));
        let connects = connects.unwrap_or(0.0).min(1.0);
        (spent > Nanos::ZERO).then_some(Self { option, at_once, n_units, spent, connects })
    }

    /// Returns the mean time from the begin of a unit to that of the next one.
    pub(crate) fn time_of_each(&self) -> Option<Nanos> {
        self.spent.0.checked_div(self.n_units).map(Nanos)
    }

    /// Returns the share of all its time that so many times this are, for each unit; `None` if it is more than there was.
    pub(crate) fn share_of(&self, time: Nanos, times: f64) -> Option<f64> {
        // Units that began before the measured part end in it.
        const WHOLE: f64 = 1.1;
        let share = ratio(time.0.saturating_mul(self.n_units), self.spent.0)? * times;
        (share <= WHOLE).then(|| share.min(1.0))
    }

    /// Returns the share of all its time that passed in no unit that ended before a timer would.
    fn share_of_slow(&self, seen: &TestEvidence<'_>) -> f64 {
        let times = whole_times(seen);
        let fast = times.buckets().filter(|(low, ..)| *low < NEARLY_TIMER.0);
        let of_bucket = |(low, high, n)| approximate(n) * f64::midpoint(approximate(low), approximate(high));
        (1.0 - fast.map(of_bucket).sum::<f64>() / approximate(self.spent.0)).max(0.0)
    }
}

/// Returns the times of whole units, with the connections that they open; those of a schedule from when they were due.
pub(crate) fn whole_times(seen: &TestEvidence<'_>) -> Histogram {
    let of = |name| seen.distribution(Side::Initiator, name);
    let known = [distribution::TOTAL_TIME, distribution::SERVICE_TIME].map(of).into_iter().find(|it| it.count() > 0);
    known.unwrap_or_else(|| of(distribution::RESPONSE_TIME))
}

/// What was lost in a closed load of TCP, and the least share of its time that passed until timers sent it again.
pub(crate) struct TimerWaits {
    /// How often a timer sent something again, at both ends.
    pub(crate) n: u64,
    pub(crate) share: f64,
}

impl TimerWaits {
    /// `None` if the load hardly waited, or its usual units are so slow that what is not fast is no sign of a timer.
    pub(crate) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let load = ClosedLoad::of(seen).filter(|_| matches!(seen.test.layer, Layer::Http | Layer::Tcp))?;
        whole_times(seen).quantile(0.5).filter(|median| 2 * median < TIMEOUT_MIN.0)?;
        let from = seen.host_of(Side::Initiator).unwrap_or(&seen.test.from);
        let grown = |host, counter| seen.growth(host, counter, None);
        let n_units = seen.total(Side::Initiator, count::REQUESTS).max(load.n_units);
        let segments = ratio(grown(from, TCP_IN_SEGMENTS), n_units);
        let probe = if segments.is_some_and(|n| n <= approximate(SHORT)) { TIMEOUT_MIN } else { PROBE_MIN };
        let (mut n, mut waited) = (0, 0_u64);
        for host in seen.hosts_of_tcp() {
            // A SYN that is sent again counts as a timeout too (`tcp_retransmit_timer`), and so does the answer to one, for which the same
            // connection waits.
            let (n_syn, timeouts) = (grown(host, TCP_SYN_RETRANS), grown(host, TCP_TIMEOUTS));
            let probes = grown(host, TCP_LOSS_PROBES);
            n += timeouts + probes;
            let of_syns = if host == from { SYN_TIMEOUT.0.saturating_mul(n_syn) } else { 0 };
            waited +=
                TIMEOUT_MIN.0.saturating_mul(timeouts.saturating_sub(n_syn)) + probe.0.saturating_mul(probes) + of_syns;
        }
        // Counters have the warm-up too.
        let counted = seen.sampled_time(from).filter(|time| *time > Nanos::ZERO).unwrap_or(seen.measured_time());
        let part = ratio(seen.measured_time().0, counted.0).unwrap_or(1.0).min(1.0);
        let share = load.share_of_slow(seen).min(approximate(waited) * part / approximate(load.spent.0));
        (n > 0 && share >= MATTERS).then_some(Self { n, share })
    }

    /// Returns true if so many at once all wait by chance: each of them waits for this share of the time.
    fn silences(&self, load: &ClosedLoad) -> bool {
        load.at_once < MANY || self.share.powf(approximate(load.at_once)) >= BY_CHANCE
    }
}

/// Returns true if the single losses of a load explain that nothing was answered for a while.
pub(crate) fn losses_silence(seen: &TestEvidence<'_>) -> bool {
    let found = ClosedLoad::of(seen).and_then(|load| Some((TimerWaits::of(seen)?, load)));
    found.is_some_and(|(waits, load)| waits.silences(&load))
}

/// Returns true if a load has so much at once that a silence of this share of its time, in which all of it was lost, explains what it waited for.
pub(crate) fn silence_loses(seen: &TestEvidence<'_>, silent: f64) -> bool {
    let Some(load) = ClosedLoad::of(seen).filter(|load| load.at_once >= MANY) else { return false };
    TimerWaits::of(seen).is_none_or(|waits| !waits.silences(&load) && 2.0 * silent >= waits.share)
}
