//! What happens right now, on stderr, for someone at a terminal.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// One line that tells which test runs; nothing at all without a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A line for so many trials.
    pub(crate) fn of(n_trials: usize, quiet: bool) -> Self {
        let bar = ProgressBar::new(u64::try_from(n_trials).unwrap_or(u64::MAX));
        let show = !quiet && std::io::stderr().is_terminal();
        bar.set_draw_target(if show { ProgressDrawTarget::stderr_with_hz(4) } else { ProgressDrawTarget::hidden() });
        let style = ProgressStyle::with_template("[{pos}/{len}] {prefix:<28} {bar:20}  {elapsed} {msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        Self { bar }
    }

    /// Names the test that begins.
    pub(crate) fn begins(&self, test: &str, round: u32) {
        self.bar.set_prefix(format!("{test}, round {}", round + 1));
        self.bar.set_message("");
    }

    /// Shows what the test does now.
    pub(crate) fn shows(&self, text: String) {
        self.bar.set_message(text);
    }

    /// One trial is over.
    pub(crate) fn ended(&self) {
        self.bar.inc(1);
    }

    /// Removes the line.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
