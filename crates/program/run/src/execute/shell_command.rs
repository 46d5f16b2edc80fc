//! A command of the user that `sh -c` runs, on this machine or on a host of a lab, until it ends or is not wanted any more.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    netlink::namespace::Namespaces,
    process::{self, ParentBond, Pidfd, ProcessPlace, ProcessSpec},
};

/// The most bytes of an output that are read.
const OUTPUT_MAX: u64 = 1 << 20;
/// How often it is checked whether a command is still wanted. Its end is noticed at once.
const STOP_CHECK_EVERY: Nanos = Nanos::from_millis(20);

/// A command and the host that it runs on.
pub(super) struct ShellCommand<'a> {
    pub(super) text: &'a str,
    /// The namespaces of a host of a lab; `None` for this machine.
    pub(super) place: Option<&'a Namespaces>,
}

/// How a command ended, and the beginning of what it printed.
pub(super) struct CommandEnd<R> {
    /// Its exit status, or the reason why it was killed.
    pub(super) status: Result<ExitStatus, R>,
    pub(super) output: String,
    pub(super) errors: String,
}

impl ShellCommand<'_> {
    /// Runs the command. It is killed with its process group once there is a reason to stop it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn run<R>(&self, reason_to_stop: impl Fn() -> Option<R>) -> io::Result<CommandEnd<R>> {
        // Not pipes: what goes on in the background, such as a device, keeps its standard streams.
        let file = || process::shared_file().map_err(|error| error.source);
        let (mut output, mut errors) = (file()?, file()?);
        let child = self.spawn(&output, &errors)?;
        let status = wait_for(child, reason_to_stop)?;
        Ok(CommandEnd { status, output: text_of(&mut output), errors: text_of(&mut errors) })
    }

    fn spawn(&self, output: &File, errors: &File) -> io::Result<Child> {
        let mut command = Command::new("sh");
        command.args(["-c", self.text]).stdin(Stdio::null()).process_group(0);
        command.stdout(output.try_clone()?).stderr(errors.try_clone()?);
        let place = self.place.map_or(ProcessPlace::Here, ProcessPlace::In);
        let spec = ProcessSpec { command, place, bond: ParentBond::DiesWithParent };
        spec.spawn().map_err(|error| error.source)
    }
}

fn wait_for<R>(mut child: Child, reason_to_stop: impl Fn() -> Option<R>) -> io::Result<Result<ExitStatus, R>> {
    let pidfd = Pidfd::open(child.id()).map_err(|error| error.source)?;
    while !pidfd.wait(STOP_CHECK_EVERY).map_err(|error| error.source)? {
        if let Some(reason) = reason_to_stop() {
            process::kill_group(&child).map_err(|error| error.source)?;
            child.wait()?;
            return Ok(Err(reason));
        }
    }
    child.wait().map(Ok)
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // Without its text, an error still tells how the command ended.
    let _ = file.rewind().and_then(|()| file.take(OUTPUT_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
