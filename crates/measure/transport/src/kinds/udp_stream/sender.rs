//! The sending side.

use fathom_engine::{Error, Phase, Stop, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, FailureCounts, Record, Side, names::count, units::Nanos};
use fathom_sys::{
    clock,
    socket::{self, Socket, Wait, datagram},
};

use super::{END_MARK_GAP, END_MARKS, UdpStreamConfig};
use crate::{
    datagrams::{
        Challenges, ControlMessage, FathomCodec, FlowToken, HEADER_LEN, MESSAGE_LEN, SendBuffers, SendStep, Sender,
        SenderSummary, StreamPhase,
    },
    options::{self, SocketOptions},
    traffic::{FlowIndex, Schedule},
};

/// The counters of a worker, in the order of `count_step`.
const COUNTERS: &[&str] = &[count::SENT, count::BYTES_SENT, count::SEND_REFUSED];
/// The interval at which a responder checks whether the receiver has had enough.
const LOOK_EVERY: Nanos = Nanos::from_millis(5);

/// The pause before the next try while nothing gets out.
const RETRY: Nanos = Nanos::from_millis(1);
/// So many refusals in a row are no accident of a rule that lets a part of all datagrams through.
const LASTING: u32 = 8;

/// The sending side, ready to start.
pub(super) struct UdpStreamSender {
    config: UdpStreamConfig,
    flows: Vec<(Socket, SendBuffers)>,
}

impl UdpStreamSender {
    pub(super) fn prepare(mut stream: UdpStreamConfig) -> Result<Self, Error> {
        let cannot = |cause| Error::System { what: "send super-buffers (offload)".to_owned(), cause };
        let sockets = stream.open_all()?;
        let shape = &stream.shape;
        let load = |socket: Socket| {
            let mut load = SendBuffers::new(shape.sizes.clone(), shape.n_messages, shape.offload.0, stream.role.seed);
            load.enable_offload(&socket).map_err(cannot)?;
            Ok((socket, load))
        };
        let flows = sockets.into_iter().map(load).collect::<Result<_, Error>>()?;
        Ok(Self { config: stream, flows })
    }
}

impl Test for UdpStreamSender {
    fn endpoints(&self) -> Endpoints {
        self.config.endpoints(self.flows.iter().map(|(socket, _)| socket))
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let mut stream = self.config;
        let role = &stream.role;
        let of = options::flows_and_workers(role).0;
        let pool = WorkerPool { states: self.flows, counters: COUNTERS, cores: &role.cores, until: role.side.into() };
        let results = pool.run(context, &mut (), |worker, (socket, load)| {
            let token = stream.token(worker.idx);
            let share = FlowIndex { idx: worker.idx, of };
            let schedule =
                stream.shape.per_flow.and_then(|rate| Schedule::new(stream.shape.traffic, rate, role.seed, share));
            let flow = Flow {
                worker,
                context,
                token,
                side: role.side,
                options: &stream.options,
                errors: FailureCounts::default(),
            };
            Ok(flow.send(&socket, load, schedule))
        })?;
        let mut record = results.record(role.side);
        let (mut intended, mut lag_max, mut given_up) = (None, Nanos::ZERO, Nanos::ZERO);
        let (mut segments, mut refusal) = (1, None);
        let mut late = Nanos::ZERO;
        for result in results.workers {
            record.errors.extend(result.errors);
            late = late.max(result.late);
            let Some(sendings) = result.summary else { continue };
            intended = sendings.intended.map(|n| n + intended.unwrap_or(0)).or(intended);
            lag_max = lag_max.max(sendings.lag_max);
            given_up = given_up.max(sendings.given_up);
            segments = segments.max(sendings.segments);
            refusal = refusal.or(sendings.refusal);
        }
        if let Some(intended) = intended {
            record.totals.insert(count::INTENDED.to_owned(), intended);
            record.totals.insert(count::SCHEDULE_LAG_NS_MAX.to_owned(), lag_max.0);
        }
        if late > Nanos::ZERO {
            record.totals.insert(count::LATE_START_NS_MAX.to_owned(), late.0);
        }
        if given_up > Nanos::ZERO {
            let text = format!(
                "the requested rate was not kept: the sender was delayed, and the payload of {given_up} was not sent"
            );
            stream.note("rate-not-kept", text);
        }
        note_offload(&mut stream, segments, refusal);
        record.notes.append(&mut stream.notes);
        Ok(record)
    }
}

/// Notes how the datagrams were handed to the kernel, unless each was a message of its own.
fn note_offload(stream: &mut UdpStreamConfig, segments: usize, refusal: Option<String>) {
    if segments > 1 {
        let text = format!(
            "sent in super-buffers of up to {segments} datagrams (UDP_SEGMENT): datagrams are counted at the socket, and a \
             super-buffer goes through the stack once"
        );
        stream.note("udp-gso", text);
    }
    if let Some(refusal) = refusal {
        stream.note(
            "udp-gso-refused",
            format!("super-buffers were refused ({refusal}), so each datagram was sent alone"),
        );
    }
    if stream.shape.is_unnumbered() {
        let text = format!(
            "datagrams of fewer than {HEADER_LEN} B carry no number: copies count as received, and order, gaps and times are unknown"
        );
        stream.note("udp-no-numbers", text);
    }
}

/// What a flow did.
struct SenderResult {
    /// `None` if no receiver appeared.
    summary: Option<SenderSummary>,
    /// The time from the start of the trial until the receiver was heard.
    late: Nanos,
    errors: FailureCounts,
}

/// One flow on its thread.
struct Flow<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    token: FlowToken,
    side: Side,
    options: &'a SocketOptions,
    errors: FailureCounts,
}

impl Flow<'_> {
    /// Sends until the end.
    fn send(mut self, socket: &Socket, load: SendBuffers, schedule: Option<Schedule>) -> SenderResult {
        if self.side == Side::Responder && !self.find_receiver(socket) {
            return SenderResult { summary: None, late: Nanos::ZERO, errors: self.errors };
        }
        let start = if self.side == Side::Responder { clock::now() } else { self.worker.start };
        let mut sender = Sender::new(socket, FathomCodec::numbered(self.token), load, schedule);
        let (mut looked, mut refusals) = (start, Refusals::default());
        while !self.worker.is_over() {
            let part = if self.worker.phase() == Phase::WarmUp { StreamPhase::WarmUp } else { StreamPhase::Measured };
            match sender.step(start, part) {
                Ok(step) => {
                    refusals.end();
                    self.count_step(step);
                }
                Err(error) => {
                    if datagram::is_segmentation_refused(&error) {
                        // The kind of such an error says less than its number.
                        self.errors.count(format!("{}: {}", error.call, error.source));
                    } else {
                        self.errors.count(&error);
                    }
                    // A firewall or a route may start to let datagrams through; other errors are permanent.
                    if !is_transient(&error) {
                        break;
                    }
                    if refusals.are_lasting() {
                        clock::sleep_until(clock::now() + RETRY);
                    }
                }
            }
            if self.side == Side::Responder && clock::now() - looked > LOOK_EVERY {
                looked = clock::now();
                if next_message(socket, self.token, Wait::Never) == Some(ControlMessage::Stop) {
                    break;
                }
            }
        }
        let elapsed = clock::now() - start;
        if self.context.stop.state() != Stop::Abort {
            self.mark_end(socket, &mut sender);
        }
        SenderResult { summary: Some(sender.finish(elapsed)), late: start - self.worker.start, errors: self.errors }
    }

    fn count_step(&self, step: SendStep) {
        self.worker.add(0, step.datagrams);
        self.worker.add(1, step.bytes);
        if step.refused > 0 {
            self.worker.add(2, step.refused);
        }
    }

    /// Waits until the receiver reports and proves its address, and connects to it.
    fn find_receiver(&mut self, socket: &Socket) -> bool {
        let challenges = Challenges::default();
        while !self.worker.is_over() {
            let mut room = [0; MESSAGE_LEN + 1];
            let found = socket::recv_from(socket, &mut room, Wait::Block).and_then(|came| {
                let Some((n, sender)) = came else { return Ok(false) };
                let Some(from) = sender.address() else { return Ok(false) };
                let number = challenges.of(from);
                match self.token.read_message(&room[..n]) {
                    Some(ControlMessage::Hello) => {
                        let challenge = self.token.message(ControlMessage::Challenge(number));
                        socket::send_to(socket, &challenge, &sender, Wait::Block).map(|_| false)
                    }
                    Some(ControlMessage::ChallengeResponse(returned)) if returned == number => {
                        socket::associate(socket, &self.options.destination(from)?).map(|()| true)
                    }
                    _ => Ok(false),
                }
            });
            match found {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    self.errors.count(&error);
                    return false;
                }
            }
        }
        self.errors.count("no receiver proved its address");
        false
    }

    /// Sends end marks until the receiver acknowledges one, or until the limit is reached.
    ///
    /// Marks are numbered and counted like other datagrams, so that a dropped mark does not upset the accounting.
    fn mark_end(&mut self, socket: &Socket, sender: &mut Sender<'_, FathomCodec>) {
        if let Err(error) = socket::set_timeout(socket, END_MARK_GAP) {
            self.errors.count(&error);
            return;
        }
        let mut mark = [0; HEADER_LEN];
        for _ in 0..END_MARKS {
            match sender.mark_end(&mut mark) {
                Ok(step) => self.count_step(step),
                // The receiver is gone.
                Err(_) => return,
            }
            let marked = clock::now();
            // Earlier messages of the receiver are still in the queue.
            while clock::now() - marked < END_MARK_GAP {
                match next_message(socket, self.token, Wait::Block) {
                    Some(ControlMessage::EndAck) => return,
                    Some(_) => {}
                    None => break,
                }
            }
        }
    }
}

/// The next message of the receiver; `None` if none arrives in time.
fn next_message(socket: &Socket, token: FlowToken, wait: Wait) -> Option<ControlMessage> {
    let mut room = [0; MESSAGE_LEN + 1];
    // An error of the socket also shows at the next send.
    let n = socket::recv(socket, &mut room, wait).ok()??;
    token.read_message(&room[..n])
}

/// The sends in a row that the kernel refused.
#[derive(Debug, Default)]
struct Refusals(u32);

impl Refusals {
    /// Counts a refusal. Returns whether a pause costs nothing, because nothing gets out.
    const fn are_lasting(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 >= LASTING
    }

    /// A send succeeded.
    const fn end(&mut self) {
        self.0 = 0;
    }
}

/// Whether the same call may succeed later. A route of the type `blackhole` gives `EINVAL` (ip-route(8)).
fn is_transient(error: &fathom_sys::Error) -> bool {
    use std::io::ErrorKind::{HostUnreachable, InvalidInput, NetworkUnreachable, PermissionDenied};
    matches!(error.source.kind(), InvalidInput | PermissionDenied | HostUnreachable | NetworkUnreachable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_pauses_only_while_nothing_gets_out() {
        let mut refusals = Refusals::default();
        for _ in 0..100 {
            assert!((1..LASTING).all(|_| !refusals.are_lasting()), "the next one may get out");
            refusals.end();
        }
        assert!((1..LASTING).all(|_| !refusals.are_lasting()) && refusals.are_lasting() && refusals.are_lasting());
    }
}
