//! The help of the command line: short and long help, and hints about options of other tools.

use clap::{Command, error::ContextKind};

use fathom_run::exit::{Exit, UserError};

/// Examples come before the list of options.
pub(super) const TEMPLATE: &str = "{about-with-newline}\n{usage-heading} {usage}{after-help}\n\n{all-args}";

/// A command with at most this many options shows all of them in its short help.
const SHORT_HELP_MAX: usize = 12;

/// The options in the short help of a command with many options: those that most runs need.
const SHORT_HELP_OPTIONS: &[&str] = &[
    "allow",
    "below",
    "connections",
    "count",
    "defect",
    "direction",
    "duration",
    "expect",
    "flows",
    "for",
    "host",
    "http-port",
    "interval",
    "iperf",
    "iperf3",
    "json",
    "key",
    "key-file",
    "lab",
    "listen",
    "max",
    "metrics",
    "netperf",
    "once",
    "only",
    "output",
    "plan",
    "ports",
    "protocol",
    "queues",
    "quick",
    "rate",
    "record",
    "replay",
    "slots",
    "target",
    "test",
    "users",
    "vip",
];

/// Puts examples first, and leaves the less common options to the long help.
pub(super) fn with_help_layout(command: Command) -> Command {
    let n_options = command.get_arguments().count();
    // If an option is appended to a printed command that already has it, the last one wins.
    let command = command.help_template(TEMPLATE).args_override_self(true);
    if n_options <= SHORT_HELP_MAX {
        return command;
    }
    command.mut_args(|arg| {
        let is_usual = arg.is_positional() || SHORT_HELP_OPTIONS.contains(&arg.get_id().as_str());
        if is_usual { arg } else { arg.hide_short_help(true) }
    })
}

/// Options of other tools: the letter, the commands where it may be typed, and the equivalent option.
const FOREIGN_OPTIONS: &[(&str, &[&str], &str)] = &[
    ("-t", &["tcp", "udp", "packet"], "--duration 10s"),
    ("-t", &["http"], "--threads 2, or --duration 10s"),
    ("-d", &["http", "tcp", "udp"], "--duration 10s"),
    ("-c", &["http"], "--connections 100"),
    ("-c", &["probe"], "--count 3"),
    ("-P", &["tcp", "udp"], "--flows 4"),
    ("-n", &["http"], "--count 1000"),
    ("-n", &["tcp"], "--bytes 1GiB"),
    ("-R", &["http"], "--rate 20k"),
    ("-R", &["tcp", "udp"], "--direction down"),
    ("-b", &["tcp", "udp"], "--rate 1G"),
    ("-l", &["tcp"], "--write 128KiB"),
    ("-l", &["udp"], "--size 1400"),
    ("-w", &["tcp", "udp"], "--buffer 4MiB"),
    ("-H", &["http"], "--header 'Name: value'"),
    ("-i", &["probe"], "--interval 1s"),
    ("-s", &["probe"], "--size 1400"),
    ("-f", &["probe"], "--flood"),
];

/// Options of other tools whose equivalent is another command.
const FOREIGN_OPTIONS_ELSEWHERE: &[(&str, &[&str], &str)] = &[
    ("-c", &["tcp", "udp"], "the host needs no option: fathom tcp HOST --key KEY"),
    ("-u", &["tcp"], "fathom udp HOST --key KEY --rate 1G"),
    ("-s", &["http"], "fathom app run script.lua http://127.0.0.1:8080/"),
    ("-s", &["tcp", "udp"], "fathom serve"),
    ("--plan", &["serve", "doctor", "lab", "calibrate", "report"], "--plan is for commands that measure"),
];

/// Converts an error of clap to the form of all other errors.
pub(super) fn usage_error(error: &clap::Error, words: &[String]) -> UserError {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let what = lines.next().unwrap_or("the command line is wrong").trim_start_matches("error: ").to_owned();
    let user_error = UserError::new(Exit::Usage, what);
    if let Some(answer) = equivalent_option(error, words) {
        return user_error.with_line("use", answer);
    }
    lines.fold(user_error, |user_error, line| match line.split_once(": ") {
        Some(("tip", tip)) => user_error.with_line("tip", tip),
        Some(("Usage", usage)) => user_error.with_line("usage", usage),
        _ => user_error.with_line("", line),
    })
}

/// Returns the equivalent of another tool's option.
fn equivalent_option(error: &clap::Error, words: &[String]) -> Option<&'static str> {
    let unknown = error.get(ContextKind::InvalidArg)?.to_string();
    let command = words.get(1)?.as_str();
    let about = |(letter, commands, _): &&(&str, &[&str], &str)| *letter == unknown && commands.contains(&command);
    FOREIGN_OPTIONS.iter().chain(FOREIGN_OPTIONS_ELSEWHERE).find(about).map(|(_, _, answer)| *answer)
}

#[cfg(test)]
mod tests {
    use super::{super::define, *};

    #[test]
    fn an_option_of_a_known_tool_is_answered_with_one_that_is_here() {
        for (letter, commands, answer) in FOREIGN_OPTIONS {
            for command in *commands {
                let words = ["fathom", command, "127.0.0.1", letter].map(str::to_owned);
                let error = define().try_get_matches_from(&words).unwrap_err();
                assert!(usage_error(&error, &words).to_string().contains(answer), "{command} {letter}");
                for option in answer.split(", or ") {
                    let here = format!("fathom {command} 127.0.0.1 {option}");
                    define().try_get_matches_from(shlex::split(&here).unwrap()).unwrap();
                }
            }
        }
    }

    #[test]
    fn the_short_help_of_every_command_is_a_screen_with_its_examples_before_its_options() {
        const SCREEN: usize = 50;
        let mut whole = define();
        whole.build();
        for command in whole.get_subcommands_mut() {
            let help = command.clone().term_width(100).render_help().to_string();
            let name = command.get_name().to_owned();
            assert!(help.lines().count() <= SCREEN, "{name}: {} lines\n{help}", help.lines().count());
            if let (Some(examples), Some(options)) = (help.find("Examples:"), help.find("\nOptions:")) {
                assert!(examples < options, "{name}\n{help}");
            }
        }
    }
}
