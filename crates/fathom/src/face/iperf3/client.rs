//! `iperf3 -c`.

use std::{
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::Context as _;
use fathom_engine::StopFlag;
use fathom_model::units::Nanos;
use fathom_sys::{affinity, clock, policy::Policy, signal, threads};
use fathom_transport::iperf3::{Asked, Carrier, Client, Cookie, Error, Login, Padding, Watch as _, Way};

use super::{
    FAILED, LIKE,
    options::{Family, Mark, Options},
    output::Output,
    show::{Show, said},
    text::{End, Text},
};
use crate::{
    allow,
    exit::Exit,
    face::load,
    files::{self, Readers},
};

/// How soon a signal is passed on.
const TURN: Nanos = Nanos::from_millis(50);

/// Runs a client.
pub(super) fn run(options: &Options, host: &str) -> anyhow::Result<Exit> {
    let servers = match resolve(options, host) {
        Ok(servers) => servers,
        Err(why) => return super::refuse(options, &format!("unable to connect to server: {why}"), None),
    };
    // Who runs such a server has consented to its tests; an address of many hosts is no server.
    let addresses: Vec<IpAddr> = servers.iter().map(SocketAddr::ip).collect();
    allow::check_single(host, &addresses)?;
    let login = match login(options)? {
        Ok(login) => login,
        Err(why) => return super::refuse(options, &why, None),
    };
    let mut parameters = options.parameters.clone();
    parameters.version = Some(LIKE.to_owned());
    let asked = Asked {
        // Asked for above; nothing is looked up again.
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
    // A title stands before lines of text; the JSON has it among its values.
    let title = options.parameters.title.as_deref().filter(|_| !options.marks.has(Mark::Json));
    let mut show = Show::new(options, End::Client, output.guest(title));
    show.document.connecting(host, options.port());
    let stop = StopFlag::default();
    let outcome = watched(&stop, || test(options, host, (asked, &stop), &mut show))?;
    remove_pidfile(options);
    match outcome {
        Ok(()) => {
            show.conclude(None);
            Ok(Exit::Pass)
        }
        Err(error) => {
            show.failed(&error);
            if !options.marks.has(Mark::Json) {
                eprintln!("iperf3: {}", said(&error));
                error.hint_of(options.parameters.way).into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            }
            Ok(FAILED)
        }
    }
}

/// One test from the connect to the last line.
fn test(options: &Options, host: &str, (asked, stop): (Asked, &StopFlag), show: &mut Show) -> Result<(), Error> {
    let is_verbose = options.marks.has(Mark::Verbose);
    if is_verbose {
        show.say(&[super::version(), super::system()]);
    }
    let has_block = asked.parameters.block.0 > 0;
    let carrier = asked.parameters.carrier;
    let connected = Client::connect(asked, Cookie::fresh(), stop);
    if !matches!(connected, Err(Error::Connect { .. })) {
        if let (true, Ok(client)) = (is_verbose, &connected) {
            let beginning = client.beginning();
            show.say(&[format!("Control connection MSS {}", beginning.control_mss)]);
            if carrier == Carrier::Udp && !has_block {
                show.say(&[format!("Setting UDP block size to {}", client.parameters().block.0)]);
            }
        }
        show.say_time();
        show.say(&[format!("Connecting to host {host}, port {}", options.port())]);
        if options.parameters.way == Way::Reverse {
            show.say(&[format!("Reverse mode, remote host {host} is sending")]);
        }
    }
    let mut client = connected?;
    client.open_streams()?;
    let outcome = client.run(show)?;
    show.say(&Text::farewell(&outcome));
    Ok(())
}

/// Runs something while signals tell it to stop.
pub(super) fn watched<T: Send>(stop: &StopFlag, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
    // A shell starts the background jobs of a script with SIGINT ignored, and iperf3 ends by it all the same.
    let signals = signal::watch_also_ignored()?;
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = threads::start_within(scope, || {
            let result = work();
            is_done.store(true, Ordering::Release);
            result
        })?;
        while !is_done.load(Ordering::Acquire) && !worker.is_finished() {
            if let Ok(Some(_)) = signals.wait_until(clock::now() + TURN) {
                stop.abort();
                // From here on there is nothing to wait for but the end.
                break;
            }
        }
        Ok(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn resolve(options: &Options, host: &str) -> Result<Vec<SocketAddr>, String> {
    let found = (host, options.port()).to_socket_addrs().map_err(|error| load::words(&error))?;
    let is_wanted = |address: &SocketAddr| match options.family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    };
    let servers: Vec<SocketAddr> = found.filter(is_wanted).collect();
    if servers.is_empty() { Err("Address family for hostname not supported".to_owned()) } else { Ok(servers) }
}

/// The login, or what is wrong with it.
fn login(options: &Options) -> anyhow::Result<Result<Option<Login>, String>> {
    let (Some(user), Some(path)) = (&options.username, &options.public_key) else { return Ok(Ok(None)) };
    let Ok(password) = std::env::var("IPERF3_PASSWORD") else {
        return Ok(Err("the password is expected in the environment, as IPERF3_PASSWORD".to_owned()));
    };
    let pem = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let padding = if options.marks.has(Mark::Pkcs1) { Padding::Pkcs1 } else { Padding::Oaep };
    Ok(Login::new(&pem, (user, &password), padding).map(Some).map_err(|error| error.to_string()))
}

/// What is done to this process before a test: a file that names it, the core that it runs on.
pub(super) fn prepare(options: &Options) -> anyhow::Result<()> {
    if let Some(path) = &options.pidfile {
        files::write_whole(path, Readers::Anyone, |file| Ok(writeln!(file, "{}", std::process::id())?))
            .with_context(|| format!("unable to write PID file {}", path.display()))?;
    }
    if let Some(core) = options.core {
        affinity::pin_thread(core).context("unable to set CPU affinity")?;
    }
    Ok(())
}

pub(super) fn remove_pidfile(options: &Options) {
    if let Some(path) = &options.pidfile {
        // A file that is gone already is as it should be.
        let _ = std::fs::remove_file(path);
    }
}
