//! Our netperf client and server against each other, and each against the original, over loopback.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

use fathom_engine::StopFlag;
use fathom_interop::ServerTotals;
use fathom_interop::netperf::{
    Client, ClientOptions, DataPattern, DataProtocol, EndSettings, Error, MessageFormat, NetperfOutcome,
    NetserverOptions, Server, TestLength, TestSpec, wire,
};
use fathom_model::units::Nanos;
use fathom_sys::policy::Policy;

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Ends a server, even if the code that uses it fails.
struct Ending<'a>(&'a StopFlag);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Runs code against our server; returns the totals of the server.
fn against(ip: IpAddr, options: NetserverOptions, act: impl FnOnce(SocketAddr)) -> ServerTotals {
    let server = Server::bind(SocketAddr::new(ip, 0), options).unwrap();
    let (address, stop) = (server.address(), StopFlag::default());
    thread::scope(|scope| {
        let told = stop.clone();
        let server = scope.spawn(move || server.run(&told).unwrap());
        {
            let _end = Ending(&stop);
            act(address);
        }
        server.join().unwrap()
    })
}

/// The original netserver, which ends with the test.
struct Netserver(Child);

impl Drop for Netserver {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_installed(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("-V").output().is_ok_and(|output| output.status.success());
    if !is_there {
        fathom_testkit::skip("needs netperf");
    }
    is_there
}

fn has_v6() -> bool {
    TcpListener::bind((V6, 0)).is_ok()
}

/// Starts the original netserver on an address of the loopback.
fn netserver(ip: IpAddr) -> (Netserver, SocketAddr) {
    let at = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
    let family = if ip.is_ipv6() { "-6" } else { "-4" };
    let words = ["-D", family, "-L", &ip.to_string(), "-p", &at.port().to_string()];
    let mut child = Command::new("netserver").args(words).stdout(Stdio::piped()).spawn().unwrap();
    // It tells that it listens before it accepts; a connection would have its own child.
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    (Netserver(child), at)
}

fn options(server: SocketAddr) -> ClientOptions {
    ClientOptions::new(vec![Policy::anything().permit(server).unwrap()])
}

fn test(asked: ClientOptions, spec: &TestSpec) -> Result<NetperfOutcome, Error> {
    Client::connect(asked, &StopFlag::default())?.run(spec, None)
}

/// One test of each kind, short and small.
fn specs() -> Vec<TestSpec> {
    let both_cpus = EndSettings { measures_cpu: true, ..EndSettings::default() };
    let base = TestSpec {
        length: TestLength::Seconds(1),
        local: both_cpus.clone(),
        remote: both_cpus,
        request_size: 100,
        response_size: 200,
        ..TestSpec::default()
    };
    let datagrams = EndSettings { send_size: Some(1000), ..base.local.clone() };
    let udp = TestSpec { protocol: DataProtocol::Udp, local: datagrams, ..base.clone() };
    let transactions = TestSpec { pattern: DataPattern::Transactions, ..base.clone() };
    vec![
        base.clone(),
        TestSpec { pattern: DataPattern::Down, ..base.clone() },
        TestSpec { is_sendfile: true, ..base },
        transactions.clone(),
        TestSpec { burst: 8, ..transactions.clone() },
        TestSpec { is_connection_each: true, ..transactions.clone() },
        TestSpec { protocol: DataProtocol::Udp, ..transactions },
        udp,
    ]
}

/// The server of a test between our own ends.
const OURS: &str = "ours";

/// Checks that both ends tell the same story.
fn check(spec: &TestSpec, outcome: &NetperfOutcome, who: &str) {
    let (local, remote) = (&outcome.local, &outcome.remote);
    let what = format!("{who} {spec:?} {} s {local:?} {remote:?}", outcome.seconds);
    // A machine that compiles beside the test may be late, but never early. Who receives may begin late.
    let least = if spec.pattern == DataPattern::Down { 0.9 } else { 0.99 };
    assert!((least..6.0).contains(&outcome.seconds), "{what}");
    match (spec.pattern, spec.protocol) {
        (DataPattern::Up, DataProtocol::Tcp) => {
            assert!(local.bytes_sent > 0 && remote.bytes_received == local.bytes_sent, "{what}");
            assert!(remote.recv_calls > 0 && local.send_calls > 0, "{what}");
        }
        (DataPattern::Down, DataProtocol::Tcp) => {
            assert!(local.bytes_received > 0 && remote.bytes_sent <= local.bytes_received, "{what}");
        }
        (DataPattern::Up, DataProtocol::Udp) => {
            assert_eq!(local.bytes_sent, local.send_calls * 1000, "{what}");
            assert!((1..=local.send_calls).contains(&remote.recv_calls), "{what}");
            assert_eq!(remote.bytes_received, remote.recv_calls * 1000, "{what}");
        }
        (DataPattern::Down, DataProtocol::Udp) => assert!(local.recv_calls > 0, "{what}"),
        (DataPattern::Transactions, _) => {
            let in_flight = u64::from(spec.burst) + 1;
            assert!(local.transactions > 0, "{what}");
            let range = local.transactions..=local.transactions + in_flight;
            assert!(range.contains(&remote.transactions), "{what}");
            assert_eq!(local.bytes_received, local.transactions * 200, "{what}");
            assert_eq!(outcome.latencies.count(), local.transactions, "{what}");
        }
    }
    // On a busy host, a netserver charges a test for the seconds in which it waited for more connections.
    let most = if who == OURS { 100.0 } else { 1000.0 };
    for cpu in [local.cpu.unwrap(), remote.cpu.unwrap()] {
        assert!((0.0..=most).contains(&cpu.busy) && cpu.n_cpus > 0, "{what}");
    }
}

#[test]
fn our_ends_count_the_same_in_every_test() {
    for ip in [Some(V4), Some(V6).filter(|_| has_v6())].into_iter().flatten() {
        let specs = specs();
        let served = against(ip, NetserverOptions::default(), |address| {
            // One control connection carries them all, one after another.
            let mut client = Client::connect(options(address), &StopFlag::default()).unwrap();
            for spec in &specs {
                check(spec, &client.run(spec, None).unwrap(), OURS);
            }
        });
        assert_eq!((served.finished, served.failed), (u64::try_from(specs.len()).unwrap(), 0));
    }
}

#[test]
fn our_client_and_the_real_netserver_count_the_same() {
    if !is_installed("netserver") {
        return;
    }
    for ip in [Some(V4), Some(V6).filter(|_| has_v6())].into_iter().flatten() {
        let (_server, address) = netserver(ip);
        for spec in specs() {
            check(&spec, &test(options(address), &spec).unwrap(), "real netserver");
        }
    }
}

#[test]
fn the_server_sends_datagrams_to_the_host_of_the_control_connection_alone() {
    let spec = TestSpec {
        pattern: DataPattern::Down,
        protocol: DataProtocol::Udp,
        remote: EndSettings { send_size: Some(500), measures_cpu: true, ..EndSettings::default() },
        ..specs().remove(0)
    };
    against(V4, NetserverOptions::default(), |address| {
        check(&spec, &test(options(address), &spec).unwrap(), OURS);
        // A request that names another host as the destination is refused before anything is sent.
        let mut control = TcpStream::connect(address).unwrap();
        let mut request = wire::OmniRequest::read(&stolen_request());
        request.direction = wire::direction::SENDS;
        request.client_address[..4].copy_from_slice(&[192, 0, 2, 1]);
        control.write_all(&request.message(MessageFormat::Long, None).bytes()).unwrap();
        let mut answer = [0; 656];
        control.read_exact(&mut answer).unwrap();
        let answer = wire::ControlMessage::read(&answer).unwrap();
        assert_eq!(answer.status, 13, "permission denied");
    });
}

/// A request for datagrams as netperf sends it.
fn stolen_request() -> wire::ControlMessage {
    let bytes = include_bytes!("../../../../fuzz/corpus/netperf/request_udp_stream");
    wire::ControlMessage::read(bytes).unwrap()
}

#[test]
fn a_test_ends_after_a_number_of_bytes_or_transactions() {
    let count = |pattern, count| TestSpec { pattern, length: TestLength::Count(count), ..TestSpec::default() };
    against(V4, NetserverOptions::default(), |address| {
        let outcome = test(options(address), &count(DataPattern::Transactions, 100)).unwrap();
        assert_eq!((outcome.local.transactions, outcome.remote.transactions), (100, 100));
        let each = TestSpec { is_connection_each: true, ..count(DataPattern::Transactions, 20) };
        let outcome = test(options(address), &each).unwrap();
        assert_eq!((outcome.local.transactions, outcome.remote.transactions), (20, 20));
        for pattern in [DataPattern::Up, DataPattern::Down] {
            let outcome = test(options(address), &count(pattern, 1_000_000)).unwrap();
            let moved = outcome.local.bytes_sent + outcome.local.bytes_received;
            assert!(moved >= 1_000_000 && moved == outcome.remote.bytes_sent + outcome.remote.bytes_received);
        }
    });
}

#[test]
fn messages_of_netperf_2_5_are_understood_by_both_ends() {
    against(V4, NetserverOptions::default(), |address| {
        let asked = ClientOptions { format: Some(MessageFormat::Short), ..options(address) };
        for spec in [specs().remove(3), specs().remove(0)] {
            let outcome = test(asked.clone(), &spec).unwrap();
            check(&spec, &outcome, OURS);
            assert_eq!(outcome.remote.retransmits, None, "old results have none");
        }
    });
}

#[test]
fn a_server_keeps_its_limits() {
    let secs = |secs| TestSpec { length: TestLength::Seconds(secs), ..TestSpec::default() };
    let limited = NetserverOptions { test_secs_max: Some(2), ..NetserverOptions::default() };
    against(V4, limited, |address| {
        assert!(matches!(test(options(address), &secs(3)), Err(Error::Remote { errno: 13 })));
        test(options(address), &secs(1)).unwrap();
    });
    let nobody = NetserverOptions { is_client_allowed: Some(Arc::new(|_| false)), ..NetserverOptions::default() };
    let served = against(V4, nobody, |address| {
        assert!(matches!(test(options(address), &secs(1)), Err(Error::Closed { .. })));
    });
    assert_eq!((served.finished, served.rejected), (0, 1));
    let slow = NetserverOptions { rate: Some((1_000_000, Nanos::from_millis(500))), ..NetserverOptions::default() };
    against(V4, slow, |address| {
        let fast = test(options(address), &secs(5));
        assert!(matches!(fast, Err(Error::Remote { errno: 122 })));
        // What the server sends itself is paced: 125 kB in a second, and at most a tenth of that in its bursts.
        let down = TestSpec { pattern: DataPattern::Down, ..secs(1) };
        let outcome = test(options(address), &down).unwrap();
        assert!(outcome.local.bytes_received < 300_000, "{:?}", outcome.local);
    });
    let secret = NetserverOptions { passphrase: Some("open".to_owned()), ..NetserverOptions::default() };
    against(V4, secret, |address| {
        assert!(test(options(address), &secs(1)).is_err());
        let wrong = ClientOptions { passphrase: Some("opens".to_owned()), ..options(address) };
        assert!(test(wrong, &secs(1)).is_err());
        let right = ClientOptions { passphrase: Some("open".to_owned()), ..options(address) };
        test(right, &secs(1)).unwrap();
    });
    let full = NetserverOptions { clients: 1, ..NetserverOptions::default() };
    against(V4, full, |address| {
        let _first = Client::connect(options(address), &StopFlag::default()).unwrap();
        // The first one is counted when it was accepted; the second waits behind it.
        let second = test(options(address), &secs(1));
        assert!(matches!(second, Err(Error::Remote { errno: 16 })));
    });
}

/// What a peer does with a connection.
type Behaviour = fn(TcpStream);

#[test]
fn what_goes_wrong_at_the_other_end_is_said() {
    let closed = TcpListener::bind((V4, 0)).unwrap().local_addr().unwrap();
    assert!(matches!(test(options(closed), &TestSpec::default()), Err(Error::Connect { .. })));
    // Each of these accepts a connection and does something else than a netserver.
    let cases: [(Behaviour, &str); 4] = [
        (|_| {}, "closed the control connection"),
        (|mut peer| peer.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n").unwrap(), "protocol of netperf"),
        (|mut peer| peer.write_all(&[b'x'; 700]).unwrap(), "protocol of netperf"),
        // It says nothing until the client has left.
        (|mut peer| drop(peer.read(&mut [0])), "did not come within"),
    ];
    for (behaviour, expected) in cases {
        let listener = TcpListener::bind((V4, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let peer = thread::spawn(move || {
            let mut peer = listener.accept().unwrap().0;
            // The request is read, so that closing does not reset the connection before the answer is read.
            let _ = peer.read_exact(&mut [0; 656]);
            behaviour(peer);
        });
        let asked = ClientOptions { answer_max: Nanos::from_millis(500), ..options(address) };
        let error = test(asked, &TestSpec::default()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().is_some(), "{error}");
        peer.join().unwrap();
    }
}

#[test]
fn a_server_that_dies_in_a_test_ends_it_with_an_error() {
    let spec = TestSpec { length: TestLength::Seconds(20), ..specs().remove(3) };
    let server = Server::bind(SocketAddr::new(V4, 0), NetserverOptions::default()).unwrap();
    let (address, stop) = (server.address(), StopFlag::default());
    let ended = thread::scope(|scope| {
        let told = stop.clone();
        let served = scope.spawn(move || server.run(&told));
        let mut client = Client::connect(options(address), &StopFlag::default()).unwrap();
        let mut end_server = |_| stop.finish();
        let ended = client.run(&spec, Some((Nanos::from_millis(100), &mut end_server)));
        stop.finish();
        served.join().unwrap().unwrap();
        ended
    });
    assert!(ended.is_err());
}

#[test]
fn a_lost_datagram_in_a_test_by_count_ends_it_when_the_server_gives_it_up() {
    let listener = TcpListener::bind((V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let data = UdpSocket::bind((V4, 0)).unwrap();
    let peer = thread::spawn(move || {
        let mut control = listener.accept().unwrap().0;
        control.read_exact(&mut [0; 656]).unwrap();
        let data_port = data.local_addr().unwrap().port().into();
        let response = wire::OmniResponse { data_port, ..wire::OmniResponse::default() };
        control.write_all(&response.message(MessageFormat::Long).bytes()).unwrap();
        // The request gets no answer, as if it had been lost.
        data.recv(&mut [0; 100]).unwrap();
        let timed_out = wire::ControlMessage::new(MessageFormat::Long, wire::kind::OMNI_RESULTS, 110);
        control.write_all(&timed_out.bytes()).unwrap();
        // The client leaves first.
        let _ = control.read(&mut [0]);
    });
    let spec = TestSpec {
        protocol: DataProtocol::Udp,
        pattern: DataPattern::Transactions,
        length: TestLength::Count(1000),
        ..TestSpec::default()
    };
    assert!(matches!(test(options(address), &spec), Err(Error::Remote { errno: 110 })));
    peer.join().unwrap();
}

#[test]
fn a_client_that_leaves_behind_unread_bytes_gets_no_more_datagrams() {
    let mut request = wire::OmniRequest::read(&stolen_request());
    request.direction = wire::direction::SENDS;
    request.send_size = 1000;
    request.test_length = 1000;
    let served = against(V4, NetserverOptions::default(), |address| {
        let data = UdpSocket::bind((V4, 0)).unwrap();
        request.client_port = data.local_addr().unwrap().port().into();
        let mut control = TcpStream::connect(address).unwrap();
        control.write_all(&request.message(MessageFormat::Long, None).bytes()).unwrap();
        control.read_exact(&mut [0; 656]).unwrap();
        data.recv(&mut [0; 2000]).unwrap();
        control.write_all(b"x").unwrap();
        drop(control);
        // Its last datagrams are empty ones.
        while data.recv(&mut [0; 2000]).unwrap() > 0 {}
    });
    assert_eq!((served.finished, served.failed, served.rejected), (0, 1, 0));
}
