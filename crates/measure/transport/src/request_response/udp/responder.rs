//! The side that answers: a socket per worker, and each request is answered when it comes.
//!
//! A worker with one flow has one request at a time; one with several takes what has come meanwhile, and answers it, in one call each.
//! Both answer only addresses that have returned a challenge, which is no longer than a request.

use std::net::SocketAddr;

use fathom_engine::{Error, Test, TrialContext, WorkerHandle, WorkerPool};
use fathom_model::{Endpoints, Note, Record, Side};
use fathom_sys::socket::{
    self, Sender, Socket, Wait,
    datagram::{BatchShape, ReceiveBatch, SendBatch, SendResult},
};

use super::{CHALLENGE, CHALLENGE_RESPONSE, RESPONDER_COUNTERS, RrHeader, UdpRrConfig, challenge_datagram};
use crate::{
    connection_setup::{self, BLOCKING_TIMEOUT, ListenAddresses},
    datagrams::{Challenges, ValidatedAddresses},
    error_counts::ErrorCounts,
    request_response::sizes::SizeClass,
};

/// Places among the counters of a responder.
const TRANSACTIONS: usize = 0;
const RECEIVED: usize = 1;
const FOREIGN: usize = 2;
/// That many looks without success go by before a spinning worker looks at the phase.
const SPINS_PER_CHECK: u32 = 64;

/// The most requests that are taken in one call: shared by that many, the price of a call is lost in that of a datagram.
const BATCH_MAX: usize = 64;
/// The most room for them, of which the second-level cache holds twice as much.
const BATCH_BYTES: usize = 256 << 10;

/// The responder, ready to start.
pub(super) struct UdpRrResponder {
    config: UdpRrConfig,
    sockets: Vec<Socket>,
    addresses: Vec<SocketAddr>,
    notes: Vec<Note>,
}

impl UdpRrResponder {
    pub(super) fn bind(terms: UdpRrConfig, doors: ListenAddresses) -> Result<Self, Error> {
        let (mut sockets, mut addresses, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..terms.n_workers {
            // A datagram comes to one place, so each worker has one, however many ports were asked for.
            let at = doors.of_worker(worker).next().expect("every worker has a place");
            let (socket, told) =
                if at.port() == 0 { terms.options.bind_udp(at)? } else { terms.options.bind_udp_shared(at)? };
            notes = told;
            let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
            socket::set_timeout(&socket, BLOCKING_TIMEOUT).map_err(cannot)?;
            addresses.push(connection_setup::local_address(&socket)?);
            sockets.push(socket);
        }
        addresses.dedup();
        Ok(Self { config: terms, sockets, addresses, notes })
    }
}

impl Test for UdpRrResponder {
    fn endpoints(&self) -> Endpoints {
        connection_setup::endpoints_of(&self.addresses)
    }

    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error> {
        let Self { config: terms, sockets, notes, .. } = *self;
        let role = &terms.role;
        let pool =
            WorkerPool { states: sockets, counters: RESPONDER_COUNTERS, cores: &role.cores, until: role.side.into() };
        let challenges = Challenges::default();
        let results = pool.run(session, &mut (), |worker, socket| {
            let (proved, causes) = (ValidatedAddresses::default(), ErrorCounts::default());
            let clerk = UdpResponderWorker {
                worker,
                socket: &socket,
                config: &terms,
                challenges: &challenges,
                validated: proved,
                errors: causes,
            };
            Ok(if terms.n_flows > terms.n_workers { clerk.run_batched() } else { clerk.run_blocking() })
        })?;
        let mut record = results.record(role.side);
        results.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        record.notes.extend(notes);
        Ok(record)
    }
}

/// What a datagram asks for; nothing when it is no request of this trial.
fn request(terms: &UdpRrConfig, datagram: &[u8]) -> Option<(RrHeader, SizeClass)> {
    let header = RrHeader::read(datagram).filter(|header| header.token == terms.token)?;
    let class = terms.sizes.class(header.class.0)?;
    (datagram.len() == terms.sizes.request(class)).then_some((header, class))
}

/// The answers of one turn.
struct AnswerBatch {
    /// For each class what is sent, whose header is written anew each time.
    messages: Vec<Vec<u8>>,
    batch: SendBatch,
    /// What lies in each place of the batch.
    queued: Vec<Option<SizeClass>>,
    n_written: usize,
}

impl AnswerBatch {
    fn new(terms: &UdpRrConfig, count: usize) -> Self {
        let messages = terms.sizes.messages(Side::Responder, terms.role.seed);
        let size = messages.iter().map(Vec::len).max().unwrap_or(1);
        Self {
            messages,
            batch: SendBatch::of_answers(BatchShape { count, size }),
            queued: vec![None; count],
            n_written: 0,
        }
    }

    /// Puts the answer to a request behind the others.
    fn write(&mut self, (header, class): (RrHeader, SizeClass), from: (&ReceiveBatch, usize)) {
        let place = self.n_written;
        self.n_written += 1;
        if self.queued[place] != Some(class) {
            let message = &self.messages[class.idx()];
            self.batch.set_length(place, message.len());
            self.batch.payload_mut(place).copy_from_slice(message);
            self.queued[place] = Some(class);
        }
        header.write(self.batch.payload_mut(place));
        self.batch.answer(place, from);
    }

    /// Sends what was written; one that cannot be sent does not keep the others.
    fn send(&mut self, worker: &WorkerHandle<'_>, (socket, causes): (&Socket, &mut ErrorCounts)) {
        let mut n_sent = 0;
        while n_sent < self.n_written {
            match self.batch.send(socket, n_sent..self.n_written, Wait::Block) {
                Ok(SendResult::Datagrams(n)) => {
                    worker.add(TRANSACTIONS, u64::try_from(n).unwrap_or(0));
                    n_sent += n;
                    continue;
                }
                Ok(SendResult::WouldBlock | SendResult::NoBuffers) => {
                    causes.count_text("sendmmsg: no room in the socket");
                }
                Err(error) => causes.count(&error),
            }
            n_sent += 1;
        }
        self.n_written = 0;
    }
}

/// One worker, its socket, and who has proved itself there.
struct UdpResponderWorker<'a> {
    worker: WorkerHandle<'a>,
    socket: &'a Socket,
    config: &'a UdpRrConfig,
    challenges: &'a Challenges,
    validated: ValidatedAddresses,
    errors: ErrorCounts,
}

impl UdpResponderWorker<'_> {
    /// The request of a datagram, if it is one and its sender has proved itself.
    #[inline]
    fn validated_request(&mut self, datagram: &[u8], from: Option<SocketAddr>) -> Option<(RrHeader, SizeClass)> {
        request(self.config, datagram).filter(|_| from.is_some_and(|from| self.validated.contains(from.ip())))
    }

    /// Challenges who asks without a proof, and believes who returns a challenge.
    #[cold]
    fn challenge(&mut self, datagram: &[u8], sender: Option<&Sender>) {
        let asked = sender.and_then(|sender| Some((sender, sender.address()?)));
        let number = asked.map(|(_, from)| self.challenges.of(from)).unwrap_or_default();
        match asked {
            Some((_, from)) if datagram == challenge_datagram(CHALLENGE_RESPONSE, number) => {
                self.validated.add(from.ip());
            }
            Some((sender, _)) if request(self.config, datagram).is_some() => {
                let sent = socket::send_to(self.socket, &challenge_datagram(CHALLENGE, number), (sender, Wait::Block));
                let _ = sent.map_err(|error| self.errors.count(&error));
            }
            _ => self.worker.add(FOREIGN, 1),
        }
    }

    /// Answers the requests of several flows, as many at a time as have come.
    fn run_batched(mut self) -> ErrorCounts {
        let longest = self.config.sizes.longest_request().max(self.config.sizes.longest_response());
        let count = (BATCH_BYTES / longest).clamp(1, BATCH_MAX);
        // A byte more than a request may have, so that one that is too long is noticed.
        let mut requests =
            ReceiveBatch::of_questions(BatchShape { count, size: self.config.sizes.longest_request() + 1 });
        let mut answers = AnswerBatch::new(self.config, count);
        while !self.worker.is_over() {
            match requests.receive(self.socket, Wait::Block) {
                Ok(Some(n)) => {
                    for index in 0..n {
                        match self.validated_request(requests.payload(index), requests.source_of(index)) {
                            Some(request) => answers.write(request, (&requests, index)),
                            None => self.challenge(requests.payload(index), requests.sender(index).as_ref()),
                        }
                    }
                    self.worker.add(RECEIVED, u64::try_from(answers.n_written).unwrap_or(0));
                    answers.send(&self.worker, (self.socket, &mut self.errors));
                }
                Ok(None) => {}
                Err(error) => self.errors.count(&error),
            }
        }
        self.errors
    }

    /// Answers the requests of one flow, each when it comes.
    fn run_blocking(mut self) -> ErrorCounts {
        let mut answers = self.config.sizes.messages(Side::Responder, self.config.role.seed);
        // A byte more than a request may have, so that one that is too long is noticed.
        let mut room = vec![0; self.config.sizes.longest_request() + 1];
        let wait = if self.config.spins { Wait::Never } else { Wait::Block };
        let mut n_looks = 0_u32;
        loop {
            match socket::recv_from(self.socket, &mut room, wait) {
                Ok(Some((length, sender))) => match self.validated_request(&room[..length], sender.address()) {
                    Some((header, class)) => {
                        self.worker.add(RECEIVED, 1);
                        let answer = &mut answers[class.idx()];
                        header.write(answer);
                        match socket::send_to(self.socket, answer, (&sender, Wait::Block)) {
                            Ok(Some(_)) => self.worker.add(TRANSACTIONS, 1),
                            Ok(None) => self.errors.count_text("sendto: no room in the socket"),
                            Err(error) => self.errors.count(&error),
                        }
                    }
                    None => self.challenge(&room[..length], Some(&sender)),
                },
                Ok(None) => {
                    n_looks += 1;
                    if (wait == Wait::Block || n_looks.is_multiple_of(SPINS_PER_CHECK)) && self.worker.is_over() {
                        return self.errors;
                    }
                }
                Err(error) => self.errors.count(&error),
            }
            // A flood does not keep the worker beyond the end.
            if wait == Wait::Block && self.worker.is_over() {
                return self.errors;
            }
        }
    }
}
