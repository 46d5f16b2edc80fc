//! The test kinds of all crates in one table. No other module knows them all.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use fathom_engine::{Observer, TestKind};
use fathom_model::{Environment, HostRecord, Metric, units::Nanos};
pub use fathom_monitor::ProgramNames;
use fathom_monitor::{HostMonitor, UNREAD};

/// All test kinds, top layer first.
pub static KINDS: LazyLock<Vec<&'static dyn TestKind>> = LazyLock::new(|| {
    [
        fathom_scenario::KINDS,
        fathom_lua::KINDS,
        fathom_http::KINDS,
        fathom_http_xdp::KINDS,
        fathom_replay::KINDS,
        fathom_transport::KINDS,
        fathom_interop::KINDS,
        fathom_targets::KINDS,
        fathom_packet::KINDS,
        fathom_probe::kinds::KINDS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
});

/// Returns the metrics of each kind by the name of the kind.
pub fn metrics() -> BTreeMap<String, Vec<Metric>> {
    KINDS.iter().map(|kind| (kind.name().to_owned(), kind.metrics().to_vec())).collect()
}

/// Finds a kind by its name.
pub fn kind(name: &str) -> Result<&'static dyn TestKind, fathom_engine::Error> {
    fathom_engine::find(&KINDS, name).copied()
}

/// The name and version of this program in results.
pub const TOOL: &str = concat!("fathom ", env!("CARGO_PKG_VERSION"));

/// The topic of what is told of all interfaces together.
pub const INTERFACES: &str = "interfaces";

/// Returns the facts about this host that affect results, and why others could not be read.
fn environment_here() -> Environment {
    let interfaces = fathom_monitor::interfaces();
    let mut environment = fathom_monitor::environment(Path::new("/"), interfaces.as_deref().unwrap_or_default());
    if let Err(error) = interfaces {
        environment.note(INTERFACES, UNREAD, format!("they are unknown: {error}: {}", error.source));
    }
    environment.note("tool", "version", TOOL);
    environment.note("tool", "capabilities", fathom_sys::process::effective_capabilities().join(" "));
    environment.note("tool", "build", if cfg!(debug_assertions) { "debug" } else { "release" });
    environment
}

fn host_monitor(programs: ProgramNames) -> HostMonitor {
    HostMonitor::new("/", fathom_monitor::every_source(), programs)
}

/// The monitor's sources on this machine. An agent samples them during a test.
struct HostObserver(HostMonitor);

impl Observer for HostObserver {
    fn environment(&mut self) -> Environment {
        environment_here()
    }

    fn sample(&mut self, now: Nanos) {
        self.0.sample(now);
    }

    fn finish(&mut self) -> (HostRecord, Vec<String>) {
        let watch = std::mem::replace(&mut self.0, host_monitor(ProgramNames::Hidden));
        let unavailable = watch.unavailable().to_vec();
        (watch.finish(), unavailable)
    }
}

/// Creates an observer of this host.
pub fn observer(programs: ProgramNames) -> Box<dyn Observer> {
    Box::new(HostObserver(host_monitor(programs)))
}

#[cfg(test)]
mod tests {
    use fathom_model::{OptionDoc, Settings, ValueKind};

    use super::*;

    /// Returns the destinations that a kind reports for an option, tried with a URL, an address with a port and an address.
    fn stated(kind: &dyn TestKind, option: &OptionDoc) -> Vec<String> {
        ["http://192.0.2.7:81/", "192.0.2.7:81", "192.0.2.7"]
            .into_iter()
            .filter_map(|text| kind.destinations(&Settings::default().with(option.name, text)).ok())
            .flatten()
            .map(|target| target.host)
            .collect()
    }

    #[test]
    fn every_option_that_names_a_destination_is_stated_by_its_kind() {
        let mut n_options = 0;
        for kind in KINDS.iter() {
            for option in kind.options().iter().filter(|option| option.value == ValueKind::Destination) {
                assert!(
                    stated(*kind, option).iter().any(|host| host == "192.0.2.7"),
                    "{} {}",
                    kind.name(),
                    option.name
                );
                n_options += 1;
            }
        }
        assert!(n_options > 10, "only {n_options} options name a destination");
    }
}
