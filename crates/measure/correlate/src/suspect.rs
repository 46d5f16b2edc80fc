//! Tokens that are the same in both recordings: both may have been made in one session.

use std::collections::HashSet;

use aho_corasick::BuildError;
use fathom_import::har::RecordedStep;

use crate::{
    alignment::AlignedSteps,
    compare::{ComparedValue, Part, Place, compare},
    generated::is_token,
    occurrence::{Finder, Needle},
};

/// A token that an answer delivered and a later request sent, the same in both recordings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) pair: usize,
    pub(crate) place: Place,
}

/// The first use of each such token.
///
/// # Errors
/// The tokens are too many for one search.
pub(crate) fn suspects(
    first: &[RecordedStep],
    second: &[RecordedStep],
    pairs: &[AlignedSteps],
) -> Result<Vec<Suspect>, BuildError> {
    let mut tokens: Vec<(Needle, Suspect)> = Vec::new();
    let mut seen = HashSet::new();
    for (pair, steps) in pairs.iter().enumerate().filter(|(_, steps)| !first[steps.first].is_asset) {
        let mut request = first[steps.first].exchanges[0].request.clone();
        let mut look = |value: &ComparedValue<'_>| {
            let is_looked_at = value.one == value.two
                && value.place.part != Part::Path
                && !value.place.name.eq_ignore_ascii_case("referer");
            for token in value.one.split([' ', ';', ',', '&', '?', '/', ':', '"']).filter(|_| is_looked_at) {
                // The name of a cookie or a parameter is no token, nor is the sign behind it.
                let token = token.split_once('=').map_or(token, |(_, rest)| if rest.is_empty() { token } else { rest });
                if is_token(token) && seen.insert(token.to_owned()) {
                    tokens.push((Needle::of(token), Suspect { pair, place: value.place.clone() }));
                }
            }
            None
        };
        compare(&mut request, &second[steps.second].exchanges[0].request, &mut look);
    }
    let (needles, suspects): (Vec<_>, Vec<_>) = tokens.into_iter().unzip();
    let finder = Finder::new(&needles)?;
    let mut delivered = vec![false; suspects.len()];
    for (pair, steps) in pairs.iter().enumerate().filter(|(_, steps)| !first[steps.first].is_asset) {
        for answer in first[steps.first].exchanges.iter().filter_map(|exchange| exchange.answer.as_ref()) {
            for occurrence in finder.find(answer.head.as_bytes()).into_iter().chain(finder.find(&answer.body)) {
                delivered[occurrence.needle] |= pair < suspects[occurrence.needle].pair;
            }
        }
    }
    Ok(suspects
        .into_iter()
        .zip(delivered)
        .filter_map(|(suspect, is_delivered)| is_delivered.then_some(suspect))
        .collect())
}
