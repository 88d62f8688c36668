//! Counters for the reasons that have occurred. A route may have any reason and has few, and there may be thousands of routes, so each takes memory
//! with the first request that it concerns.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::counter::Counter;
use crate::groups::Summed;
use crate::reason::Reason;

/// Counters of the reasons that have occurred. A request for which nothing went wrong does not touch them.
#[derive(Debug, Default)]
pub struct OccurredReasons(OnceLock<Box<Part>>);

/// A cache line of counters. Its places are taken from the first on, and never given back: `1 + Reason::ALL.len() / PLACES` parts at most.
#[derive(Debug, Default)]
struct Part {
    counts: [(OnceLock<Reason>, Counter); PLACES],
    next: OccurredReasons,
}

/// Most routes have no more reasons than this.
const PLACES: usize = 3;

impl OccurredReasons {
    /// Counts one more.
    pub fn inc(&self, reason: Reason) {
        let mut part = self.0.get_or_init(Box::default);
        loop {
            let own = part.counts.iter().find(|(of, _)| *of.get_or_init(|| reason) == reason);
            if let Some((_, count)) = own {
                return count.inc();
            }
            part = part.next.0.get_or_init(Box::default);
        }
    }

    /// Each reason that has occurred, and its count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        let parts = std::iter::successors(self.0.get(), |part| part.next.0.get());
        parts.flat_map(|part| &part.counts).filter_map(|(of, count)| Some((*of.get()?, count.get())))
    }
}

impl Summed for OccurredReasons {
    type Total = BTreeMap<Reason, u64>;

    fn add_to(&self, total: &mut BTreeMap<Reason, u64>) {
        self.counted().for_each(|(reason, count)| *total.entry(reason).or_default() += count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_occurred_takes_memory() {
        let counters = OccurredReasons::default();
        assert!(counters.0.get().is_none() && counters.counted().next().is_none());
        (0..3).for_each(|_| counters.inc(Reason::ConnectRefused));
        counters.inc(Reason::BadHeader);
        let mut total = BTreeMap::new();
        counters.add_to(&mut total);
        counters.add_to(&mut total);
        assert_eq!(total, [(Reason::ConnectRefused, 6), (Reason::BadHeader, 2)].into());
        assert_eq!((size_of::<OccurredReasons>(), size_of::<Part>()), (16, 64));
        assert!(counters.0.get().is_some_and(|part| part.next.0.get().is_none()));
    }

    #[test]
    fn every_reason_has_a_place() {
        let counters = OccurredReasons::default();
        for round in 1..=2 {
            Reason::ALL.iter().rev().for_each(|reason| counters.inc(*reason));
            let mut total = BTreeMap::new();
            counters.add_to(&mut total);
            assert_eq!(total, Reason::ALL.iter().map(|reason| (*reason, round)).collect());
        }
        let parts = std::iter::successors(counters.0.get(), |part| part.next.0.get()).count();
        assert!(parts <= 1 + Reason::ALL.len() / PLACES, "{parts}");
    }
}
