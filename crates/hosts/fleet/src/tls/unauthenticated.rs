//! Connections that have not sent the token yet: limited in total and per address prefix, so that one source cannot lock others out.

use std::{
    io::Write,
    net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The maximum number of unauthenticated connections: each costs a thread.
const UNAUTHENTICATED_MAX: usize = 32;
/// The maximum number per prefix.
const PER_PREFIX_MAX: usize = 8;
/// A fatal TLS alert before key agreement (RFC 8446 section 6): `user_canceled`, which rustls itself never sends.
const REJECT_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 90];

/// A connection that has not sent the token yet.
#[derive(Debug)]
struct UnauthenticatedConnection {
    tcp: Arc<TcpStream>,
    prefix: IpAddr,
}

/// All unauthenticated connections, oldest first.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedConnections(Mutex<Vec<UnauthenticatedConnection>>);

/// The slot of an unauthenticated connection, released on drop.
#[derive(Debug)]
pub(super) struct UnauthenticatedSlot {
    connections: Arc<UnauthenticatedConnections>,
    tcp: Arc<TcpStream>,
}

impl UnauthenticatedConnections {
    /// Admits one more unauthenticated connection, and evicts one if there are too many; returns whether one was evicted.
    pub(super) fn admit(self: &Arc<Self>, tcp: &Arc<TcpStream>, from: SocketAddr) -> (UnauthenticatedSlot, bool) {
        let mut all = self.lock();
        let place = prefix_of(from.ip());
        let places: Vec<IpAddr> = all.iter().map(|stranger| stranger.prefix).collect();
        let oldest = evicted(&places, place).map(|idx| all.remove(idx));
        all.push(UnauthenticatedConnection { tcp: Arc::clone(tcp), prefix: place });
        drop(all);
        if let Some(oldest) = &oldest {
            // A connection that is already gone needs no alert.
            let _ = (&*oldest.tcp).write(&REJECT_ALERT);
            let _ = oldest.tcp.shutdown(Shutdown::Both);
        }
        (UnauthenticatedSlot { connections: Arc::clone(self), tcp: Arc::clone(tcp) }, oldest.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<UnauthenticatedConnection>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnauthenticatedSlot {
    fn drop(&mut self) {
        self.connections.lock().retain(|stranger| !Arc::ptr_eq(&stranger.tcp, &self.tcp));
    }
}

/// Returns the prefix that a single party usually controls: one IPv4 address, or an IPv6 /64.
fn prefix_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Returns the connection to evict for a new one from `place`, if any.
///
/// It is the oldest one from `place` if that prefix is at its limit, or else, if all slots are taken, the oldest one from the prefix with
/// the most connections.
fn evicted(places: &[IpAddr], place: IpAddr) -> Option<usize> {
    let share = |place: IpAddr| places.iter().filter(|other| **other == place).count();
    let fullest = || places.iter().copied().max_by_key(|place| share(*place));
    let from = if share(place) >= PER_PREFIX_MAX {
        place
    } else if places.len() >= UNAUTHENTICATED_MAX {
        fullest()?
    } else {
        return None;
    };
    places.iter().position(|other| *other == from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        prefix_of(text.parse().unwrap())
    }

    #[test]
    fn neighbours_of_version_6_share_one_place_and_addresses_of_version_4_have_one_each() {
        assert_eq!(address("2001:db8:1:2::7"), address("2001:db8:1:2:ffff::1"));
        assert_ne!(address("2001:db8:1:2::7"), address("2001:db8:1:3::7"));
        assert_eq!(address("::ffff:198.18.0.7"), address("198.18.0.7"));
        assert_ne!(address("198.18.0.7"), address("198.18.0.8"));
    }

    #[test]
    fn a_crowd_from_one_place_gives_way_to_itself_and_a_full_door_to_anyone() {
        let (crowd, other) = (address("198.18.0.3"), address("198.18.0.1"));
        assert_eq!(evicted(&[], crowd), None);
        let mut places = vec![other];
        places.extend([crowd; PER_PREFIX_MAX]);
        assert_eq!(evicted(&places, crowd), Some(1), "its own oldest");
        assert_eq!(evicted(&places, other), None, "there is room for others");
        let many: Vec<IpAddr> = (0..30).map(|n| IpAddr::from([198, 18, 1, n])).chain([crowd, crowd]).collect();
        assert_eq!(many.len(), UNAUTHENTICATED_MAX);
        assert_eq!(evicted(&many, other), Some(30), "the oldest of the fullest place");
    }
}
