//! The names of counters, shared by the monitor that samples them, the kinds that record them and the findings that refer to them.

/// Clocks outside the cores, which take a microsecond or more to read. Linux uses them if the cores' own counter does not run evenly
/// (`kernel/time/clocksource.c`, the watchdog), or if the hypervisor hides it.
pub const SLOW_CLOCKS: [&str; 5] = ["hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies"];

/// Counters of a host, grouped by their source.
///
/// IPv6 counters of IP and UDP (`/proc/net/snmp6`) have the same name as those of IPv4, with `ipv6` as the instance.
pub mod host {
    /// CPU time of a core in user mode, including nice (`/proc/stat`); instances: `cpu0`, ….
    pub const CPU_USER_NS: &str = "cpu_user_ns";
    /// CPU time of a core in the kernel, outside interrupts.
    pub const CPU_SYSTEM_NS: &str = "cpu_system_ns";
    /// CPU time of a core in hard interrupts.
    pub const CPU_IRQ_NS: &str = "cpu_irq_ns";
    /// CPU time of a core in soft interrupts, where packets are processed.
    pub const CPU_SOFTIRQ_NS: &str = "cpu_softirq_ns";
    /// Time during which a core had work but the hypervisor ran something else.
    pub const CPU_STEAL_NS: &str = "cpu_steal_ns";
    /// Idle time of a core, including waiting for disks.
    pub const CPU_IDLE_NS: &str = "cpu_idle_ns";
    /// Time in which the processor slowed a core down because the core or its package was too hot; instances: `cpu0`, ….
    pub const CPU_TOO_HOT_NS: &str = "cpu_too_hot_ns";
    /// The frequency that a core runs at, in kHz (`scaling_cur_freq`): a gauge; instances: `cpu0`, ….
    pub const CPU_FREQUENCY_KHZ: &str = "cpu_frequency_khz";
    /// The frequency in kHz that a core is made for, without a boost where one is known: a gauge that does not change.
    pub const CPU_NOMINAL_FREQUENCY_KHZ: &str = "cpu_nominal_frequency_khz";
    /// Packets that a core took from its backlog or a device (`/proc/net/softnet_stat`); instances: `cpu0`, ….
    pub const SOFTNET_PROCESSED: &str = "softnet_processed";
    /// Packets dropped because a core's backlog was full.
    pub const SOFTNET_DROPPED: &str = "softnet_dropped";
    /// The number of times that a core used up its packet budget or its time with work left.
    pub const SOFTNET_SQUEEZED: &str = "softnet_squeezed";
    /// The number of times that a core ran the soft interrupt that receives (`/proc/softirqs`, `NET_RX`); instances: `cpu0`, ….
    pub const SOFTIRQ_NET_RX: &str = "softirq_net_rx";
    /// The number of times that a core ran the soft interrupt that completes sending (`NET_TX`).
    pub const SOFTIRQ_NET_TX: &str = "softirq_net_tx";
    /// Interrupts of a queue of a network device (`/proc/interrupts`); instances: `eth0 irq38 virtio2-input.0`, ….
    pub const QUEUE_INTERRUPTS: &str = "queue_interrupts";
    /// The number of the core that took most of the newest interrupts of a queue: a gauge.
    pub const QUEUE_INTERRUPT_CORE: &str = "queue_interrupt_core";
    /// Time in which at least one task waited for a resource (`/proc/pressure`); instances: `cpu`, `memory`, `io`.
    pub const PRESSURE_SOME_NS: &str = "pressure_some_ns";
    /// Time in which all tasks that had work waited for a resource; instances: `memory`, `io`.
    pub const PRESSURE_FULL_NS: &str = "pressure_full_ns";
    /// Frames received (`/proc/net/dev`); instance: the interface.
    pub const DEV_RX_FRAMES: &str = "dev_rx_frames";
    /// Bytes received, without FCS.
    pub const DEV_RX_BYTES: &str = "dev_rx_bytes";
    /// Frames dropped on arrival by the device or its driver.
    pub const DEV_RX_DROPPED: &str = "dev_rx_dropped";
    /// Frames received with errors; some drivers count those for which there was no room too.
    pub const DEV_RX_ERRORS: &str = "dev_rx_errors";
    /// Frames that arrived damaged, with a wrong checksum or alignment (`IFLA_STATS64`, `rx_crc_errors` and `rx_frame_errors`).
    pub const DEV_RX_DAMAGED: &str = "dev_rx_damaged";
    /// Frames dropped because the device's receive buffer was full.
    pub const DEV_RX_FIFO: &str = "dev_rx_fifo";
    /// Frames dropped because the device's receive ring was full (`IFLA_STATS64`, `rx_missed_errors`); they are in no other counter of frames.
    pub const DEV_RX_MISSED: &str = "dev_rx_missed";
    /// Frames dropped because they are for another Ethernet address (`IFLA_STATS64`, `rx_otherhost_dropped`, Linux 5.19). A switch floods some to
    /// every port, and a card that is not promiscuous drops them without a count.
    pub const DEV_RX_OTHER_HOST: &str = "dev_rx_other_host";
    /// Pause frames received: the other end of the cable asked this one to stop (IEEE 802.3 annex 31B).
    pub const DEV_RX_PAUSE: &str = "dev_rx_pause";
    /// Pause frames sent: this end asked the other one to stop.
    pub const DEV_TX_PAUSE: &str = "dev_tx_pause";
    /// Frames sent.
    pub const DEV_TX_FRAMES: &str = "dev_tx_frames";
    /// Bytes sent, without FCS.
    pub const DEV_TX_BYTES: &str = "dev_tx_bytes";
    /// Frames dropped on the way out.
    pub const DEV_TX_DROPPED: &str = "dev_tx_dropped";
    /// Frames that could not be sent because of errors.
    pub const DEV_TX_ERRORS: &str = "dev_tx_errors";
    /// How often the link of a device came up or went down (`IFLA_CARRIER_CHANGES`); instance: the interface.
    pub const DEV_CARRIER_CHANGES: &str = "dev_carrier_changes";
    /// Packets dropped by the queueing discipline of a device (`RTM_GETQDISC`, `TCA_STATS_QUEUE`); instance: the interface.
    pub const QDISC_DROPPED: &str = "qdisc_dropped";
    /// How often a queueing discipline held a packet back to keep its rate; instance: the interface.
    pub const QDISC_OVERLIMITS: &str = "qdisc_overlimits";
    /// Bytes in the queueing disciplines of an interface: a gauge.
    pub const QDISC_BACKLOG_BYTES: &str = "qdisc_backlog_bytes";
    /// Packets dropped by filters on the way in (`ingress`, `clsact`), before any other counter; instance: the interface.
    pub const QDISC_IN_DROPPED: &str = "qdisc_in_dropped";
    /// Frames dropped by an XDP program, as counted by the driver (`ethtool -S`); instance: the interface.
    pub const DEV_XDP_DROPPED: &str = "dev_xdp_dropped";
    /// Packets dropped by rules with a counter (`nf_tables`), in chains that packets enter from outside; instance: the chain and the rule's
    /// handle.
    pub const NFT_DROPPED: &str = "nft_dropped";
    /// IP packets received, those with errors included (`/proc/net/snmp`, `Ip: InReceives`).
    pub const IP_IN_RECEIVES: &str = "ip_in_receives";
    /// IP packets given to a protocol such as TCP, whatever that did with them (`Ip: InDelivers`).
    pub const IP_IN_DELIVERS: &str = "ip_in_delivers";
    /// IP packets forwarded (`Ip: ForwDatagrams`).
    pub const IP_FORWARDED: &str = "ip_forwarded";
    /// IP packets of a protocol that the host does not have (`Ip: InUnknownProtos`).
    pub const IP_IN_UNKNOWN_PROTOCOLS: &str = "ip_in_unknown_protocols";
    /// IP packets received that went nowhere as far as counters show. No host counts them: they are the rest of the growth of other counters, and a
    /// name in evidence alone.
    pub const IP_UNDELIVERED: &str = "ip_undelivered";
    /// IP packets with an error in their header, such as an expired time to live (`Ip: InHdrErrors`).
    pub const IP_IN_HEADER_ERRORS: &str = "ip_in_header_errors";
    /// IPv4 packets whose header arrived damaged (`IpExt: InCsumErrors`); they are among those with an error in their header.
    pub const IP_IN_CSUM_ERRORS: &str = "ip_in_csum_errors";
    /// IP packets to an address that is neither local nor forwarded to (`Ip: InAddrErrors`).
    pub const IP_IN_ADDRESS_ERRORS: &str = "ip_in_address_errors";
    /// IP packets to forward that had no route (`IpExt: InNoRoutes`).
    pub const IP_IN_NO_ROUTES: &str = "ip_in_no_routes";
    /// IP packets dropped for lack of memory (`/proc/net/snmp`, `Ip: InDiscards`).
    pub const IP_IN_DISCARDS: &str = "ip_in_discards";
    /// IP packets not sent for lack of memory (`Ip: OutDiscards`).
    pub const IP_OUT_DISCARDS: &str = "ip_out_discards";
    /// IP packets not sent for want of a route (`Ip: OutNoRoutes`).
    pub const IP_OUT_NO_ROUTES: &str = "ip_out_no_routes";
    /// Fragments received for reassembly, on a router only if something there reassembles (`Ip: ReasmReqds`).
    pub const IP_FRAGMENTS_RECEIVED: &str = "ip_fragments_received";
    /// Packets put together from their fragments (`Ip: ReasmOKs`).
    pub const IP_REASSEMBLED: &str = "ip_reassembled";
    /// Packets that could not be reassembled from their fragments (`Ip: ReasmFails`).
    pub const IP_REASSEMBLY_FAILS: &str = "ip_reassembly_fails";
    /// Fragments sent (`Ip: FragCreates`).
    pub const IP_FRAGMENTS_CREATED: &str = "ip_fragments_created";
    /// Packets too large for the path that must not be fragmented (`Ip: FragFails`).
    pub const IP_FRAGMENTATION_FAILS: &str = "ip_fragmentation_fails";
    /// IP packets dropped because the way back to their source is another interface (`TcpExt: IPReversePathFilter`).
    pub const IP_RP_FILTER_DROPPED: &str = "ip_rp_filter_dropped";
    /// IPv4 packets dropped because their source cannot be beyond the interface they came from, those of the reverse path filter included
    /// (`/proc/net/stat/rt_cache`, `in_martian_src`, of the whole machine).
    pub const IP_MARTIAN_SOURCE: &str = "ip_martian_source";
    /// IPv4 packets dropped because their destination is none that a network may carry (`in_martian_dst`, of the whole machine).
    pub const IP_MARTIAN_DESTINATION: &str = "ip_martian_destination";
    /// Packets dropped because their next hop did not answer ARP or neighbor discovery (`/proc/net/stat/arp_cache`, of the whole
    /// machine).
    pub const NEIGHBOR_UNRESOLVED: &str = "neighbor_unresolved";
    /// The samples in which nobody had answered for the address of a neighbor (`RTM_GETNEIGH`, `NUD_INCOMPLETE` or `NUD_FAILED`); instances:
    /// `eth0 198.18.0.2`, …, or an empty one with 0 on a host where all have answered.
    pub const NEIGHBOR_FAILED: &str = "neighbor_failed";
    /// How often the Ethernet address of a neighbor changed (`RTM_GETNEIGH`); instances: `eth0 198.18.0.2`, …, or an empty one with 0 on a
    /// host without neighbors.
    pub const NEIGHBOR_CHANGES: &str = "neighbor_changes";
    /// How often the table of neighbors was full (of the whole machine).
    pub const NEIGHBOR_TABLE_FULL: &str = "neighbor_table_full";
    /// Connections that could not be entered into the connection table (`/proc/net/stat/nf_conntrack`).
    pub const CONNTRACK_INSERT_FAILED: &str = "conntrack_insert_failed";
    /// Packets that connection tracking dropped, such as those of new connections while the table was full (`drop` of
    /// `/proc/net/stat/nf_conntrack`).
    pub const CONNTRACK_DROPPED: &str = "conntrack_dropped";
    /// Entries of a full connection table that gave way to new ones (`early_drop`); their connections go on untracked.
    pub const CONNTRACK_EVICTED: &str = "conntrack_evicted";
    /// Entries in the connection table: a gauge.
    pub const CONNTRACK_ENTRIES: &str = "conntrack_entries";
    /// The size of the connection table: a gauge.
    pub const CONNTRACK_ENTRIES_MAX: &str = "conntrack_entries_max";
    /// Time that quotas of control groups took from this process and its group (`cpu.stat`).
    pub const CGROUP_THROTTLED_NS: &str = "cgroup_throttled_ns";
    /// How often the control group of this process was slowed down for its memory use (`memory.events`, `high`).
    pub const CGROUP_MEMORY_HIGH: &str = "cgroup_memory_high";
    /// How often the control group of this process was at its memory limit (`max`; version 1: `memory.failcnt`).
    pub const CGROUP_MEMORY_MAX: &str = "cgroup_memory_max";
    /// Tasks of the control group of this process that were killed because memory ran out (`oom_kill`).
    pub const CGROUP_OOM_KILLS: &str = "cgroup_oom_kills";
    /// Open file descriptors of this process: a gauge.
    pub const DESCRIPTORS_OPEN: &str = "descriptors_open";
    /// The number of file descriptors that this process may open (`RLIMIT_NOFILE`): a gauge.
    pub const DESCRIPTORS_MAX: &str = "descriptors_max";
    /// The number of local ports for connections to one address and port (`net.ipv4.ip_local_port_range`): a gauge.
    pub const LOCAL_PORTS_MAX: &str = "local_ports_max";
    /// TCP segments sent, including retransmitted ones (`Tcp: OutSegs`).
    pub const TCP_OUT_SEGMENTS: &str = "tcp_out_segments";
    /// TCP segments received (`Tcp: InSegs`).
    pub const TCP_IN_SEGMENTS: &str = "tcp_in_segments";
    /// TCP segments retransmitted (`Tcp: RetransSegs`).
    pub const TCP_RETRANS_SEGMENTS: &str = "tcp_retrans_segments";
    /// TCP segments received with errors (`Tcp: InErrs`).
    pub const TCP_IN_ERRORS: &str = "tcp_in_errors";
    /// TCP segments received with a wrong checksum (`Tcp: InCsumErrors`).
    pub const TCP_IN_CSUM_ERRORS: &str = "tcp_in_csum_errors";
    /// TCP resets sent (`Tcp: OutRsts`).
    pub const TCP_OUT_RESETS: &str = "tcp_out_resets";
    /// Retransmission timeouts (`TcpExt: TCPTimeouts`).
    pub const TCP_TIMEOUTS: &str = "tcp_timeouts";
    /// Segments that the receiver already had, according to its D-SACKs (`TcpExt: TCPDSACKRecvSegs`).
    pub const TCP_DSACK_SEGMENTS: &str = "tcp_dsack_segments";
    /// Tail loss probes: the last segment sent again because its ACK was late (`TcpExt: TCPLossProbes`, RFC 8985 section 7).
    pub const TCP_LOSS_PROBES: &str = "tcp_loss_probes";
    /// How often ACKs showed that segments arrived in another order (`TcpExt: TCPSACKReorder`).
    pub const TCP_REORDERINGS: &str = "tcp_reorderings";
    /// Connections refused because an accept queue was full (`TcpExt: ListenOverflows`).
    pub const TCP_LISTEN_OVERFLOWS: &str = "tcp_listen_overflows";
    /// Connections dropped by listening sockets for any reason (`TcpExt: ListenDrops`).
    pub const TCP_LISTEN_DROPS: &str = "tcp_listen_drops";
    /// The same by listening address since the first sample (`INET_DIAG_SKMEMINFO`); instances: `0.0.0.0:80`, …, or an empty one with 0 on a host without listeners.
    pub const TCP_LISTENER_DROPPED: &str = "tcp_listener_dropped";
    /// The number of times that the receive queue was pruned because a socket ran out of buffer (`TcpExt: PruneCalled`).
    pub const TCP_PRUNED: &str = "tcp_pruned";
    /// SYN and SYN-ACK segments retransmitted (`TcpExt: TCPSynRetrans`).
    pub const TCP_SYN_RETRANS: &str = "tcp_syn_retrans";
    /// SYN cookies sent because a SYN queue was full (`TcpExt: SyncookiesSent`).
    pub const TCP_SYN_COOKIES: &str = "tcp_syn_cookies";
    /// SYNs dropped because a SYN queue was full (`TcpExt: TCPReqQFullDrop`).
    pub const TCP_SYN_QUEUE_DROPS: &str = "tcp_syn_queue_drops";
    /// Acknowledgments that TCP sent when the time for which it delays them was over (`TcpExt: DelayedACKs`).
    pub const TCP_DELAYED_ACKS: &str = "tcp_delayed_acks";
    /// How often TCP came under memory pressure (`TcpExt: TCPMemoryPressures`).
    pub const TCP_MEMORY_PRESSURES: &str = "tcp_memory_pressures";
    /// Segments dropped because the backlog of a socket was full (`TcpExt: TCPBacklogDrop`).
    pub const TCP_BACKLOG_DROPS: &str = "tcp_backlog_drops";
    /// Segments dropped because a receive queue was full (`TcpExt: TCPRcvQDrop`).
    pub const TCP_RECEIVE_QUEUE_DROPS: &str = "tcp_receive_queue_drops";
    /// Connections that found no room among those in TIME-WAIT (`TcpExt: TCPTimeWaitOverflow`).
    pub const TCP_TIME_WAIT_OVERFLOWS: &str = "tcp_time_wait_overflows";
    /// Datagrams delivered (`Udp: InDatagrams`).
    pub const UDP_IN_DATAGRAMS: &str = "udp_in_datagrams";
    /// Datagrams sent (`Udp: OutDatagrams`).
    pub const UDP_OUT_DATAGRAMS: &str = "udp_out_datagrams";
    /// Datagrams dropped because the receiving socket's buffer was full (`Udp: RcvbufErrors`).
    pub const UDP_RCVBUF_ERRORS: &str = "udp_rcvbuf_errors";
    /// Datagrams dropped because the memory of all UDP sockets together was used up (`Udp: MemErrors`).
    pub const UDP_MEM_ERRORS: &str = "udp_mem_errors";
    /// Datagrams dropped because the sending socket's buffer was full (`Udp: SndbufErrors`).
    pub const UDP_SNDBUF_ERRORS: &str = "udp_sndbuf_errors";
    /// Datagrams for a port that nobody listens on (`Udp: NoPorts`).
    pub const UDP_NO_PORTS: &str = "udp_no_ports";
    /// ICMP messages that a destination cannot be reached (`Icmp: InDestUnreachs`): no listener, no route, or a firewall that refuses.
    pub const ICMP_IN_UNREACHABLE: &str = "icmp_in_unreachable";
    /// The same messages that this host sent (`Icmp: OutDestUnreachs`).
    pub const ICMP_OUT_UNREACHABLE: &str = "icmp_out_unreachable";
    /// ICMP messages that say that the time to live of a packet of this host ran out at a router (`Icmp: InTimeExcds`).
    pub const ICMP_IN_TIME_EXCEEDED: &str = "icmp_in_time_exceeded";
    /// Datagrams with a wrong checksum (`Udp: InCsumErrors`).
    pub const UDP_IN_CSUM_ERRORS: &str = "udp_in_csum_errors";
    /// TCP sockets in use, over IPv4 and IPv6 (`/proc/net/sockstat`, `sockstat6`): a gauge, not a count.
    pub const SOCK_TCP_IN_USE: &str = "sock_tcp_in_use";
    /// TCP sockets in TIME-WAIT: a gauge.
    pub const SOCK_TCP_TIME_WAIT: &str = "sock_tcp_time_wait";
    /// Memory of TCP buffers: a gauge, converted from pages to bytes.
    pub const SOCK_TCP_MEMORY_BYTES: &str = "sock_tcp_memory_bytes";
    /// UDP sockets in use, over IPv4 and IPv6: a gauge.
    pub const SOCK_UDP_IN_USE: &str = "sock_udp_in_use";

    /// Packets that were sent to a program for its verdict (`/proc/net/netfilter/nfnetlink_queue`); instances: `queue0`, …
    pub const NFQUEUE_PACKETS: &str = "nfqueue_packets";
    /// Packets dropped because the queue to the program was full.
    pub const NFQUEUE_DROPPED: &str = "nfqueue_dropped";
    /// Packets dropped because the receive buffer of the program was full.
    pub const NFQUEUE_USER_DROPPED: &str = "nfqueue_user_dropped";
    /// Packets that wait for a verdict: a gauge.
    pub const NFQUEUE_WAITING: &str = "nfqueue_waiting";

    /// Frames that came to an impairment of a lab; instance: the direction, `forward` or `back`, as of all of its counters.
    pub const IMPAIR_ARRIVED: &str = "impair_arrived";
    /// Frames that the impairment lost as it was told.
    pub const IMPAIR_LOST: &str = "impair_lost";
    /// Frames that it dropped because the queue in front of its rate was full.
    pub const IMPAIR_QUEUE_DROPPED: &str = "impair_queue_dropped";
    /// Frames that it dropped during an outage.
    pub const IMPAIR_OUTAGE_DROPPED: &str = "impair_outage_dropped";
    /// Frames that it dropped because they are longer than its MTU.
    pub const IMPAIR_TOO_BIG: &str = "impair_too_big";
    /// Frames that it sent twice.
    pub const IMPAIR_DUPLICATED: &str = "impair_duplicated";
    /// Frames that it held back so that later ones overtake them.
    pub const IMPAIR_REORDERED: &str = "impair_reordered";
    /// Frames of which it flipped a bit.
    pub const IMPAIR_CORRUPTED: &str = "impair_corrupted";
    /// Frames that it sent later than they came: for its delay, its jitter or its rate.
    pub const IMPAIR_DELAYED: &str = "impair_delayed";
    /// By how much delayed frames left later than they were due, summed over them, in nanoseconds.
    pub const IMPAIR_LATE_NS: &str = "impair_late_ns";
    /// TCP segments in whose place it sent a reset to both ends.
    pub const IMPAIR_RESET: &str = "impair_reset";

    /// CPU time of a thread that does the work of a lab's device, in nanoseconds; without the time in which it waits awake. Instance: the name of
    /// the thread, such as `impair-forward`, `balance-0` or `napi/eth0-8193`.
    pub const DEVICE_CPU_NS: &str = "device_cpu_ns";
    /// Time in which such a thread had work and no core to run on, in nanoseconds.
    pub const DEVICE_WAIT_NS: &str = "device_wait_ns";
    /// Begins the name of a thread of the reference balancer that decides the packets of a queue; the number of the queue follows.
    pub const QUEUE_THREAD: &str = "balance-";

    /// The name under which a trial has what the counters command of a device printed. The counters have the names of the device's makers.
    pub const DEVICE_COUNTERS: &str = "device counters";

    /// All counters of an impairment, in the order in which it tells them.
    pub const OF_IMPAIRMENTS: [&str; 11] = [
        IMPAIR_ARRIVED,
        IMPAIR_LOST,
        IMPAIR_QUEUE_DROPPED,
        IMPAIR_OUTAGE_DROPPED,
        IMPAIR_TOO_BIG,
        IMPAIR_DUPLICATED,
        IMPAIR_REORDERED,
        IMPAIR_CORRUPTED,
        IMPAIR_DELAYED,
        IMPAIR_LATE_NS,
        IMPAIR_RESET,
    ];

    /// All counters that the device of a lab tells itself.
    pub const OF_LAB_DEVICES: [&str; OF_IMPAIRMENTS.len() + 2] = {
        let mut all = [DEVICE_CPU_NS; OF_IMPAIRMENTS.len() + 2];
        all[1] = DEVICE_WAIT_NS;
        let mut at = 0;
        while at < OF_IMPAIRMENTS.len() {
            all[at + 2] = OF_IMPAIRMENTS[at];
            at += 1;
        }
        all
    };

    /// The abstract UNIX socket in the network namespace of a lab's device: each connection gets a line per counter, `NAME INSTANCE VALUE`.
    pub const LAB_DEVICE_SOCKET: &str = "fathom-lab-device";

    /// The names that are no counts: their values rise and fall.
    pub const GAUGES: [&str; 14] = [
        CPU_FREQUENCY_KHZ,
        CPU_NOMINAL_FREQUENCY_KHZ,
        NFQUEUE_WAITING,
        QUEUE_INTERRUPT_CORE,
        QDISC_BACKLOG_BYTES,
        CONNTRACK_ENTRIES,
        CONNTRACK_ENTRIES_MAX,
        DESCRIPTORS_OPEN,
        DESCRIPTORS_MAX,
        LOCAL_PORTS_MAX,
        SOCK_TCP_IN_USE,
        SOCK_TCP_TIME_WAIT,
        SOCK_TCP_MEMORY_BYTES,
        SOCK_UDP_IN_USE,
    ];

    /// The counters that exist once per interface; instance: the interface.
    pub const OF_INTERFACES: [&str; 19] = [
        DEV_RX_FRAMES,
        DEV_RX_BYTES,
        DEV_RX_DROPPED,
        DEV_RX_ERRORS,
        DEV_RX_DAMAGED,
        DEV_RX_FIFO,
        DEV_RX_MISSED,
        DEV_RX_OTHER_HOST,
        DEV_RX_PAUSE,
        DEV_TX_PAUSE,
        DEV_TX_FRAMES,
        DEV_TX_BYTES,
        DEV_TX_DROPPED,
        DEV_TX_ERRORS,
        QDISC_DROPPED,
        QDISC_OVERLIMITS,
        QDISC_BACKLOG_BYTES,
        QDISC_IN_DROPPED,
        DEV_XDP_DROPPED,
    ];
}

/// The states of an interface, the fact `operstate` of a host's environment.
pub mod interface_state {
    /// It is up and has a carrier.
    pub const UP: &str = "up";
    /// Nobody set it up (`IFF_UP`).
    pub const DOWN: &str = "down";
    /// It is set up and its other end is not there (`NO-CARRIER` of `ip link`).
    pub const NO_CARRIER: &str = "no carrier";
}

/// Texts of a record that findings read.
pub mod fact {
    /// The IP address that the first connection of a test of HTTP reached: that of a server, or of the proxy before it.
    pub const REACHED_ADDRESS: &str = "reached_address";
    /// The addresses at which connections failed to open, if a test has several: an address and a count on each line, the most frequent first.
    pub const FAILED_ADDRESSES: &str = "failed_addresses";
}

/// Values of a TCP connection, from `TCP_INFO` (linux/tcp.h).
pub mod tcp {
    /// Smoothed round-trip time.
    pub const RTT_NS: &str = "rtt_ns";
    /// Smallest round-trip time seen.
    pub const RTT_MIN_NS: &str = "rtt_ns_min";
    /// Congestion window, in segments.
    pub const CWND_SEGMENTS: &str = "cwnd_segments";
    /// Maximum segment size for sending.
    pub const SND_MSS_BYTES: &str = "snd_mss_bytes";
    /// The largest packet that the path accepts, as TCP knows it.
    pub const PMTU_BYTES: &str = "pmtu_bytes";
    /// Total retransmitted segments.
    pub const RETRANS_TOTAL: &str = "retrans_segments";
    /// Total sent segments.
    pub const SEGMENTS_OUT: &str = "segments_out";
    /// Total received segments. A packet that a device hands over joined, without the number of its segments, counts as one.
    pub const SEGMENTS_IN: &str = "segments_in";
    /// Bytes sent, retransmissions included.
    pub const BYTES_SENT: &str = "bytes_sent";
    /// Bytes acknowledged.
    pub const BYTES_ACKED: &str = "bytes_acked";
    /// Bytes received in order.
    pub const BYTES_RECEIVED: &str = "bytes_received";
    /// Bytes retransmitted.
    pub const BYTES_RETRANS: &str = "bytes_retrans";
    /// Time with data to send or in flight.
    pub const BUSY_NS: &str = "busy_ns";
    /// Time limited by the peer's receive window.
    pub const RWND_LIMITED_NS: &str = "rwnd_limited_ns";
    /// Time limited by the local send buffer.
    pub const SNDBUF_LIMITED_NS: &str = "sndbuf_limited_ns";
    /// Payload that the application passed to the kernel on this connection.
    pub const PAYLOAD_BYTES_SENT: &str = "payload_bytes_sent";
    /// Payload that the application received from the kernel on this connection.
    pub const PAYLOAD_BYTES_RECEIVED: &str = "payload_bytes_received";
    /// The most recent delivery rate.
    pub const DELIVERY_RATE_BPS: &str = "delivery_rate_bps";
    /// The kernel's pacing rate.
    pub const PACING_RATE_BPS: &str = "pacing_rate_bps";
    /// The upper bound on the pacing rate set in the kernel (`SO_MAX_PACING_RATE`).
    pub const PACING_MAX_BPS: &str = "pacing_rate_bps_max";
    /// Delivered segments whose ACK carried an ECN congestion mark.
    pub const DELIVERED_CE: &str = "delivered_ce_segments";
    /// Segments that the peer reported as received twice (RFC 2883).
    pub const DSACK_SEGMENTS: &str = "dsack_segments";
    /// The number of reordering events seen.
    pub const REORDERINGS: &str = "reorderings";
    /// The window offered by the peer.
    pub const SND_WND_BYTES: &str = "snd_wnd_bytes";
    /// 1 if both ends scale their windows (RFC 7323 section 2), else 0: then a window has at most 64 KiB.
    pub const WINDOW_SCALING: &str = "window_scaling";
}

/// How data arrived on sampled connections: what a receiver can tell of the path, and of a sender that nobody asks.
pub mod reception {
    /// Total: samples of connections while data arrived.
    pub const SAMPLES: &str = "reception_samples";
    /// Total: those of them before which nothing had arrived for longer than the data of a round trip is apart.
    pub const SILENT_SAMPLES: &str = "reception_silent_samples";
    /// Total: segments with payload that arrived on these connections.
    pub const SEGMENTS: &str = "reception_segments";
    /// Total: those of them that arrived before data that precedes them (`tcpi_rcv_ooopack`).
    pub const SEGMENTS_BEHIND_GAPS: &str = "reception_segments_behind_gaps";
    /// Distribution: the receiver's estimate of the round trip, which sees the queues before its data (`tcpi_rcv_rtt`).
    pub const ROUND_TRIP: &str = "reception_rtt_ns";
    /// Distribution: the shortest round trip of the connection.
    pub const SHORTEST_ROUND_TRIP: &str = "reception_rtt_ns_min";
    /// Distribution: the window that the receiver offered.
    pub const WINDOW: &str = "reception_window_bytes";
    /// Distribution: the bytes that arrived in each round trip.
    pub const IN_FLIGHT: &str = "reception_in_flight_bytes";
}

/// Counters that kinds record. A kind may have additional ones.
pub mod count {
    /// Payload bytes passed to the kernel.
    pub const BYTES_SENT: &str = "bytes_sent";
    /// Payload bytes received from the kernel.
    pub const BYTES_RECEIVED: &str = "bytes_received";
    /// Complete exchanges: a request and its complete response.
    pub const TRANSACTIONS: &str = "transactions";
    /// Requests in datagrams without an answer in time, and probes without any.
    pub const TRANSACTIONS_LOST: &str = "lost";
    /// Requests with a response, whatever its status.
    pub const REQUESTS: &str = "requests";
    /// Requests that ended, whether answered or failed; failed connects are included.
    pub const ATTEMPTS: &str = "attempts";
    /// Answers whose status says that the request is at fault, or not wanted: 400 to 499 (RFC 9110 section 15.5).
    pub const REFUSED_REQUESTS: &str = "status_4xx";
    /// Answers with a status of class 3, which name another address or say that nothing changed.
    pub const REDIRECTS: &str = "status_3xx";
    /// Answers whose status says that the server failed: 500 to 599.
    pub const SERVER_FAILURES: &str = "status_5xx";
    /// Returns the name of the answers with one status, such as `status_404`. A record has those that are not of class 2.
    #[must_use]
    pub fn of_status(status: u16) -> String {
        format!("status_{status}")
    }
    /// Requests still waiting for their answer when the trial ended.
    pub const UNFINISHED: &str = "unfinished";
    /// Connections without an answer at the end, whose request had waited ten times as long as 99 % of the answers took, and 250 ms at
    /// least, when the newest answer came to another connection.
    pub const STUCK: &str = "stuck";
    /// Those of them that had no answer at all since they were opened: the server may not have accepted them.
    pub const STUCK_UNSERVED: &str = "stuck_unserved";
    /// Connections opened.
    pub const CONNECTIONS: &str = "connections";
    /// Connections that the server closed after an answer, which it may do.
    pub const CLOSED_BY_SERVER: &str = "closed_by_server";
    /// Datagrams, frames or requests that the kernel accepted.
    pub const SENT: &str = "sent";
    /// Distinct datagrams or frames that arrived.
    pub const RECEIVED: &str = "received";
    /// Datagrams, frames, requests or scripted users that the schedule asked for.
    pub const INTENDED: &str = "intended";
    /// Scheduled frames that were too late to be sent.
    pub const UNSENT: &str = "unsent";
    /// Requests that started late because no connection was free; for scripted users, because the maximum number of users was active.
    pub const LATE_NO_CONNECTION: &str = "late_no_connection";
    /// Requests that were due and never sent, because no connection became free before the end.
    pub const NOT_STARTED: &str = "not_started";
    /// Requests that started late although a connection was free: the worker was late.
    pub const LATE_OWN_CPU: &str = "late_own_cpu";
    /// Extra copies of a datagram or frame that had already arrived.
    pub const DUPLICATES: &str = "duplicates";
    /// Arrivals after one with a higher number (RFC 4737 section 3.3).
    pub const REORDERED: &str = "reordered";
    /// Datagrams or frames refused by the sending socket or its queue.
    pub const SEND_REFUSED: &str = "send_refused";
    /// Packets dropped at the receiving socket (`SO_RXQ_OVFL`, `PACKET_STATISTICS`).
    pub const SOCKET_DROPPED: &str = "socket_dropped";
    /// Packets dropped at the ports of a test because of their address; without the host's counters, also those that found the queue full.
    pub const PORT_DROPPED: &str = "port_dropped";
    /// Connections of addresses outside the test that its ports accepted and reset at once, where the kernel keeps nobody away.
    pub const PORT_RESET: &str = "port_reset";
    /// Frames that were counted as received and then passed on to the network stack.
    pub const PASSED_ON: &str = "passed_on";
    /// Frames dropped because the RX ring of the receiving AF_XDP socket was full (`rx_ring_full` of `XDP_STATISTICS`).
    pub const RING_FULL: &str = "xsk_ring_full";
    /// Frames dropped because the fill ring of the receiving AF_XDP socket was empty (`rx_fill_ring_empty_descs` of `XDP_STATISTICS`).
    pub const FILL_EMPTY: &str = "xsk_fill_empty";
    /// Redirected frames dropped because the other end of a veth was full (`tx_queue_*_xdp_xmit_errors` of `ethtool -S`).
    pub const VETH_RING_DROPPED: &str = "veth_ring_dropped";
    /// Interarrival jitter at the end (RFC 3550 section 6.4.1), in nanoseconds.
    pub const JITTER_NS: &str = "jitter_ns";
    /// Flows of a datagram stream of which nothing arrived, beside others.
    pub const FLOWS_SILENT: &str = "flows_silent";
    /// The longest time from the start of a trial until the receiver of a datagram stream was heard and the stream began.
    pub const LATE_START_NS_MAX: &str = "late_start_ns_max";
    /// The maximum lag of the tool behind its own schedule.
    pub const SCHEDULE_LAG_NS_MAX: &str = "schedule_lag_ns_max";

    /// The longest packet that a path carries, in bytes.
    pub const PATH_MTU: &str = "path_mtu_bytes";
    /// The distance to a host in hops.
    pub const HOPS: &str = "hops";

    /// Payload bytes that the client of another tool's protocol sent or received with its sockets.
    pub const BYTES_MOVED: &str = "bytes_moved";

    /// The counters whose unit is a byte.
    pub const OF_BYTES: [&str; 2] = [BYTES_SENT, BYTES_RECEIVED];

    /// Whether a counter holds a maximum, which must not be summed; its name ends in `_max`.
    #[must_use]
    pub fn is_maximum(counter: &str) -> bool {
        counter.ends_with("_max")
    }
}

/// Names of distributions, in nanoseconds.
pub mod distribution {
    /// From the actual start of an exchange to the last byte of its response.
    pub const SERVICE_TIME: &str = "service_time_ns";
    /// From `connect` to an open connection.
    pub const CONNECT_TIME: &str = "connect_time_ns";
    /// The service time, which for the first request of a connection includes its connect.
    pub const TOTAL_TIME: &str = "total_time_ns";
    /// From the actual start to the first byte of the response.
    pub const FIRST_BYTE: &str = "first_byte_ns";
    /// From the intended start of an exchange to the last byte of its response: the time that an independent user sees.
    pub const RESPONSE_TIME: &str = "response_time_ns";
    /// From the intended to the actual start.
    pub const SCHEDULE_LAG: &str = "schedule_lag_ns";
    /// From the first to the last byte of a response.
    pub const DOWNLOAD_TIME: &str = "download_time_ns";
    /// From a DNS query to the addresses.
    pub const DNS_TIME: &str = "dns_time_ns";
    /// From an open connection to the established tunnel through a proxy.
    pub const PROXY_TIME: &str = "proxy_time_ns";
    /// From a probe to its reply.
    pub const ROUND_TRIP: &str = "rtt_ns";
    /// The numbers of datagrams that arrived between one run of lost ones and the next.
    pub const LOSS_SPACING: &str = "loss_spacing_datagrams";
    /// The lengths of runs of lost datagrams.
    pub const LOSS_BURST: &str = "loss_burst_datagrams";
    /// From sending a frame that carries a time stamp to its arrival, where both ends share a clock.
    pub const LATENCY: &str = "latency_ns";
    /// From sending to arrival, on the clocks of both ends.
    pub const ONE_WAY_DELAY: &str = "one_way_delay_ns";
    /// How much longer than the fastest datagram the last ones before gaps in the numbers took.
    pub const QUEUED_BEFORE_LOSS: &str = "queued_before_loss_ns";
    /// From an open connection, or a tunnel through it, to the end of the TLS handshake.
    pub const TLS_TIME: &str = "tls_time_ns";
}
