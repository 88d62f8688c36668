//! What is counted about a method of gRPC, and how methods that no route names get counters without their clients making series.
//!
//! A route names a service, and often none of its methods. Those that calls are made to are counted each for itself, up to a bound; so the
//! caller asks for the counters of a method only when an endpoint has shown that it knows it.

use std::array;

use crate::counter::Counter;

/// Methods of one service of one listener that are counted apart; all others are counted together, as [`OTHER_METHODS`].
pub const METHODS_MAX: usize = 64;

/// What stands for the methods that are not counted apart. No method has this name.
pub const OTHER_METHODS: &str = "*";

/// Codes of gRPC: 0 to 16.
const CODES: usize = model::GRPC_STATUS_NAMES.len();

/// Tells the counters of a method from those of another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MethodKey {
    /// The listener's name.
    pub listener: String,
    /// With its package: `helloworld.Greeter`.
    pub service: String,
    /// `SayHello`, or [`OTHER_METHODS`].
    pub method: String,
}

/// Counters of calls that ended, by their code.
#[derive(Debug)]
pub struct CodeCounters([Counter; CODES]);

/// Sums of calls that ended, by their code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeTotals(pub(crate) [u64; CODES]);

impl CodeCounters {
    /// One more call that ended with this code. A number that is no code counts as UNKNOWN, which clients take it for.
    pub fn inc(&self, code: u8) {
        const UNKNOWN: usize = 2;
        let place = Some(usize::from(code)).filter(|code| *code < CODES).unwrap_or(UNKNOWN);
        self.0[place].inc();
    }

    pub(crate) fn add_to(&self, totals: &mut CodeTotals) {
        for (total, counter) in totals.0.iter_mut().zip(&self.0) {
            *total = total.wrapping_add(counter.get());
        }
    }
}

impl CodeTotals {
    /// Each code that was counted at least once, by its name, and how often.
    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        model::GRPC_STATUS_NAMES.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// All calls.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that ended well.
    pub fn ok(&self) -> u64 {
        self.0[0]
    }
}

impl Default for CodeCounters {
    fn default() -> Self {
        Self(array::from_fn(|_| Counter::default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_by_name() {
        let counters = CodeCounters::default();
        [0, 0, 14, 16, 17, 255].into_iter().for_each(|code| counters.inc(code));
        let mut totals = CodeTotals::default();
        counters.add_to(&mut totals);
        let counted: Vec<_> = totals.counted().collect();
        assert_eq!(counted, [("OK", 2), ("UNKNOWN", 2), ("UNAVAILABLE", 1), ("UNAUTHENTICATED", 1)]);
        assert_eq!((totals.sum(), totals.ok()), (6, 2));
    }
}
