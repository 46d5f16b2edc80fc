//! Which keys of a host each launcher knows: one that it would ignore is a mistake.

use std::{collections::BTreeSet, ops::Range};

use toml::Spanned;

use super::text::{HostText, InventoryText, LauncherText, SourceText};
use crate::exit::UserError;

/// The launcher of a host that names none.
pub(super) const USUAL: &str = "ssh";
/// Keys that say which host it is, whatever reaches it: they stay where the launcher is changed.
const OF_EVERY_HOST: [&str; 4] = ["control", "data", "launcher", "roles"];
/// The other keys that each launcher knows, by its word.
const KNOWN: [(&str, &[&str]); 5] = [
    (USUAL, &["user", "port", "jump", "identity", "ssh_config", "program", "sudo", "push"]),
    ("kubernetes", &[]),
    ("tls", &["port", "key", "key_file"]),
    ("self", &[]),
    ("lab", &["lab"]),
];
/// What a command knows where one of its words has the placeholder.
const PLACEHOLDERS: [(&str, &str); 2] = [("user", "{user}"), ("port", "{port}")];
/// What a jump host is reached by, whatever starts an agent there.
const OF_JUMP_HOSTS: [&str; 3] = ["user", "port", "jump"];

/// Returns the words of all jump hosts: some are hosts of the file.
pub(super) fn jump_words(written: &InventoryText) -> BTreeSet<&str> {
    let texts = written.hosts.values().chain([&written.defaults]);
    texts.filter_map(|text| text.jump.as_ref()).flat_map(|jump| jump.get_ref().split(',')).collect()
}

/// Some hosts of the file with the same keys.
pub(super) struct Keys<'a> {
    /// The key of the file that they come from, such as `hosts."b[1-8]"`.
    pub(super) place: &'a str,
    /// The keys that are written there.
    pub(super) own: &'a HostText,
    /// Those, and the usual ones.
    pub(super) text: &'a HostText,
    /// Whether one of them is a jump host of another one.
    pub(super) is_jump_host: bool,
}

impl Keys<'_> {
    /// Refuses a key that the launcher ignores. The usual keys may be those of other launchers, so that one line changes the launcher of all.
    pub(super) fn check(&self, source: &SourceText<'_>) -> Result<(), UserError> {
        let launcher = self.text.launcher.as_ref().map(Spanned::get_ref);
        let (word, known) = match launcher {
            Some(LauncherText::Command(words)) => ("a command", Some(of_command(words))),
            Some(LauncherText::Word(word)) => (word.as_str(), of_word(word)),
            None => (USUAL, of_word(USUAL)),
        };
        // A launcher that is not there is a mistake of its own.
        let Some(known) = known else { return Ok(()) };
        let is_ignored = |key: &str| {
            let of_jump_host = self.is_jump_host && OF_JUMP_HOSTS.contains(&key);
            !known.contains(&key) && !of_jump_host
        };
        if let Some((key, span)) = self.own.written().into_iter().find(|(key, _)| is_ignored(key)) {
            let placeholder = PLACEHOLDERS.into_iter().find(|(name, _)| *name == key && word == "a command");
            let what = match placeholder {
                Some((_, placeholder)) => format!("no word of the command has {placeholder}, so this key does nothing"),
                None => format!("{word} does not use this key"),
            };
            let fix = match placeholder {
                Some((_, placeholder)) => format!("leave it out, or write {placeholder} in the command"),
                None => fix_of(key, word),
            };
            let known: Vec<&str> = OF_EVERY_HOST.into_iter().chain(known).collect();
            return Err(source
                .error(&span, format!("{}.{key}: {what}", self.place))
                .with_line("keys", known.join(", "))
                .with_line("fix", fix));
        }
        if let (Some(_), Some(file)) = (&self.own.key, &self.own.key_file) {
            let what = format!("{}.key_file: `key` is there, too", self.place);
            return Err(source.error(&file.span(), what).with_line("fix", "keep one of them"));
        }
        Ok(())
    }
}

/// Returns the way out for a key that a launcher does not use: another launcher, or the place where it belongs.
fn fix_of(key: &str, word: &str) -> String {
    if (key, word) == ("program", "kubernetes") {
        return "leave it out, or write it in [kubernetes], for all pods".to_owned();
    }
    let of_others = KNOWN.into_iter().filter(|(_, keys)| keys.contains(&key));
    let others: Vec<String> = of_others.map(|(other, _)| format!("\"{other}\"")).collect();
    format!("leave it out, or choose launcher = {}", others.join(" or "))
}

fn of_command(words: &[String]) -> Vec<&'static str> {
    let has = |placeholder: &str| words.iter().any(|word| word.contains(placeholder));
    PLACEHOLDERS.into_iter().filter(|(_, placeholder)| has(placeholder)).map(|(key, _)| key).collect()
}

fn of_word(word: &str) -> Option<Vec<&'static str>> {
    KNOWN.into_iter().find(|(known, _)| *known == word).map(|(_, keys)| keys.to_vec())
}

impl HostText {
    /// Returns the keys that are written, with their places, in the order of the file. Those of every host are left out.
    fn written(&self) -> Vec<(&'static str, Range<usize>)> {
        let place = |key, span: Option<Range<usize>>| Some((key, span?));
        let all = [
            place("user", self.user.as_ref().map(Spanned::span)),
            place("port", self.port.as_ref().map(Spanned::span)),
            place("jump", self.jump.as_ref().map(Spanned::span)),
            place("program", self.program.as_ref().map(Spanned::span)),
            place("sudo", self.sudo.as_ref().map(Spanned::span)),
            place("push", self.push.as_ref().map(Spanned::span)),
            place("identity", self.identity.as_ref().map(Spanned::span)),
            place("ssh_config", self.ssh_config.as_ref().map(Spanned::span)),
            place("key", self.key.as_ref().map(Spanned::span)),
            place("key_file", self.key_file.as_ref().map(Spanned::span)),
            place("lab", self.lab.as_ref().map(Spanned::span)),
        ];
        let mut written: Vec<_> = all.into_iter().flatten().collect();
        written.sort_by_key(|(_, span)| span.start);
        written
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse;

    fn error(text: &str) -> String {
        parse(text, Path::new("hosts.toml")).unwrap_err().to_string()
    }

    #[test]
    fn a_key_that_its_launcher_ignores_is_refused_with_those_that_it_knows() {
        let command = "launcher = [\"srun\", \"{host}\"]";
        let cases = [
            (
                command,
                "jump = \"gate\"",
                "hosts.a.jump: a command does not use this key\n  keys   control, data, launcher, roles",
            ),
            (
                command,
                "user = \"me\"",
                "hosts.a.user: no word of the command has {user}, so this key does nothing\n  keys   control, data, launcher, roles\n",
            ),
            (command, "port = 22", "hosts.a.port: no word of the command has {port}"),
            (command, "sudo = false", "hosts.a.sudo: a command does not use this key"),
            (
                "",
                "key = \"k\"",
                "hosts.a.key: ssh does not use this key\n  keys   control, data, launcher, roles, user, port, jump, ",
            ),
            ("", "lab = \"l\"", "hosts.a.lab: ssh does not use this key"),
            ("launcher = \"tls\"", "user = \"me\"", "hosts.a.user: tls does not use this key"),
            ("launcher = \"tls\"\nkey = \"k\"", "key_file = \"f\"", "hosts.a.key_file: `key` is there, too"),
            ("launcher = \"self\"", "user = \"me\"", "hosts.a.user: self does not use this key"),
            (
                "launcher = \"lab\"\nlab = \"l\"",
                "port = 22",
                "hosts.a.port: lab does not use this key\n  keys   control, data, launcher, roles, lab\n",
            ),
            (
                "launcher = \"kubernetes\"",
                "program = \"/x\"",
                "hosts.a.program: kubernetes does not use this key\n  keys   control, data, launcher, roles\n",
            ),
        ];
        for (launcher, key, expected) in cases {
            let text = format!("[hosts.a]\nroles = [\"sut\"]\n{launcher}\n{key}\n");
            let line = text.lines().count();
            let error = error(&text);
            assert!(error.starts_with(&format!("hosts.toml:{line}: {expected}")), "{text}\n{error}");
        }
        let usual = error("[defaults]\nlauncher = \"tls\"\n[hosts.\"b[1-2]\"]\nuser = \"me\"\n");
        assert!(usual.starts_with("hosts.toml:4: hosts.\"b[1-2]\".user: tls does not use this key"), "{usual}");
    }

    #[test]
    fn the_way_out_names_the_launchers_that_use_the_key_or_the_place_where_it_belongs() {
        let cases = [
            ("launcher = \"self\"\nport = 22", "leave it out, or choose launcher = \"ssh\" or \"tls\""),
            ("lab = \"l\"", "leave it out, or choose launcher = \"lab\""),
            ("launcher = [\"srun\"]\nuser = \"me\"", "leave it out, or write {user} in the command"),
            ("launcher = \"kubernetes\"\nprogram = \"/x\"", "leave it out, or write it in [kubernetes], for all pods"),
        ];
        for (keys, fix) in cases {
            let error = error(&format!("[hosts.a]\n{keys}\n"));
            assert!(error.ends_with(&format!("  fix    {fix}")), "{keys}\n{error}");
        }
    }

    #[test]
    fn keys_that_are_used_are_none_too_many() {
        let texts = [
            // The usual keys are for the hosts whose launcher knows them.
            "[defaults]\nuser = \"me\"\njump = \"gate\"\nkey = \"k\"\nlauncher = [\"x\", \"{host}\"]\n[hosts.a]\n",
            "[hosts.a]\nlauncher = [\"x\", \"{user}@{host}:{port}\"]\nuser = \"me\"\nport = 22\n",
            "[hosts.a]\nlauncher = [\"x\", \"{name}\"]\ncontrol = \"127.0.0.1\"\ndata = \"127.0.0.1\"\n",
            // It is reached by ssh on the way to another one.
            "[hosts.gate]\nlauncher = \"self\"\ncontrol = \"192.0.2.1\"\nuser = \"me\"\nport = 22\n[hosts.a]\njump = \"far,gate\"\n",
        ];
        for text in texts {
            let read = parse(text, Path::new("hosts.toml"));
            assert!(read.is_ok(), "{text}\n{}", read.err().map(|error| error.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn an_own_key_in_a_file_comes_before_the_usual_key() {
        let text = "[defaults]\nlauncher = \"tls\"\nkey = \"usual\"\n[hosts.a]\nkey_file = \"no-such-file\"\n";
        let error = parse(text, Path::new("hosts.toml")).unwrap().reach("a").unwrap_err().to_string();
        assert!(error.starts_with("hosts.toml:5: hosts.a.key_file: no-such-file has no key"), "{error}");
    }
}
