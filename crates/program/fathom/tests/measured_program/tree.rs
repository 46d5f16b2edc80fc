//! Heads: a controller reaches hundreds of hosts through a few of them, and what the loss of a head or of a host behind it does.

use std::{collections::BTreeMap, fs};

use fathom_model::{Record, Side, Trial, VerdictState, names::count, units::Nanos};
use fathom_sys::{clock, process::Pidfd};

use crate::{
    test_bed::{TestBed, lacks_root, until},
    traces::{Traces, processes},
};

/// The CPU time of a process, and the most memory that it had, in bytes.
fn cost(pid: u32) -> Option<(Nanos, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc_pid_stat(5): the fields 14 and 15, after a name that may contain spaces, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let peak_kib: u64 =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()?;
    Some((Nanos::from_millis(10) * (ticks(14)? + ticks(15)?), peak_kib << 10))
}

/// The processes of a test bed that are children of others of it, by parent.
fn children(stage: &TestBed) -> BTreeMap<u32, Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for pid in processes(stage) {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let Some(parent) = parent {
            children.entry(parent).or_default().push(pid);
        }
    }
    children
}

/// The packets that the host of a process has sent on its wire.
fn sent_packets(pid: u32) -> Option<u64> {
    let devices = fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?;
    let counters = devices.lines().find_map(|line| line.trim().strip_prefix("eth0:"))?;
    counters.split_whitespace().nth(9)?.parse().ok()
}

/// Checks that the rows of all pairs add up to the merged records, which alone have distributions. Returns the record of the initiators.
fn rows_add_up(trial: &Trial) -> &Record {
    let of_side = |side| trial.records.values().find(|record| record.side == side).unwrap();
    let (sent, received) = (of_side(Side::Initiator), of_side(Side::Responder));
    let of_rows: u64 = trial.links.iter().map(|link| link.records[&link.from].totals[count::SENT]).sum();
    assert_eq!(sent.totals[count::SENT], of_rows);
    assert!(!received.distributions.is_empty(), "{:?}", received.totals);
    let rows = trial.links.iter().flat_map(|link| link.records.values());
    assert!(rows.filter(|row| row.side == Side::Responder).all(|row| row.distributions.is_empty()));
    sent
}

#[test]
fn three_hundred_agents_behind_seventeen_heads_are_eighteen_streams() {
    if lacks_root() {
        return;
    }
    let stage = TestBed::new();
    let mut traces = Traces::none();
    let run = stage.start([
        "udp",
        "--lab",
        "star:301",
        "--heads",
        "17",
        "--rate",
        "3M",
        "--duration",
        "3s",
        "--warmup",
        "500ms",
        "--rounds",
        "1",
        "--json",
    ]);
    let (pid, handle) = (run.pid(), run.handle());
    let (mut costs, mut n_streams) = (Vec::new(), 0);
    while !handle.wait(Nanos::from_millis(200)).unwrap() {
        costs.extend(cost(pid).map(|cost| (clock::now(), cost)));
        if n_streams < 18 {
            n_streams = children(&stage).get(&pid).map_or(0, Vec::len).max(n_streams);
        } else if costs.len() == 40 {
            traces.gather(&stage);
        }
    }
    let ended = clock::now();
    let ending = run.ends();
    ending.succeeded_or_judged();
    let run = ending.run();
    let test = &run.tests[0];
    let trial = &test.trials[0];
    assert_eq!((trial.links.len(), run.hosts.len(), n_streams), (300, 301, 18));
    assert!(trial.links.iter().all(fathom_model::LinkTrial::is_whole));

    assert_eq!(test.sharing.as_ref().unwrap().by_host.len(), 300);
    let sent = rows_add_up(trial);

    // Its record is on the controller's clock, which is that of this process.
    let (from, to) = (sent.start_ns, sent.start_ns + sent.measured_ns.1);
    let after = ended - to;
    let at = |time: Nanos| costs.iter().rev().find(|(at, _)| *at <= time).map(|(_, (cpu, _))| *cpu).unwrap();
    let memory = costs.iter().map(|(_, (_, peak))| *peak).max().unwrap();
    println!(
        "300 agents: {} of CPU in the {} of the trial, {} in all, {} MiB, result {after} after the end",
        at(to) - at(from),
        to - from,
        costs.last().unwrap().1.0,
        memory >> 20
    );
    // Five seconds are the aim, which a machine that compiles beside it misses: 302 processes end, and most of that is not our time.
    assert!(after < Nanos::from_secs(15), "the result came {after} after the end");
    assert!(memory < 256 << 20, "{memory} bytes");
    // A tenth is asked for; the margin is for a build without optimization and a machine that does something else.
    assert!((at(to) - at(from)) * 4 < to - from, "{} of CPU in {}", at(to) - at(from), to - from);
    traces.are_gone(&stage);
}

#[test]
fn a_lost_member_is_named_by_its_head_and_a_lost_head_with_all_that_are_behind_it() {
    if lacks_root() {
        return;
    }
    for (is_head, share) in [(false, "78 of 79 hosts: "), (true, "64 of 79 hosts: ")] {
        let stage = TestBed::of_low_rates();
        let run = stage.start([
            "udp",
            "--lab",
            "star:80",
            "--heads",
            "5",
            "--rate",
            "8M",
            "--duration",
            "20s",
            "--warmup",
            "500ms",
            "--rounds",
            "1",
            "--json",
        ]);
        let pid = run.pid();
        // All are there: 5 heads and the tested host, and 74 behind the heads.
        let tree = until(|| {
            let tree = children(&stage);
            (tree.values().map(Vec::len).sum::<usize>() >= 80).then_some(tree)
        });
        let head = tree[&pid].iter().copied().find(|child| tree.contains_key(child)).unwrap();
        let victim = if is_head { head } else { tree[&head][0] };
        // Each pair sends 9 datagrams in a second, so its test is under way.
        until(|| sent_packets(victim).filter(|n| *n > 15));
        Pidfd::open(victim).unwrap().kill().unwrap();
        let killed = clock::now();
        let ending = run.ends().code(4);
        let after = clock::now() - killed;
        // It is noticed within 3 s; then 79 agents stop, and 80 processes end.
        assert!(after < Nanos::from_secs(8), "the run ended {after} after the loss");
        let run = ending.run();
        let reason = run.verdict.reasons.join(" ");
        assert_eq!(run.verdict.state, VerdictState::Incomplete, "{reason}");
        assert!(reason.starts_with(share) && reason.contains("was lost: the connection was closed"), "{reason}");
        assert_eq!(reason.contains("and with it the 14 hosts behind it"), is_head, "{reason}");
        until(|| processes(&stage).is_empty().then_some(()));
    }
}
