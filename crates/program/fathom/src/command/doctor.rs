//! `fathom doctor`: shows which features this machine allows, the reasons for missing ones, and how to allow them.

use std::{fs, io::Write as _, os::fd::AsFd as _, sync::Arc};

use clap::{Arg, ArgAction, ArgMatches, Command};
use fathom_engine::pace::WorkShare;
use fathom_lab::{Device, Lab, Options, preset};
use fathom_model::names::SLOW_CLOCKS;
use fathom_packet::{
    backend::{self, OutputDevice, Timestamping, WorkerLoad},
    craft::{FrameSet, FrameTemplate},
};
use fathom_pktgen as pktgen;
use fathom_sys::{
    bpf::{Assembler, Program, ProgramType, XdpAction, XdpLink, XdpMode},
    netlink::{
        Netlink, Veth, VethEnd,
        ethtool::{self, Offload, OffloadState},
        namespace::NetNs,
    },
    packet::packet_socket::{Queueing, Sender},
    policy::{FramePermit, Policy},
    process::affinity,
    reactor::uring,
};
use serde::Serialize;

use fathom_run::{exit::Exit, hosts, store::Calibration};

pub(super) fn define(command: Command) -> Command {
    command.arg(Arg::new("json").long("json").help("print one JSON document").action(ArgAction::SetTrue))
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    /// The feature is available.
    Ok,
    /// The feature is missing, and fathom continues without it.
    Lacks,
    /// Information only.
    Note,
}

/// One check of the machine.
#[derive(Debug, Serialize)]
struct Check {
    what: &'static str,
    state: CheckState,
    /// The observed state.
    seen: String,
    /// The consequences, and how to allow the feature.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    advice: Vec<String>,
}

impl Check {
    fn of(what: &'static str, state: CheckState, seen: impl Into<String>, advice: &[&str]) -> Self {
        let advice =
            if state == CheckState::Ok { Vec::new() } else { advice.iter().map(|&line| line.to_owned()).collect() };
        Self { what, state, seen: seen.into(), advice }
    }

    /// Returns the check for a privileged call that was attempted.
    fn of_attempt<T>(what: &'static str, outcome: fathom_sys::Result<T>, advice: &[&str]) -> Self {
        match outcome {
            Ok(_) => Self::of(what, CheckState::Ok, "allowed", advice),
            Err(error) => Self::of(what, CheckState::Lacks, format!("{error}: {}", error.source), advice),
        }
    }
}

const CHECKS: &[fn() -> Check] = &[
    network_namespaces,
    user_namespaces,
    raw_frames,
    xdp,
    xdp_modes,
    frame_backends,
    threaded_napi,
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
            CheckState::Ok => "ok",
            CheckState::Lacks => "lacks",
            CheckState::Note => "note",
        };
        writeln!(out, "{mark:<6} {:<22} {}", check.what, check.seen)?;
        for line in &check.advice {
            writeln!(out, "{:30}{line}", "")?;
        }
    }
    let n_lacking = checks.iter().filter(|check| check.state == CheckState::Lacks).count();
    writeln!(
        out,
        "\n{}",
        match n_lacking {
            0 => "this machine allows everything that fathom uses".to_owned(),
            n => format!("{n} of {} checks lack something; the consequence is below each", checks.len()),
        }
    )?;
    Ok(Exit::Pass)
}

fn network_namespaces() -> Check {
    Check::of_attempt(
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
    let state = if max.trim() == "0" || restricted || forbidden { CheckState::Lacks } else { CheckState::Ok };
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

/// Returns a permit for frames. The checks send nothing; they only test whether sending would be possible.
fn frame_permission() -> FramePermit {
    Policy::anything().permit_frames([]).expect("this policy refuses nothing")
}

fn raw_frames() -> Check {
    let sender = Netlink::open()
        .and_then(|mut netlink| netlink.link("lo"))
        .and_then(|link| Sender::open(link.index, Queueing::Bypass, &frame_permission()));
    Check::of_attempt(
        "raw frames",
        sender,
        &[
            "needs CAP_NET_RAW; without it, frames are measured in a lab of a user namespace only",
            "allow: sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(which fathom)",
        ],
    )
}

fn xdp() -> Check {
    // 2 is XDP_PASS.
    let mut code = Assembler::new();
    code.give(2);
    Check::of_attempt(
        "XDP programs",
        Program::load(ProgramType::Xdp, "fathom_doctor", &code.assemble()),
        &[
            "needs CAP_BPF and CAP_NET_ADMIN; without it, frames are counted by AF_PACKET, which may be slower than they arrive",
            "allow: sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(which fathom)",
        ],
    )
}

/// The advice if a namespace, a wire or a program cannot be created.
const ALLOW_ALL: &str = "allow: sudo fathom …";

/// Runs work on one end of a veth in a temporary namespace.
fn with_veth<T: Send>(work: impl FnOnce(u32) -> fathom_sys::Result<T> + Send) -> fathom_sys::Result<T> {
    let (near, far) = (NetNs::new()?, NetNs::new()?);
    let end = |name| VethEnd { name, mac: None };
    let veth =
        Veth { near: end("eth0"), far: end("eth0"), far_namespace: Some(far.as_fd()), mtu_bytes: 1500, n_queues: 1 };
    near.enter_with(|| Netlink::open()?.add_veth(&veth))??;
    for end in [&far, &near] {
        end.enter_with(|| {
            let mut netlink = Netlink::open()?;
            let index = netlink.link("eth0")?.index;
            netlink.set_up(index)
        })??;
    }
    // A veth takes redirected frames only if its other end polls its ring.
    far.enter_with(|| ethtool::Device::open("eth0")?.switch(Offload::Merging, OffloadState::On))??;
    near.enter_with(|| work(Netlink::open()?.link("eth0")?.index))?
}

fn xdp_modes() -> Check {
    let what = "XDP modes of a veth";
    let attach = |index: u32| {
        let mut code = Assembler::new();
        code.give(XdpAction::Pass);
        let program = Program::load(ProgramType::Xdp, "fathom_doctor", &code.assemble())?;
        let modes = [XdpMode::Native, XdpMode::Generic];
        let works = |mode: &XdpMode| XdpLink::attach(&program, index, *mode).is_ok();
        Ok(modes.into_iter().filter(works).map(|mode| mode.to_string()).collect::<Vec<_>>())
    };
    match with_veth(attach) {
        Ok(modes) => {
            let state = if modes.len() == 2 { CheckState::Ok } else { CheckState::Lacks };
            Check::of(
                what,
                state,
                modes.join(", "),
                &["without native mode, frames are counted after the driver, which is slower"],
            )
        }
        Err(error) => {
            Check::of_attempt::<()>(what, Err(error), &["a device of a real driver may lack native mode", ALLOW_ALL])
        }
    }
}

/// The name of the backend that has its own check.
const PKTGEN: &str = "pktgen";

fn frame_backends() -> Check {
    let what = "ways out for frames";
    let probe = |index: u32| {
        let blueprint =
            Arc::new(FrameSet { templates: vec![FrameTemplate::fixed(vec![0; 60])], order: vec![0], n_flows: 1 });
        let load = WorkerLoad {
            frames: blueprint,
            tag: 0,
            timestamping: Timestamping::None,
            share: WorkShare { idx: 0, of: 1 },
            departures: None,
            count: Some(0),
            pktgen: None,
        };
        let port = OutputDevice {
            ifindex: index,
            name: "eth0".to_owned(),
            queueing: Queueing::Bypass,
            permit: frame_permission(),
        };
        // The kernel's pktgen has a separate check.
        let words = backend::BACKEND_NAMES.iter().filter(|word| ![backend::AUTO, PKTGEN].contains(word));
        let tried =
            |word: &&str| match backend::open_generators(word, &port, std::slice::from_ref(&load), &mut Vec::new()) {
                Ok(_) => (Some((**word).to_owned()), None),
                Err(error) => (None, Some(format!("{word}: {error}"))),
            };
        Ok(words.map(tried).unzip::<_, _, Vec<_>, Vec<_>>())
    };
    match with_veth(probe) {
        Ok((works, reasons)) => {
            let (works, reasons): (Vec<String>, Vec<String>) =
                (works.into_iter().flatten().collect(), reasons.into_iter().flatten().collect());
            let state = if reasons.is_empty() { CheckState::Ok } else { CheckState::Lacks };
            let mut check = Check::of(what, state, works.join(", "), &[]);
            check.advice = reasons;
            check
        }
        Err(error) => Check::of_attempt::<()>(
            what,
            Err(error),
            &["without root, frames leave a lab through AF_PACKET", ALLOW_ALL],
        ),
    }
}

fn threaded_napi() -> Check {
    const WHAT: &str = "devices on own cores";
    let options = Options { device: Some(Device::Router), device_core: hosts::device_core(), ..Options::default() };
    let preset = preset::find("pair").expect("the first of all presets");
    let Ok(lab) = Lab::build(preset, &options, hosts::holder_program()) else {
        return Check::of(WHAT, CheckState::Lacks, "no lab can be built", &["see network namespaces above"]);
    };
    let record = lab.device().expect("it was built with one");
    let seen = match record.core {
        Some(core) => format!("threaded NAPI, core {core}"),
        None => "on the sender's core".to_owned(),
    };
    let state = if record.core.is_some() { CheckState::Ok } else { CheckState::Lacks };
    let mut check =
        Check::of(WHAT, state, seen, &["a device of a lab is never overloaded then, so its limit cannot be found"]);
    if state == CheckState::Lacks {
        check.advice.extend(record.unavailable.iter().cloned());
    }
    check
}

fn kernel_pktgen() -> Check {
    let (state, seen) = match pktgen::PktgenDir::default().version() {
        Ok(version) => (CheckState::Ok, format!("loaded, version {version}")),
        Err(pktgen::Error::Absent(_)) => (CheckState::Note, "not loaded".to_owned()),
        Err(error) => (CheckState::Lacks, error.to_string()),
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
    Check::of_attempt(
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
    let state = if n >= 2 { CheckState::Ok } else { CheckState::Lacks };
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
    let state = if soft.is_none_or(|soft| soft >= 4096) { CheckState::Ok } else { CheckState::Note };
    let seen = soft.map_or_else(|| "unlimited".to_owned(), |soft| soft.to_string());
    Check::of("open files", state, seen, &["bounds the connections of one process", "allow: ulimit -n 65536"])
}

fn udp_buffer() -> Check {
    let text = fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap_or_default();
    let bytes: Option<u64> = text.trim().parse().ok();
    let state = if bytes.is_none_or(|bytes| bytes >= 2 << 20) { CheckState::Ok } else { CheckState::Note };
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
    if seen.is_empty() {
        return Check::of(
            "clock source",
            CheckState::Note,
            "unknown",
            &["the kernel does not tell it here: see /sys/devices/system/clocksource"],
        );
    }
    let state = if SLOW_CLOCKS.contains(&seen.as_str()) { CheckState::Note } else { CheckState::Ok };
    Check::of("clock source", state, seen, &["reading this clock is slow: it adds to every latency and costs rate"])
}

fn congestion_control() -> Check {
    let seen = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    Check::of("congestion control", CheckState::Ok, seen.trim(), &[])
}

fn calibration() -> Check {
    match Calibration::load() {
        Some(kept) => Check::of("own ceilings", CheckState::Ok, format!("measured {}", kept.made), &[]),
        None => Check::of(
            "own ceilings",
            CheckState::Note,
            "not measured",
            &["results cannot show how close they came to the tool's own ceiling", "measure: fathom calibrate"],
        ),
    }
}
