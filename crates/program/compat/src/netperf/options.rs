//! netperf's two sets of options: global ones, and those of the test after `--`.

use fathom_interop::netperf::{DATAGRAM_MAX, DataPattern, DataProtocol, EndSettings, PORT, TestLength, TestSpec};
use fathom_model::units::Nanos;

use super::units::ThroughputUnit;
use crate::getopt::{GetoptDialect, GetoptSyntax, ParsedWord, atoi};

const GLOBAL: GetoptSyntax = GetoptSyntax {
    shorts: "A:a:b:B:CcdD:f:F:H:hi:I:jk:K:l:L:n:NO:o:P:p:rSs:t:T:v:VW:w:y:Y:Z:46",
    longs: &[],
    dialect: GetoptDialect::Gnu,
};
const OF_TEST: GetoptSyntax = GetoptSyntax {
    shorts: "aBb:cCd:De:FgG:hH:i:Ij:kK:l:L:m:M:nNoOp:P:r:R:s:S:t:T:u:UVw:W:46",
    longs: &[],
    dialect: GetoptDialect::Gnu,
};
/// The bits of a direction on the command line.
const SENDS: i64 = 2;
const RECEIVES: i64 = 4;
/// The most iterations of a test (`netsh.c`).
const ITERATIONS_MAX: u32 = 30;

/// A test by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TestName {
    TcpStream,
    TcpMaerts,
    TcpSendfile,
    TcpRr,
    TcpCrr,
    UdpStream,
    UdpRr,
    Omni,
}

/// All tests with their names on the command line.
const TESTS: [(&str, TestName); 8] = [
    ("TCP_STREAM", TestName::TcpStream),
    ("TCP_MAERTS", TestName::TcpMaerts),
    ("TCP_SENDFILE", TestName::TcpSendfile),
    ("TCP_RR", TestName::TcpRr),
    ("TCP_CRR", TestName::TcpCrr),
    ("UDP_STREAM", TestName::UdpStream),
    ("UDP_RR", TestName::UdpRr),
    ("OMNI", TestName::Omni),
];

/// The form of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputForm {
    /// The text of the test's name.
    Classic,
    /// Selected values under headers.
    Human,
    /// Selected values, separated by commas.
    Csv,
    /// Selected values, one `NAME=VALUE` a line.
    KeyValue,
}

/// How often a test is repeated, and for which confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Repetition {
    pub(super) n_min: u32,
    pub(super) n_max: u32,
    /// 95 or 99, in percent; 0 without an interval.
    pub(super) level: u32,
    /// The whole width of the interval as a share of the mean.
    pub(super) width: f64,
    /// Whether the interval of the result alone ends the repetition, and not those of the CPUs.
    pub(super) is_result_only: bool,
}

/// The requested address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Any,
    V4,
    V6,
}

/// The whole command line.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) host: Option<String>,
    pub(super) local_host: Option<String>,
    pub(super) family: Family,
    pub(super) port: u16,
    pub(super) test: TestName,
    pub(super) spec: TestSpec,
    pub(super) has_headers: bool,
    pub(super) verbosity: i64,
    pub(super) unit: ThroughputUnit,
    pub(super) repetition: Repetition,
    /// The interval of interim results.
    pub(super) interim: Option<Nanos>,
    pub(super) form: OutputForm,
    /// The selected values: names, `all` or the name of a file; `None` for those of the test.
    pub(super) selection: Option<String>,
    pub(super) brand: Option<String>,
    pub(super) passphrase: Option<String>,
    /// The wait between connecting and the test.
    pub(super) wait: Nanos,
    pub(super) uuid: Option<String>,
    /// The words, for the output `COMMAND_LINE`.
    pub(super) command_line: String,
    /// The options without an effect here that were given.
    pub(super) ignored: Vec<char>,
}

/// Why there is no test to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OptionsError {
    /// `-h`, or an option that does not exist.
    Usage,
    /// `-h` after `--`, or an option that does not exist there.
    TestUsage,
    Version,
    UnknownTest(String),
    /// A value or an option that this program does not have.
    Invalid(String),
}

/// Reads `text` as netperf's `convert` does: a number, with K, M, G as powers of 1024 and k, m, g as powers of 1000.
fn number(text: &str) -> i64 {
    let suffixes =
        [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('k', 1_000), ('m', 1_000_000), ('g', 1_000_000_000)];
    let factors = suffixes.iter().filter(|(letter, _)| text.contains(*letter)).map(|(_, factor)| *factor);
    factors.fold(atoi(text), i64::saturating_mul)
}

fn size(text: &str) -> u32 {
    u32::try_from(number(text)).unwrap_or(0)
}

/// The two values of an option; one without a comma is both.
fn pair(text: &str) -> (Option<&str>, Option<&str>) {
    let (first, second) = text.split_once(',').unwrap_or((text, text));
    (Some(first).filter(|text| !text.is_empty()), Some(second).filter(|text| !text.is_empty()))
}

/// The two values of an option; one without a comma is the first.
fn first_or_pair(text: &str) -> (Option<&str>, Option<&str>) {
    let (first, second) = text.split_once(',').unwrap_or((text, ""));
    (Some(first).filter(|text| !text.is_empty()), Some(second).filter(|text| !text.is_empty()))
}

/// Reads a command line without the name of the program.
pub(super) fn read(words: &[String]) -> Result<Options, OptionsError> {
    let at = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (global, of_test) = (&words[..at], words.get(at + 1..).unwrap_or_default());
    let command_line = ["netperf"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let mut reader = Reader::new(command_line);
    let mut items = GLOBAL.parse(global).into_iter().peekable();
    while let Some(item) = items.next() {
        let ParsedWord::Option(letter, value) = item else {
            if matches!(item, ParsedWord::Error(_)) {
                return Err(OptionsError::Usage);
            }
            continue;
        };
        if matches!(letter, 'c' | 'C') {
            // The rate of the CPU, which Linux does not need.
            items.next_if(
                |next| matches!(next, ParsedWord::Operand(word) if word.starts_with(|c: char| c.is_ascii_digit())),
            );
        }
        reader.global(letter, &value.unwrap_or_default())?;
    }
    reader.take_test()?;
    let mut items = OF_TEST.parse(of_test).into_iter().peekable();
    while let Some(item) = items.next() {
        let ParsedWord::Option(letter, value) = item else {
            if matches!(item, ParsedWord::Error(_)) {
                return Err(OptionsError::TestUsage);
            }
            continue;
        };
        let value = match letter {
            'o' | 'O' | 'k' => match items.next_if(|next| matches!(next, ParsedWord::Operand(_))) {
                Some(ParsedWord::Operand(word)) => Some(word),
                _ => None,
            },
            _ => value,
        };
        reader.of_test(letter, value.as_deref())?;
    }
    reader.finish()
}

/// The options read so far.
struct Reader {
    options: Options,
    test: String,
    unit: Option<char>,
    /// The bits of an omni test, and whether options may still set them.
    direction: (i64, bool),
    is_result_only: bool,
}

impl Reader {
    fn new(command_line: String) -> Self {
        let options = Options {
            host: None,
            local_host: None,
            family: Family::Any,
            port: PORT,
            test: TestName::TcpStream,
            spec: TestSpec::default(),
            has_headers: true,
            verbosity: 1,
            unit: ThroughputUnit::Megabits,
            repetition: Repetition { n_min: 1, n_max: 1, level: 0, width: 0.0, is_result_only: false },
            interim: None,
            form: OutputForm::Classic,
            selection: None,
            brand: None,
            passphrase: None,
            wait: Nanos::ZERO,
            uuid: None,
            command_line,
            ignored: Vec::new(),
        };
        Self { options, test: "TCP_STREAM".to_owned(), unit: None, direction: (0, true), is_result_only: false }
    }

    fn global(&mut self, letter: char, value: &str) -> Result<(), OptionsError> {
        let options = &mut self.options;
        match letter {
            'h' => return Err(OptionsError::Usage),
            'V' => return Err(OptionsError::Version),
            'N' => {
                return Err(OptionsError::Invalid(
                    "a test without a control connection (-N) is not supported".to_owned(),
                ));
            }
            'c' => options.spec.local.measures_cpu = true,
            'C' => options.spec.remote.measures_cpu = true,
            'H' => {
                let (host, family) = first_or_pair(value);
                options.host = host.map(str::to_owned).or(options.host.take());
                options.family = family.map_or(options.family, family_of);
            }
            'L' => options.local_host = first_or_pair(value).0.map(str::to_owned),
            '4' => options.family = Family::V4,
            '6' => options.family = Family::V6,
            'l' => options.spec.length = length(value),
            't' => self.test = value.to_ascii_uppercase(),
            'p' => {
                let port = first_or_pair(value).0.unwrap_or_default();
                let port = port.parse().ok().filter(|port| *port != 0);
                options.port = port.ok_or_else(|| OptionsError::Invalid(format!("`{value}` is no port (-p)")))?;
            }
            'P' => options.has_headers = number(value) != 0,
            'v' => options.verbosity = number(value),
            'f' => self.unit = value.chars().next(),
            'D' => {
                let seconds: f64 = first_or_pair(value).0.and_then(|text| text.parse().ok()).unwrap_or(1.0);
                options.interim = Some(Nanos::from_secs_f64(seconds.abs()));
            }
            'i' | 'I' => self.repetition(letter, value)?,
            'r' => self.is_result_only = true,
            'B' => options.brand = Some(value.to_owned()),
            'Z' => options.passphrase = Some(value.to_owned()),
            's' => options.wait = Nanos::from_secs(u64::from(size(value))),
            'T' => {
                let (local, remote) = pair(value);
                let core = |text: &str| u16::try_from(number(text)).ok();
                options.spec.local.core = local.and_then(core);
                options.spec.remote.core = remote.and_then(core);
            }
            'Y' => {
                let (local, remote) = pair(value);
                options.spec.local.traffic_class = local.map(traffic_class).transpose()?;
                options.spec.remote.traffic_class = remote.map(traffic_class).transpose()?;
            }
            'b' | 'w' => {
                let text = format!("intervals (-{letter}) are not supported; netperf needs to be built for them, too");
                return Err(OptionsError::Invalid(text));
            }
            'd' | 'j' => {}
            other => options.ignored.push(other),
        }
        Ok(())
    }

    /// `-i max,min` and `-I level,width`.
    fn repetition(&mut self, letter: char, value: &str) -> Result<(), OptionsError> {
        let repetition = &mut self.options.repetition;
        let (first, second) = pair(value);
        if letter == 'i' {
            repetition.n_max = first.map_or(repetition.n_max, size);
            repetition.n_min = second.map_or(repetition.n_min, size);
            repetition.n_min = repetition.n_min.clamp(3, ITERATIONS_MAX);
            repetition.n_max = repetition.n_max.clamp(repetition.n_min, ITERATIONS_MAX);
        } else {
            repetition.level = first.map_or(repetition.level, size);
            if value.contains(',') {
                let percent = second.and_then(|text| text.parse::<f64>().ok());
                repetition.width = percent.map_or(repetition.width, |percent| percent / 100.0);
            }
            if ![95, 99].contains(&repetition.level) {
                return Err(OptionsError::Invalid("Only 95% and 99% confidence level is supported".to_owned()));
            }
            repetition.n_min = repetition.n_min.max(3);
            repetition.n_max = if repetition.n_max == 1 { 10 } else { repetition.n_max };
        }
        if repetition.level == 0 {
            repetition.level = 99;
        }
        if repetition.width <= 0.0 {
            repetition.width = 0.05;
        }
        Ok(())
    }

    /// Sets what the name of the test implies.
    fn take_test(&mut self) -> Result<(), OptionsError> {
        let found = TESTS.iter().find(|(name, _)| *name == self.test);
        let test = found.map(|(_, test)| *test).ok_or_else(|| OptionsError::UnknownTest(self.test.clone()))?;
        self.options.test = test;
        let spec = &mut self.options.spec;
        let (protocol, pattern) = match test {
            TestName::TcpStream | TestName::TcpSendfile | TestName::Omni => (DataProtocol::Tcp, DataPattern::Up),
            TestName::TcpMaerts => (DataProtocol::Tcp, DataPattern::Down),
            TestName::TcpRr | TestName::TcpCrr => (DataProtocol::Tcp, DataPattern::Transactions),
            TestName::UdpStream => (DataProtocol::Udp, DataPattern::Up),
            TestName::UdpRr => (DataProtocol::Udp, DataPattern::Transactions),
        };
        (spec.protocol, spec.pattern) = (protocol, pattern);
        spec.is_connection_each = test == TestName::TcpCrr;
        spec.is_sendfile = test == TestName::TcpSendfile;
        if test == TestName::Omni {
            self.options.form = OutputForm::Human;
        }
        Ok(())
    }

    fn of_test(&mut self, letter: char, value: Option<&str>) -> Result<(), OptionsError> {
        let text = value.unwrap_or_default();
        match letter {
            'h' => return Err(OptionsError::TestUsage),
            'o' | 'O' | 'k' => {
                self.options.form = match letter {
                    'o' => OutputForm::Csv,
                    'O' => OutputForm::Human,
                    _ => OutputForm::KeyValue,
                };
                self.options.selection = value.map(str::to_owned);
                return Ok(());
            }
            '4' => self.options.family = Family::V4,
            '6' => self.options.family = Family::V6,
            'u' => self.options.uuid = Some(text.to_owned()),
            'H' | 'L' => {
                let text = format!("another address for the data (-- -{letter}) is not supported");
                return Err(OptionsError::Invalid(text));
            }
            'm' | 'M' | 's' | 'S' | 'r' | 'K' | 'P' => self.sizes(letter, text),
            'b' => self.options.spec.burst = size(text),
            'c' => self.options.spec.is_connection_each = true,
            'D' => {
                self.options.spec.local.has_no_delay = true;
                self.options.spec.remote.has_no_delay = true;
            }
            'd' if self.options.test == TestName::Omni => self.direction = (direction(text), false),
            'e' => self.options.spec.loss_timeout = Some(Nanos::from_secs(u64::from(size(text)))),
            't' if self.options.test == TestName::Omni => {
                self.options.spec.protocol = if text.contains("dgram") { DataProtocol::Udp } else { DataProtocol::Tcp };
            }
            'T' if self.options.test == TestName::Omni => {
                self.options.spec.protocol = match text.to_ascii_lowercase().as_str() {
                    "tcp" => DataProtocol::Tcp,
                    "udp" => DataProtocol::Udp,
                    _ => return Err(OptionsError::Invalid(format!("the protocol {text} is not supported"))),
                };
            }
            other => self.options.ignored.push(other),
        }
        Ok(())
    }

    /// Options with a value for each end.
    fn sizes(&mut self, letter: char, text: &str) {
        let spec = &mut self.options.spec;
        let (first, second) = if matches!(letter, 'm' | 'M') { first_or_pair(text) } else { pair(text) };
        let (bytes, port) =
            (|text: Option<&str>| text.map(size), |text: &str| text.parse().ok().filter(|port| *port != 0));
        let implied = match letter {
            'm' => {
                spec.local.send_size = bytes(first).or(spec.local.send_size);
                spec.remote.send_size = bytes(second).or(spec.remote.send_size);
                (first.map_or(0, |_| SENDS)) | (second.map_or(0, |_| RECEIVES))
            }
            'M' => {
                spec.remote.recv_size = bytes(first).or(spec.remote.recv_size);
                spec.local.recv_size = bytes(second).or(spec.local.recv_size);
                (first.map_or(0, |_| SENDS)) | (second.map_or(0, |_| RECEIVES))
            }
            'r' => {
                spec.request_size = first.map_or(spec.request_size, size);
                spec.response_size = second.map_or(spec.response_size, size);
                SENDS | RECEIVES
            }
            _ => {
                let end: &mut EndSettings = if letter == 'S' { &mut spec.remote } else { &mut spec.local };
                match letter {
                    's' | 'S' => {
                        end.send_buffer = bytes(first).or(end.send_buffer);
                        end.recv_buffer = bytes(second).or(end.recv_buffer);
                    }
                    'K' => {
                        spec.local.congestion = first.map(str::to_owned);
                        spec.remote.congestion = second.map(str::to_owned);
                    }
                    _ => {
                        spec.local.port = first.and_then(port);
                        spec.remote.port = second.and_then(port);
                    }
                }
                0
            }
        };
        if self.direction.1 {
            self.direction.0 |= implied;
        }
    }

    /// Completes what depends on several options.
    fn finish(mut self) -> Result<Options, OptionsError> {
        self.options.repetition.is_result_only = self.is_result_only;
        let spec = &mut self.options.spec;
        if self.options.test == TestName::Omni {
            spec.pattern = match (self.direction.0, spec.is_connection_each) {
                (bits, false) if bits & (SENDS | RECEIVES) == RECEIVES => DataPattern::Down,
                (bits, false) if bits & RECEIVES == 0 => DataPattern::Up,
                _ => DataPattern::Transactions,
            };
            if spec.is_connection_each && self.direction.0 == 0 {
                (spec.request_size, spec.response_size) = (0, 0);
            }
        }
        let is_transactions = spec.pattern == DataPattern::Transactions;
        if spec.protocol == DataProtocol::Udp {
            let sizes =
                [spec.local.send_size, spec.remote.send_size, Some(spec.request_size), Some(spec.response_size)];
            if sizes.into_iter().flatten().any(|size| size > DATAGRAM_MAX) {
                return Err(OptionsError::Invalid(format!("a datagram has at most {DATAGRAM_MAX} bytes")));
            }
            if !is_transactions && matches!(spec.length, TestLength::Count(_)) {
                return Err(OptionsError::Invalid("only time can end a stream of datagrams (-l)".to_owned()));
            }
        }
        if is_transactions && !spec.is_connection_each {
            (spec.request_size, spec.response_size) = (spec.request_size.max(1), spec.response_size.max(1));
        }
        self.options.unit = ThroughputUnit::of(self.unit, is_transactions);
        Ok(self.options)
    }
}

fn family_of(text: &str) -> Family {
    match text.to_ascii_lowercase().as_str() {
        "4" | "inet" | "ipv4" => Family::V4,
        "6" | "inet6" | "ipv6" => Family::V6,
        _ => Family::Any,
    }
}

fn length(text: &str) -> TestLength {
    let length = number(text);
    let count = u32::try_from(length.unsigned_abs()).unwrap_or(u32::MAX).min(i32::MAX.unsigned_abs());
    if length < 0 { TestLength::Count(count) } else { TestLength::Seconds(count) }
}

/// Directions joined by `|`, as words or numbers.
fn direction(text: &str) -> i64 {
    let bits = |word: &str| match word.to_ascii_lowercase().as_str() {
        "xmit" | "send" | "stream" | "transmit" => SENDS,
        "recv" | "receive" | "maerts" => RECEIVES,
        "rr" => SENDS | RECEIVES,
        hex if hex.starts_with("0x") => i64::from_str_radix(&hex[2..], 16).unwrap_or(0),
        number => atoi(number),
    };
    text.split('|').map(bits).fold(0, |all, bits| all | bits)
}

fn traffic_class(text: &str) -> Result<u8, OptionsError> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    parsed
        .ok_or_else(|| OptionsError::Invalid(format!("`{text}` is no traffic class (-Y), which is a number up to 255")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Options {
        read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    fn error(line: &str) -> OptionsError {
        read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap_err()
    }

    #[test]
    fn values_for_two_ends_are_read_as_netperf_reads_them() {
        let sizes = |line: &str| {
            let spec = of(line).spec;
            [spec.local.send_size, spec.remote.send_size, spec.local.recv_size, spec.remote.recv_size]
        };
        assert_eq!(sizes("-- -m 1000"), [Some(1000), None, None, None], "one value is that of the first end");
        assert_eq!(sizes("-- -m ,2K -M 3,4"), [None, Some(2048), Some(4), Some(3)]);
        let buffers = |line: &str| {
            let spec = of(line).spec;
            (spec.local.send_buffer, spec.local.recv_buffer, spec.remote.send_buffer, spec.remote.recv_buffer)
        };
        assert_eq!(buffers("-- -s 64k"), (Some(64_000), Some(64_000), None, None), "one value is both");
        assert_eq!(buffers("-- -S 1,2"), (None, None, Some(1), Some(2)));
        let spec = of("-t TCP_RR -- -r 100,").spec;
        assert_eq!((spec.request_size, spec.response_size), (100, 1));
    }

    #[test]
    fn a_test_ends_by_time_or_by_a_number() {
        assert_eq!(of("-l 5").spec.length, TestLength::Seconds(5));
        assert_eq!(of("-l -1M").spec.length, TestLength::Count(1 << 20));
        assert!(matches!(error("-t UDP_STREAM -l -5"), OptionsError::Invalid(_)));
    }

    #[test]
    fn the_direction_of_an_omni_test_follows_from_its_options() {
        let pattern = |line: &str| of(&format!("-t omni {line}")).spec.pattern;
        assert_eq!(pattern(""), DataPattern::Up);
        assert_eq!(pattern("-- -m 10"), DataPattern::Up);
        assert_eq!(pattern("-- -M ,10"), DataPattern::Down);
        assert_eq!(pattern("-- -r 1"), DataPattern::Transactions);
        assert_eq!(pattern("-- -d 4"), DataPattern::Down);
        assert_eq!(pattern("-- -d send|recv"), DataPattern::Transactions);
        let connections = of("-t omni -- -c").spec;
        assert_eq!((connections.request_size, connections.is_connection_each), (0, true));
        assert_eq!(of("-t omni -- -T udp").spec.protocol, DataProtocol::Udp);
    }

    #[test]
    fn repetitions_have_the_bounds_of_netperf() {
        let repetition = |line: &str| {
            let Repetition { n_min, n_max, level, width, .. } = of(line).repetition;
            (n_min, n_max, level, (width * 1000.0).round())
        };
        assert_eq!(repetition(""), (1, 1, 0, 0.0));
        assert_eq!(repetition("-i 40,2"), (3, 30, 99, 50.0));
        assert_eq!(repetition("-I 95,10"), (3, 10, 95, 100.0));
        assert_eq!(repetition("-i 20,5 -I 99"), (5, 20, 99, 50.0));
        assert!(matches!(error("-I 90,5"), OptionsError::Invalid(_)));
    }

    #[test]
    fn optional_values_and_what_is_unknown_are_told_apart() {
        let options = of("-c 100 -C -H a -- -o THROUGHPUT -D");
        assert!(options.spec.local.measures_cpu && options.spec.remote.measures_cpu);
        assert_eq!((options.form, options.selection.as_deref()), (OutputForm::Csv, Some("THROUGHPUT")));
        assert!(options.spec.local.has_no_delay);
        assert_eq!(of("-- -k -D").selection, None);
        assert_eq!(error("-q"), OptionsError::Usage);
        assert_eq!(error("-- -q"), OptionsError::TestUsage);
        assert_eq!(error("-t TCP_CC"), OptionsError::UnknownTest("TCP_CC".to_owned()));
        assert_eq!(of("-y 1,2").ignored, ['y']);
        assert!(matches!(error("-p 0"), OptionsError::Invalid(_)));
    }
}
