//! Ends a process that cannot continue.

use std::{io::Write as _, process};

/// The exit code of an abandoned process. Its measurements are discarded.
const LOST: i32 = 4;

/// Ends this process (an agent) and prints the reason to standard error, where the process that started it reads it.
///
/// Only for a thread that never returns and cannot be stopped any other way. Nothing is cleaned up and no record is written.
pub fn abandon(why: &str) -> ! {
    // If standard error is closed, there is no other place to report that.
    let _ = writeln!(std::io::stderr(), "fathom: {why}");
    process::exit(LOST)
}
