//! The share of each queue of all interfaces whose drivers count packets by queue.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use fathom_model::{
    names::host::DEV_RX_BYTES,
    units::{Nanos, approximate, ratio},
};
use fathom_sys::netlink::ethtool::Device;
use serde::{Deserialize, Serialize};

use crate::{
    pace::ReadingPace,
    queue_names::{Direction, queue_of},
    samples::Samples,
};

/// A person does not read faster.
const READ_EVERY: Nanos = Nanos::from_millis(900);
/// The most interfaces that are asked: a host has few devices, and many ends of pairs that have no queues.
const INTERFACES_MAX: usize = 64;

/// A queue of an interface, and its part of the packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueShare {
    /// The interface.
    pub interface: String,
    /// `rx` or `tx`.
    pub direction: Cow<'static, str>,
    /// The number of the queue, from 0.
    pub queue: u32,
    /// Packets per second in the interval of the two newest readings.
    pub packets_pps: f64,
    /// Their share of all packets of this direction, from 0 to 1; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// The packets of each queue of an interface at one time.
type QueueCounts = BTreeMap<(Direction, u32), u64>;

/// Reads the drivers' counters of queues.
pub(crate) struct QueueReadings {
    /// The clock of the CPU time of this thread.
    cpu: fn() -> Nanos,
    pace: ReadingPace,
    before: Option<(Nanos, BTreeMap<String, QueueCounts>)>,
    /// Interfaces without several queues that are counted; they are not asked again.
    silent: BTreeSet<String>,
    shares: Vec<QueueShare>,
}

impl QueueReadings {
    /// Creates readings of the network namespace of this thread; `cpu` is the clock of its CPU time.
    pub(crate) fn new(cpu: fn() -> Nanos) -> Self {
        let pace = ReadingPace::new(READ_EVERY);
        Self { cpu, pace, before: None, silent: BTreeSet::new(), shares: Vec::new() }
    }

    /// Reads all interfaces of the newest sample, if that is due; `now` is the monotonic clock.
    pub(crate) fn read(&mut self, now: Nanos, samples: &Samples) {
        if !self.pace.is_due(now) {
            return;
        }
        let began = (self.cpu)();
        let newest = samples.rows().back();
        let is_there = |place: usize| newest.is_some_and(|row| row.values.get(place).is_some_and(Option::is_some));
        let keys = samples.keys().iter().enumerate();
        let interfaces = keys.filter(|(place, key)| key.name == DEV_RX_BYTES && key.of != "lo" && is_there(*place));
        let mut counts = BTreeMap::new();
        for (_, key) in interfaces.take(INTERFACES_MAX) {
            if self.silent.contains(&key.of) {
                continue;
            }
            match queue_counts(&key.of) {
                Some(found) if has_several(&found) => drop(counts.insert(key.of.clone(), found)),
                _ => drop(self.silent.insert(key.of.clone())),
            }
        }
        if let Some((before_at, before)) = &self.before {
            let seconds = now.since(*before_at).as_secs_f64();
            self.shares =
                counts.iter().flat_map(|(name, later)| shares(name, before.get(name), later, seconds)).collect();
        }
        self.before = Some((now, counts));
        self.pace.took(now, (self.cpu)().since(began));
    }

    /// The queues between the two newest readings, by interface, direction and number.
    pub(crate) fn shares(&self) -> &[QueueShare] {
        &self.shares
    }
}

fn queue_counts(interface: &str) -> Option<QueueCounts> {
    let statistics = Device::open(interface).and_then(|device| device.statistics()).ok()?;
    Some(statistics.into_iter().filter_map(|(name, value)| Some((queue_of(&name)?, value))).collect())
}

/// Returns true if a direction has more than one queue: the share of a single one says nothing.
fn has_several(counts: &QueueCounts) -> bool {
    [Direction::Rx, Direction::Tx].iter().any(|way| counts.keys().filter(|(of, _)| of == way).count() > 1)
}

fn shares(interface: &str, before: Option<&QueueCounts>, later: &QueueCounts, seconds: f64) -> Vec<QueueShare> {
    let Some(before) = before.filter(|_| seconds > 0.0) else { return Vec::new() };
    let growth = |(queue, value): (&(Direction, u32), &u64)| {
        let past = before.get(queue)?;
        Some((*queue, value.saturating_sub(*past)))
    };
    let grown: Vec<((Direction, u32), u64)> = later.iter().filter_map(growth).collect();
    let all = |way: Direction| grown.iter().filter(|((of, _), _)| *of == way).map(|(_, n)| n).sum::<u64>();
    let share = |((way, queue), n): &((Direction, u32), u64)| QueueShare {
        interface: interface.to_owned(),
        direction: way.word().into(),
        queue: *queue,
        packets_pps: approximate(*n) / seconds,
        share: ratio(*n, all(*way)),
    };
    grown.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_queue_is_of_its_direction_and_a_new_queue_waits_for_its_second_reading() {
        use Direction::{Rx, Tx};
        let before: QueueCounts = [((Rx, 0), 100), ((Rx, 1), 100), ((Tx, 0), 7)].into();
        let later: QueueCounts = [((Rx, 0), 190), ((Rx, 1), 110), ((Tx, 0), 7), ((Tx, 1), 5)].into();
        let found: Vec<_> = shares("eth0", Some(&before), &later, 2.0)
            .into_iter()
            .map(|queue| (queue.direction.into_owned(), queue.queue, queue.packets_pps, queue.share))
            .collect();
        assert_eq!(
            found,
            [
                ("rx".to_owned(), 0, 45.0, Some(0.9)),
                ("rx".to_owned(), 1, 5.0, Some(0.1)),
                ("tx".to_owned(), 0, 0.0, None)
            ]
        );
        assert!(shares("eth0", None, &later, 2.0).is_empty());
    }

    #[test]
    fn an_interface_with_one_queue_each_way_is_not_shown() {
        assert!(!has_several(&[((Direction::Rx, 0), 1), ((Direction::Tx, 0), 1)].into()));
        assert!(has_several(&[((Direction::Rx, 0), 1), ((Direction::Rx, 3), 1)].into()));
    }
}
