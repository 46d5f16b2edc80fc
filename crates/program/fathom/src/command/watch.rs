//! `fathom watch`: the counters of a host live, as tables of rates, with findings about the last seconds.

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal as _, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use fathom_model::{Environment, units::Nanos};
use fathom_monitor::interfaces;
use fathom_run::exit::{Exit, UserError};
use fathom_sys::{
    clock,
    process::signal::{self, SignalWatch},
};
use fathom_watch::{
    Ending, JUDGED, Line, QueueReading, Recorder, Samples, ScrapeEndpoint, Screen, View, Viewer, exposition, lines,
    printed_width, queue_lines, recording,
};

use super::watch_source::{self, CounterSource, NamedSource};

/// Sampling costs some hundred microseconds, which must stay below 1 % of a core.
const INTERVAL_MIN: Nanos = Nanos::from_millis(100);
/// A longer interval would show a mean over too long to act on.
const INTERVAL_MAX: Nanos = Nanos::from_secs(3600);

pub(super) fn define(command: Command) -> Command {
    let flag = |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    let value =
        |name: &'static str, of: &'static str, help: &'static str| Arg::new(name).long(name).value_name(of).help(help);
    command
        .arg(value("interval", "SPAN", "time between two samples, from 100ms").default_value("1s"))
        .arg(value("count", "N", "end after this many intervals").value_parser(value_parser!(u64).range(1..)))
        .arg(flag("once", "show one interval and end").conflicts_with("count"))
        .arg(flag("json", "print one JSON document of one interval").conflicts_with("count"))
        .arg(flag("ndjson", "print a line of JSON for each interval").conflicts_with("json"))
        .arg(value("record", "FILE", "also keep every sample in a new file").value_parser(value_parser!(PathBuf)))
        .arg(
            value("replay", "FILE", "show a recording instead of this host")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["record", "metrics", "queues", "interval"])
                .conflicts_with_all(watch_source::argument_names()),
        )
        .arg(
            value("metrics", "ADDRESS:PORT", "also serve the counters for a scraper (OpenMetrics, path /metrics)")
                .value_parser(scrape_address),
        )
        .arg(
            value("queues", "INTERFACE", "show the queues of one interface: channels, rings, offloads, the share of each")
                .conflicts_with_all(["record", "metrics", "host"]),
        )
        .args(watch_source::arguments())
        .after_help(
            "Examples:\n  fathom watch\n  fathom watch --once\n  fathom watch --interval 100ms --record incident.ndjson\n  fathom watch --replay incident.ndjson\n  fathom watch --queues eth0\n  fathom watch --host 10.0.0.2 --key-file server.key\n  fathom watch --lab pair --host b\n  fathom watch --hosts rack.toml --host b1\n  fathom watch --metrics 127.0.0.1:9100 --ndjson",
        )
}

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let format = match () {
        () if matches.get_flag("json") => Format::Json,
        () if matches.get_flag("ndjson") => Format::Lines,
        () => Format::Text,
    };
    let is_once = matches.get_flag("once") || format == Format::Json;
    let count = if is_once { Some(1) } else { matches.get_one::<u64>("count").copied() };
    let interval = interval(matches.get_one::<String>("interval").expect("it has a default"))?;
    if let Some(file) = matches.get_one::<PathBuf>("replay") {
        return replay(file, format, count);
    }
    let shown = Shown { count, interval, signals: signal::watch()? };
    if let Some(name) = matches.get_one::<String>("queues") {
        if format != Format::Text {
            return Err(UserError::new(Exit::Usage, "--queues has no JSON form: it is for people")
                .with_line("use", "fathom watch --ndjson        # `queues` has the share of each queue")
                .into());
        }
        return watch_queues(name, &shown);
    }
    let mut host = LiveHost::open(matches, interval)?;
    let is_live = count.is_none() && format == Format::Text && io::stdout().is_terminal();
    let exit = if is_live { on_screen(&mut host, &shown) } else { printed(&mut host, &shown, format) };
    let closed = host.source.close();
    let exit = exit?;
    closed?;
    Ok(exit)
}

/// How a view is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    /// One document.
    Json,
    /// A document per line.
    Lines,
}

impl Format {
    fn print(self, out: &mut impl Write, view: &View, is_first: bool) -> anyhow::Result<()> {
        let text = match self {
            Self::Json => serde_json::to_string_pretty(view)?,
            Self::Lines => view.to_line()?,
            Self::Text => return print_lines(out, &lines(view, printed_width()), is_first),
        };
        writeln!(out, "{text}").and_then(|()| out.flush()).context(UNWRITABLE)
    }
}

/// What failed if the standard output takes no more.
const UNWRITABLE: &str = "cannot write to the standard output";

fn print_lines(out: &mut impl Write, lines: &[Line], is_first: bool) -> anyhow::Result<()> {
    let mut text = if is_first { String::new() } else { "\n".to_owned() };
    for line in lines {
        text.push_str(&fathom_run::terminal::sanitized(&line.text));
        text.push('\n');
    }
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context(UNWRITABLE)
}

/// Parses the address at which a scraper finds the counters.
fn scrape_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "give ADDRESS:PORT, such as 127.0.0.1:9100 or [::1]:9100")
}

/// Parses the time between two samples.
fn interval(text: &str) -> Result<Nanos, UserError> {
    let usage = |why: String| UserError::new(Exit::Usage, format!("--interval {text}: {why}"));
    let interval: Nanos = text.parse().map_err(|error| usage(format!("{error}")))?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        return Ok(interval);
    }
    Err(usage(format!("from {INTERVAL_MIN} to {INTERVAL_MAX}")))
}

/// How long to show, and how often.
struct Shown {
    /// The number of intervals; without it, until the user ends it.
    count: Option<u64>,
    interval: Nanos,
    signals: SignalWatch,
}

impl Shown {
    /// Returns true if this many intervals were all.
    fn is_enough(&self, n: u64) -> bool {
        self.count.is_some_and(|count| n >= count)
    }

    /// Ended by the user: a view without a planned end ends well, anything else was cut short.
    fn exit(&self) -> Exit {
        match self.signals.received() {
            Some(signal) => Exit::Signalled(signal),
            None => Exit::Pass,
        }
    }
}

/// The host, and where else its samples go.
struct LiveHost {
    viewer: Viewer,
    source: CounterSource,
    samples: Samples,
    recorder: Option<(PathBuf, Recorder<File>)>,
    endpoint: Option<ScrapeEndpoint>,
}

impl LiveHost {
    fn open(matches: &ArgMatches, interval: Nanos) -> anyhow::Result<Self> {
        let endpoint = matches.get_one::<SocketAddr>("metrics").map(|address| scrapes(*address)).transpose()?;
        let NamedSource { name, environment, source } = NamedSource::open(matches)?;
        let recorder =
            matches.get_one::<PathBuf>("record").map(|path| record(path, &name, &environment)).transpose()?;
        let samples = Samples::new(usize::try_from(JUDGED.0 / interval.0).unwrap_or(0) + 1);
        Ok(Self { viewer: Viewer::new(name, environment), source, samples, recorder, endpoint })
    }

    /// Takes a sample, and returns the view of the interval that it ends.
    fn sample(&mut self) -> anyhow::Result<Option<View>> {
        self.source.sample(&mut self.samples)?;
        let at = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
        let losses = self.source.losses();
        if let Some((path, recorder)) = &mut self.recorder {
            recorder
                .write(&self.samples, &at, losses.clone())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.show(exposition(&self.samples, &losses));
        }
        let mut view = self.viewer.view(&self.samples, self.source.live(&self.samples), at);
        if let Some(view) = &mut view {
            view.losses.extend(losses);
        }
        Ok(view)
    }
}

fn scrapes(address: SocketAddr) -> anyhow::Result<ScrapeEndpoint> {
    let endpoint = ScrapeEndpoint::open(address).map_err(|error| {
        UserError::new(Exit::Preflight, format!("cannot listen on {address}")).with_line("why", error.to_string())
    })?;
    eprintln!("counters at http://{}/metrics", endpoint.address);
    Ok(endpoint)
}

/// Begins a recording. A file that is there already is not overwritten.
fn record(path: &Path, host: &str, environment: &Environment) -> anyhow::Result<(PathBuf, Recorder<File>)> {
    let failed = |error: io::Error| {
        let what = UserError::new(Exit::Preflight, format!("cannot record to {}", path.display()))
            .with_line("why", error.to_string());
        let is_there = error.kind() == io::ErrorKind::AlreadyExists;
        if is_there { what.with_line("fix", "name a new file: nothing is written over") } else { what }
    };
    let file = File::create_new(path).map_err(failed)?;
    Ok((path.to_owned(), Recorder::new(file, host, environment).map_err(failed)?))
}

/// Prints each interval, until there were enough or the user ends it.
fn printed(host: &mut LiveHost, shown: &Shown, format: Format) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    let mut n = 0;
    // The first reading of another host starts its reader, which takes a while.
    host.sample()?;
    let mut due = clock::now();
    while !shown.is_enough(n) {
        due += shown.interval;
        if shown.signals.wait_until(due)?.is_some() {
            return Ok(shown.exit());
        }
        if let Some(view) = host.sample()? {
            format.print(&mut out, &view, n == 0)?;
            n += 1;
        }
    }
    Ok(Exit::Pass)
}

/// Shows the newest interval on the terminal, until the user ends it.
fn on_screen(host: &mut LiveHost, shown: &Shown) -> anyhow::Result<Exit> {
    let waiting = Line::waiting(shown.interval);
    let mut screen = Screen::open(Box::new(move |_| vec![waiting.clone()]))?;
    // What was told before is behind the screen.
    let scraped_at = host.endpoint.as_ref().map(|endpoint| Line::scraped_at(endpoint.address));
    let mut due = clock::now();
    loop {
        if let Some(view) = host.sample()? {
            let scraped_at = scraped_at.clone();
            screen.show(Box::new(move |width| {
                let mut lines = lines(&view, width);
                lines.splice(1..1, scraped_at.clone());
                lines
            }));
        }
        due += shown.interval;
        if screen.wait_until(due)? == Ending::Quit {
            return Ok(Exit::Pass);
        }
        if shown.signals.received().is_some() {
            return Ok(shown.exit());
        }
    }
}

/// Reads the queues of an interface.
fn read_queues(name: &str) -> Result<Rc<QueueReading>, UserError> {
    QueueReading::read(name, clock::now()).map(Rc::new).map_err(|error| {
        let known: Vec<String> = interfaces().unwrap_or_default().into_iter().map(|interface| interface.name).collect();
        UserError::new(Exit::Usage, format!("cannot read the queues of {name}: {}", error.source))
            .with_line("known", known.join(", "))
    })
}

/// Shows the queues of an interface.
fn watch_queues(name: &str, shown: &Shown) -> anyhow::Result<Exit> {
    let mut earlier = read_queues(name)?;
    let waiting = Line::waiting(shown.interval);
    let is_live = shown.count.is_none() && io::stdout().is_terminal();
    let mut screen = if is_live { Some(Screen::open(Box::new(move |_| vec![waiting.clone()]))?) } else { None };
    let mut due = clock::now();
    let mut n = 0;
    while !shown.is_enough(n) {
        due += shown.interval;
        if let Some(screen) = &mut screen {
            if screen.wait_until(due)? == Ending::Quit {
                return Ok(Exit::Pass);
            }
        } else {
            shown.signals.wait_until(due)?;
        }
        if shown.signals.received().is_some() {
            return Ok(shown.exit());
        }
        let later = read_queues(name).map_err(|error| {
            let gone = UserError::new(Exit::Failed, format!("the interface {name} disappeared while it was watched"));
            gone.with_line("why", error.what())
        })?;
        if let Some(screen) = &mut screen {
            let (name, before, after) = (name.to_owned(), Rc::clone(&earlier), Rc::clone(&later));
            screen.show(Box::new(move |width| queue_lines(&name, &before, &after, width)));
        } else {
            let lines = queue_lines(name, &earlier, &later, printed_width());
            print_lines(&mut io::stdout().lock(), &lines, n == 0)?;
        }
        earlier = later;
        n += 1;
    }
    Ok(Exit::Pass)
}

/// Prints a recording as it would have been printed live, without the waits.
fn replay(path: &Path, format: Format, count: Option<u64>) -> anyhow::Result<Exit> {
    let unusable =
        |why: String| UserError::new(Exit::Usage, format!("cannot replay {}", path.display())).with_line("why", why);
    let file = File::open(path).map_err(|error| unusable(error.to_string()))?;
    let mut replay = recording(BufReader::new(file)).map_err(|error| unusable(error.to_string()))?;
    let mut viewer = Viewer::new(replay.host(), replay.environment().clone());
    let mut samples = Samples::new(usize::try_from(JUDGED.0 / INTERVAL_MIN.0).unwrap_or(0) + 1);
    let mut out = io::stdout().lock();
    let mut n = 0;
    while count.is_none_or(|count| n < count) {
        let Some(at) = replay.next(&mut samples).map_err(|error| unusable(error.to_string()))? else { break };
        samples.keep(JUDGED);
        if let Some(mut view) = viewer.view(&samples, None, at) {
            view.losses.extend(replay.losses());
            format.print(&mut out, &view, n == 0)?;
            n += 1;
        }
    }
    if n == 0 {
        return Err(unusable("it has fewer than two samples".to_owned()).into());
    }
    Ok(Exit::Pass)
}
