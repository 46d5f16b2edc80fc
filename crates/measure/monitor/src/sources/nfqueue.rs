//! Packets that waited for the verdict of a program: `/proc/net/netfilter/nfnetlink_queue`, by `net/netfilter/nfnetlink_queue.c`.
//!
//! One line per queue: number, port of the reader, packets that wait, copy mode, copy range, drops because the queue was full, drops because
//! the message could not be delivered, packets so far, 1. Only root may read it. Without the file, in a `/proc/net` that is there, the kernel has no
//! queues.

use std::{collections::BTreeMap, fmt::Write as _, io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of, wrapping_counter::WrappingCounter};
use crate::procfs::{ProcFile, fields, lines, number};

/// A folder that every kernel with a network has.
const FOLDER: &str = "proc/net";
/// Each count with its column.
const COUNTS: [(&str, usize); 3] =
    [(host::NFQUEUE_DROPPED, 5), (host::NFQUEUE_USER_DROPPED, 6), (host::NFQUEUE_PACKETS, 7)];
/// The packets that wait now.
const WAITING_COLUMN: usize = 2;
/// A line with fewer columns was cut off.
const COLUMNS: usize = 9;

pub(super) struct NfQueue {
    file: ProcFile,
    /// The counts of each queue; a queue that is taken anew counts from zero.
    counts: BTreeMap<u16, [WrappingCounter; COUNTS.len()]>,
    /// The name of the current queue, kept to reuse its buffer.
    of: String,
}

impl NfQueue {
    pub(super) const fn new() -> Self {
        Self { file: ProcFile::new("proc/net/netfilter/nfnetlink_queue"), counts: BTreeMap::new(), of: String::new() }
    }
}

impl Source for NfQueue {
    fn name(&self) -> &'static str {
        "packet queues"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &[host::NFQUEUE_WAITING, counters_of(&COUNTS)[0], counters_of(&COUNTS)[1], counters_of(&COUNTS)[2]] }
    }

    fn is_on_every_host(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        true
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        let text = match self.file.read(root) {
            Ok(text) => text,
            Err(error) => return unread(error, root),
        };
        for line in lines(text) {
            let columns: [Option<u64>; COLUMNS] = crate::procfs::numbers(fields(line));
            let Some(queue) = fields(line).next().and_then(number::<u16>) else { continue };
            if columns[COLUMNS - 1].is_none() {
                continue;
            }
            self.of.clear();
            write!(self.of, "queue{queue}").expect("a text takes everything");
            if let Some(waiting) = columns[WAITING_COLUMN] {
                out.value(host::NFQUEUE_WAITING, &self.of, waiting);
            }
            let totals = self.counts.entry(queue).or_default();
            for ((counter, column), total) in COUNTS.into_iter().zip(totals) {
                if let Some(shown) = columns[column].and_then(|shown| u32::try_from(shown).ok()) {
                    out.value(counter, &self.of, total.follow(shown));
                }
            }
        }
        Ok(())
    }
}

/// Returns why the queues are not known, and who may list them. That the kernel has none is known.
fn unread(error: io::Error, root: &Path) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound if root.join(FOLDER).exists() => Ok(()),
        // Another program's queue drops packets of this host all the same.
        kind @ io::ErrorKind::PermissionDenied => Err(io::Error::new(
            kind,
            format!("{error}: only root, or a program with CAP_DAC_READ_SEARCH, may list queues"),
        )),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_kernel_without_queues_is_no_loss_and_a_list_that_is_refused_or_hidden_is_one() {
        let root = tempfile::tempdir().unwrap();
        let error = |kind: io::ErrorKind| io::Error::new(kind, "cannot read /x: why");
        let told = |kind| unread(error(kind), root.path()).map_err(|error| error.to_string());
        assert_eq!(told(io::ErrorKind::NotFound), Err("cannot read /x: why".to_owned()), "a masked /proc");
        fs::create_dir_all(root.path().join(FOLDER)).unwrap();
        assert_eq!(told(io::ErrorKind::NotFound), Ok(()));
        let why = "cannot read /x: why: only root, or a program with CAP_DAC_READ_SEARCH, may list queues";
        assert_eq!(told(io::ErrorKind::PermissionDenied), Err(why.to_owned()));
    }
}
