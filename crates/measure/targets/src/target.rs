//! The address that the targets share.

use fathom_engine::{Consent, Error, NamedTarget};
use fathom_model::{
    Role, Settings,
    host_port::{port_number, split_host_port},
};
use fathom_sys::policy::{Destination, Policy, Refused};
use fathom_transport::options::invalid_value;

use crate::{dialect::Dialect, options};

/// The port of a server, unless the address has one: those of the tools are their defaults.
const fn default_port(dialect: Dialect) -> u16 {
    match dialect {
        Dialect::Fathom => crate::server::PORT,
        Dialect::Ctraffic => 5003,
        Dialect::Mconnect => 5001,
    }
}

/// Returns the host and port of the address.
///
/// # Errors
/// There is none, or it is no host with an optional port.
pub(crate) fn host_and_port(settings: &Settings) -> Result<(String, u16), Error> {
    let Some(text) = settings.text(options::HOST.name) else {
        let what = "the test needs the address that the targets share".to_owned();
        return Err(Error::BadRequest { what, hint: Some("fathom tcp 10.0.0.1:7701 --test spread".to_owned()) });
    };
    let wrong = || invalid_value(options::HOST.name, "HOST, HOST:PORT or [ADDRESS]:PORT", &text);
    let (host, port) = split_host_port(&text).ok_or_else(wrong)?;
    let port = port.map(|port| port_number(port).ok_or_else(wrong)).transpose()?;
    if host.contains(char::is_whitespace) || host.contains('/') {
        return Err(wrong());
    }
    Ok((host.to_owned(), port.unwrap_or_else(|| default_port(options::dialect(settings)))))
}

/// Returns the address as a target that the user has to allow, outside a lab.
pub(crate) fn named(settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
    if settings.text(options::HOST.name).is_none() {
        return Ok(Vec::new());
    }
    let (host, _) = host_and_port(settings)?;
    Ok(vec![NamedTarget { host, port: None, consent: Consent::AllowListOutsideLabs }])
}

/// Returns the permitted address.
///
/// # Errors
/// The name is unknown, or the address is not allowed.
pub(crate) fn destination(role: &Role, policy: &Policy) -> Result<Destination, Error> {
    let (host, port) = host_and_port(&role.settings)?;
    let unknown = |why: String| Error::Unsupported { what: format!("there is no host `{host}`: {why}"), hint: None };
    let found = policy.resolve(&host, port).map_err(|error| match Refused::within(&error) {
        Some(refused) => refused.clone().into(),
        None => unknown(error.to_string()),
    })?;
    found.into_iter().next().ok_or_else(|| unknown("the name has no address".to_owned()))
}

/// Returns the error for an address behind which nobody tells who it is.
pub(crate) fn nobody_answers(to: &Destination, dialect: Dialect, why: &str) -> Error {
    let place = to.address().map_or_else(String::new, |to| to.to_string());
    let is_v6 = to.address().is_some_and(|to| to.is_ipv6());
    let start = match dialect {
        Dialect::Fathom if is_v6 => "fathom serve --only identity --listen ::",
        Dialect::Fathom => "fathom serve --only identity",
        Dialect::Ctraffic => "ctraffic -server",
        Dialect::Mconnect => "mconnect -server",
    };
    let start = format!("start `{start}` on each target, and check that the device knows them");
    Error::Unsupported { what: format!("nobody at {place} tells who it is: {why}"), hint: Some(start) }
}
