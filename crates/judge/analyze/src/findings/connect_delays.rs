//! Connections waited for the retransmission of a SYN.

use fathom_model::{
    Cause, Evidence, Failure, Finding, Histogram, Layer, NextStep, Severity, Side, Stage,
    names::{count, distribution, host},
    units::{Nanos, approximate, counted, grouped, percent, ratio},
};

use super::{
    FindingRule,
    drops::{BACKLOG_OVERFLOW, longer_backlog},
    host_drops::{
        ACCEPT_QUEUE_STEP, BAD_TCP_CHECKSUMS, CONNTRACK_FULL, CONNTRACK_REFUSED, NEIGHBOR_UNRESOLVED, NO_ROUTE_ID,
        SYN_BACKLOG_STEP, SYN_QUEUE_STEP, larger_table,
    },
    link_down::LINK_DOWN,
    neighbor_changes::NEIGHBOR_CHANGES,
    packet_filter::show_rules,
    planned_event::PLANNED_EVENT,
    retransmissions::{Drops, most_dropped, where_no_counter_shows},
    rule::DEVICE_CORE_FULL,
    server_time::is_scheduled,
    slow_answers::above,
};
use crate::{
    evidence::{TestEvidence, counter_evidence, text_evidence},
    gap,
    resent::SYN_TIMEOUT,
};

/// If waiting for another SYN took at least this share of the time of all connections, it holds the test back.
const HOLDS_BACK: f64 = 0.2;
/// If at least this share of the connections waited, something drops the first SYN of each.
const EACH: f64 = 0.99;
/// Fewer first SYNs may have been lost by chance.
const SYNS_MIN: u64 = 10;
/// Fewer connections are single events.
const SHARE_MIN: f64 = 1e-3;
/// Slightly less than until the first retransmission of a SYN, to find it among measured times.
const NEARLY_TIMEOUT: Nanos = Nanos::from_millis(900);
const FILTER_DROPS: &str = "filter-drops";
/// For each SYN that a host sends again, its peer may send a SYN-ACK up to so many times.
pub(super) const PACKETS_PER_SYN: u64 = 4;

/// Compares retransmitted SYNs with connections, and looks for the place that dropped the first ones.
pub(crate) struct ConnectDelays;

/// Returns the retransmitted SYNs of the initiator's host and the share of connections that waited for them, if that holds a test back.
fn delayed(seen: &TestEvidence<'_>) -> Option<(u64, f64)> {
    if !matches!(seen.test.layer, Layer::Tcp | Layer::Http | Layer::App) {
        return None;
    }
    let again = sent_again(seen);
    delayed_share(seen, again).filter(|_| again > 0).map(|share| (again, share))
}

/// Returns the number of SYNs that the initiator's host sent again.
fn sent_again(seen: &TestEvidence<'_>) -> u64 {
    seen.growth(seen.host_of(Side::Initiator).unwrap_or(&seen.test.from), host::TCP_SYN_RETRANS, None)
}

/// Returns true if connections waited for another SYN, so that some were not open at the end.
pub(super) fn are_connects_delayed(seen: &TestEvidence<'_>) -> bool {
    delayed(seen).is_some()
}

/// The place that dropped SYNs.
enum SynLoss<'a> {
    /// The accept queue of this host, so often.
    AcceptQueue(&'a str, u64),
    /// The SYN queue of this host, so often by this counter.
    SynQueue(&'a str, u64, &'static str),
    /// The kernel of this host dropped so many although its server had room.
    NoWayBack(&'a str, u64),
    /// Another place that counts what it drops.
    Counted(Drops<'a>),
    /// No host of the test counted it.
    Unknown,
}

impl FindingRule for ConnectDelays {
    fn id(&self) -> &'static str {
        "connect-delays"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            FILTER_DROPS,
            BACKLOG_OVERFLOW,
            CONNTRACK_FULL,
            "path-full",
            PLANNED_EVENT,
            NEIGHBOR_CHANGES,
            LINK_DOWN,
            NEIGHBOR_UNRESOLVED,
            CONNTRACK_REFUSED,
            DEVICE_CORE_FULL,
            BAD_TCP_CHECKSUMS,
        ]
    }

    fn stands_beside(&self, cause: &str, seen: &TestEvidence<'_>) -> bool {
        let place = place_of(seen);
        let is_of = |counter| matches!(&place, SynLoss::Counted(drops) if drops.counter == counter);
        match cause {
            // An interface without a carrier, or without the address of its neighbor, drops the packets unseen.
            LINK_DOWN | NEIGHBOR_UNRESOLVED => match &place {
                SynLoss::Counted(drops) => !is_of_device(drops),
                SynLoss::AcceptQueue(..) | SynLoss::SynQueue(..) | SynLoss::NoWayBack(..) => true,
                SynLoss::Unknown => false,
            },
            FILTER_DROPS => !is_of(host::NFT_DROPPED),
            BAD_TCP_CHECKSUMS => !is_of(host::TCP_IN_CSUM_ERRORS),
            BACKLOG_OVERFLOW => !is_of(host::SOFTNET_DROPPED),
            CONNTRACK_FULL | CONNTRACK_REFUSED => !is_of(host::CONNTRACK_DROPPED),
            _ => false,
        }
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let Some((again, share)) = delayed(seen) else { return Vec::new() };
        let from = seen.host_of(Side::Initiator).unwrap_or(&seen.test.from);
        let place = place_of(seen);
        let mut evidence = vec![counter_evidence(from, host::TCP_SYN_RETRANS, again)];
        evidence.extend(connect_time(seen, from));
        let waits = format!("{} of the connections waited a second or more for another SYN", percent(share));
        let id = if matches!(place, SynLoss::NoWayBack(..)) { NO_ROUTE_ID } else { self.id() };
        let (short, title, next) = match place {
            SynLoss::AcceptQueue(at, n) => {
                evidence.push(counter_evidence(at, host::TCP_LISTEN_OVERFLOWS, n));
                // The address tells one server of a host from another, if nearly all drops are its own: else that of the test may be any.
                let listener = seen.growth_by_instance(at, host::TCP_LISTENER_DROPPED).first().copied();
                let listener = listener.filter(|(_, dropped)| 10 * dropped >= 9 * n);
                let (whose, n) = listener.map_or_else(
                    || ("the server".to_owned(), n),
                    |(address, dropped)| {
                        let counter = format!("{} {address}", host::TCP_LISTENER_DROPPED);
                        evidence.push(counter_evidence(at, counter, dropped));
                        (format!("the server at {address}"), dropped.min(n))
                    },
                );
                let title = format!("the accept queue of {whose} on {at} overflowed {} times: {waits}", grouped(n));
                ("listen queue", title, NextStep::new("ss -ltn").on(at).expected(ACCEPT_QUEUE_STEP))
            }
            SynLoss::SynQueue(at, n, counter) => {
                evidence.push(counter_evidence(at, counter, n));
                let is_full = counter == host::TCP_SYN_QUEUE_DROPS;
                let (had, step) =
                    if is_full { ("was full", SYN_QUEUE_STEP) } else { ("reached its limit", SYN_BACKLOG_STEP) };
                let title = format!("the SYN queue on {at} {had} {} times: {waits}", grouped(n));
                let next = NextStep::new("sysctl -w net.ipv4.tcp_syncookies=1").on(at).expected(step);
                ("syn queue", title, next)
            }
            SynLoss::NoWayBack(at, n) => {
                evidence.push(counter_evidence(at, host::TCP_LISTEN_DROPS, n));
                let title = format!("{}: {waits}", without_way_back(at, from, n));
                ("no route", title, show_route(seen, at, from))
            }
            SynLoss::Counted(Drops { n, host: at, counter, place }) => {
                evidence.push(counter_evidence(at, counter, n));
                // Hosts of one machine have its cores in common.
                let is_of_machine = counter == host::SOFTNET_DROPPED && seen.is_one_machine();
                let whose = if is_of_machine { "this machine" } else { at };
                let title = format!(
                    "SYNs of {from} or their answers were lost, as {whose} dropped {} {place}: {waits}",
                    grouped(n)
                );
                ("syn loss", title, next_at(seen, at, counter).on(at))
            }
            SynLoss::Unknown => {
                let title = format!(
                    "SYNs of {from} or their answers were lost where {}: {waits}",
                    where_no_counter_shows(seen)
                );
                let of_ecn = offers_ecn(seen, from).filter(|_| share >= EACH && again >= SYNS_MIN);
                let next = of_ecn.unwrap_or_else(|| {
                    let expected = "show connections that wait; look at the accept queue of the server (ss -ltn there), at firewalls, and at the entry of the server or the router in ip neigh";
                    NextStep::new("ss -tn state syn-sent").on(from).expected(expected)
                });
                ("syn loss", title, next)
            }
        };
        vec![
            seen.finding(id, Severity::HoldsBack, short, title).evidence(evidence).explains(explained(seen)).next(next),
        ]
    }
}

/// Suggests not to offer ECN, if a host does: a device on the way may drop SYNs that do. A SYN that is sent again offers none (`tcp_ecn_clear_syn` of
/// Linux 6.18).
fn offers_ecn(seen: &TestEvidence<'_>, host: &str) -> Option<NextStep> {
    let is_offered = seen.environment(host)?.get("sysctl", "net.ipv4.tcp_ecn") == Some("1");
    let step = NextStep::new("sysctl -w net.ipv4.tcp_ecn=2").on(host).expected(
        "let connections open at once if a device on the way drops SYNs that offer ECN: this host offers it in the first SYN of each connection, and not in the second",
    );
    is_offered.then_some(step)
}

/// Returns the part of what a closed load lacks that its connections waited for another SYN, instead of doing anything.
///
/// Connections that still wait at the end have no time, so that this is the least: a part below half is not known to be one, and would hide the
/// cause. A schedule does not wait with them.
fn explained(seen: &TestEvidence<'_>) -> Option<f64> {
    let times = |name| seen.distribution(Side::Initiator, name);
    let (connects, service) = (times(distribution::CONNECT_TIME), times(distribution::SERVICE_TIME));
    if is_scheduled(seen) {
        return None;
    }
    let whole = match seen.test.layer {
        Layer::Http => times(distribution::TOTAL_TIME),
        // Where each exchange opens a connection, its time begins with that.
        Layer::Tcp if 2 * connects.count() >= service.count() => service,
        _ => return None,
    };
    let (waited, spent) = (above(&connects, NEARLY_TIMEOUT).1, above(&whole, Nanos::ZERO).1);
    let share = (spent > 0.0).then(|| (waited / spent).min(1.0))?;
    gap::explained_by_time(seen, share).filter(|part| *part >= gap::HALF)
}

/// Returns the share of connections that waited for another SYN, if their waiting held the test back.
fn delayed_share(seen: &TestEvidence<'_>, again: u64) -> Option<f64> {
    let connections = seen.total(Side::Initiator, count::CONNECTIONS);
    let times = seen.distribution(Side::Initiator, distribution::CONNECT_TIME);
    let service = seen.distribution(Side::Initiator, distribution::SERVICE_TIME);
    let errors = || seen.trials().iter().flat_map(|trial| trial.records.values()).flat_map(|record| &record.errors);
    // A refused one waited for nothing.
    let is_reset = |failure: &Failure| matches!(failure.cause, Cause::Refused | Cause::Reset);
    let has_waited = |failure: &Failure| failure.stage == Stage::Connect && !is_reset(failure);
    let n_failed: u64 = errors().filter(|(failure, _)| has_waited(failure)).map(|(_, n)| n).sum();
    let has_failed = n_failed > 0;
    // A test that opens no connections in its measured part waits for none: the SYNs are those of other programs.
    if connections == 0 && times.count() == 0 && !has_failed {
        return None;
    }
    let n_late = times.count_above(NEARLY_TIMEOUT.0);
    // Within two timeouts, some that wait for another SYN get their connection. If none did and none failed, other programs sent them again.
    let rounds = u64::try_from(seen.trials().len()).unwrap_or(u64::MAX);
    let is_long = seen.measured_time().0 >= 2 * SYN_TIMEOUT.0.saturating_mul(rounds);
    // To an ACK that does not fit its SYN, which a server sends for an earlier connection that was reset, a client answers with a reset and a SYN at
    // once (`tcp_rcv_synsent_state_process`).
    let n_reset: u64 = errors().filter(|(failure, _)| is_reset(failure)).map(|(_, n)| n).sum();
    // Where each connection of the test has opened, and no more were opened, none can wait.
    let asked = seen.test.options.count("connections").map(|n| n.saturating_mul(rounds));
    let have_opened = asked.is_some_and(|asked| (asked..=2 * asked).contains(&times.count()));
    let is_none = n_late == 0 && times.count() > 0 && !has_failed && (is_long || have_opened);
    let delayed = if is_none {
        0
    } else if 2 * n_reset >= again {
        n_late + n_failed
    } else {
        n_late.max(again)
    };
    let sum = |times: &Histogram| times.mean().unwrap_or(0.0) * approximate(times.count());
    let worked = sum(&service) + sum(&times);
    let waited = approximate(delayed) * approximate(SYN_TIMEOUT.0);
    let share = ratio(delayed, connections.max(delayed))?;
    // Without times, one connection in a hundred is enough.
    let holds_back = if worked > 0.0 { waited >= HOLDS_BACK * worked } else { share >= 0.01 };
    (holds_back && share >= SHARE_MIN).then_some(share)
}

/// Returns true if nearly all of these overflows are those of a listener at another port than that of the tested server.
fn is_of_another_server(seen: &TestEvidence<'_>, at: &str, n: u64) -> bool {
    let port = |address: &str| address.rsplit(':').next()?.parse::<u16>().ok();
    let listener = seen.growth_by_instance(at, host::TCP_LISTENER_DROPPED).first().copied();
    let port = listener.filter(|(_, dropped)| 10 * dropped >= 9 * n).and_then(|(address, _)| port(address));
    seen.server_port().zip(port).is_some_and(|(tested, port)| tested != port)
}

fn place_of<'a>(seen: &TestEvidence<'a>) -> SynLoss<'a> {
    let most = |counter: &str| {
        let of_host = |host: &'a str| (host, seen.growth(host, counter, None));
        seen.hosts().map(of_host).max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0)
    };
    let again = sent_again(seen);
    // A server of others may have a full queue beside the test, and a test may have many servers.
    let sum = |counter: &str| seen.hosts().map(|host| seen.growth(host, counter, None)).sum::<u64>();
    let queue = |counter| most(counter).filter(|_| 2 * sum(counter) >= again);
    let accept = queue(host::TCP_LISTEN_OVERFLOWS).filter(|(at, n)| !is_of_another_server(seen, at, *n));
    match (accept, queue(host::TCP_SYN_QUEUE_DROPS)) {
        (Some((host, n)), _) => SynLoss::AcceptQueue(host, n),
        (None, Some((host, n))) => SynLoss::SynQueue(host, n, host::TCP_SYN_QUEUE_DROPS),
        (None, None) => {
            // These places drop other packets too, so a count is no proof if it is the smaller one, and that of a device never is.
            let is_enough = |drops: &Drops<'_>| !is_of_device(drops) && 2 * drops.n >= again;
            let n_lost_max = again.saturating_mul(PACKETS_PER_SYN);
            // Connection tracking drops first packets, and hardly others.
            let is_of_tracking = |drops: &Drops<'_>| drops.counter == host::CONNTRACK_DROPPED && is_enough(drops);
            let tracking = most_dropped(seen, n_lost_max, is_of_tracking);
            let most = || most_dropped(seen, n_lost_max, is_enough);
            let counted = tracking.or_else(most);
            let is_of_listener = counted.as_ref().is_none_or(is_of_listener);
            if let Some((host, n)) = most_without_way_back(seen, again).filter(|_| is_of_listener) {
                return SynLoss::NoWayBack(host, n);
            }
            match most_of_syn_backlog(seen, again).filter(|_| is_of_listener) {
                Some((host, n)) => SynLoss::SynQueue(host, n, host::TCP_LISTEN_DROPS),
                None => counted.map_or(SynLoss::Unknown, SynLoss::Counted),
            }
        }
    }
}

/// Returns the host whose listening sockets dropped about as many SYNs as were sent again although their queues had room, and their number.
///
/// The kernel drops a SYN there for which it has no route back (`tcp_conn_request` of Linux), or no memory. For a route that is set to be unreachable
/// IPv6 counts nothing else.
pub(super) fn most_without_way_back<'a>(seen: &TestEvidence<'a>, n_syns: u64) -> Option<(&'a str, u64)> {
    most_with_room(seen, n_syns, true)
}

/// Returns the same of a host without SYN cookies, which also drops SYNs when three quarters of `net.ipv4.tcp_max_syn_backlog` are taken
/// (`tcp_conn_request`). Without a route back, no connection would open.
fn most_of_syn_backlog<'a>(seen: &TestEvidence<'a>, n_syns: u64) -> Option<(&'a str, u64)> {
    let has_opened = seen.total(Side::Initiator, count::CONNECTIONS) > 0;
    most_with_room(seen, n_syns, false).filter(|_| has_opened)
}

fn has_cookies(seen: &TestEvidence<'_>, host: &str) -> bool {
    seen.environment(host).and_then(|facts| facts.get("sysctl", "net.ipv4.tcp_syncookies")) != Some("0")
}

/// Returns the host, of those with or without SYN cookies, whose listening sockets dropped about as many SYNs for no queue that was full.
fn most_with_room<'a>(seen: &TestEvidence<'a>, n_syns: u64, with_cookies: bool) -> Option<(&'a str, u64)> {
    let of_host = |host: &'a str| {
        let [dropped, full_accept, full_syn] =
            [host::TCP_LISTEN_DROPS, host::TCP_LISTEN_OVERFLOWS, host::TCP_SYN_QUEUE_DROPS]
                .map(|counter| seen.growth(host, counter, None));
        (host, dropped.saturating_sub(full_accept + full_syn))
    };
    let about_as_many = n_syns.div_ceil(2).max(1)..=n_syns.saturating_mul(PACKETS_PER_SYN);
    let hosts = seen.hosts().filter(|host| has_cookies(seen, host) == with_cookies);
    let most = hosts.map(of_host).max_by_key(|(_, n)| *n);
    most.filter(|(_, n)| about_as_many.contains(n))
}

/// Returns true if a listening socket counted drops, for whatever reason. A place with a reason tells more.
pub(super) fn is_of_listener(drops: &Drops<'_>) -> bool {
    drops.counter == host::TCP_LISTEN_DROPS
}

/// The words for SYNs that were dropped although there was room.
pub(super) fn without_way_back(at: &str, from: &str, n: u64) -> String {
    format!(
        "{at} dropped {} of {from} though its server had room for them, because it has no route back to {from} or no memory for connections",
        counted(n, "SYN")
    )
}

/// Shows the route of a host to another one.
pub(super) fn show_route(seen: &TestEvidence<'_>, at: &str, to: &str) -> NextStep {
    let address = seen.run.hosts.get(to).and_then(|host| host.address.as_deref()).unwrap_or("ADDRESS");
    NextStep::new(format!("ip route get {address}")).on(at).expected("show the route, or that there is none")
}

/// Returns true if a device counted drops: it counts what it drops of others and for many reasons.
pub(super) fn is_of_device(drops: &Drops<'_>) -> bool {
    [host::DEV_RX_DROPPED, host::DEV_TX_DROPPED].contains(&drops.counter)
}

/// What to look at, or to change, where a place dropped SYNs.
pub(super) fn next_at(seen: &TestEvidence<'_>, at: &str, counter: &str) -> NextStep {
    match counter {
        host::NFT_DROPPED => NextStep::new("nft -a list ruleset").expected("show the rule"),
        host::IP_UNDELIVERED => show_rules(at),
        host::CONNTRACK_DROPPED => larger_table(seen, at),
        host::SOFTNET_DROPPED => longer_backlog(seen, at),
        _ => {
            let command = format!("tc -s qdisc show dev {0}; ip -s link show dev {0}", seen.interface(at));
            NextStep::new(command).expected("show what this host drops")
        }
    }
}

/// Returns the longest time to connect as evidence.
fn connect_time(seen: &TestEvidence<'_>, from: &str) -> Option<Evidence> {
    let longest = seen.distribution(Side::Initiator, distribution::CONNECT_TIME).max()?;
    Some(text_evidence(from, format!("{} max", distribution::CONNECT_TIME), Nanos(longest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_server_with_room_that_drops_syns_has_no_way_back() {
        let told = |n_overflows: u64| {
            let mut builder = RunBuilder::new();
            builder.http(0, 10);
            builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 30);
            builder.host_counter("target", (host::TCP_LISTEN_DROPS, ""), 30);
            builder.host_counter("target", (host::TCP_LISTEN_OVERFLOWS, ""), n_overflows);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            record.errors.add("connect: unanswered", 10);
            ["connect-delays", "no-route"].map(|id| builder.finding(id).map(|finding| finding.title))
        };
        let [None, Some(title)] = told(0) else { panic!("it is the route") };
        assert!(
            title.starts_with("target dropped 30 SYNs of client though its server had room for them, because "),
            "{title}"
        );
        assert!(matches!(told(30), [Some(_), None]), "it is the accept queue");
    }

    #[test]
    fn a_server_without_syn_cookies_that_drops_syns_though_others_open_has_few_places_for_them() {
        let mut builder = connecting(24);
        builder.host_counter("target", (host::TCP_LISTEN_DROPS, ""), 24);
        builder.run.hosts.get_mut("target").unwrap().environment.note("sysctl", "net.ipv4.tcp_syncookies", "0");
        let finding = builder.finding("connect-delays").unwrap();
        assert!(finding.title.starts_with("the SYN queue on target reached its limit 24 times"), "{}", finding.title);
        assert_eq!(
            (finding.short.as_str(), finding.evidence[1].counter.as_str()),
            ("syn queue", host::TCP_LISTEN_DROPS)
        );
        builder.host_counter("target", (host::TCP_SYN_QUEUE_DROPS, ""), 24);
        assert!(builder.finding("connect-delays").unwrap().title.contains("was full 24 times"));
    }

    #[test]
    fn a_syn_of_another_program_delays_no_stream() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1000]);
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 3);
        assert_eq!(builder.finding("connect-delays"), None);
    }

    fn connecting(again: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, 200);
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), again);
        builder
    }

    #[test]
    fn the_accept_queue_of_a_server_that_is_not_ours_is_named_if_its_host_is_read() {
        let mut builder = connecting(24);
        builder.host_counter("target", (host::TCP_LISTEN_OVERFLOWS, ""), 40);
        let test = &mut builder.run.tests[0];
        test.to = None;
        test.trials[0].records.remove("target");
        assert_eq!(builder.finding("connect-delays").unwrap().short, "syn loss");
        builder.run.tests[0].server = Some("target".to_owned());
        assert_eq!(builder.finding("connect-delays").unwrap().short, "listen queue");
        builder.run.tests[0].options.set("url", "http://192.0.2.1:8080/");
        builder.host_counter("target", (host::TCP_LISTENER_DROPPED, "0.0.0.0:5432"), 40);
        assert_eq!(builder.finding("connect-delays").unwrap().short, "syn loss", "that of another server overflowed");
    }

    #[test]
    fn an_accept_queue_that_overflows_is_named_with_the_time_it_costs() {
        let mut builder = connecting(24);
        builder.host_counter("target", (host::TCP_LISTEN_OVERFLOWS, ""), 40);
        let finding = builder.finding("connect-delays").unwrap();
        assert_eq!(
            finding.title,
            "the accept queue of the server on target overflowed 40 times: 12 % of the connections waited a second or more for another SYN"
        );
        assert_eq!(finding.short, "listen queue");
        builder.host_counter("target", (host::TCP_LISTENER_DROPPED, "0.0.0.0:22"), 7);
        assert!(builder.finding("connect-delays").unwrap().title.contains("the server on target"), "few are its own");
        builder.host_counter("target", (host::TCP_LISTENER_DROPPED, "0.0.0.0:8080"), 44);
        let title = builder.finding("connect-delays").unwrap().title;
        assert!(title.starts_with("the accept queue of the server at 0.0.0.0:8080 on target overflowed 40"), "{title}");
    }

    #[test]
    fn a_full_queue_of_another_server_explains_no_lost_syns() {
        for counter in [host::TCP_LISTEN_OVERFLOWS, host::TCP_SYN_QUEUE_DROPS] {
            let mut builder = connecting(24);
            builder.host_counter("target", (counter, ""), 4);
            let finding = builder.finding("connect-delays").unwrap();
            assert!(finding.title.contains("no counter of these hosts shows it"), "{}", finding.title);
        }
    }

    #[test]
    fn lost_syns_without_a_counter_are_told_and_single_ones_are_not() {
        assert_eq!(connecting(24).finding("connect-delays").unwrap().short, "syn loss");
        assert_eq!(connecting(0).finding("connect-delays"), None);
        let mut unread = connecting(24);
        unread.run.tests[0].to = None;
        let title = unread.finding("connect-delays").unwrap().title;
        let words = "SYNs of client or their answers were lost where no counter of client shows it; the counters of the server's host were not read: 12 %";
        assert!(title.starts_with(words), "{title}");
    }

    #[test]
    fn syns_that_a_core_had_no_room_for_are_told_with_its_backlog() {
        let mut builder = connecting(24);
        builder.host_counter("target", (host::SOFTNET_PROCESSED, "cpu1"), 400_000);
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 11);
        assert!(builder.finding("connect-delays").unwrap().title.contains("no counter"), "fewer than half");
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 30);
        let finding = builder.finding("connect-delays").unwrap();
        let words = "SYNs of client or their answers were lost, as target dropped 30 in the backlog of a core: 12 %";
        assert!(finding.title.starts_with(words) && finding.severity == Severity::HoldsBack, "{finding:?}");
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.core.netdev_max_backlog=10000");
        builder.host_counter("target", (host::SOFTNET_DROPPED, "cpu1"), 3_000);
        assert_eq!(builder.finding("connect-delays").unwrap().severity, Severity::Remark, "the backlog leads");
    }

    #[test]
    fn syns_of_other_programs_delay_no_connections_that_all_opened_at_once() {
        let mut builder = connecting(24);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        let times = record.distributions.entry(distribution::CONNECT_TIME.to_owned()).or_default();
        (0..200).for_each(|_| times.record(100_000));
        builder.run.tests[0].options.set("connections", "200");
        assert_eq!(builder.finding("connect-delays"), None, "each has opened, and no other was asked for");
        builder.run.tests[0].options.set("connections", "240");
        assert!(builder.finding("connect-delays").is_some(), "within a second, those that wait have no time yet");
        for record in builder.run.tests[0].trials[0].records.values_mut() {
            record.measured_ns.1 = record.measured_ns.0 + Nanos::from_secs(3);
        }
        assert_eq!(builder.finding("connect-delays"), None);
    }

    #[test]
    fn waits_for_another_syn_explain_their_part_of_the_time_if_it_is_half_and_more() {
        let explains = |n_late: u64, name: &str| {
            let mut builder = connecting(24);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            for (name, beside) in [(distribution::CONNECT_TIME, Nanos::ZERO), (name, Nanos::from_millis(100))] {
                let mut times = Histogram::new();
                times.record_n((Nanos::from_millis(1) + beside).0, 200 - n_late);
                times.record_n((Nanos::from_secs(1) + beside).0, n_late);
                record.distributions.insert(name.to_owned(), times);
            }
            builder.finding("connect-delays").unwrap().explains
        };
        let most = explains(100, distribution::TOTAL_TIME).unwrap();
        assert!((most - 100.0 / 120.1).abs() < 0.02, "{most}");
        assert_eq!(explains(10, distribution::TOTAL_TIME), None, "others may still wait");
        assert_eq!(explains(100, distribution::SERVICE_TIME), None, "the time of a whole request is not known");
    }

    #[test]
    fn a_test_in_which_every_connection_waited_for_another_syn_is_led_by_that() {
        let mut builder = RunBuilder::new();
        builder.http(0, 100);
        builder.total("client", count::CONNECTIONS, 200);
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 24);
        let found: Vec<_> =
            builder.analyzed().findings.into_iter().map(|finding| (finding.id, finding.severity)).collect();
        let expected = ["connect-delays", "nothing-done"].map(|id| (id.to_owned(), Severity::Invalidates));
        assert_eq!(found[..2], expected);
    }
}
