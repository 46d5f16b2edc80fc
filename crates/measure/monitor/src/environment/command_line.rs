//! The kernel's command line without possible secrets.
//!
//! There is no list of known options: every value that looks like a secret is removed.

/// The replacement of a possible secret.
const REDACTED: &str = "<redacted>";

/// Parts of names that indicate a secret.
const SECRET: [&str; 7] = ["password", "passwd", "passphrase", "token", "secret", "key", "credential"];

/// Removes the values of keys that look secret, and passwords in addresses.
pub(super) fn redacted(line: &str) -> String {
    let mut words = Vec::new();
    let mut is_value = false;
    for word in words_of(line) {
        let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        let is_secret = looks_secret(name);
        words.push(match value {
            _ if is_value && !word.starts_with('-') => REDACTED.to_owned(),
            Some(_) if is_secret => format!("{name}={REDACTED}"),
            _ if word.contains("://") && word.contains('@') => match value {
                Some(_) => format!("{name}={REDACTED}"),
                None => REDACTED.to_owned(),
            },
            _ => word.to_owned(),
        });
        // Programs started by the kernel take options in the form `--token VALUE`.
        is_value = is_secret && value.is_none() && word.starts_with('-');
    }
    words.join(" ")
}

fn looks_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    SECRET.iter().any(|part| name.contains(part))
}

/// Splits a line into words. White space in double quotes does not split, as in the kernel's own `next_arg`.
fn words_of(line: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    let parts = line.split(move |c: char| {
        is_quoted ^= c == '"';
        c.is_whitespace() && !is_quoted
    });
    parts.filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::redacted;

    #[test]
    fn secrets_are_taken_out_of_a_command_line_and_nothing_else() {
        let cases = [
            ("quiet root=/dev/vda1 ro", "quiet root=/dev/vda1 ro"),
            ("a.Password=x b", "a.Password=<redacted> b"),
            ("agent_token=\"one two\" ro", "agent_token=<redacted> ro"),
            ("init=/init -- --token abc --verbose", "init=/init -- --token <redacted> --verbose"),
            ("-- --auth-key --quiet", "-- --auth-key --quiet"),
            ("ks=http://me:pw@host/ks ip=dhcp", "ks=<redacted> ip=dhcp"),
            ("key= x", "key=<redacted> x"),
            ("dyndbg=\"file a +p\"  quiet", "dyndbg=\"file a +p\" quiet"),
            ("", ""),
        ];
        for (line, expected) in cases {
            assert_eq!(redacted(line), expected);
        }
    }
}
