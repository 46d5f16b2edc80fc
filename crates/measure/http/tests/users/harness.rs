//! Shared by the tests: roles, sessions, and scripted servers.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    thread,
};

use fathom_engine::{Error, TrialContext};
use fathom_http::users::{OPTIONS, UserArrivals, UserSlot, VirtualUsers};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_sys::clock;

use crate::{
    common::{reactor, read_request},
    scripted_users::{EventLog, EventLogs, Script, ScriptedAction, ScriptedUsers},
};

/// Long enough for users that end by themselves, however busy the machine is.
pub(crate) const LONG: Phases = Phases {
    warmup_max_ns: Nanos::ZERO,
    is_warmup_whole: false,
    measure_ns: Nanos::from_secs(20),
    interval_ns: Nanos::from_millis(20),
};

/// Virtual users of these servers.
pub(crate) fn virtual_users(urls: &str, options: &[(&str, &str)], arrivals: UserArrivals) -> VirtualUsers {
    let settings = Settings::default().with("reactor", reactor()).with("url", urls);
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
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    VirtualUsers::prepare("app_test", &role, &fathom_sys::policy::Policy::anything(), arrivals).unwrap()
}

pub(crate) fn population(n: u64) -> UserArrivals {
    UserArrivals::Population { n, ramp_up: Nanos::ZERO }
}

/// Runs users that all follow one script, in one worker, until all have left.
pub(crate) fn run(
    crowd: &VirtualUsers,
    script: impl Fn(UserSlot, &EventLog) -> ScriptedAction + Sync,
) -> Result<(Record, EventLogs), Error> {
    run_for(LONG, crowd, script)
}

/// The same with given phases.
pub(crate) fn run_for(
    phases: Phases,
    crowd: &VirtualUsers,
    script: impl Fn(UserSlot, &EventLog) -> ScriptedAction + Sync,
) -> Result<(Record, EventLogs), Error> {
    assert_eq!(crowd.n_workers(), 1);
    let session = TrialContext::new(clock::now() + Nanos::from_millis(2), phases);
    let (record, mut memories) = run_any(&session, crowd, &script)?;
    Ok((record, memories.remove(0)))
}

/// The same for a script of any type, so that the compiler writes the loads once for all tests and not once for each.
fn run_any(
    session: &TrialContext,
    crowd: &VirtualUsers,
    script: &Script<'_>,
) -> Result<(Record, Vec<EventLogs>), Error> {
    crowd.run(session, |row| Ok(ScriptedUsers::new(row, script)))
}

/// A server that passes each connection, with its number, to `attend`; it ends with the test.
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

/// A server that passes each request to `answer`, until that returns an error.
pub(crate) fn answering_server(
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

/// An answer with this body.
pub(crate) fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// The target of a request.
pub(crate) fn target(request: &str) -> &str {
    request.split(' ').nth(1).unwrap()
}
