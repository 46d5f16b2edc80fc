//! Drop-in for tcpcopy: the requests that a device carries, or those of a capture, sent to another server.
//!
//! Copies leave from sockets of this host, so their answers come back to it: no intercept and no route at the target is needed.

use std::{
    cell::Cell,
    fmt::Write as _,
    fs::{self, File, OpenOptions},
    io::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::{Path, PathBuf},
    rc::Rc,
};

use fathom_engine::LiveProgress;
use fathom_model::{
    Plan, Record, ReplayRecord, Settings, Side, TestPlan, TrialTimes, host_port::split_host_port, names::count,
    plan::HostReach, units::Nanos,
};
use fathom_run::{
    allow::AllowList,
    execute::CheckedPlan,
    exit::{Exit, UserError},
};
use fathom_sys::{clock, netlink::Netlink};
use jiff::Zoned;

use super::{
    closed_loop::{self, MeasuredLoop, TargetError, UrlTarget},
    daemon,
    getopt::{GetoptDialect, GetoptSyntax, ParsedWord},
};

const SYNTAX: GetoptSyntax = GetoptSyntax {
    shorts: "x:c:H:i:a:I:T:F:B:o:n:f:m:C:p:r:M:S:U:R:D:t:k:s:l:P:LWOghvd",
    longs: &[],
    dialect: GetoptDialect::Gnu,
};

const USAGE: &str = "\
tcpcopy -x <transfer,> [option]...
-x <transfer,> What is copied, and to where: [sourceIP:]sourcePort-targetIP:targetPort,...
               Several transfers have one target.
-i <device>    Copy what this device carries; without -i, the only one that is up.
-i <file>      Copy the requests of this capture.
-a <num>       That many times as fast as in the capture.
-T <num>       That many times the whole capture.
-n <num>       That many copies of each connection, up to 1023.
-r <num>       Copy that percentage of the connections: 1 to 100.
-c <ip_addr,>  Send from these addresses of this host; 192.0.2.x is a whole network.
-F <filter>    Of a filter: tcp, [dst] port and [dst] host, joined by `and`.
-t <num>       Wait that many seconds for an answer; 600 unless given.
-l <file>      Add the log to this file.
-P <file>      Write the process number to this file, with -d.
-d             Run as a daemon.
-h             Show this.
-v             Print the version.
-B -C -D -f -k -L -m -M -p -R -s -S -U
               Have no effect: copies are sent by sockets of this host.
";

/// tcpcopy's exit code for anything that prevents its start.
const REFUSED: Exit = Exit::Code(255);
/// The kinds for live traffic and for captures.
const LIVE: &str = "http_replay_live";
const RECORDED: &str = "http_replay";
/// It runs until a signal; no test is longer than a day.
const DURATION: Nanos = Nanos::from_secs(24 * 3600);
/// The most copies that tcpcopy makes, because it tells them apart by ports.
const COPIES_MAX: u32 = 1023;
/// How often tcpcopy writes its counters (`OUTPUT_INTERVAL`).
const OUTPUT_EVERY: Nanos = Nanos::from_secs(30);
/// tcpcopy's time for an answer, in seconds.
const TIMEOUT_DEFAULT: u32 = 600;

/// The options that are refused, and why.
const NOT_SUPPORTED: &[(char, &str)] = &[
    ('H', "copies have an address of this host; -c chooses it"),
    ('I', "gaps keep their length; -a shortens all of them, and `fathom replay FILE --speed max` leaves them out"),
    ('o', "the route to the target says which device the copies leave by"),
    ('O', "connections that were open before are copied too; leave out -O"),
    ('g', "connections begin when the recorded ones do; leave out -g, or lower -r"),
    ('W', "a request waits for the answer to the one before it on its connection; leave out -W"),
];

/// A tcpcopy command line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Options {
    /// `80` or `192.0.2.9:80`, as the option `ports` of a replay takes them.
    servers: Vec<String>,
    target: String,
    /// A device or a capture.
    input: Option<String>,
    /// Times the recorded speed.
    acceleration: Option<u32>,
    times: Option<u32>,
    copies: Option<u32>,
    percentage: Option<u32>,
    sources: Vec<String>,
    filter: Option<String>,
    /// In seconds.
    timeout: Option<u32>,
    log: Option<PathBuf>,
    pid: Option<PathBuf>,
    is_daemon: bool,
    /// The letters that were given and do nothing.
    without_effect: Vec<char>,
}

/// The reason why nothing is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EarlyExit {
    /// A message for stderr.
    Error(String),
    /// Text for stdout.
    Answer(String),
}

fn refused<T>(why: impl Into<String>) -> Result<T, EarlyExit> {
    Err(EarlyExit::Error(why.into()))
}

fn read(words: &[String]) -> Result<Options, EarlyExit> {
    let mut options = Options::default();
    let mut transfers = None;
    for item in SYNTAX.parse(words) {
        match item {
            ParsedWord::Option('x', value) => transfers = value,
            ParsedWord::Option(letter, value) => option(&mut options, letter, value.unwrap_or_default())?,
            ParsedWord::Operand(word) => return refused(format!("`{word}` is no option")),
            ParsedWord::Error(text) => return refused(text),
        }
    }
    for transfer in transfers.as_deref().ok_or_else(|| EarlyExit::Error("no -x argument".to_owned()))?.split(',') {
        let (server, target) = read_transfer(transfer.trim())?;
        if !options.target.is_empty() && options.target != target {
            return refused(format!(
                "-x has two targets, {} and {target}: run one tcpcopy for each target",
                options.target
            ));
        }
        options.target = target;
        options.servers.push(server);
    }
    if let Some(filter) = &options.filter {
        options.servers = filtered(&options.servers, filter)?;
    }
    Ok(options)
}

fn option(options: &mut Options, letter: char, value: String) -> Result<(), EarlyExit> {
    if let Some((_, why)) = NOT_SUPPORTED.iter().find(|(one, _)| *one == letter) {
        return refused(format!("-{letter} is not supported: {why}"));
    }
    let number = |most: u32| match value.trim().parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
        _ => refused(format!("-{letter} {value}: option -{letter} require a number from 1 to {most}")),
    };
    match letter {
        'i' => options.input = Some(value),
        'a' => options.acceleration = number(10_000)?,
        'T' => options.times = number(100_000)?,
        'n' => options.copies = number(COPIES_MAX)?,
        'r' => options.percentage = number(100)?,
        't' => options.timeout = number(86_400)?,
        'c' => options.sources = value.split(',').map(|word| source(word.trim())).collect::<Result<_, _>>()?,
        'F' => options.filter = Some(value),
        'l' => options.log = Some(PathBuf::from(value)),
        'P' => options.pid = Some(PathBuf::from(value)),
        'd' => options.is_daemon = true,
        'h' => return Err(EarlyExit::Answer(USAGE.to_owned())),
        'v' => {
            return Err(EarlyExit::Answer(format!("tcpcopy version:1.3.0 ({})\n", fathom_run::registry::TOOL)));
        }
        _ => options.without_effect.push(letter),
    }
    Ok(())
}

/// Reads `[SRC:]PORT-TARGET:PORT`. Returns the server and the target.
fn read_transfer(text: &str) -> Result<(String, String), EarlyExit> {
    let invalid =
        || EarlyExit::Error(format!("target \"{text}\" is invalid: [sourceIP:]sourcePort-targetIP:targetPort"));
    if text.contains('@') {
        return refused(format!("target \"{text}\": leave out the MAC addresses; sockets find the way by themselves"));
    }
    let (server, target) = text.split_once('-').ok_or_else(invalid)?;
    let is_server = server.parse::<u16>().is_ok_and(|port| port > 0) || server.parse::<SocketAddr>().is_ok();
    let is_target = matches!(split_host_port(target), Some((host, Some(_))) if !host.is_empty());
    if is_server && is_target { Ok((server.to_owned(), target.to_owned())) } else { Err(invalid()) }
}

/// Reads an address of `-c`. `192.0.2.x` is a network of 256 addresses.
fn source(word: &str) -> Result<String, EarlyExit> {
    let (address, length) = word.strip_suffix(".x").map_or((word.to_owned(), ""), |net| (format!("{net}.0"), "/24"));
    let parsed: Result<IpAddr, _> = address.parse();
    let Ok(ip) = parsed else {
        return refused(format!("-c {word}: option -c require a ip address or a sub net such as 192.0.2.x"));
    };
    // A network is here as a whole, or not at all.
    let is_here = UdpSocket::bind((ip, 0)).is_ok();
    if !is_here {
        return refused(format!(
            "-c {word}: this host has no such address, and a copy has the address of a socket: ip address add {ip} dev DEVICE"
        ));
    }
    Ok(format!("{address}{length}"))
}

/// Returns the servers that a filter leaves.
fn filtered(servers: &[String], filter: &str) -> Result<Vec<String>, EarlyExit> {
    let (mut host, mut port) = (None, None);
    let mut words = filter.split_whitespace().filter(|word| !["and", "tcp", "ip", "ip6", "dst"].contains(word));
    while let Some(word) = words.next() {
        match (word, words.next()) {
            ("host", Some(value)) if host.is_none() && value.parse::<IpAddr>().is_ok() => host = value.parse().ok(),
            ("port", Some(value)) if port.is_none() && value.parse::<u16>().is_ok() => port = value.parse().ok(),
            _ => {
                return refused(format!(
                    "-F '{filter}': only [dst] host and [dst] port, joined by `and`, are supported; -x names the servers \
                     too, as sourceIP:sourcePort"
                ));
            }
        }
    }
    let server = |text: &String| -> Option<String> {
        let at = text.parse::<SocketAddr>().ok();
        let own_port = at.map(|at| at.port()).or_else(|| text.parse().ok())?;
        let is_left = port.is_none_or(|port: u16| port == own_port)
            && host.is_none_or(|host: IpAddr| at.is_none_or(|at| at.ip() == host));
        let address = host.or(at.map(|at| at.ip()));
        is_left.then(|| address.map_or(text.clone(), |address| SocketAddr::new(address, own_port).to_string()))
    };
    let left: Vec<String> = servers.iter().filter_map(server).collect();
    if left.is_empty() {
        return refused(format!("-F '{filter}' leaves out every server of -x: {}", servers.join(", ")));
    }
    Ok(left)
}

/// What is copied.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Input {
    Device(String),
    Capture(PathBuf),
}

impl Input {
    /// Finds out what `-i` names, or the only device of this host that is up.
    fn of(options: &Options) -> Result<Self, EarlyExit> {
        let links = Netlink::open().and_then(|mut netlink| netlink.links()).unwrap_or_default();
        let Some(name) = &options.input else {
            let mut up = links.into_iter().filter(|link| link.is_up && link.name != "lo").map(|link| link.name);
            return match (up.next(), up.next()) {
                (Some(device), None) => Ok(Self::Device(device)),
                (None, _) => refused("no device is up: -i names the one to copy from, such as -i lo"),
                (Some(one), Some(other)) => {
                    refused(format!("several devices are up, as {one} and {other}: add -i DEVICE"))
                }
            };
        };
        let is_device = links.iter().any(|link| link.name == *name);
        match (is_device, Path::new(name).is_file()) {
            (true, _) => Ok(Self::Device(name.clone())),
            (false, true) => Ok(Self::Capture(std::path::absolute(name).unwrap_or_else(|_| name.into()))),
            (false, false) if name.contains(',') => refused(format!("-i {name}: run one tcpcopy for each device")),
            (false, false) => refused(format!("-i {name}: there is neither such a device nor such a file")),
        }
    }
}

impl Options {
    fn plan(&self, input: &Input) -> Result<Plan, EarlyExit> {
        let timeout = self.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let mut settings = Settings::default()
            .with("url", format!("http://{}/", self.target))
            .with("ports", self.servers.join(","))
            .with("copies", self.copies.unwrap_or(1).to_string())
            .with("timeout", format!("{timeout}s"));
        if let Some(percentage) = self.percentage {
            settings.set("sessions", format!("{percentage}%"));
        }
        if !self.sources.is_empty() {
            settings.set("source", self.sources.join(","));
        }
        let kind = match input {
            Input::Device(device) => {
                if let Some((_, letter)) =
                    [(self.acceleration, 'a'), (self.times, 'T')].iter().find(|(n, _)| n.is_some())
                {
                    return refused(format!("-{letter} is for a capture: -i FILE"));
                }
                settings.set("live", device.as_str());
                LIVE
            }
            Input::Capture(path) => {
                settings.set("file", path.display().to_string());
                settings.set("speed", format!("{}x", self.acceleration.unwrap_or(1)));
                RECORDED
            }
        };
        let here = "this machine".to_owned();
        let times = TrialTimes { warmup: Nanos::ZERO, duration: DURATION };
        let test = TestPlan { options: settings, ..TestPlan::new(kind, times, &here) };
        Ok(Plan {
            seed: clock::wall().0 & 0xffff_ffff,
            rounds: self.times.unwrap_or(1),
            hosts: [(here, HostReach::This)].into(),
            ..Plan::new(format!("tcpcopy to {}", self.target), vec![test])
        })
    }
}

/// The file of `-l`, in tcpcopy's form.
struct Log(Option<File>);

impl Log {
    fn open(path: Option<&Path>) -> Result<Self, EarlyExit> {
        let Some(path) = path else { return Ok(Self(None)) };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|error| {
            let why = closed_loop::c_error_text(&error);
            EarlyExit::Error(format!("Open log file:{} error: {why}", path.display()))
        })?;
        Ok(Self(Some(file)))
    }

    /// Adds lines, and returns them.
    fn add(&self, level: &str, lines: &[String]) -> anyhow::Result<String> {
        let now = Zoned::now();
        let time = format!("{} +{:03}", now.strftime("%Y/%m/%d %H:%M:%S"), now.millisecond());
        let text = lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{time} [{level}] {line}");
            text
        });
        if let Some(mut file) = self.0.as_ref() {
            file.write_all(text.as_bytes())?;
        }
        Ok(text)
    }
}

/// The file of `-P`, which goes with the daemon.
struct PidFile(Option<PathBuf>);

impl PidFile {
    fn write(path: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = path {
            fs::write(path, format!("{}\n", std::process::id()))?;
        }
        Ok(Self(path.map(Path::to_owned)))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            fs::remove_file(path).ok();
        }
    }
}

/// Runs tcpcopy with its own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    let (words, extras) = closed_loop::without_extras(words);
    let prepared = read(&words).and_then(|options| {
        let plan = options.plan(&Input::of(&options)?)?;
        let log = Log::open(options.log.as_deref())?;
        Ok((options, log, plan))
    });
    let (options, log, plan) = match prepared {
        Ok(prepared) => prepared,
        Err(EarlyExit::Answer(text)) => return closed_loop::print_now(&text).map(|()| REFUSED),
        Err(EarlyExit::Error(why)) => {
            eprintln!("tcpcopy: {why}");
            return Ok(REFUSED);
        }
    };
    tell_without_effect(&options);
    if options.is_daemon && !daemon::is_detached() {
        // What is wrong is told where somebody reads it.
        CheckedPlan::new(plan)?;
        check_target(&options, allowed)?;
        return daemon::detach();
    }
    let log = Rc::new(log);
    let copied = copy(&options, plan, &log, allowed).and_then(|measured| {
        let text = log.add("notice", &counters(&measured))?;
        closed_loop::print_now(&text)?;
        extras.print(&measured)
    });
    if let Err(error) = &copied {
        let text = error.downcast_ref().map_or_else(|| format!("{error:#}"), UserError::one_line);
        log.add("error", &[text])?;
    }
    copied.map(|()| Exit::Pass)
}

fn copy(options: &Options, plan: Plan, log: &Rc<Log>, allowed: &AllowList) -> anyhow::Result<MeasuredLoop> {
    let _pid = PidFile::write(options.pid.as_deref().filter(|_| options.is_daemon))?;
    let (log, counter) = (Rc::clone(log), RunningCounter::default());
    let watcher = move |live| {
        if let Some(line) = counter.line(live) {
            // Whoever cannot write now cannot at the end either, and is told then.
            let _ = log.add("notice", &[line]).and_then(|text| closed_loop::print_now(&text));
        }
    };
    MeasuredLoop::watched(plan, Some(Box::new(watcher)), allowed)
}

/// The answers up to now, while requests are copied.
#[derive(Debug, Default)]
struct RunningCounter {
    n_answered: Cell<u64>,
    /// Since the last line.
    span: Cell<Nanos>,
}

impl RunningCounter {
    /// The next line of the log, when it is due.
    fn line(&self, live: LiveProgress) -> Option<String> {
        self.n_answered.set(self.n_answered.get() + live.growth);
        self.span.set(self.span.get() + live.span);
        (self.span.get() >= OUTPUT_EVERY).then(|| {
            self.span.take();
            format!("c-resp:{}", self.n_answered.get())
        })
    }
}

/// Tells once which of the given options do nothing.
fn tell_without_effect(options: &Options) {
    let given: Vec<String> = options.without_effect.iter().map(|letter| format!("-{letter}")).collect();
    if !given.is_empty() {
        let why = if options.without_effect.contains(&'s') { "no intercept is needed, and " } else { "" };
        eprintln!("tcpcopy: {} has no effect: {why}copies are sent by sockets of this host", given.join(" "));
    }
    if options.pid.is_some() && !options.is_daemon {
        eprintln!("tcpcopy: -P has no effect without -d");
    }
}

/// Verifies before the daemon starts that its target is allowed and answers.
fn check_target(options: &Options, allowed: &AllowList) -> Result<(), UserError> {
    let Some(target) = UrlTarget::of(&format!("http://{}/", options.target)) else { return Ok(()) };
    closed_loop::check_reachable(&target, allowed).map_err(|error| match error {
        TargetError::NotAllowed(user_error) => user_error,
        TargetError::Unknown(why) => UserError::new(Exit::Preflight, format!("{}: {why}", options.target)),
        TargetError::Unreachable(at, cause) => {
            UserError::new(Exit::Preflight, format!("nobody accepts connections at {at}"))
                .with_line("why", cause.to_string())
        }
    })
}

/// Returns the counters of a run, those of tcpcopy first.
fn counters(measured: &MeasuredLoop) -> Vec<String> {
    let tests = &measured.0.run.tests;
    let records = || {
        let trials = tests.iter().flat_map(|test| &test.trials);
        trials.flat_map(|trial| trial.records.values()).filter(|record| record.side == Side::Initiator)
    };
    let mut account = ReplayRecord::default();
    for replay in records().filter_map(|record| record.replay.as_ref()) {
        account.merge(replay);
    }
    let mut lines = counter_lines(&account, &records().collect::<Vec<_>>());
    // How the kernel was asked changes no count.
    let notes = records().flat_map(|record| &record.notes).filter(|note| note.id != "reactor");
    lines.extend(notes.map(|note| note.text.clone()));
    lines
}

fn counter_lines(account: &ReplayRecord, records: &[&Record]) -> Vec<String> {
    let total = |name: &str| records.iter().filter_map(|record| record.totals.get(name)).sum::<u64>();
    let n_connections = total(count::CONNECTIONS);
    let n_left_out: u64 = account.left_out.values().sum();
    let mut lines = vec![
        // All connections are closed at the end.
        format!("active:0,rel:{n_connections}"),
        format!("conns:{n_connections},c-resp:{}", account.n_answered),
        format!("clt cont:{}", account.n_recorded),
        format!(
            "requests copied:{},answered:{},failed:{},cut off:{},not sent:{},no connection free:{},left out:{n_left_out}",
            account.n_to_send(),
            account.n_answered,
            account.n_failed,
            account.n_cut_off,
            account.n_not_sent,
            account.n_without_connection,
        ),
    ];
    lines.extend(account.left_out.iter().map(|(why, n)| format!("left out:{n}, {why}")));
    let failures = records.iter().flat_map(|record| record.errors.iter());
    lines.extend(failures.map(|(failure, n)| format!("failed:{n}, {failure}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(line: &str) -> Result<Options, EarlyExit> {
        // A word may hold blanks, written as `_`.
        read(&line.split_whitespace().map(|word| word.replace('_', " ")).collect::<Vec<_>>())
    }

    fn settings(line: &str, input: &Input) -> Settings {
        reading(line).unwrap().plan(input).unwrap().tests[0].options.clone()
    }

    #[test]
    fn the_options_of_a_command_line_become_those_of_a_replay() {
        let live = settings(
            "-x 80-192.0.2.9:8080,198.51.100.1:81-192.0.2.9:8080 -n3 -r 20 -t 5 -c 127.0.0.2 -s 192.0.2.7 -C4",
            &Input::Device("eth0".to_owned()),
        );
        let has = |settings: &Settings, name: &str| settings.text(name).unwrap_or_default();
        for (name, value) in [
            ("live", "eth0"),
            ("url", "http://192.0.2.9:8080/"),
            ("ports", "80,198.51.100.1:81"),
            ("copies", "3"),
            ("sessions", "20%"),
            ("timeout", "5s"),
            ("source", "127.0.0.2"),
        ] {
            assert_eq!(has(&live, name), value, "{name}");
        }
        let line = "-x 80-[::1]:8080 -i day.pcap -a 4 -T 3";
        let offline = settings(line, &Input::Capture("/day.pcap".into()));
        assert_eq!((has(&offline, "file"), has(&offline, "speed")), ("/day.pcap".to_owned(), "4x".to_owned()));
        assert_eq!(
            (has(&offline, "url"), has(&offline, "timeout")),
            ("http://[::1]:8080/".to_owned(), "600s".to_owned())
        );
        assert_eq!(reading(line).unwrap().plan(&Input::Capture("/day.pcap".into())).unwrap().rounds, 3);
    }

    #[test]
    fn every_plan_is_one_that_runs() {
        let options = reading("-x 80-127.0.0.1:8080 -r 50 -n 1023 -t 86400").unwrap();
        for input in [Input::Device("lo".to_owned()), Input::Capture("/day.pcap".into())] {
            CheckedPlan::new(options.plan(&input).unwrap()).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_its_reason() {
        for (line, words) in [
            ("", "no -x argument"),
            ("-x 80", "is invalid"),
            ("-x 80-8080", "is invalid"),
            ("-x 80-192.0.2.9", "is invalid"),
            ("-x 0-192.0.2.9:1", "is invalid"),
            ("-x 80@02:00:00:00:00:01-192.0.2.9:80", "MAC"),
            ("-x 80-192.0.2.9:1,81-192.0.2.8:1", "two targets"),
            ("-x 80-192.0.2.9:1 -n 1024", "from 1 to 1023"),
            ("-x 80-192.0.2.9:1 -r 0", "from 1 to 100"),
            ("-x 80-192.0.2.9:1 -a fast", "-a fast"),
            ("-x 80-192.0.2.9:1 -c 192.0.2.x", "no such address"),
            ("-x 80-192.0.2.9:1 -c here", "sub net"),
            ("-x 80-192.0.2.9:1 -F udp_port_80", "joined by `and`"),
            ("-x 80-192.0.2.9:1 -F port_81", "leaves out every server"),
            ("-x 80-192.0.2.9:1 -o eth0", "the route"),
            ("-x 80-192.0.2.9:1 -W", "-W is not supported"),
            ("-x 80-192.0.2.9:1 eth0", "`eth0`"),
            ("-z", "'z'"),
        ] {
            let Err(EarlyExit::Error(why)) = reading(line) else { panic!("{line} is refused") };
            assert!(why.contains(words), "{line}: {why}");
        }
        let live = reading("-x 80-192.0.2.9:1 -a 2").unwrap().plan(&Input::Device("eth0".to_owned()));
        assert!(matches!(live, Err(EarlyExit::Error(why)) if why.contains("for a capture")));
    }

    #[test]
    fn a_filter_narrows_the_servers() {
        for (filter, servers) in [
            ("tcp_and_dst_port_80", "80"),
            ("dst_host_192.0.2.1_and_tcp", "192.0.2.1:80,192.0.2.1:81"),
            ("host_2001:db8::1_and_port_81", "[2001:db8::1]:81"),
        ] {
            let options = reading(&format!("-x 80-192.0.2.9:1,81-192.0.2.9:1 -F {filter}")).unwrap();
            assert_eq!(options.servers.join(","), servers, "{filter}");
        }
    }

    #[test]
    fn the_answers_up_to_now_are_told_at_tcpcopys_intervals() {
        let counter = RunningCounter::default();
        let second =
            LiveProgress { elapsed: Nanos::ZERO, growth: 10, span: Nanos::from_secs(1), measuring: true, p99: None };
        let lines: Vec<_> = (1..=65).filter_map(|at| Some((at, counter.line(second)?))).collect();
        assert_eq!(lines, [(30, "c-resp:300".to_owned()), (60, "c-resp:600".to_owned())]);
    }

    #[test]
    fn the_counters_say_what_became_of_every_request() {
        let mut record = Record::empty(Side::Initiator);
        record.totals.insert(count::CONNECTIONS.to_owned(), 4);
        record.errors.add("read: timeout", 2);
        let account = ReplayRecord {
            n_recorded: 10,
            left_out: [("malformed".to_owned(), 1)].into(),
            n_copies: 2,
            n_answered: 15,
            n_failed: 2,
            n_cut_off: 1,
            ..ReplayRecord::default()
        };
        assert_eq!(
            counter_lines(&account, &[&record]),
            [
                "active:0,rel:4",
                "conns:4,c-resp:15",
                "clt cont:10",
                "requests copied:18,answered:15,failed:2,cut off:1,not sent:0,no connection free:0,left out:1",
                "left out:1, malformed",
                "failed:2, read: timeout",
            ]
        );
    }
}
