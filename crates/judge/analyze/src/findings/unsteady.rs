//! The rate did not become steady, or did not stay steady.

use fathom_model::{
    Finding, NextStep, Severity, Side,
    units::{Nanos, percent, rounded},
};
use fathom_statistics::{drift, mean};

use super::{FindingRule, planned_event::PLANNED_EVENT};
use crate::evidence::{TestEvidence, text_evidence};

/// A smaller change from the first half to the second does not matter.
const MATTERS: f64 = 0.1;

/// Checks how the warm-ups ended, and whether most trials changed in the same direction while they were measured.
pub(crate) struct NoSteadyState;

impl FindingRule for NoSteadyState {
    fn id(&self) -> &'static str {
        "no-steady-state"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "local-shaper",
            "cpu-quota",
            "other-programs",
            "connect-delays",
            "stall",
            "acks-lost",
            "targets-lost-by-event",
            PLANNED_EVENT,
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // The rate of requests that are sent again is that of their recording.
        if seen.records(Side::Initiator).any(|record| record.replay.is_some()) {
            return Vec::new();
        }
        let n_trials = seen.trials().len();
        let finding = |severity, title: String, evidence| {
            seen.finding(self.id(), severity, "not steady", title).evidence([evidence]).next(
                seen.repeat_run_command(&longer_run_command(seen))
                    .map(|command| NextStep::new(command).expected("show whether the rate settles in a longer trial")),
            )
        };
        let proof = |counter: &str, value| text_evidence(&seen.test.from, counter, value);
        if let Some((changes, counter)) = rate_changes(seen) {
            let change = mean(&changes).unwrap_or(0.0);
            let word = if change < 0.0 { "fell" } else { "rose" };
            let title =
                format!("the rate {word} by {} while it was measured, so its mean says little", percent(change.abs()));
            // A single trial may have met a passing disturbance.
            let severity = if n_trials > 1 { Severity::Disturbs } else { Severity::Remark };
            let value = format!("{word} by {} in {} of {n_trials} trials", percent(change.abs()), changes.len());
            return vec![finding(severity, title, proof(counter, value))];
        }
        // If the engine noticed this and wrote a note, it is not reported again.
        let is_noted = seen.records(Side::Initiator).flat_map(|record| &record.notes).any(|note| note.id == self.id());
        let n_never = seen.records(Side::Initiator).filter(|record| !record.steady).count();
        if is_noted || 2 * n_never <= n_trials {
            return Vec::new();
        }
        let title = format!("the warm-up ended before the rate was steady in {n_never} of {n_trials} trials");
        vec![finding(Severity::Remark, title, proof("steady", format!("{} of {n_trials} trials", n_trials - n_never)))]
    }
}

/// Returns the changes of the rate in the trials that agree, if these are the majority, and the counter.
fn rate_changes<'a>(seen: &TestEvidence<'a>) -> Option<(Vec<f64>, &'a str)> {
    let (trials, counter) = seen.rates_over_time()?;
    let changes = trials.iter().filter_map(|rates| drift(rates).filter(|change| change.abs() >= MATTERS));
    let (falls, rises): (Vec<f64>, Vec<f64>) = changes.partition(|change| *change < 0.0);
    let agreed = if falls.len() > rises.len() { falls } else { rises };
    (2 * agreed.len() > seen.trials().len()).then_some((agreed, counter))
}

/// Returns the options for rounds of ten seconds, or four times as long as they were. `--duration` covers all rounds together.
fn longer_run_command(seen: &TestEvidence<'_>) -> String {
    let n_trials = u64::try_from(seen.trials().len()).unwrap_or(1).max(1);
    let round = Nanos(4 * seen.measured_time().0 / n_trials).as_secs_f64().ceil().max(10.0);
    format!("--warmup 2s --duration {}s", rounded(round) * u64::from(seen.run.plan.rounds.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{Note, ReplayRecord};

    #[test]
    fn a_rate_that_falls_in_every_trial_says_little() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000, 1000]);
        builder.growth_per_interval(|interval| 2000 - 60 * interval);
        let finding = builder.finding("no-steady-state").unwrap();
        assert_eq!(finding.severity, Severity::Disturbs);
        assert!(finding.title.starts_with("the rate fell by"), "{}", finding.title);
        assert!(finding.evidence[0].value.ends_with("in 3 of 3 trials"), "{}", finding.evidence[0].value);
    }

    #[test]
    fn the_rate_of_a_replay_is_that_of_its_recording() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000, 1000]);
        builder.growth_per_interval(|interval| 2000 - 60 * interval);
        for record in builder.run.tests[0].trials.iter_mut().flat_map(|trial| trial.records.values_mut()) {
            record.replay = Some(ReplayRecord::default());
        }
        assert_eq!(builder.finding("no-steady-state"), None);
    }

    #[test]
    fn a_rate_that_is_steady_is_not_told_of() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.growth_per_interval(|interval| 1000 + 7 * (interval % 3));
        assert_eq!(builder.finding("no-steady-state"), None);
    }

    #[test]
    fn a_warm_up_that_ran_out_of_time_is_a_remark_told_once() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.wire("10000000000", "1500");
        for trial in &mut builder.run.tests[0].trials {
            trial.records.get_mut("client").unwrap().steady = false;
        }
        assert_eq!(builder.finding("no-steady-state").unwrap().severity, Severity::Remark);
        let note = Note { id: "no-steady-state".to_owned(), text: "the rate went on rising".to_owned() };
        builder.run.tests[0].trials[0].records.get_mut("client").unwrap().notes.push(note);
        let run = builder.analyzed();
        let told: Vec<&str> = run.findings.iter().map(|finding| finding.title.as_str()).collect();
        assert_eq!(told, ["the rate went on rising"]);
    }
}
