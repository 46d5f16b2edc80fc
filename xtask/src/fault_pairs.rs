//! Two faults at once, each visible beside the other: both must be named.

use crate::fault_case::{Case, PLANNED_ADDRESS, PlantedFault, SLOW};

/// A fault with its host.
type Fault = (&'static [&'static str], &'static str);
/// The faults of a pair, the test, and the findings that name each of its two causes.
type PairRow = (&'static [Fault], &'static str, [&'static [&'static str]; 2]);

const PAIRS: &[PairRow] = &[
    (&[(&["impair:loss=2%,duplicate=2%"], "")], "udp --rate 50M", [&["loss"], &["duplicates"]]),
    (&[(&["impair:loss=2%,corrupt=1%"], "")], "udp --rate 50M", [&["loss"], &["bad-checksums"]]),
    (&[(&["impair:reorder=2%,corrupt=1%"], "")], "udp --rate 50M", [&["reordering"], &["bad-checksums"]]),
    (&[(&["impair:duplicate=2%,reorder=2%"], "")], "udp --rate 50M", [&["duplicates"], &["reordering"]]),
    (&[(&["impair:outage=500ms,duplicate=2%"], "")], "udp --rate 20M", [&["outage"], &["duplicates"]]),
    (
        &[(&["impair:duplicate=2%"], ""), (&["firewall", "permille=50"], "b")],
        "udp --rate 50M",
        [&["filter-drops"], &["duplicates"]],
    ),
    (
        &[(&["impair:reorder=2%"], ""), (&["policer", "rate=2000"], "b")],
        "udp --rate 40M",
        [&["rate-limit"], &["reordering"]],
    ),
    (
        &[(&["shaper", "rate=50mbit"], "a"), (&["firewall", "permille=50"], "b")],
        "udp --rate 100M",
        [&["local-shaper"], &["filter-drops"]],
    ),
    (
        &[(&["shaper", "rate=50mbit"], "a"), (&["loss", "permille=50"], "b")],
        "udp --rate 100M",
        [&["local-shaper"], &["loss"]],
    ),
    (
        &[(&["busy"], "a"), (&["shaper", "rate=50mbit"], "a")],
        "udp --rate 100M",
        [&["local-shaper"], &["other-programs"]],
    ),
    (
        &[(&[SLOW], ""), (&["impair:loss=2%"], "")],
        "http --connections 10 --delay 20ms",
        [&["server-time"], &["retransmissions"]],
    ),
    // A socket that is there already outlives its address.
    (
        &[(&[PLANNED_ADDRESS], "")],
        "udp --rate 20M --warmup 0s --at '300ms on=b ip address del 198.18.0.2/24 dev eth0'",
        [&["planned-event"], &["address-not-local"]],
    ),
];

/// All pairs.
pub(crate) fn all() -> Vec<Case> {
    let case = |(faults, test, expected): &PairRow| Case {
        faults: faults.iter().map(|(words, host)| PlantedFault::new(words, host)).collect(),
        test: (*test).to_owned(),
        expected: expected.to_vec(),
        is_drawn: false,
    };
    PAIRS.iter().map(case).collect()
}
