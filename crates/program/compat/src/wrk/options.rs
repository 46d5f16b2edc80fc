//! wrk's command line.

use fathom_sys::process::affinity::allowed_cores;

use super::units;
use crate::getopt::{GetoptDialect, GetoptSyntax, LongOption, ParsedWord};

const SYNTAX: GetoptSyntax = GetoptSyntax {
    shorts: "t:c:d:s:H:T:Lrv?",
    longs: &[
        LongOption { name: "connections", short: 'c' },
        LongOption { name: "duration", short: 'd' },
        LongOption { name: "threads", short: 't' },
        LongOption { name: "script", short: 's' },
        LongOption { name: "header", short: 'H' },
        LongOption { name: "latency", short: 'L' },
        LongOption { name: "timeout", short: 'T' },
        LongOption { name: "help", short: 'h' },
        LongOption { name: "version", short: 'v' },
    ],
    dialect: GetoptDialect::Gnu,
};

/// wrk's own list of options, one per line. No line is longer than 52 characters, because wrk pads them all to that width.
const USAGE: &[&str] = &[
    "Usage: wrk <options> <url>",
    "  Options:",
    "    -c, --connections <N>  Connections to keep open",
    "    -d, --duration    <T>  Duration of test",
    "    -t, --threads     <N>  Number of threads to use",
    "",
    "    -s, --script      <S>  Load Lua script file",
    "    -H, --header      <H>  Add header to request",
    "        --latency          Print latency statistics",
    "        --timeout     <T>  Socket/request timeout",
    "    -v, --version          Print version details",
    "",
    "  Numeric arguments may include a SI unit (1k, 1M, 1G)",
    "  Time arguments may include a time unit (2s, 2m, 2h)",
];

/// Returns the output of `wrk` without a URL.
pub(super) fn usage() -> String {
    let (last, lines) = USAGE.split_last().expect("the usage has lines");
    lines.iter().map(|line| format!("{line:<54}\n")).chain([format!("{last:<53}\n")]).collect()
}

/// The options of a wrk command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) connections: u64,
    pub(super) threads: u64,
    /// In seconds.
    pub(super) duration: u64,
    /// In seconds.
    pub(super) timeout: u64,
    /// Headers of the form `Name: value`.
    pub(super) headers: Vec<String>,
    pub(super) latency: bool,
    pub(super) script: Option<String>,
    pub(super) url: String,
    /// The arguments after the URL, for the script.
    pub(super) args: Vec<String>,
}

/// Beyond this number, more threads than cores only cost memory and context switches.
const WORKERS_MAX: u64 = 256;

impl Options {
    /// Returns the number of threads that do the work. With a script, each requested thread has a state of its own.
    pub(super) fn workers(&self) -> u64 {
        let n_cores = allowed_cores().map_or(0, |cores| u64::try_from(cores.len()).unwrap_or(0));
        if self.script.is_some() { self.threads } else { self.threads.min(WORKERS_MAX.max(n_cores)) }
    }
}

/// The result of reading a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedCommandLine {
    /// True if the version is printed first, no matter what follows.
    pub(super) version: bool,
    /// The options, or an optional message for stderr above the usage.
    pub(super) options: Result<Options, Option<String>>,
}

/// Reads the arguments after the name of the tool.
pub(super) fn read(words: &[String]) -> ParsedCommandLine {
    let mut version = false;
    let asked = read_all(words, &mut version);
    ParsedCommandLine { version, options: asked }
}

fn read_all(words: &[String], version: &mut bool) -> Result<Options, Option<String>> {
    let mut options = Options {
        connections: 10,
        threads: 2,
        duration: 10,
        timeout: 2,
        headers: Vec::new(),
        latency: false,
        script: None,
        url: String::new(),
        args: Vec::new(),
    };
    let mut urls = Vec::new();
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option(letter, value) => option(&mut options, letter, value.unwrap_or_default(), version)?,
            ParsedWord::Operand(word) => urls.push(word),
            ParsedWord::Error(text) => return Err(Some(format!("wrk: {text}"))),
        }
    }
    let mut urls = urls.into_iter();
    let Some(url) = urls.next() else { return Err(None) };
    if options.threads == 0 || options.duration == 0 {
        return Err(None);
    }
    if options.connections == 0 || options.connections < options.threads {
        return Err(Some("number of connections must be >= threads".to_owned()));
    }
    Ok(Options { url, args: urls.collect(), ..options })
}

fn option(options: &mut Options, letter: char, value: String, version: &mut bool) -> Result<(), Option<String>> {
    let metric = || units::read_metric(&value).ok_or(None);
    let time = || units::read_time(&value).ok_or(None);
    match letter {
        't' => options.threads = metric()?,
        'c' => options.connections = metric()?,
        'd' => options.duration = time()?,
        'T' => options.timeout = time()?,
        'L' => options.latency = true,
        'v' => *version = true,
        's' => options.script = Some(value),
        // Like wrk, skips a header without a space after its colon.
        'H' => options.headers.extend(value.split_once(':').is_some_and(|(_, v)| v.starts_with(' ')).then_some(value)),
        _ => return Err(None),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(line: &str) -> ParsedCommandLine {
        read(&line.split_whitespace().map(|word| word.replace('_', " ")).collect::<Vec<_>>())
    }

    #[test]
    fn wrk_s_options_are_read_in_every_form() {
        let expected = Options {
            connections: 1000,
            threads: 4,
            duration: 120,
            timeout: 3,
            headers: vec!["A: b".to_owned(), "C: d:e".to_owned()],
            latency: true,
            script: None,
            url: "http://a/".to_owned(),
            args: Vec::new(),
        };
        let lines = [
            "-t4 -c1k -d2m -T3 -L -H A:_b -H C:_d:e -H x:y http://a/",
            "http://a/ --threads=4 --connections 1K --duration 2m --timeout 3s --latency --header A:_b --header=C:_d:e other",
            "-Lt 4 -c 1000 -d 120 --timeo 3 -HA:_b -H C:_d:e -- http://a/ argument",
        ];
        for (line, argument) in lines.into_iter().zip([None, Some("other"), Some("argument")]) {
            let expected = Options { args: argument.into_iter().map(str::to_owned).collect(), ..expected.clone() };
            assert_eq!(reading(line), ParsedCommandLine { version: false, options: Ok(expected) }, "{line}");
        }
        let defaults = reading("u").options.unwrap();
        let shown = (defaults.connections, defaults.threads, defaults.duration, defaults.timeout);
        assert_eq!(shown, (10, 2, 10, 2));
        let workers = |line| reading(line).options.unwrap().workers();
        // Compares with `<` because a future machine may have more cores.
        assert!(workers("-t 9000 -c 9000 u") < 9000);
        assert_eq!((workers("-t 200 -c 900 u"), workers("-t 9000 -c 9000 -s x.lua u")), (200, 9000));
    }

    #[test]
    fn what_wrk_refuses_is_refused_in_its_words() {
        let cases = [
            ("-t 8 -c 4 u", Some("number of connections must be >= threads")),
            ("-c 0 u", Some("number of connections must be >= threads")),
            ("-x u", Some("wrk: invalid option -- 'x'")),
            ("--foo u", Some("wrk: unrecognized option '--foo'")),
            ("-c", Some("wrk: option requires an argument -- 'c'")),
            ("-t abc u", None),
            ("-d 0 u", None),
            ("-t 0 u", None),
            ("-r u", None),
            ("", None),
        ];
        for (line, said) in cases {
            assert_eq!(reading(line).options, Err(said.map(str::to_owned)), "{line}");
        }
        assert!(reading("-v").version && reading("-v").options.is_err());
        assert!(reading("-v u").version && reading("-v u").options.is_ok());
    }
}
