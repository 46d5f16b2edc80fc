//! Drop-in tools compared with the original tools: the same arguments, the same server, the same output.

use std::{
    collections::BTreeMap,
    env, fs,
    net::{TcpListener, UdpSocket},
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    nginx::Nginx,
    test_bed::{ProgramResult, TestBed, lacks_root},
};

/// As long as the welcome page of nginx.
const INDEX: &str = concat!(
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
    "a page as small as the pages of benchmarks are"
);
const LOCATIONS: &str = "location /post { return 200 \"posted\"; } location /error { return 500 \"no\"; }
    location /vary { return 200 \"$connection_requests\"; }";

pub(crate) fn is_installed(tool: &str) -> bool {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':').any(|folder| Path::new(folder).join(tool).exists())
}

/// Starts a server. Returns `None` and reports it if the tool or the server is missing.
fn nginx(stage: &TestBed, tool: &str) -> Option<Nginx> {
    if !is_installed(tool) {
        fathom_testkit::skip(&format!("needs {tool}"));
        return None;
    }
    let nginx = Nginx::start(stage, INDEX, LOCATIONS);
    if nginx.is_none() {
        fathom_testkit::skip("needs nginx");
    }
    nginx
}

fn tool(stage: &TestBed, tool: &str, words: &[&str]) -> ProgramResult {
    let mut command = stage.command(tool);
    command.args(words);
    stage.spawn(command).ends()
}

pub(crate) fn drop_in(stage: &TestBed, tool: &str, words: &[&str]) -> ProgramResult {
    stage.fathom([&["as", tool], words].concat())
}

/// Returns a line without its numbers, their units, and its alignment.
fn shape(line: &str) -> String {
    const UNITS: [&str; 11] = ["us", "ms", "s", "m", "k", "K", "M", "KB", "MB", "GB", "B"];
    let mut shape = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        shape += rest[..at].trim_end_matches(' ');
        shape += " #";
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        if UNITS.contains(&&rest[..end]) {
            rest = &rest[end..];
        }
    }
    shape + rest
}

fn shapes(text: &str) -> Vec<String> {
    text.lines().filter(|line| !is_opinion(line)).map(shape).collect()
}

/// Returns true for ab's warnings about its numbers, which depend on them.
fn is_opinion(line: &str) -> bool {
    ["WARNING: ", "ERROR: ", "        These", "       deviation"].iter().any(|opinion| line.starts_with(opinion))
}

/// Returns the widths of those lines whose length does not depend on the numbers.
fn widths(text: &str) -> Vec<usize> {
    let labels = [
        "    Latency",
        "    Req/Sec",
        "     50%",
        "     99%",
        "Connect:",
        "Processing:",
        "Waiting:",
        "Total:",
        " 100%",
    ];
    let lines = text.lines().filter(|line| labels.iter().any(|label| line.starts_with(label)));
    lines.map(|line| line.trim_end_matches(" (longest request)").len()).collect()
}

#[test]
fn wrk_and_its_face_print_the_same_lines() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "wrk") else { return };
    let (url, error) = (nginx.url("/"), nginx.url("/error"));
    let lines: [&[&str]; 3] =
        [&["-t2", "-c4", "-d1", "--latency", &url], &["-c3", "-t1", "-d", "1s", "-H", "A: b", &error], &[&url, "-d1"]];
    for words in lines {
        let [theirs, ours] = [tool(&stage, "wrk", words), drop_in(&stage, "wrk", words)].map(ProgramResult::succeeded);
        assert_eq!(shapes(&ours.stdout), shapes(&theirs.stdout), "{words:?}");
        assert_eq!(widths(&ours.stdout), widths(&theirs.stdout), "{words:?}\n{}\n{}", ours.stdout, theirs.stdout);
        assert_eq!(ours.stdout.lines().take(2).collect::<Vec<_>>(), theirs.stdout.lines().take(2).collect::<Vec<_>>());
        assert_eq!(ours.stderr, theirs.stderr);
    }
}

#[test]
fn wrk_and_its_face_refuse_in_the_same_words() {
    let stage = TestBed::beside_others();
    if !is_installed("wrk") {
        return fathom_testkit::skip("needs wrk");
    }
    let refused: [&[&str]; 9] = [
        &[],
        &["-x", "http://127.0.0.1/"],
        &["--foo", "http://127.0.0.1/"],
        &["-c"],
        &["-t8", "-c4", "http://127.0.0.1/"],
        &["-t", "abc", "http://127.0.0.1/"],
        &["-d", "5x", "http://127.0.0.1/"],
        &["-d1", "127.0.0.1"],
        &["-d1", "http://127.0.0.1:9/"],
    ];
    for words in refused {
        let [theirs, ours] = [tool(&stage, "wrk", words), drop_in(&stage, "wrk", words)].map(|ending| ending.code(1));
        assert_eq!((ours.stdout, ours.stderr), (theirs.stdout, theirs.stderr), "{words:?}");
    }
}

/// Returns the output after the lines that each tool prints about itself.
fn behind_banner(text: &str) -> &str {
    let begins = ["Benchmarking ", "..done", "\n\n<table", "<table"].map(|beginning| text.find(beginning));
    &text[begins.into_iter().flatten().min().unwrap_or(0)..]
}

/// Returns the lines of ab that are the same for the same requests to the same server.
fn steady(text: &str) -> Vec<&str> {
    let is_steady = |line: &&str| {
        let timed =
            ["Time ", "Requests per", "Transfer rate:", "  ", "Connect:", "Processing:", "Waiting:", "Total:", " 100%"];
        line.contains(':')
            && !is_opinion(line)
            && !timed.iter().any(|label| line.starts_with(label))
            && !line.starts_with("<tr")
    };
    behind_banner(text).lines().filter(is_steady).collect()
}

#[test]
fn ab_and_its_face_print_the_same_lines() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "ab") else { return };
    fs::write(stage.path("form"), "hello=world").unwrap();
    let [index, post, error, vary] = ["/", "/post", "/error", "/vary"].map(|path| nginx.url(path));
    let proxy = format!("127.0.0.1:{}", nginx.port);
    let lines: [&[&str]; 10] = [
        &["-n", "4", "-X", &proxy, "-P", "me:secret", "http://elsewhere.invalid/"],
        &["-n", "400", "-c", "4", &index],
        &["-n400", "-c4", "-k", "-q", &index],
        &["-n", "1", &index],
        &["-n", "200", "-d", "-S", "-H", "X-A: b", &index],
        &["-n", "20", "-p", "form", "-T", "text/x", &post],
        &["-n", "20", "-i", "-k", &index],
        &["-n", "15", "-C", "a=b", "-A", "me:secret", &error],
        &["-n", "30", "-k", "-l", &vary],
        &["-w", "-n", "20", "-x", "border=1", "-p", "form", &post],
    ];
    for words in lines {
        let [theirs, ours] = [tool(&stage, "ab", words), drop_in(&stage, "ab", words)].map(ProgramResult::succeeded);
        let [their, our] = [&theirs, &ours].map(|ending| behind_banner(&ending.stdout));
        assert_eq!(shapes(our), shapes(their), "{words:?}");
        assert_eq!(widths(our), widths(their), "{words:?}\n{our}\n{their}");
        assert_eq!(steady(our), steady(their), "{words:?}");
        assert_eq!(ours.stderr, theirs.stderr, "{words:?}");
    }
}

#[test]
fn ab_and_its_face_show_the_request_and_its_answer() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "ab") else { return };
    fs::write(stage.path("form"), "hello=world").unwrap();
    let [index, post, error] = ["/", "/post", "/error"].map(|path| nginx.url(path));
    let lines: [&[&str]; 4] = [
        &["-v", "2", "-k", &index],
        &["-v", "3", "-C", "a=b", &index],
        &["-v", "4", "-p", "form", "-H", "X: y", &post],
        &["-v", "2", &error],
    ];
    for words in lines {
        let [theirs, ours] = [tool(&stage, "ab", words), drop_in(&stage, "ab", words)].map(|ending| {
            let text = ending.succeeded().stdout;
            let shown = text.split_once("(be patient)").unwrap().1.split_once("..done").unwrap().0.to_owned();
            // The time of the response differs between the two runs.
            shown.lines().filter(|line| !line.starts_with("Date: ")).collect::<Vec<_>>().join("\n")
        });
        assert!(theirs.contains("INFO: ") && theirs.contains("LOG: header received:"), "{theirs}");
        assert_eq!(ours, theirs, "{words:?}");
    }
}

#[test]
fn ab_and_its_face_say_the_same_of_tls() {
    let stage = TestBed::beside_others();
    if !is_installed("ab") {
        return fathom_testkit::skip("needs ab");
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let words = ["serve", "--only", "http", "--listen", "127.0.0.1", "--http-port", &port, "--http-tls"];
    let server = stage.start(words);
    server.says("https");
    for version in ["TLS1.2", "TLS1.3"] {
        let words = ["-n", "3", "-f", version, &format!("https://localhost:{port}/")];
        let [theirs, ours] = [tool(&stage, "ab", &words), drop_in(&stage, "ab", &words)].map(|ending| {
            let text = ending.succeeded().stdout;
            let of_tls = |line: &&str| line.contains("TLS") || line.starts_with("Server Temp Key:");
            text.lines().filter(of_tls).map(str::to_owned).collect::<Vec<_>>()
        });
        assert_eq!(theirs.len(), 3, "{theirs:?}");
        assert_eq!(ours, theirs, "{version}");
    }
}

#[test]
fn answers_that_vary_in_length_fail_for_ab_and_for_its_face() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "ab") else { return };
    let words = ["-n", "30", "-k", &nginx.url("/vary")];
    for ending in [tool(&stage, "ab", &words), drop_in(&stage, "ab", &words)].map(ProgramResult::succeeded) {
        // From the tenth request on a connection, its number has a second digit.
        assert!(ending.stdout.contains("Failed requests:        21\n"), "{}", ending.stdout);
        assert!(
            ending.stdout.contains("   (Connect: 0, Receive: 0, Length: 21, Exceptions: 0)\n"),
            "{}",
            ending.stdout
        );
    }
}

#[test]
fn ab_and_its_face_write_the_same_files() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "ab") else { return };
    let url = nginx.url("/");
    let files = |run: fn(&TestBed, &str, &[&str]) -> ProgramResult, name: &str| {
        let [csv, tsv] = ["csv", "tsv"].map(|end| format!("{name}.{end}"));
        run(&stage, "ab", &["-n", "300", "-c", "3", "-q", "-e", &csv, "-g", &tsv, &url]).succeeded();
        [csv, tsv].map(|file| fs::read_to_string(stage.path(&file)).unwrap())
    };
    let [their_csv, their_tsv] = files(tool, "theirs");
    let [our_csv, our_tsv] = files(drop_in, "ours");
    assert_eq!(shapes(&our_csv), shapes(&their_csv));
    let columns = |text: &str| text.lines().map(|line| line.split('\t').count()).collect::<Vec<_>>();
    assert_eq!((our_tsv.lines().next(), columns(&our_tsv)), (their_tsv.lines().next(), columns(&their_tsv)));
    let totals: Vec<u64> =
        our_tsv.lines().skip(1).map(|line| line.split('\t').nth(4).unwrap().parse().unwrap()).collect();
    assert!(totals.is_sorted() && totals.len() == 300, "{totals:?}");
    // `Sat Nov 21 14:34:56 2026`, in local time like the original.
    let date = |text: &str| text.lines().nth(1).unwrap().split(':').next().unwrap().to_owned();
    assert_eq!(date(&our_tsv).len(), date(&their_tsv).len());
}

#[test]
fn ab_and_its_face_refuse_in_the_same_words() {
    let stage = TestBed::beside_others();
    if !is_installed("ab") {
        return fathom_testkit::skip("needs ab");
    }
    let refused: [(&[&str], i32); 9] = [
        (&[], 22),
        (&["http://127.0.0.1"], 22),
        (&["-n", "1", "-c", "2", "http://127.0.0.1/"], 22),
        (&["-c", "-1", "http://127.0.0.1/"], 22),
        (&["-n", "abc", "http://127.0.0.1/"], 1),
        (&["-m", "GET", "-i", "http://127.0.0.1/"], 1),
        (&["-p", "nowhere", "http://127.0.0.1/"], 1),
        (&["-n", "1", "http://127.0.0.1:9/"], 111),
        (&["-n", "1", "http://127.0.0.1:99999/"], 22),
    ];
    for (words, code) in refused {
        let [theirs, ours] = [tool(&stage, "ab", words), drop_in(&stage, "ab", words)].map(|ending| ending.code(code));
        // The usage has a different wording.
        let said =
            |text: &str| text.lines().take_while(|line| *line != "Options are:").map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(said(&ours.stderr), said(&theirs.stderr), "{words:?}");
        assert_eq!(behind_banner(&ours.stdout), behind_banner(&theirs.stdout), "{words:?}");
    }
}

#[test]
fn ab_and_its_face_go_on_at_a_closed_port() {
    let stage = TestBed::beside_others();
    if !is_installed("ab") {
        return fathom_testkit::skip("needs ab");
    }
    let words = ["-n", "10", "-c", "2", "-r", "http://127.0.0.1:9/"];
    let [theirs, ours] = [tool(&stage, "ab", &words), drop_in(&stage, "ab", &words)].map(ProgramResult::succeeded);
    // ab counts a refusal as one failure or as two, depending on the kernel's error.
    let is_counted = |line: &&String| !line.contains("Failed requests:") && !line.contains("(Connect:");
    let lines =
        |ending: &ProgramResult| shapes(behind_banner(&ending.stdout)).iter().filter(is_counted).cloned().collect();
    let [theirs, our_lines]: [Vec<String>; 2] = [lines(&theirs), lines(&ours)];
    assert_eq!(our_lines, theirs);
    assert!(ours.stdout.contains("(Connect: 0, Receive: 10, Length: 0, Exceptions: 0)"), "{}", ours.stdout);
}

#[test]
fn webbench_has_its_two_lines() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "nginx") else { return };
    let ending = drop_in(&stage, "webbench", &["-t", "1", "-c", "2", &nginx.url("/")]).succeeded();
    let lines = shapes(&ending.stdout);
    let end: Vec<&str> = lines.iter().rev().take(2).map(String::as_str).collect();
    assert_eq!(end, ["Requests: # susceed, # failed.", "Speed= # pages/min, # bytes/sec."], "{}", ending.stdout);
    let number = |behind: &str| {
        let text = ending.stdout.split(behind).nth(1).unwrap();
        text.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse::<u64>().unwrap()
    };
    let (pages, answered) = (number("Speed="), number("Requests: "));
    assert!(answered > 10 && pages == answered * 60, "{}", ending.stdout);
    for options in ["-9", "-f", "-9f"] {
        let ending = drop_in(&stage, "webbench", &["-t", "1", "-c", "2", options, &nginx.url("/")]).succeeded();
        let n = |behind: &str, end: &str| {
            let text = ending.stdout.split(behind).nth(1).unwrap();
            text.split(end).next().unwrap().trim().parse::<u64>().unwrap()
        };
        assert!(n("Requests:", "susceed") > 10 && n("susceed,", "failed") == 0, "{options}: {}", ending.stdout);
        assert_eq!(n("pages/min,", "bytes/sec") > 0, !options.contains('f'), "{options}: {}", ending.stdout);
    }
}

/// Returns the averages of sar's text, by row and column: `eth0 rxpck/s`.
fn averages(text: &str) -> BTreeMap<String, f64> {
    let mut values = BTreeMap::new();
    let mut titles: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("Average:")) {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        if words.iter().all(|word| word.parse::<f64>().is_err()) {
            titles = words;
            continue;
        }
        let row = if words[0].parse::<f64>().is_err() { words[0] } else { "" };
        let named =
            titles.iter().zip(&words).filter_map(|(title, word)| Some((format!("{row} {title}"), word.parse().ok()?)));
        values.extend(named);
    }
    values
}

#[test]
fn sar_prints_the_lines_and_the_averages_of_the_real_sar() {
    if lacks_root() {
        return;
    }
    if !is_installed("sar") {
        return fathom_testkit::skip("needs sar of sysstat");
    }
    let stage = TestBed::new();
    let lab = stage.lab("pair");
    let words = "-u ALL -n DEV,EDEV,SOCK,IP,EIP,ICMP,EICMP,TCP,ETCP,UDP,SOCK6,IP6,EIP6,ICMP6,EICMP6,UDP6,SOFT 1 3";
    let words: Vec<&str> = words.split(' ').collect();
    let is_over = AtomicBool::new(false);
    let (theirs, ours) = std::thread::scope(|scope| {
        scope.spawn(|| {
            lab.enter_with("a", || {
                let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
                while !is_over.load(Ordering::Relaxed) {
                    for _ in 0..10 {
                        // The refusals of the other host are errors of later sends.
                        let _ = socket.send_to(&[7; 958], "198.18.0.2:9");
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        });
        let theirs = lab.exec("b", &[&["env", "LC_ALL=C", "sar"], &words[..]].concat());
        let ours = lab.start("b", &[&["as", "sar"], &words[..]].concat());
        let both = (theirs.ends().succeeded().stdout, ours.ends().succeeded().stdout);
        is_over.store(true, Ordering::Relaxed);
        both
    });
    let masked = |text: &str| -> Vec<String> {
        let words =
            text.lines().map(|line| line.split_whitespace().map(|word| word.replace(|c: char| c.is_ascii_digit(), "")));
        words.map(|words| words.map(|word| word.replace('.', "")).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(masked(&ours), masked(&theirs));
    let titles = |text: &str| {
        text.lines().filter(|line| line.contains("/s")).map(|line| line[8..].to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(titles(&ours), titles(&theirs));
    let (ours, theirs) = (averages(&ours), averages(&theirs));
    for column in ["eth0 rxpck/s", "eth0 rxkB/s", "eth0 txpck/s", " irec/s", " noport/s"] {
        let (our, their) = (ours[column], theirs[column]);
        assert!(their > 0.0 && (our / their - 1.0).abs() < 0.1, "{column}: {our}, and sar says {their}");
    }
}

#[test]
fn a_face_sends_nothing_to_a_target_that_is_not_allowed() {
    let stage = TestBed::beside_others();
    for tool in ["wrk", "ab", "webbench"] {
        drop_in(&stage, tool, &["http://192.0.2.1/"])
            .refused(3, &["192.0.2.1 is not a target you have allowed", "fathom as --allow 192.0.2.1 "]);
    }
    // With a proxy, the address of the proxy is checked.
    drop_in(&stage, "ab", &["-X", "192.0.2.1:3128", "http://127.0.0.1/"]).refused(3, &["192.0.2.1"]);
}

#[test]
fn a_link_selects_its_face_and_our_own_report_comes_behind_only_when_asked() {
    let stage = TestBed::beside_others();
    let Some(nginx) = nginx(&stage, "nginx") else { return };
    symlink(stage.program(), stage.path("wrk")).unwrap();
    let url = nginx.url("/");
    let mut command = stage.command(stage.path("wrk"));
    command.args(["-d1", "-t1", "-c2", "--fathom", &url]);
    let ending = stage.spawn(command).ends().succeeded();
    let (text, report) = ending.stdout.split_once("\n\n").unwrap();
    assert!(text.starts_with("Running 1s test @ ") && text.lines().last().unwrap().starts_with("Transfer/sec:"));
    assert!(report.contains("p99.9") && report.contains("verdict"), "{report}");
    let plain = drop_in(&stage, "wrk", &["-d1", "-t1", "-c2", &url]).succeeded();
    assert_eq!(shapes(&plain.stdout), shapes(text));
}
