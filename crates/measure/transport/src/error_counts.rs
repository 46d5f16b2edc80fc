//! Errors of a trial by cause, with the number of occurrences.

use std::collections::BTreeMap;

use fathom_model::Record;
use fathom_sys::ExhaustedResource;

/// Not a failure of the peer: the ports of an address pair are in use or in TIME-WAIT.
const NO_PORT: &str = "connect: no local port left for a pair of addresses (--ports and --source give more)";

/// Errors in the words of the kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct ErrorCounts(BTreeMap<String, u64>);

impl ErrorCounts {
    /// Counts a failed system call.
    pub(crate) fn count(&mut self, error: &fathom_sys::Error) {
        match error.shortage() {
            Some(ExhaustedResource::Address) if error.call.starts_with("connect") => self.count_text(NO_PORT),
            Some(ExhaustedResource::Descriptors | ExhaustedResource::DescriptorsOfHost) => {
                self.count_text(&format!("{}: no descriptors left", error.call));
            }
            _ => self.count_text(&format!("{}: {}", error.call, error.source.kind())),
        }
    }

    /// Counts another error.
    pub(crate) fn count_text(&mut self, cause: &str) {
        *self.0.entry(cause.to_owned()).or_default() += 1;
    }

    /// Adds the errors to a record.
    pub(crate) fn add_to(self, record: &mut Record) {
        for (cause, times) in self.0 {
            *record.errors.entry(cause).or_default() += times;
        }
    }
}
