//! The counts of steps and transactions, by one worker.
//!
//! Counting allocates only for a new cause of failure. Only what ends in the measured part counts.

use std::collections::BTreeMap;

use fathom_model::{
    Histogram,
    steps::{Example, StepKind, StepRecord},
    units::Nanos,
};

/// The most causes per step, so that a server with invented statuses does not fill the memory.
const CAUSES_MAX: usize = 32;
/// The label of further causes.
const OTHER_CAUSES: &str = "other causes";

/// One step or transaction of one worker.
#[derive(Debug)]
pub(crate) struct StepRecorder {
    n_reached: u64,
    n_passed: u64,
    times: Histogram,
    errors: BTreeMap<String, u64>,
    examples: Vec<Example>,
}

/// Whether an example is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CauseNovelty {
    /// The cause is known, with its example.
    Known,
    /// The cause is new.
    New,
}

impl StepRecorder {
    pub(crate) fn new() -> Self {
        Self { n_reached: 0, n_passed: 0, times: Histogram::new(), errors: BTreeMap::new(), examples: Vec::new() }
    }

    pub(crate) fn passed(&mut self, time: Nanos) {
        self.n_reached += 1;
        self.n_passed += 1;
        self.times.record(time.0);
    }

    /// Counts a failure. Returns whether an example of it is wanted, whose answer may be empty.
    pub(crate) fn failed(&mut self, cause: &str, answer: &[u8]) -> CauseNovelty {
        self.n_reached += 1;
        if let Some(n) = self.errors.get_mut(cause) {
            *n += 1;
            let mut examples = self.examples.iter();
            // An answer that was not kept is replaced by the next one of its kind.
            let is_better = !answer.is_empty() && examples.any(|kept| kept.cause == cause && kept.answer.is_empty());
            return if is_better { CauseNovelty::New } else { CauseNovelty::Known };
        }
        let is_room = self.errors.len() < CAUSES_MAX;
        let cause = if is_room { cause } else { OTHER_CAUSES };
        *self.errors.entry(cause.to_owned()).or_default() += 1;
        if is_room { CauseNovelty::New } else { CauseNovelty::Known }
    }

    /// Keeps an example in place of another one of its cause.
    pub(crate) fn keep_example(&mut self, example: Example) {
        self.examples.retain(|kept| kept.cause != example.cause);
        self.examples.push(example);
    }
}

/// The name of a step, and its objectives.
#[derive(Debug, Clone)]
pub(crate) struct StepName {
    pub(crate) name: String,
    pub(crate) kind: StepKind,
    pub(crate) promises: Vec<String>,
}

/// Merges the counts of all workers; each worker has one recorder per name, in the same order.
pub(crate) fn records(names: &[StepName], workers: Vec<Vec<StepRecorder>>) -> Vec<StepRecord> {
    let blank = |step: &StepName| StepRecord {
        name: step.name.clone(),
        kind: step.kind,
        promises: step.promises.clone(),
        ..StepRecord::default()
    };
    let mut records: Vec<StepRecord> = names.iter().map(blank).collect();
    for worker in workers {
        for (record, tally) in records.iter_mut().zip(worker) {
            record.n_reached += tally.n_reached;
            record.n_passed += tally.n_passed;
            record.times.merge(&tally.times);
            for (cause, n) in tally.errors {
                *record.errors.entry(cause).or_default() += n;
            }
            for example in tally.examples {
                let same = record.examples.iter_mut().find(|known| known.cause == example.cause);
                match same {
                    Some(known) if is_better(&example, known) => *known = example,
                    Some(_) => {}
                    None => record.examples.push(example),
                }
            }
        }
    }
    records
}

/// An example with an answer is better than one without; of two such the first one stays.
fn is_better(example: &Example, known: &Example) -> bool {
    match (example.answer.is_empty(), known.answer.is_empty()) {
        (false, true) => true,
        (true, false) => false,
        _ => example.at_ns < known.at_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(cause: &str, at: u64) -> Example {
        Example { cause: cause.to_owned(), at_ns: Nanos(at), request: "r".to_owned(), answer: String::new() }
    }

    #[test]
    fn workers_are_added_and_the_first_example_of_each_cause_stays() {
        let worker = |at: u64, causes: &[&str]| {
            let mut tally = StepRecorder::new();
            tally.passed(Nanos(100));
            for cause in causes {
                if tally.failed(cause, b"") == CauseNovelty::New {
                    tally.keep_example(example(cause, at));
                }
            }
            vec![tally]
        };
        let names =
            [StepName { name: "login".to_owned(), kind: StepKind::Step, promises: vec!["p99 < 1s".to_owned()] }];
        let records = records(&names, vec![worker(9, &["a", "a", "b"]), worker(5, &["a", "c"])]);
        let [record] = records.as_slice() else { panic!("one step") };
        assert_eq!((record.n_reached, record.n_passed, record.times.count()), (7, 2, 2));
        assert_eq!(
            record.errors.iter().map(|(cause, n)| (cause.as_str(), *n)).collect::<Vec<_>>(),
            [("a", 3), ("b", 1), ("c", 1)]
        );
        let kept: Vec<_> = record.examples.iter().map(|example| (example.cause.as_str(), example.at_ns.0)).collect();
        assert_eq!(kept, [("a", 5), ("b", 9), ("c", 5)]);
        assert_eq!((record.name.as_str(), record.promises.len()), ("login", 1));
    }

    #[test]
    fn ever_new_causes_are_counted_together() {
        let mut tally = StepRecorder::new();
        for n in 0..100 {
            tally.failed(&format!("status {n}"), b"");
        }
        assert_eq!((tally.errors.len(), tally.errors[OTHER_CAUSES]), (CAUSES_MAX + 1, 100 - CAUSES_MAX as u64));
        assert_eq!(tally.failed("status 0", b""), CauseNovelty::Known);
    }

    #[test]
    fn an_example_without_an_answer_gives_way_to_one_with_it() {
        let mut tally = StepRecorder::new();
        assert_eq!(tally.failed("a", b""), CauseNovelty::New);
        tally.keep_example(example("a", 1));
        assert_eq!(
            [tally.failed("a", b""), tally.failed("a", b"HTTP/1.1 500")],
            [CauseNovelty::Known, CauseNovelty::New]
        );
        tally.keep_example(Example { answer: "HTTP/1.1 500".to_owned(), ..example("a", 2) });
        assert_eq!((tally.failed("a", b"HTTP/1.1 500"), tally.examples.len()), (CauseNovelty::Known, 1));
    }
}
