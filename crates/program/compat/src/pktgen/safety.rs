//! The permitted targets of pktgen: a fathom lab, or addresses that the user allowed, for destinations and foreign sources
//! alike.

use std::net::{IpAddr, Ipv4Addr};

use fathom_model::MacAddress;
use fathom_packet::kinds::frames::neighbour_towards;
use fathom_pktgen::{FlagState, Params, PktgenAddresses, PktgenSetting, Value};
use fathom_sys::netlink::Netlink;

use super::{
    device_params,
    job::{JobDevice, PktgenJob},
};
use fathom_run::{
    allow::AllowList,
    exit::{Exit, UserError, engine_error},
    target,
};

/// Refuses a job that would send to a destination that is not allowed.
pub(super) fn check(job: &PktgenJob, allowed: &AllowList) -> anyhow::Result<()> {
    if target::is_in_lab() {
        return Ok(());
    }
    let mut netlink = Netlink::open()?;
    let own: Vec<IpAddr> = netlink.addresses()?.into_iter().map(|(_, address)| address).collect();
    for device in &job.devices {
        // The device's own MAC address does not matter here, because no other source is permitted.
        let Params { addresses, .. } = device_params::params(device, MacAddress::default());
        check_destinations(device, &addresses, allowed)?;
        check_sources(&addresses, allowed, &own)?;
        check_route(device, destinations(&addresses), &mut netlink)?;
    }
    Ok(())
}

/// Refuses broadcasts, a device without a route to the destinations, and a neighbor that is not on the way to them.
fn check_route(device: &JobDevice, (first, end): (IpAddr, IpAddr), netlink: &mut Netlink) -> anyhow::Result<()> {
    if let Some(all) = netlink.broadcasts()?.into_iter().find(|all| (first..=end).contains(&IpAddr::V4(*all))) {
        let why = "it is the broadcast address of a network of this host";
        return Err(refused(format!("{all} is never a target"), why).into());
    }
    let link = netlink.link(device.interface())?;
    if netlink.next_hop(end)?.link != link.index {
        return Err(refused(
            format!("{} does not lead to {end}", link.name),
            "this host sends to it by another device",
        )
        .with_line("try", format!("ip route get {end}"))
        .into());
    }
    let known = neighbour_towards(netlink, link.index, &link.name, first).map_err(|error| engine_error(&error))?;
    match last(device, "dst_mac") {
        Some(Value::Mac(asked)) if *asked != known => {
            let why = format!("this host knows {first}, or the router to it, as {known}");
            Err(refused(format!("{asked} is not on the way to {first}"), &why).into())
        }
        _ => Ok(()),
    }
}

fn refused(what: String, why: &str) -> UserError {
    UserError::new(Exit::Preflight, what).with_line("why", why)
}

/// Returns the last value of a parameter.
fn last<'a>(device: &'a JobDevice, name: &str) -> Option<&'a Value> {
    device.settings.iter().rev().find(|setting| setting.name() == name).map(PktgenSetting::value)
}

/// Returns the first and the last destination, in pktgen's order.
fn destinations(addresses: &PktgenAddresses) -> (IpAddr, IpAddr) {
    match *addresses {
        PktgenAddresses::V4 { dst: (first, last), .. } => ends(first, last),
        PktgenAddresses::V6 { dst: [one, min, _], .. } if min.is_unspecified() => (one.into(), one.into()),
        // All values in between: (random | lowest) & highest keeps the common prefix of both.
        PktgenAddresses::V6 { dst: [_, min, max], .. } => (min.into(), max.into()),
    }
}

/// Returns the first and the last source, or `None` if it is the device's own address.
fn sources(addresses: &PktgenAddresses) -> Option<(IpAddr, IpAddr)> {
    match *addresses {
        PktgenAddresses::V4 { src: (first, last), .. } => first.or(last).map(|_| ends(first, last)),
        PktgenAddresses::V6 { src: [one, ..], .. } => (!one.is_unspecified()).then_some((one.into(), one.into())),
    }
}

fn ends(first: Option<Ipv4Addr>, last: Option<Ipv4Addr>) -> (IpAddr, IpAddr) {
    let first = first.unwrap_or(Ipv4Addr::UNSPECIFIED);
    (first.into(), last.unwrap_or(first).into())
}

fn check_destinations(device: &JobDevice, addresses: &PktgenAddresses, allowed: &AllowList) -> Result<(), UserError> {
    let name = &device.name;
    let (first, end) = destinations(addresses);
    if first.is_unspecified() {
        return Err(refused(format!("{name} has no destination"), &format!("pktgen would send to {first}"))
            .with_line("use", "-d ADDRESS, dst ADDRESS, or dst6 ADDRESS where a parameter of IPv6 is set"));
    }
    range(allowed, (first, end))?;
    let mac = match last(device, "dst_mac") {
        Some(Value::Mac(mac)) if !mac.is_group() && mac.0 != [0; 6] => Ok(()),
        Some(Value::Mac(mac)) => {
            Err(refused(format!("{mac} is never a target"), "it is not the address of a single device"))
        }
        _ => Err(refused(
            format!("{name} has no dst_mac"),
            "pktgen resolves no addresses, and would send to 00:00:00:00:00:00",
        )),
    };
    mac.map_err(|user_error| {
        user_error.with_line("try", format!("ip neighbour get {first} dev {}", device.interface()))
    })?;
    let counts = ["dst_mac_count", "src_mac_count"];
    let many = device.settings.iter().any(|setting| {
        let is_counted = counts.contains(&setting.name()) && !matches!(setting.value(), Value::Number(0 | 1));
        is_counted || matches!(setting.value(), Value::Flag("MACDST_RND" | "MACSRC_RND", FlagState::On))
    });
    if many || last(device, "src_mac").is_some() {
        let why = "outside labs frames have the device's own address, and one destination";
        return Err(refused(format!("{name} would send with foreign addresses of Ethernet"), why)
            .with_line("try", "in a lab: fathom lab up pair; fathom lab exec pair a -- fathom as pktgen …"));
    }
    Ok(())
}

fn check_sources(addresses: &PktgenAddresses, allowed: &AllowList, own: &[IpAddr]) -> Result<(), UserError> {
    match sources(addresses) {
        None => Ok(()),
        Some((first, end)) if first == end && own.contains(&first) => Ok(()),
        Some(ends) => range(allowed, ends)
            .map_err(|user_error| user_error.with_line("why", "it is a source that is not this host's")),
    }
}

/// Refuses a range that is not completely allowed.
fn range(allowed: &AllowList, (first, end): (IpAddr, IpAddr)) -> Result<(), UserError> {
    allowed.check(&first.to_string(), &[first])?;
    allowed.check(&end.to_string(), &[end])?;
    let is_whole = first == end || allowed.covers((first, end));
    if is_whole {
        return Ok(());
    }
    Err(refused(
        format!("not all addresses from {first} to {end} are allowed"),
        "both ends are allowed, but not all addresses between them: allow a network that contains all of them",
    ))
}
