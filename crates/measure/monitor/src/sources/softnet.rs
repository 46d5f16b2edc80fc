//! Packets that each core processed from its backlog: `/proc/net/softnet_stat`, written by `net/core/net-procfs.c`.
//!
//! One line per online core, in columns of eight hexadecimal digits. Linux 6.1 writes 13 columns, 6.18 writes 15. The values read
//! here are in the first three, and the number of the core is in the thirteenth.

use std::{fmt::Write as _, io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, Source, core_columns::CORES_MAX, wrapping_counter::WrappingCounter};
use crate::procfs::{ProcFile, fields, lines};

/// The counters, in column order.
const COLUMNS: [&str; 3] = [host::SOFTNET_PROCESSED, host::SOFTNET_DROPPED, host::SOFTNET_SQUEEZED];
/// The column with the number of the core, since Linux 5.10.
const CORE_COLUMN: usize = 12;
/// A file with fewer columns has another format: Linux 2.6 had nine.
const COLUMNS_MIN: usize = 9;

pub(super) struct Softnet {
    file: ProcFile,
    cores: Vec<[WrappingCounter; COLUMNS.len()]>,
    /// The name of the current core, kept to reuse its buffer.
    of: String,
}

impl Softnet {
    pub(super) const fn new() -> Self {
        Self { file: ProcFile::new("proc/net/softnet_stat"), cores: Vec::new(), of: String::new() }
    }
}

impl Source for Softnet {
    fn name(&self) -> &'static str {
        "softnet"
    }

    fn counters(&self) -> &'static [&'static str] {
        &COLUMNS
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = self.file.read(root)?;
        let n_columns = lines(text).next().map_or(0, |first| fields(first).count());
        for (row, line) in lines(text).enumerate() {
            // A line with another number of columns than the first was cut off, and its core would be a guess.
            if n_columns < COLUMNS_MIN || fields(line).count() != n_columns {
                continue;
            }
            let Some(core) = core(line, row) else { continue };
            if self.cores.len() <= core {
                self.cores.resize(core + 1, Default::default());
            }
            self.of.clear();
            write!(self.of, "cpu{core}").expect("a text takes everything");
            for ((counter, total), field) in COLUMNS.iter().zip(&mut self.cores[core]).zip(fields(line)) {
                if let Some(shown) = hexadecimal(field) {
                    out.value(counter, &self.of, total.follow(shown));
                }
            }
        }
        Ok(())
    }
}

/// Returns the core of a line. Before Linux 5.10 this is the row, which is right while all cores are online.
fn core(line: &[u8], row: usize) -> Option<usize> {
    let core = match fields(line).nth(CORE_COLUMN) {
        Some(field) => usize::try_from(hexadecimal(field)?).ok()?,
        None => row,
    };
    (core < CORES_MAX).then_some(core)
}

/// Parses exactly eight digits, as the kernel writes them: with fewer the field was cut off.
fn hexadecimal(field: &[u8]) -> Option<u32> {
    let digits = field.len() == 8 && field.iter().all(u8::is_ascii_hexdigit);
    u32::from_str_radix(str::from_utf8(field).ok().filter(|_| digits)?, 16).ok()
}
