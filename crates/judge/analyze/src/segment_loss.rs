//! Segments of TCP that one end of a connection sent and the other end did not receive, by the counts of both kernels.
//!
//! Only connections that both ends sampled are known, by their two addresses: behind a translation of addresses, or a proxy, they differ. It does
//! not know what a loss costs.

use std::collections::BTreeMap;

use fathom_model::{
    Record, Stage, Trial,
    names::tcp,
    record::{Flow, FlowSample},
    units::{Nanos, ratio},
};

use crate::{evidence::TestEvidence, window::host_of};

/// The kernel's counts of segments have 32 bits (`struct tcp_info`): a long stream at a high rate passes their end.
const COUNT_END: u64 = 1 << 32;

/// What connections send on a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Payload, with ACKs in the same segments or between them.
    ///
    /// Fewer segments may be counted where they arrive than did: a device may hand over joined segments without their number (`gso_segs`, as of a
    /// virtual machine whose cards pass 64 KiB on), and `tcp_segs_in` of the kernel counts one then.
    Payload,
    /// ACKs alone, which nothing joins, so that both ends count the same.
    Acks,
}

/// The way from one host to another: the segments of all connections that sent the same on it, over their whole life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Way<'a> {
    pub(crate) from: &'a str,
    pub(crate) to: &'a str,
    pub(crate) n_sent: u64,
    pub(crate) n_arrived: u64,
    pub(crate) n_resent: u64,
    /// The life of its connections, one after another.
    pub(crate) connection_time: Nanos,
}

impl<'a> Way<'a> {
    /// Returns the number of segments that were sent and did not arrive. That of a SYN with its ACK is not among the sent ones.
    pub(crate) fn n_lost(&self) -> u64 {
        self.n_sent.saturating_sub(self.n_arrived)
    }

    /// Returns the share of the segments that are lost at most: a lost segment of payload is sent again.
    pub(crate) fn lost_share_max(&self) -> f64 {
        ratio(self.n_lost().min(self.n_resent), self.n_sent).unwrap_or(0.0)
    }

    /// Returns the way of one connection; `None` if bytes are missing, as of a broken connection, or counts.
    fn of(near: &End<'a>, far: &End<'a>) -> Option<Self> {
        let is_drained = near.has_all_of(far)? && far.has_all_of(near)?;
        is_drained.then_some(Self {
            from: near.host,
            to: far.host,
            n_sent: near.count(tcp::SEGMENTS_OUT)?,
            n_arrived: far.count(tcp::SEGMENTS_IN)?,
            n_resent: near.count(tcp::RETRANS_TOTAL)?,
            connection_time: near.flow.samples.last()?.at_ns,
        })
    }

    fn joined(self, other: &Self) -> Self {
        Self {
            n_sent: self.n_sent + other.n_sent,
            n_arrived: self.n_arrived + other.n_arrived,
            n_resent: self.n_resent + other.n_resent,
            connection_time: self.connection_time + other.connection_time,
            ..self
        }
    }
}

/// Returns the ways of a test on which connections sent this.
///
/// All trials count: nothing is in flight between the last samples of two ends once all bytes have arrived, so that a sum is as exact as one trial,
/// and few losses need many segments.
pub(crate) fn ways<'a>(seen: &TestEvidence<'a>, carried: Carried) -> Vec<Way<'a>> {
    let mut all: BTreeMap<(&str, &str), Way<'a>> = BTreeMap::new();
    for records in seen.trials().iter().flat_map(|trial| records_of_pairs(trial)) {
        let ends = ends(records, |record| record.complete);
        let sends_this = |end: &&End<'_>| end.carried() == Some(carried);
        let way = |near: &End<'a>| Way::of(near, ends.get(&(near.remote, near.local))?);
        for way in ends.values().filter(sends_this).filter_map(way) {
            let between = (way.from, way.to);
            let sum = match all.remove(&between) {
                Some(sum) => sum.joined(&way),
                None => way,
            };
            all.insert(between, sum);
        }
    }
    all.into_values().collect()
}

/// Payload of a connection that arrived although its sender never knew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unacknowledged<'a> {
    /// The sender of the payload, to which the ACKs did not come.
    pub(crate) sender: &'a str,
    pub(crate) receiver: &'a str,
    /// In bytes.
    pub(crate) n_arrived: u64,
    pub(crate) n_acknowledged: u64,
}

/// Returns the connection with the most payload of which its sender did not know a second after it had arrived, among those whose last bytes were not
/// acknowledged in time, and of which segments still arrived: where nothing does, more than the ACKs is lost.
pub(crate) fn unacknowledged<'a>(seen: &TestEvidence<'a>) -> Option<Unacknowledged<'a>> {
    /// The kernel acknowledges within 200 ms (`TCP_DELACK_MAX`), and few paths are longer than the rest.
    const LATE: Nanos = Nanos::from_secs(1);
    /// A segment that arrives so long, and a round trip, after the last ACK was sent again by a timer.
    const BY_TIMER: Nanos = Nanos::from_millis(250);
    let has_failed = |record: &Record| record.errors.keys().any(|failure| failure.stage == Stage::Drain);
    let failed = seen.test.trials.iter().flat_map(records_of_pairs).filter(|pair| pair.values().any(has_failed));
    let of_pair = |records: &'a BTreeMap<String, Record>| {
        let ends = ends(records, |_| true);
        let missing = |near: &End<'a>| {
            let far = ends.get(&(near.remote, near.local))?;
            let until = near.flow.samples.last()?.at_ns;
            let arrived = far.flow.samples.iter().rfind(|sample| sample.at_ns + LATE <= until)?;
            let n_arrived = *arrived.values.get(tcp::BYTES_RECEIVED)?;
            let n_acknowledged = near.last(tcp::BYTES_ACKED)?;
            let found = Unacknowledged { sender: near.host, receiver: far.host, n_arrived, n_acknowledged };
            let is_known = |sample: &&FlowSample| sample.values.get(tcp::BYTES_ACKED) == Some(&n_acknowledged);
            let last_ack = near.flow.samples.iter().find(is_known)?.at_ns;
            let by_timer = last_ack + BY_TIMER + Nanos(near.last(tcp::RTT_NS).unwrap_or(0));
            let later = far.flow.samples.iter().filter(|sample| sample.at_ns >= by_timer);
            let mut n_segments = later.filter_map(|sample| sample.values.get(tcp::SEGMENTS_IN));
            let still_arrives = n_segments.next() < n_segments.next_back();
            (n_arrived > n_acknowledged && still_arrives).then_some(found)
        };
        ends.values().filter_map(missing).max_by_key(|found| found.n_arrived - found.n_acknowledged)
    };
    failed.filter_map(of_pair).max_by_key(|found| found.n_arrived - found.n_acknowledged)
}

/// Returns the records of both sides of each pair of hosts: pairs may have the same addresses, in networks of their own.
fn records_of_pairs(trial: &Trial) -> impl Iterator<Item = &BTreeMap<String, Record>> {
    let own = Some(&trial.records).filter(|_| trial.links.is_empty());
    own.into_iter().chain(trial.links.iter().map(|link| &link.records))
}

/// One end of a connection.
struct End<'a> {
    host: &'a str,
    local: &'a str,
    remote: &'a str,
    flow: &'a Flow,
}

/// Returns the ends of all connections of some records by their own address and that of the other end.
fn ends(records: &BTreeMap<String, Record>, is_wanted: fn(&Record) -> bool) -> BTreeMap<(&str, &str), End<'_>> {
    let wanted = records.iter().filter(|(_, record)| is_wanted(record));
    let all = wanted.flat_map(|(key, record)| record.flows.iter().map(move |flow| (host_of(key), flow)));
    let ends = all.filter_map(|(host, flow)| End::of(host, flow));
    ends.map(|end| ((end.local, end.remote), end)).collect()
}

impl<'a> End<'a> {
    fn of(host: &'a str, flow: &'a Flow) -> Option<Self> {
        let (local, remote) = flow.id.split_once(' ')?;
        Some(Self { host, local, remote, flow })
    }

    fn last(&self, name: &str) -> Option<u64> {
        self.flow.samples.last()?.values.get(name).copied()
    }

    /// Returns a count of segments at the last sample, however often it passed its end.
    fn count(&self, name: &str) -> Option<u64> {
        let values = self.flow.samples.iter().map(|sample| sample.values.get(name).copied());
        let sum = |(total, before): (u64, u64), now: Option<u64>| {
            let now = now?;
            Some((total + (now + COUNT_END - before) % COUNT_END, now))
        };
        values.into_iter().try_fold((0, 0), sum).map(|(total, _)| total)
    }

    /// Returns true if all bytes arrived that the other end sent. The kernel counts the end of a stream as a byte where it arrives.
    fn has_all_of(&self, other: &Self) -> Option<bool> {
        let n_new = other.last(tcp::BYTES_SENT)?.saturating_sub(other.last(tcp::BYTES_RETRANS)?);
        Some(self.last(tcp::BYTES_RECEIVED)? >= n_new)
    }

    fn carried(&self) -> Option<Carried> {
        self.last(tcp::BYTES_SENT).map(|n_bytes| if n_bytes == 0 { Carried::Acks } else { Carried::Payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_passes_its_end_goes_on() {
        let sample = |n: u64| FlowSample { at_ns: Nanos(n), values: [(tcp::SEGMENTS_OUT.to_owned(), n)].into() };
        let flow = Flow { id: "a:1 b:2".to_owned(), samples: vec![sample(10), sample(COUNT_END - 1), sample(4)] };
        let end = End::of("client", &flow).unwrap();
        assert_eq!(end.count(tcp::SEGMENTS_OUT), Some(COUNT_END + 4));
        assert_eq!(end.count(tcp::SEGMENTS_IN), None, "an old kernel does not count it");
    }
}
