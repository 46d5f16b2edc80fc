//! The permitted targets of a run: options, the file, names, and the question on a terminal.

use std::{fs, net::UdpSocket};

use fathom_model::{
    names::host::TCP_IN_SEGMENTS,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    netlink::Netlink,
    packet::packet_socket::{ReceiveBuffer, Receiver},
};

use crate::test_bed::{BRIEF, ProgramResult, RunningLab, TestBed, lacks_root, tree};

const B: &str = "198.18.0.2";
const URL: &str = "http://198.18.0.2:8080/";

/// Runs a test with two hosts and a responder on the second one, which is not allowed yet.
fn with_responder(name: &'static str, play: impl FnOnce(&TestBed, &RunningLab<'_>)) {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab(name);
    let server = lab.exec("b", &[stage.program().to_str().unwrap(), "serve", "--only", "http"]);
    server.says("http ");
    play(&stage, &lab);
}

/// Returns the text after a label of an error message.
fn line<'a>(ending: &'a ProgramResult, label: &str) -> &'a str {
    let found = ending.stderr.lines().find_map(|line| line.trim().strip_prefix(label));
    found.unwrap_or_else(|| panic!("no `{label}` in {}", ending.stderr)).trim()
}

/// Returns the arguments of a printed command after `fathom`.
fn words(command: &str) -> Vec<String> {
    let words = shlex::split(command).unwrap();
    assert_eq!(words[0], "fathom", "{command}");
    words[1..].to_vec()
}

#[test]
fn both_lines_that_a_refusal_prints_allow_the_target() {
    with_responder("allowing", |_, lab| {
        let load = [&["http", URL][..], BRIEF].concat();
        let refused = lab.fathom("a", &load).code(3);
        let once = words(line(&refused, "allow"));
        lab.fathom("a", &once.iter().map(String::as_str).collect::<Vec<_>>()).succeeded();
        lab.fathom("a", &load).code(3);
        let always = words(line(&refused, "always"));
        assert_eq!(always, ["allow", "add", B]);
        lab.fathom("a", &always.iter().map(String::as_str).collect::<Vec<_>>()).succeeded();
        lab.fathom("a", &load).succeeded();
        assert!(lab.fathom("a", &["allow", "list"]).succeeded().stdout.contains(B));
        lab.fathom("a", &["allow", "rm", B]).succeeded();
        lab.fathom("a", &load).code(3);
        lab.fathom("a", &["allow", "rm", B]).refused(2, &["198.18.0.2 is not in", "fathom allow list"]);
    });
}

#[test]
fn a_server_in_a_lab_needs_no_permission_from_a_host_of_the_lab() {
    with_responder("labtarget", |stage, lab| {
        let load = [&["http", URL, "--lab", lab.name, "--json"][..], BRIEF].concat();
        let test = stage.fathom(load).succeeded().run().tests.remove(0);
        // Its counters are read, although nobody answers there for the test.
        assert_eq!((test.to, test.server.as_deref()), (None, Some("b")));
        let n_segments = |host: &str| test.trials[0].hosts[host].growth(TCP_IN_SEGMENTS, "").unwrap();
        assert!(n_segments("a") > 0 && n_segments("b") > 0);
        stage.fathom([&["http", URL][..], BRIEF].concat()).refused(3, &["198.18.0.2 is not a target you have allowed"]);
    });
}

#[test]
fn a_face_takes_the_option_before_its_tool_and_prints_it_when_it_is_missing() {
    with_responder("allowface", |_, lab| {
        for tool in [&["wrk", "-t1", "-c1", "-d1s"][..], &["ab", "-n10"], &["webbench", "-t1", "-c1"]] {
            let refused = lab.fathom("a", &[&["as"], tool, &[URL]].concat()).code(3);
            let once = words(line(&refused, "allow"));
            assert_eq!(once[..4], ["as", "--allow", B, tool[0]]);
            lab.fathom("a", &once.iter().map(String::as_str).collect::<Vec<_>>()).succeeded();
        }
    });
}

#[test]
fn a_line_of_the_file_that_means_nothing_is_named_and_blocks_nothing_else() {
    with_responder("allowfile", |stage, lab| {
        let folder = stage.path(".config/fathom");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("allow"), "# the rack\nall hosts\n").unwrap();
        let load = [&["http", URL][..], BRIEF].concat();
        lab.fathom("a", &load).refused(3, &["fathom/allow:2: `all hosts` is not an address"]);
        stage.fathom([&["tcp", "127.0.0.1", "--test", "rr"], BRIEF].concat()).succeeded();
        fs::write(folder.join("allow"), "all hosts\n198.18.0.0/15 # labs\n").unwrap();
        lab.fathom("a", &load).succeeded();
        // The file format of earlier versions.
        fs::remove_file(folder.join("allow")).unwrap();
        fs::write(folder.join("allow.toml"), "allow = [\"198.18.0.2\"]").unwrap();
        lab.fathom("a", &load).succeeded();
    });
}

#[test]
fn a_name_allows_the_addresses_that_it_has() {
    with_responder("allownames", |stage, lab| {
        let hosts = stage.path("hosts");
        fs::write(&hosts, "127.0.0.1 localhost\n198.18.0.2 target.test\n").unwrap();
        let named = |words: &str| {
            let program = stage.program().to_str().unwrap();
            let script = format!("mount --bind {} /etc/hosts && {words}", hosts.display()).replace("fathom", program);
            lab.exec("a", &["unshare", "--mount", "sh", "-c", &script]).ends()
        };
        let brief = BRIEF.join(" ");
        named(&format!("fathom http {URL} {brief}")).code(3);
        named(&format!("fathom http {URL} --allow target.test {brief}")).succeeded();
        named(&format!("FATHOM_ALLOW=target.test fathom http {URL} {brief}")).succeeded();
        named(&format!("fathom http http://target.test:8080/ --allow 198.18.0.2 {brief}")).succeeded();
        named("fathom allow add target.test").succeeded();
        named(&format!("fathom http {URL} {brief}")).succeeded();
    });
}

/// The addresses of `shop.test` in turn: one that is allowed, and one that is not.
const TOLD: [[u8; 4]; 2] = [[198, 18, 0, 2], [198, 18, 0, 3]];

/// More queries than are sent before the start.
const N_BEFORE: usize = 16;

/// Answers like a DNS server (RFC 1035 section 4) until an empty datagram arrives. Returns how often each address was given.
///
/// It starts to alternate after [`N_BEFORE`] queries, because the first ones are sent before the start.
fn tell_in_turn(socket: &UdpSocket) -> [usize; 2] {
    const TYPE_A: [u8; 4] = [0, 1, 0, 1];
    let (mut told, mut room) = ([0; 2], [0; 512]);
    loop {
        let (n, from) = socket.recv_from(&mut room).unwrap();
        if n == 0 {
            return told;
        }
        // The 12-byte header is followed by one name that ends with 0, its type and its class.
        let end = 12 + room[12..n].iter().position(|byte| *byte == 0).unwrap() + 5;
        let mut answer = [&room[..2], &[0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0], &room[12..end]].concat();
        if room[end - 4..end] == TYPE_A {
            let which = usize::from(told[0] >= N_BEFORE && told[0] > told[1]);
            told[which] += 1;
            answer[7] = 1;
            // The name of the query, and an IPv4 address of four bytes with a time to live of zero.
            answer.extend([&[0xc0, 12][..], &TYPE_A, &[0; 4], &[0, 4], &TOLD[which]].concat());
        }
        socket.send_to(&answer, from).unwrap();
    }
}

#[test]
fn a_name_that_changes_during_a_run_leads_to_no_address_that_is_not_allowed() {
    with_responder("allowdns", |stage, lab| {
        let [allowed, other] = TOLD.map(std::net::Ipv4Addr::from);
        lab.exec("b", &["ip", "address", "add", &format!("{other}/24"), "dev", "eth0"]).ends().succeeded();
        let open = || Receiver::open(Netlink::open().unwrap().link("eth0").unwrap().index, Bytes(8 << 20)).unwrap();
        let capture = lab.enter_with("b", open);
        let dns = lab.enter_with("a", || UdpSocket::bind("127.0.0.1:53").unwrap());
        let dns = std::thread::spawn(move || tell_in_turn(&dns));
        let resolver = stage.path("resolv.conf");
        fs::write(&resolver, "nameserver 127.0.0.1\n").unwrap();
        let load = format!(
            "mount --bind {} /etc/resolv.conf && {} http http://shop.test:8080/ --dns connection --per-connection 1 --ip 4 \
             --allow {allowed} --json --duration 300ms --warmup 0s --rounds 1",
            resolver.display(),
            stage.program().display()
        );
        let run = lab.exec("a", &["unshare", "--mount", "sh", "-c", &load]).ends().run();
        lab.enter_with("a", || UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[], "127.0.0.1:53").unwrap());
        let [n_allowed, n_other] = dns.join().unwrap();
        assert!(n_allowed > N_BEFORE && n_other > 0, "{n_allowed}, {n_other}");
        let errors = &run.tests[0].trials[0].records.values().next().unwrap().errors;
        assert!(errors.keys().any(|failure| failure.to_string().contains("not allowed")), "{errors:?}");
        let mut inbox = ReceiveBuffer::default();
        let mut n_seen = 0;
        while capture.wait(Nanos::from_millis(50)).unwrap() && capture.receive(&mut inbox).unwrap() > 0 {
            for (frame, _) in inbox.frames() {
                n_seen += 1;
                assert!(!frame.windows(4).any(|bytes| bytes == TOLD[1]), "{frame:x?}");
            }
        }
        assert!(n_seen > 0, "the capture sees what arrives");
    });
}

#[test]
fn a_person_at_a_terminal_is_asked_once_and_a_pipe_never() {
    with_responder("allowasked", |stage, lab| {
        if !crate::compat::is_installed("script") {
            return fathom_testkit::skip("needs script");
        }
        let program = stage.program().to_str().unwrap();
        let asked = |answer: &str| {
            let load = format!("{program} http {URL} {}", BRIEF.join(" "));
            let typed = format!("echo {answer} | script --quiet --return --command '{load}' /dev/null");
            lab.exec("a", &["sh", "-c", &typed]).ends()
        };
        let question = "198.18.0.2 is not allowed yet. Is it yours to load? [y/N/always]";
        let answers = |answer: &str, code: i32| {
            let ending = asked(answer).code(code);
            assert_eq!(ending.stdout.matches(question).count(), 1, "{}", ending.stdout);
        };
        answers("", 3);
        answers("n", 3);
        answers("y", 0);
        answers("always", 0);
        let ending = asked("n").succeeded();
        assert!(!ending.stdout.contains(question), "{}", ending.stdout);
    });
}

#[test]
fn single_packets_at_the_pace_of_ping_and_an_iperf3_server_need_no_line() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("consents");
    let program = stage.program().to_str().unwrap();
    // A program that does not know this lab treats its hosts as strangers.
    let elsewhere = format!("FATHOM_STATE={}", stage.path("elsewhere").display());
    let stranger = |words: &[&str]| lab.exec("a", &[&["env", &elsewhere, program], words].concat()).ends();
    stranger(&["probe", B, "--count", "3"]).succeeded();
    stranger(&["probe", B, "--count", "3", "--interval", "10ms"]).code(3);
    stranger(&["probe", B, "--flood", "--duration", "100ms"]).code(3);
    stranger(&["probe", B, "--ports", "22"]).code(3);
    stranger(&["as", "hping3", "-1", "-c", "2", "-i", "u100000", B]).succeeded();
    stranger(&["as", "hping3", "-1", "-c", "2", "-i", "u99999", B]).code(3);
    stranger(&["probe", "224.0.0.1", "--count", "1"]).refused(3, &["never a target"]);
    let server = lab.exec("b", &[program, "serve", "--only", "iperf3", "--iperf3"]);
    server.says("iperf3 ");
    lab.fathom("a", &["as", "iperf3", "-c", B, "-t1"]).succeeded();
    lab.fathom("a", &["as", "iperf3", "-c", "224.0.0.1", "-t1"]).refused(3, &["never a target"]);
}

#[test]
fn the_page_about_it_names_the_file() {
    let page = fs::read_to_string(tree().join("docs/allow.md")).unwrap();
    assert!(page.contains("~/.config/fathom/allow") && page.contains("fathom allow add"));
}
