//! `iperf3 -s`, and the text that `fathom serve --iperf3` sends to clients that request it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context as _;
use fathom_engine::StopFlag;
use fathom_interop::iperf3::{
    Authenticator, Error, Interval, Iperf3Outcome, Padding, SKEW_SECS, Server, ServerOptions, ServerOutput, Stream,
    TestObserver, TestStartInfo,
};
use fathom_model::units::Nanos;

use super::{
    client::{prepare, remove_pidfile},
    identity::{self, FAILED},
    options::{Flag, IpFamily, Options},
    output::Output,
    reporter::{self, TestReporter, error_text},
    text::ReportSide,
};
use crate::{daemon, stoppable::run_stoppable};
use fathom_run::exit::Exit;

const RULE: &str = "-----------------------------------------------------------";

/// A test below a server's banner. The next banner follows after it.
struct ServerTest {
    show: Option<TestReporter>,
    server: Arc<SharedServerState>,
}

/// The state shared by all tests of a server.
struct SharedServerState {
    options: Options,
    output: Output,
    port: u16,
    n_tests: AtomicU64,
}

impl SharedServerState {
    /// Prints that the server is listening for its next test.
    fn banner(&self) {
        let n = self.n_tests.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.options.flags.has(Flag::Json) {
            self.output.print(&format!("{RULE}\nServer listening on {} (test #{n})\n{RULE}\n", self.port));
        }
    }
}

impl TestObserver for ServerTest {
    fn on_start(&mut self, beginning: &TestStartInfo, streams: &[Stream]) {
        self.show.iter_mut().for_each(|show| show.on_start(beginning, streams));
    }

    fn on_interval(&mut self, interval: &Interval) {
        self.show.iter_mut().for_each(|show| show.on_interval(interval));
    }

    fn on_end(&mut self, outcome: &Iperf3Outcome) {
        self.show.iter_mut().for_each(|show| show.on_end(outcome));
    }

    fn take_output(&mut self) -> Option<ServerOutput> {
        self.show.as_mut()?.take_output()
    }

    fn on_failure(&mut self, error: &Error) {
        self.show.iter_mut().for_each(|show| show.on_failure(error));
    }
}

impl Drop for ServerTest {
    fn drop(&mut self) {
        drop(self.show.take());
        if !self.server.options.flags.has(Flag::OneOff) {
            self.server.banner();
        }
    }
}

/// Runs a server until it is stopped.
pub(super) fn run(options: &Options) -> anyhow::Result<Exit> {
    let doorkeeper = match authenticator(options)? {
        Ok(doorkeeper) => doorkeeper,
        Err(why) => return reporter::refuse(options, &why, None),
    };
    let settings = ServerOptions {
        clients: if options.flags.has(Flag::OneAtATime) { 1 } else { ServerOptions::default().clients },
        tests: options.flags.has(Flag::OneOff).then_some(1),
        idle: options.idle_secs.filter(|_| options.flags.has(Flag::OneOff)).map(Nanos::from_secs),
        rate: options.rate_limit,
        test_secs_max: options.longest_secs.filter(|secs| *secs > 0),
        authenticator: doorkeeper.map(Arc::new),
        interval: options.report_interval(),
        receive_timeout: options.receive_timeout.unwrap_or(ServerOptions::default().receive_timeout),
        core: options.core,
        file: options.file.clone(),
        ..ServerOptions::default()
    };
    let server = match bind(options, &settings) {
        Ok(server) => server,
        Err(error) => return reporter::refuse(options, &error.to_string(), error.hint()),
    };
    if options.flags.has(Flag::Daemon) && !daemon::is_detached() {
        // By now, errors in the options or the port have been reported to the terminal.
        drop(server);
        return daemon::detach();
    }
    prepare(options)?;
    let output =
        Output::new(options.logfile.as_deref(), options.timestamps.as_deref()).context("unable to open log file")?;
    let port = server.address().port();
    let state = Arc::new(SharedServerState { options: options.clone(), output, port, n_tests: AtomicU64::new(0) });
    if options.flags.has(Flag::Verbose) && !options.flags.has(Flag::Json) {
        state.output.print(&format!("{}\n{}\n", identity::version(), identity::system()));
    }
    state.banner();
    let stop = StopFlag::default();
    let served = run_stoppable(&stop, None, || {
        server.run(&stop, &|| {
            let show = TestReporter::new(&state.options, ReportSide::Server, state.output.start_test(None));
            Box::new(ServerTest { show: Some(show), server: state.clone() })
        })
    })?;
    remove_pidfile(options);
    match served {
        Ok(_) if stop.state() != fathom_engine::Stop::Continue => {
            eprintln!("iperf3: interrupt - the server has terminated");
            Ok(FAILED)
        }
        Ok(_) => Ok(Exit::Pass),
        Err(error) => {
            eprintln!("iperf3: {}", error_text(&error));
            Ok(FAILED)
        }
    }
}

/// Listens on the requested address, or else on all addresses of both families.
fn bind(options: &Options, settings: &ServerOptions) -> Result<Server, Error> {
    let listen = |ip| Server::bind(SocketAddr::new(ip, options.port()), options.device.as_deref(), settings.clone());
    match (options.bind.as_deref().map(str::parse::<IpAddr>), options.family) {
        (Some(Ok(ip)), _) => listen(ip),
        (Some(Err(_)), _) => {
            let cause = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            Err(Error::Listen { cause })
        }
        (None, IpFamily::V4) => listen(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        (None, IpFamily::V6) => listen(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        (None, IpFamily::Any) => listen(fathom_interop::any_address()),
    }
}

/// Returns the authenticator for logins, or an error message about the files.
fn authenticator(options: &Options) -> anyhow::Result<Result<Option<Authenticator>, String>> {
    let (Some(key), Some(users)) = (&options.private_key, &options.users) else { return Ok(Ok(None)) };
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
    };
    let padding = if options.flags.has(Flag::Pkcs1) { Padding::Pkcs1 } else { Padding::Oaep };
    let skew = options.skew_secs.unwrap_or(SKEW_SECS);
    Ok(Authenticator::new(&read(key)?, &read(users)?, skew, padding).map(Some).map_err(|error| error.to_string()))
}
