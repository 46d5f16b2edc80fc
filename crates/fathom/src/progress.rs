//! What happens right now, on stderr, for someone at a terminal.

use std::{cell::Cell, io::IsTerminal as _};

use fathom_engine::Live;
use fathom_model::{
    Phases,
    units::{Nanos, approximate, rounded},
};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Twice a second: as often as hosts tell how they fare.
const PER_SECOND: u8 = 2;
/// The bar counts milliseconds of the measured time.
const MILLI: u64 = 1_000_000;

/// One line that tells which test runs, how far it is, and how it fares; nothing at all without a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    n_trials: usize,
    n_ended: Cell<usize>,
    warmed_up: Cell<Option<Nanos>>,
}

impl Progress {
    /// A line for so many trials.
    pub(crate) fn of(n_trials: usize, quiet: bool) -> Self {
        let bar = ProgressBar::new(0);
        let show = !quiet && std::io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr_with_hz(PER_SECOND);
        bar.set_draw_target(if show { target } else { ProgressDrawTarget::hidden() });
        let style = ProgressStyle::with_template("{prefix}  {bar:16}  {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        Self { bar, n_trials, n_ended: Cell::new(0), warmed_up: Cell::new(None) }
    }

    /// Names the test that begins.
    pub(crate) fn begins(&self, test: &str, round: u32) {
        self.bar.set_prefix(format!("[{}/{}] {test}, round {}", self.n_ended.get() + 1, self.n_trials, round + 1));
    }

    /// Names the step that a search has come to.
    pub(crate) fn searches(&self, test: &str, step: &str) {
        self.bar.set_prefix(format!("{test}, {step}"));
    }

    /// Tells how long the trial that starts will be measured.
    pub(crate) fn starts(&self, phases: &Phases) {
        self.warmed_up.set((phases.warmup_max_ns == Nanos::ZERO).then_some(Nanos::ZERO));
        self.bar.set_length(phases.measure_ns.0 / MILLI);
        self.bar.set_position(0);
        self.bar.set_message("");
    }

    /// Shows what the test does now: `6.1 s of 10.0 s   9.08 Gbit/s   p99 1.9 ms`.
    pub(crate) fn shows(&self, live: &Live, rate: &str) {
        let p99 = live.p99.map(|p99| format!("   p99 {p99}")).unwrap_or_default();
        if !live.measuring {
            self.bar.set_message(format!("warming up   {rate}{p99}"));
            return;
        }
        if self.warmed_up.get().is_none() {
            // When the warm-up ended is known to the half of a second between two of these.
            self.warmed_up.set(Some(live.elapsed.since(live.span)));
        }
        let measured = live.elapsed.since(self.warmed_up.get().unwrap_or(Nanos::ZERO));
        let whole = Nanos(self.bar.length().unwrap_or(0) * MILLI);
        self.bar.set_position(measured.min(whole).0 / MILLI);
        self.bar.set_message(format!("{} of {}   {rate}{p99}", seconds(measured.min(whole)), seconds(whole)));
    }

    /// One trial is over.
    pub(crate) fn ended(&self) {
        self.n_ended.set(self.n_ended.get() + 1);
    }

    /// Removes the line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A span to a tenth of a second, which does not change its width while it is looked at.
fn seconds(span: Nanos) -> String {
    let tenths = rounded(approximate(span.0) / 1e8);
    format!("{}.{} s", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_to_a_tenth_of_a_second() {
        let spans = [Nanos::ZERO, Nanos::from_millis(6_149), Nanos::from_secs(10)];
        assert_eq!(spans.map(seconds), ["0.0 s", "6.1 s", "10.0 s"]);
    }
}
