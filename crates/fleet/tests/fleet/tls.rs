//! Controllers with and without the key at the door of a server, on the loopback.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

use fathom_fleet::{
    Class, Error, launcher,
    tls::{Identity, Key, Limits, Server, connect},
};
use fathom_model::units::Nanos;
use fathom_sys::{clock, policy::Policy};

use super::counting;

/// A server on a port of its own; ended when dropped.
struct Door {
    address: String,
    key: Key,
    n_started: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    fn open(limits: Limits, start_agent: fn(SocketAddr, UnixStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let identity = Identity::generate().unwrap();
        let (key, server) = (identity.key(), Server::new(&identity, limits).unwrap());
        let (n_started, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (started, over) = (Arc::clone(&n_started), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            let start = move |from, plain| {
                started.fetch_add(1, Ordering::Relaxed);
                start_agent(from, plain);
            };
            server.run(&listener, &|| over.load(Ordering::Relaxed), start).unwrap();
        });
        Self { address, key, n_started, is_over, thread: Some(thread) }
    }

    fn n_started(&self) -> usize {
        self.n_started.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
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
    let door = Door::open(Limits::default(), start_agent);
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
    let door = Door::open(Limits::default(), start_echo);
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
    let door = Door::open(Limits::default(), start_agent);
    let other = Identity::generate().unwrap().key();
    let error = connect(&door.address, &other).unwrap_err();
    assert!(matches!(error, Error::WrongFingerprint { .. }), "{error:?}");
    assert_eq!((error.class(), door.n_started()), (Class::Preflight, 0));
}

#[test]
fn a_wrong_token_is_answered_with_silence() {
    let door = Door::open(Limits::default(), start_agent);
    let other = Identity::generate().unwrap().key().to_string();
    let token = other.split_once('.').unwrap().1;
    let key: Key = format!("{}.{token}", door.key.fingerprint()).parse().unwrap();
    let error = connect(&door.address, &key).unwrap_err();
    assert!(matches!(error, Error::WrongToken { .. }), "{error:?}");
    assert_eq!((error.class(), door.n_started()), (Class::Preflight, 0));
}

#[test]
fn a_server_without_a_free_place_says_so_to_those_who_know_the_key() {
    let door = Door::open(Limits { controllers: 1, ..Limits::default() }, start_echo);
    let first = connect(&door.address, &door.key).unwrap();
    assert!(matches!(connect(&door.address, &door.key), Err(Error::Busy { .. })));
    drop(first);
}

#[test]
fn a_stranger_is_sent_away_within_the_time_of_a_handshake() {
    let limits = Limits { handshake: Nanos::from_millis(300), ..Limits::default() };
    let door = Door::open(limits, start_agent);
    let begin = clock::now();
    let mut silent = TcpStream::connect(&door.address).unwrap();
    let mut plain = TcpStream::connect(&door.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut said = Vec::new();
    assert_eq!(silent.read_to_end(&mut said).unwrap(), 0, "to silence the answer is silence");
    // A reset is an end as well; an alert of TLS is all that may be said.
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
    assert!(matches!(error, Error::NotFathom { .. }), "{error:?}");
    other.join().unwrap();
    let error = connect(&address, &key).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert_eq!((error.class(), error.to_string()), (Class::Preflight, format!("cannot reach {address}")));
    assert!(error.hint().unwrap().contains("fathom serve"));
}
