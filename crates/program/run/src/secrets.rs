//! Masks keys, passwords and cookies in results. The type of an option tells whether it holds a secret.

use fathom_engine::TestKind;
use fathom_model::{Plan, Run, Trial, ValueKind, plan::HostReach, run::Completeness};
use fathom_scenario::execution::is_secret;

use crate::registry;

/// The text that replaces a secret.
const MASK: &str = "***";
/// The shortest secret that is masked anywhere. A shorter one occurs in other words by chance, so it is masked only as a whole word.
const MASK_ANYWHERE_MIN: usize = 4;
/// The shortest part of a secret, such as its password, that is masked on its own. A shorter part may be a common word.
const PART_MIN: usize = 8;

/// The secrets of a run, longest first.
#[derive(Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Returns a plan with its secrets masked, and the secrets.
    pub fn of(plan: &Plan) -> (Plan, Self) {
        let (mut plan, mut secrets) = (plan.clone(), Self::default());
        for reach in plan.hosts.values_mut() {
            match reach {
                HostReach::Tls { key, .. } => secrets.0.extend(key.take()),
                HostReach::Exec(host) => secrets.mask_command(&mut host.command),
                _ => {}
            }
        }
        for test in &mut plan.tests {
            let options = registry::kind(&test.kind).map(TestKind::options).unwrap_or_default();
            for option in options {
                let Some(given) = test.options.text(option.name) else { continue };
                let shown = secrets.mask_option(option.value, &given);
                if shown != given {
                    test.options.set(option.name, shown);
                }
            }
        }
        let quoted = |secret: &String| secret.contains('\'').then(|| secret.replace('\'', "'\\''"));
        let in_a_shell: Vec<String> = secrets.0.iter().filter_map(quoted).collect();
        secrets.0.extend(in_a_shell);
        secrets.0.retain(|secret| !secret.is_empty() && secret != MASK);
        // One secret may be a prefix of another.
        secrets.0.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        secrets.0.dedup();
        plan.title = secrets.mask(&plan.title);
        (plan, secrets)
    }

    /// Masks the secrets of the run in a text.
    pub fn mask(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| {
            if secret.len() >= MASK_ANYWHERE_MIN { text.replace(secret, MASK) } else { mask_standalone(&text, secret) }
        })
    }

    /// Masks secrets in the facts, notes and errors of a trial.
    pub fn mask_trial(&self, trial: &mut Trial) {
        if self.0.is_empty() {
            return;
        }
        for record in trial.records.values_mut() {
            record.facts.values_mut().for_each(|fact| *fact = self.mask(fact));
            record.notes.iter_mut().for_each(|note| note.text = self.mask(&note.text));
            let errors = std::mem::take(&mut record.errors);
            record.errors = errors.into_iter().map(|(error, count)| (self.mask(&error.to_string()), count)).collect();
        }
    }

    /// Masks secrets in the reasons why the run is incomplete or a test is unavailable, and in how hosts were reached.
    pub fn mask_errors(&self, run: &mut Run) {
        run.hosts.values_mut().for_each(|host| host.reached = self.mask(&host.reached));
        if let Completeness::Incomplete { reason } = &mut run.completeness {
            *reason = self.mask(reason);
        }
        for reason in run.tests.iter_mut().filter_map(|test| test.unavailable.as_mut()) {
            *reason = self.mask(reason);
        }
    }

    /// Masks the secrets in a command that starts an agent: the value of an option or a variable with the name of a secret, and the
    /// password of `sshpass -p`.
    fn mask_command(&mut self, words: &mut [String]) {
        let mut is_value = false;
        let mut is_sshpass = false;
        for word in words {
            let masked_from = match word.split_once('=') {
                _ if std::mem::take(&mut is_value) => Some(0),
                Some((name, _)) if is_secret(name.trim_start_matches('-')) => Some(name.len() + 1),
                _ if is_sshpass && word.len() > 2 && word.starts_with("-p") => Some(2),
                _ => None,
            };
            let names_value = word.strip_prefix("--").is_some_and(|name| !name.contains('=') && is_secret(name));
            is_value = masked_from.is_none() && (names_value || (is_sshpass && word == "-p"));
            is_sshpass = (is_sshpass && word.starts_with('-')) || word.rsplit('/').next() == Some("sshpass");
            if let Some(start) = masked_from {
                self.remember(&word[start..], ' ');
                word.replace_range(start.., MASK);
            }
        }
    }

    /// Masks the secrets in the value of an option and remembers them.
    fn mask_option(&mut self, kind: ValueKind, given: &str) -> String {
        match kind {
            ValueKind::Secret => {
                self.remember(given, ':');
                MASK.to_owned()
            }
            ValueKind::Fields => {
                let lines: Vec<String> = given.split('\n').map(|line| self.mask_header_field(line)).collect();
                self.mask_url_users(&lines.join("\n"))
            }
            _ => self.mask_url_users(given),
        }
    }

    /// Masks the value of a header field that carries credentials.
    fn mask_header_field(&mut self, line: &str) -> String {
        let Some((name, value)) = line.split_once(':').filter(|(name, _)| is_credential_field(name.trim())) else {
            return line.to_owned();
        };
        self.remember(value.trim(), ' ');
        format!("{name}: {MASK}")
    }

    /// Masks users and passwords in the URLs of a text.
    fn mask_url_users(&mut self, text: &str) -> String {
        let mut parts = text.split("://");
        let mut shown = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let ends = part.find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c)).unwrap_or(part.len());
            shown.push_str("://");
            match part[..ends].rsplit_once('@') {
                Some((user, _)) => {
                    self.remember(user, ':');
                    shown.push_str(MASK);
                    shown.push_str(&part[user.len()..]);
                }
                None => shown.push_str(part),
            }
        }
        shown
    }

    fn remember(&mut self, secret: &str, separator: char) {
        self.0.push(secret.to_owned());
        let part = secret.split_once(separator).map(|(_, part)| part.trim());
        self.0.extend(part.filter(|part| part.len() >= PART_MIN).map(str::to_owned));
    }
}

/// Returns true if a header field of this name carries credentials.
fn is_credential_field(name: &str) -> bool {
    let is_token = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    let name = name.to_ascii_lowercase();
    let is_known = ["authorization", "cookie"].iter().any(|word| name.ends_with(word)) || name.ends_with("-key");
    is_token && (is_known || is_secret(&name))
}

/// Masks a short secret in a text, except where it is part of a longer word.
fn mask_standalone(text: &str, secret: &str) -> String {
    let (mut shown, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(secret) {
        let (before, behind) = (&rest[..at], &rest[at + secret.len()..]);
        shown.push_str(before);
        let is_part = shown.ends_with(char::is_alphanumeric) || behind.starts_with(char::is_alphanumeric);
        shown.push_str(if is_part { secret } else { MASK });
        rest = behind;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: ValueKind, given: &str) -> (String, Secrets) {
        let mut secrets = Secrets::default();
        let shown = secrets.mask_option(kind, given);
        (shown, secrets)
    }

    #[test]
    fn secrets_are_known_by_the_type_of_their_option() {
        let cases = [
            (ValueKind::Secret, "ann:hush", "***"),
            (ValueKind::Text, "http://ann:s3cret@h:80/a@b", "http://***@h:80/a@b"),
            (ValueKind::Text, "3 https://a:b@h/x\n1 http://h/?q=://c:d@e", "3 https://***@h/x\n1 http://h/?q=://***@e"),
            (ValueKind::Text, "http://h/a@b", "http://h/a@b"),
            (ValueKind::Fields, "Authorization: Bearer T", "Authorization: ***"),
            (ValueKind::Fields, "Accept: */*\nX-Api-Key: k\nCookie: a=1", "Accept: */*\nX-Api-Key: ***\nCookie: ***"),
            (
                ValueKind::Fields,
                "step pay\n  POST /pay\n  Proxy-Authorization: Basic eHg=",
                "step pay\n  POST /pay\n  Proxy-Authorization: ***",
            ),
            (ValueKind::Fields, "base http://ann:hush@h/\nUser-Agent: x", "base http://***@h/\nUser-Agent: x"),
            (ValueKind::Fields, "Referer: https://shop.test/", "Referer: https://shop.test/"),
        ];
        for (kind, given, expected) in cases {
            assert_eq!(shown(kind, given).0, expected, "{given}");
        }
    }

    #[test]
    fn a_command_that_starts_an_agent_shows_no_password() {
        let cases = [
            ("sshpass -p hush ssh b1 fathom", "sshpass -p *** ssh b1 fathom"),
            ("/usr/bin/sshpass -phush ssh -p 22 b1", "/usr/bin/sshpass -p*** ssh -p 22 b1"),
            ("kubectl --token=abc exec b1", "kubectl --token=*** exec b1"),
            ("launch --api-token abc b1", "launch --api-token *** b1"),
            ("env DB_PASSWORD=hush docker exec -i b1", "env DB_PASSWORD=*** docker exec -i b1"),
            ("srun -N1 -w b1 fathom agent --stdio", "srun -N1 -w b1 fathom agent --stdio"),
        ];
        for (given, expected) in cases {
            let mut words: Vec<String> = given.split(' ').map(str::to_owned).collect();
            let mut secrets = Secrets::default();
            secrets.mask_command(&mut words);
            assert_eq!(words.join(" "), expected);
            assert_eq!(secrets.mask(given), expected);
        }
    }

    #[test]
    fn what_was_taken_out_of_an_option_is_found_in_any_text() {
        let (_, secrets) = shown(ValueKind::Text, "http://ann:s3cret-password@h/");
        let command = "fathom http http://ann:s3cret-password@h/ --header x:s3cret-password";
        assert_eq!(secrets.mask(command), "fathom http http://***@h/ --header x:***");
        let (_, secrets) = shown(ValueKind::Secret, "a=1");
        assert_eq!(
            secrets.mask("--cookie a=1 --header 'Cookie:a=1' aa=12"),
            "--cookie *** --header 'Cookie:***' aa=12"
        );
        let (_, secrets) = shown(ValueKind::Fields, "Authorization: Bearer abcdefgh");
        assert_eq!(secrets.mask("refused: abcdefgh"), "refused: ***");
    }
}
