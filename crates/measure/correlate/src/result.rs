//! The scenario of a correlation, and what is to be told about it.

use fathom_http::url::split_origin;
use fathom_import::{
    har::{RecordedStep, Recording},
    import_tree::{
        AnswerField, DataSet, Extraction, FirstRow, ImportNote, ImportText, ImportedExpect, ImportedRequest,
        ImportedRowPolicy, TextTest,
    },
    write,
};
use fathom_scenario::execution::is_secret;
use memchr::memmem;

use crate::{
    Error,
    alignment::Alignment,
    generated::is_token,
    plan::{Plan, PlannedTake, TypedColumn},
    suspect::Suspect,
};

/// A longer value is cut.
const SHOWN_MAX: usize = 24;
/// Of what may be a secret, only the beginning is shown.
const TOKEN_SHOWN: usize = 4;
/// A longer title is no title.
const TITLE_MAX: usize = 300;
const TITLE_END: &[u8] = b"</title>";
/// More steps that send a value are counted.
const STEPS_MAX: usize = 3;
/// More places are not shown.
const PLACES_MAX: usize = 3;

/// A scenario that gets what is dynamic from earlier answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Correlation {
    /// In the standard format.
    pub scenario: String,
    /// What the user typed; `None` if nothing that was typed differs.
    pub typed: Option<TypedData>,
    pub counts: RecordingCounts,
    /// The parts left out, what differs without a reason, what only one recording has, in the order of the scenario.
    pub notes: Vec<ImportNote>,
    /// Tokens that are the same in both recordings.
    pub suspects: Vec<ImportNote>,
}

/// Numbers of requests and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingCounts {
    /// Requests of the first recording; redirects that users follow belong to the request before.
    pub n_first: usize,
    pub n_second: usize,
    /// Requests that have a counterpart.
    pub n_aligned: usize,
    /// Values that are taken from answers.
    pub n_taken: usize,
    /// Uses of them.
    pub n_uses: usize,
    /// Values that a generator makes.
    pub n_generated: usize,
    pub n_unexplained: usize,
}

/// What the user typed: a row for each recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypedData {
    /// CSV with the names of the columns in its first line.
    pub csv: String,
    pub columns: Vec<String>,
    /// The columns with passwords.
    pub secret_columns: Vec<String>,
}

/// What was found out about two recordings.
pub(crate) struct Findings<'a> {
    pub(crate) first: Recording,
    pub(crate) second: &'a Recording,
    pub(crate) alignment: &'a Alignment,
    pub(crate) plan: Plan,
    pub(crate) suspects: Vec<Suspect>,
    /// Of both recordings.
    pub(crate) names: [&'a str; 2],
}

/// Writes the scenario. The data file is named as the scenario shall name it.
pub(crate) fn result(findings: Findings<'_>, data_file: &str) -> Result<Correlation, Error> {
    let Findings { mut first, second, alignment, plan, suspects, names } = findings;
    let counts = RecordingCounts {
        n_first: first.steps.len(),
        n_second: second.steps.len(),
        n_aligned: alignment.pairs.len(),
        n_taken: plan.takes.len(),
        n_uses: plan.n_uses,
        n_generated: plan.n_generated,
        n_unexplained: plan.n_unexplained,
    };
    let step_of = |pair: usize| alignment.pairs[pair].first;
    let suspects = suspects.into_iter().map(|suspect| ImportNote {
        location: place_of(&first.steps[step_of(suspect.pair)]),
        what: format!("{} is a token that an answer delivered, and is the same in both recordings", suspect.place),
    });
    let suspects = suspects.collect();
    let takes = plan.takes.into_iter().map(|take| {
        let note = evidence(&take, &|pair| short_place_of(&first.steps[step_of(pair)]));
        let PlannedTake { name, pair, extractor, .. } = take;
        let (from, which) = (extractor.from, extractor.which);
        (pair, Extraction { name, from, which, default: None, note: Some(note) })
    });
    let takes: Vec<_> = takes.collect();
    for (pair, planned) in plan.requests.into_iter().enumerate() {
        let step = &mut first.steps[step_of(pair)];
        let location = place_of(step);
        let notes = planned.remarks.into_iter().map(|what| ImportNote { location: location.clone(), what });
        step.exchanges[0].request = planned.request;
        step.exchanges[0].request.left_out.extend(notes);
    }
    for (pair, take) in takes {
        last_request(&mut first.steps[step_of(pair)]).takes.push(take);
    }
    expect_titles(&mut first, second, alignment);
    let alone = tell_alone(&mut first, second, alignment, names);
    let mut tree = first.into_tree();
    tree.notes.extend(alone);
    let typed = typed(&plan.columns);
    tree.data.extend(typed.iter().map(|typed| data_set(typed, data_file)));
    let title = format!("Correlated from {} and {}, two recordings of the same clicks.", names[0], names[1]);
    let written = write::write(&tree, &title).map_err(Error::Unwritten)?;
    Ok(Correlation { scenario: written.text, typed, counts, notes: written.notes, suspects })
}

/// The request whose answer users see.
fn last_request(step: &mut RecordedStep) -> &mut ImportedRequest {
    &mut step.exchanges.last_mut().expect("a step has one exchange at least").request
}

/// A page is expected by its title: many servers answer with a status of success when something went wrong.
fn expect_titles(first: &mut Recording, second: &Recording, alignment: &Alignment) {
    for pair in &alignment.pairs {
        if let Some(title) = common_title(&first.steps[pair.first], &second.steps[pair.second]) {
            let text = ImportText::literal(title);
            let expect = ImportedExpect::Piece { of: AnswerField::Body, test: TextTest::Contains, text };
            last_request(&mut first.steps[pair.first]).expects.push(expect);
        }
    }
}

/// The title of the page, with its tags, if it is the same in both recordings.
fn common_title(one: &RecordedStep, two: &RecordedStep) -> Option<String> {
    let title = |step: &RecordedStep| {
        let answer = step.exchanges.last()?.answer.as_ref()?;
        let start = memmem::find(&answer.body, b"<title>")?;
        let text = answer.body[start..].get(..TITLE_MAX).unwrap_or(&answer.body[start..]);
        let end = memmem::find(text, TITLE_END)? + TITLE_END.len();
        String::from_utf8(text[..end].to_vec()).ok()
    };
    let (one, two) = (title(one)?, title(two)?);
    (one == two && !one.contains(char::is_control)).then_some(one)
}

/// Notes the requests that only one recording has; returns the notes of those that the scenario does not have.
fn tell_alone(
    first: &mut Recording,
    second: &Recording,
    alignment: &Alignment,
    [name_first, name_second]: [&str; 2],
) -> Vec<ImportNote> {
    for idx in &alignment.only_first {
        let step = &mut first.steps[*idx];
        let what = format!("it has no counterpart in {name_second}: its values are those of {name_first}");
        let note = ImportNote { location: place_of(step), what };
        step.exchanges[0].request.left_out.push(note);
    }
    let only_second = alignment.only_second.iter().map(|idx| ImportNote {
        location: format!("{name_second}, {}", place_of(&second.steps[*idx])),
        what: format!("it has no counterpart in {name_first}, and is left out"),
    });
    only_second.collect()
}

fn place_of(step: &RecordedStep) -> String {
    step.exchanges[0].place.clone()
}

/// Method and path.
fn short_place_of(step: &RecordedStep) -> String {
    let request = &step.exchanges[0].request;
    let url = request.url.as_literal().unwrap_or_default();
    let path = split_origin(url).map_or(url, |(_, target)| target).split('?').next().unwrap_or_default();
    format!("{} {path}", request.method)
}

fn data_set(typed: &TypedData, file: &str) -> DataSet {
    DataSet {
        name: file.to_owned(),
        file: file.to_owned(),
        columns: Some(typed.columns.clone()),
        first_row: FirstRow::Names,
        delimiter: ',',
        policy: ImportedRowPolicy::Sequential,
    }
}

fn typed(columns: &[TypedColumn]) -> Option<TypedData> {
    if columns.is_empty() {
        return None;
    }
    let mut csv = csv::Writer::from_writer(Vec::new());
    let rows: [fn(&TypedColumn) -> &str; 3] = [|column| &column.name, |column| &column.one, |column| &column.two];
    for row in rows {
        // Writing to memory cannot fail.
        drop(csv.write_record(columns.iter().map(row)));
    }
    let csv = String::from_utf8(csv.into_inner().unwrap_or_default()).unwrap_or_default();
    let names = |of: fn(&TypedColumn) -> bool| columns.iter().filter(|c| of(c)).map(|c| c.name.clone()).collect();
    Some(TypedData { csv, columns: names(|_| true), secret_columns: names(|column| column.is_secret) })
}

/// Why a value is taken: what it was, and where it is sent.
fn evidence(take: &PlannedTake, steps: &dyn Fn(usize) -> String) -> String {
    let hides = is_secret(&take.name) || take.uses.iter().any(|(_, place)| is_secret(&place.name));
    let shown = |value: &str| {
        let n = value.chars().count();
        let cut = if is_token(value) { TOKEN_SHOWN } else { SHOWN_MAX };
        match value.char_indices().nth(cut) {
            _ if hides => format!("*** ({n} characters)"),
            Some((end, _)) => format!("\"{}…\" ({n} characters)", &value[..end]),
            None => format!("\"{value}\""),
        }
    };
    // The steps of each place, as `the field csrf of POST /a, POST /b`.
    let mut places: Vec<(String, Vec<String>)> = Vec::new();
    for (pair, used) in &take.uses {
        let (place, step) = (used.to_string(), steps(*pair));
        match places.iter_mut().find(|(known, _)| *known == place) {
            Some((_, steps)) if steps.contains(&step) => {}
            Some((_, steps)) => steps.push(step),
            None => places.push((place, vec![step])),
        }
    }
    let shown_steps = |steps: &[String]| {
        let shown = steps[..steps.len().min(STEPS_MAX)].join(", ");
        if steps.len() > STEPS_MAX { format!("{shown} and {} more", steps.len() - STEPS_MAX) } else { shown }
    };
    let places: Vec<_> =
        places.iter().map(|(place, steps)| format!("{place} of {}", shown_steps(steps))).take(PLACES_MAX).collect();
    format!("{} and {}: {}", shown(&take.one), shown(&take.two), places.join(", "))
}
