//! The capacity of a link, independent of the device.

use fathom_model::units::{BitsPerSec, Bytes, PerSec, approximate};

/// The overhead of a frame on the wire: 8 bytes of preamble and 12 bytes of gap (RFC 2544 section 20).
pub const WIRE_OVERHEAD: Bytes = Bytes(20);

/// Ethernet header and frame check sequence, without VLAN tags.
pub const ETHERNET_OVERHEAD: Bytes = Bytes(18);

/// The maximum frames per second of a link, for frames of this length including their frame check sequence.
#[must_use]
pub fn frame_rate(line: BitsPerSec, frame: Bytes) -> Option<PerSec> {
    line.per_unit(frame + WIRE_OVERHEAD)
}

/// The headers before the payload in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// IPv4 (20 bytes), TCP (20) and the timestamps option (12).
    TcpV4,
    /// IPv6 (40 bytes), TCP (20) and the timestamps option (12).
    TcpV6,
    /// IPv4 (20 bytes) and UDP (8).
    UdpV4,
    /// IPv6 (40 bytes) and UDP (8).
    UdpV6,
}

impl Headers {
    /// Their length, without the Ethernet header.
    #[must_use]
    pub const fn length(self) -> Bytes {
        match self {
            Self::TcpV4 => Bytes(52),
            Self::TcpV6 => Bytes(72),
            Self::UdpV4 => Bytes(28),
            Self::UdpV6 => Bytes(48),
        }
    }
}

/// The maximum payload per second if every packet is `mtu` long (RFC 6349 section 4.1.1).
///
/// Returns `None` if the headers leave no room for payload.
#[must_use]
pub fn best_goodput(line: BitsPerSec, mtu: Bytes, headers: Headers) -> Option<BitsPerSec> {
    let payload = mtu - headers.length();
    let on_wire = mtu + ETHERNET_OVERHEAD + WIRE_OVERHEAD;
    let share = approximate(payload.0) / approximate(on_wire.0);
    (payload.0 > 0).then(|| BitsPerSec::new(line.get() * share)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::units::rounded;

    #[test]
    fn line_rates_are_those_of_the_printed_tables() {
        let cases = [
            (1e9, 64, 1_488_095),
            (1e9, 1518, 81_274),
            (10e9, 64, 14_880_952),
            (25e9, 512, 5_874_060),
            (100e9, 9018, 1_383_049),
        ];
        for (bits, frame, frames) in cases {
            let rate = frame_rate(BitsPerSec::new(bits).unwrap(), Bytes(frame)).unwrap();
            assert_eq!(rounded(rate.get()), frames, "{bits} bit/s, {frame} B");
        }
    }

    #[test]
    fn the_best_goodput_of_ten_gigabit_is_known_to_everyone_who_has_measured_it() {
        let line = BitsPerSec::new(10e9).unwrap();
        let goodput = best_goodput(line, Bytes(1500), Headers::TcpV4).unwrap();
        assert!((goodput.get() - 9.415e9).abs() < 1e6, "{goodput}");
        assert_eq!(best_goodput(line, Bytes(40), Headers::TcpV6), None);
    }
}
