//! `fathom serve`: makes this host a target for users who have the key.

mod http;
mod http_xdp;
mod identity;
mod iperf;
mod iperf3;
mod netperf;
mod tool;

use std::{
    fs::File,
    io,
    io::Write as _,
    net::{IpAddr, SocketAddr, TcpListener},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command as Program, Stdio},
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_engine::StopFlag;
use fathom_fleet::tls::{ControllerHandler, Identity, RefusalCounts, Server, ServerLimits};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    policy::Network,
    process::{self, ParentBond, ProcessPlace, ProcessSpec, own_program, signal},
    socket::are_connections_filtered,
};

use self::{
    http::{HttpResponders, RunningResponders},
    identity::IDENTITY,
    iperf::IPERF,
    iperf3::IPERF3,
    netperf::NETPERF,
    tool::{ListeningTool, RunningTool, ServedTool},
};
use super::measurement::{self, AGENT_PORT};
use fathom_run::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
    hosts::fleet_error,
};

const EXAMPLES: &str = "\
Examples:
  fathom serve                                      until ctrl-C; prints a key
  fathom serve --key-file ~/.fathom-key --for 8h    the same key at every start
  fathom serve --http-port 0                        no HTTP responder
  fathom serve --only http                          an HTTP responder and nothing else
  fathom serve --only http --http-delay 'exponential 2ms' --http-stall 200ms/1s
  fathom serve --only http --http-statuses 200:95%,404:4%,503:1% --http-tls
  fathom serve --only http --http-xdp eth1 --http-xdp-from 10.0.0.0/8       answers in the driver
  fathom serve --only iperf3 --iperf3-rate 10G --iperf3-from 10.0.0.0/8
  fathom serve --iperf --iperf-from 10.0.0.0/8      iperf 2 too, for these addresses
  fathom serve --only netperf --netperf-from 10.0.0.0/8
  fathom serve --only identity --identity-name t1   a target behind a device that spreads

The delay of an answer begins when the whole request has been read; no answer leaves earlier.
Statuses follow each other evenly, not at random: after every answer the count of each is within one of its share, \
per thread.
Stalls stop all threads at once; the first begins one period after the start.";

/// The tools whose clients may be served.
const TOOLS: [&ServedTool; 4] = [&IPERF3, &IPERF, &NETPERF, &IDENTITY];
/// The longest time until the end is noticed if only the responder runs.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(50);

pub(super) fn define(command: Command) -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    command
        .arg(
            text("listen", "ADDRESS", "address to listen on")
                .default_value("0.0.0.0")
                .value_parser(clap::value_parser!(IpAddr)),
        )
        .arg(text("port", "PORT", "port for controllers (TLS) [default: 7700]").value_parser(clap::value_parser!(u16)))
        .arg(
            text("only", "WHAT", "serve nothing else: agents, http, iperf3, iperf, netperf, or identity")
                .value_parser(["agents", "http", "iperf3", "iperf", "netperf", "identity"]),
        )
        .arg(
            text("key-file", "FILE", "keep the certificate and the token here")
                .value_parser(clap::value_parser!(PathBuf)),
        )
        .arg(text("allow", "CIDR", "where else controllers may make this host send").action(ArgAction::Append))
        .arg(
            text("controllers", "N", "the most controllers at once")
                .default_value("8")
                .value_parser(clap::value_parser!(u16).range(1..=1000)),
        )
        .arg(text("longest", "TIME", "refuse trials that take longer").default_value("10min"))
        .arg(text("for", "TIME", "stop after this time [default: never]"))
        .args(http::arguments())
        .args(TOOLS.iter().flat_map(|tool| (tool.arguments)()))
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let signals = signal::watch()?;
    let deadline = match matches.get_one::<String>("for") {
        Some(_) => clock::now() + measurement::duration_option(matches, "for", Nanos::MAX)?,
        None => Nanos::MAX,
    };
    let servers = Listeners::open(matches)?;
    servers.print_lines()?;
    let only = matches.get_one::<String>("only").map(String::as_str);
    let stop = StopFlag::default();
    let answering = servers.http.map(|http| http.start(&stop)).transpose()?;
    let started = servers.tools.into_iter().map(|(tool, server)| tool.start(server, &stop));
    let tools: Vec<RunningTool> = started.collect::<Result<_, _>>()?;
    let has_failed = |only: &str| {
        (only == "http" && answering.as_ref().is_some_and(RunningResponders::has_failed))
            || tools.iter().any(|tool| tool.has_failed(only))
    };
    let is_over = || signals.received().is_some() || clock::now() >= deadline || only.is_some_and(has_failed);
    let outcome = if let Some(agents) = servers.agents {
        agents.serve_controllers(&is_over)
    } else {
        while !is_over() {
            clock::sleep_until(deadline.min(clock::now() + STOP_CHECK_EVERY));
        }
        Ok(())
    };
    stop.finish();
    let answered = answering.map_or(Ok(()), RunningResponders::join);
    // All are joined, whichever fails.
    let served: Vec<anyhow::Result<()>> = tools.into_iter().map(RunningTool::join).collect();
    outcome.and(answered).and(served.into_iter().collect::<anyhow::Result<()>>())?;
    Ok(signals.received().map_or(Exit::Pass, Exit::Signalled))
}

/// All that listens.
struct Listeners {
    agents: Option<ControllerListener>,
    http: Option<HttpResponders>,
    tools: Vec<(&'static ServedTool, ListeningTool)>,
}

impl Listeners {
    /// Listens as the options say. Errors in options are reported before anything listens.
    fn open(matches: &ArgMatches) -> anyhow::Result<Self> {
        let address = *matches.get_one::<IpAddr>("listen").expect("it has a default");
        let options = http::options(matches)?;
        TOOLS.iter().try_for_each(|tool| tool.check(matches))?;
        let only = matches.get_one::<String>("only").map(String::as_str);
        let serves = |what| only.is_none_or(|only| only == what);
        let agents = if serves("agents") { Some(ControllerListener::listen(matches, address)?) } else { None };
        let http = if serves("http") { Some(HttpResponders::listen(matches, address, options)?) } else { None };
        let mut tools = Vec::new();
        for tool in TOOLS.iter().filter(|tool| serves(tool.name)) {
            tools.extend(tool.listen(matches, address)?.map(|server| (*tool, server)));
        }
        if agents.is_none() && tools.is_empty() && http.as_ref().is_none_or(HttpResponders::is_empty) {
            let fix =
                "give --http-port another port than 0, --http-unix a path, --iperf3, --iperf, --netperf, or --identity";
            return Err(UserError::new(Exit::Usage, "nothing is left to serve").with_line("fix", fix).into());
        }
        Ok(Self { agents, http, tools })
    }

    fn print_lines(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let agents = self.agents.iter().flat_map(ControllerListener::lines);
        let http = self.http.iter().flat_map(HttpResponders::listening_lines);
        for line in agents.chain(http).chain(self.tools.iter().map(|(tool, server)| tool.line(server))) {
            writeln!(out, "{line}")?;
        }
        out.flush()
    }
}

/// The listener for controllers, which must have the key.
struct ControllerListener {
    server: Server,
    listener: TcpListener,
    identity: Identity,
    agents: AgentLauncher,
    bound: SocketAddr,
}

impl ControllerListener {
    fn listen(matches: &ArgMatches, address: IpAddr) -> anyhow::Result<Self> {
        let port = matches.get_one::<u16>("port").copied().unwrap_or(AGENT_PORT);
        let identity = identity(matches.get_one::<PathBuf>("key-file").map(PathBuf::as_path))?;
        let limits = ServerLimits {
            controllers: matches.get_one::<u16>("controllers").copied().map_or(8, usize::from),
            ..ServerLimits::default()
        };
        let agents = AgentLauncher::of(matches)?;
        let server = Server::new(&identity, limits).map_err(|error| fleet_error(&error))?;
        let listener =
            TcpListener::bind((address, port)).map_err(|error| listen_error(SocketAddr::new(address, port), &error))?;
        let bound = listener.local_addr().context("cannot find out the bound port")?;
        Ok(Self { server, listener, identity, agents, bound })
    }

    fn lines(&self) -> [String; 2] {
        [format!("key     {}", self.identity.key()), format!("agents  {}", self.bound)]
    }

    /// Serves controllers until the end.
    fn serve_controllers(self, is_over: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let port = self.bound.port();
        if !are_connections_filtered().unwrap_or(true) {
            eprintln!(
                "without CAP_NET_ADMIN this kernel filters no TCP port: tests here accept connections of strangers and reset them at once"
            );
        }
        eprintln!(
            "on the other machine: fathom evaluate ADDRESS{} --key KEY",
            if port == AGENT_PORT { String::new() } else { format!(":{port}") }
        );
        let outcome = self.server.run(&self.listener, is_over, self.agents);
        outcome.map_err(|error| fleet_error(&error).into())
    }
}

fn listen_error(address: SocketAddr, error: &io::Error) -> UserError {
    let user_error =
        UserError::new(Exit::Preflight, format!("cannot listen on {address}")).with_line("why", error.to_string());
    match error.kind() {
        io::ErrorKind::AddrInUse => user_error
            .with_line("fix", "choose another port with --port or --http-port, or stop the program that listens there"),
        io::ErrorKind::AddrNotAvailable => user_error.with_line("fix", "--listen takes an address of this machine"),
        _ => user_error,
    }
}

/// Returns the certificate and the token: from the file, newly generated and saved to the file, or generated for this start
/// only.
fn identity(path: Option<&Path>) -> anyhow::Result<Identity> {
    let new = || Identity::generate().map_err(|error| fleet_error(&error));
    let Some(path) = path else { return Ok(new()?) };
    if !path.exists() {
        let identity = new()?;
        files::write_whole(path, FileReaders::Owner, |out| Ok(out.write_all(identity.to_secret_text().as_bytes())?))?;
        return Ok(identity);
    }
    let text = files::read_text(path, measurement::KEY_FILE_MAX)?;
    Ok(Identity::parse(&text).map_err(|error| fleet_error(&error).with_line("in", path.display().to_string()))?)
}

/// Starts an agent for each controller.
struct AgentLauncher {
    arguments: Vec<String>,
    /// The file in which agents see each other. It has no name, only a descriptor.
    _role_log: File,
}

impl AgentLauncher {
    fn of(matches: &ArgMatches) -> anyhow::Result<Self> {
        let longest = measurement::duration_option(matches, "longest", Nanos::from_secs(600))?;
        let mut arguments = vec!["agent".to_owned(), "--stdio".to_owned(), "--longest".to_owned(), longest.exact()];
        for network in matches.get_many::<String>("allow").into_iter().flatten() {
            // Checked here, so that an invalid value is reported to the user who typed it.
            network.parse::<Network>().map_err(|error| fleet_error(&error.into()))?;
            arguments.extend(["--allow".to_owned(), network.clone()]);
        }
        let roster = process::shared_file()?;
        arguments.extend(["--roster".to_owned(), format!("/dev/fd/{}", roster.as_raw_fd())]);
        Ok(Self { arguments, _role_log: roster })
    }

    fn start(&self, peer: SocketAddr, stream: UnixStream) -> anyhow::Result<()> {
        let output = stream.try_clone()?;
        let mut command = Program::new(own_program::path());
        command.args(&self.arguments).args(["--only", &peer.ip().to_canonical().to_string()]);
        command.stdin(OwnedFd::from(stream)).stdout(OwnedFd::from(output)).stderr(Stdio::inherit());
        let mut agent = ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn()?;
        agent.wait()?;
        Ok(())
    }
}

impl ControllerHandler for AgentLauncher {
    /// Runs an agent for one controller, which may send to that controller. Returns when the agent has ended.
    fn serve(&self, controller: SocketAddr, stream: UnixStream) {
        if let Err(error) = self.start(controller, stream) {
            eprintln!("fathom serve: no agent for {controller}: {error:#}");
        }
    }

    fn refused(&self, refusals: &RefusalCounts) {
        eprintln!("fathom serve: {refusals}");
    }
}
