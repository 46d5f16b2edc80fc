//! A plan that is parsed and checked once, before anything is touched. All later code uses typed values.

use std::collections::BTreeMap;

use fathom_engine::TestKind;
use fathom_lab::Options;
use fathom_model::{
    Metric, Phases, Plan, Settings, TestPlan, Topology,
    plan::{HostReach, SCHEMA},
    units::Nanos,
};

use super::{
    benchmark_spec::{self, BenchmarkSpec},
    comparisons,
    events::TestEvents,
    pairs::{self, Pair},
    search_spec::{self, SearchSpec},
};
use crate::{
    exit::{Exit, UserError, engine_error, lab_error},
    registry,
};

/// The longest warm-up and the longest trial: everything has a bounded duration.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// The shortest interval: a short trial still has enough of them to see its warm-up end.
const INTERVAL_MIN: Nanos = Nanos::from_millis(10);
/// The longest interval: fine enough for a plot, coarse enough to cost nothing.
const INTERVAL_MAX: Nanos = Nanos::from_millis(50);

/// The trials of all interventions of a test: a series of four, and another one if the first cannot tell or refutes its cause.
pub(super) const PROOF_TRIALS_MAX: u32 = 8;
/// A trial of an intervention measures no longer than this: long enough for thousands of packets and a steady rate.
const PROOF_SPAN_MAX: Nanos = Nanos::from_secs(1);
/// Options that end a trial by something other than its time, or change the load during it: a short trial would be another test.
const OWN_ENDS: [&str; 5] = ["bytes", "count", "profile", "step-rate", "omit"];

/// A checked plan, ready to run.
pub struct CheckedPlan {
    plan: Plan,
    /// In the order of the plan.
    pub(super) tests: Vec<CheckedTest>,
}

/// A parsed test of a plan.
#[derive(Clone)]
pub(super) struct CheckedTest {
    /// Its index in the plan and in the run.
    pub idx: usize,
    pub name: String,
    /// The initiating host, or the name of a group of them.
    pub from: String,
    /// The responding host, or the name of a group of them.
    pub to: Option<String>,
    /// The pairs of hosts between which it runs at once; empty for two hosts.
    pub pairs: Vec<Pair>,
    /// Which hosts of a group are in no pair on their side, a sentence each.
    pub unpaired: Vec<String>,
    /// True if each pair gets the whole of rates, flows, connections and users.
    pub is_each: bool,
    pub kind: &'static dyn TestKind,
    pub options: Settings,
    pub phases: Phases,
    pub method: TestMethod,
    /// What happens during each trial.
    pub events: TestEvents,
    /// The index of the same test in the other direction, if both run at once.
    pub reverse: Option<usize>,
    /// False for a test that runs together with the one before it.
    pub is_leading: bool,
    /// The name of the path that it takes.
    pub path: Option<String>,
    /// The index of its comparison in the plan.
    pub comparison: Option<usize>,
}

/// The method that decides the trials of a test.
#[derive(Clone)]
pub(super) enum TestMethod {
    /// One trial per round.
    Rounds,
    /// As many trials as needed to find the highest rate that keeps an objective.
    Search(Box<SearchSpec>),
    /// The trials of benchmarking methods.
    Benchmark(Box<BenchmarkSpec>),
}

impl CheckedPlan {
    /// Checks a plan, writes every quantity in its exact form, and fills in the defaults.
    ///
    /// # Errors
    /// Names the first invalid value and its test.
    pub fn new(mut plan: Plan) -> Result<Self, UserError> {
        check_frame(&plan)?;
        let hosts = NamedHosts::of(&plan)?;
        let mut tests: Vec<CheckedTest> = Vec::new();
        for idx in 0..plan.tests.len() {
            let (before, from_here) = plan.tests.split_at_mut(idx);
            let is_last = from_here.len() == 1;
            let test = &mut from_here[0];
            let in_test = format!("test `{}`", test.name);
            let checked = check_test(idx, test, before, &hosts);
            let checked =
                checked.and_then(|checked| checked.events.check_final(plan.rounds, is_last).map(|()| checked));
            let checked = checked.map_err(|user_error| user_error.with_line("in", in_test))?;
            if let Some(lead) = lead_index(test, before) {
                tests[lead].reverse = Some(idx);
                tests[lead].phases.is_warmup_whole = true;
            }
            tests.push(checked);
        }
        for (test, comparison) in tests.iter_mut().zip(comparisons::check(&plan)?) {
            test.comparison = comparison;
        }
        if plan.prove && !tests.iter().any(CheckedTest::can_be_repeated) {
            let text = "prove: no test of this plan can be repeated with one option changed";
            return Err(
                invalid_plan(text).with_line("use", "a test at one rate, in one direction, that ends by its time")
            );
        }
        Ok(Self { plan, tests })
    }

    /// Returns the plan for results and plan files.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the tests with trials of their own. Tests of the other direction run together with them.
    pub(super) fn leading_tests(&self) -> impl Iterator<Item = &CheckedTest> {
        self.tests.iter().filter(|test| test.is_leading)
    }

    /// Returns the same test in the other direction, if both run at once.
    pub(super) fn reverse_of(&self, test: &CheckedTest) -> Option<&CheckedTest> {
        test.reverse.map(|idx| &self.tests[idx])
    }
}

impl CheckedTest {
    /// Returns the same test with other options.
    pub(super) fn with_options(&self, options: Settings) -> Self {
        Self { options, ..self.clone() }
    }

    /// Returns the metric that the test is about, if that is not its first one. A search is about its limit.
    pub(super) fn headline(&self) -> Option<&'static str> {
        let is_plain = matches!(self.method, TestMethod::Rounds);
        self.kind.headline(&self.options).filter(|_| is_plain)
    }

    /// Returns the title of the kind: of several pairs that of each, or that of all where their parts differ.
    pub(super) fn title(&self) -> String {
        let whole = self.kind.title(&self.options);
        if self.pairs.len() < 2 {
            return whole;
        }
        let parts: Vec<String> =
            (0..self.pairs.len()).map(|place| self.kind.title(&self.options_of_pair(place))).collect();
        let n = self.pairs.len();
        let word = if self.pairs.iter().all(|pair| pair.to.is_some()) { "pairs" } else { "hosts" };
        if parts.iter().all(|part| *part == parts[0]) {
            format!("{}, on each of {n} {word}", parts[0])
        } else {
            format!("{whole} in all, on {n} {word}")
        }
    }

    /// Returns the options of the pair at this place.
    pub(super) fn options_of_pair(&self, place: usize) -> Settings {
        if self.is_each || self.pairs.len() < 2 {
            return self.options.clone();
        }
        pairs::part_of(&self.options, self.kind.options(), self.pairs.len(), place)
    }

    /// Returns the hosts that initiate.
    pub(super) fn initiating_hosts(&self) -> impl Iterator<Item = &str> {
        let of_pairs = self.pairs.iter().map(|pair| pair.from.as_str());
        of_pairs.chain(Some(self.from.as_str()).filter(|_| self.pairs.is_empty()))
    }

    /// Returns true if a host is an end of the test, or of one of its pairs.
    pub(super) fn has_end(&self, host: &str) -> bool {
        match self.pairs.as_slice() {
            [] => is_end(host, &self.from, self.to.as_ref()),
            pairs => pairs.iter().any(|pair| is_end(host, &pair.from, pair.to.as_ref())),
        }
    }

    /// Returns true if nothing of the test can run without this host.
    pub(super) fn needs(&self, host: &str) -> bool {
        match self.pairs.as_slice() {
            [] => is_end(host, &self.from, self.to.as_ref()),
            pairs => pairs.iter().all(|pair| is_end(host, &pair.from, pair.to.as_ref())),
        }
    }

    /// Returns the same test with a measured time of `span`.
    pub(super) fn lasting(self, span: Nanos) -> Self {
        Self { phases: phases(self.phases.warmup_max_ns, span, self.phases.is_warmup_whole), ..self }
    }

    /// Returns the same test without a warm-up.
    pub(super) fn without_warmup(mut self) -> Self {
        self.phases.warmup_max_ns = Nanos::ZERO;
        self
    }

    /// Returns true if short trials of the test measure the same.
    pub(super) fn can_be_repeated(&self) -> bool {
        let is_alone = self.is_leading && self.reverse.is_none();
        let has_own_end = OWN_ENDS.iter().any(|option| self.options.text(option).is_some());
        matches!(self.method, TestMethod::Rounds) && is_alone && !has_own_end && !self.events.is_final()
    }

    /// Returns the same test with a short measured time, for an intervention.
    pub(super) fn shortened(&self) -> Self {
        self.clone().lasting(self.phases.measure_ns.min(PROOF_SPAN_MAX))
    }

    /// Returns the search, if the test is one.
    pub(super) fn search(&self) -> Option<&SearchSpec> {
        match &self.method {
            TestMethod::Search(spec) => Some(spec),
            _ => None,
        }
    }

    /// Returns the benchmark, if the test is one.
    pub(super) fn benchmark(&self) -> Option<&BenchmarkSpec> {
        match &self.method {
            TestMethod::Benchmark(spec) => Some(spec),
            _ => None,
        }
    }
}

fn phases(warmup_max_ns: Nanos, measure_ns: Nanos, is_warmup_whole: bool) -> Phases {
    let interval_ns = (measure_ns / 10).max(INTERVAL_MIN).min(INTERVAL_MAX);
    Phases { warmup_max_ns, is_warmup_whole, measure_ns, interval_ns }
}

fn is_end(host: &str, from: &str, to: Option<&String>) -> bool {
    from == host || to.is_some_and(|to| to == host)
}

/// Parses a plan from TOML.
pub fn read_plan(text: &str) -> Result<Plan, toml::de::Error> {
    toml::from_str(text)
}

/// Formats a plan as a TOML file that can be run, without keys.
pub fn to_toml(plan: &Plan) -> anyhow::Result<String> {
    Ok(toml::to_string_pretty(&without_keys(plan))?)
}

/// Returns a plan without its keys, which are secret.
pub(super) fn without_keys(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for reach in plan.hosts.values_mut() {
        if let HostReach::Tls { key, .. } = reach {
            *key = None;
        }
    }
    plan
}

/// The allowed widths of `until_ci`. Machines do not repeat to less than a thousandth, and an interval wider than a half is useless.
const UNTIL_CI: std::ops::RangeInclusive<f64> = 0.001..=0.5;

fn invalid_plan(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks a plan except for its individual tests.
fn check_frame(plan: &Plan) -> Result<(), UserError> {
    if plan.schema != SCHEMA {
        return Err(invalid_plan(format!("this program reads plans of `{SCHEMA}`, not of `{}`", plan.schema)));
    }
    if plan.tests.is_empty() || plan.rounds == 0 {
        return Err(
            invalid_plan("the plan has nothing to do").with_line("use", "at least one [[tests]] and rounds = 1")
        );
    }
    if let Some(width) = &plan.until_ci {
        search_spec::parse_share(width, "until_ci", UNTIL_CI)?;
    }
    if let Some(lab) = &plan.lab {
        let device = lab.device.as_deref().map(str::parse).transpose();
        let device = device.map_err(|error| lab_error(&error))?;
        let options = Options { device, ..Options::default() };
        let (preset, options) = fathom_lab::preset::chosen(&lab.preset, options).map_err(|error| lab_error(&error))?;
        preset.device(&options).map_err(|error| lab_error(&error))?;
        if lab.direct_wire && preset.has_companions() {
            let what = format!("direct_wire: the hosts of the preset {} are joined by a switch", preset.name);
            return Err(invalid_plan(what).with_line("use", "preset = \"pair\""));
        }
    }
    let hosts: Vec<String> = plan.hosts.keys().cloned().collect();
    if let Some(via) = &plan.via {
        let is_end = plan.tests.iter().any(|test| test.from == *via || test.to.as_ref() == Some(via));
        if !hosts.contains(via) || is_end {
            return Err(invalid_plan(format!("via: `{via}` is not a host between two others"))
                .with_line("hosts", hosts.join(", ")));
        }
    }
    let mut names: Vec<&str> = plan.tests.iter().map(|test| test.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
        return Err(invalid_plan(format!("two tests are called `{twice}`")));
    }
    Ok(())
}

/// Checks a test and fills in its defaults. A test of the other direction inherits unset options from its leading test.
fn check_test(
    idx: usize,
    test: &mut TestPlan,
    before: &[TestPlan],
    hosts: &NamedHosts,
) -> Result<CheckedTest, UserError> {
    let lead = lead_of(test, before)?;
    if let Some(lead) = lead {
        for (option, value) in &lead.options.0 {
            test.options.0.entry(option.clone()).or_insert_with(|| value.clone());
        }
    }
    let checked = complete_test(idx, test, hosts)?;
    lead.map_or(Ok(()), |lead| check_paired(test, lead))?;
    Ok(checked)
}

/// Returns the index of the leading test of a test.
fn lead_index(test: &TestPlan, before: &[TestPlan]) -> Option<usize> {
    let name = test.paired_with.as_ref()?;
    before.iter().position(|other| other.name == *name && other.paired_with.is_none())
}

/// Returns the leading test of a test. Its defaults are already filled in.
fn lead_of<'a>(test: &TestPlan, before: &'a [TestPlan]) -> Result<Option<&'a TestPlan>, UserError> {
    let Some(name) = &test.paired_with else { return Ok(None) };
    let lead = lead_index(test, before).map(|idx| &before[idx]);
    let lead =
        lead.ok_or_else(|| invalid_plan(format!("beside: `{name}` must be an earlier test without `beside`")))?;
    if let Some(other) = before.iter().find(|other| other.paired_with == test.paired_with) {
        return Err(invalid_plan(format!(
            "beside: `{}` is already paired with `{name}`, and a pair has two tests",
            other.name
        )));
    }
    if test.kind != lead.kind {
        return Err(pair_differs("kind", name));
    }
    if test.from != *lead.to.as_ref().unwrap_or(&lead.from) || test.to.as_ref() != Some(&lead.from) {
        let ends = format!("from = \"{}\" and to = \"{}\"", lead.to.as_deref().unwrap_or_default(), lead.from);
        return Err(invalid_plan(format!("beside: this test does not run in the opposite direction of `{name}`"))
            .with_line("use", ends));
    }
    Ok(Some(lead))
}

/// Checks that a test differs from its leading test only by its direction.
fn check_paired(test: &TestPlan, lead: &TestPlan) -> Result<(), UserError> {
    let name = &lead.name;
    if lead.search.is_some() {
        return Err(invalid_plan(format!("a search runs one test at a time, so no test can be paired with `{name}`"))
            .with_line("use", "a benchmark: its methods test both directions at once"));
    }
    if test.search.is_some() || test.benchmark.is_some() {
        return Err(invalid_plan(format!(
            "this test is paired with `{name}`, so only `{name}` can have a search or a benchmark"
        ))
        .with_line("use", "no search and no benchmark in this test"));
    }
    let other_option = test.options.0.iter().find(|(option, value)| lead.options.0.get(*option) != Some(*value));
    let all = [
        ("warmup", test.warmup != lead.warmup),
        ("duration", test.duration != lead.duration),
        (other_option.map_or("options", |(option, _)| option.as_str()), other_option.is_some()),
    ];
    all.into_iter().find(|(_, is_other)| *is_other).map_or(Ok(()), |(what, _)| Err(pair_differs(what, name)))
}

fn pair_differs(what: &str, lead: &str) -> UserError {
    invalid_plan(format!("{what}: a test that is paired with `{lead}` can differ from it only in direction"))
}

fn complete_test(idx: usize, test: &mut TestPlan, hosts: &NamedHosts) -> Result<CheckedTest, UserError> {
    let kind = registry::kind(&test.kind).map_err(|error| invalid_plan(error.to_string()))?;
    test.options = test.options.complete(kind.options()).map_err(|error| invalid_plan(error.to_string()))?;
    complete_sides(test, kind, hosts)?;
    let warmup = complete_span("warmup", &mut test.warmup)?;
    let duration = complete_span("duration", &mut test.duration)?;
    if duration == Nanos::ZERO {
        return Err(invalid_plan("duration: a trial has to last longer than 0"));
    }
    let search = search_spec::complete(test, kind)?;
    let first_options = search.as_ref().map(|spec| spec.first_options(&test.options));
    kind.check(first_options.as_ref().unwrap_or(&test.options)).map_err(|error| engine_error(&error))?;
    let benchmark = benchmark_spec::complete(test, kind)?;
    let limit = search.as_ref().map(SearchSpec::limit_metric);
    check_promises(test, &limit.into_iter().chain(kind.metrics().iter().cloned()).collect::<Vec<_>>())?;
    let method = match (search, benchmark) {
        (Some(search), _) => TestMethod::Search(Box::new(search)),
        (None, Some(benchmark)) => TestMethod::Benchmark(Box::new(benchmark)),
        (None, None) => TestMethod::Rounds,
    };
    check_events_are_possible(test, &method)?;
    // The option `omit` sets a warm-up of exactly that length.
    let omitted = test.options.span("omit");
    let pairs = hosts.pairs_of(test, kind)?;
    // Pairs that run together also measure together.
    let phases = phases(omitted.unwrap_or(warmup), duration, omitted.is_some() || !pairs.is_empty());
    // A warm-up that is not whole may end at once.
    let certain = if phases.is_warmup_whole { phases.longest() } else { phases.measure_ns };
    let events = TestEvents::of(hosts.has_lab, &test.events, &test.afterwards, certain)?;
    Ok(CheckedTest {
        idx,
        name: test.name.clone(),
        from: hosts.label(&test.from),
        to: test.to.as_ref().map(|to| hosts.label(to)),
        kind,
        options: test.options.clone(),
        phases,
        unpaired: hosts.unpaired(test, &pairs)?,
        pairs,
        is_each: test.each,
        method,
        events,
        reverse: None,
        is_leading: test.paired_with.is_none(),
        path: test.path.clone(),
        // Its name is checked with all comparisons.
        comparison: None,
    })
}

/// Checks that the plan has the hosts of a test, and that a kind with two sides has both; a kind with one side takes no other.
fn complete_sides(test: &mut TestPlan, kind: &dyn TestKind, hosts: &NamedHosts) -> Result<(), UserError> {
    for host in std::iter::once(&test.from).chain(&test.to) {
        hosts.named(host)?;
    }
    if !kind.is_two_sided(&test.options) {
        test.to = None;
    } else if test.to.is_none() {
        let error = invalid_plan(format!("`{}` needs a host that answers", test.kind));
        return Err(error.with_line("use", "to = \"HOST\""));
    }
    Ok(())
}

/// Checks that each promise of a test names one of its metrics, with a bound in the unit of that metric.
fn check_promises(test: &TestPlan, metrics: &[Metric]) -> Result<(), UserError> {
    test.expect.iter().try_for_each(|(name, text)| {
        let metric = fathom_analyze::promise::find(metrics, name);
        let promise = metric.and_then(|metric| fathom_analyze::promise::parse(text, metric));
        promise.map(|_| ()).map_err(|error| invalid_plan(error.to_string()).with_line("use", error.hint()))
    })
}

fn check_events_are_possible(test: &TestPlan, method: &TestMethod) -> Result<(), UserError> {
    let is_scheduled = !matches!(method, TestMethod::Rounds) || test.paired_with.is_some();
    if is_scheduled && !test.events.is_empty() {
        let what = "at: a search, a benchmark and the other direction of a test have no events";
        return Err(invalid_plan(what).with_line("use", "a test at one rate, in one direction"));
    }
    Ok(())
}

/// The hosts of a plan and its groups.
struct NamedHosts {
    hosts: Vec<String>,
    /// Whether some of them are in a lab.
    has_lab: bool,
    groups: BTreeMap<String, Vec<String>>,
}

impl NamedHosts {
    /// Checks that each group names hosts of the plan, each once.
    fn of(plan: &Plan) -> Result<Self, UserError> {
        let hosts: Vec<String> = plan.hosts.keys().cloned().collect();
        for (name, members) in &plan.groups {
            let wrong = |what: String| invalid_plan(format!("group `{name}`: {what}"));
            if hosts.contains(name) {
                return Err(wrong("a host has this name".to_owned()));
            }
            if let Some(unknown) = members.iter().find(|member| !hosts.contains(member)) {
                return Err(wrong(format!("there is no host `{unknown}`")).with_line("hosts", hosts.join(", ")));
            }
            let mut sorted = members.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if members.is_empty() || sorted.len() < members.len() {
                return Err(wrong("it needs at least one host, and each of them once".to_owned()));
            }
        }
        let has_lab = plan.hosts.values().any(HostReach::is_of_lab);
        Ok(Self { hosts, has_lab, groups: plan.groups.clone() })
    }

    /// Returns the hosts of a group, or the host with this name.
    fn named(&self, name: &String) -> Result<Vec<String>, UserError> {
        if let Some(group) = self.groups.get(name) {
            return Ok(group.clone());
        }
        if self.hosts.contains(name) {
            return Ok(vec![name.clone()]);
        }
        let error = invalid_plan(format!("there is no host `{name}`")).with_line("hosts", self.hosts.join(", "));
        let groups: Vec<&str> = self.groups.keys().map(String::as_str).collect();
        Err(if groups.is_empty() { error } else { error.with_line("groups", groups.join(", ")) })
    }

    /// Returns the name for results: that of the host if a group has only one.
    fn label(&self, name: &str) -> String {
        match self.groups.get(name).map(Vec::as_slice) {
            Some([only]) => only.clone(),
            _ => name.to_owned(),
        }
    }

    /// Returns the pairs of hosts of a test, or none if it has two hosts or one.
    fn pairs_of(&self, test: &TestPlan, kind: &dyn TestKind) -> Result<Vec<Pair>, UserError> {
        let from = self.named(&test.from)?;
        let to = test.to.as_ref().map(|to| self.named(to)).transpose()?;
        if from.len() == 1 && to.as_ref().is_none_or(|to| to.len() == 1) {
            if test.topology.is_some() && to.as_ref() == Some(&from) {
                let what = format!("topology: `{}` alone makes no pair", from[0]);
                return Err(invalid_plan(what).with_line("use", "two hosts or more"));
            }
            return Ok(Vec::new());
        }
        let usual = if from.len() > 1 && to.as_ref() == Some(&from) { Topology::Mesh } else { Topology::Star };
        let joined = pairs::pairs(test.topology.unwrap_or(usual), &from, to.as_deref()).map_err(|why| {
            invalid_plan(format!("topology: {why}"))
                .with_line("use", "star, ring or mesh, and `from` and `to` that fit it")
        })?;
        if let Some(host) = pairs::shared_host(&joined, kind.device_owners(&test.options)) {
            let what =
                format!("`{}` takes the device of a host for one pair of hosts, and `{host}` is in several", test.kind);
            return Err(
                invalid_plan(what).with_line("use", "pairs that share no host, another engine or another backend")
            );
        }
        if test.benchmark.is_some() || test.paired_with.is_some() {
            let what = "a benchmark, and a test in both directions at once, run between two hosts";
            return Err(invalid_plan(what).with_line("use", "one host in `from` and one in `to`"));
        }
        if !test.each {
            pairs::check_division(&test.options, kind.options(), joined.len()).map_err(|why| {
                invalid_plan(why).with_line("use", "--each, or each = true in a plan: every pair gets the whole of it")
            })?;
        }
        Ok(joined)
    }
}

impl NamedHosts {
    /// Says which hosts of a test have no partner on a side that names them.
    fn unpaired(&self, test: &TestPlan, pairs: &[Pair]) -> Result<Vec<String>, UserError> {
        let Some(to) = test.to.as_ref().filter(|_| !pairs.is_empty()) else { return Ok(Vec::new()) };
        Ok(pairs::unpaired(pairs, &self.named(&test.from)?, &self.named(to)?))
    }
}

/// Parses a span of a test and rewrites its text in exact form.
fn complete_span(name: &str, text: &mut String) -> Result<Nanos, UserError> {
    let span: Nanos = text.parse().map_err(|error| invalid_plan(format!("{name}: {error}")))?;
    if span > SPAN_MAX {
        return Err(invalid_plan(format!("{name}: {text} is not between 0 and {SPAN_MAX}")));
    }
    *text = span.exact();
    Ok(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        schema = "fathom.plan/1"
        title = "one"
        rounds = 1
        [hosts]
        here = "self"
        [[tests]]
        name = "rr"
        kind = "tcp_rr"
        from = "here"
        to = "here"
        warmup = "0.1s"
        duration = "1s"
        options = { flows = 2 }
        expect = { latency_ns_p50 = "< 1ms" }
    "#;

    fn completed(text: &str) -> Result<Plan, String> {
        let plan = read_plan(text).map_err(|error| error.to_string())?;
        CheckedPlan::new(plan).map(|checked| checked.plan).map_err(|user_error| user_error.to_string())
    }

    /// Returns the plan with a second test `beside` its first.
    fn with_back(back: &str) -> String {
        let lead = PLAN.replace("options = { flows = 2 }", "options = { flows = 2, request = \"64\" }");
        format!("{lead}\n[[tests]]\nname = \"back\"\nbeside = \"rr\"\nfrom = \"here\"\nto = \"here\"\n{back}")
    }

    const BACK: &str = "kind = \"tcp_rr\"\nwarmup = \"0.1s\"\nduration = \"1s\"\n";

    #[test]
    fn a_test_beside_another_takes_over_what_it_leaves_open_and_may_not_differ() {
        let plan = completed(&with_back(BACK)).unwrap();
        assert_eq!(plan.tests[1].options, plan.tests[0].options);
        assert_eq!(plan.tests[1].options.text("request").as_deref(), Some("64"), "which is no default");
        assert_eq!(completed(&to_toml(&plan).unwrap()), Ok(plan));
        let given = format!("{BACK}options = {{ flows = 2 }}");
        assert!(completed(&with_back(&given)).is_ok());
        let second =
            format!("{BACK}[[tests]]\nname = \"third\"\nbeside = \"rr\"\nfrom = \"here\"\nto = \"here\"\n{BACK}");
        let cases = [
            (with_back(&BACK.replace("\"1s\"", "\"2s\"")), "duration: "),
            (with_back(&BACK.replace("0.1s", "0.2s")), "warmup: "),
            (with_back(&BACK.replace("tcp_rr", "tcp_stream")), "kind: "),
            (with_back(&format!("{BACK}options = {{ flows = 3 }}")), "flows: "),
            (with_back(&second), "`back` is already paired with `rr`"),
            (with_back(BACK).replace("beside = \"rr\"", "beside = \"other\""), "`other` must be an earlier test"),
        ];
        for (text, named) in cases {
            let error = completed(&text).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    /// Returns the plan between three companions and a tested host.
    fn with_star(options: &str) -> String {
        let hosts = "here = \"self\"\nc1 = \"self\"\nc2 = \"self\"\nc3 = \"self\"\n[groups]\ncompanions = [\"c1\", \"c2\", \"c3\"]\none = [\"c2\"]";
        let star = PLAN.replace("here = \"self\"", hosts).replace("from = \"here\"", "from = \"companions\"");
        star.replace("options = { flows = 2 }", options)
    }

    #[test]
    fn a_test_of_a_group_has_a_pair_for_each_host_and_divides_its_totals() {
        let checked = CheckedPlan::new(read_plan(&with_star("options = { flows = 8 }")).unwrap()).unwrap();
        let test = &checked.tests[0];
        let flows: Vec<_> = (0..3).map(|place| test.options_of_pair(place).count("flows").unwrap()).collect();
        assert_eq!((test.pairs.len(), flows, test.phases.is_warmup_whole), (3, vec![3, 3, 2], true));
        let each = with_star("options = { flows = 8 }\neach = true");
        let each = CheckedPlan::new(read_plan(&each).unwrap()).unwrap();
        assert_eq!(each.tests[0].options_of_pair(1).count("flows"), Some(8));
        assert_eq!(completed(&to_toml(each.plan()).unwrap()).as_ref(), Ok(each.plan()));
        let single = with_star("").replace("\"companions\"\n", "\"one\"\n");
        let single = CheckedPlan::new(read_plan(&single).unwrap()).unwrap();
        assert_eq!((single.tests[0].pairs.len(), single.tests[0].from.as_str()), (0, "c2"));
    }

    #[test]
    fn the_title_of_several_pairs_says_how_many_and_what_each_has() {
        let cases = [
            ("", "rr, 1 flow, on each of 3 pairs"),
            ("options = { flows = 9 }", "rr, 3 flows, on each of 3 pairs"),
            ("options = { flows = 9 }\neach = true", "rr, 9 flows, on each of 3 pairs"),
            ("options = { flows = 8 }", "rr, 8 flows in all, on 3 pairs"),
        ];
        for (options, title) in cases {
            let checked = CheckedPlan::new(read_plan(&with_star(options)).unwrap()).unwrap();
            assert_eq!(checked.tests[0].title(), title, "{options}");
        }
        let two_hosts = CheckedPlan::new(read_plan(PLAN).unwrap()).unwrap();
        assert_eq!(two_hosts.tests[0].title(), "rr, 2 flows");
    }

    #[test]
    fn a_host_without_a_partner_is_named_and_one_host_is_no_topology() {
        let unpaired = |text: &str| CheckedPlan::new(read_plan(text).unwrap()).unwrap().tests.remove(0).unpaired;
        assert_eq!(unpaired(&with_star("")), Vec::<String>::new());
        let found = unpaired(&with_star("").replace("to = \"here\"", "to = \"c2\""));
        assert!(found.len() == 1 && found[0].starts_with("`c2` starts no test"), "{found:?}");
        let alone = with_star("topology = \"mesh\"").replace("\"companions\"\n", "\"one\"\n");
        let error = completed(&alone.replace("to = \"here\"", "to = \"c2\"")).unwrap_err();
        assert!(error.contains("`c2` alone makes no pair"), "{error}");
    }

    #[test]
    fn groups_that_cannot_be_joined_are_refused_by_name() {
        let cases = [
            (with_star("options = { flows = 2 }"), "flows: 2 cannot be divided"),
            (with_star("topology = \"ring\""), "a ring has one group of hosts"),
            (with_star("").replace("\"c2\", \"c3\"]", "\"c2\", \"c9\"]"), "there is no host `c9`"),
            (with_star("").replace("\"c2\", \"c3\"]", "\"c1\"]"), "each of them once"),
            (with_star("").replace("one = ", "here = "), "a host has this name"),
            (with_star("").replace("to = \"here\"", "to = \"there\""), "there is no host `there`"),
            (with_star("beside = \"x\""), "beside"),
        ];
        for (text, named) in cases {
            let error = completed(&text).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
    }

    #[test]
    fn the_warm_up_is_whole_if_it_is_omitted_or_if_both_directions_run_at_once() {
        let phases = |text: &str| {
            let checked = CheckedPlan::new(read_plan(text).unwrap()).unwrap();
            let Phases { warmup_max_ns, is_warmup_whole, measure_ns, .. } = checked.tests[0].phases;
            (warmup_max_ns, is_warmup_whole, measure_ns)
        };
        let (warmup, measured) = (Nanos::from_millis(100), Nanos::from_secs(1));
        assert_eq!(phases(PLAN), (warmup, false, measured));
        let omitting = PLAN.replace("tcp_rr", "tcp_stream").replace("flows = 2", "omit = \"300ms\"");
        let omitting = omitting.replace("latency_ns_p50 = \"< 1ms\"", "");
        assert_eq!(phases(&omitting), (Nanos::from_millis(300), true, measured));
        assert_eq!(phases(&with_back(BACK)), (warmup, true, measured));
    }

    #[test]
    fn a_completed_plan_is_printed_and_read_back_as_the_same_plan() {
        let plan = completed(PLAN).unwrap();
        assert_eq!(plan.tests[0].warmup, "100ms");
        assert_eq!(completed(&to_toml(&plan).unwrap()), Ok(plan));
    }

    #[test]
    fn a_search_is_completed_printed_and_read_back() {
        let search = "duration = \"1s\"\nsearch = { objective = \"lost<0.1 %\", option = \"pps\", low = \"1000\" }";
        let text = PLAN.replace("duration = \"1s\"", search).replace("tcp_rr", "udp_stream");
        let plan = completed(&text.replace("latency_ns_p50 = \"< 1ms\"", "limit_per_sec = \">= 20k\"")).unwrap();
        let search = plan.tests[0].search.clone().unwrap();
        assert_eq!((search.objective.as_str(), search.low.as_deref()), ("loss_ratio < 0.1 %", Some("1k/s")));
        assert_eq!(search.precision.as_deref(), Some("2.5%"));
        assert_eq!(completed(&super::to_toml(&plan).unwrap()), Ok(plan));
    }

    #[test]
    fn what_is_wrong_is_named_before_anything_is_touched() {
        let cases = [
            ("kind = \"tcp_rr\"", "kind = \"tcp_qq\"", "tcp_qq"),
            ("flows = 2", "flows = 0", "flows"),
            ("flows = 2", "flow = 2", "did you mean `flows`?"),
            ("to = \"here\"", "to = \"there\"", "there is no host `there`"),
            ("duration = \"1s\"", "duration = \"1 parsec\"", "duration"),
            ("rounds = 1", "rounds = 0", "nothing to do"),
            ("latency_ns_p50", "latency", "latency"),
            ("fathom.plan/1", "fathom.plan/9", "fathom.plan/9"),
            ("rounds = 1", "rounds = 1\nroundz = 2", "roundz"),
        ];
        for (right, wrong, named) in cases {
            let error = completed(&PLAN.replace(right, wrong)).unwrap_err();
            assert!(error.contains(named), "{wrong}: {error}");
        }
    }
}
