//! One worker's view of a [`TargetConfig`]: its position in the rotations, the age of lookups, and its TLS sessions.

use std::{net::IpAddr, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{policy::Destination as Permitted, socket::Socket};

use super::{
    Channel, ConnectEndpoints, ConnectFault, DnsRefresh, SourceRotation, TargetConfig, TargetConfigError,
    channel::ChannelConfig,
    destination::Destination,
    lookups::{LookupAnswer, LookupOwner, LookupThreads},
};

/// The destination of a connection, if it is known yet.
#[derive(Debug)]
pub enum NextAddress {
    Ready(ConnectEndpoints),
    /// The name is being looked up; [`Resolver::next_lookup`] will return the result.
    LookupPending,
}

#[derive(Debug)]
pub enum LookupResult {
    Connection {
        /// The token given to [`Resolver::next`].
        token: u32,
        /// The duration of the lookup.
        took: Nanos,
        /// The destination of the connection.
        endpoints: Result<ConnectEndpoints, ConnectFault>,
    },
    /// For a route whose addresses had expired; the old ones stay if the lookup failed.
    Route {
        /// The duration of the lookup.
        took: Nanos,
        /// Whether the lookup succeeded.
        outcome: Result<(), ConnectFault>,
    },
}

/// The addresses of one route.
#[derive(Debug)]
struct RouteAddresses {
    found: Vec<Permitted>,
    next: usize,
    /// The addresses expire at this time.
    good_until: Option<Nanos>,
    is_lookup_pending: bool,
}

/// Chooses the destinations of one worker's connections.
#[derive(Debug)]
pub struct Resolver {
    config: Arc<TargetConfig>,
    addresses: Vec<RouteAddresses>,
    channel_configs: Vec<ChannelConfig>,
    source_rotation: Option<SourceRotation>,
    lookups: Option<LookupThreads>,
}

impl Resolver {
    pub(super) fn new(
        target_config: &Arc<TargetConfig>,
        idx: usize,
        n_workers: usize,
    ) -> Result<Self, TargetConfigError> {
        let addresses = target_config.upstreams.iter().map(|route| {
            let found = match &route.destination {
                Destination::Tcp(tcp) => tcp.addresses.clone(),
                Destination::Unix(_) => Vec::new(),
            };
            RouteAddresses { next: idx % found.len().max(1), found, good_until: None, is_lookup_pending: false }
        });
        let ways = target_config.upstreams.iter().map(|route| {
            let tls = route.channel_config.tls.as_ref().zip(target_config.tls.as_ref());
            ChannelConfig {
                tls: tls.map(|((_, name), tls)| (tls.worker_config(), name.clone())),
                ..route.channel_config.clone()
            }
        });
        let is_looked_up =
            |destination: &Destination| matches!(destination, Destination::Tcp(tcp) if !tcp.name.is_address());
        let may_ask = target_config.dns_refresh != DnsRefresh::Once
            && target_config.upstreams.iter().any(|route| is_looked_up(&route.destination));
        Ok(Self {
            addresses: addresses.collect(),
            channel_configs: ways.collect(),
            source_rotation: target_config
                .sources
                .as_ref()
                .map(|sources| sources.rotation(idx as u64, n_workers as u64)),
            lookups: may_ask.then(|| LookupThreads::start(&target_config.policy)).transpose()?,
            config: Arc::clone(target_config),
        })
    }

    /// Returns the destination of the next connection of a route.
    pub fn next(&mut self, route: usize, token: u32, now: Nanos) -> NextAddress {
        let tcp = match &self.config.upstreams[route].destination {
            Destination::Unix(address) => {
                return NextAddress::Ready(ConnectEndpoints { address: address.clone(), source: None });
            }
            Destination::Tcp(tcp) => tcp,
        };
        let lookups = self.lookups.as_ref().filter(|_| !tcp.name.is_address());
        match (lookups, self.config.dns_refresh) {
            (Some(lookups), DnsRefresh::Connection) => {
                lookups.ask(LookupOwner::Connection(token, route), tcp.name.clone());
                return NextAddress::LookupPending;
            }
            (Some(lookups), DnsRefresh::For(span)) => {
                let addresses = &mut self.addresses[route];
                let good_until = *addresses.good_until.get_or_insert(now + span);
                if now >= good_until && !addresses.is_lookup_pending {
                    addresses.is_lookup_pending = true;
                    lookups.ask(LookupOwner::Route(route), tcp.name.clone());
                }
            }
            _ => {}
        }
        let addresses = &mut self.addresses[route];
        let address = addresses.found[addresses.next % addresses.found.len()].clone();
        addresses.next = (addresses.next + 1) % addresses.found.len();
        NextAddress::Ready(connect_endpoints(address, self.source_rotation.as_mut(), self.config.local_address))
    }

    /// Returns true if the connections of a route may go to several addresses.
    pub fn has_several_addresses(&self, route: usize) -> bool {
        self.addresses[route].found.len() > 1 || self.lookups.is_some()
    }

    /// Returns, once, a socket that becomes readable when [`Resolver::next_lookup`] has results. `None` if names are not looked up again.
    pub fn take_waker(&mut self) -> Option<Socket> {
        self.lookups.as_mut().and_then(LookupThreads::take_waker)
    }

    /// Returns the next result of a lookup, if any. Each [`NextAddress::LookupPending`] gets one.
    pub fn next_lookup(&mut self, now: Nanos) -> Option<LookupResult> {
        let LookupAnswer { owner: asker, found, took } = self.lookups.as_ref()?.next()?;
        let (LookupOwner::Connection(_, route) | LookupOwner::Route(route)) = asker;
        let fault = found.as_ref().err().map_or(ConnectFault::Unresolved, ConnectFault::of_lookup);
        let usable = match &self.config.upstreams[route].destination {
            Destination::Tcp(tcp) => tcp.filter_usable(found.unwrap_or_default()),
            Destination::Unix(_) => Vec::new(),
        };
        Some(match asker {
            LookupOwner::Connection(token, _) => {
                let addresses = &mut self.addresses[route];
                addresses.next = addresses.next.wrapping_add(1);
                let chosen = usable.get(addresses.next % usable.len().max(1)).cloned();
                let place = chosen.map(|address| {
                    connect_endpoints(address, self.source_rotation.as_mut(), self.config.local_address)
                });
                LookupResult::Connection { token, took, endpoints: place.ok_or(fault) }
            }
            LookupOwner::Route(_) => {
                let is_found = !usable.is_empty();
                let addresses = &mut self.addresses[route];
                (addresses.is_lookup_pending, addresses.good_until) = (false, None);
                if let (true, DnsRefresh::For(span)) = (is_found, self.config.dns_refresh) {
                    (addresses.found, addresses.good_until) = (usable, Some(now + span));
                }
                LookupResult::Route { took, outcome: if is_found { Ok(()) } else { Err(fault) } }
            }
        })
    }

    /// Creates the channel of a connection of this route; call this when the socket is connected.
    ///
    /// # Errors
    /// [`ConnectFault::Tls`], if TLS cannot begin.
    pub fn channel(&self, route: usize) -> Result<Channel, ConnectFault> {
        self.channel_configs[route].open_channel()
    }
}

fn connect_endpoints(address: Permitted, turns: Option<&mut SourceRotation>, own: Option<IpAddr>) -> ConnectEndpoints {
    let source = address.address().and_then(|to| match turns {
        Some(turns) => turns.next_for(to.ip()),
        None => own.filter(|own| can_reach(*own, to.ip())),
    });
    ConnectEndpoints { address, source }
}

/// Whether packets from an own address can reach `target`. Loopback addresses reach no other host.
fn can_reach(own: IpAddr, target: IpAddr) -> bool {
    own.is_ipv4() == target.is_ipv4() && !own.is_loopback() && !target.is_loopback()
}
