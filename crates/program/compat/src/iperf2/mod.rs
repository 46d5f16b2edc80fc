//! Drop-in for iperf 2, both client and server.
//!
//! As with iperf3, the engine runs in this process, without a plan: rows of each flow are printed during the test, and a server has
//! many tests. `fathom tcp --protocol iperf` runs the same client as a plan, with the kinds `iperf_tcp` and `iperf_udp`.

mod client;
mod device;
mod options;
mod printer;
mod server;
mod settings;
mod text;
mod units;

use std::fmt::Write as _;

use options::{Iperf2Role, OptionsError};
use settings::FAILED;

use super::closed_loop;
use fathom_run::{allow::AllowList, exit::Exit};

const SHORT_USAGE: &str = "Usage: iperf [-s|-c host] [options]\nTry `iperf --help' for more information.\n";

/// Runs it with iperf's own arguments.
pub(super) fn run(words: &[String], allowed: &AllowList) -> anyhow::Result<Exit> {
    match options::read(words) {
        Ok(options) => match options.role.clone() {
            Some(Iperf2Role::Client(host)) => client::run(&options, &host, allowed),
            Some(Iperf2Role::Server) | None => server::run(&options),
        },
        Err(OptionsError::Version) => {
            closed_loop::print_now(&format!("iperf version 2.1.8 ({}) pthreads\n", fathom_run::registry::TOOL))?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Help) => {
            closed_loop::print_now(&usage())?;
            Ok(Exit::Pass)
        }
        Err(OptionsError::Syntax(said)) => {
            eprint!("iperf: {said}\n{SHORT_USAGE}");
            Ok(FAILED)
        }
        Err(OptionsError::NoRole) => {
            eprint!("{SHORT_USAGE}");
            Ok(FAILED)
        }
        Err(OptionsError::Value(said)) => {
            eprintln!("iperf: {said}");
            Ok(FAILED)
        }
    }
}

/// Returns the list of all options with their descriptions.
fn usage() -> String {
    let mut text = "Usage: iperf [-s|-c host] [options]\n       iperf [-h|--help] [-v|--version]\n\n".to_owned();
    for (option, about) in options::rows() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {option:<32}{about}");
    }
    text.push_str("\n[kmgKMG] stands for a suffix: lower case for powers of 1000, upper case for powers of 1024.\n");
    text
}
