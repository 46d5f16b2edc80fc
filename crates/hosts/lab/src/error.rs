//! Errors of building, finding or undoing a lab, worded for the operator.

use std::{io, path::PathBuf};

/// The kernel's error numbers for user namespaces that are forbidden or used up: errno(3).
pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOSPC: i32 = 28;

/// The result of work on a lab.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a lab could not be built, found or undone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name contains characters that are unsafe in a path.
    #[error("{0:?} cannot be a name")]
    BadName(String),
    /// There is no preset with this name.
    #[error("there is no preset {given:?}")]
    UnknownPreset {
        /// The given name.
        given: String,
        /// The existing presets.
        known: Vec<&'static str>,
    },
    /// The topology cannot have this number of hosts or targets.
    #[error("`{given}` is not a topology")]
    BadHostCount {
        /// The given text.
        given: String,
        /// The topologies with a number, and their ranges.
        known: String,
    },
    /// The lab has no host with this name.
    #[error("the lab has no host {host:?}")]
    UnknownHost {
        /// The missing host.
        host: String,
        /// The existing hosts.
        known: Vec<String>,
    },
    /// An option is out of range.
    #[error("{option} {given} is outside {range}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// The given value.
        given: u32,
        /// The allowed range.
        range: &'static str,
    },
    /// The device does not exist or does not accept these arguments.
    #[error("the device `{given}`: {why}")]
    BadDevice {
        /// The given text.
        given: String,
        /// The problem.
        why: String,
        /// The existing devices.
        known: String,
    },
    /// A host cannot be joined to a network of this machine like that.
    #[error("the uplink `{given}`: {why}")]
    BadUplink {
        /// The given text.
        given: String,
        /// The problem.
        why: String,
        /// What to do.
        fix: &'static str,
    },
    /// The fault does not exist, has no such value, or is already there.
    #[error("the fault `{given}`: {why}")]
    BadFault {
        /// The given name.
        given: String,
        /// The problem.
        why: String,
        /// The existing faults or values.
        known: String,
    },
    /// A command of a fault failed.
    #[error("`{command}` failed: {why}")]
    FaultCommand {
        /// The command.
        command: String,
        /// Its error text.
        why: String,
    },
    /// The process of a device ended before it was ready.
    #[error("the device {device} did not start: {}", with_reasons(said))]
    DeviceProcess {
        /// The device.
        device: String,
        /// What it said.
        said: String,
    },
    /// The kernel refused an action.
    #[error("cannot {attempt}")]
    Kernel {
        /// The attempted action and its object.
        attempt: String,
        /// The call that failed.
        source: fathom_sys::Error,
    },
    /// An unprivileged user cannot create a user namespace.
    #[error("cannot make a user namespace for a lab without root")]
    UserNamespace(#[source] fathom_sys::Error),
    /// A file could not be read, written or removed.
    #[error("cannot {attempt} {path}")]
    File {
        /// The attempted action.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// The error from the system.
        source: io::Error,
    },
    /// Another user could change the state folder.
    #[error("{path} is not safe for journals: {reason}")]
    UnsafeStateFolder {
        /// The folder.
        path: PathBuf,
        /// The problem.
        reason: &'static str,
    },
    /// A journal is invalid.
    #[error("the journal {path} cannot be understood: {reason}")]
    CorruptJournal {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The run already has a journal.
    #[error("{} exists already", run.strip_prefix("lab-").map_or_else(|| run.clone(), |name| format!("lab `{name}`")))]
    NameTaken {
        /// The run, `lab-NAME` for a lab that is up.
        run: String,
    },
    /// There is no live lab with this name.
    #[error("no lab {0:?} is up")]
    NotUp(String),
    /// This process runs on a host of the lab that is to end.
    #[error("this shell is on host {host} of lab {lab:?}, and would end with it")]
    OwnHost {
        /// The lab.
        lab: String,
        /// The host.
        host: String,
    },
    /// The holder process reported an error.
    #[error("the holder of the lab: {message}")]
    Holder {
        /// The error message.
        message: String,
        /// The hint, if there is one.
        hint: Option<String>,
    },
    /// Work inside a host of a rootless lab needs a separate process.
    #[error("host {0} belongs to a user namespace that this process cannot enter")]
    NeedsProcess(String),
}

impl Error {
    /// Adds the attempted action to an error from the kernel.
    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(fathom_sys::Error) -> Self {
        let attempt = attempt.into();
        |source| Self::Kernel { attempt, source }
    }

    pub(crate) fn file(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { attempt, path, source }
    }

    /// Returns a hint about how to fix the problem, if there is one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BadName(_) => {
                "use 1 to 48 of a-z, A-Z, 0-9, '-' and '_', beginning with a letter or a digit".to_owned()
            }
            Self::UnknownPreset { known, .. } => format!("the presets are: {}", known.join(", ")),
            Self::BadHostCount { known, .. } => format!("use {known}; other topologies have no number"),
            Self::UnknownHost { known, .. } => format!("its hosts are: {}", known.join(", ")),
            Self::BadDevice { known, .. } => format!("the devices are: {known}"),
            Self::BadFault { known, .. } => format!("there is: {known}"),
            Self::BadUplink { fix, .. } => (*fix).to_owned(),
            Self::DeviceProcess { said, .. } => {
                let fixes: Vec<&str> = labelled(said).filter(|(label, _)| *label != "why").map(|(_, text)| text).collect();
                return (!fixes.is_empty()).then(|| fixes.join("\n"));
            }
            Self::FaultCommand { .. } => "see whether the command is installed and this kernel has the feature".to_owned(),
            // Capabilities inside a user namespace do not count for programs (`bpf_capable` in the kernel).
            Self::Kernel { source, .. } if source.is_permission() && source.call.starts_with("bpf(") => {
                "run as root: a lab without root is in a user namespace, from which the kernel takes no programs; \
                 --device router, bridge and nft need none"
                    .to_owned()
            }
            Self::Kernel { source, .. } if source.is_permission() => {
                "run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned()
            }
            Self::UserNamespace(source) => user_namespace_hint(source.errno()),
            Self::UnsafeStateFolder { .. } => "set FATHOM_STATE to a folder that only you can write to".to_owned(),
            Self::CorruptJournal { path, .. } => {
                format!("read it, undo by hand what it names, then remove it: rm {}", path.display())
            }
            Self::NameTaken { .. } => {
                "fathom lab list        # running labs; fathom lab down stops one; --stale removes what a killed run left"
                    .to_owned()
            }
            Self::OwnHost { lab, .. } => format!("fathom lab down {lab}        # outside the lab"),
            Self::NotUp(_) => "fathom lab list        # running labs".to_owned(),
            Self::Holder { hint, .. } => return hint.clone(),
            Self::NeedsProcess(_) => "start a process in the host instead".to_owned(),
            Self::BadOption { .. } | Self::Kernel { .. } | Self::File { .. } => return None,
        })
    }
}

/// Where the text begins in a line of an error of the program: behind its label, such as `why` or `fix`.
const TEXT_COLUMN: usize = 9;

/// The labelled lines of an error of the program; a line without a label has that of the one before.
fn labelled(said: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut label = "";
    said.lines().skip(1).filter_map(move |line| {
        let (start, text) = line.split_at_checked(TEXT_COLUMN)?;
        label = Some(start.trim()).filter(|start| !start.is_empty()).unwrap_or(label);
        Some((label, text))
    })
}

/// What an error of the program says, with its reasons.
fn with_reasons(said: &str) -> String {
    let first = said.lines().next().unwrap_or("it said nothing").to_owned();
    let reasons = labelled(said).filter(|(label, _)| *label == "why");
    reasons.fold(first, |text, (_, reason)| format!("{text}: {reason}"))
}

/// Returns the hint about the setting that forbids user namespaces, based on the kernel's error.
fn user_namespace_hint(errno: Option<i32>) -> String {
    if errno == Some(ENOSPC) {
        return "raise the limit: sysctl user.max_user_namespaces=10000 (and user.max_net_namespaces)".to_owned();
    }
    "run as root, or allow it: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), \
     sysctl kernel.unprivileged_userns_clone=1 (older Debian), sysctl user.max_user_namespaces=10000"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_of_a_device_said_is_told_with_its_reasons_and_its_way_out() {
        let said = "cannot make a tun device\n  why    open(/dev/net/tun)\n         Permission denied\n  fix    chmod"
            .to_owned();
        let error = Error::DeviceProcess { device: "balancer".to_owned(), said };
        let told = "the device balancer did not start: cannot make a tun device: open(/dev/net/tun): Permission denied";
        assert_eq!((error.to_string().as_str(), error.hint().as_deref()), (told, Some("chmod")));
    }
}
