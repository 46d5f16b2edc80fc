//! A place in a request, and what both recordings have there.

use fathom_import::import_tree::ImportText;
use fathom_scenario::execution::is_secret;

/// The kind of a place in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Path,
    Query,
    Header,
    /// Of a form or of `multipart/form-data`.
    Field,
    Json,
    Body,
}

/// A place in a request that has a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) part: Part,
    /// Of the parameter, the header, the field; the path in JSON.
    pub(crate) name: String,
}

impl Place {
    /// Whether the value is made of parts that come from different places, such as the segments of a path.
    pub(crate) fn is_url(&self) -> bool {
        self.part == Part::Path || self.part == Part::Header && self.name.eq_ignore_ascii_case("referer")
    }

    /// Whether a person may have typed the value, and keeps it secret.
    pub(crate) fn is_password(&self) -> bool {
        self.is_typed() && is_secret(&self.name) && self.name.to_ascii_lowercase().contains("pass")
    }

    /// Whether the value lets somebody in: a password, or a header with one.
    pub(crate) fn is_credential(&self) -> bool {
        let is_header = |name: &str| self.name.eq_ignore_ascii_case(name);
        self.is_password() || self.part == Part::Header && (is_header("authorization") || is_header("cookie"))
    }

    /// Whether a person may have typed the value.
    pub(crate) fn is_typed(&self) -> bool {
        matches!(self.part, Part::Field | Part::Json | Part::Query)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.part {
            Part::Path => f.write_str("the path"),
            Part::Query => write!(f, "the parameter {}", self.name),
            Part::Header => write!(f, "the header {}", self.name),
            Part::Field => write!(f, "the field {}", self.name),
            Part::Json => write!(f, "{} in the JSON", self.name),
            Part::Body => f.write_str("the body"),
        }
    }
}

/// The values of one place in both recordings.
#[derive(Debug)]
pub(crate) struct ComparedValue<'a> {
    pub(crate) place: Place,
    pub(crate) one: &'a str,
    pub(crate) two: &'a str,
    /// The text directly before the value, as far as it tells which value it is.
    pub(crate) before: &'a str,
    /// Whether the values are written as they are sent, in a path, a query or a header, or are encoded later.
    pub(crate) is_raw: bool,
}

impl ComparedValue<'_> {
    /// Whether the value is sent as a part of a URL.
    pub(crate) fn is_in_url(&self) -> bool {
        self.is_raw && (self.place.is_url() || self.place.part == Part::Query)
    }
}

/// Sees each value, and may put another text in the place of the first one.
pub(crate) type Visitor<'v> = dyn FnMut(&ComparedValue<'_>) -> Option<ImportText> + 'v;
