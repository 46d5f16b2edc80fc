//! The kinds of test that send what the clients of a capture sent, over TCP or UDP.

use std::sync::Arc;

use fathom_engine::{
    Batching, EndCondition, Error, LoadModel, NamedTarget, Stop, StopFlag, Test, TestKind, TrialContext, WorkerHandle,
    WorkerPool,
    load::{LoadLoop as _, LoadSpec, OfferedLoad, OpenSchedule},
    pace::Pacing,
};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, ReplayRecord, ReplayUnit, Role, Settings, ValueKind,
    units::{Nanos, counted, grouped},
};
use fathom_sys::{policy::Policy, process::limits};

use super::{
    counters::{COUNTERS, OF_LOAD},
    flow_loop::{DueSessions, FlowLoop, Shared},
    metrics::METRICS,
    recording::RawRecordingBuilder,
    results,
    source::{self, Rest},
    target::{self, TARGET, Transport},
};
use crate::{
    options::{CONNECTIONS, COPIES, KEYS, PORTS, RATE, SESSIONS, SPEED, connections, n_copies},
    servers::FollowedServers,
    session_share::SessionShare,
    timing::Timing,
};

/// Sends the turns of the connections of a capture.
pub const TCP_REPLAY: RawReplay = RawReplay {
    name: "tcp_replay",
    about: "what the clients of a capture sent over TCP, sent again at its times, on connections like the recorded ones",
    transport: Transport::Tcp,
};
/// Sends the datagrams of a capture.
pub const UDP_REPLAY: RawReplay = RawReplay {
    name: "udp_replay",
    about: "the datagrams of the clients of a capture, sent again at their times, each flow from a socket of its own",
    transport: Transport::Udp,
};

/// One of the two kinds.
#[derive(Debug, Clone, Copy)]
pub struct RawReplay {
    name: &'static str,
    about: &'static str,
    transport: Transport,
}

/// Descriptors besides those of connections.
const DESCRIPTORS_RESERVED: u64 = 256;

const OPTIONS: [OptionDoc; 12] = [
    OptionDoc { name: "file", value: ValueKind::File, default: None, help: "the recording: pcap or pcapng" },
    OptionDoc { name: TARGET, value: ValueKind::Destination, default: None, help: "the server: HOST:PORT" },
    KEYS,
    SPEED,
    RATE,
    CONNECTIONS,
    COPIES,
    PORTS,
    SESSIONS,
    OptionDoc {
        name: "compare",
        value: ValueKind::Flag,
        default: None,
        help: "compare length, bytes and time of each answer with the recorded one",
    },
    OptionDoc {
        name: "timeout",
        value: ValueKind::Span,
        default: Some("5s"),
        help: "longest wait for an answer, beyond the time that it took in the recording",
    },
    OptionDoc {
        name: "threads",
        value: ValueKind::Count(1, 1024),
        default: None,
        help: "threads that send; default: one per core of the role",
    },
];

impl TestKind for RawReplay {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn layer(&self) -> Layer {
        self.transport.layer()
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        Ok(vec![target::named(settings, self.transport)?])
    }

    fn is_two_sided(&self, _: &Settings) -> bool {
        false
    }

    fn title(&self, settings: &Settings) -> String {
        Timing::title(settings)
    }

    fn ends_with_its_work(&self, settings: &Settings) -> bool {
        Timing::of(settings).is_ok_and(|timing| timing == Timing::AsAnswered)
    }

    fn options(&self) -> &'static [OptionDoc] {
        &OPTIONS
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        if settings.text("file").is_none() {
            return Err(Error::Unsupported {
                what: "there is no recording".to_owned(),
                hint: Some("name a capture by the option file".to_owned()),
            });
        }
        target::named(settings, self.transport)?;
        Timing::of(settings)?;
        FollowedServers::of(settings)?;
        SessionShare::of(settings, 0).map(drop)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        Ok(Box::new(RawTest::prepare(self.transport, role, policy)?))
    }
}

/// The initiator, ready to start.
struct RawTest {
    shared: Arc<Shared>,
    rest: Rest,
    model: LoadModel,
    n_slots: usize,
    n_workers: usize,
    cores: Vec<usize>,
}

impl RawTest {
    fn prepare(transport: Transport, role: &Role, policy: &Policy) -> Result<Self, Error> {
        let settings = &role.settings;
        let timing = Timing::of(settings)?;
        let n_copies = n_copies(settings);
        let builder = RawRecordingBuilder::new(SessionShare::of(settings, role.seed)?, timing.per_copy(n_copies));
        let targets = target::destinations(settings, policy)?;
        let (recording, rest) = source::read(settings, policy, transport, builder)?;
        let n_sessions = recording.schedule.sessions().len() * n_copies;
        if n_sessions == 0 {
            return Err(nothing_to_send(&rest, recording.not_chosen()));
        }
        let as_answered = timing == Timing::AsAnswered;
        let n_slots = connections(settings, timing).min(n_sessions as u64);
        allow(n_slots)?;
        let n_slots = usize::try_from(n_slots).unwrap_or(usize::MAX);
        let n_threads = settings.count("threads").and_then(|n| usize::try_from(n).ok());
        let shared = Shared {
            recording,
            transport,
            targets,
            n_copies,
            is_compared: settings.flag("compare"),
            as_answered,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        };
        Ok(Self {
            shared: Arc::new(shared),
            rest,
            model: if as_answered { LoadModel::Closed } else { LoadModel::Open },
            n_slots,
            n_workers: n_threads.unwrap_or(role.cores.len()).clamp(1, n_slots),
            cores: role.cores.clone(),
        })
    }

    /// The messages of the recording, before any is sent.
    fn account(&self) -> ReplayRecord {
        let recording = &self.shared.recording;
        let left_out = self.rest.left_out.iter().map(|(why, n)| (*why, *n)).chain(recording.not_chosen());
        let left_out: std::collections::BTreeMap<String, u64> = left_out.map(|(why, n)| (why.to_owned(), n)).collect();
        ReplayRecord {
            unit: match self.shared.transport {
                Transport::Tcp => ReplayUnit::Turn,
                Transport::Udp => ReplayUnit::Datagram,
            },
            n_recorded: recording.schedule.n_requests() + left_out.values().sum::<u64>(),
            left_out,
            n_sessions: recording.schedule.sessions().len() as u64,
            left_out_sessions: self.rest.connections.clone(),
            n_copies: self.shared.n_copies as u64,
            recorded_span_ns: recording.schedule.span,
            ..ReplayRecord::default()
        }
    }

    /// What one worker does.
    fn work(&self, worker: WorkerHandle<'_>, stop: &StopFlag) -> Result<results::RawResults, Error> {
        let (shared, idx) = (Arc::clone(&self.shared), worker.idx);
        let sessions = DueSessions { shared, next: idx, step: self.n_workers };
        let n_slots = self.n_slots / self.n_workers + usize::from(idx < self.n_slots % self.n_workers);
        let schedule = OpenSchedule::new(worker.start, [sessions.clone()], Pacing::Precise);
        let spec = LoadSpec {
            model: self.model,
            schedule: Some(schedule),
            n_connections: n_slots,
            counters: OF_LOAD,
            batching: Batching::One,
            counts_all: true,
        };
        let load = OfferedLoad::new(worker, stop, spec).with_all_free(n_slots).with_timeout(self.shared.timeout);
        FlowLoop::new(load, sessions, n_slots)?.run()
    }
}

/// Allows so many sockets.
fn allow(n: u64) -> Result<(), Error> {
    limits::allow_descriptors(n + DESCRIPTORS_RESERVED).map_err(|cause| Error::Unsupported {
        what: format!("{n} connections are more than this process may have open: {cause}: {}", cause.source),
        hint: Some("ask for fewer by --connections, or raise the limit (ulimit -n)".to_owned()),
    })
}

fn nothing_to_send(rest: &Rest, not_chosen: Option<(&'static str, u64)>) -> Error {
    let messages = rest.left_out.iter().map(|(why, n)| (*why, *n)).chain(not_chosen);
    let messages = messages.map(|(why, n)| format!("{n} {why}"));
    let connections = rest.connections.iter().map(|(why, n)| format!("connections {why}: {n}"));
    let reasons: Vec<String> = messages.chain(connections).collect();
    let why =
        if reasons.is_empty() { "it has none, or none to the ports of --ports".to_owned() } else { reasons.join(", ") };
    Error::Unsupported {
        what: format!("the recording has nothing to send over this protocol: {why}"),
        hint: Some("see what it holds: fathom replay FILE".to_owned()),
    }
}

impl Test for RawTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let pool = WorkerPool {
            states: vec![(); self.n_workers],
            counters: COUNTERS,
            cores: &self.cores,
            until: EndCondition::PhasesOver,
        };
        let results = pool.run(context, &mut (), |worker, ()| self.work(worker, &context.stop))?;
        let mut record = results::record(results, self.account());
        let n_unfinished = record.replay.as_ref().map_or(0, |all| all.n_not_sent + all.n_cut_off);
        record.complete &= n_unfinished == 0;
        if n_unfinished > 0 && context.stop.state() != Stop::Abort {
            record.notes.push(unfinished(n_unfinished));
        }
        record.notes.extend(notes(&self.rest));
        Ok(record)
    }
}

/// A note on messages that the end of the trial prevented.
fn unfinished(n: u64) -> Note {
    let text = format!(
        "{n} were not sent or not answered when the time was over: a longer --duration, or more --connections, sends them"
    );
    Note::new("messages-not-sent", text)
}

/// Notes on what the recording lacks.
fn notes(rest: &Rest) -> impl Iterator<Item = Note> + use<> {
    let damage = rest.damage.as_ref().map(|damage| {
        Note::new("recording-damaged", format!("{damage}: nothing after that place of the recording is sent"))
    });
    let unasked = (rest.n_unasked > 0).then(|| {
        let datagrams = counted(rest.n_unasked, "datagram");
        let text = format!("the recording has {datagrams} of servers without a question, which are not sent");
        Note::new("answers-without-question", text)
    });
    let in_no_turn = (rest.n_in_no_turn > 0).then(|| {
        let text = format!(
            "{} B of payload, of both sides, are in no turn, and nothing of them is sent: they are behind lost packets of their \
             connections, or of connections that were open before the capture",
            grouped(rest.n_in_no_turn)
        );
        Note::new("bytes-in-no-turn", text)
    });
    damage.into_iter().chain(unasked).chain(in_no_turn)
}
