//! The SYN queue of a server was full, and the kernel answered with SYN cookies.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::{count, host},
    units::{Nanos, approximate, grouped},
};

use super::FindingRule;
use crate::evidence::{TestEvidence, counter_evidence};

/// With 2, the kernel answers every SYN with a cookie (Documentation/networking/ip-sysctl.rst).
pub(super) const SYNCOOKIES: &str = "net.ipv4.tcp_syncookies";
/// Fewer cookies are a short burst of connections.
const COOKIES_MIN: u64 = 10;
/// With more cookies than this for each connection of the test, most SYNs are those of others.
const OWN_MAX: u64 = 2;
/// The largest window without window scaling (RFC 7323 section 2), in bytes.
const WINDOW_MAX: u64 = 65_535;
/// Answering fewer SYNs of others in a second takes nothing from a test.
const FLOOD_PER_SECOND: f64 = 1000.0;

/// Looks for SYN cookies (RFC 4987 section 3.6), by `TcpExt: SyncookiesSent`.
///
/// A connection over a cookie is as fast as any other while TCP has timestamps, which carry its options. Without them it has neither
/// window scaling nor SACK (`cookie_init_timestamp` of `net/ipv4/syncookies.c`), so that it holds the test back.
pub(crate) struct SynCookies;

impl FindingRule for SynCookies {
    fn id(&self) -> &'static str {
        "syn-cookies"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["connect-delays"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        if !matches!(seen.test.layer, Layer::Tcp | Layer::Http | Layer::App) {
            return Vec::new();
        }
        let sent = |host| (host, seen.growth(host, host::TCP_SYN_COOKIES, None));
        let Some((host, n)) = seen.hosts().map(sent).max_by_key(|(_, n)| *n).filter(|(_, n)| *n >= COOKIES_MIN) else {
            return Vec::new();
        };
        let connections = seen.total(Side::Initiator, count::CONNECTIONS);
        let is_flood = n > OWN_MAX * connections;
        let per_second = approximate(n) / seen.sampled_time(host).map_or(1.0, Nanos::as_secs_f64);
        if is_flood && per_second < FLOOD_PER_SECOND {
            return Vec::new();
        }
        let setting = |name| seen.environment(host).and_then(|facts| facts.get("sysctl", name));
        let has_no_options = setting("net.ipv4.tcp_timestamps") == Some("0");
        let is_always = setting(SYNCOOKIES) == Some("2");
        let reason = if is_always {
            format!("{SYNCOOKIES} of {host} is 2")
        } else {
            format!("the SYN queue of a server on {host} was full")
        };
        let cookies = format!("{reason}, so the kernel sent {} SYN cookies", grouped(n));
        let (severity, why) = match (is_flood, has_no_options) {
            (true, _) => (Severity::Disturbs, ": a SYN flood, or a burst of connections of others"),
            (false, true) => {
                let severity = if fills_windows(seen) { Severity::HoldsBack } else { Severity::Remark };
                (severity, ": without TCP timestamps these connections have neither window scaling nor SACK")
            }
            (false, false) if is_always => (Severity::Remark, ", one for each connection"),
            (false, false) => (Severity::Remark, ": more connections began at once than its backlog holds"),
        };
        vec![
            seen.finding(self.id(), severity, "syn cookies", format!("{cookies}{why}"))
                .evidence([counter_evidence(host, host::TCP_SYN_COOKIES, n)])
                .next((severity > Severity::Remark).then(|| next(host, is_flood, is_always))),
        ]
    }
}

/// Returns true if an answer of the test is larger than a window without scaling. Streams have a finding of their own, by the windows of their
/// connections.
fn fills_windows(seen: &TestEvidence<'_>) -> bool {
    let total = |name| seen.total(Side::Initiator, name);
    let answers = total(count::REQUESTS).max(total(count::TRANSACTIONS));
    answers > 0 && total(count::BYTES_RECEIVED) / answers > WINDOW_MAX
}

fn next(host: &str, is_flood: bool, is_always: bool) -> NextStep {
    let (command, expected) = match (is_flood, is_always) {
        (true, _) => ("ss -tn state syn-recv", "show who begins connections and does not complete them"),
        (false, true) => ("sysctl -w net.ipv4.tcp_syncookies=1", "send cookies only when a SYN queue is full"),
        (false, false) => (
            "sysctl -w net.ipv4.tcp_timestamps=1",
            "keep the options of these connections; or raise the server's backlog and net.core.somaxconn",
        ),
    };
    NextStep::new(command).on(host).expected(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    fn with_cookies(n: u64, connections: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, connections);
        builder.host_counter("target", (host::TCP_SYN_COOKIES, ""), n);
        builder
    }

    #[test]
    fn cookies_for_the_connections_of_the_test_are_a_remark() {
        let finding = with_cookies(80, 100).finding("syn-cookies").unwrap();
        assert_eq!((finding.severity, finding.next), (Severity::Remark, None));
        let title = "the SYN queue of a server on target was full, so the kernel sent 80 SYN cookies: \
                     more connections began at once than its backlog holds";
        assert_eq!(finding.title, title);
    }

    /// Makes each answer larger than a window without scaling.
    fn with_large_answers(builder: &mut RunBuilder) {
        builder.total("client", count::REQUESTS, 100);
        builder.total("client", count::BYTES_RECEIVED, 10_000_000);
    }

    #[test]
    fn without_timestamps_they_cost_the_options_of_connections() {
        let mut builder = with_cookies(80, 100);
        with_large_answers(&mut builder);
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", "net.ipv4.tcp_timestamps", "0");
        let finding = builder.finding("syn-cookies").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.ipv4.tcp_timestamps=1");
    }

    #[test]
    fn a_host_that_always_sends_cookies_has_no_full_queue() {
        let mut builder = with_cookies(100, 100);
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", SYNCOOKIES, "2");
        let finding = builder.finding("syn-cookies").unwrap();
        let title =
            "net.ipv4.tcp_syncookies of target is 2, so the kernel sent 100 SYN cookies, one for each connection";
        assert_eq!((finding.severity, finding.title.as_str()), (Severity::Remark, title));
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", "net.ipv4.tcp_timestamps", "0");
        let severity = builder.finding("syn-cookies").unwrap().severity;
        assert_eq!(severity, Severity::Remark, "small answers need no window");
        with_large_answers(&mut builder);
        let finding = builder.finding("syn-cookies").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.ipv4.tcp_syncookies=1");
    }

    #[test]
    fn more_cookies_than_connections_are_a_flood() {
        assert_eq!(with_cookies(500, 10).finding("syn-cookies"), None, "a few hundred SYNs of others take no time");
        let finding = with_cookies(50_000, 100).finding("syn-cookies").unwrap();
        assert_eq!(finding.severity, Severity::Disturbs);
        assert!(finding.title.contains("a SYN flood"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().command, "ss -tn state syn-recv");
    }

    #[test]
    fn few_or_uncounted_cookies_are_not_told() {
        assert_eq!(with_cookies(9, 100).finding("syn-cookies"), None);
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        assert_eq!(builder.finding("syn-cookies"), None);
    }
}
