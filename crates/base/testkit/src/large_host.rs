//! A recorded tree of a large host: 64 cores, and 16 interfaces with 64 queues each.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::{FileExt as _, symlink},
    path::Path,
};

/// Its cores.
pub const CORES: usize = 64;
/// Its interfaces.
pub const INTERFACES: usize = 16;
/// The queues of each interface.
pub const QUEUES: usize = 64;

fn write(root: &Path, path: &str, text: impl AsRef<[u8]>) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Writes a table with a column per core: a header, and rows of a label, counts and an end.
fn table(rows: impl Iterator<Item = (String, usize, String)>) -> String {
    let mut text = (0..CORES).map(|core| format!("{:>11}", format!("CPU{core}"))).collect::<Vec<_>>().concat() + "\n";
    for (label, seed, end) in rows {
        let counts = (0..CORES).map(|core| format!(" {:>10}", (seed * 7 + core) * 1_013)).collect::<Vec<_>>().concat();
        writeln!(text, "{label:>12}{counts} {end}").unwrap();
    }
    text
}

/// Writes the tree, with the texts of Linux 6.18 for all that does not depend on its size.
pub fn write_large_host(root: &Path) {
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../measure/monitor/tests/roots/linux-6.18");
    for file in ["snmp", "snmp6", "netstat", "sockstat", "stat/rt_cache"] {
        write(root, &format!("proc/net/{file}"), fs::read(small.join("proc/net").join(file)).unwrap());
    }
    for file in ["pressure/cpu", "pressure/memory", "pressure/io", "self/limits", "sys/net/ipv4/ip_local_port_range"] {
        write(root, &format!("proc/{file}"), fs::read(small.join("proc").join(file)).unwrap());
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
        writeln!(interfaces, "  eth{interface}: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0").unwrap();
        fs::create_dir_all(root.join(format!("sys/class/net/eth{interface}"))).unwrap();
        let device = format!("../../../0000:{interface:02x}:00.0");
        symlink(device, root.join(format!("sys/class/net/eth{interface}/device"))).unwrap();
    }
    write(root, "proc/net/dev", interfaces);
}

/// Writes the interrupts of all queues; those of the first interface grow with each `n`.
pub fn write_interrupts(root: &Path, n: usize) {
    let queues = (0..INTERFACES * QUEUES).map(|queue| {
        let end = format!("IR-PCI-MSI {queue}-edge      eth{}-TxRx-{}", queue / QUEUES, queue % QUEUES);
        (format!("{}:", queue + 24), queue + if queue < QUEUES { n } else { 0 }, end)
    });
    let file = fs::File::options().write(true).create(true).truncate(false).open(root.join("proc/interrupts")).unwrap();
    file.write_all_at(table(queues).as_bytes(), 0).unwrap();
}
