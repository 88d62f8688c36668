//! The data about an exchange or a TCP connection that are kept until it ends, and are then counted and logged (`log`).

use std::rc::Rc;
use std::sync::Arc;

use telemetry::{Reason, RouteCounters};

use super::faults::{self, InjectedFault};
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::worker::{ListenerView, Worker};

/// One line of the access log, while it is collected.
#[derive(Default)]
pub(crate) struct AccessRecord {
    /// When the request's head was complete, or the connection accepted, in microseconds; `None` before that.
    begun_us: Option<u64>,
    /// How long the check of a password took, in microseconds.
    checked_us: u64,
    /// How long the client took to send a body that was collected, in microseconds.
    collected_us: u64,
    /// How long external authorization took, in microseconds; `None` if no service was asked.
    pub(crate) authorized_us: Option<u64>,
    /// How long the global rate limit took, in microseconds; `None` if no service was asked.
    pub(crate) limited_us: Option<u64>,
    /// When there was an upstream connection, in microseconds.
    connected_us: Option<u64>,
    /// A request's head was complete.
    pub(crate) has_head: bool,
    /// The id of the request, if the listener gives ids.
    pub(crate) request_id: Option<Box<str>>,
    /// The route's index in its listener.
    pub(crate) route: Option<usize>,
    /// The access log has no line for requests of the route.
    pub(crate) is_unlogged: bool,
    /// The needed parts of the snapshot, if the snapshot itself is not held for that long.
    pub(crate) detached: Option<Box<DetachedNames>>,
    pub(crate) cluster: Option<Rc<Cluster>>,
    pub(crate) endpoint: Option<Rc<Endpoint>>,
    /// The status sent to the client; `None` if there was none.
    pub(crate) status: Option<u16>,
    /// The status of a response that was replaced (`intercept_errors`); `None` if none was.
    pub(crate) intercepted: Option<u16>,
    /// The client gets the response of an endpoint, and not one of our own.
    pub(crate) is_of_endpoint: bool,
    pub(crate) attempts: u32,
    /// Those of them that were retries: not the first, and not because an endpoint could not be reached while there was another.
    pub(crate) retries: u32,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// The time that this hop added.
    pub(crate) added_us: u64,
    /// From the request's head sent to the response's head received.
    pub(crate) upstream_us: Option<u64>,
    pub(crate) reason: Option<Reason>,
    /// What else went wrong: bits of [`BESIDES`].
    besides: u8,
}

/// Reasons that do not end a request.
const BESIDES: [Reason; 4] =
    [Reason::RetryBudget, Reason::ExternalAuthFailed, Reason::RateLimitFailed, Reason::ErrorBackendFailed];

/// The data for the log and the counters of a tunnel that no longer holds its listener.
pub(crate) struct DetachedNames {
    /// The route's name and counters.
    pub(crate) route: Option<(String, Arc<RouteCounters>)>,
    /// The cluster's name.
    pub(crate) cluster: String,
}

impl AccessRecord {
    pub(crate) fn tcp(begun_us: u64) -> Self {
        Self { begun_us: Some(begun_us), ..Self::default() }
    }

    /// Records the beginning of a request. The first call counts.
    pub(crate) fn begin(&mut self, now_us: u64) {
        self.begun_us.get_or_insert(now_us);
    }

    /// Records what goes wrong without ending the request: one of [`BESIDES`].
    pub(crate) fn handle_besides(&mut self, reason: Reason) {
        let at = BESIDES.iter().position(|of| *of == reason);
        debug_assert!(at.is_some(), "{reason}");
        self.besides |= at.map_or(0, |at| 1 << at);
    }

    /// Everything that went wrong.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        let besides = BESIDES.iter().enumerate().filter(|(at, _)| self.besides & 1 << at != 0);
        self.reason.into_iter().chain(besides.map(|(_, reason)| *reason))
    }

    pub(crate) fn begun_us(&self) -> Option<u64> {
        self.begun_us
    }

    pub(crate) fn connected_us(&self) -> Option<u64> {
        self.connected_us
    }

    /// Records a try at this endpoint.
    pub(crate) fn handle_attempt(&mut self, endpoint: &Rc<Endpoint>) {
        self.attempts += u32::from(self.attempts == 0 || !faults::is_injected(InjectedFault::CountsFirstTry));
        self.endpoint = Some(endpoint.clone());
    }

    /// Records the end of the check of a password, with which the request began.
    pub(crate) fn handle_checked(&mut self, now_us: u64) {
        self.checked_us = now_us.saturating_sub(self.begun_us.unwrap_or(now_us));
    }

    /// Records that the client has sent all of a body that was collected, after this time.
    pub(crate) fn handle_collected(&mut self, took_us: u64) {
        self.collected_us = took_us;
    }

    /// Records the answer of external authorization, or its absence, after this time.
    pub(crate) fn handle_authorized(&mut self, took_us: u64) {
        self.authorized_us = Some(took_us);
    }

    /// Records the answer of the global rate limit, or its absence, after this time.
    pub(crate) fn handle_limited(&mut self, took_us: u64) {
        self.limited_us = Some(took_us);
    }

    /// Records that there is an upstream connection.
    pub(crate) fn handle_connected(&mut self, is_reused: bool, now_us: u64) {
        // The time for a new connection belongs to the network and the endpoint, not to this hop. The time for a password is long on purpose,
        // services that are asked have times of their own, and a body that is collected takes its client's.
        let asked_us = self.authorized_us.unwrap_or_default().saturating_add(self.limited_us.unwrap_or_default());
        let elsewhere_us = self.checked_us.saturating_add(self.collected_us).saturating_add(asked_us);
        let ready_us = self.begun_us.map(|begun_us| begun_us.saturating_add(elsewhere_us));
        self.connected_us = if is_reused && self.attempts == 1 { ready_us } else { Some(now_us) };
    }

    /// Releases the listener's table when a tunnel begins, because the tunnel needs nothing of it and a new table may replace it.
    pub(crate) fn leave_listener(&mut self, worker: &Worker, listener: &ListenerView) {
        let route = self.route.and_then(|route| {
            let name = listener.route_name(route)?;
            Some((name.to_owned(), listener.route_counters(worker, route, name)?.clone()))
        });
        let cluster = self.cluster.take().map_or_else(String::new, |cluster| cluster.plan.policy.name.clone());
        self.detached = Some(Box::new(DetachedNames { route, cluster }));
    }

    /// Splits the time into this hop's part and the endpoint's, when the response's head is on its way. `sent_us`: when the request's head
    /// was sent; `responded_us`: when the response's was.
    ///
    /// This hop's part is from the arrival of the request's head until it is sent, without the time to make a connection, and from the
    /// arrival of the response's head until it is sent.
    pub(crate) fn finish(&mut self, sent_us: Option<u64>, answered_us: u64, responded_us: Option<u64>) {
        let begun_us = self.begun_us.unwrap_or(answered_us);
        let connected_us = self.connected_us.unwrap_or(begun_us);
        // A request that was answered before all of it was sent has waited for its endpoint since it had a connection.
        let sent_us = sent_us.map_or(connected_us, |sent_us| sent_us.max(connected_us));
        let request_us = sent_us.saturating_sub(connected_us.max(begun_us));
        self.added_us = request_us + responded_us.map_or(0, |us| us.saturating_sub(answered_us));
        self.upstream_us = Some(answered_us.saturating_sub(sent_us));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_answers_early_is_what_was_waited_for() {
        let check = |sent_us, expect| {
            let mut record = AccessRecord::default();
            record.begin(1_000);
            record.handle_connected(false, 2_000);
            record.finish(sent_us, 9_000, Some(9_100));
            assert_eq!((record.added_us, record.upstream_us), expect, "sent at {sent_us:?}");
        };
        check(Some(2_300), (400, Some(6_700)));
        // The head was not sent, or not all of the body that goes with it.
        check(None, (100, Some(7_000)));
    }
}
