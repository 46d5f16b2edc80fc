//! Hosts behind a command: the system's `ssh`, or any other one.
//!
//! Their words end on command lines, so the words that a command could take for an option or a shell for its own are refused here.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::host_port::{port_number, split_host_port};

/// What happens to the program on a host after `fathom` was copied there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PushedBinary {
    /// It is removed as soon as it runs.
    Remove,
    /// It stays in the user's cache folder, and the next run finds it there.
    Keep,
}

/// A host behind the system's `ssh`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SshHost {
    /// A name, an address, or an alias of the user's `ssh_config`.
    pub address: String,
    /// The port; absent for that of `ssh_config`, or 22.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The user there; absent for that of `ssh_config`, or the same name as here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The hosts that lead there, the last hop before the host first, each as `[USER@]HOST[:PORT]`; empty for those of `ssh_config`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jump: Vec<String>,
    /// A file with a private key; absent for the agent and the keys of `ssh_config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// A configuration file in place of the user's `~/.ssh/config`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_config: Option<String>,
    /// The path of fathom there; absent for `fathom` in its `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Whether the agent is started by `sudo -n`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sudo: bool,
    /// Whether this program is copied there if it is missing; absent for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<PushedBinary>,
    /// Its address on the path under test; absent if that is the address that ssh connects to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<IpAddr>,
}

/// A host behind any command that runs an agent on its standard streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecHost {
    /// The program and its arguments, such as `srun -N1 -w node1 fathom agent --stdio`. No shell reads them.
    pub command: Vec<String>,
    /// Its address on the path under test. A plan has it; an inventory may leave it to a look-up of the host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<IpAddr>,
}

/// A host of an inventory, before the inventory is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InventoryReference {
    /// The name of the host there.
    pub host: String,
    /// The file; absent for that of `--hosts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A word that must not reach a command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} `{}` is not {expected}", word.escape_debug())]
pub struct WordError {
    /// The key of the inventory.
    pub key: &'static str,
    /// The given word.
    pub word: String,
    /// The form that it must have.
    pub expected: &'static str,
}

const ADDRESS: &str = "a host name or an address";
const USER: &str = "a user name: letters, digits and . _ - @ + \\, without spaces, and no - at the front";
const JUMP: &str = "a jump host: [USER@]HOST[:PORT], or the name of another host";
const PATH: &str = "a path without quotes, $, `, !, \\ and line breaks, and no - at the front";

impl SshHost {
    /// Checks that no word can be taken for an option, and that none means something to a shell.
    ///
    /// # Errors
    /// Names the first word that can.
    pub fn check_words(&self) -> Result<(), WordError> {
        check(is_host_word(&self.address), "control", &self.address, ADDRESS)?;
        let user = self.user.as_deref().unwrap_or("root");
        check(is_user_word(user), "user", user, USER)?;
        for jump in &self.jump {
            check(is_jump_word(jump), "jump", jump, JUMP)?;
        }
        let files = [("identity", &self.identity), ("ssh_config", &self.ssh_config), ("program", &self.program)];
        for (key, file) in files {
            let file = file.as_deref().unwrap_or("/");
            check(is_path_word(file), key, file, PATH)?;
        }
        Ok(())
    }
}

/// Returns the error if `holds` is false.
pub(crate) fn check(holds: bool, key: &'static str, word: &str, expected: &'static str) -> Result<(), WordError> {
    if holds { Ok(()) } else { Err(WordError { key, word: word.to_owned(), expected }) }
}

/// Returns whether a text is a host name, an address, or an alias of `ssh_config`. A zone may follow an address (`fe80::1%eth0`).
#[must_use]
pub fn is_host_word(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    !text.is_empty() && text.len() <= 255 && !text.starts_with('-') && text.chars().all(is_known)
}

/// Returns whether a text is a user name that no shell and no option parser takes for something else.
#[must_use]
pub fn is_user_word(text: &str) -> bool {
    let is_known = |c: char| c.is_alphanumeric() || "._-@+\\".contains(c);
    !text.is_empty() && text.len() <= 255 && !text.starts_with('-') && text.chars().all(is_known)
}

/// Returns whether a text is a jump host in the form of ssh(1), option `-J`.
#[must_use]
pub fn is_jump_word(text: &str) -> bool {
    let (user, place) = text.rsplit_once('@').map_or((None, text), |(user, place)| (Some(user), place));
    let Some((host, port)) = split_host_port(place) else { return false };
    user.is_none_or(is_user_word) && is_host_word(host) && port.is_none_or(|port| port_number(port).is_some())
}

/// Returns whether a text is a path that every shell keeps whole inside single quotes and inside double quotes.
#[must_use]
pub fn is_path_word(text: &str) -> bool {
    // `!` calls the history of csh, also between quotes.
    let is_known = |c: char| !c.is_control() && !"'\"\\$`!".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_ssh_or_a_shell_takes_for_something_else_is_refused() {
        for host in ["-oProxyCommand=reboot", "", "a b", "a;b", "$(id)", "a\nb", "a'b", "a/b", "a@b"] {
            assert!(!is_host_word(host), "{host}");
        }
        for user in ["-l", "", "two words", "a;b", "`id`", "a\tb", "a'b", "$USER", "a/b"] {
            assert!(!is_user_word(user), "{user}");
        }
        for jump in ["-J", "", "a b", "x@-y", "-x@y", "a:0", "a:b", "a,b", "a@b@-c"] {
            assert!(!is_jump_word(jump), "{jump}");
        }
        for path in ["-x", "", "a'b", "a\nb", "a\\b", "a\"b", "/opt/$(id)/f", "/opt/`id`/f", "$HOME/f", "a!b"] {
            assert!(!is_path_word(path), "{path}");
            let host = SshHost { address: "b".to_owned(), program: Some(path.to_owned()), ..SshHost::default() };
            assert_eq!(host.check_words().unwrap_err().key, "program", "{path}");
        }
    }

    #[test]
    fn ordinary_names_addresses_and_users_pass() {
        assert!(["b1", "10.0.0.2", "b1.rack.example", "fe80::1%eth0", "my_alias"].into_iter().all(is_host_word));
        assert!(["root", "me.too", "DOMAIN\\me", "me@realm", "jürgen"].into_iter().all(is_user_word));
        assert!(["b", "me@b:22", "b:2222", "[fd00::1]:22", "fd00::1", "me@realm@b"].into_iter().all(is_jump_word));
        assert!(["/opt/fathom", "/home/two words/fathom", "~/bin/fathom"].into_iter().all(is_path_word));
    }

    #[test]
    fn a_bad_word_is_reported_with_its_key() {
        let host = SshHost { address: "b".to_owned(), user: Some("two words".to_owned()), ..SshHost::default() };
        let error = host.check_words().unwrap_err();
        assert_eq!((error.key, error.word.as_str()), ("user", "two words"));
        assert!(error.to_string().starts_with("user `two words` is not a user name"), "{error}");
    }
}
