//! The least rights that a run needs in its namespace.

use fathom_model::kubernetes::KubernetesCluster;
use serde_json::{Value, json};

use super::yaml;

/// Who gets the rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RbacSubject {
    /// A user, by the name that the cluster knows.
    User(String),
    /// A group of users.
    Group(String),
    /// A service account of the same namespace.
    ServiceAccount(String),
}

/// Returns a `Role` and its `RoleBinding` as YAML.
#[must_use]
pub fn rbac(cluster: &KubernetesCluster, subject: &RbacSubject) -> String {
    let api = "rbac.authorization.k8s.io";
    let mut metadata = json!({ "name": "fathom" });
    if let Some(namespace) = &cluster.namespace {
        metadata["namespace"] = namespace.as_str().into();
    }
    let rule = |group: &str, resource: &str, verbs: &[&str]| json!({ "apiGroups": [group], "resources": [resource], "verbs": verbs });
    let rules = [
        rule("batch", "jobs", &["create", "list", "delete"]),
        rule("", "pods", &["get", "list"]),
        // Over a WebSocket to attach is to get; over SPDY it is to create.
        rule("", "pods/attach", &["create", "get"]),
        rule("", "events", &["list"]),
    ];
    let role = json!({ "apiVersion": format!("{api}/v1"), "kind": "Role", "metadata": metadata, "rules": rules });
    let binding = json!({
        "apiVersion": format!("{api}/v1"),
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": { "apiGroup": api, "kind": "Role", "name": "fathom" },
        "subjects": [subject_value(subject, cluster, api)],
    });
    yaml::documents(&[role, binding])
}

fn subject_value(subject: &RbacSubject, cluster: &KubernetesCluster, api: &str) -> Value {
    match subject {
        RbacSubject::User(name) => json!({ "apiGroup": api, "kind": "User", "name": name }),
        RbacSubject::Group(name) => json!({ "apiGroup": api, "kind": "Group", "name": name }),
        RbacSubject::ServiceAccount(name) => {
            let namespace = cluster.namespace.as_deref().unwrap_or("default");
            json!({ "kind": "ServiceAccount", "name": name, "namespace": namespace })
        }
    }
}
