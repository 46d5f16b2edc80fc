//! The files of pktgen. Each write is one line, judged by the kernel's return value *and* by pktgen's text.
//!
//! `flag NOSUCHFLAG` succeeds, and its text says that the flag is unknown. `burst 8` on veth fails, and leaves the `OK` of the
//! previous command. `ratep 0` takes one byte of the line and leaves the rest; a writer that continues would turn the rest into
//! another command. A line is therefore written in one call, a partial write counts as a refusal, and the result is read after a
//! success.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    path::PathBuf,
    sync::Arc,
};

use super::{
    error::Error,
    setting::{ChangedSetting, PktgenSetting, ReportsResult},
    status::{CommandResult, Status},
};

/// The pktgen directory of one network namespace.
#[derive(Debug, Clone)]
pub struct PktgenDir {
    folder: PathBuf,
    /// Keeps the path in `folder` valid, if it leads through a file descriptor.
    _open: Option<Arc<File>>,
}

/// The control file: all devices start and stop together.
pub(super) const CONTROL: &str = "pgctrl";
/// The prefix of the files of threads.
const THREAD: &str = "kpktgend_";
/// "Operation not supported" as a kernel-internal error number, for which the C library has no text.
const ENOTSUPP: i32 = 524;

/// The state of a pktgen thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PktgenThread {
    /// Its processor.
    pub number: usize,
    /// Devices that send.
    pub running: Vec<String>,
    /// Devices that do not send.
    pub stopped: Vec<String>,
    /// The result of its last command.
    pub last_result: CommandResult,
}

impl Default for PktgenDir {
    /// The directory of the calling thread's namespace, which may differ from that of the process.
    fn default() -> Self {
        Self::at("/proc/thread-self/net/pktgen")
    }
}

impl PktgenDir {
    /// A given directory, such as a recorded one.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), _open: None }
    }

    /// Returns a handle to the same directory that works for threads in every namespace.
    ///
    /// # Errors
    /// If the kernel has no pktgen here.
    pub fn pin_namespace(&self) -> Result<Self, Error> {
        let open = File::open(&self.folder).map_err(|_| Error::Absent(self.folder.clone()))?;
        let folder = format!("/proc/self/fd/{}", open.as_raw_fd()).into();
        Ok(Self { folder, _open: Some(Arc::new(open)) })
    }

    /// Returns the version of pktgen.
    ///
    /// # Errors
    /// If the kernel has no pktgen here.
    pub fn version(&self) -> Result<String, Error> {
        let path = self.folder.join(CONTROL);
        let text = fs::read_to_string(path).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Error::Absent(self.folder.clone()),
            _ => Error::File { what: format!("read {CONTROL} of pktgen"), cause },
        })?;
        Ok(text.rsplit("Version: ").next().unwrap_or_default().trim().to_owned())
    }

    /// Returns the threads, one for each processor.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn threads(&self) -> Result<Vec<PktgenThread>, Error> {
        let list = || fs::read_dir(&self.folder)?.collect::<io::Result<Vec<_>>>();
        let entries = list().map_err(|cause| Error::File { what: "list the threads of pktgen".to_owned(), cause })?;
        let names = entries.iter().filter_map(|entry| entry.file_name().into_string().ok());
        let mut numbers: Vec<usize> = names.filter_map(|name| name.strip_prefix(THREAD)?.parse().ok()).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|number| Ok(PktgenThread::read(number, &self.read(&thread_file(number))?))).collect()
    }

    /// Returns the status of a device.
    ///
    /// # Errors
    /// If the device was not added, or its status has an unknown form.
    pub fn status(&self, device: &str) -> Result<Status, Error> {
        self.read(device)?.parse().map_err(|cause| Error::Block { file: device.to_owned(), cause })
    }

    /// Sets a parameter of a device.
    ///
    /// # Errors
    /// If pktgen refuses it.
    pub fn set(&self, device: &str, setting: &PktgenSetting) -> Result<(), Error> {
        let parameter = setting.parameter();
        let line = setting.to_string();
        self.write((device, &line), parameter.fix)?;
        match parameter.answer {
            ReportsResult::Yes => self.require_ok((device, &line), parameter.fix),
            // The text is the result of another command. Only the status shows whether this one was accepted.
            ReportsResult::No => Ok(()),
        }
    }

    /// Returns the settings that pktgen accepted and stored with another value.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn changes(&self, device: &str, settings: &[PktgenSetting]) -> Result<Vec<ChangedSetting>, Error> {
        Ok(ChangedSetting::all(device, settings, &self.status(device)?.params))
    }

    pub(super) fn command(&self, (file, line): (&str, &str), fix: &str) -> Result<(), Error> {
        self.write((file, line), fix)?;
        // The control file returns no result: it shows its version.
        if file == CONTROL { Ok(()) } else { self.require_ok((file, line), fix) }
    }

    pub(super) fn has(&self, device: &str) -> bool {
        self.folder.join(device).exists()
    }

    fn read(&self, file: &str) -> Result<String, Error> {
        let what = || format!("read {file} of pktgen");
        fs::read_to_string(self.folder.join(file)).map_err(|cause| Error::File { what: what(), cause })
    }

    /// Writes one line in one call, with its line feed: without it pktgen reads on.
    fn write(&self, (file, line): (&str, &str), fix: &str) -> Result<(), Error> {
        let bytes = format!("{line}\n").into_bytes();
        let open = OpenOptions::new().append(true).open(self.folder.join(file));
        let mut open = open.map_err(|cause| Error::File { what: format!("open {file} of pktgen"), cause })?;
        let said = match open.write(&bytes) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(n) => format!("it took {n} of {} bytes, as it does for values that it cannot use", bytes.len()),
            Err(error) => self.words(file, &error),
        };
        Err(refused((file, line), &said, fix))
    }

    /// Returns the kernel's error, and pktgen's text if it is about this command.
    fn words(&self, file: &str, error: &io::Error) -> String {
        let said = match self.outcome(file) {
            Ok(CommandResult::Refused(said)) => format!(" ({said})"),
            _ => String::new(),
        };
        match error.raw_os_error() {
            Some(ENOTSUPP) => format!("operation not supported here (ENOTSUPP){said}"),
            _ => format!("{error}{said}"),
        }
    }

    fn outcome(&self, file: &str) -> Result<CommandResult, Error> {
        let text = self.read(file)?;
        let said = text.rsplit_once("Result: ").map_or("NA", |(_, said)| said.trim());
        Ok(CommandResult::read(said))
    }

    fn require_ok(&self, (file, line): (&str, &str), fix: &str) -> Result<(), Error> {
        match self.outcome(file)? {
            CommandResult::Refused(said) => Err(refused((file, line), &said, fix)),
            CommandResult::Idle | CommandResult::Accepted(_) | CommandResult::Finished(_) => Ok(()),
        }
    }
}

fn refused((file, command): (&str, &str), said: &str, fix: &str) -> Error {
    // pktgen lists all its keywords after the first line.
    let said = said.lines().next().unwrap_or_default().to_owned();
    Error::Refused { file: file.to_owned(), command: command.to_owned(), said, fix: fix.to_owned() }
}

pub(super) fn thread_file(number: usize) -> String {
    format!("{THREAD}{number}")
}

impl PktgenThread {
    fn read(number: usize, text: &str) -> Self {
        let devices = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().map(str::to_owned).collect()
        };
        let said = text.split_once("Result: ").map_or("NA", |(_, said)| said.trim());
        // A thread without a command yet says NA.
        let outcome = if said == "NA" { CommandResult::Idle } else { CommandResult::read(said) };
        Self { number, running: devices("Running:"), stopped: devices("Stopped:"), last_result: outcome }
    }

    /// All its devices.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.running.iter().chain(&self.stopped).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(name: &str) -> PktgenDir {
        PktgenDir::at(format!("{}/tests/roots/{name}", env!("CARGO_MANIFEST_DIR")))
    }

    #[test]
    fn a_recorded_tree_is_read() {
        let root = recorded("ran");
        assert_eq!(root.version().unwrap(), "2.75");
        let threads = root.threads().unwrap();
        assert_eq!(threads.len(), 2);
        assert_eq!(threads[0].devices().collect::<Vec<_>>(), ["veth0@0"]);
        assert_eq!(threads[0].last_result, CommandResult::Accepted("add_device=veth0@0".to_owned()));
        assert_eq!((threads[1].devices().count(), &threads[1].last_result), (0, &CommandResult::Idle));
        assert_eq!(root.status("veth0@0").unwrap().progress.sent, 20_000);
    }

    #[test]
    fn a_kernel_without_pktgen_is_told_with_the_way_to_load_it() {
        let error = PktgenDir::at("/nonexistent").version().unwrap_err();
        assert_eq!(error.to_string(), "there is no kernel pktgen at /nonexistent");
        assert_eq!(error.hint().as_deref(), Some("sudo modprobe pktgen (CONFIG_NET_PKTGEN)"));
    }

    #[test]
    fn a_refusal_that_is_only_a_text_is_a_refusal() {
        let root = recorded("refused");
        let error = root.require_ok(("veth0@0", "flag NOSUCHFLAG"), "a fix").unwrap_err();
        let expected = "pktgen refused `flag NOSUCHFLAG` for veth0@0: Flag -:NOSUCHFLAG:- unknown";
        assert_eq!((error.to_string().as_str(), error.hint().as_deref()), (expected, Some("a fix")));
    }

    #[test]
    fn only_the_last_of_several_values_is_compared() {
        let root = recorded("ran");
        let settings = ["count 5", "pkt_size 10", "count 20000"].map(|line| line.parse().unwrap());
        let changes = root.changes("veth0@0", &settings).unwrap();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].to_string(), "pktgen took `pkt_size 10` for veth0@0 and made it 58");
    }
}
