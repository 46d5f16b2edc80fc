//! What was read of a test plan so far, and where the reader is.

use super::{
    element::Element,
    function::{self, TextRemarks},
};
use crate::import_tree::{CookieHandling, ImportAction, ImportNote, ImportText, ImportTree};

/// Requests that many per minute, for each user or for all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Throughput {
    pub(super) per_minute: f64,
    pub(super) is_shared: bool,
}

/// What was read so far.
#[derive(Default)]
pub(super) struct JmxReader {
    pub(super) tree: ImportTree,
    /// The names from the root of the tree to where the reader is.
    pub(super) path: Vec<String>,
    /// What was noticed at this place.
    pub(super) remarks: TextRemarks,
    pub(super) cookies: CookieHandling,
    pub(super) throughput: Option<Throughput>,
    pub(super) n_groups: usize,
}

impl JmxReader {
    pub(super) fn note(&self, what: String) -> ImportNote {
        ImportNote { location: self.path.join(" / "), what }
    }

    pub(super) fn note_of(&mut self, element: &Element, what: String) -> ImportNote {
        self.path.push(element.title());
        let note = self.note(what);
        self.path.pop();
        note
    }

    /// What was noticed at this place, as notes.
    pub(super) fn take_remarks(&mut self) -> Vec<ImportNote> {
        let remarks = std::mem::take(&mut self.remarks.0);
        remarks.into_iter().map(|what| self.note(what)).collect()
    }

    pub(super) fn text(&mut self, source: &str) -> ImportText {
        function::text(source, &mut self.remarks)
    }

    pub(super) fn number(&mut self, source: &str) -> Option<u64> {
        let told = self.text(source);
        self.tree.fixed(&told)?.trim().parse().ok()
    }

    /// Remembers the rate of a thread group; of a smaller part nothing is known of how often it comes.
    pub(super) fn throttle(&mut self, throughput: Throughput) -> Result<Vec<ImportAction>, String> {
        const DEPTH_OF_GROUP: usize = 3;
        if self.path.len() > DEPTH_OF_GROUP {
            return Err("a rate can be kept for a thread group as a whole only".to_owned());
        }
        self.throughput = Some(throughput);
        Ok(Vec::new())
    }
}
