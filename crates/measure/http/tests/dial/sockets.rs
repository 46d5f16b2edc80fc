//! The same with sockets: a whole load against servers that see what arrives.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    sync::{Arc, Mutex, mpsc},
    thread,
};

use fathom_engine::{Error, TestKind, TrialContext};
use fathom_http::{HttpClosed, names};
use fathom_model::{
    Endpoints, Phases, Record, Role, Settings, Side,
    names::{count, distribution},
    units::Nanos,
};
use fathom_sys::{clock, policy::Policy};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::server::{Issuer, Server, Validity};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Sends 20 requests on two connections, or returns the error.
fn ask(options: &[(&str, &str)]) -> Result<Record, Error> {
    let settings = options.iter().fold(Settings::default(), |all, (name, value)| all.with(name, *value));
    let settings = settings.with("connections", "2").with("count", "20").complete(HttpClosed.options())?;
    let phases = Phases {
        warmup_max_ns: Nanos::ZERO,
        is_warmup_whole: false,
        measure_ns: Nanos::from_secs(20),
        interval_ns: Nanos::from_millis(20),
    };
    let role = Role {
        test: "requests".to_owned(),
        kind: HttpClosed.name().to_owned(),
        side: Side::Initiator,
        settings,
        phases,
        address: None,
        interface: None,
        peer: Endpoints::new(),
        cores: Vec::new(),
        meeting: fathom_model::PeerAddresses::default(),
        seed: 1,
    };
    HttpClosed.prepare(&role, &Policy::anything())?.run(&TrialContext::new(clock::now(), phases))
}

/// Answers requests until the client has no more; reports each to `seen`.
fn answer(stream: impl Read + Write, seen: &mpsc::Sender<String>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !stream.read_line(&mut head).is_ok_and(|n| n > 0) {
                return;
            }
        }
        let is_last = head.contains("Connection: close");
        if stream.get_mut().write_all(ANSWER).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
        // The receiver may already be gone.
        let _ = seen.send(head);
        if is_last {
            return;
        }
    }
}

/// A server that passes each connection to `attend`.
fn listen(attend: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_nodelay(true).unwrap();
            let attend = attend.clone();
            thread::spawn(move || attend(stream));
        }
    });
    address
}

fn encrypted(stream: TcpStream, config: &Arc<ServerConfig>) -> StreamOwned<ServerConnection, TcpStream> {
    StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream)
}

fn secured(config: Arc<ServerConfig>) -> (SocketAddr, mpsc::Receiver<String>) {
    let (sender, seen) = mpsc::channel();
    (listen(move |stream| answer(encrypted(stream, &config), &sender)), seen)
}

fn is_whole(record: &Record) {
    assert_eq!((record.totals[count::REQUESTS], record.totals[names::ERRORS]), (20, 0), "{:?}", record.errors);
}

#[test]
fn requests_are_answered_over_tls() {
    let issuer = Issuer::new();
    let (address, seen) = secured(issuer.server("server.example").config());
    let port = address.port();
    let url = format!("https://server.example:{port}/x");
    let to = address.to_string();
    // The first of two connections may have answered everything before the second is open.
    for (per_connection, possible) in [("1", 20..=20), ("1000", 1..=2)] {
        let options =
            [("url", url.as_str()), ("connect-to", &to), ("ca", &issuer.ca()), ("per-connection", per_connection)];
        let record = ask(&options).unwrap();
        is_whole(&record);
        let n_connections = record.totals[count::CONNECTIONS];
        assert!(possible.contains(&n_connections), "{n_connections}");
        assert_eq!(record.distributions[distribution::TLS_TIME].count(), n_connections);
        let heads: Vec<String> = seen.iter().take(20).collect();
        assert!(
            heads.iter().all(|head| head.starts_with(&format!("GET /x HTTP/1.1\r\nHost: server.example:{port}\r\n")))
        );
    }
}

#[test]
fn a_certificate_that_does_not_verify_ends_the_test_with_one_message() {
    let issuer = Issuer::new();
    let server = Server { validity: Validity::Over, ..issuer.server("server.example") };
    let (address, seen) = secured(server.config());
    let (url, to) = (format!("https://server.example:{}/", address.port()), address.to_string());
    let options = [("url", url.as_str()), ("connect-to", &to)];
    let error = ask(&[&options[..], &[("ca", &issuer.ca())]].concat()).unwrap_err();
    assert!(error.to_string().ends_with("tls: the certificate has expired"), "{error}");
    assert!(error.to_string().contains("https://server.example:"), "{error}");
    assert!(error.hint().unwrap().contains("insecure"));
    assert!(seen.try_recv().is_err(), "no request was sent");
    let record = ask(&[&options[..], &[("insecure", "true")]].concat()).unwrap();
    is_whole(&record);
    assert!(record.notes.iter().any(|note| note.text.contains("not verified")), "{:?}", record.notes);
}

/// A proxy that opens any requested tunnel, and answers other requests itself.
fn proxy() -> (SocketAddr, mpsc::Receiver<String>) {
    let (sender, seen) = mpsc::channel();
    let address = listen(move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.peek(&mut byte).is_ok_and(|n| n > 0) {
            if head.is_empty() && &byte != b"C" {
                return answer(stream, &sender);
            }
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let Some(to) = head.split(' ').nth(1).map(str::to_owned) else { return };
        let _ = sender.send(head);
        let server = TcpStream::connect(to).unwrap();
        server.set_nodelay(true).unwrap();
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
        for (mut from, mut into) in [(stream.try_clone().unwrap(), server.try_clone().unwrap()), (server, stream)] {
            thread::spawn(move || std::io::copy(&mut from, &mut into));
        }
    });
    (address, seen)
}

#[test]
fn a_proxy_passes_requests_on_and_makes_tunnels() {
    let issuer = Issuer::new();
    let (address, seen) = secured(issuer.server("127.0.0.1").config());
    let (proxy, asked) = proxy();
    let (url, through) = (format!("https://{address}/x"), format!("http://me:pw@{proxy}"));
    let record = ask(&[("url", &url), ("proxy", &through), ("ca", &issuer.ca())]).unwrap();
    is_whole(&record);
    let n_connections = record.totals[count::CONNECTIONS];
    assert_eq!(record.distributions[distribution::PROXY_TIME].count(), n_connections);
    assert!(seen.iter().take(20).all(|head| head.starts_with("GET /x HTTP/1.1\r\n")));
    // The first of two connections may have answered everything before the second has its tunnel.
    assert!((1..=2).contains(&n_connections), "{n_connections}");
    let tunnels = asked.iter().take(usize::try_from(n_connections).unwrap()).collect::<Vec<_>>();
    assert!(tunnels.iter().all(|head| head.starts_with(&format!("CONNECT {address} HTTP/1.1\r\n"))), "{tunnels:?}");

    // A separate proxy, because the request for that second tunnel may arrive only now.
    let (proxy, asked) = self::proxy();
    let through = format!("http://me:pw@{proxy}");
    is_whole(&ask(&[("url", "http://a.invalid/x"), ("proxy", &through)]).unwrap());
    assert!(
        asked.iter().take(20).all(|head| head.starts_with("GET http://a.invalid/x HTTP/1.1\r\nHost: a.invalid\r\n"))
    );
}

#[test]
fn a_proxy_that_refuses_ends_the_test_with_one_message() {
    let proxy = listen(|mut stream| {
        let mut head = [0; 512];
        let _ = stream
            .read(&mut head)
            .and_then(|_| stream.write_all(b"HTTP/1.1 407 Who are you\r\nContent-Length: 0\r\n\r\n"));
    });
    let error = ask(&[("url", "https://a.invalid/"), ("proxy", &format!("http://{proxy}")), ("insecure", "true")]);
    let error = error.unwrap_err();
    assert!(error.to_string().ends_with("proxy: no tunnel: status 407"), "{error}");
    assert!(error.hint().unwrap().contains("name:password"));
}

#[test]
fn the_proxy_protocol_says_who_connects_before_the_first_request() {
    let (sender, seen) = mpsc::channel();
    let address = listen(move |stream| {
        let peer = stream.peer_addr().unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let (own, of) = (stream.get_ref().local_addr().unwrap(), peer);
        assert_eq!(line, format!("PROXY TCP4 {} {} {} {}\r\n", of.ip(), own.ip(), of.port(), own.port()));
        let (buffered, stream) = (stream.buffer().to_vec(), stream.into_inner());
        answer(ChainedStream(std::io::Cursor::new(buffered), stream), &sender);
    });
    let url = format!("http://{address}/");
    let record =
        ask(&[("url", &url), ("proxy-protocol", "v1"), ("source", "127.0.0.5,127.0.0.6"), ("per-connection", "1")]);
    is_whole(&record.unwrap());
    assert_eq!(seen.iter().take(20).count(), 20);
}

/// The bytes already read, and the stream that they were read from.
struct ChainedStream(std::io::Cursor<Vec<u8>>, TcpStream);

impl Read for ChainedStream {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(bytes)? {
            0 => self.1.read(bytes),
            n => Ok(n),
        }
    }
}

impl Write for ChainedStream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.1.flush()
    }
}

#[test]
fn connections_come_from_each_source_in_turn() {
    let from = Arc::new(Mutex::new(Vec::new()));
    let (sender, _seen) = mpsc::channel();
    let peers = Arc::clone(&from);
    let address = listen(move |stream| {
        peers.lock().unwrap().push(stream.peer_addr().unwrap().ip().to_string());
        answer(stream, &sender);
    });
    let url = format!("http://{address}/");
    is_whole(&ask(&[("url", &url), ("source", "127.0.1.0/30"), ("per-connection", "1")]).unwrap());
    let from = from.lock().unwrap();
    let n = |address: &str| from.iter().filter(|peer| *peer == address).count();
    assert_eq!((n("127.0.1.1"), n("127.0.1.2"), from.len()), (10, 10, 20), "{from:?}");
}

#[test]
fn requests_go_through_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, seen) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let sender = sender.clone();
            thread::spawn(move || answer(stream, &sender));
        }
    });
    is_whole(&ask(&[("url", "http://a.invalid/x"), ("unix", path.to_str().unwrap())]).unwrap());
    assert!(seen.iter().take(20).all(|head| head.starts_with("GET /x HTTP/1.1\r\nHost: a.invalid\r\n")));
}

#[test]
fn a_name_is_looked_up_for_each_connection_and_that_is_a_phase() {
    let (sender, _seen) = mpsc::channel();
    let address = listen(move |stream| answer(stream, &sender));
    let url = format!("http://localhost:{}/", address.port());
    let record = ask(&[("url", &url), ("dns", "connection"), ("per-connection", "5"), ("ip", "4")]).unwrap();
    is_whole(&record);
    let n = record.totals[count::CONNECTIONS];
    assert!((4..=6).contains(&n), "{n}");
    assert!(record.distributions[distribution::DNS_TIME].count() >= n);
}

#[test]
fn urls_are_asked_by_weight() {
    let (sender, seen) = mpsc::channel();
    let address = listen(move |stream| answer(stream, &sender));
    let urls = format!("3 http://{address}/often\n1 http://{address}/seldom");
    is_whole(&ask(&[("url", &urls)]).unwrap());
    let n = seen.iter().take(20).filter(|head| head.starts_with("GET /often ")).count();
    assert_eq!(n, 15);
}
