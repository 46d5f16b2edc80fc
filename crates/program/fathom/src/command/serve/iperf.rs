//! The iperf 2 server of `fathom serve`: its options and limits.

use std::net::SocketAddr;

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use fathom_interop::iperf2::{BackTraffic, Error, FlowInfo, FlowObserver, FlowTable, PORT, Server, ServerOptions};

use super::tool::{ListeningTool, ServedTool, client_filter, test_max};

pub(super) const IPERF: ServedTool = ServedTool {
    name: "iperf",
    port: PORT,
    port_text: "5001",
    options: &["iperf-flows", "iperf-from", "iperf-back"],
    arguments,
    bind,
};

/// Returns the options of the server, under their own heading.
fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let arguments = vec![
        IPERF.port_argument("serve iperf 2 clients, TCP and UDP [default port: 5001]"),
        text("iperf-flows", "N", "the most iperf flows at once")
            .default_value("256")
            .value_parser(value_parser!(u16).range(1..=4096)),
        text("iperf-from", "CIDR", "serve these addresses only").action(ArgAction::Append),
        text("iperf-back", "CIDR", "send datagrams to these addresses if their clients ask (-u with -R, -d or -r)")
            .action(ArgAction::Append),
    ];
    arguments.into_iter().map(|argument| argument.help_heading("iperf server")).collect()
}

/// Reports what a server refuses or aborts.
struct FailureLog;

impl FlowObserver for FailureLog {
    fn on_failure(&self, flow: Option<&FlowInfo>, error: &Error) {
        match flow {
            Some(flow) => eprintln!("fathom serve: iperf: {} port {}: {error}", flow.remote.ip(), flow.remote.port()),
            None => eprintln!("fathom serve: iperf: {error}"),
        }
    }
}

/// Listens as the options say.
fn bind(matches: &ArgMatches, at: SocketAddr) -> anyhow::Result<ListeningTool> {
    let options = ServerOptions {
        flows_max: matches.get_one::<u16>("iperf-flows").copied().map_or(256, usize::from),
        time_max: test_max(matches)?,
        is_client_allowed: client_filter(matches, "iperf-from")?,
        back_traffic: client_filter(matches, "iperf-back")?.map_or(BackTraffic::ProvenPeers, BackTraffic::Permitted),
        ..ServerOptions::default()
    };
    let server = Server::bind(at, options).map_err(|error| IPERF.listen_error(at, &error))?;
    Ok(ListeningTool::new(server.address(), move |stop| server.run(stop, &FlowTable::new(&FailureLog, None))))
}
