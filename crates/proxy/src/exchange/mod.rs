//! One request, from its head to the last byte of its response: every stage in order.
//!
//! [`Exchange`] is a state machine without I/O. A driver (`driver`, and the simulation in the tests) asks it by [`Exchange::action`] what it
//! needs, does that, and reports what happened by one of the `handle_*`; the time comes with [`Env`]. The stages are these, in order:
//!
//! read the head -> route -> policy (rate limit, redirect, split) -> prepare (rewrite, mirror, the head for the endpoint) -> lease (choose an
//! endpoint) -> connect -> await (send, and wait for the response's head) -> relay (both bodies) or tunnel -> done. Any failure goes to
//! [`Exchange::fail`], which responds where there is somebody to respond to.
//!
//! | what | file |
//! |---|---|
//! | what happens to it | `events` |
//! | the stages | `stages` |
//! | a body on its way | `transfer` |
//! | one try at one endpoint | `attempt` |
//! | the response, relayed | `relay` |
//! | how slow a client may be | `min_rate` |
//! | which route a request takes | `route` |
//! | what is logged and counted in the end | `record` |
//! | storage that is used again | `storage` |

mod attempt;
mod events;
pub(crate) mod faults;
mod min_rate;
pub(crate) mod record;
mod relay;
pub(crate) mod route;
#[cfg(test)]
mod sim;
mod stages;
mod storage;
pub(crate) mod transfer;

use std::rc::Rc;

use balance::{Outcome, Proof};
use model::{ClusterProtocol, HttpListener, Route, RoutePolicy, Scheme};
use net::buffer::Buffer;
use net::socket::Progress;
use smallvec::SmallVec;
use telemetry::Reason;
use wire::HeadKind;
use wire::h2::ErrorCode;
use wire::message::{Body, RequestHead, Version};

pub(crate) use attempt::{ConnectionState, Ending, Lost, Sent, connection_outcome, ending};
pub(crate) use relay::Reuse;
pub(crate) use storage::{Request, Response, Storage};

use self::attempt::{Attempt, Awaiting, RetryCause};
use self::faults::InjectedFault;
use self::record::AccessRecord;
use self::relay::{Relay, Terms};
use self::route::HostText;
use self::transfer::{BodyError, Framing, Head, Transfer};
use crate::deadline::Deadline;
use crate::error::{Error, Side};
use crate::grpc::{self, Ongoing};
use crate::h2;
use crate::http::headers::{self, Client};
use crate::http::receive;
use crate::http::respond::{self, Own};
use crate::policy::headers::{RequestEdits, ResponseEdits};
use crate::policy::mirror::{Copies, InFlight, MIRROR_BODY_BYTES_MAX};
use crate::policy::retry::{Failed, Tries};
use crate::policy::{self, Destination, RequestView};
use crate::tcp::upgrade::Upgrade;
use crate::tls::Secured;
use crate::upstream::cluster::{Cluster, Demand, Endpoint, Full, Lease};
use crate::upstream::connect::OnBehalfOf;
use crate::worker::ListenerView;

/// Room for the longest IP address.
pub(crate) type IpText = SmallVec<[u8; 45]>;

/// What is known of a downstream connection, and is the same for all its requests.
pub(crate) struct ConnectionInfo {
    pub(crate) who: OnBehalfOf,
    /// The client's IP address as text.
    pub(crate) ip_text: IpText,
    /// For whom the connection was made; `None`: it is in the clear.
    pub(crate) secured: Option<Rc<Secured>>,
}

/// What an exchange has to know of what is around it, at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Env<'e> {
    /// The time, in microseconds of the worker's clock.
    pub(crate) now_us: u64,
    /// The listener under the snapshot that the exchange began with.
    pub(crate) listener: &'e Rc<ListenerView>,
    pub(crate) http: &'e HttpListener,
    pub(crate) connection_info: &'e ConnectionInfo,
    pub(crate) storage: &'e Storage,
    /// The copies of requests that are under way on this worker.
    pub(crate) mirrors: &'e InFlight,
    /// Requests of this connection before this one.
    pub(crate) requests_before: u64,
    /// The connection is to take no more requests: its listener is gone, or the worker drains.
    pub(crate) is_ending: bool,
    /// The drain has taken too long: whatever is left ends now.
    pub(crate) is_cut: bool,
    /// The process has as much memory in use as it may: new requests are refused.
    pub(crate) is_memory_full: bool,
}

impl<'e> Env<'e> {
    fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    fn route(&self, number: usize) -> Option<&'e Route> {
        self.http.routes.get(number)
    }

    /// When a client that does not read is given up, in milliseconds.
    fn stalls_at_ms(&self) -> u64 {
        self.now_ms().saturating_add(crate::millis(self.http.limits.stall_timeout))
    }
}

/// What an exchange needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// More of the request's head: [`Exchange::handle_head_bytes`].
    ReadHead,
    /// The deadline to come: [`Exchange::handle_timeout`].
    Wait,
    /// Room at an endpoint, for which it must wait: [`Exchange::handle_lease`].
    WaitForLease,
    /// A connection to the endpoint of [`Exchange::lease`]: [`Exchange::handle_connected`] or [`Exchange::handle_connect_failure`].
    Connect,
    /// The request to be sent, and the head of a response to be read.
    Await,
    /// What is left of both bodies to be moved.
    Relay,
    /// The response that was made here to be sent: [`Exchange::handle_responded`].
    Respond,
    /// Bytes to be relayed both ways, until both sides have been silent for so long: [`Exchange::handle_tunnel_end`].
    Tunnel { idle_ms: u64 },
    /// Nothing more.
    Done(Next),
}

/// What becomes of the downstream connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another request may come.
    KeepAlive,
    /// All was said.
    Close,
    /// All was said, but the client may still be talking: what it says is read for a while, or it would lose our answer to a reset.
    Linger,
    /// The response is incomplete, and must be seen to be. The code is for HTTP/2.
    Reset(ErrorCode),
}

/// A request and its response.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request: Request,
    upload: Transfer,
    /// There once a response begins.
    response: Option<Box<Response>>,
    phase: Phase,
    /// When [`Exchange::handle_timeout`] is due, in milliseconds. An exchange that waits has one.
    deadline_ms: Option<u64>,
    pub(crate) record: AccessRecord,
    /// The request is a call of gRPC.
    call: Option<Ongoing>,
    /// Copies for mirrors that wait for the request's body.
    mirror: Option<Box<Copies>>,
    /// The upstream connection can be used again.
    reuse: Option<Reuse>,
}

enum Phase {
    /// Of HTTP/1: so many bytes were searched for the head's end.
    ReadHead {
        scanned: usize,
    },
    /// It knows where it goes.
    Upstream(Routed, Step),
    /// A response that was made here is being sent. `code`: for where that fails.
    Respond {
        then: Next,
        code: ErrorCode,
    },
    Tunnel(Tunnel),
    Done(Next),
}

impl Default for Phase {
    fn default() -> Self {
        Self::ReadHead { scanned: 0 }
    }
}

/// How far a request is that knows where it goes.
enum Step {
    /// It is sent once more, but not before the deadline.
    BackOff,
    /// It waits for room at an endpoint.
    Queue,
    Connect(Attempt),
    Await(Awaiting),
    /// A response's head is being passed on behind which more is to come.
    Interim(Awaiting, Interim),
    Relay(Relay),
    /// Between two steps, and never outside of a call.
    Between,
}

/// What follows an interim response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interim {
    Response,
    Tunnel { answered_us: u64 },
}

/// Where a request goes.
pub(crate) struct Routed {
    /// The route's place in the listener.
    number: usize,
    pub(crate) cluster: Rc<Cluster>,
    /// For consistent hashing.
    pub(crate) key: u64,
    /// The endpoint that the client comes back to.
    pub(crate) preferred: Option<usize>,
    /// The client asked within TLS, here or at a proxy whose word is taken. Known where the cluster is sticky.
    is_https: bool,
    /// When the route's timeout is over.
    pub(crate) deadline: Deadline,
    tries: Tries,
}

impl Routed {
    fn policy<'e>(&self, env: &Env<'e>) -> &'e RoutePolicy {
        static NONE: std::sync::LazyLock<RoutePolicy> = std::sync::LazyLock::new(RoutePolicy::default);
        env.route(self.number).map_or(&NONE, |route| &route.policy)
    }

    fn is_to_h2(&self) -> bool {
        self.cluster.plan.policy.protocol == ClusterProtocol::H2
    }

    /// The cookie for a client that another endpoint has served than it came back to, or that came for the first time.
    fn cookie(&self, endpoint: &Endpoint) -> Option<Vec<u8>> {
        let sticky = self.cluster.plan.sticky.as_ref().filter(|_| self.preferred != Some(endpoint.index))?;
        sticky.set(endpoint.index, self.is_https)
    }

    /// What it asks of its cluster.
    pub(crate) fn demand(&self) -> Demand<'_> {
        let Self { key, deadline, tries, .. } = self;
        Demand { key: *key, tried: tries.tried(), takes_ejected: tries.takes_ejected(), deadline: *deadline }
    }

    /// A connection's worth of room: at the endpoint that the client comes back to, or wherever the cluster chooses.
    fn try_lease(&self, now_ms: u64) -> Result<Lease, Full> {
        let preferred = self.preferred.filter(|index| !self.tries.tried().contains(index));
        if let Some(lease) = preferred.and_then(|index| self.cluster.lease_of(index, now_ms)) {
            return Ok(lease);
        }
        self.cluster.lease(now_ms, &self.demand())
    }

    /// Whether an endpoint that has failed the request may be asked once more, now that there is no other.
    fn may_return(&mut self, env: &Env<'_>) -> bool {
        let same_endpoint = self.policy(env).retry.same_endpoint;
        self.tries.may_return(same_endpoint)
    }

    /// Whether the request is sent again after such a failure at the endpoint of `lease`; if so that is counted, and the request made ready.
    fn again(
        &mut self,
        env: &Env<'_>,
        request: &RequestHead,
        upload: &mut Transfer,
        lease: &Lease,
        was_reused: bool,
        cause: RetryCause,
    ) -> bool {
        let policy = self.policy(env);
        let Self { cluster, deadline, tries, .. } = self;
        let failed = Failed { lease, was_reused, cause, method: request.method, now_ms: env.now_ms() };
        tries.again(cluster, &policy.retry, &failed, *deadline, upload, || env.listener.count(Reason::RetryBudget))
    }

    /// Whether the request is sent again since its connection was closed just then: see [`Tries::again_fresh`].
    fn again_fresh(
        &mut self,
        env: &Env<'_>,
        cause: RetryCause,
        request: &RequestHead,
        upload: &mut Transfer,
        begun_us: Option<u64>,
    ) -> bool {
        let is_repeatable = request.method.is_idempotent() || self.policy(env).retry.non_idempotent;
        self.tries.again_fresh(&self.cluster, is_repeatable, cause, upload, begun_us)
    }

    /// A try that ran out of its own time, before the route's is over, says so.
    fn name(&self, error: Error, now_ms: u64) -> Error {
        let is_of_try = error.reason == Reason::RequestTimeout && !self.deadline.is_over(now_ms);
        if is_of_try { Error::upstream(Reason::PerTryTimeout) } else { error }
    }
}

/// What is relayed after 101.
struct Tunnel {
    /// Held for as long as it lasts.
    _lease: Lease,
    /// The longest silence of both sides, in milliseconds.
    idle_ms: u64,
}

/// A connection that was made for the exchange.
#[derive(Clone, Copy)]
pub(crate) struct Connected {
    /// It has served another request before.
    pub(crate) is_reused: bool,
    /// What the endpoint had acknowledged, where the driver has asked ([`Exchange::wants_progress`]).
    pub(crate) progress: Option<Progress>,
}

impl Exchange {
    pub(crate) fn action(&self) -> Action {
        match &self.phase {
            Phase::ReadHead { .. } => Action::ReadHead,
            Phase::Upstream(_, Step::BackOff) => Action::Wait,
            Phase::Upstream(_, Step::Queue) => Action::WaitForLease,
            Phase::Upstream(_, Step::Connect(_)) => Action::Connect,
            Phase::Upstream(_, Step::Await(_)) => Action::Await,
            Phase::Upstream(_, Step::Relay(_)) => Action::Relay,
            Phase::Upstream(_, Step::Interim(..)) | Phase::Respond { .. } => Action::Respond,
            Phase::Tunnel(tunnel) => Action::Tunnel { idle_ms: tunnel.idle_ms },
            Phase::Done(next) => Action::Done(*next),
            Phase::Upstream(_, Step::Between) => Action::Done(Next::Reset(ErrorCode::INTERNAL_ERROR)),
        }
    }

    /// When [`Exchange::handle_timeout`] is due, in milliseconds. Waits for an endpoint and for a connection have limits of their own.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// It uses its upstream connection. When it no longer does, [`Exchange::take_reuse`] tells what becomes of that.
    pub(crate) fn holds_connection(&self) -> bool {
        matches!(self.phase, Phase::Tunnel(_) | Phase::Upstream(_, Step::Await(_) | Step::Interim(..) | Step::Relay(_)))
    }

    /// What is known of its upstream connection's further use; `None`: it has none.
    pub(crate) fn take_reuse(&mut self) -> Option<Reuse> {
        self.reuse.take()
    }

    /// Where it goes, once that is known.
    pub(crate) fn routed(&self) -> Option<&Routed> {
        if let Phase::Upstream(routed, _) = &self.phase { Some(routed) } else { None }
    }

    /// The lease that a connection is to be made for, the time by which, and whether it must be one that was made since then, in
    /// microseconds.
    pub(crate) fn wanted(&self) -> Option<(&Routed, &Lease, Deadline, Option<u64>)> {
        let Phase::Upstream(routed, Step::Connect(attempt)) = &self.phase else { return None };
        Some((routed, &attempt.lease, attempt.deadline, routed.tries.fresh_since_us()))
    }

    /// The endpoint's progress with what it was sent is asked for where it can matter: whether an idempotent request was seen need not be
    /// proved.
    pub(crate) fn wants_progress(&self) -> bool {
        !self.request.head.method.is_idempotent()
    }

    /// The request on its way to the endpoint, unless it is through, or cannot go on.
    pub(crate) fn upload(&mut self) -> Option<&mut Transfer> {
        let has_failed = match &self.phase {
            Phase::Upstream(_, Step::Await(awaiting)) => awaiting.upload_failed,
            Phase::Upstream(_, Step::Relay(relay)) => relay.upload_failed,
            _ => true,
        };
        if has_failed || self.upload.is_done() { None } else { Some(&mut self.upload) }
    }

    /// The response on its way to the client, unless it is through.
    pub(crate) fn download(&mut self) -> Option<&mut Transfer> {
        let download = &mut self.response.as_mut()?.download;
        if download.is_done() { None } else { Some(download) }
    }

    /// The response is complete, and the endpoint is still sent the rest of the request.
    pub(crate) fn is_only_sending(&self) -> bool {
        let Phase::Upstream(_, Step::Relay(relay)) = &self.phase else { return false };
        let has_responded = self.response.as_ref().is_some_and(|response| response.download.is_done());
        has_responded && !relay.upload_failed && !self.upload.is_done()
    }

    /// Both connections are in the clear: the kernel may move bodies between them.
    pub(crate) fn set_splice(&mut self, may_splice: bool) {
        self.upload.set_splice(may_splice);
        if let Some(response) = &mut self.response {
            response.download.set_splice(may_splice);
        }
    }

    /// There are copies of the request to be sent, now or once its body is whole.
    pub(crate) fn has_copies(&self) -> bool {
        self.mirror.is_some()
    }

    /// Copies of the request that are to be sent now, since its body is whole; and that body, unless it was too long to be kept.
    pub(crate) fn take_copies(&mut self) -> Option<(Box<Copies>, Option<Vec<u8>>)> {
        if self.mirror.is_none() || !self.upload.is_read() {
            return None;
        }
        Some((self.mirror.take()?, self.upload.take_copy()))
    }

    /// Whether a request was begun that counts: its head was whole, or it was refused.
    pub(crate) fn is_begun(&self) -> bool {
        self.record.begun_us().is_some()
    }

    /// The request, where it is a call of gRPC.
    pub(crate) fn call(&self) -> Option<&Ongoing> {
        self.call.as_ref()
    }

    /// Bytes that came from the client: the head, and the body without its framing.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.record.bytes_in + self.upload.received()
    }

    /// Bytes that went to the client.
    pub(crate) fn bytes_out(&self) -> u64 {
        self.record.bytes_out + self.sent()
    }

    /// Bytes of the response that went to the client.
    fn sent(&self) -> u64 {
        self.response.as_ref().map_or(0, |response| response.download.sent())
    }

    /// When its last response left, in milliseconds. `clock_ms` is asked where that is not known.
    pub(crate) fn ended_ms(&self, clock_ms: impl FnOnce() -> u64) -> u64 {
        let download = self.response.as_ref().map(|response| &response.download);
        // A long body may have taken its time.
        let brief = download.filter(|download| download.received() <= net::buffer::SMALL_BYTES as u64);
        brief.and_then(Transfer::head_sent_us).map_or_else(clock_ms, |sent_us| sent_us / 1000)
    }
}

/// Why a body did not get through.
#[derive(Debug)]
pub(crate) enum TransferError {
    /// The sender's connection failed.
    Read(std::io::Error),
    Body(BodyError),
    /// The receiver's connection failed.
    Write(std::io::Error),
}

impl From<BodyError> for TransferError {
    fn from(error: BodyError) -> Self {
        Self::Body(error)
    }
}

impl TransferError {
    pub(crate) fn of_request(self) -> Error {
        match self {
            Self::Read(error) => Error::client_io(error),
            Self::Body(BodyError::Truncated) => Error::downstream(Reason::ClientEof),
            Self::Body(BodyError::Framing) => Error::downstream(Reason::BadFraming),
            Self::Body(BodyError::TooLarge) => Error::downstream(Reason::BodyTooLarge),
            Self::Write(error) => Error::endpoint_io(error),
        }
    }

    pub(crate) fn of_response(self) -> Error {
        match self {
            Self::Read(error) => Error::endpoint_io(error),
            Self::Body(BodyError::Truncated) => Error::upstream(Reason::UpstreamEof),
            Self::Body(BodyError::Framing | BodyError::TooLarge) => Error::upstream(Reason::UpstreamBadFraming),
            Self::Write(error) => Error::client_io(error),
        }
    }
}
