//! What a plan lets happen while a test runs: a command, a link that goes down, a target that stops.
//!
//! Events run on the machine of the controller, never on a served host: an agent does not run commands of others.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    process::ExitStatus,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use fathom_model::{EventRecord, EventSpan, Plan, units::Nanos};
use fathom_sys::{
    clock,
    netlink::namespace::Namespaces,
    process::{own_program, signal, threads},
};

use super::{
    held_change::{ChangeText, HeldChange, ShellEnd},
    shell_command::{CommandEnd, GuardedGroup, ShellCommand},
};
use crate::{
    exit::{Exit, UserError},
    hosts::Hosts,
};

/// The most events of a test: each waits in a thread of its own.
const EVENTS_MAX: usize = 64;
/// What makes or undoes a change, and what runs afterwards, may take so long.
const CHANGE_MAX: Nanos = Nanos::from_secs(10);
/// A command is repeated at most this often: starting a shell takes a part of that.
const EVERY_MIN: Nanos = Nanos::from_millis(1);
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
    /// When it is undone, if that is before the end of the trial, or no longer repeated.
    until: Option<Nanos>,
    /// The time from one run of a repeated command to the next.
    every: Option<Nanos>,
    action: EventAction,
    /// Nothing is as before after it.
    is_final: bool,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
enum EventAction {
    /// A command of the user.
    Run(EventCommand),
    /// A change of a host of a lab, which is undone.
    Change { host: String, change: ChangeText },
}

impl EventAction {
    /// The host of a lab that it is about; none for this machine.
    fn host(&self) -> Option<&String> {
        match self {
            Self::Run(command) => command.on.as_ref(),
            Self::Change { host, .. } => Some(host),
        }
    }
}

/// All events of a test, and what runs after each of its trials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TestEvents {
    events: Vec<EventSpec>,
    afterwards: Vec<EventCommand>,
}

/// An event that is a word with the thing it is about.
struct BuiltIn {
    word: &'static str,
    form: &'static str,
    /// What happens on which host, for the part behind the `=`.
    what: fn(&str) -> Option<(String, BuiltInAction)>,
}

/// What such an event does.
enum BuiltInAction {
    /// A change that is undone.
    Change(ChangeText),
    /// A command after which nothing is as before.
    Final(String),
}

/// Keeps in `again` the commands that give a device its IPv6 addresses, neighbors and routes again, which the kernel forgets when it goes
/// down. It restores routes of its own itself. The last are those through a gateway, which another route leads to.
const REMEMBER_DEVICE: &str = r#"again=$(
ip -6 -o addr show dev DEVICE scope global | awk '{print "ip -6 addr replace " $4 " dev DEVICE nodad"}'
ip neigh show dev DEVICE nud permanent | awk '{print "ip neigh replace " $1 " lladdr " $3 " dev DEVICE nud permanent"}'
for family in 4 6; do
    ip -$family route show table all dev DEVICE | awk -v family=$family '
        /^(local|broadcast|anycast|multicast) .*proto kernel/ { next }
        { gsub(/ (linkdown|dead)/, ""); line = "ip -" family " route replace " $0 " dev DEVICE" }
        / via / { late = late line "\n"; next }
        { print line }
        END { printf "%s", late }'
done
)"#;

const BUILT_INS: &[BuiltIn] = &[
    BuiltIn {
        word: "link-down",
        form: "link-down=HOST:DEVICE",
        what: |about| {
            let (host, device) = about.split_once(':')?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
            (!device.is_empty() && device.chars().all(is_name)).then(|| {
                let set = |state: &str| format!("ip link set dev {device} {state}");
                let make = format!("{}\n{}", REMEMBER_DEVICE.replace("DEVICE", device), set("down"));
                let undo = format!("{}\neval \"$again\"", set("up"));
                (host.to_owned(), BuiltInAction::Change(ChangeText { make, undo }))
            })
        },
    },
    BuiltIn {
        word: "black-hole",
        form: "black-hole=HOST",
        what: |about| {
            let chain = "add chain TABLE drop_all { type filter hook prerouting priority -500; policy drop; }";
            Some((about.to_owned(), BuiltInAction::Change(table("black_hole", chain))))
        },
    },
    BuiltIn {
        word: "stop-target",
        form: "stop-target=HOST",
        // What clients see when the program that serves them has ended: the kernel resets and refuses.
        what: |about| {
            let rules = "add chain TABLE refuse_all { type filter hook input priority -500; }; \
                         add rule TABLE refuse_all meta l4proto tcp reject with tcp reset; \
                         add rule TABLE refuse_all meta l4proto udp reject";
            Some((about.to_owned(), BuiltInAction::Change(table("stop_target", rules))))
        },
    },
    BuiltIn {
        word: "kill-device",
        form: "kill-device=HOST",
        // Whoever holds the lab started the balancer, so only that can start it again.
        what: |about| {
            let kill = format!("exec {} balancer kill", own_program::shell_word());
            (!about.is_empty()).then(|| (about.to_owned(), BuiltInAction::Final(kill)))
        },
    },
];

/// A table of nftables with these commands, in which it is called TABLE.
fn table(name: &str, commands: &str) -> ChangeText {
    // The number of the shell, so that two of them do not share a table.
    let table = format!("inet fathom_{name}_$$");
    let make = format!("nft \"add table {table}; {}\"", commands.replace("TABLE", &table));
    ChangeText { make, undo: format!("nft \"delete table {table}\"") }
}

fn invalid(text: &str, why: &str) -> UserError {
    let built_in: Vec<&str> = BUILT_INS.iter().map(|one| one.form).collect();
    UserError::new(Exit::Usage, format!("event `{text}`: {why}"))
        .with_line("use", "--at '4s COMMAND', --at '4s on=HOST COMMAND' or, every 50 ms, --at '4s-8s/50ms COMMAND'")
        .with_line("in labs", format!("--at '4s {}'; undone at 8 s: '4s-8s …'", built_in.join("' or --at '4s ")))
}

impl EventCommand {
    /// Reads a command, with the host before it if it runs on one.
    fn of(text: &str, whole: &str, has_lab: bool) -> Result<Self, UserError> {
        let (on, command) = match text.strip_prefix(ON) {
            None => (None, text),
            Some(rest) => {
                let (host, command) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                (Some(host.to_owned()), command.trim())
            }
        };
        if let Some(host) = on.as_deref() {
            check_host(host, whole, has_lab)?;
        }
        if command.is_empty() {
            return Err(invalid(whole, "it has no command"));
        }
        Ok(Self { on, command: command.to_owned() })
    }
}

/// Refuses a host where there is no lab. Whether a lab has it shows once the lab is there.
fn check_host(host: &str, whole: &str, has_lab: bool) -> Result<(), UserError> {
    if has_lab {
        return Ok(());
    }
    Err(invalid(whole, &format!("`{host}` cannot be a host of a lab: this plan has no lab")))
}

impl EventSpec {
    /// Reads an event: a time and what happens then.
    fn of(text: &str, has_lab: bool) -> Result<Self, UserError> {
        let (at, what) =
            text.trim().split_once(char::is_whitespace).ok_or_else(|| invalid(text, "it is a time and a command"))?;
        let time = |word: &str| word.parse::<Nanos>().map_err(|error| invalid(text, &format!("{error}")));
        let (span, every) = match at.split_once('/') {
            None => (at, None),
            Some((span, every)) => (span, Some(time(every)?)),
        };
        let (at, until) = match span.split_once('-') {
            None => (time(span)?, None),
            Some((from, to)) => (time(from)?, Some(time(to)?)),
        };
        if every.is_some_and(|every| every < EVERY_MIN || until.is_none()) {
            return Err(invalid(
                text,
                &format!("a repeated command has an end, and at least {EVERY_MIN} between its runs"),
            ));
        }
        if until.is_some_and(|until| until <= at) {
            return Err(invalid(text, "it would be undone before it begins"));
        }
        let what = what.trim();
        let (action, is_final) = Self::action(what, text, has_lab)?;
        match action {
            _ if is_final && until.is_some() => Err(invalid(text, "a killed device does not come back")),
            EventAction::Run(_) if until.is_some() != every.is_some() => {
                Err(invalid(text, "a command has an end only if it is repeated; to undo one, give two commands"))
            }
            EventAction::Change { .. } if every.is_some() => Err(invalid(text, "only commands are repeated")),
            action => Ok(Self { text: text.trim().to_owned(), at, until, every, action, is_final }),
        }
    }

    /// Reads what happens, and whether nothing is as before after it.
    fn action(what: &str, text: &str, has_lab: bool) -> Result<(EventAction, bool), UserError> {
        let (word, about) = what.split_once('=').unwrap_or((what, ""));
        let Some(built_in) = BUILT_INS.iter().find(|one| one.word == word) else {
            return Ok((EventAction::Run(EventCommand::of(what, text, has_lab)?), false));
        };
        let (host, what) = (built_in.what)(about).ok_or_else(|| invalid(text, &format!("it is {}", built_in.form)))?;
        check_host(&host, text, has_lab)?;
        Ok(match what {
            BuiltInAction::Change(change) => (EventAction::Change { host, change }, false),
            BuiltInAction::Final(command) => (EventAction::Run(EventCommand { on: Some(host), command }), true),
        })
    }
}

impl TestEvents {
    /// Reads the events of a test, which must begin and end within the part of its trial that is certain.
    pub(super) fn of(
        has_lab: bool,
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
        let events = events.iter().map(|text| EventSpec::of(text, has_lab)).collect::<Result<Vec<_>, _>>()?;
        if let Some(late) = events.iter().find(|event| event.until.unwrap_or(event.at) >= certain) {
            return Err(invalid(&late.text, &format!("the trial may be over after {certain}"))
                .with_line("why", "its time counts from the start, and a warm-up ends once the rate is steady")
                .with_line("fix", "a longer --duration, or fewer --rounds, which share it"));
        }
        let afterwards =
            afterwards.iter().map(|text| EventCommand::of(text, text, has_lab)).collect::<Result<_, _>>()?;
        Ok(Self { events, afterwards })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether nothing can be measured after one of them.
    pub(super) fn is_final(&self) -> bool {
        self.events.iter().any(|event| event.is_final)
    }

    /// Refuses an event after which nothing can be measured, if another round or test follows.
    pub(super) fn check_final(&self, n_rounds: u32, is_last_test: bool) -> Result<(), UserError> {
        let Some(event) = self.events.iter().find(|event| event.is_final) else { return Ok(()) };
        if n_rounds > 1 {
            let why = format!("a killed device does not come back, and {n_rounds} rounds are to be measured");
            return Err(invalid(&event.text, &why).with_line("fix", "--rounds 1"));
        }
        if !is_last_test {
            let why = "a killed device does not come back, and other tests follow";
            return Err(invalid(&event.text, why).with_line("fix", "put this test last, or in a plan of its own"));
        }
        Ok(())
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
enum EventFailure {
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
    fn of_change(end: &ShellEnd) -> Result<(), Self> {
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
            let deadline = fathom_sys::clock::now() + CHANGE_MAX;
            let is_late = || (fathom_sys::clock::now() >= deadline).then_some(EventFailure::Slow(CHANGE_MAX));
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
fn run_event(spec: &EventSpec, places: &EventPlaces, clock: &EventClock) -> (Vec<EventRecord>, Result<(), String>) {
    let Some(start) = clock.wait_until(spec.at) else { return (missed(planned(spec), NOT_DUE, clock), Ok(())) };
    match &spec.action {
        EventAction::Run(command) => {
            let record = match spec.until.zip(spec.every) {
                None => run_command(spec, command, (start, places), clock),
                Some(times) => repeat_command((spec, times), command, (start, places), clock),
            };
            (vec![record], Ok(()))
        }
        EventAction::Change { host, change } => {
            let (records, left) = make_change(spec, change, (start, places.namespaces(host)), clock);
            (records, left.map_err(|failure| format!("`{}` could not be undone: {}", spec.text, failure.text())))
        }
    }
}

fn run_command(
    spec: &EventSpec,
    command: &EventCommand,
    (start, places): (Nanos, &EventPlaces),
    clock: &EventClock,
) -> EventRecord {
    let began = fathom_sys::clock::now();
    let ran =
        EventFailure::of_command(places.command(command).run(|| clock.is_over().then_some(EventFailure::Unfinished)));
    match record_of(spec, &ran, (start, began)) {
        // A command that runs as long as the trial has done what it should.
        record if ran == Err(EventFailure::Unfinished) => EventRecord { took_ns: None, failure: None, ..record },
        record => record,
    }
}

/// Runs a command again and again until its end or that of the trial. A run that takes longer than the interval leaves out the times that
/// it misses.
fn repeat_command(
    (spec, (until, every)): (&EventSpec, (Nanos, Nanos)),
    command: &EventCommand,
    (start, places): (Nanos, &EventPlaces),
    clock: &EventClock,
) -> EventRecord {
    let began = fathom_sys::clock::now();
    let group = match GuardedGroup::new() {
        Ok(group) => group,
        Err(error) => {
            return EventRecord { n_runs: Some(0), ..record_of(spec, &Err(not_started(error)), (start, began)) };
        }
    };
    let command = places.command(command);
    let (mut due, mut n_runs, mut n_failed, mut ended) = (spec.at, 0, 0, Ok(()));
    while due < until && clock.wait_until(due).is_some() {
        let ran = command.run_in(&group, || clock.is_over().then_some(EventFailure::Unfinished));
        match EventFailure::of_command(ran) {
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
        let n_due = fathom_sys::clock::now().since(start + spec.at).0 / every.0 + 1;
        due = spec.at + Nanos(n_due * every.0);
    }
    let ended = ended.and(group.release().map_err(not_started));
    let record = record_of(spec, &ended, (start, began));
    let is_cut = due < until && signal::received().is_none();
    let failure = match record.failure {
        Some(failure) if n_failed > 0 => Some(format!("{n_failed} of {n_runs} runs failed: {failure}")),
        None if is_cut => Some(format!("the trial was over after {n_runs} runs, before its end")),
        failure => failure,
    };
    EventRecord { n_runs: Some(n_runs), failure, ..record }
}

/// Makes a change, and undoes it at its end or when the trial is over. What could not be made is not undone.
fn make_change(
    spec: &EventSpec,
    change: &ChangeText,
    (start, place): (Nanos, &Namespaces),
    clock: &EventClock,
) -> (Vec<EventRecord>, Result<(), EventFailure>) {
    let began = fathom_sys::clock::now();
    let made = HeldChange::make(change, Some(place), CHANGE_MAX).map_err(not_started);
    let record = |made: &Result<(), EventFailure>| record_of(spec, made, (start, began));
    let held = match made {
        Ok(Ok(held)) => held,
        Ok(Err(end)) => return (vec![record(&EventFailure::of_change(&end))], Ok(())),
        Err(failure) => return (vec![record(&Err(failure))], Ok(())),
    };
    let mut records = vec![record(&Ok(()))];
    let is_in_trial = spec.until.is_some_and(|until| clock.wait_until(until).is_some());
    if spec.until.is_none() {
        clock.wait_for_end();
    }
    let began = fathom_sys::clock::now();
    let undone = held.undo(CHANGE_MAX).map_err(not_started).and_then(|end| EventFailure::of_change(&end));
    if let Some(until) = spec.until {
        let end_of =
            |record| EventRecord { event: format!("{}{}", EventSpan::END_OF, spec.text), due_ns: until, ..record };
        if is_in_trial {
            records.push(end_of(record_of(spec, &undone, (start, began))));
        } else {
            let why = if began.since(start) < until { NOT_DUE } else { "its beginning took longer than the trial" };
            records.extend(missed(end_of(planned(spec)), why, clock));
        }
    }
    (records, undone)
}

/// Why an event whose time did not come has failed.
const NOT_DUE: &str = "the trial was over before it was due";

/// Returns the record of an event whose time did not come. After a signal, or without a start, that needs no telling.
fn missed(planned: EventRecord, why: &str, clock: &EventClock) -> Vec<EventRecord> {
    let is_expected = signal::received().is_some() || !clock.has_started();
    let failure = Some(why.to_owned());
    if is_expected { Vec::new() } else { vec![EventRecord { failure, ..planned }] }
}

/// Records what a command of an event did.
fn record_of(spec: &EventSpec, ran: &Result<(), EventFailure>, (start, began): (Nanos, Nanos)) -> EventRecord {
    let status = match ran {
        Ok(()) => Some(0),
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
    use fathom_sys::{
        netlink::namespace::NetNs,
        process::{confinement::Confinement, may_administer_network},
    };

    use super::*;

    #[test]
    fn an_event_is_a_time_and_a_command_and_maybe_a_host() {
        let command = |text: &str| match EventSpec::of(text, true).unwrap() {
            EventSpec { at, action: EventAction::Run(command), .. } => (at, command.on, command.command),
            other => panic!("{other:?}"),
        };
        let t2 = Some("t2".to_owned());
        assert_eq!(command("4s touch /tmp/x"), (Nanos::from_secs(4), None, "touch /tmp/x".to_owned()));
        assert_eq!(command("250ms on=t2 ip link"), (Nanos::from_millis(250), t2, "ip link".to_owned()));
        assert_eq!(command("1s A=b env"), (Nanos::from_secs(1), None, "A=b env".to_owned()));
        let down = EventSpec::of("1s link-down=t2:eth0", true).unwrap();
        let EventAction::Change { host, change } = down.action else { panic!("{down:?}") };
        assert_eq!(host, "t2");
        assert!(change.make.ends_with("\nip link set dev eth0 down"), "{change:?}");
        assert!(change.undo.starts_with("ip link set dev eth0 up\n"), "{change:?}");
        let span = EventSpec::of("1s-2.5s black-hole=t2", true).unwrap();
        assert_eq!((span.at, span.until), (Nanos::from_secs(1), Some(Nanos::from_millis(2500))));
    }

    #[test]
    fn what_is_no_event_is_named() {
        for (text, why) in [
            ("4s", "it is a time and a command"),
            ("soon touch x", "event `soon touch x`"),
            ("4s on=t2", "it has no command"),
            ("4s link-down=t2", "it is link-down=HOST:DEVICE"),
            ("4s link-down=t2:a;b", "it is link-down=HOST:DEVICE"),
            ("4s-3s black-hole=t2", "it would be undone before it begins"),
            ("4s-5s touch x", "a command has an end only if it is repeated"),
            ("4s/1s touch x", "a repeated command has an end"),
            ("4s-5s/10us touch x", "at least 1.00 ms"),
            ("4s-5s/1s black-hole=t2", "only commands are repeated"),
            ("4s kill-device", "it is kill-device=HOST"),
            ("4s-5s kill-device=dut", "a killed device does not come back"),
            ("4s-5s/1s kill-device=dut", "a killed device does not come back"),
        ] {
            let error = EventSpec::of(text, true).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let error = EventSpec::of("4s on=b ls", false).unwrap_err().to_string();
        assert!(error.contains("this plan has no lab"), "{error}");
        let late = TestEvents::of(false, (&["4s ls".to_owned()], &[]), Nanos::from_secs(4)).unwrap_err();
        assert!(late.to_string().contains("the trial may be over after"), "{late}");
        assert!(TestEvents::of(false, (&[], &["ls".to_owned()]), Nanos::from_secs(4)).is_err());
        let killed = TestEvents::of(true, (&["1s kill-device=dut".to_owned()], &[]), Nanos::from_secs(4)).unwrap();
        assert!(killed.check_final(1, true).is_ok());
        let error = killed.check_final(1, false).unwrap_err().to_string();
        assert!(error.contains("other tests follow"), "{error}");
        let error = killed.check_final(2, true).unwrap_err().to_string();
        assert!(error.contains("2 rounds are to be measured"), "{error}");
    }

    /// Plays a trial with these events. It starts, if it does, and is over at once.
    fn played(events: &[&str], starts: bool) -> Vec<EventRecord> {
        let events: Vec<String> = events.iter().map(|&event| event.to_owned()).collect();
        let events = TestEvents::of(false, (&events, &[]), Nanos::from_secs(100)).unwrap();
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
    fn a_repeated_command_runs_until_its_end_and_leaves_out_what_it_misses() {
        let events = ["0s-100ms/20ms true".to_owned(), "0s-100ms/20ms sleep 0.03; exit 7".to_owned()];
        let events = TestEvents::of(false, (&events, &[]), Nanos::from_secs(100)).unwrap();
        let clock = EventClock::default();
        // The trial is over once both have ended.
        let record = |n: usize| {
            clock.start(fathom_sys::clock::now());
            let (records, _) = run_event(&events.events[n], &EventPlaces(BTreeMap::new()), &clock);
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

    /// The change of a built-in event, and a namespace with a wire to nowhere to make it in.
    fn change_on_wire(event: &str) -> (ChangeText, Namespaces) {
        let net = NetNs::new().unwrap();
        let EventAction::Change { change, .. } = EventSpec::of(event, true).unwrap().action else {
            panic!("{event}");
        };
        (change, Namespaces { user: None, net, confinement: Confinement::default() })
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
            let clock = EventClock::default();
            let start = fathom_sys::clock::now() - Nanos::from_secs(seconds);
            clock.start(start);
            clock.end();
            let (records, left) = make_change(&spec, &change, (start, &place), &clock);
            assert_eq!((records.len(), left), (2, Ok(())));
            assert_eq!(std::fs::read_to_string(undone.path()).unwrap(), "undone\n");
            records[1].failure.clone().unwrap()
        };
        assert_eq!(end_after(9), "its beginning took longer than the trial");
        assert_eq!(end_after(0), NOT_DUE, "the trial ended before the end of the event was due");
    }

    fn shell(text: &str, place: &Namespaces) -> String {
        let ended = ShellCommand { text, place: Some(place) }.run(|| None::<()>).unwrap();
        assert!(ended.status.unwrap().success(), "{text}: {}", ended.errors);
        ended.output
    }

    #[test]
    fn a_link_comes_up_again_with_the_routes_of_all_tables() {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return;
        }
        let (change, place) = change_on_wire("1s link-down=a:eth0");
        shell(
            "set -e
            ip link add eth0 address 02:00:00:00:00:01 type veth peer name eth1
            ip link set eth1 up; ip link set eth0 up
            ip addr add 198.18.1.1/24 dev eth0; ip -6 addr add 2001:db8::1/64 dev eth0 nodad
            ip neigh add 198.18.1.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent
            ip route add 198.18.7.7 dev eth0 scope link
            ip route add default via 198.18.7.7 dev eth0
            ip route add 198.18.9.0/24 via 198.18.1.2 dev eth0 table 100
            ip -6 route add 2001:db8:9::/48 via 2001:db8::2 dev eth0 table 100
            ip route add local 198.18.8.0/24 dev eth0 table local",
            &place,
        );
        let routes = || {
            shell(
                "ip -4 route show table all dev eth0 | sort; ip -6 route show table all dev eth0 | grep -v fe80 | sort; \
                 ip neigh show dev eth0 nud permanent; ip -6 -o addr show dev eth0 scope global",
                &place,
            )
        };
        let before = routes();
        for part in ["198.18.9.0/24 via 198.18.1.2 table 100", "2001:db8:9::/48", "local 198.18.8.0/24", "default via"]
        {
            assert!(before.contains(part), "{part} is missing in\n{before}");
        }
        let held = HeldChange::make(&change, Some(&place), CHANGE_MAX).unwrap().unwrap();
        assert!(!routes().contains("table 100"), "the link is down");
        EventFailure::of_change(&held.undo(CHANGE_MAX).unwrap()).unwrap();
        assert_eq!(routes(), before);
    }

    #[test]
    fn black_holes_and_stopped_targets_are_gone_once_nobody_holds_them() {
        if fathom_testkit::lacks_privileges(may_administer_network()) {
            return;
        }
        if std::process::Command::new("nft").arg("--version").output().is_err() {
            return fathom_testkit::skip("needs nft");
        }
        for event in ["1s black-hole=a", "1s stop-target=a"] {
            let (change, place) = change_on_wire(event);
            let tables = || shell("nft list tables", &place);
            let make = || HeldChange::make(&change, Some(&place), CHANGE_MAX).unwrap().unwrap();
            let (first, second) = (make(), make());
            assert_eq!(tables().lines().count(), 2, "{event}");
            for held in [first, second] {
                EventFailure::of_change(&held.undo(CHANGE_MAX).unwrap()).unwrap();
            }
            assert_eq!(tables(), "", "{event}");
        }
    }
}
