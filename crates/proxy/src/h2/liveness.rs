//! Decides when to send a PING to the other side of a connection, and when to give the connection up. The caller sends the PING.
//!
//! When a host disappears silently, TCP notices only when something is sent to it, and then after a quarter of an hour. So if a request
//! waits for a side that has sent nothing for a while, that side gets a PING. Any bytes that arrive then count as an answer.

use model::Ping;

/// gRPC servers count PINGs that come within five minutes of each other without a message in between, and close the connection at the third
/// (`too_many_pings`). This is a little longer.
pub(crate) const ENDPOINT_REST_MS: u64 = 310_000;

/// When the other side was last sent a PING.
#[derive(Debug)]
pub(crate) struct Liveness {
    /// The time between two PINGs while nothing but answers to them arrives, in milliseconds.
    rest_ms: u64,
    /// When the last PING went out, in milliseconds.
    ping_sent_ms: Option<u64>,
}

/// What was last received from the other side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastReceived {
    /// When the last bytes arrived, in milliseconds.
    pub(crate) at_ms: u64,
    /// A part of a message has arrived since the last PING.
    pub(crate) has_spoken: bool,
}

/// The next action for a silent connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PingAction {
    /// Send a PING.
    Send,
    /// The last PING was not answered: give up the connection.
    GiveUp,
}

impl Liveness {
    pub(crate) fn new(rest_ms: u64) -> Self {
        Self { rest_ms, ping_sent_ms: None }
    }

    /// The next action, and when it is due, in milliseconds. `is_wanted`: a request waits for the other side, and a PING can be sent.
    pub(crate) fn due(&self, ping: Option<Ping>, last: LastReceived, is_wanted: bool) -> Option<(u64, PingAction)> {
        let ping = ping?;
        let silent_ms = last.at_ms.saturating_add(crate::millis(ping.after));
        match self.ping_sent_ms {
            // Even if no request waits any more: the next request must not get this connection.
            Some(ping_sent_ms) if last.at_ms < ping_sent_ms => {
                Some((ping_sent_ms.saturating_add(crate::millis(ping.timeout)), PingAction::GiveUp))
            }
            _ if !is_wanted => None,
            Some(ping_sent_ms) if !last.has_spoken => {
                Some((silent_ms.max(ping_sent_ms.saturating_add(self.rest_ms)), PingAction::Send))
            }
            _ => Some((silent_ms, PingAction::Send)),
        }
    }

    /// Records that a PING is sent now.
    pub(crate) fn ping_sent(&mut self, now_ms: u64) {
        self.ping_sent_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: Ping = Ping { after: Duration::from_secs(30), timeout: Duration::from_secs(20) };

    fn at(at_ms: u64, has_spoken: bool) -> LastReceived {
        LastReceived { at_ms, has_spoken }
    }

    #[test]
    fn a_silent_side_is_asked_and_given_up() {
        let mut liveness = Liveness::new(300_000);
        let check = |liveness: &Liveness, last: LastReceived, expect| {
            assert_eq!(liveness.due(Some(PING), last, true), Some(expect), "{liveness:?} {last:?}");
        };
        check(&liveness, at(1_000, false), (31_000, PingAction::Send));
        check(&liveness, at(25_000, true), (55_000, PingAction::Send));
        liveness.ping_sent(55_000);
        check(&liveness, at(25_000, false), (75_000, PingAction::GiveUp));
        // It answers and stays silent, so it gets no PING for a long time.
        check(&liveness, at(55_100, false), (355_000, PingAction::Send));
        // It sent nothing but answers, and the last came late.
        check(&liveness, at(340_000, false), (370_000, PingAction::Send));
        // It sent part of a message, so everything starts over.
        check(&liveness, at(60_000, true), (90_000, PingAction::Send));
        // It is asked at once if PINGs are not limited.
        let mut liveness = Liveness::new(0);
        liveness.ping_sent(55_000);
        check(&liveness, at(55_000, false), (85_000, PingAction::Send));
    }

    #[test]
    fn nobody_is_asked_for_whom_nobody_waits() {
        let mut liveness = Liveness::new(0);
        assert_eq!(liveness.due(Some(PING), at(0, true), false), None);
        assert_eq!(liveness.due(None, at(0, true), true), None);
        // A side that got a PING must answer it in any case.
        liveness.ping_sent(30_000);
        assert_eq!(liveness.due(Some(PING), at(0, false), false), Some((50_000, PingAction::GiveUp)));
        assert_eq!(liveness.due(Some(PING), at(30_001, false), false), None);
    }
}
