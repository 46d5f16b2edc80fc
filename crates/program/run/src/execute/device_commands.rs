//! The commands of a device under test: start, stop, set, and counters, the maps of its programs among them. Each has a limit of time, and what was started is stopped.

use std::{collections::BTreeMap, fmt};

use fathom_model::{
    DeviceCommands, HostRecord,
    record::Series,
    units::{Nanos, rounded},
};
use fathom_sys::{clock, netlink::namespace::Namespaces, process::signal};
use serde_json::Value;

use super::{device_maps::DeviceMap, shell_command::ShellCommand};
use crate::exit::{Exit, UserError};

/// The longest time of a command: a rule set of thousands of rules, or a device that starts.
const COMMAND_TIMEOUT: Nanos = Nanos::from_secs(30);
/// The last lines of an output that an error shows.
const LINES_MAX: usize = 5;
/// Larger numbers are no counts that a JSON number can hold exactly.
const COUNT_MAX: f64 = 9e15;

/// A command of the device that failed. What was measured before is still good.
#[derive(Debug)]
pub(super) struct CommandFailure {
    error: UserError,
    /// True if it was not waited for because of a signal.
    pub(super) is_interruption: bool,
}

impl CommandFailure {
    /// Returns the failure in one line, as the reason why a run is incomplete.
    pub(super) fn reason(&self) -> String {
        self.error.one_line()
    }
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for CommandFailure {}

impl From<CommandFailure> for UserError {
    fn from(failure: CommandFailure) -> Self {
        failure.error
    }
}

/// Runs the commands of a device. Dropping it stops the device, if it was started.
pub(super) struct DeviceControl {
    commands: DeviceCommands,
    /// The namespaces of the host on which they run; `None` for this machine.
    place: Option<Namespaces>,
    is_started: bool,
}

impl DeviceControl {
    pub(super) fn new(commands: &DeviceCommands, place: Option<Namespaces>) -> Self {
        Self { commands: commands.clone(), place, is_started: false }
    }

    /// Starts the device.
    ///
    /// # Errors
    /// If the command fails or does not end; then the device is stopped.
    pub(super) fn start(&mut self) -> Result<(), CommandFailure> {
        // What a failed start left behind is stopped too.
        self.is_started = true;
        self.commands.start.clone().map_or(Ok(()), |command| self.run(Purpose::Start, &command).map(drop))
    }

    /// Stops the device, if it was started.
    ///
    /// # Errors
    /// If the command fails or does not end.
    pub(super) fn stop(&mut self) -> Result<(), CommandFailure> {
        if !std::mem::take(&mut self.is_started) {
            return Ok(());
        }
        self.commands.stop.clone().map_or(Ok(()), |command| self.run(Purpose::Stop, &command).map(drop))
    }

    /// Sets a value on the device.
    ///
    /// # Errors
    /// If the command fails or does not end.
    pub(super) fn set(&self, command: &str) -> Result<(), CommandFailure> {
        self.run(Purpose::Set, command).map(drop)
    }

    /// Returns the counters of the device; `None` without a command or a map for them.
    ///
    /// # Errors
    /// If the command fails, does not end, or does not print one JSON object of whole numbers; if a map cannot be read.
    pub(super) fn counters(&self) -> Result<Option<DeviceCounters>, CommandFailure> {
        if self.commands.counters.is_none() && self.commands.maps.is_empty() {
            return Ok(None);
        }
        let at = clock::now();
        let mut values =
            self.commands.counters.as_ref().map_or(Ok(BTreeMap::new()), |command| self.printed(command))?;
        for map in &self.commands.maps {
            values.extend(counts_of_map(map)?);
        }
        Ok(Some(DeviceCounters { at, values }))
    }

    /// Returns the counters that a command prints.
    fn printed(&self, command: &str) -> Result<BTreeMap<String, u64>, CommandFailure> {
        let printed = self.run(Purpose::Count, command)?;
        numbers(&printed).map_err(|why| {
            let text: String = printed.chars().take(200).collect();
            let what = format!("the counters of the device are not one JSON object of whole numbers: {why}");
            let error = UserError::new(Exit::Preflight, what).with_line("of", command);
            let error = error.with_line("printed", text.trim().escape_debug().to_string());
            CommandFailure { error, is_interruption: false }
        })
    }

    /// Runs a command for this purpose. Returns what it printed.
    fn run(&self, purpose: Purpose, command: &str) -> Result<String, CommandFailure> {
        // A device is stopped after a signal too.
        let is_interrupted = || purpose != Purpose::Stop && signal::received().is_some();
        let failed = |why: String, said: &[&str]| {
            let error = UserError::new(Exit::Preflight, format!("the command that {} failed", purpose.words()))
                .with_line("why", why)
                .with_line("of", command.to_owned());
            let error = said.iter().fold(error, |error, line| error.with_line("said", *line));
            CommandFailure { error, is_interruption: is_interrupted() }
        };
        let deadline = clock::now() + COMMAND_TIMEOUT;
        let reason_to_stop = || {
            let is_late = clock::now() >= deadline;
            is_interrupted()
                .then(|| "it was interrupted".to_owned())
                .or_else(|| is_late.then(|| format!("it did not end within {COMMAND_TIMEOUT}")))
        };
        let shell = ShellCommand { text: command, place: self.place.as_ref() };
        let ended = shell.run(reason_to_stop).map_err(|error| failed(error.to_string(), &[]))?;
        let status = ended.status.map_err(|why| failed(why, &[]))?;
        if status.success() {
            return Ok(ended.output);
        }
        let said = if ended.errors.trim().is_empty() { ended.output } else { ended.errors };
        let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
        Err(failed(status.to_string(), &lines[lines.len().saturating_sub(LINES_MAX)..]))
    }
}

impl Drop for DeviceControl {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("note: {error}");
        }
    }
}

/// What a command is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Start,
    Stop,
    Set,
    Count,
}

impl Purpose {
    /// The words behind `the command that`.
    const fn words(self) -> &'static str {
        match self {
            Self::Start => "starts the device",
            Self::Stop => "stops the device",
            Self::Set => "sets a value on the device",
            Self::Count => "prints the counters of the device",
        }
    }
}

/// The counters of a device at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceCounters {
    at: Nanos,
    values: BTreeMap<String, u64>,
}

impl DeviceCounters {
    /// Returns the record of a trial, from the counters before and after it. A counter that is new began at 0.
    pub(super) fn until(&self, after: &Self) -> HostRecord {
        let series = after.values.iter().map(|(name, last)| {
            let first = self.values.get(name).copied().unwrap_or(0);
            Series { name: name.clone(), of: String::new(), values: vec![first, *last] }
        });
        HostRecord { at_ns: vec![self.at, after.at], series: series.collect(), ..HostRecord::default() }
    }
}

/// Reads a map of the device's programs.
fn counts_of_map(text: &str) -> Result<BTreeMap<String, u64>, CommandFailure> {
    let failed = |error| CommandFailure { error, is_interruption: false };
    let map: DeviceMap = text.parse().map_err(failed)?;
    map.counts().map_err(|error| {
        let what = format!("the map `{text}` of the device cannot be read");
        let fix = match error.errno() {
            Some(_) if error.is_permission() => "root",
            Some(_) => "bpftool map    # the maps of this machine, with their names and ids",
            None => "another map, or --device-counters with a command that prints the counts",
        };
        failed(UserError::new(Exit::Preflight, what).with_line("why", error.source.to_string()).with_line("fix", fix))
    })
}

/// Parses one JSON object of counts.
fn numbers(text: &str) -> Result<BTreeMap<String, u64>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(all) = value else { return Err("it is no object".to_owned()) };
    let count = |(name, value): (String, Value)| {
        let number = value.as_u64().or_else(|| {
            let is_count = |number: &f64| (0.0..COUNT_MAX).contains(number) && number.fract().abs() <= 0.0;
            value.as_f64().filter(is_count).map(rounded)
        });
        let not_whole = || format!("`{name}` is {value}, and not a whole number from 0 on");
        number.map(|number| (name.clone(), number)).ok_or_else(not_whole)
    };
    all.into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(commands: &DeviceCommands) -> DeviceControl {
        DeviceControl::new(commands, None)
    }

    #[test]
    fn counters_are_one_object_of_counts() {
        let counted = numbers(r#"{"in": 7, "dropped": 2.0, "big": 18446744073709551615}"#).unwrap();
        assert_eq!((counted["in"], counted["dropped"], counted["big"]), (7, 2, u64::MAX));
        for (text, named) in [
            ("[1]", "no object"),
            (r#"{"in": "7"}"#, "`in` is \"7\""),
            (r#"{"in": -1}"#, "`in` is -1"),
            (r#"{"in": 1, "busy": 0.5}"#, "`busy` is 0.5"),
            ("7 packets", "trailing"),
        ] {
            let error = numbers(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_record_has_the_counters_before_and_after() {
        let of = |at, values: &[(&str, u64)]| DeviceCounters {
            at: Nanos(at),
            values: values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        };
        let record = of(1, &[("in", 5)]).until(&of(9, &[("in", 12), ("late", 3)]));
        assert_eq!((record.growth("in", ""), record.growth("late", ""), record.span()), (Some(7), Some(3), Nanos(8)));
    }

    #[test]
    fn what_a_command_printed_is_in_its_error() {
        let device =
            control(&DeviceCommands { counters: Some("echo 7 packets".to_owned()), ..DeviceCommands::default() });
        let error = device.counters().unwrap_err().to_string();
        assert!(error.contains("of     echo 7 packets") && error.contains("printed 7 packets"), "{error}");
        let error = device.set("echo no such rule >&2; exit 3").unwrap_err().to_string();
        assert!(
            error.contains("sets a value") && error.contains("exit status: 3") && error.contains("no such rule"),
            "{error}"
        );
        let failure = device.set("echo no such rule >&2; exit 3").unwrap_err();
        assert_eq!(
            failure.reason(),
            "the command that sets a value on the device failed: exit status: 3, of `echo no such rule >&2; exit 3`, said `no such rule`"
        );
        let error = device.set("exec no-such-program-here").unwrap_err().to_string();
        assert!(error.contains("no-such-program-here"), "{error}");
    }

    #[test]
    fn a_device_that_was_started_is_stopped_once_even_if_its_start_failed() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let say = |word: &str| format!("echo {word} >> '{}'", log.display());
        let commands =
            |start: String| DeviceCommands { start: Some(start), stop: Some(say("stop")), ..DeviceCommands::default() };
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        drop(control(&commands(say("start"))));
        assert_eq!(told(), "", "it was never started");
        let mut device = control(&commands(say("start")));
        device.start().unwrap();
        device.stop().unwrap();
        drop(device);
        assert_eq!(told(), "start\nstop\n");
        let mut device = control(&commands(format!("{}; exit 1", say("start"))));
        assert!(device.start().is_err());
        drop(device);
        assert_eq!(told(), "start\nstop\nstart\nstop\n");
    }

    #[test]
    fn a_device_in_the_background_does_not_hold_its_command_up() {
        let device = control(&DeviceCommands {
            counters: Some("sleep 30 & echo {\\\"pid\\\": $!}".to_owned()),
            ..DeviceCommands::default()
        });
        let pid = device.counters().unwrap().unwrap().values["pid"];
        // It still runs, so nobody waited for its end.
        device.set(&format!("kill {pid}")).unwrap();
    }
}
