//! The environment of one test: its own state folder, home and working directory, and exclusive use of the machine.

use std::{
    env, fs,
    fs::File,
    io::{BufRead as _, BufReader},
    net::{IpAddr, Ipv4Addr, TcpListener},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    thread,
};

use fathom_lab::{Lab, StateFolder};
use fathom_model::{MacAddress, Run, Severity, units::Nanos};
use fathom_sys::{
    clock,
    netlink::Netlink,
    process::{ParentBond, Pidfd, ProcessPlace, ProcessSpec, may_administer_network},
};
use tempfile::TempDir;

/// Much longer than any run here takes on a busy machine. It ends a test that waits forever.
pub(crate) const PATIENCE: Nanos = Nanos::from_secs(120);
/// Short times and few rounds, for tests that do not check how steady a value is.
pub(crate) const BRIEF: &[&str] = &["--duration", "400ms", "--warmup", "100ms", "--rounds", "2"];
/// The maximum number of lines of an error message.
const SCREEN_LINES_MAX: usize = 24;

/// Checks all cases, some of them at the same time, and returns the results in their order. For cases that compare texts and not rates.
pub(crate) fn side_by_side<T: Sync, R: Send>(cases: &[T], check: impl Fn(&T) -> R + Sync) -> Vec<R> {
    const AT_ONCE: usize = 6;
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut results = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(idx) else { return results };
            results.push((idx, check(case)));
        }
    };
    let mut all: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    all.sort_by_key(|(idx, _)| *idx);
    all.into_iter().map(|(_, result)| result).collect()
}

pub(crate) fn lacks_root() -> bool {
    fathom_testkit::lacks_privileges(may_administer_network())
}

/// Returns the root of the source tree.
pub(crate) fn tree() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

/// The environment of one test.
pub(crate) struct TestBed {
    folder: TempDir,
    program: PathBuf,
    _turn: Turn,
}

/// Two tests that measured at the same time would disturb each other.
static TURNS: Turns =
    Turns { now: Mutex::new(Now { waiting: [0; Company::N], running: [0; Company::N] }), changed: Condvar::new() };

/// The tests that may run beside one, in the order of their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    /// It judges texts, counts and exit codes.
    Others,
    /// It measures low rates, and leaves most of a small machine idle.
    LowRates,
    /// It measures all that the machine can do.
    Nobody,
}

impl Company {
    const N: usize = 3;

    /// The number of tests at once. Those of the first two wait most of their time.
    const fn most(self) -> usize {
        match self {
            Self::Others => 4,
            Self::LowRates => 3,
            Self::Nobody => 1,
        }
    }
}

/// The order of all tests: one kind after the other.
///
/// A waiting test takes up a thread, so the harness needs more threads (`--test-threads`) than there are tests that do not run beside all others.
struct Turns {
    now: Mutex<Now>,
    changed: Condvar,
}

/// The tests by their company.
struct Now {
    waiting: [usize; Company::N],
    running: [usize; Company::N],
}

impl Turns {
    fn take(&'static self, company: Company) -> Turn {
        let kind = company as usize;
        let mut now = self.lock();
        now.waiting[kind] += 1;
        let has_to_wait = |now: &mut Now| {
            let is_busy = (0..Company::N).any(|other| other != kind && now.running[other] > 0);
            is_busy || now.running[kind] == company.most() || now.waiting[..kind].iter().any(|n| *n > 0)
        };
        now = self.changed.wait_while(now, has_to_wait).unwrap_or_else(PoisonError::into_inner);
        now.waiting[kind] -= 1;
        now.running[kind] += 1;
        Turn(company)
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to use the machine, held as long as its test runs.
struct Turn(Company);

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.lock().running[self.0 as usize] -= 1;
        TURNS.changed.notify_all();
    }
}

impl TestBed {
    /// Creates a test bed for a test that measures: no other test runs meanwhile.
    pub(crate) fn new() -> Self {
        Self::at_turn(TURNS.take(Company::Nobody))
    }

    /// Creates a test bed for a test of low rates, which leaves most of a small machine idle: others of its kind run beside it.
    pub(crate) fn of_low_rates() -> Self {
        Self::at_turn(TURNS.take(Company::LowRates))
    }

    /// Creates a test bed for a test that judges texts, counts and exit codes, but no rates: others of its kind run beside it.
    pub(crate) fn beside_others() -> Self {
        Self::at_turn(TURNS.take(Company::Others))
    }

    fn at_turn(turn: Turn) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, program: PathBuf::from(env!("CARGO_BIN_EXE_fathom")), _turn: turn }
    }

    /// Creates a test bed whose files, including the program, belong to another user, for a test beside others.
    pub(crate) fn owned_by(user: u32) -> Self {
        let mut stage = Self::beside_others();
        let program = stage.path("fathom");
        fathom_testkit::copy_program(&stage.program, &program);
        stage.program = program;
        for path in [stage.folder.path(), &stage.program] {
            std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
        }
        stage
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Returns the names of the journals. None may be left.
    pub(crate) fn journals(&self) -> Vec<String> {
        let entries = fs::read_dir(self.state()).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns a command that does not see its user's files.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("FATHOM_STATE", self.state()).env("HOME", self.folder.path());
        for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "FATHOM_ALLOW", "FATHOM_KEY"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs fathom to its end.
    pub(crate) fn fathom<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> ProgramResult {
        self.start(words).ends()
    }

    /// Starts fathom.
    pub(crate) fn start<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> RunningProgram {
        // A shell starts its background jobs with SIGINT ignored, and that is inherited. A user's ctrl-C is not ignored.
        let mut command = self.command("env");
        command.arg("--default-signal=INT").arg(&self.program).args(words);
        self.spawn(command)
    }

    /// Starts a program with its output in files, so that child processes with inherited streams cannot block a reader.
    pub(crate) fn spawn(&self, mut command: Command) -> RunningProgram {
        let (_, stdout) =
            tempfile::Builder::new().prefix("stdout").tempfile_in(self.folder.path()).unwrap().keep().unwrap();
        let (_, stderr) =
            tempfile::Builder::new().prefix("stderr").tempfile_in(self.folder.path()).unwrap().keep().unwrap();
        command.stdin(Stdio::null()).stdout(File::create(&stdout).unwrap()).stderr(File::create(&stderr).unwrap());
        let shown = format!("{command:?}").split(" \"").skip(1).collect::<Vec<_>>().join(" \"");
        let child =
            ProcessSpec { command, place: ProcessPlace::Here, bond: ParentBond::DiesWithParent }.spawn().unwrap();
        RunningProgram { child, stdout, stderr, shown }
    }

    /// Starts a lab of two hosts, which is removed when the value is dropped.
    pub(crate) fn lab(&self, name: &'static str) -> RunningLab<'_> {
        self.lab_of("pair", name)
    }

    /// Starts a lab of another preset.
    pub(crate) fn lab_of(&self, preset: &str, name: &'static str) -> RunningLab<'_> {
        self.lab_with(&["lab", "up", preset, "--name", name, "--for", "5min"], name)
    }

    /// Starts the lab with this name by a command.
    pub(crate) fn lab_with(&self, command: &[&str], name: &'static str) -> RunningLab<'_> {
        self.fathom(command).succeeded();
        RunningLab { stage: self, name }
    }
}

pub(crate) struct RunningLab<'a> {
    stage: &'a TestBed,
    pub(crate) name: &'static str,
}

impl RunningLab<'_> {
    /// Runs fathom on one of its hosts.
    pub(crate) fn fathom(&self, host: &str, words: &[&str]) -> ProgramResult {
        self.start(host, words).ends()
    }

    pub(crate) fn start(&self, host: &str, words: &[&str]) -> RunningProgram {
        self.exec(host, &[&[self.program()], words].concat())
    }

    /// Returns the MAC address of a host's first interface.
    pub(crate) fn mac(&self, host: &str) -> MacAddress {
        let lab = self.lab();
        let name = &lab.host(host).unwrap().interfaces()[0].name;
        self.enter_with(host, || Netlink::open().unwrap().link(name).unwrap()).mac.unwrap()
    }

    /// Runs work of this process on one of its hosts. Returned sockets stay on that host.
    pub(crate) fn enter_with<T: Send>(&self, host: &str, work: impl FnOnce() -> T + Send) -> T {
        self.lab().host(host).unwrap().enter_with(work).unwrap()
    }

    /// Returns the address of a host.
    pub(crate) fn address(&self, host: &str) -> IpAddr {
        self.lab().host(host).unwrap().address()
    }

    fn lab(&self) -> Lab {
        let state = StateFolder::open(&self.stage.state()).unwrap();
        Lab::find(&state, &self.name.parse().unwrap()).unwrap()
    }

    /// Starts any program on one of its hosts.
    pub(crate) fn exec(&self, host: &str, words: &[&str]) -> RunningProgram {
        self.stage.start([&["lab", "exec", self.name, host, "--"], words].concat())
    }

    fn program(&self) -> &str {
        self.stage.program.to_str().unwrap()
    }

    /// Starts a `fathom serve` on host b. Returns it with its key when it is ready.
    pub(crate) fn serve(&self, words: &[&str]) -> (RunningProgram, String) {
        self.serve_under(&[], words)
    }

    /// Starts a `fathom serve` through another program.
    pub(crate) fn serve_under(&self, starter: &[&str], words: &[&str]) -> (RunningProgram, String) {
        let server = self.exec("b", &[starter, &[self.program(), "serve"], words].concat());
        let lines = server.says("http ");
        let key = lines.lines().find_map(|line| line.strip_prefix("key")).unwrap().trim().to_owned();
        (server, key)
    }
}

impl Drop for RunningLab<'_> {
    fn drop(&mut self) {
        self.stage.fathom(["lab", "down", self.name]);
    }
}

/// A started program. It is killed when this value is dropped.
pub(crate) struct RunningProgram {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    shown: String,
}

impl RunningProgram {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn handle(&self) -> Pidfd {
        Pidfd::open(self.pid()).unwrap()
    }

    /// Waits for a line on stdout that starts with this text. Returns all of stdout.
    pub(crate) fn says(&self, beginning: &str) -> String {
        self.shows(|line| line.starts_with(beginning))
    }

    /// Waits for a line on stdout that this accepts. The last line may be incomplete. Returns all of stdout.
    pub(crate) fn shows(&self, is_it: impl Fn(&str) -> bool) -> String {
        let handle = self.handle();
        until(|| {
            let has_ended = handle.wait(Nanos::ZERO).unwrap();
            let file = BufReader::new(File::open(&self.stdout).unwrap());
            if file.lines().any(|line| is_it(&line.unwrap())) {
                return Some(fs::read_to_string(&self.stdout).unwrap());
            }
            assert!(!has_ended, "{} ended: {}", self.shown, fs::read_to_string(&self.stderr).unwrap());
            None
        })
    }

    /// Waits until stderr contains this text. Returns all of stderr.
    pub(crate) fn warns(&self, words: &str) -> String {
        until(|| Some(fs::read_to_string(&self.stderr).unwrap()).filter(|text| text.contains(words)))
    }

    /// Waits for the end of the program.
    pub(crate) fn ends(mut self) -> ProgramResult {
        assert!(self.handle().wait(PATIENCE).unwrap(), "{} does not end", self.shown);
        let status = self.child.wait().unwrap();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        ProgramResult { status, stdout: text(&self.stdout), stderr: text(&self.stderr), shown: self.shown.clone() }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // An error is fine, because the program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a port at which nobody listens, and which no other test is given.
///
/// It is below those that the kernel gives to clients (`net.ipv4.ip_local_port_range`), so that no connection takes it before its server does.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(port < 32_000, "so many ports are taken");
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

/// Polls until there is a result.
pub(crate) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = clock::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(clock::now() < deadline, "nothing to see in {PATIENCE}");
        // Polling costs CPU time and could disturb the measurement.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Returns true, and reports it, if a run says itself that others disturbed it: other programs, or the hypervisor.
pub(crate) fn is_disturbed(run: &Run) -> bool {
    let disturbed = run.findings.iter().find(|finding| finding.severity == Severity::Disturbs);
    if let Some(finding) = disturbed {
        fathom_testkit::skip_everywhere(&finding.title);
    }
    disturbed.is_some()
}

/// The exit status and the output of a program.
pub(crate) struct ProgramResult {
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    shown: String,
}

impl ProgramResult {
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}\n{}\n{}", self.shown, self.stdout, self.stderr);
        self
    }

    /// Whether the text of the run says that other programs or the hypervisor disturbed a row.
    pub(crate) fn says_it_was_disturbed(&self) -> bool {
        ["other programs used", "hypervisor"].iter().any(|words| self.stdout.contains(words))
    }

    /// Checks that a promise was kept. It may stay open in a disturbed run.
    #[track_caller]
    pub(crate) fn kept_its_promise(self) -> Self {
        self.judged_its_promise(0)
    }

    /// Checks that a promise was broken. It may stay open in a disturbed run.
    #[track_caller]
    pub(crate) fn broke_its_promise(self) -> Self {
        self.judged_its_promise(10)
    }

    #[track_caller]
    fn judged_its_promise(self, code: i32) -> Self {
        let is_open = self.says_it_was_disturbed() && self.status.code() == Some(12);
        self.code(if is_open { 12 } else { code })
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        self.status.success()
    }

    #[track_caller]
    pub(crate) fn succeeded(self) -> Self {
        self.code(0)
    }

    /// Returns the exit code of a command that was not refused and did not fail because of a defect.
    #[track_caller]
    pub(crate) fn succeeded_or_judged(&self) -> i32 {
        let code = self.status.code().unwrap_or(-1);
        let is_refused = [2, 3, -1].contains(&code) || self.stderr.contains("defect of fathom");
        assert!(!is_refused, "{}: {code}\n{}\n{}", self.shown, self.stdout, self.stderr);
        code
    }

    /// Parses the JSON document of a run on stdout.
    #[track_caller]
    pub(crate) fn run(&self) -> Run {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

    /// Checks that stderr has an error of at most one screen with these words, and that stdout is empty.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, words: &[&str]) {
        let ending = self.code(code);
        let user_error = &ending.stderr;
        assert_eq!(ending.stdout, "", "{}", ending.shown);
        assert!(
            user_error.lines().count() <= SCREEN_LINES_MAX,
            "{}: more than a user_error:\n{user_error}",
            ending.shown
        );
        for word in words {
            assert!(user_error.contains(word), "{}: `{word}` is missing in:\n{user_error}", ending.shown);
        }
        assert!(!user_error.contains("panicked"), "{user_error}");
    }
}
