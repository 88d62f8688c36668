//! The connections that an address may have at a time, and which of them make place for others.
//!
//! A connection whose client has not proved that it may see everything can be ended at any time: its client may be somebody who opens
//! connections and says nothing, so that a probe or an operator finds no place.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::access::network;

/// The places.
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// Connections of one address whose clients have proved nothing.
    of_address_max: usize,
    /// Those, the oldest first.
    unproven: Mutex<VecDeque<Arc<Place>>>,
}

/// The place of one connection.
#[derive(Debug)]
pub(crate) struct Place {
    /// `None` is a Unix socket.
    network: Option<IpAddr>,
    is_proven: AtomicBool,
    streams: AtomicBool,
    ended: Notify,
}

/// Keeps a place taken until it is dropped.
pub(super) struct Taken {
    places: Arc<Places>,
    pub(super) place: Arc<Place>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(places: usize, of_address_max: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(places));
        Arc::new(Self { free, of_address_max, unproven: Mutex::default() })
    }

    /// Takes a place for a connection of this client. If there is none, or if the client has many, the oldest connection that has proved
    /// nothing ends. Waits if all have.
    pub(super) async fn take(self: &Arc<Self>, client: Option<IpAddr>) -> Option<Taken> {
        let network = client.map(network);
        self.make_place(network);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok()?;
        let place = Arc::new(Place {
            network,
            is_proven: AtomicBool::new(false),
            streams: AtomicBool::new(false),
            ended: Notify::new(),
        });
        self.unproven().push_back(Arc::clone(&place));
        Some(Taken { places: Arc::clone(self), place, _permit: permit })
    }

    fn make_place(&self, network: Option<IpAddr>) {
        let mut unproven = self.unproven();
        unproven.retain(|place| !place.is_proven.load(Relaxed));
        let of_client = unproven.iter().filter(|place| place.network == network).count();
        let oldest = if of_client >= self.of_address_max {
            unproven.iter().position(|place| place.network == network)
        } else if self.free.available_permits() == 0 {
            (!unproven.is_empty()).then_some(0)
        } else {
            None
        };
        if let Some(place) = oldest.and_then(|oldest| unproven.remove(oldest)) {
            place.end();
        }
    }

    fn unproven(&self) -> MutexGuard<'_, VecDeque<Arc<Place>>> {
        self.unproven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// The client may see everything: its connection no longer makes place for others.
    pub(crate) fn prove(&self) {
        self.is_proven.store(true, Relaxed);
    }

    /// The response has no end.
    pub(crate) fn stream(&self) {
        self.streams.store(true, Relaxed);
    }

    pub(super) fn streams(&self) -> bool {
        self.streams.load(Relaxed)
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
        let (is_proven, streams) = (AtomicBool::new(true), AtomicBool::new(true));
        Arc::new(Self { network: None, is_proven, streams, ended: Notify::new() })
    }

    /// Whether it must end.
    #[cfg(test)]
    pub(crate) async fn must_end(&self) -> bool {
        tokio::time::timeout(std::time::Duration::ZERO, self.ended()).await.is_ok()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.places.unproven().retain(|place| !Arc::ptr_eq(place, &self.place));
    }
}
