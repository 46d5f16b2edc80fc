//! The host of a run on which a server runs that is not fathom's.

use std::{collections::BTreeMap, net::IpAddr};

use fathom_model::{
    Layer, Note, Plan, Trial,
    run::{Host, TestRun},
};
use fathom_sys::policy::ResolvedNames;

use super::checked_plan::{CheckedPlan, CheckedTest};

/// Notes in a trial that the counters of a server's host are missing, in full or from now on.
pub(super) fn note_unread(trial: &mut Trial, text: String) {
    if let Some(record) = trial.records.values_mut().next() {
        record.notes.push(Note::new("server-not-read", text));
    }
}

/// Says for each test without a responder whose server is on no host of the run that a host which somebody named has no part in the run.
///
/// In a lab nobody names the hosts.
pub(super) fn unread(plan: &CheckedPlan, tests: &[TestRun]) -> Vec<Option<String>> {
    let has_part = |name: &String| {
        let is_server = tests.iter().any(|test| test.server.as_ref() == Some(name));
        is_server || plan.plan().via.as_ref() == Some(name) || plan.tests.iter().any(|test| test.has_end(name))
    };
    let mut named = plan.plan().hosts.iter().filter(|(_, reach)| !reach.is_of_lab());
    let idle = named.find(|(name, _)| !has_part(name)).map(|(name, _)| name);
    let of_test = |test: &CheckedTest| {
        let host = idle.filter(|_| may_have_server(test) && tests[test.idx].server.is_none())?;
        Some(format!("{host}'s counters were not read: not all connections of this test go to its tested interface"))
    };
    plan.tests.iter().map(of_test).collect()
}

/// Returns the host of a run that all connections or datagrams of a test without a responder reach: at the address of the interface that is
/// tested there. `None` if there is none or an address is not known, and for a test of a path, whose addresses are those of a device.
pub(super) fn server_host(
    test: &CheckedTest,
    plan: &Plan,
    hosts: &BTreeMap<String, Host>,
    resolved: &ResolvedNames,
) -> Option<String> {
    if !may_have_server(test) {
        return None;
    }
    let takes_part = |name: &str| test.initiating_hosts().any(|from| from == name) || plan.via.as_deref() == Some(name);
    let others: Vec<_> = hosts.iter().filter(|(name, _)| !takes_part(name)).collect();
    let at = |address: &IpAddr| others.iter().find(|(_, host)| has_address(host, *address)).map(|(name, _)| *name);
    let targets = test.kind.destinations(&test.options).ok()?;
    let mut reached: Option<&String> = None;
    for target in &targets {
        // A zone belongs to the host that sends.
        let literal: Option<IpAddr> = target.host.split('%').next().and_then(|host| host.parse().ok());
        let addresses = literal.map_or_else(|| resolved.get(&target.host).cloned(), |address| Some(vec![address]))?;
        for address in addresses {
            let host = at(&address)?;
            if reached.replace(host).is_some_and(|before| before != host) {
                return None;
            }
        }
    }
    reached.cloned()
}

/// Returns true if a server that is not fathom's may answer a test.
fn may_have_server(test: &CheckedTest) -> bool {
    let is_of_sockets = matches!(test.kind.layer(), Layer::App | Layer::Http | Layer::Tcp | Layer::Udp);
    is_of_sockets && test.to.is_none() && test.path.is_none()
}

/// Takes a server as not read if its counters are missing in a trial: rules would read them as zero.
pub(super) fn forget_unread_server(test: &mut TestRun) {
    let trials = &test.trials;
    test.server.take_if(|server| trials.iter().any(|trial| !trial.hosts.contains_key(server.as_str())));
}

/// Returns true if the tested interface of a host has this address.
fn has_address(host: &Host, address: IpAddr) -> bool {
    let addresses = host.interface.as_deref().and_then(|interface| host.environment.get(interface, "addresses"));
    addresses.is_some_and(|all| all.split(' ').any(|one| one.parse() == Ok(address)))
}

#[cfg(test)]
mod tests {
    use fathom_model::{Environment, HostRecord};

    use super::*;
    use crate::execute::checked_plan::read_plan;

    /// A test of requests from host a to this URL, in a plan with host b.
    fn plan(url: &str) -> CheckedPlan {
        let text = format!(
            r#"
            schema = "fathom.plan/1"
            title = "one"
            rounds = 1
            [hosts]
            a = "self"
            b = "self"
            [[tests]]
            name = "requests"
            kind = "http_closed"
            from = "a"
            warmup = "0.1s"
            duration = "1s"
            options = {{ url = "{url}" }}
            "#
        );
        CheckedPlan::new(read_plan(&text).unwrap()).unwrap()
    }

    /// Both hosts, with their addresses.
    fn hosts() -> BTreeMap<String, Host> {
        let of = |addresses: &str| {
            let mut environment = Environment::default();
            environment.note("eth0", "addresses", addresses);
            Host { interface: Some("eth0".to_owned()), environment, ..Host::default() }
        };
        [("a", "10.0.0.1 fe80::1"), ("b", "10.0.0.2 10.0.0.3 fe80::2")]
            .map(|(name, addresses)| (name.to_owned(), of(addresses)))
            .into()
    }

    #[test]
    fn the_host_of_a_server_has_all_addresses_that_are_reached() {
        let resolved: ResolvedNames =
            [("web", &["10.0.0.2", "10.0.0.3"][..]), ("spread", &["10.0.0.2", "10.0.0.9"]), ("nowhere", &[])]
                .map(|(name, addresses)| (name.to_owned(), addresses.iter().map(|one| one.parse().unwrap()).collect()))
                .into();
        let cases = [
            ("http://10.0.0.2:8080/", Some("b")),
            ("http://10.0.0.3/", Some("b")),
            ("http://[fe80::2]/", Some("b")),
            ("http://web/", Some("b")),
            ("http://spread/", None),
            ("http://nowhere/", None),
            ("http://unresolved/", None),
            ("http://10.0.0.9/", None),
            // The client is no other host.
            ("http://10.0.0.1/", None),
        ];
        for (url, expected) in cases {
            let plan = plan(url);
            let host = server_host(&plan.tests[0], plan.plan(), &hosts(), &resolved);
            assert_eq!(host.as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn a_named_host_without_a_part_in_the_run_is_told() {
        let plan = plan("http://10.0.0.9/");
        let mut test = TestRun { from: "a".to_owned(), ..TestRun::new(Layer::Http, "http_closed") };
        let text = unread(&plan, std::slice::from_ref(&test)).remove(0).unwrap();
        assert!(text.starts_with("b's counters were not read"), "{text}");
        test.server = Some("b".to_owned());
        assert_eq!(unread(&plan, std::slice::from_ref(&test)), [None]);
        test.trials = vec![Trial::default(), Trial::default()];
        test.trials[0].hosts.insert("b".to_owned(), HostRecord::default());
        forget_unread_server(&mut test);
        assert_eq!(test.server, None, "it was lost in the second trial");
    }
}
