//! Reads what ingress-nginx is told from a cluster, once, for a report. It lists, and writes nothing.

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

use crate::ingress_nginx::OBJECTS_MAX;
use crate::start::{client_config, in_words};

/// Objects in one page of a list.
const PAGE: u32 = 250;

/// The label of the objects of the chart and the manifests of ingress-nginx.
const LABEL: &str = "app.kubernetes.io/name=ingress-nginx";

/// What was read, and what could not be.
pub struct Seen {
    /// The objects.
    pub objects: Vec<Value>,
    /// Sentences about kinds that the account may not list.
    pub warnings: Vec<String>,
}

/// Reads Ingresses, IngressClasses, and the ConfigMap and the workloads of ingress-nginx.
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
        Ok(Seen { objects, warnings })
    })
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
        for mut object in page.items {
            object.meta_mut().managed_fields = None;
            let mut value = serde_json::to_value(&object).map_err(|error| error.to_string())?;
            value["kind"] = json!(kind);
            found.push(value);
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
