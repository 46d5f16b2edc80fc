//! The resources that a role may use, checked where sockets, files and variables are opened.
//!
//! An agent passes a [`Policy`] to each test that it prepares. Everything that sends takes a [`Destination`], and everything that puts
//! frames on a wire takes a [`FramePermit`]. Only a policy creates these, so code without the check does not compile. This module knows no
//! options and no kinds.

mod guests;
mod network;

use std::{
    collections::BTreeMap,
    env, fmt,
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs as _},
    path::Path,
    sync::Arc,
};

use fathom_model::units::Bytes;
pub(crate) use guests::Guard;
use guests::GuardedSockets;
pub use guests::{AllowedPeers, Unfiltered, is_filter_refused};
pub use network::{Network, NetworkError};
use socket2::SockAddr;

use crate::netlink::Netlink;

/// The permissions of a role; clones share them.
#[derive(Debug, Clone)]
pub struct Policy {
    /// `None` if everything is allowed.
    bounds: Option<Arc<PolicyBounds>>,
    guarded: GuardedSockets,
    resolved: Option<Arc<ResolvedNames>>,
}

/// The addresses of names that were looked up before.
pub type ResolvedNames = BTreeMap<String, Vec<IpAddr>>;

#[derive(Debug)]
struct PolicyBounds {
    /// The controller of a served host; if present, the host's own files are off limits.
    controller: Option<IpAddr>,
    allowed: Vec<Network>,
}

/// An action that the policy forbids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct Refused {
    /// The attempted action, such as `sending to 203.0.113.1 is refused`.
    pub what: String,
    /// The action that the owner of the host or the user could take.
    pub hint: Option<String>,
}

impl From<Refused> for io::Error {
    fn from(refused: Refused) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, refused)
    }
}

impl Refused {
    /// Extracts the refusal from an error of [`Policy::resolve`], [`Policy::open`] or [`Policy::read`], if it was one.
    #[must_use]
    pub fn within(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// A permitted destination and the device to send through; only a [`Policy`] creates it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    to: SockAddr,
    /// The device that its sockets must be bound to.
    device: Option<Arc<str>>,
}

impl Destination {
    /// The address in the kernel's format.
    #[must_use]
    pub const fn raw(&self) -> &SockAddr {
        &self.to
    }

    /// The requested device, see [`tuning::bind_to_device`](crate::socket::socket_options::bind_to_device).
    pub(crate) fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The address of the host; `None` for a local socket.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.to.as_socket()
    }

    /// The same host with the flow label assigned to it.
    pub(crate) fn labelled(&self, to: SocketAddrV6) -> Self {
        Self { to: SocketAddr::from(to).into(), device: self.device.clone() }
    }

    /// Another port on the same host.
    #[must_use]
    pub fn at(&self, port: u16) -> Self {
        let other = |mut address: SocketAddr| {
            address.set_port(port);
            Self { to: address.into(), device: self.device.clone() }
        };
        self.address().map_or_else(|| self.clone(), other)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) if address.port() == 0 => address.ip().fmt(f),
            Some(address) => address.fmt(f),
            None => f.write_str("a socket of this machine"),
        }
    }
}

/// The permission to send frames to certain hosts; only a [`Policy`] creates it.
#[derive(Debug, Clone)]
pub struct FramePermit(());

impl Policy {
    /// Allows everything: for agents in labs, for tests, and for requests of the user's own program.
    #[must_use]
    pub const fn anything() -> Self {
        Self { bounds: None, guarded: GuardedSockets::NONE, resolved: None }
    }

    /// For the agent of a served host: allows the controller and the networks that the owner allows, but none of the owner's files.
    #[must_use]
    pub fn served(controller: IpAddr, allowed: Vec<Network>) -> Self {
        Self::bounded(PolicyBounds { controller: Some(controller.to_canonical()), allowed })
    }

    /// For an agent started by the user's own controller: allows the networks that the user allows.
    #[must_use]
    pub fn own(allowed: Vec<Network>) -> Self {
        Self::bounded(PolicyBounds { controller: None, allowed })
    }

    fn bounded(bounds: PolicyBounds) -> Self {
        Self { bounds: Some(Arc::new(bounds)), guarded: GuardedSockets::NONE, resolved: None }
    }

    /// Returns the policy of one role, which counts the packets dropped at its guarded sockets ([`Policy::n_dropped`]).
    ///
    /// Names in `resolved` keep the addresses that were checked before the run: [`Policy::resolve`] does not look them up again.
    #[must_use]
    pub fn of_one_role(&self, resolved: ResolvedNames) -> Self {
        Self {
            bounds: self.bounds.clone(),
            guarded: GuardedSockets::counting(),
            resolved: (!resolved.is_empty()).then(|| Arc::new(resolved)),
        }
    }

    /// The number of packets that the kernel dropped at the guarded sockets of this role.
    ///
    /// The kernel has a single count for packets from strangers and for packets that found the socket's queue full.
    #[must_use]
    pub fn n_dropped(&self) -> u64 {
        self.guarded.n_dropped()
    }

    /// The number of strangers' connections that listeners of this role accepted and reset; `None` if the kernel keeps strangers away.
    #[must_use]
    pub fn n_reset(&self) -> Option<u64> {
        self.guarded.n_reset()
    }

    /// Why the kernel keeps no strangers away from the listeners of this role; `None` if it does.
    #[must_use]
    pub fn unfiltered(&self) -> Option<Unfiltered> {
        self.guarded.unfiltered()
    }

    /// Restricts the policy to the networks that the user allows; this never widens the limits of a served host.
    ///
    /// # Errors
    /// If one of them is not a valid network.
    pub fn within(&self, networks: Option<&[String]>) -> Result<Self, NetworkError> {
        match networks {
            Some(networks) if self.bounds.is_none() => {
                networks.iter().map(|network| network.parse()).collect::<Result<_, _>>().map(Self::own)
            }
            _ => Ok(self.clone()),
        }
    }

    /// Returns whether roles run for someone other than the owner of the host.
    #[must_use]
    pub fn is_for_others(&self) -> bool {
        self.bounds.as_ref().is_some_and(|bounds| bounds.controller.is_some())
    }

    /// Checks that sending to all addresses of a range is allowed.
    ///
    /// # Errors
    /// If any of them is not allowed.
    pub fn judge(&self, network: Network) -> Result<(), Refused> {
        let Some(bounds) = &self.bounds else { return Ok(()) };
        if network.is_group() {
            let what =
                format!("sending to {network} is refused: it addresses many hosts, and only a lab may load them");
            return Err(Refused { what, hint: None });
        }
        let controller = bounds.controller.map(Network::from);
        if controller.iter().chain(&bounds.allowed).any(|range| range.covers(&network)) {
            return Ok(());
        }
        let hint = match bounds.controller {
            Some(_) => format!("start the server there with --allow {network}"),
            None => format!("if it is yours to load: --allow {network}"),
        };
        Err(Refused { what: format!("sending to {network} is refused"), hint: Some(hint) })
    }

    /// Permits sending to an address.
    ///
    /// # Errors
    /// If the address is not allowed.
    pub fn permit(&self, address: SocketAddr) -> Result<Destination, Refused> {
        self.judge(address.ip().into())?;
        Ok(Destination { to: address.into(), device: None })
    }

    /// Permits sending to an address through a device; for others, only through the device that the kernel's route uses.
    ///
    /// Another device would send address resolution (ARP, neighbor discovery) to hosts that nobody named. This queries the kernel, so it
    /// belongs to the preparation of a test; use [`Destination::at`] for other ports of the same host.
    ///
    /// # Errors
    /// If the address is not allowed, or if its route is unknown or uses another device.
    pub fn permit_through(&self, device: &str, address: SocketAddr) -> Result<Destination, Refused> {
        self.judge_device(device, address.ip())?;
        Ok(Destination { device: Some(device.into()), ..self.permit(address)? })
    }

    fn judge_device(&self, name: &str, to: IpAddr) -> Result<(), Refused> {
        if !self.is_for_others() {
            return Ok(());
        }
        let is_on_the_way = Netlink::open().and_then(|mut netlink| {
            let link = netlink.next_hop(to)?.link;
            Ok(netlink.link(name)?.index == link)
        });
        if is_on_the_way.unwrap_or(false) {
            return Ok(());
        }
        let what =
            format!("sending to {to} through {name} is refused: the route to it leads through another interface");
        Err(Refused { what, hint: Some("leave out --interface".to_owned()) })
    }

    /// Permits connecting to a server on this machine through the path of its socket.
    ///
    /// # Errors
    /// If the role runs for others, or if the path is too long for a socket.
    pub fn permit_unix(&self, path: &Path) -> io::Result<Destination> {
        self.own_only(|| format!("connecting to {}", path.display()))?;
        SockAddr::unix(path).map(|to| Destination { to, device: None })
    }

    /// Returns the allowed peers of a role whose other side is at these addresses and may also send from these source networks.
    ///
    /// On a served host these are the controller and the networks that the owner allows; elsewhere everyone, if no address is given.
    #[must_use]
    pub fn guests(&self, with: &[IpAddr], sources: Option<&str>) -> AllowedPeers {
        let allowed = self
            .bounds
            .iter()
            .flat_map(|bounds| bounds.controller.map(Network::from).into_iter().chain(bounds.allowed.clone()));
        if self.is_for_others() {
            return AllowedPeers::of_role(allowed.collect(), self.guarded.clone());
        }
        if with.is_empty() {
            return AllowedPeers::anybody();
        }
        // A word that is not a network is the name of a device, which has the address of the role.
        let sources = sources.unwrap_or_default().split(',').filter_map(|word| word.trim().parse().ok());
        let networks = with.iter().copied().map(Network::from).chain(sources).chain(allowed).collect();
        AllowedPeers::of_role(networks, self.guarded.clone())
    }

    /// Permits sending frames to hosts.
    ///
    /// # Errors
    /// If one of them is not allowed.
    pub fn permit_frames(&self, to: impl IntoIterator<Item = IpAddr>) -> Result<FramePermit, Refused> {
        to.into_iter().try_for_each(|address| self.judge(address.into()))?;
        Ok(FramePermit(()))
    }

    /// Permits the addresses of a name: those that were checked before the run, or else those of one look-up.
    ///
    /// # Errors
    /// If the name has no address, or one that is not allowed ([`Refused::within`]).
    pub fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<Destination>> {
        let Some(checked) = self.resolved.as_ref().and_then(|resolved| resolved.get(host)) else {
            return self.look_up(host, port);
        };
        Ok(checked.iter().map(|address| self.permit((*address, port).into())).collect::<Result<_, _>>()?)
    }

    /// Looks a name up and permits its addresses.
    ///
    /// # Errors
    /// As [`Policy::resolve`].
    pub fn look_up(&self, host: &str, port: u16) -> io::Result<Vec<Destination>> {
        let found = (host, port).to_socket_addrs()?;
        Ok(found.map(|address| self.permit(address)).collect::<Result<_, _>>()?)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// If the role runs for others, or if the kernel refuses it.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        self.own_only(|| format!("opening {}", path.display()))?;
        File::open(path)
    }

    /// Reads a whole file of at most `at_most` bytes.
    ///
    /// # Errors
    /// As [`Policy::open`], and for a longer or endless file.
    pub fn read(&self, path: &Path, at_most: Bytes) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.take(at_most.0.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > at_most.0 {
            let text = format!("it is larger than {at_most}, the limit for such a file");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(bytes)
    }

    /// Returns an environment variable; `None` if it is unset or not valid text.
    ///
    /// # Errors
    /// If the role runs for others.
    pub fn variable(&self, name: &str) -> Result<Option<String>, Refused> {
        self.own_only(|| format!("the environment variable {name}"))?;
        Ok(env::var(name).ok())
    }

    fn own_only(&self, what: impl FnOnce() -> String) -> Result<(), Refused> {
        if !self.is_for_others() {
            return Ok(());
        }
        let what = format!("{} is refused: a served agent touches nothing of its own host for others", what());
        Err(Refused { what, hint: None })
    }
}

/// A destination for this crate's own tests, which send to themselves.
#[cfg(test)]
pub(crate) fn anywhere(address: SocketAddr) -> Destination {
    Destination { to: address.into(), device: None }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn served() -> Policy {
        Policy::served("::ffff:198.18.0.1".parse().unwrap(), vec!["10.0.0.0/8".parse().unwrap()])
    }

    #[test]
    fn only_the_controller_and_what_is_allowed_may_be_sent_to() {
        for allowed in ["198.18.0.1:9", "[::ffff:198.18.0.1]:9", "10.1.2.3:80"] {
            let address = allowed.parse().unwrap();
            assert_eq!(served().permit(address).unwrap().address(), Some(address));
        }
        for other in ["198.18.0.2:9", "127.0.0.1:1", "[::1]:1", "[::ffff:203.0.113.1]:80"] {
            let address: SocketAddr = other.parse().unwrap();
            let refused = served().permit(address).unwrap_err();
            assert!(refused.hint.unwrap().starts_with("start the server there with --allow "), "{other}");
            assert!(Policy::own(Vec::new()).permit(address).is_err() && Policy::anything().permit(address).is_ok());
        }
        assert!(served().permit_frames(["10.0.0.1".parse().unwrap(), "11.0.0.1".parse().unwrap()]).is_err());
    }

    #[test]
    fn an_address_of_many_hosts_is_for_labs_alone() {
        let everybody = Policy::served("198.18.0.1".parse().unwrap(), vec!["0.0.0.0/0".parse().unwrap()]);
        assert!(everybody.permit("203.0.113.1:9".parse().unwrap()).is_ok());
        for group in ["224.0.0.1:9", "[ff02::1]:9", "255.255.255.255:9"] {
            assert!(everybody.permit(group.parse().unwrap()).is_err(), "{group}");
            assert!(Policy::anything().permit(group.parse().unwrap()).is_ok(), "{group}");
        }
    }

    #[test]
    fn a_range_must_lie_within_what_is_allowed_as_a_whole() {
        for (range, expected) in [("10.2.0.0/16", true), ("198.18.0.1/32", true), ("10.0.0.0/7", false)] {
            assert_eq!(served().judge(range.parse().unwrap()).is_ok(), expected, "{range}");
        }
    }

    #[test]
    fn what_a_name_stands_for_is_judged_where_it_is_looked_up() {
        let refused = served().resolve("localhost", 80).unwrap_err();
        assert!(Refused::within(&refused).is_some());
        let own = Policy::own(vec![Network::LOOPBACK_V4, Network::LOOPBACK_V6]);
        assert!(own.resolve("localhost", 80).unwrap().iter().all(|to| to.address().unwrap().port() == 80));
    }

    #[test]
    fn a_name_that_was_checked_keeps_its_addresses() {
        let checked = BTreeMap::from([("localhost".to_owned(), vec!["198.18.0.1".parse().unwrap()])]);
        let addresses = |found: io::Result<Vec<Destination>>| -> Vec<_> {
            found.unwrap().iter().filter_map(Destination::address).map(|address| address.to_string()).collect()
        };
        let policy = Policy::anything().of_one_role(checked.clone());
        assert_eq!(addresses(policy.resolve("localhost", 80)), ["198.18.0.1:80"]);
        assert!(!addresses(policy.look_up("localhost", 80)).contains(&"198.18.0.1:80".to_owned()));
        let narrow = Policy::own(vec![Network::LOOPBACK_V4]).of_one_role(checked);
        assert!(narrow.resolve("localhost", 80).is_err(), "what was checked elsewhere is judged here");
    }

    #[test]
    fn what_the_user_allows_narrows_an_agent_of_the_user_and_widens_no_other() {
        let networks = ["192.0.2.0/24".to_owned()];
        let allows = |policy: &Policy, address: &str| policy.permit(address.parse().unwrap()).is_ok();
        let own = Policy::anything().within(Some(&networks)).unwrap();
        assert!(allows(&own, "192.0.2.1:80") && !allows(&own, "198.18.0.3:80"));
        assert!(!allows(&served().within(Some(&networks)).unwrap(), "192.0.2.1:80"));
        assert!(allows(&Policy::anything().within(None).unwrap(), "198.18.0.3:80"));
        assert!(Policy::anything().within(Some(&["x".to_owned()])).is_err());
    }

    #[test]
    fn files_and_variables_of_the_owner_are_not_for_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "12345").unwrap();
        let (own, others) = (Policy::own(Vec::new()), served());
        assert_eq!(own.read(&path, Bytes(5)).unwrap(), b"12345");
        assert_eq!(own.read(&path, Bytes(4)).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let endless = own.read(Path::new("/dev/zero"), Bytes(1 << 20)).unwrap_err();
        assert_eq!(endless.kind(), io::ErrorKind::FileTooLarge, "one without an end");
        assert!(own.variable("PATH").unwrap().is_some());
        let refusals = [
            others.open(&path).map(drop),
            others.read(&path, Bytes(5)).map(drop),
            others.permit_unix(&path).map(drop),
            others.variable("PATH").map(drop).map_err(Into::into),
        ];
        for refusal in refusals {
            assert!(Refused::within(&refusal.unwrap_err()).is_some());
        }
    }

    #[test]
    fn for_others_a_device_is_the_one_on_the_way() {
        let [here, nobody]: [IpAddr; 2] = ["127.0.0.1", "192.0.2.1"].map(|text| text.parse().unwrap());
        let served = Policy::served(here, vec![nobody.into()]);
        let through = |policy: &Policy, device: &str, to: IpAddr| policy.permit_through(device, SocketAddr::new(to, 9));
        let other = "192.0.2.2".parse().unwrap();
        assert!(through(&served, "lo", other).is_err(), "an address that nobody allowed");
        let refused = through(&served, "lo", nobody).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "sending to 192.0.2.1 through lo is refused: the route to it leads through another interface"
        );
        assert!(through(&served, "nosuch0", here).is_err() && through(&Policy::anything(), "nosuch0", here).is_ok());
        let granted = through(&served, "lo", here).unwrap();
        assert_eq!((granted.device(), granted.at(10).device()), (Some("lo"), Some("lo")));
    }
}
