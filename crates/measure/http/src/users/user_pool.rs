//! The slots of one worker and the state of the users in them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    sync::Arc,
};

use fathom_engine::{
    Batching, LoadModel, StopFlag,
    load::{LoadSpec, OfferedLoad, OpenSchedule, SendTimes},
    pace::Pacing,
};
use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    reactor::{Batch, Reactor},
};

use super::{
    AnswerDetail, BodyFraming, UserRequest,
    fixed_requests::FixedRequests,
    user_arrivals::ArrivalTimes,
    user_connection::{PendingRequests, RETRY_REQUEST_MAX, SpareBuffers, UserConnection, UserState},
};
use crate::{
    conn::{Connector, DISCARD_MIN, LoadConfig, RequestFault, TimeoutSweep, token},
    h1::{HeadReader, Method, ResponseSummary},
    metrics::{LOAD_COUNTERS, LoadCounter, LoadRecorder, RequestSample},
};

/// The resources of a worker's users; it makes no decisions for them.
pub(super) struct UserPool<'a, R> {
    /// The users who come, the slots that are free for them, and the users with requests under way, their connects included.
    pub(super) load: OfferedLoad<'a, ArrivalTimes>,
    pub(super) recorder: LoadRecorder<'a>,
    pub(super) config: Arc<LoadConfig>,
    pub(super) connector: Connector<R>,
    /// By slot.
    pub(super) connections: Vec<UserConnection>,
    /// For each server, the readers of heads for answers with and without a body.
    pub(super) heads: Vec<[HeadReader; 2]>,
    pub(super) spare_buffers: SpareBuffers,
    fixed_requests: FixedRequests,
    /// The text of each fault that has occurred.
    fault_texts: BTreeMap<RequestFault, Box<str>>,
    /// Whether a slot may be used again.
    is_shared: bool,
    pub(super) n_users: u64,
    /// Slots whose users rest, or have their turn later, with the time until which they do.
    sleeping: BinaryHeap<Reverse<(Nanos, u32)>>,
    /// Slots that wait to connect, in order.
    to_connect: VecDeque<u32>,
    pub(super) sweep: TimeoutSweep,
    /// Sends since the last wait that will be reported as completions.
    n_pending_sends: u32,
}

/// The resources of a worker's pool.
pub(super) struct PoolResources<R> {
    pub(super) config: Arc<LoadConfig>,
    pub(super) connector: Connector<R>,
    pub(super) n_slots: u32,
    pub(super) arrivals: ArrivalTimes,
    pub(super) pacing: Pacing,
    pub(super) is_shared: bool,
    pub(super) batching: Batching,
    pub(super) stop: StopFlag,
}

impl<'a, R: Reactor> UserPool<'a, R> {
    pub(super) fn new(recorder: LoadRecorder<'a>, resources: PoolResources<R>) -> Self {
        let PoolResources { config: target, connector, n_slots, arrivals, pacing, is_shared, batching, stop } =
            resources;
        let n = n_slots as usize;
        // Users arrive on a schedule, and their requests follow answers.
        let spec = LoadSpec {
            model: LoadModel::Closed,
            schedule: Some(OpenSchedule::new(recorder.worker.start, [arrivals], pacing)),
            n_connections: n,
            counters: LOAD_COUNTERS,
            batching,
            counts_all: target.is_counted,
        };
        let heads = || [Method::Get, Method::Head].map(|method| target.target.head_reader(method));
        Self {
            load: OfferedLoad::new(*recorder.worker, &stop, spec).with_all_free(n),
            recorder,
            connector,
            connections: (0..n).map(|_| UserConnection::new()).collect(),
            heads: target.target.upstreams.iter().map(|_| heads()).collect(),
            spare_buffers: SpareBuffers::default(),
            fixed_requests: FixedRequests::default(),
            fault_texts: BTreeMap::new(),
            is_shared,
            n_users: 0,
            sleeping: BinaryHeap::with_capacity(n),
            to_connect: VecDeque::with_capacity(n),
            sweep: TimeoutSweep::default(),
            n_pending_sends: 0,
            config: target,
        }
    }

    /// A user takes a slot.
    pub(super) fn take_slot(&mut self, slot: usize) {
        self.n_users += 1;
        self.connections[slot].begin_user();
    }

    /// Sends a user's requests, or keeps them until there is a connection.
    ///
    /// # Errors
    /// The requests could not be sent.
    pub(super) fn send_request(&mut self, slot: usize, ask: &UserRequest<'_>) -> Result<(), RequestFault> {
        let places = &self.config.target.upstream_of_url;
        let route = *places.get(usize::from(ask.server)).unwrap_or_else(|| {
            panic!("server {} was asked, and there are {}", ask.server, places.len());
        });
        assert!(ask.n_requests > 0, "nothing was asked: {:?}", ask.bytes);
        let connection = &mut self.connections[slot];
        connection.state = UserState::AwaitingAnswers;
        connection.pending = Some(PendingRequests::of(ask));
        connection.fixed = None;
        self.load.n_in_flight += 1;
        if connection.conn.is_open() && connection.conn.upstream == route {
            return self.send(slot, ask.bytes);
        }
        connection.keep_request(ask.bytes);
        self.close(slot);
        self.connections[slot].conn.upstream = route;
        self.to_connect.push_back(token(slot).0);
        Ok(())
    }

    /// Sends the pending requests of a slot on its open connection.
    ///
    /// # Errors
    /// TLS failed.
    fn send(&mut self, slot: usize, bytes: &[u8]) -> Result<(), RequestFault> {
        let Self { connections, connector, fixed_requests, recorder, .. } = self;
        let connection = &mut connections[slot];
        let Some(pending) = &mut connection.pending else { return Ok(()) };
        (pending.is_sent, pending.sent_at) = (true, clock::now());
        recorder.on_sent(bytes.len());
        if !connection.conn.channel.is_plain() {
            connection.conn.channel.encrypt(bytes, &mut connector.tls_buffers).map_err(RequestFault::connect)?;
            connector.send_pending(slot);
            self.n_pending_sends += 1;
        } else if let Some(fixed) = fixed_requests.find(bytes, |bytes| connector.reactor.fix(bytes)) {
            connection.fixed = Some((fixed, bytes.len()));
            connector.reactor.send_fixed(token(slot), fixed);
            return Ok(());
        } else {
            connector.reactor.send_quietly(token(slot), bytes);
        }
        // Only on a reused connection can the server have closed first, so that a retry may be needed.
        if connection.is_used && bytes.len() <= RETRY_REQUEST_MAX {
            connection.keep_request(bytes);
        }
        Ok(())
    }

    /// Sends the requests that waited for the connection.
    ///
    /// # Errors
    /// TLS failed.
    pub(super) fn send_kept(&mut self, slot: usize) -> Result<(), RequestFault> {
        let connection = &mut self.connections[slot];
        if let Some((fixed, length)) = connection.fixed {
            let Some(pending) = &mut connection.pending else { return Ok(()) };
            (pending.is_sent, pending.sent_at) = (true, clock::now());
            self.recorder.on_sent(length);
            self.connector.reactor.send_fixed(token(slot), fixed);
            return Ok(());
        }
        let request = std::mem::take(&mut connection.request);
        let outcome = self.send(slot, &request);
        // Its memory is reused for the next request, unless it is large.
        if request.capacity() <= RETRY_REQUEST_MAX {
            let connection = &mut self.connections[slot];
            connection.request = request;
            connection.request.clear();
        }
        outcome
    }

    /// Sends the pending requests once more, on a new connection.
    pub(super) fn resend(&mut self, slot: usize) {
        self.close(slot);
        let Some(pending) = &mut self.connections[slot].pending else { return };
        (pending.is_sent, pending.is_retry) = (false, true);
        self.recorder.add(LoadCounter::Resent, u64::from(pending.n_requests));
        self.to_connect.push_back(token(slot).0);
    }

    /// The next slot to connect, if another connect may begin.
    pub(super) fn next_to_connect(&mut self) -> Option<usize> {
        let slot = if self.connector.has_room() { self.to_connect.pop_front()? } else { return None };
        Some(slot as usize)
    }

    /// Lets the user in a slot rest. It runs when the rest is over, never at once.
    pub(super) fn sleep(&mut self, slot: usize, until: Nanos) {
        self.connections[slot].state = UserState::Sleeping;
        self.sleeping.push(Reverse((until, token(slot).0)));
    }

    /// The next slot whose rest is over.
    pub(super) fn next_awake(&mut self, now: Nanos) -> Option<usize> {
        let Reverse((_, slot)) = *self.sleeping.peek().filter(|rest| rest.0.0 <= now)?;
        self.sleeping.pop();
        Some(slot as usize)
    }

    pub(super) fn close(&mut self, slot: usize) {
        self.connector.close(slot, &mut self.connections[slot].conn);
    }

    /// The user in a slot has left.
    pub(super) fn release_slot(&mut self, slot: usize) {
        self.close(slot);
        self.connections[slot].state = UserState::Vacant;
        self.n_users -= 1;
        if self.is_shared {
            self.load.list_free(0, slot);
        }
    }

    /// Counts an answer; the arrival time of its first bytes is in the pending requests.
    pub(super) fn record_answer(&mut self, slot: usize, answer: &ResponseSummary, at: Nanos) {
        let connection = &mut self.connections[slot];
        let Some(pending) = &connection.pending else { return };
        let service = at.since(pending.sent_at);
        let entry = RequestSample {
            sent_at: pending.sent_at,
            late: Nanos::ZERO,
            connect: std::mem::take(&mut connection.conn.connect_time),
            service,
            first_byte: pending.first_byte_at.unwrap_or(at).since(pending.sent_at),
            body_bytes: answer.body_bytes,
            counts: self.load.record_answer(SendTimes::at(pending.sent_at), at),
        };
        self.recorder.on_answer(answer, &entry, || self.connector.baseline_rtt(slot));
    }

    /// The text of a fault, as it appears in the errors of a record.
    pub(super) fn fault_text(&mut self, fault: RequestFault) -> &str {
        self.fault_texts.entry(fault).or_insert_with(|| fault.to_string().into())
    }

    /// Lets the kernel discard the rest of a large body that nobody reads.
    pub(super) fn discard_rest(&mut self, slot: usize) {
        let connection = &self.connections[slot];
        let left = connection.reader.body_bytes_left();
        let is_wanted = connection.unanswered().is_none_or(|pending| pending.detail != AnswerDetail::Status);
        if left >= DISCARD_MIN && (!is_wanted || connection.is_message_cut) && connection.conn.is_open() {
            self.connector.reactor.discard(token(slot), left);
            self.recorder.results.has_discarded = true;
        }
    }

    /// When the next event by the clock is due: the end of a rest, or an arrival.
    #[inline]
    pub(super) fn next_due(&mut self) -> Option<Nanos> {
        let rest = self.sleeping.peek().map(|rest| rest.0.0).filter(|_| !self.load.window().is_over());
        rest.into_iter().chain(self.load.next_due()).min()
    }

    /// The answers to wait for at once: several while every user waits for one.
    pub(super) fn batch(&mut self) -> Option<Batch> {
        let is_saturated = self.load.n_in_flight == self.n_users;
        // The completion of a send would otherwise count as an answer.
        let n_more = std::mem::take(&mut self.n_pending_sends);
        let batch = self.load.batch().filter(|_| is_saturated)?;
        Some(Batch { n: batch.n + n_more, ..batch })
    }
}

impl BodyFraming {
    /// The index of its reader among those of a server.
    pub(super) fn reader_index(self) -> usize {
        match self {
            Self::Body => 0,
            Self::NoBody => 1,
        }
    }
}
