//! A connection does not scale its windows, so that each round trip carries 64 KiB at most.

use fathom_model::{Finding, NextStep, Severity, Side, names::host::TCP_SYN_COOKIES};

use super::{
    FindingRule,
    flow_limited::{WindowLimit, window_limit},
    rule::DEVICE_CORE_FULL,
    syn_cookies::SYNCOOKIES,
};
use crate::{evidence::TestEvidence, gap};

const WINDOW_SCALING: &str = "net.ipv4.tcp_window_scaling";
const TIMESTAMPS: &str = "net.ipv4.tcp_timestamps";

/// Looks for connections whose window is as large as it can be without window scaling (RFC 7323 section 2), by the options that the kernel
/// knows of them (`tcpi_options`).
///
/// Both ends have to send the option in their SYN. It is missing if a host does not use it, if a server answers with a SYN cookie and has no TCP
/// timestamp to keep it in (`cookie_init_timestamp` of `net/ipv4/syncookies.c`), or if a device on the way removes it.
pub(crate) struct NoWindowScaling;

/// The id of the finding about windows that cannot be larger than their field of the header.
pub(super) const NO_WINDOW_SCALING: &str = "no-window-scaling";

impl FindingRule for NoWindowScaling {
    fn id(&self) -> &'static str {
        NO_WINDOW_SCALING
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &["local-shaper", "cpu-quota", DEVICE_CORE_FULL]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some(WindowLimit::Unscaled(window)) = window_limit(seen) else { return Vec::new() };
        let (why, next) = reason(seen, window.sender, window.receiver);
        let title = format!("TCP works without window scaling{why}: {}", window.cost);
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "window scaling", title)
                .evidence(window.evidence)
                .explains(gap::explained_by_time(seen, window.share))
                .next(next),
        ]
    }
}

/// Returns the words for why the option is missing, and the step that brings it back or shows who removes it.
fn reason(seen: &TestEvidence<'_>, sender: &str, receiver: Option<&str>) -> (String, NextStep) {
    let hosts = || receiver.into_iter().chain([sender]);
    let setting = |host: &str, name| seen.environment(host).and_then(|facts| facts.get("sysctl", name));
    let is_off = |host: &str, name| setting(host, name) == Some("0");
    let set = |host: &str, name, expected| NextStep::new(format!("sysctl -w {name}=1")).on(host).expected(expected);
    if let Some(host) = hosts().find(|host| is_off(host, WINDOW_SCALING)) {
        let next = set(host, WINDOW_SCALING, "let the window of new connections grow beyond 64 KiB");
        return (format!(", because {WINDOW_SCALING} of {host} is 0"), next);
    }
    // The connections of a stream open before the first sample.
    let sends_cookies =
        |host: &str| setting(host, SYNCOOKIES) == Some("2") || seen.growth(host, TCP_SYN_COOKIES, None) > 0;
    let answers_with_cookies = seen.host_of(Side::Responder).filter(|host| sends_cookies(host));
    let has_no_timestamps = hosts().find(|host| is_off(host, TIMESTAMPS));
    if let (Some(server), Some(host)) = (answers_with_cookies, has_no_timestamps) {
        let next = set(host, TIMESTAMPS, "let SYN cookies keep the options of connections");
        return (format!(", because {server} answers with SYN cookies and {host} has no TCP timestamps"), next);
    }
    let shown = match receiver {
        Some(receiver) => format!(
            "show whether the SYN and the SYN-ACK carry `wscale`; run it on {receiver} too: a device removes what leaves one of them and does not \
             reach the other"
        ),
        None => {
            "show whether the SYN-ACK carries `wscale`: without it, the server does not use it, or a device removes it"
                .to_owned()
        }
    };
    (
        String::new(),
        NextStep::new(if seen.is_ipv6() {
            // The filter of flags knows IPv4 alone (pcap-filter(7)).
            "tcpdump -ni any 'ip6 proto 6 and ip6[53] & 2 != 0'"
        } else {
            "tcpdump -ni any 'tcp[tcpflags] & tcp-syn != 0'"
        })
        .on(sender)
        .expected(shown),
    )
}

#[cfg(test)]
mod tests {
    use fathom_model::names::tcp;

    use super::*;
    use crate::run_builder::RunBuilder;

    fn stream(window: u64, is_scaled: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.windowed_stream(window, &[(tcp::WINDOW_SCALING, is_scaled)]);
        builder
    }

    #[test]
    fn the_largest_window_without_scaling_is_told_with_who_removes_it() {
        let mut builder = stream(65_535, 0);
        let finding = builder.finding("no-window-scaling").unwrap();
        let title = "TCP works without window scaling: each round trip of 27.0 µs carries no more than 64.0 KiB";
        assert_eq!(finding.title, title);
        assert!(finding.next.unwrap().command.starts_with("tcpdump "));
        assert_eq!(builder.finding("receive-window"), None);
        let note = |builder: &mut RunBuilder, host: &str, name: &str| {
            builder.run.hosts.get_mut(host).unwrap().environment.note("sysctl", name, "0");
        };
        note(&mut builder, "client", TIMESTAMPS);
        assert!(builder.finding("no-window-scaling").unwrap().next.unwrap().command.starts_with("tcpdump "));
        builder.host_counter("target", (TCP_SYN_COOKIES, ""), 1);
        let finding = builder.finding("no-window-scaling").unwrap();
        assert!(finding.title.contains("because target answers with SYN cookies"), "{}", finding.title);
        note(&mut builder, "target", WINDOW_SCALING);
        let next = builder.finding("no-window-scaling").unwrap().next.unwrap();
        assert_eq!(
            (next.command.as_str(), next.on.as_deref()),
            ("sysctl -w net.ipv4.tcp_window_scaling=1", Some("target"))
        );
    }

    #[test]
    fn a_small_buffer_and_a_window_that_is_scaled_are_something_else() {
        for (window, is_scaled) in [(4_608, 0), (65_535, 1)] {
            let builder = stream(window, is_scaled);
            assert_eq!(builder.finding("no-window-scaling"), None, "{window} {is_scaled}");
            assert!(builder.finding("receive-window").is_some(), "{window} {is_scaled}");
        }
    }
}
