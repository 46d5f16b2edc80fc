//! What the clients of a capture sent over TCP and UDP is sent again, whatever its protocol, and every message is counted.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{Arc, Mutex},
    thread,
};

use etherparse::PacketBuilder;
use fathom_model::{ReplayRecord, ReplayUnit};
use fathom_testkit::traffic::SentConnection;

use crate::{
    replays::{account, write_capture},
    test_bed::{TestBed, until},
};

/// A connection on which each end says these lines in turn; the client is 0.
fn connection(lines: &[(usize, &str)]) -> SentConnection {
    let turns = lines.iter().map(|(end, line)| (*end, line.as_bytes().to_vec()));
    SentConnection { first: [17, 99], turns: turns.collect(), sizes: vec![1000] }
}

/// A connection of a server that speaks first, and answers each line.
fn greeted(lines: &[&str]) -> SentConnection {
    let mut said = vec![(1, "ready\n".to_owned())];
    said.extend(lines.iter().flat_map(|line| [(0, format!("{line}\n")), (1, format!("{line}!\n"))]));
    connection(&said.iter().map(|(end, line)| (*end, line.as_str())).collect::<Vec<_>>())
}

/// A server that greets, and answers each line; `quit` closes the connection.
struct LineServer {
    address: String,
    /// The lines of each connection.
    seen: Arc<Mutex<Vec<Vec<String>>>>,
}

impl LineServer {
    fn start() -> Self {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<Vec<String>>>> = Arc::default();
        let log = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let log = Arc::clone(&log);
                thread::spawn(move || serve(&stream.unwrap(), &log));
            }
        });
        Self { address, seen }
    }

    /// The connections on which something was said.
    fn seen(&self) -> BTreeSet<Vec<String>> {
        self.seen.lock().unwrap().iter().filter(|lines| !lines.is_empty()).cloned().collect()
    }
}

fn serve(mut stream: &TcpStream, log: &Mutex<Vec<Vec<String>>>) {
    let place = {
        let mut log = log.lock().unwrap();
        log.push(Vec::new());
        log.len() - 1
    };
    if stream.write_all(b"ready\n").is_err() {
        return;
    }
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        log.lock().unwrap()[place].push(line.clone());
        if line == "quit" || stream.write_all(format!("{line}!\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// The account without its histograms, which can be read.
fn shown(account: &ReplayRecord) -> ReplayRecord {
    ReplayRecord { compared: None, ..account.clone() }
}

fn lines(of_connections: &[&[&str]]) -> BTreeSet<Vec<String>> {
    of_connections.iter().map(|lines| lines.iter().map(|line| (*line).to_owned()).collect()).collect()
}

#[test]
fn turns_of_any_protocol_are_sent_on_their_connections_behind_the_answers_before_them() {
    let stage = TestBed::beside_others();
    let file = write_capture(
        &stage,
        [(0, greeted(&["a", "b"])), (1, greeted(&["c"]))].into_iter().flat_map(|(n, one)| one.packets(n)),
    );
    let server = LineServer::start();
    let to = format!("tcp://{}", server.address);
    for speed in ["10x", "max"] {
        server.seen.lock().unwrap().clear();
        let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", speed, "--compare", "--json"];
        let run = stage.fathom(words).succeeded().run();
        let account = account(&run);
        let counts = (account.unit, account.n_recorded, account.n_sessions, account.n_answered);
        // The greetings are turns without bytes.
        assert_eq!(counts, (ReplayUnit::Turn, 5, 2, 5), "{:?}", shown(account));
        let compared = account.compared.as_ref().unwrap();
        assert_eq!((compared.n_same, compared.n_different), (5, 0), "{:?}", compared.differences);
        assert_eq!(server.seen(), lines(&[&["a", "b"], &["c"]]));
    }
}

#[test]
fn turns_that_are_not_sent_or_not_answered_have_their_reasons() {
    let stage = TestBed::beside_others();
    // Of the second connection the capture lacks what the client says, and of the third the handshake.
    let first = greeted(&["quit", "behind"]).packets(0);
    let second = greeted(&["a", "lost", "b"]).packets(1).into_iter().enumerate().filter(|(idx, _)| *idx != 6);
    let third = greeted(&["x"]).packets(2).into_iter().skip(3);
    let packets = first.into_iter().chain(second.map(|(_, packet)| packet)).chain(third);
    let file = write_capture(&stage, packets);
    let server = LineServer::start();
    let to = format!("tcp://{}", server.address);
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", "10x", "--timeout", "500ms"];
    let result = stage.fathom(words.into_iter().chain(["--json"])).succeeded();
    assert!(result.stdout.contains("bytes-in-no-turn"), "what is behind a gap is told");
    let run = result.run();
    let account = shown(account(&run));
    assert_eq!((account.n_answered, account.n_failed, account.n_behind_failure), (3, 1, 1), "{account:?}");
    let left_out: Vec<(&str, u64)> = account.left_out.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    assert_eq!(left_out, [("with packets lost or cut by the capture", 1)]);
    let connections: Vec<(&str, u64)> = account.left_out_sessions.iter().map(|(why, n)| (why.as_str(), *n)).collect();
    assert_eq!(connections, [("open before the capture", 1)]);
    assert_eq!(server.seen(), lines(&[&["quit"], &["a"]]));
    let text = stage.fathom(words).succeeded().stdout;
    for line in ["turns to send", "not sent: their connection had failed", "open before the capture"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// A datagram between two ports; those of servers are below 1024.
fn datagram(from: u16, to: u16, payload: &str) -> Vec<u8> {
    let address = |port: u16| [198, 18, 0, if port < 1024 { 2 } else { 1 }];
    let mut bytes = Vec::new();
    let builder = PacketBuilder::ipv4(address(from), address(to), 64).udp(from, to);
    builder.write(&mut bytes, payload.as_bytes()).unwrap();
    bytes
}

/// A datagram as it came.
type SeenDatagram = (SocketAddr, String);

/// A server that answers datagrams with a number, the second before the first, and no others.
fn start_datagram_server() -> (SocketAddr, Arc<Mutex<Vec<SeenDatagram>>>) {
    let socket = UdpSocket::bind("[::1]:0").unwrap();
    let (address, seen): (_, Arc<Mutex<Vec<SeenDatagram>>>) = (socket.local_addr().unwrap(), Arc::default());
    let log = Arc::clone(&seen);
    thread::spawn(move || {
        let (mut room, mut kept) = ([0; 2048], Vec::new());
        while let Ok((n, from)) = socket.recv_from(&mut room) {
            let text = String::from_utf8_lossy(&room[..n]).into_owned();
            log.lock().unwrap().push((from, text.clone()));
            if text.starts_with(|first: char| first.is_ascii_digit()) {
                kept.push((from, format!("{text} is answered")));
            }
            if kept.len() == 2 {
                kept.drain(..).rev().for_each(|(to, answer)| drop(socket.send_to(answer.as_bytes(), to)));
            }
        }
    });
    (address, seen)
}

/// Two questions at the same time, with their answers, and three datagrams of another client that nobody answers.
fn recorded_datagrams() -> Vec<Vec<u8>> {
    let asked = [datagram(4000, 53, "01 first"), datagram(4000, 53, "02 second")];
    let answered = [datagram(53, 4000, "01 first is answered"), datagram(53, 4000, "02 second is answered")];
    let logged = ["one", "two", ""].map(|text| datagram(4001, 514, text));
    asked.into_iter().chain(answered).chain(logged).collect()
}

#[test]
fn datagrams_are_sent_each_flow_from_its_own_socket_and_answers_find_their_questions() {
    let stage = TestBed::beside_others();
    let file = write_capture(&stage, recorded_datagrams());
    let (address, seen) = start_datagram_server();
    let to = format!("udp://{address}");
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", "10x", "--compare", "--json"];
    let run = stage.fathom(words).succeeded().run();
    let account = account(&run);
    let counts = (account.unit, account.n_recorded, account.n_sessions, account.n_answered, account.n_answerless);
    assert_eq!(counts, (ReplayUnit::Datagram, 5, 2, 2, 3), "{:?}", shown(account));
    let compared = account.compared.as_ref().unwrap();
    assert_eq!((compared.n_same, compared.n_different), (2, 0), "{:?}", compared.differences);
    // The server may be behind with those that it does not answer.
    let came = |n: usize| {
        until(|| {
            let mut seen = seen.lock().unwrap();
            (seen.len() >= n).then(|| std::mem::take(&mut *seen))
        })
    };
    let (sources, texts): (BTreeSet<SocketAddr>, BTreeSet<String>) = came(5).into_iter().unzip();
    assert_eq!(texts, ["", "01 first", "02 second", "one", "two"].map(str::to_owned).into());
    assert_eq!(sources.len(), 2);
    let chosen = ["--ports", "514", "--copies", "3"];
    stage.fathom(words.into_iter().chain(chosen)).succeeded();
    assert_eq!(came(9).len(), 9);
}

#[test]
fn datagrams_to_a_port_where_nobody_listens_are_counted_as_failed() {
    let stage = TestBed::beside_others();
    let file = write_capture(&stage, recorded_datagrams());
    let unused = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let to = format!("udp://{unused}");
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--timeout", "200ms", "--speed", "10x", "--json"];
    let run = stage.fathom(words).succeeded().run();
    let account = shown(account(&run));
    assert_eq!((account.n_answered, account.n_not_sent), (0, 0), "{account:?}");
    assert_eq!(account.n_failed + account.n_answerless, 5, "{account:?}");
    assert!(account.n_failed >= 2, "{account:?}");
}

#[test]
fn bytes_that_cannot_be_sent_are_refused_before_anything_is() {
    let stage = TestBed::beside_others();
    let file = write_capture(&stage, recorded_datagrams());
    let file = file.to_str().unwrap();
    stage.fathom(["replay", file, "--to", "udp://192.0.2.1:53"]).refused(3, &["--allow 192.0.2.1"]);
    stage.fathom(["replay", file, "--to", "udp://127.0.0.1"]).refused(2, &["port"]);
    stage.fathom(["replay", file, "--to", "udp://127.0.0.1:9", "--methods", "GET"]).refused(2, &["--methods", "HTTP"]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", listener.local_addr().unwrap());
    let without = stage.fathom(["replay", file, "--to", &to]);
    assert!(!without.has_succeeded() && without.stderr.contains("nothing to send"), "{}", without.stderr);
    let log = stage.path("access.log");
    fs::write(&log, "no capture\n").unwrap();
    stage.fathom(["replay", log.to_str().unwrap(), "--to", &to]).refused(2, &["neither pcap nor pcapng"]);
}

#[test]
fn all_that_is_counted_as_sent_arrives_at_a_server_that_reads_slowly_and_says_more_than_was_recorded() {
    const LENGTH: usize = 8 << 20;
    let stage = TestBed::beside_others();
    let upload = SentConnection { first: [17, 99], turns: vec![(0, vec![b'u'; LENGTH])], sizes: vec![1400] };
    let file = write_capture(&stage, upload.packets(0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        // The first connection is the one that looks whether somebody listens.
        let counted = listener.incoming().map(|stream| {
            let mut stream = stream.unwrap();
            let mut n = 0;
            let mut room = vec![0; 64 << 10];
            loop {
                match stream.read(&mut room) {
                    Ok(0) => break n,
                    Ok(read) => n += read,
                    Err(error) => panic!("{error} after {n}"),
                }
                let _ = stream.write_all(b"progress\n");
            }
        });
        counted.take(2).max().unwrap()
    });
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", "max", "--json"];
    let run = stage.fathom(words).succeeded().run();
    let account = account(&run);
    assert_eq!((account.n_failed, account.n_answerless), (0, account.n_recorded), "{:?}", shown(account));
    assert_eq!(server.join().unwrap(), LENGTH);
}

/// A server that does this on each connection.
fn serve_each(answer: fn(&mut TcpStream)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("tcp://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || answer(&mut stream.unwrap()));
        }
    });
    to
}

#[test]
fn an_answer_that_ends_before_it_is_as_long_as_recorded_is_one_in_part() {
    let stage = TestBed::beside_others();
    let file = write_capture(&stage, connection(&[(0, "ask\n"), (1, "a whole answer\n")]).packets(0));
    let to = serve_each(|stream| {
        let mut line = String::new();
        BufReader::new(&*stream).read_line(&mut line).unwrap();
        let _ = stream.write_all(b"a half");
    });
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", "max", "--compare", "--json"];
    let run = stage.fathom(words).succeeded().run();
    let account = account(&run);
    assert_eq!((account.n_short, account.n_failed), (1, 0), "{:?}", shown(account));
    let compared = account.compared.as_ref().unwrap();
    assert_eq!((compared.n_different, compared.differences[0].what.as_str()), (1, "shorter answer"));
}

#[test]
fn a_turn_that_a_server_does_not_take_ends_at_its_timeout_and_not_with_the_run() {
    let stage = TestBed::beside_others();
    let upload = SentConnection { first: [17, 99], turns: vec![(0, vec![b'u'; 16 << 20])], sizes: vec![1400] };
    let file = write_capture(&stage, upload.packets(0));
    // It reads nothing, and says more and more until the client is gone.
    let to = serve_each(|stream| drop(until(|| stream.write_all(b"progress\n").err())));
    let words = ["replay", file.to_str().unwrap(), "--to", &to, "--speed", "max"];
    let run = stage.fathom(words.into_iter().chain(["--timeout", "300ms", "--duration", "10s", "--json"])).run();
    let account = account(&run);
    assert_eq!((account.n_failed, account.n_short, account.n_not_sent), (1, 0, 0), "{:?}", shown(account));
    assert!(account.n_behind_failure > 0, "{:?}", shown(account));
}
