//! `fathom agent`: a host of a test, controlled over standard streams.

use std::net::IpAddr;

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_fleet::{Liveness, agent};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::{Network, NetworkError, Policy},
    process::streams,
};

use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
    registry::{self, ProgramNames},
};
use fathom_watch::{HostFeed, Onlooker};

pub(super) fn define(command: Command) -> Command {
    command
        .hide(true)
        .arg(
            Arg::new("stdio")
                .long("stdio")
                .required(true)
                .action(ArgAction::SetTrue)
                .help("speak the agents' protocol on standard input and output"),
        )
        .arg(
            Arg::new("local")
                .long("local")
                .action(ArgAction::SetTrue)
                .help("the controller is a process of this machine"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("ADDRESS")
                .value_parser(clap::value_parser!(IpAddr))
                .help("send only to this address, the controller's"),
        )
        .arg(
            Arg::new("allow")
                .long("allow")
                .value_name("CIDR")
                .action(ArgAction::Append)
                .help("also allow traffic to these networks"),
        )
        .arg(
            Arg::new("roster")
                .long("roster")
                .value_name("FILE")
                .help("file in which the agents of this host log their roles"),
        )
        .arg(
            Arg::new("unlink")
                .long("unlink")
                .action(ArgAction::SetTrue)
                .help("remove this program's file, which a controller copied for this run"),
        )
        .arg(
            Arg::new("await-controller")
                .long("await-controller")
                .value_name("TIME")
                .conflicts_with("local")
                .help("wait for the controller to speak first, at most this long"),
        )
        .arg(Arg::new("longest").long("longest").value_name("TIME").help("longest trial to accept"))
}

/// The folder of a copied program is named after this word.
const PUSH_FOLDER: &str = "fathom-push.";

/// Removes the file of this program and its folder, if a controller copied it there for this run. The program runs on.
///
/// Whatever ends this process later, nothing is left then. A file that cannot be removed is left to the script that copied it.
fn remove_own_file() {
    let Ok(own) = std::env::current_exe() else { return };
    let Some(folder) = own.parent() else { return };
    let is_copy = folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PUSH_FOLDER));
    if is_copy && std::fs::remove_file(&own).is_ok() {
        let _ = std::fs::remove_dir(folder);
    }
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    if matches.get_flag("unlink") {
        remove_own_file();
    }
    let policy = match matches.get_one::<IpAddr>("only") {
        Some(controller) => {
            let allowed = matches.get_many::<String>("allow").into_iter().flatten();
            let allowed: Result<Vec<Network>, _> = allowed.map(|text| text.parse()).collect();
            Policy::served(*controller, allowed.map_err(|error: NetworkError| fleet_error(&error.into()))?)
        }
        None => Policy::anything(),
    };
    let is_served = matches.contains_id("only");
    let longest = super::measurement::duration_option(matches, "longest", agent::LOCAL_TRIAL_MAX)
        .unwrap_or(Nanos::from_secs(3600));
    let config = agent::AgentConfig {
        kinds: &registry::KINDS,
        observer: if is_served {
            || registry::observer(ProgramNames::Hidden)
        } else {
            || registry::observer(ProgramNames::Told)
        },
        counters: if is_served {
            || Box::new(HostFeed::new("/", Onlooker::Guest, clock::thread_cpu))
        } else {
            || Box::new(HostFeed::new("/", Onlooker::Owner, clock::thread_cpu))
        },
        policy,
        trial_max: longest,
        tool: registry::TOOL.to_owned(),
        liveness: if matches.get_flag("local") { Liveness::EndOfStream } else { Liveness::Heartbeats },
        merge: fathom_analyze::merge_records,
        // A server's controller is not its owner: it must not make this host connect to others or start a command.
        leading: if is_served { agent::Leading::Refused } else { agent::Leading::Allowed },
        role_log: matches.get_one::<String>("roster").map(agent::RoleLog::new),
    };
    // Programs and libraries of a test must not read or write the control streams.
    let (input, output) = streams::take_standard().map_err(|error| {
        UserError::new(Exit::Preflight, "cannot keep the standard streams for the controller").with_causes(&error)
    })?;
    let patience = super::measurement::duration_option(matches, "await-controller", Nanos::ZERO)?;
    let served = if matches.contains_id("await-controller") {
        agent::serve_once_called(input, output, config, patience)
    } else {
        agent::serve(input, output, config)
    };
    served
        .map(|()| Exit::Pass)
        .map_err(|loss| UserError::new(Exit::Incomplete, format!("the controller was lost: {loss}")).into())
}
