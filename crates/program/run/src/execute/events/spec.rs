//! The events of a test as the plan has them: read and checked before anything is sent.

use fathom_model::units::Nanos;

use super::{
    super::held_change::ChangeText,
    built_ins::{BUILT_INS, BuiltInAction},
};
use crate::exit::{Exit, UserError};

/// The most events of a test: each waits in a thread of its own.
const EVENTS_MAX: usize = 64;
/// A command is repeated at most this often: starting a shell takes a part of that.
const EVERY_MIN: Nanos = Nanos::from_millis(1);
/// What a place is written with.
const ON: &str = "on=";

/// A command and the host of a lab that it runs on; on this machine, if there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventCommand {
    pub(super) on: Option<String>,
    pub(super) command: String,
}

/// An event of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventSpec {
    /// As the plan has it.
    pub(super) text: String,
    pub(super) at: Nanos,
    /// When it is undone, if that is before the end of the trial, or no longer repeated.
    pub(super) until: Option<Nanos>,
    /// The time from one run of a repeated command to the next.
    pub(super) every: Option<Nanos>,
    pub(super) action: EventAction,
    /// Nothing is as before after it.
    is_final: bool,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventAction {
    /// A command of the user.
    Run(EventCommand),
    /// A change of a host of a lab, which is undone.
    Change { host: String, change: ChangeText },
}

impl EventAction {
    /// The host of a lab that it is about; none for this machine.
    pub(super) fn host(&self) -> Option<&String> {
        match self {
            Self::Run(command) => command.on.as_ref(),
            Self::Change { host, .. } => Some(host),
        }
    }
}

/// All events of a test, and what runs after each of its trials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::execute) struct TestEvents {
    pub(super) events: Vec<EventSpec>,
    pub(super) afterwards: Vec<EventCommand>,
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
    pub(super) fn of(text: &str, has_lab: bool) -> Result<Self, UserError> {
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
    pub(in crate::execute) fn of(
        has_lab: bool,
        events: &[String],
        afterwards: &[String],
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

    pub(in crate::execute) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether nothing can be measured after one of them.
    pub(in crate::execute) fn is_final(&self) -> bool {
        self.events.iter().any(|event| event.is_final)
    }

    /// Refuses an event after which nothing can be measured, if another round or test follows.
    pub(in crate::execute) fn check_final(&self, n_rounds: u32, is_last_test: bool) -> Result<(), UserError> {
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

#[cfg(test)]
mod tests {
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
        let late = TestEvents::of(false, &["4s ls".to_owned()], &[], Nanos::from_secs(4)).unwrap_err();
        assert!(late.to_string().contains("the trial may be over after"), "{late}");
        assert!(TestEvents::of(false, &[], &["ls".to_owned()], Nanos::from_secs(4)).is_err());
        let killed = TestEvents::of(true, &["1s kill-device=dut".to_owned()], &[], Nanos::from_secs(4)).unwrap();
        assert!(killed.check_final(1, true).is_ok());
        let error = killed.check_final(1, false).unwrap_err().to_string();
        assert!(error.contains("other tests follow"), "{error}");
        let error = killed.check_final(2, true).unwrap_err().to_string();
        assert!(error.contains("2 rounds are to be measured"), "{error}");
    }
}
