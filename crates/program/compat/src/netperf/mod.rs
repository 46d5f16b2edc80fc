//! Drop-in for netperf, the client of a netserver.
//!
//! It drives the engine in this process, without a plan and its agents: a test may end by a number of bytes or transactions, its
//! repetition follows netperf's own rule, and interim results are printed while it runs. `fathom tcp --protocol netperf` runs the same
//! client as a plan.

mod classic;
mod options;
mod report;
mod selectors;
mod units;

use std::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _},
};

use fathom_engine::{Stop, StopFlag};
use fathom_interop::netperf::{Client, ClientOptions, Error, InterimResult};
use fathom_model::units::Nanos;
use fathom_sys::{clock, policy::Policy, process::affinity};

use self::{
    options::{Family, Options, OptionsError, OutputForm, TestName},
    report::TestReport,
    units::ThroughputUnit,
};
use crate::{closed_loop, stoppable::run_stoppable};
use fathom_run::{
    allow::{self, AllowList},
    exit::Exit,
};

/// netperf's exit code for whatever goes wrong.
const FAILED: Exit = Exit::Code(1);
/// The version whose behaviour and text these are.
const COMPATIBLE_VERSION: &str = "2.7.0";
/// The longest address that netperf prints in its title: its room is that of a pointer.
const TITLE_ADDRESS_MAX: usize = 7;

const USAGE: &str = "\
Usage: netperf [global options] -- [test options]

Global options:
    -4, -6            Use IPv4 or IPv6
    -B brand          Text after the numbers of results without headers
    -c, -C            Measure the CPU of this host (-c) and of the server (-C)
    -D seconds        Show interim results
    -f b|k|m|g|B|K|M|G   Unit of the throughput
    -h                Show this text
    -H name,family    The host of the netserver
    -i max,min        The most and fewest repetitions
    -I level,width    Repeat until the confidence interval (95 or 99) is so narrow (percent)
    -l length         Seconds, or as a negative number bytes or transactions
    -L name           The address of this host
    -p port           The port of the netserver
    -P 0|1            Print headers
    -r                Only the interval of the result ends the repetition
    -s seconds        Wait before the test
    -t test           TCP_STREAM, TCP_MAERTS, TCP_SENDFILE, TCP_RR, TCP_CRR, UDP_STREAM, UDP_RR, OMNI
    -T local,remote   The cores of both ends
    -v 0|1|2          How much to print
    -V                Show the version
    -Y local,remote   The traffic class of both ends
    -Z passphrase     The passphrase of the netserver

Test options:
    -b number         Requests in flight besides the first
    -c                A connection for each transaction (OMNI)
    -d direction      send, recv or rr (OMNI)
    -D                Send small segments at once (TCP_NODELAY)
    -e seconds        Repeat a lost datagram of UDP_RR after this time
    -k, -o, -O [names]   Print selected values: one a line, separated by commas, in columns; `?` lists them
    -K local,remote   The congestion control of both ends
    -m local,remote   Bytes per send call
    -M remote,local   Bytes per receive call
    -P local,remote   The ports of the data connection
    -r request,response  Bytes of a request and of a response
    -s send,receive   Socket buffers of this host
    -S send,receive   Socket buffers of the server
    -T tcp|udp        The protocol (OMNI)
    -u uuid           The text of the output UUID
";

/// Runs it with netperf's own arguments.
pub(super) fn run(words: &[String], _allowed: &AllowList) -> anyhow::Result<Exit> {
    let options = match options::read(words) {
        Ok(options) => options,
        Err(OptionsError::Version) => {
            closed_loop::print_now(&format!(
                "Netperf version {COMPATIBLE_VERSION} ({})\n",
                fathom_run::registry::TOOL
            ))?;
            return Ok(Exit::Pass);
        }
        Err(OptionsError::Usage | OptionsError::TestUsage) => {
            closed_loop::print_now(USAGE)?;
            return Ok(FAILED);
        }
        Err(OptionsError::UnknownTest(name)) => {
            closed_loop::print_now(&format!(
                "The test you requested ({name}) is unknown to this netperf.\n\
                 Please verify that you have the correct test name, \n\
                 and that test family has been compiled into this netperf.\n"
            ))?;
            return Ok(FAILED);
        }
        Err(OptionsError::Invalid(why)) => {
            eprintln!("netperf: {why}");
            return Ok(FAILED);
        }
    };
    if options.selection.as_deref() == Some("?") {
        closed_loop::print_now(&selectors::names(options.form))?;
        return Ok(FAILED);
    }
    if let Err(why) = selectors::check(&options) {
        eprintln!("netperf: {why}");
        return Ok(FAILED);
    }
    if !options.ignored.is_empty() {
        let letters: Vec<String> = options.ignored.iter().map(|letter| format!("-{letter}")).collect();
        eprintln!("netperf: without effect here: {}", letters.join(" "));
    }
    measure(&options)
}

fn measure(options: &Options) -> anyhow::Result<Exit> {
    let host = host(options);
    let Ok(servers) = resolve(options, &host) else {
        closed_loop::print_now(&format!("Netperf could not resolve {host} as a host name\n"))?;
        return Ok(FAILED);
    };
    // A host that runs a netserver consents to its tests. An address of many hosts is not a server.
    let addresses: Vec<IpAddr> = servers.iter().map(SocketAddr::ip).collect();
    allow::check_single_host(&host, &addresses)?;
    // A server that is reached in both families gets the first one that answers.
    let destinations = servers.iter().filter_map(|server| Policy::anything().permit(*server).ok()).collect();
    let mut asked = ClientOptions::new(destinations);
    asked.from = options.local_host.as_deref().and_then(|address| address.parse().ok());
    asked.passphrase.clone_from(&options.passphrase);
    if let Some(Err(error)) = options.spec.local.core.map(|core| affinity::pin_thread(core.into())) {
        eprintln!("netperf: cannot run on the core of -T: {error}");
        return Ok(FAILED);
    }
    let is_v6 = servers.first().is_some_and(SocketAddr::is_ipv6);
    let stop = StopFlag::default();
    let outcome = run_stoppable(&stop, Some(INTERRUPT_MAX), || test(options, (&host, is_v6), asked, &stop))?;
    match outcome {
        Ok(report) => {
            let text = match options.form {
                OutputForm::Classic => classic::result(options, &report),
                _ => selectors::result(options, &report),
            };
            closed_loop::print_now(&text)?;
            Ok(Exit::Pass)
        }
        Err(error) => {
            explain(options, &host, &error)?;
            Ok(FAILED)
        }
    }
}

/// Prints an error as netperf does, and what to do about it on stderr.
fn explain(options: &Options, host: &str, error: &Error) -> anyhow::Result<()> {
    match error {
        Error::Connect { .. } => closed_loop::print_now(&format!(
            "establish control: are you sure there is a netserver listening on {host} at port {}?\n",
            options.port
        ))?,
        Error::Remote { errno } => closed_loop::print_now(&format!("netperf: remote error {errno}\n"))?,
        _ => {}
    }
    eprintln!("netperf: {error}");
    error.hint().into_iter().for_each(|hint| eprintln!("hint: {hint}"));
    Ok(())
}

/// Connects, prints the title, and repeats the test as often as requested.
fn test(
    options: &Options,
    (host, is_v6): (&str, bool),
    asked: ClientOptions,
    stop: &StopFlag,
) -> Result<TestReport, Error> {
    let mut client = Client::connect(asked, stop)?;
    if options.has_headers {
        // A reader that is gone is noticed with the result.
        let _ = closed_loop::print_now(&title(options, host, is_v6));
    }
    clock::sleep_until(clock::now() + options.wait);
    let mut n_interim = 0;
    let mut show = |interim: InterimResult| {
        let _ = closed_loop::print_now(&interim_line(options, interim, n_interim));
        n_interim += 1;
    };
    let mut run = || {
        let interim = options.interim.map(|interval| (interval, &mut show as &mut dyn FnMut(InterimResult)));
        client.run(&options.spec, interim)
    };
    let mut report = TestReport::new(options, run()?);
    while report.needs_more() && stop.state() == Stop::Continue {
        report.add(run()?);
    }
    Ok(report)
}

/// The first line.
fn title(options: &Options, host: &str, is_v6: bool) -> String {
    let shown = |name: &str| {
        let address = name.parse::<IpAddr>().ok().map(|address| address.to_string()).unwrap_or_default();
        let address = if address.len() <= TITLE_ADDRESS_MAX { address } else { String::new() };
        format!("{name} ({address}) port ")
    };
    let family = if is_v6 { "AF_INET6" } else { "AF_INET" };
    let any = if is_v6 { "::0" } else { "0.0.0.0" };
    let (own, spec) = (options.local_host.as_deref().unwrap_or(any), &options.spec);
    let name = match options.test {
        TestName::Omni => format!("OMNI {} TEST", omni_direction(options)),
        test => classic::title(test).to_owned(),
    };
    let ports = (spec.local.port.unwrap_or(0), spec.remote.port.unwrap_or(0));
    let mut line = format!("{name} from {}{} {family} to {}{} {family}", shown(own), ports.0, shown(host), ports.1);
    let repetition = options.repetition;
    if repetition.n_max > 1 {
        let only = if repetition.is_result_only { "on result only" } else { "" };
        let _ = write!(line, " : +/-{:.3}% @ {:2}% conf. {only}", repetition.width / 0.02, repetition.level);
    }
    if spec.local.has_no_delay || spec.remote.has_no_delay {
        line += " : nodelay";
    }
    line += " : demo";
    if name.contains("REQUEST/RESPONSE") {
        let _ = write!(line, " : first burst {}", spec.burst);
    }
    if spec.local.core.is_some() || spec.remote.core.is_some() {
        line += " : cpu bind";
    }
    line + "\n"
}

fn omni_direction(options: &Options) -> &'static str {
    use fathom_interop::netperf::DataPattern;
    match (options.spec.pattern, options.spec.is_connection_each) {
        (DataPattern::Up, _) => "Send",
        (DataPattern::Down, _) => "Receive",
        (DataPattern::Transactions, false) => "Send|Recv",
        (DataPattern::Transactions, true) if options.spec.request_size == 0 => "Connection",
        (DataPattern::Transactions, true) => "Connect|Send|Recv",
    }
}

fn interim_line(options: &Options, interim: InterimResult, n: u32) -> String {
    let units = if options.unit == ThroughputUnit::Transactions { interim.transactions } else { interim.bytes };
    let seconds = interim.span.as_secs_f64();
    let (rate, unit) = (options.unit.per_second(units, seconds), options.unit.word());
    let now = clock::wall().0;
    let at = format!("{}.{:03}", now / 1_000_000_000, now / 1_000_000 % 1000);
    match options.form {
        OutputForm::Csv => format!("{rate:7.2},{unit}/s,{seconds:.3},{at}\n"),
        OutputForm::KeyValue => format!(
            "NETPERF_INTERIM_RESULT[{n}]={rate:.2}\nNETPERF_UNITS[{n}]={unit}/s\n\
             NETPERF_INTERVAL[{n}]={seconds:.3}\nNETPERF_ENDING[{n}]={at}\n"
        ),
        _ => format!("Interim result: {rate:7.2} {unit}/s over {seconds:.3} seconds ending at {at}\n"),
    }
}

fn host(options: &Options) -> String {
    let default = if options.family == Family::V6 { Ipv6Addr::LOCALHOST.to_string() } else { "localhost".to_owned() };
    options.host.clone().unwrap_or(default)
}

fn resolve(options: &Options, host: &str) -> std::io::Result<Vec<SocketAddr>> {
    // Without a host, netperf goes to IPv4's loopback.
    let family = if options.host.is_none() && options.family == Family::Any { Family::V4 } else { options.family };
    let is_wanted = |address: &SocketAddr| match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    };
    let found: Vec<SocketAddr> = (host, options.port).to_socket_addrs()?.filter(is_wanted).collect();
    if found.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, Ipv4Addr::UNSPECIFIED.to_string()));
    }
    Ok(found)
}

/// How long a test that was interrupted may take to end with its result.
const INTERRUPT_MAX: Nanos = Nanos::from_secs(2);
