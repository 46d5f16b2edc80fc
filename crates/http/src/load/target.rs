//! What the requests are for.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicBool},
};

use fathom_engine::Error;
use fathom_model::{Role, settings::SettingError, units::Nanos};
use fathom_sys::socket::{self, SockAddr, Socket};

use super::ledger::Bookkeeping;
use crate::{
    h1::{Method, Request, RequestError},
    url::{Url, UrlError},
};

/// The key under which a responder tells where it listens.
pub(crate) const ADDRESS: &str = "address";

/// Where connections go, and where from.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) address: SockAddr,
    target: SocketAddr,
    /// The address to send from, where the role gives one.
    source: Option<IpAddr>,
}

impl Place {
    /// A socket that may be connected to it.
    pub(super) fn open(&self) -> Result<Socket, fathom_sys::Error> {
        let socket = socket::stream_nonblocking(self.target)?;
        socket.set_tcp_nodelay(true).map_err(socket::named("setsockopt(TCP_NODELAY)"))?;
        if let Some(source) = self.source {
            socket::set_bind_address_no_port(&socket)?;
            socket.bind(&SocketAddr::new(source, 0).into()).map_err(socket::named("bind"))?;
        }
        Ok(socket)
    }
}

/// What all workers share; nothing of it changes but the flag.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) place: Place,
    pub(super) request: Vec<u8>,
    pub(super) method: Method,
    pub(super) timeout: Nanos,
    /// The most requests under way on a connection.
    pub(super) pipeline: u16,
    /// The most requests on a connection before it is closed.
    pub(super) per_connection: Option<u64>,
    /// Whether everything counts from the start on.
    pub(super) is_counted: bool,
    /// Whether any worker has had a connection.
    pub(super) reached: AtomicBool,
    pub(super) keeping: Arc<Bookkeeping>,
}

impl Target {
    /// What a role asks for.
    pub(super) fn of(role: &Role, kind: &'static str) -> Result<Self, Error> {
        let settings = &role.settings;
        let (address, host, target) = destination(role, kind)?;
        let method = if settings.text("method").as_deref() == Some("HEAD") { Method::Head } else { Method::Get };
        let fields = settings.text("header").unwrap_or_default();
        let request = Request { method, target: &target, host: &host, fields: &fields };
        let source = role.address.filter(|own| reaches(*own, address.ip()));
        let pipeline = settings.count("pipeline").and_then(|depth| u16::try_from(depth).ok());
        Ok(Self {
            address,
            place: Place { address: address.into(), target: address, source },
            request: request.bytes().map_err(refused_request)?,
            method,
            timeout: settings.span("timeout").unwrap_or(Nanos::from_secs(5)),
            pipeline: pipeline.unwrap_or(1),
            per_connection: settings.count("per-connection"),
            is_counted: settings.count("requests").is_some(),
            reached: AtomicBool::new(false),
            keeping: Bookkeeping::of(settings),
        })
    }
}

/// Whether packets from an own address can go to `target`: the loopback's reach no other host.
fn reaches(own: IpAddr, target: IpAddr) -> bool {
    own.is_ipv4() == target.is_ipv4() && !own.is_loopback() && !target.is_loopback()
}

/// Where requests go: the address, the value of `Host`, and the path.
fn destination(role: &Role, kind: &'static str) -> Result<(SocketAddr, String, String), Error> {
    let path = role.settings.text("path").unwrap_or_else(|| "/".to_owned());
    if let Some(url) = role.settings.text("url") {
        let url: Url = url.parse().map_err(refused_url)?;
        let target = if url.target == "/" { path } else { url.target.clone() };
        return Ok((url.resolve().map_err(refused_url)?, url.host_field(), target));
    }
    let address = role.peer.get(ADDRESS).and_then(|address| address.parse().ok());
    let address: SocketAddr = address.ok_or(Error::Endpoint { kind, what: ADDRESS })?;
    Ok((address, address.to_string(), path))
}

fn refused_url(error: UrlError) -> Error {
    let hint = match error {
        UrlError::Resolve { host, cause } => {
            let cause = fathom_sys::Error::new("getaddrinfo", cause);
            return Error::System { what: format!("find the address of `{host}`"), cause };
        }
        UrlError::Tls(_) => "use http://; TLS comes later",
        _ => "write it as http://host:port/path",
    };
    Error::Unsupported { what: error.to_string(), hint: Some(hint.to_owned()) }
}

fn refused_request(error: RequestError) -> Error {
    let (name, expected, given) = match error {
        RequestError::Field(line) => ("header", "lines of the form Name: value", line),
        RequestError::Body(line) => ("header", "no field that announces a body", line),
        RequestError::Target(target) => ("path", "visible ASCII characters that begin with /", target),
    };
    Error::Setting(SettingError::NotAllowed { name: name.to_owned(), expected: expected.to_owned(), given })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_loopback_is_no_source_for_another_host() {
        let [loopback, own, other, six] =
            ["127.0.0.1", "192.0.2.1", "192.0.2.2", "2001:db8::1"].map(|text| text.parse().unwrap());
        assert!(reaches(own, other));
        assert!(!reaches(loopback, other));
        assert!(!reaches(own, loopback));
        assert!(!reaches(own, six));
    }
}
