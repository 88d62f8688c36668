//! Notices that somebody else writes the same statuses, and keeps the two from correcting each other without end.
//!
//! A status that is written again although it should say the same was changed by another writer. Usually that is a second installation
//! with the same controller name: each sees what the other wrote, and corrects it at once. On a busy host with two CPUs,
//! two such installations wrote one status 430 times in ten seconds.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::{Kind, Name};

/// An object that has a status.
type About = (Kind, Name);

/// Writes of the same status until it counts as contested, and writes of a contested status in each period.
const REPEATS_MAX: u32 = 5;

/// Counts writes, in periods that the caller begins.
#[derive(Debug, Default)]
pub(super) struct Contest {
    /// Writes of each status in this period, since it was last meant to say something else.
    writes: BTreeMap<About, u32>,
    /// Statuses that reached the limit in the last period or in this one.
    contested: BTreeSet<About>,
}

/// What to do about a status that differs from the wanted one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Write it.
    Write,
    /// Leave it as it is for the rest of the period.
    Wait,
    /// The same, and this is new.
    Contested,
}

impl Contest {
    /// Judges one more write.
    pub(super) fn judge(&mut self, about: &About) -> Verdict {
        let writes = self.writes.entry(about.clone()).or_default();
        *writes = writes.saturating_add(1);
        if *writes <= REPEATS_MAX {
            Verdict::Write
        } else if self.contested.insert(about.clone()) {
            Verdict::Contested
        } else {
            Verdict::Wait
        }
    }

    /// These statuses are meant to say something else now.
    pub(super) fn changed(&mut self, is_changed: impl Fn(&About) -> bool) {
        self.writes.retain(|about, _| !is_changed(about));
    }

    /// Begins another period. Returns whether a status is no longer contested.
    pub(super) fn begin_period(&mut self) -> bool {
        let writes = std::mem::take(&mut self.writes);
        let before = self.contested.len();
        self.contested.retain(|about| writes.get(about).is_some_and(|writes| *writes > REPEATS_MAX));
        self.contested.len() < before
    }

    /// The contested statuses.
    pub(super) fn contested(&self) -> impl Iterator<Item = &About> {
        self.contested.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str) -> About {
        (Kind::Gateway, Name::new("shop", name))
    }

    #[test]
    fn a_status_that_is_written_again_and_again_waits_for_the_next_period() {
        let mut contest = Contest::default();
        let edge = gateway("edge");
        for _ in 0..2 {
            (0..REPEATS_MAX).for_each(|_| assert_eq!(contest.judge(&edge), Verdict::Write));
            let verdict = contest.judge(&edge);
            assert!(matches!(verdict, Verdict::Contested | Verdict::Wait), "{verdict:?}");
            assert_eq!(contest.judge(&edge), Verdict::Wait);
            assert_eq!(contest.judge(&gateway("far")), Verdict::Write);
            assert_eq!(contest.contested().collect::<Vec<_>>(), [&edge]);
            assert!(!contest.begin_period(), "it is contested until a period without a contest");
        }
        assert_eq!(contest.judge(&edge), Verdict::Write);
        assert!(contest.begin_period());
        assert_eq!(contest.contested().count(), 0);
    }

    #[test]
    fn a_status_that_should_say_something_else_is_written() {
        let mut contest = Contest::default();
        for _ in 0..100 {
            assert_eq!(contest.judge(&gateway("edge")), Verdict::Write);
            contest.changed(|about| *about == gateway("edge"));
        }
    }
}
