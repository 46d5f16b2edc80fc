//! IP and UDP over IPv6: `/proc/net/snmp6`, written by `net/ipv6/proc.c`, one name and its value per line.
//!
//! The counters are a second instance, `ipv6`, of those for IPv4, so their sum is that of the host. TCP has no second instance:
//! the kernel counts both versions together.

use std::{io, path::Path};

use fathom_model::names::host;

use super::{CounterSink, Source, counters_of};
use crate::procfs::{ProcFile, fields, lines, number};

/// The instance of these counters.
const OF: &str = "ipv6";

/// Each counter with its name in the file.
const WANTED: [(&str, &str); 25] = [
    (host::IP_IN_RECEIVES, "Ip6InReceives"),
    (host::IP_IN_DELIVERS, "Ip6InDelivers"),
    (host::IP_FORWARDED, "Ip6OutForwDatagrams"),
    (host::IP_IN_UNKNOWN_PROTOCOLS, "Ip6InUnknownProtos"),
    (host::IP_IN_HEADER_ERRORS, "Ip6InHdrErrors"),
    (host::IP_IN_ADDRESS_ERRORS, "Ip6InAddrErrors"),
    (host::IP_IN_NO_ROUTES, "Ip6InNoRoutes"),
    (host::IP_IN_DISCARDS, "Ip6InDiscards"),
    (host::IP_OUT_DISCARDS, "Ip6OutDiscards"),
    (host::IP_OUT_NO_ROUTES, "Ip6OutNoRoutes"),
    (host::IP_FRAGMENTS_RECEIVED, "Ip6ReasmReqds"),
    (host::IP_REASSEMBLED, "Ip6ReasmOKs"),
    (host::IP_REASSEMBLY_FAILS, "Ip6ReasmFails"),
    (host::IP_FRAGMENTS_CREATED, "Ip6FragCreates"),
    (host::IP_FRAGMENTATION_FAILS, "Ip6FragFails"),
    (host::ICMP_IN_UNREACHABLE, "Icmp6InDestUnreachs"),
    (host::ICMP_OUT_UNREACHABLE, "Icmp6OutDestUnreachs"),
    (host::ICMP_IN_TIME_EXCEEDED, "Icmp6InTimeExcds"),
    (host::UDP_IN_DATAGRAMS, "Udp6InDatagrams"),
    (host::UDP_NO_PORTS, "Udp6NoPorts"),
    (host::UDP_OUT_DATAGRAMS, "Udp6OutDatagrams"),
    (host::UDP_RCVBUF_ERRORS, "Udp6RcvbufErrors"),
    (host::UDP_MEM_ERRORS, "Udp6MemErrors"),
    (host::UDP_SNDBUF_ERRORS, "Udp6SndbufErrors"),
    (host::UDP_IN_CSUM_ERRORS, "Udp6InCsumErrors"),
];

pub(super) struct Snmp6(ProcFile);

impl Snmp6 {
    pub(super) const fn new() -> Self {
        Self(ProcFile::new("proc/net/snmp6"))
    }
}

impl Source for Snmp6 {
    fn name(&self) -> &'static str {
        "snmp6"
    }

    fn counters(&self) -> &'static [&'static str] {
        const { &counters_of(&WANTED) }
    }

    fn sample(&mut self, root: &Path, out: &mut dyn CounterSink) -> io::Result<()> {
        for line in lines(self.0.read(root)?) {
            let mut fields = fields(line);
            let (Some(name), Some(value)) = (fields.next(), fields.next()) else { continue };
            let asked = WANTED.iter().find(|(_, wanted)| wanted.as_bytes() == name);
            if let (Some((counter, _)), Some(value)) = (asked, number(value)) {
                out.value(counter, OF, value);
            }
        }
        Ok(())
    }
}
