//! hping3's command line, parsed like hping3 does.

use fathom_model::units::Nanos;
use fathom_probe::{TcpFlags, kinds as probe};

use super::super::getopt::{GetoptDialect, GetoptSyntax, LongOption, ParsedWord, atoi};

/// Letters for long options without one. They cannot be typed on a command line.
const FAST: char = '\u{1}';
const FASTER: char = '\u{2}';
const FLOOD: char = '\u{3}';
const BEEP: char = '\u{4}';
const ICMP_TS: char = '\u{5}';
const TCP_EXIT_CODE: char = '\u{6}';
const TCP_MSS: char = '\u{7}';
const TCP_TIMESTAMP: char = '\u{8}';
const TR_KEEP: char = '\u{b}';
const TR_STOP: char = '\u{c}';
const TR_NO_RTT: char = '\u{e}';
const RAND_SOURCE: char = '\u{f}';
/// The size of a fragment with -f but without -m.
const FRAGMENT: u16 = 16;
/// From here on: options that are known and refused.
const UNSUPPORTED_FIRST: char = '\u{e000}';

const fn long(name: &'static str, short: char) -> LongOption {
    LongOption { name, short }
}

const SYNTAX: GetoptSyntax = GetoptSyntax {
    shorts: "hvc:i:nqI:VDzZ012 8:9:a:t:N:Wrfxyg:m:o:GH:C:K:s:p:kw:O:QbM:L:FSRPAUXYd:E:e:jJBuT\
             \u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}:\u{8}\u{b}\u{c}\u{e}\u{f}\u{e000}\u{e001}:\u{e003}\u{e004}",
    longs: &[
        long("help", 'h'),
        long("version", 'v'),
        long("count", 'c'),
        long("interval", 'i'),
        long("fast", FAST),
        long("faster", FASTER),
        long("flood", FLOOD),
        long("numeric", 'n'),
        long("quiet", 'q'),
        long("interface", 'I'),
        long("verbose", 'V'),
        long("debug", 'D'),
        long("bind", 'z'),
        long("unbind", 'Z'),
        long("beep", BEEP),
        long("rawip", '0'),
        long("icmp", '1'),
        long("udp", '2'),
        long("scan", '8'),
        long("listen", '9'),
        long("spoof", 'a'),
        long("rand-dest", UNSUPPORTED_FIRST),
        long("rand-source", RAND_SOURCE),
        long("ttl", 't'),
        long("id", 'N'),
        long("winid", 'W'),
        long("rel", 'r'),
        long("frag", 'f'),
        long("morefrag", 'x'),
        long("dontfrag", 'y'),
        long("fragoff", 'g'),
        long("mtu", 'm'),
        long("tos", 'o'),
        long("rroute", 'G'),
        long("lsrr", '\u{e001}'),
        long("ssrr", '\u{e001}'),
        long("ipproto", 'H'),
        long("icmptype", 'C'),
        long("icmpcode", 'K'),
        long("force-icmp", '\u{e003}'),
        long("icmp-gw", '\u{e001}'),
        long("icmp-ts", ICMP_TS),
        long("icmp-addr", '\u{e004}'),
        long("baseport", 's'),
        long("destport", 'p'),
        long("keep", 'k'),
        long("win", 'w'),
        long("tcpoff", 'O'),
        long("seqnum", 'Q'),
        long("badcksum", 'b'),
        long("setseq", 'M'),
        long("setack", 'L'),
        long("fin", 'F'),
        long("syn", 'S'),
        long("rst", 'R'),
        long("push", 'P'),
        long("ack", 'A'),
        long("urg", 'U'),
        long("xmas", 'X'),
        long("ymas", 'Y'),
        long("tcpexitcode", TCP_EXIT_CODE),
        long("tcp-mss", TCP_MSS),
        long("tcp-timestamp", TCP_TIMESTAMP),
        long("data", 'd'),
        long("file", 'E'),
        long("sign", 'e'),
        long("dump", 'j'),
        long("print", 'J'),
        long("safe", 'B'),
        long("end", 'u'),
        long("traceroute", 'T'),
        long("tr-keep-ttl", TR_KEEP),
        long("tr-stop", TR_STOP),
        long("tr-no-rtt", TR_NO_RTT),
    ],
    dialect: GetoptDialect::Gnu,
};

/// Options of hping3 that are not supported, with the alternative.
const UNSUPPORTED: &[(char, &str, &str)] = &[
    ('\u{e001}', "--lsrr, --ssrr and --icmp-gw", "leave it out: routers drop source routes and redirects (RFC 7126)"),
    ('\u{e000}', "--rand-dest", "fathom packet, in a lab: many flows to one host"),
    ('\u{e003}', "--force-icmp", "leave it out: every type is sent"),
    ('\u{e004}', "--icmp-addr", "--icmp-ts: hosts no longer answer address mask requests (RFC 6918)"),
    ('O', "--tcpoff", "fathom packet, in a lab: a line of text makes any header"),
    ('W', "--winid", "leave it out: identifications are in network order"),
    ('D', "--debug", "-V, or tcpdump"),
    ('z', "--bind", "-t or -p, which take any value"),
    ('B', "--safe", "a transport that does not lose: fathom tcp"),
    ('u', "--end", "a transport that does not lose: fathom tcp"),
];

/// The type of the sent packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mode {
    Tcp,
    Raw,
    Icmp,
    Udp,
    /// The ports of a scan, as given.
    Scan(String),
    /// No packets are sent; received data after this signature is printed.
    Listen(String),
}

/// The condition for moving to the next port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortStep {
    Never,
    /// `-p +80`: after each reply.
    ByReply,
    /// `-p ++80`: after each packet.
    ByPacket,
}

/// The options of an hping3 command line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are the switches of a command line")]
pub(super) struct Options {
    pub(super) host: String,
    pub(super) mode: Mode,
    pub(super) count: Option<u64>,
    pub(super) interval: Nanos,
    pub(super) flood: bool,
    pub(super) numeric: bool,
    pub(super) quiet: bool,
    pub(super) verbose: bool,
    pub(super) beep: bool,
    pub(super) interface: Option<String>,
    pub(super) spoof: Option<String>,
    pub(super) ttl: Option<u8>,
    pub(super) id: Option<u16>,
    pub(super) relative_id: bool,
    pub(super) dont_fragment: bool,
    pub(super) more_fragments: bool,
    pub(super) fragment_offset: u16,
    /// The largest payload after the IP header, if fragmentation was requested.
    pub(super) virtual_mtu: Option<u16>,
    pub(super) record_route: bool,
    pub(super) random_source: bool,
    pub(super) tos: u8,
    pub(super) protocol: u8,
    pub(super) icmp: (u8, u8),
    pub(super) base_port: Option<u16>,
    pub(super) port: u16,
    pub(super) stepping: PortStep,
    pub(super) keep: bool,
    pub(super) window: u16,
    pub(super) sequence_only: bool,
    pub(super) sequence: Option<u32>,
    pub(super) acknowledgment: Option<u32>,
    pub(super) flags: TcpFlags,
    pub(super) mss: Option<u16>,
    pub(super) timestamp: bool,
    pub(super) flags_are_exit_code: bool,
    pub(super) bad_checksum: bool,
    pub(super) data: u16,
    pub(super) file: Option<String>,
    pub(super) sign: String,
    pub(super) dump: bool,
    pub(super) print: bool,
    pub(super) traceroute: bool,
    pub(super) keep_ttl: bool,
    pub(super) stops_at_host: bool,
    pub(super) without_hop_rtt: bool,
}

impl Options {
    /// Returns true if it sends no faster than ping, which needs no permission. A fragmented packet counts as several packets.
    pub(super) fn is_at_pace_of_ping(&self) -> bool {
        let is_single = !matches!(self.mode, Mode::Scan(_)) && self.virtual_mtu.is_none();
        is_single && !self.flood && self.interval >= probe::PING_INTERVAL
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: String::new(),
            mode: Mode::Tcp,
            count: None,
            interval: Nanos::from_secs(1),
            flood: false,
            numeric: false,
            quiet: false,
            verbose: false,
            beep: false,
            interface: None,
            spoof: None,
            ttl: None,
            id: None,
            relative_id: false,
            dont_fragment: false,
            more_fragments: false,
            fragment_offset: 0,
            virtual_mtu: None,
            record_route: false,
            random_source: false,
            tos: 0,
            protocol: 6,
            icmp: (8, 0),
            base_port: None,
            port: 0,
            stepping: PortStep::Never,
            keep: false,
            // hping3's documentation says 64, but it sends 512.
            window: 512,
            sequence_only: false,
            sequence: None,
            acknowledgment: None,
            flags: TcpFlags(0),
            mss: None,
            timestamp: false,
            flags_are_exit_code: false,
            bad_checksum: false,
            data: 0,
            file: None,
            sign: String::new(),
            dump: false,
            print: false,
            traceroute: false,
            keep_ttl: false,
            stops_at_host: false,
            without_hop_rtt: false,
        }
    }
}

/// The reason why reading ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EarlyExit {
    /// hping3's message for an invalid command line.
    Invalid(String),
    /// An unsupported option and the alternative.
    Unsupported(&'static str, &'static str),
    Help,
    Version,
}

fn invalid<T>(what: impl Into<String>) -> Result<T, EarlyExit> {
    Err(EarlyExit::Invalid(what.into()))
}

pub(super) fn read(words: &[String]) -> Result<Options, EarlyExit> {
    if words.is_empty() {
        return Err(EarlyExit::Help);
    }
    let mut options = Options::default();
    let mut hosts = Vec::new();
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option(letter, value) => {
                if let Some((_, name, instead)) = UNSUPPORTED.iter().find(|(known, ..)| *known == letter) {
                    return Err(EarlyExit::Unsupported(name, instead));
                }
                option(&mut options, letter, value.as_deref().unwrap_or_default())?;
            }
            ParsedWord::Operand(word) => hosts.push(word),
            ParsedWord::Error(text) => {
                // hping3's own getopt uses different opening and closing quotation marks.
                let text = text.replacen('\'', "`", 1);
                return invalid(format!("hping3: {text}\nTry hping3 --help\n"));
            }
        }
    }
    reserve_signature(&mut options)?;
    match (hosts.as_slice(), &options.mode) {
        ([host], _) => Ok(Options { host: host.clone(), ..options }),
        ([], Mode::Listen(_)) => Ok(options),
        _ => invalid("you must specify only one target host at a time\n"),
    }
}

/// Makes space for the signature if no data size was given.
fn reserve_signature(options: &mut Options) -> Result<(), EarlyExit> {
    /// The maximum data size after the longest headers, with some reserve, as in hping3.
    const DATA_MAX: u16 = u16::MAX - 512;
    if options.data > DATA_MAX {
        return invalid(format!("Option error: sorry, data size must be <= {DATA_MAX}\n"));
    }
    let length = options.sign.len();
    if options.data == 0 {
        options.data = u16::try_from(length).unwrap_or(u16::MAX).min(DATA_MAX);
    }
    if length > options.data.into() {
        return invalid(format!(
            "Option error: signature ({length} bytes) is larger than data size\n\
             check -d option, don't specify -d to let hping compute it\n"
        ));
    }
    Ok(())
}

fn number<T: TryFrom<i64>>(value: &str, name: &str) -> Result<T, EarlyExit> {
    let parsed = value.parse::<i64>().ok().and_then(|n| T::try_from(n).ok());
    parsed.map_or_else(|| invalid(format!("Option error: {name} does not take `{value}`\n")), Ok)
}

fn option(options: &mut Options, letter: char, value: &str) -> Result<(), EarlyExit> {
    match letter {
        'h' => return Err(EarlyExit::Help),
        'v' => return Err(EarlyExit::Version),
        'c' => {
            let count = u64::try_from(atoi(value)).ok().filter(|count| *count > 0);
            options.count = Some(count.map_or_else(|| invalid("Option error: count must > 0\n"), Ok)?);
        }
        'i' => options.interval = interval(value)?,
        FAST => options.interval = Nanos::from_millis(10),
        FASTER => options.interval = Nanos::from_millis(1),
        FLOOD => options.flood = true,
        'n' => options.numeric = true,
        'q' => options.quiet = true,
        'V' => options.verbose = true,
        BEEP => options.beep = true,
        'I' => options.interface = Some(value.to_owned()),
        '0' => options.mode = Mode::Raw,
        '1' => options.mode = Mode::Icmp,
        '2' => options.mode = Mode::Udp,
        '8' => options.mode = Mode::Scan(value.to_owned()),
        '9' => options.mode = Mode::Listen(value.to_owned()),
        'j' => options.dump = true,
        'J' => options.print = true,
        'T' => options.traceroute = true,
        TR_KEEP => options.keep_ttl = true,
        TR_STOP => options.stops_at_host = true,
        TR_NO_RTT => options.without_hop_rtt = true,
        'd' => options.data = number(value, "data")?,
        'E' => options.file = Some(value.to_owned()),
        'e' => value.clone_into(&mut options.sign),
        'Z' => {}
        _ => return header(options, letter, value),
    }
    Ok(())
}

/// Reads the options that set a header field.
fn header(options: &mut Options, letter: char, value: &str) -> Result<(), EarlyExit> {
    match letter {
        'a' => options.spoof = Some(value.to_owned()),
        't' => options.ttl = Some(number(value, "ttl")?),
        'N' => options.id = Some(number(value, "id")?),
        'r' => options.relative_id = true,
        'y' => options.dont_fragment = true,
        'f' => options.virtual_mtu = options.virtual_mtu.or(Some(FRAGMENT)),
        'x' => options.more_fragments = true,
        'g' => options.fragment_offset = number(value, "fragoff")?,
        'm' => options.virtual_mtu = Some(number(value, "mtu")?),
        'G' => options.record_route = true,
        'b' => options.bad_checksum = true,
        RAND_SOURCE => options.random_source = true,
        'o' => {
            let tos = u8::from_str_radix(value.trim_start_matches("0x"), 16);
            options.tos = tos.map_or_else(|_| invalid(format!("Option error: tos does not take `{value}`\n")), Ok)?;
        }
        'H' => options.protocol = number(value, "ipproto")?,
        'C' => (options.mode, options.icmp.0) = (Mode::Icmp, number(value, "icmptype")?),
        'K' => (options.mode, options.icmp.1) = (Mode::Icmp, number(value, "icmpcode")?),
        ICMP_TS => (options.mode, options.icmp.0) = (Mode::Icmp, fathom_probe::TIMESTAMP),
        's' => options.base_port = Some(number(value, "baseport")?),
        'p' => {
            let rest = value.trim_start_matches('+');
            options.stepping = match value.len() - rest.len() {
                0 => PortStep::Never,
                1 => PortStep::ByReply,
                _ => PortStep::ByPacket,
            };
            options.port = number(rest, "destport")?;
        }
        'k' => options.keep = true,
        'w' => options.window = number(value, "win")?,
        'Q' => options.sequence_only = true,
        'M' => options.sequence = Some(number(value, "setseq")?),
        'L' => options.acknowledgment = Some(number(value, "setack")?),
        TCP_MSS => options.mss = Some(number(value, "tcp-mss")?),
        TCP_TIMESTAMP => options.timestamp = true,
        TCP_EXIT_CODE => options.flags_are_exit_code = true,
        _ => {
            let flags = [
                ('F', 0x01),
                ('S', 0x02),
                ('R', 0x04),
                ('P', 0x08),
                ('A', 0x10),
                ('U', 0x20),
                ('X', 0x40),
                ('Y', 0x80),
            ];
            let (_, flag) = flags.into_iter().find(|(known, _)| *known == letter).expect("every letter is known");
            options.flags = options.flags.with(TcpFlags(flag));
        }
    }
    Ok(())
}

/// Reads seconds, or microseconds after a `u`.
fn interval(value: &str) -> Result<Nanos, EarlyExit> {
    let (digits, unit) = value.strip_prefix('u').map_or((value, 1_000_000_000), |micros| (micros, 1_000));
    let parsed = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    // `--flood` is the option for a zero interval. Here, like hping3, zero means one microsecond.
    parsed.map_or_else(|| invalid("Option error: interval must > 0\n"), |nanos| Ok(Nanos(nanos.max(1_000))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(line: &str) -> Result<Options, EarlyExit> {
        read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn few_single_packets_are_at_the_pace_of_ping() {
        for (line, expected) in [
            ("host", true),
            ("-S -p 80 -c 3 -i u100000 host", true),
            ("-T host", true),
            ("-i u99999 host", false),
            ("--fast host", false),
            ("--flood host", false),
            ("-S -8 1-100 host", false),
            ("-f -d 1000 host", false),
        ] {
            assert_eq!(reading(line).unwrap().is_at_pace_of_ping(), expected, "{line}");
        }
    }

    #[test]
    fn hping3_s_options_are_read_in_every_form() {
        let options =
            reading("-S -p ++80 -i u100 -c 3 -t 5 -N 7 -o 10 -w 99 -s 5000 -k -M 100 -L 7 -d 20 -n host").unwrap();
        assert_eq!((options.flags, options.port, options.stepping), (TcpFlags::SYN, 80, PortStep::ByPacket));
        assert_eq!((options.interval, options.count, options.ttl), (Nanos::from_micros(100), Some(3), Some(5)));
        assert_eq!((options.id, options.tos, options.window, options.base_port), (Some(7), 0x10, 99, Some(5000)));
        assert_eq!((options.sequence, options.acknowledgment, options.data), (Some(100), Some(7), 20));
        assert_eq!(options.host, "host");
        assert_eq!(reading("host --scan 1-30,80 --syn").unwrap().mode, Mode::Scan("1-30,80".to_owned()));
        assert_eq!(reading("-C 13 host").unwrap().icmp, (13, 0));
        assert_eq!(reading("--icmp-ts host").unwrap().icmp.0, 13);
        assert_eq!(reading("-SAFX host").unwrap().flags, TcpFlags(0x53));
        assert_eq!(reading("--faster host").unwrap().interval, Nanos::from_millis(1));
        assert_eq!(reading("-p +9 -i 2 host").unwrap().stepping, PortStep::ByReply);
        let fragments =
            |line| reading(line).map(|read| (read.virtual_mtu, read.more_fragments, read.fragment_offset)).unwrap();
        assert_eq!(fragments("-f host"), (Some(16), false, 0));
        assert_eq!(fragments("-m 24 -f -x -g 8 host"), (Some(24), true, 8));
        assert_eq!(reading("--listen SIGN").unwrap().mode, Mode::Listen("SIGN".to_owned()));
        assert_eq!(reading("-e SIGN host").unwrap().data, 4);
        assert_eq!(reading("-e SIGN -d 9 host").unwrap().data, 9);
    }

    #[test]
    fn what_hping3_refuses_is_refused_in_its_words_and_what_is_not_done_is_named() {
        let cases = [
            ("-c x host", "Option error: count must > 0\n"),
            ("--nosuch host", "hping3: unrecognized option `--nosuch'\nTry hping3 --help\n"),
            ("-S", "you must specify only one target host at a time\n"),
            ("-t 300 host", "Option error: ttl does not take `300`\n"),
            ("-i u host", "Option error: interval must > 0\n"),
            (
                "-e SIGN -d 3 host",
                "Option error: signature (4 bytes) is larger than data size\n\
                 check -d option, don't specify -d to let hping compute it\n",
            ),
            ("-d 65535 host", "Option error: sorry, data size must be <= 65023\n"),
        ];
        for (line, said) in cases {
            assert_eq!(reading(line), Err(EarlyExit::Invalid(said.to_owned())), "{line}");
        }
        for (line, name) in [
            ("-z host", "--bind"),
            ("--lsrr x host", "--lsrr, --ssrr and --icmp-gw"),
            ("--rand-dest host", "--rand-dest"),
        ] {
            assert!(matches!(reading(line), Err(EarlyExit::Unsupported(named, _)) if named == name), "{line}");
        }
        assert_eq!(reading(""), Err(EarlyExit::Help));
        assert_eq!(reading("-v"), Err(EarlyExit::Version));
    }

    #[test]
    fn every_letter_of_the_syntax_means_something() {
        for letter in SYNTAX.shorts.chars().filter(|letter| !matches!(letter, ':' | ' ')) {
            let mut options = Options::default();
            if UNSUPPORTED.iter().all(|(known, ..)| *known != letter) {
                // Every letter is known; only an invalid value is an error.
                let _ = option(&mut options, letter, "1");
            }
        }
    }
}
