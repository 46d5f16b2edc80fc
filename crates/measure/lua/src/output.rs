//! The output of scripts and their exit code, kept for the result.

use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes kept of each part, because a script that prints each answer would fill any memory.
const KEPT_MAX: usize = 256 * 1024;

/// When something was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputPart {
    Before,
    During,
    After,
    /// Output to standard error, at any time.
    Errors,
}

#[derive(Debug, Default)]
struct OutputTexts {
    part: usize,
    texts: [Vec<u8>; 4],
    n_left_out: [usize; 4],
    exit_code: Option<u8>,
}

impl OutputTexts {
    fn add(&mut self, part: usize, text: &[u8]) {
        let room = KEPT_MAX - self.texts[part].len();
        let (kept, rest) = text.split_at(text.len().min(room));
        self.texts[part].extend_from_slice(kept);
        self.n_left_out[part] += rest.len();
    }
}

/// The output of all states of a trial; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ScriptOutput(Arc<Mutex<OutputTexts>>);

impl ScriptOutput {
    fn with_texts<T>(&self, work: impl FnOnce(&mut OutputTexts) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Assigns further output to this part.
    pub(super) fn begin_part(&self, part: OutputPart) {
        self.with_texts(|pages| pages.part = part as usize);
    }

    pub(super) fn collect(&self, text: &[u8]) {
        self.with_texts(|pages| pages.add(pages.part, text));
    }

    /// Keeps output to standard error.
    pub(super) fn collect_error(&self, text: &[u8]) {
        self.with_texts(|pages| pages.add(OutputPart::Errors as usize, text));
    }

    /// Keeps the first exit code that a state asks for.
    pub(super) fn set_exit_code(&self, code: u8) {
        self.with_texts(|pages| pages.exit_code = pages.exit_code.or(Some(code)));
    }

    /// The exit code that a state has asked for.
    pub(super) fn exit_code(&self) -> Option<u8> {
        self.with_texts(|pages| pages.exit_code)
    }

    /// The text of a part, with the number of omitted bytes, if any.
    pub(super) fn text(&self, part: OutputPart) -> String {
        self.with_texts(|pages| {
            let part = part as usize;
            let text = String::from_utf8_lossy(&pages.texts[part]).into_owned();
            match pages.n_left_out[part] {
                0 => text,
                n => format!("{text}\n[{n} more bytes were printed and not kept]\n"),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_kept_by_its_part_up_to_a_bound() {
        let output = ScriptOutput::default();
        output.collect(b"first\n");
        output.begin_part(OutputPart::After);
        output.collect(b"last \xff");
        for _ in 0..=KEPT_MAX / 1000 {
            output.collect(&[b'x'; 1000]);
        }
        assert_eq!(
            (output.text(OutputPart::Before).as_str(), output.text(OutputPart::During).as_str()),
            ("first\n", "")
        );
        let after = output.text(OutputPart::After);
        assert!(after.starts_with("last \u{fffd}xxx"), "{}", &after[..20]);
        assert!(after.ends_with("more bytes were printed and not kept]\n") && after.len() < KEPT_MAX + 100);
    }
}
