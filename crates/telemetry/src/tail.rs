//! Single requests, for somebody who looks at them now: those that were refused or failed, and slow ones.
//!
//! While nobody looks, a request costs one load of a flag. While somebody does, workers copy the requests that are wanted into a list of
//! bounded size, which the control thread takes once a second. A worker never waits for the list: if another thread has it, the request is
//! counted as passed over. Nothing secret is copied: no header, no body, and no query string.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::access_log::Record;
use crate::grpc::is_fault;
use crate::reason::Reason;

/// Requests that the list holds.
pub const TAIL_MAX: usize = 256;
/// Of them, those that are neither refused nor slow: they must not push out what is worth more.
const ORDINARY_MAX: usize = 100;
/// A request is slow if its response took longer to begin, in microseconds.
pub const SLOW_US: u64 = 500_000;
/// Bytes of a text from the client.
const TEXT_BYTES_MAX: usize = 256;

const NOTHING: u8 = 0;
const REFUSED_AND_SLOW: u8 = 1;
const ALL: u8 = 2;

/// What is told about single requests.
#[derive(Debug, Default)]
pub struct Tail {
    wanted: AtomicU8,
    passed_over: AtomicU64,
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    seen: VecDeque<Seen>,
    ordinary: usize,
    /// Whether ordinary requests of all routes are wanted.
    all: bool,
    /// The routes whose ordinary requests are wanted.
    routes: Vec<String>,
}

/// A request or a TCP connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its beginning, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The client.
    pub client: SocketAddr,
    /// The listener's name.
    pub listener: String,
    /// The route's name; empty if none matched.
    pub route: String,
    /// The method, as the client sent it; empty for a TCP connection.
    pub method: Vec<u8>,
    /// The host, as the client sent it.
    pub host: Vec<u8>,
    /// The path without the query, as the client sent it.
    pub path: Vec<u8>,
    /// The status; 0 if there was no response, and for a TCP connection.
    pub status: u16,
    /// The code of a gRPC call.
    pub grpc_status: Option<u8>,
    /// The reason of a failure.
    pub reason: Option<Reason>,
    /// The cluster's name; empty if none was chosen.
    pub cluster: String,
    /// The last endpoint that was tried.
    pub endpoint: Option<SocketAddr>,
    /// The number of endpoints that were tried.
    pub attempts: u32,
    /// From the first byte of the request to the last byte of the response, microseconds.
    pub total_us: u64,
    /// The time that Steelyard added, microseconds.
    pub added_us: u64,
    /// The time until the endpoint's response head, microseconds.
    pub upstream_us: Option<u64>,
    /// The id of the request; empty if the listener gives none.
    pub request_id: String,
}

impl Tail {
    /// Says what somebody looks at from now on: what was refused and slow; also all others, or those of these routes.
    pub fn want(&self, refused_and_slow: bool, all: bool, routes: Vec<String>) {
        let wanted = match (refused_and_slow, all || !routes.is_empty()) {
            (_, true) => ALL,
            (true, false) => REFUSED_AND_SLOW,
            (false, false) => NOTHING,
        };
        if self.wanted.swap(wanted, Relaxed) == NOTHING && wanted == NOTHING {
            return;
        }
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if wanted == NOTHING {
            *list = List::default();
        }
        (list.all, list.routes) = (all, routes);
    }

    /// Whether anybody looks.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed) != NOTHING
    }

    /// Copies a request, if it is wanted and there is room. Workers call this; it never waits.
    pub fn push(&self, record: &Record<'_>) {
        let (times, statuses) = record.http.map_or(((0, None), (0, None)), |http| {
            ((http.added_us, http.upstream_us), (http.status, http.grpc_status))
        });
        let matters = matters(record.reason, statuses, times);
        if !matters && self.wanted.load(Relaxed) != ALL {
            return;
        }
        let pushed = self.list.try_lock().is_ok_and(|mut list| list.push(record, matters));
        if !pushed {
            self.passed_over.fetch_add(1, Relaxed);
        }
    }

    /// Takes the requests since the last call, and the number of those that there was no room for.
    pub fn take(&self) -> (Vec<Seen>, u64) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.ordinary = 0;
        (std::mem::take(&mut list.seen).into(), self.passed_over.swap(0, Relaxed))
    }
}

impl List {
    /// Returns false if there is no room.
    fn push(&mut self, record: &Record<'_>, matters: bool) -> bool {
        let route = record.http.map_or("", |http| http.route);
        if !matters && !self.all && !self.routes.iter().any(|wanted| wanted == route) {
            return true;
        }
        if self.seen.len() >= TAIL_MAX || !matters && self.ordinary >= ORDINARY_MAX {
            return false;
        }
        self.ordinary += usize::from(!matters);
        self.seen.push_back(Seen::of(record));
        true
    }
}

/// Whether a request was refused, failed, or was slow.
fn matters(
    reason: Option<Reason>,
    (status, grpc_status): (u16, Option<u8>),
    (added_us, upstream_us): (u64, Option<u64>),
) -> bool {
    reason.is_some()
        || is_fault(status, grpc_status)
        || added_us.saturating_add(upstream_us.unwrap_or_default()) >= SLOW_US
}

impl Seen {
    /// Whether it was refused, failed, or was slow.
    pub fn matters(&self) -> bool {
        matters(self.reason, (self.status, self.grpc_status), (self.added_us, self.upstream_us))
    }

    fn of(record: &Record<'_>) -> Self {
        let http = record.http.as_ref();
        let cut = |text: &[u8]| text.get(..TEXT_BYTES_MAX).unwrap_or(text).to_vec();
        let path = |target: &[u8]| cut(target.split(|byte| *byte == b'?').next().unwrap_or_default());
        Self {
            unix_ms: record.unix_ms,
            client: record.client,
            listener: record.listener.to_owned(),
            route: http.map_or("", |http| http.route).to_owned(),
            method: http.map_or(Vec::new(), |http| cut(http.method)),
            host: http.map_or(Vec::new(), |http| cut(http.host)),
            path: http.map_or(Vec::new(), |http| path(http.target)),
            status: http.map_or(0, |http| http.status),
            grpc_status: http.and_then(|http| http.grpc_status),
            reason: record.reason,
            cluster: record.cluster.to_owned(),
            endpoint: record.endpoint,
            attempts: record.attempts,
            total_us: record.total_us,
            added_us: http.map_or(0, |http| http.added_us),
            upstream_us: http.and_then(|http| http.upstream_us),
            request_id: http.map_or("", |http| http.request_id).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(reason: Option<Reason>) -> Record<'static> {
        Record {
            unix_ms: 1,
            client: ([192, 0, 2, 1], 5).into(),
            listener: "web",
            http: None,
            bytes_in: 0,
            bytes_out: 0,
            cluster: "shop",
            endpoint: None,
            total_us: 9,
            attempts: 1,
            reason,
        }
    }

    #[test]
    fn what_matters() {
        let check =
            |reason, statuses, times, expect| assert_eq!(matters(reason, statuses, times), expect, "{statuses:?}");
        check(None, (200, None), (1, Some(1)), false);
        check(None, (404, None), (1, Some(1)), false);
        check(None, (500, None), (1, Some(1)), true);
        check(Some(Reason::NoRoute), (404, None), (1, None), true);
        check(None, (200, None), (1, Some(SLOW_US)), true);
        // Calls of gRPC fail with status 200.
        check(None, (200, Some(0)), (1, Some(1)), false);
        check(None, (200, Some(5)), (1, Some(1)), false);
        check(None, (200, Some(14)), (1, Some(1)), true);
    }

    #[test]
    fn only_what_is_wanted_is_copied_and_never_more_than_there_is_room_for() {
        let tail = Tail::default();
        assert!(!tail.is_wanted());
        tail.want(true, false, Vec::new());
        tail.push(&record(None));
        tail.push(&record(Some(Reason::NoRoute)));
        let (seen, passed_over) = tail.take();
        assert_eq!((seen.len(), seen[0].reason, passed_over), (1, Some(Reason::NoRoute), 0));
        tail.want(true, true, Vec::new());
        for _ in 0..1000 {
            tail.push(&record(None));
        }
        for _ in 0..1000 {
            tail.push(&record(Some(Reason::NoRoute)));
        }
        let (seen, passed_over) = tail.take();
        assert_eq!((seen.len(), passed_over), (TAIL_MAX, 2000 - TAIL_MAX as u64));
        assert_eq!(seen.iter().filter(|seen| seen.reason.is_none()).count(), ORDINARY_MAX);
        tail.push(&record(None));
        // Nobody looks any more, so nothing is kept.
        tail.want(false, false, Vec::new());
        assert_eq!(tail.take(), (Vec::new(), 0));
    }
}
