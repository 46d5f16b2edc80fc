//! Scenarios against a small shop on loopback.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use fathom_model::{Run, run::Completeness, steps::UsersRecord};

use crate::{
    test_bed::{ProgramResult, TestBed, until},
    traces::processes,
};

/// A server that identifies its users by their tokens.
struct ShopServer {
    address: SocketAddr,
    seen: Arc<Mutex<BTreeMap<String, u64>>>,
    n_connections: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    listener: Option<thread::JoinHandle<()>>,
}

impl ShopServer {
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, n_connections) = (Arc::<Mutex<BTreeMap<String, u64>>>::default(), Arc::<AtomicU64>::default());
        let is_over = Arc::<AtomicBool>::default();
        let shared = (Arc::clone(&seen), Arc::clone(&n_connections), Arc::clone(&is_over));
        let listener = thread::spawn(move || {
            let (seen, n_connections, is_over) = shared;
            for stream in listener.incoming() {
                if is_over.load(Relaxed) {
                    return;
                }
                n_connections.fetch_add(1, Relaxed);
                let seen = Arc::clone(&seen);
                thread::spawn(move || serve(stream.unwrap(), &seen));
            }
        });
        Self { address, seen, n_connections, is_over, listener: Some(listener) }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    fn seen(&self) -> BTreeMap<String, u64> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for ShopServer {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
        // The listener checks the flag when a connection arrives.
        drop(TcpStream::connect(self.address));
        self.listener.take().map(thread::JoinHandle::join);
    }
}

/// Answers the requests of one connection until it ends.
fn serve(stream: TcpStream, seen: &Mutex<BTreeMap<String, u64>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match reader.read_line(&mut head) {
                Ok(1..) => {}
                _ => return,
            }
        }
        let field = |name: &str| {
            let mut lines = head.lines().skip(1).filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
        };
        let length = field("content-length").map_or(0, |length| length.parse::<usize>().unwrap());
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        let line = head.split(" HTTP/1.1\r\n").next().unwrap().to_owned();
        *seen.lock().unwrap().entry(line.clone()).or_default() += 1;
        let answer = answer(&line, &String::from_utf8(body).unwrap(), (field("authorization"), field("cookie")));
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(line: &str, body: &str, (authorization, cookie): (Option<String>, Option<String>)) -> String {
    let answer = |status: &str, fields: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let user =
        || body.split("\"user\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default().to_owned();
    let token = authorization.as_deref().and_then(|value| value.strip_prefix("Bearer t-")).unwrap_or_default();
    match line {
        "POST /login" => {
            let fields = format!("Set-Cookie: sid=s-{}; Path=/\r\nContent-Type: application/json\r\n", user());
            answer("200 OK", &fields, &format!("{{\"id\":[1,{{\"a\":2}}],\"token\":\"t-{}\"}}", user()))
        }
        "GET /account" if !token.is_empty() && cookie == Some(format!("sid=s-{token}")) => {
            // Chunked, like generated pages.
            let body = format!("{{\"user\":\"{token}\",\"n\":3}}");
            let chunks = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}")
        }
        "GET /account" => answer("401 Unauthorized", "", "who are you?"),
        "GET /old" => answer("302 Found", "Location: /new\r\n", ""),
        "GET /new" => answer("200 OK", "", "here"),
        _ => answer("404 Not Found", "", "nothing here"),
    }
}

const SCENARIO: &str = r#"
closed 10 repeat 5
redirects 2
data accounts from accounts.csv per user then wrap
promise login p99 < 30s

step login
  POST /login
  json {"user":"${accounts.user}","password":"${accounts.password}"}
  expect 200
  take token = json $.token
think 1ms..3ms
transaction look
  step account
    GET /account
    Authorization: Bearer ${token}
    expect 200
    expect json $.user == "${accounts.user}"
  step page
    GET /old
    expect body contains "here"
"#;

fn stage_with(scenario: &str) -> TestBed {
    let stage = TestBed::beside_others();
    fs::write(stage.path("shop.scenario"), scenario).unwrap();
    let rows: Vec<String> = (0..10).map(|n| format!("user{n},hush-{n}\n")).collect();
    fs::write(stage.path("accounts.csv"), format!("user,password\n{}", rows.concat())).unwrap();
    stage
}

fn run_of(ending: &ProgramResult) -> Run {
    ending.run()
}

fn users(run: &Run) -> &UsersRecord {
    run.tests[0].trials[0].records.values().find_map(|record| record.users.as_ref()).unwrap()
}

#[test]
fn users_go_through_a_scenario_and_every_step_is_counted() {
    let (stage, shop) = (stage_with(SCENARIO), ShopServer::open());
    // With so few users, the promise about a p99 stays open.
    let run = run_of(&stage.fathom(["app", "run", "shop.scenario", &shop.url(), "--json"]).code(12));
    let users = users(&run);
    assert_eq!((users.n_started, users.n_finished, users.n_gave_up), (10, 50, 0));
    let steps: Vec<_> = users.steps.iter().map(|step| (step.name.as_str(), step.n_reached, step.n_passed)).collect();
    assert_eq!(steps, [("login", 50, 50), ("look", 50, 50), ("account", 50, 50), ("page", 50, 50)]);
    let seen = shop.seen();
    for line in ["POST /login", "GET /account", "GET /old", "GET /new"] {
        assert_eq!(seen[line], 50, "{seen:?}");
    }
    assert_eq!(
        shop.n_connections.load(Relaxed),
        10 + 1,
        "a connection for each user, and one that looks whether the shop is open"
    );
}

#[test]
fn failures_have_causes_and_examples_without_secrets() {
    let scenario =
        SCENARIO.replace("Bearer ${token}", "Bearer x-${token}").replace("redirects 2", "on failure continue");
    let (stage, shop) = (stage_with(&scenario), ShopServer::open());
    let ending = stage.fathom(["app", "run", "shop.scenario", &shop.url(), "--json"]);
    let run = run_of(&ending);
    let account = users(&run).steps.iter().find(|step| step.name == "account").unwrap();
    assert_eq!((account.n_reached, account.n_passed), (50, 0));
    assert_eq!(account.errors, BTreeMap::from([("status 401, expected 200".to_owned(), 50)]));
    let [example] = account.examples.as_slice() else { panic!("one example of one cause: {:?}", account.examples) };
    assert!(example.request.contains("Authorization: ***") && example.request.contains("Cookie: ***"), "{example:?}");
    assert!(example.answer.ends_with("who are you?"), "{example:?}");
    assert!(!ending.stdout.contains("hush-"), "no password stands in a result");
}

#[test]
fn trying_a_scenario_shows_every_request_and_answer() {
    let (stage, shop) = (stage_with(SCENARIO), ShopServer::open());
    let shown = stage.fathom(["app", "try", "shop.scenario", &shop.url()]).succeeded().stdout;
    for words in [
        "> POST /login HTTP/1.1",
        "\"password\":\"***\"",
        "< HTTP/1.1 200 OK",
        "took      token = ***",
        "ok        json $.user == \"${accounts.user}\"",
        "> GET /new HTTP/1.1",
        "4 requests, everything as expected",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    assert!(!shown.contains("hush-"), "{shown}");
    let shown = stage.fathom(["app", "try", "shop.scenario", &shop.url(), "--secrets"]).succeeded().stdout;
    assert!(shown.contains("hush-0") && shown.contains("took      token = t-user0"), "{shown}");
    fs::write(
        stage.path("shop.scenario"),
        SCENARIO.replace("expect 200\n    expect json", "expect 418\n    expect json"),
    )
    .unwrap();
    let shown = stage.fathom(["app", "try", "shop.scenario", &shop.url()]).code(1).stdout;
    assert!(shown.contains("FAILED    status: 200, expected 418"), "{shown}");
}

#[test]
fn nothing_is_asked_when_something_is_missing() {
    let (stage, shop) = (stage_with(SCENARIO), ShopServer::open());
    fs::remove_file(stage.path("accounts.csv")).unwrap();
    for command in ["run", "try"] {
        let ending = stage.fathom(["app", command, "shop.scenario", &shop.url()]).code(2);
        assert!(ending.stderr.contains("accounts.csv"), "{}", ending.stderr);
    }
    fs::write(stage.path("accounts.csv"), "user,password\n").unwrap();
    let ending = stage.fathom(["app", "try", "shop.scenario", &shop.url()]);
    assert!(ending.stderr.contains("accounts.csv"), "{}", ending.stderr);
    assert!(shop.seen().is_empty(), "{:?}", shop.seen());
}

#[test]
fn users_who_come_by_a_rate_go_through_once() {
    let scenario = SCENARIO.replace("closed 10 repeat 5", "open 200/s for 500ms");
    let (stage, shop) = (stage_with(&scenario), ShopServer::open());
    let words = ["app", "run", "shop.scenario", &shop.url(), "--json", "--lenient", "--warmup", "0ms"];
    let run = run_of(&stage.fathom(words).succeeded());
    let users = users(&run);
    assert!((80..=110).contains(&users.n_started), "{users:?}");
    assert!(users.n_finished <= users.n_started);
    let promised = users.steps.iter().find(|step| step.name == "login").unwrap();
    assert_eq!(promised.promises, ["p99 < 30s"]);
}

#[test]
fn data_whose_end_is_an_error_ends_the_run_incomplete_with_its_result() {
    let scenario =
        SCENARIO.replace("per user then wrap", "unique then error").replace("closed 10 repeat 5", "closed 2");
    let (stage, shop) = (stage_with(&scenario), ShopServer::open());
    let words = ["app", "run", "shop.scenario", &shop.url(), "--warmup", "0ms", "--rounds", "3", "--json"];
    let run = run_of(&stage.fathom(words).code(4));
    let Completeness::Incomplete { reason } = &run.completeness else { panic!("{:?}", run.completeness) };
    let begin = format!("{}: the data set accounts (accounts.csv) had no more rows", run.tests[0].full_name());
    assert!(reason.starts_with(&begin), "{reason}");
    assert_eq!(run.tests[0].trials.len(), 1, "nobody goes on");
    let (known, seen) = (users(&run), shop.seen());
    assert!(
        (9..=10).contains(&known.n_finished),
        "the last row may be under way when the other user finds none: {known:?}"
    );
    assert_eq!(seen["POST /login"], 10, "each row was used once");

    // The same data, but the end of the rows is not an error.
    fs::write(stage.path("shop.scenario"), scenario.replace("then error", "then stop")).unwrap();
    let words = ["app", "run", "shop.scenario", &shop.url(), "--warmup", "0ms", "--rounds", "1", "--json", "--lenient"];
    let run = run_of(&stage.fathom(words).succeeded());
    assert_eq!((&run.completeness, users(&run).n_finished), (&Completeness::Complete, 10));
}

#[test]
fn data_whose_end_is_an_error_ends_a_comparison_of_paths_too() {
    let scenario =
        SCENARIO.replace("per user then wrap", "unique then error").replace("closed 10 repeat 5", "closed 2");
    let (stage, shop, other) = (stage_with(&scenario), ShopServer::open(), ShopServer::open());
    let words = ["path", "app", "--script", "shop.scenario", "--direct", &shop.url(), "--via", &other.url()];
    let run = run_of(&stage.fathom([&words[..], &["--warmup", "0ms", "--rounds", "2", "--json"]].concat()).code(4));
    let Completeness::Incomplete { reason } = &run.completeness else { panic!("{:?}", run.completeness) };
    assert!(reason.contains("the data set accounts (accounts.csv) had no more rows"), "{reason}");
    assert_eq!(run.tests.iter().map(|test| test.trials.len()).sum::<usize>(), 1, "nobody goes on");
}

/// Creates a test bed with a scenario whose users each need a row, and `n` rows.
fn stage_with_rows(n: usize, coming: &str) -> TestBed {
    let stage = TestBed::beside_others();
    let scenario = format!("{coming}\n\nstep look\n  GET /new?${{rows.id}}\n  expect 200, 4xx\n\nthink 10ms\n");
    fs::write(stage.path("rows.scenario"), scenario).unwrap();
    let rows: Vec<String> = (0..n).map(|n| format!("{n}\n")).collect();
    fs::write(stage.path("rows.csv"), format!("id\n{}", rows.concat())).unwrap();
    stage
}

#[test]
fn users_who_leave_during_the_warm_up_leave_no_result_but_a_way_to_one() {
    let (stage, shop) = (stage_with_rows(3, "closed 2 for 1s\ndata rows from rows.csv unique"), ShopServer::open());
    let shown = stage.fathom(["app", "run", "rows.scenario", &shop.url(), "--rounds", "1"]).code(1).stdout;
    for words in ["had left by the end of the warm-up", "--warmup 0s"] {
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn what_is_no_scenario_is_told_from_one_with_mistakes() {
    let stage = TestBed::beside_others();
    fs::write(stage.path("x.lua"), "function request() return wrk.format() end").unwrap();
    fs::write(stage.path("noise.scenario"), [0xff, 0xfe, 0, 1]).unwrap();
    fs::create_dir(stage.path("folder.scenario")).unwrap();
    for command in ["check", "format", "try"] {
        stage
            .fathom(["app", command, "x.lua"])
            .refused(2, &["x.lua is a script for wrk", "fathom app run x.lua http://"]);
    }
    for command in ["check", "format", "try", "run"] {
        stage
            .fathom(["app", command, "noise.scenario"])
            .refused(2, &["cannot read noise.scenario", "not text in UTF-8"]);
        stage.fathom(["app", command, "folder.scenario"]).refused(2, &["cannot read folder.scenario", "directory"]);
    }
}

#[test]
fn what_cannot_be_imported_is_refused_with_its_reason() {
    const BOMB: &str = r#"<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><jmeterTestPlan>&b;</jmeterTestPlan>"#;
    let cases: [(&str, &[u8], &str); 5] = [
        (
            "bomb.jmx",
            BOMB.as_bytes(),
            "it declares a document type, which may define entities: that is refused (line 1)",
        ),
        ("page.jmx", b"<html/>", "its outermost element is <html> (line 1)"),
        ("other.har", b"{\"a\":1}", "missing field `log`"),
        ("noise.har", &[0xff, 0xfe, 0, 1], "not UTF-8 text"),
        ("nothing.jmx", b"", "neither a HAR file nor a test plan"),
    ];
    let stage = TestBed::beside_others();
    for (name, text, said) in cases {
        fs::write(stage.path(name), text).unwrap();
        stage
            .fathom(["app", "import", name, "-o", "out.scenario"])
            .refused(2, &[&format!("cannot import {name}"), said]);
    }
    assert!(!stage.path("out.scenario").exists(), "nothing is written");
}

#[test]
fn a_row_of_another_length_is_found_before_the_run() {
    let (stage, shop) = (stage_with(SCENARIO), ShopServer::open());
    fs::write(stage.path("accounts.csv"), "user,password\nann,1\nbob,2\ncid\n").unwrap();
    let shown = stage.fathom(["app", "check", "shop.scenario"]).code(2).stdout;
    assert!(shown.contains("line 4: 1 cells, where the head has 2"), "{shown}");
    let ending = stage.fathom(["app", "run", "shop.scenario", &shop.url()]).code(2);
    assert!(ending.stderr.contains("line 4: 1 cells") && ending.stdout.is_empty(), "{}", ending.stderr);
    assert!(shop.seen().is_empty(), "{:?}", shop.seen());
}

#[test]
fn trying_where_nobody_listens_says_why() {
    let stage = stage_with(SCENARIO);
    stage
        .fathom(["app", "try", "shop.scenario", "http://127.0.0.1:9/"])
        .refused(3, &["1 attempt, none taken", "Connection refused"]);
    stage
        .fathom(["app", "try", "shop.scenario", "http://192.0.2.1/"])
        .refused(3, &["fathom app try shop.scenario http://192.0.2.1/ --allow 192.0.2.1"]);
}

#[test]
fn users_end_with_the_program_that_sent_them() {
    let stage = stage_with_rows(1, "closed 4 for 1m\ndata rows from rows.csv random");
    let shop = ShopServer::open();
    let run = stage.start(["app", "run", "rows.scenario", &shop.url()]);
    until(|| (shop.n_connections.load(Relaxed) > 4).then_some(()));
    run.handle().kill().unwrap();
    drop(run);
    until(|| processes(&stage).is_empty().then_some(()));
}

#[test]
fn requests_of_any_method_are_sent_by_its_name() {
    let (stage, shop) = (TestBed::beside_others(), ShopServer::open());
    let words = ["http", &shop.url(), "--count", "20", "--rounds", "1"];
    for method in ["DELETE", "OPTIONS"] {
        stage.fathom(words.into_iter().chain(["--method", method])).succeeded();
        assert_eq!(shop.seen().get(&format!("{method} /")), Some(&20), "{:?}", shop.seen());
    }
    let planned = stage.fathom(words.into_iter().chain(["--method=HEAD", "--plan"])).succeeded();
    assert!(planned.stdout.contains("HEAD"), "{}", planned.stdout);
}
