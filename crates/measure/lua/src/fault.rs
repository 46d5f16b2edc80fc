//! Errors of a script for its author: the line, the function, the thread.

use std::{collections::BTreeMap, fmt};

use fathom_model::{Cause, Failure, Stage};

use super::heartbeat::{Callback, StateOwner};

/// The most distinct faults, because messages with a counter would fill any table.
const FAULTS_MAX: usize = 64;
/// The most bytes kept of a message, so that it fits on a line or two.
const MESSAGE_MAX: usize = 300;

/// One error of a script.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ScriptFault {
    /// With file and line, if Lua knows them: `x.lua:3: attempt to …`.
    pub(super) message: String,
    callback: Callback,
    owner: StateOwner,
}

impl fmt::Display for ScriptFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}, {})", self.message, self.callback, self.owner)
    }
}

impl ScriptFault {
    pub(super) fn of(error: &mlua::Error, callback: Callback, owner: StateOwner) -> Self {
        Self::new(text(error), callback, owner)
    }

    pub(super) fn new(message: String, callback: Callback, owner: StateOwner) -> Self {
        Self { message, callback, owner }
    }
}

/// Whether memory ran out.
pub(super) fn is_memory(error: &mlua::Error) -> bool {
    match error {
        mlua::Error::MemoryError(_) => true,
        mlua::Error::RuntimeError(text) => text.starts_with("not enough memory"),
        mlua::Error::CallbackError { cause, .. } => is_memory(cause),
        _ => false,
    }
}

/// The text of an error without the traceback, on one line.
fn text(error: &mlua::Error) -> String {
    let whole = match error {
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => text.clone(),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::CallbackError { cause, .. } => return text(cause),
        other => other.to_string(),
    };
    let words = whole.split("\nstack traceback:").next().unwrap_or_default();
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() <= MESSAGE_MAX { line } else { format!("{}…", line.chars().take(MESSAGE_MAX).collect::<String>()) }
}

/// The number of faults of each kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ScriptFaultCounts {
    counts: BTreeMap<ScriptFault, u64>,
    n_others: u64,
}

impl Extend<ScriptFault> for ScriptFaultCounts {
    fn extend<I: IntoIterator<Item = ScriptFault>>(&mut self, faults: I) {
        faults.into_iter().for_each(|fault| self.count(fault));
    }
}

impl ScriptFaultCounts {
    /// Adds the faults of another thread; they are distinct because they name it.
    pub(super) fn merge(&mut self, other: Self) {
        for (fault, n) in other.counts {
            *self.counts.entry(fault).or_default() += n;
        }
        self.n_others += other.n_others;
    }

    pub(super) fn count(&mut self, fault: ScriptFault) {
        if self.counts.len() < FAULTS_MAX || self.counts.contains_key(&fault) {
            *self.counts.entry(fault).or_default() += 1;
        } else {
            self.n_others += 1;
        }
    }

    /// The faults as they appear among the errors of a record.
    pub(super) fn errors(&self) -> impl Iterator<Item = (Failure, u64)> + '_ {
        let failure = |words: String| Failure { stage: Stage::Script, cause: Cause::Other(words) };
        let others = (self.n_others > 0).then(|| (failure("other errors".to_owned()), self.n_others));
        self.counts.iter().map(move |(fault, n)| (failure(fault.to_string()), *n)).chain(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_line_function_and_thread_and_is_one_line() {
        let lua = fathom_sys::process::lua::state();
        let error = lua.load("\nlocal t\nt.x = 1").set_name("@a/x.lua").exec().unwrap_err();
        let fault = ScriptFault::of(&error, Callback::Request, StateOwner::Thread(2));
        assert_eq!(fault.to_string(), "a/x.lua:3: attempt to index local 't' (a nil value) (request(), thread 2)");
        let error = lua.load("if").set_name("@x.lua").exec().unwrap_err();
        assert_eq!(
            ScriptFault::of(&error, Callback::Load, StateOwner::Main).message,
            "x.lua:1: unexpected symbol near '<eof>'"
        );
        let error = lua.load("error({})").exec().unwrap_err();
        assert!(!ScriptFault::of(&error, Callback::Load, StateOwner::Main).message.contains('\n'));
    }

    #[test]
    fn as_many_faults_are_told_apart_as_there_is_room_for() {
        let mut faults = ScriptFaultCounts::default();
        for i in 0..FAULTS_MAX + 5 {
            for _ in 0..2 {
                faults.count(ScriptFault::new(i.to_string(), Callback::Response, StateOwner::Thread(1)));
            }
        }
        let errors: Vec<_> = faults.errors().collect();
        assert_eq!(errors.len(), FAULTS_MAX + 1);
        assert!(errors.contains(&("script: 0 (response(), thread 1)".into(), 2)));
        assert_eq!(errors.last(), Some(&("script: other errors".into(), 10)));
    }
}
