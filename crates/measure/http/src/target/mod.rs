//! Everything about connections and requests that is known before the first packet.
//!
//! Options become a [`TargetConfig`], created once and shared. Each worker has its own [`Resolver`], which chooses the
//! destination of the next connection. A [`Channel`] carries the connection from the socket to HTTP, and a [`WeightedRequest`] is
//! sent on it. This module knows no event loop: it resolves names and reads files before the start and does no I/O afterwards,
//! except that the resolver's threads look names up again.

mod channel;
mod destination;
mod error;
mod fault;
mod lookups;
pub mod options;
mod proxy;
mod request_template;
mod resolver;
mod session_cache;
mod sources;
mod tls;
mod tls_parameters;
mod weighted_order;
mod weighted_urls;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use channel::ChannelConfig;
pub use channel::{Channel, ChannelSetup, ChannelState, TlsBuffers};
use destination::Destination;
pub use destination::{AddressFamily, ConnectEndpoints, DnsRefresh, HostPort};
pub use error::TargetConfigError;
use fathom_engine::{Consent, Error, NamedTarget};
use fathom_model::{Note, Settings, settings::SettingError, units::Bytes};
use fathom_sys::{policy::Policy, socket};
pub use fault::{ConnectFault, ProxyFault, RequestStage, TlsFault};
use proxy::ProxyTunnel;
pub use proxy::{ConnectionAddresses, ProxyProtocol};
use request_template::{RequestTemplate, TargetForm, authorization};
pub use resolver::{LookupResult, NextAddress, Resolver};
pub use sources::{SourceAddresses, SourceRotation};
use tls::TlsConfig;
pub use tls::{AcceptAnyCertificate, system_roots};
pub use tls_parameters::TlsParameters;
pub use weighted_order::WeightedOrder;
use weighted_urls::WeightedUrl;

use crate::{
    h1::{HeadReader, Method},
    url::{Scheme, Url},
};

/// A request with its weight relative to the other requests of its route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedRequest {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// At least 1.
    pub weight: u64,
}

/// A server, the route to it, and its requests.
#[derive(Debug)]
pub struct Upstream {
    /// `https://host:port`, for display.
    pub name: String,
    /// The sum of the weights of the requests.
    pub weight: u64,
    /// At least one.
    pub requests: Vec<WeightedRequest>,
    /// The rotation of the requests; workers clone it.
    pub request_order: WeightedOrder,
    scheme: Scheme,
    destination: Destination,
    channel_config: ChannelConfig,
}

impl Upstream {
    /// Whether requests and answers pass through the socket unchanged once a channel is ready.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.scheme == Scheme::Http
    }

    /// Whether connections to all addresses leave from `own` without a bind.
    fn leaves_from(&self, own: IpAddr) -> bool {
        let Destination::Tcp(tcp) = &self.destination else { return true };
        tcp.addresses.iter().all(|to| socket::source_towards(to).is_ok_and(|source| source == own))
    }
}

/// The destinations of a test's connections and its requests; created once and shared by the workers.
#[derive(Debug)]
pub struct TargetConfig {
    /// One for each server, at least one.
    pub upstreams: Vec<Upstream>,
    /// For each URL, in order, the index of its route.
    pub upstream_of_url: Vec<u16>,
    /// The rotation of the routes, which distributes connections or arrivals.
    pub upstream_order: WeightedOrder,
    /// How answers are read.
    pub method: Method,
    /// The longest head of an answer; `None` means the default of the reader.
    head_max: Option<Bytes>,
    /// The most requests per connection.
    pub requests_per_connection: Option<u64>,
    /// Notes to add to the result.
    pub notes: Vec<Note>,
    dns_refresh: DnsRefresh,
    sources: Option<SourceAddresses>,
    /// The address of the role, used for servers that it can reach.
    local_address: Option<IpAddr>,
    tls: Option<TlsConfig>,
    /// Judges later lookups.
    policy: Policy,
}

/// The options that apply to the routes of all servers.
struct TargetOptions {
    template: RequestTemplate,
    proxy_protocol: Option<ProxyProtocol>,
    proxy: Option<Url>,
    unix: Option<String>,
    connect_to: Option<HostPort>,
    family: AddressFamily,
    sources: Option<SourceAddresses>,
    tls: Option<TlsConfig>,
    policy: Policy,
}

impl TargetConfig {
    /// Reads the options and the files that they name, and looks up the names.
    ///
    /// Without the option `url`, `ours` is the address of fathom's own responder. `own` is the role's address, to send from.
    ///
    /// # Errors
    /// The first problem that would keep the load from its target, with its place.
    pub fn prepare(
        (settings, policy): (&Settings, &Policy),
        ours: Option<SocketAddr>,
        own: Option<IpAddr>,
    ) -> Result<Self, TargetConfigError> {
        let targets = match (WeightedUrl::all(settings)?, ours) {
            (Some(targets), _) => targets,
            (None, Some(ours)) => vec![WeightedUrl { weight: 1, url: responder_url(settings, ours) }],
            (None, None) => return Err(TargetConfigError::MissingOption { one: "path", other: "url" }),
        };
        let has_tls = targets.iter().any(|target| target.url.scheme == Scheme::Https);
        // The certificate of fathom's own responder is made for one trial, and no issuer signs it.
        let is_ours = settings.text("url").is_none();
        let plan = if is_ours { &settings.clone().with("insecure", "true") } else { settings };
        let plan = TargetOptions::from((plan, policy), has_tls)?;
        let (servers, places) = weighted_urls::group_by_server(targets);
        let routes: Vec<Upstream> = servers.iter().map(|server| plan.upstream(server)).collect::<Result<_, _>>()?;
        let dns_refresh = DnsRefresh::from(settings)?;
        // A bind costs two system calls for each connection, so it is left out where the kernel chooses this address anyway.
        let is_kernels =
            |own: &IpAddr| dns_refresh == DnsRefresh::Once && routes.iter().all(|route| route.leaves_from(*own));
        let local_address = own.filter(|own| !is_kernels(own));
        let weights: Vec<u64> = routes.iter().map(|route| route.weight).collect();
        let unverified = || Note::new("tls-insecure", "certificates were not verified, so the answers may be anyone's");
        Ok(Self {
            upstream_order: WeightedOrder::new(&weights)?,
            method: plan.template.method(),
            head_max: settings.size("max-head"),
            requests_per_connection: settings.count("per-connection"),
            notes: (has_tls && settings.flag("insecure")).then(unverified).into_iter().collect(),
            dns_refresh,
            sources: plan.sources,
            local_address,
            tls: plan.tls,
            policy: policy.clone(),
            upstream_of_url: places,
            upstreams: routes,
        })
    }

    /// Creates a reader of the answers to requests of this method.
    #[must_use]
    pub fn head_reader(&self, method: Method) -> HeadReader {
        let reader = HeadReader::new(method);
        match self.head_max {
            Some(max) => reader.bounded(max),
            None => reader,
        }
    }

    /// Creates the resolver of worker `idx` of `n_workers`. Workers start at different points of the addresses and patterns.
    ///
    /// # Errors
    /// [`TargetConfigError::Lookups`], if names must be looked up again and threads cannot be created.
    pub fn resolver(self: &Arc<Self>, idx: usize, n_workers: usize) -> Result<Resolver, TargetConfigError> {
        Resolver::new(self, idx, n_workers)
    }
}

/// The destinations of the packets of a test with these options, which may differ from its URLs. Empty for a unix socket or without a URL.
///
/// # Errors
/// The first option that names no destination.
fn named_targets(settings: &Settings) -> Result<Vec<HostPort>, TargetConfigError> {
    let of = |url: &Url| HostPort { host: url.host.clone(), port: url.port };
    let targets = WeightedUrl::all(settings)?.unwrap_or_default();
    if settings.text("unix").is_some() {
        return Ok(Vec::new());
    }
    if let Some(text) = settings.text("connect-to") {
        return Ok(vec![HostPort::parse("connect-to", &text)?]);
    }
    if let Some(text) = settings.text("proxy") {
        return Ok(vec![of(&proxy(&text)?)]);
    }
    let mut names: Vec<HostPort> = Vec::new();
    for name in targets.iter().map(|target| of(&target.url)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The same in the form that a kind of test reports.
///
/// # Errors
/// A URL or an address is invalid.
pub fn destinations(settings: &Settings) -> Result<Vec<NamedTarget>, Error> {
    let targets =
        named_targets(settings).map_err(|error| Error::BadRequest { what: error.to_string(), hint: error.hint() })?;
    let target = |HostPort { host, port }| NamedTarget { host, port: Some(port), consent: Consent::AllowList };
    Ok(targets.into_iter().map(target).collect())
}

/// The URL of fathom's own responder.
fn responder_url(settings: &Settings, ours: SocketAddr) -> Url {
    let is_tls = settings.text("scheme").as_deref() == Some("https");
    Url {
        scheme: if is_tls { Scheme::Https } else { Scheme::Http },
        host: ours.ip().to_string(),
        port: ours.port(),
        target: "/".to_owned(),
        user: None,
    }
}

impl TargetOptions {
    fn from((settings, policy): (&Settings, &Policy), has_tls: bool) -> Result<Self, TargetConfigError> {
        let excluded = [("unix", "proxy"), ("unix", "connect-to"), ("unix", "source"), ("connect-to", "proxy")];
        let is_given = |name: &str| settings.text(name).is_some();
        if let Some((one, other)) = excluded.into_iter().find(|(one, other)| is_given(one) && is_given(other)) {
            return Err(TargetConfigError::ExclusiveOptions { one, other });
        }
        let sources = settings.text("source").map(|text| SourceAddresses::parse(&text)).transpose()?;
        if let Some(sources) = &sources {
            sources.check()?;
        }
        Ok(Self {
            template: RequestTemplate::from((settings, policy))?,
            proxy_protocol: settings.text("proxy-protocol").map(|version| match version.as_str() {
                "v1" => ProxyProtocol::V1,
                _ => ProxyProtocol::V2,
            }),
            proxy: settings.text("proxy").map(|url| proxy(&url)).transpose()?,
            unix: settings.text("unix"),
            connect_to: settings.text("connect-to").map(|text| HostPort::parse("connect-to", &text)).transpose()?,
            family: AddressFamily::from(settings),
            sources,
            tls: has_tls.then(|| TlsConfig::from((settings, policy))).transpose()?,
            policy: policy.clone(),
        })
    }

    fn upstream(&self, targets: &[WeightedUrl]) -> Result<Upstream, TargetConfigError> {
        let url = &targets[0].url;
        let form = match (&self.proxy, url.scheme) {
            (Some(proxy), Scheme::Http) => {
                let user = proxy.user.as_ref().map(|user| authorization("Proxy-Authorization", user));
                TargetForm::Absolute(user.transpose()?)
            }
            _ => TargetForm::Origin,
        };
        let tunnel = match (&self.proxy, url.scheme) {
            (Some(proxy), Scheme::Https) => Some(Arc::new(ProxyTunnel::new(proxy, url)?)),
            _ => None,
        };
        let ask = |target: &WeightedUrl| {
            let request = self.template.request(&target.url, &form)?;
            Ok(WeightedRequest { bytes: request, weight: target.weight })
        };
        let asks: Vec<WeightedRequest> = targets.iter().map(ask).collect::<Result<_, TargetConfigError>>()?;
        let weights: Vec<u64> = asks.iter().map(|ask| ask.weight).collect();
        let tls = self.tls.as_ref().filter(|_| url.scheme == Scheme::Https);
        let tls = tls.map(|tls| Ok::<_, TargetConfigError>((tls.worker_config(), tls.name(&url.host)?))).transpose()?;
        Ok(Upstream {
            name: format!("{}://{}", url.scheme.name(), url.authority()),
            weight: weights.iter().sum(),
            request_order: WeightedOrder::new(&weights)?,
            requests: asks,
            scheme: url.scheme,
            destination: self.destination(url)?,
            channel_config: ChannelConfig { proxy_protocol: self.proxy_protocol, tunnel, tls },
        })
    }

    fn destination(&self, url: &Url) -> Result<Destination, TargetConfigError> {
        if let Some(path) = &self.unix {
            return Destination::unix(path, &self.policy);
        }
        let of = |url: &Url| HostPort { host: url.host.clone(), port: url.port };
        let name = self.connect_to.clone().unwrap_or_else(|| of(self.proxy.as_ref().unwrap_or(url)));
        Destination::tcp(name, (self.family, self.sources.as_ref()), &self.policy)
    }
}

fn proxy(text: &str) -> Result<Url, TargetConfigError> {
    let url: Url = text.parse().map_err(TargetConfigError::Proxy)?;
    match url.scheme {
        Scheme::Http => Ok(url),
        Scheme::Https => {
            let expected = "the address of a proxy that begins with http://".to_owned();
            Err(SettingError::NotAllowed { name: "proxy".to_owned(), expected, given: text.to_owned() }.into())
        }
    }
}
