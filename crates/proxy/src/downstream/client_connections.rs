//! How many connections each client of a listener has open, over all workers.
//!
//! A client is in the table while it has a connection, so the table is never larger than the listener's own limit of connections, and there is
//! nothing that it could forget.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::policy::rate_limit::network;

/// Locks, each for the same share of the clients. A connection takes one when it begins and when it ends.
const PARTS: usize = 16;

/// The counts of one listener.
#[derive(Debug, Default)]
pub(crate) struct ClientConnections {
    /// By the client's network. The hash of the map is keyed, so no client can choose a place in it.
    parts: [Mutex<HashMap<u64, usize>>; PARTS],
}

/// A connection that counts for its client until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientPermit {
    of: Arc<ClientConnections>,
    network: u64,
}

impl ClientConnections {
    /// Counts a connection of this client, unless it has this many already.
    pub(crate) fn acquire(self: &Arc<Self>, client: IpAddr, max: usize) -> Option<ClientPermit> {
        let network = network(client);
        {
            let mut part = self.part(network)?;
            match part.entry(network) {
                Entry::Occupied(open) if *open.get() >= max => return None,
                Entry::Occupied(mut open) => *open.get_mut() += 1,
                Entry::Vacant(vacant) => drop(vacant.insert(1)),
            }
        }
        Some(ClientPermit { of: self.clone(), network })
    }

    fn part(&self, network: u64) -> Option<MutexGuard<'_, HashMap<u64, usize>>> {
        // Neighbours are in different parts, and so are the networks of one provider, which differ above the lowest bits.
        let folded = network ^ (network >> 16) ^ (network >> 32);
        // A thread that panicked has left no count half changed.
        self.parts.get(folded as usize % PARTS).map(|part| part.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let Some(mut part) = self.of.part(self.network) else { return };
        if let Entry::Occupied(mut open) = part.entry(self.network) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
                // A flood of clients leaves no memory behind.
                if part.len() * 8 < part.capacity() {
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn clients(table: &ClientConnections) -> usize {
        table.parts.iter().map(|part| part.lock().unwrap().len()).sum()
    }

    #[test]
    fn a_client_has_so_many_and_others_have_their_own() {
        let table = Arc::new(ClientConnections::default());
        let acquire = |text: &str| table.acquire(ip(text), 2);
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
        let table = Arc::new(ClientConnections::default());
        let all: Vec<_> = (0..1_000_000_u32)
            .map(|number| table.acquire(std::net::Ipv4Addr::from(number).into(), 1).unwrap())
            .collect();
        assert_eq!(clients(&table), 1_000_000);
        drop(all);
        let capacity: usize = table.parts.iter().map(|part| part.lock().unwrap().capacity()).sum();
        assert!(clients(&table) == 0 && capacity < 1000, "{capacity}");
    }

    #[test]
    fn workers_together_allow_no_more_than_one_would() {
        const WORKERS: usize = 4;
        let (table, open, most) = (Arc::new(ClientConnections::default()), AtomicUsize::new(0), AtomicUsize::new(0));
        let start = Barrier::new(WORKERS);
        std::thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(|| {
                    start.wait();
                    for _ in 0..20_000 {
                        let permits: Vec<_> = (0..3).filter_map(|_| table.acquire(ip("192.0.2.1"), 5)).collect();
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
