//! Hosts that are nodes of a Kubernetes cluster: two Indexed Jobs, a pod for each node, and the agent's stream by `kubectl attach`.
//!
//! The cluster is asked by the system's `kubectl`, as other hosts are by the system's `ssh`: it brings the user's kubeconfig, contexts,
//! proxies and plugins that log in.

mod failure;
mod kubectl;
mod manifest;
mod pods;
mod rbac;
mod yaml;

use std::{collections::BTreeMap, net::IpAddr, thread, time::Duration};

use fathom_model::{
    kubernetes::{KubernetesCluster, KubernetesHost},
    units::Nanos,
};
use fathom_sys::clock;
use serde::de::DeserializeOwned;

pub use failure::PodFailure;
pub use manifest::{NodeUse, PodRequest};
pub use rbac::{RbacSubject, rbac};

use super::{AgentStream, Opening, command};
use crate::{Error, ErrorClass};
use manifest::{CONTAINER, NAME, NAME_LABEL, RUN_LABEL};
use pods::{Listed, Observation, Pod, PodEvent, PodState};

/// The interval between two looks at the pods, apart from what the look itself takes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pods that run by then need no look at events.
const EVENTS_AFTER: Nanos = Nanos::from_millis(1500);

/// A pod whose agent waits for its controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedPod {
    /// Its name.
    pub name: String,
    /// Its address, which is that of its node in the network of the node.
    pub address: IpAddr,
}

/// The Jobs of a run with their pods; dropping it deletes them.
#[derive(Debug)]
pub struct Pods {
    cluster: KubernetesCluster,
    run: String,
    by_host: BTreeMap<String, Result<StartedPod, PodFailure>>,
    are_deleted: bool,
}

impl Pods {
    /// Creates the Jobs and waits until each host has a pod that runs, or can have none, or until `is_interrupted`.
    ///
    /// # Errors
    /// What prevents all pods; none is left then.
    pub fn start(request: &PodRequest, is_interrupted: impl Fn() -> bool) -> Result<Self, PodFailure> {
        let cluster = check(request)?;
        let mut pods =
            Self { cluster: cluster.clone(), run: request.run.clone(), by_host: BTreeMap::new(), are_deleted: false };
        // The server checks the manifest, too.
        kubectl::run(cluster, &["create", "--validate=false", "--filename=-"], &request.manifest())?;
        pods.by_host = pods.wait(request, is_interrupted)?;
        Ok(pods)
    }

    /// Returns the pod of a host, or why there is none.
    ///
    /// # Panics
    /// If the request had no such host.
    pub fn of(&self, host: &str) -> &Result<StartedPod, PodFailure> {
        &self.by_host[host]
    }

    /// Deletes the Jobs, and with them their pods.
    ///
    /// # Errors
    /// If the cluster does not do that. The Jobs then end by themselves, and are deleted five minutes later.
    pub fn delete(mut self) -> Result<(), PodFailure> {
        self.delete_once()
    }

    fn delete_once(&mut self) -> Result<(), PodFailure> {
        self.are_deleted = true;
        let selector = format!("--selector={RUN_LABEL}={}", self.run);
        let words = ["delete", "jobs", &selector, "--wait=false", "--cascade=background", "--ignore-not-found"];
        kubectl::run(&self.cluster, &words, "").map(drop)
    }

    fn wait(
        &self,
        request: &PodRequest,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<BTreeMap<String, Result<StartedPod, PodFailure>>, PodFailure> {
        let begin = clock::now();
        loop {
            if is_interrupted() {
                let class = ErrorClass::Incomplete;
                return Err(PodFailure {
                    class,
                    ..PodFailure::new("interrupted while pods were starting", Vec::new(), "")
                });
            }
            let elapsed = clock::now() - begin;
            let pods: Vec<Pod> = self.list(&["get", "pods", &format!("--selector={NAME_LABEL}={NAME}")])?;
            let events: Vec<PodEvent> =
                if elapsed >= EVENTS_AFTER { self.list(&["get", "events"])? } else { Vec::new() };
            let observation = Observation { request, pods: &pods, events: &events, elapsed };
            let states: BTreeMap<&String, PodState> =
                request.hosts.iter().map(|(name, host)| (name, observation.state(host))).collect();
            let is_over = elapsed >= self.cluster.start_timeout();
            let is_settled = |state: &PodState| !matches!(state, PodState::Waiting(_));
            let has_failed = states.values().any(|state| matches!(state, PodState::Failed(_)));
            // Others may fail too, and all of them are to be told.
            if states.values().all(is_settled) || is_over || has_failed && elapsed >= EVENTS_AFTER * 2 {
                return Ok(states.into_iter().map(|(name, state)| (name.clone(), outcome(state))).collect());
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    fn list<T: DeserializeOwned>(&self, words: &[&str]) -> Result<Vec<T>, PodFailure> {
        let text = kubectl::run(&self.cluster, &[words, &["--output=json"]].concat(), "")?;
        let listed: Listed<T> = serde_json::from_str(&text).map_err(|error| {
            let fix = "use a kubectl that is as new as the cluster";
            PodFailure::new("kubectl prints something that is no list", vec![error.to_string()], fix)
        })?;
        Ok(listed.items)
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        if !self.are_deleted {
            // They end by themselves, too.
            let _ = self.delete_once();
        }
    }
}

/// Returns the cluster of a request that can be fulfilled.
fn check(request: &PodRequest) -> Result<&KubernetesCluster, PodFailure> {
    let usage =
        |what: String, fix: &str| PodFailure { class: ErrorClass::Usage, ..PodFailure::new(what, Vec::new(), fix) };
    let cluster = request.cluster().ok_or_else(|| usage("no host is a pod".to_owned(), ""))?;
    let mut nodes: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, host) in &request.hosts {
        host.check_words().map_err(|error| usage(format!("host `{name}`: {error}"), "correct it in the inventory"))?;
        if host.cluster != *cluster {
            let what = format!("host `{name}` has another [kubernetes] than the other hosts of the run");
            return Err(usage(what, "run one test for each of them"));
        }
        if let Some(other) = nodes.insert(&host.node, name) {
            return Err(usage(format!("host `{name}` is on the node of host `{other}`"), "name each node once"));
        }
    }
    Ok(cluster)
}

/// Returns what a state is when nobody waits any longer.
fn outcome(state: PodState) -> Result<StartedPod, PodFailure> {
    match state {
        PodState::Running { pod, address } => Ok(StartedPod { name: pod, address }),
        PodState::Waiting(failure) | PodState::Failed(failure) => Err(failure),
    }
}

/// Attaches to the agent of a pod.
///
/// # Errors
/// If `kubectl` cannot be started.
pub fn attach(host: &KubernetesHost, pod: &StartedPod) -> Result<AgentStream, Error> {
    let mut kubectl = kubectl::command(&host.cluster);
    kubectl.args(["attach", "--stdin", "--quiet", &format!("--container={CONTAINER}"), "--", &pod.name]);
    let link = command(kubectl, None, format!("pod {} on {}", pod.name, destination(host)))?;
    Ok(AgentStream { opening: Opening::TextThenFrame, ..link })
}

/// Returns how a host is shown.
#[must_use]
pub fn destination(host: &KubernetesHost) -> String {
    let namespace = host.cluster.namespace.as_ref().map(|namespace| format!(" in namespace {namespace}"));
    format!("node {}{}", host.node, namespace.unwrap_or_default())
}
