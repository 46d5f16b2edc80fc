//! Why a test could not open its connections, by the links of both hosts and their counters while it tried.

use std::collections::BTreeMap;

use fathom_model::{
    HostRecord, Layer, NextStep, Plan, Run, TestRun, Trial, names::host::TCP_SYN_RETRANS, run::Host, units::counted,
};

use crate::{
    context::AnalysisContext,
    evidence::TestEvidence,
    findings::{LostConnects, broken_links, lost_connects},
};

/// What two hosts show about connections that never opened.
#[derive(Debug, PartialEq)]
pub struct Unreached {
    /// The place that dropped packets, or that none is known.
    pub why: String,
    /// The next step, where a place is known.
    pub next: Option<NextStep>,
}

/// Returns what two hosts show about the connections that the first one could not open to the second, by their links and their counters; `None`
/// if the links are up and the first host sent no SYN again meanwhile, or the counters of a host were not read.
#[must_use]
pub fn unreached(ends: [(&str, Host); 2], counters: &BTreeMap<String, HostRecord>) -> Option<Unreached> {
    let [from, to] = [ends[0].0.to_owned(), ends[1].0.to_owned()];
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
    if let Some(link) = broken_links(&seen).first() {
        return Some(Unreached { why: link.what(), next: Some(link.next()) });
    }
    let n_syns = seen.growth(&from, TCP_SYN_RETRANS, None);
    if n_syns == 0 || ![&from, &to].into_iter().all(|host| counters.contains_key(host)) {
        return None;
    }
    let tried = format!("{from} sent {} again", counted(n_syns, "SYN"));
    Some(match lost_connects(&seen, n_syns) {
        Some(LostConnects { what, next }) => Unreached { why: format!("{what}, while {tried}"), next: Some(next) },
        None => Unreached {
            why: format!("{tried}, and no counter of {from} and {to} shows where they were lost"),
            next: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use fathom_model::{
        names::host::{IP_IN_DELIVERS, IP_IN_RECEIVES, IP_RP_FILTER_DROPPED, SOFTNET_DROPPED},
        names::interface_state::{DOWN, NO_CARRIER, UP},
        record::Series,
        units::Nanos,
    };

    use super::*;

    fn record(counters: &[(&str, u64)]) -> HostRecord {
        let series = |(name, n): &(&str, u64)| Series {
            name: (*name).to_owned(),
            of: String::new(),
            values: vec![100, 100 + n],
        };
        HostRecord {
            at_ns: vec![Nanos::ZERO, Nanos::from_secs(4)],
            series: counters.iter().map(series).collect(),
            ..HostRecord::default()
        }
    }

    /// What is said of three SYNs that were sent again, with these counters of the other host.
    fn told(counters: &[(&str, u64)]) -> Unreached {
        let hosts = [("a".to_owned(), record(&[(TCP_SYN_RETRANS, 3)])), ("b".to_owned(), record(counters))].into();
        unreached([("a", Host::default()), ("b", Host::default())], &hosts).unwrap()
    }

    #[test]
    fn a_place_that_dropped_about_as_many_packets_as_syns_were_sent_again_is_named() {
        let found = told(&[(IP_RP_FILTER_DROPPED, 3), (IP_IN_RECEIVES, 7), (IP_IN_DELIVERS, 4)]);
        assert!(found.why.starts_with("b dropped packets because its route back"), "{}", found.why);
        assert!(
            found.why.ends_with(": 3 packets, perhaps those of this test, while a sent 3 SYNs again"),
            "{}",
            found.why
        );
        let of_core = told(&[(SOFTNET_DROPPED, 4)]);
        assert_eq!(of_core.why, "b dropped 4 packets in the backlog of a core, while a sent 3 SYNs again");
        let busy = told(&[(IP_RP_FILTER_DROPPED, 900), (IP_IN_RECEIVES, 904), (IP_IN_DELIVERS, 4)]);
        assert_eq!(busy.why, "a sent 3 SYNs again, and no counter of a and b shows where they were lost");
    }

    #[test]
    fn packets_that_went_nowhere_may_be_those_of_others_and_too_many_or_too_few_are() {
        let nowhere = |n: u64| told(&[(IP_IN_RECEIVES, 4 + n), (IP_IN_DELIVERS, 4)]);
        let found = nowhere(4);
        let words =
            "b received 4 packets that it gave to no program: a packet filter may drop them, while a sent 3 SYNs again";
        assert_eq!(found.why, words);
        assert_eq!(found.next.unwrap().on.as_deref(), Some("b"));
        assert_eq!([1, 2, 12, 13].map(|n| nowhere(n).next.is_some()), [false, true, true, false]);
    }

    #[test]
    fn a_link_that_is_down_needs_no_counter() {
        let host = |state: &str| {
            let mut host = Host { interface: Some("eth0".to_owned()), ..Host::default() };
            host.environment.note("eth0", "operstate", state);
            host
        };
        let found = unreached([("a", host(NO_CARRIER)), ("b", host(DOWN))], &BTreeMap::new()).unwrap();
        assert_eq!(found.why, "the interface eth0 of b is down");
        assert_eq!(found.next.unwrap().on.as_deref(), Some("b"));
        assert_eq!(unreached([("a", host(UP)), ("b", host(UP))], &BTreeMap::new()), None);
    }

    #[test]
    fn without_the_counters_of_both_hosts_or_a_syn_sent_again_nothing_is_said() {
        let ends = || [("a", Host::default()), ("b", Host::default())];
        let with = |hosts: &[(&str, &[(&str, u64)])]| {
            let records = hosts.iter().map(|(name, counters)| ((*name).to_owned(), record(counters)));
            unreached(ends(), &records.collect())
        };
        assert!(with(&[("a", &[(TCP_SYN_RETRANS, 3)]), ("b", &[])]).is_some());
        assert_eq!(with(&[("a", &[(TCP_SYN_RETRANS, 3)])]), None);
        assert_eq!(with(&[("a", &[]), ("b", &[])]), None);
    }
}
