//! The facts of a network interface: driver, reported speed, offloads.

use fathom_model::{
    Environment,
    units::{BitsPerSec, Bytes, rounded},
};

/// The fact that names those of its topic that could not be read, with the cause.
pub const UNREAD: &str = "unread";

/// Facts of one interface; facts that are not reported are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InterfaceFacts {
    /// The name, and the topic of its facts.
    pub name: String,
    /// The driver as reported by ethtool: `virtio_net`, `veth`, `ixgbe`.
    pub driver: Option<String>,
    /// The firmware version of the device.
    pub firmware: Option<String>,
    /// The bus address of the device: `0000:00:04.0`.
    pub bus: Option<String>,
    /// The reported line rate; see [`LineRate`] for whether it is real.
    pub speed: Option<BitsPerSec>,
    /// The largest payload of a frame.
    pub mtu: Option<Bytes>,
    pub queues: Queues,
    /// The enabled offloads, with ethtool's names: `tx-checksum-ipv4`, `rx-gro`.
    pub offloads: Vec<String>,
    /// The MAC address.
    pub mac: Option<String>,
    /// The IP addresses.
    pub addresses: Vec<String>,
    /// The devices that carry its frames, by name: the ports of a bridge, bond or team, or the device that a VLAN or macvlan was made on.
    pub lower: Vec<String>,
    /// The root queueing discipline.
    pub qdisc: Option<String>,
    /// The rate that this discipline keeps all packets to: of a `tbf`, or of an `htb` for packets that no filter sends to another class.
    pub qdisc_rate: Option<BitsPerSec>,
    /// The rate that this discipline keeps each flow to, if it is an `fq`.
    pub qdisc_flow_rate: Option<BitsPerSec>,
    /// The duplex mode of the link: `full`, `half`.
    pub duplex: Option<String>,
    /// The sizes of the rings: `rx 1024 of 4096, tx 1024 of 4096`.
    pub rings: Option<RingSizes>,
    /// When it raises interrupts: `rx 8 µs or 0 frames, adaptive`.
    pub coalescing: Option<String>,
    /// Whether it obeys and sends pause frames: `rx on, tx off, autonegotiated`.
    pub pause: Option<String>,
    /// The most bytes and segments that the stack hands on at once, if they are fewer than usual.
    pub gso_max_bytes: Option<u32>,
    pub gso_max_segments: Option<u32>,
    /// Whether it can carry anything: one of [`fathom_model::names::interface_state`].
    pub operstate: Option<String>,
    /// Which facts could not be read, and why; a fact that the device does not have is not among them.
    pub unread: Option<String>,
}

/// The numbers of queues of an interface, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queues {
    /// Receive-only queues.
    pub rx: Option<u32>,
    /// Transmit-only queues.
    pub tx: Option<u32>,
    /// Queues for both, on one interrupt.
    pub combined: Option<u32>,
    /// The most of these that the device can have.
    pub combined_max: Option<u32>,
}

/// The sizes of the rings of an interface in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// The receive ring, and the largest that the device has.
    pub rx: (u32, u32),
    /// The transmit ring, and the largest that the device has.
    pub tx: (u32, u32),
}

/// Whether the reported speed of an interface is a physical limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineRate {
    /// The line limits traffic to this rate.
    Real,
    /// The driver reports a fixed number: nothing limits frames to it.
    Nominal,
}

/// Drivers of devices without a line. Their reported speed is a constant, or a value that was set on the device.
///
/// `veth` and `tun` report 10 Gbit/s and 10 Mbit/s whatever they carry (drivers/net/veth.c, drivers/net/tun.c). A paravirtual
/// device repeats the value that the host of the guest chose, and the card of a cloud (`ena`, `gve`, `mana`) that of its hardware, of which the size
/// of the guest has a part.
const WITHOUT_LINE: [&str; 13] = [
    "bridge",
    "dummy",
    "ena",
    "gve",
    "hv_netvsc",
    "macvlan",
    "mana",
    "tun",
    "veth",
    "virtio_net",
    "vmxnet3",
    "vif",
    "xen_netfront",
];

impl InterfaceFacts {
    /// Whether its speed is a physical limit; `None` without a reported speed or a known driver.
    #[must_use]
    pub fn line_rate(&self) -> Option<LineRate> {
        self.speed?;
        let driver = self.driver.as_deref()?;
        Some(if WITHOUT_LINE.contains(&driver) { LineRate::Nominal } else { LineRate::Real })
    }

    /// Adds the facts under its name.
    pub(super) fn note(&self, facts: &mut Environment) {
        let count = |n: Option<u32>| n.map(|n| n.to_string());
        let line_rate = self.line_rate().map(|rate| match rate {
            LineRate::Real => "real".to_owned(),
            LineRate::Nominal => "nominal".to_owned(),
        });
        let ring = |of: fn(&RingSizes) -> u32| count(self.rings.as_ref().map(of));
        let all = [
            ("driver", self.driver.clone()),
            ("firmware", self.firmware.clone()),
            ("bus", self.bus.clone()),
            ("speed_bps", self.speed.map(|speed| rounded(speed.get()).to_string())),
            ("line_rate", line_rate),
            ("mtu_bytes", self.mtu.map(|mtu| mtu.0.to_string())),
            ("queues_rx", count(self.queues.rx)),
            ("queues_tx", count(self.queues.tx)),
            ("queues_combined", count(self.queues.combined)),
            ("queues_combined_max", count(self.queues.combined_max)),
            ("offloads", (!self.offloads.is_empty()).then(|| self.offloads.join(" "))),
            ("gso_max_bytes", count(self.gso_max_bytes)),
            ("gso_max_segments", count(self.gso_max_segments)),
            ("mac", self.mac.clone()),
            ("addresses", (!self.addresses.is_empty()).then(|| self.addresses.join(" "))),
            ("lower", (!self.lower.is_empty()).then(|| self.lower.join(" "))),
            ("qdisc", self.qdisc.clone()),
            ("qdisc_rate_bps", self.qdisc_rate.map(|rate| rounded(rate.get()).to_string())),
            ("qdisc_flow_rate_bps", self.qdisc_flow_rate.map(|rate| rounded(rate.get()).to_string())),
            ("duplex", self.duplex.clone()),
            ("ring_rx", ring(|rings| rings.rx.0)),
            ("ring_rx_max", ring(|rings| rings.rx.1)),
            ("ring_tx", ring(|rings| rings.tx.0)),
            ("ring_tx_max", ring(|rings| rings.tx.1)),
            ("coalescing", self.coalescing.clone()),
            ("pause", self.pause.clone()),
            ("operstate", self.operstate.clone()),
            (UNREAD, self.unread.clone()),
        ];
        for (name, value) in all {
            super::note_some(facts, (&self.name, name), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_an_interface_stand_under_its_name() {
        let interface = InterfaceFacts {
            name: "eth0".to_owned(),
            driver: Some("ixgbe".to_owned()),
            speed: BitsPerSec::new(1e10),
            mtu: Some(Bytes(1500)),
            lower: vec!["eth1".to_owned(), "eth2".to_owned()],
            queues: Queues { combined: Some(8), ..Queues::default() },
            offloads: vec!["rx-gro".to_owned(), "tx-udp-segmentation".to_owned()],
            ..InterfaceFacts::default()
        };
        let mut facts = Environment::default();
        interface.note(&mut facts);
        let expected = [
            ("driver", Some("ixgbe")),
            ("speed_bps", Some("10000000000")),
            ("line_rate", Some("real")),
            ("mtu_bytes", Some("1500")),
            ("lower", Some("eth1 eth2")),
            ("queues_combined", Some("8")),
            ("queues_rx", None),
            ("offloads", Some("rx-gro tx-udp-segmentation")),
            ("mac", None),
        ];
        for (name, value) in expected {
            assert_eq!(facts.get("eth0", name), value, "{name}");
        }
    }

    #[test]
    fn the_speed_of_a_device_without_a_line_is_called_nominal() {
        let veth =
            InterfaceFacts { driver: Some("veth".to_owned()), speed: BitsPerSec::new(1e10), ..Default::default() };
        assert_eq!(veth.line_rate(), Some(LineRate::Nominal));
        assert_eq!(InterfaceFacts { speed: None, ..veth }.line_rate(), None);
    }
}
