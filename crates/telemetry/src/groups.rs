//! The counters of a listener, a route, a cluster and an endpoint, separate for each worker, and their sums over the workers.

use std::array;
use std::collections::BTreeMap;

use model::Encoding;

use crate::counter::{Counter, Fullness, FullnessTotals, Gauge};
use crate::exemplar::{ExemplarTotals, Exemplars};
use crate::grpc::{CodeCounters, CodeTotals};
use crate::histogram::{Distribution, Histogram, LazyHistogram};
use crate::occurred::OccurredReasons;
use crate::reason::Reason;

/// Something that each worker counts separately and that is reported as a sum.
pub(crate) trait Summed: Default {
    /// The sum over workers.
    type Total: Default;

    /// Adds what one worker has counted.
    fn add_to(&self, total: &mut Self::Total);
}

/// Defines a struct of counters, and the struct of their sums.
///
/// `align` is in bytes: two cache lines, which x86 fetches in pairs, where there are few. There are many endpoints, and an aligned counter
/// in an [`std::sync::Arc`] takes three times as much memory as these do, because the two reference counts get two lines of their own.
/// They have a `gap` instead, in words: with the reference counts and the head of the allocation, the counters of two neighbours in memory
/// are at least a line apart.
macro_rules! group {
    ($(#[$doc:meta])* $counters:ident $totals:ident align($align:tt) gap($gap:tt) { $($(#[$field_doc:meta])* $field:ident: $kind:ty => $total:ty,)* }) => {
        $(#[$doc])*
        ///
        /// One worker's; only that worker writes to it.
        // Workers that write to the same cache line would slow each other down.
        #[repr(align($align))]
        #[derive(Debug, Default)]
        pub struct $counters {
            $($(#[$field_doc])* pub $field: $kind,)*
            _gap: [u64; $gap],
        }

        $(#[$doc])*
        ///
        /// Summed over the workers.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $totals {
            $($(#[$field_doc])* pub $field: $total,)*
        }

        impl Summed for $counters {
            type Total = $totals;

            fn add_to(&self, total: &mut $totals) {
                $(self.$field.add_to(&mut total.$field);)*
            }
        }
    };
}

group! {
    /// The counters of a listener.
    ListenerCounters ListenerTotals align(128) gap(0) {
        /// Accepted downstream connections, including those that were refused because the listener was full.
        connections: Counter => u64,
        /// Downstream connections that are open.
        open: Gauge => u64,
        /// Failed attempts to accept a downstream connection, for lack of descriptors or memory; at most ten a second.
        accept_failures: Counter => u64,
        /// Requests with a complete head, or TCP connections given to a cluster.
        requests: Counter => u64,
        /// Bytes from clients.
        bytes_received: Counter => u64,
        /// Bytes to clients.
        bytes_sent: Counter => u64,
        /// Waits of connections for the bandwidth of their client.
        bandwidth_waits: Counter => u64,
        /// What was refused, failed or closed.
        reasons: ReasonCounters => ReasonTotals,
    }
}

group! {
    /// The counters of a route.
    RouteCounters RouteTotals align(128) gap(0) {
        /// Final responses to clients by the class of their status, including those that Steelyard made itself.
        responses: ResponseCounters => ResponseTotals,
        /// The time that Steelyard itself added to a request, in microseconds.
        added: Histogram => Distribution,
        /// The time from sending the end of the request's head upstream to the end of the response's head, in microseconds.
        upstream: Histogram => Distribution,
        /// Requests with traces, for `added`.
        added_exemplars: Exemplars => ExemplarTotals,
        /// The same for `upstream`.
        upstream_exemplars: Exemplars => ExemplarTotals,
        /// The time that external authorization took, in microseconds.
        authorization: LazyHistogram => Distribution,
        /// The time that the global rate limit took, in microseconds.
        rate_limit: LazyHistogram => Distribution,
        /// Requests that were sent again.
        retries: Counter => u64,
        /// gRPC calls that failed as 5xx does in HTTP, with another status of HTTP.
        call_failures: Counter => u64,
        /// Responses with a status of 500 to 599 and failed gRPC calls that are no fault: `respond`, maintenance, the status of a limit, the drain.
        intended_errors: Counter => u64,
        /// Requests that were refused, failed or cut short.
        reasons: OccurredReasons => BTreeMap<Reason, u64>,
    }
}

group! {
    /// The counters of the compression of a route's responses.
    CompressionCounters CompressionTotals align(128) gap(0) {
        /// Responses that were compressed, by [`model::Encoding`].
        responses: EncodingCounters => EncodingTotals,
        /// Responses that were not compressed although their client accepts it, because too many were at that moment, or memory was short.
        busy: Counter => u64,
        /// Bytes of bodies before compression.
        bytes_in: Counter => u64,
        /// Bytes of bodies after compression.
        bytes_out: Counter => u64,
        /// CPU time, in nanoseconds.
        cpu_ns: Counter => u64,
    }
}

group! {
    /// The counters of the bodies of a route's requests that were collected or decompressed.
    BodyCounters BodyTotals align(128) gap(0) {
        /// Requests whose whole body was collected before an endpoint got it.
        buffered: Counter => u64,
        /// Bytes of these bodies.
        buffered_bytes: Counter => u64,
        /// Requests whose body was decompressed, by [`model::Encoding`].
        decompressed: EncodingCounters => EncodingTotals,
        /// Bytes of these bodies before decompression.
        bytes_in: Counter => u64,
        /// Bytes of these bodies after decompression.
        bytes_out: Counter => u64,
        /// CPU time of decompression, in nanoseconds.
        cpu_ns: Counter => u64,
    }
}

group! {
    /// The counters of a gRPC method.
    MethodCounters MethodTotals align(128) gap(0) {
        /// Calls that ended, by status code, including those that Steelyard ended itself.
        codes: CodeCounters => CodeTotals,
        /// The time from the end of the request's head to the end of the response, in microseconds. For a stream, this is its whole
        /// duration.
        duration: Histogram => Distribution,
    }
}

group! {
    /// The counters of a cluster.
    ClusterCounters ClusterTotals align(128) gap(0) {
        /// Requests, or TCP connections, given to it; retries do not count.
        requests: Counter => u64,
        /// Requests that were sent again.
        retries: Counter => u64,
        /// Endpoints that could not be reached, if another endpoint was used at once and no retry was charged.
        redispatches: Counter => u64,
        /// Attempted upstream connections.
        connects: Counter => u64,
        /// Attempted upstream connections that failed.
        connect_failures: Counter => u64,
        /// Requests sent on a connection that had served one before.
        reused: Counter => u64,
        /// Kept connections that the endpoint had already closed when a request was sent on them.
        stale_reuse: Counter => u64,
        /// Requests that wait for a connection.
        pending: Gauge => u64,
        /// Picks made with health and ejection ignored.
        panic_picks: Counter => u64,
        /// Connections turned into tunnels, and TCP connections.
        tunnels: Counter => u64,
        /// Copies of requests that it has answered. They do not count as its requests.
        mirrored: Counter => u64,
        /// How full its retry budget was.
        retry_budget: Fullness => FullnessTotals,
    }
}

group! {
    /// The counters of an endpoint.
    EndpointCounters EndpointTotals align(8) gap(4) {
        /// Requests, or TCP connections, sent to it.
        requests: Counter => u64,
        /// Requests that failed because the connection could not be made.
        unreachable: Counter => u64,
        /// Requests that it answered with 500 to 599.
        errors: Counter => u64,
        /// Requests that failed because it closed or reset the connection before the end of its response, or because its response was
        /// malformed.
        resets: Counter => u64,
        /// Requests that failed because it was silent for too long.
        timeouts: Counter => u64,
        /// How often outlier ejection removed it.
        ejections: Counter => u64,
        /// From the end of a request's head going there to the end of its response's head, microseconds.
        upstream: LazyHistogram => Distribution,
    }
}

/// A counter for each [`Reason`].
#[derive(Debug)]
pub struct ReasonCounters([Counter; Reason::COUNT]);

/// A sum for each [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasonTotals([u64; Reason::COUNT]);

/// Counters of final responses by the class of their status.
#[derive(Debug, Default)]
pub struct ResponseCounters([Counter; CLASSES]);

/// Sums of final responses by the class of their status: 1xx (only 101 is final) to 5xx.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseTotals(pub [u64; CLASSES]);

const CLASSES: usize = 5;

/// A counter for each [`Encoding`].
#[derive(Debug, Default)]
pub struct EncodingCounters([Counter; Encoding::ALL.len()]);

/// A sum for each [`Encoding`], in the order of [`Encoding::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodingTotals(pub [u64; Encoding::ALL.len()]);

impl EncodingCounters {
    /// Counts one more.
    pub fn inc(&self, encoding: Encoding) {
        // There is one for each.
        self.0[encoding as usize].inc();
    }
}

impl Summed for EncodingCounters {
    type Total = EncodingTotals;

    fn add_to(&self, total: &mut EncodingTotals) {
        self.0.iter().zip(&mut total.0).for_each(|(counter, total)| counter.add_to(total));
    }
}

impl ReasonCounters {
    /// Counts one more.
    pub fn inc(&self, reason: Reason) {
        // Every index is below COUNT.
        self.0[reason.index()].inc();
    }
}

impl ReasonCounters {
    /// By [`Reason::index`].
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.0.iter()
    }
}

impl EndpointTotals {
    /// All failures: not connected, reset, timed out, malformed, or answered with 500 to 599.
    pub fn failures(&self) -> u64 {
        self.unreachable + self.errors + self.resets + self.timeouts
    }
}

impl ReasonTotals {
    /// Sums from another source.
    pub(crate) fn from_fn(sum: impl Fn(Reason) -> u64) -> Self {
        let mut totals = Self::default();
        for reason in Reason::ALL {
            totals.0[reason.index()] = sum(*reason);
        }
        totals
    }

    /// The count of this reason.
    pub fn of(&self, reason: Reason) -> u64 {
        self.0[reason.index()]
    }

    /// Each reason that was counted at least once, and its count.
    pub fn counted(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|reason| (*reason, self.of(*reason))).filter(|(_, count)| *count > 0)
    }
}

impl ResponseCounters {
    /// Counts a response with this status. An endpoint may use a status outside 100 to 599, which counts as 5xx, because RFC 9110 section
    /// 15 requires clients to treat it so.
    pub fn inc(&self, status: u16) {
        let class = usize::from(status / 100).wrapping_sub(1).min(CLASSES - 1);
        self.0[class].inc();
    }
}

impl ResponseCounters {
    /// By class, from 1xx.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Counter> {
        self.0.iter()
    }
}

impl ResponseTotals {
    /// All responses.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl Default for ReasonCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

impl Default for ReasonTotals {
    fn default() -> Self {
        Self([0; Reason::COUNT])
    }
}

impl Summed for Counter {
    type Total = u64;

    fn add_to(&self, total: &mut u64) {
        *total = total.wrapping_add(self.get());
    }
}

impl Summed for Gauge {
    type Total = u64;

    fn add_to(&self, total: &mut u64) {
        *total = total.saturating_add(self.get());
    }
}

impl Summed for Fullness {
    type Total = FullnessTotals;

    fn add_to(&self, total: &mut FullnessTotals) {
        total.push(self);
    }
}

impl Summed for Histogram {
    type Total = Distribution;

    fn add_to(&self, total: &mut Distribution) {
        Histogram::add_to(self, total);
    }
}

impl Summed for LazyHistogram {
    type Total = Distribution;

    fn add_to(&self, total: &mut Distribution) {
        LazyHistogram::add_to(self, total);
    }
}

impl Summed for ReasonCounters {
    type Total = ReasonTotals;

    fn add_to(&self, total: &mut ReasonTotals) {
        self.0.iter().zip(&mut total.0).for_each(|(counter, total)| counter.add_to(total));
    }
}

impl Summed for CodeCounters {
    type Total = CodeTotals;

    fn add_to(&self, total: &mut CodeTotals) {
        CodeCounters::add_to(self, total);
    }
}

impl Summed for ResponseCounters {
    type Total = ResponseTotals;

    fn add_to(&self, total: &mut ResponseTotals) {
        self.0.iter().zip(&mut total.0).for_each(|(counter, total)| counter.add_to(total));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_by_class() {
        let check = |status, expect: [u64; CLASSES]| {
            let counters = ResponseCounters::default();
            counters.inc(status);
            let mut totals = ResponseTotals::default();
            counters.add_to(&mut totals);
            assert_eq!(totals.0, expect, "{status}");
        };
        check(101, [1, 0, 0, 0, 0]);
        check(200, [0, 1, 0, 0, 0]);
        check(304, [0, 0, 1, 0, 0]);
        check(499, [0, 0, 0, 1, 0]);
        check(503, [0, 0, 0, 0, 1]);
        check(999, [0, 0, 0, 0, 1]);
        check(0, [0, 0, 0, 0, 1]);
    }

    #[test]
    fn reasons_by_name() {
        let counters = ReasonCounters::default();
        Reason::ALL.iter().for_each(|reason| counters.inc(*reason));
        counters.inc(Reason::NoRoute);
        let mut totals = ReasonTotals::default();
        counters.add_to(&mut totals);
        assert_eq!(totals.of(Reason::NoRoute), 2);
        assert_eq!(totals.of(Reason::TunnelIdle), 1);
        assert_eq!(totals.counted().count(), Reason::ALL.len());
    }

    #[test]
    fn groups_are_summed_field_by_field() {
        let (one, other) = (ClusterCounters::default(), ClusterCounters::default());
        one.requests.add(3);
        other.requests.add(4);
        other.pending.inc();
        let mut total = ClusterTotals::default();
        one.add_to(&mut total);
        other.add_to(&mut total);
        assert_eq!(total, ClusterTotals { requests: 7, pending: 1, ..ClusterTotals::default() });
    }
}
