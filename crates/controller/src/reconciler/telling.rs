//! Decides when to send notices: each is sent once as long as it holds, and no faster than an API server can bear.
//!
//! Pure: `now` is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::translate::Notice;

/// Events that may be sent at once after a silence.
const BURST: u32 = 32;

/// The interval between Events in the long run.
const ONE_IN: Duration = Duration::from_millis(200);

/// A notice that stops holding and holds again within this time is not sent again: an object that flaps ten times a second is not news.
const SILENCE_AFTER: Duration = Duration::from_secs(600);

/// The most past notices that are remembered. Beyond it they are forgotten, and may be sent again too early.
const PAST_MAX: usize = 16_384;

/// The notices, and when to send them.
pub(super) struct Telling {
    /// Each with the time since when it no longer holds; `None` if it holds.
    known: BTreeMap<Notice, Option<Instant>>,
    /// The notices that hold and have not been sent.
    untold: BTreeSet<Notice>,
    /// The number of Events that may be sent, as of `since`.
    allowance: u32,
    since: Instant,
}

impl Telling {
    pub(super) fn new(now: Instant) -> Self {
        Self { known: BTreeMap::new(), untold: BTreeSet::new(), allowance: BURST, since: now }
    }

    /// Sets the notices that hold now. Returns the new ones.
    pub(super) fn note(&mut self, notices: &BTreeSet<Notice>, now: Instant) -> Vec<Notice> {
        self.untold.retain(|notice| notices.contains(notice));
        let is_past = |since: &Option<Instant>| since.is_some_and(|since| now.duration_since(since) > SILENCE_AFTER);
        self.known.retain(|notice, since| {
            let holds = notices.contains(notice);
            let is_news = holds && is_past(since);
            *since = if holds { None } else { since.or(Some(now)) };
            !is_news && !is_past(since)
        });
        if self.known.values().filter(|since| since.is_some()).count() > PAST_MAX {
            self.known.retain(|_, since| since.is_none());
        }
        let news: Vec<Notice> = notices.iter().filter(|notice| !self.known.contains_key(notice)).cloned().collect();
        self.known.extend(news.iter().map(|notice| (notice.clone(), None)));
        self.untold.extend(news.iter().cloned());
        news
    }

    /// The next notice to send, if it is time to.
    pub(super) fn next(&mut self, now: Instant) -> Option<Notice> {
        if self.untold.is_empty() {
            return None;
        }
        let earned = now.duration_since(self.since).as_millis() / ONE_IN.as_millis();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX).min(BURST);
        if self.allowance.saturating_add(earned) >= BURST {
            (self.allowance, self.since) = (BURST, now);
        } else {
            self.allowance += earned;
            self.since += ONE_IN * earned;
        }
        self.allowance = self.allowance.checked_sub(1)?;
        self.untold.pop_first()
    }

    /// When the next notice may be sent; `None` if there is none.
    pub(super) fn due(&self) -> Option<Instant> {
        let wait = if self.allowance > 0 { Duration::ZERO } else { ONE_IN };
        (!self.untold.is_empty()).then(|| self.since + wait)
    }

    /// Counts every notice that holds as not sent, because another process may or may not have sent it.
    pub(super) fn begin_anew(&mut self) {
        self.known.clear();
    }

    /// Sends nothing from now on, because another process does.
    pub(super) fn keep_silent(&mut self) {
        self.untold.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::{Kind, Name};

    fn notice(number: u32) -> Notice {
        let about = (Kind::Service, Name::new("shop", &format!("s{number:05}")));
        Notice { about, uid: "u".into(), reason: "NoEndpoints".into(), message: String::new() }
    }

    #[test]
    fn once_as_long_as_it_holds_and_not_again_soon() {
        let begun = Instant::now();
        let mut telling = Telling::new(begun);
        let mut check = |at: u64, holds: &[u32], expect: &[u32]| {
            let holds = holds.iter().map(|number| notice(*number)).collect();
            let expect: Vec<Notice> = expect.iter().map(|number| notice(*number)).collect();
            assert_eq!(telling.note(&holds, begun + Duration::from_secs(at)), expect, "at {at}");
        };
        check(0, &[1, 2], &[1, 2]);
        check(1, &[1, 2, 3], &[3]);
        // It flaps.
        for at in 2..100 {
            let holds: &[u32] = if at % 2 == 0 { &[1] } else { &[1, 2] };
            check(at, holds, &[]);
        }
        check(100, &[1], &[]);
        check(699, &[1, 2], &[]);
        check(700, &[1], &[]);
        check(1301, &[1, 2], &[2]);
        // A notice that holds without a break is never sent again.
        check(90_000, &[1, 2], &[]);
    }

    #[test]
    fn no_faster_than_an_api_server_can_bear() {
        let begun = Instant::now();
        let mut telling = Telling::new(begun);
        telling.note(&(0..1000).map(notice).collect(), begun);
        let mut told = |at: u64| {
            let now = begun + Duration::from_millis(at);
            std::iter::from_fn(|| telling.next(now)).count() as u32
        };
        assert_eq!(told(0), BURST);
        assert_eq!(told(199), 0);
        assert_eq!(told(200), 1);
        assert_eq!(told(1000), 4);
        assert_eq!(told(1_000_000), BURST);
        assert_eq!(telling.due(), Some(begun + Duration::from_millis(1_000_200)));
        // A notice that no longer holds need not be sent.
        telling.note(&BTreeSet::new(), begun);
        assert_eq!(telling.due(), None);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let begun = Instant::now();
        let mut telling = Telling::new(begun);
        for round in 0..40 {
            telling.note(&(round * 1000..round * 1000 + 1000).map(notice).collect(), begun);
        }
        assert!(telling.known.len() <= PAST_MAX + 2000, "{}", telling.known.len());
    }
}
