//! `steelyard sidecar inject`: adds the sidecar to the pods of a manifest.
//!
//! Two containers are added in front of the init containers of a pod: the sidecar, which Kubernetes restarts and ends after the application
//! (`restartPolicy: Always`, Kubernetes 1.29), and then `steelyard sidecar init`. So nothing is captured before the sidecar listens, and
//! later init containers are captured like the application.

use std::io::Read;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::cli::SidecarInjectArgs;
use crate::exit::Exit;

/// The label or annotation by which a pod asks for the sidecar, and its value.
const MARK: &str = "steelyard.io/sidecar";
const ENABLED: &str = "enabled";

/// The names of what is added.
const SIDECAR: &str = "steelyard-sidecar";
const INIT: &str = "steelyard-sidecar-init";
const CONFIG_VOLUME: &str = "steelyard-sidecar-config";
const TLS_VOLUME: &str = "steelyard-sidecar-tls";

/// Manifests are written by people.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Runs the command.
pub(super) fn inject(args: &SidecarInjectArgs) -> Exit {
    let name = args.filename.display();
    let text = match read(&args.filename) {
        Ok(text) => text,
        Err(error) => return crate::fail(&format!("cannot read {name}: {error}")),
    };
    match injected(&text, args) {
        Ok((text, pods)) => {
            // Standard output has the manifest.
            eprintln!("steelyard: {name}: {pods} of its pods {} the sidecar", if pods == 1 { "has" } else { "have" });
            crate::print_line(text.trim_end())
        }
        Err(wrong) => {
            eprintln!("steelyard: {}", admin::visible(&format!("{name}: {wrong}")));
            Exit::BadConfig
        }
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file: Box<dyn Read> =
        if path == Path::new("-") { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(path)?) };
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The manifest with sidecars, and how many pods have one.
fn injected(text: &str, args: &SidecarInjectArgs) -> Result<(String, usize), String> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| error.to_string())?;
    let mut pods = 0;
    let mut out = String::new();
    for object in objects.iter_mut().filter(|object| !object.is_null()) {
        pods += add_to(object, args)?;
        let text = serde_saphyr::to_string(object).map_err(|error| error.to_string())?;
        out.push_str("---\n");
        out.push_str(&text);
    }
    Ok((out, pods))
}

/// Adds the sidecar to the pods of an object. Returns how many have it.
fn add_to(object: &mut Value, args: &SidecarInjectArgs) -> Result<usize, String> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "List" {
        let items = object.get_mut("items").and_then(Value::as_array_mut);
        return items.into_iter().flatten().map(|item| add_to(item, args)).sum();
    }
    let template = match kind.as_str() {
        "Pod" => "",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "DaemonSet" | "Deployment" | "Job" | "ReplicaSet" | "ReplicationController" | "StatefulSet" => "/spec/template",
        _ => return Ok(0),
    };
    let name = format!("{kind} {}", object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default());
    let Some(template) = object.pointer_mut(template) else { return Ok(0) };
    if !is_marked(template) {
        return Ok(0);
    }
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else {
        return Err(format!("{name}: its pod has no `spec`"));
    };
    add_to_pod(pod, args).map_err(|wrong| format!("{name}: {wrong}"))?;
    Ok(1)
}

fn is_marked(template: &Value) -> bool {
    let places = ["labels", "annotations"].map(|place| &template["metadata"][place][MARK]);
    places.iter().any(|value| value.as_str() == Some(ENABLED))
}

fn add_to_pod(pod: &mut Map<String, Value>, args: &SidecarInjectArgs) -> Result<(), String> {
    if pod.get("hostNetwork") == Some(&Value::Bool(true)) {
        return Err("`hostNetwork` shares the network of the node, whose connections must not be captured; \
                    remove it, or the mark steelyard.io/sidecar"
            .to_owned());
    }
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
        "startupProbe": { "tcpSocket": { "port": 15_006 }, "periodSeconds": 1, "failureThreshold": 60 },
        "securityContext": {
            "runAsUser": 1337,
            "runAsGroup": 1337,
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
    put_first(pod, "initContainers", vec![sidecar, init])?;
    put_first(pod, "volumes", volumes)
}

/// Puts entries in front of a list, in place of those with the same names.
fn put_first(pod: &mut Map<String, Value>, key: &str, new: Vec<Value>) -> Result<(), String> {
    let old = match pod.remove(key) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(old)) => old,
        Some(_) => return Err(format!("`{key}` is not a list")),
    };
    let is_old = |entry: &Value| !new.iter().any(|new| new["name"] == entry["name"]);
    let kept: Vec<Value> = old.into_iter().filter(is_old).collect();
    pod.insert(key.to_owned(), new.into_iter().chain(kept).collect());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> SidecarInjectArgs {
        SidecarInjectArgs {
            filename: "-".into(),
            image: "steelyard:1".into(),
            config_map: "web".into(),
            secret: Some("web-tls".into()),
        }
    }

    const DEPLOYMENT: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  template:
    metadata: {labels: {app: web}, annotations: {steelyard.io/sidecar: enabled}}
    spec:
      initContainers: [{name: migrate, image: web}]
      containers: [{name: web, image: web}]
";

    fn objects(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).unwrap()
    }

    #[test]
    fn a_pod_that_asks_for_it_gets_the_sidecar_once() {
        let (text, pods) = injected(DEPLOYMENT, &args()).unwrap();
        assert_eq!(pods, 1);
        let all = objects(&text);
        assert_eq!(all[0], objects(DEPLOYMENT)[0]);
        let pod = &all[1]["spec"]["template"]["spec"];
        let names = |list: &Value| -> Vec<String> {
            list.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&pod["initContainers"]), [SIDECAR, INIT, "migrate"]);
        assert_eq!(names(&pod["volumes"]), [CONFIG_VOLUME, TLS_VOLUME]);
        assert_eq!(pod["initContainers"][0]["restartPolicy"], "Always");
        assert_eq!(pod["initContainers"][1]["securityContext"]["capabilities"]["add"], json!(["NET_ADMIN"]));
        assert_eq!(pod["containers"], objects(DEPLOYMENT)[1]["spec"]["template"]["spec"]["containers"]);
        assert_eq!(injected(&text, &args()).unwrap(), (text, 1));
    }

    #[test]
    fn what_does_not_ask_for_it_stays_as_it_is() {
        for text in [
            DEPLOYMENT.replace("enabled", "disabled"),
            DEPLOYMENT.replace("steelyard.io/sidecar", "example.com/sidecar"),
            DEPLOYMENT.replace("kind: Deployment", "kind: Widget"),
        ] {
            let (out, pods) = injected(&text, &args()).unwrap();
            assert_eq!((pods, objects(&out)), (0, objects(&text)));
        }
    }

    #[test]
    fn pods_within_other_objects() {
        let pod = "metadata: {labels: {steelyard.io/sidecar: enabled}}\nspec: {containers: []}";
        let inner = "{metadata: {labels: {steelyard.io/sidecar: enabled}}, spec: {containers: []}}";
        for text in [
            format!("kind: Pod\n{pod}"),
            format!("kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {inner}}}}}}}"),
            format!("kind: List\nitems: [{{kind: Job, spec: {{template: {inner}}}}}, {{kind: ConfigMap}}]"),
        ] {
            assert_eq!(injected(&text, &args()).unwrap().1, 1, "{text}");
        }
        let wrong =
            injected(&format!("kind: Pod\n{}", pod.replace("containers", "hostNetwork: true, containers")), &args());
        assert!(wrong.unwrap_err().contains("must not be captured"));
    }
}
