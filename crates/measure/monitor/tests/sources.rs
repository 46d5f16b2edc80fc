//! All sources on all recorded trees, on damaged ones, and on this machine.

mod mutation;

use std::{
    fs,
    net::UdpSocket,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use fathom_model::{names::host, units::Nanos};
use fathom_monitor::{CounterSink, HostMonitor, ProgramNames, Source, every_source};
use mutation::Mutation;

/// The recorded values, one line each.
#[derive(Default)]
struct Lines(Vec<String>);

impl CounterSink for Lines {
    fn value(&mut self, name: &'static str, of: &str, value: u64) {
        let of = if of.is_empty() { "-" } else { of };
        self.0.push(format!("{name} {of} {value}"));
    }
}

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roots").join(name)
}

/// The lines of the tree's `expected.txt`. `3 pages` stands for that many bytes at the page size of this machine.
fn expected(root: &Path) -> Vec<String> {
    let bytes = |line: &str| match line.strip_suffix(" pages").and_then(|line| line.rsplit_once(' ')) {
        Some((counter, pages)) => {
            format!("{counter} {}", pages.parse::<usize>().expect("pages are counted") * rustix::param::page_size())
        }
        None => line.to_owned(),
    };
    fs::read_to_string(root.join("expected.txt")).expect("each tree has one").lines().map(bytes).collect()
}

/// Takes two samples from each source. A source that keeps its file open must read the same again.
fn recorded(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for mut source in every_source() {
        let [mut first, mut second] = [Lines::default(), Lines::default()];
        for lines in [&mut first, &mut second] {
            let _missing = source.sample(root, lines);
        }
        assert_eq!(first.0, second.0, "{}", source.name());
        all.extend(first.0);
    }
    all
}

#[test]
fn every_source_reads_every_recorded_tree_to_the_last_value() {
    for name in ["linux-6.18", "linux-6.1", "linux-5.15", "linux-4.18", "broken"] {
        let root = tree(name);
        let (mut expected, mut recorded) = (expected(&root), recorded(&root));
        expected.sort_unstable();
        recorded.sort_unstable();
        let beyond = |all: &[String], known: &[String]| all.iter().find(|line| !known.contains(line)).cloned();
        assert_eq!(beyond(&recorded, &expected), None, "{name}: read, and not expected");
        assert_eq!(beyond(&expected, &recorded), None, "{name}: expected, and not read");
        assert_eq!(recorded.len(), expected.len(), "{name}: each once");
    }
}

/// The sources that read files. Those that query the kernel have no recorded tree, and are sampled on this machine below.
fn files() -> Vec<Box<dyn Source>> {
    every_source()
        .into_iter()
        .filter(|source| {
            !["qdisc", "links", "nft", "pause frames", "lab device", "neighbors", "listeners"].contains(&source.name())
        })
        .collect()
}

#[test]
fn a_source_records_the_counters_that_it_names_and_no_others() {
    for mut source in files() {
        let mut lines = Lines::default();
        source.sample(&tree("linux-6.18"), &mut lines).unwrap();
        let mut recorded: Vec<&str> = lines.0.iter().filter_map(|line| line.split(' ').next()).collect();
        recorded.sort_unstable();
        recorded.dedup();
        let mut named = source.counters().to_vec();
        // No recorded tree has the size of `/proc/self/fd`.
        named.retain(|name| *name != host::DESCRIPTORS_OPEN);
        named.sort_unstable();
        assert_eq!(recorded, named, "{}", source.name());
    }
}

#[test]
fn what_cannot_be_read_is_told_once_and_the_rest_is_recorded() {
    let mut watch = HostMonitor::new(tree("broken"), files(), ProgramNames::Told);
    (0..3).for_each(|second| watch.sample(Nanos::from_secs(second)));
    let missing =
        |source: &str, file: &str| format!("{source}: cannot read /{file}: No such file or directory (os error 2)");
    let masked =
        ["proc/net/stat/nf_conntrack", "proc/sys/net/netfilter/nf_conntrack_count", "proc/1/net/stat/arp_cache"]
            .map(|file| format!("cannot read /{file}: No such file or directory (os error 2)"))
            .join("; ");
    let tables = format!("tables: {masked}: /proc hides the first process");
    // This tree has no control groups.
    let nothing = |source: &str| format!("{source}: /sys is not mounted");
    let expected = [
        missing("softirqs", "proc/softirqs"),
        missing("netstat", "proc/net/netstat"),
        tables,
        missing("martians", "proc/net/stat/rt_cache"),
        nothing("throttling"),
        missing("pressure", "proc/pressure/cpu"),
        nothing("memory events"),
        missing("supplies", "proc/self/limits"),
        missing("interrupts", "proc/interrupts"),
    ];
    assert_eq!(watch.unavailable(), expected);
    assert_eq!(watch.finish().growth(host::TCP_RETRANS_SEGMENTS, ""), Some(0));
}

#[test]
fn an_empty_file_is_told_too() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/net")).unwrap();
    fs::write(root.path().join("proc/net/snmp"), "").unwrap();
    let snmp = every_source().into_iter().filter(|source| source.name() == "snmp").collect();
    let mut watch = HostMonitor::new(root.path(), snmp, ProgramNames::Hidden);
    watch.sample(Nanos::ZERO);
    assert_eq!(watch.unavailable(), ["snmp: none of its counters was found"]);
}

#[test]
fn no_damage_to_a_file_makes_a_source_panic() {
    const FILES: [&str; 19] = [
        "proc/stat",
        "proc/net/softnet_stat",
        "proc/net/dev",
        "proc/net/snmp",
        "proc/net/snmp6",
        "proc/net/netstat",
        "proc/net/sockstat",
        "proc/net/stat/nf_conntrack",
        "proc/net/stat/rt_cache",
        "proc/softirqs",
        "proc/interrupts",
        "proc/self/limits",
        "proc/sys/net/ipv4/ip_local_port_range",
        "proc/pressure/cpu",
        "proc/pressure/memory",
        "proc/pressure/io",
        "sys/fs/cgroup/unified/memory.events",
        "proc/1/net/stat/arp_cache",
        "proc/1/net/stat/ndisc_cache",
    ];
    let root = tempfile::tempdir().unwrap();
    for file in FILES {
        fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
    }
    fs::write(root.path().join("proc/self/cgroup"), "0::/\n").unwrap();
    fs::create_dir_all(root.path().join("sys/class/net/eth0")).unwrap();
    symlink("../../../virtio2", root.path().join("sys/class/net/eth0/device")).unwrap();
    let mut mutation = Mutation::seeded(1);
    for from in ["linux-6.18", "linux-6.1", "linux-5.15", "linux-4.18"] {
        // An older kernel does not have all of them.
        let whole = FILES.map(|file| fs::read(tree(from).join(file)).unwrap_or_default());
        for _ in 0..100 {
            for (file, whole) in FILES.iter().zip(&whole) {
                fs::write(root.path().join(file), mutation.of(whole)).unwrap();
            }
            let mut lines = Lines::default();
            for mut source in every_source() {
                let _unread = source.sample(root.path(), &mut lines);
            }
        }
    }
}

#[test]
fn a_thousand_datagrams_over_loopback_are_seen_on_this_machine() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    let mut watch = HostMonitor::new("/", every_source(), ProgramNames::Told);
    watch.sample(Nanos(1));
    for _ in 0..1_000 {
        sender.send(b"datagram").unwrap();
        receiver.recv(&mut [0; 16]).unwrap();
    }
    watch.sample(Nanos(2));
    let of_first = ["the first process", "only the first network namespace"];
    let is_for_root = |loss: &String| {
        ["nft: ", "packet queues: "].iter().any(|name| loss.starts_with(name))
            || of_first.iter().any(|words| loss.contains(words))
    };
    let losses: Vec<_> = watch.unavailable().iter().filter(|loss| !is_for_root(loss)).collect();
    assert_eq!(losses, [""; 0], "rules, queues and the first namespace are shown to root only, all else to everybody");
    let record = watch.finish();
    for (counter, of) in [
        (host::UDP_OUT_DATAGRAMS, ""),
        (host::UDP_IN_DATAGRAMS, ""),
        (host::DEV_TX_FRAMES, "lo"),
        (host::DEV_RX_FRAMES, "lo"),
    ] {
        assert!(record.growth(counter, of) >= Some(1_000), "{counter}: {:?}", record.growth(counter, of));
    }
    assert_eq!(record.growth(host::QDISC_DROPPED, "lo"), Some(0), "the loopback has a discipline that drops nothing");
    let processed: u64 = record.series_of(host::SOFTNET_PROCESSED).map(fathom_model::record::Series::growth).sum();
    assert!(processed >= 1_000, "{processed}");
}
