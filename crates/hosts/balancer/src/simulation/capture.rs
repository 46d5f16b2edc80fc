//! Packets of a capture through a balancer, in orders that networks do not often make.
//!
//! It checks one thing: every fragment of a datagram is decided as the whole datagram would be.

use std::{collections::BTreeMap, fmt, net::IpAddr, str::FromStr, sync::Arc};

use serde::Serialize;

use fathom_model::units::Nanos;

use super::Draws;
use crate::{
    balancer::{Balancer, BalancerWorker},
    classify::{ClassifyError, DatagramKey, Packet, classify, fragment_id},
    counters::BalancerCounters,
    decision::Decision,
};

/// A change of the order of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderOperator {
    /// A random order.
    Shuffle,
    /// The last packet first.
    Reverse,
    /// So many packets from the beginning to the end.
    Rotate(usize),
    /// So many copies beside each other, whose datagrams have identifications of their own.
    Interleave(u32),
    /// So many packets, drawn at random, are left out.
    Drop(usize),
    /// So many times, a packet drawn at random comes once more.
    Duplicate(usize),
}

/// Why a text is no change of order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "order `{0}`: write shuffle, reverse, rotate=N, interleave=N, drop=N or duplicate=N, in the order of their use"
)]
pub struct OrderOperatorError(String);

impl FromStr for OrderOperator {
    type Err = OrderOperatorError;

    fn from_str(text: &str) -> Result<Self, OrderOperatorError> {
        let wrong = || OrderOperatorError(text.to_owned());
        let (word, number) = text.split_once('=').map_or((text, None), |(word, number)| (word, Some(number)));
        let number = number.map(|number| number.parse::<u32>().map_err(|_| wrong())).transpose()?;
        let size = number.and_then(|number| usize::try_from(number).ok());
        match (word, number, size) {
            ("shuffle", None, _) => Ok(Self::Shuffle),
            ("reverse", None, _) => Ok(Self::Reverse),
            ("rotate", _, Some(n)) => Ok(Self::Rotate(n)),
            ("interleave", Some(n), _) if (2..=COPIES_MAX).contains(&n) => Ok(Self::Interleave(n)),
            ("drop", _, Some(n)) => Ok(Self::Drop(n)),
            ("duplicate", _, Some(n)) => Ok(Self::Duplicate(n)),
            _ => Err(wrong()),
        }
    }
}

/// The most copies: identifications of IPv4 have 16 bits.
const COPIES_MAX: u32 = 1000;

impl fmt::Display for OrderOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shuffle => f.write_str("shuffle"),
            Self::Reverse => f.write_str("reverse"),
            Self::Rotate(n) => write!(f, "rotate={n}"),
            Self::Interleave(n) => write!(f, "interleave={n}"),
            Self::Drop(n) => write!(f, "drop={n}"),
            Self::Duplicate(n) => write!(f, "duplicate={n}"),
        }
    }
}

/// The most packets that an order may make of a capture.
const PACKETS_MAX: usize = 10_000_000;

/// An order that makes too many packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("order `{operator}` would make {n} packets, and the most are {PACKETS_MAX}")]
pub struct TooManyPackets {
    operator: OrderOperator,
    n: usize,
}

/// Returns how many packets an order makes of so many.
///
/// # Errors
/// If it makes too many at any place.
pub fn ordered_len(n_packets: usize, operators: &[OrderOperator]) -> Result<usize, TooManyPackets> {
    operators.iter().try_fold(n_packets, |before, operator| {
        let n = operator.len_after(before);
        if n > PACKETS_MAX { Err(TooManyPackets { operator: *operator, n }) } else { Ok(n) }
    })
}

impl OrderOperator {
    /// The number of packets that it makes of so many.
    fn len_after(self, n_packets: usize) -> usize {
        match self {
            Self::Shuffle | Self::Reverse | Self::Rotate(_) => n_packets,
            Self::Interleave(n) => n_packets.saturating_mul(usize::try_from(n).unwrap_or(usize::MAX)),
            Self::Drop(n) => n_packets.saturating_sub(n),
            Self::Duplicate(_) if n_packets == 0 => 0,
            Self::Duplicate(n) => n_packets.saturating_add(n),
        }
    }

    fn apply(self, packets: Vec<Vec<u8>>, draws: &mut Draws) -> Vec<Vec<u8>> {
        let mut packets = packets;
        let place = |draws: &mut Draws, n: usize| {
            let n = u64::try_from(n).unwrap_or(u64::MAX);
            usize::try_from(draws.below(n)).unwrap_or(0)
        };
        match self {
            Self::Shuffle => draws.shuffle(&mut packets),
            Self::Reverse => packets.reverse(),
            Self::Rotate(n) => {
                let n = n.checked_rem(packets.len()).unwrap_or(0);
                packets.rotate_left(n);
            }
            Self::Interleave(n) => packets = packets.iter().flat_map(|packet| copies(packet, n)).collect(),
            Self::Drop(n) => {
                // So many are needed yet of those that are left: each choice of them is as likely (Knuth, algorithm S).
                let (mut gone, mut left) = (n.min(packets.len()), packets.len());
                packets.retain(|_| {
                    let is_gone = place(draws, left) < gone;
                    left -= 1;
                    gone -= usize::from(is_gone);
                    !is_gone
                });
            }
            Self::Duplicate(_) if packets.is_empty() => {}
            Self::Duplicate(n) => {
                let mut n_each = vec![1; packets.len()];
                for _ in 0..n {
                    n_each[place(draws, packets.len())] += 1;
                }
                let each = packets.into_iter().zip(n_each);
                packets = each.flat_map(|(packet, n)| std::iter::repeat_n(packet, n)).collect();
            }
        }
        packets
    }
}

/// Copies of a packet; if it is a fragment, each has an identification of its own.
fn copies(packet: &[u8], n: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..n).map(move |number| {
        let mut copy = packet.to_vec();
        let Some(place) = fragment_id(packet) else { return copy };
        let lowest = place.end - 2;
        let id = u16::from_be_bytes([packet[lowest], packet[lowest + 1]]);
        // An odd step reaches every identification, and copies of neighbours do not meet.
        let step = u16::try_from(number).expect("there are at most a thousand copies").wrapping_mul(0x4f1b);
        copy[lowest..place.end].copy_from_slice(&id.wrapping_add(step).to_be_bytes());
        copy
    })
}

/// What a balancer made of the packets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CaptureSimulationResult {
    /// The seed of the order.
    pub seed: u64,
    /// Packets that were decided, without those that were released.
    pub n_packets: u64,
    /// Fragmented datagrams whose first fragment came.
    pub n_datagrams: u64,
    /// Of these, those all of whose fragments that came were forwarded.
    pub n_forwarded_datagrams: u64,
    /// Fragments that went elsewhere than their whole datagram would.
    pub n_misdirected_fragments: u64,
    /// Whole packets that went elsewhere than their flow.
    pub n_misdirected_packets: u64,
    /// The first misdirected packets.
    pub examples: Vec<Misdirected>,
    /// Packets that are no IP packets, or damaged, by what is wrong.
    pub unreadable: BTreeMap<String, u64>,
    /// What the balancer counted.
    pub counters: BalancerCounters,
}

/// A packet that went elsewhere than its flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Misdirected {
    /// The number of the packet in its new order, from 1.
    pub packet: u64,
    /// The target of its flow.
    pub expected: String,
    /// The mark that it got.
    pub mark: u32,
}

/// The examples that are kept.
const EXAMPLES_MAX: usize = 10;
/// The distance of packets: 1500 bytes at 1 Gbit/s.
const SPACING: Nanos = Nanos(12_000);

/// What came of one datagram.
#[derive(Debug, Default)]
struct Fragments {
    expected: Option<(String, u32)>,
    /// The numbers and marks of what was forwarded.
    forwarded: Vec<(u64, u32)>,
    n_came: u64,
}

/// A balancer while it is given the packets.
struct Playback<'a> {
    balancer: &'a Arc<Balancer>,
    worker: BalancerWorker,
    datagrams: BTreeMap<DatagramOrder, Fragments>,
    result: CaptureSimulationResult,
    now: Nanos,
}

/// Brings packets, given from their IP headers on, into a new order, and gives them to a balancer.
///
/// The balancer has its targets, and rules without conditions on bytes: the target of a flow is what [`Balancer::target_of`] says.
///
/// # Errors
/// If the order makes too many packets.
pub fn run(
    balancer: &Arc<Balancer>,
    packets: Vec<Vec<u8>>,
    operators: &[OrderOperator],
    seed: u64,
) -> Result<CaptureSimulationResult, TooManyPackets> {
    ordered_len(packets.len(), operators)?;
    let mut draws = Draws::new(seed);
    let packets = operators.iter().fold(packets, |packets, operator| operator.apply(packets, &mut draws));
    let result = CaptureSimulationResult {
        seed,
        n_packets: 0,
        n_datagrams: 0,
        n_forwarded_datagrams: 0,
        n_misdirected_fragments: 0,
        n_misdirected_packets: 0,
        examples: Vec::new(),
        unreadable: BTreeMap::new(),
        counters: BalancerCounters::default(),
    };
    let worker = balancer.worker();
    let mut playback = Playback { balancer, worker, datagrams: BTreeMap::new(), result, now: Nanos::ZERO };
    for packet in &packets {
        playback.result.n_packets += 1;
        playback.take(packet);
        playback.now += SPACING;
    }
    Ok(playback.end())
}

impl Playback<'_> {
    fn take(&mut self, bytes: &[u8]) {
        let number = self.result.n_packets;
        let decision = self.worker.decide(bytes, self.now);
        match classify(bytes) {
            Err(error) => self.unreadable(error),
            Ok(packet) => self.note(&packet, decision, number),
        }
        // What waited comes back through the balancer's own input.
        let released: Vec<Vec<u8>> = self.worker.released().map(<[u8]>::to_vec).collect();
        for packet in released {
            let decision = self.worker.decide(&packet, self.now);
            if let Ok(packet) = classify(&packet) {
                self.forwarded(&packet, decision, number);
            }
        }
    }

    fn unreadable(&mut self, error: ClassifyError) {
        *self.result.unreadable.entry(error.to_string()).or_default() += 1;
    }

    fn note(&mut self, packet: &Packet<'_>, decision: Decision, number: u64) {
        let target = || self.balancer.target_of(&packet.key).map(|target| (target.name, target.mark));
        let Some(fragment) = packet.fragment else {
            if let (Decision::Forward { mark }, Some(expected)) = (decision, target())
                && mark != expected.1
            {
                self.result.n_misdirected_packets += 1;
                self.example((number, mark), expected.0);
            }
            return;
        };
        let expected = (fragment.offset == 0).then(target).flatten();
        let datagram = self.datagrams.entry(key(&fragment.datagram)).or_default();
        datagram.n_came += 1;
        if expected.is_some() {
            datagram.expected = expected;
        }
        self.forwarded(packet, decision, number);
    }

    fn forwarded(&mut self, packet: &Packet<'_>, decision: Decision, number: u64) {
        if let (Some(fragment), Decision::Forward { mark }) = (packet.fragment, decision) {
            self.datagrams.entry(key(&fragment.datagram)).or_default().forwarded.push((number, mark));
        }
    }

    fn example(&mut self, (packet, mark): (u64, u32), expected: String) {
        if self.result.examples.len() < EXAMPLES_MAX {
            self.result.examples.push(Misdirected { packet, expected, mark });
        }
    }

    fn end(mut self) -> CaptureSimulationResult {
        for datagram in std::mem::take(&mut self.datagrams).into_values() {
            // Without its first fragment nobody knows where a datagram belongs.
            let Some((name, expected)) = datagram.expected else { continue };
            self.result.n_datagrams += 1;
            let n_forwarded = u64::try_from(datagram.forwarded.len()).unwrap_or(u64::MAX);
            self.result.n_forwarded_datagrams += u64::from(n_forwarded == datagram.n_came);
            for (packet, mark) in datagram.forwarded.into_iter().filter(|(_, mark)| *mark != expected) {
                self.result.n_misdirected_fragments += 1;
                self.example((packet, mark), name.clone());
            }
        }
        self.result.counters = self.balancer.counters();
        self.result
    }
}

/// What datagrams are told apart by, in an order that repeats.
type DatagramOrder = (IpAddr, IpAddr, u32, u8);

const fn key(datagram: &DatagramKey) -> DatagramOrder {
    (datagram.source, datagram.destination, datagram.id, datagram.protocol)
}

#[cfg(test)]
mod tests {
    use etherparse::{IpFragOffset, IpNumber, Ipv4Header, PacketBuilder};

    use super::*;
    use crate::{BalancerSettings, DEFAULT_GROUP, Target, maglev::TableSize};

    fn balancer(defects: &str) -> Arc<Balancer> {
        let table_size = TableSize::new(1009).unwrap();
        let settings =
            BalancerSettings { table_size, defects: defects.parse().unwrap(), ..BalancerSettings::default() };
        let balancer = Balancer::new(settings).unwrap();
        for number in 1..=10 {
            let target = Target { name: format!("t{number}"), mark: number, weight: 1 };
            balancer.set_target(DEFAULT_GROUP, target).unwrap();
        }
        Arc::new(balancer)
    }

    /// Datagrams of 4000 bytes from twenty ports, in three fragments each.
    fn packets() -> Vec<Vec<u8>> {
        (0..20_u16)
            .flat_map(|port| {
                let mut whole = Vec::new();
                PacketBuilder::ipv4([198, 18, 0, 1], [198, 18, 8, 1], 64)
                    .udp(port, 53)
                    .write(&mut whole, &[0; 4000])
                    .unwrap();
                let payload = whole[20..].to_vec();
                (0..3_u16).map(move |number| {
                    let begin = usize::from(number) * 1480;
                    let end = payload.len().min(begin + 1480);
                    let length = u16::try_from(end - begin).unwrap();
                    let mut header =
                        Ipv4Header::new(length, 64, IpNumber::UDP, [198, 18, 0, 1], [198, 18, 8, 1]).unwrap();
                    header.identification = port;
                    header.fragment_offset = IpFragOffset::try_from(number * 185).unwrap();
                    header.more_fragments = number < 2;
                    [header.to_bytes().to_vec(), payload[begin..end].to_vec()].concat()
                })
            })
            .collect()
    }

    fn order(text: &str) -> Vec<OrderOperator> {
        text.split(',').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
    }

    #[test]
    fn in_every_order_all_fragments_go_where_the_whole_datagram_goes() {
        for text in ["", "reverse", "shuffle", "rotate=7,shuffle", "interleave=9,reverse", "interleave=3,shuffle"] {
            for seed in 0..20 {
                let result = run(&balancer(""), packets(), &order(text), seed).unwrap();
                assert_eq!(result.n_misdirected_fragments, 0, "{text}: {result:?}");
                assert_eq!(result.n_forwarded_datagrams, result.n_datagrams, "{text}: {result:?}");
                assert_eq!(result.n_packets, 3 * result.n_datagrams);
            }
        }
    }

    #[test]
    fn packets_that_are_left_out_or_come_twice_misdirect_nothing() {
        for seed in 0..20 {
            let result = run(&balancer(""), packets(), &order("drop=10,duplicate=10,shuffle"), seed).unwrap();
            assert_eq!((result.n_packets, result.n_misdirected_fragments), (60, 0), "{result:?}");
        }
        assert_eq!(run(&balancer(""), packets(), &order("drop=100,duplicate=1"), 0).unwrap().n_packets, 0);
    }

    #[test]
    fn defects_are_found() {
        let wrong = |defects: &str| {
            let result = run(&balancer(defects), packets(), &order("shuffle"), 1).unwrap();
            (result.n_misdirected_fragments, result.n_datagrams - result.n_forwarded_datagrams)
        };
        let (misdirected, missing) = wrong("fragments-without-ports");
        assert!(misdirected > 30 && missing == 0, "{misdirected} {missing}");
        let (misdirected, missing) = wrong("forget-fragment=1/4");
        assert!(misdirected == 0 && (1..15).contains(&missing), "{misdirected} {missing}");
        let (misdirected, _) = wrong("mis-hash=1/4");
        assert!((3..60).contains(&misdirected), "{misdirected}");
    }

    #[test]
    fn an_order_that_makes_too_many_packets_is_refused_at_its_operator() {
        let n_of = |text: &str| ordered_len(60, &order(text)).map_err(|error| error.to_string());
        assert_eq!(n_of("drop=50,interleave=1000,duplicate=5"), Ok(10_005));
        assert_eq!(n_of("drop=60,duplicate=4000000000"), Ok(0));
        let refused = |text: &str, said: &str| assert!(n_of(text).unwrap_err().contains(said), "{:?}", n_of(text));
        refused("duplicate=4000000000,drop=4000000000", "`duplicate=4000000000` would make 4000000060");
        refused("interleave=1000,interleave=1000,interleave=1000", "would make 60000000 ");
        assert!(run(&balancer(""), packets(), &order("duplicate=4000000000"), 1).is_err());
    }

    #[test]
    fn an_order_is_read_and_written() {
        for text in ["shuffle", "reverse", "rotate=3", "interleave=2", "drop=1", "duplicate=9"] {
            assert_eq!(text.parse::<OrderOperator>().unwrap().to_string(), text);
        }
        for text in ["", "shuffle=1", "rotate", "rotate=-1", "interleave=1", "interleave=1001", "sort"] {
            assert!(text.parse::<OrderOperator>().is_err(), "{text}");
        }
    }
}
