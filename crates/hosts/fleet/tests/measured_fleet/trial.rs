//! Trials over agents in this process and in children, with normal ends and all kinds of failures.

use std::{
    cell::Cell,
    env,
    io::{Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    process::Command,
    thread,
};

use super::counting::{agent_in_thread, cast, fleet, part, plan, play, role, serve};
use fathom_fleet::{
    AgentStream, Assignment, Disconnected, Error, ErrorClass, Fleet, HostLink, Liveness, Opening, TrialCallbacks,
    launcher,
    protocol::{self, RoleId, ToAgent},
};
use fathom_model::{Record, Side, units::Nanos};
use fathom_sys::{
    clock,
    netlink::namespace::{Namespaces, NetNs},
    policy::Policy,
    process::confinement::Confinement,
};

const SHORT: Nanos = Nanos::from_millis(200);
const LONG: Nanos = Nanos::from_secs(30);

/// Set in a child that should act as an agent.
const AGENT: &str = "FATHOM_FLEET_TEST_AGENT";

/// This program as an agent. The test harness writes to standard output, so both directions use standard input.
fn child_agent(namespaces: Option<&Namespaces>) -> AgentStream {
    let mut command = Command::new("sh");
    let program = env::current_exe().unwrap();
    let script = r#"exec "$0" --exact trial::a_child_plays_an_agent --nocapture >/dev/null"#;
    command.args(["-c", script]).arg(program).env(AGENT, "1");
    launcher::command(command, namespaces, "a child".to_owned()).unwrap()
}

#[test]
fn a_child_plays_an_agent() {
    if env::var_os(AGENT).is_some() {
        let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
        // How its controller was disconnected does not matter: this process exits now.
        let _ = serve(stream, Policy::anything());
    }
}

fn steps(record: &Record) -> u64 {
    record.totals["steps"]
}

#[test]
fn two_hosts_start_together_and_their_records_are_gathered() {
    let mut fleet = fleet(&["a", "b"]);
    let mut seen = Vec::new();
    let plan = plan("a", "b", Nanos::from_millis(700));
    let mut live =
        |_: usize, host: &str, side, live: fathom_engine::LiveProgress| seen.push((host.to_owned(), side, live.growth));
    let mut outcome =
        fleet.run_trial(&plan, &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} });

    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    let trial = outcome.trials.remove(0);
    assert_eq!(trial.round, 3);
    assert_eq!(trial.records.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((trial.records["a"].side, trial.records["b"].side), (Side::Initiator, Side::Responder));
    assert!(trial.records.values().all(|record| record.complete && steps(record) > 10), "{trial:?}");
    assert!(trial.start_skew_ns < Nanos::from_millis(10), "the start was spread over {}", trial.start_skew_ns);
    assert!(seen.iter().any(|(host, side, growth)| host == "a" && *side == Side::Initiator && *growth > 0), "{seen:?}");
    for host in ["a", "b"] {
        let (samples, record) = (&trial.hosts[host].at_ns, &trial.records[host]);
        assert!(samples.first().unwrap() < &record.start_ns, "one sample before the start");
        assert!(samples.last().unwrap() > &(record.start_ns + record.measured_ns.1), "one after the end");
        assert!(samples.len() >= 5, "and some between: {}", samples.len());
        assert_eq!(outcome.unavailable[host], ["the driver tells no queues"]);
    }
}

#[test]
fn one_host_can_play_both_sides_and_is_watched_once() {
    let mut fleet = fleet(&["a"]);
    let outcome = play(&mut fleet, &plan("a", "a", SHORT));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.trials[0].records.keys().collect::<Vec<_>>(), ["a", "a/responder"]);
    assert_eq!(outcome.trials[0].hosts.len(), 1);
}

#[test]
fn several_initiators_start_together() {
    let mut fleet = fleet(&["a", "b", "c"]);
    let mut plan = plan("a", "c", SHORT);
    plan.tests[0].initiators.push(part("b", Side::Initiator, SHORT));
    let outcome = play(&mut fleet, &plan);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(outcome.trials[0].records.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(outcome.trials[0].start_skew_ns < Nanos::from_millis(10), "{}", outcome.trials[0].start_skew_ns);
}

#[test]
fn two_tests_that_are_made_together_have_a_trial_each_and_the_counters_of_their_hosts_in_both() {
    let mut fleet = fleet(&["a", "b"]);
    let mut plan = plan("a", "b", SHORT);
    plan.tests.push(cast("b", "a", SHORT));
    let outcome = play(&mut fleet, &plan);
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    for (trial, sides) in outcome.trials.iter().zip([["a", "b"], ["b", "a"]]) {
        let of = |side: Side| trial.records.iter().find(|(_, record)| record.side == side).unwrap();
        let ((from, sent), (to, received)) = (of(Side::Initiator), of(Side::Responder));
        assert_eq!([from, to], sides);
        assert!(sent.complete && received.complete && steps(sent) > 0 && steps(received) > 0, "{trial:?}");
        assert_eq!(trial.hosts.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
    let starts = || outcome.trials.iter().flat_map(|trial| trial.records.values().map(|one| one.start_ns));
    let spread = starts().max().unwrap() - starts().min().unwrap();
    assert!(spread < Nanos::from_millis(10), "the start was spread over {spread}");
}

#[test]
fn a_host_is_described_with_its_clock() {
    let mut fleet = fleet(&["a"]);
    assert_eq!(fleet.environment("a").unwrap().get("kernel", "release"), Some("6.18"));
    assert!(fleet.facts("a").unwrap().cores.is_some_and(|cores| cores > 0));
    let host = fleet.describe("a").unwrap();
    // Both ends read the same clock and recognize it by its name, so nothing is estimated.
    assert_eq!((host.clock_offset_ns, host.clock_error_ns), (0, Nanos::ZERO), "{host:?}");
    assert!(matches!(fleet.environment("z"), Err(Error::UnknownHost { .. })));
}

#[test]
fn the_counters_of_a_host_come_as_changes_and_a_failure_to_read_them_ends_nothing() {
    let mut fleet = fleet(&["a"]);
    let first = fleet.counters("a").unwrap();
    assert_eq!((first.keys.len(), first.values), (1, vec![(0, Some(1))]));
    for n in 2..10 {
        let next = fleet.counters("a").unwrap();
        assert!(next.at_ns > first.at_ns && next.keys.is_empty(), "{next:?}");
        assert_eq!(next.values, [(0, Some(n))]);
    }
    let failed = fleet.counters("a").unwrap_err().to_string();
    assert!(failed.contains("the counters cannot be read: told to"), "{failed}");
    assert!(fleet.environment("a").is_ok());
    assert!(matches!(fleet.counters("b"), Err(Error::UnknownHost { .. })));
}

#[test]
fn a_panic_of_a_test_is_told_and_the_agent_goes_on() {
    let mut fleet = fleet(&["a", "b"]);
    let mut faulty = plan("a", "b", SHORT);
    faulty.tests[0].initiators[0].role.settings.set("fault", "panic");
    let outcome = play(&mut fleet, &faulty);
    let error = outcome.error.unwrap();
    assert_eq!(error.class(), ErrorClass::Failed);
    assert!(
        error.to_string().starts_with("host `a`: the test `count`") && error.to_string().contains("told to"),
        "{error}"
    );
    assert!(!outcome.trials[0].records["b"].complete, "what the other side recorded is kept");
    assert!(play(&mut fleet, &plan("a", "b", SHORT)).error.is_none(), "the next trial runs");
}

#[test]
fn what_cannot_be_prepared_is_told_before_anything_starts() {
    let mut fleet = fleet(&["a", "b"]);
    let mut unknown = plan("a", "b", SHORT);
    unknown.tests[0].initiators[0].role.kind = "cuont".to_owned();
    let error = play(&mut fleet, &unknown).error.unwrap();
    assert_eq!(
        (error.class(), error.to_string()),
        (ErrorClass::Usage, "host `a`: there is no test kind `cuont`; there are count".to_owned())
    );

    let mut alone = plan("a", "b", SHORT);
    alone.tests[0].responder = None;
    let error = play(&mut fleet, &alone).error.unwrap();
    assert_eq!(error.class(), ErrorClass::Preflight, "{error}");
    let nobody = plan("a", "nobody", SHORT);
    assert_eq!(play(&mut fleet, &nobody).error.unwrap().to_string(), "there is no host `nobody`; there are a, b");
}

#[test]
fn an_agent_refuses_to_send_outside_its_policy() {
    let policy = Policy::served("127.0.0.1".parse().unwrap(), Vec::new());
    let mut fleet = fleet(&["b"]);
    fleet.connect("a", agent_in_thread(policy)).unwrap();
    // The responder's endpoint is 198.18.0.2.
    let error = play(&mut fleet, &plan("a", "b", SHORT)).error.unwrap();
    assert_eq!(error.class(), ErrorClass::Preflight);
    assert!(error.to_string().contains("198.18.0.2 is refused"), "{error}");
    assert_eq!(error.hint(), Some("start the server there with --allow 198.18.0.2"));
}

#[test]
fn a_trial_beyond_the_longest_is_refused() {
    let error = play(&mut fleet(&["a", "b"]), &plan("a", "b", Nanos::from_secs(48 * 3600))).error.unwrap();
    assert_eq!(error.class(), ErrorClass::Preflight);
    assert!(error.to_string().contains("is the longest here"), "{error}");
}

#[test]
fn a_connection_that_breaks_leaves_what_the_others_recorded() {
    let mut fleet = fleet(&["a"]);
    let link = agent_in_thread(Policy::anything());
    let cut = link.stream.try_clone().unwrap();
    fleet.connect("b", link).unwrap();
    let mut live = |_: usize, _: &str, _, _| cut.shutdown(Shutdown::Both).unwrap_or(());
    let plan = plan("a", "b", LONG);
    let outcome =
        fleet.run_trial(&plan, &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} });
    let error = outcome.error.unwrap();
    assert_eq!(
        (error.class(), error.to_string()),
        (ErrorClass::Incomplete, "host `b` was lost: the connection was closed".to_owned())
    );
    assert!(!outcome.trials[0].records["a"].complete && steps(&outcome.trials[0].records["a"]) > 10);
    assert!(fleet.has("a") && !fleet.has("b"));
    assert_eq!(play(&mut fleet, &plan).error.unwrap().class(), ErrorClass::Incomplete, "a lost host stays lost");
    fleet.connect("b", agent_in_thread(Policy::anything())).unwrap();
    assert!(play(&mut fleet, &super::counting::plan("a", "b", SHORT)).error.is_none(), "until it is connected again");
}

#[test]
fn the_loss_of_a_host_that_only_looks_ends_a_trial_unless_it_is_spared() {
    for is_spared in [true, false] {
        let mut fleet = fleet(&["a", "b"]);
        let link = agent_in_thread(Policy::anything());
        let cut = link.stream.try_clone().unwrap();
        fleet.connect("c", link).unwrap();
        let mut live = |_: usize, _: &str, _, _| cut.shutdown(Shutdown::Both).unwrap_or(());
        let mut plan = plan("a", "b", Nanos::from_millis(1500));
        plan.observers = vec![Assignment::observer("c", &plan.tests[0].initiators[0].role)];
        plan.spared.extend(is_spared.then(|| "c".to_owned()));
        let outcome =
            fleet.run_trial(&plan, &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} });
        assert_eq!(outcome.error.is_none(), is_spared, "{:?}", outcome.error);
        assert_eq!(outcome.lost.iter().any(|lost| lost.host == "c"), is_spared);
        assert_eq!(outcome.trials[0].records["a"].complete, is_spared);
    }
}

#[test]
fn children_in_namespaces_of_their_own_start_together() {
    if fathom_testkit::lacks_privileges(fathom_sys::process::may_administer_network()) {
        return;
    }
    let mut fleet = Fleet::new("fathom 0.1.0");
    for host in ["a", "b"] {
        let namespaces = Namespaces { user: None, net: NetNs::new().unwrap(), confinement: Confinement::default() };
        let link = child_agent(Some(&namespaces));
        let place = format!("/proc/{}/ns/net", link.process.as_ref().unwrap().id());
        assert!(NetNs::open(place).unwrap().is_same(&namespaces.net).unwrap());
        fleet.connect(host, link).unwrap();
    }
    let outcome = play(&mut fleet, &plan("a", "b", SHORT));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert!(outcome.trials[0].start_skew_ns < Nanos::from_millis(10), "{}", outcome.trials[0].start_skew_ns);
}

#[test]
fn a_child_that_is_killed_is_named_with_the_signal() {
    let mut fleet = fleet(&["a"]);
    let link = child_agent(None);
    let pid = link.process.as_ref().unwrap().id();
    fleet.connect("b", link).unwrap();
    assert!(play(&mut fleet, &plan("a", "b", SHORT)).error.is_none(), "a trial with a child");
    let child = fathom_sys::process::Pidfd::open(pid).unwrap();
    let mut live = |_: usize, _: &str, _, _| child.kill().unwrap();
    let outcome = fleet.run_trial(
        &plan("b", "a", LONG),
        &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} },
    );
    let text = outcome.error.unwrap().to_string();
    assert!(text.contains("host `b` was lost") && text.contains("signal: 9 (SIGKILL)"), "{text}");
    assert!(!outcome.trials[0].records["a"].complete, "what the responder recorded is kept");
}

#[test]
fn a_child_that_hangs_is_given_up_after_three_seconds() {
    let mut fleet = fleet(&["a"]);
    let link = child_agent(None);
    let pid = link.process.as_ref().unwrap().id().to_string();
    fleet.connect("b", link).unwrap();
    let hang = || assert!(Command::new("kill").args(["-STOP", &pid]).status().unwrap().success());
    let begin = clock::now();
    let mut live = |_: usize, host: &str, _, _| {
        if host == "b" {
            hang();
        }
    };
    let outcome = fleet.run_trial(
        &plan("a", "b", LONG),
        &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} },
    );
    let text = outcome.error.unwrap().to_string();
    assert!(text.starts_with("host `b` was lost: nothing was heard for 3 s") && !text.contains("signal"), "{text}");
    assert!(!outcome.trials[0].records["a"].complete, "what the other side recorded is kept");
    assert!(clock::now() - begin < Nanos::from_secs(8));
}

#[test]
fn a_machine_that_stood_still_for_four_seconds_finishes_its_trial() {
    let mut fleet = fleet(&["a"]);
    let link = child_agent(None);
    let pid = link.process.as_ref().unwrap().id().to_string();
    fleet.connect("b", AgentStream { liveness: Liveness::EndOfStream, ..link }).unwrap();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    let is_done = Cell::new(false);
    // Called by the controller, which is suspended together with its agent.
    let mut live = |_: usize, _: &str, _, _| {
        if !is_done.replace(true) {
            signal("-STOP");
            clock::sleep_until(clock::now() + Nanos::from_secs(4));
            signal("-CONT");
        }
    };
    let plan = plan("a", "b", Nanos::from_secs(1));
    let outcome =
        fleet.run_trial(&plan, &mut TrialCallbacks { live: &mut live, is_stopped: &|| false, on_start: &|_| {} });
    assert!(is_done.get() && outcome.error.is_none(), "{:?}", outcome.error);
}

/// A link to an agent in a thread, for a run that wants the host for itself.
fn held(name: &str, run: Option<&str>) -> HostLink {
    let stream = agent_in_thread(Policy::anything());
    HostLink { name: name.to_owned(), stream, run: run.map(str::to_owned) }
}

#[test]
fn a_host_belongs_to_one_run_and_another_one_learns_which() {
    let mut first = Fleet::new("fathom 0.1.0");
    assert!(first.connect_all(vec![held("a", Some("run 1 of me"))]).iter().all(Result::is_ok));
    let mut second = Fleet::new("fathom 0.1.0");
    let outcomes = second.connect_all(vec![held("a", Some("run 2 of you")), held("b", None)]);
    let refusal = outcomes[0].as_ref().unwrap_err();
    assert_eq!(
        (refusal.class(), refusal.to_string().as_str()),
        (ErrorClass::Preflight, "host `a`: the host is in use by run 1 of me")
    );
    assert!(outcomes[1].is_ok(), "a host that is shared is not refused");
    assert_eq!(second.facts("b").unwrap().held_by.as_deref(), Some("run 1 of me"));
    drop(first);
    // The agent of the first run ends in a thread of its own.
    let deadline = clock::now() + Nanos::from_secs(10);
    while second.connect_all(vec![held("a", Some("run 2 of you"))])[0].is_err() {
        assert!(clock::now() < deadline, "the host is never free");
    }
}

#[test]
fn agents_that_greet_late_and_after_a_text_are_connected_at_once() {
    let late = |name: &str| {
        let mut command = Command::new("sh");
        let script =
            r#"echo Welcome >&0; sleep 1; exec "$0" --exact trial::a_child_plays_an_agent --nocapture >/dev/null"#;
        command.args(["-c", script]).arg(env::current_exe().unwrap()).env(AGENT, "1");
        let stream = launcher::command(command, None, "a child".to_owned()).unwrap();
        HostLink { name: name.to_owned(), stream: AgentStream { opening: Opening::TextThenFrame, ..stream }, run: None }
    };
    let begin = clock::now();
    let mut fleet = Fleet::new("fathom 0.1.0");
    let outcomes = fleet.connect_all(["a", "b", "c", "d"].map(late).into());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(clock::now() - begin < Nanos::from_secs(3), "four agents took {}", clock::now() - begin);
    assert_eq!(fleet.program("d").unwrap(), "fathom 0.1.0");
    let outcome = play(&mut fleet, &plan("a", "d", SHORT));
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
}

#[test]
fn a_program_that_prints_and_never_greets_is_quoted() {
    let words = ["sh", "-c", "echo This account is closed."].map(str::to_owned);
    let error = Fleet::new("fathom 0.1.0").connect("a", launcher::exec(&words).unwrap()).unwrap_err();
    assert!(error.to_string().ends_with("it printed: This account is closed."), "{error}");
    assert!(launcher::exec(&[]).is_err());
}

#[test]
fn an_agent_whose_controller_reads_nothing_ends() {
    let (near, far) = UnixStream::pair().unwrap();
    let agent = thread::spawn(|| serve(far, Policy::anything()));
    let mut output = near.try_clone().unwrap();
    let ask = protocol::write(&ToAgent::Clock { t0: Nanos(1) }).unwrap();
    // The test never reads the agent's messages.
    while !agent.is_finished() && output.write_all(&ask).is_ok() {}
    let loss = agent.join().unwrap().unwrap_err();
    assert!(matches!(loss, Disconnected::SendQueueFull), "{loss:?}");
}

#[test]
fn a_trial_that_is_stopped_keeps_what_was_measured() {
    let mut fleet = fleet(&["a", "b"]);
    let (stopped, begin) = (Cell::new(false), clock::now());
    let mut live = |_: usize, _: &str, _, _| stopped.set(true);
    let plan = plan("a", "b", LONG);
    let outcome = fleet
        .run_trial(&plan, &mut TrialCallbacks { live: &mut live, is_stopped: &|| stopped.get(), on_start: &|_| {} });
    assert!(matches!(outcome.error, Some(Error::Interrupted)), "{:?}", outcome.error);
    assert_eq!(outcome.trials[0].records.len(), 2);
    assert!(outcome.trials[0].records.values().all(|record| !record.complete && steps(record) > 10));
    assert!(clock::now() - begin < Nanos::from_secs(5));
}

#[test]
fn an_agent_that_hears_nothing_for_three_seconds_stops_everything_and_ends() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let agent = thread::spawn(|| serve(far, Policy::anything()));
    let say = |near: &mut UnixStream, message: &ToAgent| near.write_all(&protocol::write(message).unwrap()).unwrap();
    let begin = clock::now();
    let role_id = RoleId(1);
    say(
        &mut near,
        &ToAgent::Prepare { role_id, role: Box::new(role(Side::Responder, LONG)), watch: false, keep: false },
    );
    say(&mut near, &ToAgent::Start { role_id, at: begin, peer_clock: None });
    let loss = agent.join().unwrap().unwrap_err();
    let took = clock::now() - begin;
    assert!(matches!(loss, Disconnected::HeartbeatTimeout), "{loss:?}");
    assert!((Nanos::from_secs(3)..Nanos::from_millis(4_500)).contains(&took), "it took {took}");
    // The agent ends the test before it exits: the incomplete outcome is its last message.
    near.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let (mut text, mut chunk) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&text).contains("outcome") {
        let n = near.read(&mut chunk).unwrap();
        assert!(n > 0, "no outcome");
        text.extend_from_slice(&chunk[..n]);
    }
    assert!(String::from_utf8_lossy(&text).contains(r#""complete":false"#));
}

#[test]
fn an_agent_of_another_version_is_named_with_both_versions() {
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(&protocol::encode(protocol::VERSION + 1, br#"{"hello":{"tool":"fathom 2.0.0"}}"#, 100).unwrap())
        .unwrap();
    let link = AgentStream {
        stream: near,
        reached: "a pair".to_owned(),
        process: None,
        liveness: Liveness::Heartbeats,
        opening: Opening::Frame,
    };
    let error = Fleet::new("fathom 0.1.0").connect("a", link).unwrap_err();
    let versions = format!(
        "host `a` runs fathom 2.0.0 with protocol {}; this is fathom 0.1.0 with protocol {}",
        protocol::VERSION + 1,
        protocol::VERSION
    );
    assert_eq!(error.to_string(), versions);
    assert_eq!(error.class(), ErrorClass::Preflight);
}

#[test]
fn a_program_that_is_no_agent_is_told_with_its_last_words() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo fathom: command not found >&2; exit 127"]);
    let link = launcher::command(command, None, "a shell".to_owned()).unwrap();
    let error = Fleet::new("fathom 0.1.0").connect("a", link).unwrap_err();
    let expected = "no agent answers on host `a`: the connection was closed; it ended with exit status: 127\nfathom: command not found";
    assert_eq!((error.class(), error.to_string()), (ErrorClass::Preflight, expected.to_owned()));

    let mut command = Command::new("sh");
    command.args(["-c", "echo Welcome; cat >/dev/null"]);
    let link = launcher::command(command, None, "a shell".to_owned()).unwrap();
    let error = Fleet::new("fathom 0.1.0").connect("a", link).unwrap_err().to_string();
    assert!(error.contains("it begins with `W`"), "{error}");

    let missing = launcher::self_exec("/nonexistent/fathom".as_ref()).unwrap_err();
    assert_eq!(
        (missing.class(), missing.to_string()),
        (ErrorClass::Preflight, "cannot start `/nonexistent/fathom` here".to_owned())
    );
}
