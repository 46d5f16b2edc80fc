//! The iperf3 server of `fathom serve`: its options, limits and logins.

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use fathom_interop::iperf3::{Authenticator, PORT, Padding, SKEW_SECS, Server, ServerOptions};
use fathom_model::units::Nanos;

use super::tool::{ListeningTool, ServedTool, client_filter, rate_limit, test_max};
use fathom_compat as compat;
use fathom_run::exit::{Exit, UserError};

pub(super) const IPERF3: ServedTool = ServedTool {
    name: "iperf3",
    port: PORT,
    port_text: "5201",
    options: &[
        "one-at-a-time",
        "iperf3-clients",
        "iperf3-rate",
        "iperf3-from",
        "iperf3-key",
        "iperf3-users",
        "iperf3-pkcs1",
    ],
    arguments,
    bind,
};

/// Returns the options of the server, under their own heading.
fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let file = |name, help| text(name, "FILE", help).value_parser(value_parser!(PathBuf));
    let arguments = vec![
        IPERF3.port_argument("serve iperf3 clients [default port: 5201]"),
        text("one-at-a-time", "", "one iperf3 client at a time, as iperf3 itself does").action(ArgAction::SetTrue),
        text("iperf3-clients", "N", "the most iperf3 clients at once")
            .default_value("16")
            .value_parser(value_parser!(u16).range(1..=256)),
        text("iperf3-rate", "BITS/S", "abort tests that are faster on average over 5 s"),
        text("iperf3-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        file("iperf3-key", "RSA private key in PEM that opens the logins of clients").requires("iperf3-users"),
        file("iperf3-users", "who may test: lines of name,SHA-256 of {name}password").requires("iperf3-key"),
        text("iperf3-pkcs1", "", "logins as iperf3 before 3.17 makes them")
            .action(ArgAction::SetTrue)
            .requires("iperf3-key"),
    ];
    arguments.into_iter().map(|argument| argument.help_heading("iperf3 server")).collect()
}

/// Listens as the options say.
fn bind(matches: &ArgMatches, at: SocketAddr) -> anyhow::Result<ListeningTool> {
    let clients = matches.get_one::<u16>("iperf3-clients").copied().unwrap_or(1);
    let clients = if matches.get_flag("one-at-a-time") { 1 } else { clients };
    let options = ServerOptions {
        clients: usize::from(clients),
        rate: rate_limit(matches, "iperf3-rate")?,
        test_secs_max: Some(u32::try_from(test_max(matches)?.0 / 1_000_000_000).unwrap_or(u32::MAX)),
        is_client_allowed: client_filter(matches, "iperf3-from")?,
        authenticator: authenticator(matches)?.map(Arc::new),
        interval: Some(Nanos::from_secs(1)),
        ..ServerOptions::default()
    };
    let server = Server::bind(at, None, options).map_err(|error| IPERF3.listen_error(at, &error))?;
    Ok(ListeningTool::new(server.address(), move |stop| server.run(stop, &|| compat::iperf3_transcript())))
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
