//! Which earlier answer delivered a value, and what gets it out of there.

use aho_corasick::BuildError;

use crate::{
    answer::AnswerPair,
    extract::{self, Extractor, Robustness, Sighting},
    search::{Search, Sightings, Wanted, of_answer},
};

/// More answers that have a value are not tried: the first ones are where it came from.
const ANSWERS_MAX: usize = 16;
/// More places in one answer are not tried.
const OCCURRENCES_MAX: usize = 8;

/// A value in the answer of an aligned pair.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) pair: usize,
    pub(crate) extractor: Extractor,
}

/// All answers, and where they have what is looked for.
pub(crate) struct Deliveries<'a> {
    answers: &'a [AnswerPair<'a>],
    sightings: Sightings,
}

impl<'a> Deliveries<'a> {
    /// # Errors
    /// The values are too many for one search.
    pub(crate) fn new(wanted: Wanted, answers: &'a [AnswerPair<'a>]) -> Result<Self, BuildError> {
        Ok(Self { answers, sightings: Sightings::of(wanted, answers)? })
    }

    /// The most robust extractor in the earliest answer before a pair that users see.
    pub(crate) fn seen(&self, searches: &[Search<'_>], before: usize) -> Option<Delivery> {
        let (answer, extractor) = self.best(searches, before, |answer| answer.is_seen)?;
        Some(Delivery { pair: self.answers[answer].pair, extractor })
    }

    /// The pair and the exchange after an answer that has the value, and that users do not see because they follow its redirect.
    pub(crate) fn between(&self, searches: &[Search<'_>], before: usize) -> Option<(usize, usize)> {
        let (answer, _) = self.best(searches, before, |answer| !answer.is_seen)?;
        let AnswerPair { pair, exchange, .. } = self.answers[answer];
        Some((pair, exchange + 1))
    }

    /// Whether any text of an earlier answer has the value, wherever.
    pub(crate) fn is_in_text(&self, search: &Search<'_>, before: usize) -> bool {
        self.sightings.in_text(search).iter().any(|seen| self.answers[seen.answer].pair < before)
    }

    fn best(
        &self,
        searches: &[Search<'_>],
        before: usize,
        is_asked: impl Fn(&AnswerPair<'_>) -> bool,
    ) -> Option<(usize, Extractor)> {
        let mut best: Option<(usize, Extractor)> = None;
        let answers = self.sightings.answers_with(searches).into_iter();
        let answers = answers.take_while(|idx| self.answers[*idx].pair < before);
        for idx in answers.filter(|idx| is_asked(&self.answers[*idx])).take(ANSWERS_MAX) {
            for search in searches {
                let Some(extractor) = extract::best(&self.sighting(search, idx)) else { continue };
                if best.as_ref().is_none_or(|(_, best)| extractor.robustness < best.robustness) {
                    best = Some((idx, extractor));
                }
            }
            if best.as_ref().is_some_and(|(_, best)| best.robustness <= Robustness::HtmlAttribute) {
                break;
            }
        }
        best
    }

    fn sighting<'s>(&'s self, search: &'s Search<'_>, answer: usize) -> Sighting<'s> {
        let in_text = of_answer(self.sightings.in_text(search), answer, |seen| seen.answer);
        let in_json = of_answer(self.sightings.in_json(search), answer, |seen| seen.answer);
        let of = |in_head: bool| {
            let seen = in_text.iter().filter(move |seen| seen.is_in_head == in_head);
            seen.map(|seen| &seen.occurrence).take(OCCURRENCES_MAX).collect()
        };
        let mut in_json: Vec<_> = in_json.iter().map(|seen| &seen.place).collect();
        in_json.sort_by_key(|place| place.len());
        Sighting {
            answer: &self.answers[answer],
            variant: &search.variant,
            in_head: of(true),
            in_body: of(false),
            in_json,
            trust: &search.trust,
        }
    }
}
