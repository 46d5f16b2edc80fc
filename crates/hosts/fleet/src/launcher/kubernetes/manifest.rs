//! The Jobs of a run, as Kubernetes reads them.

use std::collections::BTreeMap;

use fathom_model::{
    kubernetes::{KubernetesCluster, KubernetesHost, PodNetwork},
    units::Nanos,
};
use serde_json::{Value, json};

use super::yaml;

/// The label of all pods of fathom.
pub(super) const NAME_LABEL: &str = "app.kubernetes.io/name";
/// Its value.
pub(super) const NAME: &str = "fathom";
/// The label with the run.
pub(super) const RUN_LABEL: &str = "fathom.dev/run";
/// The label that says whether another run may have a pod on the same node.
pub(super) const USE_LABEL: &str = "fathom.dev/use";
/// The value of that label for a run that measures.
pub(super) const EXCLUSIVE: &str = "exclusive";
/// The annotation with the run in words for people.
pub(super) const HOLDER: &str = "fathom.dev/holder";
/// The name of the only container.
pub(super) const CONTAINER: &str = "agent";

/// How long a Job of which the controller is gone can still be looked at.
const KEPT_S: u64 = 300;
/// How long a pod that is deleted gets to end: an agent ends when its stream does.
const GRACE_S: u64 = 2;
/// A user that is nobody, for agents without capabilities.
const NOBODY: u32 = 65_532;
/// The time from the last pod that starts to the first words to all agents: a few calls of `kubectl`.
const ATTACH_TIMEOUT: Nanos = Nanos::from_secs(30);

/// Whether other runs may have a pod on the same nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeUse {
    /// The run measures, so no other run may.
    Exclusive,
    /// The run only looks.
    Shared,
}

/// The pods that a run asks for.
#[derive(Debug, Clone)]
pub struct PodRequest {
    /// The id of the run: a label of RFC 1123.
    pub run: String,
    /// The run in words for people.
    pub holder: String,
    /// Whether other runs may have a pod on the same nodes.
    pub node_use: NodeUse,
    /// The hosts by name. All of them have the same cluster.
    pub hosts: BTreeMap<String, KubernetesHost>,
}

impl PodRequest {
    /// Returns the manifests of all Jobs as YAML.
    #[must_use]
    pub fn manifest(&self) -> String {
        yaml::documents(&self.jobs())
    }

    /// Returns the cluster of the hosts; none if there are no hosts.
    pub(super) fn cluster(&self) -> Option<&KubernetesCluster> {
        self.hosts.values().next().map(|host| &host.cluster)
    }

    /// Returns the name of the Job of a host.
    pub(super) fn job_name(&self, host: &KubernetesHost) -> String {
        format!("fathom-{}-{}", self.run, if host.sut { "sut" } else { "peers" })
    }

    /// Returns a Job for the tested host, and one for all others.
    fn jobs(&self) -> Vec<Value> {
        let mut nodes: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for host in self.hosts.values() {
            nodes.entry(self.job_name(host)).or_default().push(&host.node);
        }
        let Some(cluster) = self.cluster() else { return Vec::new() };
        nodes.into_iter().map(|(name, nodes)| self.job(&name, &nodes, cluster)).collect()
    }

    fn job(&self, name: &str, nodes: &[&str], cluster: &KubernetesCluster) -> Value {
        let node_use = if self.node_use == NodeUse::Exclusive { EXCLUSIVE } else { "shared" };
        let labels = json!({ NAME_LABEL: NAME, RUN_LABEL: self.run, USE_LABEL: node_use });
        let annotations = json!({ HOLDER: self.holder });
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": name, "labels": labels, "annotations": annotations },
            "spec": {
                "completions": nodes.len(),
                "parallelism": nodes.len(),
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "activeDeadlineSeconds": whole_secs(cluster.deadline()),
                "ttlSecondsAfterFinished": KEPT_S,
                "template": {
                    "metadata": { "labels": labels, "annotations": annotations },
                    "spec": self.pod(nodes, cluster),
                },
            },
        })
    }

    fn pod(&self, nodes: &[&str], cluster: &KubernetesCluster) -> Value {
        // The name of a node is a field of it. Its label `kubernetes.io/hostname` may have another value.
        let on =
            |node: &&str| json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }] });
        let terms: Vec<Value> = nodes.iter().map(on).collect();
        let mut spec = json!({
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE_S,
            "enableServiceLinks": false,
            "automountServiceAccountToken": false,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
                },
                "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [self.apart()] },
            },
            "containers": [container(cluster)],
        });
        if cluster.network == PodNetwork::Host {
            spec["hostNetwork"] = true.into();
        }
        if cluster.tolerate {
            spec["tolerations"] = json!([{ "operator": "Exists" }]);
        }
        spec
    }

    /// Returns which pods must not be on the same node: those of any run that measures, in all namespaces, or else those of the same run.
    fn apart(&self) -> Value {
        let topology = "kubernetes.io/hostname";
        match self.node_use {
            NodeUse::Exclusive => json!({
                "topologyKey": topology,
                "labelSelector": { "matchLabels": { NAME_LABEL: NAME, USE_LABEL: EXCLUSIVE } },
                "namespaceSelector": {},
            }),
            NodeUse::Shared => {
                json!({ "topologyKey": topology, "labelSelector": { "matchLabels": { RUN_LABEL: self.run } } })
            }
        }
    }
}

fn container(cluster: &KubernetesCluster) -> Value {
    let patience = format!("{}s", whole_secs(cluster.start_timeout() + ATTACH_TIMEOUT));
    let program = cluster.program.as_deref().unwrap_or("fathom");
    let mut security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if cluster.capabilities.is_empty() {
        security["runAsNonRoot"] = true.into();
        security["runAsUser"] = NOBODY.into();
    } else {
        security["runAsUser"] = 0.into();
        security["capabilities"]["add"] = json!(cluster.capabilities);
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": cluster.image,
        "command": [program, "agent", "--stdio", "--await-controller", patience],
        "stdin": true,
        // When the controller is gone, the agent reads the end of its input.
        "stdinOnce": true,
        // What it wrote last, without the right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security,
    });
    if let Some(pull) = cluster.pull {
        container["imagePullPolicy"] = json!(pull);
    }
    let amounts = [("cpu", &cluster.cpu), ("memory", &cluster.memory)];
    let amounts: BTreeMap<_, _> =
        amounts.into_iter().filter_map(|(name, amount)| amount.as_ref().map(|amount| (name, amount))).collect();
    if !amounts.is_empty() {
        container["resources"] = json!({ "requests": amounts, "limits": amounts });
    }
    container
}

/// Returns whole seconds, rounded up.
fn whole_secs(span: Nanos) -> u64 {
    span.0.div_ceil(1_000_000_000)
}

#[cfg(test)]
mod tests {
    use fathom_model::kubernetes::PodCapability;

    use super::*;

    fn request(cluster: &KubernetesCluster) -> PodRequest {
        let host =
            |node: &str, sut| KubernetesHost { node: node.to_owned(), sut, data: None, cluster: cluster.clone() };
        let hosts = [("sut", host("n1", true)), ("b1", host("n2", false)), ("b2", host("n3", false))];
        PodRequest {
            run: "2026-01-02-0304-abcd".to_owned(),
            holder: "run 2026-01-02-0304-abcd of me on here".to_owned(),
            node_use: NodeUse::Exclusive,
            hosts: hosts.into_iter().map(|(name, host)| (name.to_owned(), host)).collect(),
        }
    }

    #[test]
    fn the_tested_host_and_the_others_have_a_job_each_with_a_pod_for_every_node() {
        let cluster = KubernetesCluster { image: "fathom:1".to_owned(), ..KubernetesCluster::default() };
        let jobs = request(&cluster).jobs();
        let names: Vec<&str> = jobs.iter().map(|job| job["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["fathom-2026-01-02-0304-abcd-peers", "fathom-2026-01-02-0304-abcd-sut"]);
        let peers = &jobs[0]["spec"];
        assert_eq!(
            (&peers["completions"], &peers["parallelism"], &peers["backoffLimit"]),
            (&2.into(), &2.into(), &0.into())
        );
        assert_eq!(peers["activeDeadlineSeconds"], 86_400);
        let pod = &peers["template"]["spec"];
        let terms =
            &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let nodes: Vec<&Value> =
            terms.as_array().unwrap().iter().map(|term| &term["matchFields"][0]["values"][0]).collect();
        assert_eq!(nodes, ["n2", "n3"]);
        assert_eq!((&pod["hostNetwork"], &pod["automountServiceAccountToken"]), (&true.into(), &false.into()));
        let container = &pod["containers"][0];
        assert_eq!((&container["stdin"], &container["stdinOnce"]), (&true.into(), &true.into()));
        assert_eq!(container["command"], json!(["fathom", "agent", "--stdio", "--await-controller", "90s"]));
        assert!(container.get("resources").is_none() && container.get("imagePullPolicy").is_none());
    }

    #[test]
    fn only_a_run_that_measures_keeps_other_runs_off_its_nodes() {
        let cluster = KubernetesCluster { image: "fathom:1".to_owned(), ..KubernetesCluster::default() };
        let exclusive = request(&cluster);
        assert_eq!(exclusive.apart()["namespaceSelector"], json!({}));
        let shared = PodRequest { node_use: NodeUse::Shared, ..exclusive };
        let labels = &shared.apart()["labelSelector"]["matchLabels"];
        assert_eq!(labels, &json!({ RUN_LABEL: "2026-01-02-0304-abcd" }));
    }

    #[test]
    fn rights_and_amounts_are_those_that_were_asked_for() {
        let plain = KubernetesCluster { image: "fathom:1".to_owned(), ..KubernetesCluster::default() };
        let security = &container(&plain)["securityContext"];
        assert_eq!((&security["runAsNonRoot"], &security["capabilities"]), (&true.into(), &json!({ "drop": ["ALL"] })));
        let rich = KubernetesCluster {
            network: PodNetwork::Pod,
            capabilities: vec![PodCapability::NetAdmin, PodCapability::NetRaw],
            cpu: Some("2".to_owned()),
            ..plain
        };
        let rights = container(&rich);
        let capabilities = &rights["securityContext"]["capabilities"];
        assert_eq!(capabilities, &json!({ "drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"] }));
        assert_eq!(rights["resources"], json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "2" } }));
        assert!(request(&rich).pod(&["n1"], &rich).get("hostNetwork").is_none());
    }
}
