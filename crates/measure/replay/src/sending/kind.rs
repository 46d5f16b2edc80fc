//! The kind of test that sends the requests of a recording.

use std::{collections::BTreeMap, sync::Arc};

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
    recording::{Recording, RecordingBuilder},
    results,
    rewrite::Rewrite,
    sessions::{Sessions, Shared},
    source,
    spooled_exchange::RecordedAnswers,
};
use crate::{
    options::{CONNECTIONS, CONNECTIONS_AS_RECORDED, KEYS, RATE, SPEED, connections, n_copies},
    schedule::RequestNumber,
    timing::Timing,
};

#[derive(Debug, Clone, Copy)]
pub struct HttpReplay;

const NAME: &str = "http_replay";
const OWN: [OptionDoc; 7] = [
    OptionDoc {
        name: "file",
        value: ValueKind::File,
        default: None,
        help: "the recording: pcap, pcapng or an access log",
    },
    KEYS,
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
    SPEED,
    RATE,
    CONNECTIONS,
];

const ALL: [OptionDoc; OWN.len() + WHAT_IS_SENT.len() + OPTIONS.len()] =
    concat_options(&[&OWN, &WHAT_IS_SENT, &OPTIONS]);

impl TestKind for HttpReplay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the HTTP requests of a capture or an access log, sent again at their times, on connections like the recorded ones"
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
        Timing::title(settings)
    }

    fn ends_with_its_work(&self, settings: &Settings) -> bool {
        Timing::of(settings).is_ok_and(|timing| timing == Timing::AsAnswered)
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
            let n = role.settings.count(CONNECTIONS.name).unwrap_or(CONNECTIONS_AS_RECORDED);
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
            timing.per_copy(n_copies(settings)),
            if comparison.is_some() { RecordedAnswers::Kept } else { RecordedAnswers::Dropped },
        );
        let (recording, damage) = source::read(settings, policy, builder)?;
        if recording.schedule.n_requests() == 0 {
            return Err(nothing_to_send(&recording));
        }
        let goes_on = timing == Timing::AsAnswered;
        let shared = Arc::new(Shared {
            recording,
            n_copies: n_copies(settings),
            comparison,
            goes_on,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        });
        let arrivals = arrivals(&shared, connections(settings, timing));
        let users = VirtualUsers::prepare(NAME, role, policy, arrivals)?.count_everything();
        let notes = damage.map(|damage| {
            Note::new("recording-damaged", format!("{damage}: nothing after that place of the recording is sent"))
        });
        let recording = &shared.recording;
        let notes = [notes, results::over_http2(recording.n_over_http2), undecrypted(&recording.undecrypted)];
        let notes = notes.into_iter().flatten().collect();
        Ok(Self { users, shared, notes })
    }
}

/// When sessions begin: with their first request, or as others end.
fn arrivals(shared: &Shared, n_connections: u64) -> UserArrivals {
    let sessions = shared.recording.schedule.sessions();
    let n_slots = n_connections.min((sessions.len() * shared.n_copies) as u64);
    if shared.goes_on {
        return UserArrivals::Population { n: n_slots, ramp_up: Nanos::ZERO };
    }
    let due =
        |number: &RequestNumber| std::iter::repeat_n(shared.recording.schedule.request(*number).due, shared.n_copies);
    let times = sessions.iter().flat_map(due).collect();
    UserArrivals::Times { times, n_slots }
}

/// The host of the target, for requests of a log that lacks theirs.
fn host(role: &Role) -> Option<String> {
    let url = role.settings.text("url").and_then(|text| text.parse::<Url>().ok());
    url.map(|url| url.host_field()).or_else(|| role.peer.get("address").cloned())
}

fn nothing_to_send(recording: &Recording) -> Error {
    let reasons: Vec<String> = recording.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
    let undecrypted = undecrypted_words(&recording.undecrypted);
    let why = match reasons.join(", ") {
        why if why.is_empty() => undecrypted.unwrap_or_else(|| "it has none".to_owned()),
        why => undecrypted.into_iter().fold(why, |why, undecrypted| format!("{why}; {undecrypted}")),
    };
    Error::Unsupported {
        what: format!("the recording has no request to send: {why}"),
        hint: Some("see what it holds: fathom replay FILE".to_owned()),
    }
}

/// Says which connections over TLS were not decrypted, if there are any.
fn undecrypted_words(connections: &BTreeMap<&'static str, u64>) -> Option<String> {
    let reasons: Vec<String> = connections.iter().map(|(why, n)| format!("{n} {why}")).collect();
    (!reasons.is_empty()).then(|| format!("of the connections over TLS, {}", reasons.join(", ")))
}

/// A note on requests that are in no count.
fn undecrypted(connections: &BTreeMap<&'static str, u64>) -> Option<Note> {
    let words = undecrypted_words(connections)?;
    Some(Note::new("not-decrypted", format!("{words}: the requests that were not decrypted are in no count")))
}

impl Test for ReplayTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let make = |share: &WorkerShare| Ok(Sessions::new(&self.shared, share));
        let (mut record, workers) = self.users.run(context, make)?;
        let all = results::add(&mut record, self.account(), workers);
        let n_unfinished = all.n_not_sent + all.n_cut_off;
        let note = unfinished(n_unfinished, all.n_to_send()).filter(|_| context.stop.state() != Stop::Abort);
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
            n_recorded: recording.schedule.n_requests() + n_left_out,
            left_out: recording.left_out.iter().map(|(why, n)| ((*why).to_owned(), *n)).collect(),
            n_sessions: recording.schedule.sessions().len() as u64,
            n_copies: self.shared.n_copies as u64,
            recorded_span_ns: recording.schedule.span,
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
