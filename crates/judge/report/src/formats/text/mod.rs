//! A run on one screen of a terminal: the finding first, then the table, then the verdict.
//!
//! A run of several tests is a table with a line per test; a run of one test is told in detail.

mod benchmark;
mod detail;
mod probe;
mod screen;
mod steps;
mod table;

use std::io;

use fathom_model::{Conservation, Finding, Run, Severity, VerdictState, summary::Drops, units::grouped};
pub use screen::{Colour, TextStyle};
use screen::{
    TextScreen,
    Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
};

use crate::{
    Format,
    view::{self, RowMark},
};

/// The notes that fit below it.
const NOTES_MAX: usize = 6;

/// Text for people, in the style given.
#[derive(Debug, Clone, Copy)]
pub struct TextFormat(pub TextStyle);

impl Format for TextFormat {
    fn name(&self) -> &'static str {
        "text"
    }

    fn extension(&self) -> &'static str {
        "txt"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let mut screen = TextScreen::new(self.0);
        headline(&mut screen, run);
        findings(&mut screen, run);
        match run.tests.as_slice() {
            [] => screen.line(&[(Plain, "  no test was run")]),
            _ if benchmark::is_all(run) => benchmark::write(&mut screen, run),
            [test] => detail::write(&mut screen, run, test),
            _ => {
                table::write(&mut screen, run);
                run.tests.iter().for_each(|test| probe::write_named(&mut screen, test));
                screen.blank_line();
                for conservation in run.tests.iter().filter_map(|test| test.conservation.as_ref()) {
                    drop_balance(&mut screen, conservation);
                }
                notes(&mut screen, run);
            }
        }
        remarks(&mut screen, run);
        verdict(&mut screen, run);
        out.write_all(screen.into_text().as_bytes())
    }
}

fn headline(screen: &mut TextScreen, run: &Run) {
    let hosts: Vec<String> = view::roles_of_hosts(run)
        .iter()
        .map(|(part, name)| {
            let words = view::host_words(run, name);
            if part == name { words } else { format!("{part}: {words}") }
        })
        .collect();
    let probed = view::probed(run).map(|target| format!("target: {target}"));
    let hosts = hosts.into_iter().chain(probed).chain(view::shared_cores(run)).collect::<Vec<_>>().join("   ");
    let command = view::command(run);
    if command.chars().count() + hosts.chars().count() + 4 <= screen.width() {
        screen.line(&[(Strong, &command), (Plain, "    "), (Faint, &hosts)]);
    } else {
        screen.line(&[(Strong, &command)]);
        let fits = hosts.chars().count() + 2 <= screen.width();
        if fits {
            screen.line(&[(Plain, "  "), (Faint, &hosts)]);
        } else {
            screen.wrapped((Plain, "  "), (Faint, &hosts));
        }
    }
    screen.blank_line();
    state(screen, run);
    probe::write_answers(screen, run);
}

/// The state of a run, before everything else, where no finding below says it.
fn state(screen: &mut TextScreen, run: &Run) {
    let said: Vec<String> = view::important(run).iter().map(|finding| run.told(finding)).collect();
    let reasons: Vec<&str> =
        run.verdict.reasons.iter().filter(|reason| !said.contains(reason)).map(String::as_str).collect();
    if !reasons.is_empty() {
        let label = format!("  {}  ", run.verdict.state.word());
        screen.wrapped((tone(run.verdict.state), &label), (Strong, &reasons.join("; ")));
        screen.blank_line();
    }
}

const fn tone(state: VerdictState) -> Tone {
    match view::state_mark(state) {
        RowMark::Kept => Good,
        RowMark::Broken => Bad,
        RowMark::Open | RowMark::Missing => Warn,
        RowMark::Plain => Strong,
    }
}

fn findings(screen: &mut TextScreen, run: &Run) {
    for finding in view::important(run) {
        let title = run.told(finding);
        let label = match finding.severity {
            _ if run.verdict.reasons.contains(&title) => format!("  {}  ", run.verdict.state.word()),
            Severity::Invalidates => "  do not trust  ".to_owned(),
            _ => "  ".to_owned(),
        };
        screen.wrapped((Bad, &label), (Strong, &title));
        next_step(screen, finding);
        screen.blank_line();
    }
    screen.blank_line();
}

fn next_step(screen: &mut TextScreen, finding: &Finding) {
    let Some(next) = &finding.next else { return };
    let on = next.on.as_ref().map(|host| format!("on {host}"));
    let expected = next.expected.as_ref().map(|expected| format!("expected to {}", expected.trim_start_matches("to ")));
    let aside: Vec<String> = on.into_iter().chain(expected).collect();
    // The line can be pasted into a shell as it stands.
    let aside = if aside.is_empty() { String::new() } else { format!("# {}", aside.join(": ")) };
    if next.command.chars().count() + aside.chars().count() + 17 <= screen.width() {
        screen.line(&[(Plain, "  next:  "), (Good, &next.command), (Plain, "        "), (Faint, &aside)]);
        return;
    }
    screen.line(&[(Plain, "  next:  "), (Good, &next.command)]);
    if !aside.is_empty() {
        screen.wrapped((Plain, "         "), (Faint, &aside));
    }
}

/// `sent 100 datagrams = received 97 + receiver's socket buffer 3 + unexplained 0`.
fn drop_balance(screen: &mut TextScreen, conservation: &Conservation) {
    let Conservation { what, n_sent, n_received, n_unexplained, .. } = conservation;
    // The receiver is where most is dropped, and the sentence is about it.
    let place = |drop: &Drops| drop.place.trim_start_matches("receiver's ").to_owned();
    let drop = |drop: &Drops| format!("+ {} {}", place(drop), grouped(drop.n_dropped));
    let sign = if *n_unexplained < 0 { '−' } else { '+' };
    let mut terms = vec![format!("sent {} {what} = received {}", grouped(*n_sent), grouped(*n_received))];
    terms.extend(conservation.drops.iter().filter(|drop| drop.n_dropped > 0).map(drop));
    terms.push(format!("{sign} unexplained {}", grouped(n_unexplained.unsigned_abs())));
    screen.wrapped((Plain, "  "), (Plain, &terms.join(" ")));
}

fn notes(screen: &mut TextScreen, run: &Run) {
    let mut all = view::notes_of_tests(run, view::in_table);
    all.extend(view::unavailable(run));
    screen.blank_line();
    for note in all.iter().take(NOTES_MAX) {
        screen.wrapped((Faint, "  note  "), (Plain, note));
    }
    if all.len() > NOTES_MAX {
        screen.line(&[(Faint, &format!("  … and {} more notes in the HTML report", all.len() - NOTES_MAX))]);
    }
}

fn remarks(screen: &mut TextScreen, run: &Run) {
    screen.blank_line();
    for finding in view::remarks(run) {
        let label = if finding.severity == Severity::Remark { "  remark  " } else { "  also    " };
        let of = match finding.tests.len() {
            n if n == 0 || n == run.tests.len() || finding.id == "promise-broken" => String::new(),
            1 => String::new(),
            _ => format!(" ({})", view::names(run, finding).join("; ")),
        };
        screen.wrapped((Faint, label), (Plain, &format!("{}{of}", run.told(finding))));
    }
}

fn verdict(screen: &mut TextScreen, run: &Run) {
    screen.blank_line();
    let (word, tone) = (run.verdict.state.word(), tone(run.verdict.state));
    let about = format!("run {}   {}", run.id, run.took_ns);
    let reasons = view::reasons(run);
    let fits = 9 + word.len() + reasons.chars().count() + about.chars().count() + 9 <= screen.width();
    if fits {
        let gap = if reasons.is_empty() { "" } else { "   " };
        let pieces = [(Plain, gap), (Plain, reasons.as_str()), (Plain, "      "), (Faint, about.as_str())];
        screen.line(&[&[(Plain, "verdict  "), (tone, word)], &pieces[..]].concat());
    } else {
        screen.line(&[(Plain, "verdict  "), (tone, word), (Plain, "      "), (Faint, &about)]);
        screen.wrapped((Plain, "         "), (Plain, &reasons));
    }
}
