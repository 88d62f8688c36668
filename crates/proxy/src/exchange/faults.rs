//! Fault injection: deliberate bugs, one at a time, to show that the simulation finds each of them. Outside tests none can be active, and
//! the checks compile to nothing.

/// A bug. Each has occurred once, here or in other proxies, or is an easy mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// A reset counts as proof that the endpoint has not seen the request, like a FIN.
    ResetIsProof,
    /// Any end of a pooled connection counts as if the endpoint had not seen the request.
    ReusedIsStale,
    /// A request that is not idempotent is sent again after a reset.
    RetriesPost,
    /// A lease is not returned if no connection could be made.
    LeaksLease,
    /// A relay whose deadline has moved does not set its timer.
    WaitsForEver,
    /// A body with a length counts as complete when its connection ends.
    EndsTruncated,
    /// A partial write counts as a complete one.
    LosesBytes,
    /// A body that is no longer complete is sent again.
    RewindsForgotten,
    /// Retries are not counted.
    RetriesForEver,
    /// Our own response follows half a response of the endpoint.
    AnswersTwice,
    /// A connection on which something is outstanding is reused.
    ReusesBusy,
    /// Interim responses are not counted.
    PassesAllInterims,
    /// A connection carries more requests than the listener allows.
    ForgetsMax,
    /// A connection is kept alive although its listener is gone or the worker drains.
    StaysWhenEnding,
    /// An HTTP/1.0 client gets interim responses.
    InterimsToHttp10,
    /// The wait for the head of a response exceeds the timeouts of the route and of the try.
    ForgetsDeadline,
    /// A response is relayed beyond the route's timeout.
    RelaysForEver,
    /// The cluster does not learn that an endpoint could not be reached.
    ForgetsToJudge,
    /// Only the first try is counted.
    CountsFirstTry,
    /// An interim response counts as a part of the final one.
    CountsInterimTwice,
    /// Progress moves a deadline that had already passed because the drain was over.
    OutlivesDrain,
    /// Trailers get lost.
    DropsTrailers,
    /// A response that did not arrive counts as one that did.
    LeaksResponse,
    /// The next exchange inherits a deadline of the last.
    KeepsDeadline,
    /// A request passes although its password is wrong.
    PassesWrongPasswords,
    /// A request passes although the authorization service refuses it or does not answer.
    PassesRefused,
    /// A request passes although it exceeds a global rate limit, or the service does not answer.
    PassesOverLimit,
    /// A compressed body counts as complete without its end.
    EndsCodedEarly,
    /// What an endpoint has sent stays in the encoder while the endpoint pauses.
    ForgetsFlush,
    /// The room for a compressed response is not returned.
    LeaksPermit,
    /// The room for a body that was collected is not returned.
    LeaksRoom,
    /// A body that exceeds its limit is sent to an endpoint.
    BuffersTooMuch,
    /// A body that is being decompressed counts as complete when the compressed one has ended.
    EndsDecodedEarly,
    /// A request counts among those of its client for ever.
    LeaksCount,
    /// A response whose bandwidth is limited does not wait.
    ForgetsPace,
    /// A request is sent again however long ago its first try began.
    RetriesLate,
    /// A response that the route intercepts reaches the client.
    PassesIntercepted,
    /// The client's connection is kept although nothing has read the rest of the request whose response was replaced.
    ForgetsRest,
}

/// Whether this fault is injected.
#[cfg(test)]
pub(crate) fn is_injected(fault: InjectedFault) -> bool {
    test::is_injected_here(fault)
}

/// Always false outside tests.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_injected(_fault: InjectedFault) -> bool {
    false
}

#[cfg(test)]
pub(crate) mod test {
    use std::cell::Cell;

    use super::InjectedFault;

    pub(crate) const ALL: [InjectedFault; 38] = [
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
        InjectedFault::OutlivesDrain,
        InjectedFault::DropsTrailers,
        InjectedFault::LeaksResponse,
        InjectedFault::KeepsDeadline,
        InjectedFault::PassesWrongPasswords,
        InjectedFault::PassesRefused,
        InjectedFault::PassesOverLimit,
        InjectedFault::EndsCodedEarly,
        InjectedFault::ForgetsFlush,
        InjectedFault::LeaksPermit,
        InjectedFault::LeaksRoom,
        InjectedFault::BuffersTooMuch,
        InjectedFault::EndsDecodedEarly,
        InjectedFault::LeaksCount,
        InjectedFault::ForgetsPace,
        InjectedFault::RetriesLate,
        InjectedFault::PassesIntercepted,
        InjectedFault::ForgetsRest,
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
