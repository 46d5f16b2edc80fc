//! iperf's options, their meaning, and iperf's messages for invalid ones.

use std::net::IpAddr;

use fathom_interop::iperf2::{PORT, SocketSetup, TestAmount, TestMode, TransportProtocol, UDP_RATE};
use fathom_model::units::{Bytes, Nanos, rounded};
use fathom_sys::policy::Network;

use super::units::{NumberFormat, read_number, read_whole};
use crate::getopt::{GetoptDialect, GetoptSyntax, LongOption, ParsedWord, atoi};

/// The release whose text is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum TextRelease {
    /// 2.0.5 to 2.0.13.
    V20,
    /// 2.1.8, as in Debian 12.
    #[default]
    V21,
    /// 2.2.0 and later.
    V22,
}

/// The options of an iperf command line.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) role: Option<Iperf2Role>,
    pub(super) protocol: TransportProtocol,
    pub(super) port: Option<u16>,
    pub(super) format: NumberFormat,
    pub(super) interval: Option<Nanos>,
    pub(super) amount: Option<TestAmount>,
    /// Bits per second; zero means no limit.
    pub(super) rate: Option<u64>,
    pub(super) length: Option<usize>,
    pub(super) n_flows: Option<u32>,
    pub(super) mode: TestMode,
    pub(super) listen_port: Option<u16>,
    pub(super) bind: Option<IpAddr>,
    pub(super) bind_port: Option<u16>,
    pub(super) flags: FlagSet,
    pub(super) setup: SocketSetup,
    pub(super) release: TextRelease,
    /// Where a server may send datagrams.
    pub(super) back: Vec<Network>,
}

/// The role of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Iperf2Role {
    Client(String),
    Server,
}

/// Options without a value, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FlagSet(u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flag {
    Enhanced,
    Ipv6,
    TripTimes,
    SourcePerFlow,
    NoHeader,
    Csv,
    PrintMss,
    SumOnly,
    Single,
}

impl FlagSet {
    pub(super) const fn has(self, flag: Flag) -> bool {
        self.0 & (1 << flag as u8) != 0
    }

    fn add(&mut self, flag: Flag) {
        self.0 |= 1 << flag as u8;
    }
}

/// An error message in iperf's words, or in ours where iperf has none.
pub(super) type OptionFault = String;

type ApplyOption = fn(&mut Options, &str) -> Result<(), OptionFault>;

/// One option: its letter (a private one if it has only a name), whether it takes a value, its effect, and its help.
#[derive(Debug)]
struct OptionSpec {
    letter: char,
    name: &'static str,
    value: Option<&'static str>,
    take: ApplyOption,
    about: &'static str,
}

const fn row(
    letter: char,
    name: &'static str,
    value: Option<&'static str>,
    take: ApplyOption,
    about: &'static str,
) -> OptionSpec {
    OptionSpec { letter, name, value, take, about }
}

const fn private_letter(n: u32) -> char {
    match char::from_u32(0xe000 + n) {
        Some(letter) => letter,
        None => panic!("a private letter"),
    }
}

macro_rules! flag {
    ($flag:ident) => {
        |options, _| {
            options.flags.add(Flag::$flag);
            Ok(())
        }
    };
}

fn port(text: &str) -> Result<u16, OptionFault> {
    u16::try_from(atoi(text)).ok().filter(|port| *port > 0).ok_or_else(|| format!("invalid port '{text}'"))
}

fn mode(options: &mut Options, mode: TestMode) -> Result<(), OptionFault> {
    if options.mode != TestMode::Forward && options.mode != mode {
        return Err("ERROR: options of --full-duplex, --reverse, -d and -r are mutually exclusive".to_owned());
    }
    options.mode = mode;
    Ok(())
}

fn time(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let secs: f64 = text.parse().map_err(|_| format!("ERROR: -t value of '{text}' not recognized"))?;
    if secs <= 0.0 {
        return Err("fathom runs no test without an end: give -t a time above 0".to_owned());
    }
    options.amount = Some(TestAmount::Time(Nanos::from_secs_f64(secs)));
    Ok(())
}

fn rate(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    if text.contains(['p', 'P']) {
        return Err("fathom takes a rate in bits per second only".to_owned());
    }
    let rate = read_number(text).filter(|rate| *rate >= 0.0).ok_or_else(|| format!("invalid rate '{text}'"))?;
    options.rate = Some(rounded(rate));
    Ok(())
}

fn bind(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let invalid = || format!("invalid address '{text}' to bind to");
    let (address, port_text) = match text.rsplit_once(':') {
        Some((address, port)) if !address.contains(':') => (address, Some(port)),
        Some((address, port)) if address.starts_with('[') => (address.trim_matches(['[', ']']), Some(port)),
        _ => (text, None),
    };
    options.bind = Some(address.parse().map_err(|_| invalid())?);
    options.bind_port = port_text.map(port).transpose()?;
    Ok(())
}

fn interval(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let secs: f64 = text.parse().map_err(|_| format!("Invalid value of '{text}' for -i interval"))?;
    options.interval = Some(Nanos::from_secs_f64(secs.max(0.0))).filter(|interval| *interval > Nanos::ZERO);
    if options.interval.is_some_and(|interval| interval < Nanos::from_millis(5)) {
        return Err("an interval is at least 0.005 seconds".to_owned());
    }
    Ok(())
}

fn length(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    const LENGTH_MAX: u64 = 4 << 20;
    let length = read_whole(text).filter(|length| (1..=LENGTH_MAX).contains(length));
    let length = length.ok_or_else(|| format!("invalid length '{text}': 1 byte to 4 MiB"))?;
    options.length = Some(usize::try_from(length).expect("4 MiB at most"));
    Ok(())
}

/// Reads a type of service: a number in any base of C, or a name (RFC 1349, RFC 2474).
fn tos(text: &str) -> Option<u8> {
    let text = text.to_ascii_lowercase();
    let digits = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.parse::<u8>().ok());
    match text.as_str() {
        "lowdelay" => return Some(0x10),
        "throughput" => return Some(0x08),
        "reliability" | "le" => return Some(0x04),
        "ef" => return Some(0xb8),
        _ => {}
    }
    if let Some(class) = digits("cs").filter(|class| *class < 8) {
        return Some(class << 5);
    }
    if let Some(af) = digits("af").filter(|af| (1..=4).contains(&(af / 10)) && (1..=3).contains(&(af % 10))) {
        return Some((af / 10 * 8 + af % 10 * 2) << 2);
    }
    match text.strip_prefix("0x") {
        Some(digits) => u8::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u8::from_str_radix(&text[1..], 8).ok(),
        None => text.parse().ok(),
    }
}

fn release(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    options.release = match text {
        "2.0" => TextRelease::V20,
        "2.1" => TextRelease::V21,
        "2.2" => TextRelease::V22,
        _ => return Err(format!("there is no text of '{text}': use 2.0, 2.1 or 2.2")),
    };
    Ok(())
}

const SIZE: Option<&str> = Some("#[kmKM]");
const NUMBER: Option<&str> = Some("#");

/// All options of both roles.
static OPTIONS: &[OptionSpec] = &[
    row(
        's',
        "server",
        None,
        |options, _| {
            options.role.get_or_insert(Iperf2Role::Server);
            Ok(())
        },
        "run as a server",
    ),
    row(
        'c',
        "client",
        Some("<host>"),
        |options, text| {
            options.role.get_or_insert(Iperf2Role::Client(text.to_owned()));
            Ok(())
        },
        "run as a client, connecting to <host>",
    ),
    row(
        'u',
        "udp",
        None,
        |options, _| {
            options.protocol = TransportProtocol::Udp;
            Ok(())
        },
        "use UDP rather than TCP",
    ),
    row('b', "bandwidth", Some("#[kmgKMG]"), rate, "rate of each flow in bits/sec (UDP: 1 Mbit/sec unless given)"),
    row('t', "time", NUMBER, time, "seconds to send (default 10), or to serve"),
    row(
        'n',
        "num",
        SIZE,
        |options, text| {
            let bytes = read_whole(text).filter(|bytes| *bytes > 0);
            options.amount =
                Some(TestAmount::Bytes(bytes.ok_or_else(|| format!("Invalid value for -n amount of '{text}'"))?));
            Ok(())
        },
        "bytes to send instead of a time",
    ),
    row('i', "interval", NUMBER, interval, "seconds between reports"),
    row('l', "len", SIZE, length, "bytes to write or read (TCP: 128K, UDP: 1470, over IPv6 1450)"),
    row(
        'P',
        "parallel",
        NUMBER,
        |options, text| {
            let n = u32::try_from(atoi(text)).ok().filter(|n| (1..=256).contains(n));
            options.n_flows = Some(n.ok_or_else(|| format!("invalid number of flows '{text}': 1 to 256"))?);
            Ok(())
        },
        "parallel flows; a server ends after so many",
    ),
    row(
        'p',
        "port",
        NUMBER,
        |options, text| port(text).map(|port| options.port = Some(port)),
        "port to listen on or connect to (default 5001)",
    ),
    row(
        'w',
        "window",
        SIZE,
        |options, text| {
            options.setup.window = read_whole(text).filter(|size| *size > 0).map(Bytes);
            Ok(())
        },
        "size of the socket buffers",
    ),
    row('B', "bind", Some("<ip>[:<port>]"), bind, "address to bind to, and a port for a client"),
    row('V', "ipv6_domain", None, flag!(Ipv6), "use IPv6"),
    row('e', "enhanced", None, flag!(Enhanced), "more columns in reports"),
    row('r', "tradeoff", None, |options, _| mode(options, TestMode::Tradeoff), "test the other direction afterwards"),
    row('d', "dualtest", None, |options, _| mode(options, TestMode::Dual), "test both directions at the same time"),
    row(
        'R',
        "reverse",
        None,
        |options, _| mode(options, TestMode::Reverse),
        "the server sends over the client's connection",
    ),
    row(
        'L',
        "listenport",
        NUMBER,
        |options, text| port(text).map(|port| options.listen_port = Some(port)),
        "port for connections of the server (-d, -r)",
    ),
    row(
        'M',
        "mss",
        NUMBER,
        |options, text| {
            options.setup.mss = u32::try_from(atoi(text)).ok().filter(|mss| *mss > 0);
            options.flags.add(Flag::PrintMss);
            Ok(())
        },
        "maximum segment size",
    ),
    row('m', "print_mss", None, flag!(PrintMss), "print the maximum segment size"),
    row(
        'N',
        "nodelay",
        None,
        |options, _| {
            options.setup.has_no_delay = true;
            Ok(())
        },
        "send small writes at once (TCP_NODELAY)",
    ),
    row(
        'S',
        "tos",
        NUMBER,
        |options, text| {
            options.setup.tos = tos(text).ok_or_else(|| format!("Invalid --tos value of {text}"))?;
            Ok(())
        },
        "type of service, a number or a name",
    ),
    row(
        'Z',
        "tcp-congestion",
        Some("<algo>"),
        |options, text| {
            options.setup.congestion = Some(text.to_owned());
            Ok(())
        },
        "congestion control",
    ),
    row(
        'f',
        "format",
        Some("[kmgKMG]"),
        |options, text| {
            let letter = text.chars().next().filter(|letter| "bkmgtpaBKMGTPA".contains(*letter));
            options.format = NumberFormat(letter.ok_or_else(|| format!("invalid format '{text}'"))?);
            Ok(())
        },
        "unit of rates and volumes",
    ),
    row(
        'y',
        "reportstyle",
        Some("C"),
        |options, text| {
            if !text.eq_ignore_ascii_case("c") {
                return Err(format!("unknown reporting style \"{text}\""));
            }
            options.flags.add(Flag::Csv);
            Ok(())
        },
        "report as comma-separated values",
    ),
    row('C', "compatibility", None, flag!(NoHeader), "send no header, for very old servers"),
    row('1', "singleclient", None, flag!(Single), "serve one flow at a time"),
    row(
        private_letter(0),
        "incr-srcip",
        None,
        flag!(SourcePerFlow),
        "the next source address for each parallel flow; needs -B",
    ),
    row(private_letter(1), "trip-times", None, flag!(TripTimes), "one-way times, from the clocks of both hosts"),
    row(private_letter(2), "sum-only", None, flag!(SumOnly), "print the sum of parallel flows only"),
    row(
        private_letter(4),
        "back",
        Some("<cidr>"),
        |options, text| {
            options.back.push(text.parse().map_err(|_| format!("`{text}` is not an address or a network"))?);
            Ok(())
        },
        "a server sends datagrams there if a client asks, -u with -R, -d or -r (fathom's own option)",
    ),
    row(
        private_letter(3),
        "text",
        Some("2.0|2.1|2.2"),
        release,
        "the release of iperf whose text is printed (fathom's own option; default 2.1)",
    ),
];

/// Returns the options with their descriptions.
pub(super) fn rows() -> Vec<(String, &'static str)> {
    let shown = |row: &OptionSpec| {
        let short = if row.letter.is_ascii() { format!("-{}, ", row.letter) } else { "    ".to_owned() };
        (format!("{short}--{} {}", row.name, row.value.unwrap_or_default()), row.about)
    };
    OPTIONS.iter().map(shown).collect()
}

/// The reason why the command line starts no test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OptionsError {
    /// An error message of getopt.
    Syntax(String),
    /// An invalid value or combination.
    Value(OptionFault),
    /// `-v`.
    Version,
    /// `-h`.
    Help,
    /// Neither `-c` nor `-s`.
    NoRole,
}

pub(super) fn read(words: &[String]) -> Result<Options, OptionsError> {
    let mut shorts = "vh".to_owned();
    for row in OPTIONS {
        shorts.push(row.letter);
        shorts.push_str(if row.value.is_some() { ":" } else { "" });
    }
    // The command line is read only once, so its table may live as long as the program.
    let shorts: &'static str = Box::leak(shorts.into_boxed_str());
    let own = [LongOption { name: "version", short: 'v' }, LongOption { name: "help", short: 'h' }];
    let longs: Vec<LongOption> =
        OPTIONS.iter().map(|row| LongOption { name: row.name, short: row.letter }).chain(own).collect();
    let syntax = GetoptSyntax { shorts, longs: Box::leak(longs.into_boxed_slice()), dialect: GetoptDialect::Gnu };
    let mut options = Options::default();
    for item in syntax.parse(words) {
        match item {
            ParsedWord::Option('v', _) => return Err(OptionsError::Version),
            ParsedWord::Option('h', _) => return Err(OptionsError::Help),
            ParsedWord::Option(letter, value) => {
                let row = OPTIONS.iter().find(|row| row.letter == letter).expect("getopt knows the table");
                (row.take)(&mut options, &value.unwrap_or_default()).map_err(OptionsError::Value)?;
            }
            ParsedWord::Error(text) => return Err(OptionsError::Syntax(text)),
            ParsedWord::Operand(word) => eprintln!("iperf: ignoring extra argument -- {word}"),
        }
    }
    if options.role.is_none() {
        return Err(OptionsError::NoRole);
    }
    options.check().map_err(OptionsError::Value)?;
    Ok(options)
}

impl Options {
    /// Checks combinations of options.
    fn check(&self) -> Result<(), OptionFault> {
        // The header, with the time, has to fit in.
        const TRIP_TIMES_MIN: usize = 128;
        let is_client = matches!(self.role, Some(Iperf2Role::Client(_)));
        let is_udp = self.protocol == TransportProtocol::Udp;
        if self.flags.has(Flag::SourcePerFlow) && self.bind.is_none() {
            return Err("ERROR: option of --incr-srcip requires -B bind option to be set".to_owned());
        }
        let has_extras =
            self.mode != TestMode::Forward || self.flags.has(Flag::TripTimes) || self.flags.has(Flag::Enhanced);
        if self.flags.has(Flag::NoHeader) && has_extras {
            return Err("ERROR: compatibility mode not supported with the requested with options".to_owned());
        }
        if !is_client && self.mode != TestMode::Forward {
            return Err("the options -d, -r and -R are for a client".to_owned());
        }
        if is_udp && self.flags.has(Flag::TripTimes) && self.length.is_some_and(|length| length < TRIP_TIMES_MIN) {
            let length = self.length.unwrap_or_default();
            return Err(format!(
                "ERROR: payload (-l) size of {length} too small for --trip-times, must be {TRIP_TIMES_MIN} or greater"
            ));
        }
        let longest = fathom_interop::iperf2::UDP_LENGTH_MAX;
        if is_udp && self.length.is_some_and(|length| !(16..=longest).contains(&length)) {
            return Err(format!("a datagram has 16 to {longest} bytes"));
        }
        Ok(())
    }

    /// Returns the requested port, or iperf's default.
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(PORT)
    }

    /// Returns the rate of each flow; `None` for no limit.
    pub(super) fn flow_rate(&self) -> Option<u64> {
        let default = if self.protocol == TransportProtocol::Udp { UDP_RATE } else { 0 };
        Some(self.rate.unwrap_or(default)).filter(|rate| *rate > 0)
    }

    /// Whether reports have more columns: one-way times need them.
    pub(super) fn is_enhanced(&self) -> bool {
        self.flags.has(Flag::Enhanced) || (self.flags.has(Flag::TripTimes) && self.mode != TestMode::Forward)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Options, OptionsError> {
        read(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_line_is_read_as_iperf_reads_it() {
        let options =
            of("-c h -u -b 10M -t 2.5 -i1 -P 4 -l 1200 -p 6001 -B 10.0.0.1:7000 -w 256K -e --trip-times").unwrap();
        assert_eq!(options.role, Some(Iperf2Role::Client("h".to_owned())));
        assert_eq!(options.flow_rate(), Some(10 << 20), "an upper-case suffix is binary");
        assert_eq!(options.amount, Some(TestAmount::Time(Nanos::from_millis(2500))));
        assert_eq!(
            (options.port(), options.bind_port, options.n_flows, options.length),
            (6001, Some(7000), Some(4), Some(1200))
        );
        assert_eq!(options.setup.window, Some(Bytes(262_144)));
        assert!(options.is_enhanced());
        assert_eq!(of("-c h -u").unwrap().flow_rate(), Some(UDP_RATE));
        assert_eq!(of("-c h").unwrap().flow_rate(), None);
        assert_eq!(of("-c h -u -b 0").unwrap().flow_rate(), None);
        assert_eq!(of("-c h --rev").unwrap().mode, TestMode::Reverse);
    }

    #[test]
    fn what_cannot_be_is_said_in_iperfs_words() {
        let said = |line: &str| match of(line).unwrap_err() {
            OptionsError::Value(text) | OptionsError::Syntax(text) => text,
            other => format!("{other:?}"),
        };
        assert!(said("-c h -d -R").contains("mutually exclusive"));
        assert!(said("-c h --incr-srcip").contains("requires -B"));
        assert!(said("-c h -t x").contains("not recognized"));
        assert!(said("-c h -C -e").contains("compatibility mode"));
        assert!(said("-c h -u -l 70000").contains("16 to 65507"));
        assert_eq!(said("-e"), "NoRole");
        assert_eq!(said("-Q"), "invalid option -- 'Q'");
    }

    #[test]
    fn a_type_of_service_has_a_number_or_a_name() {
        let cases = [("0x10", 16), ("ef", 184), ("cs1", 32), ("af11", 40), ("010", 8), ("lowdelay", 16)];
        for (text, number) in cases {
            assert_eq!(tos(text), Some(number), "{text}");
        }
        assert_eq!(tos("x"), None);
    }
}
