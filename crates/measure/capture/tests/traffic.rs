//! Generated connections, whose packets are moved, repeated, cut and lost: every sum holds, and every stream is what was sent.
#![expect(clippy::unwrap_used, reason = "what a test makes itself must work")]

use std::{collections::BTreeMap, net::SocketAddr};

use etherparse::PacketBuilder;
use fathom_capture::{
    AfterMissing, ByteClass, CapturedFrame, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
    LinkType, PacketClass, TrafficCounts, TrafficLimits, TrafficReader,
};
use fathom_model::units::Nanos;
use proptest::prelude::*;

/// A byte that is not in the capture.
const MISSING: u8 = b'?';

/// Keeps the bytes of both sides by connection.
struct Keeping {
    after_missing: AfterMissing,
    kept: Vec<Kept>,
}

#[derive(Debug, Clone)]
struct Kept {
    client: SocketAddr,
    streams: BTreeMap<ConversationSide, Vec<u8>>,
    n_finished: usize,
    end: Option<ConversationEnd>,
}

impl ConversationObserver for Keeping {
    type Conversation = Kept;

    fn begins(&self, payload: &[u8]) -> bool {
        payload.first() == Some(&b'a')
    }

    fn open(&mut self, start: ConversationStart) -> Kept {
        Kept { client: start.client, streams: BTreeMap::new(), n_finished: 0, end: None }
    }

    fn on_bytes(&mut self, kept: &mut Kept, side: ConversationSide, bytes: &[u8], _time: Nanos) {
        assert!(!bytes.is_empty() && !bytes.contains(&MISSING));
        kept.streams.entry(side).or_default().extend(bytes);
    }

    fn on_missing(&mut self, kept: &mut Kept, side: ConversationSide, n: u64) -> AfterMissing {
        let stream = kept.streams.entry(side).or_default();
        stream.resize(stream.len() + usize::try_from(n).unwrap(), MISSING);
        self.after_missing
    }

    fn on_finished(&mut self, kept: &mut Kept, _side: ConversationSide) {
        kept.n_finished += 1;
    }

    fn on_end(&mut self, mut kept: Kept, end: ConversationEnd) {
        kept.end = Some(end);
        self.kept.push(kept);
    }
}

/// A connection: its first sequence numbers, what each side sends, and the sizes of the segments.
#[derive(Debug, Clone)]
struct Sent {
    first: [u32; 2],
    bytes: [Vec<u8>; 2],
    sizes: Vec<usize>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let bytes = || prop::collection::vec(b'a'..=b'z', 0..3000);
    let first = prop_oneof![any::<u32>(), (u32::MAX - 2000)..=u32::MAX];
    let sizes = prop::collection::vec(1_usize..700, 1..8);
    ([first.clone(), first], [bytes(), bytes()], sizes).prop_map(|(first, bytes, sizes)| Sent { first, bytes, sizes })
}

fn packet(number: usize, end: usize, sequence: u32, acknowledged: Option<u32>, flags: &str, payload: &[u8]) -> Vec<u8> {
    let port = 1000 + u16::try_from(number).unwrap();
    let (addresses, ports) = match end {
        0 => (([198, 18, 0, 1], [198, 18, 0, 2]), (port, 80)),
        _ => (([198, 18, 0, 2], [198, 18, 0, 1]), (80, port)),
    };
    let mut builder = PacketBuilder::ipv4(addresses.0, addresses.1, 64).tcp(ports.0, ports.1, sequence, 1000);
    if let Some(acknowledged) = acknowledged {
        builder = builder.ack(acknowledged);
    }
    builder = if flags.contains('S') { builder.syn() } else { builder };
    builder = if flags.contains('F') { builder.fin() } else { builder };
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// The packets of a connection. The first three are its handshake.
fn packets(number: usize, sent: &Sent) -> Vec<Vec<u8>> {
    let mut next = sent.first.map(|first| first.wrapping_add(1));
    let mut packets = vec![
        packet(number, 0, sent.first[0], None, "S", b""),
        packet(number, 1, sent.first[1], Some(next[0]), "S", b""),
        packet(number, 0, next[0], Some(next[1]), "", b""),
    ];
    let mut left = [&sent.bytes[0][..], &sent.bytes[1][..]];
    for (idx, size) in sent.sizes.iter().cycle().enumerate() {
        if left == [b"", b""] {
            break;
        }
        let end = idx % 2;
        let (payload, rest) = left[end].split_at(left[end].len().min(*size));
        left[end] = rest;
        packets.push(packet(number, end, next[end], Some(next[1 - end]), "", payload));
        next[end] = next[end].wrapping_add(u32::try_from(payload.len()).unwrap());
    }
    for end in 0..2 {
        packets.push(packet(number, end, next[end], Some(next[1 - end]), "F", b""));
    }
    packets
}

/// What happens to a packet on its way into the capture.
#[derive(Debug, Clone, Copy)]
struct Fate {
    /// By how many places it is late.
    delay: usize,
    /// By how many places a second copy is late.
    copy: Option<usize>,
    is_lost: bool,
    /// The number of bytes that the capture keeps.
    snap: usize,
}

/// Packets come at most so many places late.
const DELAY_MAX: usize = 9;

fn fate(loses: bool) -> impl Strategy<Value = Fate> {
    let is_lost = prop::bool::weighted(if loses { 0.1 } else { 0.0 });
    let snap =
        if loses { prop_oneof![9 => Just(65_535_usize), 1 => 1_usize..400].boxed() } else { Just(65_535).boxed() };
    let copy = prop::option::weighted(0.2, 0..DELAY_MAX);
    (0..DELAY_MAX, copy, is_lost, snap).prop_map(|(delay, copy, is_lost, snap)| Fate { delay, copy, is_lost, snap })
}

/// The capture of all connections: frames, and their lengths before they were cut.
fn capture(connections: &[Sent], fates: &[Fate], keeps_handshakes: bool) -> Vec<(Vec<u8>, usize)> {
    let mut placed = Vec::new();
    let mut fates = fates.iter().cycle();
    for (number, sent) in connections.iter().enumerate() {
        for (idx, bytes) in packets(number, sent).into_iter().enumerate() {
            let fate = fates.next().unwrap();
            let is_kept = keeps_handshakes && idx < 3;
            let place = if is_kept { idx } else { idx + DELAY_MAX + fate.delay };
            let snap = if is_kept { bytes.len() } else { fate.snap.min(bytes.len()) };
            let frame = (bytes[..snap].to_vec(), bytes.len());
            if let Some(copy) = fate.copy {
                placed.push((place + copy, number, frame.clone()));
            }
            if is_kept || !fate.is_lost {
                placed.push((place, number, frame));
            }
        }
    }
    placed.sort_by_key(|(place, number, _)| (*place, *number));
    placed.into_iter().map(|(.., frame)| frame).collect()
}

fn read(frames: &[(Vec<u8>, usize)], after_missing: AfterMissing, limits: TrafficLimits) -> (Vec<Kept>, TrafficCounts) {
    let mut reader = TrafficReader::new(Keeping { after_missing, kept: Vec::new() }, limits);
    for (number, (bytes, original_length)) in (1..).zip(frames) {
        let time = Some(Nanos(number));
        reader.take(&CapturedFrame { number, time, link: LinkType(101), bytes, original_length: *original_length });
    }
    let (keeping, counts) = reader.finish();
    (keeping.kept, counts)
}

/// Every frame, every connection and every byte is counted once.
fn check_sums(frames: &[(Vec<u8>, usize)], counts: &TrafficCounts) -> Result<(), TestCaseError> {
    prop_assert_eq!(counts.packets.values().sum::<u64>(), frames.len() as u64);
    prop_assert_eq!(counts.begins.values().sum::<u64>(), counts.ends.values().sum::<u64>());
    // 20 bytes each of IPv4 and TCP.
    let n_bytes: usize = frames.iter().map(|(bytes, _)| bytes.len().saturating_sub(40)).sum();
    prop_assert_eq!(counts.bytes.values().sum::<u64>(), n_bytes as u64);
    Ok(())
}

fn of(counts: &TrafficCounts, class: ByteClass) -> u64 {
    counts.bytes.get(&class).copied().unwrap_or_default()
}

const SMALL: TrafficLimits = TrafficLimits { n_connections: 2, n_held_of_connection: 900, n_held: 1500 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_moved_and_repeated_comes_out_as_it_was_sent(
        connections in prop::collection::vec(sent(), 1..4),
        fates in prop::collection::vec(fate(false), 1..60),
    ) {
        let frames = capture(&connections, &fates, true);
        let (kept, counts) = read(&frames, AfterMissing::Lost, TrafficLimits::USUAL);
        check_sums(&frames, &counts)?;
        prop_assert_eq!(kept.len(), connections.len());
        for kept in kept {
            let sent = &connections[usize::from(kept.client.port()) - 1000];
            for (side, bytes) in [ConversationSide::Client, ConversationSide::Server].iter().zip(&sent.bytes) {
                prop_assert_eq!(kept.streams.get(side).map_or(&[][..], Vec::as_slice), &bytes[..]);
            }
            prop_assert_eq!((kept.n_finished, kept.end), (2, Some(ConversationEnd::Connection)));
        }
        let n_sent: usize = connections.iter().flat_map(|sent| &sent.bytes).map(Vec::len).sum();
        prop_assert_eq!(of(&counts, ByteClass::Client) + of(&counts, ByteClass::Server), n_sent as u64);
        prop_assert_eq!((counts.n_missing_bytes, counts.n_silent_connections), (0, 0));
    }

    #[test]
    fn what_is_missing_is_counted_and_the_rest_stays_in_its_place(
        connections in prop::collection::vec(sent(), 1..4),
        fates in prop::collection::vec(fate(true), 1..60),
    ) {
        let frames = capture(&connections, &fates, true);
        let (kept, counts) = read(&frames, AfterMissing::Continues, TrafficLimits::USUAL);
        check_sums(&frames, &counts)?;
        let mut n_missing = 0;
        for kept in kept {
            let sent = &connections[usize::from(kept.client.port()) - 1000];
            for (side, bytes) in [ConversationSide::Client, ConversationSide::Server].iter().zip(&sent.bytes) {
                let stream = kept.streams.get(side).map_or(&[][..], Vec::as_slice);
                prop_assert!(stream.len() <= bytes.len());
                prop_assert!(stream.iter().zip(bytes).all(|(kept, sent)| [MISSING, *sent].contains(kept)));
                n_missing += stream.split(|byte| *byte == MISSING).count() - 1;
            }
        }
        prop_assert_eq!(counts.n_missing_bytes, n_missing as u64);
        // Copies may come after the end, and nothing else belongs to no conversation.
        prop_assert!(of(&counts, ByteClass::Unattributed) == 0 || counts.packets.contains_key(&PacketClass::AfterEnd));
        prop_assert!(!counts.packets.contains_key(&PacketClass::Unattributed));
    }

    #[test]
    fn the_sums_hold_without_handshakes_with_little_memory_and_whatever_is_lost(
        connections in prop::collection::vec(sent(), 1..6),
        fates in prop::collection::vec(fate(true), 1..60),
    ) {
        let frames = capture(&connections, &fates, false);
        for after_missing in [AfterMissing::Continues, AfterMissing::Lost] {
            let (_, counts) = read(&frames, after_missing, SMALL);
            check_sums(&frames, &counts)?;
        }
    }
}

#[test]
fn a_connection_that_was_open_before_begins_with_the_first_request_in_the_capture() {
    let sent = Sent { first: [7, 9], bytes: [b"zza12".to_vec(), b"3456".to_vec()], sizes: vec![2] };
    let all: Vec<_> = packets(0, &sent).into_iter().skip(3).map(|bytes| (bytes.clone(), bytes.len())).collect();
    let (kept, counts) = read(&all, AfterMissing::Lost, TrafficLimits::USUAL);
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(kept.streams[&ConversationSide::Client], b"a12");
    assert_eq!(kept.streams[&ConversationSide::Server], b"56", "what answers the request alone");
    assert_eq!(of(&counts, ByteClass::Unattributed), 4);
    assert_eq!(counts.packets[&PacketClass::Unattributed], 2);
}

#[test]
fn the_same_ports_can_be_used_again() {
    let sent = |first, text: &[u8]| Sent { first: [first, first], bytes: [text.to_vec(), vec![]], sizes: vec![9] };
    let mut first = packets(0, &sent(7, b"one"));
    first.truncate(4);
    let frames: Vec<_> = [first, packets(0, &sent(100_000, b"two")), packets(0, &sent(5000, b"six"))].concat();
    let frames: Vec<_> = frames.into_iter().map(|bytes| (bytes.clone(), bytes.len())).collect();
    let (kept, counts) = read(&frames, AfterMissing::Lost, TrafficLimits::USUAL);
    let texts: Vec<_> = kept.iter().map(|kept| kept.streams[&ConversationSide::Client].clone()).collect();
    assert_eq!(texts, [b"one", b"two", b"six"]);
    assert_eq!(counts.ends.values().copied().collect::<Vec<_>>(), [2, 1], "two closed, one reused: {counts:?}");
}
