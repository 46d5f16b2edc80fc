//! How a run ends early: an agent is killed, ctrl-C, another run on the same nodes. No Job and no pod is left.

use std::process::Command;

use fathom_sys::process::signal::Signal;

use crate::{
    cluster::Cluster,
    test_bed::{RunningProgram, until},
};

/// A test that is ended before its time.
fn long(cluster: &Cluster, file: &str) -> RunningProgram {
    let times = ["--duration", "60s", "--warmup", "100ms", "--rounds", "1", "--json"];
    cluster.launch(&[&["tcp", "--hosts", file, "--test", "rr"], times.as_slice()].concat())
}

/// Waits until the agents of a run measure: besides the threads of its connection, each has those of a test.
fn agents_that_measure() -> Vec<u32> {
    let n_tasks = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    until(|| Some(Cluster::agents()).filter(|agents| agents.len() == 3 && agents.iter().all(|pid| n_tasks(pid) >= 6)))
}

#[test]
fn a_run_that_ends_early_leaves_no_job_and_no_pod() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.inventory("pod.toml", "network = \"pod\"");

    let run = long(&cluster, "pod.toml");
    let agents = agents_that_measure();
    // Its pod has the node for itself, in its own network too.
    let words = ["tcp", "--hosts", "pod.toml", "--from", "b3", "--quiet"];
    cluster.fathom(&words).refused(3, &["the host is in use by run ", "wait until that run has ended"]);
    cluster.fathom(&["hosts", "check", "--hosts", "pod.toml"]).succeeded();
    // The second run has left the first one alone.
    assert_eq!(Cluster::agents().iter().filter(|pid| agents.contains(pid)).count(), 3);
    // Without the tested host nothing would be measured. The name of a pod begins with that of its Job, and one of the two is `…-peers`.
    let is_peer = |pid: &&u32| {
        let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables
            .split(|byte| *byte == 0)
            .any(|word| word.starts_with(b"HOSTNAME=fathom-") && word.ends_with(b"-peers-0"))
    };
    let peer = agents.iter().find(is_peer).expect("the first of the companions has an agent");
    assert!(Command::new("kill").args(["-9", &peer.to_string()]).status().unwrap().success());
    let lost = run.ends().code(4);
    assert!(lost.stdout.contains("was lost: the connection was closed"), "{}", lost.stdout);
    cluster.is_clean();

    let run = long(&cluster, "pod.toml");
    agents_that_measure();
    run.handle().send(Signal::Interrupt).unwrap();
    run.ends().code(130);
    cluster.is_clean();

    // While pods are starting: one of them never does.
    cluster.inventory_of("unknown.toml", "localhost/fathom:test", "n[8-9]", "");
    let run = long(&cluster, "unknown.toml");
    until(|| (!Cluster::agents().is_empty()).then_some(()));
    run.handle().send(Signal::Interrupt).unwrap();
    run.ends().refused(130, &["interrupted before anything was measured"]);
    cluster.is_clean();

    // A controller that is killed takes its agents along. Kubernetes deletes the Jobs later.
    let run = long(&cluster, "pod.toml");
    agents_that_measure();
    drop(run);
    until(|| Cluster::agents().is_empty().then_some(()));
}
