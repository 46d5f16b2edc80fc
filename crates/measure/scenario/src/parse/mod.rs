//! Parses a text to a tree, and reports all errors at once. Reads no file but the text; names are not resolved.

mod cursor;
mod file;
mod flow;
pub(super) mod hole;
mod json;
mod step;
mod template;

use self::cursor::Cursor;
pub(super) use self::flow::COMPARISONS;
use super::{
    ast::{Comment, Name, Scenario, Span},
    blocks::{self, LineNode},
    diagnostic::{BoxedDiagnostic, Diagnostic, FAULTS_MAX, nearest},
};

/// A larger file was not written by a person.
const TEXT_MAX: usize = 1 << 20;

/// Parses a scenario.
///
/// # Errors
/// All syntax errors, in order; [`super::check`](fn@super::check) runs the checks that need more than the text.
pub fn parse(text: &str) -> Result<Scenario, Vec<Diagnostic>> {
    if text.len() > TEXT_MAX {
        let fault =
            Diagnostic::error(Span::default(), format!("{} bytes are more than a scenario may have", text.len()));
        return Err(vec![fault.fix("it has 1 MiB at most; put data into files of their own")]);
    }
    let blocks = blocks::blocks(text);
    let mut parser = Parser { text, comments: blocks.comments, faults: blocks.faults };
    let mut scenario = parser.file(&blocks.nodes);
    if parser.faults.is_empty() {
        parser.comments.sort_by_key(|comment| comment.span.start);
        scenario.comments = parser.comments;
        return Ok(scenario);
    }
    parser.faults.sort_by_key(|fault| fault.span.start);
    parser.faults.truncate(FAULTS_MAX);
    Err(parser.faults)
}

/// The state of the parser.
struct Parser<'a> {
    text: &'a str,
    comments: Vec<Comment>,
    faults: Vec<Diagnostic>,
}

/// The context of a line, which determines its valid keywords.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineContext {
    File,
    User,
    Loop,
    Block,
    Step,
}

/// Keywords of the file itself only.
const OF_FILE: &[&str] = &[
    "base",
    "open",
    "closed",
    "cookies",
    "redirects",
    "on",
    "let",
    "data",
    "promise",
    "part",
    "user",
    "setup",
    "teardown",
    "pace",
];
/// Statements of users.
const OF_BLOCK: &[&str] =
    &["step", "transaction", "think", "meet", "repeat", "while", "if", "else", "chance", "do", "let"];
/// Keywords of users besides statements.
const OF_USER: &[&str] = &["setup", "teardown", "pace", "on"];
/// Keywords of loops besides statements.
const OF_LOOP: &[&str] = &["pace"];
/// Keywords below the request of a step.
const OF_STEP: &[&str] = &["body", "json", "form", "multipart", "expect", "take", "redirects", "timeout", "on"];

impl LineContext {
    /// The valid keywords of its lines.
    fn words(self) -> impl Iterator<Item = &'static str> {
        let tables: &[&[&str]] = match self {
            Self::File => &[OF_FILE, OF_BLOCK],
            Self::User => &[OF_USER, OF_BLOCK],
            Self::Loop => &[OF_LOOP, OF_BLOCK],
            Self::Block => &[OF_BLOCK],
            Self::Step => &[OF_STEP],
        };
        tables.iter().copied().flatten().copied()
    }
}

/// Whether a word has the form of a method: GET.
fn is_method(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') && word.len() >= 2
}

/// The error of an invalid first word.
fn unknown(word: &Name, scene: LineContext) -> BoxedDiagnostic {
    let text = word.text.as_str();
    if is_method(text) {
        let fault = Diagnostic::error(word.span, "a request does not stand alone");
        return fault.fix("write `step NAME` above it, and indent the request").boxed();
    }
    let elsewhere = [
        (LineContext::Step, "it belongs to a step, below its request"),
        (LineContext::Block, "it belongs to a user, not to a step: put it before or after the step"),
        (LineContext::Loop, "it belongs to a user or to a loop"),
        (LineContext::User, "it belongs to a user"),
        (LineContext::File, "it belongs to the file: do not indent it"),
    ];
    let fits = |scene: &LineContext| scene.words().any(|known| known == text);
    if let Some((_, fix)) = elsewhere.iter().find(|(scene, _)| fits(scene)) {
        return Diagnostic::error(word.span, format!("`{text}` cannot stand here")).fix(*fix).boxed();
    }
    let words: Vec<&str> = scene.words().collect();
    let settings = file::settings().map(|option| option.name).filter(|_| scene == LineContext::File);
    let near = nearest(text, words.iter().copied().chain(settings));
    Diagnostic::error(word.span, format!("unknown keyword `{text}`"))
        .fix(format!("lines begin with {} here", words.join(", ")))
        .suggest(near)
        .boxed()
}

impl<'a> Parser<'a> {
    fn fault(&mut self, fault: Diagnostic) {
        // Errors of single lines must not crowd out the rest, nor form an endless list.
        if !self.is_full() {
            self.faults.push(fault);
        }
    }

    /// Whether there are enough errors to stop.
    fn is_full(&self) -> bool {
        self.faults.len() >= 2 * FAULTS_MAX
    }

    /// The first word of a line, and the rest after it.
    fn begin(&self, node: &LineNode) -> (Name, Cursor<'a>) {
        let mut cursor = Cursor::new(self.text, node.span);
        let word = cursor.word().unwrap_or_default();
        (word, cursor)
    }

    /// Parses a line to its end.
    fn line<T>(
        &mut self,
        node: &LineNode,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<T, BoxedDiagnostic>,
    ) -> Option<T> {
        let (_, mut cursor) = self.begin(node);
        let read = read(&mut cursor).and_then(|value| Ok((value, cursor.finish()?)));
        match read {
            Ok((value, comment)) => {
                self.comments.extend(comment);
                Some(value)
            }
            Err(fault) => {
                self.fault(*fault);
                None
            }
        }
    }

    /// Parses a line without a block.
    fn leaf<T>(
        &mut self,
        node: &LineNode,
        read: impl FnOnce(&mut Cursor<'a>) -> Result<T, BoxedDiagnostic>,
    ) -> Option<T> {
        self.childless(node);
        self.line(node, read)
    }

    fn childless(&mut self, node: &LineNode) {
        if let Some(child) = node.children.first() {
            let fault =
                Diagnostic::error(child.span, "this is indented deeper, but nothing can belong to the line above");
            self.fault(fault.fix("indent it as the line above"));
        }
    }

    /// Stores a value that may occur only once.
    fn once<T>(&mut self, slot: &mut Option<T>, value: Option<T>, span: impl Fn(&T) -> Span) {
        let Some(value) = value else { return };
        match slot {
            None => *slot = Some(value),
            Some(first) => {
                let fault =
                    Diagnostic::error(span(&value), "this is set twice").other(span(first), "it was set here first");
                self.fault(fault.fix("remove one of them"));
            }
        }
    }
}
