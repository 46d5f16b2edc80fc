//! The HTTP responder of `fathom serve`: its options, its listeners, its threads.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    thread,
};

use clap::{Arg, ArgAction, ArgMatches, value_parser};
use fathom_engine::{Error, StopFlag};
use fathom_http::responder::{
    Certificate, DELAY, KEEP_ALIVE, Responder, ResponderCounts, ResponderOptions, SIZE, STALL, STATUSES,
};
use fathom_model::{OptionDoc, Settings, settings::SettingError};
use fathom_sys::{clock, process::threads};

use super::{http_xdp, tool::thread_error};
use fathom_run::exit::{Exit, UserError, engine_error};

/// The options shared with the kinds of tests, with their value names.
const SHARED: [(&OptionDoc, &str, &str); 5] = [
    (&SIZE, "http-size", "BYTES"),
    (&DELAY, "http-delay", "TIMES"),
    (&STALL, "http-stall", "SPAN/PERIOD"),
    (&STATUSES, "http-statuses", "MIX"),
    (&KEEP_ALIVE, "http-keep-alive", "N"),
];

/// Returns the options of the responder, under their own heading.
pub(super) fn arguments() -> Vec<Arg> {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).help_heading("HTTP responder")
    };
    let file = |name, help| text(name, "FILE", help).value_parser(value_parser!(PathBuf));
    let mut arguments = vec![
        text("http-port", "PORT", "port of the HTTP responder, 0 for none")
            .default_value("8080")
            .value_parser(value_parser!(u16)),
        file("http-unix", "listen at this path as well").value_name("PATH"),
        text("http-threads", "N", "worker threads, among which the kernel spreads connections")
            .default_value("1")
            .value_parser(value_parser!(u16).range(1..=1024)),
    ];
    for (option, name, value) in SHARED {
        let default = option.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
        let help = format!("{}{default}", option.help.replace("our responder", "the responder"));
        arguments.push(text(name, value, "").help(help));
    }
    arguments.extend([
        text("http-seed", "N", "seed of random delays [default: from the clock]").value_parser(value_parser!(u64)),
        text("http-tls", "", "speak https, with a certificate that is made at the start unless one is given")
            .action(ArgAction::SetTrue),
        file("http-cert", "PEM file of the certificate for --http-tls").requires("http-tls").requires("http-key"),
        file("http-key", "PEM file of its private key").requires("http-cert"),
    ]);
    arguments.extend(http_xdp::arguments());
    arguments
}

/// Answers requests until it is stopped, and returns what it tells at the end, if it has answered any.
type Answering = Box<dyn FnOnce(&StopFlag) -> Result<Option<String>, Error> + Send>;

/// Listening responders. After the start, each has its own thread.
pub(super) struct HttpResponders {
    /// One for each listener: the start of its URL.
    lines: Vec<String>,
    /// The seed, if something is random.
    seed: Option<u64>,
    responders: Vec<Answering>,
}

/// Responders that answer requests.
pub(super) struct RunningResponders(Vec<thread::JoinHandle<Result<Option<String>, Error>>>);

impl HttpResponders {
    /// Listens as the options say. Requests are not answered yet, but by a program.
    pub(super) fn listen(matches: &ArgMatches, address: IpAddr, options: ResponderOptions) -> anyhow::Result<Self> {
        let scheme = if options.certificate.is_some() { "https" } else { "http" };
        let seed = options.delay.is_some().then_some(options.seed);
        let mut http = Self { lines: Vec::new(), seed, responders: Vec::new() };
        let port = *matches.get_one::<u16>("http-port").expect("it has a default");
        if let Some(device) = matches.get_one::<String>("http-xdp") {
            let (lines, responder) = http_xdp::open(matches, device, (address, port), &options)?;
            let watch: Answering = Box::new(move |stop| http_xdp::watch(&responder, stop));
            return Ok(Self { lines, responders: vec![watch], ..http });
        }
        if port != 0 {
            let responder = Responder::bind(
                SocketAddr::new(address, port),
                &fathom_sys::policy::AllowedPeers::anybody(),
                options.clone(),
            )
            .map_err(|error| responder_error(&error, "choose another port with --http-port, or 0 for none"))?;
            http.add(format!("{scheme:<7} {}", responder.address()), responder);
        }
        if let Some(path) = matches.get_one::<PathBuf>("http-unix") {
            let responder = Responder::bind_unix(path, options)
                .map_err(|error| responder_error(&error, "choose another path with --http-unix"))?;
            http.add(format!("{scheme:<7} unix:{}", path_text(path)), responder);
        }
        Ok(http)
    }

    fn add(&mut self, place: String, responder: Responder) {
        self.lines.push(place);
        self.responders.push(Box::new(move |stop| responder.run(stop).map(|counts| told(&counts))));
    }

    /// Returns true if there is no responder.
    pub(super) fn is_empty(&self) -> bool {
        self.responders.is_empty()
    }

    /// Returns one line per listener, and one for the seed.
    pub(super) fn listening_lines(&self) -> impl Iterator<Item = String> {
        self.lines.iter().cloned().chain(self.seed.map(|seed| format!("seed    {seed}")))
    }

    /// Answers requests until stopped.
    pub(super) fn start(self, stop: &StopFlag) -> Result<RunningResponders, UserError> {
        let start = |answer: Answering| {
            let stop = stop.clone();
            threads::start("http", move || answer(&stop))
        };
        let started = self.responders.into_iter().map(start).collect::<Result<_, _>>();
        started.map(RunningResponders).map_err(|error| thread_error("answer requests", &error))
    }
}

impl RunningResponders {
    /// Returns true if a responder has ended early. That happens only on failure.
    pub(super) fn has_failed(&self) -> bool {
        self.0.iter().any(thread::JoinHandle::is_finished)
    }

    /// Waits for all responders and reports their counts on stderr.
    pub(super) fn join(self) -> anyhow::Result<()> {
        for thread in self.0 {
            // A panic has already printed its message.
            let Ok(outcome) = thread.join() else { continue };
            if let Some(text) = outcome.map_err(|error| engine_error(&error))? {
                eprintln!("http: {text}");
            }
        }
        Ok(())
    }
}

/// What a responder with sockets tells at the end, if anybody has asked it.
fn told(counts: &ResponderCounts) -> Option<String> {
    let ResponderCounts { requests, connections, rejected, timed_out, .. } = counts;
    (*connections > 0).then(|| {
        format!(
            "{requests} requests answered on {connections} connections, {rejected} refused, {timed_out} connections ended for slowness"
        )
    })
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the error for a listener or a file, with `fix` as the hint unless the error has a better one.
fn responder_error(error: &Error, fix: &'static str) -> UserError {
    let user_error = engine_error(error);
    if error.hint().is_some() { user_error } else { user_error.with_line("fix", fix) }
}

/// Returns the responder options of the command line.
pub(super) fn options(matches: &ArgMatches) -> Result<ResponderOptions, UserError> {
    let mut settings = Settings::default();
    for (option, name, _) in SHARED {
        if let Some(text) = matches.get_one::<String>(name) {
            settings.set(option.name, text);
        }
    }
    let seed = matches.get_one::<u64>("http-seed").copied().unwrap_or_else(|| clock::wall().0 & 0xffff_ffff);
    let rows: Vec<OptionDoc> = SHARED.iter().map(|(option, ..)| **option).collect();
    let options = settings.complete(&rows).and_then(|settings| ResponderOptions::read(&settings, seed));
    let mut options = options.map_err(|error| UserError::new(Exit::Usage, usage(&error)))?;
    options.workers = matches.get_one::<u16>("http-threads").copied().map_or(1, usize::from);
    let files = matches.get_one::<PathBuf>("http-cert").zip(matches.get_one::<PathBuf>("http-key"));
    let given = |(chain, key): (&PathBuf, &PathBuf)| Certificate::Files { chain: chain.clone(), key: key.clone() };
    options.certificate = matches.get_flag("http-tls").then(|| files.map_or(Certificate::SelfMade, given));
    Ok(options)
}

/// Returns the message for an invalid setting, with the name of its command-line option.
fn usage(error: &SettingError) -> String {
    match error {
        SettingError::Unknown { .. } => error.to_string(),
        SettingError::Unit { name, cause } => format!("--http-{name}: {cause}"),
        SettingError::NotAllowed { name, expected, given } => format!("--http-{name} takes {expected}, not `{given}`"),
    }
}
