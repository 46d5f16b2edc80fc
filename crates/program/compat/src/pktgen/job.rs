//! The job of pktgen, from the options of the kernel's sample scripts or from lines of `pgset`.

use fathom_pktgen::{PktgenSetting, PktgenSettingError};

use crate::getopt::{GetoptDialect, GetoptSyntax, ParsedWord};

/// The devices with their settings, and whether they are started.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PktgenJob {
    pub(super) devices: Vec<JobDevice>,
    pub(super) is_started: bool,
    /// Settings without effect here, and the reasons.
    pub(super) remarks: Vec<String>,
}

/// A device that is assigned to a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobDevice {
    /// The name with its tag, as in `eth1@0`.
    pub(super) name: String,
    pub(super) thread: usize,
    pub(super) settings: Vec<PktgenSetting>,
}

impl JobDevice {
    /// Returns the name of the interface, without its tag.
    pub(super) fn interface(&self) -> &str {
        self.name.split('@').next().unwrap_or_default()
    }
}

/// The reason why there is no job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JobError {
    /// An error in the options. The usage is shown as well.
    Usage(String),
    /// An invalid line, with the reason.
    Line(String),
}

/// The options of `samples/pktgen/parameters.sh` in the kernel.
const SYNTAX: GetoptSyntax =
    GetoptSyntax { shorts: "s:i:d:m:p:f:t:c:n:b:w:vxh6a", longs: &[], dialect: GetoptDialect::Gnu };

pub(super) const USAGE: &str = "\
Usage: pktgen -i DEVICE [option]...       as the kernel's sample scripts
       pktgen [pgset] \"COMMAND\"... FILE...  as pgset, in words or in a script
  -i DEVICE   device to send out of (required)
  -s BYTES    size of packets, without the frame check sequence; 60 unless given
  -d ADDRESS  destination; a network such as 198.18.0.0/15 is a range
  -m MAC      Ethernet address of the destination
  -p PORT     destination port; a range such as 433-444 is drawn from at random
  -t N        threads; one unless given
  -f N        number of the first thread, which is its processor; 0 unless given
  -c N        send N more copies of each packet
  -n N        packets of each thread; 100000 unless given, 0 is no limit
  -b N        packets handed over with one notice
  -w NS       nanoseconds from packet to packet
  -6          the destination is an IPv6 address
  -v, -x      say what is asked for
  -a          accepted without effect: devices that are added here are removed again
Commands: add_device DEVICE, rem_device_all, start, stop, reset, and all parameters of a device.
";

/// The number of packets per thread in the samples.
const COUNT: u64 = 100_000;
/// The smallest Ethernet frame, without the frame check sequence.
const SIZE: u64 = 60;

#[derive(Debug, Default)]
struct Options {
    device: Option<String>,
    /// Lines that apply to every device.
    lines: Vec<String>,
    n_threads: usize,
    first_thread: usize,
    destination: Option<String>,
    is_six: bool,
    size: Option<String>,
    count: Option<String>,
    is_verbose: bool,
    remarks: Vec<String>,
}

/// Reads a command line. `open` reads files.
pub(super) fn read(words: &[String], open: impl Fn(&str) -> Option<String>) -> Result<PktgenJob, JobError> {
    let mut options = Options { n_threads: 1, ..Options::default() };
    let mut script = PgsetScript::default();
    let mut has_lines = false;
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option('h', _) => return Err(JobError::Usage(String::new())),
            ParsedWord::Option(letter, value) => options.take(letter, value.unwrap_or_default())?,
            ParsedWord::Error(text) => return Err(JobError::Usage(format!("pktgen: {text}\n"))),
            ParsedWord::Operand(word) => {
                has_lines = true;
                script.operand(&word, &open)?;
            }
        }
    }
    match (&options.device, has_lines) {
        (Some(_), false) => options.job(),
        (None, true) => script.end(),
        (Some(_), true) => Err(JobError::Usage("pktgen: either -i DEVICE or commands, not both\n".to_owned())),
        (None, false) => Err(JobError::Usage("Please specify output device\n".to_owned())),
    }
}

impl Options {
    fn take(&mut self, letter: char, value: String) -> Result<(), JobError> {
        let number = |value: &str| {
            value.parse().map_err(|_| JobError::Usage(format!("pktgen: -{letter} takes a number, not `{value}`\n")))
        };
        match letter {
            'i' => self.device = Some(value),
            's' => self.size = Some(value),
            'd' => self.destination = Some(value),
            'm' => self.lines.push(format!("dst_mac {value}")),
            'p' => self.ports(&value),
            'f' => self.first_thread = number(&value)?,
            't' => self.n_threads = number(&value)?,
            'c' => self.lines.push(format!("clone_skb {value}")),
            'n' => self.count = Some(value),
            'b' => self.lines.push(format!("burst {value}")),
            'w' => self.lines.push(format!("delay {value}")),
            '6' => self.is_six = true,
            'v' | 'x' => self.is_verbose = true,
            _ => self.remarks.push("-a has no effect: devices that are added here are removed again".to_owned()),
        }
        Ok(())
    }

    fn ports(&mut self, text: &str) {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        if min != max {
            self.lines.push("flag UDPDST_RND".to_owned());
        }
        self.lines.extend([format!("udp_dst_min {min}"), format!("udp_dst_max {max}")]);
    }

    fn job(self) -> Result<PktgenJob, JobError> {
        let device = self.device.clone().unwrap_or_default();
        if self.n_threads == 0 {
            return Err(JobError::Usage("pktgen: -t takes one thread at least\n".to_owned()));
        }
        let mut lines = vec![
            format!("count {}", self.count.unwrap_or_else(|| COUNT.to_string())),
            format!("pkt_size {}", self.size.unwrap_or_else(|| SIZE.to_string())),
        ];
        lines.extend(destination(self.destination.as_deref(), self.is_six)?);
        lines.extend(self.lines);
        if self.n_threads > 1 {
            lines.push("flag QUEUE_MAP_CPU".to_owned());
        }
        let remarks = self.remarks.into_iter();
        let said = lines.iter().filter(|_| self.is_verbose).map(|line| format!("{device}: {line}"));
        let remarks = remarks.chain(said).collect();
        let settings = lines.iter().map(|line| setting(line)).collect::<Result<Vec<_>, _>>()?;
        let device = |thread: usize| {
            let name = format!("{device}@{thread}");
            JobDevice { name, thread, settings: settings.clone() }
        };
        let devices = (self.first_thread..self.first_thread + self.n_threads).map(device).collect();
        Ok(PktgenJob { devices, is_started: true, remarks })
    }
}

/// Returns the lines for a destination, or for a whole network.
fn destination(text: Option<&str>, is_six: bool) -> Result<Vec<String>, JobError> {
    let Some(text) = text else { return Ok(Vec::new()) };
    let wrong = || JobError::Usage(format!("pktgen: -d takes an address or a network, not `{text}`\n"));
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    if is_six {
        let range = if length.is_some() { Err(wrong()) } else { Ok(()) };
        return range.map(|()| vec![format!("dst6 {address}")]);
    }
    let address: std::net::Ipv4Addr = address.parse().map_err(|_| wrong())?;
    let length: u32 = length.map_or(Ok(32), str::parse).map_err(|_| wrong())?;
    let hosts = u32::MAX.checked_shr(length).unwrap_or(0);
    if length > 32 {
        return Err(wrong());
    }
    let first = address.to_bits() & !hosts;
    let [min, max] = [first, first | hosts].map(std::net::Ipv4Addr::from_bits);
    let mut lines = vec![format!("dst_min {min}"), format!("dst_max {max}")];
    if hosts > 0 {
        lines.push("flag IPDST_RND".to_owned());
    }
    Ok(lines)
}

fn setting(line: &str) -> Result<PktgenSetting, JobError> {
    line.parse().map_err(|error: PktgenSettingError| JobError::Line(format!("{error} (in `{line}`)")))
}

/// The lines in the order in which they would be written.
#[derive(Debug, Default)]
struct PgsetScript {
    job: PktgenJob,
    /// The file that `pgset` writes to, as named by `PGDEV`.
    file: Option<String>,
}

/// Commands in scripts that have no effect on pktgen.
const SHELL: [&str; 9] = ["modprobe", "echo", "cat", "source", ".", "set", "export", "sleep", "exit"];

/// Returns true if a line makes sense only to a shell: it sets or uses a variable, or is part of the shell's grammar.
fn is_shell_line(words: &[&str]) -> bool {
    const GRAMMAR: [&str; 10] = ["if", "then", "else", "fi", "for", "while", "do", "done", "function", "[["];
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|letter| letter == '_' || letter.is_alphanumeric());
    let sets = words.first().and_then(|word| word.split_once('=')).is_some_and(|(name, _)| is_name(name));
    sets || words.first().is_some_and(|word| GRAMMAR.contains(word)) || words.iter().any(|word| word.contains('$'))
}

impl PgsetScript {
    /// Reads a command, or a file of commands.
    fn operand(&mut self, word: &str, open: &impl Fn(&str) -> Option<String>) -> Result<(), JobError> {
        let Some(text) = open(word) else { return self.line(word) };
        for (number, line) in (1..).zip(text.lines()) {
            self.line(line).map_err(|refusal| match refusal {
                JobError::Line(said) => JobError::Line(format!("{word}:{number}: {said}")),
                usage @ JobError::Usage(_) => usage,
            })?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), JobError> {
        let line = line.trim();
        let is_open = || JobError::Line(format!("a quote is not closed in `{line}`"));
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let words = shlex::split(line).ok_or_else(is_open)?;
        let words: Vec<&str> = words.iter().map(String::as_str).filter(|word| *word != "export").collect();
        let file = |name: &str| name.rsplit('/').next().unwrap_or_default().to_owned();
        match words.as_slice() {
            [word, ..] if word.starts_with("PGDEV=") => self.file = Some(file(&word["PGDEV=".len()..])),
            [word, ..] if SHELL.contains(word) => {}
            _ if is_shell_line(&words) => {
                let what = "this needs a shell: variables, conditions and loops are not understood here";
                return Err(JobError::Line(format!("{what}; write out the resulting lines of pgset (in `{line}`)")));
            }
            ["pg_ctrl", rest @ ..] => return self.command("pgctrl", &rest.join(" ")),
            ["pg_thread", number, rest @ ..] => return self.command(&format!("kpktgend_{number}"), &rest.join(" ")),
            ["pg_set", device, rest @ ..] => return self.command(device, &rest.join(" ")),
            ["pgset", rest @ ..] | rest => {
                let file = self.file.clone().unwrap_or_default();
                return self.command(&file, &rest.join(" "));
            }
        }
        Ok(())
    }

    /// Reads a line for a file. Each command belongs to one kind of file, so a line for the wrong file is understood as well.
    fn command(&mut self, file: &str, line: &str) -> Result<(), JobError> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("" | "pgset", "") | ("stop" | "reset" | "max_before_softirq", _) => {}
            ("start", _) => self.job.is_started = true,
            ("rem_device_all", _) => self.job.devices.clear(),
            ("add_device", name) => {
                let number = file.strip_prefix("kpktgend_").map_or(Ok(0), str::parse);
                let thread = number.map_err(|_| JobError::Line(format!("`{file}` is not a thread of pktgen")))?;
                self.job.devices.push(JobDevice { name: name.trim().to_owned(), thread, settings: Vec::new() });
            }
            _ => {
                let named = self.job.devices.iter().position(|device| device.name == file);
                let is_device = !file.is_empty() && file != "pgctrl" && !file.starts_with("kpktgend_");
                let last = self.job.devices.len().checked_sub(1).filter(|_| !is_device);
                let missing =
                    || JobError::Line(format!("`{line}` is for a device, and none was added: add_device DEVICE"));
                let at = named.or(last).ok_or_else(missing)?;
                self.job.devices[at].settings.push(setting(line)?);
            }
        }
        Ok(())
    }

    fn end(self) -> Result<PktgenJob, JobError> {
        if self.job.devices.is_empty() {
            return Err(JobError::Line("no device was added: add_device DEVICE".to_owned()));
        }
        if !self.job.is_started {
            return Err(JobError::Line("nothing is started: start".to_owned()));
        }
        Ok(self.job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        shlex::split(line).unwrap()
    }

    fn job(line: &str) -> Result<PktgenJob, JobError> {
        read(&words(line), |_| None)
    }

    fn shown(device: &JobDevice) -> String {
        let settings: Vec<String> = device.settings.iter().map(ToString::to_string).collect();
        format!("{} {}: {}", device.thread, device.name, settings.join("; "))
    }

    #[test]
    fn the_options_of_the_samples_are_read() {
        let job =
            job("-i eth1 -s 64 -d 198.18.0.42 -m 90:e2:ba:ff:ff:ff -p 9-100 -t 2 -f 1 -c 0 -n 5 -b 1 -w 100").unwrap();
        let lines: Vec<String> = job.devices.iter().map(shown).collect();
        let settings = "count 5; pkt_size 64; dst_min 198.18.0.42; dst_max 198.18.0.42; dst_mac 90:e2:ba:ff:ff:ff; \
                        flag UDPDST_RND; udp_dst_min 9; udp_dst_max 100; clone_skb 0; burst 1; delay 100; flag QUEUE_MAP_CPU";
        assert_eq!(lines, [format!("1 eth1@1: {settings}"), format!("2 eth1@2: {settings}")]);
    }

    #[test]
    fn a_network_is_a_range_of_destinations() {
        let settings = shown(&job("-i e -d 198.18.3.4/15").unwrap().devices[0]);
        assert_eq!(
            settings,
            "0 e@0: count 100000; pkt_size 60; dst_min 198.18.0.0; dst_max 198.19.255.255; flag IPDST_RND"
        );
        assert!(shown(&job("-i e -6 -d fd00::1").unwrap().devices[0]).ends_with("dst6 fd00::1"));
    }

    #[test]
    fn commands_are_read_from_words_and_from_a_script() {
        let line = r#"pgset "rem_device_all" "add_device eth0" "count 1000000" "delay 5000" "clone_skb 0" "pkt_size 64"
                      "dst 10.0.0.2" "dst_mac 00:04:23:08:91:dc" "start""#;
        let expected =
            "0 eth0: count 1000000; delay 5000; clone_skb 0; pkt_size 64; dst 10.0.0.2; dst_mac 00:04:23:08:91:dc";
        assert_eq!(shown(&job(line).unwrap().devices[0]), expected);
        let script = "#!/bin/bash\nmodprobe pktgen\nPGDEV=/proc/net/pktgen/kpktgend_1\n  pgset \"rem_device_all\"\n pgset \"add_device \
                      eth0\"\nPGDEV=/proc/net/pktgen/eth0\npgset \"count 5\" # five\npg_set eth0 pkt_size 64\npg_ctrl start\n";
        let job = read(&words("run.sh"), |name| (name == "run.sh").then(|| script.to_owned())).unwrap();
        assert_eq!(shown(&job.devices[0]), "1 eth0: count 5; pkt_size 64");
        assert!(job.is_started);
    }

    #[test]
    fn what_cannot_be_read_is_named_with_its_line() {
        let refusal = |line: &str| match job(line) {
            Err(JobError::Usage(text) | JobError::Line(text)) => text,
            Ok(job) => panic!("{job:?}"),
        };
        assert_eq!(refusal(""), "Please specify output device\n");
        assert_eq!(refusal("-i e -t x"), "pktgen: -t takes a number, not `x`\n");
        assert_eq!(refusal("-i e -s"), "pktgen: option requires an argument -- 's'\n");
        assert_eq!(refusal("'add_device e' 'count many' start"), "count: `many` is not a number (in `count many`)");
        assert_eq!(refusal("'count 5' start"), "`count 5` is for a device, and none was added: add_device DEVICE");
        assert_eq!(refusal("'add_device e'"), "nothing is started: start");
        assert_eq!(refusal("start"), "no device was added: add_device DEVICE");
        let script = |_: &str| Some("count 1\n".to_owned());
        let Err(JobError::Line(said)) = read(&words("x"), script) else { panic!("it adds no device") };
        assert!(said.starts_with("x:1: "), "{said}");
        for line in ["thread=0", "for ((i=0; i<4; i++)); do", "pg_set $DEV 'count 5'", "[[ $UID -eq 0 ]]"] {
            let Err(JobError::Line(said)) = read(&words("x"), |_| Some(line.to_owned())) else { panic!("{line}") };
            assert!(said.starts_with("x:1: this needs a shell: variables"), "{said}");
        }
    }
}
