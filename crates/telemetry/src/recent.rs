//! The outcomes of the last minute and of the last seconds: counters sampled at intervals, so that a status can distinguish a failure of
//! now from one of last week.
//!
//! For each series it keeps how much each counter grew in each of the last twelve intervals of five seconds, and adds them up. This costs
//! the workers nothing, because the control thread reads their counters. `admin` judges the sums.

use std::collections::BTreeMap;

use crate::groups::{EndpointCounters, ListenerCounters, ReasonTotals, RouteCounters};
use crate::reason::Reason;
use crate::registry::{EndpointKey, Registry, RouteReason};

/// Intervals that are kept of each series. Together with the current one they span 60 to 65 seconds.
const INTERVALS: usize = 12;
/// Intervals that make up the last seconds of listeners, routes and endpoints. Together with the current one they span 5 to 10 seconds.
const LATEST_INTERVALS: usize = 1;
/// The length of an interval.
const INTERVAL_MS: u64 = 5_000;

/// How much the counters of each key grew in the last minute. Takes 8 bytes for each counter, and another 48 while any of the key's has
/// grown: of ten thousand endpoints, few are used in a minute.
#[derive(Debug)]
pub struct Window<K, const N: usize> {
    series: BTreeMap<K, Growth<N>>,
    /// Counts the samples.
    round: u32,
    /// When the last interval ended; `None` if none has.
    ended_ms: Option<u64>,
    /// The index of the last interval that ended: `0 <= place < INTERVALS`.
    place: usize,
}

#[derive(Debug)]
struct Growth<const N: usize> {
    /// The counters at the end of the last interval.
    seen: [u64; N],
    /// `None` means that nothing has grown.
    intervals: Option<Box<[[u32; N]; INTERVALS]>>,
    /// The last sample that it was in.
    round: u32,
}

impl<K, const N: usize> Default for Window<K, N> {
    fn default() -> Self {
        Self { series: BTreeMap::new(), round: 0, ended_ms: None, place: 0 }
    }
}

impl<K: Ord, const N: usize> Window<K, N> {
    /// Whether an interval has ended since the last call of [`Window::sample`].
    pub fn is_due(&self, now_ms: u64) -> bool {
        self.ended_ms.is_none_or(|ended_ms| now_ms.saturating_sub(ended_ms) >= INTERVAL_MS)
    }

    /// Ends an interval if it is time to. `counters` must have all series; others are forgotten.
    pub fn sample(&mut self, now_ms: u64, counters: impl IntoIterator<Item = (K, [u64; N])>) {
        if !self.is_due(now_ms) {
            return;
        }
        // Counting begins with the first sample: earlier counts are not from the last minute.
        let is_first = self.ended_ms.is_none();
        let elapsed = now_ms.saturating_sub(self.ended_ms.unwrap_or(now_ms)) / INTERVAL_MS;
        // More than one if the control thread was delayed. Nothing is known about the intervals in between.
        let passed = usize::try_from(elapsed).unwrap_or(INTERVALS).clamp(1, INTERVALS);
        self.round = self.round.wrapping_add(1);
        let before = self.series.len();
        for (key, now) in counters {
            let fresh = || Growth { seen: if is_first { now } else { [0; N] }, intervals: None, round: self.round };
            let growth = self.series.entry(key).or_insert_with(fresh);
            growth.end_interval(&now, self.place, passed);
            growth.round = self.round;
        }
        self.series.retain(|_, growth| growth.round == self.round);
        if self.series.len() > before + before / 4 {
            // A map that grew in the order of its keys has half empty nodes.
            self.series = std::mem::take(&mut self.series).into_iter().collect();
        }
        self.place = (self.place + passed) % INTERVALS;
        self.ended_ms = Some(now_ms);
    }

    /// How much the counters of a series, which are now at `now`, have grown in the last minute.
    pub fn growth<Q: Ord + ?Sized>(&self, key: &Q, now: &[u64; N]) -> [u64; N]
    where
        K: std::borrow::Borrow<Q>,
    {
        self.growth_in(INTERVALS, key, now)
    }

    /// How much they have grown in the last 5 to 10 seconds, which is enough for two retransmissions of a first packet.
    pub fn latest_growth<Q: Ord + ?Sized>(&self, key: &Q, now: &[u64; N]) -> [u64; N]
    where
        K: std::borrow::Borrow<Q>,
    {
        self.growth_in(2, key, now)
    }

    fn growth_in<Q: Ord + ?Sized>(&self, intervals: usize, key: &Q, now: &[u64; N]) -> [u64; N]
    where
        K: std::borrow::Borrow<Q>,
    {
        let Some(growth) = self.series.get(key) else {
            // Either it is newer than the last sample, or nothing has been sampled yet.
            return if self.ended_ms.is_some() { *now } else { [0; N] };
        };
        let mut sums = growth.since_seen(now);
        // From the last one backwards.
        let latest = (0..intervals).map(|back| (self.place + INTERVALS - back) % INTERVALS);
        let Some(kept) = &growth.intervals else { return sums };
        for interval in latest.filter_map(|place| kept.get(place)) {
            sums.iter_mut().zip(interval).for_each(|(sum, grown)| *sum += u64::from(*grown));
        }
        sums
    }
}

impl<const N: usize> Growth<N> {
    /// Ends `passed` intervals after the one at `place`. What has grown belongs to the last of them.
    fn end_interval(&mut self, now: &[u64; N], place: usize, passed: usize) {
        let grown = self.since_seen(now).map(|grown| u32::try_from(grown).unwrap_or(u32::MAX));
        self.seen = *now;
        if self.intervals.is_none() && grown == [0; N] {
            return;
        }
        let intervals = self.intervals.get_or_insert_with(|| Box::new([[0; N]; INTERVALS]));
        for step in 1..=passed {
            if let Some(interval) = intervals.get_mut((place + step) % INTERVALS) {
                *interval = if step == passed { grown } else { [0; N] };
            }
        }
        if intervals.iter().all(|interval| *interval == [0; N]) {
            self.intervals = None;
        }
    }

    fn since_seen(&self, now: &[u64; N]) -> [u64; N] {
        let mut grown = *now;
        for (grown, seen) in grown.iter_mut().zip(self.seen) {
            // A counter that has decreased belongs to a new series with the same name.
            *grown = grown.checked_sub(seen).unwrap_or(*grown);
        }
        grown
    }
}

/// The counters of a listener that are judged.
const OF_LISTENER: usize = 3 + Reason::COUNT;
/// Responses by class, failed gRPC calls, and failures that are wanted.
const OF_ROUTE: usize = 7;
/// Requests, and failures by kind.
const OF_ENDPOINT: usize = 5;

/// The last minute of all listeners, routes and endpoints of a [`Registry`].
#[derive(Debug, Default)]
pub struct Recent {
    listeners: Window<String, OF_LISTENER>,
    routes: Window<(String, String), OF_ROUTE>,
    route_reasons: Window<RouteReason, 1>,
    endpoints: Window<EndpointKey, OF_ENDPOINT>,
}

/// A value for each of the judged spans of time. If traffic has decreased, successes before a fault would hide it for most of a minute, so
/// the last seconds are judged separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spans<T> {
    /// The last minute.
    pub minute: T,
    /// The last 5 to 10 seconds.
    pub latest: T,
}

/// The present values of all judged counters of a [`Registry`].
struct Sums {
    listeners: Vec<(String, [u64; OF_LISTENER])>,
    routes: Vec<((String, String), [u64; OF_ROUTE])>,
    route_reasons: Vec<(RouteReason, [u64; 1])>,
    endpoints: Vec<(EndpointKey, [u64; OF_ENDPOINT])>,
}

/// What happened in a span of time, by the names under which it is counted. Series in which nothing happened are included, but for reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    /// By the name of the listener.
    pub listeners: BTreeMap<String, ListenerOutcomes>,
    /// By the names of listener and route.
    pub routes: BTreeMap<(String, String), RouteOutcomes>,
    /// Why requests of a route were refused, failed or cut short, by the names of listener and route.
    pub route_reasons: BTreeMap<(String, String), BTreeMap<Reason, u64>>,
    /// By the name of the cluster and the address.
    pub endpoints: BTreeMap<EndpointKey, EndpointOutcomes>,
}

/// The outcomes of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerOutcomes {
    /// Connections accepted.
    pub connections: u64,
    /// Requests, or TCP connections, that ended.
    pub requests: u64,
    /// Connections that could not be accepted for lack of descriptors or memory.
    pub accept_failures: u64,
    /// What was refused, failed or closed.
    pub reasons: ReasonTotals,
}

/// The outcomes of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteOutcomes {
    /// Responses.
    pub responses: u64,
    /// Responses with a status of 500 to 599.
    pub errors: u64,
    /// gRPC calls that failed with another status of HTTP.
    pub call_failures: u64,
    /// Those of both that the configuration or an operator wants.
    pub intended_errors: u64,
}

/// The outcomes of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointOutcomes {
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// Failed connections.
    pub unreachable: u64,
    /// Responses with a status of 500 to 599.
    pub errors: u64,
    /// Connections that the endpoint closed or reset before the end of its response, and malformed responses.
    pub resets: u64,
    /// Timeouts.
    pub timeouts: u64,
}

impl EndpointOutcomes {
    /// All failures.
    pub fn failures(&self) -> u64 {
        self.unreachable + self.errors + self.resets + self.timeouts
    }
}

impl Recent {
    /// Ends an interval if it is time to. Call this about once a second.
    pub fn sample(&mut self, registry: &Registry, now_ms: u64) {
        if self.listeners.is_due(now_ms) {
            self.listeners.sample(now_ms, registry.sums(of_listener));
            self.routes.sample(now_ms, registry.sums(of_route));
            self.route_reasons.sample(now_ms, registry.route_reasons());
            self.endpoints.sample(now_ms, registry.sums(of_endpoint));
        }
    }

    /// What has happened up to now.
    pub fn outcomes(&self, registry: &Registry) -> Spans<Outcomes> {
        let sums = Sums {
            listeners: registry.sums(of_listener),
            routes: registry.sums(of_route),
            route_reasons: registry.route_reasons(),
            endpoints: registry.sums(of_endpoint),
        };
        Spans { minute: self.outcomes_in(INTERVALS, &sums), latest: self.outcomes_in(LATEST_INTERVALS, &sums) }
    }

    fn outcomes_in(&self, intervals: usize, sums: &Sums) -> Outcomes {
        let listener = |(key, now): &(String, _)| {
            let grown = self.listeners.growth_in(intervals, key, now);
            let [connections, requests, accept_failures, ..] = grown;
            let reasons = ReasonTotals::from_fn(|reason| grown.get(3 + reason.index()).copied().unwrap_or_default());
            (key.clone(), ListenerOutcomes { connections, requests, accept_failures, reasons })
        };
        let route = |(key, now): &((String, String), _)| {
            let grown = self.routes.growth_in(intervals, key, now);
            let [.., errors, call_failures, intended_errors] = grown;
            let responses = grown.iter().sum::<u64>() - call_failures - intended_errors;
            (key.clone(), RouteOutcomes { responses, errors, call_failures, intended_errors })
        };
        let endpoint = |(key, now): &(EndpointKey, _)| {
            let [requests, unreachable, errors, resets, timeouts] = self.endpoints.growth_in(intervals, key, now);
            (key.clone(), EndpointOutcomes { requests, unreachable, errors, resets, timeouts })
        };
        let mut route_reasons = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (key, now) in &sums.route_reasons {
            let [grown] = self.route_reasons.growth_in(intervals, key, now);
            if grown > 0 {
                let (route, reason) = key.clone();
                route_reasons.entry(route).or_default().insert(reason, grown);
            }
        }
        Outcomes {
            listeners: sums.listeners.iter().map(listener).collect(),
            routes: sums.routes.iter().map(route).collect(),
            route_reasons,
            endpoints: sums.endpoints.iter().map(endpoint).collect(),
        }
    }
}

fn of_listener(counters: &ListenerCounters, sums: &mut [u64; OF_LISTENER]) {
    let ListenerCounters { connections, requests, accept_failures, reasons, .. } = counters;
    let counters = [connections, requests, accept_failures].into_iter().chain(reasons.counters());
    sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
}

fn of_route(counters: &RouteCounters, sums: &mut [u64; OF_ROUTE]) {
    let counters = counters.responses.counters().chain([&counters.call_failures, &counters.intended_errors]);
    sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
}

fn of_endpoint(counters: &EndpointCounters, sums: &mut [u64; OF_ENDPOINT]) {
    let EndpointCounters { requests, unreachable, errors, resets, timeouts, .. } = counters;
    let counters = [requests, unreachable, errors, resets, timeouts];
    sums.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const SECOND: u64 = 1_000;

    #[test]
    fn a_minute_passes() {
        let mut window = Window::<&str, 1>::default();
        // Counted before the first sample.
        window.sample(0, [("a", [100])]);
        assert_eq!(window.growth("a", &[103]), [3]);
        // Not the end of an interval yet: nothing is sampled.
        window.sample(4 * SECOND, [("a", [105])]);
        assert_eq!(window.growth("a", &[107]), [7]);
        for interval in 1..=12 {
            window.sample(interval * 5 * SECOND, [("a", [107])]);
            assert_eq!(window.growth("a", &[107]), [7], "{interval}");
            assert_eq!(window.latest_growth("a", &[107]), [if interval <= 2 { 7 } else { 0 }], "{interval}");
        }
        window.sample(65 * SECOND, [("a", [108])]);
        assert_eq!(window.growth("a", &[108]), [1]);
    }

    #[test]
    fn a_control_thread_that_was_held_up() {
        let mut window = Window::<&str, 1>::default();
        window.sample(0, [("a", [0])]);
        window.sample(5 * SECOND, [("a", [4])]);
        // Nine intervals at once: their counts belong to the last one.
        window.sample(50 * SECOND, [("a", [9])]);
        assert_eq!(window.growth("a", &[9]), [9]);
        // The counts of the first interval are forgotten first.
        window.sample(65 * SECOND, [("a", [9])]);
        assert_eq!(window.growth("a", &[9]), [5]);
        window.sample(1_000 * SECOND, [("a", [9])]);
        assert_eq!(window.growth("a", &[9]), [0]);
    }

    #[test]
    fn series_come_and_go_and_begin_anew() {
        let mut window = Window::<&str, 1>::default();
        assert_eq!(window.growth("a", &[5]), [0]);
        window.sample(0, []);
        // It appeared after the last sample, so all of it is new.
        assert_eq!(window.growth("a", &[5]), [5]);
        window.sample(5 * SECOND, [("a", [5])]);
        assert_eq!(window.growth("a", &[6]), [6]);
        // Another series with the same name.
        window.sample(10 * SECOND, [("a", [2])]);
        assert_eq!(window.growth("a", &[2]), [7]);
        window.sample(15 * SECOND, []);
        assert_eq!(window.series.len(), 0);
    }

    #[test]
    fn outcomes_by_listener_route_and_endpoint() {
        let registry = Registry::default();
        let mut recent = Recent::default();
        recent.sample(&registry, 0);
        let address: SocketAddr = ([127, 0, 0, 1], 9).into();
        for worker in 0..2 {
            let listener = registry.listener(worker, "web");
            listener.connections.add(2);
            listener.requests.add(5);
            listener.accept_failures.inc();
            listener.reasons.inc(Reason::ConnectRefused);
            let route = registry.route(worker, "web", "/");
            [200, 404, 502, 503].into_iter().for_each(|status| route.responses.inc(status));
            route.reasons.inc(Reason::ConnectRefused);
            route.call_failures.inc();
            route.intended_errors.inc();
            let endpoint = registry.endpoint(worker, "app", address);
            endpoint.requests.add(4);
            endpoint.unreachable.add(1);
            endpoint.timeouts.add(2);
        }
        for now_ms in [0, 5_000, 30_000] {
            recent.sample(&registry, now_ms);
            let Spans { minute: outcomes, latest } = recent.outcomes(&registry);
            let web = &outcomes.listeners["web"];
            assert_eq!((web.connections, web.requests, web.accept_failures), (4, 10, 2));
            assert_eq!(web.reasons.counted().collect::<Vec<_>>(), [(Reason::ConnectRefused, 2)]);
            let route = outcomes.routes[&("web".to_owned(), "/".to_owned())];
            assert_eq!(route, RouteOutcomes { responses: 8, errors: 4, call_failures: 2, intended_errors: 2 });
            let refused = &outcomes.route_reasons[&("web".to_owned(), "/".to_owned())];
            assert_eq!(*refused, [(Reason::ConnectRefused, 2)].into());
            let endpoint = outcomes.endpoints[&("app".into(), address)];
            assert_eq!((endpoint.requests, endpoint.unreachable, endpoint.failures()), (8, 2, 6));
            // The last seconds are within the last 10.
            let is_latest = now_ms < 30_000;
            assert_eq!(latest == outcomes, is_latest, "{now_ms}");
        }
        let latest = |recent: &Recent| {
            let Outcomes { listeners, routes, route_reasons, endpoints } = recent.outcomes(&registry).latest;
            assert!(route_reasons.is_empty(), "{route_reasons:?}");
            let route = routes[&("web".to_owned(), "/".to_owned())];
            let endpoint = endpoints[&("app".into(), address)];
            (listeners["web"].requests, (route.responses, route.errors), (endpoint.requests, endpoint.failures()))
        };
        assert_eq!(latest(&recent), (0, (0, 0), (0, 0)));
        registry.listener(0, "web").requests.add(3);
        registry.route(0, "web", "/").responses.inc(503);
        registry.endpoint(0, "app", address).resets.inc();
        assert_eq!(latest(&recent), (3, (1, 1), (0, 1)));
        recent.sample(&registry, 120_000);
        assert_eq!(latest(&recent), (3, (1, 1), (0, 1)));
        recent.sample(&registry, 240_000);
        let nothing = |outcomes: Outcomes| outcomes.listeners["web"] == ListenerOutcomes::default();
        let Spans { minute, latest } = recent.outcomes(&registry);
        assert!(nothing(minute) && nothing(latest));
    }
}
