//! IPv4 fragmentation (RFC 791 section 3.2), and the addresses in a record-route option (section 3.1).

use std::net::Ipv4Addr;

use etherparse::Ipv4Header;
use fathom_wire::ChecksumSum;

/// Bits of the field of flags and offset.
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// The unit of fragment offsets.
const UNIT: u16 = 8;
/// The number of the record-route option.
pub(super) const RECORD_ROUTE: u8 = 7;

/// Iterates over the fragments of one packet.
#[derive(Debug)]
pub(super) struct Fragments<'a> {
    header: &'a [u8],
    payload: &'a [u8],
    /// The payload bytes per fragment.
    step: usize,
    at: usize,
}

impl<'a> Fragments<'a> {
    /// Returns `None` if the packet is not IPv4.
    pub(super) fn of(packet: &'a [u8], payload_max: u16) -> Option<Self> {
        let first = packet.first().filter(|first| *first >> 4 == 4)?;
        let (header, payload) = packet.split_at_checked(usize::from(first & 0xf) * 4)?;
        let header = Some(header).filter(|header| header.len() >= Ipv4Header::MIN_LEN)?;
        let step = usize::from((payload_max / UNIT).max(1) * UNIT);
        let is_short = payload.len() <= usize::from(payload_max);
        Some(Self { header, payload, step: if is_short { payload.len().max(1) } else { step }, at: 0 })
    }

    /// Overwrites `packet` with the next fragment; returns whether there was one.
    pub(super) fn write_next(&mut self, packet: &mut Vec<u8>) -> bool {
        if self.at > 0 && self.at >= self.payload.len() {
            return false;
        }
        let end = (self.at + self.step).min(self.payload.len());
        // Options without the copied flag belong in the first fragment only. None of ours has that flag.
        let header = if self.at == 0 { self.header } else { &self.header[..Ipv4Header::MIN_LEN] };
        packet.clear();
        packet.extend_from_slice(header);
        packet.extend_from_slice(&self.payload[self.at..end]);
        let words = u8::try_from(header.len() / 4).expect("a header has at most 15 words");
        packet[0] = 0x40 | words;
        let length = u16::try_from(packet.len()).unwrap_or(u16::MAX);
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        let field = u16::from_be_bytes([self.header[6], self.header[7]]);
        let ahead = u16::try_from(self.at / usize::from(UNIT)).unwrap_or(OFFSET);
        let more = if end < self.payload.len() { MORE } else { 0 };
        let field = (field & !OFFSET) | more | ((field & OFFSET) + ahead) & OFFSET;
        packet[6..8].copy_from_slice(&field.to_be_bytes());
        packet[10..12].fill(0);
        let sum = ChecksumSum::default().add_bytes(&packet[..header.len()]).checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        self.at = end.max(1);
        true
    }
}

/// Whether a packet is a fragment other than the first, so its payload does not start with a header.
pub(super) fn is_later_fragment(packet: &[u8]) -> bool {
    let field = packet.get(6..).and_then(<[u8]>::first_chunk).map(|field| u16::from_be_bytes(*field));
    packet.first().is_some_and(|first| first >> 4 == 4) && field.is_some_and(|field| field & OFFSET > 0)
}

/// Returns the addresses in the record-route option of a packet, in path order; `None` without such an option.
#[must_use]
pub fn recorded_route(packet: &[u8]) -> Option<Vec<Ipv4Addr>> {
    const NO_OPERATION: u8 = 1;
    let first = packet.first().filter(|first| *first >> 4 == 4)?;
    let mut options = packet.get(Ipv4Header::MIN_LEN..usize::from(first & 0xf) * 4)?;
    loop {
        match *options.first()? {
            0 => return None,
            NO_OPERATION => options = &options[1..],
            kind => {
                let length = usize::from(*options.get(1)?).max(2);
                let option = options.get(..length)?;
                if kind == RECORD_ROUTE {
                    // The pointer counts from one, at the option's kind, and points after the last recorded address.
                    let written = option.get(3..usize::from(*option.get(2)?).checked_sub(1)?)?;
                    let address = |bytes: &[u8]| bytes.first_chunk::<4>().map(|bytes| Ipv4Addr::from(*bytes));
                    return Some(written.chunks_exact(4).filter_map(address).collect());
                }
                options = &options[length..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::IpNumber;

    use super::*;

    fn packet(n_payload: u8) -> Vec<u8> {
        let mut header = Ipv4Header::new(n_payload.into(), 64, IpNumber::UDP, [192, 0, 2, 1], [192, 0, 2, 2]).unwrap();
        header.dont_fragment = false;
        header.identification = 7;
        header.header_checksum = header.calc_header_checksum();
        [header.to_bytes().to_vec(), (0..n_payload).collect()].concat()
    }

    fn cut(packet: &[u8], payload_max: u16) -> Vec<Vec<u8>> {
        let mut fragments = Fragments::of(packet, payload_max).unwrap();
        let mut all = Vec::new();
        let mut next = Vec::new();
        while fragments.write_next(&mut next) {
            all.push(next.clone());
        }
        all
    }

    #[test]
    fn fragments_carry_the_whole_payload_at_their_offsets_and_all_but_the_last_say_that_more_follow() {
        for (payload_max, lengths) in [(16, &[16, 16, 8][..]), (20, &[16, 16, 8]), (1, &[8; 5]), (40, &[40])] {
            let fragments = cut(&packet(40), payload_max);
            let mut payload = Vec::new();
            for (nth, (fragment, length)) in fragments.iter().zip(lengths).enumerate() {
                let (header, rest) = Ipv4Header::from_slice(fragment).unwrap();
                assert_eq!((rest.len(), usize::from(header.total_len)), (*length, length + 20), "{payload_max}");
                assert_eq!(usize::from(header.fragment_offset.byte_offset()), payload.len());
                assert_eq!((header.more_fragments, header.identification), (nth + 1 < lengths.len(), 7));
                assert_eq!(header.header_checksum, header.calc_header_checksum());
                assert_eq!(is_later_fragment(fragment), nth > 0);
                payload.extend_from_slice(rest);
            }
            assert_eq!((fragments.len(), payload), (lengths.len(), (0..40).collect()));
        }
        assert_eq!(cut(&packet(0), 16), [packet(0)]);
    }

    #[test]
    fn a_fragment_s_fragments_go_on_from_its_offset() {
        let mut whole = packet(16);
        whole[6..8].copy_from_slice(&(MORE | 2).to_be_bytes());
        let fields: Vec<u16> =
            cut(&whole, 8).iter().map(|fragment| u16::from_be_bytes([fragment[6], fragment[7]])).collect();
        assert_eq!(fields, [MORE | 2, MORE | 3]);
        assert!(Fragments::of(&[0x60; 40], 8).is_none() && Fragments::of(&[0x4f; 20], 8).is_none());
        assert!(Fragments::of(&[], 8).is_none());
    }

    #[test]
    fn a_recorded_route_is_read_as_far_as_it_was_written_and_damage_is_none() {
        let with = |options: &[u8]| {
            let words = u8::try_from(5 + options.len() / 4).unwrap();
            [&[0x40 | words][..], &[0; 19], options].concat()
        };
        let route = [1, RECORD_ROUTE, 11, 8, 192, 0, 2, 1, 0, 0, 0, 0];
        assert_eq!(recorded_route(&with(&route)), Some(vec![Ipv4Addr::new(192, 0, 2, 1)]));
        assert_eq!(recorded_route(&with(&[RECORD_ROUTE, 3, 4, 0])), Some(Vec::new()));
        for damaged in [&[RECORD_ROUTE, 40, 4, 0][..], &[RECORD_ROUTE, 3, 0, 0], &[RECORD_ROUTE, 0, 9, 0], &[0; 4], &[]]
        {
            assert_eq!(recorded_route(&with(damaged)), None, "{damaged:?}");
        }
        assert_eq!(recorded_route(&[]), None);
    }
}
