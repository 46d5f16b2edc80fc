//! The iperf3 server of `fathom serve`: its options, its port, its thread.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    thread,
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, parser::ValueSource, value_parser};
use fathom_engine::StopFlag;
use fathom_interop::{
    ClientFilter, ServerTotals,
    iperf3::{Authenticator, Error, PORT, Padding, SKEW_SECS, Server, ServerOptions},
};
use fathom_model::units::{BitsPerSec, Nanos, rounded};
use fathom_sys::{policy::Network, process::threads};

use super::thread_error;
use crate::command::measurement;
use fathom_compat as compat;
use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
};

/// The averaging time for the rate limit that aborts a test.
const RATE_SPAN: Nanos = Nanos::from_secs(5);

/// The options of the server.
const OPTIONS: &[&str] =
    &["one-at-a-time", "iperf3-clients", "iperf3-rate", "iperf3-from", "iperf3-key", "iperf3-users", "iperf3-pkcs1"];

/// Returns the options of the server, under their own heading.
pub(super) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("iperf3 server")
    };
    let file = |name, help| text(name, "FILE", help).value_parser(value_parser!(PathBuf));
    vec![
        text("iperf3", "PORT", "serve iperf3 clients [default port: 5201]")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("5201")
            .value_parser(value_parser!(u16)),
        text("one-at-a-time", "", "one iperf3 client at a time, as iperf3 itself does").action(ArgAction::SetTrue),
        text("iperf3-clients", "N", "the most iperf3 clients at once")
            .default_value("16")
            .value_parser(value_parser!(u16).range(1..=256)),
        text("iperf3-rate", "BITS/S", "break tests off that are faster on average over 5 s"),
        text("iperf3-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        file("iperf3-key", "RSA private key in PEM that opens the logins of clients").requires("iperf3-users"),
        file("iperf3-users", "who may test: lines of name,SHA-256 of {name}password").requires("iperf3-key"),
        text("iperf3-pkcs1", "", "logins as iperf3 before 3.17 makes them")
            .action(ArgAction::SetTrue)
            .requires("iperf3-key"),
    ]
}

/// Returns the port if iperf3 clients are served. `--only iperf3` also selects that.
fn port(matches: &ArgMatches) -> Option<u16> {
    let is_meant = matches.get_one::<String>("only").is_some_and(|only| only == "iperf3");
    matches.get_one::<u16>("iperf3").copied().or(is_meant.then_some(PORT))
}

/// Refuses options that have no effect.
pub(super) fn check(matches: &ArgMatches) -> Result<(), UserError> {
    let given = OPTIONS.iter().find(|name| matches.value_source(name) == Some(ValueSource::CommandLine));
    match given.filter(|_| port(matches).is_none()) {
        None => Ok(()),
        Some(name) => Err(UserError::new(Exit::Usage, format!("--{name} has no effect without --iperf3"))
            .with_line("use", "fathom serve --iperf3        # or --only iperf3")),
    }
}

/// A listening server.
pub(super) struct Iperf3Server(Server);

/// A running server.
pub(super) struct RunningIperf3(thread::JoinHandle<Result<ServerTotals, Error>>);

impl Iperf3Server {
    /// Listens as the options say, or returns `None` if no iperf3 server was requested.
    pub(super) fn listen(matches: &ArgMatches, address: IpAddr) -> anyhow::Result<Option<Self>> {
        let Some(port) = port(matches) else { return Ok(None) };
        let server = Server::bind(SocketAddr::new(address, port), None, options(matches)?).map_err(|error| {
            let user_error = UserError::new(Exit::Preflight, format!("cannot serve iperf3 on {address} port {port}"));
            user_error
                .with_line("why", error.to_string())
                .with_line("fix", format!("choose another port: --iperf3={}", PORT + 1))
        })?;
        Ok(Some(Self(server)))
    }

    pub(super) fn line(&self) -> String {
        format!("iperf3  {}", self.0.address())
    }

    /// Serves until stopped.
    pub(super) fn start(self, stop: &StopFlag) -> Result<RunningIperf3, UserError> {
        let stop = stop.clone();
        let started = threads::start(move || self.0.run(&stop, &|| compat::iperf3_transcript()));
        started.map(RunningIperf3).map_err(|error| thread_error("serve iperf3", &error))
    }
}

impl RunningIperf3 {
    /// Returns true if the server has ended early. That happens only on failure.
    pub(super) fn has_failed(&self) -> bool {
        self.0.is_finished()
    }

    pub(super) fn join(self) -> anyhow::Result<()> {
        let served = self.0.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let served = served.map_err(|error| UserError::new(Exit::Failed, format!("iperf3: {error}")))?;
        eprintln!(
            "iperf3: {} tests, {} broken off or refused, {} connections turned away",
            served.finished, served.failed, served.rejected
        );
        Ok(())
    }
}

/// Returns the server options of the command line.
fn options(matches: &ArgMatches) -> anyhow::Result<ServerOptions> {
    let clients = matches.get_one::<u16>("iperf3-clients").copied().unwrap_or(1);
    let clients = if matches.get_flag("one-at-a-time") { 1 } else { clients };
    let rate = matches.get_one::<String>("iperf3-rate").map(|text| {
        let rate = text.parse::<BitsPerSec>();
        rate.map_err(|error| UserError::new(Exit::Usage, format!("--iperf3-rate: {error}")))
    });
    let networks = matches.get_many::<String>("iperf3-from").into_iter().flatten();
    let networks = networks.map(|text| text.parse::<Network>().map_err(|error| fleet_error(&error.into())));
    let networks: Vec<Network> = networks.collect::<Result<_, _>>()?;
    let longest = measurement::duration_option(matches, "longest", Nanos::from_secs(600))?;
    Ok(ServerOptions {
        clients: usize::from(clients),
        rate: rate.transpose()?.map(|rate| (rounded(rate.get()), RATE_SPAN)),
        test_secs_max: Some(u32::try_from(longest.0 / 1_000_000_000).unwrap_or(u32::MAX)),
        is_client_allowed: (!networks.is_empty()).then(|| {
            let admits = move |address: IpAddr| networks.iter().any(|network| network.contains(address));
            Arc::new(admits) as ClientFilter
        }),
        authenticator: authenticator(matches)?.map(Arc::new),
        interval: Some(Nanos::from_secs(1)),
        ..ServerOptions::default()
    })
}

fn authenticator(matches: &ArgMatches) -> anyhow::Result<Option<Authenticator>> {
    let file = |name| matches.get_one::<PathBuf>(name);
    let (Some(key), Some(users)) = (file("iperf3-key"), file("iperf3-users")) else { return Ok(None) };
    let read =
        |path: &PathBuf| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let padding = if matches.get_flag("iperf3-pkcs1") { Padding::Pkcs1 } else { Padding::Oaep };
    let keeper = Authenticator::new(&read(key)?, &read(users)?, SKEW_SECS, padding);
    Ok(Some(keeper.map_err(|error| UserError::new(Exit::Usage, format!("the iperf3 login: {error}")))?))
}
