//! A holder that lives as long as a value of the process that started it.

use std::process::Child;

use crate::record::LabRecord;

/// A holder that waits until its lab is opened; dropping this value ends it.
#[derive(Debug)]
pub(crate) struct BoundHolder {
    child: Child,
    pub(crate) record: LabRecord,
}

impl BoundHolder {
    /// Takes a holder that said what it holds, and whose standard input is a pipe.
    pub(crate) fn new(child: Child, record: LabRecord) -> Self {
        Self { child, record }
    }
}

impl Drop for BoundHolder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
