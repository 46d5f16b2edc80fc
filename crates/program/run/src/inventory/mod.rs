//! Inventories: the hosts that a user has, from a TOML file, with every name expanded and every mistake named by its line.

mod ansible;
mod groups;
mod launchers;
mod mistakes;
mod reaches;
mod text;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use fathom_model::{
    Inventory, InventoryHost, Plan,
    inventory::{NameError, SCHEMA},
    plan::HostReach,
};

pub use ansible::import;

use crate::{
    exit::{Exit, UserError},
    files,
};
use reaches::OpenValue;
use text::{InventoryText, SourceText};

/// The maximum size of an inventory: thousands of hosts.
const INVENTORY_MAX: u64 = 4 << 20;

/// An inventory as its file has it. What needs more than the file is found host by host.
#[derive(Debug)]
pub struct InventoryFile {
    pub inventory: Inventory,
    open: BTreeMap<String, OpenValue>,
}

impl InventoryFile {
    /// Returns how a host is reached, with its key from a file and its address from a look-up where the inventory has none.
    ///
    /// # Errors
    /// If the host is unknown, its key file has no key, or its name has no address.
    pub fn reach(&self, name: &str) -> Result<HostReach, UserError> {
        let host = self.inventory.hosts.get(name);
        let mut reach =
            host.ok_or_else(|| UserError::new(Exit::Usage, format!("there is no host `{name}`")))?.reach.clone();
        self.open.get(name).map_or(Ok(()), |open| open.find(&mut reach))?;
        Ok(reach)
    }
}

/// Reads and checks an inventory, and nothing but its file.
///
/// # Errors
/// For a file that cannot be read, and for the first mistake in it with its line, its key and the way out.
pub fn read(path: &Path) -> Result<InventoryFile, UserError> {
    let text = files::read_text(path, INVENTORY_MAX).map_err(|error| UserError::from_error(Exit::Usage, &error))?;
    parse(&text, path)
}

/// Reads an inventory from a text. Files that it names are relative to the folder of `path`.
fn parse(text: &str, path: &Path) -> Result<InventoryFile, UserError> {
    let source = SourceText { path, text };
    let written: InventoryText = toml::from_str(text).map_err(|error| not_toml(&source, &error))?;
    if let Some(schema) = written.schema.as_ref().filter(|schema| *schema.get_ref() != SCHEMA) {
        let what = format!("schema: this program reads `{SCHEMA}`, not `{}`", schema.get_ref());
        return Err(source.error(&schema.span(), what));
    }
    let mut entries = reaches::expand_hosts(&written, &source)?;
    let groups = groups::flatten(&written, &mut entries, &source)?;
    if entries.is_empty() {
        let user_error = UserError::new(Exit::Usage, format!("{}: it has no hosts", path.display()));
        return Err(
            user_error.with_line("fix", "[groups]  companions = \"10.0.0.[2-9]\", or [hosts.NAME] for each host")
        );
    }
    let (hosts, open) = reaches::reaches(&entries, written.kubernetes.as_ref(), &source)?;
    Ok(InventoryFile { inventory: Inventory { hosts, groups }, open })
}

/// Returns the error of a file that is not TOML, or has a key that an inventory has not.
fn not_toml(source: &SourceText<'_>, error: &toml::de::Error) -> UserError {
    let is_ansible = source.text.trim_start().starts_with(['{', '-'])
        || source.path.extension().is_some_and(|extension| {
            ["ini", "yml", "yaml", "json"].iter().any(|known| extension.eq_ignore_ascii_case(known))
        });
    let message = error.message().lines().next().unwrap_or("it is not an inventory").to_owned();
    let user_error = match error.span() {
        Some(span) => mistakes::error(source, &span, &message),
        None => UserError::new(Exit::Usage, format!("{}: {message}", source.path.display())),
    };
    if is_ansible {
        let path = source.path.display();
        return user_error.with_line("fix", format!("fathom hosts import {path} -o hosts.toml        # from Ansible"));
    }
    user_error
}

/// Returns the hosts that a text selects.
///
/// # Errors
/// For a name that the inventory has not, with the names that it has.
pub fn select(inventory: &Inventory, text: &str, path: &Path) -> Result<Vec<String>, UserError> {
    inventory.select(text).map_err(|error| {
        let known: Vec<&str> = inventory.hosts.keys().chain(inventory.groups.keys()).map(String::as_str).collect();
        let user_error = UserError::new(Exit::Usage, error.to_string()).with_line("in", path.display().to_string());
        match error {
            NameError::Unknown(_) => user_error.with_line("known", known.join(", ")),
            NameError::Range(_) => user_error,
        }
    })
}

/// Returns a single host.
///
/// # Errors
/// For a name that the inventory has not, or that stands for several hosts.
pub fn host<'i>(inventory: &'i Inventory, name: &str, path: &Path) -> Result<(String, &'i InventoryHost), UserError> {
    let names = select(inventory, name, path)?;
    match names.as_slice() {
        [only] => Ok((only.clone(), &inventory.hosts[only])),
        _ => Err(UserError::new(Exit::Usage, format!("`{name}` stands for {} hosts, and one is needed", names.len()))
            .with_line("hosts", names.join(", "))),
    }
}

/// Replaces the hosts of a plan that name hosts of an inventory. `given` is the file of `--hosts`; files in the plan are relative to
/// `folder`.
///
/// # Errors
/// If an inventory cannot be read, or has no such host, or if no file is named.
pub fn resolve(plan: &mut Plan, given: Option<&Path>, folder: &Path) -> Result<(), UserError> {
    let mut read_files: BTreeMap<PathBuf, InventoryFile> = BTreeMap::new();
    for (name, reach) in &mut plan.hosts {
        let HostReach::Inventory(reference) = reach else { continue };
        let own: Option<PathBuf> = reference.file.as_ref().map(|file| folder.join(file));
        let Some(path) = given.or(own.as_deref()) else {
            let user_error =
                UserError::new(Exit::Usage, format!("host `{name}` is in an inventory, and no file is named"));
            return Err(user_error.with_line("use", "--hosts FILE, or file = \"hosts.toml\" beside host in the plan"));
        };
        if !read_files.contains_key(path) {
            read_files.insert(path.to_owned(), read(path)?);
        }
        let file = &read_files[path];
        let (found, _) = host(&file.inventory, &reference.host, path)?;
        *reach = file.reach(&found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use fathom_model::{
        HostRole,
        reach::{ExecHost, SshHost},
    };

    use super::*;

    fn read_text(text: &str) -> Result<Inventory, String> {
        let file = parse(text, Path::new("rack/hosts.toml"));
        file.map(|file| file.inventory).map_err(|error| error.to_string())
    }

    fn error(text: &str) -> String {
        read_text(text).unwrap_err()
    }

    fn ssh(inventory: &Inventory, name: &str) -> SshHost {
        match &inventory.hosts[name].reach {
            HostReach::Ssh(host) => host.clone(),
            other => panic!("{name} is reached by {other:?}"),
        }
    }

    #[test]
    fn a_group_of_addresses_is_an_inventory() {
        let inventory = read_text("[groups]\ncompanions = \"10.0.0.[2-4]\"\n").unwrap();
        assert_eq!(inventory.groups["companions"], ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        let host = ssh(&inventory, "10.0.0.3");
        assert_eq!((host.address.as_str(), host.data), ("10.0.0.3", Some(IpAddr::from([10, 0, 0, 3]))));
        assert_eq!(inventory.groups["all"].len(), 3);
    }

    #[test]
    fn ranges_of_names_and_addresses_are_paired_and_defaults_hold_for_all() {
        let inventory = read_text(
            "[defaults]\nuser = \"bench\"\nprogram = \"/opt/fathom\"\n\n[hosts.\"b[1-2]\"]\ncontrol = \"192.0.2.[11-12]\"\ndata = \
             \"10.0.0.[2-3]\"\nroles = [\"companion\"]\n\n[hosts.sut]\nuser = \"root\"\nroles = [\"sut\"]\njump = \
             \"b1\"\n[groups]\nall-but = [\"b[1-2]\"]\nnest = [\"all-but\", \"sut\"]\n",
        )
        .unwrap();
        let b2 = ssh(&inventory, "b2");
        assert_eq!((b2.address.as_str(), b2.user.as_deref()), ("192.0.2.12", Some("bench")));
        assert_eq!(b2.data, Some(IpAddr::from([10, 0, 0, 3])));
        let sut = ssh(&inventory, "sut");
        assert_eq!((sut.user.as_deref(), sut.jump), (Some("root"), vec!["bench@192.0.2.11".to_owned()]));
        assert_eq!(inventory.hosts["sut"].roles, [HostRole::Sut]);
        assert_eq!(inventory.groups["nest"], ["b1", "b2", "sut"]);
        assert_eq!(inventory.groups["all"], ["b1", "b2", "sut"]);
    }

    #[test]
    fn one_line_changes_the_engine() {
        let with = |launcher: &str| {
            read_text(&format!("[defaults]\nlauncher = {launcher}\nlab = \"l\"\n[hosts.b1]\ndata = \"10.0.0.2\"\n"))
                .map(|inventory| inventory.hosts["b1"].reach.clone())
        };
        assert!(matches!(with("\"ssh\"").unwrap(), HostReach::Ssh(_)));
        assert_eq!(with("\"self\"").unwrap(), HostReach::At(IpAddr::from([10, 0, 0, 2])));
        assert_eq!(with("\"lab\"").unwrap(), HostReach::LabUp("l".to_owned(), "b1".to_owned()));
        let unknown = with("\"kubernetes\"").unwrap_err();
        assert!(unknown.contains("hosts.b1: its cluster is unknown") && unknown.contains("[kubernetes]"), "{unknown}");
        assert!(matches!(with("\"tls\"").unwrap(), HostReach::Tls { address, .. } if address == "b1:7700"));
        let command = ["srun", "-w", "b1", "fathom", "agent"].map(str::to_owned).to_vec();
        let expected = HostReach::Exec(ExecHost { command, data: Some(IpAddr::from([10, 0, 0, 2])) });
        assert_eq!(with("[\"srun\", \"-w\", \"{host}\", \"fathom\", \"agent\"]").unwrap(), expected);
        assert!(with("\"rsh\"").unwrap_err().contains("launcher: there is no launcher `rsh`"));
        let unknown = with("[\"srun\", \"{node}\"]").unwrap_err();
        assert!(unknown.contains("launcher: unknown placeholder `{node}`"), "{unknown}");
    }

    #[test]
    fn nodes_of_a_cluster_share_its_table_and_the_tested_one_is_known() {
        let text = "[kubernetes]\nimage = \"fathom:1\"\nnamespace = \"bench\"\nnetwork = \"pod\"\ncapabilities = [\"NET_RAW\"]\n\
             [defaults]\nlauncher = \"kubernetes\"\n[hosts.sut]\ncontrol = \"n1\"\nroles = [\"sut\"]\n[hosts.\"b[2-3]\"]\n\
             control = \"n[2-3]\"\ndata = \"10.0.0.[2-3]\"\n";
        let inventory = read_text(text).unwrap();
        let pod = |name: &str| match &inventory.hosts[name].reach {
            HostReach::Kubernetes(host) => host.clone(),
            other => panic!("{name} is reached by {other:?}"),
        };
        assert_eq!((pod("sut").node.as_str(), pod("sut").sut, pod("sut").data), ("n1", true, None));
        assert_eq!((pod("b3").node.as_str(), pod("b3").sut), ("n3", false));
        assert_eq!(pod("b3").data, Some(IpAddr::from([10, 0, 0, 3])));
        assert_eq!(pod("b2").cluster.namespace.as_deref(), Some("bench"));
        let wrong = |from: &str, to: &str| error(&text.replace(from, to));
        let cases = [
            ("\"bench\"", "\"--all\"", "rack/hosts.toml:1: kubernetes: namespace `--all` is not a namespace"),
            ("\"pod\"", "\"bridge\"", "rack/hosts.toml:4: kubernetes.network: `bridge` is not known"),
            ("\"n1\"", "\"N1\"", "rack/hosts.toml:8: hosts.sut: control `N1` is not the name of a node"),
            (
                "\"n1\"",
                "\"n2\"",
                "rack/hosts.toml:11: hosts.\"b[2-3]\": it has the same connection settings as host `sut`",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(wrong(from, to).starts_with(expected), "{}", wrong(from, to));
        }
    }

    #[test]
    fn every_mistake_is_named_by_file_line_and_key() {
        let cases = [
            ("[hosts.a]\ncolour = 1\n", "rack/hosts.toml:2: hosts.a: there is no key `colour`"),
            ("schema = \"x\"\n", "rack/hosts.toml:1: schema: this program reads `fathom.hosts/1`, not `x`"),
            ("[hosts.a]\n[hosts.a]\n", "rack/hosts.toml:2: duplicate key"),
            ("[hosts.\"b[1-3]\"]\n\n[hosts.b2]\n", "rack/hosts.toml:3: hosts.b2: host `b2` is defined twice"),
            ("[hosts.\"b[3-1]\"]\n", "rack/hosts.toml:1: hosts.\"b[3-1]\": `b[3-1]` is not a range of names"),
            (
                "[hosts.\"b[1-3]\"]\ndata = \"10.0.0.[1-2]\"\n",
                "rack/hosts.toml:2: hosts.\"b[1-3]\".data: it stands for 2 addresses",
            ),
            ("[hosts.a]\ndata = \"b.example\"\n", "rack/hosts.toml:2: hosts.a.data: `b.example` is not an IP address"),
            (
                "[hosts.\"-oProxyCommand=x\"]\n",
                "rack/hosts.toml:1: hosts.\"-oProxyCommand=x\": `-oProxyCommand=x` is not a name",
            ),
            ("[hosts.a]\nuser = \"two words\"\n", "rack/hosts.toml:1: hosts.a: user `two words` is not a user name"),
            ("[hosts.a]\ncontrol = \"-v\"\n", "rack/hosts.toml:1: hosts.a: control `-v` is not a host name"),
            ("[hosts.a]\njump = \"a\"\n", "rack/hosts.toml:2: hosts.a.jump: it leads back to `a`: a, a"),
            (
                "[hosts.a]\njump = \"b\"\n[hosts.b]\njump = \"a\"\n",
                "rack/hosts.toml:2: hosts.a.jump: it leads back to `a`: a, b, a",
            ),
            (
                "[hosts.a]\n[groups]\ng = [\"a\", \"c\"]\n",
                "rack/hosts.toml:3: groups.g: `c` is neither a host, a group nor an address",
            ),
            (
                "[hosts.a]\n[groups]\ng = [\"h\"]\nh = \"g\"\n",
                "rack/hosts.toml:3: groups.g: it contains itself: g, h, g",
            ),
            ("[hosts.a]\n[groups]\na = \"a\"\n", "rack/hosts.toml:3: groups.a: `a` is the name of a host too"),
            (
                "[hosts.a]\ndata = \"10.0.0.1\"\n[hosts.b]\ndata = \"10.0.0.1\"\n",
                "rack/hosts.toml:3: hosts.b: it has the address 10.0.0.1 of host `a`",
            ),
            (
                "[hosts.a]\ncontrol = \"x\"\n[hosts.b]\ncontrol = \"x\"\n",
                "rack/hosts.toml:3: hosts.b: it has the same connection settings as host `a`",
            ),
            ("[hosts.\"all\"]\n", "rack/hosts.toml:1: hosts.all: `all` is the group of all hosts"),
            (
                "[hosts.a]\njump = \"b,c/d\"\n",
                "rack/hosts.toml:2: hosts.a.jump: `c/d` is neither a host of this file nor [USER@]HOST[:PORT]",
            ),
            ("[hosts.a]\nlauncher = \"lab\"\n", "rack/hosts.toml:1: hosts.a: its lab is unknown"),
            ("", "rack/hosts.toml: it has no hosts"),
        ];
        for (text, expected) in cases {
            let error = error(text);
            assert!(error.starts_with(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn a_host_that_is_not_used_stands_in_the_way_of_no_other() {
        let text = "[hosts.good]\ncontrol = \"127.0.0.1\"\nlauncher = [\"x\", \"{host}\"]\n[hosts.nameless]\ncontrol = \
                    \"no.such.name.invalid\"\nlauncher = [\"x\"]\n\n[hosts.keyless]\nlauncher = \"tls\"\nkey_file = \"none\"\n";
        let file = parse(text, Path::new("rack/hosts.toml")).unwrap();
        assert!(matches!(file.reach("good").unwrap(), HostReach::Exec(host) if host.data.is_some()));
        let error = |name: &str| file.reach(name).unwrap_err().to_string();
        let nameless = "rack/hosts.toml:4: hosts.nameless: its address on the path under test is unknown";
        assert!(error("nameless").starts_with(nameless), "{}", error("nameless"));
        let keyless = "rack/hosts.toml:10: hosts.keyless.key_file: rack/none has no key";
        assert!(error("keyless").starts_with(keyless), "{}", error("keyless"));
    }

    #[test]
    fn jump_hosts_are_hosts_of_the_file_or_a_list_as_ssh_takes_it() {
        let text = "[hosts.gate]\ncontrol = \"192.0.2.1\"\nuser = \"me\"\njump = \"outer\"\n[hosts.a]\njump = \"gate,near\"\n\
                    [hosts.b]\njump = \"far,gate\"\n";
        let inventory = read_text(text).unwrap();
        assert_eq!(ssh(&inventory, "a").jump, ["near", "me@192.0.2.1", "outer"]);
        assert_eq!(ssh(&inventory, "b").jump, ["me@192.0.2.1", "far"]);
    }

    #[test]
    fn an_unknown_host_is_answered_with_the_known_ones() {
        let inventory = read_text("[hosts.\"b[1-2]\"]\n").unwrap();
        let path = Path::new("hosts.toml");
        let error = host(&inventory, "b3", path).unwrap_err().to_string();
        assert_eq!(error, "there is no host or group `b3`\n  in     hosts.toml\n  known  b1, b2, all");
        assert!(host(&inventory, "all", path).unwrap_err().to_string().starts_with("`all` stands for 2 hosts"));
    }
}
