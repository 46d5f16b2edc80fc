//! Frames and bytes of every interface in the namespace: `/proc/net/dev`, written by `net/core/net-procfs.c`.
//!
//! Receive drops include frames that the device counts as missed for lack of room.

use std::{io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of};
use crate::procfs::{ProcFile, fields, lines, numbers};

/// Each counter with its column after the interface name: eight receive columns, then eight transmit columns.
const COLUMNS: [(&str, usize); 9] = [
    (host::DEV_RX_BYTES, 0),
    (host::DEV_RX_FRAMES, 1),
    (host::DEV_RX_ERRORS, 2),
    (host::DEV_RX_DROPPED, 3),
    (host::DEV_RX_FIFO, 4),
    (host::DEV_TX_BYTES, 8),
    (host::DEV_TX_FRAMES, 9),
    (host::DEV_TX_ERRORS, 10),
    (host::DEV_TX_DROPPED, 11),
];

pub(super) struct NetDev(ProcFile);

impl NetDev {
    pub(super) const fn new() -> Self {
        Self(ProcFile::new("proc/net/dev"))
    }
}

impl Source for NetDev {
    fn name(&self) -> &'static str {
        "netdev"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&COLUMNS) }
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for line in lines(self.0.read(root)?) {
            // The kernel does not allow colons in names, and writes none after the one that ends the name.
            let Some(colon) = line.iter().rposition(|byte| *byte == b':') else { continue };
            let interface = String::from_utf8_lossy(line[..colon].trim_ascii());
            let shown: [Option<u64>; 16] = numbers(fields(&line[colon + 1..]));
            for (counter, column) in COLUMNS {
                if let Some(value) = shown[column] {
                    out.value(counter, &interface, value);
                }
            }
        }
        Ok(())
    }
}
