//! The stream of events at `/events`: one update a second for everybody who looks, and single requests.
//!
//! The events are written once and shared by all viewers. A viewer that does not read misses events: what waits for it is bounded in bytes, no
//! event waits for it, and after some time its connection ends.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use telemetry::Seen;
use tokio::time::{Duration, Instant};

use crate::access::{Access, Proof};
use crate::history::{Point, Verdict};
use crate::server::Place;

/// Viewers at a time. Further ones are answered 503. They are fewer than the connections of the server, so that commands always get through.
pub const VIEWERS_MAX: usize = 32;
/// Bytes of events that may wait for a viewer. A single event may be larger: the counters of thousands of routes are.
const BEHIND_BYTES_MAX: usize = 512 * 1024;
/// The same for all viewers together, even if the events of each are its own.
const ALL_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A viewer that misses events for this time is gone, or will never catch up.
const BEHIND_TIME_MAX: Duration = Duration::from_secs(10);

/// What a viewer looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The overview, once a second.
    pub overview: bool,
    /// All counters, once a second.
    pub counters: bool,
    /// Requests that were refused, that failed, and slow ones.
    pub requests: bool,
    /// The others, too.
    pub all_requests: bool,
}

/// The viewers.
#[derive(Debug, Default)]
pub struct Feed {
    viewers: Mutex<Viewers>,
}

#[derive(Debug, Default)]
struct Viewers {
    all: Vec<Viewer>,
    refused: u64,
    ended_behind: u64,
    ended_access: u64,
}

/// How many viewers there are and were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Those of now.
    pub viewers: u64,
    /// Those that were too many.
    pub refused: u64,
    /// Those whose streams ended because they did not read.
    pub ended_behind: u64,
    /// Those whose streams ended because the configuration no longer admits them.
    pub ended_access: u64,
}

#[derive(Debug)]
struct Viewer {
    wanted: Wanted,
    admitted: Admitted,
    queue: Arc<Queue>,
}

/// Whose stream it is.
#[derive(Clone)]
pub(crate) struct Admitted {
    /// What it was admitted with; `None` if nothing was demanded.
    pub(crate) proof: Option<Proof>,
    /// Whether only programs on this host can use the address of its connection.
    pub(crate) is_local: bool,
    /// Its connection.
    pub(crate) place: Arc<Place>,
}

/// The events that wait for a viewer.
#[derive(Debug, Default)]
struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<Bytes>,
    bytes: usize,
    /// Since when it has missed events; `None` if the last one found room.
    behind_since: Option<Instant>,
    waker: Option<Waker>,
    has_ended: bool,
    /// Nobody takes any.
    is_gone: bool,
}

/// The event `second`.
#[derive(Debug, Serialize)]
pub struct Overview<'o> {
    /// The process ID.
    pub pid: u32,
    /// Seconds since the process started.
    pub uptime_seconds: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// Whether it is Steelyard or the endpoints.
    pub verdict: &'o Verdict,
    /// The last second.
    pub point: &'o Point,
}

/// The event `request`.
#[derive(Clone, Debug, PartialEq, Serialize, serde::Deserialize)]
pub struct RequestSeen {
    /// The beginning, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The client's address.
    pub client: String,
    /// The listener.
    pub listener: String,
    /// The route; empty if none matched.
    pub route: String,
    /// The method; empty for a TCP connection.
    pub method: String,
    /// The host.
    pub host: String,
    /// The path, without the query.
    pub path: String,
    /// The status; 0 if there was no response.
    pub status: u16,
    /// The status of a gRPC call, such as `OK`; empty for other requests.
    #[serde(default)]
    pub grpc_status: String,
    /// Why it failed; empty if it did not.
    pub reason: String,
    /// The cluster; empty if none was chosen.
    pub cluster: String,
    /// The endpoint; empty if none was tried.
    pub endpoint: String,
    /// Endpoints that were tried.
    pub attempts: u32,
    /// Until the last byte of the response, microseconds.
    pub total_us: u64,
    /// The time that Steelyard added, microseconds.
    pub added_us: u64,
    /// The time until the endpoint's response head, microseconds.
    pub upstream_us: Option<u64>,
    /// The request's id; empty if it has none.
    pub request_id: String,
}

impl From<&Seen> for RequestSeen {
    fn from(seen: &Seen) -> Self {
        let text = |bytes: &[u8]| crate::show::visible(&String::from_utf8_lossy(bytes)).replace('\n', "\u{fffd}");
        Self {
            unix_ms: seen.unix_ms,
            client: seen.client.to_string(),
            listener: seen.listener.clone(),
            route: seen.route.clone(),
            method: text(&seen.method),
            host: text(&seen.host),
            path: text(&seen.path),
            status: seen.status,
            grpc_status: seen.grpc_status.map_or_else(String::new, model::grpc_status_name),
            reason: seen.reason.map_or("", |reason| reason.name()).to_owned(),
            cluster: seen.cluster.clone(),
            endpoint: seen.endpoint.map_or_else(String::new, |endpoint| endpoint.to_string()),
            attempts: seen.attempts,
            total_us: seen.total_us,
            added_us: seen.added_us,
            upstream_us: seen.upstream_us,
            request_id: seen.request_id.clone(),
        }
    }
}

impl Feed {
    /// What all viewers together look at. Viewers that are gone are forgotten.
    pub fn wanted(&self) -> Wanted {
        let viewers = self.viewers();
        viewers.all.iter().fold(Wanted::default(), |all, Viewer { wanted, .. }| Wanted {
            overview: all.overview || wanted.overview,
            counters: all.counters || wanted.counters,
            requests: all.requests || wanted.requests,
            all_requests: all.all_requests || wanted.all_requests,
        })
    }

    /// How many viewers there are and were.
    pub fn counts(&self) -> FeedCounts {
        let Viewers { all, refused, ended_behind, ended_access } = &*self.viewers();
        FeedCounts {
            viewers: all.len() as u64,
            refused: *refused,
            ended_behind: *ended_behind,
            ended_access: *ended_access,
        }
    }

    /// Sends an event to those who look at it.
    pub fn send(&self, event: &str, data: &impl Serialize, is_for: impl Fn(&Wanted) -> bool) {
        if !self.viewers().all.iter().any(|viewer| is_for(&viewer.wanted)) {
            return;
        }
        // JSON has no line breaks, so the event is one line of data.
        let Ok(json) = serde_json::to_string(data) else { return };
        self.send_at(Instant::now(), Bytes::from(format!("event: {event}\ndata: {json}\n\n")), is_for);
    }

    fn send_at(&self, now: Instant, event: Bytes, is_for: impl Fn(&Wanted) -> bool) {
        let mut viewers = self.viewers();
        let Viewers { all, ended_behind, .. } = &mut *viewers;
        let mut waiting: usize = all.iter().map(|viewer| viewer.queue.waiting().bytes).sum();
        all.retain(|Viewer { wanted, queue, admitted }| {
            if !is_for(wanted) {
                return true;
            }
            let found_room = waiting + event.len() <= ALL_BYTES_MAX && queue.push(&event);
            if found_room {
                waiting += event.len();
                return true;
            }
            let reads = now.duration_since(queue.behind_since(now)) < BEHIND_TIME_MAX;
            if !reads {
                *ended_behind += 1;
                admitted.place.end();
            }
            reads
        });
    }

    /// Ends the streams of those whom the configuration no longer admits.
    pub fn review(&self, access: &Access) {
        self.review_those(access, |_| true);
    }

    /// The same for those who have shown a certificate, which may have expired since.
    pub fn review_certificates(&self, access: &Access) {
        self.review_those(access, |proof| matches!(proof, Some(Proof::Certificate(_))));
    }

    fn review_those(&self, access: &Access, is_meant: impl Fn(Option<&Proof>) -> bool) {
        let mut viewers = self.viewers();
        let Viewers { all, ended_access, .. } = &mut *viewers;
        all.retain(|Viewer { admitted: Admitted { proof, is_local, place }, .. }| {
            let stays = !is_meant(proof.as_ref()) || access.still_admits(proof.as_ref(), *is_local);
            if !stays {
                *ended_access += 1;
                place.end();
            }
            stays
        });
    }

    /// Ends all streams.
    pub fn end(&self) {
        self.viewers().all.clear();
    }

    /// A new stream; `None` if there are too many.
    pub(crate) fn join(&self, wanted: Wanted, admitted: Admitted) -> Option<Events> {
        let mut viewers = self.viewers();
        if viewers.all.len() >= VIEWERS_MAX {
            viewers.refused += 1;
            return None;
        }
        let queue = Arc::new(Queue::default());
        // The first bytes come at once, so that a viewer knows that it is connected.
        queue.push(&Bytes::from_static(b"retry: 2000\n\n"));
        viewers.all.push(Viewer { wanted, admitted, queue: Arc::clone(&queue) });
        Some(Events(queue))
    }

    /// Those who are not gone.
    fn viewers(&self) -> MutexGuard<'_, Viewers> {
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.all.retain(|viewer| !viewer.queue.waiting().is_gone);
        viewers
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut waiting = self.queue.waiting();
        waiting.has_ended = true;
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns false if there is no room. If nothing waits, there is room for any event.
    fn push(&self, event: &Bytes) -> bool {
        let mut waiting = self.waiting();
        if !waiting.events.is_empty() && waiting.bytes + event.len() > BEHIND_BYTES_MAX {
            return false;
        }
        waiting.behind_since = None;
        waiting.bytes += event.len();
        waiting.events.push_back(event.clone());
        let waker = waiting.waker.take();
        drop(waiting);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    /// Since when it misses events.
    fn behind_since(&self, now: Instant) -> Instant {
        *self.waiting().behind_since.get_or_insert(now)
    }
}

/// The events of one viewer.
#[derive(Debug)]
pub(crate) struct Events(Arc<Queue>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut waiting = self.0.waiting();
        if let Some(event) = waiting.events.pop_front() {
            waiting.bytes -= event.len();
            return Poll::Ready(Some(Ok(Frame::data(event))));
        }
        if waiting.has_ended {
            return Poll::Ready(None);
        }
        waiting.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.0.waiting().is_gone = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Doubt, Role, User, Users};

    const OVERVIEW: Wanted = Wanted { overview: true, counters: false, requests: false, all_requests: false };

    fn from(token: Option<&str>) -> Admitted {
        let proof = token.map(|token| Proof::Token(token.as_bytes().to_vec()));
        Admitted { proof, is_local: true, place: Place::of_a_test() }
    }

    fn next(events: &mut Events) -> Option<String> {
        let mut cx = Context::from_waker(Waker::noop());
        match Pin::new(events).poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()),
            Poll::Ready(_) => Some("end".to_owned()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_viewer_gets_what_it_looks_at_and_one_that_does_not_read_misses_the_rest() {
        let feed = Feed::default();
        let mut reads = feed.join(OVERVIEW, from(None)).unwrap();
        let mut other = feed.join(Wanted { requests: true, ..Wanted::default() }, from(None)).unwrap();
        let event = "x".repeat(1000);
        for _ in 0..1000 {
            feed.send("second", &event, |wanted| wanted.overview);
        }
        assert_eq!(next(&mut reads).as_deref(), Some("retry: 2000\n\n"));
        assert_eq!(next(&mut reads), Some(format!("event: second\ndata: \"{event}\"\n\n")));
        let waited: usize = std::iter::from_fn(|| next(&mut reads)).map(|event| event.len()).sum();
        assert!((BEHIND_BYTES_MAX - 3000..=BEHIND_BYTES_MAX).contains(&waited), "{waited}");
        assert!(next(&mut other).is_some() && next(&mut other).is_none());
        assert!(feed.wanted().requests);
        drop(other);
        assert_eq!(feed.wanted(), OVERVIEW);
        feed.end();
        assert_eq!(next(&mut reads).as_deref(), Some("end"));
    }

    #[tokio::test]
    async fn a_viewer_that_does_not_read_ends() {
        let feed = Feed::default();
        let (slow, begin) = (from(None), Instant::now());
        let _stream = feed.join(OVERVIEW, slow.clone()).unwrap();
        let large = Bytes::from(vec![b'x'; BEHIND_BYTES_MAX]);
        let send = |now| feed.send_at(now, large.clone(), |wanted| wanted.overview);
        send(begin);
        send(begin + BEHIND_TIME_MAX - Duration::from_millis(1));
        assert!(!slow.place.must_end().await);
        send(begin + BEHIND_TIME_MAX);
        assert!(slow.place.must_end().await);
        assert_eq!(feed.counts(), FeedCounts { ended_behind: 1, ..FeedCounts::default() });
    }

    #[test]
    fn all_viewers_together_hold_a_bounded_number_of_bytes() {
        let feed = Feed::default();
        let mut streams: Vec<_> = (0..VIEWERS_MAX).map(|_| feed.join(OVERVIEW, from(None)).unwrap()).collect();
        // Larger than what may wait, and taken if nothing does.
        for events in &mut streams {
            assert!(next(events).is_some());
            feed.send_at(Instant::now(), vec![b'x'; 3 << 20].into(), |wanted| wanted.overview);
            let held: usize = feed.viewers().all.iter().map(|viewer| viewer.queue.waiting().bytes).sum();
            assert!(held <= ALL_BYTES_MAX, "{held}");
        }
    }

    #[test]
    fn a_thousand_viewers_are_too_many() {
        let feed = Feed::default();
        let streams: Vec<_> = (0..1000).map(|_| feed.join(OVERVIEW, from(None))).collect();
        assert_eq!(streams.iter().flatten().count(), VIEWERS_MAX);
        let refused = 1000 - VIEWERS_MAX as u64;
        assert_eq!(feed.counts(), FeedCounts { viewers: VIEWERS_MAX as u64, refused, ..FeedCounts::default() });
        drop(streams);
        assert!(feed.join(OVERVIEW, from(None)).is_some());
    }

    /// Admits this token.
    struct Only(&'static str);

    impl Users for Only {
        fn known(&self, proof: &Proof) -> Option<User> {
            let is_known = *proof == Proof::Token(self.0.as_bytes().to_vec());
            is_known.then_some(User { name: Some(self.0.to_owned()), role: Role::Read })
        }

        fn identify<'u>(&'u self, proof: &'u Proof) -> Pin<Box<dyn Future<Output = Result<User, Doubt>> + Send + 'u>> {
            Box::pin(async move { self.known(proof).ok_or(Doubt::Wrong) })
        }
    }

    #[tokio::test]
    async fn streams_end_with_the_rights_of_their_viewers() {
        let feed = Feed::default();
        let access = |users: Option<Only>| Access {
            users: users.map(|users| Arc::new(users) as Arc<dyn Users>),
            ..Access::default()
        };
        let all = [from(None), from(Some("a")), from(Some("b"))];
        let _streams: Vec<_> = all.iter().map(|from| feed.join(OVERVIEW, from.clone()).unwrap()).collect();
        feed.review(&access(None));
        assert_eq!(feed.counts().viewers, 3);
        feed.review(&access(Some(Only("b"))));
        assert_eq!(feed.counts(), FeedCounts { viewers: 1, ended_access: 2, ..FeedCounts::default() });
        assert!(all[0].place.must_end().await && all[1].place.must_end().await && !all[2].place.must_end().await);
    }
}
