//! The state of one endpoint that all workers share.

use std::net::SocketAddr;
use std::sync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Mutex, PoisonError};

use crate::ewma::PeakEwma;

/// Set in [`EndpointState::flags`] while active probes say that the endpoint is down.
pub(crate) const UNHEALTHY: u8 = 1;
/// Set while the operator drains the endpoint.
pub(crate) const DRAINING: u8 = 2;
/// The position in [`EndpointState::flags`] of the [`crate::Proof`] that ends the last ejection early, and its number of bits.
pub(crate) const PROOF_SHIFT: u8 = 2;
pub(crate) const PROOF_MASK: u8 = 3 << PROOF_SHIFT;

/// The state of one endpoint of one cluster, shared by the workers and the health checks.
///
/// It outlives snapshots: on a reload the states of endpoints that stay go into the new [`crate::ClusterState`], so that load, latency,
/// verdicts and ejections are kept. Its weight is in the cluster's state, because it belongs to a snapshot, and a refused snapshot must
/// leave nothing behind.
///
/// All atomics except `connections` are relaxed: each is a hint of its own, and the cluster's epoch publishes what must be seen together.
/// `connections` is sequentially consistent, because a request that waits for room must not miss it: it counts itself as waiting and then
/// reads `connections`, while a request that makes room decreases `connections` and then checks whether any request waits. With weaker
/// orders both might read old values, and the request would wait beside an idle endpoint. On x86 this costs nothing, because its atomic
/// writes are ordered like this anyway.
///
/// What requests write is in 32 adjacent bytes. In an `Arc` of its own the state takes 144 bytes of the heap, so that two endpoints never write
/// to the same cache line. Two threads that each add to a counter of their own took 18 ns for it at this distance, at one of 256 bytes, and
/// in the two lines of a pair that the processor fetches together, but 90 ns in one line (30 million times each, five rounds, a virtual machine with two
/// CPUs). Aligned to pairs of lines, it took more than 256 bytes.
#[derive(Debug)]
#[repr(C)]
pub struct EndpointState {
    address: SocketAddr,
    in_flight: AtomicU32,
    connections: AtomicU32,
    pub(crate) flags: AtomicU8,
    pub(crate) latency: PeakEwma,
    /// Low half: failures in a row. High half: ejections in a row. Usually zero, and then a success need not look at anything else.
    pub(crate) trouble: AtomicU64,
    /// Ejected while `now < ejected_until_ms`. 0 means never.
    pub(crate) ejected_until_ms: AtomicU64,
    /// The time from which a success reduces the ejections in a row by one.
    pub(crate) forgive_at_ms: AtomicU64,
    /// The start of slow start, which is in the future while ejected. 0 means that it was there from the beginning and has no slow start.
    pub(crate) usable_since_ms: AtomicU64,
    /// Why the last connection failed. Only failures write it, which are rare and have taken at least a round trip.
    last_failure: Mutex<Option<Box<str>>>,
}

impl EndpointState {
    /// An endpoint that existed when the process started: it counts as healthy, with its whole weight.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            in_flight: AtomicU32::new(0),
            connections: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            latency: PeakEwma::default(),
            trouble: AtomicU64::new(0),
            ejected_until_ms: AtomicU64::new(0),
            forgive_at_ms: AtomicU64::new(0),
            usable_since_ms: AtomicU64::new(0),
            last_failure: Mutex::new(None),
        }
    }

    /// An endpoint that joins a cluster which already carries traffic: it goes through the cluster's slow start.
    pub fn joining(address: SocketAddr, now_ms: u64) -> Self {
        let state = Self::new(address);
        state.usable_since_ms.store(now_ms.max(1), Relaxed);
        state
    }

    /// Its address, which identifies it among the endpoints of its cluster.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Records that a request is sent. Exactly one [`Self::end_request`] follows.
    pub fn begin_request(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Records that a request has been answered, or has failed.
    pub fn end_request(&self) {
        let before = self.in_flight.fetch_sub(1, Relaxed);
        debug_assert!(before > 0, "end_request without begin_request");
    }

    /// The number of requests in flight.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Relaxed)
    }

    /// Records that a connection is open or being opened. Exactly one [`Self::close_connection`] follows.
    pub fn open_connection(&self) {
        self.connections.fetch_add(1, SeqCst);
    }

    /// Like [`Self::open_connection`] if fewer than `connections_max` are open; otherwise returns false and changes nothing.
    pub fn try_open_connection(&self, connections_max: usize) -> bool {
        self.connections
            .fetch_update(
                SeqCst,
                SeqCst,
                |open| if (open as usize) < connections_max { open.checked_add(1) } else { None },
            )
            .is_ok()
    }

    /// Records that a connection is closed, or could not be opened.
    pub fn close_connection(&self) {
        let before = self.connections.fetch_sub(1, SeqCst);
        debug_assert!(before > 0, "close_connection without open_connection");
    }

    /// The number of open connections.
    pub fn connections(&self) -> u32 {
        self.connections.load(SeqCst)
    }

    /// Records how long a response took. Only for useful responses: an endpoint that fails fast must not look fast.
    pub fn observe_latency(&self, now_ms: u64, latency_us: u64) {
        self.latency.observe(now_ms, latency_us);
    }

    /// The decaying average of latency in microseconds; `None` if nothing is known, or the average has decayed.
    pub fn latency_us(&self, now_ms: u64) -> Option<f32> {
        self.latency.get(now_ms)
    }

    /// Keeps why the endpoint could not be used, in words for the operator.
    pub fn note_failure(&self, why: &str) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_deref() != Some(why) {
            *last = Some(why.into());
        }
    }

    /// Forgets the failure, because the endpoint could be used.
    pub fn clear_failure(&self) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Why the endpoint could not be used last; `None` if it could, or nothing is known.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).as_deref().map(str::to_owned)
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    /// Whether its last request failed.
    pub(crate) fn is_failing(&self) -> bool {
        self.trouble.load(Relaxed) as u32 > 0
    }

    /// Whether outlier ejection has removed it.
    pub fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    fn endpoint() -> EndpointState {
        EndpointState::new(([127, 0, 0, 1], 80).into())
    }

    #[test]
    fn connections_stop_at_the_limit() {
        let endpoint = endpoint();
        let opened: Vec<bool> = (0..4).map(|_| endpoint.try_open_connection(2)).collect();
        assert_eq!(opened, [true, true, false, false]);
        endpoint.close_connection();
        assert!(endpoint.try_open_connection(2));
        assert_eq!(endpoint.connections(), 2);
    }

    #[test]
    fn requests_are_counted() {
        let endpoint = endpoint();
        endpoint.begin_request();
        endpoint.begin_request();
        endpoint.end_request();
        assert_eq!(endpoint.in_flight(), 1);
    }

    #[test]
    fn the_last_failure_is_kept_until_one_succeeds() {
        let endpoint = endpoint();
        assert_eq!(endpoint.last_failure(), None);
        endpoint.note_failure("certificate expired");
        endpoint.note_failure("unknown issuer");
        assert_eq!(endpoint.last_failure().as_deref(), Some("unknown issuer"));
        endpoint.clear_failure();
        assert_eq!(endpoint.last_failure(), None);
    }

    /// Two states next to each other have at least a line between the fields that requests write, wherever the first one begins.
    #[test]
    fn two_endpoints_never_write_to_one_cache_line() {
        const LINE: usize = 64;
        let first = offset_of!(EndpointState, in_flight);
        let end = offset_of!(EndpointState, trouble) + size_of::<AtomicU64>();
        assert!(end - first <= LINE / 2, "{first} to {end}");
        // The counters of an `Arc`.
        let taken = size_of::<EndpointState>() + 2 * size_of::<usize>();
        assert!(taken - (end - first) >= LINE, "{taken}");
    }
}
