//! Turns a host into its device: threads, rules, programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fathom_sys::{
    netlink::{
        Link, Netlink,
        ethtool::{self, Offload, OffloadState},
        nftables::{Chain, Hook, Nftables, PacketMatch, Rule, RuleVerdict, Table, TableFamily},
        threaded_napi,
    },
    process::affinity,
};
use serde::{Deserialize, Serialize};

use super::{
    Device, DeviceRedirect, HOST, Program, ProgramGuard, ProgramLoader, RuleSet,
    impairment::{ImpairedPath, ImpairedSockets},
    told_counters::{self, CounterServer, ToldCounters},
};
use crate::{Error, Host, Options, Result};

/// The name of a rule set's tables; below, the names of the chains in them.
pub(super) const TABLE: &str = "fathom";
/// The bytes of an Ethernet header with a VLAN tag.
const ETHERNET_HEADERS: usize = 18;
/// The chain at which packets enter the rule set.
const ENTRY: &str = "forward";
/// The chain with the rules that do not match.
const RULES: &str = "rules";
/// Nobody has one of these addresses (RFC 5737, RFC 3849), so no rule matches.
const NOBODY: [(TableFamily, IpAddr); 2] = [
    (TableFamily::Ipv4, IpAddr::V4(Ipv4Addr::new(192, 0, 2, 0))),
    (TableFamily::Ipv6, IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0))),
];

/// The description of a prepared device, for tests that measure through it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// The device.
    pub device: Device,
    /// The core that polls its interfaces; absent if they are polled on the core that sends the frames.
    pub core: Option<usize>,
    /// The threads that poll its interfaces.
    pub threads: Vec<Thread>,
    /// The missing features and their consequences, as sentences.
    #[serde(rename = "losses")]
    pub unavailable: Vec<String>,
}

/// A kernel thread that polls an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// The interface.
    pub interface: String,
    /// The thread id.
    pub pid: u32,
}

/// A device with the programs that must stay attached during its lifetime.
#[derive(Debug)]
pub(crate) struct FittedDevice {
    pub(crate) record: DeviceRecord,
    #[expect(dead_code, reason = "programs are held, and taken off when this is dropped")]
    pub(crate) attached: Vec<Box<dyn ProgramGuard>>,
}

/// Turns the middle host into the device, and makes sure that frames reach it one by one.
pub(crate) fn fit(
    hosts: &[Host],
    device: Device,
    options: &Options,
    programs: &dyn ProgramLoader,
) -> Result<FittedDevice> {
    let dut = hosts.iter().find(|host| host.name.as_str() == HOST).expect("a topology with a device has its host");
    let mut unavailable = Vec::new();
    for end in hosts.iter().filter(|host| host.name.as_str() != HOST) {
        // Large segments from a sender with TSO would bypass the ring of the device.
        switch(end, Offload::Segmentation, OffloadState::Off)?;
        if matches!(device, Device::Impairment(_)) {
            // A damaged frame is only found by a checksum that was complete when it was sent.
            switch(end, Offload::Checksums, OffloadState::Off)?;
        }
        if device.is_program() {
            // A veth that is not polled has no ring for redirected frames. A redirect passes on only the frame itself, without the
            // information that its checksum is still incomplete.
            switch(end, Offload::Merging, OffloadState::On)?;
            switch(end, Offload::Checksums, OffloadState::Off)?;
        }
    }
    // Threads take single frames; the kernel's devices need the ring that merging brings.
    let merging = if matches!(device, Device::Impairment(_)) { OffloadState::Off } else { OffloadState::On };
    switch(dut, Offload::Merging, merging)?;
    let threads = if device.has_own_core() { threaded(dut, &mut unavailable)? } else { Vec::new() };
    let core = pin(&threads, options.device_core, &mut unavailable);
    if let Device::Filter(rules) = device {
        on(dut, || install(rules))?.map_err(Error::kernel(format!("make the rules of host {HOST}")))?;
    }
    let mut attached = attach(dut, hosts, &device, programs)?;
    if !threads.is_empty() {
        attached.push(told(dut, ToldCounters::Threads(threads.iter().map(|thread| thread.pid).collect()))?);
    }
    Ok(FittedDevice { record: DeviceRecord { device, core, threads, unavailable }, attached })
}

impl ProgramGuard for CounterServer {}

/// Starts to tell the counters of a device on its host.
pub(super) fn told(dut: &Host, counters: ToldCounters) -> Result<Box<dyn ProgramGuard>> {
    let tell = |error| Error::file("tell the counters of", dut.name.as_str())(error);
    let listener = on(dut, told_counters::listen)?.map_err(|error| tell(error.source))?;
    Ok(Box::new(CounterServer::start(listener, counters).map_err(tell)?))
}

pub(super) fn on<T: Send>(host: &Host, work: impl FnOnce() -> T + Send) -> Result<T> {
    host.enter_with(work)
}

pub(super) fn switch(host: &Host, offload: Offload, to: OffloadState) -> Result<()> {
    let all = || host.interfaces.iter().try_for_each(|one| ethtool::Device::open(&one.name)?.switch(offload, to));
    on(host, all)?.map_err(Error::kernel(format!("prepare the interfaces of host {}", host.name)))
}

/// Makes threads poll the interfaces of a host, and finds these threads.
fn threaded(dut: &Host, unavailable: &mut Vec<String>) -> Result<Vec<Thread>> {
    let switched =
        on(dut, || dut.interfaces.iter().try_for_each(|interface| threaded_napi::set_threaded(&interface.name)))?;
    if let Err(error) = switched {
        let why = format!("{error}: {}", error.source);
        unavailable.push(format!("threaded NAPI: {why}; the device runs on the sender's core and is never overloaded"));
        return Ok(Vec::new());
    }
    threads(dut, unavailable)
}

/// Finds the threads that poll the interfaces of a host.
fn threads(dut: &Host, unavailable: &mut Vec<String>) -> Result<Vec<Thread>> {
    let look = || -> fathom_sys::Result<Vec<Thread>> {
        let links = Netlink::open()?.links()?;
        let name = |index| links.iter().find(|link: &&Link| link.index == index).map(|link| link.name.clone());
        let thread = |poll: threaded_napi::Poll| Some(Thread { interface: name(poll.device)?, pid: poll.thread? });
        let mut threads: Vec<Thread> = threaded_napi::polls()?.into_iter().filter_map(thread).collect();
        // The order of the kernel's list is not defined.
        threads.sort_by(|one, other| (&one.interface, one.pid).cmp(&(&other.interface, other.pid)));
        Ok(threads)
    };
    Ok(on(dut, look)?.unwrap_or_else(|error| {
        let why = format!("{error}: {}", error.source);
        unavailable
            .push(format!("the threads of the device are not known: {why}; they run where the scheduler puts them"));
        Vec::new()
    }))
}

/// Pins the threads to the device's core; returns the core if all threads are pinned.
fn pin(threads: &[Thread], core: Option<usize>, unavailable: &mut Vec<String>) -> Option<usize> {
    let core = core.filter(|_| !threads.is_empty())?;
    for thread in threads {
        if let Err(error) = affinity::pin_other(thread.pid, core) {
            let why = format!("{error}: {}", error.source);
            unavailable.push(format!("the thread of {} is not pinned: {why}", thread.interface));
            return None;
        }
    }
    Some(core)
}

/// Installs the same rules for IPv4 and IPv6 packets.
fn install(rules: RuleSet) -> fathom_sys::Result<()> {
    let mut nft = Nftables::open()?;
    NOBODY
        .into_iter()
        .try_for_each(|(family, nobody)| nft.install(Table { family, name: TABLE }, &chains(rules, nobody)))
}

/// The chains of a rule set: the entry chain, and the rules that packets are compared with.
fn chains(rules: RuleSet, nobody: IpAddr) -> Vec<Chain<'static>> {
    let to_all = |verdict| Rule { matching: PacketMatch::Any, verdict };
    let compare = Rule { matching: PacketMatch::Source(nobody), verdict: RuleVerdict::Drop };
    let planted = rules.drop_one_of.map(|n| Rule { matching: PacketMatch::OneOf(n), verdict: RuleVerdict::Drop });
    let entry = std::iter::once(to_all(RuleVerdict::Jump(RULES))).chain(planted).chain([to_all(RuleVerdict::Accept)]);
    let n_rules = usize::try_from(rules.n_rules).unwrap_or(usize::MAX);
    vec![
        Chain { name: ENTRY, hook: Some(Hook::Forward), rules: entry.collect() },
        Chain { name: RULES, hook: None, rules: vec![compare; n_rules] },
    ]
}

/// Attaches the programs of a device to its interfaces.
fn attach(
    dut: &Host,
    hosts: &[Host],
    device: &Device,
    programs: &dyn ProgramLoader,
) -> Result<Vec<Box<dyn ProgramGuard>>> {
    let link = |name: &'static str| {
        let found = on(dut, || Netlink::open()?.link(name))?;
        found.map_err(Error::kernel(format!("find {name} of host {HOST}")))
    };
    let (near, far) = (link("eth0")?, link("eth1")?);
    if let Device::Impairment(impairment) = device {
        let frame_max = usize::try_from(near.mtu_bytes).unwrap_or(usize::MAX).saturating_add(ETHERNET_HEADERS);
        let sockets = on(dut, || ImpairedSockets::open(near.index, far.index))?;
        let sockets = sockets.map_err(Error::kernel(format!("open the wires of host {HOST}")))?;
        let path = ImpairedPath::start(*impairment, sockets, frame_max);
        return Ok(vec![Box::new(path.map_err(Error::file("start the threads of", HOST))?)]);
    }
    let mac_of = |link: &Link| link.mac.expect("a veth has an Ethernet address");
    let onward = |to: &Link, host: &Host| {
        let destination = host.interfaces.first().expect("a host has an interface").mac;
        DeviceRedirect { to: to.index, destination, source: mac_of(to) }
    };
    let (a, b) = (hosts.first().expect("three hosts"), hosts.last().expect("three hosts"));
    let (there, back) = (onward(&far, b), onward(&near, a));
    let wanted: Vec<(&Link, Program)> = match device {
        Device::Redirect => vec![(&near, Program::Redirect(there)), (&far, Program::Redirect(back))],
        Device::Policer(policer) => vec![(&near, Program::Policer(*policer, there)), (&far, Program::Redirect(back))],
        Device::Router
        | Device::Squeeze(_)
        | Device::Bridge
        | Device::Filter(_)
        | Device::Impairment(_)
        | Device::Translation
        | Device::Balancer(_) => Vec::new(),
    };
    let one = |(link, program): &(&Link, Program)| {
        let attached = on(dut, || programs.attach(program, link.index))?;
        attached.map_err(Error::kernel(format!("put the program of {device} on {} of host {HOST}", link.name)))
    };
    wanted.iter().map(one).collect()
}
