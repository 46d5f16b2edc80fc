//! What goes wrong: before anything is started, with one message that names the host; and during a run.

use std::process::Command;

use fathom_fleet::protocol;
use fathom_model::{run::Completeness, units::Nanos};
use fathom_sys::{clock, process::signal::Signal};

use crate::{rack::Rack, test_bed::BRIEF};

#[test]
fn each_host_that_cannot_be_used_is_named_with_the_way_out() {
    let Some(rack) = Rack::build(3) else { return };
    let further = "[hosts.closed]\ncontrol = \"10.99.0.2\"\nport = 2223\ndata = \"10.98.0.1\"\n\
         [hosts.stranger]\ncontrol = \"10.99.0.2\"\nssh_config = \"stranger.conf\"\ndata = \"10.98.0.2\"\n\
         [hosts.changed]\ncontrol = \"10.99.0.2\"\nssh_config = \"changed.conf\"\ndata = \"10.98.0.3\"\n\
         [hosts.unknown]\ncontrol = \"10.99.0.2\"\nssh_config = \"unknown.conf\"\ndata = \"10.98.0.4\"\n\
         [hosts.missing]\ncontrol = \"10.99.0.2\"\nprogram = \"fathom-that-is-not\"\ndata = \"10.98.0.5\"\n\
         [hosts.prints]\ncontrol = \"10.99.0.2\"\nlauncher = [\"echo\", \"Please choose\"]\ndata = \"10.98.0.6\"\n\
         [hosts.absent]\nlauncher = [\"no-such-launcher\", \"{host}\"]\ndata = \"10.98.0.7\"\n\
         [hosts.other]\nlauncher = [\"printf\", 'OTHER']\ndata = \"10.98.0.8\"\n\
         [hosts.nameless]\ncontrol = \"no-such-name.invalid\"\ndata = \"10.98.0.11\"\n\
         [hosts.noise]\nlauncher = [\"cat\", \"/dev/zero\"]\ndata = \"10.98.0.12\"\n\
         [hosts.garbles]\nlauncher = [\"sh\", \"-c\", \"cat garbled; exec cat > /dev/null\"]\ndata = \"10.98.0.13\"\n\
         [hosts.behind]\ncontrol = \"10.99.0.2\"\njump = \"10.99.0.3\"\nssh_config = \"stranger.conf\"\ndata = \"10.98.0.9\"\n\
         [hosts.hidden]\ncontrol = \"10.99.0.2\"\njump = \"10.99.0.3\"\nssh_config = \"unknown.conf\"\ndata = \"10.98.0.10\"\n";
    // A greeting of version 9, with its length.
    let further = further.replace("OTHER", "\\x09\\x00\\x00\\x00\\x1f{\"hello\":{\"tool\":\"fathom 9.0\"}}");
    rack.inventory("rack.toml", "", &further);
    // A greeting as it should be, and then something else.
    let hello = format!("{{\"hello\":{{\"tool\":\"fathom {}\"}}}}", env!("CARGO_PKG_VERSION"));
    let greeting = protocol::encode(protocol::VERSION, hello.as_bytes(), 100).unwrap();
    rack.write("garbled", &format!("{}noise\n", String::from_utf8(greeting).unwrap()));
    let expected: &[(&str, &[&str])] = &[
        ("closed", &["host `closed`: ssh cannot reach it", "Connection refused"]),
        ("stranger", &["host `stranger`: it accepts no key of this user", "ssh-copy-id"]),
        ("changed", &["host `changed`: its host key is not the one that is known here", "ssh-keygen", "-R"]),
        ("unknown", &["host `unknown`: its host key is not known here", "compare the fingerprint"]),
        ("missing", &["host `missing`: there is no fathom on it", "--push-binary"]),
        ("prints", &["host `prints`: its command starts no agent", "it printed: Please choose"]),
        ("absent", &["host `absent`: cannot start `no-such-launcher` here"]),
        ("nameless", &["host `nameless`: its name does not resolve", "control = \"10.0.0.2\""]),
        (
            "noise",
            &["host `noise`: its command starts no agent", "not the protocol of an agent (it begins with byte 0)"],
        ),
        (
            "garbles",
            &["host `garbles`: its command starts no agent", "not the protocol of an agent (it begins with `n`)"],
        ),
        ("behind", &["host `behind`: its jump host `10.99.0.3`: it accepts no key of this user", "IdentityFile"]),
        ("hidden", &["host `hidden`: its jump host `10.99.0.3`: its host key is not known here", "fingerprint"]),
        ("other", &["host `other` runs fathom 9.0 with protocol 9", "run the same version"]),
    ];
    for (name, words) in expected {
        rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "b2", "--to", name, "--quiet"]).refused(3, words);
    }
    // A host that cannot even be started does not hide what is wrong with the others.
    let both = &["2 of 2 hosts are not ready", "missing: there is no fathom on it", "absent: cannot start"];
    rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "missing", "--to", "absent", "--quiet"]).refused(3, both);
    rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "b2", "--to", "b10"])
        .refused(2, &["no host or group `b10`", "known"]);
    let together = rack.fathom(&["hosts", "check", "--hosts", "rack.toml"]).code(3);
    assert!(together.stdout.contains("3 of 16 hosts are ready"), "{}", together.stdout);
    rack.is_clean();
}

#[test]
fn a_program_path_with_a_command_in_it_runs_nothing() {
    let Some(rack) = Rack::build(2) else { return };
    let touched = rack.path("touched");
    let program = format!("program = \"/opt/$(touch {})/fathom\"", touched.display());
    rack.inventory("rack.toml", &program, "");
    rack.fathom(&["hosts", "check", "--hosts", "rack.toml", "--push-binary"])
        .refused(2, &["program `/opt/$(touch", "is not a path"]);
    assert!(!touched.exists());
    rack.is_clean();
}

#[test]
fn a_run_that_is_stopped_while_it_connects_ends_at_once_and_leaves_nothing() {
    let Some(mut rack) = Rack::build(3) else { return };
    // A host whose login never begins, one whose command says nothing, and one that asks for the program and does not read it.
    let silent = rack.enter(1, || std::net::TcpListener::bind((Rack::address(1), 2224)).unwrap());
    rack.start_sshd(3, "ForceCommand echo fathom-push needs $(uname -s) $(uname -m); exec sleep 10");
    let further = "[hosts.silent]\ncontrol = \"10.99.0.2\"\nport = 2224\ndata = \"10.98.0.1\"\n\
         [hosts.hangs]\nlauncher = [\"sleep\", \"60\"]\ndata = \"10.98.0.2\"\n\
         [hosts.copies]\ncontrol = \"10.99.0.4\"\nport = 2222\ndata = \"10.98.0.3\"\n";
    rack.inventory("rack.toml", "", further);
    for name in ["silent", "hangs", "copies"] {
        let words = ["tcp", "--hosts", "rack.toml", "--from", "b2", "--to", name, "--quiet", "--push-binary"];
        let running = rack.start(&words);
        rack.agent(2);
        let begin = clock::now();
        running.handle().send(Signal::Interrupt).unwrap();
        running.ends().code(130);
        let took = clock::now() - begin;
        assert!(took < Nanos::from_secs(3), "{name}: it took {took}");
        rack.is_clean();
    }
    drop(silent);
}

#[test]
fn two_runs_at_once_on_a_host_are_refused_and_looking_is_not() {
    let Some(rack) = Rack::build(3) else { return };
    rack.inventory("rack.toml", "", "");
    let first = rack.start(&["tcp", "--hosts", "rack.toml", "--from", "b2", "--duration", "20s", "--rounds", "1"]);
    rack.agent(1);
    let refused = || rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "b3", "--quiet"]);
    // The host is held once its agent has greeted.
    crate::test_bed::until(|| {
        let looked = rack.fathom(&["hosts", "check", "sut", "--hosts", "rack.toml"]).succeeded();
        looked.stdout.contains("in use").then_some(())
    });
    refused().refused(3, &["host `sut`: the host is in use by run ", "wait until that run has ended"]);
    first.handle().send(Signal::Interrupt).unwrap();
    first.ends().code(130);
    let words = ["tcp", "--hosts", "rack.toml", "--from", "b3", "--json"];
    rack.fathom(&[&words, BRIEF].concat()).run();
    rack.is_clean();
}

#[test]
fn one_machine_under_two_names_is_refused() {
    let Some(mut rack) = Rack::build(3) else { return };
    rack.start_sshd(2, "LogLevel INFO");
    rack.inventory("rack.toml", "", "[hosts.again]\ncontrol = \"10.99.0.3\"\nport = 2222\ndata = \"10.97.0.3\"");
    let result = rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "again", "--to", "b2", "--quiet"]).code(3);
    assert!(result.stderr.contains("is the same machine as host `"), "{}", result.stderr);
    rack.is_clean();
}

/// Returns the packets of IPv4 that a host has received.
fn n_received(rack: &Rack, number: u8) -> u64 {
    let counters = rack.enter(number, || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let values = counters.lines().filter_map(|line| line.strip_prefix("Ip: ")).nth(1).unwrap();
    values.split(' ').nth(2).unwrap().parse().unwrap()
}

#[test]
fn a_machine_that_no_agent_speaks_for_is_not_loaded_by_an_inventory() {
    let Some(rack) = Rack::build(3) else { return };
    // Host 3 of the rack, at 10.99.0.4, has agreed to nothing.
    let further = "[hosts.me]\nlauncher = \"self\"\ndata = \"10.99.0.1\"\n\
         [hosts.said]\nlauncher = \"self\"\ndata = \"10.99.0.4\"\n[groups]\npart = [\"sut\", \"lies\"]\n";
    let lies = "[hosts.lies]\ncontrol = \"10.99.0.3\"\ndata = \"ADDRESS\"\n";
    let with = |address: &str| {
        let defaults = format!(
            "[defaults]\nssh_config = {:?}\nprogram = {:?}\n[hosts.sut]\ncontrol = \"10.99.0.2\"\n",
            rack.path("ssh.conf").display().to_string(),
            rack.stage.program().display().to_string()
        );
        rack.write("rack.toml", &format!("{defaults}{}{further}", lies.replace("ADDRESS", address)));
    };
    with("10.97.0.4");
    let before = n_received(&rack, 3);
    let flood = |to: &'static str| {
        let words = ["probe", "--hosts", "rack.toml", "--from", "me", "--to", to, "--test", "rtt", "--flood"];
        rack.fathom(&[&words[..], &["--duration", "300ms"]].concat())
    };
    let said = "10.99.0.4 is not an address of this host; its address is 10.99.0.1";
    flood("said").refused(3, &["host `said`: ", said, "data = \"10.99.0.1\"", "fathom allow add 10.99.0.4"]);
    let own = "10.97.0.4 is not an address of this host; its addresses are 10.99.0.3, 10.97.0.3";
    flood("lies").refused(3, &["host `lies`: ", own, "data = \"10.99.0.3\""]);
    let words = ["probe", "--hosts", "rack.toml", "--from", "me", "--to", "said", "--test", "ports"];
    rack.fathom(&words).refused(3, &[said]);
    // A member tells it to its head.
    let words = ["tcp", "--hosts", "rack.toml", "--from", "part", "--to", "me", "--heads", "1", "--quiet"];
    rack.fathom(&words).refused(3, &[own]);
    let checked = rack.fathom(&["hosts", "check", "--hosts", "rack.toml"]).code(3);
    assert!(checked.stdout.contains(said) && checked.stdout.contains(own), "{}", checked.stdout);
    assert!(checked.stdout.contains("2 of 4 hosts are ready"), "{}", checked.stdout);
    for address in ["10.99.0.99", "224.0.0.1", "0.0.0.0"] {
        with(address);
        let checked = rack.fathom(&["hosts", "check", "lies", "--hosts", "rack.toml"]).code(3);
        assert!(checked.stdout.contains(&format!("{address} is not an address of this host")), "{}", checked.stdout);
    }
    // The connection that showed that its sshd listens may end meanwhile; each of the tests sends hundreds of packets.
    let n_packets = n_received(&rack, 3) - before;
    assert!(n_packets < 20, "{n_packets} packets came to a host that is not in the inventory");
    rack.is_clean();
}

#[test]
fn a_host_of_another_version_is_not_ready_and_no_test_is_started() {
    let Some(rack) = Rack::build(3) else { return };
    let greeting = protocol::encode(protocol::VERSION, b"{\"hello\":{\"tool\":\"fathom 0.0.9\"}}", 100).unwrap();
    rack.write("greeting", &String::from_utf8(greeting).unwrap());
    let older =
        format!("launcher = [\"sh\", \"-c\", \"cat {}; exec cat > /dev/null\"]", rack.path("greeting").display());
    rack.inventory(
        "rack.toml",
        "",
        &format!("[hosts.old]\n{older}\ndata = \"10.97.0.4\"\n[groups]\npart = [\"b2\", \"old\"]"),
    );
    let ours = format!("fathom {}", env!("CARGO_PKG_VERSION"));
    let told = ["host `old` runs fathom 0.0.9", &ours, "run the same version of fathom on both hosts"];
    rack.fathom(&["tcp", "--hosts", "rack.toml", "--from", "b2", "--to", "old", "--quiet"]).refused(3, &told);
    let checked = rack.fathom(&["hosts", "check", "b2,old", "--hosts", "rack.toml"]).code(3);
    let row = |words: &&str| checked.stdout.contains(words.trim_start_matches("host `old` "));
    assert!(told.iter().all(row), "{}", checked.stdout);
    assert!(checked.stdout.contains("1 of 2 hosts is ready"), "{}", checked.stdout);
    let words = ["tcp", "--hosts", "rack.toml", "--from", "part", "--to", "sut", "--heads", "1", "--quiet"];
    rack.fathom(&words).refused(3, &["host `old`, behind its head `b2`: it runs fathom 0.0.9", &ours]);
    rack.is_clean();
}

#[test]
fn a_lab_that_is_not_up_is_told_in_the_row_of_its_host() {
    let Some(rack) = Rack::build(2) else { return };
    rack.inventory("rack.toml", "", "[hosts.gone]\nlauncher = \"lab\"\nlab = \"no-such-lab\"\n");
    let checked = rack.fathom(&["hosts", "check", "--hosts", "rack.toml"]).code(3).stdout;
    assert!(checked.contains("2 of 3 hosts are ready") && checked.contains("no-such-lab"), "{checked}");
    rack.is_clean();
}

/// Sends a signal to a process.
fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// Loses the agent of a companion during a run. Returns its pid, how long the run took from then on, and its outcome.
fn loses_a_companion(rack: &Rack, signal: &str) -> (u32, Nanos, Completeness) {
    let words = ["tcp", "--hosts", "rack.toml", "--from", "b2", "--duration", "40s", "--rounds", "1", "--json"];
    let running = rack.start(&words);
    let agent = rack.agent(2);
    rack.measures(2);
    let begin = clock::now();
    send(signal, agent);
    let run = running.ends().code(4).run();
    (agent, clock::now() - begin, run.completeness)
}

#[test]
fn a_killed_companion_is_noticed_within_three_seconds() {
    let Some(rack) = Rack::build(3) else { return };
    rack.inventory("rack.toml", "", "");
    let (_, took, completeness) = loses_a_companion(&rack, "-KILL");
    assert!(
        matches!(&completeness, Completeness::Incomplete { reason } if reason.contains("host `b2` was lost")),
        "{completeness:?}"
    );
    // The other host then ends its part.
    assert!(took < Nanos::from_secs(6), "it took {took}");
    rack.is_clean();
}

#[test]
fn a_hung_companion_does_not_hang_the_run() {
    let Some(rack) = Rack::build(3) else { return };
    rack.inventory("rack.toml", "", "");
    let (agent, took, completeness) = loses_a_companion(&rack, "-STOP");
    let words = |reason: &str| reason.contains("host `b2` was lost") && reason.contains("nothing was heard for 3 s");
    assert!(matches!(&completeness, Completeness::Incomplete { reason } if words(reason)), "{completeness:?}");
    assert!(took < Nanos::from_secs(10), "it took {took}");
    // Once it runs again, it finds its controller gone.
    send("-CONT", agent);
    rack.is_clean();
}

#[test]
fn a_companion_that_prints_garbage_during_a_run_is_lost_by_its_name() {
    let Some(rack) = Rack::build(3) else { return };
    let (program, noise) = (rack.stage.program().display(), rack.path("noise"));
    // Something else on the host writes to the stream of the agent, once there is a file.
    let beside = format!("(until [ -e {} ]; do sleep 0.05; done; echo noise) &", noise.display());
    let launcher = format!("[\"ssh\", \"-F\", \"ssh.conf\", \"{{host}}\", \"{beside} exec {program} agent --stdio\"]");
    let host = format!("[hosts.noisy]\ncontrol = \"10.99.0.4\"\ndata = \"10.97.0.4\"\nlauncher = {launcher}");
    rack.inventory("rack.toml", "", &host);
    let words = ["tcp", "--hosts", "rack.toml", "--from", "noisy", "--duration", "40s", "--rounds", "1", "--json"];
    let running = rack.start(&words);
    rack.measures(3);
    rack.write("noise", "");
    let run = running.ends().code(4).run();
    let words =
        |reason: &str| reason.contains("host `noisy` was lost: it sent something that is not the protocol of an agent");
    assert!(
        matches!(&run.completeness, Completeness::Incomplete { reason } if words(reason)),
        "{:?}",
        run.completeness
    );
    rack.is_clean();
}

#[test]
fn a_killed_controller_leaves_no_agent() {
    let Some(rack) = Rack::build(3) else { return };
    rack.inventory("rack.toml", "program = \"/nonexistent/fathom\"", "");
    let running = rack.start(&[
        "tcp",
        "--hosts",
        "rack.toml",
        "--from",
        "b2",
        "--duration",
        "40s",
        "--rounds",
        "1",
        "--push-binary",
    ]);
    rack.agent(1);
    rack.agent(2);
    let handle = running.handle();
    handle.kill().unwrap();
    drop(running);
    let begin = clock::now();
    crate::test_bed::until(|| (rack.agents(1).is_empty() && rack.agents(2).is_empty()).then_some(()));
    assert!(clock::now() - begin < Nanos::from_secs(8));
    rack.stage.fathom(["lab", "down", "--stale"]).succeeded();
    rack.is_clean();
}

#[test]
fn a_host_whose_clock_is_a_day_ahead_starts_with_the_others() {
    let Some(rack) = Rack::build(3) else { return };
    let has_time_namespaces = Command::new("unshare").args(["--time", "--fork", "true"]).status();
    if !has_time_namespaces.is_ok_and(|status| status.success()) {
        return fathom_testkit::skip_everywhere("needs time namespaces (CONFIG_TIME_NS)");
    }
    let program = rack.stage.program().display();
    let launcher = format!(
        "launcher = [\"ssh\", \"-F\", \"ssh.conf\", \"{{host}}\", \"unshare --time --monotonic 86400 --fork {program} agent --stdio\"]"
    );
    rack.inventory(
        "rack.toml",
        "",
        &format!("[hosts.ahead]\ncontrol = \"10.99.0.4\"\ndata = \"10.97.0.4\"\n{launcher}"),
    );
    let words = ["tcp", "--hosts", "rack.toml", "--from", "ahead", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    let day = 86_400_000_000_000;
    let offset = run.hosts["ahead"].clock_offset_ns;
    assert!((offset - day).abs() < 1_000_000_000, "the offset is {offset} ns");
    let skew = run.tests[0].trials.iter().map(|trial| trial.start_skew_ns).min().unwrap();
    // Other tests run beside this one: a start may be late, but by no part of a day.
    assert!(skew < Nanos::from_millis(500), "the starts were spread over {skew}");
    rack.is_clean();
}
