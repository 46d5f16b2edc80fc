//! The file of the running program, by which it is started again.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
};

use fathom_model::shell;

/// Returns a path by which this process opens or starts the program that it runs.
///
/// An upgrade replaces the file of a program, or somebody removes it. Then this is a path of proc(5), which still leads to the program that
/// runs, and not to another version. That path means something else in every other program, such as a shell.
#[must_use]
pub fn path() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    named(running).unwrap_or_else(|| running.to_owned())
}

/// Returns a word by which a shell starts the program that this process runs, as long as this process runs.
///
/// After an upgrade it is a path of proc(5), which only processes of the same user, or with `CAP_SYS_PTRACE`, may follow.
#[must_use]
pub fn shell_word() -> String {
    let running = format!("/proc/{}/exe", process::id());
    let path = named(Path::new(&running)).and_then(|path| path.into_os_string().into_string().ok());
    shell::shell_word(&path.unwrap_or(running))
}

/// Gives this process the name of its file, if it was started by [`path`] after an upgrade: the kernel calls it `exe` then.
///
/// Programs are told apart by that name (`comm` of proc(5)).
pub fn keep_name() {
    const NAME: &str = "/proc/self/comm";
    if fs::read_to_string(NAME).is_ok_and(|name| name == "exe\n")
        && let Some(file) = env::current_exe().ok().as_deref().and_then(Path::file_name).and_then(|name| name.to_str())
    {
        // A process that keeps the other name is only harder to recognise.
        let _ = fs::write(NAME, file.strip_suffix(" (deleted)").unwrap_or(file));
    }
}

/// Returns the path of the file of this program, if that is still the program that runs.
fn named(running: &Path) -> Option<PathBuf> {
    env::current_exe().ok().filter(|path| is_same_file(path, running))
}

fn is_same_file(path: &Path, running: &Path) -> bool {
    let file = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    file(path).is_some_and(|one| file(running) == Some(one))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// What this binary prints if it is asked for the names of its tests.
    const LISTED: &str = "own_program::tests::role_of_a_replaced_program";

    fn lists_its_tests(mut command: Command) -> bool {
        let output = command.output().unwrap();
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains(LISTED)
    }

    fn can_be_started() -> bool {
        let mut here = Command::new(path());
        here.arg("--list");
        let mut by_shell = Command::new("sh");
        by_shell.args(["-c", &format!("exec {} --list", shell_word())]);
        lists_its_tests(here) && lists_its_tests(by_shell)
    }

    #[test]
    #[ignore = "not a test: the role of a program whose file is replaced, and then removed, while it runs"]
    fn role_of_a_replaced_program() {
        let own = env::current_exe().unwrap();
        let (folder, name) = (own.parent().unwrap(), own.file_name().unwrap());
        if name != "fathom of a user" {
            return;
        }
        assert_eq!((path(), can_be_started()), (own.clone(), true));
        fs::copy("/bin/false", folder.join("new")).unwrap();
        fs::rename(folder.join("new"), &own).unwrap();
        assert!(can_be_started(), "replaced");
        fs::remove_file(&own).unwrap();
        assert!(can_be_started(), "removed");
        let role = ["--ignored", "--exact", "--nocapture", "process::own_program::tests::role_of_a_named_program"];
        let output = Command::new(path()).args(role).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        // The kernel keeps 15 bytes of a name.
        assert!(said.contains("exe, then fathom of a use"), "{said}");
    }

    #[test]
    #[ignore = "not a test: the role of a program that is started after its file was removed"]
    fn role_of_a_named_program() {
        let name = || fs::read_to_string("/proc/self/comm").unwrap();
        let before = name();
        keep_name();
        println!("{}, then {}", before.trim_end(), name());
    }

    #[test]
    fn a_program_whose_file_is_replaced_or_removed_starts_itself_and_not_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("fathom of a user");
        fathom_testkit::copy_program(env::current_exe().unwrap(), &copy);
        let role = ["--ignored", "--exact", "process::own_program::tests::role_of_a_replaced_program"];
        let output = Command::new(&copy).args(role).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        assert!(!copy.exists());
    }
}
