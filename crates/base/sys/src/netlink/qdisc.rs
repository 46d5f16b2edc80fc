//! Queueing disciplines with their counters and, for shapers, their rate (`linux/pkt_sched.h`, tc(8)).

use netlink_packet_core::{DefaultNla, NLM_F_DUMP, NLM_F_REQUEST, Nla as _, NlasIterator};
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
    /// The handle, unique on its device: major number in the upper half, minor in the lower.
    pub handle: u32,
    /// Its position on the device.
    pub place: QdiscPlace,
    /// The kind: `fq_codel`, `tbf`.
    pub kind: String,
    /// The rate that it keeps to, in bytes per second; known for `tbf`.
    pub rate_bytes: Option<u64>,
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
}

fn qdisc_of(message: Message) -> Option<Qdisc> {
    let Message::NewQueueDiscipline(message) = message else { return None };
    let place = match message.header.parent {
        TcHandle::ROOT => QdiscPlace::Root,
        TcHandle::INGRESS => QdiscPlace::Ingress,
        _ => QdiscPlace::Child,
    };
    let device = u32::try_from(message.header.index).ok()?;
    let handle = message.header.handle.into();
    let (mut kind, mut rate_bytes, mut counters) = (String::new(), None, None);
    for attribute in message.attributes {
        match attribute {
            TcAttribute::Kind(name) => kind = name,
            TcAttribute::Options(options) if kind == "tbf" => rate_bytes = tbf_rate(&options),
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
    Some(Qdisc { device, handle, place, kind, rate_bytes, n_dropped, n_overlimits, backlog_bytes })
}

/// Returns the rate of a token bucket filter, in bytes per second.
fn tbf_rate(options: &[TcOption]) -> Option<u64> {
    const PARMS: u16 = 1;
    const RATE64: u16 = 4;
    // `struct tc_tbf_qopt` begins with a `struct tc_ratespec`, whose last field is the rate.
    const RATE_AT: usize = 8;
    let options = options.iter().find_map(|option| match option {
        TcOption::Other(nested) => Some(value_of(nested)),
        _ => None,
    })?;
    let nested: Vec<_> = NlasIterator::new(&options[..]).filter_map(std::result::Result::ok).collect();
    let of_kind =
        |kind| nested.iter().find(|attribute| attribute.kind() == kind).map(netlink_packet_core::NlaBuffer::value);
    let wide = of_kind(RATE64).and_then(|value| Some(u64::from_ne_bytes(value.get(..8)?.try_into().ok()?)));
    // A rate that does not fit into 32 bits is only in the wide attribute.
    let narrow = || Some(u32::from_ne_bytes(of_kind(PARMS)?.get(RATE_AT..RATE_AT + 4)?.try_into().ok()?).into());
    wide.or_else(narrow)
}

fn value_of(attribute: &DefaultNla) -> Vec<u8> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
