//! Counts received packets of pktgen: loss, reordering and latency, which pktgen itself does not know.

use fathom_model::{
    Histogram,
    units::{Bytes, Frames, Nanos},
};

use super::header::{DevicePorts, PktgenPacket};
use fathom_wire::FrameSequence;

/// The received packets of several pktgen devices, told apart by source port.
#[derive(Debug, Clone)]
pub struct ReceivedPackets {
    ports: DevicePorts,
    flows: Vec<Flow>,
    /// Running totals of all flows, because there may be too many flows to add them up repeatedly.
    sums: FlowTotals,
    /// All packets, duplicates included.
    pub frames: Frames,
    /// Their bytes, without the FCS.
    pub bytes: Bytes,
    /// From the creation of a packet to its arrival. Both ends must share a clock.
    pub latency_ns: Histogram,
    /// Differences between the transit times of two consecutive packets that arrived in sequence. Independent of the clock
    /// offset.
    pub variation_ns: Histogram,
    /// Packets that arrived before they were created: the wall clock was set meanwhile, or the ends have different clocks.
    pub untimely: Frames,
}

/// Totals of all flows.
#[derive(Debug, Clone, Copy, Default)]
struct FlowTotals {
    reordered: u64,
    duplicates: u64,
    numbered: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    sequence: FrameSequence,
    /// The highest number so far. Its lowest 32 bits are those in the packet.
    highest: u64,
    /// The lowest number; `None` before the first packet.
    lowest: Option<u64>,
    /// The last packet with times: its number and its transit time in nanoseconds, measured with two clocks.
    last: Option<(u64, i128)>,
}

impl ReceivedPackets {
    /// Counts packets from the ports of `n_devices` devices.
    #[must_use]
    pub fn of(ports: DevicePorts, n_devices: u32) -> Self {
        Self {
            ports,
            sums: FlowTotals::default(),
            flows: vec![Flow::default(); usize::try_from(n_devices).unwrap_or(usize::MAX)],
            frames: Frames(0),
            bytes: Bytes(0),
            latency_ns: Histogram::new(),
            variation_ns: Histogram::new(),
            untimely: Frames(0),
        }
    }

    /// Records a frame that arrived at `at` on the wall clock; returns whether it was one of these packets.
    pub fn record(&mut self, frame: &[u8], length: Bytes, at: Option<Nanos>) -> bool {
        let Some(packet) = PktgenPacket::find(frame) else { return false };
        let device = self.ports.device(packet.source_port).and_then(|device| usize::try_from(device).ok());
        let Some(flow) = device.and_then(|device| self.flows.get_mut(device)) else { return false };
        let before = flow.sums();
        let number = flow.record(packet.header.sequence);
        self.sums.grow(before, flow.sums());
        self.frames += Frames(1);
        self.bytes += length;
        match (packet.header.made, at) {
            (Some(made), Some(at)) if at >= made => self.latency_ns.record((at - made).0),
            (Some(_), Some(_)) => self.untimely += Frames(1),
            _ => {}
        }
        let transit = packet.header.made.zip(at).map(|(made, at)| i128::from(at.0) - i128::from(made.0));
        if let Some(variation) = flow.variation(number, transit) {
            self.variation_ns.record(variation);
        }
        true
    }

    /// Packets that arrived after a packet of their device with a higher number (RFC 4737 section 3.3).
    #[must_use]
    pub fn reordered(&self) -> Frames {
        Frames(self.sums.reordered)
    }

    /// Further copies of a number: packets that were duplicated on the path, and packets that pktgen sent several times.
    #[must_use]
    pub fn duplicates(&self) -> Frames {
        Frames(self.sums.duplicates)
    }

    /// Numbers from the lowest to the highest of each device, received or not.
    #[must_use]
    pub fn numbered(&self) -> Frames {
        Frames(self.sums.numbered)
    }

    /// Numbers that arrived, without duplicates.
    #[must_use]
    pub fn distinct(&self) -> Frames {
        self.frames - self.duplicates()
    }
}

impl FlowTotals {
    fn grow(&mut self, before: Self, after: Self) {
        self.reordered += after.reordered - before.reordered;
        self.duplicates += after.duplicates - before.duplicates;
        self.numbered += after.numbered - before.numbered;
    }
}

impl Flow {
    fn sums(&self) -> FlowTotals {
        let numbered = self.lowest.map_or(0, |lowest| self.highest - lowest + 1);
        FlowTotals { reordered: self.sequence.reordered, duplicates: self.sequence.duplicates, numbered }
    }

    /// Records a packet, and returns its full number.
    fn record(&mut self, number: u32) -> u64 {
        // The nearest number with these lowest bits: a flow wraps after 2^32 packets, in minutes at line rate.
        const WRAP: u64 = 1 << 32;
        let base = self.highest & !(WRAP - 1);
        let near = [base.checked_sub(WRAP), Some(base), base.checked_add(WRAP)];
        let near = near.into_iter().flatten().map(|base| base + u64::from(number));
        let number = near.min_by_key(|near| near.abs_diff(self.highest)).unwrap_or(0);
        self.highest = self.highest.max(number);
        self.lowest = Some(self.lowest.map_or(number, |lowest| lowest.min(number)));
        self.sequence.record(number);
        number
    }

    /// The difference to the transit time of the previous packet, if that was the last to arrive (RFC 5481 section 4.1).
    fn variation(&mut self, number: u64, transit: Option<i128>) -> Option<u64> {
        let before = std::mem::replace(&mut self.last, transit.map(|transit| (number, transit)));
        let (_, last) = before.filter(|(before, _)| before + 1 == number)?;
        u64::try_from((transit? - last).unsigned_abs()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::header::{PktgenHeader, sample_frame},
        *,
    };

    const MADE: Nanos = Nanos(1_000_000_000_000);

    fn arrive(arrivals: &mut ReceivedPackets, sequence: u32, port: u16) -> bool {
        let frame = sample_frame(PktgenHeader { sequence, made: Some(MADE) }, port, &[]);
        arrivals.record(&frame, Bytes(60), Some(MADE + Nanos::from_micros(25)))
    }

    #[test]
    fn each_device_has_an_order_of_its_own() {
        let mut arrivals = ReceivedPackets::of(DevicePorts { first: 9, each: 1 }, 2);
        for (sequence, port) in [(1, 9), (1, 10), (3, 9), (2, 10), (2, 9), (3, 9)] {
            assert!(arrive(&mut arrivals, sequence, port));
        }
        assert!(!arrive(&mut arrivals, 4, 11) && !arrive(&mut arrivals, 4, 8), "ports of others");
        assert_eq!((arrivals.frames, arrivals.bytes), (Frames(6), Bytes(360)));
        assert_eq!(
            (arrivals.reordered(), arrivals.duplicates(), arrivals.distinct()),
            (Frames(1), Frames(1), Frames(5))
        );
        assert_eq!(arrivals.latency_ns.max(), Some(25_000));
    }

    #[test]
    fn numbers_go_on_where_their_32_bits_end() {
        let mut arrivals = ReceivedPackets::of(DevicePorts { first: 9, each: 1 }, 1);
        for sequence in [u32::MAX - 1, 0, u32::MAX, 1] {
            arrive(&mut arrivals, sequence, 9);
        }
        assert_eq!((arrivals.reordered(), arrivals.duplicates()), (Frames(1), Frames(0)));
        assert_eq!(arrivals.numbered(), Frames(4));
    }

    #[test]
    fn what_is_missing_between_the_lowest_and_the_highest_number_is_lost() {
        let mut arrivals = ReceivedPackets::of(DevicePorts { first: 0, each: 1 << 15 }, 2);
        for (sequence, port) in [(12, 7), (11, 40_000), (15, 9), (10, 9), (12, 65_535), (15, 7)] {
            assert!(arrive(&mut arrivals, sequence, port));
        }
        // 10 to 15 of the first device, of which three arrived, one of them twice; 11 and 12 of the second.
        assert_eq!(
            (arrivals.numbered(), arrivals.distinct(), arrivals.duplicates()),
            (Frames(8), Frames(5), Frames(1))
        );
    }

    #[test]
    fn delays_vary_by_the_same_whatever_the_clocks_differ_by() {
        for ahead in [0, 3_600_000_000_000] {
            let mut arrivals = ReceivedPackets::of(DevicePorts { first: 9, each: 1 }, 1);
            // The fourth is missing, so there is no variation for the fifth.
            for (sequence, delay) in [(1, 20_000), (2, 50_000), (3, 40_000), (5, 90_000)] {
                let frame = sample_frame(PktgenHeader { sequence, made: Some(MADE + Nanos(ahead)) }, 9, &[]);
                arrivals.record(&frame, Bytes(60), Some(MADE + Nanos(delay)));
            }
            let variation = &arrivals.variation_ns;
            assert_eq!((variation.count(), variation.min(), variation.max()), (2, Some(10_000), Some(30_000)));
            assert_eq!(arrivals.untimely, Frames(if ahead > 0 { 4 } else { 0 }));
        }
    }

    #[test]
    fn a_packet_that_arrives_before_it_was_made_has_no_latency() {
        let mut arrivals = ReceivedPackets::of(DevicePorts { first: 9, each: 1 }, 1);
        let frame = sample_frame(PktgenHeader { sequence: 1, made: Some(MADE) }, 9, &[]);
        arrivals.record(&frame, Bytes(60), Some(MADE - Nanos(1)));
        arrivals.record(&frame, Bytes(60), None);
        assert_eq!((arrivals.untimely, arrivals.latency_ns.max()), (Frames(1), None));
    }
}
