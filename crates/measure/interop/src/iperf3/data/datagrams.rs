//! Numbered datagrams with iperf3's header.

use std::io;

use fathom_sys::{
    clock,
    socket::{self, Socket, Wait, datagram::BatchShape},
};

use super::{Counter, StreamContext, length, rate_of, repeat_digits};
use crate::iperf3::{OpenStream, ParameterFlag, Parameters};
use fathom_model::units::Nanos;
use fathom_transport::{
    datagrams::{self, DatagramHeader, HeaderCodec, OffloadMode, Receiver, SendBuffers, Sender},
    traffic::{DatagramSizes, FlowIndex, Schedule, TrafficPattern},
};

/// The most memory for the datagrams of one system call.
const BATCH_BYTES: usize = 512 << 10;
/// The most datagrams per system call. More do not reduce the cost per datagram.
const BATCH_MAX: usize = 32;

/// The header of iperf3's datagrams: seconds, microseconds, and a number that starts at 1 and has 32 or 64 bits.
#[derive(Debug, Clone, Copy)]
struct Iperf3Codec {
    is_wide: bool,
    /// The latest number. A 32-bit number is extended to the value nearest to it.
    newest: u64,
}

impl HeaderCodec for Iperf3Codec {
    fn write(&self, header: DatagramHeader, datagram: &mut [u8]) {
        let (secs, nanos) = (header.sent.0 / 1_000_000_000, header.sent.0 % 1_000_000_000);
        let word = |number: u64| u32::try_from(number & 0xffff_ffff).expect("32 bits").to_be_bytes();
        datagram[..4].copy_from_slice(&word(secs));
        datagram[4..8].copy_from_slice(&word(nanos / 1000));
        let number = header.number + 1;
        if self.is_wide {
            datagram[8..16].copy_from_slice(&number.to_be_bytes());
        } else {
            datagram[8..12].copy_from_slice(&word(number));
        }
    }

    fn read(&mut self, datagram: &[u8]) -> Option<DatagramHeader> {
        let word = |at: usize| Some(u32::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let sent = Nanos::from_secs(word(0)?.into()) + Nanos::from_micros(word(4)?.into());
        let number = if self.is_wide {
            u64::from_be_bytes(*datagram.get(8..)?.first_chunk()?)
        } else {
            near(self.newest, word(8)?)?
        };
        self.newest = self.newest.max(number);
        let number = number.checked_sub(1)?;
        Some(DatagramHeader { number, sent, phase: datagrams::StreamPhase::Measured })
    }
}

/// Returns the number nearest to `newest` with the lower half `low`; `None` if it would be negative.
fn near(newest: u64, low: u32) -> Option<u64> {
    let lower = u32::try_from(newest & 0xffff_ffff).expect("32 bits");
    let ahead = low.wrapping_sub(lower).cast_signed();
    newest.checked_add_signed(ahead.into())
}

fn codec(parameters: &Parameters) -> Iperf3Codec {
    Iperf3Codec { is_wide: parameters.flags.has(ParameterFlag::Counters64), newest: 0 }
}

fn batch(size: usize) -> usize {
    (BATCH_BYTES / size).clamp(1, BATCH_MAX)
}

fn joined(parameters: &Parameters, wish: ParameterFlag) -> OffloadMode {
    if parameters.flags.has(wish) { OffloadMode::Preferred } else { OffloadMode::Never }
}

/// Sends until it is over or the budget of datagrams is spent.
pub(super) fn send(
    open: &OpenStream,
    parameters: &Parameters,
    budget: Option<u64>,
    context: &impl StreamContext,
) -> fathom_sys::Result<()> {
    let size = length(parameters.block);
    let n_messages = usize::try_from(budget.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).min(batch(size));
    let joined = joined(parameters, ParameterFlag::SegmentOffload);
    let mut load = SendBuffers::new(DatagramSizes::fixed(size), n_messages.max(1), joined, clock::now().0);
    if parameters.flags.has(ParameterFlag::RepeatingPayload) {
        load.fill(repeat_digits);
    }
    let traffic = TrafficPattern::Bursts((parameters.burst > 1).then_some(parameters.burst.into()));
    let per_sec = rate_of(parameters).and_then(|rate| rate.per_unit(parameters.block));
    let share = FlowIndex { idx: 0, of: 1 };
    let schedule = per_sec.and_then(|rate| Schedule::new(traffic, rate, 0, share));
    let mut sender = Sender::new(&open.socket, codec(parameters), load, schedule);
    while !context.is_over() && budget.is_none_or(|blocks| sender.number() < blocks) {
        match sender.step(context.start(), datagrams::StreamPhase::Measured) {
            Ok(step) => {
                context.add(Counter::Bytes, step.bytes);
                context.add(Counter::Packets, step.datagrams);
            }
            // The receiver closes its socket after the end. The control connection tells whether that was right.
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives until it is over.
pub(super) fn receive(
    socket: &Socket,
    parameters: &Parameters,
    context: &impl StreamContext,
) -> fathom_sys::Result<()> {
    let size = length(parameters.block);
    socket::set_report_time(socket)?;
    let joined = joined(parameters, ParameterFlag::ReceiveOffload);
    let room = datagrams::receive_buffers(socket, BatchShape { count: batch(size), size }, joined)?;
    let mut receiver = Receiver::new(socket, codec(parameters), room, None);
    let mut told = [0_u64; 4];
    let mut received = 0_u64;
    while !context.is_over() {
        let arrived = match receiver.step(Wait::Block, datagrams::StreamPhase::Measured) {
            Ok(Some(arrived)) => arrived,
            Ok(None) => continue,
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        context.add(Counter::Bytes, arrived.bytes);
        received += arrived.counts.received;
        let next = receiver.next();
        let jitter = receiver.jitter().map_or(0, |jitter| jitter.0);
        let now = [next, next.saturating_sub(received), told[2] + arrived.counts.reordered, jitter];
        let counters = [Counter::Packets, Counter::Lost, Counter::OutOfOrder, Counter::JitterNs];
        for ((counter, now), told) in counters.into_iter().zip(now).zip(&mut told) {
            context.add(counter, now.wrapping_sub(*told));
            *told = now;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for is_wide in [false, true] {
            let mut codec = Iperf3Codec { is_wide, newest: 0 };
            let mut datagram = [0xee; 18];
            let header =
                DatagramHeader { number: 6, sent: Nanos(5_000_123_000), phase: datagrams::StreamPhase::Measured };
            codec.write(header, &mut datagram);
            assert_eq!(datagram[..8], [0, 0, 0, 5, 0, 0, 0, 123]);
            let number: &[u8] = if is_wide { &[0, 0, 0, 0, 0, 0, 0, 7] } else { &[0, 0, 0, 7, 0xee] };
            assert_eq!(&datagram[8..8 + number.len()], number, "numbers begin at 1");
            assert_eq!(codec.read(&datagram), Some(header));
            assert_eq!(codec.read(&datagram[..if is_wide { 15 } else { 11 }]), None);
        }
    }

    #[test]
    fn numbers_of_32_bits_go_on_behind_the_last_one() {
        let around = [(0, 0), (1, 1), (5, 3), (0xffff_ffff, 0xffff_ffff), (0x1_0000_0000, 0), (0x1_0000_0001, 1)];
        for (newest, low) in around {
            let full = near(newest, low).unwrap();
            assert_eq!(u32::try_from(full & 0xffff_ffff).unwrap(), low);
            assert!(full.abs_diff(newest) <= 1 << 31);
        }
        assert_eq!(near(0xffff_fffe, 2), Some(0x1_0000_0002), "after the wrap");
        assert_eq!(near(0x1_0000_0002, 0xffff_fffe), Some(0xffff_fffe), "one that was overtaken before the wrap");
        assert_eq!(near(3, 0xffff_ffff), None);
        let mut codec = Iperf3Codec { is_wide: false, newest: 0 };
        assert_eq!(codec.read(&[0; 12]), None, "there is no number 0");
    }
}
