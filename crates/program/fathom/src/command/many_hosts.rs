//! `--from`, `--to`, `--topology`, `--each`, `--on-loss`, `--heads`: which hosts of a lab or an inventory talk to each other, and how.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches};
use fathom_lab::preset;
use fathom_model::{HostRole, Inventory, OnLoss, Topology, inventory::select, plan::HostReach};

use super::test_hosts::TestHosts;
use fathom_run::{
    exit::{Exit, UserError},
    inventory,
};

const FROM: &str = "from";
const TO: &str = "to";
const TOPOLOGY: &str = "topology";
const EACH: &str = "each";
const ON_LOSS: &str = "on-loss";
const HEADS: &str = "heads";

/// The group of all hosts but the tested one.
pub(super) const COMPANIONS: &str = "companions";
/// The group of all hosts.
const ALL: &str = "all";

const TOPOLOGIES: [(&str, Topology); 3] =
    [("star", Topology::Star), ("ring", Topology::Ring), ("mesh", Topology::Mesh)];

/// Returns the options.
pub(super) fn arguments() -> [Arg; 4] {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("Several hosts")
    };
    [
        text(TOPOLOGY, "SHAPE", "who talks to whom: star (many with one), ring (each with the next), mesh (all pairs)")
            .value_parser(TOPOLOGIES.map(|(word, _)| word)),
        Arg::new(EACH)
            .long(EACH)
            .action(ArgAction::SetTrue)
            .help("each pair of hosts gets the whole rate and all flows, connections and users, instead of its part")
            .help_heading("Several hosts"),
        text(
            ON_LOSS,
            "WHAT",
            "what happens if a host is lost: fail ends the run, continue goes on without it [default: fail]",
        )
        .value_parser(["fail", "continue"]),
        text(
            HEADS,
            "N",
            "connect to N of the hosts only: each is the head of a group and connects to the others [default: to all]",
        )
        .value_parser(clap::value_parser!(u32).range(1..)),
    ]
}

/// Returns the option as text, if the command has it and it is given.
fn given<'m>(matches: &'m ArgMatches, name: &str) -> Option<&'m str> {
    matches.try_get_one::<String>(name).ok().flatten().map(String::as_str)
}

/// Returns the hosts of a star lab with their groups: the companions initiate, and the tested host responds.
pub(super) fn star(names: &[String], reach: impl Fn(&str) -> HostReach) -> TestHosts {
    let companions: Vec<String> = names.iter().filter(|name| *name != preset::TESTED).cloned().collect();
    let hosts = names.iter().map(|name| (name.clone(), reach(name))).collect();
    TestHosts {
        groups: BTreeMap::from([(COMPANIONS.to_owned(), companions), (ALL.to_owned(), names.to_vec())]),
        via: None,
        from: COMPANIONS.to_owned(),
        to: preset::TESTED.to_owned(),
        ..TestHosts::between(None, hosts)
    }
}

/// Returns the hosts with what the command line says about them.
///
/// # Errors
/// If it names hosts that are not there, or asks for a topology of two hosts.
pub(super) fn chosen(mut ends: TestHosts, matches: &ArgMatches) -> Result<TestHosts, UserError> {
    let is_inventory = has_inventory(matches);
    if let Some(option) = [FROM, TO, TOPOLOGY].into_iter().find(|name| given(matches, name).is_some())
        && ends.groups.is_empty()
        && !is_inventory
    {
        return Err(UserError::new(Exit::Usage, format!("--{option} chooses among several hosts, and there are none"))
            .with_line("use", "--lab star:4, or --hosts FILE"));
    }
    ends.topology = topology(matches);
    ends.each = matches.try_get_one::<bool>(EACH).ok().flatten().copied().unwrap_or(false);
    if given(matches, ON_LOSS) == Some("continue") {
        ends.on_loss = OnLoss::Continue;
    }
    ends.heads = matches.try_get_one::<u32>(HEADS).ok().flatten().copied();
    // The hosts of an inventory are chosen when it is read.
    if !is_inventory {
        if is_of_one_group(ends.topology) && ends.groups.contains_key(ALL) {
            (ends.from, ends.to) = (ALL.to_owned(), ALL.to_owned());
        }
        let is_mesh = ends.from == ends.to && ends.topology.is_some();
        if let Some(from) = given(matches, FROM) {
            ends.from = named(&mut ends, from)?;
            if is_mesh && given(matches, TO).is_none() {
                ends.to.clone_from(&ends.from);
            }
        }
        if let Some(to) = given(matches, TO) {
            ends.to = named(&mut ends, to)?;
        }
    }
    keep_used(&mut ends);
    Ok(ends)
}

fn topology(matches: &ArgMatches) -> Option<Topology> {
    let word = given(matches, TOPOLOGY);
    TOPOLOGIES.into_iter().find(|(known, _)| Some(*known) == word).map(|(_, topology)| topology)
}

const fn is_of_one_group(topology: Option<Topology>) -> bool {
    matches!(topology, Some(Topology::Ring | Topology::Mesh))
}

fn has_inventory(matches: &ArgMatches) -> bool {
    matches.try_get_one::<PathBuf>("hosts").is_ok_and(|path| path.is_some())
}

/// Returns the hosts of an inventory that the options name, or else the companions and the tested host: those of the group `companions` and
/// the host `sut`, or those with these roles.
///
/// # Errors
/// If a name is unknown, or if neither an option nor a role says which hosts are meant.
pub(super) fn of_inventory(
    inventory: &Inventory,
    path: &Path,
    matches: &ArgMatches,
    has_responder: bool,
) -> Result<TestHosts, UserError> {
    let hosts = inventory.hosts.iter().map(|(name, host)| (name.clone(), host.reach.clone())).collect();
    let mut ends = TestHosts { via: None, groups: inventory.groups.clone(), ..TestHosts::between(None, hosts) };
    let is_of_one_group = is_of_one_group(topology(matches));
    ends.from = match given(matches, FROM) {
        None if is_of_one_group => {
            ends.groups.entry(ALL.to_owned()).or_insert_with(|| inventory.hosts.keys().cloned().collect());
            ALL.to_owned()
        }
        text => side(&mut ends, inventory, path, text, HostRole::Companion)?,
    };
    ends.to = match given(matches, TO) {
        None if is_of_one_group || !has_responder => ends.from.clone(),
        text => side(&mut ends, inventory, path, text, HostRole::Sut)?,
    };
    keep_used(&mut ends);
    Ok(ends)
}

/// Returns the name of the side of a role: that of a host, or of a group that it adds to the hosts. Without a text, all hosts of the role
/// are meant.
fn side(
    ends: &mut TestHosts,
    inventory: &Inventory,
    path: &Path,
    text: Option<&str>,
    role: HostRole,
) -> Result<String, UserError> {
    let (option, role_name, word) = match role {
        HostRole::Companion => (FROM, COMPANIONS, "companion"),
        HostRole::Sut => (TO, preset::TESTED, preset::TESTED),
    };
    let of_role = || {
        let is_named = inventory.groups.contains_key(role_name) || inventory.hosts.contains_key(role_name);
        let of_role = || Ok(inventory.with_role(role).into_iter().map(str::to_owned).collect());
        if is_named { inventory::select(inventory, role_name, path) } else { of_role() }
    };
    let members: Vec<String> = text.map_or_else(of_role, |text| inventory::select(inventory, text, path))?;
    let name = text.unwrap_or(role_name).to_owned();
    match members.as_slice() {
        [only] => Ok(only.clone()),
        [] => {
            let known: Vec<&str> = inventory.hosts.keys().map(String::as_str).collect();
            let what = format!("--{option} is needed: no host in {} has the role {word}", path.display());
            Err(UserError::new(Exit::Usage, what)
                .with_line("use", format!("--{option} HOST"))
                .with_line("or", format!("roles = [\"{word}\"] in the inventory"))
                .with_line("hosts", known.join(", ")))
        }
        _ => {
            ends.groups.insert(name.clone(), members);
            Ok(name)
        }
    }
}

/// Returns the name of a host or a group; a list becomes a group of its own.
fn named(ends: &mut TestHosts, text: &str) -> Result<String, UserError> {
    let is_host = |name: &str| ends.hosts.iter().any(|(host, _)| host == name);
    if ends.groups.contains_key(text) || is_host(text) {
        return Ok(text.to_owned());
    }
    let members = select(text, &ends.groups, is_host).map_err(|error| {
        let hosts: Vec<&str> = ends.hosts.iter().map(|(host, _)| host.as_str()).collect();
        let groups: Vec<&str> = ends.groups.keys().map(String::as_str).collect();
        let error = UserError::new(Exit::Usage, error.to_string()).with_line("hosts", hosts.join(", "));
        if groups.is_empty() { error } else { error.with_line("groups", groups.join(", ")) }
    })?;
    if members.is_empty() {
        return Err(UserError::new(Exit::Usage, format!("`{text}` names no host")).with_line("use", "--from c1,c2"));
    }
    ends.groups.insert(text.to_owned(), members);
    Ok(text.to_owned())
}

/// Leaves out hosts and groups that no test needs, so that nothing is started there.
fn keep_used(ends: &mut TestHosts) {
    let (from, to) = (ends.from.clone(), ends.to.clone());
    ends.groups.retain(|name, _| *name == from || *name == to);
    let groups = &ends.groups;
    let via = ends.via.clone();
    ends.hosts.retain(|(host, _)| {
        let is_member = groups.values().any(|members| members.contains(host));
        is_member || *host == from || *host == to || via.as_ref() == Some(host)
    });
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn of_words(words: &[&str]) -> Result<TestHosts, UserError> {
        let names: Vec<String> = ["sut", "c1", "c2", "c3"].map(str::to_owned).to_vec();
        let sides = ["from", "to"].map(|name| Arg::new(name).long(name));
        let command = Command::new("x").args(arguments()).args(sides);
        let matches = command.try_get_matches_from(std::iter::once("x").chain(words.iter().copied())).unwrap();
        chosen(star(&names, |name| HostReach::Lab(name.to_owned())), &matches)
    }

    fn ends(words: &[&str]) -> (String, String, Vec<String>) {
        let ends = of_words(words).unwrap();
        (ends.from, ends.to, ends.hosts.into_iter().map(|(name, _)| name).collect())
    }

    #[test]
    fn a_star_goes_from_the_companions_to_the_tested_host_unless_the_command_line_says_otherwise() {
        let told = |from: &str, to: &str, hosts: &[&str]| {
            (from.to_owned(), to.to_owned(), hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(ends(&[]), told("companions", "sut", &["sut", "c1", "c2", "c3"]));
        assert_eq!(ends(&["--from", "c2"]), told("c2", "sut", &["sut", "c2"]));
        assert_eq!(ends(&["--from", "c1,c3"]), told("c1,c3", "sut", &["sut", "c1", "c3"]));
        assert_eq!(ends(&["--from", "c[1-2]"]), told("c[1-2]", "sut", &["sut", "c1", "c2"]));
        assert_eq!(ends(&["--from", "sut", "--to", "companions"]).0, "sut");
        assert_eq!(ends(&["--topology", "mesh"]), told("all", "all", &["sut", "c1", "c2", "c3"]));
        assert_eq!(ends(&["--topology", "mesh", "--from", "c1,c2"]), told("c1,c2", "c1,c2", &["c1", "c2"]));
        let error = of_words(&["--from", "c9"]).err().unwrap().to_string();
        assert!(error.contains("there is no host or group `c9`") && error.contains("companions"), "{error}");
    }

    #[test]
    fn totals_and_losses_are_as_the_command_line_says() {
        let plain = of_words(&[]).unwrap();
        assert_eq!((plain.each, plain.on_loss, plain.topology), (false, OnLoss::Fail, None));
        let said = of_words(&["--each", "--on-loss", "continue", "--topology", "ring"]).unwrap();
        assert_eq!((said.each, said.on_loss, said.topology), (true, OnLoss::Continue, Some(Topology::Ring)));
    }
}
