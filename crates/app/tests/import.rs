//! What real tools wrote becomes scenarios that can be read, and that send what the tools sent.
//!
//! The plan was saved by JMeter 5.6.3 and the recording is one of Chromium, written by Playwright. `BLESS=1` writes what is expected anew.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use fathom_app::{
    import::{Assets, Imported, Wanted, import},
    scenario::{
        self,
        tree::{Content, FieldValue, Header, Piece, Scenario, Source, Statement, Step, Template},
    },
};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/import")
}

fn imported(file: &str, wanted: Wanted) -> Imported {
    import(&fs::read(folder().join(file)).unwrap(), wanted, file).unwrap()
}

/// Imports a file and compares with what is kept beside it.
fn compare(file: &str, kept: &str, wanted: Wanted) -> Imported {
    let imported = imported(file, wanted);
    let kept = folder().join(kept);
    if std::env::var_os("BLESS").is_some() {
        fs::write(&kept, &imported.text).unwrap();
    }
    assert_eq!(imported.text, fs::read_to_string(&kept).unwrap(), "{}", kept.display());
    let tree = scenario::parse(&imported.text).unwrap();
    let found = scenario::check(&tree, &folder());
    assert!(scenario::is_sound(&found), "{}", scenario::render(&found, file, &imported.text));
    imported
}

#[test]
fn a_plan_of_jmeter_is_a_scenario_without_mistakes() {
    let imported = compare("shop.jmx", "shop.scenario", Wanted::default());
    let notes: Vec<_> = imported.notes.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "Shop: the property host has its value from here: 127.0.0.1",
            "Shop / Buyers / Switched off: HTTPSamplerProxy is disabled, and left out",
            "Shop / Buyers / Signed / Script: BeanShellPreProcessor is not supported, and left out",
        ]
    );
}

#[test]
fn a_recording_of_a_browser_is_a_scenario_without_mistakes() {
    compare("visit.har", "visit.scenario", Wanted::default());
    let wanted = Wanted { assets: Assets::LeftOut, ..Wanted::default() };
    let steps = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("step ")).count();
    let (all, some) = (imported("visit.har", Wanted::default()), imported("visit.har", wanted));
    assert_eq!((steps(&all.text), steps(&some.text)), (10, 7), "a style, a script and a picture are left out");
}

#[test]
fn commands_of_curl_are_a_scenario_without_mistakes() {
    let imported = compare("commands.curl", "commands.scenario", Wanted::default());
    assert_eq!(imported.notes, []);
}

/// A request as a server sees it; what follows from the connection and the body is left out.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    line: String,
    headers: Vec<(String, String)>,
    body: String,
}

impl Seen {
    fn new(line: &str, mut headers: Vec<(String, String)>, body: &str) -> Self {
        let by_itself = ["host", "content-length", "connection", "expect"];
        headers.retain(|(name, value)| {
            !by_itself.contains(&name.as_str()) && (name != "user-agent" || !value.starts_with("curl/"))
        });
        headers.sort();
        let boundary = headers.iter_mut().find(|(name, _)| name == "content-type").and_then(|(_, value)| {
            let (media, boundary) = value.split_once("; boundary=")?;
            let boundary = boundary.to_owned();
            *value = media.to_owned();
            Some(boundary)
        });
        let body = boundary.map_or_else(|| body.to_owned(), |boundary| body.replace(&boundary, "BOUNDARY"));
        Self { line: upper_hex(line), headers, body: upper_hex(&body) }
    }
}

/// Percent-encoding means the same in either case (RFC 3986 section 2.1), and versions of curl differ in it.
fn upper_hex(text: &str) -> String {
    let mut pieces = text.split('%');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |all, piece| match piece.split_at_checked(2) {
        Some((hex, rest)) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            format!("{all}%{}{rest}", hex.to_uppercase())
        }
        _ => format!("{all}%{piece}"),
    })
}

/// Reads requests until the listener is told to end, and answers each.
fn record(listener: &TcpListener, n: usize) -> Vec<Seen> {
    (0..n).map(|_| one(&listener.accept().unwrap().0)).collect()
}

fn one(stream: &TcpStream) -> Seen {
    let mut reader = BufReader::new(stream);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()))
        .collect();
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    if headers.iter().any(|(name, _)| name == "expect") {
        (&*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    (&*stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
    Seen::new(&lines[0], headers, str::from_utf8(&body).unwrap())
}

/// What a template is when no variable but those of the file are in it.
fn filled(template: &Template, scenario: &Scenario) -> String {
    let fill = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Hole(hole) => match &hole.source {
            Source::Text(text) => text.clone(),
            Source::Variable(name) => {
                let found = scenario.lets.iter().find(|set| set.name.text == name.text).unwrap();
                filled(&found.value, scenario)
            }
            other => panic!("{other:?}"),
        },
    };
    template.pieces.iter().map(fill).collect()
}

/// What a step sends.
fn sent(step: &Step, scenario: &Scenario) -> Seen {
    let read = |header: &Header| (header.name.text.to_lowercase(), filled(&header.value, scenario));
    let mut headers: Vec<_> = step.headers.iter().map(read).collect();
    for header in scenario.headers.iter().map(read) {
        if headers.iter().all(|(name, _)| *name != header.0) {
            headers.push(header);
        }
    }
    let (media, body) = match step.body.as_ref().map(|body| &body.content) {
        None => (None, String::new()),
        Some(Content::Text(text)) => (None, filled(text, scenario)),
        Some(Content::Json(text)) => (Some("application/json"), filled(text, scenario)),
        Some(Content::File(file)) => (None, fs::read_to_string(folder().join(&file.text)).unwrap()),
        Some(Content::Form(fields)) => {
            let pairs = fields.iter().map(|field| match &field.value {
                FieldValue::Text(text) => format!("{}={}", field.name.text, filled(text, scenario)),
                FieldValue::File { .. } => panic!("a form holds no files"),
            });
            (Some("application/x-www-form-urlencoded"), pairs.collect::<Vec<_>>().join("&"))
        }
        Some(Content::Multipart(fields)) => {
            let parts = fields.iter().map(|field| {
                let name = &field.name.text;
                let (head, content) = match &field.value {
                    FieldValue::Text(text) => (String::new(), filled(text, scenario)),
                    FieldValue::File { path, media_type } => {
                        let media = media_type.as_ref().map_or("application/octet-stream", |media| &media.text);
                        let head = format!("; filename=\"{}\"\r\nContent-Type: {media}", path.text);
                        (head, fs::read_to_string(folder().join(&path.text)).unwrap())
                    }
                };
                format!("--BOUNDARY\r\nContent-Disposition: form-data; name=\"{name}\"{head}\r\n\r\n{content}\r\n")
            });
            (Some("multipart/form-data"), format!("{}--BOUNDARY--\r\n", parts.collect::<String>()))
        }
    };
    if let Some(media) = media {
        headers.push(("content-type".to_owned(), media.to_owned()));
    }
    let url = filled(&step.url, scenario);
    Seen::new(&format!("{} {url} HTTP/1.1", step.method.text), headers, &body)
}

fn steps(scenario: &Scenario) -> Vec<&Step> {
    let all = scenario.users.iter().flat_map(|user| &user.body);
    all.filter_map(|statement| if let Statement::Step(step) = statement { Some(&**step) } else { None }).collect()
}

#[test]
fn a_scenario_from_curl_sends_what_curl_sends() {
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
        assert!(std::env::var_os("CI").is_none(), "curl must be there in CI");
        println!("SKIPPED: there is no curl");
        return;
    }
    let text = fs::read_to_string(folder().join("commands.curl")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = text.replace("127.0.0.1:8126", &listener.local_addr().unwrap().to_string());
    let tree = scenario::parse(&import(text.as_bytes(), Wanted::default(), "commands").unwrap().text).unwrap();
    let expected: Vec<Seen> = steps(&tree).into_iter().map(|step| sent(step, &tree)).collect();
    let n = expected.len();
    let server = thread::spawn(move || record(&listener, n));
    // The same lines in a real shell; no file of the person who runs the test may change what is sent.
    let shell = Command::new("bash")
        .args(["-c", &text])
        .current_dir(folder())
        .env("CURL_HOME", folder())
        .env_remove("http_proxy")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    assert!(shell.unwrap().success());
    for (seen, expected) in server.join().unwrap().iter().zip(&expected) {
        assert_eq!(seen, expected);
    }
}
