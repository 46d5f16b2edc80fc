//! `iperf3 -c`.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use anyhow::Context as _;
use fathom_engine::StopFlag;
use fathom_interop::iperf3::{
    Client, ClientOptions, Cookie, Error, Login, Padding, TestObserver as _, TransferDirection, TransportProtocol,
};
use fathom_sys::{policy::Policy, process::affinity};

use super::{
    identity::{self, COMPATIBLE_VERSION, FAILED},
    options::{Flag, IpFamily, Options},
    output::Output,
    reporter::{self, TestReporter, error_text},
    text::{ReportSide, TextReport},
};
use crate::{closed_loop, stoppable::run_stoppable};
use fathom_run::{
    allow,
    exit::Exit,
    files::{self, FileReaders},
};

pub(super) fn run(options: &Options, host: &str) -> anyhow::Result<Exit> {
    let servers = match resolve(options, host) {
        Ok(servers) => servers,
        Err(why) => return reporter::refuse(options, &format!("unable to connect to server: {why}"), None),
    };
    // A host that runs an iperf3 server consents to its tests. An address of many hosts is not a server.
    let addresses: Vec<IpAddr> = servers.iter().map(SocketAddr::ip).collect();
    allow::check_single_host(host, &addresses)?;
    let login = match login(options)? {
        Ok(login) => login,
        Err(why) => return reporter::refuse(options, &why, None),
    };
    let mut parameters = options.parameters.clone();
    parameters.version = Some(COMPATIBLE_VERSION.to_owned());
    let asked = ClientOptions {
        // The addresses were checked above, and nothing is resolved again.
        servers: servers.iter().filter_map(|server| Policy::anything().permit(*server).ok()).collect(),
        parameters,
        from: options.bind.as_deref().and_then(|address| address.parse().ok()),
        device: options.device.clone(),
        port: options.client_port,
        connect_timeout: options.connect_timeout,
        keepalive: options.keepalive,
        receive_timeout: options.receive_timeout,
        send_timeout: options.send_timeout,
        interval: options.report_interval(),
        file: options.file.clone(),
        login,
    };
    prepare(options)?;
    let output =
        Output::new(options.logfile.as_deref(), options.timestamps.as_deref()).context("unable to open log file")?;
    // The title is printed before lines of text. In JSON, it is one of the values.
    let title = options.parameters.title.as_deref().filter(|_| !options.flags.has(Flag::Json));
    let mut show = TestReporter::new(options, ReportSide::Client, output.start_test(title));
    show.document.connecting(host, options.port());
    let stop = StopFlag::default();
    let outcome = run_stoppable(&stop, None, || test(options, host, asked, &stop, &mut show))?;
    remove_pidfile(options);
    match outcome {
        Ok(()) => {
            show.finish(None);
            Ok(Exit::Pass)
        }
        Err(error) => {
            show.on_failure(&error);
            if !options.flags.has(Flag::Json) {
                eprintln!("iperf3: {}", error_text(&error));
                error
                    .hint_of(options.parameters.direction == TransferDirection::Both)
                    .into_iter()
                    .for_each(|hint| eprintln!("hint: {hint}"));
            }
            Ok(FAILED)
        }
    }
}

/// Runs one test, from the connect to the last line.
fn test(
    options: &Options,
    host: &str,
    asked: ClientOptions,
    stop: &StopFlag,
    show: &mut TestReporter,
) -> Result<(), Error> {
    let is_verbose = options.flags.has(Flag::Verbose);
    if is_verbose {
        show.print(&[identity::version(), identity::system()]);
    }
    let has_block = asked.parameters.block.0 > 0;
    let carrier = asked.parameters.protocol;
    let connected = Client::connect(asked, Cookie::fresh(), stop);
    if !matches!(connected, Err(Error::Connect { .. })) {
        if let (true, Ok(client)) = (is_verbose, &connected) {
            let beginning = client.start_info();
            show.print(&[format!("Control connection MSS {}", beginning.control_mss)]);
            if carrier == TransportProtocol::Udp && !has_block {
                show.print(&[format!("Setting UDP block size to {}", client.parameters().block.0)]);
            }
        }
        show.print_time();
        show.print(&[format!("Connecting to host {host}, port {}", options.port())]);
        if options.parameters.direction == TransferDirection::Reverse {
            show.print(&[format!("Reverse mode, remote host {host} is sending")]);
        }
    }
    let mut client = connected?;
    client.open_streams()?;
    let outcome = client.run(show)?;
    show.print(&TextReport::closing_lines(&outcome));
    Ok(())
}

fn resolve(options: &Options, host: &str) -> Result<Vec<SocketAddr>, String> {
    let found = (host, options.port()).to_socket_addrs().map_err(|error| closed_loop::c_error_text(&error))?;
    let is_wanted = |address: &SocketAddr| match options.family {
        IpFamily::Any => true,
        IpFamily::V4 => address.is_ipv4(),
        IpFamily::V6 => address.is_ipv6(),
    };
    let servers: Vec<SocketAddr> = found.filter(is_wanted).collect();
    if servers.is_empty() { Err("Address family for hostname not supported".to_owned()) } else { Ok(servers) }
}

/// Returns the login, or an error message about it.
fn login(options: &Options) -> anyhow::Result<Result<Option<Login>, String>> {
    let (Some(user), Some(path)) = (&options.username, &options.public_key) else { return Ok(Ok(None)) };
    let Ok(password) = std::env::var("IPERF3_PASSWORD") else {
        return Ok(Err("the password is expected in the environment, as IPERF3_PASSWORD".to_owned()));
    };
    let pem = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let padding = if options.flags.has(Flag::Pkcs1) { Padding::Pkcs1 } else { Padding::Oaep };
    Ok(Login::new(&pem, (user, &password), padding).map(Some).map_err(|error| error.to_string()))
}

/// Prepares this process for a test: writes the PID file and sets the CPU core.
pub(super) fn prepare(options: &Options) -> anyhow::Result<()> {
    if let Some(path) = &options.pidfile {
        files::write_whole(path, FileReaders::Anyone, |file| Ok(writeln!(file, "{}", std::process::id())?))
            .with_context(|| format!("unable to write PID file {}", path.display()))?;
    }
    if let Some(core) = options.core {
        affinity::pin_thread(core).context("unable to set CPU affinity")?;
    }
    Ok(())
}

pub(super) fn remove_pidfile(options: &Options) {
    if let Some(path) = &options.pidfile {
        // If the file is already gone, nothing is left to do.
        let _ = std::fs::remove_file(path);
    }
}
