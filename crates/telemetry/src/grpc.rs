//! Counters of gRPC methods, including methods that no route names, bounded so that clients cannot create series.
//!
//! A route names a service, and often none of its methods. Methods that are called get counters of their own, up to a bound. The caller
//! asks for the counters of a method only after an endpoint has shown that it knows the method.

use std::array;

use crate::counter::Counter;

/// How many methods of one service of one listener are counted separately. The others are counted together, as [`OTHER_METHODS`].
pub const METHODS_MAX: usize = 64;

/// Stands for the methods that are not counted separately. No method has this name.
pub const OTHER_METHODS: &str = "*";

/// gRPC status codes: 0 to 16.
const CODES: usize = model::GRPC_STATUS_NAMES.len();

/// Whether a call that ended with this code failed through the fault of a server, as OpenTelemetry's semantic conventions for gRPC have it: UNKNOWN,
/// DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE and DATA_LOSS. A number that is no code counts as UNKNOWN.
pub fn is_fault_of_server(code: u8) -> bool {
    matches!(code, 2 | 4 | 12 | 13 | 14 | 15) || usize::from(code) >= CODES
}

/// Whether a response with this status, or a call that ended with this code, failed through the fault of a server.
pub(crate) fn is_fault(status: u16, code: Option<u8>) -> bool {
    status >= 500 || code.is_some_and(is_fault_of_server)
}

/// Identifies the counters of a method.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MethodKey {
    /// The name of the listener.
    pub listener: String,
    /// The service with its package: `helloworld.Greeter`.
    pub service: String,
    /// The method, such as `SayHello`, or [`OTHER_METHODS`].
    pub method: String,
}

/// Counters of calls that ended, by their code.
#[derive(Debug)]
pub struct CodeCounters([Counter; CODES]);

/// Sums of calls that ended, by their code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodeTotals(pub(crate) [u64; CODES]);

impl CodeCounters {
    /// Counts a call that ended with this code. A number that is not a code counts as UNKNOWN, which is how clients treat it.
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
    /// Each code that was counted at least once, by name, and its count.
    pub fn counted(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        model::GRPC_STATUS_NAMES.into_iter().zip(self.0).filter(|(_, count)| *count > 0)
    }

    /// The number of calls.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of calls that ended with OK.
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
