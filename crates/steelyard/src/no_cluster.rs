//! Replaces `cluster` in a build without the feature `controller`. There is no cluster then, so none of this is ever
//! called.

use crate::exit::Refused;
use crate::run::Running;

/// A cluster that is watched.
pub(crate) enum Handle {}

/// An update from it.
pub(crate) enum Update {}

/// The Leases of addresses, which only a cluster has.
pub(crate) type NodeLeases = (
    tokio::sync::watch::Sender<std::collections::BTreeSet<std::net::IpAddr>>,
    tokio::sync::watch::Receiver<std::collections::BTreeMap<std::net::IpAddr, bool>>,
);

/// Where all processes that serve the same answer, which only a cluster knows.
pub(crate) type FoundReplicas = Result<Vec<(std::net::SocketAddr, String)>, String>;

impl Handle {
    pub(crate) fn take_replicas(&mut self) -> Option<tokio::sync::watch::Receiver<FoundReplicas>> {
        match *self {}
    }

    pub(crate) fn take_leases(&mut self) -> Option<NodeLeases> {
        match *self {}
    }

    pub(crate) fn end(self) {
        match self {}
    }
}

/// Waits forever.
pub(crate) async fn next(_: &mut Option<Handle>) -> Option<Update> {
    std::future::pending().await
}

impl Running {
    pub(crate) async fn begin_with_cluster(&mut self) -> Result<(), Refused> {
        match &self.cluster {
            Some(handle) => match *handle {},
            None => Ok(()),
        }
    }

    pub(crate) async fn follow_cluster(&mut self, update: Update) -> Result<(), Refused> {
        match update {}
    }
}
