//! Exemplars: for each bucket of a histogram, the last request that has a trace.
//!
//! Only requests that are recorded for their trace come here, so nothing is spent on the others. A worker never waits: while the control
//! thread reads, the exemplar is left out.

use std::sync::{Mutex, PoisonError};

/// Powers of two in microseconds, up to 2^26 (67 s), and one for what took longer.
const SLOTS: usize = 28;

/// A request that stands for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// Its trace.
    pub trace_id: [u8; 16],
    /// How long it took, in microseconds.
    pub us: u64,
    /// When it ended, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// The exemplars of a histogram, of one worker.
#[derive(Debug, Default)]
pub struct Exemplars(Mutex<Option<Box<Slots>>>);

#[derive(Debug, PartialEq, Eq, Clone)]
struct Slots([Option<Exemplar>; SLOTS]);

impl Default for Slots {
    fn default() -> Self {
        Self([None; SLOTS])
    }
}

/// The newest exemplars of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExemplarTotals(Option<Box<Slots>>);

impl Exemplars {
    /// Keeps one, if nobody reads at this moment.
    pub fn record(&self, exemplar: Exemplar) {
        if let Ok(mut slots) = self.0.try_lock()
            && let Some(slot) = slots.get_or_insert_default().0.get_mut(slot_of(exemplar.us))
        {
            *slot = Some(exemplar);
        }
    }

    /// Adds what it holds now to `total`.
    pub(crate) fn add_to(&self, total: &mut ExemplarTotals) {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(slots) = &*slots else { return };
        for (total, ours) in total.0.get_or_insert_default().0.iter_mut().zip(&slots.0) {
            if ours.is_some_and(|ours| total.is_none_or(|total| ours.unix_ms > total.unix_ms)) {
                *total = *ours;
            }
        }
    }
}

impl ExemplarTotals {
    /// The newest that took more than `after_us`, and at most `us` if there is a limit. The limits are powers of two.
    pub(crate) fn within(&self, after_us: u64, us: Option<u64>) -> Option<&Exemplar> {
        let fits = |exemplar: &&Exemplar| exemplar.us > after_us && us.is_none_or(|us| exemplar.us <= us);
        self.0.as_ref()?.0.iter().flatten().filter(fits).max_by_key(|exemplar| exemplar.unix_ms)
    }
}

/// The first power of two that is not below `us`.
fn slot_of(us: u64) -> usize {
    let power = us.checked_next_power_of_two().map_or(u64::BITS, u64::ilog2);
    (power as usize).min(SLOTS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_each_bucket() {
        let exemplar = |us, unix_ms| Exemplar { trace_id: [1; 16], us, unix_ms };
        let (one, other) = (Exemplars::default(), Exemplars::default());
        let mut totals = ExemplarTotals::default();
        one.add_to(&mut totals);
        assert_eq!(totals, ExemplarTotals::default());
        for kept in [exemplar(3, 10), exemplar(4, 20), exemplar(0, 5), exemplar(u64::MAX, 7)] {
            one.record(kept);
        }
        other.record(exemplar(3, 15));
        other.record(exemplar(5, 1));
        one.add_to(&mut totals);
        other.add_to(&mut totals);
        assert_eq!(totals.within(2, Some(4)), Some(&exemplar(4, 20)));
        assert_eq!(totals.within(4, Some(8)), Some(&exemplar(5, 1)));
        assert_eq!(totals.within(8, Some(16)), None);
        assert_eq!(totals.within(1 << 26, None), Some(&exemplar(u64::MAX, 7)));
        let slots = [0, 1, 2, 3, 4, 5, 1 << 26, (1 << 26) + 1, u64::MAX].map(slot_of);
        assert_eq!(slots, [0, 0, 1, 2, 2, 3, 26, 27, 27]);
    }
}
