//! The top of a report: the head, the state, the bottlenecks, and all tests in one table.

use fathom_model::{
    Conservation, Derivation, Evidence, Finding, Limit, LimitKind, Metric, NoCause, PacketQueueShare, Proof, Run,
    Severity, StepSummary, Summary, TestRun, Unit, VerdictState,
    finding::PromiseOutcome,
    metric::Better,
    units::{grouped, percent},
};

use super::{
    block::{
        Block, Cell, Column, Fact, FindingBlock, Head, List, PromiseWords, Row, Rung, Sentence, State, Table, anchor,
        folded, section,
    },
    hosts, intervention, probe,
    steps::{self, PromiseCell},
};
use crate::{
    counter,
    words::{
        self, MISSING, Mark, ValueWords, finding_of, headline_value, quantile_value, quantiles, rounds_missing,
        used_share, value_words, with_common_start, with_common_unit,
    },
};

/// The maximum number of findings above the table.
const IMPORTANT_MAX: usize = 3;
/// The maximum number of promises of a script in a table of several tests.
const PROMISES_MAX: usize = 5;
/// The longest reason of a missing value in the table, in characters.
const REASON_MAX: usize = 16;
/// The column of the table that points at findings.
const MARKER: usize = 6;

/// Returns the blocks above all tables.
pub(super) fn top(run: &Run) -> Vec<Block<'_>> {
    let important = important(run);
    let mut findings: Vec<Block<'_>> = important.iter().map(|finding| of_finding(run, finding)).collect();
    let open: Vec<Sentence> = without_cause(run).collect();
    if findings.is_empty() && open.is_empty() {
        findings.push(Block::sentence("No counter shows anything that holds a layer back.").on_page());
    }
    findings.push(Block::List(List { items: open, ..List::default() }));
    findings.extend(layers(run).map(Block::sentence));
    findings.extend(beside_sockets(run).map(Block::sentence));
    vec![
        head(run),
        Block::State(state(run)),
        Block::Facts(probe::answers(run)),
        section("findings", "What holds it back", findings),
    ]
}

fn head(run: &Run) -> Block<'_> {
    let (seconds, fraction) = run.started.split_once('.').unwrap_or((&run.started, ""));
    let zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    let roles =
        hosts::roles_of_hosts(run).into_iter().map(|(role, name)| Fact::new(role, hosts::host_words(run, name)));
    // The probed host, if it does not take part in the run.
    let probed = probe::target(run).filter(|_| run.tests.iter().all(|test| test.to.is_none()));
    let further =
        [probed.map(|target| ("target", target.to_owned())), hosts::shared_cores(run).map(|cores| ("shared", cores))];
    Block::Head(Head {
        id: run.id.clone(),
        title: run.plan.title.clone(),
        command: hosts::command(run),
        hosts: roles.chain(further.into_iter().flatten().map(|(name, text)| Fact::new(name, text))).collect(),
        facts: vec![
            Fact::new("started", format!("{}{zone}", seconds.replace('T', " "))),
            Fact::new("took", run.took_ns.to_string()),
            Fact::new("rounds", run.plan.rounds.to_string()),
        ],
    })
}

/// Returns the state of a run with its reasons.
pub(super) fn state(run: &Run) -> State {
    let reasons = match run.verdict.state {
        VerdictState::Measured => vec!["no target set (use --expect)".to_owned()],
        VerdictState::Kept => vec!["every promise was kept".to_owned()],
        _ => run.verdict.reasons.clone(),
    };
    let texts: Vec<String> = important(run).iter().map(|finding| run.finding_text(finding)).collect();
    let unsaid: Vec<String> = run.verdict.reasons.iter().filter(|reason| !texts.contains(reason)).cloned().collect();
    State {
        is_first: !unsaid.is_empty() || run.state_words() != run.verdict.state.word(),
        word: run.state_words(),
        mark: match run.verdict.state {
            VerdictState::Broken | VerdictState::Invalid => Mark::Broken,
            _ if !run.verdict.invalid.is_empty() => Mark::Open,
            VerdictState::Measured => Mark::Plain,
            VerdictState::Kept => Mark::Kept,
            VerdictState::Open | VerdictState::Disturbed | VerdictState::Incomplete => Mark::Open,
        },
        unsaid,
        reasons,
        about: format!("run {}   {}", run.id, run.took_ns),
    }
}

/// Returns the findings above the table, up to the maximum: the first one, then those that invalidate.
fn important(run: &Run) -> Vec<&Finding> {
    let mut all: Vec<&Finding> = run.findings.iter().filter(|found| found.severity != Severity::Remark).collect();
    if let Some((_, others)) = all.split_first_mut() {
        others.sort_by_key(|finding| finding.severity != Severity::Invalidates);
    }
    all.truncate(IMPORTANT_MAX);
    all
}

/// Returns the layers of a run in one sentence: what each reaches of the layer below it, and the lowest layer with a mark.
fn layers(run: &Run) -> Option<String> {
    let reached = run.tests.iter().filter_map(|test| {
        let below = test.limits.iter().find(|limit| limit.kind == LimitKind::LayerBelow)?;
        Some(format!("{} reaches {} of {}", test.full_name(), used_share(below.used?), below.text))
    });
    let reached: Vec<String> = reached.collect();
    // A test without sockets stands beside the layers.
    let lacking = run.tests.iter().filter(|test| !test.is_without_sockets() && !reaches_a_limit(test));
    let marked = lacking.filter_map(|test| Some((test.layer, finding_of(run, test)?)));
    let lowest = marked.max_by_key(|(layer, _)| *layer);
    let first =
        lowest.map(|(layer, finding)| format!("the first layer to lack is {} ({})", layer.name(), finding.short));
    (!reached.is_empty()).then(|| reached.into_iter().chain(first).collect::<Vec<_>>().join("; "))
}

/// Returns true if a test is so close to a limit that it lacks hardly anything.
fn reaches_a_limit(test: &TestRun) -> bool {
    const REACHED: f64 = 0.9;
    let limits = test.limits.iter().filter(|limit| limit.kind != LimitKind::Promise);
    limits.filter_map(|limit| limit.used).any(|used| used >= REACHED)
}

/// Returns what a test without sockets says beside others of its layer.
fn beside_sockets(run: &Run) -> Option<String> {
    let test = run.tests.iter().find(|test| test.is_without_sockets())?;
    let is_beside = |other: &TestRun| other.layer == test.layer && !other.is_without_sockets();
    run.tests.iter().any(is_beside).then(|| {
        format!(
            "{} stands beside the layers, not above them: XDP programs at both ends send and answer in the driver, past the kernel's TCP. \
             The difference to the other {} row is what sockets, and the programs behind them, cost",
            test.full_name(),
            test.layer.name()
        )
    })
}

/// Returns the tests that nothing explains although they stay below their limits, each with what was ruled out.
fn without_cause(run: &Run) -> impl Iterator<Item = Sentence> {
    run.tests.iter().filter_map(move |test| {
        let NoCause { reached, parts, ruled_out, not_seen, clue } = test.no_cause.as_ref()?;
        let name = if run.tests.len() > 1 { format!("{}: ", test.full_name()) } else { String::new() };
        let reached = reached.as_ref().map(|reached| format!(" (it reaches {reached})")).unwrap_or_default();
        let list =
            |title: &str, items: &[String]| (!items.is_empty()).then(|| format!("{title}: {}", items.join(", ")));
        let what =
            if parts.is_empty() { "no counter shows what limits it" } else { "no cause explains half of the gap" };
        let texts = [Some(format!("{name}{what}{reached}")), list("the largest parts", parts), clue.clone()];
        let texts = texts.into_iter().chain([
            intervention::without_cause(test),
            list("ruled out", ruled_out),
            list("not seen", not_seen),
        ]);
        let text = texts.flatten().collect::<Vec<_>>().join("; ");
        Some(Sentence { label: "open", text, id: Some(no_cause_anchor(test)), ..Sentence::default() })
    })
}

fn no_cause_anchor(test: &TestRun) -> String {
    format!("open-{}", anchor(&test.name))
}

/// Returns the mark of a row, with a link to the text that says what it means. `None` if nothing is to be said.
pub(super) fn held_back_by(run: &Run, test: &TestRun) -> Option<Cell> {
    let not_found = || Cell::from("◂ not found").faint().linked(no_cause_anchor(test));
    finding_of(run, test).map(marker).or_else(|| test.no_cause.is_some().then(not_found))
}

fn of_finding<'a>(run: &'a Run, finding: &'a Finding) -> Block<'a> {
    let title = run.finding_text(finding);
    let label = match finding.severity {
        _ if run.verdict.reasons.contains(&title) => Some(run.verdict.state.word().to_owned()),
        Severity::Invalidates => Some("do not trust".to_owned()),
        _ => None,
    };
    let metrics = || run.tests.iter().flat_map(|test| &test.summaries).map(|summary| &summary.metric);
    let title_of = |name: &str| metrics().find(|metric| metric.name == name).map(|metric| metric.title.to_string());
    let link = |name: &String| match run.tests.iter().find(|test| test.name == *name) {
        Some(test) => Cell::from(test.full_name()).linked(anchor(name)),
        None => Cell::from(name),
    };
    Block::Finding(FindingBlock {
        label,
        title,
        proof: finding.proof.as_ref().map(|proof| proof_of(run, finding, proof)),
        evidence: evidence(finding, title_of),
        explains: match (finding.explains, finding.tests.is_empty()) {
            (Some(share), true) => format!("Explains {} of the shortfall", percent(share)),
            (Some(share), false) => format!("Explains {} of the shortfall in ", percent(share)),
            (None, true) => String::new(),
            (None, false) => "Concerns ".to_owned(),
        },
        tests: finding.tests.iter().map(link).collect(),
        finding,
    })
}

/// Returns the evidence of a finding; `title` names the metrics of the run.
pub(super) fn evidence(finding: &Finding, title: impl Fn(&str) -> Option<String>) -> Table {
    let row = |evidence: &Evidence| {
        let what = Cell { hint: evidence.counter.clone(), ..Cell::from(counter::words(&evidence.counter, &title)) };
        Row::new([Cell::from(&evidence.host), what, Cell::from(&evidence.value).strong()])
    };
    Table {
        class: "evidence",
        columns: ["host", "what", "showed"].map(Column::text).to_vec(),
        rows: finding.evidence.iter().map(row).collect(),
        flows: false,
    }
}

/// Returns the findings that did not fit above the table, and the remarks, for a page.
pub(super) fn remarks_section(run: &Run) -> Option<Block<'_>> {
    let is_any = run.findings.len() > important(run).len();
    is_any.then(|| section("remarks", "What else was seen", vec![remarks(run)]))
}

/// Returns the findings that did not fit above the table, and the remarks.
pub(super) fn remarks(run: &Run) -> Block<'_> {
    let above = important(run);
    let further = run.findings.iter().filter(|finding| !above.iter().any(|other| std::ptr::eq(*other, *finding)));
    let item = |finding: &Finding| {
        let of: Vec<String> = match finding.tests.len() {
            n if n < 2 || n == run.tests.len() || finding.id == "promise-broken" => Vec::new(),
            _ => run.tests.iter().filter(|test| finding.tests.contains(&test.name)).map(TestRun::full_name).collect(),
        };
        let of = if of.is_empty() { String::new() } else { format!(" ({})", of.join("; ")) };
        Sentence {
            label: if finding.severity == Severity::Remark { "remark" } else { "also" },
            text: format!("{}{of}{}", run.finding_text(finding), proof_words(run, finding)),
            id: Some(format!("finding-{}", finding.id)),
            ..Sentence::default()
        }
    };
    Block::List(List { items: further.map(item).collect(), ..List::default() })
}

/// Returns the outcome of an intervention, with the name of its test if the finding is about others too.
fn proof_of(run: &Run, finding: &Finding, proof: &Proof) -> Sentence {
    let (label, mark) = words::proof(proof.outcome);
    let test = run.tests.iter().find(|test| test.name == proof.test).filter(|_| finding.tests.len() > 1);
    let text = test.map_or_else(|| proof.text.clone(), |test| format!("{}: {}", test.full_name(), proof.text));
    Sentence { label, text, mark, ..Sentence::default() }
}

/// Returns the same behind the text of a finding.
fn proof_words(run: &Run, finding: &Finding) -> String {
    let proof = finding.proof.as_ref().map(|proof| proof_of(run, finding, proof));
    proof.map(|proof| format!("; {}: {}", proof.label, proof.text)).unwrap_or_default()
}

/// Draws each test as a bar against its nearest limit that is not a promise, or else against any limit. `None` if no test has a
/// limit.
pub(super) fn ladder(run: &Run) -> Option<Block<'_>> {
    let rung = |(index, test)| rung(run, test, begins_layer(run, index));
    let rungs: Vec<Rung> = run.tests.iter().enumerate().map(rung).collect();
    let is_any = rungs.iter().any(|rung| rung.share.is_some());
    let mut about = "Each bar is the share of the nearest limit that was used: the full width is the limit. \
                     The cost is the tool's own processor time per unit of work."
        .to_owned();
    if rungs.iter().any(Rung::is_held) {
        about.push_str(" A bar is orange if something holds its row back; the words behind ◂ say what.");
    }
    let blocks = vec![Block::aside(about), Block::Ladder(rungs)];
    is_any.then(|| section("ladder", "The layers against their limits", blocks))
}

/// Returns the layer of a test if the test above it has a different one.
fn begins_layer(run: &Run, index: usize) -> Option<&'static str> {
    let layer = run.tests[index].layer;
    (index == 0 || run.tests[index - 1].layer != layer).then(|| layer.name())
}

fn rung(run: &Run, test: &TestRun, layer: Option<&'static str>) -> Rung {
    let limit = test.limits.iter().find(|limit| limit.kind != LimitKind::Promise && limit.used.is_some());
    let summary = match limit {
        Some(limit) => test.summaries.iter().find(|summary| summary.metric.name == limit.metric),
        None => test.first_value(),
    };
    let value = summary.and_then(|summary| Some(headline_value(&summary.metric, summary.value?)));
    let cost = test.summaries.iter().find(|summary| matches!(summary.metric.from, Derivation::Cost { .. }));
    let cost =
        cost.and_then(|cost| Some(format!("{} / {}", cost.metric.show(cost.value?), unit_of_work(&cost.metric))));
    Rung {
        layer,
        test: Cell::from(&test.title).linked(anchor(&test.name)),
        value: value.filter(|_| test.unavailable.is_none()).map_or_else(|| no_value(test), Cell::from),
        share: limit.and_then(|limit| limit.used),
        limit: match limit {
            Some(limit) => format!("of {}", limit.text),
            None if test.unavailable.is_none() => "no known limit".to_owned(),
            None => String::new(),
        },
        cost: cost.unwrap_or_default(),
        marker: held_back_by(run, test),
        promises: promises(run, test, None),
    }
}

/// Returns what came of each promise about a test, except one about the metric `told`.
pub(super) fn promises(run: &Run, test: &TestRun, told: Option<&str>) -> Vec<PromiseWords> {
    if test.unavailable.is_some() {
        let unmeasured = |(name, bound): (&String, &String)| PromiseWords {
            text: format!("{name} promised {bound}"),
            word: "unclear".to_owned(),
            mark: Mark::Open,
        };
        return test.expect.iter().map(unmeasured).collect();
    }
    let promised = |limit: &&Limit| limit.kind == LimitKind::Promise && told != Some(limit.metric.as_str());
    let of_limit = |limit: &Limit| {
        let summary = test.summaries.iter().find(|summary| summary.metric.name == limit.metric.as_str())?;
        Some((summary.metric.title.to_string(), value_words(run, test, summary, &summary.metric.title)))
    };
    let of_values = test.limits.iter().filter(promised).filter_map(of_limit);
    of_values.chain(promised_steps(run, test)).map(|(label, value)| promise_words(&label, &value)).collect()
}

fn promise_words(label: &str, value: &ValueWords) -> PromiseWords {
    let text = format!("{label} {}", value.result).trim_end().to_owned();
    PromiseWords {
        text: if value.limit.is_empty() { text } else { format!("{text}, promised {}", value.limit) },
        word: value.used.clone(),
        mark: if value.mark == Mark::Missing { Mark::Open } else { value.mark },
    }
}

/// Returns the reason why a test has no value.
pub(super) fn why_not(test: &TestRun) -> &str {
    test.unavailable.as_deref().unwrap_or("no round was completed")
}

fn no_value(test: &TestRun) -> Cell {
    Cell::from(format!("{MISSING}  {}", why_not(test))).marked(Mark::Missing)
}

/// Returns the unit that a cost refers to, as named in its title.
fn unit_of_work(metric: &Metric) -> &str {
    metric.title.rsplit_once(" per ").map_or("unit", |(_, unit)| unit)
}

/// Returns the table with one or more rows per test, followed by the account of all sent packets.
pub(super) fn table(run: &Run, has_ladder: bool) -> Block<'_> {
    let titles = [("layer", false), ("test", false), ("result", true), ("95 % interval", true), ("limit", false)];
    let titles = titles.into_iter().chain([("used", true), ("held back by", false)]);
    let column = |(title, is_number)| Column { title: String::from(title), is_number, ..Column::default() };
    let rows = |(index, test)| rows_of(run, test, begins_layer(run, index));
    let table = Table {
        class: "results",
        columns: titles.map(column).collect(),
        rows: run.tests.iter().enumerate().flat_map(rows).collect(),
        flows: true,
    };
    let table = Block::Table(table);
    let mut blocks = vec![if has_ladder { folded("the same as a table, with intervals", vec![table]) } else { table }];
    let sums: Vec<_> = run.tests.iter().filter_map(|test| Some((test, test.conservation.as_ref()?))).collect();
    let name = |test: &TestRun| if sums.len() > 1 { format!("{}: ", test.full_name()) } else { String::new() };
    blocks.extend(sums.iter().map(|(test, found)| Block::sentence(format!("{}{}", name(test), sum(found)))));
    let divided = run.tests.iter().filter(|test| !test.queues.is_empty());
    blocks.extend(divided.map(|test| {
        Block::sentence(format!("{}: queues of the device: {}", test.full_name(), queue_words(&test.queues)))
    }));
    section("table", "All results", blocks)
}

/// Says what each queue of a device had: `0: 7,500 packets (75 %), 31 % of a core; 1: 2,500 (25 %), 12 % of a core, dropped 12`.
fn queue_words(queues: &[PacketQueueShare]) -> String {
    let of = |(place, queue): (usize, &PacketQueueShare)| {
        let after = if place == 0 { " packets" } else { "" };
        let share = queue.share.map(|share| format!(" ({})", percent(share))).unwrap_or_default();
        let core = queue.core_share.map(|share| format!(", {} of a core", percent(share))).unwrap_or_default();
        let n_dropped = queue.n_dropped + queue.n_user_dropped;
        let dropped = if n_dropped > 0 { format!(", dropped {}", grouped(n_dropped)) } else { String::new() };
        format!("{}: {}{after}{share}{core}{dropped}", queue.queue, grouped(queue.n_packets))
    };
    queues.iter().enumerate().map(of).collect::<Vec<_>>().join("; ")
}

/// Formats the account: `sent 100 datagrams = received 97 + socket buffer 3 + unexplained 0`.
pub(super) fn sum(conservation: &Conservation) -> String {
    let Conservation { what, n_sent, n_received, n_unexplained, drops, .. } = conservation;
    let mut terms = vec![format!("sent {} {what} = received {}", grouped(*n_sent), grouped(*n_received))];
    // Most drops happen at the receiver, so the sentence omits that word.
    let place = |place: &str| place.trim_start_matches("receiver's ").to_owned();
    let dropped = drops.iter().filter(|drop| drop.n_dropped > 0);
    terms.extend(dropped.map(|drop| format!("+ {} {}", place(&drop.place), grouped(drop.n_dropped))));
    let sign = if *n_unexplained < 0 { '−' } else { '+' };
    terms.push(format!("{sign} unexplained {}", grouped(n_unexplained.unsigned_abs())));
    terms.join(" ")
}

fn rows_of(run: &Run, test: &TestRun, layer: Option<&'static str>) -> Vec<Row> {
    let mut rows = Vec::new();
    if let Some(first) = test.first_value().filter(|_| test.unavailable.is_none()) {
        rows.push(row(String::new(), value_words(run, test, first, "")));
        rows[0].cells[MARKER] = held_back_by(run, test).unwrap_or_default();
        rows.extend(quantile_row(test, first));
        let others = test.summaries.iter().filter(|summary| summary.metric.name != first.metric.name);
        let shown = others.filter(|summary| has_row(test, first, summary));
        let value = |summary: &Summary| value_words(run, test, summary, &summary.metric.title);
        rows.extend(shown.map(|summary| row(summary.metric.title.to_string(), value(summary))));
        rows.extend(promised_steps(run, test).into_iter().map(|(label, value)| row(label, value)));
        rows.extend(rounds_missing(run, test).map(|short| row(short, ValueWords::default())));
    } else {
        rows.push(row(String::new(), ValueWords::default()));
        rows[0].cells[2] = no_value(test);
    }
    rows[1..].iter_mut().for_each(|further| further.class = "sub");
    let first = &mut rows[0];
    first.cells[0] = layer.unwrap_or_default().into();
    first.cells[1] = Cell::from(&test.title).linked(anchor(&test.name));
    first.class = layer.map(|_| "begins").unwrap_or_default();
    rows
}

/// Returns the mark of a row, with a link to the finding that explains it.
pub(super) fn marker(finding: &Finding) -> Cell {
    Cell::from(format!("◂ {}", finding.short)).marked(Mark::Open).linked(format!("finding-{}", finding.id))
}

fn row(label: String, value: ValueWords) -> Row {
    let ValueWords { result, interval, limit, used, mark } = value;
    let (result, used_mark) = match mark {
        // A long reason stands in a note below: the column is as wide as its numbers.
        Mark::Missing if result.chars().count() > REASON_MAX => {
            (Cell { hint: result, ..Cell::from(MISSING) }.marked(mark), Mark::Plain)
        }
        Mark::Missing => (Cell::from(result).marked(mark), Mark::Plain),
        mark => (Cell::from(result).strong(), mark),
    };
    let used = Cell::from(used).marked(used_mark);
    Row::new([Cell::default(), label.into(), result, interval.into(), limit.into(), used, Cell::default()])
}

/// Returns true if a value has a row of its own: it has a limit or a promise, shows a loss, or is of interest by itself.
fn has_row(test: &TestRun, headline: &Summary, summary: &Summary) -> bool {
    let lost = matches!(summary.metric.from, Derivation::Missing { .. }) && summary.value.is_some_and(|v| v > 0.0);
    lost || is_read_alone(headline, summary)
        || words::limit_of(test, summary).is_some()
        || test.expect.contains_key(summary.metric.name.as_ref())
}

/// Returns true if a value is of interest by itself: the nearness to the optimum, or the load under which a latency was
/// measured.
fn is_read_alone(headline: &Summary, summary: &Summary) -> bool {
    let is_rate = matches!(summary.metric.from, Derivation::Rate { .. }) && summary.metric.better == Better::Higher;
    let is_beside = matches!(headline.metric.from, Derivation::Quantile { .. })
        && is_rate
        && summary.metric.unit == Unit::BitsPerSec;
    let is_compared = matches!(summary.metric.from, Derivation::Quotient { .. } | Derivation::PerMinute { .. });
    summary.value.is_some() && (is_beside || is_compared)
}

/// Returns a row with the quantiles that belong to a headline, if there are any.
fn quantile_row(test: &TestRun, headline: &Summary) -> Option<Row> {
    let group = quantiles(test, headline);
    let values: Vec<String> = group.iter().filter_map(|s| quantile_value(s)).collect();
    let titles: Vec<&str> = group.iter().map(|s| s.metric.title.as_ref()).collect();
    let value = ValueWords { result: with_common_unit(&values), ..ValueWords::default() };
    (!group.is_empty()).then(|| row(with_common_start(&titles), value))
}

/// Returns the promises about steps, each with its label: `checkout p99  41.3 ms  39.8 – 43.0  < 300ms  ok`.
///
/// If there are many, broken and open promises come first, then those with the smallest margin. The others are only counted.
fn promised_steps(run: &Run, test: &TestRun) -> Vec<(String, ValueWords)> {
    let all = steps::promises(run, test);
    let mut urgent: Vec<usize> = (0..all.len()).collect();
    let room = |promise: &PromiseCell<'_>| promise.margin_ratio.unwrap_or(f64::INFINITY);
    let is_kept = |idx: &usize| all[*idx].1.mark == Mark::Kept;
    urgent.sort_by(|a, b| is_kept(a).cmp(&is_kept(b)).then(room(&all[*a].1).total_cmp(&room(&all[*b].1))));
    let beyond = urgent.split_off(urgent.len().min(PROMISES_MAX));
    urgent.sort_unstable();
    let mut values: Vec<_> = urgent.iter().map(|idx| promised_value(&all[*idx])).collect();
    if !beyond.is_empty() {
        let worst = [PromiseOutcome::Broken, PromiseOutcome::Open].map(words::promise);
        let is_any = |mark| beyond.iter().any(|idx| all[*idx].1.mark == mark);
        let worst = worst.into_iter().find(|(_, mark)| is_any(*mark));
        let (word, mark) = worst.unwrap_or_else(|| words::promise(PromiseOutcome::Kept));
        let value = ValueWords { used: word.to_owned(), mark, ..ValueWords::default() };
        values.push((format!("{} more promises", beyond.len()), value));
    }
    values
}

/// Returns the words for a promise of a script, with its step and the title of its value.
fn promised_value((step, promise): &(Option<&StepSummary>, PromiseCell<'_>)) -> (String, ValueWords) {
    let title = promise.summary.map_or(promise.text, |summary| &summary.metric.title);
    let sign = promise.text.find(['<', '>', '≤', '≥', '=']).unwrap_or(0);
    let value = ValueWords {
        result: promise.value(),
        interval: promise.summary.map(words::interval).unwrap_or_default(),
        limit: promise.text[sign..].trim().to_owned(),
        used: promise.word.to_owned(),
        mark: promise.mark,
    };
    (step.map_or_else(|| title.to_owned(), |step| format!("{} {title}", step.name)), value)
}
