//! The responder over loopback, with hand-written requests.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
    thread,
};

use fathom_engine::StopFlag;
use fathom_http::{
    Responder, ResponderCounts, ResponderOptions,
    responder::{Certificate, Delay, KeepAliveLimit},
};
use fathom_model::units::{Bytes, Nanos};
use fathom_sys::clock;
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned, SupportedProtocolVersion,
    pki_types::{CertificateDer, pem::PemObject},
    version::{TLS12, TLS13},
};

/// Runs `ask` against a responder. Returns its counts.
fn asked(options: ResponderOptions, ask: impl FnOnce(SocketAddr)) -> ResponderCounts {
    let responder =
        Responder::bind("127.0.0.1:0".parse().unwrap(), &fathom_sys::policy::AllowedPeers::anybody(), options).unwrap();
    let address = responder.address();
    during(responder, || ask(address))
}

/// Runs `ask` while a responder answers. Returns its counts.
fn during(responder: Responder, ask: impl FnOnce()) -> ResponderCounts {
    /// Ends the responder also when an assertion fails.
    struct FinishOnDrop(StopFlag);
    impl Drop for FinishOnDrop {
        fn drop(&mut self) {
            self.0.finish();
        }
    }
    let stop = StopFlag::default();
    thread::scope(|scope| {
        let ending = FinishOnDrop(stop.clone());
        let running = scope.spawn(|| responder.run(&stop).unwrap());
        ask();
        drop(ending);
        running.join().unwrap()
    })
}

fn small() -> ResponderOptions {
    ResponderOptions { size: Bytes(3), ..ResponderOptions::default() }
}

/// Returns all bytes until the responder closes.
fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const GET: &str = "GET /any/path?x HTTP/1.1\r\nHost: a\r\n\r\n";
const LAST: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn get_and_head_are_answered_and_counted() {
    let counts = asked(small(), |address| {
        let answer = exchange(address, LAST);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nxxx"), "{answer}");
        assert!(answer.contains("\r\nContent-Length: 3\r\n") && answer.contains("\r\nConnection: close\r\n"));
        assert!(!answer.contains("01 Jan 1970"), "{answer}");
        let head = exchange(address, &LAST.replace("GET", "HEAD"));
        assert!(head.ends_with("\r\n\r\n") && head.contains("\r\nContent-Length: 3\r\n"), "{head}");
    });
    assert_eq!((counts.requests, counts.connections, counts.rejected), (2, 2, 0));
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let counts = asked(small(), |address| {
        let head = GET.replace("GET", "HEAD");
        let answer = exchange(address, &format!("{}{head}{GET}{LAST}", GET.repeat(100)));
        let bodies: Vec<&str> = answer.split("HTTP/1.1 200 OK").skip(1).map(|one| &one[one.len() - 3..]).collect();
        let expected: Vec<&str> = (0..103).map(|i| if i == 100 { "\n\r\n" } else { "xxx" }).collect();
        assert_eq!(bodies, expected);
    });
    assert_eq!(counts.requests, 103);
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let counts = asked(small(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        for byte in format!("{GET}{LAST}").bytes() {
            stream.write_all(&[byte]).unwrap();
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
    });
    assert_eq!(counts.requests, 2);
}

#[test]
fn an_http_1_0_client_is_told_that_the_connection_stays() {
    asked(small(), |address| {
        let answer = exchange(address, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET / HTTP/1.0\r\n\r\n");
        assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 2);
        assert_eq!(answer.matches("\r\nConnection: keep-alive\r\n").count(), 1);
    });
}

#[test]
fn what_cannot_be_answered_gets_its_status_and_the_connection_is_closed() {
    let counts = asked(small(), |address| {
        let cases = [
            ("nonsense\r\n\r\n".to_owned(), "400 Bad Request"),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400 Bad Request"),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), "405 Method Not Allowed"),
            ("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n".to_owned(), "400 Bad Request"),
            (format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}", "x".repeat(17_000)), "431 Request Header Fields Too Large"),
        ];
        for (request, status) in cases {
            assert!(exchange(address, &request).starts_with(&format!("HTTP/1.1 {status}\r\n")), "{status}");
        }
    });
    assert_eq!((counts.requests, counts.rejected), (0, 5));
}

#[test]
fn a_reader_that_takes_its_time_gets_everything() {
    let options = ResponderOptions { size: Bytes(4 << 20), ..ResponderOptions::default() };
    let counts = asked(options, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("{GET}{GET}{LAST}").as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let (mut total, mut piece) = (0, vec![0; 64 * 1024]);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                n => total += n,
            }
            thread::yield_now();
        }
        assert!(total > 3 * (4 << 20), "{total}");
    });
    assert_eq!(counts.requests, 3);
}

#[test]
fn a_client_that_never_finishes_its_request_is_hung_up_on() {
    let options = ResponderOptions { transfer_timeout: Nanos::from_millis(10), ..small() };
    let counts = asked(options, |address| assert_eq!(exchange(address, "GET / HT"), ""));
    assert_eq!((counts.timed_out, counts.requests), (1, 0));
}

#[test]
fn more_connections_than_allowed_wait_for_their_turn() {
    let options = ResponderOptions { connections_max: 1, ..small() };
    let counts = asked(options, |address| {
        let first = TcpStream::connect(address).unwrap();
        let second = thread::spawn(move || exchange(address, LAST));
        let mut first = first;
        first.write_all(LAST.as_bytes()).unwrap();
        first.read_to_end(&mut Vec::new()).unwrap();
        drop(first);
        assert!(second.join().unwrap().starts_with("HTTP/1.1 200 OK"));
    });
    assert_eq!((counts.requests, counts.connections), (2, 2));
}

#[test]
fn workers_share_one_port() {
    let counts = asked(ResponderOptions { workers: 3, ..small() }, |address| {
        for _ in 0..20 {
            assert!(exchange(address, LAST).starts_with("HTTP/1.1 200 OK"));
        }
    });
    assert_eq!((counts.requests, counts.connections), (20, 20));
}

#[test]
fn a_body_that_is_too_large_is_refused() {
    let options = ResponderOptions { size: Bytes(1 << 30), ..ResponderOptions::default() };
    let error = Responder::bind("127.0.0.1:0".parse().unwrap(), &fathom_sys::policy::AllowedPeers::anybody(), options)
        .unwrap_err();
    assert_eq!(error.to_string(), "a body of 1 GiB is more than the responder holds");
}

#[test]
fn a_body_is_skipped_however_it_is_framed() {
    let counts = asked(small(), |address| {
        let posts = [
            format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 300000\r\n\r\n{}", "y".repeat(300_000)),
            format!(
                "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
                "A\r\n0123456789\r\n".repeat(20_000)
            ),
            "DELETE / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ];
        let answer = exchange(address, &format!("{}{LAST}", posts.concat()));
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 4);
        assert!(answer.ends_with("\r\n\r\nxxx"));
    });
    assert_eq!((counts.requests, counts.rejected), (4, 0));
}

#[test]
fn a_client_that_asks_whether_to_send_its_body_is_told() {
    asked(small(), |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").unwrap();
        let mut word = [0; 25];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(format!("abc{LAST}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2, "{answer}");
    });
}

#[test]
fn statuses_come_in_the_shares_that_were_asked_for() {
    let options = ResponderOptions { statuses: "200:90%,404:8%,503:2%".parse().unwrap(), ..small() };
    let counts = asked(options, |address| {
        let answer = exchange(address, &format!("{}{LAST}", GET.repeat(99)));
        for (line, n) in [("200 OK", 90), ("404 Not Found", 8), ("503 Service Unavailable", 2)] {
            assert_eq!(answer.matches(&format!("HTTP/1.1 {line}\r\n")).count(), n, "{line}");
        }
        assert_eq!(answer.matches("\r\n\r\nxxx").count(), 100, "the body is the same");
    });
    assert_eq!((counts.requests, counts.rejected), (100, 0));
}

#[test]
fn a_connection_gets_as_many_answers_as_allowed() {
    for (keep_alive, n) in [("off", 1), ("3", 3)] {
        let keep_alive: KeepAliveLimit = keep_alive.parse().unwrap();
        let counts = asked(ResponderOptions { keep_alive, ..small() }, |address| {
            let answer = exchange(address, &GET.repeat(10));
            assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), n);
            assert_eq!(answer.matches("\r\nConnection: close\r\n").count(), 1, "{answer}");
            assert!(answer.ends_with("\r\n\r\nxxx"));
        });
        assert_eq!(counts.requests, n as u64);
    }
}

/// Sends one request on a persistent connection. Returns the times of the request and of its answer.
fn timed(stream: &mut TcpStream) -> (Nanos, Nanos) {
    let mut answer = [0; 1024];
    let asked = clock::now();
    stream.write_all(GET.as_bytes()).unwrap();
    let n = stream.read(&mut answer).unwrap();
    assert!(answer[..n].ends_with(b"\r\n\r\nxxx"));
    (asked, clock::now())
}

#[test]
fn no_answer_comes_before_its_delay_is_over() {
    let delay: Delay = "uniform 2ms..6ms".parse().unwrap();
    asked(ResponderOptions { delay: Some(delay), ..small() }, |address| {
        let ask = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let span = |(asked, answered): (Nanos, Nanos)| answered.since(asked);
            (0..50).map(|_| span(timed(&mut stream))).collect::<Vec<Nanos>>()
        };
        let clients: Vec<_> = (0..4).map(|_| thread::spawn(ask)).collect();
        let spans: Vec<Nanos> = clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        assert!(spans.iter().all(|span| *span >= Nanos::from_millis(2)), "{:?}", spans.iter().min());
        // Half of the delays are above 4 ms; the seed fixes which 200 are drawn.
        let n_long = spans.iter().filter(|span| **span >= Nanos::from_millis(4)).count();
        assert!(n_long >= 80, "{n_long} of {}", spans.len());
    });
}

#[test]
fn pipelined_requests_wait_one_after_the_other() {
    let options = ResponderOptions { delay: Some(Delay::constant(Nanos::from_millis(3))), ..small() };
    asked(options, |address| {
        let begin = clock::now();
        let answer = exchange(address, &format!("{}{LAST}", GET.repeat(9)));
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 10);
        assert!(clock::now() - begin >= Nanos::from_millis(30));
    });
}

#[test]
fn a_client_that_leaves_before_its_delayed_answer_is_forgotten() {
    let options =
        ResponderOptions { delay: Some(Delay::constant(Nanos::from_millis(5))), connections_max: 1, ..small() };
    let counts = asked(options, |address| {
        let mut rude = TcpStream::connect(address).unwrap();
        rude.write_all(GET.as_bytes()).unwrap();
        drop(rude);
        let half_closed = TcpStream::connect(address).unwrap();
        (&half_closed).write_all(GET.as_bytes()).unwrap();
        half_closed.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        (&half_closed).read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("\r\n\r\nxxx"), "who has only ended its own side is answered");
    });
    assert_eq!(counts.connections, 2);
}

#[test]
fn more_input_than_is_kept_behind_a_delayed_answer_waits_in_the_kernel() {
    let options = ResponderOptions { delay: Some(Delay::constant(Nanos::from_micros(100))), ..small() };
    let counts = asked(options, |address| {
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "x".repeat(9_000));
        let stream = TcpStream::connect(address).unwrap();
        let mut writing = stream.try_clone().unwrap();
        let writer = thread::spawn(move || {
            writing.write_all(long.repeat(99).as_bytes()).unwrap();
            writing.write_all(LAST.as_bytes()).unwrap();
        });
        let mut answer = String::new();
        (&stream).read_to_string(&mut answer).unwrap();
        writer.join().unwrap();
        assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 100);
    });
    assert_eq!(counts.requests, 100);
}

#[test]
fn no_worker_answers_while_all_stall() {
    let (span, period) = (Nanos::from_millis(60), Nanos::from_millis(150));
    let options = ResponderOptions { stall: "60ms/150ms".parse().ok(), workers: 2, ..small() };
    // The responder starts between these two times; its stalls are not known more exactly.
    let earliest = clock::now();
    asked(options, |address| {
        let mut streams: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stream in &mut streams {
            timed(stream);
        }
        let latest = clock::now();
        let mut n_within = 0;
        for stall in 1..=6 {
            clock::sleep_until(latest + period * stall + span / 4);
            let end = earliest + period * stall + span;
            for stream in &streams {
                let mut stream = stream.try_clone().unwrap();
                stream.write_all(GET.as_bytes()).unwrap();
                n_within += usize::from(clock::now() < end);
            }
            for stream in &mut streams {
                let _ = stream.read(&mut [0; 1024]).unwrap();
                assert!(clock::now() >= end, "answered within stall {stall}");
            }
        }
        assert!(n_within > 0, "this machine was too slow to ask anything within a stall");
    });
}

/// A certificate for `localhost` in files of a folder.
fn certificate(folder: &Path) -> Certificate {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (chain, key) = (folder.join("certificate.pem"), folder.join("key.pem"));
    fs::write(&chain, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Certificate::Files { chain, key }
}

/// A client that trusts only the certificate in a folder.
fn client(folder: &Path, version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("certificate.pem")).unwrap()).unwrap();
    let mut client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(client)
}

fn secured(address: SocketAddr, client: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let session = ClientConnection::new(Arc::clone(client), "localhost".try_into().unwrap()).unwrap();
    StreamOwned::new(session, TcpStream::connect(address).unwrap())
}

#[test]
fn tls_is_spoken_in_both_versions_and_sessions_are_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let options = ResponderOptions { certificate: Some(certificate(folder.path())), ..small() };
    let counts = asked(options, |address| {
        for version in [&TLS12, &TLS13] {
            let client = client(folder.path(), version);
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let mut stream = secured(address, &client);
                stream.write_all(format!("{GET}{GET}{LAST}").as_bytes()).unwrap();
                let mut answer = String::new();
                // Without the close alert this would fail, because the end could be an attacker's.
                stream.read_to_string(&mut answer).unwrap();
                assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{answer}");
                assert_eq!(stream.conn.alpn_protocol(), Some(b"http/1.1".as_slice()));
                assert_eq!(stream.conn.handshake_kind(), Some(kind), "{version:?}");
            }
        }
    });
    assert_eq!((counts.requests, counts.connections), (12, 4));
}

#[test]
fn what_is_large_or_slow_or_late_is_so_behind_tls_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let options = ResponderOptions {
        certificate: Some(certificate(folder.path())),
        size: Bytes(4 << 20),
        delay: Some(Delay::constant(Nanos::from_millis(2))),
        ..ResponderOptions::default()
    };
    asked(options, |address| {
        let mut stream = secured(address, &client(folder.path(), &TLS13));
        let begin = clock::now();
        let body = "y".repeat(1 << 20);
        let post = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        stream.write_all(format!("{post}{LAST}").as_bytes()).unwrap();
        let (mut total, mut piece) = (0, vec![0; 64 * 1024]);
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => break,
                n => total += n,
            }
            thread::yield_now();
        }
        assert!(total > 2 * (4 << 20), "{total}");
        assert!(clock::now() - begin >= Nanos::from_millis(4));
    });
}

#[test]
fn who_does_not_speak_tls_is_hung_up_on() {
    let options = ResponderOptions { certificate: Some(Certificate::SelfMade), ..small() };
    let counts = asked(options, |address| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(GET.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // An alert and the end, or a reset that overtakes it.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 100, "{answer:?}");
    });
    assert_eq!((counts.requests, counts.connections), (0, 1));
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let Certificate::Files { chain, key } = certificate(folder.path()) else { unreachable!("it is in files") };
    let cases = [
        (folder.path().join("nothing"), key.clone(), "cannot read the certificate in "),
        (chain.clone(), chain.clone(), "cannot read the private key in "),
        (key.clone(), key, "cannot use the certificate: "),
    ];
    for (chain, key, said) in cases {
        let certificate = Some(Certificate::Files { chain, key });
        let options = ResponderOptions { certificate, ..small() };
        let error =
            Responder::bind("127.0.0.1:0".parse().unwrap(), &fathom_sys::policy::AllowedPeers::anybody(), options)
                .unwrap_err();
        assert!(error.to_string().starts_with(said) && error.hint().is_some(), "{error}");
    }
}

#[test]
fn a_path_is_listened_at_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let responder = Responder::bind_unix(&path, ResponderOptions { workers: 2, ..small() }).unwrap();
    let counts = during(responder, || {
        for _ in 0..10 {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(format!("{GET}{LAST}").as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer.matches("HTTP/1.1 200 OK\r\n").count(), 2);
        }
        let error = Responder::bind_unix(&path, small()).unwrap_err();
        assert!(error.to_string().ends_with("another process listens there"), "{error}");
    });
    // The second responder's check of the path may have counted as a connection.
    assert_eq!(counts.requests, 20);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a listener leaves its name behind");
    drop(Responder::bind_unix(&path, small()).unwrap());
    assert!(!path.exists());
    fs::write(&path, "precious").unwrap();
    let error = Responder::bind_unix(&path, small()).unwrap_err();
    assert!(error.to_string().ends_with("the path exists and is not a socket"), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn version_6_of_ip_is_answered_too() {
    let Ok(responder) =
        Responder::bind("[::1]:0".parse().unwrap(), &fathom_sys::policy::AllowedPeers::anybody(), small())
    else {
        return fathom_testkit::skip("needs IPv6 on the loopback");
    };
    let address = responder.address();
    let counts = during(responder, || assert!(exchange(address, LAST).starts_with("HTTP/1.1 200 OK\r\n")));
    assert_eq!(counts.requests, 1);
}
