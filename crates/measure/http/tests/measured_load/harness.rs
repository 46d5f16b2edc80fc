//! Shared by the tests of the kinds: roles, sessions, and scripted servers.

use std::{
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use fathom_engine::{Error, TestKind, TrialContext};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::{clock, policy::Policy};

use crate::common::{reactor, read_request};

pub(crate) const PHASES: Phases = Phases {
    warmup_max_ns: Nanos::from_millis(40),
    is_warmup_whole: false,
    measure_ns: Nanos::from_millis(160),
    interval_ns: Nanos::from_millis(20),
};

pub(crate) fn role(kind: &dyn TestKind, side: Side, options: &[(&str, &str)]) -> Role {
    let settings = Settings::default().with("reactor", reactor());
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
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    }
}

/// Gives a counted run enough time, however busy the machine is.
pub(crate) fn long_enough(phases: Phases, options: &[(&str, &str)]) -> Phases {
    let is_counted = options.iter().any(|(name, _)| *name == "count");
    if is_counted { Phases { measure_ns: Nanos::from_secs(20), ..phases } } else { phases }
}

/// Runs both sides. Returns the records of the initiator and of the responder.
pub(crate) fn run_both_sides(kind: &dyn TestKind, options: &[(&str, &str)]) -> (Record, Record) {
    let responder = kind.prepare(&role(kind, Side::Responder, options), &Policy::anything()).unwrap();
    let peer = responder.endpoints();
    let initiator = kind.prepare(&Role { peer, ..role(kind, Side::Initiator, options) }, &Policy::anything()).unwrap();
    let phases = long_enough(PHASES, options);
    let session = || TrialContext::new(clock::now() + Nanos::from_millis(2), phases);
    let (here, there) = (session(), session());
    let stop = there.stop.clone();
    thread::scope(|scope| {
        let answered = scope.spawn(move || responder.run(&there).unwrap());
        let asked = initiator.run(&here);
        stop.finish();
        (asked.unwrap(), answered.join().unwrap())
    })
}

/// Runs the initiator against any server for the time in `phases`, with a warm-up only if `phases` has one.
pub(crate) fn run_against(
    kind: &dyn TestKind,
    phases: Phases,
    address: SocketAddr,
    options: &[(&str, &str)],
) -> Result<Record, Error> {
    let url = format!("http://{address}");
    let options = [options, &[("url", &url)]].concat();
    let phases = long_enough(phases, &options);
    kind.prepare(&role(kind, Side::Initiator, &options), &Policy::anything())?
        .run(&TrialContext::new(clock::now(), phases))
}

/// A server that passes each request to `answer` until that returns an error; it ends with the test.
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
