//! A test had no result: no answer, nothing arrived, or all attempts failed.

use fathom_model::{
    Derivation, Evidence, Failure, Finding, Layer, NextStep, Severity, Side,
    finding::NOTHING_DONE,
    names::{
        count,
        host::{CONNTRACK_DROPPED, DEV_RX_FRAMES, DEV_RX_OTHER_HOST, IP_IN_RECEIVES, IP_REASSEMBLY_FAILS},
    },
    plan::HostReach,
    probe::ProbeRecord,
    run::TestRun,
    units::{counted, grouped, ratio},
};

use super::{
    FindingRule,
    host_drops::{CONNTRACK_FULL, CONNTRACK_REFUSED},
    neighbor_changes::NEIGHBOR_CHANGES,
    packet_filter::{filter_of_datagrams, show_rules},
};
use crate::{
    evidence::{TestEvidence, counter_evidence, has_answers},
    summaries::main_rate,
};

/// An interface that received so many of what was sent received the packets.
const CAME: std::ops::Range<f64> = 0.9..1.5;
/// The counter in its evidence if errors are the reason.
const ERRORS: &str = "errors";

/// The causes by which nothing arrives.
pub(crate) const NOTHING_DONE_BY: &[&str] = &[
    "link-down",
    "no-route",
    "address-not-local",
    "other-mac",
    "duplicate-address",
    NEIGHBOR_CHANGES,
    "neighbor-unresolved",
    "reverse-path-filter",
    "martian-packets",
    "filter-drops",
    CONNTRACK_FULL,
    CONNTRACK_REFUSED,
    "ingress-filter-drops",
    "device-receive-drops",
    "device-send-drops",
    "qdisc-drops",
    "device-rule",
    "device-program",
    "device-conntrack",
    "device-packet-queue",
    "device-forwarding",
    "device-queue",
    "device-output",
    "device-drops",
    "no-listener",
    "path-mtu-black-hole",
    "fragments-dropped",
    "acks-lost",
    "mtu-mismatch",
    "time-exceeded",
    "ports",
    "descriptors",
    "connect-delays",
    "resets",
    "memory-pressure",
    "gone-early",
];

/// Returns true if the finding says that a test did nothing because of errors.
pub(super) fn explains_errors(finding: &Finding) -> bool {
    finding.id == NOTHING_DONE && finding.evidence.iter().any(|shown| shown.counter == ERRORS)
}

/// Checks whether a test did any of its work.
pub(crate) struct NothingDone;

impl FindingRule for NothingDone {
    fn id(&self) -> &'static str {
        NOTHING_DONE
    }

    fn effect_of(&self) -> &'static [&'static str] {
        NOTHING_DONE_BY
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // A search and a benchmark judge each of their trials themselves.
        if seen.test.curve.is_some() || seen.test.benchmark.is_some() {
            return Vec::new();
        }
        let nothing = if seen.test.layer == Layer::Path { no_answer(seen) } else { no_work(seen) };
        let Some((what, evidence)) = nothing else { return Vec::new() };
        vec![seen.finding(self.id(), Severity::Invalidates, "nothing done", what).evidence(evidence).next(next(seen))]
    }
}

/// Where all packets of a test were lost, as far as others that passed tell.
enum Vanished<'a> {
    /// They came to this interface of this host, which counts no place behind it.
    Behind(&'a str, &'a str),
    /// The same, and the connection tracking of the host dropped as many.
    DroppedByTracking(&'a str, &'a str),
    /// A packet filter on this host dropped them.
    Filtered(&'a str),
    /// Connections between the same hosts carry data.
    ButTcpPasses,
}

impl<'a> Vanished<'a> {
    /// As for packets of which none arrived; `None` if nothing tells.
    fn of(seen: &TestEvidence<'a>) -> Option<Self> {
        let (from, to) = seen.one_way().filter(|_| matches!(seen.test.layer, Layer::Udp | Layer::Frames))?;
        if let Some(filter) = filter_of_datagrams(seen, seen.total(from, count::SENT)) {
            return Some(Self::Filtered(filter.host));
        }
        let receiver = seen.host_of(to)?;
        let interface = seen.interface(receiver);
        let n_came = seen.growth(receiver, DEV_RX_FRAMES, Some(interface));
        // Other packets come to an interface too, but not as many, and the first fragments of datagrams whose others were lost.
        let came = ratio(n_came, seen.total(from, count::SENT)).is_some_and(|share| CAME.contains(&share));
        let is_in_parts = seen.growth(receiver, IP_REASSEMBLY_FAILS, None) > 0;
        // What was for another Ethernet address has come to no filter. A responder counts no request of a sender that it does not know yet, and the
        // answers may be what is lost.
        let is_for_others = seen.growth(receiver, DEV_RX_OTHER_HOST, Some(interface)) > n_came / 2;
        let is_stream = seen.total(from, count::TRANSACTIONS_LOST) == 0;
        if seen.test.layer == Layer::Udp && came && is_stream && !is_in_parts && !is_for_others {
            if 2 * seen.growth(receiver, CONNTRACK_DROPPED, None) >= n_came {
                return Some(Self::DroppedByTracking(receiver, interface));
            }
            // What IP has received as well are packets of others, which arrived: a packet filter behind it is told by what it did not pass on.
            let n_elsewhere = seen.growth(receiver, DEV_RX_FRAMES, None).saturating_sub(n_came);
            let n_at_ip = seen.growth(receiver, IP_IN_RECEIVES, None).saturating_sub(n_elsewhere);
            let n_before_ip = n_came.saturating_sub(n_at_ip);
            if ratio(n_before_ip, seen.total(from, count::SENT)).is_some_and(|share| CAME.contains(&share)) {
                return Some(Self::Behind(receiver, interface));
            }
        }
        let passes = |other: &&TestRun| {
            let is_same_way =
                (&other.from, &other.to, &other.path) == (&seen.test.from, &seen.test.to, &seen.test.path);
            other.layer == Layer::Tcp && is_same_way && main_rate(other).and_then(|rate| rate.value) > Some(0.0)
        };
        seen.run.tests.iter().find(passes).map(|_| Self::ButTcpPasses)
    }

    /// What became of them, after their number.
    fn text(&self) -> String {
        match self {
            Self::Behind(host, interface) => {
                format!("reached {interface} of {host} and none its socket: a filter on {host} drops them")
            }
            Self::DroppedByTracking(host, interface) => {
                format!("reached {interface} of {host} and none its socket: connection tracking on {host} drops them")
            }
            Self::Filtered(host) => format!("were lost: a packet filter on {host} drops them"),
            Self::ButTcpPasses => {
                "were lost, but TCP passes between the same hosts: something on the way drops UDP".to_owned()
            }
        }
    }
}

/// Suggests to look at the filter behind the interface, or a path MTU probe. The served host answered the controller's small packets, so the path
/// may lose large ones.
fn next(seen: &TestEvidence<'_>) -> Option<NextStep> {
    match Vanished::of(seen) {
        Some(Vanished::Behind(host, _) | Vanished::Filtered(host)) => return Some(show_rules(host)),
        Some(Vanished::DroppedByTracking(..) | Vanished::ButTcpPasses) => return None,
        None => {}
    }
    let to = seen.test.to.as_ref().filter(|_| matches!(seen.test.layer, Layer::Tcp | Layer::Udp))?;
    let is_served = matches!(seen.run.plan.hosts.get(to), Some(HostReach::Tls { .. }));
    let address = seen.run.hosts.get(to)?.address.as_ref().filter(|_| is_served)?;
    Some(
        NextStep::new(format!("fathom probe {address} --test mtu"))
            .on(&seen.test.from)
            .expected("show whether the path loses large packets"),
    )
}

/// Reports that no probe of any kind was answered.
fn no_answer(seen: &TestEvidence<'_>) -> Option<(String, Vec<Evidence>)> {
    let answers = |probe: &ProbeRecord| {
        probe.path_mtu.as_ref().is_some_and(|found| found.mtu_bytes.is_some())
            || probe.hops.iter().any(|hop| hop.target)
            || probe.ports.iter().any(|port| port.rtt_ns.is_some())
    };
    let (_, _, probe) = seen.probes().next()?;
    let answered = seen.probes().any(|(_, record, probe)| has_answers(record) || answers(probe));
    (!answered).then(|| (format!("{} did not answer", probe.target), Vec::new()))
}

/// Returns true if no trial of a test came to its measured part.
pub(crate) fn ended_in_warm_up(test: &TestRun) -> bool {
    let records = test.trials.iter().flat_map(|trial| trial.records.values());
    let mut initiators = records.filter(|record| record.side == Side::Initiator).peekable();
    initiators.peek().is_some() && initiators.all(|record| record.measured_ns.0 >= record.measured_ns.1)
}

/// Describes the work that was tried without success.
fn no_work(seen: &TestEvidence<'_>) -> Option<(String, Vec<Evidence>)> {
    let records = || seen.test.trials.iter().flat_map(|trial| trial.records.values());
    let steps: Vec<_> = records().filter_map(|record| record.users.as_ref()).flat_map(|users| &users.steps).collect();
    let n_steps: u64 = steps.iter().map(|step| step.n_reached).sum();
    if n_steps > 0 && steps.iter().all(|step| step.n_passed == 0) {
        return Some((format!("all of {} steps failed", grouped(n_steps)), Vec::new()));
    }
    let rate = main_rate(seen.test)?;
    let Derivation::Rate { counter, .. } = &rate.metric.from else { return None };
    let total = |counter: &str| records().filter_map(|record| record.totals.get(counter)).sum::<u64>();
    let mut errors: Vec<(&Failure, &u64)> = records().flat_map(|record| &record.errors).collect();
    errors.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
    let n_failed: u64 = errors.iter().map(|(_, n)| **n).sum();
    // Connections that end in the warm-up leave nothing to measure, whatever they did before.
    let is_over_early = ended_in_warm_up(seen.test) && n_failed > 0;
    if rate.value.is_none_or(|value| value > 0.0) && !is_over_early {
        return None;
    }
    let n_sent = total(count::SENT);
    let title = match (errors.first(), seen.test.layer) {
        (Some((most, _)), _) if is_over_early => {
            let errors = if n_failed == 1 { "error" } else { "errors" };
            format!(
                "nothing was measured: the work ended in the warm-up with {} {errors}, most often `{most}`",
                grouped(n_failed)
            )
        }
        (Some((most, _)), _) => {
            format!("nothing was done: {} failed, most often `{most}`", counted(n_failed, "attempt"))
        }
        (None, Layer::Udp | Layer::Frames) if 2 * total(counter) > n_sent => {
            "nothing arrived in the measured time, which is too short at this rate: use a longer --duration".to_owned()
        }
        (None, Layer::Udp | Layer::Frames) if total(counter) > 0 => {
            let units = if seen.test.layer == Layer::Udp { "datagrams" } else { "frames" };
            let n_lost = grouped(n_sent - total(counter));
            format!("nothing arrived in the measured time: {n_lost} of {} {units} were lost", grouped(n_sent))
        }
        (None, Layer::Udp | Layer::Frames) if n_sent > 0 => {
            let units = if seen.test.layer == Layer::Udp { "datagrams" } else { "frames" };
            let became = Vanished::of(seen).map_or_else(|| "were lost".to_owned(), |vanished| vanished.text());
            format!("nothing arrived: all {} {units} {became}", grouped(n_sent))
        }
        (None, Layer::Http | Layer::App) => "nothing was done: not one request was answered".to_owned(),
        _ => "nothing was done: no data arrived and no exchange was completed".to_owned(),
    };
    let counters = [(count::SENT, n_sent), (counter.as_ref(), total(counter)), (ERRORS, n_failed)];
    let counters = counters.into_iter().filter(|(name, n)| *n > 0 || *name == counter.as_ref());
    Some((title, counters.map(|(name, n)| counter_evidence(&seen.test.from, name, n)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::{RunBuilder, step, visits};
    use fathom_model::{
        VerdictState,
        names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES},
        probe::HopRecord,
    };

    /// Returns the title of the finding and the state of the run.
    fn told(builder: &RunBuilder) -> (Option<String>, VerdictState) {
        (builder.finding(NOTHING_DONE).map(|finding| finding.title), builder.analyzed().verdict.state)
    }

    #[test]
    fn datagrams_that_reached_the_interface_alone_were_dropped_by_a_filter_or_the_connection_tracking() {
        let title = |untracked: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 0)]);
            builder.host_counter("target", (DEV_RX_FRAMES, "eth0"), 1_000);
            builder.host_counter("target", (CONNTRACK_DROPPED, ""), untracked);
            builder.finding(NOTHING_DONE).unwrap().title
        };
        let came = "nothing arrived: all 1,000 datagrams reached eth0 of target and none its socket: ";
        assert_eq!(title(0), format!("{came}a filter on target drops them"));
        assert_eq!(title(1_000), format!("{came}connection tracking on target drops them"));
    }

    #[test]
    fn datagrams_that_ip_received_and_delivered_to_nobody_were_dropped_by_a_filter() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 0)]);
        builder.host_counter("target", (IP_IN_RECEIVES, ""), 504);
        assert!(!builder.finding(NOTHING_DONE).unwrap().title.contains("filter"), "deliveries are not counted");
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 4);
        let finding = builder.finding(NOTHING_DONE).unwrap();
        let words = "were lost: a packet filter on target drops them";
        assert!(finding.title.ends_with(words), "{}", finding.title);
        assert_eq!(finding.next.unwrap().on.as_deref(), Some("target"));
    }

    #[test]
    fn connections_that_are_reset_in_the_warm_up_leave_nothing_and_the_resets_are_why() {
        let mut builder = RunBuilder::new();
        builder.tcp_rr(900, 1);
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.measured_ns = (record.measured_ns.0, record.measured_ns.0);
        }
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("recv: connection reset by peer", 1);
        let run = builder.analyzed();
        assert_eq!(run.verdict.state, VerdictState::Invalid);
        assert_eq!((run.findings[0].id.as_str(), run.findings[0].severity), ("resets", Severity::Invalidates));
        assert!(run.verdict.reasons[0].contains("reset"), "{:?}", run.verdict.reasons);
        let nothing = run.findings.iter().find(|finding| finding.id == NOTHING_DONE).unwrap();
        assert!(
            nothing.title.starts_with("nothing was measured: the work ended in the warm-up with 1 error, "),
            "{}",
            nothing.title
        );
    }

    #[test]
    fn a_test_that_did_nothing_is_no_result() {
        let mut lost = RunBuilder::new();
        lost.udp_stream(&[(1000, 0), (1000, 0)]);
        assert_eq!(
            told(&lost),
            (Some("nothing arrived: all 2,000 datagrams were lost".to_owned()), VerdictState::Invalid)
        );
        lost.total("target", count::RECEIVED, 3);
        let title = "nothing arrived in the measured time: 1,994 of 2,000 datagrams were lost";
        assert_eq!(told(&lost).0.as_deref(), Some(title));
        lost.total("target", count::RECEIVED, 1_999);
        assert!(
            told(&lost).0.unwrap().starts_with("nothing arrived in the measured time, which is too short at this rate")
        );
        let mut silent = RunBuilder::new();
        silent.http(0, 4);
        assert_eq!(told(&silent).1, VerdictState::Invalid);
        assert!(told(&silent).0.unwrap().contains("not one request was answered"));
        let record = silent.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors = [("read: timeout", 4), ("connect: refused", 9)].into_iter().collect();
        assert_eq!(told(&silent).0.unwrap(), "nothing was done: 13 attempts failed, most often `connect: refused`");
        let mut failing = RunBuilder::new();
        failing.users(&[visits((10, 10), vec![step("login", (10, 10), 5)])]);
        assert_eq!(told(&failing), (Some("all of 10 steps failed".to_owned()), VerdictState::Invalid));
    }

    #[test]
    fn where_a_served_host_got_nothing_the_length_of_packets_is_probed() {
        let next = |reach: HostReach| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1000, 0)]);
            let to = builder.run.tests[0].to.clone().unwrap();
            builder.run.plan.hosts.insert(to.clone(), reach);
            builder.run.hosts.entry(to).or_default().address = Some("192.0.2.7".to_owned());
            builder.finding(NOTHING_DONE).unwrap().next.map(|next| next.command)
        };
        let served = HostReach::Tls { address: "192.0.2.7:7700".to_owned(), key: None, data: None };
        assert_eq!(next(served).as_deref(), Some("fathom probe 192.0.2.7 --test mtu"));
        assert_eq!(next(HostReach::This), None);
    }

    #[test]
    fn a_promise_about_nothing_is_no_result_either() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1000, 0)]);
        builder.run.tests[0].expect.insert("loss".to_owned(), "<= 0.1 %".to_owned());
        assert_eq!(builder.analyzed().verdict.state, VerdictState::Invalid);
    }

    #[test]
    fn one_test_of_several_that_did_nothing_leaves_the_run_incomplete() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.udp_stream(&[(1000, 0)]);
        let verdict = builder.analyzed().verdict;
        assert_eq!(
            (verdict.state, verdict.reasons),
            (VerdictState::Incomplete, vec!["udp_stream did nothing".to_owned()])
        );
    }

    #[test]
    fn a_host_that_answers_any_probe_is_there() {
        let found = |probe| {
            let mut builder = RunBuilder::new();
            builder.probed((10, 0), ProbeRecord { target: "192.0.2.7".to_owned(), ..probe });
            told(&builder)
        };
        assert_eq!(found(ProbeRecord::default()).1, VerdictState::Invalid);
        let hop = HopRecord { target: true, ..HopRecord::default() };
        assert_eq!(found(ProbeRecord { hops: vec![hop], ..ProbeRecord::default() }), (None, VerdictState::Measured));
    }

    #[test]
    fn frames_of_others_are_not_the_datagrams_that_a_filter_drops() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 0)]);
        builder.host_counter("target", (DEV_RX_FRAMES, "eth0"), 1_200);
        builder.host_counter("target", (IP_IN_RECEIVES, ""), 1_190);
        builder.host_counter("target", (IP_IN_DELIVERS, ""), 1_190);
        let title = builder.finding(NOTHING_DONE).unwrap().title;
        assert_eq!(title, "nothing arrived: all 1,000 datagrams were lost");
    }
}
