//! Generated TCP connections as captures have them: packets that are late, repeated, cut or lost.

use etherparse::PacketBuilder;
use proptest::prelude::*;

/// Who sends: the client is 0, the server is 1.
pub type End = usize;

/// A connection: the initial sequence numbers, what each end says in turn, and the sizes of the segments.
#[derive(Debug, Clone)]
pub struct SentConnection {
    pub first: [u32; 2],
    pub turns: Vec<(End, Vec<u8>)>,
    pub sizes: Vec<usize>,
}

/// What happens to a packet on its way into the capture.
#[derive(Debug, Clone, Copy)]
pub struct PacketFate {
    /// By how many places it is late.
    pub delay: usize,
    /// By how many places a second copy is late.
    pub copy: Option<usize>,
    pub is_lost: bool,
    /// The number of bytes that the capture keeps.
    pub snap: usize,
}

/// Which packets of a connection are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Losses {
    None,
    /// Any but those of the handshake, which are not cut either.
    BehindHandshake,
    Any,
}

/// A packet from its IP header on, and its length before it was cut.
pub type CutPacket = (Vec<u8>, usize);

/// Packets come at most so many places late.
const DELAY_MAX: usize = 9;
/// The number of packets of a handshake.
const HANDSHAKE: usize = 3;
/// The client's port of the first connection; the next ones follow.
pub const FIRST_PORT: u16 = 1000;

impl SentConnection {
    /// Everything that an end sends.
    pub fn bytes(&self, end: End) -> Vec<u8> {
        self.turns.iter().filter(|(of, _)| *of == end).flat_map(|(_, bytes)| bytes).copied().collect()
    }

    /// The packets of the connection in order, of which the first three are its handshake.
    pub fn packets(&self, number: u16) -> Vec<Vec<u8>> {
        let packet = |end, next: [u32; 2], flags, payload: &[u8]| packet(number, end, next, flags, payload);
        let begun = self.first.map(|first| first.wrapping_add(1));
        let mut packets = vec![
            packet(0, self.first, "S", b""),
            packet(1, [begun[0], self.first[1]], "SA", b""),
            packet(0, begun, "A", b""),
        ];
        let mut next = begun;
        let mut sizes = self.sizes.iter().cycle();
        for (end, bytes) in &self.turns {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (payload, behind) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
                packets.push(packet(*end, next, "A", payload));
                next[*end] = next[*end].wrapping_add(u32::try_from(payload.len()).unwrap());
                rest = behind;
            }
        }
        packets.extend([0, 1].map(|end| packet(end, next, "FA", b"")));
        packets
    }
}

/// A segment of an end; `next` are the next sequence numbers of both.
fn packet(number: u16, end: End, next: [u32; 2], flags: &str, payload: &[u8]) -> Vec<u8> {
    let port = FIRST_PORT + number;
    let (addresses, ports) = match end {
        0 => (([198, 18, 0, 1], [198, 18, 0, 2]), (port, 80)),
        _ => (([198, 18, 0, 2], [198, 18, 0, 1]), (80, port)),
    };
    let mut builder = PacketBuilder::ipv4(addresses.0, addresses.1, 64).tcp(ports.0, ports.1, next[end], 1000);
    builder = if flags.contains('A') { builder.ack(next[1 - end]) } else { builder };
    builder = if flags.contains('S') { builder.syn() } else { builder };
    builder = if flags.contains('F') { builder.fin() } else { builder };
    let mut bytes = Vec::new();
    builder.write(&mut bytes, payload).unwrap();
    bytes
}

/// Fates of packets, which are used in turn.
pub fn fates(losses: Losses) -> impl Strategy<Value = Vec<PacketFate>> {
    let loses = losses != Losses::None;
    let is_lost = prop::bool::weighted(if loses { 0.1 } else { 0.0 });
    let whole = Just(usize::MAX);
    let snap = if loses { prop_oneof![9 => whole, 1 => 1_usize..400].boxed() } else { whole.boxed() };
    let copy = prop::option::weighted(0.2, 0..DELAY_MAX);
    let fate = (0..DELAY_MAX, copy, is_lost, snap);
    let fate = fate.prop_map(|(delay, copy, is_lost, snap)| PacketFate { delay, copy, is_lost, snap });
    prop::collection::vec(fate, 1..60)
}

/// The capture of connections, whose packets mix.
pub fn capture(connections: &[SentConnection], fates: &[PacketFate], losses: Losses) -> Vec<CutPacket> {
    let mut placed = Vec::new();
    let mut fates = fates.iter().cycle();
    for (number, connection) in (0..).zip(connections) {
        for (idx, bytes) in connection.packets(number).into_iter().enumerate() {
            let fate = fates.next().unwrap();
            let is_kept = losses != Losses::Any && idx < HANDSHAKE;
            let place = if is_kept { idx } else { idx + DELAY_MAX + fate.delay };
            let kept = if is_kept { bytes.len() } else { fate.snap.min(bytes.len()) };
            let packet = (bytes[..kept].to_vec(), bytes.len());
            if let Some(copy) = fate.copy {
                placed.push((place + copy, number, packet.clone()));
            }
            if is_kept || !fate.is_lost {
                placed.push((place, number, packet));
            }
        }
    }
    placed.sort_by_key(|(place, number, _)| (*place, *number));
    placed.into_iter().map(|(.., packet)| packet).collect()
}

/// A block of a pcapng file in big-endian order (draft-ietf-opsawg-pcapng section 3.1), padded to 32 bits.
pub fn pcapng_block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len().next_multiple_of(4) + 12).unwrap().to_be_bytes();
    let mut bytes = [&kind.to_be_bytes()[..], &length, body].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(length);
    bytes
}
