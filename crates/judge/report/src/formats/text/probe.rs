//! What single packets found out, on a screen.

use fathom_model::{Run, TestRun, probe::ProbeRecord};

use super::{
    detail::grid,
    screen::{
        TextScreen,
        Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
    },
};
use crate::{
    probe::{answers, last_probe_record, sentences, tables},
    view::{MISSING, RowMark},
};

/// How a mark looks.
const fn tone(mark: RowMark) -> Tone {
    match mark {
        RowMark::Plain => Plain,
        RowMark::Kept => Good,
        RowMark::Broken => Bad,
        RowMark::Open | RowMark::Missing => Warn,
    }
}

/// Writes what a person asked, above everything else.
pub(super) fn write_answers(screen: &mut TextScreen, run: &Run) {
    let answers = answers(run);
    let widest = answers.iter().map(|answer| answer.word.len()).max().unwrap_or(0);
    for answer in &answers {
        let word = format!("  {:<widest$}  ", answer.word);
        screen.wrapped((Faint, &word), (tone(answer.mark), &answer.text));
    }
    screen.blank_line();
}

/// Writes it with the name of its test above, for a run of several.
pub(super) fn write_named(screen: &mut TextScreen, test: &TestRun) {
    if let Some(probe) = last_probe_record(test) {
        screen.blank_line();
        screen.line(&[(Strong, &format!("  {}", test.title)), (Plain, &format!(" to {}", probe.target))]);
        probe_table(screen, probe);
    }
}

/// Writes it, if the test was one of probes.
pub(super) fn write(screen: &mut TextScreen, test: &TestRun) {
    if let Some(probe) = last_probe_record(test) {
        probe_table(screen, probe);
    }
}

fn probe_table(screen: &mut TextScreen, probe: &ProbeRecord) {
    screen.blank_line();
    for (sentence, mark) in sentences(probe) {
        screen.wrapped((Plain, "  "), (tone(mark), &sentence));
    }
    for table in tables(probe) {
        screen.blank_line();
        let lines: Vec<(Vec<String>, Tone)> =
            table.lines.into_iter().map(|(cells, mark)| (cells, tone(mark))).collect();
        grid(screen, table.header, &lines);
        if let Some(remark) = table.remark {
            screen.line(&[(Warn, &format!("  {MISSING}  {remark}"))]);
        }
    }
}
