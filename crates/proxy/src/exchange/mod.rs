//! One request, from its head to the last byte of its response: every stage in order.
//!
//! [`Exchange`] is a state machine without I/O. A driver (`driver`, and the simulation in the tests) calls [`Exchange::action`] to learn
//! what it needs, does that, and reports what happened through one of the `handle_*`; [`Env`] contains the time. The stages, in order:
//!
//! read the head -> (its token, if routes have conditions on claims) -> route -> policy (addresses, rate limit) -> auth (and the check of a password) -> authorize (ask a service) -> limit (ask
//! another) -> policy (redirect, split) -> body (decompress, collect) -> prepare (rewrite, mirror, the head for the endpoint) -> lease (choose an endpoint) -> connect -> await (send, and wait for the response's head) ->
//! relay (both bodies) or tunnel -> done. Any failure goes to [`Exchange::fail`], which responds if the client can still get a response.
//!
//! | what | file |
//! |---|---|
//! | its events | `events` |
//! | the stages | `stages` |
//! | what a request proves | `authenticate` |
//! | asking a service whether a request may pass | `authorize` |
//! | asking a service whether a request is within its limits | `limit` |
//! | the wait for the answer of either | `ask` |
//! | preparing the body of a request: decompressing, collecting | `body` |
//! | holding a body back, for a service or for an endpoint | `hold` |
//! | a body on its way | `transfer` |
//! | its compression or decompression | `coding` |
//! | choosing an endpoint, and trying another | `tries` |
//! | one try at one endpoint | `attempt` |
//! | the response, relayed | `relay` |
//! | whether another one replaces it | `intercept` |
//! | our own, if the request has failed | `failure` |
//! | whether it is compressed | `compress` |
//! | how slow a client may be | `min_rate` |
//! | which route a request takes | `route`, `conditions` |
//! | what is logged and counted in the end | `record` |
//! | what is recorded for its trace | `traced` |
//! | storage that is reused | `storage` |

mod additions;
mod ask;
mod attempt;
mod authenticate;
mod authorize;
mod body;
mod coding;
mod compress;
pub(crate) mod conditions;
mod events;
pub(crate) mod explain;
mod failure;
pub(crate) mod faults;
mod hold;
mod intercept;
mod limit;
mod min_rate;
pub(crate) mod record;
mod relay;
pub(crate) mod route;
#[cfg(test)]
mod sim;
mod stages;
mod storage;
mod tokens;
mod traced;
pub(crate) mod transfer;
mod tries;

use std::rc::Rc;
use std::sync::Arc;

use balance::{Outcome, Proof};
use model::{Changes, ClusterProtocol, FixedResponse, HttpListener, Route, RouteAction, RoutePolicy, Scheme};
use net::buffer::Buffer;
use net::socket::Progress;
use smallvec::SmallVec;
use telemetry::Reason;
use wire::HeadKind;
use wire::h2::ErrorCode;
use wire::message::{Body, Field, FieldId, Method, RequestHead, Version};

pub(crate) use attempt::{ConnectionState, Ending, Lost, SentRequest, connection_outcome, ending};
pub(crate) use hold::HeldBody;
pub(crate) use relay::Reuse;
pub(crate) use storage::{Request, Response, Storage};

use self::ask::Asking;
use self::attempt::{Attempt, Awaiting, RetryCause};
use self::authenticate::Unproven;
use self::conditions::Bearer;
use self::faults::InjectedFault;
use self::hold::Holding;
use self::intercept::Interception;
use self::record::AccessRecord;
use self::relay::{Relay, Terms};
use self::route::{Found, HostText};
use self::transfer::{BodyError, Framing, Transfer};
use crate::auth::jwt::remembered::Tokens;
use crate::auth::jwt::{Bearing, Identity, Verified, Verifier};
use crate::auth::passwords::Check;
use crate::auth::{self, Authenticator, Judged};
use crate::compression::{Compressions, EncodeFailed};
use crate::counts::Permit;
use crate::deadline::Deadline;
use crate::error::{Error, Side};
use crate::external_auth::Cookies;
use crate::external_auth::cache::Remembered;
use crate::grpc::{self, Ongoing};
use crate::h2;
use crate::http::headers::{self, Client};
use crate::http::respond::{self, Additions, Own, OwnChanges};
use crate::http::{client_address, pages, receive};
use crate::policy::bandwidth::{ResponsePace, Shares};
use crate::policy::cors::CorsEdits;
use crate::policy::headers::{RequestEdits, ResponseEdits};
use crate::policy::mirror::{Copies, InFlight, MIRROR_BODY_BYTES_MAX};
use crate::policy::rate_headers::Quotas;
use crate::policy::rate_limit;
use crate::policy::request_id;
use crate::policy::retry::{Failed, Tries};
use crate::policy::sticky::SessionField;
use crate::policy::values::{Names, Values};
use crate::policy::{self, Admitted, Destination, RequestView};
use crate::request_body::{Bodies, Decompressing, Room, Undecoded};
use crate::tcp::upgrade::Upgrade;
use crate::tls::Secured;
use crate::trace::Trace;
use crate::upstream::cluster::{Cluster, Demand, Endpoint, Full, Lease};
use crate::upstream::connect::OnBehalfOf;
use crate::worker::ListenerView;
use crate::worker::snapshot::ListenerPlan;

/// Enough for the longest IP address.
pub(crate) type IpText = SmallVec<[u8; 45]>;

/// The properties of a downstream connection that all its requests share.
pub(crate) struct ConnectionInfo {
    pub(crate) who: OnBehalfOf,
    /// The client's IP address as text.
    pub(crate) ip_text: IpText,
    /// What the connection was made for; `None` for plain text.
    pub(crate) secured: Option<Rc<Secured>>,
}

impl ConnectionInfo {
    /// The known properties of the client.
    pub(crate) fn client<'c>(&'c self, http: &'c HttpListener) -> Client<'c> {
        Client {
            address: self.who.client,
            ip_text: &self.ip_text,
            local: self.who.local,
            scheme: if self.secured.is_some() { "https" } else { "http" },
            forwarded: http.forwarded,
            is_known: self.who.is_known,
            is_trusted: self.is_of_trusted(http),
            trusted_proxies: &http.trusted_proxies,
            secured: self.secured.as_deref(),
            request_id: None,
            x_real_ip: http.x_real_ip,
            call: None,
        }
    }

    /// Whether the connection comes from a trusted proxy.
    fn is_of_trusted(&self, http: &HttpListener) -> bool {
        let who = &self.who;
        who.is_known && http.trusted_proxies.iter().any(|net| net.contains(&who.client.ip()))
    }
}

/// The environment of an exchange at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Env<'e> {
    /// The time, in microseconds of the worker's clock.
    pub(crate) now_us: u64,
    /// The listener in the snapshot with which the exchange began.
    pub(crate) listener: &'e Rc<ListenerView>,
    pub(crate) http: &'e HttpListener,
    pub(crate) connection_info: &'e ConnectionInfo,
    pub(crate) storage: &'e Storage,
    /// The copies of requests that are in progress on this worker.
    pub(crate) mirrors: &'e InFlight,
    /// The responses that this worker compresses.
    pub(crate) compressions: &'e Compressions,
    /// What this worker holds of the bodies of requests.
    pub(crate) bodies: &'e Bodies,
    /// What this worker remembers of the answers of external authorization.
    pub(crate) remembered: &'e Remembered,
    /// What this worker remembers of tokens that were right.
    pub(crate) tokens: &'e Tokens,
    /// Milliseconds since 1970. It is a function, as few requests need it.
    pub(crate) unix_ms: fn() -> u64,
    /// Requests of this connection before this one.
    pub(crate) requests_before: u64,
    /// The connection must accept no more requests: its listener is gone, or the worker drains.
    pub(crate) is_ending: bool,
    /// The drain has taken too long, so everything that is left ends now.
    pub(crate) is_drain_over: bool,
    /// The process uses as much memory as it may, so new requests are refused. Only known where a request's head may be complete.
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

/// The next thing that an exchange needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Needs more of the request's head: [`Exchange::handle_head_bytes`].
    ReadHead,
    /// Needs the result of [`Exchange::take_check`]: [`Exchange::handle_checked`].
    Authenticate,
    /// Needs more of the request's body, in [`Exchange::held`]: [`Exchange::handle_held`].
    HoldBody,
    /// Needs the answer to [`Exchange::take_question`]: [`Exchange::handle_reply`].
    Ask,
    /// Waits for its deadline: [`Exchange::handle_timeout`].
    Wait,
    /// Waits for room at an endpoint: [`Exchange::handle_lease`].
    WaitForLease,
    /// Needs a connection to the endpoint of [`Exchange::lease`]: [`Exchange::handle_connected`] or [`Exchange::handle_connect_failure`].
    Connect,
    /// The request must be sent, and the head of a response read.
    Await,
    /// The rest of both bodies must be moved.
    Relay,
    /// Our own response must be sent: [`Exchange::handle_responded`].
    Respond,
    /// Bytes must be relayed in both directions, until both sides have been silent for this long: [`Exchange::handle_tunnel_end`].
    Tunnel { idle_ms: u64 },
    /// Nothing more.
    Done(Disposition),
}

/// What happens to the downstream connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Another request may come.
    KeepAlive,
    /// Everything was sent.
    Close,
    /// Everything was sent, but the client may still be sending. Its bytes are read for a while; otherwise a reset could destroy our
    /// response.
    Linger,
    /// The response is incomplete, and the client must be able to see that. The code is for HTTP/2.
    Reset(ErrorCode),
}

/// A request and its response.
#[derive(Default)]
pub(crate) struct Exchange {
    pub(crate) request: Request,
    upload: Transfer,
    /// Present once a response begins.
    response: Option<Box<Response>>,
    phase: Phase,
    /// When [`Exchange::handle_timeout`] is due, in milliseconds. Every exchange that waits has one.
    deadline_ms: Option<u64>,
    pub(crate) record: AccessRecord,
    /// Set if the request is recorded for its trace.
    trace: Option<Box<Trace>>,
    /// Set if the request is a gRPC call.
    call: Option<Ongoing>,
    /// Copies for mirrors that wait for the request's body.
    mirror: Option<Box<Copies>>,
    /// What was held back of the request's body, before it is sent.
    held: Option<Box<HeldBody>>,
    /// The worker's room for a body that was collected, as long as it may be sent again.
    room: Option<Room>,
    /// The bandwidths of the client, if the listener limits them.
    shares: Option<Box<Shares>>,
    /// Until when it waits for a bandwidth, of its client or of the response, in milliseconds.
    paced_until_ms: Option<u64>,
    /// Set while it is not known whether its credentials are enough, and a service may let it pass instead.
    unproven: Option<Box<Unproven>>,
    /// What its token says, if the route demands one.
    bearer: Option<Rc<Verified>>,
    /// What the client is told about its limits.
    quotas: Option<Box<Quotas>>,
    /// The cookies with which a service has let it pass.
    cookies: Option<Box<Cookies>>,
    /// Counts it among those of its client that are in progress, if the route limits them.
    permit: Option<Permit>,
    /// How fast its response goes to the client, if the route limits that and the response has begun.
    pace: Option<Box<ResponsePace>>,
    /// Set if the error backend is asked for another response.
    interception: Option<Box<Interception>>,
    /// Set if the upstream connection can be reused.
    reuse: Option<Reuse>,
}

enum Phase {
    /// Over HTTP/1, the number of bytes that were searched for the head's end.
    ReadHead {
        scanned: usize,
    },
    /// A password is being checked.
    Authenticate(Box<Checking>),
    /// The body is held back, for a service that is asked about the request or until all of it is there.
    HoldBody(Box<Holding>),
    /// A service is asked about the request.
    Ask(Box<Asking>),
    /// The destination is known.
    Upstream(Routed, UpstreamPhase),
    /// Our own response is being sent. `code` is for the case that this fails.
    Respond {
        then: Disposition,
        code: ErrorCode,
    },
    Tunnel(Tunnel),
    Done(Disposition),
}

impl Default for Phase {
    fn default() -> Self {
        Self::ReadHead { scanned: 0 }
    }
}

/// A request whose password is being checked.
pub(crate) struct Checking {
    /// The route's index in the listener.
    number: usize,
    authenticator: Arc<Authenticator>,
    /// The user who it is from, if the password is right.
    user: Box<str>,
    /// Present until the check begins.
    check: Option<Box<Check>>,
}

/// The longest time for the check of a password, including the wait for its turn.
const CHECK_MS_MAX: u64 = 10_000;

/// The progress of a request whose destination is known.
enum UpstreamPhase {
    /// It will be sent once more, but not before the deadline.
    BackOff,
    /// It waits for room at an endpoint.
    Queue,
    Connect(Attempt),
    Await(Awaiting),
    /// A response's head is being passed on, and more will follow.
    Interim(Awaiting, Interim),
    Relay(Relay),
    /// Between two steps. It is never visible outside a call.
    Between,
}

/// What follows an interim response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interim {
    Response,
    Tunnel { answered_us: u64 },
}

/// The destination of a request.
pub(crate) struct Routed {
    /// The route's index in the listener.
    number: usize,
    pub(crate) cluster: Rc<Cluster>,
    /// The index of `cluster` among the clusters of the route.
    share: usize,
    /// For consistent hashing.
    pub(crate) key: u64,
    /// The endpoint to which the client returns.
    pub(crate) preferred: Option<usize>,
    /// The client used TLS, here or at a trusted proxy. Known if the cluster is sticky.
    is_https: bool,
    /// The end of the route's timeout.
    pub(crate) deadline: Deadline,
    tries: Tries,
}

/// For a route that is not there, which cannot happen: an exchange keeps the snapshot that has its route.
static NO_POLICY: std::sync::LazyLock<RoutePolicy> = std::sync::LazyLock::new(RoutePolicy::default);

impl Routed {
    fn policy<'e>(&self, env: &Env<'e>) -> &'e RoutePolicy {
        env.route(self.number).map_or(&NO_POLICY, |route| &route.policy)
    }

    fn changes<'e>(&self, env: &Env<'e>) -> &'e Changes {
        env.route(self.number).map_or(&NO_POLICY.changes, |route| route.changes(self.share))
    }

    fn is_to_h2(&self) -> bool {
        self.cluster.plan.policy.protocol == ClusterProtocol::H2
    }

    /// The cookie or header for a client that was served by a different endpoint than the one it returned to, or that came for the first
    /// time.
    fn session(&self, env: &Env<'_>, endpoint: &Endpoint) -> Option<SessionField<'_>> {
        let sticky = self.cluster.plan.sticky.as_ref();
        let sticky = sticky.filter(|_| self.is_own() && self.preferred != Some(endpoint.index))?;
        sticky.set(endpoint.index, self.is_https, &env.route(self.number)?.path)
    }

    /// What it needs from its cluster.
    pub(crate) fn demand(&self) -> Demand<'_> {
        let Self { key, deadline, tries, .. } = self;
        Demand { key: *key, tried: tries.tried(), takes_ejected: tries.takes_ejected(), deadline: *deadline }
    }

    /// Room for a connection, at the endpoint to which the client returns or wherever the cluster chooses.
    fn try_lease(&self, now_ms: u64) -> Result<Lease, Full> {
        let preferred = self.preferred.filter(|index| !self.tries.tried().contains(index));
        if let Some(lease) = preferred.and_then(|index| self.cluster.lease_of(index, now_ms)) {
            return Ok(lease);
        }
        self.cluster.lease(now_ms, &self.demand())
    }

    /// Whether an endpoint that has failed the request may be asked once more, now that there is no other.
    fn may_return(&mut self, env: &Env<'_>) -> bool {
        let same_endpoint = self.retry(env).same_endpoint;
        self.tries.may_return(same_endpoint)
    }

    /// Returns whether the request is sent again after this failure. If so, the try is counted and the request prepared.
    fn again(&mut self, env: &Env<'_>, upload: &mut Transfer, record: &mut AccessRecord, failed: &Failed<'_>) -> bool {
        let (retry, is_to_error_backend) = (self.retry(env), self.is_to_error_backend());
        let Self { cluster, deadline, tries, .. } = self;
        let is_again = tries.again(cluster, retry, failed, *deadline, upload, || {
            env.listener.count(Reason::RetryBudget);
            record.handle_besides(Reason::RetryBudget);
        });
        if !is_to_error_backend {
            record.retries = tries.retries();
        }
        is_again
    }

    /// Whether the request is sent again because its connection was closed at that moment: see [`Tries::again_fresh`].
    fn again_fresh(
        &mut self,
        env: &Env<'_>,
        cause: RetryCause,
        method: Method,
        upload: &mut Transfer,
        begun_us: Option<u64>,
    ) -> bool {
        let retry = self.retry(env);
        if self.tries.is_late(retry, env.now_ms()) {
            return false;
        }
        let is_repeatable = method.is_idempotent() || retry.non_idempotent;
        self.tries.again_fresh(&self.cluster, is_repeatable, cause, upload, begun_us)
    }

    /// A try that used up its own time, before the route's time is over, gets its own reason.
    fn name(&self, error: Error, now_ms: u64) -> Error {
        let is_of_try = error.reason == Reason::RequestTimeout && !self.deadline.is_over(now_ms);
        if is_of_try { Error::upstream(Reason::PerTryTimeout) } else { error }
    }
}

/// The state of a relay after 101.
struct Tunnel {
    /// Held for the whole time.
    _lease: Lease,
    /// The longest time without a byte from either side, in milliseconds.
    idle_ms: u64,
}

/// A connection that was made for the exchange.
#[derive(Clone, Copy)]
pub(crate) struct Connected {
    /// It has served another request before.
    pub(crate) is_reused: bool,
    /// What the endpoint had acknowledged, if the driver has checked ([`Exchange::wants_progress`]).
    pub(crate) progress: Option<Progress>,
}

impl Exchange {
    pub(crate) fn action(&self) -> Action {
        match &self.phase {
            Phase::ReadHead { .. } => Action::ReadHead,
            Phase::Authenticate(_) => Action::Authenticate,
            Phase::HoldBody(_) => Action::HoldBody,
            Phase::Ask(_) => Action::Ask,
            Phase::Upstream(_, UpstreamPhase::BackOff) => Action::Wait,
            Phase::Upstream(_, UpstreamPhase::Queue) => Action::WaitForLease,
            Phase::Upstream(_, UpstreamPhase::Connect(_)) => Action::Connect,
            Phase::Upstream(_, UpstreamPhase::Await(_)) => Action::Await,
            Phase::Upstream(_, UpstreamPhase::Relay(_)) => Action::Relay,
            Phase::Upstream(_, UpstreamPhase::Interim(..)) | Phase::Respond { .. } => Action::Respond,
            Phase::Tunnel(tunnel) => Action::Tunnel { idle_ms: tunnel.idle_ms },
            Phase::Done(next) => Action::Done(*next),
            Phase::Upstream(_, UpstreamPhase::Between) => Action::Done(Disposition::Reset(ErrorCode::INTERNAL_ERROR)),
        }
    }

    /// When [`Exchange::handle_timeout`] is due, in milliseconds. Waits for an endpoint and for a connection have their own limits.
    pub(crate) fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// Whether it uses its upstream connection. Afterwards, [`Exchange::take_reuse`] says what happens to the connection.
    pub(crate) fn holds_connection(&self) -> bool {
        matches!(
            self.phase,
            Phase::Tunnel(_)
                | Phase::Upstream(_, UpstreamPhase::Await(_) | UpstreamPhase::Interim(..) | UpstreamPhase::Relay(_))
        )
    }

    /// How its upstream connection can be reused; `None` if it cannot.
    pub(crate) fn take_reuse(&mut self) -> Option<Reuse> {
        self.reuse.take()
    }

    /// The check that it waits for, once.
    pub(crate) fn take_check(&mut self) -> Option<(Arc<Authenticator>, Box<Check>)> {
        let Phase::Authenticate(checking) = &mut self.phase else { return None };
        Some((checking.authenticator.clone(), checking.check.take()?))
    }

    /// Its destination, once that is known.
    pub(crate) fn routed(&self) -> Option<&Routed> {
        if let Phase::Upstream(routed, _) = &self.phase { Some(routed) } else { None }
    }

    /// The lease that needs a connection, the time limit, and, if the connection must be fresh, the earliest time when it may have been
    /// made, in microseconds.
    pub(crate) fn wanted(&self) -> Option<(&Routed, &Lease, Deadline, Option<u64>)> {
        let Phase::Upstream(routed, UpstreamPhase::Connect(attempt)) = &self.phase else { return None };
        Some((routed, &attempt.lease, attempt.deadline, routed.tries.fresh_since_us()))
    }

    /// Whether the driver should check how much the endpoint has acknowledged. It only matters if the request is not idempotent, because
    /// others may be repeated without proof.
    pub(crate) fn wants_progress(&self) -> bool {
        !self.method().is_idempotent()
    }

    /// The request on its way to the endpoint, unless it is complete or cannot continue.
    pub(crate) fn upload(&mut self) -> Option<&mut Transfer> {
        let has_failed = match &self.phase {
            Phase::Upstream(_, UpstreamPhase::Await(awaiting)) => awaiting.upload_failed,
            Phase::Upstream(_, UpstreamPhase::Relay(relay)) => relay.upload_failed,
            _ => true,
        };
        if has_failed || self.upload.is_done() { None } else { Some(&mut self.upload) }
    }

    /// The response on its way to the client, unless it is complete.
    pub(crate) fn download(&mut self) -> Option<&mut Transfer> {
        let download = &mut self.response.as_mut()?.download;
        if download.is_done() { None } else { Some(download) }
    }

    /// Whether the response is complete, and only the rest of the request is still being sent to the endpoint.
    pub(crate) fn is_only_sending(&self) -> bool {
        let Phase::Upstream(_, UpstreamPhase::Relay(relay)) = &self.phase else { return false };
        let has_responded = self.response.as_ref().is_some_and(|response| response.download.is_done());
        has_responded && !relay.upload_failed && !self.upload.is_done()
    }

    /// Says whether both connections are plain text, so that the kernel may move bodies between them.
    pub(crate) fn set_splice(&mut self, may_splice: bool) {
        self.upload.set_splice(may_splice);
        if let Some(response) = &mut self.response {
            response.download.set_splice(may_splice);
        }
    }

    /// The bandwidths of its client, if the listener limits them.
    pub(crate) fn shares(&self) -> Option<&Shares> {
        self.shares.as_deref()
    }

    /// How fast its response goes to the client, if the route limits that and the response has begun.
    pub(crate) fn response_pace(&self) -> Option<&ResponsePace> {
        self.pace.as_deref()
    }

    /// Whether a bandwidth makes it wait now and then.
    pub(crate) fn is_paced(&self) -> bool {
        self.shares.is_some() || self.pace.is_some()
    }

    /// Bytes of the request's body that were taken from the client.
    pub(crate) fn received(&self) -> u64 {
        self.upload.received()
    }

    /// Says until when it waits for a bandwidth, in milliseconds; `None` if it does not.
    pub(crate) fn set_paced(&mut self, until_ms: Option<u64>) {
        self.paced_until_ms = until_ms;
    }

    /// Whether there are copies of the request to send, now or once its body is complete.
    pub(crate) fn has_copies(&self) -> bool {
        self.mirror.is_some()
    }

    /// Copies of the request that must be sent now, because its body is complete, with that body unless it was too long to be kept.
    pub(crate) fn take_copies(&mut self) -> Option<(Box<Copies>, Option<Vec<u8>>)> {
        self.mirror.as_ref()?;
        let body = self.take_copied()?;
        Some((self.mirror.take()?, body))
    }

    /// Whether a request was begun that counts: its head was complete, or it was refused.
    pub(crate) fn is_begun(&self) -> bool {
        self.record.begun_us().is_some()
    }

    /// The request's call, if it is a gRPC call.
    pub(crate) fn call(&self) -> Option<&Ongoing> {
        self.call.as_ref()
    }

    /// Bytes received from the client: the head, and the body without its framing.
    pub(crate) fn bytes_in(&self) -> u64 {
        self.record.bytes_in + self.upload.received()
    }

    /// Bytes sent to the client.
    pub(crate) fn bytes_out(&self) -> u64 {
        self.record.bytes_out + self.sent()
    }

    /// Bytes of the response sent to the client.
    fn sent(&self) -> u64 {
        self.response.as_ref().map_or(0, |response| response.download.sent())
    }

    /// When its last response was sent, in milliseconds. Calls `clock_ms` if that is not known.
    pub(crate) fn ended_ms(&self, clock_ms: impl FnOnce() -> u64) -> u64 {
        let download = self.response.as_ref().map(|response| &response.download);
        // A long body may have taken a while.
        let brief = download.filter(|download| download.received() <= net::buffer::SMALL_BYTES as u64);
        brief.and_then(Transfer::head_sent_us).map_or_else(clock_ms, |sent_us| sent_us / 1000)
    }
}

/// Why a body was not completed.
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

impl From<Undecoded> for BodyError {
    fn from(why: Undecoded) -> Self {
        match why {
            Undecoded::Invalid => Self::Encoding,
            Undecoded::TooLarge => Self::Decompressed,
        }
    }
}

impl From<EncodeFailed> for BodyError {
    fn from(_: EncodeFailed) -> Self {
        Self::Coding
    }
}

impl TransferError {
    pub(crate) fn of_request(self) -> Error {
        match self {
            Self::Read(error) => Error::client_io(error),
            Self::Body(BodyError::Truncated) => Error::downstream(Reason::ClientEof),
            Self::Body(BodyError::Framing) => Error::downstream(Reason::BadFraming),
            Self::Body(BodyError::TooLarge) => Error::downstream(Reason::BodyTooLarge),
            Self::Body(BodyError::Coding) => Error::internal(Reason::Internal),
            Self::Body(BodyError::Encoding) => Error::downstream(Reason::EncodingInvalid),
            Self::Body(BodyError::Decompressed) => Error::downstream(Reason::DecompressedTooLarge),
            Self::Write(error) => Error::endpoint_io(error),
        }
    }

    pub(crate) fn of_response(self) -> Error {
        match self {
            Self::Read(error) => Error::endpoint_io(error),
            Self::Body(BodyError::Truncated) => Error::upstream(Reason::UpstreamEof),
            // Bodies of responses are not decompressed.
            Self::Body(BodyError::Coding | BodyError::Encoding | BodyError::Decompressed) => {
                Error::internal(Reason::Internal)
            }
            Self::Body(BodyError::Framing | BodyError::TooLarge) => Error::upstream(Reason::UpstreamBadFraming),
            Self::Write(error) => Error::client_io(error),
        }
    }
}
