//! The system's `kubectl`, with the user's own kubeconfig, contexts and plugins that log in.
//!
//! Every word of a host is checked before it gets here, and each option has its value behind `=`, so none can be taken for another one.

use std::{
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

use fathom_model::kubernetes::KubernetesCluster;

use super::failure::{self, PodFailure};

/// The longest wait for an answer of the cluster.
const REQUEST_TIMEOUT: &str = "--request-timeout=10s";

/// Returns `kubectl` for a cluster; what it is to do follows.
pub(super) fn command(cluster: &KubernetesCluster) -> Command {
    let mut kubectl = Command::new("kubectl");
    if let Some(context) = &cluster.context {
        kubectl.arg(format!("--context={context}"));
    }
    if let Some(namespace) = &cluster.namespace {
        kubectl.arg(format!("--namespace={namespace}"));
    }
    kubectl
}

/// Runs `kubectl` to its end and returns what it printed. Ctrl-C does not reach it.
///
/// # Errors
/// If it cannot be started, or for what it says against the cluster or the request.
pub(super) fn run(cluster: &KubernetesCluster, words: &[&str], input: &str) -> Result<String, PodFailure> {
    let mut kubectl = command(cluster);
    kubectl.arg(REQUEST_TIMEOUT).args(words).process_group(0);
    kubectl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = kubectl.spawn().map_err(|cause| failure::no_kubectl(&cause))?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read everything says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(|cause| failure::no_kubectl(&cause))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failure::of_kubectl(cluster, &String::from_utf8_lossy(&output.stderr), &output.status.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_stays_one_word_behind_its_option() {
        let cluster = KubernetesCluster {
            context: Some("--kubeconfig=/tmp/other it's".to_owned()),
            namespace: Some("bench".to_owned()),
            ..KubernetesCluster::default()
        };
        let kubectl = command(&cluster);
        let words: Vec<_> = kubectl.get_args().collect();
        assert_eq!(words, ["--context=--kubeconfig=/tmp/other it's", "--namespace=bench"]);
    }
}
