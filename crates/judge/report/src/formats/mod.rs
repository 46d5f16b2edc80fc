//! The output formats, one file each, and their table.

mod csv;
mod html;
mod json;
mod ndjson;
mod text;

pub use csv::Csv;
pub use html::{Html, write_history_html};
pub use json::Json;
pub use ndjson::{Ndjson, RunEvent};
pub use text::{Colour, TextFormat, TextStyle, write_history_text};

use crate::Format;

/// All formats, the one for people first.
pub const FORMATS: &[&dyn Format] = &[&TextFormat(TextStyle::PLAIN), &Html, &Json, &Ndjson, &Csv];

/// Returns the format with this name.
#[must_use]
pub fn find_format(name: &str) -> Option<&'static dyn Format> {
    FORMATS.iter().copied().find(|format| format.name() == name)
}
