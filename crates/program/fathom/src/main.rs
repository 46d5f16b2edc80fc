//! The command line: command → plan → run → report → exit code. It measures nothing itself.

#[macro_use(eprint, eprintln)]
extern crate fathom_run;

mod command;
mod options;

use std::{env, process::ExitCode};

use fathom_run::exit;
use fathom_sys::process::own_program;

fn main() -> ExitCode {
    own_program::keep_name();
    std::panic::set_hook(Box::new(exit::print_panic));
    let words: Vec<String> = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // A panic unwinds through all guards, which undo their changes, and ends here.
    let outcome = std::panic::catch_unwind(|| match fathom_compat::from_program_name(&words) {
        Some(drop_in) => drop_in.run(&words[1..], std::iter::empty()),
        None => command::run(&words),
    });
    exit::exit_code(outcome.unwrap_or(Ok(exit::Exit::Failed)))
}
