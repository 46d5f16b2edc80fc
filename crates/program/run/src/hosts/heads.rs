//! Which hosts of a plan are reached through which others: heads and the hosts behind them.

use std::collections::BTreeMap;

use fathom_fleet::{
    MemberLink,
    protocol::{Member, MemberReach},
};
use fathom_model::{Plan, plan::HostReach, units::counted};

use super::PathHost;
use crate::exit::{Exit, UserError};

/// The hosts behind heads, each with its head.
pub(super) struct Heads(BTreeMap<String, String>);

impl Heads {
    /// Divides the hosts of several pairs into the groups of a plan, in their order. The first host of a group that may be a head is its
    /// head. A host that a test names on its own, such as the tested one, is in no group.
    ///
    /// # Errors
    /// If there are not at least two hosts for each head, or no host of a group may be a head.
    pub(super) fn of(plan: &Plan) -> Result<Self, UserError> {
        let Some(n_heads) = plan.heads else { return Ok(Self(BTreeMap::new())) };
        let n_heads = usize::try_from(n_heads).unwrap_or(usize::MAX);
        let hosts = grouped_hosts(plan);
        let is_pod = |name: &&&String| matches!(plan.hosts.get(**name), Some(HostReach::Kubernetes(_)));
        if let Some(pod) = hosts.iter().find(is_pod) {
            let what = format!("host `{pod}` is a pod of Kubernetes, and those are reached from here only");
            return Err(UserError::new(Exit::Usage, what).with_line("use", "leave out --heads"));
        }
        if n_heads == 0 || n_heads.saturating_mul(2) > hosts.len() {
            let are = if n_heads == 1 { "is" } else { "are" };
            let what = format!("{} {are} too many for {}", number_of(n_heads, "head"), number_of(hosts.len(), "host"));
            let fix = match hosts.len() / 2 {
                0 => "leave out --heads: only hosts of a group can be behind a head".to_owned(),
                most => format!("--heads {most} or less: a head without hosts behind it is of no use"),
            };
            return Err(UserError::new(Exit::Usage, what).with_line("use", fix));
        }
        let mut behind = BTreeMap::new();
        for place in 0..n_heads {
            let group = &hosts[place * hosts.len() / n_heads..(place + 1) * hosts.len() / n_heads];
            let may_lead = |name: &&&String| !matches!(plan.hosts.get(**name), Some(HostReach::Tls { .. }));
            let head = group.iter().find(may_lead).ok_or_else(|| no_head(group))?;
            let members = group.iter().filter(|name| name != &head);
            behind.extend(members.map(|name| ((*name).clone(), (*head).clone())));
        }
        Ok(Self(behind))
    }

    /// Returns true if a host is connected without a head.
    pub(super) fn is_direct(&self, name: &str) -> bool {
        !self.0.contains_key(name)
    }

    /// Returns the hosts behind heads, each with what its head has to know, and its place on the path.
    ///
    /// # Errors
    /// The errors by host if a host is not described well enough to be reached.
    pub(super) fn links(
        &self,
        plan: &Plan,
        member: impl Fn(&str, &HostReach) -> Result<(MemberReach, String, PathHost), UserError>,
        run_of: impl Fn(&HostReach) -> Option<String>,
    ) -> Result<Vec<(MemberLink, PathHost)>, BTreeMap<String, UserError>> {
        let (mut links, mut errors) = (Vec::new(), BTreeMap::new());
        for (name, head) in &self.0 {
            let reach = &plan.hosts[name];
            match member(name, reach) {
                Ok((member_reach, reached, place)) => {
                    let member = Member { name: name.clone(), reach: member_reach, run: run_of(reach) };
                    let reached = format!("{reached}, through {head}");
                    links.push((MemberLink { head: head.clone(), member, reached }, place));
                }
                Err(error) => drop(errors.insert(name.clone(), error)),
            }
        }
        if errors.is_empty() { Ok(links) } else { Err(errors) }
    }
}

/// Returns the hosts of all groups that tests name, in their order, without those that a test names on their own.
fn grouped_hosts(plan: &Plan) -> Vec<&String> {
    let sides = || plan.tests.iter().flat_map(|test| std::iter::once(&test.from).chain(&test.to));
    let mut hosts: Vec<&String> = Vec::new();
    let mut known = std::collections::BTreeSet::new();
    for host in sides().filter_map(|side| plan.groups.get(side)).flatten() {
        if plan.hosts.contains_key(host) && sides().all(|side| side != host) && known.insert(host) {
            hosts.push(host);
        }
    }
    hosts
}

/// Returns a number with its noun.
fn number_of(n: usize, noun: &str) -> String {
    counted(u64::try_from(n).unwrap_or(u64::MAX), noun)
}

fn no_head(group: &[&String]) -> UserError {
    let names = group.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    UserError::new(
        Exit::Usage,
        format!("none of {names} can be a head: a `fathom serve` starts nothing for its controller"),
    )
    .with_line(
        "use",
        "hosts with the launcher ssh or a command as heads: put them first in the group, or leave out --heads",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use fathom_model::{TestPlan, TrialTimes, units::Nanos};

    fn plan(n_companions: usize, heads: u32) -> Plan {
        let companions: Vec<String> = (1..=n_companions).map(|n| format!("c{n}")).collect();
        let times = TrialTimes { warmup: Nanos::ZERO, duration: Nanos::from_secs(1) };
        let test = TestPlan { to: Some("sut".to_owned()), ..TestPlan::new("tcp_rr", times, "companions") };
        let hosts = companions.iter().cloned().chain(["sut".to_owned()]);
        Plan {
            hosts: hosts.map(|name| (name.clone(), HostReach::Lab(name))).collect(),
            groups: [("companions".to_owned(), companions)].into(),
            heads: Some(heads),
            ..Plan::new("x", vec![test])
        }
    }

    #[test]
    fn hosts_are_divided_evenly_among_their_heads_and_the_tested_host_has_none() {
        let heads = Heads::of(&plan(300, 17)).unwrap();
        let mut n_behind: BTreeMap<&str, usize> = BTreeMap::new();
        heads.0.values().for_each(|head| *n_behind.entry(head).or_default() += 1);
        assert_eq!((heads.0.len(), n_behind.len()), (283, 17));
        assert!(n_behind.values().all(|n| (16..=17).contains(n)), "{n_behind:?}");
        assert!(heads.is_direct("sut") && heads.is_direct("c1") && !heads.is_direct("c2"));
    }

    #[test]
    fn a_head_without_hosts_behind_it_is_refused() {
        assert!(Heads::of(&plan(8, 4)).is_ok());
        let error = Heads::of(&plan(8, 5)).err().unwrap();
        assert_eq!(error.line("use").unwrap(), "--heads 4 or less: a head without hosts behind it is of no use");
        assert_eq!(Heads::of(&plan(1, 1)).err().unwrap().what(), "1 head is too many for 1 host");
    }

    #[test]
    fn a_served_host_is_no_head() {
        let served = HostReach::Tls { address: "192.0.2.1:7700".to_owned(), key: None, data: None };
        let mut plan = plan(4, 1);
        plan.hosts.insert("c1".to_owned(), served.clone());
        assert!(Heads::of(&plan).unwrap().is_direct("c2"));
        (1..=4).for_each(|n| drop(plan.hosts.insert(format!("c{n}"), served.clone())));
        assert!(Heads::of(&plan).err().unwrap().what().contains("c1, c2, c3, c4 can be a head"));
    }
}
