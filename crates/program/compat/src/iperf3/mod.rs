//! Drop-in for iperf3, both client and server.
//!
//! Unlike other drop-in tools, it drives the engine in this process, without a plan and its agents. It prints rows for every
//! stream during the test, but a record contains the counts only at its end. A test can also end after a number of blocks, at
//! the end of a file, or with the server, which a trial's duration cannot express. The options therefore stay in iperf3's
//! terms. `fathom tcp --protocol iperf3` runs the same client as a plan, with the kinds `iperf3_tcp` and `iperf3_udp`.

mod client;
mod diskfile;
mod help;
mod json;
mod options;
mod output;
mod reporter;
mod server;
mod text;
mod units;

use options::{Iperf3Role, Options, OptionsError};

use super::closed_loop;
use fathom_run::{allow::AllowList, exit::Exit};

/// iperf3's exit code for all errors.
const FAILED: Exit = Exit::Code(1);
/// The version whose behavior and text this drop-in reproduces.
const COMPATIBLE_VERSION: &str = "3.12";

/// Returns the version text of this drop-in.
fn version() -> String {
    format!("iperf {COMPATIBLE_VERSION} ({})", fathom_run::registry::TOOL)
}

/// Returns iperf3's description of the system: the kernel and the host.
fn system() -> String {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let words =
        [read("ostype"), read("hostname"), read("osrelease"), read("version"), std::env::consts::ARCH.to_owned()];
    words.join(" ")
}

/// Runs iperf3 with its own arguments.
pub(super) fn run(words: &[String], _allowed: &AllowList) -> anyhow::Result<Exit> {
    match options::read(words) {
        Ok(options) => match options.role.clone() {
            Some(Iperf3Role::Client(host)) => client::run(&options, &host),
            Some(Iperf3Role::Server) | None => server::run(&options),
        },
        Err(OptionsError::Version) => {
            closed_loop::print_now(&format!("{}\n{}\n{}\n", version(), system(), help::FEATURES))?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Help) => {
            closed_loop::print_now(&help::usage())?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Syntax(said)) => {
            eprint!("iperf3: {said}\n{}", help::usage());
            Ok(FAILED)
        }
        Err(OptionsError::Parameter(said)) => {
            eprintln!("iperf3: parameter error - {said}\n");
            closed_loop::print_now(&help::usage())?;
            Ok(FAILED)
        }
    }
}

/// Returns an observer that records a test as iperf3's server prints it, without printing.
pub(super) fn transcript() -> Box<dyn fathom_interop::iperf3::TestObserver> {
    let lines = output::Output::nowhere().start_test(None);
    Box::new(reporter::TestReporter::new(&Options::default(), text::ReportSide::Server, lines))
}

/// Reports an error before the measurement, in iperf3's format.
fn refuse(options: &Options, said: &str, hint: Option<&str>) -> anyhow::Result<Exit> {
    if options.flags.has(options::Flag::Json) {
        let lines = output::Output::new(options.logfile.as_deref(), None)?.start_test(None);
        reporter::TestReporter::new(options, text::ReportSide::Client, lines).finish(Some(said.to_owned()));
        return Ok(FAILED);
    }
    eprintln!("iperf3: error - {said}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    Ok(FAILED)
}
