//! A run on one screen of a terminal: the finding first, then the table, then the verdict.

mod flowing;
mod grid;
mod screen;

use std::io;

use fathom_model::{
    Example, Run,
    units::{counted, grouped},
};
pub use screen::{Colour, TextStyle};
use screen::{
    TextScreen,
    Tone::{self, Bad, Faint, Good, Plain, Strong, Warn},
    fitted, wrap,
};

use crate::{
    Format,
    document::{self, Block, Cell, Fact, Failure, FindingBlock, Head, List, Medium, Sentence, State, Table, Weight},
    recording::HostHistory,
    sanitize::one_line,
    words::{MISSING, Mark},
};

/// The maximum number of causes of failed steps on a screen. The HTML report has all of them.
const FAILURES_MAX: usize = 8;
/// What else is on the line of a failed step: its number, and at least twenty characters of the cause.
const FAILED_BESIDE: usize = 44;
/// The indent of a command that goes on in a further line.
const FURTHER: &str = "    ";
/// The maximum length of a step's name before its failures.
const FAILED_MAX: usize = 24;

/// Writes text for people in the given style.
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
        write_text(&document::blocks(run), self.0, out)
    }
}

/// Writes a recording as text.
///
/// # Errors
/// If `out` cannot be written.
pub fn write_history_text(history: &HostHistory, style: TextStyle, out: &mut dyn io::Write) -> io::Result<()> {
    write_text(&document::history(history), style, out)
}

fn write_text(all: &[Block<'_>], style: TextStyle, out: &mut dyn io::Write) -> io::Result<()> {
    let mut screen = TextScreen::new(style);
    blocks(&mut screen, all);
    out.write_all(screen.into_text().as_bytes())
}

/// Writes blocks separated by empty lines, except between consecutive sentences.
fn blocks(screen: &mut TextScreen, all: &[Block<'_>]) {
    let mut after_sentence = false;
    for shown in all {
        let shown = match shown {
            Block::Only(Medium::Page, _) => continue,
            Block::Only(Medium::Screen, inner) => inner,
            shown => shown,
        };
        let is_sentence = matches!(shown, Block::Sentence(_));
        let is_aside = matches!(shown, Block::Sentence(Sentence { is_aside: true, .. }));
        if !(is_aside || is_sentence && after_sentence) {
            screen.blank_line();
        }
        block(screen, shown);
        after_sentence = is_sentence;
    }
}

fn block(screen: &mut TextScreen, shown: &Block<'_>) {
    match shown {
        Block::Head(shown) => head(screen, shown),
        Block::State(shown) => state(screen, shown),
        Block::Ending(shown) => ending(screen, shown),
        Block::Facts(shown) => facts(screen, shown),
        Block::Finding(shown) => finding(screen, shown),
        Block::Section(shown) => blocks(screen, &shown.blocks),
        Block::Heading(text) => screen.line(&[(Strong, &format!("  {text}"))]),
        Block::Sentence(shown) => sentence(screen, shown, 0),
        Block::List(shown) => list(screen, shown),
        Block::Table(shown) => table(screen, shown),
        Block::Figure(shown) => shown.table.iter().filter(|_| shown.on_screen).for_each(|shown| table(screen, shown)),
        Block::Columns(columns) => columns.iter().for_each(|column| blocks(screen, column)),
        Block::Fold(shown) => blocks(screen, &shown.blocks),
        Block::Failures(shown) => failures(screen, shown),
        Block::Ladder(_) | Block::Headline(_) | Block::Code(_) | Block::Only(..) => {}
    }
}

/// Returns the tone of a mark.
const fn tone(mark: Mark) -> Tone {
    match mark {
        Mark::Plain => Plain,
        Mark::Kept => Good,
        Mark::Broken => Bad,
        Mark::Open | Mark::Missing => Warn,
    }
}

/// Returns the tone of a cell. Its mark takes precedence over its weight.
const fn cell_tone(cell: &Cell) -> Tone {
    match (cell.mark, cell.weight) {
        (Mark::Plain, Weight::Strong) => Strong,
        (Mark::Plain, Weight::Faint) => Faint,
        (mark, _) => tone(mark),
    }
}

fn table(screen: &mut TextScreen, shown: &Table) {
    if shown.flows {
        flowing::write(screen, shown);
    } else if !shown.rows.is_empty() {
        grid::write(screen, shown);
    }
}

fn head(screen: &mut TextScreen, head: &Head) {
    let words = |fact: &Fact| {
        if fact.name == fact.text { fact.text.clone() } else { format!("{}: {}", fact.name, fact.text) }
    };
    let hosts = head.hosts.iter().map(words).collect::<Vec<_>>().join("   ");
    let (command, hosts) = ((Strong, head.command.as_str()), (Faint, hosts.as_str()));
    if !screen.fits_on_line(&[command, (Plain, "    "), hosts]) {
        let room = screen.width().saturating_sub(FURTHER.len());
        for (index, line) in wrap(&one_line(&head.command), room).iter().enumerate() {
            screen.line(&[(Plain, if index == 0 { "" } else { FURTHER }), (Strong, line)]);
        }
        if !screen.fits_on_line(&[(Plain, "  "), hosts]) {
            screen.wrapped((Plain, "  "), hosts);
        }
    }
}

/// Writes the state of a run above the findings, if no finding covers it.
fn state(screen: &mut TextScreen, state: &State) {
    if state.is_first {
        let label = format!("  {}  ", state.word);
        screen.wrapped((state_tone(state), &label), (Strong, &state.unsaid.join("; ")));
    }
}

const fn state_tone(state: &State) -> Tone {
    match state.mark {
        Mark::Plain => Strong,
        mark => tone(mark),
    }
}

fn ending(screen: &mut TextScreen, state: &State) {
    let reasons = state.reasons.join("; ");
    let (word, about) = ((state_tone(state), state.word.as_str()), (Faint, state.about.as_str()));
    let verdict = (Plain, "verdict  ");
    if !screen.fits_on_line(&[verdict, word, (Plain, "   "), (Plain, &reasons), (Plain, "      "), about]) {
        screen.line(&[verdict, word, (Plain, "      "), about]);
        screen.wrapped((Plain, "         "), (Plain, &reasons));
    }
}

fn facts(screen: &mut TextScreen, facts: &[Fact]) {
    let widest = facts.iter().map(|fact| fact.name.len()).max().unwrap_or(0);
    for fact in facts {
        screen.wrapped((Faint, &format!("  {:<widest$}  ", fact.name)), (tone(fact.mark), &fact.text));
    }
}

fn finding(screen: &mut TextScreen, shown: &FindingBlock<'_>) {
    let label = shown.label.as_ref().map(|label| format!("  {label}")).unwrap_or_default();
    screen.wrapped((Bad, &format!("{label}  ")), (Strong, &shown.title));
    if let Some(proof) = &shown.proof {
        screen.wrapped((tone(proof.mark), &format!("  {}:  ", proof.label)), (Plain, &proof.text));
    }
    let Some(next) = &shown.finding.next else { return };
    let on = next.on.as_ref().map(|host| format!("on {host}"));
    let expected = next.expected.as_ref().map(|expected| format!("expected to {}", expected.trim_start_matches("to ")));
    let aside: Vec<String> = on.into_iter().chain(expected).collect();
    // The line can be pasted into a shell unchanged.
    let aside = if aside.is_empty() { String::new() } else { format!("# {}", aside.join(": ")) };
    let command = [(Plain, "  next:  "), (Good, next.command.as_str())];
    if !screen.fits_on_line(&[&command[..], &[(Plain, "        "), (Faint, &aside)]].concat()) {
        screen.line(&command);
        if !aside.is_empty() {
            screen.wrapped((Plain, "         "), (Faint, &aside));
        }
    }
}

/// Writes a sentence after a label column of the given width. The mark colors the label, or the text if there is no label.
fn sentence(screen: &mut TextScreen, shown: &Sentence, widest: usize) {
    let Sentence { label, of, text, mark, is_aside, .. } = shown;
    let label = if *mark == Mark::Missing { MISSING } else { label };
    let before = if label.is_empty() { "  ".to_owned() } else { format!("  {label:<widest$}  ") };
    let of = if of.is_empty() { String::new() } else { format!("{of:>9}  ") };
    let tones = match mark {
        Mark::Plain => (Faint, if *is_aside { Faint } else { Plain }),
        Mark::Kept | Mark::Broken | Mark::Open if !label.is_empty() => (tone(*mark), Plain),
        _ => (Faint, tone(*mark)),
    };
    screen.wrapped((tones.0, &format!("{before}{of}")), (tones.1, text));
}

fn list(screen: &mut TextScreen, shown: &List) {
    let widest = shown.items.iter().map(|item| item.label.len()).max().unwrap_or(0);
    let n_shown = shown.screen_max.unwrap_or(shown.items.len());
    shown.items.iter().take(n_shown).for_each(|item| sentence(screen, item, widest));
    more(screen, shown.items.len().saturating_sub(n_shown), "note");
}

fn more(screen: &mut TextScreen, n: usize, what: &str) {
    if n > 0 {
        let more = counted(n as u64, &format!("more {what}"));
        screen.line(&[(Faint, &format!("  … and {more} in the HTML report"))]);
    }
}

fn failures(screen: &mut TextScreen, failures: &[Failure<'_>]) {
    let letters = |failure: &Failure<'_>| one_line(failure.step).chars().count();
    let room = screen.width().saturating_sub(FAILED_BESIDE);
    let widest = failures.iter().map(letters).max().unwrap_or(0).min(FAILED_MAX).min(room);
    for failure in failures.iter().take(FAILURES_MAX) {
        let label = format!("  failed  {:>8}  {}  ", grouped(failure.n), fitted(&one_line(failure.step), widest));
        screen.wrapped((Bad, &label), (Strong, failure.cause));
        if let Some(example) = failure.example {
            let indent = " ".repeat(label.chars().count());
            let room = screen.width().saturating_sub(indent.len());
            // One line is enough to find the example in a log. The other formats show it in full.
            let short = wrap(&fitted(&one_line(&shortened(example)), room), room).join(" ");
            screen.line(&[(Plain, &indent), (Faint, &fitted(&short, room))]);
        }
    }
    more(screen, failures.len().saturating_sub(FAILURES_MAX), "cause");
}

/// Returns an example on one line: the request, and the first line of the answer.
fn shortened(example: &Example) -> String {
    let first = |text: &str| text.lines().next().unwrap_or_default().trim().to_owned();
    let answer = first(&example.answer);
    let answer = if answer.is_empty() { "no answer" } else { &answer };
    format!("{}  →  {answer}", first(&example.request).trim_end_matches(" HTTP/1.1"))
}

#[cfg(test)]
mod tests {
    use fathom_model::units::Nanos;

    use super::*;

    #[test]
    fn an_example_is_shortened_to_what_was_asked_and_what_came() {
        let example = |answer: &str| Example {
            cause: String::new(),
            at_ns: Nanos::ZERO,
            request: "POST /login HTTP/1.1\r\nHost: shop\r\n\r\nname=a".to_owned(),
            answer: answer.to_owned(),
        };
        assert_eq!(shortened(&example("HTTP/1.1 500 Oops\r\n\r\nstack")), "POST /login  →  HTTP/1.1 500 Oops");
        assert_eq!(shortened(&example("")), "POST /login  →  no answer");
    }
}
