//! Responses that are replaced (`intercept_errors`), and requests that another cluster serves (`fallback`).
//!
//! What the error backend is asked is a further try of the exchange: at another cluster, with a head of its own and without a body. Nothing of
//! the replaced response has gone to the client. Of an endpoint's response only the head is read, and its connection is closed or its stream
//! reset, so a body without an end costs nothing. If the error backend gives no response, the client gets the status that was to be replaced,
//! with a page of our own.

use model::{Changes, FieldValue, HeaderChanges, InterceptErrors, Retry};
use wire::message::{Field, Span};

use super::*;
use crate::exchange::stages::client;

/// Stand for the index of a cluster of the route: the cluster is that of its `fallback`, or its error backend.
pub(super) const FALLBACK: usize = usize::MAX;
pub(super) const ERROR_BACKEND: usize = usize::MAX - 1;

/// What the error backend and the fallback are told, by the names that such services know from ingress-nginx.
const CODE: &str = "x-code";
const FORMAT: &str = "x-format";
const ORIGINAL_URI: &str = "x-original-uri";

/// A response that is replaced.
pub(super) struct Replaced {
    pub(super) status: u16,
    /// What the client may know of the reason.
    pub(super) word: Option<&'static str>,
    /// Fields that the client gets all the same.
    pub(super) kept: Vec<(String, String)>,
    /// The client's connection can carry another request.
    pub(super) may_stay: bool,
    /// For the case that a response of our own cannot be sent.
    pub(super) code: ErrorCode,
}

/// The state of an exchange that asks the error backend.
pub(super) struct Interception {
    replaced: Replaced,
    /// All of the client's request has arrived.
    is_read: bool,
    /// The body of the client's request, for copies that were not sent yet; `None` if it was too long.
    copy: Option<Vec<u8>>,
}

/// How the error backend is asked again. Which statuses it sends is its answer, and no failure.
static RETRY: std::sync::LazyLock<Retry> = std::sync::LazyLock::new(Retry::default);

/// The cluster that serves a request, and its index among those of the route: that of the fallback, if the one that was chosen has no endpoint.
pub(super) fn serving(env: &Env<'_>, route: &Route, (cluster, share): (Rc<Cluster>, usize)) -> (Rc<Cluster>, usize) {
    let Some(fallback) = route.policy.fallback.as_deref() else { return (cluster, share) };
    if cluster.has_other(&[], false, env.now_ms()) {
        return (cluster, share);
    }
    env.listener.clusters.get(fallback.to.0).map_or((cluster, share), |other| (other.clone(), FALLBACK))
}

/// The changes to a request for the fallback.
pub(super) fn of_fallback(route: &Route, head: &RequestHead, buffer: &[u8]) -> HeaderChanges {
    let all = route.policy.changes.request_headers.then(&told(503, head, buffer));
    route.policy.fallback.as_ref().map_or_else(HeaderChanges::default, |fallback| all.then(&fallback.request_headers))
}

/// What a service that makes error pages is told about the request. Nothing that the client sends under these names is passed on.
fn told(status: u16, head: &RequestHead, buffer: &[u8]) -> HeaderChanges {
    let text = |bytes: &[u8]| FieldValue::Text(String::from_utf8_lossy(bytes).into_owned());
    let accept: Vec<&[u8]> = pages::accept(&head.fields, buffer).collect();
    let mut changes = HeaderChanges {
        set: vec![
            (CODE.to_owned(), FieldValue::Text(status.to_string())),
            (ORIGINAL_URI.to_owned(), text(head.path.get(buffer))),
        ],
        ..HeaderChanges::default()
    };
    match accept.as_slice() {
        [] => changes.remove.push(FORMAT.to_owned()),
        accept => changes.set.push((FORMAT.to_owned(), text(&accept.join(&b", "[..])))),
    }
    changes
}

/// Whether a field is about the body of a request, or asks for a part or a version of what is at its path.
fn is_of_body(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 7] =
        [b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range", b"range", b"digest"];
    let is_content = name.get(..8).is_some_and(|begin| begin.eq_ignore_ascii_case(b"content-"));
    is_content || NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

impl Routed {
    /// Whether it goes to the error backend.
    pub(super) fn is_to_error_backend(&self) -> bool {
        self.share == ERROR_BACKEND
    }

    /// An endpoint has served the request, at that time.
    pub(super) fn served(&self, lease: &Lease, at_ms: u64, now_ms: u64) {
        self.cluster.record(&lease.endpoint, at_ms, Outcome::Success);
        if lease.was_ejected {
            self.cluster.readmit(&lease.endpoint, now_ms, Proof::Served);
        }
    }

    /// The limit of the error backend is about the head: the body has as long as it makes progress.
    pub(super) fn handle_head(&mut self) {
        if self.is_to_error_backend() {
            self.deadline = Deadline::Never;
        }
    }

    /// Whether the cluster is one of the route's own.
    pub(super) fn is_own(&self) -> bool {
        self.share < ERROR_BACKEND
    }

    /// When the request is sent again.
    pub(super) fn retry<'e>(&self, env: &Env<'e>) -> &'e Retry {
        if self.is_to_error_backend() { &RETRY } else { &self.policy(env).retry }
    }
}

impl Interception {
    /// The changes to the response of the error backend: it gets the fields of the replaced one that the client needs. `None` if there are none.
    pub(super) fn with_kept(&self, changes: &Changes) -> Option<HeaderChanges> {
        let kept = &self.replaced.kept;
        let set: Vec<(String, FieldValue)> =
            kept.iter().map(|(name, value)| (name.clone(), FieldValue::Text(value.clone()))).collect();
        let changes = &changes.response_headers;
        (!set.is_empty()).then(|| changes.then(&HeaderChanges { set, ..HeaderChanges::default() }))
    }
}

impl Exchange {
    /// What the route says about responses with this status. No response is replaced twice.
    pub(super) fn intercepts<'e>(&self, env: &Env<'e>, status: u16) -> Option<&'e InterceptErrors> {
        if status < 400 || self.interception.is_some() || self.call.is_some() || env.is_drain_over {
            return None;
        }
        let policy = env.route(self.record.route?)?.policy.intercept_errors.as_deref()?;
        let is_passed = faults::is_injected(InjectedFault::PassesIntercepted);
        (policy.is_on_status(status) && !is_passed).then_some(policy)
    }

    /// An endpoint has sent the head of a response that is replaced.
    pub(super) fn intercept_response(&mut self, env: &Env<'_>, awaiting: Awaiting, policy: &InterceptErrors) {
        let Phase::Upstream(routed, _) = &mut self.phase else { return };
        let Some(Response { head, bytes, .. }) = self.response.as_deref() else { return };
        let (status, lease) = (head.status, &awaiting.attempt.lease);
        if status < 500 {
            // A 5xx was recorded when it arrived. Nothing more will be known of this one.
            routed.served(lease, env.now_ms(), env.now_ms());
        }
        let is_challenge = |field: &&Field| field.name.get(bytes).eq_ignore_ascii_case(b"www-authenticate");
        let challenges =
            head.fields.iter().filter(|_| status == 401).filter(is_challenge).map(|field| {
                ("www-authenticate".to_owned(), String::from_utf8_lossy(field.value.get(bytes)).into_owned())
            });
        let kept = challenges.collect();
        self.record.finish(self.upload.head_sent_us(), env.now_us, None);
        drop(awaiting);
        self.end_try(env, None);
        let (may_stay, code) = (self.may_stay(env), ErrorCode::INTERNAL_ERROR);
        self.replace(env, policy, Replaced { status, word: None, kept, may_stay, code });
    }

    /// Asks the error backend for another response, or makes one if there is none.
    pub(super) fn replace(&mut self, env: &Env<'_>, policy: &InterceptErrors, replaced: Replaced) {
        self.record.intercepted = Some(replaced.status);
        let cluster = policy.to.and_then(|to| env.listener.clusters.get(to.0));
        match (cluster.cloned(), self.record.route) {
            (Some(cluster), Some(number)) => self.ask_error_backend(env, number, policy, cluster, replaced),
            _ => self.respond_page(env, &replaced),
        }
    }

    fn ask_error_backend(
        &mut self,
        env: &Env<'_>,
        number: usize,
        policy: &InterceptErrors,
        cluster: Rc<Cluster>,
        replaced: Replaced,
    ) {
        let is_read = self.upload.is_read();
        let copy = if is_read { self.upload.take_copy() } else { None };
        if !is_read {
            // The copies wait for a body that will not be complete.
            self.mirror = None;
        }
        // What was received counts, and another transfer begins.
        self.record.bytes_in += self.upload.received();
        (self.held, self.room, self.paced_until_ms) = (None, None, None);
        self.record.is_of_endpoint = false;
        if let (Some(took_us), Some(endpoint)) = (self.record.upstream_us.take(), &self.record.endpoint) {
            endpoint.counters.upstream.record(took_us);
        }
        self.write_error_request(env, number, policy, &cluster, replaced.status);
        let is_read = is_read || faults::is_injected(InjectedFault::ForgetsRest);
        self.interception = Some(Box::new(Interception { replaced, is_read, copy }));
        self.record.cluster = Some(cluster.clone());
        cluster.counters.requests.inc();
        cluster.budget.borrow_mut().on_request(env.now_ms());
        let deadline = Deadline::At(env.now_ms().saturating_add(crate::millis(policy.timeout)));
        let tries = Tries::default();
        let routed =
            Routed { number, cluster, share: ERROR_BACKEND, key: 0, preferred: None, is_https: false, deadline, tries };
        self.phase = Phase::Upstream(routed, UpstreamPhase::Queue);
        self.lease(env);
    }

    /// Writes the request for the error backend: a GET, or a HEAD for one.
    fn write_error_request(
        &mut self,
        env: &Env<'_>,
        number: usize,
        policy: &InterceptErrors,
        cluster: &Cluster,
        status: u16,
    ) {
        let Self { request: Request { head, bytes, upgrade, .. }, upload, record, .. } = self;
        // Whatever the endpoint was asked for, this is a plain request.
        (*upgrade, head.upgrade) = (None, None);
        let (method, method_name) = match head.method {
            Method::Head => (Method::Head, head.method_name),
            _ => {
                let start = bytes.len() as u32;
                bytes.extend_from_slice(b"GET");
                (Method::Get, Span { start, end: bytes.len() as u32 })
            }
        };
        let bytes: &[u8] = bytes;
        let is_kept = |field: &&Field| field.id != FieldId::Expect && !is_of_body(field.name.get(bytes));
        let asked = RequestHead {
            method,
            method_name,
            path: head.path,
            authority: head.authority,
            scheme: head.scheme,
            version: head.version,
            fields: head.fields.iter().filter(is_kept).copied().collect(),
            keep_alive: true,
            names_fields: head.names_fields,
            ..RequestHead::default()
        };
        let headers = told(status, head, bytes).then(&policy.request_headers);
        let client = Client { request_id: record.request_id.as_deref(), ..client(env) };
        let route = env.route(number);
        let names = Names {
            listener: &env.listener.plan.policy.name,
            route: route.map_or("", |route| &route.name),
            cluster: &cluster.plan.policy.name,
        };
        let values = Values { head: &asked, buffer: bytes, client: &client, names, endpoint: None };
        let target = policy.path.replace(InterceptErrors::STATUS, &status.to_string());
        let edits = RequestEdits {
            target: Some(target.as_bytes()),
            host: None,
            headers: &headers,
            values: Some(&values),
            via: route.and_then(|route| route.policy.via.as_deref()),
            mark: None,
        };
        let is_to_h2 = cluster.plan.policy.protocol == ClusterProtocol::H2;
        let out = upload.start(Framing::H1(Body::None), Framing::of(is_to_h2, Body::None), None);
        headers::write_request(out, &asked, bytes, &client, cluster.scheme(), &edits);
    }

    /// The request has failed. If it was the one to the error backend, and the client has got nothing of its response, begins the response that
    /// was to be replaced, and returns true.
    pub(super) fn respond_without_error_backend(&mut self, env: &Env<'_>, error: &Error) -> bool {
        if error.side == Side::Downstream || error.reason == Reason::Draining || self.sent() > 0 {
            return false;
        }
        let Some(interception) = &mut self.interception else { return false };
        let Replaced { status, word, ref mut kept, may_stay, code } = interception.replaced;
        let replaced = Replaced { kept: std::mem::take(kept), status, word, may_stay, code };
        env.listener.count(Reason::ErrorBackendFailed);
        self.record.handle_besides(Reason::ErrorBackendFailed);
        self.end_try(env, Some(error.reason));
        let listener = &env.listener.plan.policy.name;
        tracing::debug!(listener, %error, "the error backend failed");
        self.respond_page(env, &replaced);
        true
    }

    /// Begins our own response with this status.
    fn respond_page(&mut self, env: &Env<'_>, replaced: &Replaced) {
        let Replaced { status, word, kept, code, .. } = replaced;
        let may_stay = replaced.may_stay && self.may_stay(env);
        let content = self.error_content(env, *status, *word);
        let own = Own { status: *status, content, field: None, headers: kept };
        self.respond(env, &own, may_stay, *code);
    }

    /// Whether something of the client's request is left that nothing reads.
    pub(super) fn leaves_body(&self) -> bool {
        self.interception.as_ref().is_some_and(|interception| !interception.is_read)
    }

    /// Whether the client's connection can carry another request after the response of the error backend, if that is who responds.
    pub(super) fn may_stay_after_interception(&self) -> bool {
        self.interception.as_ref().is_none_or(|interception| interception.is_read && interception.replaced.may_stay)
    }

    /// The body of the client's request for copies that must be sent now; `None` if they still wait. The inner one is `None` if it was too long.
    pub(super) fn take_copied(&mut self) -> Option<Option<Vec<u8>>> {
        match &mut self.interception {
            Some(interception) => Some(interception.copy.take()),
            None => self.upload.is_read().then(|| self.upload.take_copy()),
        }
    }

    /// The method of the request that is sent.
    pub(super) fn method(&self) -> Method {
        match self.request.head.method {
            method if self.interception.is_none() || method == Method::Head => method,
            _ => Method::Get,
        }
    }
}
