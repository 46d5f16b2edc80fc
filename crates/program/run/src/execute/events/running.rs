//! What happens at the times of events, beside a trial.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    process::ExitStatus,
    thread,
};

use fathom_model::{EventRecord, EventSpan, Plan, units::Nanos};
use fathom_sys::{
    clock,
    netlink::namespace::Namespaces,
    process::{signal, threads},
};

use super::{
    super::{
        held_change::{ChangeText, HeldChange, ShellEnd},
        shell_command::{CommandEnd, GuardedGroup, ShellCommand},
    },
    event_clock::EventClock,
    spec::{EventAction, EventCommand, EventSpec, TestEvents},
};
use crate::{exit::UserError, hosts::Hosts};

/// What makes or undoes a change, and what runs afterwards, may take so long.
pub(super) const CHANGE_MAX: Nanos = Nanos::from_secs(10);

/// The hosts of labs that commands run on.
pub(in crate::execute) struct EventPlaces(BTreeMap<String, Namespaces>);

impl EventPlaces {
    /// Opens the hosts of labs that events of a test run on.
    pub(in crate::execute) fn of(events: &TestEvents, plan: &Plan, hosts: &Hosts) -> Result<Self, UserError> {
        let of_events = events.events.iter().filter_map(|event| event.action.host());
        let afterwards = events.afterwards.iter().filter_map(|command| command.on.as_ref());
        let names: BTreeSet<&String> = of_events.chain(afterwards).collect();
        let open = |name: &String| Ok((name.clone(), hosts.namespaces(plan, name)?));
        names.into_iter().map(open).collect::<Result<_, UserError>>().map(Self)
    }

    fn namespaces(&self, host: &String) -> &Namespaces {
        self.0.get(host).expect("the hosts of all events were opened")
    }

    /// Returns the command with its place.
    fn command<'a>(&'a self, event: &'a EventCommand) -> ShellCommand<'a> {
        ShellCommand { text: &event.command, place: event.on.as_ref().map(|host| self.namespaces(host)) }
    }
}

/// Why an event did not do what it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventFailure {
    NotStarted(String),
    /// It still ran when the trial was over.
    Unfinished,
    /// It was killed after this time.
    Slow(Nanos),
    /// Its exit status, if it has one, and the first line of its complaint.
    Status(Option<i32>, String),
}

#[expect(clippy::needless_pass_by_value, reason = "a conversion of an error")]
fn not_started(error: io::Error) -> EventFailure {
    EventFailure::NotStarted(error.to_string())
}

impl EventFailure {
    /// Judges how a shell ended.
    fn check(status: ExitStatus, errors: &str) -> Result<(), Self> {
        let complaint = || errors.lines().next().unwrap_or_default().trim().to_owned();
        if status.success() { Ok(()) } else { Err(Self::Status(status.code(), complaint())) }
    }

    /// Judges how a command ended.
    fn of_command(ended: io::Result<CommandEnd<Self>>) -> Result<(), Self> {
        let ended = ended.map_err(not_started)?;
        Self::check(ended.status?, &ended.errors)
    }

    /// Judges how the shell of a change ended.
    pub(super) fn of_change(end: &ShellEnd) -> Result<(), Self> {
        Self::check(end.status.ok_or(Self::Slow(CHANGE_MAX))?, &end.errors)
    }

    fn text(&self) -> String {
        match self {
            Self::NotStarted(why) => why.clone(),
            Self::Unfinished => "it still ran when the trial was over".to_owned(),
            Self::Slow(limit) => format!("it did not end within {limit}"),
            Self::Status(None, _) => "a signal ended it".to_owned(),
            Self::Status(Some(status), complaint) if complaint.is_empty() => format!("exit status {status}"),
            Self::Status(Some(status), complaint) => format!("exit status {status}: {complaint}"),
        }
    }
}

/// Runs a trial with its events. Each is undone before this returns, however the trial ends.
///
/// Returns what the trial returned, what happened, and what could not be undone.
pub(in crate::execute) fn run_with_events<T>(
    events: &TestEvents,
    places: &EventPlaces,
    event_clock: &EventClock,
    trial: impl FnOnce() -> T,
) -> (T, Vec<EventRecord>, Vec<String>) {
    thread::scope(|scope| {
        let waiting: Vec<_> = events
            .events
            .iter()
            .map(|spec| (spec, threads::start_within(scope, "event", move || run_event(spec, places, event_clock))))
            .collect();
        let outcome = trial();
        event_clock.end();
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
            let deadline = clock::now() + CHANGE_MAX;
            let is_late = || (clock::now() >= deadline).then_some(EventFailure::Slow(CHANGE_MAX));
            let ran = EventFailure::of_command(places.command(command).run(is_late));
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
        n_runs: None,
        took_ns: None,
        status: None,
        failure: None,
    }
}

/// Waits for the time of an event, and lets it happen. Returns what happened, and what is left.
fn run_event(
    spec: &EventSpec,
    places: &EventPlaces,
    event_clock: &EventClock,
) -> (Vec<EventRecord>, Result<(), String>) {
    let Some(start) = event_clock.wait_until(spec.at) else {
        return (missed(planned(spec), NOT_DUE, event_clock), Ok(()));
    };
    let due = DueEvent { spec, start, clock: event_clock };
    match &spec.action {
        EventAction::Run(command) => {
            let command = places.command(command);
            let record = match spec.until.zip(spec.every) {
                None => due.run(&command),
                Some((until, every)) => due.repeat(&command, until, every),
            };
            (vec![record], Ok(()))
        }
        EventAction::Change { host, change } => {
            let (records, left) = due.make(change, places.namespaces(host));
            (records, left.map_err(|failure| format!("`{}` could not be undone: {}", spec.text, failure.text())))
        }
    }
}

/// An event whose time has come.
struct DueEvent<'a> {
    spec: &'a EventSpec,
    /// The start of the trial.
    start: Nanos,
    clock: &'a EventClock,
}

impl DueEvent<'_> {
    fn run(&self, command: &ShellCommand<'_>) -> EventRecord {
        let began = clock::now();
        let ran = EventFailure::of_command(command.run(|| self.reason_to_stop()));
        match self.record(began, &ran) {
            // A command that runs as long as the trial has done what it should.
            record if ran == Err(EventFailure::Unfinished) => EventRecord { took_ns: None, failure: None, ..record },
            record => record,
        }
    }

    /// Runs a command again and again until its end or that of the trial. A run that takes longer than the interval leaves out the times
    /// that it misses.
    fn repeat(&self, command: &ShellCommand<'_>, until: Nanos, every: Nanos) -> EventRecord {
        let began = clock::now();
        let group = match GuardedGroup::new() {
            Ok(group) => group,
            Err(error) => return EventRecord { n_runs: Some(0), ..self.record(began, &Err(not_started(error))) },
        };
        let (mut due, mut n_runs, mut n_failed, mut ended) = (self.spec.at, 0, 0, Ok(()));
        while due < until && self.clock.wait_until(due).is_some() {
            match EventFailure::of_command(command.run_in(&group, || self.reason_to_stop())) {
                Err(EventFailure::Unfinished) => {
                    ended = Err(EventFailure::Unfinished);
                    break;
                }
                Err(failure) => {
                    n_failed += 1;
                    ended = Err(failure);
                }
                Ok(()) => {}
            }
            n_runs += 1;
            let n_due = clock::now().since(self.start + self.spec.at).0 / every.0 + 1;
            due = self.spec.at + Nanos(n_due * every.0);
        }
        let ended = ended.and(group.release().map_err(not_started));
        let record = self.record(began, &ended);
        let is_cut = due < until && signal::received().is_none();
        let failure = match record.failure {
            Some(failure) if n_failed > 0 => Some(format!("{n_failed} of {n_runs} runs failed: {failure}")),
            None if is_cut => Some(format!("the trial was over after {n_runs} runs, before its end")),
            failure => failure,
        };
        EventRecord { n_runs: Some(n_runs), failure, ..record }
    }

    /// Makes a change, and undoes it at its end or when the trial is over. What could not be made is not undone.
    fn make(&self, change: &ChangeText, place: &Namespaces) -> (Vec<EventRecord>, Result<(), EventFailure>) {
        let began = clock::now();
        let made = HeldChange::make(change, Some(place), CHANGE_MAX).map_err(not_started);
        let held = match made {
            Ok(Ok(held)) => held,
            Ok(Err(end)) => return (vec![self.record(began, &EventFailure::of_change(&end))], Ok(())),
            Err(failure) => return (vec![self.record(began, &Err(failure))], Ok(())),
        };
        let mut records = vec![self.record(began, &Ok(()))];
        let is_in_trial = self.spec.until.is_some_and(|until| self.clock.wait_until(until).is_some());
        if self.spec.until.is_none() {
            self.clock.wait_for_end();
        }
        let began = clock::now();
        let undone = held.undo(CHANGE_MAX).map_err(not_started).and_then(|end| EventFailure::of_change(&end));
        if let Some(until) = self.spec.until {
            let end_of = |record| {
                let event = format!("{}{}", EventSpan::END_OF, self.spec.text);
                EventRecord { event, due_ns: until, ..record }
            };
            if is_in_trial {
                records.push(end_of(self.record(began, &undone)));
            } else {
                let is_early = began.since(self.start) < until;
                let why = if is_early { NOT_DUE } else { "its beginning took longer than the trial" };
                records.extend(missed(end_of(planned(self.spec)), why, self.clock));
            }
        }
        (records, undone)
    }

    fn reason_to_stop(&self) -> Option<EventFailure> {
        self.clock.is_over().then_some(EventFailure::Unfinished)
    }

    /// Records what began at this time and has just ended.
    fn record(&self, began: Nanos, ran: &Result<(), EventFailure>) -> EventRecord {
        let status = match ran {
            Ok(()) => Some(0),
            Err(EventFailure::Status(status, _)) => *status,
            Err(_) => None,
        };
        EventRecord {
            began_ns: Some(began.since(self.start)),
            took_ns: Some(clock::now() - began),
            status,
            failure: ran.as_ref().err().map(EventFailure::text),
            ..planned(self.spec)
        }
    }
}

/// Why an event whose time did not come has failed.
const NOT_DUE: &str = "the trial was over before it was due";

/// Returns the record of an event whose time did not come. After a signal, or without a start, that needs no telling.
fn missed(planned: EventRecord, why: &str, clock: &EventClock) -> Vec<EventRecord> {
    let is_expected = signal::received().is_some() || !clock.has_started();
    let failure = Some(why.to_owned());
    if is_expected { Vec::new() } else { vec![EventRecord { failure, ..planned }] }
}

#[cfg(test)]
mod tests {
    use fathom_sys::process::may_administer_network;

    use super::{super::built_ins::tests::change_on_wire, *};

    /// Plays a trial with these events. It starts, if it does, and is over at once.
    fn played(events: &[&str], starts: bool) -> Vec<EventRecord> {
        let events: Vec<String> = events.iter().map(|&event| event.to_owned()).collect();
        let events = TestEvents::of(false, &events, &[], Nanos::from_secs(100)).unwrap();
        let event_clock = EventClock::default();
        let trial = || {
            if starts {
                event_clock.start(clock::now());
            }
        };
        let ((), records, left) = run_with_events(&events, &EventPlaces(BTreeMap::new()), &event_clock, trial);
        assert_eq!(left, Vec::<String>::new());
        records
    }

    #[test]
    fn a_repeated_command_runs_until_its_end_and_leaves_out_what_it_misses() {
        let events = ["0s-100ms/20ms true".to_owned(), "0s-100ms/20ms sleep 0.03; exit 7".to_owned()];
        let events = TestEvents::of(false, &events, &[], Nanos::from_secs(100)).unwrap();
        let event_clock = EventClock::default();
        // The trial is over once both have ended.
        let record = |n: usize| {
            event_clock.start(clock::now());
            let (records, _) = run_event(&events.events[n], &EventPlaces(BTreeMap::new()), &event_clock);
            records.into_iter().next().unwrap()
        };
        let (quick, slow) = (record(0), record(1));
        assert!((1..=5).contains(&quick.n_runs.unwrap()) && quick.failure.is_none(), "{quick:?}");
        let n = slow.n_runs.unwrap();
        assert!((1..=3).contains(&n), "{slow:?}");
        assert_eq!(slow.failure, Some(format!("{n} of {n} runs failed: exit status 7")));
    }

    #[test]
    fn an_event_whose_time_does_not_come_has_failed() {
        let records = played(&["50s touch /never"], true);
        let [record] = records.as_slice() else { panic!("{records:?}") };
        assert_eq!((record.began_ns, record.due_ns, record.status), (None, Nanos::from_secs(50), None));
        assert_eq!(record.failure.as_deref(), Some("the trial was over before it was due"));
        assert_eq!(played(&["50s touch /never"], false), [], "a trial that did not start has told why");
    }

    #[test]
    fn a_change_that_is_made_only_after_the_trial_tells_so_at_its_end_and_is_undone() {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return;
        }
        let (_, place) = change_on_wire("1s link-down=a:eth0");
        let undone = tempfile::NamedTempFile::new().unwrap();
        let change = ChangeText { make: "true".to_owned(), undo: format!("echo undone > {}", undone.path().display()) };
        let spec = EventSpec::of("1s-2s link-down=a:eth0", true).unwrap();
        let end_after = |seconds: u64| {
            let event_clock = EventClock::default();
            let start = clock::now() - Nanos::from_secs(seconds);
            event_clock.start(start);
            event_clock.end();
            let (records, left) = DueEvent { spec: &spec, start, clock: &event_clock }.make(&change, &place);
            assert_eq!((records.len(), left), (2, Ok(())));
            assert_eq!(std::fs::read_to_string(undone.path()).unwrap(), "undone\n");
            records[1].failure.clone().unwrap()
        };
        assert_eq!(end_after(9), "its beginning took longer than the trial");
        assert_eq!(end_after(0), NOT_DUE, "the trial ended before the end of the event was due");
    }
}
