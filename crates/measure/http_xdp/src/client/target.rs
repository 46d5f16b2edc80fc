//! The server and the request of a load.

use std::{net::SocketAddr, sync::Arc};

use fathom_engine::Error;
use fathom_http::{
    h1::Method,
    target::{NextAddress, TargetConfig},
};
use fathom_model::{Role, units::Nanos};
use fathom_sys::policy::{Destination, Policy};

use super::error::refusal;
use crate::responder::{self, Answer};

/// The key under which a responder tells its address.
const ADDRESS: &str = "address";
/// The most bytes of a request. A frame of the server becomes a frame of ours by growing into the room before it, which is 256 bytes less
/// what the driver keeps of it.
const REQUEST_MAX: usize = 180;

/// One server, and the request that it is asked.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) destination: Destination,
    pub(super) server: SocketAddr,
    pub(super) request: Vec<u8>,
    /// How answers are read.
    pub(super) method: Method,
    /// Whether each request has a connection of its own.
    pub(super) closes: bool,
    /// What the server answers, if it is our own responder of the other side.
    pub(super) own_answer: Option<Answer>,
}

impl Target {
    /// Reads the options, and looks the name up; the policy judges the address.
    pub(super) fn prepare(kind: &'static str, role: &Role, policy: &Policy) -> Result<Self, Error> {
        let mut settings = role.settings.clone();
        // Sockets take their source addresses from the kernel, and these are none of its own.
        settings.0.remove("source");
        let ours = role.peer.get(ADDRESS).and_then(|address| address.parse::<SocketAddr>().ok());
        if settings.text("url").is_none() && ours.is_none() {
            return Err(Error::Endpoint { kind, what: ADDRESS });
        }
        let config = Arc::new(TargetConfig::prepare((&settings, policy), ours, None)?);
        let [upstream] = config.upstreams.as_slice() else { return Err(refusal("the URLs name more than one server")) };
        let [request] = upstream.requests.as_slice() else { return Err(refusal("there is more than one URL")) };
        if !upstream.is_plain() {
            return Err(refusal(format!("{} needs TLS", upstream.name)));
        }
        if request.bytes.len() > REQUEST_MAX {
            return Err(refusal(format!(
                "the request has {} bytes, and one without sockets at most {REQUEST_MAX}",
                request.bytes.len()
            )));
        }
        let NextAddress::Ready(ends) = config.resolver(0, 1)?.next(0, 0, Nanos::ZERO) else {
            unreachable!("names are looked up once, before the start")
        };
        let own_answer = settings.text("url").is_none().then(|| own_answer(role)).transpose()?;
        let server = ends.address.address().expect("a server without a unix socket has an address");
        Ok(Self {
            server,
            destination: ends.address,
            request: request.bytes.clone(),
            method: config.method,
            closes: config.requests_per_connection == Some(1),
            own_answer,
        })
    }
}

/// The answer that the responder of the other side gives, which has the same settings.
fn own_answer(role: &Role) -> Result<Answer, Error> {
    let (size, after) = responder::answer(&role.settings, role.seed)?;
    Answer::new(size, after).ok_or_else(|| refusal("the answer of our own responder does not fit into a segment"))
}
