//! The kind of test for scenarios.

use std::sync::Arc;

use fathom_engine::{CeilingSetup, Error, EvaluationRow, NamedTarget, Test, TestKind, TrialContext};
use fathom_http::url::Url;
use fathom_http::{
    metric_definitions::MetricPage,
    users::{OPTIONS, UserArrivals, VirtualUsers, WorkerShare, concat_options},
};
use fathom_model::{
    Better::{Higher, Lower, Neither},
    Derivation, Endpoints, Layer, Metric, Note, OptionDoc, Record, Role, Settings, Side, Unit, ValueKind,
    metric::{MetricName, UnitAndSense, UsersValue},
    names::distribution,
    steps::{UsersRecord, Visits},
    units::Nanos,
};
use fathom_sys::policy::Policy;

use super::{
    loaded_scenario::LoadedScenario,
    scenario_users::{RunSettings, ScenarioResults, ScenarioUsers, ScenarioWorkerSpec, SharedState, ThinkMode},
    step_recorder,
    trace::{Exchange, Trace},
};

#[derive(Debug, Clone, Copy)]
pub struct AppScenario;

pub(super) const NAME: &str = "app_scenario";
/// The script of an evaluation, and of the ceiling of scripted users.
const EVALUATION_SCENARIO: &str = include_str!("evaluation.scenario");

/// The options of a scenario, besides those of all scripted users.
const OWN: [OptionDoc; 8] = [
    OptionDoc {
        name: "script",
        value: ValueKind::Fields,
        default: None,
        help: "the scenario's text; default: read it from `file`",
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
        help: "number of users, each starting over when done; overrides the scenario",
    },
    OptionDoc { name: "ramp", value: ValueKind::Span, default: None, help: "time over which these users start" },
    OptionDoc {
        name: "iterations",
        value: ValueKind::Count(1, u64::MAX),
        default: None,
        help: "iterations of the scenario per user",
    },
    OptionDoc {
        name: "rate",
        value: ValueKind::Rate,
        default: None,
        help: "new users per second, each runs the scenario once; overrides the scenario",
    },
    OptionDoc {
        name: "arrivals",
        value: ValueKind::Choice(&["constant", "poisson"]),
        default: Some("constant"),
        help: "spacing of new users",
    },
    OptionDoc {
        name: "max-users",
        value: ValueKind::Count(1, 1_000_000),
        default: None,
        help: "maximum number of users at the same time (with a rate)",
    },
];

const ALL: [OptionDoc; OWN.len() + OPTIONS.len() + 1] =
    concat_options(&[&OWN, &OPTIONS, &[fathom_http::responder::PORT]]);

const PAGE: MetricPage = MetricPage("docs/methods/app_scenario.md");

const fn users(named: MetricName, measure: UnitAndSense, of: UsersValue) -> Metric {
    PAGE.metric(named, measure, Derivation::Users { of })
}

const METRICS: &[Metric] = &[
    PAGE.answered_rate(),
    users(MetricName("users_per_sec", "users"), UnitAndSense(Unit::PerSec, Neither), UsersValue::Begun),
    users(
        MetricName("users_finished_per_sec", "users through"),
        UnitAndSense(Unit::PerSec, Higher),
        UsersValue::Finished,
    ),
    users(MetricName("gave_up_ratio", "users who gave up"), UnitAndSense(Unit::Ratio, Lower), UsersValue::GaveUpShare),
    users(MetricName("step_errors_ratio", "steps failed"), UnitAndSense(Unit::Ratio, Lower), UsersValue::Errors),
    PAGE.quantile(MetricName("latency_ns_p50", "p50"), distribution::SERVICE_TIME, 0.5),
    PAGE.quantile(MetricName("latency_ns_p90", "p90"), distribution::SERVICE_TIME, 0.9),
    PAGE.quantile(MetricName("latency_ns_p99", "p99"), distribution::SERVICE_TIME, 0.99),
    PAGE.quantile(MetricName("latency_ns_p999", "p99.9"), distribution::SERVICE_TIME, 0.999),
    PAGE.quantile(MetricName("latency_ns_max", "max"), distribution::SERVICE_TIME, 1.0),
    PAGE.quantile(MetricName("first_byte_ns_p50", "first byte p50"), distribution::FIRST_BYTE, 0.5),
    PAGE.quantile(MetricName("connect_ns_p50", "TCP connect p50"), distribution::CONNECT_TIME, 0.5),
    PAGE.received_rate(),
    PAGE.error_share("requests without an answer"),
    PAGE.cpu_cost(),
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

    fn destinations(&self, settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
        fathom_http::target::destinations(settings)
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

    fn evaluation(&self) -> &'static [EvaluationRow] {
        &[EvaluationRow {
            name: "app",
            options: &[("script", EVALUATION_SCENARIO), ("users", "32")],
            is_optional: false,
        }]
    }

    fn ceilings(&self) -> &'static [CeilingSetup] {
        &[CeilingSetup { options: &[("script", EVALUATION_SCENARIO), ("users", "32")], needs_lab: false }]
    }

    fn prepare(&self, role: &Role, policy: &Policy) -> Result<Box<dyn Test>, Error> {
        if role.side == Side::Responder {
            let n_slots = LoadedScenario::of(&role.settings, policy)?.arrivals(&role.settings, role.seed)?.n_slots();
            let settings = role.settings.clone().with("connections", n_slots.to_string());
            return fathom_http::HttpClosed.prepare(&Role { settings, ..role.clone() }, policy);
        }
        Ok(Box::new(ScenarioTest::prepare(role, policy)?))
    }
}

/// The initiator, ready to start.
#[derive(Debug)]
struct ScenarioTest {
    virtual_users: VirtualUsers,
    shared: Arc<SharedState>,
    seed: u64,
}

impl ScenarioTest {
    fn prepare(role: &Role, policy: &Policy) -> Result<Self, Error> {
        let script = LoadedScenario::of(&role.settings, policy)?;
        let servers = servers(role)?;
        let program = script.compile(&servers, policy)?.0;
        let defaults = Settings::default().complete(&ALL).map_err(Error::Setting)?;
        let settings = script.merged_settings(&role.settings, &defaults)?.complete(&ALL).map_err(Error::Setting)?;
        let arrivals = script.arrivals(&settings, role.seed)?;
        let manner = RunSettings {
            iterations: script.iterations(&settings),
            think_mode: ThinkMode::Timed,
            is_population: matches!(arrivals, UserArrivals::Population { .. }),
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
        };
        let is_counted = script.is_counted(&settings);
        let crowd = VirtualUsers::prepare(NAME, &Role { settings, ..role.clone() }, policy, arrivals)?;
        let crowd = if is_counted { crowd.count_everything() } else { crowd };
        Ok(Self {
            virtual_users: crowd,
            shared: Arc::new(SharedState::new(Arc::new(program), manner)),
            seed: role.seed,
        })
    }
}

/// The wall clock minus the monotonic clock; read once, before the start.
fn wall_clock_offset(start: Nanos) -> Nanos {
    let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Nanos(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)).since(start)
}

fn scenario_users(shared: &Arc<SharedState>, row: &WorkerShare, seed: u64, trace: Option<Trace>) -> ScenarioUsers {
    let standing = ScenarioWorkerSpec {
        idx: row.idx,
        n_workers: row.n_workers,
        n_slots: row.n_slots,
        start: row.start,
        wall_clock_offset: wall_clock_offset(row.start),
        seed,
    };
    ScenarioUsers::new(shared, standing, trace)
}

impl Test for ScenarioTest {
    fn endpoints(&self) -> Endpoints {
        Endpoints::new()
    }

    fn run(self: Box<Self>, context: &TrialContext) -> Result<Record, Error> {
        let make = |row: &WorkerShare| Ok(scenario_users(&self.shared, row, self.seed, None));
        let (mut record, walked) = self.virtual_users.run(context, make)?;
        record.users = Some(users_record(&self.shared, walked));
        record.notes.extend(notes(&self.shared));
        record.complete &= self.shared.failed_data_set().is_none();
        Ok(record)
    }
}

fn users_record(shared: &SharedState, walked: Vec<ScenarioResults>) -> UsersRecord {
    let program = &shared.program;
    let mut all =
        UsersRecord { n_most: shared.n_present_max(), promises: program.promises.clone(), ..UsersRecord::default() };
    let mut measured = Visits::default();
    let mut tallies = Vec::new();
    for worker in walked {
        all.n_started += worker.n_started;
        all.n_finished += worker.all.n_finished;
        all.n_gave_up += worker.all.n_gave_up;
        measured.n_begun += worker.measured.n_begun;
        measured.n_finished += worker.measured.n_finished;
        measured.n_gave_up += worker.measured.n_gave_up;
        tallies.push(worker.step_recorders);
    }
    UsersRecord { measured: Some(measured), steps: step_recorder::records(&program.names, tallies), ..all }
}

/// The notes for the result.
fn notes(shared: &SharedState) -> Vec<Note> {
    let program = &shared.program;
    let mut notes = Vec::new();
    for meeting in program.meeting_points.iter().filter(|meeting| meeting.n_unfilled() > 0) {
        notes.push(Note::new("meeting-unfilled", format!(
                "{} of {} meetings of {} users did not fill: the users who had arrived continued when the time was over",
                meeting.n_unfilled(),
                meeting.n_rounds(),
                meeting.size()
            )));
    }
    if let Some(set) = shared.failed_data_set().and_then(|place| program.sets.get(place)) {
        notes.push(Note::new(
            "data-ended",
            format!(
                "the data set {} ({}) had no more rows, so the run ended, as the scenario defines",
                set.name, set.file
            ),
        ));
    } else if shared.is_exhausted() {
        notes.push(Note::new("data-ended", "a data set had no more rows, so users left, as the scenario defines"));
    }
    notes
}

/// Runs a scenario once with one user and without think time. Returns all requests and answers.
///
/// # Errors
/// Something is missing, as before a run.
pub fn trace_once(role: &Role, policy: &Policy, context: &TrialContext) -> Result<Vec<Exchange>, Error> {
    let settings = role.settings.clone().with("users", "1").with("iterations", "1").with("threads", "1");
    let mut walk = ScenarioTest::prepare(&Role { settings, ..role.clone() }, policy)?;
    // Nobody shares it before the run.
    if let Some(shared) = Arc::get_mut(&mut walk.shared) {
        shared.settings.think_mode = ThinkMode::Immediate;
    }
    let crowd = walk.virtual_users.count_everything();
    let (_, walked) =
        crowd.run(context, |row| Ok(scenario_users(&walk.shared, row, walk.seed, Some(Trace::default()))))?;
    Ok(walked.into_iter().filter_map(|worker| worker.trace).flat_map(|trace| trace.0).collect())
}

/// The servers of a role: those of its URLs, or the address of fathom's own responder.
fn servers(role: &Role) -> Result<Vec<Url>, Error> {
    let lines =
        role.settings.text("url").or_else(|| role.peer.get("address").map(|address| format!("http://{address}/")));
    let lines = lines.unwrap_or_default();
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    // A weight before a URL has no meaning here: the scenario chooses the requests.
    let urls = lines.map(|line| line.rsplit_once(' ').map_or(line, |(_, url)| url).parse::<Url>());
    let urls: Vec<Url> = urls
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Unsupported { what: error.to_string(), hint: Some(error.hint().to_owned()) })?;
    if urls.is_empty() { Err(Error::Endpoint { kind: NAME, what: "address" }) } else { Ok(urls) }
}
