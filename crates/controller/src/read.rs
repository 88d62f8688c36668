//! Reads what ingress-nginx is told from a cluster, once, for a report. It lists, and writes nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use crate::ingress_nginx::{HEADER_MAP_KEYS, HEADER_MAP_OPTIONS, OBJECTS_MAX, named_header_map, prefix_of};
use crate::start::{client_config, in_words};

/// Objects in one page of a list.
const PAGE: u32 = 250;

/// ConfigMaps with headers that are read. Each is a request of its own.
const HEADER_MAPS_MAX: usize = 256;

/// The label of the objects of the chart and the manifests of ingress-nginx.
const LABEL: &str = "app.kubernetes.io/name=ingress-nginx";

/// What was read, and what could not be.
pub struct Seen {
    /// The objects.
    pub objects: Vec<Value>,
    /// Sentences about kinds that the account may not list.
    pub warnings: Vec<String>,
}

/// Reads Ingresses, IngressClasses, the ConfigMap and the workloads of ingress-nginx, and the ConfigMaps with headers that they name.
///
/// # Errors
/// Returns a sentence if there is no cluster, or if Ingresses cannot be listed.
pub fn read_nginx(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Seen, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(async {
        let config = client_config(kubeconfig.map(PathBuf::from).as_ref(), context).await?;
        let client =
            Client::try_from(config).map_err(|error| format!("cannot make a client for the cluster: {error}"))?;
        let mut objects = list::<Ingress>(&client, "Ingress", ListParams::default()).await?;
        let own = || ListParams::default().labels(LABEL);
        let others = [
            list::<IngressClass>(&client, "IngressClass", ListParams::default()).await,
            list::<ConfigMap>(&client, "ConfigMap", own()).await,
            list::<Deployment>(&client, "Deployment", own()).await,
            list::<DaemonSet>(&client, "DaemonSet", own()).await,
        ];
        let mut warnings = Vec::new();
        for outcome in others {
            match outcome {
                Ok(found) => objects.extend(found),
                Err(why) => warnings.push(format!("{why}: the report goes without")),
            }
        }
        for (namespace, name) in header_maps(&objects) {
            match Api::<ConfigMap>::namespaced(client.clone(), &namespace).get_opt(&name).await {
                Ok(Some(map)) => objects.push(as_value(map, "ConfigMap")?),
                Ok(None) => {}
                Err(error) => {
                    warnings.push(format!("cannot read the ConfigMap {namespace}/{name}: {}", in_words(&error)))
                }
            }
        }
        Ok(Seen { objects, warnings })
    })
}

/// The ConfigMaps with headers that Ingresses and the ConfigMap of ingress-nginx name, and that were not read yet.
fn header_maps(objects: &[Value]) -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let prefix = prefix_of(objects);
    for object in objects {
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
        let (texts, keys, namespace) = match object["kind"].as_str() {
            Some("Ingress") => {
                (&object["metadata"]["annotations"], HEADER_MAP_KEYS.map(|key| prefix.annotation(key)), namespace)
            }
            Some("ConfigMap") => (&object["data"], HEADER_MAP_OPTIONS.map(str::to_owned), ""),
            _ => continue,
        };
        for reference in keys.iter().filter_map(|key| texts[key].as_str()) {
            let (namespace, name) = named_header_map(reference.trim(), namespace);
            if !namespace.is_empty() && !name.is_empty() && found.len() < HEADER_MAPS_MAX {
                found.insert((namespace.to_owned(), name.to_owned()));
            }
        }
    }
    let is_read = |(namespace, name): &(String, String)| {
        objects.iter().any(|object| {
            let metadata = &object["metadata"];
            object["kind"] == "ConfigMap" && metadata["namespace"] == *namespace && metadata["name"] == *name
        })
    };
    found.retain(|map| !is_read(map));
    found
}

/// An object as the report takes it.
fn as_value<K>(mut object: K, kind: &str) -> Result<Value, String>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    object.meta_mut().managed_fields = None;
    let mut value = serde_json::to_value(&object).map_err(|error| error.to_string())?;
    value["kind"] = json!(kind);
    Ok(value)
}

async fn list<K>(client: &Client, kind: &str, params: ListParams) -> Result<Vec<Value>, String>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let api: Api<K> = Api::all(client.clone());
    let mut params = params.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| format!("cannot list {kind}: {}", in_words(&error)))?;
        for object in page.items {
            found.push(as_value(object, kind)?);
        }
        if found.len() > OBJECTS_MAX {
            return Err(format!("the cluster has more than {OBJECTS_MAX} objects of the kind {kind}"));
        }
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            return Ok(found);
        }
    }
}
