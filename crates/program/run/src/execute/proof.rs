//! Interventions: short trials of a test as it is and with one option changed, which prove or refute a cause.
//!
//! The trials follow the rounds, in the order A B B A, so that a drift harms both sides alike. What is changed and what an effect means
//! is decided by `fathom_analyze`; here a change only has to be one that the kind of test accepts.

use std::io;

use fathom_analyze::{AnalysisContext, CHANGEABLE_OPTIONS, analyze, effect, next_intervention};
use fathom_fleet::{Error, ErrorClass};
use fathom_model::{Intervention, OptionDoc, ProofOutcome, Run, run::Completeness, units::Nanos};
use fathom_report::formats::RunEvent;

use super::{
    checked_plan::{CheckedTest, PROOF_TRIALS_MAX},
    estimate::{proof_time_max, rounded_text},
    rounds::reason,
    trial_executor::RunExecutor,
};
use crate::{hosts::Hosts, progress::ProgressLine};

/// Which trials of a series are changed: a linear drift of the path cancels out.
const SERIES: [bool; 4] = [false, true, true, false];
/// The unchanged and the changed test of an intervention.
struct TestPair {
    unchanged: CheckedTest,
    changed: CheckedTest,
}

impl TestPair {
    /// Returns the tests, or `None` if the kind has no such option or does not accept the value.
    fn of(test: &CheckedTest, tried: &Intervention) -> Option<Self> {
        let is_known = |option: &&OptionDoc| option.name == tried.option && CHANGEABLE_OPTIONS.contains(&option.name);
        let option = test.kind.options().iter().find(is_known)?;
        let options = test.options.clone().with(option.name, &tried.to).complete(test.kind.options()).ok()?;
        test.kind.check(&options).ok()?;
        let unchanged = test.shortened();
        Some(Self { changed: unchanged.with_options(options), unchanged })
    }
}

/// Returns the next intervention of a test, with its tests. `None` if there is none that the kind can make.
fn next(run: &Run, test: &CheckedTest, context: &AnalysisContext) -> Option<(Intervention, TestPair)> {
    let tried = next_intervention(run, &run.tests[test.idx], context)?;
    let pair = TestPair::of(test, &tried)?;
    Some((tried, pair))
}

impl RunExecutor<'_> {
    /// Tries to prove or refute the causes of an analyzed run, if the plan asks for it. The results of the rounds stay as they are.
    pub(super) fn prove(&mut self, run: &mut Run, context: &AnalysisContext, hosts: &mut Hosts) -> anyhow::Result<()> {
        let is_whole = run.completeness == Completeness::Complete && self.signals.received().is_none();
        if !self.plan.plan().prove || !is_whole {
            return Ok(());
        }
        let analyzed = analyzed(run, context);
        let is_to_try = |test: &&CheckedTest| test.can_be_repeated() && next(&analyzed, test, context).is_some();
        let tests: Vec<&CheckedTest> = self.plan.tests.iter().filter(is_to_try).collect();
        let longest = tests.iter().map(|test| proof_time_max(test)).fold(Nanos::ZERO, |sum, one| sum + one);
        self.progress.clear();
        if !self.options.is_quiet && self.options.shows_estimate {
            eprintln!("{}", announcement(tests.len(), longest));
        }
        let n_trials = tests.len() * usize::try_from(PROOF_TRIALS_MAX)?;
        self.progress = ProgressLine::of(n_trials, Some(longest), self.options.is_quiet);
        for test in tests {
            if !self.prove_test(run, test, context, hosts)? {
                break;
            }
        }
        Ok(())
    }

    /// Tries the causes of one test. Returns false if something ended all interventions.
    fn prove_test(
        &self,
        run: &mut Run,
        test: &CheckedTest,
        context: &AnalysisContext,
        hosts: &mut Hosts,
    ) -> anyhow::Result<bool> {
        let series = u32::try_from(SERIES.len())?;
        let mut n_left = PROOF_TRIALS_MAX;
        while n_left >= series {
            // A cause that is refuted makes way for the next one.
            let Some((mut tried, pair)) = next(&analyzed(run, context), test, context) else { break };
            let error = self.intervene(&mut tried, &pair, &mut n_left, run, hosts)?;
            let why = error.as_ref().map(|error| match error {
                Error::Interrupted => self.interruption(),
                error => reason(error),
            });
            tried.cut = why.map(|why| self.secrets.mask(&why));
            run.tests[test.idx].interventions.push(tried);
            if let Some(error) = error {
                // A change that a host refuses concerns this test alone. A host that is gone or a signal concerns all.
                return Ok(error.class() != ErrorClass::Incomplete);
            }
        }
        Ok(true)
    }

    /// Runs series of trials until the effect is known or none are left. Returns the error that ended them early.
    fn intervene(
        &self,
        tried: &mut Intervention,
        pair: &TestPair,
        n_left: &mut u32,
        run: &Run,
        hosts: &mut Hosts,
    ) -> anyhow::Result<Option<Error>> {
        let test = &pair.unchanged;
        let metric = test.kind.metrics().iter().find(|metric| metric.name == tried.metric.as_str());
        let series = u32::try_from(SERIES.len())?;
        let mut n_made = 0;
        while *n_left >= series {
            *n_left -= series;
            for is_changed in SERIES {
                let with = if is_changed { tried.change() } else { format!("without {}", tried.change()) };
                self.progress.show_search_step(&run.tests[test.idx].title, &format!("trial {}, {with}", n_made + 1));
                let side = if is_changed { &pair.changed } else { &pair.unchanged };
                let outcome = self.run_trial(side, n_made, hosts);
                self.progress.end_trial();
                n_made += 1;
                for trial in outcome.trials.into_iter().filter(|trial| !trial.records.is_empty()) {
                    if self.is_live() {
                        RunEvent::intervention(&test.name, tried, &trial, is_changed)
                            .write(&mut io::stdout().lock())?;
                    }
                    if is_changed { tried.changed.push(trial) } else { tried.unchanged.push(trial) }
                }
                if outcome.error.is_some() {
                    return Ok(outcome.error);
                }
            }
            let found = metric.and_then(|metric| effect(tried, metric, &run.hosts));
            if found.is_some_and(|found| found.outcome != ProofOutcome::Open) {
                break;
            }
        }
        Ok(None)
    }
}

fn analyzed(run: &Run, context: &AnalysisContext) -> Run {
    let mut run = run.clone();
    analyze(&mut run, context);
    run
}

/// Says what follows the rounds, and for how long.
fn announcement(n_tests: usize, longest: Nanos) -> String {
    let tests = match n_tests {
        0 => return "prove: no test has a cause that a change of its options would show".to_owned(),
        1 => "1 test is".to_owned(),
        n => format!("{n} tests are"),
    };
    format!(
        "prove: {tests} repeated with one option changed, at most {PROOF_TRIALS_MAX} short trials each: up to about {}; ctrl-C keeps the results so far",
        rounded_text(longest)
    )
}

#[cfg(test)]
mod tests {
    use fathom_model::{InterventionAim, ValueKind};

    use super::*;
    use crate::{
        execute::{CheckedPlan, read_plan},
        registry,
    };

    const PLAN: &str = r#"
        schema = "fathom.plan/1"
        title = "one"
        rounds = 2
        prove = true
        [hosts]
        here = "self"
        [[tests]]
        name = "a"
        kind = "udp_stream"
        from = "here"
        to = "here"
        warmup = "1s"
        duration = "5s"
        options = { rate = "10M", buffer = "4096" }
    "#;

    fn tried(option: &str, to: &str) -> Intervention {
        Intervention {
            cause: None,
            option: option.to_owned(),
            from: None,
            to: to.to_owned(),
            metric: "loss_ratio".to_owned(),
            effect_min: 0.5,
            aim: InterventionAim::Verdict,
            unchanged: Vec::new(),
            changed: Vec::new(),
            cut: None,
            effect: None,
        }
    }

    #[test]
    fn no_option_that_may_change_names_a_destination_or_a_file() {
        let options = registry::KINDS.iter().flat_map(|kind| kind.options());
        for option in options.filter(|option| CHANGEABLE_OPTIONS.contains(&option.name)) {
            let is_harmless = matches!(
                option.value,
                ValueKind::Count(..) | ValueKind::CountOr(..) | ValueKind::Size | ValueKind::BitRate | ValueKind::Rate
            );
            assert!(is_harmless || option.name == "congestion", "{option:?}");
        }
    }

    #[test]
    fn a_pair_of_tests_differs_in_one_option_and_is_short() {
        let plan = CheckedPlan::new(read_plan(PLAN).unwrap()).unwrap();
        let test = &plan.tests[0];
        let pair = TestPair::of(test, &tried("buffer", "4MiB")).unwrap();
        let mut options = pair.unchanged.options.clone();
        assert_eq!(options, test.options);
        options.set("buffer", "4MiB");
        assert_eq!(pair.changed.options, options);
        assert_eq!((pair.changed.phases, pair.changed.phases.measure_ns), (pair.unchanged.phases, Nanos::from_secs(1)));
        assert_eq!(test.phases.measure_ns, Nanos::from_secs(5));
        for (option, to) in [("congestion", "bbr"), ("size", "70000"), ("port", "7"), ("buffer", "large")] {
            assert!(TestPair::of(test, &tried(option, to)).is_none(), "{option} {to}");
        }
    }

    #[test]
    fn a_plan_of_which_no_test_can_be_repeated_is_refused() {
        let refused = |text: &str| CheckedPlan::new(read_plan(text).unwrap()).map(|_| ()).unwrap_err().to_string();
        let search = PLAN
            .replace("[[tests]]", "[[tests]]\nsearch = { objective = \"lost<1%\", low = \"1M\" }")
            .replace("rate = \"10M\", ", "");
        assert!(refused(&search).contains("no test of this plan can be repeated"), "{}", refused(&search));
        let bytes = PLAN.replace("udp_stream", "tcp_stream").replace("buffer = ", "bytes = ");
        assert!(refused(&bytes).contains("no test of this plan can be repeated"), "{}", refused(&bytes));
        assert!(CheckedPlan::new(read_plan(&bytes.replace("prove = true", "")).unwrap()).is_ok());
    }
}
