//! What is kept of an exchange or a TCP connection until it ends, and then counted and logged.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use net::clock;
use telemetry::{HttpRecord, Reason, Record, RouteCounters};
use wire::message::{RequestHead, Version};

use crate::cluster::{Cluster, Endpoint};
use crate::grpc::{Ongoing, Status};
use crate::worker::{ListenerView, Worker};

/// One line of the access log in the making.
pub(crate) struct Entry {
    /// When the request's head was whole, or the connection accepted; 0: not yet.
    pub(crate) begun_us: u64,
    /// When there was an upstream connection.
    pub(crate) connected_us: u64,
    client: SocketAddr,
    /// The route's place in its listener.
    pub(crate) route: Option<usize>,
    /// What is needed of the snapshot, where that is not held for so long.
    apart: Option<Box<Apart>>,
    pub(crate) cluster: Option<Rc<Cluster>>,
    pub(crate) endpoint: Option<Rc<Endpoint>>,
    /// 0: none was sent.
    pub(crate) status: u16,
    pub(crate) attempts: u32,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// The time that this hop added.
    pub(crate) added_us: u64,
    /// From the request's head sent to the response's head received.
    pub(crate) upstream_us: Option<u64>,
    pub(crate) reason: Option<Reason>,
    /// The request is a call of gRPC.
    pub(crate) call: Option<Ongoing>,
    /// Kept only where an access log is written: the bytes they came in are gone by then.
    text: Option<Box<Text>>,
}

struct Apart {
    /// The route's name and counters.
    route: Option<(String, Arc<RouteCounters>)>,
    /// The cluster's name.
    cluster: String,
}

#[derive(Default)]
struct Text {
    method: Vec<u8>,
    target: Vec<u8>,
    host: Vec<u8>,
    version: Version,
}

impl Entry {
    pub(crate) fn http(client: SocketAddr) -> Self {
        Self {
            begun_us: 0,
            connected_us: 0,
            client,
            route: None,
            apart: None,
            cluster: None,
            endpoint: None,
            status: 0,
            attempts: 0,
            bytes_in: 0,
            bytes_out: 0,
            added_us: 0,
            upstream_us: None,
            reason: None,
            call: None,
            text: None,
        }
    }

    pub(crate) fn tcp(begun_us: u64, client: SocketAddr) -> Self {
        Self { begun_us, ..Self::http(client) }
    }

    /// There is a request. The first call counts.
    pub(crate) fn begin(&mut self, now_us: u64) {
        if self.begun_us == 0 {
            self.begun_us = now_us;
        }
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.begun_us != 0
    }

    /// A tunnel begins, which is no call: from now on nothing of the listener's table is needed, and another may take its place.
    pub(crate) fn leave_listener(&mut self, worker: &Worker, listener: &ListenerView) {
        self.call = None;
        let route = self.route.and_then(|route| {
            let name = listener.route_name(route)?;
            Some((name.to_owned(), listener.route_counters(worker, route, name)?.clone()))
        });
        let cluster = self.cluster.take().map_or_else(String::new, |cluster| cluster.plan.policy.name.clone());
        self.apart = Some(Box::new(Apart { route, cluster }));
    }

    pub(crate) fn remember(&mut self, head: &RequestHead, buffer: &[u8]) {
        self.text = Some(Box::new(Text {
            method: head.method_name.get(buffer).to_vec(),
            target: head.path.get(buffer).to_vec(),
            host: head.authority.get(buffer).to_vec(),
            version: head.version,
        }));
    }

    /// The response's head is on its way: what of the time was ours, and what the endpoint's.
    ///
    /// Ours is from the request's head to its leaving, without the making of a connection; and from the response's head to its leaving.
    pub(crate) fn finish(&mut self, sent_us: u64, answered_us: u64, responded_us: u64) {
        let sent_us = sent_us.max(self.connected_us);
        let connect_us = self.connected_us.saturating_sub(self.begun_us);
        let request_us = sent_us.saturating_sub(self.begun_us).saturating_sub(connect_us);
        self.added_us = request_us + responded_us.saturating_sub(answered_us);
        self.upstream_us = Some(answered_us.saturating_sub(sent_us));
    }

    fn record<'r>(&'r self, listener: &'r str, cluster: &'r str, http: Option<HttpRecord<'r>>) -> Record<'r> {
        let total_us = clock::now_us().saturating_sub(self.begun_us);
        Record {
            unix_ms: clock::unix_ms().saturating_sub(total_us / 1000),
            client: self.client,
            listener,
            http,
            cluster,
            endpoint: self.endpoint.as_ref().map(|endpoint| endpoint.state.address()),
            bytes_in: self.bytes_in,
            bytes_out: self.bytes_out,
            total_us,
            attempts: self.attempts,
            reason: self.reason,
        }
    }
}

impl Worker {
    /// Counts an exchange that has ended, and logs it where a log is kept.
    pub(crate) fn log_http(&self, listener: &ListenerView, entry: &Entry) {
        let counters = &listener.counters;
        counters.requests.inc();
        counters.bytes_received.add(entry.bytes_in);
        counters.bytes_sent.add(entry.bytes_out);
        let route = match entry.apart.as_deref() {
            Some(apart) => apart.route.as_ref().map(|(name, counters)| (name.as_str(), counters)),
            None => entry.route.and_then(|route| {
                let name = listener.route_name(route)?;
                Some((name, listener.route_counters(self, route, name)?))
            }),
        };
        if let Some((_, counters)) = route {
            // 0: nobody was there any more to be answered.
            if entry.status != 0 {
                counters.responses.inc(entry.status);
            }
            if let Some(upstream_us) = entry.upstream_us {
                counters.added.record(entry.added_us);
                counters.upstream.record(upstream_us);
            }
        }
        // A response that ended without a status was taken for one of an unknown status.
        let ended = |call: &Ongoing| call.status.unwrap_or(Status::Unknown);
        if let (Some(call), Some(route)) = (&entry.call, entry.route) {
            let took_us = clock::now_us().saturating_sub(entry.begun_us);
            listener.count_call(self, route, call.method.as_ref(), ended(call), entry.reason.is_none(), took_us);
        }
        if !self.logs_requests() {
            return;
        }
        let text = entry.text.as_deref();
        let bytes = |part: fn(&Text) -> &[u8]| text.map(part).unwrap_or_default();
        let http = HttpRecord {
            method: bytes(|text| &text.method),
            target: bytes(|text| &text.target),
            version: match text.map_or(Version::Http11, |text| text.version) {
                Version::Http10 => "1.0",
                Version::Http11 => "1.1",
                Version::Http2 => "2",
            },
            host: bytes(|text| &text.host),
            status: entry.status,
            grpc_status: entry.call.as_ref().map(|call| ended(call) as u8),
            route: route.map_or("", |(name, _)| name),
            added_us: entry.added_us,
            upstream_us: entry.upstream_us,
        };
        let cluster = match (&entry.cluster, &entry.apart) {
            (Some(cluster), _) => cluster.plan.policy.name.as_str(),
            (None, Some(apart)) => apart.cluster.as_str(),
            (None, None) => "",
        };
        let record = entry.record(&listener.plan.policy.name, cluster, Some(http));
        self.with_logger(|logger| logger.push(&record));
    }

    /// Logs a TCP connection that has ended, where a log is kept.
    pub(crate) fn log_tcp(&self, listener: &str, cluster: &str, entry: &Entry) {
        if self.logs_requests() {
            let record = entry.record(listener, cluster, None);
            self.with_logger(|logger| logger.push(&record));
        }
    }
}
