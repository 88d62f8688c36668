//! Watches: one stream for each kind, into the index.
//!
//! The client's own watcher lists, watches, resumes after a dropped connection, and lists again when the API server no longer has the
//! version (410). While the API server is away nothing arrives, and what is known stays known. The same holds if it refuses a kind or no
//! longer knows it: only a complete list removes objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::index::{CREDENTIALS_TYPE, CredentialSecret, Definition, Kind, Name, Object, Watched};
use crate::objects::{
    BackendTLSPolicy, GRPCRoute, Gateway, GatewayClass, GatewayParameters, HTTPRoute, ListenerSet, ReferenceGrant,
    TCPRoute, TLSRoute, TrafficPolicy, UDPRoute,
};

/// Objects in one page of a list. A page is held completely, both as text and as objects, and several lists are read at the same time at
/// the start. Small pages cost round trips, and large ones cost memory that the allocator does not return soon.
const PAGE: u32 = 250;

/// The page size of kinds whose objects may be as large as a megabyte.
const LARGE_PAGE: u32 = 16;

/// Secrets that may have users for an Ingress: not certificates, tokens, and what Helm and image registries keep.
const OTHER_SECRETS: &str = "type!=kubernetes.io/tls,type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1,\
    type!=kubernetes.io/dockerconfigjson,type!=kubernetes.io/dockercfg,type!=bootstrap.kubernetes.io/token";

/// First lists that are read at the same time. The memory of a page, as text and as objects, is needed this many times and not once for
/// each kind.
const FIRST_LISTS_AT_ONCE: usize = 3;

/// The time until a kind is requested again that the API server did not know at any version.
const UNKNOWN_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Refusals in a row after which a kind counts as forbidden, which takes two to five seconds. An API server that has just started refuses
/// everything until it has loaded its authorization rules.
const FORBIDDEN_TRIES: u32 = 3;

/// News from a watch.
pub(crate) enum News {
    /// An object was added or has changed.
    Applied(Object),
    /// An object was removed.
    Removed(Kind, Name),
    /// A list was read completely, at this version. It has all existing objects.
    Listed(Scoped, &'static str, BTreeSet<Name>),
    /// These objects cannot be read at present. Known objects stay known.
    Unreadable(Scoped, Unreadable),
}

/// The objects of a kind in one namespace; `None` means in all namespaces.
pub(crate) type Scoped = (Kind, Option<Box<str>>);

/// Why the objects of a kind cannot be read although the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The account lacks permission.
    Forbidden,
    /// The API server does not know the kind at any version that we understand.
    Unknown,
}

impl Unreadable {
    /// The reason as a sentence.
    pub(crate) fn told(self, (kind, scope): &Scoped) -> String {
        let (_, kind) = kind.told();
        let place = scope.as_deref().map_or_else(String::new, |scope| format!(" in {scope}"));
        match self {
            Self::Forbidden => format!("this controller's account may not list or watch {kind}{place}"),
            Self::Unknown => format!("the API server no longer knows {kind}{place}"),
        }
    }
}

/// What the watches need.
#[derive(Clone)]
pub(crate) struct Watching {
    pub(crate) client: Client,
    /// Empty means all.
    pub(crate) namespaces: Vec<String>,
    /// Annotations of ingress-nginx are served, which name Secrets of any type.
    pub(crate) serves_nginx: bool,
    pub(crate) news: mpsc::Sender<News>,
}

/// Every watch must have read its first list before anything is translated: half of the objects would give half of the routes.
pub(crate) fn expected(namespaces: &[String]) -> BTreeSet<Scoped> {
    use crate::index::RouteKind::{Grpc, Http, Tcp, Tls, Udp};
    let everywhere =
        [Kind::GatewayClass, Kind::IngressClass, Kind::Namespace, Kind::Definition].map(|kind| (kind, None));
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
        Kind::Traffic,
        Kind::Parameters,
        Kind::Ingress,
        Kind::Service,
        Kind::Slice,
        Kind::Secret,
        Kind::Credentials,
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

/// Watches that begin together and take turns with their first lists.
struct Begun<'w> {
    watching: &'w Watching,
    turns: Arc<Semaphore>,
}

/// Begins all watches.
pub(crate) fn begin(watching: &Watching, tasks: &mut JoinSet<()>) {
    let watching = &Begun { watching, turns: Arc::new(Semaphore::new(FIRST_LISTS_AT_ONCE)) };
    everywhere::<GatewayClass>(watching, tasks, paged(PAGE));
    everywhere::<IngressClass>(watching, tasks, paged(PAGE));
    everywhere::<Namespace>(watching, tasks, paged(PAGE));
    // The only kind with fields of the experimental channel that are served.
    everywhere::<Definition>(watching, tasks, paged(PAGE).fields("metadata.name=httproutes.gateway.networking.k8s.io"));
    within::<Gateway>(watching, tasks, paged(PAGE));
    within::<ListenerSet>(watching, tasks, paged(PAGE));
    within::<HTTPRoute>(watching, tasks, paged(PAGE));
    within::<GRPCRoute>(watching, tasks, paged(PAGE));
    within::<TLSRoute>(watching, tasks, paged(PAGE));
    within::<TCPRoute>(watching, tasks, paged(PAGE));
    within::<UDPRoute>(watching, tasks, paged(PAGE));
    within::<ReferenceGrant>(watching, tasks, paged(PAGE));
    within::<BackendTLSPolicy>(watching, tasks, paged(PAGE));
    within::<TrafficPolicy>(watching, tasks, paged(PAGE));
    within::<GatewayParameters>(watching, tasks, paged(PAGE));
    within::<Ingress>(watching, tasks, paged(PAGE));
    within::<Service>(watching, tasks, paged(PAGE));
    // Only slices that belong to a Service: others are not the endpoints of anything here.
    within::<EndpointSlice>(watching, tasks, paged(PAGE).labels("kubernetes.io/service-name"));
    // No other Secrets are needed.
    within::<Secret>(watching, tasks, paged(LARGE_PAGE).fields("type=kubernetes.io/tls"));
    let credentials = match watching.watching.serves_nginx {
        true => OTHER_SECRETS.to_owned(),
        false => format!("type={CREDENTIALS_TYPE}"),
    };
    within::<CredentialSecret>(watching, tasks, paged(LARGE_PAGE).fields(&credentials));
    within::<ConfigMap>(watching, tasks, paged(LARGE_PAGE));
}

fn paged(objects: u32) -> watcher::Config {
    watcher::Config::default().page_size(objects)
}

fn everywhere<K: Watched>(begun: &Begun<'_>, tasks: &mut JoinSet<()>, config: watcher::Config) {
    let client = begun.watching.client.clone();
    tasks.spawn(follow(move |version| K::api(client.clone(), None, version), config, begun.following((K::KIND, None))));
}

fn within<K: Watched>(begun: &Begun<'_>, tasks: &mut JoinSet<()>, config: watcher::Config) {
    for scope in scopes(&begun.watching.namespaces) {
        let (client, namespace) = (begun.watching.client.clone(), scope.clone());
        let api = move |version| K::api(client.clone(), namespace.as_deref(), version);
        tasks.spawn(follow(api, config.clone(), begun.following((K::KIND, scope))));
    }
}

impl Begun<'_> {
    fn following(&self, about: Scoped) -> Following {
        Following {
            about,
            turns: self.turns.clone(),
            turn: None,
            news: self.watching.news.clone(),
            fails: false,
            refusals: 0,
        }
    }
}

/// The state of one watch.
struct Following {
    about: Scoped,
    turns: Arc<Semaphore>,
    /// Held until the first list has been read or has failed.
    turn: Option<OwnedSemaphorePermit>,
    news: mpsc::Sender<News>,
    /// The last attempt failed, and nothing has arrived since.
    fails: bool,
    /// In a row.
    refusals: u32,
}

/// Why a watch has ended.
enum End {
    /// The receiver is gone.
    Unheard,
    /// The API server does not serve the kind at this version.
    Unknown,
    /// The account may not read the kind.
    Forbidden,
}

/// Follows one kind until the receiver is gone, at the first of its versions that the API server serves.
async fn follow<K: Watched>(api: impl Fn(&'static str) -> Api<K>, config: watcher::Config, mut following: Following) {
    // The semaphore is never closed.
    following.turn = following.turns.clone().acquire_owned().await.ok();
    let mut is_known = true;
    loop {
        for version in K::VERSIONS {
            loop {
                match following.follow_version(api(version), config.clone(), version).await {
                    End::Unheard => return,
                    End::Unknown => break,
                    // Begin with a list: a watch that resumes does not show that it can, until some object changes.
                    End::Forbidden => {}
                }
            }
        }
        drop(following.turn.take());
        if std::mem::replace(&mut is_known, false) {
            tracing::info!(
                kind = K::KIND.told().1,
                "the API server does not know this kind; the controller keeps asking"
            );
        }
        let about = following.about.clone();
        if following.news.send(News::Unreadable(about, Unreadable::Unknown)).await.is_err() {
            return;
        }
        tokio::time::sleep(UNKNOWN_AGAIN_AFTER).await;
    }
}

impl Following {
    async fn follow_version<K: Watched>(&mut self, api: Api<K>, config: watcher::Config, version: &'static str) -> End {
        let mut stream = std::pin::pin!(watcher::watcher(api, config).default_backoff());
        let mut listed = BTreeSet::new();
        while let Some(event) = stream.next().await {
            let item = match event {
                Ok(Event::Init) => {
                    listed.clear();
                    continue;
                }
                Ok(Event::InitApply(object)) => {
                    listed.insert(name(&object));
                    News::Applied(slim(object).into_object())
                }
                Ok(Event::InitDone) => {
                    drop(self.turn.take());
                    News::Listed(self.about.clone(), version, std::mem::take(&mut listed))
                }
                Ok(Event::Apply(object)) => News::Applied(slim(object).into_object()),
                Ok(Event::Delete(object)) => News::Removed(K::KIND, name(&object)),
                Err(error) if is_unknown(&error) => return End::Unknown,
                Err(error) => {
                    let Some(news) = self.fail(K::KIND, &error) else { continue };
                    return if self.news.send(news).await.is_err() { End::Unheard } else { End::Forbidden };
                }
            };
            if listed.is_empty() {
                // The list was read completely, or the watch has resumed.
                (self.fails, self.refusals) = (false, 0);
            }
            if self.news.send(item).await.is_err() {
                return End::Unheard;
            }
        }
        End::Unheard
    }

    /// Handles an error that will be retried. Returns the news about it, if any.
    fn fail(&mut self, kind: Kind, error: &watcher::Error) -> Option<News> {
        drop(self.turn.take());
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(kind = kind.told().1, %error, "cannot watch; retrying, and known objects stay in use");
        }
        self.refusals = if is_forbidden(error) { self.refusals.saturating_add(1) } else { 0 };
        (self.refusals == FORBIDDEN_TRIES).then(|| News::Unreadable(self.about.clone(), Unreadable::Forbidden))
    }
}

/// Removes the fields that nothing here reads and that make up most of many objects.
fn slim<K: Resource>(mut object: K) -> K {
    object.meta_mut().managed_fields = None;
    object
}

fn name<K: Resource>(object: &K) -> Name {
    Name::new(object.namespace().as_deref().unwrap_or_default(), &object.name_any())
}

/// Whether the definition of the kind is not installed, or not at this version.
fn is_unknown(error: &watcher::Error) -> bool {
    code(error) == Some(404)
}

/// Whether the account may not list or watch the kind.
fn is_forbidden(error: &watcher::Error) -> bool {
    code(error) == Some(403)
}

/// The status code with which the API server refused a list or a watch.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
