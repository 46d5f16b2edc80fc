//! The requests of ab: as options of the kind, and as the text that `-v 2` shows.

use std::path::Path;

use data_encoding::BASE64;
use fathom_http::names::facts;
use fathom_model::{Record, Settings};

use super::options::Options;
use fathom_run::exit::{Exit, UserError};

/// ab's user agent, unless `-H 'User-Agent: …'` replaces it.
const USER_AGENT: &str = "ApacheBench/2.3";
/// A timeout of zero would end every request immediately.
const TIMEOUT_MIN: u64 = 1;

/// Returns the header fields of ab except the credentials: the given ones first, then ab's own.
fn fields(options: &Options) -> Vec<String> {
    let mut fields = Vec::new();
    if options.body.is_some() {
        fields.push(format!("Content-type: {}", options.content_type.as_deref().unwrap_or("text/plain")));
    }
    // ab sends a malformed field unchanged and a server may refuse it. Here it is not sent.
    fields.extend(options.headers.iter().filter(|line| line.contains(':')).cloned());
    let own =
        [("Host", options.address.authority()), ("User-Agent", USER_AGENT.to_owned()), ("Accept", "*/*".to_owned())];
    for (name, value) in own {
        if !options.headers.iter().any(|line| is_of(line, name)) {
            fields.push(format!("{name}: {value}"));
        }
    }
    fields
}

fn is_of(line: &str, name: &str) -> bool {
    line.split_once(':').is_some_and(|(given, _)| given.trim().eq_ignore_ascii_case(name))
}

/// Returns the value of a header field up to its first space, or an empty text if the field is missing.
pub(super) fn field(head: &str, name: &str) -> String {
    let line = head.lines().find(|line| is_of(line, name));
    let value = line.and_then(|line| line.split_once(':')).map_or("", |(_, value)| value.trim_start());
    value.split(|c: char| c <= ' ').next().unwrap_or_default().to_owned()
}

/// Returns the options of the test. Rows of requests are written to the file `spill`.
pub(super) fn settings(options: &Options, spill: Option<String>) -> anyhow::Result<Settings> {
    // ab accepts any text here, with or without a colon, but the kind's own option requires both a user and a password.
    let credentials =
        options.user.as_ref().map(|user| format!("Authorization: Basic {}", BASE64.encode(user.as_bytes())));
    let header: Vec<String> = fields(options).into_iter().chain(credentials).collect();
    let mut settings = Settings::default()
        .with("url", options.address.url())
        .with("connections", options.concurrency.to_string())
        .with("count", options.requests.to_string())
        .with("timeout", format!("{}s", options.timeout.max(TIMEOUT_MIN)))
        .with("threads", "1")
        .with("http", "1.0")
        .with("insecure", "true")
        .with("header", header.join("\n"));
    let mut when = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            settings.set(name, value);
        }
    };
    when("per-connection", (!options.keep_alive).then(|| "1".to_owned()));
    when("method", options.method.clone());
    when("body-file", options.body.as_deref().map(absolute).transpose()?);
    when("cookie", options.cookie.clone());
    when("source", options.source.clone());
    when("tls", version(options)?);
    when("client-cert", options.certificate.clone());
    when("client-key", options.certificate.clone());
    when("request-log", spill);
    when("keep-answer", (options.verbosity >= 2).then(|| "true".to_owned()));
    when("give-up", (!options.ignores_receive_errors).then(|| "1".to_owned()));
    let user = options.proxy_user.as_ref().map_or(String::new(), |user| format!("{user}@"));
    when("proxy", options.proxy.as_ref().map(|(host, port)| format!("http://{user}{host}:{port}")));
    Ok(settings)
}

/// Returns an absolute path, because an agent may have another working directory.
fn absolute(path: &Path) -> anyhow::Result<String> {
    Ok(std::path::absolute(path)?.to_string_lossy().into_owned())
}

fn version(options: &Options) -> anyhow::Result<Option<String>> {
    match options.protocol.as_deref() {
        None | Some("ALL") => Ok(None),
        Some("TLS1.2") => Ok(Some("1.2".to_owned())),
        Some("TLS1.3") => Ok(Some("1.3".to_owned())),
        Some(old) => Err(UserError::new(Exit::Code(1), format!("there is no `-f {old}` here"))
            .with_line("why", "TLS before 1.2 is broken (RFC 8996)")
            .with_line("use", "-f TLS1.2, -f TLS1.3 or -f ALL")
            .into()),
    }
}

/// Returns the request and the first response, as ab shows them from verbosity 2 on.
pub(super) fn shown(options: &Options, record: &Record) -> String {
    if options.verbosity < 2 {
        return String::new();
    }
    let method = options.method.as_deref().unwrap_or("GET");
    let target = if options.proxy.is_some() { options.address.url() } else { options.address.path.clone() };
    let mut lines = vec![format!("{method} {target} HTTP/1.0")];
    lines.extend(options.keep_alive.then(|| "Connection: Keep-Alive".to_owned()));
    lines.extend(options.cookie.as_ref().map(|cookie| format!("Cookie: {cookie}")));
    // Passwords are never printed.
    lines.extend(options.user.as_ref().map(|_| "Authorization: Basic …".to_owned()));
    lines.extend(options.proxy_user.as_ref().map(|_| "Proxy-Authorization: Basic …".to_owned()));
    let length = options.body.as_deref().and_then(|path| std::fs::metadata(path).ok()).map(|file| file.len());
    lines.extend(length.map(|length| format!("Content-length: {length}")));
    lines.extend(fields(options));
    let mut text = format!("INFO: {method} header == \n---\n{}\r\n\r\n\n---\n", lines.join("\r\n"));
    if let Some(answer) = record.facts.get(facts::ANSWER) {
        // ab's output ends where a C string ends.
        let shown = answer.split('\0').next().unwrap_or_default();
        text.extend(["LOG: header received:\n", shown, "\n"]);
        let code = answer.split(' ').nth(1).unwrap_or_default();
        let verdict = if code.starts_with('2') {
            (options.verbosity >= 3).then(|| format!("LOG: Response code = {code}\n"))
        } else {
            Some(format!("WARNING: Response code not 2xx ({code})\n"))
        };
        text.extend(verdict);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::options, *};

    fn options(line: &str) -> Options {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        options::read(&words).1.unwrap()
    }

    #[test]
    fn our_kind_is_asked_for_what_ab_would_do() {
        let asked = settings(&options("-n 10 -c 2 -C a=b -P q:r -X proxy:3128 -f TLS1.2 https://a/b"), None).unwrap();
        let text = |name: &str| asked.text(name).unwrap_or_default();
        let shown = ["url", "count", "per-connection", "http", "cookie", "proxy", "tls", "give-up"].map(text);
        let expected = ["https://a/b", "10", "1", "1.0", "a=b", "http://q:r@proxy:3128", "1.2", "1"];
        assert_eq!(shown, expected.map(str::to_owned));
        let kept = settings(&options("-n 10 -k -r a/"), None).unwrap();
        assert_eq!((kept.text("per-connection"), kept.text("give-up")), (None, None));
        assert!(settings(&options("-f SSL3 a/"), None).is_err());
        for (user, encoded) in [("u:p", "dTpw"), ("nocolon", "bm9jb2xvbg==")] {
            let asked = settings(&options(&format!("-A {user} a/")), None).unwrap();
            assert!(asked.text("header").unwrap().ends_with(&format!("Authorization: Basic {encoded}")));
        }
    }

    #[test]
    fn given_fields_stand_in_place_of_ab_s_own() {
        let given = fields(&options("-H X:_y -H accept:_text/x -H nothing a:81/"));
        assert_eq!(given, ["X: y", "accept: text/x", "Host: a:81", "User-Agent: ApacheBench/2.3"]);
    }

    #[test]
    fn the_server_is_named_up_to_the_first_blank() {
        let head = "HTTP/1.1 200 OK\r\nServer: Apache/2.4 (Debian)\r\n\r\n";
        assert_eq!(field(head, "server"), "Apache/2.4");
        assert_eq!(field("HTTP/1.1 200 OK\r\n\r\n", "server"), "");
    }
}
