//! What a scenario says, as a tree: what the parser makes, the checks walk and the formatter writes.
//!
//! Nodes say where they stand in the text. Names are not resolved here: a hole names a variable, a column by its data set, or a
//! generator. Knows nothing of files, connections and time.

use std::{fmt, ops::Range};

use fathom_engine::pace::Profile;
use fathom_model::units::{Nanos, PerSec};

/// Where something stands in the text, in bytes.
///
/// Two nodes that say the same are equal wherever they stand, so places are always equal.
#[derive(Clone, Copy, Default, Eq)]
pub struct Span {
    /// Of its first byte.
    pub start: usize,
    /// Behind its last byte.
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

/// A word, or several of one name, as written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Name {
    /// Without quotes, one blank between words.
    pub text: String,
    /// Where.
    pub span: Span,
}

/// A value and the text that stands for it, which the formatter keeps: `5m` is not `300s`.
#[derive(Debug, Clone, PartialEq)]
pub struct Spanned<T> {
    /// What it is.
    pub value: T,
    /// How it was written, without blanks around it.
    pub text: String,
    /// Where.
    pub span: Span,
}

/// A whole file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scenario {
    /// Where relative paths go: `base https://shop.test`. Its path, if any, stands before theirs.
    pub base: Option<Name>,
    /// How users come; what is missing comes from the command line.
    pub load: Option<UserLoad>,
    /// Options of connections and TLS, as on the command line: `insecure`, `timeout 5s`.
    pub settings: Vec<SettingLine>,
    /// Header fields of every request, unless its step has one of the same name.
    pub headers: Vec<HeaderDef>,
    /// Whether each user keeps cookies; they do unless told otherwise.
    pub cookies: Option<OnOffLine>,
    /// How many redirects a step follows; none unless told otherwise.
    pub redirects: Option<RedirectLimit>,
    /// What a user does when a step fails, where nothing nearer says it.
    pub on_failure: Option<OnFailure>,
    /// Variables that every user begins with.
    pub variables: Vec<VariableDef>,
    /// Data sets.
    pub data: Vec<DataSetDef>,
    /// Pieces that several users share.
    pub parts: Vec<PartDef>,
    /// The kinds of users: at least one in a sound scenario. Steps outside of any user make one without a name.
    pub users: Vec<UserDef>,
    /// What is promised of the results.
    pub promises: Vec<PromiseDef>,
    /// All comments in their order.
    pub comments: Vec<Comment>,
}

/// A remark: `# …`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comment {
    /// Without the sign and the blank behind it.
    pub text: String,
    /// From its sign on.
    pub span: Span,
}

/// How users come.
#[derive(Debug, Clone, PartialEq)]
pub struct UserLoad {
    /// The line.
    pub span: Span,
    /// By a schedule, or that many.
    pub model: UserLoadModel,
}

/// Whether users come whatever becomes of those before.
#[derive(Debug, Clone, PartialEq)]
pub enum UserLoadModel {
    /// `open 200/s poisson for 5m max 5000`: they come on their own, go through the steps once, and leave.
    Open {
        /// How many come per second.
        rate: UserArrivalRate,
        /// Evenly or at random.
        arrivals: ArrivalSpacing,
        /// The most that are there at once.
        max: Option<Spanned<u64>>,
    },
    /// `closed 500 ramp 1m for 5m`: always the same ones, who begin again when they are through.
    Closed {
        /// How many.
        users: Spanned<u64>,
        /// The time over which they come.
        ramp: Option<Spanned<Nanos>>,
        /// How long all of it takes, the ramp included.
        length: Option<Spanned<Nanos>>,
        /// How often each goes through the steps before he leaves; until the time is over unless told.
        repeat: Option<Spanned<u64>>,
    },
}

/// How many users come per second.
#[derive(Debug, Clone, PartialEq)]
pub enum UserArrivalRate {
    /// The same all the time: `open 200/s for 5m`.
    Steady {
        /// Users per second.
        rate: Spanned<PerSec>,
        /// How long.
        length: Option<Spanned<Nanos>>,
    },
    /// Steps and ramps: `open 0-200:1m, 200:5m`.
    Profile(Spanned<Profile>),
}

/// How users are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalSpacing {
    /// Evenly.
    Constant,
    /// As independent people come.
    Poisson,
}

/// An option of connections or TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingLine {
    /// The line.
    pub span: Span,
    /// The name of the option on the command line.
    pub name: Name,
    /// What it is set to; a flag has none.
    pub value: Option<Name>,
}

/// On or off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnOffLine {
    /// The line.
    pub span: Span,
    /// Whether it is on.
    pub on: bool,
}

/// How many redirects a step follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedirectLimit {
    /// The line.
    pub span: Span,
    /// None for `redirects off`.
    pub max: Option<u16>,
}

/// What a user does when a step fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnFailure {
    /// The line.
    pub span: Span,
    /// What.
    pub action: FailureAction,
}

/// Ways to go on after a failure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailureAction {
    /// The next step follows, as if nothing had happened; what was to be taken keeps its value.
    Continue,
    /// The user begins again; one of an open load, or in `setup`, leaves. What holds unless told.
    #[default]
    Restart,
    /// The user leaves, `teardown` included.
    Leave,
}

/// A variable with a value: `let greeting = "hello ${user}"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VariableDef {
    /// The line.
    pub span: Span,
    /// The variable.
    pub name: Name,
    /// Its value, made when the user comes to this line.
    pub value: Template,
}

/// A data set: `data accounts from accounts.csv unique then stop`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSetDef {
    /// The line.
    pub span: Span,
    /// How holes name it.
    pub name: Name,
    /// The file, relative to the folder of the scenario.
    pub file: Name,
    /// The columns of a file whose first line does not name them.
    pub columns: Vec<Name>,
    /// What stands between two values; a comma unless told (a tab in files ending in `.tsv`).
    pub separator: Option<char>,
    /// Who gets which row.
    pub policy: RowPolicy,
    /// What happens when there are no more rows; [`DataSetDef::at_end`] has what holds.
    pub end: Option<DataEnd>,
}

impl DataSetDef {
    /// What happens when there are no more rows.
    #[must_use]
    pub fn at_end(&self) -> DataEnd {
        self.end.unwrap_or(match self.policy {
            RowPolicy::Sequential | RowPolicy::Random => DataEnd::Wrap,
            RowPolicy::Unique => DataEnd::Stop,
            RowPolicy::PerUser => DataEnd::Error,
        })
    }
}

/// Who gets which row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RowPolicy {
    /// Each iteration the next row, all users together.
    #[default]
    Sequential,
    /// Each iteration any row.
    Random,
    /// As sequential, but no row is ever used twice.
    Unique,
    /// Each user the next row when he comes, for as long as he is there.
    PerUser,
}

/// What happens when there are no more rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataEnd {
    /// The user leaves.
    Stop,
    /// The first row follows the last one.
    Wrap,
    /// The run ends with an error.
    Error,
}

/// A piece that users have in common: `part login`, and `do login` where it goes.
#[derive(Debug, Clone, PartialEq)]
pub struct PartDef {
    /// Its first line.
    pub span: Span,
    /// What `do` says; once in a file.
    pub name: Name,
    /// What is done.
    pub body: Vec<Statement>,
}

/// A kind of user: `user buyer 30%`.
#[derive(Debug, Clone, PartialEq)]
pub struct UserDef {
    /// Its first line; for one without a name the first line of what he does.
    pub span: Span,
    /// Missing when the file has steps outside of any user.
    pub name: Option<Name>,
    /// Which share of the users they are, in percent; all the same unless told.
    pub share: Option<Spanned<f64>>,
    /// What he does when a step fails.
    pub on_failure: Option<OnFailure>,
    /// The time from one iteration to the next, at least.
    pub pace: Option<PaceDef>,
    /// Once when he comes.
    pub setup: Option<Section>,
    /// An iteration.
    pub body: Vec<Statement>,
    /// Once before he leaves.
    pub teardown: Option<Section>,
}

/// `setup` or `teardown`.
#[derive(Debug, Clone, PartialEq)]
pub struct Section {
    /// Its first line.
    pub span: Span,
    /// What is done.
    pub body: Vec<Statement>,
}

/// One thing that a user does.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// Asks.
    Step(Box<StepDef>),
    /// Several under one name.
    Transaction(Transaction),
    /// Waits, as people do.
    Think(Think),
    /// Waits for others.
    Meet(Meet),
    /// Again and again.
    Repeat(Repeat),
    /// As long as something holds.
    While(While),
    /// One way or the other.
    If(If),
    /// Now and then.
    Chance(Chance),
    /// A part.
    Do(Do),
    /// Sets a variable.
    Let(VariableDef),
}

/// A request and what is expected of its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct StepDef {
    /// Its first line.
    pub span: Span,
    /// How results call it; once in a file.
    pub name: Name,
    /// `GET`.
    pub method: Name,
    /// A path that begins with `/`, or a URL whose host is fixed.
    pub url: Template,
    /// Header fields in their order; an empty value leaves out what would be sent otherwise.
    pub headers: Vec<HeaderDef>,
    /// What is sent behind the head.
    pub body: Option<BodyDef>,
    /// What the answer must be. Without a status among it, it must be 2xx or 3xx.
    pub expects: Vec<ExpectClause>,
    /// What is kept of the answer.
    pub takes: Vec<TakeClause>,
    /// How many redirects are followed here.
    pub redirects: Option<RedirectLimit>,
    /// When the answer is given up here.
    pub timeout: Option<TimeoutLine>,
    /// What a user does when this step fails.
    pub on_failure: Option<OnFailure>,
}

/// When an answer is given up: `timeout 10s`.
#[derive(Debug, Clone, PartialEq)]
pub struct TimeoutLine {
    /// The line.
    pub span: Span,
    /// After how long.
    pub after: Spanned<Nanos>,
}

/// A header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderDef {
    /// The line.
    pub span: Span,
    /// As it is sent.
    pub name: Name,
    /// May be empty.
    pub value: Template,
}

/// What is sent behind the head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BodyDef {
    /// Its first line.
    pub span: Span,
    /// What it is.
    pub content: BodyContent,
}

/// Kinds of bodies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyContent {
    /// `body`: as it stands. Says nothing of its type.
    Text(Template),
    /// `json`: as `application/json`; what holes within its strings hold is escaped ([`Template::escaped_json`]).
    Json(Template),
    /// `body from FILE`: the bytes of a file, relative to the folder of the scenario.
    File(Name),
    /// `form`: as `application/x-www-form-urlencoded`; names and values are encoded.
    Form(Vec<FormField>),
    /// `multipart`: as `multipart/form-data`.
    Multipart(Vec<FormField>),
}

/// A field of a form; of `form` always a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormField {
    /// The line.
    pub span: Span,
    /// Its name.
    pub name: Name,
    /// Its value.
    pub value: FormFieldValue,
}

/// What a field of a form holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FormFieldValue {
    /// `title = A picture`
    Text(Template),
    /// `picture from holiday.jpg type image/jpeg`; its file name is the last part of the path.
    File {
        /// Relative to the folder of the scenario.
        path: Name,
        /// `application/octet-stream` unless told.
        media_type: Option<Name>,
    },
}

/// What an answer must be; `expect within 500ms` has nothing but a time.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpectClause {
    /// The line.
    pub span: Span,
    /// What.
    pub what: Option<ExpectedValue>,
    /// How soon the whole answer must be there.
    pub within: Option<Spanned<Nanos>>,
}

/// What is expected.
#[derive(Debug, Clone, PartialEq)]
pub enum ExpectedValue {
    /// `200, 3xx`: one of these.
    Status(Vec<StatusPattern>),
    /// Something in the answer.
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
    /// Whether a status is one of them.
    #[must_use]
    pub fn contains(self, status: u16) -> bool {
        match self {
            Self::One(one) => status == one,
            Self::Class(digit) => status / 100 == u16::from(digit),
        }
    }
}

/// A statement that holds or not: `json $.n >= 3`, `${role} == "admin"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestExpr {
    /// Where.
    pub span: Span,
    /// What is looked at.
    pub subject: TestSubject,
    /// `not` before `contains`, `matches` and `exists`.
    pub negated: bool,
    /// What is claimed of it.
    pub predicate: TestPredicate,
}

/// What a test looks at; outside of `expect` only texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestSubject {
    /// The values of all fields of that name, joined by a comma.
    Header(Name),
    /// The whole body.
    Body,
    /// What a JSON path (RFC 9535) finds first; a string without its quotes.
    Json(Name),
    /// The value of a cookie that the answer sets.
    Cookie(Name),
    /// Any text.
    Text(Template),
}

/// What is claimed. What is not there satisfies nothing but `not exists`, `not contains` and `not matches`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TestPredicate {
    /// As numbers when both are numbers, as texts otherwise; texts are neither more nor less.
    Compare(CompareOp, Template),
    /// It has this within it.
    Contains(Template),
    /// A regular expression finds something in it.
    Matches(Name),
    /// It is there; a variable, when it has a value.
    Exists,
}

/// How two values stand to each other.
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

/// Tests that hold together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionExpr {
    /// Whether one of them is enough (`or`); otherwise all must hold (`and`).
    pub any: bool,
    /// At least one.
    pub tests: Vec<TestExpr>,
}

/// A variable from an answer: `take token = json $.token or "none"`. Finding nothing fails the step, unless there is a default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakeClause {
    /// The line.
    pub span: Span,
    /// The variable.
    pub name: Name,
    /// Where it comes from.
    pub source: TakeSource,
    /// Which one, when several are found.
    pub pick: MatchPick,
    /// What it is when nothing is found.
    pub default: Option<Template>,
}

/// Where in an answer a value is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeSource {
    /// A JSON path (RFC 9535) in the body; a string without its quotes, anything else as JSON.
    Json(Name),
    /// A header field.
    Header(Name),
    /// The first group of a regular expression, or all that it matches when it has none.
    Regex(Name, SearchArea),
    /// What stands between two texts.
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
    /// Right before it.
    pub before: String,
    /// Right behind it.
    pub after: String,
    /// Where it is looked for.
    pub area: SearchArea,
}

/// Which part of an answer is searched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SearchArea {
    /// The body, when nothing is said.
    #[default]
    Body,
    /// `in headers`: the header fields, a line each.
    Headers,
}

/// Which of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MatchPick {
    /// When nothing is said.
    #[default]
    First,
    /// `last`
    Last,
    /// `any`: at random.
    Any,
    /// `nth 3`, counted from 1.
    Nth(u32),
}

/// Several steps under one name; the time that a user thinks is not part of its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Transaction {
    /// Its first line.
    pub span: Span,
    /// How results call it; no step has the same.
    pub name: Name,
    /// What belongs to it.
    pub body: Vec<Statement>,
}

/// A time that a user waits, as people do.
#[derive(Debug, Clone, PartialEq)]
pub struct Think {
    /// The line.
    pub span: Span,
    /// How long.
    pub time: WaitExpr,
}

/// The time from one beginning to the next: `pace 5s`.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceDef {
    /// The line.
    pub span: Span,
    /// At least so long.
    pub time: WaitExpr,
}

/// How long something takes, as it was written.
#[derive(Debug, Clone, PartialEq)]
pub enum WaitExpr {
    /// `2s`
    Fixed(Spanned<Nanos>),
    /// `1s..3s`: each time within is as likely as the others.
    Uniform(Spanned<Nanos>, Spanned<Nanos>),
    /// `exponential 2s`: by its mean.
    Exponential(Spanned<Nanos>),
    /// `normal 5s 1s`: by its mean and its standard deviation, never below zero.
    Normal(Spanned<Nanos>, Spanned<Nanos>),
}

/// Waits until that many users are here: `meet 100 within 2s`. Those who waited so long go on without the rest.
#[derive(Debug, Clone, PartialEq)]
pub struct Meet {
    /// The line.
    pub span: Span,
    /// How many go on together.
    pub users: Spanned<u64>,
    /// How long the first of them waits at most.
    pub within: Spanned<Nanos>,
}

/// Does its body several times: `repeat 5`, `repeat 2..5`.
#[derive(Debug, Clone, PartialEq)]
pub struct Repeat {
    /// Its first line.
    pub span: Span,
    /// The fewest times.
    pub min: Spanned<u64>,
    /// The most times, drawn evenly; missing when it is always the same.
    pub max: Option<Spanned<u64>>,
    /// The time from one round to the next, at least.
    pub pace: Option<PaceDef>,
    /// What is done.
    pub body: Vec<Statement>,
}

/// Does its body as long as a condition holds, which is looked at before each round.
#[derive(Debug, Clone, PartialEq)]
pub struct While {
    /// Its first line.
    pub span: Span,
    /// What must hold.
    pub condition: ConditionExpr,
    /// `max 20`: the most rounds.
    pub max: Option<Spanned<u64>>,
    /// The time from one round to the next, at least.
    pub pace: Option<PaceDef>,
    /// What is done.
    pub body: Vec<Statement>,
}

/// The first branch whose condition holds is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct If {
    /// `if`, then each `else if`.
    pub branches: Vec<Branch>,
    /// `else`
    pub otherwise: Option<Section>,
}

/// What is done when a condition holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// Its first line.
    pub span: Span,
    /// What must hold.
    pub condition: ConditionExpr,
    /// What is done.
    pub body: Vec<Statement>,
}

/// Does its body now and then: `chance 30%`.
#[derive(Debug, Clone, PartialEq)]
pub struct Chance {
    /// Its first line.
    pub span: Span,
    /// How often, in percent.
    pub share: Spanned<f64>,
    /// What is done.
    pub body: Vec<Statement>,
    /// `else`: what is done the other times.
    pub otherwise: Option<Section>,
}

/// Does a part: `do login`. A part may do those that stand before it in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Do {
    /// The line.
    pub span: Span,
    /// The part.
    pub name: Name,
}

/// What is promised of the results: `promise checkout p99 < 300ms, errors < 0.1%`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromiseDef {
    /// The line.
    pub span: Span,
    /// A step or a transaction; all steps together when missing.
    pub of: Option<Name>,
    /// Each as `p99 < 300ms`.
    pub terms: Vec<Name>,
}

/// A text with holes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    /// Where; for a block of lines its first line to its last.
    pub span: Span,
    /// No two texts side by side, and none that is empty.
    pub pieces: Vec<TemplatePiece>,
}

/// A piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplatePiece {
    /// Stands as it is.
    Text(String),
    /// Is filled in.
    Hole(Hole),
}

/// Something that is filled in: `${accounts.user|url}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hole {
    /// With its braces.
    pub span: Span,
    /// What.
    pub source: HoleSource,
    /// What is done to it, from left to right.
    pub filters: Vec<Filter>,
}

/// What fills a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HoleSource {
    /// What was taken or set: `${token}`.
    Variable(Name),
    /// A column of a data set: `${accounts.user}`.
    Column(Name, Name),
    /// `${"…"}`: this text, for what cannot be written otherwise.
    Text(String),
    /// `${rand 1..100000 width 6}`: a number drawn evenly, both ends included.
    Rand {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
        /// With zeros before it, that many digits.
        width: Option<u8>,
    },
    /// `${seq}`: 1, 2, 3 … for all users together.
    Seq {
        /// `from 1000`: the first one.
        from: Option<u64>,
        /// With zeros before it, that many digits.
        width: Option<u8>,
    },
    /// `${chars 12}`: that many letters and digits at random.
    Chars(u16),
    /// `${uuid}`: a random one (version 4).
    Uuid,
    /// `${now}`: the time of day.
    Now(Clock),
    /// `${user}`: the number of this user, from 1.
    UserNumber,
    /// `${iteration}`: how many times this user has begun, from 1.
    Iteration,
    /// `${round}`: the round of the innermost loop, from 1.
    Round,
    /// `${env TOKEN}`: from the environment of the program, read before the start.
    Env(Name),
}

/// How the time of day is written.
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

/// What is done to what fills a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// Percent-encoded, all but letters, digits and `-._~`.
    Url,
    /// Percent-encoded as in `application/x-www-form-urlencoded`: all but letters, digits and `*-._`, and a blank is a plus.
    Form,
    /// As it stands within the quotes of a JSON string.
    Json,
    /// Base64 with padding (RFC 4648 section 4).
    Base64,
    /// Hexadecimal, in lower case.
    Hex,
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

    /// Its holes.
    pub fn holes(&self) -> impl Iterator<Item = &Hole> {
        self.pieces.iter().filter_map(|piece| match piece {
            TemplatePiece::Hole(hole) => Some(hole),
            TemplatePiece::Text(_) => None,
        })
    }

    /// The same where holes within strings of JSON have the filter for them, unless they have one.
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
    /// The blocks within it, in their order.
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
    /// The texts that its request is made of, without header fields of the file.
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
    /// The texts that it is made of.
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
    /// All that is done, whoever does it: of parts and of users, with their sections.
    #[must_use]
    pub fn blocks(&self) -> Vec<&[Statement]> {
        let users = self.users.iter().flat_map(UserDef::blocks);
        self.parts.iter().map(|part| &part.body[..]).chain(users).collect()
    }
}

impl UserDef {
    /// What he does, in the order in which he does it.
    pub fn blocks(&self) -> impl Iterator<Item = &[Statement]> {
        let setup = self.setup.iter().map(|section| &section.body[..]);
        let teardown = self.teardown.iter().map(|section| &section.body[..]);
        setup.chain(std::iter::once(&self.body[..])).chain(teardown)
    }
}
