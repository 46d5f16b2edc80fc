//! The kind of test that sends the requests of a recording.

use std::{io, path::PathBuf, sync::Arc};

use fathom_capture::{CaptureFileError, TrafficLimits, TrafficReader, read_frames};
use fathom_engine::{Error, NamedTarget, Test, TestKind, TrialContext};
use fathom_http::{
    HttpClosed,
    metric_definitions::MetricPage,
    users::{OPTIONS, UserArrivals, VirtualUsers, WorkerShare, concat_options},
};
use fathom_model::{
    Better::Neither,
    Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{MetricName, UnitAndSense},
    names::distribution,
    replay::ReplayRecord,
    units::Nanos,
};
use fathom_sys::policy::Policy;

use super::{
    choice::Choice,
    compare::Comparison,
    recording::{Recording, RecordingBuilder, RequestNumber},
    rewrite::Rewrite,
    sessions::{SessionResults, Sessions, Shared},
    timing::Timing,
};
use crate::{HttpObserver, RequestFate};

#[derive(Debug, Clone, Copy)]
pub struct HttpReplay;

const NAME: &str = "http_replay";
/// The most connections at the same time, unless the option says otherwise.
const CONNECTIONS_AS_RECORDED: u64 = 4096;
/// The same if connections follow each other as fast as they can.
const CONNECTIONS_AS_ANSWERED: u64 = 64;
/// The number of answers that were compared, and of those that differ.
const COMPARED: &str = "answers_compared";
const DIFFERENT: &str = "answers_different";
/// The distribution of the times of answers in the recording.
const RECORDED_TIME: &str = "recorded_time_ns";

const OWN: [OptionDoc; 11] = [
    OptionDoc { name: "file", value: ValueKind::File, default: None, help: "the capture, pcap or pcapng" },
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
        name: "copies",
        value: ValueKind::Count(1, 10_000),
        default: Some("1"),
        help: "send each connection so many times, each on connections of its own",
    },
    OptionDoc {
        name: "sessions",
        value: ValueKind::Text,
        default: None,
        help: "share of the recorded connections to send, chosen at random by the seed, such as 10%",
    },
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 1_000_000),
        default: None,
        help: "most connections at the same time; default: 4096, and 64 with --speed max",
    },
    OptionDoc {
        name: "methods",
        value: ValueKind::Text,
        default: None,
        help: "send only requests of these methods, such as GET,HEAD",
    },
    OptionDoc {
        name: "only",
        value: ValueKind::Text,
        default: None,
        help: "send only requests whose path and query match this regular expression",
    },
    OptionDoc {
        name: "skip",
        value: ValueKind::Text,
        default: None,
        help: "leave out requests whose path and query match this regular expression",
    },
    OptionDoc {
        name: "header",
        value: ValueKind::Fields,
        default: None,
        help: "header fields to set, one `Name: value` per line; `Name:` alone removes it",
    },
    OptionDoc {
        name: "compare",
        value: ValueKind::Flag,
        default: None,
        help: "compare status, header fields, content and time of each answer with the recorded one",
    },
];

/// What the comparison leaves out; on its own, so that the table above is that of sending.
const IGNORE: [OptionDoc; 1] = [OptionDoc {
    name: "ignore",
    value: ValueKind::Text,
    default: None,
    help: "not compared: `content`, `headers` or names of fields, with commas between them",
}];

const ALL: [OptionDoc; OWN.len() + IGNORE.len() + OPTIONS.len()] = concat_options(&[&OWN, &IGNORE, &OPTIONS]);

/// Why some values are absent.
const NOT_DUE: &str = "no request is due at a time with --speed max";
const NOT_COMPARED: &str = "answers are not compared without --compare";

const PAGE: MetricPage = MetricPage("docs/methods/http_replay.md");

const METRICS: &[Metric] = &[
    PAGE.answered_rate(),
    PAGE.quantile(MetricName("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(MetricName("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(MetricName("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(MetricName("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(MetricName("response_ns_p50", "from due time p50"), distribution::RESPONSE_TIME, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("response_ns_p99", "from due time p99"), distribution::RESPONSE_TIME, 0.99)
        .unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p50", "lag p50"), distribution::SCHEDULE_LAG, 0.5).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_p99", "lag p99"), distribution::SCHEDULE_LAG, 0.99).unless(NOT_DUE),
    PAGE.quantile(MetricName("lag_ns_max", "lag max"), distribution::SCHEDULE_LAG, 1.0).unless(NOT_DUE),
    PAGE.metric(
        MetricName("recorded_ns_p50", "recorded p50"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(Side::Initiator, RECORDED_TIME, 0.5),
    )
    .unless(NOT_COMPARED),
    PAGE.metric(
        MetricName("recorded_ns_p99", "recorded p99"),
        UnitAndSense(Unit::Nanos, Neither),
        Derivation::quantile(Side::Initiator, RECORDED_TIME, 0.99),
    )
    .unless(NOT_COMPARED),
    PAGE.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(MetricName("connect_ns_p50", "connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received_rate(),
    PAGE.error_share("errors"),
    PAGE.not_2xx(),
    PAGE.share(MetricName("different_ratio", "answers that differ"), (DIFFERENT, COMPARED)).unless(NOT_COMPARED),
    PAGE.cpu_cost(),
];

impl TestKind for HttpReplay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the HTTP/1 requests of a capture, sent again at their times, on connections like the recorded ones"
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
                hint: Some("name a capture by the option file".to_owned()),
            });
        }
        Timing::of(settings)?;
        Choice::of(settings, 0)?;
        Rewrite::of(settings)?;
        Comparison::of(settings).map(drop)
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
        let comparison = settings.flag("compare").then(|| Comparison::of(settings)).transpose()?;
        let (recording, damage) = read(role, policy, timing, comparison.is_some())?;
        if recording.n_requests() == 0 {
            return Err(nothing_to_send(&recording));
        }
        let n_copies = usize::try_from(settings.count("copies").unwrap_or(1)).unwrap_or(usize::MAX);
        let goes_on = timing == Timing::AsAnswered;
        let shared = Arc::new(Shared {
            recording,
            n_copies,
            comparison,
            goes_on,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        });
        let arrivals = arrivals(&shared, settings.count("connections"));
        let users = VirtualUsers::prepare(NAME, role, policy, arrivals)?.count_everything();
        let notes = damage.map(|damage| {
            Note::new("capture-damaged", format!("{damage}: nothing after that place of the capture is sent"))
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

/// Reads the capture. Returns what is to be sent, and why the file was not read to its end.
fn read(
    role: &Role,
    policy: &Policy,
    timing: Timing,
    keeps_answers: bool,
) -> Result<(Recording, Option<String>), Error> {
    let settings = &role.settings;
    let path = PathBuf::from(settings.text("file").unwrap_or_default());
    let unusable = |why: String, hint: Option<&str>| Error::Unsupported {
        what: format!("cannot send the requests of {}: {why}", path.display()),
        hint: hint.map(str::to_owned),
    };
    let not_kept = |error: io::Error| {
        let folder = std::env::temp_dir();
        unusable(
            format!("they do not fit in {}: {error}", folder.display()),
            Some("set TMPDIR to a folder with more room"),
        )
    };
    let file = policy.open(&path).map_err(|error| unusable(error.to_string(), None))?;
    let choice = Choice::of(settings, role.seed)?;
    let builder = RecordingBuilder::new(choice, Rewrite::of(settings)?, timing, keeps_answers).map_err(not_kept)?;
    let builder = std::cell::RefCell::new(builder);
    let mut reader =
        TrafficReader::new(HttpObserver::new(|exchange| builder.borrow_mut().add(exchange)), TrafficLimits::USUAL);
    let end = read_frames(file, |frame| {
        reader.take(&frame);
        Ok(())
    });
    let damage = match end {
        Ok(_) => None,
        Err(error @ (CaptureFileError::Damaged(1..) | CaptureFileError::Block(1..))) => Some(error.to_string()),
        Err(error) => return Err(unusable(error.to_string(), error.hint())),
    };
    let counts = reader.finish().0.into_counts();
    let left_out = counts.requests.into_iter().filter(|(fate, _)| *fate != RequestFate::Whole);
    let left_out = left_out.map(|(fate, n)| (fate.words(), n));
    let recording = builder.into_inner().finish(left_out).map_err(not_kept)?;
    Ok((recording, damage))
}

fn nothing_to_send(recording: &Recording) -> Error {
    let reasons: Vec<String> = recording.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
    let why = if reasons.is_empty() { "it has no requests of HTTP/1".to_owned() } else { reasons.join(", ") };
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
        let mut all = self.books();
        let (mut lag, mut response, mut recorded) = <(fathom_model::Histogram, _, _)>::default();
        for worker in workers {
            let SessionResults { n_answered, n_failed, n_cut_off, compared, error, .. } = worker;
            all.merge(&ReplayRecord { n_answered, n_failed, n_cut_off, compared, ..ReplayRecord::default() });
            lag.merge(&worker.lag);
            fathom_model::Histogram::merge(&mut response, &worker.response);
            fathom_model::Histogram::merge(&mut recorded, &worker.recorded);
            if let Some(error) = error {
                record.complete = false;
                record
                    .notes
                    .push(Note::new("recording-unreadable", format!("the recording could not be read on: {error}")));
            }
        }
        all.n_not_sent = all.n_to_send().saturating_sub(all.n_answered + all.n_failed + all.n_cut_off);
        // The load driver knows only when users came.
        record.distributions.remove(distribution::SCHEDULE_LAG);
        let named =
            [(distribution::SCHEDULE_LAG, lag), (distribution::RESPONSE_TIME, response), (RECORDED_TIME, recorded)];
        let present = named.into_iter().filter(|(_, times)| times.count() > 0);
        record.distributions.extend(present.map(|(name, times)| (name.to_owned(), times)));
        record.notes.extend(self.notes);
        record.totals.extend(totals(&all));
        record.notes.extend(unfinished(&all));
        record.complete &= all.n_not_sent + all.n_cut_off == 0;
        record.replay = Some(all);
        Ok(record)
    }
}

/// The counts of compared answers, for their metric.
fn totals(all: &ReplayRecord) -> impl Iterator<Item = (String, u64)> + use<> {
    let compared = all
        .compared
        .as_ref()
        .map(|compared| [(DIFFERENT, compared.n_different), (COMPARED, compared.n_different + compared.n_same)]);
    compared.into_iter().flatten().map(|(name, n)| (name.to_owned(), n))
}

/// A note on requests that the end of the trial prevented.
fn unfinished(all: &ReplayRecord) -> Option<Note> {
    let n = all.n_not_sent + all.n_cut_off;
    (n > 0).then(|| Note::new("requests-not-sent", format!(
            "{n} of {} requests were not sent or not answered when the time was over: a longer --duration, or more --connections, sends them",
            all.n_to_send()
        )))
}

impl ReplayTest {
    /// The requests of the recording, before any is sent.
    fn books(&self) -> ReplayRecord {
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
