//! What the tests against the servers of other tools have in common: the server's address, the words of a test, and its failures.

use std::{
    fmt::Display,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fathom_engine::{Consent, Error, NamedTarget, WorkerHandle};
use fathom_model::{
    Failure, OptionDoc, Record, Role, Settings, ValueKind,
    host_port::{port_number, split_host_port},
};
use fathom_sys::policy::{Destination, Policy, Refused};
use fathom_transport::{
    connection_setup,
    options::{self, PORT},
};

/// Returns the option for the server.
pub(super) const fn host_option(help: &'static str) -> OptionDoc {
    OptionDoc { name: "host", value: ValueKind::Destination, default: None, help }
}

/// Returns a count as a narrower number; `None` if it is not set or does not fit.
pub(super) fn narrow<T: TryFrom<u64>>(settings: &Settings, option: &OptionDoc) -> Option<T> {
    settings.count(option.name).and_then(|count| T::try_from(count).ok())
}

/// Returns the host and port of the server in the settings, from one text or with the option `port`.
///
/// # Errors
/// If the text is not a host with an optional port, or if there are two different ports.
pub(super) fn destination(settings: &Settings, default_port: u16) -> Result<Option<(String, u16)>, Error> {
    let Some(text) = settings.text("host") else { return Ok(None) };
    let wrong = || options::invalid_value("host", "HOST, HOST:PORT or [ADDRESS]:PORT", &text);
    let (host, port) = split_host_port(&text).ok_or_else(wrong)?;
    let named = narrow::<u16>(settings, &PORT).filter(|port| *port != 0);
    let port = port.map(|port| port_number(port).ok_or_else(wrong)).transpose()?;
    if let (Some(named), Some(port)) = (named, port.filter(|port| named != Some(*port))) {
        return Err(options::invalid_value(PORT.name, &format!("{port}, the port of {text}"), &named));
    }
    if host.contains(char::is_whitespace) {
        return Err(wrong());
    }
    Ok(Some((host.to_owned(), port.or(named).unwrap_or(default_port))))
}

/// Returns the server as a target, if it is not ours.
///
/// Nothing connects before the test: a server that serves a single test would have used it up.
pub(super) fn named_targets(
    settings: &Settings,
    default_port: u16,
    consent: Consent,
) -> Result<Vec<NamedTarget>, Error> {
    let target = destination(settings, default_port)?;
    Ok(target.map(|(host, _)| NamedTarget { host, port: None, consent }).into_iter().collect())
}

/// Returns the addresses of the server: the one in the settings, or ours.
pub(super) fn server_destinations(
    role: &Role,
    policy: &Policy,
    default_port: u16,
    kind: &'static str,
) -> Result<Vec<Destination>, Error> {
    let Some((host, port)) = destination(&role.settings, default_port)? else {
        return Ok(vec![policy.permit(connection_setup::responder_address(role, kind)?)?]);
    };
    let unknown = |error| match Refused::within(&error) {
        Some(refused) => refused.clone().into(),
        None => Error::Unsupported { what: format!("there is no host `{host}`: {error}"), hint: None },
    };
    policy.resolve(&host, port).map_err(unknown)
}

/// Whether our own server is at the other end.
pub(super) fn is_two_sided(settings: &Settings) -> bool {
    settings.text("host").is_none()
}

/// Returns the address that a client connects from: only our own server is reached from this host's address on the path under test.
pub(super) fn source(role: &Role) -> Option<IpAddr> {
    role.address.filter(|_| is_two_sided(&role.settings))
}

/// Returns the title of a test: the tool, the direction, and the number of its flows.
pub(super) fn title(tool: &str, settings: &Settings, unit: &str) -> String {
    let way = settings.text("direction").filter(|way| way != "up").map(|way| format!(" {way}")).unwrap_or_default();
    match settings.count("flows").unwrap_or(1) {
        1 => format!("{tool}{way}, 1 {unit}"),
        n => format!("{tool}{way}, {n} {unit}s"),
    }
}

/// Keeps the measured part of a test that its server did not complete.
pub(super) fn record_failure(record: &mut Record, tool: &'static str, error: &dyn Display) {
    record.complete = false;
    record.errors.count(Failure::of_call(tool, error.to_string().as_str().into()));
}

/// The first failure among the flows of a test, which ends all of them.
#[derive(Debug)]
pub(super) struct FirstFailure<E> {
    has_failed: AtomicBool,
    error: Mutex<Option<E>>,
}

impl<E> FirstFailure<E> {
    pub(super) const fn none() -> Self {
        Self { has_failed: AtomicBool::new(false), error: Mutex::new(None) }
    }

    /// Ends all flows, for a reason that is known elsewhere.
    pub(super) fn end_all(&self) {
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Takes the failure of a flow.
    pub(super) fn record(&self, error: E) {
        self.end_all();
        self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub(super) fn into_inner(self) -> Option<E> {
        self.error.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A flow in its worker thread.
pub(super) struct WorkerFlow<'a, E> {
    pub(super) worker: &'a WorkerHandle<'a>,
    pub(super) failure: &'a FirstFailure<E>,
}

impl<E> WorkerFlow<'_, E> {
    /// Whether the trial is over, or a flow has failed.
    pub(super) fn is_over(&self) -> bool {
        self.worker.is_over() || self.failure.has_failed.load(Ordering::Relaxed)
    }
}

/// Metrics of more than one tool; each tool's page defines them.
pub(super) mod metrics {
    use fathom_model::{
        Better, Derivation, Metric, Side, Unit,
        metric::{MetricName, UnitAndSense},
    };

    pub(in crate::kinds) const CLIENT: Side = Side::Initiator;
    pub(in crate::kinds) const BITS: UnitAndSense = UnitAndSense(Unit::BitsPerSec, Better::Higher);

    /// Payload bytes sent or received by the client's sockets.
    pub(in crate::kinds) const BYTES: &str = fathom_model::names::count::BYTES_MOVED;
    pub(in crate::kinds) const KIBIBYTES: &str = "kibibytes_moved";
    /// Datagrams sent, and those of them that were lost, as counted by the receivers.
    pub(in crate::kinds) const DATAGRAMS_SENT: &str = "datagrams_sent";
    pub(in crate::kinds) const DATAGRAMS_LOST: &str = "datagrams_lost";
    pub(in crate::kinds) const JITTER: &str = fathom_model::names::count::JITTER_NS;
    /// The jitter of a flow, which changes in both directions.
    pub(in crate::kinds) const JITTER_SUM: &str = "jitter_ns_sum";
    pub(in crate::kinds) const RETRANSMITS: &str = "retransmits";
    pub(in crate::kinds) const SERVER_RATE: &str = "server_rate_bps";
    pub(in crate::kinds) const SERVER_BYTES: &str = "server_bytes";

    pub(in crate::kinds) const fn throughput(page: &'static str) -> Metric {
        Metric::of(MetricName("throughput_bps", "goodput"), BITS, page, Derivation::rate(CLIENT, BYTES))
    }

    pub(in crate::kinds) const fn server_throughput(page: &'static str) -> Metric {
        let name = MetricName("server_throughput_bps", "by the server");
        Metric::of(name, BITS, page, Derivation::total(CLIENT, SERVER_RATE))
    }

    pub(in crate::kinds) const fn retransmitted_segments(page: &'static str) -> Metric {
        let name = MetricName("retransmitted_segments", "segments sent again");
        Metric::of(name, UnitAndSense(Unit::Count, Better::Lower), page, Derivation::total(CLIENT, RETRANSMITS))
    }

    pub(in crate::kinds) const fn cost_per_kib(page: &'static str) -> Metric {
        let name = MetricName("cost_client_ns_per_kib", "client's CPU per KiB");
        Metric::of(name, UnitAndSense::TIME, page, Derivation::cost(CLIENT, KIBIBYTES))
    }

    pub(in crate::kinds) const fn loss(page: &'static str) -> Metric {
        let share = Derivation::share((CLIENT, DATAGRAMS_LOST), (CLIENT, DATAGRAMS_SENT));
        Metric::of(MetricName("loss_ratio", "lost"), UnitAndSense(Unit::Ratio, Better::Lower), page, share)
    }

    pub(in crate::kinds) const fn jitter() -> Metric {
        let source = "RFC 3550 section 6.4.1";
        Metric::of(MetricName("jitter_ns", "jitter"), UnitAndSense::TIME, source, Derivation::total(CLIENT, JITTER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_with_or_without_a_port() {
        let of = |host: &str, port: &str| {
            let settings = Settings::default().with("host", host).with("port", port);
            destination(&settings, 5201).ok().flatten()
        };
        let cases = [
            ("10.0.0.2", "0", Some(("10.0.0.2", 5201))),
            ("10.0.0.2", "7", Some(("10.0.0.2", 7))),
            ("a.example:77", "0", Some(("a.example", 77))),
            ("a.example:77", "77", Some(("a.example", 77))),
            ("a.example:77", "78", None),
            ("::1", "0", Some(("::1", 5201))),
            ("[::1]:7", "0", Some(("::1", 7))),
            ("a:0", "0", None),
            ("a:x", "0", None),
            ("[::1", "0", None),
            ("a b", "0", None),
            ("", "0", None),
        ];
        for (host, port, expected) in cases {
            let expected = expected.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(of(host, port), expected, "{host} {port}");
        }
        assert_eq!(destination(&Settings::default(), 5201).unwrap(), None);
    }

    #[test]
    fn a_title_names_what_is_not_usual() {
        let settings = Settings::default();
        assert_eq!(title("iperf3", &settings, "stream"), "iperf3, 1 stream");
        assert_eq!(
            title("netperf rr", &settings.with("flows", "4").with("direction", "down"), "flow"),
            "netperf rr down, 4 flows"
        );
    }

    #[test]
    fn the_first_failure_is_the_one_that_is_told() {
        let failure = FirstFailure::none();
        failure.record("first");
        failure.record("second");
        assert_eq!(failure.into_inner(), Some("first"));
    }
}
