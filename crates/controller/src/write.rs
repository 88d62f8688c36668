//! Writes statuses, Services of Gateways and Events to the API server.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::Value;

use crate::index::{Kind, Name, RouteKind, Watched};
use crate::objects::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, HTTPRoute, ListenerSet, OWN_GROUP, TCPRoute, TLSRoute,
    TrafficPolicy, UDPRoute,
};
use crate::reconciler::WriteOutcome;
use crate::settings::Settings;
use crate::translate::{Making, Notice, Write};

/// A write that takes longer is given up and retried later.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest note of an Event that an API server accepts.
const NOTE_BYTES_MAX: usize = 1024;

/// Writes in the name of this controller.
pub(crate) struct Writer {
    client: Client,
    controller_name: String,
}

impl Writer {
    pub(crate) fn new(client: Client, settings: &Settings) -> Self {
        Self { client, controller_name: settings.controller_name.clone() }
    }

    /// Writes a status, unless the object has changed in the meantime.
    pub(crate) fn write(
        &self,
        about: &(Kind, Name),
        version: &'static str,
        write: Write,
    ) -> impl Future<Output = WriteOutcome> + Send + use<> {
        let (client, (kind, name)) = (self.client.clone(), about.clone());
        async move {
            let patch = write.patch;
            let writing = async {
                match kind {
                    Kind::GatewayClass => patch_status(GatewayClass::api(client, None, version), &name, patch).await,
                    Kind::Gateway => within::<Gateway>(client, &name, version, patch).await,
                    Kind::ListenerSet => within::<ListenerSet>(client, &name, version, patch).await,
                    Kind::Route(RouteKind::Http) => within::<HTTPRoute>(client, &name, version, patch).await,
                    Kind::Route(RouteKind::Grpc) => within::<GRPCRoute>(client, &name, version, patch).await,
                    Kind::Route(RouteKind::Tls) => within::<TLSRoute>(client, &name, version, patch).await,
                    Kind::Route(RouteKind::Tcp) => within::<TCPRoute>(client, &name, version, patch).await,
                    Kind::Route(RouteKind::Udp) => within::<UDPRoute>(client, &name, version, patch).await,
                    Kind::Policy => within::<BackendTLSPolicy>(client, &name, version, patch).await,
                    Kind::Traffic => within::<TrafficPolicy>(client, &name, version, patch).await,
                    Kind::Ingress => within::<Ingress>(client, &name, version, patch).await,
                    Kind::Service => within::<Service>(client, &name, version, patch).await,
                    _ => Ok(()),
                }
            };
            outcome(in_time(writing).await)
        }
    }

    /// Writes a Service of a Gateway, or one of its EndpointSlices.
    pub(crate) fn make(
        &self,
        about: &(Kind, Name),
        making: Making,
    ) -> impl Future<Output = WriteOutcome> + Send + use<> {
        let (client, controller_name, (kind, name)) =
            (self.client.clone(), self.controller_name.clone(), about.clone());
        async move {
            let writing = async {
                match kind {
                    Kind::Service => make_in::<Service>(client, &name, &controller_name, making).await,
                    Kind::Slice => make_in::<EndpointSlice>(client, &name, &controller_name, making).await,
                    _ => Ok(()),
                }
            };
            outcome(in_time(writing).await)
        }
    }

    /// Sends an Event about an object. Each notice becomes an Event of its own: the client's recorder takes two notices that differ only in
    /// their text for one repeated Event, and keeps the first text.
    pub(crate) fn tell(&self, notice: Notice) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let (client, event) = (self.client.clone(), event(notice, &self.controller_name));
        async move {
            let namespace = event.metadata.namespace.clone().unwrap_or_default();
            in_time(Api::namespaced(client, &namespace).create(&PostParams::default(), &event)).await.map_err(why)
        }
    }
}

fn event(notice: Notice, controller_name: &str) -> Event {
    let (kind, name) = &notice.about;
    let (group, kind) = kind.told();
    let version = if group == OWN_GROUP { "v1alpha1" } else { "v1" };
    let about = ObjectReference {
        api_version: Some(if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }),
        kind: Some(kind.to_owned()),
        namespace: Some(name.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        name: Some(name.name.to_string()),
        uid: Some(notice.uid.to_string()),
        ..ObjectReference::default()
    };
    let mut note = notice.message;
    let ends = note.char_indices().map(|(at, sign)| at + sign.len_utf8());
    note.truncate(ends.take_while(|end| *end <= NOTE_BYTES_MAX).last().unwrap_or(0));
    Event {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-", name.name)),
            // Events about cluster-wide objects are in `default`.
            namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
            ..ObjectMeta::default()
        },
        action: Some("Translate".to_owned()),
        event_time: Some(MicroTime(Timestamp::now())),
        note: Some(note),
        reason: Some(notice.reason.to_string()),
        regarding: Some(about),
        reporting_controller: Some(controller_name.to_owned()),
        reporting_instance: Some(controller_name.to_owned()),
        type_: Some("Warning".to_owned()),
        ..Event::default()
    }
}

async fn within<K: Watched>(client: Client, name: &Name, version: &'static str, patch: Value) -> kube::Result<()> {
    patch_status(K::api(client, Some(&name.namespace), version), name, patch).await
}

/// The API server keeps which fields we have applied, so it removes those that are no longer wanted, and leaves the fields of others alone.
async fn make_in<K: Watched>(client: Client, name: &Name, manager: &str, making: Making) -> kube::Result<()> {
    let api = K::api(client, Some(&name.namespace), "v1");
    match making {
        Making::Apply(object) => {
            api.patch(&name.name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await.map(drop)
        }
        Making::Delete(meta) => {
            let state =
                Preconditions { resource_version: Some(meta.resource_version.into()), uid: Some(meta.uid.into()) };
            let params = DeleteParams { preconditions: Some(state), ..DeleteParams::default() };
            match api.delete(&name.name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                deleted => deleted.map(drop),
            }
        }
    }
}

async fn patch_status<K>(api: Api<K>, name: &Name, patch: Value) -> kube::Result<()>
where
    K: serde::de::DeserializeOwned + std::fmt::Debug + Clone,
{
    api.patch_status(&name.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(|_| ())
}

/// # Errors
/// Returns the client's error; `None` if there was no answer in time.
async fn in_time<T>(writing: impl Future<Output = kube::Result<T>>) -> Result<(), Option<kube::Error>> {
    match tokio::time::timeout(WRITE_TIMEOUT, writing).await {
        Ok(written) => written.map(drop).map_err(Some),
        Err(_) => Err(None),
    }
}

fn outcome(written: Result<(), Option<kube::Error>>) -> WriteOutcome {
    match written {
        Ok(()) => WriteOutcome::Written,
        Err(Some(kube::Error::Api(status))) if status.code == 409 => WriteOutcome::Conflict,
        Err(error) => WriteOutcome::Failed(why(error)),
    }
}

fn why(error: Option<kube::Error>) -> String {
    error.map_or_else(|| format!("no answer within {WRITE_TIMEOUT:?}"), |error| error.to_string())
}
