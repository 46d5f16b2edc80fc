//! Protection against other users and inputs: secrets, hostile texts, closed and full streams, strangers.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
    thread,
};

use fathom_sys::process::signal::Signal;

use crate::test_bed::{BRIEF, ProgramResult, RunningProgram, TestBed, lacks_root, until};

/// Starts a responder on loopback. Returns it and its URL with a user and a password.
fn responder(stage: &TestBed) -> (RunningProgram, String) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = stage.start(["serve", "--only", "http", "--listen", "127.0.0.1", "--http-port", &port]);
    server.says("http ");
    (server, format!("http://ann:s3cret-pw@127.0.0.1:{port}/"))
}

#[test]
fn a_result_tells_no_password_no_cookie_and_no_authorization() {
    let stage = TestBed::beside_others();
    let (_server, url) = responder(&stage);
    let secret =
        ["--header", "Authorization: Bearer to'ken-7", "--cookie", "sid=c00kie", "-o", "kept", "--format", "json"];
    let ending = stage.fathom([&["http", &url][..], &secret, BRIEF].concat()).succeeded();
    let kept = stage.path("kept");
    let mut texts = vec![ending.stdout, ending.stderr];
    for (name, mode) in [("run.json", 0o600), ("report.html", 0o600), ("", 0o700)] {
        let path = kept.join(name);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{name}");
        texts.extend(fs::read_to_string(path).ok());
    }
    assert_eq!(texts.len(), 4);
    for text in &texts {
        for secret in ["s3cret-pw", "to'ken-7", "ken-7", "c00kie"] {
            assert!(!text.contains(secret), "{secret} is in:\n{text}");
        }
    }
    assert!(texts[0].contains("***@127.0.0.1"), "{}", texts[0]);
}

#[test]
fn nobody_who_reads_the_output_is_no_defect() {
    let stage = TestBed::beside_others();
    let (_server, url) = responder(&stage);
    stage.fathom([&["http", &url, "-o", "kept"][..], BRIEF].concat()).succeeded();
    let program = stage.program();
    for words in [
        &["report", "kept", "--csv"][..],
        &["report", "kept", "--ndjson"],
        &["report", "kept", "--json"],
        &["report", "kept"],
        &["doctor"],
        &[&["http", &url, "-o", "again"][..], BRIEF].concat(),
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = stage.command(program);
        let command = command.args(words).stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        assert_eq!(command.status().unwrap().code(), Some(0), "{words:?}");
    }
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let refused =
        [(&["lab", "down", "nosuch"][..], 3), (&["report", "nosuch"], 2), (&["report", "kept"], 1), (&["tcp"], 2)];
    for (words, code) in refused {
        let status = stage.command(program).args(words).stdout(full()).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words:?}");
    }
}

#[test]
fn a_document_that_cannot_be_kept_is_named_and_none_is_left_by_half() {
    let stage = TestBed::beside_others();
    fs::create_dir(stage.path("kept")).unwrap();
    // A folder with the name of the document keeps the draft from being renamed to it.
    fs::create_dir(stage.path("kept/run.json")).unwrap();
    let ending = stage.fathom([&["tcp", "127.0.0.1", "-o", "kept"][..], BRIEF].concat()).code(1);
    assert!(ending.stderr.contains("kept/run.json"), "{}", ending.stderr);
    assert_eq!(fs::read_dir(stage.path("kept")).unwrap().count(), 1);
}

#[test]
fn what_a_file_says_moves_no_cursor() {
    let stage = TestBed::beside_others();
    fs::write(stage.path("bad.toml"), "schema = \"\u{1b}[2Jx\n\u{9b}1A").unwrap();
    fs::write(stage.path("run.json"), "{\"schema\": \"\u{1b}]0;owned\u{7}\"}").unwrap();
    fs::write(stage.path("bad.jmx"), "<\u{1b}[2J/>").unwrap();
    let path = |name: &str| stage.path(name).to_str().unwrap().to_owned();
    for words in
        [["run", &path("bad.toml")].as_slice(), &["report", &path("run.json")], &["app", "import", &path("bad.jmx")]]
    {
        let ending = stage.fathom(words);
        assert!(ending.stderr.starts_with("fathom: "), "{words:?}: {}", ending.stderr);
        let is_clean = ending.stderr.chars().all(|c| c == '\n' || !c.is_control());
        assert!(is_clean, "{words:?}: {:?}", ending.stderr);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("base http://{}\nstep one\n  GET /\n", listener.local_addr().unwrap());
    fs::write(stage.path("one.scenario"), base).unwrap();
    let target = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nbody\x1b[2J\x1b[1A").unwrap();
    });
    let ending = stage.fathom(["app", "try", &path("one.scenario")]);
    target.join().unwrap();
    assert!(ending.stdout.contains("body[2J[1A"), "{:?} {}", ending.stdout, ending.stderr);
    stage.fathom(["run", "--plan", "/dev/zero"]).refused(2, &["/dev/zero", "larger than"]);
}

#[test]
fn a_key_comes_from_a_file_or_the_environment() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("keys");
    let (_server, key) = lab.serve(&[]);
    fs::write(stage.path("key"), format!("{key}\n")).unwrap();
    let words = [&["tcp", "198.18.0.2", "--json"][..], BRIEF].concat();
    let file = stage.path("key");
    let of_file = [&words[..], &["--key-file", file.to_str().unwrap()]].concat();
    let run = lab.fathom("a", &of_file).succeeded();
    assert!(!run.stdout.contains(&key));
    let program = stage.program().to_str().unwrap();
    let variable = format!("FATHOM_KEY={key}");
    let of_environment = [&["env", &variable, program][..], &words].concat();
    lab.exec("a", &of_environment).ends().succeeded();
    // A key in the environment is meant for hosts other than this machine alone.
    lab.exec("a", &[&["env", &variable, program, "tcp", "127.0.0.1"][..], BRIEF].concat()).ends().succeeded();
    fs::write(stage.path("key"), "no key").unwrap();
    lab.fathom("a", &of_file).refused(2, &["is not a key", "in "]);
}

#[test]
fn a_lab_that_is_interrupted_while_it_comes_up_goes_again() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let up = stage.start(["lab", "up", "pair", "--name", "early", "--for", "5min"]);
    // The state folder is created first.
    until(|| stage.state().exists().then_some(()));
    up.handle().send(Signal::Interrupt).unwrap();
    let ending = up.ends();
    if ending.stdout.is_empty() {
        let ending = ending.code(130);
        assert!(ending.stderr.contains("lab early was taken down again"), "{}", ending.stderr);
        assert_eq!(stage.journals(), Vec::<String>::new());
    } else {
        // The lab was up before the signal arrived.
        stage.fathom(["lab", "down", "early"]).succeeded();
    }
}

#[test]
fn a_server_without_a_thread_for_strangers_stays() {
    if lacks_root() {
        return;
    }
    // A separate user, so that processes of other users do not count.
    let stage = TestBed::owned_by(64_123);
    let program = stage.program().to_str().unwrap().to_owned();
    let mut command = stage.command("setpriv");
    command.args(["--reuid=64123", "--regid=64123", "--clear-groups", "prlimit", "--nproc=5", &program]);
    command.args(["serve", "--only", "agents", "--listen", "127.0.0.1", "--port", "0", "--for", "1min"]);
    let server = stage.spawn(command);
    let lines = server.says("agents ");
    let address = lines.lines().find_map(|line| line.strip_prefix("agents")).unwrap().trim().to_owned();
    let strangers: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(&address).unwrap()).collect();
    // Refusals are reported within ten seconds.
    server.warns("for want of threads");
    let mut another = TcpStream::connect(&address).unwrap();
    another.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(strangers);
    server.handle().send(Signal::Terminate).unwrap();
    server.ends().code(143);
}

#[test]
fn two_controllers_of_one_host_are_told_of_each_other() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    let lab = stage.lab("shared");
    let (_server, key) = lab.serve(&[]);
    let words = ["tcp", "198.18.0.2", "--key", &key, "--json", "--warmup", "100ms"];
    let is_told = |ending: ProgramResult| ending.stdout.contains("another controller measured on this host");
    let alone = [&words[..], &["--duration", "200ms", "--rounds", "2"]].concat();
    assert!(!is_told(lab.fathom("a", &alone).succeeded()));
    let both = [&words[..], &["--duration", "3s", "--rounds", "1"]].concat();
    let (first, second) = (lab.start("a", &both), lab.start("a", &both));
    assert!(is_told(first.ends().succeeded()) && is_told(second.ends().succeeded()));
}
