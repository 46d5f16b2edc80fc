//! A device with known throughput, loss and buffer, in virtual time.

use fathom_model::units::{Nanos, approximate, rounded};

use super::{Latencies, Tester, TrialCounts, TrialRequest, TrialTraffic};

/// Passes a rate and, after a pause, a burst at once: the generic cell rate algorithm.
pub(super) struct VirtualDevice {
    rate: f64,
    burst: f64,
    pub(super) latencies: Option<Latencies>,
    /// One in this many trials is sent only in part.
    pub(super) stalls_every: Option<u32>,
    /// One in this many trials pauses for 20 ms and catches up, so the device drops frames that it could have forwarded
    /// meanwhile.
    pub(super) lags_every: Option<u32>,
    /// The highest rate that the tool sends.
    pub(super) sends_max: f64,
    /// The number of trials before a failure.
    pub(super) fails_after: Option<u32>,
    pub(super) n_trials: u32,
    pub(super) took: Nanos,
    /// The time in each trial during which nothing passes.
    pub(super) outage: Nanos,
    /// The time after an overload during which everything is lost; `None` if it is not measured.
    pub(super) recovers_in: Option<Nanos>,
}

impl VirtualDevice {
    pub(super) fn policer(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            latencies: None,
            stalls_every: None,
            lags_every: None,
            sends_max: f64::INFINITY,
            fails_after: None,
            n_trials: 0,
            took: Nanos::ZERO,
            outage: Nanos::ZERO,
            recovers_in: None,
        }
    }
}

impl VirtualDevice {
    /// The most frames that it passes in a trial.
    fn passed(&self, traffic: &TrialTraffic) -> u64 {
        let passed = match *traffic {
            TrialTraffic::Step { duration, then, after, .. } => {
                let lost = self.recovers_in.unwrap_or(Nanos::ZERO).min(after);
                self.rate * duration.as_secs_f64() + self.rate.min(then) * (after - lost).as_secs_f64()
            }
            _ => self.rate * traffic.duration().as_secs_f64(),
        };
        rounded((self.burst + passed).floor())
    }
}

impl Tester for VirtualDevice {
    type Error = &'static str;

    fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, Self::Error> {
        if self.fails_after == Some(self.n_trials) {
            return Err("ctrl-C");
        }
        self.n_trials += 1;
        let span = asked.traffic.duration();
        self.took += span;
        let rate = asked.traffic.rate();
        let intended = match asked.traffic {
            TrialTraffic::Burst { n_frames, .. } => n_frames,
            TrialTraffic::Stream { duration, .. } => rounded(rate * duration.as_secs_f64()),
            TrialTraffic::Step { duration, then, after, .. } => {
                rounded(rate * duration.as_secs_f64() + then * after.as_secs_f64())
            }
        };
        let is_stalled = self.stalls_every.is_some_and(|every| self.n_trials.is_multiple_of(every));
        let stalled = if is_stalled { 0.9 } else { 1.0 };
        let offered = rounded(approximate(intended) * (self.sends_max / rate).min(1.0) * stalled);
        let is_late = self.lags_every.is_some_and(|every| self.n_trials.is_multiple_of(every));
        let lag = if is_late { Nanos::from_millis(20) } else { Nanos::ZERO };
        let cut_off = rounded(rate * self.outage.as_secs_f64() + self.rate * lag.as_secs_f64());
        let received = offered.min(self.passed(&asked.traffic)).saturating_sub(cut_off);
        let recovery = self.recovers_in;
        Ok(TrialCounts { intended, offered, received, latencies: self.latencies, recovery, lag, took: span })
    }
}

/// Two of the same device, one for each direction.
pub(super) struct Bidirectional<T>(pub(super) T);

impl<T: Tester> Tester for Bidirectional<T> {
    type Error = T::Error;

    fn n_directions(&self) -> u32 {
        2
    }

    fn trial(&mut self, asked: &TrialRequest) -> Result<TrialCounts, Self::Error> {
        let seen = self.0.trial(asked)?;
        Ok(TrialCounts { intended: 2 * seen.intended, offered: 2 * seen.offered, received: 2 * seen.received, ..seen })
    }
}
