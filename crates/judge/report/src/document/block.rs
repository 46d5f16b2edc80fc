//! The blocks that a report is made of.

use fathom_model::{Example, Finding};

use crate::{
    plot::{Key, Plot},
    words::{Mark, ValueWords},
};

/// A reader for whom alone a block or a column is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// A terminal, where room is scarce.
    Screen,
    /// A page, with room for drawings and for everything that may be asked later.
    Page,
}

/// A piece of a report.
pub(crate) enum Block<'a> {
    /// What was run, where and when.
    Head(Head),
    /// What became of the run, at the top.
    State(State),
    /// The same once more as the last line.
    Ending(State),
    /// Short answers, each with its name.
    Facts(Vec<Fact>),
    /// A cause, its proof, and what to do.
    Finding(FindingBlock<'a>),
    /// Each test as a bar against its limit.
    Ladder(Vec<Rung>),
    /// The most important value of a test.
    Headline(Headline),
    /// Blocks under a heading that can be linked to.
    Section(Section<'a>),
    /// A heading within a section.
    Heading(String),
    Sentence(Sentence),
    /// Sentences with a label each.
    List(List),
    /// Rows under titles.
    Table(Table),
    /// A drawing with its numbers.
    Figure(Figure<'a>),
    /// Blocks beside each other, where there is room.
    Columns(Vec<Vec<Block<'a>>>),
    /// Blocks that can be folded away under a summary.
    Fold(Fold<'a>),
    /// Causes of failures, each with an example.
    Failures(Vec<Failure<'a>>),
    /// Something to be copied.
    Code(String),
    /// A block for one medium.
    Only(Medium, Box<Block<'a>>),
}

impl Block<'_> {
    /// The block for readers of a terminal only.
    pub(crate) fn on_screen(self) -> Self {
        Self::Only(Medium::Screen, Box::new(self))
    }

    /// The block for readers of a page only.
    pub(crate) fn on_page(self) -> Self {
        Self::Only(Medium::Page, Box::new(self))
    }

    /// A sentence to be looked at in this way.
    pub(crate) fn marked(text: impl Into<String>, mark: Mark) -> Self {
        Self::Sentence(Sentence { text: text.into(), mark, ..Sentence::default() })
    }

    /// A sentence behind a label.
    pub(crate) fn labelled(label: &'static str, text: impl Into<String>) -> Self {
        Self::Sentence(Sentence { label, text: text.into(), ..Sentence::default() })
    }

    /// A sentence that is as it is.
    pub(crate) fn sentence(text: impl Into<String>) -> Self {
        Self::marked(text, Mark::Plain)
    }

    /// A faint sentence about the block above it.
    pub(crate) fn aside(text: impl Into<String>) -> Self {
        Self::Sentence(Sentence { text: text.into(), is_aside: true, ..Sentence::default() })
    }

    /// A sentence about the block above it that must be seen.
    pub(crate) fn caution(text: impl Into<String>, mark: Mark) -> Self {
        Self::Sentence(Sentence { text: text.into(), is_aside: true, mark, ..Sentence::default() })
    }
}

/// Blocks under a heading, not about a test.
pub(super) fn section<'a>(id: &str, title: &str, blocks: Vec<Block<'a>>) -> Block<'a> {
    Block::Section(Section { id: id.to_owned(), layer: None, title: title.to_owned(), blocks })
}

/// Blocks that are folded away at first.
pub(super) fn folded(summary: impl Into<String>, blocks: Vec<Block<'_>>) -> Block<'_> {
    Block::Fold(Fold { summary: summary.into(), is_open: false, blocks })
}

/// A name and what it stands for.
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

/// What was run, where and when.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) command: String,
    pub(crate) hosts: Vec<Fact>,
    /// When, for how long, how often.
    pub(crate) facts: Vec<Fact>,
}

/// What became of a run.
#[derive(Clone)]
pub(crate) struct State {
    /// `MEASURED, 1 of 6 rows INVALID`.
    pub(crate) word: String,
    pub(crate) mark: Mark,
    /// Why, a sentence each.
    pub(crate) reasons: Vec<String>,
    /// Those of them that no finding says.
    pub(crate) unsaid: Vec<String>,
    /// Whether a terminal must show it above the findings.
    pub(crate) is_first: bool,
    /// The run's name and how long it took.
    pub(crate) about: String,
}

/// A cause with what proves it and what to do.
pub(crate) struct FindingBlock<'a> {
    pub(crate) finding: &'a Finding,
    /// What stands before a cause that spoils a number.
    pub(crate) label: Option<String>,
    pub(crate) title: String,
    /// What an intervention showed: the label is its outcome.
    pub(crate) proof: Option<Sentence>,
    pub(crate) evidence: Table,
    /// How much it explains, before the tests.
    pub(crate) explains: String,
    /// The tests that it is about.
    pub(crate) tests: Vec<Cell>,
}

/// A bar of the ladder.
pub(crate) struct Rung {
    /// The layer, where a new one begins.
    pub(crate) layer: Option<&'static str>,
    pub(crate) test: Cell,
    pub(crate) value: Cell,
    /// The share of the limit that is used.
    pub(crate) share: Option<f64>,
    pub(crate) limit: String,
    pub(crate) cost: String,
    /// What holds it back.
    pub(crate) marker: Option<Cell>,
    pub(crate) promises: Vec<PromiseWords>,
}

impl Rung {
    /// Whether a finding holds the row back.
    pub(crate) fn is_held(&self) -> bool {
        self.marker.as_ref().is_some_and(|marker| marker.mark == Mark::Open)
    }
}

/// A promise and what came of it.
pub(crate) struct PromiseWords {
    /// `lost 2.6 %, promised <= 0.10 %`.
    pub(crate) text: String,
    /// `ok`, `✗` or `unclear`.
    pub(crate) word: String,
    pub(crate) mark: Mark,
}

/// The most important value of a test.
pub(crate) struct Headline {
    pub(crate) value: ValueWords,
    /// The values next to it, each with its name.
    pub(crate) beside: Vec<(String, String)>,
    /// The promises about other values.
    pub(crate) promises: Vec<PromiseWords>,
    /// Between which hosts, and of which kind.
    pub(crate) way: String,
    pub(crate) missing: Option<String>,
    pub(crate) marker: Option<Cell>,
}

/// Blocks under a heading.
pub(crate) struct Section<'a> {
    pub(crate) id: String,
    /// The layer of a test, empty where the title names it.
    pub(crate) layer: Option<&'static str>,
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block<'a>>,
}

#[derive(Default)]
pub(crate) struct Sentence {
    /// What a terminal puts before it: `note`, `error`, `remark`.
    pub(crate) label: &'static str,
    /// How often, or of which host.
    pub(crate) of: String,
    pub(crate) text: String,
    /// That of something missing puts a dash before it.
    pub(crate) mark: Mark,
    /// Whether it belongs to the block above it.
    pub(crate) is_aside: bool,
    /// Where links to it lead.
    pub(crate) id: Option<String>,
}

/// Sentences that belong together.
#[derive(Default)]
pub(crate) struct List {
    /// The heading on a page.
    pub(crate) title: &'static str,
    pub(crate) items: Vec<Sentence>,
    /// How many of them a terminal shows.
    pub(crate) screen_max: Option<usize>,
}

/// Rows under titles.
#[derive(Default)]
pub(crate) struct Table {
    /// The class of its style on a page.
    pub(crate) class: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: Vec<Row>,
    /// Whether its texts may flow into empty cells beside them.
    pub(crate) flows: bool,
}

/// A title with what stands below it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Column {
    pub(crate) title: String,
    /// Whether it is aligned as numbers are.
    pub(crate) is_number: bool,
    pub(crate) only: Option<Medium>,
    /// Of columns that do not fit on a terminal, that with the highest number goes first; 0 stays.
    pub(crate) gives_way: u8,
    /// Whether its texts go on in further lines where a terminal is too narrow for them.
    pub(crate) wraps: bool,
}

impl Column {
    /// A column of words.
    pub(crate) fn text(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// A column of numbers.
    pub(crate) fn number(title: impl Into<String>) -> Self {
        Self { title: title.into(), is_number: true, ..Self::default() }
    }

    pub(crate) fn only(self, medium: Medium) -> Self {
        Self { only: Some(medium), ..self }
    }
}

/// The first title as a column of words, the others as columns of numbers.
pub(crate) fn columns<T: Into<String>>(titles: impl IntoIterator<Item = T>) -> Vec<Column> {
    let of = |(index, title)| if index == 0 { Column::text(title) } else { Column::number(title) };
    titles.into_iter().enumerate().map(of).collect()
}

/// A line of a table.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<Cell>,
    /// The class of its style on a page.
    pub(crate) class: &'static str,
    pub(crate) only: Option<Medium>,
}

impl Row {
    /// A row of these texts.
    pub(crate) fn new<T: Into<Cell>>(cells: impl IntoIterator<Item = T>) -> Self {
        Self { cells: cells.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The same with all its cells marked.
    pub(crate) fn marked(mut self, mark: Mark) -> Self {
        self.cells.iter_mut().for_each(|cell| cell.mark = mark);
        self
    }
}

/// How much a text weighs among others.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Weight {
    #[default]
    Plain,
    Strong,
    Faint,
}

/// A text of a table.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cell {
    pub(crate) text: String,
    pub(crate) mark: Mark,
    pub(crate) weight: Weight,
    /// What stands below it on a page.
    pub(crate) below: String,
    /// What a page tells when it is pointed at.
    pub(crate) hint: String,
    /// Where it leads on a page.
    pub(crate) link: Option<String>,
    /// Which part of a drawing it is.
    pub(crate) key: Option<Key>,
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

/// A drawing with its numbers.
pub(crate) struct Figure<'a> {
    pub(crate) is_wide: bool,
    pub(crate) title: String,
    /// How it is to be read.
    pub(crate) about: String,
    pub(crate) drawing: Box<dyn Fn() -> Plot + 'a>,
    /// The same as numbers.
    pub(crate) table: Option<Table>,
    /// Whether a terminal shows these.
    pub(crate) on_screen: bool,
}

impl<'a> Figure<'a> {
    /// A drawing without numbers.
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

/// A name that can stand behind a `#`.
pub(super) fn anchor(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!("test-{}", name.chars().map(plain).collect::<String>())
}
