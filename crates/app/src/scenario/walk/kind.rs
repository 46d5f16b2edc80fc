//! The kind of test that a scenario is.

use std::sync::Arc;

use fathom_engine::{Error, Session, Test, TestKind};
use fathom_http::{
    metrics::Page,
    users::{Coming, Crowd, OPTIONS, Row, joined},
};
use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{Measure, Named, UsersValue},
    names::distribution,
    steps::{UsersRecord, Visits},
    units::Nanos,
};
use fathom_sys::policy::Policy;

use super::{
    script::{Script, servers},
    tally,
    trace::{Exchange, Trace},
    walkers::{Haste, Manner, Shared, Standing, Walked, Walkers},
};

/// The kind `app_scenario`.
#[derive(Debug, Clone, Copy)]
pub struct AppScenario;

pub(super) const NAME: &str = "app_scenario";

/// What is said of the scenario, beside what all scripted users have.
const OWN: [OptionDoc; 8] = [
    OptionDoc {
        name: "script",
        value: ValueKind::Fields,
        default: None,
        help: "the text of the scenario; without it, that of file",
    },
    OptionDoc {
        name: "file",
        value: ValueKind::File,
        default: None,
        help: "the scenario; its data files are relative to its folder",
    },
    OptionDoc {
        name: "users",
        value: ValueKind::Count(1, 1_000_000),
        default: None,
        help: "number of users, each starting over when done, instead of what the scenario says",
    },
    OptionDoc { name: "ramp", value: ValueKind::Span, default: None, help: "time over which those users come" },
    OptionDoc {
        name: "iterations",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "how often each of those users goes through the scenario before it leaves",
    },
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "users who come per second, go through once and leave, instead of what the scenario says",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(&["constant", "poisson"]),
        default: Some("constant"),
        help: "how users of a rate are spaced",
    },
    OptionDoc {
        name: "seats",
        value: ValueKind::Count(1, 1_000_000),
        default: None,
        help: "the most users of a rate who are there at once",
    },
];

const ALL: [OptionDoc; OWN.len() + OPTIONS.len()] = joined(&[&OWN, &OPTIONS]);

const PAGE: Page = Page("docs/methods/app_scenario.md");

const fn users(named: Named, measure: Measure, of: UsersValue) -> Metric {
    PAGE.metric(named, measure, Derivation::Users { of })
}

const METRICS: &[Metric] = &[
    PAGE.answered(),
    users(Named("users_per_sec", "users"), Measure(Unit::PerSec, Neither), UsersValue::Begun),
    users(Named("users_finished_per_sec", "users through"), Measure(Unit::PerSec, Higher), UsersValue::Finished),
    users(Named("gave_up_ratio", "users who gave up"), Measure(Unit::Ratio, Lower), UsersValue::GaveUpShare),
    users(Named("step_errors_ratio", "steps failed"), Measure(Unit::Ratio, Lower), UsersValue::Errors),
    PAGE.quantile(Named("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(Named("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(Named("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(Named("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(Named("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(Named("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(Named("connect_ns_p50", "connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received(),
    PAGE.errors("requests without an answer"),
    PAGE.cost(),
];

impl TestKind for AppScenario {
    fn name(&self) -> &'static str {
        NAME
    }

    fn about(&self) -> &'static str {
        "users who follow a scenario: steps, data, think times, expectations"
    }

    fn layer(&self) -> Layer {
        Layer::App
    }

    fn is_two_sided(&self, settings: &Settings) -> bool {
        settings.text("url").is_none()
    }

    fn title(&self, settings: &Settings) -> String {
        let file = settings.text("file");
        let name = file.as_deref().and_then(|file| file.rsplit('/').next()).unwrap_or("scenario");
        match (settings.count("users"), settings.rate("rate")) {
            (Some(users), _) => format!("{name}, {users} users"),
            (None, Some(rate)) => format!("{name}, users at {rate}"),
            (None, None) => name.to_owned(),
        }
    }

    fn options(&self) -> &'static [OptionDoc] {
        &ALL
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            let n_seats = Script::of(&role.settings, policy)?.coming(&role.settings, role.seed)?.n_seats();
            let settings = role.settings.clone().with("connections", n_seats.to_string());
            return fathom_http::Closed.prepare(&Role { settings, ..role.clone() }, policy);
        }
        Ok(Box::new(Walk::prepare(role, policy)?))
    }
}

/// The initiator, ready to start.
#[derive(Debug)]
struct Walk {
    crowd: Crowd,
    shared: Arc<Shared>,
    seed: u64,
}

impl Walk {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let script = Script::of(&role.settings, policy)?;
        let servers = servers(role)?;
        let program = script.compile(&servers, policy)?.0;
        let defaults = Settings::default().complete(&ALL).map_err(Error::Setting)?;
        let settings = script.overlaid(&role.settings, &defaults)?.complete(&ALL).map_err(Error::Setting)?;
        let coming = script.coming(&settings, role.seed)?;
        let manner = Manner {
            iterations: script.iterations(&settings),
            haste: Haste::No,
            is_population: matches!(coming, Coming::Population { .. }),
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        };
        let is_counted = script.is_counted(&settings);
        let crowd = Crowd::prepare(NAME, (&Role { settings, ..role.clone() }, policy), coming)?;
        let crowd = if is_counted { crowd.counted() } else { crowd };
        Ok(Self { crowd, shared: Arc::new(Shared::new(Arc::new(program), manner)), seed: role.seed })
    }
}

/// What is to be added to the monotonic clock to have the wall clock; read once, before the start.
fn wall_ahead(start: Nanos) -> Nanos {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Nanos(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)).since(start)
}

fn walkers(shared: &Arc<Shared>, (row, seed): (&Row, u64), trace: Option<Trace>) -> Walkers {
    let standing = Standing {
        idx: row.idx,
        n_workers: row.n_workers,
        n_seats: row.n_seats,
        start: row.start,
        wall_ahead: wall_ahead(row.start),
        seed,
    };
    Walkers::new(shared, standing, trace)
}

impl Test for Walk {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, session: &Session) -> Result<Record, Error> {
        let make = |row: &Row| Ok(walkers(&self.shared, (row, self.seed), None));
        let (mut record, walked) = self.crowd.run(session, make)?;
        record.users = Some(users_record(&self.shared, walked));
        record.notes.extend(notes(&self.shared));
        record.complete &= self.shared.broken().is_none();
        Ok(record)
    }
}

fn users_record(shared: &Shared, walked: Vec<Walked>) -> UsersRecord {
    let program = &shared.program;
    let mut all = UsersRecord { n_most: shared.n_most(), promises: program.promises.clone(), ..UsersRecord::default() };
    let mut measured = Visits::default();
    let mut tallies = Vec::new();
    for worker in walked {
        all.n_started += worker.n_started;
        all.n_finished += worker.all.n_finished;
        all.n_gave_up += worker.all.n_gave_up;
        measured.n_begun += worker.measured.n_begun;
        measured.n_finished += worker.measured.n_finished;
        measured.n_gave_up += worker.measured.n_gave_up;
        tallies.push(worker.tallies);
    }
    UsersRecord { measured: Some(measured), steps: tally::records(&program.names, tallies), ..all }
}

/// What has to be said beside the result.
fn notes(shared: &Shared) -> Vec<Note> {
    let program = &shared.program;
    let mut notes = Vec::new();
    for meeting in program.meetings.iter().filter(|meeting| meeting.n_unfilled() > 0) {
        notes.push(Note {
            id: "meeting-unfilled".to_owned(),
            text: format!(
                "of {} meetings of {} users, {} never filled: those who were there went on after their time",
                meeting.n_rounds(),
                meeting.n(),
                meeting.n_unfilled()
            ),
        });
    }
    if let Some(set) = shared.broken().and_then(|place| program.sets.get(place)) {
        notes.push(Note {
            id: "data-ended".to_owned(),
            text: format!(
                "the data set {} ({}) had no more rows, which ends the run as the scenario says",
                set.name, set.file
            ),
        });
    } else if shared.is_exhausted() {
        notes.push(Note {
            id: "data-ended".to_owned(),
            text: "a data set had no more rows, and users left, as the scenario says".to_owned(),
        });
    }
    notes
}

/// One user goes through a scenario once, without thinking; everything that was asked and answered.
///
/// # Errors
/// What is missing, as before a run.
pub fn rehearse(role: &Role, policy: &Policy, session: &Session) -> Result<Vec<Exchange>, Error> {
    let settings = role.settings.clone().with("users", "1").with("iterations", "1").with("threads", "1");
    let mut walk = Walk::prepare(&Role { settings, ..role.clone() }, policy)?;
    // Nobody shares it before the run.
    if let Some(shared) = Arc::get_mut(&mut walk.shared) {
        shared.manner.haste = Haste::Yes;
    }
    let crowd = walk.crowd.counted();
    let (_, walked) = crowd.run(session, |row| Ok(walkers(&walk.shared, (row, walk.seed), Some(Trace::default()))))?;
    Ok(walked.into_iter().filter_map(|worker| worker.trace).flat_map(|trace| trace.0).collect())
}
