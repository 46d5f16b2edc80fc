//! What `-h` and a wrong command line show.

use super::options;

/// The line of `-v` that says what is built in.
pub(super) const FEATURES: &str = "Optional features available: CPU affinity setting, TCP congestion algorithm setting, \
sendfile / zerocopy, socket pacing, authentication, bind to device, support IPv4 don't fragment";

const HEAD: &str = "\
Usage: iperf3 [-s|-c host] [options]
       iperf3 [-h|--help] [-v|--version]
";

/// All options with what they mean.
pub(super) fn usage() -> String {
    let shown = |(title, rows): (&str, Vec<(String, &str)>)| {
        let rows: Vec<String> = rows.iter().map(|(option, about)| format!("  {option:<30}{about}\n")).collect();
        format!("\n{title}:\n{}", rows.concat())
    };
    let groups: String = options::rows().into_iter().map(shown).collect();
    format!("{HEAD}{groups}\n[KMG] stands for a suffix: thousands for rates, 1024s for lengths and volumes.\n")
}
