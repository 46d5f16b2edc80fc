//! Runs every command of the README between two namespaces.

use std::fs;

use crate::test_bed::{ProgramResult, RunningLab, TestBed, lacks_root, tree};

const B: &str = "198.18.0.2";
const URL: &str = "http://198.18.0.2:8080/";
/// Options that shorten a command, by a part of the command. If an option appears twice, the later one counts.
const SHORT: &[(&str, &str)] = &[
    ("--method mlrsearch", "--sizes 64 --trial 50ms --search-time 3s --goal ndr"),
    (
        "--method",
        "--sizes 64 --trial 50ms --search-time 3s --latency-trial 50ms --latency-runs 1 --burst-max 2ms --burst-searches 1",
    ),
    ("--find-limit", "--find-low 100 --find-high 400 --find-trials 4 --duration 100ms --warmup 0s"),
    ("--rate 20k", "--rate 200 --rounds 1 --duration 200ms --warmup 0s"),
    ("--rate 1G", "--rate 5M --rounds 1 --duration 200ms --warmup 0s"),
    ("fathom evaluate", "--quick --rounds 1 --duration 50ms --warmup 10ms"),
    ("fathom probe", "--timeout 200ms"),
    ("fathom path", "--rounds 3 --duration 300ms --warmup 0s"),
    ("fathom watch", "--interval 200ms --count 2"),
    ("fathom app run", "--duration 300ms --warmup 0s"),
    ("fathom packet", "--rate 1000 --rounds 1 --duration 200ms --warmup 0s"),
    ("fathom http", "--rounds 1 --duration 200ms --warmup 0s"),
    ("fathom tcp", "--rounds 1 --duration 200ms --warmup 0s"),
];
/// The commands for `…` in the rows of drop-in tools.
const TOOLS: &[(&str, &str)] = &[
    ("fathom as wrk …", "fathom as --allow HOST wrk -t1 -c2 -d1s URL"),
    ("as ab", "fathom as --allow HOST ab -n 10 URL"),
    ("as webbench", "fathom as --allow HOST webbench -t 1 -c 1 URL"),
    ("as iperf", "fathom as iperf -c HOST -t 1"),
    ("as iperf3", "fathom as iperf3 -c HOST -t 1"),
    ("fathom as hping3 …", "fathom as --allow HOST hping3 -S -p 8080 -c 1 -i u1000 HOST"),
];
/// Servers that a row needs and that are already running.
const SERVERS: &[&str] = &[
    "fathom serve",
    "fathom serve --iperf",
    "fathom serve --iperf3",
    "fathom serve --netperf",
    "fathom serve --identity",
    "fathom serve --only http",
];

/// One request of one user.
const JMX: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
  <TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="Shop"/>
  <hashTree>
    <ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="Buyers">
      <intProp name="ThreadGroup.num_threads">1</intProp>
      <elementProp name="ThreadGroup.main_controller" elementType="LoopController">
        <stringProp name="LoopController.loops">1</stringProp>
      </elementProp>
    </ThreadGroup>
    <hashTree>
      <HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="front page">
        <stringProp name="HTTPSampler.domain">198.18.0.2</stringProp>
        <stringProp name="HTTPSampler.port">8080</stringProp>
        <stringProp name="HTTPSampler.path">/</stringProp>
        <stringProp name="HTTPSampler.method">GET</stringProp>
      </HTTPSamplerProxy>
      <hashTree/>
    </hashTree>
  </hashTree>
</hashTree></jmeterTestPlan>
"#;

/// Returns the texts between backticks.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns a command with another option, which replaces the same option or is appended.
fn other(command: &str, option: &str) -> String {
    let name = option.split(' ').next().unwrap_or_default();
    let base = command.split(&format!(" {name} ")).next().unwrap_or_default();
    format!("{base} {option}")
}

/// Returns the commands of a row, and those made by inserting its options.
fn of_row(row: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    for text in code(row) {
        if let Some((_, command)) = TOOLS.iter().find(|(short, _)| *short == text) {
            commands.push((*command).to_owned());
        } else if text.starts_with("fathom ") {
            commands.push(text.to_owned());
        } else if let (true, Some(before)) = (text.starts_with("--"), commands.last()) {
            commands.push(other(before, text));
        }
    }
    commands
}

/// Returns all commands of the README's block and table.
fn commands() -> Vec<String> {
    let text = fs::read_to_string(tree().join("README.md")).unwrap();
    let blocks = text.split("```").skip(1).step_by(2).flat_map(str::lines);
    let block = blocks.filter(|line| line.starts_with("fathom "));
    let block = block.map(|line| line.split(" # ").next().unwrap_or_default().trim().to_owned());
    let rows = text.lines().filter(|line| line.starts_with("| ")).filter_map(|row| row.rsplit('|').nth(1));
    block.chain(rows.flat_map(of_row)).collect()
}

/// Returns the arguments of a command after `fathom`, shortened and pointed at the lab.
fn words(command: &str, key: &str) -> Vec<String> {
    let short = SHORT.iter().find(|(part, _)| command.contains(part)).map_or("", |(_, options)| *options);
    let in_place = [("10.0.0.2", B), ("127.0.0.1", B), ("HOST", B), ("KEY", key), ("URL", URL)];
    let line = in_place.iter().fold(format!("{command} {short}"), |line, (name, value)| line.replace(name, value));
    shlex::split(&line).unwrap().split_off(1)
}

fn run(lab: &RunningLab<'_>, program: &str, words: &[String]) -> ProgramResult {
    let allowed = format!("FATHOM_ALLOW={B}");
    let command = ["env", &allowed, program].into_iter().chain(words.iter().map(String::as_str));
    lab.exec("a", &command.collect::<Vec<_>>()).ends()
}

#[test]
fn every_command_of_the_readme_runs_between_two_namespaces() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    fs::write(stage.path("plan.jmx"), JMX).unwrap();
    fs::copy(tree().join("fuzz/corpus/traffic/get"), stage.path("day.pcap")).unwrap();
    fs::write(stage.path("script.lua"), "wrk.method = 'GET'\n").unwrap();
    let lab = stage.lab("readme");
    let (_server, key) = lab.serve(&["--iperf", "--iperf3", "--netperf", "--identity"]);
    let commands = commands();
    assert!(commands.len() > 25, "{commands:?}");
    for command in commands.iter().filter(|command| !SERVERS.contains(&command.as_str())) {
        let words = words(command, &key);
        let ending = run(&lab, stage.program().to_str().unwrap(), &words);
        // A busy machine may send less than requested, or nothing in the short time.
        let is_slow = ending.stdout.contains("of the asked rate was sent") || ending.says_it_was_disturbed();
        let code = ending.succeeded_or_judged();
        // On a busy machine, a promise of the README may be broken or stay open, and a search may be cut short.
        let is_judged =
            command.contains("--expect") || command.contains("--method") || command.contains("--find-limit");
        assert!(
            code == 0 || is_judged && [1, 4, 10, 12].contains(&code) || is_slow && [1, 4].contains(&code),
            "{command}: {code}\n{}",
            ending.stdout
        );
    }
}
