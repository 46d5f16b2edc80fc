//! `fathom evaluate --suite cloud`: how providers of clouds measure a machine, with one tested host and its companions.
//!
//! The method is that of Tencent and Alibaba: bandwidth over as many flows as the card has queues, packets per second of datagrams of
//! one byte, and request/response over at least 300 flows. They type it in as many windows as there are machines.

use clap::ArgMatches;
use fathom_model::{Settings, TestPlan, TrialTimes, units::Nanos};

use super::{
    evaluation_length::EvaluationLength,
    many_hosts::COMPANIONS,
    measurement::{self, KeepResult},
    test_hosts::TestHosts,
};
use fathom_run::exit::{Exit, UserError};

/// The name of the suite on the command line.
pub(super) const NAME: &str = "cloud";
/// The flows of request/response in all: the guides ask for at least 300 and divide them among eight companions.
const TRANSACTION_FLOWS: usize = 320;

const FULL: EvaluationLength = EvaluationLength {
    rounds: 3,
    times: TrialTimes { warmup: Nanos::from_millis(500), duration: Nanos::from_secs(2) },
};
const QUICK: EvaluationLength = EvaluationLength {
    rounds: 2,
    times: TrialTimes { warmup: Nanos::from_millis(200), duration: Nanos::from_millis(500) },
};

/// Runs the suite and reports on it.
pub(super) fn run(mut ends: TestHosts, matches: &ArgMatches) -> anyhow::Result<Exit> {
    let pace = if matches.get_flag("quick") { QUICK } else { FULL };
    let times = measurement::trial_times(matches, pace.times, pace.rounds)?;
    let mut tests = tests(&mut ends, times)?;
    measurement::add_promises(&mut tests, matches)?;
    let title = format!("Cloud suite of {}", ends.to());
    let plan = measurement::plan(title, pace.rounds, ends, tests, matches);
    measurement::run_and_report(plan, matches, KeepResult::Always)
}

/// A test of the suite.
struct Row<'a> {
    name: String,
    kind: &'static str,
    from: &'a str,
    to: &'a str,
    options: Vec<(&'static str, String)>,
    each: bool,
}

/// Returns the tests of the suite, and adds the groups that they name to the hosts.
///
/// # Errors
/// If there are no companions.
fn tests(ends: &mut TestHosts, times: TrialTimes) -> Result<Vec<TestPlan>, UserError> {
    let (sut, companions) = (ends.to.clone(), ends.groups.get(&ends.from).cloned().unwrap_or_default());
    if companions.len() < 2 || ends.groups.contains_key(&sut) {
        return Err(UserError::new(
            Exit::Usage,
            format!("--suite {NAME} needs one tested host and at least two companions"),
        )
        .with_line("use", "--lab star:9, or --hosts FILE with a group of companions"));
    }
    let steps = steps(companions.len());
    let groups: Vec<(usize, String)> = steps.iter().map(|n| (*n, group_name(*n, &companions, ends.from()))).collect();
    for (n, name) in &groups {
        if *n > 1 && *n < companions.len() {
            ends.groups.insert(name.clone(), companions[..*n].to_vec());
        }
    }
    let from = ends.from.clone();
    let rows = rows(&from, &sut, &companions, &groups);
    let test = |row: Row<'_>| TestPlan {
        name: row.name,
        to: Some(row.to.to_owned()),
        each: row.each,
        options: row.options.into_iter().fold(Settings::default(), |settings, (name, text)| settings.with(name, text)),
        ..TestPlan::new(row.kind, times, row.from)
    };
    Ok(rows.into_iter().map(test).collect())
}

/// 1, 2, 4 … companions, and all of them.
fn steps(n_companions: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < n_companions);
    doubled.chain([n_companions]).collect()
}

/// The name of the group of the first companions; a single one is named itself, and all of them have a group already.
fn group_name(n: usize, companions: &[String], all: &str) -> String {
    match n {
        1 => companions[0].clone(),
        n if n == companions.len() => all.to_owned(),
        n => format!("{n} {COMPANIONS}"),
    }
}

fn rows<'a>(from: &'a str, sut: &'a str, companions: &'a [String], groups: &'a [(usize, String)]) -> Vec<Row<'a>> {
    let text = |name: &'static str, value: &str| (name, value.to_owned());
    let row = |name: &str, kind, options| Row { name: name.to_owned(), kind, from, to: sut, options, each: false };
    let flows = TRANSACTION_FLOWS.max(companions.len()).to_string();
    let mut rows = vec![
        Row { each: true, ..row("bandwidth in", "tcp_stream", vec![text("flows", "queues")]) },
        Row { from: sut, to: from, each: true, ..row("bandwidth out", "tcp_stream", vec![text("flows", "queues")]) },
        Row { from: &companions[0], ..row("stream", "tcp_stream", Vec::new()) },
        row("rr", "tcp_rr", vec![text("flows", &flows)]),
        row("crr", "tcp_crr", vec![text("flows", &flows)]),
    ];
    let of_group = |(n, group): &'a (usize, String)| Row {
        from: group,
        each: true,
        ..row(&packets_name(*n), "udp_stream", vec![text("size", "1")])
    };
    rows.extend(groups.iter().map(of_group));
    rows
}

fn packets_name(n: usize) -> String {
    if n == 1 { "packets from 1 companion".to_owned() } else { format!("packets from {n} {COMPANIONS}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_companions_double_until_all_of_them_load_the_tested_host() {
        assert_eq!(
            (steps(8), steps(5), steps(2), steps(3)),
            (vec![1, 2, 4, 8], vec![1, 2, 4, 5], vec![1, 2], vec![1, 2, 3])
        );
        let companions: Vec<String> = (1..=8).map(|n| format!("c{n}")).collect();
        let names: Vec<String> = steps(8).into_iter().map(|n| group_name(n, &companions, "companions")).collect();
        assert_eq!(names, ["c1", "2 companions", "4 companions", "companions"]);
    }

    #[test]
    fn the_suite_has_at_least_three_hundred_flows_in_all_and_one_byte_in_each_datagram() {
        let companions: Vec<String> = (1..=8).map(|n| format!("c{n}")).collect();
        let groups = [(1, "c1".to_owned()), (8, "companions".to_owned())];
        let rows = rows("companions", "sut", &companions, &groups);
        let option = |name: &str, option: &str| {
            let row = rows.iter().find(|row| row.name == name).unwrap();
            row.options.iter().find(|(of, _)| *of == option).map(|(_, text)| text.clone())
        };
        assert_eq!(option("rr", "flows").as_deref(), Some("320"));
        assert_eq!(option("packets from 8 companions", "size").as_deref(), Some("1"));
        assert_eq!(option("bandwidth in", "flows").as_deref(), Some("queues"));
        let out = rows.iter().find(|row| row.name == "bandwidth out").unwrap();
        assert_eq!((out.from, out.to), ("sut", "companions"));
    }
}
