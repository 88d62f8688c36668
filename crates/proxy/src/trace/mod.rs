//! The trace of a request: which one it belongs to, whether it is recorded, and what is recorded of it.
//!
//! A request gets a SERVER span, and each try a CLIENT span, whose id the endpoint gets in `traceparent`. So the spans of the endpoint are
//! children of the very try that reached it. The record of a request goes to the exporter on the control thread ([`telemetry::TraceQueue`]).

pub(crate) mod context;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use aws_lc_rs::rand;
use model::{ClusterProtocol, PathMatcher, RouteTracing, Tracing};
use net::clock;
use telemetry::{Reason, TRIES_MAX, TraceRecord, TryRecord};
use wire::message::{Field, FieldId, Span, Version};

use self::context::{PARENT, PARENT_BYTES, Parent, RANDOM, SAMPLED, STATE};
use crate::auth::present::append;
use crate::exchange::transfer::Transfer;
use crate::exchange::{Exchange, Request};
use crate::http::client_address::known_client_ip;
use crate::http::headers::Client;
use crate::policy::request_text::split;
use crate::upstream::cluster::Cluster;
use crate::worker::{ListenerView, Worker};

/// The longest texts of a record, in bytes. Longer ones are cut.
const PATH_BYTES_MAX: usize = 1024;
const TEXT_BYTES_MAX: usize = 256;

/// Random bytes that are kept for ids.
const POOL_BYTES: usize = 512;

/// Random numbers for ids, made many at once.
#[derive(Default)]
pub(crate) struct Ids(RefCell<Pool>);

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

impl Default for Pool {
    fn default() -> Self {
        Self { bytes: [0; POOL_BYTES], used: POOL_BYTES }
    }
}

impl Ids {
    /// A number that is not all zeros, as ids must not be.
    fn id<const BYTES: usize>(&self) -> [u8; BYTES] {
        loop {
            let id = self.take();
            if id != [0; BYTES] {
                return id;
            }
        }
    }

    fn take<const BYTES: usize>(&self) -> [u8; BYTES] {
        let Pool { bytes, used } = &mut *self.0.borrow_mut();
        if *used + BYTES > POOL_BYTES {
            if rand::fill(bytes).is_err() {
                // The generator has never failed. If it does, ids that repeat are better than requests that fail.
                for (place, byte) in bytes.iter_mut().zip(clock::now_us().to_le_bytes().into_iter().cycle()) {
                    *place ^= byte.wrapping_add(1);
                }
            }
            *used = 0;
        }
        let mut id = [0; BYTES];
        id.copy_from_slice(bytes.get(*used..*used + BYTES).unwrap_or(&[1; BYTES]));
        *used += BYTES;
        id
    }

    /// Whether a share of requests has this one.
    fn is_in(&self, share: f64) -> bool {
        // 53 bits are what the share has.
        let random = u64::from_le_bytes(self.take()) >> 11;
        (random as f64) < share * (1u64 << 53) as f64
    }
}

/// A request that is recorded.
pub(crate) struct Trace {
    record: TraceRecord,
    /// The `traceparent` in the head for the endpoint.
    written: [u8; PARENT_BYTES],
}

impl Trace {
    /// Decides about a request whose head has arrived, and puts the context for endpoints into the head. `is_trusted`: it comes from a trusted
    /// proxy. Returns `None` if it is not recorded.
    pub(crate) fn begin(
        (rules, route): (&Tracing, Option<&Arc<RouteTracing>>),
        request: &mut Request,
        is_trusted: bool,
        ids: &Ids,
    ) -> Option<Box<Self>> {
        if route.is_some_and(|route| !route.enabled) {
            return None;
        }
        let continues = route.is_none_or(|route| route.continues);
        let parent = Parent::of(&request.head.fields, &request.bytes).filter(|_| continues);
        let is_sampled = match parent {
            Some(parent) if is_trusted || rules.trust_client_sampling => parent.flags & SAMPLED != 0,
            _ => ids.is_in(route.and_then(|route| route.sampling).unwrap_or(rules.sampling)),
        };
        if !is_sampled && parent.is_some_and(|parent| parent.flags & SAMPLED == 0) {
            // Nothing is recorded here, and nothing has to change.
            return None;
        }
        let state = if parent.is_some() { context::state(&request.head.fields, &request.bytes) } else { String::new() };
        let own = Parent {
            trace_id: parent.map_or_else(|| ids.id(), |parent| parent.trace_id),
            span_id: ids.id(),
            flags: parent.map_or(RANDOM, |parent| parent.flags & RANDOM) | if is_sampled { SAMPLED } else { 0 },
        };
        let written = own.write();
        replace(request, &written, &state);
        if !is_sampled {
            return None;
        }
        let record = TraceRecord {
            trace_id: own.trace_id,
            span_id: own.span_id,
            parent_id: parent.map(|parent| parent.span_id),
            flags: own.flags,
            state,
            tracing: route.cloned(),
            ..TraceRecord::default()
        };
        Some(Box::new(Self { record, written }))
    }

    /// Records who the request is from.
    pub(crate) fn set_client(&mut self, request: &Request, client: &Client<'_>) {
        let Self { record, .. } = self;
        record.client = known_client_ip(&request.head, &request.bytes, client).ok();
        record.peer = Some(client.address);
        record.local = Some(client.local);
        record.scheme = client.scheme;
    }

    /// The ids of the trace and of the SERVER span.
    pub(crate) fn ids(&self) -> ([u8; 16], [u8; 8]) {
        (self.record.trace_id, self.record.span_id)
    }

    /// A try begins. The endpoint gets its span.
    pub(crate) fn begin_try(
        &mut self,
        cluster: &Cluster,
        endpoint: SocketAddr,
        upload: &mut Transfer,
        ids: &Ids,
        now_us: u64,
    ) {
        let Self { record, written } = self;
        if record.cluster.is_empty() {
            record.cluster.clone_from(&cluster.plan.policy.name);
            record.is_tls_upstream = cluster.plan.tls.is_some();
            record.is_h2_upstream = cluster.plan.policy.protocol == ClusterProtocol::H2;
        }
        let span_id = ids.id();
        let parent = Parent { trace_id: record.trace_id, span_id, flags: record.flags };
        let new = parent.write();
        upload.replace_in_head(written, &new);
        *written = new;
        let number = record.attempts;
        record.attempts += 1;
        if record.tries.len() == TRIES_MAX {
            record.tries.pop();
        }
        record.tries.push(TryRecord {
            span_id,
            number,
            // Until the end of the request, it is the time of the clock.
            begun_us: now_us,
            took_us: None,
            endpoint,
            status: None,
            grpc_status: None,
            reason: None,
        });
    }

    /// The endpoint of the last try has begun its final response.
    pub(crate) fn handle_status(&mut self, status: u16) {
        if let Some(last) = self.open() {
            last.status = Some(status);
        }
    }

    /// The last try is over, and was not successful.
    pub(crate) fn end_try(&mut self, now_us: u64, reason: Option<Reason>) {
        if let Some(last) = self.open() {
            last.took_us = Some(now_us.saturating_sub(last.begun_us));
            last.reason = reason;
        }
    }

    /// The last try, unless it is over.
    fn open(&mut self) -> Option<&mut TryRecord> {
        self.record.tries.last_mut().filter(|last| last.took_us.is_none())
    }
}

/// Takes the client's context out of a head, and puts ours in. No `Connection` removes it.
fn replace(request: &mut Request, parent: &[u8], state: &str) {
    let Request { head, bytes, .. } = request;
    head.fields.retain(|field| {
        let name = field.name.get(bytes);
        !name.eq_ignore_ascii_case(PARENT) && !name.eq_ignore_ascii_case(STATE)
    });
    let mut add = |name: &[u8], value: &[u8]| {
        let (name, value) = (append(bytes, name), append(bytes, value));
        // No table of HPACK should hold it, because no other request has the same.
        head.fields.push(Field { id: FieldId::Identity, name, value, never_indexed: true });
    };
    add(PARENT, parent);
    if !state.is_empty() {
        add(STATE, state.as_bytes());
    }
}

/// The beginning of a text from the network.
fn text(bytes: &[u8], bytes_max: usize) -> String {
    String::from_utf8_lossy(bytes.get(..bytes_max).unwrap_or(bytes)).into_owned()
}

impl Worker {
    /// Hands over what was recorded of an exchange that has ended.
    pub(crate) fn finish_trace(&self, listener: &ListenerView, exchange: &mut Exchange) {
        let Some(trace) = exchange.take_trace() else { return };
        let Trace { mut record, .. } = *trace;
        let (now_us, now_unix_us) = (clock::now_us(), clock::unix_us());
        describe(&mut record, listener, exchange);
        let begun_us = exchange.record.begun_us().unwrap_or(now_us);
        record.took_us = now_us.saturating_sub(begun_us);
        record.begun_unix_us = now_unix_us.saturating_sub(record.took_us);
        for one in &mut record.tries {
            if one.took_us.is_none() {
                one.took_us = Some(now_us.saturating_sub(one.begun_us));
                one.grpc_status = record.grpc_status.filter(|_| one.status.is_some());
            }
            one.begun_us = one.begun_us.saturating_sub(begun_us);
        }
        self.with_traces(|traces| traces.push(record));
    }
}

/// Copies what the spans say of a request.
fn describe(out: &mut TraceRecord, listener: &ListenerView, exchange: &Exchange) {
    let (record, Request { head, bytes, .. }) = (&exchange.record, &exchange.request);
    let get = |span: Span| span.get(bytes);
    let target = get(head.path);
    let (path, query) = split(target);
    out.method = text(get(head.method_name), TEXT_BYTES_MAX);
    out.path = text(path, PATH_BYTES_MAX);
    if listener.tracing.as_ref().is_some_and(|rules| rules.query) {
        out.query = text(query, PATH_BYTES_MAX);
    }
    out.host = text(get(head.authority), TEXT_BYTES_MAX);
    out.version = match head.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    let agent = head.fields.iter().find(|field| field.name.get(bytes).eq_ignore_ascii_case(b"user-agent"));
    out.user_agent = agent.map_or_else(String::new, |field| text(get(field.value), TEXT_BYTES_MAX));
    out.request_id = record.request_id.as_deref().unwrap_or_default().to_owned();
    out.listener.clone_from(&listener.plan.policy.name);
    match (&record.detached, record.route) {
        (Some(detached), _) => out.route = detached.route.as_ref().map_or_else(String::new, |(name, _)| name.clone()),
        (None, Some(number)) => {
            if let Some(route) = listener.plan.routes().get(number) {
                out.route.clone_from(&route.name);
                out.route_path = match &route.path {
                    PathMatcher::Prefix(path) | PathMatcher::Exact(path) => path.clone(),
                    PathMatcher::Regex(regex) => regex.as_str().to_owned(),
                };
            }
        }
        (None, None) => {}
    }
    if let Some(cluster) = &record.cluster {
        out.cluster.clone_from(&cluster.plan.policy.name);
    }
    out.status = record.status.unwrap_or_default();
    out.grpc_status = exchange.call_status().map(|status| status as u8);
    out.reason = record.reason;
    out.upstream_us = record.upstream_us;
    out.added_us = record.upstream_us.map(|_| record.added_us);
    out.attempts = record.attempts;
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use model::{ClusterId, Otlp, OtlpProtocol};
    use telemetry::Registry;
    use wire::message::Body;

    use super::*;
    use crate::exchange::transfer::{Framing, Head};
    use crate::http::headers::Out;
    use crate::worker::connection_balance::Workers;
    use crate::worker::snapshot::fixture;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn rules(sampling: f64, trust_client_sampling: bool) -> Tracing {
        let otlp = Otlp {
            to: ClusterId(0),
            protocol: OtlpProtocol::Grpc,
            host: None,
            headers: Vec::new(),
            gzip: false,
            service: "a".to_owned(),
            attributes: Vec::new(),
            timeout: Duration::from_secs(1),
        };
        Tracing { otlp: Arc::new(otlp), sampling, trust_client_sampling, query: false }
    }

    fn request(lines: &str) -> Request {
        let text = format!("GET /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let head = crate::http::headers::testing::request(&text);
        Request { head, bytes: text.into_bytes(), ..Request::default() }
    }

    #[test]
    fn routes_that_say_otherwise() {
        let usual = RouteTracing { enabled: true, sampling: None, continues: true, span_name: Vec::new() };
        let parent = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=b\r\n");
        // What is written, and whether the trace is recorded and is the one of the client.
        let check = |share: f64, route: RouteTracing, lines: &str, expect: (usize, bool, bool)| {
            let (mut request, route) = (request(lines), Arc::new(route));
            let trace = Trace::begin((&rules(share, true), Some(&route)), &mut request, true, &Ids::default());
            let written = values(&request, PARENT);
            let is_clients = written.iter().any(|value| value.contains(TRACE));
            assert_eq!((written.len(), trace.is_some(), is_clients), expect, "{route:?} {lines}");
            if !route.continues {
                assert_eq!(values(&request, STATE), [""; 0], "it belongs to the trace of the client");
                assert!(trace.is_none_or(|trace| trace.record.parent_id.is_none()));
            }
        };
        check(0.0, usual.clone(), &parent, (1, true, true));
        let off = RouteTracing { enabled: false, ..usual.clone() };
        check(1.0, off.clone(), &parent, (1, false, true));
        check(1.0, off, "", (0, false, false));
        let anew = RouteTracing { continues: false, ..usual.clone() };
        check(1.0, anew.clone(), &parent, (1, true, false));
        check(0.0, anew, &parent, (1, false, false));
        let often = RouteTracing { sampling: Some(1.0), ..usual.clone() };
        check(0.0, often, "", (1, true, false));
        let never = RouteTracing { sampling: Some(0.0), ..usual };
        check(1.0, never.clone(), "", (1, false, false));
        // The decision of a trusted sender counts all the same.
        check(1.0, never, &parent, (1, true, true));
    }

    /// The values of a field.
    fn values(request: &Request, name: &[u8]) -> Vec<String> {
        let fields =
            request.head.fields.iter().filter(|field| field.name.get(&request.bytes).eq_ignore_ascii_case(name));
        fields.map(|field| String::from_utf8(field.value.get(&request.bytes).to_vec()).unwrap()).collect()
    }

    #[test]
    fn who_decides() {
        let ids = Ids::default();
        // The flags that were received, whether of a trusted proxy, whether all are trusted, the share; then whether it is recorded, and the
        // flags that are sent on, `None` if nothing changes.
        let check = |received: Option<u8>, is_trusted, trusts_all, share, is_recorded, sent: Option<u8>| {
            let line =
                received.map_or_else(String::new, |flags| format!("TraceParent: 00-{TRACE}-{SPAN}-{flags:02x}\r\n"));
            let mut request = request(&format!("{line}tracestate: a=1\r\nTracestate: b=2\r\n"));
            let trace = Trace::begin((&rules(share, trusts_all), None), &mut request, is_trusted, &ids);
            let shown = format!("{received:?} {is_trusted} {trusts_all} {share}");
            assert_eq!(trace.is_some(), is_recorded, "{shown}");
            let (parents, states) = (values(&request, PARENT), values(&request, STATE));
            let Some(sent) = sent else {
                assert_eq!((parents.len(), states), (1, vec!["a=1".to_owned(), "b=2".to_owned()]), "{shown}");
                return assert!(parents[0].contains(SPAN), "{shown}");
            };
            let [parent] = parents.as_slice() else { panic!("{shown}: {parents:?}") };
            assert!(parent.ends_with(&format!("-{sent:02x}")) && !parent.contains(SPAN), "{shown}: {parent}");
            assert_eq!(parent.contains(TRACE), received.is_some(), "{shown}: {parent}");
            // The state belongs to the trace that is continued.
            let expect: &[&str] = if received.is_some() { &["a=1,b=2"] } else { &[] };
            assert_eq!(states, expect, "{shown}");
            let parent_id = trace.and_then(|trace| trace.record.parent_id);
            assert_eq!(parent_id.is_some(), is_recorded && received.is_some(), "{shown}");
        };
        check(None, false, false, 1.0, true, Some(3));
        check(None, true, true, 0.0, false, Some(2));
        // A stranger's decision does not count.
        check(Some(1), false, false, 0.0, false, Some(0));
        check(Some(0), false, false, 1.0, true, Some(1));
        check(Some(0), false, false, 0.0, false, None);
        // That of a trusted sender does.
        check(Some(1), true, false, 0.0, true, Some(1));
        check(Some(3), false, true, 0.0, true, Some(3));
        check(Some(2), true, false, 1.0, false, None);
    }

    #[test]
    fn what_is_not_valid_begins_a_trace() {
        let lines = format!("traceparent: 00-{TRACE}-{SPAN}-01\r\n");
        let mut request = request(&format!("{lines}{lines}Connection: traceparent\r\ntracestate: a=1\r\n"));
        let trace = Trace::begin((&rules(1.0, true), None), &mut request, true, &Ids::default()).unwrap();
        assert_eq!((trace.record.parent_id, values(&request, STATE)), (None, Vec::new()));
        assert!(!values(&request, PARENT)[0].contains(TRACE));
        // No Connection removes it.
        let id = request.head.fields.iter().find(|field| field.name.get(&request.bytes) == PARENT).unwrap().id;
        assert_eq!(id, FieldId::Identity);
    }

    #[test]
    fn each_try_has_its_own_span() {
        let worker = Rc::new(Worker::new(0, Arc::new(Workers::new(Vec::new())), Arc::new(Registry::default())));
        let view = worker.view_of(&fixture::compiled(vec![fixture::http("web", 80)], &[1]), "web");
        let (cluster, ids) = (&view.clusters[0], Ids::default());
        for framing in [Framing::H1(Body::None), Framing::H2(Body::None)] {
            let mut request = request("");
            let mut trace = Trace::begin((&rules(1.0, false), None), &mut request, false, &ids).unwrap();
            let (mut upload, parent) = (Transfer::default(), values(&request, PARENT).remove(0));
            match upload.start(Framing::H1(Body::None), framing, None) {
                Head::H1(out) => out.field(PARENT, parent.as_bytes(), true),
                Head::H2(out) => out.field(PARENT, parent.as_bytes(), true),
            }
            let mut sent = vec![parent.as_bytes()[36..52].to_vec()];
            for number in 0..TRIES_MAX + 2 {
                trace.begin_try(cluster, ([127, 0, 0, 1], 1).into(), &mut upload, &ids, 10);
                let head = match upload.written_head() {
                    Head::H1(out) => String::from_utf8(out.clone()).unwrap(),
                    Head::H2(list) => format!("traceparent: {}", list.find(PARENT).unwrap()),
                };
                let value = head.trim().strip_prefix("traceparent: ").unwrap();
                assert_eq!(value[..36], parent[..36]);
                assert_eq!(value[52..], parent[52..]);
                let id = value.as_bytes()[36..52].to_vec();
                assert!(!sent.contains(&id));
                let last = trace.record.tries.last().unwrap();
                assert_eq!(format!("{:016x}", u64::from_be_bytes(last.span_id)).into_bytes(), id);
                assert_eq!(last.number as usize, number);
                sent.push(id);
                trace.end_try(20, Some(Reason::UpstreamReset));
                // A try that is over stays as it is.
                trace.handle_status(500);
            }
            let tries = &trace.record.tries;
            assert_eq!((tries.len(), trace.record.attempts as usize), (TRIES_MAX, TRIES_MAX + 2));
            assert!(tries.iter().all(|one| one.took_us == Some(10) && one.status.is_none()));
        }
    }

    #[test]
    fn shares_and_ids() {
        let ids = Ids::default();
        assert!((0..1000).all(|_| ids.is_in(1.0) && !ids.is_in(0.0)));
        let half = (0..10_000).filter(|_| ids.is_in(0.5)).count();
        assert!((4_000..6_000).contains(&half), "{half}");
        let all: std::collections::HashSet<[u8; 8]> = (0..1000).map(|_| ids.id()).collect();
        assert_eq!(all.len(), 1000);
    }
}
