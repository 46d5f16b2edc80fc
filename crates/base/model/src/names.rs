//! The names of counters, so that a finding can name what a monitor samples and what a kind records.

/// Counters of a host, by the source they come from.
///
/// Those of IP and UDP that belong to IPv6 (`/proc/net/snmp6`) stand beside those of IPv4 under the same name, of: `ipv6`.
pub mod host {
    /// Time of a core in user mode, nice included (`/proc/stat`); of: `cpu0`, ….
    pub const CPU_USER_NS: &str = "cpu_user_ns";
    /// Time of a core in the kernel, outside interrupts.
    pub const CPU_SYSTEM_NS: &str = "cpu_system_ns";
    /// Time of a core in hard interrupts.
    pub const CPU_IRQ_NS: &str = "cpu_irq_ns";
    /// Time of a core in soft interrupts, where packets are processed.
    pub const CPU_SOFTIRQ_NS: &str = "cpu_softirq_ns";
    /// Time a core was wanted but the hypervisor ran something else.
    pub const CPU_STEAL_NS: &str = "cpu_steal_ns";
    /// Time of a core without work, waiting for disks included.
    pub const CPU_IDLE_NS: &str = "cpu_idle_ns";
    /// Packets that a core took from its backlog or a device (`/proc/net/softnet_stat`); of: `cpu0`, ….
    pub const SOFTNET_PROCESSED: &str = "softnet_processed";
    /// Packets dropped because a core's backlog was full.
    pub const SOFTNET_DROPPED: &str = "softnet_dropped";
    /// Times a core's packet budget or time was used up with work left.
    pub const SOFTNET_SQUEEZED: &str = "softnet_squeezed";
    /// Frames received (`/proc/net/dev`); of: the interface.
    pub const DEV_RX_FRAMES: &str = "dev_rx_frames";
    /// Bytes received, without FCS.
    pub const DEV_RX_BYTES: &str = "dev_rx_bytes";
    /// Frames that arrived and were dropped by the device or its driver.
    pub const DEV_RX_DROPPED: &str = "dev_rx_dropped";
    /// Frames received with errors.
    pub const DEV_RX_ERRORS: &str = "dev_rx_errors";
    /// Frames that found no room in the device.
    pub const DEV_RX_FIFO: &str = "dev_rx_fifo";
    /// Frames sent.
    pub const DEV_TX_FRAMES: &str = "dev_tx_frames";
    /// Bytes sent, without FCS.
    pub const DEV_TX_BYTES: &str = "dev_tx_bytes";
    /// Frames dropped on their way out.
    pub const DEV_TX_DROPPED: &str = "dev_tx_dropped";
    /// Frames that could not be sent because of errors.
    pub const DEV_TX_ERRORS: &str = "dev_tx_errors";
    /// Packets that the queueing discipline of a device dropped (`RTM_GETQDISC`, `TCA_STATS_QUEUE`); of: the interface.
    pub const QDISC_DROPPED: &str = "qdisc_dropped";
    /// Frames that an XDP program dropped, by the count of the driver (`ethtool -S`); of: the interface.
    pub const DEV_XDP_DROPPED: &str = "dev_xdp_dropped";
    /// Packets that rules with a counter dropped (`nf_tables`), in chains that packets enter from outside; of: the chain and the rule's handle.
    pub const NFT_DROPPED: &str = "nft_dropped";
    /// IP packets with an error in their header, such as a time to live that has run out (`Ip: InHdrErrors`).
    pub const IP_IN_HEADER_ERRORS: &str = "ip_in_header_errors";
    /// IP packets for an address that is neither ours nor one that is forwarded to (`Ip: InAddrErrors`).
    pub const IP_IN_ADDRESS_ERRORS: &str = "ip_in_address_errors";
    /// IP packets to be forwarded for which there was no route (`IpExt: InNoRoutes`).
    pub const IP_IN_NO_ROUTES: &str = "ip_in_no_routes";
    /// IP packets dropped for want of memory (`/proc/net/snmp`, `Ip: InDiscards`).
    pub const IP_IN_DISCARDS: &str = "ip_in_discards";
    /// IP packets not sent for want of memory (`Ip: OutDiscards`).
    pub const IP_OUT_DISCARDS: &str = "ip_out_discards";
    /// TCP segments sent, retransmitted ones included (`Tcp: OutSegs`).
    pub const TCP_OUT_SEGMENTS: &str = "tcp_out_segments";
    /// TCP segments received (`Tcp: InSegs`).
    pub const TCP_IN_SEGMENTS: &str = "tcp_in_segments";
    /// TCP segments sent again (`Tcp: RetransSegs`).
    pub const TCP_RETRANS_SEGMENTS: &str = "tcp_retrans_segments";
    /// TCP segments received with errors (`Tcp: InErrs`).
    pub const TCP_IN_ERRORS: &str = "tcp_in_errors";
    /// TCP resets sent (`Tcp: OutRsts`).
    pub const TCP_OUT_RESETS: &str = "tcp_out_resets";
    /// Retransmission time-outs (`TcpExt: TCPTimeouts`).
    pub const TCP_TIMEOUTS: &str = "tcp_timeouts";
    /// Segments that the receiver had already, as its D-SACKs told (`TcpExt: TCPDSACKRecvSegs`).
    pub const TCP_DSACK_SEGMENTS: &str = "tcp_dsack_segments";
    /// Connections refused because an accept queue was full (`TcpExt: ListenOverflows`).
    pub const TCP_LISTEN_OVERFLOWS: &str = "tcp_listen_overflows";
    /// Connections dropped by listening sockets for any reason (`TcpExt: ListenDrops`).
    pub const TCP_LISTEN_DROPS: &str = "tcp_listen_drops";
    /// Times the receive queue was pruned because a socket ran out of buffer (`TcpExt: PruneCalled`).
    pub const TCP_PRUNED: &str = "tcp_pruned";
    /// Datagrams delivered (`Udp: InDatagrams`).
    pub const UDP_IN_DATAGRAMS: &str = "udp_in_datagrams";
    /// Datagrams sent (`Udp: OutDatagrams`).
    pub const UDP_OUT_DATAGRAMS: &str = "udp_out_datagrams";
    /// Datagrams dropped because the receiving socket's buffer was full (`Udp: RcvbufErrors`).
    pub const UDP_RCVBUF_ERRORS: &str = "udp_rcvbuf_errors";
    /// Datagrams dropped because the sending socket's buffer was full (`Udp: SndbufErrors`).
    pub const UDP_SNDBUF_ERRORS: &str = "udp_sndbuf_errors";
    /// Datagrams for a port that nobody listens on (`Udp: NoPorts`).
    pub const UDP_NO_PORTS: &str = "udp_no_ports";
    /// Datagrams with a wrong checksum (`Udp: InCsumErrors`).
    pub const UDP_IN_CSUM_ERRORS: &str = "udp_in_csum_errors";
    /// TCP sockets in use (`/proc/net/sockstat`): a level, not a count.
    pub const SOCK_TCP_IN_USE: &str = "sock_tcp_in_use";
    /// TCP sockets in TIME-WAIT: a level.
    pub const SOCK_TCP_TIME_WAIT: &str = "sock_tcp_time_wait";
    /// Memory of TCP buffers: a level, in pages turned into bytes.
    pub const SOCK_TCP_MEMORY_BYTES: &str = "sock_tcp_memory_bytes";
    /// UDP sockets in use: a level.
    pub const SOCK_UDP_IN_USE: &str = "sock_udp_in_use";

    /// Those that each interface has one of; of: the interface.
    pub const OF_INTERFACES: [&str; 11] = [
        DEV_RX_FRAMES,
        DEV_RX_BYTES,
        DEV_RX_DROPPED,
        DEV_RX_ERRORS,
        DEV_RX_FIFO,
        DEV_TX_FRAMES,
        DEV_TX_BYTES,
        DEV_TX_DROPPED,
        DEV_TX_ERRORS,
        QDISC_DROPPED,
        DEV_XDP_DROPPED,
    ];
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
    /// The largest packet that the path takes, as TCP knows it.
    pub const PMTU_BYTES: &str = "pmtu_bytes";
    /// Segments retransmitted in all.
    pub const RETRANS_TOTAL: &str = "retrans_segments";
    /// Segments sent in all.
    pub const SEGMENTS_OUT: &str = "segments_out";
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
    /// Time held back by the peer's receive window.
    pub const RWND_LIMITED_NS: &str = "rwnd_limited_ns";
    /// Time held back by the own send buffer.
    pub const SNDBUF_LIMITED_NS: &str = "sndbuf_limited_ns";
    /// Payload that the application handed to the kernel for this connection.
    pub const PAYLOAD_BYTES_SENT: &str = "payload_bytes_sent";
    /// Payload that the application got from the kernel on this connection.
    pub const PAYLOAD_BYTES_RECEIVED: &str = "payload_bytes_received";
    /// The rate at which data was delivered last.
    pub const DELIVERY_RATE_BPS: &str = "delivery_rate_bps";
    /// The rate at which the kernel paces.
    pub const PACING_RATE_BPS: &str = "pacing_rate_bps";
    /// The bound on pacing that the kernel was told to keep (`SO_MAX_PACING_RATE`).
    pub const PACING_MAX_BPS: &str = "pacing_rate_bps_max";
    /// Segments delivered that an ECN mark came back for.
    pub const DELIVERED_CE: &str = "delivered_ce_segments";
    /// Segments that the peer reported to have received twice (RFC 2883).
    pub const DSACK_SEGMENTS: &str = "dsack_segments";
    /// Times that reordering was seen.
    pub const REORDERINGS: &str = "reorderings";
    /// The window that the peer offers.
    pub const SND_WND_BYTES: &str = "snd_wnd_bytes";
}

/// Counters that kinds record; a kind may have more of its own.
pub mod count {
    /// Payload bytes handed to the kernel.
    pub const BYTES_SENT: &str = "bytes_sent";
    /// Payload bytes got from the kernel.
    pub const BYTES_RECEIVED: &str = "bytes_received";
    /// Complete exchanges: a request and its whole answer.
    pub const TRANSACTIONS: &str = "transactions";
    /// Requests answered, whatever their status.
    pub const REQUESTS: &str = "requests";
    /// Connections opened.
    pub const CONNECTIONS: &str = "connections";
    /// Datagrams, frames or requests that the kernel accepted.
    pub const SENT: &str = "sent";
    /// Distinct datagrams or frames that arrived.
    pub const RECEIVED: &str = "received";
    /// Datagrams, frames, requests or scripted users that the schedule asked for.
    pub const INTENDED: &str = "intended";
    /// Frames that the schedule asked for and that were too late to leave.
    pub const UNSENT: &str = "unsent";
    /// Requests that started late because no connection was free; scripted users for want of a seat, which is one.
    pub const LATE_NO_CONNECTION: &str = "late_no_connection";
    /// Requests that started late although a connection was free: the worker was not there in time.
    pub const LATE_OWN_CPU: &str = "late_own_cpu";
    /// Further copies of something that had arrived.
    pub const DUPLICATES: &str = "duplicates";
    /// Arrived after one with a higher number (RFC 4737 section 3.3).
    pub const REORDERED: &str = "reordered";
    /// Refused by the sending socket or its queue.
    pub const SEND_REFUSED: &str = "send_refused";
    /// Dropped at the receiving socket (`SO_RXQ_OVFL`, `PACKET_STATISTICS`).
    pub const SOCKET_DROPPED: &str = "socket_dropped";
    /// Dropped at the ports of a test: packets of addresses that take no part in it, and what found the port's queue full.
    pub const PORT_DROPPED: &str = "port_dropped";
    /// Frames that were counted as received and then went on into the network stack.
    pub const PASSED_ON: &str = "passed_on";
    /// Frames for which the receiving AF_XDP socket's ring had no room (`rx_ring_full` of `XDP_STATISTICS`).
    pub const RING_FULL: &str = "xsk_ring_full";
    /// Frames for which the receiving AF_XDP socket had no memory (`rx_fill_ring_empty_descs` of `XDP_STATISTICS`).
    pub const FILL_EMPTY: &str = "xsk_fill_empty";
    /// Redirected frames for which the other end of a veth had no room (`tx_queue_*_xdp_xmit_errors` of `ethtool -S`).
    pub const VETH_RING_DROPPED: &str = "veth_ring_dropped";
    /// Interarrival jitter at the end (RFC 3550 section 6.4.1), in nanoseconds.
    pub const JITTER_NS: &str = "jitter_ns";
    /// The most distant loss of the tool's own schedule.
    pub const SCHEDULE_LAG_NS_MAX: &str = "schedule_lag_ns_max";

    /// Those whose unit is a byte.
    pub const OF_BYTES: [&str; 2] = [BYTES_SENT, BYTES_RECEIVED];

    /// Whether a counter holds the largest of something, which does not add up: its name says so.
    #[must_use]
    pub fn is_maximum(counter: &str) -> bool {
        counter.ends_with("_max")
    }
}

/// Names of distributions, in nanoseconds.
pub mod distribution {
    /// From the actual start of an exchange to the last byte of its answer.
    pub const SERVICE_TIME: &str = "service_time_ns";
    /// From `connect` to an open connection.
    pub const CONNECT_TIME: &str = "connect_time_ns";
    /// From the actual start to the first byte of the answer.
    pub const FIRST_BYTE: &str = "first_byte_ns";
    /// From the intended start of an exchange to the last byte of its answer: what somebody sees who came on his own.
    pub const RESPONSE_TIME: &str = "response_time_ns";
    /// From the intended to the actual start.
    pub const SCHEDULE_LAG: &str = "schedule_lag_ns";
    /// From the first to the last byte of an answer.
    pub const DOWNLOAD_TIME: &str = "download_time_ns";
    /// From the question for a name to its addresses.
    pub const DNS_TIME: &str = "dns_time_ns";
    /// From an open connection to a proxy's tunnel through it.
    pub const PROXY_TIME: &str = "proxy_time_ns";
    /// From a probe to its answer.
    pub const ROUND_TRIP: &str = "rtt_ns";
    /// From an open connection, or a tunnel through it, to the end of the TLS handshake.
    pub const TLS_TIME: &str = "tls_time_ns";
}
