//! `fathom replay` as a user starts it, with captures from the corpus of the fuzz target.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn seed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/traffic").join(name)
}

fn replay(file: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fathom")).arg("replay").arg(file).args(words).output().unwrap()
}

fn document(file: &Path) -> Value {
    let output = replay(file, &["--json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_packet_request_and_answer_is_told() {
    let document = document(&seed("get"));
    assert_eq!(document["format"], "fathom.capture/1");
    assert_eq!(document["http"]["requests"], serde_json::json!({ "whole": 1 }));
    assert_eq!(document["http"]["statuses"], serde_json::json!({ "200": 1 }));
    assert_eq!(document["http"]["hosts"], serde_json::json!({ "a": 1 }));
    assert_eq!(document["traffic"]["ends"], serde_json::json!({ "closed": 1 }));
    let text = String::from_utf8(replay(&seed("get"), &[]).stdout).unwrap();
    let has = |words: &str, n: &str| {
        text.lines().any(|line| line.trim().starts_with(words) && line.ends_with(&format!(" {n}")))
    };
    assert!(text.contains(": 7 packets in ") && has("whole, can be sent again", "1"), "{text}");
    assert!(has("handshakes", "2") && has("with their handshake", "1") && has("GET", "1"), "{text}");
}

#[test]
fn a_capture_that_is_cut_off_is_read_up_to_there() {
    let folder = std::env::temp_dir().join(format!("fathom-replay-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("cut.pcap");
    let whole = fs::read(seed("get")).unwrap();
    fs::write(&file, &whole[..whole.len() - 60]).unwrap();
    let document = document(&file);
    assert_eq!(document["damage"], "it is damaged or cut off after frame 5");
    assert_eq!(document["http"]["answers"], serde_json::json!({ "whole": 1 }));
    fs::write(&file, b"no capture").unwrap();
    let refused = replay(&file, &[]);
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("neither pcap nor pcapng") && error.contains("tcpdump -w"), "{error}");
    fs::remove_dir_all(folder).unwrap();
}
