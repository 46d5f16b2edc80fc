//! A Slurm of three nodes, which starts the agents: one line of the inventory is another one.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::{
    rack::Rack,
    test_bed::{BRIEF, until},
};

/// The daemons of a cluster; they end with it.
struct Cluster {
    daemons: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The node daemons end before the one that they report to, and that before the one that signs.
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Starts munged, slurmctld at the controller and slurmd on three hosts; none if they are not installed.
fn start(rack: &Rack) -> Option<Cluster> {
    let missing = ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged", "/usr/bin/srun"];
    if let Some(missing) = missing.into_iter().find(|path| !Path::new(path).is_file()) {
        fathom_testkit::skip(&format!("needs {missing} (slurmctld slurmd slurm-client munge)"));
        return None;
    }
    let place = |name: &str| rack.path(name).display().to_string();
    fs::create_dir_all(rack.path("slurm-state")).unwrap();
    // munged refuses folders that others may write.
    fs::set_permissions(rack.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    rack.write("munge.key", &"key of a test ".repeat(80));
    fs::set_permissions(rack.path("munge.key"), fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "ClusterName=rack\nSlurmctldHost=ctl({controller})\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\n\
         AuthInfo=socket={socket}\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}.%n\nSlurmctldPidFile={pids}.ctl\n\
         SlurmdPidFile={pids}.%n\nSlurmctldLogFile={logs}.ctl\nSlurmdLogFile={logs}.%n\nProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\nSelectType=select/linear\nSwitchType=switch/none\nMpiDefault=none\nReturnToService=2\n\
         NodeName=node[1-3] NodeAddr=10.99.0.[2-4] Sockets=1 CoresPerSocket=2 State=UNKNOWN\n\
         PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP\n",
        controller = Rack::address(0),
        socket = place("munge.socket"),
        state = place("slurm-state"),
        spool = place("spool"),
        pids = place("slurm-pid"),
        logs = place("slurm-log"),
    );
    let config = rack.write("slurm.conf", &text);
    let mut cluster = Cluster { daemons: Vec::new() };
    let mut munged = Command::new("/usr/sbin/munged");
    munged.args(["--foreground", "--force"]);
    for (option, file) in [
        ("key-file", "munge.key"),
        ("socket", "munge.socket"),
        ("pid-file", "munge.pid"),
        ("seed-file", "munge.seed"),
        ("log-file", "munge.log"),
    ] {
        munged.arg(format!("--{option}={}", place(file)));
    }
    munged.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cluster.daemons.push(rack.spawn_on(0, munged));
    until(|| rack.path("munge.socket").exists().then_some(()));
    // Each daemon wants a host name of its own, so it gets a namespace for that.
    let mut daemon = |number: u8, name: &str, words: &str| {
        let mut command = Command::new("unshare");
        command.args(["--uts", "sh", "-c", &format!("hostname {name}; exec {words} -D -f {}", config.display())]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        cluster.daemons.push(rack.spawn_on(number, command));
    };
    daemon(0, "ctl", "slurmctld");
    for number in 1..=3 {
        daemon(number, &format!("node{number}"), &format!("slurmd -N node{number}"));
    }
    until(|| {
        let mut sinfo = Command::new("sinfo");
        sinfo.args(["-h", "-o", "%T %D"]).env("SLURM_CONF", &config);
        let output = rack.enter(0, || sinfo.output().unwrap());
        (output.stdout == b"idle 3\n").then_some(())
    });
    Some(cluster)
}

#[test]
fn slurm_starts_the_agents_and_one_line_is_all_that_differs() {
    let Some(rack) = Rack::build(3) else { return };
    let Some(_cluster) = start(&rack) else { return };
    let program = rack.stage.program().display();
    let inventory = |launcher: &str| {
        format!(
            "[defaults]\nssh_config = \"ssh.conf\"\nprogram = \"{program}\"\n{launcher}\n[hosts.\"node[1-3]\"]\ncontrol = CONTROL\ndata = \"10.99.0.[2-4]\"\n"
        )
    };
    let by_ssh = inventory("launcher = \"ssh\"").replace("CONTROL", "\"10.99.0.[2-4]\"");
    let line = format!("launcher = [\"srun\", \"-N1\", \"-w\", \"{{name}}\", \"{program}\", \"agent\", \"--stdio\"]");
    let by_slurm = inventory(&line).replace("CONTROL", "\"10.99.0.[2-4]\"");
    for text in [by_ssh, by_slurm] {
        rack.write("nodes.toml", &text);
        let run = |words: &[&str]| {
            let config = format!("SLURM_CONF={}", rack.path("slurm.conf").display());
            let words: Vec<&str> =
                [&["--default-signal=INT", config.as_str(), rack.stage.program().to_str().unwrap()], words].concat();
            let mut command = rack.stage.command("env");
            command.args(words);
            rack.enter(0, || rack.stage.spawn(command)).ends()
        };
        let checked = run(&["hosts", "check", "--hosts", "nodes.toml"]).succeeded();
        assert!(checked.stdout.contains("3 of 3 hosts are ready"), "{}", checked.stdout);
        let words = ["tcp", "--hosts", "nodes.toml", "--from", "node2", "--to", "node3", "--json"];
        let run = run(&[&words, BRIEF].concat()).run();
        assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));
        rack.is_clean();
    }
}
