//! An agent behind a `fathom serve`, over TLS.

use super::{AgentStream, Liveness, Opening};
use crate::{
    Error,
    tls::{self, Key},
};

/// Connects to `address` (a name or an IP address, and a port), checks the server's certificate against the key, then sends the token.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::NotAFathomServer`], [`Error::WrongFingerprint`], [`Error::WrongToken`] and [`Error::Busy`].
pub fn tls(address: &str, key: &Key) -> Result<AgentStream, Error> {
    let stream = tls::connect(address, key)?;
    Ok(AgentStream {
        stream,
        reached: format!("tls {address}"),
        process: None,
        liveness: Liveness::Heartbeats,
        opening: Opening::Frame,
    })
}
