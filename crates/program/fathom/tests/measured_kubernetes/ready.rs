//! What works: checks, tests over both networks, manifests, and a user with the least rights.

use crate::{cluster::Cluster, test_bed::BRIEF};

#[test]
fn three_nodes_are_hosts_of_a_test_over_both_networks_and_leave_nothing_behind() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.inventory("host.toml", "network = \"host\"");
    cluster.inventory("pod.toml", "network = \"pod\"\ncpu = \"500m\"\nmemory = \"256Mi\"");
    for (file, addresses) in [("host.toml", "10.97.0."), ("pod.toml", "10.98.")] {
        let checked = cluster.fathom(&["hosts", "check", "--hosts", file, "--json"]).succeeded().stdout;
        let checked: serde_json::Value = serde_json::from_str(&checked).unwrap();
        assert_eq!(checked["n_ready"], 3);
        for host in checked["hosts"].as_array().unwrap() {
            assert!(host["address"].as_str().unwrap().starts_with(addresses), "{host}");
            assert!(host["capabilities"].as_array().unwrap().contains(&"net_raw".into()), "{host}");
            assert_eq!(host["device"], "eth0", "{host}");
        }
        let words = ["tcp", "--hosts", file, "--test", "rr", "--json"];
        let run = cluster.fathom(&[&words, BRIEF].concat()).run();
        assert_eq!(run.hosts.keys().collect::<Vec<_>>(), ["b2", "b3", "sut"]);
        assert!(run.hosts.values().all(|host| host.reached.contains(" on node n")), "{:?}", run.hosts);
        assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));
        cluster.is_clean();
    }

    // What is shown is what the cluster takes.
    let words = ["tcp", "--hosts", "host.toml", "--render"];
    let manifests = cluster.fathom(&words).succeeded().stdout;
    assert_eq!((manifests.matches("kind: Job").count(), manifests.matches("hostNetwork: true").count()), (2, 2));
    std::fs::write(cluster.stage.path("jobs.yaml"), &manifests).unwrap();
    let taken = cluster.kubectl(&["create", "--dry-run=server", "--filename=jobs.yaml"]);
    assert_eq!(taken.matches("created (server dry run)").count(), 2, "{taken}");
    cluster.is_clean();
}

#[test]
fn the_printed_rights_are_enough_and_without_them_a_user_is_told() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.inventory("rack.toml", "namespace = \"bench\"");
    let words = ["tcp", "--hosts", "rack.toml", "--test", "rr", "--json"];
    let words = [&words, BRIEF].concat();
    let told = ["this user lacks rights in the cluster", "cannot create resource \"jobs\"", "fathom hosts rbac"];
    cluster.fathom_as_bench(&words).refused(3, &told);
    let rights = cluster.fathom(&["hosts", "rbac", "--hosts", "rack.toml", "--user", "bench"]).succeeded().stdout;
    std::fs::write(cluster.stage.path("rights.yaml"), rights).unwrap();
    cluster.kubectl(&["apply", "--filename=rights.yaml"]);
    let run = cluster.fathom_as_bench(&words).succeeded().run();
    assert!(run.tests[0].summaries[0].value.is_some_and(|value| value > 0.0));
    cluster.is_clean();
    // Whoever has only these rights reads no secrets.
    let may = |words: &[&str]| {
        let words = [&["auth", "can-i", "--as=bench", "--namespace=bench"], words].concat();
        cluster.kubectl_says(&words).trim() == "yes"
    };
    assert!(may(&["create", "jobs"]) && may(&["create", "pods", "--subresource=attach"]));
    for words in
        [&["get", "secrets"][..], &["create", "pods", "--subresource=exec"], &["get", "pods", "--subresource=log"]]
    {
        assert!(!may(words), "{words:?}");
    }
}
