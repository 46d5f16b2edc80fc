//! What works: checks, tests between hosts, plans, copies of the program, hosts of several kinds in one file.

use std::{fs, net::IpAddr, os::unix::fs::PermissionsExt as _};

use fathom_model::units::Nanos;
use fathom_sys::{
    clock,
    netlink::{LocalNetwork, Netlink, RouteEntry},
};
use serde_json::Value;

use crate::{
    rack::Rack,
    test_bed::{BRIEF, ProgramResult},
};

fn checked(result: &ProgramResult) -> Value {
    serde_json::from_str(&result.stdout).unwrap_or_else(|error| panic!("{error}: {}\n{}", result.stdout, result.stderr))
}

/// Nine hosts are ready within this time on a machine that does nothing else.
const READY_MAX: Nanos = Nanos::from_secs(3);

#[test]
fn nine_hosts_are_ready_within_three_seconds_and_leave_nothing_behind() {
    let Some(rack) = Rack::build(9) else { return };
    rack.inventory("rack.toml", "", "");
    let begin = clock::now();
    let result = rack.fathom(&["hosts", "check", "--hosts", "rack.toml", "--json"]).succeeded();
    let took = clock::now() - begin;
    let document = checked(&result);
    assert_eq!((&document["schema"], &document["n_ready"]), (&"fathom.hosts-check/1".into(), &9.into()));
    for host in document["hosts"].as_array().unwrap() {
        assert_eq!((&host["device"], &host["is_ready"]), (&"eth0".into(), &true.into()), "{host}");
        assert!(
            host["program"].as_str().unwrap().starts_with("fathom ") && host["n_cores"].as_u64().unwrap() > 0,
            "{host}"
        );
        // The 10 Gbit/s of a veth are a constant of its driver.
        assert_eq!((&host["speed_bps"], &host["line_rate"]), (&Value::Null, &"nominal".into()), "{host}");
        assert_eq!(host["clock_offset_ns"], 0, "{host}");
        assert!(host["capabilities"].as_array().unwrap().contains(&"net_raw".into()), "{host}");
    }
    // On a machine that does something else, too, ssh alone takes longer than that.
    let plain = rack.plain_ssh_takes();
    assert!(took < READY_MAX.max(plain * 2), "nine hosts took {took}, and plain ssh {plain}");
    rack.is_clean();
}

#[test]
fn many_hosts_behind_one_jump_host_do_not_exceed_its_limit_of_logins() {
    let Some(rack) = Rack::build(9) else { return };
    // 32 logins through a server that drops some of more than ten: each host four times, at an address of loopback.
    let host = |number: usize| {
        let control = 3 + number % 8;
        format!(
            "[hosts.v{number}]\ncontrol = \"10.99.0.{control}\"\njump = \"sut\"\ndata = \"127.0.0.{}\"\n",
            number + 1
        )
    };
    rack.inventory("rack.toml", "", &(0..32).map(host).collect::<String>());
    let result = rack.fathom(&["hosts", "check", "v[0-31]", "--hosts", "rack.toml"]).succeeded();
    assert!(result.stdout.contains("32 of 32 hosts are ready"), "{}", result.stdout);
    rack.is_clean();
}

#[test]
fn a_host_that_is_reached_at_an_address_of_a_translator_takes_part_without_a_word() {
    let Some(mut rack) = Rack::build(3) else { return };
    // Host 2 answers at an address that none of its interfaces has, as behind a translator.
    let outside = IpAddr::from([10, 95, 0, 9]);
    let _network = rack.enter(2, || LocalNetwork::add(outside, 32)).unwrap();
    let gateway = Some(IpAddr::V4(Rack::address(2)));
    let route = RouteEntry { destination: outside, prefix_len: 32, gateway, device: None };
    rack.enter(0, || Netlink::open().unwrap().add_route(&route)).unwrap();
    rack.start_served(2, "served.key");
    let host = |further: &str| {
        let text = format!("launcher = \"tls\"\nkey_file = \"served.key\"\n{further}");
        rack.write("rack.toml", &format!("[hosts.me]\nlauncher = \"self\"\n[hosts.cloud]\n{text}"));
    };
    host("control = \"10.95.0.9\"\n");
    let result = rack.fathom(&["hosts", "check", "--hosts", "rack.toml"]).succeeded();
    assert!(result.stdout.contains("none of its interfaces has the address 10.95.0.9"), "{}", result.stdout);
    let words = ["udp", "--hosts", "rack.toml", "--from", "me", "--to", "cloud", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert_eq!(run.hosts["cloud"].address.as_deref(), Some("10.95.0.9"));
    // Told beside the way to it, the address needs the consent of the user.
    host("control = \"10.99.0.3\"\ndata = \"10.95.0.9\"\n");
    rack.fathom(&words).refused(3, &["10.95.0.9 is not an address of this host", "fathom allow add 10.95.0.9"]);
    rack.fathom(&[&words[..], BRIEF, &["--allow", "10.95.0.9"]].concat()).run();
    rack.is_clean();
}

#[test]
fn this_machine_tests_with_a_host_that_only_ssh_knows_by_name() {
    let Some(rack) = Rack::build(1) else { return };
    let config = fs::read_to_string(rack.path("ssh.conf")).unwrap();
    rack.write("alias.conf", &format!("Host alias\n  HostName 10.99.0.2\nHost *\n{config}"));
    let program = rack.stage.program().display();
    rack.write(
        "rack.toml",
        &format!(
            "[hosts.here]\nlauncher = \"self\"\n[hosts.alias]\nssh_config = \"alias.conf\"\nprogram = \"{program}\"\n"
        ),
    );
    let words = ["tcp", "--hosts", "rack.toml", "--from", "here", "--to", "alias", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert_eq!(run.hosts["here"].address.as_deref(), Some("10.99.0.1"));
    assert_eq!(run.hosts["alias"].address.as_deref(), Some("10.99.0.2"));
    rack.is_clean();
}

#[test]
fn a_test_runs_between_two_hosts_and_a_plan_names_them_by_the_inventory() {
    let Some(rack) = Rack::build(3) else { return };
    rack.inventory("rack.toml", "", "[groups]\nhalf = [\"b2\"]");
    let words = ["tcp", "--hosts", "rack.toml", "--from", "b3", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert_eq!(run.hosts.keys().collect::<Vec<_>>(), ["b3", "sut"]);
    assert!(
        run.hosts.values().all(|host| host.interface.as_deref() == Some("eth0") && host.reached.starts_with("ssh "))
    );
    assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));

    let plan = rack.fathom(&[&words[..words.len() - 1], BRIEF, &["--plan"]].concat()).succeeded().stdout;
    let at = plan.find("[hosts").unwrap();
    let tests = plan[at..].find("[[tests]]").unwrap();
    let hosts = "[hosts]\nb3 = { inventory = { host = \"b3\" } }\nsut = { inventory = { host = \"sut\", file = \"rack.toml\" } }\n\n";
    rack.write("plan.toml", &format!("{}{hosts}{}", &plan[..at], &plan[at + tests..]));
    let run = rack.fathom(&["run", "plan.toml", "--hosts", "rack.toml", "--json"]).run();
    assert_eq!(run.tests[0].from, "b3");
    rack.fathom(&["run", "plan.toml"]).refused(2, &["host `b3` is in an inventory", "--hosts FILE"]);
    rack.is_clean();
}

#[test]
fn launchers_mix_in_one_inventory_and_a_login_greeting_does_no_harm() {
    let Some(mut rack) = Rack::build(6) else { return };
    // A login shell that greets on standard output, with a line that looks like the protocol.
    rack.start_sshd(3, "ForceCommand printf 'Welcome\\n{\"hello\":\\n'; eval \"$SSH_ORIGINAL_COMMAND\"");
    // A host with a key, and two whose tests use a network that this one is not in.
    rack.start_served(6, "served.key");
    let further = "[hosts.served]\nlauncher = \"tls\"\ncontrol = \"10.99.0.7\"\nkey_file = \"served.key\"\ndata = \"10.97.0.7\"\n\
         [hosts.greets]\ncontrol = \"10.99.0.4\"\nport = 2222\ndata = \"10.97.0.4\"\n\
         [hosts.jumps]\ncontrol = \"10.99.0.5\"\njump = \"sut\"\n\
         [hosts.direct]\nlauncher = [\"ssh\", \"-F\", \"ssh.conf\", \"{host}\", \"PROGRAM\", \"agent\", \"--stdio\"]\ncontrol = \"10.99.0.6\"\ndata = \"10.97.0.6\"\n";
    let further = further.replace("PROGRAM", rack.stage.program().to_str().unwrap());
    let program = rack.stage.program().display();
    rack.write("mixed.toml", &format!("[defaults]\nssh_config = \"ssh.conf\"\nprogram = \"{program}\"\n[hosts.sut]\ncontrol = \"10.99.0.2\"\n{further}"));
    let result = rack.fathom(&["hosts", "check", "--hosts", "mixed.toml", "--json"]).succeeded();
    assert_eq!(checked(&result)["n_ready"], 5, "{}", result.stdout);
    let words = ["udp", "--hosts", "mixed.toml", "--from", "greets", "--to", "direct", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));
    assert_eq!(run.hosts["greets"].address.as_deref(), Some("10.97.0.4"));
    let words = ["tcp", "--hosts", "mixed.toml", "--from", "served", "--to", "jumps", "--test", "rr", "--json"];
    let run = rack.fathom(&[&words, BRIEF].concat()).run();
    assert!(run.hosts["served"].reached.starts_with("tls ") && run.hosts["jumps"].reached.starts_with("ssh "));
    let shown = serde_json::to_string(&run).unwrap();
    let key = fs::read_to_string(rack.path("served.key")).unwrap();
    assert!(
        key.lines().filter(|line| line.len() > 40).all(|line| !shown.contains(line)),
        "the key is not in the document"
    );
    rack.is_clean();
}

#[test]
fn the_program_is_copied_where_it_is_missing_and_removed_or_kept() {
    let Some(rack) = Rack::build(4) else { return };
    rack.inventory("rack.toml", "program = \"/nonexistent/fathom\"", "");
    let words = ["hosts", "check", "b2,b3", "--hosts", "rack.toml"];
    let missing = rack.fathom(&words).code(3);
    assert!(
        missing.stdout.contains("there is no fathom on it") && missing.stdout.contains("--push-binary"),
        "{}",
        missing.stdout
    );
    rack.fathom(&[&words[..], &["--push-binary"]].concat()).succeeded();
    rack.is_clean();

    // The cache of the user on the hosts is a folder of this test, as the server sets it.
    let cache = rack.path("cache");
    let mut rack = rack;
    rack.start_sshd(4, &format!("SetEnv XDG_CACHE_HOME={}", cache.display()));
    rack.inventory(
        "kept.toml",
        "program = \"/nonexistent/fathom\"",
        "[hosts.keeps]\ncontrol = \"10.99.0.5\"\nport = 2222\ndata = \"10.97.0.5\"",
    );
    let words = ["hosts", "check", "keeps", "--hosts", "kept.toml", "--push-binary=keep", "--json"];
    rack.fathom(&words).succeeded();
    let kept: Vec<_> =
        fs::read_dir(cache.join("fathom")).unwrap().map(|entry| entry.unwrap().path().join("fathom")).collect();
    assert_eq!(kept.len(), 1);
    let copied = fs::metadata(&kept[0]).unwrap();
    assert_eq!(
        (copied.len(), copied.permissions().mode() & 0o777),
        (fs::metadata(rack.stage.program()).unwrap().len(), 0o700)
    );
    // The second run finds the copy: a copy that is not ours would start no agent.
    fs::write(&kept[0], "#!/bin/sh\necho found >&2; exit 7\n").unwrap();
    let found = rack.fathom(&words).code(3);
    assert!(found.stdout.contains("found"), "{}", found.stdout);
    rack.is_clean();
}

#[test]
fn a_host_without_room_for_the_program_or_of_another_kind_is_named() {
    let Some(mut rack) = Rack::build(6) else { return };
    // A limit for the size of files.
    rack.start_sshd(5, "ForceCommand ulimit -f 1; eval \"$SSH_ORIGINAL_COMMAND\"");
    rack.inventory(
        "rack.toml",
        "program = \"/nonexistent/fathom\"",
        "[hosts.full]\ncontrol = \"10.99.0.6\"\nport = 2222\ndata = \"10.99.0.56\"",
    );
    let begin = clock::now();
    let full = rack.fathom(&["hosts", "check", "full", "--hosts", "rack.toml", "--push-binary"]).code(3);
    assert!(full.stdout.contains("full: fathom cannot be copied there"), "{}", full.stdout);
    assert!(clock::now() - begin < Nanos::from_secs(15));

    // Folders for the copy without room, and on a device that is only read.
    let cases = [
        (1, "size=1m", "--push-binary", ["No space left on device", "there in /tmp; --push-binary=keep copies"]),
        (2, "ro", "--push-binary", ["Read-only file system", "--push-binary=keep copies it to ~/.cache"]),
        (3, "ro", "--push-binary=keep", ["Read-only file system", "--push-binary copies it to /tmp"]),
    ];
    for (number, mounted, push, words) in cases {
        let folder = rack.path(&format!("mounted-{number}"));
        fs::create_dir(&folder).unwrap();
        let folder = folder.display();
        let mount = format!(
            "mount -t tmpfs -o {mounted} none {folder}; export TMPDIR={folder} XDG_CACHE_HOME={folder}; eval \"$SSH_ORIGINAL_COMMAND\""
        );
        rack.start_sshd(number, &format!("ForceCommand exec unshare --mount sh -c '{mount}'"));
        let host = format!("[hosts.x]\ncontrol = \"{}\"\nport = 2222\ndata = \"10.96.0.1\"", Rack::address(number));
        rack.inventory("mounted.toml", "program = \"/nonexistent/fathom\"", &host);
        let told = rack.fathom(&["hosts", "check", "x", "--hosts", "mounted.toml", push]).code(3).stdout;
        let is_told = |words: &str| told.contains(words);
        assert!(is_told("x: fathom cannot be copied there") && words.into_iter().all(is_told), "{told}");
    }

    // A folder for temporary files that may hold no programs.
    let folder = rack.path("noexec");
    fs::create_dir(&folder).unwrap();
    let mount = format!("mount -t tmpfs -o noexec none {0}; TMPDIR={0}; export TMPDIR", folder.display());
    rack.start_sshd(4, &format!("ForceCommand exec unshare --mount sh -c '{mount}; eval \"$SSH_ORIGINAL_COMMAND\"'"));
    rack.inventory(
        "noexec.toml",
        "program = \"/nonexistent/fathom\"",
        "[hosts.noexec]\ncontrol = \"10.99.0.5\"\nport = 2222\ndata = \"10.99.0.55\"",
    );
    let noexec = rack.fathom(&["hosts", "check", "noexec", "--hosts", "noexec.toml", "--push-binary"]).code(3);
    let words = ["noexec: it does not run the fathom that was copied there", "use --push-binary=keep"];
    assert!(words.iter().all(|words| noexec.stdout.contains(words)), "{}", noexec.stdout);

    // A processor of another kind, as its `uname` says.
    fs::create_dir(rack.path("other")).unwrap();
    let uname = rack.write("other/uname", "#!/bin/sh\n[ \"$1\" = -s ] && echo Linux || echo riscv64\n");
    fs::set_permissions(uname, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "ForceCommand PATH={}:$PATH; export PATH; eval \"$SSH_ORIGINAL_COMMAND\"",
        rack.path("other").display()
    );
    rack.start_sshd(6, &path);
    rack.inventory(
        "other.toml",
        "program = \"/nonexistent/fathom\"",
        "[hosts.other]\ncontrol = \"10.99.0.7\"\nport = 2222\ndata = \"10.97.0.7\"",
    );
    let other = rack.fathom(&["hosts", "check", "other", "--hosts", "other.toml", "--push-binary"]).code(3);
    let words = ["it is Linux on riscv64", "cargo build --release --target riscv64-unknown-linux-musl"];
    assert!(words.iter().all(|words| other.stdout.contains(words)), "{}", other.stdout);
    rack.is_clean();
}
