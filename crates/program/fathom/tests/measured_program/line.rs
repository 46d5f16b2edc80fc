//! The command line: help, output before the start, and the order of checks.

use std::{fs, net::TcpListener};

use crate::test_bed::{BRIEF, TestBed, lacks_root};

#[test]
fn the_program_alone_prints_its_help_and_help_is_a_command_too() {
    let stage = TestBed::beside_others();
    let alone = stage.fathom(Vec::<&str>::new()).succeeded();
    assert!(alone.stdout.contains("\n  evaluate ") && alone.stderr.is_empty(), "{}{}", alone.stdout, alone.stderr);
    assert_eq!(stage.fathom(["help", "tcp"]).succeeded().stdout, stage.fathom(["tcp", "--help"]).succeeded().stdout);
    let (short, long) = (stage.fathom(["tcp", "-h"]).succeeded(), stage.fathom(["tcp", "--help"]).succeeded());
    assert!(!short.stdout.contains("--flow-label") && long.stdout.contains("--flow-label"));
    assert!(short.stdout.contains("--flows") && short.stdout.contains("Examples:"));
}

#[test]
fn what_stands_behind_a_tool_is_the_tools_its_help_too() {
    let stage = TestBed::beside_others();
    for (tool, option, code) in [("wrk", "-h", 1), ("wrk", "--help", 1), ("webbench", "-h", 2), ("ab", "-h", 22)] {
        let ending = stage.fathom(["as", tool, option]).code(code);
        let text = format!("{}{}", ending.stdout, ending.stderr);
        assert!(text.to_lowercase().contains("usage") || text.contains("option"), "{tool} {option}: {text}");
        assert!(!text.contains("fathom as"), "{tool} {option}: {text}");
    }
    assert!(stage.fathom(["as", "iperf3", "--help"]).succeeded().stdout.contains("iperf3"));
}

#[test]
fn a_run_says_before_it_starts_how_long_it_takes_and_afterwards_that_it_is_not_kept() {
    let stage = TestBed::beside_others();
    let ending = stage.fathom(["tcp", "127.0.0.1", "--duration", "600ms", "--warmup", "100ms", "--rounds", "3"]);
    let ending = ending.succeeded();
    let said = "3 rounds of 200 ms after a warm-up of up to 100 ms: up to about 2 s";
    assert!(ending.stderr.starts_with(said), "{}", ending.stderr);
    assert!(ending.stderr.contains("not kept; -o FOLDER"), "{}", ending.stderr);
    assert_eq!(stage.fathom([&["tcp", "127.0.0.1", "--quiet"], BRIEF].concat()).succeeded().stderr, "");
    stage
        .fathom(["tcp", "127.0.0.1", "--duration", "2ns", "--rounds", "3"])
        .refused(2, &["nothing for each of 3 rounds"]);
}

#[test]
fn a_duration_is_that_of_all_rounds_together() {
    let stage = TestBed::beside_others();
    let durations = |words: &[&str]| {
        let plan = stage.fathom([words, &["--plan"]].concat()).succeeded().stdout;
        plan.lines().filter_map(|line| line.strip_prefix("duration = ")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(durations(&["tcp", "127.0.0.1", "--duration", "10s"]), ["\"2s\""]);
    assert_eq!(durations(&["tcp", "127.0.0.1", "--duration", "10s", "--rounds", "1"]), ["\"10s\""]);
    assert_eq!(durations(&["http", "http://127.0.0.1/", "--duration", "30s", "--rounds", "3"]), ["\"10s\""]);
    let search = ["http", "http://127.0.0.1/", "--find-limit", "p99<20ms", "--duration", "3s"];
    assert_eq!(durations(&search), ["\"3s\""]);
    assert!(durations(&["evaluate", "--duration", "5s"]).iter().all(|one| one == "\"1s\""));
}

#[test]
fn a_folder_that_cannot_be_written_to_is_told_before_anything_is_measured() {
    let stage = TestBed::beside_others();
    fs::write(stage.path("file"), "").unwrap();
    let words = [&["tcp", "127.0.0.1", "-o", "file/inside"], BRIEF].concat();
    stage.fathom(&words).refused(3, &["nothing can be kept in file/inside", "-o FOLDER"]);
    fs::create_dir(stage.path("there")).unwrap();
    stage.fathom([&["tcp", "127.0.0.1", "-o", "there/new"], BRIEF].concat()).succeeded();
    assert!(stage.path("there/new/run.json").exists());
}

#[test]
fn a_host_that_does_not_answer_is_told_before_the_ceilings_are_measured() {
    let stage = TestBed::beside_others();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let target = format!("127.0.0.1:{port}");
    let key = "0000000000000000000000000000000000000000000.0000000000000000000000000000000000";
    for words in [&["evaluate"][..], &["packet", "--method", "throughput"]] {
        let ending = stage.fathom([words, &[&target, "--key", key]].concat());
        assert!(!ending.stderr.contains("measuring"), "{}", ending.stderr);
        assert!(ending.stdout.is_empty());
    }
}

#[test]
fn kept_runs_are_found_by_their_id_and_the_newest_without_a_word() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::beside_others();
    for _ in 0..2 {
        stage.fathom(["evaluate", "--quick", "--rounds", "1", "--duration", "20ms", "--warmup", "10ms", "--quiet"]);
    }
    let id = |words: &[&str]| stage.fathom([words, &["--json"]].concat()).run().id;
    let newest = id(&["report"]);
    assert_eq!(id(&["report", "latest"]), newest);
    let kept = fs::read_dir(stage.path("runs")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for run in kept {
        assert_eq!(id(&["report", &run]), run);
    }
}

#[test]
fn a_server_of_iperf3_alone_needs_one_word() {
    let stage = TestBed::beside_others();
    let server =
        stage.start(["serve", "--only", "iperf3", "--listen", "127.0.0.1", "--iperf3-rate", "1G", "--iperf3=0"]);
    server.says("iperf3 ");
    drop(server);
    let plain = stage.fathom(["serve", "--only", "iperf3", "--listen", "127.0.0.1", "--for", "100ms"]);
    // The default port may be in use on this machine, which is reported.
    assert!(plain.stdout.contains("iperf3") || plain.stderr.contains("port 5201"), "{}{}", plain.stdout, plain.stderr);
}
