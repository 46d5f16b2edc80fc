//! Saves and loads results and the tool's own ceilings.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use fathom_model::{Run, Settings, TestRun};
use jiff::{Timestamp, Zoned};
use serde::{Deserialize, Serialize};

use crate::{
    exit::{Exit, UserError},
    files::{self, FileReaders},
};

/// Returns a run ID that sorts by time: `2026-11-21-0923-a1f35c`. Of a hundred runs in one minute, two have the same in one case of 3,000.
pub fn run_id(now: &Zoned, seed: u64) -> String {
    format!("{}-{:06x}", now.strftime("%Y-%m-%d-%H%M"), seed & 0xff_ffff)
}

/// The size limit of a document in bytes: enough for more than a day of 50 ms intervals.
const DOCUMENT_MAX: u64 = 256 << 20;

/// Creates a folder that only its owner can read. An existing folder stays as it is.
fn make_own_folder(folder: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot make the folder {}", folder.display());
    folder.parent().map_or(Ok(()), fs::create_dir_all).with_context(cannot)?;
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if !folder.is_dir() => Err(error).with_context(cannot),
        _ => Ok(()),
    }
}

/// The folder in which commands save their runs by default.
pub const RUNS: &str = "runs";
/// The word for the newest saved run.
pub const LATEST: &str = "latest";

/// Checks before a run that a folder can be created and written to. Leaves nothing behind.
pub fn check_folder(folder: &Path) -> Result<(), UserError> {
    let there = folder.ancestors().find(|place| place.exists()).filter(|place| !place.as_os_str().is_empty());
    let tried = tempfile::tempfile_in(there.unwrap_or(Path::new(".")));
    tried.map(drop).map_err(|error| {
        UserError::new(Exit::Preflight, format!("nothing can be kept in {}", folder.display()))
            .with_line("why", error.to_string())
            .with_line("use", "-o FOLDER that you may write to")
    })
}

/// Finds a run by its folder, its document, the ID of a saved run, or the word for the newest one.
pub fn find_run(word: &Path) -> Result<PathBuf, UserError> {
    let kept = Path::new(RUNS).join(word);
    if word.exists() || kept.exists() {
        return Ok(if word.exists() { word.to_owned() } else { kept });
    }
    if word != Path::new(LATEST) {
        return Err(UserError::new(Exit::Usage, format!("cannot read {}", word.display()))
            .with_line("why", "no such file, folder or run ID under runs/")
            .with_line("use", "fathom report        # the newest run"));
    }
    let folders = fs::read_dir(RUNS).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let written = |folder: &PathBuf| fs::metadata(folder.join("run.json")).and_then(|file| file.modified()).ok();
    let newest = folders.filter_map(|folder| Some((written(&folder)?, folder))).max();
    newest.map(|(_, folder)| folder).ok_or_else(|| {
        UserError::new(Exit::Usage, "no run is kept under runs/ here")
            .with_line("use", "fathom report FOLDER        # or `fathom evaluate` first, which keeps its runs")
    })
}

/// Writes a run's document and report into a folder. Returns the path of the report.
pub fn save_run(run: &Run, folder: &Path) -> anyhow::Result<PathBuf> {
    make_own_folder(folder)?;
    for (name, file) in [("json", "run.json"), ("html", "report.html")] {
        let format = crate::output::format(name)?;
        files::write_whole(&folder.join(file), FileReaders::Owner, |out| Ok(format.write(run, out)?))?;
    }
    Ok(folder.join("report.html"))
}

/// Reads a run from its document or from the folder of the document.
pub fn read_run(path: &Path) -> anyhow::Result<Run> {
    let path = if path.is_dir() { path.join("run.json") } else { path.to_owned() };
    let text = files::read_text(&path, DOCUMENT_MAX)?;
    let run: Run =
        serde_json::from_str(&text).with_context(|| format!("{} is not a document of fathom", path.display()))?;
    anyhow::ensure!(
        run.schema == fathom_model::run::SCHEMA,
        "{} is of version `{}`, this program reads `{}`",
        path.display(),
        run.schema,
        fathom_model::run::SCHEMA
    );
    Ok(run)
}

/// The tool's own ceilings on this machine, by kind and metric.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The machine and the build that were measured.
    pub machine: String,
    /// The time of the calibration, RFC 3339.
    pub made: String,
    pub ceilings: BTreeMap<String, Vec<Ceiling>>,
}

/// The results of one kind and unit of work against its own ideal responder.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// The number of connections, flows or users.
    pub concurrency: u64,
    /// The options that say what a unit of work is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub work: BTreeMap<String, String>,
    /// The values reached, by metric.
    pub reached: BTreeMap<String, f64>,
    /// Why nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
    /// True if other programs used the CPU during the calibration. The real ceiling may be higher then.
    #[serde(default)]
    pub disturbed: bool,
}

/// Returns the number of exchanges that a test has in flight at the same time.
pub fn concurrency(options: &Settings) -> u64 {
    ["connections", "flows", "users"].iter().find_map(|name| options.count(name)).unwrap_or(1)
}

/// Options by which a unit of work is another one: what is reached with one value is no ceiling for another.
const OF_WORK: [&str; 1] = ["per-connection"];

/// Returns the options of a test that say what a unit of work is.
pub fn work(options: &Settings) -> BTreeMap<String, String> {
    OF_WORK.iter().filter_map(|name| Some(((*name).to_owned(), options.text(name)?))).collect()
}

/// Identifies this machine and this build. A calibration of another one does not apply.
fn machine() -> String {
    let environment = fathom_monitor::machine(Path::new("/"));
    let fact = |topic, name| environment.get(topic, name).unwrap_or("?").to_owned();
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    [
        fact("cpu", "model"),
        fact("cpu", "count"),
        fact("kernel", "release"),
        crate::registry::TOOL.to_owned(),
        build.to_owned(),
    ]
    .join(" | ")
}

fn calibration_path() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    cache.or_else(home).unwrap_or_else(env::temp_dir).join("fathom/calibration.json")
}

impl Calibration {
    /// Returns the ceilings of a run's tests by test name, for tests with a comparable and undisturbed ceiling.
    ///
    /// A test with fewer than half the connections of its ceiling has none: it mostly waits, so the tool does not limit it.
    pub fn ceilings_of(self, tests: &[TestRun]) -> BTreeMap<String, BTreeMap<String, f64>> {
        let of_test = |test: &TestRun| {
            let ceiling = self.ceiling(&test.kind, &test.options)?;
            Some((test.name.clone(), ceiling.reached.clone()))
        };
        tests.iter().filter_map(of_test).collect()
    }

    /// Returns the ceiling of a kind for the work and the concurrency that these options ask for.
    pub fn ceiling(&self, kind: &str, options: &Settings) -> Option<&Ceiling> {
        let (concurrency, work) = (concurrency(options), work(options));
        let is_comparable = |ceiling: &&Ceiling| ceiling.work == work && concurrency * 2 >= ceiling.concurrency;
        self.ceilings.get(kind)?.iter().filter(|ceiling| !ceiling.disturbed).find(is_comparable)
    }

    /// Creates an empty calibration for this machine.
    pub fn new() -> Self {
        Self { machine: machine(), made: Timestamp::now().to_string(), ceilings: BTreeMap::new() }
    }

    /// Loads the saved calibration, if it belongs to this machine and this build.
    pub fn load() -> Option<Self> {
        let kept: Self = serde_json::from_str(&fs::read_to_string(calibration_path()).ok()?).ok()?;
        (kept.machine == machine()).then_some(kept)
    }

    /// Saves the calibration for later runs and returns its path.
    pub fn save(&self) -> anyhow::Result<PathBuf> {
        let path = calibration_path();
        let folder = path.parent().expect("the path was made from a folder");
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        files::write_whole(&path, FileReaders::Owner, |out| Ok(serde_json::to_writer_pretty(out, self)?))?;
        Ok(path)
    }
}
