//! Benchmarks of all frame sizes: one table of values, one of losses, and what must be said.

use fathom_model::{Run, TestRun};

use super::{
    detail::grid,
    screen::{
        TextScreen,
        Tone::{Faint, Plain, Warn},
    },
};
use crate::benchmark::{TITLES, loss, reference, remarks, result_lines, tests};

/// The column that says that a result is irregular.
const MARK: usize = 3;

/// Whether a run has nothing but benchmarks, and tests that were made together with them.
pub(super) fn is_all(run: &Run) -> bool {
    let is_beside = |name: &str| run.plan.tests.iter().any(|test| test.name == name && test.beside.is_some());
    let is_one = |test: &TestRun| test.unavailable.is_none() && (test.benchmark.is_some() || is_beside(&test.name));
    !run.tests.is_empty() && run.tests.iter().all(is_one)
}

pub(super) fn write(screen: &mut TextScreen, run: &Run) {
    // Beside the result, where a narrow screen does not cut it off.
    let mut header = TITLES.to_vec();
    header.insert(MARK, "");
    let of = |line: crate::benchmark::BenchmarkLine| {
        let (mark, tone) = if line.is_irregular { ("irregular", Warn) } else { ("", Plain) };
        let mut cells = line.cells.to_vec();
        cells.insert(MARK, mark.to_owned());
        (cells, tone)
    };
    let all: Vec<_> = tests(run).flat_map(|(_, benchmark)| result_lines(benchmark)).map(of).collect();
    if all.is_empty() {
        screen.line(&[(Warn, "  nothing was found")]);
    } else {
        grid(screen, &header, &all);
    }
    let losses: Vec<_> = tests(run).flat_map(|(_, benchmark)| loss(benchmark)).collect();
    if !losses.is_empty() {
        screen.blank_line();
        let of = |cells: [String; 4]| (cells.to_vec(), Plain);
        grid(screen, &["frames", "load", "offered", "lost"], &losses.into_iter().map(of).collect::<Vec<_>>());
    }
    screen.blank_line();
    for (_, benchmark) in tests(run) {
        screen.wrapped((Plain, "  "), (Plain, &crate::sanitize::one_line(&reference(benchmark))));
    }
    screen.blank_line();
    for remark in remarks(run) {
        screen.wrapped((Faint, "  note  "), (Plain, &crate::sanitize::one_line(&remark)));
    }
}
