//! Where pktgen may send: a lab of ours, or what the user has allowed, destinations and foreign sources alike.

use std::net::{IpAddr, Ipv4Addr};

use fathom_lab::{Lab, StateFolder};
use fathom_packet::pktgen::{Setting, Switch, Value};
use fathom_sys::{namespace::NetNs, netlink::Netlink};

use super::job::{Device, Job};
use crate::{
    exit::{Exit, Screen},
    target::Allowed,
};

/// Refuses a job that would send where nobody has allowed it.
pub(super) fn check(job: &Job) -> anyhow::Result<()> {
    if is_in_a_lab()? {
        return Ok(());
    }
    let allowed = Allowed::gather(std::iter::empty())?;
    let own: Vec<IpAddr> = Netlink::open()?.addresses()?.into_iter().map(|(_, address)| address).collect();
    for device in &job.devices {
        destinations(device, &allowed)?;
        sources(device, &allowed, &own)?;
    }
    Ok(())
}

/// Whether this network namespace belongs to a lab that is up.
fn is_in_a_lab() -> anyhow::Result<bool> {
    let here = NetNs::current()?;
    let state = StateFolder::from_environment()?;
    for (name, _) in fathom_lab::list(&state)? {
        let Ok(lab) = Lab::find(&state, &name) else { continue };
        for host in lab.hosts() {
            if host.namespaces().net.is_same(&here)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn refused(what: String, why: &str) -> Screen {
    Screen::new(Exit::Preflight, what).line("why", why)
}

/// The last value of a parameter.
fn last<'a>(device: &'a Device, name: &str) -> Option<&'a Value> {
    device.settings.iter().rev().find(|setting| setting.name() == name).map(Setting::value)
}

fn address(device: &Device, name: &str) -> Option<IpAddr> {
    match last(device, name) {
        Some(Value::Address(address)) => Some(*address),
        _ => None,
    }
}

fn destinations(device: &Device, allowed: &Allowed) -> Result<(), Screen> {
    let name = &device.name;
    let first = ["dst6_min", "dst6", "dst_min", "dst"].iter().find_map(|name| address(device, name));
    let Some(first) = first else {
        return Err(refused(format!("{name} has no destination"), "pktgen would send to 0.0.0.0")
            .line("use", "-d ADDRESS, or dst ADDRESS"));
    };
    let end = ["dst6_max", "dst_max"]
        .iter()
        .find_map(|name| address(device, name))
        .filter(|end| end.is_ipv4() == first.is_ipv4());
    range(allowed, (first, end.unwrap_or(first)))?;
    let mac = match last(device, "dst_mac") {
        Some(Value::Mac(mac)) if !mac.is_group() && mac.0 != [0; 6] => Ok(()),
        Some(Value::Mac(mac)) => {
            Err(refused(format!("{mac} is never a target"), "it is no address of a single device"))
        }
        _ => Err(refused(
            format!("{name} has no dst_mac"),
            "pktgen resolves no addresses, and would send to 00:00:00:00:00:00",
        )),
    };
    mac.map_err(|screen| screen.line("try", format!("ip neighbour get {first} dev {}", device.interface())))?;
    let counts = ["dst_mac_count", "src_mac_count"];
    let many = device.settings.iter().any(|setting| {
        let is_counted = counts.contains(&setting.name()) && !matches!(setting.value(), Value::Number(0 | 1));
        is_counted || matches!(setting.value(), Value::Flag("MACDST_RND" | "MACSRC_RND", Switch::On))
    });
    if many || last(device, "src_mac").is_some() {
        let why = "outside labs frames have the device's own address, and one destination";
        return Err(refused(format!("{name} would send with foreign addresses of Ethernet"), why)
            .line("try", "in a lab: fathom lab up pair; fathom lab exec pair a -- fathom as pktgen …"));
    }
    Ok(())
}

fn sources(device: &Device, allowed: &Allowed, own: &[IpAddr]) -> Result<(), Screen> {
    let first = ["src6", "src_min"].iter().find_map(|name| address(device, name));
    let end = address(device, "src_max");
    match (first, end) {
        (None, None) => Ok(()),
        (Some(first), None) if own.contains(&first) => Ok(()),
        (Some(first), Some(end)) if first == end && own.contains(&first) => Ok(()),
        (first, end) => {
            let least = first.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
            range(allowed, (least, end.unwrap_or(least)))
                .map_err(|screen| screen.line("why", "it is a source that is not this host's"))
        }
    }
}

/// Refuses a range of which a part is not allowed.
fn range(allowed: &Allowed, (first, end): (IpAddr, IpAddr)) -> Result<(), Screen> {
    let command = |screen: Screen| screen.line("or", format!("FATHOM_ALLOW={first} fathom as pktgen …"));
    allowed.check(first, &first.to_string(), "fathom packet …").map_err(command)?;
    allowed.check(end, &end.to_string(), "fathom packet …").map_err(command)?;
    let is_whole = first == end || allowed.covers((first, end));
    if is_whole {
        return Ok(());
    }
    Err(command(refused(
        format!("{first} to {end} is not what you have allowed"),
        "both ends are, and not all between them",
    )))
}
