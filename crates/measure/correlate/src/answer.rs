//! The answers of both recordings to the same request.

use fathom_import::har::{RecordedAnswer, RecordedStep};

use crate::alignment::AlignedSteps;

/// Two answers to the same request.
#[derive(Debug)]
pub(crate) struct AnswerPair<'a> {
    /// The index of the aligned pair of steps.
    pub(crate) pair: usize,
    /// The index of the exchange within both steps.
    pub(crate) exchange: usize,
    /// Whether users see it: of the answers of a step that follows redirects, the last one.
    pub(crate) is_seen: bool,
    /// The URL that was asked.
    pub(crate) url: &'a str,
    pub(crate) one: &'a RecordedAnswer,
    pub(crate) two: &'a RecordedAnswer,
}

impl AnswerPair<'_> {
    /// Whether both bodies are the same, so that nothing that differs comes from them.
    pub(crate) fn has_equal_bodies(&self) -> bool {
        self.one.body == self.two.body
    }
}

/// All answers of aligned steps that both recordings have, in order.
pub(crate) fn answers<'a>(
    first: &'a [RecordedStep],
    second: &'a [RecordedStep],
    pairs: &[AlignedSteps],
) -> Vec<AnswerPair<'a>> {
    let mut all = Vec::new();
    for (pair, steps) in pairs.iter().enumerate() {
        let (one, two) = (&first[steps.first].exchanges, &second[steps.second].exchanges);
        let n = one.len();
        for exchange in 0..n {
            let is_seen = exchange + 1 == n;
            // If one recording was redirected more often, only the last answers are comparable.
            let other = if n == two.len() { two.get(exchange) } else { two.last().filter(|_| is_seen) };
            let answers = one[exchange].answer.as_ref().zip(other.and_then(|other| other.answer.as_ref()));
            if let Some((one, two)) = answers {
                let url = first[steps.first].exchanges[exchange].request.url.as_literal().unwrap_or_default();
                all.push(AnswerPair { pair, exchange, is_seen, url, one, two });
            }
        }
    }
    all
}
