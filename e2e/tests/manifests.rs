//! The manifests of `deploy/`, as far as they can be held without a cluster: they are whole, and ask for the rights that are listed here.
//!
//! That an API server takes them, and that the controller can work with no more, `tests/kube` holds.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The rights of both accounts: group, resource, verbs. Those of the Lease are limited to its namespace and, except for `create`, to its name.
const RIGHTS: &[(&str, &str, &str)] = &[
    ("", "configmaps", "list,watch"),
    ("", "namespaces", "list,watch"),
    ("", "secrets", "list,watch"),
    ("", "services", "list,watch"),
    ("", "services/status", "patch"),
    // The one definition of HTTPRoutes, whose annotation names the channel.
    ("apiextensions.k8s.io", "customresourcedefinitions", "list,watch"),
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "get,update"),
    ("discovery.k8s.io", "endpointslices", "list,watch"),
    ("events.k8s.io", "events", "create"),
    ("gateway.networking.k8s.io", "backendtlspolicies", "list,watch"),
    ("gateway.networking.k8s.io", "backendtlspolicies/status", "patch"),
    ("gateway.networking.k8s.io", "gatewayclasses", "list,watch"),
    ("gateway.networking.k8s.io", "gatewayclasses/status", "patch"),
    ("gateway.networking.k8s.io", "gateways", "list,watch"),
    ("gateway.networking.k8s.io", "gateways/status", "patch"),
    ("gateway.networking.k8s.io", "grpcroutes", "list,watch"),
    ("gateway.networking.k8s.io", "grpcroutes/status", "patch"),
    ("gateway.networking.k8s.io", "httproutes", "list,watch"),
    ("gateway.networking.k8s.io", "httproutes/status", "patch"),
    ("gateway.networking.k8s.io", "listenersets", "list,watch"),
    ("gateway.networking.k8s.io", "listenersets/status", "patch"),
    ("gateway.networking.k8s.io", "referencegrants", "list,watch"),
    ("gateway.networking.k8s.io", "tcproutes", "list,watch"),
    ("gateway.networking.k8s.io", "tcproutes/status", "patch"),
    ("gateway.networking.k8s.io", "tlsroutes", "list,watch"),
    ("gateway.networking.k8s.io", "tlsroutes/status", "patch"),
    ("gateway.networking.k8s.io", "udproutes", "list,watch"),
    ("gateway.networking.k8s.io", "udproutes/status", "patch"),
    ("networking.k8s.io", "ingressclasses", "list,watch"),
    ("networking.k8s.io", "ingresses", "list,watch"),
    ("networking.k8s.io", "ingresses/status", "patch"),
    ("steelyard.io", "gatewayparameters", "list,watch"),
    ("steelyard.io", "trafficpolicies", "list,watch"),
    ("steelyard.io", "trafficpolicies/status", "patch"),
];

/// The further rights of the gateway, which writes Services of Gateways.
const GATEWAY_RIGHTS: &[(&str, &str, &str)] =
    &[("", "services", "create,patch,delete"), ("discovery.k8s.io", "endpointslices", "create,patch,delete")];

/// The objects of a file of `deploy`.
fn objects(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn every_object_is_whole() {
    for (name, objects_min) in [("gateway.yaml", 12), ("kernel-plane.yaml", 7)] {
        let objects = objects(name);
        assert!(objects.len() >= objects_min, "{name}: {} objects", objects.len());
        for object in objects {
            assert!(object["apiVersion"].is_string() && object["kind"].is_string(), "{object}");
            assert!(object["metadata"]["name"].is_string(), "{object}");
            assert_ne!(
                object["kind"], "CustomResourceDefinition",
                "the kinds of the Gateway API are the cluster's own, and ours are in a folder of the chart"
            );
        }
    }
}

#[test]
fn rights_are_these_and_no_others() {
    // The kernel plane is the same program, which follows the same kinds.
    for (name, more) in [("gateway.yaml", GATEWAY_RIGHTS), ("kernel-plane.yaml", &[])] {
        let mut found: Vec<(String, String, String)> = Vec::new();
        for role in objects(name) {
            for rule in role["rules"].as_array().into_iter().flatten() {
                let verbs = strings(&rule["verbs"]).join(",");
                if strings(&rule["resources"]) == ["customresourcedefinitions"] {
                    assert_eq!(strings(&rule["resourceNames"]), ["httproutes.gateway.networking.k8s.io"], "{name}");
                }
                for group in strings(&rule["apiGroups"]) {
                    for resource in strings(&rule["resources"]) {
                        found.push((group.to_owned(), resource.to_owned(), verbs.clone()));
                    }
                }
            }
        }
        found.sort();
        let owned = |(group, resource, verbs): &(&str, &str, &str)| {
            ((*group).to_owned(), (*resource).to_owned(), (*verbs).to_owned())
        };
        let mut expect: Vec<_> = RIGHTS.iter().chain(more).map(owned).collect();
        expect.sort();
        assert_eq!(found, expect, "{name}");
    }
}
