//! The environment facts in the recorded trees.

mod mutation;

use std::{
    fs,
    path::{Path, PathBuf},
};

use fathom_model::Environment;
use fathom_monitor::{InterfaceFacts, environment, interfaces, machine};
use mutation::Mutation;

fn tree(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/roots").join(name)
}

fn assert_facts(facts: &Environment, expected: &[(&str, &str, Option<&str>)]) {
    for (topic, name, value) in expected {
        assert_eq!(facts.get(topic, name), *value, "{topic}: {name}");
    }
}

#[test]
fn a_machine_is_named_by_a_part_of_its_environment_without_its_settings() {
    let (part, whole) = (machine(&tree("linux-6.18")), environment(&tree("linux-6.18"), &[]));
    for (topic, name) in [("cpu", "model"), ("cpu", "count"), ("kernel", "release")] {
        assert_eq!(part.get(topic, name), whole.get(topic, name), "{topic}: {name}");
        assert!(part.get(topic, name).is_some(), "{topic}: {name}");
    }
    assert_eq!(part.get("tcp", "congestion_control"), None);
}

#[test]
fn a_guest_of_linux_6_18_is_described() {
    let facts = environment(&tree("linux-6.18"), &[]);
    assert_facts(
        &facts,
        &[
            ("kernel", "release", Some("6.18.44")),
            ("kernel", "boot_id", Some("3f0c9a52-7b1e-4d0a-9c58-0e6b1f2a7d44")),
            ("kernel", "clocksource", Some("tsc")),
            (
                "kernel",
                "command_line",
                Some(
                    "console=ttyS0 quiet reboot=k panic=1 nomodule agent.token=<redacted> \
                     mitigations=auto,no_guest_host",
                ),
            ),
            ("distribution", "name", Some("Debian GNU/Linux 12 (bookworm)")),
            ("distribution", "version", Some("12")),
            ("cpu", "model", Some("AMD EPYC")),
            ("cpu", "count", Some("2")),
            ("cpu", "online", Some("0-1")),
            ("cpu", "allowed", Some("0-1")),
            ("cpu", "smt", Some("notsupported")),
            ("cpu", "hypervisor", Some("yes")),
            ("cpu", "governor", None),
            ("cpu", "isolated", None),
            ("cpu", "cgroup_limit_cores", None),
            ("memory", "total_bytes", Some("25276510208")),
            ("mitigations", "meltdown", Some("Not affected")),
            ("tcp", "congestion_control", Some("bbr")),
            ("tcp", "congestion_control_available", Some("reno bbr cubic")),
            ("tcp", "qdisc_default", Some("pfifo_fast")),
        ],
    );
}

#[test]
fn of_a_kernel_that_nobody_tuned_only_the_settings_that_depend_on_the_host_are_told() {
    let facts = environment(&tree("linux-6.18"), &[]);
    let settings: Vec<&str> = facts.0["sysctl"].keys().map(String::as_str).collect();
    assert_eq!(
        settings,
        [
            "net.core.bpf_jit_enable",
            "net.core.bpf_jit_kallsyms",
            "net.core.bpf_jit_limit",
            "net.core.max_skb_frags",
            "net.core.mem_pcpu_rsv",
            "net.core.netdev_budget_usecs",
            "net.core.optmem_max",
            "net.core.rmem_default",
            "net.core.rmem_max",
            "net.core.skb_defer_max",
            "net.core.wmem_default",
            "net.core.wmem_max",
            "net.ipv4.tcp_allowed_congestion_control",
            "net.ipv4.tcp_available_ulp",
            "net.ipv4.tcp_ehash_entries",
            "net.ipv4.tcp_limit_output_bytes",
            "net.ipv4.tcp_max_orphans",
            "net.ipv4.tcp_max_syn_backlog",
            "net.ipv4.tcp_max_tw_buckets",
            "net.ipv4.tcp_mem",
            "net.ipv4.tcp_rmem",
            "net.ipv4.tcp_wmem",
            "net.ipv4.udp_hash_entries",
            "net.ipv4.udp_mem",
        ]
    );
    assert_eq!(facts.get("sysctl", "net.ipv4.tcp_rmem"), Some("4096 131072 33554432"));
}

#[test]
fn a_tuned_server_of_linux_6_1_is_described() {
    let facts = environment(&tree("linux-6.1"), &[]);
    assert_facts(
        &facts,
        &[
            ("kernel", "release", Some("6.1.0-28-amd64")),
            ("kernel", "boot_id", None),
            ("distribution", "name", Some("Debian GNU/Linux 12 (bookworm)")),
            ("cpu", "model", Some("Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz")),
            ("cpu", "online", Some("0,2")),
            ("cpu", "smt", Some("on")),
            ("cpu", "hypervisor", Some("no")),
            ("cpu", "governor", Some("performance")),
            ("cpu", "cgroup_limit_cores", Some("2.50")),
            ("cpu", "cgroup_limit_group", Some("/sys/fs/cgroup/system.slice/fathom.service")),
            ("memory", "huge_pages", Some("16")),
            ("mitigations", "meltdown", Some("Mitigation: PTI")),
            ("tcp", "congestion_control", Some("cubic")),
        ],
    );
    let settings: Vec<_> = facts.0["sysctl"].iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        settings,
        [
            ("net.core.netdev_max_backlog", "30000"),
            ("net.ipv4.tcp_from_the_future", "7"),
            ("net.ipv4.tcp_rmem", "4096 262144 67108864"),
            ("net.ipv4.tcp_timestamps", "0"),
        ]
    );
    // Those of the machine are true of all its namespaces.
    let mut namespace = Environment::default();
    fathom_monitor::note_machine_settings(&tree("linux-6.1"), &mut namespace);
    assert_eq!(namespace.0["sysctl"], [("net.core.netdev_max_backlog".to_owned(), "30000".to_owned())].into());
}

#[test]
fn a_host_that_tells_nothing_has_no_facts() {
    assert_eq!(environment(Path::new("/nowhere"), &[]), Environment::default());
    let broken = environment(&tree("broken"), &[]);
    assert_facts(&broken, &[("memory", "total_bytes", None), ("cpu", "model", None), ("sysctl", "tcp_rmem", None)]);
}

#[test]
fn no_damage_to_a_file_makes_the_description_panic() {
    const FILES: [&str; 8] = [
        "proc/cmdline",
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/self/cgroup",
        "proc/self/status",
        "proc/sys/net/ipv4/tcp_rmem",
        "etc/os-release",
        "sys/fs/cgroup/cpu.max",
    ];
    let root = tempfile::tempdir().unwrap();
    let recorded = tree("linux-6.18");
    let whole = FILES.map(|file| fs::read(recorded.join(file)).unwrap_or_else(|_| b"250000 100000\n".to_vec()));
    for file in FILES {
        fs::create_dir_all(root.path().join(file).parent().unwrap()).unwrap();
    }
    let mut mutation = Mutation::seeded(2);
    for _ in 0..200 {
        for (file, whole) in FILES.iter().zip(&whole) {
            fs::write(root.path().join(file), mutation.of(whole)).unwrap();
        }
        let facts = environment(root.path(), &[InterfaceFacts::default()]);
        assert!(facts.0.values().flat_map(|topic| topic.values()).all(|value| !value.is_empty()));
    }
}

#[test]
fn this_machine_is_described_with_its_interfaces() {
    let facts = environment(Path::new("/"), &interfaces().unwrap());
    assert!(facts.get("kernel", "release").is_some());
    assert!(facts.get("lo", "mtu_bytes").is_some());
    assert!(facts.get("clock", "synchronized").is_some());
    assert!(!facts.0["sysctl"].contains_key("net.ipv4.tcp_fastopen_key"));
}
