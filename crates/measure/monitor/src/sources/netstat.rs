//! Linux counters beyond the MIBs: `/proc/net/netstat`, written by `net/ipv4/proc.c`.

use fathom_model::names::host;

use super::{
    counters_of,
    named_lines::{NamedCounter, NamedLines},
};
use crate::procfs::ProcFile;

const COUNTERS: [NamedCounter; 18] = [
    (host::IP_IN_NO_ROUTES, ("IpExt:", "InNoRoutes")),
    (host::IP_IN_CSUM_ERRORS, ("IpExt:", "InCsumErrors")),
    (host::TCP_DSACK_SEGMENTS, ("TcpExt:", "TCPDSACKRecvSegs")),
    (host::TCP_TIMEOUTS, ("TcpExt:", "TCPTimeouts")),
    (host::TCP_LOSS_PROBES, ("TcpExt:", "TCPLossProbes")),
    (host::TCP_REORDERINGS, ("TcpExt:", "TCPSACKReorder")),
    (host::TCP_LISTEN_OVERFLOWS, ("TcpExt:", "ListenOverflows")),
    (host::TCP_LISTEN_DROPS, ("TcpExt:", "ListenDrops")),
    (host::TCP_PRUNED, ("TcpExt:", "PruneCalled")),
    (host::TCP_SYN_RETRANS, ("TcpExt:", "TCPSynRetrans")),
    (host::TCP_SYN_COOKIES, ("TcpExt:", "SyncookiesSent")),
    (host::TCP_SYN_QUEUE_DROPS, ("TcpExt:", "TCPReqQFullDrop")),
    (host::TCP_DELAYED_ACKS, ("TcpExt:", "DelayedACKs")),
    (host::TCP_MEMORY_PRESSURES, ("TcpExt:", "TCPMemoryPressures")),
    (host::TCP_BACKLOG_DROPS, ("TcpExt:", "TCPBacklogDrop")),
    (host::TCP_RECEIVE_QUEUE_DROPS, ("TcpExt:", "TCPRcvQDrop")),
    (host::TCP_TIME_WAIT_OVERFLOWS, ("TcpExt:", "TCPTimeWaitOverflow")),
    (host::IP_RP_FILTER_DROPPED, ("TcpExt:", "IPReversePathFilter")),
];

pub(super) const fn source() -> NamedLines {
    NamedLines::new("netstat", ProcFile::new("proc/net/netstat"), &COUNTERS, const { &counters_of(&COUNTERS) })
}
