//! What this end says of itself.

use fathom_run::exit::Exit;

/// iperf3's exit code for whatever goes wrong.
pub(super) const FAILED: Exit = Exit::Code(1);
/// The version whose behaviour and text these are.
pub(super) const COMPATIBLE_VERSION: &str = "3.12";

/// How this end calls itself.
pub(super) fn version() -> String {
    format!("iperf {COMPATIBLE_VERSION} ({})", fathom_run::registry::TOOL)
}

/// What iperf3 says of the system: the kernel and its host.
pub(super) fn system() -> String {
    let read = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    let words =
        [read("ostype"), read("hostname"), read("osrelease"), read("version"), std::env::consts::ARCH.to_owned()];
    words.join(" ")
}
