//! Why there is no pod: from the words of `kubectl`, of the scheduler and of a node, each with the way out.

use std::{fmt, io};

use fathom_model::{kubernetes::KubernetesCluster, shell::shell_word};

use crate::ErrorClass;

/// The reason why a host has no pod, or why no host has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFailure {
    /// The effect on the run.
    pub class: ErrorClass,
    /// What is wrong, in words that may follow "host `b1`: ".
    pub what: String,
    /// What Kubernetes says about it.
    pub why: Vec<String>,
    /// The way out.
    pub fix: String,
}

impl fmt::Display for PodFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for PodFailure {}

impl PodFailure {
    pub(super) fn new(what: impl Into<String>, why: Vec<String>, fix: impl Into<String>) -> Self {
        Self { class: ErrorClass::Preflight, what: what.into(), why, fix: fix.into() }
    }
}

/// The most lines of `kubectl` in an error: it may explain at length.
const LINES_MAX: usize = 3;

/// Words of which one has to be there, what they mean, and the way out. The first that fits counts.
type Meanings = &'static [(&'static [&'static str], &'static str, &'static str)];

/// What `kubectl` writes, what that means, and the way out, in the order of what tells most. `{kubectl}` is the command by hand,
/// `{namespace}` the namespace.
const KUBECTL_WORDS: Meanings = &[
    (
        &["does not exist", "context was not found"],
        "there is no such context in the kubeconfig",
        "kubectl config get-contexts        # context = \"…\" is one of them",
    ),
    (&["namespaces \""], "the cluster has no such namespace", "kubectl create namespace {namespace}"),
    (
        &["(Forbidden)"],
        "this user lacks rights in the cluster",
        "fathom hosts rbac --hosts FILE --user NAME | kubectl apply -f -        # by somebody who may grant them",
    ),
    (
        &["must be logged in", "Unauthorized"],
        "the cluster does not accept this user's login",
        "{kubectl} get pods        # until that works",
    ),
    (&["getting credentials"], "kubectl cannot log in", "{kubectl} get pods        # until that works"),
    (
        &["did you specify the right host or port", "localhost:8080"],
        "no cluster answers",
        "kubectl config current-context        # a cluster that runs; or context = \"…\", or KUBECONFIG",
    ),
    (
        &["Unable to connect", "timed out", "deadline exceeded", "connection refused", "no route to host"],
        "no cluster answers",
        "{kubectl} get pods        # until that works",
    ),
];

/// What the scheduler, a node or a Job says about a pod, what that means, and the way out, in the order of what tells most. `{node}` is
/// the node, `{image}` the image.
const POD_WORDS: Meanings = &[
    (
        &["violates PodSecurity"],
        "its namespace refuses its pod",
        "kubectl label namespace {namespace} --overwrite pod-security.kubernetes.io/enforce=privileged        # or network = \"pod\", or fewer capabilities",
    ),
    (&["exceeded quota"], "its namespace refuses its pod", "{kubectl} describe resourcequota"),
    (
        &["error looking up service account"],
        "its namespace is not complete yet",
        "{kubectl} get serviceaccount default",
    ),
    (
        &["ErrImageNeverPull"],
        "node {node} does not have the image {image}",
        "load it there, or pull = \"IfNotPresent\" and an image of a registry that the node reaches",
    ),
    (&["InvalidImageName"], "`{image}` is not the name of an image", "image = \"registry.example/fathom:1.0\""),
    (
        &["ErrImagePull", "ImagePullBackOff"],
        "node {node} cannot pull the image {image}",
        "image = \"…\" that the nodes can pull; a private registry needs imagePullSecrets at the service account `default`",
    ),
    (
        &["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"],
        "node {node} is not ready",
        "kubectl describe node {node}",
    ),
    (
        &["were unschedulable", "node.kubernetes.io/unschedulable"],
        "node {node} takes no pods",
        "kubectl uncordon {node}",
    ),
    (&["untolerated taint"], "node {node} has a taint", "tolerate = true, or another node"),
    (&["Insufficient cpu"], "node {node} does not have enough free CPU", "a smaller cpu = \"…\", or another node"),
    (
        &["Insufficient memory"],
        "node {node} does not have enough free memory",
        "a smaller memory = \"…\", or another node",
    ),
    (
        &["executable file not found", "no such file or directory"],
        "fathom is not in the image {image}",
        "program = \"…\" in [kubernetes] is its path in the image",
    ),
    (
        &["permission denied"],
        "the fathom in the image {image} cannot be run",
        "make its file executable for everybody: without capabilities its user is nobody",
    ),
    (
        &["FailedScheduling"],
        "no pod can be on node {node}",
        "kubectl get nodes        # control = \"…\" is the name of a node that is Ready and free",
    ),
];

/// Returns the error of a `kubectl` that cannot be started.
pub(super) fn no_kubectl(cause: &io::Error) -> PodFailure {
    let fix = "install kubectl on this machine, or name another launcher";
    PodFailure::new("cannot start `kubectl` here", vec![cause.to_string()], fix)
}

/// Returns the error of a `kubectl` that failed.
pub(super) fn of_kubectl(cluster: &KubernetesCluster, stderr: &str, status: &str) -> PodFailure {
    let found = KUBECTL_WORDS.iter().find(|(words, ..)| words.iter().any(|words| stderr.contains(words)));
    let (what, fix) =
        found.map_or(("kubectl fails", "{kubectl} get pods        # until that works"), |(_, what, fix)| (*what, *fix));
    let mut why: Vec<String> = Vec::new();
    for line in stderr.lines().map(str::trim) {
        let is_told = !line.is_empty() && !is_log(line) && why.iter().all(|one| one != line);
        if is_told && why.len() < LINES_MAX {
            why.push(line.to_owned());
        }
    }
    if why.is_empty() {
        why.push(stderr.lines().last().unwrap_or(status).to_owned());
    }
    PodFailure::new(what, why, filled(fix, cluster, ""))
}

/// Returns whether a line of `kubectl` is one of its log, such as `E1125 22:00:00.000000 …`, which the error repeats.
fn is_log(line: &str) -> bool {
    let digits = line.strip_prefix(['E', 'W', 'I']).unwrap_or_default();
    digits.len() > 4 && digits.bytes().take(4).all(|byte| byte.is_ascii_digit())
}

/// Returns the error of a pod, from the reason and the message of Kubernetes.
pub(super) fn of_pod(cluster: &KubernetesCluster, node: &str, reason: &str, message: &str) -> PodFailure {
    let says = if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") };
    let found = POD_WORDS.iter().find(|(words, ..)| words.iter().any(|words| says.contains(words)));
    let unknown = ("its pod does not start", "{kubectl} get events        # what Kubernetes says about it");
    let (what, fix) = found.map_or(unknown, |(_, what, fix)| (*what, *fix));
    PodFailure::new(filled(what, cluster, node), vec![says], filled(fix, cluster, node))
}

/// Returns the words of a shell that ask the same cluster by hand.
fn by_hand(cluster: &KubernetesCluster) -> String {
    let option = |name: &str, value: &Option<String>| {
        value.as_ref().map_or_else(String::new, |value| format!(" --{name}={}", shell_word(value)))
    };
    format!("kubectl{}{}", option("context", &cluster.context), option("namespace", &cluster.namespace))
}

fn filled(text: &str, cluster: &KubernetesCluster, node: &str) -> String {
    text.replace("{kubectl}", &by_hand(cluster))
        .replace("{namespace}", cluster.namespace.as_deref().unwrap_or("default"))
        .replace("{image}", &cluster.image)
        .replace("{node}", node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> KubernetesCluster {
        KubernetesCluster {
            image: "fathom:1".to_owned(),
            namespace: Some("bench".to_owned()),
            ..KubernetesCluster::default()
        }
    }

    #[test]
    fn a_context_is_quoted_for_a_shell() {
        let context = Some("it's $HOME".to_owned());
        let cluster = KubernetesCluster { context, ..cluster() };
        assert_eq!(by_hand(&cluster), "kubectl --context='it'\\''s $HOME' --namespace=bench");
    }

    #[test]
    fn the_words_of_kubectl_name_the_reason_and_the_way_out() {
        let cases = [
            ("error: context \"x\" does not exist", "there is no such context", "get-contexts"),
            (
                "Error from server (NotFound): error when creating \"STDIN\": namespaces \"bench\" not found",
                "the cluster has no such namespace",
                "kubectl create namespace bench",
            ),
            (
                "Error from server (Forbidden): jobs.batch is forbidden: User \"u\" cannot create resource \"jobs\"",
                "this user lacks rights in the cluster",
                "fathom hosts rbac",
            ),
            (
                "E1125 22:00:00 memcache.go:265] dial tcp\nThe connection to the server localhost:8080 was refused - did you specify the right host or port?",
                "no cluster answers",
                "current-context",
            ),
            (
                "Unable to connect to the server: dial tcp: lookup nowhere: no such host",
                "no cluster answers",
                "get pods",
            ),
            ("error: You must be logged in to the server (Unauthorized)", "the cluster does not accept", "get pods"),
            ("something else", "kubectl fails", "kubectl --namespace=bench get pods"),
        ];
        for (stderr, what, fix) in cases {
            let failure = of_kubectl(&cluster(), stderr, "exit status: 1");
            assert!(failure.what.starts_with(what) && failure.fix.contains(fix), "{stderr}\n{failure:?}");
            assert_eq!(failure.why, [stderr.lines().last().unwrap()]);
        }
        assert_eq!(of_kubectl(&cluster(), "", "exit status: 1").why, ["exit status: 1"]);
    }

    #[test]
    fn the_words_of_kubernetes_about_a_pod_name_the_reason_and_the_way_out() {
        let cases = [
            (
                "FailedCreate",
                "pods \"x\" is forbidden: violates PodSecurity \"baseline:latest\"",
                "refuses its pod",
                "network = \"pod\"",
            ),
            (
                "ErrImageNeverPull",
                "Container image is not present",
                "node n1 does not have the image fathom:1",
                "load it",
            ),
            (
                "FailedScheduling",
                "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}",
                "has a taint",
                "tolerate",
            ),
            (
                "FailedScheduling",
                "1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
                "not ready",
                "describe node n1",
            ),
            (
                "FailedScheduling",
                "3 node(s) didn't match Pod's node affinity/selector",
                "no pod can be on node n1",
                "get nodes",
            ),
            (
                "StartError",
                "exec: \"fathom\": executable file not found in $PATH",
                "fathom is not in the image",
                "program",
            ),
            ("FailedMount", "no", "its pod does not start", "get events"),
        ];
        for (reason, message, what, fix) in cases {
            let failure = of_pod(&cluster(), "n1", reason, message);
            assert!(failure.what.contains(what) && failure.fix.contains(fix), "{failure:?}");
        }
    }
}
