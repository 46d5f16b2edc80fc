//! What happens right now, on stderr, for someone at a terminal.

use std::{
    cell::{Cell, RefCell},
    io::IsTerminal as _,
};

use fathom_engine::LiveProgress;
use fathom_model::{
    Phases,
    units::{Nanos, approximate, ratio, rounded},
};
use fathom_sys::clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{execute::rounded_text, terminal::sanitized};

/// Twice a second: as often as hosts tell how they fare.
const PER_SECOND: u8 = 2;
/// The bar is as wide as in a half of it can be seen at a glance.
const BAR: u64 = 16;

/// One line that tells which test runs, how far it is, and how it fares; nothing at all without a terminal.
pub struct ProgressLine {
    bar: ProgressBar,
    n_trials: usize,
    n_ended: Cell<usize>,
    /// When the first trial began, and how long all of them take.
    began: Nanos,
    whole: Cell<Option<Nanos>>,
    activity: RefCell<String>,
    measure: Cell<Nanos>,
    warmed_up: Cell<Option<Nanos>>,
}

impl ProgressLine {
    /// A line for that many trials, which take so long at most.
    pub fn of(n_trials: usize, longest: Option<Nanos>, quiet: bool) -> Self {
        let bar = ProgressBar::new(0);
        let show = !quiet && std::io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr_with_hz(PER_SECOND);
        bar.set_draw_target(if show { target } else { ProgressDrawTarget::hidden() });
        bar.set_style(ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar()));
        let (n_ended, doing) = (Cell::new(0), RefCell::new(String::new()));
        let (began, whole) = (clock::now(), Cell::new(longest));
        Self {
            bar,
            n_trials,
            n_ended,
            began,
            whole,
            activity: doing,
            measure: Cell::new(Nanos::ZERO),
            warmed_up: Cell::new(None),
        }
    }

    /// Names the test that begins.
    pub fn begin_test(&self, test: &str, round: u32) {
        let doing = format!("[{}/{}] {test}, round {}", self.n_ended.get() + 1, self.n_trials, round + 1);
        self.activity.replace(sanitized(&doing));
    }

    /// Names the step that a search has come to.
    pub fn show_search_step(&self, test: &str, step: &str) {
        self.activity.replace(sanitized(&format!("{test} {step}")));
    }

    /// Tells how long the trial that starts will be measured.
    pub fn start_trial(&self, phases: &Phases) {
        self.warmed_up.set((phases.warmup_max_ns == Nanos::ZERO).then_some(Nanos::ZERO));
        self.measure.set(phases.measure_ns);
        self.bar.set_message(line(&self.activity_text(), None, self.measure.get(), ""));
    }

    /// Shows what the test does now, how fast, and how long one in a hundred takes at least.
    pub fn show(&self, live: &LiveProgress, rate: &str) {
        if live.measuring && self.warmed_up.get().is_none() {
            // When the warm-up ended is known to the half of a second between two of these.
            self.warmed_up.set(Some(live.elapsed.since(live.span)));
        }
        let since = self.warmed_up.get().filter(|_| live.measuring);
        let measured = since.map(|since| live.elapsed.since(since).min(self.measure.get()));
        let p99 = live.p99.map(|p99| format!("   p99 {p99}")).unwrap_or_default();
        self.bar.set_message(line(&self.activity_text(), measured, self.measure.get(), &format!("{rate}{p99}")));
    }

    /// One trial is over.
    pub fn end_trial(&self) {
        let n_ended = self.n_ended.get() + 1;
        self.n_ended.set(n_ended);
        // What the trials took so far says more than what they may take at most.
        let took = clock::now().since(self.began);
        let n_all = self.n_trials.max(n_ended);
        self.whole.set(
            ratio(took.0, u64::try_from(n_ended).unwrap_or(1))
                .map(|one| Nanos(rounded(one * approximate(u64::try_from(n_all).unwrap_or(u64::MAX))))),
        );
    }

    /// What is done, and how long the run goes on, as far as that is known.
    fn activity_text(&self) -> String {
        let left = self.whole.get().map(|whole| whole.since(clock::now().since(self.began)));
        let left = left.filter(|left| *left > Nanos::ZERO).map(|left| format!(", {} left", rounded_text(left)));
        format!("{}{}", self.activity.borrow(), left.unwrap_or_default())
    }

    /// Removes the line.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The whole line: `[3/9] tcp_stream, round 1  ━━━━━━━━╸           6.1 s of 10.0 s   9.08 Gbit/s   p99 1.90 ms`.
fn line(doing: &str, measured: Option<Nanos>, whole: Nanos, fares: &str) -> String {
    let Some(measured) = measured else { return format!("{doing}  {}  warming up   {fares}", bar(0)) };
    let halves = ratio(2 * BAR * measured.0, whole.0).map_or(0, rounded);
    format!("{doing}  {}  {} of {}   {fares}", bar(halves), seconds(measured), seconds(whole))
}

/// A bar of that many halves.
fn bar(halves: u64) -> String {
    let (full, half) = (halves.min(2 * BAR) / 2, halves.min(2 * BAR) % 2);
    (0..BAR)
        .map(|place| {
            if place < full {
                '━'
            } else if place < full + half {
                '╸'
            } else {
                ' '
            }
        })
        .collect()
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
    fn the_line_tells_how_far_a_trial_is_and_how_it_fares() {
        let shown =
            line("[3/9] http", Some(Nanos::from_millis(5_300)), Nanos::from_secs(10), "9.08 k req/s   p99 1.90 ms");
        assert_eq!(shown, "[3/9] http  ━━━━━━━━╸         5.3 s of 10.0 s   9.08 k req/s   p99 1.90 ms");
        assert_eq!(line("x", None, Nanos::from_secs(1), "1"), format!("x  {}  warming up   1", " ".repeat(16)));
        assert_eq!(bar(99), "━".repeat(16));
    }

    #[test]
    fn spans_are_shown_to_a_tenth_of_a_second() {
        let spans = [Nanos::ZERO, Nanos::from_millis(6_149), Nanos::from_secs(10)];
        assert_eq!(spans.map(seconds), ["0.0 s", "6.1 s", "10.0 s"]);
    }
}
