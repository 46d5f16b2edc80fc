//! The routes to a server, through the kinds: TLS, a proxy, the PROXY protocol, unix sockets, several servers.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    sync::Arc,
    thread,
};

use crate::{
    common::over_both,
    harness::{PHASES, long_enough, role, server_of},
};
use fathom_engine::{Error, TestKind, TrialContext};
use fathom_http::{
    HttpClosed, HttpOpen,
    names::{self, facts},
};
use fathom_model::{
    Record, Side,
    names::{count, distribution},
};
use fathom_sys::{clock, policy::Policy};
use rustls::{ServerConfig, ServerConnection, StreamOwned, pki_types::PrivateKeyDer};

over_both! {
    requests_go_through_tls
    what_tls_agreed_on_and_what_it_resumed_is_told
    an_answer_that_ends_with_a_connection_that_tls_did_not_close_is_told
    a_certificate_that_nobody_vouches_for_ends_the_trial_with_one_message
    https_goes_through_a_proxy_and_what_a_proxy_refuses_is_told
    a_connection_may_be_announced_and_a_unix_socket_is_a_way_like_any_other
    requests_are_shared_among_servers_and_paths_by_their_weights
    names_are_looked_up_for_each_connection_when_asked
    one_server_that_stalls_holds_back_no_request_for_another
    what_the_kernel_stamps_is_less_than_what_a_client_waits_for
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn run(kind: &dyn TestKind, options: &[(&str, &str)]) -> Result<Record, Error> {
    let phases = long_enough(PHASES, options);
    kind.prepare(&role(kind, Side::Initiator, options), &Policy::anything())?
        .run(&TrialContext::new(clock::now(), phases))
}

/// The records of both kinds for twenty requests.
fn twenty(options: &[(&str, &str)]) -> [Record; 2] {
    let options = [options, &[("count", "20"), ("connections", "2")]].concat();
    let records =
        [run(&HttpClosed, &options), run(&HttpOpen, &[&options[..], &[("rate", "1k")]].concat())].map(Result::unwrap);
    for record in &records {
        assert_eq!(record.totals[count::REQUESTS], 20, "{:?}", record.errors);
        assert!(record.errors.is_empty(), "{:?}", record.errors);
    }
    records
}

fn until_the_end_of_a_head(stream: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}

fn listening() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

type TlsServerStream = StreamOwned<ServerConnection, TcpStream>;

/// A TLS server that passes each request to `answer` until that ends the connection.
fn secure_server_of(answer: fn(&mut TlsServerStream, &str) -> bool) -> SocketAddr {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![own.cert.der().clone()], key).unwrap());
    let (listener, address) = listening();
    thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let mut stream = StreamOwned::new(ServerConnection::new(Arc::clone(&config)).unwrap(), socket);
            thread::spawn(
                move || {
                    while until_the_end_of_a_head(&mut stream).is_some_and(|head| answer(&mut stream, &head)) {}
                },
            );
        }
    });
    address
}

fn secure_server() -> SocketAddr {
    secure_server_of(|stream, _| stream.write_all(OK).is_ok())
}

fn requests_go_through_tls() {
    let url = format!("https://{}", secure_server());
    for record in twenty(&[("url", &url), ("insecure", "true")]) {
        let n_connections = record.totals[count::CONNECTIONS];
        assert_eq!(record.distributions[distribution::TLS_TIME].count(), n_connections);
        assert!(record.notes.iter().any(|note| note.id == "tls-insecure"));
    }
    let options = [("url", url.as_str()), ("insecure", "true"), ("per-connection", "1"), ("pipeline", "3")];
    let record = run(&HttpClosed, &[&options[..], &[("count", "20"), ("connections", "2")]].concat()).unwrap();
    assert_eq!((record.totals[count::REQUESTS], record.totals[count::CONNECTIONS]), (20, 20), "{:?}", record.errors);
}

fn what_tls_agreed_on_and_what_it_resumed_is_told() {
    let url = format!("https://{}", secure_server());
    let options = [("url", url.as_str()), ("insecure", "true"), ("per-connection", "1"), ("count", "20")];
    for (resumption, n_resumed) in [("on", 19), ("off", 0)] {
        let own = [("resumption", resumption), ("connections", "1"), ("threads", "1")];
        let record = run(&HttpClosed, &[&options[..], &own].concat()).unwrap();
        let told =
            [facts::TLS_VERSION, facts::TLS_GROUP, facts::TLS_SERVER_KEY].map(|name| record.facts[name].as_str());
        assert_eq!(told, ["TLSv1.3", "X25519", "256"]);
        assert_eq!(record.totals[names::TLS_RESUMED], n_resumed, "resumption {resumption}");
        assert_eq!(record.notes.iter().any(|note| note.id == "tls-resumed"), n_resumed > 0);
    }
}

fn an_answer_that_ends_with_a_connection_that_tls_did_not_close_is_told() {
    let address = secure_server_of(|stream, head| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").unwrap();
        if head.starts_with("GET /closes ") {
            stream.conn.send_close_notify();
        }
        stream.flush().unwrap();
        false
    });
    for (path, n_left_open) in [("cuts", 20), ("closes", 0)] {
        for record in twenty(&[("url", &format!("https://{address}/{path}")), ("insecure", "true")]) {
            assert_eq!(record.totals[names::TLS_UNCLOSED], n_left_open, "{path}");
            assert_eq!(record.notes.iter().any(|note| note.id == "tls-left-open"), n_left_open > 0, "{path}");
        }
    }
}

fn a_certificate_that_nobody_vouches_for_ends_the_trial_with_one_message() {
    let url = format!("https://{}", secure_server());
    let error = run(&HttpClosed, &[("url", &url), ("connections", "2")]).unwrap_err();
    assert!(error.to_string().contains("tls: the certificate"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("insecure")), "{:?}", error.hint());
}

/// A proxy that opens any requested tunnel.
fn proxy() -> SocketAddr {
    let (listener, address) = listening();
    thread::spawn(move || {
        for mut near in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let head = until_the_end_of_a_head(&mut near).unwrap();
                let Some(to) = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()) else {
                    return near.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
                };
                let far = TcpStream::connect(to)?;
                near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
                let (mut to_far, mut from_near) = (far.try_clone()?, near.try_clone()?);
                thread::spawn(move || std::io::copy(&mut from_near, &mut to_far));
                let (mut far, mut near) = (far, near);
                std::io::copy(&mut far, &mut near).map(|_| ())
            });
        }
    });
    address
}

fn https_goes_through_a_proxy_and_what_a_proxy_refuses_is_told() {
    let (url, proxy) = (format!("https://{}", secure_server()), format!("http://{}", proxy()));
    for record in twenty(&[("url", &url), ("insecure", "true"), ("proxy", &proxy)]) {
        assert_eq!(record.distributions[distribution::PROXY_TIME].count(), record.totals[count::CONNECTIONS]);
    }
    let refusing =
        format!("http://{}", server_of(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"));
    let options = [("url", url.as_str()), ("insecure", "true"), ("proxy", &refusing), ("connections", "2")];
    let error = run(&HttpClosed, &options).unwrap_err();
    assert!(error.to_string().contains("proxy: no tunnel: status 407"), "{error}");
}

fn a_connection_may_be_announced_and_a_unix_socket_is_a_way_like_any_other() {
    let (listener, address) = listening();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut begins = [0; 6];
                stream.read_exact(&mut begins).unwrap();
                assert_eq!(&begins, b"PROXY ");
                while until_the_end_of_a_head(&mut stream).is_some() && stream.write_all(OK).is_ok() {}
            });
        }
    });
    twenty(&[("url", &format!("http://{address}")), ("proxy-protocol", "v1")]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(
                move || while until_the_end_of_a_head(&mut stream).is_some() && stream.write_all(OK).is_ok() {},
            );
        }
    });
    twenty(&[("url", "http://example.org/"), ("unix", path.to_str().unwrap())]);
}

fn requests_are_shared_among_servers_and_paths_by_their_weights() {
    let not_found = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let urls = format!("3 http://{}/\n1 http://{}/", server_of(OK), server_of(not_found));
    let options = [("url", urls.as_str()), ("count", "400"), ("connections", "4")];
    let record = run(&HttpOpen, &[&options[..], &[("rate", "4k")]].concat()).unwrap();
    assert_eq!((record.totals[names::STATUS[0]], record.totals[names::STATUS[2]]), (300, 100), "{:?}", record.errors);

    // One server: its paths are requested exactly by their weights, on every connection.
    let (listener, address) = listening();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                while let Some(head) = until_the_end_of_a_head(&mut stream) {
                    let answer = if head.starts_with("GET /often ") { OK } else { not_found };
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let urls = format!("3 http://{address}/often\nhttp://{address}/seldom");
    for pipeline in ["1", "5"] {
        let options = [("url", urls.as_str()), ("count", "400"), ("pipeline", pipeline), ("connections", "3")];
        let record = run(&HttpClosed, &options).unwrap();
        assert_eq!((record.totals[names::STATUS[0]], record.totals[names::STATUS[2]]), (300, 100));
    }
}

fn names_are_looked_up_for_each_connection_when_asked() {
    let address = server_of(OK);
    let url = format!("http://localhost:{}/", address.port());
    let options = [("url", url.as_str()), ("ip", "4"), ("dns", "connection"), ("per-connection", "5")];
    for record in twenty(&options) {
        assert!(record.distributions[distribution::DNS_TIME].count() >= 4);
    }
}

fn one_server_that_stalls_holds_back_no_request_for_another() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = format!("http://{}/\nhttp://{}/", server_of(OK), silent.local_addr().unwrap());
    let record = run(&HttpOpen, &[("url", &urls), ("rate", "1k"), ("connections", "4")]).unwrap();
    let (due, answered) = (record.totals[count::INTENDED], record.totals[count::REQUESTS]);
    assert!(due > 100 && answered + 4 >= due / 2, "{answered} of {due}");
}

fn what_the_kernel_stamps_is_less_than_what_a_client_waits_for() {
    let url = format!("http://{}", server_of(OK));
    let options = [("url", url.as_str()), ("timestamps", "kernel"), ("reactor", "auto")];
    for record in twenty(&options) {
        assert!(record.distributions[distribution::SERVICE_TIME].min() > Some(0));
        assert!(record.notes.iter().any(|note| note.id == "reactor" && note.text.contains("timestamps")));
    }
}
