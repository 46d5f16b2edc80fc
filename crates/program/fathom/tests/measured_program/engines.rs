//! The engine of requests, as the command line chooses it.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use fathom_model::Run;

use crate::test_bed::{TestBed, lacks_root, until};

/// The second host of a lab.
const B: &str = "198.18.0.2";

/// The value of a metric, and the note of the engine if there is one.
fn outcome(run: &Run, metric: &str) -> (f64, Option<String>) {
    let test = &run.tests[0];
    let value = test.summaries.iter().find(|summary| summary.metric.name == metric).and_then(|summary| summary.value);
    let notes = test.trials.iter().flat_map(|trial| trial.records.values()).flat_map(|record| &record.notes);
    let why = notes.filter(|note| note.id == "http-engine").map(|note| note.text.clone()).next();
    (value.unwrap_or_else(|| panic!("{metric}: {:?}", test.summaries)), why)
}

#[test]
fn a_load_needs_no_sockets_where_a_program_can_do_the_same() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let lab = stage.lab("engines");
    let times = ["--connections", "8", "--duration", "500ms", "--rounds", "1", "--json", "--quiet"];
    let between = |words: &[&str]| stage.fathom([&["http", "--lab", "engines"], words, &times].concat()).run();
    let (rate, _) = outcome(&between(&["--engine", "xdp", "--per-connection", "1"]), "connections_per_sec");
    assert!(rate > 1_000.0, "{rate}");
    let (rate, _) = outcome(&between(&["--engine", "xdp", "--rate", "2k"]), "offered_per_sec");
    // After a moment without its core, a program catches up within this short time.
    assert!((1_500.0..=2_600.0).contains(&rate), "{rate}");
    let server = lab.start("b", &["serve", "--only", "http"]);
    server.says("http ");
    let url = format!("http://{B}:8080/");
    let auto = |words: &[&str]| {
        let ask = ["http", &url, "--allow", B, "--engine", "auto"];
        outcome(&lab.fathom("a", &[&ask[..], words, &times].concat()).succeeded().run(), "requests_per_sec")
    };
    let (rate, why) = auto(&["--pipeline", "2"]);
    assert!(
        rate > 100.0 && why.as_deref() == Some("over sockets: the XDP program has no option `pipeline`"),
        "{rate}, {why:?}"
    );
    let (rate, why) = auto(&[]);
    assert!(rate > 100.0 && why.as_ref().is_some_and(|why| why.contains("no XDP program")), "{rate}, {why:?}");
    let program =
        ["serve", "--only", "http", "--http-port", "8081", "--http-xdp", "eth0", "--http-xdp-from", "0.0.0.0/0"];
    let with_program = lab.start("b", &program);
    with_program.says("http ");
    let (rate, why) = auto(&[]);
    assert!(rate > 100.0 && why.is_none(), "{rate}, {why:?}");
}

/// Answers requests in chunks until the client closes.
fn serve_chunks(mut stream: &TcpStream) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(line)) = lines.next() {
        let is_end = line.is_empty();
        if is_end
            && stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n").is_err()
        {
            return;
        }
    }
}

#[test]
fn an_engine_that_is_not_taken_leaves_no_connection_at_the_server() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("chunks");
    let listener = lab.enter_with("b", || TcpListener::bind((B, 0)).unwrap());
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let n_open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&n_open);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let n_open = Arc::clone(&counted);
            n_open.fetch_add(1, Ordering::Relaxed);
            thread::spawn(move || {
                serve_chunks(&stream.unwrap());
                n_open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    let words = ["http", &url, "--allow", B, "--engine", "auto", "--xdp", "generic", "--connections", "40"];
    let times = ["--duration", "300ms", "--rounds", "1", "--json", "--quiet"];
    let (rate, why) = outcome(&lab.fathom("a", &[&words[..], &times].concat()).succeeded().run(), "requests_per_sec");
    assert!(rate > 100.0 && why.as_ref().is_some_and(|why| why.contains("in chunks")), "{rate}, {why:?}");
    until(|| (n_open.load(Ordering::Relaxed) == 0).then_some(()));
}

#[test]
fn an_engine_that_cannot_do_it_says_what_can() {
    let stage = TestBed::beside_others();
    let both = stage.fathom(["http", "http://127.0.0.1:9/", "--engine", "xdp", "--test", "closed"]);
    assert!(both.stderr.contains("--engine xdp has no --test closed"), "{}", both.stderr);
    let other = stage.fathom(["http", "http://127.0.0.1:9/", "--engine", "xdp", "--pipeline", "2"]);
    assert!(other.stderr.contains("pipeline"), "{}", other.stderr);
    let no_server = stage.fathom(["http", "--lab", "pair", "--engine", "auto"]);
    assert!(no_server.stderr.contains("--engine auto needs the URL of a server"), "{}", no_server.stderr);
}
