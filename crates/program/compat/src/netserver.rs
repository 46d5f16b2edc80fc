//! Drop-in for netserver: it serves netperf clients in the background, or with `-D` in the foreground.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fathom_engine::StopFlag;
use fathom_interop::netperf::{Error, NetserverOptions, PORT, Server};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{signal, threads},
};

use crate::{
    closed_loop, daemon,
    getopt::{GetoptDialect, GetoptSyntax, ParsedWord},
};
use fathom_run::{allow::AllowList, exit::Exit};

/// netserver's exit code for whatever goes wrong.
const FAILED: Exit = Exit::Code(1);
/// The interval between two checks for a signal.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(50);

const SYNTAX: GetoptSyntax = GetoptSyntax { shorts: "DdfhL:n:Np:v:VZ:46", longs: &[], dialect: GetoptDialect::Gnu };

const USAGE: &str = "\
Usage: netserver [options]

Options:
    -D                Stay in the foreground
    -h                Show this text
    -L name,family    The address to listen on
    -p port           The port to listen on (12865)
    -V                Show the version
    -Z passphrase     Serve only clients that send this first
    -4, -6            Listen on IPv4 or IPv6 alone
    -d, -f, -n, -N, -v   without effect here
";

/// The options of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    address: Option<IpAddr>,
    /// Whether the address is one of IPv6; `None` for both families.
    is_v6: Option<bool>,
    port: u16,
    passphrase: Option<String>,
    stays: bool,
}

/// Runs it with netserver's own arguments.
pub(super) fn run(words: &[String], _allowed: &AllowList) -> anyhow::Result<Exit> {
    let mut options = Options { address: None, is_v6: None, port: PORT, passphrase: None, stays: false };
    for item in SYNTAX.parse(words) {
        let (letter, value) = match item {
            ParsedWord::Option(letter, value) => (letter, value.unwrap_or_default()),
            ParsedWord::Operand(_) => continue,
            ParsedWord::Error(_) => ('h', String::new()),
        };
        match letter {
            'h' => {
                closed_loop::print_now(USAGE)?;
                return Ok(FAILED);
            }
            'V' => {
                closed_loop::print_now(&format!("Netperf version 2.7.0 ({})\n", fathom_run::registry::TOOL))?;
                return Ok(Exit::Pass);
            }
            'D' => options.stays = true,
            'Z' => options.passphrase = Some(value),
            '4' => options.is_v6 = Some(false),
            '6' => options.is_v6 = Some(true),
            'p' => match value.parse() {
                Ok(port) => options.port = port,
                Err(_) => return Ok(fail(&format!("`{value}` is no port"))),
            },
            'L' => match value.split(',').next().unwrap_or_default().parse() {
                Ok(address) => options.address = Some(address),
                Err(_) => return Ok(fail(&format!("`{value}` is no address of this host (-L)"))),
            },
            _ => {}
        }
    }
    serve(&options)
}

fn fail(why: &str) -> Exit {
    eprintln!("netserver: {why}");
    FAILED
}

fn serve(options: &Options) -> anyhow::Result<Exit> {
    let server = match bind(options) {
        Ok(server) => server,
        Err(error) => {
            let text = format!("Unable to start netserver with port {}: {error}", options.port);
            return Ok(fail(&text));
        }
    };
    if !daemon::is_detached() {
        let host = options.address.map_or_else(|| "IN(6)ADDR_ANY".to_owned(), |address| address.to_string());
        let family = match options.is_v6 {
            None => "AF_UNSPEC",
            Some(false) => "AF_INET",
            Some(true) => "AF_INET6",
        };
        let port = server.address().port();
        closed_loop::print_now(&format!("Starting netserver with host '{host}' port '{port}' and family {family}\n"))?;
        if !options.stays {
            drop(server);
            return daemon::detach();
        }
    }
    let signals = signal::watch()?;
    let stop = StopFlag::default();
    let told = stop.clone();
    let serving = threads::start("server", move || server.run(&told))?;
    while !serving.is_finished() && signals.wait_until(clock::now() + SIGNAL_CHECK_EVERY)?.is_none() {}
    stop.finish();
    match serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
        Ok(_) => Ok(signals.received().map_or(Exit::Pass, Exit::Signalled)),
        Err(error) => Ok(fail(&error.to_string())),
    }
}

/// Listens on the requested address, or else on all addresses of both families.
fn bind(options: &Options) -> Result<Server, Error> {
    let settings = NetserverOptions { passphrase: options.passphrase.clone(), ..NetserverOptions::default() };
    let listen = |ip| Server::bind(SocketAddr::new(ip, options.port), settings.clone());
    listen(match (options.address, options.is_v6) {
        (Some(ip), _) => ip,
        (None, Some(false)) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (None, Some(true)) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        (None, None) => fathom_interop::any_address(),
    })
}
