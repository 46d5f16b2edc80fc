//! How a connection and a request come about: all that is known before the first packet.
//!
//! Options become a [`Dialing`], made once and shared; a [`Dialer`] of it is one worker's own. It says where the next connection
//! goes, a [`Channel`] carries it from the socket to HTTP, and an [`Ask`] is what is sent on it. Knows no event loop: before the
//! start it resolves names and reads files, afterwards it does no I/O, except that threads of a dialer look names up again.

mod channel;
mod destination;
mod dialer;
mod dressing;
mod error;
mod fault;
mod lookups;
pub mod options;
mod prelude;
mod rota;
mod security;
mod sessions;
mod sources;
mod targets;
mod tls;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use channel::Way;
pub use channel::{Channel, Desk, Opened, Step};
use destination::Destination;
pub use destination::{Family, Freshness, Name, Place};
pub use dialer::{Dialer, LookedUp, Next};
use dressing::{Dressing, Form, authorization};
pub use error::DialError;
use fathom_model::{Note, Settings, settings::SettingError, units::Bytes};
use fathom_sys::policy::Policy;
pub use fault::{Fault, ProxyFault, Stage, TlsFault};
use prelude::Tunnel;
pub use prelude::{Announcement, Ends};
pub use rota::Rota;
pub use security::Security;
pub use sources::{Sources, Turns};
use targets::Target;
use tls::Tls;

use crate::{
    h1::{HeadReader, Method},
    url::{Scheme, Url},
};

/// A request with how often it is sent beside the others of its route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// The bytes for HTTP.
    pub request: Vec<u8>,
    /// At least 1.
    pub weight: u64,
}

/// A server, the way to it, and what it is asked.
#[derive(Debug)]
pub struct Route {
    /// `https://host:port`, for people.
    pub name: String,
    /// The sum of the weights of what is asked.
    pub weight: u64,
    /// What is asked, at least one.
    pub asks: Vec<Ask>,
    /// Whose turn it is among the asks; workers clone it.
    pub rota: Rota,
    scheme: Scheme,
    destination: Destination,
    way: Way,
}

impl Route {
    /// Whether requests and answers go through the socket as they are, once a channel is ready.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.scheme == Scheme::Http
    }
}

/// Where a test's connections go and what is asked on them; made once, shared by the workers.
#[derive(Debug)]
pub struct Dialing {
    /// One for each server, at least one.
    pub routes: Vec<Route>,
    /// For each URL, in their order, the place of its route.
    pub places: Vec<u16>,
    /// Whose turn it is among the routes; deals out connections, or arrivals.
    pub rota: Rota,
    /// How answers are read.
    pub method: Method,
    /// How long the head of an answer may be; as the reader of heads has it unless given.
    head_max: Option<Bytes>,
    /// How many requests a connection may carry.
    pub per_connection: Option<u64>,
    /// What has to be said beside the result.
    pub notes: Vec<Note>,
    freshness: Freshness,
    sources: Option<Sources>,
    /// The address of the role, for servers that it can reach.
    own: Option<IpAddr>,
    tls: Option<Tls>,
    /// Judges later look-ups.
    policy: Policy,
}

/// What the options say of the way to all servers.
struct Plan {
    dressing: Dressing,
    announcement: Option<Announcement>,
    proxy: Option<Url>,
    unix: Option<String>,
    connect_to: Option<Name>,
    family: Family,
    sources: Option<Sources>,
    tls: Option<Tls>,
    policy: Policy,
}

impl Dialing {
    /// Reads the options and the files that they name, and looks the names up.
    ///
    /// Without an option `url`, `ours` is the address of a responder of ours. `own` is the address of the role, to send from.
    ///
    /// # Errors
    /// The first thing that would keep the load from its target, with its place.
    pub fn prepare(
        (settings, policy): (&Settings, &Policy),
        ours: Option<SocketAddr>,
        own: Option<IpAddr>,
    ) -> Result<Self, DialError> {
        let targets = match (Target::all(settings)?, ours) {
            (Some(targets), _) => targets,
            (None, Some(ours)) => vec![Target { weight: 1, url: of_ours(settings, ours) }],
            (None, None) => return Err(DialError::Alone { one: "path", other: "url" }),
        };
        let has_tls = targets.iter().any(|target| target.url.scheme == Scheme::Https);
        // Nobody vouches for the certificate of our own responder, which is made for one trial.
        let is_ours = settings.text("url").is_none();
        let plan = if is_ours { &settings.clone().with("insecure", "true") } else { settings };
        let plan = Plan::from((plan, policy), has_tls)?;
        let (servers, places) = targets::by_server(targets);
        let routes: Vec<Route> = servers.iter().map(|server| plan.route(server)).collect::<Result<_, _>>()?;
        let weights: Vec<u64> = routes.iter().map(|route| route.weight).collect();
        let unverified = || Note {
            id: "tls-insecure".to_owned(),
            text: "certificates were not verified, so the answers may be anyone's".to_owned(),
        };
        Ok(Self {
            rota: Rota::new(&weights)?,
            method: plan.dressing.method(),
            head_max: settings.size("max-head"),
            per_connection: settings.count("per-connection"),
            notes: (has_tls && settings.flag("insecure")).then(unverified).into_iter().collect(),
            freshness: Freshness::from(settings)?,
            sources: plan.sources,
            own,
            tls: plan.tls,
            policy: policy.clone(),
            places,
            routes,
        })
    }

    /// A reader of the answers to requests of this method.
    #[must_use]
    pub fn heads(&self, method: Method) -> HeadReader {
        let reader = HeadReader::new(method);
        match self.head_max {
            Some(max) => reader.bounded(max),
            None => reader,
        }
    }

    /// One worker's own: `idx` of `n_workers`, so that they begin at different points of addresses and patterns.
    ///
    /// # Errors
    /// [`DialError::Lookups`], when names have to be looked up again and threads cannot be had.
    pub fn dialer(self: &Arc<Self>, idx: usize, n_workers: usize) -> Result<Dialer, DialError> {
        Dialer::new(self, idx, n_workers)
    }
}

/// Where the packets of a test with these options go, whatever its URLs say; nowhere through a unix socket or without a URL.
///
/// # Errors
/// The first option that names no place.
pub fn destinations(settings: &Settings) -> Result<Vec<Name>, DialError> {
    let of = |url: &Url| Name { host: url.host.clone(), port: url.port };
    let targets = Target::all(settings)?.unwrap_or_default();
    if settings.text("unix").is_some() {
        return Ok(Vec::new());
    }
    if let Some(text) = settings.text("connect-to") {
        return Ok(vec![Name::parse("connect-to", &text)?]);
    }
    if let Some(text) = settings.text("proxy") {
        return Ok(vec![of(&proxy(&text)?)]);
    }
    let mut names: Vec<Name> = Vec::new();
    for name in targets.iter().map(|target| of(&target.url)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The URL of a responder of ours.
fn of_ours(settings: &Settings, ours: SocketAddr) -> Url {
    let is_tls = settings.text("scheme").as_deref() == Some("https");
    Url {
        scheme: if is_tls { Scheme::Https } else { Scheme::Http },
        host: ours.ip().to_string(),
        port: ours.port(),
        target: "/".to_owned(),
        user: None,
    }
}

impl Plan {
    fn from((settings, policy): (&Settings, &Policy), has_tls: bool) -> Result<Self, DialError> {
        let excluded = [("unix", "proxy"), ("unix", "connect-to"), ("unix", "source"), ("connect-to", "proxy")];
        let is_given = |name: &str| settings.text(name).is_some();
        if let Some((one, other)) = excluded.into_iter().find(|(one, other)| is_given(one) && is_given(other)) {
            return Err(DialError::Clash { one, other });
        }
        let sources = settings.text("source").map(|text| Sources::parse(&text)).transpose()?;
        if let Some(sources) = &sources {
            sources.check()?;
        }
        Ok(Self {
            dressing: Dressing::from((settings, policy))?,
            announcement: settings.text("proxy-protocol").map(|version| match version.as_str() {
                "v1" => Announcement::V1,
                _ => Announcement::V2,
            }),
            proxy: settings.text("proxy").map(|url| proxy(&url)).transpose()?,
            unix: settings.text("unix"),
            connect_to: settings.text("connect-to").map(|text| Name::parse("connect-to", &text)).transpose()?,
            family: Family::from(settings),
            sources,
            tls: has_tls.then(|| Tls::from((settings, policy))).transpose()?,
            policy: policy.clone(),
        })
    }

    fn route(&self, targets: &[Target]) -> Result<Route, DialError> {
        let url = &targets[0].url;
        let form = match (&self.proxy, url.scheme) {
            (Some(proxy), Scheme::Http) => {
                let user = proxy.user.as_ref().map(|user| authorization("Proxy-Authorization", user));
                Form::Absolute(user.transpose()?)
            }
            _ => Form::Origin,
        };
        let tunnel = match (&self.proxy, url.scheme) {
            (Some(proxy), Scheme::Https) => Some(Arc::new(Tunnel::new(proxy, url)?)),
            _ => None,
        };
        let ask = |target: &Target| {
            let request = self.dressing.request(&target.url, &form)?;
            Ok(Ask { request, weight: target.weight })
        };
        let asks: Vec<Ask> = targets.iter().map(ask).collect::<Result<_, DialError>>()?;
        let weights: Vec<u64> = asks.iter().map(|ask| ask.weight).collect();
        let tls = self.tls.as_ref().filter(|_| url.scheme == Scheme::Https);
        let tls = tls.map(|tls| Ok::<_, DialError>((tls.of_worker(), tls.name(&url.host)?))).transpose()?;
        Ok(Route {
            name: format!("{}://{}", url.scheme.name(), url.authority()),
            weight: weights.iter().sum(),
            rota: Rota::new(&weights)?,
            asks,
            scheme: url.scheme,
            destination: self.destination(url)?,
            way: Way { announcement: self.announcement, tunnel, tls },
        })
    }

    fn destination(&self, url: &Url) -> Result<Destination, DialError> {
        if let Some(path) = &self.unix {
            return Destination::unix(path, &self.policy);
        }
        let of = |url: &Url| Name { host: url.host.clone(), port: url.port };
        let name = self.connect_to.clone().unwrap_or_else(|| of(self.proxy.as_ref().unwrap_or(url)));
        Destination::tcp(name, (self.family, self.sources.as_ref()), &self.policy)
    }
}

fn proxy(text: &str) -> Result<Url, DialError> {
    let url: Url = text.parse().map_err(DialError::Proxy)?;
    match url.scheme {
        Scheme::Http => Ok(url),
        Scheme::Https => {
            let expected = "the address of a proxy that begins with http://".to_owned();
            Err(SettingError::NotAllowed { name: "proxy".to_owned(), expected, given: text.to_owned() }.into())
        }
    }
}
