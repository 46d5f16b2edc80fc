//! What a receiver can tell of the path from a sender that nobody asks: how the data of its connections arrives.

use fathom_model::{
    Histogram, Record,
    names::reception,
    units::{Bytes, Nanos},
};
use fathom_sys::socket::tcp_info::TcpInfo;

/// The distance of two samples of a connection.
const EVERY: Nanos = Nanos::from_millis(100);
/// The most connections of a sampler: a worker spends some microseconds on them.
const CONNECTIONS_MAX: usize = 8;
/// A connection on which nothing arrived for two round trips and this much more is silent: the kernel tells it in whole milliseconds.
const SILENT: Nanos = Nanos::from_millis(4);

/// How data arrived. It takes up memory with the first sample: most answers have arrived before they would be one.
#[derive(Debug, Clone, Default)]
pub struct Reception(Option<Box<Samples>>);

#[derive(Debug, Clone, Default)]
struct Samples {
    n: u64,
    n_silent: u64,
    n_segments: u64,
    n_behind_gaps: u64,
    round_trips: Histogram,
    shortest: Histogram,
    windows: Histogram,
    in_flight: Histogram,
}

impl Reception {
    /// Adds a sample of a connection on which data arrives, with the one before and the time between the two.
    pub fn add(&mut self, now: &TcpInfo, before: Option<(&TcpInfo, Nanos)>) {
        if let (Some(round_trip), Some(shortest)) = (now.rcv_rtt, now.min_rtt) {
            self.0.get_or_insert_default().add((now, round_trip, shortest), before);
        }
    }

    /// Adds the samples of other connections.
    pub fn merge(&mut self, other: &Self) {
        if let Some(other) = &other.0 {
            self.0.get_or_insert_default().merge(other);
        }
    }

    /// Writes itself to a record, if there was a sample.
    pub fn add_to(self, record: &mut Record) {
        if let Some(samples) = self.0 {
            samples.add_to(record);
        }
    }
}

impl Samples {
    fn add(&mut self, (now, round_trip, shortest): (&TcpInfo, Nanos, Nanos), before: Option<(&TcpInfo, Nanos)>) {
        self.n += 1;
        self.n_silent += u64::from(now.last_data_recv > shortest * 2 + SILENT);
        self.round_trips.record(round_trip.0);
        self.shortest.record(shortest.0);
        if let Some(Bytes(window)) = now.rcv_wnd {
            self.windows.record(window);
        }
        // A socket that was opened anew counts from its beginning.
        let before = before.filter(|(info, _)| is_later(now, info));
        let growth = |count: fn(&TcpInfo) -> Option<u32>| {
            let past = before.and_then(|(info, _)| count(info)).unwrap_or(0);
            u64::from(count(now).unwrap_or(0).wrapping_sub(past))
        };
        self.n_segments += growth(|info| info.data_segs_in);
        self.n_behind_gaps += growth(|info| info.rcv_ooopack);
        let arrived = before.and_then(|(info, span)| {
            let bytes = now.bytes_received?.0.checked_sub(info.bytes_received?.0)?;
            u64::try_from(u128::from(bytes) * u128::from(round_trip.0) / u128::from(span.0.max(1))).ok()
        });
        if let Some(bytes) = arrived {
            self.in_flight.record(bytes);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.n += other.n;
        self.n_silent += other.n_silent;
        self.n_segments += other.n_segments;
        self.n_behind_gaps += other.n_behind_gaps;
        self.round_trips.merge(&other.round_trips);
        self.shortest.merge(&other.shortest);
        self.windows.merge(&other.windows);
        self.in_flight.merge(&other.in_flight);
    }

    fn add_to(self, record: &mut Record) {
        let totals = [
            (reception::SAMPLES, self.n),
            (reception::SILENT_SAMPLES, self.n_silent),
            (reception::SEGMENTS, self.n_segments),
            (reception::SEGMENTS_BEHIND_GAPS, self.n_behind_gaps),
        ];
        record.totals.extend(totals.map(|(name, n)| (name.to_owned(), n)));
        let values = [
            (reception::ROUND_TRIP, self.round_trips),
            (reception::SHORTEST_ROUND_TRIP, self.shortest),
            (reception::WINDOW, self.windows),
            (reception::IN_FLIGHT, self.in_flight),
        ];
        record.distributions.extend(values.map(|(name, values)| (name.to_owned(), values)));
    }
}

/// Returns true if a sample is one of the same socket as an earlier one: none of its counts fell.
fn is_later(now: &TcpInfo, before: &TcpInfo) -> bool {
    now.bytes_received >= before.bytes_received && now.segs_in >= before.segs_in
}

/// Samples a few connections of a worker.
#[derive(Debug, Default)]
pub struct ReceptionSampler {
    reception: Reception,
    due: Nanos,
    before: [Option<(TcpInfo, Nanos)>; CONNECTIONS_MAX],
}

impl ReceptionSampler {
    /// Whether it is time for a sample.
    #[inline]
    #[must_use]
    pub fn is_due(&self, now: Nanos) -> bool {
        now >= self.due
    }

    /// Takes a sample of the first connections; `receiving` returns that of one on which data is arriving.
    pub fn sample(&mut self, now: Nanos, mut receiving: impl FnMut(usize) -> Option<TcpInfo>) {
        self.due = now + EVERY;
        for (idx, before) in self.before.iter_mut().enumerate() {
            let Some(info) = receiving(idx) else { continue };
            self.reception.add(&info, before.as_ref().map(|(info, at)| (info, now.since(*at))));
            *before = Some((info, now));
        }
    }

    /// Returns the samples.
    #[must_use]
    pub fn finish(self) -> Reception {
        self.reception
    }
}

#[cfg(test)]
mod tests {
    use fathom_model::Side;

    use super::*;

    /// A connection with a round trip of 20 ms, of which 10 ms are a queue.
    fn info(n_segments: u32, n_behind_gaps: u32, silent_ms: u64) -> TcpInfo {
        let mut info = TcpInfo::parse(&[0; 248]).unwrap();
        info.rcv_rtt = Some(Nanos::from_millis(20));
        info.min_rtt = Some(Nanos::from_millis(10));
        info.rcv_wnd = Some(Bytes(65_536));
        info.segs_in = Some(n_segments);
        info.data_segs_in = Some(n_segments);
        info.rcv_ooopack = Some(n_behind_gaps);
        info.bytes_received = Some(Bytes(1_000 * u64::from(n_segments)));
        info.last_data_recv = Nanos::from_millis(silent_ms);
        info
    }

    #[test]
    fn the_growth_between_samples_counts_and_a_new_socket_counts_from_its_beginning() {
        let mut sampler = ReceptionSampler::default();
        let samples = [info(100, 0, 0), info(600, 5, 24), info(50, 1, 25)];
        for (n, info) in (0..).zip(samples) {
            let now = EVERY * n;
            assert!(sampler.is_due(now));
            sampler.sample(now, |idx| (idx == 1).then(|| info.clone()));
            assert!(!sampler.is_due(now + EVERY / 2));
        }
        let mut record = Record::empty(Side::Initiator);
        sampler.finish().add_to(&mut record);
        let total = |name| record.totals[name];
        assert_eq!((total(reception::SAMPLES), total(reception::SILENT_SAMPLES)), (3, 1));
        assert_eq!((total(reception::SEGMENTS), total(reception::SEGMENTS_BEHIND_GAPS)), (650, 6));
        // 500 kB in 100 ms are 100 kB in 20 ms.
        let in_flight = &record.distributions[reception::IN_FLIGHT];
        assert_eq!((in_flight.count(), in_flight.max()), (1, Some(100_000)));
    }

    #[test]
    fn a_connection_that_has_received_nothing_tells_nothing() {
        let mut all = Reception::default();
        all.add(&TcpInfo::parse(&[0; 248]).unwrap(), None);
        let mut record = Record::empty(Side::Initiator);
        all.add_to(&mut record);
        assert!(record.totals.is_empty() && record.distributions.is_empty());
    }
}
