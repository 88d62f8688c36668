//! Watches, each a stream of one kind into the index.
//!
//! The client's own watcher lists, watches, goes on after a dropped connection where it was, and lists again when the API server has
//! forgotten (410). While the API server is away nothing arrives, and what was known stays known.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::index::{Kind, Name, Object, Watched};
use crate::objects::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, HTTPRoute, ListenerSet, ReferenceGrant, TCPRoute, TLSRoute,
    UDPRoute,
};

/// Objects in one piece of a list. A piece is held whole, as text and as objects, and all lists are read at once at the start: small pieces cost
/// round trips, large ones memory that the allocator does not soon give back.
const PAGE: u32 = 250;

/// The same for kinds whose objects may be as large as a megabyte each.
const LARGE_PAGE: u32 = 16;

/// First lists that are read at once: what a piece takes, as text and as objects, is taken so many times and not once for each kind.
const FIRST_LISTS_AT_ONCE: usize = 3;

/// What a watch has to say.
pub(crate) enum News {
    /// An object is there, or is another than it was.
    Applied(Object),
    /// An object is gone.
    Removed(Kind, Name),
    /// A list has been read to its end: these are all there are, in this namespace or everywhere.
    Listed(Kind, Option<Box<str>>, BTreeSet<Name>),
}

/// Where a watch looks, and who is told.
#[derive(Clone)]
pub(crate) struct Watching {
    pub(crate) client: Client,
    /// Empty: all.
    pub(crate) namespaces: Vec<String>,
    pub(crate) news: mpsc::Sender<News>,
}

/// Every watch must have read its first list before anything is made of what is known: half of the objects would be half of the routes.
pub(crate) fn expected(namespaces: &[String]) -> BTreeSet<(Kind, Option<Box<str>>)> {
    use crate::index::RouteKind::{Grpc, Http, Tcp, Tls, Udp};
    let everywhere = [Kind::GatewayClass, Kind::IngressClass, Kind::Namespace].map(|kind| (kind, None));
    let within = [
        Kind::Gateway,
        Kind::ListenerSet,
        Kind::Route(Http),
        Kind::Route(Grpc),
        Kind::Route(Tls),
        Kind::Route(Tcp),
        Kind::Route(Udp),
        Kind::Grant,
        Kind::Policy,
        Kind::Ingress,
        Kind::Service,
        Kind::Slice,
        Kind::Secret,
        Kind::ConfigMap,
    ];
    let scopes: Vec<Option<Box<str>>> = scopes(namespaces);
    let within = within.iter().flat_map(|kind| scopes.iter().map(|scope| (*kind, scope.clone())));
    everywhere.into_iter().chain(within).collect()
}

fn scopes(namespaces: &[String]) -> Vec<Option<Box<str>>> {
    if namespaces.is_empty() {
        return vec![None];
    }
    namespaces.iter().map(|namespace| Some(namespace.as_str().into())).collect()
}

/// Watches that begin together, and take turns at their first lists.
struct Begun<'w> {
    watching: &'w Watching,
    turns: Arc<Semaphore>,
}

/// Begins all watches.
pub(crate) fn begin(watching: &Watching, tasks: &mut JoinSet<()>) {
    let watching = &Begun { watching, turns: Arc::new(Semaphore::new(FIRST_LISTS_AT_ONCE)) };
    everywhere::<GatewayClass>(watching, tasks);
    everywhere::<IngressClass>(watching, tasks);
    everywhere::<Namespace>(watching, tasks);
    within::<Gateway>(watching, tasks, paged(PAGE));
    within::<ListenerSet>(watching, tasks, paged(PAGE));
    within::<HTTPRoute>(watching, tasks, paged(PAGE));
    within::<GRPCRoute>(watching, tasks, paged(PAGE));
    within::<TLSRoute>(watching, tasks, paged(PAGE));
    within::<TCPRoute>(watching, tasks, paged(PAGE));
    within::<UDPRoute>(watching, tasks, paged(PAGE));
    within::<ReferenceGrant>(watching, tasks, paged(PAGE));
    within::<BackendTLSPolicy>(watching, tasks, paged(PAGE));
    within::<Ingress>(watching, tasks, paged(PAGE));
    within::<Service>(watching, tasks, paged(PAGE));
    // Slices that belong to a Service: others are nobody's endpoints here.
    within::<EndpointSlice>(watching, tasks, paged(PAGE).labels("kubernetes.io/service-name"));
    // No other secret is any of our business.
    within::<Secret>(watching, tasks, paged(LARGE_PAGE).fields("type=kubernetes.io/tls"));
    within::<ConfigMap>(watching, tasks, paged(LARGE_PAGE));
}

fn paged(objects: u32) -> watcher::Config {
    watcher::Config::default().page_size(objects)
}

fn everywhere<K>(begun: &Begun<'_>, tasks: &mut JoinSet<()>)
where
    K: Watched + Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    let Begun { watching, turns } = begun;
    let api: Api<K> = Api::all(watching.client.clone());
    tasks.spawn(follow(api, paged(PAGE), None, turns.clone(), watching.news.clone()));
}

fn within<K>(begun: &Begun<'_>, tasks: &mut JoinSet<()>, config: watcher::Config)
where
    K: Watched + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let Begun { watching, turns } = begun;
    for scope in scopes(&watching.namespaces) {
        let api: Api<K> = match &scope {
            None => Api::all(watching.client.clone()),
            Some(namespace) => Api::namespaced(watching.client.clone(), namespace),
        };
        tasks.spawn(follow(api, config.clone(), scope, turns.clone(), watching.news.clone()));
    }
}

/// Follows one kind until nobody listens any more.
async fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    scope: Option<Box<str>>,
    turns: Arc<Semaphore>,
    news: mpsc::Sender<News>,
) where
    K: Watched,
{
    // Until the first list has been read or has failed. Nobody closes the semaphore.
    let mut turn = turns.acquire_owned().await.ok();
    let mut stream = std::pin::pin!(watcher::watcher(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    let mut fails = false;
    while let Some(event) = stream.next().await {
        let item = match event {
            Ok(event) => {
                fails = false;
                match event {
                    Event::Init => {
                        listed.clear();
                        continue;
                    }
                    Event::InitApply(object) => {
                        listed.insert(name(&object));
                        News::Applied(slim(object).into_object())
                    }
                    Event::InitDone => {
                        drop(turn.take());
                        News::Listed(K::KIND, scope.clone(), std::mem::take(&mut listed))
                    }
                    Event::Apply(object) => News::Applied(slim(object).into_object()),
                    Event::Delete(object) => News::Removed(K::KIND, name(&object)),
                }
            }
            Err(error) if is_unknown(&error) => {
                drop(turn.take());
                if !std::mem::replace(&mut fails, true) {
                    tracing::info!(kind = %K::kind(&()), "the API server does not know this kind: none of it is served");
                }
                News::Listed(K::KIND, scope.clone(), BTreeSet::new())
            }
            Err(error) => {
                drop(turn.take());
                if !std::mem::replace(&mut fails, true) {
                    tracing::warn!(kind = %K::kind(&()), %error, "cannot watch; tried again, and what is known stays in use");
                }
                continue;
            }
        };
        if news.send(item).await.is_err() {
            return;
        }
    }
}

/// Without what nobody here reads, and what is most of many an object.
fn slim<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn name<K: Resource>(object: &K) -> Name {
    Name::new(object.namespace().as_deref().unwrap_or_default(), &object.name_any())
}

/// The definition of the kind is not installed. It may be later: the list is tried again.
fn is_unknown(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}
