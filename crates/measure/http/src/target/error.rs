//! Errors found before any load, with their place and the remedy.

use std::{io, net::IpAddr, path::PathBuf};

use fathom_model::settings::SettingError;
use fathom_sys::policy::Refused;

use crate::{h1::RequestError, url::UrlError};

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetConfigError {
    /// A URL of the list cannot be used.
    #[error("option `url`, line {line}: {cause}")]
    Url {
        /// The line, from 1.
        line: usize,
        cause: UrlError,
    },
    /// A weight is not a valid number.
    #[error("option `url`, line {line}: `{given}` is not a weight from 1 to 1000000")]
    Weight {
        /// The line, from 1.
        line: usize,
        /// The text in its place.
        given: String,
    },
    /// The weights have no short common pattern.
    #[error("option `url`: the weights repeat only after {period} requests, and at most {max} can be planned")]
    Weights {
        /// The length of the pattern in requests.
        period: u64,
        /// The longest allowed pattern.
        max: u64,
    },
    /// The proxy's URL cannot be used.
    #[error("option `proxy`: {0}")]
    Proxy(UrlError),
    /// A request cannot be built.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An option does not accept this value.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Two options that exclude each other.
    #[error("the options `{one}` and `{other}` exclude one another")]
    ExclusiveOptions {
        /// One of them.
        one: &'static str,
        other: &'static str,
    },
    /// An option that requires another one.
    #[error("the option `{one}` needs `{other}`")]
    MissingOption {
        /// The given option.
        one: &'static str,
        /// The missing option.
        other: &'static str,
    },
    /// A file cannot be read.
    #[error("option `{option}`: cannot read {path}", path = .path.display())]
    File {
        /// The option that names it.
        option: &'static str,
        path: PathBuf,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// A file lacks the required content.
    #[error("option `{option}`: {problem} in {path}", path = .path.display())]
    Content {
        /// The option that names it.
        option: &'static str,
        path: PathBuf,
        /// The problem, such as `there is no certificate`.
        problem: String,
    },
    /// A name has no address.
    #[error("cannot find the address of `{host}`")]
    Resolve {
        host: String,
        /// The resolver's error.
        #[source]
        cause: io::Error,
    },
    /// A name has addresses, but none of the requested family, or none that the source addresses can reach.
    #[error("`{host}` has no address of IPv{version}")]
    Family {
        host: String,
        /// 4 or 6.
        version: u8,
    },
    /// A source address does not belong to this host.
    #[error("option `source`: cannot send from {address}")]
    Source {
        address: IpAddr,
        /// The kernel's error.
        #[source]
        cause: fathom_sys::Error,
    },
    /// The system has no CA certificates.
    #[error("this system has no certificates of issuers, so no server can be verified{detail}")]
    NoIssuers {
        /// The problems found during the search, after a colon.
        detail: String,
    },
    /// The requested TLS configuration is not possible.
    #[error("cannot prepare TLS: {0}")]
    Tls(rustls::Error),
    /// Threads or sockets for lookups cannot be created.
    #[error("cannot prepare the lookup of names")]
    Lookups(#[source] io::Error),
}

impl TargetConfigError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::Url { cause, .. } | Self::Proxy(cause) => cause.hint(),
            Self::Weight { .. } => "write a line as `3 http://host/path`",
            Self::Weights { .. } => "use smaller weights, or such with a common factor",
            Self::Request(RequestError::Field(_)) => "write each on a line of its own",
            Self::Request(RequestError::Body(..)) => "leave it out: the length is announced anyway",
            Self::Request(RequestError::Target(_)) => "begin it with /, and percent-encode all but visible ASCII",
            Self::Request(RequestError::Tunnel(_)) => "give the proxy by the option proxy",
            Self::Resolve { .. } => "check the name, or give an address by the option connect-to",
            Self::Family { .. } => "leave out the option ip, or send from an address of the other family",
            Self::Source { .. } => {
                "add it to an interface (ip address add), or the whole network (ip route add local … dev lo)"
            }
            Self::NoIssuers { .. } => "install ca-certificates, give issuers by the option ca, or set insecure",
            Self::Content { .. } => "it takes PEM: blocks between -----BEGIN … and -----END …",
            _ => return None,
        };
        Some(text.to_owned())
    }
}

impl From<TargetConfigError> for fathom_engine::Error {
    fn from(error: TargetConfigError) -> Self {
        let hint = error.hint();
        let what = error.to_string();
        let system = |what: String, call, cause| Self::System {
            what: what.trim_start_matches("cannot ").to_owned(),
            cause: fathom_sys::Error::new(call, cause),
        };
        if let TargetConfigError::Resolve { cause, .. } | TargetConfigError::File { cause, .. } = &error
            && let Some(refused) = Refused::within(cause)
        {
            return Self::Refused(refused.clone());
        }
        match error {
            TargetConfigError::Setting(error) => Self::Setting(error),
            TargetConfigError::Resolve { cause, .. } => system(what, "getaddrinfo", cause),
            TargetConfigError::Lookups(cause) => system(what, "socketpair", cause),
            TargetConfigError::File { cause, option, path } => {
                system(format!("read {} for the option `{option}`", path.display()), "open", cause)
            }
            TargetConfigError::Source { cause, address } => {
                Self::Unsupported { what: format!("option `source`: cannot send from {address}: {cause}"), hint }
            }
            _ => Self::Unsupported { what, hint },
        }
    }
}
