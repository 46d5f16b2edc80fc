//! The syntax tree of a scenario: the parser builds it, the checks walk it and the formatter writes it.
//!
//! Nodes know their place in the text. Names are not resolved here: a hole names a variable, a column with its data set, or a
//! generator. This module knows nothing of files, connections and time.

use std::{fmt, ops::Range};

use fathom_engine::pace::Profile;
use fathom_model::units::{Nanos, PerSec};

/// A place in the text, in bytes.
///
/// Two nodes with the same content are equal wherever they are, so spans always compare as equal.
#[derive(Clone, Copy, Default, Eq)]
pub struct Span {
    /// The offset of its first byte.
    pub start: usize,
    /// The offset after its last byte.
    pub end: usize,
}

impl PartialEq for Span {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl From<Range<usize>> for Span {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl From<Span> for Range<usize> {
    fn from(span: Span) -> Self {
        span.start..span.end
    }
}

/// A word, or several words of one name, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    /// Without quotes, with one blank between words.
    pub text: String,
    pub span: Span,
}

/// A value with its source text, which the formatter keeps: `5m` is not `300s`.
#[derive(Debug, Clone, PartialEq)]
pub struct Spanned<T> {
    pub value: T,
    /// The source text, without surrounding blanks.
    pub text: String,
    pub span: Span,
}

/// A whole file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scenario {
    /// The base of relative paths: `base https://shop.test`. Its path, if any, is a prefix of theirs.
    pub base: Option<Name>,
    /// How users arrive; missing values come from the command line.
    pub load: Option<UserLoad>,
    /// Options of connections and TLS, as on the command line: `insecure`, `timeout 5s`.
    pub settings: Vec<SettingLine>,
    /// Header fields of every request, unless its step has one of the same name.
    pub headers: Vec<HeaderDef>,
    /// Whether each user keeps cookies; on by default.
    pub cookies: Option<OnOffLine>,
    /// The number of redirects a step follows; none by default.
    pub redirects: Option<RedirectLimit>,
    /// What a user does when a step fails, unless a nearer setting applies.
    pub on_failure: Option<OnFailure>,
    /// Variables that every user begins with.
    pub variables: Vec<VariableDef>,
    pub data: Vec<DataSetDef>,
    /// Parts that several users share.
    pub parts: Vec<PartDef>,
    /// The kinds of users: at least one in a valid scenario. Steps outside of any user form one without a name.
    pub users: Vec<UserDef>,
    /// The objectives for the results.
    pub promises: Vec<PromiseDef>,
    /// All comments in order.
    pub comments: Vec<Comment>,
}

/// A comment: `# …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// Without the sign and the blank after it.
    pub text: String,
    /// From its sign on.
    pub span: Span,
}

/// How users arrive.
#[derive(Debug, Clone, PartialEq)]
pub struct UserLoad {
    pub span: Span,
    /// Open or closed.
    pub model: UserLoadModel,
}

/// Whether users arrive independently of earlier ones.
#[derive(Debug, Clone, PartialEq)]
pub enum UserLoadModel {
    /// `open 200/s poisson for 5m max 5000`: users arrive independently, run the steps once, and leave.
    Open {
        /// Arrivals per second.
        rate: UserArrivalRate,
        /// Evenly or at random.
        arrivals: ArrivalSpacing,
        /// The most concurrent users.
        max: Option<Spanned<u64>>,
    },
    /// `closed 500 ramp 1m for 5m`: a fixed set of users, who start again when they are done.
    Closed {
        /// The number of users.
        users: Spanned<u64>,
        /// The time over which they arrive.
        ramp: Option<Spanned<Nanos>>,
        /// The total time, the ramp included.
        length: Option<Spanned<Nanos>>,
        /// How often each user runs the steps before leaving; by default until the time is over.
        repeat: Option<Spanned<u64>>,
    },
}

/// Arrivals of users per second.
#[derive(Debug, Clone, PartialEq)]
pub enum UserArrivalRate {
    /// A constant rate: `open 200/s for 5m`.
    Steady {
        /// Users per second.
        rate: Spanned<PerSec>,
        length: Option<Spanned<Nanos>>,
    },
    /// Steps and ramps: `open 0-200:1m, 200:5m`.
    Profile(Spanned<Profile>),
}

/// The distribution of arrivals over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalSpacing {
    /// Evenly.
    Constant,
    /// Independently of each other (a Poisson process).
    Poisson,
}

/// An option of connections or TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingLine {
    pub span: Span,
    /// The name of the option on the command line.
    pub name: Name,
    /// Its value; a flag has none.
    pub value: Option<Name>,
}

/// A line with `on` or `off`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnOffLine {
    pub span: Span,
    pub on: bool,
}

/// The number of redirects that a step follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectLimit {
    pub span: Span,
    /// `None` for `redirects off`.
    pub max: Option<u16>,
}

/// What a user does when a step fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnFailure {
    pub span: Span,
    pub action: FailureAction,
}

/// Ways to continue after a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailureAction {
    /// The next step follows, as after a success; variables to be taken keep their values.
    Continue,
    /// The user starts again; in an open load, or in `setup`, the user leaves. The default.
    #[default]
    Restart,
    /// The user leaves, after `teardown`.
    Leave,
}

/// A variable with a value: `let greeting = "hello ${user}"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableDef {
    pub span: Span,
    pub name: Name,
    /// Its value, evaluated when the user reaches this line.
    pub value: Template,
}

/// A data set: `data accounts from accounts.csv unique then stop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSetDef {
    pub span: Span,
    /// The name that holes use.
    pub name: Name,
    /// The file, relative to the folder of the scenario.
    pub file: Name,
    /// The columns of a file whose first line does not name them.
    pub columns: Vec<Name>,
    /// The separator between two values; by default a comma (a tab in files ending in `.tsv`).
    pub separator: Option<char>,
    /// How rows are assigned to users.
    pub policy: RowPolicy,
    /// The explicit action when the rows run out; [`DataSetDef::at_end`] applies the default.
    pub end: Option<DataEnd>,
}

impl DataSetDef {
    /// The action when the rows run out.
    #[must_use]
    pub fn at_end(&self) -> DataEnd {
        self.end.unwrap_or(match self.policy {
            RowPolicy::Sequential | RowPolicy::Random => DataEnd::Wrap,
            RowPolicy::Unique => DataEnd::Stop,
            RowPolicy::PerUser => DataEnd::Error,
        })
    }
}

/// How rows are assigned to users.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowPolicy {
    /// Each iteration gets the next row, for all users together.
    #[default]
    Sequential,
    /// Each iteration gets a random row.
    Random,
    /// As sequential, but no row is ever used twice.
    Unique,
    /// Each user gets the next row on arrival and keeps it.
    PerUser,
}

/// The action when the rows run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataEnd {
    /// The user leaves.
    Stop,
    /// The first row follows the last one.
    Wrap,
    /// The run ends with an error.
    Error,
}

/// A block that users share: `part login`, used with `do login`.
#[derive(Debug, Clone, PartialEq)]
pub struct PartDef {
    /// Its first line.
    pub span: Span,
    /// The name that `do` uses; unique in a file.
    pub name: Name,
    pub body: Vec<Statement>,
}

/// A kind of user: `user buyer 30%`.
#[derive(Debug, Clone, PartialEq)]
pub struct UserDef {
    /// Its first line; without a name, the first line of its statements.
    pub span: Span,
    /// `None` if the file has steps outside of any user.
    pub name: Option<Name>,
    /// Its share of all users, in percent; equal shares by default.
    pub share: Option<Spanned<f64>>,
    /// What the user does when a step fails.
    pub on_failure: Option<OnFailure>,
    /// The least time from one iteration to the next.
    pub pace: Option<PaceDef>,
    /// Runs once on arrival.
    pub setup: Option<Section>,
    /// One iteration.
    pub body: Vec<Statement>,
    /// Runs once before the user leaves.
    pub teardown: Option<Section>,
}

/// `setup` or `teardown`.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its first line.
    pub span: Span,
    pub body: Vec<Statement>,
}

/// One statement of a user's script.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// Sends a request.
    Step(Box<StepDef>),
    /// Several statements under one name.
    Transaction(Transaction),
    /// Waits, like a thinking person.
    Think(Think),
    /// Waits for other users.
    Meet(Meet),
    /// A counted loop.
    Repeat(Repeat),
    /// A loop with a condition.
    While(While),
    /// A choice by conditions.
    If(If),
    /// A choice by chance.
    Chance(Chance),
    /// Runs a part.
    Do(Do),
    /// Sets a variable.
    Let(VariableDef),
}

/// A request with the expectations of its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDef {
    /// Its first line.
    pub span: Span,
    /// The name in results; unique in a file.
    pub name: Name,
    /// Such as `GET`.
    pub method: Name,
    /// A path that begins with `/`, or a URL with a fixed host.
    pub url: Template,
    /// Header fields in order; an empty value removes the default field.
    pub headers: Vec<HeaderDef>,
    /// The content after the head.
    pub body: Option<BodyDef>,
    /// The requirements for the answer. Without a status among them, it must be 2xx or 3xx.
    pub expects: Vec<ExpectClause>,
    /// The values to take from the answer.
    pub takes: Vec<TakeClause>,
    /// The number of redirects that this step follows.
    pub redirects: Option<RedirectLimit>,
    /// The timeout of this step's answer.
    pub timeout: Option<TimeoutLine>,
    /// What a user does when this step fails.
    pub on_failure: Option<OnFailure>,
}

/// The timeout of an answer: `timeout 10s`.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeoutLine {
    pub span: Span,
    pub after: Spanned<Nanos>,
}

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderDef {
    pub span: Span,
    /// As it is sent.
    pub name: Name,
    /// May be empty.
    pub value: Template,
}

/// The content after the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyDef {
    /// Its first line.
    pub span: Span,
    pub content: BodyContent,
}

/// Kinds of bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyContent {
    /// `body`: unchanged. Sets no content type.
    Text(Template),
    /// `json`: sent as `application/json`; holes within its strings are escaped ([`Template::escaped_json`]).
    Json(Template),
    /// `body from FILE`: the bytes of a file, relative to the folder of the scenario.
    File(Name),
    /// `form`: sent as `application/x-www-form-urlencoded`; names and values are encoded.
    Form(Vec<FormField>),
    /// `multipart`: sent as `multipart/form-data`.
    Multipart(Vec<FormField>),
}

/// A field of a form; a field of `form` is always a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormField {
    pub span: Span,
    pub name: Name,
    pub value: FormFieldValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormFieldValue {
    /// `title = A picture`
    Text(Template),
    /// `picture from holiday.jpg type image/jpeg`; its file name is the last part of the path.
    File {
        /// Relative to the folder of the scenario.
        path: Name,
        /// `application/octet-stream` by default.
        media_type: Option<Name>,
    },
}

/// A requirement for an answer; `expect within 500ms` has only a time.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectClause {
    pub span: Span,
    pub what: Option<ExpectedValue>,
    /// The time within which the whole answer must arrive.
    pub within: Option<Spanned<Nanos>>,
}

/// The content of a requirement.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedValue {
    /// `200, 3xx`: one of these.
    Status(Vec<StatusPattern>),
    /// A test of the answer.
    Test(TestExpr),
}

/// One status or a class of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusPattern {
    /// `200`
    One(u16),
    /// `2xx`, by its first digit.
    Class(u8),
}

impl StatusPattern {
    /// Whether the pattern matches a status.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        match self {
            Self::One(one) => status == one,
            Self::Class(digit) => status / 100 == u16::from(digit),
        }
    }
}

/// A test: `json $.n >= 3`, `${role} == "admin"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestExpr {
    pub span: Span,
    /// The tested value.
    pub subject: TestSubject,
    /// `not` before `contains`, `matches` and `exists`.
    pub negated: bool,
    pub predicate: TestPredicate,
}

/// The value that a test examines; outside of `expect` always a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestSubject {
    /// The values of all fields of that name, joined by a comma.
    Header(Name),
    /// The whole body.
    Body,
    /// The first match of a JSON path (RFC 9535); a string without its quotes.
    Json(Name),
    /// The value of a cookie that the answer sets.
    Cookie(Name),
    /// Any text.
    Text(Template),
}

/// The claim of a test. A missing value satisfies only `not exists`, `not contains` and `not matches`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestPredicate {
    /// Compared as numbers if both are numbers, otherwise as texts; texts are only equal or unequal.
    Compare(CompareOp, Template),
    /// The value contains this text.
    Contains(Template),
    /// A regular expression matches somewhere in the value.
    Matches(Name),
    /// The value exists; a variable exists if it is set.
    Exists,
}

/// Comparison operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompareOp {
    /// `==`
    Equal,
    /// `!=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
}

/// A combination of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionExpr {
    /// Whether one of them is enough (`or`); otherwise all must hold (`and`).
    pub any: bool,
    /// At least one.
    pub tests: Vec<TestExpr>,
}

/// A variable from an answer: `take token = json $.token or "none"`. If nothing is found, the step fails, unless there is a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeClause {
    pub span: Span,
    /// The variable.
    pub name: Name,
    /// The source of the value.
    pub source: TakeSource,
    /// The choice among several matches.
    pub pick: MatchPick,
    /// The value if nothing is found.
    pub default: Option<Template>,
}

/// The part of an answer that a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeSource {
    /// A JSON path (RFC 9535) in the body; a string without its quotes, anything else as JSON.
    Json(Name),
    /// A header field.
    Header(Name),
    /// The first group of a regular expression, or the whole match if it has none.
    Regex(Name, SearchArea),
    /// The text between two others.
    Between(Between),
    /// The value of a cookie that the answer sets.
    Cookie(Name),
    /// The status code.
    Status,
    /// The whole body.
    Body,
}

/// The texts around a value: `between "id=" "&"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Between {
    /// The text directly before it.
    pub before: String,
    /// The text directly after it.
    pub after: String,
    /// The part of the answer to search.
    pub area: SearchArea,
}

/// The part of an answer that is searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SearchArea {
    /// The body, the default.
    #[default]
    Body,
    /// `in headers`: the header fields, one per line.
    Headers,
}

/// The choice among several matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MatchPick {
    /// The default.
    #[default]
    First,
    /// `last`
    Last,
    /// `any`: at random.
    Any,
    /// `nth 3`, counted from 1.
    Nth(u32),
}

/// Several steps under one name; think time is not part of its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    /// Its first line.
    pub span: Span,
    /// The name in results; no step has the same one.
    pub name: Name,
    pub body: Vec<Statement>,
}

/// A pause of a user, like a thinking person.
#[derive(Debug, Clone, PartialEq)]
pub struct Think {
    pub span: Span,
    pub time: WaitExpr,
}

/// The time from one start to the next: `pace 5s`.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceDef {
    pub span: Span,
    /// The least time.
    pub time: WaitExpr,
}

/// A duration, as written.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitExpr {
    /// `2s`
    Fixed(Spanned<Nanos>),
    /// `1s..3s`: uniformly distributed.
    Uniform(Spanned<Nanos>, Spanned<Nanos>),
    /// `exponential 2s`: with this mean.
    Exponential(Spanned<Nanos>),
    /// `normal 5s 1s`: mean and standard deviation, never below zero.
    Normal(Spanned<Nanos>, Spanned<Nanos>),
}

/// Waits until that many users are here: `meet 100 within 2s`. Users who have waited that long continue without the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Meet {
    pub span: Span,
    /// The number of users who continue together.
    pub users: Spanned<u64>,
    /// The longest wait of the first user.
    pub within: Spanned<Nanos>,
}

/// Runs its body several times: `repeat 5`, `repeat 2..5`.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Its first line.
    pub span: Span,
    /// The fewest rounds.
    pub min: Spanned<u64>,
    /// The most rounds, drawn evenly; `None` if the number is fixed.
    pub max: Option<Spanned<u64>>,
    /// The least time from one round to the next.
    pub pace: Option<PaceDef>,
    pub body: Vec<Statement>,
}

/// Runs its body while a condition holds, which is tested before each round.
#[derive(Debug, Clone, PartialEq)]
pub struct While {
    /// Its first line.
    pub span: Span,
    pub condition: ConditionExpr,
    /// `max 20`: the most rounds.
    pub max: Option<Spanned<u64>>,
    /// The least time from one round to the next.
    pub pace: Option<PaceDef>,
    pub body: Vec<Statement>,
}

/// Runs the first branch whose condition holds.
#[derive(Debug, Clone, PartialEq)]
pub struct If {
    /// `if`, then each `else if`.
    pub branches: Vec<Branch>,
    /// `else`
    pub otherwise: Option<Section>,
}

/// A block with its condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// Its first line.
    pub span: Span,
    pub condition: ConditionExpr,
    pub body: Vec<Statement>,
}

/// Runs its body with a probability: `chance 30%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Chance {
    /// Its first line.
    pub span: Span,
    /// The probability in percent.
    pub share: Spanned<f64>,
    pub body: Vec<Statement>,
    /// `else`: runs otherwise.
    pub otherwise: Option<Section>,
}

/// Runs a part: `do login`. A part may run only parts above it in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Do {
    pub span: Span,
    /// The part.
    pub name: Name,
}

/// An objective for the results: `promise checkout p99 < 300ms, errors < 0.1%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromiseDef {
    pub span: Span,
    /// A step or a transaction; `None` means all steps together.
    pub of: Option<Name>,
    /// Each like `p99 < 300ms`.
    pub terms: Vec<Name>,
}

/// A text with holes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    /// For a block, from its first line to its last.
    pub span: Span,
    /// Never two adjacent texts, and never an empty one.
    pub pieces: Vec<TemplatePiece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    /// Literal text.
    Text(String),
    /// A hole to be filled.
    Hole(Hole),
}

/// A placeholder to be filled: `${accounts.user|url}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// With its braces.
    pub span: Span,
    pub source: HoleSource,
    /// The filters, applied from left to right.
    pub filters: Vec<Filter>,
}

/// The source of a hole's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoleSource {
    /// A variable: `${token}`.
    Variable(Name),
    /// A column of a data set: `${accounts.user}`.
    Column(Name, Name),
    /// `${"…"}`: this text, for characters that cannot be written otherwise.
    Text(String),
    /// `${rand 1..100000 width 6}`: a uniform random number, both ends included.
    Rand {
        min: u64,
        max: u64,
        /// The number of digits, padded with zeros.
        width: Option<u8>,
    },
    /// `${seq}`: 1, 2, 3 … for all users together.
    Seq {
        /// `from 1000`: the first number.
        from: Option<u64>,
        /// The number of digits, padded with zeros.
        width: Option<u8>,
    },
    /// `${chars 12}`: that many random letters and digits.
    Chars(u16),
    /// `${uuid}`: a random one (version 4).
    Uuid,
    /// `${now}`: the time of day.
    Now(Clock),
    /// `${user}`: the number of this user, from 1.
    UserNumber,
    /// `${iteration}`: the number of this user's iteration, from 1.
    Iteration,
    /// `${round}`: the round of the innermost loop, from 1.
    Round,
    /// `${env TOKEN}`: a variable of the program's environment, read before the start.
    Env(Name),
}

/// The format of the time of day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clock {
    /// `now`: whole seconds since 1970.
    #[default]
    Seconds,
    /// `now ms`: whole milliseconds since 1970.
    Millis,
    /// `now iso`: `2026-11-21T18:30:00.000Z`.
    Iso,
}

/// A transformation of a hole's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Percent-encoded, except letters, digits and `-._~`.
    Url,
    /// Percent-encoded as in `application/x-www-form-urlencoded`: except letters, digits and `*-._`; a blank becomes a plus.
    Form,
    /// Escaped for use within the quotes of a JSON string.
    Json,
    /// With the escapes of HTML and XML for `&<>"'`.
    Html,
    /// Base64 with padding (RFC 4648 section 4).
    Base64,
    /// Hexadecimal, in lower case.
    Hex,
    /// Percent-decoded; a plus stays a plus.
    FromUrl,
    /// With the characters that HTML escapes: `&amp;`, `&#39;`.
    FromHtml,
    /// With the characters that a string of JSON or JavaScript escapes: `\/`, `\u002F`.
    FromJson,
    /// The bytes that base64 with padding encodes.
    FromBase64,
}

impl Template {
    /// The text, if it has no holes.
    #[must_use]
    pub fn fixed(&self) -> Option<&str> {
        match &self.pieces[..] {
            [] => Some(""),
            [TemplatePiece::Text(text)] => Some(text),
            _ => None,
        }
    }

    pub fn holes(&self) -> impl Iterator<Item = &Hole> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Hole(hole) => Some(hole),
            TemplatePiece::Text(_) => None,
        })
    }

    /// A copy whose holes within JSON strings have the JSON filter, unless they have one already.
    #[must_use]
    pub fn escaped_json(&self) -> Self {
        let mut template = self.clone();
        let (mut is_within, mut is_escaped) = (false, false);
        for piece in &mut template.pieces {
            match piece {
                TemplatePiece::Text(text) => {
                    for byte in text.bytes() {
                        match byte {
                            _ if is_escaped => is_escaped = false,
                            b'\\' if is_within => is_escaped = true,
                            b'"' => is_within = !is_within,
                            _ => {}
                        }
                    }
                }
                TemplatePiece::Hole(hole) if is_within && hole.filters.is_empty() => hole.filters.push(Filter::Json),
                TemplatePiece::Hole(_) => {}
            }
        }
        template
    }
}

impl Statement {
    /// The blocks within it, in order.
    #[must_use]
    pub fn blocks(&self) -> Vec<&[Statement]> {
        match self {
            Self::Step(_) | Self::Think(_) | Self::Meet(_) | Self::Do(_) | Self::Let(_) => Vec::new(),
            Self::Transaction(transaction) => vec![&transaction.body],
            Self::Repeat(repeat) => vec![&repeat.body],
            Self::While(looped) => vec![&looped.body],
            Self::Chance(chance) => {
                std::iter::once(&chance.body[..]).chain(chance.otherwise.iter().map(|other| &other.body[..])).collect()
            }
            Self::If(choice) => {
                let branches = choice.branches.iter().map(|branch| &branch.body[..]);
                branches.chain(choice.otherwise.iter().map(|other| &other.body[..])).collect()
            }
        }
    }
}

impl StepDef {
    /// The texts of its request, without the header fields of the file.
    pub fn request_texts(&self) -> impl Iterator<Item = &Template> {
        let body: Vec<&Template> = match self.body.as_ref().map(|body| &body.content) {
            Some(BodyContent::Text(text) | BodyContent::Json(text)) => vec![text],
            Some(BodyContent::Form(fields) | BodyContent::Multipart(fields)) => {
                fields.iter().filter_map(FormField::text).collect()
            }
            Some(BodyContent::File(_)) | None => Vec::new(),
        };
        std::iter::once(&self.url).chain(self.headers.iter().map(|header| &header.value)).chain(body)
    }
}

impl FormField {
    fn text(&self) -> Option<&Template> {
        match &self.value {
            FormFieldValue::Text(text) => Some(text),
            FormFieldValue::File { .. } => None,
        }
    }
}

impl TestExpr {
    /// The texts in the test.
    pub fn texts(&self) -> impl Iterator<Item = &Template> {
        let subject = match &self.subject {
            TestSubject::Text(text) => Some(text),
            _ => None,
        };
        let claim = match &self.predicate {
            TestPredicate::Compare(_, text) | TestPredicate::Contains(text) => Some(text),
            TestPredicate::Matches(_) | TestPredicate::Exists => None,
        };
        subject.into_iter().chain(claim)
    }
}

impl Scenario {
    /// All blocks of parts and users, with their sections.
    #[must_use]
    pub fn blocks(&self) -> Vec<&[Statement]> {
        let users = self.users.iter().flat_map(UserDef::blocks);
        self.parts.iter().map(|part| &part.body[..]).chain(users).collect()
    }
}

impl UserDef {
    /// The user's blocks in the order in which they run.
    pub fn blocks(&self) -> impl Iterator<Item = &[Statement]> {
        let setup = self.setup.iter().map(|section| &section.body[..]);
        let teardown = self.teardown.iter().map(|section| &section.body[..]);
        setup.chain(std::iter::once(&self.body[..])).chain(teardown)
    }
}
