//! Small plans, and the scenarios that they become.

use super::*;
use crate::{
    Format, ImportOptions, import,
    write::{ImportResult, write},
};

fn plan(users: &str, elements: &str) -> String {
    format!(
        "<jmeterTestPlan><hashTree><TestPlan testname=\"Plan\"/><hashTree>\
         <ThreadGroup testname=\"Users\">{users}</ThreadGroup><hashTree>{elements}</hashTree></hashTree></hashTree></jmeterTestPlan>"
    )
}

fn property(name: &str, value: &str) -> String {
    format!("<stringProp name=\"{name}\">{value}</stringProp>")
}

/// An element with its properties and children.
fn element(tag: &str, properties: &[(&str, &str)], below: &str) -> String {
    let properties: String = properties.iter().map(|(name, value)| property(name, value)).collect();
    format!("<{tag} testname=\"{tag}\">{properties}</{tag}><hashTree>{below}</hashTree>")
}

fn http(path: &str, below: &str) -> String {
    element("HTTPSamplerProxy", &[("HTTPSampler.domain", "a.test"), ("HTTPSampler.path", path)], below)
}

fn imported(elements: &str) -> ImportResult {
    write(&read(&plan("", elements)).unwrap(), "x").unwrap()
}

/// The lines of the only user.
fn lines(elements: &str) -> Vec<String> {
    let text = imported(elements).text;
    let (_, user) = text.split_once("user Users\n").unwrap();
    user.lines().map(|line| line.strip_prefix("  ").unwrap_or(line).to_owned()).collect()
}

#[test]
fn timers_and_headers_hold_for_their_siblings_and_below_and_nowhere_else() {
    let header = |value: &str| {
        format!(
            "<HeaderManager testname=\"H\"><collectionProp name=\"HeaderManager.headers\"><elementProp name=\"\">{}{}\
             </elementProp></collectionProp></HeaderManager><hashTree/>",
            property("Header.name", "X"),
            property("Header.value", value)
        )
    };
    let timer = element("ConstantTimer", &[("ConstantTimer.delay", "100")], "");
    let inner = format!("{}{timer}{}", http("/1", &header("near")), http("/2", ""));
    let all = format!("{}{}{}", element("GenericController", &[], &inner), http("/3", ""), header("far"));
    assert_eq!(
        lines(&all),
        [
            "think 100ms",
            "step HTTPSamplerProxy",
            "  GET /1",
            "  X: near",
            "think 100ms",
            "step HTTPSamplerProxy 2",
            "  GET /2",
            "  X: far",
            "step HTTPSamplerProxy 3",
            "  GET /3",
            "  X: far",
        ]
    );
}

#[test]
fn controllers_become_blocks() {
    for (tag, properties, expected) in [
        ("LoopController", &[("LoopController.loops", "3")][..], "repeat 3"),
        ("IfController", &[("IfController.condition", "\"${a}\" == \"b\"")], "if ${a} == \"b\""),
        ("WhileController", &[("WhileController.condition", "${__jexl3(${a} &lt; 3)}")], "while ${a} < 3"),
        ("OnceOnlyController", &[], "if ${iteration} == 1"),
        ("TransactionController", &[], "transaction TransactionController"),
        (
            "ThroughputController",
            &[("ThroughputController.style", "1"), ("ThroughputController.percentThroughput", "30")],
            "chance 30%",
        ),
    ] {
        assert_eq!(lines(&element(tag, properties, &http("/x", "")))[0], expected);
    }
}

#[test]
fn what_is_not_understood_is_told_with_its_path_and_stands_at_its_place() {
    let unknown = element("BeanShellPreProcessor", &[], "");
    let condition = element("IfController", &[("IfController.condition", "${__groovy(1)}")], &http("/never", ""));
    let all = format!("{}{condition}", http("/x", &unknown));
    let notes: Vec<_> = imported(&all).notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "Plan / Users / HTTPSamplerProxy / BeanShellPreProcessor: BeanShellPreProcessor is not supported, and left out",
            "Plan / Users / IfController: IfController is left out with all that is in it: its condition is not understood: ${__groovy(1)}",
        ]
    );
    let lines = lines(&all);
    assert_eq!(
        lines.iter().map(|line| line.trim_start().starts_with("# import: ")).collect::<Vec<_>>(),
        [true, false, false, true]
    );
}

#[test]
fn assertions_and_extractors_stand_in_their_step() {
    let assertion = format!(
        "<ResponseAssertion testname=\"A\"><collectionProp name=\"Asserion.test_strings\">{}</collectionProp>{}{}</ResponseAssertion><hashTree/>",
        property("1", "a \"b\""),
        property("Assertion.test_field", "Assertion.response_data"),
        property("Assertion.test_type", "16")
    );
    let extractor = element(
        "RegexExtractor",
        &[
            ("RegexExtractor.refname", "user"),
            ("RegexExtractor.regex", "/(a)/(b)"),
            ("RegexExtractor.template", "$2$"),
            ("RegexExtractor.match_number", "2"),
        ],
        "",
    );
    let all = format!("{}{}", http("/x", &format!("{assertion}{extractor}")), http("/${user}", ""));
    assert_eq!(
        lines(&all),
        [
            "step HTTPSamplerProxy",
            "  GET /x",
            "  expect body contains \"a \\\"b\\\"\"",
            "  take my-user = regex /\\/(?:a)\\/(b)/ nth 2",
            "step HTTPSamplerProxy 2",
            "  GET /${my-user}",
        ]
    );
}

#[test]
fn groups_come_together_with_their_shares() {
    let group = |name: &str, n: &str| {
        format!(
            "<ThreadGroup testname=\"{name}\">{}{}{}</ThreadGroup><hashTree>{}</hashTree>",
            property("ThreadGroup.num_threads", n),
            property("ThreadGroup.ramp_time", "10"),
            "<elementProp name=\"ThreadGroup.main_controller\"><stringProp name=\"LoopController.loops\">5</stringProp></elementProp>",
            http("/x", "")
        )
    };
    let text = plan("", "").replace(
        "<ThreadGroup testname=\"Users\"></ThreadGroup><hashTree></hashTree>",
        &format!("{}{}", group("Readers", "30"), group("Writers", "${__P(writers,10)}")),
    );
    let text = write(&read(&text).unwrap(), "x").unwrap().text;
    for line in ["closed 40 ramp 10s repeat 5", "user Readers 75%", "user Writers 25%"] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[test]
fn the_rate_of_a_group_becomes_the_pace_of_its_users() {
    let timer = element("ConstantThroughputTimer", &[("throughput", "120"), ("calcMode", "2")], "");
    let users = property("ThreadGroup.num_threads", "10");
    let text = plan(&users, &format!("{timer}{}{}", http("/1", ""), http("/2", "")));
    let text = write(&read(&text).unwrap(), "x").unwrap().text;
    // Ten users with two requests each, at two requests per second in total.
    assert!(text.contains("  pace 10s\n"), "{text}");
}

#[test]
fn what_is_no_plan_is_an_error() {
    for text in ["", "<a/>", "<jmeterTestPlan/>", "<jmeterTestPlan><hashTree/></jmeterTestPlan>"] {
        assert!(matches!(read(text), Err(Error::Xml { .. })), "{text}");
    }
}

fn read_whole(text: &str) -> Result<ImportResult, Error> {
    import(text.as_bytes(), &ImportOptions { format: Some(Format::Jmx), ..ImportOptions::default() }, "x")
}

#[test]
fn when_no_request_is_left_the_reasons_are_told() {
    let left = |text: &str| match read_whole(text) {
        Err(Error::Empty { left, .. }) => left.iter().map(ToString::to_string).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let no_host = element("HTTPSamplerProxy", &[("HTTPSampler.path", "/x")], "");
    let foreign = element("SmtpSampler", &[], "");
    assert_eq!(
        left(&plan("", &format!("{no_host}{foreign}"))),
        [
            "Plan / Users / HTTPSamplerProxy: HTTPSamplerProxy is left out with all that is in it: it has no server",
            "Plan / Users / SmtpSampler: SmtpSampler is not supported, and left out",
            "Users: the group is left out: none of its requests can be made",
        ]
    );
    let group = plan("", &http("/x", "")).replace("ThreadGroup", "a.b.StrangeGroup");
    assert_eq!(left(&group), ["Plan / Users: a.b.StrangeGroup is not supported, and left out with all that is in it"]);
}

#[test]
fn a_group_without_requests_is_left_out_and_the_others_play() {
    let text = plan("", "").replace(
        "<ThreadGroup testname=\"Users\"></ThreadGroup><hashTree></hashTree>",
        &format!(
            "<ThreadGroup testname=\"Idle\"/><hashTree>{}</hashTree><ThreadGroup testname=\"Busy\"/><hashTree>{}</hashTree>",
            element("SmtpSampler", &[], ""),
            http("/x", "")
        ),
    );
    let imported = read_whole(&text).unwrap();
    assert!(imported.text.contains("\nuser Busy\n") && !imported.text.contains("user Idle"), "{}", imported.text);
    assert!(imported.text.contains("closed 1 repeat 1\n"), "{}", imported.text);
    assert_eq!(imported.notes.len(), 2, "{:?}", imported.notes);
}

#[test]
fn older_samplers_are_requests_as_well() {
    for tag in ["HTTPSampler", "HTTPSampler2"] {
        let sampler = http("/old", "").replace("HTTPSamplerProxy", tag);
        assert_eq!(lines(&sampler), [format!("step {tag}"), "  GET /old".to_owned()]);
    }
}

#[test]
fn groups_of_plugins_come_as_their_schedules_say() {
    let rows = |rows: &[[u32; 5]]| {
        let row = |row: &[u32; 5]| {
            let cells: String = row.iter().map(|n| property("48", &n.to_string())).collect();
            format!("<collectionProp name=\"1\">{cells}</collectionProp>")
        };
        let rows: String = rows.iter().map(row).collect();
        format!("<collectionProp name=\"ultimatethreadgroupdata\">{rows}</collectionProp>")
    };
    let ultimate = "kg.apc.jmeter.threads.UltimateThreadGroup";
    let concurrency = "com.blazemeter.jmeter.threads.concurrency.ConcurrencyThreadGroup";
    let levels = |unit: &str, iterations: &str| {
        [("TargetLevel", "10"), ("RampUp", "2"), ("Hold", "3"), ("Unit", unit), ("Iterations", iterations)]
            .map(|(name, value)| property(name, value))
            .concat()
    };
    for (tag, users, expected) in [
        (ultimate, rows(&[[20, 0, 30, 60, 10]]), "closed 20 ramp 30s for 90s"),
        // The second row is added to the first; the third begins when both have ended.
        (ultimate, rows(&[[5, 0, 10, 60, 0], [7, 20, 10, 60, 5], [8, 120, 0, 10, 0]]), "closed 12 ramp 30s for 130s"),
        (concurrency, levels("S", ""), "closed 10 ramp 2s for 5s"),
        (concurrency, levels("M", "4"), "closed 10 ramp 120s for 300s repeat 4"),
    ] {
        let text = plan(&users, &http("/x", "")).replace("ThreadGroup", tag);
        let text = read_whole(&text).unwrap().text;
        assert!(text.lines().any(|line| line == expected), "{expected} in {text}");
    }
}
