//! Faults planted by hand, to see that the simulation finds them. Outside of its tests there are none, and nothing of this is compiled.

/// A fault. Each was made once, here or by others, or is easily made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
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

/// Whether this fault is there.
#[cfg(test)]
pub(crate) fn is(fault: Fault) -> bool {
    test::is_planted(fault)
}

/// It is not.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is(_fault: Fault) -> bool {
    false
}

#[cfg(test)]
pub(crate) mod test {
    use std::cell::Cell;

    use super::Fault;

    pub(crate) const ALL: [Fault; 24] = [
        Fault::ResetIsProof,
        Fault::ReusedIsStale,
        Fault::RetriesPost,
        Fault::LeaksLease,
        Fault::WaitsForEver,
        Fault::EndsTruncated,
        Fault::LosesBytes,
        Fault::RewindsForgotten,
        Fault::RetriesForEver,
        Fault::AnswersTwice,
        Fault::ReusesBusy,
        Fault::PassesAllInterims,
        Fault::ForgetsMax,
        Fault::StaysWhenEnding,
        Fault::InterimsToHttp10,
        Fault::ForgetsDeadline,
        Fault::RelaysForEver,
        Fault::ForgetsToJudge,
        Fault::CountsFirstTry,
        Fault::CountsInterimTwice,
        Fault::SurvivesCut,
        Fault::DropsTrailers,
        Fault::LeaksResponse,
        Fault::KeepsDeadline,
    ];

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    /// On this thread, from now on.
    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }

    pub(super) fn is_planted(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }
}
