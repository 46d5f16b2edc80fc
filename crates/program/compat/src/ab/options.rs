//! ab's command line.

use std::path::PathBuf;

use fathom_model::host_port::bracketed;

use crate::getopt::{GetoptDialect, GetoptSyntax, ParsedWord, atoi};

const SYNTAX: GetoptSyntax = GetoptSyntax {
    shorts: "n:c:t:s:b:T:p:u:v:lrkVhwiIx:y:z:C:H:P:A:g:X:de:SqB:m:Z:f:E:",
    longs: &[],
    dialect: GetoptDialect::Apache,
};

/// The highest concurrency that ab accepts.
const CONCURRENCY_MAX: i64 = 200_000;
/// The number of requests for `-t`, unless a later `-n` changes it.
const REQUESTS_OF_A_TIME: i64 = 50_000;

const USAGE: &str = "\
Usage: ab [options] [http[s]://]hostname[:port]/path
Options are:
    -n requests     How many requests to send
    -c concurrency  How many of them at the same time
    -t timelimit    The most seconds to spend
                    Stands for -n 50000 as well
    -s timeout      The most seconds to wait for an answer
                    30 unless given
    -b windowsize   Size of the TCP buffers in bytes; the kernel's here
    -B address      Address to send from
    -p postfile     File with the body of a POST; -T says what it is
    -u putfile      File with the body of a PUT; -T says what it is
    -T content-type Content-Type of a body, such as
                    'application/x-www-form-urlencoded'
                    'text/plain' unless given
    -v verbosity    From 2 on the request and the first answer are shown
    -w              Print tables in HTML
    -i              HEAD in place of GET
    -x attributes   Attributes of the table
    -y attributes   Attributes of its rows
    -z attributes   Attributes of its cells
    -C attribute    A cookie, such as 'Apache=1234'
    -H attribute    A header field, such as 'Accept-Encoding: gzip' (repeatable)
    -A attribute    Name and password for the server, with a colon between
    -P attribute    Name and password for the proxy, with a colon between
    -X proxy:port   The proxy to go through
    -V              Print the version
    -k              Keep connections open
    -d              No table of percentages
    -S              No deviations, no medians, no warnings
    -q              No progress for more than 150 requests
    -l              Answers may differ in length
    -g filename     Write a row per request, for gnuplot
    -e filename     Write the percentages as CSV
    -r              Go on after errors of a socket
    -m method       The method
    -h              Show this
    -I              No server name in TLS
    -Z ciphersuite  Ciphers of TLS; chosen by TLS itself here
    -f protocol     Protocol of TLS
                    (TLS1.2, TLS1.3 or ALL)
    -E certfile     Own certificate and private key in one file
";

/// ab's exit code after its usage: `APR_EINVAL`.
const USAGE_CODE: u8 = 22;

/// The HTML attributes of the result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HtmlAttributes {
    pub(super) table: String,
    pub(super) row: String,
    pub(super) cell: String,
}

/// The parts of a URL that ab shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UrlParts {
    pub(super) is_secure: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) path: String,
}

impl UrlParts {
    /// Parses a URL. Returns `None` if no path follows the host, or if the port is invalid.
    fn of(text: &str) -> Option<Self> {
        let (is_secure, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => (false, text),
        };
        let (authority, path) = rest.split_at(rest.find('/')?);
        let usual = if is_secure { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => {
                (host, port.parse().ok().filter(|port| *port > 0)?)
            }
            _ => (authority, usual),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (!host.is_empty()).then(|| Self { is_secure, host: host.to_owned(), port, path: path.to_owned() })
    }

    /// Returns the host as in a URL, with the port unless it is the default.
    pub(super) fn authority(&self) -> String {
        let host = bracketed(&self.host);
        let is_usual = self.port == if self.is_secure { 443 } else { 80 };
        if is_usual { host } else { format!("{host}:{}", self.port) }
    }

    /// Returns the whole URL with its scheme.
    pub(super) fn url(&self) -> String {
        format!("{}://{}{}", if self.is_secure { "https" } else { "http" }, self.authority(), self.path)
    }
}

/// The options of an ab command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the tool, which has as many")]
pub(super) struct Options {
    pub(super) requests: u64,
    pub(super) concurrency: u64,
    /// In seconds.
    pub(super) time: Option<u64>,
    /// In seconds.
    pub(super) timeout: u64,
    pub(super) keep_alive: bool,
    /// Any method except GET.
    pub(super) method: Option<String>,
    /// The body of each request.
    pub(super) body: Option<PathBuf>,
    pub(super) content_type: Option<String>,
    pub(super) cookie: Option<String>,
    pub(super) headers: Vec<String>,
    pub(super) user: Option<String>,
    pub(super) proxy: Option<(String, u16)>,
    pub(super) proxy_user: Option<String>,
    pub(super) source: Option<String>,
    pub(super) protocol: Option<String>,
    pub(super) certificate: Option<String>,
    pub(super) any_length: bool,
    pub(super) ignores_receive_errors: bool,
    pub(super) verbosity: i64,
    pub(super) html: Option<HtmlAttributes>,
    pub(super) no_percentages: bool,
    pub(super) no_deviations: bool,
    pub(super) quiet: bool,
    pub(super) gnuplot: Option<PathBuf>,
    pub(super) csv: Option<PathBuf>,
    /// Sentences about options that have no effect here.
    pub(super) without_effect: Vec<String>,
    pub(super) address: UrlParts,
}

/// The reason why reading ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EarlyExit {
    /// A message for stderr, and an exit code.
    Error(String, u8),
    /// The version was requested.
    Version,
}

/// The result of reading a command line: ab's messages for stderr, and the options.
pub(super) type ParsedCommandLine = (String, Result<Options, EarlyExit>);

fn usage(what: Option<&str>) -> EarlyExit {
    let what = what.map_or(String::new(), |what| format!("ab: {what}\n"));
    EarlyExit::Error(what + USAGE, USAGE_CODE)
}

fn option_error(what: &str) -> EarlyExit {
    // ab ends its own messages with an empty line.
    EarlyExit::Error(format!("{what}\n\n"), 1)
}

/// Reads the arguments after the name of the tool.
pub(super) fn read(words: &[String]) -> ParsedCommandLine {
    let mut said = String::new();
    let read = read_all(words, &mut said);
    (said, read)
}

fn read_all(words: &[String], said: &mut String) -> Result<Options, EarlyExit> {
    let mut options = Options { requests: 1, concurrency: 1, timeout: 30, ..Options::default() };
    let mut concurrency = 1;
    let mut operands = Vec::new();
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option('c', value) => concurrency = atoi(&value.unwrap_or_default()),
            ParsedWord::Option(letter, value) => option(&mut options, letter, value.unwrap_or_default())?,
            ParsedWord::Operand(word) => operands.push(word),
            ParsedWord::Error(text) => said.extend(["ab: ", &text, "\n"]),
        }
    }
    let [url] = operands.as_slice() else { return Err(usage(Some("wrong number of arguments"))) };
    options.address = UrlParts::of(url).ok_or_else(|| usage(Some("invalid URL")))?;
    if !(0..=CONCURRENCY_MAX).contains(&concurrency) {
        return Err(usage(Some(&format!("Invalid Concurrency [Range 0..{CONCURRENCY_MAX}]"))));
    }
    options.concurrency = u64::try_from(concurrency).unwrap_or(0);
    if options.concurrency > options.requests {
        return Err(usage(Some("Cannot use concurrency level greater than total number of requests")));
    }
    Ok(options)
}

fn option(options: &mut Options, letter: char, value: String) -> Result<(), EarlyExit> {
    match letter {
        'V' => return Err(EarlyExit::Version),
        'h' => return Err(usage(None)),
        'w' | 'x' | 'y' | 'z' => layout(options, letter, value),
        'n' | 't' | 's' | 'v' => number(options, letter, &value)?,
        'i' => with_method(options, "HEAD", None)?,
        'p' => with_method(options, "POST", Some(value))?,
        'u' => with_method(options, "PUT", Some(value))?,
        'm' => options.method = Some(value),
        'X' => {
            let (host, port) = value.split_once(':').unwrap_or((&value, "80"));
            options.proxy = Some((host.to_owned(), port.parse().unwrap_or(0)));
        }
        'b' => options.without_effect.push("-b: the kernel chooses the sizes of its buffers".to_owned()),
        'Z' => options.without_effect.push("-Z: TLS chooses among its own cipher suites".to_owned()),
        'I' => options.without_effect.push("-I: the server's name is sent in TLS".to_owned()),
        'k' => options.keep_alive = true,
        'l' => options.any_length = true,
        'r' => options.ignores_receive_errors = true,
        'd' => options.no_percentages = true,
        'S' => options.no_deviations = true,
        'q' => options.quiet = true,
        'T' => options.content_type = Some(value),
        // According to ab, the option can be repeated, but ab sends only the last value.
        'C' => options.cookie = Some(value),
        'H' => options.headers.push(value),
        'A' => options.user = Some(value),
        'P' => options.proxy_user = Some(value),
        'B' => options.source = Some(value),
        'f' => options.protocol = Some(value),
        'E' => options.certificate = Some(value),
        'g' => options.gnuplot = Some(value.into()),
        _ => options.csv = Some(value.into()),
    }
    Ok(())
}

fn number(options: &mut Options, letter: char, value: &str) -> Result<(), EarlyExit> {
    let number = atoi(value);
    let at_least_0 = u64::try_from(number).unwrap_or(0);
    match letter {
        'n' if number <= 0 => return Err(option_error("Invalid number of requests")),
        'n' => options.requests = at_least_0,
        't' => {
            options.time = Some(at_least_0);
            options.requests = REQUESTS_OF_A_TIME.unsigned_abs();
        }
        's' => options.timeout = at_least_0,
        _ => options.verbosity = number,
    }
    Ok(())
}

fn layout(options: &mut Options, letter: char, value: String) {
    let html = options
        .html
        .get_or_insert_with(|| HtmlAttributes { cell: "bgcolor=white".to_owned(), ..HtmlAttributes::default() });
    match letter {
        'x' => html.table = value,
        'y' => html.row = value,
        'z' => html.cell = value,
        _ => {}
    }
}

/// Sets a method that has an option of its own, and the file for its body.
fn with_method(options: &mut Options, method: &str, body: Option<String>) -> Result<(), EarlyExit> {
    if options.method.is_some() {
        return Err(option_error(&format!("Cannot mix {method} with other methods")));
    }
    options.method = Some(method.to_owned());
    if let Some(path) = body {
        if let Err(error) = std::fs::File::open(&path) {
            let why = crate::closed_loop::c_error_text(&error);
            return Err(EarlyExit::Error(format!("ab: Could not open POST data file ({path}): {why}\n"), 1));
        }
        options.body = Some(path.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(line: &str) -> ParsedCommandLine {
        read(&line.split_whitespace().map(|word| word.replace('_', " ")).collect::<Vec<_>>())
    }

    fn options(line: &str) -> Options {
        reading(line).1.unwrap_or_else(|early| panic!("{line}: {early:?}"))
    }

    #[test]
    fn ab_s_options_are_read_in_every_form() {
        let read =
            options("-kn 100 -c10 -H A:_b -H C:_d -C x=1 -C y=2 -s5 -g r.tsv -e p.csv -lrdSq -v4 http://a:81/p?q");
        assert_eq!((read.requests, read.concurrency, read.timeout, read.verbosity), (100, 10, 5, 4));
        assert_eq!(read.headers, ["A: b", "C: d"]);
        assert_eq!(read.cookie.as_deref(), Some("y=2"));
        assert!(read.keep_alive && read.any_length && read.ignores_receive_errors && read.quiet);
        assert!(read.no_percentages && read.no_deviations);
        assert_eq!((read.address.url().as_str(), read.address.port), ("http://a:81/p?q", 81));
        assert_eq!(options("-X p:3128 u/").proxy, Some(("p".to_owned(), 3128)));
        let html = options("-y class=r u/").html.unwrap();
        assert_eq!((html.table.as_str(), html.row.as_str(), html.cell.as_str()), ("", "class=r", "bgcolor=white"));
    }

    #[test]
    fn a_time_stands_for_50000_requests_unless_a_later_n_says_otherwise() {
        let shown = |line: &str| (options(line).time, options(line).requests);
        assert_eq!(shown("-t 3 u/"), (Some(3), 50_000));
        assert_eq!(shown("-t 3 -n 7 u/"), (Some(3), 7));
        assert_eq!(shown("-n 7 -t 3 u/"), (Some(3), 50_000));
    }

    #[test]
    fn an_address_needs_a_path_and_no_scheme() {
        let cases = [
            ("127.0.0.1:8080/", Some(("127.0.0.1", 8080, "/"))),
            ("https://a/b/c", Some(("a", 443, "/b/c"))),
            ("http://[::1]:81/", Some(("::1", 81, "/"))),
            ("ftp://a/", Some(("ftp:", 80, "//a/"))),
            ("http://a", None),
            ("http:///", None),
            ("http://a:99999/", None),
        ];
        for (text, expected) in cases {
            let address = UrlParts::of(text);
            let shown = address.as_ref().map(|address| (address.host.as_str(), address.port, address.path.as_str()));
            assert_eq!(shown, expected, "{text}");
        }
    }

    #[test]
    fn what_ab_refuses_is_refused_in_its_words_and_with_its_codes() {
        let cases = [
            ("", "ab: wrong number of arguments\nUsage: ab ", 22),
            ("u/ v/", "ab: wrong number of arguments\nUsage: ab ", 22),
            ("u/ -n 1", "ab: wrong number of arguments\nUsage: ab ", 22),
            ("u", "ab: invalid URL\nUsage: ab ", 22),
            ("-c 2 u/", "ab: Cannot use concurrency level greater than total number of requests\nUsage: ab ", 22),
            ("-c -1 u/", "ab: Invalid Concurrency [Range 0..200000]\nUsage: ab ", 22),
            ("-n 0 u/", "Invalid number of requests\n\n", 1),
            ("-n abc u/", "Invalid number of requests\n\n", 1),
            ("-m GET -i u/", "Cannot mix HEAD with other methods\n\n", 1),
            ("-i -p /dev/null u/", "Cannot mix POST with other methods\n\n", 1),
            ("-p /nonexistent u/", "ab: Could not open POST data file (/nonexistent): No such file or directory\n", 1),
            ("-h", "Usage: ab [options] [http[s]://]hostname[:port]/path\n", 22),
        ];
        for (line, beginning, code) in cases {
            match reading(line).1 {
                Err(EarlyExit::Error(text, given)) if text.starts_with(beginning) && given == code => {}
                other => panic!("{line}: {other:?}"),
            }
        }
        assert_eq!(reading("-n 1 -V u").1, Err(EarlyExit::Version));
    }

    #[test]
    fn an_unknown_letter_is_told_and_the_rest_goes_on() {
        let (said, read) = reading("-Q http://a/");
        assert_eq!(said, "ab: illegal option -- Q\n");
        assert_eq!(read.unwrap().address.host, "a");
        assert_eq!(reading("-n").0, "ab: option requires an argument -- n\n");
    }
}
