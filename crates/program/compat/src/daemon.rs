//! Servers that go to the background, as the tools that they stand for do.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

use anyhow::Context as _;
use fathom_run::exit::Exit;
use fathom_sys::process::{ParentBond, ProcessPlace, ProcessSpec, own_program};

/// Set in a server that was started as a daemon, so that it does not start another one.
const DETACHED_VARIABLE: &str = "FATHOM_DETACHED";

/// Whether this process is already the daemon.
pub(super) fn is_detached() -> bool {
    std::env::var_os(DETACHED_VARIABLE).is_some()
}

/// Starts this program again in a session of its own, as the server.
pub(super) fn detach() -> anyhow::Result<Exit> {
    let mut command = Command::new(own_program::path());
    let mut words = std::env::args_os();
    if let Some(name) = words.next() {
        // Keeps the program name, because a link with that name selects the drop-in.
        command.arg0(name);
    }
    command.args(words).env(DETACHED_VARIABLE, "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::Detached };
    start.spawn().context("unable to become a daemon")?;
    Ok(Exit::Pass)
}
