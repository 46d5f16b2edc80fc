//! Time that tasks of the host waited for a core, for memory or for storage: `/proc/pressure` (`Documentation/accounting/psi.rst`).
//!
//! The files exist since Linux 4.20. A kernel that was started with `psi=0` refuses to read them.

use std::{io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::procfs::{ProcFile, fields, lines, number};

const NANOS_PER_MICRO: u64 = 1_000;

/// What is waited for, and the file that says so.
struct Resource {
    of: &'static str,
    file: ProcFile,
}

pub(super) struct Pressure([Resource; 3]);

impl Pressure {
    pub(super) const fn new() -> Self {
        Self([
            Resource { of: "cpu", file: ProcFile::new("proc/pressure/cpu") },
            Resource { of: "memory", file: ProcFile::new("proc/pressure/memory") },
            Resource { of: "io", file: ProcFile::new("proc/pressure/io") },
        ])
    }
}

impl Source for Pressure {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::PRESSURE_SOME_NS, host::PRESSURE_FULL_NS]
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for resource in &mut self.0 {
            for line in lines(resource.file.read(root)?) {
                let counter = match fields(line).next() {
                    Some(b"some") => host::PRESSURE_SOME_NS,
                    // For cores of the whole host the kernel writes this line, but it means nothing.
                    Some(b"full") if resource.of != "cpu" => host::PRESSURE_FULL_NS,
                    _ => continue,
                };
                let total = fields(line).find_map(|field| number::<u64>(field.strip_prefix(b"total=")?));
                if let Some(ns) = total.and_then(|micros| micros.checked_mul(NANOS_PER_MICRO)) {
                    out.value(counter, resource.of, ns);
                }
            }
        }
        Ok(())
    }
}
