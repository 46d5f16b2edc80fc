//! Why a test could not open its connections, by the counters of both hosts while it tried.

use std::collections::BTreeMap;

use fathom_model::{HostRecord, Layer, NextStep, Plan, Run, TestRun, Trial, names::host::TCP_SYN_RETRANS, run::Host};

use crate::{context::AnalysisContext, evidence::TestEvidence, findings::dropped_connects};

/// What the counters say about connections that never opened.
#[derive(Debug, PartialEq)]
pub struct Unreached {
    /// The place that dropped packets, or that none is known.
    pub why: String,
    /// The next step, where a place is known.
    pub next: Option<NextStep>,
}

/// Returns what the counters of two hosts say about the connections that the first one could not open to the second; `None` if it sent no SYN
/// again meanwhile, or the counters of a host were not read.
#[must_use]
pub fn unreached(ends: [(&str, Host); 2], counters: &BTreeMap<String, HostRecord>) -> Option<Unreached> {
    let [from, to] = [ends[0].0.to_owned(), ends[1].0.to_owned()];
    if ![&from, &to].into_iter().all(|host| counters.contains_key(host)) {
        return None;
    }
    let trial = Trial { hosts: counters.clone(), ..Trial::default() };
    let test = TestRun {
        from: from.clone(),
        to: Some(to.clone()),
        trials: vec![trial],
        ..TestRun::new(Layer::Tcp, "connect")
    };
    let hosts = ends.map(|(name, host)| (name.to_owned(), host)).into();
    let run = Run { hosts, tests: vec![test], ..Run::new(Plan::new("", Vec::new())) };
    let context = AnalysisContext::default();
    let seen = TestEvidence::new(&run, &run.tests[0], &context);
    let n_syns = seen.growth(&from, TCP_SYN_RETRANS, None);
    let tried = format!("while {from} sent SYNs again {n_syns} times");
    Some(match dropped_connects(&seen, n_syns) {
        _ if n_syns == 0 => return None,
        Some((what, n, next)) => Unreached { why: format!("{what}: {n} {tried}"), next: Some(next) },
        None => Unreached { why: format!("no counter of {from} and {to} shows a drop {tried}"), next: None },
    })
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES, IP_RP_FILTER_DROPPED},
        record::Series,
        units::Nanos,
    };

    use super::*;

    /// What is said of three SYNs that were sent again, with these counters of the other host.
    fn told(counters: &[(&str, u64)]) -> Unreached {
        let record = |counters: &[(&str, u64)]| HostRecord {
            at_ns: vec![Nanos::ZERO, Nanos::from_secs(4)],
            series: counters
                .iter()
                .map(|(name, n)| Series { name: (*name).to_owned(), of: String::new(), values: vec![100, 100 + n] })
                .collect(),
            ..HostRecord::default()
        };
        let hosts = [("a".to_owned(), record(&[(TCP_SYN_RETRANS, 3)])), ("b".to_owned(), record(counters))].into();
        unreached([("a", Host::default()), ("b", Host::default())], &hosts).unwrap()
    }

    #[test]
    fn a_place_that_dropped_about_as_many_packets_as_syns_were_sent_again_is_named() {
        let found = told(&[(IP_RP_FILTER_DROPPED, 3), (IP_IN_RECEIVES, 7), (IP_IN_DELIVERS, 4)]);
        assert!(found.why.starts_with("b dropped packets because its route back"), "{}", found.why);
        assert!(found.why.ends_with(": 3 while a sent SYNs again 3 times"), "{}", found.why);
        let filtered = told(&[(IP_IN_RECEIVES, 8), (IP_IN_DELIVERS, 4)]);
        assert_eq!(
            filtered.why,
            "a packet filter on b drops packets and does not count them: 4 while a sent SYNs again 3 times"
        );
        assert_eq!(filtered.next.unwrap().on.as_deref(), Some("b"));
        let busy = told(&[(IP_RP_FILTER_DROPPED, 900), (IP_IN_RECEIVES, 904), (IP_IN_DELIVERS, 4)]);
        assert_eq!(busy.why, "no counter of a and b shows a drop while a sent SYNs again 3 times");
    }

    #[test]
    fn without_the_counters_of_both_hosts_nothing_is_said() {
        let only = [("a".to_owned(), HostRecord::default())].into();
        assert_eq!(unreached([("a", Host::default()), ("b", Host::default())], &only), None);
    }
}
