//! Groups lines into blocks: a line that is indented deeper belongs to the line above it. Knows no keywords except those that
//! precede a text.

use super::{
    ast::{Comment, Span},
    diagnostic::{Diagnostic, FAULTS_MAX},
};

/// The deepest nesting of blocks: deeper nesting is a mistake, and the recursion is as deep as the blocks.
const DEPTH_MAX: usize = 32;

/// A line with its block.
#[derive(Debug)]
pub(super) struct LineNode {
    /// Without indentation and trailing blanks.
    pub(super) span: Span,
    /// The lines of its block.
    pub(super) children: Vec<LineNode>,
    /// After a bare `body` or `json`: its lines unchanged, without the indentation of the block.
    pub(super) raw: Vec<Span>,
}

/// The lines of a text as blocks.
#[derive(Debug, Default)]
pub(super) struct LineBlocks {
    pub(super) nodes: Vec<LineNode>,
    /// Comments on lines of their own.
    pub(super) comments: Vec<Comment>,
    pub(super) faults: Vec<Diagnostic>,
}

/// A line of the text.
#[derive(Debug, Clone, Copy)]
struct SourceLine<'a> {
    /// Without its line end.
    text: &'a str,
    /// The offset of its beginning.
    at: usize,
    /// The number of leading blanks.
    indent: usize,
}

impl<'a> SourceLine<'a> {
    fn new(whole: &'a str, at: usize) -> Self {
        let text = whole.strip_suffix('\n').unwrap_or(whole);
        let text = text.strip_suffix('\r').unwrap_or(text);
        Self { text, at, indent: text.len() - text.trim_start_matches(' ').len() }
    }

    fn content(self) -> &'a str {
        self.text.trim()
    }

    /// Its depth; tabs are reported, and count with their usual width.
    fn depth(self) -> usize {
        /// The default width of tabs.
        const TAB: usize = 8;
        let rest = &self.text[self.indent..];
        self.indent + TAB * (rest.len() - rest.trim_start_matches('\t').len())
    }

    fn span(self) -> Span {
        let start = self.at + self.text.len() - self.text.trim_start().len();
        Span { start, end: start + self.content().len() }
    }
}

struct BlockReader<'a> {
    lines: Vec<SourceLine<'a>>,
    /// The index of the next line.
    idx: usize,
    blocks: LineBlocks,
}

/// Finds the blocks of a text.
pub(super) fn blocks(text: &str) -> LineBlocks {
    let mut at = 0;
    let lines = text.split_inclusive('\n').map(|whole| {
        let line = SourceLine::new(whole, at);
        at += whole.len();
        line
    });
    let mut reader = BlockReader { lines: lines.collect(), idx: 0, blocks: LineBlocks::default() };
    reader.refuse_control_characters();
    reader.blocks.nodes = reader.block(None, 1);
    reader.blocks
}

impl<'a> BlockReader<'a> {
    fn fault(&mut self, fault: Diagnostic) {
        if self.blocks.faults.len() < FAULTS_MAX {
            self.blocks.faults.push(fault);
        }
    }

    fn refuse_control_characters(&mut self) {
        for idx in 0..self.lines.len() {
            let line = self.lines[idx];
            if let Some((at, bad)) = line.text.char_indices().find(|(_, c)| c.is_control() && *c != '\t') {
                let span = line.at + at..line.at + at + bad.len_utf8();
                self.fault(
                    Diagnostic::error(
                        span.into(),
                        format!("a control character, {}, in the text", bad.escape_unicode()),
                    )
                    .fix("leave it out; in a text that is sent, `${\"\\r\"}` is a carriage return"),
                );
            }
        }
    }

    /// The next line with content; comments before it are kept.
    fn next_line(&mut self) -> Option<SourceLine<'a>> {
        loop {
            let line = *self.lines.get(self.idx)?;
            let content = line.content();
            if let Some(text) = content.strip_prefix('#') {
                let text = text.strip_prefix(' ').unwrap_or(text).to_owned();
                self.blocks.comments.push(Comment { text, span: line.span() });
            } else if !content.is_empty() {
                return Some(line);
            }
            self.idx += 1;
        }
    }

    /// The lines that are indented deeper than the one above them.
    fn block(&mut self, above: Option<usize>, depth: usize) -> Vec<LineNode> {
        let (mut nodes, mut expected) = (Vec::new(), None);
        while let Some(line) = self.next_line().filter(|line| above.is_none_or(|above| line.depth() > above)) {
            let expected = *expected.get_or_insert(line.depth());
            if line.text[line.indent..].starts_with('\t') {
                let fault = Diagnostic::error(line.span(), "indented with a tab");
                self.fault(fault.fix("indent with blanks, two for each level"));
            } else if line.depth() < expected || (above.is_none() && line.depth() > 0) {
                let wanted = if above.is_none() { 0 } else { expected };
                let fault = Diagnostic::error(line.span(), "indented unlike the lines next to it");
                self.fault(fault.fix(format!("put {wanted} blanks before it")));
            }
            self.idx += 1;
            let mut node = LineNode { span: line.span(), children: Vec::new(), raw: Vec::new() };
            if ["body", "json"].contains(&line.content()) {
                node.raw = self.raw(line.depth());
            } else if depth < DEPTH_MAX {
                node.children = self.block(Some(line.depth()), depth + 1);
            } else {
                self.pass_over(line.depth());
            }
            nodes.push(node);
        }
        nodes
    }

    /// Skips lines that are nested too deeply.
    fn pass_over(&mut self, above: usize) {
        let mut is_told = false;
        while let Some(line) = self.next_line().filter(|line| line.depth() > above) {
            if !is_told {
                let fault = Diagnostic::error(line.span(), format!("more than {DEPTH_MAX} blocks within each other"));
                self.fault(fault.fix("make a `part` of the inner ones"));
            }
            is_told = true;
            self.idx += 1;
        }
    }

    /// The lines of a text: all deeper lines, with the empty ones between them.
    fn raw(&mut self, above: usize) -> Vec<Span> {
        let (mut raw, mut width): (Vec<Span>, _) = (Vec::new(), None);
        let mut used = self.idx;
        for idx in self.idx..self.lines.len() {
            let line = self.lines[idx];
            if line.content().is_empty() {
                raw.push((line.at..line.at).into());
                continue;
            }
            if line.depth() <= above {
                break;
            }
            if line.indent <= above {
                let fault = Diagnostic::error(line.span(), "indented with a tab");
                self.fault(fault.fix("indent with blanks, two for each level"));
            }
            let width = *width.get_or_insert(line.indent);
            if line.indent < width && line.indent > above {
                let fault = Diagnostic::error(line.span(), "indented less than the first line of its text");
                self.fault(fault.fix(format!("put at least {width} blanks before it")));
            }
            raw.push((line.at + width.min(line.indent)..line.at + line.text.len()).into());
            used = idx + 1;
        }
        // Empty lines belong to a text only between others.
        raw.truncate(used - self.idx);
        let n_empty = raw.iter().take_while(|line: &&Span| line.start == line.end).count();
        raw.drain(..n_empty);
        self.idx = used;
        raw
    }
}
