//! The statistics that ctraffic prints and reads, with its names.

use fathom_model::{FailureCounts, Record, names::count, targets::target_name, units::Nanos};
use jiff::Zoned;
use serde::{Deserialize, Serialize};

use crate::go_flags::GivenFlags;

/// The time between two samples.
const SAMPLE: Nanos = Nanos::from_secs(1);

/// The least and the most bytes of a message of ours.
pub(super) const MESSAGE: std::ops::RangeInclusive<i64> = 96..=16_384;

/// Messages carry their number, so the shortest is somewhat longer than ctraffic's.
pub(super) fn packet_size(flags: &GivenFlags) -> i64 {
    flags.number("psize").max(*MESSAGE.start())
}

/// All statistics of a run; times are in nanoseconds since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Statistics {
    pub(super) started: String,
    pub(super) duration: u64,
    pub(super) rate: f64,
    pub(super) connections: u64,
    pub(super) packet_size: u64,
    pub(super) failed_connections: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
    pub(super) retransmits: u64,
    pub(super) failed_connects: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) conn_stats: Vec<ConnectionStatistics>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<Sample>,
}

/// One connection.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct ConnectionStatistics {
    pub(super) started: u64,
    /// 0 if it was never open.
    pub(super) connect: u64,
    pub(super) ended: u64,
    /// Empty if it lasted to the end.
    pub(super) err: String,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
    pub(super) retransmits: u64,
    pub(super) local: String,
    pub(super) remote: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) host: String,
}

/// The sums at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Sample {
    pub(super) time: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) dropped: u64,
}

impl Statistics {
    /// Makes the statistics of a record.
    pub(super) fn of(record: &Record, flags: &GivenFlags, started: &Zoned) -> Self {
        let total = |name: &str| record.totals.get(name).copied().unwrap_or(0);
        let duration = record.measured_ns.1;
        let conn_stats = connections(record, duration);
        Self {
            started: started.strftime("%Y-%m-%dT%H:%M:%S.%N%:z").to_string(),
            duration: duration.0,
            rate: flags.real("rate"),
            connections: u64::try_from(flags.number("nconn")).unwrap_or(0),
            packet_size: u64::try_from(packet_size(flags)).unwrap_or(0),
            failed_connections: conn_stats.iter().map(|connection| u64::from(!connection.err.is_empty())).sum(),
            sent: total(count::SENT),
            received: total(count::RECEIVED),
            dropped: total(count::UNSENT),
            retransmits: 0,
            failed_connects: failed_connects(&record.errors),
            samples: samples(record, duration),
            conn_stats,
        }
    }

    /// The same without the connections and samples.
    pub(super) fn summary(&self) -> Self {
        Self { conn_stats: Vec::new(), samples: Vec::new(), ..self.clone() }
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(format!("{}\n", serde_json::to_string(self)?))
    }
}

/// Counts the connects that failed, at once or later.
fn failed_connects(errors: &FailureCounts) -> u64 {
    let of_connect = errors.iter().filter(|(failure, _)| failure.to_string().starts_with("connect"));
    of_connect.map(|(_, n)| n).sum()
}

fn connections(record: &Record, duration: Nanos) -> Vec<ConnectionStatistics> {
    let Some(targets) = &record.targets else { return Vec::new() };
    let of_flow = |flow: &fathom_model::TargetFlow| {
        let mut started = 0;
        let connection = |one: &fathom_model::FlowConnection| {
            let begun = started;
            let ended = one.to_ns.unwrap_or(duration);
            started = ended.0;
            ConnectionStatistics {
                started: begun,
                // ctraffic takes 0 for a connection that was never open.
                connect: one.from_ns.0.max(1),
                ended: ended.0,
                err: one.cause.map_or_else(String::new, |cause| cause.name().to_owned()),
                sent: one.n_sent,
                received: one.n_answered,
                dropped: 0,
                retransmits: 0,
                local: one.local.clone(),
                remote: targets.address.clone(),
                host: one.target.as_deref().map_or_else(String::new, |target| target_name(target).to_owned()),
            }
        };
        flow.connections.iter().map(connection).collect::<Vec<_>>()
    };
    targets.flows.iter().flat_map(of_flow).collect()
}

/// Returns the sums at each second, from the record's counts over time.
fn samples(record: &Record, duration: Nanos) -> Vec<Sample> {
    let growth = |counter: &str, to: Nanos| record.timeline.growth(counter, Nanos::ZERO, to).map_or(0, |(n, _)| n);
    let at = |n: u64| SAMPLE * n;
    let sample = |n: u64| {
        let (sent, intended) = (growth(count::SENT, at(n)), growth(count::INTENDED, at(n)));
        Sample { time: at(n).0, sent, received: growth(count::RECEIVED, at(n)), dropped: intended.saturating_sub(sent) }
    };
    (1..=duration.0 / SAMPLE.0).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use fathom_model::Side;

    use super::*;

    #[test]
    fn failed_connects_are_failures_of_connects_and_no_others() {
        let errors: FailureCounts =
            [("connect: connection refused", 3), ("connect: timed out", 4), ("read: an answer to nothing", 50)]
                .into_iter()
                .collect();
        assert_eq!(failed_connects(&errors), 7);
        assert_eq!(failed_connects(&Record::empty(Side::Initiator).errors), 0);
    }
}
