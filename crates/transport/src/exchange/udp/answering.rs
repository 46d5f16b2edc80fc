//! The side that answers: a socket per worker, and each request is answered when it comes.
//!
//! A worker with one flow has one request at a time; one with several takes what has come meanwhile, and answers it, in one call each.
//! Both answer only addresses that have returned a challenge, which is no longer than a request.

use std::net::SocketAddr;

use fathom_engine::{Crew, Error, Session, Test, Worker};
use fathom_model::{Endpoints, Note, Record, Side};
use fathom_sys::{
    datagram::{ReceiveBatch, SendBatch, Sent, Shape},
    socket::{self, Sender, Socket, Wait},
};

use super::{CHALLENGE, Header, OF_RESPONDER, RETURN, Terms, proof};
use crate::{
    causes::Causes,
    datagrams::{Challenges, Proved},
    exchange::sizes::Class,
    link::{self, Doors, PATIENCE},
};

/// Places among the counters of a responder.
const TRANSACTIONS: usize = 0;
const RECEIVED: usize = 1;
const STRANGERS: usize = 2;
/// So many looks without success go by before a spinning worker looks at the phase.
const LOOKS: u32 = 64;

/// The most requests that are taken in one call: shared by so many, the price of a call is lost in that of a datagram.
const BATCH_MAX: usize = 64;
/// The most room for them, of which the second-level cache holds twice as much.
const BATCH_BYTES: usize = 256 << 10;

/// The responder, ready to start.
pub(super) struct Answering {
    terms: Terms,
    sockets: Vec<Socket>,
    addresses: Vec<SocketAddr>,
    notes: Vec<Note>,
}

impl Answering {
    pub(super) fn bind(terms: Terms, doors: Doors) -> Result<Self, Error> {
        let (mut sockets, mut addresses, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for worker in 0..terms.n_workers {
            // A datagram comes to one place, so each worker has one, however many ports were asked for.
            let at = doors.of_worker(worker).next().expect("every worker has a place");
            let (socket, told) =
                if at.port() == 0 { terms.options.hear(at)? } else { terms.options.hear_sharing(at)? };
            notes = told;
            let cannot = |cause| Error::System { what: "bound a wait".to_owned(), cause };
            socket::set_timeout(&socket, PATIENCE).map_err(cannot)?;
            addresses.push(link::local_address(&socket)?);
            sockets.push(socket);
        }
        addresses.dedup();
        Ok(Self { terms, sockets, addresses, notes })
    }
}

impl Test for Answering {
    fn endpoints(&self) -> Endpoints {
        link::tell_all(&self.addresses)
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let Self { terms, sockets, notes, .. } = *self;
        let role = &terms.role;
        let crew = Crew { states: sockets, counters: OF_RESPONDER, cores: &role.cores, until: role.side.into() };
        let challenges = Challenges::default();
        let conducted = crew.conduct(session, &mut (), |worker, socket| {
            let (proved, causes) = (Proved::default(), Causes::default());
            let clerk = Clerk { worker, socket: &socket, terms: &terms, challenges: &challenges, proved, causes };
            Ok(if terms.n_flows > terms.n_workers { clerk.answer_many() } else { clerk.answer() })
        })?;
        let mut record = conducted.record(role.side);
        conducted.workers.into_iter().for_each(|causes| causes.add_to(&mut record));
        record.notes.extend(notes);
        Ok(record)
    }
}

/// What a datagram asks for; nothing when it is no request of this trial.
fn request(terms: &Terms, datagram: &[u8]) -> Option<(Header, Class)> {
    let header = Header::read(datagram).filter(|header| header.token == terms.token)?;
    let class = terms.sizes.class(header.class.0)?;
    (datagram.len() == terms.sizes.request(class)).then_some((header, class))
}

/// The answers of one turn.
struct Answers {
    /// For each class what is sent, whose header is written anew each time.
    messages: Vec<Vec<u8>>,
    batch: SendBatch,
    /// What lies in each place of the batch.
    lying: Vec<Option<Class>>,
    n_written: usize,
}

impl Answers {
    fn new(terms: &Terms, count: usize) -> Self {
        let messages = terms.sizes.messages(Side::Responder, terms.role.seed);
        let size = messages.iter().map(Vec::len).max().unwrap_or(1);
        Self { messages, batch: SendBatch::of_answers(Shape { count, size }), lying: vec![None; count], n_written: 0 }
    }

    /// Puts the answer to a request behind the others.
    fn write(&mut self, (header, class): (Header, Class), from: (&ReceiveBatch, usize)) {
        let place = self.n_written;
        self.n_written += 1;
        if self.lying[place] != Some(class) {
            let message = &self.messages[class.idx()];
            self.batch.set_length(place, message.len());
            self.batch.payload_mut(place).copy_from_slice(message);
            self.lying[place] = Some(class);
        }
        header.write(self.batch.payload_mut(place));
        self.batch.answer(place, from);
    }

    /// Sends what was written; one that cannot be sent does not keep the others.
    fn send(&mut self, worker: &Worker<'_>, (socket, causes): (&Socket, &mut Causes)) {
        let mut n_sent = 0;
        while n_sent < self.n_written {
            match self.batch.send(socket, n_sent..self.n_written, Wait::Block) {
                Ok(Sent::Datagrams(n)) => {
                    worker.add(TRANSACTIONS, u64::try_from(n).unwrap_or(0));
                    n_sent += n;
                    continue;
                }
                Ok(Sent::WouldBlock | Sent::NoBuffers) => causes.note("sendmmsg: no room in the socket"),
                Err(error) => causes.count(&error),
            }
            n_sent += 1;
        }
        self.n_written = 0;
    }
}

/// One worker, its socket, and who has proved itself there.
struct Clerk<'a> {
    worker: Worker<'a>,
    socket: &'a Socket,
    terms: &'a Terms,
    challenges: &'a Challenges,
    proved: Proved,
    causes: Causes,
}

impl Clerk<'_> {
    /// The request of a datagram, if it is one and its sender has proved itself.
    #[inline]
    fn admit(&mut self, datagram: &[u8], from: Option<SocketAddr>) -> Option<(Header, Class)> {
        request(self.terms, datagram).filter(|_| from.is_some_and(|from| self.proved.has(from.ip())))
    }

    /// Challenges who asks without a proof, and believes who returns a challenge.
    #[cold]
    fn challenge(&mut self, datagram: &[u8], sender: Option<&Sender>) {
        let asked = sender.and_then(|sender| Some((sender, sender.address()?)));
        let number = asked.map(|(_, from)| self.challenges.of(from)).unwrap_or_default();
        match asked {
            Some((_, from)) if datagram == proof(RETURN, number) => self.proved.add(from.ip()),
            Some((sender, _)) if request(self.terms, datagram).is_some() => {
                let sent = socket::send_to(self.socket, &proof(CHALLENGE, number), (sender, Wait::Block));
                let _ = sent.map_err(|error| self.causes.count(&error));
            }
            _ => self.worker.add(STRANGERS, 1),
        }
    }

    /// Answers the requests of several flows, as many at a time as have come.
    fn answer_many(mut self) -> Causes {
        let longest = self.terms.sizes.longest_request().max(self.terms.sizes.longest_response());
        let count = (BATCH_BYTES / longest).clamp(1, BATCH_MAX);
        // A byte more than a request may have, so that one that is too long is noticed.
        let mut requests = ReceiveBatch::of_questions(Shape { count, size: self.terms.sizes.longest_request() + 1 });
        let mut answers = Answers::new(self.terms, count);
        while !self.worker.is_over() {
            match requests.receive(self.socket, Wait::Block) {
                Ok(Some(n)) => {
                    for index in 0..n {
                        match self.admit(requests.payload(index), requests.source_of(index)) {
                            Some(request) => answers.write(request, (&requests, index)),
                            None => self.challenge(requests.payload(index), requests.sender(index).as_ref()),
                        }
                    }
                    self.worker.add(RECEIVED, u64::try_from(answers.n_written).unwrap_or(0));
                    answers.send(&self.worker, (self.socket, &mut self.causes));
                }
                Ok(None) => {}
                Err(error) => self.causes.count(&error),
            }
        }
        self.causes
    }

    /// Answers the requests of one flow, each when it comes.
    fn answer(mut self) -> Causes {
        let mut answers = self.terms.sizes.messages(Side::Responder, self.terms.role.seed);
        // A byte more than a request may have, so that one that is too long is noticed.
        let mut room = vec![0; self.terms.sizes.longest_request() + 1];
        let wait = if self.terms.spins { Wait::Never } else { Wait::Block };
        let mut n_looks = 0_u32;
        loop {
            match socket::recv_from(self.socket, &mut room, wait) {
                Ok(Some((length, sender))) => match self.admit(&room[..length], sender.address()) {
                    Some((header, class)) => {
                        self.worker.add(RECEIVED, 1);
                        let answer = &mut answers[class.idx()];
                        header.write(answer);
                        match socket::send_to(self.socket, answer, (&sender, Wait::Block)) {
                            Ok(Some(_)) => self.worker.add(TRANSACTIONS, 1),
                            Ok(None) => self.causes.note("sendto: no room in the socket"),
                            Err(error) => self.causes.count(&error),
                        }
                    }
                    None => self.challenge(&room[..length], Some(&sender)),
                },
                Ok(None) => {
                    n_looks += 1;
                    if (wait == Wait::Block || n_looks.is_multiple_of(LOOKS)) && self.worker.is_over() {
                        return self.causes;
                    }
                }
                Err(error) => self.causes.count(&error),
            }
            // A flood does not keep the worker beyond the end.
            if wait == Wait::Block && self.worker.is_over() {
                return self.causes;
            }
        }
    }
}
