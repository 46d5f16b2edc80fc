//! The estimated duration of a plan, printed before it starts.

use fathom_model::units::{Nanos, approximate, rounded};

use super::checked_plan::{CheckedPlan, CheckedTest, PROOF_TRIALS_MAX, TestMethod};

/// The time of a trial beyond its warm-up and its measured part: connection setup and teardown, and the transfer of results.
const TRIAL_OVERHEAD: Nanos = Nanos::from_millis(200);

fn trial(test: &CheckedTest) -> Nanos {
    test.phases.longest() + TRIAL_OVERHEAD
}

fn times(span: Nanos, n: u32) -> Nanos {
    Nanos(span.0.saturating_mul(n.into()))
}

/// Returns the longest time that the interventions of a test take.
pub(super) fn proof_time_max(test: &CheckedTest) -> Nanos {
    times(trial(&test.shortened()), PROOF_TRIALS_MAX)
}

/// Returns the longest duration of a complete plan, or none if a benchmark decides it at run time.
pub(super) fn time_max(plan: &CheckedPlan) -> Option<Nanos> {
    let of_test = |test: &CheckedTest| match &test.method {
        TestMethod::Benchmark(_) => None,
        TestMethod::Search(spec) => Some(times(trial(test), spec.bounds.budget.n_trials)),
        TestMethod::Rounds => Some(times(trial(test), plan.plan().rounds)),
    };
    plan.leading_tests().map(of_test).try_fold(Nanos::ZERO, |sum, one| Some(sum + one?))
}

/// Describes the tests and rounds of a plan and its longest duration.
pub(super) fn estimate_text(plan: &CheckedPlan) -> String {
    let tests: Vec<&CheckedTest> = plan.leading_tests().collect();
    let tests_text = match tests.len() {
        1 => String::new(),
        n => format!("{n} tests, "),
    };
    let Some(longest) = time_max(plan) else {
        return format!("{tests_text}as many trials as the methods need; ctrl-C keeps the results so far");
    };
    if tests.iter().all(|test| test.kind.ends_with_its_work(&test.options)) {
        let parts = rounds_text(plan);
        return format!("{tests_text}{parts}, until done: at most {}", rounded_text(longest));
    }
    let parts = match tests.iter().find_map(|test| test.search()) {
        Some(search) => format!("up to {} trials", search.bounds.budget.n_trials),
        None => rounds(plan, &tests),
    };
    let proofs = plan.tests.iter().filter(|test| test.can_be_repeated()).map(proof_time_max);
    let proofs = proofs.fold(Nanos::ZERO, |sum, one| sum + one);
    let proofs = if plan.plan().prove {
        format!(", and then up to about {} to prove causes", rounded_text(proofs))
    } else {
        String::new()
    };
    format!("{tests_text}{parts}: up to about {}{proofs}", rounded_text(longest))
}

fn rounds_text(plan: &CheckedPlan) -> String {
    match (plan.plan().rounds, &plan.plan().until_ci) {
        (1, _) => "1 round".to_owned(),
        (n, None) => format!("{n} rounds"),
        (n, Some(_)) => format!("up to {n} rounds"),
    }
}

fn rounds(plan: &CheckedPlan, tests: &[&CheckedTest]) -> String {
    let n = rounds_text(plan);
    let alike = |of: fn(&CheckedTest) -> Nanos| {
        let first = tests.first().map(|test| of(test))?;
        tests.iter().all(|test| of(test) == first).then_some(first)
    };
    let measured = alike(|test| test.phases.measure_ns).map(|span| format!(" of {}", short(span))).unwrap_or_default();
    let warmup = alike(|test| test.phases.warmup_max_ns).filter(|span| *span > Nanos::ZERO);
    let warmup = warmup.map(|span| format!(" after a warm-up of up to {}", short(span))).unwrap_or_default();
    format!("{n}{measured}{warmup}")
}

/// Formats a span without trailing zeros.
fn short(span: Nanos) -> String {
    const SECOND: u64 = 1_000_000_000;
    if span.0.is_multiple_of(SECOND) { format!("{} s", span.0 / SECOND) } else { span.to_string() }
}

/// Formats a time, rounded up to 1 s, 5 s, a minute or an hour.
pub fn rounded_text(span: Nanos) -> String {
    let secs = rounded((approximate(span.0) / 1e9).ceil()).max(1);
    match secs {
        0..20 => format!("{secs} s"),
        20..120 => format!("{} s", secs.div_ceil(5) * 5),
        120..7200 => format!("{} min", secs.div_ceil(60)),
        _ => format!("{} h", secs.div_ceil(3600)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(text: &str) -> CheckedPlan {
        CheckedPlan::new(super::super::read_plan(text).unwrap()).unwrap()
    }

    const PLAN: &str = r#"
        schema = "fathom.plan/1"
        title = "one"
        rounds = 5
        [hosts]
        here = "self"
        [[tests]]
        name = "a"
        kind = "tcp_stream"
        from = "here"
        to = "here"
        warmup = "1s"
        duration = "2s"
    "#;

    #[test]
    fn a_plan_says_its_rounds_its_warm_up_and_how_long_all_takes_at_most() {
        assert_eq!(estimate_text(&planned(PLAN)), "5 rounds of 2 s after a warm-up of up to 1 s: up to about 16 s");
        let second = PLAN[PLAN.find("[[tests]]").unwrap()..].replace("\"a\"", "\"b\"");
        let two = format!("{PLAN}{}", second.replace("2s", "3s"));
        assert_eq!(estimate_text(&planned(&two)), "2 tests, 5 rounds after a warm-up of up to 1 s: up to about 40 s");
        let short = PLAN.replace("rounds = 5", "rounds = 1").replace("\"1s\"", "\"0s\"");
        assert_eq!(estimate_text(&planned(&short)), "1 round of 2 s: up to about 3 s");
    }

    #[test]
    fn a_test_that_ends_with_its_work_says_no_measured_time_but_the_bound() {
        let probe = PLAN.replace("rounds = 5", "rounds = 1").replace("\"1s\"", "\"0s\"").replace("\"2s\"", "\"120s\"");
        let told = "1 round, until done: at most 3 min";
        assert_eq!(estimate_text(&planned(&probe.replace("tcp_stream", "probe_mtu"))), told);
        let two = format!("{probe}{}", probe[probe.find("[[tests]]").unwrap()..].replace("\"a\"", "\"b\""));
        let one_searches = two.replacen("tcp_stream", "probe_mtu", 1);
        assert!(estimate_text(&planned(&one_searches)).contains("up to about"), "the other one takes its time");
    }

    #[test]
    fn a_plan_that_proves_causes_says_how_much_longer_that_takes_at_most() {
        let proving = PLAN.replace("rounds = 5", "rounds = 5\nprove = true");
        let told =
            "5 rounds of 2 s after a warm-up of up to 1 s: up to about 16 s, and then up to about 18 s to prove causes";
        assert_eq!(estimate_text(&planned(&proving)), told);
    }

    #[test]
    fn a_search_says_how_many_trials_there_are_at_most() {
        let search = "search = { objective = \"lost<0.1 %\", option = \"pps\", low = \"1000\" }\nduration = \"1s\"";
        let text = PLAN.replace("duration = \"2s\"", search).replace("tcp_stream", "udp_stream");
        assert_eq!(estimate_text(&planned(&text)), "up to 200 trials: up to about 8 min");
    }

    #[test]
    fn times_are_said_as_people_say_them() {
        let said = [900, 16_000, 41_000, 121_000, 7_300_000].map(|ms| rounded_text(Nanos::from_millis(ms)));
        assert_eq!(said, ["1 s", "16 s", "45 s", "3 min", "3 h"]);
    }
}
