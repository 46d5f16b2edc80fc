//! The hosts of an inventory: ranges of them, what each one's keys mean, and how it is reached.

use std::{
    collections::BTreeMap,
    env,
    net::IpAddr,
    ops::Range,
    path::{Path, PathBuf},
};

use fathom_fleet::tls::Identity;
use fathom_model::{
    HostRole, InventoryHost,
    host_port::bracketed,
    inventory::expand,
    kubernetes::{KubernetesCluster, KubernetesHost},
    plan::HostReach,
    reach::{ExecHost, SshHost, WordError, is_host_word, is_jump_word, is_user_word},
};
use toml::Spanned;

use super::{
    launchers::{self, Keys},
    text::{ALL, HostText, InventoryText, LauncherText, SourceText, key},
};
use crate::{
    exit::{Exit, UserError},
    files, target,
};

/// The port of a `fathom serve`.
const AGENT_PORT: u16 = 7700;
/// The port of an sshd.
const SSH_PORT: u16 = 22;
/// The maximum size of a file with a key: a certificate and its private key.
const KEY_FILE_MAX: u64 = 64 << 10;
/// The launchers by their words.
const LAUNCHERS: &str = "ssh, kubernetes, tls, self, lab, or a command such as [\"srun\", \"-N1\", \"-w\", \"{host}\", \"fathom\", \"agent\", \"--stdio\"]";

/// One host, before it is known how it is reached.
#[derive(Debug, Clone)]
pub(super) struct HostEntry {
    /// The key of the file that it comes from, such as `hosts."b[1-8]"`.
    place: String,
    /// Where that key is.
    span: Range<usize>,
    /// The address at which it is controlled.
    control: String,
    /// Its address on the path under test, if the file has one.
    data: Option<IpAddr>,
    text: HostText,
}

impl HostEntry {
    /// Returns the entry of an address in a group.
    pub(super) fn of_address(address: &str, defaults: &HostText, span: Range<usize>) -> Self {
        let place = format!("groups, `{address}`");
        Self { place, span, control: address.to_owned(), data: address.parse().ok(), text: defaults.clone() }
    }
}

/// The hosts by name, with their order in the file.
#[derive(Debug, Default)]
pub(super) struct HostEntries {
    by_name: BTreeMap<String, HostEntry>,
    order: Vec<String>,
}

impl HostEntries {
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn insert(&mut self, name: String, entry: HostEntry) {
        self.order.push(name.clone());
        self.by_name.insert(name, entry);
    }

    pub(super) fn names_in_order(&self) -> Vec<String> {
        self.order.clone()
    }
}

/// Returns the value of a key, if it is written.
fn value<T: Clone>(written: Option<&Spanned<T>>) -> Option<T> {
    written.map(|written| written.get_ref().clone())
}

/// Expands the ranges of the hosts.
pub(super) fn expand_hosts(written: &InventoryText, source: &SourceText<'_>) -> Result<HostEntries, UserError> {
    let mut entries = HostEntries::default();
    let mut in_order: Vec<_> = written.hosts.iter().collect();
    in_order.sort_by_key(|(pattern, _)| pattern.span().start);
    let jumps = launchers::jump_words(written);
    for (pattern, own) in in_order {
        let place = format!("hosts.{}", key(pattern.get_ref()));
        let text = own.with_defaults(&written.defaults);
        let wrong = |what: String| source.error(&pattern.span(), format!("{place}: {what}"));
        let names = expand(pattern.get_ref()).map_err(|error| wrong(error.to_string()))?;
        let is_jump_host = names.iter().any(|name| jumps.contains(name.as_str()));
        Keys { place: &place, own, text: &text, is_jump_host }.check(source)?;
        let at = RangeOfHosts { place: &place, n_hosts: names.len(), source };
        let controls = text.control.as_ref().map(|control| at.pair(control, "control")).transpose()?;
        let data = text.data.as_ref().map(|data| at.addresses(data)).transpose()?;
        for (idx, name) in names.into_iter().enumerate() {
            if !is_host_word(&name) {
                let what = format!("`{}` is not a name", name.escape_debug());
                return Err(wrong(what).with_line("fix", "use letters, digits and . _ -, and no - at the front"));
            }
            if name == ALL {
                let fix = "give the host another name";
                return Err(wrong(format!("`{ALL}` is the group of all hosts")).with_line("fix", fix));
            }
            if let Some(other) = entries.by_name.get(&name) {
                let line = source.line(other.span.start);
                return Err(wrong(format!("host `{name}` is defined twice"))
                    .with_line("also", format!("line {line}: {}", other.place))
                    .with_line("fix", "keep one of them"));
            }
            let control = controls.as_ref().map_or_else(|| name.clone(), |controls| controls[idx].clone());
            let data = data.as_ref().map(|data| data[idx]);
            let mut text = text.clone();
            // The jump host of the defaults is reached without one.
            text.jump = text.jump.filter(|jump| own.jump.is_some() || *jump.get_ref() != name);
            entries.insert(name, HostEntry { place: place.clone(), span: pattern.span(), control, data, text });
        }
    }
    Ok(entries)
}

/// A key of the hosts with its number of hosts.
struct RangeOfHosts<'a> {
    place: &'a str,
    n_hosts: usize,
    source: &'a SourceText<'a>,
}

impl RangeOfHosts<'_> {
    /// Expands a value to one text for each host.
    fn pair(&self, value: &Spanned<String>, name: &str) -> Result<Vec<String>, UserError> {
        let wrong = |what: String| self.source.error(&value.span(), format!("{}.{name}: {what}", self.place));
        let texts = expand(value.get_ref()).map_err(|error| wrong(error.to_string()))?;
        if let Some(what) = texts.iter().find_map(|text| beyond_address(value.get_ref(), text)) {
            return Err(wrong(what));
        }
        if texts.len() == self.n_hosts {
            return Ok(texts);
        }
        let (n, hosts) = (texts.len(), self.n_hosts);
        let count = |n: usize, one: &str, many: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {many}") };
        let what = format!(
            "it stands for {}, and the key for {}",
            count(n, "address", "addresses"),
            count(hosts, "host", "hosts")
        );
        Err(wrong(what).with_line("fix", format!("write a range of {}", count(hosts, "address", "addresses"))))
    }

    /// Expands a value to one address for each host.
    fn addresses(&self, value: &Spanned<String>) -> Result<Vec<IpAddr>, UserError> {
        let address = |text: String| {
            text.parse().map_err(|_| {
                let what = format!("{}.data: `{text}` is not an IP address", self.place);
                self.source.error(&value.span(), what).with_line(
                    "fix",
                    "write the address of the interface that the test is to use; a name goes to control",
                )
            })
        };
        self.pair(value, "data")?.into_iter().map(address).collect()
    }
}

/// Returns the error of an address of IPv4 with a number above 255, which a range leads to.
pub(super) fn beyond_address(written: &str, address: &str) -> Option<String> {
    let numbers: Vec<&str> = address.split('.').collect();
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_beyond = |text: &&str| text.parse::<u8>().is_err();
    let is_wrong = numbers.len() == 4 && numbers.iter().all(is_number) && numbers.iter().any(is_beyond);
    is_wrong.then(|| format!("`{written}` leaves 0–255, the numbers of an address: `{address}`"))
}

/// Returns the port at the end of a name or an address, where an inventory has no place for one.
fn port_in(control: &str) -> Option<(&str, &str)> {
    let (host, port) = control.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && !host.is_empty() && !host.contains(':')).then_some((host, port))
}

/// A value of a host that needs more than its file: it is found when the host is used, so that no host stands in the way of others.
#[derive(Debug)]
pub(super) enum OpenValue {
    /// The address on the path under test of a host behind a command, which does not say at which address its host is.
    Address { control: String, place: String },
    /// The key of a served host, in a file.
    Key { file: String, place: String },
}

impl OpenValue {
    /// Adds the value to how the host is reached.
    pub(super) fn find(&self, reach: &mut HostReach) -> Result<(), UserError> {
        match (self, reach) {
            (Self::Address { control, place }, HostReach::Exec(host)) => {
                let found = target::resolve(control).ok().and_then(|addresses| addresses.first().copied());
                host.data = Some(found.ok_or_else(|| {
                    let what = format!("{place}: its address on the path under test is unknown: `{control}` has none");
                    UserError::new(Exit::Usage, what).with_line("fix", "data = \"10.0.0.2\"")
                })?);
            }
            (Self::Key { file, place }, HostReach::Tls { key, .. }) => {
                let wrong = |why: String| {
                    UserError::new(Exit::Usage, format!("{place}.key_file: {file} has no key")).with_line("why", why)
                };
                let read =
                    files::read_text(Path::new(file), KEY_FILE_MAX).map_err(|error| wrong(format!("{error:#}")))?;
                let found = read
                    .parse()
                    .or_else(|error| Identity::parse(&read).map(|identity| identity.key()).map_err(|_| error));
                *key = Some(found.map_err(|error| wrong(error.to_string()))?.to_string());
            }
            (Self::Address { .. } | Self::Key { .. }, _) => {}
        }
        Ok(())
    }
}

/// The hosts by name, and what is not known of some yet.
type ReachedHosts = (BTreeMap<String, InventoryHost>, BTreeMap<String, OpenValue>);

/// Returns how each host is reached.
pub(super) fn reaches(
    entries: &HostEntries,
    cluster: Option<&Spanned<KubernetesCluster>>,
    source: &SourceText<'_>,
) -> Result<ReachedHosts, UserError> {
    if let Some(cluster) = cluster {
        let wrong = |error: WordError| source.error(&cluster.span(), format!("kubernetes: {error}"));
        cluster.get_ref().check_words().map_err(wrong)?;
    }
    let mut open = BTreeMap::new();
    let mut hosts: BTreeMap<String, InventoryHost> = BTreeMap::new();
    for name in &entries.order {
        let entry = &entries.by_name[name];
        let reader = EntryReader { name, entry, entries, cluster: cluster.map(Spanned::get_ref), source };
        let reach = reader.reach()?;
        for (other, host) in &hosts {
            if let Some(address) = reach.data().filter(|data| host.reach.data() == Some(*data)) {
                let fix = "give each host an address of its own, or one name";
                return Err(reader
                    .wrong(&format!("it has the address {address} of host `{other}`"))
                    .with_line("fix", fix));
            }
            if host.reach == reach || is_same_node(&host.reach, &reach) {
                let fix = "give each host a control address of its own, or one name";
                return Err(reader
                    .wrong(&format!("it has the same connection settings as host `{other}`"))
                    .with_line("fix", fix));
            }
        }
        open.extend(reader.open_value(&reach).map(|value| (name.clone(), value)));
        hosts.insert(name.clone(), InventoryHost { reach, roles: entry.text.roles.clone().unwrap_or_default() });
    }
    Ok((hosts, open))
}

/// Returns whether two hosts are pods on the same node.
fn is_same_node(one: &HostReach, other: &HostReach) -> bool {
    matches!((one, other), (HostReach::Kubernetes(one), HostReach::Kubernetes(other)) if one.node == other.node)
}

/// Reads the keys of one host.
struct EntryReader<'a> {
    name: &'a str,
    entry: &'a HostEntry,
    entries: &'a HostEntries,
    cluster: Option<&'a KubernetesCluster>,
    source: &'a SourceText<'a>,
}

impl EntryReader<'_> {
    fn wrong(&self, what: &str) -> UserError {
        self.source.error(&self.entry.span, format!("{}: {what}", self.entry.place))
    }

    /// Refuses a port that is none, and one in `control`, which a command may have there.
    fn check_port(&self) -> Result<(), UserError> {
        let text = &self.entry.text;
        if value(text.port.as_ref()) == Some(0) {
            let usual = match text.launcher.as_ref().map(Spanned::get_ref) {
                Some(LauncherText::Word(word)) if word == "tls" => AGENT_PORT,
                _ => SSH_PORT,
            };
            return Err(self.wrong("port 0 is no port").with_line("fix", format!("port = {usual}")));
        }
        let is_command = matches!(text.launcher.as_ref().map(Spanned::get_ref), Some(LauncherText::Command(_)));
        if let Some((host, port)) = port_in(&self.entry.control).filter(|_| !is_command) {
            let what = format!("control `{}` has a port, which is a key of its own", self.entry.control);
            return Err(self.wrong(&what).with_line("fix", format!("control = \"{host}\" and port = {port}")));
        }
        Ok(())
    }

    fn reach(&self) -> Result<HostReach, UserError> {
        self.check_port()?;
        let text = &self.entry.text;
        let launcher = text.launcher.as_ref();
        let word = match launcher.map(Spanned::get_ref) {
            Some(LauncherText::Command(words)) => {
                return self.exec(words, &launcher.map(Spanned::span).unwrap_or_default());
            }
            Some(LauncherText::Word(word)) => word.as_str(),
            None => launchers::USUAL,
        };
        match word {
            "ssh" => self.ssh().map(HostReach::Ssh),
            "kubernetes" => self.kubernetes().map(|host| HostReach::Kubernetes(Box::new(host))),
            "self" => Ok(self.entry.data.map_or(HostReach::This, HostReach::At)),
            "lab" => match &text.lab {
                Some(lab) => Ok(HostReach::LabUp(lab.get_ref().clone(), self.name.to_owned())),
                None => Err(self.wrong("its lab is unknown").with_line("fix", "lab = \"NAME\" of a lab that is up")),
            },
            "tls" => {
                if !is_host_word(&self.entry.control) {
                    return Err(
                        self.wrong(&format!("control `{}` is not a host name or an address", self.entry.control))
                    );
                }
                let address =
                    format!("{}:{}", bracketed(&self.entry.control), value(text.port.as_ref()).unwrap_or(AGENT_PORT));
                Ok(HostReach::Tls { address, key: value(text.key.as_ref()), data: self.entry.data })
            }
            other => {
                let span = launcher.map(Spanned::span).unwrap_or_default();
                let what = format!("{}.launcher: there is no launcher `{other}`", self.entry.place);
                Err(self.source.error(&span, what).with_line("use", LAUNCHERS))
            }
        }
    }

    fn ssh(&self) -> Result<SshHost, UserError> {
        let text = &self.entry.text;
        let host = SshHost {
            address: self.entry.control.clone(),
            port: value(text.port.as_ref()),
            user: value(text.user.as_ref()),
            jump: self.jumps()?,
            identity: text.identity.as_ref().map(|file| self.path(file.get_ref())),
            ssh_config: text.ssh_config.as_ref().map(|file| self.path(file.get_ref())),
            program: value(text.program.as_ref()),
            sudo: value(text.sudo.as_ref()).unwrap_or(false),
            push: value(text.push.as_ref()),
            data: self.entry.data.or_else(|| self.entry.control.parse().ok()),
        };
        host.check_words().map_err(|error| self.wrong(&error.to_string()))?;
        Ok(host)
    }

    fn kubernetes(&self) -> Result<KubernetesHost, UserError> {
        let cluster = self.cluster.cloned().ok_or_else(|| {
            self.wrong("its cluster is unknown")
                .with_line("fix", "[kubernetes]  image = \"registry.example/fathom:1.0\"")
        })?;
        let sut = self.entry.text.roles.as_ref().is_some_and(|roles| roles.contains(&HostRole::Sut));
        let host = KubernetesHost { node: self.entry.control.clone(), sut, data: self.entry.data, cluster };
        host.check_words().map_err(|error| self.wrong(&error.to_string()))?;
        Ok(host)
    }

    /// Returns the jump hosts, the last one before this host first.
    fn jumps(&self) -> Result<Vec<String>, UserError> {
        let mut jumps = Vec::new();
        let mut way = vec![self.name.to_owned()];
        let mut next = self.entry.text.jump.as_ref();
        while let Some(jump) = next.take() {
            let wrong = |what: String| self.source.error(&jump.span(), format!("{}.jump: {what}", self.entry.place));
            // In the order of `ssh -J`: the first one is connected to first, so only that one may need a jump host of its own.
            for (idx, word) in jump.get_ref().split(',').enumerate().collect::<Vec<_>>().into_iter().rev() {
                let Some(entry) = self.entries.by_name.get(word) else {
                    if !is_jump_word(word) {
                        return Err(wrong(format!(
                            "`{}` is neither a host of this file nor [USER@]HOST[:PORT]",
                            word.escape_debug()
                        )));
                    }
                    jumps.push(word.to_owned());
                    continue;
                };
                let is_loop = way.iter().any(|one| one == word);
                way.push(word.to_owned());
                if is_loop {
                    let span = self.entry.text.jump.as_ref().map_or_else(|| jump.span(), Spanned::span);
                    let what = format!("{}.jump: it leads back to `{word}`: {}", self.entry.place, way.join(", "));
                    return Err(self
                        .source
                        .error(&span, what)
                        .with_line("fix", "one of these hosts must be reachable from here without a jump"));
                }
                let user = value(entry.text.user.as_ref()).map(|user| format!("{user}@")).unwrap_or_default();
                let port = value(entry.text.port.as_ref()).map(|port| format!(":{port}")).unwrap_or_default();
                jumps.push(format!("{user}{}{port}", bracketed(&entry.control)));
                next = entry.text.jump.as_ref().filter(|_| idx == 0);
            }
        }
        Ok(jumps)
    }

    fn exec(&self, words: &[String], span: &Range<usize>) -> Result<HostReach, UserError> {
        let text = &self.entry.text;
        let wrong = |what: String| self.source.error(span, format!("{}.launcher: {what}", self.entry.place));
        if words.first().is_none_or(String::is_empty) {
            return Err(wrong("the command is empty".to_owned()).with_line("use", LAUNCHERS));
        }
        if !is_host_word(&self.entry.control) {
            let control = self.entry.control.escape_debug();
            return Err(self.wrong(&format!("control `{control}` is not a host name or an address")));
        }
        if let Some(user) = value(text.user.as_ref()).filter(|user| !is_user_word(user)) {
            return Err(self.wrong(&format!("user `{}` is not a user name", user.escape_debug())));
        }
        let command = words.iter().map(|word| {
            self.filled(word).map_err(|what| wrong(what).with_line("use", "{host}, {name}, {user}, {port}"))
        });
        let command = command.collect::<Result<Vec<_>, _>>()?;
        let data = self.entry.data.or_else(|| self.entry.control.parse().ok());
        Ok(HostReach::Exec(ExecHost { command, data }))
    }

    /// Returns what is found only when the host is used.
    fn open_value(&self, reach: &HostReach) -> Option<OpenValue> {
        let place =
            |at: usize| format!("{}:{}: {}", self.source.path.display(), self.source.line(at), self.entry.place);
        match reach {
            HostReach::Exec(ExecHost { data: None, .. }) => {
                Some(OpenValue::Address { control: self.entry.control.clone(), place: place(self.entry.span.start) })
            }
            HostReach::Tls { key: None, .. } => self
                .entry
                .text
                .key_file
                .as_ref()
                .map(|file| OpenValue::Key { file: self.path(file.get_ref()), place: place(file.span().start) }),
            _ => None,
        }
    }

    /// Replaces the placeholders of a word.
    fn filled(&self, word: &str) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let is_word = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase());
            let Some((name, behind)) = after.split_once('}').filter(|(name, _)| is_word(name)) else {
                filled.push('{');
                rest = after;
                continue;
            };
            let text = &self.entry.text;
            let value = match name {
                "host" => Some(self.entry.control.clone()),
                "name" => Some(self.name.to_owned()),
                "user" => value(text.user.as_ref()),
                "port" => value(text.port.as_ref()).map(|port| port.to_string()),
                _ => return Err(format!("unknown placeholder `{{{name}}}`")),
            };
            filled.push_str(&value.ok_or_else(|| format!("`{{{name}}}` has no value: this host has no {name}"))?);
            rest = behind;
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Returns the path of a file that the inventory names: relative to its folder, or to the home of the user.
    fn path(&self, file: &str) -> String {
        let path = match file.strip_prefix("~/") {
            Some(rest) => env::home_dir().unwrap_or_default().join(rest),
            None => self.source.path.parent().map_or_else(PathBuf::new, Path::to_owned).join(file),
        };
        path.to_string_lossy().into_owned()
    }
}
