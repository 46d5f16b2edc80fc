//! A server on loopback that records its requests, and the runs that send them.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use fathom_engine::{TestKind as _, TrialContext};
use fathom_model::{Endpoints, Phases, Role, Settings, Side, steps::UsersRecord, units::Nanos};
use fathom_scenario::execution::AppScenario;
use fathom_sys::{clock, policy::Policy};

/// A request as a server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Method and target.
    pub(crate) line: String,
    /// In the order of arrival, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The request without headers that depend on the connection and the body, sorted for comparison.
    pub(crate) fn compared(mut self) -> Self {
        let by_itself = ["host", "content-length", "connection", "keep-alive", "expect"];
        self.headers.retain(|(name, _)| !by_itself.contains(&name.as_str()));
        self.headers.sort();
        if let Some((_, value)) = self.headers.iter_mut().find(|(name, _)| name == "content-type")
            && let Some((media, boundary)) = value.clone().split_once("; boundary=")
        {
            let boundary = boundary.split(';').next().unwrap_or_default();
            self.body = self.body.replace(boundary, "BOUNDARY");
            media.clone_into(value);
        }
        self.line = upper_hex(&self.line);
        self.body = upper_hex(&self.body);
        self
    }

    /// The form in which it is kept in a file: readable lines.
    pub(crate) fn written(&self) -> String {
        let mut text = format!("{}\n", self.line);
        for (name, value) in &self.headers {
            let _ = writeln!(text, "  {name}: {value}");
        }
        // Line ends are sent unchanged.
        for line in self.body.replace('\r', "\\r").lines() {
            let _ = writeln!(text, "  | {line}");
        }
        text
    }
}

/// Percent-encoding ignores case (RFC 3986 section 2.1), and tools differ in it.
fn upper_hex(text: &str) -> String {
    let mut pieces = text.split('%');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |all, piece| match piece.split_at_checked(2) {
        Some((hex, rest)) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{all}%{}{rest}", hex.to_uppercase())
        }
        _ => format!("{all}%{piece}"),
    })
}

/// The answer of a server: a status, header fields and a body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: &str) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self { status, headers: headers.collect(), body: body.to_owned() }
    }

    /// An empty success.
    pub(crate) fn fine() -> Self {
        Self::new(200, &[], "")
    }

    fn bytes(&self) -> String {
        let mut text = format!("HTTP/1.1 {} Told\r\nContent-Length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        text + "\r\n" + &self.body
    }
}

/// The server; it ends with the test.
pub(crate) struct Recorder {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Recorder {
    /// Answers each request with the result of `answer`.
    pub(crate) fn start(answer: impl FnMut(&Request) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::new(Mutex::new(answer));
        let recorder = Self { address, seen: Arc::clone(&seen) };
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&shared));
                thread::spawn(move || {
                    let mut reader = BufReader::new(&stream);
                    while let Some(request) = read(&mut reader) {
                        // Recorded before the answer, so that a client with all answers finds all requests.
                        let bytes = (answer.lock().unwrap())(&request).bytes();
                        seen.lock().unwrap().push(request);
                        if (&stream).write_all(bytes.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        recorder
    }

    /// The requests so far, in the form for comparison.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().iter().cloned().map(Request::compared).collect()
    }

    /// The requests so far, in the form of the file.
    pub(crate) fn written(&self) -> String {
        self.seen().iter().map(Request::written).collect()
    }

    /// Runs a scenario file with one user and `n_iterations` iterations on the real engine.
    pub(crate) fn play(&self, file: &Path, n_iterations: u32) -> UsersRecord {
        let settings = Settings::default()
            .with("file", file.to_str().unwrap())
            .with("url", format!("http://{}/", self.address))
            .with("users", "1")
            .with("iterations", n_iterations.to_string())
            .with("threads", "1");
        let phases = Phases {
            warmup_max_ns: Nanos::ZERO,
            is_warmup_whole: false,
            // It ends when the user is done; this is enough time for a busy machine.
            measure_ns: Nanos::from_secs(60),
            interval_ns: Nanos::from_millis(100),
        };
        let role = Role {
            test: "replay".to_owned(),
            kind: AppScenario.name().to_owned(),
            side: Side::Initiator,
            settings: settings.complete(AppScenario.options()).unwrap(),
            phases,
            address: None,
            interface: None,
            peer: Endpoints::new(),
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: 1,
        };
        let test = AppScenario.prepare(&role, &Policy::anything()).unwrap();
        let record = test.run(&TrialContext::new(clock::now(), phases)).unwrap();
        record.users.unwrap()
    }
}

/// Copies the files of a plan into a folder, for the tools that run there.
pub(crate) fn lay_out(files: &[&str], here: &Path) {
    for file in files {
        fs::copy(super::folder().join(file), here.join(file)).unwrap();
    }
}

/// Fails with the first line that differs, because both texts are long.
pub(crate) fn assert_alike(ours: &str, theirs: &str) {
    let (mut asked, mut lines) = ("", (ours.lines(), theirs.lines()));
    loop {
        let (own, other) = (lines.0.next(), lines.1.next());
        asked = other.filter(|line| !line.starts_with(' ')).unwrap_or(asked);
        assert_eq!(own, other, "at {asked}");
        if own.is_none() {
            break;
        }
    }
}

/// The next request of a connection; `None` if there is none.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<Request> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let fields = lines[1..].iter().map(|line| line.split_once(':').unwrap());
    let headers = fields.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    let line = lines[0].strip_suffix(" HTTP/1.1").unwrap().to_owned();
    let mut request = Request { line, headers, body: String::new() };
    if request.header("expect").is_some() {
        reader.get_mut().write_all(b"HTTP/1.1 100 Continue\r\n\r\n").ok()?;
    }
    let mut body = vec![0; request.header("content-length").map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).ok()?;
    request.body = String::from_utf8(body).unwrap();
    Some(request)
}
