//! What became of pktgen's packets on their way: loss, reordering and latency, which pktgen itself does not know.

use fathom_model::{
    Histogram,
    units::{Bytes, Frames, Nanos},
};

use super::header::Packet;
use crate::sequence::Sequence;

/// What a receiver saw of the packets of several devices of pktgen, told apart by their source port.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// The source port of the first flow; the others follow.
    first_port: u16,
    flows: Vec<Flow>,
    /// All packets, each copy counted.
    pub frames: Frames,
    /// Their bytes, without the checksum of the wire.
    pub bytes: Bytes,
    /// From when a packet was made to when it arrived; both ends must share a clock.
    pub latency_ns: Histogram,
    /// Packets that arrived before they were made: the wall clock was set meanwhile, or the ends have different ones.
    pub untimely: Frames,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    sequence: Sequence,
    /// The highest number so far; the 32 bits of a packet's own are the lowest of it.
    highest: u64,
}

impl Arrivals {
    /// Takes the packets from `n_flows` ports, from `first_port` on.
    #[must_use]
    pub fn of(first_port: u16, n_flows: u16) -> Self {
        Self {
            first_port,
            flows: vec![Flow::default(); n_flows.into()],
            frames: Frames(0),
            bytes: Bytes(0),
            latency_ns: Histogram::new(),
            untimely: Frames(0),
        }
    }

    /// Takes note of a frame that arrived at `at` on the wall clock; whether it was one of these.
    pub fn arrive(&mut self, frame: &[u8], length: Bytes, at: Option<Nanos>) -> bool {
        let Some(packet) = Packet::find(frame) else { return false };
        let flow =
            packet.source_port.checked_sub(self.first_port).and_then(|flow| self.flows.get_mut(usize::from(flow)));
        let Some(flow) = flow else { return false };
        flow.arrive(packet.header.sequence);
        self.frames += Frames(1);
        self.bytes += length;
        match (packet.header.made, at) {
            (Some(made), Some(at)) if at >= made => self.latency_ns.record((at - made).0),
            (Some(_), Some(_)) => self.untimely += Frames(1),
            _ => {}
        }
        true
    }

    /// Packets that arrived after one of their device with a higher number (RFC 4737 section 3.3).
    #[must_use]
    pub fn reordered(&self) -> Frames {
        Frames(self.flows.iter().map(|flow| flow.sequence.reordered).sum())
    }

    /// Further copies of a number: of packets that were duplicated, and of those that pktgen sent several times.
    #[must_use]
    pub fn duplicates(&self) -> Frames {
        Frames(self.flows.iter().map(|flow| flow.sequence.duplicates).sum())
    }

    /// Numbers that arrived, each counted once.
    #[must_use]
    pub fn distinct(&self) -> Frames {
        self.frames - self.duplicates()
    }
}

impl Flow {
    fn arrive(&mut self, number: u32) {
        // The nearest number with these lowest bits: a flow wraps after 2^32 packets, in minutes at line rate.
        const WRAP: u64 = 1 << 32;
        let base = self.highest & !(WRAP - 1);
        let near = [base.checked_sub(WRAP), Some(base), base.checked_add(WRAP)];
        let near = near.into_iter().flatten().map(|base| base + u64::from(number));
        let number = near.min_by_key(|near| near.abs_diff(self.highest)).unwrap_or(0);
        self.highest = self.highest.max(number);
        self.sequence.arrive(number);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::header::{Header, tests::frame},
        *,
    };

    const MADE: Nanos = Nanos(1_000_000_000_000);

    fn arrive(arrivals: &mut Arrivals, sequence: u32, port: u16) -> bool {
        let frame = frame(Header { sequence, made: Some(MADE) }, port, &[]);
        arrivals.arrive(&frame, Bytes(60), Some(MADE + Nanos::from_micros(25)))
    }

    #[test]
    fn each_device_has_an_order_of_its_own() {
        let mut arrivals = Arrivals::of(9, 2);
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
        let mut arrivals = Arrivals::of(9, 1);
        for sequence in [u32::MAX - 1, 0, u32::MAX, 1] {
            arrive(&mut arrivals, sequence, 9);
        }
        assert_eq!((arrivals.reordered(), arrivals.duplicates()), (Frames(1), Frames(0)));
    }

    #[test]
    fn a_packet_that_arrives_before_it_was_made_has_no_latency() {
        let mut arrivals = Arrivals::of(9, 1);
        let frame = frame(Header { sequence: 1, made: Some(MADE) }, 9, &[]);
        arrivals.arrive(&frame, Bytes(60), Some(MADE - Nanos(1)));
        arrivals.arrive(&frame, Bytes(60), None);
        assert_eq!((arrivals.untimely, arrivals.latency_ns.max()), (Frames(1), None));
    }
}
