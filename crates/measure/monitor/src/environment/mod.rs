//! The properties of a host that affect the results: kernel, processors, settings, interfaces.
//!
//! Facts that the host does not report are missing. Facts are texts in the form of the kernel, unless the name of a fact has a
//! unit. This module does not interpret them.

pub(crate) mod cgroup;
mod command_line;
mod default_route;
mod gathering;
mod interface;
mod sysctl;

use std::{fs, io::Read as _, path::Path};

use fathom_model::Environment;
use fathom_sys::clock;

pub use default_route::DEFAULT_ROUTE;
pub use gathering::interfaces;
pub use interface::{InterfaceFacts, LineRate, Queues, RingSizes, UNREAD};
pub use sysctl::note_machine_settings;

/// Larger than any file with a fact.
const FILE_MAX: u64 = 1 << 20;

/// Files with a single fact: topic, name, and path under the root.
const FILES: [(&str, &str, &str); 19] = [
    ("kernel", "release", "proc/sys/kernel/osrelease"),
    ("kernel", "version", "proc/sys/kernel/version"),
    ("kernel", "boot_id", "proc/sys/kernel/random/boot_id"),
    ("kernel", "clocksource", "sys/devices/system/clocksource/clocksource0/current_clocksource"),
    ("kernel", "clocksource_available", "sys/devices/system/clocksource/clocksource0/available_clocksource"),
    ("cpu", "present", "sys/devices/system/cpu/present"),
    ("cpu", "online", "sys/devices/system/cpu/online"),
    ("cpu", "isolated", "sys/devices/system/cpu/isolated"),
    ("cpu", "smt", "sys/devices/system/cpu/smt/control"),
    ("cpu", "governor", "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
    ("cpu", "frequency_driver", "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver"),
    ("cpu", "boost", "sys/devices/system/cpu/cpufreq/boost"),
    ("cpu", "numa_nodes", "sys/devices/system/node/online"),
    ("cpu", "machine", "sys/class/dmi/id/product_name"),
    ("memory", "transparent_huge_pages", "sys/kernel/mm/transparent_hugepage/enabled"),
    ("tcp", "congestion_control", "proc/sys/net/ipv4/tcp_congestion_control"),
    ("tcp", "congestion_control_available", "proc/sys/net/ipv4/tcp_available_congestion_control"),
    // A setting of the whole host: Linux hides it in all network namespaces except the first.
    ("tcp", "qdisc_default", "proc/sys/net/core/default_qdisc"),
    ("tcp", "mptcp", "proc/sys/net/mptcp/enabled"),
];

/// Facts of the processor: our name, and the key in `/proc/cpuinfo`.
const CPU_KEYS: [(&str, &str); 2] = [("model", "model name"), ("microcode", "microcode")];

/// Facts of the distribution: our name, and the key in os-release(5).
const DISTRIBUTION_KEYS: [(&str, &str); 3] = [("name", "PRETTY_NAME"), ("id", "ID"), ("version", "VERSION_ID")];

/// Returns the facts of the host under `root`. For `/` that is this host, seen from the network namespace of the process.
#[must_use]
pub fn environment(root: &Path, interfaces: &[InterfaceFacts]) -> Environment {
    let mut facts = Environment::default();
    for (topic, name, path) in FILES {
        note_some(&mut facts, (topic, name), content(&root.join(path)));
    }
    let command_line = content(&root.join("proc/cmdline")).map(|line| command_line::redacted(&line));
    note_some(&mut facts, ("kernel", "command_line"), command_line);
    distribution(root, &mut facts);
    processors(root, &mut facts);
    memory(root, &mut facts);
    mitigations(root, &mut facts);
    sysctl::note(root, &mut facts);
    if root == Path::new("/") {
        time_sync(&mut facts);
    }
    for interface in interfaces {
        interface.note(&mut facts);
    }
    default_route::note(root, &mut facts);
    facts
}

/// Returns the facts that distinguish machines of different speed: kernel and processors, read from a few files.
#[must_use]
pub fn machine(root: &Path) -> Environment {
    let mut facts = Environment::default();
    note_some(&mut facts, ("kernel", "release"), content(&root.join("proc/sys/kernel/osrelease")));
    processors(root, &mut facts);
    facts
}

fn distribution(root: &Path, facts: &mut Environment) {
    let Some(text) = content(&root.join("etc/os-release")).or_else(|| content(&root.join("usr/lib/os-release"))) else {
        return;
    };
    for (name, key) in DISTRIBUTION_KEYS {
        let value = value_of(&text, key, '=').map(|value| value.trim_matches(['"', '\'']).to_owned());
        note_some(facts, ("distribution", name), value);
    }
}

fn processors(root: &Path, facts: &mut Environment) {
    if let Some(text) = content(&root.join("proc/cpuinfo")) {
        let online = text.lines().filter(|line| line.starts_with("processor")).count();
        if online > 0 {
            facts.note("cpu", "count", online.to_string());
        }
        for (name, key) in CPU_KEYS {
            note_some(facts, ("cpu", name), value_of(&text, key, ':'));
        }
        if let Some(flags) = value_of(&text, "flags", ':') {
            let is_guest = flags.split_whitespace().any(|flag| flag == "hypervisor");
            facts.note("cpu", "hypervisor", if is_guest { "yes" } else { "no" });
        }
    }
    let status = content(&root.join("proc/self/status"));
    let allowed = status.and_then(|text| value_of(&text, "Cpus_allowed_list", ':'));
    note_some(facts, ("cpu", "allowed"), allowed);
    let (limit, group) = cgroup::limit_cores(root).unzip();
    note_some(facts, ("cpu", "cgroup_limit_cores"), limit);
    let group = group.flatten().map(|group| Path::new("/").join(group.strip_prefix(root).unwrap_or(&group)));
    note_some(facts, ("cpu", "cgroup_limit_group"), group.map(|group| group.display().to_string()));
}

/// Notes how well a daemon keeps the wall clock of this host, which no file tells.
fn time_sync(facts: &mut Environment) {
    if let Some(sync) = clock::time_sync() {
        facts.note("clock", "synchronized", if sync.is_synchronized { "yes" } else { "no" });
        facts.note("clock", "error_max_ns", sync.error_max.0.to_string());
    }
}

fn memory(root: &Path, facts: &mut Environment) {
    let Some(text) = content(&root.join("proc/meminfo")) else { return };
    let total = value_of(&text, "MemTotal", ':').and_then(|total| kibibytes(&total));
    note_some(facts, ("memory", "total_bytes"), total.map(|bytes| bytes.to_string()));
    note_some(facts, ("memory", "huge_pages"), value_of(&text, "HugePages_Total", ':'));
}

/// Parses bytes from a text such as `24624128 kB`, where the kernel means 1024 by `k`.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn mitigations(root: &Path, facts: &mut Environment) {
    for (name, value) in contents(&root.join("sys/devices/system/cpu/vulnerabilities")) {
        facts.note("mitigations", &name, value);
    }
}

fn note_some(facts: &mut Environment, (topic, name): (&str, &str), value: Option<String>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        facts.note(topic, name, value);
    }
}

/// Returns the value of the first line that starts with a key and its separator, as in `MemTotal:  24624128 kB`.
fn value_of(text: &str, key: &str, separator: char) -> Option<String> {
    let value = |line: &str| Some(line.strip_prefix(key)?.trim_start().strip_prefix(separator)?.trim().to_owned());
    text.lines().find_map(value)
}

/// Returns the content of a file without surrounding white space; `None` if it cannot be read or is not text.
fn content(path: &Path) -> Option<String> {
    let mut text = String::new();
    // Some files in /proc/sys only return an error. They count as missing.
    fs::File::open(path).ok()?.take(FILE_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// The names and contents of all readable files in a directory.
fn contents(directory: &Path) -> impl Iterator<Item = (String, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    files.filter_map(|file| Some((file.file_name().into_string().ok()?, content(&file.path())?)))
}
