//! What a plan lets happen while a test runs: a command, a link that goes down, a target that stops.
//!
//! Events run on the machine of the controller, never on a served host: an agent does not run commands of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use fathom_model::{EventRecord, Plan, units::Nanos};
use fathom_sys::{
    clock,
    netlink::namespace::Namespaces,
    process::{signal, threads},
};

use super::shell_command::ShellCommand;
use crate::{
    exit::{Exit, UserError},
    hosts::Hosts,
};

/// The most events of a test: each waits in a thread of its own.
const EVENTS_MAX: usize = 64;
/// What undoes an event, and what runs afterwards, may take so long.
const UNDO_MAX: Nanos = Nanos::from_secs(10);
/// What a place is written with.
const ON: &str = "on=";

/// A command and the host of a lab that it runs on; on this machine, if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventCommand {
    on: Option<String>,
    command: String,
}

/// An event of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventSpec {
    /// As the plan has it.
    text: String,
    at: Nanos,
    /// When it is undone, if that is before the end of the trial.
    until: Option<Nanos>,
    command: EventCommand,
    undo: Option<EventCommand>,
}

/// All events of a test, and what runs after each of its trials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TestEvents {
    events: Vec<EventSpec>,
    afterwards: Vec<EventCommand>,
}

/// An event that is a word with the thing it is about, and the commands that do and undo it there.
struct BuiltIn {
    word: &'static str,
    form: &'static str,
    /// The host, and the commands, for the part behind the `=`. What the first command prints is run after the second one.
    commands: fn(&str) -> Option<(String, String, String)>,
}

/// Prints the commands that give a device its routes, neighbors and IPv6 addresses again, which the kernel forgets when it goes down.
const REMEMBER_DEVICE: &str = "\
ip -6 -o addr show dev DEVICE scope global | awk '{print \"ip -6 addr replace \" $4 \" dev DEVICE nodad\"}' && \
ip neigh show dev DEVICE nud permanent | awk '{print \"ip neigh replace \" $1 \" lladdr \" $3 \" dev DEVICE nud permanent\"}' && \
ip -4 route show dev DEVICE | sed 's/^/ip -4 route replace /; s/linkdown//; s/$/ dev DEVICE/' && \
ip -6 route show dev DEVICE | sed 's/^/ip -6 route replace /; s/linkdown//; s/$/ dev DEVICE/'";

const BUILT_INS: &[BuiltIn] = &[
    BuiltIn {
        word: "link-down",
        form: "link-down=HOST:DEVICE",
        commands: |about| {
            let (host, device) = about.split_once(':')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
            (!device.is_empty() && device.chars().all(is_name)).then(|| {
                let set = |state: &str| format!("ip link set dev {device} {state}");
                let down = format!("{} && {}", REMEMBER_DEVICE.replace("DEVICE", device), set("down"));
                (host.to_owned(), down, set("up"))
            })
        },
    },
    BuiltIn {
        word: "black-hole",
        form: "black-hole=HOST",
        commands: |about| {
            let table = "inet fathom_black_hole";
            let add = format!(
                "nft 'add table {table}; \
                 add chain {table} drop_all {{ type filter hook prerouting priority -500; policy drop; }}'"
            );
            Some((about.to_owned(), add, format!("nft delete table {table}")))
        },
    },
];

fn invalid(text: &str, why: &str) -> UserError {
    let built_in: Vec<&str> = BUILT_INS.iter().map(|one| one.form).collect();
    UserError::new(Exit::Usage, format!("event `{text}`: {why}"))
        .with_line("use", "--at '4s COMMAND' or --at '4s on=HOST COMMAND'")
        .with_line("in labs", format!("--at '4s-8s {}'", built_in.join("' or --at '4s-8s ")))
}

impl EventCommand {
    /// Reads a command, with the host before it if it runs on one.
    fn of(text: &str, whole: &str, hosts: &BTreeSet<&str>) -> Result<Self, UserError> {
        let (on, command) = match text.strip_prefix(ON) {
            None => (None, text),
            Some(rest) => {
                let (host, command) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                (Some(host.to_owned()), command.trim())
            }
        };
        if let Some(host) = on.as_deref() {
            check_host(host, whole, hosts)?;
        }
        if command.is_empty() {
            return Err(invalid(whole, "it has no command"));
        }
        Ok(Self { on, command: command.to_owned() })
    }
}

fn check_host(host: &str, whole: &str, hosts: &BTreeSet<&str>) -> Result<(), UserError> {
    if hosts.contains(host) {
        return Ok(());
    }
    let names: Vec<&str> = hosts.iter().copied().collect();
    let names = if names.is_empty() { "none: this plan has no lab".to_owned() } else { names.join(", ") };
    Err(invalid(whole, &format!("`{host}` is not a host of a lab of this plan")).with_line("hosts", names))
}

impl EventSpec {
    /// Reads an event: a time and what happens then.
    fn of(text: &str, hosts: &BTreeSet<&str>) -> Result<Self, UserError> {
        let (at, what) =
            text.trim().split_once(char::is_whitespace).ok_or_else(|| invalid(text, "it is a time and a command"))?;
        let time = |word: &str| word.parse::<Nanos>().map_err(|error| invalid(text, &format!("{error}")));
        let (at, until) = match at.split_once('-') {
            None => (time(at)?, None),
            Some((from, to)) => (time(from)?, Some(time(to)?)),
        };
        if until.is_some_and(|until| until <= at) {
            return Err(invalid(text, "it would be undone before it begins"));
        }
        let what = what.trim();
        let (word, about) = what.split_once('=').unwrap_or((what, ""));
        let (command, undo) = match BUILT_INS.iter().find(|one| one.word == word) {
            None => (EventCommand::of(what, text, hosts)?, None),
            Some(built_in) => {
                let (host, command, undo) =
                    (built_in.commands)(about).ok_or_else(|| invalid(text, &format!("it is {}", built_in.form)))?;
                check_host(&host, text, hosts)?;
                let on = Some(host);
                (EventCommand { on: on.clone(), command }, Some(EventCommand { on, command: undo }))
            }
        };
        if until.is_some() && undo.is_none() {
            return Err(invalid(text, "only an event that can be undone has an end; give two commands"));
        }
        Ok(Self { text: text.trim().to_owned(), at, until, command, undo })
    }
}

impl TestEvents {
    /// Reads the events of a test, which must begin and end within the part of its trial that is certain.
    pub(super) fn of(
        hosts: &BTreeSet<&str>,
        (events, afterwards): (&[String], &[String]),
        certain: Nanos,
    ) -> Result<Self, UserError> {
        if events.len() > EVENTS_MAX {
            let text = format!("{} events are more than {EVENTS_MAX}", events.len());
            return Err(UserError::new(Exit::Usage, text).with_line("use", "one command that does several things"));
        }
        if events.is_empty() && !afterwards.is_empty() {
            return Err(UserError::new(Exit::Usage, "`afterwards` has nothing to follow: there are no events")
                .with_line("use", "--at '4s COMMAND' --afterwards 'COMMAND'"));
        }
        let events = events.iter().map(|text| EventSpec::of(text, hosts)).collect::<Result<Vec<_>, _>>()?;
        if let Some(late) = events.iter().find(|event| event.until.unwrap_or(event.at) >= certain) {
            return Err(invalid(&late.text, &format!("the trial may be over after {certain}"))
                .with_line("why", "its time counts from the start, and a warm-up ends once the rate is steady")
                .with_line("fix", "a longer --duration"));
        }
        let afterwards = afterwards.iter().map(|text| EventCommand::of(text, text, hosts)).collect::<Result<_, _>>()?;
        Ok(Self { events, afterwards })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

/// Whether a trial has started, and whether it is over.
#[derive(Debug, Default, Clone, Copy)]
struct TrialStage {
    start: Option<Nanos>,
    is_over: bool,
}

/// The clock that all events of a trial wait for.
#[derive(Debug, Default)]
pub(super) struct EventClock {
    stage: Mutex<TrialStage>,
    changed: Condvar,
}

impl EventClock {
    fn stage(&self) -> MutexGuard<'_, TrialStage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The trial starts at this time of the clock.
    pub(super) fn start(&self, at: Nanos) {
        self.stage().start = Some(at);
        self.changed.notify_all();
    }

    fn end(&self) {
        self.stage().is_over = true;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.stage().is_over
    }

    fn has_started(&self) -> bool {
        self.stage().start.is_some()
    }

    fn wait_for_end(&self) {
        let stage = self.stage();
        drop(self.changed.wait_while(stage, |stage| !stage.is_over).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until so long after the start. Returns the start, or `None` if the trial is over before.
    fn wait_until(&self, at: Nanos) -> Option<Nanos> {
        let mut stage = self.stage();
        loop {
            if stage.is_over {
                return None;
            }
            let left = stage.start.map(|start| (start + at).since(clock::now()));
            stage = match left {
                Some(Nanos::ZERO) => return stage.start,
                Some(left) => {
                    self.changed.wait_timeout(stage, left.as_duration()).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// The hosts of labs that commands run on.
pub(super) struct EventPlaces(BTreeMap<String, Namespaces>);

impl EventPlaces {
    /// Opens the hosts of labs that events of a test run on.
    pub(super) fn of(events: &TestEvents, plan: &Plan, hosts: &Hosts) -> Result<Self, UserError> {
        let commands = events.events.iter().flat_map(|event| std::iter::once(&event.command).chain(&event.undo));
        let names: BTreeSet<&String> =
            commands.chain(&events.afterwards).filter_map(|command| command.on.as_ref()).collect();
        let open = |name: &String| Ok((name.clone(), hosts.namespaces(plan, name)?));
        names.into_iter().map(open).collect::<Result<_, UserError>>().map(Self)
    }

    /// Runs a command, at most until a time of the clock or until the trial is over. Returns the beginning of what it printed.
    fn run(&self, event: &EventCommand, deadline: Nanos, is_over: &dyn Fn() -> bool) -> Result<String, EventFailure> {
        let place = event.on.as_ref().map(|host| self.0.get(host).expect("the hosts of all events were opened"));
        let is_unwanted = || (is_over() || clock::now() >= deadline).then_some(());
        let ended = ShellCommand { text: &event.command, place }.run(is_unwanted);
        let ended = ended.map_err(|error| EventFailure::NotStarted(error.to_string()))?;
        match ended.status.map(|status| status.code()) {
            Ok(Some(0)) => Ok(ended.output),
            Err(()) => Err(EventFailure::Unfinished { printed: ended.output }),
            Ok(code) => {
                let complaint = ended.errors.lines().next().unwrap_or_default().trim().to_owned();
                Err(EventFailure::Status(code, complaint))
            }
        }
    }
}

/// Why an event did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EventFailure {
    NotStarted(String),
    /// It still ran when the trial was over.
    Unfinished {
        printed: String,
    },
    /// Its exit status, if it has one, and the first line of its complaint.
    Status(Option<i32>, String),
}

impl EventFailure {
    fn text(&self) -> String {
        match self {
            Self::NotStarted(why) => why.clone(),
            Self::Unfinished { .. } => "it still ran when the trial was over".to_owned(),
            Self::Status(None, _) => "a signal ended it".to_owned(),
            Self::Status(Some(status), complaint) if complaint.is_empty() => format!("exit status {status}"),
            Self::Status(Some(status), complaint) => format!("exit status {status}: {complaint}"),
        }
    }
}

/// Runs a trial with its events. Each is undone before this returns, however the trial ends.
///
/// Returns what the trial returned, what happened, and what could not be undone.
pub(super) fn run_with_events<T>(
    (events, places): (&TestEvents, &EventPlaces),
    clock: &EventClock,
    trial: impl FnOnce() -> T,
) -> (T, Vec<EventRecord>, Vec<String>) {
    thread::scope(|scope| {
        let waiting: Vec<_> = events
            .events
            .iter()
            .map(|spec| (spec, threads::start_within(scope, move || run_event(spec, places, clock))))
            .collect();
        let outcome = trial();
        clock.end();
        let (mut records, mut left) = (Vec::new(), Vec::new());
        for (spec, thread) in waiting {
            match thread {
                Ok(thread) => {
                    let (of_event, undone) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                    records.extend(of_event);
                    left.extend(undone.err());
                }
                Err(error) => records.push(EventRecord { failure: Some(error.to_string()), ..planned(spec) }),
            }
        }
        for command in &events.afterwards {
            let ran = places.run(command, fathom_sys::clock::now() + UNDO_MAX, &|| false);
            left.extend(
                ran.err()
                    .map(|failure| format!("`{}`, which runs afterwards, failed: {}", command.command, failure.text())),
            );
        }
        records.sort_by_key(|record| record.began_ns.unwrap_or(record.due_ns));
        (outcome, records, left)
    })
}

fn planned(spec: &EventSpec) -> EventRecord {
    EventRecord {
        event: spec.text.clone(),
        due_ns: spec.at,
        began_ns: None,
        took_ns: None,
        status: None,
        failure: None,
    }
}

/// Waits for the time of an event, runs it, and undoes it at its end or when the trial is over. Returns what happened, and what is left.
fn run_event(spec: &EventSpec, places: &EventPlaces, clock: &EventClock) -> (Vec<EventRecord>, Result<(), String>) {
    let Some(start) = clock.wait_until(spec.at) else { return (missed(planned(spec), clock), Ok(())) };
    let began = fathom_sys::clock::now();
    let mut ran = places.run(&spec.command, Nanos::MAX, &|| clock.is_over());
    // A command that runs as long as the trial has done what it should.
    let is_unfinished = matches!(ran, Err(EventFailure::Unfinished { .. })) && spec.undo.is_none();
    if is_unfinished {
        ran = Ok(String::new());
    }
    let record = record_of(spec, &ran, (start, began));
    let record = if is_unfinished { EventRecord { took_ns: None, status: None, ..record } } else { record };
    // What failed changed nothing that could be undone; what was killed may have.
    let (Some(undo), Ok(printed) | Err(EventFailure::Unfinished { printed })) = (&spec.undo, ran) else {
        return (vec![record], Ok(()));
    };
    let is_in_trial = spec.until.is_some_and(|until| clock.wait_until(until).is_some());
    if spec.until.is_none() {
        clock.wait_for_end();
    }
    let undo = EventCommand { command: format!("{}\n{printed}", undo.command), ..undo.clone() };
    let began = fathom_sys::clock::now();
    let undone = places.run(&undo, began + UNDO_MAX, &|| false);
    let mut records = vec![record];
    if let Some(until) = spec.until {
        let end_of = |record| EventRecord { event: format!("end of {}", spec.text), due_ns: until, ..record };
        if is_in_trial {
            records.push(end_of(record_of(spec, &undone, (start, began))));
        } else {
            records.extend(missed(end_of(planned(spec)), clock));
        }
    }
    let told = |failure: EventFailure| format!("`{}` could not be undone: {}", spec.text, failure.text());
    (records, undone.map(drop).map_err(told))
}

/// Returns the record of an event whose time did not come. After a signal, or without a start, that needs no telling.
fn missed(planned: EventRecord, clock: &EventClock) -> Vec<EventRecord> {
    let is_expected = signal::received().is_some() || !clock.has_started();
    let failure = Some("the trial was over before it was due".to_owned());
    if is_expected { Vec::new() } else { vec![EventRecord { failure, ..planned }] }
}

/// Records what a command of an event did.
fn record_of(spec: &EventSpec, ran: &Result<String, EventFailure>, (start, began): (Nanos, Nanos)) -> EventRecord {
    let status = match ran {
        Ok(_) => Some(0),
        Err(EventFailure::Status(status, _)) => *status,
        Err(_) => None,
    };
    EventRecord {
        began_ns: Some(began.since(start)),
        took_ns: Some(fathom_sys::clock::now() - began),
        status,
        failure: ran.as_ref().err().map(EventFailure::text),
        ..planned(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> BTreeSet<&'static str> {
        ["a", "t2"].into()
    }

    #[test]
    fn an_event_is_a_time_and_a_command_and_maybe_a_host() {
        let here = EventSpec::of("4s touch /tmp/x", &hosts()).unwrap();
        assert_eq!(
            (here.at, here.command.on, here.command.command.as_str()),
            (Nanos::from_secs(4), None, "touch /tmp/x")
        );
        let there = EventSpec::of("250ms on=t2 ip link", &hosts()).unwrap();
        assert_eq!((there.command.on.as_deref(), there.command.command.as_str()), (Some("t2"), "ip link"));
        let down = EventSpec::of("1s link-down=t2:eth0", &hosts()).unwrap();
        assert!(down.command.command.ends_with("ip link set dev eth0 down"), "{down:?}");
        assert_eq!(down.undo.unwrap().command, "ip link set dev eth0 up");
        let span = EventSpec::of("1s-2.5s black-hole=t2", &hosts()).unwrap();
        assert_eq!((span.at, span.until), (Nanos::from_secs(1), Some(Nanos::from_millis(2500))));
        let equal_sign = EventSpec::of("1s A=b env", &hosts()).unwrap();
        assert_eq!(equal_sign.command.command, "A=b env");
    }

    #[test]
    fn what_is_no_event_is_named() {
        for (text, why) in [
            ("4s", "it is a time and a command"),
            ("soon touch x", "event `soon touch x`"),
            ("4s on=t2", "it has no command"),
            ("4s on=b ls", "`b` is not a host of a lab"),
            ("4s link-down=t2", "it is link-down=HOST:DEVICE"),
            ("4s link-down=t2:a;b", "it is link-down=HOST:DEVICE"),
            ("4s-3s black-hole=t2", "it would be undone before it begins"),
            ("4s-5s touch x", "only an event that can be undone has an end"),
            ("4s black-hole=nobody", "`nobody` is not a host"),
        ] {
            let error = EventSpec::of(text, &hosts()).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let late = TestEvents::of(&BTreeSet::new(), (&["4s ls".to_owned()], &[]), Nanos::from_secs(4)).unwrap_err();
        assert!(late.to_string().contains("the trial may be over after"), "{late}");
        assert!(TestEvents::of(&BTreeSet::new(), (&[], &["ls".to_owned()]), Nanos::from_secs(4)).is_err());
    }

    /// Plays a trial with these events. It starts, if it does, and is over at once.
    fn played(events: &[&str], starts: bool) -> Vec<EventRecord> {
        let events: Vec<String> = events.iter().map(|&event| event.to_owned()).collect();
        let events = TestEvents::of(&BTreeSet::new(), (&events, &[]), Nanos::from_secs(100)).unwrap();
        let clock = EventClock::default();
        let trial = || {
            if starts {
                clock.start(fathom_sys::clock::now());
            }
        };
        let ((), records, left) = run_with_events((&events, &EventPlaces(BTreeMap::new())), &clock, trial);
        assert_eq!(left, Vec::<String>::new());
        records
    }

    #[test]
    fn an_event_whose_time_does_not_come_has_failed() {
        let records = played(&["50s touch /never"], true);
        let [record] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!((record.began_ns, record.due_ns, record.status), (None, Nanos::from_secs(50), None));
        assert_eq!(record.failure.as_deref(), Some("the trial was over before it was due"));
        assert_eq!(played(&["50s touch /never"], false), [], "a trial that did not start has told why");
    }
}
