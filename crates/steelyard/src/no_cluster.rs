//! Stands in the place of `cluster` in a build without the feature `controller`: there is no cluster, so none of this is ever called.

use crate::exit::Refused;
use crate::run::Running;

/// A cluster that is followed.
pub(crate) enum Handle {}

/// What it says.
pub(crate) enum Update {}

impl Handle {
    pub(crate) fn end(self) {
        match self {}
    }
}

/// Waits for ever.
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
