//! Drop-in for iperf3, both client and server.
//!
//! Unlike other drop-in tools, it drives the engine in this process, without a plan and its agents. It prints rows for every
//! stream during the test, but a record contains the counts only at its end. A test can also end after a number of blocks, at
//! the end of a file, or with the server, which a trial's duration cannot express. The options therefore stay in iperf3's
//! terms. `fathom tcp --protocol iperf3` runs the same client as a plan, with the kinds `iperf3_tcp` and `iperf3_udp`.

mod client;
mod diskfile;
mod help;
mod identity;
mod json;
mod options;
mod output;
mod reporter;
mod server;
mod text;
mod units;

use options::{Iperf3Role, Options, OptionsError};
pub(super) use units::{number_and_suffix, two_digits};

use super::closed_loop;
use fathom_run::{allow::AllowList, exit::Exit};

/// Runs it with iperf3's own arguments.
pub(super) fn run(words: &[String], _allowed: &AllowList) -> anyhow::Result<Exit> {
    match options::read(words) {
        Ok(options) => match options.role.clone() {
            Some(Iperf3Role::Client(host)) => client::run(&options, &host),
            Some(Iperf3Role::Server) | None => server::run(&options),
        },
        Err(OptionsError::Version) => {
            closed_loop::print_now(&format!("{}\n{}\n{}\n", identity::version(), identity::system(), help::FEATURES))?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Help) => {
            closed_loop::print_now(&help::usage())?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Syntax(said)) => {
            eprint!("iperf3: {said}\n{}", help::usage());
            Ok(identity::FAILED)
        }
        Err(OptionsError::Parameter(said)) => {
            eprintln!("iperf3: parameter error - {said}\n");
            closed_loop::print_now(&help::usage())?;
            Ok(identity::FAILED)
        }
    }
}

/// Returns an observer that records a test as iperf3's server prints it, without printing.
pub(super) fn transcript() -> Box<dyn fathom_interop::iperf3::TestObserver> {
    let lines = output::Output::nowhere().start_test(None);
    Box::new(reporter::TestReporter::new(&Options::default(), text::ReportSide::Server, lines))
}
