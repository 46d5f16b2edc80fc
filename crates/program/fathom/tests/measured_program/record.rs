//! The recorder between curl and servers on loopback.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use fathom_sys::process::signal::Signal;

use crate::test_bed::{ProgramResult, RunningProgram, TestBed, until};

/// `{"a":1}` as gzip writes it.
const GZIP: &[u8] =
    &[31, 139, 8, 0, 0, 0, 0, 0, 2, 255, 171, 86, 74, 84, 178, 50, 172, 5, 0, 175, 172, 27, 86, 7, 0, 0, 0];

/// A recorder with its client.
struct Recorder<'t> {
    bed: &'t TestBed,
    program: RunningProgram,
    proxy: String,
}

impl<'t> Recorder<'t> {
    fn start(bed: &'t TestBed, words: &[&str]) -> Self {
        let program = bed.start([&["record", "--listen", "127.0.0.1:0", "-o", "shop.scenario"], words].concat());
        let lines = program.says("HAR");
        let proxy = lines.lines().find_map(|line| line.strip_prefix("proxy")).unwrap().trim().to_owned();
        Self { bed, program, proxy }
    }

    fn address(&self) -> SocketAddr {
        self.proxy.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Runs curl through the proxy, and returns its output.
    fn curl(&self, words: &[&str]) -> String {
        let mut command = self.bed.command("curl");
        command.args(["-sS", "-m", "30", "--noproxy", "", "-x", &self.proxy]);
        command.arg("--cacert").arg(self.bed.path(".config/fathom/record-ca.pem")).args(words);
        let output = command.env_remove("SSL_CERT_FILE").output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// Ends it by ctrl-C.
    fn ends(self) -> ProgramResult {
        self.program.handle().send(Signal::Interrupt).unwrap();
        self.program.ends().code(130)
    }
}

fn lacks_curl() -> bool {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    let is_missing = found.is_err();
    if is_missing {
        fathom_testkit::skip("there is no curl");
    }
    is_missing
}

/// Serves connections with `serve`, each in a thread, until the test program ends.
fn server(address: &str, serve: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let serve = serve.clone();
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

/// Reads one request: its first line and its body.
fn request(reader: &mut BufReader<TcpStream>) -> Option<(String, String)> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok().filter(|n| *n > 0)?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.trim().to_owned(), String::from_utf8(body).unwrap()))
}

/// A shop with a log-in.
fn shop(stream: TcpStream) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some((line, body)) = request(&mut reader) {
        let answer = |head: &str, body: &[u8]| {
            let head = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n", body.len());
            [head.as_bytes(), body].concat()
        };
        let page = "200 OK\r\nContent-Type: text/html";
        let bytes = match line.strip_suffix(" HTTP/1.1").unwrap() {
            "GET /" => answer(page, b"<title>The shop</title>"),
            "GET /logo.png" => answer("200 OK\r\nContent-Type: image/png", b"\x89PNG"),
            "POST /login" if body == "user=ann&password=hush%21" => {
                answer("302 Found\r\nLocation: /home\r\nSet-Cookie: sid=1; Path=/", b"")
            }
            "GET /home" => answer(page, b"<title>Home</title>"),
            "GET /packed" => answer("200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip", GZIP),
            "GET /chunks" => b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n".to_vec(),
            _ => answer("404 Not Found", b"not here"),
        };
        if writer.write_all(&bytes).is_err() {
            return;
        }
    }
}

fn mode(path: PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_a_client_does_becomes_a_scenario_that_runs() {
    if lacks_curl() {
        return;
    }
    let bed = TestBed::beside_others();
    let recorder = Recorder::start(&bed, &[]);
    let [ipv4, ipv6] = ["127.0.0.1:0", "[::1]:0"].map(|address| server(address, shop));
    let url = |path: &str| format!("http://{ipv4}{path}");
    assert!(recorder.curl(&[&url("/")]).contains("The shop"));
    recorder.curl(&[&url("/logo.png")]);
    let to = url("/login");
    let password = "password=hush!";
    let login =
        ["-L", "-b", "", "-d", "user=ann", "--data-urlencode", password, "-H", "Authorization: Bearer t0p", &to];
    assert!(recorder.curl(&login).contains("Home"), "curl follows the redirect");
    assert_eq!(recorder.curl(&["--compressed", &url("/packed")]), r#"{"a":1}"#);
    assert_eq!(recorder.curl(&[&url("/chunks")]), "abcde");
    assert!(recorder.curl(&[&format!("http://{ipv6}/")]).contains("The shop"));
    let ended = recorder.ends();
    assert!(ended.stderr.contains("next: fathom app try shop.scenario"), "{}", ended.stderr);

    let scenario = fs::read_to_string(bed.path("shop.scenario")).unwrap();
    for line in [
        "transaction The shop",
        "  redirects 20",
        "  form",
        "Bearer ${shop-secrets.authorization}",
        "GET http://[::1]:",
    ] {
        assert!(scenario.contains(line), "`{line}` is missing in:\n{scenario}");
    }
    for text in ["hush", "ann", "t0p", "logo.png", "GET /home"] {
        assert!(!scenario.contains(text), "`{text}` is in:\n{scenario}");
    }
    let secrets = fs::read_to_string(bed.path("shop-secrets.csv")).unwrap();
    assert_eq!(secrets, "authorization,user,password\nt0p,ann,hush!\n");
    assert_eq!((mode(bed.path("shop.har")), mode(bed.path("shop-secrets.csv"))), (0o600, 0o600));
    let har: serde_json::Value = serde_json::from_str(&fs::read_to_string(bed.path("shop.har")).unwrap()).unwrap();
    let texts: Vec<_> =
        har["log"]["entries"].as_array().unwrap().iter().map(|entry| &entry["response"]["content"]["text"]).collect();
    assert!(texts.contains(&&"{\"a\":1}".into()) && texts.contains(&&"abcde".into()), "{texts:?}");
    bed.fathom(["app", "check", "shop.scenario"]).succeeded();
    let tried = bed.fathom(["app", "try", "shop.scenario"]).succeeded();
    assert!(tried.stdout.contains("everything as expected"), "{}", tried.stdout);
}

#[test]
fn https_is_recorded_whatever_the_client_speaks_and_however_the_host_is_written() {
    if lacks_curl() {
        return;
    }
    let bed = TestBed::beside_others();
    let serve = |address: &str| {
        let port = TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port().to_string();
        let server = bed.start(["serve", "--only", "http", "--http-tls", "--http-port", &port, "--listen", address]);
        server.says("https");
        (server, port)
    };
    let ((_first, ipv4), (_second, ipv6)) = (serve("127.0.0.1"), serve("::1"));
    let urls =
        [format!("https://127.0.0.1:{ipv4}/"), format!("https://localhost:{ipv4}/"), format!("https://[::1]:{ipv6}/")];
    let recorder = Recorder::start(&bed, &[]);
    let refused = recorder.curl(&["-w", " %{http_code}", &urls[0]]);
    assert!(
        refused.contains("is not valid") && refused.contains("--insecure") && refused.ends_with("502"),
        "{refused}"
    );
    recorder.ends();
    let recorder = Recorder::start(&bed, &["--insecure", "--force"]);
    for (url, version) in urls.iter().zip(["--http2", "--http1.1", "--http2"]) {
        let told = recorder.curl(&[version, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", url]);
        assert_eq!(told, if version == "--http2" { "200 2" } else { "200 1.1" }, "{url}");
    }
    let ended = recorder.ends();
    assert!(ended.stderr.contains("not verified (--insecure)"), "{}", ended.stderr);
    let scenario = fs::read_to_string(bed.path("shop.scenario")).unwrap();
    assert!(scenario.contains("\ninsecure\n"), "{scenario}");
    bed.fathom(["app", "check", "shop.scenario"]).succeeded();
    bed.fathom(["app", "try", "shop.scenario"]).succeeded();
}

#[test]
fn a_server_that_cannot_be_reached_is_answered_with_the_reason() {
    if lacks_curl() {
        return;
    }
    let bed = TestBed::beside_others();
    let recorder = Recorder::start(&bed, &[]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = server("127.0.0.1:0", drop);
    for (url, reason) in [
        (format!("http://{closed}/"), "refused"),
        (format!("https://{closed}/"), "refused"),
        (format!("http://{silent}/"), "the server gave no answer"),
        ("http://no.such.host.invalid/".to_owned(), "cannot be looked up"),
    ] {
        let told = recorder.curl(&["-w", " %{http_code}", &url]);
        assert!(told.contains(reason) && told.ends_with(" 502"), "{url}: {told}");
    }
    // Neither TLS nor HTTP: the tunnel ends.
    let mut tunnel = TcpStream::connect(recorder.address()).unwrap();
    write!(tunnel, "CONNECT {closed} HTTP/1.1\r\nHost: {closed}\r\n\r\nhello").unwrap();
    let mut answer = String::new();
    let _ = tunnel.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    let ended = recorder.ends();
    assert!(
        ended.stderr.contains("     4  without an answer") && ended.stderr.contains("     1  tunnels that failed"),
        "{}",
        ended.stderr
    );
    assert!(
        !bed.path("shop.scenario").exists() && bed.path("shop.har").exists(),
        "there is nothing that users could do"
    );
}

#[test]
fn a_websocket_and_a_foreign_protocol_pass_through_and_are_told() {
    let bed = TestBed::beside_others();
    let recorder = Recorder::start(&bed, &[]);
    let echo = server("127.0.0.1:0", |stream| {
        let mut writer = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        let (line, _) = request(&mut reader).unwrap();
        assert_eq!(line, "GET /chat HTTP/1.1");
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        writer.write_all(head.as_bytes()).unwrap();
        std::io::copy(&mut reader, &mut writer).unwrap();
    });
    let greeter = server("127.0.0.1:0", |mut stream| {
        stream.write_all(b"220 mail.test\r\n").unwrap();
        std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
    });
    let exchange = |head: String, expected: &str| {
        let mut stream = TcpStream::connect(recorder.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        while {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim() != ""
        } {}
        stream.write_all(b"secret words\n").unwrap();
        let mut seen = String::new();
        while !seen.contains(expected) {
            assert!(reader.read_line(&mut seen).unwrap() > 0, "{seen}");
        }
        first
    };
    let upgrade =
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let first = exchange(format!("GET http://{echo}/chat HTTP/1.1\r\nHost: {echo}\r\n{upgrade}"), "secret words");
    assert_eq!(first.trim(), "HTTP/1.1 101 Switching Protocols");
    // The server speaks first, and after it the client: the words pass whole.
    exchange(format!("CONNECT {greeter} HTTP/1.1\r\nHost: {greeter}\r\n\r\n"), "secret words");
    let ended = recorder.ends();
    for words in [
        "became websocket",
        "neither TLS nor HTTP: passed on",
        "     1  WebSockets",
        "     1  tunnels passed on unseen",
    ] {
        assert!(ended.stderr.contains(words), "`{words}` is missing in:\n{}", ended.stderr);
    }
    let har = fs::read_to_string(bed.path("shop.har")).unwrap();
    assert!(har.contains(r#""status":101"#) && !har.contains("secret words"), "{har}");
}

#[test]
fn other_hosts_pass_unseen_and_the_proxy_answers_for_itself() {
    if lacks_curl() {
        return;
    }
    let bed = TestBed::beside_others();
    let recorder = Recorder::start(&bed, &["--host", "localhost"]);
    let shop = server("127.0.0.1:0", shop);
    let port = shop.port();
    assert!(recorder.curl(&[&format!("http://{shop}/")]).contains("The shop"));
    assert!(recorder.curl(&["-p", &format!("http://{shop}/")]).contains("The shop"));
    assert!(recorder.curl(&[&format!("http://localhost:{port}/")]).contains("The shop"));
    assert!(recorder.curl(&["-p", &format!("http://localhost:{port}/home")]).contains("Home"), "HTTP in a tunnel");
    for url in [format!("{}/", recorder.proxy), recorder.proxy.replace("127.0.0.1", "localhost")] {
        assert!(recorder.curl(&[&url]).contains("This is a proxy"), "{url}");
    }
    assert!(recorder.curl(&[&format!("{}/ca.pem", recorder.proxy)]).contains("BEGIN CERTIFICATE"));
    for (target, why) in [("http://ann:pw@localhost/", "Authorization"), ("ftp://localhost/", "only http and https")] {
        let told = recorder.curl(&["--request-target", target, &format!("http://{shop}/")]);
        assert!(told.contains(why), "{target}: {told}");
    }
    // The files are there before the end.
    until(|| fs::read_to_string(bed.path("shop.scenario")).ok().filter(|text| text.contains("GET /home")));
    let ended = recorder.ends();
    assert!(
        ended.stderr.contains("     1  to other hosts") && ended.stderr.contains("     1  tunnels passed"),
        "{}",
        ended.stderr
    );
    let har = fs::read_to_string(bed.path("shop.har")).unwrap();
    assert!(!har.contains("127.0.0.1"), "{har}");
}

#[test]
fn only_clients_that_are_named_are_served() {
    let bed = TestBed::beside_others();
    let recorder = Recorder::start(&bed, &["--from", "192.0.2.0/24", "--from", "::1"]);
    let mut stranger = TcpStream::connect(recorder.address()).unwrap();
    let _ = stranger.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut answer = Vec::new();
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
    let ended = recorder.ends();
    assert!(ended.stderr.contains("127.0.0.1 may not use the proxy: add it with --from"), "{}", ended.stderr);
    assert!(ended.stderr.contains("nothing was recorded") && !bed.path("shop.har").exists(), "{}", ended.stderr);
}

#[test]
fn a_recorder_refuses_to_overwrite_and_to_be_open_to_everybody() {
    let bed = TestBed::beside_others();
    fs::write(bed.path("shop.har"), "precious").unwrap();
    let record = |words: &[&str]| bed.fathom([&["record", "-o", "shop.scenario"], words].concat());
    record(&[]).refused(2, &["shop.har is there already", "--force"]);
    assert_eq!(fs::read_to_string(bed.path("shop.har")).unwrap(), "precious");
    record(&["--force", "--listen", "0.0.0.0:0"]).refused(2, &["others reach 0.0.0.0:0", "--from"]);
    record(&["--force", "--listen", "[::]:0"]).refused(2, &["--from"]);
    record(&["--force", "--from", "nobody"]).refused(2, &["nobody"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    record(&["--force", "--listen", &address]).refused(3, &["cannot listen", &address, "--listen"]);
    bed.fathom(["record", "-o", "missing/shop.scenario"]).refused(2, &["there is no folder missing"]);
    bed.fathom(["record", "-o", ".", "--force"]).refused(2, &[". is a folder"]);
    bed.fathom(["record", "-o", "shop.har"]).refused(2, &["the name of the HAR file"]);

    let shown = bed.fathom(["record", "ca"]).succeeded();
    assert!(shown.stdout.contains("record-ca.pem") && !shown.stdout.contains("PRIVATE"), "{}", shown.stdout);
    assert_eq!(mode(bed.path(".config/fathom/record-ca.key")), 0o600);
    let certificate = || fs::read_to_string(bed.path(".config/fathom/record-ca.pem")).unwrap();
    let first = certificate();
    bed.fathom(["record", "ca"]).succeeded();
    assert_eq!(certificate(), first, "it is made once");
    bed.fathom(["record", "ca", "--renew"]).succeeded();
    assert_ne!(certificate(), first);
    fs::write(bed.path(".config/fathom/record-ca.key"), "broken").unwrap();
    bed.fathom(["record", "ca"]).refused(3, &["record-ca.key", "fathom record ca --renew"]);
}
