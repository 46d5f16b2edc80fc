//! The face of iperf3, both ends.
//!
//! Unlike the faces of other tools it drives the engine in this process, without a Plan and its agents: rows of every stream are
//! printed while the test runs, from counts that a Record has only at its end, and what ends a test (a number of blocks, a file, a
//! server) is no span of a trial. So what the user asked for stays iperf3's own words, and `fathom tcp --protocol iperf3` is the same
//! client as a Plan, in the kinds `iperf3_tcp` and `iperf3_udp`.

mod client;
mod diskfile;
mod help;
mod json;
mod options;
mod output;
mod server;
mod show;
mod text;
mod units;

use options::{Options, Refusal, Role};

use super::load;
use crate::{allow::Allowed, exit::Exit};

/// iperf3's exit code for whatever goes wrong.
const FAILED: Exit = Exit::Of(1);
/// The version whose behaviour and text these are.
const LIKE: &str = "3.12";

/// How this end calls itself.
fn version() -> String {
    format!("iperf {LIKE} ({})", crate::wire_up::TOOL)
}

/// What iperf3 says of the system: the kernel and its host.
fn system() -> String {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let words =
        [read("ostype"), read("hostname"), read("osrelease"), read("version"), std::env::consts::ARCH.to_owned()];
    words.join(" ")
}

/// Runs it with iperf3's own arguments.
pub(super) fn run(words: &[String], _allowed: &Allowed) -> anyhow::Result<Exit> {
    match options::read(words) {
        Ok(options) => match options.role.clone() {
            Some(Role::Client(host)) => client::run(&options, &host),
            Some(Role::Server) | None => server::run(&options),
        },
        Err(Refusal::Version) => {
            load::say(&format!("{}\n{}\n{}\n", version(), system(), help::FEATURES))?;
            Ok(Exit::Pass)
        }
        Err(Refusal::Help) => {
            load::say(&help::usage())?;
            Ok(Exit::Pass)
        }
        Err(Refusal::Syntax(said)) => {
            eprint!("iperf3: {said}\n{}", help::usage());
            Ok(FAILED)
        }
        Err(Refusal::Parameter(said)) => {
            eprintln!("iperf3: parameter error - {said}\n");
            load::say(&help::usage())?;
            Ok(FAILED)
        }
    }
}

/// Writes down a test as iperf3's server would print it, without printing it.
pub(super) fn transcript() -> Box<dyn fathom_transport::iperf3::Watch> {
    let lines = output::Output::nowhere().guest(None);
    Box::new(show::Show::new(&Options::default(), text::End::Server, lines))
}

/// What goes wrong before anything is measured, as iperf3 says it.
fn refuse(options: &Options, said: &str, hint: Option<&str>) -> anyhow::Result<Exit> {
    if options.marks.has(options::Mark::Json) {
        let lines = output::Output::new(options.logfile.as_deref(), None)?.guest(None);
        show::Show::new(options, text::End::Client, lines).conclude(Some(said.to_owned()));
        return Ok(FAILED);
    }
    eprintln!("iperf3: error - {said}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    Ok(FAILED)
}
