//! What can be wrong with a plan, found before anything is touched.

use fathom_model::{
    Plan, TestPlan,
    plan::{HostReach, SCHEMA},
    units::Nanos,
};

use fathom_lab::Options;

use super::{benchmark, search_spec};
use crate::{
    exit::{Exit, UserError, engine_error, lab_error},
    registry,
};

/// A trial longer than this is refused: everything has a bounded duration.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Reads a plan from TOML.
pub fn read_plan(text: &str) -> Result<Plan, toml::de::Error> {
    toml::from_str(text)
}

/// A plan as a file that can be run; keys are left out.
pub fn to_toml(plan: &Plan) -> anyhow::Result<String> {
    Ok(toml::to_string_pretty(&without_keys(plan))?)
}

/// A plan as others may see it: a key is a secret.
pub(super) fn without_keys(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for reach in plan.hosts.values_mut() {
        if let HostReach::Tls { key, .. } = reach {
            *key = None;
        }
    }
    plan
}

/// Narrower than a thousandth is below what machines repeat; wider than a half is no interval.
const UNTIL_CI: std::ops::RangeInclusive<f64> = 0.001..=0.5;

fn invalid_plan(what: impl Into<String>) -> UserError {
    UserError::new(Exit::Usage, what)
}

/// Checks a plan whole, and writes every quantity in its exact form, defaults included.
pub fn complete(plan: &mut Plan) -> Result<(), UserError> {
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
        let preset = fathom_lab::preset::find(&lab.preset).map_err(|error| lab_error(&error))?;
        let device = lab.device.as_deref().map(str::parse).transpose();
        let device = device.map_err(|error| lab_error(&error))?;
        let options = Options { device, ..Options::default() };
        preset.device(&options).map_err(|error| lab_error(&error))?;
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
    for n in 0..plan.tests.len() {
        let (before, from_here) = plan.tests.split_at_mut(n);
        let test = &mut from_here[0];
        let lead =
            lead_of(test, before).map_err(|user_error| user_error.with_line("in", format!("test `{}`", test.name)))?;
        if let Some(lead) = lead {
            for (option, value) in &lead.options.0 {
                test.options.0.entry(option.clone()).or_insert_with(|| value.clone());
            }
        }
        complete_test(test, &hosts)
            .and_then(|()| lead.map_or(Ok(()), |lead| check_paired(test, lead)))
            .map_err(|user_error| user_error.with_line("in", format!("test `{}`", test.name)))?;
    }
    Ok(())
}

/// The test before a test that it is made together with, if it is; that one leads, and is complete.
fn lead_of<'a>(test: &TestPlan, before: &'a [TestPlan]) -> Result<Option<&'a TestPlan>, UserError> {
    let Some(name) = &test.beside else { return Ok(None) };
    let leads = |other: &&TestPlan| other.name == *name && other.beside.is_none();
    let lead = before.iter().find(leads);
    let lead = lead.ok_or_else(|| invalid_plan(format!("beside: `{name}` is no test before this one that leads")))?;
    if let Some(other) = before.iter().find(|other| other.beside == test.beside) {
        return Err(invalid_plan(format!(
            "beside: `{}` is beside `{name}` already, and there are two ways",
            other.name
        )));
    }
    if test.kind != lead.kind {
        return Err(pair_differs("kind", name));
    }
    if test.from != *lead.to.as_ref().unwrap_or(&lead.from) || test.to.as_ref() != Some(&lead.from) {
        let ends = format!("from = \"{}\" and to = \"{}\"", lead.to.as_deref().unwrap_or_default(), lead.from);
        return Err(invalid_plan(format!("beside: this is not `{name}` the other way")).with_line("use", ends));
    }
    Ok(Some(lead))
}

/// A test that is made together with another differs from it by its way alone.
fn check_paired(test: &TestPlan, lead: &TestPlan) -> Result<(), UserError> {
    let name = &lead.name;
    if lead.search.is_some() {
        return Err(invalid_plan(format!("a search makes one test at a time, so nothing is beside `{name}`"))
            .with_line("use", "a benchmark: its methods make both ways together"));
    }
    if test.search.is_some() || test.benchmark.is_some() {
        return Err(invalid_plan(format!("what is searched for is said of `{name}`, and this test is part of it"))
            .with_line("use", "neither search nor benchmark here"));
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
    invalid_plan(format!("{what}: a test that is beside `{lead}` is the same one the other way"))
}

fn complete_test(test: &mut TestPlan, hosts: &[String]) -> Result<(), UserError> {
    let kind = registry::kind(&test.kind).map_err(|error| invalid_plan(error.to_string()))?;
    test.options = test.options.complete(kind.options()).map_err(|error| invalid_plan(error.to_string()))?;
    let needs_two = kind.is_two_sided(&test.options);
    for host in std::iter::once(&test.from).chain(&test.to) {
        if !hosts.contains(host) {
            return Err(invalid_plan(format!("there is no host `{host}`")).with_line("hosts", hosts.join(", ")));
        }
    }
    if needs_two && test.to.is_none() {
        return Err(
            invalid_plan(format!("`{}` needs a host that answers", test.kind)).with_line("use", "to = \"HOST\"")
        );
    }
    if !needs_two {
        test.to = None;
    }
    for (name, place) in [("warmup", &mut test.warmup), ("duration", &mut test.duration)] {
        let span: Nanos = place.parse().map_err(|error| invalid_plan(format!("{name}: {error}")))?;
        if span > SPAN_MAX || (name == "duration" && span == Nanos::ZERO) {
            return Err(invalid_plan(format!("{name}: {place} is not between 0 and {SPAN_MAX}")));
        }
        *place = span.exact();
    }
    search_spec::complete(test, kind)?;
    kind.check(&search_spec::first_options(test, kind)).map_err(|error| engine_error(&error))?;
    benchmark::complete(test, kind)?;
    let metrics = search_spec::metrics(test, kind);
    for (name, text) in &test.expect {
        let metric = fathom_analyze::promise::find(&metrics, name);
        metric
            .and_then(|metric| fathom_analyze::promise::parse(text, metric))
            .map_err(|error| invalid_plan(error.to_string()).with_line("use", error.hint()))?;
    }
    Ok(())
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
        let mut plan = read_plan(text).map_err(|error| error.to_string())?;
        complete(&mut plan).map_err(|user_error| user_error.to_string())?;
        Ok(plan)
    }

    /// The plan with a test that is beside its own one.
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
            (with_back(&second), "`back` is beside `rr` already"),
            (with_back(BACK).replace("beside = \"rr\"", "beside = \"other\""), "`other` is no test before this one"),
        ];
        for (text, named) in cases {
            let error = completed(&text).unwrap_err();
            assert!(error.contains(named), "{named}: {error}");
        }
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
