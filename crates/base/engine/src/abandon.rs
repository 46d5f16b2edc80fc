//! The end of a process that cannot go on.

use std::{io::Write as _, process};

/// The exit code of a process that had to be ended: what was measured is lost.
const LOST: i32 = 4;

/// Ends this process, which is an agent's, and says why on its standard error, where whoever started it reads it.
///
/// Only for a thread that never comes back and cannot be stopped otherwise: nothing is undone, and no record is left.
pub fn abandon(why: &str) -> ! {
    // Nobody is left to be told that standard error is closed.
    let _ = writeln!(std::io::stderr(), "fathom: {why}");
    process::exit(LOST)
}
