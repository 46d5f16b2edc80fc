//! One host of several gets much less than the others, or one way between two of them.

use std::collections::BTreeSet;

use fathom_model::{Evidence, Finding, Link, NextStep, Severity};
use fathom_statistics::median;

use super::FindingRule;
use crate::{evidence::TestEvidence, gap::reaches_a_limit, sharing::differing_end, summaries::main_rate};

/// Below this part of the median of the others, a host is slow. Hosts that compete for one port differ by less, by chance.
const SLOW: f64 = 0.6;
/// With fewer hosts, nobody knows which of them is as it should be.
const HOSTS_MIN: usize = 3;

/// Compares the hosts of a star, and the rows and columns of a mesh.
pub(crate) struct SlowHost;

impl FindingRule for SlowHost {
    fn id(&self) -> &'static str {
        "slow-host"
    }

    fn effect_of(&self) -> &'static [&'static str] {
        &[
            "local-shaper",
            "cpu-quota",
            "core-saturated",
            "link-down",
            "link-mode",
            "filter-drops",
            "ingress-filter-drops",
            "qdisc-drops",
            "ring-drops",
            "damaged-frames",
            "other-programs",
        ]
    }

    fn evaluate(&self, seen: &TestEvidence<'_>) -> Vec<Finding> {
        let slow = slow_ways(&seen.test.links).or_else(|| {
            let differs = differing_end(seen.test)?;
            slow_of(&by_host(&seen.test.links, differs)).map(|(host, part)| Slow { host, part, way: Way::Host })
        });
        slow.and_then(|slow| finding(seen, self.id(), &slow)).into_iter().collect()
    }
}

/// What of a slow host is slow.
#[derive(Debug, Clone, PartialEq)]
enum Way {
    /// Its part of a star.
    Host,
    /// Everything that it sends in a mesh: its row.
    From,
    /// Everything that reaches it in a mesh: its column.
    To,
    /// Both.
    Both,
    /// Only its traffic to this host.
    Pair(String),
}

#[derive(Debug, Clone, PartialEq)]
struct Slow {
    host: String,
    /// Its rate as a part of the median of the others.
    part: f64,
    way: Way,
}

/// A host with its rate in each trial.
type HostRates = (String, Vec<f64>);

/// Adds the rates of the pairs of each host at an end.
fn by_host(links: &[Link], end: fn(&Link) -> Option<&str>) -> Vec<HostRates> {
    let mut all: Vec<HostRates> = Vec::new();
    for link in links.iter().filter(|link| !link.trials.is_empty()) {
        let Some(host) = end(link) else { continue };
        match all.iter_mut().find(|(known, _)| known == host) {
            Some((_, rates)) => rates.iter_mut().zip(&link.trials).for_each(|(sum, rate)| *sum += rate),
            None => all.push((host.to_owned(), link.trials.clone())),
        }
    }
    all
}

fn mean(rates: &[f64]) -> f64 {
    fathom_statistics::mean(rates).unwrap_or(0.0)
}

/// Returns the slowest host with its part of the median of the others, if it is slow in every trial and the only one.
fn slow_of(hosts: &[HostRates]) -> Option<(String, f64)> {
    if hosts.len() < HOSTS_MIN {
        return None;
    }
    let (slowest, rates) = hosts.iter().min_by(|a, b| mean(&a.1).total_cmp(&mean(&b.1)))?;
    let others = || hosts.iter().filter(|(host, _)| host != slowest);
    let usual = median(&others().map(|(_, rates)| mean(rates)).collect::<Vec<_>>()).filter(|usual| *usual > 0.0)?;
    let is_always = rates.iter().enumerate().all(|(trial, rate)| {
        let of_others: Vec<f64> = others().filter_map(|(_, rates)| rates.get(trial).copied()).collect();
        median(&of_others).is_some_and(|usual| *rate < SLOW * usual)
    });
    let is_alone = others().all(|(_, rates)| mean(rates) >= SLOW * usual);
    (is_always && is_alone).then(|| (slowest.clone(), mean(rates) / usual))
}

/// Returns what is slow in a mesh or a ring: a row, a column, both of one host, or a single way. `None` for a star.
fn slow_ways(links: &[Link]) -> Option<Slow> {
    let froms: BTreeSet<&str> = links.iter().map(|link| link.from.as_str()).collect();
    let tos: BTreeSet<&str> = links.iter().filter_map(|link| link.to.as_deref()).collect();
    if froms.len() < 2 || tos.len() < 2 {
        return None;
    }
    let is_mesh = links.len() > froms.len();
    let row = slow_of(&by_host(links, |link| Some(&link.from))).filter(|_| is_mesh);
    let column = slow_of(&by_host(links, |link| link.to.as_deref())).filter(|_| is_mesh);
    match (row, column) {
        (Some((host, part)), Some((other, of_other))) if host == other => {
            Some(Slow { host, part: part.min(of_other), way: Way::Both })
        }
        (Some((host, part)), None) => Some(Slow { host, part, way: Way::From }),
        (None, Some((host, part))) => Some(Slow { host, part, way: Way::To }),
        // Two hosts of which one sends slowly and the other receives slowly are one slow way.
        _ => {
            let ways: Vec<HostRates> =
                links.iter().enumerate().map(|(n, link)| (n.to_string(), link.trials.clone())).collect();
            let (n, part) = slow_of(&ways)?;
            let link = links.get(n.parse::<usize>().ok()?)?;
            Some(Slow { host: link.from.clone(), part, way: Way::Pair(link.to.clone()?) })
        }
    }
}

fn finding(seen: &TestEvidence<'_>, id: &str, slow: &Slow) -> Option<Finding> {
    let main = &main_rate(seen.test)?.metric;
    let links = || seen.test.links.iter().filter(|link| concerns(link, slow));
    let rate: f64 = links().map(|link| mean(&link.trials)).sum();
    let usual = rate / slow.part;
    let host = &slow.host;
    let what = match &slow.way {
        Way::Host => host.clone(),
        Way::From => format!("everything that {host} sends"),
        Way::To => format!("everything that reaches {host}"),
        Way::Both => format!("everything to and from {host}"),
        Way::Pair(to) => format!("the path from {host} to {to}"),
    };
    let others = if matches!(slow.way, Way::Pair(_)) { "other paths" } else { "other hosts" };
    let proof = |link: &Link| Evidence {
        host: host.clone(),
        counter: format!("{} {} → {}", main.title, link.from, link.to.as_deref().unwrap_or("target")),
        value: main.show(mean(&link.trials)),
    };
    let title = if rate > 0.0 {
        format!("{what} is slow: {}; the median of the {others} is {}", main.show(rate), main.show(usual))
    } else {
        format!("{what} gets nothing through; the {others} do")
    };
    let command = NextStep::new(format!("ip -s -s link show dev {}", seen.interface(host)));
    let expected = "show errors and drops of its interface; its cable and its port on the switch come next";
    // Of hosts that fill the port of the one they share, the distant ones get less.
    let severity = if reaches_a_limit(seen) { Severity::Remark } else { Severity::HoldsBack };
    let finding = seen.finding(id, severity, "slow host", title).evidence(links().map(proof));
    Some(finding.next(command.on(host).expected(expected)))
}

/// Returns true if a pair is one of those that are slow.
fn concerns(link: &Link, slow: &Slow) -> bool {
    let (sends, receives) = (link.from == slow.host, link.to.as_ref() == Some(&slow.host));
    match &slow.way {
        Way::From => sends,
        Way::To => receives,
        Way::Host | Way::Both => sends || receives,
        Way::Pair(to) => sends && link.to.as_ref() == Some(to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_builder::RunBuilder;

    #[test]
    fn one_slow_companion_of_a_star_is_named_and_even_ones_are_not() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000, 1_100]), ("c2", &[1_050, 950]), ("c3", &[300, 320]), ("c4", &[900, 1_000])]);
        let finding = builder.finding("slow-host").unwrap();
        assert_eq!((finding.severity, finding.evidence[0].host.as_str()), (Severity::HoldsBack, "c3"));
        assert_eq!(finding.title, "c3 is slow: 2.48 kbit/s; the median of the other hosts is 7.92 kbit/s");
        let mut even = RunBuilder::new();
        even.star(&[("c1", &[1_000, 700]), ("c2", &[700, 1_000]), ("c3", &[800, 900])]);
        assert!(even.finding("slow-host").is_none());
    }

    #[test]
    fn a_host_that_is_slow_in_one_round_only_is_chance_and_two_slow_ones_are_no_rule() {
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000, 1_000]), ("c2", &[1_000, 1_000]), ("c3", &[100, 1_000])]);
        assert!(builder.finding("slow-host").is_none());
        let mut builder = RunBuilder::new();
        builder.star(&[("c1", &[1_000]), ("c2", &[1_000]), ("c3", &[100]), ("c4", &[200])]);
        assert!(builder.finding("slow-host").is_none());
    }

    /// The pairs of a mesh of four hosts, each with the rate that `of` gives it.
    fn mesh(of: impl Fn(&str, &str) -> f64) -> Vec<Link> {
        let hosts = ["a", "b", "c", "d"];
        let pairs = hosts.iter().flat_map(|from| hosts.iter().map(move |to| (*from, *to)));
        let link = |(from, to): (&str, &str)| Link {
            from: from.to_owned(),
            to: Some(to.to_owned()),
            trials: vec![of(from, to); 2],
            ..Link::default()
        };
        pairs.filter(|(from, to)| from != to).map(link).collect()
    }

    #[test]
    fn a_mesh_tells_a_slow_row_from_a_slow_column_and_from_a_slow_way() {
        let slow = |of: &dyn Fn(&str, &str) -> bool| {
            slow_ways(&mesh(|from, to| if of(from, to) { 10.0 } else { 100.0 })).map(|slow| (slow.host, slow.way))
        };
        let named = |host: &str, way: Way| Some((host.to_owned(), way));
        assert_eq!(slow(&|from, _| from == "c"), named("c", Way::From));
        assert_eq!(slow(&|_, to| to == "b"), named("b", Way::To));
        assert_eq!(slow(&|from, to| from == "d" || to == "d"), named("d", Way::Both));
        assert_eq!(slow(&|from, to| (from, to) == ("a", "c")), named("a", Way::Pair("c".to_owned())));
        assert_eq!(slow(&|_, _| false), None);
    }
}
