//! `fathom doctor`: what this machine allows, why not, and how to allow the rest.

use std::{fs, io::Write as _};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_packet::pktgen;
use fathom_sys::{
    affinity,
    bpf::{Assembler, Program, ProgramType},
    namespace::NetNs,
    netlink::Netlink,
    packet_socket::{Queueing, Sender},
    reactor::uring,
};
use serde::Serialize;

use crate::{exit::Exit, store::Calibration};

pub(super) fn shape(command: Command) -> Command {
    command.arg(Arg::new("json").long("json").help("print one JSON document").action(ArgAction::SetTrue))
}

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// All is there.
    Ok,
    /// Something is lost, and fathom goes on without it.
    Lacks,
    /// Good to know.
    Note,
}

/// What one look at the machine showed.
#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    state: State,
    /// What was seen.
    seen: String,
    /// What cannot be done without it, and how to allow it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
}

impl Check {
    fn of(what: &'static str, state: State, seen: impl Into<String>, advice: &[&str]) -> Self {
        let advice = if state == State::Ok { Vec::new() } else { advice.iter().map(|&line| line.to_owned()).collect() };
        Self { what, state, seen: seen.into(), advice }
    }

    /// A privileged call that was tried.
    fn tried<T>(what: &'static str, outcome: fathom_sys::Result<T>, advice: &[&str]) -> Self {
        match outcome {
            Ok(_) => Self::of(what, State::Ok, "allowed", advice),
            Err(error) => Self::of(what, State::Lacks, format!("{error}: {}", error.source), advice),
        }
    }
}

const CHECKS: &[fn() -> Check] = &[
    network_namespaces,
    user_namespaces,
    raw_frames,
    xdp,
    kernel_pktgen,
    io_uring,
    cores,
    open_files,
    udp_buffer,
    clocksource,
    congestion_control,
    calibration,
];

pub(super) fn run(matches: &ArgMatches) -> anyhow::Result<Exit> {
    let checks: Vec<Check> = CHECKS.iter().map(|check| check()).collect();
    let mut out = std::io::stdout().lock();
    if matches.get_flag("json") {
        serde_json::to_writer_pretty(&mut out, &checks)?;
        writeln!(out)?;
        return Ok(Exit::Pass);
    }
    for check in &checks {
        let mark = match check.state {
            State::Ok => "ok",
            State::Lacks => "lacks",
            State::Note => "note",
        };
        writeln!(out, "{mark:<6} {:<22} {}", check.what, check.seen)?;
        for line in &check.advice {
            writeln!(out, "{:30}{line}", "")?;
        }
    }
    let n_lacking = checks.iter().filter(|check| check.state == State::Lacks).count();
    writeln!(
        out,
        "\n{}",
        match n_lacking {
            0 => "this machine allows everything that fathom uses".to_owned(),
            n => format!("{n} of {} lack something: what it costs stands below each", checks.len()),
        }
    )?;
    Ok(Exit::Pass)
}

fn network_namespaces() -> Check {
    Check::tried(
        "network namespaces",
        NetNs::new(),
        &["needs CAP_SYS_ADMIN; without it, labs are built in a user namespace", "allow: sudo fathom …"],
    )
}

fn user_namespaces() -> Check {
    let max = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let restricted = ["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"]
        .into_iter()
        .any(|path| fs::read_to_string(path).is_ok_and(|text| text.trim() == "1"));
    let forbidden =
        fs::read_to_string("/proc/sys/kernel/unprivileged_userns_clone").is_ok_and(|text| text.trim() == "0");
    let state = if max.trim() == "0" || restricted || forbidden { State::Lacks } else { State::Ok };
    Check::of(
        "user namespaces",
        state,
        format!("at most {}", max.trim()),
        &[
            "without them, a user who is not root gets no lab",
            "allow: sudo sysctl -w user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1",
            "       sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ],
    )
}

fn raw_frames() -> Check {
    let sender = Netlink::open()
        .and_then(|mut netlink| netlink.link("lo"))
        .and_then(|link| Sender::open(link.index, Queueing::Bypass));
    Check::tried(
        "raw frames",
        sender,
        &[
            "needs CAP_NET_RAW; without it, frames are measured in a lab of a user namespace only",
            "allow: sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(which fathom)",
        ],
    )
}

fn xdp() -> Check {
    // XDP_PASS is 2.
    let mut code = Assembler::new();
    code.give(2);
    Check::tried(
        "XDP programs",
        Program::load(ProgramType::Xdp, "fathom_doctor", &code.assemble()),
        &[
            "needs CAP_BPF and CAP_NET_ADMIN; without it, frames are counted by AF_PACKET, which is slower than they may come",
            "allow: sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(which fathom)",
        ],
    )
}

fn kernel_pktgen() -> Check {
    let (state, seen) = match pktgen::Root::default().version() {
        Ok(version) => (State::Ok, format!("loaded, version {version}")),
        Err(pktgen::Error::Absent(_)) => (State::Note, "not loaded".to_owned()),
        Err(error) => (State::Lacks, error.to_string()),
    };
    Check::of(
        "kernel pktgen",
        state,
        seen,
        &[
            "frames are sent by fathom's own means instead, `fathom as pktgen` included",
            "allow: sudo modprobe pktgen (a kernel with CONFIG_NET_PKTGEN; its files are root's)",
        ],
    )
}

fn io_uring() -> Check {
    Check::tried(
        "io_uring",
        uring::is_allowed(),
        &[
            "needs Linux 6.1; without it, connections are served over epoll, at more processor time per request",
            "allow: sysctl kernel.io_uring_disabled=0; in a container: a seccomp profile that has io_uring_setup",
        ],
    )
}

fn cores() -> Check {
    let n = affinity::allowed_cores().map_or(0, |cores| cores.len());
    let state = if n >= 2 { State::Ok } else { State::Lacks };
    Check::of(
        "cores",
        state,
        n.to_string(),
        &["both ends of a lab share one core: rates are those of the core, not of the path"],
    )
}

fn open_files() -> Check {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = text.lines().find(|line| line.starts_with("Max open files"));
    let soft: Option<u64> = limit.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    let state = if soft.is_none_or(|soft| soft >= 4096) { State::Ok } else { State::Note };
    let seen = soft.map_or_else(|| "unlimited".to_owned(), |soft| soft.to_string());
    Check::of("open files", state, seen, &["bounds the connections of one process", "allow: ulimit -n 65536"])
}

fn udp_buffer() -> Check {
    let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    let bytes: Option<u64> = text.trim().parse().ok();
    let state = if bytes.is_none_or(|bytes| bytes >= 2 << 20) { State::Ok } else { State::Note };
    let seen = bytes.map_or_else(|| "unknown".to_owned(), |bytes| fathom_model::units::Bytes(bytes).to_string());
    Check::of(
        "receive buffer, most",
        state,
        seen,
        &[
            "fast UDP overflows a small buffer while the receiver is elsewhere",
            "allow: sudo sysctl -w net.core.rmem_max=4194304",
        ],
    )
}

fn clocksource() -> Check {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let seen = fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let state = if ["tsc", "kvm-clock", "arch_sys_counter"].contains(&seen.as_str()) { State::Ok } else { State::Note };
    Check::of("clock source", state, seen, &["reading this clock is slow: it adds to every latency and costs rate"])
}

fn congestion_control() -> Check {
    let seen = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    Check::of("congestion control", State::Ok, seen.trim(), &[])
}

fn calibration() -> Check {
    match Calibration::kept() {
        Some(kept) => Check::of("own ceilings", State::Ok, format!("measured {}", kept.made), &[]),
        None => Check::of(
            "own ceilings",
            State::Note,
            "not measured",
            &["results cannot say which share of the tool's own ceiling they used", "measure: fathom calibrate"],
        ),
    }
}
