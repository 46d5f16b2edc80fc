//! Packets that netfilter queues for programs: `/proc/net/netfilter/nfnetlink_queue`, by `net/netfilter/nfnetlink_queue.c`.
//!
//! One line per queue that a program has bound: queue, port id of its socket, packets that wait, copy mode, copy range, packets dropped because
//! the queue was full, packets dropped because the socket was full, the number of the newest packet, and 1. Only root may read it. The
//! counters are of 32 bits and start again with the program.

use std::{io, path::Path, str};

use fathom_model::names::host;

use super::{CounterSink, Source};
use crate::procfs::{ProcFile, fields, lines, number};

/// The counters with their columns.
const COLUMNS: [(&str, usize); 3] =
    [(host::NFQUEUE_DROPPED, 5), (host::NFQUEUE_USER_DROPPED, 6), (host::NFQUEUE_PACKETS, 7)];
/// The columns of a whole line. One with fewer was cut off.
const N_COLUMNS: usize = 9;

pub(super) struct NfQueue(ProcFile);

impl NfQueue {
    pub(super) const fn new() -> Self {
        Self(ProcFile::new("proc/net/netfilter/nfnetlink_queue"))
    }
}

impl Source for NfQueue {
    fn name(&self) -> &'static str {
        "nfqueue"
    }

    fn counters(&self) -> &'static [&'static str] {
        &[host::NFQUEUE_DROPPED, host::NFQUEUE_USER_DROPPED, host::NFQUEUE_PACKETS]
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = match self.0.read(root) {
            Ok(text) => text,
            // Without the module, or without root, there are no queues to tell about.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for line in lines(text).filter(|line| fields(line).count() == N_COLUMNS) {
            let Some(queue) = fields(line).next().and_then(|field| str::from_utf8(field).ok()) else { continue };
            for (counter, column) in COLUMNS {
                if let Some(value) = fields(line).nth(column).and_then(number) {
                    out.value(counter, queue, value);
                }
            }
        }
        Ok(())
    }
}
