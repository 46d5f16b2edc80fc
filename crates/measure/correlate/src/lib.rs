//! Two recordings of the same clicks become one scenario: what differs between them is taken from earlier answers.
//!
//! [`correlate`] aligns the requests ([`alignment`]), compares them value by value ([`compare`]), looks for each value that
//! differs in the earlier answers ([`search`], [`deliveries`], [`extract`]), and plans what becomes of it ([`plan`]). The importer's tree and writer
//! make the text. This crate knows no files: it is given texts.
//!
//! # Words
//!
//! - recording: what one user did, with the answers; a `RecordedStep` is a request with the redirects that it led to.
//! - chunk: a pair of values that differ, divided alike.
//! - needle, variant, occurrence: a text that is looked for; a form in which an answer may have it; where it is.
//! - `Candidate`: a way to get a value out of an answer; an `Extractor` gets the values of both recordings.
//! - `Delivery`: the answer that had the value first.

mod alignment;
mod answer;
mod chunk;
mod compare;
mod deliveries;
mod error;
mod extract;
mod generated;
mod json_place;
mod names;
mod occurrence;
mod plan;
mod result;
mod search;
mod suspect;
#[cfg(test)]
mod tests;
mod variant;

use fathom_import::{
    Assets, RecordingFilter,
    har::{RecordedStep, Recording},
};

use self::{
    alignment::{Alignment, align},
    error::REQUESTS_MAX,
    plan::plan,
    result::{Findings, result},
    suspect::suspects,
};
pub use self::{
    error::Error,
    result::{Correlation, RecordingCounts, TypedData},
};

/// At least this share of the requests must have a counterpart.
const ALIGNED_MIN: f64 = 0.5;

/// A recording to be read.
#[derive(Debug, Clone, Copy)]
pub struct RecordingText<'a> {
    /// For messages and comments.
    pub name: &'a str,
    /// HAR 1.2.
    pub text: &'a str,
}

/// What a correlation is asked for.
#[derive(Debug, Clone, Copy)]
pub struct CorrelateOptions<'a> {
    pub assets: Assets,
    /// The name of the file for what the user typed, as the scenario shall name it.
    pub data_file: &'a str,
}

/// Correlates two recordings.
///
/// # Errors
/// A recording is no HAR or has no requests; they are not of the same clicks.
pub fn correlate(
    first: RecordingText<'_>,
    second: RecordingText<'_>,
    options: CorrelateOptions<'_>,
) -> Result<Correlation, Error> {
    let mut one = read(first, options.assets)?;
    let mut two = read(second, options.assets)?;
    loop {
        let alignment = align(&one.steps, &two.steps);
        check(&one.steps, &two.steps, &alignment)?;
        let plan = plan(&one.steps, &two.steps, &alignment.pairs)?;
        if plan.splits.is_empty() {
            let suspects = suspects(&one.steps, &two.steps, &alignment.pairs)?;
            let names = [first.name, second.name];
            let findings = Findings { first: one, second: &two, alignment: &alignment, plan, suspects, names };
            return result(findings, options.data_file);
        }
        // From the last to the first, so that the places before keep their numbers.
        for (pair, exchange) in plan.splits.into_iter().rev() {
            let steps = alignment.pairs[pair];
            one.split(steps.first, exchange);
            two.split(steps.second, exchange);
        }
    }
}

fn read(recording: RecordingText<'_>, assets: Assets) -> Result<Recording, Error> {
    let unreadable = |source| Error::Unreadable { name: recording.name.to_owned(), source };
    let read = Recording::read(recording.text, &RecordingFilter { assets, ..RecordingFilter::default() })
        .map_err(unreadable)?;
    if read.steps.is_empty() {
        return Err(Error::Empty { name: recording.name.to_owned() });
    }
    if read.steps.len() > REQUESTS_MAX {
        return Err(Error::TooLong { name: recording.name.to_owned(), n: read.steps.len() });
    }
    Ok(read)
}

/// Whether enough requests have a counterpart. What a page only displays may come from a cache, and says nothing.
fn check(first: &[RecordedStep], second: &[RecordedStep], alignment: &Alignment) -> Result<(), Error> {
    let n = |steps: &[RecordedStep]| steps.iter().filter(|step| !step.is_asset).count();
    let n_aligned = alignment.pairs.iter().filter(|pair| !first[pair.first].is_asset).count();
    let (n_first, n_second) = (n(first), n(second));
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let share = n_aligned as f64 / n_first.max(n_second).max(1) as f64;
    let is_same = if n_first == 0 { !alignment.pairs.is_empty() } else { share >= ALIGNED_MIN };
    if is_same { Ok(()) } else { Err(Error::Different { n_first, n_second, n_aligned }) }
}
