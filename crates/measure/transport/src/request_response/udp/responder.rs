//! The responder: one socket per worker, and each request is answered when it arrives.
//!
//! A worker with one flow has one request at a time. A worker with several reads all waiting requests with one call, and answers
//! them with one call. Both answer only addresses that have returned a challenge, which is no longer than a request.

use std::net::SocketAddr;

use fathom_engine::{Error, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, FailureCounts, Note, Record, SampledConnection, Side};
use fathom_sys::socket::{
    self, Sender, Socket, Wait,
    datagram::{BatchShape, ReceiveBatch, SendBatch, SendResult},
};

use super::{CHALLENGE, CHALLENGE_RESPONSE, RESPONDER_COUNTERS, RrHeader, UdpRrConfig, challenge_datagram};
use crate::{
    connection_setup::{self, BLOCKING_TIMEOUT, ListenAddresses},
    datagrams::{Challenges, ValidatedAddresses},
    request_response::{sizes::SizeClass, unit_stamps::UnitStamps},
};

/// Indices of the counters of a responder.
const TRANSACTIONS: usize = 0;
const RECEIVED: usize = 1;
const FOREIGN: usize = 2;
/// Unsuccessful polls between two checks of the phase by a spinning worker.
const SPINS_PER_CHECK: u32 = 64;

/// The most requests that are read in one call: spread over this many, the cost of a call is negligible against that of a datagram.
const BATCH_MAX: usize = 64;
/// The most room for them; the second-level cache holds twice as much.
const BATCH_BYTES: usize = 256 << 10;

pub(super) struct UdpRrResponder {
    config: UdpRrConfig,
    sockets: Vec<Socket>,
    addresses: Vec<SocketAddr>,
    notes: Vec<Note>,
}

impl UdpRrResponder {
    pub(super) fn bind(config: UdpRrConfig, doors: ListenAddresses) -> Result<Self, Error> {
        let (mut sockets, mut addresses, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..config.n_workers {
            // A datagram has a single destination, so each worker has one address, however many ports were requested.
            let at = doors.of_worker(worker).next().expect("every worker has a place");
            let (socket, told) =
                if at.port() == 0 { config.options.bind_udp(at)? } else { config.options.bind_udp_shared(at)? };
            notes = told;
            let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
            socket::set_timeout(&socket, BLOCKING_TIMEOUT).map_err(cannot)?;
            addresses.push(connection_setup::local_address(&socket)?);
            sockets.push(socket);
        }
        addresses.dedup();
        Ok(Self { config, sockets, addresses, notes })
    }
}

impl Test for UdpRrResponder {
    fn endpoints(&self) -> Endpoints {
        connection_setup::endpoints_of(&self.addresses)
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { config, sockets, notes, .. } = *self;
        let role = &config.role;
        let pool =
            WorkerPool { states: sockets, counters: RESPONDER_COUNTERS, cores: &role.cores, until: role.side.into() };
        let challenges = Challenges::default();
        let results = pool.run(context, &mut (), |worker, socket| {
            let (proved, causes) = (ValidatedAddresses::default(), FailureCounts::default());
            let clerk = UdpResponderWorker {
                worker,
                socket: &socket,
                config: &config,
                challenges: &challenges,
                validated: proved,
                errors: causes,
            };
            let is_batched = config.n_flows > config.n_workers;
            Ok(if is_batched { (clerk.run_batched(), None) } else { clerk.run_blocking() })
        })?;
        let mut record = results.record(role.side);
        for (causes, sampled) in results.workers {
            record.errors.extend(causes);
            record.sampled.extend(sampled);
        }
        record.notes.extend(notes);
        Ok(record)
    }
}

/// Parses the request of a datagram; `None` if it is not a request of this trial.
fn request(config: &UdpRrConfig, datagram: &[u8]) -> Option<(RrHeader, SizeClass)> {
    let header = RrHeader::read(datagram).filter(|header| header.token == config.token)?;
    let class = config.sizes.class(header.class.0)?;
    (datagram.len() == config.sizes.request(class)).then_some((header, class))
}

/// The answers of one turn.
struct AnswerBatch {
    /// The answer of each class; its header is rewritten for each send.
    messages: Vec<Vec<u8>>,
    batch: SendBatch,
    /// The class that each slot of the batch holds.
    queued: Vec<Option<SizeClass>>,
    n_written: usize,
}

impl AnswerBatch {
    fn new(config: &UdpRrConfig, count: usize) -> Self {
        let messages = config.sizes.messages(Side::Responder, config.role.seed);
        let size = messages.iter().map(Vec::len).max().unwrap_or(1);
        Self {
            messages,
            batch: SendBatch::of_answers(BatchShape { count, size }),
            queued: vec![None; count],
            n_written: 0,
        }
    }

    /// Appends the answer to a request.
    fn write(&mut self, header: RrHeader, class: SizeClass, requests: &ReceiveBatch, idx: usize) {
        let place = self.n_written;
        self.n_written += 1;
        if self.queued[place] != Some(class) {
            let message = &self.messages[class.idx()];
            self.batch.set_length(place, message.len());
            self.batch.payload_mut(place).copy_from_slice(message);
            self.queued[place] = Some(class);
        }
        RrHeader { announces: false, ..header }.write(self.batch.payload_mut(place));
        self.batch.answer(place, requests, idx);
    }

    /// Sends the queued answers. An answer that cannot be sent does not delay the others.
    fn send(&mut self, worker: &WorkerHandle<'_>, socket: &Socket, causes: &mut FailureCounts) {
        let mut n_sent = 0;
        while n_sent < self.n_written {
            match self.batch.send(socket, n_sent..self.n_written, Wait::Block) {
                Ok(SendResult::Datagrams(n)) => {
                    worker.add(TRANSACTIONS, u64::try_from(n).unwrap_or(0));
                    n_sent += n;
                    continue;
                }
                Ok(SendResult::WouldBlock | SendResult::NoBuffers) => {
                    causes.count("sendmmsg: no room in the socket");
                }
                Err(error) => causes.count(&error),
            }
            n_sent += 1;
        }
        self.n_written = 0;
    }
}

/// One worker, its socket, and the addresses validated there.
struct UdpResponderWorker<'a> {
    worker: WorkerHandle<'a>,
    socket: &'a Socket,
    config: &'a UdpRrConfig,
    challenges: &'a Challenges,
    validated: ValidatedAddresses,
    errors: FailureCounts,
}

impl UdpResponderWorker<'_> {
    /// The request of a datagram, if it is valid and its sender has been validated.
    #[inline]
    fn validated_request(&mut self, datagram: &[u8], from: Option<SocketAddr>) -> Option<(RrHeader, SizeClass)> {
        request(self.config, datagram).filter(|_| from.is_some_and(|from| self.validated.contains(from.ip())))
    }

    /// Challenges an unvalidated sender, and validates one that returns its challenge.
    #[cold]
    fn challenge(&mut self, datagram: &[u8], sender: Option<&Sender>) {
        let asked = sender.and_then(|sender| Some((sender, sender.address()?)));
        let number = asked.map(|(_, from)| self.challenges.of(from)).unwrap_or_default();
        match asked {
            Some((_, from)) if datagram == challenge_datagram(CHALLENGE_RESPONSE, number) => {
                self.validated.add(from.ip());
            }
            Some((sender, _)) if request(self.config, datagram).is_some() => {
                let sent = socket::send_to(self.socket, &challenge_datagram(CHALLENGE, number), sender, Wait::Block);
                let _ = sent.map_err(|error| self.errors.count(&error));
            }
            _ => self.worker.add(FOREIGN, 1),
        }
    }

    /// Answers the requests of several flows, as many at a time as have arrived.
    fn run_batched(mut self) -> FailureCounts {
        let longest = self.config.sizes.longest_request().max(self.config.sizes.longest_response());
        let count = (BATCH_BYTES / longest).clamp(1, BATCH_MAX);
        // One byte more than a valid request, so that a longer one is noticed.
        let mut requests =
            ReceiveBatch::of_questions(BatchShape { count, size: self.config.sizes.longest_request() + 1 });
        let mut answers = AnswerBatch::new(self.config, count);
        while !self.worker.is_over() {
            match requests.receive(self.socket, Wait::Block) {
                Ok(Some(n)) => {
                    for index in 0..n {
                        match self.validated_request(requests.payload(index), requests.source_of(index)) {
                            Some((header, class)) => answers.write(header, class, &requests, index),
                            None => self.challenge(requests.payload(index), requests.sender(index).as_ref()),
                        }
                    }
                    self.worker.add(RECEIVED, u64::try_from(answers.n_written).unwrap_or(0));
                    answers.send(&self.worker, self.socket, &mut self.errors);
                }
                Ok(None) => {}
                Err(error) => self.errors.count(&error),
            }
        }
        self.errors
    }

    /// Answers the requests of one flow as they arrive.
    fn run_blocking(mut self) -> (FailureCounts, Option<SampledConnection>) {
        let mut flow = SingleFlow::new(&self);
        // One byte more than a valid request, so that a longer one is noticed.
        let mut room = vec![0; self.config.sizes.longest_request() + 1];
        let wait = if self.config.spins { Wait::Never } else { Wait::Block };
        let mut n_looks = 0_u32;
        loop {
            match flow.receive(&mut room, wait) {
                Ok(Some((length, sender))) => match self.validated_request(&room[..length], sender.address()) {
                    Some((header, class)) => {
                        self.worker.add(RECEIVED, 1);
                        match flow.answer((header, class), &sender) {
                            Ok(Some(_)) => self.worker.add(TRANSACTIONS, 1),
                            Ok(None) => self.errors.count("sendto: no room in the socket"),
                            Err(error) => self.errors.count(&error),
                        }
                    }
                    None => self.challenge(&room[..length], Some(&sender)),
                },
                Ok(None) => {
                    n_looks += 1;
                    if (wait == Wait::Block || n_looks.is_multiple_of(SPINS_PER_CHECK)) && self.worker.is_over() {
                        return (self.errors, flow.into_sampled());
                    }
                }
                Err(error) => self.errors.count(&error),
            }
            // A flood must not keep the worker running after the end.
            if wait == Wait::Block && self.worker.is_over() {
                return (self.errors, flow.into_sampled());
            }
        }
    }
}

/// The flow of a worker that has one, with stamps of those exchanges that the initiator announces.
struct SingleFlow<'a> {
    socket: &'a Socket,
    /// The answer of each class; its header is rewritten for each send.
    answers: Vec<Vec<u8>>,
    stamps: UnitStamps,
    /// The number of the request that is stamped next.
    stamped: Option<u64>,
    remote: Option<SocketAddr>,
}

impl<'a> SingleFlow<'a> {
    fn new(worker: &UdpResponderWorker<'a>) -> Self {
        let (socket, config) = (worker.socket, worker.config);
        Self {
            socket,
            answers: config.sizes.messages(Side::Responder, config.role.seed),
            stamps: UnitStamps::new(socket, Side::Responder),
            stamped: None,
            remote: None,
        }
    }

    #[inline]
    fn receive(&mut self, room: &mut [u8], wait: Wait) -> fathom_sys::Result<Option<(usize, Sender)>> {
        match self.stamped {
            Some(_) => self.stamps.recv_from(self.socket, room, wait),
            None => socket::recv_from(self.socket, room, wait),
        }
    }

    #[inline]
    fn answer(&mut self, request: (RrHeader, SizeClass), to: &Sender) -> fathom_sys::Result<Option<usize>> {
        let (header, class) = request;
        let answer = &mut self.answers[class.idx()];
        RrHeader { announces: false, ..header }.write(answer);
        if self.stamped.is_none() && !header.announces {
            return socket::send_to(self.socket, answer, to, Wait::Block);
        }
        let sent = if self.stamped == Some(header.number) {
            let sent = self.stamps.send_to(self.socket, answer, to, Wait::Block);
            self.stamps.end(self.socket);
            sent
        } else {
            // The announced request was lost, or there was none.
            self.stamps.abandon();
            socket::send_to(self.socket, answer, to, Wait::Block)
        };
        self.remote = to.address();
        let next = header.number + 1;
        self.stamped = Some(next).filter(|_| header.announces && self.stamps.begin(self.socket, next));
        sent
    }

    fn into_sampled(self) -> Option<SampledConnection> {
        self.stamps.into_sampled(self.socket, self.remote.map(|remote| remote.to_string()))
    }
}
