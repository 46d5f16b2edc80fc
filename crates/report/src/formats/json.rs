//! The document itself, for programs and for later.

use std::io::{self, Write as _};

use fathom_model::Run;

use crate::Format;

/// The whole run as one indented JSON document, `fathom.run/1`.
#[derive(Debug, Clone, Copy)]
pub struct Json;

impl Format for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn extension(&self) -> &'static str {
        "json"
    }

    fn write(&self, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
        let mut out = io::BufWriter::new(out);
        serde_json::to_writer_pretty(&mut out, run)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}
