//! Starts the controller: a thread with the client, the watches, the Lease and the main loop.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use model::Announce;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::addresses::{self, AddressLeases, Leases};
use crate::lease::Claim;
use crate::reconciler::{Reconciler, Update};
use crate::replicas::{self, FoundReplicas};
use crate::settings::{ServiceName, Settings};
use crate::watch::{self as watches, News, Watching};

/// News that wait for the loop. When the queue is full the watches wait, and the API server keeps the rest. The queue is short, because
/// each entry is a complete object as it arrived, several times as large as what the index keeps of it.
const NEWS_MAX: usize = 256;

/// How long the controller may take to release the Lease when it ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// How to reach the cluster, and what to do with it.
#[derive(Clone, Debug)]
pub struct Options {
    /// How objects are understood.
    pub settings: Settings,
    /// A kubeconfig file; `None` means that of the environment (`KUBECONFIG`, `~/.kube/config`), or the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; `None` means its current one.
    pub context: Option<String>,
    /// Watch only these namespaces; empty means all.
    pub namespaces: Vec<String>,
    /// The namespace of the Lease; `None` means that of the kubeconfig or the pod.
    pub lease_namespace: Option<String>,
    /// The name of the Lease. Replicas with the same name act as one controller.
    pub lease_name: String,
    /// The identity of this process: the name of the pod.
    pub identity: String,
    /// The Service of all processes that serve the same; `None` if they need not be known.
    pub replicas: Option<ServiceName>,
}

/// The thread that follows the cluster. Dropping the handle ends the thread soon; [`Handle::end`] waits until it has ended.
pub struct Handle {
    updates: mpsc::Receiver<Update>,
    thread: JoinHandle<()>,
    leases: Option<NodeLeases>,
    replicas: Option<watch::Receiver<FoundReplicas>>,
}

/// The Leases of addresses, as the node sees them: the addresses that it can serve, and those that it holds (false: not confirmed for a while).
pub type NodeLeases = (watch::Sender<BTreeSet<IpAddr>>, watch::Receiver<BTreeMap<IpAddr, bool>>);

impl Handle {
    /// The next snapshot; `None` if there will be no more. It is safe to cancel and call again.
    pub async fn next(&mut self) -> Option<Update> {
        self.updates.recv().await
    }

    /// The Leases of addresses, if they are announced on links. The first call gets them.
    pub fn take_leases(&mut self) -> Option<NodeLeases> {
        self.leases.take()
    }

    /// Where all processes that serve the same answer, if a Service says that. The first call gets it.
    pub fn take_replicas(&mut self) -> Option<watch::Receiver<FoundReplicas>> {
        self.replicas.take()
    }

    /// Releases the Leases and ends the thread. Blocks until then, for a few seconds at most.
    pub fn end(self) {
        drop(self.updates);
        // A thread that panicked has already reported it.
        let _ = self.thread.join();
    }
}

/// Finds the cluster and begins to follow it. The API server need not answer yet.
///
/// # Errors
/// Returns a sentence if no cluster is configured, or if the options contradict each other.
pub fn start(options: Options) -> Result<Handle, String> {
    options.settings.check()?;
    if let Some(service) = &options.settings.publish_service
        && !options.namespaces.is_empty()
        && !options.namespaces.contains(&service.namespace)
    {
        return Err(format!("--publish-service {service} is in a namespace that --namespace does not name"));
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the runtime: {error}"))?;
    let config = runtime.block_on(client_config(options.kubeconfig.as_ref(), options.context.as_deref()))?;
    let lease_namespace = options.lease_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let client = {
        let _guard = runtime.enter();
        Client::try_from(config).map_err(|error| format!("cannot make a client for the cluster: {error}"))?
    };
    let (updates, receiver) = mpsc::channel(1);
    let (wanted, held) = (watch::channel(BTreeSet::new()), watch::channel(BTreeMap::new()));
    let is_on_links = options.settings.announce == Announce::L2;
    let addresses = is_on_links.then_some(AddressLeases { wanted: wanted.1, held: held.0 });
    let leases = is_on_links.then_some((wanted.0, held.1));
    let (replicas_found, replicas) = match &options.replicas {
        Some(service) => {
            let (found, receiver) = watch::channel(Err(format!("{service}: the cluster has not answered yet")));
            (Some(found), Some(receiver))
        }
        None => (None, None),
    };
    let thread = std::thread::Builder::new().name("cluster".to_owned());
    let thread = thread
        .spawn(move || work(&runtime, client, options, lease_namespace, (updates, addresses, replicas_found)))
        .map_err(|error: io::Error| format!("cannot start a thread: {error}"))?;
    Ok(Handle { updates: receiver, thread, leases, replicas })
}

/// An error of the client with its cause, which says more.
pub(crate) fn in_words(error: &kube::Error) -> String {
    let cause = std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

/// A client for the cluster that is configured.
///
/// # Errors
/// A sentence, if none is.
pub(crate) async fn client(kubeconfig: Option<&PathBuf>, context: Option<&str>) -> Result<Client, String> {
    let config = client_config(kubeconfig, context).await?;
    Client::try_from(config).map_err(|error| format!("cannot make a client for the cluster: {error}"))
}

/// How to reach the cluster.
pub(crate) async fn client_config(kubeconfig: Option<&PathBuf>, context: Option<&str>) -> Result<Config, String> {
    let how = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    match kubeconfig {
        Some(path) => {
            let fail = |error: String| format!("{}: {error}", path.display());
            let read = Kubeconfig::read_from(path).map_err(|error| fail(error.to_string()))?;
            Config::from_custom_kubeconfig(read, &how).await.map_err(|error| fail(error.to_string()))
        }
        None if context.is_some() => Config::from_kubeconfig(&how).await.map_err(|error| error.to_string()),
        None => Config::infer().await.map_err(|error| {
            format!("no cluster is configured: {error}; give --kubeconfig FILE, or run in a pod with a service account")
        }),
    }
}

fn work(
    runtime: &Runtime,
    client: Client,
    options: Options,
    lease_namespace: String,
    (updates, addresses, replicas_found): (
        mpsc::Sender<Update>,
        Option<AddressLeases>,
        Option<watch::Sender<FoundReplicas>>,
    ),
) {
    runtime.block_on(async {
        let expected = watches::expected(&options.namespaces);
        let (news, news_receiver): (mpsc::Sender<News>, _) = mpsc::channel(NEWS_MAX);
        let (held, leads) = watch::channel(false);
        let leases = Leases {
            api: Api::namespaced(client.clone(), &lease_namespace),
            name: options.lease_name,
            identity: options.identity,
        };
        let claim = Claim { api: leases.api.clone(), name: leases.name.clone(), identity: leases.identity.clone() };
        let (lives, ended) = watch::channel(());
        let of_addresses = tokio::spawn(async move {
            if let Some(addresses) = addresses {
                addresses::hold(leases, addresses, ended).await;
            }
        });
        let mut tasks = JoinSet::new();
        let serves_nginx = options.settings.ingress_nginx.is_some();
        let watching = Watching { client: client.clone(), namespaces: options.namespaces, serves_nginx, news };
        watches::begin(&watching, &mut tasks);
        if let Some((service, found)) = options.replicas.zip(replicas_found) {
            tasks.spawn(replicas::follow(client.clone(), service, found));
        }
        drop(watching);
        let lease = tokio::spawn(claim.hold(held));
        Reconciler::new(options.settings, expected, updates, client).run(news_receiver, leads).await;
        // Its receiver is gone, so it ends by itself, unless the API server does not answer.
        drop(lives);
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, async { (lease.await, of_addresses.await) }).await;
        tasks.abort_all();
    });
}
