//! Scenarios against a small server on loopback: the exact bytes of requests, and the handling of answers.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use fathom_engine::{TestKind as _, TrialContext};
use fathom_model::{Endpoints, Phases, Record, Role, Settings, Side, units::Nanos};
use fathom_scenario::execution::AppScenario;
use fathom_sys::{clock, policy::Policy};

/// Long enough for runs that end by themselves, however busy the machine is.
const LONG: Phases = Phases {
    warmup_max_ns: Nanos::ZERO,
    is_warmup_whole: false,
    measure_ns: Nanos::from_secs(20),
    interval_ns: Nanos::from_millis(20),
};

/// A server that keeps the heads of its requests.
struct Server {
    address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// It ends with the test; `answer` receives a request line.
    fn open(answer: impl Fn(&str) -> Vec<u8> + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, answer) = (Arc::clone(&kept), answer.clone());
                thread::spawn(move || attend(stream, &kept, answer));
            }
        });
        Self { address, heads }
    }

    /// The cookie lines of each request.
    fn cookies(&self) -> Vec<Vec<String>> {
        let heads = self.heads.lock().unwrap();
        let cookies = |head: &String| {
            let lines = head.lines().filter(|line| line.to_ascii_lowercase().starts_with("cookie:"));
            lines.map(str::to_owned).collect()
        };
        heads.iter().map(cookies).collect()
    }
}

fn attend(mut stream: TcpStream, kept: &Mutex<Vec<String>>, answer: impl Fn(&str) -> Vec<u8>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(1..) => {}
                _ => return,
            }
        }
        let answer = answer(head.lines().next().unwrap());
        kept.lock().unwrap().push(head);
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Answers 200, or 302 if the fields begin with a location, with a body of its length.
fn answer(fields: &str, body: &[u8]) -> Vec<u8> {
    let status = if fields.starts_with("Location") { "302 Found" } else { "200 OK" };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// One user runs a scenario.
fn run(scenario: &str, server: &Server) -> Record {
    let settings = Settings::default()
        .with("script", scenario)
        .with("url", format!("http://{}/", server.address))
        .with("threads", "1");
    let role = Role {
        test: "users".to_owned(),
        kind: "app_scenario".to_owned(),
        side: Side::Initiator,
        settings: settings.complete(AppScenario.options()).unwrap(),
        phases: LONG,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    AppScenario.prepare(&role, &Policy::anything()).unwrap().run(&TrialContext::new(clock::now(), LONG)).unwrap()
}

/// The causes of failed steps, each once.
fn causes(record: &Record) -> Vec<String> {
    let steps = &record.users.as_ref().unwrap().steps;
    steps.iter().flat_map(|step| step.errors.keys().map(|cause| format!("{}: {cause}", step.name))).collect()
}

const COOKIES: &str = "\
closed 1 repeat 1
redirects 1
cookies on
step in
  GET /in
step page
  GET /page
  Cookie: own=1; sid=mine
step moved
  GET /moved/${rand 1..9 width 1}
  cookie: own=${iteration}
step plain
  GET /plain
";

#[test]
fn a_steps_own_cookies_go_with_those_of_its_user_in_one_line() {
    let server = Server::open(|line| match line.split(' ').nth(1).unwrap() {
        "/in" => answer("Set-Cookie: sid=s1; Path=/\r\nSet-Cookie: b=2; Path=/\r\n", b""),
        path if path.starts_with("/moved") => answer("Location: /there\r\nSet-Cookie: c=3; Path=/\r\n", b""),
        _ => answer("", b""),
    });
    let record = run(COOKIES, &server);
    assert_eq!(causes(&record), [""; 0]);
    let expected: [&[&str]; 5] = [
        &[],
        &["Cookie: own=1; sid=mine; b=2"],
        &["Cookie: own=1; sid=s1; b=2"],
        &["Cookie: own=1; sid=s1; b=2; c=3"],
        &["Cookie: sid=s1; b=2; c=3"],
    ];
    assert_eq!(server.cookies(), expected);
    let off = Server::open(|_| answer("Set-Cookie: sid=s1; Path=/\r\n", b""));
    run(&COOKIES.replace("cookies on", "cookies off"), &off);
    let expected: [&[&str]; 4] = [&[], &["Cookie: own=1; sid=mine"], &["cookie: own=1"], &[]];
    assert_eq!(off.cookies(), expected, "without a jar a step says all there is");
}

#[test]
fn a_packed_body_is_looked_into_as_it_was_meant_by_those_who_look() {
    let scenario = "\
closed 1 repeat 1
step login
  GET /login
  Accept-Encoding: gzip, deflate, br
  expect json $.user == \"ann\"
  take token = regex /token\":\"([a-z]+)/
step use
  GET /use/${token}
  expect body contains \"no such\"
  on failure continue
step bomb
  GET /bomb
  expect body contains \"x\"
  on failure continue
step blind
  GET /bomb
";
    let packed = |body: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(body).unwrap();
        encoder.finish().unwrap()
    };
    let (bomb, json) = (packed(&vec![b' '; 17 << 20]), packed(br#"{"user":"ann","token":"abcdef"}"#));
    let server = Server::open(move |line| match line.split(' ').nth(1).unwrap() {
        "/login" => answer("Content-Encoding: gzip\r\n", &json),
        "/bomb" => answer("Content-Encoding: gzip\r\n", &bomb),
        path => answer("Content-Encoding: gzip\r\n", &packed(format!("you asked for {path}").as_bytes())),
    });
    let record = run(scenario, &server);
    let expected =
        ["use: body contains \"no such\" does not hold", "bomb: the body is more than 16 MiB when it is unpacked"];
    assert_eq!(causes(&record), expected);
    let example = &record.users.as_ref().unwrap().steps[1].examples[0];
    assert!(example.answer.ends_with("\r\n\r\nyou asked for /use/***"), "{example:?}");
}
