//! Whether the other side of a connection still lives: when to ask, and when to give it up. Not the asking, which is the owner's.
//!
//! A host that is gone without a word is found out by TCP only when something is sent to it, and then after a quarter of an hour. So a side
//! that has said nothing for a while, though somebody waits for it, is asked by PING; whatever comes then is an answer.

use model::Ping;

/// Servers of gRPC count PINGs that come within five minutes of each other without a message of theirs in between, and close the connection
/// at the third (`too_many_pings`). A little more than that.
pub(super) const ENDPOINT_REST_MS: u64 = 310_000;

/// What is known of the other side's life.
#[derive(Debug)]
pub(super) struct Liveness {
    /// From one PING to the next, where nothing but answers to them comes, in milliseconds.
    rest_ms: u64,
    /// When the last PING went out, in milliseconds.
    asked_ms: Option<u64>,
}

/// What has come from there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// When the last bytes came, in milliseconds.
    pub(super) at_ms: u64,
    /// Something of a message was among them since the last PING.
    pub(super) has_spoken: bool,
}

/// What is to be done about a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// Ask for one.
    Ask,
    /// None came.
    GiveUp,
}

impl Liveness {
    pub(super) fn new(rest_ms: u64) -> Self {
        Self { rest_ms, asked_ms: None }
    }

    /// What is due next, and when, in milliseconds. `is_wanted`: somebody waits for the other side, and it can be asked.
    pub(super) fn due(&self, ping: Option<Ping>, heard: Heard, is_wanted: bool) -> Option<(u64, Sign)> {
        let ping = ping?;
        let silent_ms = heard.at_ms.saturating_add(crate::millis(ping.after));
        match self.asked_ms {
            // Whether or not somebody still waits: the next one shall not.
            Some(asked_ms) if heard.at_ms < asked_ms => {
                Some((asked_ms.saturating_add(crate::millis(ping.timeout)), Sign::GiveUp))
            }
            _ if !is_wanted => None,
            Some(asked_ms) if !heard.has_spoken => {
                Some((silent_ms.max(asked_ms.saturating_add(self.rest_ms)), Sign::Ask))
            }
            _ => Some((silent_ms, Sign::Ask)),
        }
    }

    /// A PING goes out now.
    pub(super) fn asked(&mut self, now_ms: u64) {
        self.asked_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PING: Ping = Ping { after: Duration::from_secs(30), timeout: Duration::from_secs(20) };

    fn at(at_ms: u64, has_spoken: bool) -> Heard {
        Heard { at_ms, has_spoken }
    }

    #[test]
    fn a_silent_side_is_asked_and_given_up() {
        let mut liveness = Liveness::new(300_000);
        let check = |liveness: &Liveness, heard: Heard, expect| {
            assert_eq!(liveness.due(Some(PING), heard, true), Some(expect), "{liveness:?} {heard:?}");
        };
        check(&liveness, at(1_000, false), (31_000, Sign::Ask));
        check(&liveness, at(25_000, true), (55_000, Sign::Ask));
        liveness.asked(55_000);
        check(&liveness, at(25_000, false), (75_000, Sign::GiveUp));
        // It answers, and goes on in silence: let be for a good while.
        check(&liveness, at(55_100, false), (355_000, Sign::Ask));
        // It said nothing but answers, of which the last came late.
        check(&liveness, at(340_000, false), (370_000, Sign::Ask));
        // It said something: all is as before.
        check(&liveness, at(60_000, true), (90_000, Sign::Ask));
        // At once where it may be asked as often as one likes.
        let mut liveness = Liveness::new(0);
        liveness.asked(55_000);
        check(&liveness, at(55_000, false), (85_000, Sign::Ask));
    }

    #[test]
    fn nobody_is_asked_for_whom_nobody_waits() {
        let mut liveness = Liveness::new(0);
        assert_eq!(liveness.due(Some(PING), at(0, true), false), None);
        assert_eq!(liveness.due(None, at(0, true), true), None);
        // Who was asked owes an answer all the same.
        liveness.asked(30_000);
        assert_eq!(liveness.due(Some(PING), at(0, false), false), Some((50_000, Sign::GiveUp)));
        assert_eq!(liveness.due(Some(PING), at(30_001, false), false), None);
    }
}
