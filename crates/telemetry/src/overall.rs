//! Everything that a process has counted about requests, in one sum: what a history of the whole process is made of.

use crate::groups::{ClusterCounters, EndpointCounters, ListenerCounters, ReasonTotals, RouteCounters, Summed};
use crate::groups::{ClusterTotals, EndpointTotals, ListenerTotals, RouteTotals};
use crate::histogram::Distribution;
use crate::reason::{Reason, ReasonGroup};

/// Sums over all listeners, routes, clusters and endpoints, and over all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overall {
    /// Downstream connections that are open.
    pub connections_open: u64,
    /// Requests, or TCP connections given to a cluster.
    pub requests: u64,
    /// Responses by the class of their status, from 1xx.
    pub responses: [u64; 5],
    /// What was refused, failed or closed.
    pub reasons: ReasonTotals,
    /// The time that Steelyard itself added.
    pub added: Distribution,
    /// The time until the endpoint's response head.
    pub upstream: Distribution,
    /// gRPC calls that failed as 5xx does in HTTP.
    pub call_failures: u64,
    /// Responses with a status of 500 to 599 and calls that failed, both counted above, that the configuration or an operator wants.
    pub intended_errors: u64,
    /// Requests that wait for a connection.
    pub pending: u64,
    /// Requests sent again.
    pub retries: u64,
    /// Requests that failed at an endpoint, whether or not they were sent again.
    pub endpoint_failures: u64,
}

/// Requests that failed, by who is to blame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Endpoints answered with 500 to 599, or not at all, or there were none.
    pub endpoints: u64,
    /// Steelyard itself failed, for example for lack of memory.
    pub own: u64,
    /// Clients sent what was refused, or no route wanted it.
    pub clients: u64,
}

impl Overall {
    /// Adds the counters of one listener of one worker.
    pub(crate) fn add_listener(&mut self, counters: &ListenerCounters) {
        let mut total = ListenerTotals::default();
        counters.open.add_to(&mut total.open);
        self.connections_open = self.connections_open.saturating_add(total.open);
        self.requests += counters.requests.get();
        counters.reasons.add_to(&mut self.reasons);
    }

    pub(crate) fn add_route(&mut self, counters: &RouteCounters) {
        let mut total = RouteTotals::default();
        counters.responses.add_to(&mut total.responses);
        self.responses.iter_mut().zip(total.responses.0).for_each(|(sum, count)| *sum += count);
        self.call_failures += counters.call_failures.get();
        self.intended_errors += counters.intended_errors.get();
        counters.added.add_to(&mut self.added);
        counters.upstream.add_to(&mut self.upstream);
    }

    pub(crate) fn add_cluster(&mut self, counters: &ClusterCounters) {
        let mut total = ClusterTotals::default();
        counters.pending.add_to(&mut total.pending);
        self.pending = self.pending.saturating_add(total.pending);
        self.retries += counters.retries.get();
    }

    pub(crate) fn add_endpoint(&mut self, counters: &EndpointCounters) {
        let EndpointCounters { unreachable, errors, resets, timeouts, .. } = counters;
        let total = EndpointTotals {
            unreachable: unreachable.get(),
            errors: errors.get(),
            resets: resets.get(),
            timeouts: timeouts.get(),
            ..EndpointTotals::default()
        };
        self.endpoint_failures += total.failures();
    }

    /// What happened since `before`. A count that is less than it was began anew: a reload has removed some of its parts.
    pub fn since(&self, before: &Self) -> Self {
        let grown = |now: u64, before: u64| now.saturating_sub(before);
        let between = |now: &Distribution, before: &Distribution| Distribution::between(before.counts(), now.counts());
        Self {
            connections_open: self.connections_open,
            requests: grown(self.requests, before.requests),
            responses: std::array::from_fn(|class| {
                grown(
                    self.responses.get(class).copied().unwrap_or_default(),
                    before.responses.get(class).copied().unwrap_or_default(),
                )
            }),
            reasons: ReasonTotals::from_fn(|reason| grown(self.reasons.of(reason), before.reasons.of(reason))),
            added: between(&self.added, &before.added),
            upstream: between(&self.upstream, &before.upstream),
            call_failures: grown(self.call_failures, before.call_failures),
            intended_errors: grown(self.intended_errors, before.intended_errors),
            pending: self.pending,
            retries: grown(self.retries, before.retries),
            endpoint_failures: grown(self.endpoint_failures, before.endpoint_failures),
        }
    }

    /// Who is to blame for what failed.
    pub fn blame(&self) -> Blame {
        let mut blame = Blame::default();
        for (reason, count) in self.reasons.counted() {
            match reason.group() {
                // Nobody fails: the process ends, an operator wants it so, a connection was silent, or no client waits for a copy.
                _ if matches!(
                    reason,
                    Reason::Draining
                        | Reason::Maintenance
                        | Reason::TunnelIdle
                        | Reason::IdleTimeout
                        | Reason::ClientEof
                        | Reason::ClientReset
                        | Reason::MirrorTooLarge
                        | Reason::MirrorFull
                        | Reason::MirrorFailed
                ) => {}
                ReasonGroup::Downstream | ReasonGroup::Routing => blame.clients += count,
                ReasonGroup::Cluster | ReasonGroup::Upstream => blame.endpoints += count,
                ReasonGroup::Internal => blame.own += count,
            }
        }
        // Those that have no reason, and that nobody wanted, come from endpoints.
        let failed = self.errors().saturating_sub(self.intended_errors);
        blame.endpoints += failed.saturating_sub(blame.endpoints + blame.own);
        blame
    }

    /// Responses with a status of 500 to 599, and failed gRPC calls.
    pub fn errors(&self) -> u64 {
        let [.., errors] = self.responses;
        errors + self.call_failures
    }
}
