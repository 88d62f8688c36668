//! Fault injection: deliberate bugs, one at a time, to show that the simulation finds each of them. Outside of tests none can be active, and the
//! checks compile to nothing.

/// A bug. Each was made once, here or in other proxies, or is easily made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// A reset counts as proof that the endpoint has not seen the request, as an end does.
    ResetIsProof,
    /// Whatever ends a connection from the pool counts as if the request had not been seen.
    ReusedIsStale,
    /// A request that is not idempotent is sent again after a reset.
    RetriesPost,
    /// A lease is not given back where no connection could be made.
    LeaksLease,
    /// A relay whose deadline has moved does not set its timer.
    WaitsForEver,
    /// A body with a length is over when its connection is.
    EndsTruncated,
    /// What was written in part counts as written.
    LosesBytes,
    /// A body of which some is gone is sent again.
    RewindsForgotten,
    /// Retries are not counted.
    RetriesForEver,
    /// A response of ours follows half a response of the endpoint's.
    AnswersTwice,
    /// A connection is used again on which something is outstanding.
    ReusesBusy,
    /// Interim responses are not counted.
    PassesAllInterims,
    /// A connection carries more requests than the listener allows.
    ForgetsMax,
    /// A connection is kept alive though its listener is gone, or the worker drains.
    StaysWhenEnding,
    /// A client of HTTP/1.0 is sent interim responses.
    InterimsToHttp10,
    /// The head of a response is waited for beyond the route's timeout, and that of the try.
    ForgetsDeadline,
    /// A response is relayed beyond the route's timeout.
    RelaysForEver,
    /// An endpoint that cannot be reached is not told to its cluster.
    ForgetsToJudge,
    /// Only the first try is counted.
    CountsFirstTry,
    /// An interim response counts as a part of the final one.
    CountsInterimTwice,
    /// Progress moves a deadline that had come for all.
    SurvivesCut,
    /// Trailers get lost.
    DropsTrailers,
    /// A response that did not come counts as one that did.
    LeaksResponse,
    /// The next exchange finds a deadline of the last.
    KeepsDeadline,
}

/// Whether this fault is injected.
#[cfg(test)]
pub(crate) fn is_injected(fault: InjectedFault) -> bool {
    test::is_injected_here(fault)
}

/// Never outside of tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_injected(_fault: InjectedFault) -> bool {
    false
}

#[cfg(test)]
pub(crate) mod test {
    use std::cell::Cell;

    use super::InjectedFault;

    pub(crate) const ALL: [InjectedFault; 24] = [
        InjectedFault::ResetIsProof,
        InjectedFault::ReusedIsStale,
        InjectedFault::RetriesPost,
        InjectedFault::LeaksLease,
        InjectedFault::WaitsForEver,
        InjectedFault::EndsTruncated,
        InjectedFault::LosesBytes,
        InjectedFault::RewindsForgotten,
        InjectedFault::RetriesForEver,
        InjectedFault::AnswersTwice,
        InjectedFault::ReusesBusy,
        InjectedFault::PassesAllInterims,
        InjectedFault::ForgetsMax,
        InjectedFault::StaysWhenEnding,
        InjectedFault::InterimsToHttp10,
        InjectedFault::ForgetsDeadline,
        InjectedFault::RelaysForEver,
        InjectedFault::ForgetsToJudge,
        InjectedFault::CountsFirstTry,
        InjectedFault::CountsInterimTwice,
        InjectedFault::SurvivesCut,
        InjectedFault::DropsTrailers,
        InjectedFault::LeaksResponse,
        InjectedFault::KeepsDeadline,
    ];

    thread_local! {
        static INJECTED: Cell<Option<InjectedFault>> = const { Cell::new(None) };
    }

    /// Injects a fault on this thread, from now on.
    pub(crate) fn inject(fault: Option<InjectedFault>) {
        INJECTED.set(fault);
    }

    pub(super) fn is_injected_here(fault: InjectedFault) -> bool {
        INJECTED.get() == Some(fault)
    }
}
