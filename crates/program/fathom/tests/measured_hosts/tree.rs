//! Heads over ssh: the controller logs in at a few hosts, and these log in at the others.

use std::fs;

use fathom_model::{LinkTrial, Side, VerdictState, names::count, units::Nanos};
use fathom_sys::{clock, process::Pidfd};

use crate::{
    rack::Rack,
    test_bed::{BRIEF, until},
};

/// How many `ssh` run at a host, in the order of the hosts: the controller is the first.
fn n_logins(rack: &Rack) -> Vec<usize> {
    let processes = rack.processes();
    let is_ssh = |pid: &&u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "ssh");
    (0..=9).map(|number| processes.get(&number).map_or(0, |all| all.iter().filter(is_ssh).count())).collect()
}

#[test]
fn eight_companions_behind_two_heads_give_a_whole_result_and_leave_nothing_on_any_host() {
    let Some(rack) = Rack::build(9) else { return };
    let sockets = rack.shares_connections();
    rack.inventory("rack.toml", "", "");
    let words = ["udp", "--hosts", "rack.toml", "--heads", "2", "--rate", "160M", "--duration", "3s", "--rounds", "1"];
    let running = rack.start(&[&words[..], &["--json"]].concat());
    rack.measures(9);
    // The controller is connected with the tested host and two heads, b2 and b6, which are the hosts 2 and 6 of the rack.
    assert_eq!(n_logins(&rack), [3, 0, 3, 0, 0, 0, 3, 0, 0, 0]);
    let ending = running.ends();
    ending.succeeded_or_judged();
    let run = ending.run();
    assert_eq!(run.hosts.len(), 9);
    for (name, head) in [("b2", ""), ("b5", ", through b2"), ("b6", ""), ("b9", ", through b6")] {
        let reached = &run.hosts[name].reached;
        assert!(reached.starts_with("ssh ") && reached.ends_with(head), "{name}: {reached}");
    }
    let trial = &run.tests[0].trials[0];
    assert!(trial.links.len() == 8 && trial.links.iter().all(LinkTrial::is_whole));
    let of_links: u64 = trial.links.iter().map(|link| link.records[&link.from].totals[count::SENT]).sum();
    let sent = trial.records.values().find(|record| record.side == Side::Initiator).unwrap();
    assert_eq!(sent.totals[count::SENT], of_links);
    assert!(of_links > 0);
    rack.is_deserted();
    assert_eq!(fs::read_dir(sockets).unwrap().count(), 0, "sockets of shared connections are left");
}

#[test]
fn a_head_passes_its_own_copy_on_to_the_hosts_behind_it() {
    let Some(rack) = Rack::build(5) else { return };
    rack.inventory("rack.toml", "program = \"/nonexistent/fathom\"", "");
    let words = ["udp", "--hosts", "rack.toml", "--heads", "2", "--rate", "8M", "--push-binary", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert_eq!((run.hosts.len(), run.tests[0].links.len()), (5, 4));
    rack.is_deserted();
}

#[test]
fn a_killed_member_is_named_by_its_head_within_three_seconds() {
    let Some(rack) = Rack::build(9) else { return };
    rack.inventory("rack.toml", "", "");
    let words = ["udp", "--hosts", "rack.toml", "--heads", "3", "--rate", "80M", "--duration", "40s", "--rounds", "1"];
    let running = rack.start(&[&words[..], &["--json"]].concat());
    // Of three groups, the second is b4, b5 and b6.
    rack.measures(5);
    let member = rack.agent(5);
    let begin = clock::now();
    Pidfd::open(member).unwrap().kill().unwrap();
    let run = running.ends().code(4).run();
    let took = clock::now() - begin;
    // It is noticed at once; then eight agents end their part, and nine processes end.
    assert!(took < Nanos::from_secs(6), "it took {took}");
    let reason = run.verdict.reasons.join(" ");
    assert_eq!(run.verdict.state, VerdictState::Incomplete, "{reason}");
    assert!(reason.contains("host `b5` was lost") && reason.contains("(its head `b4` says so)"), "{reason}");
    rack.is_deserted();
}

#[test]
fn a_host_behind_a_head_that_cannot_be_used_is_named_and_nothing_is_started() {
    let Some(rack) = Rack::build(4) else { return };
    let of_group = |last: &str| format!("[groups]\npart = [\"b2\", \"{last}\"]\n");
    let config = rack.path("stranger.conf").display().to_string();
    let stranger =
        format!("[hosts.stranger]\ncontrol = \"10.99.0.4\"\nssh_config = {config:?}\ndata = \"10.98.0.1\"\n");
    rack.inventory("rack.toml", "", &format!("{stranger}{}", of_group("stranger")));
    let words = |group: &'static str| ["tcp", "--hosts", "rack.toml", "--from", group, "--heads", "1", "--quiet"];
    let told = ["host `stranger`, behind its head `b2`", "Permission denied", "on b2: shows what happens there"];
    rack.fathom(&words("part")).refused(3, &told);
    rack.is_deserted();

    // Another run has the host.
    rack.inventory("rack.toml", "", &of_group("b3"));
    let first = ["tcp", "--hosts", "rack.toml", "--from", "b3", "--to", "b4", "--duration", "40s", "--rounds", "1"];
    let first = rack.start(&first);
    rack.measures(3);
    rack.fathom(&words("part")).refused(3, &["host `b3`, behind its head `b2`: the host is in use by run "]);
    first.handle().kill().unwrap();
    drop(first);
    until(|| rack.processes().is_empty().then_some(()));
}
