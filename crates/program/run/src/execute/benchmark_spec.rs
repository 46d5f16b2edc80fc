//! The benchmark of a plan. It is parsed and checked before anything is touched.

use fathom_engine::{MethodSupport, TestKind, search::mlr::SearchGoal};
use fathom_model::{
    Settings, TestPlan,
    plan::BenchmarkPlan,
    settings::{PACKET_RATE, Setting},
    units::{Nanos, PerSec, share_of_percent},
};
use fathom_packet::kinds::frames::{LEARNING, LEARNING_WAIT, STEP_AT, STEP_RATE};

use super::search_spec::parse_share;
use crate::exit::{Exit, UserError};

/// A benchmarking method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchmarkMethod {
    Throughput,
    MlrSearch,
    Latency,
    Loss,
    BackToBack,
    Recovery,
    Forwarding,
    Reset,
}

/// The name and description of a method on the command line and in plans.
pub struct MethodDoc {
    pub id: BenchmarkMethod,
    pub name: &'static str,
    /// The quantity it measures, and the document that defines it.
    pub about: &'static str,
}

const fn method(id: BenchmarkMethod, name: &'static str, about: &'static str) -> MethodDoc {
    MethodDoc { id, name, about }
}

/// All methods, most used first.
pub const METHODS: &[MethodDoc] = &[
    method(BenchmarkMethod::Throughput, "throughput", "the highest rate without loss (RFC 2544 26.1)"),
    method(BenchmarkMethod::MlrSearch, "mlrsearch", "NDR, PDR and other goals in one search (RFC 9971)"),
    method(BenchmarkMethod::Latency, "latency", "latency and its variation at the throughput (RFC 8219 7)"),
    method(BenchmarkMethod::Loss, "loss", "the loss at 100 %, 90 % … (RFC 2544 26.3)"),
    method(BenchmarkMethod::BackToBack, "back-to-back", "the longest burst, the buffer (RFC 9004)"),
    method(BenchmarkMethod::Recovery, "recovery", "how long frames are lost after an overload (RFC 2544 26.5)"),
    method(BenchmarkMethod::Forwarding, "forwarding", "forwarding rates under overload (RFC 2889)"),
    method(BenchmarkMethod::Reset, "reset", "duration of a reset that you start (RFC 6201)"),
];

/// The word for the tests of RFC 2544 that need no operator at the device.
const RFC2544: (&str, &[&str]) = ("rfc2544", &["throughput", "latency", "loss", "back-to-back", "recovery"]);

/// Default durations, waits and repetitions.
struct MethodLengths {
    trial: &'static str,
    pause: &'static str,
    goals: [&'static str; 2],
    burst_searches: u32,
    latency_trial: &'static str,
    latency_runs: u32,
    recovery_runs: u32,
    learning_wait: &'static str,
}

/// The option for frames or datagrams of several sizes.
const MIX: &str = "mix";

/// Long enough for a precision of a few tenths of a percent, short enough for interactive use.
const SHORT: MethodLengths = MethodLengths {
    trial: "1s",
    pause: "0s",
    goals: ["0%:1s:5s:50%", "0.5%:1s:5s:50%"],
    burst_searches: 5,
    latency_trial: "2s",
    latency_runs: 3,
    recovery_runs: 3,
    learning_wait: "50ms",
};
/// RFC 2544 sections 23, 24 and 26, RFC 9004 section 6.4, RFC 8219 section 7. RFC 9971 names no goals, so these are the goals of CSIT.
/// RFC 2544 section 26.5 leaves its "number of times" open; this number is enough for an average.
const CONFORM: MethodLengths = MethodLengths {
    trial: "60s",
    pause: "7s",
    goals: ["0%:1s:21s:50%", "0.5%:1s:21s:50%"],
    burst_searches: 50,
    latency_trial: "120s",
    latency_runs: 20,
    recovery_runs: 10,
    learning_wait: "2s",
};

/// Enough frames that losing all of them is unlikely.
const LEARNING_FRAMES: u64 = 3;

/// A width to which two searches of the same device agree.
const PRECISION: &str = "0.5%";
/// The lowest rate of a search. The throughput of a slower device is not determined.
const MIN_RATE: &str = "100/s";
/// Five times as long as a search of a quiet device takes with short trials.
const SEARCH_TIME: &str = "10min";
/// A search with one-minute trials and waits takes a quarter of an hour.
const SEARCH_TIME_CONFORM: &str = "2h";
/// The coarsest granularity that RFC 2544 section 26.3 allows.
const LOSS_STEP: &str = "10%";
/// The length that RFC 9004 section 6.3 gives for a first attempt; it allows up to 30 s.
const BURST_MAX: &str = "2s";
/// Fine enough to resolve a ring of 64 frames.
const BURST_STEP: u64 = 8;
/// RFC 9004 section 6.3.
const BURST_LONGEST: Nanos = Nanos::from_secs(30);
/// Enough time for an operator to reset a device.
const RESET_TRIAL: &str = "30s";
/// The longest trial that a plan may ask for.
const TRIAL_MAX: Nanos = Nanos::from_secs(3600);
/// The shortest trial: a shorter one ends before a device has warmed up.
const TRIAL_MIN: Nanos = Nanos::from_millis(50);

/// A parsed benchmark.
#[derive(Clone)]
pub(super) struct BenchmarkSpec {
    pub methods: Vec<&'static MethodDoc>,
    pub conform: bool,
    pub support: MethodSupport,
    /// The value of the option `size`.
    pub size_bytes: u64,
    pub max_rate: Option<f64>,
    pub min_rate: f64,
    /// The names and goals of `mlrsearch`.
    pub goals: Vec<(String, SearchGoal)>,
    pub width: f64,
    pub trial: Nanos,
    pub pause: Nanos,
    pub search_time: Nanos,
    pub loss_step: f64,
    pub burst_max: Nanos,
    pub burst_step: u64,
    pub burst_searches: u32,
    pub latency_trial: Nanos,
    pub latency_runs: u32,
    pub recovery_runs: u32,
    pub reset_trial: Nanos,
    /// The number of learning frames before a trial, and the wait after them; absent for a kind that sends none.
    learning: Option<(u64, Nanos)>,
}

fn invalid_benchmark(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks the benchmark of a test and fills in the defaults.
pub(super) fn complete(test: &mut TestPlan, kind: &dyn TestKind) -> Result<Option<BenchmarkSpec>, UserError> {
    let Some(plan) = &mut test.benchmark else { return Ok(None) };
    let Some(support) = kind.methods() else {
        return Err(invalid_benchmark(format!("`{}` has no benchmarking methods", kind.name())));
    };
    if test.search.is_some() {
        return Err(invalid_benchmark("a test is either a search or a benchmark").with_line("use", "two tests"));
    }
    refuse_set_options(&test.options)?;
    plan.methods = plan.methods.iter().flat_map(|word| expand_method(word)).map(str::to_owned).collect();
    let is_served = |word: &&String| support.only.is_empty() || support.only.contains(&word.as_str());
    if let Some(word) = plan.methods.iter().find(|word| !is_served(word)) {
        return Err(invalid_benchmark(format!("`{}` does not have the method `{word}`", kind.name()))
            .with_line("use", support.only.join(", ")));
    }
    let lengths = if plan.conform { &CONFORM } else { &SHORT };
    let text = |place: &mut Option<String>, default: &str| {
        place.get_or_insert_with(|| default.to_owned());
    };
    text(&mut plan.trial, lengths.trial);
    text(&mut plan.pause, lengths.pause);
    text(&mut plan.precision, PRECISION);
    text(&mut plan.min_rate, MIN_RATE);
    text(&mut plan.search_time, if plan.conform { SEARCH_TIME_CONFORM } else { SEARCH_TIME });
    text(&mut plan.loss_step, LOSS_STEP);
    text(&mut plan.burst_max, BURST_MAX);
    text(&mut plan.latency_trial, lengths.latency_trial);
    text(&mut plan.reset_trial, RESET_TRIAL);
    plan.burst_step.get_or_insert(BURST_STEP);
    plan.burst_searches.get_or_insert(lengths.burst_searches);
    plan.latency_runs.get_or_insert(lengths.latency_runs);
    plan.recovery_runs.get_or_insert(lengths.recovery_runs);
    let mut option = |name: &str, default: Setting| {
        if kind.options().iter().any(|known| known.name == name) {
            test.options.0.entry(name.to_owned()).or_insert(default);
        }
    };
    option(LEARNING, Setting::Count(LEARNING_FRAMES));
    option(LEARNING_WAIT, Setting::Text(lengths.learning_wait.to_owned()));
    if plan.goals.is_empty() {
        plan.goals = ["ndr", "pdr"].map(str::to_owned).to_vec();
    }
    BenchmarkSpec::of(plan, &test.options, support).map(Some)
}

/// Refuses options that the methods set themselves.
fn refuse_set_options(options: &Settings) -> Result<(), UserError> {
    let given = |name: &str| options.text(name);
    if let Some(mix) = given(MIX) {
        return Err(invalid_benchmark(format!("the methods send one size, so the mix {mix} cannot be asked for too"))
            .with_line("use", "a test of each size, such as --sizes 64,1400"));
    }
    match ["rate", PACKET_RATE, "count", STEP_AT, STEP_RATE].into_iter().find_map(|name| Some((name, given(name)?))) {
        Some((name, value)) => {
            Err(invalid_benchmark(format!("the methods set `{name}` themselves, so {value} cannot be asked for too"))
                .with_line("use", "max_rate to bound the rates"))
        }
        None => Ok(()),
    }
}

/// Expands `rfc2544` to its methods. Returns any other word as it is.
fn expand_method(word: &str) -> Vec<&str> {
    if word == RFC2544.0 { RFC2544.1.to_vec() } else { vec![word] }
}

/// Parses a goal. Returns its name and its values.
fn parse_goal(word: &str, width: f64, lengths: &MethodLengths) -> Result<(String, SearchGoal), UserError> {
    let (name, text) = match word {
        "ndr" => ("NDR".to_owned(), lengths.goals[0]),
        "pdr" => ("PDR".to_owned(), lengths.goals[1]),
        other => (other.to_owned(), other),
    };
    let bad = |why: String| {
        invalid_benchmark(format!("the goal `{word}` {why}"))
            .with_line("use", "ndr, pdr, or LOSS:TRIAL:SUM:EXCEED, such as 0.5%:1s:21s:50%")
    };
    let mut parts = text.split(':');
    let ratio = |part: &str| share_of_percent(part).ok_or_else(|| bad(format!("has no share `{part}`")));
    let span = |part: &str| part.parse::<Nanos>().map_err(|error| bad(format!("has no time `{part}`: {error}")));
    let loss_ratio = ratio(parts.next().unwrap_or_default())?;
    let final_duration = parts.next().map_or(Ok(Nanos::from_secs(1)), span)?;
    let duration_sum = parts.next().map_or(Ok(Nanos(final_duration.0.saturating_mul(5))), span)?;
    let exceed_ratio = parts.next().map_or(Ok(0.5), ratio)?;
    if parts.next().is_some() {
        return Err(bad("has more than four parts".to_owned()));
    }
    let initial_duration = final_duration.min(Nanos::from_secs(1));
    let goal = SearchGoal { final_duration, duration_sum, loss_ratio, exceed_ratio, width, initial_duration };
    goal.check().map_err(|error| bad(format!("makes no sense: {error}")))?;
    Ok((name, goal))
}

impl BenchmarkSpec {
    /// Parses a benchmark whose defaults are filled in.
    fn of(plan: &BenchmarkPlan, options: &Settings, support: MethodSupport) -> Result<Self, UserError> {
        let lengths = if plan.conform { &CONFORM } else { &SHORT };
        let methods = methods(plan)?;
        let width = parse_share(plan.precision.as_deref().unwrap_or(PRECISION), "precision", 0.0005..=0.2)?;
        let goals = plan.goals.iter().map(|word| parse_goal(word, width, lengths)).collect::<Result<Vec<_>, _>>()?;
        let span = |text: &Option<String>, name: &str, (least, most): (Nanos, Nanos)| {
            let text = text.as_deref().unwrap_or_default();
            let span: Nanos = text.parse().map_err(|error| invalid_benchmark(format!("{name}: {error}")))?;
            let is_within = least <= span && span <= most;
            if is_within {
                Ok(span)
            } else {
                Err(invalid_benchmark(format!("{name}: {text} is not between {least} and {most}")))
            }
        };
        let trial = (TRIAL_MIN, TRIAL_MAX);
        let (max_rate, min_rate) =
            (parse_rate(plan.max_rate.as_deref(), "max_rate")?, parse_rate(plan.min_rate.as_deref(), "min_rate")?);
        let min_rate = min_rate.unwrap_or(1.0);
        if max_rate.is_some_and(|max| max <= min_rate) {
            return Err(invalid_benchmark(format!("max_rate: the highest rate is not above the lowest, {min_rate}/s")));
        }
        let counted = |count: Option<u32>, name: &str| match count {
            Some(count @ 1..=1000) => Ok(count),
            other => Err(invalid_benchmark(format!("{name}: {} is not between 1 and 1000", other.unwrap_or(0)))),
        };
        Ok(Self {
            methods,
            conform: plan.conform,
            support,
            size_bytes: options.size("size").map_or(support.sizes[0], |size| size.0),
            max_rate,
            min_rate,
            goals,
            width,
            trial: span(&plan.trial, "trial", trial)?,
            pause: span(&plan.pause, "pause", (Nanos::ZERO, TRIAL_MAX))?,
            search_time: span(&plan.search_time, "search_time", (Nanos::from_secs(1), Nanos::from_secs(86_400)))?,
            loss_step: parse_share(plan.loss_step.as_deref().unwrap_or(LOSS_STEP), "loss_step", 0.005..=0.5)?,
            burst_max: span(&plan.burst_max, "burst_max", (Nanos::from_millis(1), BURST_LONGEST))?,
            burst_step: plan
                .burst_step
                .filter(|step| *step > 0)
                .ok_or_else(|| invalid_benchmark("burst_step: at least 1 frame"))?,
            burst_searches: counted(plan.burst_searches, "burst_searches")?,
            latency_trial: span(&plan.latency_trial, "latency_trial", trial)?,
            latency_runs: counted(plan.latency_runs, "latency_runs")?,
            recovery_runs: counted(plan.recovery_runs, "recovery_runs")?,
            reset_trial: span(&plan.reset_trial, "reset_trial", trial)?,
            learning: options.count(LEARNING).map(|n| (n, options.span(LEARNING_WAIT).unwrap_or(Nanos::ZERO))),
        })
    }

    /// Describes the learning phase before each trial in a sentence.
    pub(super) fn learning(&self) -> Option<String> {
        Some(match self.learning? {
            (0, _) => {
                "no learning frames are sent: the first trial includes the time in which the device learns".to_owned()
            }
            (n, wait) => format!(
                "before each trial each end sends {n} learning frames; they are not counted, and the device has {wait} to learn"
            ),
        })
    }

    /// Describes in a sentence which durations are shorter than the RFCs require.
    pub(super) fn remark(&self) -> Option<String> {
        let is_short = !self.conform || self.trial < Nanos::from_secs(60) || self.pause < Nanos::from_secs(7);
        let Self { trial, pause, .. } = self;
        is_short.then(|| {
            format!(
                "trials of {trial} with {pause} between them are shorter than the 60 s and 7 s of RFC 2544: --conform makes \
                 them, the searches and the repetitions as long as in the RFCs"
            )
        })
    }
}

fn methods(plan: &BenchmarkPlan) -> Result<Vec<&'static MethodDoc>, UserError> {
    let known = || METHODS.iter().map(|method| method.name).chain([RFC2544.0]).collect::<Vec<_>>().join(", ");
    let find = |word: &String| {
        let found = METHODS.iter().find(|method| method.name == word);
        found.ok_or_else(|| invalid_benchmark(format!("there is no method `{word}`")).with_line("use", known()))
    };
    let found: Vec<&MethodDoc> = plan.methods.iter().map(find).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(invalid_benchmark("a benchmark needs a method").with_line("use", known()));
    }
    let twice = found.iter().enumerate().find(|(at, one)| found[..*at].iter().any(|other| other.name == one.name));
    match twice {
        Some((_, method)) => Err(invalid_benchmark(format!("the method `{}` is named twice", method.name))),
        None => Ok(found),
    }
}

fn parse_rate(text: Option<&str>, name: &str) -> Result<Option<f64>, UserError> {
    let Some(text) = text else { return Ok(None) };
    let bad = |why: String| {
        invalid_benchmark(format!("{name}: {why}")).with_line("use", "a rate of frames, such as 200k or 1.5M")
    };
    let rate = text.parse::<PerSec>().map_err(|error| bad(error.to_string()))?.get();
    if rate > 0.0 { Ok(Some(rate)) } else { Err(bad(format!("{text} is not above zero"))) }
}

#[cfg(test)]
mod tests {
    use fathom_model::TrialTimes;

    use super::*;
    use crate::registry;

    #[test]
    fn goals_are_read_with_what_they_leave_out() {
        let read = |word: &str| parse_goal(word, 0.005, &SHORT);
        let (name, ndr) = read("ndr").unwrap();
        assert_eq!((name.as_str(), ndr.loss_ratio, ndr.duration_sum), ("NDR", 0.0, Nanos::from_secs(5)));
        assert_eq!(parse_goal("pdr", 0.005, &CONFORM).unwrap().1.duration_sum, Nanos::from_secs(21));
        let own = read("0.5%:2s").unwrap().1;
        assert_eq!(
            (own.loss_ratio, own.final_duration, own.duration_sum),
            (0.005, Nanos::from_secs(2), Nanos::from_secs(10))
        );
        assert!(read("0%:60s:60s:0%").unwrap().1.exceed_ratio.abs() < f64::EPSILON);
        for text in ["", "1", "100%", "0.5%:x", "0.5%:1s:500ms", "0.5%:1s:5s:100%", "0%:1s:5s:50%:1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_methods_set_themselves_cannot_be_asked_for() {
        let completed = |option: &str, value: &str| {
            let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
            let benchmark = BenchmarkPlan { methods: vec!["throughput".to_owned()], ..BenchmarkPlan::default() };
            let options = Settings::default().with(option, value);
            let plan = TestPlan::new("udp_stream", times, "a");
            let mut test = TestPlan { options, benchmark: Some(benchmark), ..plan };
            let kind = registry::kind("udp_stream").unwrap();
            complete(&mut test, kind).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(completed("size", "64"), Ok(()));
        for (option, value, named) in [("mix", "imix", "--sizes 64,1400"), ("rate", "1k", "max_rate")] {
            let error = completed(option, value).unwrap_err();
            assert!(error.contains(value) && error.contains(named), "{error}");
        }
    }

    #[test]
    fn the_word_for_rfc_2544_stands_for_its_tests_that_need_nobody() {
        for word in RFC2544.1 {
            assert!(METHODS.iter().any(|method| method.name == *word), "{word}");
        }
        assert_eq!(expand_method("rfc2544"), RFC2544.1);
        assert_eq!(expand_method("loss"), ["loss"]);
    }
}
