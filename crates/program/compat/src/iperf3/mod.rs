//! Drop-in for iperf3, both ends.
//!
//! Unlike other drop-in tools it drives the engine in this process, without a Plan and its agents: rows of every stream are
//! printed while the test runs, from counts that a Record has only at its end, and what ends a test (a number of blocks, a file, a
//! server) is no span of a trial. So what the user asked for stays iperf3's own words, and `fathom tcp --protocol iperf3` is the same
//! client as a Plan, in the kinds `iperf3_tcp` and `iperf3_udp`.

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

/// Writes down a test as iperf3's server would print it, without printing it.
pub(super) fn transcript() -> Box<dyn fathom_interop::iperf3::TestObserver> {
    let lines = output::Output::nowhere().start_test(None);
    Box::new(reporter::TestReporter::new(&Options::default(), text::ReportSide::Server, lines))
}
