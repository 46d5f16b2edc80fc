//! One flow per worker, with blocking calls: a wait for one connection needs no list of connections.

use std::sync::Arc;

use fathom_engine::{Counts, Crew, Error, Model, Phase, Session, Stop, Test, Worker};
use fathom_model::{Endpoints, Note, Record, Role, Side, units::Nanos};
use fathom_sys::{
    clock,
    socket::{Socket, Wait},
};

use super::{
    SPIN,
    silence::{CLOSED, SILENT, is_silent},
    sizes::Sizes,
    talk::{Messages, Step, Talk, WRONG},
    tally::{self, Tally, names},
};
use crate::{
    flows::FlowWatch,
    link::Opening,
    options::{self, SocketOptions},
};

/// How long after the end the last answers may take.
const LAST_ANSWERS_MAX: Nanos = Nanos::from_millis(200);
/// So many looks without success go by before a spinning worker looks at the phase, which takes as long as one of them.
const LOOKS: u32 = 64;

pub(super) fn prepare(
    kind: &'static str,
    role: &Role,
    (sizes, options): (Sizes, &SocketOptions),
) -> Result<Box<dyn Test>, Error> {
    let (opening, notes) = Opening::prepare(role, kind, options)?;
    Ok(Box::new(Alone { role: role.clone(), opening, sizes, notes }))
}

struct Alone {
    role: Role,
    opening: Opening,
    sizes: Sizes,
    notes: Vec<Note>,
}

impl Test for Alone {
    fn endpoints(&self) -> Endpoints {
        self.opening.endpoints()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let (n_flows, _) = options::flows_and_workers(&self.role);
        let connect = self.opening.connect_times();
        let sockets: Vec<_> = self.opening.complete(n_flows, session)?.into_iter().map(Arc::new).collect();
        let mut watch = FlowWatch::new(&sockets);
        let side = self.role.side;
        let messages = Messages::new(&self.sizes, side, self.role.seed);
        let states: Vec<_> = sockets.into_iter().map(|socket| (socket, messages.clone())).collect();
        let crew = Crew { states, counters: names::CLOSED, cores: &self.role.cores, until: side.into() };
        let wait = if self.role.settings.flag(SPIN.name) { Wait::Never } else { Wait::Block };
        let mut conducted = crew.conduct(session, &mut watch, |worker, (socket, messages)| {
            let party = Party { worker, session, side, wait, messages, tally: Tally::default(), over_since: None };
            Ok(match side {
                Side::Initiator => party.ask(socket, &self.sizes),
                Side::Responder => party.answer(socket),
            })
        })?;
        if let Some(tally) = conducted.workers.first_mut() {
            tally.connect = connect;
        }
        let mut record = tally::record(conducted, (side, Model::Closed));
        watch.finish(&mut record, Counts::default());
        if wait == Wait::Never {
            let text = "each worker looked for messages all the time, which takes a core whatever there is to do";
            self.notes.push(Note { id: "spin".to_owned(), text: text.to_owned() });
        }
        record.notes.append(&mut self.notes);
        Ok(record)
    }
}

/// One worker and its flow, on either side.
struct Party<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    side: Side,
    wait: Wait,
    messages: Messages,
    tally: Tally,
    over_since: Option<Nanos>,
}

impl Party<'_> {
    fn ask(mut self, socket: Arc<Socket>, sizes: &Sizes) -> Tally {
        let mut n = 0;
        let mut talk = Talk::asking(socket, sizes.at(n));
        let mut begin = clock::now();
        while let Some(step) = self.step(&mut talk) {
            if step == Step::Sent {
                continue;
            }
            let now = clock::now();
            self.worker.add(names::TRANSACTIONS, 1);
            self.worker.show(now - begin);
            match self.worker.phase() {
                Phase::Measure => self.tally.service.record((now - begin).0),
                Phase::WarmUp => {}
                Phase::Over => return self.tally,
            }
            n = n.wrapping_add(1);
            talk.ask_next(sizes.at(n));
            begin = now;
        }
        self.tally.n_unfinished += 1;
        if is_silent(clock::now() - begin, &self.tally.service) && self.session.stop.told() != Stop::Abort {
            self.tally.causes.note(SILENT);
        }
        self.tally
    }

    fn answer(mut self, socket: Arc<Socket>) -> Tally {
        let mut talk = Talk::answering(socket);
        while let Some(step) = self.step(&mut talk) {
            self.worker.add(names::TRANSACTIONS, u64::from(step == Step::Sent));
        }
        self.tally
    }

    /// Goes on until a message is sent or received as a whole; nothing when there will be no more.
    #[inline]
    fn step(&mut self, talk: &mut Talk) -> Option<Step> {
        let mut n_looks = 0;
        loop {
            match talk.step(&mut self.messages, self.wait) {
                Ok(step @ (Step::Sent | Step::Received)) => return Some(step),
                Ok(Step::Part) => {}
                Ok(Step::NotNow) => {
                    n_looks += 1;
                    if (self.wait == Wait::Block || n_looks % LOOKS == 0) && self.must_end() {
                        return None;
                    }
                }
                Ok(Step::Ended) => {
                    if self.side == Side::Initiator {
                        self.tally.causes.note(CLOSED);
                    }
                    return None;
                }
                Ok(Step::Wrong) => {
                    self.tally.causes.note(WRONG);
                    return None;
                }
                Err(error) => {
                    // An initiator that goes with an answer under way, as at the end of a trial, counts it itself.
                    if self.side == Side::Initiator || !error.is_abandoned() {
                        self.tally.causes.count(&error);
                    }
                    return None;
                }
            }
        }
    }

    /// Whether to leave off although nothing has come: the initiator waits a little for the last answer.
    fn must_end(&mut self) -> bool {
        if !self.worker.is_over() {
            return false;
        }
        let now = clock::now();
        let since = *self.over_since.get_or_insert(now);
        self.side == Side::Responder || now - since > LAST_ANSWERS_MAX || self.session.stop.told() == Stop::Abort
    }
}
