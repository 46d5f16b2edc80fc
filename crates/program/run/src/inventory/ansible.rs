//! Inventories of Ansible become ours: from `ansible-inventory --list`, which a user has run or this program runs.

use std::{
    collections::BTreeMap,
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
};

/// The program that understands the inventories of Ansible.
const PROGRAM: &str = "ansible-inventory";
/// Groups that Ansible makes itself.
const OWN_GROUPS: [&str; 2] = ["all", "ungrouped"];
/// Variables that say how a host is reached, and that have no counterpart here.
const NOT_IMPORTED: [&str; 7] = [
    "ansible_ssh_pass",
    "ansible_password",
    "ansible_ssh_args",
    "ansible_become_user",
    "ansible_become_method",
    "ansible_become_pass",
    "ansible_become_password",
];
/// Our keys of a host, with the variable that each one comes from.
const SOURCES: [(&str, &str); 5] = [
    ("control", "ansible_host"),
    ("data", "fathom_data"),
    ("user", "ansible_user"),
    ("identity", "ansible_ssh_private_key_file"),
    ("jump", "ansible_ssh_common_args"),
];

/// An imported inventory.
#[derive(Debug)]
pub struct ImportedInventory {
    /// The inventory in our format.
    pub text: String,
    /// What could not be taken over, a sentence each.
    pub remarks: Vec<String>,
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
}

/// Imports an inventory of Ansible: the JSON of `ansible-inventory --list`, or any other file through that program.
///
/// # Errors
/// If the file cannot be read, if it is not JSON and the program is missing or refuses it, and if the result is no valid inventory.
pub fn import(path: &Path) -> Result<ImportedInventory, UserError> {
    let text = files::read_text(path, INVENTORY_MAX).map_err(|error| UserError::from_error(Exit::Usage, &error))?;
    let json = if text.trim_start().starts_with('{') { text } else { listed(path)? };
    let list: AnsibleList = serde_json::from_str(&json).map_err(|error| {
        let what = format!("{}: it is not the output of {PROGRAM} --list", path.display());
        UserError::new(Exit::Usage, what).with_line("why", error.to_string()).with_line(
            "fix",
            format!("{PROGRAM} -i INVENTORY --list > hosts.json, then fathom hosts import hosts.json"),
        )
    })?;
    let imported = convert(&list, path);
    // Whatever is wrong with it is found now, and not when it is used.
    parse(&imported.text, path).map_err(|error| {
        let what = format!("{}: it cannot be imported as it is", path.display());
        UserError::new(Exit::Usage, what).with_line("why", of_ansible(error.what(), path))
    })?;
    Ok(imported)
}

/// Turns an error about the generated text, which nobody sees, into one about the variable of the host.
fn of_ansible(error: &str, path: &Path) -> String {
    let behind_path = error.strip_prefix(&format!("{}:", path.display())).unwrap_or(error);
    let is_line = |text: &str| text.chars().all(|c| c.is_ascii_digit());
    let what = behind_path.split_once(": ").filter(|(line, _)| is_line(line)).map_or(behind_path, |(_, what)| what);
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

/// Runs `ansible-inventory` on a file.
fn listed(path: &Path) -> Result<String, UserError> {
    let cannot = |why: String| {
        let what = format!("{}: it is not JSON, and {PROGRAM} cannot read it", path.display());
        UserError::new(Exit::Usage, what)
            .with_line("why", why)
            .with_line("fix", format!("{PROGRAM} -i INVENTORY --list > hosts.json        # where Ansible is installed"))
            .with_line("then", "fathom hosts import hosts.json")
    };
    // A path that begins with a dash would be an option.
    let path = std::path::absolute(path).map_err(|error| cannot(error.to_string()))?;
    let mut command = Command::new(PROGRAM);
    command.arg("-i").arg(&path).arg("--list").stdin(Stdio::null()).env("ANSIBLE_NOCOLOR", "1");
    let output = command.output().map_err(|error| cannot(format!("cannot start {PROGRAM}: {error}")))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(cannot(stderr.trim().lines().last().unwrap_or("it says nothing").to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes an inventory of ours.
fn convert(list: &AnsibleList, path: &Path) -> ImportedInventory {
    let mut remarks = Vec::new();
    let mut lines =
        vec![format!("# From {} by `fathom hosts import`.", path.display()), "schema = \"fathom.hosts/1\"".to_owned()];
    let in_groups = list.groups.values().flat_map(|group| group.hosts.iter().map(String::as_str));
    let mut names: Vec<&str> = list.meta.hostvars.keys().map(String::as_str).chain(in_groups).collect();
    names.sort_unstable();
    names.dedup();
    let none = BTreeMap::new();
    for name in &names {
        lines.push(format!("\n[hosts.{}]", key(name)));
        let vars = list.meta.hostvars.get(*name).unwrap_or(&none);
        let keys = host_keys(name, vars, &mut remarks);
        lines.extend(keys.into_iter().map(|(ours, value)| format!("{ours} = {value}")));
    }
    let own_groups = list.groups.iter().filter(|(name, _)| !OWN_GROUPS.contains(&name.as_str()));
    let groups: Vec<_> = own_groups.filter(|(name, _)| list.has_hosts(name, list.groups.len())).collect();
    if !groups.is_empty() {
        lines.push("\n[groups]".to_owned());
    }
    for (name, group) in &groups {
        if names.contains(&name.as_str()) {
            remarks.push(format!("group {name}: a host has the same name, so the group is left out"));
            continue;
        }
        // A group without members is left out everywhere.
        let is_there = |child: &&String| list.has_hosts(child, list.groups.len());
        let members = group.hosts.iter().chain(group.children.iter().filter(is_there));
        let members: Vec<String> = members.map(|member| quoted(member)).collect();
        lines.push(format!("{} = [{}]", key(name), members.join(", ")));
    }
    ImportedInventory { text: lines.join("\n") + "\n", remarks }
}

/// Returns the keys of a host with their values as TOML.
fn host_keys(name: &str, vars: &BTreeMap<String, Value>, remarks: &mut Vec<String>) -> Vec<(&'static str, String)> {
    let word = |names: &[&str]| {
        names.iter().find_map(|name| match vars.get(*name)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        })
    };
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
            remarks
                .push(format!("host {name}: of {variable}, `{rest}` is not imported; ~/.ssh/config can say the same"));
        }
        jump = jump.or(found);
    }
    text_key("jump", jump);
    if let Some(port) = word(&["ansible_port", "ansible_ssh_port"]) {
        match port.parse::<u16>() {
            Ok(port) => keys.push(("port", port.to_string())),
            Err(_) => remarks.push(format!("host {name}: ansible_port {port} is not a port")),
        }
    }
    if word(&["ansible_become"]).is_some_and(|word| ["true", "yes", "1"].contains(&word.to_ascii_lowercase().as_str()))
    {
        keys.push(("sudo", "true".to_owned()));
    }
    match word(&["ansible_connection"]).as_deref() {
        None | Some("ssh" | "smart" | "paramiko" | "paramiko_ssh") => {}
        Some("local") => {
            // Nothing connects to this machine, here as in Ansible.
            keys.retain(|(ours, _)| ["control", "data"].contains(ours));
            keys.push(("launcher", quoted("self")));
        }
        Some(other) => remarks.push(format!(
            "host {name}: ansible_connection {other} is not imported; write launcher = [\"…\", \"fathom\", \"agent\", \"--stdio\"]"
        )),
    }
    let left = NOT_IMPORTED.into_iter().filter(|left| vars.contains_key(*left));
    remarks.extend(left.map(|left| format!("host {name}: {left} is not imported")));
    keys
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

    fn converted(json: &str) -> ImportedInventory {
        convert(&serde_json::from_str(json).unwrap(), Path::new("hosts.json"))
    }

    #[test]
    fn hosts_variables_and_nested_groups_are_taken_over() {
        let imported = converted(LIST);
        let inventory = parse(&imported.text, Path::new("hosts.json")).unwrap().inventory;
        let HostReach::Ssh(sut) = &inventory.hosts["sut"].reach else { panic!("{}", imported.text) };
        assert_eq!((sut.address.as_str(), sut.user.as_deref(), sut.port), ("192.0.2.1", Some("root"), Some(2222)));
        assert!(sut.sudo && sut.data == Some([10, 0, 0, 1].into()));
        let HostReach::Ssh(b1) = &inventory.hosts["b1"].reach else { panic!("{}", imported.text) };
        assert_eq!(b1.jump, ["me@gate"]);
        assert_eq!(inventory.hosts["here"].reach, HostReach::This);
        assert_eq!(inventory.groups["rack"], ["sut", "b1", "b2"]);
        assert_eq!(inventory.groups["all"], ["b1", "b2", "box", "here", "sut"]);
    }

    #[test]
    fn what_is_not_taken_over_is_said_and_secrets_are_not_copied() {
        let imported = converted(LIST);
        assert_eq!(
            imported.remarks,
            [
                "host b1: of ansible_ssh_common_args, `-v` is not imported; ~/.ssh/config can say the same",
                "host box: ansible_connection docker is not imported; write launcher = [\"…\", \"fathom\", \"agent\", \"--stdio\"]",
                "host box: ansible_password is not imported",
                "host box: ansible_become_pass is not imported"
            ]
        );
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
            let list =
                format!("{{\"_meta\":{{\"hostvars\":{{\"b1\":{{\"{variable}\":\"-o ProxyJump=a,me@b:22\"}}}}}}}}");
            let inventory = parse(&converted(&list).text, Path::new("hosts.json")).unwrap().inventory;
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
        ];
        for (variable, expected) in cases {
            let imported = converted(&format!("{{\"_meta\":{{\"hostvars\":{{\"b1\":{{{variable}}}}}}}}}"));
            let path = Path::new("hosts.json");
            let error = of_ansible(parse(&imported.text, path).unwrap_err().what(), path);
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_name_with_quotes_and_line_breaks_stays_a_text() {
        let imported = converted(r#"{"_meta":{"hostvars":{"a\"]\n[hosts.b]\nkey=\"x":{}}}}"#);
        let error = parse(&imported.text, Path::new("hosts.json")).unwrap_err().to_string();
        assert!(error.contains("is not a") || error.contains("brackets"), "{error}");
    }
}
