//! The process that runs the programs of a fault until the fault is removed or the lab ends.
//!
//! The program starts itself again in a hidden role that only calls [`run`]. The guard waits until its starter has written down how to end
//! it: a starter that is killed before leaves nothing. It ends with the holder of the lab, and its programs end with it, even after SIGKILL.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    process::{ParentBond, ProcessIdentity, ProcessPlace, ProcessSpec, affinity, confinement::Confinement, signal},
};
use serde::{Deserialize, Serialize};

use crate::{Error, Host, Result, record::IdentityText};

/// How often the guard looks whether the lab is still held.
const LOOK: Nanos = Nanos::from_millis(200);
/// The lines of the two sides.
const GO: &str = "go";
const READY: &str = "guard: ready";
const REFUSED: &str = "guard: refused: ";

/// The programs to run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GuardOrder {
    /// The process that holds the lab.
    #[serde(with = "IdentityText")]
    pub(crate) holder: ProcessIdentity,
    /// The words of the command.
    pub(crate) command: Vec<String>,
    /// How many of it run.
    pub(crate) n_copies: u32,
    /// The only core that they may use.
    pub(crate) core: Option<usize>,
}

/// A guard that has not started its programs yet; it ends when this value is dropped.
pub(crate) struct WaitingGuard {
    child: Child,
    pub(crate) identity: ProcessIdentity,
}

impl WaitingGuard {
    /// Starts a guard on a host, which is under these limits with its programs.
    pub(crate) fn start(host: &Host, mut program: Command, order: &GuardOrder, limits: Confinement) -> Result<Self> {
        program
            .current_dir("/")
            .arg(serde_json::to_string(order).expect("an order is plain data"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = host.start_under(limits, program, ParentBond::Detached)?;
        let identity = ProcessIdentity::of(child.id()).map_err(Error::kernel("identify the guard of the fault"))?;
        Ok(Self { child, identity })
    }

    /// Lets the guard start its programs.
    ///
    /// # Errors
    /// [`Error::FaultCommand`] with the guard's reason.
    pub(crate) fn release(mut self, command: &str) -> Result<()> {
        let failed = |why: String| Error::FaultCommand { command: command.to_owned(), why };
        let mut input = self.child.stdin.take().expect("it was piped");
        writeln!(input, "{GO}").map_err(|error| failed(error.to_string()))?;
        let output = BufReader::new(self.child.stdout.take().expect("it was piped"));
        // A test runner prints headings before it reaches the role.
        for line in output.lines().map_while(std::result::Result::ok) {
            match line.strip_prefix(REFUSED) {
                Some(why) => return Err(failed(why.to_owned())),
                None if line == READY => return Ok(()),
                None => {}
            }
        }
        Err(failed("it ended without an answer".to_owned()))
    }
}

/// Runs a guard: waits for a line on `input`, starts the programs of `order`, answers on `output`, and stays until the lab ends.
///
/// # Errors
/// The error that prevented the start, which also goes to `output`.
pub fn run(order: &str, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let order: GuardOrder = serde_json::from_str(order).map_err(|error| Error::Holder {
        message: format!("the order cannot be understood: {error}"),
        hint: Some("this role is started by fathom itself".to_owned()),
    })?;
    let watch = signal::watch().map_err(Error::kernel("watch for signals"))?;
    if input.lines().map_while(std::result::Result::ok).next().is_none_or(|line| line != GO) {
        return Ok(());
    }
    let held = HeldPrograms::start(&order);
    let answer = match &held {
        Ok(_) => READY.to_owned(),
        Err(error) => format!("{REFUSED}{error}"),
    };
    // The starter may be gone; the fault is removed through its file.
    let _ = writeln!(output, "{answer}").and_then(|()| output.flush());
    let held = held?;
    while order.holder.is_alive() {
        if watch.wait_until(clock::now() + LOOK).map_err(Error::kernel("wait for the end of the fault"))?.is_some() {
            break;
        }
    }
    drop(held);
    Ok(())
}

/// The running programs; ended when dropped.
struct HeldPrograms(Vec<Child>);

impl HeldPrograms {
    fn start(order: &GuardOrder) -> Result<Self> {
        if let Some(core) = order.core {
            affinity::allow_cores(&[core]).map_err(Error::kernel(format!("use core {core}")))?;
        }
        let mut held = Self(Vec::new());
        for _ in 0..order.n_copies {
            let (program, words) = order.command.split_first().expect("a fault has a command");
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let start = ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent };
            held.0.push(start.spawn().map_err(Error::kernel(format!("start {program}")))?);
        }
        Ok(held)
    }
}

impl Drop for HeldPrograms {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
