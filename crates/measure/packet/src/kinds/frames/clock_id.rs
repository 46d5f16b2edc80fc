//! Which clock a host goes by, so that times of two hosts are compared only where it is one.

use std::fs;

/// One start of one kernel; nothing where user space is shown another clock than programs in the kernel.
///
/// A time namespace shifts the monotonic clock of those in it: `time_namespaces(7)`.
pub(super) fn clock_name() -> Option<String> {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let is_shifted =
        |line: &str| line.starts_with("monotonic") && !line.split_ascii_whitespace().skip(1).all(|word| word == "0");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    (!offsets.lines().any(is_shifted)).then(|| boot.trim().to_owned())
}
