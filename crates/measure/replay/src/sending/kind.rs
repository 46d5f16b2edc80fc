//! The kind of test that sends the requests of a recording.

use std::sync::Arc;

use fathom_engine::{Error, NamedTarget, Stop, Test, TestKind, TrialContext};
use fathom_http::{
    HttpClosed,
    url::Url,
    users::{OPTIONS, UserArrivals, VirtualUsers, WorkerShare, concat_options},
};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, ReplayRecord, Role, Settings, Side, ValueKind, units::Nanos,
};
use fathom_sys::policy::Policy;

use super::{
    choice::Choice,
    metrics::METRICS,
    options::{self, WHAT_IS_SENT},
    recording::{Recording, RecordingBuilder, RequestNumber},
    results,
    rewrite::Rewrite,
    sessions::{Sessions, Shared},
    source,
    timing::Timing,
};
#[derive(Debug, Clone, Copy)]
pub struct HttpReplay;

const NAME: &str = "http_replay";
/// The most connections at the same time, unless the option says otherwise.
const CONNECTIONS_AS_RECORDED: u64 = 4096;
/// The same if connections follow each other as fast as they can.
const CONNECTIONS_AS_ANSWERED: u64 = 64;
const OWN: [OptionDoc; 6] = [
    OptionDoc {
        name: "file",
        value: ValueKind::File,
        default: None,
        help: "the recording: pcap, pcapng or an access log",
    },
    OptionDoc {
        name: "log-format",
        value: ValueKind::Text,
        default: None,
        help: "format of the lines of an access log, as nginx's log_format says it; recognised without this",
    },
    OptionDoc {
        name: "empty-bodies",
        value: ValueKind::Flag,
        default: None,
        help: "take requests whose body is not in an access log as ones with an empty body",
    },
    OptionDoc {
        name: "speed",
        value: ValueKind::Text,
        default: None,
        help: "2x: twice as fast as recorded; max: each request when the one before it is answered; default: 1x",
    },
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "requests per second, in the recorded order, instead of the recorded times",
    },
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 1_000_000),
        default: None,
        help: "most connections at the same time; default: 4096, and 64 with --speed max",
    },
];

const ALL: [OptionDoc; OWN.len() + WHAT_IS_SENT.len() + OPTIONS.len()] =
    concat_options(&[&OWN, &WHAT_IS_SENT, &OPTIONS]);

impl TestKind for HttpReplay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the HTTP/1 requests of a capture or an access log, sent again at their times, on connections like the recorded ones"
    }

    fn layer(&self) -> Layer {
        Layer::Http
    }

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        fathom_http::target::destinations(settings)
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let file = settings.text("file").unwrap_or_default();
        let name = file.rsplit('/').next().unwrap_or_default();
        match Timing::of(settings) {
            Ok(Timing::Rate(rate)) => format!("replay of {name} at {rate}"),
            Ok(Timing::AsAnswered) => format!("replay of {name}, as fast as answers come"),
            Ok(Timing::Recorded { speed }) if (speed - 1.0).abs() > f64::EPSILON => {
                format!("replay of {name}, {speed}x")
            }
            _ => format!("replay of {name}"),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &ALL
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        if settings.text("file").is_none() {
            return Err(Error::Unsupported {
                what: "there is no recording".to_owned(),
                hint: Some("name a capture or an access log by the option file".to_owned()),
            });
        }
        Timing::of(settings)?;
        source::log_options(settings)?;
        options::check(settings)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            let n = role.settings.count("connections").unwrap_or(CONNECTIONS_AS_RECORDED);
            let settings = role.settings.clone().with("connections", n.to_string());
            return HttpClosed.prepare(&Role { settings, ..role.clone() }, policy);
        }
        Ok(Box::new(ReplayTest::prepare(role, policy)?))
    }
}

/// The initiator, ready to start.
struct ReplayTest {
    users: VirtualUsers,
    shared: Arc<Shared>,
    notes: Vec<Note>,
}

impl ReplayTest {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let settings = &role.settings;
        let timing = Timing::of(settings)?;
        let comparison = options::comparison(settings)?;
        let builder = RecordingBuilder::new(
            Choice::of(settings, role.seed)?,
            Rewrite::of(settings)?.with_host(host(role)),
            timing.per_copy(options::n_copies(settings)),
            comparison.is_some(),
        );
        let (recording, damage) = source::read(settings, policy, builder)?;
        if recording.n_requests() == 0 {
            return Err(nothing_to_send(&recording));
        }
        let goes_on = timing == Timing::AsAnswered;
        let shared = Arc::new(Shared {
            recording,
            n_copies: options::n_copies(settings),
            comparison,
            goes_on,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        });
        let arrivals = arrivals(&shared, settings.count("connections"));
        let users = VirtualUsers::prepare(NAME, role, policy, arrivals)?.count_everything();
        let notes = damage.map(|damage| {
            Note::new("recording-damaged", format!("{damage}: nothing after that place of the recording is sent"))
        });
        Ok(Self { users, shared, notes: notes.into_iter().collect() })
    }
}

/// When sessions begin: with their first request, or as others end.
fn arrivals(shared: &Shared, connections: Option<u64>) -> UserArrivals {
    let sessions = shared.recording.sessions();
    let n = (sessions.len() * shared.n_copies) as u64;
    if shared.goes_on {
        let n_slots = connections.unwrap_or(CONNECTIONS_AS_ANSWERED).min(n);
        return UserArrivals::Population { n: n_slots, ramp_up: Nanos::ZERO };
    }
    let due = |session: &RequestNumber| std::iter::repeat_n(shared.recording.request(*session).due, shared.n_copies);
    let times = sessions.iter().flat_map(due).collect();
    UserArrivals::Times { times, n_slots: connections.unwrap_or(CONNECTIONS_AS_RECORDED).min(n) }
}

/// The host of the target, for requests of a log that lacks theirs.
fn host(role: &Role) -> Option<String> {
    let url = role.settings.text("url").and_then(|text| text.parse::<Url>().ok());
    url.map(|url| url.host_field()).or_else(|| role.peer.get("address").cloned())
}

fn nothing_to_send(recording: &Recording) -> Error {
    let reasons: Vec<String> = recording.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
    let why = if reasons.is_empty() { "it has none".to_owned() } else { reasons.join(", ") };
    Error::Unsupported {
        what: format!("the recording has no request to send: {why}"),
        hint: Some("see what it holds: fathom replay FILE".to_owned()),
    }
}

impl Test for ReplayTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &TrialContext) -> Result<Record, Error> {
        let make = |share: &WorkerShare| Ok(Sessions::new(&self.shared, share));
        let (mut record, workers) = self.users.run(session, make)?;
        let all = results::add(&mut record, self.account(), workers);
        let n_unfinished = all.n_not_sent + all.n_cut_off;
        let note = unfinished(n_unfinished, all.n_to_send()).filter(|_| session.stop.state() != Stop::Abort);
        record.complete &= n_unfinished == 0;
        record.notes.extend(note);
        record.notes.extend(self.notes);
        Ok(record)
    }
}

impl ReplayTest {
    /// The requests of the recording, before any is sent.
    fn account(&self) -> ReplayRecord {
        let recording = &self.shared.recording;
        let n_left_out: u64 = recording.left_out.values().sum();
        ReplayRecord {
            n_recorded: recording.n_requests() + n_left_out,
            left_out: recording.left_out.iter().map(|(why, n)| ((*why).to_owned(), *n)).collect(),
            n_sessions: recording.sessions().len() as u64,
            n_copies: self.shared.n_copies as u64,
            recorded_span_ns: recording.span,
            ..ReplayRecord::default()
        }
    }
}

/// A note on requests that the end of the trial prevented.
fn unfinished(n: u64, n_all: u64) -> Option<Note> {
    (n > 0).then(|| {
        let text = format!(
            "{n} of {n_all} requests were not sent or not answered when the time was over: a longer --duration, or more \
             --connections, sends them"
        );
        Note::new("requests-not-sent", text)
    })
}
