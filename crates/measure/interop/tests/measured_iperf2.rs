//! Our iperf 2 client and server against the real iperf, over loopback, over two namespaces and over IPv6.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Output, Stdio},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fathom_engine::StopFlag;
use fathom_interop::{
    ServerTotals,
    iperf2::{
        BackTraffic, Client, ClientHeader, ClientOptions, DatagramNumber, Error, FlowInfo, FlowInterval, FlowObserver,
        FlowOutcome, FlowRole, FlowTable, Server, ServerOptions, ServerProof, ServerReport, TestAmount, TestMode,
        TransportProtocol,
    },
};
use fathom_lab::{Lab, preset};
use fathom_model::units::{Nanos, approximate};
use fathom_sys::{policy::Policy, process::may_administer_network};
use fathom_testkit::{lacks_privileges, or_skip};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Everything that an observer learned.
#[derive(Debug, Default)]
struct Seen {
    flows: Vec<FlowInfo>,
    intervals: Vec<(u32, FlowInterval)>,
    ends: Vec<(FlowInfo, FlowOutcome)>,
    reports: Vec<(u32, ServerReport)>,
    errors: Vec<String>,
}

/// Longer than any flow that is waited for, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Notes {
    seen: Mutex<Seen>,
    /// A flow has ended.
    ended: Condvar,
}

impl FlowObserver for Notes {
    fn on_flow(&self, flow: &FlowInfo) {
        self.seen.lock().unwrap().flows.push(flow.clone());
    }
    fn on_interval(&self, flow: &FlowInfo, interval: &FlowInterval) {
        self.seen.lock().unwrap().intervals.push((flow.id, *interval));
    }
    fn on_end(&self, flow: &FlowInfo, outcome: &FlowOutcome) {
        self.seen.lock().unwrap().ends.push((flow.clone(), *outcome));
        self.ended.notify_all();
    }
    fn on_server_report(&self, flow: &FlowInfo, report: &ServerReport) {
        self.seen.lock().unwrap().reports.push((flow.id, *report));
    }
    fn on_failure(&self, _: Option<&FlowInfo>, error: &Error) {
        self.seen.lock().unwrap().errors.push(error.to_string());
    }
}

impl Notes {
    /// Waits until so many flows have ended.
    fn wait_for_ends(&self, n: usize) {
        let seen = self.seen.lock().unwrap();
        let (seen, waited) = self.ended.wait_timeout_while(seen, PATIENCE, |seen| seen.ends.len() < n).unwrap();
        assert!(!waited.timed_out(), "{:?}", seen.errors);
    }

    fn into_seen(self) -> Seen {
        self.seen.into_inner().unwrap()
    }
}

/// Ends a server, even if the code that uses it fails.
struct Ending<'a>(&'a StopFlag);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Runs code against our server; returns the totals of the server and its observations.
fn against(options: ServerOptions, act: impl FnOnce(SocketAddr)) -> (ServerTotals, Seen) {
    against_at(SocketAddr::new(LOOPBACK, 0), options, 0, act)
}

/// The same, but stops the server only after so many flows: it may notice the end of a client late, and interrupts what it still serves.
fn against_to_the_end(n_flows: usize, act: impl FnOnce(SocketAddr)) -> (ServerTotals, Seen) {
    against_at(SocketAddr::new(LOOPBACK, 0), ServerOptions::default(), n_flows, act)
}

fn against_at(
    at: SocketAddr,
    options: ServerOptions,
    n_flows: usize,
    act: impl FnOnce(SocketAddr),
) -> (ServerTotals, Seen) {
    let server = Server::bind(at, options).unwrap();
    let (address, stop, notes) = (server.address(), StopFlag::default(), Notes::default());
    let served = thread::scope(|scope| {
        let (told, table) = (stop.clone(), FlowTable::new(&notes, None));
        let server = scope.spawn(move || server.run(&told, &table).unwrap());
        {
            let _end = Ending(&stop);
            act(address);
            notes.wait_for_ends(n_flows);
        }
        server.join().unwrap()
    });
    (served, notes.into_seen())
}

fn asked(address: SocketAddr, protocol: TransportProtocol) -> ClientOptions {
    ClientOptions {
        servers: vec![Policy::anything().permit(address).unwrap()],
        protocol,
        n_flows: 1,
        // 2 MB in a second: far below the capacity of any machine.
        rate: Some(16_000_000),
        amount: TestAmount::Time(Nanos::from_millis(500)),
        proof: ServerProof::NotNeeded,
        ..ClientOptions::default()
    }
}

fn run(options: ClientOptions) -> (Result<(), Error>, Seen) {
    let notes = Notes::default();
    let outcome = Client::connect(options)
        .and_then(|client| client.run(&FlowTable::new(&notes, Some(Nanos::from_millis(200))), &StopFlag::default()));
    (outcome, notes.into_seen())
}

/// Returns true if the original iperf is installed. Reports it if it is missing.
fn is_there() -> bool {
    let is_there = Command::new("iperf").arg("-v").output().is_ok();
    if !is_there {
        fathom_testkit::skip("needs iperf");
    }
    is_there
}

/// Whether a socket of this host listens on the port, or takes datagrams there.
fn is_bound(port: u16) -> bool {
    let tables = ["tcp", "tcp6", "udp", "udp6"].map(|table| (table, format!("/proc/net/{table}")));
    let address = format!(":{port:04X}");
    tables.iter().any(|(table, path)| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_here = fields.get(1).is_some_and(|local| local.ends_with(&address));
            is_here && (table.starts_with("udp") || fields.get(3) == Some(&"0A"))
        })
    })
}

/// A server of the real iperf.
struct RealServer {
    child: Child,
    port: u16,
}

impl RealServer {
    fn start(words: &[&str]) -> Self {
        let port = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port();
        let mut command = Command::new("iperf");
        command.args(["-s", "-p", &port.to_string()]).args(words);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while !is_bound(port) && begun.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(5));
        }
        Self { child, port }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(LOOPBACK, self.port)
    }

    /// Whether it has ended by itself: iperf 2.1.8 sometimes crashes after a flow of datagrams, whoever its client is.
    fn has_crashed(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends it and returns what it printed after its first lines.
    fn end(mut self) -> String {
        self.child.kill().unwrap();
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the real client against an address, for 20 seconds at most.
fn real_client(address: SocketAddr, words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["20", "iperf", "-c", &address.ip().to_string(), "-p", &address.port().to_string()]).args(words);
    command.output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The sum of what the flows of a role carried.
fn bytes_of(seen: &Seen, role: FlowRole) -> u64 {
    seen.ends.iter().filter(|(flow, _)| flow.role == role).map(|(_, outcome)| outcome.counts.bytes).sum()
}

fn free_port() -> u16 {
    TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn both_ends_count_the_same_over_tcp_and_udp() {
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for n_flows in [1, 8] {
            let mut told = None;
            let (served, seen) = against(ServerOptions::default(), |address| {
                let rate = Some(2_000_000);
                told = Some(run(ClientOptions { n_flows, rate, ..asked(address, protocol) }));
            });
            let (outcome, ours) = told.unwrap();
            outcome.unwrap();
            let what = format!("{protocol:?} {n_flows}");
            assert_eq!((served.finished, served.failed), (n_flows.into(), 0), "{what}");
            let (sent, received) = (bytes_of(&ours, FlowRole::Sender), bytes_of(&seen, FlowRole::Receiver));
            assert!(sent > 0 && sent == received, "{what}: {sent} {received}");
            let groups: Vec<u32> = seen.flows.iter().map(|flow| flow.group.id).collect();
            assert!(groups.iter().all(|group| *group == groups[0]), "{what}: {groups:?}");
            assert!(ours.intervals.len() >= 2 * usize::try_from(n_flows).unwrap(), "{what}");
            if protocol == TransportProtocol::Udp {
                assert_eq!(ours.reports.len(), usize::try_from(n_flows).unwrap());
                for (id, report) in &ours.reports {
                    let sent = &ours.ends.iter().find(|(flow, _)| flow.id == *id).unwrap().1.counts;
                    assert_eq!(
                        (report.datagrams, report.lost, report.bytes),
                        (sent.datagrams, 0, sent.bytes),
                        "{what}"
                    );
                }
            }
        }
    }
}

/// A row of the table of docs/iperf.md: the options of iperf, ours, and whether data flows in both directions.
struct Case {
    shown: &'static str,
    real_server: &'static [&'static str],
    real_client: &'static [&'static str],
    ours: fn(ClientOptions) -> ClientOptions,
    is_both_ways: bool,
}

const CASES: &[Case] = &[
    Case { shown: "TCP", real_server: &[], real_client: &[], ours: |options| options, is_both_ways: false },
    Case {
        shown: "TCP `-P 8`",
        real_server: &[],
        real_client: &["-P", "8"],
        ours: |options| ClientOptions { n_flows: 8, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-R`",
        real_server: &[],
        real_client: &["-R"],
        ours: |options| ClientOptions { mode: TestMode::Reverse, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-d -L`",
        real_server: &[],
        real_client: &["-d"],
        ours: |options| ClientOptions { mode: TestMode::Dual, ..options },
        is_both_ways: true,
    },
    Case {
        shown: "TCP `-r -L`",
        real_server: &[],
        real_client: &["-r"],
        ours: |options| ClientOptions { mode: TestMode::Tradeoff, ..options },
        is_both_ways: true,
    },
    Case {
        shown: "TCP `-e`",
        real_server: &["-e"],
        real_client: &["-e"],
        ours: |options| ClientOptions { counts_calls: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `--trip-times`",
        real_server: &[],
        real_client: &["--trip-times"],
        ours: |options| ClientOptions { has_trip_times: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-R --trip-times`",
        real_server: &[],
        real_client: &["-R", "--trip-times"],
        ours: |options| ClientOptions { mode: TestMode::Reverse, has_trip_times: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-n 256K`",
        real_server: &[],
        real_client: &["-n", "256K"],
        ours: |options| ClientOptions { amount: TestAmount::Bytes(256 << 10), ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-l 4K`",
        real_server: &["-l", "4K"],
        real_client: &["-l", "4K"],
        ours: |options| ClientOptions { length: Some(4096), ..options },
        is_both_ways: false,
    },
    Case {
        shown: "TCP `-C`",
        real_server: &[],
        real_client: &["-C"],
        ours: |options| ClientOptions { has_no_header: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u`",
        real_server: &["-u"],
        real_client: &["-u"],
        ours: |options| options,
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u -P 8`",
        real_server: &["-u"],
        real_client: &["-u", "-P", "8"],
        ours: |options| ClientOptions { n_flows: 8, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u -R`",
        real_server: &["-u"],
        real_client: &["-u", "-R"],
        ours: |options| ClientOptions { mode: TestMode::Reverse, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u -d -L`",
        real_server: &["-u"],
        real_client: &["-u", "-d"],
        ours: |options| ClientOptions { mode: TestMode::Dual, ..options },
        is_both_ways: true,
    },
    Case {
        shown: "UDP `-u -r -L`",
        real_server: &["-u"],
        real_client: &["-u", "-r"],
        ours: |options| ClientOptions { mode: TestMode::Tradeoff, ..options },
        is_both_ways: true,
    },
    Case {
        shown: "UDP `-u -e`",
        real_server: &["-u", "-e"],
        real_client: &["-u", "-e"],
        ours: |options| ClientOptions { counts_calls: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u --trip-times`",
        real_server: &["-u"],
        real_client: &["-u", "--trip-times"],
        ours: |options| ClientOptions { has_trip_times: true, ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u -l 200`",
        real_server: &["-u"],
        real_client: &["-u", "-l", "200"],
        ours: |options| ClientOptions { length: Some(200), ..options },
        is_both_ways: false,
    },
    Case {
        shown: "UDP `-u -l 64` (a short report)",
        real_server: &["-u"],
        real_client: &["-u", "-l", "64"],
        ours: |options| ClientOptions { length: Some(64), ..options },
        is_both_ways: false,
    },
];

/// Runs code against a real server, which is started again if it has crashed.
fn against_real<T>(words: &[&str], act: impl Fn(&RealServer) -> Result<T, String>) -> Result<T, String> {
    const STARTS_MAX: usize = 4;
    for _ in 1..STARTS_MAX {
        let mut server = RealServer::start(words);
        let outcome = act(&server);
        if !server.has_crashed() {
            return outcome;
        }
    }
    act(&RealServer::start(words))
}

/// What went wrong with the flows of a client of ours against the real server, if anything.
fn our_client(case: &Case) -> Result<(), String> {
    against_real(case.real_server, |server| our_client_against(case, server))
}

fn our_client_against(case: &Case, server: &RealServer) -> Result<(), String> {
    let protocol = if case.real_server.contains(&"-u") { TransportProtocol::Udp } else { TransportProtocol::Tcp };
    let options = ClientOptions {
        listen_port: Some(free_port()),
        rate: Some(4_000_000),
        length: Some(if protocol == TransportProtocol::Udp { 1470 } else { 16 << 10 }),
        ..asked(server.address(), protocol)
    };
    let (outcome, seen) = run((case.ours)(options));
    outcome.map_err(|error| error.to_string())?;
    let (sent, received) = (bytes_of(&seen, FlowRole::Sender), bytes_of(&seen, FlowRole::Receiver));
    let is_reverse = seen.flows[0].mode == TestMode::Reverse;
    let (needs_sent, needs_received) = (!is_reverse, is_reverse || case.is_both_ways);
    if (needs_sent && sent == 0) || (needs_received && received == 0) {
        return Err(format!("{sent} bytes sent, {received} received"));
    }
    if protocol == TransportProtocol::Udp && !is_reverse && seen.reports.is_empty() {
        return Err("no report".to_owned());
    }
    Ok(())
}

/// What went wrong with the flows of the real client at our server, if anything.
fn our_server(case: &Case) -> Result<(), String> {
    let mut printed = String::new();
    let port = free_port().to_string();
    let (_, seen) = against(ServerOptions { counts_calls: true, ..ServerOptions::default() }, |address| {
        let is_udp = case.real_client.contains(&"-u");
        let rate = ["-b", "4M", "-t", "0.5", "-L", &port, "-l", if is_udp { "1470" } else { "16K" }];
        printed = text(&real_client(address, &[&rate[..], case.real_client].concat()));
        // A flow in the other direction may end after its client has printed its own.
        thread::sleep(Duration::from_millis(300));
    });
    let (sent, received) = (bytes_of(&seen, FlowRole::Sender), bytes_of(&seen, FlowRole::Receiver));
    let is_reverse = case.real_client.contains(&"-R");
    let (needs_sent, needs_received) = (is_reverse || case.is_both_ways, !is_reverse);
    if (needs_sent && sent == 0) || (needs_received && received == 0) || !seen.errors.is_empty() {
        return Err(format!("{sent} bytes sent, {received} received, {:?}: {printed}", seen.errors));
    }
    let is_udp = case.real_client.contains(&"-u");
    if is_udp && !is_reverse && !printed.contains("Server Report") {
        return Err(format!("no report: {printed}"));
    }
    // A receiver whose first report came late answers a second end mark, too. Its sender, which has the report, is gone by then, as with two
    // real ones.
    let is_of_gone_sender = |line: &str| case.is_both_ways && line.contains("ack of last datagram failed");
    let is_bad = |line: &str| ["failed", "WARN", "ERROR"].iter().any(|word| line.contains(word));
    let bad = printed.lines().find(|line| is_bad(line) && !is_of_gone_sender(line));
    bad.map_or(Ok(()), |_| Err(printed.clone()))
}

#[test]
fn every_option_works_in_both_roles_against_the_real_iperf_as_the_table_says() {
    if !is_there() {
        return;
    }
    let shown = |outcome: Result<(), String>| outcome.map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
    let line = |case: &Case| format!("| {} | {} | {} |", case.shown, shown(our_client(case)), shown(our_server(case)));
    let table = CASES.iter().map(line).collect::<Vec<_>>().join("\n");
    assert!(!table.contains("no: "), "{table}");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/iperf.md")).unwrap();
    let version = String::from_utf8(Command::new("iperf").arg("-v").output().unwrap().stderr).unwrap();
    let version = version.split_whitespace().nth(2).unwrap_or("?").to_owned();
    if page.contains(&format!("iperf {version}")) {
        assert!(page.contains(&table), "docs/iperf.md should hold\n{table}");
    }
}

#[test]
fn ipv6_works_in_both_roles() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else { return fathom_testkit::skip("needs IPv6") };
    drop(listener);
    if !is_there() {
        return;
    }
    let at: SocketAddr = "[::1]:0".parse().unwrap();
    for words in [&["-V"][..], &["-V", "-u"], &["-V", "-R"]] {
        let (_, seen) = against_at(at, ServerOptions::default(), 0, |address| {
            real_client(address, &[words, &["-b", "4M", "-t", "0.5", "-l", "1450"]].concat());
        });
        assert!(seen.ends[0].1.counts.bytes > 0 && seen.errors.is_empty(), "{words:?} {seen:?}");
    }
    let server = RealServer::start(&["-V", "-u"]);
    let to = SocketAddr::new("::1".parse().unwrap(), server.port);
    let (outcome, seen) = run(asked(to, TransportProtocol::Udp));
    outcome.unwrap();
    assert_eq!(seen.reports[0].1.lost, 0);
    assert_eq!(seen.flows[0].length, 1450);
}

#[test]
fn our_counts_and_those_of_the_real_server_agree() {
    if !is_there() {
        return;
    }
    let server = RealServer::start(&["-u"]);
    let (outcome, seen) = run(asked(server.address(), TransportProtocol::Udp));
    outcome.unwrap();
    let (sent, report) = (seen.ends[0].1.counts, seen.reports[0].1);
    assert_eq!((report.datagrams, report.bytes, report.lost), (sent.datagrams, sent.bytes, 0));
    let said = server.end();
    assert!(said.contains(&format!("0/{} (0%)", sent.datagrams)), "{said}");
}

#[test]
fn a_planted_loss_is_the_same_at_both_ends_and_in_the_report() {
    // A relay drops every tenth datagram of the client, so the loss is known exactly.
    let relay = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    relay.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut told = None;
    let (_, seen) = against(ServerOptions::default(), |server| {
        let at = relay.local_addr().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let relaying = scope.spawn(|| {
                let (mut room, mut client, mut n, mut dropped) = ([0; 2048], None, 0_u64, 0_u64);
                while !is_over.load(Ordering::Relaxed) {
                    let Ok((count, from)) = relay.recv_from(&mut room) else { continue };
                    if from == server {
                        let _ = relay.send_to(&room[..count], client.unwrap());
                        continue;
                    }
                    client = Some(from);
                    n += 1;
                    let is_end = room[0] & 0x80 != 0;
                    if n % 10 == 0 && !is_end {
                        dropped += 1;
                        continue;
                    }
                    relay.send_to(&room[..count], server).unwrap();
                }
                dropped
            });
            let outcome = run(asked(at, TransportProtocol::Udp));
            is_over.store(true, Ordering::Relaxed);
            told = Some((outcome, relaying.join().unwrap()));
        });
    });
    let ((outcome, ours), dropped) = told.unwrap();
    outcome.unwrap();
    let report = ours.reports[0].1;
    assert!(dropped > 20);
    assert_eq!((report.lost, seen.ends[0].1.counts.lost()), (dropped, dropped));
    assert_eq!(report.datagrams, ours.ends[0].1.counts.datagrams);
}

#[test]
fn one_way_times_are_those_of_the_clocks() {
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let (_, seen) = against(ServerOptions::default(), |address| {
            run(ClientOptions { has_trip_times: true, length: Some(8192), ..asked(address, protocol) }).0.unwrap();
        });
        let (flow, outcome) = &seen.ends[0];
        let times = outcome.counts.transit.unwrap();
        assert!(flow.has_trip_times && times.n > 50, "{protocol:?} {times:?}");
        assert!(times.min <= times.mean().unwrap() && times.mean().unwrap() <= times.max, "{times:?}");
        assert!(times.min < Nanos::from_millis(50), "on one host the clocks are the same: {times:?}");
    }
}

#[test]
fn a_target_has_to_show_that_it_is_an_iperf_server() {
    let proven = |options| ClientOptions { proof: ServerProof::Required, ..options };
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let (served, _) = against_to_the_end(2, |address| {
            run(proven(asked(address, protocol))).0.unwrap();
            if protocol == TransportProtocol::Tcp {
                let reverse = ClientOptions { mode: TestMode::Reverse, ..asked(address, protocol) };
                run(proven(reverse)).0.unwrap();
            }
        });
        assert!(served.finished >= 2, "the proof over UDP is a flow of its own: {served:?}");
        if is_there() {
            let words: &[&str] = if protocol == TransportProtocol::Udp { &["-u"] } else { &[] };
            let test = |server: &RealServer| {
                run(proven(asked(server.address(), protocol))).0.map_err(|error| error.to_string())
            };
            against_real(words, test).unwrap();
        }
    }
    if is_there() {
        // A length above its own would end the server.
        let server = RealServer::start(&[]);
        let long = ClientOptions {
            mode: TestMode::Reverse,
            length: Some(512 << 10),
            ..asked(server.address(), TransportProtocol::Tcp)
        };
        run(proven(long)).0.unwrap();
        run(proven(asked(server.address(), TransportProtocol::Tcp))).0.unwrap();
    }
    let silent = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let (outcome, seen) = run(proven(asked(silent.local_addr().unwrap(), TransportProtocol::Tcp)));
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::NoServer { .. }) && error.hint().is_some(), "{error}");
    assert!(error.to_string().contains("did not acknowledge"), "{error}");
    assert_eq!(seen.ends.len(), 0, "and nothing was sent to it but the header");
    let sink = UdpSocket::bind((LOOPBACK, 0)).unwrap();
    sink.set_nonblocking(true).unwrap();
    let (outcome, _) = run(proven(asked(sink.local_addr().unwrap(), TransportProtocol::Udp)));
    assert!(matches!(outcome, Err(Error::NoServer { .. })), "{outcome:?}");
    let (mut room, mut n) = ([0; 2048], 0);
    while sink.recv(&mut room).is_ok() {
        n += 1;
    }
    assert!(n < 40, "{n} datagrams in 2 s: less than a load");
}

#[test]
fn what_listens_and_is_no_iperf_server_is_named_at_once() {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let actor = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        thread::sleep(Duration::from_millis(200));
    });
    let options = ClientOptions { proof: ServerProof::Required, ..asked(address, TransportProtocol::Tcp) };
    let error = run(options).0.unwrap_err();
    assert!(error.to_string().contains("answered with something else"), "{error}");
    actor.join().unwrap();
    let nobody = SocketAddr::new(LOOPBACK, free_port());
    let error = run(asked(nobody, TransportProtocol::Tcp)).0.unwrap_err();
    assert_eq!(error.to_string(), "tcp connect failed: Connection refused");
    let error = run(asked(nobody, TransportProtocol::Udp)).0.unwrap_err();
    assert!(error.to_string().contains("Connection refused"), "{error}");
}

/// Two hosts with a link between them; no packet leaves it.
fn pair() -> Option<Lab> {
    if lacks_privileges(may_administer_network()) {
        return None;
    }
    let options = fathom_lab::Options::default();
    let lab = Lab::build(preset::find("pair").unwrap(), &options, Command::new("/not/started"));
    or_skip(lab, |error| matches!(error, fathom_lab::Error::Kernel { source, .. } if source.is_permission()))
}

/// Runs code on host `a` against our server on host `b`.
fn across(lab: &Lab, options: ServerOptions, act: impl FnOnce(SocketAddr) + Send) -> (ServerTotals, Seen) {
    let [a, b] = ["a", "b"].map(|name| lab.host(name).unwrap());
    let server = b.enter_with(|| Server::bind(SocketAddr::new(b.address(), 5001), options)).unwrap().unwrap();
    let (address, stop, notes) = (server.address(), StopFlag::default(), Notes::default());
    let served = thread::scope(|scope| {
        let (told, table) = (stop.clone(), FlowTable::new(&notes, None));
        let server = scope.spawn(move || b.enter_with(move || server.run(&told, &table)).unwrap().unwrap());
        {
            let _end = Ending(&stop);
            a.enter_with(|| act(address)).unwrap();
        }
        server.join().unwrap()
    });
    (served, notes.into_seen())
}

#[test]
fn over_two_namespaces_the_real_client_and_ours_count_what_our_server_counts() {
    if !is_there() {
        return;
    }
    let Some(lab) = pair() else { return };
    let everybody = || BackTraffic::Permitted(Arc::new(|_| true));
    for words in [
        &["-P", "8"][..],
        &["-r"],
        &["-d"],
        &["-R"],
        &["-u"],
        &["-u", "-P", "8"],
        &["-u", "-R"],
        &["-u", "-d"],
        &["-u", "-r"],
    ] {
        let mut printed = String::new();
        let options = ServerOptions { back_traffic: everybody(), ..ServerOptions::default() };
        let (_, seen) = across(&lab, options, |address| {
            printed = text(&real_client(address, &[&["-b", "4M", "-t", "0.5", "-l", "1400"], words].concat()));
            thread::sleep(Duration::from_millis(300));
        });
        assert!(
            seen.errors.is_empty() && !printed.contains("failed") && !printed.contains("WARN"),
            "{words:?} {printed} {:?}",
            seen.errors
        );
        let needs_sent = ["-r", "-d", "-R"].iter().any(|word| words.contains(word));
        assert_eq!(bytes_of(&seen, FlowRole::Sender) > 0, needs_sent, "{words:?} {printed}");
        assert_eq!(bytes_of(&seen, FlowRole::Receiver) > 0, !words.contains(&"-R"), "{words:?} {printed}");
        for (flow, outcome) in seen.ends.iter().filter(|(flow, _)| flow.role == FlowRole::Receiver) {
            assert_eq!(outcome.counts.lost(), 0, "{words:?} {flow:?}");
        }
    }
}

#[test]
fn datagrams_go_back_only_to_sources_that_are_allowed_or_proven() {
    let Some(lab) = pair() else { return };
    let reverse = |to| ClientOptions { mode: TestMode::Reverse, ..asked(to, TransportProtocol::Udp) };
    let (served, seen) = across(&lab, ServerOptions::default(), |to| {
        let (outcome, ours) = run(reverse(to));
        assert!(matches!(outcome, Err(Error::NoData { .. })), "{outcome:?}");
        assert_eq!(bytes_of(&ours, FlowRole::Receiver), 0);
        // A completed handshake proves the address.
        run(asked(to, TransportProtocol::Tcp)).0.unwrap();
        run(reverse(to)).0.unwrap();
    });
    assert!(served.failed >= 1 && seen.errors.iter().any(|error| error.contains("can be forged")), "{:?}", seen.errors);
    let client = lab.host("a").unwrap().address();
    let permitted = BackTraffic::Permitted(Arc::new(move |asked| asked == client));
    let (_, seen) = across(&lab, ServerOptions { back_traffic: permitted, ..ServerOptions::default() }, |to| {
        run(reverse(to)).0.unwrap();
    });
    assert!(bytes_of(&seen, FlowRole::Sender) > 0 && seen.errors.is_empty(), "{:?}", seen.errors);
    let never = ServerOptions { back_traffic: BackTraffic::Never, ..ServerOptions::default() };
    let (_, seen) = against(never, |to| {
        run(ClientOptions {
            mode: TestMode::Dual,
            listen_port: Some(free_port()),
            ..asked(to, TransportProtocol::Tcp)
        })
        .0
        .unwrap_err();
    });
    assert!(seen.errors[0].contains("sends nothing"), "{:?}", seen.errors);
}

#[test]
fn each_flow_has_the_next_source_where_that_is_wanted() {
    let from = Some("127.0.0.2".parse().unwrap());
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let (_, seen) = against(ServerOptions::default(), |address| {
            let options = ClientOptions { n_flows: 3, from, has_source_per_flow: true, ..asked(address, protocol) };
            run(options).0.unwrap();
        });
        let mut sources: Vec<String> = seen.flows.iter().map(|flow| flow.remote.ip().to_string()).collect();
        sources.sort_unstable();
        assert_eq!(sources, ["127.0.0.2", "127.0.0.3", "127.0.0.4"], "{protocol:?}");
    }
}

#[test]
fn a_source_gets_no_more_bytes_than_it_sent() {
    let (_, _) = against(ServerOptions::default(), |server| {
        let forged = UdpSocket::bind((LOOPBACK, 0)).unwrap();
        forged.connect(server).unwrap();
        forged.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let (mut sent, mut received, mut room) = (0, 0, [0; 2048]);
        for number in 1_i64..6 {
            let mut datagram = [0; 20];
            let number = if number > 2 { -number } else { number };
            datagram[..4].copy_from_slice(&i32::try_from(number).unwrap().to_be_bytes());
            sent += forged.send(&datagram).unwrap();
            while let Ok(count) = forged.recv(&mut room) {
                received += count;
            }
            assert!(received <= sent, "{received} for {sent}");
        }
        assert!(received > 0, "the report came as soon as it was paid for");
    });
}

#[test]
fn a_server_that_is_gone_in_the_middle_leaves_what_was_measured() {
    if !is_there() {
        return;
    }
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let words: &[&str] = if protocol == TransportProtocol::Udp { &["-u"] } else { &[] };
        let server = RealServer::start(words);
        let amount = TestAmount::Time(Nanos::from_secs(10));
        let options = ClientOptions { amount, ..asked(server.address(), protocol) };
        let begun = Instant::now();
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_millis(700));
            drop(server);
        });
        let (outcome, seen) = run(options);
        ending.join().unwrap();
        assert!(matches!(outcome, Err(Error::Write { .. })), "{protocol:?} {outcome:?}");
        assert!(seen.ends[0].1.counts.bytes > 0 && !seen.errors.is_empty());
        assert!(begun.elapsed() < Duration::from_secs(8), "{protocol:?}");
    }
}

#[test]
fn a_silent_client_costs_a_server_nothing_and_others_are_served_beside_it() {
    let (served, seen) = against(ServerOptions::default(), |address| {
        let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut stranger = TcpStream::connect(address).unwrap();
        stranger.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        run(asked(address, TransportProtocol::Tcp)).0.unwrap();
        drop((idle, stranger));
        thread::sleep(Duration::from_millis(300));
    });
    assert!(served.finished >= 1 && seen.ends.iter().any(|(_, outcome)| outcome.counts.bytes > 100_000));
    assert!(served.rejected >= 20, "a connection without a byte is no test: {served:?}");
}

#[test]
fn a_server_keeps_its_limits() {
    let limits = ServerOptions { flows_max: 2, time_max: Nanos::from_millis(500), ..ServerOptions::default() };
    let (_, seen) = against(limits, |address| {
        let amount = TestAmount::Time(Nanos::from_secs(3));
        let (outcome, _) = run(ClientOptions { amount, ..asked(address, TransportProtocol::Tcp) });
        assert!(outcome.is_err(), "{outcome:?}");
    });
    assert!(seen.errors[0].contains("longer than"), "{:?}", seen.errors);
    let admits = ServerOptions {
        is_client_allowed: Some(Arc::new(|address| !address.is_loopback())),
        ..ServerOptions::default()
    };
    let (served, seen) = against(admits, |address| {
        run(asked(address, TransportProtocol::Udp)).0.unwrap_err();
    });
    assert!(served.rejected > 0 && seen.flows.is_empty());
    let once = ServerOptions { tests: Some(1), ..ServerOptions::default() };
    let begun = Instant::now();
    let (served, _) = against(once, |address| {
        run(asked(address, TransportProtocol::Tcp)).0.unwrap();
    });
    assert_eq!(served.finished, 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_rate_is_kept_in_both_protocols() {
    for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        let (_, seen) = against(ServerOptions::default(), |address| {
            run(ClientOptions { length: Some(1000), ..asked(address, protocol) }).0.unwrap();
        });
        let (_, outcome) = &seen.ends[0];
        let rate = approximate(outcome.counts.bytes) * 8.0 / outcome.span.as_secs_f64();
        assert!((12e6..20e6).contains(&rate), "{protocol:?} {rate}");
    }
}

#[test]
fn a_server_of_one_test_sends_the_flow_back_too() {
    for mode in [TestMode::Tradeoff, TestMode::Dual] {
        let once = ServerOptions { tests: Some(1), ..ServerOptions::default() };
        let (served, seen) = against(once, |address| {
            let options =
                ClientOptions { mode, listen_port: Some(free_port()), ..asked(address, TransportProtocol::Udp) };
            let (outcome, ours) = run(options);
            outcome.unwrap();
            assert!(bytes_of(&ours, FlowRole::Receiver) > 50_000, "{mode:?} {ours:?}");
        });
        assert_eq!((served.finished, served.failed), (2, 0), "{mode:?} {:?}", seen.errors);
    }
}

#[test]
fn flows_that_a_server_sends_take_no_datagram_of_other_clients() {
    let header = ClientHeader {
        mode: TestMode::Reverse,
        n_flows: 1,
        amount: TestAmount::Time(Nanos::from_millis(10)),
        rate: Some(1_000_000),
        is_extended: true,
        has_wide_numbers: true,
        ..ClientHeader::default()
    };
    let mut request = [0; 200];
    header.write_datagram(&mut request);
    DatagramNumber { number: 1, is_end: false }.write(&mut request);
    let (_, seen) = against(ServerOptions::default(), |address| {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Each has one flow after another.
            let ask = || {
                let mut n = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let client = UdpSocket::bind((LOOPBACK, 0)).unwrap();
                    client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
                    client.send_to(&request, address).unwrap();
                    let mut room = [0; 2048];
                    while client.recv(&mut room).is_ok() && room[0] & 0x80 == 0 {}
                    n += 1;
                }
                n
            };
            let asking: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            let outcome = run(ClientOptions {
                // All 200 datagrams have room in the socket's buffer, so that a slow host loses none.
                rate: Some(640_000),
                length: Some(200),
                ..asked(address, TransportProtocol::Udp)
            });
            is_over.store(true, Ordering::Relaxed);
            outcome.0.unwrap();
            assert!(asking.into_iter().map(|thread| thread.join().unwrap()).sum::<u32>() > 8);
        });
    });
    let received = seen.ends.iter().find(|(flow, _)| flow.role == FlowRole::Receiver).unwrap();
    assert_eq!(received.1.counts.lost(), 0);
    assert!(received.1.counts.received > 150);
}
