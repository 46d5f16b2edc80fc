//! The iperf 2 server of `fathom serve`: its options, its port, its thread.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
};

use clap::{Arg, ArgAction, ArgMatches, parser::ValueSource, value_parser};
use fathom_engine::StopFlag;
use fathom_interop::{
    ClientFilter, ServerTotals,
    iperf2::{BackTraffic, Error, FlowInfo, FlowObserver, FlowTable, PORT, Server, ServerOptions},
};
use fathom_model::units::Nanos;
use fathom_sys::{policy::Network, process::threads};

use super::thread_error;
use crate::command::measurement;
use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
};

/// The options of the server.
const OPTIONS: &[&str] = &["iperf-flows", "iperf-from", "iperf-back"];

/// Returns the options of the server, under their own heading.
pub(super) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("iperf server")
    };
    vec![
        text("iperf", "PORT", "serve iperf 2 clients, TCP and UDP [default port: 5001]")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("5001")
            .value_parser(value_parser!(u16)),
        text("iperf-flows", "N", "the most iperf flows at once")
            .default_value("256")
            .value_parser(value_parser!(u16).range(1..=4096)),
        text("iperf-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        text("iperf-back", "CIDR", "send datagrams to these addresses if their clients ask (-u with -R, -d or -r)")
            .action(ArgAction::Append),
    ]
}

/// Returns the port if iperf clients are served. `--only iperf` also selects that.
fn port(matches: &ArgMatches) -> Option<u16> {
    let is_meant = matches.get_one::<String>("only").is_some_and(|only| only == "iperf");
    matches.get_one::<u16>("iperf").copied().or(is_meant.then_some(PORT))
}

/// Refuses options that have no effect.
pub(super) fn check(matches: &ArgMatches) -> Result<(), UserError> {
    let given = OPTIONS.iter().find(|name| matches.value_source(name) == Some(ValueSource::CommandLine));
    match given.filter(|_| port(matches).is_none()) {
        None => Ok(()),
        Some(name) => Err(UserError::new(Exit::Usage, format!("--{name} has no effect without --iperf"))
            .with_line("use", "fathom serve --iperf        # or --only iperf")),
    }
}

/// A listening server.
pub(super) struct IperfServer(Server);

/// A running server.
pub(super) struct RunningIperf(thread::JoinHandle<Result<ServerTotals, Error>>);

/// Reports what a server refuses or breaks off.
struct FailureLog;

impl FlowObserver for FailureLog {
    fn on_failure(&self, flow: Option<&FlowInfo>, error: &Error) {
        match flow {
            Some(flow) => eprintln!("fathom serve: iperf: {} port {}: {error}", flow.remote.ip(), flow.remote.port()),
            None => eprintln!("fathom serve: iperf: {error}"),
        }
    }
}

impl IperfServer {
    /// Listens as the options say, or returns `None` if no iperf server was requested.
    pub(super) fn listen(matches: &ArgMatches, address: IpAddr) -> anyhow::Result<Option<Self>> {
        let Some(port) = port(matches) else { return Ok(None) };
        let server = Server::bind(SocketAddr::new(address, port), options(matches)?).map_err(|error| {
            let user_error = UserError::new(Exit::Preflight, format!("cannot serve iperf on {address} port {port}"));
            user_error
                .with_line("why", error.to_string())
                .with_line("fix", format!("choose another port: --iperf={}", PORT + 1))
        })?;
        Ok(Some(Self(server)))
    }

    pub(super) fn line(&self) -> String {
        format!("iperf   {}", self.0.address())
    }

    /// Serves until stopped.
    pub(super) fn start(self, stop: &StopFlag) -> Result<RunningIperf, UserError> {
        let stop = stop.clone();
        let started = threads::start(move || self.0.run(&stop, &FlowTable::new(&FailureLog, None)));
        started.map(RunningIperf).map_err(|error| thread_error("serve iperf", &error))
    }
}

impl RunningIperf {
    /// Returns true if the server has ended early. That happens only on failure.
    pub(super) fn has_failed(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn join(self) -> anyhow::Result<()> {
        let served = self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let served = served.map_err(|error| UserError::new(Exit::Failed, format!("iperf: {error}")))?;
        eprintln!(
            "iperf: {} flows, {} broken off or refused, {} turned away",
            served.finished, served.failed, served.rejected
        );
        Ok(())
    }
}

/// Returns a filter for the networks of an option; `None` if it was not given.
fn filter(matches: &ArgMatches, name: &str) -> anyhow::Result<Option<ClientFilter>> {
    let networks = matches.get_many::<String>(name).into_iter().flatten();
    let networks = networks.map(|text| text.parse::<Network>().map_err(|error| fleet_error(&error.into())));
    let networks: Vec<Network> = networks.collect::<Result<_, _>>()?;
    let admits = move |networks: Vec<Network>| -> ClientFilter {
        Arc::new(move |address: IpAddr| networks.iter().any(|network| network.contains(address)))
    };
    Ok((!networks.is_empty()).then(|| admits(networks)))
}

/// Returns the server options of the command line.
fn options(matches: &ArgMatches) -> anyhow::Result<ServerOptions> {
    Ok(ServerOptions {
        flows_max: matches.get_one::<u16>("iperf-flows").copied().map_or(256, usize::from),
        time_max: measurement::duration_option(matches, "longest", Nanos::from_secs(600))?,
        is_client_allowed: filter(matches, "iperf-from")?,
        back_traffic: filter(matches, "iperf-back")?.map_or(BackTraffic::ProvenPeers, BackTraffic::Permitted),
        ..ServerOptions::default()
    })
}
