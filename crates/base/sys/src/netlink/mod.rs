//! Links, addresses, routes and neighbors through rtnetlink.
//!
//! Blocking: one request, one reply. A socket always belongs to the network namespace of the thread that opened it. Kernel documentation:
//! rtnetlink(7).

pub mod ethtool;
pub mod link_counters;
mod local_network;
mod message;
pub mod namespace;
pub mod nftables;
pub mod packet_queue;
pub mod pause;
pub mod qdisc;
pub mod routing_rules;
pub mod sock_diag;
pub mod threaded_napi;
pub mod xdp_features;

pub use local_network::LocalNetwork;

use fathom_model::{MacAddress, units::Nanos};

use crate::{Error, Result, clock};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage as Message,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        InfoData, InfoKind, InfoMacVlan, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, LinkXdp,
        MacVlanMode, Stats64, XdpAttached,
    },
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
    route::{
        RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
        RouteVia,
    },
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd, BorrowedFd},
};

/// The next hop of packets to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextHop {
    /// The index of the outgoing link.
    pub link: u32,
    /// The gateway; absent if the address is on the link itself.
    pub gateway: Option<IpAddr>,
    /// Whether the address belongs to a single host.
    pub is_single: bool,
}

/// An entry of the neighbor table with a known Ethernet address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeighbourEntry {
    /// The index of the link.
    pub link: u32,
    /// The IP address.
    pub address: IpAddr,
    /// The Ethernet address that packets to it get.
    pub mac: MacAddress,
}

/// The neighbors of a namespace.
#[derive(Debug, Default)]
pub struct NeighbourTable {
    /// Those whose Ethernet addresses are known.
    pub known: Vec<NeighbourEntry>,
    /// The link and the address of those that nobody answers for.
    pub unanswered: Vec<(u32, IpAddr)>,
}

/// A network device at the time of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The interface index, unique in its namespace.
    pub index: u32,
    /// The name, at most 15 bytes.
    pub name: String,
    /// The Ethernet address; absent for devices that have none.
    pub mac: Option<MacAddress>,
    /// The maximum payload of a frame in bytes, without the Ethernet header.
    pub mtu_bytes: u32,
    /// The link type: `veth`, `bridge`; absent for hardware and loopback.
    pub kind: Option<String>,
    /// The index of the device in the same namespace that it was made on (`IFLA_LINK`), as of a VLAN or a macvlan; of one end of a veth the other end.
    pub made_on: Option<u32>,
    /// The index of the bridge, bond or team that it is a port of (`IFLA_MASTER`).
    pub port_of: Option<u32>,
    /// The queueing discipline, such as `noqueue` or `mq`.
    pub qdisc: Option<String>,
    /// Whether it is administratively up.
    pub is_up: bool,
    /// Whether it can pass frames; a veth loses its carrier if its peer is down.
    pub has_carrier: bool,
    /// How often its carrier came or went since its creation; absent before Linux 4.16, which reports it first for all devices.
    pub carrier_changes: Option<u32>,
    /// Whether an XDP program is attached.
    pub has_xdp: bool,
    /// The number of its receive queues.
    pub n_rx_queues: Option<u32>,
    /// The number of its transmit queues.
    pub n_tx_queues: Option<u32>,
    /// The most bytes that the stack hands to the device at once, for it or for the step before it to split (GSO).
    pub gso_max_bytes: Option<u32>,
    /// The most segments of such a piece.
    pub gso_max_segments: Option<u32>,
    /// The counters since its creation.
    pub stats: LinkStats,
}

/// The counters of a network device (`IFLA_STATS64`); they never decrease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the kernel's: Documentation/networking/statistics.rst")]
pub struct LinkStats {
    pub rx_packets: u64,
    pub tx_packets: u64,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub rx_errors: u64,
    pub tx_errors: u64,
    pub rx_dropped: u64,
    pub tx_dropped: u64,
    pub multicast: u64,
    pub collisions: u64,
    pub rx_length_errors: u64,
    pub rx_over_errors: u64,
    pub rx_crc_errors: u64,
    pub rx_frame_errors: u64,
    pub rx_fifo_errors: u64,
    pub rx_missed_errors: u64,
    pub tx_aborted_errors: u64,
    pub tx_carrier_errors: u64,
    pub tx_fifo_errors: u64,
    pub rx_nohandler: u64,
}

/// A pair of devices connected by a virtual wire.
#[derive(Debug, Clone, Copy)]
pub struct Veth<'a> {
    /// The end in the namespace of the [`Netlink`].
    pub near: VethEnd<'a>,
    /// The other end.
    pub far: VethEnd<'a>,
    /// The namespace of the other end; absent for the namespace of the [`Netlink`].
    pub far_namespace: Option<BorrowedFd<'a>>,
    /// The MTU of both ends, in bytes.
    pub mtu_bytes: u32,
    /// The number of queues of both ends, per direction.
    pub n_queues: u32,
}

/// One end of a veth pair.
#[derive(Debug, Clone, Copy)]
pub struct VethEnd<'a> {
    /// The name, at most 15 bytes.
    pub name: &'a str,
    /// The Ethernet address; absent for a random address from the kernel.
    pub mac: Option<MacAddress>,
}

/// A device with an Ethernet address of its own, drawn by the kernel, on the wire of another device.
#[derive(Debug, Clone, Copy)]
pub struct Macvlan<'a> {
    /// The name, at most 15 bytes.
    pub name: &'a str,
    /// The index of the other device, in the namespace of the [`Netlink`].
    pub parent: u32,
    /// The namespace of the new device.
    pub namespace: BorrowedFd<'a>,
}

/// A route for a range of addresses.
#[derive(Debug, Clone, Copy)]
pub struct RouteEntry {
    /// The first address of the range.
    pub destination: IpAddr,
    /// The number of leading bits shared by all addresses of the range; 0 is the default route.
    pub prefix_len: u8,
    /// The gateway; absent if the range is on the link itself.
    pub gateway: Option<IpAddr>,
    /// The device, by index; absent to find it through the gateway.
    pub device: Option<u32>,
}

impl RouteEntry {
    /// A route to a neighbor by a device.
    #[must_use]
    pub const fn to_neighbor(address: IpAddr, device: u32) -> Self {
        let prefix_len = if address.is_ipv4() { 32 } else { 128 };
        Self { destination: address, prefix_len, gateway: None, device: Some(device) }
    }
}

/// The index of a bridge, as distinct from the index of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeIndex(pub u32);

/// An rtnetlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
    datagram: Vec<u8>,
}

/// The flags for a request with an acknowledgement.
const CHANGE: u16 = NLM_F_REQUEST | NLM_F_ACK;
/// The longest wait for the addresses of a link; one without a carrier keeps them tentative.
const ADDRESS_PATIENCE: Nanos = Nanos::from_secs(1);
/// The time between two looks at them. The worker of the kernel takes less on a machine at rest.
const ADDRESS_LOOK: Nanos = Nanos::from_micros(500);

impl Netlink {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// Any error of `socket` and `bind`.
    pub fn open() -> Result<Self> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        let socket = open().map_err(|error| Error::new("socket(NETLINK_ROUTE)", error))?;
        Ok(Self { socket, sequence: 0, datagram: Vec::new() })
    }

    /// Returns all links of the namespace, in ascending order of index.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let answers =
            self.request("RTM_GETLINK", Message::GetLink(LinkMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut links: Vec<_> = answers.into_iter().filter_map(link_of).collect();
        links.sort_by_key(|link| link.index);
        Ok(links)
    }

    /// Returns the link with this name.
    ///
    /// # Errors
    /// `ENODEV` if the namespace has none.
    pub fn link(&mut self, name: &str) -> Result<Link> {
        let call = format!("RTM_GETLINK({name})");
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answers = self.request(&call, Message::GetLink(message), CHANGE)?;
        answers
            .into_iter()
            .find_map(link_of)
            .ok_or_else(|| Error::new(call, io::Error::from(io::ErrorKind::UnexpectedEof)))
    }

    /// Creates a veth pair; both ends are down. Needs `CAP_NET_ADMIN` over both namespaces.
    ///
    /// # Errors
    /// `EEXIST` if a name is taken, `EINVAL` for an invalid name or MTU.
    pub fn add_veth(&mut self, veth: &Veth<'_>) -> Result<()> {
        let mut far = veth_end(veth, &veth.far);
        if let Some(namespace) = veth.far_namespace {
            far.attributes.push(LinkAttribute::NetNsFd(namespace.as_raw_fd()));
        }
        let mut near = veth_end(veth, &veth.near);
        near.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
        ]));
        let call = format!("RTM_NEWLINK(veth {})", veth.near.name);
        self.change(&call, Message::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates a macvlan; it is down. Those of one parent reach each other (mode `bridge`). Needs `CAP_NET_ADMIN` over both namespaces.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `EBUSY` if the parent is a port of a bridge, `EOPNOTSUPP` if the kernel has no macvlan.
    pub fn add_macvlan(&mut self, macvlan: &Macvlan<'_>) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(macvlan.name.to_owned()),
            LinkAttribute::Link(macvlan.parent),
            LinkAttribute::NetNsFd(macvlan.namespace.as_raw_fd()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::MacVlan),
                LinkInfo::Data(InfoData::MacVlan(vec![InfoMacVlan::Mode(MacVlanMode::Bridge)])),
            ]),
        ];
        let call = format!("RTM_NEWLINK(macvlan {})", macvlan.name);
        self.change(&call, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates a bridge without ports; it is down. It runs no spanning tree, so a port forwards as soon as it is up.
    ///
    /// # Errors
    /// `EEXIST` if the name is taken, `EOPNOTSUPP` if the kernel has no bridge support.
    pub fn add_bridge(&mut self, name: &str, mac: MacAddress) -> Result<()> {
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Address(mac.0.to_vec()),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]),
        ];
        let call = format!("RTM_NEWLINK(bridge {name})");
        self.change(&call, Message::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a link to a bridge as a port, both by index.
    ///
    /// # Errors
    /// `EBUSY` if it is already a port, `EINVAL` if the other link is not a bridge.
    pub fn add_port(&mut self, bridge: BridgeIndex, port: u32) -> Result<()> {
        let mut message = link_message(port);
        message.attributes.push(LinkAttribute::Controller(bridge.0));
        let call = format!("RTM_SETLINK(link {port}, port of {})", bridge.0);
        self.change(&call, Message::SetLink(message), 0)
    }

    /// Sets a link up. Needs `CAP_NET_ADMIN`, like all changes.
    ///
    /// # Errors
    /// `ENODEV` if it no longer exists.
    pub fn set_up(&mut self, index: u32) -> Result<()> {
        self.set_flags(index, LinkFlags::Up)
    }

    /// Sets a link down.
    ///
    /// # Errors
    /// `ENODEV` if it no longer exists.
    pub fn set_down(&mut self, index: u32) -> Result<()> {
        self.set_flags(index, LinkFlags::empty())
    }

    fn set_flags(&mut self, index: u32, flags: LinkFlags) -> Result<()> {
        let mut message = link_message(index);
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.change(&format!("RTM_SETLINK(link {index}, {flags:?})"), Message::SetLink(message), 0)
    }

    /// Sets the MTU of a link, in bytes.
    ///
    /// # Errors
    /// `EINVAL` outside the range that the device allows.
    pub fn set_mtu(&mut self, index: u32, mtu_bytes: u32) -> Result<()> {
        let mut message = link_message(index);
        message.attributes.push(LinkAttribute::Mtu(mtu_bytes));
        self.change(&format!("RTM_SETLINK(link {index}, mtu {mtu_bytes})"), Message::SetLink(message), 0)
    }

    /// Removes a link. Removing one end of a veth removes the other too.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a device that is not virtual.
    pub fn delete_link(&mut self, index: u32) -> Result<()> {
        self.change(&format!("RTM_DELLINK(link {index})"), Message::DelLink(link_message(index)), 0)
    }

    /// Returns the addresses of the namespace, each with the index of its link.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn addresses(&mut self) -> Result<Vec<(u32, IpAddr)>> {
        let answers =
            self.request("RTM_GETADDR", Message::GetAddress(AddressMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(address_of).collect())
    }

    /// Returns the broadcast addresses of all links, computed from their networks.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn broadcasts(&mut self) -> Result<Vec<Ipv4Addr>> {
        let answers =
            self.request("RTM_GETADDR", Message::GetAddress(AddressMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(broadcast_of).collect())
    }

    /// Adds an address to a link, and with it the route to its network.
    ///
    /// # Errors
    /// `EEXIST` if the link already has the address.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix_len: u8) -> Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix_len;
        message.header.index = index;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        let call = format!("RTM_NEWADDR(link {index}, {address}/{prefix_len})");
        self.change(&call, Message::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Waits until sockets can use all addresses of a link, for at most a second. Without a carrier they stay unusable, which is left to
    /// whoever binds.
    ///
    /// A new IPv6 address is tentative until a worker of the kernel has come to it, also without the search for duplicates
    /// (`addrconf_dad_start` of `net/ipv6/addrconf.c`), and `bind` refuses it until then.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn await_addresses(&mut self, index: u32) -> Result<()> {
        let latest = clock::now() + ADDRESS_PATIENCE;
        while self.has_tentative_address(index)? && clock::now() < latest {
            clock::sleep_until(clock::now() + ADDRESS_LOOK);
        }
        Ok(())
    }

    fn has_tentative_address(&mut self, index: u32) -> Result<bool> {
        let answers =
            self.request("RTM_GETADDR", Message::GetAddress(AddressMessage::default()), NLM_F_REQUEST | NLM_F_DUMP)?;
        let is_tentative = |answer: &Message| match answer {
            Message::NewAddress(address) => {
                let flags = address.header.flags;
                // One that another host has stays tentative.
                let is_refused = flags.contains(AddressHeaderFlags::Dadfailed);
                address.header.index == index && flags.contains(AddressHeaderFlags::Tentative) && !is_refused
            }
            _ => false,
        };
        Ok(answers.iter().any(is_tentative))
    }

    /// Adds a permanent neighbor entry, so that no ARP is sent for the address.
    ///
    /// # Errors
    /// `ENETDOWN` while the link is down.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: MacAddress) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        message.attributes =
            vec![NeighbourAttribute::Destination(address.into()), NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())];
        let call = format!("RTM_NEWNEIGH(link {index}, {address})");
        self.change(&call, Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Tells a bridge that an Ethernet address is behind one of its ports, by the index of the port, so that it floods no frame for it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the link is not a port.
    pub fn add_bridge_entry(&mut self, port: u32, mac: MacAddress) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = port;
        message.header.state = NeighbourState::Noarp;
        message.header.flags = NeighbourFlags::Controller;
        message.attributes = vec![NeighbourAttribute::LinkLayerAddress(mac.0.to_vec())];
        let call = format!("RTM_NEWNEIGH(bridge port {port})");
        self.change(&call, Message::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Returns the next hop of packets to an address. Sends no packet.
    ///
    /// # Errors
    /// `ENETUNREACH` if there is no route.
    pub fn next_hop(&mut self, address: IpAddr) -> Result<NextHop> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
        message.attributes.push(RouteAttribute::Destination(address.into()));
        let call = format!("RTM_GETROUTE({address})");
        let answers = self.request(&call, Message::GetRoute(message), CHANGE)?;
        answers.into_iter().find_map(next_hop_of).ok_or_else(|| Error::new(call, io::ErrorKind::InvalidData))
    }

    /// Returns the gateways of all routes, of all tables.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn gateways(&mut self) -> Result<Vec<IpAddr>> {
        let message = Message::GetRoute(RouteMessage::default());
        let answers = self.request("RTM_GETROUTE", message, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut gateways = Vec::new();
        for answer in answers {
            let Message::NewRoute(route) = answer else { continue };
            gateways.extend(gateways_of(&route.attributes));
            for attribute in &route.attributes {
                if let RouteAttribute::MultiPath(hops) = attribute {
                    gateways.extend(hops.iter().flat_map(|hop| gateways_of(&hop.attributes)));
                }
            }
        }
        Ok(gateways)
    }

    /// Returns the Ethernet address of a neighbor on a link, if it is already known.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn neighbour(&mut self, index: u32, address: IpAddr) -> Result<Option<MacAddress>> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        let answers = self.request("RTM_GETNEIGH", Message::GetNeighbour(message), NLM_F_REQUEST | NLM_F_DUMP)?;
        Ok(answers.into_iter().find_map(|answer| mac_of(answer, index, address)))
    }

    /// Returns the neighbors of the namespace whose Ethernet addresses are known, IPv4 and IPv6. Multicast addresses, which nobody
    /// resolves, are not among them.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn neighbours(&mut self) -> Result<Vec<NeighbourEntry>> {
        Ok(self.neighbour_table()?.known)
    }

    /// Returns the same neighbors, and the addresses that nobody has answered for yet or any more.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn neighbour_table(&mut self) -> Result<NeighbourTable> {
        let message = Message::GetNeighbour(NeighbourMessage::default());
        let answers = self.request("RTM_GETNEIGH", message, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut table = NeighbourTable::default();
        for answer in answers {
            table.unanswered.extend(unanswered_of(&answer));
            table.known.extend(neighbour_of(answer));
        }
        Ok(table)
    }

    /// Adds a route to the main table.
    ///
    /// # Errors
    /// `EEXIST` if it already exists, `ENETUNREACH` if the gateway is on no link.
    pub fn add_route(&mut self, route: &RouteEntry) -> Result<()> {
        self.add_route_with(route, Vec::new())
    }

    /// Adds a route to the main table that carries packets of at most this many bytes, also those that the host forwards
    /// (`RTAX_MTU`, net/ipv4/route.c `ip_dst_mtu_maybe_forward`).
    ///
    /// # Errors
    /// `EEXIST` if there is such a route.
    pub fn add_narrow_route(&mut self, route: &RouteEntry, mtu_bytes: u32) -> Result<()> {
        self.add_route_with(route, vec![RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu_bytes)])])
    }

    fn add_route_with(&mut self, route: &RouteEntry, attributes: Vec<RouteAttribute>) -> Result<()> {
        let call = format!("RTM_NEWROUTE({}/{})", route.destination, route.prefix_len);
        let mut message = route_message(route);
        message.attributes.extend(attributes);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        self.add_route_message(&call, message)
    }

    fn add_route_message(&mut self, call: &str, message: RouteMessage) -> Result<()> {
        self.change(call, Message::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route to the main table that silently drops all packets to an address, unless another table routes them.
    ///
    /// # Errors
    /// `EEXIST` if there is a route to the address.
    pub fn add_black_hole(&mut self, address: IpAddr) -> Result<()> {
        let prefix_len = if address.is_ipv4() { 32 } else { 128 };
        let mut message = route_message(&RouteEntry { destination: address, prefix_len, gateway: None, device: None });
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::BlackHole;
        message.header.scope = RouteScope::Universe;
        self.add_route_message(&format!("RTM_NEWROUTE(black hole {address})"), message)
    }

    fn change(&mut self, call: &str, message: Message, flags: u16) -> Result<()> {
        self.request(call, message, CHANGE | flags).map(drop)
    }

    /// Sends one request and reads its replies up to the acknowledgement or the end of the dump.
    fn request(&mut self, call: &str, message: Message, flags: u16) -> Result<Vec<Message>> {
        self.exchange(message, flags).map_err(|error| Error::new(call, error))
    }

    fn exchange(&mut self, message: Message, flags: u16) -> io::Result<Vec<Message>> {
        self.sequence += 1;
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;

        let mut answers = Vec::new();
        loop {
            message::receive(&self.socket, &mut self.datagram)?;
            let mut rest = self.datagram.as_slice();
            while !rest.is_empty() {
                let answer = NetlinkMessage::<Message>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages are aligned to 4 bytes: netlink(7), NLMSG_ALIGN.
                let length =
                    usize::try_from(answer.header.length).expect("u32 fits usize on Linux").next_multiple_of(4);
                rest = rest.get(length..).unwrap_or_default();
                match answer.payload {
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    NetlinkPayload::Done(done) if done.code == 0 => return Ok(answers),
                    NetlinkPayload::Done(done) => return Err(io::Error::from_raw_os_error(done.code.abs())),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    // Nothing follows a dropped reply, so waiting would hang.
                    NetlinkPayload::Overrun(_) => return Err(rustix::io::Errno::NOBUFS.into()),
                    _ => {}
                }
            }
        }
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// A route without its table and without who made it.
fn route_message(route: &RouteEntry) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(route.destination);
    message.header.destination_prefix_length = route.prefix_len;
    message.header.kind = RouteType::Unicast;
    message.header.scope = if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link };
    if route.prefix_len > 0 {
        message.attributes.push(RouteAttribute::Destination(route.destination.into()));
    }
    message.attributes.extend(route.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    message.attributes.extend(route.device.map(RouteAttribute::Oif));
    message
}

fn link_message(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn veth_end(veth: &Veth<'_>, end: &VethEnd<'_>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes = vec![
        LinkAttribute::IfName(end.name.to_owned()),
        LinkAttribute::Mtu(veth.mtu_bytes),
        LinkAttribute::NumTxQueues(veth.n_queues),
        LinkAttribute::NumRxQueues(veth.n_queues),
    ];
    message.attributes.extend(end.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
    message
}

/// Returns the Ethernet address of a neighbor entry, if it is the requested one.
fn mac_of(answer: Message, index: u32, address: IpAddr) -> Option<MacAddress> {
    let Message::NewNeighbour(message) = answer else { return None };
    let is_it = message.header.ifindex == index
        && message.attributes.contains(&NeighbourAttribute::Destination(address.into()));
    is_it.then_some(())?;
    message.attributes.into_iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => MacAddress::from_bytes(&bytes),
        _ => None,
    })
}

/// Returns the link and the address of an entry that waits for an answer, or got none.
fn unanswered_of(answer: &Message) -> Option<(u32, IpAddr)> {
    let Message::NewNeighbour(message) = answer else { return None };
    if !matches!(message.header.state, NeighbourState::Incomplete | NeighbourState::Failed) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(known)) => Some(IpAddr::V4(*known)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(known)) => Some(IpAddr::V6(*known)),
        _ => None,
    });
    Some((message.header.ifindex, address?))
}

fn neighbour_of(answer: Message) -> Option<NeighbourEntry> {
    let Message::NewNeighbour(message) = answer else { return None };
    if message.header.state == NeighbourState::Noarp {
        return None;
    }
    let link = message.header.ifindex;
    let (mut address, mut mac) = (None, None);
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(known)) => address = Some(IpAddr::V4(known)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(known)) => address = Some(IpAddr::V6(known)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = MacAddress::from_bytes(&bytes),
            _ => {}
        }
    }
    Some(NeighbourEntry { link, address: address?, mac: mac? })
}

fn next_hop_of(answer: Message) -> Option<NextHop> {
    let Message::NewRoute(route) = answer else { return None };
    let link = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(link) => Some(*link),
        _ => None,
    });
    let gateway = gateways_of(&route.attributes).next();
    let is_single = matches!(route.header.kind, RouteType::Unicast | RouteType::Local);
    Some(NextHop { link: link?, gateway, is_single })
}

/// The gateways among the attributes of a route, or of one of its next hops.
fn gateways_of(attributes: &[RouteAttribute]) -> impl Iterator<Item = IpAddr> {
    attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address)) | RouteAttribute::Via(RouteVia::Inet(address)) => {
            Some(IpAddr::V4(*address))
        }
        RouteAttribute::Gateway(RouteAddress::Inet6(address)) | RouteAttribute::Via(RouteVia::Inet6(address)) => {
            Some(IpAddr::V6(*address))
        }
        _ => None,
    })
}

/// The broadcast address of a network; networks of at most two addresses have none (RFC 3021).
fn broadcast_of(answer: Message) -> Option<Ipv4Addr> {
    let Message::NewAddress(message) = &answer else { return None };
    let hosts = u32::MAX.checked_shr(message.header.prefix_len.into()).filter(|hosts| *hosts > 1)?;
    match address_of(answer)?.1 {
        IpAddr::V4(address) => Some(Ipv4Addr::from_bits(address.to_bits() | hosts)),
        IpAddr::V6(_) => None,
    }
}

/// The local address of a link; on a point-to-point link, `Address` is the peer's.
fn address_of(answer: Message) -> Option<(u32, IpAddr)> {
    let Message::NewAddress(message) = answer else { return None };
    let find = |pick: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(pick);
    let local = find(|attribute| if let AddressAttribute::Local(address) = attribute { Some(*address) } else { None });
    let any =
        || find(|attribute| if let AddressAttribute::Address(address) = attribute { Some(*address) } else { None });
    Some((message.header.index, local.or_else(any)?))
}

fn link_of(message: Message) -> Option<Link> {
    let Message::NewLink(message) = message else { return None };
    let flags = message.header.flags;
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: None,
        mtu_bytes: 0,
        kind: None,
        made_on: None,
        port_of: None,
        qdisc: None,
        is_up: flags.contains(LinkFlags::Up),
        has_carrier: flags.contains(LinkFlags::LowerUp),
        carrier_changes: None,
        has_xdp: false,
        n_rx_queues: None,
        n_tx_queues: None,
        gso_max_bytes: None,
        gso_max_segments: None,
        stats: LinkStats::default(),
    };
    let is_elsewhere = message.attributes.iter().any(|one| matches!(one, LinkAttribute::LinkNetNsId(_)));
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Link(index) => link.made_on = Some(index).filter(|_| !is_elsewhere),
            LinkAttribute::Controller(index) => link.port_of = Some(index),
            LinkAttribute::Address(bytes) => link.mac = MacAddress::from_bytes(&bytes),
            LinkAttribute::Mtu(mtu) => link.mtu_bytes = mtu,
            LinkAttribute::CarrierChanges(n) => link.carrier_changes = Some(n),
            LinkAttribute::Xdp(xdp) => {
                link.has_xdp = xdp.iter().any(|one| matches!(one, LinkXdp::Attached(to) if *to != XdpAttached::None));
            }
            LinkAttribute::Qdisc(qdisc) => link.qdisc = Some(qdisc),
            LinkAttribute::NumRxQueues(count) => link.n_rx_queues = Some(count),
            LinkAttribute::NumTxQueues(count) => link.n_tx_queues = Some(count),
            LinkAttribute::GsoMaxSize(size) => link.gso_max_bytes = Some(size),
            LinkAttribute::GsoMaxSegs(count) => link.gso_max_segments = Some(count),
            LinkAttribute::Stats64(stats) => link.stats = stats_of(&stats),
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(link)
}

fn stats_of(stats: &Stats64) -> LinkStats {
    LinkStats {
        rx_packets: stats.rx_packets,
        tx_packets: stats.tx_packets,
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_dropped: stats.rx_dropped,
        tx_dropped: stats.tx_dropped,
        multicast: stats.multicast,
        collisions: stats.collisions,
        rx_length_errors: stats.rx_length_errors,
        rx_over_errors: stats.rx_over_errors,
        rx_crc_errors: stats.rx_crc_errors,
        rx_frame_errors: stats.rx_frame_errors,
        rx_fifo_errors: stats.rx_fifo_errors,
        rx_missed_errors: stats.rx_missed_errors,
        tx_aborted_errors: stats.tx_aborted_errors,
        tx_carrier_errors: stats.tx_carrier_errors,
        tx_fifo_errors: stats.tx_fifo_errors,
        rx_nohandler: stats.rx_nohandler,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_found_by_name_and_in_the_list() {
        let mut netlink = Netlink::open().unwrap();
        let loopback = netlink.link("lo").unwrap();
        assert_eq!((loopback.index, loopback.mac), (1, Some(MacAddress::default())));
        assert_eq!(netlink.links().unwrap()[0].name, "lo");
    }

    #[test]
    fn an_answer_of_the_kernel_names_the_request() {
        let mut netlink = Netlink::open().unwrap();
        let error = netlink.link("none").unwrap_err();
        assert_eq!(error.call, "RTM_GETLINK(none)");
        assert_eq!(error.errno(), Some(libc::ENODEV));
        // The socket is still in sync after an error.
        assert_eq!(netlink.link("lo").unwrap().name, "lo");
    }
}
