//! `fathom replay` as a user starts it, with captures and logs from the corpora of the fuzz targets.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn seed(name: &str) -> PathBuf {
    corpus("traffic").join(name)
}

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target)
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
    refused(&file, &[], &["in no known format", "tcpdump -w", "nginx", "--log-format"]);
    fs::write(&file, b"").unwrap();
    refused(&file, &[], &["it is empty"]);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn connections_over_tls_are_decrypted_by_the_keys_in_the_capture_or_told_with_their_reason() {
    let tls = |name: &str| corpus("tls").join(name);
    let decrypted = document(&tls("tls13_chacha"));
    assert_eq!(decrypted["tls"]["connections"], serde_json::json!({ "decrypted": 1 }));
    assert_eq!(decrypted["http"]["requests"], serde_json::json!({ "whole": 2 }));
    let without = document(&tls("tls13_without_secrets"));
    assert_eq!(without["tls"]["connections"], serde_json::json!({ "no_keys": 1 }));
    let text = String::from_utf8(replay(&tls("tls13_without_secrets"), &[]).stdout).unwrap();
    assert!(
        text.contains("over TLS, not decrypted") && text.contains("without a key in the key log (--keys)"),
        "{text}"
    );
    let keys = seed("get");
    refused(&seed("get"), &["--keys", "nothing.log"], &["nothing.log", "No such file"]);
    refused(&seed("get"), &["--keys", keys.to_str().unwrap()], &["none of its lines has the secret", "SSLKEYLOGFILE"]);
    let log = corpus("access_log").join("nginx_combined");
    refused(&log, &["--keys", "nothing.log"], &["it is no capture, and --keys decrypts captures"]);
}

fn refused(file: &Path, words: &[&str], reasons: &[&str]) {
    let refused = replay(file, words);
    assert_eq!(refused.status.code(), Some(2));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(reasons.iter().all(|reason| error.contains(reason)), "{error}");
}

#[test]
fn every_line_of_an_access_log_is_told() {
    let log = corpus("access_log").join("nginx_combined");
    let document = document(&log);
    assert_eq!(document["format"], "fathom.access_log/1");
    let lines = serde_json::json!({ "whole": 2, "body_not_logged": 1, "other_protocol": 1, "malformed": 1 });
    let text = String::from_utf8(replay(&log, &["--empty-bodies"]).stdout).unwrap();
    assert!(text.contains(": 5 lines in ") && text.contains("$http_referer"), "{text}");
    assert_eq!(document["log"]["lines"], lines, "{text}");
    refused(&log, &["--log-format", "$status"], &["cannot use --log-format", "$request_method"]);
    refused(&log, &["--log-format", "$msec|$request"], &["in the format that was given"]);
    refused(&seed("get"), &["--empty-bodies"], &["a capture", "--empty-bodies"]);
}
