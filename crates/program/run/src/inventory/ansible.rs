//! Inventories of Ansible become ours: from `ansible-inventory --list`, which a user has run or this program runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    process::{Command, Stdio},
};

use serde::Deserialize;
use serde_json::Value;

use super::{
    INVENTORY_MAX, parse,
    text::{key, quoted},
};
use crate::{
    exit::{Exit, UserError},
    files,
    terminal::sanitized,
};

/// The program that understands the inventories of Ansible.
const PROGRAM: &str = "ansible-inventory";
/// The most bytes of a paragraph of what it says: ten lines of a terminal.
const WORDS_MAX: usize = 800;
/// The most of these paragraphs: an error comes last, with warnings before it.
const PARAGRAPHS_MAX: usize = 8;
/// The variable with the address on the path, which is ours.
const DATA: &str = "fathom_data";
/// Groups that Ansible makes itself.
const OWN_GROUPS: [&str; 2] = ["all", "ungrouped"];
/// Variables that say how a host is reached, and that have no counterpart here.
const NOT_IMPORTED: [&str; 13] = [
    "ansible_ssh_pass",
    "ansible_ssh_password",
    "ansible_password",
    "ansible_ssh_private_key",
    "ansible_ssh_private_key_passphrase",
    "ansible_ssh_executable",
    "ansible_ssh_args",
    "ansible_become_exe",
    "ansible_become_flags",
    "ansible_become_user",
    "ansible_become_method",
    "ansible_become_pass",
    "ansible_become_password",
];
/// Variables that say how a host is reached, and that are taken over.
const TAKEN: [&str; 13] = [
    "ansible_host",
    "ansible_ssh_host",
    DATA,
    "ansible_user",
    "ansible_ssh_user",
    "ansible_port",
    "ansible_ssh_port",
    "ansible_ssh_private_key_file",
    "ansible_private_key_file",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_become",
    "ansible_connection",
];
/// Our keys of a host, with the variable that each one comes from.
const SOURCES: [(&str, &str); 6] = [
    ("control", "ansible_host"),
    ("data", DATA),
    ("user", "ansible_user"),
    ("identity", "ansible_ssh_private_key_file"),
    ("jump", "ansible_ssh_common_args"),
    ("port", "ansible_port"),
];

/// An imported inventory.
#[derive(Debug)]
pub struct ImportedInventory {
    /// The inventory in our format.
    pub text: String,
    /// What could not be taken over of the hosts in it, a sentence each.
    pub remarks: Vec<String>,
    /// The hosts and groups that are not in it, and variables of groups, each with the reason.
    pub left_out: Vec<String>,
}

/// The output of `ansible-inventory --list`.
#[derive(Debug, Deserialize)]
struct AnsibleList {
    #[serde(rename = "_meta", default)]
    meta: AnsibleMeta,
    #[serde(flatten)]
    groups: BTreeMap<String, AnsibleGroup>,
}

impl AnsibleList {
    /// Returns whether a group has a host, also in groups inside it, so many levels deep at most.
    fn has_hosts(&self, name: &str, depth: usize) -> bool {
        let is_inside = |child: &String| depth > 0 && self.has_hosts(child, depth - 1);
        self.groups.get(name).is_some_and(|group| !group.hosts.is_empty() || group.children.iter().any(is_inside))
    }

    /// Returns the groups that have hosts, without those that Ansible makes itself.
    fn filled_groups(&self) -> impl Iterator<Item = (&String, &AnsibleGroup)> {
        let of_user = self.groups.iter().filter(|(name, _)| !OWN_GROUPS.contains(&name.as_str()));
        of_user.filter(|(name, _)| self.has_hosts(name, self.groups.len()))
    }

    /// Says which groups have variables of their own that say how hosts are reached.
    fn group_vars(&self) -> Vec<String> {
        let is_meant = |name: &str| name.starts_with("ansible_") || name == DATA;
        let of_group = |(group, written): (&String, &AnsibleGroup)| {
            let vars: Vec<&str> = written.vars.keys().map(String::as_str).filter(|name| is_meant(name)).collect();
            let vars = vars.join(", ");
            (!vars.is_empty())
                .then(|| format!("group {group}: its own {vars}; {PROGRAM} without --export has them at the hosts"))
        };
        self.groups.iter().filter_map(of_group).collect()
    }

    /// Returns the names of all hosts.
    fn names(&self) -> BTreeSet<String> {
        let in_groups = self.groups.values().flat_map(|group| group.hosts.iter());
        self.meta.hostvars.keys().chain(in_groups).cloned().collect()
    }

    /// Returns the list with a single host of it, in no group.
    fn with_only(&self, name: &str) -> Self {
        let vars = self.meta.hostvars.get(name).cloned().unwrap_or_default();
        Self { meta: AnsibleMeta { hostvars: BTreeMap::from([(name.to_owned(), vars)]) }, groups: BTreeMap::new() }
    }

    fn remove_host(&mut self, name: &str) {
        self.meta.hostvars.remove(name);
        for group in self.groups.values_mut() {
            group.hosts.retain(|host| host != name);
        }
    }

    /// Removes a group. Those that contain it get its members, so that they have the same hosts as before.
    fn remove_group(&mut self, name: &str) {
        let Some(removed) = self.groups.remove(name) else { return };
        let is_own = |child: &String| child == name;
        for group in self.groups.values_mut().filter(|group| group.children.iter().any(is_own)) {
            group.children.retain(|child| child != name);
            group.children.extend(removed.children.iter().filter(|child| *child != name).cloned());
            group.hosts.extend(removed.hosts.iter().cloned());
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct AnsibleMeta {
    #[serde(default)]
    hostvars: BTreeMap<String, BTreeMap<String, Value>>,
}

#[derive(Debug, Default, Deserialize)]
struct AnsibleGroup {
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    /// Variables that are not repeated at the hosts, as with `--export`.
    #[serde(default)]
    vars: BTreeMap<String, Value>,
}

/// A table or a line of the generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Host(String),
    Group(String),
}

/// The generated text, and where its entries begin.
#[derive(Debug, Default)]
struct Converted {
    text: String,
    n_lines: usize,
    remarks: Vec<String>,
    /// The first line of each entry, counted from one, in order.
    entries: Vec<(usize, Entry)>,
}

impl Converted {
    fn push(&mut self, lines: &str) {
        self.n_lines += 1 + lines.matches('\n').count();
        self.text.push_str(lines);
        self.text.push('\n');
    }

    /// Says what the next line begins.
    fn begin(&mut self, entry: Entry) {
        self.entries.push((self.n_lines + 1, entry));
    }

    /// Returns the entry that a line belongs to.
    fn entry_at(&self, line: usize) -> Option<&Entry> {
        self.entries.iter().rev().find(|(begin, _)| *begin <= line).map(|(_, entry)| entry)
    }
}

/// Imports an inventory of Ansible: the JSON of `ansible-inventory --list`, or any other file through that program. A host or a group
/// that cannot be used is left out.
///
/// # Errors
/// If the file cannot be read, if it is not JSON and the program is missing or refuses it, and if no host can be used.
pub fn import(path: &Path) -> Result<ImportedInventory, UserError> {
    let text = files::read_text(path, INVENTORY_MAX).map_err(|error| UserError::from_error(Exit::Usage, &error))?;
    let (json, words) = if text.trim_start().starts_with('{') { (text, Vec::new()) } else { listed(path)? };
    let list: AnsibleList = serde_json::from_str(&json).map_err(|error| {
        let what = format!("{}: it is not the output of {PROGRAM} --list", path.display());
        UserError::new(Exit::Usage, what).with_line("why", error.to_string()).with_line(
            "fix",
            format!("{PROGRAM} -i INVENTORY --list > hosts.json, then fathom hosts import hosts.json"),
        )
    })?;
    let words: Vec<String> = words.into_iter().map(|words| format!("{PROGRAM}: {words}")).collect();
    match usable(list, path) {
        Ok(mut imported) => {
            imported.remarks.splice(0..0, words);
            Ok(imported)
        }
        Err(left_out) => {
            let what = format!("{}: none of its hosts can be imported", path.display());
            let why = if left_out.is_empty() { vec!["it has no hosts".to_owned()] } else { left_out };
            let reasons = words.into_iter().chain(why);
            Err(reasons.fold(UserError::new(Exit::Usage, what), |error, why| error.with_line("why", why)))
        }
    }
}

/// Converts what can be used. Whatever is wrong with a host or a group is found now, and not when it is used.
///
/// # Errors
/// The reasons, if no host can be used.
fn usable(mut list: AnsibleList, path: &Path) -> Result<ImportedInventory, Vec<String>> {
    let mut left_out = list.group_vars();
    let filled: Vec<String> = list.filled_groups().map(|(name, _)| name.clone()).collect();
    for name in list.names() {
        // Most mistakes are those of one host, and need no look at the others.
        if let Err(reason) = check_host(&list, &name, path) {
            left_out.push(reason);
            list.remove_host(&name);
        }
    }
    let names = list.names();
    if names.is_empty() {
        return Err(left_out);
    }
    let namesakes: Vec<String> = list.groups.keys().filter(|group| names.contains(*group)).cloned().collect();
    for group in namesakes {
        left_out.push(format!("group {group}: a host has the same name"));
        list.remove_group(&group);
    }
    loop {
        let converted = convert(&list, path);
        let Err(error) = parse(&converted.text, path) else {
            let is_emptied = |name: &String| list.groups.contains_key(name) && !list.has_hosts(name, list.groups.len());
            let emptied = filled.into_iter().filter(is_emptied);
            left_out.extend(emptied.map(|name| format!("group {name}: none of its hosts is left")));
            return Ok(ImportedInventory { text: converted.text, remarks: converted.remarks, left_out });
        };
        let line = line_of(error.what(), path).map(|(line, _)| line);
        let reason = of_ansible(error.what(), path);
        match line.and_then(|line| converted.entry_at(line)) {
            Some(Entry::Host(name)) => {
                left_out.push(reason);
                list.remove_host(name);
            }
            Some(Entry::Group(name)) => {
                left_out.push(reason);
                list.remove_group(name);
            }
            None => {
                left_out.push(reason);
                return Err(left_out);
            }
        }
    }
}
/// Checks a host as if there were no other one.
///
/// # Errors
/// Why it cannot be used, with its name.
fn check_host(list: &AnsibleList, name: &str, path: &Path) -> Result<(), String> {
    let alone = list.with_only(name);
    host_keys(&alone.meta.hostvars[name], &mut Vec::new()).map_err(|reason| format!("host {name}{reason}"))?;
    let parsed = parse(&convert(&alone, path).text, path);
    parsed.map(drop).map_err(|error| of_ansible(error.what(), path))
}

/// Returns the line of the generated text that an error is about, and what it says behind that; `None` without a line.
fn line_of<'e>(error: &'e str, path: &Path) -> Option<(usize, &'e str)> {
    let (line, what) = error.strip_prefix(&format!("{}:", path.display()))?.split_once(": ")?;
    Some((line.parse().ok()?, what))
}

/// Turns an error about the generated text, which nobody sees, into one about the variable of the host.
fn of_ansible(error: &str, path: &Path) -> String {
    let what = line_of(error, path).map_or(error, |(_, what)| what);
    if let Some(of_group) = what.strip_prefix("groups.") {
        return format!("group {of_group}");
    }
    let Some((place, what)) = what.strip_prefix("hosts.").and_then(|what| what.split_once(": ")) else {
        return what.to_owned();
    };
    for (key, variable) in SOURCES {
        if let Some(host) = place.strip_suffix(&format!(".{key}")) {
            return format!("host {host}, {variable}: {what}");
        }
        if let Some(value) = what.strip_prefix(&format!("{key} ")) {
            return format!("host {place}, {variable}: {value}");
        }
    }
    format!("host {place}: {what}")
}

/// Runs `ansible-inventory` on a file. Returns its JSON, and what it says to people.
fn listed(path: &Path) -> Result<(String, Vec<String>), UserError> {
    let cannot = |why: Vec<String>| {
        let what = format!("{}: it is not JSON, and {PROGRAM} cannot read it", path.display());
        why.into_iter()
            .fold(UserError::new(Exit::Usage, what), |error, line| error.with_line("why", line))
            .with_line("fix", format!("{PROGRAM} -i INVENTORY --list > hosts.json        # where Ansible is installed"))
            .with_line("then", "fathom hosts import hosts.json")
    };
    // A path that begins with a dash would be an option.
    let path = std::path::absolute(path).map_err(|error| cannot(vec![error.to_string()]))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-i").arg(&path).arg("--list").stdin(Stdio::null()).env("ANSIBLE_NOCOLOR", "1");
    let output = command.output().map_err(|error| cannot(vec![format!("cannot start {PROGRAM}: {error}")]))?;
    let words = last_words(&String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let says = if words.is_empty() { ", and says nothing" } else { ":" };
        return Err(cannot([vec![format!("{PROGRAM} ended with {}{says}", output.status)], words].concat()));
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), words))
}

/// Returns the last paragraphs of what Ansible says, each on one line: it breaks its lines at the width of a terminal.
fn last_words(text: &str) -> Vec<String> {
    let mut paragraphs: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text.lines().map(|line| sanitized(line).trim().to_owned()) {
        let is_next = goes_on && !line.starts_with('[');
        match paragraphs.last_mut().filter(|last| is_next && last.len() + line.len() < WORDS_MAX) {
            Some(last) if !line.is_empty() => *last = format!("{last} {line}"),
            None if !line.is_empty() => paragraphs.push(line.clone()),
            _ => {}
        }
        goes_on = !line.is_empty();
    }
    let n_skipped = paragraphs.len().saturating_sub(PARAGRAPHS_MAX);
    paragraphs.split_off(n_skipped)
}

/// Writes an inventory of ours. Hosts whose variables say nothing that it can have are not checked here.
fn convert(list: &AnsibleList, path: &Path) -> Converted {
    let mut converted = Converted::default();
    converted.push(&format!("# From {} by `fathom hosts import`.", path.display().to_string().escape_debug()));
    converted.push("schema = \"fathom.hosts/1\"");
    let none = BTreeMap::new();
    for name in list.names() {
        converted.push("");
        converted.begin(Entry::Host(name.clone()));
        converted.push(&format!("[hosts.{}]", key(&name)));
        let vars = list.meta.hostvars.get(&name).unwrap_or(&none);
        let mut remarks = Vec::new();
        let keys = host_keys(vars, &mut remarks).unwrap_or_default();
        for (ours, value) in keys {
            converted.push(&format!("{ours} = {value}"));
        }
        converted.remarks.extend(remarks.into_iter().map(|remark| format!("host {name}: {remark}")));
    }
    for (place, (name, group)) in list.filled_groups().enumerate() {
        if place == 0 {
            converted.push("\n[groups]");
        }
        // A group without members is left out everywhere.
        let is_there = |child: &&String| list.has_hosts(child, list.groups.len());
        let members = group.hosts.iter().chain(group.children.iter().filter(is_there));
        let members: Vec<String> = members.map(|member| quoted(member)).collect();
        converted.begin(Entry::Group(name.clone()));
        converted.push(&format!("{} = [{}]", key(name), members.join(", ")));
    }
    converted
}

/// Returns the keys of a host with their values as TOML.
///
/// # Errors
/// What is wrong with a variable, with its name at the front: `, ansible_port: …`.
fn host_keys(vars: &BTreeMap<String, Value>, remarks: &mut Vec<String>) -> Result<Vec<(&'static str, String)>, String> {
    check_values(vars)?;
    let word = |names: &[&str]| names.iter().find_map(|name| text_of(vars.get(*name)?));
    let mut keys: Vec<(&'static str, String)> = Vec::new();
    let mut text_key = |ours, value: Option<String>| keys.extend(value.map(|value| (ours, quoted(&value))));
    text_key("control", word(&["ansible_host", "ansible_ssh_host"]));
    text_key("data", word(&["fathom_data"]));
    text_key("user", word(&["ansible_user", "ansible_ssh_user"]));
    text_key("identity", word(&["ansible_ssh_private_key_file", "ansible_private_key_file"]));
    let mut jump = None;
    for variable in ["ansible_ssh_common_args", "ansible_ssh_extra_args"] {
        let arguments = word(&[variable]).unwrap_or_default();
        let (found, rest) = jump_of(&arguments);
        if !rest.is_empty() {
            let rest = rest.join(" ");
            remarks.push(format!("of {variable}, `{rest}` is not imported; ~/.ssh/config can say the same"));
        }
        jump = jump.or(found);
    }
    text_key("jump", jump);
    if let Some(port) = word(&["ansible_port", "ansible_ssh_port"]) {
        let number = port.parse::<u16>().map_err(|_| format!(", ansible_port: `{port}` is not a port"))?;
        keys.push(("port", number.to_string()));
    }
    let becomes = word(&["ansible_become"]).is_some_and(|word| is_true(&word));
    if becomes {
        keys.push(("sudo", "true".to_owned()));
    }
    match word(&["ansible_connection"]).as_deref() {
        None | Some("ssh" | "smart" | "paramiko" | "paramiko_ssh") => {}
        Some("local") => {
            // Nothing connects to this machine, here as in Ansible.
            keys.retain(|(ours, _)| ["control", "data"].contains(ours));
            keys.push(("launcher", quoted("self")));
            if becomes {
                remarks.push("ansible_become is not imported: fathom runs here as the user who starts it".to_owned());
            }
        }
        Some(other) => {
            return Err(format!(
                ", ansible_connection: {other} is not ssh; [hosts.NAME] with launcher = [\"…\", \"fathom\", \"agent\", \"--stdio\"] is such a host"
            ));
        }
    }
    let left = NOT_IMPORTED.into_iter().filter(|left| vars.contains_key(*left));
    remarks.extend(left.map(|left| format!("{left} is not imported")));
    Ok(keys)
}

/// The words for yes in Ansible.
fn is_true(word: &str) -> bool {
    ["true", "yes", "on", "y", "t", "1"].contains(&word.to_ascii_lowercase().as_str())
}

/// Returns a value as text; what lookups returned is marked as unsafe, and is a text all the same.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        Value::Object(fields) => text_of(fields.get("__ansible_unsafe")?),
        other => Some(other.to_string()),
    }
}

/// Checks that the variables that are taken over have values that can be read here.
///
/// # Errors
/// The variable, and why it cannot.
fn check_values(vars: &BTreeMap<String, Value>) -> Result<(), String> {
    for (name, value) in TAKEN.iter().filter_map(|name| Some((name, vars.get(*name)?))) {
        let is_encrypted = value.get("__ansible_vault").is_some();
        if is_encrypted {
            return Err(format!(", {name}: it is encrypted by ansible-vault"));
        }
        let text = text_of(value).unwrap_or_default();
        if text.contains("{{") || text.contains("{%") {
            return Err(format!(", {name}: `{text}` is a template, which {PROGRAM} does not fill in"));
        }
        if value.is_array() || (value.is_object() && text.is_empty()) {
            return Err(format!(", {name}: it is not a text"));
        }
    }
    Ok(())
}

/// Returns the jump hosts in arguments of ssh, if there are some, and the other arguments.
fn jump_of(arguments: &str) -> (Option<String>, Vec<&str>) {
    let mut jump = None;
    let mut rest = Vec::new();
    // `-o "ProxyJump a"` and `-o ProxyJump="a"` are the same as `-o ProxyJump=a`.
    let is_parted = |c: char| c == ' ' || c == '"' || c == '\'';
    let mut words = arguments.split(is_parted).filter(|word| !word.is_empty()).peekable();
    while let Some(word) = words.next() {
        if let Some(value) = words.next_if(|_| word.eq_ignore_ascii_case("-oProxyJump=")) {
            jump.get_or_insert_with(|| value.to_owned());
            continue;
        }
        let is_jump = |next: &&str| word == "-o" && ["ProxyJump", "ProxyJump="].contains(next);
        if words.next_if(is_jump).is_some() {
            if let Some(value) = words.next().filter(|value| *value != "none") {
                jump.get_or_insert_with(|| value.to_owned());
            }
            continue;
        }
        let (flag, value) = match word {
            "-J" | "-o" => (word, words.next().unwrap_or_default()),
            _ => word.split_at(if word.starts_with("-J") || word.starts_with("-o") { 2 } else { 0 }),
        };
        let found = if flag == "-J" { Some(value) } else { value.strip_prefix("ProxyJump=") };
        match found.filter(|_| !flag.is_empty()) {
            // ssh_config(5): no jump host.
            Some("none") => {}
            // The first one counts.
            Some(found) if jump.is_none() => jump = Some(found.to_owned()),
            _ if flag == word => rest.extend([flag, value].into_iter().filter(|word| !word.is_empty())),
            _ => rest.push(word),
        }
    }
    (jump, rest)
}

#[cfg(test)]
mod tests {
    use fathom_model::plan::HostReach;

    use super::*;

    const LIST: &str = r#"{
        "_meta": {"hostvars": {
            "sut": {"ansible_host": "192.0.2.1", "ansible_user": "root", "ansible_port": 2222, "ansible_become": true, "fathom_data": "10.0.0.1"},
            "b1": {"ansible_host": "192.0.2.2", "ansible_ssh_common_args": "-o ProxyJump=me@gate -v", "http_port": 80},
            "here": {"ansible_connection": "local", "ansible_user": "me", "ansible_port": 22, "ansible_become": true},
            "box": {"ansible_connection": "docker", "ansible_password": "secret", "ansible_become_pass": "secret"}}},
        "all": {"children": ["ungrouped", "rack", "load"]},
        "rack": {"children": ["load", "empty"], "hosts": ["sut"]}, "empty": {"children": ["none"]}, "none": {},
        "load": {"hosts": ["b1", "b2"]},
        "ungrouped": {"hosts": ["here", "box"]}
    }"#;

    fn list(json: &str) -> AnsibleList {
        serde_json::from_str(json).unwrap()
    }

    fn imported(json: &str) -> Result<ImportedInventory, Vec<String>> {
        usable(list(json), Path::new("hosts.json"))
    }

    /// Returns the list with one host, `b1`, that has these variables.
    fn with_vars(vars: &str) -> String {
        format!("{{\"_meta\":{{\"hostvars\":{{\"b1\":{{{vars}}}}}}}}}")
    }

    fn inventory_of(imported: &ImportedInventory) -> fathom_model::Inventory {
        parse(&imported.text, Path::new("hosts.json")).unwrap().inventory
    }

    #[test]
    fn hosts_variables_and_nested_groups_are_taken_over() {
        let imported = imported(LIST).unwrap();
        let inventory = inventory_of(&imported);
        let HostReach::Ssh(sut) = &inventory.hosts["sut"].reach else { panic!("{}", imported.text) };
        assert_eq!((sut.address.as_str(), sut.user.as_deref(), sut.port), ("192.0.2.1", Some("root"), Some(2222)));
        assert!(sut.sudo && sut.data == Some([10, 0, 0, 1].into()));
        let HostReach::Ssh(b1) = &inventory.hosts["b1"].reach else { panic!("{}", imported.text) };
        assert_eq!(b1.jump, ["me@gate"]);
        assert_eq!(inventory.hosts["here"].reach, HostReach::This);
        assert_eq!(inventory.groups["rack"], ["sut", "b1", "b2"]);
        assert_eq!(inventory.groups["all"], ["b1", "b2", "here", "sut"]);
    }

    #[test]
    fn what_is_not_taken_over_is_said_and_secrets_are_not_copied() {
        let list = LIST.replace("\"ansible_connection\": \"docker\"", "\"ansible_connection\": \"ssh\"");
        let imported = imported(&list).unwrap();
        assert_eq!(
            imported.remarks,
            [
                "host b1: of ansible_ssh_common_args, `-v` is not imported; ~/.ssh/config can say the same",
                "host box: ansible_password is not imported",
                "host box: ansible_become_pass is not imported",
                "host here: ansible_become is not imported: fathom runs here as the user who starts it",
            ]
        );
        assert_eq!(imported.left_out, Vec::<String>::new());
        assert!(!imported.text.contains("secret"));
    }

    #[test]
    fn jump_hosts_are_taken_out_of_the_arguments_of_ssh() {
        let cases: &[(&str, Option<&str>, &[&str])] = &[
            ("-o ProxyJump=a,b", Some("a,b"), &[]),
            ("-oProxyJump=me@a:22 -C", Some("me@a:22"), &["-C"]),
            ("-J a -o Port=22", Some("a"), &["-o", "Port=22"]),
            ("-Ja,b", Some("a,b"), &[]),
            ("-o ProxyJump=none", None, &[]),
            ("-o ProxyCommand=\"ssh -W %h:%p gate\"", None, &["-o", "ProxyCommand=", "ssh", "-W", "%h:%p", "gate"]),
            ("-o ProxyJump=\"gate1\" -C", Some("gate1"), &["-C"]),
            ("-o \"ProxyJump gate1\"", Some("gate1"), &[]),
            ("-o 'ProxyJump=gate1'", Some("gate1"), &[]),
            ("", None, &[]),
        ];
        for (arguments, jump, rest) in cases {
            let (found, left) = jump_of(arguments);
            assert_eq!((found.as_deref(), left.as_slice()), (*jump, *rest), "{arguments}");
        }
        for variable in ["ansible_ssh_common_args", "ansible_ssh_extra_args"] {
            let list = with_vars(&format!("\"{variable}\":\"-o ProxyJump=a,me@b:22\""));
            let inventory = inventory_of(&imported(&list).unwrap());
            assert!(matches!(&inventory.hosts["b1"].reach, HostReach::Ssh(b1) if b1.jump == ["me@b:22", "a"]));
        }
    }

    #[test]
    fn a_mistake_is_named_by_host_and_variable() {
        let cases = [
            (r#""ansible_host": "-v""#, "host b1, ansible_host: `-v` is not a host name"),
            (r#""fathom_data": "b.example""#, "host b1, fathom_data: `b.example` is not an IP address"),
            (r#""ansible_user": "two words""#, "host b1, ansible_user: `two words` is not a user name"),
            (r#""ansible_ssh_common_args": "-J a/b""#, "host b1, ansible_ssh_common_args: `a/b` is neither"),
            (r#""ansible_port": "http""#, "host b1, ansible_port: `http` is not a port"),
            (r#""ansible_port": 0"#, "host b1, ansible_port: 0 is no port"),
            (r#""ansible_host": "{{ ip }}""#, "host b1, ansible_host: `{{ ip }}` is a template"),
            (r#""ansible_user": {"__ansible_vault": "$ANSIBLE_VAULT;1.1"}"#, "host b1, ansible_user: it is encrypted"),
            (r#""ansible_host": ["a", "b"]"#, "host b1, ansible_host: it is not a text"),
            (r#""ansible_connection": "docker""#, "host b1, ansible_connection: docker is not ssh"),
        ];
        for (variable, expected) in cases {
            let reasons = imported(&with_vars(variable)).unwrap_err();
            assert!(reasons.len() == 1 && reasons[0].starts_with(expected), "{expected}: {reasons:?}");
        }
    }

    #[test]
    fn a_host_that_cannot_be_used_is_left_out_with_its_reason_and_the_others_stay() {
        let text = r#"{"_meta": {"hostvars": {
                "b1": {"ansible_host": "192.0.2.1"}, "b2": {"ansible_host": "-v"}, "b3": {"ansible_host": "192.0.2.1"},
                "b4": {"ansible_host": {"__ansible_unsafe": "192.0.2.4"}}, "b5": {"ansible_port": "{{ port }}"}}},
            "rack": {"children": ["bad name", "bad"], "hosts": ["b1", "b5"]},
            "bad name": {"hosts": ["b4"]}, "bad": {"hosts": ["b2"]}, "b1": {"hosts": ["b4"]},
            "top": {"children": ["rack", "b1"], "vars": {"ansible_user": "me", "http_port": 80}}}"#;
        let imported = imported(text).unwrap();
        let inventory = inventory_of(&imported);
        assert_eq!(inventory.hosts.keys().collect::<Vec<_>>(), ["b1", "b4"]);
        assert_eq!(inventory.groups.keys().collect::<Vec<_>>(), ["all", "rack", "top"]);
        assert_eq!(
            (&*inventory.groups["rack"], &*inventory.groups["top"]),
            (["b1", "b4"].map(str::to_owned).as_slice(), ["b4", "b1"].map(str::to_owned).as_slice())
        );
        let expected = [
            "group top: its own ansible_user; ansible-inventory without --export has them at the hosts",
            "host b2, ansible_host: `-v` is not a host name",
            "host b5, ansible_port: `{{ port }}` is a template",
            "group b1: a host has the same name",
            "group \"bad name\": `bad name` is not a name",
            "host b3: it has the address 192.0.2.1 of host `b1`",
            "group bad: none of its hosts is left",
        ];
        assert_eq!(imported.left_out.len(), expected.len(), "{:#?}", imported.left_out);
        for (left_out, expected) in imported.left_out.iter().zip(expected) {
            assert!(left_out.starts_with(expected), "{expected}: {left_out}");
        }
    }

    #[test]
    fn what_ansible_says_is_joined_to_its_paragraphs_and_the_last_ones_count() {
        let text = "[WARNING]: Unable to parse\n/x as a\nsource\n[WARNING]: two\n\n\nERROR! three\n";
        assert_eq!(last_words(text), ["[WARNING]: Unable to parse /x as a source", "[WARNING]: two", "ERROR! three"]);
        let many: Vec<String> = (0..20).map(|place| format!("[WARNING]: {place}")).collect();
        let many = many.join("\n");
        assert_eq!((last_words(&many).len(), last_words(&many)[7].as_str()), (8, "[WARNING]: 19"));
    }

    #[test]
    fn a_name_with_quotes_and_line_breaks_stays_a_text() {
        let text = r#"{"_meta":{"hostvars":{"a\"]\n[hosts.b]\nkey=\"x":{}, "c": {}}}}"#;
        let imported = imported(text).unwrap();
        assert_eq!(inventory_of(&imported).hosts.keys().collect::<Vec<_>>(), ["c"]);
        assert_eq!(imported.left_out.len(), 1);
    }
}
