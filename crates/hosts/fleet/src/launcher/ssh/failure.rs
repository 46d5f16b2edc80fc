//! Why `ssh` did not start an agent, from its exit status and its own words.

use std::process::ExitStatus;

use fathom_model::{
    host_port::{port_number, split_host_port},
    reach::{PushedBinary, SshHost},
};

use super::{COPY_FOLDER, KEPT_FOLDER, by_hand, copy_id_by_hand, program};

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
    /// The folder with the copy of this program may not hold programs.
    CopyNotExecutable,
    /// `sudo` asks for a password, does not know the user, or is not there.
    SudoRefused,
}

/// The exit status of `ssh` if it has no connection: ssh(1). Any other one is that of the command on the host.
const STATUS_OF_SSH: i32 = 255;
/// The exit statuses of a shell for a program that it cannot run, and for one that is not there (POSIX, section 2.8.2).
const STATUS_NOT_EXECUTABLE: i32 = 126;
const STATUS_NOT_FOUND: i32 = 127;

/// What `ssh` writes, in the order of what tells most. A changed host key is also reported as a failed verification.
const WORDS_OF_SSH: &[(&str, SshFailure)] = &[
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", SshFailure::HostKeyChanged),
    ("Host key verification failed", SshFailure::HostKeyUnknown),
    ("Could not resolve hostname", SshFailure::UnknownName),
    ("Permission denied (", SshFailure::KeyRefused),
    ("Too many authentication failures", SshFailure::KeyRefused),
    ("Connection refused", SshFailure::Unreachable),
    ("timed out", SshFailure::Unreachable),
    ("No route to host", SshFailure::Unreachable),
    ("Network is unreachable", SshFailure::Unreachable),
    ("Connection closed by", SshFailure::Unreachable),
    ("Connection reset by", SshFailure::Unreachable),
];

/// What `sudo`, the loader and the shells of a host write.
const WORDS_OF_HOST: &[(&str, SshFailure)] = &[
    ("a password is required", SshFailure::SudoRefused),
    ("a terminal is required", SshFailure::SudoRefused),
    ("you must have a tty", SshFailure::SudoRefused),
    ("not in the sudoers file", SshFailure::SudoRefused),
    ("is not allowed to ", SshFailure::SudoRefused),
    (" sudo: command not found", SshFailure::SudoRefused),
    (" sudo: not found", SshFailure::SudoRefused),
    ("Exec format error", SshFailure::ProgramUnusable),
    ("GLIBC_", SshFailure::ProgramUnusable),
    ("error while loading shared libraries", SshFailure::ProgramUnusable),
    // Those of `sudo` and of csh, whose exit status is 1.
    ("ommand not found", SshFailure::ProgramMissing),
];

/// How a line begins in which `ssh` says how to forget a host key.
pub const KEYGEN: &str = "ssh-keygen ";

fn find(words: &[(&str, SshFailure)], stderr: &str) -> Option<SshFailure> {
    words.iter().find(|(words, _)| stderr.contains(words)).map(|(_, failure)| *failure)
}

impl SshFailure {
    /// Finds the reason in the exit status and in what `ssh` and the host wrote to standard error; none if neither says it.
    #[must_use]
    pub fn of(stderr: &str, exit: Option<ExitStatus>) -> Option<Self> {
        let is_copy = |line: &str| line.contains(COPY_FOLDER) || line.contains(KEPT_FOLDER);
        let is_refused_copy = stderr.lines().any(|line| is_copy(line) && line.contains("ermission denied"));
        let of_host = || is_refused_copy.then_some(Self::CopyNotExecutable).or_else(|| find(WORDS_OF_HOST, stderr));
        match exit.and_then(|exit| exit.code()) {
            Some(STATUS_OF_SSH) => find(WORDS_OF_SSH, stderr),
            Some(STATUS_NOT_EXECUTABLE) => of_host().or(Some(Self::ProgramUnusable)),
            Some(STATUS_NOT_FOUND) => of_host().or(Some(Self::ProgramMissing)),
            Some(_) => of_host(),
            // It was ended from here.
            None => find(WORDS_OF_SSH, stderr).or_else(of_host),
        }
    }

    /// Returns the reason in words that follow "host `b1`".
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::UnknownName => "its name does not resolve",
            Self::Unreachable => "ssh cannot reach it",
            Self::HostKeyChanged => "its host key is not the one that is known here",
            Self::HostKeyUnknown => "its host key is not known here",
            Self::KeyRefused => "it accepts no key of this user",
            Self::ProgramMissing => "there is no fathom on it",
            Self::ProgramUnusable => "the fathom on it cannot run there",
            Self::CopyNotExecutable => "it does not run the fathom that was copied there",
            Self::SudoRefused => "sudo does not start fathom there",
        }
    }

    /// Returns the way out for a host, with commands that can be pasted. `stderr` is what `ssh` wrote.
    #[must_use]
    pub fn fix(self, host: &SshHost, stderr: &str) -> String {
        let hand = by_hand(host);
        match self {
            Self::UnknownName => {
                "write its address: control = \"10.0.0.2\"; or add the name to ~/.ssh/config".to_owned()
            }
            Self::Unreachable => format!("{hand} true        # until that works; a host behind another one needs jump"),
            Self::HostKeyChanged => {
                // The command of `ssh` names the file, too.
                let of_ssh = stderr.lines().map(str::trim).find(|line| line.starts_with(KEYGEN));
                let own = || format!("{KEYGEN}-R '{}'", known_name(host));
                let forget = of_ssh.map_or_else(own, str::to_owned);
                format!(
                    "{forget}        # only if the host was reinstalled; otherwise this may be a man-in-the-middle attack"
                )
            }
            Self::HostKeyUnknown => format!("{hand} true        # once; compare the fingerprint before you say yes"),
            Self::KeyRefused => {
                format!("{} ; ssh-add -l        # shows the keys that are offered", copy_id_by_hand(host))
            }
            Self::ProgramMissing if host.push.is_none() => {
                format!("--push-binary, or {hand} command -v fathom        # its path goes into program = \"…\"")
            }
            Self::ProgramMissing => format!("{hand} ls -l {}", program(host)),
            Self::ProgramUnusable if host.push.is_some() => {
                "use a static build of fathom here: cargo build --release --target x86_64-unknown-linux-musl".to_owned()
            }
            Self::ProgramUnusable => {
                "install a fathom there that is built for its processor and its libraries".to_owned()
            }
            Self::CopyNotExecutable if host.push == Some(PushedBinary::Keep) => {
                "~/.cache there may be mounted noexec; install fathom elsewhere: program = \"…\"".to_owned()
            }
            Self::CopyNotExecutable => "/tmp there may be mounted noexec; use --push-binary=keep".to_owned(),
            Self::SudoRefused => format!("{hand} -t sudo visudo        # NOPASSWD for fathom; or user = \"root\""),
        }
    }
}

/// Returns the jump host that `ssh` could not pass, if it says so or if there is only one that it can be.
#[must_use]
pub fn failed_jump(host: &SshHost, stderr: &str) -> Option<SshHost> {
    // What the connection to a jump host leaves behind when it ends.
    let has_ended = stderr.contains("UNKNOWN port 65535");
    // The jump host answers, and does not reach the next host.
    let is_passed = stderr.contains("stdio forwarding failed") || stderr.contains("open failed");
    let is_told = |line: &&str| find(WORDS_OF_SSH, line).is_some() || line.contains("host key is known for");
    let names = |address: &str| {
        let is_name = |word: &str| word.trim_matches([':', ',', '.', '\'']) == address;
        let mut told = stderr.lines().filter(is_told);
        told.any(|line| line.split([' ', '@', '[', ']']).any(is_name))
    };
    let is_only = host.jump.len() == 1 && has_ended && !is_passed;
    // The last one of the list is connected to first.
    host.jump.iter().enumerate().rev().find_map(|(idx, jump)| {
        let (user, place) = jump.rsplit_once('@').map_or((None, jump.as_str()), |(user, place)| (Some(user), place));
        let (address, port) = split_host_port(place)?;
        (is_only || !is_passed && names(address)).then(|| SshHost {
            address: address.to_owned(),
            port: port.and_then(port_number),
            user: user.map(str::to_owned),
            jump: host.jump[idx + 1..].to_vec(),
            ssh_config: host.ssh_config.clone(),
            ..SshHost::default()
        })
    })
}

/// Returns the name of a host in `known_hosts`.
fn known_name(host: &SshHost) -> String {
    match host.port {
        Some(port) if port != 22 => format!("[{}]:{port}", host.address),
        _ => host.address.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn the_exit_status_and_the_words_name_the_reason() {
        let cases = [
            (
                255,
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
                Some(SshFailure::HostKeyChanged),
            ),
            (
                255,
                "No ED25519 host key is known for b and you have requested strict checking.\nHost key verification failed.",
                Some(SshFailure::HostKeyUnknown),
            ),
            (255, "root@10.0.0.2: Permission denied (publickey).", Some(SshFailure::KeyRefused)),
            (255, "ssh: connect to host 10.0.0.2 port 22: Connection refused", Some(SshFailure::Unreachable)),
            (255, "ssh: Could not resolve hostname b9: Name or service not known", Some(SshFailure::UnknownName)),
            (255, "bash: warning: setlocale: LC_ALL: cannot change locale (x): No such file or directory", None),
            (127, "bash: line 1: fathom: command not found", Some(SshFailure::ProgramMissing)),
            (127, "sh: 1: fathom: not found", Some(SshFailure::ProgramMissing)),
            (127, "fish: Unknown command: fathom", Some(SshFailure::ProgramMissing)),
            (127, "bash: line 1: /opt/fathom: No such file or directory", Some(SshFailure::ProgramMissing)),
            (1, "fathom: Command not found.", Some(SshFailure::ProgramMissing)),
            (1, "sudo: /opt/fathom: command not found", Some(SshFailure::ProgramMissing)),
            (127, "bash: line 1: sudo: command not found", Some(SshFailure::SudoRefused)),
            (1, "sudo: a password is required", Some(SshFailure::SudoRefused)),
            (1, "me is not in the sudoers file.", Some(SshFailure::SudoRefused)),
            (1, "sudo: sorry, you must have a tty to run sudo", Some(SshFailure::SudoRefused)),
            (126, "bash: line 1: /opt/fathom: Permission denied", Some(SshFailure::ProgramUnusable)),
            (126, "sh: 1: /tmp/fathom-push.a1/fathom: Permission denied", Some(SshFailure::CopyNotExecutable)),
            (127, "fathom: error while loading shared libraries: libx.so", Some(SshFailure::ProgramUnusable)),
            (1, "bash: warning: setlocale: LC_ALL: cannot change locale (x): No such file or directory", None),
            (1, "Welcome. Connection refused is a song.", None),
            (1, "Could not chdir to home directory /nonexistent: No such file or directory", None),
            (0, "something else", None),
        ];
        for (code, stderr, expected) in cases {
            assert_eq!(SshFailure::of(stderr, Some(exit(code))), expected, "{code}: {stderr}");
        }
        let killed = Some(ExitStatus::from_raw(9));
        assert_eq!(SshFailure::of("ssh: connect to host b port 22: timed out", killed), Some(SshFailure::Unreachable));
    }

    #[test]
    fn the_fix_of_a_changed_key_names_the_host_as_the_file_does() {
        let mut host = SshHost { address: "10.0.0.2".to_owned(), port: Some(2222), ..SshHost::default() };
        let fix = |failure: SshFailure, host: &SshHost| failure.fix(host, "");
        assert!(fix(SshFailure::HostKeyChanged, &host).starts_with("ssh-keygen -R '[10.0.0.2]:2222'"));
        host.port = None;
        assert!(fix(SshFailure::HostKeyChanged, &host).starts_with("ssh-keygen -R '10.0.0.2'"));
        let of_ssh = "remove with:\r\n  ssh-keygen -f \"/k\" -R \"b\"\r\n";
        assert!(
            SshFailure::HostKeyChanged.fix(&host, of_ssh).starts_with("ssh-keygen -f \"/k\" -R \"b\"        # only if")
        );
        host.jump = vec!["gate".to_owned()];
        assert!(fix(SshFailure::KeyRefused, &host).starts_with("ssh-copy-id -o ProxyJump=gate 10.0.0.2"));
        host.push = Some(PushedBinary::Remove);
        assert!(fix(SshFailure::CopyNotExecutable, &host).contains("--push-binary=keep"));
    }

    #[test]
    fn the_jump_host_that_refuses_is_named() {
        let jump = ["near", "me@10.0.0.9:2222"].map(str::to_owned).to_vec();
        let host = SshHost { address: "b1".to_owned(), jump, identity: Some("/key".to_owned()), ..SshHost::default() };
        let failed = |stderr: &str| failed_jump(&host, stderr).map(|jump| jump.address);
        let end = "Connection closed by UNKNOWN port 65535";
        let first = failed_jump(&host, &format!("me@10.0.0.9: Permission denied (publickey).\n{end}")).unwrap();
        assert_eq!((first.address.as_str(), first.port, first.user.as_deref()), ("10.0.0.9", Some(2222), Some("me")));
        assert!(first.jump.is_empty() && first.identity.is_none(), "`-i` is not for it");
        let second = failed_jump(&host, "ssh: connect to host near port 22: Connection refused").unwrap();
        assert_eq!((second.address.as_str(), second.jump.len()), ("near", 1));
        assert_eq!(failed("root@b1: Permission denied (publickey)."), None);
        assert_eq!(failed(&format!("Host key verification failed.\n{end}")), None, "it may be either of them");
        let one = SshHost { jump: vec!["gate".to_owned()], ..host.clone() };
        let failed = |stderr: &str| failed_jump(&one, stderr).map(|jump| jump.address);
        assert_eq!(failed(&format!("Host key verification failed.\n{end}")).as_deref(), Some("gate"));
        assert_eq!(failed(&format!("channel 0: open failed: connect failed\nstdio forwarding failed\n{end}")), None);
    }
}
