//! `iperf -c`.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
};

use fathom_engine::StopFlag;
use fathom_interop::iperf2::{
    Client, ClientOptions, Error, FlowTable, ServerProof, TCP_LENGTH, TestMode, TransportProtocol, UDP_LENGTH_V4,
    UDP_LENGTH_V6,
};
use fathom_model::units::{Bytes, approximate};
use fathom_sys::policy::Policy;

use super::{
    options::{Flag, Options, TextRelease},
    printer::FlowPrinter,
    settings::{FAILED, RULE, style, window_text, words},
    text::ReportSide,
    units,
};
use crate::{closed_loop, stoppable::run_stoppable};
use fathom_run::{
    allow::{self, AllowList},
    exit::Exit,
    target,
};

pub(super) fn run(options: &Options, host: &str, allowed: &AllowList) -> anyhow::Result<Exit> {
    let servers = match resolve(options, host) {
        Ok(servers) => servers,
        Err(why) => {
            eprintln!("{host}: {why}");
            return Ok(FAILED);
        }
    };
    // A host that runs an iperf server consents to its tests. An address of many hosts is not a server.
    let addresses: Vec<IpAddr> = servers.iter().map(SocketAddr::ip).collect();
    allow::check_single_host(host, &addresses)?;
    let is_allowed = addresses.iter().map(IpAddr::to_canonical).all(|address| allowed.covers((address, address)));
    let proof = if is_allowed || target::is_in_lab() { ServerProof::NotNeeded } else { ServerProof::Required };
    let asked = client_options(options, &servers, proof);
    let style = style(options, ReportSide::Client);
    let stop = StopFlag::default();
    let printer = FlowPrinter::new(style);
    let outcome = run_stoppable(&stop, None, || test(options, host, asked, &stop, &printer))?;
    match outcome {
        Ok(()) => Ok(Exit::Pass),
        Err(Failed::Connecting(error)) => {
            eprintln!("{error}");
            error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            Ok(FAILED)
        }
        // It was printed when it happened.
        Err(Failed::Running(error)) => {
            error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            Ok(FAILED)
        }
    }
}

/// Where a test failed.
enum Failed {
    Connecting(Error),
    Running(Error),
}

fn client_options(options: &Options, servers: &[SocketAddr], proof: ServerProof) -> ClientOptions {
    ClientOptions {
        // The addresses were checked, and nothing is resolved again.
        servers: servers.iter().filter_map(|server| Policy::anything().permit(*server).ok()).collect(),
        protocol: options.protocol,
        mode: options.mode,
        n_flows: options.n_flows.unwrap_or(1),
        length: options.length,
        rate: options.flow_rate(),
        amount: options.amount.unwrap_or_default(),
        from: options.bind,
        from_port: options.bind_port,
        has_source_per_flow: options.flags.has(Flag::SourcePerFlow),
        listen_port: options.listen_port,
        setup: options.setup.clone(),
        has_trip_times: options.flags.has(Flag::TripTimes),
        counts_calls: options.is_enhanced(),
        has_no_header: options.flags.has(Flag::NoHeader),
        proof,
        connect_timeout: None,
    }
}

/// Runs one test, from the connect to the last line.
fn test(
    options: &Options,
    host: &str,
    asked: ClientOptions,
    stop: &StopFlag,
    printer: &FlowPrinter,
) -> Result<(), Failed> {
    let is_ipv6 =
        asked.servers.first().and_then(fathom_sys::policy::Destination::address).is_some_and(|to| to.is_ipv6());
    let window = asked.window();
    let connected = Client::connect(asked);
    if !options.flags.has(Flag::Csv) {
        let mut lines = connected.as_ref().ok().and_then(|client| back_settings(options, client)).unwrap_or_default();
        lines.extend(settings(options, host, window, is_ipv6));
        // If the reader is gone, there is nobody to report the error to.
        let _ = closed_loop::print_now(&(lines.join("\n") + "\n"));
    }
    let table = FlowTable::new(printer, options.interval);
    connected.map_err(Failed::Connecting)?.run(&table, stop).map_err(Failed::Running)
}

/// The settings of the listener for connections of the server.
fn back_settings(options: &Options, client: &Client) -> Option<Vec<String>> {
    if !matches!(options.mode, TestMode::Dual | TestMode::Tradeoff) {
        return None;
    }
    let (port, window) = client.listener()?;
    let (protocol, buffer) = words(options.protocol);
    let window = window_text(buffer, window, options);
    Some(vec![RULE.to_owned(), format!("Server listening on {protocol} port {port}"), window, RULE.to_owned()])
}

/// Returns the lines on the settings of a client.
fn settings(options: &Options, host: &str, window: Option<Bytes>, is_ipv6: bool) -> Vec<String> {
    let is_udp = options.protocol == TransportProtocol::Udp;
    let is_enhanced = options.is_enhanced();
    let (protocol, buffer) = words(options.protocol);
    let n_flows = options.n_flows.unwrap_or(1);
    let mut first = format!("Client connecting to {host}, {protocol} port {}", options.port());
    if is_enhanced {
        // Writing to a string cannot fail.
        let _ = write!(first, " with pid {}", std::process::id());
        if options.release != TextRelease::V20 {
            let _ = write!(first, " ({n_flows} flows)");
        }
    }
    let mut lines = vec![RULE.to_owned(), first];
    let default = match (is_udp, is_ipv6) {
        (false, _) => TCP_LENGTH,
        (true, false) => UDP_LENGTH_V4,
        (true, true) => UDP_LENGTH_V6,
    };
    let length = options.length.unwrap_or(default);
    if is_enhanced && !is_udp {
        lines.push(format!("Write buffer size: {}", units::plain_bytes(length as u64)));
    }
    if let Some(mss) = options.setup.mss.filter(|_| !is_udp) {
        lines.push(format!("MSS req size {mss} bytes (per TCP_MAXSEG)"));
    }
    if let Some(name) = &options.setup.congestion {
        lines.push(format!("TCP congestion control set to {name}"));
    }
    if is_enhanced && options.release != TextRelease::V20 {
        let nagle = if options.setup.has_no_delay { "and nodelay (Nagle off)" } else { "(Nagle on)" };
        lines.push(format!("TOS set to 0x{:x} {nagle}", options.setup.tos));
    }
    if is_udp {
        let gap = options.flow_rate().map_or(0.0, |rate| approximate(length as u64) * 8e6 / approximate(rate));
        lines.push(format!("Sending {length} byte datagrams, IPG target: {gap:.2} us (kalman adjust)"));
    }
    lines.push(window_text(buffer, window, options));
    lines.push(RULE.to_owned());
    lines
}

fn resolve(options: &Options, host: &str) -> Result<Vec<SocketAddr>, String> {
    let found = (host, options.port()).to_socket_addrs().map_err(|error| closed_loop::c_error_text(&error))?;
    let found: Vec<SocketAddr> = found.collect();
    // Without -V, iperf uses IPv4 where there is a choice.
    let wants_v6 = options.flags.has(Flag::Ipv6) || found.iter().all(SocketAddr::is_ipv6);
    let servers: Vec<SocketAddr> = found.into_iter().filter(|address| address.is_ipv6() == wants_v6).collect();
    if servers.is_empty() { Err("Address family for hostname not supported".to_owned()) } else { Ok(servers) }
}
