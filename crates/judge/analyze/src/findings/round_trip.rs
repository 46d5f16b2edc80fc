//! A load that waits for each answer goes as fast as the distance lets it.

use fathom_model::{
    Finding, Layer, NextStep, Severity, Side,
    names::distribution,
    units::{Nanos, approximate, grouped, percent, ratio, rounded},
};

use super::{
    FindingRule, connection_per_request::is_closed_by_server, local_shaper::LOCAL_SHAPER, planned_event::PLANNED_EVENT,
    rule::DEVICE_CORE_FULL,
};
use crate::{
    closed_load::ClosedLoad,
    evidence::{TestEvidence, text_evidence},
    gap,
};

/// Within a room, a round trip of wires and devices is shorter. The rest of it is the work of hosts, which has other names.
const DISTANCE: Nanos = Nanos::from_millis(1);

/// Compares the shortest round trip of the path with the time of each request.
pub(crate) struct RoundTrip;

impl FindingRule for RoundTrip {
    fn id(&self) -> &'static str {
        "round-trip"
    }

    // What makes a queue or a busy core makes round trips longer, too.
    fn effect_of(&self) -> &'static [&'static str] {
        &[PLANNED_EVENT, LOCAL_SHAPER, DEVICE_CORE_FULL, "path-full", "core-saturated", "cpu-quota"]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let found = ClosedLoad::of(seen).and_then(|load| Some((shortest(seen, &load)?, load)));
        let Some((trip, load)) = found.filter(|(trip, _)| *trip >= DISTANCE) else { return Vec::new() };
        let n_trips = 1.0 + load.connects * (1.0 + tls_trips(seen, trip));
        let share = load.share_of(trip, n_trips).unwrap_or(0.0);
        let Some(each) = load.time_of_each().filter(|_| share >= gap::HALF && !seen.reached_target()) else {
            return Vec::new();
        };
        let trips = if load.connects > 0.5 && is_closed_by_server(seen) {
            let to_connect = percent(1.0 - 1.0 / n_trips);
            format!("its round trips ({to_connect} of them to connect, as the server closes connections) are")
        } else if load.connects > 0.5 {
            "its round trips are".to_owned()
        } else {
            "its round trip is".to_owned()
        };
        let most = rounded(approximate(load.at_once) / (n_trips * trip.as_secs_f64()));
        let title = format!(
            "the path is long ({trip}): {trips} {} of the {each} from one request to the next; with {} at once, there can be no more than {} per second",
            percent(share),
            grouped(load.at_once),
            grouped(most),
        );
        let from = &seen.test.from;
        let next = seen.repeat_with_option(load.option, &(load.at_once.saturating_mul(2)).to_string());
        vec![
            seen.finding(self.id(), Severity::HoldsBack, "round trip", title)
                .evidence([
                    text_evidence(from, "shortest round trip", trip),
                    text_evidence(from, "from one request to the next", each),
                ])
                .explains(gap::explained_by_time(seen, share))
                .next(next.map(|command| {
                    NextStep::new(command).expected("carry twice as many, if only the distance holds them back")
                })),
        ]
    }
}

/// So few at once hardly make a queue that stands as long as a distance takes.
const FEW: u64 = 8;

/// Returns the shortest round trip of the path: at most that of a handshake before the load, or, without one, of the answers of a few at once.
fn shortest(seen: &TestEvidence<'_>, load: &ClosedLoad) -> Option<Nanos> {
    let least = |name| seen.distribution(Side::Initiator, name).min().map(Nanos);
    let answer = least(distribution::SERVICE_TIME);
    // Datagrams have no handshake, and where each transaction has one, all of them are under load.
    let is_loaded = seen.test.layer == Layer::Udp || seen.test.layer == Layer::Tcp && load.connects > 0.0;
    if is_loaded && load.at_once > FEW {
        return None;
    }
    if seen.test.layer == Layer::Udp {
        return answer.filter(|_| seen.test.to.is_some());
    }
    // All handshakes may have waited for another SYN.
    let connect = least(distribution::CONNECT_TIME)?;
    Some(answer.map_or(connect, |answer| answer.min(connect)))
}

/// Returns the round trips of a TLS handshake: one of TLS 1.3 and two of older versions, by the time of the fastest; 0 without TLS.
fn tls_trips(seen: &TestEvidence<'_>, trip: Nanos) -> f64 {
    let fastest = seen.distribution(Side::Initiator, distribution::TLS_TIME).min();
    fastest.and_then(|fastest| ratio(fastest, trip.0)).map_or(0.0, |trips| trips.round().clamp(1.0, 2.0))
}

#[cfg(test)]
mod tests {
    use fathom_model::Histogram;

    use super::*;
    use crate::run_builder::RunBuilder;

    /// So many requests in a second over ten connections, which took this long to connect.
    fn requests(n: u64, connect_ms: u64, n_connects: u64) -> RunBuilder {
        let mut builder = RunBuilder::new();
        builder.http(n, 10);
        builder.run.command = "fathom http http://198.18.0.2/".to_owned();
        builder.total("client", "requests", n);
        builder.total("client", "connections", n_connects);
        let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
        for (name, millis, n) in
            [(distribution::CONNECT_TIME, connect_ms, n_connects), (distribution::SERVICE_TIME, 10_000 / n, n)]
        {
            let mut times = Histogram::new();
            times.record_n(Nanos::from_millis(millis).0, n);
            record.distributions.insert(name.to_owned(), times);
        }
        builder
    }

    #[test]
    fn a_long_path_holds_back_what_waits_for_each_answer() {
        let finding = requests(240, 40, 10).finding("round-trip").unwrap();
        assert_eq!(
            finding.title,
            "the path is long (40.0 ms): its round trip is 96 % of the 41.7 ms from one request to the next; with 10 at once, there can be no more than 250 \
             per second"
        );
        assert_eq!(finding.explains, Some(0.96));
        assert_eq!(finding.next.unwrap().command, "fathom http http://198.18.0.2/ --connections 20");
    }

    #[test]
    fn a_handshake_before_each_request_is_a_second_round_trip() {
        let mut builder = requests(120, 40, 130);
        let title = builder.finding("round-trip").unwrap().title;
        assert!(title.starts_with("the path is long (40.0 ms): its round trips are 96 % of the 83.3 ms"), "{title}");
        builder.total("client", "closed_by_server", 118);
        let title = builder.finding("round-trip").unwrap().title;
        assert!(title.contains("its round trips (50 % of them to connect, as the server closes connections) are 96 %"));
    }

    #[test]
    fn a_tls_handshake_is_one_round_trip_more_or_two() {
        for (tls_ms, n, share) in [(43, 80, "96 %"), (82, 60, "96 %")] {
            let mut builder = requests(n, 40, n + 10);
            let record = builder.run.tests[0].trials[0].records.get_mut("client").unwrap();
            let mut times = Histogram::new();
            times.record_n(Nanos::from_millis(tls_ms).0, n);
            record.distributions.insert(distribution::TLS_TIME.to_owned(), times);
            let title = builder.finding("round-trip").unwrap().title;
            assert!(title.starts_with(&format!("the path is long (40.0 ms): its round trips are {share}")), "{title}");
        }
    }

    #[test]
    fn a_near_server_or_a_slow_one_is_not_far() {
        assert_eq!(requests(10_000, 0, 10).finding("round-trip"), None, "near");
        assert_eq!(requests(100, 40, 10).finding("round-trip"), None, "slow");
        let mut paced = requests(240, 40, 10);
        paced.run.tests[0].options.set("rate", "240");
        assert_eq!(paced.finding("round-trip"), None, "on a schedule");
    }
}
