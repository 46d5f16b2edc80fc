//! One flow per worker with blocking calls: waiting for a single connection needs no reactor.

use std::sync::Arc;

use fathom_engine::{Error, LoadModel, Phase, Stop, Test, TrialContext, WorkerCounts, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, Note, Record, Role, Side, units::Nanos};
use fathom_sys::{
    clock,
    socket::{Socket, Wait},
};

use super::{
    DELAY, SPIN,
    connection::{MessageBuffers, RrConnection, TransferStep, UNEXPECTED_MESSAGE},
    peer_timeout::{PEER_CLOSED, PEER_SILENT, is_silent},
    results::{self, RrResults, counters},
    sizes::MessageSizes,
};
use crate::{
    connection_setup::FlowConnections,
    options::{self, SocketOptions},
    tcp_sampler::TcpInfoSampler,
};

/// How long after the end the last answers may take.
const LAST_ANSWERS_MAX: Nanos = Nanos::from_millis(200);
/// Unsuccessful polls between two checks of the phase by a spinning worker; a check takes as long as one poll.
const SPINS_PER_CHECK: u32 = 64;

pub(super) fn prepare(
    kind: &'static str,
    role: &Role,
    sizes: MessageSizes,
    options: &SocketOptions,
) -> Result<Box<dyn Test>, Error> {
    let (opening, notes) = FlowConnections::prepare(role, kind, options)?;
    Ok(Box::new(BlockingRr { role: role.clone(), connections: opening, sizes, notes }))
}

struct BlockingRr {
    role: Role,
    connections: FlowConnections,
    sizes: MessageSizes,
    notes: Vec<Note>,
}

impl Test for BlockingRr {
    fn endpoints(&self) -> Endpoints {
        self.connections.endpoints()
    }

    fn run(mut self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let (n_flows, _) = options::flows_and_workers(&self.role);
        let connect = self.connections.connect_times();
        let sockets: Vec<_> = self.connections.establish(n_flows, context)?.into_iter().map(Arc::new).collect();
        let mut watch = TcpInfoSampler::new(&sockets);
        let side = self.role.side;
        let messages = MessageBuffers::new(&self.sizes, side, self.role.seed);
        let states: Vec<_> = sockets.into_iter().map(|socket| (socket, messages.clone())).collect();
        let pool = WorkerPool { states, counters: counters::CLOSED, cores: &self.role.cores, until: side.into() };
        let wait = if self.role.settings.flag(SPIN.name) { Wait::Never } else { Wait::Block };
        let mut trial_results = pool.run(context, &mut watch, |worker, (socket, messages)| {
            let party = BlockingWorker {
                worker,
                context,
                side,
                wait,
                messages,
                results: RrResults::default(),
                over_since: None,
            };
            Ok(match side {
                Side::Initiator => party.run_initiator(socket, &self.sizes),
                Side::Responder => party.run_responder(socket, self.role.settings.span(DELAY.name)),
            })
        })?;
        if let Some(tally) = trial_results.workers.first_mut() {
            tally.connect = connect;
        }
        let mut record = results::record(trial_results, side, LoadModel::Closed);
        // A connection with an error carries no more transactions.
        record.complete &= record.errors.is_empty();
        watch.finish(&mut record, WorkerCounts::default());
        if wait == Wait::Never {
            let text = "each worker polled for messages all the time, which takes a whole core at any load";
            self.notes.push(Note::new("spin", text));
        }
        record.notes.append(&mut self.notes);
        Ok(record)
    }
}

/// One worker and its flow, on either side.
struct BlockingWorker<'a> {
    worker: WorkerHandle<'a>,
    context: &'a TrialContext,
    side: Side,
    wait: Wait,
    messages: MessageBuffers,
    results: RrResults,
    over_since: Option<Nanos>,
}

impl BlockingWorker<'_> {
    fn run_initiator(mut self, socket: Arc<Socket>, sizes: &MessageSizes) -> RrResults {
        let mut schedule = self.worker.sample_schedule();
        let mut n = 0;
        let mut conversation = RrConnection::initiator(socket, sizes.at(n)).stamped(Side::Initiator);
        let mut begin = clock::now();
        while let Some(step) = self.step(&mut conversation) {
            if step == TransferStep::Sent {
                continue;
            }
            let now = clock::now();
            self.worker.add(counters::TRANSACTIONS, 1);
            self.worker.show_latency(now - begin);
            let phase = self.worker.phase();
            match phase {
                Phase::Measure => self.results.times.service.record((now - begin).0),
                Phase::WarmUp => {}
                Phase::Over => return self.results.with_sampled(conversation.into_sampled()),
            }
            n = n.wrapping_add(1);
            conversation.set_next_request(sizes.at(n));
            begin = if conversation.end_exchange() { clock::now() } else { now };
            if phase == Phase::Measure && schedule.is_due(now) {
                conversation.announce();
            }
        }
        self.results.sampled = conversation.into_sampled();
        self.results.times.n_unfinished += 1;
        if is_silent(clock::now() - begin, &self.results.times.service) && self.context.stop.state() != Stop::Abort {
            self.results.errors.count(PEER_SILENT);
        }
        self.results
    }

    /// Answers each request, after a delay if there is one.
    fn run_responder(mut self, socket: Arc<Socket>, delay: Option<Nanos>) -> RrResults {
        if delay.is_some() {
            clock::sleep_finely();
        }
        let mut conversation = RrConnection::responder(socket).stamped(Side::Responder);
        while let Some(step) = self.step(&mut conversation) {
            if step == TransferStep::Sent {
                self.worker.add(counters::TRANSACTIONS, 1);
                conversation.end_exchange();
            } else if let Some(delay) = delay {
                clock::wait_exactly_until(clock::now() + delay);
            }
        }
        self.results.with_sampled(conversation.into_sampled())
    }

    /// Continues until a whole message is sent or received; `None` if there will be no more.
    #[inline]
    fn step(&mut self, conversation: &mut RrConnection) -> Option<TransferStep> {
        let mut n_looks = 0;
        loop {
            match conversation.step(&mut self.messages, self.wait) {
                Ok(step @ (TransferStep::Sent | TransferStep::Received)) => return Some(step),
                Ok(TransferStep::Partial) => {}
                Ok(TransferStep::WouldBlock) => {
                    n_looks += 1;
                    if (self.wait == Wait::Block || n_looks % SPINS_PER_CHECK == 0) && self.must_stop() {
                        return None;
                    }
                }
                Ok(TransferStep::Closed) => {
                    if self.side == Side::Initiator {
                        self.results.errors.count(PEER_CLOSED);
                    }
                    return None;
                }
                Ok(TransferStep::Unexpected) => {
                    self.results.errors.count(UNEXPECTED_MESSAGE);
                    return None;
                }
                Err(error) => {
                    // An initiator that leaves before its last answer, as at the end of a trial, counts that itself.
                    if self.side == Side::Initiator || !error.is_abandoned() {
                        self.results.errors.count(&error);
                    }
                    return None;
                }
            }
        }
    }

    /// Whether to stop although nothing has arrived; the initiator waits a little for the last answer.
    fn must_stop(&mut self) -> bool {
        if !self.worker.is_over() {
            return false;
        }
        let now = clock::now();
        let since = *self.over_since.get_or_insert(now);
        self.side == Side::Responder || now - since > LAST_ANSWERS_MAX || self.context.stop.state() == Stop::Abort
    }
}
