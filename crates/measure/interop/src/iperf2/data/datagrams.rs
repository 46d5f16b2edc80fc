//! Numbered datagrams: sent from one socket, and accounted for wherever they were received.

use std::io;

use fathom_model::units::{Bytes, Nanos};
use fathom_sys::{clock, socket::Socket};
use fathom_transport::{
    datagrams::{DatagramHeader, FlowAccount, HeaderCodec, OffloadMode, SendBuffers, Sender, StreamPhase},
    traffic::{DatagramSizes, FlowIndex, Schedule, TrafficPattern},
};

use super::{FlowContext, FlowCounter, FlowPlan};
use crate::{
    iperf2::{DATAGRAM_LEN, DatagramNumber, put_sent_time, sent_time},
    refusals::Refusals,
};

/// The most memory for the datagrams of one system call.
const BATCH_BYTES: usize = 512 << 10;
/// The most datagrams per system call. More do not reduce the cost per datagram.
const BATCH_MAX: usize = 32;

/// Writes the number and the time at the beginning of each datagram.
#[derive(Debug, Clone, Copy)]
struct Iperf2Codec {
    /// The wall clock minus the monotonic one.
    wall_offset: Nanos,
}

impl HeaderCodec for Iperf2Codec {
    fn write(&self, header: DatagramHeader, datagram: &mut [u8]) {
        let is_end = header.phase == StreamPhase::End;
        DatagramNumber { number: header.number + 1, is_end }.write(datagram);
        put_sent_time(datagram, header.sent + self.wall_offset);
    }

    fn read(&mut self, datagram: &[u8]) -> Option<DatagramHeader> {
        let DatagramNumber { number, is_end } = DatagramNumber::read(datagram, true)?;
        let phase = if is_end { StreamPhase::End } else { StreamPhase::Measured };
        Some(DatagramHeader { number: number.checked_sub(1)?, sent: sent_time(datagram)?, phase })
    }
}

/// The result of sending a flow, from which its end marks are made.
#[derive(Debug, Clone)]
pub(crate) struct SentDatagrams {
    /// How many datagrams were sent.
    pub(crate) n: u64,
    /// A datagram with the header, for end marks.
    pub(crate) template: Vec<u8>,
}

/// Returns a datagram of a flow with the header of the client.
pub(crate) fn template(plan: &FlowPlan) -> Vec<u8> {
    let mut datagram = vec![0; plan.length.max(DATAGRAM_LEN)];
    plan.header.iter().for_each(|header| header.write_datagram(&mut datagram));
    datagram
}

pub(super) fn send(socket: &Socket, plan: &FlowPlan, context: &impl FlowContext) -> fathom_sys::Result<SentDatagrams> {
    let template = template(plan);
    let size = template.len();
    let budget = plan.budget.map(|bytes| bytes.div_ceil(size as u64));
    let n_messages = (BATCH_BYTES / size).clamp(1, BATCH_MAX);
    let n_messages = usize::try_from(budget.unwrap_or(u64::MAX)).unwrap_or(usize::MAX).clamp(1, n_messages);
    let mut load = SendBuffers::new(DatagramSizes::fixed(size), n_messages, OffloadMode::Never, clock::now().0);
    if let Some(header) = plan.header {
        load.fill(|datagram| header.write_datagram(datagram));
    }
    let per_sec = plan.rate().and_then(|rate| rate.per_unit(Bytes(size as u64)));
    let share = FlowIndex { idx: 0, of: 1 };
    let schedule = per_sec.and_then(|rate| Schedule::new(TrafficPattern::Constant, rate, 0, share));
    let codec = Iperf2Codec { wall_offset: clock::wall() - clock::now() };
    let mut sender = Sender::new(socket, codec, load, schedule);
    let mut refusals = Refusals::default();
    while !context.is_over() && budget.is_none_or(|budget| sender.number() < budget) {
        match sender.step(context.start(), StreamPhase::Measured) {
            Ok(step) => {
                context.add(FlowCounter::Bytes, step.bytes);
                context.add(FlowCounter::Calls, step.datagrams);
                context.add(FlowCounter::Datagrams, step.datagrams);
                context.add(FlowCounter::Errors, step.refused);
            }
            Err(error) if error.source.kind() == io::ErrorKind::ConnectionRefused => {
                if refusals.is_final(sender.number()) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(SentDatagrams { n: sender.number(), template })
}

/// The accounting of a flow of datagrams at its receiver.
pub(crate) struct Arrivals {
    account: FlowAccount,
    is_wide: bool,
    /// The number of the first datagram: 1, or 0 from clients before 2.0.10.
    first: Option<u64>,
    last_told: [u64; 4],
    /// The payload bytes of everything that came from the sender, end marks and duplicates too.
    pub(crate) n_bytes: u64,
    pub(crate) last_at: Nanos,
    pub(crate) is_over: bool,
    takes_times: bool,
}

impl Arrivals {
    pub(crate) fn new(is_wide: bool, takes_times: bool, now: Nanos) -> Self {
        Self {
            account: FlowAccount::default(),
            is_wide,
            first: None,
            last_told: [0; 4],
            n_bytes: 0,
            last_at: now,
            is_over: false,
            takes_times,
        }
    }

    /// Accounts for a datagram, received at a time on the wall clock.
    ///
    /// The end mark counts as a datagram, and everything behind it as nothing.
    pub(crate) fn take(&mut self, datagram: &[u8], received: Option<Nanos>, context: &impl FlowContext) {
        self.n_bytes += datagram.len() as u64;
        self.last_at = clock::now();
        let Some(number) = DatagramNumber::read(datagram, self.is_wide).filter(|_| !self.is_over) else { return };
        let first = *self.first.get_or_insert_with(|| number.number.min(1));
        let Some(place) = number.number.checked_sub(first) else { return };
        let sent = sent_time(datagram).filter(|_| !number.is_end);
        let times = sent.zip(received);
        let is_first_copy = self.account.arrived(place, times);
        self.is_over = number.is_end;
        context.add(FlowCounter::Bytes, datagram.len() as u64);
        context.add(FlowCounter::Calls, 1);
        if let (true, true, Some((sent, received))) = (is_first_copy, self.takes_times, times) {
            context.add_transit(received.since(sent));
        }
        let counts = self.account.counts();
        let jitter = self.account.jitter().map_or(0, |jitter| jitter.0);
        let now = [self.account.next(), counts.received, counts.reordered, jitter];
        let counters = [FlowCounter::Datagrams, FlowCounter::Received, FlowCounter::Reordered, FlowCounter::JitterNs];
        for ((counter, now), told) in counters.into_iter().zip(now).zip(&mut self.last_told) {
            context.add(counter, now.wrapping_sub(*told));
            *told = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Counted(RefCell<[u64; 16]>, RefCell<Vec<Nanos>>);

    impl FlowContext for Counted {
        fn add(&self, counter: FlowCounter, amount: u64) {
            let cell = &mut self.0.borrow_mut()[counter as usize];
            *cell = cell.wrapping_add(amount);
        }
        fn add_transit(&self, transit: Nanos) {
            self.1.borrow_mut().push(transit);
        }
        fn is_over(&self) -> bool {
            false
        }
        fn start(&self) -> Nanos {
            Nanos::ZERO
        }
    }

    fn datagram(number: u64, is_end: bool) -> Vec<u8> {
        let mut bytes = vec![0; 100];
        DatagramNumber { number, is_end }.write(&mut bytes);
        put_sent_time(&mut bytes, Nanos::from_secs(5));
        bytes
    }

    fn counts(numbers: &[(u64, bool)]) -> ([u64; 4], Arrivals) {
        let (counted, mut arrivals) = (Counted::default(), Arrivals::new(true, true, Nanos::ZERO));
        for (number, is_end) in numbers {
            let received = Nanos::from_secs(5) + Nanos::from_millis(3);
            arrivals.take(&datagram(*number, *is_end), Some(received), &counted);
        }
        assert!(counted.1.borrow().iter().all(|transit| *transit == Nanos::from_millis(3)));
        let read = |counter: FlowCounter| counted.0.borrow()[counter as usize];
        let counters = [FlowCounter::Datagrams, FlowCounter::Received, FlowCounter::Reordered, FlowCounter::Bytes];
        (counters.map(read), arrivals)
    }

    #[test]
    fn the_end_mark_counts_once_and_what_follows_it_not_at_all() {
        let (read, arrivals) = counts(&[(1, false), (2, false), (4, false), (5, true), (6, true), (3, false)]);
        assert_eq!(read, [5, 4, 0, 400]);
        assert!(arrivals.is_over);
        assert_eq!(arrivals.n_bytes, 600, "everything that came");
    }

    #[test]
    fn numbers_of_old_clients_begin_with_zero() {
        let (read, _) = counts(&[(0, false), (1, false), (2, true)]);
        assert_eq!(read, [3, 3, 0, 300]);
        let (read, _) = counts(&[(1, false), (3, false), (2, false), (2, false)]);
        assert_eq!(read, [3, 3, 1, 400]);
    }
}
