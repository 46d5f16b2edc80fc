//! What the tests of the kinds share: roles, sessions, and servers that behave as they are told.

use std::{
    cell::Cell,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use fathom_engine::{Error, Session, TestKind};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::{clock, reactor::uring};

pub(crate) const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::from_millis(40),
    measure_ns: Nanos::from_millis(160),
    interval_ns: Nanos::from_millis(20),
};

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

pub(crate) fn role(kind: &dyn TestKind, side: Side, options: &[(&str, &str)]) -> Role {
    let settings = Settings::default().with("reactor", REACTOR.get());
    let settings = options.iter().fold(settings, |all, (name, value)| all.with(name, *value));
    Role {
        test: "requests".to_owned(),
        kind: kind.name().to_owned(),
        side,
        settings: settings.complete(kind.options()).unwrap(),
        phases: PHASES,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        seed: 1,
    }
}

/// What ends by a number has time for it, however busy the machine is.
pub(crate) fn long_enough(phases: Phases, options: &[(&str, &str)]) -> Phases {
    let is_counted = options.iter().any(|(name, _)| *name == "requests");
    if is_counted { Phases { measure_ns: Nanos::from_secs(20), ..phases } } else { phases }
}

/// Runs both sides; the records of the initiator and of the responder.
pub(crate) fn both(kind: &dyn TestKind, options: &[(&str, &str)]) -> (Record, Record) {
    let responder = kind.prepare(&role(kind, Side::Responder, options)).unwrap();
    let peer = responder.endpoints();
    let initiator = kind.prepare(&Role { peer, ..role(kind, Side::Initiator, options) }).unwrap();
    let phases = long_enough(PHASES, options);
    let session = || Session::new(clock::now() + Nanos::from_millis(2), phases);
    let (here, there) = (session(), session());
    let stop = there.stop.clone();
    thread::scope(|scope| {
        let answered = scope.spawn(move || responder.run(&there).unwrap());
        let asked = initiator.run(&here);
        stop.finish();
        (asked.unwrap(), answered.join().unwrap())
    })
}

/// Runs the initiator against any server for some time, without a warm-up when there is none in `phases`.
pub(crate) fn against(
    kind: &dyn TestKind,
    phases: Phases,
    address: SocketAddr,
    options: &[(&str, &str)],
) -> Result<Record, Error> {
    let url = format!("http://{address}");
    let options = [options, &[("url", &url)]].concat();
    let phases = long_enough(phases, &options);
    kind.prepare(&role(kind, Side::Initiator, &options))?.run(&Session::new(clock::now(), phases))
}

/// A server that gives each request to `answer` until that returns an error; it ends when the test does.
pub(crate) fn server(answer: impl Fn(&mut TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            thread::spawn(move || while read_request(&mut stream).is_some() && answer(&mut stream).is_ok() {});
        }
    });
    address
}

/// A server that always answers with the same bytes.
pub(crate) fn server_of(text: &'static [u8]) -> SocketAddr {
    server(move |stream| stream.write_all(text))
}

/// Reads one request without a body, byte by byte: the next one may stand behind it.
pub(crate) fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        request.push(byte[0]);
    }
    Some(request)
}
