//! The bandwidths of each client of a listener: how long bytes wait, over all its connections and all workers. And the bandwidth of one response,
//! which a route may limit.
//!
//! Bytes are charged when they have moved, and the answer says how long the connection has to wait before it moves more. So connections of one
//! client take turns, and none has to ask again. A connection moves one small buffer between two waits. The table is that of rate limits.

use std::net::IpAddr;
use std::sync::Arc;

use balance::Bandwidth;
use model::Listener;

use super::rate_limit::{Clients, network};
use crate::exchange::faults::{self, InjectedFault};

/// The direction in which bytes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    Request,
    Response,
}

/// The bandwidths of a listener.
pub(crate) struct Shapers {
    request: Option<Shaper>,
    response: Option<Shaper>,
    clients: Arc<Clients>,
}

struct Shaper {
    bandwidth: Bandwidth,
    /// Identifies the listener and its limit. The use of clients survives a reload that changes neither.
    id: u64,
}

/// The bandwidths of one client; `None` for a direction without a limit.
pub(crate) struct Shares {
    pub(crate) request: Option<Share>,
    pub(crate) response: Option<Share>,
}

/// The bandwidth of one client in one direction.
#[derive(Clone)]
pub(crate) struct Share {
    shapers: Arc<Shapers>,
    pub(crate) direction: Direction,
    key: u64,
}

impl Shapers {
    /// `None` if the listener has none.
    pub(crate) fn of(listener: &Listener, clients: Option<&Arc<Clients>>) -> Option<Arc<Self>> {
        let clients = clients?;
        let shaper = |limit: &Option<model::Bandwidth>, direction| {
            let limit = limit.as_ref()?;
            let id = clients.hash((&listener.name, direction, limit));
            Some(Shaper { bandwidth: Bandwidth::new(limit), id })
        };
        let limits = &listener.client_limits;
        let request = shaper(&limits.request_bandwidth, Direction::Request);
        let response = shaper(&limits.response_bandwidth, Direction::Response);
        let is_any = request.is_some() || response.is_some();
        is_any.then(|| Arc::new(Self { request, response, clients: clients.clone() }))
    }

    /// Those of the client with this address.
    pub(crate) fn shares(self: &Arc<Self>, client: IpAddr) -> Box<Shares> {
        let share = |direction| {
            let key = self.clients.hash((self.shaper(direction)?.id, network(client)));
            Some(Share { shapers: self.clone(), direction, key })
        };
        Box::new(Shares { request: share(Direction::Request), response: share(Direction::Response) })
    }

    fn shaper(&self, direction: Direction) -> Option<&Shaper> {
        match direction {
            Direction::Request => self.request.as_ref(),
            Direction::Response => self.response.as_ref(),
        }
    }
}

impl Share {
    /// Charges bytes that have moved. Returns after how many microseconds more may move.
    pub(crate) fn charge(&self, bytes: u64, now_us: u64) -> u64 {
        let Some(Shaper { bandwidth, .. }) = self.shapers.shaper(self.direction) else { return 0 };
        let now_ns = now_us.saturating_mul(1000);
        self.shapers.clients.reserve(self.key, *bandwidth, bytes, now_ns).div_ceil(1000)
    }
}

/// Less is not sent at once, if there is more.
const PIECE_BYTES_MIN: usize = 1024;

/// How fast one response goes to its client. After the first bytes, what is sent is never ahead of the bandwidth by more than one piece; a
/// response that falls behind, because its endpoint or its client is slow, may catch up, as with nginx.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponsePace {
    bandwidth: Bandwidth,
    /// Bytes that are not slowed down.
    after: u64,
    begun_us: u64,
}

impl ResponsePace {
    /// Of a response that begins now.
    pub(crate) fn new(limit: &model::ResponseBandwidth, now_us: u64) -> Self {
        let model::ResponseBandwidth { bytes, per, after } = *limit;
        Self { bandwidth: Bandwidth::new(&model::Bandwidth { bytes, per, burst: 0 }), after, begun_us: now_us }
    }

    /// When more may be sent, in microseconds, after these bytes of it.
    pub(crate) fn due_us(&self, sent: u64) -> u64 {
        if faults::is_injected(InjectedFault::ForgetsPace) {
            return 0;
        }
        let Some(slowed) = sent.checked_sub(self.after) else { return 0 };
        self.begun_us.saturating_add(self.bandwidth.cost_ns(slowed).div_ceil(1000))
    }

    /// How much to send at once: what a quarter of a second allows, as a client that gets nothing for long may give up.
    pub(crate) fn piece_bytes(&self) -> usize {
        usize::try_from(self.bandwidth.bytes_in(250_000_000)).unwrap_or(usize::MAX).max(PIECE_BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::worker::snapshot::fixture;

    fn shapers(bytes: u64, burst: u64, clients: &Arc<Clients>) -> Arc<Shapers> {
        let mut listener = fixture::http("web", 80);
        let limit = model::Bandwidth { bytes, per: Duration::from_secs(1), burst };
        listener.client_limits.response_bandwidth = Some(limit);
        Shapers::of(&listener, Some(clients)).unwrap()
    }

    fn share(shapers: &Arc<Shapers>, client: &str) -> Share {
        shapers.shares(client.parse().unwrap()).response.unwrap()
    }

    #[test]
    fn connections_of_a_client_take_turns() {
        let clients = Arc::default();
        let shapers = shapers(1_000_000, 100_000, &clients);
        assert!(shapers.shares("10.0.0.1".parse().unwrap()).request.is_none());
        let (first, second) = (share(&shapers, "10.0.0.1"), share(&shapers, "::ffff:10.0.0.1"));
        assert_eq!([first.charge(60_000, 0), second.charge(40_000, 0), first.charge(0, 0)], [0; 3]);
        assert_eq!([first.charge(20_000, 0), second.charge(20_000, 0)], [20_000, 40_000]);
        assert_eq!([first.charge(20_000, 20_000), second.charge(20_000, 40_000)], [40_000, 40_000]);
        assert_eq!(share(&shapers, "10.0.0.2").charge(100, 0), 0);
        // A reload forgets nothing.
        let again = self::shapers(1_000_000, 100_000, &clients);
        assert_eq!(share(&again, "10.0.0.1").charge(0, 80_000), 0);
        assert_eq!(share(&again, "10.0.0.1").charge(1_000, 80_000), 1_000);
    }

    #[test]
    fn a_response_has_a_pace_of_its_own() {
        let limit = model::ResponseBandwidth { bytes: 1000, per: Duration::from_secs(1), after: 5000 };
        let pace = ResponsePace::new(&limit, 7_000_000);
        assert_eq!([0, 4_999, 5_000].map(|sent| pace.due_us(sent)), [0, 0, 7_000_000]);
        assert_eq!([5_001, 6_000, 15_000].map(|sent| pace.due_us(sent)), [7_001_000, 8_000_000, 17_000_000]);
        assert_eq!((pace.due_us(u64::MAX), pace.piece_bytes()), (u64::MAX / 1000 + 7_000_001, PIECE_BYTES_MIN));
        let endless = model::ResponseBandwidth { bytes: u64::MAX, per: Duration::from_millis(1), after: 0 };
        assert_eq!(ResponsePace::new(&endless, u64::MAX).due_us(u64::MAX), u64::MAX);
    }
}
