//! The cost of a sample on a large host: 64 cores, and 16 interfaces with 64 queues each.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::{FileExt as _, symlink},
    path::Path,
};

use fathom_model::units::Nanos;
use fathom_monitor::{HostMonitor, ProgramNames, Source, every_source};
use fathom_sys::clock::thread_cpu;

const CORES: usize = 64;
const INTERFACES: usize = 16;
const QUEUES: usize = 64;
const SAMPLES: usize = 20;
/// At ten samples per second this is a thirtieth of one of the 64 cores, and ten times that in a build without optimization.
const SAMPLE_MAX: Nanos = Nanos::from_millis(if cfg!(debug_assertions) { 30 } else { 3 });

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().expect("a tree can be written")).expect("a tree can be written");
    fs::write(file, text).expect("a tree can be written");
}

/// Writes a table with a column per core: a header, and rows of a label, counts and an end.
fn table(rows: impl Iterator<Item = (String, usize, String)>) -> String {
    let mut text = (0..CORES).map(|core| format!("{:>11}", format!("CPU{core}"))).collect::<Vec<_>>().concat() + "\n";
    for (label, seed, end) in rows {
        let counts = (0..CORES).map(|core| format!(" {:>10}", (seed * 7 + core) * 1_013)).collect::<Vec<_>>().concat();
        writeln!(text, "{label:>12}{counts} {end}").expect("a text takes everything");
    }
    text
}

/// The tree of a large host, with the texts of Linux 6.18 for all that does not depend on its size.
fn large_host(root: &Path) {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roots/linux-6.18");
    for file in ["snmp", "snmp6", "netstat", "sockstat", "stat/rt_cache"] {
        write(
            root,
            &format!("proc/net/{file}"),
            fs::read(small.join("proc/net").join(file)).expect("a tree can be written"),
        );
    }
    for file in ["pressure/cpu", "pressure/memory", "pressure/io", "self/limits", "sys/net/ipv4/ip_local_port_range"] {
        write(root, &format!("proc/{file}"), fs::read(small.join("proc").join(file)).expect("a tree can be written"));
    }
    let cores =
        (0..CORES).map(|core| format!("cpu{core} 600 20 200 19000 50 6 70 8 9 0\n")).collect::<Vec<_>>().concat();
    write(root, "proc/stat", cores);
    let softnet = (0..CORES)
        .map(|core| format!("{:08x} {} {core:08x} 00000000 00000000\n", core * 9_999, ["00000000"; 11].join(" ")))
        .collect::<Vec<_>>()
        .concat();
    write(root, "proc/net/softnet_stat", softnet);
    let soft = ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];
    write(root, "proc/softirqs", table((0..).zip(soft).map(|(seed, name)| (format!("{name}:"), seed, String::new()))));
    let mut interfaces = String::from("Inter-|   Receive  |  Transmit\n face |bytes    packets\n");
    for interface in 0..INTERFACES {
        writeln!(interfaces, "  eth{interface}: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0")
            .expect("a text takes everything");
        fs::create_dir_all(root.join(format!("sys/class/net/eth{interface}"))).expect("a tree can be written");
        let device = format!("../../../0000:{interface:02x}:00.0");
        symlink(device, root.join(format!("sys/class/net/eth{interface}/device"))).expect("a tree can be written");
    }
    write(root, "proc/net/dev", interfaces);
}

/// Writes the interrupts of all queues; those of the first interface grow with each sample.
fn interrupts(root: &Path, n: usize) {
    let queues = (0..INTERFACES * QUEUES).map(|queue| {
        let end = format!("IR-PCI-MSI {queue}-edge      eth{}-TxRx-{}", queue / QUEUES, queue % QUEUES);
        (format!("{}:", queue + 24), queue + if queue < QUEUES { n } else { 0 }, end)
    });
    let file = fs::File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(root.join("proc/interrupts"))
        .expect("a tree can be written");
    file.write_all_at(table(queues).as_bytes(), 0).expect("a tree can be written");
}

/// Returns the CPU time of a sample after the first one, and the number of series.
fn measured(root: &Path, sources: Vec<Box<dyn Source>>) -> (Nanos, usize) {
    let mut monitor = HostMonitor::new(root, sources, ProgramNames::Hidden);
    let mut took = Nanos::ZERO;
    for n in 0..=SAMPLES {
        interrupts(root, n);
        let begin = thread_cpu();
        monitor.sample(Nanos::from_millis(100 * u64::try_from(n).expect("few samples")));
        took += if n > 0 { thread_cpu() - begin } else { Nanos::ZERO };
    }
    (Nanos(took.0 / u64::try_from(SAMPLES).expect("few samples")), monitor.finish().series.len())
}

#[test]
fn a_sample_of_a_large_host_costs_little_enough_for_ten_in_a_second() {
    let root = tempfile::tempdir().unwrap();
    large_host(root.path());
    for source in every_source() {
        let name = source.name();
        let (took, n_series) = measured(root.path(), vec![source]);
        println!("{name:>15}: {took}, {n_series} series");
    }
    let (took, n_series) = measured(root.path(), every_source());
    println!("{:>15}: {took}, {n_series} series", "all");
    assert!(n_series >= 2 * INTERFACES * QUEUES, "{n_series}");
    assert!(took < SAMPLE_MAX, "{took}");
}
