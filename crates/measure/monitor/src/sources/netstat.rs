//! Linux counters beyond the MIBs: `/proc/net/netstat`, written by `net/ipv4/proc.c`.

use fathom_model::names::host;

use super::{
    counters_of,
    named::{Named, Wanted},
};
use crate::procfs::ProcFile;

const WANTED: [Wanted; 6] = [
    (host::IP_IN_NO_ROUTES, ("IpExt:", "InNoRoutes")),
    (host::TCP_DSACK_SEGMENTS, ("TcpExt:", "TCPDSACKRecvSegs")),
    (host::TCP_TIMEOUTS, ("TcpExt:", "TCPTimeouts")),
    (host::TCP_LISTEN_OVERFLOWS, ("TcpExt:", "ListenOverflows")),
    (host::TCP_LISTEN_DROPS, ("TcpExt:", "ListenDrops")),
    (host::TCP_PRUNED, ("TcpExt:", "PruneCalled")),
];

pub(super) const fn source() -> Named {
    Named {
        name: "netstat",
        file: ProcFile::new("proc/net/netstat"),
        wanted: &WANTED,
        counters: const { &counters_of(&WANTED) },
    }
}
