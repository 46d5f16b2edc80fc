//! The reasons why a test cannot be prepared or run.

use std::{io::ErrorKind, net::SocketAddr};

use fathom_model::settings::SettingError;
use fathom_sys::policy::Refused;

/// The error that stopped a test, worded for the person who has to act on it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The combination of options is invalid.
    #[error("{what}")]
    BadRequest {
        /// The option and the problem with it.
        what: String,
        /// What to write instead.
        hint: Option<String>,
    },
    /// There is no test kind with this name.
    #[error("there is no test kind `{name}`; there are {known}")]
    UnknownKind {
        /// The requested name.
        name: String,
        /// The known names.
        known: String,
    },
    /// The other side did not send a value that this side needs.
    #[error("{kind} needs `{what}` from the other side, but did not get it")]
    Endpoint {
        /// The kind of test.
        kind: &'static str,
        /// The key in the endpoints.
        what: &'static str,
    },
    /// A privilege is missing.
    #[error("{what} needs {needs}")]
    Permission {
        /// The attempted action and its object.
        what: String,
        /// The capability, such as `CAP_NET_RAW`.
        needs: &'static str,
        /// The error from the kernel.
        #[source]
        cause: fathom_sys::Error,
    },
    /// The kernel rejected a system call.
    #[error("cannot {what}")]
    System {
        /// The attempted action and its object, such as `listen on 198.18.0.2:7701`.
        what: String,
        /// The error from the kernel.
        #[source]
        cause: fathom_sys::Error,
    },
    /// The connection to the other side failed.
    #[error("cannot connect to {to}")]
    Unreachable {
        /// The destination of the connection.
        to: SocketAddr,
        /// The error from the kernel.
        #[source]
        cause: fathom_sys::Error,
        /// The likely cause.
        hint: String,
    },
    /// The other side violated the test's protocol.
    #[error("the other side {what}")]
    Peer {
        /// The violation, such as `closed the connection before the end`.
        what: String,
    },
    /// The test ran to the end but had nothing to measure.
    #[error("{what}")]
    NoResult {
        /// The missing event and its place, such as `no packet of a pktgen arrived at eth1`.
        what: String,
        /// The thing to check.
        hint: String,
    },
    /// The owner of the host or the user does not allow the test.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The test cannot run here with these settings.
    #[error("{what}")]
    Unsupported {
        /// The unsupported action and the reason.
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
        let needs = if fathom_sys::policy::is_filter_refused(&cause) { "CAP_NET_ADMIN" } else { needs };
        if cause.is_permission() { Self::Permission { what, needs, cause } } else { Self::System { what, cause } }
    }

    /// Describes a failed connect with a hint about its likely cause.
    #[must_use]
    pub fn unreachable(to: SocketAddr, cause: fathom_sys::Error) -> Self {
        let hint = match cause.source.kind() {
            ErrorKind::ConnectionRefused => {
                "a firewall on the target or the path rejects it: allow the port, and choose it with --port".to_owned()
            }
            ErrorKind::NetworkUnreachable => {
                format!("there is no route: run `ip route get {}` on this host", to.ip())
            }
            ErrorKind::HostUnreachable => {
                let ip = to.ip();
                format!(
                    "no host on the link answers for this address, or a router or a route rejects it: run `ip neigh; ip route get {ip}`"
                )
            }
            ErrorKind::TimedOut => {
                "nothing answers: a firewall drops it, or the path is broken; choose an open port with --port"
                    .to_owned()
            }
            _ => format!("check the route: run `ip route get {}` on this host", to.ip()),
        };
        Self::Unreachable { to, cause, hint }
    }

    /// Returns the hint about how to fix the problem, if the error carries one.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        match self {
            Self::Unsupported { hint, .. } | Self::BadRequest { hint, .. } => hint.as_deref(),
            Self::Refused(refused) => refused.hint.as_deref(),
            Self::Unreachable { hint, .. } | Self::NoResult { hint, .. } => Some(hint),
            _ => None,
        }
    }

    /// Returns whether the problem was found before anything was started.
    #[must_use]
    pub const fn is_preflight(&self) -> bool {
        !matches!(self, Self::Peer { .. } | Self::NoResult { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_refuses_filters_is_not_a_port_without_privilege() {
        let refused = |call: &str| {
            let cause = fathom_sys::Error::new(call, std::io::Error::from(ErrorKind::PermissionDenied));
            match Error::system("listen on 127.0.0.1:0", "CAP_NET_BIND_SERVICE", cause) {
                Error::Permission { needs, .. } => needs,
                other => panic!("{other}"),
            }
        };
        assert_eq!(refused("bind"), "CAP_NET_BIND_SERVICE");
        assert_eq!(refused("setsockopt(SO_ATTACH_FILTER)"), "CAP_NET_ADMIN");
    }
}
