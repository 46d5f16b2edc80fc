//! Where everything that was sent went.

use fathom_model::{
    Conservation, Record,
    names::{
        count::{INTENDED, RECEIVED, SEND_REFUSED, SENT, SOCKET_DROPPED},
        host::{DEV_RX_DROPPED, DEV_TX_DROPPED, SOFTNET_DROPPED},
    },
    summary::Drops,
};

/// Accounts for the frames of a trial from the records of its two sides: sent = received + drops + unexplained.
///
/// The places are asked in the order in which a frame passes them, and none is made to explain more than is still missing:
/// the counters also see what others lose, and on virtual devices two of them may see the same loss.
#[must_use]
pub fn conservation(initiator: &Record, responder: &Record) -> Conservation {
    let of = |record: &Record, name: &str| record.totals.get(name).copied();
    let sent = of(initiator, SENT).unwrap_or(0);
    let received = of(responder, RECEIVED).unwrap_or(0);
    // A frame that the device refused was never accepted, so it is not among those sent.
    let refused = of(initiator, SEND_REFUSED).unwrap_or(0);
    let sender_device = of(initiator, DEV_TX_DROPPED).unwrap_or(0).saturating_sub(refused);
    let places = [
        ("sender's device", DEV_TX_DROPPED, sender_device),
        ("receiver's device", DEV_RX_DROPPED, of(responder, DEV_RX_DROPPED).unwrap_or(0)),
        ("receiver's backlog", SOFTNET_DROPPED, of(responder, SOFTNET_DROPPED).unwrap_or(0)),
        ("receiver's socket", SOCKET_DROPPED, of(responder, SOCKET_DROPPED).unwrap_or(0)),
    ];
    let mut missing = sent.saturating_sub(received);
    let mut drops = Vec::new();
    for (place, counter, n) in places {
        let n_dropped = n.min(missing);
        missing -= n_dropped;
        if n_dropped > 0 {
            drops.push(Drops { place: place.to_owned(), counter: counter.to_owned(), n_dropped });
        }
    }
    let too_many = received.saturating_sub(sent);
    let n_unexplained = if too_many > 0 { -signed(too_many) } else { signed(missing) };
    Conservation {
        what: "frames".to_owned(),
        n_intended: of(initiator, INTENDED),
        n_sent: sent,
        n_received: received,
        drops,
        n_unexplained,
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use fathom_model::{Side, Timeline, units::Nanos};

    use super::*;

    fn record(side: Side, totals: &[(&str, u64)]) -> Record {
        Record {
            side,
            start_ns: Nanos::ZERO,
            start_late_ns: Nanos::ZERO,
            measured_ns: (Nanos::ZERO, Nanos::ZERO),
            steady: true,
            complete: true,
            cpu_ns: Nanos::ZERO,
            timeline: Timeline::default(),
            totals: totals.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            distributions: std::collections::BTreeMap::new(),
            flows: Vec::new(),
            errors: std::collections::BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    fn account(sent: &[(&str, u64)], received: &[(&str, u64)]) -> (Vec<(String, u64)>, i64) {
        let account = conservation(&record(Side::Initiator, sent), &record(Side::Responder, received));
        (account.drops.into_iter().map(|drops| (drops.place, drops.n_dropped)).collect(), account.n_unexplained)
    }

    #[test]
    fn a_refused_frame_that_the_device_counts_as_dropped_explains_no_loss() {
        let sender = [(SENT, 100), (SEND_REFUSED, 7), (DEV_TX_DROPPED, 9)];
        let (drops, unexplained) = account(&sender, &[(RECEIVED, 97)]);
        assert_eq!(drops, [("sender's device".to_owned(), 2)]);
        assert_eq!(unexplained, 1);
    }

    #[test]
    fn a_loss_that_two_counters_see_is_counted_once() {
        let sender = [(SENT, 100), (DEV_TX_DROPPED, 10)];
        let receiver = [(RECEIVED, 85), (SOFTNET_DROPPED, 10), (SOCKET_DROPPED, 1)];
        let expected = [("sender's device".to_owned(), 10), ("receiver's backlog".to_owned(), 5)];
        assert_eq!(account(&sender, &receiver), (expected.to_vec(), 0));
    }

    #[test]
    fn more_than_was_sent_is_unexplained_too() {
        assert_eq!(account(&[(SENT, 100)], &[(RECEIVED, 101)]), (vec![], -1));
    }
}
