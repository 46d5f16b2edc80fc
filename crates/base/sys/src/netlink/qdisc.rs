//! Queueing disciplines with their counters and, for shapers, their rate (`linux/pkt_sched.h`, tc(8)).

use std::collections::BTreeMap;

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, NLM_F_REQUEST, Nla as _};
use netlink_packet_route::{
    RouteNetlinkMessage as Message,
    tc::{TcAttribute, TcHandle, TcMessage, TcOption, TcStats2},
};

use super::Netlink;
use crate::Result;

/// The position of a discipline on its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QdiscPlace {
    /// At the root of the way out. Its drops include those of its children.
    Root,
    /// On the way in: `ingress` and `clsact`.
    Ingress,
    /// Below another discipline.
    Child,
}

/// A queueing discipline at the time of the request. Its counters have 32 bits and wrap around.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Qdisc {
    /// The index of its device.
    pub device: u32,
    /// The handle: major number in the upper half, minor in the lower. Those that the kernel made itself all have 0.
    pub handle: u32,
    /// The class that it stands at, unique on its device.
    pub parent: u32,
    /// Its position on the device.
    pub place: QdiscPlace,
    /// The kind: `fq_codel`, `tbf`.
    pub kind: String,
    /// The rate that it keeps to, in bytes per second: all of it for `tbf`, that of a single flow for `fq`. For `htb` see
    /// [`Netlink::htb_rate`].
    pub rate_bytes: Option<u64>,
    /// The class of packets that no filter of an `htb` sends to another one.
    pub class_default: Option<u32>,
    /// Packets that it dropped.
    pub n_dropped: u32,
    /// How often it had a packet that its rate did not allow yet.
    pub n_overlimits: u32,
    /// The size of its queue in bytes.
    pub backlog_bytes: u32,
}

impl Netlink {
    /// Returns all queueing disciplines of the namespace.
    ///
    /// # Errors
    /// Any error of the kernel.
    pub fn qdiscs(&mut self) -> Result<Vec<Qdisc>> {
        let ask = Message::GetQueueDiscipline(TcMessage::default());
        let answers = self.request("RTM_GETQDISC", ask, NLM_F_REQUEST | NLM_F_DUMP)?;
        Ok(answers.into_iter().filter_map(qdisc_of).collect())
    }

    /// Gives a link a plain queue of as many packets as its `txqueuelen`, in place of the discipline that it has.
    ///
    /// From Linux 6.15 on, a veth without a discipline drops what finds the ring of its other end full, and one with a discipline waits.
    ///
    /// # Errors
    /// `ENODEV` if the link does not exist, `EOPNOTSUPP` if the kernel has no disciplines.
    pub fn set_fifo(&mut self, index: u32) -> Result<()> {
        let mut message = TcMessage::default();
        message.header.index = index.cast_signed();
        message.header.parent = TcHandle::ROOT;
        message.attributes.push(TcAttribute::Kind("pfifo".to_owned()));
        let call = format!("RTM_NEWQDISC(link {index}, pfifo)");
        self.change(&call, Message::NewQueueDiscipline(message), NLM_F_CREATE | NLM_F_REPLACE)
    }
}

fn qdisc_of(message: Message) -> Option<Qdisc> {
    let Message::NewQueueDiscipline(message) = message else { return None };
    let place = match message.header.parent {
        TcHandle::ROOT => QdiscPlace::Root,
        TcHandle::INGRESS => QdiscPlace::Ingress,
        _ => QdiscPlace::Child,
    };
    let device = u32::try_from(message.header.index).ok()?;
    let (handle, parent) = (message.header.handle.into(), message.header.parent.into());
    let (mut kind, mut rate_bytes, mut class_default, mut counters) = (String::new(), None, None, None);
    for attribute in message.attributes {
        match attribute {
            TcAttribute::Kind(name) => kind = name,
            TcAttribute::Options(options) if kind == "tbf" => rate_bytes = tbf_rate(&options),
            TcAttribute::Options(options) if kind == "fq" => rate_bytes = fq_rate(&options),
            TcAttribute::Options(options) if kind == "htb" => class_default = htb_class(handle, &options),
            TcAttribute::Stats2(stats) => {
                counters = stats.into_iter().find_map(|stats| match stats {
                    TcStats2::Queue(queue) => Some(queue),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let counters = counters?;
    let (n_dropped, n_overlimits, backlog_bytes) = (counters.drops, counters.overlimits, counters.backlog);
    Some(Qdisc {
        device,
        handle,
        parent,
        place,
        kind,
        rate_bytes,
        class_default,
        n_dropped,
        n_overlimits,
        backlog_bytes,
    })
}

impl Netlink {
    /// Returns the rate that an `htb` keeps packets to that no filter sends to another class, in bytes per second.
    ///
    /// It is the lowest ceiling on the way from their class to the root. `None` without a class for them: they pass at once.
    ///
    /// # Errors
    /// `ENODEV` if the device does not exist.
    pub fn htb_rate(&mut self, discipline: &Qdisc) -> Result<Option<u64>> {
        let Some(class) = discipline.class_default else { return Ok(None) };
        let mut of_device = TcMessage::default();
        of_device.header.index = discipline.device.cast_signed();
        let ask = Message::GetTrafficClass(of_device);
        let answers = self.request("RTM_GETTCLASS", ask, NLM_F_REQUEST | NLM_F_DUMP)?;
        let classes: BTreeMap<u32, (u32, u64)> = answers.into_iter().filter_map(class_of).collect();
        Ok(lowest_ceiling(&classes, class))
    }
}

/// Returns the lowest ceiling from a class to the root, of classes with their parents and ceilings.
fn lowest_ceiling(classes: &BTreeMap<u32, (u32, u64)>, class: u32) -> Option<u64> {
    let (mut at, mut lowest) = (class, None);
    // The kernel allows eight levels (`TC_HTB_MAXDEPTH`); a damaged answer may have a circle.
    for _ in 0..8 {
        let Some((parent, ceiling)) = classes.get(&at) else { break };
        lowest = Some(lowest.map_or(*ceiling, |lowest: u64| lowest.min(*ceiling)));
        at = *parent;
    }
    lowest
}

/// Returns the handle of an `htb` class, its parent and its ceiling in bytes per second.
fn class_of(message: Message) -> Option<(u32, (u32, u64))> {
    const PARMS: u16 = 1;
    const CEILING64: u16 = 7;
    // `struct tc_htb_opt` begins with the rate and the ceiling, each a `struct tc_ratespec` of 12 bytes that ends with the rate.
    const CEILING_AT: usize = 12 + 8;
    let Message::NewTrafficClass(message) = message else { return None };
    let (mut is_htb, mut ceiling) = (false, None);
    for attribute in message.attributes {
        match attribute {
            TcAttribute::Kind(name) => is_htb = name == "htb",
            TcAttribute::Options(options) if is_htb => ceiling = rate_of(&options, CEILING64, (PARMS, CEILING_AT)),
            _ => {}
        }
    }
    Some((message.header.handle.into(), (message.header.parent.into(), ceiling?)))
}

/// Returns the rate of a token bucket filter, in bytes per second.
fn tbf_rate(options: &[TcOption]) -> Option<u64> {
    const PARMS: u16 = 1;
    const RATE64: u16 = 4;
    // `struct tc_tbf_qopt` begins with a `struct tc_ratespec`, whose last field is the rate.
    const RATE_AT: usize = 8;
    rate_of(options, RATE64, (PARMS, RATE_AT))
}

/// Returns the rate that a fair queue keeps each flow to, in bytes per second; `None` without one.
fn fq_rate(options: &[TcOption]) -> Option<u64> {
    const FLOW_MAX_RATE: u16 = 7;
    let options = nested(options)?;
    number_at(value(&options, FLOW_MAX_RATE)?, 0).filter(|rate| *rate != u32::MAX).map(u64::from)
}

/// Returns the class of packets that no filter sends to another one; `None` if there is none, and they pass at once.
fn htb_class(handle: u32, options: &[TcOption]) -> Option<u32> {
    const INIT: u16 = 2;
    // `struct tc_htb_glob`: version, rate2quantum, defcls.
    const CLASS_AT: usize = 8;
    let options = nested(options)?;
    let minor = number_at(value(&options, INIT)?, CLASS_AT).filter(|minor| *minor > 0)?;
    // A handle has the number of its discipline in the upper half.
    Some(handle & 0xffff_0000 | minor & 0xffff)
}

/// Returns a rate in bytes per second: of an attribute with 64 bits, or of a place in another one with 32.
fn rate_of(options: &[TcOption], wide: u16, (narrow, at): (u16, usize)) -> Option<u64> {
    let options = nested(options)?;
    let of_wide = value(&options, wide).and_then(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)));
    // A rate that does not fit into 32 bits is only in the wide attribute.
    of_wide.or_else(|| number_at(value(&options, narrow)?, at).map(u64::from))
}

/// Returns the attributes within the options of a kind that the parser of messages does not know.
fn nested(options: &[TcOption]) -> Option<Vec<u8>> {
    options.iter().find_map(|option| match option {
        TcOption::Other(nested) => Some(value_of(nested)),
        _ => None,
    })
}

fn value(options: &[u8], kind: u16) -> Option<&[u8]> {
    super::message::attribute(options, kind)
}

fn number_at(value: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn value_of(attribute: &DefaultNla) -> Vec<u8> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, process::Command};

    use fathom_testkit::or_skip;

    use super::*;
    use crate::{Error, netlink::namespace::NetNs};

    #[test]
    fn every_device_has_at_most_one_discipline_at_its_root() {
        let mut netlink = Netlink::open().unwrap();
        let links: Vec<u32> = netlink.links().unwrap().into_iter().map(|link| link.index).collect();
        let roots = netlink.qdiscs().unwrap().into_iter().filter(|qdisc| qdisc.place == QdiscPlace::Root);
        let mut devices: Vec<u32> = roots.map(|qdisc| qdisc.device).collect();
        assert!(devices.iter().all(|device| links.contains(device)), "{devices:?} of {links:?}");
        assert!(devices.contains(&1), "the loopback has one: {devices:?}");
        let n = devices.len();
        devices.dedup();
        assert_eq!(devices.len(), n);
    }

    #[test]
    fn the_queues_of_a_device_are_told_apart_by_their_class() {
        let Some(namespace) = or_skip(NetNs::new(), Error::is_permission) else { return };
        let commands = "ip link add eth0 numtxqueues 4 type veth peer name eth1 && tc qdisc add dev eth0 root mq";
        let qdiscs = namespace.enter_with(|| {
            let made = Command::new("sh").args(["-c", commands]).status().unwrap();
            assert!(made.success());
            Netlink::open().unwrap().qdiscs().unwrap()
        });
        let queues: Vec<Qdisc> = qdiscs.unwrap().into_iter().filter(|qdisc| qdisc.place == QdiscPlace::Child).collect();
        assert!(queues.len() == 4 && queues.iter().all(|queue| queue.handle == 0), "{queues:?}");
        let parents: BTreeSet<u32> = queues.iter().map(|queue| queue.parent).collect();
        assert_eq!(parents.len(), 4, "{queues:?}");
    }

    #[test]
    fn the_rate_of_a_token_bucket_is_read_from_the_narrow_or_the_wide_attribute() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap();
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let mut parms = [0; 36];
        parms[8..12].copy_from_slice(&12_500_000_u32.to_ne_bytes());
        let options = |value: Vec<u8>| [TcOption::Other(DefaultNla::new(2, value))];
        assert_eq!(tbf_rate(&options(attribute(1, &parms))), Some(12_500_000));
        let wide = attribute(4, &5_000_000_000_u64.to_ne_bytes());
        assert_eq!(tbf_rate(&options([attribute(1, &parms), wide].concat())), Some(5_000_000_000));
        assert_eq!(tbf_rate(&options(vec![1, 2, 3])), None);
    }

    #[test]
    fn the_rate_of_a_fair_queue_and_the_class_of_a_hierarchy_are_read_from_their_options() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = u16::try_from(value.len() + 4).unwrap();
            [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
        };
        let options = |value: Vec<u8>| [TcOption::Other(DefaultNla::new(2, value))];
        assert_eq!(fq_rate(&options(attribute(7, &1_250_000_u32.to_ne_bytes()))), Some(1_250_000));
        assert_eq!(fq_rate(&options(attribute(7, &u32::MAX.to_ne_bytes()))), None, "no limit");
        let globals = |class: u32| [3, 10, class, 0, 0].map(u32::to_ne_bytes).concat();
        assert_eq!(htb_class(0x1_0000, &options(attribute(2, &globals(0x10)))), Some(0x1_0010));
        assert_eq!(htb_class(0x1_0000, &options(attribute(2, &globals(0)))), None, "its packets pass at once");
    }

    #[test]
    fn a_hierarchy_lets_pass_what_its_lowest_ceiling_does() {
        let root = u32::MAX;
        let classes = [(0x1_0001, (root, 500)), (0x1_0010, (0x1_0001, 900)), (0x1_0020, (0x1_0001, 200))].into();
        assert_eq!(lowest_ceiling(&classes, 0x1_0010), Some(500));
        assert_eq!(lowest_ceiling(&classes, 0x1_0020), Some(200));
        assert_eq!(lowest_ceiling(&classes, 0x1_0030), None);
        assert_eq!(lowest_ceiling(&[(7, (7, 5))].into(), 7), Some(5), "a circle ends");
    }
}
