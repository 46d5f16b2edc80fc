//! Compiles texts and their values.

use super::{CompileError, Compiler, to_u16};
use crate::{
    ast::{self, Hole, Template},
    execution::text::{CompiledText, Filter, TextPiece, TextValue, ValueSource},
};

impl Compiler<'_> {
    /// The slot of a variable; all users have slots for all variables.
    pub(super) fn slot(&mut self, name: &str) -> Result<u16, CompileError> {
        let place = self.slots.iter().position(|slot| slot == name).unwrap_or_else(|| {
            self.slots.push(name.to_owned());
            self.slots.len() - 1
        });
        to_u16(place, "65,535 variables")
    }

    /// Compiles a text with its values; `also` is applied to each of them last.
    pub(super) fn text(&mut self, template: &Template, also: Option<Filter>) -> Result<CompiledText, CompileError> {
        let mut text = CompiledText::default();
        for piece in &template.pieces {
            match piece {
                ast::TemplatePiece::Text(literal) => text.push_literal(literal.as_bytes(), also),
                ast::TemplatePiece::Hole(hole) => self.hole(hole, also, &mut text)?,
            }
        }
        Ok(text)
    }

    pub(super) fn plain(&mut self, template: &Template) -> Result<CompiledText, CompileError> {
        self.text(template, None)
    }

    fn hole(&mut self, hole: &Hole, also: Option<Filter>, text: &mut CompiledText) -> Result<(), CompileError> {
        let mut filters = hole.filters.clone();
        // If a script encodes a value for a form itself, it is not encoded again.
        let is_encoded = matches!(filters.last(), Some(Filter::Url | Filter::Form));
        if let Some(also) = also.filter(|_| !is_encoded) {
            filters.push(also);
        }
        let (source, width) = match &hole.source {
            ast::HoleSource::Text(literal) => {
                text.push_filtered(literal.as_bytes(), &filters);
                return Ok(());
            }
            ast::HoleSource::Env(name) => {
                let value = self.context.policy.variable(&name.text)?;
                let value = value.ok_or_else(|| CompileError::Environment(name.text.clone()))?;
                text.push_filtered(value.as_bytes(), &filters);
                return Ok(());
            }
            ast::HoleSource::Variable(name) => (ValueSource::Slot(self.slot(&name.text)?), None),
            ast::HoleSource::Column(set, column) => (self.cell(set, column)?, None),
            ast::HoleSource::Rand { min, max, width } => {
                (ValueSource::Random { low: *min, high: *max.max(min) }, *width)
            }
            ast::HoleSource::Seq { from, width } => (ValueSource::Seq(self.counter(from.unwrap_or(1))?), *width),
            ast::HoleSource::Chars(n) => (ValueSource::Chars(*n), None),
            ast::HoleSource::Uuid => (ValueSource::Uuid, None),
            ast::HoleSource::Now(clock) => (ValueSource::Now(*clock), None),
            ast::HoleSource::UserNumber => (ValueSource::User, None),
            ast::HoleSource::Iteration => (ValueSource::Iteration, None),
            ast::HoleSource::Round => (ValueSource::Round, None),
        };
        text.0.push(TextPiece::Value(TextValue { source, width, filters: filters.into() }));
        Ok(())
    }

    fn cell(&mut self, set: &ast::Name, column: &ast::Name) -> Result<ValueSource, CompileError> {
        let unknown = || CompileError::Text {
            what: format!("there is no data set `{}` with a column `{}`", set.text, column.text),
            span: set.span,
        };
        let place = self.sets.iter().position(|known| known.name == set.text).ok_or_else(unknown)?;
        let column = self.rows[place].column(&column.text).ok_or_else(unknown)?;
        let set = to_u16(place, "65,535 data sets")?;
        self.used.insert(set);
        Ok(ValueSource::Cell { set, column: to_u16(column, "65,535 columns in a data set")? })
    }

    /// A counter that starts at this number; all holes with the same start share one.
    fn counter(&mut self, from: u64) -> Result<u16, CompileError> {
        let place = self.counters.iter().position(|begin| *begin == from).unwrap_or_else(|| {
            self.counters.push(from);
            self.counters.len() - 1
        });
        to_u16(place, "65,535 counters")
    }
}

impl CompiledText {
    pub(super) fn push_literal(&mut self, literal: &[u8], filter: Option<Filter>) {
        self.push_filtered(literal, filter.as_slice());
    }

    /// Literal text is filtered before the run; adjacent literals are merged.
    pub(super) fn push_filtered(&mut self, literal: &[u8], filters: &[Filter]) {
        let mut bytes = literal.to_vec();
        for filter in filters {
            crate::execution::text::apply(*filter, 0, &mut bytes);
        }
        match self.0.last_mut() {
            _ if bytes.is_empty() => {}
            Some(TextPiece::Literal(before)) => *before = [&**before, &bytes].concat().into(),
            _ => self.0.push(TextPiece::Literal(bytes.into())),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        for piece in other.0 {
            match piece {
                TextPiece::Literal(bytes) => self.push_filtered(&bytes, &[]),
                value @ TextPiece::Value(_) => self.0.push(value),
            }
        }
    }
}
