//! A host dropped packets at a place that has a counter of its own: filters, tables, routes, checksums.

use fathom_model::{
    Finding, Layer, NextStep, Severity,
    names::{count, host},
    units::ratio,
};

use super::{
    FindingRule,
    drops::{DropReport, PACKETS_MIN, doubled_sysctl, may_be_of_connections, packets_received},
    flow_limited::larger_receive_buffer,
    link_down::LINK_DOWN,
    planned_event::PLANNED_EVENT,
};
use crate::{
    change::{Change, lower_rate, smaller_datagrams},
    evidence::{TestEvidence, counter_evidence},
};

/// The instance of a counter that counts for IPv6, beside one for IPv4.
const OF_IPV6: &str = "ipv6";

/// The id of the finding about neighbors that did not answer.
pub(super) const NEIGHBOR_UNRESOLVED: &str = "neighbor-unresolved";

/// The id of the finding about a full table of tracked connections.
pub(super) const CONNTRACK_FULL: &str = "conntrack-full";

/// The id of the finding about new connections that connection tracking refused.
pub(super) const CONNTRACK_REFUSED: &str = "conntrack-insert-failed";

/// The id of the finding about a missing route.
pub(super) const NO_ROUTE_ID: &str = "no-route";
/// The id of the finding about damaged segments.
pub(super) const BAD_TCP_CHECKSUMS: &str = "bad-tcp-checksums";
/// The id of the finding about damaged headers of IP.
pub(super) const BAD_IP_CHECKSUMS: &str = "bad-ip-checksums";

/// The places that can drop the first packets of connections.
const BEFORE_CONNECTIONS: [&HostDrops; 12] = [
    &FILTER,
    &INGRESS_FILTER,
    &REVERSE_PATH,
    &NO_ROUTE,
    &CONNECTION_TABLE,
    &CONNECTION_INSERT,
    &NEIGHBOR,
    &NEIGHBOR_TABLE,
    &NOT_LOCAL,
    &IP_CHECKSUM,
    &TCP_CHECKSUM,
    &ACCEPT_QUEUE,
];

/// The places that can drop single packets of any protocol.
const OF_PACKETS: [&HostDrops; 8] =
    [&FILTER, &INGRESS_FILTER, &REVERSE_PATH, &NO_ROUTE, &NEIGHBOR, &NEIGHBOR_TABLE, &NOT_LOCAL, &IP_CHECKSUM];

/// Returns the drops of a host at these places: each with its description, its number and the next step.
pub(super) fn before_connections(seen: &TestEvidence<'_>, host: &str) -> impl Iterator<Item = (String, u64, NextStep)> {
    drops_at(&BEFORE_CONNECTIONS, seen, host)
}

/// Returns the drops of packets of any protocol on a host: each with its description, its number and the next step.
pub(super) fn of_packets(seen: &TestEvidence<'_>, host: &str) -> impl Iterator<Item = (String, u64, NextStep)> {
    drops_at(&OF_PACKETS, seen, host)
}

fn drops_at(
    places: &'static [&HostDrops],
    seen: &TestEvidence<'_>,
    host: &str,
) -> impl Iterator<Item = (String, u64, NextStep)> {
    places.iter().filter_map(move |place| {
        let grown = place.grown(seen, host);
        let (instance, _) = grown.first()?;
        let n = grown.iter().map(|(_, n)| n).sum();
        Some(((place.place)(host, instance), n, (place.next)(seen, host).on(host)))
    })
}

/// The number that the drops are a share of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ShareOf {
    /// All packets that the host received.
    Packets,
    /// The connections of the test: losing a single SYN delays a connection by a second.
    Connections,
    /// The same, for a place that drops the first packets of others too: nothing is lost where all connections of the test opened at once.
    FirstPackets,
}

/// Drops at one place, found by one counter.
pub(crate) struct HostDrops {
    id: &'static str,
    short: &'static str,
    counter: &'static str,
    share_of: ShareOf,
    /// Whether all hosts of one machine read the same counter.
    of_machine: bool,
    /// Describes the place; the text gets the host and the instance of the counter that grew most.
    place: fn(&str, &str) -> String,
    next: fn(&TestEvidence<'_>, &str) -> NextStep,
}

/// A rule of the packet filter.
pub(crate) const FILTER: HostDrops = HostDrops {
    id: "filter-drops",
    short: "firewall",
    counter: host::NFT_DROPPED,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, rule| format!("a firewall rule on {host} ({rule}) drops packets"),
    next: |_, _| NextStep::new("nft -a list ruleset").expected("show the rule by its handle"),
};

/// A filter or policer of `tc`, on the way in or out: `clsact` counts both as one.
pub(crate) const INGRESS_FILTER: HostDrops = HostDrops {
    id: "ingress-filter-drops",
    short: "tc filter",
    counter: host::QDISC_IN_DROPPED,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, interface| format!("a tc filter or policer on {interface} of {host} drops packets"),
    next: |seen, host| {
        let interface = seen.interface(host);
        NextStep::new(format!("tc -s filter show dev {interface} ingress; tc -s filter show dev {interface} egress"))
            .expected("show the filter and its rate")
    },
};

/// The reverse path filter.
pub(crate) const REVERSE_PATH: HostDrops = HostDrops {
    id: "reverse-path-filter",
    short: "rp_filter",
    counter: host::IP_RP_FILTER_DROPPED,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| {
        format!("{host} dropped packets because its route back to their source uses another interface (rp_filter)")
    },
    next: |seen, host| {
        NextStep::new(format!("sysctl -w net.ipv4.conf.{}.rp_filter=2", seen.interface(host).replace('.', "/")))
            .expected("accept packets whose way back is asymmetric; or repair the route")
    },
};

/// No route on the way out.
pub(crate) const NO_ROUTE: HostDrops = HostDrops {
    id: NO_ROUTE_ID,
    short: "no route",
    counter: host::IP_OUT_NO_ROUTES,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("{host} had no route for packets"),
    next: |seen, _| {
        NextStep::new(if seen.is_ipv6() { "ip -6 route" } else { "ip route" })
            .expected("show the routes; the one to the other end is missing or unreachable")
    },
};

/// The table of tracked connections.
pub(crate) const CONNECTION_TABLE: HostDrops = HostDrops {
    id: CONNTRACK_FULL,
    short: "conntrack",
    counter: host::CONNTRACK_DROPPED,
    share_of: ShareOf::FirstPackets,
    of_machine: false,
    place: |host, _| format!("the connection tracking table of {host} was full"),
    next: larger_table,
};

/// Makes room for more tracked connections.
pub(super) fn larger_table(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    let now = seen.last_value(host, host::CONNTRACK_ENTRIES_MAX).unwrap_or(65_536);
    NextStep::new(format!("sysctl -w net.netfilter.nf_conntrack_max={}", now.saturating_mul(4))).expected(
        "make room for more connections (in a container, on the host machine); or exempt the test with a notrack rule",
    )
}

/// New connections that the table refused, although it had room.
///
/// A first packet is dropped if another one of the same connection was faster, or if NAT gave its addresses and ports to another connection
/// (`__nf_conntrack_confirm` of `net/netfilter/nf_conntrack_core.c`).
pub(crate) const CONNECTION_INSERT: HostDrops = HostDrops {
    id: CONNTRACK_REFUSED,
    short: "conntrack",
    counter: host::CONNTRACK_INSERT_FAILED,
    share_of: ShareOf::FirstPackets,
    of_machine: false,
    place: |host, _| {
        format!(
            "the connection tracking of {host} refused new connections (insert_failed: equal addresses and ports after NAT)"
        )
    },
    next: |_, _| {
        NextStep::new("conntrack -S").expected(
            "show insert_failed by core; give NAT more ports or addresses, or exempt the test with a notrack rule",
        )
    },
};

/// Neighbors that did not answer.
pub(crate) const NEIGHBOR: HostDrops = HostDrops {
    id: NEIGHBOR_UNRESOLVED,
    short: "no neighbor",
    counter: host::NEIGHBOR_UNRESOLVED,
    share_of: ShareOf::Packets,
    of_machine: true,
    place: |host, _| format!("packets of {host} waited for a neighbor that did not answer ARP or neighbor discovery"),
    next: |_, _| NextStep::new("ip neigh show nud failed").expected("show the addresses that nobody answers for"),
};

pub(crate) const NEIGHBOR_TABLE: HostDrops = HostDrops {
    id: "neighbor-table-full",
    short: "neighbors",
    counter: host::NEIGHBOR_TABLE_FULL,
    share_of: ShareOf::Packets,
    of_machine: true,
    place: |host, _| format!("the neighbor table of {host} was full"),
    next: |seen, host| {
        let name =
            if seen.is_ipv6() { "net.ipv6.neigh.default.gc_thresh3" } else { "net.ipv4.neigh.default.gc_thresh3" };
        NextStep::new(format!("sysctl -w {name}={}", doubled_sysctl(seen, host, name, 16_384)))
            .expected("make room for more neighbors")
    },
};

/// Packets to an address that the host does not have, or no longer has.
pub(crate) const NOT_LOCAL: HostDrops = HostDrops {
    id: "address-not-local",
    short: "no address",
    counter: host::IP_IN_ADDRESS_ERRORS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("packets reached {host} for an address that it does not have"),
    next: |_, _| NextStep::new("ip address").expected("show whether the tested address is still there"),
};

/// Damaged headers of IP.
pub(crate) const IP_CHECKSUM: HostDrops = HostDrops {
    id: BAD_IP_CHECKSUMS,
    short: "bad checksum",
    counter: host::IP_IN_CSUM_ERRORS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("IP packets reached {host} damaged, with a wrong checksum of their header"),
    next: damaged_frames,
};

/// Shows whether damage is done on the cable.
fn damaged_frames(seen: &TestEvidence<'_>, host: &str) -> NextStep {
    NextStep::new(format!("ip -s -s link show {}", seen.interface(host)))
        .expected("show whether frames arrive damaged (crc, frame); else a device on the way changes them")
}

/// Damaged segments.
pub(crate) const TCP_CHECKSUM: HostDrops = HostDrops {
    id: BAD_TCP_CHECKSUMS,
    short: "bad checksum",
    counter: host::TCP_IN_CSUM_ERRORS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("TCP segments reached {host} damaged, with a wrong checksum"),
    next: damaged_frames,
};

/// Nobody listens.
pub(crate) const NO_LISTENER: HostDrops = HostDrops {
    id: "no-listener",
    short: "no listener",
    counter: host::UDP_NO_PORTS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("datagrams reached {host} for a port that no program listens on"),
    next: |_, _| NextStep::new("ss -lun").expected("show the ports that programs listen on"),
};

/// Fragments without their rest.
pub(crate) const REASSEMBLY: HostDrops = HostDrops {
    id: "reassembly-fails",
    short: "fragments",
    counter: host::IP_REASSEMBLY_FAILS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("{host} could not reassemble packets because fragments were missing"),
    next: |seen, _| {
        let smaller = seen.repeat_with_option("size", "1400B").unwrap_or_else(|| "ip -s link".to_owned());
        NextStep::new(smaller).expected("avoid fragments; a device on the way may drop them")
    },
};

/// Packets larger than the path that must not be fragmented.
pub(crate) const FRAGMENTATION: HostDrops = HostDrops {
    id: "packet-too-big",
    short: "too big",
    counter: host::IP_FRAGMENTATION_FAILS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("packets of {host} were larger than the MTU of the next hop and must not be fragmented"),
    next: |seen, host| {
        NextStep::new(format!("ip link show {}", seen.interface(host)))
            .expected("compare the MTU of all interfaces of the path")
    },
};

/// Socket backlogs of TCP.
pub(crate) const TCP_BACKLOG: HostDrops = HostDrops {
    id: "tcp-backlog-drops",
    short: "tcp backlog",
    counter: host::TCP_BACKLOG_DROPS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("the backlog of TCP sockets on {host} was full"),
    // The backlog of a socket holds as much as its two buffers (`tcp_add_backlog` of Linux).
    next: |seen, host| larger_receive_buffer(seen, host).expected("let sockets hold more while their reader is busy"),
};

/// UDP sockets whose reader is too slow. A test of datagrams has a rule of its own, which knows its socket.
pub(crate) const UDP_BUFFERS: HostDrops = HostDrops {
    id: "udp-receive-buffer",
    short: "socket full",
    counter: host::UDP_RCVBUF_ERRORS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("the receive buffer of a UDP socket on {host} was full"),
    next: |_, _| NextStep::new("ss -uam").expected("show the socket (d: what it dropped) and its buffer (rb)"),
};

/// Datagrams that arrive damaged.
pub(crate) const UDP_CHECKSUM: HostDrops = HostDrops {
    id: "bad-checksums",
    short: "bad checksum",
    counter: host::UDP_IN_CSUM_ERRORS,
    share_of: ShareOf::Packets,
    of_machine: false,
    place: |host, _| format!("datagrams reach {host} damaged, with a wrong checksum"),
    next: damaged_frames,
};

/// Servers that accept connections too slowly. A test that opens connections knows what that did to it.
pub(crate) const ACCEPT_QUEUE: HostDrops = HostDrops {
    id: "accept-queue-full",
    short: "listen queue",
    counter: host::TCP_LISTEN_OVERFLOWS,
    share_of: ShareOf::Connections,
    of_machine: false,
    place: |host, _| format!("the accept queue of a server on {host} was full"),
    next: |_, _| NextStep::new("ss -ltn").expected(ACCEPT_QUEUE_STEP),
};

/// Servers whose SYN queue was full, on a host that sends no SYN cookies.
pub(crate) const SYN_QUEUE: HostDrops = HostDrops {
    id: "syn-queue-full",
    short: "syn queue",
    counter: host::TCP_SYN_QUEUE_DROPS,
    share_of: ShareOf::Connections,
    of_machine: false,
    place: |host, _| format!("the SYN queue of a server on {host} was full"),
    next: |_, _| NextStep::new("sysctl -w net.ipv4.tcp_syncookies=1").expected(SYN_QUEUE_STEP),
};

/// What to do about a full accept queue.
pub(super) const ACCEPT_QUEUE_STEP: &str =
    "show the queue (Recv-Q) and its size (Send-Q); raise the server's backlog and net.core.somaxconn";
/// What to do about a full SYN queue. It holds as many connections as the accept queue (`inet_csk_reqsk_queue_is_full` of Linux).
pub(super) const SYN_QUEUE_STEP: &str =
    "answer SYNs without a place in the queue; or raise the server's backlog and net.core.somaxconn";
/// What to do about a SYN queue that keeps its last quarter for hosts that the kernel knows.
pub(super) const SYN_BACKLOG_STEP: &str = "answer SYNs without a place in the queue; or raise net.ipv4.tcp_max_syn_backlog: without cookies, three quarters of it are the limit";

impl FindingRule for HostDrops {
    fn id(&self) -> &'static str {
        self.id
    }

    fn effect_of(&self) -> &'static [&'static str] {
        // Means of events: a rule that drops everything, a link that is down.
        match self.id {
            "filter-drops" => &[PLANNED_EVENT],
            // An interface that comes up again knows no neighbor.
            NO_ROUTE_ID | NEIGHBOR_UNRESOLVED => &[PLANNED_EVENT, LINK_DOWN],
            _ => &[],
        }
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        // Frames need no IP stack.
        if seen.test.layer == Layer::Frames || seen.provokes_losses() {
            return Vec::new();
        }
        if !self.is_of(seen.test.layer) {
            return Vec::new();
        }
        // A probe may go to a port where nobody listens, whose refusal is its answer.
        if seen.test.layer == Layer::Path && (self.id == NO_LISTENER.id || self.share_of == ShareOf::Connections) {
            return Vec::new();
        }
        // Segments of TCP are no fragments: these waited in vain for up to 30 s (`net.ipv4.ipfrag_time`), since a test before this one.
        if self.id == REASSEMBLY.id && seen.test.layer != Layer::Udp {
            return Vec::new();
        }
        let one = self.of_machine && seen.is_one_machine();
        let hosts = seen.hosts().take(if one { 1 } else { usize::MAX });
        hosts.filter_map(|host| self.on_host(seen, host)).collect()
    }

    fn change(&self, finding: &Finding, seen: &TestEvidence<'_>) -> Option<Change> {
        let is_of = |drops: &Self| finding.id == drops.id;
        if is_of(&REASSEMBLY) {
            smaller_datagrams(seen)
        } else if is_of(&INGRESS_FILTER) {
            // It may be a policer, or a filter that drops at any rate.
            lower_rate(seen).map(Change::into_clue)
        } else {
            None
        }
    }
}

impl HostDrops {
    /// Whether the place can drop packets of a test of this layer: others are those of other programs.
    fn is_of(&self, layer: Layer) -> bool {
        match self.id {
            BAD_TCP_CHECKSUMS | "tcp-backlog-drops" => layer != Layer::Udp,
            _ if self.counter == host::UDP_NO_PORTS => matches!(layer, Layer::Udp | Layer::Path),
            _ => true,
        }
    }

    /// Returns the drops of a host by instance, those that grew most first. Packets of the IP version that the test does not use are those of others.
    fn grown<'a>(&self, seen: &TestEvidence<'a>, host: &str) -> Vec<(&'a str, u64)> {
        let mut grown = seen.growth_by_instance(host, self.counter);
        if let Some(address) = seen.reached_address().filter(|_| seen.has_counter_of(host, self.counter, OF_IPV6)) {
            grown.retain(|(of, _)| (*of == OF_IPV6) == address.is_ipv6());
        }
        if self.id == CONNTRACK_FULL {
            // The first packet of a connection that was refused counts as dropped too (`nf_ct_resolve_clash`,
            // net/netfilter/nf_conntrack_core.c).
            let n_refused = seen.growth(host, host::CONNTRACK_INSERT_FAILED, None);
            for (_, n) in &mut grown {
                *n = n.saturating_sub(n_refused);
            }
            grown.retain(|(_, n)| *n > 0);
        }
        grown
    }

    fn on_host(&self, seen: &TestEvidence<'_>, host: &str) -> Option<Finding> {
        let grown = self.grown(seen, host);
        let (instance, _) = grown.first()?;
        let n: u64 = grown.iter().map(|(_, n)| n).sum();
        // Single packets of other programs, or late ones of the test itself, are dropped on every host.
        // Of a series of probes, few are lost.
        let is_noise = self.share_of == ShareOf::Packets && n < PACKETS_MIN && seen.probes_lost().is_none();
        // A connect to an address without a route fails at once, and sends nothing again.
        let mut records = seen.trials().iter().flat_map(|trial| trial.records.values());
        let has_failed = records.any(|record| !record.errors.is_empty());
        let is_of_others = self.share_of == ShareOf::Packets && !has_failed && seen.lost_nothing();
        if is_noise || is_of_others {
            return None;
        }
        let evidence =
            |(instance, n): &(&str, u64)| counter_evidence(host, format!("{} {instance}", self.counter).trim_end(), *n);
        let connections = seen.total(fathom_model::Side::Initiator, count::CONNECTIONS);
        let report = DropReport {
            id: self.id,
            short: self.short,
            host,
            what: (self.place)(host, instance),
            evidence: grown.iter().map(evidence).collect(),
            n,
            of: match self.share_of {
                // A first packet that was sent again may be dropped again, so that more are dropped than there are connections.
                ShareOf::Connections | ShareOf::FirstPackets if connections > 0 => {
                    Some(connections).filter(|all| *all >= n).unwrap_or(0)
                }
                _ => match packets_received(seen, host) {
                    // What is dropped on the way in has arrived; more than arrived was on its way out.
                    received if received >= n => received,
                    _ => n + seen.growth(host, host::DEV_TX_FRAMES, None),
                },
            },
            next: Some((self.next)(seen, host)),
        };
        let share = ratio(n, packets_received(seen, host));
        let found = report.into_finding_by_time(seen)?;
        let is_harmless = match self.share_of {
            ShareOf::FirstPackets => !has_failed && all_opened(seen),
            ShareOf::Packets => !may_be_of_connections(seen, n, share),
            ShareOf::Connections => false,
        };
        Some(if is_harmless { Finding { severity: Severity::Remark, next: None, ..found } } else { found })
    }
}

/// Returns true if no connection of the test had to send a first packet again.
fn all_opened(seen: &TestEvidence<'_>) -> bool {
    let counts = |host: &str| seen.has_counter(host, host::TCP_SYN_RETRANS);
    let sent_again = |host: &str| seen.growth(host, host::TCP_SYN_RETRANS, None);
    seen.test.layer != Layer::Udp && seen.hosts().all(|host| counts(host) && sent_again(host) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn a_neighbor_that_never_answers_leads_what_did_not_begin() {
        let mut builder = RunBuilder::new();
        builder.http(0, 10);
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 30);
        builder.total("client", count::CONNECTIONS, 30);
        assert!(builder.finding("connect-delays").is_some());
        builder.host_counter("client", (host::NEIGHBOR_UNRESOLVED, ""), 30);
        let run = builder.analyzed();
        let holds_back = |finding: &&Finding| finding.severity >= fathom_model::Severity::HoldsBack;
        let holding: Vec<&str> = run.findings.iter().filter(holds_back).map(|finding| finding.id.as_str()).collect();
        assert_eq!(holding, [NEIGHBOR_UNRESOLVED, "nothing-done"]);
    }

    #[test]
    fn a_firewall_rule_that_drops_what_is_lost_leads_and_names_its_chain() {
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(10_000, 5_000)]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 10_000);
        builder.host_counter("target", (host::NFT_DROPPED, "ip t c 4"), 5);
        assert_eq!(builder.finding("filter-drops"), None, "single packets are dropped everywhere");
        builder.host_counter("target", (host::NFT_DROPPED, "ip t c 4"), 5_000);
        let run = builder.analyzed();
        let first = &run.findings[0];
        assert_eq!((first.id.as_str(), first.severity), ("filter-drops", Severity::HoldsBack), "{:#?}", run.findings);
        assert!(first.title.starts_with("a firewall rule on target (ip t c 4) drops packets"), "{}", first.title);
        assert_eq!(first.explains, Some(1.0));
    }

    #[test]
    fn a_few_drops_of_a_full_table_matter_to_a_test_that_opens_connections() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000_000]);
        builder.host_counter("target", (host::DEV_RX_FRAMES, "eth0"), 1_000_000);
        builder.host_counter("target", (host::CONNTRACK_DROPPED, ""), 50);
        let finding = builder.finding("conntrack-full").unwrap();
        assert_eq!(finding.severity, Severity::Remark, "of a million packets");
        builder.total("client", count::CONNECTIONS, 100);
        let finding = builder.finding("conntrack-full").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert_eq!(finding.next.unwrap().command, "sysctl -w net.netfilter.nf_conntrack_max=262144");
    }

    #[test]
    fn a_table_that_was_full_for_others_alone_is_a_remark() {
        let severity = |again: u64| {
            let mut builder = RunBuilder::new();
            builder.http(1_000, 100);
            builder.total("client", count::CONNECTIONS, 100);
            for host in ["client", "target"] {
                builder.host_counter(host, (host::TCP_SYN_RETRANS, ""), again);
            }
            builder.host_counter("target", (host::CONNTRACK_DROPPED, ""), 5_000);
            builder.finding(CONNTRACK_FULL).unwrap().severity
        };
        assert_eq!([severity(0), severity(30)], [Severity::Remark, Severity::HoldsBack]);
    }

    #[test]
    fn a_full_table_leads_what_it_kept_from_connecting() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, 200);
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 50);
        builder.host_counter("target", (host::CONNTRACK_DROPPED, ""), 70);
        let run = builder.analyzed();
        let found = |id: &str| run.findings.iter().find(|finding| finding.id == id).unwrap();
        assert_eq!((run.findings[0].id.as_str(), found("connect-delays").severity), (CONNTRACK_FULL, Severity::Remark));
        assert!(found("connect-delays").title.contains("as target dropped 70 by connection tracking"));
        builder.host_counter("client", (host::TCP_SYN_RETRANS, ""), 500);
        assert_eq!(
            builder.finding("connect-delays").unwrap().severity,
            Severity::HoldsBack,
            "most were lost elsewhere"
        );
    }

    #[test]
    fn a_connection_that_the_table_refused_is_told_apart_from_a_full_table() {
        let mut builder = RunBuilder::new();
        builder.http(1_000, 100);
        builder.total("client", count::CONNECTIONS, 100);
        builder.host_counter("target", (host::CONNTRACK_INSERT_FAILED, ""), 0);
        assert_eq!(builder.finding("conntrack-insert-failed"), None);
        builder.host_counter("target", (host::CONNTRACK_INSERT_FAILED, ""), 5);
        let finding = builder.finding("conntrack-insert-failed").unwrap();
        assert_eq!(finding.severity, Severity::HoldsBack);
        assert!(finding.title.ends_with("5 dropped of 100 (5.0 %)"), "{}", finding.title);
        assert_eq!(builder.finding("conntrack-full"), None);
    }

    #[test]
    fn a_counter_of_the_whole_machine_is_told_once() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        builder.one_machine();
        for host in ["client", "target"] {
            builder.host_counter(host, (host::NEIGHBOR_UNRESOLVED, ""), 20);
        }
        let told =
            builder.analyzed().findings.into_iter().filter(|finding| finding.id == "neighbor-unresolved").count();
        assert_eq!(told, 1);
    }

    #[test]
    fn packets_of_another_protocol_or_version_of_ip_are_those_of_other_programs() {
        let mut builder = RunBuilder::new();
        builder.tcp_stream(&[1_000]);
        builder.host_counter("client", (host::UDP_NO_PORTS, ""), 400);
        assert_eq!(builder.finding("no-listener"), None, "a stream has no datagrams");
        let mut builder = RunBuilder::new();
        builder.udp_stream(&[(1_000, 500)]);
        builder.host_counter("client", (host::TCP_BACKLOG_DROPS, ""), 400);
        assert_eq!(builder.finding("tcp-backlog-drops"), None);
        builder.host_counter("client", (host::IP_OUT_NO_ROUTES, ""), 0);
        builder.host_counter("client", (host::IP_OUT_NO_ROUTES, "ipv6"), 400);
        assert_eq!(builder.finding(NO_ROUTE_ID), None, "names with an address of IPv6 are looked up");
        builder.host_counter("client", (host::IP_OUT_NO_ROUTES, ""), 400);
        assert!(builder.finding(NO_ROUTE_ID).is_some());
    }
}
