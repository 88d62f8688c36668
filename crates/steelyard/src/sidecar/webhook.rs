//! `steelyard sidecar webhook`: adds the sidecar to pods when the API server makes them, as `inject` does to manifests.

use std::sync::Arc;

use serde_json::{Value, json};

use super::pod;
use crate::cli::{InjectedArgs, SidecarWebhookArgs};
use crate::exit::Exit;
use crate::run;

/// The path of the webhook for namespaces that ask for sidecars. That for pods is any other.
const NAMESPACE_PATH: &str = "/namespace";

/// Runs the command.
pub(super) fn webhook(args: SidecarWebhookArgs) -> Exit {
    if let Err(exit) = run::log_to_stderr_or_say(&args.log) {
        return exit;
    }
    let injected = args.injected;
    let options = controller::WebhookOptions {
        kubeconfig: args.kubeconfig,
        context: args.context,
        listen: args.listen,
        configuration: args.configuration,
        names: args.name,
    };
    match controller::serve_webhook(&options, Arc::new(move |path, request| review(path, request, &injected))) {
        Ok(()) => Exit::Good,
        Err(why) => crate::fail(&why),
    }
}

/// What to change of the pod of a request.
fn review(path: &str, request: &Value, args: &InjectedArgs) -> Result<Vec<Value>, String> {
    let pod = &request["object"];
    let name = || {
        let name = ["name", "generateName"].map(|key| pod["metadata"][key].as_str()).into_iter().flatten().next();
        format!("{}/{}", request["namespace"].as_str().unwrap_or_default(), name.unwrap_or_default())
    };
    let patch = patch(pod, (path == NAMESPACE_PATH).then_some(pod::ENABLED), args);
    match &patch {
        Ok(patch) if patch.is_empty() => tracing::debug!(pod = name(), "left as it is"),
        Ok(_) => tracing::info!(pod = name(), "gets the sidecar"),
        Err(why) => tracing::warn!(pod = name(), why, "refused"),
    }
    patch
}

/// The operations of a JSON Patch (RFC 6902) that add the sidecar to a pod; none if it does not ask for it, or has it. `namespace` is the mark of
/// its namespace.
fn patch(pod: &Value, namespace: Option<&str>, args: &InjectedArgs) -> Result<Vec<Value>, String> {
    if !pod::asks(&pod["metadata"], namespace)? {
        return Ok(Vec::new());
    }
    let spec = &pod["spec"];
    pod::check(spec, args)?;
    let mut operations = Vec::new();
    for (key, entries) in pod::added(args) {
        match spec[key].as_array() {
            // `inject` has added it, or another call.
            Some(_) if pod::earlier(&spec[key])? > 0 => return Ok(Vec::new()),
            Some(_) => {
                let add = |entry| json!({ "op": "add", "path": format!("/spec/{key}/0"), "value": entry });
                operations.extend(entries.into_iter().rev().map(add));
            }
            None => operations.push(json!({ "op": "add", "path": format!("/spec/{key}"), "value": entries })),
        }
    }
    Ok(operations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> InjectedArgs {
        InjectedArgs {
            image: "steelyard:1".into(),
            config_map: "web".into(),
            secret: None,
            user: 1337,
            inbound_port: 15_006,
        }
    }

    #[test]
    fn what_is_patched() {
        let check = |path: &str, pod: Value, expect: &[&str]| {
            let operations = review(path, &json!({"namespace": "shop", "object": pod}), &args()).unwrap();
            let paths: Vec<&str> = operations.iter().map(|operation| operation["path"].as_str().unwrap()).collect();
            assert_eq!(paths, expect, "{path} {pod}");
        };
        let marked = json!({"labels": {pod::MARK: "enabled"}});
        let volumes = json!([{"name": "token"}]);
        check("/pod", json!({"metadata": {}, "spec": {}}), &[]);
        check("/namespace", json!({"metadata": {}, "spec": {}}), &["/spec/initContainers", "/spec/volumes"]);
        check(
            "/pod",
            json!({"metadata": marked, "spec": {"volumes": volumes, "initContainers": [{"name": "a"}]}}),
            &["/spec/initContainers/0", "/spec/initContainers/0", "/spec/volumes/0"],
        );
        check("/namespace", json!({"metadata": {"annotations": {pod::MARK: "disabled"}}, "spec": {}}), &[]);
        check("/pod", json!({"metadata": marked, "spec": {"initContainers": [{"name": pod::SIDECAR}]}}), &[]);

        let refused = |pod: Value| review("/pod", &json!({"object": pod}), &args()).unwrap_err();
        assert!(refused(json!({"metadata": marked, "spec": {"hostNetwork": true}})).contains("hostNetwork"));
        assert!(refused(json!({"metadata": {"labels": {pod::MARK: "on"}}})).contains("neither"));
    }

    #[test]
    fn the_sidecar_is_in_front() {
        let pod = json!({"metadata": {"labels": {pod::MARK: "enabled"}}, "spec": {"initContainers": [{"name": "a"}]}});
        let values: Vec<Value> =
            review("/pod", &json!({"object": pod}), &args()).unwrap().iter().map(|add| add["value"].clone()).collect();
        // Each is put in front of those before it.
        assert_eq!([&values[0]["name"], &values[1]["name"]], [pod::INIT, pod::SIDECAR]);
    }
}
