//! Command lines of curl, as people keep them in notes and as browsers copy them.

mod draft;
mod options;
mod shell;

use self::{
    draft::CommandDraft,
    options::{CurlOption, OptionEffect},
    shell::ShellCommand,
};
use super::{
    Error,
    encode::split_once,
    import_tree::{CookieHandling, ImportAction, ImportNote, ImportText, ImportTree, ImportedRequest, ImportedUser},
};

/// Whether any line begins with the command.
pub(super) fn looks_like_it(text: &str) -> bool {
    let first = |line: &str| line.trim_start().trim_start_matches("$ ").split_whitespace().next().map(str::to_owned);
    text.lines().any(|line| first(line).is_some_and(|word| is_curl(&word)))
}

fn is_curl(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("curl" | "curl.exe"))
}

/// Reads all command lines of a text as one user that runs them in sequence.
///
/// # Errors
/// A quote has no end, or the text is quoted for Windows.
pub fn read(text: &str) -> Result<ImportTree, Error> {
    let mut builder = ImportTree::default();
    let mut kind =
        ImportedUser { name: "curl".to_owned(), cookies: CookieHandling::Ignored, ..ImportedUser::default() };
    for command in shell::commands(text)? {
        match one(&command, &mut builder) {
            Ok((insecure, found)) => {
                kind.insecure |= insecure;
                kind.acts.extend(found.into_iter().map(|request| ImportAction::Request(Box::new(request))));
            }
            Err(note) => kind.acts.push(ImportAction::LeftOut(note)),
        }
    }
    declare(&kind.acts, &mut builder);
    builder.kinds.push(kind);
    Ok(builder)
}

/// Reads a command: the requests of curl, or the value of a variable.
fn one(command: &ShellCommand, builder: &mut ImportTree) -> Result<(bool, Vec<ImportedRequest>), ImportNote> {
    let leave = |what: String| Err(ImportNote { location: format!("line {}", command.line), what });
    if let Some(beyond) = command.beyond {
        return leave(format!("{beyond} is not known here: the command is left out"));
    }
    let mut words = command.words.as_slice();
    let mut values = Vec::new();
    while let [first, rest @ ..] = words {
        match (first.as_literal(), split_once(first, '=')) {
            (Some("$" | "export" | "time" | "env"), _) => {}
            (_, Some((name, value))) if name.as_literal().is_some_and(is_name) => {
                values.push((name.to_string(), value));
            }
            _ => break,
        }
        words = rest;
    }
    match words {
        [] => {
            builder.variables.extend(values);
            Ok((false, Vec::new()))
        }
        [program, arguments @ ..] if program.as_literal().is_some_and(is_curl) => {
            Ok(arguments_of(arguments, command.line))
        }
        [program, ..] => leave(format!("the command {program} is left out")),
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.as_bytes()[0].is_ascii_digit()
}

/// Reads the arguments of one command; `--next` separates several sets.
fn arguments_of(arguments: &[ImportText], line: usize) -> (bool, Vec<ImportedRequest>) {
    let fresh = || CommandDraft::at(line);
    let (mut draft, mut requests, mut insecure) = (fresh(), Vec::new(), false);
    let mut rest = arguments.iter();
    let mut only_urls = false;
    while let Some(argument) = rest.next() {
        let word = argument.to_string();
        if only_urls || word == "-" || !word.starts_with('-') {
            draft.urls.push(argument.clone());
        } else if word == "--" {
            only_urls = true;
        } else if word == "--next" || word == "-:" {
            insecure |= draft.insecure;
            requests.extend(std::mem::replace(&mut draft, fresh()).requests());
        } else if let Some(name) = word.strip_prefix("--") {
            match options::long(name) {
                Some(opt) => apply(&mut draft, opt, None, &mut rest),
                None => draft.leave_out(format!("the option --{name} is not known")),
            }
        } else {
            letters(&mut draft, argument, &mut rest);
        }
    }
    insecure |= draft.insecure;
    requests.extend(draft.requests());
    (insecure, requests)
}

/// Reads `-sXPOST`: letters without a value, then one with a value, which may follow directly.
fn letters<'a>(draft: &mut CommandDraft, argument: &ImportText, rest: &mut impl Iterator<Item = &'a ImportText>) {
    let mut left = super::encode::strip_prefix(argument, "-").unwrap_or_default();
    while let Some(letter) = left.to_string().chars().next() {
        let Some(behind) = super::encode::strip_prefix(&left, letter.encode_utf8(&mut [0; 4])) else { return };
        let Some(opt) = options::short(letter) else {
            return draft.leave_out(format!("the option -{letter} is not known"));
        };
        if matches!(
            opt.effect,
            OptionEffect::Value(_) | OptionEffect::IgnoreWithValue | OptionEffect::LeaveOutWithValue
        ) {
            return apply(draft, opt, (!behind.is_empty()).then_some(behind), rest);
        }
        apply(draft, opt, None, rest);
        left = behind;
    }
}

fn apply<'a>(
    draft: &mut CommandDraft,
    opt: &CurlOption,
    mut value: Option<ImportText>,
    rest: &mut impl Iterator<Item = &'a ImportText>,
) {
    let mut value = || value.take().or_else(|| rest.next().cloned()).unwrap_or_default();
    match opt.effect {
        OptionEffect::Flag(set) => set(draft),
        OptionEffect::Value(set) => set(draft, value()),
        OptionEffect::Ignore => {}
        OptionEffect::IgnoreWithValue => drop(value()),
        OptionEffect::LeaveOut => draft.leave_out(format!("--{}: a scenario has nothing like it", opt.long)),
        OptionEffect::LeaveOutWithValue => {
            let value = value();
            draft.leave_out(format!("--{} {value}: a scenario has nothing like it", opt.long));
        }
    }
}

/// Shell variables that no line sets get an empty value, which the user must fill in.
fn declare(acts: &[ImportAction], builder: &mut ImportTree) {
    for act in acts {
        let ImportAction::Request(request) = act else { continue };
        for name in request.variables() {
            if builder.variables.iter().all(|(known, _)| *known != name) {
                builder.notes.push(ImportNote {
                    location: format!("variable {name}"),
                    what: "the shell knew its value: give it one".to_owned(),
                });
                builder.variables.push((name, ImportText::default()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
