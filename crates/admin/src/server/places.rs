//! The connections that an address may have at a time, the bytes that wait for their clients, and which connections make place for others.
//!
//! A new connection always gets a place at once: it may be that of a probe or of an operator. If there is none, the connection ends whose client
//! has kept the server waiting longest, whoever the client is. If the server waits for no client, the oldest one ends that has proved nothing, and
//! a stream of events, which a viewer reads, ends last.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::network;

/// A client that neither sends nor reads anything for this time, while the server can do nothing without it, makes place before all others. Packets
/// that are lost arrive sooner on most paths.
const STALLED: Duration = Duration::from_secs(1);

/// How long a response waits at most before it looks again whether there is memory for it.
const HOLD_PAUSE: Duration = Duration::from_millis(100);

/// The places.
pub(crate) struct Places {
    places_max: usize,
    /// Connections of one address whose clients have proved nothing.
    of_address_max: usize,
    /// Bytes of large responses that wait for clients. A single response may have more.
    bytes_max: usize,
    /// Is told of each connection that ends for another.
    made_way: Box<dyn Fn(MadeWayFor) + Send + Sync>,
    /// The oldest first.
    open: Mutex<Vec<Arc<Place>>>,
    /// A connection has ended.
    freed: Notify,
}

/// What a connection had to end for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeWayFor {
    /// A connection of the same address, which has many that have proved nothing.
    Address,
    /// A connection of anyone: all places were taken.
    Place,
    /// A large response, which needs the memory that this one's client was slow to free.
    Memory,
}

impl MadeWayFor {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Address, Self::Place, Self::Memory];

    /// The word in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Place => "place",
            Self::Memory => "memory",
        }
    }
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    /// `None` is a Unix socket.
    network: Option<IpAddr>,
    is_proven: AtomicBool,
    streams: AtomicBool,
    /// The rest of the request is still to come.
    waits_for_request: AtomicBool,
    /// The client has to read before the server can write more.
    waits_for_reader: AtomicBool,
    began: Instant,
    /// When the last byte moved, in milliseconds since the connection began.
    moved_ms: AtomicU64,
    /// The bytes of its large response, and when that was made.
    held: AtomicUsize,
    held_since_ms: AtomicU64,
    /// What of that was written.
    written: AtomicU64,
    ended: Notify,
}

/// Keeps a place taken until it is dropped.
pub(super) struct Taken {
    places: Arc<Places>,
    pub(super) place: Arc<Place>,
}

impl Places {
    pub(super) fn new(
        places_max: usize,
        of_address_max: usize,
        bytes_max: usize,
        made_way: impl Fn(MadeWayFor) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (open, freed, made_way) = (Mutex::default(), Notify::new(), Box::new(made_way));
        Arc::new(Self { places_max, of_address_max, bytes_max, made_way, open, freed })
    }

    /// Takes a place for a connection of this client. If there is none, or if the client has many, another connection ends.
    pub(super) fn take(self: &Arc<Self>, client: Option<IpAddr>, now: Instant) -> Taken {
        let network = client.map(network);
        let mut open = self.open();
        let of_client = open.iter().filter(|place| !place.is_proven() && place.network == network).count();
        let is_eligible: &dyn Fn(&Place) -> bool = match (of_client >= self.of_address_max, open.len()) {
            (true, _) => &|place| !place.is_proven() && place.network == network,
            (false, all) if all >= self.places_max => &|_| true,
            (false, _) => &|_| false,
        };
        let eligible = open.iter().enumerate().filter(|(_, place)| is_eligible(place));
        // Of several that are alike, the last is taken: the oldest has to come last.
        let first_to_go = eligible.rev().max_by_key(|(_, place)| place.rank(now)).map(|(at, _)| at);
        if let Some(at) = first_to_go {
            open.remove(at).end();
            (self.made_way)(if of_client >= self.of_address_max { MadeWayFor::Address } else { MadeWayFor::Place });
        }
        let place = Arc::new(Place::new(network, now));
        open.push(Arc::clone(&place));
        Taken { places: Arc::clone(self), place }
    }

    /// Waits until a response of so many bytes may wait for the client of this place. If others keep the memory, the one whose client reads slowest
    /// ends.
    pub(crate) async fn hold(&self, place: &Arc<Place>, bytes: usize) {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.holds(place, bytes, Instant::now()) {
                return;
            }
            let _ = tokio::time::timeout(HOLD_PAUSE, freed).await;
        }
    }

    /// Whether the response may wait now.
    fn holds(&self, place: &Arc<Place>, bytes: usize, now: Instant) -> bool {
        let mut open = self.open();
        loop {
            let is_other = |other: &Arc<Place>| !Arc::ptr_eq(other, place) && other.held() > 0;
            let others: usize = open.iter().filter(|other| is_other(other)).map(|other| other.held()).sum();
            if others == 0 || others + bytes <= self.bytes_max {
                place.hold(bytes, now);
                return true;
            }
            let readers = open.iter().enumerate().filter(|(_, other)| is_other(other));
            let slow = readers.filter_map(|(at, other)| Some((at, other.rate(now)?)));
            let Some((slowest, _)) = slow.min_by_key(|(_, rate)| *rate) else { return false };
            open.remove(slowest).end();
            (self.made_way)(MadeWayFor::Memory);
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Arc<Place>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn new(network: Option<IpAddr>, began: Instant) -> Self {
        Self {
            network,
            is_proven: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            waits_for_request: AtomicBool::new(true),
            waits_for_reader: AtomicBool::new(false),
            began,
            moved_ms: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            held_since_ms: AtomicU64::new(0),
            written: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    /// The client may see everything.
    pub(crate) fn prove(&self) {
        self.is_proven.store(true, Relaxed);
    }

    fn is_proven(&self) -> bool {
        self.is_proven.load(Relaxed)
    }

    /// The response has no end.
    pub(crate) fn stream(&self) {
        self.streams.store(true, Relaxed);
    }

    pub(super) fn streams(&self) -> bool {
        self.streams.load(Relaxed)
    }

    /// Whether the rest of the request is still to come.
    pub(crate) fn wait_for_request(&self, waits: bool) {
        self.waits_for_request.store(waits, Relaxed);
    }

    /// Bytes have come from the client.
    pub(super) fn has_read(&self) {
        self.moved_ms.store(self.age_ms(Instant::now()), Relaxed);
    }

    /// The client has taken so many bytes, or `None`: it takes no more at present.
    pub(super) fn has_written(&self, bytes: Option<usize>) {
        self.waits_for_reader.store(bytes.is_none(), Relaxed);
        if let Some(bytes) = bytes {
            self.written.fetch_add(bytes as u64, Relaxed);
            self.moved_ms.store(self.age_ms(Instant::now()), Relaxed);
        }
    }

    fn age_ms(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }

    /// The largest goes first: what kind of connection it is, and for how long no byte has moved.
    fn rank(&self, now: Instant) -> (u8, u64) {
        let silent_ms = self.age_ms(now).saturating_sub(self.moved_ms.load(Relaxed));
        let waits = self.waits_for_request.load(Relaxed) || self.waits_for_reader.load(Relaxed);
        let is_stalled = waits && u128::from(silent_ms) >= STALLED.as_millis();
        let kind = match (is_stalled, self.is_proven(), waits, self.streams()) {
            (true, ..) => 4,
            (_, false, ..) => 3,
            (_, _, true, _) => 2,
            (_, _, false, false) => 1,
            (_, _, false, true) => 0,
        };
        (kind, silent_ms)
    }

    fn hold(&self, bytes: usize, now: Instant) {
        self.held.store(bytes, Relaxed);
        self.held_since_ms.store(self.age_ms(now), Relaxed);
        self.written.store(0, Relaxed);
    }

    /// The bytes of its large response; 0 if it has none.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// How fast its client reads its large response, in bytes a second; `None` before that can be said.
    fn rate(&self, now: Instant) -> Option<u64> {
        let passed_ms = self.age_ms(now).saturating_sub(self.held_since_ms.load(Relaxed));
        let is_known = u128::from(passed_ms) >= STALLED.as_millis();
        is_known.then(|| self.written.load(Relaxed).saturating_mul(1000) / passed_ms.max(1))
    }

    /// Ends the connection at once.
    pub(crate) fn end(&self) {
        self.ended.notify_one();
    }

    /// Waits until the connection must end.
    pub(super) async fn ended(&self) {
        self.ended.notified().await;
    }

    #[cfg(test)]
    pub(crate) fn of_a_test() -> Arc<Self> {
        let place = Self::new(None, Instant::now());
        place.prove();
        place.stream();
        Arc::new(place)
    }

    /// Whether it must end.
    #[cfg(test)]
    pub(crate) async fn must_end(&self) -> bool {
        tokio::time::timeout(Duration::ZERO, self.ended()).await.is_ok()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.open().retain(|place| !Arc::ptr_eq(place, &self.place));
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places there are in a test.
    const PLACES: usize = 4;

    struct Full {
        places: Arc<Places>,
        made_way: Noted,
        taken: Vec<Taken>,
        begin: Instant,
    }

    /// What connections had to end for.
    type Noted = Arc<Mutex<Vec<MadeWayFor>>>;

    fn places() -> (Arc<Places>, Noted) {
        let noted = Noted::default();
        let noting = noted.clone();
        (Places::new(PLACES, 2, 1000, move |made_way| noting.lock().unwrap().push(made_way)), noted)
    }

    /// All places are taken by clients that have proved who they are and have sent their requests.
    fn full() -> Full {
        let ((places, made_way), begin) = (places(), Instant::now());
        let taken: Vec<_> = (0..PLACES)
            .map(|_| {
                let taken = places.take(None, begin);
                taken.place.prove();
                taken.place.wait_for_request(false);
                taken
            })
            .collect();
        Full { places, made_way, taken, begin }
    }

    impl Full {
        /// A connection comes after so many milliseconds. Which one has to end?
        async fn ends_after(&self, ms: u64) -> Option<usize> {
            let _new = self.places.take(None, self.begin + Duration::from_millis(ms));
            let mut ended = Vec::new();
            for (at, taken) in self.taken.iter().enumerate() {
                if taken.place.must_end().await {
                    ended.push(at);
                }
            }
            assert!(ended.len() <= 1, "{ended:?}");
            assert_eq!(*self.made_way.lock().unwrap(), vec![MadeWayFor::Place; ended.len()]);
            ended.pop()
        }
    }

    #[tokio::test]
    async fn a_client_that_keeps_the_server_waiting_makes_place() {
        // Reads nothing, or sends no body, whoever it is.
        for stall in [|place: &Place| place.has_written(None), |place: &Place| place.wait_for_request(true)] {
            let full = full();
            stall(&full.taken[2].place);
            full.taken[1].place.stream();
            assert_eq!(full.ends_after(10).await, Some(2));
        }
        // One that is stalled goes before one that has proved nothing and has just come.
        let full = full();
        full.taken[3].place.has_written(None);
        let unproven = &full.taken[0].place;
        unproven.is_proven.store(false, Relaxed);
        unproven.moved_ms.store(1900, Relaxed);
        assert_eq!(full.ends_after(2000).await, Some(3));
        // Before that, the one that has proved nothing goes.
        let full = self::full();
        full.taken[3].place.has_written(None);
        full.taken[0].place.is_proven.store(false, Relaxed);
        assert_eq!(full.ends_after(500).await, Some(0));
        // Of several, the one that is silent for longest.
        let full = self::full();
        for (taken, ms) in full.taken.iter().zip([500, 300, 0, 400]) {
            taken.place.has_written(None);
            taken.place.moved_ms.store(ms, Relaxed);
        }
        assert_eq!(full.ends_after(5000).await, Some(2));
    }

    #[tokio::test]
    async fn streams_that_are_read_end_last() {
        let full = full();
        full.taken.iter().for_each(|taken| taken.place.stream());
        full.taken[1].place.streams.store(false, Relaxed);
        full.taken[1].place.moved_ms.store(4000, Relaxed);
        assert_eq!(full.ends_after(5000).await, Some(1));
    }

    #[tokio::test]
    async fn the_slowest_reader_ends_if_responses_need_its_memory() {
        let full = full();
        let places = |ms| full.begin + Duration::from_millis(ms);
        let [one, two, three, four] = [0, 1, 2, 3].map(|at| &full.taken[at].place);
        assert!(full.places.holds(one, 400, places(0)) && full.places.holds(two, 400, places(0)));
        one.has_written(Some(1));
        two.has_written(Some(300));
        // Nobody knows yet who is slow.
        assert!(!full.places.holds(three, 400, places(10)));
        assert!(full.places.holds(three, 400, places(1000)));
        assert!(one.must_end().await && !two.must_end().await);
        // A response that is larger than all that may wait has all of it.
        assert!(!full.places.holds(four, 5000, places(1500)));
        assert!(full.places.holds(four, 5000, places(2000)));
        assert!(two.must_end().await && three.must_end().await);
        assert_eq!(*full.made_way.lock().unwrap(), [MadeWayFor::Memory; 3]);
    }

    #[tokio::test]
    async fn one_address_has_few_places_that_prove_nothing() {
        let ((places, made_way), now) = (places(), Instant::now());
        let client = Some("192.0.2.1".parse().unwrap());
        let taken: Vec<_> = (0..3).map(|_| places.take(client, now)).collect();
        assert!(taken[0].place.must_end().await && !taken[1].place.must_end().await);
        assert_eq!(*made_way.lock().unwrap(), [MadeWayFor::Address]);
        drop(taken);
        assert!(places.open().is_empty());
    }
}
