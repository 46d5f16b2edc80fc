//! Network settings that differ from the kernel's defaults.
//!
//! The defaults are those of Linux 6.1 to 6.18. A setting that is not in the table is always reported, so that additions of newer
//! kernels are visible.

use std::path::Path;

use fathom_model::Environment;

use super::{content, contents, note_some};

/// The defaults in one kernel source file: its settings under `net.`, with their values.
struct Defaults {
    /// The place in the kernel that sets them.
    #[cfg_attr(not(test), expect(dead_code, reason = "the source of a fact, for those who read the table"))]
    from: &'static str,
    settings: &'static [(&'static str, &'static str)],
}

/// Default settings by kernel source file.
const DEFAULTS: [Defaults; 8] = [
    Defaults {
        from: "net/ipv4/tcp_ipv4.c, tcp_sk_init",
        settings: &[
            ("ipv4.tcp_abort_on_overflow", "0"),
            ("ipv4.tcp_adv_win_scale", "1"),
            ("ipv4.tcp_app_win", "31"),
            ("ipv4.tcp_autocorking", "1"),
            ("ipv4.tcp_backlog_ack_defer", "1"),
            ("ipv4.tcp_base_mss", "1024"),
            ("ipv4.tcp_challenge_ack_limit", "2147483647"),
            ("ipv4.tcp_child_ehash_entries", "0"),
            ("ipv4.tcp_comp_sack_delay_ns", "1000000"),
            ("ipv4.tcp_comp_sack_nr", "44"),
            ("ipv4.tcp_comp_sack_slack_ns", "100000"),
            ("ipv4.tcp_dsack", "1"),
            ("ipv4.tcp_early_retrans", "3"),
            ("ipv4.tcp_ecn", "2"),
            ("ipv4.tcp_ecn_fallback", "1"),
            ("ipv4.tcp_ecn_option", "2"),
            ("ipv4.tcp_ecn_option_beacon", "3"),
            ("ipv4.tcp_fastopen", "1"),
            ("ipv4.tcp_fastopen_blackhole_timeout_sec", "0"),
            ("ipv4.tcp_fin_timeout", "60"),
            ("ipv4.tcp_frto", "2"),
            ("ipv4.tcp_fwmark_accept", "0"),
            ("ipv4.tcp_invalid_ratelimit", "500"),
            ("ipv4.tcp_keepalive_intvl", "75"),
            ("ipv4.tcp_keepalive_probes", "9"),
            ("ipv4.tcp_keepalive_time", "7200"),
            ("ipv4.tcp_l3mdev_accept", "0"),
            ("ipv4.tcp_max_reordering", "300"),
            ("ipv4.tcp_migrate_req", "0"),
            ("ipv4.tcp_min_rtt_wlen", "300"),
            ("ipv4.tcp_min_snd_mss", "48"),
            ("ipv4.tcp_min_tso_segs", "2"),
            ("ipv4.tcp_moderate_rcvbuf", "1"),
            ("ipv4.tcp_mtu_probe_floor", "48"),
            ("ipv4.tcp_mtu_probing", "0"),
            ("ipv4.tcp_no_metrics_save", "0"),
            ("ipv4.tcp_no_ssthresh_metrics_save", "1"),
            ("ipv4.tcp_notsent_lowat", "4294967295"),
            ("ipv4.tcp_orphan_retries", "0"),
            ("ipv4.tcp_pacing_ca_ratio", "120"),
            ("ipv4.tcp_pacing_ss_ratio", "200"),
            ("ipv4.tcp_pingpong_thresh", "1"),
            ("ipv4.tcp_plb_cong_thresh", "128"),
            ("ipv4.tcp_plb_enabled", "0"),
            ("ipv4.tcp_plb_idle_rehash_rounds", "3"),
            ("ipv4.tcp_plb_rehash_rounds", "12"),
            ("ipv4.tcp_plb_suspend_rto_sec", "60"),
            ("ipv4.tcp_probe_interval", "600"),
            ("ipv4.tcp_probe_threshold", "8"),
            ("ipv4.tcp_recovery", "1"),
            ("ipv4.tcp_reflect_tos", "0"),
            ("ipv4.tcp_reordering", "3"),
            ("ipv4.tcp_retrans_collapse", "1"),
            ("ipv4.tcp_retries1", "3"),
            ("ipv4.tcp_retries2", "15"),
            ("ipv4.tcp_rfc1337", "0"),
            ("ipv4.tcp_rto_max_ms", "120000"),
            ("ipv4.tcp_rto_min_us", "200000"),
            ("ipv4.tcp_sack", "1"),
            ("ipv4.tcp_shrink_window", "0"),
            ("ipv4.tcp_slow_start_after_idle", "1"),
            ("ipv4.tcp_stdurg", "0"),
            ("ipv4.tcp_syn_linear_timeouts", "4"),
            ("ipv4.tcp_syn_retries", "6"),
            ("ipv4.tcp_synack_retries", "5"),
            ("ipv4.tcp_syncookies", "1"),
            ("ipv4.tcp_thin_linear_timeouts", "0"),
            ("ipv4.tcp_timestamps", "1"),
            ("ipv4.tcp_tso_rtt_log", "9"),
            ("ipv4.tcp_tso_win_divisor", "3"),
            ("ipv4.tcp_tw_reuse", "2"),
            ("ipv4.tcp_tw_reuse_delay", "1000"),
            ("ipv4.tcp_window_scaling", "1"),
            ("ipv4.tcp_workaround_signed_windows", "0"),
        ],
    },
    Defaults {
        from: "net/ipv4/af_inet.c, inet_init_net",
        settings: &[("ipv4.tcp_early_demux", "1"), ("ipv4.udp_early_demux", "1")],
    },
    Defaults { from: "net/ipv4/sysctl_net_ipv4.c", settings: &[("ipv4.tcp_fack", "0"), ("ipv4.tcp_low_latency", "0")] },
    Defaults {
        from: "net/ipv4/udp.c, udp_sysctl_init",
        settings: &[
            ("ipv4.udp_child_hash_entries", "0"),
            ("ipv4.udp_l3mdev_accept", "0"),
            ("ipv4.udp_rmem_min", "4096"),
            ("ipv4.udp_wmem_min", "4096"),
        ],
    },
    Defaults {
        from: "net/core/dev.c, hotdata.c, gro.c, sock.c, skbuff.c, net_namespace.c and sysctl_net_core.c",
        settings: &[
            ("core.bpf_jit_harden", "0"),
            ("core.busy_poll", "0"),
            ("core.busy_read", "0"),
            ("core.dev_weight", "64"),
            ("core.dev_weight_rx_bias", "1"),
            ("core.dev_weight_tx_bias", "1"),
            ("core.devconf_inherit_init_net", "0"),
            ("core.fb_tunnels_only_for_init_net", "0"),
            ("core.flow_limit_table_len", "4096"),
            ("core.gro_normal_batch", "8"),
            ("core.high_order_alloc_disable", "0"),
            ("core.message_burst", "10"),
            ("core.message_cost", "5"),
            ("core.netdev_budget", "300"),
            ("core.netdev_max_backlog", "1000"),
            ("core.netdev_tstamp_prequeue", "1"),
            ("core.netdev_unregister_timeout_secs", "10"),
            ("core.rps_sock_flow_entries", "0"),
            ("core.somaxconn", "4096"),
            ("core.tstamp_allow_data", "1"),
            ("core.txrehash", "1"),
            ("core.warnings", "0"),
        ],
    },
    Defaults { from: "net/ipv4/arp.c, arp_tbl", settings: &[("ipv4.neigh.default.gc_thresh3", "1024")] },
    Defaults { from: "net/ipv6/ndisc.c, nd_tbl", settings: &[("ipv6.neigh.default.gc_thresh3", "1024")] },
    Defaults {
        from: "net/xfrm/xfrm_sysctl.c",
        settings: &[
            ("core.xfrm_acq_expires", "30"),
            ("core.xfrm_aevent_etime", "10"),
            ("core.xfrm_aevent_rseqth", "2"),
            ("core.xfrm_larval_drop", "1"),
        ],
    },
];

/// Settings that are never recorded: secret keys of cookies and hashes, bit maps with one bit per core, and settings of the topic
/// `tcp`.
const LEFT_OUT: [&str; 7] = [
    "ipv4.tcp_fastopen_key",
    "core.netdev_rss_key",
    "core.flow_limit_cpu_bitmap",
    "core.rps_default_mask",
    "core.default_qdisc",
    "ipv4.tcp_congestion_control",
    "ipv4.tcp_available_congestion_control",
];

/// The directories of the settings, and the relevant prefixes in each.
const DIRECTORIES: [(&str, &[&str]); 4] = [
    ("core", &[""]),
    ("ipv4", &["tcp_", "udp_"]),
    ("ipv4/neigh/default", &["gc_thresh3"]),
    ("ipv6/neigh/default", &["gc_thresh3"]),
];

/// Settings of the whole machine that bear on the tests of all its network namespaces. Only the first one shows them.
const OF_MACHINE: [&str; 5] = [
    "core.netdev_budget",
    "core.netdev_budget_usecs",
    "core.netdev_max_backlog",
    "ipv4.neigh.default.gc_thresh3",
    "ipv6.neigh.default.gc_thresh3",
];

/// Records the settings that differ from the defaults, and those whose default depends on the host: its memory, its page size, or
/// the version and build of its kernel (`tcp_rmem`, `rmem_max`, `netdev_budget_usecs`).
pub(super) fn note(root: &Path, facts: &mut Environment) {
    for (directory, prefixes) in DIRECTORIES {
        for (file, value) in contents(&root.join("proc/sys/net").join(directory)) {
            let name = format!("{}.{file}", directory.replace('/', "."));
            let matters = prefixes.iter().any(|prefix| file.starts_with(prefix));
            if matters && !LEFT_OUT.contains(&name.as_str()) {
                note_unusual(&name, &value, facts);
            }
        }
    }
}

/// Records the settings of the machine that differ from the defaults, for a host that is another network namespace of it.
pub fn note_machine_settings(root: &Path, facts: &mut Environment) {
    for name in OF_MACHINE {
        if let Some(value) = content(&root.join("proc/sys/net").join(name.replace('.', "/"))) {
            note_unusual(name, &value, facts);
        }
    }
}

fn note_unusual(name: &str, value: &str, facts: &mut Environment) {
    let value = without_parents_sign(name, value.split_whitespace().collect::<Vec<_>>().join(" "));
    if default_of(name) != Some(value.as_str()) {
        note_some(facts, ("sysctl", &format!("net.{name}")), Some(value));
    }
}

/// Rewrites the size of a table. A negative size means that a namespace shares the table of its parent.
fn without_parents_sign(name: &str, value: String) -> String {
    match value.strip_prefix('-').filter(|_| name.ends_with("hash_entries")) {
        Some(size) => format!("{size}, shared with the parent namespace"),
        None => value,
    }
}

fn default_of(name: &str) -> Option<&'static str> {
    let mut settings = DEFAULTS.iter().flat_map(|file| file.settings);
    settings.find(|(known, _)| *known == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_a_namespace_shares_is_no_negative_number() {
        let told = |file, value: &str| without_parents_sign(file, value.to_owned());
        assert_eq!(told("udp_hash_entries", "-16384"), "16384, shared with the parent namespace");
        assert_eq!(told("udp_hash_entries", "16384"), "16384");
        assert_eq!(told("tcp_child_ehash_entries", "0"), "0");
        assert_eq!(told("tcp_window_clamp", "-1"), "-1");
    }

    #[test]
    fn every_default_stands_once_and_names_the_kernel_file_that_sets_it() {
        let mut names = Vec::new();
        for file in DEFAULTS {
            assert!(file.from.starts_with("net/") && file.from.contains(".c"), "{}", file.from);
            names.extend(file.settings.iter().map(|(name, _)| *name));
        }
        names.sort_unstable();
        assert!(names.is_sorted_by(|a, b| a < b));
    }
}
