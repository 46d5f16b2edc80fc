//! Reads the facts of network interfaces from the kernel, through rtnetlink and ethtool.

use fathom_model::{
    names::interface_state,
    units::{BitsPerSec, Bytes, approximate},
};
use fathom_sys::{
    Result,
    netlink::{
        Link, Netlink,
        ethtool::{Channels, Coalescing, Device, Driver, Duplex, Feature, LinkMode, PauseMode, Rings},
        qdisc::{Qdisc, QdiscPlace},
    },
};

use super::{InterfaceFacts, Queues, RingSizes};

/// Returns the interfaces in the network namespace of the calling thread.
///
/// Facts that a device does not have are missing. Those that it has and that cannot be read, also because it disappears meanwhile, are missing with
/// a reason.
///
/// # Errors
/// If the kernel does not list them.
pub fn interfaces() -> Result<Vec<InterfaceFacts>> {
    let mut netlink = Netlink::open()?;
    let addresses = netlink.addresses()?;
    let of = |index| addresses.iter().filter(move |(link, _)| *link == index).map(|(_, address)| address.to_string());
    let qdiscs = netlink.qdiscs()?;
    let links = netlink.links()?;
    let with_network = |link: &Link| {
        let root = qdiscs.iter().find(|qdisc| qdisc.device == link.index && qdisc.place == QdiscPlace::Root);
        let (qdisc_rate, qdisc_flow_rate) = root.map_or((None, None), |root| rates(&mut netlink, root));
        let (addresses, lower) = (of(link.index).collect(), lower(link, &links));
        InterfaceFacts { addresses, lower, qdisc_rate, qdisc_flow_rate, ..facts(link.clone()) }
    };
    Ok(links.iter().map(with_network).collect())
}

/// Returns the names of the devices of this namespace that carry the frames of a device.
fn lower(link: &Link, all: &[Link]) -> Vec<String> {
    let is_below = |other: &&Link| {
        let is_made_on = link.made_on == Some(other.index) && link.kind.as_deref() != Some("veth");
        other.index != link.index && (is_made_on || other.port_of == Some(link.index))
    };
    all.iter().filter(is_below).map(|other| other.name.clone()).collect()
}

/// Returns the rates that a discipline keeps all packets and each flow to.
fn rates(netlink: &mut Netlink, discipline: &Qdisc) -> (Option<BitsPerSec>, Option<BitsPerSec>) {
    let bits = |bytes: u64| BitsPerSec::new(approximate(bytes) * 8.0);
    let own = discipline.rate_bytes.and_then(bits);
    match discipline.kind.as_str() {
        "fq" => (None, own),
        "htb" => (netlink.htb_rate(discipline).ok().flatten().and_then(bits), None),
        _ => (own, None),
    }
}

/// The bound of a device that sets none, in bytes (`GSO_LEGACY_MAX_SIZE`, include/linux/netdevice.h).
const GSO_BYTES_USUAL: u32 = 65_536;
/// The same in segments (`GSO_MAX_SEGS`).
const GSO_SEGMENTS_USUAL: u32 = 65_535;

fn facts(link: Link) -> InterfaceFacts {
    let mut unread = UnreadFacts::default();
    let device = unread.read("driver, speed, queues, rings and offloads", Device::open(&link.name));
    let of_device = DeviceFacts::read(device.as_ref(), &mut unread);
    let DeviceFacts { driver, mode, features, rings, coalescing, pause, channels } = of_device;
    InterfaceFacts {
        speed: mode.and_then(|mode| mode.speed),
        duplex: mode.and_then(|mode| mode.duplex).map(duplex),
        rings: rings.map(|rings| RingSizes { rx: (rings.rx, rings.rx_max), tx: (rings.tx, rings.tx_max) }),
        coalescing: coalescing.map(told_coalescing),
        pause: pause.map(told_pause),
        mtu: Some(Bytes(u64::from(link.mtu_bytes))),
        queues: queues(channels, &link),
        offloads: features.into_iter().filter(|feature| feature.active).map(|feature| feature.name).collect(),
        mac: link.mac.map(|mac| mac.to_string()),
        operstate: Some(
            match (link.is_up, link.has_carrier) {
                (false, _) => interface_state::DOWN,
                (true, false) => interface_state::NO_CARRIER,
                (true, true) => interface_state::UP,
            }
            .to_owned(),
        ),
        gso_max_bytes: link.gso_max_bytes.filter(|bytes| *bytes < GSO_BYTES_USUAL),
        gso_max_segments: link.gso_max_segments.filter(|n| *n < GSO_SEGMENTS_USUAL),
        qdisc: link.qdisc,
        name: link.name,
        firmware: driver.as_ref().and_then(|driver| driver.firmware.clone()),
        bus: driver.as_ref().and_then(|driver| driver.bus.clone()),
        driver: driver.map(|driver| driver.name),
        addresses: Vec::new(),
        lower: Vec::new(),
        qdisc_rate: None,
        qdisc_flow_rate: None,
        unread: unread.told(),
    }
}

/// What ethtool tells of a device.
#[derive(Default)]
struct DeviceFacts {
    driver: Option<Driver>,
    mode: Option<LinkMode>,
    features: Vec<Feature>,
    rings: Option<Rings>,
    coalescing: Option<Coalescing>,
    pause: Option<PauseMode>,
    channels: Option<Channels>,
}

impl DeviceFacts {
    fn read(device: Option<&Device>, unread: &mut UnreadFacts) -> Self {
        let Some(device) = device else { return Self::default() };
        Self {
            driver: unread.read("driver", device.driver()).flatten(),
            mode: unread.read("speed and duplex mode", device.link_mode()).flatten(),
            features: unread.read("offloads", device.features()).unwrap_or_default(),
            rings: unread.read("rings", device.rings()).flatten(),
            coalescing: unread.read("coalescing", device.coalescing()).flatten(),
            pause: unread.read("pause frames", device.pause()).flatten(),
            channels: unread.read("queues", device.channels()).flatten(),
        }
    }
}

/// The facts that could not be read, by their cause.
#[derive(Default)]
struct UnreadFacts(Vec<(String, Vec<&'static str>)>);

impl UnreadFacts {
    /// Returns what was read, or keeps why it was not.
    fn read<T>(&mut self, what: &'static str, answer: Result<T>) -> Option<T> {
        let cause = match answer {
            Ok(read) => return Some(read),
            Err(error) => error.source.to_string(),
        };
        match self.0.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, all)) => all.push(what),
            None => self.0.push((cause, vec![what])),
        }
        None
    }

    /// Returns all reasons as one sentence.
    fn told(self) -> Option<String> {
        let all: Vec<String> =
            self.0.into_iter().map(|(cause, what)| format!("{}: {cause}", what.join(", "))).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

fn duplex(mode: Duplex) -> String {
    match mode {
        Duplex::Half => "half",
        Duplex::Full => "full",
    }
    .to_owned()
}

fn told_coalescing(set: Coalescing) -> String {
    let way = |name: &str, (usecs, frames): (u32, u32), is_adaptive: bool| {
        let adaptive = if is_adaptive { ", adaptive" } else { "" };
        format!("{name} {usecs} µs or {frames} frames{adaptive}")
    };
    let rx = way("rx", (set.rx_usecs, set.rx_frames), set.rx_adaptive);
    format!("{rx}; {}", way("tx", (set.tx_usecs, set.tx_frames), set.tx_adaptive))
}

fn told_pause(mode: PauseMode) -> String {
    let state = |is_on: bool| if is_on { "on" } else { "off" };
    let agreed = if mode.autonegotiated { ", autonegotiated" } else { "" };
    format!("rx {}, tx {}{agreed}", state(mode.rx), state(mode.tx))
}

/// The driver's channels, or the kernel's own count if the driver does not report any.
fn queues(channels: Option<Channels>, link: &Link) -> Queues {
    let some = |n: u32| (n > 0).then_some(n);
    match channels {
        Some(channels) => {
            let current = channels.current;
            Queues {
                rx: some(current.rx),
                tx: some(current.tx),
                combined: some(current.combined),
                combined_max: some(channels.max.combined),
            }
        }
        None => Queues { rx: link.n_rx_queues, tx: link.n_tx_queues, ..Queues::default() },
    }
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, path::Path};

    use fathom_model::MacAddress;
    use fathom_sys::{
        Error,
        netlink::{BridgeIndex, Macvlan, Veth, VethEnd, namespace::NetNs},
    };
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_bridge_and_a_macvlan_name_the_devices_below_them_and_a_veth_does_not_name_its_other_end() {
        let Some(namespace) = fathom_testkit::or_skip(NetNs::new(), Error::is_permission) else { return };
        let all = namespace.enter_with(|| {
            let mut netlink = Netlink::open().unwrap();
            let end = |name| VethEnd { name, mac: None };
            for (near, far) in [("p1", "q1"), ("p2", "q2")] {
                let veth = Veth { near: end(near), far: end(far), far_namespace: None, mtu_bytes: 1500, n_queues: 1 };
                netlink.add_veth(&veth).unwrap();
            }
            netlink.add_bridge("br0", MacAddress::from_bytes(&[2, 0, 0, 0, 0, 1]).unwrap()).unwrap();
            let bridge = BridgeIndex(netlink.link("br0").unwrap().index);
            for port in ["p1", "p2"] {
                let port = netlink.link(port).unwrap().index;
                netlink.add_port(bridge, port).unwrap();
            }
            let parent = netlink.link("q1").unwrap().index;
            let here = NetNs::current().unwrap();
            netlink.add_macvlan(&Macvlan { name: "mv0", parent, namespace: here.as_fd() }).unwrap();
            interfaces().unwrap()
        });
        let all = all.unwrap();
        let lower = |name: &str| all.iter().find(|one| one.name == name).unwrap().lower.clone();
        assert_eq!((lower("br0"), lower("mv0")), (vec!["p1".to_owned(), "p2".to_owned()], vec!["q1".to_owned()]));
        assert_eq!((lower("p1"), lower("q1"), lower("lo")), (Vec::<String>::new(), Vec::new(), Vec::new()));
    }

    #[test]
    fn the_loopback_of_this_machine_has_its_facts() {
        let all = interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.name == "lo").unwrap();
        assert!(lo.mtu >= Some(Bytes(16_436)), "{lo:?}");
        assert!(lo.offloads.iter().any(|name| name == "loopback"), "{lo:?}");
        assert_eq!((lo.speed, lo.line_rate()), (None, None));
        assert_eq!((lo.rings, &lo.unread), (None, &None), "it has no rings, which is no loss");
    }

    #[test]
    fn facts_that_are_refused_are_named_by_their_cause() {
        let refused = |errno| Err::<Option<u32>, Error>(Error::new("ioctl(SIOCETHTOOL)", errno));
        let mut unread = UnreadFacts::default();
        assert_eq!(unread.read("driver", Ok(Some(7))), Some(Some(7)));
        assert_eq!(unread.read("rings", refused(Errno::PERM)), None);
        assert_eq!(unread.read("queues", Ok(None::<u32>)), Some(None), "the driver has no such thing");
        assert_eq!(unread.read("offloads", refused(Errno::NODEV)), None);
        assert_eq!(unread.read("pause frames", refused(Errno::PERM)), None);
        let told = "rings, pause frames: Operation not permitted (os error 1); offloads: No such device (os error 19)";
        assert_eq!(unread.told().as_deref(), Some(told));
        let unread = Some(told.to_owned());
        let interface = InterfaceFacts { name: "eth0".to_owned(), unread, ..InterfaceFacts::default() };
        let facts = crate::environment(Path::new("/nowhere"), &[interface]);
        assert_eq!((facts.get("eth0", "unread"), facts.get("eth0", "ring_rx")), (Some(told), None));
    }
}
