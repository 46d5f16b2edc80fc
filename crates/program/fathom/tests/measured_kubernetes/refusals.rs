//! What goes wrong before anything is measured: one message that names the host, its cause in the words of Kubernetes, and the way out.

use crate::cluster::Cluster;

#[test]
fn each_host_without_a_pod_is_named_with_the_reason_and_the_way_out() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.kubectl(&["create", "namespace", "strict"]);
    cluster.kubectl(&["label", "namespace", "strict", "pod-security.kubernetes.io/enforce=baseline"]);
    cluster.kubectl(&["cordon", "n3"]);
    cluster.inventory("cordoned.toml", "");
    cluster.inventory_of("unknown.toml", "localhost/fathom:test", "n[2,9]", "start_timeout = \"3s\"");
    cluster.inventory_of("image.toml", "localhost/none:1", "n[2-3]", "");
    cluster.inventory("strict.toml", "namespace = \"strict\"");
    cluster.inventory("namespace.toml", "namespace = \"none\"");
    cluster.inventory("context.toml", "context = \"none\"");
    cluster.inventory("program.toml", "program = \"/opt/fathom\"");
    cluster.inventory("large.toml", "cpu = \"64\"\nmemory = \"1Gi\"\nstart_timeout = \"2s\"");
    let expected: &[(&str, &[&str])] = &[
        ("cordoned.toml", &["host `b3`: node n3 takes no pods", "FailedScheduling", "kubectl uncordon n3"]),
        ("unknown.toml", &["host `b3`: no pod can be on node n9", "FailedScheduling: 0/3 nodes", "kubectl get nodes"]),
        ("image.toml", &["2 of 2 hosts", "sut: node n1 does not have the image", "ErrImageNeverPull", "load it there"]),
        (
            "strict.toml",
            &["its namespace refuses its pod", "FailedCreate", "violates PodSecurity", "network = \"pod\""],
        ),
        ("namespace.toml", &["the cluster has no such namespace", "kubectl create namespace none"]),
        ("context.toml", &["there is no such context in the kubeconfig", "kubectl config get-contexts"]),
        ("program.toml", &["fathom is not in the image localhost/fathom:test", "StartError", "program = "]),
        ("large.toml", &["node n1 does not have enough free CPU", "Insufficient cpu", "a smaller cpu"]),
    ];
    for (file, words) in expected {
        cluster.fathom(&["tcp", "--hosts", file, "--from", "b3", "--quiet"]).refused(3, words);
    }
    cluster.is_clean();
    cluster.kubectl(&["uncordon", "n3"]);

    let words = ["tcp", "--hosts", "cordoned.toml", "--from", "b3", "--quiet"];
    let words = |variable: &str| cluster.fathom_with(&[variable], &words);
    words("KUBECONFIG=/none").refused(3, &["no cluster answers", "kubectl config current-context"]);
    words("PATH=/usr/bin/none").refused(3, &["cannot start `kubectl` here", "install kubectl on this machine"]);
    cluster.is_clean();
}
