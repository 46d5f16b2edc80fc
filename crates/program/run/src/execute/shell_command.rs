//! A command of the user that `sh -c` runs, on this machine or on a host of a lab, until it ends or is not wanted any more.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
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
    /// Runs the command. It is killed with its process group once there is a reason to stop it, or this process is killed.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn run<R>(&self, reason_to_stop: impl Fn() -> Option<R>) -> io::Result<CommandEnd<R>> {
        let group = GuardedGroup::new()?;
        let ended = self.run_in(&group, reason_to_stop);
        group.release()?;
        ended
    }

    /// Runs the command in a group of commands that follow each other: one shell guards them all, so that each starts one shell only.
    ///
    /// # Errors
    /// As [`ShellCommand::run`].
    pub(super) fn run_in<R>(
        &self,
        group: &GuardedGroup,
        reason_to_stop: impl Fn() -> Option<R>,
    ) -> io::Result<CommandEnd<R>> {
        // Not pipes: what goes on in the background, such as a device, keeps its standard streams.
        let file = || process::shared_file().map_err(|error| error.source);
        let (mut output, mut errors) = (file()?, file()?);
        let child = self.spawn(group, &output, &errors)?;
        let status = wait_for(child, group, reason_to_stop)?;
        Ok(CommandEnd { status, output: text_of(&mut output), errors: text_of(&mut errors) })
    }

    fn spawn(&self, group: &GuardedGroup, output: &File, errors: &File) -> io::Result<Child> {
        let mut command = Command::new("sh");
        command.args(["-c", self.text]).stdin(Stdio::null()).process_group(group.number());
        command.stdout(output.try_clone()?).stderr(errors.try_clone()?);
        let place = self.place.map_or(ProcessPlace::Here, ProcessPlace::In);
        let spec = ProcessSpec { command, place, bond: ParentBond::DiesWithParent };
        spec.spawn().map_err(|error| error.source)
    }
}

/// A process group whose leader kills all of it if this process ends without a word, as after SIGKILL.
///
/// The death signal of a parent would reach only the shell, and none of the programs that it started.
pub(super) struct GuardedGroup {
    leader: Child,
    hold: ChildStdin,
}

impl GuardedGroup {
    /// Starts the leader.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn new() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "read -r end || kill -KILL 0"]).process_group(0);
        let mut leader = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let hold = leader.stdin.take().expect("it was piped");
        Ok(Self { leader, hold })
    }

    fn number(&self) -> i32 {
        self.leader.id().cast_signed()
    }

    /// Ends the leader, and leaves everybody else in the group alone.
    ///
    /// # Errors
    /// If its end cannot be waited for.
    pub(super) fn release(mut self) -> io::Result<()> {
        // The leader may have been killed with its group.
        let _ = self.hold.write_all(b"end\n");
        self.leader.wait().map(drop)
    }
}

fn wait_for<R>(
    mut child: Child,
    group: &GuardedGroup,
    reason_to_stop: impl Fn() -> Option<R>,
) -> io::Result<Result<ExitStatus, R>> {
    let pidfd = Pidfd::open(child.id()).map_err(|error| error.source)?;
    while !pidfd.wait(STOP_CHECK_EVERY).map_err(|error| error.source)? {
        if let Some(reason) = reason_to_stop() {
            process::kill_group(&group.leader).map_err(|error| error.source)?;
            child.wait()?;
            return Ok(Err(reason));
        }
    }
    child.wait().map(Ok)
}

/// Returns the beginning of what was written to a file.
pub(super) fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    // Without its text, an error still tells how the command ended.
    let _ = file.rewind().and_then(|()| file.take(OUTPUT_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a process that may not be our child has ended or does so soon.
    fn ends(pid: &str) -> bool {
        Pidfd::open(pid.trim().parse().unwrap()).map_or(true, |pidfd| pidfd.wait(Nanos::from_secs(10)).unwrap())
    }

    #[test]
    fn what_a_command_started_dies_with_this_program() {
        let group = GuardedGroup::new().unwrap();
        let mut command = Command::new("sh");
        // The shell waits for its child, and tells its number.
        command.args(["-c", "sleep 1000 & echo $!; wait"]).process_group(group.number()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let mut pid = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(shell.stdout.take().unwrap()), &mut pid).unwrap();
        let GuardedGroup { mut leader, hold } = group;
        // The kernel closes it when this process is killed.
        drop(hold);
        assert!(!leader.wait().unwrap().success() && !shell.wait().unwrap().success());
        assert!(ends(&pid));
    }

    #[test]
    fn commands_that_follow_each_other_share_the_shell_that_guards_them() {
        let group = GuardedGroup::new().unwrap();
        let run = |text| ShellCommand { text, place: None }.run_in(&group, || None::<()>).unwrap();
        let groups = [(); 2].map(|()| run("ps -o pgid= -p $$").output.trim().to_owned());
        assert_eq!(groups, [(); 2].map(|()| group.number().to_string()));
        assert_eq!(run("exit 3").status.unwrap().code(), Some(3));
        group.release().unwrap();
    }

    #[test]
    fn what_goes_on_in_the_background_outlives_its_command() {
        let command = ShellCommand { text: "sleep 1000 & echo $!", place: None };
        let ended = command.run(|| None::<()>).unwrap();
        assert!(ended.status.unwrap().success());
        let background = Pidfd::open(ended.output.trim().parse().unwrap()).unwrap();
        assert!(!background.wait(Nanos::from_millis(20)).unwrap());
        background.kill().unwrap();
    }

    #[test]
    fn a_command_that_is_not_wanted_is_killed_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let text = format!("sleep 1000 & echo $! > {0}.new; mv {0}.new {0}; wait", file.display());
        let ended = ShellCommand { text: &text, place: None }.run(|| file.exists().then_some("enough")).unwrap();
        assert_eq!(ended.status, Err("enough"));
        let pid = std::fs::read_to_string(file).unwrap();
        assert!(ends(&pid));
    }
}
