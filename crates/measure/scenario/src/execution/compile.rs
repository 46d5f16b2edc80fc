//! Compiles the tree of a scenario to its program: names become indices, files are read, and nothing of this is left for the run.
//!
//! The tree has already been checked; only errors that show during compilation are found here, such as a missing file.

mod bodies;
mod flow;
mod steps;
mod values;

pub(super) use self::steps::finder;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicU64},
};

use fathom_http::{target::WeightedOrder, url::Url};
use fathom_model::{
    steps::StepKind,
    units::{Bytes, Nanos},
};
use fathom_sys::policy::{Policy, Refused};

use super::{
    data_rows::{DataLayout, DataRows, DataRowsError, RowSource},
    meeting_point::MeetingPoint,
    program::{CompiledStep, DataSetState, Op, Pc, ScenarioProgram, ScenarioServer, UserProgram},
    redact,
    step_recorder::StepName,
};
use crate::ast::{DataSetDef, FailureAction, Scenario, Span};

/// The longest data file: its rows are kept in memory.
const DATA_MAX: Bytes = Bytes(1 << 30);

/// Why a scenario cannot run.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// A data set cannot be used.
    #[error(transparent)]
    Rows(#[from] DataRowsError),
    /// A file of a body cannot be read.
    #[error("cannot read {path}: {cause}")]
    File {
        /// The path that was tried.
        path: PathBuf,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A variable of the environment is not set.
    #[error("the scenario uses the environment variable `{0}`, which is not set")]
    Environment(String),
    /// A variable of the environment may not be read.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The text asks for something impossible.
    #[error("{what}")]
    Text {
        /// The problem.
        what: String,
        span: Span,
    },
    /// A server that the test does not name.
    #[error("the scenario sends to {0}, which is not among the URLs of the test")]
    UnknownServer(String),
    #[error("the scenario has more than {0}")]
    LimitExceeded(&'static str),
}

impl CompileError {
    /// A hint at the remedy.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        Some(match self {
            Self::Rows(error) => error.hint(),
            Self::File { .. } => "paths are relative to the scenario's folder",
            Self::Environment(_) => "set it before the program is started",
            Self::UnknownServer(_) => "add the URL to the option url, on its own line",
            Self::Text { .. } => "fathom app check FILE says more",
            Self::Refused(_) => "put the value into the scenario, or into a data file of the controller",
            Self::LimitExceeded(_) => return None,
        })
    }
}

/// The context of a compilation.
#[derive(Clone, Copy)]
pub struct CompileContext<'a> {
    /// The base of its relative paths.
    pub folder: &'a Path,
    /// The servers, that of the base first.
    pub servers: &'a [Url],
    /// The parts of this host that it may read.
    pub policy: &'a Policy,
}

/// A compiled scenario, ready for users.
#[derive(Debug)]
pub struct CompiledScenario(pub(crate) ScenarioProgram);

/// Compiles a checked scenario and reads its files.
///
/// # Errors
/// The first thing that is missing.
pub fn compile(scenario: &Scenario, site: &CompileContext<'_>) -> Result<CompiledScenario, CompileError> {
    let mut compiler = Compiler::new(scenario, site)?;
    for part in &scenario.parts {
        compiler.part(part)?;
    }
    let kinds = scenario.users.iter().map(|user| compiler.user(user)).collect::<Result<Vec<_>, _>>()?;
    let shares: Vec<u64> = shares(scenario);
    let rota = WeightedOrder::new(&shares)
        .map_err(|_| CompileError::LimitExceeded("10,000 parts in the shares of its users"))?;
    Ok(CompiledScenario(compiler.program(kinds, rota)))
}

/// The shares in hundredths of a percent, at least one each; equal by default.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share lies between 0 and 100")]
fn shares(scenario: &Scenario) -> Vec<u64> {
    let share = |share: Option<f64>| share.map_or(1, |percent| ((percent * 100.0).round() as u64).max(1));
    let users = scenario.users.iter();
    users.map(|user| share(user.share.as_ref().map(|share| share.value))).collect()
}

struct CompiledPart {
    begin: Pc,
    sets: BTreeSet<u16>,
}

struct Compiler<'t> {
    scenario: &'t Scenario,
    context: &'t CompileContext<'t>,
    servers: Vec<ScenarioServer>,
    ops: Vec<Op>,
    steps: Vec<CompiledStep>,
    names: Vec<StepName>,
    rows: Vec<Arc<DataRows>>,
    sets: Vec<DataSetState>,
    /// The start values of the counters.
    counters: Vec<u64>,
    meeting_points: Vec<MeetingPoint>,
    slots: Vec<String>,
    parts: BTreeMap<&'t str, CompiledPart>,
    /// The data sets used by the block being compiled.
    used: BTreeSet<u16>,
    has_cookies: bool,
}

/// Converts a count to the width used in operations.
fn to_u16(n: usize, what: &'static str) -> Result<u16, CompileError> {
    u16::try_from(n).map_err(|_| CompileError::LimitExceeded(what))
}

impl<'t> Compiler<'t> {
    fn new(scenario: &'t Scenario, site: &'t CompileContext<'t>) -> Result<Self, CompileError> {
        let mut compiler = Self {
            scenario,
            context: site,
            servers: site.servers.iter().cloned().map(ScenarioServer::new).collect(),
            ops: Vec::new(),
            steps: Vec::new(),
            names: Vec::new(),
            rows: Vec::new(),
            sets: Vec::new(),
            counters: Vec::new(),
            meeting_points: Vec::new(),
            slots: Vec::new(),
            parts: BTreeMap::new(),
            used: BTreeSet::new(),
            has_cookies: scenario.cookies.as_ref().is_none_or(|cookies| cookies.on),
        };
        for data in &scenario.data {
            compiler.data(data)?;
        }
        Ok(compiler)
    }

    fn data(&mut self, data: &DataSetDef) -> Result<(), CompileError> {
        let path = self.context.folder.join(&data.file.text);
        let bytes = self.context.policy.read(&path, DATA_MAX);
        let bytes = bytes.map_err(|cause| DataRowsError::File { path: path.clone(), cause })?;
        let rows = DataRows::parse(&path, &bytes, &DataLayout::of(data))?;
        let secret = |(idx, name): (usize, &String)| redact::is_secret(name).then_some(idx);
        self.sets.push(DataSetState {
            name: data.name.text.clone(),
            file: data.file.text.clone(),
            row_source: RowSource::new(data.policy, data.at_end(), rows.n()),
            secrets: rows.columns().iter().enumerate().filter_map(secret).collect(),
        });
        self.rows.push(Arc::new(rows));
        to_u16(self.sets.len(), "65,535 data sets").map(|_| ())
    }

    /// The address of the next operation.
    fn next_pc(&self) -> Result<Pc, CompileError> {
        Pc::try_from(self.ops.len()).map_err(|_| CompileError::LimitExceeded("4 billion operations"))
    }

    /// The index of a step's or transaction's name among the records; a new one is added if necessary.
    fn record(&mut self, name: &str, kind: StepKind) -> Result<u16, CompileError> {
        let known = self.names.iter().position(|known| known.name == name && known.kind == kind);
        let promises =
            self.scenario.promises.iter().filter(|promise| promise.of.as_ref().is_some_and(|of| of.text == name));
        let promises = promises.flat_map(|promise| &promise.terms).map(|term| term.text.clone()).collect();
        let place = known.unwrap_or_else(|| {
            self.names.push(StepName { name: name.to_owned(), kind, promises });
            self.names.len() - 1
        });
        to_u16(place, "65,535 steps")
    }

    fn program(self, kinds: Vec<UserProgram>, rota: WeightedOrder) -> ScenarioProgram {
        let of_all = self.scenario.promises.iter().filter(|promise| promise.of.is_none());
        let secret = |(idx, name): (usize, &String)| redact::is_secret(name).then_some(idx);
        ScenarioProgram {
            ops: self.ops,
            steps: self.steps,
            names: self.names,
            user_programs: kinds,
            user_order: rota,
            servers: self.servers,
            rows: self.rows,
            sets: self.sets,
            counters: self.counters.into_iter().map(AtomicU64::new).collect(),
            meeting_points: self.meeting_points,
            secret_slots: self.slots.iter().enumerate().filter_map(secret).collect(),
            slot_names: self.slots,
            has_cookies: self.has_cookies,
            promises: of_all.flat_map(|promise| &promise.terms).map(|term| term.text.clone()).collect(),
        }
    }

    fn failure_action(&self, nearer: Option<&crate::ast::OnFailure>) -> FailureAction {
        nearer.or(self.scenario.on_failure.as_ref()).map(|on_failure| on_failure.action).unwrap_or_default()
    }
}

/// The duration, if there is one.
fn span_of(written: Option<&crate::ast::Spanned<Nanos>>) -> Option<Nanos> {
    written.map(|written| written.value)
}
