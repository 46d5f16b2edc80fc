//! Why `ssh` did not start an agent, from its own words and its exit status.

use fathom_model::{
    host_port::bracketed,
    reach::{PushedBinary, SshHost},
};

use super::{by_hand, program};

/// The reason why a host behind `ssh` has no agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SshFailure {
    /// The name has no address.
    UnknownName,
    /// Nothing answers at the address, or its port is closed.
    Unreachable,
    /// The host has another key than the one that is known here.
    HostKeyChanged,
    /// The host's key is not known here.
    HostKeyUnknown,
    /// The host accepts none of the keys.
    KeyRefused,
    /// There is no fathom at its place.
    ProgramMissing,
    /// The program there is not for this processor, or lacks libraries.
    ProgramUnusable,
    /// `sudo` asks for a password.
    SudoRefused,
}

/// What `ssh` and the shells write, in the order of what tells most. A changed host key is also reported as a failed verification.
const WORDS: &[(&str, SshFailure)] = &[
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", SshFailure::HostKeyChanged),
    ("Host key verification failed", SshFailure::HostKeyUnknown),
    ("Could not resolve hostname", SshFailure::UnknownName),
    ("Permission denied (", SshFailure::KeyRefused),
    (": Permission denied", SshFailure::ProgramUnusable),
    ("Too many authentication failures", SshFailure::KeyRefused),
    ("Connection refused", SshFailure::Unreachable),
    ("timed out", SshFailure::Unreachable),
    ("No route to host", SshFailure::Unreachable),
    ("Network is unreachable", SshFailure::Unreachable),
    ("Connection closed by", SshFailure::Unreachable),
    ("a password is required", SshFailure::SudoRefused),
    ("Exec format error", SshFailure::ProgramUnusable),
    ("GLIBC_", SshFailure::ProgramUnusable),
    ("error while loading shared libraries", SshFailure::ProgramUnusable),
    ("command not found", SshFailure::ProgramMissing),
    ("not found", SshFailure::ProgramMissing),
    ("No such file or directory", SshFailure::ProgramMissing),
    ("Unknown command", SshFailure::ProgramMissing),
];

/// A user without a home folder can still run programs.
const NO_HOME: &str = "Could not chdir to home directory";

impl SshFailure {
    /// Finds the reason in what `ssh` and the host wrote to standard error; none if they wrote nothing known.
    #[must_use]
    pub fn of(stderr: &str) -> Option<Self> {
        let has = |words: &str| stderr.lines().any(|line| line.contains(words) && !line.starts_with(NO_HOME));
        WORDS.iter().find(|(words, _)| has(words)).map(|(_, failure)| *failure)
    }

    /// Returns the reason in words that follow "host `b1`".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::UnknownName => "its name has no address",
            Self::Unreachable => "ssh cannot reach it",
            Self::HostKeyChanged => "its host key is not the one that is known here",
            Self::HostKeyUnknown => "its host key is not known here",
            Self::KeyRefused => "it accepts no key of this user",
            Self::ProgramMissing => "there is no fathom on it",
            Self::ProgramUnusable => "the fathom on it cannot run there",
            Self::SudoRefused => "sudo asks for a password there",
        }
    }

    /// Returns the way out for a host, with commands that can be pasted.
    #[must_use]
    pub fn fix(self, host: &SshHost) -> String {
        let hand = by_hand(host);
        match self {
            Self::UnknownName => {
                "write its address: control = \"10.0.0.2\"; or add the name to ~/.ssh/config".to_owned()
            }
            Self::Unreachable => format!("{hand} true        # until that works; a host behind another one needs jump"),
            Self::HostKeyChanged => format!(
                "ssh-keygen -R '{}'        # only if the host was installed anew; otherwise someone may be in between",
                known_name(host)
            ),
            Self::HostKeyUnknown => format!("{hand} true        # once; compare the fingerprint before you say yes"),
            Self::KeyRefused => {
                format!(
                    "{} ; ssh-add -l        # shows the keys that are offered",
                    hand.replacen("ssh ", "ssh-copy-id ", 1)
                )
            }
            Self::ProgramMissing if host.push.is_none() => {
                format!("--push-binary, or {hand} command -v fathom        # its path goes into program = \"…\"")
            }
            Self::ProgramMissing => format!("{hand} ls -l {}", program(host)),
            Self::ProgramUnusable
                if host.push == Some(PushedBinary::Keep) || host.push == Some(PushedBinary::Remove) =>
            {
                "use a static build of fathom here: cargo build --release --target x86_64-unknown-linux-musl".to_owned()
            }
            Self::ProgramUnusable => {
                "install a fathom there that is built for its processor and its libraries".to_owned()
            }
            Self::SudoRefused => format!("{hand} -t sudo visudo        # NOPASSWD for fathom; or user = \"root\""),
        }
    }
}

/// Returns the name of a host in `known_hosts`.
fn known_name(host: &SshHost) -> String {
    match host.port {
        Some(port) if port != 22 => format!("[{}]:{port}", host.address),
        _ => bracketed(&host.address).trim_matches(['[', ']']).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_ssh_name_the_reason() {
        let cases = [
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                Some(SshFailure::HostKeyChanged),
            ),
            (
                "No ED25519 host key is known for b and you have requested strict checking.\nHost key verification failed.",
                Some(SshFailure::HostKeyUnknown),
            ),
            ("root@10.0.0.2: Permission denied (publickey).", Some(SshFailure::KeyRefused)),
            ("ssh: connect to host 10.0.0.2 port 22: Connection refused", Some(SshFailure::Unreachable)),
            ("ssh: Could not resolve hostname b9: Name or service not known", Some(SshFailure::UnknownName)),
            ("bash: line 1: fathom: command not found", Some(SshFailure::ProgramMissing)),
            ("sh: 1: fathom: not found", Some(SshFailure::ProgramMissing)),
            ("fish: Unknown command: fathom", Some(SshFailure::ProgramMissing)),
            ("sudo: a password is required", Some(SshFailure::SudoRefused)),
            ("Could not chdir to home directory /nonexistent: No such file or directory", None),
            ("something else", None),
        ];
        for (stderr, expected) in cases {
            assert_eq!(SshFailure::of(stderr), expected, "{stderr}");
        }
    }

    #[test]
    fn the_fix_of_a_changed_key_names_the_host_as_the_file_does() {
        let mut host = SshHost { address: "10.0.0.2".to_owned(), port: Some(2222), ..SshHost::default() };
        assert!(SshFailure::HostKeyChanged.fix(&host).starts_with("ssh-keygen -R '[10.0.0.2]:2222'"));
        host.port = None;
        assert!(SshFailure::HostKeyChanged.fix(&host).starts_with("ssh-keygen -R '10.0.0.2'"));
        assert!(SshFailure::KeyRefused.fix(&host).starts_with("ssh-copy-id 10.0.0.2"));
    }
}
