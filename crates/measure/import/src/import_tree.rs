//! What users do, without the words of any format: readers make a [`ImportTree`], and the writer makes a scenario of it.
//!
//! Knows neither HAR, JMeter and curl nor the syntax of scenarios.

use std::fmt;

use fathom_model::units::Nanos;

/// Everything that was found in the inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportTree {
    /// Values that hold for all users, in the order in which they were defined.
    pub variables: Vec<(String, ImportText)>,
    /// Files with a row per user or per iteration.
    pub data: Vec<DataSet>,
    /// The users, kind by kind.
    pub kinds: Vec<ImportedUser>,
    /// What could not be brought over.
    pub notes: Vec<ImportNote>,
}

/// Something of an input that has no place in the scenario, and where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNote {
    /// The way to it: the names of a tree, or a line.
    pub location: String,
    /// What it is and what became of it.
    pub what: String,
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.what)
    }
}

/// Users that do the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedUser {
    /// As it was called; not yet a word of a scenario.
    pub name: String,
    /// How many there are.
    pub n_users: Option<u64>,
    /// In what time they come.
    pub ramp: Option<Nanos>,
    /// How long they go on.
    pub duration: Option<Nanos>,
    /// How long the first one waits.
    pub delay: Option<Nanos>,
    /// How often each does it all; nothing for as long as the run goes on.
    pub n_rounds: Option<u64>,
    /// How long it takes at least from one round to the next.
    pub pace: Option<Nanos>,
    /// What an error does; nothing where that is not told.
    pub on_error: Option<OnError>,
    /// Whether cookies go back to where they came from.
    pub cookies: CookieHandling,
    /// Whether the certificate of a server is looked at.
    pub insecure: bool,
    /// What they do.
    pub acts: Vec<ImportAction>,
}

/// What a user does after an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    /// The next thing.
    #[default]
    Continue,
    /// Begins again.
    NextRound,
    /// Leaves.
    Leave,
}

/// Whether a user remembers cookies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CookieHandling {
    /// Not at all.
    #[default]
    Ignored,
    /// Until it leaves.
    Kept,
}

/// One thing that a user does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportAction {
    /// Sends a request.
    Request(Box<ImportedRequest>),
    /// Does several things that are timed together.
    Transaction {
        /// As it was called.
        name: String,
        /// What is timed.
        acts: Vec<ImportAction>,
    },
    /// Waits.
    Think(ThinkTime),
    /// Waits for others.
    Meet(ImportedMeeting),
    /// Does things several times.
    Repeat {
        /// How often; nothing for ever.
        n: Option<u64>,
        /// What is done.
        acts: Vec<ImportAction>,
    },
    /// Does things under a condition.
    If {
        /// Whether.
        condition: ImportedCondition,
        /// What is done.
        acts: Vec<ImportAction>,
    },
    /// Does things for as long as a condition holds.
    While {
        /// How long.
        condition: ImportedCondition,
        /// What is done.
        acts: Vec<ImportAction>,
    },
    /// Does things in the first round only.
    Once(Vec<ImportAction>),
    /// Does things in a share of the rounds.
    Share {
        /// In how many of ten thousand rounds.
        per_myriad: u32,
        /// What is done.
        acts: Vec<ImportAction>,
    },
    /// Does one of several things, any of them as likely as the others.
    OneOf(Vec<Vec<ImportAction>>),
    /// Gives a variable a new value.
    Set {
        /// The variable.
        name: String,
        /// Its value.
        to: ImportText,
    },
    /// Something was here that has no place in a scenario.
    LeftOut(ImportNote),
}

/// How long a user waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThinkTime {
    /// The same each time.
    Fixed(Nanos),
    /// Any time in between.
    Uniform(std::ops::RangeInclusive<Nanos>),
    /// Around a mean.
    Normal {
        /// The middle.
        mean: Nanos,
        /// The standard deviation.
        deviation: Nanos,
    },
}

/// Users wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedMeeting {
    /// How many go on together; nothing for all.
    pub n_users: Option<u64>,
    /// How long is waited for them.
    pub at_most: Option<Nanos>,
}

/// When something holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedCondition {
    /// Whether all tests must hold, or one of them.
    pub joined: Conjunction,
    /// At least one.
    pub tests: Vec<ImportedComparison>,
}

/// How several tests make a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conjunction {
    /// All must hold.
    And,
    /// One must.
    Or,
}

/// Two texts that are compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedComparison {
    /// What is compared.
    pub left: ImportText,
    /// How.
    pub relation: Relation,
    /// With what.
    pub right: ImportText,
}

/// How two texts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// They are the same.
    Equal,
    /// They differ.
    Unequal,
    /// As numbers: the left one is smaller.
    Less,
    /// As numbers: the left one is not larger.
    AtMost,
    /// As numbers: the left one is larger.
    Greater,
    /// As numbers: the left one is not smaller.
    AtLeast,
}

/// One request with what is done before and after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedRequest {
    /// As it was called, if it was.
    pub name: Option<String>,
    /// In capitals, mostly.
    pub method: String,
    /// With scheme and host.
    pub url: ImportText,
    /// In the order in which they are sent.
    pub headers: Vec<(String, ImportText)>,
    /// What is sent.
    pub body: ImportedBody,
    /// Whether a redirect leads to another request.
    pub redirects: RedirectHandling,
    /// After so long it is given up.
    pub timeout: Option<Nanos>,
    /// What must hold for the answer.
    pub expects: Vec<ImportedExpect>,
    /// What is kept of the answer.
    pub takes: Vec<Extraction>,
    /// What an error of this request does, if not what errors do.
    pub on_error: Option<OnError>,
    /// What of this request has no place in a scenario.
    pub left_out: Vec<ImportNote>,
}

/// Whether a redirect is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RedirectHandling {
    /// The answer is taken as it is.
    #[default]
    Taken,
    /// The user goes where it leads.
    Followed,
}

/// What follows the head of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImportedBody {
    /// Nothing.
    #[default]
    None,
    /// Text as it is.
    Text(ImportText),
    /// Bytes that are no text.
    Bytes(Vec<u8>),
    /// What a file has.
    File(ImportText),
    /// Names and values, encoded for `application/x-www-form-urlencoded`.
    Form(Vec<(ImportText, ImportText)>),
    /// `multipart/form-data`.
    Multipart(Vec<FormPart>),
}

/// A part of `multipart/form-data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormPart {
    /// The name of the field.
    pub name: ImportText,
    /// What it has.
    pub content: FormPartContent,
    /// What its `Content-Type` says.
    pub media_type: Option<String>,
    /// What the file is said to be called.
    pub file_name: Option<ImportText>,
}

/// Where a part comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormPartContent {
    /// It is told.
    Text(ImportText),
    /// It stands in a file.
    File(ImportText),
}

/// What must hold for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportedExpect {
    /// It has one of these codes.
    Status(Vec<u16>),
    /// It has a code of these hundreds: 2 and 3 for 200 to 399.
    StatusClass(Vec<u16>),
    /// It is here after so long.
    Within(Nanos),
    /// A piece of it is as told.
    Piece {
        /// The piece.
        of: AnswerField,
        /// How it must be.
        test: TextTest,
        /// With what it is compared.
        text: ImportText,
    },
    /// There is something at a place of the JSON body.
    Json {
        /// A JSON path.
        path: String,
        /// What is there; nothing if it only must be there.
        equals: Option<ImportText>,
        /// Whether that must hold, or must not.
        holds: Negation,
    },
}

/// Which piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerField {
    /// What follows the head.
    Body,
    /// All headers as text.
    Headers,
}

/// How a piece is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextTest {
    /// The text is in it.
    Contains,
    /// The text is not in it.
    Lacks,
    /// It is the text.
    Equals,
    /// It is not the text.
    Differs,
    /// The regular expression is found in it.
    Finds,
    /// The regular expression is not found in it.
    DoesNotFind,
    /// The regular expression is found, and is all of it.
    Matches,
    /// The regular expression is not all of it.
    DoesNotMatch,
}

/// Whether a condition must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Negation {
    /// It must.
    Yes,
    /// It must not.
    No,
}

/// Something of an answer that is kept in a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extraction {
    /// The variable.
    pub name: String,
    /// From where.
    pub from: ExtractSource,
    /// Which of several.
    pub which: MatchIndex,
    /// What the variable is when there is nothing.
    pub default: Option<ImportText>,
}

/// Where in an answer something is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtractSource {
    /// By a JSON path in the body.
    Json(String),
    /// By the first group of a regular expression, or all that it finds if it has none.
    Regex {
        /// Where it is looked for.
        of: AnswerField,
        /// The expression.
        pattern: String,
    },
    /// Between two texts.
    Between {
        /// Where it is looked for.
        of: AnswerField,
        /// What stands before it.
        before: ImportText,
        /// What stands behind it.
        after: ImportText,
    },
}

/// Which of several places is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchIndex {
    /// Counted from 1.
    Nth(u32),
    /// Any.
    Random,
}

/// A file with rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// As it was called; not yet a word of a scenario.
    pub name: String,
    /// Where it is, as it was told.
    pub file: String,
    /// The names of the columns; nothing if the first row tells.
    pub columns: Option<Vec<String>>,
    /// Whether the first row is left out although the columns are named.
    pub first_row: FirstRow,
    /// What stands between the columns.
    pub delimiter: char,
    /// Who has which row.
    pub policy: ImportedRowPolicy,
}

/// What the first row of a file is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstRow {
    /// A row as the others.
    #[default]
    Row,
    /// The names of the columns.
    Names,
}

/// Who has which row of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportedRowPolicy {
    /// The next one, and the first one again after the last one.
    Sequential,
    /// The next one, and users leave after the last one.
    Unique,
    /// Each user goes through all of them by itself.
    PerUser,
}

/// Text with places that are filled in for each request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportText(pub Vec<ImportPiece>);

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportPiece {
    /// As it is.
    Literal(String),
    /// The value of a variable.
    Variable(String),
    /// A number by chance, both ends included, with zeros before it up to a width.
    Random(u64, u64, u8),
    /// The current time in milliseconds since 1970.
    TimeMillis,
    /// The current time in seconds since 1970.
    TimeSeconds,
    /// A new UUID.
    Uuid,
    /// Counts one further each time it is filled in, for all users together: from where, and with what width.
    Counter(u64, u8),
    /// The number of the round, counted from 1.
    Round,
    /// So many letters and digits by chance.
    Characters(u16),
    /// Another piece, percent-encoded as forms are.
    UrlEncoded(Box<ImportPiece>),
    /// The number of the user, counted from 1.
    UserNumber,
}

impl ImportText {
    /// Text in which nothing is filled in.
    pub fn literal(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() { Self::default() } else { Self(vec![ImportPiece::Literal(text)]) }
    }

    /// Whether it has no pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text itself, if nothing is filled in.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [ImportPiece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Adds a text, and joins literals that meet.
    pub fn push_str(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(ImportPiece::Literal(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(ImportPiece::Literal(text.to_owned())),
        }
    }

    /// Adds a piece.
    pub fn push(&mut self, piece: ImportPiece) {
        match piece {
            ImportPiece::Literal(text) => self.push_str(&text),
            piece => self.0.push(piece),
        }
    }

    /// Adds all pieces of another text.
    pub fn append(&mut self, other: Self) {
        other.0.into_iter().for_each(|piece| self.push(piece));
    }

    /// The same with each literal changed.
    #[must_use]
    pub fn map_literals(self, change: impl Fn(&str) -> String) -> Self {
        let mut changed = Self::default();
        for piece in self.0 {
            match piece {
                ImportPiece::Literal(text) => changed.push_str(&change(&text)),
                piece => changed.push(piece),
            }
        }
        changed
    }
}

impl From<&str> for ImportText {
    fn from(text: &str) -> Self {
        Self::literal(text)
    }
}

impl ImportTree {
    /// Gives each act of all users to `visit`, and then those within it.
    pub fn each_act<'a>(&'a self, visit: &mut dyn FnMut(&'a ImportAction)) {
        self.kinds.iter().for_each(|kind| each(&kind.acts, visit));
    }

    /// Takes out users who never send a request; the notes say so, and what was left out of them.
    pub(super) fn drop_idle(&mut self) {
        for kind in self.kinds.extract_if(.., |kind| kind.n_users == Some(0) || !asks(&kind.acts)) {
            each(&kind.acts, &mut |act| match act {
                ImportAction::LeftOut(note) => self.notes.push(note.clone()),
                ImportAction::Request(request) => self.notes.extend(request.left_out.iter().cloned()),
                _ => {}
            });
            let why = if kind.n_users == Some(0) { "it has no users" } else { "none of its requests can be made" };
            self.notes.push(ImportNote { location: kind.name, what: format!("the group is left out: {why}") });
        }
    }

    /// All requests of all users.
    #[must_use]
    pub fn requests(&self) -> Vec<&ImportedRequest> {
        let mut all = Vec::new();
        self.each_act(&mut |act| {
            if let ImportAction::Request(request) = act {
                all.push(&**request);
            }
        });
        all
    }

    /// The text with the values of variables that never change, if nothing else is filled in.
    #[must_use]
    pub fn fixed(&self, text: &ImportText) -> Option<String> {
        // A variable may be made of others, but not of itself.
        const DEPTH_MAX: usize = 10;
        // Variables that are made of each other many times over could fill the memory; no host and no name of a file is longer.
        const LEN_MAX: usize = 1 << 16;
        self.fixed_within(text, (DEPTH_MAX, &mut { LEN_MAX }))
    }

    fn fixed_within(&self, text: &ImportText, (depth, left): (usize, &mut usize)) -> Option<String> {
        let mut all = String::new();
        for piece in &text.0 {
            match piece {
                ImportPiece::Literal(literal) => {
                    *left = left.checked_sub(literal.len())?;
                    all.push_str(literal);
                }
                ImportPiece::Variable(name) => {
                    // One that is empty takes time, too.
                    *left = left.checked_sub(1)?;
                    let (_, value) = self.variables.iter().rev().find(|(known, _)| known == name)?;
                    all.push_str(&self.fixed_within(value, (depth.checked_sub(1)?, &mut *left))?);
                }
                _ => return None,
            }
        }
        Some(all)
    }
}

/// Whether some request is ever sent.
fn asks(acts: &[ImportAction]) -> bool {
    acts.iter().any(|act| match act {
        ImportAction::Request(_) => true,
        ImportAction::Repeat { n, acts } => *n != Some(0) && asks(acts),
        ImportAction::Share { per_myriad, acts } => *per_myriad > 0 && asks(acts),
        ImportAction::Transaction { acts, .. }
        | ImportAction::If { acts, .. }
        | ImportAction::While { acts, .. }
        | ImportAction::Once(acts) => asks(acts),
        ImportAction::OneOf(branches) => branches.iter().any(|acts| asks(acts)),
        ImportAction::Think(_) | ImportAction::Meet(_) | ImportAction::Set { .. } | ImportAction::LeftOut(_) => false,
    })
}

fn each<'a>(acts: &'a [ImportAction], visit: &mut dyn FnMut(&'a ImportAction)) {
    for act in acts {
        visit(act);
        match act {
            ImportAction::Transaction { acts, .. }
            | ImportAction::Repeat { acts, .. }
            | ImportAction::If { acts, .. }
            | ImportAction::While { acts, .. }
            | ImportAction::Once(acts)
            | ImportAction::Share { acts, .. } => each(acts, visit),
            ImportAction::OneOf(branches) => branches.iter().for_each(|acts| each(acts, visit)),
            ImportAction::Request(_)
            | ImportAction::Think(_)
            | ImportAction::Meet(_)
            | ImportAction::Set { .. }
            | ImportAction::LeftOut(_) => {}
        }
    }
}

/// For people who read a note: places that are filled in are shown by their names.
impl fmt::Display for ImportText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| piece.fmt(f))
    }
}

impl fmt::Display for ImportPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(text) => f.write_str(text),
            Self::Variable(name) => write!(f, "${{{name}}}"),
            Self::Random(from, to, _) => write!(f, "${{random {from}..{to}}}"),
            Self::TimeMillis => f.write_str("${time in ms}"),
            Self::TimeSeconds => f.write_str("${time in s}"),
            Self::Uuid => f.write_str("${uuid}"),
            Self::Counter(start, _) => write!(f, "${{counter from {start}}}"),
            Self::Round => f.write_str("${round}"),
            Self::Characters(n) => write!(f, "${{{n} characters}}"),
            Self::UrlEncoded(piece) => piece.fmt(f),
            Self::UserNumber => f.write_str("${number of the user}"),
        }
    }
}

impl ImportedRequest {
    /// The value of a header, whatever the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&ImportText> {
        self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All texts of it in which something can be filled in.
    fn texts(&self) -> Vec<&ImportText> {
        let mut texts = vec![&self.url];
        texts.extend(self.headers.iter().map(|(_, value)| value));
        match &self.body {
            ImportedBody::None | ImportedBody::Bytes(_) => {}
            ImportedBody::Text(text) | ImportedBody::File(text) => texts.push(text),
            ImportedBody::Form(fields) => texts.extend(fields.iter().flat_map(|(name, value)| [name, value])),
            ImportedBody::Multipart(parts) => {
                for part in parts {
                    let (FormPartContent::Text(content) | FormPartContent::File(content)) = &part.content;
                    texts.extend([&part.name, content]);
                    texts.extend(&part.file_name);
                }
            }
        }
        for expect in &self.expects {
            match expect {
                ImportedExpect::Piece { text, .. } => texts.push(text),
                ImportedExpect::Json { equals, .. } => texts.extend(equals),
                _ => {}
            }
        }
        for take in &self.takes {
            if let ExtractSource::Between { before, after, .. } = &take.from {
                texts.extend([before, after]);
            }
            texts.extend(&take.default);
        }
        texts
    }

    /// The names of the variables in it, each once, in their order.
    #[must_use]
    pub fn variables(&self) -> Vec<String> {
        let mut names = Vec::new();
        for text in self.texts() {
            text.add_variables(&mut names);
        }
        names
    }
}

impl ImportText {
    /// Adds the names of its variables to those that are known already.
    pub fn add_variables(&self, names: &mut Vec<String>) {
        for piece in &self.0 {
            let plain = if let ImportPiece::UrlEncoded(piece) = piece { piece } else { piece };
            if let ImportPiece::Variable(name) = plain
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
    }
}
