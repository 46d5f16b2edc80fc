//! Resets of TCP connections, made from a segment of one (RFC 9293, sections 3.1 and 3.5.2).

use fathom_wire::ChecksumSum;

/// The bytes of an Ethernet header without a tag.
const ETHERNET: usize = 14;
/// The bytes of a TCP header without options.
const TCP: usize = 20;
/// The flag "more fragments" and the offset of a fragment.
const FRAGMENT: usize = 0x3fff;
/// The flags RST and ACK.
const RST_ACK: u8 = 0x14;
/// The time to live of what hosts send.
const TTL: u8 = 64;

/// The place of the parts of a TCP segment in a frame.
struct Segment {
    /// The bytes of the two addresses of the IP header.
    addresses: std::ops::Range<usize>,
    is_v6: bool,
    tcp: usize,
    n_payload: usize,
}

/// Finds the TCP segment of a frame; `None` for everything else, fragments and IPv6 extension headers among them.
fn segment_of(frame: &[u8]) -> Option<Segment> {
    let word = |at: usize| Some(usize::from(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?])));
    let (addresses, is_v6, tcp, end) = match word(12)? {
        0x0800 => {
            let header = usize::from(frame.get(ETHERNET)? & 0x0f) * 4;
            let is_whole = word(ETHERNET + 6)? & FRAGMENT == 0;
            (*frame.get(ETHERNET + 9)? == 6 && is_whole && header >= 20).then_some(())?;
            (ETHERNET + 12..ETHERNET + 20, false, ETHERNET + header, ETHERNET + word(ETHERNET + 2)?)
        }
        0x86dd => {
            (*frame.get(ETHERNET + 6)? == 6).then_some(())?;
            (ETHERNET + 8..ETHERNET + 40, true, ETHERNET + 40, ETHERNET + 40 + word(ETHERNET + 4)?)
        }
        _ => return None,
    };
    let n_header = usize::from(frame.get(tcp + 12)? >> 4) * 4;
    let n_payload = end.checked_sub(tcp + n_header)?;
    (n_header >= TCP && end <= frame.len()).then_some(Segment { addresses, is_v6, tcp, n_payload })
}

/// Returns true if a frame carries bytes of a TCP connection.
pub(super) fn carries_tcp_data(frame: &[u8]) -> bool {
    segment_of(frame).is_some_and(|segment| segment.n_payload > 0)
}

/// Returns the frames that reset the connection of a segment: for its receiver, in its place, and for its sender.
///
/// An end accepts a reset only if its number is the next that it expects (RFC 5961, section 3.2): that of the segment itself, and the one
/// that the segment acknowledges. `None` if the frame is no TCP segment.
pub(super) fn resets(frame: &[u8]) -> Option<[Vec<u8>; 2]> {
    let segment = segment_of(frame)?;
    let tcp = frame.get(segment.tcp..segment.tcp + TCP)?;
    let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let (sequence, acknowledged) = (number(4), number(8));
    let onward = reset(frame, &segment, Direction::Onward, (sequence, acknowledged));
    let behind = sequence.wrapping_add(u32::try_from(segment.n_payload).ok()?);
    Some([onward, reset(frame, &segment, Direction::Back, (acknowledged, behind))])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Onward,
    Back,
}

fn reset(frame: &[u8], segment: &Segment, direction: Direction, (sequence, acknowledged): (u32, u32)) -> Vec<u8> {
    let n_ip = segment.tcp - ETHERNET;
    // Options of IP are not repeated.
    let n_ip = if segment.is_v6 { n_ip } else { n_ip.min(20) };
    let mut reset = frame[..ETHERNET + n_ip].to_vec();
    let mut ports = frame[segment.tcp..segment.tcp + 4].to_vec();
    if direction == Direction::Back {
        let half = segment.addresses.len() / 2;
        reset[..12].rotate_left(6);
        reset[segment.addresses.clone()].rotate_left(half);
        ports.rotate_left(2);
    }
    let mut tcp = ports;
    tcp.extend(sequence.to_be_bytes());
    tcp.extend(acknowledged.to_be_bytes());
    // Five words of header, the flags, no window, and places for the checksum and the urgent pointer.
    tcp.extend([0x50, RST_ACK, 0, 0, 0, 0, 0, 0]);
    let mut pseudo = frame[segment.addresses.clone()].to_vec();
    pseudo.extend([0, 6, 0, 20]);
    pseudo.extend(&tcp);
    tcp[16..18].copy_from_slice(&ChecksumSum::default().add_bytes(&pseudo).checksum().to_be_bytes());
    let ip = &mut reset[ETHERNET..];
    if segment.is_v6 {
        ip[4..6].copy_from_slice(&20_u16.to_be_bytes());
        ip[7] = TTL;
    } else {
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&40_u16.to_be_bytes());
        // The identification means nothing in a packet that is not fragmented (RFC 6864).
        ip[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
        ip[8] = TTL;
        ip[10..12].fill(0);
        let sum = ChecksumSum::default().add_bytes(ip).checksum().to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
    }
    reset.extend(tcp);
    reset
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A segment of 100 bytes from 10.0.0.1:1000 to 10.0.0.2:80, or between two addresses of IPv6.
    fn segment(is_v6: bool, n_payload: u16) -> Vec<u8> {
        let mut frame = vec![1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2];
        if is_v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((20 + n_payload).to_be_bytes());
            frame.extend([6, 9]);
            frame.extend([[0xaa; 16], [0xbb; 16]].concat());
        } else {
            frame.extend([0x08, 0, 0x45, 0]);
            frame.extend((40 + n_payload).to_be_bytes());
            frame.extend([7, 7, 0, 0, 9, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([3, 0xe8, 0, 80]);
        frame.extend(5_000_u32.to_be_bytes());
        frame.extend(9_000_u32.to_be_bytes());
        frame.extend([0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        frame.extend(vec![7; n_payload.into()]);
        frame
    }

    #[test]
    fn both_ends_get_a_reset_with_the_number_that_they_expect() {
        for (is_v6, tcp) in [(false, 34), (true, 54)] {
            let [onward, back] = resets(&segment(is_v6, 100)).unwrap();
            let number =
                |frame: &[u8], at: usize| u32::from_be_bytes(frame[tcp + at..tcp + at + 4].try_into().unwrap());
            assert_eq!((number(&onward, 4), number(&onward, 8)), (5_000, 9_000));
            assert_eq!((number(&back, 4), number(&back, 8)), (9_000, 5_100), "it acknowledges what was lost");
            assert_eq!((&back[..6], &back[6..12]), ([2; 6].as_slice(), [1; 6].as_slice()));
            assert_eq!(
                (&onward[tcp..tcp + 4], &back[tcp..tcp + 4]),
                ([3, 0xe8, 0, 80].as_slice(), [0, 80, 3, 0xe8].as_slice())
            );
            assert!([&onward, &back].iter().all(|frame| frame[tcp + 13] == RST_ACK && frame.len() == tcp + TCP));
        }
    }

    #[test]
    fn the_checksums_of_a_reset_are_right() {
        for (is_v6, addresses, tcp) in [(false, 26..34, 34), (true, 22..54, 54)] {
            for reset in resets(&segment(is_v6, 1)).unwrap() {
                let mut covered = reset[addresses.clone()].to_vec();
                covered.extend([0, 6, 0, 20]);
                covered.extend(&reset[tcp..]);
                let checksum = |bytes: &[u8]| ChecksumSum::default().add_bytes(bytes).checksum();
                assert_eq!(checksum(&covered), 0, "a sum over its own checksum is zero");
                assert!(is_v6 || checksum(&reset[ETHERNET..34]) == 0);
            }
        }
    }

    #[test]
    fn only_segments_with_payload_are_data() {
        assert!(carries_tcp_data(&segment(false, 1)) && carries_tcp_data(&segment(true, 1)));
        let mut padded = segment(false, 0);
        padded.extend([0; 6]);
        assert!(!carries_tcp_data(&padded), "an acknowledgement that was padded to 60 bytes");
        let (mut udp, mut fragment) = (segment(false, 10), segment(false, 10));
        udp[23] = 17;
        fragment[20] = 0x20;
        assert!(!carries_tcp_data(&udp) && !carries_tcp_data(&fragment) && !carries_tcp_data(&[0; 20]));
        for length in 0..60 {
            assert!(resets(&segment(false, 10)[..length]).is_none(), "cut at {length}");
        }
    }
}
