//! Generated connections, whose packets are moved, repeated, cut and lost: every sum holds, and every stream is what was sent.
#![expect(clippy::unwrap_used, reason = "what a test makes itself must work")]

use std::{collections::BTreeMap, net::SocketAddr};

use fathom_capture::{
    AfterMissing, ByteClass, CapturedFrame, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
    LinkType, PacketClass, TrafficCounts, TrafficLimits, TrafficReader,
};
use fathom_model::units::Nanos;
use fathom_testkit::traffic::{CutPacket, FIRST_PORT, Losses, SentConnection, capture, fates};
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

    fn begins(&self, payload: &[u8], _: (SocketAddr, SocketAddr)) -> bool {
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

/// Connections whose ends say anything in turn.
fn connections() -> impl Strategy<Value = Vec<SentConnection>> {
    let turn = (0..2_usize, prop::collection::vec(b'a'..=b'z', 0..800));
    let first = prop_oneof![any::<u32>(), (u32::MAX - 2000)..=u32::MAX];
    let sizes = prop::collection::vec(1_usize..700, 1..8);
    let connection = ([first.clone(), first], prop::collection::vec(turn, 0..9), sizes);
    let connection = connection.prop_map(|(first, turns, sizes)| SentConnection { first, turns, sizes });
    prop::collection::vec(connection, 1..5)
}

const SIDES: [ConversationSide; 2] = [ConversationSide::Client, ConversationSide::Server];

fn read(frames: &[CutPacket], after_missing: AfterMissing, limits: TrafficLimits) -> (Vec<Kept>, TrafficCounts) {
    let mut reader = TrafficReader::new(Keeping { after_missing, kept: Vec::new() }, limits);
    for (number, (bytes, original_length)) in (1..).zip(frames) {
        let time = Some(Nanos(number));
        reader.take(&CapturedFrame { number, time, link: LinkType(101), bytes, original_length: *original_length });
    }
    let (keeping, counts) = reader.finish();
    (keeping.kept, counts)
}

/// Every frame, every connection and every byte is counted once.
fn check_sums(frames: &[CutPacket], counts: &TrafficCounts) -> Result<(), TestCaseError> {
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

const SMALL: TrafficLimits =
    TrafficLimits { n_connections: 2, n_held_of_connection: 900, n_pieces_of_connection: 8, n_held: 1500 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_moved_and_repeated_comes_out_as_it_was_sent(
        connections in connections(),
        fates in fates(Losses::None),
    ) {
        let frames = capture(&connections, &fates, Losses::None);
        let (kept, counts) = read(&frames, AfterMissing::Lost, TrafficLimits::USUAL);
        check_sums(&frames, &counts)?;
        prop_assert_eq!(kept.len(), connections.len());
        for kept in kept {
            let sent = &connections[usize::from(kept.client.port() - FIRST_PORT)];
            for (side, bytes) in SIDES.iter().zip([0, 1].map(|end| sent.bytes(end))) {
                prop_assert_eq!(kept.streams.get(side).map_or(&[][..], Vec::as_slice), &bytes[..]);
            }
            prop_assert_eq!((kept.n_finished, kept.end), (2, Some(ConversationEnd::Connection)));
        }
        let n_sent: usize = connections.iter().flat_map(|sent| &sent.turns).map(|(_, bytes)| bytes.len()).sum();
        prop_assert_eq!(of(&counts, ByteClass::Client) + of(&counts, ByteClass::Server), n_sent as u64);
        prop_assert_eq!((counts.missing_bytes.len(), counts.n_silent_connections), (0, 0));
    }

    #[test]
    fn what_is_missing_is_counted_and_the_rest_stays_in_its_place(
        connections in connections(),
        fates in fates(Losses::BehindHandshake),
    ) {
        let frames = capture(&connections, &fates, Losses::BehindHandshake);
        let (kept, counts) = read(&frames, AfterMissing::Continues, TrafficLimits::USUAL);
        check_sums(&frames, &counts)?;
        let mut n_missing = 0;
        for kept in kept {
            let sent = &connections[usize::from(kept.client.port() - FIRST_PORT)];
            for (side, bytes) in SIDES.iter().zip([0, 1].map(|end| sent.bytes(end))) {
                let stream = kept.streams.get(side).map_or(&[][..], Vec::as_slice);
                prop_assert!(stream.len() <= bytes.len());
                prop_assert!(stream.iter().zip(&bytes).all(|(kept, sent)| [MISSING, *sent].contains(kept)));
                n_missing += stream.split(|byte| *byte == MISSING).count() - 1;
            }
        }
        prop_assert_eq!(counts.missing_bytes.values().sum::<u64>(), n_missing as u64);
        // Copies may come after the end, and nothing else belongs to no conversation.
        prop_assert!(of(&counts, ByteClass::Unattributed) == 0 || counts.packets.contains_key(&PacketClass::AfterEnd));
        prop_assert!(!counts.packets.contains_key(&PacketClass::Unattributed));
    }

    #[test]
    fn the_sums_hold_without_handshakes_with_little_memory_and_whatever_is_lost(
        connections in connections(),
        fates in fates(Losses::Any),
    ) {
        let frames = capture(&connections, &fates, Losses::Any);
        for after_missing in [AfterMissing::Continues, AfterMissing::Lost] {
            let (_, counts) = read(&frames, after_missing, SMALL);
            check_sums(&frames, &counts)?;
        }
    }
}

#[test]
fn a_connection_that_was_open_before_begins_with_the_first_request_in_the_capture() {
    let turns = [(0, "zz"), (1, "34"), (0, "a12"), (1, "56")].map(|(end, text)| (end, text.as_bytes().to_vec()));
    let sent = SentConnection { first: [7, 9], turns: turns.to_vec(), sizes: vec![2] };
    let all: Vec<_> = sent.packets(0).into_iter().skip(3).map(|bytes| (bytes.clone(), bytes.len())).collect();
    let (kept, counts) = read(&all, AfterMissing::Lost, TrafficLimits::USUAL);
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(kept.streams[&ConversationSide::Client], b"a12");
    assert_eq!(kept.streams[&ConversationSide::Server], b"56", "what answers the request alone");
    assert_eq!(of(&counts, ByteClass::Unattributed), 4);
    assert_eq!(counts.packets[&PacketClass::Unattributed], 2);
}

#[test]
fn the_same_ports_can_be_used_again() {
    let sent = |first, text: &str| {
        let turns = vec![(0, text.as_bytes().to_vec())];
        SentConnection { first: [first, first], turns, sizes: vec![9] }.packets(0)
    };
    let mut first = sent(7, "one");
    first.truncate(4);
    let frames: Vec<_> = [first, sent(100_000, "two"), sent(5000, "six")].concat();
    let frames: Vec<_> = frames.into_iter().map(|bytes| (bytes.clone(), bytes.len())).collect();
    let (kept, counts) = read(&frames, AfterMissing::Lost, TrafficLimits::USUAL);
    let texts: Vec<_> = kept.iter().map(|kept| kept.streams[&ConversationSide::Client].clone()).collect();
    assert_eq!(texts, [b"one", b"two", b"six"]);
    assert_eq!(counts.ends.values().copied().collect::<Vec<_>>(), [2, 1], "two closed, one reused: {counts:?}");
}
