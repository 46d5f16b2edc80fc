//! The output of `-h` and of an invalid command line.

use super::options;

/// The line of `-v` about built-in features.
pub(super) const FEATURES: &str = "Optional features available: CPU affinity setting, TCP congestion algorithm setting, \
sendfile / zerocopy, socket pacing, authentication, bind to device, support IPv4 don't fragment";

const HEAD: &str = "\
Usage: iperf3 [-s|-c host] [options]
       iperf3 [-h|--help] [-v|--version]
";

/// Returns the list of all options with their descriptions.
pub(super) fn usage() -> String {
    let shown = |(title, rows): (&str, Vec<(String, &str)>)| {
        let rows: Vec<String> = rows.iter().map(|(option, about)| format!("  {option:<30}{about}\n")).collect();
        format!("\n{title}:\n{}", rows.concat())
    };
    let groups: String = options::rows().into_iter().map(shown).collect();
    format!("{HEAD}{groups}\n[KMG] stands for a suffix: thousands for rates, 1024s for lengths and volumes.\n")
}
