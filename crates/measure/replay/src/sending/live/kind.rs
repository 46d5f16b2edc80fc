//! The kind of test that copies requests as they come.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use fathom_engine::{Error, NamedTarget, Test, TestKind, TrialContext};
use fathom_http::{
    HttpClosed,
    url::Url,
    users::{OPTIONS, UserArrivals, VirtualUsers, WorkerShare, concat_options},
};
use fathom_model::{
    Endpoints, Layer, Metric, Note, OptionDoc, Record, ReplayRecord, Role, Settings, Side, ValueKind, units::Nanos,
};
use fathom_sys::{
    policy::{Destination, Policy},
    process::threads,
};

use super::{
    capture::{Copying, Followed, LiveCapture, Seen},
    queue::queues,
    sessions::{LiveQueue, LiveResults, LiveSessions},
};
use crate::{
    options::n_copies,
    sending::{
        choice::Choice,
        compare::Comparison,
        metrics::METRICS,
        options::{self, WHAT_IS_SENT},
        results,
        rewrite::Rewrite,
    },
    servers::FollowedServers,
};

#[derive(Debug, Clone, Copy)]
pub struct LiveReplay;

const NAME: &str = "http_replay_live";

const OWN: [OptionDoc; 2] = [
    OptionDoc {
        name: "live",
        value: ValueKind::Text,
        default: None,
        help: "the device whose connections are followed, such as eth0",
    },
    OptionDoc {
        name: "connections",
        value: ValueKind::Count(1, 1_000_000),
        default: Some("4096"),
        help: "most connections at the same time; of more, those without requests for the longest time are closed",
    },
];

const ALL: [OptionDoc; OWN.len() + WHAT_IS_SENT.len() + OPTIONS.len()] =
    concat_options(&[&OWN, &WHAT_IS_SENT, &OPTIONS]);

impl TestKind for LiveReplay {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "the HTTP requests that a device carries, copied to another server as they come"
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
        format!("copies of requests on {}", settings.text("live").unwrap_or_default())
    }

    fn options(&self) -> &'static [OptionDoc] {
        &ALL
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn check(&self, settings: &Settings) -> Result<(), Error> {
        if settings.text("live").is_none() {
            return Err(Error::Unsupported {
                what: "there is no device to follow".to_owned(),
                hint: Some("name it by the option live".to_owned()),
            });
        }
        options::check(settings)
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            return HttpClosed.prepare(role, policy);
        }
        Ok(Box::new(LiveTest::prepare(role, policy)?))
    }
}

/// The initiator, ready to start.
struct LiveTest {
    users: VirtualUsers,
    capture: LiveCapture,
    copying: Copying,
    comparison: Option<Comparison>,
    timeout: Nanos,
}

impl LiveTest {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let settings = &role.settings;
        let device = settings.text("live").unwrap_or_default();
        if policy.is_for_others() {
            return Err(Error::Unsupported {
                what: format!("a served host lets nobody else read what {device} carries"),
                hint: Some("run it on that host, or reach the host by ssh".to_owned()),
            });
        }
        let comparison = options::comparison(settings)?;
        let copying = Copying {
            choice: Choice::of(settings, role.seed)?,
            rewrite: Rewrite::of(settings)?.marking_copies(),
            n_copies: n_copies(settings),
            awaits_answers: comparison.is_some(),
        };
        let followed = Followed { servers: FollowedServers::of(settings)?, targets: targets(role, policy)? };
        let capture = LiveCapture::open(&device, followed)?;
        let n = settings.count("connections").unwrap_or(1);
        let arrivals = UserArrivals::Population { n, ramp_up: Nanos::ZERO };
        Ok(Self {
            users: VirtualUsers::prepare(NAME, role, policy, arrivals)?.count_everything(),
            capture,
            copying,
            comparison,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        })
    }
}

/// The addresses to which the copies go.
fn targets(role: &Role, policy: &Policy) -> Result<Vec<std::net::SocketAddr>, Error> {
    let texts =
        role.settings.text("url").or_else(|| role.peer.get("address").map(|address| format!("http://{address}/")));
    let mut targets = Vec::new();
    for url in texts.iter().flat_map(|text| text.lines()).filter_map(|line| line.parse::<Url>().ok()) {
        let found = policy.resolve(&url.host, url.port).map_err(|error| Error::Unsupported {
            what: format!("cannot find the address of {}: {error}", url.host),
            hint: None,
        })?;
        targets.extend(found.iter().filter_map(Destination::address));
    }
    Ok(targets)
}

impl Test for LiveTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let Self { users, capture, copying, comparison, timeout } = *self;
        let n_copies = copying.n_copies as u64;
        let (sender, receivers) = queues(users.n_workers());
        let receivers = Mutex::new(receivers.into_iter().map(Some).collect::<Vec<_>>());
        let is_over = Arc::new(AtomicBool::new(false));
        let make = |share: &WorkerShare| {
            let receiver = receivers.lock().ok().and_then(|mut all| all.get_mut(share.idx).and_then(Option::take));
            let receiver = receiver.expect("each worker is made once, and has a queue");
            let queue = LiveQueue { events: receiver, is_over: Arc::clone(&is_over) };
            Ok(LiveSessions::new(queue, share, comparison.clone(), timeout))
        };
        let (ran, seen) = thread::scope(|scope| -> Result<_, Error> {
            let following = threads::start_within(scope, "capture", || capture.run(copying, sender, &is_over));
            let following =
                following.map_err(|cause| Error::System { what: "follow connections".to_owned(), cause })?;
            let ran = users.run(context, make);
            is_over.store(true, Ordering::Relaxed);
            Ok((ran?, following.join().expect("following connections does not panic")))
        })?;
        let (mut record, workers) = ran;
        let notes = [dropped(&seen), cut_short(&seen), nothing_seen(&seen), results::over_http2(seen.n_over_http2)];
        record.notes.extend(notes.into_iter().flatten());
        record.complete &= seen.error.is_none();
        results::add(
            &mut record,
            account(seen, &workers, n_copies),
            workers.into_iter().map(|worker| worker.sent).collect(),
        );
        Ok(record)
    }
}

/// The requests that were seen, before what became of those that were copied.
fn account(seen: Seen, workers: &[LiveResults], n_copies: u64) -> ReplayRecord {
    ReplayRecord {
        n_recorded: seen.n_requests,
        left_out: seen.left_out,
        n_sessions: seen.n_sessions,
        n_copies,
        recorded_span_ns: seen.times.map_or(Nanos::ZERO, |(first, last)| last.since(first)),
        n_without_connection: workers.iter().map(|worker| worker.n_without_connection).sum(),
        ..ReplayRecord::default()
    }
}

/// A note on frames that were not followed.
fn dropped(seen: &Seen) -> Option<Note> {
    (seen.n_dropped > 0).then(|| {
        let text = format!(
            "the kernel dropped {} frames because they came faster than they were followed: requests in them are in no count, or \
             count as such with packets lost",
            seen.n_dropped
        );
        Note::new("frames-not-followed", text)
    })
}

/// A note on the end of the capture before that of the trial.
fn cut_short(seen: &Seen) -> Option<Note> {
    seen.error
        .as_ref()
        .map(|error| Note::new("device-lost", format!("the device could not be followed to the end: {error}")))
}

/// A note if no request was seen.
fn nothing_seen(seen: &Seen) -> Option<Note> {
    (seen.n_requests == 0 && seen.error.is_none()).then(|| {
        let text = "no request of HTTP was seen; connections to the target itself are not followed, and those over TLS cannot be";
        Note::new("no-request-seen", text)
    })
}
