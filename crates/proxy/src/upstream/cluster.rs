//! One worker's view of a cluster: it chooses the endpoint for the next request, and decides whether the request may have one at all.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

use balance::{Backoff, EndpointState, EndpointStatus, Outcome, Picker, Proof, RetryBudget};
use model::HashKey;
use net::clock;
use net::timer::Timer;
use telemetry::{ClusterCounters, EndpointCounters, Gauge, Reason};
use tokio::sync::Notify;
use wire::message::RequestHead;

use crate::deadline::Deadline;
use crate::downstream::watch::Watched;
use crate::error::Error;
use crate::policy::via;
use crate::upstream::closing::Closing;
use crate::upstream::pool::Pool;
use crate::worker::snapshot::ClusterPlan;

/// The seed of every picker in the process. All workers must use the same one, or their round robins would not add up. Any number will do.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// A cluster as one worker uses it, in one snapshot.
pub(crate) struct Cluster {
    pub(crate) plan: Arc<ClusterPlan>,
    pub(crate) endpoints: Vec<Rc<Endpoint>>,
    pub(crate) counters: Arc<ClusterCounters>,
    picker: RefCell<Picker>,
    /// The same object in all snapshots.
    pub(crate) budget: Rc<RefCell<RetryBudget>>,
    backoff: RefCell<Backoff>,
}

/// An endpoint as one worker uses it.
pub(crate) struct Endpoint {
    /// Its index in the cluster's state.
    pub(crate) index: usize,
    pub(crate) state: Arc<EndpointState>,
    /// The name from which it was resolved.
    pub(crate) host: Option<Box<str>>,
    pub(crate) pool: Pool,
    /// Set if its long connections are closed when it becomes unhealthy.
    pub(crate) closing: Option<Closing>,
    pub(crate) counters: Arc<EndpointCounters>,
}

/// Requests of all workers that wait for a connection.
#[derive(Default)]
pub(crate) struct Breaker {
    pending: AtomicUsize,
    /// Leases returned while something waited.
    releases: AtomicU64,
    freed: Notify,
}

/// What a request or a connection needs from its cluster.
#[derive(Clone, Copy)]
pub(crate) struct Demand<'d> {
    /// The hash key, if the choice uses one.
    pub(crate) key: u64,
    /// Endpoints that must not be chosen, because they have failed it.
    pub(crate) tried: &'d [usize],
    /// An ejected endpoint is acceptable if there is no other. It has failed and may fail again, which is no worse than giving up.
    pub(crate) takes_ejected: bool,
    /// The end of its time.
    pub(crate) deadline: Deadline,
}

/// The right to use one connection of an endpoint.
pub(crate) struct Lease {
    pub(crate) endpoint: Rc<Endpoint>,
    /// The endpoint was ejected when it was chosen, because there was no other or in panic.
    pub(crate) was_ejected: bool,
    /// The time when it was granted, after any wait, in milliseconds.
    pub(crate) at_ms: u64,
    /// It does not hold the cluster's plan: a lease may last for days, and would keep every endpoint of its snapshot.
    breaker: Arc<Breaker>,
}

impl Cluster {
    pub(crate) fn new(
        plan: Arc<ClusterPlan>,
        endpoints: Vec<Rc<Endpoint>>,
        counters: Arc<ClusterCounters>,
        worker: usize,
        workers: usize,
        budget: Rc<RefCell<RetryBudget>>,
    ) -> Self {
        let picker = Picker::new(&plan.policy.algorithm, worker, workers, SEED);
        // A different seed for each worker and each process, so that their waits differ.
        let seed = if cfg!(test) { 0 } else { clock::now_us() };
        let backoff = RefCell::new(Backoff::new(seed ^ worker as u64));
        Self { plan, endpoints, counters, picker: RefCell::new(picker), budget, backoff }
    }

    /// Closes the long connections to endpoints whose probes have begun to fail, if the cluster wants that.
    pub(crate) fn close_unhealthy(&self) {
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let Some(closing) = &endpoint.closing else { continue };
            if closing.note(self.plan.state.probes_fail(index)) {
                let (cluster, endpoint) = (&self.plan.policy.name, endpoint.state.address());
                tracing::info!(cluster, %endpoint, "closing its TCP connections and tunnels: it is unhealthy");
            }
        }
    }

    /// Whether a retry is within the budget of this share of the requests. If so, it is counted.
    pub(crate) fn try_retry(&self, now_ms: u64, share: f64) -> bool {
        let mut budget = self.budget.borrow_mut();
        let is_within = budget.try_retry(now_ms, share);
        self.counters.retry_budget.set(now_ms, budget.used(share));
        is_within
    }

    /// What to hash for this cluster's choice; `None` for nothing.
    pub(crate) fn hash_key(&self) -> Option<&HashKey> {
        match &self.plan.policy.algorithm {
            model::Algorithm::Maglev(key) | model::Algorithm::MaglevSubset { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Chooses an endpoint that has room for a connection.
    ///
    /// # Errors
    /// There is none, or the caller must wait for one: [`Cluster::wait_for_lease`].
    pub(crate) fn lease(&self, now_ms: u64, demand: &Demand<'_>) -> Result<Lease, Full> {
        // Requests that already wait come first.
        if self.has_queue() { Err(Full::NoRoom) } else { self.try_lease(now_ms, demand) }
    }

    /// The same, but waits if it must: see [`Cluster::wait_for_lease`].
    ///
    /// # Errors
    /// Those of [`Cluster::wait_for_lease`].
    pub(crate) async fn lease_or_wait(
        &self,
        now_ms: u64,
        demand: &Demand<'_>,
        client: Watched<'_>,
        timer: &Timer,
    ) -> Result<Lease, Error> {
        match self.lease(now_ms, demand) {
            Ok(lease) => Ok(lease),
            Err(Full::NoEndpoint) => Err(Error::internal(self.nobody())),
            Err(Full::NoRoom) => Box::pin(self.wait_for_lease(now_ms, demand, client, timer)).await,
        }
    }

    /// A lease that is available without a wait, for work that no client waits for.
    ///
    /// # Errors
    /// [`Reason::NoEndpoint`], [`Reason::ClusterMissing`], [`Reason::PendingFull`].
    pub(crate) fn lease_at_once(&self, now_ms: u64, key: u64) -> Result<Lease, Error> {
        if self.has_queue() {
            return Err(Error::internal(Reason::PendingFull));
        }
        let demand = Demand { key, tried: &[], takes_ejected: false, deadline: Deadline::Never };
        self.try_lease(now_ms, &demand).map_err(|full| match full {
            Full::NoEndpoint => Error::internal(self.nobody()),
            Full::NoRoom => Error::internal(Reason::PendingFull),
        })
    }

    /// The same for one endpoint, for a client that returns to it. An endpoint that drains, or has the weight 0, takes no new clients but
    /// still serves its own.
    pub(crate) fn lease_of(&self, index: usize, now_ms: u64) -> Option<Lease> {
        let state = &self.plan.state;
        let is_usable = match state.status(index, now_ms)? {
            EndpointStatus::Healthy | EndpointStatus::Draining => true,
            EndpointStatus::Unhealthy | EndpointStatus::Ejected { .. } => state.panicking(now_ms),
        };
        if is_usable && !self.has_queue() { self.take(index, now_ms) } else { None }
    }

    /// Whether there is an endpoint that is not in `tried` and takes new work; in panic, this includes unhealthy and ejected ones.
    pub(crate) fn has_other(&self, tried: &[usize], takes_ejected: bool, now_ms: u64) -> bool {
        let state = &self.plan.state;
        let is_there = |takes_work: fn(EndpointStatus) -> bool| {
            (0..self.endpoints.len()).any(|index| {
                let is_new = state.weight(index) > 0 && !tried.contains(&index);
                is_new && state.status(index, now_ms).is_some_and(takes_work)
            })
        };
        is_there(|status| status == EndpointStatus::Healthy)
            || state.panicking(now_ms) && is_there(|status| status != EndpointStatus::Draining)
            || takes_ejected && state.last_resort(now_ms, |index| tried.contains(&index)).is_some()
    }

    /// How long to wait before a retry, in milliseconds. The first retry is 1.
    pub(crate) fn backoff_ms(&self, retry: u32) -> u64 {
        self.backoff.borrow_mut().wait_ms(retry)
    }

    /// The mark of requests of our own to its endpoints; `None` if the operator named these.
    pub(crate) fn mark(&self) -> Option<&str> {
        self.plan.policy.outside.as_ref().map(|outside| &*outside.mark)
    }

    /// Whether this installation has sent the request itself to a host like that of this cluster, which led back here.
    pub(crate) fn has_sent(&self, head: &RequestHead, buffer: &[u8]) -> bool {
        self.mark().is_some_and(|mark| via::is_marked(mark, head, buffer))
    }

    /// The scheme of requests to its endpoints.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.plan.policy.tls.is_some() { "https" } else { "http" }
    }

    /// Why no endpoint can be chosen.
    pub(crate) fn nobody(&self) -> Reason {
        if self.plan.policy.is_missing { Reason::ClusterMissing } else { Reason::NoEndpoint }
    }

    /// Whether other requests already wait for room.
    fn has_queue(&self) -> bool {
        self.plan.breaker.pending() > 0 && self.plan.policy.limits.connections_max.is_some()
    }

    fn try_lease(&self, now_ms: u64, demand: &Demand<'_>) -> Result<Lease, Full> {
        let Demand { key, tried, .. } = *demand;
        let mut picker = self.picker.borrow_mut();
        let state = &self.plan.state;
        let Some(pick) = picker.pick(state, now_ms, key, tried) else {
            return self.last_resort(now_ms, demand).ok_or(Full::NoEndpoint);
        };
        if pick.panicked {
            self.counters.panic_picks.inc();
        }
        if let Some(lease) = self.take(pick.index, now_ms) {
            return Ok(lease);
        }
        // The chosen endpoint is full, so any other with room will do. Another worker may take the room in between; then the next one is
        // tried.
        let is_out = |index: usize| tried.contains(&index) || self.is_full(index);
        for _ in 0..self.endpoints.len() {
            let Some(pick) = picker.pick_unless(state, now_ms, key, is_out) else { break };
            if let Some(lease) = self.take(pick.index, now_ms) {
                return Ok(lease);
            }
        }
        Err(Full::NoRoom)
    }

    /// Room at an ejected endpoint, for a request that has no other choice.
    fn last_resort(&self, now_ms: u64, demand: &Demand<'_>) -> Option<Lease> {
        if !demand.takes_ejected {
            return None;
        }
        let is_out = |index: usize| demand.tried.contains(&index) || self.is_full(index);
        self.take(self.plan.state.last_resort(now_ms, is_out)?, now_ms)
    }

    fn is_full(&self, index: usize) -> bool {
        let max = self.plan.policy.limits.connections_max.unwrap_or(usize::MAX);
        self.endpoints.get(index).is_none_or(|endpoint| endpoint.state.connections() as usize >= max)
    }

    fn take(&self, index: usize, now_ms: u64) -> Option<Lease> {
        let endpoint = self.endpoints.get(index)?;
        match self.plan.policy.limits.connections_max {
            None => endpoint.state.open_connection(),
            Some(max) if endpoint.state.try_open_connection(max) => {}
            Some(_) => return None,
        }
        endpoint.state.begin_request();
        let was_ejected = endpoint.state.is_ejected(now_ms);
        let breaker = self.plan.breaker.clone();
        Some(Lease { endpoint: endpoint.clone(), was_ejected, at_ms: now_ms, breaker })
    }

    /// Waits for room for a connection as long as `client` is there.
    ///
    /// # Errors
    /// [`Reason::NoEndpoint`], [`Reason::ClusterMissing`], [`Reason::PendingFull`], [`Reason::PendingTimeout`], [`Reason::RequestTimeout`];
    /// those of [`Error::client_io`].
    pub(crate) async fn wait_for_lease(
        &self,
        now_ms: u64,
        demand: &Demand<'_>,
        client: Watched<'_>,
        timer: &Timer,
    ) -> Result<Lease, Error> {
        let deadline = demand.deadline;
        let (breaker, limits) = (&self.plan.breaker, &self.plan.policy.limits);
        let pending = Pending::new(breaker, limits.pending_max).ok_or(Error::internal(Reason::PendingFull))?;
        let _counted = Counted::new(&self.counters.pending);
        timer.set(deadline.limit(now_ms.saturating_add(crate::millis(limits.pending_timeout))));
        tokio::select! {
            biased;
            error = client.gone() => Err(error),
            outcome = self.queue(pending.is_first, demand, timer) => outcome.map_err(|reason| match reason {
                Reason::PendingTimeout if deadline.is_over(clock::now_ms()) => Error::internal(Reason::RequestTimeout),
                reason => Error::internal(reason),
            }),
        }
    }

    /// Waits in a first-in, first-out queue.
    async fn queue(&self, is_first: bool, demand: &Demand<'_>, timer: &Timer) -> Result<Lease, Reason> {
        let breaker = &self.plan.breaker;
        let mut may_try = is_first;
        let mut passed_on = breaker.releases.load(Relaxed);
        loop {
            let notified = breaker.freed.notified();
            tokio::pin!(notified);
            // Registered before the check, so that room made in between is not missed.
            notified.as_mut().enable();
            if may_try {
                match self.try_lease(clock::now_ms(), demand) {
                    Ok(lease) => return Ok(lease),
                    Err(Full::NoEndpoint) => return Err(self.nobody()),
                    Err(Full::NoRoom) => {}
                }
                // The room may be at an endpoint that this request has already tried, so the next request must check. This happens once per
                // release; otherwise two requests that wait for the same would wake each other endlessly, or a single one itself.
                let release = breaker.releases.load(Relaxed);
                if !demand.tried.is_empty() && release != passed_on {
                    passed_on = release;
                    breaker.freed.notify_one();
                }
            }
            timer.guard(notified).await.map_err(|_| Reason::PendingTimeout)?;
            may_try = true;
        }
    }

    /// Records that an endpoint works again, if it was ejected.
    pub(crate) fn readmit(&self, endpoint: &Endpoint, now_ms: u64, proof: Proof) {
        if self.plan.state.readmit(endpoint.index, now_ms, proof) {
            let (cluster, endpoint) = (&self.plan.policy.name, endpoint.state.address());
            tracing::info!(cluster, %endpoint, ?proof, "ejection ended early: the endpoint works again");
        }
    }

    /// Records an endpoint's result.
    pub(crate) fn record(&self, endpoint: &Endpoint, now_ms: u64, outcome: Outcome) {
        match outcome {
            Outcome::Success => {}
            Outcome::ConnectFailure => endpoint.counters.unreachable.inc(),
            Outcome::Failure5xx => endpoint.counters.errors.inc(),
            Outcome::Reset => endpoint.counters.resets.inc(),
            Outcome::Timeout => endpoint.counters.timeouts.inc(),
        }
        let Some(ejection) = self.plan.state.record(endpoint.index, now_ms, outcome) else { return };
        endpoint.counters.ejections.inc();
        tracing::warn!(
            cluster = self.plan.policy.name,
            endpoint = %endpoint.state.address(),
            failures = ejection.failures,
            last = ?ejection.outcome,
            "ejected",
        );
        let replaced = ejection.in_place_of.and_then(|index| self.endpoints.get(index));
        if let Some(replaced) = replaced {
            let (cluster, endpoint) = (&self.plan.policy.name, replaced.state.address());
            tracing::info!(cluster, %endpoint, "ejection ended early: no other endpoint takes connections");
        }
    }
}

/// Why there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    /// No endpoint can be chosen.
    NoEndpoint,
    /// The endpoints that can be chosen have no room.
    NoRoom,
}

/// A request in the queue.
struct Pending<'b> {
    breaker: &'b Breaker,
    /// The queue was empty before.
    is_first: bool,
}

impl<'b> Pending<'b> {
    fn new(breaker: &'b Breaker, pending_max: usize) -> Option<Self> {
        // Before the first check for room, in the order that all threads see: see `EndpointState`.
        let before = breaker.pending.fetch_add(1, SeqCst);
        let pending = Self { breaker, is_first: before == 0 };
        (before < pending_max).then_some(pending)
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        self.breaker.pending.fetch_sub(1, SeqCst);
    }
}

/// Counts one in a gauge until it is dropped, because a wait may end when its future is dropped.
struct Counted<'g>(&'g Gauge);

impl<'g> Counted<'g> {
    fn new(gauge: &'g Gauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Breaker {
    /// Requests that wait now.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(SeqCst)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.endpoint.state.end_request();
        self.endpoint.state.close_connection();
        // After the room was made, in the order that all threads see: see `EndpointState`. Another snapshot may have a limit where this one
        // has none, so waiting requests are always woken.
        if self.breaker.pending() > 0 {
            self.breaker.releases.fetch_add(1, Relaxed);
            self.breaker.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use balance::ClusterState;
    use net::timer::Timers;

    use super::*;
    use crate::stream::Stream;

    /// Endpoints that accept one connection each.
    fn cluster(addresses: &[&str], is_missing: bool) -> Cluster {
        let mut policy = model::Cluster { is_missing, ..model::Cluster::new("c", Vec::new()) };
        policy.limits.connections_max = Some(1);
        let state = |address: &&str| (Arc::new(EndpointState::new(address.parse().unwrap())), 1);
        let states: Vec<_> = addresses.iter().map(state).collect();
        let endpoints = states.iter().enumerate().map(|(index, (state, _))| {
            let (state, pool) = (state.clone(), Pool::default());
            Rc::new(Endpoint { index, state, host: None, pool, closing: None, counters: Arc::default() })
        });
        let endpoints = endpoints.collect();
        let state = Arc::new(ClusterState::new(&policy, states));
        let plan = ClusterPlan {
            policy: policy.into(),
            state,
            breaker: Arc::default(),
            tls: None,
            is_within: false,
            sticky: None,
            hosts: HashMap::new(),
        };
        let plan = Arc::new(plan);
        Cluster::new(plan, endpoints, Arc::default(), 0, 1, Rc::new(RefCell::new(RetryBudget::new())))
    }

    fn demand(tried: &[usize], takes_ejected: bool) -> Demand<'_> {
        Demand { key: 0, tried, takes_ejected, deadline: Deadline::Never }
    }

    /// A client, and the other end of its connection.
    async fn client() -> (Stream, tokio::net::TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Stream::Plain(listener.accept().await.unwrap().0), far)
    }

    fn watched(stream: &Stream) -> Watched<'_> {
        Watched { stream, leaves_by_fin: false, owed: 0 }
    }

    #[tokio::test]
    async fn nobody_yet_is_not_nobody_ever() {
        let (client, _far) = client().await;
        let check = |is_missing, reason, status| {
            let cluster = cluster(&[], is_missing);
            let timers = Timers::default();
            let timer = Timer::new(&timers);
            let anything = demand(&[], false);
            let mut lease = Box::pin(cluster.lease_or_wait(0, &anything, watched(&client), &timer));
            let Poll::Ready(Err(error)) = lease.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("there is nothing to wait for")
            };
            assert_eq!((error.reason, crate::http::respond::status(&error)), (reason, Some(status)));
            assert_eq!(cluster.lease_at_once(0, 0).err().map(|error| error.reason), Some(reason));
        };
        check(false, Reason::NoEndpoint, 503);
        check(true, Reason::ClusterMissing, 500);
    }

    #[test]
    fn a_retry_says_how_full_the_budget_is() {
        let cluster = cluster(&["127.0.0.1:1"], false);
        let used = |now_ms| {
            let mut total = telemetry::FullnessTotals::default();
            total.push(&cluster.counters.retry_budget);
            total.fullest(now_ms, 10_000)
        };
        assert_eq!(used(1_000), 0.0);
        assert!((0..25).all(|_| cluster.try_retry(1_000, 0.2)));
        assert_eq!((used(1_000), used(11_001)), (0.25, 0.0));
        // It lets a hundred pass.
        assert_eq!((0..200).filter(|_| cluster.try_retry(2_000, 0.2)).count(), 75);
        assert_eq!(used(2_000), 1.0);
    }

    #[test]
    fn another_is_one_that_takes_work() {
        let cluster = cluster(&["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], false);
        let check = |tried: &[usize], expect| assert_eq!(cluster.has_other(tried, false, 0), expect, "{tried:?}");
        check(&[], true);
        check(&[0, 1], true);
        check(&[2, 0, 1, 0], false);
        cluster.plan.state.set_draining(2, true, 0);
        check(&[0, 1], false);
        check(&[0], true);
        // Half of the weight is usable, and the rest is not.
        cluster.plan.state.set_healthy(1, false, 0);
        check(&[0], false);
        check(&[1], true);
        // With less than that it is panic, in which all are usable except those that drain.
        cluster.plan.state.set_healthy(0, false, 0);
        check(&[0], true);
        check(&[0, 1], false);
    }

    #[test]
    fn an_ejected_endpoint_is_for_those_who_have_nowhere_else_to_go() {
        let cluster = cluster(&["127.0.0.1:1", "127.0.0.1:2"], false);
        (0..5).for_each(|_| cluster.record(&cluster.endpoints[0], 0, Outcome::ConnectFailure));
        let check = |tried: &[usize], takes_ejected, expect: Option<(usize, bool)>| {
            assert_eq!(cluster.has_other(tried, takes_ejected, 0), expect.is_some(), "{tried:?} {takes_ejected}");
            let leased = cluster.try_lease(0, &demand(tried, takes_ejected)).ok();
            assert_eq!(
                leased.map(|lease| (lease.endpoint.index, lease.was_ejected)),
                expect,
                "{tried:?} {takes_ejected}"
            );
        };
        check(&[], true, Some((1, false)));
        check(&[1], false, None);
        check(&[1], true, Some((0, true)));
        check(&[1, 0], true, None);
        cluster.readmit(&cluster.endpoints[0], 0, Proof::Connected);
        check(&[1], false, Some((0, false)));
    }

    #[tokio::test]
    async fn a_client_that_resets_its_connection_waits_no_longer() {
        use tokio::io::AsyncWriteExt;
        let cluster = cluster(&["127.0.0.1:1"], false);
        let timers = Timers::default();
        let timer = Timer::new(&timers);
        let room = cluster.take(0, 0).unwrap();
        let (client, mut far) = client().await;
        // Nothing reads what it sends while it waits.
        far.write_all(b"the body of a request").await.unwrap();
        let demand = demand(&[], false);
        let mut lease = Box::pin(cluster.lease_or_wait(0, &demand, watched(&client), &timer));
        assert!(lease.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        far.shutdown().await.unwrap();
        client.tcp().unwrap().ready(tokio::io::Interest::READABLE).await.unwrap();
        assert!(
            lease.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
            "a half-closed client is still there"
        );
        net::socket::reset_on_close(&far);
        drop(far);
        let error = lease.await.err().expect("the wait must fail");
        assert_eq!((error.reason, cluster.plan.breaker.pending()), (Reason::ClientReset, 0));
        drop(room);
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_while_it_waits_is_no_longer_counted() {
        let cluster = cluster(&["127.0.0.1:1"], false);
        let timers = Timers::default();
        let timer = Timer::new(&timers);
        let _room = cluster.take(0, 0).unwrap();
        let (client, _far) = client().await;
        let demand = demand(&[], false);
        let mut lease = Box::pin(cluster.lease_or_wait(0, &demand, watched(&client), &timer));
        assert!(lease.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!((cluster.counters.pending.get(), cluster.plan.breaker.pending()), (1, 1));
        drop(lease);
        assert_eq!((cluster.counters.pending.get(), cluster.plan.breaker.pending()), (0, 0));
    }

    #[tokio::test]
    async fn room_at_an_endpoint_that_was_tried_is_waited_past_and_passed_on() {
        let (client, _far) = client().await;
        let cluster = cluster(&["127.0.0.1:1", "127.0.0.1:2"], false);
        let timers = Timers::default();
        let (retry_timer, other_timer) = (Timer::new(&timers), Timer::new(&timers));
        let lease = |index| cluster.take(index, 0).unwrap();
        let (first, second) = (lease(0), lease(1));
        let mut cx = Context::from_waker(Waker::noop());
        let (again, anew) = (demand(&[0], false), demand(&[], false));
        let mut retry = Box::pin(cluster.lease_or_wait(0, &again, watched(&client), &retry_timer));
        let mut other = Box::pin(cluster.lease_or_wait(0, &anew, watched(&client), &other_timer));
        assert!(retry.as_mut().poll(&mut cx).is_pending() && other.as_mut().poll(&mut cx).is_pending());

        // The room is not usable for the request that has tried that endpoint: its check must end (one that never ends would hang here),
        // and wake the other one.
        drop(first);
        assert!(retry.as_mut().poll(&mut cx).is_pending());
        let Poll::Ready(Ok(taken)) = other.as_mut().poll(&mut cx) else {
            panic!("no request was woken for the free room")
        };
        assert_eq!(taken.endpoint.index, 0);

        drop(second);
        let Poll::Ready(Ok(taken)) = retry.as_mut().poll(&mut cx) else {
            panic!("no request was woken for the free room")
        };
        assert_eq!(taken.endpoint.index, 1);
    }
}
