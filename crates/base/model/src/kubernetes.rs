//! Hosts that are pods: the node of each one, and what is the same for all pods of a run.
//!
//! Every word ends in a manifest or on the command line of `kubectl`, so those that Kubernetes would refuse are refused here, by their key.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{
    reach::{WordError, check, is_path_word},
    units::Nanos,
};

/// A host that is a node of a Kubernetes cluster; its agent is a pod there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesHost {
    /// The name of the node.
    pub node: String,
    /// Whether it is the system under test, which has a Job of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sut: bool,
    /// Its address on the path under test; absent for that of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<IpAddr>,
    /// The cluster, and what all pods have in common.
    pub cluster: KubernetesCluster,
}

/// A cluster, and what all pods of a run in it have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KubernetesCluster {
    /// The image of the pods. It contains fathom.
    pub image: String,
    /// The path of fathom in the image; absent for `fathom` in its `PATH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The namespace; absent for that of the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The context of the user's kubeconfig; absent for the current one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Which network the pods are in.
    #[serde(default)]
    pub network: PodNetwork,
    /// When the image is pulled; absent for the default of Kubernetes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<ImagePull>,
    /// The processors of a pod, requested and at most, such as `2` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The memory of a pod, requested and at most, such as `512Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// The capabilities of the agent; without one it is no root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capabilities: Vec<PodCapability>,
    /// Whether the pods also run on nodes that have taints.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tolerate: bool,
    /// How long the pods live at most, such as `2h`; absent for a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    /// How long the pods may take to start, image included, such as `2min`; absent for one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_timeout: Option<String>,
}

/// Which network a pod is in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PodNetwork {
    /// That of its node.
    #[default]
    Host,
    /// That of the cluster's pods.
    Pod,
}

/// When the image of a pod is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub enum ImagePull {
    /// For every pod.
    Always,
    /// If the node does not have it.
    IfNotPresent,
    /// Never.
    Never,
}

/// A capability that a pod may ask for (capabilities(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PodCapability {
    /// Settings of interfaces.
    NetAdmin,
    /// Raw frames and probes.
    NetRaw,
}

/// A day: longer than any test that somebody waits for.
const DEADLINE: Nanos = Nanos::from_secs(24 * 3600);
/// An image of 100 MB at 20 Mbit/s takes 40 s.
const START_TIMEOUT: Nanos = Nanos::from_secs(60);

const IMAGE: &str = "an image such as registry.example/fathom:1.0";
const NAMESPACE: &str =
    "a namespace: at most 63 lowercase letters, digits and -, with a letter or a digit at both ends";
const NODE: &str = "the name of a node: lowercase letters, digits, - and ., with a letter or a digit at both ends";
const CONTEXT: &str = "the name of a context of a kubeconfig";
const QUANTITY: &str = "a quantity of Kubernetes such as 2, 500m or 512Mi";
const SPAN: &str = "a time of at least one second, such as 90s or 2h";
const PROGRAM: &str = "a path without quotes and line breaks, and no - at the front";

impl KubernetesHost {
    /// Checks that Kubernetes takes every word for what it is.
    ///
    /// # Errors
    /// Names the first word that it does not.
    pub fn check_words(&self) -> Result<(), WordError> {
        check(is_subdomain(&self.node), "control", &self.node, NODE)?;
        self.cluster.check_words()
    }
}

impl KubernetesCluster {
    /// Checks that Kubernetes takes every word for what it is.
    ///
    /// # Errors
    /// Names the first word that it does not.
    pub fn check_words(&self) -> Result<(), WordError> {
        check(is_image(&self.image), "image", &self.image, IMAGE)?;
        let program = self.program.as_deref().unwrap_or("fathom");
        check(is_path_word(program), "program", program, PROGRAM)?;
        let namespace = self.namespace.as_deref().unwrap_or("default");
        check(is_label(namespace), "namespace", namespace, NAMESPACE)?;
        let context = self.context.as_deref().unwrap_or("default");
        check(!context.is_empty() && !context.chars().any(char::is_control), "context", context, CONTEXT)?;
        for (key, quantity) in [("cpu", &self.cpu), ("memory", &self.memory)] {
            let quantity = quantity.as_deref().unwrap_or("1");
            check(is_quantity(quantity), key, quantity, QUANTITY)?;
        }
        for (key, span) in [("deadline", &self.deadline), ("start_timeout", &self.start_timeout)] {
            let span = span.as_deref().unwrap_or("1s");
            check(span.parse::<Nanos>().is_ok_and(|span| span >= Nanos::from_secs(1)), key, span, SPAN)?;
        }
        Ok(())
    }

    /// Returns how long the pods live at most.
    #[must_use]
    pub fn deadline(&self) -> Nanos {
        span_or(self.deadline.as_deref(), DEADLINE)
    }

    /// Returns how long the pods may take to start.
    #[must_use]
    pub fn start_timeout(&self) -> Nanos {
        span_or(self.start_timeout.as_deref(), START_TIMEOUT)
    }
}

/// Returns a span whose text was checked.
fn span_or(text: Option<&str>, default: Nanos) -> Nanos {
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Returns whether a text is a label of RFC 1123, the form of most names of Kubernetes.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= 63 && text.chars().all(is_known) && !text.starts_with('-') && !text.ends_with('-')
}

/// Returns whether a text is a subdomain of RFC 1123, the form of names of nodes.
#[must_use]
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_image(text: &str) -> bool {
    let is_known = |c: char| c.is_ascii_alphanumeric() || "./:@_-".contains(c);
    text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 1024 && text.chars().all(is_known)
}

/// The suffixes of a quantity of Kubernetes that make sense for processors and memory.
const SUFFIXES: [&str; 11] = ["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "Pi"];

fn is_quantity(text: &str) -> bool {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit()) && digits.parse::<f64>().is_ok();
    is_number && SUFFIXES.contains(&&text[digits.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster() -> KubernetesCluster {
        KubernetesCluster { image: "registry.example:5000/a/fathom:1.0".to_owned(), ..KubernetesCluster::default() }
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused() {
        for node in ["", "-n1", "n1-", "N1", "n_1", "a..b", "n1;x", "--all", &"a".repeat(64)] {
            assert!(!is_subdomain(node), "{node}");
        }
        for node in ["n1", "ip-10-0-0-1.ec2.internal", "0", &"a".repeat(63)] {
            assert!(is_subdomain(node), "{node}");
        }
    }

    #[test]
    fn a_bad_word_of_a_cluster_is_reported_with_its_key() {
        let some = |text: &str| Some(text.to_owned());
        let cases: &[(&str, KubernetesCluster)] = &[
            ("image", KubernetesCluster { image: "-x".to_owned(), ..cluster() }),
            ("image", KubernetesCluster { image: "two words".to_owned(), ..cluster() }),
            ("namespace", KubernetesCluster { namespace: some("--all"), ..cluster() }),
            ("context", KubernetesCluster { context: some(""), ..cluster() }),
            ("context", KubernetesCluster { context: some("a\nb"), ..cluster() }),
            ("cpu", KubernetesCluster { cpu: some("two"), ..cluster() }),
            ("memory", KubernetesCluster { memory: some("1GB"), ..cluster() }),
            ("deadline", KubernetesCluster { deadline: some("1ms"), ..cluster() }),
            ("start_timeout", KubernetesCluster { start_timeout: some("soon"), ..cluster() }),
        ];
        for (key, cluster) in cases {
            assert_eq!(cluster.check_words().unwrap_err().key, *key);
        }
        let whole = KubernetesCluster {
            namespace: some("bench"),
            context: some("arn:aws:eks:eu-west-1:1:cluster/lab"),
            cpu: some("500m"),
            memory: some("1.5Gi"),
            deadline: some("2h"),
            ..cluster()
        };
        assert_eq!(whole.check_words(), Ok(()));
        assert_eq!((whole.deadline(), whole.start_timeout()), (Nanos::from_secs(7200), Nanos::from_secs(60)));
    }
}
