//! The device of a responder: what it can do, and what is known of it while it answers.

use std::sync::{Mutex, PoisonError};

use fathom_engine::Error;
use fathom_model::{MacAddress, Note};
use fathom_sys::{
    bpf::XdpMode,
    netlink::{
        Link, Netlink,
        ethtool::CounterGrowth,
        xdp_features::{XdpFeatures, xdp_features},
    },
};

use crate::{
    attachment,
    frame::{SEGMENT_MAX, TCP_HEADER},
};

/// The note that the other end of a veth has no program.
pub(super) const DEAF: &str = "veth-without-program";

fn unsupported(what: String, hint: impl Into<String>) -> Error {
    Error::Unsupported { what, hint: Some(hint.into()) }
}

/// The device of this name, which must be up and have an Ethernet address.
pub(super) fn find(name: &str) -> Result<Link, Error> {
    let system = |cause| Error::System { what: format!("find the device {name}"), cause };
    let mut netlink = Netlink::open().map_err(system)?;
    let links = netlink.links().map_err(system)?;
    let Some(link) = links.iter().find(|link| link.name == name) else {
        let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).filter(|name| *name != "lo").collect();
        return Err(unsupported(
            format!("there is no device `{name}`"),
            format!("choose one of: {}", names.join(", ")),
        ));
    };
    if link.mac.is_none_or(|mac| mac == MacAddress::default()) {
        return Err(unsupported(format!("{name} has no Ethernet address"), "choose an Ethernet device"));
    }
    if !link.is_up {
        return Err(unsupported(format!("{name} is down"), format!("ip link set {name} up")));
    }
    Ok(link.clone())
}

/// The largest payload of a segment with IPv4 and with IPv6.
pub(super) fn segment_max(mtu_bytes: u32) -> [u16; 2] {
    [0, 1].map(|version| {
        let headers = [20, 40][version] + u32::from(TCP_HEADER.unsigned_abs());
        u16::try_from(mtu_bytes.saturating_sub(headers)).unwrap_or(u16::MAX).min(SEGMENT_MAX[version])
    })
}

/// The device of a responder while it answers.
#[derive(Debug)]
pub(super) struct WatchedDevice {
    /// The device as it was when the program was made, which knows its Ethernet address.
    link: Link,
    netlink: Mutex<Netlink>,
    losses: Option<CounterGrowth>,
    is_deaf: bool,
}

impl WatchedDevice {
    /// Watches a device of this network namespace from now on.
    pub(super) fn new(link: Link, mode: XdpMode) -> Result<Self, Error> {
        let netlink = Netlink::open();
        let netlink =
            netlink.map_err(|cause| Error::System { what: format!("watch the device {}", link.name), cause })?;
        let losses = attachment::losses(&link.name);
        Ok(Self { is_deaf: is_deaf(&link, mode), link, netlink: Mutex::new(netlink), losses })
    }

    pub(super) fn name(&self) -> &str {
        &self.link.name
    }

    /// Frames of the program that the driver has not sent; `None` if it does not count them.
    pub(super) fn n_lost(&self) -> Option<u64> {
        self.losses.as_ref().map(CounterGrowth::count)
    }

    /// Why answers may not arrive, or did not.
    pub(super) fn notes(&self) -> Vec<Note> {
        let name = self.name();
        let mut notes = Vec::new();
        if self.is_deaf {
            let text = format!(
                "the other end of {name} has no XDP program now, and without one a veth does not deliver what a program sends \
                 back: give it one, or answer in generic XDP"
            );
            notes.push(Note::new(DEAF, text));
        }
        if let Some(n_lost) = self.n_lost().filter(|n_lost| *n_lost > 0) {
            let text = format!(
                "the driver of {name} did not send {n_lost} of the answers, for example because its ring was full: ask for fewer, or \
                 enlarge its rings (ethtool -G)"
            );
            notes.push(Note::new("answers-lost", text));
        }
        let now = self.netlink.lock().unwrap_or_else(PoisonError::into_inner).link(name);
        if !now.is_ok_and(|now| (now.index, now.mac) == (self.link.index, self.link.mac)) {
            let text = format!("{name} was replaced, or has another Ethernet address: start again to answer there");
            notes.push(Note::new("device-changed", text));
        }
        notes
    }
}

/// Whether the other end of a veth takes nothing that a program sends back.
fn is_deaf(link: &Link, mode: XdpMode) -> bool {
    let takes = || xdp_features(link.index).ok().flatten().is_none_or(XdpFeatures::takes_redirected);
    mode == XdpMode::Native && link.kind.as_deref() == Some("veth") && !takes()
}
