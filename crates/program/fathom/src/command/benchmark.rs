//! The options of benchmarking methods: RFC 2544 and its successors, with one test per frame size.

use clap::{Arg, ArgAction, ArgMatches, parser::ValueSource};
use fathom_engine::TestKind;
use fathom_model::{Settings, TestPlan, TrialTimes, plan::BenchmarkPlan, units::Nanos};

use super::{find_limit, measurement::TestHosts};
use fathom_run::{
    execute::METHODS,
    exit::{Exit, UserError},
};

/// The option that asks for methods.
const METHOD: &str = "method";
/// RFC 2544 section 9.1.
const SIZES_CONFORM: &[u64] = &[64, 128, 256, 512, 1024, 1280, 1518];
/// More sizes would take too long.
const SIZES_MAX: usize = 32;

/// Returns the options for the command that sends frames.
pub(super) fn arguments() -> Vec<Arg> {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Benchmarking methods")
    };
    let of = |name, value, help| option(name, value, help).requires(METHOD);
    let methods: Vec<String> = METHODS.iter().map(|method| format!("{}: {}", method.name, method.about)).collect();
    let help = format!(
        "carry these methods out: {}; rfc2544: throughput, latency, loss, back-to-back, recovery",
        methods.join("; ")
    );
    let list = |arg: Arg| arg.value_delimiter(',').action(ArgAction::Append);
    vec![
        list(option(METHOD, "METHOD,…", "")).help(help).conflicts_with_all([find_limit::OBJECTIVE, "scan"]),
        list(of(
            "sizes",
            "BYTES,…",
            "sizes of frames with their checksum, or of a datagram's payload [default: a small, a medium and a large frame; \
             with --conform the seven of RFC 2544]",
        )),
        of("max-rate", "RATE", "the highest rate that is offered [default: the line rate, or fathom's own maximum]"),
        of("min-rate", "RATE", "the lowest rate that a search goes down to [default: 100/s]"),
        list(of(
            "goal",
            "GOAL,…",
            "goals of mlrsearch: ndr, pdr, or LOSS:TRIAL:SUM:EXCEED, such as 0.5%:1s:21s:50% [default: ndr,pdr]",
        )),
        of("precision", "PERCENT", "how far apart the bounds of a search may be: 0.05% to 20% [default: 0.5%]"),
        of("conform", "", "trials, waits and repetitions of the length and number in the RFCs: hours")
            .value_name(None::<&str>)
            .action(ArgAction::SetTrue),
        of("trial", "TIME", "length of a trial: 50ms to 1h [default: 1s; with --conform 60s]"),
        of("pause", "TIME", "wait after each trial [default: 0s; with --conform 7s]"),
        of("search-time", "TIME", "longest time of a search [default: 10min; with --conform 2h]"),
        of("loss-step", "PERCENT", "how much less each load of a loss curve is: 0.5% to 50% [default: 10%]"),
        of("burst-max", "TIME", "longest burst of back-to-back: 1ms to 30s [default: 2s]"),
        of("burst-step", "FRAMES", "how finely bursts are searched [default: 8]")
            .value_parser(clap::value_parser!(u64).range(1..=1_000_000)),
        of("burst-searches", "N", "number of searches for the longest burst [default: 5; with --conform 50]")
            .value_parser(clap::value_parser!(u32).range(1..=1000)),
        of("latency-trial", "TIME", "length of a stream for latency [default: 2s; with --conform 120s]"),
        of("latency-runs", "N", "how many streams for latency [default: 3; with --conform 20]")
            .value_parser(clap::value_parser!(u32).range(1..=1000)),
        of("recovery-runs", "N", "number of overloads for recovery [default: 3; with --conform 10]")
            .value_parser(clap::value_parser!(u32).range(1..=1000)),
        of("reset-trial", "TIME", "how long frames are sent while you reset the device [default: 30s]"),
    ]
}

/// Returns the requested benchmark.
fn benchmark_plan(matches: &ArgMatches) -> Option<BenchmarkPlan> {
    let list = |name: &str| -> Vec<String> {
        let words = matches.try_get_many::<String>(name).ok().flatten().into_iter().flatten();
        words.map(|word| word.trim().to_owned()).collect()
    };
    let text = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let count = |name: &str| matches.try_get_one::<u32>(name).ok().flatten().copied();
    let methods = Some(list(METHOD)).filter(|methods| !methods.is_empty())?;
    Some(BenchmarkPlan {
        methods,
        conform: matches.get_flag("conform"),
        max_rate: text("max-rate"),
        min_rate: text("min-rate"),
        goals: list("goal"),
        precision: text("precision"),
        trial: text("trial"),
        pause: text("pause"),
        search_time: text("search-time"),
        loss_step: text("loss-step"),
        burst_max: text("burst-max"),
        burst_step: matches.try_get_one::<u64>("burst-step").ok().flatten().copied(),
        burst_searches: count("burst-searches"),
        latency_trial: text("latency-trial"),
        latency_runs: count("latency-runs"),
        recovery_runs: count("recovery-runs"),
        reset_trial: text("reset-trial"),
    })
}

/// Returns the tests of the requested benchmark, one per frame size, or `None` if no benchmark was requested.
pub(super) fn tests(
    matches: &ArgMatches,
    kind: &dyn TestKind,
    given: &Settings,
    ends: &TestHosts,
) -> Result<Option<(String, Vec<TestPlan>)>, UserError> {
    let Some(benchmark) = benchmark_plan(matches) else { return Ok(None) };
    let wrong = |what: String| UserError::new(Exit::Usage, what);
    let Some(support) = kind.methods() else {
        return Err(wrong(format!("`{}` has no benchmarking methods", kind.name())));
    };
    for (option, instead) in
        [("duration", "--trial"), ("warmup", "--pause"), ("rounds", "--burst-searches, --latency-runs")]
    {
        if matches.value_source(option) == Some(ValueSource::CommandLine) {
            return Err(
                wrong(format!("--{option} is for tests at one rate, not for --{METHOD}")).with_line("use", instead)
            );
        }
    }
    let is_given = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
    let listed: Vec<String> = matches.get_many::<String>("sizes").into_iter().flatten().cloned().collect();
    let of_frame = |size: &u64| size - support.frame_overhead.0;
    let conform: Vec<u64> = SIZES_CONFORM.iter().map(of_frame).collect();
    let usual = || if benchmark.conform { &conform[..] } else { support.sizes }.iter().map(u64::to_string).collect();
    let sizes: Vec<String> = match (listed.is_empty(), given.text("size").filter(|_| is_given("size"))) {
        (false, Some(_)) => return Err(wrong("either --size or --sizes, not both".to_owned())),
        (false, None) => listed,
        (true, Some(size)) => vec![size],
        (true, None) => usual(),
    };
    if sizes.len() > SIZES_MAX {
        return Err(wrong(format!("{} sizes are more than {SIZES_MAX}", sizes.len())));
    }
    let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
    let test = |size: &String| TestPlan {
        name: format!("{size} B"),
        to: Some(ends.to().to_owned()),
        options: given.clone().with("size", size.as_str()),
        benchmark: Some(benchmark.clone()),
        ..ends.test(kind.name(), times)
    };
    let title = benchmark.methods.join(", ");
    Ok(Some((title, sizes.iter().map(test).collect())))
}
