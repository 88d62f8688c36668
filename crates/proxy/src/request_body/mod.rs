//! The bodies of requests that do not pass as they arrive: how much of them a worker holds, and how they are decompressed.
//!
//! | what | file |
//! |---|---|
//! | which bodies are decompressed, and what is left of their heads | `decide` |
//! | gzip, Brotli and zstd | `decoder` |
//! | a body that is being decompressed | `decompressing` |

mod decide;
mod decoder;
mod decompressing;

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use model::{Decompression, Encoding};
use net::memory::{self, Pressure};
use telemetry::{BodyCounters, Registry};

pub(crate) use decide::{accepted, encoding_of, strip};
pub(crate) use decoder::Invalid;
pub(crate) use decompressing::{Decompressing, Undecoded};

use self::decoder::Decoder;
use crate::exchange::faults::{self, InjectedFault};
use crate::policy::rate_limit::network;
use crate::worker::ListenerView;

/// Bytes of bodies that a worker holds at once, before endpoints have them and until their responses begin.
pub(crate) const BUFFERED_BYTES_MAX: usize = 128 << 20;

/// Those of one client: two of the largest bodies that a route may collect.
const BUFFERED_BYTES_OF_CLIENT_MAX: usize = 32 << 20;

/// Bodies that a worker decompresses at once. Each needs its window: 32 KiB for gzip, up to 8 MiB for zstd and up to 16 MiB for Brotli, but no
/// more than the body has.
pub(crate) const DECOMPRESSING_MAX: usize = 32;

/// Those of one client: a permit is taken with the head, before anything of the body has arrived, and kept as long as the body may take.
const DECOMPRESSING_OF_CLIENT_MAX: usize = 8;

/// What a worker has of the bodies of requests.
pub(crate) struct Bodies {
    buffered: Rc<RefCell<Buffered>>,
    /// The client ([`network`]) of each body that is decompressed: up to [`DECOMPRESSING_MAX`].
    decompressing: Rc<RefCell<Vec<u64>>>,
    registry: Arc<Registry>,
    worker: usize,
}

/// The bytes of bodies that are collected.
#[derive(Default)]
struct Buffered {
    /// `0 <= bytes <= BUFFERED_BYTES_MAX`
    bytes: usize,
    /// Those of each client ([`network`]) that has any. Their sum is `bytes`.
    of_clients: HashMap<u64, usize>,
}

/// The room of one body that is collected.
pub(crate) struct Room {
    buffered: Rc<RefCell<Buffered>>,
    client: u64,
    bytes: usize,
}

/// Permission to decompress one body of this client.
struct Permit {
    all: Rc<RefCell<Vec<u64>>>,
    client: u64,
}

impl Permit {
    /// `None` if there are as many as there may be.
    fn take(all: &Rc<RefCell<Vec<u64>>>, client: IpAddr) -> Option<Self> {
        let client = network(client);
        let mut taken = all.borrow_mut();
        let of_client = taken.iter().filter(|other| **other == client).count();
        if taken.len() >= DECOMPRESSING_MAX || of_client >= DECOMPRESSING_OF_CLIENT_MAX {
            return None;
        }
        taken.push(client);
        Some(Self { all: all.clone(), client })
    }
}

impl Bodies {
    pub(crate) fn new(registry: Arc<Registry>, worker: usize) -> Self {
        Self { buffered: Rc::default(), decompressing: Rc::default(), registry, worker }
    }

    /// Room for a body of this client of which nothing has arrived; `None` if there is no room for another one.
    pub(crate) fn room(&self, client: IpAddr) -> Option<Room> {
        let mut room = Room { buffered: self.buffered.clone(), client: network(client), bytes: 0 };
        room.grow(0).then_some(room)
    }

    /// Counts a body of the route with this number that was collected.
    pub(crate) fn count(&self, listener: &ListenerView, route: usize, bytes: usize) {
        if let Some(counters) = listener.body_counters(&self.registry, self.worker, route) {
            counters.buffered.inc();
            counters.buffered_bytes.add(bytes as u64);
        }
    }

    /// Begins to decompress the body of a request to the route with this number. Returns `None` if there is no room for it now.
    pub(crate) fn decompress(
        &self,
        listener: &ListenerView,
        route: usize,
        policy: &Decompression,
        encoding: Encoding,
        client: IpAddr,
    ) -> Option<Decompressing> {
        let counters: &Arc<BodyCounters> = listener.body_counters(&self.registry, self.worker, route)?;
        if memory::pressure() != Pressure::Low {
            return None;
        }
        let permit = Permit::take(&self.decompressing, client)?;
        let decoder = Decoder::new(encoding)?;
        counters.decompressed.inc(encoding);
        Some(Decompressing::new(decoder, policy, counters.clone(), permit))
    }

    /// Bytes that are held, and bodies that are being decompressed.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.buffered.borrow().bytes, self.decompressing.borrow().len())
    }
}

impl Room {
    /// Takes room for this many bytes in total. Returns false if there is not that much, or not for this client.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let mut buffered = self.buffered.borrow_mut();
        let of_client = buffered.of_clients.get(&self.client).copied().unwrap_or_default();
        let is_too_much = buffered.bytes + more > BUFFERED_BYTES_MAX || of_client + more > BUFFERED_BYTES_OF_CLIENT_MAX;
        if is_too_much || memory::pressure() == Pressure::Full {
            return false;
        }
        if more > 0 {
            // The bytes are in memory that no reading of the process has seen yet.
            memory::note_allocated(more);
            self.bytes = bytes;
            buffered.bytes += more;
            *buffered.of_clients.entry(self.client).or_default() += more;
        }
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !faults::is_injected(InjectedFault::LeaksRoom) {
            let mut buffered = self.buffered.borrow_mut();
            buffered.bytes = buffered.bytes.saturating_sub(self.bytes);
            if let Entry::Occupied(mut of_client) = buffered.of_clients.entry(self.client) {
                *of_client.get_mut() = of_client.get().saturating_sub(self.bytes);
                if *of_client.get() == 0 {
                    of_client.remove();
                }
            }
        }
        memory::note_freed(self.bytes);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        if let Some(at) = all.iter().position(|client| *client == self.client) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_does_not_have_all_permits() {
        let all = Rc::default();
        let client = |number: u8| IpAddr::from([192, 0, 2, number]);
        let permits = |number| (0..40).map_while(|_| Permit::take(&all, client(number))).collect::<Vec<_>>();
        let first = permits(1);
        assert_eq!(first.len(), DECOMPRESSING_OF_CLIENT_MAX);
        let others: Vec<_> = (2..10).map(permits).collect();
        assert_eq!(others.iter().map(Vec::len).sum::<usize>(), DECOMPRESSING_MAX - DECOMPRESSING_OF_CLIENT_MAX);
        drop(first);
        assert_eq!(permits(10).len(), DECOMPRESSING_OF_CLIENT_MAX);
        drop(others);
        assert_eq!(all.borrow().len(), 0);
    }

    #[test]
    fn bodies_share_the_room_of_a_worker() {
        const SHARE: usize = BUFFERED_BYTES_OF_CLIENT_MAX;
        let bodies = Bodies::new(Arc::default(), 0);
        let room = |client: [u8; 4]| bodies.room(client.into()).unwrap();
        let (mut first, mut second) = (room([192, 0, 2, 1]), room([192, 0, 2, 1]));
        assert!(first.grow(1000) && first.grow(SHARE - 500) && first.grow(0));
        assert!(second.grow(500) && !second.grow(501), "that is all for one client");
        let mut others: Vec<Room> = (2..6).map(|client| room([192, 0, 2, client])).collect();
        let granted: Vec<bool> = others.iter_mut().map(|room| room.grow(SHARE)).collect();
        assert_eq!(granted, [true, true, true, false]);
        assert_eq!(bodies.in_use(), (BUFFERED_BYTES_MAX, 0));
        drop(first);
        assert!(second.grow(501) && !others[3].grow(SHARE) && others[3].grow(SHARE - 501));
        drop(second);
        assert_eq!(bodies.in_use(), (BUFFERED_BYTES_MAX - 501, 0));
        drop(others);
        assert_eq!((bodies.in_use(), bodies.buffered.borrow().of_clients.len()), ((0, 0), 0));
    }

    #[test]
    fn addresses_of_one_network_are_one_client() {
        let bodies = Bodies::new(Arc::default(), 0);
        let room = |client: &str| bodies.room(client.parse().unwrap()).unwrap();
        let mut first = room("2001:db8:0:1::1");
        assert!(first.grow(BUFFERED_BYTES_OF_CLIENT_MAX));
        assert!(!room("2001:db8:0:1:ffff::2").grow(1) && room("2001:db8:0:2::1").grow(1));
    }
}
