//! The program: command line → plan → run → report → exit code. It measures nothing itself.

mod allow;
#[macro_use]
mod terminal;

mod command;
mod compat;
mod device_programs;
mod execute;
mod exit;
mod files;
mod hosts;
mod options;
mod output;
mod progress;
mod registry;
mod script_output;
mod secrets;
mod store;
mod target;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(exit::print_panic));
    let words: Vec<String> = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // A panic unwinds through every guard, so that what was changed is undone, and ends here.
    let outcome = std::panic::catch_unwind(|| match compat::from_program_name(&words) {
        Some(drop_in) => drop_in.run(&words[1..], std::iter::empty()),
        None => command::run(&words),
    });
    exit::exit_code(outcome.unwrap_or(Ok(exit::Exit::Failed)))
}
