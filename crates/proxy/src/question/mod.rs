//! Questions: what a service is asked about a request that waits for the answer.
//!
//! External authorization and global rate limits make a [`Question`] of the request of an exchange. The driver asks it with [`Question::ask`],
//! which is a request of our own to a cluster like any other, and the exchange goes on with the [`Reply`].
//!
//! | what | file |
//! |---|---|
//! | a call of gRPC with one message in each direction | `call` |

pub(crate) mod call;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use model::{AuthProtocol, ExternalAuth};
use net::timer::Timer;

use crate::downstream::watch::Watched;
use crate::error::Error;
use crate::policy::RequestView;
use crate::upstream::cluster::Cluster;
use crate::upstream::connect::OnBehalfOf;
use crate::upstream::subrequest::{Patience, Subrequest, Terms};
use crate::{external_auth, global_rate_limit};

/// Bytes of the body of an answer that are kept.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// What the driver asks.
pub(crate) struct Question {
    cluster: Rc<Cluster>,
    request: Subrequest,
    who: OnBehalfOf,
    /// For consistent hashing.
    key: u64,
    timeout_ms: u64,
    about: About,
}

/// What the answer is about, which says how it is read.
pub(crate) enum About {
    Authorization(Arc<ExternalAuth>),
    RateLimit,
}

/// What a service says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// What it says, and how long that may be remembered.
    Authorization(external_auth::Verdict, Duration),
    RateLimit(global_rate_limit::Verdict),
}

impl Question {
    /// A question about the request `asked` to an endpoint of `cluster`.
    pub(crate) fn new(
        cluster: Rc<Cluster>,
        request: Subrequest,
        asked: &RequestView<'_>,
        who: OnBehalfOf,
        timeout_ms: u64,
        about: About,
    ) -> Self {
        let key = cluster.hash_key();
        let key = key.map_or(0, |key| crate::upstream::hash::key(key, asked));
        Self { cluster, request, who, key, timeout_ms, about }
    }

    /// Asks, as long as the client is there.
    ///
    /// # Errors
    /// There is no answer, or none that has a meaning; those of [`Error::client_io`] if the client leaves meanwhile.
    pub(crate) async fn ask(self, client: Watched<'_>, timer: &Timer) -> Result<Reply, Error> {
        let Self { cluster, request, who, key, timeout_ms, about } = self;
        let patience = Patience::For { client, body_bytes_max: ANSWER_BYTES_MAX };
        let terms = Terms { who, key, timer, time_ms_max: timeout_ms, patience };
        let answer = tokio::select! {
            biased;
            error = client.gone() => return Err(error),
            answer = request.send(&cluster, &terms) => answer?,
        };
        match about {
            About::RateLimit => global_rate_limit::verdict(answer).map(Reply::RateLimit),
            About::Authorization(policy) => {
                let ttl = policy.cache.as_ref().map(|cache| external_auth::cache::ttl(cache, &answer.response));
                let verdict = match &policy.protocol {
                    AuthProtocol::Http(_) => external_auth::http::verdict(&policy, answer),
                    AuthProtocol::Grpc(_) => external_auth::grpc::verdict(&policy, answer),
                };
                verdict.map(|verdict| Reply::Authorization(verdict, ttl.unwrap_or_default()))
            }
        }
    }
}
