//! Builds the command that repeats a measurement with other options. Returns a command that can be pasted, or none.

use fathom_model::{Layer, Run, TestRun, plan::HostReach};

/// Options that identify a test.
const IDENTIFYING_OPTIONS: &[&str] = &["connections", "flows", "size", "rate"];

/// Returns the command for the whole run with another duration or number of rounds. Every measuring command takes these
/// options.
pub(crate) fn repeat_run_command(run: &Run, options: &str) -> Option<String> {
    let command = command(run)?;
    let measures = is_of_layer(command) || ["evaluate", "run"].contains(&command);
    measures.then(|| with(&run.command, options))
}

/// Returns the command for one test with another option of its kind, or `None` if no command line can express that.
pub(crate) fn repeat_test_command(run: &Run, test: &TestRun, options: &str) -> Option<String> {
    match command(run)? {
        "evaluate" => Some(with(&layer_command(run, test)?, options)),
        command if is_of_layer(command) => Some(with(&run.command, options)),
        _ => None,
    }
}

/// Returns true if a command measures one test and takes every option of its kind.
fn is_of_layer(command: &str) -> bool {
    Layer::ALL.iter().any(|layer| layer.command() == command)
}

fn command(run: &Run) -> Option<&str> {
    run.command.strip_prefix("fathom ")?.split(' ').next()
}

/// Appends options to a command, in place of their former values, but before the arguments of a script.
pub(crate) fn with(command: &str, options: &str) -> String {
    let (before, words) = command.split_once(" -- ").map_or((command, None), |(before, words)| (before, Some(words)));
    let flags: Vec<&str> = options.split(' ').filter(|word| word.starts_with("--")).collect();
    let is_given_with_value =
        |word: &str| flags.iter().any(|flag| word.strip_prefix(flag).is_some_and(|rest| rest.starts_with('=')));
    let mut kept = Vec::new();
    let mut all = before.split(' ');
    while let Some(word) = all.next() {
        if flags.contains(&word) {
            all.next();
        } else if !is_given_with_value(word) {
            kept.push(word);
        }
    }
    let rest = words.map(|words| format!(" -- {words}")).unwrap_or_default();
    format!("{} {options}{rest}", kept.join(" "))
}

/// Returns the command for one test of an evaluation between the same hosts.
fn layer_command(run: &Run, test: &TestRun) -> Option<String> {
    let selection = test.selected_by.as_ref()?;
    let place = match run.plan.hosts.get(test.to.as_ref()?)? {
        HostReach::Tls { address, .. } => format!("{address} --key KEY"),
        HostReach::LabUp(lab, _) => format!("--lab {lab}"),
        HostReach::Lab(_) => {
            let lab = run.plan.lab.as_ref()?;
            let device = lab.device.as_ref().map(|device| format!(" --device {device}")).unwrap_or_default();
            format!("--lab {}{device}", lab.preset)
        }
        HostReach::At(address) => address.to_string(),
        HostReach::This => "127.0.0.1".to_owned(),
        // Their command names them by `--hosts`, and each of its options would have to be repeated here.
        HostReach::Ssh(_) | HostReach::Exec(_) | HostReach::Kubernetes(_) | HostReach::Inventory(_) => return None,
    };
    // Outside a lab, no URL reaches a responder that fathom started itself.
    if test.layer == Layer::Http && !place.starts_with("--lab") {
        return None;
    }
    let said = IDENTIFYING_OPTIONS.iter().filter_map(|name| Some(format!(" --{name} '{}'", test.options.text(name)?)));
    Some(format!("fathom {} {place} {selection}{}", test.layer.command(), said.collect::<String>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn story(command: &str) -> (Run, TestRun) {
        let mut story = RunBuilder::new();
        story.tcp_stream(&[1000, 1000]);
        story.run.command = command.to_owned();
        story.run.tests[0].options.set("flows", "4");
        story.run.tests[0].selected_by = Some("--test stream".to_owned());
        (story.run.clone(), story.run.tests[0].clone())
    }

    #[test]
    fn an_evaluation_is_answered_with_the_command_of_the_layer_and_a_plan_with_none() {
        let of = |command: &str| {
            let (run, test) = story(command);
            repeat_test_command(&run, &test, "--congestion bbr")
        };
        let (run, mut down) = story("fathom evaluate 10.0.0.2 --key KEY");
        down.selected_by = Some("--test stream --direction down".to_owned());
        let repeated = repeat_test_command(&run, &down, "--congestion bbr").unwrap();
        assert!(repeated.contains(" --key KEY --test stream --direction down --flows '4' "), "{repeated}");
        down.selected_by = None;
        assert_eq!(repeat_test_command(&run, &down, "--congestion bbr"), None, "no command measures this kind");
        let expected = "fathom tcp 10.0.0.2:7700 --key KEY --test stream --flows '4' --congestion bbr";
        assert_eq!(of("fathom evaluate 10.0.0.2 --key KEY").as_deref(), Some(expected));
        assert_eq!(of("fathom run plan.toml"), None);
        assert_eq!(of("./wrk -c 3"), None);
        for former in ["", " --congestion cubic", " --congestion=cubic"] {
            let command = of(&format!("fathom tcp 10.0.0.2{former}"));
            assert_eq!(command.as_deref(), Some("fathom tcp 10.0.0.2 --congestion bbr"));
        }
        let script = "fathom app run a.lua http://a/ --congestion bbr -- 16";
        assert_eq!(of("fathom app run a.lua http://a/ -- 16").as_deref(), Some(script));
    }

    #[test]
    fn every_command_that_measures_takes_another_number_of_rounds() {
        let of = |command: &str| repeat_run_command(&story(command).0, "--rounds 20");
        assert_eq!(of("fathom evaluate").as_deref(), Some("fathom evaluate --rounds 20"));
        assert_eq!(of("fathom run plan.toml").as_deref(), Some("fathom run plan.toml --rounds 20"));
        assert_eq!(of("ab -n 10 http://a/"), None);
        let longer = repeat_run_command(&story("fathom tcp a --duration 300s").0, "--warmup 2s --duration 1200s");
        assert_eq!(longer.as_deref(), Some("fathom tcp a --warmup 2s --duration 1200s"), "each option once");
    }
}
