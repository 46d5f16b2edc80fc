//! Drop-in for webbench: a fixed number of clients for a fixed time, with a new connection for each request.
//!
//! As in webbench, the pages per minute include failed requests.

use fathom_http::names::{ATTEMPTS, ERRORS};
use fathom_model::{
    Record, Settings,
    names::count,
    units::{Nanos, approximate, rounded},
};

use super::{
    closed_loop::{self, ClosedLoop, TargetError, UrlTarget},
    getopt::{GetoptDialect, GetoptSyntax, LongOption, ParsedWord, atoi},
};
use fathom_run::{allow::AllowList, exit::Exit};

const SYNTAX: GetoptSyntax = GetoptSyntax {
    shorts: "912Vfrt:p:c:?h",
    // Long options without a letter get one that cannot be typed on a command line.
    longs: &[
        LongOption { name: "force", short: 'f' },
        LongOption { name: "reload", short: 'r' },
        LongOption { name: "time", short: 't' },
        LongOption { name: "help", short: '?' },
        LongOption { name: "http09", short: '9' },
        LongOption { name: "http10", short: '1' },
        LongOption { name: "http11", short: '2' },
        LongOption { name: "get", short: 'G' },
        LongOption { name: "head", short: 'H' },
        LongOption { name: "options", short: 'O' },
        LongOption { name: "trace", short: 'T' },
        LongOption { name: "version", short: 'V' },
        LongOption { name: "proxy", short: 'p' },
        LongOption { name: "clients", short: 'c' },
    ],
    dialect: GetoptDialect::Gnu,
};

const USAGE: &str = "\
webbench [option]... URL
  -f|--force               Leave once a request is sent, without its answer.
  -r|--reload              Ask a proxy for a fresh copy: Pragma: no-cache.
  -t|--time <sec>          Run for that many seconds; 30 unless given.
  -p|--proxy <server:port> Go through this proxy.
  -c|--clients <n>         That many clients at once; one unless given.
  -9|--http09              Speak HTTP/0.9: a line there, a body back.
  -1|--http10              Speak HTTP/1.0.
  -2|--http11              Speak HTTP/1.1.
  --get                    Ask with GET.
  --head                   Ask with HEAD.
  --options                Ask with OPTIONS.
  --trace                  Ask with TRACE.
  -?|-h|--help             Show this.
  -V|--version             Print the version.
";

/// webbench's exit code for an invalid command line.
const WRONG: Exit = Exit::Code(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    Http09,
    Http10,
    Http11,
}

/// The options of a webbench command line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Options {
    /// In seconds.
    time: u64,
    clients: u64,
    version: Version,
    method: &'static str,
    proxy: Option<(String, u16)>,
    reload: bool,
    force: bool,
    url: String,
}

/// The reason why reading ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EarlyExit {
    /// A message for stderr, with exit code 2.
    Error(String),
    /// The version was requested.
    Version,
}

fn read(words: &[String]) -> Result<Options, EarlyExit> {
    let refused = |what: &str| Err(EarlyExit::Error(what.to_owned()));
    if words.is_empty() {
        return refused(USAGE);
    }
    let mut options = Options {
        time: 30,
        clients: 1,
        version: Version::Http10,
        method: "GET",
        proxy: None,
        reload: false,
        force: false,
        url: String::new(),
    };
    let mut urls = Vec::new();
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option(letter, value) => option(&mut options, letter, &value.unwrap_or_default())?,
            ParsedWord::Operand(word) => urls.push(word),
            ParsedWord::Error(text) => return Err(EarlyExit::Error(format!("webbench: {text}\n{USAGE}"))),
        }
    }
    let Some(url) = urls.into_iter().next() else {
        return Err(EarlyExit::Error(format!("webbench: Missing URL!\n{USAGE}")));
    };
    match url.split_once("://") {
        None => return Err(EarlyExit::Error(format!("\n{url}: is not a valid URL.\n"))),
        Some((scheme, _)) if options.proxy.is_none() && !scheme.eq_ignore_ascii_case("http") => {
            return refused("\nOnly HTTP protocol is directly supported, set --proxy for others.\n");
        }
        Some((_, rest)) if !rest.contains('/') => {
            return refused("\nInvalid URL syntax - hostname don't ends with '/'.\n");
        }
        Some(_) => {}
    }
    // OPTIONS and TRACE need HTTP/1.1. HEAD, and header fields such as the one for a reload, need HTTP/1.0.
    let least = match options.method {
        "OPTIONS" | "TRACE" => Version::Http11,
        "HEAD" => Version::Http10,
        _ if options.reload && options.proxy.is_some() => Version::Http10,
        _ => Version::Http09,
    };
    Ok(Options { url, version: options.version.max(least), ..options })
}

fn option(options: &mut Options, letter: char, value: &str) -> Result<(), EarlyExit> {
    let number = || u64::try_from(atoi(value)).unwrap_or(0);
    match letter {
        'f' => options.force = true,
        'r' => options.reload = true,
        '9' => options.version = Version::Http09,
        '1' => options.version = Version::Http10,
        '2' => options.version = Version::Http11,
        'G' => options.method = "GET",
        'H' => options.method = "HEAD",
        'O' => options.method = "OPTIONS",
        'T' => options.method = "TRACE",
        // Zero means one minute, or one client.
        't' => options.time = Some(number()).filter(|time| *time > 0).unwrap_or(60),
        'c' => options.clients = number().max(1),
        'p' => options.proxy = Some(proxy(value)?),
        'V' => return Err(EarlyExit::Version),
        _ => return Err(EarlyExit::Error(USAGE.to_owned())),
    }
    Ok(())
}

fn proxy(value: &str) -> Result<(String, u16), EarlyExit> {
    let wrong = |what: &str| EarlyExit::Error(format!("Error in option --proxy {value}: {what}\n"));
    let (host, port) = value.rsplit_once(':').unwrap_or((value, "80"));
    match (host, port) {
        ("", _) => Err(wrong("Missing hostname.")),
        (_, "") => Err(wrong("Port number is missing.")),
        (host, port) => Ok((host.to_owned(), u16::try_from(atoi(port)).unwrap_or(0))),
    }
}

/// Runs webbench with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let options = match read(&words) {
        Ok(options) => options,
        Err(EarlyExit::Version) => {
            return closed_loop::print_now(&format!("1.5 ({})\n", fathom_run::registry::TOOL)).map(|()| Exit::Pass);
        }
        Err(EarlyExit::Error(text)) => {
            eprint!("{text}");
            return Ok(WRONG);
        }
    };
    let target = match &options.proxy {
        Some((host, port)) => Some(UrlTarget { host: host.clone(), port: Some(*port), is_secure: false }),
        None => UrlTarget::of(&options.url),
    };
    let Some(target) = target else {
        eprint!("\n{}: is not a valid URL.\n", options.url);
        return Ok(WRONG);
    };
    match closed_loop::check_reachable(&target, allowed) {
        Ok(()) => {}
        Err(TargetError::NotAllowed(user_error)) => return Err(user_error.into()),
        Err(TargetError::Unknown(_) | TargetError::Unreachable(..)) => {
            eprintln!("\nConnect to server failed. Aborting benchmark.");
            return Ok(Exit::Code(1));
        }
    }
    closed_loop::print_now(&head(&options))?;
    let measured = load(&options).measure(None, allowed)?;
    closed_loop::print_now(&body(&WebbenchResult::of(measured.record()?), &options))?;
    extras.print(&measured)?;
    Ok(Exit::Pass)
}

fn load(options: &Options) -> ClosedLoop {
    let (version, mut fields) = match options.version {
        Version::Http09 => ("0.9", Vec::new()),
        Version::Http10 => ("1.0", vec!["User-Agent: WebBench 1.5"]),
        Version::Http11 => ("1.1", vec!["User-Agent: WebBench 1.5"]),
    };
    fields.extend((options.reload && options.proxy.is_some()).then_some("Pragma: no-cache"));
    let span = format!("{}s", options.time);
    let mut settings = Settings::default()
        .with("url", options.url.clone())
        .with("connections", options.clients.to_string())
        .with("per-connection", "1")
        .with("insecure", "true")
        .with("http", version)
        .with("method", options.method)
        // Clients wait for as long as the run lasts.
        .with("timeout", span)
        .with("header", fields.join("\n"));
    if options.force {
        settings.set("leave", "true");
    }
    if let Some((host, port)) = &options.proxy {
        settings.set("proxy", format!("http://{host}:{port}"));
    }
    let duration = Nanos::from_secs(options.time);
    ClosedLoop { title: format!("webbench {}", options.url), kind: closed_loop::CLOSED_LOOP_KIND, settings, duration }
}

/// The result of a webbench run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WebbenchResult {
    answered: u64,
    failed: u64,
    /// The received bytes.
    bytes: u64,
}

impl WebbenchResult {
    fn of(record: &Record) -> Self {
        let within = |counter| closed_loop::measured_growth(record, counter).0;
        let failed = if record.totals.contains_key(ATTEMPTS) { within(ERRORS) } else { 0 };
        Self { answered: within(count::REQUESTS), failed, bytes: within(count::BYTES_RECEIVED) }
    }
}

/// Returns the text before the run.
fn head(options: &Options) -> String {
    let version = match options.version {
        Version::Http09 => " (using HTTP/0.9)",
        Version::Http10 => "",
        Version::Http11 => " (using HTTP/1.1)",
    };
    let force = if options.force { ", early socket close" } else { "" };
    let clients = if options.clients == 1 { "1 client".to_owned() } else { format!("{} clients", options.clients) };
    let proxy = options.proxy.as_ref().map(|(host, port)| format!(", via proxy server {host}:{port}"));
    let reload = if options.reload { ", forcing reload" } else { "" };
    format!(
        "{} in the form of Webbench 1.5\n\nBenchmarking: {} {}{version}\n{clients}, running {} sec{force}{}{reload}.\n",
        fathom_run::registry::TOOL,
        options.method,
        options.url,
        options.time,
        proxy.unwrap_or_default(),
    )
}

/// Returns the text after the run.
fn body(outcome: &WebbenchResult, options: &Options) -> String {
    let WebbenchResult { answered, failed, bytes } = *outcome;
    let seconds = approximate(options.time);
    let pages = rounded((approximate(answered + failed) * 60.0 / seconds).trunc());
    let bytes = rounded((approximate(bytes) / seconds).trunc());
    format!("\nSpeed={pages} pages/min, {bytes} bytes/sec.\nRequests: {answered} susceed, {failed} failed.\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(line: &str) -> Result<Options, EarlyExit> {
        read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn webbench_s_options_are_read_in_every_form() {
        let expected = Options {
            time: 5,
            clients: 10,
            version: Version::Http11,
            method: "HEAD",
            proxy: Some(("p".to_owned(), 3128)),
            reload: true,
            force: false,
            url: "http://a/".to_owned(),
        };
        for line in [
            "-t5 -c 10 -2 -r -pp:3128 --head http://a/",
            "http://a/ --time=5 --clients 10 --http11 --reload --proxy p:3128 --head",
        ] {
            assert_eq!(reading(line), Ok(expected.clone()), "{line}");
        }
        assert_eq!(reading("--trace http://a/").unwrap().version, Version::Http11);
        assert_eq!(reading("-9 --head http://a/").unwrap().version, Version::Http10);
        assert_eq!(reading("-9r -p p:1 http://a/").unwrap().version, Version::Http10);
        assert_eq!(reading("-9 http://a/").unwrap().version, Version::Http09);
        let zero = reading("-t 0 -c 0 http://a/").unwrap();
        assert_eq!((zero.time, zero.clients), (60, 1));
    }

    #[test]
    fn what_webbench_refuses_is_refused() {
        let cases = [
            ("", "webbench [option]... URL"),
            ("-c 1", "webbench: Missing URL!\n"),
            ("-x http://a/", "webbench: invalid option -- 'x'\n"),
            ("a.example/", "\na.example/: is not a valid URL.\n"),
            ("https://a/", "\nOnly HTTP protocol is directly supported, set --proxy for others.\n"),
            ("http://a", "\nInvalid URL syntax - hostname don't ends with '/'.\n"),
            ("-p :80 http://a/", "Error in option --proxy :80: Missing hostname.\n"),
            ("-p a: http://a/", "Error in option --proxy a:: Port number is missing.\n"),
        ];
        for (line, beginning) in cases {
            match reading(line) {
                Err(EarlyExit::Error(text)) if text.starts_with(beginning) => {}
                other => panic!("{line}: {other:?}"),
            }
        }
        assert_eq!(reading("-V"), Err(EarlyExit::Version));
    }

    #[test]
    fn the_lines_are_those_of_webbench_with_its_spelling_and_its_count() {
        let options = reading("-t 30 -c 10 http://a/").unwrap();
        let outcome = WebbenchResult { answered: 98, failed: 2, bytes: 607_369 };
        let written = "\nSpeed=200 pages/min, 20245 bytes/sec.\nRequests: 98 susceed, 2 failed.\n";
        assert_eq!(body(&outcome, &options), written);
        let shown = head(&reading("-9f -t 5 -p p:81 http://a/").unwrap());
        let expected =
            "GET http://a/ (using HTTP/0.9)\n1 client, running 5 sec, early socket close, via proxy server p:81.\n";
        assert!(shown.ends_with(expected), "{shown}");
        assert!(head(&options).ends_with("\n\nBenchmarking: GET http://a/\n10 clients, running 30 sec.\n"));
    }
}
