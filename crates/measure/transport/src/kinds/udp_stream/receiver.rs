//! The receiving side.

use std::net::SocketAddr;

use fathom_engine::{Error, Phase, Stop, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{
    Endpoints, FailureCounts, Histogram, PeerClock, Record, Side,
    names::{
        count,
        distribution::{LOSS_BURST, LOSS_SPACING, ONE_WAY_DELAY, QUEUED_BEFORE_LOSS},
    },
    units::Nanos,
};
use fathom_sys::{
    clock,
    socket::{
        self, Socket, Wait,
        datagram::{self, ReceiveBatch},
        timestamping::KernelClockOffset,
    },
};

use super::{
    END_MARK_GAP, FOREIGN, IPDV, LATE, MESSAGES_RECEIVED, ONE_WAY_DELAY_ERROR, REORDERING_EXTENT, UdpStreamConfig,
};
use crate::{
    connection_setup::BLOCKING_TIMEOUT,
    datagrams::{
        ControlMessage, FathomCodec, FlowToken, HEADER_LEN, MESSAGE_LEN, OffloadMode, ReceiveStep, Receiver,
        ReceiverSummary, StreamPhase, receive_buffers,
    },
    options::SocketOptions,
};

/// The counters of a worker. The first, the counter of the first metric, is shown live; [`Flow::count`] uses this order.
const COUNTERS: &[&str] = &[count::BYTES_RECEIVED, count::RECEIVED, count::DUPLICATES, count::REORDERED, LATE, FOREIGN];
/// How long after the end a flow may continue to arrive.
const DRAIN_MAX: Nanos = Nanos::from_millis(500);
/// How long an almost idle receiver sleeps: at a million datagrams per second this is 50, for which any buffer has room.
///
/// A thread that waits in the socket is woken for each datagram, by the processor that delivers it: on one machine that is the sender's.
const NAP: Nanos = Nanos::from_micros(50);
/// At most this many datagrams in a step count as almost idle.
const IDLE_BATCH: u64 = 8;
/// The quantile of the one-way delay that is a metric.
const DELAY_QUANTILE: f64 = 0.99;
/// How long a receiver waits before it repeats its hello; doubled each time, up to `BLOCKING_TIMEOUT`.
const HELLO_INTERVAL: Nanos = Nanos::from_millis(10);

/// The receiving side, ready to start.
pub(super) struct UdpStreamReceiver {
    config: UdpStreamConfig,
    flows: Vec<(Socket, ReceiveBatch)>,
}

impl UdpStreamReceiver {
    pub(super) fn prepare(mut stream: UdpStreamConfig) -> Result<Self, Error> {
        let sockets = stream.open_all()?;
        let shape = &stream.shape;
        let room_for = datagram::BatchShape { count: shape.n_messages, size: shape.sizes.longest().max(HEADER_LEN) };
        let prepare = |socket: Socket| {
            if shape.per_flow.is_some() {
                let cannot = |cause| Error::System { what: "ask for receive times".to_owned(), cause };
                socket::set_report_time(&socket).map_err(cannot)?;
            }
            let cannot = |cause| Error::System { what: "receive super-buffers (offload)".to_owned(), cause };
            let batch = receive_buffers(&socket, room_for, shape.offload.1).map_err(cannot)?;
            Ok((socket, batch))
        };
        let flows = sockets.into_iter().map(prepare).collect::<Result<_, Error>>()?;
        Ok(Self { config: stream, flows })
    }
}

impl Test for UdpStreamReceiver {
    fn endpoints(&self) -> Endpoints {
        self.config.endpoints(self.flows.iter().map(|(socket, _)| socket))
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let mut stream = self.config;
        let role = &stream.role;
        let codec = if stream.shape.is_unnumbered() { FathomCodec::unnumbered } else { FathomCodec::numbered };
        let is_joined = stream.shape.offload.1 != OffloadMode::Never;
        let begin = KernelClockOffset::now();
        let pool = WorkerPool { states: self.flows, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let results = pool.run(context, &mut (), |worker, (socket, batch)| {
            let token = stream.token(worker.idx);
            let receiver = Receiver::new(&socket, codec(token), batch, context.peer_clock);
            let receiver = if is_joined { receiver.with_offload() } else { receiver };
            let causes = FailureCounts::default();
            let options = &stream.options;
            let flow = Flow {
                worker,
                context,
                side: role.side,
                token,
                socket: &socket,
                options,
                naps: !is_joined,
                errors: causes,
            };
            Ok(flow.receive(receiver))
        })?;
        let mut record = results.record(role.side);
        let mut sum = FlowTotals::default();
        for (receipts, causes) in results.workers {
            record.errors.extend(causes);
            if let Some(receipts) = receipts {
                sum.add(&receipts);
            }
        }
        // A datagram that waited while the wall clock was set has no delay, or a wrong one.
        let peer = context.peer_clock.filter(|_| begin.is_unchanged(KernelClockOffset::now()));
        sum.write(&mut stream, &mut record, peer);
        record.notes.append(&mut stream.notes);
        Ok(record)
    }
}

/// The totals of all flows.
#[derive(Default)]
struct FlowTotals {
    dropped: u64,
    /// Flows of which nothing arrived, and all.
    flows: (u64, u64),
    n_messages: u64,
    jitter: Option<Nanos>,
    bursts: Histogram,
    spacings: Histogram,
    extents: Histogram,
    ipdv: Histogram,
    delay: Histogram,
    before_gaps: Histogram,
}

impl FlowTotals {
    fn add(&mut self, receipts: &ReceiverSummary) {
        self.dropped += receipts.dropped;
        self.flows.0 += u64::from(receipts.sequence.counts.received == 0);
        self.flows.1 += 1;
        self.n_messages += receipts.n_messages;
        self.jitter = self.jitter.max(receipts.jitter);
        self.bursts.merge(&receipts.sequence.bursts);
        self.spacings.merge(&receipts.sequence.spacings);
        self.extents.merge(&receipts.sequence.extents);
        self.ipdv.merge(&receipts.ipdv);
        self.delay.merge(&receipts.delay);
        self.before_gaps.merge(&receipts.before_gaps);
    }

    fn write(self, stream: &mut UdpStreamConfig, record: &mut Record, peer: Option<PeerClock>) {
        record.totals.insert(count::SOCKET_DROPPED.to_owned(), self.dropped);
        if stream.shape.is_unnumbered() {
            // Unknown values are removed, not reported as zero.
            for name in [count::DUPLICATES, count::REORDERED, LATE] {
                record.totals.remove(name);
                record.timeline.counters.remove(name);
            }
            return;
        }
        let (n_silent, n_flows) = self.flows;
        if (1..n_flows).contains(&n_silent) {
            record.totals.insert(count::FLOWS_SILENT.to_owned(), n_silent);
        }
        record.distributions.insert(LOSS_BURST.to_owned(), self.bursts);
        record.distributions.insert(LOSS_SPACING.to_owned(), self.spacings);
        record.distributions.insert(REORDERING_EXTENT.to_owned(), self.extents);
        if stream.shape.offload.1 != OffloadMode::Never {
            record.totals.insert(MESSAGES_RECEIVED.to_owned(), self.n_messages);
            if self.n_messages < record.totals.get(count::RECEIVED).copied().unwrap_or(0) {
                let text = "the kernel delivered many datagrams as one super-buffer (UDP_GRO): datagrams are counted at the \
                            socket, and a super-buffer goes through the stack once";
                stream.note("udp-gro", text);
            }
        }
        if stream.shape.per_flow.is_none() {
            // Without a schedule there is no spacing to keep.
            return;
        }
        if let Some(jitter) = self.jitter {
            record.totals.insert(count::JITTER_NS.to_owned(), jitter.0);
        }
        record.distributions.insert(IPDV.to_owned(), self.ipdv);
        // A clock that was set meanwhile would look like a queue.
        if peer.is_some() {
            record.distributions.insert(QUEUED_BEFORE_LOSS.to_owned(), self.before_gaps);
        }
        match delay_error(&self.delay, peer) {
            Ok(error) => {
                record.totals.insert(ONE_WAY_DELAY_ERROR.to_owned(), error.0);
                record.distributions.insert(ONE_WAY_DELAY.to_owned(), self.delay);
            }
            Err(why) => stream.note("one-way-delay-withheld", format!("one-way delays are withheld: {why}")),
        }
    }
}

/// The possible error of one-way delays, or the reason why they are meaningless.
fn delay_error(delay: &Histogram, peer: Option<PeerClock>) -> Result<Nanos, String> {
    let peer = peer.ok_or("the clock of the other end is not known, or that of this end was set during the trial")?;
    let error = peer.error_until(clock::now());
    let longest = delay.quantile(DELAY_QUANTILE).map(Nanos);
    match longest.filter(|delay| *delay < error) {
        Some(delay) => Err(format!(
            "the clocks of the two hosts are known to ± {error}, and one in a hundred took {delay} or more"
        )),
        None => Ok(error),
    }
}

/// One flow on its thread.
struct Flow<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    side: Side,
    token: FlowToken,
    socket: &'a Socket,
    options: &'a SocketOptions,
    /// A buffer holds only few super-buffers, so their receiver does not sleep.
    naps: bool,
    errors: FailureCounts,
}

impl Flow<'_> {
    /// Receives until nothing more arrives after the end.
    fn receive(mut self, mut receiver: Receiver<'_, FathomCodec>) -> (Option<ReceiverSummary>, FailureCounts) {
        let (mut has_found, mut has_ended, mut over_since) = (false, false, None);
        loop {
            let part = if self.worker.phase() == Phase::WarmUp { StreamPhase::WarmUp } else { StreamPhase::Measured };
            match self.send_hello(&receiver).and_then(|()| receiver.step(Wait::Block, part)) {
                Ok(Some(arrived)) => {
                    // If a datagram of another sender is among them, it is unknown whose address is reported.
                    if !has_found && arrived.counts.received > 0 && arrived.n_foreign == 0 {
                        has_found = true;
                        self.connect_to_sender(&receiver);
                    }
                    self.count(arrived);
                    if arrived.is_end {
                        has_ended = true;
                        self.acknowledge(&receiver);
                    } else if self.naps && arrived.counts.received < IDLE_BATCH {
                        clock::sleep_until(clock::now() + NAP);
                    }
                }
                // A sender that has left cannot receive the acknowledgement of its mark any more.
                Ok(None) | Err(_) if has_ended => break,
                Ok(None) => {
                    if self.worker.is_over() && self.side == Side::Responder {
                        break;
                    }
                }
                Err(error) => {
                    self.errors.count(&error);
                    break;
                }
            }
            if self.worker.is_over() && self.is_drained(has_ended, &mut over_since) {
                break;
            }
        }
        if self.side == Side::Initiator && !has_ended && self.context.stop.state() != Stop::Abort {
            self.errors.count("no mark of the end came");
        }
        let receipts = receiver.finish().map_err(|error| self.errors.count(&error)).ok();
        (receipts, self.errors)
    }

    /// Sends hellos and answers challenges, as an initiator, until the stream arrives.
    ///
    /// Only challenges are read from the socket; everything else is counted with the stream.
    fn send_hello(&self, receiver: &Receiver<'_, FathomCodec>) -> fathom_sys::Result<()> {
        let mut wait = HELLO_INTERVAL;
        while self.side == Side::Initiator && receiver.next() == 0 && !self.worker.is_over() {
            self.send_message(ControlMessage::Hello);
            self.wait_at_most(wait);
            wait = (wait * 2).min(BLOCKING_TIMEOUT);
            let mut room = [0; MESSAGE_LEN + 1];
            while let Some(n) = socket::peek(self.socket, &mut room, Wait::Block)? {
                let Some(ControlMessage::Challenge(number)) = self.token.read_message(&room[..n]) else {
                    return Ok(());
                };
                if self.worker.is_over() {
                    break;
                }
                socket::recv(self.socket, &mut room, Wait::Never)?;
                self.send_message(ControlMessage::ChallengeResponse(number));
            }
        }
        Ok(())
    }

    /// Uses the first datagram: it shows the sender's address, and that the sender knows this address.
    fn connect_to_sender(&self, receiver: &Receiver<'_, FathomCodec>) {
        match (self.side, receiver.source()) {
            (Side::Initiator, _) => self.wait_at_most(BLOCKING_TIMEOUT),
            // The kernel delivers to a connected socket without a route lookup each time; the results are the same without it.
            (Side::Responder, Some(sender)) => self.connect_to(sender),
            (Side::Responder, None) => {}
        }
    }

    /// Connects the socket to that sender; if this fails, the sender repeats its end mark.
    fn connect_to(&self, sender: SocketAddr) {
        let _ = self.options.destination(sender).and_then(|sender| socket::associate(self.socket, &sender));
    }

    /// Whether to stop waiting after the end of the phases; asks a remote sender to stop.
    fn is_drained(&self, has_ended: bool, since: &mut Option<(Nanos, Nanos)>) -> bool {
        let now = clock::now();
        let (begin, said) = since.get_or_insert((now, Nanos::ZERO));
        if self.context.stop.state() == Stop::Abort || now - *begin > DRAIN_MAX {
            return true;
        }
        if self.side == Side::Initiator && !has_ended && now - *said > END_MARK_GAP {
            *said = now;
            self.send_message(ControlMessage::Stop);
        }
        false
    }

    /// Tells the sender that a mark was received, and shortens the waits from now on.
    fn acknowledge(&self, receiver: &Receiver<'_, FathomCodec>) {
        if self.side == Side::Initiator {
            self.send_message(ControlMessage::EndAck);
        } else if let Some(sender) = receiver.source() {
            self.connect_to(sender);
            self.send_message(ControlMessage::EndAck);
        }
        self.wait_at_most(END_MARK_GAP * 4);
    }

    /// Sends a message to the sender. If it is lost, the side that misses its effect repeats it.
    fn send_message(&self, message: ControlMessage) {
        let _ = self.socket.send(&self.token.message(message));
    }

    /// Limits a wait; if this fails, the wait is a little longer.
    fn wait_at_most(&self, span: Nanos) {
        let _ = socket::set_timeout(self.socket, span);
    }

    /// Adds to [`COUNTERS`], in their order.
    fn count(&self, arrived: ReceiveStep) {
        let counts = arrived.counts;
        self.worker.add(0, arrived.bytes);
        self.worker.add(1, counts.received);
        let rare = [counts.duplicates, counts.reordered, counts.late, arrived.n_foreign];
        if rare != [0; 4] {
            (2..).zip(rare).for_each(|(counter, n)| self.worker.add(counter, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::Derivation;

    use super::*;
    use crate::kinds::udp_stream::metrics;

    #[test]
    fn what_is_shown_live_is_what_the_first_metric_counts() {
        let first = &metrics(Side::Initiator, Side::Responder)[0];
        assert!(matches!(&first.from, Derivation::Rate { counter, .. } if counter == COUNTERS[0]), "{first:?}");
    }
}
