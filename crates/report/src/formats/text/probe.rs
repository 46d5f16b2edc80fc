//! What single packets found out, on a screen.

use fathom_model::{Run, TestRun, probe::ProbeRecord};

use super::{
    detail::grid,
    screen::{
        Screen,
        Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
    },
};
use crate::{
    probe::{answers, found, sentences, tables},
    view::{MISSING, Mark},
};

/// How a mark looks.
const fn tone(mark: Mark) -> Tone {
    match mark {
        Mark::Plain => Plain,
        Mark::Kept => Good,
        Mark::Broken => Bad,
        Mark::Open | Mark::Missing => Warn,
    }
}

/// Writes what a person asked, above everything else.
pub(super) fn write_answers(screen: &mut Screen, run: &Run) {
    let answers = answers(run);
    let widest = answers.iter().map(|answer| answer.word.len()).max().unwrap_or(0);
    for answer in &answers {
        let word = format!("  {:<widest$}  ", answer.word);
        screen.wrapped((Faint, &word), (tone(answer.mark), &answer.text));
    }
    screen.gap();
}

/// Writes it with the name of its test above, for a run of several.
pub(super) fn write_named(screen: &mut Screen, test: &TestRun) {
    if let Some(probe) = found(test) {
        screen.gap();
        screen.line(&[(Strong, &format!("  {}", test.title)), (Plain, &format!(" to {}", probe.target))]);
        told(screen, probe);
    }
}

/// Writes it, if the test was one of probes.
pub(super) fn write(screen: &mut Screen, test: &TestRun) {
    if let Some(probe) = found(test) {
        told(screen, probe);
    }
}

fn told(screen: &mut Screen, probe: &ProbeRecord) {
    screen.gap();
    for (sentence, mark) in sentences(probe) {
        screen.wrapped((Plain, "  "), (tone(mark), &sentence));
    }
    for table in tables(probe) {
        screen.gap();
        let lines: Vec<(Vec<String>, Tone)> =
            table.lines.into_iter().map(|(cells, mark)| (cells, tone(mark))).collect();
        grid(screen, table.header, &lines);
        if let Some(remark) = table.remark {
            screen.line(&[(Warn, &format!("  {MISSING}  {remark}"))]);
        }
    }
}
