//! Users that walk through a scenario: templates, data, what is taken from answers and expected of them.

mod jar;
mod json;
mod message;
mod redact;
pub mod rows;
mod tally;
pub(crate) mod text;
mod request;
