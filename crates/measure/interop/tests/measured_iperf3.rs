//! Our iperf3 client and server against each other over loopback: the counts of both, and the refusals of a server.

#![expect(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    thread,
};

use fathom_engine::StopFlag;
use fathom_interop::ServerTotals;
use fathom_interop::iperf3::{
    Client, ClientOptions, Cookie, Error, Interval, Iperf3Outcome, Parameters, Server, ServerOptions, StreamRole,
    TestObserver, TransferDirection, TransportProtocol,
};
use fathom_model::units::{Bytes, Nanos};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The events that a server's side observed.
#[derive(Debug, Default)]
struct Seen {
    outcomes: Vec<Iperf3Outcome>,
    errors: Vec<String>,
}

struct Notes(Arc<Mutex<Seen>>);

impl TestObserver for Notes {
    fn on_end(&mut self, outcome: &Iperf3Outcome) {
        self.0.lock().unwrap().outcomes.push(outcome.clone());
    }

    fn on_failure(&mut self, error: &Error) {
        self.0.lock().unwrap().errors.push(error.to_string());
    }
}

/// Ends a server, even if the code that uses it fails.
struct Ending<'a>(&'a StopFlag);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// Runs code against a server; returns the totals of the server and its observations.
fn against(options: ServerOptions, act: impl FnOnce(SocketAddr, &StopFlag)) -> (ServerTotals, Seen) {
    let server = Server::bind(LOOPBACK, None, options).unwrap();
    let (address, stop, seen) = (server.address(), StopFlag::default(), Arc::<Mutex<Seen>>::default());
    let served = thread::scope(|scope| {
        let watch = || Box::new(Notes(seen.clone())) as Box<dyn TestObserver>;
        let told = stop.clone();
        let server = scope.spawn(move || server.run(&told, &watch).unwrap());
        {
            let _end = Ending(&stop);
            act(address, &stop);
        }
        server.join().unwrap()
    });
    (served, Arc::try_unwrap(seen).unwrap().into_inner().unwrap())
}

fn asked(address: SocketAddr, parameters: Parameters) -> ClientOptions {
    ClientOptions {
        servers: vec![fathom_sys::policy::Policy::anything().permit(address).unwrap()],
        parameters,
        ..ClientOptions::default()
    }
}

fn paced(carrier: TransportProtocol, way: TransferDirection) -> Parameters {
    let block = Bytes(if carrier == TransportProtocol::Udp { 1000 } else { 8 << 10 });
    // Each stream sends 2 MB in a second: far below the capacity of any machine.
    Parameters {
        protocol: carrier,
        direction: way,
        block,
        parallel: 2,
        time_secs: 1,
        bitrate: 16_000_000,
        ..Parameters::default()
    }
}

/// Few enough datagrams to fit into a socket buffer: none is lost, however late the receiver reads them.
fn few(carrier: TransportProtocol, way: TransferDirection) -> Parameters {
    let bitrate = if carrier == TransportProtocol::Udp { 400_000 } else { 16_000_000 };
    Parameters { bitrate, ..paced(carrier, way) }
}

fn test(asked: ClientOptions, watch: &mut dyn TestObserver) -> Result<Iperf3Outcome, Error> {
    let mut client = Client::connect(asked, Cookie::fresh(), &StopFlag::default())?;
    client.open_streams()?;
    client.run(watch)
}

#[test]
fn both_sides_count_the_same_in_every_direction() {
    for carrier in [TransportProtocol::Tcp, TransportProtocol::Udp] {
        for way in [TransferDirection::Forward, TransferDirection::Reverse, TransferDirection::Both] {
            let mut told = None;
            let (served, seen) = against(ServerOptions::default(), |address, _| {
                told = Some(test(asked(address, few(carrier, way)), &mut ()).unwrap());
            });
            assert_eq!((served.finished, served.failed), (1, 0), "{carrier:?} {way:?}");
            let (ours, theirs) = (told.unwrap(), &seen.outcomes[0]);
            assert_eq!(ours.streams.len(), if way == TransferDirection::Both { 4 } else { 2 });
            let results = ours.peer.as_ref().unwrap();
            for (own, other) in ours.streams.iter().zip(&theirs.streams) {
                assert_eq!(own.stream.id, other.stream.id);
                assert_ne!(own.stream.role, other.stream.role);
                assert_eq!(results.stream(own.stream.id).unwrap().bytes, other.total.bytes);
                let (sent, received) = if own.stream.role == StreamRole::Sender { (own, other) } else { (other, own) };
                let what = format!("{carrier:?} {way:?} {sent:?} {received:?}");
                // Data in flight when time ends a test counts only for its sender.
                assert!((1..=sent.total.bytes).contains(&received.total.bytes), "{what}");
                if carrier == TransportProtocol::Udp {
                    assert_eq!(received.total.lost, 0, "{what}");
                    let (n_sent, n_received) = (sent.total.packets * 1000, received.total.packets * 1000);
                    assert_eq!((n_sent, n_received), (sent.total.bytes, received.total.bytes), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_volume_ends_a_test_and_what_is_omitted_does_not_count() {
    #[derive(Default)]
    struct Rows(Vec<Interval>);
    impl TestObserver for Rows {
        fn on_interval(&mut self, interval: &Interval) {
            self.0.push(interval.clone());
        }
    }
    let parameters = Parameters {
        time_secs: 0,
        bytes: 1_000_000,
        parallel: 1,
        ..paced(TransportProtocol::Tcp, TransferDirection::Forward)
    };
    against(ServerOptions::default(), |address, _| {
        let outcome = test(asked(address, parameters.clone()), &mut ()).unwrap();
        assert_eq!(outcome.streams[0].total.bytes, 1_000_000_u64.div_ceil(8 << 10) * (8 << 10), "whole blocks");
    });
    let parameters = Parameters { omit_secs: 1, ..paced(TransportProtocol::Udp, TransferDirection::Forward) };
    against(ServerOptions::default(), |address, _| {
        let mut rows = Rows::default();
        let with_rows = ClientOptions { interval: Some(Nanos::from_millis(500)), ..asked(address, parameters.clone()) };
        let outcome = test(with_rows, &mut rows).unwrap();
        let omitted: Vec<_> = rows.0.iter().map(|row| row.is_omitted).collect();
        assert!(omitted.starts_with(&[true, true]) && omitted[2..].iter().all(|is_omitted| !is_omitted), "{omitted:?}");
        assert!(rows.0.iter().filter(|row| !row.is_omitted).all(|row| row.start < row.end));
        let own = &outcome.streams[0];
        assert!(own.omitted.packets > 500 && own.total.packets > 500, "{own:?}");
        let told = outcome.peer.unwrap().streams[0];
        assert!(told.bytes < 4_000_000 && told.omitted.unwrap().packets > 500, "{told:?}");
    });
}

fn refusal(options: ServerOptions, parameters: Parameters) -> String {
    let mut said = String::new();
    against(options, |address, _| said = test(asked(address, parameters), &mut ()).unwrap_err().to_string());
    said
}

#[test]
fn a_server_keeps_its_limits_and_says_which() {
    let parameters = || paced(TransportProtocol::Tcp, TransferDirection::Forward);
    let rate = Some((10_000_000, Nanos::from_millis(200)));
    let too_fast = "total required bandwidth is larger than server limit";
    assert_eq!(refusal(ServerOptions { rate, ..ServerOptions::default() }, parameters()), too_fast, "asked for");
    let unpaced = Parameters { bitrate: 0, ..parameters() };
    assert_eq!(refusal(ServerOptions { rate, ..ServerOptions::default() }, unpaced), too_fast, "measured");
    let longest = ServerOptions { test_secs_max: Some(5), ..ServerOptions::default() };
    let long = Parameters { time_secs: 6, ..parameters() };
    assert!(refusal(longest, long).contains("requested duration exceeds"));
    let admits = ServerOptions {
        is_client_allowed: Some(Arc::new(|address| !address.is_loopback())),
        ..ServerOptions::default()
    };
    assert!(refusal(admits, parameters()).contains("busy"));
    let unknown = Parameters { congestion: Some("nonesuch".to_owned()), ..parameters() };
    assert!(refusal(ServerOptions::default(), unknown).contains("TCP_CONGESTION"));
    let reverse = Parameters { bitrate: 0, ..paced(TransportProtocol::Tcp, TransferDirection::Reverse) };
    against(ServerOptions { rate, ..ServerOptions::default() }, |address, _| {
        let outcome = test(asked(address, reverse), &mut ()).unwrap();
        let received: u64 = outcome.streams.iter().map(|own| own.total.bytes).sum();
        assert!(received < 2_500_000, "{received} bytes in a second at 10 Mbit/s");
    });
}

#[test]
fn a_file_ends_a_test_when_it_is_sent_and_the_server_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    std::fs::write(&from, (0..30_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    let parameters =
        || Parameters { time_secs: 60, parallel: 1, ..paced(TransportProtocol::Tcp, TransferDirection::Forward) };
    let options = || ServerOptions { file: Some(to.clone()), ..ServerOptions::default() };
    against(options(), |address, _| {
        let with_file = ClientOptions { file: Some(from.clone()), ..asked(address, parameters()) };
        let outcome = test(with_file, &mut ()).unwrap();
        assert_eq!(outcome.streams[0].total.bytes, 120_000);
        assert!(outcome.span < Nanos::from_secs(50), "the end of the file is that of the test");
    });
    let (sent, written) = (std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
    // A server that does not run for a while may be told of the end before it has read everything.
    assert!(sent.starts_with(&written), "what was written is what was sent");
    against(ServerOptions::default(), |address, _| {
        let missing = ClientOptions { file: Some(folder.path().join("missing")), ..asked(address, parameters()) };
        let refused = test(missing, &mut ()).unwrap_err();
        assert_eq!(refused.to_string(), "unable to open -F file: No such file or directory");
        let directory = ClientOptions { file: Some(folder.path().into()), ..asked(address, parameters()) };
        let refused = test(directory, &mut ()).unwrap_err();
        assert_eq!(refused.to_string(), "unable to read or write the -F file: Is a directory");
    });
    for asked_for in [
        paced(TransportProtocol::Udp, TransferDirection::Forward),
        paced(TransportProtocol::Tcp, TransferDirection::Both),
    ] {
        assert_eq!(refusal(options(), asked_for), "an option you are trying to set is not implemented yet");
    }
}

#[test]
fn a_side_that_ends_in_the_middle_tells_the_other_and_keeps_what_it_counted() {
    struct EndAtFirstRow(StopFlag, Option<Iperf3Outcome>);
    impl TestObserver for EndAtFirstRow {
        fn on_interval(&mut self, _: &Interval) {
            self.0.abort();
        }
        fn on_end(&mut self, outcome: &Iperf3Outcome) {
            self.1 = Some(outcome.clone());
        }
    }
    let long = Parameters { time_secs: 60, ..paced(TransportProtocol::Tcp, TransferDirection::Forward) };
    let (served, seen) = against(ServerOptions::default(), |address, _| {
        let stop = StopFlag::default();
        let rows = ClientOptions { interval: Some(Nanos::from_millis(200)), ..asked(address, long.clone()) };
        let mut client = Client::connect(rows, Cookie::fresh(), &stop).unwrap();
        client.open_streams().unwrap();
        let mut watch = EndAtFirstRow(stop, None);
        assert!(matches!(client.run(&mut watch), Err(Error::Interrupted)));
        assert!(watch.1.unwrap().streams[0].total.bytes > 0);
        drop(client);
    });
    assert_eq!((served.finished, served.failed), (0, 1));
    assert!(seen.errors[0].contains("the client has terminated") && !seen.outcomes.is_empty(), "{seen:?}");
    against(ServerOptions::default(), |address, server| {
        let rows = ClientOptions { interval: Some(Nanos::from_millis(200)), ..asked(address, long.clone()) };
        let mut watch = EndAtFirstRow(server.clone(), None);
        assert!(matches!(test(rows, &mut watch), Err(Error::ServerTerminated)));
        assert!(watch.1.unwrap().peer.is_none());
    });
}

/// Sends the messages of a client before 3.16, and then receives until nothing more comes.
#[test]
fn a_server_that_sends_a_volume_stops_behind_it() {
    use std::io::{Read as _, Write as _};
    let (served, _) = against(ServerOptions::default(), |address, _| {
        let connect = |cookie: &[u8; 37]| {
            let mut connection = std::net::TcpStream::connect(address).unwrap();
            connection.write_all(cookie).unwrap();
            connection
        };
        let cookie: [u8; 37] = *b"abcdefghijklmnopqrstuvwxyz2345672345\0";
        let mut control = connect(&cookie);
        let mut state = [0_u8; 1];
        let mut expect = |control: &mut std::net::TcpStream, byte: u8| {
            control.read_exact(&mut state).unwrap();
            assert_eq!(state[0], byte);
        };
        expect(&mut control, 9);
        let asked =
            br#"{"tcp":true,"omit":0,"time":0,"num":0,"blockcount":20,"parallel":1,"reverse":true,"len":131072}"#;
        control.write_all(&u32::try_from(asked.len()).unwrap().to_be_bytes()).unwrap();
        control.write_all(asked).unwrap();
        expect(&mut control, 10);
        let mut stream = connect(&cookie);
        expect(&mut control, 1);
        expect(&mut control, 2);
        let mut rest = vec![0; 20 * 131_072];
        stream.read_exact(&mut rest).unwrap();
        // Nothing more arrives, although the client has not ended the test: the next bytes are those of the end.
        control.write_all(&[4]).unwrap();
        expect(&mut control, 13);
        assert_eq!(stream.read_to_end(&mut rest).unwrap(), 0);
    });
    assert_eq!(served.finished, 0, "a client that goes without results has finished nothing");
}
