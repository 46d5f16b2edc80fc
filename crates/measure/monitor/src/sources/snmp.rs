//! The MIB counters of IP and UDP over IPv4, and of TCP over both versions: `/proc/net/snmp`, written by `net/ipv4/proc.c`.

use fathom_model::names::host;

use super::{
    counters_of,
    named_lines::{NamedCounter, NamedLines},
};
use crate::procfs::ProcFile;

const COUNTERS: [NamedCounter; 30] = [
    (host::IP_IN_RECEIVES, ("Ip:", "InReceives")),
    (host::IP_IN_DELIVERS, ("Ip:", "InDelivers")),
    (host::IP_FORWARDED, ("Ip:", "ForwDatagrams")),
    (host::IP_IN_UNKNOWN_PROTOCOLS, ("Ip:", "InUnknownProtos")),
    (host::IP_IN_HEADER_ERRORS, ("Ip:", "InHdrErrors")),
    (host::IP_IN_ADDRESS_ERRORS, ("Ip:", "InAddrErrors")),
    (host::IP_IN_DISCARDS, ("Ip:", "InDiscards")),
    (host::IP_OUT_DISCARDS, ("Ip:", "OutDiscards")),
    (host::IP_OUT_NO_ROUTES, ("Ip:", "OutNoRoutes")),
    (host::IP_FRAGMENTS_RECEIVED, ("Ip:", "ReasmReqds")),
    (host::IP_REASSEMBLED, ("Ip:", "ReasmOKs")),
    (host::IP_REASSEMBLY_FAILS, ("Ip:", "ReasmFails")),
    (host::IP_FRAGMENTS_CREATED, ("Ip:", "FragCreates")),
    (host::IP_FRAGMENTATION_FAILS, ("Ip:", "FragFails")),
    (host::ICMP_IN_UNREACHABLE, ("Icmp:", "InDestUnreachs")),
    (host::ICMP_OUT_UNREACHABLE, ("Icmp:", "OutDestUnreachs")),
    (host::ICMP_IN_TIME_EXCEEDED, ("Icmp:", "InTimeExcds")),
    (host::TCP_IN_SEGMENTS, ("Tcp:", "InSegs")),
    (host::TCP_OUT_SEGMENTS, ("Tcp:", "OutSegs")),
    (host::TCP_RETRANS_SEGMENTS, ("Tcp:", "RetransSegs")),
    (host::TCP_IN_ERRORS, ("Tcp:", "InErrs")),
    (host::TCP_IN_CSUM_ERRORS, ("Tcp:", "InCsumErrors")),
    (host::TCP_OUT_RESETS, ("Tcp:", "OutRsts")),
    (host::UDP_IN_DATAGRAMS, ("Udp:", "InDatagrams")),
    (host::UDP_NO_PORTS, ("Udp:", "NoPorts")),
    (host::UDP_OUT_DATAGRAMS, ("Udp:", "OutDatagrams")),
    (host::UDP_RCVBUF_ERRORS, ("Udp:", "RcvbufErrors")),
    (host::UDP_MEM_ERRORS, ("Udp:", "MemErrors")),
    (host::UDP_SNDBUF_ERRORS, ("Udp:", "SndbufErrors")),
    (host::UDP_IN_CSUM_ERRORS, ("Udp:", "InCsumErrors")),
];

pub(super) const fn source() -> NamedLines {
    NamedLines::new("snmp", ProcFile::new("proc/net/snmp"), &COUNTERS, const { &counters_of(&COUNTERS) })
}
