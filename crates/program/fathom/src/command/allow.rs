//! `fathom allow`: manages the saved allow-list of this machine.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
};

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command};

use fathom_run::{
    allow::{self, AllowEntry},
    exit::{Exit, UserError},
};

const EXAMPLES: &str = "\
Examples:
  fathom allow add 10.0.0.0/24 web.example.org
  fathom allow list
  fathom allow rm 10.0.0.0/24

The list is a file of lines, ~/.config/fathom/allow: an address, a network or a name each, with # comments.
A name means the addresses that it has when a run starts. For one run, --allow and FATHOM_ALLOW do the same.
Loopback, labs, hosts with a key, servers of iperf, iperf3 and netperf for their own protocol, and `fathom probe` at the pace of ping need no line.";

pub(super) fn define(command: Command) -> Command {
    let entries =
        || Arg::new("entry").value_name("ADDRESS").num_args(1..).required(true).help("an address, a network or a name");
    command
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(Command::new("add").about("Allow traffic to these from now on").arg(entries()))
        .subcommand(Command::new("list").about("List what is allowed, and invalid lines"))
        .subcommand(Command::new("rm").about("Take these off the list").arg(entries()))
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    match matches.subcommand() {
        Some(("add", given)) => entries(given)?.iter().try_for_each(add)?,
        Some(("rm", given)) => entries(given)?.iter().try_for_each(remove)?,
        _ => list()?,
    }
    Ok(Exit::Pass)
}

fn entries(given: &ArgMatches) -> Result<Vec<AllowEntry>, UserError> {
    let words = given.get_many::<String>("entry").into_iter().flatten();
    let entry = |word: &String| {
        AllowEntry::read(word).ok_or_else(|| {
            UserError::new(Exit::Usage, format!("`{word}` is not an address, a network or a name"))
                .with_line("use", "fathom allow add 10.0.0.2, 10.0.0.0/24 or web.example.org")
        })
    };
    words.map(entry).collect()
}

fn add(entry: &AllowEntry) -> anyhow::Result<()> {
    if let Some((place, _)) = kept_lines()?.into_iter().find(|(_, kept)| kept.as_ref() == Ok(entry)) {
        eprintln!("{entry} is allowed already ({place})");
        return Ok(());
    }
    if let AllowEntry::Name(name) = entry {
        let addresses: Vec<String> = fathom_run::target::resolve(name)?.iter().map(ToString::to_string).collect();
        eprintln!("{name} is {} now", addresses.join(", "));
    }
    let path = allow::append(entry)?;
    eprintln!("added {entry} to {}", path.display());
    Ok(())
}

fn remove(entry: &AllowEntry) -> anyhow::Result<()> {
    let [path, older] = files()?;
    let text = allow::read_file(&path)?.unwrap_or_default();
    let is_it = |line: &str| allow::read_lines(line, &path).iter().any(|(_, kept)| kept.as_ref() == Ok(entry));
    if !text.lines().any(is_it) {
        let elsewhere = kept_lines()?.into_iter().find(|(_, kept)| kept.as_ref() == Ok(entry));
        let user_error = UserError::new(Exit::Usage, format!("{entry} is not in {}", path.display()));
        return Err(match elsewhere {
            Some((place, _)) => {
                user_error.with_line("fix", format!("remove it from {} by hand ({place})", older.display()))
            }
            None => user_error.with_line("see", "fathom allow list"),
        }
        .into());
    }
    let mut left = String::new();
    for line in text.lines().filter(|line| !is_it(line)) {
        writeln!(left, "{line}")?;
    }
    allow::replace(&path, &left)?;
    eprintln!("removed {entry} from {}", path.display());
    Ok(())
}

fn list() -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for (place, entry) in kept_lines()? {
        match entry {
            Ok(entry) => writeln!(out, "{:<24} {place}", entry.to_string())?,
            Err(why) => eprintln!("fathom: {place}: {why}"),
        }
    }
    Ok(())
}

fn files() -> anyhow::Result<[std::path::PathBuf; 2]> {
    allow::files().context("the place of the allow file is unknown: neither HOME nor XDG_CONFIG_HOME is set")
}

/// Returns all lines of the files.
fn kept_lines() -> anyhow::Result<Vec<allow::AllowLine>> {
    let lines = |path: &Path| anyhow::Ok(allow::read_lines(&allow::read_file(path)?.unwrap_or_default(), path));
    let [path, older] = files()?;
    Ok([lines(&path)?, lines(&older)?].concat())
}
