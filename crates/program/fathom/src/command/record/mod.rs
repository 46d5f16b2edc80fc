//! `fathom record`: a proxy that writes what a browser does as a scenario.

mod authority;
mod output;

use std::{
    io::{self, Write as _},
    net::{SocketAddr, TcpListener},
    path::PathBuf,
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fathom_http::host_names::HostNames;
use fathom_model::units::Nanos;
use fathom_record::{Proxy, ProxyError, ProxySettings, Recording, RecordingCounts, Verification};
use fathom_sys::{clock, policy::Network, process::signal};

use self::{authority::KeptAuthority, output::RecordingFiles};
use super::scenario_files::Overwriting;
use fathom_run::{
    exit::{Exit, UserError},
    hosts::fleet_error,
};

const EXAMPLES: &str = "\
Examples:
  fathom record -o shop.scenario                    until ctrl-C; the proxy is 127.0.0.1:8888
  fathom record -o shop.scenario --host shop.test   other hosts are not recorded
  fathom record --listen 192.0.2.7:8888 --from 192.0.2.20 -o phone.scenario
  fathom record ca                                  what the browser has to trust, and how
  fathom app try shop.scenario

Beside the scenario are shop.har with everything that was said, secrets too, and shop-secrets.csv with
passwords and credentials. Only you may read these two. See docs/record.md.";

/// The usual port of recording proxies.
const LISTEN: &str = "127.0.0.1:8888";
/// How often signals and pauses are looked for.
const LOOK_EVERY: Nanos = Nanos::from_millis(200);
/// A pause after which the files are written.
const PAUSE: Nanos = Nanos::from_secs(1);
/// Traffic without a pause is written anyway.
const WRITE_EVERY: Nanos = Nanos::from_secs(15);

pub(super) fn define(command: Command) -> Command {
    let many = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).action(ArgAction::Append).help(help)
    };
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue).help(help);
    command
        .args_conflicts_with_subcommands(true)
        .subcommand(authority::define(Command::new("ca").about("Where the certificate is, and how clients trust it")))
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("ADDRESS:PORT")
                .default_value(LISTEN)
                .value_parser(value_parser!(SocketAddr))
                .help("listen here"),
        )
        .arg(many("from", "CIDR", "serve these addresses only; needed to listen on an address that others reach"))
        .arg(
            Arg::new("out")
                .short('o')
                .long("output")
                .value_name("SCENARIO")
                .value_parser(value_parser!(PathBuf))
                .help("write the scenario here [default: recorded-DATE-TIME.scenario]"),
        )
        .arg(many("host", "HOST", "record this host and its subdomains only"))
        .arg(flag("assets", "keep pictures, styles, scripts and fonts in the scenario"))
        .arg(flag("insecure", "do not verify the certificates of servers"))
        .arg(Overwriting::option())
        .after_help(EXAMPLES)
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    if let Some(("ca", given)) = matches.subcommand() {
        return authority::run(given);
    }
    let signals = signal::watch()?;
    let listen = *matches.get_one::<SocketAddr>("listen").expect("it has a default");
    let settings = settings(matches, listen)?;
    let mut files = RecordingFiles::new(matches, settings.verification)?;
    let kept = KeptAuthority::find()?;
    let authority = kept.load()?;
    let listener = TcpListener::bind(listen).map_err(|error| listen_error(listen, &error))?;
    let bound = listener.local_addr().context("cannot find out the bound port")?;
    if settings.verification == Verification::Skipped {
        eprintln!(
            "the certificates of servers are not verified (--insecure): anybody between here and them can read along"
        );
    }
    let proxy = Proxy::start(listener, authority, settings).map_err(|error| start_error(&error))?;
    print_lines(bound, &kept, &files)?;
    let mut last_written = clock::now();
    while signals.wait_until(clock::now() + LOOK_EVERY)?.is_none() && !proxy.has_ended() {
        let recording = proxy.recording();
        print_notices(recording);
        let now = clock::now();
        let is_quiet = recording.last_traffic().is_none_or(|last| now.since(last) >= PAUSE);
        if files.are_behind(recording) && (is_quiet || now.since(last_written) >= WRITE_EVERY) {
            last_written = now;
            match files.write(recording) {
                Ok(line) => eprintln!("{line}"),
                // The disk may have room again at the end.
                Err(error) => eprintln!("{}", error.one_line()),
            }
        }
    }
    let recording = proxy.stop();
    print_notices(&recording);
    if files.are_behind(&recording) {
        eprintln!("{}", files.write(&recording)?);
    }
    print_end(&recording, &files);
    Ok(signals.received().map_or(Exit::Failed, Exit::Signalled))
}

/// Reads what the proxy may do, and refuses to be a relay for everybody.
fn settings(matches: &ArgMatches, listen: SocketAddr) -> anyhow::Result<ProxySettings> {
    let words = |name: &str| matches.get_many::<String>(name).into_iter().flatten();
    let clients = words("from").map(|text| text.parse::<Network>().map_err(|error| fleet_error(&error.into())));
    let clients: Vec<Network> = clients.collect::<Result<_, _>>()?;
    if !listen.ip().is_loopback() && clients.is_empty() {
        return Err(UserError::new(Exit::Usage, format!("others reach {listen}, and a proxy sends what they ask for"))
            .with_line("use", "--from ADDRESS with the addresses that may use it, or --listen 127.0.0.1:8888")
            .into());
    }
    let verification = if matches.get_flag("insecure") { Verification::Skipped } else { Verification::Checked };
    Ok(ProxySettings { hosts: HostNames::new(words("host").map(String::as_str)), clients, verification })
}

fn print_lines(bound: SocketAddr, kept: &KeptAuthority, files: &RecordingFiles) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "proxy        http://{bound}")?;
    writeln!(out, "certificate  {}", kept.certificate.display())?;
    writeln!(out, "scenario     {}", files.scenario.display())?;
    writeln!(out, "HAR          {}  (has secrets: only you may read it)", files.har.display())?;
    out.flush()?;
    eprintln!("for https, the browser has to trust the certificate: fathom record ca. Ctrl-C ends the recording");
    Ok(())
}

fn print_notices(recording: &Recording) {
    for notice in recording.take_notices() {
        eprintln!("{notice}");
    }
}

/// Tells what is not in the files, by its reason.
fn print_end(recording: &Recording, files: &RecordingFiles) {
    let counts = recording.counts();
    if counts.n_requests + counts.n_failed == 0 {
        eprintln!("nothing was recorded, and no file was written");
    }
    let RecordingCounts { n_failed, n_unrecorded, n_of_other_hosts, n_cut_bodies, n_upgrades, .. } = counts;
    let RecordingCounts { n_passed_tunnels, n_failed_tunnels, n_turned_away, .. } = counts;
    let rows = [
        (n_failed, "without an answer"),
        (n_unrecorded, "not recorded, because the recording was full"),
        (n_of_other_hosts, "to other hosts, not recorded (--host)"),
        (n_cut_bodies, "bodies too long to be kept"),
        (n_upgrades, "WebSockets and other upgrades, whose messages are not recorded"),
        (n_passed_tunnels, "tunnels passed on unseen"),
        (n_failed_tunnels, "tunnels that failed"),
        (n_turned_away, if n_turned_away == 1 { "connection turned away" } else { "connections turned away" }),
    ];
    for (n, what) in rows.into_iter().filter(|(n, _)| *n > 0) {
        eprintln!("{n:>6}  {what}");
    }
    if files.has_scenario {
        eprintln!("next: fathom app try {}", files.scenario.display());
    }
}

fn start_error(error: &ProxyError) -> UserError {
    UserError::new(Exit::Preflight, "the recorder cannot start").with_causes(error)
}

fn listen_error(address: SocketAddr, error: &io::Error) -> UserError {
    let refused =
        UserError::new(Exit::Preflight, format!("cannot listen on {address}")).with_line("why", error.to_string());
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            refused.with_line("fix", "choose another port with --listen, or stop the program there")
        }
        io::ErrorKind::AddrNotAvailable => refused.with_line("fix", "--listen takes an address of this machine"),
        _ => refused,
    }
}
