//! The stream of events at `/events`: one update a second for everybody who looks, and single requests.
//!
//! The events are written once and shared by all viewers. A viewer that does not read misses events: it has room for a few, and no event waits
//! for it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame};
use serde::Serialize;
use telemetry::Seen;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::history::{Point, Verdict};

/// Viewers at a time. Further ones are answered 503. They are fewer than the connections of the server, so that commands always get through.
pub const VIEWERS_MAX: usize = 32;
/// Events that a viewer may be behind.
const BEHIND_MAX: usize = 16;

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
    viewers: Mutex<Vec<Viewer>>,
}

#[derive(Debug)]
struct Viewer {
    wanted: Wanted,
    events: Sender<Bytes>,
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
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.retain(|viewer| !viewer.events.is_closed());
        viewers.iter().fold(Wanted::default(), |all, Viewer { wanted, .. }| Wanted {
            overview: all.overview || wanted.overview,
            counters: all.counters || wanted.counters,
            requests: all.requests || wanted.requests,
            all_requests: all.all_requests || wanted.all_requests,
        })
    }

    /// Sends an event to those who look at it.
    pub fn send(&self, event: &str, data: &impl Serialize, is_for: impl Fn(&Wanted) -> bool) {
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        if !viewers.iter().any(|viewer| is_for(&viewer.wanted)) {
            return;
        }
        // JSON has no line breaks, so the event is one line of data.
        let Ok(json) = serde_json::to_string(data) else { return };
        let bytes = Bytes::from(format!("event: {event}\ndata: {json}\n\n"));
        viewers.retain(|viewer| {
            if is_for(&viewer.wanted) {
                // A viewer that is behind misses it.
                let _ = viewer.events.try_send(bytes.clone());
            }
            !viewer.events.is_closed()
        });
    }

    /// Ends all streams.
    pub fn end(&self) {
        self.viewers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// A new stream; `None` if there are too many.
    pub(crate) fn join(&self, wanted: Wanted) -> Option<Events> {
        let mut viewers = self.viewers.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.retain(|viewer| !viewer.events.is_closed());
        if viewers.len() >= VIEWERS_MAX {
            return None;
        }
        let (events, stream) = channel(BEHIND_MAX);
        // The first bytes come at once, so that a viewer knows that it is connected.
        let _ = events.try_send(Bytes::from_static(b"retry: 2000\n\n"));
        viewers.push(Viewer { wanted, events });
        Some(Events(stream))
    }
}

/// The events of one viewer.
#[derive(Debug)]
pub(crate) struct Events(Receiver<Bytes>);

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERVIEW: Wanted = Wanted { overview: true, counters: false, requests: false, all_requests: false };

    #[test]
    fn a_viewer_gets_what_it_looks_at_and_one_that_does_not_read_misses_the_rest() {
        let feed = Feed::default();
        let mut reads = feed.join(OVERVIEW).unwrap();
        let mut other = feed.join(Wanted { requests: true, ..Wanted::default() }).unwrap();
        for number in 0..1000 {
            feed.send("second", &number, |wanted| wanted.overview);
        }
        let mut next = || reads.0.try_recv().ok().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
        assert_eq!(next().as_deref(), Some("retry: 2000\n\n"));
        assert_eq!(next().as_deref(), Some("event: second\ndata: 0\n\n"));
        assert_eq!(std::iter::from_fn(next).count(), BEHIND_MAX - 2);
        assert!(other.0.try_recv().is_ok() && other.0.try_recv().is_err());
        assert!(feed.wanted().requests);
        drop(other);
        assert_eq!(feed.wanted(), OVERVIEW);
    }

    #[test]
    fn a_thousand_viewers_are_too_many() {
        let feed = Feed::default();
        let streams: Vec<_> = (0..1000).map(|_| feed.join(OVERVIEW)).collect();
        assert_eq!(streams.iter().flatten().count(), VIEWERS_MAX);
        drop(streams);
        assert!(feed.join(OVERVIEW).is_some());
    }
}
