//! Tests with single packets: series, routes, path MTU and port scans.
//!
//! Only the initiator sends. A responder, if the plan has one, reports its address and nothing else, because the host's own
//! kernel answers; that of fragments answers itself.

mod drivers;
mod fragments;
mod initiator;
mod metrics;
mod options;
mod recording_driver;

use fathom_engine::{CommandDoc, Consent, Error, NamedTarget, Test, TestKind};
use fathom_model::{Layer, Metric, OptionDoc, Role, Settings, Side, units::Nanos};
use fathom_sys::policy::Policy;

pub use fragments::FRAGMENTS;

use drivers::{MtuDriver, PortScanDriver, RouteDriver, SeriesDriver};
use initiator::{ProbeInitiator, ProbeResponder};
use recording_driver::RecordingDriver;

/// All kinds of this crate.
pub const KINDS: &[&dyn TestKind] = &[&SERIES, &MTU, &ROUTE, &PORTS, &FRAGMENTS];

/// The properties that differ between the kinds of probes.
struct ProbeKindSpec {
    name: &'static str,
    about: &'static str,
    options: &'static [OptionDoc],
    metrics: &'static [Metric],
    title: fn(&Settings) -> String,
    command: CommandDoc,
    driver: fn(&Role) -> Result<Box<dyn RecordingDriver>, Error>,
}

/// A test kind that sends probes.
pub struct ProbeTest(&'static ProbeKindSpec);

/// Round trips and loss of probes at an interval.
pub static SERIES: ProbeTest = ProbeTest(&ProbeKindSpec {
    name: "probe",
    about: "round trips, loss and outages of single packets, by the kernel's own time stamps",
    options: options::SERIES,
    metrics: metrics::SERIES,
    title: |settings| {
        let count = settings.count("count").map(|count| format!(", {count} probes")).unwrap_or_default();
        let pace = match settings.span("interval") {
            _ if settings.flag("flood") => ", flat out".to_owned(),
            Some(interval) => format!(" every {interval}"),
            None => String::new(),
        };
        format!("{}{count}{pace}", options::describe(settings))
    },
    command: CommandDoc::test("rtt").implied_by(&["count", "interval", "flood", "until", "size"]),
    driver: |role| Ok(Box::new(SeriesDriver::new(role)?)),
});

/// The longest packet that gets through.
pub static MTU: ProbeTest = ProbeTest(&ProbeKindSpec {
    name: "probe_mtu",
    about: "path MTU, and black holes in which longer packets vanish without a word",
    options: options::MTU,
    metrics: metrics::MTU,
    title: |settings| format!("path MTU by {}", options::describe(settings)),
    command: CommandDoc::test("mtu"),
    driver: |role| Ok(Box::new(MtuDriver::new(role)?)),
});

/// The routers on the path.
pub static ROUTE: ProbeTest = ProbeTest(&ProbeKindSpec {
    name: "probe_route",
    about: "the hops to a host, each with its loss and round trips, along one flow",
    options: options::ROUTE,
    metrics: metrics::ROUTE,
    title: |settings| format!("route by {}", options::describe(settings)),
    command: CommandDoc::test("route"),
    driver: |role| Ok(Box::new(RouteDriver::new(role)?)),
});

/// The ports that answer.
pub static PORTS: ProbeTest = ProbeTest(&ProbeKindSpec {
    name: "probe_ports",
    about: "which of the listed ports are open, closed or filtered",
    options: options::PORTS,
    metrics: metrics::PORTS,
    title: |settings| {
        let protocol = settings.text("protocol").unwrap_or_default().to_uppercase();
        format!("{protocol} ports {}", settings.text("ports").unwrap_or_default())
    },
    command: CommandDoc::test("ports").implied_by(&["ports"]),
    driver: |role| Ok(Box::new(PortScanDriver::new(role)?)),
});

/// Users without privileges may ping at most five times a second. An interval of a tenth of a second is just as harmless.
pub const PING_INTERVAL: Nanos = Nanos::from_millis(100);
/// The most hops and queries per hop of tools that trace routes without privileges.
const TRACE_MAX: (u64, u64) = (64, 10);

impl ProbeTest {
    /// Whether its rate is as low as that of ping and traceroute, so that anybody may run it.
    fn is_within_ping_rate(&self, settings: &Settings) -> bool {
        let at_most = |name: &str, most| settings.count(name).is_some_and(|count| count <= most);
        match self.0.name {
            name if name == SERIES.0.name => {
                !settings.flag("flood") && settings.span("interval").is_some_and(|interval| interval >= PING_INTERVAL)
            }
            name if name == MTU.0.name => true,
            name if name == ROUTE.0.name => at_most("hops", TRACE_MAX.0) && at_most("queries", TRACE_MAX.1),
            _ => false,
        }
    }
}

impl TestKind for ProbeTest {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn about(&self) -> &'static str {
        self.0.about
    }

    fn layer(&self) -> Layer {
        Layer::Path
    }

    fn command(&self) -> Option<CommandDoc> {
        Some(self.0.command)
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        let consent = if self.is_within_ping_rate(settings) {
            Consent::SingleHostOutsideLabs
        } else {
            Consent::AllowListOutsideLabs
        };
        Ok(settings.text(options::TARGET).map(|host| NamedTarget { host, port: None, consent }).into_iter().collect())
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text(options::TARGET).is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        (self.0.title)(settings)
    }

    /// Searches end with their answer, and a series with its last probe, if their number is given.
    fn ends_with_its_work(&self, settings: &Settings) -> bool {
        self.0.name != SERIES.0.name || settings.count("count").is_some()
    }

    fn options(&self) -> &'static [OptionDoc] {
        self.0.options
    }

    fn metrics(&self) -> &'static [Metric] {
        self.0.metrics
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(match role.side {
            Side::Initiator => Box::new(ProbeInitiator::prepare(role, policy, (self.0.driver)(role)?)?),
            Side::Responder => Box::new(ProbeResponder::prepare(role)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_ends_with_its_answer_and_a_series_with_its_last_probe() {
        let ends = |kind: &dyn TestKind, settings: Settings| {
            kind.ends_with_its_work(&settings.complete(kind.options()).unwrap())
        };
        let target = || Settings::default().with("host", "192.0.2.7");
        for kind in [&MTU, &ROUTE, &PORTS] as [&dyn TestKind; 3] {
            assert!(ends(kind, target()), "{}", kind.name());
        }
        assert!(ends(&FRAGMENTS, Settings::default()));
        assert!(ends(&SERIES, target().with("count", "3")) && !ends(&SERIES, target().with("interval", "1s")));
    }

    #[test]
    fn a_few_packets_are_at_the_pace_of_ping_and_a_flood_or_a_scan_is_not() {
        let of = |kind: &ProbeTest, name: &str, text: &str| {
            let settings = Settings::default().with("host", "192.0.2.7").with(name, text);
            kind.is_within_ping_rate(&settings.complete(kind.0.options).unwrap())
        };
        assert!(of(&SERIES, "interval", "100ms") && of(&SERIES, "count", "3") && of(&MTU, "tries", "2"));
        assert!(of(&ROUTE, "hops", "30"));
        assert!(!of(&SERIES, "interval", "99ms") && !of(&SERIES, "flood", "true") && !of(&ROUTE, "queries", "11"));
        assert!(!of(&PORTS, "ports", "22"));
    }
}
