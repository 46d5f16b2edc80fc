//! The requests of a capture are sent again: each once, on a connection of its own recorded one, and answers are compared.

use std::{
    collections::HashSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fathom_model::{ReplayRecord, Run};
use fathom_sys::process::{Pidfd, signal::Signal};
use fathom_testkit::traffic::SentConnection;

use crate::{
    nginx::Nginx,
    test_bed::{TestBed, lacks_root, until},
};

/// One packet of the captures here comes so long after the one before it.
const PACKET_GAP: Duration = Duration::from_millis(40);
/// A server thread of a busy machine waits at most so long for a core; requests without their gaps would follow within less.
const SERVER_DELAY: Duration = Duration::from_millis(60);
/// The link type of raw IP packets.
const RAW_IP: u32 = 101;

/// A connection with these requests, each with its answer.
fn connection(exchanges: &[(&str, &str)]) -> SentConnection {
    let turns = exchanges
        .iter()
        .flat_map(|(request, answer)| [(0, request.as_bytes().to_vec()), (1, answer.as_bytes().to_vec())]);
    SentConnection { first: [17, 99], turns: turns.collect(), sizes: vec![1000] }
}

/// Writes the connections one after another into a capture.
fn capture(stage: &TestBed, connections: &[SentConnection]) -> PathBuf {
    write_capture(stage, (0..).zip(connections).flat_map(|(number, connection)| connection.packets(number)))
}

/// Writes packets into a capture, at their distance.
pub(crate) fn write_capture(stage: &TestBed, packets: impl IntoIterator<Item = Vec<u8>>) -> PathBuf {
    let mut bytes = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, RAW_IP].map(u32::to_ne_bytes).concat();
    let mut time = Duration::from_secs(1_700_000_000);
    for packet in packets {
        time += PACKET_GAP;
        let length = u32::try_from(packet.len()).unwrap();
        let seconds = u32::try_from(time.as_secs()).unwrap();
        bytes.extend([seconds, time.subsec_micros(), length, length].map(u32::to_ne_bytes).concat());
        bytes.extend(packet);
    }
    let path = stage.path("day.pcap");
    fs::write(&path, bytes).unwrap();
    path
}

/// A request as a server got it: the number of its connection, its bytes, and its time.
type SeenRequest = (usize, String, Instant);

/// A server that answers a request by its path, and keeps what it got.
struct Server {
    address: String,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl Server {
    /// `answer` returns the bytes of an answer, or none to close the connection.
    fn start(answer: fn(&str) -> Option<String>) -> Self {
        Self::at("127.0.0.1", answer)
    }

    fn at(address: &str, answer: fn(&str) -> Option<String>) -> Self {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let log = Arc::clone(&log);
                thread::spawn(move || serve(&stream.unwrap(), number, answer, &log));
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<SeenRequest> {
        self.seen.lock().unwrap().clone()
    }
}

/// Serves a connection until its client closes it.
fn serve(stream: &TcpStream, number: usize, answer: fn(&str) -> Option<String>, log: &Mutex<Vec<SeenRequest>>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if reader.read_line(&mut request).unwrap_or(0) == 0 {
                return;
            }
        }
        let length = request
            .to_lowercase()
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        request.push_str(&String::from_utf8(body).unwrap());
        log.lock().unwrap().push((number, request.clone(), Instant::now()));
        let path = request.split(' ').nth(1).unwrap();
        let Some(answer) = answer(path) else { return };
        if (&*stream).write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn ok(content: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{content}", content.len())
}

pub(crate) fn account(run: &Run) -> &ReplayRecord {
    &run.tests[0].replay.as_ref().expect("a replay has an account").all
}

const GET: &str = "GET /a HTTP/1.1\r\nHost: recorded\r\nCookie: id=1\r\n\r\n";
const POST: &str = "POST /b HTTP/1.1\r\nHost: recorded\r\nContent-Length: 11\r\n\r\nhello=world";
const LAST: &str = "GET /c HTTP/1.0\r\nX-Odd:   kept as it is\r\n\r\n";

/// Two connections with three requests.
fn recorded() -> [SentConnection; 2] {
    [connection(&[(GET, &ok("a")), (POST, &ok("b"))]), connection(&[(LAST, &ok("c"))])]
}

#[test]
fn every_request_is_sent_once_byte_for_byte_on_its_own_connection_and_not_before_its_time() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let server = Server::start(|path| Some(ok(&path[1..])));
    let run = stage
        .fathom(["replay", file.to_str().unwrap(), "--to", &server.address, "--compare", "--json"])
        .succeeded()
        .run();
    let account = account(&run);
    assert_eq!((account.n_recorded, account.n_sessions, account.n_answered), (3, 2, 3));
    let compared = account.compared.as_ref().unwrap();
    assert_eq!((compared.n_same, compared.n_different), (3, 0), "{:?}", compared.differences);
    let seen = server.seen();
    // The second connection begins after the first one is over, so the order is certain.
    assert_eq!(seen.iter().map(|seen| seen.1.as_str()).collect::<Vec<_>>(), [GET, POST, LAST]);
    let [first, second, third] = [0, 1, 2].map(|number: usize| seen[number].0);
    assert!(first == second && third != first);
    // A request and its answer lie between the two requests of the first connection.
    let gap = seen[1].2.duration_since(seen[0].2);
    // The first request may have come late, and the server may have noticed it later still.
    let lag = run.tests[0].summaries.iter().find(|summary| summary.metric.name == "lag_ns_max").unwrap();
    let most_late = Duration::from_secs_f64(lag.value.unwrap() / 1e9);
    assert!(gap + most_late + SERVER_DELAY >= PACKET_GAP * 2, "{gap:?}, {most_late:?}");
}

#[test]
fn copies_choices_and_fields_change_what_is_sent_and_the_account_says_how_much() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let server = Server::start(|path| Some(ok(&path[1..])));
    let words = ["replay", file.to_str().unwrap(), "--to", &server.address, "--speed", "max", "--json"];
    let chosen = ["--methods", "GET", "--skip", "^/c", "--copies", "4", "--header", "Host: new\nCookie:"];
    let run = stage.fathom(words.iter().chain(&chosen)).succeeded().run();
    let account = account(&run);
    let left_out: Vec<(&str, u64)> = account.left_out.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    assert_eq!(left_out, [("matched by --skip", 1), ("of other methods than --methods", 1)]);
    assert_eq!((account.n_recorded, account.n_copies, account.n_to_send(), account.n_answered), (3, 4, 4, 4));
    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert!(seen.iter().all(|(_, request, _)| request == "GET /a HTTP/1.1\r\nHost: new\r\n\r\n"), "{seen:?}");
}

#[test]
fn answers_that_differ_are_told_with_their_difference() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let server = Server::start(|path| {
        Some(match path {
            "/a" => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_owned(),
            "/b" => {
                "HTTP/1.1 200 OK\r\nServer: new\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nB\r\n0\r\n\r\n".to_owned()
            }
            _ => ok("c"),
        })
    });
    let words = ["replay", file.to_str().unwrap(), "--to", &server.address, "--compare", "--speed", "10x"];
    let result = stage.fathom(words).succeeded();
    for line in [
        "3 answers compared: 2 differ",
        "status 200 is now 503",
        "other content of the same length",
        "a new field server",
    ] {
        assert!(result.stdout.contains(line), "{line}: {}", result.stdout);
    }
    let promised = [&words[..], &["--expect", "http_replay.different_ratio=0"]].concat();
    stage.fathom(promised).broke_its_promise();
    let ignored = [&words[..], &["--ignore", "content,server", "--json"]].concat();
    let run = stage.fathom(ignored).succeeded().run();
    let compared = account(&run).compared.as_ref().unwrap();
    assert_eq!((compared.n_same, compared.n_different), (2, 1));
}

#[test]
fn requests_without_an_answer_are_counted_and_the_ones_behind_them_are_sent() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let server = Server::start(|path| (path != "/a").then(|| ok(&path[1..])));
    let words = ["replay", file.to_str().unwrap(), "--to", &server.address, "--json"];
    let run = stage.fathom(words).succeeded().run();
    assert_eq!((account(&run).n_answered, account(&run).n_failed), (2, 1));
    let paths: Vec<String> = server.seen().into_iter().map(|(_, request, _)| request[..7].to_owned()).collect();
    assert_eq!(paths, ["GET /a ", "POST /b", "GET /c "]);
    // The time ends before the second connection begins.
    let cut = stage.fathom(words.into_iter().chain(["--speed", "0.1x", "--duration", "1600ms"])).code(4).run();
    let account = account(&cut);
    let n_told = account.n_answered + account.n_failed + account.n_cut_off + account.n_not_sent;
    assert_eq!((n_told, account.n_not_sent > 0), (3, true), "{account:?}");
}

#[test]
fn what_cannot_be_sent_is_refused_before_anything_is() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let file = file.to_str().unwrap();
    let server = Server::start(|_| None);
    stage.fathom(["replay", file, "--speed", "2x"]).refused(2, &["--speed", "--to"]);
    stage.fathom(["replay", file, "--to", "http://127.0.0.1:1/path"]).refused(2, &["has the paths"]);
    stage.fathom(["replay", file, "--to", "192.0.2.1"]).refused(3, &["--allow 192.0.2.1"]);
    for (option, value, word) in [
        ("--speed", "fast", "speed"),
        ("--only", "(", "only"),
        ("--sessions", "0%", "sessions"),
        ("--header", "Content-Length: 1", "header"),
        ("--ignore", "a b", "ignore"),
        ("--methods", "PATCH", "no request to send"),
    ] {
        let result = stage.fathom(["replay", file, "--to", &server.address, option, value]);
        assert!(!result.has_succeeded() && result.stderr.contains(word), "{option}: {}", result.stderr);
    }
    assert_eq!(server.seen().len(), 0);
}

/// The programs of a test with other clients and servers.
const PEERS: [&str; 3] = ["curl", "openssl", "tcpdump"];

/// Runs curl with a key log.
fn curl(stage: &TestBed, words: &[&str]) {
    let mut command = stage.command("curl");
    command.env("SSLKEYLOGFILE", stage.path("keys.log")).args(["-sk", "-A", "test", "-o", "/dev/null"]).args(words);
    stage.spawn(command).ends().succeeded();
}

/// What curl sends, in the form of HTTP/1.1; the names of HTTP/2 are in small letters.
fn sent_by_curl(is_http2: bool, port: u16, line: &str, behind: &[(&str, &str)], body: &str) -> String {
    let host = format!("127.0.0.1:{port}");
    let fields = [&[("Host", host.as_str()), ("User-Agent", "test"), ("Accept", "*/*")][..], behind].concat();
    let name = |name: &str| if is_http2 { name.to_lowercase() } else { name.to_owned() };
    let fields: String = fields.iter().flat_map(|(field, value)| [name(field), format!(": {value}\r\n")]).collect();
    format!("{line} HTTP/1.1\r\n{fields}\r\n{body}")
}

/// Sends requests to a port by both versions of TLS and of HTTP. Returns them in the form of HTTP/1.1.
fn ask_over_tls(stage: &TestBed, port: u16) -> Vec<String> {
    let url = |path: &str| format!("https://127.0.0.1:{port}{path}");
    let form = [("Content-Length", "11"), ("Content-Type", "application/x-www-form-urlencoded")];
    let mut sent = Vec::new();
    for tls in [&["--tlsv1.3"][..], &["--tls-max", "1.2"]] {
        for http in ["--http1.1", "--http2"] {
            let words = [tls, &[http]].concat();
            curl(stage, &[&words[..], &[&url("/?1"), "-o", "/dev/null", &url("/?2")]].concat());
            curl(stage, &[&words[..], &["-d", "hello=world", &url("/post")]].concat());
            for (line, fields, body) in
                [("GET /?1", &[][..], ""), ("GET /?2", &[], ""), ("POST /post", &form, "hello=world")]
            {
                sent.push(sent_by_curl(http == "--http2", port, line, fields, body));
            }
        }
    }
    let paths: Vec<String> = (0..9).map(|n| format!("/?at-once-{n}")).collect();
    let at_once: Vec<String> =
        paths.iter().flat_map(|path| ["-o".to_owned(), "/dev/null".to_owned(), url(path)]).collect();
    let at_once: Vec<&str> = ["--http2", "-Z"].into_iter().chain(at_once.iter().skip(2).map(String::as_str)).collect();
    curl(stage, &at_once);
    sent.extend(paths.iter().map(|path| sent_by_curl(true, port, &format!("GET {path}"), &[], "")));
    sent.sort();
    sent
}

#[test]
fn every_request_of_curl_to_nginx_over_tls_is_decrypted_and_sent_as_it_was() {
    if lacks_root() {
        return;
    }
    if let Some(missing) = PEERS.iter().find(|name| !fs::exists(format!("/usr/bin/{name}")).unwrap()) {
        return fathom_testkit::skip(&format!("needs {missing}"));
    }
    let stage = TestBed::beside_others();
    let (certificate, key) = (stage.path("cert.pem"), stage.path("key.pem"));
    let mut openssl = stage.command("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=a"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    stage.spawn(openssl).ends().succeeded();
    let server = Server::start(|path| Some(ok(path)));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let locations = format!(
        "listen 127.0.0.1:{port} ssl http2; ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.2 TLSv1.3;
         location /post {{ proxy_pass http://{}; }}",
        certificate.display(),
        key.display(),
        server.address
    );
    let Some(_nginx) = Nginx::start(&stage, &"text ".repeat(50_000), &locations) else {
        return fathom_testkit::skip("needs nginx");
    };
    let file = stage.path("tls.pcap");
    let mut tcpdump = stage.command("tcpdump");
    // Not in immediate mode, in which each frame of the ring has room for the longest packet: a ring of 64 MiB holds 256 of them.
    tcpdump.args(["-Z", "root", "-i", "lo", "-s", "0", "-B", "65536", "-U", "-w"]).arg(&file);
    tcpdump.arg(format!("tcp port {port}"));
    let tcpdump = stage.spawn(tcpdump);
    until(|| fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(()));
    let sent = ask_over_tls(&stage, port);
    let words = ["replay", file.to_str().unwrap(), "--json"];
    let keys = ["--keys", stage.path("keys.log").to_str().unwrap()].map(str::to_owned);
    let keys = keys.each_ref().map(String::as_str);
    let read = |words: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stage.fathom(words).succeeded().stdout).unwrap()
    };
    // Until the last packet is in the file.
    let document = until(|| {
        let document = read(&[&words[..], &keys].concat());
        (document["traffic"]["ends"]["closed"] == 9).then_some(document)
    });
    tcpdump.handle().send(Signal::Interrupt).unwrap();
    assert!(tcpdump.ends().stderr.contains("0 packets dropped by kernel"));
    let n = sent.len();
    assert_eq!(document["tls"]["connections"], serde_json::json!({ "decrypted": 9 }));
    assert_eq!(document["http"]["conversations"], serde_json::json!({ "http": 4, "http2": 5 }));
    assert_eq!(document["http"]["requests"], serde_json::json!({ "whole": n }));
    assert_eq!(document["http"]["answers"], serde_json::json!({ "whole": n }));
    let without = read(&words);
    assert_eq!(without["tls"]["connections"], serde_json::json!({ "no_keys": 9 }));
    let result = stage.fathom([&words[..2], &["--to", &server.address]].concat());
    assert!(!result.has_succeeded() && result.stderr.contains("9 without a key"), "{}", result.stderr);
    let n_before = server.seen().len();
    let run = stage.fathom([&words[..], &keys, &["--to", &server.address]].concat()).succeeded().run();
    assert_eq!((account(&run).n_recorded, account(&run).n_answered), (n as u64, n as u64));
    let mut notes = run.tests[0].trials[0].records.values().flat_map(|record| &record.notes);
    assert!(notes.any(|note| note.id == "sent-over-http1"));
    let mut seen: Vec<String> = server.seen().into_iter().skip(n_before).map(|seen| seen.1).collect();
    seen.sort();
    assert_eq!(seen, sent);
}

/// The addresses of two hosts of a star.
const SUT: &str = "198.18.0.1";
const C2: &str = "198.18.0.3";

/// Sends requests, each with a path of its own, on two connections until it is told to stop. Returns the number of answers.
fn ask(server: &str, is_over: &AtomicBool) -> usize {
    let connections = [(); 2].map(|()| TcpStream::connect(server).unwrap());
    let mut n = 0;
    while !is_over.load(Ordering::Relaxed) {
        for mut connection in &connections {
            connection.write_all(format!("GET /{n} HTTP/1.1\r\nHost: production\r\n\r\n").as_bytes()).unwrap();
            let mut answer = vec![0; ok(&n.to_string()).len()];
            connection.read_exact(&mut answer).unwrap();
            assert_eq!(String::from_utf8(answer).unwrap(), ok(&n.to_string()), "each answer is that of production");
            n += 1;
        }
        thread::sleep(Duration::from_millis(2));
    }
    n
}

#[test]
fn requests_that_a_device_carries_are_copied_once_each_and_the_client_sees_no_answer_of_a_copy() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("star:3", "copied");
    let production = lab.enter_with("sut", || Server::at(SUT, |path| Some(ok(&path[1..]))));
    let staging = lab.enter_with("c2", || Server::at(C2, |path| Some(ok(&format!("copy of {path}")))));
    let port = production.address.rsplit(':').next().unwrap();
    let is_over = AtomicBool::new(false);
    let (run, n_answers) = thread::scope(|scope| {
        let client = scope.spawn(|| lab.enter_with("c1", || ask(&production.address, &is_over)));
        let words = ["replay", "--live", "eth0", "--ports", port, "--to", &staging.address, "--allow", C2];
        let run = lab.fathom("sut", &[&words[..], &["--compare", "--duration", "1500ms", "--json"]].concat());
        is_over.store(true, Ordering::Relaxed);
        (run.succeeded().run(), client.join().unwrap())
    });
    let account = account(&run);
    let compared = account.compared.as_ref().unwrap();
    // What production had not answered yet at the end is copied, and there is nothing to compare it with.
    let n_unanswered = compared.n_without_recorded;
    assert_eq!((compared.n_same, compared.n_different + n_unanswered), (0, account.n_answered));
    assert!(n_unanswered <= account.n_sessions, "{n_unanswered}");
    // Without its histograms it can be read.
    let account = ReplayRecord { compared: None, ..account.clone() };
    let n_ended = account.n_answered + account.n_cut_off + account.n_not_sent;
    assert_eq!((n_ended, account.n_failed, account.n_without_connection), (account.n_to_send(), 0, 0), "{account:?}");
    assert!(account.n_answered > 10 && account.n_sessions == 2, "{account:?}");
    let asked: HashSet<String> = production.seen().into_iter().map(|seen| seen.1).collect();
    // Copies are marked, so that they are not copied if they come back.
    let unmarked = |request: String| request.replace("x-fathom-copy: 1\r\n", "");
    let copies: Vec<String> = staging.seen().into_iter().map(|seen| unmarked(seen.1)).collect();
    assert_eq!(copies.iter().collect::<HashSet<_>>().len(), copies.len(), "each is copied once");
    assert!(copies.iter().all(|copy| asked.contains(copy)) && asked.len() == n_answers);
    let n_copies = copies.len() as u64;
    assert!(
        (account.n_answered..=account.n_answered + account.n_cut_off).contains(&n_copies),
        "{n_copies}: {account:?}"
    );
    let connections: HashSet<usize> = staging.seen().into_iter().map(|seen| seen.0).collect();
    assert_eq!(connections.len(), 2, "one for each connection of the client");
}

/// A daemon that does not outlive its test.
struct Daemon(Pidfd);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// The lines of tcpcopy's log without their times.
fn log_lines(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_once("[notice] ")).map(|(_, line)| line).collect()
}

#[test]
fn as_tcpcopy_the_requests_of_a_capture_to_a_port_are_sent_and_counted_in_the_log() {
    let stage = TestBed::beside_others();
    let file = capture(&stage, &recorded());
    let file = file.to_str().unwrap();
    let server = Server::start(|path| (path != "/b").then(|| ok(&path[1..])));
    let log = stage.path("tcpcopy.log");
    let log = log.to_str().unwrap();
    let transfer = format!("198.18.0.2:80-{}", server.address);
    let words = ["as", "tcpcopy", "-x", &transfer, "-i", file, "-a", "4", "-n", "2", "-T", "2", "-l", log];
    let result = stage.fathom([&words[..], &["-s", "192.0.2.7", "-p36524"]].concat()).succeeded();
    assert!(result.stderr.contains("-s -p has no effect: no intercept is needed"), "{}", result.stderr);
    let lines = log_lines(&result.stdout);
    let copied = "requests copied:12,answered:8,failed:4,cut off:0,not sent:0,no connection free:0,left out:0";
    assert_eq!(lines[1..4], ["conns:8,c-resp:8", "clt cont:6", copied], "{lines:?}");
    assert!(lines[4].starts_with("failed:"), "{lines:?}");
    assert_eq!(fs::read_to_string(log).unwrap(), result.stdout);
    assert_eq!(server.seen().iter().filter(|seen| seen.1 == GET).count(), 4);
    // The server may have applied a POST that it did not answer, so none is sent once more.
    assert_eq!(server.seen().iter().filter(|seen| seen.1 == POST).count(), 4);
    let other = format!("81-{}", server.address);
    let refused = stage.fathom(["as", "tcpcopy", "-x", &other, "-i", file]);
    assert!(refused.stderr.contains("no request to send"), "{}", refused.stderr);
    stage.fathom(["as", "tcpcopy", "-x", "80-192.0.2.1:80", "-i", file]).refused(3, &["--allow 192.0.2.1"]);
    stage.fathom(["as", "tcpcopy", "-x", "80-192.0.2.1:80", "-i", file, "-d"]).refused(3, &["--allow 192.0.2.1"]);
    stage.fathom(["as", "tcpcopy", "-x", &transfer, "-i", "nothing"]).refused(255, &["neither such a device nor"]);
}

#[test]
fn as_tcpcopy_a_daemon_copies_what_a_device_carries_until_a_signal_and_leaves_its_counters() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::of_low_rates();
    let lab = stage.lab_of("star:3", "tcpcopied");
    let production = lab.enter_with("sut", || Server::at(SUT, |path| Some(ok(&path[1..]))));
    let staging = lab.enter_with("c2", || Server::at(C2, |path| Some(ok(path))));
    let port = production.address.rsplit(':').next().unwrap();
    let transfer = format!("{SUT}:{port}-{}", staging.address);
    let (log, pid) = (stage.path("tcpcopy.log"), stage.path("tcpcopy.pid"));
    let files = ["-l", log.to_str().unwrap(), "-P", pid.to_str().unwrap(), "-d"];
    let words = ["as", "--allow", C2, "tcpcopy", "-x", &transfer, "-i", "eth0", "-c", SUT];
    lab.fathom("sut", &[&words[..], &files].concat()).succeeded();
    let daemon = until(|| fs::read_to_string(&pid).ok()?.trim().parse().ok());
    let daemon = Daemon(Pidfd::open(daemon).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| lab.enter_with("c1", || ask(&production.address, &is_over)));
        until(|| (staging.seen().len() > 20).then_some(()));
        is_over.store(true, Ordering::Relaxed);
        client.join().unwrap();
    });
    daemon.0.send(Signal::Terminate).unwrap();
    let text = until(|| fs::read_to_string(&log).ok().filter(|text| text.contains("requests copied:")));
    let lines = log_lines(&text);
    let answered = lines[1].strip_prefix("conns:2,c-resp:").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(answered.parse(), Ok(staging.seen().len()), "{text}");
    until(|| (!pid.exists()).then_some(()));
}
