//! Where everything that was sent went: received, dropped at a counted place, or unexplained.
//!
//! It knows the counters by name, and takes for the sender whichever side counted what it sent.

use fathom_model::{
    Conservation, Layer, Side, Trial,
    names::{count, host},
    run::TestRun,
    summary::Drops,
};

use crate::window::{record_of, usable};

/// The side that sends and the side that receives, where everything goes one way.
pub(crate) fn one_way(test: &TestRun, sent: &str, received: &str) -> Option<(Side, Side)> {
    let counted = |side, counter: &str| {
        test.trials
            .iter()
            .any(|trial| record_of(trial, side).is_some_and(|(_, record)| record.totals.get(counter) > Some(&0)))
    };
    let ways = [(Side::Initiator, Side::Responder), (Side::Responder, Side::Initiator)];
    // A side that also receives what it counts, or answers, is not the end of one way.
    ways.into_iter().find(|(from, to)| {
        counted(*from, sent) && !counted(*to, sent) && !counted(*from, received) && !counted(*from, count::TRANSACTIONS)
    })
}

/// What a host's counter grew by in all trials, over all its instances or those named.
pub(crate) fn host_growth(trials: &[&Trial], host: &str, counter: &str, of: Option<&str>) -> u64 {
    let records = trials.iter().filter_map(|trial| trial.hosts.get(host));
    let series = records.flat_map(|record| record.named(counter));
    series.filter(|series| of.is_none_or(|of| series.of == of)).map(fathom_model::record::Series::growth).sum()
}

fn total(trials: &[&Trial], side: Side, counter: &str) -> Option<u64> {
    trials
        .iter()
        .filter_map(|trial| record_of(trial, side)?.1.totals.get(counter).copied())
        .reduce(|sum, one| sum + one)
}

/// The places where a host that sends may drop, from the socket to the wire.
const SENDER: &[(&str, &str)] = &[
    (host::UDP_SNDBUF_ERRORS, "sender's socket buffer"),
    (host::IP_OUT_DISCARDS, "sender's ip output"),
    (host::DEV_TX_DROPPED, "sender's device"),
];

/// The places where a host that receives may drop, from the wire to the socket.
const RECEIVER: &[(&str, &str)] = &[
    (host::DEV_RX_DROPPED, "receiver's device"),
    (host::SOFTNET_DROPPED, "receiver's backlog"),
    (host::IP_IN_DISCARDS, "receiver's ip input"),
];

/// Sums up a test of datagrams or frames; nothing for others, or when one end did not count.
pub(crate) fn conservation(test: &TestRun) -> Option<Conservation> {
    let what = match test.layer {
        Layer::Udp => "datagrams",
        Layer::Frames => "frames",
        Layer::Http | Layer::Tcp => return None,
    };
    let trials = usable(&test.trials);
    let (from, to) = one_way(test, count::SENT, count::RECEIVED)?;
    let host_of = |side| trials.iter().find_map(|trial| record_of(trial, side)).map(|(host, _)| host);
    let (sender, receiver) = (host_of(from)?, host_of(to)?);
    let n_sent = total(&trials, from, count::SENT)?;
    let n_received = total(&trials, to, count::RECEIVED)?;
    let mut drops: Vec<Drops> = Vec::new();
    let places = SENDER.iter().map(|place| (sender, place)).chain(RECEIVER.iter().map(|place| (receiver, place)));
    for (host, (counter, place)) in places {
        let n_dropped = host_growth(&trials, host, counter, None);
        if was_sampled(&trials, host, counter) {
            drops.push(Drops { place: (*place).to_owned(), counter: format!("{host} {counter}"), n_dropped });
        }
    }
    drops.extend(socket_drops(test.layer, &trials, to, receiver));
    Some(Conservation {
        what: what.to_owned(),
        n_intended: total(&trials, from, count::INTENDED),
        n_sent,
        n_received,
        n_unexplained: unexplained(n_sent, n_received, &drops),
        drops,
    })
}

fn was_sampled(trials: &[&Trial], host: &str, counter: &str) -> bool {
    trials.iter().any(|trial| trial.hosts.get(host).is_some_and(|record| record.named(counter).next().is_some()))
}

/// Drops for want of room in the receiving socket.
///
/// The host's counter of UDP buffer errors includes the socket's own drops, so the larger of the two counts, once.
fn socket_drops(layer: Layer, trials: &[&Trial], to: Side, receiver: &str) -> Option<Drops> {
    let own = total(trials, to, count::SOCKET_DROPPED);
    let of_host = (layer == Layer::Udp && was_sampled(trials, receiver, host::UDP_RCVBUF_ERRORS))
        .then(|| host_growth(trials, receiver, host::UDP_RCVBUF_ERRORS, None));
    let counter = if of_host > own { host::UDP_RCVBUF_ERRORS } else { count::SOCKET_DROPPED };
    Some(Drops {
        place: "receiver's socket buffer".to_owned(),
        counter: format!("{receiver} {counter}"),
        n_dropped: own.max(of_host)?,
    })
}

/// What no counter explains; negative when more was counted than was sent.
fn unexplained(n_sent: u64, n_received: u64, drops: &[Drops]) -> i64 {
    let dropped: i128 = drops.iter().map(|drop| i128::from(drop.n_dropped)).sum();
    let rest = i128::from(n_sent) - i128::from(n_received) - dropped;
    i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    #[test]
    fn everything_sent_is_received_dropped_at_a_place_or_unexplained() {
        let mut story = Story::new();
        story.udp_stream(&[(1000, 900), (1000, 950)]);
        story.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 60);
        story.host_counter("target", (host::SOFTNET_DROPPED, "cpu0"), 5);
        let run = story.analyzed();
        let sum = run.tests[0].conservation.as_ref().unwrap();
        assert_eq!((sum.n_sent, sum.n_received, sum.n_unexplained), (2000, 1850, 150 - 2 * 65));
        let places: Vec<(&str, u64)> = sum.drops.iter().map(|drop| (drop.place.as_str(), drop.n_dropped)).collect();
        assert_eq!(places, [("receiver's backlog", 10), ("receiver's socket buffer", 120)]);
    }

    #[test]
    fn a_drop_that_socket_and_host_both_saw_counts_once() {
        let mut story = Story::new();
        story.udp_stream(&[(1000, 900)]);
        story.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 100);
        story.total("target", count::SOCKET_DROPPED, 100);
        let run = story.analyzed();
        assert_eq!(run.tests[0].conservation.as_ref().unwrap().n_unexplained, 0);
    }

    #[test]
    fn a_test_of_streams_has_no_conservation() {
        let mut story = Story::new();
        story.tcp_stream(&[1000]);
        assert_eq!(story.analyzed().tests[0].conservation, None);
    }

    #[test]
    fn when_the_responder_sends_it_is_the_sender() {
        let mut story = Story::new();
        story.udp_stream(&[(1000, 900)]);
        for record in story.run.tests[0].trials[0].records.values_mut() {
            record.side = if record.side == Side::Initiator { Side::Responder } else { Side::Initiator };
        }
        story.host_counter("target", (host::UDP_RCVBUF_ERRORS, ""), 100);
        assert_eq!(story.analyzed().tests[0].conservation.as_ref().unwrap().n_unexplained, 0);
    }
}
