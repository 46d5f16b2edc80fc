//! The reports of sar as tables: the keyword, the rows, and what each column is made of.

/// What the rows of a report are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowsOf {
    Host,
    Interfaces,
    Cores,
    Softnet,
}

/// How a column follows from counters.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// Growth per second.
    Rate(&'static [&'static str]),
    /// Growth per second in units of 1024.
    Kilobytes(&'static [&'static str]),
    /// The newest value; in the average, the mean of all.
    Gauge(&'static [&'static str]),
    /// The growth of the first keys without that of the second, as percentage of all ticks.
    Share(&'static [&'static str], &'static [&'static str]),
    /// The busier direction as percentage of the speed of the link.
    Utilization,
}

/// A column of a report.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    pub(super) value: Value,
}

/// A report of sar.
#[derive(Debug)]
pub(super) struct Report {
    /// The keyword after `-n`; the two of `-u` have names that cannot be typed there.
    pub(super) keyword: &'static str,
    /// The file below `/proc` that has its counters.
    pub(super) file: &'static str,
    pub(super) rows: RowsOf,
    /// The title of the column that names the row; empty for a report with a single row.
    pub(super) row_title: &'static str,
    pub(super) columns: &'static [Column],
}

impl Value {
    /// Returns the counters that it is made of.
    pub(super) fn keys(self) -> impl Iterator<Item = &'static str> {
        let (keys, less): (&[_], &[_]) = match self {
            Self::Rate(keys) | Self::Kilobytes(keys) | Self::Gauge(keys) => (keys, &[]),
            Self::Share(keys, less) => (keys, less),
            Self::Utilization => (&["rx_bytes", "tx_bytes"], &[]),
        };
        keys.iter().chain(less).copied()
    }
}

impl Report {
    /// Returns the counters of all columns.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> {
        self.columns.iter().flat_map(|column| column.value.keys())
    }
}

const fn rate(title: &'static str, keys: &'static [&'static str]) -> Column {
    Column { title, value: Value::Rate(keys) }
}

const fn kilobytes(title: &'static str, keys: &'static [&'static str]) -> Column {
    Column { title, value: Value::Kilobytes(keys) }
}

const fn gauge(title: &'static str, keys: &'static [&'static str]) -> Column {
    Column { title, value: Value::Gauge(keys) }
}

const fn share(title: &'static str, keys: &'static [&'static str]) -> Column {
    Column { title, value: Value::Share(keys, &[]) }
}

/// User and nice time include that of guests, which has columns of its own.
const fn without(title: &'static str, keys: &'static [&'static str], less: &'static [&'static str]) -> Column {
    Column { title, value: Value::Share(keys, less) }
}

/// The keyword of `-u`.
pub(super) const CPU: &str = "-u";
/// The keyword of `-u ALL`.
pub(super) const CPU_ALL: &str = "-u ALL";

/// All reports, in the order in which sar prints them.
pub(super) const REPORTS: [Report; 19] = [
    Report {
        keyword: CPU,
        file: "stat",
        rows: RowsOf::Cores,
        row_title: "CPU",
        columns: &[
            share("%user", &["user"]),
            share("%nice", &["nice"]),
            share("%system", &["system", "irq", "softirq"]),
            share("%iowait", &["iowait"]),
            share("%steal", &["steal"]),
            share("%idle", &["idle"]),
        ],
    },
    Report {
        keyword: CPU_ALL,
        file: "stat",
        rows: RowsOf::Cores,
        row_title: "CPU",
        columns: &[
            without("%usr", &["user"], &["guest"]),
            without("%nice", &["nice"], &["guest_nice"]),
            share("%sys", &["system"]),
            share("%iowait", &["iowait"]),
            share("%steal", &["steal"]),
            share("%irq", &["irq"]),
            share("%soft", &["softirq"]),
            share("%guest", &["guest"]),
            share("%gnice", &["guest_nice"]),
            share("%idle", &["idle"]),
        ],
    },
    Report {
        keyword: "DEV",
        file: "net/dev",
        rows: RowsOf::Interfaces,
        row_title: "IFACE",
        columns: &[
            rate("rxpck/s", &["rx_packets"]),
            rate("txpck/s", &["tx_packets"]),
            kilobytes("rxkB/s", &["rx_bytes"]),
            kilobytes("txkB/s", &["tx_bytes"]),
            rate("rxcmp/s", &["rx_compressed"]),
            rate("txcmp/s", &["tx_compressed"]),
            rate("rxmcst/s", &["rx_multicast"]),
            Column { title: "%ifutil", value: Value::Utilization },
        ],
    },
    Report {
        keyword: "EDEV",
        file: "net/dev",
        rows: RowsOf::Interfaces,
        row_title: "IFACE",
        columns: &[
            rate("rxerr/s", &["rx_errors"]),
            rate("txerr/s", &["tx_errors"]),
            rate("coll/s", &["tx_collisions"]),
            rate("rxdrop/s", &["rx_dropped"]),
            rate("txdrop/s", &["tx_dropped"]),
            rate("txcarr/s", &["tx_carrier"]),
            rate("rxfram/s", &["rx_frame"]),
            rate("rxfifo/s", &["rx_fifo"]),
            rate("txfifo/s", &["tx_fifo"]),
        ],
    },
    Report {
        keyword: "SOCK",
        file: "net/sockstat",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            gauge("totsck", &["sockets.used"]),
            gauge("tcpsck", &["TCP.inuse"]),
            gauge("udpsck", &["UDP.inuse"]),
            gauge("rawsck", &["RAW.inuse"]),
            gauge("ip-frag", &["FRAG.inuse"]),
            gauge("tcp-tw", &["TCP.tw"]),
        ],
    },
    Report {
        keyword: "IP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("irec/s", &["Ip.InReceives"]),
            rate("fwddgm/s", &["Ip.ForwDatagrams"]),
            rate("idel/s", &["Ip.InDelivers"]),
            rate("orq/s", &["Ip.OutRequests"]),
            rate("asmrq/s", &["Ip.ReasmReqds"]),
            rate("asmok/s", &["Ip.ReasmOKs"]),
            rate("fragok/s", &["Ip.FragOKs"]),
            rate("fragcrt/s", &["Ip.FragCreates"]),
        ],
    },
    Report {
        keyword: "EIP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("ihdrerr/s", &["Ip.InHdrErrors"]),
            rate("iadrerr/s", &["Ip.InAddrErrors"]),
            rate("iukwnpr/s", &["Ip.InUnknownProtos"]),
            rate("idisc/s", &["Ip.InDiscards"]),
            rate("odisc/s", &["Ip.OutDiscards"]),
            rate("onort/s", &["Ip.OutNoRoutes"]),
            rate("asmf/s", &["Ip.ReasmFails"]),
            rate("fragf/s", &["Ip.FragFails"]),
        ],
    },
    Report {
        keyword: "ICMP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("imsg/s", &["Icmp.InMsgs"]),
            rate("omsg/s", &["Icmp.OutMsgs"]),
            rate("iech/s", &["Icmp.InEchos"]),
            rate("iechr/s", &["Icmp.InEchoReps"]),
            rate("oech/s", &["Icmp.OutEchos"]),
            rate("oechr/s", &["Icmp.OutEchoReps"]),
            rate("itm/s", &["Icmp.InTimestamps"]),
            rate("itmr/s", &["Icmp.InTimestampReps"]),
            rate("otm/s", &["Icmp.OutTimestamps"]),
            rate("otmr/s", &["Icmp.OutTimestampReps"]),
            rate("iadrmk/s", &["Icmp.InAddrMasks"]),
            rate("iadrmkr/s", &["Icmp.InAddrMaskReps"]),
            rate("oadrmk/s", &["Icmp.OutAddrMasks"]),
            rate("oadrmkr/s", &["Icmp.OutAddrMaskReps"]),
        ],
    },
    Report {
        keyword: "EICMP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("ierr/s", &["Icmp.InErrors"]),
            rate("oerr/s", &["Icmp.OutErrors"]),
            rate("idstunr/s", &["Icmp.InDestUnreachs"]),
            rate("odstunr/s", &["Icmp.OutDestUnreachs"]),
            rate("itmex/s", &["Icmp.InTimeExcds"]),
            rate("otmex/s", &["Icmp.OutTimeExcds"]),
            rate("iparmpb/s", &["Icmp.InParmProbs"]),
            rate("oparmpb/s", &["Icmp.OutParmProbs"]),
            rate("isrcq/s", &["Icmp.InSrcQuenchs"]),
            rate("osrcq/s", &["Icmp.OutSrcQuenchs"]),
            rate("iredir/s", &["Icmp.InRedirects"]),
            rate("oredir/s", &["Icmp.OutRedirects"]),
        ],
    },
    Report {
        keyword: "TCP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("active/s", &["Tcp.ActiveOpens"]),
            rate("passive/s", &["Tcp.PassiveOpens"]),
            rate("iseg/s", &["Tcp.InSegs"]),
            rate("oseg/s", &["Tcp.OutSegs"]),
        ],
    },
    Report {
        keyword: "ETCP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("atmptf/s", &["Tcp.AttemptFails"]),
            rate("estres/s", &["Tcp.EstabResets"]),
            rate("retrans/s", &["Tcp.RetransSegs"]),
            rate("isegerr/s", &["Tcp.InErrs"]),
            rate("orsts/s", &["Tcp.OutRsts"]),
        ],
    },
    Report {
        keyword: "UDP",
        file: "net/snmp",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("idgm/s", &["Udp.InDatagrams"]),
            rate("odgm/s", &["Udp.OutDatagrams"]),
            rate("noport/s", &["Udp.NoPorts"]),
            rate("idgmerr/s", &["Udp.InErrors"]),
        ],
    },
    Report {
        keyword: "SOCK6",
        file: "net/sockstat6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            gauge("tcp6sck", &["TCP6.inuse"]),
            gauge("udp6sck", &["UDP6.inuse"]),
            gauge("raw6sck", &["RAW6.inuse"]),
            gauge("ip6-frag", &["FRAG6.inuse"]),
        ],
    },
    Report {
        keyword: "IP6",
        file: "net/snmp6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("irec6/s", &["Ip6InReceives"]),
            rate("fwddgm6/s", &["Ip6OutForwDatagrams"]),
            rate("idel6/s", &["Ip6InDelivers"]),
            rate("orq6/s", &["Ip6OutRequests"]),
            rate("asmrq6/s", &["Ip6ReasmReqds"]),
            rate("asmok6/s", &["Ip6ReasmOKs"]),
            rate("imcpck6/s", &["Ip6InMcastPkts"]),
            rate("omcpck6/s", &["Ip6OutMcastPkts"]),
            rate("fragok6/s", &["Ip6FragOKs"]),
            rate("fragcr6/s", &["Ip6FragCreates"]),
        ],
    },
    Report {
        keyword: "EIP6",
        file: "net/snmp6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("ihdrer6/s", &["Ip6InHdrErrors"]),
            rate("iadrer6/s", &["Ip6InAddrErrors"]),
            rate("iukwnp6/s", &["Ip6InUnknownProtos"]),
            rate("i2big6/s", &["Ip6InTooBigErrors"]),
            rate("idisc6/s", &["Ip6InDiscards"]),
            rate("odisc6/s", &["Ip6OutDiscards"]),
            rate("inort6/s", &["Ip6InNoRoutes"]),
            rate("onort6/s", &["Ip6OutNoRoutes"]),
            rate("asmf6/s", &["Ip6ReasmFails"]),
            rate("fragf6/s", &["Ip6FragFails"]),
            rate("itrpck6/s", &["Ip6InTruncatedPkts"]),
        ],
    },
    Report {
        keyword: "ICMP6",
        file: "net/snmp6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("imsg6/s", &["Icmp6InMsgs"]),
            rate("omsg6/s", &["Icmp6OutMsgs"]),
            rate("iech6/s", &["Icmp6InEchos"]),
            rate("iechr6/s", &["Icmp6InEchoReplies"]),
            rate("oechr6/s", &["Icmp6OutEchoReplies"]),
            rate("igmbq6/s", &["Icmp6InGroupMembQueries"]),
            rate("igmbr6/s", &["Icmp6InGroupMembResponses"]),
            rate("ogmbr6/s", &["Icmp6OutGroupMembResponses"]),
            rate("igmbrd6/s", &["Icmp6InGroupMembReductions"]),
            rate("ogmbrd6/s", &["Icmp6OutGroupMembReductions"]),
            rate("irtsol6/s", &["Icmp6InRouterSolicits"]),
            rate("ortsol6/s", &["Icmp6OutRouterSolicits"]),
            rate("irtad6/s", &["Icmp6InRouterAdvertisements"]),
            rate("inbsol6/s", &["Icmp6InNeighborSolicits"]),
            rate("onbsol6/s", &["Icmp6OutNeighborSolicits"]),
            rate("inbad6/s", &["Icmp6InNeighborAdvertisements"]),
            rate("onbad6/s", &["Icmp6OutNeighborAdvertisements"]),
        ],
    },
    Report {
        keyword: "EICMP6",
        file: "net/snmp6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("ierr6/s", &["Icmp6InErrors"]),
            rate("idtunr6/s", &["Icmp6InDestUnreachs"]),
            rate("odtunr6/s", &["Icmp6OutDestUnreachs"]),
            rate("itmex6/s", &["Icmp6InTimeExcds"]),
            rate("otmex6/s", &["Icmp6OutTimeExcds"]),
            rate("iprmpb6/s", &["Icmp6InParmProblems"]),
            rate("oprmpb6/s", &["Icmp6OutParmProblems"]),
            rate("iredir6/s", &["Icmp6InRedirects"]),
            rate("oredir6/s", &["Icmp6OutRedirects"]),
            rate("ipck2b6/s", &["Icmp6InPktTooBigs"]),
            rate("opck2b6/s", &["Icmp6OutPktTooBigs"]),
        ],
    },
    Report {
        keyword: "UDP6",
        file: "net/snmp6",
        rows: RowsOf::Host,
        row_title: "",
        columns: &[
            rate("idgm6/s", &["Udp6InDatagrams"]),
            rate("odgm6/s", &["Udp6OutDatagrams"]),
            rate("noport6/s", &["Udp6NoPorts"]),
            rate("idgmer6/s", &["Udp6InErrors"]),
        ],
    },
    Report {
        keyword: "SOFT",
        file: "net/softnet_stat",
        rows: RowsOf::Softnet,
        row_title: "CPU",
        columns: &[
            rate("total/s", &["processed"]),
            rate("dropd/s", &["dropped"]),
            rate("squeezd/s", &["squeezed"]),
            rate("rx_rps/s", &["rps"]),
            rate("flw_lim/s", &["flow_limit"]),
            gauge("blg_len", &["backlog"]),
        ],
    },
];
