//! The actions of users, independent of any format: readers build an [`ImportTree`], and the writer turns it into a scenario.
//!
//! This module knows neither HAR, JMeter and curl nor the syntax of scenarios.

use std::fmt;

use fathom_model::units::Nanos;

/// The content of the inputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportTree {
    /// Values for all users, in the order of their definition.
    pub variables: Vec<(String, ImportText)>,
    /// Files with a row per user or per iteration.
    pub data: Vec<DataSet>,
    /// The kinds of users.
    pub kinds: Vec<ImportedUser>,
    /// The parts that could not be converted.
    pub notes: Vec<ImportNote>,
}

/// A part of an input that a scenario cannot express, with its location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNote {
    /// The path to it: the names in a tree, or a line.
    pub location: String,
    /// What it is, and how it was handled.
    pub what: String,
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.what)
    }
}

/// Users with the same actions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedUser {
    /// The original name; not yet a valid name in a scenario.
    pub name: String,
    pub n_users: Option<u64>,
    /// The time over which they arrive.
    pub ramp: Option<Nanos>,
    /// The total time.
    pub duration: Option<Nanos>,
    /// The delay of the first user.
    pub delay: Option<Nanos>,
    /// The number of rounds of each user; `None` means until the run ends.
    pub n_rounds: Option<u64>,
    /// The least time from one round to the next.
    pub pace: Option<Nanos>,
    /// The action after an error; `None` if it is not specified.
    pub on_error: Option<OnError>,
    /// Whether cookies are returned to their origin.
    pub cookies: CookieHandling,
    /// Whether server certificates are not verified.
    pub insecure: bool,
    pub acts: Vec<ImportAction>,
}

/// What a user does after an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnError {
    #[default]
    Continue,
    /// Begins again.
    NextRound,
    Leave,
}

/// Whether a user keeps cookies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CookieHandling {
    /// Not at all.
    #[default]
    Ignored,
    /// Until it leaves.
    Kept,
}

/// One action of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportAction {
    /// Sends a request.
    Request(Box<ImportedRequest>),
    /// Times several actions together.
    Transaction {
        /// The original name.
        name: String,
        acts: Vec<ImportAction>,
    },
    /// Waits.
    Think(ThinkTime),
    /// Waits for other users.
    Meet(ImportedMeeting),
    /// Repeats actions.
    Repeat {
        /// The number of rounds; `None` means forever.
        n: Option<u64>,
        acts: Vec<ImportAction>,
    },
    /// Runs actions if a condition holds.
    If {
        /// Tested once.
        condition: ImportedCondition,
        acts: Vec<ImportAction>,
    },
    /// Runs actions while a condition holds.
    While {
        /// Tested before each round.
        condition: ImportedCondition,
        acts: Vec<ImportAction>,
    },
    /// Runs actions in the first round only.
    Once(Vec<ImportAction>),
    /// Runs actions in a share of the rounds.
    Share {
        /// The number of rounds out of ten thousand.
        per_myriad: u32,
        acts: Vec<ImportAction>,
    },
    /// Runs one of several lists of actions, all equally likely.
    OneOf(Vec<Vec<ImportAction>>),
    /// Sets a variable.
    Set {
        /// The variable.
        name: String,
        to: ImportText,
    },
    /// A part that a scenario cannot express was here.
    LeftOut(ImportNote),
}

/// How long a user waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThinkTime {
    /// The same time each time.
    Fixed(Nanos),
    /// Uniformly distributed.
    Uniform(std::ops::RangeInclusive<Nanos>),
    /// Normally distributed.
    Normal {
        mean: Nanos,
        /// The standard deviation.
        deviation: Nanos,
    },
}

/// Users wait for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedMeeting {
    /// The number of users who continue together; `None` means all.
    pub n_users: Option<u64>,
    /// The longest wait.
    pub at_most: Option<Nanos>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedCondition {
    /// Whether all tests must hold, or one of them.
    pub joined: Conjunction,
    /// At least one.
    pub tests: Vec<ImportedComparison>,
}

/// How several tests are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conjunction {
    /// All must hold.
    And,
    /// One must hold.
    Or,
}

/// A comparison of two texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedComparison {
    pub left: ImportText,
    pub relation: Relation,
    pub right: ImportText,
}

/// The operator of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    /// The texts are equal.
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

/// One request with the actions before and after it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportedRequest {
    /// The original name, if there was one.
    pub name: Option<String>,
    /// Usually in capitals.
    pub method: String,
    /// With scheme and host.
    pub url: ImportText,
    /// In the order in which they are sent.
    pub headers: Vec<(String, ImportText)>,
    pub body: ImportedBody,
    /// Whether redirects are followed.
    pub redirects: RedirectHandling,
    pub timeout: Option<Nanos>,
    /// The requirements for the answer.
    pub expects: Vec<ImportedExpect>,
    /// The values to take from the answer.
    pub takes: Vec<Extraction>,
    /// The action after an error of this request, if it differs from the default.
    pub on_error: Option<OnError>,
    /// The parts of this request that a scenario cannot express.
    pub left_out: Vec<ImportNote>,
}

/// Whether a redirect is followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RedirectHandling {
    /// The answer is taken as it is.
    #[default]
    Taken,
    /// The redirect is followed.
    Followed,
}

/// The body of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ImportedBody {
    /// No body.
    #[default]
    None,
    /// Literal text.
    Text(ImportText),
    /// Bytes that are not text.
    Bytes(Vec<u8>),
    /// The content of a file.
    File(ImportText),
    /// Names and values, encoded as `application/x-www-form-urlencoded`.
    Form(Vec<(ImportText, ImportText)>),
    /// `multipart/form-data`.
    Multipart(Vec<FormPart>),
}

/// A part of `multipart/form-data`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormPart {
    /// The name of the field.
    pub name: ImportText,
    pub content: FormPartContent,
    /// Its `Content-Type`.
    pub media_type: Option<String>,
    /// The declared name of the file.
    pub file_name: Option<ImportText>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormPartContent {
    /// Given as text.
    Text(ImportText),
    /// Read from a file.
    File(ImportText),
}

/// A requirement for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportedExpect {
    /// It has one of these codes.
    Status(Vec<u16>),
    /// Its code has one of these first digits: 2 and 3 for 200 to 399.
    StatusClass(Vec<u16>),
    /// It is complete within this time.
    Within(Nanos),
    /// A field of it passes a test.
    Piece {
        /// The field.
        of: AnswerField,
        test: TextTest,
        /// The text to compare with.
        text: ImportText,
    },
    /// The JSON body has a value at a path.
    Json {
        /// A JSON path.
        path: String,
        /// The expected value; `None` if any value will do.
        equals: Option<ImportText>,
        /// Whether this must hold, or must not.
        holds: Negation,
    },
}

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerField {
    Body,
    /// All headers as text.
    Headers,
}

/// How a field is compared with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextTest {
    /// It contains the text.
    Contains,
    /// It does not contain the text.
    Lacks,
    /// It equals the text.
    Equals,
    /// It differs from the text.
    Differs,
    /// The regular expression is found in it.
    Finds,
    /// The regular expression is not found in it.
    DoesNotFind,
    /// The regular expression matches all of it.
    Matches,
    /// The regular expression does not match all of it.
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

/// A value of an answer that is kept in a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extraction {
    /// The variable.
    pub name: String,
    /// The source of the value.
    pub from: ExtractSource,
    /// The choice among several matches.
    pub which: MatchIndex,
    /// The value if nothing is found.
    pub default: Option<ImportText>,
    /// Why this is taken, for a comment.
    pub note: Option<String>,
}

/// How a value in an answer is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtractSource {
    /// By a JSON path in the body.
    Json(String),
    /// The value of a header field.
    Header(String),
    /// The value of a cookie that the answer sets.
    Cookie(String),
    /// By the first group of a regular expression, or the whole match if it has none.
    Regex {
        /// The searched part.
        of: AnswerField,
        pattern: String,
    },
    /// Between two texts.
    Between {
        /// The searched part.
        of: AnswerField,
        /// The text before it.
        before: ImportText,
        /// The text after it.
        after: ImportText,
    },
}

/// The choice among several matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatchIndex {
    /// Counted from 1.
    Nth(u32),
    /// The last one.
    Last,
    /// A random one.
    Random,
}

/// A file with rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSet {
    /// The original name; not yet a valid name in a scenario.
    pub name: String,
    /// Its path, as given.
    pub file: String,
    /// The names of the columns; `None` if the first row has them.
    pub columns: Option<Vec<String>>,
    /// Whether the first row is skipped although the columns are named.
    pub first_row: FirstRow,
    /// The separator of columns.
    pub delimiter: char,
    /// How rows are assigned to users.
    pub policy: ImportedRowPolicy,
}

/// The meaning of the first row of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstRow {
    /// An ordinary row.
    #[default]
    Row,
    /// The names of the columns.
    Names,
}

/// How rows of a data set are assigned to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportedRowPolicy {
    /// The next one; after the last one the first again.
    Sequential,
    /// The next one; after the last one users leave.
    Unique,
    /// Each user iterates over all rows independently.
    PerUser,
}

/// Text with placeholders that are filled in for each request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportText(pub Vec<ImportPiece>);

/// A piece of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportPiece {
    /// Literal text.
    Literal(String),
    /// The value of a variable.
    Variable(String),
    /// A random number, both ends included, padded with zeros to a width.
    Random(u64, u64, u8),
    /// The current time in milliseconds since 1970.
    TimeMillis,
    /// The current time in seconds since 1970.
    TimeSeconds,
    /// The current time like `2026-11-21T18:30:00.000Z`.
    TimeIso,
    /// A new UUID.
    Uuid,
    /// A counter for all users together, incremented at each use: its start and its width.
    Counter(u64, u8),
    /// The number of the round, counted from 1.
    Round,
    /// This many random letters and digits.
    Characters(u16),
    /// Another piece, encoded or decoded when it is filled in.
    Coded(Box<ImportPiece>, TextCoding),
    /// The number of the user, counted from 1.
    UserNumber,
}

/// How a piece is encoded or decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextCoding {
    /// Percent-encoded, except unreserved characters.
    Url,
    /// Percent-encoded as in forms.
    Form,
    /// Escaped for a JSON string.
    Json,
    /// Escaped for HTML and XML.
    Html,
    Base64,
    /// Percent-decoded.
    FromUrl,
    /// Without the escapes of HTML.
    FromHtml,
    /// Without the escapes of JSON and JavaScript.
    FromJson,
    FromBase64,
}

impl ImportText {
    /// Creates text without placeholders.
    pub fn literal(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_empty() { Self::default() } else { Self(vec![ImportPiece::Literal(text)]) }
    }

    /// Whether it has no pieces.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text itself, if it has no placeholders.
    #[must_use]
    pub fn as_literal(&self) -> Option<&str> {
        match self.0.as_slice() {
            [] => Some(""),
            [ImportPiece::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Appends a text; adjacent literals are merged.
    pub fn push_str(&mut self, text: &str) {
        match self.0.last_mut() {
            Some(ImportPiece::Literal(before)) => before.push_str(text),
            _ if text.is_empty() => {}
            _ => self.0.push(ImportPiece::Literal(text.to_owned())),
        }
    }

    /// Appends a piece.
    pub fn push(&mut self, piece: ImportPiece) {
        match piece {
            ImportPiece::Literal(text) => self.push_str(&text),
            piece => self.0.push(piece),
        }
    }

    /// Appends all pieces of another text.
    pub fn append(&mut self, other: Self) {
        other.0.into_iter().for_each(|piece| self.push(piece));
    }

    /// A copy with each literal changed.
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
    /// Passes each action of all users to `visit`, followed by its nested actions.
    pub fn each_act<'a>(&'a self, visit: &mut dyn FnMut(&'a ImportAction)) {
        self.kinds.iter().for_each(|kind| each(&kind.acts, visit));
    }

    /// Removes users who never send a request; adds notes about them and about the parts left out of them.
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

    /// The text with the values of constant variables, if it has no other placeholders.
    #[must_use]
    pub fn fixed(&self, text: &ImportText) -> Option<String> {
        // A variable may contain others, but not itself.
        const DEPTH_MAX: usize = 10;
        // Variables that contain each other many times could fill the memory; no host and no file name is longer.
        const LEN_MAX: usize = 1 << 16;
        self.fixed_within(text, DEPTH_MAX, &mut { LEN_MAX })
    }

    fn fixed_within(&self, text: &ImportText, depth: usize, left: &mut usize) -> Option<String> {
        let mut all = String::new();
        for piece in &text.0 {
            match piece {
                ImportPiece::Literal(literal) => {
                    *left = left.checked_sub(literal.len())?;
                    all.push_str(literal);
                }
                ImportPiece::Variable(name) => {
                    // An empty one takes time, too.
                    *left = left.checked_sub(1)?;
                    let (_, value) = self.variables.iter().rev().find(|(known, _)| known == name)?;
                    all.push_str(&self.fixed_within(value, depth.checked_sub(1)?, &mut *left)?);
                }
                _ => return None,
            }
        }
        Some(all)
    }
}

/// Whether any request is ever sent.
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

/// For notes: placeholders are shown by their names.
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
            Self::TimeIso => f.write_str("${time}"),
            Self::Uuid => f.write_str("${uuid}"),
            Self::Counter(start, _) => write!(f, "${{counter from {start}}}"),
            Self::Round => f.write_str("${round}"),
            Self::Characters(n) => write!(f, "${{{n} characters}}"),
            Self::Coded(piece, _) => piece.fmt(f),
            Self::UserNumber => f.write_str("${number of the user}"),
        }
    }
}

impl ImportedRequest {
    /// The value of a header, ignoring the case of its name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&ImportText> {
        self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All its texts that can have placeholders.
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

    /// The names of its variables, each once, in order.
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
    /// Adds the names of its variables to the known ones.
    pub fn add_variables(&self, names: &mut Vec<String>) {
        for piece in &self.0 {
            let mut plain = piece;
            while let ImportPiece::Coded(inner, _) = plain {
                plain = inner;
            }
            if let ImportPiece::Variable(name) = plain
                && !names.contains(name)
            {
                names.push(name.clone());
            }
        }
    }
}
