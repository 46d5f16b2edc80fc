//! How often each core ran the soft interrupts that receive and send: `/proc/softirqs`, written by `fs/proc/softirqs.c`.
//!
//! The first line names the columns, one for each core that the machine may have. The kernel counts in 32 bits.

use std::{fmt::Write as _, io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, core_columns::core_columns, counters_of, wrapping_counter::WrappingCounter};
use crate::procfs::{ProcFile, fields, lines, number};

/// Each counter with its row in the file.
const ROWS: [(&str, &[u8]); 2] = [(host::SOFTIRQ_NET_RX, b"NET_RX:"), (host::SOFTIRQ_NET_TX, b"NET_TX:")];

pub(super) struct Softirqs {
    file: ProcFile,
    /// The counters of each core, by the number of the core.
    cores: Vec<[WrappingCounter; ROWS.len()]>,
    /// The name of the current core, kept to reuse its buffer.
    of: String,
}

impl Softirqs {
    pub(super) const fn new() -> Self {
        Self { file: ProcFile::new("proc/softirqs"), cores: Vec::new(), of: String::new() }
    }
}

impl Source for Softirqs {
    fn name(&self) -> &'static str {
        "softirqs"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&ROWS) }
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = self.file.read(root)?;
        let Some(header) = lines(text).next() else { return Ok(()) };
        let n_columns = fields(header).count();
        for line in lines(text).skip(1) {
            let mut shown = fields(line);
            let Some(label) = shown.next() else { continue };
            let Some((row, (counter, _))) = ROWS.iter().enumerate().find(|(_, (_, row))| *row == label) else {
                continue;
            };
            // A row with another number of columns than the header was cut off, and its last value may be too.
            if fields(line).count() != n_columns + 1 {
                continue;
            }
            for (core, value) in core_columns(header).zip(shown) {
                let (Some(core), Some(value)) = (core, number(value)) else { continue };
                if self.cores.len() <= core {
                    self.cores.resize(core + 1, Default::default());
                }
                self.of.clear();
                write!(self.of, "cpu{core}").expect("a text takes everything");
                out.value(counter, &self.of, self.cores[core][row].follow(value));
            }
        }
        Ok(())
    }
}
