//! The progress line on stderr, for a user at a terminal.

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
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{execute::rounded_text, terminal::sanitized};

/// Redraws per second: hosts report their progress as often.
const PER_SECOND: u8 = 2;
/// The most lines of hosts: more do not fit on a screen.
const HOST_LINES_MAX: usize = 32;
/// The width of the bar in characters. Its smallest step is half a character.
const BAR: u64 = 16;

/// A line with the current test, its progress and its rate, and below it one line per host of a test of several hosts. Without a
/// terminal, nothing is shown.
pub struct ProgressLine {
    bar: ProgressBar,
    /// All lines on the terminal; the first one is `bar`.
    lines: MultiProgress,
    /// The lines of the hosts.
    hosts: RefCell<Vec<ProgressBar>>,
    n_trials: usize,
    n_ended: Cell<usize>,
    /// The start of the run. `whole` is the expected duration of all its trials.
    began: Nanos,
    whole: Cell<Option<Nanos>>,
    activity: RefCell<String>,
    measure: Cell<Nanos>,
    warmed_up: Cell<Option<Nanos>>,
}

impl ProgressLine {
    /// Creates the line for a run of `n_trials` trials that takes at most `longest`.
    pub fn of(n_trials: usize, longest: Option<Nanos>, quiet: bool) -> Self {
        let show = !quiet && std::io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr_with_hz(PER_SECOND);
        let lines = MultiProgress::with_draw_target(if show { target } else { ProgressDrawTarget::hidden() });
        let bar = lines.add(message_bar());
        let (n_ended, doing) = (Cell::new(0), RefCell::new(String::new()));
        let (began, whole) = (clock::now(), Cell::new(longest));
        Self {
            bar,
            lines,
            hosts: RefCell::new(Vec::new()),
            n_trials,
            n_ended,
            began,
            whole,
            activity: doing,
            measure: Cell::new(Nanos::ZERO),
            warmed_up: Cell::new(None),
        }
    }

    /// Returns true if someone sees the lines.
    pub fn is_shown(&self) -> bool {
        !self.lines.is_hidden()
    }

    /// Shows the name of the test that starts.
    pub fn begin_test(&self, test: &str, round: u32) {
        let doing = format!("[{}/{}] {test}, round {}", self.n_ended.get() + 1, self.n_trials, round + 1);
        self.activity.replace(sanitized(&doing));
    }

    /// Shows the current step of a search or an intervention.
    pub fn show_search_step(&self, test: &str, step: &str) {
        self.activity.replace(sanitized(&format!("{test} {step}")));
    }

    /// Resets the bar for the trial that starts.
    pub fn start_trial(&self, phases: &Phases) {
        self.warmed_up.set((phases.warmup_max_ns == Nanos::ZERO).then_some(Nanos::ZERO));
        self.measure.set(phases.measure_ns);
        self.bar.set_message(line(&self.activity_text(), None, self.measure.get(), ""));
        self.show_hosts(&[]);
    }

    /// Shows the activity of the test, its rate and its p99 latency.
    pub fn show(&self, live: &LiveProgress, rate: &str) {
        if live.measuring && self.warmed_up.get().is_none() {
            // The end of the warm-up is known only to within the half second between two reports.
            self.warmed_up.set(Some(live.elapsed.since(live.span)));
        }
        let since = self.warmed_up.get().filter(|_| live.measuring);
        let measured = since.map(|since| live.elapsed.since(since).min(self.measure.get()));
        let p99 = live.p99.map(|p99| format!("   p99 {p99}")).unwrap_or_default();
        self.bar.set_message(line(&self.activity_text(), measured, self.measure.get(), &format!("{rate}{p99}")));
    }

    /// Shows one line per host: its name, its rate and its state.
    pub fn show_hosts(&self, all: &[(String, String)]) {
        let mut bars = self.hosts.borrow_mut();
        while bars.len() < all.len().min(HOST_LINES_MAX) {
            bars.push(self.lines.add(message_bar()));
        }
        bars.drain(all.len()..).for_each(|bar| bar.finish_and_clear());
        let width = all.iter().map(|(host, _)| host.chars().count()).max().unwrap_or(0);
        for (bar, (host, text)) in bars.iter().zip(all) {
            bar.set_message(sanitized(&format!("  {host:<width$}  {text}")));
        }
    }

    /// Counts a finished trial and updates the expected duration of the run.
    pub fn end_trial(&self) {
        let n_ended = self.n_ended.get() + 1;
        self.n_ended.set(n_ended);
        // The time per finished trial is a better estimate than the maximum.
        let took = clock::now().since(self.began);
        let n_all = self.n_trials.max(n_ended);
        self.whole.set(
            ratio(took.0, u64::try_from(n_ended).unwrap_or(1))
                .map(|one| Nanos(rounded(one * approximate(u64::try_from(n_all).unwrap_or(u64::MAX))))),
        );
    }

    /// Returns the activity and, if it is known, the remaining time of the run.
    fn activity_text(&self) -> String {
        let left = self.whole.get().map(|whole| whole.since(clock::now().since(self.began)));
        let left = left.filter(|left| *left > Nanos::ZERO).map(|left| format!(", {} left", rounded_text(left)));
        format!("{}{}", self.activity.borrow(), left.unwrap_or_default())
    }

    /// Removes the line.
    pub fn clear(&self) {
        self.hosts.borrow().iter().for_each(ProgressBar::finish_and_clear);
        self.bar.finish_and_clear();
    }
}

/// Creates a line of nothing but a text.
fn message_bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style)
}

/// Formats the line: `[3/9] tcp_stream, round 1  ━━━━━━━━╸           6.1 s of 10.0 s   9.08 Gbit/s   p99 1.90 ms`.
fn line(doing: &str, measured: Option<Nanos>, whole: Nanos, fares: &str) -> String {
    let Some(measured) = measured else { return format!("{doing}  {}  warming up   {fares}", bar(0)) };
    let halves = ratio(2 * BAR * measured.0, whole.0).map_or(0, rounded);
    format!("{doing}  {}  {} of {}   {fares}", bar(halves), seconds(measured), seconds(whole))
}

/// Draws a bar of `halves` half characters.
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

/// Formats a span to a tenth of a second, so that its width stays the same between two redraws.
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
