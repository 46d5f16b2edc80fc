//! Hosts behind the system's `ssh`, with the user's own configuration, keys, agent, known hosts, jump hosts and shared connections.
//!
//! Nothing prompts: an unknown host key or a locked key is an error at once. Every word of a host is checked before it reaches a command
//! line, and the host itself comes after `--`.

mod failure;
mod push;

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use fathom_engine::StopFlag;
use fathom_model::{
    host_port::bracketed,
    reach::SshHost,
    shell::{shell_word, shell_words},
    units::Nanos,
};

pub use failure::{KEYGEN, SshFailure, failed_jump};

use super::{AgentStream, Opening, command};
use crate::Error;

/// The wait for the connection. The agent's greeting has 15 s, so ssh reports a host that does not answer before that.
const CONNECT_TIMEOUT: Nanos = Nanos::from_secs(10);

/// The beginning of the name of the folder for a copy that is removed.
const COPY_FOLDER: &str = "fathom-push.";
/// The beginning of the path of a copy that is kept, in the cache folder of the user.
const KEPT_FOLDER: &str = "fathom/pushed-";

/// Starts an agent on a host by `ssh`, and copies `own_program` there first if it is missing and the host says so.
///
/// # Errors
/// [`Error::Word`] for a host whose words are not safe on a command line, [`Error::NoLauncher`] if there is no `ssh`, [`Error::Push`] if
/// the program cannot be copied, [`Error::NoAgent`] if the connection ends while it is copied, [`Error::Interrupted`] if `stop` is set
/// meanwhile.
pub fn ssh(host: &SshHost, own_program: &Path, stop: &StopFlag) -> Result<AgentStream, Error> {
    let reached = destination(host);
    host.check_words().map_err(|cause| Error::Word { reached: reached.clone(), cause })?;
    let mut ssh = base(host);
    let Some(kept) = host.push else {
        ssh.arg(agent_command(host));
        let link = command(ssh, None, format!("ssh {reached}"))?;
        return Ok(AgentStream { opening: Opening::TextThenFrame, ..link });
    };
    let binary = push::OwnBinary::read(own_program, kept)?;
    ssh.arg(push::script(host, &binary));
    let link = command(ssh, None, format!("ssh {reached}"))?;
    push::push(link, &reached, &binary, stop)
}

/// Where `ssh` connects to for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshRoute {
    /// The name or address of the host.
    pub hostname: String,
    /// What it connects to first: the host, the first jump host, or the command of `ProxyCommand`.
    pub first_hop: String,
    /// Whether a command makes the connection (`ProxyCommand`), which may lead anywhere.
    pub is_by_command: bool,
}

/// Returns where `ssh` connects to for a host, after the user's configuration. Connects to nothing.
#[must_use]
pub fn route(host: &SshHost) -> Option<SshRoute> {
    host.check_words().ok()?;
    let mut ssh = Command::new("ssh");
    // ssh(1): `-G` prints the configuration and exits.
    ssh.arg("-G");
    let output =
        with_options(ssh, host).args(["--", &host.address]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    route_of(&text)
}

/// Reads the output of `ssh -G`.
fn route_of(text: &str) -> Option<SshRoute> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    let hostname = value("hostname")?;
    let is_set = |text: &&str| *text != "none";
    let first_jump = value("proxyjump").filter(is_set).and_then(|jumps| jumps.split(',').next());
    let command = value("proxycommand").filter(is_set);
    let first_hop = first_jump.or(command).unwrap_or(hostname);
    let is_by_command = first_jump.is_none() && command.is_some();
    Some(SshRoute { hostname: hostname.to_owned(), first_hop: first_hop.to_owned(), is_by_command })
}

/// Returns how a host is shown: `user@address:port`, as far as they are set.
#[must_use]
pub fn destination(host: &SshHost) -> String {
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{user}{}{port}", bracketed(&host.address))
}

/// Returns the words of a shell that opens the same connection by hand, such as `ssh -p 2222 root@b1`.
#[must_use]
pub fn by_hand(host: &SshHost) -> String {
    shell_words(words_by_hand("ssh", host, |jumps| ["-J".to_owned(), jumps]))
}

/// Returns the words of a shell that put a key of the user on a host. ssh-copy-id(1) has no `-J`.
fn copy_id_by_hand(host: &SshHost) -> String {
    shell_words(words_by_hand("ssh-copy-id", host, |jumps| ["-o".to_owned(), format!("ProxyJump={jumps}")]))
}

fn words_by_hand(tool: &str, host: &SshHost, jump_option: impl Fn(String) -> [String; 2]) -> Vec<String> {
    let mut words = vec![tool.to_owned()];
    words.extend(host.ssh_config.iter().flat_map(|file| ["-F".to_owned(), file.clone()]));
    words.extend(host.identity.iter().flat_map(|file| ["-i".to_owned(), file.clone()]));
    words.extend(host.port.iter().flat_map(|port| ["-p".to_owned(), port.to_string()]));
    if !host.jump.is_empty() {
        words.extend(jump_option(jump_chain(host)));
    }
    let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    words.push(format!("{user}{}", host.address));
    words
}

/// Returns `ssh` with all options and the host; the command for the host follows.
fn base(host: &SshHost) -> Command {
    let mut ssh = Command::new("ssh");
    ssh.arg("-T");
    for option in ["BatchMode=yes", "LogLevel=ERROR", "ForwardAgent=no", "ForwardX11=no"] {
        ssh.args(["-o", option]);
    }
    ssh.args(["-o", &format!("ConnectTimeout={}", CONNECT_TIMEOUT.0 / 1_000_000_000)]);
    let mut ssh = with_options(ssh, host);
    ssh.args(["--", &host.address]);
    ssh
}

fn with_options(mut ssh: Command, host: &SshHost) -> Command {
    if let Some(file) = &host.ssh_config {
        ssh.args(["-F", file]);
    }
    if let Some(file) = &host.identity {
        ssh.args(["-i", file]);
    }
    if let Some(port) = host.port {
        ssh.args(["-p", &port.to_string()]);
    }
    if let Some(user) = &host.user {
        ssh.args(["-l", user]);
    }
    if !host.jump.is_empty() {
        ssh.args(["-J", &jump_chain(host)]);
    }
    // `BatchMode` does not hold for the connection to a jump host. A prompt of any of them goes to a program that says nothing.
    ssh.env("SSH_ASKPASS", "/bin/false").env("SSH_ASKPASS_REQUIRE", "force");
    if env::var_os("DISPLAY").is_none() {
        // OpenSSH before 8.4 asks a program only if there is a display.
        ssh.env("DISPLAY", ":0");
    }
    ssh
}

/// Returns the jump hosts in the order of ssh(1): the first one is connected to first.
fn jump_chain(host: &SshHost) -> String {
    host.jump.iter().rev().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Returns the command that starts the agent, for the login shell of the user.
#[must_use]
pub fn agent_command(host: &SshHost) -> String {
    format!("{}{} agent --stdio", sudo(host), program(host))
}

fn sudo(host: &SshHost) -> &'static str {
    if host.sudo { "sudo -n -- " } else { "" }
}

/// Returns the program as a shell reads it; `~/` is the user's home.
fn program(host: &SshHost) -> String {
    match host.program.as_deref() {
        None => "fathom".to_owned(),
        Some(path) => match path.strip_prefix("~/") {
            Some(rest) => format!("\"$HOME\"/{}", shell_word(rest)),
            None => shell_word(path),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(host: &SshHost) -> Vec<String> {
        let mut ssh = base(host);
        ssh.arg(agent_command(host));
        ssh.get_args().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_host_comes_after_the_last_option() {
        let host = SshHost {
            address: "b1".to_owned(),
            port: Some(2222),
            user: Some("me".to_owned()),
            jump: vec!["near".to_owned(), "me@far:23".to_owned()],
            program: Some("~/two words/fathom".to_owned()),
            sudo: true,
            ..SshHost::default()
        };
        let words = words(&host);
        let at = words.iter().position(|word| word == "--").unwrap();
        let command = "sudo -n -- \"$HOME\"/'two words/fathom' agent --stdio";
        assert_eq!(words[at..], ["--", "b1", command]);
        assert!(words[..at].join(" ").ends_with("-p 2222 -l me -J me@far:23,near"), "{words:?}");
        assert!(words.contains(&"BatchMode=yes".to_owned()));
        assert_eq!(by_hand(&host), "ssh -p 2222 -J me@far:23,near me@b1");
        assert_eq!(destination(&host), "me@b1:2222");
    }

    #[test]
    fn a_host_with_a_word_that_is_an_option_starts_nothing() {
        let host = SshHost { address: "-oProxyCommand=touch /tmp/owned".to_owned(), ..SshHost::default() };
        let error = ssh(&host, Path::new("/proc/self/exe"), &StopFlag::default()).unwrap_err();
        assert!(matches!(error, Error::Word { .. }), "{error}");
        assert_eq!(route(&host), None);
    }

    #[test]
    fn every_word_by_hand_is_quoted_for_the_shell() {
        let host = SshHost {
            address: "b1".to_owned(),
            user: Some("DOMAIN\\me".to_owned()),
            identity: Some("/my keys/id".to_owned()),
            ..SshHost::default()
        };
        assert_eq!(by_hand(&host), "ssh -i '/my keys/id' 'DOMAIN\\me@b1'");
    }

    #[test]
    fn the_first_hop_is_the_first_jump_host_of_the_configuration() {
        let route = |text: &str| route_of(text).unwrap();
        assert!(route("hostname b\nproxycommand ssh gate -W %h:%p\n").is_by_command);
        assert!(!route("hostname b\nproxyjump gate\nproxycommand none\n").is_by_command);
        let hop = |text: &str| route_of(text).map(|route| (route.hostname, route.first_hop));
        let pair = |name: &str, hop: &str| Some((name.to_owned(), hop.to_owned()));
        assert_eq!(hop("user me\nhostname 10.0.0.2\nport 22\n"), pair("10.0.0.2", "10.0.0.2"));
        assert_eq!(hop("hostname b\nproxyjump me@far:23,near\n"), pair("b", "me@far:23"));
        assert_eq!(hop("hostname b\nproxycommand ssh gate -W %h:%p\n"), pair("b", "ssh gate -W %h:%p"));
        assert_eq!(hop("hostname b\nproxyjump none\nproxycommand none\n"), pair("b", "b"));
        assert_eq!(hop(""), None);
    }
}
