//! Counts and logs an exchange or a TCP connection that has ended.

use std::net::SocketAddr;

use net::clock;
use telemetry::{Exemplar, HttpRecord, Reason, ReasonGroup, Record, RouteCounters};
use wire::message::{Span, Version};

use crate::exchange::record::AccessRecord;
use crate::exchange::{ConnectionInfo, Exchange, Request};
use crate::grpc::{Ongoing, Status};
use crate::tls::Secured;
use crate::worker::{ListenerView, Worker, extra};

/// A line of the access log, as the logger takes it.
fn line<'r>(
    record: &'r AccessRecord,
    client: SocketAddr,
    listener: &'r str,
    cluster: &'r str,
    http: Option<HttpRecord<'r>>,
    [bytes_in, bytes_out]: [u64; 2],
) -> Record<'r> {
    let now_us = clock::now_us();
    let total_us = now_us.saturating_sub(record.begun_us().unwrap_or(now_us));
    Record {
        unix_ms: clock::unix_ms().saturating_sub(total_us / 1000),
        client,
        listener,
        http,
        cluster,
        endpoint: record.endpoint.as_ref().map(|endpoint| endpoint.state.address()),
        bytes_in,
        bytes_out,
        total_us,
        attempts: record.attempts,
        reason: record.reason,
    }
}

/// Counts an exchange that has ended for its route.
fn count(counters: &RouteCounters, exchange: &Exchange) {
    let record = &exchange.record;
    // Otherwise the client was gone before it got a response.
    if let Some(status) = record.status {
        counters.responses.inc(status);
        let code = exchange.call().and_then(|call| call.status);
        let is_failed_call = status < 500 && code.is_some_and(Status::is_failure);
        if is_failed_call {
            counters.call_failures.inc();
        }
        if (status >= 500 || is_failed_call) && is_intended(record) {
            counters.intended_errors.inc();
        }
    }
    record.reasons().for_each(|reason| counters.reasons.inc(reason));
    if record.retries > 0 {
        counters.retries.add(record.retries.into());
    }
    if let Some(took_us) = record.authorized_us {
        counters.authorization.record(took_us);
    }
    if let Some(took_us) = record.limited_us {
        counters.rate_limit.record(took_us);
    }
    if let Some(upstream_us) = record.upstream_us {
        counters.added.record(record.added_us);
        counters.upstream.record(upstream_us);
        if let Some(trace_id) = exchange.recorded_trace() {
            let unix_ms = clock::unix_ms();
            counters.added_exemplars.record(Exemplar { trace_id, us: record.added_us, unix_ms });
            counters.upstream_exemplars.record(Exemplar { trace_id, us: upstream_us, unix_ms });
        }
    }
}

/// Whether an error is a response of our own that the configuration or an operator wants. A response that replaces one of an endpoint is none.
fn is_intended(record: &AccessRecord) -> bool {
    let is_no_fault = |reason: Reason| {
        reason == Reason::Draining || matches!(reason.group(), ReasonGroup::Downstream | ReasonGroup::Routing)
    };
    !record.is_of_endpoint && record.intercepted.is_none() && record.reason.is_none_or(is_no_fault)
}

impl Worker {
    /// Counts an exchange that has ended, and logs it if there is a log.
    pub(crate) fn log_http(&self, listener: &ListenerView, connection: &ConnectionInfo, exchange: &Exchange) {
        let client = connection.who.client;
        let (record, call) = (&exchange.record, exchange.call());
        let Request { head, bytes, .. } = &exchange.request;
        let counters = &listener.counters;
        counters.requests.inc();
        let (bytes_in, bytes_out) = (exchange.bytes_in(), exchange.bytes_out());
        counters.bytes_received.add(bytes_in);
        counters.bytes_sent.add(bytes_out);
        let route = match record.detached.as_deref() {
            Some(detached) => detached.route.as_ref().map(|(name, counters)| (name.as_str(), counters)),
            None => record.route.and_then(|route| {
                let name = listener.route_name(route)?;
                Some((name, listener.route_counters(self, route, name)?))
            }),
        };
        if let Some((_, counters)) = route {
            count(counters, exchange);
        }
        if let (Some(upstream_us), Some(endpoint)) = (record.upstream_us, &record.endpoint) {
            endpoint.counters.upstream.record(upstream_us);
        }
        // A response that ended without a status counts as one with an unknown status.
        let ended = |call: &Ongoing| call.status.unwrap_or(Status::Unknown);
        if let (Some(call), Some(route), Some(begun_us)) = (call, record.route, record.begun_us()) {
            let took_us = clock::now_us().saturating_sub(begun_us);
            listener.count_call(self, route, call.method.as_ref(), ended(call), record.reason.is_none(), took_us);
        }
        let is_watched = self.registry.tail().is_wanted();
        let is_logged = self.logs_requests() && !record.is_unlogged;
        if !is_logged && !is_watched {
            return;
        }
        let text = |span: Span| if record.has_head { span.get(bytes) } else { &[] };
        let http = HttpRecord {
            method: text(head.method_name),
            target: text(head.path),
            version: match head.version {
                Version::Http10 if record.has_head => "1.0",
                Version::Http2 if record.has_head => "2",
                _ => "1.1",
            },
            host: text(head.authority),
            request_id: record.request_id.as_deref().unwrap_or_default(),
            status: record.status.unwrap_or_default(),
            grpc_status: call.map(|call| ended(call) as u8),
            route: route.map_or("", |(name, _)| name),
            added_us: record.added_us,
            upstream_us: record.upstream_us,
            authorization_us: record.authorized_us,
            rate_limit_us: record.limited_us,
            intercepted: record.intercepted,
        };
        let cluster = match (&record.cluster, &record.detached) {
            (Some(cluster), _) => cluster.plan.policy.name.as_str(),
            (None, Some(detached)) => detached.cluster.as_str(),
            (None, None) => "",
        };
        let line = line(record, client, &listener.plan.policy.name, cluster, Some(http), [bytes_in, bytes_out]);
        if is_logged {
            self.with_logger(|logger| {
                logger.push(&line, |value, out| extra::write(value, listener, connection, exchange, out));
            });
        }
        if is_watched {
            self.registry.tail().push(&line);
        }
    }

    /// Logs that a client broke HTTP/2 before there was an exchange, if there is a log. As for a malformed head of HTTP/1, there is nothing of the
    /// request: what a head contains is unknown once it is malformed.
    pub(crate) fn log_h2_refusal(&self, listener: &ListenerView, connection: &ConnectionInfo, reason: Reason) {
        let is_watched = self.registry.tail().is_wanted();
        if !self.logs_requests() && !is_watched {
            return;
        }
        let client = connection.who.client;
        let mut record = AccessRecord::default();
        record.reason = Some(reason);
        let http = HttpRecord { version: "2", ..HttpRecord::default() };
        let line = line(&record, client, &listener.plan.policy.name, "", Some(http), [0, 0]);
        self.with_logger(|logger| {
            logger.push(&line, |value, out| extra::write_tcp(value, client, connection.secured.as_deref(), out));
        });
        if is_watched {
            self.registry.tail().push(&line);
        }
    }

    /// Logs a TCP connection that has ended, if there is a log.
    pub(crate) fn log_tcp(
        &self,
        listener: &str,
        cluster: &str,
        client: SocketAddr,
        secured: Option<&Secured>,
        record: &AccessRecord,
    ) {
        let is_watched = self.registry.tail().is_wanted();
        if self.logs_requests() || is_watched {
            let line = line(record, client, listener, cluster, None, [record.bytes_in, record.bytes_out]);
            self.with_logger(|logger| {
                logger.push(&line, |value, out| extra::write_tcp(value, client, secured, out));
            });
            if is_watched {
                self.registry.tail().push(&line);
            }
        }
    }
}
