//! What can be wrong with a plan, found before anything is touched.

use fathom_model::{
    Plan, TestPlan,
    plan::{Reach, SCHEMA},
    units::Nanos,
};

use fathom_lab::preset::Options;

use super::{benchmark, sought};
use crate::{
    exit::{Exit, Screen, engine_screen},
    wire_up,
};

/// A trial longer than this is refused: everything has a bounded duration.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Reads a plan from TOML.
pub(crate) fn read_plan(text: &str) -> Result<Plan, toml::de::Error> {
    toml::from_str(text)
}

/// A plan as a file that can be run; keys are left out.
pub(crate) fn text(plan: &Plan) -> anyhow::Result<String> {
    Ok(toml::to_string_pretty(&without_keys(plan))?)
}

/// A plan as others may see it: a key is a secret.
pub(crate) fn without_keys(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    for reach in plan.hosts.values_mut() {
        if let Reach::Tls { key, .. } = reach {
            *key = None;
        }
    }
    plan
}

/// Narrower than a thousandth is below what machines repeat; wider than a half is no interval.
const UNTIL_CI: std::ops::RangeInclusive<f64> = 0.001..=0.5;

fn wrong(what: impl Into<String>) -> Screen {
    Screen::new(Exit::Usage, what)
}

/// Checks a plan whole, and writes every quantity in its exact form, defaults included.
pub(crate) fn complete(plan: &mut Plan) -> Result<(), Screen> {
    if plan.schema != SCHEMA {
        return Err(wrong(format!("this program reads plans of `{SCHEMA}`, not of `{}`", plan.schema)));
    }
    if plan.tests.is_empty() || plan.rounds == 0 {
        return Err(wrong("the plan has nothing to do").line("use", "at least one [[tests]] and rounds = 1"));
    }
    if let Some(width) = &plan.until_ci {
        sought::share(width, "until_ci", UNTIL_CI)?;
    }
    if let Some(lab) = &plan.lab {
        let preset = fathom_lab::preset::find(&lab.preset).map_err(|error| crate::command::lab_screen(&error))?;
        let device = lab.device.as_deref().map(str::parse).transpose();
        let device = device.map_err(|error| crate::command::lab_screen(&error))?;
        let options = Options { device, ..Options::default() };
        preset.device(&options).map_err(|error| crate::command::lab_screen(&error))?;
    }
    let hosts: Vec<String> = plan.hosts.keys().cloned().collect();
    if let Some(via) = &plan.via {
        let is_end = plan.tests.iter().any(|test| test.from == *via || test.to.as_ref() == Some(via));
        if !hosts.contains(via) || is_end {
            return Err(wrong(format!("via: `{via}` is not a host between two others")).line("hosts", hosts.join(", ")));
        }
    }
    let mut names: Vec<&str> = plan.tests.iter().map(|test| test.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0])) {
        return Err(wrong(format!("two tests are called `{twice}`")));
    }
    for n in 0..plan.tests.len() {
        let (before, from_here) = plan.tests.split_at_mut(n);
        let test = &mut from_here[0];
        complete_test(test, &hosts)
            .and_then(|()| follow(test, before))
            .map_err(|screen| screen.line("in", format!("test `{}`", test.name)))?;
    }
    Ok(())
}

/// A test that is made together with one before it is the same test between other ends: it takes over what it leaves open.
fn follow(test: &mut TestPlan, before: &[TestPlan]) -> Result<(), Screen> {
    let Some(name) = &test.beside else { return Ok(()) };
    let leads = |other: &&TestPlan| other.name == *name && other.beside.is_none();
    let Some(lead) = before.iter().find(leads) else {
        return Err(wrong(format!("beside: `{name}` is no test before this one that others can be beside")));
    };
    if test.search.is_some() || test.benchmark.is_some() || lead.search.is_some() {
        return Err(wrong(format!("a search makes one test at a time, so nothing is beside `{name}`"))
            .line("use", "a benchmark: its methods make several together"));
    }
    let other_option = test.options.0.iter().find(|(option, value)| lead.options.0.get(*option) != Some(*value));
    let differs = [
        ("kind", test.kind != lead.kind),
        ("warmup", test.warmup != lead.warmup),
        ("duration", test.duration != lead.duration),
        (other_option.map_or("options", |(option, _)| option.as_str()), other_option.is_some()),
    ];
    if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
        return Err(wrong(format!("{what}: a test that is beside `{name}` is the same one between other ends")));
    }
    test.options = lead.options.clone();
    Ok(())
}

fn complete_test(test: &mut TestPlan, hosts: &[String]) -> Result<(), Screen> {
    let kind = wire_up::kind(&test.kind).map_err(|error| wrong(error.to_string()))?;
    test.options = test.options.complete(kind.options()).map_err(|error| wrong(error.to_string()))?;
    let needs_two = kind.is_two_sided(&test.options);
    for host in std::iter::once(&test.from).chain(&test.to) {
        if !hosts.contains(host) {
            return Err(wrong(format!("there is no host `{host}`")).line("hosts", hosts.join(", ")));
        }
    }
    if needs_two && test.to.is_none() {
        return Err(wrong(format!("`{}` needs a host that answers", test.kind)).line("use", "to = \"HOST\""));
    }
    if !needs_two {
        test.to = None;
    }
    for (name, place) in [("warmup", &mut test.warmup), ("duration", &mut test.duration)] {
        let span: Nanos = place.parse().map_err(|error| wrong(format!("{name}: {error}")))?;
        if span > SPAN_MAX || (name == "duration" && span == Nanos::ZERO) {
            return Err(wrong(format!("{name}: {place} is not between 0 and {SPAN_MAX}")));
        }
        *place = span.exact();
    }
    sought::complete(test, kind)?;
    kind.check(&sought::first(test, kind)).map_err(|error| engine_screen(&error))?;
    benchmark::complete(test, kind)?;
    let metrics = sought::metrics(test, kind);
    for (name, text) in &test.expect {
        let metric = fathom_analyze::promise::find(&metrics, name);
        metric
            .and_then(|metric| fathom_analyze::promise::parse(text, metric))
            .map_err(|error| wrong(error.to_string()).line("use", error.hint()))?;
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
        complete(&mut plan).map_err(|screen| screen.to_string())?;
        Ok(plan)
    }

    /// The same test the other way, with more of it.
    fn with_back(more: &str) -> String {
        let back = PLAN.split_once("[[tests]]").unwrap().1.replace("name = \"rr\"", "name = \"back\"");
        let back = back.replace("expect = { latency_ns_p50 = \"< 1ms\" }", more);
        format!("{PLAN}[[tests]]{back}")
    }

    #[test]
    fn a_test_beside_another_is_the_same_one_and_takes_over_its_options() {
        let plan = completed(&with_back("beside = \"rr\"")).unwrap();
        assert_eq!(plan.tests[1].options, plan.tests[0].options);
        assert_eq!(completed(&text(&plan).unwrap()), Ok(plan));
        let wrong = |more: &str| completed(&with_back(more)).unwrap_err();
        assert!(wrong("beside = \"other\"").contains("`other` is no test before this one"));
        let longer = with_back("beside = \"rr\"");
        let at = longer.rfind("duration = \"1s\"").unwrap();
        let longer = format!("{}duration = \"2s\"{}", &longer[..at], &longer[at + "duration = \"1s\"".len()..]);
        let error = completed(&longer).unwrap_err();
        assert!(error.contains("duration: ") && error.contains("`rr`") && error.contains("`back`"), "{error}");
        let more = with_back("beside = \"rr\"").replace("options = { flows = 2 }", "options = { flows = 3 }");
        assert!(completed(&more).is_ok(), "both have three");
        let at = more.rfind("flows = 3").unwrap();
        let error = completed(&format!("{}flows = 4{}", &more[..at], &more[at + 9..])).unwrap_err();
        assert!(error.contains("flows: "), "{error}");
    }

    #[test]
    fn a_completed_plan_is_printed_and_read_back_as_the_same_plan() {
        let plan = completed(PLAN).unwrap();
        assert_eq!(plan.tests[0].warmup, "100ms");
        assert_eq!(completed(&text(&plan).unwrap()), Ok(plan));
    }

    #[test]
    fn a_search_is_completed_printed_and_read_back() {
        let search = "duration = \"1s\"\nsearch = { objective = \"lost<0.1 %\", option = \"pps\", low = \"1000\" }";
        let text = PLAN.replace("duration = \"1s\"", search).replace("tcp_rr", "udp_stream");
        let plan = completed(&text.replace("latency_ns_p50 = \"< 1ms\"", "limit_per_sec = \">= 20k\"")).unwrap();
        let search = plan.tests[0].search.clone().unwrap();
        assert_eq!((search.objective.as_str(), search.low.as_deref()), ("loss_ratio < 0.1 %", Some("1k/s")));
        assert_eq!(search.precision.as_deref(), Some("2.5%"));
        assert_eq!(completed(&super::text(&plan).unwrap()), Ok(plan));
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
