//! Identifies the clock of a host, so that times of two hosts are compared only if they share a clock.

use std::fs;

/// Identifies one boot of one kernel; `None` if user space sees another clock than programs in the kernel.
///
/// A time namespace shifts the monotonic clock of its processes: `time_namespaces(7)`.
pub(super) fn clock_name() -> Option<String> {
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let is_shifted =
        |line: &str| line.starts_with("monotonic") && !line.split_ascii_whitespace().skip(1).all(|word| word == "0");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    (!offsets.lines().any(is_shifted)).then(|| boot.trim().to_owned())
}
