//! The content of a report as blocks. It is built once from a run, so that the text and the page use the same words.
//!
//! Nothing here knows how a block looks. Texts are unchanged from the hosts; a renderer makes them safe.

mod benchmark;
mod curve;
mod flow;
mod hosts;
mod notes;
mod overview;
mod probe;
mod steps;
mod test;

use fathom_model::{Example, Finding, Run};

use crate::{
    plot::Plot,
    words::{Mark, ValueWords},
};

/// The only medium that shows a block or a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A terminal, which has little space.
    Screen,
    /// A page, which has space for drawings and for all details.
    Page,
}

pub(crate) enum Block<'a> {
    /// The plan, the place and the time of the run.
    Head(Head),
    /// The state of the run, at the top.
    State(State),
    /// The same state again, as the last line.
    Ending(State),
    /// Short answers with names.
    Facts(Vec<Fact>),
    /// A finding, its evidence, and the next step.
    Finding(FindingBlock<'a>),
    /// Each test as a bar against its limit.
    Ladder(Vec<Rung>),
    /// The most important value of a test.
    Headline(Headline),
    /// Blocks under a heading that links can refer to.
    Section(Section<'a>),
    /// A heading within a section.
    Heading(String),
    Sentence(Sentence),
    /// Sentences, each with a label.
    List(List),
    Table(Table),
    /// A drawing and its numbers.
    Figure(Figure<'a>),
    /// Blocks next to each other, if there is enough width.
    Columns(Vec<Vec<Block<'a>>>),
    /// Blocks that collapse under a summary.
    Fold(Fold<'a>),
    /// Causes of failures, each with an example.
    Failures(Vec<Failure<'a>>),
    /// Text to copy.
    Code(String),
    /// A block for one medium only.
    Only(Medium, Box<Block<'a>>),
}

impl Block<'_> {
    /// Returns the block for terminals only.
    pub(crate) fn on_screen(self) -> Self {
        Self::Only(Medium::Screen, Box::new(self))
    }

    /// Returns the block for pages only.
    pub(crate) fn on_page(self) -> Self {
        Self::Only(Medium::Page, Box::new(self))
    }

    /// Creates a sentence with a mark.
    pub(crate) fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self::Sentence(Sentence { text: text.into(), mark, ..Sentence::default() })
    }

    /// Creates a sentence with a label.
    pub(crate) fn labelled(label: &'static str, text: impl Into<String>) -> Self {
        Self::Sentence(Sentence { label, text: text.into(), ..Sentence::default() })
    }

    /// Creates a plain sentence.
    pub(crate) fn sentence(text: impl Into<String>) -> Self {
        Self::marked(text, Mark::Plain)
    }

    /// Creates a faint sentence about the block above it.
    pub(crate) fn aside(text: impl Into<String>) -> Self {
        Self::Sentence(Sentence { text: text.into(), is_aside: true, ..Sentence::default() })
    }

    /// Creates a sentence about the block above it that must not be overlooked.
    pub(crate) fn caution(text: impl Into<String>, mark: Mark) -> Self {
        Self::Sentence(Sentence { text: text.into(), is_aside: true, mark, ..Sentence::default() })
    }
}

/// Creates a section that is not about a test.
fn section<'a>(id: &str, title: &str, blocks: Vec<Block<'a>>) -> Block<'a> {
    Block::Section(Section { id: id.to_owned(), layer: None, title: title.to_owned(), blocks })
}

/// Creates a fold that is collapsed at first.
fn folded(summary: impl Into<String>, blocks: Vec<Block<'_>>) -> Block<'_> {
    Block::Fold(Fold { summary: summary.into(), is_open: false, blocks })
}

/// A name and its text.
#[derive(Debug, Clone)]
pub(crate) struct Fact {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) mark: Mark,
}

impl Fact {
    pub(crate) fn new(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, text: text.into(), mark: Mark::Plain }
    }
}

pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) command: String,
    pub(crate) hosts: Vec<Fact>,
    /// Time, duration and number of rounds.
    pub(crate) facts: Vec<Fact>,
}

#[derive(Clone)]
pub(crate) struct State {
    /// The state, such as `MEASURED, 1 of 6 rows INVALID`.
    pub(crate) word: String,
    pub(crate) mark: Mark,
    /// The reasons, one sentence each.
    pub(crate) reasons: Vec<String>,
    /// The reasons that no finding covers.
    pub(crate) unsaid: Vec<String>,
    /// True if a terminal must show the state above the findings.
    pub(crate) is_first: bool,
    /// The name and the duration of the run.
    pub(crate) about: String,
}

/// A finding with its evidence and the next step.
pub(crate) struct FindingBlock<'a> {
    pub(crate) finding: &'a Finding,
    /// The label of a finding that makes a value unusable.
    pub(crate) label: Option<String>,
    pub(crate) title: String,
    pub(crate) evidence: Table,
    /// The part of the loss that it explains, printed before the tests.
    pub(crate) explains: String,
    /// The tests that the finding concerns.
    pub(crate) tests: Vec<Cell>,
}

/// A bar of the ladder.
pub(crate) struct Rung {
    /// The layer, if it differs from the one above.
    pub(crate) layer: Option<&'static str>,
    pub(crate) test: Cell,
    pub(crate) value: Cell,
    /// The used share of the limit.
    pub(crate) share: Option<f64>,
    pub(crate) limit: String,
    pub(crate) cost: String,
    /// The bottleneck of the test.
    pub(crate) marker: Option<String>,
}

/// The most important value of a test.
pub(crate) struct Headline {
    pub(crate) value: ValueWords,
    pub(crate) quantiles: Vec<(String, String)>,
    /// The hosts and the kind of the test.
    pub(crate) way: String,
    pub(crate) missing: Option<String>,
    pub(crate) marker: Option<Cell>,
}

pub(crate) struct Section<'a> {
    pub(crate) id: String,
    /// The layer of the test. `None` if the title already names it.
    pub(crate) layer: Option<&'static str>,
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block<'a>>,
}

#[derive(Default)]
pub(crate) struct Sentence {
    /// The label on a terminal: `note`, `error`, `remark`.
    pub(crate) label: &'static str,
    /// The count, or the host.
    pub(crate) of: String,
    pub(crate) text: String,
    /// The mark for a missing value prints a dash as the label.
    pub(crate) mark: Mark,
    /// True if the sentence belongs to the block above it.
    pub(crate) is_aside: bool,
    /// The target of links to the sentence.
    pub(crate) id: Option<String>,
}

/// Sentences that belong together.
#[derive(Default)]
pub(crate) struct List {
    /// The heading on a page.
    pub(crate) title: &'static str,
    pub(crate) items: Vec<Sentence>,
    /// The maximum number of items on a terminal.
    pub(crate) screen_max: Option<usize>,
}

#[derive(Default)]
pub(crate) struct Table {
    /// The CSS class on a page.
    pub(crate) class: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// True if texts may continue into empty cells next to them.
    pub(crate) flows: bool,
}

/// A column of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// True if the column is aligned like numbers.
    pub(crate) is_number: bool,
    pub(crate) only: Option<Medium>,
    /// If the columns do not fit on a terminal, the one with the highest number is removed first. 0 is never removed.
    pub(crate) gives_way: u8,
}

impl Column {
    /// Creates a column of text.
    pub(crate) fn text(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Creates a column of numbers.
    pub(crate) fn number(title: impl Into<String>) -> Self {
        Self { title: title.into(), is_number: true, ..Self::default() }
    }

    pub(crate) fn only(self, medium: Medium) -> Self {
        Self { only: Some(medium), ..self }
    }
}

/// Creates columns. The first title is a column of text, the others are columns of numbers.
pub(crate) fn columns<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Vec<Column> {
    let of = |(index, title)| if index == 0 { Column::text(title) } else { Column::number(title) };
    titles.into_iter().enumerate().map(of).collect()
}

#[derive(Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Cell>,
    /// The CSS class on a page.
    pub(crate) class: &'static str,
    pub(crate) only: Option<Medium>,
}

impl Row {
    /// Creates a row from texts.
    pub(crate) fn new<T: Into<Cell>>(cells: impl IntoIterator<Item = T>) -> Self {
        Self { cells: cells.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Returns the row with all its cells marked.
    pub(crate) fn marked(mut self, mark: Mark) -> Self {
        self.cells.iter_mut().for_each(|cell| cell.mark = mark);
        self
    }
}

/// The emphasis of a text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Weight {
    #[default]
    Plain,
    Strong,
    Faint,
}

/// A cell of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) mark: Mark,
    pub(crate) weight: Weight,
    /// The text below the cell on a page.
    pub(crate) below: String,
    /// The tooltip on a page.
    pub(crate) hint: String,
    /// The link target on a page.
    pub(crate) link: Option<String>,
    /// The CSS class of the color that a drawing uses for it.
    pub(crate) key: Option<String>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

impl Cell {
    pub(crate) fn marked(self, mark: Mark) -> Self {
        Self { mark, ..self }
    }

    pub(crate) fn strong(self) -> Self {
        Self { weight: Weight::Strong, ..self }
    }

    pub(crate) fn faint(self) -> Self {
        Self { weight: Weight::Faint, ..self }
    }

    pub(crate) fn linked(self, id: impl Into<String>) -> Self {
        Self { link: Some(id.into()), ..self }
    }
}

/// A drawing and its numbers.
pub(crate) struct Figure<'a> {
    pub(crate) is_wide: bool,
    pub(crate) title: String,
    /// How to read the drawing.
    pub(crate) about: String,
    pub(crate) drawing: Box<dyn Fn() -> Plot + 'a>,
    /// The same data as numbers.
    pub(crate) table: Option<Table>,
    /// True if a terminal shows the table.
    pub(crate) on_screen: bool,
}

impl<'a> Figure<'a> {
    /// Creates a drawing without a table.
    pub(crate) fn new(title: impl Into<String>, about: impl Into<String>, drawing: impl Fn() -> Plot + 'a) -> Self {
        let (title, about) = (title.into(), about.into());
        Self { is_wide: false, title, about, drawing: Box::new(drawing), table: None, on_screen: false }
    }
}

/// Blocks under a summary.
pub(crate) struct Fold<'a> {
    pub(crate) summary: String,
    pub(crate) is_open: bool,
    pub(crate) blocks: Vec<Block<'a>>,
}

/// A cause of failures at one step.
pub(crate) struct Failure<'a> {
    pub(crate) step: &'a str,
    pub(crate) cause: &'a str,
    pub(crate) n: u64,
    /// A request and its answer.
    pub(crate) example: Option<&'a Example>,
}

/// Returns a name that is valid after a `#`.
fn anchor(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("test-{}", name.chars().map(plain).collect::<String>())
}

/// Returns the content of the report about a run, in order.
pub(crate) fn blocks(run: &Run) -> Vec<Block<'_>> {
    let is_benchmark = benchmark::is_all(run);
    let is_single = run.tests.len() == 1 && !is_benchmark;
    let mut blocks = overview::top(run);
    blocks.extend(benchmark::overview(run));
    if run.tests.is_empty() {
        blocks.push(Block::sentence("no test was run"));
    }
    if run.tests.len() > 1 {
        let ladder = overview::ladder(run);
        let table = overview::table(run, ladder.is_some());
        blocks.extend(ladder.map(Block::on_page));
        blocks.push(if is_benchmark { table.on_page() } else { table });
    }
    for test in &run.tests {
        let section = test::section(run, test);
        blocks.push(if is_single { section } else { section.on_page() });
    }
    if !is_single && !is_benchmark {
        blocks.extend(run.tests.iter().flat_map(probe::named).map(Block::on_screen));
        blocks.push(notes::of_all(run).on_screen());
    }
    blocks.push(overview::remarks(run).on_screen());
    blocks.extend(hosts::section(run).map(Block::on_page));
    blocks.push(hosts::repeat(run).on_page());
    blocks.push(Block::Ending(overview::state(run)));
    blocks
}
