//! What happens to segments on their way.

use std::collections::BTreeMap;

use super::Packet;

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// To the server.
    Server,
    /// To us.
    Client,
}

/// What a channel does to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Weather {
    /// How many of 1,000 are lost.
    pub(super) lost: u32,
    /// How many of 1,000 arrive twice.
    pub(super) doubled: u32,
    /// A packet takes up to so many nanoseconds longer than another one.
    pub(super) jitter: u64,
}

impl Weather {
    /// Nothing is lost, doubled or reordered.
    pub(super) fn is_clean(self) -> bool {
        self == Self::default()
    }
}

/// The packets under way, by the time of their arrival.
#[derive(Debug)]
pub(super) struct LossyChannel {
    weather: Weather,
    random: fastrand::Rng,
    n_sent: u64,
    under_way: BTreeMap<(u64, u64), (Side, Packet)>,
}

/// The least time of a packet on its way, in nanoseconds.
const DELAY: u64 = 20_000;

impl LossyChannel {
    pub(super) fn new(weather: Weather, random: fastrand::Rng) -> Self {
        Self { weather, random, n_sent: 0, under_way: BTreeMap::new() }
    }

    pub(super) fn send(&mut self, to: Side, packet: Packet, now: u64) {
        let copies = if self.random.u32(..1_000) < self.weather.doubled { 2 } else { 1 };
        for _ in 0..copies {
            let jitter = self.random.u64(..=self.weather.jitter);
            self.n_sent += 1;
            if self.random.u32(..1_000) >= self.weather.lost {
                self.under_way.insert((now + DELAY + jitter, self.n_sent), (to, packet));
            }
        }
    }

    /// When the next packet arrives.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.under_way.keys().next().map(|(at, _)| *at)
    }

    pub(super) fn take(&mut self) -> Option<(Side, Packet)> {
        self.under_way.pop_first().map(|(_, arrived)| arrived)
    }
}
