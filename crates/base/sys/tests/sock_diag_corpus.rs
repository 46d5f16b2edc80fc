//! The seeds of the fuzz target of messages about sockets.

#[path = "../../../../fuzz/checks/sock_diag.rs"]
mod check;

use fathom_sys::netlink::sock_diag::DiagSocket;

#[test]
fn every_seed_is_a_socket_exactly_if_its_header_is_whole() {
    for seed in fathom_testkit::corpus::seeds("sock_diag", 16) {
        check::sock_diag(&seed);
        (0..seed.len()).for_each(|length| check::sock_diag(&seed[..length]));
    }
}

#[test]
fn the_seeds_hold_connections_with_counters() {
    let seeds = fathom_testkit::corpus::seeds("sock_diag", 16);
    let n_counted = seeds.iter().filter_map(|seed| DiagSocket::parse(seed)?.counts?.received).count();
    assert!(n_counted >= 4, "{n_counted}");
}
