//! Why a test cannot be prepared or run.

use std::{io::ErrorKind, net::SocketAddr};

use fathom_model::settings::SettingError;
use fathom_sys::policy::Refused;

/// What stopped a test, for the person who must act.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Options that cannot be.
    #[error("{what}")]
    BadRequest {
        /// What is wrong with which option.
        what: String,
        /// What to write instead.
        hint: Option<String>,
    },
    /// There is no kind of test of this name.
    #[error("there is no test kind `{name}`; there are {known}")]
    UnknownKind {
        /// The name that was asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The other side did not say something that this side needs.
    #[error("{kind} needs `{what}` from the other side, which did not give it")]
    Endpoint {
        /// The kind of test.
        kind: &'static str,
        /// The key in the endpoints.
        what: &'static str,
    },
    /// A privilege is missing.
    #[error("{what} needs {needs}")]
    Permission {
        /// What was attempted, on what.
        what: String,
        /// The capability, such as `CAP_NET_RAW`.
        needs: &'static str,
        /// What the kernel answered.
        #[source]
        cause: fathom_sys::Error,
    },
    /// The kernel refused something.
    #[error("cannot {what}")]
    System {
        /// What was attempted, on what: `listen on 198.18.0.2:7701`.
        what: String,
        /// What the kernel answered.
        #[source]
        cause: fathom_sys::Error,
    },
    /// No connection to the other side came about.
    #[error("cannot connect to {to}")]
    Unreachable {
        /// Where to.
        to: SocketAddr,
        /// What the kernel answered.
        #[source]
        cause: fathom_sys::Error,
        /// What may stand in the way.
        hint: String,
    },
    /// The other side did something that the test's protocol does not allow.
    #[error("the other side {what}")]
    Peer {
        /// What it did: `closed the connection before the end`.
        what: String,
    },
    /// It ran to its end, and there was nothing to measure.
    #[error("{what}")]
    NoResult {
        /// What did not happen, where: `no packet of a pktgen arrived at eth1`.
        what: String,
        /// What to look at.
        hint: String,
    },
    /// The owner of the host, or the user, does not allow it.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The test cannot be run here as it was asked.
    #[error("{what}")]
    Unsupported {
        /// What cannot be done and why.
        what: String,
        /// What to do instead.
        hint: Option<String>,
    },
}

impl Error {
    /// An open load without a rate.
    #[must_use]
    pub fn no_rate() -> Self {
        Self::BadRequest {
            what: "the test starts requests at a rate, and no rate is given".to_owned(),
            hint: Some("--rate 20k        # or --find-limit 'p99<20ms' for the highest rate that keeps it".to_owned()),
        }
    }

    /// A system call's error as a missing privilege, if it is one, or as a refusal.
    pub fn system(what: impl Into<String>, needs: &'static str, cause: fathom_sys::Error) -> Self {
        let what = what.into();
        if cause.is_permission() { Self::Permission { what, needs, cause } } else { Self::System { what, cause } }
    }

    /// Says of a connect that failed what stands in the way.
    #[must_use]
    pub fn unreachable(to: SocketAddr, cause: fathom_sys::Error) -> Self {
        let hint = match cause.source.kind() {
            ErrorKind::ConnectionRefused => {
                "a firewall on the target or the path rejects it: allow the port, and choose it with --port".to_owned()
            }
            ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                format!("there is no route: see what `ip route get {}` says on this host", to.ip())
            }
            ErrorKind::TimedOut => {
                "nothing answers: a firewall drops it, or the path is broken; choose an open port with --port"
                    .to_owned()
            }
            _ => format!("see what `ip route get {}` says on this host", to.ip()),
        };
        Self::Unreachable { to, cause, hint }
    }

    /// What to do about it, where the error itself knows.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unsupported { hint, .. } | Self::BadRequest { hint, .. } => hint.as_deref(),
            Self::Refused(refused) => refused.hint.as_deref(),
            Self::Unreachable { hint, .. } | Self::NoResult { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// Whether the machine or the request was found wanting before anything was started.
    #[must_use]
    pub const fn is_preflight(&self) -> bool {
        !matches!(self, Self::Peer { .. } | Self::NoResult { .. })
    }
}
