//! Parses texts with holes: `/accounts/${id}`.

use super::{
    super::{
        ast::{Hole, HoleSource, Name, Template, TemplatePiece},
        diagnostic::{BoxedDiagnostic, Diagnostic},
    },
    cursor::Cursor,
    hole::hole,
};

/// Where a text with holes ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEnd {
    /// At the end of the line.
    Line,
    /// At the end of the line, or before a comment.
    Comment,
    /// At the next blank.
    Blank,
    /// At the closing quote.
    Quote,
}

impl Cursor<'_> {
    /// A word or a text between quotes, without holes.
    pub(super) fn plain(&mut self, what: &str) -> Result<Name, BoxedDiagnostic> {
        self.skip_blanks();
        if !self.rest().starts_with('"') {
            return self.need(what);
        }
        let template = self.operand(what)?;
        match template.fixed() {
            Some(text) => Ok(Name { text: text.to_owned(), span: template.span }),
            None => Err(Diagnostic::error(template.span, format!("{what} cannot have holes")).boxed()),
        }
    }

    /// A word or a text between quotes.
    pub(super) fn operand(&mut self, what: &str) -> Result<Template, BoxedDiagnostic> {
        if self.is_done() {
            return Err(self.missing(what));
        }
        if !self.rest().starts_with('"') {
            return self.template(TextEnd::Blank);
        }
        let start = self.at;
        self.at += 1;
        let mut template = self.template(TextEnd::Quote)?;
        if !self.rest().starts_with('"') {
            return Err(Diagnostic::error((start..self.end).into(), "this text is not closed")
                .fix("put a `\"` after it; write a `\"` within it as `\\\"`")
                .boxed());
        }
        self.at += 1;
        template.span = (start..self.at).into();
        Ok(template)
    }

    /// A text with holes.
    pub(super) fn template(&mut self, ending: TextEnd) -> Result<Template, BoxedDiagnostic> {
        let start = self.at;
        let mut pieces = Vec::new();
        loop {
            let left = self.rest();
            let Some(next) = left.chars().next() else { break };
            let is_over = match ending {
                TextEnd::Line => false,
                TextEnd::Comment => self.is_at_comment(),
                TextEnd::Blank => next.is_whitespace(),
                TextEnd::Quote => next == '"',
            };
            if is_over {
                break;
            }
            if left.starts_with("$${") {
                push_text(&mut pieces, "${");
                self.at += 3;
            } else if left.starts_with("${") {
                push_hole(&mut pieces, hole(self)?);
            } else if next == '\\' && ending == TextEnd::Quote {
                self.at += 1;
                push_text(&mut pieces, self.escaped()?);
            } else {
                // Up to the next special character; at least this character.
                let length = left[next.len_utf8()..]
                    .find(|c: char| c == '$' || c == '"' || c == '\\' || c == '#' || c.is_whitespace())
                    .map_or(left.len(), |length| next.len_utf8() + length);
                push_text(&mut pieces, &left[..length]);
                self.at += length;
            }
        }
        if ending == TextEnd::Comment {
            trim_end(&mut pieces);
        }
        Ok(Template { span: (start..self.at).into(), pieces })
    }
}

/// Appends a text.
pub(super) fn push_text(pieces: &mut Vec<TemplatePiece>, text: &str) {
    match pieces.last_mut() {
        Some(TemplatePiece::Text(last)) => last.push_str(text),
        _ if text.is_empty() => {}
        _ => pieces.push(TemplatePiece::Text(text.to_owned())),
    }
}

/// Appends a hole; a hole that contains only a text becomes that text.
fn push_hole(pieces: &mut Vec<TemplatePiece>, hole: Hole) {
    match hole {
        Hole { source: HoleSource::Text(text), filters, .. } if filters.is_empty() => push_text(pieces, &text),
        hole => pieces.push(TemplatePiece::Hole(hole)),
    }
}

/// Removes the blanks before a comment.
fn trim_end(pieces: &mut Vec<TemplatePiece>) {
    if let Some(TemplatePiece::Text(text)) = pieces.last_mut() {
        text.truncate(text.trim_end().len());
        if text.is_empty() {
            pieces.pop();
        }
    }
}
