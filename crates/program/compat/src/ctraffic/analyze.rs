//! Tables of stored statistics, as ctraffic prints them.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{self, Read},
};

use fathom_model::units::approximate;
use fathom_run::exit::Exit;

use super::statistics::Statistics;
use crate::closed_loop;

const SECOND: u64 = 1_000_000_000;
/// Larger than the statistics of a million connections.
const FILE_MAX: u64 = 1 << 30;
/// The table has a row for each second, so it needs a bound: 30 days.
const TIME_MAX: u64 = 30 * 24 * 3600 * SECOND;
/// A million messages a second for 12 days.
const COUNT_MAX: u64 = 1 << 40;
/// A number of 32 bits in ctraffic.
const SIZE_MAX: u64 = u32::MAX as u64;

/// Reads statistics from a file, or from the standard input for `-`, and prints a table.
pub(super) fn run(path: &str, what: &str) -> anyhow::Result<Exit> {
    let table: fn(&Statistics) -> Result<String, String> = match what {
        "throughput" => throughput,
        "connections" => connections,
        "hosts" => |statistics| Ok(hosts(statistics)),
        other => return Ok(failed(&format!("Unsupported analyze;  {other}"))),
    };
    let mut text = String::new();
    let read = match path {
        "-" => io::stdin().lock().take(FILE_MAX).read_to_string(&mut text),
        path => File::open(path).and_then(|file| file.take(FILE_MAX).read_to_string(&mut text)),
    };
    if let Err(error) = read {
        return Ok(failed(&format!("open {path}: {error}")));
    }
    let parsed: Result<Statistics, _> = serde_json::from_str(&text);
    match parsed.map_err(|error| error.to_string()).and_then(checked).and_then(|statistics| table(&statistics)) {
        Ok(table) => closed_loop::print_now(&table).map(|()| Exit::Pass),
        Err(why) => Ok(failed(&why)),
    }
}

fn failed(why: &str) -> Exit {
    eprintln!("ctraffic: {why}");
    Exit::Code(1)
}

/// Returns the statistics if the tables can be computed from them.
///
/// # Errors
/// Names the field that is too large, and its bound.
fn checked(statistics: Statistics) -> Result<Statistics, String> {
    let times = std::iter::once(("Duration", statistics.duration))
        .chain(statistics.samples.iter().map(|sample| ("Time", sample.time)))
        .map(|(field, value)| (field, value, TIME_MAX));
    let counts = statistics.samples.iter().map(|sample| ("Received", sample.received, COUNT_MAX));
    let size = ("PacketSize", statistics.packet_size, SIZE_MAX);
    match times.chain(counts).chain([size]).find(|(_, value, bound)| value > bound) {
        Some((field, value, bound)) => Err(format!("{field} is {value}, which is more than {bound}")),
        None => Ok(statistics),
    }
}

/// The received rate between each two samples, at the middle of them.
fn throughput(statistics: &Statistics) -> Result<String, String> {
    if statistics.samples.is_empty() {
        return Err("No samples found".to_owned());
    }
    let mut table = "Time Throughput\n".to_owned();
    for pair in statistics.samples.windows(2) {
        let span = pair[1].time.saturating_sub(pair[0].time);
        let middle = pair[0].time + span / 2;
        let n_received = pair[1].received.saturating_sub(pair[0].received);
        let kilobytes = u128::from(n_received) * u128::from(statistics.packet_size) / 1024;
        let kilobytes = u64::try_from(kilobytes).expect("the bounds of both leave room");
        let seconds = approximate(span) / 1e9;
        let rate = if span > 0 { approximate(kilobytes) / seconds } else { 0.0 };
        let _ = writeln!(table, "{} {rate}", approximate(middle) / 1e9);
    }
    Ok(table)
}

/// The connections in each second by what they did then.
fn connections(statistics: &Statistics) -> Result<String, String> {
    let mut table = "Time Active New Failed Connecting\n".to_owned();
    let mut last = 0;
    let mut end = SECOND;
    while end < statistics.duration {
        let (mut active, mut new, mut failed, mut connecting) = (0, 0, 0, 0);
        for connection in &statistics.conn_stats {
            if connection.ended == 0 {
                return Err("A connection has never ended".to_owned());
            }
            if connection.ended < last {
                continue;
            }
            if connection.ended < end {
                failed += i32::from(!connection.err.is_empty());
                continue;
            }
            if connection.started > end {
                continue;
            }
            new += i32::from(connection.started > last);
            if connection.connect == 0 || connection.connect > end {
                connecting += 1;
            } else {
                active += 1;
            }
        }
        let middle = approximate(last + SECOND / 2) / 1e9;
        let _ = writeln!(table, "{middle} {active} {new} {failed} {connecting}");
        last = end;
        end += SECOND;
    }
    Ok(table)
}

/// The hosts of connections that were lost, and of those that lasted.
fn hosts(statistics: &Statistics) -> String {
    let count = |is_lost: bool| {
        let mut hosts: BTreeMap<&str, u64> = BTreeMap::new();
        let with_host = statistics.conn_stats.iter().filter(|connection| !connection.host.is_empty());
        for connection in with_host.filter(|connection| connection.err.is_empty() != is_lost) {
            *hosts.entry(connection.host.as_str()).or_default() += 1;
        }
        hosts
    };
    let mut table = String::new();
    for (title, hosts) in [("Lost", count(true)), ("Lasting", count(false))] {
        let _ = writeln!(table, "{title} connections: {}", hosts.values().sum::<u64>());
        for (host, n) in &hosts {
            let _ = writeln!(table, "  {host} {n}");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{super::statistics::Sample, *};

    /// Statistics of a run of 3 s with one lost connection, as ctraffic writes them.
    const STORED: &str = r#"{"Started":"2024-01-01T00:00:00Z","Duration":3500000000,"Rate":10,"Connections":2,"PacketSize":1024,
        "FailedConnections":1,"Sent":30,"Received":29,"Dropped":0,"Retransmits":0,"FailedConnects":0,
        "ConnStats":[
            {"Started":1000,"Connect":2000,"Ended":1500000000,"Err":"EOF","Sent":5,"Received":4,"Dropped":0,"Retransmits":0,"Local":"a","Remote":"b","Host":"vm-1"},
            {"Started":1500000000,"Connect":1600000000,"Ended":3500000000,"Err":"","Sent":9,"Received":9,"Dropped":0,"Retransmits":0,"Local":"a","Remote":"b","Host":"vm-2"}],
        "Samples":[{"Time":1000000000,"Sent":10,"Received":10,"Dropped":0},{"Time":2000000000,"Sent":20,"Received":20,"Dropped":0}]}"#;

    #[test]
    fn stored_statistics_become_the_tables_of_ctraffic() {
        let statistics: Statistics = serde_json::from_str(STORED).unwrap();
        assert_eq!(throughput(&statistics).unwrap(), "Time Throughput\n1.5 10\n");
        let table = connections(&statistics).unwrap();
        assert_eq!(table, "Time Active New Failed Connecting\n0.5 1 1 0 0\n1.5 1 1 1 0\n2.5 1 0 0 0\n");
        assert_eq!(hosts(&statistics), "Lost connections: 1\n  vm-1 1\nLasting connections: 1\n  vm-2 1\n");
        assert_eq!(throughput(&Statistics::default()).unwrap_err(), "No samples found");
    }

    #[test]
    fn a_field_that_no_test_can_have_is_refused_by_its_name() {
        for (right, field) in [
            ("\"Duration\":3500000000", "Duration"),
            ("\"PacketSize\":1024", "PacketSize"),
            ("\"Time\":2000000000", "Time"),
            ("\"Sent\":20,\"Received\":20", "Received"),
        ] {
            let (start, _) = right.rsplit_once(':').unwrap();
            let statistics = STORED.replace(right, &format!("{start}:{}", u64::MAX));
            assert_ne!(statistics, STORED);
            let refused = checked(serde_json::from_str(&statistics).unwrap()).unwrap_err();
            assert!(refused.starts_with(&format!("{field} is 18446744073709551615, which is more than")), "{refused}");
        }
        let largest = Statistics {
            packet_size: SIZE_MAX,
            samples: vec![Sample::default(), Sample { time: TIME_MAX, received: COUNT_MAX, ..Sample::default() }],
            ..Statistics::default()
        };
        assert!(throughput(&checked(largest).unwrap()).is_ok(), "no sum and no product is too large");
    }
}
