//! Proves the findings: plants each fault of `fathom lab fault` in a lab, measures, and compares what fathom says with what was planted.
//!
//! Writes a section of `docs/findings.md` with `--write`, with [`foreign_servers`], the pairs of [`fault_pairs`] and the faults whose place,
//! strength and direction are drawn by a few seeds ([`fault_variants`]); with `--busy`, other programs use the cores meanwhile. With `--short`,
//! each case runs once; a fault that is not named first is a failure. With `--seed N`, only faults drawn by this seed are planted; with
//! `--pairs`, only pairs; with `--servers`, only faults of [`foreign_servers`]; with `--ci`, a few cases run with the debug program that the
//! tests have built.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::{
    fault_case::{BOTH_OF_IPV6, BUFFER, Case, PLANNED, SLOW, SLOW_RESPONDER, STALLING, TOO_FAST},
    fault_pairs,
    fault_variants::{self, fault},
    faulty_lab::{self, BusyPrograms, FaultRefused, Said},
    finding_page::{self, Section},
    foreign_servers,
};

/// How often each case runs for the table; a clean one runs more often, because a rare untrue finding needs many runs to show.
const N_RUNS: usize = 3;
const N_CLEAN_RUNS: usize = 6;
/// The seeds of the table. Each case that one of them draws runs once.
const SEEDS: std::ops::RangeInclusive<u64> = 1..=4;
/// The programs beside a pass with `--busy`.
const N_BUSY: usize = 2;

/// The fields of a case.
type CaseRow = (&'static [&'static str], &'static str, &'static str, &'static [&'static str]);

const CASES: &[CaseRow] = &[
    (&["shaper"], "a", "tcp", &["local-shaper"]),
    (&["shaper", "rate=400mbit"], "a", "tcp --flows 4", &["local-shaper"]),
    (&["shaper", "rate=20mbit"], "b", "tcp --test down", &["local-shaper"]),
    (&["shaper", "rate=50mbit"], "a", "udp --rate 100M", &["local-shaper"]),
    (&["shaper", "rate=50mbit"], "b", "http --connections 20", &["local-shaper"]),
    (&["htb", "rate=80mbit"], "a", "tcp", &["local-shaper"]),
    (&["shaper", "rate=20mbit"], "c3", "tcp --rate 300M", &["local-shaper", "slow-host"]),
    // A slow cable in a mesh: one host is slow, by what is lost on the way to it.
    (&["shaper", "rate=10mbit"], "switch", "udp --rate 200M --topology mesh", &["slow-host", "loss", "rate-limit"]),
    (&["policer"], "b", "udp --rate 100M", &["rate-limit"]),
    (&["policer", "rate=2000"], "b", "udp --rate 40M", &["rate-limit"]),
    (&["policer"], "b", "tcp", &["retransmissions"]),
    (&["loss"], "b", "tcp", &["retransmissions"]),
    (&["loss", "permille=10"], "b", "udp --rate 50M", &["loss"]),
    (&["loss", "permille=100"], "a", "udp --test down --rate 50M", &["loss"]),
    (&["loss", "permille=200"], "a", "tcp", &["acks-lost"]),
    (&["loss", "permille=100"], "a", "tcp", &["acks-lost"]),
    // One segment in a thousand costs little but the time until it is sent again.
    (&["loss", "permille=1"], "b", "tcp --test rr --flows 4", &["retransmissions"]),
    (&["loss", "permille=1"], "a", "http --connections 10", &["retransmissions"]),
    (&["firewall"], "b", "tcp", &["filter-drops"]),
    (&["firewall", "permille=50"], "b", "udp --rate 50M", &["filter-drops"]),
    (&["silent-firewall"], "b", "tcp", &["retransmissions"]),
    (&["silent-firewall", "permille=50"], "a", "udp --test down --rate 50M", &["loss"]),
    (&["silent-firewall", "permille=20"], "b", "udp --test rr --flows 4", &["loss"]),
    (&["conntrack"], "b", "http --connections 200", &["conntrack-full"]),
    (&["conntrack", "entries=20"], "b", "tcp --test crr --flows 20", &["conntrack-full"]),
    // The connections of the agents and of other flows fill the table.
    (&["conntrack", "entries=5"], "b", "udp --rate 20M --flows 20", &["conntrack-full"]),
    (&["closed-port"], "b", "udp --rate 10M", &["no-listener"]),
    (&["mtu-hole"], "b", "tcp", &["path-mtu-black-hole"]),
    (&["mtu-hole"], "b", "udp --rate 10M --size 1450B", &["path-mtu-black-hole"]),
    (&["reverse-path"], "b", "udp --rate 10M", &["reverse-path-filter"]),
    (&["duplicate-address"], "b", "udp --rate 10M", &["duplicate-address"]),
    (&["no-route"], "a", "tcp", &["no-route"]),
    // The way back is missing.
    (&["no-route"], "b", "http --connections 10", &["no-route"]),
    (&["no-route"], "b", "udp --test rr", &["no-route"]),
    (&["no-route"], "b", "tcp --test crr", &["no-route"]),
    (&["link-down"], "b", "udp --rate 10M", &["link-down"]),
    (&["link-down"], "a", "udp --test rr", &["link-down"]),
    (&["link-down"], "c3", "tcp --rate 300M", &["link-down"]),
    (&["link-down"], "b", "http --connections 20", &["link-down"]),
    (&["link-flap"], "b", "udp --rate 20M", &["link-down"]),
    (&["link-flap"], "b", "tcp --rate 300M", &["link-down"]),
    (&["link-flap"], "b", "udp --test down --rate 20M", &["link-down"]),
    (&["no-neighbor"], "a", "udp --rate 10M", &["neighbor-unresolved"]),
    (&["no-neighbor"], "a", "udp --test rr", &["neighbor-unresolved"]),
    (&["no-neighbor"], "a", "tcp --test crr", &["neighbor-unresolved"]),
    (&["other-mac"], "a", "udp --rate 10M", &["other-mac"]),
    (&["other-mac"], "b", "udp --test rr", &["other-mac"]),
    (&["neighbor-flap"], "a", "udp --rate 20M", &["neighbor-changes"]),
    (&["neighbor-flap", "wrong=0.2"], "b", "udp --test rr", &["neighbor-changes"]),
    (&["neighbor-flap"], "b", "tcp --rate 300M", &["neighbor-changes"]),
    (&["neighbor-flap"], "a", "http --connections 10", &["neighbor-changes"]),
    (&["backlog"], "b", "udp --rate 100M", &["backlog-overflow"]),
    (&["backlog"], "b", "udp --test rr --flows 8", &["backlog-overflow"]),
    // Few are lost, but among them are SYNs, which wait for a second.
    (&["backlog"], "b", "http --connections 20", &["connect-delays", "backlog-overflow"]),
    (&["backlog"], "b", "tcp --test rr --flows 4", &["backlog-overflow"]),
    (&["fragment-loss"], "b", "udp --rate 50M --size 4000B", &["loss", "reassembly-fails"]),
    (&["small-mtu"], "b", "udp --rate 10M", &["mtu-mismatch"]),
    (&["no-offload"], "a", "tcp", &["segmentation-off"]),
    (&["receive-window"], "b", "tcp", &["receive-window"]),
    (&["tcp-memory"], "b", "tcp --flows 4", &["tcp-memory"]),
    (&["send-buffer"], "a", "tcp", &["send-buffer"]),
    (&["no-window-scaling"], "a", "tcp", &["no-window-scaling"]),
    (&["syn-cookies"], "b", "tcp --flows 4", &["no-window-scaling"]),
    // An answer larger than the window that is left.
    (&["syn-cookies"], "b", "http --connections 10 --size 200000", &["syn-cookies"]),
    // A few bytes need no window.
    (&["syn-cookies"], "b", "http --connections 10 --rate 2000", &[]),
    (&["listen-queue"], "b", "tcp --test crr --flows 200", &["connect-delays"]),
    (&["ports"], "a", "http --connections 200", &["ports"]),
    (&["syn-loss"], "b", "tcp --test crr --flows 50", &["connect-delays"]),
    (&["resets"], "b", "tcp", &["resets"]),
    (&["resets"], "b", "http --connections 50", &["resets"]),
    (&["resets"], "b", "http --connections 10 --per-connection 1", &["resets"]),
    (&[BUFFER], "", "udp --rate 200M --buffer 4096", &["udp-receive-buffer"]),
    (&["quota"], "a", "tcp", &["cpu-quota"]),
    (&["quota", "cores=0.2"], "b", "tcp", &["cpu-quota"]),
    // The rate is nearly kept, and the answers are late.
    (&["quota", "cores=0.1"], "a", "tcp --test rr-open --rate 5k --flows 16", &["cpu-quota"]),
    (&["quota", "cores=0.1"], "b", "http --connections 10 --rate 8000", &["cpu-quota"]),
    (&["firewall", "permille=20"], "b", "http --connections 10 --rate 1000", &["filter-drops"]),
    (&["quota", "cores=0.2"], "b", "tcp --test loaded", &["cpu-quota"]),
    (&["memory"], "b", "tcp", &["memory-pressure"]),
    (&["busy"], "a", "tcp", &["other-programs"]),
    (&["busy-core", "programs=3"], "b", "tcp --flows 2", &["other-programs"]),
    (&["pinned"], "a b", "tcp", &["core-saturated"]),
    (&["descriptors", "count=64"], "a", "http --connections 200", &["descriptors"]),
    (&["descriptors", "count=6300"], "a", "http --connections 6000", &["descriptors-near-full"]),
    (&["ports", "range=50000 50099"], "a", "http --connections 98", &["ports-near-full"]),
    (&["conntrack", "entries=205"], "b", "udp --test rr --flows 100", &["conntrack-near-full"]),
    (&["few-nat-ports"], "a", "tcp --test crr --flows 40", &["conntrack-insert-failed"]),
    (&["ip-damage"], "b", "udp --rate 20M", &["bad-ip-checksums"]),
    (&["drop-all"], "a", "udp --rate 20M", &["qdisc-drops"]),
    (&["loss", "permille=100"], "b", "probe --test rtt --count 200 --interval 10ms", &["loss"]),
    (&["firewall", "permille=100"], "b", "probe --test rtt --count 200 --interval 10ms", &["filter-drops"]),
    (&["silent-firewall", "permille=100"], "b", "probe --test rtt --count 200 --interval 10ms", &["loss"]),
    (&["no-neighbor"], "a", "probe --test rtt --count 50", &["neighbor-unresolved"]),
    (&["other-mac"], "a", "probe --test rtt --count 50", &["other-mac"]),
    (&["reverse-path"], "b", "probe --test rtt --count 50", &["reverse-path-filter"]),
    (&["duplicate-address"], "b", "probe --test rtt --count 50", &["duplicate-address"]),
    (&["neighbor-flap"], "a", "probe --test rtt --count 200 --interval 10ms", &["neighbor-changes"]),
    (&["link-flap"], "b", "probe --test rtt --count 200 --interval 10ms", &["link-down"]),
    (&["link-down"], "b", "probe --test rtt --count 10", &["link-down"]),
    (&["small-mtu"], "b", "probe --test mtu", &["mtu-mismatch"]),
    (&["mtu-hole"], "b", "probe --test mtu", &["path-mtu-black-hole"]),
    (&["impair:loss=5%"], "", "probe --test rtt --count 200 --interval 10ms", &["loss"]),
    (&["impair:outage=500ms"], "", "probe --test rtt --count 200 --interval 10ms", &["outage"]),
    (&["nft:10,1/20"], "", "udp --rate 20M", &["device-rule"]),
    (&["nft:10,1/20"], "", "probe --test rtt --count 400 --interval 5ms", &["loss"]),
    (&["policer:2k"], "", "udp --rate 100M", &["device-program"]),
    (&["quota"], "a", "packet --rate 10k --size 1400B", &["cpu-quota"]),
    (&["link-flap"], "b", "packet --rate 10k --size 1400B", &["link-down"]),
    (&["nft:10,1/20"], "", "packet --rate 10k --size 1400B", &["device-rule"]),
    (&["policer:2k"], "", "packet --rate 10k --size 1400B", &["device-program"]),
    (&["impair:loss=2%"], "", "packet --rate 10k --size 1400B", &["loss"]),
    (&["impair:loss=5%,burst=20"], "", "packet --rate 10k --size 1400B", &["loss"]),
    (&["impair:rate=50Mbit"], "", "packet --rate 10k --size 1400B", &["rate-limit"]),
    (&["impair:outage=500ms"], "", "packet --rate 10k --size 1400B", &["outage"]),
    (&["impair:reorder=2%"], "", "packet --rate 10k --size 1400B", &["reordering"]),
    (&["impair:duplicate=2%"], "", "packet --rate 10k --size 1400B", &["duplicates"]),
    (&["squeeze"], "", "tcp --rate 100M", &["narrow-path"]),
    (&[TOO_FAST], "", "udp --rate 100G", &["offered-too-little"]),
    (&["impair:loss=2%"], "", "udp --rate 50M", &["loss"]),
    // BBR does not slow down for the losses, and fills what the device between the hosts passes.
    (&["impair:loss=2%"], "", "tcp", &["retransmissions", "path-full", "device-core-full"]),
    (&["impair:loss=2%"], "", "tcp --congestion cubic", &["retransmissions"]),
    (&["impair:loss=5%,burst=20"], "", "udp --rate 50M", &["loss"]),
    (&["impair:rate=50Mbit"], "", "udp --rate 80M", &["rate-limit"]),
    (&["impair:rate=50Mbit"], "", "tcp", &["path-full"]),
    (&["impair:rate=50Mbit,delay=20ms"], "", "tcp --flows 4", &["path-full"]),
    (&["impair:rate=50Mbit"], "", "http --connections 20 --size 10000", &["path-full"]),
    (&["impair:rate=50Mbit"], "", "udp --test rr --flows 200 --response 1200", &["path-full"]),
    (&["impair:rate=50Mbit,queue=2000"], "", "tcp --test rr --flows 8 --response 20000", &["path-full"]),
    (&["impair:rate=20Mbit,queue=500"], "", "tcp --test loaded", &["latency-under-load"]),
    (&["impair:outage=500ms"], "", "udp --rate 20M", &["outage"]),
    // BBR does not slow down for the losses, so that the send buffer bounds it on a path so long: with a larger one it carries twice as much.
    (&["impair:delay=20ms,loss=0.1%"], "", "tcp", &["congestion-window", "retransmissions", "send-buffer"]),
    (&["impair:corrupt=1%"], "", "udp --rate 50M", &["bad-checksums"]),
    (&["impair:corrupt=2%"], "", "tcp", &["bad-tcp-checksums", "device-core-full"]),
    (&["impair:corrupt=2%"], "", "tcp --congestion cubic", &["bad-tcp-checksums"]),
    (&["impair:corrupt=2%"], "", "tcp --test cc --flows 4", &["bad-tcp-checksums"]),
    (&["impair:reorder=2%"], "", "udp --rate 50M", &["reordering"]),
    (&["impair:duplicate=2%"], "", "udp --rate 50M", &["duplicates"]),
    (&["impair:rst=0.5%"], "", "http --connections 20", &["resets"]),
    (&["impair:rst=0.2%,direction=back"], "", "http --connections 20", &["resets"]),
    (&["impair:rst=0.2%"], "", "tcp --flows 4", &["resets"]),
    (&["impair:loss=5%,direction=back"], "", "udp --test down --rate 20M", &["loss"]),
    (&["impair:mtu=1400"], "", "tcp", &["path-mtu-black-hole"]),
    (&["impair:mtu=1400"], "", "udp --rate 10M --size 1450B", &["path-mtu-black-hole"]),
    (&[SLOW], "", "http --connections 10 --delay 20ms", &["server-time"]),
    (&[SLOW_RESPONDER], "", "tcp --test rr --delay 2ms", &["server-time"]),
    (&[STALLING], "", "http --connections 10 --stall 300ms/1s", &["stall"]),
    (&[PLANNED], "", "udp --rate 20M --warmup 0s --at '300ms-700ms black-hole=b'", &["planned-event"]),
    (&[PLANNED], "", "http --connections 10 --warmup 0s --at '300ms-700ms black-hole=b'", &["planned-event"]),
    // A thread passes on each frame, and has no time left for more.
    (&["impair"], "", "tcp", &["device-core-full"]),
    (&["impair"], "", "udp --rate 20M", &[]),
    // What waits for each answer goes as fast as the distance lets it.
    (&["impair:delay=10ms"], "", "tcp --test rr", &["round-trip"]),
    (&["impair:delay=20ms"], "", "tcp --test cc --flows 4", &["round-trip"]),
    (&["impair:delay=20ms"], "", "udp --test rr --flows 4", &["round-trip"]),
    (&["impair:delay=5ms"], "", "http --connections 10", &["round-trip"]),
    (&["impair:delay=5ms"], "", "http --connections 10 --rate 200", &[]),
    // Windows around the bandwidth-delay product: the largest fills a queue.
    (&["impair:rate=50Mbit,delay=10ms"], "", "tcp --test rfc6349 --bandwidth 50M --baseline-rtt 20ms", &[]),
    (
        &["impair:rate=50Mbit,delay=10ms,loss=2%"],
        "",
        "tcp --test rfc6349 --bandwidth 50M --baseline-rtt 20ms --congestion cubic",
        &["retransmissions", "congestion-window"],
    ),
    (&["no-window-scaling"], "a", "tcp --test rfc6349 --bandwidth 100G --baseline-rtt 20us", &["no-window-scaling"]),
    // Trials beyond a limit tell its cause.
    (&["policer:2k"], "", "packet --method throughput --sizes 512 --max-rate 5k --trial 300ms", &["device-program"]),
    (
        &["impair:rate=5Mbit"],
        "",
        "udp --method throughput --sizes 512 --max-rate 5k --trial 300ms",
        &["rate-limit", "loss"],
    ),
    (&["policer:2k"], "", "udp --find-limit 'lost<0.1%' --find-low 10M --find-trials 20", &["device-program"]),
    (&["quota", "cores=0.2"], "b", "http --connections 20 --find-limit 'p99<5ms' --find-trials 12", &["cpu-quota"]),
    // It costs no rate: sockets are freed at once.
    (&["time-wait"], "b", "tcp --test crr --flows 20", &["time-wait-overflow"]),
    (&[], "", "tcp --rate 1G", &[]),
    (&[], "", "udp --rate 100M", &[]),
    (&[], "", "tcp --test rr", &[]),
    (&[], "", "http --connections 10 --rate 5000", &[]),
    (&[], "", "udp --test down --rate 50M", &[]),
    (&[], "", "udp --rate 20M --size 200B", &[]),
    (&[], "", "udp --test rr", &[]),
    (&[], "", "tcp --test down --rate 300M --flows 4", &[]),
    (&[], "", "http --connections 1 --rate 200", &[]),
    (&[], "", "http --connections 40 --rate 500", &[]),
    (&[], "", "udp --rate 100M --topology mesh", &[]),
    (&[], "", "packet --rate 10k --size 1400B", &[]),
    (&[], "", "packet --rate 100k --size 200B", &[]),
    (&[], "", "probe", &[]),
    (&[], "", "probe --topology mesh --test rtt", &[]),
    (&[], "", "http --engine xdp --connections 40 --rate 5000", &[]),
    (&[BOTH_OF_IPV6], "", "udp --rate 50M", &[]),
    (&[BOTH_OF_IPV6], "", "tcp --rate 300M", &[]),
    (&["router"], "", "udp --rate 20M", &[]),
    (&["bridge"], "", "tcp --rate 100M", &[]),
    (&["impair:loss=20%,direction=back"], "", "udp --rate 20M", &[]),
    (&["impair:delay=5ms,direction=forward"], "", "udp --test down --rate 20M", &[]),
];

/// Cases with a device between the hosts. The host of a router is `dut`.
const BEHIND_DEVICE: &[(&str, CaseRow)] = &[
    ("router", (&["ttl"], "a", "udp --rate 20M", &["time-exceeded"])),
    ("router", (&["ttl"], "b", "udp --test down --rate 20M", &["time-exceeded"])),
    ("router", (&["fragment-filter"], "dut", "udp --rate 50M --size 4000B", &["fragments-dropped"])),
    ("router", (&["conntrack", "entries=20"], "dut", "udp --rate 20M --flows 100", &["device-conntrack"])),
    // Whoever tracks connections puts fragments together first.
    ("router", (&["conntrack", "entries=100000"], "dut", "probe --test fragments", &["fragments-reassembled"])),
    ("router", (&["asymmetric-route"], "a", "udp --test rr", &["asymmetric-route"])),
    ("router", (&["reverse-path"], "dut", "udp --rate 20M", &["device-forwarding"])),
    ("router", (&["no-route"], "dut", "udp --test down --rate 20M", &["no-listener"])),
    ("router", (&["prohibited"], "dut", "udp --rate 20M", &["no-listener"])),
    ("router", (&["drop-all-out"], "dut", "udp --rate 20M", &["device-queue"])),
    ("router", (&["shaper-out"], "dut", "udp --rate 50M", &["local-shaper"])),
    ("router", (&["shaper-out"], "dut", "http --connections 20", &["local-shaper"])),
    ("router", (&["link-flap"], "dut", "udp --rate 20M", &["link-down"])),
    ("router", (&["backlog"], "dut", "udp --rate 100M", &["device-ring", "backlog-overflow"])),
    ("router", (&["conntrack", "entries=20"], "dut", "tcp --test crr --flows 100", &["connect-delays"])),
    ("impair:delay=5ms", (&["send-buffer"], "a", "tcp --test loaded", &["send-buffer"])),
    ("impair:delay=5ms", (&["receive-window"], "b", "tcp --test loaded", &["receive-window"])),
    ("impair:delay=20ms", (&["few-syns"], "b", "tcp --test crr --flows 200", &["connect-delays"])),
    ("router", (&["shaper", "rate=100mbit"], "dut", "tcp --test down", &["local-shaper"])),
    ("router", (&["shaper", "rate=50mbit"], "dut", "udp --test down --rate 80M", &["local-shaper"])),
    // Without a delay, marks hardly slow a sender down: its window is as large as the path needs. BBR does not answer them.
    ("impair:delay=5ms", (&["ecn-marks"], "a", "tcp --congestion cubic", &["congestion-marks"])),
    ("impair:delay=5ms", (&["ecn-marks"], "a", "tcp --congestion bbr", &["device-core-full"])),
];

/// The cases of `--ci`, by their faults and tests: they need no feature of the kernel beyond namespaces, and leave most of a small machine
/// idle.
const CI_CASES: &[(&str, &str)] = &[
    ("receive-window on b", "tcp"),
    ("link-flap on b", "udp --rate 20M"),
    ("small-mtu on b", "udp --rate 10M"),
    ("ttl on a + router", "udp --rate 20M"),
    ("impair:loss=2%", "udp --rate 50M"),
    ("impair:rst=0.5%", "http --connections 20"),
    ("impair:outage=500ms", "udp --rate 20M"),
    ("impair:mtu=1400", "udp --rate 10M --size 1450B"),
    (SLOW, "http --connections 10 --delay 20ms"),
    ("no fault", "udp --rate 20M --size 200B"),
    ("impair:loss=20%,direction=back", "udp --rate 20M"),
];

/// The state of a test without a result, which its cause leads.
const NOTHING_DONE: &str = "nothing-done";

/// What the runs of a case said.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) n_runs: usize,
    pub(crate) n_first: usize,
    pub(crate) n_found: usize,
    /// Runs with another finding above a remark that is not true of the lab.
    pub(crate) n_untrue: usize,
    /// The other findings above a remark.
    pub(crate) others: Vec<String>,
    /// How many findings were left out because the record says that they are true of the lab.
    pub(crate) n_of_lab: usize,
}

/// Runs all cases. Returns the cases whose fault was not named first, as faults of the short form.
pub(super) fn prove(root: &Path) -> anyhow::Result<Vec<String>> {
    let has = |flag: &str| std::env::args().any(|word| word == flag);
    let only = std::env::args().skip(2).find(|word| !word.starts_with("--") && word.parse::<u64>().is_err());
    let program = program(root, if has("--ci") { "debug" } else { "release" })?;
    let busy = BusyPrograms::start(if has("--busy") { N_BUSY } else { 0 })?;
    let is_wanted = |case: &&Case| {
        only.as_ref().is_none_or(|only| format!("{}, {}", case.name(), case.test).contains(only.as_str()))
    };
    let mut rows = Vec::new();
    let mut faults = Vec::new();
    let mut cases = cases(option("--seed")?, has)?;
    if has("--busy") {
        cases.iter_mut().for_each(Case::beside_busy_programs);
    }
    for case in cases.iter().filter(is_wanted) {
        let n_runs = match case.expected.as_slice() {
            _ if has("--short") || has("--ci") || case.is_drawn => 1,
            [] => N_CLEAN_RUNS,
            _ => N_RUNS,
        };
        let Some(outcome) = outcome_of(&program, case, n_runs, has("--ci") || has("--write"))? else { continue };
        println!("{:<28} {:<36} {}", case.name(), case.test, outcome.text());
        if outcome.n_first < outcome.n_runs || outcome.n_found < outcome.n_runs {
            faults.push(format!("{}, {}: {}", case.name(), case.test, outcome.text()));
        }
        rows.push((case, outcome));
    }
    drop(busy);
    if has("--write") {
        finding_page::write(root, if has("--busy") { Section::Busy } else { Section::Quiet }, &rows)?;
        return Ok(Vec::new());
    }
    Ok(faults)
}

/// Runs a case so often. `None` if this machine does not allow its fault, which is reported; in CI, and for a page of all faults, that is an error.
fn outcome_of(program: &Path, case: &Case, n_runs: usize, needs_all: bool) -> anyhow::Result<Option<Outcome>> {
    let mut outcome = Outcome::default();
    for _ in 0..n_runs {
        match faulty_lab::said(program, case) {
            Ok(said) => outcome.add(case, &said),
            Err(error) if error.is::<FaultRefused>() && !needs_all => {
                println!("{:<28} {:<36} SKIPPED: {error}", case.name(), case.test);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(outcome))
}

/// Returns the cases that the command line asks for.
fn cases(seed: Option<u64>, has: impl Fn(&str) -> bool) -> anyhow::Result<Vec<Case>> {
    let of_row = |(words, host, test, expected): &CaseRow| fault(words, host, test, expected);
    let behind_device = || BEHIND_DEVICE.iter().map(|(device, row)| of_row(row).behind(device));
    let singles = || CASES.iter().map(of_row).chain(behind_device());
    Ok(match seed {
        Some(seed) => fault_variants::draw(seed),
        None if has("--pairs") => fault_pairs::all(),
        None if has("--ci") => {
            let is_short = |case: &Case| CI_CASES.iter().any(|(name, test)| case.name() == *name && case.test == *test);
            singles().filter(is_short).collect()
        }
        None if has("--servers") => foreign_servers::all()?,
        None if has("--write") => {
            let drawn = SEEDS.flat_map(fault_variants::draw);
            singles().chain(foreign_servers::all()?).chain(fault_pairs::all()).chain(drawn).collect()
        }
        None => singles().collect(),
    })
}

/// Returns the number behind an option of the command line.
fn option(name: &str) -> anyhow::Result<Option<u64>> {
    let text = std::env::args().skip_while(|word| word != name).nth(1);
    text.map(|text| text.parse().with_context(|| format!("{name} {text}"))).transpose()
}

impl Outcome {
    fn add(&mut self, case: &Case, said: &Said) {
        self.n_runs += 1;
        // What is true of the lab counts only as a fault of the lab.
        let is_left_out = |id: &&String| said.of_lab.contains(*id) && !case.expects(id);
        let judged: Vec<&String> = said.above_remarks.iter().filter(|id| !is_left_out(id)).collect();
        // Of two faults, one that explains much less than the other is a remark.
        let named = if case.expected.len() > 1 || case.is_of_remark() { &said.all } else { &said.above_remarks };
        let is_named = |names: &&[&str]| named.iter().any(|id| names.contains(&id.as_str()));
        let (is_first, is_found) = match case.expected.as_slice() {
            [] => (judged.is_empty(), judged.is_empty()),
            expected if case.is_of_remark() => (judged.is_empty(), expected.iter().all(is_named)),
            expected => {
                let is_first = said.above_remarks.first().is_some_and(|first| case.expects(first));
                (is_first, expected.iter().all(is_named))
            }
        };
        self.n_first += usize::from(is_first);
        self.n_found += usize::from(is_found);
        self.n_of_lab += said.above_remarks.len() - judged.len();
        let others: Vec<_> = judged.into_iter().filter(|id| *id != NOTHING_DONE && !case.expects(id)).collect();
        self.n_untrue += usize::from(!others.is_empty());
        for other in others {
            if !self.others.contains(other) {
                self.others.push(other.clone());
            }
        }
    }

    fn text(&self) -> String {
        let others = if self.others.is_empty() { String::new() } else { format!(", also {}", self.others.join(", ")) };
        let of_lab = if self.n_of_lab == 0 { String::new() } else { format!(", {} of the lab", self.n_of_lab) };
        format!("first {} of {}, found {}{others}{of_lab}", self.n_first, self.n_runs, self.n_found)
    }
}

/// Returns a build of fathom that exists already.
pub(crate) fn program(root: &Path, profile: &str) -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let program = target.join(profile).join("fathom");
    let build = if profile == "release" { "cargo build --release" } else { "cargo build" };
    anyhow::ensure!(program.exists(), "{} is missing: {build} --package fathom", program.display());
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_of_ci_is_one_of_the_table() {
        assert_eq!(cases(None, |flag| flag == "--ci").unwrap().len(), CI_CASES.len());
    }

    #[test]
    fn a_finding_is_left_out_only_if_the_record_bears_it_out() {
        let text = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let said = |of_lab: &[&str]| Said {
            above_remarks: text(&["core-saturated"]),
            all: text(&["core-saturated", "no-line-rate"]),
            of_lab: text(of_lab),
        };
        let clean = fault(&[], "", "tcp", &[]);
        let mut outcome = Outcome::default();
        outcome.add(&clean, &said(&["core-saturated"]));
        assert_eq!((outcome.n_first, outcome.n_untrue, outcome.n_of_lab), (1, 0, 1));
        outcome.add(&clean, &said(&[]));
        assert_eq!((outcome.n_first, outcome.n_untrue, outcome.n_of_lab), (1, 1, 1), "untrue");
    }
}
