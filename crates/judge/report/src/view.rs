//! What the table of a run shows, the same in text and HTML: picked and put into words, not computed.

use fathom_model::{
    Confidence, Derivation, Finding, Layer, Limit, LimitKind, Metric, Run, Severity, StepSummary, Summary, TestRun,
    Unit, VerdictState,
    metric::Better,
    plan::HostReach,
    units::{BitsPerSec, grouped, percent, rounded},
};

use crate::steps::{self, PromiseCell};

/// What stands in a cell for a value that there is not.
pub(crate) const MISSING: &str = "–";
/// More findings than this are no longer read one by one.
const IMPORTANT_MAX: usize = 3;
/// How many quantiles fit on the line below a headline.
const QUANTILES_MAX: usize = 4;

/// A line of the table.
#[derive(Debug)]
pub(crate) struct TableRow<'a> {
    /// The test it belongs to.
    pub(crate) test: &'a TestRun,
    /// Whether it is the test's first line.
    pub(crate) first: bool,
    /// The test's title, or what a further line is about.
    pub(crate) label: String,
    /// The value.
    pub(crate) result: String,
    /// The 95 % interval.
    pub(crate) interval: String,
    /// The limit in words.
    pub(crate) limit: String,
    /// The share of it, or whether a promise was kept.
    pub(crate) used: String,
    /// What the words of `used` mean for the reader.
    pub(crate) mark: RowMark,
    /// The finding that explains the row.
    pub(crate) finding: Option<&'a Finding>,
}

/// How a row is to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowMark {
    /// As it is.
    Plain,
    /// A promise was kept.
    Kept,
    /// A promise was broken.
    Broken,
    /// A promise lies within the interval.
    Open,
    /// There is no value.
    Missing,
}

/// All lines of the table, in the order of the tests.
pub(crate) fn rows(run: &Run) -> Vec<TableRow<'_>> {
    run.tests.iter().flat_map(|test| rows_of(run, test)).collect()
}

fn rows_of<'a>(run: &'a Run, test: &'a TestRun) -> Vec<TableRow<'a>> {
    let Some(first) = test.summaries.first().filter(|_| test.unavailable.is_none()) else {
        let reason = test.unavailable.clone().unwrap_or_else(|| "no round was completed".to_owned());
        let result = format!("{MISSING}  {reason}");
        return vec![TableRow { result, mark: RowMark::Missing, ..empty(test, test.title.clone()) }];
    };
    let headline =
        TableRow { first: true, finding: finding_of(run, test), ..value_row(test, first, test.title.clone()) };
    let mut rows = vec![headline];
    rows.extend(quantile_row(test, first));
    let compared = |name: &str| test.limits.iter().any(|limit| limit.metric == name);
    for summary in &test.summaries[1..] {
        let lost = matches!(summary.metric.from, Derivation::Missing { .. }) && summary.value.is_some_and(|v| v > 0.0);
        if lost
            || has_own_row(first, summary)
            || compared(&summary.metric.name)
            || test.expect.contains_key(summary.metric.name.as_ref())
        {
            rows.push(value_row(test, summary, summary.metric.title.to_string()));
        }
    }
    rows.extend(promised_steps(test));
    if let Some(short) = rounds_missing(run, test) {
        rows.push(empty(test, short));
    }
    for row in &mut rows[1..] {
        row.first = false;
    }
    rows
}

/// Whether a value stands in the table for its own sake: how near a test came to what could be, or the load that a latency was
/// measured under.
fn has_own_row(headline: &Summary, summary: &Summary) -> bool {
    let is_rate = matches!(summary.metric.from, Derivation::Rate { .. }) && summary.metric.better == Better::Higher;
    let is_beside = matches!(headline.metric.from, Derivation::Quantile { .. })
        && is_rate
        && summary.metric.unit == Unit::BitsPerSec;
    let is_compared = matches!(summary.metric.from, Derivation::Quotient { .. } | Derivation::PerMinute { .. });
    summary.value.is_some() && (is_beside || is_compared)
}

fn empty(test: &TestRun, label: String) -> TableRow<'_> {
    let (result, interval, limit, used) = (String::new(), String::new(), String::new(), String::new());
    TableRow { test, first: true, label, result, interval, limit, used, mark: RowMark::Plain, finding: None }
}

/// More promises of a script than this are no longer read in a table of several tests.
const PROMISES_MAX: usize = 5;

/// What was promised of steps, a line per promise: `checkout p99  41.3 ms  39.8 – 43.0  < 300ms  ok`.
///
/// Of many those that were not kept come first, then those with the least room, and the others are counted.
fn promised_steps(test: &TestRun) -> Vec<TableRow<'_>> {
    let all = steps::promises(test);
    let mut urgent: Vec<usize> = (0..all.len()).collect();
    let room = |promise: &PromiseCell<'_>| promise.margin_ratio.unwrap_or(f64::INFINITY);
    let is_kept = |idx: &usize| all[*idx].1.mark == RowMark::Kept;
    urgent.sort_by(|a, b| is_kept(a).cmp(&is_kept(b)).then(room(&all[*a].1).total_cmp(&room(&all[*b].1))));
    let beyond = urgent.split_off(urgent.len().min(PROMISES_MAX));
    let all_kept = beyond.iter().all(is_kept);
    urgent.sort_unstable();
    let mut rows: Vec<TableRow<'_>> = urgent.iter().map(|idx| promised_row(test, &all[*idx])).collect();
    if !beyond.is_empty() {
        let (word, mark) = if all_kept { ("ok", RowMark::Kept) } else { ("✗", RowMark::Broken) };
        let label = format!("{} more promises", beyond.len());
        rows.push(TableRow { used: word.to_owned(), mark, ..empty(test, label) });
    }
    rows
}

fn promised_row<'a>(test: &'a TestRun, (step, promise): &(Option<&StepSummary>, PromiseCell<'_>)) -> TableRow<'a> {
    let title = promise.summary.map_or(promise.text, |summary| &summary.metric.title);
    let sign = promise.text.find(['<', '>', '≤', '≥', '=']).unwrap_or(0);
    TableRow {
        result: promise.value(),
        interval: promise.summary.map(interval).unwrap_or_default(),
        limit: promise.text[sign..].trim().to_owned(),
        used: promise.word.to_owned(),
        mark: promise.mark,
        ..empty(test, step.map_or_else(|| title.to_owned(), |step| format!("{} {title}", step.name)))
    }
}

/// Which rounds a test lacks, in words.
pub(crate) fn rounds_missing(run: &Run, test: &TestRun) -> Option<String> {
    // A search makes as many trials as it needs.
    if test.curve.is_some() || test.benchmark.is_some() {
        return None;
    }
    let planned = usize::try_from(run.plan.rounds).unwrap_or(usize::MAX);
    (test.trials.len() < planned).then(|| format!("{} of {planned} rounds", test.trials.len()))
}

/// The quantiles of a test's first distribution that have no limit, beside the headline.
pub(crate) fn quantiles<'a>(test: &'a TestRun, headline: &Summary) -> Vec<&'a Summary> {
    let of = |summary: &Summary| match &summary.metric.from {
        Derivation::Quantile { distribution, .. } => Some(distribution.clone()),
        _ => None,
    };
    let first = test.summaries.iter().find_map(of);
    let plain = |summary: &&Summary| {
        summary.value.is_some()
            && first.is_some()
            && of(summary) == first
            && summary.metric.name != headline.metric.name
            && !test.limits.iter().any(|limit| limit.metric == summary.metric.name)
    };
    test.summaries.iter().filter(plain).take(QUANTILES_MAX).collect()
}

/// Those quantiles on one line, if there are any.
fn quantile_row<'a>(test: &'a TestRun, headline: &Summary) -> Option<TableRow<'a>> {
    let group = quantiles(test, headline);
    let values: Vec<String> = group.iter().filter_map(|s| quantile_value(s)).collect();
    let titles: Vec<&str> = group.iter().map(|s| s.metric.title.as_ref()).collect();
    let label = with_common_start(&titles);
    (!group.is_empty()).then(|| TableRow { result: with_common_unit(&values, " · "), ..empty(test, label) })
}

/// A quantile as far as it is known: one from too few samples would be another one the next time, and a note says so.
pub(crate) fn quantile_value(summary: &Summary) -> Option<String> {
    let value = summary.metric.show(summary.value?);
    Some(if is_too_few(summary) { MISSING.to_owned() } else { value })
}

/// Whether a value comes from fewer samples than it needs.
pub(crate) fn is_too_few(summary: &Summary) -> bool {
    summary.note.as_deref().is_some_and(|note| note.starts_with(TOO_FEW))
}

/// One value as a line of a table: with its interval, and its limit where it has one.
pub(crate) fn value_row<'a>(test: &'a TestRun, summary: &Summary, label: String) -> TableRow<'a> {
    let limit = test.limits.iter().find(|limit| limit.metric == summary.metric.name);
    let (used, mark) = limit.map_or((String::new(), RowMark::Plain), |limit| used(limit, summary));
    let named = label == summary.metric.title;
    // What is promised is judged all the same.
    if named && limit.is_none() && is_too_few(summary) {
        return TableRow { result: MISSING.to_owned(), ..empty(test, label) };
    }
    TableRow {
        result: match summary.value {
            None => format!("{MISSING}  {}", summary.note.as_deref().unwrap_or("not measured")),
            Some(value) if named => show(&summary.metric, value),
            Some(value) => headline_value(&summary.metric, value),
        },
        interval: limit_bounds(test, summary).unwrap_or_else(|| interval(summary)),
        limit: limit.map(|limit| limit.text.clone()).unwrap_or_default(),
        used,
        mark: if summary.value.is_none() { RowMark::Missing } else { mark },
        ..empty(test, label)
    }
}

/// The ends between which a limit lies that is not known for sure: `1.96 – 2.97`.
fn limit_bounds(test: &TestRun, summary: &Summary) -> Option<String> {
    let curve = test.curve.as_ref().filter(|_| summary.metric.from == Derivation::Limit)?;
    let (low, high) = curve.kept.zip(curve.broken).filter(|_| summary.confidence.is_none())?;
    let [low, high] = [low, high].map(|rate| summary.metric.show(rate));
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let number = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    Some(if unit(&low) == unit(&high) {
        format!("{} – {}", number(&low), number(&high))
    } else {
        format!("{low} – {high}")
    })
}

/// A value in its unit; a mean of large counts without the digits behind the point, which tell nothing.
pub(crate) fn show(metric: &Metric, value: f64) -> String {
    if metric.unit == Unit::Count && value >= 100.0 { grouped(rounded(value)) } else { metric.show(value) }
}

/// A value that stands without its metric's name beside it: a rate speaks for itself, other values are named.
pub(crate) fn headline_value(metric: &Metric, value: f64) -> String {
    let shown = metric.show(value);
    match metric.from {
        Derivation::Rate { .. } | Derivation::RateOfBoth { .. } => shown,
        // `1.50 k users/s`: people count them by their name.
        Derivation::Users { .. } if metric.unit == Unit::PerSec => {
            let count = shown.trim_end_matches("/s").trim_end();
            format!("{count} {}/s", metric.title.trim_end_matches("/s"))
        }
        Derivation::Quantile { .. } => format!("{shown} {}", metric.title),
        _ => format!("{} {shown}", metric.title),
    }
}

/// What stands for an interval that leaves the order of magnitude open.
pub(crate) const NOT_KNOWN: &str = "not known";

/// The interval around a value: `± 0.4 %` for what is symmetric and good when high, else both ends.
///
/// One that leaves the order of magnitude open is not told in figures, which would only look as if they said something.
pub(crate) fn interval(summary: &Summary) -> String {
    let (Some(value), Some(Confidence { low, high, n_trials, .. })) = (summary.value, summary.confidence) else {
        let alone = summary.value.is_some() && summary.trials.len() == 1;
        return if alone { "one round".to_owned() } else { String::new() };
    };
    if summary.is_vague() {
        return format!("{NOT_KNOWN} from {n_trials} rounds");
    }
    let (below, above) = (value - low, high - value);
    let symmetric = below.min(above) * 2.0 >= below.max(above);
    if summary.metric.better == Better::Higher && symmetric && value > 0.0 && summary.metric.unit != Unit::Ratio {
        return format!("± {}", percent(below.max(above) / value));
    }
    let [shown_low, shown_high, whole] = [low, high, value].map(|value| show(&summary.metric, value));
    let unit = |text: &str| text.split_once(' ').map(|(_, unit)| unit.to_owned());
    let number = |text: &str| text.split(' ').next().unwrap_or_default().to_owned();
    // Nothing is nothing in every unit.
    let low = if low == 0.0 { "0".to_owned() } else { shown_low };
    if unit(&shown_high) == unit(&whole) && (low == "0" || unit(&low) == unit(&whole)) {
        return format!("{} – {}", number(&low), number(&shown_high));
    }
    format!("{low} – {shown_high}")
}

/// Titles joined, with the words before their last one written once if they are the same.
pub(crate) fn with_common_start(titles: &[&str]) -> String {
    let start = titles.first().and_then(|title| title.rfind(' ').map(|end| &title[..=end])).unwrap_or_default();
    let rest: Option<Vec<&str>> = titles.iter().map(|title| title.strip_prefix(start)).collect();
    rest.map_or_else(|| titles.join(" · "), |rest| format!("{start}{}", rest.join(" · ")))
}

/// Values joined, with their unit written once if it is the same; behind the last of them what there is no value of.
pub(crate) fn with_common_unit(values: &[String], between: &str) -> String {
    let (known, missing) = values.split_at(values.iter().take_while(|value| *value != MISSING).count());
    let split: Vec<(&str, &str)> = known.iter().filter_map(|value| value.split_once(' ')).collect();
    let together = match split.first() {
        Some((_, unit)) if split.len() == known.len() && split.iter().all(|(_, other)| other == unit) => {
            let numbers: Vec<&str> = split.iter().map(|(number, _)| *number).collect();
            vec![format!("{} {unit}", numbers.join(between))]
        }
        _ => known.to_vec(),
    };
    [together.as_slice(), missing].concat().join(between)
}

fn used(limit: &Limit, summary: &Summary) -> (String, RowMark) {
    if limit.kind != LimitKind::Promise {
        return (limit.used.map(percent).unwrap_or_default(), RowMark::Plain);
    }
    let Some(value) = summary.value else { return (MISSING.to_owned(), RowMark::Missing) };
    let (low, high) = summary.confidence.map_or((value, value), |c| (c.low, c.high));
    // The good and the bad end of the interval, each as a distance beyond the promise.
    let (best, worst) = match summary.metric.better {
        Better::Higher => (high - limit.value, low - limit.value),
        Better::Lower | Better::Neither => (limit.value - low, limit.value - high),
    };
    match (worst >= 0.0, best < 0.0) {
        (true, _) => ("ok".to_owned(), RowMark::Kept),
        (_, true) => ("✗".to_owned(), RowMark::Broken),
        _ => ("unclear".to_owned(), RowMark::Open),
    }
}

/// The finding that a row points at: the first of the test's own, or the first that names the test.
pub(crate) fn finding_of<'a>(run: &'a Run, test: &TestRun) -> Option<&'a Finding> {
    let own = |finding: &&Finding| test.findings.contains(&finding.id) && finding.tests.contains(&test.name);
    let explains = |finding: &&Finding| finding.severity != Severity::Remark && finding.tests.contains(&test.name);
    run.findings
        .iter()
        .find(|f| own(f) && f.severity != Severity::Remark)
        .or_else(|| run.findings.iter().find(explains))
}

/// The findings that stand above the table, at most that many: the first, then what invalidates.
pub(crate) fn important(run: &Run) -> Vec<&Finding> {
    let mut all: Vec<&Finding> = run.findings.iter().filter(|found| found.severity != Severity::Remark).collect();
    if let Some((_, others)) = all.split_first_mut() {
        others.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    }
    all.truncate(IMPORTANT_MAX);
    all
}

/// The findings that stand below the table: those for which there was no room above it, and the remarks.
pub(crate) fn remarks(run: &Run) -> Vec<&Finding> {
    let above = important(run);
    run.findings.iter().filter(|finding| !above.iter().any(|other| std::ptr::eq(*other, *finding))).collect()
}

/// Why a run is in its state, in one line.
pub(crate) fn reasons(run: &Run) -> String {
    match (run.verdict.state, run.verdict.reasons.as_slice()) {
        (VerdictState::Measured, _) => "no target set (use --expect)".to_owned(),
        (VerdictState::Kept, _) => "every promise was kept".to_owned(),
        (_, reasons) => reasons.join("; "),
    }
}

/// The tests that a finding is about, by their names in the table.
pub(crate) fn names(run: &Run, finding: &Finding) -> Vec<String> {
    let named = |name: &String| run.tests.iter().find(|test| test.name == *name).map(TestRun::named);
    finding.tests.iter().filter_map(named).collect()
}

/// How the word of a state is to be looked at.
pub(crate) const fn state_mark(state: VerdictState) -> RowMark {
    match state {
        VerdictState::Measured => RowMark::Plain,
        VerdictState::Kept => RowMark::Kept,
        VerdictState::Broken | VerdictState::Invalid => RowMark::Broken,
        VerdictState::Open | VerdictState::Disturbed | VerdictState::Incomplete => RowMark::Open,
    }
}

/// What of several tests comes from too few samples, in one note, then the other notes: each behind the name of its test.
pub(crate) fn notes_of_tests(run: &Run, shown: impl Fn(&TestRun, &Summary) -> bool) -> Vec<String> {
    let (mut few, mut others) = (Vec::new(), Vec::new());
    for test in &run.tests {
        let name = test.named();
        for (note, _) in notes(run, test, |summary| shown(test, summary)) {
            match note.strip_prefix(TOO_FEW) {
                Some(what) => few.push(format!("{name}: {}", what.trim_start_matches("for "))),
                None => others.push(format!("{name}: {note}")),
            }
        }
    }
    let few = (!few.is_empty()).then(|| format!("{MISSING} {TOO_FEW}for {}", few.join("; ")));
    few.into_iter().chain(others).collect()
}

/// The beginning of a note that several values of a test may have.
pub(crate) const TOO_FEW: &str = "too few samples ";

/// What must be said beside the numbers of a test, each once, with how many rounds say it.
///
/// Of values that `shown` does not name nothing needs to be said.
pub(crate) fn notes(run: &Run, test: &TestRun, shown: impl Fn(&Summary) -> bool) -> Vec<(String, usize)> {
    let beside = test.summaries.iter().filter(|summary| summary.applies() && shown(summary));
    let of_metrics = beside.filter_map(|summary| Some((summary.metric.title.as_ref(), summary.note.as_deref()?)));
    let (few, others): (Vec<_>, Vec<_>) = of_metrics.partition(|(_, note)| note.starts_with(TOO_FEW));
    let few: Vec<String> = few.iter().map(|(title, note)| format!("{title} {}", &note[TOO_FEW.len()..])).collect();
    let few = (!few.is_empty()).then(|| format!("{TOO_FEW}for {}", few.join(", ")));
    let mut notes: Vec<(String, usize)> = few.into_iter().chain(notes_by_text(others)).map(|note| (note, 0)).collect();
    for trial in &test.trials {
        // What is told as a finding need not be said twice.
        let told =
            |text: &str| run.findings.iter().any(|found| found.title == text && found.tests.contains(&test.name));
        for note in trial.records.values().flat_map(|record| &record.notes).filter(|note| !told(&note.text)) {
            match notes.iter_mut().find(|(text, _)| *text == note.text) {
                Some((_, n)) => *n += 1,
                None => notes.push((note.text.clone(), 1)),
            }
        }
    }
    notes
}

/// Notes of values, those that read the same together: `jitter, IPDV p99: not recorded`.
fn notes_by_text<'a>(notes: Vec<(&'a str, &'a str)>) -> impl Iterator<Item = String> + use<'a> {
    let mut by_note: Vec<(&str, Vec<&str>)> = Vec::new();
    for (title, note) in notes {
        match by_note.iter_mut().find(|(same, _)| *same == note) {
            Some((_, titles)) => titles.push(title),
            None => by_note.push((note, vec![title])),
        }
    }
    by_note.into_iter().map(|(note, titles)| format!("{}: {note}", titles.join(", ")))
}

/// What hosts could not do, and hosts with the same in common: `a, b: threaded NAPI: …`.
pub(crate) fn unavailable(run: &Run) -> Vec<String> {
    let hosts = run.hosts.iter();
    let told = hosts.flat_map(|(name, host)| host.losses.iter().map(|loss| (name.as_str(), loss.as_str()))).collect();
    notes_by_text(told).collect()
}

/// Whether a value stands in the table of a run with several tests.
pub(crate) fn in_table(test: &TestRun, summary: &Summary) -> bool {
    let Some(first) = test.summaries.first() else { return false };
    let named = |other: &&Summary| other.metric.name == summary.metric.name;
    named(&first)
        || quantiles(test, first).iter().any(named)
        || test.limits.iter().any(|limit| limit.metric == summary.metric.name)
}

/// Errors by cause over all rounds, the most frequent first.
pub(crate) fn errors(test: &TestRun) -> Vec<(String, u64)> {
    let mut all = std::collections::BTreeMap::<&String, u64>::new();
    // What failed at a step of a script stands with the step.
    let at_step =
        |cause: &String| test.users.iter().flat_map(|users| &users.steps).any(|step| step.errors.contains_key(cause));
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    for (cause, n) in records.flat_map(|record| &record.errors).filter(|(cause, _)| !at_step(cause)) {
        *all.entry(cause).or_default() += n;
    }
    let mut all: Vec<(String, u64)> = all.into_iter().map(|(cause, n)| (cause.clone(), n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

/// When a run began, to the second.
pub(crate) fn started(run: &Run) -> String {
    let (seconds, fraction) = run.started.split_once('.').unwrap_or((&run.started, ""));
    format!("{}{}", seconds.replace('T', " "), fraction.trim_start_matches(|c: char| c.is_ascii_digit()))
}

/// The command without the place of the program.
pub(crate) fn command(run: &Run) -> String {
    let (program, rest) = run.command.split_once(' ').unwrap_or((&run.command, ""));
    let name = program.rsplit('/').next().unwrap_or(program);
    format!("{name} {rest}").trim_end().to_owned()
}

/// Whether all hosts of a run are one machine, so that they have the same cores.
pub(crate) fn is_one_machine(run: &Run) -> bool {
    let here = |name: &String| run.plan.hosts.get(name).is_some_and(HostReach::is_on_this_machine);
    let boots: Vec<Option<&str>> = run.hosts.values().map(|host| host.environment.get("kernel", "boot_id")).collect();
    run.hosts.keys().all(here) || (boots.iter().all(Option::is_some) && boots.windows(2).all(|two| two[0] == two[1]))
}

fn cores_words(run: &Run, name: &str) -> Option<String> {
    let cores =
        run.tests.iter().map(|test| crate::plot::core_heatmap::cores(test, name).len()).max().filter(|n| *n > 0)?;
    Some(format!("{cores} core{}", if cores == 1 { "" } else { "s" }))
}

/// The interface of a host with its speed, if that is one of a wire.
fn interface_words(run: &Run, name: &str) -> Option<String> {
    let host = run.hosts.get(name)?;
    let interface = host.interface.as_deref()?;
    let fact = |name: &str| host.environment.get(interface, name);
    let speed = fact("speed_bps").filter(|_| fact("line_rate") == Some("real"));
    let speed = speed.and_then(|speed| speed.parse::<BitsPerSec>().ok());
    Some(speed.map_or(interface.to_owned(), |speed| format!("{interface} {speed}")))
}

/// The host that was probed, where it is not one of those that take part.
pub(crate) fn probed(run: &Run) -> Option<&str> {
    crate::probe::target(run).filter(|_| run.tests.iter().all(|test| test.to.is_none()))
}

/// A host in a few words: `gen-1 (16 cores, ens5 25 Gbit/s)`; the cores that several hosts share stand elsewhere.
pub(crate) fn host_words(run: &Run, name: &str) -> String {
    let cores = cores_words(run, name).filter(|_| shared_cores(run).is_none());
    // An interface beside a host that is only probed would look like what was measured.
    let by = if crate::probe::target(run).is_some() { "by " } else { "" };
    let interface = interface_words(run, name).map(|interface| format!("{by}{interface}"));
    let facts: Vec<String> = cores.into_iter().chain(interface).collect();
    if facts.is_empty() { name.to_owned() } else { format!("{name} ({})", facts.join(", ")) }
}

/// What the hosts of a run share, when they are one machine: `one machine with 2 cores`.
pub(crate) fn shared_cores(run: &Run) -> Option<String> {
    let several = roles_of_hosts(run).iter().any(|(_, name)| Some(*name) != run.tests.first().map(|test| &*test.from));
    let name = run.hosts.keys().find_map(|name| cores_words(run, name)).filter(|_| several && is_one_machine(run))?;
    Some(format!("one machine with {name}"))
}

/// Each host that takes part, with what it does.
pub(crate) fn roles_of_hosts(run: &Run) -> Vec<(&'static str, &str)> {
    let from = run.tests.first().map(|test| test.from.as_str());
    let to = run.tests.iter().find_map(|test| test.to.as_deref());
    let known = |name: &&str| Some(*name) != from && Some(*name) != to;
    let others = run.hosts.keys().map(String::as_str).filter(known).map(|name| ("host", name));
    // Frames that go one way need not go from the client to the target.
    let is_one_way = |test: &TestRun| Some(test.from.as_str()) == from && test.to.is_some();
    let go_one_way = run.tests.iter().all(|test| test.layer == Layer::Frames && is_one_way(test));
    let [both, first, second] = if go_one_way {
        ["sender and receiver", "sender", "receiver"]
    } else {
        ["client and target", "client", "target"]
    };
    if from.is_some() && from == to {
        return from.map(|name| (both, name)).into_iter().chain(others).collect();
    }
    from.map(|name| (first, name)).into_iter().chain(to.map(|name| (second, name))).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::Side;

    use super::*;

    fn summary(unit: Unit, better: Better, (value, low, high): (f64, f64, f64)) -> Summary {
        let from = Derivation::Rate { side: Side::Initiator, counter: "sent".into() };
        let (name, title, source) = ("rate".into(), "rate".into(), "RFC 2544".into());
        Summary {
            metric: Metric { name, title, unit, better, source, from, inapplicable: None },
            value: Some(value),
            confidence: Some(Confidence { low, high, level: 0.95, n_trials: 5 }),
            trials: vec![value; 5],
            n_above: None,
            n_samples: None,
            note: None,
        }
    }

    #[test]
    fn an_interval_is_a_percentage_where_it_is_symmetric_and_both_ends_elsewhere() {
        let cases = [
            (Unit::BitsPerSec, Better::Higher, (9.1e9, 9.06e9, 9.14e9), "± 0.44 %"),
            (Unit::BitsPerSec, Better::Higher, (9.1e9, 8.0e9, 9.2e9), "8.00 – 9.20"),
            (Unit::Nanos, Better::Lower, (48_200.0, 47_900.0, 48_600.0), "47.9 – 48.6"),
            (Unit::Nanos, Better::Lower, (990_000.0, 900_000.0, 1_100_000.0), "900 µs – 1.10 ms"),
            (Unit::Ratio, Better::Lower, (0.0031, 0.0029, 0.0033), "0.29 – 0.33"),
        ];
        for (unit, better, values, text) in cases {
            assert_eq!(interval(&summary(unit, better, values)), text);
        }
        let alone =
            Summary { confidence: None, trials: vec![1.0], ..summary(Unit::Count, Better::Higher, (1.0, 1.0, 1.0)) };
        assert_eq!(interval(&alone), "one round");
    }

    #[test]
    fn an_interval_that_says_nothing_is_told_so_without_figures() {
        let vague = |unit, values| interval(&summary(unit, Better::Lower, values));
        // Two rounds with a 99th percentile of 84 µs and of 84 ms.
        assert_eq!(vague(Unit::Nanos, (2_656_000.0, 1e-13, 1.8e26)), "not known from 5 rounds");
        assert_eq!(vague(Unit::Nanos, (2e6, 5e5, 1.9e7)), "500 µs – 19.0 ms");
        // Two rounds, of which one had none: the interval of the mean reaches from nothing to fourteen times it.
        assert_eq!(vague(Unit::PerSec, (1.0, 0.0, 13.7)), "not known from 5 rounds");
        assert_eq!(vague(Unit::Ratio, (0.5, 0.0, 1.0)), "not known from 5 rounds");
        // A share of at most 3 % is known to be small, however small it is.
        assert_eq!(vague(Unit::Ratio, (0.001, 0.0, 0.03)), "0 – 3.0");
    }

    #[test]
    fn a_promise_is_kept_or_broken_only_when_the_whole_interval_says_so() {
        let promised = |value: f64| Limit {
            kind: LimitKind::Promise,
            metric: "rate".to_owned(),
            value,
            text: String::new(),
            used: None,
        };
        let rate = summary(Unit::BitsPerSec, Better::Higher, (9.1e9, 9.0e9, 9.2e9));
        let marks = [8e9, 9.1e9, 10e9].map(|limit| used(&promised(limit), &rate).1);
        assert_eq!(marks, [RowMark::Kept, RowMark::Open, RowMark::Broken]);
        let no_loss = summary(Unit::Ratio, Better::Lower, (0.0, 0.0, 0.0));
        assert_eq!(used(&promised(0.0), &no_loss).0, "ok");
    }

    #[test]
    fn users_are_counted_by_their_name() {
        let from = Derivation::Users { of: fathom_model::metric::UsersValue::Begun };
        let (name, title, source) = ("users_per_sec".into(), "users/s".into(), "docs/methods/steps.md".into());
        let (unit, better) = (Unit::PerSec, Better::Higher);
        let users = Metric { name, title, unit, better, source, from, inapplicable: None };
        assert_eq!(headline_value(&users, 1_498.0), "1.50 k users/s");
        assert_eq!(headline_value(&users, 812.0), "812 users/s");
    }

    #[test]
    fn a_unit_is_written_once_when_all_values_have_it() {
        let join =
            |values: &[&str]| with_common_unit(&values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>(), " · ");
        assert_eq!(join(&["0.51 ms", "1.9 ms"]), "0.51 · 1.9 ms");
        assert_eq!(join(&["510 µs", "1.9 ms"]), "510 µs · 1.9 ms");
        assert_eq!(join(&[]), "");
    }

    #[test]
    fn values_that_are_missing_for_one_reason_are_told_together() {
        let notes = vec![("jitter", "not recorded"), ("p99", "nobody asked"), ("IPDV p99", "not recorded")];
        let told: Vec<String> = notes_by_text(notes).collect();
        assert_eq!(told, ["jitter, IPDV p99: not recorded", "p99: nobody asked"]);
    }
}
