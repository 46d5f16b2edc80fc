//! What the device changes in its network namespace: rules that queue packets, routes by mark, translations, a tun device.
//!
//! Rules and the tun device belong to descriptors, so they go with the process, however it ends. Routes do not: they carry an origin by which
//! the next balancer finds and removes those of one that was killed.

use std::{collections::BTreeMap, net::IpAddr, num::NonZeroU16, sync::Arc};

use fathom_model::{
    MacAddress,
    units::{Bytes, Nanos},
};
use fathom_sys::{
    netlink::{
        Link, Netlink,
        nftables::{Chain, Hook, Nftables, PacketMatch, QueueRange, QueueWay, Rule, RuleVerdict, Table, TableFamily},
        packet_queue,
        routing_rules::MarkedRoute,
    },
    packet::tun::TunDevice,
};

use super::{
    DeviceError,
    settings::{DeviceSettings, DeviceTarget, ForwardMode},
};

/// The chain that queues.
const ENTRY: &str = "queue";
/// The chain that translates destinations.
const TRANSLATIONS: &str = "targets";
/// The chain of the defect that gives answers a wrong source.
const WRONG_SOURCE: &str = "wrong-source";
/// The rules of all targets come before that of the main table, whose priority is 32766.
const MARK_MAX: u32 = 32_765;
/// What the names of tun devices begin with, before the first mark.
const TUN: &str = "fathom";
/// A packet that was decided before a target was removed is routed long before this time is over.
const RETIREMENT: Nanos = Nanos::from_secs(1);

/// The way to a target.
#[derive(Debug, Clone)]
struct TargetWay {
    target: DeviceTarget,
    /// When the target was removed, if it was.
    removed_at: Option<Nanos>,
}

/// The changes; dropping this undoes them.
#[derive(Debug)]
pub(super) struct Steering {
    settings: DeviceSettings,
    netlink: Netlink,
    /// The tables that queue, each owned by its socket.
    queues: Vec<Nftables>,
    /// The tables that translate, by family.
    translations: Vec<(TableFamily, Nftables)>,
    /// The targets by mark, with those whose last packets may still be on their way.
    ways: BTreeMap<u32, TargetWay>,
    tun: Arc<TunDevice>,
    tun_index: u32,
    way: QueueWay,
}

impl Steering {
    /// Makes the tun device and finds out what the kernel can do. No packet is queued yet.
    pub(super) fn prepare(settings: DeviceSettings) -> Result<Self, DeviceError> {
        let failed = |attempt: &'static str| move |error| DeviceError::kernel(attempt, error);
        let way = packet_queue::queue_way().map_err(failed("look for a rule that queues packets"))?;
        let way = way.ok_or(DeviceError::NoQueueRule)?;
        let mut netlink = Netlink::open().map_err(failed("open rtnetlink"))?;
        let name = format!("{TUN}{}", settings.first_mark);
        let tun = TunDevice::create(&name).map_err(|error| match error.errno() {
            Some(EBUSY) => DeviceError::MarksTaken(settings.first_mark),
            // The rules that were tried before needed the privilege too.
            _ => DeviceError::NoTun(error),
        })?;
        let index_of = |netlink: &mut Netlink| {
            let index = netlink.link(&name)?.index;
            netlink.set_up(index).map(|()| index)
        };
        let tun_index = index_of(&mut netlink).map_err(failed("set the tun device up"))?;
        remove_left(&mut netlink, &settings)?;
        let (queues, translations, ways, tun) = (Vec::new(), Vec::new(), BTreeMap::new(), Arc::new(tun));
        Ok(Self { settings, netlink, queues, translations, ways, tun, tun_index, way })
    }

    /// How packets get into the queues.
    pub(super) fn way(&self) -> QueueWay {
        self.way
    }

    /// The device by which packets come in again, with its index.
    pub(super) fn tun(&self) -> (Arc<TunDevice>, u32) {
        (Arc::clone(&self.tun), self.tun_index)
    }

    /// The largest MTU of all links.
    pub(super) fn largest_mtu(&mut self) -> Result<Bytes, DeviceError> {
        let links = self.netlink.links().map_err(|error| DeviceError::kernel("look at the links", error))?;
        let is_on_path = |link: &&Link| link.mac.is_some_and(|mac| mac != MacAddress::default());
        // Loopback and tun carry nothing for targets.
        let mtu = links.iter().filter(is_on_path).map(|link| link.mtu_bytes).max();
        Ok(Bytes(mtu.unwrap_or(1500).into()))
    }

    /// Refuses a target to which mode dsr cannot route packets: this host itself, which would take them as forwarded to nobody.
    pub(super) fn check(&mut self, target: &DeviceTarget) -> Result<(), DeviceError> {
        if self.settings.mode != ForwardMode::Dsr {
            return Ok(());
        }
        let own = self.netlink.addresses().map_err(|error| DeviceError::kernel("look at the addresses", error))?;
        let same = target.addresses.iter().find(|address| own.iter().any(|(_, own)| own == *address));
        same.map_or(Ok(()), |address| {
            let why = format!("{address} is an address of this host");
            Err(DeviceError::TargetRefused { given: target.to_string(), why })
        })
    }

    /// Makes the way to a target, and returns the mark by which packets go there.
    pub(super) fn add(&mut self, target: DeviceTarget, now: Nanos) -> Result<u32, DeviceError> {
        self.retire(now)?;
        self.settings.check_target(&target, std::iter::empty())?;
        let free = (self.settings.first_mark + 1..=MARK_MAX).find(|mark| !self.ways.contains_key(mark));
        let mark = free.ok_or_else(|| DeviceError::TargetRefused {
            given: target.to_string(),
            why: format!("all marks up to {MARK_MAX} are in use"),
        })?;
        if self.settings.mode == ForwardMode::Dsr {
            self.route(mark, &target)?;
        }
        self.ways.insert(mark, TargetWay { target, removed_at: None });
        if let Err(error) = self.translate() {
            self.ways.remove(&mark);
            return Err(error);
        }
        Ok(mark)
    }

    /// Begins to remove the way to a target: packets that were decided already still find it.
    pub(super) fn remove(&mut self, mark: u32, now: Nanos) {
        if let Some(way) = self.ways.get_mut(&mark) {
            way.removed_at = Some(now);
        }
    }

    /// The targets by mark.
    pub(super) fn targets(&self) -> impl Iterator<Item = (u32, &DeviceTarget)> {
        self.ways.iter().filter(|(_, way)| way.removed_at.is_none()).map(|(mark, way)| (*mark, &way.target))
    }

    /// Lets packets into the queues from now on.
    pub(super) fn begin(&mut self) -> Result<(), DeviceError> {
        self.queue_into(self.settings.n_queues())
    }

    /// Divides packets among the first so many queues from now on. Those that wait in others are decided there.
    pub(super) fn use_queues(&mut self, n_queues: NonZeroU16) -> Result<(), DeviceError> {
        let most = self.settings.n_queues();
        if n_queues > most {
            let what = format!("this balancer has {most} queues, not {n_queues}");
            let fix = format!(
                "start it with --queues 0-{}, in a lab --device balancer:queues={n_queues}",
                n_queues.get() - 1
            );
            return Err(DeviceError::Refused { what, fix: Some(fix) });
        }
        self.queue_into(n_queues)
    }

    /// Makes the rules that queue, or replaces them, in one transaction for each IP version.
    fn queue_into(&mut self, n_queues: NonZeroU16) -> Result<(), DeviceError> {
        let queues = QueueRange { first: *self.settings.queues.start(), n_queues };
        let verdict = match self.settings.mode {
            ForwardMode::Dsr => RuleVerdict::QueueUntracked(queues, self.way),
            ForwardMode::Dnat => RuleVerdict::Queue(queues, self.way),
        };
        for (place, (family, addresses)) in self.addresses_by_family().into_iter().enumerate() {
            let rule = |address: &IpAddr| Rule { matching: PacketMatch::Destination(*address), verdict };
            let entry =
                Chain { name: ENTRY, hook: Some(Hook::BeforeTracking), rules: addresses.iter().map(rule).collect() };
            let mut chains = vec![entry];
            chains.extend(self.wrong_source(&addresses)?);
            let name = format!("fathom-{}", self.settings.name);
            let table = Table { family, name: &name };
            if let Some(nft) = self.queues.get_mut(place) {
                let made = nft.replace_owned(table, &chains);
                made.map_err(|error| DeviceError::kernel("replace the rules that queue packets", error))?;
                continue;
            }
            let mut nft = Nftables::open().map_err(|error| DeviceError::kernel("open nf_tables", error))?;
            nft.install_owned(table, &chains).map_err(|error| self.refused(family, error))?;
            self.queues.push(nft);
        }
        Ok(())
    }

    /// Lets no further packet into the queues.
    pub(super) fn end(&mut self) {
        self.queues.clear();
    }

    fn refused(&self, family: TableFamily, error: fathom_sys::Error) -> DeviceError {
        if matches!(error.errno(), Some(EEXIST | EPERM)) {
            let family = if family == TableFamily::Ipv4 { "ip" } else { "ip6" };
            return DeviceError::RulesExist { table: format!("{family} fathom-{}", self.settings.name) };
        }
        DeviceError::kernel("make the rules that queue packets", error)
    }

    fn addresses_by_family(&self) -> Vec<(TableFamily, Vec<IpAddr>)> {
        let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) =
            self.settings.virtual_addresses.iter().partition(|address| address.is_ipv4());
        let all = [(TableFamily::Ipv4, v4), (TableFamily::Ipv6, v6)];
        all.into_iter().filter(|(_, addresses)| !addresses.is_empty()).collect()
    }

    /// The chain of the defect: answers leave with an address of this host in place of the virtual one.
    fn wrong_source(&mut self, addresses: &[IpAddr]) -> Result<Option<Chain<'static>>, DeviceError> {
        if !self.settings.balancer.defects.wrong_source {
            return Ok(None);
        }
        let own = self.netlink.addresses().map_err(|error| DeviceError::kernel("look at the addresses", error))?;
        let is_like = |address: &IpAddr| !address.is_loopback() && address.is_ipv4() == addresses[0].is_ipv4();
        let own = own.into_iter().map(|(_, address)| address).find(is_like);
        let own = own.ok_or_else(|| DeviceError::BadSetting {
            option: "defect",
            why: format!("wrong-source: this host has no address of the IP version of {}", addresses[0]),
        })?;
        let rule = |address: &IpAddr| Rule {
            matching: PacketMatch::Source(*address),
            verdict: RuleVerdict::RewriteSource(own),
        };
        let rules = addresses.iter().map(rule).collect();
        Ok(Some(Chain { name: WRONG_SOURCE, hook: Some(Hook::AfterTranslation), rules }))
    }

    fn route(&mut self, mark: u32, target: &DeviceTarget) -> Result<(), DeviceError> {
        let mut made: Vec<MarkedRoute> = Vec::new();
        for gateway in &target.addresses {
            let marked = MarkedRoute { mark, table: mark, gateway: *gateway };
            if let Err(error) = self.netlink.add_marked_route(&marked) {
                for marked in &made {
                    let _ = self.netlink.remove_marked_route(marked);
                }
                return Err(match error.errno() {
                    Some(ENETUNREACH | EHOSTUNREACH) => DeviceError::TargetRefused {
                        given: target.to_string(),
                        why: format!(
                            "{gateway} is on no link of this host, and mode dsr routes packets straight to it"
                        ),
                    },
                    Some(EEXIST) => DeviceError::MarkTaken { mark },
                    _ => DeviceError::kernel("route packets to a target", error),
                });
            }
            made.push(marked);
        }
        Ok(())
    }

    /// Replaces the rules that translate destinations, in one transaction.
    fn translate(&mut self) -> Result<(), DeviceError> {
        if self.settings.mode != ForwardMode::Dnat {
            return Ok(());
        }
        let failed = |error| DeviceError::kernel("make the rules that translate addresses", error);
        for (family, addresses) in self.addresses_by_family() {
            let known = self.translations.iter().position(|(of, _)| *of == family);
            if known.is_none() {
                self.translations.push((family, Nftables::open().map_err(failed)?));
            }
            let place = known.unwrap_or(self.translations.len() - 1);
            let mut rules = Vec::new();
            for (mark, way) in &self.ways {
                rules.extend(addresses.iter().filter_map(|address| {
                    let to = way.target.address_like(*address)?;
                    Some(Rule { matching: PacketMatch::Marked(*address, *mark), verdict: RuleVerdict::Translate(to) })
                }));
            }
            if rules.len() > Nftables::REPLACED_RULES_MAX {
                let why = format!("mode dnat has at most {} of them", Nftables::REPLACED_RULES_MAX);
                return Err(DeviceError::BadSetting { option: "targets by virtual addresses", why });
            }
            let name = format!("fathom-{}-nat", self.settings.name);
            let chain = Chain { name: TRANSLATIONS, hook: Some(Hook::Translation), rules };
            let table = Table { family, name: &name };
            let nft = &mut self.translations[place].1;
            let made =
                if known.is_some() { nft.replace_owned(table, &[chain]) } else { nft.install_owned(table, &[chain]) };
            made.map_err(failed)?;
        }
        Ok(())
    }

    /// Removes the ways of targets that were removed a while ago.
    fn retire(&mut self, now: Nanos) -> Result<(), DeviceError> {
        let is_over = |way: &TargetWay| way.removed_at.is_some_and(|at| now - at >= RETIREMENT);
        let over: Vec<u32> = self.ways.iter().filter(|(_, way)| is_over(way)).map(|(mark, _)| *mark).collect();
        for mark in &over {
            if let Some(way) = self.ways.remove(mark) {
                unroute(&mut self.netlink, &self.settings, *mark, &way.target);
            }
        }
        if over.is_empty() { Ok(()) } else { self.translate() }
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        self.end();
        for (mark, way) in std::mem::take(&mut self.ways) {
            unroute(&mut self.netlink, &self.settings, mark, &way.target);
        }
    }
}

const EPERM: i32 = 1;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 101;
const EHOSTUNREACH: i32 = 113;

fn unroute(netlink: &mut Netlink, settings: &DeviceSettings, mark: u32, target: &DeviceTarget) {
    if settings.mode == ForwardMode::Dsr {
        for gateway in &target.addresses {
            // A route goes with its link.
            let _ = netlink.remove_marked_route(&MarkedRoute { mark, table: mark, gateway: *gateway });
        }
    }
}

/// Removes the routes of balancers that were killed. The marks of one that runs begin behind the number of its tun device, which came before its
/// routes; so what lies behind our number, or behind none, belongs to nobody.
fn remove_left(netlink: &mut Netlink, settings: &DeviceSettings) -> Result<(), DeviceError> {
    let marked = netlink.marked_routes().map_err(|error| DeviceError::kernel("look at the routing rules", error))?;
    let links = netlink.links().map_err(|error| DeviceError::kernel("look at the links", error))?;
    let first_marks: Vec<u32> = links.iter().filter_map(|link| link.name.strip_prefix(TUN)?.parse().ok()).collect();
    for left in marked.iter().filter(|route| is_left(route.mark, settings.first_mark, &first_marks)) {
        // The table may be empty.
        let _ = netlink.remove_marked_route(left);
    }
    Ok(())
}

/// Whether a mark belongs to none of the balancers that run, of which one has just begun and has no marks yet.
fn is_left(mark: u32, own: u32, first_marks: &[u32]) -> bool {
    let owner = first_marks.iter().filter(|first| **first < mark).max();
    owner.is_none_or(|first| *first == own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_behind_the_own_number_or_behind_none_are_left_and_those_of_others_are_theirs() {
        let running = [20_000, 25_000, 1000];
        let is_left = |mark| is_left(mark, 20_000, &running);
        assert!([1, 1000, 20_001, 24_999, 25_000].into_iter().all(is_left));
        assert!(![1001, 20_000, 25_001, 32_000].into_iter().any(is_left));
    }
}
