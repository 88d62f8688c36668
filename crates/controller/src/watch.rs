//! Watches, each a stream of one kind into the index.
//!
//! The client's own watcher lists, watches, goes on after a dropped connection where it was, and lists again when the API server has
//! forgotten (410). While the API server is away nothing arrives, and what was known stays known. The same where it refuses a kind, or does not
//! know it any more: only a list that was read to its end takes objects away.

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

/// Until a kind is asked for again that the API server did not know at any version.
const UNKNOWN_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Refusals in a row after which a kind counts as forbidden: two to five seconds. An API server that has just begun refuses everything until it has
/// read who may do what.
const FORBIDDEN_TRIES: u32 = 3;

/// What a watch has to say.
pub(crate) enum News {
    /// An object is there, or is another than it was.
    Applied(Object),
    /// An object is gone.
    Removed(Kind, Name),
    /// A list has been read to its end, at this version: these are all there are.
    Listed(Scoped, &'static str, BTreeSet<Name>),
    /// Nothing new can be heard of these objects. Those that are known stay known.
    Unreadable(Scoped, Unreadable),
    /// They can be read again.
    Readable(Scoped),
}

/// The objects of a kind in one namespace; `None`: in all.
pub(crate) type Scoped = (Kind, Option<Box<str>>);

/// Why the objects of a kind cannot be read, though the API server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The account may not.
    Forbidden,
    /// The API server does not know the kind, at any version that is understood here.
    Unknown,
}

impl Unreadable {
    /// In a sentence.
    pub(crate) fn told(self, (kind, scope): &Scoped) -> String {
        let (_, kind) = kind.told();
        let place = scope.as_deref().map_or_else(String::new, |scope| format!(" in {scope}"));
        match self {
            Self::Forbidden => format!("this controller may not list or watch {kind}{place}"),
            Self::Unknown => format!("the API server does not know {kind}{place} any more"),
        }
    }
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
pub(crate) fn expected(namespaces: &[String]) -> BTreeSet<Scoped> {
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

fn everywhere<K: Watched>(begun: &Begun<'_>, tasks: &mut JoinSet<()>) {
    let client = begun.watching.client.clone();
    tasks.spawn(follow(
        move |version| K::api(client.clone(), None, version),
        paged(PAGE),
        begun.following((K::KIND, None)),
    ));
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

/// One watch on its way.
struct Following {
    about: Scoped,
    turns: Arc<Semaphore>,
    /// Held until the first list has been read or has failed.
    turn: Option<OwnedSemaphorePermit>,
    news: mpsc::Sender<News>,
    /// Nothing has been heard since something went wrong.
    fails: bool,
    /// In a row.
    refusals: u32,
}

/// Why a watch has come to its end.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// The API server does not serve the kind at this version.
    Unknown,
}

/// Follows one kind until nobody listens any more, at the first of its versions that the API server serves.
async fn follow<K: Watched>(api: impl Fn(&'static str) -> Api<K>, config: watcher::Config, mut following: Following) {
    // Nobody closes the semaphore.
    following.turn = following.turns.clone().acquire_owned().await.ok();
    let mut is_known = true;
    loop {
        for version in K::VERSIONS {
            match following.follow_version(api(version), config.clone(), version).await {
                End::Unheard => return,
                End::Unknown => {}
            }
        }
        drop(following.turn.take());
        if std::mem::replace(&mut is_known, false) {
            tracing::info!(
                kind = K::KIND.told().1,
                "the API server does not know this kind: it is asked again and again"
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
                    (self.fails, self.refusals) = (false, 0);
                    News::Listed(self.about.clone(), version, std::mem::take(&mut listed))
                }
                Ok(Event::Apply(object)) => News::Applied(slim(object).into_object()),
                Ok(Event::Delete(object)) => News::Removed(K::KIND, name(&object)),
                Err(error) if is_unknown(&error) => return End::Unknown,
                Err(error) => match self.fail(K::KIND, &error) {
                    Some(news) => news,
                    None => continue,
                },
            };
            let is_read = matches!(item, News::Applied(_) | News::Removed(..)) && listed.is_empty();
            if is_read && std::mem::take(&mut self.fails) && std::mem::take(&mut self.refusals) >= FORBIDDEN_TRIES {
                // No list was needed to go on.
                if self.news.send(News::Readable(self.about.clone())).await.is_err() {
                    return End::Unheard;
                }
            }
            if self.news.send(item).await.is_err() {
                return End::Unheard;
            }
        }
        End::Unheard
    }

    /// Something went wrong, and is tried again. Gives what is to be told of it.
    fn fail(&mut self, kind: Kind, error: &watcher::Error) -> Option<News> {
        drop(self.turn.take());
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(kind = kind.told().1, %error, "cannot watch; tried again, and what is known stays in use");
        }
        self.refusals = if is_forbidden(error) { self.refusals.saturating_add(1) } else { 0 };
        (self.refusals == FORBIDDEN_TRIES).then(|| News::Unreadable(self.about.clone(), Unreadable::Forbidden))
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

/// The definition of the kind is not installed, or not at this version.
fn is_unknown(error: &watcher::Error) -> bool {
    code(error) == Some(404)
}

/// The account may not list or watch the kind.
fn is_forbidden(error: &watcher::Error) -> bool {
    code(error) == Some(403)
}

/// What the API server answered instead of a list, or instead of beginning a watch.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}
