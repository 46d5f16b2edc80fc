//! wrk scripts: compares their view under wrk and under fathom, and the endings of faulty ones.

use std::{fs, path::PathBuf};

use crate::{
    compat::{drop_in, is_installed},
    nginx::Nginx,
    test_bed::{ProgramResult, TestBed, tree},
};

const LOCATIONS: &str = r#"
    location /echo { return 200 "$request_method $request_uri $http_x_token $content_length"; }
    location /login { add_header X-Token secret; return 200 "welcome"; }
    location /double { add_header X-Double a; add_header X-Double b; return 200 "twice"; }
    location /chunks { ssi on; ssi_types *; rewrite ^ /index.html break; }
    location /empty { return 204; }
    location /error { return 500 "no"; }"#;

/// Each script of the source tree with its options, its path and the arguments after the URL.
const SCRIPTS: &[(&str, &str, &str, &str)] = &[
    ("address", "-t2 -c2", "/", ""),
    ("login", "-t1 -c1", "/", ""),
    ("counter", "-t1 -c1", "/echo", ""),
    ("delay", "-t1 -c1", "/", ""),
    ("pipeline", "-t1 -c1", "/", "-- 16"),
    ("post", "-t1 -c1", "/", ""),
    ("report", "-t2 -c4", "/", ""),
    ("setup", "-t2 -c4", "/", ""),
    ("stop", "-t1 -c1", "/", ""),
    ("values", "-t2 -c2", "/", ""),
    ("format", "-t1 -c1", "/echo?a=b", ""),
    ("surroundings", "-t1 -c1 -H X-Line:_of_the_command_line -H X-Other:none", "/echo?x=y#z", "-- one two_words"),
    ("answers", "-t1 -c1", "/", ""),
    ("lifecycle", "-t2 -c2", "/", ""),
    ("said", "-t2 -c2", "/", ""),
    ("broken", "-t2 -c2", "/", ""),
    ("failing", "-t1 -c1", "/", ""),
];

fn folder() -> PathBuf {
    tree().join("crates/measure/lua/tests/scripts")
}

/// Starts a server. Returns `None` and reports it if nginx is missing.
fn server(stage: &TestBed) -> Option<Nginx> {
    let nginx = Nginx::start(stage, "<!-- a page -->", LOCATIONS);
    if nginx.is_none() {
        fathom_testkit::skip("needs nginx");
    }
    nginx
}

/// Returns the output of a script before the result and after it.
fn printed(text: &str) -> (Vec<&str>, Vec<&str>) {
    let is_of_wrk =
        |line: &&str| line.starts_with("  ") || line.starts_with("Running ") || line.starts_with("Requests/sec");
    let (before, after) = text.split_once("Transfer/sec:").expect("wrk's text ends with it");
    let after = after.lines().skip(1);
    (before.lines().filter(|line| !is_of_wrk(line)).collect(), after.collect())
}

fn words<'a>((options, path, args): (&'a str, &'a str, &'a str), script: &str, nginx: &Nginx) -> Vec<String> {
    let own = |words: &'a str| words.split_whitespace().map(|word| word.replace('_', " "));
    let end = ["-d1".to_owned(), "-s".to_owned(), script.to_owned(), nginx.url(path)];
    own(options).chain(end).chain(own(args)).collect()
}

#[test]
fn scripts_see_the_same_under_wrk_and_under_its_face() {
    let stage = TestBed::beside_others();
    if !is_installed("wrk") {
        return fathom_testkit::skip("needs wrk");
    }
    let Some(nginx) = server(&stage) else { return };
    let listed = fs::read_dir(folder()).unwrap();
    let mut shipped: Vec<_> = listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    shipped.sort();
    let mut tried: Vec<_> = SCRIPTS.iter().map(|(name, ..)| format!("{name}.lua")).collect();
    tried.sort();
    assert_eq!(shipped, tried, "every script is tried");
    for (name, options, path, args) in SCRIPTS {
        let script = folder().join(format!("{name}.lua"));
        let words = words((options, path, args), script.to_str().unwrap(), &nginx);
        let mut wrk = stage.command("wrk");
        wrk.args(&words);
        let wrk = stage.spawn(wrk);
        let ours = stage.start([&["as".to_owned(), "wrk".to_owned()], &words[..]].concat());
        let [theirs, ours] = [wrk, ours].map(|running| running.ends().succeeded());
        assert_eq!(printed(&ours.stdout), printed(&theirs.stdout), "{name}\n{}", ours.stderr);
        assert_eq!(ours.stderr, theirs.stderr, "{name}");
    }
}

#[test]
fn a_script_that_is_not_there_is_told_and_gone_without_as_by_wrk() {
    let stage = TestBed::beside_others();
    if !is_installed("wrk") {
        return fathom_testkit::skip("needs wrk");
    }
    let Some(nginx) = server(&stage) else { return };
    let url = nginx.url("/");
    let words = ["-t1", "-c1", "-d1s", "-s", "nosuch.lua", url.as_str()];
    let mut wrk = stage.command("wrk");
    wrk.args(words);
    let theirs = stage.spawn(wrk).ends().succeeded();
    let ours = stage.fathom([&["as", "wrk"], &words[..]].concat()).succeeded();
    assert_eq!(ours.stderr, theirs.stderr);
    assert!(ours.stdout.contains("Requests/sec"), "{}", ours.stdout);
}

#[test]
fn the_face_of_wrk_ends_with_the_code_that_a_script_asks_for() {
    let stage = TestBed::beside_others();
    let Some(nginx) = server(&stage) else { return };
    let ends = |text: &str| {
        fs::write(stage.path("x.lua"), text).unwrap();
        let script = stage.path("x.lua").display().to_string();
        stage.fathom(["as", "wrk", "-t1", "-c1", "-d1s", "-s", &script, &nginx.url("/")])
    };
    // The usual place: a script that checks the result.
    let ending = ends("function done() os.exit(7) end").code(7);
    assert!(
        ending.stdout.contains("Requests/sec:") && ending.stderr.contains("x.lua:1: os.exit(7)"),
        "{}",
        ending.stderr
    );
    // wrk continues without a script that does not load, but this script requests that it does not run.
    let ending = ends("os.exit(7)").code(1);
    assert!(ending.stderr.contains("the script does not start"), "{}", ending.stderr);
}

/// Runs a script of the test with a server for it.
fn run(stage: &TestBed, text: &str, words: &[&str]) -> Option<ProgramResult> {
    let nginx = server(stage)?;
    fs::write(stage.path("x.lua"), text).unwrap();
    let url = nginx.url("/");
    let command = ["app", "run", "x.lua", &url, "--warmup", "0s", "--threads", "2", "--connections", "4", "--quiet"];
    Some(stage.fathom([&command[..], words].concat()))
}

#[test]
fn a_script_gives_our_report_with_what_it_printed_below() {
    let stage = TestBed::beside_others();
    let text = "function request() return wrk.format('GET', '/echo') end
        function done(summary) print('requests', summary.requests > 0) io.stderr:write('aside\\n') end";
    let Some(ending) = run(&stage, text, &["--duration", "300ms"]) else { return };
    let ending = ending.succeeded();
    let (report, said) = ending.stdout.split_once("printed by the script\n").unwrap();
    assert!(report.contains("p99.9") && report.contains("verdict"), "{report}");
    assert_eq!(said, "  requests\ttrue\n  aside\n");
}

#[test]
fn what_a_script_gets_wrong_is_counted_with_its_line_and_the_run_goes_on() {
    let stage = TestBed::beside_others();
    let text = "local n = 0
        function request()
            n = n + 1
            if n == 5 then error('boom') elseif n == 6 then return {} end
            return wrk.request()
        end
        function response() if n > 6 and not told then told = true local x = nil .. 'x' end end";
    let Some(ending) = run(&stage, text, &["--duration", "300ms", "--json"]) else { return };
    let run = ending.succeeded().run();
    let record = run.tests[0].trials[0].records.values().next().unwrap();
    for thread in ["thread 1", "thread 2"] {
        for (what, n) in [
            (format!("script: x.lua:4: boom (request(), {thread})"), 1..=1),
            (format!("script: x.lua: returned a table value, not a request (request(), {thread})"), 1..=1),
            (format!("script: x.lua:7: attempt to concatenate a nil value (response(), {thread})"), 1..=1),
        ] {
            assert!(n.contains(&record.errors[what.as_str()]), "{what}: {:?}", record.errors);
        }
    }
    assert!(record.totals["requests"] > 20, "{:?}", record.totals);
    assert!(record.notes.iter().any(|note| note.id == "script-errors"));
}

#[test]
fn a_script_that_does_not_come_back_is_named_with_its_function_and_its_thread() {
    let stage = TestBed::beside_others();
    let texts = [
        (
            "request()",
            "thread 1",
            "local n = 0 function request() n = n + 1 if n > 3 then while true do n = n + 1 end end return wrk.request() end",
        ),
        ("init()", "thread 1", "function init() local n = 0 repeat n = n + 1 until n < 0 end"),
        ("done()", "the main state", "function done() local x = 0 while true do x = x + 1 end end"),
        ("the script itself", "the main state", "jit.off() while true do end"),
    ];
    for (function, owner, text) in texts {
        let words = ["--duration", "200ms", "--threads", "1", "--script-patience", "300ms"];
        let Some(nginx) = server(&stage) else { return };
        fs::write(stage.path("x.lua"), text).unwrap();
        let url = nginx.url("/");
        let command = ["app", "run", "x.lua", &url, "--warmup", "0s", "--connections", "2", "--quiet"];
        let ending = stage.fathom([&command[..], &words].concat());
        drop(nginx);
        fs::remove_dir_all(stage.path("www")).unwrap();
        let said = format!("the script x.lua hangs: {function} in {owner} has not returned for 300 ms, the most");
        let text = format!("{}{}", ending.stdout, ending.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&said), "{text}");
        assert!(!text.contains("panicked") && !text.contains("defect"), "{text}");
    }
}

#[test]
fn a_script_that_takes_all_memory_is_stopped_at_its_bound() {
    let stage = TestBed::beside_others();
    let text = "local kept, n = {}, 0
        function request() n = n + 1 if n > 10 then while true do kept[#kept + 1] = ('x'):rep(1e6) .. #kept end end return wrk.request() end";
    let words = ["--duration", "300ms", "--script-memory", "64MiB", "--json"];
    let Some(ending) = run(&stage, text, &words) else { return };
    let run = ending.succeeded().run();
    let record = run.tests[0].trials[0].records.values().next().unwrap();
    let said = "script: x.lua: not enough memory: a state may have 64 MiB (option script-memory) (request(), thread 1)";
    assert!(record.errors[said] > 0, "{:?}", record.errors);
}

#[test]
fn a_script_that_does_not_start_is_refused_before_anything_is_sent() {
    let stage = TestBed::beside_others();
    let cases = [
        ("x = = 1", "x.lua:1: unexpected symbol near '='"),
        ("function setup() error('no') end", "x.lua:1: no (setup(), the main state)"),
        ("function init() nothing() end", "x.lua:1: attempt to call global 'nothing' (a nil value) (init(), thread 1)"),
        ("function request() return 'GET' end", "incomplete request at 1:1 (request(), thread 1)"),
    ];
    for (text, said) in cases {
        let Some(ending) = run(&stage, text, &[]) else { return };
        fs::remove_dir_all(stage.path("www")).unwrap();
        ending.refused(3, &["the script does not start", said]);
    }
    stage.fathom(["app", "run", "nowhere.lua", "http://127.0.0.1:9/"]).refused(3, &["127.0.0.1:9"]);
    stage.fathom(["app", "run", "x.lua"]).refused(2, &["x.lua needs a URL"]);
    stage
        .fathom(["app", "run", "x.lua", "http://192.0.2.1/"])
        .refused(3, &["192.0.2.1 is not a target you have allowed"]);
    drop_in(&stage, "wrk", &["-s", "x.lua", "http://192.0.2.1/"]).refused(3, &["192.0.2.1"]);
}

#[test]
fn a_script_cannot_disturb_what_its_process_says() {
    let stage = TestBed::beside_others();
    let text = "local ffi = require('ffi')
        ffi.cdef('int puts(const char *); int getchar(void); int fflush(void *);')
        function init() ffi.C.puts('from C') ffi.C.fflush(nil) os.execute('echo from a child') print(ffi.C.getchar(), io.read()) end";
    let Some(ending) = run(&stage, text, &["--duration", "200ms"]) else { return };
    let ending = ending.succeeded();
    assert!(ending.stdout.ends_with("printed by the script\n  -1\tnil\n  -1\tnil\n"), "{}", ending.stdout);
}
