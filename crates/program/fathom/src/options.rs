//! Converts the options of a kind, which are data, to command-line options and back.

use clap::{Arg, ArgAction, ArgMatches};
use fathom_engine::TestKind;
use fathom_model::{
    OptionDoc, Settings, ValueKind,
    settings::{FORMER_NAMES, PACKET_RATE},
};

/// A test by its name on the command line, and its kind.
pub(crate) type NamedKind = (&'static str, &'static dyn TestKind);

/// Returns the options of several kinds as arguments of one command. Shared options appear once.
pub(crate) fn arguments(kinds: &[NamedKind]) -> Vec<Arg> {
    let mut seen: Vec<(&OptionDoc, Vec<&str>)> = Vec::new();
    for (word, kind) in kinds {
        for option in kind.options() {
            match seen.iter_mut().find(|(other, _)| other.name == option.name) {
                Some((_, users)) if users.contains(word) => {}
                Some((_, users)) => users.push(word),
                None => seen.push((option, vec![word])),
            }
        }
    }
    let mut words: Vec<&str> = kinds.iter().map(|(word, _)| *word).collect();
    words.dedup();
    seen.into_iter().map(|(option, users)| argument(option, &users, &words)).collect()
}

/// Describes the tests that take an option, as briefly as possible.
fn tests_with(users: &[&str], all: &[&str]) -> Option<String> {
    let others: Vec<&str> = all.iter().copied().filter(|word| !users.contains(word)).collect();
    match others.len() {
        0 => None,
        n if n < users.len() => Some(format!("not for {}", others.join(", "))),
        _ => Some(format!("for {}", users.join(", "))),
    }
}

fn argument(option: &OptionDoc, users: &[&str], words: &[&str]) -> Arg {
    let mut help = option.help.to_owned();
    if let Some(default) = option.default {
        help = format!("{help} [default: {default}]");
    }
    if let Some(tests) = tests_with(users, words) {
        help = format!("{help} ({tests})");
    }
    let former = FORMER_NAMES.iter().filter(|(_, now)| *now == option.name).map(|(former, _)| *former);
    let arg = Arg::new(option.name).long(option.name).aliases(former).help(help).help_heading("Test");
    let arg = arg.hide(option.name == PACKET_RATE);
    match option.value {
        ValueKind::Flag => arg.action(ArgAction::SetTrue),
        ValueKind::Count(..) | ValueKind::CountOr(..) => arg.value_name("N"),
        ValueKind::Span => arg.value_name("TIME"),
        ValueKind::Size => arg.value_name("BYTES"),
        ValueKind::BitRate | ValueKind::Rate => arg.value_name("RATE"),
        ValueKind::Choice(words) => arg.value_name("WORD").help_heading("Test").value_parser(words.to_vec()),
        // Each use adds a field, as `-H` of curl, wrk and ab does.
        ValueKind::Fields => arg.value_name("TEXT").action(ArgAction::Append),
        ValueKind::Text | ValueKind::Secret | ValueKind::Frames => arg.value_name("TEXT"),
        ValueKind::Destination => arg.value_name("WHERE"),
        ValueKind::Source => arg.value_name("FROM"),
        ValueKind::File => arg.value_name("FILE"),
    }
}

/// Returns the options of these kinds that the command line sets.
pub(crate) fn settings(matches: &ArgMatches, kinds: &[&'static dyn TestKind]) -> Settings {
    let mut settings = Settings::default();
    for option in kinds.iter().flat_map(|kind| kind.options()) {
        // An option that the command expresses in another way, such as the URL of `fathom http`, is not an argument.
        if option.value == ValueKind::Flag {
            if matches.try_get_one(option.name).is_ok_and(|flag| flag == Some(&true)) {
                settings.set(option.name, "true");
            }
        } else if let Ok(Some(texts)) = matches.try_get_many::<String>(option.name) {
            settings.set(option.name, texts.map(String::as_str).collect::<Vec<_>>().join("\n"));
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use clap::Command;
    use fathom_model::Layer;

    use super::{arguments, settings, tests_with};
    use fathom_run::registry;

    #[test]
    fn an_option_of_fields_may_be_repeated() {
        let kinds = registry::KINDS.iter().copied().filter(|kind| kind.layer() == Layer::Http).collect::<Vec<_>>();
        let named: Vec<_> = kinds.iter().map(|kind| (kind.name(), *kind)).collect();
        let command = Command::new("http").args_override_self(true).args(arguments(&named));
        let words = ["http", "--header", "A: 1", "--method", "PUT", "--header", "B: 2", "--method", "POST"];
        let settings = settings(&command.try_get_matches_from(words).unwrap(), &kinds);
        assert_eq!(settings.text("header").as_deref(), Some("A: 1\nB: 2"));
        assert_eq!(settings.text("method").as_deref(), Some("POST"), "the last one counts");
    }

    #[test]
    fn an_option_says_shortly_which_tests_take_it() {
        let all = ["stream", "down", "rr"];
        assert_eq!(tests_with(&all, &all), None);
        assert_eq!(tests_with(&all[..2], &all).as_deref(), Some("not for rr"));
        assert_eq!(tests_with(&all[2..], &all).as_deref(), Some("for rr"));
    }
}
