//! The tables of a view: which counters a column is made of, and how they are told.

use fathom_model::names::host::{
    CPU_IDLE_NS, CPU_IRQ_NS, CPU_SOFTIRQ_NS, CPU_STEAL_NS, CPU_SYSTEM_NS, CPU_USER_NS, DEV_RX_BYTES, DEV_RX_DROPPED,
    DEV_RX_ERRORS, DEV_RX_FRAMES, DEV_TX_BYTES, DEV_TX_DROPPED, DEV_TX_ERRORS, DEV_TX_FRAMES, QDISC_BACKLOG_BYTES,
    QDISC_DROPPED, QDISC_IN_DROPPED, QDISC_OVERLIMITS, SOCK_TCP_IN_USE, SOCK_TCP_MEMORY_BYTES, SOCK_TCP_TIME_WAIT,
    SOCK_UDP_IN_USE, SOFTNET_DROPPED, SOFTNET_PROCESSED, SOFTNET_SQUEEZED, TCP_IN_SEGMENTS, TCP_LISTEN_OVERFLOWS,
    TCP_OUT_RESETS, TCP_OUT_SEGMENTS, TCP_RETRANS_SEGMENTS, TCP_SYN_RETRANS, TCP_TIMEOUTS, UDP_IN_CSUM_ERRORS,
    UDP_IN_DATAGRAMS, UDP_NO_PORTS, UDP_OUT_DATAGRAMS, UDP_RCVBUF_ERRORS,
};

/// How a column follows from counters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Quantity {
    /// Bytes of a counter as bits per second.
    BitRate(&'static str),
    /// The growth of the counters per second.
    Rate(&'static [&'static str]),
    /// The growth of some counters as a share of the growth of others.
    Share(&'static [&'static str], &'static [&'static str]),
    /// The newest value of a gauge.
    Count(&'static str),
    /// The newest value of a gauge in bytes.
    Bytes(&'static str),
}

/// Whether more of a quantity is a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sense {
    /// It is work.
    Work,
    /// It is a fault if it is not zero.
    Fault,
}

/// A column of a table.
#[derive(Debug)]
pub(crate) struct Column {
    /// The key in documents, with the unit.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) quantity: Quantity,
    pub(crate) sense: Sense,
}

/// A table with a row per instance of a counter.
#[derive(Debug)]
pub(crate) struct TableShape {
    /// The key in documents.
    pub(crate) id: &'static str,
    /// The title of its first column.
    pub(crate) title: &'static str,
    /// The counter whose instances are the rows; the whole host is one row.
    pub(crate) rows_of: &'static str,
    pub(crate) columns: &'static [Column],
}

const fn work(id: &'static str, title: &'static str, quantity: Quantity) -> Column {
    Column { id, title, quantity, sense: Sense::Work }
}

const fn fault(id: &'static str, title: &'static str, quantity: Quantity) -> Column {
    Column { id, title, quantity, sense: Sense::Fault }
}

/// All states of a core: their growth is the time that passed.
pub(crate) const CORE_TIME: &[&str] =
    &[CPU_USER_NS, CPU_SYSTEM_NS, CPU_SOFTIRQ_NS, CPU_IRQ_NS, CPU_STEAL_NS, CPU_IDLE_NS];

/// All tables in their order.
pub(crate) const TABLES: [TableShape; 4] = [
    TableShape {
        id: "interfaces",
        title: "interface",
        rows_of: DEV_RX_BYTES,
        columns: &[
            work("rx_bps", "rx", Quantity::BitRate(DEV_RX_BYTES)),
            work("rx_pps", "rx frames", Quantity::Rate(&[DEV_RX_FRAMES])),
            work("tx_bps", "tx", Quantity::BitRate(DEV_TX_BYTES)),
            work("tx_pps", "tx frames", Quantity::Rate(&[DEV_TX_FRAMES])),
            fault("rx_dropped_per_sec", "rx drops", Quantity::Rate(&[DEV_RX_DROPPED])),
            fault("tx_dropped_per_sec", "tx drops", Quantity::Rate(&[DEV_TX_DROPPED])),
            fault("errors_per_sec", "errors", Quantity::Rate(&[DEV_RX_ERRORS, DEV_TX_ERRORS])),
            fault("queue_dropped_per_sec", "queue drops", Quantity::Rate(&[QDISC_DROPPED, QDISC_IN_DROPPED])),
            work("queue_overlimits_per_sec", "held back", Quantity::Rate(&[QDISC_OVERLIMITS])),
            work("queue_backlog_bytes", "queued", Quantity::Bytes(QDISC_BACKLOG_BYTES)),
        ],
    },
    TableShape {
        id: "cores",
        title: "core",
        rows_of: CPU_IDLE_NS,
        columns: &[
            work("busy", "busy", Quantity::Share(&[CPU_USER_NS, CPU_SYSTEM_NS, CPU_SOFTIRQ_NS, CPU_IRQ_NS], CORE_TIME)),
            work("user", "user", Quantity::Share(&[CPU_USER_NS], CORE_TIME)),
            work("system", "system", Quantity::Share(&[CPU_SYSTEM_NS], CORE_TIME)),
            work("softirq", "softirq", Quantity::Share(&[CPU_SOFTIRQ_NS], CORE_TIME)),
            work("irq", "irq", Quantity::Share(&[CPU_IRQ_NS], CORE_TIME)),
            fault("steal", "steal", Quantity::Share(&[CPU_STEAL_NS], CORE_TIME)),
            work("packets_pps", "packets", Quantity::Rate(&[SOFTNET_PROCESSED])),
            fault("backlog_dropped_per_sec", "backlog drops", Quantity::Rate(&[SOFTNET_DROPPED])),
            work("squeezed_per_sec", "squeezed", Quantity::Rate(&[SOFTNET_SQUEEZED])),
        ],
    },
    TableShape {
        id: "tcp",
        title: "tcp",
        rows_of: TCP_OUT_SEGMENTS,
        columns: &[
            work("out_per_sec", "segments out", Quantity::Rate(&[TCP_OUT_SEGMENTS])),
            work("in_per_sec", "in", Quantity::Rate(&[TCP_IN_SEGMENTS])),
            fault("resent", "resent", Quantity::Share(&[TCP_RETRANS_SEGMENTS], &[TCP_OUT_SEGMENTS])),
            fault("timeouts_per_sec", "timeouts", Quantity::Rate(&[TCP_TIMEOUTS])),
            fault("syn_resent_per_sec", "SYN resent", Quantity::Rate(&[TCP_SYN_RETRANS])),
            fault("listen_overflows_per_sec", "accept full", Quantity::Rate(&[TCP_LISTEN_OVERFLOWS])),
            work("resets_per_sec", "resets", Quantity::Rate(&[TCP_OUT_RESETS])),
            work("sockets", "sockets", Quantity::Count(SOCK_TCP_IN_USE)),
            work("time_wait", "time-wait", Quantity::Count(SOCK_TCP_TIME_WAIT)),
            work("memory_bytes", "memory", Quantity::Bytes(SOCK_TCP_MEMORY_BYTES)),
        ],
    },
    TableShape {
        id: "udp",
        title: "udp",
        rows_of: UDP_IN_DATAGRAMS,
        columns: &[
            work("out_per_sec", "datagrams out", Quantity::Rate(&[UDP_OUT_DATAGRAMS])),
            work("in_per_sec", "in", Quantity::Rate(&[UDP_IN_DATAGRAMS])),
            fault("buffer_full_per_sec", "buffer full", Quantity::Rate(&[UDP_RCVBUF_ERRORS])),
            fault("no_listener_per_sec", "no listener", Quantity::Rate(&[UDP_NO_PORTS])),
            fault("checksum_per_sec", "checksum", Quantity::Rate(&[UDP_IN_CSUM_ERRORS])),
            work("sockets", "sockets", Quantity::Count(SOCK_UDP_IN_USE)),
        ],
    },
];
