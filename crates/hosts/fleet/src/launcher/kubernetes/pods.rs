//! What the pods of a run have come to, from the answers of Kubernetes. Pure functions.

use std::{collections::BTreeMap, net::IpAddr};

use fathom_model::{kubernetes::KubernetesHost, units::Nanos};
use serde::Deserialize;

use super::{
    failure::{self, PodFailure},
    manifest::{EXCLUSIVE, HOLDER, PodRequest, RUN_LABEL, USE_LABEL},
};

/// The wait for a place on a node: a pod that has just ended may still be there. A node that is not there, or is full, does not come.
const PLACE_TIMEOUT: Nanos = Nanos::from_secs(10);

/// A list of Kubernetes.
#[derive(Debug, Deserialize)]
pub(super) struct Listed<T> {
    pub(super) items: Vec<T>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Metadata {
    name: String,
    deletion_timestamp: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

/// A pod, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pod {
    metadata: Metadata,
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    reason: Option<String>,
    message: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<IpAddr>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    message: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    running: Option<serde_json::Value>,
    waiting: Option<StateReason>,
    terminated: Option<StateReason>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StateReason {
    reason: Option<String>,
    message: Option<String>,
    exit_code: Option<i64>,
}

/// An event, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodEvent {
    involved_object: ObjectName,
    reason: String,
    message: String,
    r#type: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectName {
    name: String,
}

/// States of a container that do not end by themselves, or only when somebody changes something.
const STUCK: [&str; 9] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "CrashLoopBackOff",
];

/// Events of a pod that say why it does not start, apart from those that accompany its state.
const PASSING: [&str; 2] = ["FailedScheduling", "Failed"];

/// What became of the pod of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodState {
    /// Its container runs.
    Running { pod: String, address: IpAddr },
    /// It may still come; what it waits for.
    Waiting(PodFailure),
    /// It does not come.
    Failed(PodFailure),
}

/// Everything that is known about the pods at one moment.
pub(super) struct Observation<'a> {
    pub(super) request: &'a PodRequest,
    /// All pods of fathom in the namespace, those of other runs too.
    pub(super) pods: &'a [Pod],
    pub(super) events: &'a [PodEvent],
    /// The time since the Jobs were created.
    pub(super) elapsed: Nanos,
}

impl Pod {
    fn is_of(&self, run: &str) -> bool {
        self.metadata.labels.get(RUN_LABEL).is_some_and(|label| label == run)
    }

    fn is_on(&self, node: &str) -> bool {
        self.spec.node_name.as_deref() == Some(node)
    }

    /// Returns the run that has a node for itself by this pod.
    fn holder(&self) -> Option<&str> {
        let is_alive =
            self.metadata.deletion_timestamp.is_none() && matches!(self.status.phase.as_str(), "Pending" | "Running");
        let is_exclusive = self.metadata.labels.get(USE_LABEL).is_some_and(|label| label == EXCLUSIVE);
        (is_alive && is_exclusive).then(|| self.metadata.annotations.get(HOLDER).map_or("another run", String::as_str))
    }

    /// Returns why the scheduler has no place for it.
    fn unschedulable(&self) -> Option<&str> {
        let is_it = |one: &&Condition| one.r#type == "PodScheduled" && one.status == "False";
        self.status.conditions.iter().find(is_it).map(|one| one.message.as_deref().unwrap_or_default())
    }
}

impl Observation<'_> {
    /// Returns what became of the pod of a host.
    pub(super) fn state(&self, host: &KubernetesHost) -> PodState {
        let own = || self.pods.iter().filter(|pod| pod.is_of(&self.request.run));
        if let Some(pod) = own().find(|pod| pod.is_on(&host.node)) {
            return self.state_on_node(pod, host);
        }
        let holder =
            self.pods.iter().filter(|pod| !pod.is_of(&self.request.run) && pod.is_on(&host.node)).find_map(Pod::holder);
        let unplaced = own()
            .filter(|pod| pod.metadata.name.starts_with(&self.request.job_name(host)))
            .find_map(Pod::unschedulable);
        match (unplaced, holder) {
            (Some(_), Some(holder)) => PodState::Failed(PodFailure::new(
                format!("the host is in use by {holder}"),
                Vec::new(),
                "wait until that run has ended, or end it",
            )),
            (Some(message), None) => {
                let failure = failure_of(host, "FailedScheduling", message);
                let is_over = self.elapsed >= PLACE_TIMEOUT;
                if is_over { PodState::Failed(failure) } else { PodState::Waiting(failure) }
            }
            (None, _) => self.state_without_pod(host),
        }
    }

    /// Returns the state of a host that has no pod: its Job may be refused one.
    fn state_without_pod(&self, host: &KubernetesHost) -> PodState {
        let job = self.request.job_name(host);
        let refused =
            self.events.iter().rev().find(|event| event.reason == "FailedCreate" && event.involved_object.name == job);
        match refused {
            Some(event) => PodState::Failed(failure_of(host, &event.reason, &event.message)),
            None => PodState::Waiting(failure_of(host, "no pod was made", "")),
        }
    }

    fn state_on_node(&self, pod: &Pod, host: &KubernetesHost) -> PodState {
        let status = &pod.status;
        let container = status.container_statuses.first().map(|container| &container.state);
        if pod.metadata.deletion_timestamp.is_some() {
            return PodState::Failed(failure_of(host, "Deleted", "somebody deleted the pod"));
        }
        if let Some(ended) = container.and_then(|state| state.terminated.as_ref()) {
            let code = ended.exit_code.map(|code| format!("exit code {code}"));
            let parts: Vec<&str> = ended.message.as_deref().map(str::trim).into_iter().chain(code.as_deref()).collect();
            return PodState::Failed(failure_of(host, ended.reason.as_deref().unwrap_or("Ended"), &parts.join("; ")));
        }
        if status.phase == "Failed" {
            let (reason, message) = (status.reason.as_deref().unwrap_or("Failed"), status.message.as_deref());
            return PodState::Failed(failure_of(host, reason, message.unwrap_or_default()));
        }
        if let (Some(address), true) = (status.pod_ip, container.is_some_and(|state| state.running.is_some())) {
            return PodState::Running { pod: pod.metadata.name.clone(), address };
        }
        let waiting = container.and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or("Pending");
        let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
        if STUCK.contains(&reason) {
            return PodState::Failed(failure_of(host, reason, message));
        }
        let is_told = |event: &&PodEvent| {
            event.involved_object.name == pod.metadata.name
                && event.r#type == "Warning"
                && !PASSING.contains(&event.reason.as_str())
        };
        match self.events.iter().rev().find(is_told) {
            Some(event) => PodState::Waiting(failure_of(host, &event.reason, &event.message)),
            None => PodState::Waiting(failure_of(host, reason, message)),
        }
    }
}

fn failure_of(host: &KubernetesHost, reason: &str, message: &str) -> PodFailure {
    failure::of_pod(&host.cluster, &host.node, reason, message)
}

#[cfg(test)]
mod tests {
    use fathom_model::kubernetes::KubernetesCluster;
    use serde_json::{Value, json};

    use super::*;
    use crate::launcher::kubernetes::manifest::NodeUse;

    const RUN: &str = "r1";

    fn host(node: &str) -> KubernetesHost {
        let cluster = KubernetesCluster { image: "fathom:1".to_owned(), ..KubernetesCluster::default() };
        KubernetesHost { node: node.to_owned(), sut: false, data: None, cluster }
    }

    fn pod(run: &str, node: Option<&str>, status: &Value) -> Pod {
        let labels = json!({ RUN_LABEL: run, USE_LABEL: EXCLUSIVE });
        let annotations = json!({ HOLDER: format!("run {run} of me") });
        let name = format!("fathom-{run}-peers-0-x");
        let metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": node }, "status": status })).unwrap()
    }

    fn state(pods: &[Pod], events: &Value, elapsed: Nanos) -> PodState {
        let hosts = BTreeMap::from([("b1".to_owned(), host("n1"))]);
        let (run, holder) = (RUN.to_owned(), "run r1 of me".to_owned());
        let request = PodRequest { run, holder, node_use: NodeUse::Exclusive, hosts };
        let events: Vec<PodEvent> = serde_json::from_value(events.clone()).unwrap();
        Observation { request: &request, pods, events: &events, elapsed }.state(&host("n1"))
    }

    /// Returns what is told of a pod that does not come, or is waited for.
    fn told(state: &PodState) -> (bool, String, String) {
        match state {
            PodState::Running { pod, .. } => panic!("{pod} runs"),
            PodState::Waiting(failure) => (false, failure.what.clone(), failure.why.join("\n")),
            PodState::Failed(failure) => (true, failure.what.clone(), failure.why.join("\n")),
        }
    }

    fn container(state: &Value) -> Value {
        json!({ "phase": "Pending", "containerStatuses": [{ "state": state }] })
    }

    #[test]
    fn a_pod_counts_once_its_container_runs_and_it_has_an_address() {
        let running =
            json!({ "phase": "Running", "podIP": "10.98.1.2", "containerStatuses": [{ "state": { "running": {} } }] });
        let address = IpAddr::from([10, 98, 1, 2]);
        let expected = PodState::Running { pod: "fathom-r1-peers-0-x".to_owned(), address };
        assert_eq!(state(&[pod(RUN, Some("n1"), &running)], &json!([]), Nanos::ZERO), expected);
        let elsewhere = state(&[pod(RUN, Some("n2"), &running)], &json!([]), Nanos::ZERO);
        assert!(!told(&elsewhere).0, "{elsewhere:?}");
    }

    #[test]
    fn states_that_do_not_end_by_themselves_are_failures_and_others_are_waited_for() {
        let cases = [
            (json!({ "waiting": { "reason": "ContainerCreating" } }), false, "does not start"),
            (json!({ "waiting": { "reason": "ErrImagePull", "message": "not found" } }), true, "cannot pull the image"),
            (json!({ "waiting": { "reason": "ErrImageNeverPull" } }), true, "does not have the image"),
            (
                json!({ "terminated": { "reason": "Error", "exitCode": 4, "message": "lost\n" } }),
                true,
                "does not start",
            ),
        ];
        for (given, has_failed, what) in cases {
            let seen = told(&state(&[pod(RUN, Some("n1"), &container(&given))], &json!([]), Nanos::ZERO));
            assert!(seen.0 == has_failed && seen.1.contains(what), "{given}: {seen:?}");
        }
        let ended = json!({ "terminated": { "reason": "Error", "exitCode": 4, "message": "lost\n" } });
        let seen = told(&state(&[pod(RUN, Some("n1"), &container(&ended))], &json!([]), Nanos::ZERO));
        assert_eq!(seen.2, "Error: lost; exit code 4");
        let evicted = json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on memory" });
        let seen = told(&state(&[pod(RUN, Some("n1"), &evicted)], &json!([]), Nanos::ZERO));
        assert_eq!((seen.0, seen.2.as_str()), (true, "Evicted: The node was low on memory"));
    }

    #[test]
    fn a_pod_without_a_place_is_waited_for_and_one_whose_node_is_held_is_not() {
        let unplaced = || {
            let condition = json!({ "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" });
            pod(RUN, None, &json!({ "phase": "Pending", "conditions": [condition] }))
        };
        let seen = told(&state(&[unplaced()], &json!([]), Nanos::from_secs(1)));
        assert_eq!((seen.0, seen.2.as_str()), (false, "FailedScheduling: 0/3 nodes are available"));
        assert!(told(&state(&[unplaced()], &json!([]), PLACE_TIMEOUT)).0);
        let other = pod("r2", Some("n1"), &json!({ "phase": "Running" }));
        let seen = told(&state(&[unplaced(), other], &json!([]), Nanos::from_secs(1)));
        assert_eq!((seen.0, seen.1.as_str()), (true, "the host is in use by run r2 of me"));
        let ended = pod("r2", Some("n1"), &json!({ "phase": "Succeeded" }));
        assert!(!told(&state(&[unplaced(), ended], &json!([]), Nanos::from_secs(1))).0);
    }

    #[test]
    fn events_tell_what_a_state_does_not() {
        let event = |name: &str, reason: &str, message: &str| json!({ "involvedObject": { "name": name }, "reason": reason, "message": message, "type": "Warning" });
        let refused = json!([event("fathom-r1-peers", "FailedCreate", "violates PodSecurity \"baseline\"")]);
        assert_eq!(told(&state(&[], &refused, Nanos::ZERO)).1, "its namespace refuses its pod");
        let of_others = json!([event("fathom-r2-peers", "FailedCreate", "violates PodSecurity")]);
        assert!(!told(&state(&[], &of_others, Nanos::ZERO)).0);
        let network = json!([event("fathom-r1-peers-0-x", "FailedCreatePodSandBox", "no network")]);
        let creating = pod(RUN, Some("n1"), &container(&json!({ "waiting": { "reason": "ContainerCreating" } })));
        let seen = told(&state(&[creating], &network, Nanos::ZERO));
        assert_eq!((seen.0, seen.2.as_str()), (false, "FailedCreatePodSandBox: no network"));
    }
}
