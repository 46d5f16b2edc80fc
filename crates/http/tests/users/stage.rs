//! What the tests share: roles, sessions, and servers that behave as they are told.

use std::{
    cell::Cell,
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use fathom_engine::{Error, Session};
use fathom_http::users::{Coming, Crowd, OPTIONS, Seat};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::{clock, reactor::uring};

use crate::cast::{Act, Cast, Memories, Memory};

/// Long enough for what ends by itself, however busy the machine is.
pub(crate) const LONG: Phases =
    Phases { warmup_max_ns: Nanos::ZERO, measure_ns: Nanos::from_secs(20), interval_ns: Nanos::from_millis(20) };

thread_local! {
    /// The reactor of the test that this thread runs.
    static REACTOR: Cell<&'static str> = const { Cell::new("auto") };
}

/// Runs a test over a reactor; one that the kernel does not give is a skip that is heard of, and a failure in CI.
#[expect(clippy::print_stderr, reason = "a skip has to be heard of")]
pub(crate) fn over(reactor: &'static str, test: fn()) {
    if let Some(error) = uring::is_allowed().err().filter(|_| reactor == "io_uring") {
        assert!(std::env::var_os("CI").is_none(), "{error}: {}", error.source);
        eprintln!("SKIPPED: {error}: {}", error.source);
        return;
    }
    REACTOR.set(reactor);
    test();
}

/// Makes tests of functions, each over both reactors.
macro_rules! over_both {
    ($($test:ident)*) => {
        mod over_epoll {
            $(#[test] fn $test() { crate::stage::over("epoll", super::$test) })*
        }
        mod over_io_uring {
            $(#[test] fn $test() { crate::stage::over("io_uring", super::$test) })*
        }
    };
}
pub(crate) use over_both;

/// A crowd that asks these servers.
pub(crate) fn crowd(urls: &str, options: &[(&str, &str)], coming: Coming) -> Crowd {
    let settings = Settings::default().with("reactor", REACTOR.get()).with("url", urls);
    let settings = options.iter().fold(settings, |all, (name, value)| all.with(name, *value));
    let role = Role {
        test: "users".to_owned(),
        kind: "app_test".to_owned(),
        side: Side::Initiator,
        settings: settings.complete(&OPTIONS).unwrap(),
        phases: LONG,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        seed: 1,
    };
    Crowd::prepare("app_test", &role, coming).unwrap()
}

pub(crate) fn population(n: u64) -> Coming {
    Coming::Population { n, over: Nanos::ZERO }
}

/// Users who all follow one script, in one worker, until all have gone.
pub(crate) fn play(
    crowd: &Crowd,
    script: impl Fn(Seat, &Memory) -> Act + Clone + Sync,
) -> Result<(Record, Memories), Error> {
    play_for(LONG, crowd, script)
}

/// The same with phases of their own.
pub(crate) fn play_for(
    phases: Phases,
    crowd: &Crowd,
    script: impl Fn(Seat, &Memory) -> Act + Clone + Sync,
) -> Result<(Record, Memories), Error> {
    assert_eq!(crowd.n_workers(), 1);
    let session = Session::new(clock::now() + Nanos::from_millis(2), phases);
    let (record, mut memories) = crowd.run(&session, |row| Ok(Cast::new(row, script.clone())))?;
    Ok((record, memories.remove(0)))
}

/// A server that gives each connection, with its number, to `attend`; it ends when the test does.
pub(crate) fn server(attend: impl Fn(TcpStream, usize) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (nth, stream) in listener.incoming().map_while(Result::ok).enumerate() {
            let attend = attend.clone();
            stream.set_nodelay(true).unwrap();
            thread::spawn(move || attend(stream, nth));
        }
    });
    address
}

/// A server that gives each request to `answer`, until that returns an error.
pub(crate) fn answering(
    answer: impl Fn(&mut TcpStream, &str) -> std::io::Result<()> + Clone + Send + 'static,
) -> SocketAddr {
    server(move |mut stream, _| {
        while let Some(request) = read_request(&mut stream) {
            if answer(&mut stream, &request).is_err() {
                return;
            }
        }
    })
}

pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// Reads one request without a body, byte by byte: the next one may stand behind it.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    Some(String::from_utf8(request).unwrap())
}

/// An answer with this body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The target of a request.
pub(crate) fn target(request: &str) -> &str {
    request.split(' ').nth(1).unwrap()
}
