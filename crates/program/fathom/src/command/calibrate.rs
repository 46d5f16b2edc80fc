//! `fathom calibrate`: measures the maximum rates of fathom itself on this machine, against its own ideal responders.

use std::{collections::BTreeMap, fmt::Write as _};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_engine::{CeilingSetup, TestKind};
use fathom_model::{Plan, Settings, TestPlan, TrialTimes, units::Nanos};

use super::measurement;
use fathom_run::{
    allow::AllowList,
    execute::{self, CheckedPlan, RunOptions},
    exit::Exit,
    registry,
    store::{self, Calibration, Ceiling},
};

pub(super) fn define(command: Command) -> Command {
    command
        .arg(Arg::new("json").long("json").help("print one JSON document").action(ArgAction::SetTrue))
        .arg(Arg::new("quiet").long("quiet").help("show no progress").action(ArgAction::SetTrue))
        .after_help("The ceilings are kept for later runs on this machine with this build.")
}

/// The kinds with a ceiling that is measured on loopback, or in a lab.
fn kinds_with_ceiling(needs_lab: bool) -> impl Iterator<Item = (&'static dyn TestKind, CeilingSetup)> {
    let with_ceiling = registry::KINDS.iter().flat_map(|kind| kind.ceilings().iter().map(|setup| (*kind, *setup)));
    with_ceiling.filter(move |(_, setup)| setup.needs_lab == needs_lab)
}

/// Findings that make a ceiling unreliable, because other programs used the CPU.
const DISTURBANCES: [&str; 2] = ["other-programs", "steal"];

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let calibration = measure(Nanos::from_secs(1), matches.get_flag("quiet"))?;
    let path = calibration.save()?;
    let mut out = std::io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &calibration)?;
        std::io::Write::write_all(&mut out, b"\n")?;
    } else {
        std::io::Write::write_all(&mut out, text(&calibration).as_bytes())?;
        eprintln!("kept in {}", path.display());
    }
    Ok(Exit::Pass)
}

/// Returns true if the ceilings must be measured first. A quick evaluation does without them.
pub(super) fn is_missing(is_quick: bool) -> bool {
    let is_sound = |ceilings: &Vec<Ceiling>| ceilings.iter().all(|ceiling| !ceiling.disturbed);
    let of_kind = |kept: &Calibration, kind: &str| kept.ceilings.get(kind).is_some_and(is_sound);
    let is_whole = |kept: Calibration| kinds_with_ceiling(false).all(|(kind, _)| of_kind(&kept, kind.name()));
    !is_quick && !Calibration::load().is_some_and(is_whole)
}

/// Measures the ceilings before another measurement.
pub(super) fn calibrate_first() -> anyhow::Result<()> {
    eprintln!(
        "measuring the tool's own ceilings first, once per machine and build (again if other programs disturbed it)"
    );
    measure(Nanos::from_millis(300), false)?.save()?;
    Ok(())
}

fn measure(duration: Nanos, is_quiet: bool) -> anyhow::Result<Calibration> {
    let mut calibration = Calibration::new();
    let times = TrialTimes { warmup: Nanos::from_millis(300), duration };
    // Frames need a device that carries them; a veth of a lab is the fastest there is everywhere.
    for needs_lab in [false, true] {
        let ends = if needs_lab { measurement::hosts_in_lab("pair", None)? } else { measurement::hosts_on_loopback() };
        let test = |(kind, setup): (&dyn TestKind, CeilingSetup)| {
            let set = |settings: Settings, (name, text): &(&str, &str)| settings.with(name, *text);
            let options = setup.options.iter().fold(Settings::default(), set);
            TestPlan {
                name: [kind.name().to_owned(), work_text(&store::work(&options))].concat(),
                to: Some(ends.to().to_owned()),
                options,
                ..TestPlan::new(kind.name(), times, ends.from())
            }
        };
        let tests = kinds_with_ceiling(needs_lab).map(test).collect();
        let plan = Plan {
            rounds: 3,
            seed: 1,
            lab: ends.lab,
            hosts: ends.hosts.into_iter().collect(),
            ..Plan::new("Own ceilings", tests)
        };
        let plan = CheckedPlan::new(plan)?;
        let options = RunOptions {
            allowed: AllowList::default(),
            is_quiet,
            shows_estimate: true,
            is_live: false,
            command: "fathom calibrate".to_owned(),
            on_progress: None,
        };
        let run = execute::execute(&plan, &options)?.run;
        for test in &run.tests {
            let ceiling = Ceiling {
                concurrency: store::concurrency(&test.options),
                work: store::work(&test.options),
                reached: best_trials(test),
                unavailable: test.unavailable.clone(),
                disturbed: test.findings.iter().any(|id| DISTURBANCES.contains(&id.as_str())),
            };
            calibration.ceilings.entry(test.kind.clone()).or_default().push(ceiling);
        }
    }
    Ok(calibration)
}

/// Returns the options of a unit of work as they stand behind a name: `, per-connection 1`.
fn work_text(work: &BTreeMap<String, String>) -> String {
    work.iter().map(|(name, value)| format!(", {name} {value}")).collect::<Vec<_>>().concat()
}

/// Returns the best trial of each metric for which higher is better. A ceiling is the best result, not the average.
fn best_trials(test: &fathom_model::TestRun) -> BTreeMap<String, f64> {
    let higher = test.summaries.iter().filter(|summary| summary.metric.better == fathom_model::Better::Higher);
    let best = higher.filter_map(|summary| {
        // What did not happen at all has no ceiling, such as new connections of a test that keeps its own.
        let best = summary.trials.iter().copied().reduce(f64::max).filter(|best| *best > 0.0)?;
        Some((summary.metric.name.to_string(), best))
    });
    best.collect()
}

fn text(calibration: &Calibration) -> String {
    let metrics = registry::metrics();
    let mut text = format!("own ceilings of {}\n\n", calibration.machine);
    let each = calibration.ceilings.iter().flat_map(|(kind, ceilings)| ceilings.iter().map(move |one| (kind, one)));
    // Writing to a String cannot fail.
    for (kind, ceiling) in each {
        let work = work_text(&ceiling.work);
        if let Some(why) = &ceiling.unavailable {
            let _ = writeln!(text, "  {kind:<14} {:<44} not measured: {why}", work.trim_start_matches(", "));
        }
        for metric in metrics.get(kind).into_iter().flatten() {
            if let Some(most) = ceiling.reached.get(metric.name.as_ref()) {
                let mark = if ceiling.disturbed { "   disturbed, not believed" } else { "" };
                let title = [metric.title.as_ref(), &work].concat();
                let _ = writeln!(text, "  {kind:<14} {title:<44} {}{mark}", metric.show(*most));
            }
        }
    }
    if calibration.ceilings.values().flatten().any(|ceiling| ceiling.disturbed) {
        text.push_str(
            "\nOther programs used the processors during the calibration: calibrate again when they are idle.\n",
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ceiling: Ceiling) -> Calibration {
        let ceilings = BTreeMap::from([("http_closed".to_owned(), vec![ceiling])]);
        Calibration { machine: "a machine".to_owned(), ceilings, ..Calibration::default() }
    }

    fn reached(disturbed: bool) -> Ceiling {
        let reached = BTreeMap::from([("requests_per_sec".to_owned(), 66_600.0)]);
        Ceiling { concurrency: 32, reached, disturbed, ..Ceiling::default() }
    }

    fn connections(n: u64) -> Settings {
        Settings::default().with("connections", n.to_string())
    }

    #[test]
    fn a_ceiling_that_others_disturbed_is_marked_and_no_test_is_compared_with_it() {
        let sound = with(reached(false));
        assert!(!text(&sound).contains("disturbed"));
        assert!(sound.ceiling("http_closed", &connections(32)).is_some());
        assert!(sound.ceiling("http_closed", &connections(8)).is_none());
        let disturbed = with(reached(true));
        let told = text(&disturbed);
        assert!(told.contains("66.6 k req/s   disturbed, not believed") && told.contains("calibrate again"), "{told}");
        assert_eq!(disturbed.ceiling("http_closed", &connections(32)), None);
    }

    #[test]
    fn a_connection_for_each_request_is_no_ceiling_of_connections_that_stay() {
        let of_new = Ceiling { work: [("per-connection".to_owned(), "1".to_owned())].into(), ..reached(false) };
        let calibration = with(of_new);
        assert_eq!(calibration.ceiling("http_closed", &connections(32)), None);
        assert!(calibration.ceiling("http_closed", &connections(32).with("per-connection", "1")).is_some());
        assert!(text(&calibration).contains("requests, per-connection 1 "), "{}", text(&calibration));
    }

    #[test]
    fn what_could_not_be_measured_says_why() {
        let why = "load the XDP program for a0 needs CAP_BPF".to_owned();
        let told = text(&with(Ceiling { concurrency: 32, unavailable: Some(why.clone()), ..Ceiling::default() }));
        assert!(told.contains(&format!("not measured: {why}")), "{told}");
    }
}
