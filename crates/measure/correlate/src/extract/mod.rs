//! Finds the `take` that gets a value out of an answer: candidates from the most to the least robust, each run on both answers.

mod candidate;
mod context;
mod header;
mod html;
mod json;

use fathom_import::{har::RecordedAnswer, import_tree::Extraction, write::take_source};
use fathom_scenario::execution::TakeProbe;

use self::candidate::Candidate;
pub(crate) use self::candidate::{Extractor, Robustness, Sighting, Trust};

/// The most robust extractor. Candidates are made only as far as they are needed.
pub(crate) fn best(sighting: &Sighting<'_>) -> Option<Extractor> {
    let candidates = json::candidates(sighting)
        .into_iter()
        .chain(html::candidates(sighting))
        .chain(header::candidates(sighting))
        .chain(context::candidates(sighting));
    let mut best: Option<Candidate> = None;
    for candidate in candidates {
        let is_known_better = best.as_ref().is_some_and(|best| best.robustness <= candidate.robustness);
        if is_known_better || !sighting.trust.accepts(&candidate, sighting.answer) || !gets_both(&candidate, sighting) {
            // What follows is not more robust than text around a value.
            if is_known_better && candidate.robustness == Robustness::Context {
                break;
            }
            continue;
        }
        let is_enough = candidate.robustness < Robustness::Counted;
        best = Some(candidate);
        if is_enough {
            break;
        }
    }
    let Candidate { robustness, from, which, name } = best?;
    Some(Extractor { robustness, from, which, name, codings: sighting.variant.codings.clone() })
}

/// Whether the very line that would be written gets exactly the values of both recordings.
fn gets_both(candidate: &Candidate, sighting: &Sighting<'_>) -> bool {
    let take = Extraction {
        name: String::new(),
        from: candidate.from.clone(),
        which: candidate.which,
        default: None,
        note: None,
    };
    let Some(mut probe) = take_source(&take).as_deref().and_then(TakeProbe::parse) else { return false };
    let mut gets = |answer: &RecordedAnswer, value: &str| {
        probe.find(answer.status, answer.head.as_bytes(), &answer.body).as_deref() == Some(value.as_bytes())
    };
    gets(sighting.answer.one, &sighting.variant.one) && gets(sighting.answer.two, &sighting.variant.two)
}
