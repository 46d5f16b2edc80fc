//! A change of a host of a lab that a shell makes and holds. The shell undoes it once its input ends, which happens also if this program is
//! killed.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::AsFd as _,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::namespace::Namespaces,
    process::{self, ParentBond, Pidfd, ProcessPlace, ProcessSpec, signal},
};

use super::shell_command::text_of;

/// A change and its undoing, as text of a shell. The variables of the first are known to the second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ChangeText {
    pub(super) make: String,
    pub(super) undo: String,
}

/// How the shell of a change ended; without a status, it was killed because it took too long.
#[derive(Debug)]
pub(super) struct ShellEnd {
    pub(super) status: Option<ExitStatus>,
    pub(super) errors: String,
}

/// A change that was made.
#[derive(Debug)]
pub(super) struct HeldChange {
    shell: Child,
    /// Its end lets the shell undo the change.
    hold: ChildStdin,
    errors: File,
}

impl HeldChange {
    /// Makes a change on a host of a lab; `None` is this machine.
    ///
    /// # Errors
    /// If the shell cannot be started; within, how it ended if it could not make the change in the given time.
    pub(super) fn make(
        text: &ChangeText,
        place: Option<&Namespaces>,
        patience: Nanos,
    ) -> io::Result<Result<Self, ShellEnd>> {
        let errors = process::shared_file().map_err(|error| error.source)?;
        // If nobody reads the word any more, or the terminal is gone, the change has to be undone all the same.
        let script =
            format!("trap '' PIPE HUP\nset -e\n{}\necho changed || :\nread -r end || :\n{}\n", text.make, text.undo);
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
        let place = place.map_or(ProcessPlace::Here, ProcessPlace::In);
        // It outlives this process, in order to undo what it made.
        let spec = ProcessSpec { command, place, bond: ParentBond::Outlives };
        let mut shell = spec.spawn().map_err(|error| error.source)?;
        let hold = shell.stdin.take().expect("it was piped");
        let mut said = shell.stdout.take().expect("it was piped");
        let deadline = clock::now() + patience;
        while clock::now() < deadline {
            let left = deadline.since(clock::now());
            if signal::poll_readable(&[said.as_fd()], left).map_err(|error| error.source)? {
                // Without a word, the shell has ended.
                let is_made = said.read(&mut [0; 16])? > 0;
                let held = Self { shell, hold, errors };
                return if is_made { Ok(Ok(held)) } else { held.undo(patience).map(Err) };
            }
        }
        Self { shell, hold, errors }.undo(Nanos::ZERO).map(Err)
    }

    /// Lets the shell undo the change, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub(super) fn undo(self, patience: Nanos) -> io::Result<ShellEnd> {
        let Self { mut shell, hold, mut errors } = self;
        drop(hold);
        let pidfd = Pidfd::open(shell.id()).map_err(|error| error.source)?;
        let has_ended = pidfd.wait(patience).map_err(|error| error.source)?;
        if !has_ended {
            process::kill_group(&shell).map_err(|error| error.source)?;
        }
        let status = shell.wait()?;
        Ok(ShellEnd { status: has_ended.then_some(status), errors: text_of(&mut errors) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Nanos = Nanos::from_secs(10);

    fn made(make: &str, undo: &str) -> Result<HeldChange, ShellEnd> {
        HeldChange::make(&ChangeText { make: make.to_owned(), undo: undo.to_owned() }, None, PATIENCE).unwrap()
    }

    #[test]
    fn the_shell_undoes_its_change_once_nobody_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("change");
        let make = format!("file={}; touch $file", file.display());
        let undone = made(&make, "rm $file").unwrap().undo(PATIENCE).unwrap();
        assert!(undone.status.unwrap().success() && !file.exists(), "{undone:?}");
        // The kernel closes the input of a program that was killed, and nobody waits for the shell.
        let HeldChange { mut shell, hold, .. } = made(&make, "rm $file").unwrap();
        assert!(file.exists());
        drop(hold);
        assert!(shell.wait().unwrap().success() && !file.exists());
    }

    #[test]
    fn a_failed_line_is_told_and_ends_the_shell() {
        let failed = made("echo no >&2; false", "touch /never").unwrap_err();
        assert_eq!((failed.status.unwrap().code(), failed.errors.as_str()), (Some(1), "no\n"));
        let left = made("true", "false\ntrue").unwrap().undo(PATIENCE).unwrap();
        assert_eq!(left.status.unwrap().code(), Some(1), "a line in the middle counts");
    }

    #[test]
    fn what_does_not_end_is_killed() {
        let slow = made("true", "sleep 1000").unwrap().undo(Nanos::from_millis(10)).unwrap();
        assert_eq!(slow.status, None);
        let text = ChangeText { make: "sleep 1000".to_owned(), undo: String::new() };
        let slow = HeldChange::make(&text, None, Nanos::from_millis(10)).unwrap().unwrap_err();
        assert_eq!(slow.status, None);
    }
}
