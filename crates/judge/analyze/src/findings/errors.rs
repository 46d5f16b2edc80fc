//! Some of the work failed.

use std::{cmp::Reverse, collections::BTreeMap};

use fathom_model::{
    Cause, Failure, Finding, Layer, NextStep, Record, Severity, Stage, Trial,
    names::{
        count, fact,
        host::{
            DEV_RX_FRAMES, ICMP_IN_TIME_EXCEEDED, ICMP_IN_UNREACHABLE, LOCAL_PORTS_MAX,
            NEIGHBOR_UNRESOLVED as NEIGHBOR_DROPPED, NFT_DROPPED, TCP_IN_SEGMENTS, TCP_OUT_RESETS, UDP_NO_PORTS,
        },
    },
    run::Completeness,
    units::{grouped, percent, ratio},
};

use super::{
    FindingRule,
    black_hole::BLACK_HOLE,
    connect_delays::{are_connects_delayed, show_route},
    host_drops::{CONNTRACK_FULL, CONNTRACK_REFUSED, NEIGHBOR_UNRESOLVED, NO_ROUTE_ID},
    link_down::LINK_DOWN,
    near_full::{more_descriptors, more_local_ports},
    neighbor_changes::NEIGHBOR_CHANGES,
    server_time::is_scheduled,
};
use crate::{
    change::{Change, smaller_segments},
    evidence::{TestEvidence, text_evidence},
    gap,
    segment_loss::unacknowledged,
    summaries::main_rate,
    window::host_of,
};

/// A part of the error of a receiver of datagrams whose sender could not tell it that it had ended.
const NO_END_MARK: &str = "no mark of the end";
/// The id of this rule's findings.
pub(crate) const ERRORS: &str = "errors";
/// If at least one operation in a hundred fails, the value of the test is less meaningful than it looks.
const HOLDS_BACK: f64 = 0.01;
/// Fewer lost connections than one in a thousand are single events.
const FEW_CONNECTIONS: f64 = 1e-3;
/// So few resets are those of a server that was started anew, or of a NAT.
const FEW_RESETS: u64 = 3;

/// Counters of work that can fail. A test has one of them.
const WORK: [&str; 4] = [count::REQUESTS, count::TRANSACTIONS, count::CONNECTIONS, count::SENT];

/// So many addresses of a name are told.
const ADDRESSES_MAX: usize = 3;

/// A cause with a finding of its own.
struct KnownCause {
    cause: Cause,
    id: &'static str,
    short: &'static str,
    /// Whether a few of them are enough to hold the test back: it has fewer connections than it was to have, or loses some.
    always_matters: bool,
    /// The cause; the text gets the host that counted the errors.
    title: fn(&TestEvidence<'_>, &str) -> String,
    next: fn(&TestEvidence<'_>, &str) -> Option<NextStep>,
}

const KNOWN: &[KnownCause] = &[
    KnownCause {
        cause: Cause::NoPort,
        id: "ports",
        short: "no ports",
        always_matters: true,
        title: |_, host| format!("{host} had no local port left for connections"),
        next: |seen, host| Some(more_local_ports(seen.last_value(host, LOCAL_PORTS_MAX)).on(host)),
    },
    KnownCause {
        cause: Cause::NoDescriptor,
        id: "descriptors",
        short: "descriptors",
        always_matters: true,
        title: |_, host| format!("{host} had no file descriptor left for connections"),
        next: |_, host| Some(more_descriptors().on(host)),
    },
    KnownCause {
        cause: Cause::Refused,
        id: "no-listener",
        short: "refused",
        always_matters: false,
        title: refused_title,
        next: |seen, host| Some(refused_next(seen, host)),
    },
    KnownCause {
        cause: Cause::Forbidden,
        id: "filter-drops",
        short: "firewall",
        always_matters: false,
        title: forbidden_title,
        next: |seen, host| {
            let command = NextStep::new("nft -a list ruleset; ip route");
            Some(if is_prohibited_by_router(seen, host) {
                command.expected("show, on the routers and at the other end, the rule or the route that prohibits")
            } else {
                command.on(host).expected("show a rule for packets on their way out, or a route that prohibits")
            })
        },
    },
    KnownCause {
        cause: Cause::Reset,
        id: "resets",
        short: "resets",
        always_matters: true,
        title: reset_title,
        next: |seen, host| Some(reset_next(seen, host)),
    },
    KnownCause {
        cause: Cause::NeverAcknowledged,
        id: BLACK_HOLE,
        short: "black hole",
        always_matters: true,
        title: |_, host| {
            format!(
                "a black hole: small segments of {host} pass, but full-size ones vanish and no router says that they are too big (ICMP is \
                 missing)"
            )
        },
        next: |seen, _| {
            let command = NextStep::new(seen.repeat_test_command("--mss 536")?);
            Some(command.expected("pass if the MTU of the path is the reason"))
        },
    },
];

/// The kernel has no way for what a host sends, as the words of its error say.
static WITHOUT_ROUTE: KnownCause = KnownCause {
    cause: Cause::Other(String::new()),
    id: NO_ROUTE_ID,
    short: "no route",
    always_matters: false,
    title: |_, host| format!("{host} has no route to the other end"),
    next: |seen, host| {
        let other = seen.other_end(host)?;
        Some(show_route(seen, host, other))
    },
};

/// Returns true for the words of an unreachable network or host: those of fathom, and those of the C library.
fn is_unreachable(words: &str) -> bool {
    words.contains("unreachable") || words == "no route to host"
}

/// Returns true if a host had no route for what it sent. A network and a host may also be unreachable by the word of a router (ICMP), or by the host's
/// own for a neighbor that does not answer.
fn is_without_route(seen: &TestEvidence<'_>, host: &str, failure: &Failure) -> bool {
    let Cause::Other(words) = &failure.cause else { return false };
    let of_others = [ICMP_IN_UNREACHABLE, ICMP_IN_TIME_EXCEEDED, NEIGHBOR_DROPPED];
    let can_tell = || seen.has_counter(host, ICMP_IN_UNREACHABLE);
    is_unreachable(words) && can_tell() && of_others.iter().all(|counter| seen.growth(host, counter, None) == 0)
}

/// Returns the number of errors of a cause on hosts.
fn errors_of(seen: &TestEvidence<'_>, cause: &Cause, is_wanted: impl Fn(&str) -> bool) -> u64 {
    let of_record = |record: &Record| -> u64 {
        record.errors.iter().filter(|(failure, _)| failure.cause == *cause).map(|(_, n)| *n).sum()
    };
    let records = seen.test.trials.iter().flat_map(|trial| &trial.records);
    records.filter(|(key, _)| is_wanted(host_of(key))).map(|(_, record)| of_record(record)).sum()
}

/// Returns the other host of the test, and how often its kernel refused a packet, where it counts this.
fn refusals_of_other<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<(&'a str, u64)> {
    let other = seen.other_end(host).filter(|other| seen.has_counter(other, TCP_OUT_RESETS))?;
    Some((other, [TCP_OUT_RESETS, UDP_NO_PORTS].into_iter().map(|counter| seen.growth(other, counter, None)).sum()))
}

/// Returns the host at the other end, if it refused less than half of what another one saw refused.
fn elsewhere<'a>(seen: &TestEvidence<'a>, host: &str) -> Option<(&'a str, u64, u64)> {
    let n = errors_of(seen, &Cause::Refused, |of| of == host);
    // Frames that reach a host and not its TCP are passed on, as to a container, which may refuse them.
    let passes_on = |other: &str| {
        let frames = seen.growth(other, DEV_RX_FRAMES, Some(seen.interface(other)));
        seen.is_of_server(other) && frames >= n && seen.growth(other, TCP_IN_SEGMENTS, None) < n
    };
    let refused = refusals_of_other(seen, host).filter(|(other, refused)| 2 * refused < n && !passes_on(other));
    refused.map(|(other, refused)| (other, refused, n))
}

fn refused_title(seen: &TestEvidence<'_>, host: &str) -> String {
    match elsewhere(seen, host) {
        Some((other, refused, n)) => format!(
            "a firewall, or another host with the address of {other}, refuses {host}: {other} itself refused {} of {}",
            grouped(refused),
            grouped(n)
        ),
        None => format!("nobody listens where {host} sends to, or a firewall refuses it"),
    }
}

fn refused_next(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    if elsewhere(seen, host).is_some() {
        return NextStep::new("ip neigh").on(host).expected("show the MAC address that answers for the other end");
    }
    let next = NextStep::new("ss -ltun").expected("show the ports that programs listen on");
    match seen.other_end(host) {
        Some(other) => next.on(other),
        None => next.expected("show, at the other end, the ports that programs listen on"),
    }
}

/// Returns who does not let packets of a host out: the rule that counted most of them, if one did.
fn forbidden_title(seen: &TestEvidence<'_>, host: &str) -> String {
    match seen.growth_by_instance(host, NFT_DROPPED).first() {
        Some((rule, n)) => {
            format!("a firewall rule on {host} ({rule}) refuses what it sends, and dropped {}", grouped(*n))
        }
        None if is_prohibited_by_router(seen, host) => {
            format!("a firewall on the way refuses what {host} sends (ICMPv6: administratively prohibited)")
        }
        None => format!("a firewall rule or a route on {host} refuses what it sends"),
    }
}

/// Returns true if ICMP of IPv6 told a host that something on the way does not let its packets pass: the kernel gives its sockets the same error as
/// for a rule of its own (`icmpv6_err_convert` of `net/ipv6/icmp.c`; for IPv4 it is another one).
fn is_prohibited_by_router(seen: &TestEvidence<'_>, host: &str) -> bool {
    seen.growth(host, ICMP_IN_UNREACHABLE, Some("ipv6")) > 0
}

/// Returns true if a host refused what this test sent from it, so that it could send less.
pub(super) fn are_sends_forbidden(seen: &TestEvidence<'_>) -> bool {
    has_errors_of(seen, &Cause::Forbidden)
}

/// Returns true if a host had errors of this cause.
pub(super) fn has_errors_of(seen: &TestEvidence<'_>, cause: &Cause) -> bool {
    let mut errors = seen.test.trials.iter().flat_map(|trial| trial.records.values()).flat_map(|record| &record.errors);
    errors.any(|(failure, _)| failure.cause == *cause)
}

/// Who reset connections of a host.
enum ResetBy<'a> {
    /// The other end, whose kernel counted that it sent them.
    OtherEnd(&'a str),
    /// Something between: both ends saw them reset.
    PathOfBoth,
    /// Something between: the other end sent fewer than so many.
    Path {
        other: &'a str,
        n_sent: u64,
        n: u64,
    },
    Unknown,
}

impl<'a> ResetBy<'a> {
    /// Judges by the resets that TCP of the other host counts. Those of a firewall are not among them (`nf_send_reset` of Linux).
    fn of(seen: &TestEvidence<'a>, host: &str) -> Self {
        let count = |is_own| errors_of(seen, &Cause::Reset, |of| (of == host) == is_own);
        let (n, of_others) = (count(true), count(false));
        // An end that resets a connection sees no reset on it, and answers what still comes with resets of its own.
        if 2 * of_others >= n && of_others > 0 {
            return Self::PathOfBoth;
        }
        // A server may reset connections of others.
        let counts =
            |other: &&str| seen.has_counter(other, TCP_OUT_RESETS) && seen.hosts_of_tcp().any(|of| of == *other);
        let other = seen.other_end(host).filter(counts);
        match other.map(|other| (other, seen.growth(other, TCP_OUT_RESETS, None))) {
            Some((other, n_sent)) if n_sent >= n => Self::OtherEnd(other),
            Some((other, n_sent)) => Self::Path { other, n_sent, n },
            None => Self::Unknown,
        }
    }
}

fn reset_title(seen: &TestEvidence<'_>, host: &str) -> String {
    let by_path = format!("connections of {host} were reset by a firewall or a device on the path");
    match ResetBy::of(seen, host) {
        ResetBy::OtherEnd(other) => format!("{other} reset connections of {host}"),
        ResetBy::PathOfBoth => format!("{by_path}: both ends saw them reset"),
        ResetBy::Path { other, n_sent, n } => {
            format!("{by_path}: {other} sent {} of {} resets", grouped(n_sent), grouped(n))
        }
        ResetBy::Unknown => format!("connections of {host} were reset, by the other end or by a device on the path"),
    }
}

/// Suggests to look at what resets: no firewall, if the kernel of the other end counted the resets that it sent.
fn reset_next(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    if let ResetBy::OtherEnd(other) = ResetBy::of(seen, host) {
        return NextStep::new("nstat -az 'TcpExtTCPAbort*' TcpExtListenOverflows").on(other).expected(
            "show why its kernel reset connections: closed with data unread (OnClose), by SO_LINGER 0 or data after the close (OnData), or for want of \
             memory; the log of the program says more",
        );
    }
    NextStep::new("nft -a list ruleset").on(host).expected("show, on both hosts, rules that reject with a TCP reset")
}

/// Sums up the errors by cause and compares them with the completed work.
pub(crate) struct ErrorCauses;

impl FindingRule for ErrorCauses {
    fn id(&self) -> &'static str {
        ERRORS
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "stuck-connections",
            "server-saturated",
            "retransmissions",
            "path-full",
            "acks-lost",
            CONNTRACK_FULL,
            CONNTRACK_REFUSED,
            LINK_DOWN,
            NEIGHBOR_CHANGES,
            NEIGHBOR_UNRESOLVED,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        let is_unanswered = |failure: &Failure| {
            failure.stage == Stage::Read && matches!(failure.cause, Cause::Timeout | Cause::Unanswered)
        };
        let are_all_lost = cause == "acks-lost" && unacknowledged(seen).is_some();
        let is_effect = |failure: &Failure| match cause {
            // A server that takes no more connections lets its accept queue overflow, which drops the SYNs of others.
            "stuck-connections" if failure.stage == Stage::Connect => failure.cause == Cause::Timeout,
            "stuck-connections" | "server-saturated" => is_unanswered(failure),
            // The route goes down with its interface, and a neighbor that does not answer makes an address unreachable.
            LINK_DOWN | NEIGHBOR_UNRESOLVED => {
                let is_lost = |words: &str| is_unreachable(words) || words.contains(NO_END_MARK);
                is_unanswered(failure) || matches!(&failure.cause, Cause::Other(words) if is_lost(words))
            }
            // A full path drops SYNs, too, and a wrong neighbor entry loses all. A full table of connections drops nothing else.
            "path-full" | CONNTRACK_FULL | CONNTRACK_REFUSED | NEIGHBOR_CHANGES if failure.stage == Stage::Connect => {
                matches!(failure.cause, Cause::Timeout | Cause::Unanswered)
            }
            CONNTRACK_FULL | CONNTRACK_REFUSED => false,
            // The last bytes may have arrived.
            "acks-lost" => failure.cause == Cause::NeverAcknowledged || (failure.stage == Stage::Drain && are_all_lost),
            // On a path that loses much, answers also end within.
            _ => is_unanswered(failure) || (failure.stage == Stage::Read && failure.cause == Cause::Incomplete),
        };
        records_of(seen).any(|(_, record)| record.errors.iter().any(|(failure, _)| !is_effect(failure)))
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let causes = causes_of(seen);
        let n_errors: u64 = causes.values().sum();
        let Some(((host, most), n_most)) = causes.iter().max_by_key(|(_, n)| **n) else { return Vec::new() };
        // A cause that is known says more than an equally frequent one that is not.
        let known_of = |failure: &Failure| KNOWN.iter().find(|known| known.cause == failure.cause);
        let named = causes.iter().filter(|(_, n)| *n == n_most).find(|((_, failure), _)| known_of(failure).is_some());
        let (host, most) = named.map_or((host, most), |((host, failure), _)| (host, failure));
        // What resets connections also refuses some before they are open.
        let reset = causes.iter().filter(|((_, failure), _)| failure.cause == Cause::Reset).max_by_key(|(_, n)| **n);
        let reset = reset.filter(|(_, n)| most.cause == Cause::Refused && 2 * **n >= *n_most);
        let (host, most) = reset.map_or((host, most), |((host, failure), _)| (host, failure));
        let n_attempts = n_attempts(seen, n_errors);
        let share = n_attempts.and_then(|n_all| ratio(n_errors, n_all));
        // Streams count bytes, so a share of failed operations does not exist for them.
        let is_nothing_done = main_rate(seen.test).is_some_and(|rate| rate.value == Some(0.0));
        let matters = is_nothing_done || share.is_some_and(|share| share >= HOLDS_BACK);
        let of = share.map_or(String::new(), |share| format!(" ({} of all)", percent(share)));
        // Full-size segments that arrived did not vanish.
        let is_hole = |known: &&KnownCause| known.cause != Cause::NeverAcknowledged || unacknowledged(seen).is_none();
        let known = known_of(most).filter(is_hole);
        let known = known.or_else(|| is_without_route(seen, host, most).then_some(&WITHOUT_ROUTE));
        // A test that opens a connection for each exchange goes on with the next one.
        let n_connections = done(seen, count::CONNECTIONS).unwrap_or(0);
        // A request whose connection was reset is one of many, and the next one opens another connection.
        let is_reset_request = most.cause == Cause::Reset && matches!(seen.test.layer, Layer::App | Layer::Http);
        let are_few = match share.filter(|_| is_reset_request) {
            Some(share) => share < FEW_CONNECTIONS || n_errors < FEW_RESETS,
            None => ratio(n_errors, n_connections).is_some_and(|share| share < FEW_CONNECTIONS),
        };
        let is_late = are_connects_delayed(seen) && causes.keys().all(|(_, failure)| is_late_connect(failure));
        let severity = if is_late {
            Severity::Remark
        } else if matters || known.is_some_and(|known| known.always_matters && !are_few) {
            Severity::HoldsBack
        } else {
            Severity::Remark
        };
        let counted = if n_errors == 1 {
            format!("1 error{of}: `{most}`")
        } else {
            let how_often = reset.map_or("most often".to_owned(), |(_, n)| format!("{} of them", grouped(*n)));
            format!("{} errors{of}, {how_often} `{most}`", grouped(n_errors))
        };
        let (id, short) = known.map_or((self.id(), "errors"), |known| (known.id, known.short));
        let counted = format!("{counted}{}", at_addresses(seen, most));
        let title = known.map_or_else(|| counted.clone(), |known| format!("{}: {counted}", (known.title)(seen, host)));
        let of_attempts = |n: u64| match n_attempts.and_then(|n_all| ratio(n, n_all)) {
            Some(share) => format!("{} ({} of all)", grouped(n), percent(share)),
            None => grouped(n),
        };
        let is_told = |failure: &Failure| known.is_none() || failure.cause == most.cause;
        let n_told = causes.iter().filter(|((_, failure), _)| is_told(failure)).map(|(_, n)| n).sum();
        vec![
            seen.finding(id, severity, short, title)
                .evidence(
                    causes.iter().map(|((host, cause), n)| text_evidence(host, cause.to_string(), of_attempts(*n))),
                )
                .explains(explained(seen, n_told))
                .next(known.map_or_else(|| next_of(seen, host, most), |known| (known.next)(seen, host))),
        ]
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        if finding.id == BLACK_HOLE { smaller_segments(seen) } else { None }
    }
}

/// Returns the next step for a failure whose cause is not known: who holds the connection up. What a server answered is in the error itself.
fn next_of(seen: &TestEvidence<'_>, host: &str, failure: &Failure) -> Option<NextStep> {
    match failure.stage {
        Stage::Connect | Stage::Proxy => {
            let command = NextStep::new("ss -tn state syn-sent").on(host);
            Some(command.expected("show, during the test, the addresses that do not answer"))
        }
        Stage::Read => {
            let command = NextStep::new("ss -tn state established");
            let shown =
                "bytes in Recv-Q while the server does not read, in Send-Q while its answers do not get through";
            Some(match seen.other_end(host) {
                Some(other) => command.on(other).expected(format!("show, during the test, {shown}")),
                None => command.expected(format!("show, during the test and at the other end, {shown}")),
            })
        }
        _ => None,
    }
}

/// Returns the number of errors by host and cause, without those at a step of a script, which are reported with the step.
fn causes_of<'a>(seen: &TestEvidence<'a>) -> BTreeMap<(&'a str, &'a Failure), u64> {
    let mut causes = BTreeMap::new();
    for (key, record) in records_of(seen) {
        let at_step = |failure: &Failure| {
            let (cause, users) = (failure.to_string(), record.users.as_ref());
            users.is_some_and(|users| users.steps.iter().any(|step| step.errors.contains_key(&cause)))
        };
        for (cause, n) in record.errors.iter().filter(|(cause, _)| !at_step(cause)) {
            *causes.entry((host_of(key), cause)).or_default() += *n;
        }
    }
    causes
}

/// Returns the sum of a total; `None` if nothing counts it. One that stayed at zero counts as well: none of the work was done.
fn done(seen: &TestEvidence<'_>, counter: &str) -> Option<u64> {
    records_of(seen).filter_map(|(_, record)| record.totals.get(counter).copied()).reduce(|all, n| all + n)
}

/// Returns all attempts, failed or not. Requests count them, of which the value `errors` is a share too; other work is counted once it is done.
fn n_attempts(seen: &TestEvidence<'_>, n_errors: u64) -> Option<u64> {
    let with_work = || WORK.into_iter().find_map(|counter| done(seen, counter)).map(|n_done| n_done + n_errors);
    Some(done(seen, count::ATTEMPTS).or_else(with_work)?.max(n_errors))
}

/// Returns the part of what a schedule lacks that errors are: each is a request that was due and has no answer.
///
/// Failures also take time and connections from other requests, so that a part below half is not known to be one, and would hide the cause. A closed
/// load goes on after a failure, which may have taken much longer than an answer or no time at all: what it lacks by that is not known.
fn explained(seen: &TestEvidence<'_>, n_errors: u64) -> Option<f64> {
    let is_open = seen.test.layer == Layer::Http && is_scheduled(seen);
    let n_due = done(seen, count::INTENDED).filter(|_| is_open)?;
    let part = ratio(n_errors, n_due.saturating_sub(done(seen, count::REQUESTS)?))?;
    Some(part.min(1.0)).filter(|part| *part >= gap::HALF)
}

/// Returns the records of all trials: also of those that are left out of the value, because errors can be the reason why they did not end.
///
/// Where one of the two hosts was lost, the other saw the connections end, which says nothing of the path. Sums of several pairs have whole pairs
/// only.
fn records_of<'a>(seen: &TestEvidence<'a>) -> impl Iterator<Item = (&'a String, &'a Record)> {
    let has_record = |trial: &Trial, host: &str| trial.records.keys().any(|key| host_of(key) == host);
    let is_complete = seen.run.completeness == Completeness::Complete;
    // A server that is not fathom's tells nothing itself.
    let hosts: Vec<&str> = seen.hosts_of_fathom().collect();
    let is_cut = move |trial: &Trial| {
        !is_complete && trial.links.is_empty() && hosts.iter().any(|host| !has_record(trial, host))
    };
    seen.test.trials.iter().filter(move |trial| !is_cut(trial)).flat_map(|trial| &trial.records)
}

/// Returns true if a failure may be that of a connection that was not open in time, which is told with the reason of the delay. A client whose
/// last segment of the handshake was dropped takes its connection for open, and waits for an answer.
fn is_late_connect(failure: &Failure) -> bool {
    match failure.stage {
        Stage::Connect => matches!(failure.cause, Cause::Unanswered | Cause::Timeout),
        Stage::Read => failure.cause == Cause::Unanswered,
        _ => false,
    }
}

/// Returns which addresses connects failed at, if the name of the server has several.
fn at_addresses(seen: &TestEvidence<'_>, failure: &Failure) -> String {
    let mut n_at: BTreeMap<&str, u64> = BTreeMap::new();
    let records = seen.test.trials.iter().flat_map(|trial| trial.records.values());
    let lines = records.filter_map(|record| record.facts.get(fact::FAILED_ADDRESSES)).flat_map(|text| text.lines());
    for (address, n) in lines.filter_map(|line| line.split_once(' ')) {
        *n_at.entry(address).or_default() += n.parse::<u64>().unwrap_or(0);
    }
    let mut all: Vec<_> = n_at.into_iter().collect();
    all.sort_by_key(|(_, n)| Reverse(*n));
    let named: Vec<String> =
        all.iter().take(ADDRESSES_MAX).map(|(address, n)| format!("{address} ({})", grouped(*n))).collect();
    let is_of_connect = !matches!(failure.stage, Stage::Send | Stage::Read | Stage::Parse | Stage::Script);
    if named.is_empty() || !is_of_connect {
        String::new()
    } else {
        format!("; connects failed at {}", named.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::{
        Histogram,
        names::{
            distribution::SCHEDULE_LAG,
            host::{DEV_CARRIER_CHANGES, TCP_SYN_RETRANS},
        },
    };

    use crate::run_builder::{RunBuilder, step, visits};

    #[test]
    fn an_error_whose_cause_is_not_known_says_where_to_look() {
        let next = |error: &str| {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 100);
            builder.run.tests[0].trials[0].records.get_mut("client").unwrap().errors.add(error, 500);
            builder.finding(ERRORS).unwrap().next
        };
        let step = next("read: timeout").unwrap();
        assert_eq!((step.command.as_str(), step.on.as_deref()), ("ss -tn state established", Some("target")));
        assert_eq!(next("connect: timeout").unwrap().command, "ss -tn state syn-sent");
        assert_eq!(next("status 503"), None, "the server says it");
    }

    #[test]
    fn an_error_whose_cause_is_known_is_told_as_the_cause() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: no local port is free", 500);
        let finding = builder.finding("ports").unwrap();
        assert!(
            finding.title.starts_with("client had no local port left for connections: 500 errors"),
            "{}",
            finding.title
        );
        assert!(finding.next.unwrap().command.contains("ip_local_port_range"));
        assert_eq!(builder.finding("errors"), None);
    }

    #[test]
    fn what_resets_connections_also_refuses_some() {
        let told = |n_reset: u64| {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 100);
            builder.total("client", count::CONNECTIONS, 20_000);
            builder.host_counter("client", (TCP_SYN_RETRANS, ""), 400);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let mut times = Histogram::new();
            times.record_n(fathom_model::units::Nanos::from_millis(16).0, 20_000);
            record.distributions.insert(fathom_model::names::distribution::CONNECT_TIME.to_owned(), times);
            record.errors.add("connect: connection refused", 302);
            record.errors.add("read: connection reset by peer", n_reset);
            let delays = builder.finding("connect-delays");
            (["resets", "no-listener"].map(|id| builder.finding(id).map(|finding| finding.title)), delays)
        };
        let ([resets, refused], delays) = told(296);
        assert!(resets.unwrap().ends_with("296 of them `read: connection reset by peer`"));
        assert_eq!((refused, delays), (None, None), "SYNs were sent again at once");
        assert!(told(20).0[1].is_some(), "a server that is away for a while");
    }

    #[test]
    fn the_connections_to_a_host_that_was_lost_ended_with_it() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        let trial = &mut builder.run.tests[0].trials[0];
        trial.records.get_mut("client").unwrap().errors.add("read: connection reset by peer", 500);
        assert!(builder.finding("resets").is_some());
        builder.run.completeness = Completeness::Incomplete { reason: "host target was lost".to_owned() };
        assert!(builder.finding("resets").is_some(), "it told its results before");
        builder.run.tests[0].trials[0].records.remove("target");
        assert_eq!(builder.finding("resets"), None);
        let test = &mut builder.run.tests[0];
        (test.to, test.server) = (None, Some("target".to_owned()));
        assert!(builder.finding("resets").is_some(), "a server that is not fathom's has no results");
        // Records of several pairs are under the names of their groups.
        let mut builder = RunBuilder::new();
        builder.star(&[("one", &[1_000]), ("two", &[1_000])]);
        builder.run.completeness = Completeness::Incomplete { reason: "interrupted".to_owned() };
        let trial = &mut builder.run.tests[0].trials[0];
        trial.records.values_mut().next().unwrap().errors.add("read: connection reset by peer", 500);
        assert!(builder.finding("resets").is_some());
    }

    #[test]
    fn connections_that_waited_for_another_syn_are_no_errors_of_their_own() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, 200);
        builder.host_counter("client", (TCP_SYN_RETRANS, ""), 24);
        let add = |builder: &mut RunBuilder, error| {
            builder.run.tests[0].trials[0].records.get_mut("client").unwrap().errors.add(error, 20);
        };
        add(&mut builder, "connect: unanswered");
        add(&mut builder, "read: unanswered");
        assert_eq!(builder.finding("errors").unwrap().severity, Severity::Remark);
        assert!(builder.finding("connect-delays").is_some_and(|finding| finding.severity == Severity::HoldsBack));
        add(&mut builder, "read: timeout");
        assert_eq!(builder.finding("errors").unwrap().severity, Severity::HoldsBack);
    }

    #[test]
    fn what_this_host_may_not_send_is_told_with_the_rule_and_not_blamed_on_the_generator() {
        let forbidden = |rule: bool, error: &str| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(300, 300)]);
            builder.total("client", count::INTENDED, 1_000);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add(error, 691_042);
            if rule {
                builder.host_counter("client", (NFT_DROPPED, "inet t out 4"), 334_702);
            }
            builder
        };
        let run = forbidden(true, "sendmmsg: permission denied").analyzed();
        let (first, words) =
            (&run.findings[0], "a firewall rule on client (inet t out 4) refuses what it sends, and dropped 334,702");
        assert_eq!((first.id.as_str(), first.severity), ("filter-drops", Severity::HoldsBack));
        assert!(first.title.starts_with(words), "{}", first.title);
        let offered = |builder: RunBuilder| builder.finding("offered-too-little").unwrap().severity;
        assert_eq!(offered(forbidden(true, "sendmmsg: permission denied")), Severity::Remark);
        let title = forbidden(false, "sendmmsg: permission denied").finding("filter-drops").unwrap().title;
        assert!(title.starts_with("a firewall rule or a route on client refuses what it sends: "), "{title}");
        assert_eq!(offered(forbidden(false, "sendmmsg: timeout")), Severity::Invalidates);
    }

    fn with_errors(n: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: host unreachable", n);
        builder
    }

    #[test]
    fn one_reset_of_thousands_of_connections_holds_nothing_back() {
        let severity = |n_connections: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(1_000, 1);
            builder.total("client", count::CONNECTIONS, n_connections);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("read: connection reset by peer", 1);
            builder.finding("resets").unwrap().severity
        };
        assert_eq!([severity(20), severity(30_000)], [Severity::HoldsBack, Severity::Remark]);
    }

    #[test]
    fn resets_that_the_server_did_not_send_come_from_the_path() {
        let title = |sent: Option<u64>| {
            let mut builder = RunBuilder::new();
            builder.http(1000, 10);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("read: connection reset by peer", 50);
            if let Some(sent) = sent {
                builder.host_counter("target", (TCP_OUT_RESETS, ""), sent);
            }
            let finding = builder.finding("resets").unwrap();
            assert_eq!(finding.severity, Severity::HoldsBack);
            finding.title
        };
        assert!(title(Some(2)).starts_with(
            "connections of client were reset by a firewall or a device on the path: target sent 2 of 50"
        ));
        assert!(title(Some(50)).starts_with("target reset connections of client: 50 errors"));
        assert!(title(None).contains("by the other end or by a device on the path"));
    }

    #[test]
    fn what_the_other_end_did_not_refuse_another_one_did() {
        let told = |refused: u64| {
            let mut builder = RunBuilder::new();
            builder.http(1000, 10);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("connect: connection refused", 50);
            builder.host_counter("target", (TCP_OUT_RESETS, ""), refused);
            let finding = builder.finding("no-listener").unwrap();
            let next = finding.next.unwrap();
            (finding.title, next.command, next.on.unwrap())
        };
        let (title, command, on) = told(50);
        assert!(title.starts_with("nobody listens where client sends to"), "{title}");
        assert_eq!((command.as_str(), on.as_str()), ("ss -ltun", "target"));
        let (title, command, on) = told(0);
        assert!(title.starts_with("a firewall, or another host with the address of target, refuses client"), "{title}");
        assert_eq!((command.as_str(), on.as_str()), ("ip neigh", "client"));
    }

    #[test]
    fn sends_that_fail_while_a_link_is_down_are_its_effect_and_other_errors_are_not() {
        let severity = |error: &str| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 900)]);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add(error, 100);
            builder.host_counter("client", (DEV_CARRIER_CHANGES, "eth0"), 4);
            builder.host_counter("client", (ICMP_IN_UNREACHABLE, "ipv4"), 0);
            let finding = [ERRORS, NO_ROUTE_ID].into_iter().find_map(|id| builder.finding(id)).unwrap();
            (finding.id, finding.severity)
        };
        assert_eq!(severity("send: network unreachable"), (NO_ROUTE_ID.to_owned(), Severity::Remark));
        assert_eq!(severity("no mark of the end came"), (ERRORS.to_owned(), Severity::Remark));
        assert_ne!(severity("send: message too long").1, Severity::Remark);
    }

    #[test]
    fn an_unreachable_host_has_no_route_unless_icmp_told_of_it() {
        let told = |n_icmp: u64| {
            let mut builder = RunBuilder::new();
            builder.udp_stream(&[(1_000, 900)]);
            builder.host_counter("target", (ICMP_IN_UNREACHABLE, "ipv4"), n_icmp);
            let record = builder.run.tests[0].trials[0].records.get_mut("target").unwrap();
            record.errors.add("sendto: host unreachable", 100);
            builder.finding(NO_ROUTE_ID)
        };
        let finding = told(0).unwrap();
        assert!(finding.title.starts_with("target has no route to the other end: 100 errors"), "{}", finding.title);
        assert_eq!(finding.next.unwrap().on.as_deref(), Some("target"));
        assert_eq!(told(100), None, "a router, or a neighbor that does not answer");
    }

    #[test]
    fn connections_that_both_ends_saw_reset_were_reset_between_them() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        for (host, error) in
            [("client", "send: connection reset by peer"), ("target", "recv: connection reset by peer")]
        {
            builder.run.tests[0].trials[0].records.get_mut(host).unwrap().errors.add(error, 4);
        }
        builder.host_counter("target", (TCP_OUT_RESETS, ""), 50);
        let title = builder.finding("resets").unwrap().title;
        assert!(title.contains("a device on the path: both ends saw them reset"), "{title}");
    }

    #[test]
    fn errors_are_told_by_cause_and_matter_from_one_in_a_hundred() {
        let finding = with_errors(1000).finding("errors").unwrap();
        assert_eq!(finding.title, "1,000 errors (50 % of all), most often `connect: host unreachable`");
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(with_errors(2).finding("errors").unwrap().severity, Severity::Remark);
    }

    #[test]
    fn where_nothing_was_done_all_of_it_failed() {
        let mut builder = with_errors(14);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.totals.extend([(count::REQUESTS.to_owned(), 0), (count::CONNECTIONS.to_owned(), 14)]);
        assert!(builder.finding("errors").unwrap().title.starts_with("14 errors (100 % of all)"));
    }

    #[test]
    fn errors_that_left_nothing_are_told_once() {
        let mut builder = RunBuilder::new();
        builder.http(0, 4);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("read: timeout", 4);
        assert!(builder.finding(fathom_model::finding::NOTHING_DONE).unwrap().title.contains("read: timeout"));
        assert_eq!(builder.finding("errors"), None);
    }

    #[test]
    fn what_is_told_with_a_step_is_not_told_again() {
        let mut builder = RunBuilder::new();
        builder.users(&[visits((1_000, 0), vec![step("home", (1_000, 50), 10)])]);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("status 500, expected 200", 70);
        assert_eq!(builder.finding("errors"), None);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: host unreachable", 30);
        assert!(builder.finding("errors").unwrap().title.starts_with("30 errors"));
    }

    #[test]
    fn failed_connects_are_told_with_their_address_where_the_name_has_several() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("connect: host unreachable", 500);
        record.facts.insert(fact::FAILED_ADDRESSES.to_owned(), "198.18.0.9 490\n198.18.0.8 10".to_owned());
        let title = builder.finding("errors").unwrap().title;
        assert!(
            title.ends_with("`connect: host unreachable`; connects failed at 198.18.0.9 (490), 198.18.0.8 (10)"),
            "{title}"
        );
    }

    #[test]
    fn answers_that_a_lossy_path_cut_do_not_lead_its_loss() {
        let severity = |failure: &str| {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 100);
            builder.host_counter("target", (fathom_model::names::host::TCP_OUT_SEGMENTS, ""), 100_000);
            builder.host_counter("target", (fathom_model::names::host::TCP_RETRANS_SEGMENTS, ""), 10_000);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add(failure, 50);
            builder.finding("errors").map(|finding| finding.severity)
        };
        assert_eq!(severity("read: the answer did not end"), Some(Severity::Remark));
        assert_eq!(severity("parse: not HTTP/1"), Some(Severity::HoldsBack));
    }

    #[test]
    fn a_share_is_of_the_attempts_where_they_are_counted() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::ATTEMPTS, 2_000);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("parse: not HTTP/1", 500);
        assert!(builder.finding("errors").unwrap().title.starts_with("500 errors (25 % of all)"));
    }

    #[test]
    fn each_cause_has_its_share_of_the_attempts_where_there_are_any() {
        let values = |builder: &mut RunBuilder| -> Vec<(String, String)> {
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("parse: not HTTP/1", 500);
            record.errors.add("read: timeout", 20);
            let evidence = builder.finding("errors").unwrap().evidence;
            evidence.into_iter().map(|shown| (shown.counter, shown.value)).collect()
        };
        let expected = |parse: &str, read: &str| {
            [("read: timeout", read), ("parse: not HTTP/1", parse)].map(|(cause, n)| (cause.to_owned(), n.to_owned()))
        };
        let mut requests = RunBuilder::new();
        requests.http(1_000, 100);
        requests.total("client", count::ATTEMPTS, 2_000);
        assert_eq!(values(&mut requests), expected("500 (25 % of all)", "20 (1.0 % of all)"));
        let mut stream = RunBuilder::new();
        stream.tcp_stream(&[1000]);
        assert_eq!(values(&mut stream), expected("500", "20"), "bytes are no attempts");
    }

    #[test]
    fn errors_explain_what_a_schedule_lacks_if_they_are_most_of_it() {
        let explains = |n_errors: u64, is_open: bool| {
            let mut builder = RunBuilder::new();
            builder.http(400, 10);
            builder.total("client", count::INTENDED, 1_000);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("connect: connection refused", n_errors);
            record.errors.add("connect: host unreachable", 30);
            if is_open {
                let mut late = Histogram::new();
                late.record_n(1_000, 400);
                record.distributions.insert(SCHEDULE_LAG.to_owned(), late);
            }
            builder.finding("no-listener").unwrap().explains
        };
        assert_eq!(explains(450, true), Some(0.75), "those of the told cause");
        assert_eq!(explains(700, true), Some(1.0));
        assert_eq!(explains(200, true), None, "they may have kept others from being sent");
        assert_eq!(explains(450, false), None, "a closed load goes on");
    }

    #[test]
    fn without_errors_there_is_nothing_to_tell() {
        let mut builder = RunBuilder::new();
        builder.http(1000, 10);
        assert_eq!(builder.finding("errors"), None);
    }

    #[test]
    fn a_few_resets_of_many_requests_lead_nothing_and_those_of_a_stream_do() {
        let severity = |n_resets: u64, n_requests: u64| {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 32);
            builder.total("client", count::CONNECTIONS, 32);
            builder.total("client", count::ATTEMPTS, n_requests);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("read: connection reset by peer", n_resets);
            builder.finding("resets").unwrap().severity
        };
        assert_eq!([severity(1, 1_000), severity(500, 1_000_000)], [Severity::Remark; 2]);
        assert_eq!(severity(5_000, 1_000_000), Severity::HoldsBack);
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        record.errors.add("send: connection reset by peer", 1);
        assert_eq!(builder.finding("resets").unwrap().severity, Severity::HoldsBack);
    }

    #[test]
    fn resets_that_the_other_kernel_counted_are_not_those_of_a_firewall() {
        let step = |n_sent: u64| {
            let mut builder = RunBuilder::new();
            builder.tcp_rr(1_000, 4);
            builder.host_counter("target", (TCP_OUT_RESETS, ""), n_sent);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("recv: connection reset by peer", 300);
            let finding = builder.finding("resets").unwrap();
            let next = finding.next.unwrap();
            (finding.title, next.command, next.on)
        };
        let (title, command, on) = step(300);
        assert!(title.starts_with("target reset connections of client"), "{title}");
        assert_eq!(command, "nstat -az 'TcpExtTCPAbort*' TcpExtListenOverflows");
        assert_eq!(on.as_deref(), Some("target"));
        let (title, command, _) = step(0);
        assert!(title.contains("by a firewall or a device on the path: target sent 0 of 300 resets"), "{title}");
        assert_eq!(command, "nft -a list ruleset");
    }
}
