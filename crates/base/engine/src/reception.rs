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

/// The sample of a connection before another one.
#[derive(Debug, Clone, Copy)]
pub struct EarlierSample<'a> {
    /// What the kernel knew then.
    pub info: &'a TcpInfo,
    /// The time between the two; `None` if data did not go on arriving.
    pub span: Option<Nanos>,
}

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
    /// Adds a sample of a connection on which data arrives, with the one before. A kernel that does not count segments out of order (before Linux
    /// 5.4) tells nothing.
    pub fn add(&mut self, now: &TcpInfo, before: Option<EarlierSample<'_>>) {
        if let (Some(round_trip), Some(shortest), Some(_)) = (now.rcv_rtt, now.min_rtt, now.rcv_ooopack) {
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
    fn add(&mut self, (now, round_trip, shortest): (&TcpInfo, Nanos, Nanos), before: Option<EarlierSample<'_>>) {
        self.n += 1;
        self.n_silent += u64::from(now.last_data_recv > shortest * 2 + SILENT);
        self.round_trips.record(round_trip.0);
        self.shortest.record(shortest.0);
        if let Some(Bytes(window)) = now.rcv_wnd {
            self.windows.record(window);
        }
        // A socket that was opened anew counts from its beginning.
        let before = before.filter(|before| is_later(now, before.info));
        let growth = |count: fn(&TcpInfo) -> Option<u32>| {
            let past = before.and_then(|before| count(before.info)).unwrap_or(0);
            u64::from(count(now).unwrap_or(0).wrapping_sub(past))
        };
        self.n_segments += growth(|info| info.data_segs_in);
        self.n_behind_gaps += growth(|info| info.rcv_ooopack);
        let arrived = before.and_then(|EarlierSample { info, span }| {
            let (bytes, span) = (now.bytes_received?.0.checked_sub(info.bytes_received?.0)?, span?);
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

/// Samples the first few connections of a worker.
#[derive(Debug, Default)]
pub struct ReceptionSampler {
    reception: Reception,
    due: Nanos,
    /// The last sample of each, with its time while data goes on arriving.
    before: [Option<(TcpInfo, Option<Nanos>)>; CONNECTIONS_MAX],
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
            let Some(info) = receiving(idx) else {
                if let Some((_, at)) = before {
                    *at = None;
                }
                continue;
            };
            let earlier = |(info, at)| EarlierSample { info, span: Option::map(at, |at| now.since(at)) };
            self.reception.add(&info, before.as_ref().map(|(info, at)| earlier((info, *at))));
            *before = Some((info, Some(now)));
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
        let samples =
            [Some(info(100, 0, 0)), Some(info(600, 5, 24)), None, Some(info(640, 5, 0)), Some(info(50, 1, 25))];
        for (n, info) in (0..).zip(samples) {
            let now = EVERY * n;
            assert!(sampler.is_due(now));
            sampler.sample(now, |idx| info.clone().filter(|_| idx == 1));
            assert!(!sampler.is_due(now + EVERY / 2));
        }
        let mut record = Record::empty(Side::Initiator);
        sampler.finish().add_to(&mut record);
        let total = |name| record.totals[name];
        assert_eq!((total(reception::SAMPLES), total(reception::SILENT_SAMPLES)), (4, 1));
        assert_eq!((total(reception::SEGMENTS), total(reception::SEGMENTS_BEHIND_GAPS)), (690, 6));
        // 500 kB in 100 ms are 100 kB in 20 ms. Over a pause between two answers, nothing is known.
        let in_flight = &record.distributions[reception::IN_FLIGHT];
        assert_eq!((in_flight.count(), in_flight.max()), (1, Some(100_000)));
    }

    #[test]
    fn a_connection_that_has_received_nothing_and_a_kernel_without_the_count_tell_nothing() {
        let mut all = Reception::default();
        all.add(&TcpInfo::parse(&[0; 248]).unwrap(), None);
        let of_an_old_kernel = TcpInfo { rcv_ooopack: None, ..info(100, 0, 0) };
        all.add(&of_an_old_kernel, None);
        let mut record = Record::empty(Side::Initiator);
        all.add_to(&mut record);
        assert!(record.totals.is_empty() && record.distributions.is_empty());
    }
}
