//! Turns a host into a device that divides traffic for a virtual address among targets.

use std::{net::IpAddr, num::NonZeroU32};

use fathom_sys::netlink::{
    Netlink,
    ethtool::{Offload, OffloadState},
    nftables::{Chain, FlowShare, Hook, Nftables, PacketMatch, Rule, RuleVerdict, Table, TableFamily},
};

use super::{
    BalancerDevice, Device, DeviceRecord, FittedDevice, HOST, ProgramGuard, ProgramLoader,
    balancer::Stage,
    device_process::DeviceProcess,
    fitted_device::{TABLE, on, switch, told},
    told_counters::ToldCounters,
};
use crate::{Error, Host, Result};

/// The name of the chain that translates.
const CHAIN: &str = "targets";

/// Prepares the device. Its work is done on the core that sends the frames: all devices before targets are compared with the direct way,
/// which has no core of its own either.
pub(crate) fn fit_before_targets(hosts: &[Host], device: Device, programs: &dyn ProgramLoader) -> Result<FittedDevice> {
    let dut = hosts.iter().find(|host| host.name.as_str() == HOST).expect("a topology with a device has its host");
    let targets = targets_of(hosts);
    let mut attached: Vec<Box<dyn ProgramGuard>> = Vec::new();
    let mut unavailable = Vec::new();
    match &device {
        Device::Translation => {
            on(dut, || translate(&targets))?.map_err(Error::kernel(format!("make the rules of host {HOST}")))?;
        }
        Device::Balancer(balancer) => {
            if balancer.is_xdp() {
                prepare_redirects(hosts, &mut unavailable)?;
            }
            unavailable.extend(balancer.left_by_program());
            attached = start(hosts, balancer, &targets, programs)?;
        }
        _ => {}
    }
    let record = DeviceRecord { device, core: None, threads: Vec::new(), unavailable };
    Ok(FittedDevice { record, attached })
}

/// A target as its device knows it. Both addresses are of the same IP version.
struct KnownTarget {
    name: String,
    /// The virtual address, which clients use.
    virtual_address: IpAddr,
    /// The address at which the device reaches it.
    address: IpAddr,
}

/// Starts the balancer on its host, behind those of the second tier if it has one.
fn start(
    hosts: &[Host],
    balancer: &BalancerDevice,
    targets: &[KnownTarget],
    programs: &dyn ProgramLoader,
) -> Result<Vec<Box<dyn ProgramGuard>>> {
    let device = Device::Balancer(Box::new(balancer.clone())).to_string();
    let start = |host: &Host, words: &[String]| -> Result<[Box<dyn ProgramGuard>; 2]> {
        let command = programs.process(words);
        let command = command.map_err(Error::file("find the program of the device on host", host.name.as_str()))?;
        let process = DeviceProcess::start(host, &device, command)?;
        let counters = told(host, ToldCounters::Process(process.pid()))?;
        Ok([Box::new(process), counters])
    };
    let named = |name: &str| hosts.iter().find(|host| host.name.as_str() == name).expect("the topology has it");
    let vip = targets.first().map(|target| target.virtual_address);
    let targets: Vec<(String, IpAddr)> = targets.iter().map(|target| (target.name.clone(), target.address)).collect();
    let deciding = balancer.words(Stage::Deciding, vip, &targets);
    let behind: Vec<&Host> = balancer.names_behind().iter().map(|name| named(name)).collect();
    if behind.is_empty() {
        return Ok(start(named(HOST), &deciding)?.into());
    }
    let started = behind.iter().map(|host| start(host, &deciding)).collect::<Result<Vec<_>>>()?;
    let mut started: Vec<_> = started.into_iter().flatten().collect();
    let tier: Vec<(String, IpAddr)> = behind.iter().map(|host| (host.name.to_string(), host.address())).collect();
    started.extend(start(named(HOST), &balancer.words(Stage::First, vip, &tier))?);
    Ok(started)
}

/// Has frames reach the program of a balancer one by one and whole, and those that it sends the switch: both ways to the targets are alike.
fn prepare_redirects(hosts: &[Host], unavailable: &mut Vec<String>) -> Result<()> {
    let [client, .., switched] = hosts else { unreachable!("a client, a device, targets and a switch") };
    // A redirect passes on the frame alone, without the information that its checksum is still incomplete.
    switch(client, Offload::Segmentation, OffloadState::Off)?;
    switch(client, Offload::Checksums, OffloadState::Off)?;
    // A veth that is not polled has no ring for redirected frames.
    switch(switched, Offload::Merging, OffloadState::On)?;
    let queue = || {
        let mut netlink = Netlink::open()?;
        client.interfaces.iter().try_for_each(|interface| {
            let index = netlink.link(&interface.name)?.index;
            netlink.set_fifo(index)
        })
    };
    if let Err(error) = on(client, queue)? {
        let why = format!("{error}: {}", error.source);
        unavailable.push(format!("queues on host {}: {why}; what finds a ring full there is lost", client.name));
    }
    Ok(())
}

fn targets_of(hosts: &[Host]) -> Vec<KnownTarget> {
    let target = |host: &Host| {
        let virtual_address = host.virtual_address?;
        Some(KnownTarget { name: host.name.to_string(), virtual_address, address: host.address() })
    };
    hosts.iter().filter_map(target).collect()
}

/// Installs a rule for each target, with an equal share of the flows.
fn translate(targets: &[KnownTarget]) -> fathom_sys::Result<()> {
    let n_shares = u32::try_from(targets.len()).ok().and_then(NonZeroU32::new).expect("there is a target");
    let rule = |(place, target): (u32, &KnownTarget)| Rule {
        matching: PacketMatch::Share(target.virtual_address, FlowShare { place, n_shares }),
        verdict: RuleVerdict::Translate(target.address),
    };
    let rules = (0..).zip(targets).map(rule).collect();
    let family = if targets[0].virtual_address.is_ipv4() { TableFamily::Ipv4 } else { TableFamily::Ipv6 };
    let chain = Chain { name: CHAIN, hook: Some(Hook::Translation), rules };
    Nftables::open()?.install(Table { family, name: TABLE }, &[chain])
}
