//! Exit codes, and errors that fit on one screen.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fmt, io,
    process::ExitCode,
};

use fathom_sys::process::signal::Signal;

/// The exit codes of every command that is not a drop-in tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All promises were kept, or there were none.
    Pass,
    /// There is no valid result.
    Failed,
    /// The command line or the plan is wrong.
    Usage,
    /// Nothing was started: missing permission or kernel feature, refused or unreachable target, wrong key, port in use.
    Preflight,
    /// The run is incomplete; the measured part is kept.
    Incomplete,
    /// A promise was broken.
    Threshold,
    /// A promise is undecided, or the run was disturbed and `--strict` was given.
    Inconclusive,
    /// The exit code of a command that was run for the user.
    Code(u8),
    /// Ended by a signal, after the measured part was printed.
    Signalled(Signal),
}

impl Exit {
    fn code(self) -> u8 {
        match self {
            Self::Pass => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Preflight => 3,
            Self::Incomplete => 4,
            Self::Threshold => 10,
            Self::Inconclusive => 12,
            Self::Code(code) => code,
            Self::Signalled(signal) => signal.exit_code(),
        }
    }
}

/// An error as the user sees it: a message, then labelled lines with the cause and the remedy.
#[derive(Debug)]
pub struct UserError {
    pub exit: Exit,
    what: String,
    lines: Vec<(&'static str, String)>,
}

impl UserError {
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        Self { exit, what: what.into(), lines: Vec::new() }
    }

    /// Returns the same error with another exit code.
    #[must_use]
    pub fn with_exit(self, exit: Exit) -> Self {
        Self { exit, ..self }
    }

    /// Adds a line such as `why    it is neither this machine, …`. A label that repeats is printed once.
    #[must_use]
    pub fn with_line(mut self, label: &'static str, text: impl Into<String>) -> Self {
        self.lines.push((label, text.into()));
        self
    }

    /// Adds the name of the host that it is about at its beginning.
    #[must_use]
    pub fn of_host(mut self, name: &str) -> Self {
        self.what = format!("host `{name}`: {}", self.what);
        self
    }

    /// Returns the message without its lines and without the name of its host at the beginning, which is told already.
    pub fn what_without(&self, host: &str) -> &str {
        let rest = self.what.strip_prefix(&format!("host `{host}`"));
        rest.unwrap_or(&self.what).trim_start_matches([':', ',', ' '])
    }

    /// Returns the whole text without the name of its host at the beginning, which is told already.
    pub fn to_string_of(&self, host: &str) -> String {
        self.to_string().replacen(&self.what, self.what_without(host), 1)
    }

    /// Returns the message without its lines.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the first line with a label.
    pub fn line(&self, label: &str) -> Option<&str> {
        self.lines.iter().find(|(one, _)| *one == label).map(|(_, text)| text.as_str())
    }

    /// Returns the message with its lines behind it, all in one line.
    pub fn one_line(&self) -> String {
        let line = |(label, text): &(&str, String)| match *label {
            "why" => format!(": {text}"),
            label => format!(", {label} `{text}`"),
        };
        std::iter::once(self.what.clone()).chain(self.lines.iter().map(line)).collect()
    }

    /// Makes a user error from an error and its causes.
    pub fn from_error(exit: Exit, error: &anyhow::Error) -> Self {
        error.chain().skip(1).fold(Self::new(exit, error.to_string()), |user_error, cause| {
            user_error.with_line("why", cause.to_string())
        })
    }

    /// Adds an error and its causes, one per line.
    #[must_use]
    pub fn with_causes(mut self, error: &dyn std::error::Error) -> Self {
        let mut next = Some(error);
        while let Some(cause) = next {
            self.lines.push(("why", cause.to_string()));
            next = cause.source();
        }
        self
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        let mut before = "";
        for (label, text) in &self.lines {
            let shown = if *label == before { "" } else { label };
            write!(f, "\n  {shown:<6} {text}")?;
            before = label;
        }
        Ok(())
    }
}

impl std::error::Error for UserError {}

/// Converts an engine error from before the start, with hints on how to get a missing permission.
pub fn engine_error(error: &fathom_engine::Error) -> UserError {
    use fathom_engine::Error;
    let exit = match error {
        Error::Setting(_) | Error::BadRequest { .. } | Error::UnknownKind { .. } => Exit::Usage,
        error if error.is_preflight() => Exit::Preflight,
        _ => Exit::Failed,
    };
    let mut user_error = UserError::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        user_error = user_error.with_causes(cause);
    }
    if let Some(hint) = error.hint() {
        user_error = user_error.with_line("fix", hint);
    }
    if let Error::Permission { needs, .. } = error {
        user_error = with_privilege_hint(user_error, needs);
    }
    user_error
}

/// Adds the ways to get the privileges in `needs`.
pub fn with_privilege_hint(user_error: UserError, needs: &str) -> UserError {
    let setcap = "sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep $(which fathom)";
    let user_error = user_error.with_line("fix", "sudo fathom …        # the same command as root");
    if needs.contains("CAP_NET_BIND_SERVICE") {
        return user_error
            .with_line("fix", "sudo setcap cap_net_bind_service+ep $(which fathom)")
            .with_line("or", "choose a port from 1024 on, which needs no privilege");
    }
    // A user namespace grants every capability except this one: the kernel requires it in the initial namespace.
    if needs.contains("CAP_BPF") {
        return user_error
            .with_line("fix", format!("{setcap}        # not for a lab, which needs root to take programs"));
    }
    user_error
        .with_line("fix", setcap)
        .with_line("fix", "fathom evaluate        # no privileges: in a lab of your own, in a user namespace")
}

/// Reports a bug of the program on one line, with a backtrace if `RUST_BACKTRACE` is set.
pub fn print_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let text = panic.payload_as_str().unwrap_or("it gives no reason");
    let place = panic.location().map_or(String::new(), |place| format!(" ({}:{})", place.file(), place.line()));
    eprintln!("fathom: this is a defect of fathom: {text}{place}");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        eprintln!("{trace}");
    }
}

/// Prints the error, if any, and returns the exit code of an outcome.
pub fn exit_code(outcome: anyhow::Result<Exit>) -> ExitCode {
    let error = match outcome {
        Ok(exit) => return ExitCode::from(exit.code()),
        Err(error) => error,
    };
    if is_broken_pipe(&error) {
        return ExitCode::SUCCESS;
    }
    let (exit, text) = match error.downcast::<UserError>() {
        Ok(user_error) => (user_error.exit, user_error.to_string()),
        Err(error) => (Exit::Failed, UserError::from_error(Exit::Failed, &error).to_string()),
    };
    eprintln!("fathom: {text}");
    ExitCode::from(exit.code())
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let pipe = |cause: &(dyn std::error::Error + 'static)| {
        let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        // `serde_json::Error` exposes the kind of its I/O error but not the error itself.
        let of_json = || cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind);
        kind.or_else(of_json) == Some(io::ErrorKind::BrokenPipe)
    };
    error.chain().any(pipe)
}

/// Converts an error of a lab into a user error.
pub fn lab_error(error: &fathom_lab::Error) -> UserError {
    let exit = match error {
        fathom_lab::Error::UnknownPreset { .. }
        | fathom_lab::Error::BadOption { .. }
        | fathom_lab::Error::BadDevice { .. }
        | fathom_lab::Error::BadUplink { .. }
        | fathom_lab::Error::BadName { .. } => Exit::Usage,
        _ => Exit::Preflight,
    };
    let mut shown = UserError::new(exit, error.to_string());
    if let Some(cause) = std::error::Error::source(error) {
        shown = shown.with_causes(cause);
    }
    match error.hint() {
        Some(hint) => hint.lines().fold(shown, |shown, line| shown.with_line("fix", line.trim())),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_port_is_answered_with_the_capability_that_opens_it() {
        let shown = |needs| with_privilege_hint(UserError::new(Exit::Preflight, "x"), needs).to_string();
        assert!(shown("CAP_NET_BIND_SERVICE").contains("setcap cap_net_bind_service+ep"));
        assert!(!shown("CAP_NET_BIND_SERVICE").contains("fathom evaluate"), "which serves nothing");
        assert!(shown("CAP_NET_RAW").contains("cap_net_raw") && shown("CAP_NET_RAW").contains("fathom evaluate"));
    }
}
