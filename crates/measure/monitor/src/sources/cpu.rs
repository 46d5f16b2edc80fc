//! Processor time per core and state: `/proc/stat`, see proc(5).
//!
//! The kernel may take back a little idle time while a core sleeps, so idle time may fall by a tick between two samples.

use std::{io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of};
use crate::procfs::{ProcFile, fields, lines, numbers};

/// The kernel shows ticks of `USER_HZ`, which is 100 on all remaining architectures, whatever its own timer rate.
const NANOS_PER_TICK: u64 = 1_000_000_000 / 100;

/// Each counter with the columns that it sums: user nice system idle iowait irq softirq steal.
///
/// The columns after these, guest and guest nice, are already included in user and nice.
const STATES: [(&str, &[usize]); 6] = [
    (host::CPU_USER_NS, &[0, 1]),
    (host::CPU_SYSTEM_NS, &[2]),
    (host::CPU_IDLE_NS, &[3, 4]),
    (host::CPU_IRQ_NS, &[5]),
    (host::CPU_SOFTIRQ_NS, &[6]),
    (host::CPU_STEAL_NS, &[7]),
];

pub(super) struct Cpu(ProcFile);

impl Cpu {
    pub(super) const fn new() -> Self {
        Self(ProcFile::new("proc/stat"))
    }
}

impl Source for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&STATES) }
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for line in lines(self.0.read(root)?) {
            let mut fields = fields(line);
            let Some(core) = fields.next().and_then(core) else { continue };
            let ticks: [Option<u64>; 8] = numbers(fields);
            for (counter, states) in STATES {
                let sum = states.iter().try_fold(0_u64, |sum, state| sum.checked_add(ticks[*state]?));
                if let Some(ns) = sum.and_then(|sum| sum.checked_mul(NANOS_PER_TICK)) {
                    out.value(counter, core, ns);
                }
            }
        }
        Ok(())
    }
}

/// Returns the name of a single core: `cpu3`, but not the sum of all, `cpu`.
fn core(field: &[u8]) -> Option<&str> {
    let digits = field.strip_prefix(b"cpu")?;
    let one = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    one.then(|| str::from_utf8(field).ok()).flatten()
}
