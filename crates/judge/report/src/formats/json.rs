//! The document itself, for programs and for archives.

use std::io::{self, Write};

use fathom_model::Run;
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::Format;

/// Deeper values stay on the line of their parent. `tests[].trials[].records.HOST` is 7 deep.
///
/// The distributions and series of a record are most of a document. Indenting each of their numbers made it four times as long.
const OUTLINE_DEPTH: usize = 7;

/// Writes the whole run as one JSON document, `fathom.run/1`, indented as far as people read it.
#[derive(Debug, Clone, Copy)]
pub struct Json;

impl Format for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        run.serialize(&mut Serializer::with_formatter(&mut out, Outline::default()))?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// Indents only the outer levels of a document.
#[derive(Default)]
struct Outline {
    depth: usize,
    pretty: PrettyFormatter<'static>,
}

impl Outline {
    fn is_inline(&self) -> bool {
        self.depth > OUTLINE_DEPTH
    }
}

impl Formatter for Outline {
    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_inline() { out.write_all(b"[") } else { self.pretty.begin_array(out) }
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if self.depth < OUTLINE_DEPTH { self.pretty.end_array(out) } else { out.write_all(b"]") }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        match (self.is_inline(), first) {
            (false, _) => self.pretty.begin_array_value(out, first),
            (true, true) => Ok(()),
            (true, false) => out.write_all(b","),
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_inline() { Ok(()) } else { self.pretty.end_array_value(out) }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_inline() { out.write_all(b"{") } else { self.pretty.begin_object(out) }
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if self.depth < OUTLINE_DEPTH { self.pretty.end_object(out) } else { out.write_all(b"}") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.begin_array_value(out, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(if self.is_inline() { b":".as_slice() } else { b": " })
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.end_array_value(out)
    }
}
