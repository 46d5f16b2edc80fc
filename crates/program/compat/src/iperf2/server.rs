//! `iperf -s`.

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use fathom_engine::{Stop, StopFlag};
use fathom_interop::iperf2::{
    BackTraffic, Error, FlowTable, ServedProtocols, Server, ServerOptions, TCP_LENGTH, TestAmount, TransportProtocol,
    UDP_LENGTH_V4,
};

use super::{
    options::{Flag, Options},
    printer::FlowPrinter,
    settings::{FAILED, RULE, style, window_text, words},
    text::ReportSide,
    units,
};
use crate::{closed_loop, stoppable::run_stoppable};
use fathom_run::{exit::Exit, target};

/// Runs a server until it is stopped.
pub(super) fn run(options: &Options) -> anyhow::Result<Exit> {
    let server = match bind(options) {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{error}");
            error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
            return Ok(FAILED);
        }
    };
    if !options.flags.has(Flag::Csv) {
        closed_loop::print_now(&(settings(options, &server).join("\n") + "\n"))?;
    }
    let stop = StopFlag::default();
    let printer = FlowPrinter::new(style(options, ReportSide::Server));
    let table = FlowTable::new(&printer, options.interval);
    let served = run_stoppable(&stop, None, || server.run(&stop, &table))?;
    match served {
        Ok(_) if stop.state() == Stop::Continue => Ok(Exit::Pass),
        Ok(_) => Ok(FAILED),
        Err(error) => {
            eprintln!("{error}");
            Ok(FAILED)
        }
    }
}

/// Listens on the requested address, or else on all addresses.
fn bind(options: &Options) -> Result<Server, Error> {
    let defaults = ServerOptions::default();
    let settings = ServerOptions {
        protocols: match options.protocol {
            TransportProtocol::Tcp => ServedProtocols::Tcp,
            TransportProtocol::Udp => ServedProtocols::Udp,
        },
        flows_max: if options.flags.has(Flag::Single) { 1 } else { defaults.flows_max },
        tests: options.n_flows.map(u64::from),
        idle: match options.amount {
            Some(TestAmount::Time(span)) => Some(span),
            _ => None,
        },
        time_max: match options.amount {
            Some(TestAmount::Time(span)) => span,
            _ => defaults.time_max,
        },
        back_traffic: back_traffic(options),
        length: options.length,
        counts_calls: options.is_enhanced(),
        setup: options.setup.clone(),
        ..defaults
    };
    let any = if options.flags.has(Flag::Ipv6) {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    Server::bind(SocketAddr::new(options.bind.unwrap_or(any), options.port()), settings)
}

/// Where the server sends datagrams: no packet leaves a lab, and elsewhere the user says where.
fn back_traffic(options: &Options) -> BackTraffic {
    if target::is_in_lab() {
        return BackTraffic::Permitted(Arc::new(|_| true));
    }
    let networks = options.back.clone();
    if networks.is_empty() {
        return BackTraffic::ProvenPeers;
    }
    BackTraffic::Permitted(Arc::new(move |address| networks.iter().any(|network| network.contains(address))))
}

/// Returns the lines on the settings of a server.
fn settings(options: &Options, server: &Server) -> Vec<String> {
    let is_udp = options.protocol == TransportProtocol::Udp;
    let (protocol, buffer) = words(options.protocol);
    let mut first = format!("Server listening on {protocol} port {}", server.address().port());
    if options.is_enhanced() {
        // Writing to a string cannot fail.
        let _ = write!(first, " with pid {}", std::process::id());
    }
    let mut lines = vec![RULE.to_owned(), first];
    if let Some(address) = options.bind.filter(|_| options.is_enhanced()) {
        lines.push(format!("Binding to local address {address}"));
    }
    if options.is_enhanced() {
        let length = options.length.unwrap_or(if is_udp { UDP_LENGTH_V4 } else { TCP_LENGTH }) as u64;
        let (size, bin) = (units::buffer(length), units::buffer(length / 8));
        lines.push(format!("Read buffer size: {size} (Dist bin width={bin})"));
    }
    if let Some(name) = &options.setup.congestion {
        lines.push(format!("TCP congestion control set to {name}"));
    }
    if options.setup.tos > 0 {
        lines.push(format!("TOS will be set to 0x{:x}", options.setup.tos));
    }
    lines.push(window_text(buffer, server.window(), options));
    lines.push(RULE.to_owned());
    lines
}
