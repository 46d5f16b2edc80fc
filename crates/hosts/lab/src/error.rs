//! What keeps a lab from being built, found or undone, for the person who must act.

use std::{io, path::PathBuf};

/// The kernel's numbers of what it answers where user namespaces are forbidden or used up: errno(3).
pub(crate) const EPERM: i32 = 1;
pub(crate) const ENOSPC: i32 = 28;

/// The outcome of work on a lab.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a lab could not be built, found or undone.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name with characters that could lead astray in a path.
    #[error("{0:?} cannot be a name")]
    BadName(String),
    /// No preset is called so.
    #[error("there is no preset {given:?}")]
    UnknownPreset {
        /// What was given.
        given: String,
        /// The presets that there are.
        known: Vec<&'static str>,
    },
    /// The lab has no such host.
    #[error("the lab has no host {host:?}")]
    UnknownHost {
        /// The host that it lacks.
        host: String,
        /// The hosts that it has.
        known: Vec<String>,
    },
    /// An option outside its range.
    #[error("{option} {given} is outside {range}")]
    BadOption {
        /// What was to be set.
        option: &'static str,
        /// The value that was given.
        given: u32,
        /// What is allowed.
        range: &'static str,
    },
    /// A device that does not exist, or with arguments that it does not take.
    #[error("the device `{given}`: {why}")]
    BadDevice {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
        /// The devices that there are.
        known: String,
    },
    /// The kernel did not do it.
    #[error("cannot {attempt}")]
    Kernel {
        /// What was to be done, on what.
        attempt: String,
        /// The call that failed.
        source: fathom_sys::Error,
    },
    /// A user without privileges gets no user namespace.
    #[error("cannot make a user namespace for a lab without root")]
    UserNamespace(#[source] fathom_sys::Error),
    /// A file could not be read, written or removed.
    #[error("cannot {attempt} {path}")]
    File {
        /// What was to be done with it.
        attempt: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The state folder could be changed by someone else.
    #[error("{path} is not safe for journals: {reason}")]
    UnsafeStateFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A journal that cannot be understood.
    #[error("the journal {path} cannot be understood: {reason}")]
    CorruptJournal {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A journal of that run exists.
    #[error("{} exists already", run.strip_prefix("lab-").map_or_else(|| run.clone(), |name| format!("lab `{name}`")))]
    NameTaken {
        /// The run, `lab-NAME` for a lab that is up.
        run: String,
    },
    /// No living lab has the name.
    #[error("no lab {0:?} is up")]
    NotUp(String),
    /// The process that was to hold the lab refused.
    #[error("the holder of the lab: {message}")]
    Holder {
        /// What it said.
        message: String,
        /// What it advised.
        hint: Option<String>,
    },
    /// Work inside a host of a rootless lab needs a process of its own.
    #[error("host {0} belongs to a user namespace that this process cannot enter")]
    NeedsProcess(String),
}

impl Error {
    /// Names what was attempted when the kernel refused.
    pub(crate) fn kernel(attempt: impl Into<String>) -> impl FnOnce(fathom_sys::Error) -> Self {
        let attempt = attempt.into();
        |source| Self::Kernel { attempt, source }
    }

    pub(crate) fn file(attempt: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { attempt, path, source }
    }

    /// What to do about it, when that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BadName(_) => {
                "use 1 to 48 of a-z, A-Z, 0-9, '-' and '_', beginning with a letter or a digit".to_owned()
            }
            Self::UnknownPreset { known, .. } => format!("the presets are: {}", known.join(", ")),
            Self::UnknownHost { known, .. } => format!("its hosts are: {}", known.join(", ")),
            Self::BadDevice { known, .. } => format!("the devices are: {known}"),
            // What a user namespace allows does not count for programs (`bpf_capable` of the kernel).
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
            Self::NotUp(_) => "fathom lab list        # running labs".to_owned(),
            Self::Holder { hint, .. } => return hint.clone(),
            Self::NeedsProcess(_) => "start a process in the host instead".to_owned(),
            Self::BadOption { .. } | Self::Kernel { .. } | Self::File { .. } => return None,
        })
    }
}

/// The switch that forbids user namespaces, by what the kernel answered.
fn user_namespace_hint(errno: Option<i32>) -> String {
    if errno == Some(ENOSPC) {
        return "raise the limit: sysctl user.max_user_namespaces=10000 (and user.max_net_namespaces)".to_owned();
    }
    "run as root, or allow it: sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), \
     sysctl kernel.unprivileged_userns_clone=1 (older Debian), sysctl user.max_user_namespaces=10000"
        .to_owned()
}
