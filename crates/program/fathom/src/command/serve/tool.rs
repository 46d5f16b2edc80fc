//! The server of another tool in `fathom serve`: its port, its thread and its totals, the same for every tool.

use std::{
    fmt::Display,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    thread,
};

use clap::{Arg, ArgMatches, parser::ValueSource, value_parser};
use fathom_engine::StopFlag;
use fathom_interop::{ClientFilter, ServerTotals};
use fathom_model::units::{BitsPerSec, Nanos, counted, rounded};
use fathom_sys::{policy::Network, process::threads};

use crate::command::measurement;
use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
};

/// The averaging time for the rate limit that aborts a test.
const RATE_SPAN: Nanos = Nanos::from_secs(5);

/// A tool whose clients may be served.
pub(super) struct ServedTool {
    /// The word of `--only`, and the option that has the port.
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// The same as text, for an option without a value.
    pub(super) port_text: &'static str,
    /// The options that have no effect without it.
    pub(super) options: &'static [&'static str],
    pub(super) arguments: fn() -> Vec<Arg>,
    /// Opens the server at an address.
    pub(super) bind: fn(&ArgMatches, SocketAddr) -> anyhow::Result<ListeningTool>,
}

/// Serves until it is stopped, and returns what it tells at the end or why it failed.
type Serve = Box<dyn FnOnce(&StopFlag) -> Result<String, String> + Send>;

/// A server that listens.
pub(super) struct ListeningTool {
    address: SocketAddr,
    /// What clients may want to know beside the address.
    about: Option<String>,
    serve: Serve,
}

/// A server that runs.
pub(super) struct RunningTool {
    name: &'static str,
    thread: thread::JoinHandle<Result<String, String>>,
}

impl ServedTool {
    /// Returns the option for the port.
    pub(super) fn port_argument(&self, help: &'static str) -> Arg {
        Arg::new(self.name)
            .long(self.name)
            .value_name("PORT")
            .help(help)
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(self.port_text)
            .value_parser(value_parser!(u16))
    }

    /// Returns the port if clients of the tool are served. `--only` with its name also selects that.
    fn requested_port(&self, matches: &ArgMatches) -> Option<u16> {
        let is_meant = matches.get_one::<String>("only").is_some_and(|only| only == self.name);
        matches.get_one::<u16>(self.name).copied().or(is_meant.then_some(self.port))
    }

    /// Refuses options that have no effect.
    pub(super) fn check(&self, matches: &ArgMatches) -> Result<(), UserError> {
        let given = self.options.iter().find(|name| matches.value_source(name) == Some(ValueSource::CommandLine));
        match given.filter(|_| self.requested_port(matches).is_none()) {
            None => Ok(()),
            Some(name) => {
                let tool = self.name;
                Err(UserError::new(Exit::Usage, format!("--{name} has no effect without --{tool}"))
                    .with_line("use", format!("--{tool}, or --only {tool}")))
            }
        }
    }

    /// Listens as the options say, or returns `None` if the server was not requested.
    pub(super) fn listen(&self, matches: &ArgMatches, address: IpAddr) -> anyhow::Result<Option<ListeningTool>> {
        let at = self.requested_port(matches).map(|port| SocketAddr::new(address, port));
        at.map(|at| (self.bind)(matches, at)).transpose()
    }

    /// The error of a server that cannot listen.
    pub(super) fn listen_error(&self, at: SocketAddr, why: &dyn Display) -> UserError {
        let tool = self.name;
        UserError::new(Exit::Preflight, format!("cannot serve {tool} on {} port {}", at.ip(), at.port()))
            .with_line("why", why.to_string())
            .with_line(
                "fix",
                format!("choose another port: --{tool}={}", at.port().checked_add(1).unwrap_or(self.port)),
            )
    }

    /// Returns the line that says where a server listens.
    pub(super) fn line(&self, server: &ListeningTool) -> String {
        let about = server.about.as_ref().map(|about| format!("  {about}")).unwrap_or_default();
        format!("{:<7} {}{about}", self.name, server.address)
    }

    /// Serves until stopped.
    pub(super) fn start(&self, server: ListeningTool, stop: &StopFlag) -> Result<RunningTool, UserError> {
        let (stop, serve) = (stop.clone(), server.serve);
        let thread = threads::start("tool", move || serve(&stop));
        let thread = thread.map_err(|error| thread_error(&format!("serve {}", self.name), &error))?;
        Ok(RunningTool { name: self.name, thread })
    }
}

impl ListeningTool {
    /// A server of tests.
    pub(super) fn new<E: Display>(
        address: SocketAddr,
        serve: impl FnOnce(&StopFlag) -> Result<ServerTotals, E> + Send + 'static,
    ) -> Self {
        Self::telling(address, move |stop| serve(stop).map(test_totals))
    }

    /// A server with its own words for what it has done.
    pub(super) fn telling<E: Display>(
        address: SocketAddr,
        serve: impl FnOnce(&StopFlag) -> Result<String, E> + Send + 'static,
    ) -> Self {
        Self { address, about: None, serve: Box::new(move |stop| serve(stop).map_err(|error| error.to_string())) }
    }

    /// Adds what clients may want to know beside the address.
    pub(super) fn about(mut self, about: String) -> Self {
        self.about = Some(about);
        self
    }
}

impl RunningTool {
    /// Whether this is the server of a tool and has ended early, which happens only on failure.
    pub(super) fn has_failed(&self, name: &str) -> bool {
        self.name == name && self.thread.is_finished()
    }

    pub(super) fn join(self) -> anyhow::Result<()> {
        let name = self.name;
        let served = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let served = served.map_err(|error| UserError::new(Exit::Failed, format!("{name}: {error}")))?;
        eprintln!("{name}: {served}");
        Ok(())
    }
}

/// Returns the last line of a server of tests.
fn test_totals(served: ServerTotals) -> String {
    format!(
        "{}, {} aborted or refused, {} turned away",
        counted(served.finished, "test"),
        served.failed,
        counted(served.rejected, "connection")
    )
}

/// Returns the networks of an option.
pub(super) fn client_networks(matches: &ArgMatches, name: &str) -> anyhow::Result<Vec<Network>> {
    let networks = matches.get_many::<String>(name).into_iter().flatten();
    let networks = networks.map(|text| text.parse::<Network>().map_err(|error| fleet_error(&error.into())));
    Ok(networks.collect::<Result<_, _>>()?)
}

/// Returns a filter for the networks of an option; `None` if it was not given.
pub(super) fn client_filter(matches: &ArgMatches, name: &str) -> anyhow::Result<Option<ClientFilter>> {
    let networks = client_networks(matches, name)?;
    if networks.is_empty() {
        return Ok(None);
    }
    let admits = move |address: IpAddr| networks.iter().any(|network| network.contains(address));
    Ok(Some(Arc::new(admits)))
}

/// Returns the limit of a test's rate in bits per second, and the averaging time.
pub(super) fn rate_limit(matches: &ArgMatches, name: &str) -> Result<Option<(u64, Nanos)>, UserError> {
    let Some(text) = matches.get_one::<String>(name) else { return Ok(None) };
    let rate: BitsPerSec = text.parse().map_err(|error| UserError::new(Exit::Usage, format!("--{name}: {error}")))?;
    Ok(Some((rounded(rate.get()), RATE_SPAN)))
}

/// Returns the longest test.
pub(super) fn test_max(matches: &ArgMatches) -> anyhow::Result<Nanos> {
    measurement::duration_option(matches, "longest", Nanos::from_secs(600))
}

/// Returns the error for a host that cannot start another thread.
pub(super) fn thread_error(what: &str, error: &fathom_sys::Error) -> UserError {
    UserError::new(Exit::Preflight, format!("cannot {what}"))
        .with_causes(error)
        .with_line("fix", fathom_fleet::TASK_LIMIT_HINT)
}
