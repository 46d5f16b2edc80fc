//! What became of the requests of a recording, and how the answers differ from the recorded ones.

use fathom_model::{
    PairedTimes, ReplayRecord, ReplayUnit, TestRun, Unit,
    replay::{AnswerDifference, ComparedAnswers},
    units::{counted, grouped, percent},
};

use super::block::{Block, Cell, Column, Medium, Row, Table};
use crate::words::Mark;

/// The most differences that a terminal has room for.
const SCREEN_MAX: usize = 20;

/// Returns the account of the requests, and the table of differences.
pub(super) fn blocks(test: &TestRun) -> Vec<Block<'_>> {
    let Some(summary) = &test.replay else { return Vec::new() };
    let mut blocks = vec![
        Block::Heading("The recording".to_owned()).on_page(),
        Block::Table(account(&summary.all, test.trials.len())),
    ];
    if let Some(compared) = &summary.all.compared {
        blocks.extend(differences(compared));
        blocks.extend(summary.paired.as_ref().map(|paired| Block::labelled("time", paired_sentence(paired))));
    }
    blocks
}

/// Every request of the recording has one place.
fn account(all: &ReplayRecord, n_rounds: usize) -> Table {
    let rounds = if n_rounds > 1 { format!(" in {n_rounds} rounds") } else { String::new() };
    let (unit, connection) = (all.unit.word(), if all.unit == ReplayUnit::Datagram { "flow" } else { "connection" });
    let recorded =
        format!("{unit}s recorded{rounds}, on {} in {}", counted(all.n_sessions, connection), all.recorded_span_ns);
    let total = |words: String, n: u64| Row::new([Cell::from(words), Cell::from(grouped(n)).strong()]);
    let part =
        |words: &str, n: u64, mark: Mark| (n > 0).then(|| Row::new([format!("  {words}"), grouped(n)]).marked(mark));
    let mut rows = vec![total(recorded, all.n_recorded)];
    rows.extend(all.left_out.iter().filter_map(|(why, n)| part(&format!("left out: {why}"), *n, Mark::Open)));
    let copies = if all.n_copies > 1 { format!(", {} copies of each", grouped(all.n_copies)) } else { String::new() };
    rows.push(total(format!("{unit}s to send{copies}"), all.n_to_send()));
    rows.extend(part("answered", all.n_answered, Mark::Plain));
    rows.extend(part("sent; the recording has no answer to them", all.n_answerless, Mark::Plain));
    rows.extend(part("answered in part: less than recorded when the time was over", all.n_short, Mark::Broken));
    rows.extend(part("of these sent once more, on a new connection", all.n_sent_again, Mark::Open));
    rows.extend(part("failed", all.n_failed, Mark::Broken));
    rows.extend(part(&format!("not sent: their {connection} had failed"), all.n_behind_failure, Mark::Broken));
    rows.extend(part("cut off by the end of the run", all.n_cut_off, Mark::Open));
    rows.extend(part("not sent: every connection was busy", all.n_without_connection, Mark::Open));
    rows.extend(part("not sent before the end of the run", all.n_not_sent, Mark::Open));
    let n_sessions: u64 = all.left_out_sessions.values().sum();
    if n_sessions > 0 {
        rows.push(total("further connections recorded, of which nothing is sent".to_owned(), n_sessions));
        rows.extend(all.left_out_sessions.iter().filter_map(|(why, n)| part(why, *n, Mark::Open)));
    }
    Table { columns: vec![Column::text("recording"), Column::number(format!("{unit}s"))], rows, ..Table::default() }
}

fn differences(compared: &ComparedAnswers) -> Vec<Block<'static>> {
    let n = compared.n_same + compared.n_different;
    let mark = match (n, compared.n_different) {
        (0, _) => Mark::Open,
        (_, 0) => Mark::Kept,
        _ => Mark::Broken,
    };
    let sentence = match compared.n_different {
        _ if n == 0 => "no answer was compared".to_owned(),
        0 => format!("{} compared: all say the same as in the recording", counted(n, "answer")),
        different => {
            let differ = if different == 1 { "differs" } else { "differ" };
            format!("{} compared: {} {differ} from the recording", counted(n, "answer"), grouped(different))
        }
    };
    let mut blocks = vec![Block::marked(sentence, mark)];
    if compared.n_without_recorded > 0 {
        let n = counted(compared.n_without_recorded, "answer");
        blocks.push(Block::aside(format!(
            "{n} not compared: the recording has no whole answer, or it is longer than 8 MiB"
        )));
    }
    if compared.differences.is_empty() {
        return blocks;
    }
    let on_page = |title: &str| Column::text(title).only(Medium::Page);
    let columns = vec![
        Column::text("difference"),
        Column::text("requests"),
        Column::number("answers"),
        Column::text("recorded"),
        Column::text("now"),
        on_page("example"),
    ];
    let rows = compared.differences.iter().enumerate().map(|(index, difference)| {
        let row = row(difference);
        Row { only: (index >= SCREEN_MAX).then_some(Medium::Page), ..row }
    });
    blocks.push(Block::Table(Table { columns, rows: rows.collect(), ..Table::default() }));
    let n_hidden = compared.differences.len().saturating_sub(SCREEN_MAX);
    if n_hidden > 0 {
        blocks.push(
            Block::aside(format!("… and {n_hidden} more kinds of differences in the report and in the JSON document"))
                .on_screen(),
        );
    }
    if compared.n_further > 0 {
        blocks.push(Block::aside(format!("… and {} of further kinds", counted(compared.n_further, "difference"))));
    }
    blocks
}

fn row(difference: &AnswerDifference) -> Row {
    let AnswerDifference { what, requests, n, example } = difference;
    Row::new([
        what.clone(),
        requests.clone(),
        grouped(*n),
        example.recorded.clone(),
        example.replayed.clone(),
        example.request.clone(),
    ])
}

fn paired_sentence(paired: &PairedTimes) -> String {
    let show = |value: f64| Unit::Nanos.show(value.abs());
    let signed = |value: f64| format!("{}{}", if value < 0.0 { "−" } else { "+" }, show(value));
    let word = if paired.median_ns > 0.0 { "later" } else { "sooner" };
    let interval = match paired.interval_ns {
        Some((low, high)) => format!("95 % interval {} to {}", signed(low), signed(high)),
        None => "too few answers for an interval".to_owned(),
    };
    format!(
        "median difference: {} {word} than in the recording ({interval}); {} of the answers came later",
        show(paired.median_ns),
        percent(paired.slower_ratio)
    )
}
