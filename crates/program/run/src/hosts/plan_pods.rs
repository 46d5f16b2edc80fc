//! The pods of a plan: which of its hosts are some, and their Jobs in the words of Kubernetes.

use std::collections::BTreeMap;

use fathom_fleet::launcher::kubernetes::{NodeUse, PodFailure, PodRequest, Pods};
use fathom_model::{Plan, kubernetes::KubernetesHost, plan::HostReach};
use fathom_sys::process::signal;

use super::{HostUse, run_name};

/// Starts the pods of a plan and waits until they run; none if no host is one.
pub(super) fn start(plan: &Plan, run_id: &str, host_use: HostUse) -> Result<Option<Pods>, PodFailure> {
    let Some(request) = request(plan, run_id, host_use) else { return Ok(None) };
    Pods::start(&request, || signal::received().is_some()).map(Some)
}

/// Returns the pods that a run of a plan asks for; none if no host is one.
pub(super) fn request(plan: &Plan, run_id: &str, host_use: HostUse) -> Option<PodRequest> {
    let hosts: BTreeMap<String, KubernetesHost> = plan
        .hosts
        .iter()
        .filter_map(|(name, reach)| match reach {
            HostReach::Kubernetes(host) => Some((name.clone(), (**host).clone())),
            _ => None,
        })
        .collect();
    let node_use = match host_use {
        HostUse::Exclusive => NodeUse::Exclusive,
        HostUse::Shared => NodeUse::Shared,
    };
    (!hosts.is_empty()).then(|| PodRequest { run: run_id.to_owned(), holder: run_name(run_id), node_use, hosts })
}
