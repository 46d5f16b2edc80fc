//! A host that hides files of its kernel, as containers do: what cannot be read is absent with a reason, and never 0.
#![expect(clippy::unwrap_used, reason = "what a test sets up itself must work")]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The user `nobody`, who owns nothing.
const NOBODY: &str = "65534";

/// Returns whether mount namespaces cannot be made here, and if so reports the skip.
fn lacks_namespaces() -> bool {
    let tried = Command::new("unshare").args(["--mount", "true"]).output();
    fathom_testkit::lacks_privileges(tried.is_ok_and(|tried| tried.status.success()))
}

/// Runs fathom after a script in a mount namespace of its own; `$$` in the script is the number of the later process.
fn masked(script: &str, words: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let script = format!("{script}\nexec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-ec", &script, env!("CARGO_BIN_EXE_fathom")]).args(words);
    command.current_dir(folder.path()).env("HOME", folder.path()).env("FATHOM_STATE", folder.path().join("state"));
    command.output().unwrap()
}

/// Returns a script that puts an empty file in the place of one of the kernel.
///
/// A mount on a file below `/proc/net` is lost at the next look-up, so that the whole folder is replaced there, by a copy of its files.
fn hidden(file: &str) -> String {
    match file.strip_prefix("net/") {
        Some(name) => format!(
            "mkdir net\nfor file in dev netstat snmp snmp6 sockstat softnet_stat; do\n\
             cat /proc/$$/net/$file >net/$file\ndone\n: >net/{name}\nmount --bind net /proc/$$/net\n"
        ),
        None => format!("mount --bind /dev/null /proc/{file}\n"),
    }
}

/// Returns the document of one interval.
fn watched(script: &str) -> Value {
    let output = masked(script, &["watch", "--json", "--interval", "200ms"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !told.contains("panicked"), "{script}: {told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns true if a sentence about this source is among the reasons.
fn has_reason(view: &Value, source: &str) -> bool {
    let losses = view["losses"].as_array().cloned().unwrap_or_default();
    losses.iter().any(|loss| loss.as_str().unwrap().starts_with(&format!("{source}: ")))
}

#[test]
fn a_hidden_file_takes_its_columns_away_and_leaves_a_reason() {
    if lacks_namespaces() {
        return;
    }
    let view = watched("ip link set lo up");
    assert!(view["tables"]["tcp"][""]["out_per_sec"].is_number(), "{view}");
    // The file, the source, and the place of a value that follows from it.
    let cases = [
        ("net/snmp", "snmp", ["tcp", "", "out_per_sec"]),
        ("net/netstat", "netstat", ["tcp", "", "timeouts_per_sec"]),
        ("net/dev", "netdev", ["interfaces", "lo", "rx_bps"]),
        ("net/softnet_stat", "softnet", ["cores", "cpu0", "packets_pps"]),
        ("net/sockstat", "sockstat", ["tcp", "", "sockets"]),
        ("stat", "cpu", ["cores", "cpu0", "busy"]),
    ];
    for (file, source, [table, row, column]) in cases {
        assert!(!has_reason(&view, source), "{view}");
        let masked = watched(&hidden(file));
        assert!(masked["tables"][table][row].get(column).is_none(), "{file}: {masked}");
        assert!(has_reason(&masked, source), "{file}: {masked}");
    }
}

#[test]
fn a_host_without_sysfs_is_watched_and_measured() {
    if lacks_namespaces() {
        return;
    }
    let script = "ip link set lo up\nmount -t tmpfs none /sys";
    let view = watched(script);
    assert!(view["tables"]["interfaces"]["lo"]["rx_bps"].is_number(), "{view}");
    assert!(has_reason(&view, "interrupts"), "the interfaces that have queues are unknown: {view}");
    let output = masked(script, &["tcp", "127.0.0.1", "--duration", "300ms", "--rounds", "1", "--json"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!told.contains("panicked"), "{told}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(run["tests"][0]["summaries"][0]["value"].as_f64().is_some_and(|rate| rate > 0.0), "{told}");
}

#[test]
fn a_test_on_a_host_that_hides_its_counters_says_which_and_counts_nothing_as_zero() {
    if lacks_namespaces() {
        return;
    }
    // Agents have process numbers of their own: files of the whole machine are hidden from them too.
    let script = format!("ip link set lo up\n{}", hidden("stat"));
    let words = ["tcp", "127.0.0.1", "--duration", "300ms", "--rounds", "1", "--json"];
    let output = masked(&script, &words);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!told.contains("panicked"), "{told}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = run.to_string();
    assert!(!text.contains("\"cpu_user_ns\"") && !text.contains("\"cpu_idle_ns\""), "no core time was read");
    let losses = run["hosts"]["this machine"]["losses"].to_string();
    assert!(losses.contains("cpu: none of its counters was found"), "{losses}");
    assert!(
        text.contains("the cores of this machine were not watched") && !text.contains("did no work"),
        "a reason that is true"
    );
    assert!(run["tests"][0]["summaries"][0]["value"].as_f64().is_some_and(|rate| rate > 0.0), "{told}");
}

#[test]
fn a_user_without_any_capability_is_shown_the_rest_with_a_reason() {
    if lacks_namespaces() {
        return;
    }
    // The program may lie where only its owner may go.
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("fathom");
    fathom_testkit::copy_program(env!("CARGO_BIN_EXE_fathom"), &program);
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
    let words =
        ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--bounding-set", "-all", "--inh-caps", "-all"];
    let mut command = Command::new("setpriv");
    command.args(words).arg(&program).args(["watch", "--json", "--interval", "200ms"]).env("HOME", folder.path());
    let output = command.current_dir(folder.path()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}");
    let view: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(view["tables"]["cores"]["cpu0"]["busy"].is_number() && view["sockets"].is_object(), "{view}");
    assert!(has_reason(&view, "nft"), "rules are for CAP_NET_ADMIN: {view}");
}
