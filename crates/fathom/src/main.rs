//! The program: command line → plan → run → report → exit code. It measures nothing itself.

mod allow;
#[macro_use]
mod terminal;

mod command;
mod device_programs;
mod execute;
mod exit;
mod face;
mod files;
mod hosts;
mod options;
mod output;
mod progress;
mod said;
mod secrets;
mod store;
mod target;
mod wire_up;

use std::{env, process::ExitCode};

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(exit::tell_panic));
    let words: Vec<String> = env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // A panic unwinds through every guard, so that what was changed is undone, and ends here.
    let outcome = std::panic::catch_unwind(|| match face::of_link(&words) {
        Some(face) => face.run(&words[1..], std::iter::empty()),
        None => command::run(&words),
    });
    exit::conclude(outcome.unwrap_or(Ok(exit::Exit::Failed)))
}
