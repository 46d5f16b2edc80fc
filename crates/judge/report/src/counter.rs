//! Readable names of counters, for lists of evidence. The JSON document keeps the original names.

/// The names in the evidence of findings, with their readable form. An instance is appended.
const WORDS: &[(&str, &str)] = &[
    ("reached_address", "address that was reached"),
    ("cpu_user_ns", "time in programs"),
    ("cpu_system_ns", "time in the kernel"),
    ("cpu_irq_ns", "time in hard interrupts"),
    ("cpu_softirq_ns", "time in soft interrupts"),
    ("cpu_steal_ns", "time taken by the hypervisor"),
    ("cpu_too_hot_ns", "time slowed down because it was too hot"),
    ("cpu_frequency_khz", "frequency in kHz"),
    ("cpu_nominal_frequency_khz", "nominal frequency in kHz"),
    ("softnet_dropped", "dropped in the backlog"),
    ("softnet_processed", "packets processed"),
    ("dev_rx_frames", "frames received"),
    ("dev_rx_dropped", "dropped on arrival"),
    ("dev_rx_fifo", "no room in the device"),
    ("dev_rx_missed", "no room in the device's ring"),
    ("dev_rx_other_host", "for another Ethernet address"),
    ("dev_rx_pause", "pause frames received"),
    ("dev_tx_pause", "pause frames sent"),
    ("impair_late_ns", "time that delayed frames left too late"),
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
    ("neighbor_failed", "samples without an answer of the neighbor"),
    ("neighbor_table_full", "neighbor table full"),
    ("conntrack_dropped", "dropped by connection tracking"),
    ("conntrack_evicted", "entries removed from a full connection table"),
    ("cgroup_throttled_ns", "stopped by a CPU quota"),
    ("tcp_in_csum_errors", "wrong checksum"),
    ("tcp_backlog_drops", "no room in a socket's backlog"),
    ("tcp_time_wait_overflows", "no room in TIME-WAIT"),
    ("tcp_listen_overflows", "accept queue full"),
    ("tcp_listener_dropped", "dropped by the listening socket"),
    ("tcp_syn_queue_drops", "SYN queue full"),
    ("tcp_delayed_acks", "acknowledgments sent late"),
    ("tcp_syn_retrans", "SYNs retransmitted"),
    ("udp_no_ports", "no listener on the port"),
    ("connect_time_ns", "time to connect"),
    ("tcp_out_segments", "segments sent"),
    ("tcp_retrans_segments", "segments retransmitted"),
    ("tcp_timeouts", "retransmission time-outs"),
    ("tcp_dsack_segments", "segments that had arrived already"),
    ("tcp_loss_probes", "tail loss probes"),
    ("tcp_reorderings", "TCP reorderings seen"),
    ("udp_rcvbuf_errors", "no room in the socket"),
    ("udp_mem_errors", "no memory for UDP sockets"),
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
    ("bytes_moved", "bytes sent or received"),
    ("bytes_received", "bytes received"),
    ("bytes_sent", "bytes sent"),
    ("cpu_idle_ns", "idle time"),
    ("softnet_squeezed", "packet budget of a core used up"),
    ("latency_ns", "latency"),
    ("dev_carrier_changes", "changes of the carrier of the link"),
    ("dev_rx_bytes", "bytes received by the device"),
    ("dev_rx_errors", "frames received with errors"),
    ("dev_rx_damaged", "frames received damaged"),
    ("dev_tx_frames", "frames sent"),
    ("dev_tx_bytes", "bytes sent by the device"),
    ("dev_tx_errors", "frames not sent because of errors"),
    ("ip_in_header_errors", "errors in the IP header"),
    ("ip_in_csum_errors", "damaged IP headers"),
    ("ip_in_address_errors", "packets to an address that is not local"),
    ("ip_in_no_routes", "packets to forward without a route"),
    ("ip_in_discards", "received packets dropped for lack of memory"),
    ("ip_out_discards", "packets not sent for lack of memory"),
    ("ip_fragments_created", "fragments sent"),
    ("ip_in_receives", "IP packets received"),
    ("ip_in_delivers", "IP packets given to a protocol"),
    ("ip_forwarded", "IP packets forwarded"),
    ("ip_in_unknown_protocols", "IP packets of an unknown protocol"),
    ("ip_undelivered", "IP packets received that went nowhere"),
    ("ip_fragments_received", "fragments received for reassembly"),
    ("ip_reassembled", "packets put together from fragments"),
    ("conntrack_insert_failed", "not entered into the connection table"),
    ("conntrack_entries", "entries in the connection table"),
    ("conntrack_entries_max", "size of the connection table"),
    ("tcp_in_segments", "segments received"),
    ("tcp_in_errors", "segments received with errors"),
    ("tcp_out_resets", "resets sent"),
    ("tcp_listen_drops", "dropped by a listening socket"),
    ("tcp_pruned", "receive queue pruned for lack of buffer"),
    ("tcp_syn_cookies", "SYN cookies sent"),
    ("tcp_memory_pressures", "TCP short of memory"),
    ("tcp_receive_queue_drops", "no room in a socket's receive queue"),
    ("udp_in_datagrams", "datagrams delivered"),
    ("udp_out_datagrams", "datagrams sent"),
    ("icmp_in_time_exceeded", "ICMP: time to live exceeded"),
    ("icmp_in_unreachable", "ICMP: destination unreachable"),
    ("icmp_out_unreachable", "ICMP sent: destination unreachable"),
    ("sock_tcp_in_use", "open TCP sockets"),
    ("sock_tcp_time_wait", "TCP sockets in TIME-WAIT"),
    ("sock_tcp_memory_bytes", "memory of TCP buffers"),
    ("sock_udp_in_use", "open UDP sockets"),
    ("snd_mss_bytes", "largest segment to send"),
    ("pmtu_bytes", "MTU of the path as TCP knows it"),
    ("path_mtu_bytes", "MTU of the path"),
    ("retrans_segments", "segments retransmitted"),
    ("segments_out", "segments sent"),
    ("segments_in", "segments received"),
    ("bytes_acked", "bytes that the peer acknowledged"),
    ("bytes_retrans", "bytes retransmitted"),
    ("payload_bytes_sent", "payload sent"),
    ("payload_bytes_received", "payload received"),
    ("delivery_rate_bps", "rate of delivery"),
    ("pacing_rate_bps", "pacing rate"),
    ("pacing_rate_bps_max", "limit of the pacing rate"),
    ("delivered_ce_segments", "segments with a congestion mark"),
    ("dsack_segments", "segments that had arrived already"),
    ("snd_wnd_bytes", "window that the peer offers"),
    ("reception_samples", "samples while data arrived"),
    ("reception_silent_samples", "samples after a silence"),
    ("reception_segments", "segments that arrived"),
    ("reception_segments_behind_gaps", "segments out of order"),
    ("reception_rtt_ns", "round trip of arriving data"),
    ("reception_rtt_ns_min", "shortest round trip"),
    ("reception_window_bytes", "own window that was offered"),
    ("reception_in_flight_bytes", "arrived in a round trip"),
    ("window_scaling", "both ends scale their windows (1: yes)"),
    ("acknowledged", "acknowledged by the peer"),
    ("late_no_connection", "late because no connection was free"),
    ("late_own_cpu", "late because the tool was busy"),
    ("closed_by_server", "connections closed by the server"),
    ("not_started", "due and never started"),
    ("port_dropped", "dropped at the port of the test"),
    ("port_reset", "connections of strangers"),
    ("passed_on", "passed on to the network stack"),
    ("status_3xx", "answers of status 3xx"),
    ("status_4xx", "answers of status 4xx"),
    ("status_5xx", "answers of status 5xx"),
    ("stuck", "connections without an answer"),
    ("stuck_unserved", "connections that never got an answer"),
    ("failed_addresses", "addresses of failed connects"),
    ("xsk_ring_full", "AF_XDP receive ring full"),
    ("xsk_fill_empty", "AF_XDP fill ring empty"),
    ("veth_ring_dropped", "other end of the veth full"),
    ("jitter_ns", "jitter"),
    ("flows_silent", "flows of which nothing arrived"),
    ("late_start_ns_max", "longest wait for the receiver"),
    ("schedule_lag_ns_max", "longest lag behind the schedule"),
    ("service_time_ns", "service time"),
    ("total_time_ns", "service time with the connect"),
    ("first_byte_ns", "time to the first byte"),
    ("response_time_ns", "response time"),
    ("schedule_lag_ns", "lag behind the schedule"),
    ("download_time_ns", "download time"),
    ("dns_time_ns", "time of the name look-up"),
    ("proxy_time_ns", "time to the tunnel"),
    ("loss_spacing_datagrams", "datagrams between losses"),
    ("loss_burst_datagrams", "datagrams lost in a row"),
    ("one_way_delay_ns", "one-way delay"),
    ("queued_before_loss_ns", "delay in queues before a loss"),
    ("tls_time_ns", "time of the TLS handshake"),
    ("softirq_net_rx", "soft interrupts to receive"),
    ("softirq_net_tx", "soft interrupts to send"),
    ("queue_interrupts", "interrupts of a queue"),
    ("queue_interrupt_core", "core that a queue interrupts"),
    ("pressure_some_ns", "time in which a task waited"),
    ("pressure_full_ns", "time in which all tasks waited"),
    ("ip_martian_source", "impossible source address"),
    ("ip_martian_destination", "impossible destination address"),
    ("neighbor_changes", "neighbor with a new Ethernet address"),
    ("cgroup_memory_high", "control group above its soft memory limit"),
    ("cgroup_memory_max", "control group at its memory limit"),
    ("cgroup_oom_kills", "tasks killed for lack of memory"),
    ("descriptors_open", "open descriptors"),
    ("descriptors_max", "limit of open descriptors"),
    ("local_ports_max", "local ports for one server"),
    ("nfqueue_packets", "packets for a program's verdict"),
    ("nfqueue_dropped", "no room in the queue to a program"),
    ("nfqueue_user_dropped", "no room in a program's receive buffer"),
    ("nfqueue_waiting", "packets that wait for a verdict"),
    ("device_cpu_ns", "CPU time of the device"),
    ("device_wait_ns", "time that the device waited for a core"),
    ("impair_arrived", "frames at the device"),
    ("impair_lost", "frames lost by the device"),
    ("impair_queue_dropped", "no room in the device's queue"),
    ("impair_outage_dropped", "frames lost in an outage of the device"),
    ("impair_too_big", "frames too big for the device"),
    ("impair_duplicated", "frames duplicated by the device"),
    ("impair_reordered", "frames reordered by the device"),
    ("impair_corrupted", "frames damaged by the device"),
    ("impair_delayed", "frames delayed by the device"),
    ("impair_reset", "connections reset by the device"),
];

/// Returns a readable counter name: `time in soft interrupts, cpu0`. `title` knows the names of values.
pub(crate) fn words(counter: &str, title: impl Fn(&str) -> Option<String>) -> String {
    let known = |word: &str| WORDS.iter().find(|(name, _)| *name == word).map(|(_, words)| *words);
    let (first, rest) = counter.split_once(' ').unwrap_or((counter, ""));
    let of_status = |word: &str| {
        let status: u16 = word.strip_prefix("status_")?.parse().ok()?;
        Some(format!("answers of status {status}"))
    };
    let put = |word: &str| {
        let words = known(word).map(str::to_owned).or_else(|| of_status(word)).or_else(|| title(word));
        words.unwrap_or_else(|| word.to_owned())
    };
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

    /// Every constant of `model::names`.
    fn all_names() -> Vec<&'static str> {
        let source = include_str!("../../../base/model/src/names.rs");
        source.lines().filter_map(|line| line.split_once(": &str = \"")?.1.strip_suffix("\";")).collect()
    }

    #[test]
    fn every_name_of_the_model_has_plain_words_once() {
        let names = all_names();
        assert!(names.len() > 100, "{names:?}");
        for name in names {
            let plain = words(name, |_| None);
            assert!(plain != name || !name.contains('_'), "{name} has no plain words");
            assert!(!plain.ends_with(" ns") && !plain.ends_with(" bps"), "{name}: {plain}");
            assert!(WORDS.iter().filter(|(known, _)| *known == name).count() <= 1, "{name} has two");
        }
    }

    #[test]
    fn names_of_counters_become_words_and_what_is_not_one_stays() {
        let cases = [
            ("cpu_softirq_ns cpu0", "time in soft interrupts, cpu0"),
            ("rtt_ns", "round trip"),
            ("status_429", "answers of status 429"),
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
