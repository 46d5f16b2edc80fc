//! Runs pktgen's job with fathom's own engine if the kernel has no pktgen: the same block, from the kind `frames`.
//!
//! Settings that the engine does not support are refused by name. No part of a packet is dropped silently.

use std::{
    net::{IpAddr, Ipv4Addr},
    thread,
};

use fathom_engine::{StopFlag, Test, TrialContext};
use fathom_model::{
    Endpoints, MacAddress, Phases, Record, Role, Side,
    names::count::{SEND_REFUSED, SENT},
    units::Nanos,
};
use fathom_packet::kinds::frames::SEND_TIME_NS;
use fathom_pktgen::{
    ChangedSetting, CommandResult, FlagState, Params, PktgenAddresses, PktgenSetting, RunResult, RunStatus, Status,
    Value, XmitMode,
};
use fathom_sys::{
    clock,
    netlink::{Link, Netlink},
    policy::Policy,
    process::{signal, threads},
};

use super::{
    device_params,
    job::{JobDevice, PktgenJob},
    packets::{self, EnginePackets, UnsupportedParameter},
};
use fathom_run::{
    exit::{Exit, UserError, engine_error},
    registry,
};

const KIND: &str = "frames";
/// The port passed to the kind. The frame line of the job has its own ports.
const DISCARD: u16 = 9;
/// The smallest Ethernet frame, without the frame check sequence.
const SIZE_MIN: u64 = 60;
/// Every run is bounded: a count of zero ends after one hour, or earlier on a signal.
const RUN_MAX: Nanos = Nanos::from_secs(3600);
/// The delay from the time when the last device is ready to the common start.
const HEAD_START: Nanos = Nanos::from_millis(50);
/// The interval between two checks for a signal.
const SIGNAL_CHECK_EVERY: Nanos = Nanos::from_millis(20);

/// The load of one device.
#[derive(Debug, Clone)]
struct DeviceLoad {
    params: Params,
    packets: EnginePackets,
    remarks: Vec<String>,
}

/// The support of a setting by this engine.
enum SettingSupport {
    /// It defines the packets or their order.
    Supported,
    /// It has no effect here.
    NoEffect,
    /// Only the kernel supports it.
    KernelOnly,
}

impl SettingSupport {
    fn of(setting: &PktgenSetting) -> Self {
        match (setting.name(), setting.value()) {
            ("imix_weights", Value::Mix(weights)) if weights.iter().any(|weight| weight.size < SIZE_MIN) => {
                Self::KernelOnly
            }
            ("pkt_size" | "min_pkt_size" | "max_pkt_size", Value::Number(..SIZE_MIN))
            | ("frags" | "flows" | "queue_map_min" | "queue_map_max" | "skb_priority", Value::Number(1..))
            | ("node" | "spi", _)
            | ("xmit_mode", Value::Mode(XmitMode::NetifReceive))
            | ("flag", Value::Flag("IPSEC" | "MPLS_RND" | "QUEUE_MAP_RND", FlagState::On)) => Self::KernelOnly,
            ("clone_skb" | "burst", Value::Number(2..)) => Self::NoEffect,
            ("flag", Value::Flag("QUEUE_MAP_CPU" | "NO_TIMESTAMP" | "NODE" | "SHARED", FlagState::On)) => {
                Self::NoEffect
            }
            _ => Self::Supported,
        }
    }
}

/// Returns the error for a feature of the kernel's pktgen, with the command that loads it.
fn kernel_only_error(what: &str, why: Option<&str>) -> UserError {
    let user_error =
        UserError::new(Exit::Preflight, format!("`{what}` needs the kernel's pktgen, which is not loaded"));
    let user_error = why.into_iter().fold(user_error, |user_error, why| user_error.with_line("why", why));
    user_error.with_line("fix", "sudo modprobe pktgen        # a kernel with CONFIG_NET_PKTGEN")
}

impl DeviceLoad {
    fn of(device: &JobDevice, own: MacAddress) -> Result<Self, UserError> {
        let params = device_params::params(device, own);
        let mut remarks = Vec::new();
        for setting in &device.settings {
            match SettingSupport::of(setting) {
                SettingSupport::Supported => {}
                SettingSupport::NoEffect => {
                    remarks.push(format!("`{setting}` makes no difference to fathom's own engine"));
                }
                SettingSupport::KernelOnly => return Err(kernel_only_error(&setting.to_string(), None)),
            }
        }
        let packets = EnginePackets::of(&params).map_err(|UnsupportedParameter { parameter, why }| {
            let setting = device.settings.iter().rfind(|setting| setting.name() == parameter);
            kernel_only_error(&setting.map_or_else(|| parameter.to_owned(), ToString::to_string), Some(&why))
        })?;
        // The packets report their own size, and settings without effect were reported above.
        let is_made = |asked: &PktgenSetting| {
            !asked.name().ends_with("pkt_size") && matches!(SettingSupport::of(asked), SettingSupport::Supported)
        };
        let changes = ChangedSetting::all(&device.name, &device.settings, &params).into_iter();
        let changes = changes.filter(|change| is_made(&change.requested));
        remarks.extend(changes.map(|change| format!("{change}: {}", change.fix())));
        remarks.extend(packets.remark.clone());
        Ok(Self { params, packets, remarks })
    }
}

/// A device that is ready to send.
struct ReadyDevice {
    own: Option<IpAddr>,
    load: DeviceLoad,
    test: Box<dyn Test>,
}

impl ReadyDevice {
    fn prepare(device: &JobDevice) -> anyhow::Result<Self> {
        let mut netlink = Netlink::open()?;
        let interface = device.interface();
        let missing = |what: String| UserError::new(Exit::Preflight, what);
        let link = netlink.link(interface).map_err(|_| missing(format!("there is no device {interface}")))?;
        let load = DeviceLoad::of(device, link.mac.unwrap_or_default())?;
        let own = own_address(&mut netlink, &link, &load.params)?;
        let kind = registry::kind(KIND)?;
        let role = Role {
            test: "pktgen".to_owned(),
            kind: KIND.to_owned(),
            side: Side::Initiator,
            settings: load.packets.settings(&load.params).complete(kind.options())?,
            phases: phases(),
            address: own,
            interface: Some(interface.to_owned()),
            peer: other_end(&load.params),
            cores: Vec::new(),
            meeting: fathom_model::PeerAddresses::default(),
            seed: clock::wall().0,
        };
        let test = kind.prepare(&role, &Policy::anything()).map_err(|error| engine_error(&error))?;
        Ok(Self { own, load, test })
    }
}

/// Returns the endpoint facts that a responder would report. The other end is not fathom, so they come from the job.
fn other_end(params: &Params) -> Endpoints {
    let none = Ipv4Addr::UNSPECIFIED;
    let (address, address_v6) = match params.addresses {
        // A group address is only in the frame line of the job, because the kind requires a single host.
        PktgenAddresses::V4 { dst: (first, _), .. } => {
            (first.filter(|to| !to.is_multicast() && !to.is_broadcast()), None)
        }
        PktgenAddresses::V6 { dst: [one, min, _], .. } => (None, Some(if min.is_unspecified() { one } else { min })),
    };
    let told = [
        ("mac", packets::single(params).to_string()),
        ("address", address.unwrap_or(none).to_string()),
        ("port", DISCARD.to_string()),
        ("trial", (clock::now().0 & 0xffff_ffff).to_string()),
    ];
    let told = told.into_iter().chain(address_v6.map(|address| ("address_v6", address.to_string())));
    told.map(|(key, value)| (key.to_owned(), value)).collect()
}

fn phases() -> Phases {
    Phases {
        warmup_max_ns: Nanos::ZERO,
        is_warmup_whole: false,
        measure_ns: RUN_MAX,
        interval_ns: Nanos::from_millis(100),
    }
}

/// Returns the device's own address: the requested source, or the first address that is not link-local.
///
/// A device without an address can send only from foreign sources.
fn own_address(netlink: &mut Netlink, link: &Link, params: &Params) -> anyhow::Result<Option<IpAddr>> {
    let (asked, family): (Option<IpAddr>, _) = match params.addresses {
        PktgenAddresses::V4 { src, .. } => (src.0.map(IpAddr::V4), "IPv4"),
        PktgenAddresses::V6 { src: [one, ..], .. } => {
            (Some(one).filter(|one| !one.is_unspecified()).map(IpAddr::V6), "IPv6")
        }
    };
    let addresses = netlink.addresses()?.into_iter().filter(|(index, _)| *index == link.index);
    let own: Vec<IpAddr> = addresses.map(|(_, own)| own).filter(|own| own.is_ipv4() == (family == "IPv4")).collect();
    let is_of_link = |own: &&IpAddr| matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
    let found = own.iter().find(|own| asked == Some(**own)).or_else(|| own.iter().min_by_key(is_of_link)).copied();
    if found.is_none() && asked.is_none() {
        let what = format!("{} has no address of {family}", link.name);
        return Err(UserError::new(Exit::Preflight, what).with_line("fix", "ip address add").into());
    }
    Ok(found)
}

/// The result of a job: a block per device, and remarks.
pub(super) struct JobResult {
    pub(super) statuses: Vec<Status>,
    pub(super) engine: String,
    pub(super) remarks: Vec<String>,
    pub(super) is_interrupted: bool,
}

/// Sends with fathom's own engine.
pub(super) fn send(job: &PktgenJob) -> anyhow::Result<JobResult> {
    let signals = signal::watch()?;
    let ready: Vec<ReadyDevice> = job.devices.iter().map(ReadyDevice::prepare).collect::<anyhow::Result<_>>()?;
    let remarks = ready.iter().flat_map(|ready| ready.load.remarks.clone()).collect();
    let stop = StopFlag::default();
    let start = clock::now() + HEAD_START;
    let outcomes = thread::scope(|scope| {
        let run = |ready: ReadyDevice| {
            let session = TrialContext { stop: stop.clone(), ..TrialContext::new(start, phases()) };
            threads::start_within(scope, "pktgen", move || {
                let ReadyDevice { own, load, test } = ready;
                test.run(&session).map(|record| (status(own, load, &record), record))
            })
        };
        let running: Vec<_> =
            ready.into_iter().map(run).collect::<fathom_sys::Result<_>>().inspect_err(|_| stop.abort())?;
        while !running.iter().all(thread::ScopedJoinHandle::is_finished) {
            if let Ok(Some(_)) = signals.wait_until(clock::now() + SIGNAL_CHECK_EVERY) {
                stop.abort();
                // From here on, only the end of the run is left to wait for.
                break;
            }
        }
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok::<_, fathom_sys::Error>(running.into_iter().map(join).collect::<Vec<Result<(Status, Record), _>>>())
    });
    let sent = outcomes?.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| engine_error(&error))?;
    let notes = sent.iter().flat_map(|(_, record)| &record.notes);
    let engine =
        notes.clone().find(|note| note.id == "backend").map_or_else(|| KIND.to_owned(), |note| note.text.clone());
    let statuses = sent.into_iter().map(|(status, _)| status).collect();
    Ok(JobResult { statuses, engine, remarks, is_interrupted: signals.received().is_some() })
}

/// Converts a record to pktgen's status.
fn status(own: Option<IpAddr>, load: DeviceLoad, record: &Record) -> Status {
    let total = |counter: &str| record.totals.get(counter).copied().unwrap_or(0);
    let (sent, errors) = (total(SENT), total(SEND_REFUSED));
    let took = Nanos(total(SEND_TIME_NS));
    // Time without CPU usage was spent waiting.
    let idle = took.since(record.cpu_ns);
    let started = record.start_ns;
    // Refused packets were built as well.
    let progress = load.packets.after(sent + errors, &load.params);
    let (source, destination) = progress.addresses;
    let source = source.or(own.map(|own| own.to_string()));
    let current = RunStatus {
        sent,
        errors,
        imix_size_counts: progress.imix_size_counts,
        started,
        stopped: started + took,
        idle,
        seq_num: sent + 1,
        mac_offsets: progress.mac_offsets,
        addresses: (source.unwrap_or_default(), destination),
        ports: progress.ports,
        queue_map: 0,
        flows: 0,
    };
    let mut finished = RunResult::of(sent, progress.size_bytes, (took, idle), errors);
    if let Some(bytes) = progress.mixed_bytes {
        let bits = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(took.0.max(1));
        finished.bps = u64::try_from(bits).unwrap_or(u64::MAX);
    }
    Status { params: load.params, progress: current, last_result: CommandResult::Finished(finished) }
}

#[cfg(test)]
mod tests {
    use super::{
        super::device_params::tests::{OWN, device},
        *,
    };

    fn load(lines: &[&str]) -> Result<DeviceLoad, UserError> {
        DeviceLoad::of(&device(lines), OWN)
    }

    #[test]
    fn what_only_the_kernels_pktgen_can_do_is_refused_by_name() {
        for line in [
            "flag MPLS_RND",
            "flag IPSEC",
            "flows 8",
            "frags 2",
            "imix_weights 42,7 64,1",
            "mpls 0001010a",
            "node 0",
            "pkt_size 42",
            "queue_map_max 3",
            "skb_priority 1",
            "spi 1",
            "xmit_mode netif_receive",
        ] {
            let error = load(&[line]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{line}` needs the kernel's pktgen")), "{error}");
        }
        let error = load(&["dst6_min fd00::1", "dst6_max fd00::9"]).unwrap_err().to_string();
        assert!(error.starts_with("`dst6_max fd00::9` needs the kernel's pktgen"), "{error}");
        assert!(error.contains("random IPv6 destinations come from one network"), "{error}");
        assert!(load(&["dst6_min fd00::1"]).unwrap_err().to_string().starts_with("`dst6_max` needs"));
    }

    #[test]
    fn what_makes_no_difference_or_was_made_something_else_is_told() {
        let remarks = |lines: &[&str]| load(lines).unwrap().remarks;
        assert_eq!(remarks(&["burst 8"]), ["`burst 8` makes no difference to fathom's own engine"]);
        let quiet = ["burst 1", "clone_skb 0", "flows 0", "debug 0", "clear_counters", "ratep 1000", "vlan_id 9999"];
        assert_eq!(remarks(&quiet), [""; 0]);
        let bit = remarks(&["vlan_p 3"]);
        assert!(bit[0].starts_with("pktgen took `vlan_p 3` for e@0 and made it absent: set vlan_id first"), "{bit:?}");
        assert!(remarks(&["ratep 3000000"])[0].contains("3003003.003 packets/s"));
        assert!(remarks(&["vlan_id 5"])[0].starts_with("packets of 60 bytes have 64"));
        assert_eq!(remarks(&["vlan_p 3", "vlan_id 5", "vlan_p 2", "pkt_size 64"]), [""; 0]);
        assert_eq!(remarks(&["flag IPSRC_RND", "flag !IPSRC_RND"]), [""; 0]);
    }
}
