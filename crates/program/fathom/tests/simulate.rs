//! `fathom simulate` as a user starts it. It runs in virtual time, so it does not care what else the machine does.

#![expect(clippy::unwrap_used, reason = "functions shared by tests are tests too")]

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

fn simulate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fathom")).arg("simulate").args(words).output().unwrap()
}

fn document(words: &[&str]) -> Value {
    let output = simulate(&[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["format"], &document["simulation"]), (&"fathom.simulation/1".into(), &words[0].into()));
    document
}

fn refused(words: &[&str], said: &[&str]) {
    let output = simulate(words);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
    for said in said {
        assert!(error.contains(said), "{words:?}: {error}");
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn fragments_repeat_by_their_seed_and_show_the_worth_of_a_prime() {
    let words = ["fragments", "--hash", "djb2", "--sweep", "0", "--slots", "1999,2000", "--duration", "20s"];
    let document = document(&words);
    assert_eq!(document, self::document(&words));
    let loss = |row: usize| document["results"]["rows"][row]["loss"].as_f64().unwrap();
    assert!(loss(0) < 0.001 && (0.12..0.16).contains(&loss(1)), "{} {}", loss(0), loss(1));
    let text = String::from_utf8(simulate(&words).stdout).unwrap();
    assert!(text.contains("  2,000    2,000  13.9 %"), "{text}");
}

#[test]
fn the_smallest_size_is_found_and_loads_run_beside_each_other() {
    let found = document(&["fragments", "--rate", "1k", "--duration", "5s", "--slots", "100", "--below", "1%"]);
    let search = &found["results"]["search"];
    let smallest = search["smallest"].as_u64().unwrap();
    assert!((50..400).contains(&smallest), "{search}");
    let conntrack = ["conntrack", "--rate", "100", "--duration", "200s", "--max", "5k", "--below", "0.1%"];
    let smallest = document(&conntrack)["results"]["search"]["smallest"].as_u64().unwrap();
    assert!((11_000..15_000).contains(&smallest), "100/s for 130 s: {smallest}");
    let loads = |parallel| {
        let words = ["fragments", "--slots", "50", "--duration", "1s", "--repeat", "5", "--parallel", parallel];
        document(&words)["results"]["rows"][0]["loads"].clone()
    };
    assert_eq!((loads("1"), loads("1").as_array().unwrap().len()), (loads("3"), 5));
}

#[test]
fn a_search_plays_no_size_that_nobody_asked_for_and_says_when_its_load_is_too_short() {
    let text = |words: &[&str]| String::from_utf8(simulate(words).stdout).unwrap();
    let conntrack = ["conntrack", "--rate", "100", "--below", "1%", "--duration"];
    let (short, long) = (text(&[&conntrack[..], &["10s"]].concat()), text(&[&conntrack[..], &["200s"]].concat()));
    let remark = "so the table never fills: --duration 600s";
    assert!(short.contains(remark) && !long.contains(remark), "{short}\n{long}");
    assert!(!short.contains("262,144"), "{short}");
    let fragments = text(&["fragments", "--rate", "1k", "--duration", "1s", "--below", "1%"]);
    assert!(!fragments.contains("20,011") && fragments.contains("tried "), "{fragments}");
    refused(&["fragments", "--rate", "0", "--below", "1%"], &["rate of 0", "more than 0"]);
    refused(&["conntrack", "--rate", "0", "--below", "1%"], &["rate of 0", "more than 0"]);
}

#[test]
fn maglev_shows_what_moves() {
    let results = document(&["maglev", "--size", "997,65537", "--targets", "10", "--removed", "1"])["results"].clone();
    let share = |row: usize, name: &str| results[row][name].as_f64().unwrap();
    assert!((share(1, "moved_share") - 0.1).abs() < 0.001);
    assert!(share(1, "collateral_share") < share(0, "collateral_share"));
    let text = String::from_utf8(simulate(&["maglev", "--targets", "1000", "--repeat", "1"]).stdout).unwrap();
    assert!(text.contains("65,537*") && text.contains("the paper's rule"), "{text}");
}

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fathom-simulate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A capture of twenty datagrams of UDP, each in two fragments, from ports 0 to 19.
fn write_capture(folder: &Path, link: u32) -> String {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, link] {
        file.extend(u32::to_le_bytes(word));
    }
    for port in 0..20_u8 {
        for (flags_and_offset, payload) in [(0x2000_u16, [0, port, 0, 53, 0, 24, 0, 0]), (1, [9; 8])] {
            let mut frame = vec![0; 12];
            frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, port]);
            frame.extend(flags_and_offset.to_be_bytes());
            frame.extend([64, 17, 0, 0, 198, 18, 0, 1, 198, 18, 8, 1]);
            frame.extend(payload);
            let length = u32::try_from(frame.len()).unwrap();
            for word in [0, 0, length, length] {
                file.extend(u32::to_le_bytes(word));
            }
            file.extend(frame);
        }
    }
    let path = folder.join("udp.pcap");
    fs::write(&path, file).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_capture_in_any_order_keeps_its_datagrams_together_unless_a_defect_parts_them() {
    let folder = Folder::new("orders");
    let file = write_capture(&folder.0, 1);
    for order in ["reverse", "shuffle", "interleave=5,shuffle", "drop=3,rotate=7"] {
        let results = document(&["capture", &file, "--order", order, "--repeat", "3"])["results"].clone();
        for result in results.as_array().unwrap() {
            assert_eq!(result["n_misdirected_fragments"], 0, "{order}: {result}");
            assert!(result["n_datagrams"].as_u64() >= Some(17), "{order}: {result}");
        }
    }
    let output = simulate(&["capture", &file, "--defects", "fragments-without-ports"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(10), "{text}");
    assert!(text.contains("its flow goes to t"), "{text}");
}

#[test]
fn what_cannot_be_simulated_is_refused_with_its_place() {
    let folder = Folder::new("refusals");
    refused(&["capture", &write_capture(&folder.0, 105)], &["IEEE 802.11", "tcpdump -i eth0 -w FILE"]);
    refused(&["capture", "/nowhere.pcap"], &["cannot use /nowhere.pcap", "No such file"]);
    refused(&["capture", &write_capture(&folder.0, 1), "--order", "sort"], &["--order", "shuffle, reverse"]);
    let many = "duplicate=4000000000";
    refused(&["capture", &write_capture(&folder.0, 1), "--order", many], &[many, "4000000040", "10000000"]);
    refused(&["capture", &write_capture(&folder.0, 1), "--defects", "dorp=1/2"], &["dorp", "mis-hash"]);
    refused(&["maglev", "--size", "65536"], &["65536", "65521"]);
    refused(&["maglev", "--targets", "3", "--removed", "3"], &["at least one must stay"]);
    refused(&["fragments", "--slots", "0"], &["--slots", "at least 1"]);
    refused(&["fragments", "--fragments", "46"], &["1 to 45"]);
    refused(&["fragments", "--rate", "0"], &["rate of 0"]);
    refused(&["fragments", "--below", "3"], &["--below", "0.1%"]);
    refused(&["fragments", "--arrivals", "burst=0"], &["--arrivals", "burst=50"]);
    refused(&["conntrack", "--max", "100M"], &["1 to 67108864"]);
}
