//! Checks that this program accepts every command printed in errors, findings, help or docs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{COMMANDS, define};

/// Returns all files in a folder, including subfolders, with this extension.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| match path.is_dir() {
        true if path.ends_with("tests") => Vec::new(),
        true => files(&path, ending),
        false => Some(path).filter(|path| path.extension().is_some_and(|found| found == ending)).into_iter().collect(),
    };
    entries.flat_map(below).collect()
}

/// Returns the texts from `fathom` to the end of the literal, code span or line.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.trim_start_matches(['/', ' ', '!', '|']);
        for (at, _) in line.match_indices("fathom ") {
            let end = match line[..at].chars().last() {
                Some(sign @ ('"' | '`')) => line[at..].replace("\\\"", "''").find(sign).map(|len| at + len),
                // An example is on a line of its own.
                None => Some(line.len()),
                _ => None,
            };
            found.extend(end.and_then(|end| line.get(at..end)).map(str::to_owned));
        }
    }
    found
}

/// Returns the command without its explanation, with values in place of the parts that the program fills in.
fn filled(command: &str) -> String {
    let command = ["        ", "   ", " # ", "; ", "\";", " | ", "\\n"]
        .iter()
        .fold(command, |command, end| command.split(*end).next().unwrap_or_default());
    let mut filled = String::new();
    let mut rest = command;
    while let Some((before, (_, behind))) =
        rest.split_once('{').and_then(|(before, behind)| behind.split_once('}').map(|inside| (before, inside)))
    {
        filled = filled + before + "7";
        rest = behind;
    }
    let filled = filled + rest;
    // The any-address of IPv6 is no punctuation.
    let end =
        if filled.ends_with(" ::") { filled.as_str() } else { filled.trim_end_matches(['.', ',', ':', ')', '"']) };
    end.replace(" N", " 7")
}

/// Returns true if the text is a command and not a sentence: a known command, then words of a command line.
fn is_command(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    let is_known = words.get(1).is_some_and(|word| COMMANDS.iter().any(|known| known.name == *word));
    // A command name alone is only mentioned, not meant to be typed.
    let is_whole = !words.iter().skip(1).all(|word| word.bytes().all(|byte| byte.is_ascii_lowercase()));
    is_known
        && is_whole
        && !command.contains(" needs a ")
        && !command.contains(['…', '['])
        && !words.iter().any(|word| word.contains('|') && !word.contains('\''))
}

#[test]
fn every_command_that_is_printed_is_taken() {
    let tree = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."));
    let mut texts = files(&tree.join("docs"), "md");
    texts.push(tree.join("README.md"));
    texts.extend(files(&tree.join("crates"), "rs"));
    let mut n_taken = 0;
    let mut refused = Vec::new();
    for path in texts {
        let text = fs::read_to_string(&path).unwrap();
        // Commands in tests may be invalid on purpose.
        let text = text.split("#[cfg(test)]").next().unwrap_or_default();
        for command in commands(text).iter().map(|command| filled(command)).filter(|command| is_command(command)) {
            let words = shlex::split(&command).unwrap_or_default();
            match define().try_get_matches_from(&words) {
                Ok(_) => n_taken += 1,
                Err(error) if error.exit_code() == 0 => n_taken += 1,
                Err(error) => {
                    let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                    refused.push(format!("{}: {command}\n    {why}", path.display()));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(n_taken > 150, "only {n_taken} commands were found");
}

#[test]
fn options_that_findings_put_behind_a_command_are_taken_there() {
    let findings = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../judge/analyze/src/findings"), "rs");
    let all: String = findings.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let options = all.match_indices("\"--").filter_map(|(at, _)| all[at + 1..].split('"').next());
    let options: Vec<String> = options.filter(|option| option.contains(' ')).map(filled).collect();
    assert!(options.iter().any(|option| option.contains("--congestion")), "{options:?}");
    for option in options {
        let commands = [
            "tcp 127.0.0.1 --rounds 2 --duration 1s",
            "http http://127.0.0.1/ --rounds 2 --duration 1s",
            "app run shop.scenario --rounds 2 --duration 1s",
            "probe 127.0.0.1 --test rtt",
        ];
        let is_taken = |command: &&str| {
            // The command may already have the option.
            let line = format!("fathom {command} {option} {option}");
            define().try_get_matches_from(shlex::split(&line).unwrap()).is_ok()
        };
        assert!(commands.iter().any(is_taken), "{option}");
    }
}
