//! Finds out what holds a test back. One file per rule; all rules run on every test.
//!
//! A rule sees one test with its run and has its own thresholds. It does not know the other rules.

mod acks_lost;
mod asymmetric_route;
mod benchmark;
mod black_hole;
mod companions;
mod congestion_marks;
mod connect_delays;
mod connection_per_request;
mod core_saturated;
mod cpu_quota;
mod damaged_frames;
mod device;
mod disorder;
mod drops;
mod duplicate_address;
mod errors;
mod flow_bottleneck;
mod flow_limited;
mod fragment_filter;
mod fragments;
mod full_of_requests;
mod generator_limited;
mod host_drops;
mod ideal_exceeded;
mod incomplete;
mod interval_too_wide;
mod kernel_threads;
mod late_requests;
mod latency_under_load;
mod limit;
mod link;
mod link_down;
mod link_mode;
mod local_shaper;
mod lost_by_report;
mod lost_connects;
mod lost_probes;
mod low_frequency;
mod martians;
mod memory_pressure;
mod mtu_mismatch;
mod name_lookup;
mod narrow_path;
mod near_full;
mod neighbor_changes;
mod no_neighbor;
mod no_window_scaling;
mod notes;
mod nothing_done;
mod one_core_receives;
mod other_mac;
mod other_programs;
mod outage;
mod overload;
mod paced_answers;
mod packet_filter;
mod path_fault;
mod pause_frames;
mod planned_event;
mod promise_broken;
mod queue_share;
mod receive_budget;
mod reception;
mod refused;
mod retransmissions;
mod ring_drops;
mod round_trip;
mod rule;
mod scan;
mod segmentation_off;
mod server_failures;
mod server_saturated;
mod server_time;
mod slow_answers;
mod slow_clock;
mod slow_host;
mod stall;
mod start_skew;
mod steal;
mod step_errors;
mod step_time;
mod syn_cookies;
mod targets;
mod tcp_memory;
mod time_exceeded;
mod time_wait;
mod too_hot;
mod two_groups;
mod unexplained_loss;
mod unreachable;
mod unsteady;
mod users_gave_up;
mod users_late;
mod users_left_early;

pub(crate) use device::{DeviceThread, busiest_thread};
pub(crate) use flow_bottleneck::PACED;
pub(crate) use flow_limited::HOLDS_BACK;
pub(crate) use link_down::broken_links;
pub(crate) use lost_connects::{LostConnects, lost_connects};
pub(crate) use memory_pressure::waited as waited_for_memory;
pub(crate) use nothing_done::{NOTHING_DONE_BY, ended_in_warm_up};
pub use rule::FindingRule;

use fathom_model::{Bottleneck, Finding, ProofOutcome, Run, Severity, finding::NOTHING_DONE};

use self::promise_broken::PROMISE_BROKEN;
use crate::{context::AnalysisContext, effect::with_proof, evidence::TestEvidence, gap};

/// All finding rules.
pub const FINDING_RULES: &[&dyn FindingRule] = &[
    &planned_event::PlannedEvent,
    &link_down::LinkDown,
    &link_down::LinkFlaps,
    &duplicate_address::DuplicateAddress,
    &path_fault::PathFault,
    &errors::ErrorCauses,
    &server_failures::SERVER_FAILURES,
    &server_failures::RequestLimit,
    &server_failures::REFUSED_REQUESTS,
    &server_failures::REDIRECTS,
    &server_failures::StuckConnections,
    &limit::LimitFound,
    &benchmark::BenchmarkHeadline,
    &scan::OptionScan,
    &ideal_exceeded::IdealExceeded,
    &latency_under_load::LatencyUnderLoad,
    &unreachable::Unreachable,
    &time_exceeded::TimeExceeded,
    &fragment_filter::FragmentFilter,
    &mtu_mismatch::MtuMismatch,
    &black_hole::BlackHole,
    &black_hole::UdpBlackHole,
    &fragments::FragmentsElsewhere,
    &fragments::FragmentsLost,
    &fragments::FragmentsUnexpected,
    &fragments::FragmentsReassembled,
    &outage::Outage,
    &lost_probes::LostProbes,
    &outage::LateStart,
    &outage::SilentStream,
    &device::RING,
    &device::PROGRAM,
    &device::RULE,
    &device::CONNTRACK,
    &device::PACKET_QUEUE,
    &device::OWN,
    &device::FORWARDING,
    &device::QUEUE,
    &device::OUTPUT,
    &device::DeviceCore,
    &queue_share::QueueShares,
    &other_programs::OtherPrograms,
    &kernel_threads::KernelThreads,
    &host_drops::CONNECTION_TABLE,
    &connect_delays::ConnectDelays,
    &acks_lost::AcksLost,
    &connection_per_request::ConnectionPerRequest,
    &name_lookup::NameLookup,
    &syn_cookies::SynCookies,
    &local_shaper::LocalShaper,
    &cpu_quota::CpuQuota,
    &tcp_memory::TcpMemory,
    &memory_pressure::MemoryPressure,
    &no_window_scaling::NoWindowScaling,
    &flow_limited::ReceiveWindow,
    &flow_limited::SendBuffer,
    &segmentation_off::SegmentationOff,
    &overload::Overload,
    &server_saturated::ServerSaturated,
    &one_core_receives::OneCoreReceives,
    &low_frequency::LowFrequency,
    &core_saturated::CoreSaturated,
    &generator_limited::GeneratorLimited,
    &generator_limited::OfferedTooLittle,
    &late_requests::LateRequests,
    &server_time::DelayedAck,
    &server_time::ServerTime,
    &slow_answers::SlowAnswers,
    &two_groups::TwoGroups,
    &paced_answers::PacedAnswers,
    &reception::DataGaps,
    &reception::ClientWindow,
    &reception::SenderLimited,
    &reception::SenderPauses,
    &unexplained_loss::UnexplainedLoss,
    &unexplained_loss::LostTransactions,
    &lost_by_report::LostByReport,
    &host_drops::FILTER,
    &host_drops::INGRESS_FILTER,
    &host_drops::REVERSE_PATH,
    &martians::Martians,
    &host_drops::NO_ROUTE,
    &host_drops::NOT_LOCAL,
    &other_mac::OtherMac,
    &host_drops::NEIGHBOR,
    &no_neighbor::NoNeighbor,
    &host_drops::NEIGHBOR_TABLE,
    &neighbor_changes::NeighborChanges,
    &host_drops::CONNECTION_INSERT,
    &near_full::CONNECTION_TABLE,
    &near_full::DESCRIPTORS,
    &near_full::LOCAL_PORTS,
    &time_wait::TimeWaitOverflow,
    &host_drops::NO_LISTENER,
    &refused::RefusedDatagrams,
    &host_drops::IP_CHECKSUM,
    &host_drops::TCP_CHECKSUM,
    &host_drops::REASSEMBLY,
    &host_drops::FRAGMENTATION,
    &host_drops::TCP_BACKLOG,
    &drops::BadChecksum,
    &drops::PortFilter,
    &drops::UdpReceiveBuffer,
    &receive_budget::ReceiveBudget,
    &drops::BacklogDrops,
    &pause_frames::PauseFrames,
    &ring_drops::RingDrops,
    &damaged_frames::DamagedFrames,
    &drops::DeviceReceiveDrops,
    &drops::DeviceSendDrops,
    &drops::QdiscDrops,
    &nothing_done::NothingDone,
    &disorder::REORDERING,
    &disorder::DUPLICATES,
    &retransmissions::Retransmissions,
    &congestion_marks::CongestionMarks,
    &flow_bottleneck::FlowBottleneck(Bottleneck::CongestionWindow),
    &flow_bottleneck::FlowBottleneck(Bottleneck::Queue),
    &full_of_requests::FullOfRequests,
    &round_trip::RoundTrip,
    &flow_bottleneck::FlowBottleneck(Bottleneck::Pacing),
    &flow_bottleneck::FlowBottleneck(Bottleneck::Application),
    &link::LinkFull,
    &link::NoLineRate,
    &narrow_path::NarrowPath,
    &narrow_path::SmallSegments,
    &link_mode::LinkMode,
    &asymmetric_route::AsymmetricRoute,
    &steal::CpuSteal,
    &too_hot::TooHot,
    &slow_clock::SlowClock,
    &companions::CompanionLimit,
    &slow_host::SlowHost,
    &start_skew::StartSkew,
    &stall::Stall,
    &unsteady::NoSteadyState,
    &interval_too_wide::IntervalTooWide,
    &targets::SameName,
    &targets::MissingTargets,
    &targets::UnevenSpread,
    &targets::MovedFlows,
    &targets::CollateralLoss,
    &targets::TargetsLostByEvent,
    &targets::FailedEvent,
    &step_errors::StepErrors,
    &users_left_early::UsersLeftEarly,
    &users_gave_up::UsersGaveUp,
    &users_late::UsersLate,
    &step_time::StepTime,
    &incomplete::IncompleteTrials,
    &notes::EngineNotes,
    &promise_broken::PromiseBroken,
];

/// The rules that judge a host by its counters alone, without a test.
pub(crate) const HOST_RULES: &[&dyn FindingRule] = &[
    &link_down::LinkDown,
    &link_down::LinkFlaps,
    &local_shaper::LocalShaper,
    &cpu_quota::CpuQuota,
    &tcp_memory::TcpMemory,
    &memory_pressure::MemoryPressure,
    &host_drops::FILTER,
    &host_drops::INGRESS_FILTER,
    &host_drops::REVERSE_PATH,
    &martians::Martians,
    &host_drops::NO_ROUTE,
    &host_drops::NOT_LOCAL,
    &host_drops::NEIGHBOR,
    &host_drops::NEIGHBOR_TABLE,
    &neighbor_changes::NeighborChanges,
    &host_drops::CONNECTION_TABLE,
    &host_drops::CONNECTION_INSERT,
    &near_full::CONNECTION_TABLE,
    &time_wait::TimeWaitOverflow,
    &host_drops::IP_CHECKSUM,
    &host_drops::TCP_CHECKSUM,
    &host_drops::REASSEMBLY,
    &host_drops::TCP_BACKLOG,
    &host_drops::UDP_BUFFERS,
    &host_drops::UDP_CHECKSUM,
    &host_drops::ACCEPT_QUEUE,
    &host_drops::SYN_QUEUE,
    &syn_cookies::SynCookies,
    &one_core_receives::OneCoreReceives,
    &receive_budget::ReceiveBudget,
    &drops::BacklogDrops,
    &pause_frames::PauseFrames,
    &ring_drops::RingDrops,
    &damaged_frames::DamagedFrames,
    &drops::DeviceReceiveDrops,
    &drops::DeviceSendDrops,
    &drops::QdiscDrops,
    &retransmissions::Retransmissions,
    &steal::CpuSteal,
    &too_hot::TooHot,
];

/// Returns all findings of a run, the most important first. A finding that several tests share is reported once.
///
/// The causes of limits stand beside them, as they are of trials that no other finding is about.
pub(crate) fn findings(run: &Run, context: &AnalysisContext, of_limits: Vec<Finding>) -> Vec<Finding> {
    let mut found: Vec<(f64, Finding)> = Vec::new();
    for test in run.tests.iter().filter(|test| test.unavailable.is_none() && !test.trials.is_empty()) {
        let seen = TestEvidence::new(run, test, context);
        // For a test without a limit, the distance to the limit is unknown, so it comes after tests with a known large
        // distance.
        let used = seen.limit_utilization().unwrap_or(f64::INFINITY);
        let by_rule: Vec<(&dyn FindingRule, Finding)> = FINDING_RULES
            .iter()
            .flat_map(|rule| rule.evaluate(&seen).into_iter().map(|found| (*rule, with_proof(found, test))))
            .collect();
        let disturbed = lost_by_disturbances(&by_rule, &seen);
        let mut of_test = with_effects_as_remarks(by_rule, &seen);
        if of_test.iter().any(nothing_done::explains_errors) {
            of_test.retain(|finding| finding.id != errors::ERRORS);
        }
        // Its numbers say nothing about a promise, so that none is said to be broken.
        if of_test.iter().any(Finding::spoils_promises) {
            of_test.retain(|finding| finding.id != PROMISE_BROKEN);
        }
        let mut of_test = with_small_parts_as_remarks(of_test, disturbed, gap::reaches_a_limit(&seen));
        // Nothing holds back a window that carries all it can, however it is lost and sent again.
        if seen.has_planned_window() && seen.reached_target() && gap::missed_promise(&seen).is_none() {
            of_test
                .iter_mut()
                .filter(|finding| finding.id != no_window_scaling::NO_WINDOW_SCALING)
                .for_each(into_remark);
        }
        largest_part_first(&mut of_test);
        found.extend(of_test.into_iter().map(|finding| (used, finding)));
    }
    // What holds back at the limit as well is told with the rate beyond it.
    let is_told = |finding: &Finding| {
        let is_same =
            |cause: &Finding| cause.id == finding.id && finding.tests.iter().all(|test| cause.tests.contains(test));
        finding.severity == Severity::HoldsBack && of_limits.iter().any(is_same)
    };
    found.retain(|(_, finding)| !is_told(finding));
    found.sort_by(|(a_used, a), (b_used, b)| {
        rank(b)
            .cmp(&rank(a))
            .then(is_proven(b).cmp(&is_proven(a)))
            .then(explains_less_than_half(a).cmp(&explains_less_than_half(b)))
            .then(a_used.total_cmp(b_used))
    });
    let mut merged: Vec<Finding> = Vec::new();
    for (_, finding) in found {
        let same = |other: &&mut Finding| {
            let alike = (&other.id, &other.short, other.severity) == (&finding.id, &finding.short, finding.severity);
            // Two broken promises are two separate facts, and so are two limits.
            alike && (![PROMISE_BROKEN, limit::LIMIT].contains(&finding.id.as_str()) || other.title == finding.title)
        };
        match merged.iter_mut().find(same) {
            Some(first) => merge_finding(first, finding),
            None => merged.push(finding),
        }
    }
    merged.extend(of_limits);
    // A finding that most tests share comes first, because it explains more than a finding about one test. A disturbance stands behind
    // all causes however many tests it touches, and remarks come last.
    let most = |finding: &Finding| run.tests.len() > 1 && 2 * finding.tests.len() > run.tests.len();
    let behind_causes = |finding: &Finding| match finding.severity {
        Severity::Invalidates | Severity::HoldsBack => 0,
        Severity::Disturbs => 1,
        Severity::Remark => 2,
    };
    merged.sort_by_key(|finding| (behind_causes(finding), !most(finding)));
    merged
}

/// Of findings about several hosts that will be told as one, puts that which explains most in front: the title is of its host.
fn largest_part_first(findings: &mut [Finding]) {
    for place in 0..findings.len() {
        for later in place + 1..findings.len() {
            let (one, other) = (&findings[place], &findings[later]);
            let alike = (&one.id, &one.short, one.severity) == (&other.id, &other.short, other.severity);
            if alike && other.explains > one.explains {
                findings.swap(place, later);
            }
        }
    }
}

/// Returns the rank of a finding in the list. A disturbance changes numbers but hides no cause, so it stands behind the causes.
const fn rank(finding: &Finding) -> u8 {
    match finding.severity {
        Severity::Invalidates => 3,
        Severity::HoldsBack => 2,
        Severity::Disturbs => 1,
        Severity::Remark => 0,
    }
}

/// Returns true if an intervention proved a finding: that weighs more than any counter.
fn is_proven(finding: &Finding) -> bool {
    finding.proof.as_ref().is_some_and(|proof| proof.outcome == ProofOutcome::Proven)
}

/// Returns true if a finding is known to explain less than half of what its test lacks: it does not stand above one that may explain it all.
fn explains_less_than_half(finding: &Finding) -> bool {
    finding.explains.is_some_and(|share| share < gap::HALF)
}

/// Returns the part of a loss that disturbances took, such as datagrams that found a full socket because other programs had the core of its
/// reader: the largest one, as one that explains a part of the rate stands beside it.
fn lost_by_disturbances(by_rule: &[(&dyn FindingRule, Finding)], seen: &TestEvidence<'_>) -> f64 {
    if seen.packets_lost().is_none_or(|lost| lost == 0) {
        return 0.0;
    }
    let disturbs = |id: &str| by_rule.iter().any(|(_, found)| found.id == id && found.severity == Severity::Disturbs);
    let is_effect = |(rule, _): &&(&dyn FindingRule, Finding)| {
        rule.effect_of().iter().any(|cause| disturbs(cause) && !rule.stands_beside(cause, seen))
    };
    let parts = by_rule.iter().filter(is_effect).filter_map(|(_, finding)| finding.explains);
    parts.fold(0.0, f64::max)
}

/// Turns a cause into a remark.
fn into_remark(finding: &mut Finding) {
    if finding.severity == Severity::HoldsBack {
        (finding.severity, finding.next) = (Severity::Remark, None);
    }
}

/// Of a loss that others took nearly all of, a tenth is still a part with a name of its own.
const MOST_DISTURBED: f64 = 0.8;

/// Turns causes into remarks that are known to explain less than half of what a test lacks, if another one explains more.
///
/// The part `disturbed` is not lacking: a machine that others use hides no cause. If all causes of a test are such parts, none of
/// them is why, and the test is said to have no cause; its remarks are the largest parts. A test that reaches a limit lacks too little for
/// that, and keeps them.
fn with_small_parts_as_remarks(mut of_test: Vec<Finding>, disturbed: f64, reaches_a_limit: bool) -> Vec<Finding> {
    let half = gap::HALF * (1.0 - disturbed.min(MOST_DISTURBED));
    let explains_less_than_half = |finding: &Finding| finding.explains.is_some_and(|share| share < half);
    let is_cause = |finding: &Finding| matches!(finding.severity, Severity::HoldsBack | Severity::Invalidates);
    let largest = of_test.iter().filter(|finding| is_cause(finding)).filter_map(|finding| finding.explains);
    let largest = largest.reduce(f64::max);
    let none_leads = of_test.iter().filter(|finding| is_cause(finding)).all(explains_less_than_half);
    for finding in &mut of_test {
        let explains_most = finding.explains >= largest;
        if explains_less_than_half(finding) && (!explains_most || (none_leads && !reaches_a_limit)) {
            into_remark(finding);
        }
    }
    of_test
}

/// What takes the time of the cores of a host.
const CAUSES_ON_A_HOST: [&str; 3] = ["other-programs", "cpu-quota", "low-frequency"];
/// What a host does for want of that time.
const EFFECTS_ON_A_HOST: [&str; 7] = [
    "core-saturated",
    "generator-limited",
    "udp-receive-buffer",
    "backlog-overflow",
    "receive-budget",
    "one-core-receives",
    "ring-drops",
];

/// Returns true if a cause takes time of one machine, and a finding lacks time on another one.
fn is_of_another_host(cause: &Finding, effect: &Finding, seen: &TestEvidence<'_>) -> bool {
    let hosts = |finding: &Finding| finding.evidence.iter().map(|one| one.host.clone()).collect::<Vec<_>>();
    let (of_cause, of_effect) = (hosts(cause), hosts(effect));
    CAUSES_ON_A_HOST.contains(&cause.id.as_str())
        && EFFECTS_ON_A_HOST.contains(&effect.id.as_str())
        && !of_cause.is_empty()
        && !of_effect.is_empty()
        && !of_cause.iter().any(|one| of_effect.iter().any(|other| seen.share_a_machine(one, other)))
}

/// Turns findings into remarks if their cause was found too: one fault must not look like several.
///
/// A finding that invalidates the test stays, and so does its cause: it is raised to the same severity.
pub(crate) fn with_effects_as_remarks(
    by_rule: Vec<(&dyn FindingRule, Finding)>,
    seen: &TestEvidence<'_>,
) -> Vec<Finding> {
    let is_cause = |finding: &Finding| finding.severity >= Severity::HoldsBack;
    let causes: Vec<Finding> =
        by_rule.iter().filter(|(_, finding)| is_cause(finding)).map(|(_, finding)| finding.clone()).collect();
    let fatal: Vec<&'static str> = by_rule
        .iter()
        .filter(|(_, finding)| finding.id == NOTHING_DONE)
        .flat_map(|(rule, _)| rule.effect_of().iter().copied())
        .collect();
    let settled = |(rule, finding): (&dyn FindingRule, Finding)| {
        let is_elsewhere = |cause: &Finding| is_of_another_host(cause, &finding, seen);
        let is_found = |cause: &&str| causes.iter().any(|found| found.id == **cause && !is_elsewhere(found));
        let is_effect_of = |cause: &&str| is_found(cause) && !rule.stands_beside(cause, seen);
        let is_effect = rule.effect_of().iter().any(&is_effect_of);
        let is_effect_of_fatal = rule.effect_of().iter().any(|cause| fatal.contains(cause) && is_effect_of(cause));
        if fatal.contains(&finding.id.as_str()) && is_cause(&finding) && !is_effect_of_fatal {
            Finding { severity: Severity::Invalidates, ..finding }
        } else if is_effect && finding.id != NOTHING_DONE {
            Finding { severity: Severity::Remark, next: None, ..finding }
        } else {
            finding
        }
    };
    by_rule.into_iter().map(settled).collect()
}

/// Adds the tests of a finding to one with the same id, and the evidence of hosts that it does not list yet.
///
/// Counters of the same host from two tests would contradict each other. Only the evidence of the first test is kept, which is
/// the farthest from its limit.
fn merge_finding(first: &mut Finding, other: Finding) {
    for test in other.tests {
        if !first.tests.contains(&test) {
            first.tests.push(test);
        }
    }
    let known: Vec<String> = first.evidence.iter().map(|evidence| evidence.host.clone()).collect();
    if !is_proven(first) && other.proof.is_some() {
        first.proof.clone_from(&other.proof);
    }
    first.evidence.extend(other.evidence.into_iter().filter(|evidence| !known.contains(&evidence.host)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;
    use fathom_model::{names::host as counter, units::Nanos};

    #[test]
    fn on_a_quiet_host_nothing_is_found() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1010, 990]);
        builder.udp_stream(&[(1000, 1000), (1000, 1000)]);
        builder.http(1000, 100);
        builder.wire("10000000000", "1500");
        builder.cpu("client", "cpu0", [20, 20, 10, 0]);
        builder.cpu("target", "cpu0", [10, 30, 30, 0]);
        builder.host_counter("target", (counter::TCP_OUT_SEGMENTS, ""), 100_000);
        builder.host_counter("target", (counter::TCP_RETRANS_SEGMENTS, ""), 3);
        let run = builder.analyzed();
        assert!(run.findings.is_empty(), "{:#?}", run.findings);
    }

    #[test]
    fn the_place_of_most_of_a_loss_leads_whatever_the_order_of_the_rules() {
        for (by_filter, by_socket, first) in [(700, 300, "filter-drops"), (300, 700, "udp-receive-buffer")] {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(10_000, 9_000)]);
            builder.host_counter("target", (counter::DEV_RX_FRAMES, "eth0"), 10_000);
            builder.host_counter("target", (counter::NFT_DROPPED, "input"), by_filter);
            builder.host_counter("target", (counter::UDP_RCVBUF_ERRORS, ""), by_socket);
            let run = builder.analyzed();
            let ids: Vec<&str> = run.findings.iter().map(|finding| finding.id.as_str()).collect();
            assert_eq!(ids[0], first, "{ids:?}");
            assert_eq!(run.findings[0].explains, Some(0.7));
        }
    }

    fn part(id: &str, severity: Severity, explains: Option<f64>) -> Finding {
        let text = String::new;
        let (id, tests, evidence) = (id.to_owned(), Vec::new(), Vec::new());
        Finding { id, short: text(), title: text(), severity, tests, evidence, explains, proof: None, next: None }
    }

    #[test]
    fn a_small_part_holds_nothing_back_beside_a_larger_one_and_alone_is_no_cause() {
        use Severity::{Disturbs, HoldsBack, Invalidates, Remark};
        // Each finding with what it explains, and the severities that come out far from a limit and near one.
        type Part = (Severity, Option<f64>);
        let cases: [(&[Part], &[Severity], &[Severity]); 7] = [
            (&[(HoldsBack, Some(0.9)), (HoldsBack, Some(0.1))], &[HoldsBack, Remark], &[HoldsBack, Remark]),
            (&[(HoldsBack, Some(0.3)), (HoldsBack, Some(0.2))], &[Remark, Remark], &[HoldsBack, Remark]),
            (&[(HoldsBack, Some(0.4))], &[Remark], &[HoldsBack]),
            (&[(HoldsBack, None), (HoldsBack, Some(0.4))], &[HoldsBack, HoldsBack], &[HoldsBack, HoldsBack]),
            (&[(HoldsBack, None), (HoldsBack, None)], &[HoldsBack, HoldsBack], &[HoldsBack, HoldsBack]),
            (&[(Invalidates, Some(0.8)), (HoldsBack, Some(0.2))], &[Invalidates, Remark], &[Invalidates, Remark]),
            (&[(Disturbs, None), (HoldsBack, Some(0.2))], &[Disturbs, Remark], &[Disturbs, HoldsBack]),
        ];
        for (given, far, near) in cases {
            for (reaches_a_limit, expected) in [(false, far), (true, near)] {
                let parts = given.iter().map(|(severity, explains)| part("x", *severity, *explains)).collect();
                let out = with_small_parts_as_remarks(parts, 0.0, reaches_a_limit);
                let severities: Vec<Severity> = out.iter().map(|finding| finding.severity).collect();
                assert_eq!(severities, expected, "{given:?}, near {reaches_a_limit}");
            }
        }
    }

    #[test]
    fn of_two_hosts_with_one_cause_the_one_that_loses_most_is_told() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 9_000)]);
        builder.host_counter("client", (counter::QDISC_DROPPED, "eth0"), 200);
        builder.host_counter("target", (counter::QDISC_DROPPED, "eth0"), 700);
        let run = builder.analyzed();
        let told = run.findings.iter().find(|finding| finding.id == "qdisc-drops").unwrap();
        assert!(told.title.contains("on target dropped"), "{}", told.title);
        let mut parts = [("a", Some(0.6)), ("b", Some(0.9)), ("a", Some(0.8)), ("a", None)]
            .map(|(id, explains)| part(id, Severity::HoldsBack, explains));
        largest_part_first(&mut parts);
        let order = parts.map(|part| (part.id, part.explains));
        assert_eq!(order.map(|(_, explains)| explains), [Some(0.8), Some(0.9), Some(0.6), None]);
    }

    #[test]
    fn a_fiftieth_is_no_cause_however_much_a_disturbance_took() {
        let severity = |share| {
            let part = part("x", Severity::HoldsBack, Some(share));
            with_small_parts_as_remarks(vec![part], 0.98, false)[0].severity
        };
        assert_eq!((severity(0.02), severity(0.15)), (Severity::Remark, Severity::HoldsBack));
    }

    #[test]
    fn what_a_disturbance_took_is_not_lacking() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 8_900)]);
        builder.run.tests[0].options.set("rate", "10000/s");
        builder.one_machine();
        builder.cpu("client", "cpu0", [60, 30, 5, 0]);
        for host in ["client", "target"] {
            builder.own_cpu(host, &[("cpu0", 100)]);
        }
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.run_delay_ns = Some(Nanos::from_millis(300));
        }
        builder.host_counter("target", (counter::UDP_RCVBUF_ERRORS, ""), 900);
        let run = builder.analyzed();
        let found = |id: &str| run.findings.iter().find(|finding| finding.id == id).unwrap().severity;
        assert_eq!(found("other-programs"), Severity::Disturbs);
        assert_eq!(found("udp-receive-buffer"), Severity::Remark, "its reader waited for a core");
        assert_eq!(found("loss"), Severity::HoldsBack, "a fifth of the loss, and all that others did not cause");
    }

    #[test]
    fn drops_at_three_places_of_which_none_is_half_are_parts_of_an_unknown_cause() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 5_000)]);
        builder.run.tests[0].options.set("rate", "10000/s");
        builder.host_counter("target", (counter::DEV_RX_FRAMES, "eth0"), 10_000);
        builder.host_counter("target", (counter::NFT_DROPPED, "input"), 2_000);
        builder.host_counter("target", (counter::UDP_RCVBUF_ERRORS, ""), 1_600);
        builder.host_counter("target", (counter::SOFTNET_DROPPED, "cpu0"), 1_400);
        let run = builder.analyzed();
        assert!(run.findings.iter().all(|finding| finding.severity == Severity::Remark), "{:#?}", run.findings);
        let parts = &run.tests[0].no_cause.as_ref().unwrap().parts;
        assert!(parts.len() == 3 && parts[0].ends_with("40 %") && parts[2].ends_with("28 %"), "{parts:?}");
    }

    #[test]
    fn what_most_tests_share_leads_and_its_words_fit_a_column() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.growth_per_interval(|interval| 2000 - 60 * interval);
        builder.http(1000, 1);
        builder.tcp_rr(1000, 1);
        builder.cpu("target", "cpu0", [5, 5, 88, 0]);
        builder.cpu("target", "cpu1", [5, 5, 1, 0]);
        let run = builder.analyzed();
        let told: Vec<(&str, usize)> = run.findings.iter().map(|f| (f.id.as_str(), f.tests.len())).collect();
        assert_eq!(
            told[..3],
            [("core-saturated", 2), ("core-saturated", 1), ("no-steady-state", 1)],
            "a disturbance after the causes"
        );
        assert!(run.findings.iter().all(|finding| finding.short.chars().count() <= 12), "{:?}", run.findings);
        let expected = run.findings.iter().filter_map(|finding| finding.next.as_ref()?.expected.as_ref());
        assert!(expected.into_iter().all(|text| !text.split(' ').next().unwrap().ends_with('s')));
    }

    #[test]
    fn one_cause_of_several_tests_is_told_once_and_the_most_important_comes_first() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000, 1000]);
        builder.http(1000, 1);
        builder.cpu("target", "cpu0", [5, 5, 88, 0]);
        builder.cpu("target", "cpu1", [5, 5, 1, 0]);
        builder.steal("client", Nanos::from_millis(600));
        let run = builder.analyzed();
        let told: Vec<(&str, usize)> = run.findings.iter().map(|f| (f.id.as_str(), f.tests.len())).collect();
        let expected = [("core-saturated", 1), ("core-saturated", 1), ("steal", 2)];
        assert_eq!(told[..3], expected, "a disturbance of all tests hides the cause of none");
        assert!(run.tests.iter().all(|test| test.findings.contains(&"steal".to_owned())));
    }

    #[test]
    fn programs_on_one_host_are_not_why_a_core_of_another_one_is_full() {
        let severity = |boots: [&str; 2]| {
            let mut builder = RunBuilder::new();
            builder.tcp_stream(&[1000]);
            builder.cpu("client", "cpu0", [70, 5, 5, 0]);
            builder.own_cpu("client", &[("cpu0", 50)]);
            builder.cpu("target", "cpu1", [1, 1, 97, 0]);
            builder.own_cpu("target", &[("cpu1", 950)]);
            for (host, boot) in ["client", "target"].into_iter().zip(boots) {
                builder.run.hosts.get_mut(host).unwrap().environment.note("kernel", "boot_id", boot);
            }
            assert_eq!(builder.finding("other-programs").unwrap().severity, Severity::Disturbs);
            builder.finding("core-saturated").map(|finding| finding.severity)
        };
        assert_eq!(severity(["1", "2"]), Some(Severity::HoldsBack));
        assert_eq!(severity(["1", "1"]), Some(Severity::Remark), "they are one machine");
    }
}
