//! Numbered datagrams over a connected socket: sent in batches, received and accounted for individually.
//!
//! A [`HeaderCodec`] writes the beginning of a datagram, in fathom's format or that of another tool. A [`Sender`] sends the due
//! datagrams in one step, a [`Receiver`] takes the arrived ones in one step. The caller decides when to begin and end and how
//! both sides agree on it.

mod account;
mod challenge;
mod gap_times;
mod jitter;
mod receive;
mod send;
mod sequence;
mod wire;

use fathom_model::units::Nanos;

pub use account::FlowAccount;
pub use challenge::{Challenges, ValidatedAddresses};
pub use receive::{ReceiveStep, Receiver, ReceiverSummary, receive_buffers};
pub use send::{OffloadMode, SendBuffers, SendStep, Sender, SenderSummary};
pub use sequence::SequenceCounts;
use sequence::SequenceTracker;
pub use wire::{ControlMessage, FathomCodec, FlowToken, HEADER_LEN, MESSAGE_LEN};

/// The part of a stream that a datagram belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPhase {
    /// Counted, but its times belong to no result.
    WarmUp,
    /// Its times count.
    Measured,
    /// Only further end marks follow.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The number, from 0.
    pub number: u64,
    /// When it was sent, on a monotonic clock of the sender.
    pub sent: Nanos,
    pub phase: StreamPhase,
}

/// Writes and reads the header at the beginning of a datagram.
pub trait HeaderCodec {
    /// Writes a header; the datagram is long enough for the codec.
    fn write(&self, header: DatagramHeader, datagram: &mut [u8]);

    /// Reads the header of the next received datagram; `None` if it does not belong to this stream.
    ///
    /// The codec may update its state, such as the upper half of numbers whose lower half alone is sent.
    fn read(&mut self, datagram: &[u8]) -> Option<DatagramHeader>;
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use fathom_model::units::PerSec;
    use fathom_sys::{
        clock,
        policy::AllowedPeers,
        socket::{self, Buffer, Socket, Wait, datagram::BatchShape},
    };

    use super::*;
    use crate::traffic::{DatagramSizes, FlowIndex, Schedule, TrafficPattern};

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const ROOM: BatchShape = BatchShape { count: 64, size: 2000 };

    /// A header like another tool's, with 32-bit numbers from 1.
    #[derive(Default)]
    struct Short {
        expected: u64,
    }

    impl HeaderCodec for Short {
        fn write(&self, header: DatagramHeader, datagram: &mut [u8]) {
            let number = (header.number + 1) & u64::from(u32::MAX);
            datagram[..4].copy_from_slice(&u32::try_from(number).unwrap().to_be_bytes());
        }

        fn read(&mut self, datagram: &[u8]) -> Option<DatagramHeader> {
            let number = u64::from(u32::from_be_bytes(*datagram.first_chunk()?)).checked_sub(1)?;
            self.expected = number + 1;
            Some(DatagramHeader { number, sent: Nanos::ZERO, phase: StreamPhase::Measured })
        }
    }

    /// A pair of connected sockets.
    fn pair() -> (Socket, Socket) {
        let (near, far) = (
            socket::datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap(),
            socket::datagram(LOOPBACK, &AllowedPeers::anybody()).unwrap(),
        );
        near.connect(&socket::local_address(&far).unwrap().into()).unwrap();
        for socket in [&near, &far] {
            socket::set_timeout(socket, Nanos::from_millis(100)).unwrap();
        }
        (near, far)
    }

    fn sender(near: &Socket, sizes: DatagramSizes, joined: OffloadMode) -> Sender<'_, Short> {
        let mut load = SendBuffers::new(sizes, 16, joined, 1);
        load.enable_offload(near).unwrap();
        Sender::new(near, Short::default(), load, None)
    }

    fn receiver(far: &Socket, joined: OffloadMode) -> Receiver<'_, Short> {
        let receiver = Receiver::new(far, Short::default(), receive_buffers(far, ROOM, joined).unwrap(), None);
        if joined == OffloadMode::Never { receiver } else { receiver.with_offload() }
    }

    /// Receives everything that has arrived.
    fn drain(receiver: &mut Receiver<'_, Short>) -> u64 {
        std::iter::from_fn(|| receiver.step(Wait::Never, StreamPhase::Measured).unwrap())
            .map(|arrived| arrived.bytes)
            .sum()
    }

    #[test]
    fn every_way_of_handing_over_gives_the_same_account() {
        for joined in [
            (OffloadMode::Never, OffloadMode::Never),
            (OffloadMode::Required, OffloadMode::Never),
            (OffloadMode::Required, OffloadMode::Required),
        ] {
            let (near, far) = pair();
            let (mut sender, mut receiver) =
                (sender(&near, DatagramSizes::fixed(1000), joined.0), receiver(&far, joined.1));
            let (mut sent, mut received) = (SendStep::default(), 0);
            for _ in 0..20 {
                let step = sender.step(Nanos::ZERO, StreamPhase::Measured).unwrap();
                sent = SendStep { datagrams: sent.datagrams + step.datagrams, bytes: sent.bytes + step.bytes, ..sent };
                received += drain(&mut receiver);
            }
            assert_eq!((sent.datagrams, sent.bytes), (sender.number(), sender.number() * 1000));
            let receipts = receiver.finish().unwrap();
            assert_eq!(received, receipts.sequence.counts.received * 1000, "{joined:?}");
            assert!(receipts.sequence.counts.received > 100, "{joined:?}");
            let is_joined = receipts.n_messages < receipts.sequence.counts.received;
            assert_eq!(is_joined, joined.1 == OffloadMode::Required);
            if receipts.dropped == 0 {
                assert_eq!(
                    receipts.sequence.counts,
                    SequenceCounts { received: sent.datagrams, ..SequenceCounts::default() },
                    "{joined:?}"
                );
            }
        }
    }

    #[test]
    fn a_mix_arrives_with_the_lengths_and_in_the_order_of_its_numbers() {
        let (near, far) = pair();
        let sizes = DatagramSizes::mix("18:3,600:2", 5).unwrap();
        let mut sender = sender(&near, sizes.clone(), OffloadMode::Preferred);
        sender.step(Nanos::ZERO, StreamPhase::Measured).unwrap();
        for number in 0..16 {
            let mut room = [0; 700];
            assert_eq!(socket::recv(&far, &mut room, Wait::Block).unwrap(), Some(sizes.of(number)));
            assert_eq!(Short::default().read(&room).unwrap().number, number);
        }
    }

    #[test]
    fn super_buffers_that_are_refused_leave_one_by_one_with_the_same_numbers() {
        let (near, far) = pair();
        // Two segments fit in a datagram, but none of them fits in a packet of the loopback without its checksum.
        let mut sender = sender(&near, DatagramSizes::fixed(1000), OffloadMode::Preferred);
        fathom_sys::socket::datagram::set_checksum_off(&near).unwrap();
        assert_eq!(
            sender.step(Nanos::ZERO, StreamPhase::Measured).unwrap(),
            SendStep::default(),
            "nothing of it was sent"
        );
        let step = sender.step(Nanos::ZERO, StreamPhase::Measured).unwrap();
        assert!(step.datagrams > 0);
        let mut receiver = receiver(&far, OffloadMode::Never);
        drain(&mut receiver);
        let receipts = receiver.finish().unwrap();
        assert_eq!(receipts.sequence.counts.received + receipts.dropped, step.datagrams);
        assert_eq!(receipts.sequence.bursts.count(), 0);
        let sendings = sender.finish(Nanos::ZERO);
        assert_eq!(sendings.segments, 1);
        assert!(sendings.refusal.unwrap().starts_with("sendmmsg: "));
    }

    #[test]
    fn what_the_kernel_took_only_in_part_is_sent_again_with_its_numbers() {
        for joined in [OffloadMode::Never, OffloadMode::Required] {
            // A local stream socket blocks when its receiver's queue is full, like a device without room.
            let (near, far) = pair();
            socket::set_buffer(&near, Buffer::Send, fathom_model::units::Bytes(8192)).unwrap();
            let mut sender = sender(&near, DatagramSizes::fixed(500), joined);
            let mut receiver = receiver(&far, OffloadMode::Never);
            let (mut n_sent, mut n_partial) = (0, 0);
            for _ in 0..200 {
                let step = sender.step(Nanos::ZERO, StreamPhase::Measured).unwrap();
                n_sent += step.datagrams;
                n_partial += u64::from(step.datagrams > 0 && step.datagrams < 16);
                drain(&mut receiver);
            }
            let _ = n_partial;
            assert_eq!(sender.number(), n_sent);
            let receipts = receiver.finish().unwrap();
            assert_eq!(receipts.sequence.counts.received + receipts.dropped, n_sent, "{joined:?}");
        }
    }

    #[test]
    fn a_schedule_is_kept_and_what_was_due_is_told() {
        let (near, far) = pair();
        let rate = PerSec::new(2000.0).unwrap();
        let schedule = Schedule::new(TrafficPattern::Constant, rate, 1, FlowIndex { idx: 0, of: 1 }).unwrap();
        let load = SendBuffers::new(DatagramSizes::fixed(100), 16, OffloadMode::Never, 1);
        let mut sender = Sender::new(&near, Short::default(), load, Some(schedule));
        let start = clock::now();
        while clock::now() - start < Nanos::from_millis(50) {
            sender.step(start, StreamPhase::Measured).unwrap();
        }
        let (elapsed, n_sent) = (clock::now() - start, sender.number());
        let sendings = sender.finish(elapsed);
        let intended = sendings.intended.unwrap();
        assert!(intended >= n_sent && intended <= elapsed.0 / 500_000 + 1, "{n_sent} of {intended}");
        assert!(intended - n_sent <= sendings.lag_max.0 / 500_000 + 1, "{n_sent} of {intended}");
        let mut receiver = receiver(&far, OffloadMode::Never);
        drain(&mut receiver);
        assert_eq!(receiver.finish().unwrap().sequence.counts.received, n_sent);
    }

    #[test]
    fn who_could_not_run_for_seconds_does_not_send_seconds_at_once() {
        let (near, _far) = pair();
        let rate = PerSec::new(2000.0).unwrap();
        let schedule = Schedule::new(TrafficPattern::Constant, rate, 1, FlowIndex { idx: 0, of: 1 }).unwrap();
        let load = SendBuffers::new(DatagramSizes::fixed(100), 16, OffloadMode::Never, 1);
        let mut sender = Sender::new(&near, Short::default(), load, Some(schedule));
        let start = clock::now() - Nanos::from_secs(10);
        while sender.step(start, StreamPhase::Measured).unwrap().datagrams > 0 {}
        let n_sent = sender.number();
        assert!((200..2_000).contains(&n_sent), "{n_sent} of 20,000");
        let sendings = sender.finish(Nanos::from_secs(10));
        assert!(sendings.intended.unwrap() >= 20_000 && sendings.lag_max >= Nanos::from_secs(9), "{sendings:?}");
        assert!(sendings.given_up >= Nanos::from_secs(9), "{sendings:?}");
    }

    #[test]
    fn what_becomes_due_after_the_last_step_was_never_to_be_sent() {
        let (near, _far) = pair();
        let frames = TrafficPattern::Frames { per_sec: PerSec::new(1.0).unwrap(), spread: 0.0 };
        let schedule = Schedule::new(frames, PerSec::new(10.0).unwrap(), 1, FlowIndex { idx: 0, of: 1 }).unwrap();
        let load = SendBuffers::new(DatagramSizes::fixed(100), 16, OffloadMode::Never, 1);
        let mut sender = Sender::new(&near, Short::default(), load, Some(schedule));
        assert_eq!(sender.step(clock::now(), StreamPhase::Measured).unwrap().datagrams, 10);
        assert_eq!(sender.finish(Nanos::from_secs(60)).intended, Some(10));
    }
}
