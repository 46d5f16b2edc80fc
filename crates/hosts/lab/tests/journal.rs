//! The actions that a journal undoes, and those that it rejects.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use fathom_lab::{Entry, Error, Journal, LabName, StateFolder, forget_ended, stale, undo_stale};
use fathom_sys::process::ProcessIdentity;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};
use tempfile::TempDir;

/// A separate state folder, removed with the first value.
fn folder() -> (TempDir, StateFolder) {
    let folder = tempfile::tempdir().unwrap();
    let state = StateFolder::open(&folder.path().join("state")).unwrap();
    (folder, state)
}

fn name(text: &str) -> LabName {
    text.parse().unwrap()
}

/// Creates the journal of a killed run: no process with this pid can have started at tick 1.
fn leave_behind(state: &StateFolder, entries: &serde_json::Value) {
    let text = serde_json::json!({
        "schema": "fathom.journal/1",
        "run": "killed",
        "owner": { "pid": std::process::id(), "start_ticks": 1 },
        "entries": entries,
    });
    fs::write(state.path().join("killed.json"), text.to_string()).unwrap();
}

#[test]
fn a_journal_undoes_its_entries_when_it_is_dropped_and_vanishes() {
    let (_folder, state) = folder();
    let path = state.path();
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o700);
    let file = path.join("made-by-the-run");
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();

    let mut journal = Journal::begin(&state, &name("run-1")).unwrap();
    journal.record(Entry::File(file.clone())).unwrap();
    fs::write(&file, "").unwrap();
    let process = ProcessIdentity::of(child.id()).unwrap();
    journal.record(Entry::Process(process)).unwrap();
    assert!(stale(&state).unwrap().is_empty(), "its owner lives");
    assert!(undo_stale(&state).unwrap().is_empty());
    drop(journal);

    assert!(!process.is_alive());
    child.wait().unwrap();
    assert_eq!(fs::read_dir(path).unwrap().count(), 0);
}

#[test]
fn a_run_has_one_journal() {
    let (_folder, state) = folder();
    let first = Journal::begin(&state, &name("run")).unwrap();
    let error = Journal::begin(&state, &name("run")).unwrap_err();
    assert!(matches!(&error, Error::NameTaken { run } if run == "run"));
    assert!(error.hint().unwrap().contains("--stale"));
    first.finish().unwrap();
    Journal::begin(&state, &name("run")).unwrap().finish().unwrap();
}

#[test]
fn what_a_killed_run_left_behind_is_undone_by_identity() {
    let (_folder, state) = folder();
    let mut left = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let mut other = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let (identity, observer) = (ProcessIdentity::of(left.id()).unwrap(), ProcessIdentity::of(other.id()).unwrap());
    leave_behind(
        &state,
        &serde_json::json!([
            { "process": { "pid": identity.pid, "start_ticks": identity.start_ticks } },
            // The pid is in use again, by a process that started at another time.
            { "process": { "pid": observer.pid, "start_ticks": observer.start_ticks - 1 } },
            { "file": state.path().join("gone-already") },
        ]),
    );
    assert_eq!(stale(&state).unwrap().len(), 1);
    assert_eq!(undo_stale(&state).unwrap(), [name("killed")]);
    assert!(!identity.is_alive());
    assert!(observer.is_alive());
    assert!(undo_stale(&state).unwrap().is_empty());
    other.kill().unwrap();
    other.wait().unwrap();
    left.wait().unwrap();
}

#[test]
fn a_killed_run_of_which_nothing_is_left_is_forgotten_and_another_one_is_named() {
    let (_folder, state) = folder();
    let mut left = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let ProcessIdentity { pid, start_ticks } = ProcessIdentity::of(left.id()).unwrap();
    let kept = state.path().join("kept");
    let setting = serde_json::json!({ "sysctl": { "path": "/proc/sys/net/ipv4/ip_forward", "old": "0" } });
    let gone = serde_json::json!({ "process": { "pid": pid, "start_ticks": start_ticks - 1 } });
    let live = Journal::begin(&state, &name("live")).unwrap();
    for entry in [
        serde_json::json!({ "process": { "pid": pid, "start_ticks": start_ticks } }),
        serde_json::json!({ "file": kept }),
        setting,
    ] {
        fs::write(&kept, "").unwrap();
        leave_behind(&state, &serde_json::json!([entry, gone]));
        assert_eq!(forget_ended(&state).unwrap(), [name("killed")], "{entry}");
        assert_eq!(stale(&state).unwrap()[0].entries().len(), 2, "{entry}");
    }
    fs::remove_file(&kept).unwrap();
    leave_behind(&state, &serde_json::json!([gone, { "file": kept }]));
    assert_eq!(forget_ended(&state).unwrap(), []);
    assert!(stale(&state).unwrap().is_empty() && !state.path().join("killed.json").exists());
    assert!(state.path().join("live.json").exists(), "its owner lives");
    live.finish().unwrap();
    left.kill().unwrap();
    left.wait().unwrap();
}

#[test]
fn a_setting_outside_proc_sys_is_not_written() {
    let (_folder, state) = folder();
    let file = state.path().join("precious");
    fs::write(&file, "kept").unwrap();
    let escape = PathBuf::from(format!("/proc/sys/../..{}", file.display()));
    leave_behind(&state, &serde_json::json!([{ "sysctl": { "path": escape, "old": "overwritten" } }]));
    let error = undo_stale(&state).unwrap_err();
    assert!(error.to_string().contains("cannot be understood"), "{error}");
    assert_eq!(fs::read_to_string(file).unwrap(), "kept");
    assert_eq!(stale(&state).unwrap()[0].entries().len(), 1, "what is not undone stays written down");
}

#[test]
fn a_corrupt_journal_is_refused_and_does_not_hide_the_others() {
    let (_folder, state) = folder();
    leave_behind(&state, &serde_json::json!([]));
    for (file, text) in
        [("empty", ""), ("cut", r#"{"schema": "fathom.jou"#), ("hostile", r#"{"run": "../../etc/passwd"}"#)]
    {
        fs::write(state.path().join(format!("{file}.json")), text).unwrap();
    }
    assert!(matches!(stale(&state), Err(Error::CorruptJournal { .. })));
    let error = undo_stale(&state).unwrap_err();
    assert!(error.hint().unwrap().contains("rm "), "{error}");
    assert!(!state.path().join("killed.json").exists(), "the readable one was undone");
    assert!(state.path().join("cut.json").exists(), "what is not understood is left for a person");
}

#[test]
fn a_journal_of_another_version_is_refused() {
    let (_folder, state) = folder();
    let text = r#"{"schema": "fathom.journal/9", "run": "r", "owner": {"pid": 1, "start_ticks": 1}, "entries": []}"#;
    fs::write(state.path().join("r.json"), text).unwrap();
    assert!(undo_stale(&state).unwrap_err().to_string().contains("fathom.journal/9"));
}

#[test]
fn a_state_folder_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let error = StateFolder::open(folder.path()).unwrap_err();
    assert!(error.to_string().contains("others may write to it"));
    assert!(error.hint().unwrap().contains("FATHOM_STATE"));
}
