//! Reads the facts of network interfaces from the kernel, through rtnetlink and ethtool.

use fathom_model::units::{BitsPerSec, Bytes, approximate};
use fathom_sys::{
    Result,
    netlink::{Link, MacAddress, Netlink, ethtool::Device, qdisc::QdiscPlace},
};

use super::{InterfaceFacts, Queues};

/// Returns the interfaces in the network namespace of the calling thread.
///
/// Facts that a device does not report are missing. A device that disappears meanwhile reports nothing more.
///
/// # Errors
/// If the kernel does not list them.
pub fn interfaces() -> Result<Vec<InterfaceFacts>> {
    let mut netlink = Netlink::open()?;
    let addresses = netlink.addresses()?;
    let of = |index| addresses.iter().filter(move |(link, _)| *link == index).map(|(_, address)| address.to_string());
    let qdiscs = netlink.qdiscs()?;
    let rate_of = |index| {
        let shaper = qdiscs.iter().find(|qdisc| qdisc.device == index && qdisc.place == QdiscPlace::Root)?;
        BitsPerSec::new(approximate(shaper.rate_bytes?) * 8.0)
    };
    let links = netlink.links()?.into_iter();
    let with_network = |link: Link| InterfaceFacts {
        addresses: of(link.index).collect(),
        qdisc_rate: rate_of(link.index),
        ..facts(link)
    };
    Ok(links.map(with_network).collect())
}

fn facts(link: Link) -> InterfaceFacts {
    let device = Device::open(&link.name).ok();
    let device = device.as_ref();
    let driver = device.and_then(|device| device.driver().ok().flatten());
    let features = device.and_then(|device| device.features().ok()).unwrap_or_default();
    InterfaceFacts {
        speed: device.and_then(|device| device.speed().ok().flatten()),
        mtu: Some(Bytes(u64::from(link.mtu_bytes))),
        queues: queues(device, &link),
        offloads: features.into_iter().filter(|feature| feature.active).map(|feature| feature.name).collect(),
        mac: link.mac.map(mac_text),
        operstate: Some(if link.is_up && link.has_carrier { "up" } else { "down" }.to_owned()),
        qdisc: link.qdisc,
        name: link.name,
        firmware: driver.as_ref().and_then(|driver| driver.firmware.clone()),
        bus: driver.as_ref().and_then(|driver| driver.bus.clone()),
        driver: driver.map(|driver| driver.name),
        addresses: Vec::new(),
        qdisc_rate: None,
    }
}

/// The driver's channels, or the kernel's own count if the driver does not report any.
fn queues(device: Option<&Device>, link: &Link) -> Queues {
    let some = |n: u32| (n > 0).then_some(n);
    match device.and_then(|device| device.channels().ok().flatten()) {
        Some(channels) => {
            let current = channels.current;
            Queues { rx: some(current.rx), tx: some(current.tx), combined: some(current.combined) }
        }
        None => Queues { rx: link.n_rx_queues, tx: link.n_tx_queues, combined: None },
    }
}

fn mac_text(mac: MacAddress) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_of_this_machine_has_its_facts() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.mtu >= Some(Bytes(16_436)), "{lo:?}");
        assert!(lo.offloads.iter().any(|name| name == "loopback"), "{lo:?}");
        assert_eq!((lo.speed, lo.line_rate()), (None, None));
    }
}
