//! Over which protocol messages are sent, and where to.

use fathom_engine::{Consent, Error, NamedTarget};
use fathom_model::{
    Layer, Settings,
    host_port::{port_number, split_host_port},
    settings::SettingError,
};
use fathom_sys::policy::{Destination, Policy};

/// The option with the server.
pub(super) const TARGET: &str = "target";

/// The protocol that carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Turns of connections.
    Tcp,
    /// Datagrams.
    Udp,
}

impl Transport {
    pub(super) const fn layer(self) -> Layer {
        match self {
            Self::Tcp => Layer::Tcp,
            Self::Udp => Layer::Udp,
        }
    }
}

/// The host and the port of the option `target`.
///
/// # Errors
/// It is absent, or no such pair.
fn host_and_port(settings: &Settings) -> Result<(String, u16), Error> {
    let text = settings.text(TARGET).unwrap_or_default();
    let split = split_host_port(&text).and_then(|(host, port)| Some((host.to_owned(), port_number(port?)?)));
    split.ok_or_else(|| {
        let expected = "the host and the port of a server, such as 127.0.0.1:53".to_owned();
        SettingError::NotAllowed { name: TARGET.to_owned(), expected, given: text }.into()
    })
}

/// The server, for those who have to agree. A connection shows whether it listens.
///
/// # Errors
/// As [`destinations`].
pub(super) fn named(settings: &Settings, transport: Transport) -> Result<NamedTarget, Error> {
    let (host, port) = host_and_port(settings)?;
    Ok(NamedTarget { host, port: (transport == Transport::Tcp).then_some(port), consent: Consent::AllowList })
}

/// The addresses of the server.
///
/// # Errors
/// The option `target` is wrong, or the name has no address that may be sent to.
pub(super) fn destinations(settings: &Settings, policy: &Policy) -> Result<Vec<Destination>, Error> {
    let (host, port) = host_and_port(settings)?;
    policy
        .resolve(&host, port)
        .map_err(|error| Error::Unsupported { what: format!("cannot find the address of {host}: {error}"), hint: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_with_a_port() {
        let target = |text: &str| host_and_port(&Settings::default().with(TARGET, text));
        assert_eq!(target("[::1]:53").unwrap(), ("::1".to_owned(), 53));
        for wrong in ["", "127.0.0.1", "a:0", "::1", "tcp://a:1"] {
            assert!(target(wrong).unwrap_err().to_string().contains(TARGET), "{wrong}");
        }
    }
}
