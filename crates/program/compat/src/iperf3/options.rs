//! iperf3's options, their meaning, and iperf3's messages for invalid ones.

use std::path::PathBuf;

use fathom_interop::iperf3::{PORT, ParameterFlag, Parameters, TransferDirection, TransportProtocol};
use fathom_model::units::{Bytes, Nanos};

use super::units::{self, RateFormat};
use crate::getopt::{GetoptDialect, GetoptSyntax, LongOption, ParsedWord, atoi};

/// The options of an iperf3 command line.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub(super) role: Option<Iperf3Role>,
    pub(super) port: Option<u16>,
    pub(super) format: RateFormat,
    /// `None` means every second, zero means never.
    pub(super) interval: Option<Nanos>,
    pub(super) pidfile: Option<PathBuf>,
    pub(super) core: Option<usize>,
    pub(super) bind: Option<String>,
    pub(super) device: Option<String>,
    pub(super) logfile: Option<PathBuf>,
    pub(super) timestamps: Option<String>,
    pub(super) receive_timeout: Option<Nanos>,
    pub(super) send_timeout: Option<Nanos>,
    pub(super) connect_timeout: Option<Nanos>,
    pub(super) keepalive: Option<Nanos>,
    pub(super) family: IpFamily,
    pub(super) flags: FlagSet,
    pub(super) client_port: Option<u16>,
    pub(super) username: Option<String>,
    pub(super) public_key: Option<PathBuf>,
    pub(super) private_key: Option<PathBuf>,
    pub(super) users: Option<PathBuf>,
    pub(super) skew_secs: Option<u64>,
    pub(super) rate_limit: Option<(u64, Nanos)>,
    pub(super) longest_secs: Option<u32>,
    pub(super) idle_secs: Option<u64>,
    pub(super) file: Option<PathBuf>,
    pub(super) parameters: Parameters,
    used: Vec<&'static OptionSpec>,
}

/// The role of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Iperf3Role {
    Client(String),
    Server,
}

/// The requested IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum IpFamily {
    #[default]
    Any,
    V4,
    V6,
}

/// Options without a value, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FlagSet(u16);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Flag {
    Json,
    Verbose,
    OneOff,
    OneAtATime,
    Pkcs1,
    Debug,
    /// A rate was given, so the default of UDP does not apply.
    Rate,
    Time,
    Daemon,
    /// Each part of the JSON is printed on a line of its own when it is available.
    JsonStream,
}

impl FlagSet {
    pub(super) const fn has(self, mark: Flag) -> bool {
        self.0 & (1 << mark as u8) != 0
    }

    fn add(&mut self, mark: Flag) {
        self.0 |= 1 << mark as u8;
    }
}

/// The role that an option belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OptionScope {
    Both,
    Client,
    Server,
}
use OptionScope::{Both, Client, Server};

/// An error message in iperf3's words.
pub(super) type OptionFault = &'static str;

type ApplyOption = fn(&mut Options, &str) -> Result<(), OptionFault>;

/// One option: its letter (a private one if it has only a name), whether it takes a value, its role, and its effect.
#[derive(Debug)]
struct OptionSpec {
    letter: char,
    name: &'static str,
    has_value: bool,
    scope: OptionScope,
    take: ApplyOption,
}

const fn row(letter: char, name: &'static str, has_value: bool, scope: OptionScope, take: ApplyOption) -> OptionSpec {
    OptionSpec { letter, name, has_value, scope, take }
}

const HAS_VALUE: bool = true;
const NO_VALUE: bool = false;
const BAD_PORT: OptionFault = "port number must be between 1 and 65535 inclusive";
const BAD_TOS: OptionFault = "bad TOS value (must be between 0 and 255 inclusive)";
const NOT_OFFERED: OptionFault = "an option you are trying to set is not implemented yet";
const NO_SCTP: OptionFault = "no SCTP support available";
const MANY_ENDS: OptionFault = "only one test end condition (-t, -n, -k) may be specified";

fn port(text: &str) -> Result<u16, OptionFault> {
    u16::try_from(atoi(text)).ok().filter(|port| *port > 0).ok_or(BAD_PORT)
}

fn within(number: Option<u64>, (least, most): (u64, u64), fault: OptionFault) -> Result<u64, OptionFault> {
    number.filter(|number| (least..=most).contains(number)).ok_or(fault)
}

fn whole(text: &str) -> Option<u64> {
    u64::try_from(atoi(text)).ok()
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("its range was checked")
}

fn millis(text: &str, most: u64, fault: OptionFault) -> Result<Option<Nanos>, OptionFault> {
    within(whole(text), (100, most), fault).map(|millis| Some(Nanos::from_millis(millis)))
}

/// Splits a rate from the text after a slash.
fn rate_and_rest(text: &str) -> (&str, Option<&str>) {
    text.split_once('/').map_or((text, None), |(rate, rest)| (rate, Some(rest)))
}

/// Reads a decimal, octal or hexadecimal number, like C's `strtol`.
fn any_base(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if text.len() > 1 && text.starts_with('0') => u64::from_str_radix(&text[1..], 8).ok(),
        None => text.parse().ok(),
    }
}

/// Returns the code point for a name (RFC 2474, 2597, 3246, 5865, 8622).
fn dscp(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.parse::<u64>().ok());
    match text.as_str() {
        "ef" => return Some(46),
        "va" | "voice-admit" => return Some(44),
        "le" => return Some(1),
        _ => {}
    }
    if let Some(class) = digits("cs").filter(|class| *class < 8) {
        return Some(class * 8);
    }
    if let Some(af) = digits("af").filter(|af| (1..=4).contains(&(af / 10)) && (1..=3).contains(&(af % 10))) {
        return Some(af / 10 * 8 + af % 10 * 2);
    }
    any_base(&text).filter(|code| *code < 64)
}

/// Splits a host from an interface after a percent sign. The scope of an IPv6 address stays with the address.
fn host_and_device(text: &str) -> (String, Option<String>) {
    match text.split_once('%') {
        Some((host, device)) if !host.contains(':') => (host.to_owned(), Some(device.to_owned())),
        _ => (text.to_owned(), None),
    }
}

fn rate(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let (rate, burst) = rate_and_rest(text);
    if let Some(burst) = burst {
        let fault = "invalid burst count (maximum = 1000)";
        options.parameters.burst = narrow(within(whole(burst), (1, 1000), fault)?);
    }
    options.parameters.bitrate = units::read_rate(rate).unwrap_or(0);
    options.flags.add(Flag::Rate);
    Ok(())
}

fn limit(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let (rate, span) = rate_and_rest(text);
    let fault = "averaging interval must be between 0.1 and 60 seconds";
    let span = span.map_or(Ok(5.0), |span| span.parse::<f64>().map_err(|_| fault))?;
    if !(0.1..=60.0).contains(&span) {
        return Err(fault);
    }
    options.rate_limit = units::read_rate(rate).filter(|rate| *rate > 0).map(|rate| (rate, Nanos::from_secs_f64(span)));
    Ok(())
}

fn interval(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let secs: f64 = text.trim().parse().unwrap_or(0.0);
    if secs != 0.0 && !(0.1..=60.0).contains(&secs) {
        return Err("invalid report interval (min = 0.1, max = 60 seconds)");
    }
    options.interval = Some(Nanos::from_secs_f64(secs));
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "one of a table of functions")]
fn affinity(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    let mut cores = text.splitn(2, ',').map(|core| usize::try_from(atoi(core)).ok());
    options.core = cores.next().flatten();
    options.parameters.server_core = cores.next().flatten().and_then(|core| u32::try_from(core).ok());
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "one of a table of functions")]
fn length(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    options.parameters.block = Bytes(units::read_volume(text).unwrap_or(0));
    Ok(())
}

/// Sets a value that cannot be invalid by itself, such as a timeout or a name.
macro_rules! set {
    ($field:ident, |$text:ident| $value:expr) => {
        |options, $text| {
            options.$field = $value;
            Ok(())
        }
    };
}

macro_rules! wish {
    ($wish:ident) => {
        |options, _| {
            options.parameters.flags.add(ParameterFlag::$wish);
            Ok(())
        }
    };
}

macro_rules! mark {
    ($mark:ident) => {
        |options, _| {
            options.flags.add(Flag::$mark);
            Ok(())
        }
    };
}

const fn private_letter(n: u32) -> char {
    match char::from_u32(0xe000 + n) {
        Some(letter) => letter,
        None => panic!("a private letter"),
    }
}

/// All options of both roles.
static OPTIONS: &[OptionSpec] = &[
    row('s', "server", NO_VALUE, Both, |options, _| match options.role.replace(Iperf3Role::Server) {
        Some(Iperf3Role::Client(_)) => Err("cannot be both server and client"),
        _ => Ok(()),
    }),
    row('c', "client", HAS_VALUE, Both, |options, text| {
        let (host, device) = host_and_device(text);
        options.device = device.or(options.device.take());
        match options.role.replace(Iperf3Role::Client(host)) {
            Some(Iperf3Role::Server) => Err("cannot be both server and client"),
            _ => Ok(()),
        }
    }),
    row('p', "port", HAS_VALUE, Both, |options, text| port(text).map(|port| options.port = Some(port))),
    row('f', "format", HAS_VALUE, Both, |options, text| {
        let fault = "bad format specifier (valid formats are in the set [kmgtKMGT])";
        RateFormat::of(text).ok_or(fault).map(|format| options.format = format)
    }),
    row('i', "interval", HAS_VALUE, Both, interval),
    row('I', "pidfile", HAS_VALUE, Both, set!(pidfile, |text| Some(text.into()))),
    row('F', "file", HAS_VALUE, Both, set!(file, |text| Some(text.into()))),
    row('A', "affinity", HAS_VALUE, Both, affinity),
    row('B', "bind", HAS_VALUE, Both, |options, text| {
        let (host, device) = host_and_device(text);
        options.bind = Some(host);
        options.device = device.or(options.device.take());
        Ok(())
    }),
    row(private_letter(0), "bind-dev", HAS_VALUE, Both, set!(device, |text| Some(text.to_owned()))),
    row('V', "verbose", NO_VALUE, Both, mark!(Verbose)),
    row('J', "json", NO_VALUE, Both, mark!(Json)),
    row(private_letter(33), "json-stream", NO_VALUE, Both, |options, _| {
        options.flags.add(Flag::Json);
        options.flags.add(Flag::JsonStream);
        Ok(())
    }),
    row(private_letter(1), "logfile", HAS_VALUE, Both, set!(logfile, |text| Some(text.into()))),
    // Rows are always flushed.
    row(private_letter(2), "forceflush", NO_VALUE, Both, |_, _| Ok(())),
    row(private_letter(3), "timestamps", HAS_VALUE, Both, set!(timestamps, |text| Some(text.to_owned()))),
    row(private_letter(4), "rcv-timeout", HAS_VALUE, Both, |options, text| {
        let fault = "receive timeout value is incorrect or not in range";
        millis(text, 86_400_000, fault).map(|timeout| options.receive_timeout = timeout)
    }),
    row(private_letter(5), "snd-timeout", HAS_VALUE, Both, |options, text| {
        let fault = "send timeout value is incorrect or not in range";
        millis(text, 86_400_000, fault).map(|timeout| options.send_timeout = timeout)
    }),
    row('d', "debug", NO_VALUE, Both, mark!(Debug)),
    row('D', "daemon", NO_VALUE, Server, mark!(Daemon)),
    row('1', "one-off", NO_VALUE, Server, mark!(OneOff)),
    row(private_letter(6), "one-at-a-time", NO_VALUE, Server, mark!(OneAtATime)),
    row(private_letter(7), "server-bitrate-limit", HAS_VALUE, Server, limit),
    row(private_letter(8), "server-max-duration", HAS_VALUE, Server, |options, text| {
        let fault = "test duration too long (maximum = 86400 seconds)";
        within(whole(text), (0, 86_400), fault).map(|secs| options.longest_secs = Some(narrow(secs)))
    }),
    row(private_letter(9), "idle-timeout", HAS_VALUE, Server, |options, text| {
        let fault = "idle timeout parameter is not positive or larger than allowed limit";
        within(whole(text), (1, 86_400), fault).map(|secs| options.idle_secs = Some(secs))
    }),
    row(private_letter(10), "rsa-private-key-path", HAS_VALUE, Server, set!(private_key, |text| Some(text.into()))),
    row(private_letter(11), "authorized-users-path", HAS_VALUE, Server, set!(users, |text| Some(text.into()))),
    row(private_letter(12), "time-skew-threshold", HAS_VALUE, Server, |options, text| {
        let fault = "skew threshold must be a positive number";
        within(whole(text), (1, u64::MAX), fault).map(|secs| options.skew_secs = Some(secs))
    }),
    row(private_letter(13), "use-pkcs1-padding", NO_VALUE, Both, mark!(Pkcs1)),
    row(private_letter(14), "sctp", NO_VALUE, Client, |_, _| Err(NO_SCTP)),
    row('X', "xbind", HAS_VALUE, Client, |_, _| Err(NO_SCTP)),
    row(private_letter(15), "nstreams", HAS_VALUE, Client, |_, _| Err(NO_SCTP)),
    row('u', "udp", NO_VALUE, Client, |options, _| {
        options.parameters.protocol = TransportProtocol::Udp;
        Ok(())
    }),
    row(private_letter(16), "connect-timeout", HAS_VALUE, Client, |options, text| {
        let fault = "connect timeout value is incorrect or not in range";
        within(whole(text), (1, 86_400_000), fault)
            .map(|millis| options.connect_timeout = Some(Nanos::from_millis(millis)))
    }),
    row('b', "bitrate", HAS_VALUE, Client, rate),
    row(private_letter(17), "bandwidth", HAS_VALUE, Client, rate),
    // There is no such timer here: due times are computed from the clock.
    row(private_letter(18), "pacing-timer", HAS_VALUE, Client, |_, _| Ok(())),
    row(private_letter(19), "fq-rate", HAS_VALUE, Client, |options, text| {
        options.parameters.fq_rate = units::read_rate(text).unwrap_or(0);
        Ok(())
    }),
    row(private_letter(20), "no-fq-socket-pacing", NO_VALUE, Client, |options, _| {
        options.parameters.fq_rate = 0;
        Ok(())
    }),
    row('t', "time", HAS_VALUE, Client, |options, text| {
        let fault = "test duration too long (maximum = 86400 seconds)";
        options.parameters.time_secs = narrow(within(whole(text), (0, 86_400), fault)?);
        options.flags.add(Flag::Time);
        Ok(())
    }),
    row(private_letter(34), "cntl-ka", HAS_VALUE, Client, keepalive),
    row(private_letter(35), "gsro", NO_VALUE, Client, |options, _| {
        options.parameters.flags.add(ParameterFlag::SegmentOffload);
        options.parameters.flags.add(ParameterFlag::ReceiveOffload);
        Ok(())
    }),
    row('m', "mptcp", NO_VALUE, Client, wish!(Multipath)),
    row('n', "bytes", HAS_VALUE, Client, |options, text| {
        options.parameters.bytes = units::read_volume(text).unwrap_or(0);
        Ok(())
    }),
    row('k', "blockcount", HAS_VALUE, Client, |options, text| {
        options.parameters.blocks = units::read_volume(text).unwrap_or(0);
        Ok(())
    }),
    row('l', "length", HAS_VALUE, Client, length),
    row(private_letter(21), "cport", HAS_VALUE, Client, |options, text| {
        port(text).map(|port| options.client_port = Some(port))
    }),
    row('P', "parallel", HAS_VALUE, Client, |options, text| {
        let fault = "number of parallel streams too large (maximum = 128)";
        let parallel = within(whole(text), (0, 128), fault)?;
        options.parameters.parallel = narrow(parallel.max(1));
        Ok(())
    }),
    row('R', "reverse", NO_VALUE, Client, |options, _| set_direction(options, TransferDirection::Reverse)),
    row(private_letter(22), "bidir", NO_VALUE, Client, |options, _| set_direction(options, TransferDirection::Both)),
    row('w', "window", HAS_VALUE, Client, |options, text| {
        let fault = "socket buffer size too large (maximum = 536870912 bytes)";
        within(units::read_volume(text), (0, 512 << 20), fault).map(|window| options.parameters.window = Bytes(window))
    }),
    row('C', "congestion", HAS_VALUE, Client, congestion),
    row(private_letter(23), "linux-congestion", HAS_VALUE, Client, congestion),
    row('M', "set-mss", HAS_VALUE, Client, |options, text| {
        let fault = "TCP MSS too large (maximum = 9216 bytes)";
        within(whole(text), (0, 9216), fault).map(|mss| options.parameters.mss = narrow(mss))
    }),
    row('N', "no-delay", NO_VALUE, Client, wish!(NoDelay)),
    row('4', "version4", NO_VALUE, Both, |options, _| {
        options.family = IpFamily::V4;
        Ok(())
    }),
    row('6', "version6", NO_VALUE, Both, |options, _| {
        options.family = IpFamily::V6;
        Ok(())
    }),
    row('S', "tos", HAS_VALUE, Client, |options, text| {
        let tos = any_base(text).and_then(|tos| u8::try_from(tos).ok()).ok_or(BAD_TOS)?;
        options.parameters.tos = tos;
        Ok(())
    }),
    row(private_letter(24), "dscp", HAS_VALUE, Client, |options, text| {
        let code = dscp(text).and_then(|code| u8::try_from(code << 2).ok()).ok_or(BAD_TOS)?;
        options.parameters.tos = code;
        Ok(())
    }),
    row('L', "flowlabel", HAS_VALUE, Client, |options, text| {
        let fault = "unable to set IPv6 flow label";
        let label = within(any_base(text), (1, 0xf_ffff), fault)?;
        options.parameters.flow_label = narrow(label);
        Ok(())
    }),
    row('Z', "zerocopy", NO_VALUE, Client, wish!(ZeroCopy)),
    row(private_letter(25), "skip-rx-copy", NO_VALUE, Client, wish!(SkipReceiveCopy)),
    row('O', "omit", HAS_VALUE, Client, |options, text| {
        within(whole(text), (0, 600), "bogus value for --omit").map(|secs| options.parameters.omit_secs = narrow(secs))
    }),
    row('T', "title", HAS_VALUE, Client, |options, text| {
        options.parameters.title = Some(text.to_owned());
        Ok(())
    }),
    row(private_letter(26), "extra-data", HAS_VALUE, Client, |options, text| {
        options.parameters.extra_data = Some(text.to_owned());
        Ok(())
    }),
    row(private_letter(27), "get-server-output", NO_VALUE, Client, wish!(ServerOutput)),
    row(private_letter(28), "udp-counters-64bit", NO_VALUE, Client, wish!(Counters64)),
    row(private_letter(29), "repeating-payload", NO_VALUE, Client, wish!(RepeatingPayload)),
    row(private_letter(30), "dont-fragment", NO_VALUE, Client, wish!(DontFragment)),
    row(private_letter(31), "username", HAS_VALUE, Client, set!(username, |text| Some(text.to_owned()))),
    row(private_letter(32), "rsa-public-key-path", HAS_VALUE, Client, set!(public_key, |text| Some(text.into()))),
];

fn set_direction(options: &mut Options, way: TransferDirection) -> Result<(), OptionFault> {
    if options.parameters.direction != TransferDirection::Forward && options.parameters.direction != way {
        return Err("cannot be both reverse and bidirectional");
    }
    options.parameters.direction = way;
    Ok(())
}

/// Reads `IDLE/INTERVAL/COUNT`. Missing intervals and counts default to the kernel's.
fn keepalive(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    /// The default of Linux (`tcp_keepalive_time`).
    const IDLE_SECS: u64 = 7200;
    let idle = text.split('/').next().filter(|idle| !idle.is_empty());
    let fault = "control connection keepalive period should be larger than the full retry period (interval * count)";
    let secs = idle.map_or(Ok(IDLE_SECS), |idle| within(whole(idle), (1, 32_767), fault))?;
    options.keepalive = Some(Nanos::from_secs(secs));
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "one of a table of functions")]
fn congestion(options: &mut Options, text: &str) -> Result<(), OptionFault> {
    options.parameters.congestion = Some(text.to_owned());
    Ok(())
}

/// The description of each option by name, with a placeholder such as `N` for its value.
const ABOUT: &[(&str, &str, &str)] = &[
    ("port", "N", "the server's port (5201)"),
    ("format", "kmgtKMGT", "rates in bits (small letter) or bytes with this prefix"),
    ("interval", "SECS", "seconds between rows, 0 for none (1)"),
    ("pidfile", "FILE", "write the process id here"),
    ("file", "NAME", "send this file, or write received data to it; TCP, one direction"),
    ("affinity", "N[,M]", "run on this core; after the comma the server's core, for a client"),
    ("bind", "HOST[%DEV]", "use this address"),
    ("bind-dev", "DEV", "use this interface (SO_BINDTODEVICE)"),
    ("verbose", "", "more lines"),
    ("json", "", "one JSON document instead of text"),
    ("json-stream", "", "each part of the JSON on a line of its own"),
    ("logfile", "FILE", "append the output to a file"),
    ("forceflush", "", "taken and not needed: every row leaves at once"),
    ("timestamps", "[=FORMAT]", "the time before each line, as strftime writes it"),
    ("rcv-timeout", "MS", "how long a receiver may hear nothing (120000)"),
    ("snd-timeout", "MS", "how long sent data may stay unacknowledged"),
    ("debug", "", "taken and without effect"),
    ("daemon", "", "serve in the background, with the messages in --logfile"),
    ("one-off", "", "serve one test, then end"),
    ("one-at-a-time", "", "serve one client at a time, as iperf3 does; otherwise 16"),
    ("server-bitrate-limit", "N[KMG][/SECS]", "bound of a test's rate, averaged over 5 s"),
    ("server-max-duration", "SECS", "refuse longer tests"),
    ("idle-timeout", "SECS", "with -1: end when no client has come"),
    ("rsa-private-key-path", "FILE", "key that opens the logins of clients"),
    ("authorized-users-path", "FILE", "who may test: lines of name,SHA-256"),
    ("time-skew-threshold", "SECS", "how far clocks may differ at a login (10)"),
    ("use-pkcs1-padding", "", "logins as versions before 3.17 make them"),
    ("sctp", "", "not offered"),
    ("xbind", "NAME", "not offered (SCTP)"),
    ("nstreams", "N", "not offered (SCTP)"),
    ("udp", "", "datagrams instead of TCP"),
    ("connect-timeout", "MS", "how long the control connection may take"),
    ("bitrate", "N[KMG][/N]", "rate of each stream, 0 for none (UDP 1M); after the slash a burst"),
    ("bandwidth", "N[KMG][/N]", "the same, by its old name"),
    ("pacing-timer", "N", "taken and not needed"),
    ("fq-rate", "N[KMG]", "rate of each stream that the kernel keeps"),
    ("no-fq-socket-pacing", "", "the same as --fq-rate 0"),
    ("time", "SECS", "how long data flows (10)"),
    ("cntl-ka", "[=SECS]", "idle time before keepalive of the control connection (7200)"),
    ("gsro", "", "datagrams in super-buffers (GSO, GRO) on both ends"),
    ("mptcp", "", "Multipath TCP for the client's streams"),
    ("bytes", "N[KMG]", "end after that many bytes instead"),
    ("blockcount", "N[KMG]", "end after that many blocks instead"),
    ("length", "N[KMG]", "bytes of a block (128K) or a datagram (path MTU)"),
    ("cport", "PORT", "port of the client's first stream"),
    ("parallel", "N", "streams at the same time (1)"),
    ("reverse", "", "the server sends"),
    ("bidir", "", "both send"),
    ("window", "N[KMG]", "socket buffers"),
    ("congestion", "ALGO", "congestion control of both ends"),
    ("linux-congestion", "ALGO", "the same, by its old name"),
    ("set-mss", "N", "largest TCP segment"),
    ("no-delay", "", "TCP_NODELAY"),
    ("version4", "", "IPv4 only"),
    ("version6", "", "IPv6 only"),
    ("tos", "N", "type of service, 0 to 255"),
    ("dscp", "N", "code point, 0 to 63 or by its name"),
    ("flowlabel", "N", "IPv6 flow label of the client's streams"),
    ("zerocopy", "", "sendfile instead of write"),
    ("skip-rx-copy", "", "receivers discard in the kernel (MSG_TRUNC)"),
    ("omit", "SECS", "seconds at the beginning that do not count"),
    ("title", "TEXT", "before every line"),
    ("extra-data", "TEXT", "into the JSON of both ends"),
    ("get-server-output", "", "show the server's output as well"),
    ("udp-counters-64bit", "", "64-bit numbers in datagrams"),
    ("repeating-payload", "", "digits instead of random bytes"),
    ("dont-fragment", "", "IPv4 datagrams are not fragmented"),
    ("username", "NAME", "who logs in; the password is in IPERF3_PASSWORD"),
    ("rsa-public-key-path", "FILE", "key that seals the login"),
];

/// Returns the options with their descriptions, grouped by role.
pub(super) fn rows() -> Vec<(&'static str, Vec<(String, &'static str)>)> {
    let shown = |row: &OptionSpec| {
        let (_, value, about) = ABOUT.iter().find(|(name, ..)| *name == row.name).expect("every option is explained");
        let short = if row.letter.is_ascii() { format!("-{}, ", row.letter) } else { String::new() };
        (format!("{short}--{} {value}", row.name), *about)
    };
    let of = |scope: OptionScope| {
        let rows = OPTIONS.iter().filter(|row| row.scope == scope && !["server", "client"].contains(&row.name));
        rows.map(shown).collect()
    };
    vec![("Server or client", of(Both)), ("Server", of(Server)), ("Client", of(Client))]
}

/// The reason why the command line starts no test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OptionsError {
    /// An error message of getopt.
    Syntax(String),
    /// An invalid value or combination.
    Parameter(OptionFault),
    /// `-v`.
    Version,
    /// `-h`.
    Help,
}

pub(super) fn read(words: &[String]) -> Result<Options, OptionsError> {
    let mut shorts = "vh".to_owned();
    for row in OPTIONS {
        shorts.push(row.letter);
        shorts.push_str(if row.has_value { ":" } else { "" });
    }
    // The command line is read only once, so its table may live as long as the program.
    let shorts: &'static str = Box::leak(shorts.into_boxed_str());
    let own = [LongOption { name: "version", short: 'v' }, LongOption { name: "help", short: 'h' }];
    let longs: Vec<LongOption> =
        OPTIONS.iter().map(|row| LongOption { name: row.name, short: row.letter }).chain(own).collect();
    let syntax = GetoptSyntax { shorts, longs: Box::leak(longs.into_boxed_slice()), dialect: GetoptDialect::Gnu };
    // The value of these options is optional and must follow an equals sign.
    let words: Vec<String> = words
        .iter()
        .map(|word| match word.as_str() {
            "--timestamps" => "--timestamps=%c ".to_owned(),
            "--cntl-ka" => "--cntl-ka=".to_owned(),
            word if word.starts_with("--debug=") => "--debug".to_owned(),
            word => word.to_owned(),
        })
        .collect();
    let mut options = Options { parameters: Parameters { parallel: 1, ..Parameters::default() }, ..Options::default() };
    for item in syntax.parse(&words) {
        match item {
            ParsedWord::Option('v', _) => return Err(OptionsError::Version),
            ParsedWord::Option('h', _) => return Err(OptionsError::Help),
            ParsedWord::Option(letter, value) => {
                let row = OPTIONS.iter().find(|row| row.letter == letter).expect("getopt knows the table");
                options.used.push(row);
                (row.take)(&mut options, &value.unwrap_or_default()).map_err(OptionsError::Parameter)?;
            }
            ParsedWord::Error(text) => return Err(OptionsError::Syntax(text)),
            // iperf3 ignores operands.
            ParsedWord::Operand(_) => {}
        }
    }
    options.check().map_err(OptionsError::Parameter)?;
    Ok(options)
}

impl Options {
    /// Checks combinations of options and fills in defaults.
    fn check(&mut self) -> Result<(), OptionFault> {
        let uses = |scope: OptionScope| self.used.iter().any(|row| row.scope == scope);
        match &self.role {
            None => return Err("must either be a client (-c) or server (-s)"),
            Some(Iperf3Role::Server) if uses(Client) => return Err("some option you are trying to set is client only"),
            Some(Iperf3Role::Client(_)) if uses(Server) => {
                return Err("some option you are trying to set is server only");
            }
            Some(_) => {}
        }
        if self.private_key.is_some() != self.users.is_some() {
            return Err("you must specify a path to a valid RSA private key and a user credential file");
        }
        if self.username.is_some() != self.public_key.is_some() {
            return Err("you must specify a username, password, and path to a valid RSA public key");
        }
        let parameters = &mut self.parameters;
        let ends = [self.flags.has(Flag::Time), parameters.bytes > 0, parameters.blocks > 0];
        if ends.iter().filter(|is_given| **is_given).count() > 1 {
            return Err(MANY_ENDS);
        }
        if ends == [false; 3] {
            parameters.time_secs = 10;
        }
        let block = parameters.block.0;
        match parameters.protocol {
            TransportProtocol::Tcp if block > 1 << 20 => return Err("block size too large (maximum = 1048576 bytes)"),
            TransportProtocol::Udp if block > 0 && !(16..=65_507).contains(&block) => {
                return Err("block size invalid (minimum = 16 bytes, maximum = 65507 bytes)");
            }
            TransportProtocol::Udp if !self.flags.has(Flag::Rate) => parameters.bitrate = 1 << 20,
            TransportProtocol::Tcp | TransportProtocol::Udp => {}
        }
        if self.receive_timeout.is_some()
            && self.role != Some(Iperf3Role::Server)
            && parameters.direction == TransferDirection::Forward
        {
            return Err("client receive timeout is valid only in receiving mode");
        }
        // With a bidirectional transfer, the file would be overwritten while it is sent.
        if self.file.is_some()
            && (parameters.protocol == TransportProtocol::Udp || parameters.direction == TransferDirection::Both)
        {
            return Err(NOT_OFFERED);
        }
        if parameters.server_core.is_some() && self.role == Some(Iperf3Role::Server) {
            return Err("some option you are trying to set is client only");
        }
        Ok(())
    }

    /// Returns the requested port, or iperf3's default.
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(PORT)
    }

    /// Returns the interval between reports, or `None` for no reports.
    pub(super) fn report_interval(&self) -> Option<Nanos> {
        Some(self.interval.unwrap_or(Nanos::from_secs(1))).filter(|interval| *interval > Nanos::ZERO)
    }
}
