//! Readable names of counters, for lists of evidence. The JSON document keeps the original names.

/// The names in the evidence of findings, with their readable form. An instance is appended.
const WORDS: &[(&str, &str)] = &[
    ("cpu_user_ns", "time in programs"),
    ("cpu_system_ns", "time in the kernel"),
    ("cpu_irq_ns", "time in hard interrupts"),
    ("cpu_softirq_ns", "time in soft interrupts"),
    ("cpu_steal_ns", "time taken by the hypervisor"),
    ("softnet_dropped", "dropped in the backlog"),
    ("softnet_processed", "packets processed"),
    ("dev_rx_frames", "frames received"),
    ("dev_rx_dropped", "dropped on arrival"),
    ("dev_rx_fifo", "no room in the device"),
    ("dev_tx_dropped", "dropped on sending"),
    ("dev_xdp_dropped", "dropped by an XDP program"),
    ("qdisc_dropped", "dropped in the queue"),
    ("qdisc_overlimits", "packets held back for the rate"),
    ("qdisc_backlog_bytes", "bytes in the queue, mean"),
    ("qdisc_in_dropped", "dropped by a filter on the way in"),
    ("nft_dropped", "dropped by a rule"),
    ("ip_rp_filter_dropped", "dropped by the reverse path filter"),
    ("ip_out_no_routes", "no route"),
    ("ip_reassembly_fails", "not reassembled"),
    ("ip_fragmentation_fails", "larger than the MTU"),
    ("neighbor_unresolved", "neighbor did not answer"),
    ("neighbor_table_full", "neighbor table full"),
    ("conntrack_dropped", "connection table full"),
    ("cgroup_throttled_ns", "stopped by a CPU quota"),
    ("tcp_in_csum_errors", "wrong checksum"),
    ("tcp_backlog_drops", "no room in a socket's backlog"),
    ("tcp_time_wait_overflows", "no room in TIME-WAIT"),
    ("tcp_listen_overflows", "accept queue full"),
    ("tcp_syn_queue_drops", "SYN queue full"),
    ("tcp_syn_retrans", "SYNs retransmitted"),
    ("udp_no_ports", "no listener on the port"),
    ("connect_time_ns", "time to connect"),
    ("tcp_out_segments", "segments sent"),
    ("tcp_retrans_segments", "segments retransmitted"),
    ("tcp_timeouts", "retransmission time-outs"),
    ("tcp_dsack_segments", "segments that had arrived already"),
    ("udp_rcvbuf_errors", "no room in the socket"),
    ("udp_sndbuf_errors", "refused by the sending socket"),
    ("udp_in_csum_errors", "wrong checksum"),
    ("socket_dropped", "dropped by the socket"),
    ("send_refused", "refused on sending"),
    ("rtt_ns_min", "shortest round trip"),
    ("rtt_ns", "round trip"),
    ("cwnd_segments", "segments allowed under way"),
    ("rwnd_limited_ns", "waited for the receiver's window"),
    ("sndbuf_limited_ns", "waited for the send buffer"),
    ("busy_ns", "busy time"),
    ("bytes_received", "bytes received"),
    ("bytes_sent", "bytes sent"),
];

/// Returns a readable counter name: `time in soft interrupts, cpu0`. `title` knows the names of values.
pub(crate) fn words(counter: &str, title: impl Fn(&str) -> Option<String>) -> String {
    let known = |word: &str| WORDS.iter().find(|(name, _)| *name == word).map(|(_, words)| *words);
    let (first, rest) = counter.split_once(' ').unwrap_or((counter, ""));
    let put = |word: &str| known(word).map(str::to_owned).or_else(|| title(word)).unwrap_or_else(|| word.to_owned());
    let rest = rest.split(' ').map(put).collect::<Vec<_>>().join(" ");
    // `rwnd_limited_ns of busy_ns` reads as one phrase; an instance is separated by a comma.
    let between = if rest.is_empty() {
        ""
    } else if known(first).is_none() || rest.starts_with("of ") {
        " "
    } else {
        ", "
    };
    format!("{}{between}{rest}", put(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_counters_become_words_and_what_is_not_one_stays() {
        let cases = [
            ("cpu_softirq_ns cpu0", "time in soft interrupts, cpu0"),
            ("rtt_ns", "round trip"),
            ("rwnd_limited_ns of busy_ns", "waited for the receiver's window of busy time"),
            ("others on cpu1", "others on cpu1"),
            ("latency_ns_p99 < 20ms kept at", "p99 < 20ms kept at"),
        ];
        for (counter, expected) in cases {
            let title = |name: &str| (name == "latency_ns_p99").then(|| "p99".to_owned());
            assert_eq!(words(counter, title), expected);
        }
    }
}
