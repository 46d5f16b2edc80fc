//! `--scan OPTION=V,V,…`: runs the same test with several values of an option, in turn in every round.

use clap::{Arg, ArgAction, ArgMatches};
use fathom_model::{OptionDoc, Settings};

use fathom_run::exit::{Exit, UserError};

const SCAN: &str = "scan";
/// The maximum number of tests of a scan. More would take too long.
const TESTS_MAX: usize = 64;

/// Returns the options, for commands with one test.
pub(super) fn arguments() -> Vec<Arg> {
    vec![
        Arg::new(SCAN)
            .long(SCAN)
            .value_name("OPTION=V,V,…")
            .help("measure at each of these values, such as flows=1,2,4,8; of several options, at every combination")
            .num_args(1..)
            .action(ArgAction::Append),
    ]
}

/// The scan that belongs to a kind, where the command line does not say otherwise.
fn default_scan(scan: Option<&str>, given: &Settings, scans: &[&String]) -> Option<String> {
    let scan = scan?;
    let option = scan.split_once('=').map_or(scan, |(option, _)| option);
    let is_scanned = scans.iter().any(|text| text.split_once('=').is_some_and(|(name, _)| name == option));
    (given.text(option).is_none() && !is_scanned).then(|| scan.to_owned())
}

/// Returns the names and the settings of a scan's tests. Without a scan, returns a single unnamed test.
pub(super) fn tests(
    matches: &ArgMatches,
    given: &Settings,
    scan: Option<&str>,
    options: &[OptionDoc],
) -> Result<Vec<(String, Settings)>, UserError> {
    let wrong = |what: String| UserError::new(Exit::Usage, what).with_line("use", "--scan flows=1,2,4,8");
    let mut tests = vec![(String::new(), given.clone())];
    let asked: Vec<&String> = matches.try_get_many(SCAN).ok().flatten().into_iter().flatten().collect();
    let usual = default_scan(scan, given, &asked);
    for text in asked.into_iter().chain(&usual) {
        let (name, values) =
            text.split_once('=').ok_or_else(|| wrong(format!("--scan {text}: an option and its values are needed")))?;
        if given.text(name).is_some() || tests[0].1 != *given && tests[0].1.text(name).is_some() {
            return Err(wrong(format!("--scan {text}: {name} has a value already")));
        }
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        let set = |(label, settings): &(String, Settings), value: &str| {
            let gap = if label.is_empty() { "" } else { " " };
            (format!("{label}{gap}{name}={value}"), settings.clone().with(name, value))
        };
        tests = tests.iter().flat_map(|test| values.iter().map(move |value| set(test, value))).collect();
        if tests.len() > TESTS_MAX {
            return Err(wrong(format!("--scan makes {} tests, more than {TESTS_MAX}", tests.len())));
        }
    }
    for (label, settings) in &mut tests {
        // A single test has no name.
        let place = if label.is_empty() { String::new() } else { format!("{label}: ") };
        *settings =
            settings.complete(options).map_err(|error| UserError::new(Exit::Usage, format!("{place}{error}")))?;
    }
    let mut labels: Vec<_> = tests.iter().map(|(label, _)| label).collect();
    labels.sort_unstable();
    match labels.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(wrong(format!("--scan names {} twice", twice[0]))),
        None => Ok(tests),
    }
}
