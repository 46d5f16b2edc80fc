//! Connections of a real TLS library, captured: whatever it encrypts comes out as it was, and what cannot be decrypted has a reason.
#![expect(clippy::unwrap_used, reason = "what a test makes itself must work")]

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use data_encoding::HEXLOWER;
use fathom_capture::{
    AfterMissing, ByteClass, CapturedFrame, ConversationEnd, ConversationObserver, ConversationSide, ConversationStart,
    KeyLog, LinkType, TlsCounts, TlsFate, TlsObserver, TrafficCounts, TrafficLimits, TrafficReader, read_traffic,
};
use fathom_model::units::Nanos;
use fathom_testkit::traffic::{CutPacket, Losses, SentConnection, capture, fates, pcapng_block};
use proptest::prelude::*;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite,
    crypto::{CryptoProvider, ring},
    pki_types::PrivateKeyDer,
};

/// Keeps the plaintext of both sides, and how each conversation ended.
#[derive(Default)]
struct Keeping(Vec<Kept>);

#[derive(Debug, Default, Clone)]
struct Kept {
    sides: BTreeMap<ConversationSide, Vec<u8>>,
    end: Option<ConversationEnd>,
}

impl ConversationObserver for Keeping {
    type Conversation = Kept;

    fn begins(&self, _: &[u8], _: (SocketAddr, SocketAddr)) -> bool {
        false
    }

    fn open(&mut self, _: ConversationStart) -> Kept {
        Kept::default()
    }

    fn on_bytes(&mut self, kept: &mut Kept, side: ConversationSide, bytes: &[u8], _: Nanos) {
        kept.sides.entry(side).or_default().extend(bytes);
    }

    fn on_missing(&mut self, _: &mut Kept, _: ConversationSide, _: u64) -> AfterMissing {
        AfterMissing::Lost
    }

    fn on_finished(&mut self, _: &mut Kept, _: ConversationSide) {}

    fn on_end(&mut self, mut kept: Kept, end: ConversationEnd) {
        kept.end = Some(end);
        self.0.push(kept);
    }
}

/// The lines of a key log.
#[derive(Debug, Default)]
struct Lines(Mutex<Vec<String>>);

impl rustls::KeyLog for Lines {
    fn log(&self, label: &str, random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push(format!("{label} {} {}\n", HEXLOWER.encode(random), HEXLOWER.encode(secret)));
    }
}

impl Lines {
    fn text(&self) -> String {
        self.0.lock().unwrap().concat()
    }
}

/// Two ends that speak TLS in memory, and what they send.
struct Ends {
    ends: [Connection; 2],
    turns: Vec<(usize, Vec<u8>)>,
}

impl Ends {
    fn new(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Self {
        let client = ClientConnection::new(Arc::clone(client), "a.example".try_into().unwrap()).unwrap();
        let server = ServerConnection::new(Arc::clone(server)).unwrap();
        Self { ends: [client.into(), server.into()], turns: Vec::new() }
    }

    /// Moves bytes until no end has any.
    fn settle(&mut self) {
        while self.ends.iter().any(|end| end.wants_write()) {
            for end in [0, 1] {
                let mut bytes = Vec::new();
                while self.ends[end].wants_write() {
                    self.ends[end].write_tls(&mut bytes).unwrap();
                }
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    self.ends[1 - end].read_tls(&mut rest).unwrap();
                    self.ends[1 - end].process_new_packets().unwrap();
                    let mut read = Vec::new();
                    // It ends with an error while the connection is open.
                    self.ends[1 - end].reader().read_to_end(&mut read).ok();
                }
                self.turns.push((end, bytes));
            }
        }
    }

    fn say(&mut self, end: usize, text: &[u8]) {
        self.ends[end].writer().write_all(text).unwrap();
        self.settle();
    }

    fn sent(self, sizes: Vec<usize>) -> SentConnection {
        SentConnection { first: [7, 9], turns: self.turns, sizes }
    }
}

/// The configurations of both ends for a suite, and the key log of the client.
fn configurations(suite: SupportedCipherSuite, groups: usize) -> (ClientConfig, ServerConfig, Arc<Lines>) {
    let certified = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let all = ring::default_provider();
    let provider =
        |kx_groups| Arc::new(CryptoProvider { cipher_suites: vec![suite], kx_groups, ..ring::default_provider() });
    let versions = [suite.version()];
    let client = ClientConfig::builder_with_provider(provider(all.kx_groups.clone())).with_protocol_versions(&versions);
    let mut client = client.unwrap().with_root_certificates(roots).with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider(all.kx_groups[groups..].to_vec()));
    let server = server.with_protocol_versions(&versions).unwrap().with_no_client_auth();
    let server = server.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    let lines = Arc::new(Lines::default());
    client.key_log = Arc::<Lines>::clone(&lines);
    (client, server, lines)
}

/// A suite whose certificates are those of the tests.
fn suites() -> impl Iterator<Item = SupportedCipherSuite> {
    let fits = |suite: &SupportedCipherSuite| !format!("{:?}", suite.suite()).contains("_RSA_");
    ring::ALL_CIPHER_SUITES.iter().copied().filter(fits)
}

const ASKED: &[u8] = b"a question";

fn answer() -> Vec<u8> {
    (0..40_000_u32).map(|n| n.to_le_bytes()[1]).collect()
}

/// A connection that asks and answers twice, with new keys in between if its version has them.
fn connection(suite: SupportedCipherSuite, groups: usize) -> (Ends, String) {
    let (client, server, lines) = configurations(suite, groups);
    let mut ends = Ends::new(&Arc::new(client), &Arc::new(server));
    ends.settle();
    ends.say(0, ASKED);
    ends.say(1, &answer());
    if suite.tls13().is_some() {
        for end in [0, 1] {
            ends.ends[end].refresh_traffic_keys().unwrap();
        }
    }
    ends.say(0, ASKED);
    ends.say(1, b"");
    ends.say(1, &answer());
    for end in [0, 1] {
        ends.ends[end].send_close_notify();
        ends.settle();
    }
    (ends, lines.text())
}

/// The records in the bytes of an end, with their headers.
fn records(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let [_, _, _, high, low, ..] = *bytes else { return None };
        let (record, rest) = bytes.split_at(5 + usize::from(u16::from_be_bytes([high, low])));
        bytes = rest;
        Some(record)
    })
}

struct Found {
    kept: Vec<Kept>,
    tls: TlsCounts,
    traffic: TrafficCounts,
}

fn read(packets: &[CutPacket], keys: &str) -> Found {
    let keys = if keys.is_empty() { KeyLog::default() } else { KeyLog::read(keys.as_bytes()).unwrap() };
    let mut reader = TrafficReader::new(TlsObserver::new(Keeping::default(), keys), TrafficLimits::USUAL);
    for (number, (bytes, original_length)) in (1..).zip(packets) {
        let time = Some(Nanos(number));
        reader.take(&CapturedFrame { number, time, link: LinkType(101), bytes, original_length: *original_length });
    }
    let (observer, traffic) = reader.finish();
    let (Keeping(kept), tls) = observer.finish();
    let found = Found { kept, tls, traffic };
    found.check_sums();
    found
}

impl Found {
    /// Each byte is plaintext, or has another place.
    fn check_sums(&self) {
        for (side, class) in
            [(ConversationSide::Client, ByteClass::Client), (ConversationSide::Server, ByteClass::Server)]
        {
            let plain: usize = self.kept.iter().filter_map(|kept| kept.sides.get(&side)).map(Vec::len).sum();
            let of = |counts: &BTreeMap<ConversationSide, u64>| counts.get(&side).copied().unwrap_or_default();
            let n = plain as u64 + of(&self.tls.overhead_bytes) + of(&self.tls.undecrypted_bytes);
            assert_eq!(n, self.traffic.bytes.get(&class).copied().unwrap_or_default(), "{side:?}");
        }
    }

    fn fates(&self) -> Vec<(TlsFate, u64)> {
        self.tls.connections.iter().map(|(fate, n)| (*fate, *n)).collect()
    }
}

fn whole(packets: Vec<Vec<u8>>) -> Vec<CutPacket> {
    packets.into_iter().map(|packet| (packet.clone(), packet.len())).collect()
}

#[test]
fn every_suite_gives_what_was_encrypted_wherever_segments_divide_it() {
    let mut n = 0;
    for suite in suites() {
        for sizes in [vec![1, 2, 3, 5, 1000], vec![1460], vec![60_000]] {
            let (ends, keys) = connection(suite, 0);
            let found = read(&whole(ends.sent(sizes).packets(0)), &keys);
            let name = suite.suite();
            assert_eq!(found.fates(), [(TlsFate::Decrypted, 1)], "{name:?}");
            assert_eq!(found.kept.len(), 1);
            assert_eq!(found.kept[0].sides[&ConversationSide::Client], ASKED.repeat(2), "{name:?}");
            assert_eq!(found.kept[0].sides[&ConversationSide::Server], answer().repeat(2), "{name:?}");
            n += 1;
        }
    }
    assert_eq!(n, 3 * 6, "three suites of TLS 1.3, and three of TLS 1.2");
}

#[test]
fn a_hello_that_asks_for_another_one_is_no_answer() {
    // The server has none but the last group, of which the client sends no key at first.
    let (ends, keys) = connection(ring::cipher_suite::TLS13_AES_128_GCM_SHA256, 2);
    let of_client: Vec<u8> =
        ends.turns.iter().filter(|(end, _)| *end == 0).flat_map(|(_, bytes)| bytes).copied().collect();
    let n_hellos = records(&of_client).filter(|record| matches!(record, [22, _, _, _, _, 1, ..])).count();
    assert_eq!(n_hellos, 2);
    let found = read(&whole(ends.sent(vec![1000]).packets(0)), &keys);
    assert_eq!(found.fates(), [(TlsFate::Decrypted, 1)]);
    assert_eq!(found.kept[0].sides[&ConversationSide::Client], ASKED.repeat(2));
}

#[test]
fn what_cannot_be_decrypted_has_a_reason() {
    for suite in
        [ring::cipher_suite::TLS13_AES_256_GCM_SHA384, ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]
    {
        let (ends, keys) = connection(suite, 0);
        let packets = whole(ends.sent(vec![1000]).packets(0));
        let none = read(&packets, "");
        assert_eq!(
            (none.fates(), none.kept.len(), none.tls.n_without_conversation),
            (vec![(TlsFate::NoKeys, 1)], 0, 1)
        );
        let zero = |line: &str| {
            let (rest, _) = line.rsplit_once(' ').unwrap();
            format!("{rest} {}\n", "00".repeat(48))
        };
        let wrong = read(&packets, &keys.lines().map(zero).collect::<String>());
        assert_eq!((wrong.fates(), wrong.kept.len()), (vec![(TlsFate::WrongKeys, 1)], 0));
        let middle = read(&packets[packets.len() / 2..], &keys);
        assert_eq!((middle.fates(), middle.kept.len()), (vec![(TlsFate::HandshakeNotCaptured, 1)], 0));
        let cut = read(&packets[..4], &keys);
        assert_eq!(cut.fates(), [(TlsFate::HandshakeIncomplete, 1)]);
        // The last packets are the alerts and the FINs.
        let near_the_end = packets.len() - 8;
        let mut damaged = packets.clone();
        *damaged[near_the_end].0.last_mut().unwrap() ^= 1;
        let damaged = read(&damaged, &keys);
        assert_eq!(damaged.fates(), [(TlsFate::DamagedRecord, 1)]);
        assert_eq!(damaged.kept[0].end, Some(ConversationEnd::Undecrypted));
        let mut lost = packets.clone();
        lost.remove(near_the_end);
        let lost = read(&lost, &keys);
        assert_eq!(lost.fates(), [(TlsFate::MissingBytes, 1)]);
        assert_eq!(lost.kept[0].end, Some(ConversationEnd::Missing));
        for found in [damaged, lost] {
            assert_eq!(found.kept[0].sides[&ConversationSide::Client], ASKED.repeat(2));
            let of_server = &found.kept[0].sides[&ConversationSide::Server];
            assert!(of_server.len() > answer().len() && answer().repeat(2).starts_with(of_server));
        }
    }
}

#[test]
fn a_connection_without_the_hello_of_its_client_is_none_in_clear_text() {
    for suite in suites() {
        let (ends, keys) = connection(suite, 0);
        let packets = whole(ends.sent(vec![700, 1300]).packets(0));
        let lost: [&dyn Fn(usize) -> bool; 2] = [&|idx| idx == 3, &|idx| idx >= 3 && idx % 2 == 1];
        for lost in lost {
            let captured: Vec<_> =
                packets.iter().enumerate().filter(|(idx, _)| !lost(*idx)).map(|(_, it)| it.clone()).collect();
            let found = read(&captured, &keys);
            let fates = found.fates();
            assert!(
                matches!(fates[..], [] | [(TlsFate::HandshakeIncomplete | TlsFate::HandshakeNotCaptured, 1)]),
                "{:?}: {fates:?}",
                suite.suite()
            );
            assert!(found.kept.iter().all(|kept| kept.sides.is_empty()), "{:?}", suite.suite());
        }
    }
}

#[test]
fn a_suite_without_authenticated_encryption_and_what_is_no_tls_are_told() {
    let (ends, keys) = connection(ring::cipher_suite::TLS13_AES_128_GCM_SHA256, 0);
    let client_hello = ends.turns[0].1.clone();
    let answered = |answer: &[u8]| {
        let turns = vec![(0, client_hello.clone()), (1, answer.to_vec())];
        read(&whole(SentConnection { first: [1, 2], turns, sizes: vec![1000] }.packets(0)), &keys)
    };
    // The body of a hello: a version, 32 random bytes, no session, the suite, no compression.
    let hello = [&[22, 3, 3, 0, 42, 2, 0, 0, 38, 3, 3][..], &[7; 32], &[0, 0, 0x2f, 0]].concat();
    let cbc = answered(&hello);
    assert_eq!(cbc.fates(), [(TlsFate::UnsupportedSuite, 1)]);
    assert_eq!(cbc.tls.unsupported_suites, [("TLS_RSA_WITH_AES_128_CBC_SHA".to_owned(), 1)].into());
    assert_eq!(answered(b"HTTP/1.1 400 Bad Request\r\n\r\n").fates(), [(TlsFate::Malformed, 1)]);
}

#[test]
fn data_before_the_handshake_is_told_and_not_guessed() {
    let (mut client, mut server, lines) = configurations(ring::cipher_suite::TLS13_AES_128_GCM_SHA256, 0);
    client.enable_early_data = true;
    server.max_early_data_size = 1000;
    let (client, server) = (Arc::new(client), Arc::new(server));
    let mut first = Ends::new(&client, &server);
    first.settle();
    first.say(1, b"tickets come with this");
    let mut second = Ends::new(&client, &server);
    let Connection::Client(end) = &mut second.ends[0] else { unreachable!("the client is first") };
    end.early_data().expect("there is a ticket").write_all(b"early").unwrap();
    second.settle();
    second.say(0, b"late");
    let found = read(&whole(second.sent(vec![1000]).packets(0)), &lines.text());
    assert_eq!((found.fates(), found.kept.len()), (vec![(TlsFate::EarlyData, 1)], 0));
}

#[test]
fn keys_in_the_capture_are_used() {
    let (ends, keys) = connection(ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, 0);
    let section = [&[0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0][..], &[0xff; 8]].concat();
    let secrets =
        [&0x544c_534b_u32.to_be_bytes()[..], &u32::try_from(keys.len()).unwrap().to_be_bytes(), keys.as_bytes()];
    let mut file = [pcapng_block(0x0a0d_0d0a, &section), pcapng_block(1, &[0, 101, 0, 0, 0, 0, 0, 0])].concat();
    file.extend(pcapng_block(10, &secrets.concat()));
    for packet in ends.sent(vec![1000]).packets(0) {
        let length = u32::try_from(packet.len()).unwrap().to_be_bytes();
        file.extend(pcapng_block(6, &[&[0; 12][..], &length, &length, &packet].concat()));
    }
    let reader = TrafficReader::new(TlsObserver::new(Keeping::default(), KeyLog::default()), TrafficLimits::USUAL);
    let (observer, _, damage) = read_traffic(&file[..], reader).unwrap();
    let (Keeping(kept), tls) = observer.finish();
    assert_eq!((damage, tls.connections), (None, [(TlsFate::Decrypted, 1)].into()));
    assert_eq!(kept[0].sides[&ConversationSide::Client], ASKED.repeat(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_capture_with_losses_gives_nothing_that_was_not_sent(
        which in 0_usize..6,
        fates in fates(Losses::Any),
        losses in prop_oneof![Just(Losses::None), Just(Losses::BehindHandshake), Just(Losses::Any)],
    ) {
        let (ends, keys) = connection(suites().nth(which).unwrap(), 0);
        let fates: Vec<_> = fates.into_iter().map(|mut fate| {
            if losses == Losses::None {
                fate.is_lost = false;
                fate.snap = usize::MAX;
            }
            fate
        }).collect();
        let packets = capture(&[ends.sent(vec![700, 1300])], &fates, losses);
        let found = read(&packets, &keys);
        let sent = [(ConversationSide::Client, ASKED.repeat(2)), (ConversationSide::Server, answer().repeat(2))];
        for kept in &found.kept {
            for (side, sent) in &sent {
                let read = kept.sides.get(side).map_or(&[][..], Vec::as_slice);
                prop_assert!(sent.starts_with(read));
                prop_assert!(losses != Losses::None || read.len() == sent.len());
            }
        }
    }
}
