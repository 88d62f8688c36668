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

use std::cell::{Cell, RefCell};
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
use crate::worker::ListenerView;

/// Bytes of bodies that a worker holds at once, before endpoints have them and until their responses begin.
pub(crate) const BUFFERED_BYTES_MAX: usize = 128 << 20;

/// Bodies that a worker decompresses at once. Each needs its window: 32 KiB for gzip, up to 8 MiB for zstd and up to 16 MiB for Brotli, but no
/// more than the body has.
pub(crate) const DECOMPRESSING_MAX: usize = 32;

/// Those of one client: a permit is taken with the head, before anything of the body has arrived, and kept as long as the body may take.
const DECOMPRESSING_OF_CLIENT_MAX: usize = 8;

/// What a worker has of the bodies of requests.
pub(crate) struct Bodies {
    /// `0 <= bytes <= BUFFERED_BYTES_MAX`
    bytes: Rc<Cell<usize>>,
    /// The client of each body that is decompressed: up to [`DECOMPRESSING_MAX`].
    decompressing: Rc<RefCell<Vec<IpAddr>>>,
    registry: Arc<Registry>,
    worker: usize,
}

/// The room of one body that is collected.
pub(crate) struct Room {
    in_use: Rc<Cell<usize>>,
    bytes: usize,
}

/// Permission to decompress one body of this client.
struct Permit {
    all: Rc<RefCell<Vec<IpAddr>>>,
    client: IpAddr,
}

impl Permit {
    /// `None` if there are as many as there may be.
    fn take(all: &Rc<RefCell<Vec<IpAddr>>>, client: IpAddr) -> Option<Self> {
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
        Self { bytes: Rc::default(), decompressing: Rc::default(), registry, worker }
    }

    /// Room for a body of which nothing has arrived; `None` if there is no room for another one.
    pub(crate) fn room(&self) -> Option<Room> {
        let mut room = Room { in_use: self.bytes.clone(), bytes: 0 };
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
        (self.bytes.get(), self.decompressing.borrow().len())
    }
}

impl Room {
    /// Takes room for this many bytes in total. Returns false if there is not that much.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let others = self.in_use.get().saturating_sub(self.bytes);
        if others + bytes > BUFFERED_BYTES_MAX || memory::pressure() == Pressure::Full {
            return false;
        }
        // The bytes are in memory that no reading of the process has seen yet.
        memory::note_allocated(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.max(bytes);
        self.in_use.set(others + self.bytes);
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if !faults::is_injected(InjectedFault::LeaksRoom) {
            self.in_use.set(self.in_use.get().saturating_sub(self.bytes));
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
        let bodies = Bodies::new(Arc::default(), 0);
        let (mut first, mut second) = (bodies.room().unwrap(), bodies.room().unwrap());
        assert!(first.grow(1000) && first.grow(BUFFERED_BYTES_MAX - 500));
        assert!(second.grow(500) && !second.grow(501));
        assert_eq!(bodies.in_use(), (BUFFERED_BYTES_MAX, 0));
        drop(first);
        assert!(second.grow(501));
        assert_eq!(bodies.in_use(), (501, 0));
        drop(second);
        assert_eq!(bodies.in_use(), (0, 0));
    }
}
