//! The order in which verdicts leave, and the messages in which they do: pure, the time comes in.
//!
//! Successive packets with the same verdict leave in one message, which decides everything up to the last of them. While a packet is held
//! back by a defect, each verdict leaves on its own: such a message would let the held one go too.

use fathom_model::units::Nanos;
use fathom_sys::netlink::packet_queue::{PacketVerdict, VerdictBuffer};

use super::settings::VerdictGrouping;

/// Takes verdicts in the order in which they are told.
pub(super) trait VerdictSink {
    /// Takes the verdict on one packet.
    fn one(&mut self, id: u32, verdict: PacketVerdict);
    /// Takes the verdict on all packets up to one.
    fn all_until(&mut self, id: u32, verdict: PacketVerdict);
}

impl VerdictSink for VerdictBuffer {
    fn one(&mut self, id: u32, verdict: PacketVerdict) {
        self.push(id, verdict);
    }

    fn all_until(&mut self, id: u32, verdict: PacketVerdict) {
        self.push_all_until(id, verdict);
    }
}

/// A packet that a defect holds back.
#[derive(Debug, Clone, Copy)]
struct HeldBack {
    id: u32,
    verdict: PacketVerdict,
    due: Nanos,
    /// Whether the next packet of the queue lets it go, if that comes before it is due.
    is_overtaken: bool,
}

/// When the verdict on a packet leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Departure {
    /// At once.
    Now,
    /// At this time.
    At(Nanos),
    /// Behind the next packet of the queue, or at this time if none comes before.
    Overtaken(Nanos),
}

/// Successive packets with the same verdict.
#[derive(Debug, Clone, Copy)]
struct VerdictRun {
    last: u32,
    n_packets: u32,
    verdict: PacketVerdict,
}

/// The verdicts that have not left yet.
#[derive(Debug)]
pub(super) struct VerdictOrder {
    grouping: VerdictGrouping,
    run: Option<VerdictRun>,
    held: Vec<HeldBack>,
}

impl VerdictOrder {
    pub(super) fn new(grouping: VerdictGrouping) -> Self {
        Self { grouping, run: None, held: Vec::new() }
    }

    /// Adds the verdict on the next packet of the queue.
    pub(super) fn add(&mut self, id: u32, verdict: PacketVerdict, departure: Departure, sink: &mut impl VerdictSink) {
        let n_before = self.held.len();
        match departure {
            Departure::Now if self.held.is_empty() && self.grouping == VerdictGrouping::Batch => {
                match &mut self.run {
                    Some(run) if run.verdict == verdict => (run.last, run.n_packets) = (id, run.n_packets + 1),
                    _ => {
                        self.end_run(sink);
                        self.run = Some(VerdictRun { last: id, n_packets: 1, verdict });
                    }
                }
                return;
            }
            Departure::Now => sink.one(id, verdict),
            Departure::At(due) | Departure::Overtaken(due) => {
                self.end_run(sink);
                let is_overtaken = matches!(departure, Departure::Overtaken(_));
                self.held.push(HeldBack { id, verdict, due, is_overtaken });
            }
        }
        let mut places = 0..;
        self.held.retain(|held| {
            let was_there = places.next().is_some_and(|place: usize| place < n_before);
            let goes = held.is_overtaken && was_there;
            if goes {
                sink.one(held.id, held.verdict);
            }
            !goes
        });
    }

    /// Ends a batch: everything that is not held back leaves, and of the held what is due.
    pub(super) fn flush(&mut self, now: Nanos, sink: &mut impl VerdictSink) {
        self.end_run(sink);
        self.held.retain(|held| {
            let is_due = held.due <= now;
            if is_due {
                sink.one(held.id, held.verdict);
            }
            !is_due
        });
    }

    /// Lets all go that is held back.
    pub(super) fn release_all(&mut self, sink: &mut impl VerdictSink) {
        self.end_run(sink);
        self.held.drain(..).for_each(|held| sink.one(held.id, held.verdict));
    }

    /// When the next held packet is due.
    pub(super) fn next_due(&self) -> Option<Nanos> {
        self.held.iter().map(|held| held.due).min()
    }

    fn end_run(&mut self, sink: &mut impl VerdictSink) {
        match self.run.take() {
            Some(VerdictRun { last, n_packets: 1, verdict }) => sink.one(last, verdict),
            Some(VerdictRun { last, verdict, .. }) => sink.all_until(last, verdict),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default, Debug, PartialEq)]
    struct Told(Vec<(&'static str, u32, PacketVerdict)>);

    impl VerdictSink for Told {
        fn one(&mut self, id: u32, verdict: PacketVerdict) {
            self.0.push(("one", id, verdict));
        }

        fn all_until(&mut self, id: u32, verdict: PacketVerdict) {
            self.0.push(("all", id, verdict));
        }
    }

    const ONE: PacketVerdict = PacketVerdict::Mark(1);
    const TWO: PacketVerdict = PacketVerdict::Mark(2);

    fn told(grouping: VerdictGrouping, packets: &[(PacketVerdict, Departure)], now: Nanos) -> (VerdictOrder, Told) {
        let (mut order, mut told) = (VerdictOrder::new(grouping), Told::default());
        for ((verdict, departure), id) in packets.iter().zip(10..) {
            order.add(id, *verdict, *departure, &mut told);
        }
        order.flush(now, &mut told);
        (order, told)
    }

    #[test]
    fn a_run_of_equal_verdicts_is_one_message() {
        let now = Departure::Now;
        let packets = [(ONE, now), (ONE, now), (ONE, now), (TWO, now), (ONE, now), (ONE, now)];
        let (_, batched) = told(VerdictGrouping::Batch, &packets, Nanos::ZERO);
        assert_eq!(batched.0, [("all", 12, ONE), ("one", 13, TWO), ("all", 15, ONE)]);
        let (_, single) = told(VerdictGrouping::Single, &packets, Nanos::ZERO);
        let expected: Vec<_> = packets.iter().zip(10..).map(|((verdict, _), id)| ("one", id, *verdict)).collect();
        assert_eq!(single.0, expected);
    }

    #[test]
    fn while_a_packet_is_held_back_no_message_covers_it() {
        let (now, later) = (Departure::Now, Departure::At(Nanos(100)));
        let packets = [(ONE, now), (ONE, now), (ONE, later), (ONE, now), (ONE, now)];
        let (mut order, mut heard) = told(VerdictGrouping::Batch, &packets, Nanos(50));
        assert_eq!(heard.0, [("all", 11, ONE), ("one", 13, ONE), ("one", 14, ONE)]);
        assert_eq!(order.next_due(), Some(Nanos(100)));
        order.flush(Nanos(100), &mut heard);
        assert_eq!((heard.0.last(), order.next_due()), (Some(&("one", 12, ONE)), None));
    }

    #[test]
    fn a_packet_is_overtaken_by_the_next_one_or_leaves_when_it_is_due() {
        let (now, behind) = (Departure::Now, Departure::Overtaken(Nanos(100)));
        let (_, heard) = told(VerdictGrouping::Batch, &[(ONE, behind), (TWO, now), (ONE, now)], Nanos::ZERO);
        assert_eq!(heard.0, [("one", 11, TWO), ("one", 10, ONE), ("one", 12, ONE)]);
        let (_, heard) = told(VerdictGrouping::Batch, &[(ONE, behind), (TWO, behind), (ONE, now)], Nanos::ZERO);
        assert_eq!(heard.0, [("one", 10, ONE), ("one", 12, ONE), ("one", 11, TWO)]);
        let (mut order, mut heard) = told(VerdictGrouping::Batch, &[(ONE, behind)], Nanos(99));
        assert_eq!(heard.0, []);
        order.flush(Nanos(100), &mut heard);
        assert_eq!(heard.0, [("one", 10, ONE)]);
    }
}
