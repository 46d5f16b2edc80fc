//! Texts and what they are filled with.

use super::{CompileError, Compiler, small};
use crate::scenario::{
    tree::{self, Hole, Template},
    walk::text::{Filter, Piece, Source, Text, Value},
};

impl Compiler<'_> {
    /// The place of a variable; all users have room for all variables.
    pub(super) fn slot(&mut self, name: &str) -> Result<u16, CompileError> {
        let place = self.slots.iter().position(|slot| slot == name).unwrap_or_else(|| {
            self.slots.push(name.to_owned());
            self.slots.len() - 1
        });
        small(place, "65,535 variables")
    }

    /// A text with its values; `also` is done to each of them at the end.
    pub(super) fn text(&mut self, template: &Template, also: Option<Filter>) -> Result<Text, CompileError> {
        let mut text = Text::default();
        for piece in &template.pieces {
            match piece {
                tree::Piece::Text(literal) => text.push_literal(literal.as_bytes(), also),
                tree::Piece::Hole(hole) => self.hole(hole, also, &mut text)?,
            }
        }
        Ok(text)
    }

    pub(super) fn plain(&mut self, template: &Template) -> Result<Text, CompileError> {
        self.text(template, None)
    }

    fn hole(&mut self, hole: &Hole, also: Option<Filter>, text: &mut Text) -> Result<(), CompileError> {
        let mut filters = hole.filters.clone();
        // Whoever has encoded a value for a form by himself does not mean twice.
        let is_encoded = matches!(filters.last(), Some(Filter::Url | Filter::Form));
        if let Some(also) = also.filter(|_| !is_encoded) {
            filters.push(also);
        }
        let (source, width) = match &hole.source {
            tree::Source::Text(literal) => {
                text.push_filtered(literal.as_bytes(), &filters);
                return Ok(());
            }
            tree::Source::Env(name) => {
                let value = self.site.policy.variable(&name.text)?;
                let value = value.ok_or_else(|| CompileError::Environment(name.text.clone()))?;
                text.push_filtered(value.as_bytes(), &filters);
                return Ok(());
            }
            tree::Source::Variable(name) => (Source::Slot(self.slot(&name.text)?), None),
            tree::Source::Column(set, column) => (self.cell(set, column)?, None),
            tree::Source::Rand { min, max, width } => (Source::Random { low: *min, high: *max.max(min) }, *width),
            tree::Source::Seq { from, width } => (Source::Seq(self.counter(from.unwrap_or(1))?), *width),
            tree::Source::Chars(n) => (Source::Chars(*n), None),
            tree::Source::Uuid => (Source::Uuid, None),
            tree::Source::Now(clock) => (Source::Now(*clock), None),
            tree::Source::UserNumber => (Source::User, None),
            tree::Source::Iteration => (Source::Iteration, None),
            tree::Source::Round => (Source::Round, None),
        };
        text.0.push(Piece::Value(Value { source, width, filters: filters.into() }));
        Ok(())
    }

    fn cell(&mut self, set: &tree::Name, column: &tree::Name) -> Result<Source, CompileError> {
        let unknown = || CompileError::Text {
            what: format!("there is no data set `{}` with a column `{}`", set.text, column.text),
            span: set.span,
        };
        let place = self.sets.iter().position(|known| known.name == set.text).ok_or_else(unknown)?;
        let column = self.rows[place].column(&column.text).ok_or_else(unknown)?;
        let set = small(place, "65,535 data sets")?;
        self.used.insert(set);
        Ok(Source::Cell { set, column: small(column, "65,535 columns in a data set")? })
    }

    /// A counter from this number on; all holes that begin at the same number share one.
    fn counter(&mut self, from: u64) -> Result<u16, CompileError> {
        let place = self.counters.iter().position(|begin| *begin == from).unwrap_or_else(|| {
            self.counters.push(from);
            self.counters.len() - 1
        });
        small(place, "65,535 counters")
    }
}

impl Text {
    pub(super) fn push_literal(&mut self, literal: &[u8], filter: Option<Filter>) {
        self.push_filtered(literal, filter.as_slice());
    }

    /// What is known before the run is filtered before the run; neighbours become one.
    pub(super) fn push_filtered(&mut self, literal: &[u8], filters: &[Filter]) {
        let mut bytes = literal.to_vec();
        for filter in filters {
            crate::scenario::walk::text::apply(*filter, 0, &mut bytes);
        }
        match self.0.last_mut() {
            _ if bytes.is_empty() => {}
            Some(Piece::Literal(before)) => *before = [&**before, &bytes].concat().into(),
            _ => self.0.push(Piece::Literal(bytes.into())),
        }
    }

    pub(super) fn append(&mut self, other: Self) {
        for piece in other.0 {
            match piece {
                Piece::Literal(bytes) => self.push_filtered(&bytes, &[]),
                value @ Piece::Value(_) => self.0.push(value),
            }
        }
    }
}
