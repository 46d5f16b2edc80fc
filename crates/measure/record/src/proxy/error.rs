//! Why a proxy does not start.

use std::io;

use fathom_http::target::TargetConfigError;

use crate::certificates::CertificateError;

/// Why a proxy does not start.
#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("the certificate authorities of this system cannot be read")]
    Roots(#[from] TargetConfigError),
    #[error("cannot set TLS up")]
    Tls(#[from] rustls::Error),
    #[error("cannot start the proxy")]
    System(#[from] io::Error),
    #[error("cannot start the proxy")]
    Thread(#[from] fathom_sys::Error),
}
