//! A scenario as the options of a test name it: its text, the folder of its files, its servers, and its duration.

use std::{
    io,
    path::{Path, PathBuf},
};

use fathom_engine::{
    Error,
    pace::{ArrivalProcess, Profile},
};
use fathom_http::{
    url::{Url, split_origin},
    users::UserArrivals,
};
use fathom_model::{
    Settings, TrialTimes,
    settings::SettingError,
    units::{Bytes, Nanos, PerSec},
};
use fathom_sys::policy::Policy;

use super::compile::{CompileContext, CompiledScenario, compile};
use crate::ast::{ArrivalSpacing, Scenario, Statement, StepDef, TemplatePiece, UserArrivalRate, UserLoadModel};

/// A longer text is not accepted as a scenario anyway.
const TEXT_MAX: Bytes = Bytes(1 << 20);
/// The most concurrent users of an open scenario by default.
const OPEN_USERS_DEFAULT: u64 = 10_000;
/// One user every 100 ns is more than any machine creates, and due users are counted individually.
const RATE_MAX: f64 = 1e7;
/// Options that choose where packets go. If a scenario sets them, they must also be in the plan, where they are checked.
const DESTINATION_OPTIONS: [&str; 4] = ["connect-to", "proxy", "unix", "source"];

/// A scenario that was read, without its data.
#[derive(Debug)]
pub struct LoadedScenario {
    pub scenario: Scenario,
    pub text: String,
    /// The name for display.
    pub name: String,
    folder: Option<PathBuf>,
}

/// The text of an invalid scenario, with the errors and their lines.
#[derive(Debug, thiserror::Error)]
#[error("{name} is not a sound scenario")]
pub struct InvalidScenario {
    /// The name for display.
    pub name: String,
    /// For display, several lines.
    pub shown: String,
}

impl LoadedScenario {
    /// Reads the text in the options, or the file that they name.
    ///
    /// # Errors
    /// The text cannot be read, or is not a valid scenario.
    pub fn of(settings: &Settings, policy: &Policy) -> Result<Self, Error> {
        let file = settings.text("file").map(PathBuf::from);
        // The checks look for files in the folder without asking the policy, so a role for others gets no folder.
        let folder = file.as_deref().filter(|_| !policy.is_for_others());
        let folder = folder.map(|file| file.parent().unwrap_or(Path::new("")).to_owned());
        let name = file.as_ref().map_or("the scenario".to_owned(), |file| file.display().to_string());
        let text = match (settings.text("script"), &file) {
            (Some(text), _) => text,
            (None, Some(file)) => read_text(policy, file).map_err(|error| Error::Unsupported {
                what: format!("cannot read the scenario {name}: {error}"),
                hint: None,
            })?,
            (None, None) => {
                return Err(Error::Unsupported {
                    what: "there is no scenario".to_owned(),
                    hint: Some("name a file by the option file, or give the text itself as script".to_owned()),
                });
            }
        };
        Self::read(text, name, folder).map_err(|unsound| Error::Unsupported {
            what: format!("{unsound}\n{}", unsound.shown),
            hint: Some("fathom app check FILE says the same before a run".to_owned()),
        })
    }

    /// Reads a text; its files are in `folder`. Without a folder they are not looked up, and a scenario that names any cannot be compiled.
    ///
    /// # Errors
    /// All errors of the text.
    pub fn read(text: String, name: String, folder: Option<PathBuf>) -> Result<Self, InvalidScenario> {
        let faults = match crate::parse(&text) {
            Ok(scenario) => {
                let found = match &folder {
                    Some(folder) => crate::check(&scenario, folder),
                    None => crate::check_text(&scenario),
                };
                if crate::is_sound(&found) {
                    return Ok(Self { scenario, text, name, folder });
                }
                found.into_iter().filter(|fault| fault.severity == crate::Severity::Error).collect()
            }
            Err(faults) => faults,
        };
        let shown = crate::render(&faults, &name, &text);
        Err(InvalidScenario { name, shown })
    }

    /// The servers of the scenario, that of the base first; `base` replaces the scenario's own base.
    ///
    /// # Errors
    /// A server is not a valid URL; the error names it.
    pub fn urls(&self, base: Option<&str>) -> Result<Vec<Url>, Error> {
        let said = self.scenario.base.as_ref().map(|base| base.text.as_str());
        let mut urls: Vec<Url> = Vec::new();
        for text in base.or(said).into_iter().chain(self.steps().into_iter().filter_map(origin)) {
            let url: Url = text.parse().map_err(|error: fathom_http::url::UrlError| Error::Unsupported {
                what: error.to_string(),
                hint: Some(error.hint().to_owned()),
            })?;
            let is_known = urls.iter().any(|known| {
                (known.scheme, known.port) == (url.scheme, url.port) && known.host.eq_ignore_ascii_case(&url.host)
            });
            if !is_known {
                urls.push(url);
            }
        }
        Ok(urls)
    }

    /// Whether any step uses the base, so that there must be one.
    #[must_use]
    pub fn needs_base(&self) -> bool {
        self.scenario.base.is_some() || self.steps().into_iter().any(|step| origin(step).is_none())
    }

    /// All steps in the order of the text.
    fn steps(&self) -> Vec<&StepDef> {
        let mut steps = Vec::new();
        self.scenario.parts.iter().for_each(|part| collect_steps(&part.body, &mut steps));
        for user in &self.scenario.users {
            let sections = user.setup.iter().chain(&user.teardown).map(|section| &section.body);
            sections.chain([&user.body]).for_each(|body| collect_steps(body, &mut steps));
        }
        steps
    }

    /// The declared duration: the longest warm-up, and the measured time.
    #[must_use]
    pub fn times(&self) -> Option<TrialTimes> {
        let usual_warmup = |length: Nanos| Nanos::from_secs(1).min(Nanos(length.0 / 10));
        let (length, warmup) = match &self.scenario.load.as_ref()?.model {
            UserLoadModel::Open { rate: UserArrivalRate::Profile(profile), .. } => {
                (profile.value.length()?, Nanos::ZERO)
            }
            UserLoadModel::Open { rate: UserArrivalRate::Steady { length, .. }, .. } => {
                let length = length.as_ref()?.value;
                (length, usual_warmup(length))
            }
            UserLoadModel::Closed { repeat: Some(_), length, .. } => (length.as_ref()?.value, Nanos::ZERO),
            UserLoadModel::Closed { ramp, length, .. } => {
                let length = length.as_ref()?.value;
                let ramp = ramp.as_ref().map_or(usual_warmup(length), |ramp| ramp.value);
                (length, if ramp < length { ramp } else { Nanos::ZERO })
            }
        };
        Some(TrialTimes { warmup, duration: length - warmup })
    }

    /// Whether its users leave for good after a while.
    #[must_use]
    pub fn ends_by_itself(&self) -> bool {
        let model = self.scenario.load.as_ref().map(|arrivals| &arrivals.model);
        matches!(model, Some(UserLoadModel::Closed { repeat: Some(_), .. }))
    }

    /// Whether everything counts, because the scenario ends by itself.
    pub(super) fn is_counted(&self, settings: &Settings) -> bool {
        if is_given(settings) {
            return settings.count("iterations").is_some();
        }
        match self.scenario.load.as_ref().map(|arrivals| &arrivals.model) {
            Some(UserLoadModel::Open { rate: UserArrivalRate::Profile(profile), .. }) => {
                profile.value.length().is_some()
            }
            Some(UserLoadModel::Closed { repeat, .. }) => repeat.is_some(),
            _ => false,
        }
    }

    /// The arrivals of users: from the options, or else from the text.
    pub(super) fn arrivals(&self, settings: &Settings, seed: u64) -> Result<UserArrivals, Error> {
        let process =
            |is_poisson: bool| if is_poisson { ArrivalProcess::Poisson { seed } } else { ArrivalProcess::Constant };
        let steady = |rate: PerSec| {
            let profile =
                Profile::steady(rate).filter(|profile| profile.peak() <= PerSec::new(RATE_MAX).unwrap_or_default());
            profile.ok_or_else(|| SettingError::NotAllowed {
                name: "rate".to_owned(),
                expected: "more than 0 and at most 10M users per second".to_owned(),
                given: rate.to_string(),
            })
        };
        let n_slots = settings.count("max-users");
        if let Some(n) = settings.count("users") {
            return Ok(UserArrivals::Population { n, ramp_up: settings.span("ramp").unwrap_or_default() });
        }
        if let Some(rate) = settings.rate("rate") {
            let process = process(settings.text("arrivals").as_deref() == Some("poisson"));
            return Ok(UserArrivals::Arrivals {
                profile: steady(rate)?,
                process,
                n_slots: n_slots.unwrap_or(OPEN_USERS_DEFAULT),
            });
        }
        match self.scenario.load.as_ref().map(|coming| &coming.model) {
            Some(UserLoadModel::Closed { users, ramp, .. }) => Ok(UserArrivals::Population {
                n: users.value,
                ramp_up: ramp.as_ref().map(|ramp| ramp.value).unwrap_or_default(),
            }),
            Some(UserLoadModel::Open { rate, arrivals, max }) => {
                let profile = match rate {
                    UserArrivalRate::Steady { rate, .. } => steady(rate.value)?,
                    UserArrivalRate::Profile(profile) => profile.value.clone(),
                };
                let n_slots = n_slots.or(max.as_ref().map(|max| max.value)).unwrap_or(OPEN_USERS_DEFAULT);
                Ok(UserArrivals::Arrivals { profile, process: process(*arrivals == ArrivalSpacing::Poisson), n_slots })
            }
            None => Err(Error::Unsupported {
                what: format!("{} does not set the number of users", self.name),
                hint: Some(
                    "a line such as `closed 50 for 1m` or `open 20/s for 1m`, or the options users or rate".to_owned(),
                ),
            }),
        }
    }

    /// How often a user runs the script: once in an open load.
    pub(super) fn iterations(&self, settings: &Settings) -> Option<u64> {
        let is_population = settings.count("users").is_some();
        match self.scenario.load.as_ref().map(|arrivals| &arrivals.model) {
            _ if settings.rate("rate").is_some() && !is_population => Some(1),
            _ if is_population => settings.count("iterations"),
            Some(UserLoadModel::Closed { repeat, .. }) => {
                settings.count("iterations").or(repeat.as_ref().map(|repeat| repeat.value))
            }
            _ => Some(1),
        }
    }

    /// The options of a role, completed with those of the text.
    ///
    /// # Errors
    /// The text sends packets elsewhere than the role, whose destinations have already been checked.
    pub(super) fn merged_settings(&self, settings: &Settings, defaults: &Settings) -> Result<Settings, Error> {
        let mut all = settings.clone();
        for setting in &self.scenario.settings {
            let name = setting.name.text.as_str();
            let value = setting.value.as_ref().map_or("true", |value| value.text.as_str());
            let current = settings.text(name);
            if DESTINATION_OPTIONS.contains(&name) && current.as_deref() != Some(value) {
                return Err(Error::Unsupported {
                    what: format!("the scenario has `{name} {value}`, but the test does not"),
                    hint: Some(format!("add it to the options of the test: {name} = \"{value}\"")),
                });
            }
            if current.is_none() || current == defaults.text(name) {
                all.set(name, value);
            }
        }
        Ok(all)
    }

    /// Compiles it for these servers.
    ///
    /// # Errors
    /// The first thing that is missing.
    pub fn compile(&self, servers: &[Url], policy: &Policy) -> Result<CompiledScenario, Error> {
        if self.folder.is_none() && self.names_files() {
            return Err(Error::Unsupported {
                what: "a scenario that is given as a text cannot name files".to_owned(),
                hint: Some("name its file by the option file".to_owned()),
            });
        }
        let folder = self.folder.as_deref().unwrap_or(Path::new(""));
        let site = CompileContext { folder, servers, policy };
        compile(&self.scenario, &site).map_err(|error| Error::Unsupported {
            what: format!("{}: {error}", self.name),
            hint: error.hint().map(str::to_owned),
        })
    }

    fn names_files(&self) -> bool {
        use crate::ast::{BodyContent, FormFieldValue};
        let is_file = |step: &&StepDef| match step.body.as_ref().map(|body| &body.content) {
            Some(BodyContent::File(_)) => true,
            Some(BodyContent::Multipart(fields)) => {
                fields.iter().any(|field| matches!(field.value, FormFieldValue::File { .. }))
            }
            _ => false,
        };
        !self.scenario.data.is_empty() || self.steps().iter().any(is_file)
    }
}

/// Reads the text of a file, no more than the longest scenario.
fn read_text(policy: &Policy, file: &Path) -> io::Result<String> {
    let bytes = policy.read(file, TEXT_MAX)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Whether the options define the arrivals.
fn is_given(settings: &Settings) -> bool {
    settings.count("users").is_some() || settings.rate("rate").is_some()
}

/// Scheme and authority of a step's URL, if it has them.
fn origin(step: &StepDef) -> Option<&str> {
    let Some(TemplatePiece::Text(text)) = step.url.pieces.first() else { return None };
    Some(split_origin(text)?.0)
}

fn collect_steps<'t>(body: &'t [Statement], steps: &mut Vec<&'t StepDef>) {
    for statement in body {
        match statement {
            Statement::Step(step) => steps.push(step),
            Statement::Transaction(transaction) => collect_steps(&transaction.body, steps),
            Statement::Repeat(repeat) => collect_steps(&repeat.body, steps),
            Statement::While(each) => collect_steps(&each.body, steps),
            Statement::If(choice) => {
                choice.branches.iter().for_each(|branch| collect_steps(&branch.body, steps));
                choice.otherwise.iter().for_each(|otherwise| collect_steps(&otherwise.body, steps));
            }
            Statement::Chance(chance) => {
                collect_steps(&chance.body, steps);
                chance.otherwise.iter().for_each(|otherwise| collect_steps(&otherwise.body, steps));
            }
            Statement::Think(_) | Statement::Meet(_) | Statement::Do(_) | Statement::Let(_) => {}
        }
    }
}
