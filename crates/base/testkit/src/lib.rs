//! Shared helpers of the tests of several crates: visible skips, the seeds of the fuzz targets, generated traffic, and copies of programs.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

pub mod corpus;
pub mod large_host;
pub mod traffic;

use std::{env, error::Error, io::Write as _, path::Path, process::Command};

/// Reports that a test did not run, bypassing the runner's output capture. In CI (`CI=true`) it fails instead.
pub fn skip(why: &str) {
    assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "in CI nothing is skipped: {why}");
    skip_everywhere(why);
}

/// Reports that a test did not run, also in CI: for features that a kernel may lack and programs that CI does not install.
pub fn skip_everywhere(why: &str) {
    std::io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes()).unwrap();
}

/// Returns whether a privilege is missing, and if so calls [`skip`].
pub fn lacks_privileges(has_privileges: bool) -> bool {
    if !has_privileges {
        skip("needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN)");
    }
    !has_privileges
}

/// Returns the value; on an error about something that this machine lacks, calls [`skip`] and returns `None`.
///
/// # Panics
/// On any other error.
pub fn or_skip<T, E: Error>(outcome: Result<T, E>, is_lacking: impl FnOnce(&E) -> bool) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) if is_lacking(&error) => {
            skip(&chain(&error));
            None
        }
        Err(error) => panic!("{}", chain(&error)),
    }
}

/// Copies the file of a program, to be started.
///
/// A process of its own writes the copy. A descriptor of this one would be inherited by the children of other tests, which keep it until
/// they execute their program, and a file that is open for writing cannot be executed (`ETXTBSY`).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let status = Command::new("cp").args([from.as_ref(), to.as_ref()]).status().unwrap();
    assert!(status.success(), "cp {} {}", from.as_ref().display(), to.as_ref().display());
}

/// Formats an error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
