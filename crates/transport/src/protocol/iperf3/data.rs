//! The data of a test: blocks over TCP, numbered datagrams over UDP, sent and received by the loops that our own tests use.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use fathom_engine::{Slot, Stop, StopFlag};
use fathom_model::units::{BitsPerSec, Bytes, Nanos, approximate};
use fathom_sys::{
    clock,
    datagram::Shape,
    socket::{self, Socket, Wait},
    transmit::MemoryFile,
};

use super::{Carrier, Parameters, Wish, account::Part, course::Open};
use crate::{
    datagrams::{self, Codec, Delays, Header, Joined, Load, Receiver, Sender},
    payload::Payload,
    stream::{Account, Inlet, Pace, Receiving, Sending, Source},
    traffic::{Schedule, Share, Sizes, Traffic},
};

/// What is counted of a stream, by its place in the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Counter {
    Bytes,
    Packets,
    Lost,
    OutOfOrder,
    JitterNs,
}

/// Where a stream counts, and what tells it to end.
pub(crate) struct Counting<'a> {
    pub(crate) slot: &'a Slot,
    pub(crate) over: &'a AtomicBool,
    pub(crate) start: Nanos,
}

/// What a stream needs of whoever conducts it.
pub(crate) trait Conducted {
    /// Adds to a counter; a counter that falls is added the wrapped difference.
    fn add(&self, counter: Counter, amount: u64);

    /// Whether to come to an end.
    fn is_over(&self) -> bool;

    /// When the test began.
    fn start(&self) -> Nanos;
}

impl Conducted for Counting<'_> {
    fn add(&self, counter: Counter, amount: u64) {
        self.slot.add(counter as usize, amount);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn start(&self) -> Nanos {
        self.start
    }
}

/// A stream of bytes counts nothing but bytes.
struct Ledger<'a, C>(&'a C);

impl<C: Conducted> Account for Ledger<'_, C> {
    fn count(&self, bytes: u64) {
        self.0.add(Counter::Bytes, bytes);
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// The datagrams of one system call take at most so much memory.
const BATCH_BYTES: usize = 512 << 10;
/// The most datagrams of one system call; beyond it a call is no cheaper per datagram.
const BATCH_MAX: usize = 32;

/// Streams until it is over or the budget of blocks is spent.
///
/// # Errors
/// The call that failed: the peer reset the connection or has gone.
pub(crate) fn run(
    open: &Open,
    (parameters, budget): (&Parameters, Option<u64>),
    conducted: &impl Conducted,
) -> fathom_sys::Result<()> {
    match (parameters.carrier, open.stream.part) {
        (Carrier::Tcp, Part::Sender) => send_stream(&open.socket, (parameters, budget), conducted),
        (Carrier::Tcp, Part::Receiver) => receive_stream(&open.socket, parameters, conducted),
        (Carrier::Udp, Part::Sender) => send_datagrams(open, (parameters, budget), conducted),
        (Carrier::Udp, Part::Receiver) => receive_datagrams(&open.socket, parameters, conducted),
    }
}

fn length(block: Bytes) -> usize {
    usize::try_from(block.0).expect("a block is at most 1 MiB")
}

/// What is sent: pseudo-random bytes, or the digits again and again.
fn payload(parameters: &Parameters) -> Payload {
    let mut payload = Payload::random(length(parameters.block), clock::now().0);
    if parameters.wishes.has(Wish::RepeatingPayload) {
        repeat_digits(payload.bytes_mut());
    }
    payload
}

fn repeat_digits(bytes: &mut [u8]) {
    bytes.iter_mut().zip((b'0'..=b'9').cycle()).for_each(|(byte, digit)| *byte = digit);
}

fn rate_of(parameters: &Parameters) -> Option<BitsPerSec> {
    BitsPerSec::new(approximate(parameters.bitrate)).filter(|rate| rate.get() > 0.0)
}

fn send_stream(
    socket: &Socket,
    (parameters, budget): (&Parameters, Option<u64>),
    conducted: &impl Conducted,
) -> fathom_sys::Result<()> {
    let payload = payload(parameters);
    let source = if parameters.wishes.has(Wish::ZeroCopy) {
        Source::File(MemoryFile::of(payload.bytes())?)
    } else {
        Source::Buffer(payload)
    };
    let mut sending = Sending::new(socket, &source)?;
    let ledger = Ledger(conducted);
    let budget = budget.map(|blocks| blocks.saturating_mul(parameters.block.0));
    match (rate_of(parameters), parameters.burst) {
        (Some(rate), 2..) => send_bursts(&mut sending, (parameters, rate, budget), &ledger),
        (rate, _) => {
            sending.pace = rate.and_then(|rate| Pace::new(rate, conducted.start()));
            sending.budget = budget;
            sending.run(&ledger)
        }
    }
}

/// Sends so many blocks at once, and the next burst when its first byte is due.
fn send_bursts<C: Conducted>(
    sending: &mut Sending<'_>,
    (parameters, rate, budget): (&Parameters, BitsPerSec, Option<u64>),
    ledger: &Ledger<'_, C>,
) -> fathom_sys::Result<()> {
    /// How soon the end is noticed between two bursts.
    const LOOK: Nanos = Nanos::from_millis(20);
    let burst = parameters.block.0 * u64::from(parameters.burst);
    let mut left = budget.unwrap_or(u64::MAX);
    let mut sent = 0_u64;
    while left > 0 && !ledger.is_over() {
        let due = ledger.0.start() + Nanos::from_secs_f64(approximate(sent) * 8.0 / rate.get());
        let now = clock::now();
        if due > now {
            clock::sleep_until(due.min(now + LOOK));
            continue;
        }
        let volume = burst.min(left);
        sending.budget = Some(volume);
        sending.run(ledger)?;
        sent = sent.saturating_add(volume);
        left -= volume;
    }
    Ok(())
}

fn receive_stream(socket: &Socket, parameters: &Parameters, conducted: &impl Conducted) -> fathom_sys::Result<()> {
    let inlet = if parameters.wishes.has(Wish::SkipReceiveCopy) {
        Inlet::Truncate(parameters.block)
    } else {
        Inlet::Copy(Payload::random(length(parameters.block), 0))
    };
    Receiving::new(socket, inlet).run(&Ledger(conducted)).map(drop)
}

/// The header of iperf3's datagrams: seconds, microseconds and a number, which begins at 1 and has 32 or 64 bits.
#[derive(Debug, Clone, Copy)]
struct Numbered {
    is_wide: bool,
    /// The newest number, to which a number of 32 bits is near.
    newest: u64,
}

impl Codec for Numbered {
    fn write(&self, header: Header, datagram: &mut [u8]) {
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

    fn read(&mut self, datagram: &[u8]) -> Option<Header> {
        let word = |at: usize| Some(u32::from_be_bytes(*datagram.get(at..)?.first_chunk()?));
        let sent = Nanos::from_secs(word(0)?.into()) + Nanos::from_micros(word(4)?.into());
        let number = if self.is_wide {
            u64::from_be_bytes(*datagram.get(8..)?.first_chunk()?)
        } else {
            near(self.newest, word(8)?)?
        };
        self.newest = self.newest.max(number);
        let number = number.checked_sub(1)?;
        Some(Header { number, sent, part: datagrams::Part::Measured })
    }
}

/// The number nearest to `newest` whose lower half is `low`; nothing when that would be negative.
fn near(newest: u64, low: u32) -> Option<u64> {
    let lower = u32::try_from(newest & 0xffff_ffff).expect("32 bits");
    let ahead = low.wrapping_sub(lower).cast_signed();
    newest.checked_add_signed(ahead.into())
}

fn codec(parameters: &Parameters) -> Numbered {
    Numbered { is_wide: parameters.wishes.has(Wish::Counters64), newest: 0 }
}

fn batch(size: usize) -> usize {
    (BATCH_BYTES / size).clamp(1, BATCH_MAX)
}

fn send_datagrams(
    open: &Open,
    (parameters, budget): (&Parameters, Option<u64>),
    conducted: &impl Conducted,
) -> fathom_sys::Result<()> {
    let size = length(parameters.block);
    let n_messages = usize::try_from(budget.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).min(batch(size));
    let mut load = Load::new(Sizes::fixed(size), (n_messages.max(1), Joined::Never), clock::now().0);
    if parameters.wishes.has(Wish::RepeatingPayload) {
        load.fill(repeat_digits);
    }
    let traffic = Traffic::Bursts((parameters.burst > 1).then_some(parameters.burst.into()));
    let per_sec = rate_of(parameters).and_then(|rate| rate.per_unit(parameters.block));
    let share = Share { idx: 0, of: 1 };
    let schedule = per_sec.and_then(|rate| Schedule::new(traffic, rate, (0, share)));
    let mut sender = Sender::new((&open.socket, codec(parameters)), load, schedule);
    while !conducted.is_over() && budget.is_none_or(|blocks| sender.number() < blocks) {
        match sender.step(conducted.start(), datagrams::Part::Measured) {
            Ok(step) => {
                conducted.add(Counter::Bytes, step.bytes);
                conducted.add(Counter::Packets, step.datagrams);
            }
            // The receiver closes its socket when it has heard of the end; whether it should have is told by the control connection.
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive_datagrams(socket: &Socket, parameters: &Parameters, conducted: &impl Conducted) -> fathom_sys::Result<()> {
    let size = length(parameters.block);
    socket::set_report_time(socket)?;
    let room = datagrams::room(socket, Shape { count: batch(size), size }, Joined::Never)?;
    let mut receiver = Receiver::new((socket, codec(parameters)), room, Delays::Apart);
    let mut told = [0_u64; 4];
    let mut received = 0_u64;
    while !conducted.is_over() {
        let arrived = match receiver.step(Wait::Block, datagrams::Part::Measured) {
            Ok(Some(arrived)) => arrived,
            Ok(None) => continue,
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error),
        };
        conducted.add(Counter::Bytes, arrived.bytes);
        received += arrived.counts.received;
        let next = receiver.next();
        let jitter = receiver.jitter().map_or(0, |jitter| jitter.0);
        let now = [next, next.saturating_sub(received), told[2] + arrived.counts.reordered, jitter];
        let counters = [Counter::Packets, Counter::Lost, Counter::OutOfOrder, Counter::JitterNs];
        for ((counter, now), told) in counters.into_iter().zip(now).zip(&mut told) {
            conducted.add(counter, now.wrapping_sub(*told));
            *told = now;
        }
    }
    Ok(())
}

/// What a client sends first over UDP, and what the server answers: since 3.12, and before.
pub(crate) const GREETING: [u8; 4] = *b"9876";
pub(crate) const ANSWER: [u8; 4] = *b"6789";
const OLD_GREETING: [u8; 4] = [0x15, 0xcd, 0x5b, 0x07];
const OLD_ANSWER: [u8; 4] = [0xb1, 0x68, 0xde, 0x3a];

/// The answer to a greeting, which an old client gets in its own form.
pub(crate) fn answer_to(greeting: [u8; 4]) -> [u8; 4] {
    if greeting == OLD_GREETING { OLD_ANSWER } else { ANSWER }
}

/// How long a server may take to answer a greeting, which is not repeated: a second one would count as data.
const ANSWER_MAX: Nanos = Nanos::from_secs(10);

/// Greets a server over a connected UDP socket; data that comes before the answer is not counted.
pub(crate) fn greet(socket: &Socket, stop: &StopFlag) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket::set_timeout(socket, crate::link::PATIENCE).map_err(|error| error.source)?;
    socket.send(&GREETING)?;
    let deadline = clock::now() + ANSWER_MAX;
    // One byte more, so that what is longer than an answer is seen to be.
    let mut answer = [0; 5];
    while clock::now() < deadline && stop.told() != Stop::Abort {
        match socket::recv(socket, &mut answer, Wait::Block).map_err(|error| error.source)? {
            Some(4) if answer[..4] == ANSWER || answer[..4] == OLD_ANSWER => return Ok(()),
            _ => {}
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for is_wide in [false, true] {
            let mut codec = Numbered { is_wide, newest: 0 };
            let mut datagram = [0xee; 18];
            let header = Header { number: 6, sent: Nanos(5_000_123_000), part: datagrams::Part::Measured };
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
        let mut codec = Numbered { is_wide: false, newest: 0 };
        assert_eq!(codec.read(&[0; 12]), None, "there is no number 0");
    }

    #[test]
    fn an_old_client_is_answered_in_its_own_words() {
        assert_eq!(answer_to(GREETING), *b"6789");
        assert_eq!(answer_to(OLD_GREETING), OLD_ANSWER);
        assert_eq!(answer_to(*b"any "), ANSWER);
    }
}
