//! How fast questions are answered over connections that stay open.
//!
//! A closed model: each flow has one question under way and asks the next when it has the answer, so times are service times. A
//! worker with one flow blocks in its calls; one with many waits for all of them with epoll.

use std::sync::Arc;

use fathom_engine::{Crew, Error, Phase, Session, Stop, Test, TestKind, Worker};
use fathom_model::{
    Better, Derivation, Endpoints, Histogram, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit,
    metric::{Measure, Named},
    names::{count, distribution::SERVICE_TIME},
    units::Nanos,
};
use fathom_sys::{
    clock,
    epoll::{Epoll, Events, Interest},
    socket::Wait,
};

use super::LATENCY;
use crate::{
    causes::Causes,
    flows::FlowWatch,
    link::{Opening, PATIENCE, deal},
    options::{self, BUFFER, CONGESTION, DSCP, FLOWS, PORT, REQUEST, RESPONSE, SocketOptions, WORKERS},
    talk::{Buffers, Step, Talk, Turn, Turns},
};

/// Request and response over open connections.
pub(crate) struct TcpRr;

const SOURCE: &str = "docs/methods/tcp_rr.md";
const METRICS: &[Metric] = &[
    Metric::of(
        Named("transactions_per_sec", "transactions"),
        Measure(Unit::PerSec, Better::Higher),
        SOURCE,
        Derivation::rate(Side::Initiator, count::TRANSACTIONS),
    ),
    Metric::of(
        Named("latency_ns_p50", "p50"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.5),
    ),
    Metric::of(
        Named("latency_ns_p90", "p90"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.9),
    ),
    Metric::of(
        Named("latency_ns_p99", "p99"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.99),
    ),
    Metric::of(
        Named("latency_ns_p999", "p99.9"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 0.999),
    ),
    Metric::of(
        Named("latency_ns_max", "max"),
        LATENCY,
        SOURCE,
        Derivation::quantile(Side::Initiator, SERVICE_TIME, 1.0),
    ),
    Metric::of(
        Named("cost_initiator_ns", "initiator's CPU per transaction"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Initiator, count::TRANSACTIONS),
    ),
    Metric::of(
        Named("cost_responder_ns", "responder's CPU per transaction"),
        LATENCY,
        SOURCE,
        Derivation::cost(Side::Responder, count::TRANSACTIONS),
    ),
];
const COUNTERS: &[&str] = &[count::TRANSACTIONS];
const TRANSACTIONS: usize = 0;

/// The two turns as this side sees them.
pub(super) fn turns(role: &Role) -> Result<Turns, Error> {
    let request = options::message_size(&role.settings, &REQUEST)?;
    let response = options::message_size(&role.settings, &RESPONSE)?;
    Ok(match role.side {
        Side::Initiator => Turns { out: request, back: response },
        Side::Responder => Turns { out: response, back: request },
    })
}

impl TestKind for TcpRr {
    fn name(&self) -> &'static str {
        "tcp_rr"
    }

    fn about(&self) -> &'static str {
        "transactions per second and their latency over open TCP connections"
    }

    fn layer(&self) -> Layer {
        Layer::Tcp
    }

    fn is_two_sided(&self, _settings: &Settings) -> bool {
        true
    }

    fn title(&self, settings: &Settings) -> String {
        match settings.count(FLOWS.name).unwrap_or(1) {
            1 => "rr, 1 flow".to_owned(),
            n => format!("rr, {n} flows"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &[FLOWS, WORKERS, REQUEST, RESPONSE, CONGESTION, BUFFER, DSCP, PORT]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role) -> Result<Box<dyn Test>, Error> {
        let turns = turns(role)?;
        let (opening, notes) = Opening::prepare(role, self.name(), &SocketOptions::of(&role.settings))?;
        Ok(Box::new(Exchange { role: role.clone(), opening, turns, notes }))
    }
}

struct Exchange {
    role: Role,
    opening: Opening,
    turns: Turns,
    notes: Vec<Note>,
}

impl Test for Exchange {
    fn endpoints(&self) -> Endpoints {
        self.opening.endpoints()
    }

    fn run(mut self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let (n_flows, n_workers) = options::flows_and_workers(&self.role);
        let sockets: Vec<_> = self.opening.complete(n_flows, session)?.into_iter().map(Arc::new).collect();
        let mut watch = FlowWatch::new(&sockets);
        let (side, turns) = (self.role.side, self.turns);
        let first = if side == Side::Initiator { Turn::Send } else { Turn::Receive };
        let talks = sockets.into_iter().map(|socket| Talk::new(socket, first, turns)).collect();
        let buffers = Buffers::new(turns, self.role.seed);
        let states: Vec<_> = deal(talks, n_workers).into_iter().map(|talks| (talks, buffers.clone())).collect();
        let crew = Crew { states, counters: COUNTERS, cores: &self.role.cores, until: side.into() };
        let conducted = crew.conduct(session, &mut watch, |worker, (mut talks, buffers)| {
            let party = Party { worker, session, side, buffers, tally: Tally::default(), over_since: None };
            match (talks.pop(), talks.is_empty()) {
                (Some(talk), true) => Ok(party.one(talk)),
                (last, _) => {
                    talks.extend(last);
                    let cannot = |cause| Error::System { what: "wait for many connections".to_owned(), cause };
                    party.many(talks).map_err(cannot)
                }
            }
        })?;
        let mut record = conducted.record(side);
        watch.finish(&mut record, conducted.counts());
        for tally in conducted.workers {
            tally.causes.add_to(&mut record);
            if side == Side::Initiator {
                record.distributions.entry(SERVICE_TIME.to_owned()).or_default().merge(&tally.service);
            }
        }
        record.complete &= record.errors.is_empty();
        record.notes.append(&mut self.notes);
        Ok(record)
    }
}

/// What a worker comes back with.
#[derive(Default)]
struct Tally {
    service: Histogram,
    causes: Causes,
}

/// One worker, on either side.
struct Party<'a> {
    worker: Worker<'a>,
    session: &'a Session,
    side: Side,
    buffers: Buffers,
    tally: Tally,
    over_since: Option<Nanos>,
}

/// How long after the end the last answers may take.
const LAST_ANSWERS_MAX: Nanos = Nanos::from_millis(200);

/// What becomes of a conversation after a step.
enum After {
    GoOn,
    Pause,
    Stop,
}

impl Party<'_> {
    /// Holds one conversation with blocking calls, which give up after a while to look whether the trial is over.
    fn one(mut self, mut talk: Talk) -> Tally {
        let mut begin = clock::now();
        while !self.must_end() && !matches!(self.advance(&mut talk, &mut begin, Wait::Block), After::Stop) {}
        self.tally
    }

    /// Holds many conversations at once.
    fn many(mut self, mut talks: Vec<Talk>) -> fathom_sys::Result<Tally> {
        let (epoll, mut events) = (Epoll::new()?, Events::with_capacity(talks.len().min(256)));
        let mut begins = vec![Nanos::ZERO; talks.len()];
        let mut n_open = 0;
        for (token, (talk, begin)) in (0..).zip(talks.iter_mut().zip(&mut begins)) {
            epoll.add(&*talk.socket, token, Interest { write: true, edge: true, ..Interest::READ })?;
            *begin = clock::now();
            let is_open = self.side == Side::Responder || self.drive(talk, begin);
            n_open += usize::from(is_open);
        }
        while n_open > 0 && !self.must_end() {
            epoll.wait(&mut events, Some(PATIENCE))?;
            for event in events.iter() {
                let flow = usize::try_from(event.token).expect("a token is the number of a flow");
                if !self.drive(&mut talks[flow], &mut begins[flow]) {
                    epoll.remove(&*talks[flow].socket)?;
                    n_open -= 1;
                }
            }
        }
        Ok(self.tally)
    }

    /// Takes all steps that can be taken now; whether there will be more.
    fn drive(&mut self, talk: &mut Talk, begin: &mut Nanos) -> bool {
        loop {
            match self.advance(talk, begin, Wait::Never) {
                After::GoOn => {}
                After::Pause => return true,
                After::Stop => return false,
            }
        }
    }

    /// Takes one step and counts what it completed.
    #[inline]
    fn advance(&mut self, talk: &mut Talk, begin: &mut Nanos, wait: Wait) -> After {
        match talk.step(&mut self.buffers, wait) {
            Ok(Step::Received) if self.side == Side::Initiator => {
                let now = clock::now();
                self.worker.add(TRANSACTIONS, 1);
                self.worker.show(now - *begin);
                match self.worker.phase() {
                    Phase::Measure => self.tally.service.record((now - *begin).0),
                    Phase::WarmUp => {}
                    Phase::Over => return After::Stop,
                }
                *begin = now;
                After::GoOn
            }
            Ok(Step::Sent) => {
                if self.side == Side::Responder {
                    self.worker.add(TRANSACTIONS, 1);
                }
                // The answer takes a while: do not ask the kernel for it before it has come.
                if wait == Wait::Never { After::Pause } else { After::GoOn }
            }
            Ok(Step::Part | Step::Received) => After::GoOn,
            Ok(Step::NotNow) => After::Pause,
            Ok(Step::Ended) => {
                if self.side == Side::Initiator {
                    self.tally.causes.note("recv: closed by the other side");
                }
                After::Stop
            }
            Err(error) => {
                self.tally.causes.count(&error);
                After::Stop
            }
        }
    }

    /// Whether to leave off although something is under way: on an abort, or when the last answers take too long.
    fn must_end(&mut self) -> bool {
        if !self.worker.is_over() {
            return false;
        }
        let now = clock::now();
        let since = *self.over_since.get_or_insert(now);
        now - since > LAST_ANSWERS_MAX || self.session.stop.told() == Stop::Abort
    }
}
