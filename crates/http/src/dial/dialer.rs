//! One worker's share of a [`Dialing`]: whose turn it is, which answers of the resolver are still good, which sessions there are.

use std::{net::IpAddr, sync::Arc};

use fathom_model::units::Nanos;
use fathom_sys::{policy::Destination as Permitted, socket::Socket};

use super::{
    Channel, DialError, Dialing, Fault, Freshness, Place, Turns,
    channel::Way,
    destination::Destination,
    lookups::{Answer, Asker, Lookups},
};

/// Where a connection goes, or that this is not known yet.
#[derive(Debug)]
pub enum Next {
    /// There.
    Ready(Place),
    /// The name is looked up; the answer comes by [`Dialer::looked_up`].
    Asked,
}

/// What became of a lookup.
#[derive(Debug)]
pub enum LookedUp {
    /// That of a connection.
    Place {
        /// As it was given to [`Dialer::next`].
        token: u32,
        /// How long it took.
        took: Nanos,
        /// Where the connection goes.
        place: Result<Place, Fault>,
    },
    /// That of a route whose addresses had become old; the old ones stay if there are no new ones.
    Renewed {
        /// How long it took.
        took: Nanos,
        /// Whether there are addresses.
        outcome: Result<(), Fault>,
    },
}

/// The addresses of one route.
#[derive(Debug)]
struct Addresses {
    found: Vec<Permitted>,
    next: usize,
    /// From then on they are old.
    good_until: Option<Nanos>,
    is_asked: bool,
}

/// One worker's own way to say where connections go.
#[derive(Debug)]
pub struct Dialer {
    dialing: Arc<Dialing>,
    addresses: Vec<Addresses>,
    ways: Vec<Way>,
    turns: Option<Turns>,
    lookups: Option<Lookups>,
}

impl Dialer {
    pub(super) fn new(dialing: &Arc<Dialing>, idx: usize, n_workers: usize) -> Result<Self, DialError> {
        let addresses = dialing.routes.iter().map(|route| {
            let found = match &route.destination {
                Destination::Tcp(tcp) => tcp.addresses.clone(),
                Destination::Unix(_) => Vec::new(),
            };
            Addresses { next: idx % found.len().max(1), found, good_until: None, is_asked: false }
        });
        let ways = dialing.routes.iter().map(|route| {
            let tls = route.way.tls.as_ref().zip(dialing.tls.as_ref());
            Way { tls: tls.map(|((_, name), tls)| (tls.of_worker(), name.clone())), ..route.way.clone() }
        });
        let is_looked_up =
            |destination: &Destination| matches!(destination, Destination::Tcp(tcp) if !tcp.name.is_address());
        let may_ask =
            dialing.freshness != Freshness::Once && dialing.routes.iter().any(|route| is_looked_up(&route.destination));
        Ok(Self {
            addresses: addresses.collect(),
            ways: ways.collect(),
            turns: dialing.sources.as_ref().map(|sources| sources.turns(idx as u64, n_workers as u64)),
            lookups: may_ask.then(|| Lookups::start(&dialing.policy)).transpose()?,
            dialing: Arc::clone(dialing),
        })
    }

    /// Where the next connection of a route goes.
    pub fn next(&mut self, route: usize, token: u32, now: Nanos) -> Next {
        let tcp = match &self.dialing.routes[route].destination {
            Destination::Unix(address) => return Next::Ready(Place { address: address.clone(), source: None }),
            Destination::Tcp(tcp) => tcp,
        };
        let lookups = self.lookups.as_ref().filter(|_| !tcp.name.is_address());
        match (lookups, self.dialing.freshness) {
            (Some(lookups), Freshness::Connection) => {
                lookups.ask(Asker::Connection(token, route), tcp.name.clone());
                return Next::Asked;
            }
            (Some(lookups), Freshness::For(span)) => {
                let addresses = &mut self.addresses[route];
                let good_until = *addresses.good_until.get_or_insert(now + span);
                if now >= good_until && !addresses.is_asked {
                    addresses.is_asked = true;
                    lookups.ask(Asker::Route(route), tcp.name.clone());
                }
            }
            _ => {}
        }
        let addresses = &mut self.addresses[route];
        let address = addresses.found[addresses.next % addresses.found.len()].clone();
        addresses.next = (addresses.next + 1) % addresses.found.len();
        Next::Ready(place(address, self.turns.as_mut(), self.dialing.own))
    }

    /// A socket to be watched: when it can be read from, [`Dialer::looked_up`] has news. Given once, if names are looked up at all.
    pub fn bell(&mut self) -> Option<Socket> {
        self.lookups.as_mut().and_then(Lookups::bell)
    }

    /// The next answer to a lookup, until there is none; every [`Next::Asked`] gets one.
    pub fn looked_up(&mut self, now: Nanos) -> Option<LookedUp> {
        let Answer { asker, found, took } = self.lookups.as_ref()?.next()?;
        let (Asker::Connection(_, route) | Asker::Route(route)) = asker;
        let fault = found.as_ref().err().map_or(Fault::Unresolved, Fault::of_lookup);
        let usable = match &self.dialing.routes[route].destination {
            Destination::Tcp(tcp) => tcp.usable(found.unwrap_or_default()),
            Destination::Unix(_) => Vec::new(),
        };
        Some(match asker {
            Asker::Connection(token, _) => {
                let addresses = &mut self.addresses[route];
                addresses.next = addresses.next.wrapping_add(1);
                let chosen = usable.get(addresses.next % usable.len().max(1)).cloned();
                let place = chosen.map(|address| place(address, self.turns.as_mut(), self.dialing.own));
                LookedUp::Place { token, took, place: place.ok_or(fault) }
            }
            Asker::Route(_) => {
                let is_found = !usable.is_empty();
                let addresses = &mut self.addresses[route];
                (addresses.is_asked, addresses.good_until) = (false, None);
                if let (true, Freshness::For(span)) = (is_found, self.dialing.freshness) {
                    (addresses.found, addresses.good_until) = (usable, Some(now + span));
                }
                LookedUp::Renewed { took, outcome: if is_found { Ok(()) } else { Err(fault) } }
            }
        })
    }

    /// What carries a connection of this route from its socket to HTTP; to be opened when the socket is connected.
    ///
    /// # Errors
    /// [`Fault::Tls`], when TLS cannot begin.
    pub fn channel(&self, route: usize) -> Result<Channel, Fault> {
        self.ways[route].channel()
    }
}

fn place(address: Permitted, turns: Option<&mut Turns>, own: Option<IpAddr>) -> Place {
    let source = address.address().and_then(|to| match turns {
        Some(turns) => turns.turn(to.ip()),
        None => own.filter(|own| reaches(*own, to.ip())),
    });
    Place { address, source }
}

/// Whether packets from an own address can go to `target`: the loopback's reach no other host.
fn reaches(own: IpAddr, target: IpAddr) -> bool {
    own.is_ipv4() == target.is_ipv4() && !own.is_loopback() && !target.is_loopback()
}
