//! How the data of a server arrived whose host is not seen: what the client's own connections tell of the path and of the sender.

use fathom_model::{
    Layer, Side,
    names::{distribution, reception},
    units::{Bytes, Nanos, approximate, ratio},
};

use crate::{
    evidence::TestEvidence,
    flows::{QUEUE_MIN, QUEUE_PART},
    gap,
};

/// With fewer samples, nothing is said.
const SAMPLES_MIN: u64 = 10;
/// From this share of segments behind a gap on, gaps hold data back. On good paths it was 0.01 %; on one that lost 1 % of its packets, 93 %; before an
/// overflowing queue 0.8 to 18 %.
const GAPS_MATTER: f64 = 0.01;
/// More than threads make that change their cores at the rates of memory, where it was 5 % on a path without a fault.
const MANY_GAPS: f64 = 0.1;
/// A path of memory without any delay is shorter.
const SHORT: Nanos = Nanos::from_micros(100);
/// With data under way for most of a window, the sender waits for it. One that the kernel enlarges is twice as large as what arrives in a round trip.
const WINDOW_FULL: f64 = 0.6;
/// Where the transfer is less of the time of a request, its round trips are those of the handshake and the request.
const PART_MIN: f64 = 0.25;
/// A sender that pauses leaves more than this share of the samples silent.
const PAUSES: f64 = 0.2;
/// On a shorter path, no window holds a sender back.
const ROUND_TRIP_MIN: Nanos = Nanos::from_millis(1);

/// The medians of the samples of all rounds.
pub(crate) struct SeenReception {
    /// The round trip that data had, with the queues before it.
    pub(crate) round_trip: Nanos,
    pub(crate) shortest: Nanos,
    /// The window that the client offered, if its kernel tells (Linux 6.2).
    pub(crate) window: Option<Bytes>,
    /// What arrived in a round trip.
    pub(crate) in_flight: Bytes,
    /// The share of segments that arrived behind a gap.
    pub(crate) behind_gaps: f64,
    /// The share of samples before which nothing had arrived for two round trips.
    pub(crate) silent: f64,
    /// From this share of segments behind a gap on, a fault made them.
    gaps_matter: f64,
}

impl SeenReception {
    /// Returns how data arrived, if its transfer is most of what the test waited for and nobody tells the other end.
    pub(crate) fn of(seen: &TestEvidence<'_>) -> Option<Self> {
        let is_of_tcp = matches!(seen.test.layer, Layer::App | Layer::Http | Layer::Tcp);
        let total = |name| seen.total(Side::Initiator, name);
        let n = total(reception::SAMPLES);
        if !is_of_tcp
            || n < SAMPLES_MIN
            || seen.test.to.is_some()
            || seen.reached_target()
            || !TransferTime::of(seen).is_most()
        {
            return None;
        }
        let median = |name| seen.distribution(Side::Initiator, name).quantile(0.5);
        let shortest = Nanos(seen.distribution(Side::Initiator, reception::SHORTEST_ROUND_TRIP).min()?);
        let is_of_memory = seen.is_memory(&seen.test.from) && shortest < SHORT;
        Some(Self {
            round_trip: Nanos(median(reception::ROUND_TRIP)?),
            shortest,
            window: median(reception::WINDOW).map(Bytes),
            in_flight: Bytes(median(reception::IN_FLIGHT)?),
            behind_gaps: ratio(total(reception::SEGMENTS_BEHIND_GAPS), total(reception::SEGMENTS))?,
            silent: ratio(total(reception::SILENT_SAMPLES), n)?,
            gaps_matter: if is_of_memory { MANY_GAPS } else { GAPS_MATTER },
        })
    }

    fn pauses(&self) -> bool {
        self.silent > PAUSES
    }

    /// Returns the time that data spends in queues, if one stands on the path. The receiver's estimate of the round trip is no shorter than a
    /// pause of the sender, so that nothing is known of one that pauses.
    pub(crate) fn queue(&self) -> Option<Nanos> {
        let queue = self.round_trip.since(self.shortest);
        let is_long = approximate(queue.0) > QUEUE_PART * approximate(self.round_trip.0);
        (queue >= QUEUE_MIN && is_long && !self.pauses()).then_some(queue)
    }

    /// Whether so many segments arrive behind a gap that the sender goes slower.
    pub(crate) fn has_gaps(&self) -> bool {
        self.behind_gaps >= self.gaps_matter
    }

    /// Whether so few segments arrive behind a gap that they are no cause, whatever made them.
    pub(crate) fn has_hardly_any_gaps(&self) -> bool {
        self.behind_gaps < GAPS_MATTER
    }

    /// Returns the window of the client, if it is what the sender waits for.
    pub(crate) fn full_window(&self) -> Option<Bytes> {
        let window = self.window.filter(|_| !self.has_gaps() && !self.pauses())?;
        (approximate(self.in_flight.0) >= WINDOW_FULL * approximate(window.0)).then_some(window)
    }

    /// Whether the sender has less under way than the path and the client would let it have.
    pub(crate) fn is_limited_by_sender(&self) -> bool {
        let is_long = self.shortest >= ROUND_TRIP_MIN;
        is_long && !self.pauses() && !self.has_gaps() && self.queue().is_none() && self.full_window().is_none()
    }

    /// Whether nothing arrives most of the time, although nothing is missing and there is room.
    pub(crate) fn is_mostly_silent(&self) -> bool {
        let has_room = self.window.is_some_and(|window| self.in_flight < window);
        self.silent >= gap::HALF && !self.has_gaps() && has_room
    }
}

/// The part of the time of a usual request in which its answer arrives, and that part with the round trip before it.
struct TransferTime {
    download: f64,
    with_round_trip: f64,
}

impl TransferTime {
    /// All of the time where no answer has arrived in whole, and in a stream.
    fn of(seen: &TestEvidence<'_>) -> Self {
        let median = |name| seen.distribution(Side::Initiator, name).quantile(0.5);
        let shortest = seen.distribution(Side::Initiator, reception::SHORTEST_ROUND_TRIP).min().unwrap_or(0);
        let all = median(distribution::DOWNLOAD_TIME).zip(median(distribution::SERVICE_TIME));
        let share = |part: u64| all.and_then(|(_, service)| ratio(part, service)).map_or(1.0, |share| share.min(1.0));
        let download = all.map_or(0, |(download, _)| download);
        Self { download: share(download), with_round_trip: share(download.saturating_add(shortest)) }
    }

    fn is_most(&self) -> bool {
        self.download >= PART_MIN && self.with_round_trip >= gap::HALF
    }
}

/// Returns the share of the time of a usual request that its answer takes on the way.
pub(crate) fn transfer_share(seen: &TestEvidence<'_>) -> f64 {
    TransferTime::of(seen).with_round_trip
}
