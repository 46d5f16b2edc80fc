//! The netperf server of `fathom serve`: its options and limits.

use std::net::SocketAddr;

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use fathom_interop::netperf::{NetserverOptions, PORT, Server};

use super::tool::{ListeningTool, ServedTool, client_filter, rate_limit, test_max};

pub(super) const NETPERF: ServedTool = ServedTool {
    name: "netperf",
    port: PORT,
    port_text: "12865",
    options: &["netperf-clients", "netperf-rate", "netperf-from", "netperf-passphrase"],
    arguments,
    bind,
};

/// Returns the options of the server, under their own heading.
fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let arguments = vec![
        NETPERF.port_argument("serve netperf clients [default port: 12865]"),
        text("netperf-clients", "N", "the most netperf clients at once")
            .default_value("512")
            .value_parser(value_parser!(u16).range(1..=4096)),
        text("netperf-rate", "BITS/S", "limit the rate of each test; abort those of faster clients after 5 s"),
        text("netperf-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        text("netperf-passphrase", "TEXT", "serve only clients that send this first (netperf -Z)"),
    ];
    arguments.into_iter().map(|argument| argument.help_heading("netperf server")).collect()
}

/// Listens as the options say.
fn bind(matches: &ArgMatches, at: SocketAddr) -> anyhow::Result<ListeningTool> {
    let options = NetserverOptions {
        clients: matches.get_one::<u16>("netperf-clients").copied().map_or(512, usize::from),
        rate: rate_limit(matches, "netperf-rate")?,
        test_secs_max: Some(u32::try_from(test_max(matches)?.0 / 1_000_000_000).unwrap_or(u32::MAX)),
        is_client_allowed: client_filter(matches, "netperf-from")?,
        passphrase: matches.get_one::<String>("netperf-passphrase").cloned(),
        ..NetserverOptions::default()
    };
    let server = Server::bind(at, options).map_err(|error| NETPERF.listen_error(at, &error))?;
    Ok(ListeningTool::new(server.address(), move |stop| server.run(stop)))
}
