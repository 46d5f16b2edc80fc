//! A device that is a process on its host: it is ready when it says so, and ends with the lab.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
};

use fathom_balancer::device::DeviceSettings;
use fathom_model::units::Nanos;
use fathom_sys::process::ProcessIdentity;

use super::ProgramGuard;
use crate::{Error, Host, Result};

/// A process that is asked to end has undone its changes long before this time is over.
const END_PATIENCE: Nanos = Nanos::from_secs(5);

/// The running process; dropping this ends it. Should this process be killed, the kernel kills it too, and its changes go with the host.
#[derive(Debug)]
pub(super) struct DeviceProcess {
    child: Child,
    /// Kept open, such that what the process says at its end finds a reader.
    output: Option<BufReader<ChildStdout>>,
}

impl ProgramGuard for DeviceProcess {}

impl DeviceProcess {
    /// Starts the process on a host, and waits until it says that it is ready.
    ///
    /// # Errors
    /// [`Error::DeviceProcess`] with what it says if it ends instead.
    pub(super) fn start(host: &Host, device: &str, mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = host.start_unconfined(command)?;
        let output = BufReader::new(child.stdout.take().expect("it was piped"));
        let mut process = Self { child, output: Some(output) };
        if process.is_ready() {
            return Ok(process);
        }
        let mut said = String::new();
        if let Some(mut errors) = process.child.stderr.take() {
            let _ = errors.read_to_string(&mut said);
        }
        let said = said.trim().strip_prefix("fathom: ").unwrap_or(said.trim()).to_owned();
        Err(Error::DeviceProcess { device: device.to_owned(), said })
    }

    /// The number of the process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads lines until the one that says that it is ready; false if it ends before.
    fn is_ready(&mut self) -> bool {
        let output = self.output.as_mut().expect("it is taken at the end only");
        output.by_ref().lines().map_while(std::result::Result::ok).any(|line| line.starts_with(DeviceSettings::READY))
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        // An unreaped child still has its pid.
        if let Ok(identity) = ProcessIdentity::of(self.child.id()) {
            let _ = identity.end(END_PATIENCE);
        }
        let _ = self.child.wait();
        self.output = None;
    }
}
