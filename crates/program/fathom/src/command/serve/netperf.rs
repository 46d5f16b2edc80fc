//! The netperf server of `fathom serve`: its options, its port, its thread.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
};

use clap::{Arg, ArgAction, ArgMatches, parser::ValueSource, value_parser};
use fathom_engine::StopFlag;
use fathom_interop::{
    ClientFilter, ServerTotals,
    netperf::{Error, NetserverOptions, PORT, Server},
};
use fathom_model::units::{BitsPerSec, Nanos, rounded};
use fathom_sys::{policy::Network, process::threads};

use super::thread_error;
use crate::command::measurement;
use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
};

/// The averaging time for the rate limit that breaks a test off.
const RATE_SPAN: Nanos = Nanos::from_secs(5);

/// The options of the server.
const OPTIONS: &[&str] = &["netperf-clients", "netperf-rate", "netperf-from", "netperf-passphrase"];

/// Returns the options of the server, under their own heading.
pub(super) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("netperf server")
    };
    vec![
        text("netperf", "PORT", "serve netperf clients [default port: 12865]")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("12865")
            .value_parser(value_parser!(u16)),
        text("netperf-clients", "N", "the most netperf clients at once")
            .default_value("512")
            .value_parser(value_parser!(u16).range(1..=4096)),
        text("netperf-rate", "BITS/S", "limit the rate of each test; break faster clients off after 5 s"),
        text("netperf-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        text("netperf-passphrase", "TEXT", "serve only clients that send this first (netperf -Z)"),
    ]
}

/// Returns the port if netperf clients are served. `--only netperf` also selects that.
fn port(matches: &ArgMatches) -> Option<u16> {
    let is_meant = matches.get_one::<String>("only").is_some_and(|only| only == "netperf");
    matches.get_one::<u16>("netperf").copied().or(is_meant.then_some(PORT))
}

/// Refuses options that have no effect.
pub(super) fn check(matches: &ArgMatches) -> Result<(), UserError> {
    let given = OPTIONS.iter().find(|name| matches.value_source(name) == Some(ValueSource::CommandLine));
    match given.filter(|_| port(matches).is_none()) {
        None => Ok(()),
        Some(name) => Err(UserError::new(Exit::Usage, format!("--{name} has no effect without --netperf"))
            .with_line("use", "fathom serve --netperf        # or --only netperf")),
    }
}

/// A listening server.
pub(super) struct NetperfServer(Server);

/// A running server.
pub(super) struct RunningNetperf(thread::JoinHandle<Result<ServerTotals, Error>>);

impl NetperfServer {
    /// Listens as the options say, or returns `None` if no netperf server was requested.
    pub(super) fn listen(matches: &ArgMatches, address: IpAddr) -> anyhow::Result<Option<Self>> {
        let Some(port) = port(matches) else { return Ok(None) };
        let server = Server::bind(SocketAddr::new(address, port), options(matches)?).map_err(|error| {
            let user_error = UserError::new(Exit::Preflight, format!("cannot serve netperf on {address} port {port}"));
            user_error
                .with_line("why", error.to_string())
                .with_line("fix", format!("choose another port: --netperf={}", PORT + 1))
        })?;
        Ok(Some(Self(server)))
    }

    pub(super) fn line(&self) -> String {
        format!("netperf {}", self.0.address())
    }

    /// Serves until stopped.
    pub(super) fn start(self, stop: &StopFlag) -> Result<RunningNetperf, UserError> {
        let stop = stop.clone();
        let started = threads::start(move || self.0.run(&stop));
        started.map(RunningNetperf).map_err(|error| thread_error("serve netperf", &error))
    }
}

impl RunningNetperf {
    /// Returns true if the server has ended early. That happens only on failure.
    pub(super) fn has_failed(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn join(self) -> anyhow::Result<()> {
        let served = self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let served = served.map_err(|error| UserError::new(Exit::Failed, format!("netperf: {error}")))?;
        eprintln!(
            "netperf: {} tests, {} broken off or refused, {} connections turned away",
            served.finished, served.failed, served.rejected
        );
        Ok(())
    }
}

/// Returns the server options of the command line.
fn options(matches: &ArgMatches) -> anyhow::Result<NetserverOptions> {
    let rate = matches.get_one::<String>("netperf-rate").map(|text| {
        let rate = text.parse::<BitsPerSec>();
        rate.map_err(|error| UserError::new(Exit::Usage, format!("--netperf-rate: {error}")))
    });
    let networks = matches.get_many::<String>("netperf-from").into_iter().flatten();
    let networks = networks.map(|text| text.parse::<Network>().map_err(|error| fleet_error(&error.into())));
    let networks: Vec<Network> = networks.collect::<Result<_, _>>()?;
    let longest = measurement::duration_option(matches, "longest", Nanos::from_secs(600))?;
    Ok(NetserverOptions {
        clients: matches.get_one::<u16>("netperf-clients").copied().map_or(512, usize::from),
        rate: rate.transpose()?.map(|rate| (rounded(rate.get()), RATE_SPAN)),
        test_secs_max: Some(u32::try_from(longest.0 / 1_000_000_000).unwrap_or(u32::MAX)),
        is_client_allowed: (!networks.is_empty()).then(|| {
            let admits = move |address: IpAddr| networks.iter().any(|network| network.contains(address));
            Arc::new(admits) as ClientFilter
        }),
        passphrase: matches.get_one::<String>("netperf-passphrase").cloned(),
        ..NetserverOptions::default()
    })
}
