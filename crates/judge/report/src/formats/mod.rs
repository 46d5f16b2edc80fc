//! One file per way of writing a run, and the table of them.

mod csv;
mod html;
mod json;
mod ndjson;
mod text;

pub use csv::Csv;
pub use html::Html;
pub use json::Json;
pub use ndjson::{Ndjson, RunEvent};
pub use text::{Colour, TextFormat, TextStyle};

use crate::Format;

/// Every format, the one for people first.
pub const FORMATS: &[&dyn Format] = &[&TextFormat(TextStyle::PLAIN), &Html, &Json, &Ndjson, &Csv];

/// The format of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static dyn Format> {
    FORMATS.iter().copied().find(|format| format.name() == name)
}
