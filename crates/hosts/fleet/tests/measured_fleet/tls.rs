//! Controllers with and without the key against a server on loopback.

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use fathom_fleet::{
    Error, ErrorClass, launcher,
    tls::{ControllerHandler, Identity, Key, RefusalCounts, Server, ServerLimits, connect},
};
use fathom_model::units::Nanos;
use fathom_sys::{clock, policy::Policy};

use super::counting;

/// A server on its own port; dropping it ends the server.
struct TestServer {
    address: String,
    key: Key,
    n_started: Arc<AtomicUsize>,
    refused: Arc<Mutex<String>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A handler that counts connections and keeps the reported refusals.
struct RecordingHandler {
    n_started: Arc<AtomicUsize>,
    refused: Arc<Mutex<String>>,
    start_agent: fn(SocketAddr, UnixStream),
}

impl ControllerHandler for RecordingHandler {
    fn serve(&self, controller: SocketAddr, stream: UnixStream) {
        self.n_started.fetch_add(1, Ordering::Relaxed);
        (self.start_agent)(controller, stream);
    }

    fn refused(&self, refusals: &RefusalCounts) {
        writeln!(self.refused.lock().unwrap(), "{refusals}").unwrap();
    }
}

impl TestServer {
    fn open(limits: ServerLimits, start_agent: fn(SocketAddr, UnixStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Identity::generate().unwrap();
        let (key, server) = (identity.key(), Server::new(&identity, limits).unwrap());
        let (n_started, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let refused = Arc::default();
        let pool = RecordingHandler { n_started: Arc::clone(&n_started), refused: Arc::clone(&refused), start_agent };
        let over = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            server.run(&listener, &|| over.load(Ordering::Relaxed), pool).unwrap();
        });
        Self { address, key, n_started, refused, is_over, thread: Some(thread) }
    }

    fn n_started(&self) -> usize {
        self.n_started.load(Ordering::Relaxed)
    }

    /// Ends the server; returns its reported refusals.
    fn close(&mut self) -> String {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
        self.refused.lock().unwrap().clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.close();
    }
}

fn start_agent(from: SocketAddr, plain: UnixStream) {
    assert!(from.ip().is_loopback());
    let _ = counting::serve(plain, Policy::anything());
}

fn start_echo(_: SocketAddr, mut plain: UnixStream) {
    let mut output = plain.try_clone().unwrap();
    std::io::copy(&mut plain, &mut output).unwrap();
    output.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn the_right_key_leads_to_an_agent_that_plays_a_trial() {
    let door = TestServer::open(ServerLimits::default(), start_agent);
    let mut fleet = counting::fleet(&["a"]);
    fleet.connect("b", launcher::tls(&door.address, &door.key).unwrap()).unwrap();
    for _ in 0..2 {
        let outcome = counting::play(&mut fleet, &counting::plan("a", "b", Nanos::from_millis(200)));
        assert!(outcome.error.is_none(), "{:?}", outcome.error);
        assert!(outcome.trials[0].start_skew_ns < Nanos::from_millis(10), "{}", outcome.trials[0].start_skew_ns);
    }
    assert_eq!(fleet.describe("b").unwrap().reached, format!("tls {}", door.address));
}

#[test]
fn bytes_pass_both_ways_unchanged_and_each_end_is_passed_on() {
    let door = TestServer::open(ServerLimits::default(), start_echo);
    let mut stream = connect(&door.address, &door.key).unwrap();
    let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[usize::from(n % 3 == 0)]).collect();
    let mut output = stream.try_clone().unwrap();
    let copy = sent.clone();
    let writer = thread::spawn(move || {
        output.write_all(&copy).unwrap();
        output.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent, "{} bytes came back of {}", received.len(), sent.len());
}

#[test]
fn a_key_of_another_server_is_noticed_before_the_token_is_told() {
    let door = TestServer::open(ServerLimits::default(), start_agent);
    let other = Identity::generate().unwrap().key();
    let error = connect(&door.address, &other).unwrap_err();
    assert!(matches!(error, Error::WrongFingerprint { .. }), "{error:?}");
    assert_eq!((error.class(), door.n_started()), (ErrorClass::Preflight, 0));
}

#[test]
fn a_wrong_token_is_answered_with_silence() {
    let mut door = TestServer::open(ServerLimits::default(), start_agent);
    let other = Identity::generate().unwrap().key().to_string();
    let token = other.split_once('.').unwrap().1;
    let key: Key = format!("{}.{token}", door.key.fingerprint()).parse().unwrap();
    let error = connect(&door.address, &key).unwrap_err();
    assert!(matches!(error, Error::WrongToken { .. }), "{error:?}");
    assert_eq!((error.class(), door.n_started()), (ErrorClass::Preflight, 0));
    assert_eq!(door.close(), "refused 1, 1 with a wrong token; the last from 127.0.0.1\n");
}

#[test]
fn a_server_without_a_free_place_says_so_to_those_who_know_the_key() {
    let door = TestServer::open(ServerLimits { controllers: 1, ..ServerLimits::default() }, start_echo);
    let first = connect(&door.address, &door.key).unwrap();
    assert!(matches!(connect(&door.address, &door.key), Err(Error::Busy { .. })));
    drop(first);
}

#[test]
fn a_stranger_is_sent_away_within_the_time_of_a_handshake() {
    let limits = ServerLimits { handshake: Nanos::from_millis(300), ..ServerLimits::default() };
    let door = TestServer::open(limits, start_agent);
    let begin = clock::now();
    let mut silent = TcpStream::connect(&door.address).unwrap();
    let mut plain = TcpStream::connect(&door.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut said = Vec::new();
    assert_eq!(silent.read_to_end(&mut said).unwrap(), 0, "to silence the answer is silence");
    // A reset counts as an end as well; only a TLS alert may be sent.
    let _ = plain.read_to_end(&mut said);
    assert!(said.len() <= 7, "{said:?}");
    assert!(clock::now() - begin < Nanos::from_secs(3));
    assert_eq!(door.n_started(), 0);
}

#[test]
fn where_nobody_listens_and_where_someone_else_does_are_told_apart() {
    let key = Identity::generate().unwrap().key();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
    });
    let error = connect(&address, &key).unwrap_err();
    assert!(matches!(error, Error::NotAFathomServer { .. }), "{error:?}");
    other.join().unwrap();
    let error = connect(&address, &key).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!((error.class(), error.to_string()), (ErrorClass::Preflight, format!("cannot reach {address}")));
    assert!(error.hint().unwrap().contains("fathom serve"));
}

#[test]
fn a_crowd_of_strangers_locks_nobody_out() {
    // Longer than the test, so that only newer connections can evict older ones.
    let limits = ServerLimits { handshake: Nanos::from_secs(600), ..ServerLimits::default() };
    let mut door = TestServer::open(limits, start_echo);
    let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(&door.address).unwrap()).collect();
    for _ in 0..15 {
        let mut stream = connect(&door.address, &door.key).unwrap();
        // The echo shows that it was served.
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    let mut oldest = crowd.first().unwrap();
    let mut said = Vec::new();
    oldest.read_to_end(&mut said).unwrap();
    assert_eq!(said, [21, 3, 3, 0, 2, 2, 90], "the oldest is told that it was turned away");
    assert_eq!(door.n_started(), 15);
    drop(crowd);
    let told = door.close();
    assert!(told.contains("turned away for newer ones"), "{told}");
}

#[test]
fn a_controller_that_is_turned_away_for_others_is_told_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let crowded = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut hello = [0; 16];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&[21, 3, 3, 0, 2, 2, 90]).unwrap();
    });
    let error = connect(&address, &Identity::generate().unwrap().key()).unwrap_err();
    assert!(matches!(error, Error::TooManyConnections { .. }), "{error:?}");
    crowded.join().unwrap();
}

#[test]
fn the_control_connection_passes_a_path_that_loses_large_packets() {
    let door = TestServer::open(ServerLimits::default(), start_echo);
    // The server is ready once a connection has succeeded.
    connect(&door.address, &door.key).unwrap();
    let socket = TcpStream::connect(&door.address).unwrap();
    let info = fathom_sys::socket::tcp_info::TcpInfo::of(&socket).unwrap();
    assert!(info.snd_mss.0 <= 536, "{:?}", info.snd_mss);
}
