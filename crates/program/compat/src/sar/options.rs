//! The command line of sar.

use super::reports::{CPU, CPU_ALL, REPORTS, Report, RowsOf};

/// The cores of `-P`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cores {
    /// The row of all together.
    Together,
    /// That row and one for each core.
    Every,
    /// The rows with these names, `all` among them.
    Named(Vec<String>),
}

/// What to report, how often, and how.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) reports: Vec<&'static Report>,
    /// Whether a report that the kernel does not have is left out, because all were asked for.
    pub(super) is_all: bool,
    pub(super) cores: Cores,
    /// The interfaces to report; empty for all.
    pub(super) interfaces: Vec<String>,
    pub(super) decimals: usize,
    /// Seconds between two samples; 0 means the time since the system started.
    pub(super) interval_s: u64,
    /// The number of intervals; without it, until the user ends it.
    pub(super) count: Option<u64>,
}

/// A command line that is answered without a report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Text for standard output.
    Text(String),
    /// A message for standard error; the exit code is 1.
    Wrong(String),
}

pub(super) const USAGE: &str = "\
Usage: fathom as sar [ options ] <interval> [ <count> ]
Options are:
[ -u [ ALL ] ] [ -P { <cpu_list> | ALL } ] [ -n { <keyword> [,...] | ALL } ]
[ --iface=<iface_list> ] [ --dec={ 0 | 1 | 2 } ] [ --help ] [ -V ]
";

/// Parses the words after `sar`.
pub(super) fn parse(words: &[String]) -> Result<Options, Answer> {
    let mut given = SarArguments::default();
    let mut words = words.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        match word {
            "-u" => {
                given.cpu = Some(if words.next_if_eq(&"ALL").is_some() { CPU_ALL } else { CPU });
            }
            "-n" => given.network(words.next().unwrap_or_default())?,
            "-P" => given.cores = Some(cores(words.next().unwrap_or_default())?),
            "-V" => return Err(Answer::Text("sysstat version 12.6.1 (as fathom)\n".to_owned())),
            "--help" => return Err(Answer::Text(USAGE.to_owned())),
            _ if word.starts_with("--iface=") => given.interfaces = list(&word["--iface=".len()..]),
            "--dec=0" => given.decimals = Some(0),
            "--dec=1" => given.decimals = Some(1),
            "--dec=2" => given.decimals = Some(2),
            _ if word.starts_with('-') => return Err(refused(word)),
            number => given.number(number)?,
        }
    }
    given.options()
}

/// Explains an option of sar that is not here.
fn refused(word: &str) -> Answer {
    let letters = &word[1..];
    let why = match letters.chars().next() {
        Some('f' | 'o' | 's' | 'e' | 'i') => {
            "files of sadc are not read or written; fathom watch --record keeps samples".to_owned()
        }
        Some('0'..='9') => "the interval is a number of seconds, from 0".to_owned(),
        Some('-') if letters.starts_with("-dec") => "0, 1 or 2 decimals: --dec=1".to_owned(),
        Some('u' | 'n' | 'P') if letters.len() > 1 && letters.chars().all(|letter| "unP".contains(letter)) => {
            "each option is a word of its own: -u -P ALL".to_owned()
        }
        Some(letter @ ('n' | 'P')) => format!("-{letter} and its list are two words: -{letter} {}", &letters[1..]),
        _ => "the reports here are -u and -n".to_owned(),
    };
    Answer::Wrong(format!("sar: {word}: {why}\n{USAGE}"))
}

fn list(text: &str) -> Vec<String> {
    text.split(',').filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

/// Parses `ALL` or a list of numbers, ranges and `all`.
fn cores(text: &str) -> Result<Cores, Answer> {
    /// The most cores that Linux supports.
    const CORES_MAX: u32 = 8192;
    if text == "ALL" {
        return Ok(Cores::Every);
    }
    let wrong = || Answer::Wrong(format!("sar: -P {text}: a list such as 0,2-3,all, or ALL\n{USAGE}"));
    let mut names = Vec::new();
    for item in list(text) {
        if item == "all" {
            names.push(item);
            continue;
        }
        let (first, last) = item.split_once('-').unwrap_or((&item, &item));
        let bounds = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
        let (first, last) = bounds.filter(|(first, last)| first <= last && *last < CORES_MAX).ok_or_else(wrong)?;
        names.extend((first..=last).map(|core| core.to_string()));
    }
    if names.is_empty() { Err(wrong()) } else { Ok(Cores::Named(names)) }
}

#[derive(Default)]
struct SarArguments {
    cpu: Option<&'static str>,
    keywords: Vec<&'static str>,
    /// Whether all reports of the network are asked for, whichever the kernel has.
    is_all: bool,
    cores: Option<Cores>,
    interfaces: Vec<String>,
    decimals: Option<usize>,
    interval_s: Option<u64>,
    count: Option<u64>,
}

impl SarArguments {
    fn network(&mut self, text: &str) -> Result<(), Answer> {
        let known: Vec<&str> =
            REPORTS.iter().map(|report| report.keyword).filter(|keyword| !keyword.starts_with('-')).collect();
        let unknown =
            |item: &str| Answer::Wrong(format!("sar: -n {item}: the keywords are {}\n{USAGE}", known.join(",")));
        for item in list(text) {
            match known.iter().find(|keyword| **keyword == item) {
                _ if item == "ALL" => {
                    self.keywords.extend(&known);
                    self.is_all = true;
                }
                Some(keyword) => self.keywords.push(keyword),
                None => return Err(unknown(&item)),
            }
        }
        if self.keywords.is_empty() { Err(unknown("")) } else { Ok(()) }
    }

    fn number(&mut self, word: &str) -> Result<(), Answer> {
        let wrong = |why: &str| Answer::Wrong(format!("sar: {why}\n{USAGE}"));
        let number = word.parse().map_err(|_| wrong(&format!("{word}: not an option, and not a number")))?;
        match (self.interval_s, self.count) {
            (None, _) => self.interval_s = Some(number),
            (Some(interval), None) if number == 0 => {
                return Err(wrong(&format!("{interval} {word}: the count is at least 1")));
            }
            (Some(_), None) => self.count = Some(number),
            (Some(_), Some(_)) => return Err(wrong(&format!("{word}: nothing follows the interval and the count"))),
        }
        Ok(())
    }

    fn options(self) -> Result<Options, Answer> {
        let interval_s = self.interval_s.ok_or_else(|| {
            let why = "without an interval sar reads the files of sadc, which fathom does not";
            Answer::Wrong(format!("sar: {why}: sar 1, or fathom watch\n{USAGE}"))
        })?;
        let cpu = self.cpu.or_else(|| (self.keywords.is_empty()).then_some(CPU));
        let is_asked = |report: &&Report| Some(report.keyword) == cpu || self.keywords.contains(&report.keyword);
        Ok(Options {
            reports: REPORTS.iter().filter(is_asked).collect(),
            is_all: self.is_all,
            cores: self.cores.unwrap_or(Cores::Together),
            interfaces: self.interfaces,
            decimals: self.decimals.unwrap_or(2),
            interval_s,
            count: if interval_s == 0 { Some(1) } else { self.count },
        })
    }
}

impl Options {
    /// Returns true if a report has one row only, whatever the host is.
    pub(super) fn has_one_row(&self, report: &Report) -> bool {
        match report.rows {
            RowsOf::Host => true,
            RowsOf::Interfaces => false,
            RowsOf::Cores | RowsOf::Softnet => match &self.cores {
                Cores::Together => true,
                Cores::Every => false,
                Cores::Named(names) => names.len() == 1,
            },
        }
    }
}
