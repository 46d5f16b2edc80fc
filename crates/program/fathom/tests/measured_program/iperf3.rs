//! Both ends of iperf3 compared with the original: every option in either role, the messages, and the structure of the JSON.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use fathom_model::run::Completeness;
use fathom_sys::process::{Pidfd, signal::Signal};
use rsa::{
    RsaPrivateKey,
    pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding},
    rand_core::OsRng,
};
use serde_json::Value;

use crate::{
    compat::is_installed,
    test_bed::{PATIENCE, ProgramResult, RunningProgram, TestBed, free_port, tree, until},
};

/// The options for either client against either server, with little data, just enough to show that it flows.
const CASES: &[(&str, &[&str])] = &[
    ("TCP", &["-n", "64M"]),
    ("TCP `-R`", &["-n", "64M", "-R"]),
    ("TCP `--bidir`", &["-n", "64M", "--bidir"]),
    ("TCP `-P 4`", &["-n", "64M", "-P", "4"]),
    ("TCP `-P 4 -R`", &["-n", "64M", "-P", "4", "-R"]),
    ("TCP `-P 4 --bidir`", &["-n", "64M", "-P", "4", "--bidir"]),
    ("UDP `-u`", &["-u", "-k", "40", "-b", "50M"]),
    ("UDP `-u -R`", &["-u", "-k", "40", "-b", "50M", "-R"]),
    ("UDP `-u --bidir`", &["-u", "-k", "40", "-b", "50M", "--bidir"]),
    ("UDP `-u -P 4`", &["-u", "-k", "20", "-b", "50M", "-P", "4"]),
    ("UDP `-u -P 4 -R`", &["-u", "-k", "20", "-b", "50M", "-P", "4", "-R"]),
    ("UDP `-u -P 4 --bidir`", &["-u", "-k", "20", "-b", "50M", "-P", "4", "--bidir"]),
    ("`-b 100M` (TCP)", &["-n", "1M", "-b", "100M"]),
    ("`-b 100M/10` (TCP)", &["-n", "2M", "-b", "100M/10"]),
    ("`-b 50M/10` (UDP)", &["-u", "-k", "40", "-b", "50M/10"]),
    ("`-u -b 0`", &["-u", "-k", "200", "-b", "0"]),
    ("`-k 512`", &["-k", "512"]),
    ("`-l 8K`", &["-n", "64M", "-l", "8K"]),
    ("`-u -l 100`", &["-u", "-k", "40", "-b", "10M", "-l", "100"]),
    ("`-w 256K`", &["-n", "64M", "-w", "256K"]),
    ("`-M 1000`", &["-n", "64M", "-M", "1000"]),
    ("`-N`", &["-n", "64M", "-N"]),
    ("`-C cubic`", &["-n", "64M", "-C", "cubic"]),
    ("`-S 0x10`", &["-n", "64M", "-S", "0x10"]),
    ("`--dscp ef`", &["-n", "64M", "--dscp", "ef"]),
    ("`-Z`", &["-n", "64M", "-Z"]),
    ("`-Z -R`", &["-n", "64M", "-Z", "-R"]),
    ("`-t 1 -O 1`", &["-t", "1", "-O", "1", "-b", "50M"]),
    ("`-t 1 -i 0.2`", &["-t", "1", "-i", "0.2", "-b", "50M"]),
    ("`-t 1 -i 0`", &["-t", "1", "-i", "0", "-b", "50M"]),
    ("`-B 127.0.0.1`", &["-n", "64M", "-B", "127.0.0.1"]),
    ("`-4`", &["-n", "64M", "-4"]),
    ("`--cport 26000`", &["-n", "64M", "--cport", "26000"]),
    ("`-u --cport 26010`", &["-u", "-k", "20", "-b", "50M", "--cport", "26010"]),
    ("`--get-server-output`", &["-n", "64M", "--get-server-output"]),
    ("`-u --udp-counters-64bit`", &["-u", "-k", "40", "-b", "50M", "--udp-counters-64bit"]),
    ("`-u --udp-counters-64bit -R`", &["-u", "-k", "40", "-b", "50M", "--udp-counters-64bit", "-R"]),
    ("`--repeating-payload`", &["-n", "64M", "--repeating-payload"]),
    ("`-u --repeating-payload`", &["-u", "-k", "20", "-b", "50M", "--repeating-payload"]),
    ("`-u --dont-fragment`", &["-u", "-k", "20", "-b", "50M", "-l", "1400", "--dont-fragment"]),
    ("`-R --rcv-timeout 5000`", &["-n", "64M", "-R", "--rcv-timeout", "5000"]),
    ("`--snd-timeout 5000`", &["-n", "64M", "--snd-timeout", "5000"]),
    ("`--connect-timeout 3000`", &["-n", "64M", "--connect-timeout", "3000"]),
    ("`--fq-rate 1G`", &["-n", "64M", "--fq-rate", "1G"]),
    ("`-T title --extra-data text`", &["-n", "64M", "-T", "title", "--extra-data", "text"]),
    ("`-A 0,1`", &["-n", "64M", "-A", "0,1"]),
];
/// The same over IPv6, if the machine supports it.
const IPV6: &[(&str, &[&str])] = &[("`-6`", &["-n", "64M", "-6"]), ("`-6 -L 7`", &["-n", "64M", "-6", "-L", "7"])];

/// Returns true if the original iperf3 is installed. Reports it if it is missing.
fn is_there() -> bool {
    let is_there = is_installed("iperf3");
    if !is_there {
        fathom_testkit::skip("needs iperf3");
    }
    is_there
}

/// Returns the inode of the socket of this network namespace that listens on the port. Binding it for a test could take it from the server.
fn listener(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let (address, state) = (format!(":{port:04X}"), "0A");
    tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_it = fields.get(1).is_some_and(|local| local.ends_with(&address)) && fields.get(3) == Some(&state);
        is_it.then(|| fields[9].to_owned())
    })
}

/// Runs one of several tests against a server of the original, which closes its listening socket after each and opens another: a client that
/// connects in between is refused.
fn one_of_several<T>(port: &str, test: impl FnOnce() -> T) -> T {
    let port = port.parse().unwrap();
    let before = listener(port);
    let ending = test();
    until(|| listener(port).filter(|now| Some(now) != before.as_ref()));
    ending
}

/// Starts a listening server. This does not connect to it, because a server for one test would count that as the test.
fn serving(stage: &TestBed, tool: &[&str], words: &[&str]) -> (RunningProgram, String) {
    let port = free_port();
    let mut command =
        stage.command(if tool.is_empty() { stage.program().as_os_str().to_owned() } else { tool[0].into() });
    command.args(&tool[tool.len().min(1)..]).args(if tool.is_empty() { &["as", "iperf3"][..] } else { &[] });
    command.args(["-s", "-p", &port.to_string()]).args(words);
    let server = stage.spawn(command);
    until(|| listener(port));
    (server, port.to_string())
}

/// Starts the original server and fathom's.
fn servers(stage: &TestBed, words: &[&str]) -> [(RunningProgram, String); 2] {
    [serving(stage, &["iperf3"], words), serving(stage, &[], words)]
}

fn theirs(stage: &TestBed, port: &str, words: &[&str]) -> ProgramResult {
    let mut command = stage.command("iperf3");
    command.args(["-c", host(words), "-p", port]).args(words).env("IPERF3_PASSWORD", "rossi");
    stage.spawn(command).ends()
}

fn ours(stage: &TestBed, port: &str, words: &[&str]) -> ProgramResult {
    let mut command = stage.command(stage.program());
    command.args(["as", "iperf3", "-c", host(words), "-p", port]).args(words).env("IPERF3_PASSWORD", "rossi");
    stage.spawn(command).ends()
}

fn host(words: &[&str]) -> &'static str {
    if words.contains(&"-6") { "::1" } else { "127.0.0.1" }
}

/// Checks that a JSON result has data in every requested direction.
fn outcome(ending: &ProgramResult, words: &[&str]) -> Result<(), String> {
    let document: Value =
        serde_json::from_str(&ending.stdout).map_err(|error| format!("{error}: {}", ending.stdout))?;
    if let Some(error) = document["error"].as_str() {
        return Err(error.to_owned());
    }
    let sums: &[&str] = if words.contains(&"--bidir") {
        &["sum_received", "sum_received_bidir_reverse"]
    } else if words.contains(&"-u") {
        &["sum"]
    } else {
        &["sum_sent", "sum_received"]
    };
    sums.iter().try_for_each(|sum| {
        let moved = document["end"][sum]["bytes"].as_u64().unwrap_or(0);
        if moved > 0 { Ok(()) } else { Err(format!("nothing in {sum}: {}", document["end"])) }
    })
}

/// Returns one line of the table: the options, and the result in either role.
fn line(stage: &TestBed, name: &str, words: &[&str], [real, own]: [&str; 2]) -> String {
    let words = [words, &["-J"]].concat();
    let shown =
        |ending: ProgramResult| outcome(&ending, &words).map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
    let forward = shown(one_of_several(real, || ours(stage, real, &words)));
    format!("| {name} | {forward} | {} |", shown(theirs(stage, own, &words)))
}

#[test]
fn every_option_works_in_both_roles_against_the_real_iperf3_as_the_table_says() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let [(_real, real), (_own, own)] = servers(&stage, &[]);
    let has_ipv6 = TcpListener::bind("[::1]:0").is_ok();
    let cases = CASES.iter().chain(if has_ipv6 { IPV6 } else { &[] });
    let mut lines: Vec<String> = cases.map(|(name, words)| line(&stage, name, words, [&real, &own])).collect();
    lines.push(logins(&stage));
    let version = stage.spawn({
        let mut command = stage.command("iperf3");
        command.arg("--version");
        command
    });
    let version = version.ends().stdout.split_whitespace().nth(1).unwrap_or("?").to_owned();
    let table = lines.join("\n");
    assert!(!table.contains("| no"), "{table}");
    let page = fs::read_to_string(tree().join("docs/iperf3.md")).unwrap();
    let told = page.contains(&format!("iperf3 {version}"));
    if told && has_ipv6 {
        assert!(page.contains(&table), "docs/iperf3.md should hold\n{table}");
    }
}

/// Tests the login in both roles, as in versions before 3.17.
fn logins(stage: &TestBed) -> String {
    let key = RsaPrivateKey::new(&mut OsRng, 1024).unwrap();
    let files = [
        ("private.pem", key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string()),
        ("public.pem", key.to_public_key().to_public_key_pem(LineEnding::LF).unwrap()),
        // The example of iperf3's manual: the user `mario` with the password `rossi`.
        ("users", "mario,bf7a49a846d44b454a5d11e7acfaf13d138bbe0b7483aa3e050879700572709b\n".to_owned()),
    ];
    for (name, text) in &files {
        fs::write(stage.path(name), text).unwrap();
    }
    let server = ["--rsa-private-key-path", "private.pem", "--authorized-users-path", "users"];
    let (_real, real) = serving(stage, &["iperf3"], &server);
    let (_own, own) = serving(stage, &[], &[&server[..], &["--use-pkcs1-padding"]].concat());
    // Less fits into the buffers of two sockets, and iperf3's server counts only what it has read when its client ends.
    let login = ["-n", "64M", "-J", "--username", "mario", "--rsa-public-key-path", "public.pem"];
    let with_padding = [&login[..], &["--use-pkcs1-padding"]].concat();
    let shown =
        |ending: ProgramResult| outcome(&ending, &login).map_or_else(|why| format!("no: {why}"), |()| "yes".to_owned());
    let forward = shown(one_of_several(&real, || ours(stage, &real, &with_padding)));
    let backward = shown(theirs(stage, &own, &login));
    // Versions differ in whether they report the reason for closing; fathom does.
    for ending in [ours(stage, &own, &["-n", "1M"]), theirs(stage, &own, &["-n", "1M"])] {
        let ending = ending.code(1);
        assert!(ending.stderr.contains("test authorization failed"), "{}", ending.stderr);
    }
    ours(stage, &real, &["-n", "1M"]).code(1);
    format!("| login (`--use-pkcs1-padding` on our end) | {forward} | {backward} |")
}

/// Collects all paths of keys in a document. All elements of an array count as one.
fn keys(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            into.insert(format!("{path}.{key}"));
            keys(value, &format!("{path}.{key}"), into);
        }),
        Value::Array(values) => values.iter().for_each(|value| keys(value, &format!("{path}[]"), into)),
        _ => {}
    }
}

fn keys_of(ending: &ProgramResult) -> BTreeSet<String> {
    let mut into = BTreeSet::new();
    keys(&serde_json::from_str(&ending.stdout).unwrap(), "", &mut into);
    into
}

#[test]
fn the_json_of_both_ends_has_the_keys_of_the_real_one() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let [(_real, real), (_own, own)] = servers(&stage, &["-J"]);
    let modes: &[&[&str]] = &[
        &[],
        &["-R"],
        &["--bidir", "-P", "2"],
        &["-M", "1000", "-T", "t", "--extra-data", "x"],
        &["-u", "-b", "10M"],
        &["-u", "-b", "10M", "-R"],
        &["-u", "-b", "10M", "--bidir", "-P", "2"],
    ];
    for mode in modes {
        let words = [mode, &["-t", "1", "-J", "--get-server-output"][..]].concat();
        let expected = keys_of(&one_of_several(&real, || theirs(&stage, &real, &words)));
        let client = one_of_several(&real, || ours(&stage, &real, &words));
        for (which, ending) in [("client", client), ("server", theirs(&stage, &own, &words))] {
            let got = keys_of(&ending);
            let missing: Vec<_> = expected.difference(&got).collect();
            let more: Vec<_> = got.difference(&expected).collect();
            assert!(missing.is_empty() && more.is_empty(), "{which} {mode:?}: without {missing:?}, with {more:?}");
        }
    }
}

/// Returns the lines of a text, with every number replaced by a single 0 and every run of spaces by one.
fn form(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let words = line.split_whitespace().map(|word| {
            let is_number = word.bytes().any(|byte| byte.is_ascii_digit()) && !word.contains("iperf");
            if is_number { "0".to_owned() } else { word.replace(['K', 'M', 'G'], "") }
        });
        lines.push(words.collect::<Vec<_>>().join(" "));
    }
    lines
}

#[test]
fn the_text_of_both_ends_has_the_form_of_the_real_one() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    for mode in [
        &["-t", "2", "-b", "20M"][..],
        &["-t", "1", "-P", "2", "-b", "20M", "-O", "1"],
        &["-u", "-t", "2", "-b", "5M"],
        &["-t", "1", "-b", "20M", "-i", "0"],
    ] {
        let [(_real, real), (_own, own)] = servers(&stage, &[]);
        let words = [mode, &["-V", "--get-server-output"][..]].concat();
        let is_of_test = |line: &String| {
            // Skips versions, and messages of a server between its tests.
            !["iperf 0", "Linux", "CPU", "-----", "Server listening"].iter().any(|head| line.starts_with(head))
        };
        let original = one_of_several(&real, || theirs(&stage, &real, &words)).succeeded();
        let expected: Vec<_> = form(&original.stdout).into_iter().filter(is_of_test).collect();
        let got: Vec<_> =
            form(&ours(&stage, &real, &words).succeeded().stdout).into_iter().filter(is_of_test).collect();
        // A last row of a few milliseconds may or may not exist.
        let distinct = |lines: &[String]| lines.iter().cloned().collect::<BTreeSet<_>>();
        assert_eq!(distinct(&got), distinct(&expected), "{mode:?}");
        let served: Vec<_> =
            form(&theirs(&stage, &own, &words).succeeded().stdout).into_iter().filter(is_of_test).collect();
        assert_eq!(distinct(&served), distinct(&expected), "{mode:?} by our server");
    }
}

#[test]
fn our_server_serves_many_clients_at_once_and_says_so_when_it_may_not() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let (_own, port) = serving(&stage, &[], &[]);
    let start = |words: &[&str]| {
        let mut command = stage.command("iperf3");
        command.args(["-c", "127.0.0.1", "-p", &port, "-J"]).args(words);
        stage.spawn(command)
    };
    let clients = [
        start(&["-t", "2", "-b", "10M", "-P", "2"]),
        start(&["-t", "2", "-b", "10M", "-R"]),
        start(&["-u", "-t", "2", "-b", "5M"]),
        start(&["-u", "-t", "2", "-b", "5M", "--bidir"]),
    ];
    for client in clients {
        outcome(&client.ends().succeeded(), &["-u"][..0])
            .or_else(|why| if why.contains("sum_sent") { Ok(()) } else { Err(why) })
            .unwrap();
    }
    let (_alone, port) = serving(&stage, &[], &["--one-at-a-time"]);
    let mut command = stage.command("iperf3");
    command.args(["-c", "127.0.0.1", "-p", &port, "-t", "3", "-b", "1M", "--forceflush"]);
    let first = stage.spawn(command);
    first.says("[ ID]");
    let second = theirs(&stage, &port, &["-t", "1"]).code(1);
    assert!(second.stderr.contains("the server is busy running a test. try again later"), "{}", second.stderr);
    first.ends().succeeded();
}

#[test]
fn a_file_is_sent_and_written_as_by_iperf3() {
    let stage = TestBed::beside_others();
    let payload: Vec<u8> = (0..250_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(stage.path("from"), &payload).unwrap();
    let (_server, port) = serving(&stage, &[], &["-F", "from"]);
    for way in [&["-Z"][..], &[]] {
        // The server sends until it is stopped, and the data is written until the time is over.
        let got = ours(&stage, &port, &[&["-R", "-t", "1", "-F", "to"], way].concat()).succeeded();
        assert!(got.stdout.contains(") of to\n"), "{}", got.stdout);
        assert!(fs::read(stage.path("to")).unwrap() == payload, "{way:?}");
    }
    let refused = ours(&stage, &port, &["-u", "-t", "1"]).code(1);
    assert!(refused.stderr.contains("an option you are trying to set is not implemented yet"), "{}", refused.stderr);
    // Like iperf3, pads numbers to four places here as well.
    let line = "        Sent  977 KByte /  977 KByte (100%) of from\n";
    let (_server, port) = serving(&stage, &[], &[]);
    let sent = ours(&stage, &port, &["-F", "from"]).succeeded();
    assert!(sent.stdout.contains(line) && sent.stdout.contains("iperf Done."), "{}", sent.stdout);
    let document = ours(&stage, &port, &["-F", "from", "-J"]).succeeded();
    let document: Value = serde_json::from_str(&document.stdout).unwrap();
    let file = &document["end"]["streams"][0]["diskfile"];
    assert_eq!((&file["sent"], &file["percent_sent"]), (&Value::from(1_000_000), &Value::from(100)), "{file}");
    let missing = ours(&stage, &port, &["-F", "missing"]).code(1);
    assert!(missing.stderr.contains("error - unable to open -F file: No such file or directory"), "{}", missing.stderr);
    if is_there() {
        let sent = theirs(&stage, &port, &["-F", "from"]).succeeded();
        assert!(sent.stdout.contains(line), "the same line as ours: {}", sent.stdout);
    }
}

#[test]
fn what_goes_wrong_is_said_in_iperf3s_words_and_ends() {
    let stage = TestBed::beside_others();
    let nobody = free_port().to_string();
    let refused = ours(&stage, &nobody, &["-t", "1"]).code(1);
    assert_eq!(refused.stderr, "iperf3: error - unable to connect to server: Connection refused\n");
    let (_server, port) = serving(&stage, &[], &[]);
    let mut command = stage.command(stage.program());
    command.args(["as", "iperf3", "-s", "-p", &port]);
    let second = stage.spawn(command).ends().code(1);
    assert!(
        second.stderr.contains("unable to start listener for connections: Address already in use"),
        "{}",
        second.stderr
    );
    let unknown = ours(&stage, &port, &["-t", "1", "-C", "nonesuch"]).code(1);
    assert!(unknown.stderr.contains("unable to set TCP_CONGESTION"), "{}", unknown.stderr);
    for (words, said) in [
        (&["-P", "200"][..], "parameter error - number of parallel streams too large (maximum = 128)"),
        (&["-n", "1", "-k", "1"], "parameter error - only one test end condition (-t, -n, -k) may be specified"),
        (&["-R", "--bidir"], "parameter error - cannot be both reverse and bidirectional"),
        (&["-F", "x", "-u"], "parameter error - an option you are trying to set is not implemented yet"),
        (&["-F", "x", "--bidir"], "parameter error - an option you are trying to set is not implemented yet"),
        (&["--sctp"], "parameter error - no SCTP support available"),
        (&["-D"], "parameter error - some option you are trying to set is server only"),
        (&["-1"], "parameter error - some option you are trying to set is server only"),
        (&["--nonsense"], "unrecognized option '--nonsense'"),
    ] {
        let ending = ours(&stage, &port, words).code(1);
        assert!(ending.stderr.starts_with(&format!("iperf3: {said}\n")), "{words:?}: {}", ending.stderr);
    }
}

#[test]
fn a_servers_output_is_shown_to_a_client_that_asks_for_it_only() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    // After one client has requested it, iperf3's server sends its output to all clients.
    for (is_original, (_server, port)) in [true, false].into_iter().zip(servers(&stage, &[])) {
        for (asked, words) in [(true, &["-n", "1M", "-J", "--get-server-output"][..]), (false, &["-n", "1M", "-J"])] {
            let client = || ours(&stage, &port, words);
            let ending = if is_original { one_of_several(&port, client) } else { client() };
            let document: Value = serde_json::from_str(&ending.succeeded().stdout).unwrap();
            assert_eq!(document.get("server_output_text").is_some(), asked, "{document}");
        }
    }
}

#[test]
fn both_ways_at_once_are_explained_where_a_server_is_too_old_for_them() {
    let stage = TestBed::beside_others();
    let asked = |words: &[&str]| {
        let (port, actor) = impostor(|mut stream| {
            cookie(&mut stream);
            // The server requests the parameters and disconnects when it has them.
            stream.write_all(&[9]).unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
        });
        let ending = ours(&stage, &port, words).code(1);
        actor.join().unwrap();
        ending.stderr
    };
    let hint = "before 3.7 does not know --bidir";
    assert!(asked(&["-t", "1", "--bidir"]).contains(hint));
    assert!(!asked(&["-t", "1"]).contains(hint));
}

#[test]
fn a_datagram_is_as_long_as_the_real_ones_where_nobody_says_how_long() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    let (_server, port) = serving(&stage, &["iperf3"], &[]);
    let words = ["-u", "-k", "4", "-J"];
    let first = one_of_several(&port, || theirs(&stage, &port, &words));
    let [real, own] = [first, ours(&stage, &port, &words)].map(|ending| {
        let document: Value = serde_json::from_str(&ending.succeeded().stdout).unwrap();
        document["start"]["test_start"]["blksize"].as_u64().unwrap()
    });
    // Half the widest window that the server has told so far (`tcp_bound_to_half_wnd`): in the SYN-ACK, or already in the acknowledgment of
    // the cookie, which is later on a busy machine.
    let half_windows = [65_483 / 2, 65_536 / 2];
    assert!(half_windows.contains(&own) && half_windows.contains(&real), "{own}, iperf3 {real}");
}

#[test]
fn multipath_and_super_buffers_carry_data_too() {
    let stage = TestBed::beside_others();
    let (_server, port) = serving(&stage, &[], &[]);
    for words in [&["-n", "1M", "-m", "-J"][..], &["-u", "-k", "40", "-b", "50M", "-l", "1000", "--gsro", "-J"]] {
        outcome(&ours(&stage, &port, words), words).unwrap();
    }
}

#[test]
fn datagrams_that_are_omitted_are_in_no_loss() {
    if !is_there() {
        return;
    }
    let stage = TestBed::beside_others();
    for (_server, port) in servers(&stage, &[]) {
        let words = ["-u", "-b", "1M", "-l", "1000", "-O", "1", "-t", "1", "-J"];
        let document: Value = serde_json::from_str(&ours(&stage, &port, &words).succeeded().stdout).unwrap();
        let sum = &document["end"]["sum"];
        let (packets, bytes) = (sum["packets"].as_u64().unwrap(), sum["bytes"].as_u64().unwrap());
        // Some datagrams may be in flight when counting begins. The omitted second has as many as the counted one.
        assert!(packets > 0 && packets < bytes / 1000 * 3 / 2, "{sum}");
    }
}

#[test]
fn each_part_of_the_json_is_a_line_of_its_own_where_that_is_wanted() {
    let stage = TestBed::beside_others();
    let (_server, port) = serving(&stage, &[], &[]);
    let words = ["-t", "1", "-i", "0.5", "-b", "20M", "--json-stream", "--cntl-ka=5/1/3"];
    let ending = ours(&stage, &port, &words).succeeded();
    let lines: Vec<Value> = ending.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1], *names.last().unwrap()), ("start", "interval", "end"), "{names:?}");
    assert_eq!(lines[0]["data"]["test_start"]["protocol"], "TCP");
    assert!(lines.last().unwrap()["data"]["sum_sent"]["bytes"].as_u64().unwrap() > 0);
    let nobody = free_port().to_string();
    let ending = ours(&stage, &nobody, &["-t", "1", "--json-stream"]).code(1);
    assert!(ending.stdout.starts_with("{\"data\":\"unable to connect"), "{}", ending.stdout);
    let ending = ours(&stage, &nobody, &["-t", "1", "-J"]).code(1);
    let document: Value = serde_json::from_str(&ending.stdout).unwrap();
    assert!(document["error"].as_str().unwrap().contains("Connection refused"), "{document}");
}

#[test]
fn a_signal_that_a_scripts_shell_had_ignored_ends_a_client() {
    let stage = TestBed::beside_others();
    let (_server, port) = serving(&stage, &[], &[]);
    let mut command = stage.command("env");
    command.arg("--ignore-signal=INT").arg(stage.program());
    command.args(["as", "iperf3", "-c", "127.0.0.1", "-p", &port, "-t", "100", "-b", "1M"]);
    let client = stage.spawn(command);
    client.says("[ ID]");
    client.handle().send(Signal::Interrupt).unwrap();
    let ending = client.ends().code(1);
    assert!(ending.stderr.contains("interrupt"), "{}", ending.stderr);
}

/// A process without a parent. It is killed when this value is dropped.
struct OrphanProcess(Pidfd);

impl Drop for OrphanProcess {
    fn drop(&mut self) {
        // An error is fine, because the process may have ended already.
        let _ = self.0.kill();
    }
}

#[test]
fn a_daemon_serves_behind_its_starter_until_it_is_told_to_end() {
    let stage = TestBed::beside_others();
    let port = free_port().to_string();
    // A hard link to an earlier file shows that it is not written in place, so a reader never sees a partial number.
    fs::write(stage.path("pid"), "before").unwrap();
    fs::hard_link(stage.path("pid"), stage.path("kept")).unwrap();
    let daemon = ["as", "iperf3", "-s", "-D", "-p", &port, "-I", "pid", "--logfile", "log"];
    stage.fathom(daemon).succeeded();
    let pid = until(|| fs::read_to_string(stage.path("pid")).ok()?.trim().parse().ok());
    let orphan = OrphanProcess(Pidfd::open(pid).unwrap());
    until(|| listener(port.parse().unwrap()));
    ours(&stage, &port, &["-n", "1M"]).succeeded();
    let busy = stage.fathom(daemon).code(1);
    assert!(busy.stderr.contains("Address already in use"), "{}", busy.stderr);
    orphan.0.send(Signal::Terminate).unwrap();
    assert!(orphan.0.wait(PATIENCE).unwrap(), "it ends");
    assert!(fs::read_to_string(stage.path("log")).unwrap().contains("Server listening on"));
    assert!(!stage.path("pid").exists());
    assert_eq!(fs::read_to_string(stage.path("kept")).unwrap(), "before");
}

/// Starts a server for one connection that behaves as `act` does.
fn impostor(act: impl FnOnce(TcpStream) + Send + 'static) -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let actor = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        act(stream);
    });
    (port, actor)
}

/// The behavior of an impostor on its connection.
type PeerScript = fn(TcpStream);

fn cookie(stream: &mut TcpStream) {
    stream.read_exact(&mut [0; 37]).unwrap();
}

#[test]
fn a_peer_that_speaks_something_else_or_goes_is_an_error_and_no_hang() {
    let stage = TestBed::beside_others();
    let cases: [(&str, PeerScript); 4] = [
        ("received an unknown control message: the letter `H`", |mut stream| {
            cookie(&mut stream);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        }),
        ("control socket has closed unexpectedly", |mut stream| cookie(&mut stream)),
        ("the server is busy running a test. try again later", |mut stream| {
            cookie(&mut stream);
            stream.write_all(&[0xff]).unwrap();
        }),
        ("server test duration expired", |mut stream| {
            cookie(&mut stream);
            stream.write_all(&[0xfe, 0, 0, 0, 160, 0, 0, 0, 0]).unwrap();
        }),
    ];
    for (said, act) in cases {
        let (port, actor) = impostor(act);
        let ending = ours(&stage, &port, &["-t", "1"]).code(1);
        assert!(ending.stderr.contains(said), "{said}: {}", ending.stderr);
        actor.join().unwrap();
    }
}

#[test]
fn a_server_that_is_killed_in_the_middle_leaves_what_was_measured() {
    let stage = TestBed::beside_others();
    let (server, port) = serving(&stage, &[], &[]);
    let mut command = stage.command(stage.program());
    command.args(["as", "iperf3", "-c", "127.0.0.1", "-p", &port, "-t", "30", "-b", "10M", "-i", "0.2"]);
    let client = stage.spawn(command);
    client.says("[  5]   0.20");
    drop(server);
    let ending = client.ends().code(1);
    assert!(ending.stdout.contains("sender"), "{}", ending.stdout);
    assert!(ending.stderr.contains("control socket has closed unexpectedly"), "{}", ending.stderr);
}

#[test]
fn nonsense_costs_a_server_nothing_and_real_clients_are_served_beside_it() {
    let stage = TestBed::beside_others();
    let (server, port) = serving(&stage, &[], &[]);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port.parse::<u16>().unwrap())).unwrap();
    let half_open: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
    let cookie = [b"abcdefghijklmnopqrstuvwxyz2345672345".as_slice(), &[0]].concat();
    for tail in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0xff; 64], &[0, 0, 0, 4, b'{', b'}', b'{', b'}'], &[0, 0, 32, 1]] {
        let mut stream = connect();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&cookie).unwrap();
        stream.write_all(tail).unwrap();
        let mut answer = Vec::new();
        // A reset is also a reply.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.first().is_none_or(|byte| *byte == 9), "{answer:?}");
    }
    ours(&stage, &port, &["-n", "1M"]).succeeded();
    drop(half_open);
    assert!(!server.handle().wait(fathom_model::units::Nanos::ZERO).unwrap(), "the server lives");
}

#[test]
fn a_server_that_goes_after_the_first_round_leaves_that_rounds_results() {
    let stage = TestBed::beside_others();
    let (_server, port) = serving(&stage, &[], &["-1"]);
    let target = format!("127.0.0.1:{port}");
    let brief = ["--duration", "900ms", "--warmup", "100ms", "--rounds", "3", "--json"];
    let run = stage.fathom([&["tcp", &target, "--protocol", "iperf3"][..], &brief].concat()).code(4).run();
    assert_eq!((run.tests[0].trials.len(), &run.tests[0].unavailable), (1, &None));
    assert!(run.tests[0].summaries.iter().any(|summary| summary.value.is_some()));
    let Completeness::Incomplete { reason } = &run.completeness else { panic!("complete") };
    assert!(reason.contains("Connection refused"), "{reason}");
}

#[test]
fn a_test_against_a_server_of_iperf3_is_a_test_like_any_other() {
    if !is_there() {
        return;
    }
    let stage = TestBed::new();
    let (_server, port) = serving(&stage, &["iperf3"], &[]);
    let target = format!("127.0.0.1:{port}");
    let brief = ["--duration", "600ms", "--warmup", "100ms", "--rounds", "2", "--json"];
    for (layer, way) in [("tcp", "up"), ("tcp", "down"), ("tcp", "both"), ("udp", "up"), ("udp", "down")] {
        let rate: &[&str] = if layer == "udp" { &["--rate", "20M", "--size", "1400"] } else { &[] };
        let words = [&[layer, &target, "--protocol", "iperf3", "--direction", way][..], rate, &brief].concat();
        let run = stage.fathom(words).succeeded().run();
        let value = |name: &str| {
            let summary = run.tests[0].summaries.iter().find(|summary| summary.metric.name == name);
            summary.and_then(|summary| summary.value).unwrap_or_else(|| panic!("{layer} {way}: no {name}"))
        };
        assert!(value("throughput_bps") > 0.0 && value("server_throughput_bps") > 0.0);
        if layer == "udp" {
            let off = value("throughput_bps") / 20e6;
            assert!((0.8..1.2).contains(&off), "{way}: {off} of the rate that was asked for");
        }
    }
}
