//! What a pod with a sidecar has besides its own, for manifests and for the webhook.
//!
//! There are two containers in front of the other init containers: the sidecar, which Kubernetes restarts and ends after the application
//! (`restartPolicy: Always`, Kubernetes 1.29), and then `steelyard sidecar init`. So nothing is captured before the sidecar listens, and
//! later init containers are captured like the application.

use serde_json::{Value, json};

use crate::cli::InjectedArgs;

/// The label or annotation by which a pod asks for the sidecar, and its values.
pub(super) const MARK: &str = "steelyard.io/sidecar";
pub(super) const ENABLED: &str = "enabled";
const DISABLED: &str = "disabled";

/// The names of what is added.
pub(super) const SIDECAR: &str = "steelyard-sidecar";
pub(super) const INIT: &str = "steelyard-sidecar-init";
pub(super) const CONFIG_VOLUME: &str = "steelyard-sidecar-config";
pub(super) const TLS_VOLUME: &str = "steelyard-sidecar-tls";

/// The lists of a pod that get entries in front, and these entries.
pub(super) type Added = [(&'static str, Vec<Value>); 2];

/// What is added to a pod.
pub(super) fn added(args: &InjectedArgs) -> Added {
    let mut mounts = vec![json!({ "name": CONFIG_VOLUME, "mountPath": "/etc/steelyard", "readOnly": true })];
    let mut volumes = vec![json!({ "name": CONFIG_VOLUME, "configMap": { "name": args.config_map } })];
    if let Some(secret) = &args.secret {
        mounts.push(json!({ "name": TLS_VOLUME, "mountPath": "/etc/steelyard/tls", "readOnly": true }));
        volumes.push(json!({ "name": TLS_VOLUME, "secret": { "secretName": secret } }));
    }
    let file = "/etc/steelyard/sidecar.yaml";
    let sidecar = json!({
        "name": SIDECAR,
        "image": args.image,
        "restartPolicy": "Always",
        "args": ["sidecar", "run", "-c", file],
        // The kubelet connects to it, which the sidecar counts once as `not_captured`.
        "startupProbe": { "tcpSocket": { "port": args.inbound_port }, "periodSeconds": 1, "failureThreshold": 60 },
        "securityContext": {
            "runAsUser": args.user,
            "runAsGroup": args.user,
            "runAsNonRoot": true,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
        },
        "volumeMounts": mounts,
    });
    let init = json!({
        "name": INIT,
        "image": args.image,
        "args": ["sidecar", "init", "-c", file],
        "securityContext": {
            "runAsUser": 0,
            "runAsGroup": 0,
            "runAsNonRoot": false,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN"] },
        },
        "volumeMounts": mounts,
    });
    [("initContainers", vec![sidecar, init]), ("volumes", volumes)]
}

/// Whether a pod with this metadata asks for the sidecar. The label counts before the annotation; `namespace` is the label of the pod's
/// namespace, which counts if the pod says nothing.
///
/// # Errors
/// The mark has another value.
pub(super) fn asks(metadata: &Value, namespace: Option<&str>) -> Result<bool, String> {
    let mark = |place: &str| metadata.get(place).and_then(|place| place.get(MARK));
    let value = match mark("labels").or_else(|| mark("annotations")) {
        // An annotation without quotes may be read as something else.
        Some(value) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        None => match namespace {
            Some(value) => value.to_owned(),
            None => return Ok(false),
        },
    };
    match value.as_str() {
        ENABLED => Ok(true),
        DISABLED => Ok(false),
        other => Err(format!("`{MARK}: {other}` is neither `{ENABLED}` nor `{DISABLED}`")),
    }
}

/// Checks that a pod with this `spec` can have a sidecar.
///
/// # Errors
/// Why it cannot, and what to do.
pub(super) fn check(spec: &Value, args: &InjectedArgs) -> Result<(), String> {
    if spec["hostNetwork"] == true {
        return Err(format!(
            "`hostNetwork` shares the network of the node, whose connections must not be captured; remove it, or the mark {MARK}"
        ));
    }
    let user = &spec["securityContext"]["runAsUser"];
    let lists = ["initContainers", "containers"].map(|list| spec[list].as_array());
    let containers = lists.into_iter().flatten().flatten().filter(|container| !is_ours(&container["name"]));
    for container in containers {
        let own = &container["securityContext"]["runAsUser"];
        if *(if own.is_null() { user } else { own }) == args.user {
            return Err(format!(
                "the container {} runs as user {}, whose connections are not captured; let it be another user, or the sidecar: \
                 `user` in its file, and --user here",
                container["name"], args.user
            ));
        }
    }
    Ok(())
}

/// How many entries at the front of a list are of an earlier call.
///
/// # Errors
/// There are others further behind.
pub(super) fn earlier(list: &Value) -> Result<usize, String> {
    let entries = list.as_array().map(Vec::as_slice).unwrap_or_default();
    let count = entries.iter().take_while(|entry| is_ours(&entry["name"])).count();
    match entries.iter().skip(count).find(|entry| is_ours(&entry["name"])) {
        None => Ok(count),
        Some(entry) => Err(format!("{} must be in front of the others; move it there, or remove it", entry["name"])),
    }
}

fn is_ours(name: &Value) -> bool {
    name.as_str().is_some_and(|name| [SIDECAR, INIT, CONFIG_VOLUME, TLS_VOLUME].contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_mark_counts() {
        let check = |metadata: Value, namespace: Option<&str>, expect: Option<bool>| {
            assert_eq!(asks(&metadata, namespace).ok(), expect, "{metadata} {namespace:?}");
        };
        let marked =
            |label: &str, annotation: &str| json!({"labels": {MARK: label}, "annotations": {MARK: annotation}});
        check(json!({}), None, Some(false));
        check(json!({"labels": null}), Some("enabled"), Some(true));
        check(json!({"labels": {"app": "web"}}), Some("disabled"), Some(false));
        check(json!({"annotations": {MARK: "enabled"}}), None, Some(true));
        check(marked("disabled", "enabled"), Some("enabled"), Some(false));
        check(marked("enabled", "disabled"), Some("disabled"), Some(true));
        check(json!({"annotations": {MARK: "disabled"}}), Some("enabled"), Some(false));
        check(json!({"labels": {MARK: "true"}}), None, None);
        check(json!({"labels": {MARK: true}}), None, None);
        check(json!({}), Some("yes"), None);
    }
}
