//! Unchanged scripts of wrk: their functions decide what is sent, over connections of the user engine.
//!
//! There is one state per thread and one for the time before and after, as in wrk. [`states`] creates them in wrk's order,
//! [`users`] calls into them during the run. All output and all errors of a script are in the record. This crate knows no
//! sockets.

mod answer;
mod fault;
mod heartbeat;
mod kind;
mod metrics;
mod output;
mod request_count;
mod script;
mod state;
mod states;
mod statistics;
mod summary;
mod transfer;
mod users;

pub(crate) use kind::AppLua;

/// The option with the addresses that a script may connect to besides its target; the user who runs a plan must allow them.
pub const ALLOW: &str = "script-allow";

/// All kinds of this crate.
pub const KINDS: &[&dyn fathom_engine::TestKind] = &[&AppLua];

/// Names of facts of a record: the output of the script.
pub mod facts {
    /// Printed before the first request.
    pub const BEFORE: &str = "script_output_before";
    /// Printed between the first request and the end.
    pub const DURING: &str = "script_output";
    /// Printed by `done`.
    pub const AFTER: &str = "script_output_after";
    /// Written to standard error, at any time.
    pub const ERRORS: &str = "script_errors";
    /// Why the script was not loaded, a line for each state.
    pub const COMPLAINTS: &str = "script_complaints";
    /// The number that it first passed to `os.exit`.
    pub const EXIT_CODE: &str = "script_exit_code";
}

/// The distribution of the time from the send of a batch of requests to its last answer.
pub const BATCH_TIME: &str = "batch_time_ns";
