//! A user without privileges.

use crate::{
    evaluation::{is_whole, leaves_out_xdp},
    test_bed::{BRIEF, TestBed, lacks_root},
};

/// The user id of `nobody` on every distribution.
const NOBODY: u32 = 65_534;

#[test]
fn a_user_without_privileges_gets_an_evaluation_or_one_clear_screen() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::owned_by(NOBODY);
    let mut command = stage.command("setpriv");
    let user = NOBODY.to_string();
    command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]).arg(stage.program());
    command.args(["evaluate", "--quick", "--json"]).args(BRIEF);
    let ending = stage.spawn(command).ends();
    if ending.stdout.is_empty() {
        fathom_testkit::skip("this kernel gives users no user namespaces");
        return ending.refused(3, &["fix", "fathom doctor"]);
    }
    let run = ending.succeeded().run();
    is_whole(&run);
    assert!(
        leaves_out_xdp(&run) && run.tests.iter().all(|test| test.kind != "http_xdp"),
        "no row without the privilege"
    );
    let losses: Vec<&String> = run.hosts.values().flat_map(|host| &host.unavailable).collect();
    assert!(losses.iter().any(|loss| loss.contains("XDP")), "what is lost is said: {losses:?}");
    let frames = run.tests.iter().find(|test| test.kind == "frames").unwrap();
    let records = frames.trials.iter().flat_map(|trial| trial.records.values());
    let notes: Vec<String> = records.flat_map(|record| &record.notes).map(|note| note.text.clone()).collect();
    assert!(notes.iter().any(|note| note.contains("packet socket")), "how frames were counted is said: {notes:?}");
}
