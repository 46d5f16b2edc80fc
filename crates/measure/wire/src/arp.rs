//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use super::Ethernet;
use fathom_model::MacAddress;

const ETHERTYPE_ARP: u16 = 0x0806;
/// An ARP request: hardware type Ethernet, protocol IPv4, addresses of six and four bytes.
const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];

/// Packets of the address resolution protocol.
#[derive(Debug)]
pub struct Arp;

impl Arp {
    /// The shortest Ethernet frame, without its FCS.
    pub const LENGTH: usize = 60;

    /// A request of a host for its own address, by which others learn where it is (RFC 5227 section 2.3).
    #[must_use]
    pub fn announcement(mac: MacAddress, address: Ipv4Addr) -> [u8; Self::LENGTH] {
        let all = MacAddress([0xff; 6]);
        let ethernet = Ethernet { destination: all, source: mac, ethertype: ETHERTYPE_ARP };
        let nobody = [0; 6];
        let parts: [&[u8]; 6] = [&ethernet.bytes(), &REQUEST, &mac.0, &address.octets(), &nobody, &address.octets()];
        let mut frame = [0; Self::LENGTH];
        for (place, byte) in frame.iter_mut().zip(parts.concat()) {
            *place = byte;
        }
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_a_request_to_all_for_the_senders_own_address() {
        let frame = Arp::announcement(MacAddress([2, 0, 0, 0, 0, 7]), Ipv4Addr::new(198, 18, 0, 2));
        let expected = [
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 7, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 7, 198,
            18, 0, 2, 0, 0, 0, 0, 0, 0, 198, 18, 0, 2,
        ];
        assert_eq!((&frame[..42], frame[42..].iter().all(|byte| *byte == 0)), (&expected[..], true));
    }
}
