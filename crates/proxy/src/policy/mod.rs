//! What a route does with a request besides choosing a cluster.
//!
//! The stages of `exchange` call these in order: the client's certificate, addresses, CORS, maintenance, concurrency limit, rate limit (then `auth`, `external_auth` and the global rate limit), redirect, fixed response or split,
//! rewrite and header changes, mirror, retry; and for the response, header changes, CORS and the sticky cookie. Only the mirror does I/O.

pub(crate) mod addresses;
pub(crate) mod bandwidth;
mod client_cert;
pub(crate) mod concurrency;
pub(crate) mod cors;
pub(crate) mod headers;
pub(crate) mod maintenance;
pub(crate) mod mirror;
pub(crate) mod rate_headers;
pub(crate) mod rate_limit;
mod redirect;
pub(crate) mod request_id;
pub(crate) mod request_text;
pub(crate) mod response_rewrite;
pub(crate) mod retry;
pub(crate) mod rewrite;
pub(crate) mod sticky;
pub(crate) mod values;
pub(crate) mod via;

use std::cell::RefCell;
use std::rc::Rc;

use balance::Split;
use model::{ForwardPath, PathRules, Route, RouteAction, Satisfy, Scheme, WeightedCluster};
use telemetry::Reason;
use wire::message::{FieldId, RequestHead, find};

use self::addresses::Listed;
use self::cors::Preflight;
use self::rate_headers::Quotas;
use crate::counts::Permit;
use crate::error::Error;
use crate::exchange::Checking;
use crate::http::client_address;
use crate::http::headers::Client;
use crate::upstream::cluster::Cluster;
use crate::worker::ListenerView;

/// The seed for the splits of all workers, which still start at different points. Any number will do.
const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// The resolution of a mirror's share.
const SHARE_PARTS: f64 = 1_000_000.0;

/// The parts of a request that policies read.
pub(crate) struct RequestView<'a> {
    pub(crate) head: &'a RequestHead,
    /// The bytes that the head was read from.
    pub(crate) buffer: &'a [u8],
    /// Path and query as routes see them, with the path in its normal form.
    pub(crate) target: &'a [u8],
    pub(crate) paths: PathRules,
    pub(crate) client: &'a Client<'a>,
}

/// Path and query for the endpoint if nothing rewrites them: as received, or in the form that the routes saw.
pub(crate) fn passed_on<'t>(paths: &PathRules, received: &'t [u8], normal: &'t [u8]) -> &'t [u8] {
    match paths.forward {
        ForwardPath::Received => received,
        ForwardPath::Normal => normal,
    }
}

/// What is known of a request before it has proved anything.
pub(crate) enum Admitted {
    /// It is answered at once.
    Answered(Destination),
    /// Its address is all that it needs.
    Proven,
    /// It passes if it proves what the route demands.
    Unproven,
}

/// The destination of a request.
pub(crate) enum Destination {
    /// An endpoint of this cluster, which has this index among the clusters of the route.
    Cluster(Rc<Cluster>, usize),
    /// The client, with this status and `Location`.
    Redirect(u16, Vec<u8>),
    /// The client, with the fixed response of the route.
    Respond,
    /// A browser that asks for a script of another origin, which may use the route or not.
    Preflight { is_allowed: bool },
    /// Not known before this is checked.
    Check(Box<Checking>),
    /// Not known before a service has allowed it.
    Authorize,
    /// Not known before a service has counted it.
    Limit,
}

/// One worker's state for a route with a split or a mirror.
pub(crate) struct TrafficSplit {
    split: RefCell<Split>,
    /// Decides for each mirror whether to copy a request.
    mirrors: Vec<RefCell<Split>>,
}

impl TrafficSplit {
    /// `None` for a route with one cluster and no mirror, which is most of them.
    pub(crate) fn new(route: &Route, worker: usize) -> Option<Box<Self>> {
        let clusters = route.to.shares();
        if clusters.len() < 2 && route.policy.mirrors.is_empty() {
            return None;
        }
        let split = Split::new(clusters.iter().map(|share| share.weight), worker, SEED);
        let mirror = |mirror: &model::Mirror| {
            let parts = (mirror.share.clamp(0.0, 1.0) * SHARE_PARTS).round();
            RefCell::new(Split::new([parts as u32, (SHARE_PARTS - parts) as u32], worker, SEED))
        };
        let mirrors = route.policy.mirrors.iter().map(mirror).collect();
        Some(Box::new(Self { split: RefCell::new(split), mirrors }))
    }

    /// The index of the cluster for the next request; `None` if no cluster has any weight.
    fn pick(&self) -> Option<usize> {
        self.split.borrow_mut().pick()
    }

    /// Whether this request is also sent to the mirror with this number.
    fn is_mirrored(&self, mirror: usize) -> bool {
        self.mirrors.get(mirror).is_some_and(|split| split.borrow_mut().pick() == Some(0))
    }
}

/// Whether a request may use the route with this number, as far as that does not depend on what it proves. A preflight request proves
/// nothing, and is answered. `quotas` get what the client is told about its limit, and `permit` what counts for the request while it is in
/// progress.
///
/// # Errors
/// Those of [`client_cert::judge`]; [`Reason::ClientDenied`]; [`Reason::LoopDetected`]; [`Reason::Maintenance`]; [`Reason::ConcurrencyLimited`];
/// [`Reason::RateLimited`].
pub(crate) fn admit(
    listener: &ListenerView,
    number: usize,
    route: &Route,
    asked: &RequestView<'_>,
    now_us: u64,
    quotas: &mut Option<Box<Quotas>>,
    permit: &mut Option<Permit>,
) -> Result<Admitted, Error> {
    if let Some(rule) = &route.policy.client_cert
        && let Err(reason) = client_cert::judge(rule, asked.client.secured)
    {
        let Some(url) = rule.redirect.as_ref().filter(|_| reason != Reason::ClientCertDenied) else {
            return Err(Error::internal(reason));
        };
        listener.count(reason);
        return Ok(Admitted::Answered(Destination::Redirect(302, url.clone().into_bytes())));
    }
    let mut is_proven = false;
    if !route.policy.addresses.is_empty() {
        let client = client_address::known_client_ip(asked.head, asked.buffer, asked.client).ok();
        // Every route with rules has a table. If one had none, nobody would pass.
        let table = listener.plan.route_addresses.get(&number).ok_or(Error::internal(Reason::ClientDenied))?;
        let listed = table.find(client);
        // Where nothing else could be enough, the address has to be.
        let has_others = route.policy.auth.is_some() || route.policy.external_auth.is_some();
        let is_one_of_several = route.policy.satisfy == Satisfy::Any && has_others;
        is_proven = is_one_of_several && listed == Listed::Allowed;
        let may_go_on = table.lets_pass(listed) || (is_one_of_several && listed == Listed::Nowhere);
        if !may_go_on {
            return Err(Error::internal(Reason::ClientDenied));
        }
    }
    if let Some(via) = &route.policy.via {
        via::admit(via, asked.head, asked.buffer)?;
    }
    if let Some(cors) = &route.policy.cors
        && Preflight::of(asked.head.method, &asked.head.fields, asked.buffer).is_some()
    {
        // The limits are for the requests of scripts, and these are not. Browsers send no credentials with them.
        let is_allowed = cors::is_allowed(cors, asked.head, asked.buffer);
        return Ok(Admitted::Answered(Destination::Preflight { is_allowed }));
    }
    if route.policy.maintenance || listener.plan.maintenance.has(&route.name) {
        return Err(Error::internal(Reason::Maintenance));
    }
    if route.policy.concurrency_limit.is_some()
        && let Some(limiter) = listener.plan.concurrency_limiters.get(&number)
    {
        *permit = limiter.admit(asked)?;
    }
    if route.policy.rate_limit.is_some()
        && let Some(limiter) = listener.plan.limiters.get(&number)
    {
        limiter.admit(asked, now_us, quotas)?;
    }
    Ok(if is_proven { Admitted::Proven } else { Admitted::Unproven })
}

/// The destination of a request that may use the route with this number.
///
/// # Errors
/// [`Reason::AmbiguousPath`] for a redirect; [`Reason::NoEndpoint`] if no cluster of the route has any weight.
pub(crate) fn destination(
    listener: &ListenerView,
    number: usize,
    route: &Route,
    asked: &RequestView<'_>,
) -> Result<Destination, Error> {
    let clusters = match &route.to {
        RouteAction::Redirect(redirect) => {
            return Ok(Destination::Redirect(redirect.status, redirect::location(redirect, &route.path, asked)?));
        }
        RouteAction::Respond(_) => return Ok(Destination::Respond),
        RouteAction::Clusters(clusters) => clusters.as_slice(),
    };
    let index = match (clusters, listener.split(number)) {
        ([only], _) => (only.weight > 0).then_some(0),
        (_, split) => returning(listener, clusters, asked).or_else(|| split.and_then(TrafficSplit::pick)),
    };
    let share = index.and_then(|index| Some((clusters.get(index)?, index)));
    let cluster = share.and_then(|(share, index)| Some((listener.clusters.get(share.cluster.0)?.clone(), index)));
    cluster.map(|(cluster, index)| Destination::Cluster(cluster, index)).ok_or(Error::internal(Reason::NoEndpoint))
}

/// The cluster to which a client returns: that of its session, if all clusters of the route have theirs in the same cookie or header. A
/// cluster of weight 0 gets no requests, not even those.
fn returning(listener: &ListenerView, clusters: &[WeightedCluster], asked: &RequestView<'_>) -> Option<usize> {
    let sessions = |share: &WeightedCluster| {
        let cluster = listener.clusters.get(share.cluster.0)?;
        cluster.plan.sticky.as_ref()
    };
    let first = sessions(clusters.first()?)?;
    let is_shared = |share: &WeightedCluster| sessions(share).is_some_and(|other| other.are_shared_with(first));
    if !clusters.iter().all(is_shared) {
        return None;
    }
    let has_session = |share: &WeightedCluster| {
        share.weight > 0 && sessions(share).and_then(|own| own.endpoint(asked.head, asked.buffer)).is_some()
    };
    clusters.iter().position(has_session)
}

/// The scheme of the client's request at the first trusted hop.
pub(crate) fn scheme(asked: &RequestView<'_>) -> Scheme {
    let told = find(&asked.head.fields, FieldId::XForwardedProto).filter(|_| asked.client.is_trusted);
    let name = told.map_or(asked.client.scheme.as_bytes(), |field| field.value.get(asked.buffer));
    if name.eq_ignore_ascii_case(b"https") { Scheme::Https } else { Scheme::Http }
}

#[cfg(test)]
pub(crate) mod testing {
    use model::ForwardedHeaders;
    use wire::h1::{Parsed, parse_request};

    use super::*;

    /// Calls `look` with a request that has these lines, each with its line end, from `10.0.0.9` to port 8080.
    pub(crate) fn asked<T>(lines: &str, is_trusted: bool, look: impl FnOnce(&RequestView<'_>) -> T) -> T {
        let text = format!("{lines}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        let client = Client {
            address: "10.0.0.9:4711".parse().unwrap(),
            ip_text: b"10.0.0.9",
            local: "127.0.0.1:8080".parse().unwrap(),
            scheme: "http",
            forwarded: ForwardedHeaders::XForwarded,
            is_known: true,
            is_trusted,
            trusted_proxies: &[],
            secured: None,
            request_id: None,
            x_real_ip: false,
            call: None,
        };
        let (buffer, paths) = (text.as_bytes(), PathRules::default());
        let received = head.path.get(buffer);
        let normal = crate::exchange::route::normal_target(received, &paths).unwrap();
        let target = normal.as_deref().unwrap_or(received);
        look(&RequestView { head: &head, buffer, target, paths, client: &client })
    }

    #[test]
    fn a_trusted_proxy_tells_the_scheme() {
        let check = |is_trusted, field: &str, expect| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{field}");
            assert_eq!(asked(&lines, is_trusted, scheme), expect, "{field}");
        };
        check(true, "X-Forwarded-Proto: https\r\n", Scheme::Https);
        check(false, "X-Forwarded-Proto: https\r\n", Scheme::Http);
        check(true, "", Scheme::Http);
    }
}
