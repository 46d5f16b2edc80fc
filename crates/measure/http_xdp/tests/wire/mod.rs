//! Two hosts in network namespaces, with a wire between them.

use std::os::fd::AsFd as _;

use fathom_http_xdp::PassProgram;
use fathom_sys::{
    netlink::{Netlink, Veth, VethEnd, namespace::NetNs},
    process::may_administer_network,
};

pub(crate) const SERVER: [&str; 2] = ["198.18.0.2", "fd00::2"];
pub(crate) const CLIENT: [&str; 2] = ["198.18.0.1", "fd00::1"];
pub(crate) const SERVER_DEVICE: &str = "server0";
pub(crate) const CLIENT_DEVICE: &str = "client0";

/// The hosts. One end of the wire has a program that lets everything pass, until a test takes it away.
pub(crate) struct Wire {
    pub(crate) client: NetNs,
    pub(crate) server: NetNs,
    pub(crate) pass: Option<PassProgram>,
}

impl Wire {
    /// With the program at this device; nothing without the privileges.
    pub(crate) fn up(pass_at: &str) -> Option<Self> {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return None;
        }
        let (client, server) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let end = |name| VethEnd { name, mac: None };
        let add = || {
            let (near, far) = (end(CLIENT_DEVICE), end(SERVER_DEVICE));
            let veth = Veth { near, far, far_namespace: Some(server.as_fd()), mtu_bytes: 1500, n_queues: 1 };
            Netlink::open().unwrap().add_veth(&veth).unwrap();
        };
        client.enter_with(add).unwrap();
        for (host, name, addresses) in [(&client, CLIENT_DEVICE, CLIENT), (&server, SERVER_DEVICE, SERVER)] {
            let dress = || {
                // A new IPv6 address is usable at once, without the search for duplicates.
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_dad"), "0").unwrap();
                let mut netlink = Netlink::open().unwrap();
                let index = netlink.link(name).unwrap().index;
                for (address, prefix) in addresses.into_iter().zip([24, 64]) {
                    netlink.add_address(index, address.parse().unwrap(), prefix).unwrap();
                }
                netlink.set_up(index).unwrap();
            };
            host.enter_with(dress).unwrap();
        }
        // Only now does either end have a carrier.
        for (host, name) in [(&client, CLIENT_DEVICE), (&server, SERVER_DEVICE)] {
            let wait = || {
                let mut netlink = Netlink::open().unwrap();
                let index = netlink.link(name).unwrap().index;
                netlink.await_addresses(index).unwrap();
            };
            host.enter_with(wait).unwrap();
        }
        let attach = || PassProgram::attach(Netlink::open().unwrap().link(pass_at).unwrap().index);
        let host = if pass_at == SERVER_DEVICE { &server } else { &client };
        let attached = host.enter_with(attach).unwrap();
        let pass = fathom_testkit::or_skip(attached, fathom_sys::Error::is_permission)?;
        Some(Self { client, server, pass: Some(pass) })
    }
}
