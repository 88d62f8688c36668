//! How much each client has of something at once, over all workers: open connections of a listener, requests in progress of routes.
//!
//! A client is in the table while it has anything, so the table is never larger than what there is of the thing (connections, requests), and
//! there is nothing that it could forget. A table with a place for each client that was ever seen could do without a lock, and would have to
//! forget clients that still have something.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Locks, each for the same share of the clients. One is taken at the beginning and at the end of what is counted, for one step in a map.
const PARTS: usize = 32;

/// A part with room for this many clients keeps its memory when they are gone.
const KEPT_MAX: usize = 14;

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// By the key of the client. The hash of the map is keyed, so no client can choose a place in it.
    parts: [Mutex<HashMap<u64, usize>>; PARTS],
}

/// One that counts for its client until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    of: Arc<Counts>,
    key: u64,
}

impl Counts {
    /// Counts one more of the client with this key, unless it has this many already.
    pub(crate) fn acquire(self: &Arc<Self>, key: u64, max: usize) -> Option<Permit> {
        {
            let mut part = self.part(key)?;
            match part.entry(key) {
                Entry::Occupied(open) if *open.get() >= max => return None,
                Entry::Occupied(mut open) => *open.get_mut() += 1,
                Entry::Vacant(vacant) => drop(vacant.insert(1)),
            }
        }
        Some(Permit { of: self.clone(), key })
    }

    /// Of all clients together.
    #[cfg(test)]
    pub(crate) fn total(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap().values().sum::<usize>()).sum()
    }

    fn part(&self, key: u64) -> Option<MutexGuard<'_, HashMap<u64, usize>>> {
        // Neighbours are in different parts, and so are the networks of one provider, which differ above the lowest bits.
        let folded = key ^ (key >> 16) ^ (key >> 32);
        // A thread that panicked has left no count half changed.
        self.parts.get(folded as usize % PARTS).map(|part| part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(mut part) = self.of.part(self.key) else { return };
        if let Entry::Occupied(mut open) = part.entry(self.key) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
                // A flood of clients leaves no memory behind.
                if part.capacity() > KEPT_MAX && part.len() * 8 < part.capacity() {
                    part.shrink_to_fit();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::policy::rate_limit::network;

    fn key(text: &str) -> u64 {
        network(text.parse().unwrap())
    }

    fn clients(table: &Counts) -> usize {
        table.parts.iter().map(|part| part.lock().unwrap().len()).sum()
    }

    #[test]
    fn a_client_has_so_many_and_others_have_their_own() {
        let table = Arc::new(Counts::default());
        let acquire = |text: &str| table.acquire(key(text), 2);
        let first = [acquire("192.0.2.1"), acquire("::ffff:192.0.2.1")];
        assert!(first.iter().all(Option::is_some) && acquire("192.0.2.1").is_none());
        let other = acquire("192.0.2.2");
        assert!(other.is_some());
        // All addresses of a network are one client.
        let of_network = [acquire("2001:db8::1"), acquire("2001:db8::ffff:2")];
        assert!(of_network.iter().all(Option::is_some) && acquire("2001:db8::3").is_none());
        assert!(acquire("2001:db8:0:1::3").is_some());
        assert_eq!(clients(&table), 3);
        drop(first);
        let again = acquire("192.0.2.1");
        assert!(again.is_some() && clients(&table) == 3);
        drop((other, of_network, again));
        assert_eq!(clients(&table), 0);
    }

    #[test]
    fn a_million_clients_leave_nothing_behind() {
        let table = Arc::new(Counts::default());
        let all: Vec<_> = (0..1_000_000_u32)
            .map(|number| table.acquire(network(std::net::Ipv4Addr::from(number).into()), 1).unwrap())
            .collect();
        assert_eq!(clients(&table), 1_000_000);
        drop(all);
        let capacity: usize = table.parts.iter().map(|part| part.lock().unwrap().capacity()).sum();
        assert!(clients(&table) == 0 && capacity < 1000, "{capacity}");
    }

    #[test]
    fn workers_together_allow_no_more_than_one_would() {
        const WORKERS: usize = 4;
        let (table, open, most) = (Arc::new(Counts::default()), AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Barrier::new(WORKERS);
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20_000 {
                        let permits: Vec<_> = (0..3).filter_map(|_| table.acquire(key("192.0.2.1"), 5)).collect();
                        most.fetch_max(open.fetch_add(permits.len(), SeqCst) + permits.len(), SeqCst);
                        open.fetch_sub(permits.len(), SeqCst);
                        drop(permits);
                    }
                });
            }
        });
        assert!(most.load(SeqCst) <= 5, "{most:?}");
        assert_eq!(clients(&table), 0);
    }
}
