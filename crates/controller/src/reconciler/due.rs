//! Which statuses may have to be written, which are being written, and which must be looked at again.
//!
//! Job: no change is forgotten. An object that changes while its status is being written is looked at again as soon as that write has ended.
//! Not its job: what is written, and the API server.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::{Kind, Name};

/// An object with a status.
type About = (Kind, Name);

/// How a write of a status ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The API server took it.
    Written,
    /// The object has changed since the state that the write was made from (409). The watch brings the new state, or has brought it already.
    Conflict,
    /// Anything else, in a sentence: it is not known what the API server has now.
    Failed(String),
}

/// Statuses by what is to be done about them.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// To be looked at.
    waiting: BTreeSet<About>,
    /// Being written. True: the object, or what is to be said of it, may have changed since the write was made.
    under_way: BTreeMap<About, bool>,
    /// Their last write failed.
    failed: BTreeSet<About>,
}

impl Due {
    /// These must be looked at.
    pub(super) fn extend(&mut self, objects: impl IntoIterator<Item = About>) {
        self.waiting.extend(objects);
    }

    /// Whether any is to be looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next to be looked at. One that is being written is not given now: it waits for the end of its write.
    pub(super) fn next(&mut self) -> Option<About> {
        loop {
            let about = self.waiting.pop_first()?;
            match self.under_way.get_mut(&about) {
                Some(changed) => *changed = true,
                None => return Some(about),
            }
        }
    }

    /// A write has begun.
    pub(super) fn begin(&mut self, about: About) {
        self.under_way.insert(about, false);
    }

    /// A write has ended.
    pub(super) fn end(&mut self, about: About, outcome: &Outcome) {
        if self.under_way.remove(&about) == Some(true) {
            self.waiting.insert(about);
            return;
        }
        match outcome {
            Outcome::Written => {}
            // After a conflict the object waits for its watch, which makes it due. It is among the failed all the same: a watch may be broken.
            Outcome::Conflict | Outcome::Failed(_) => drop(self.failed.insert(about)),
        }
    }

    /// What failed is tried again.
    pub(super) fn try_again(&mut self) {
        self.waiting.append(&mut self.failed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str) -> About {
        (Kind::Gateway, Name::new("shop", name))
    }

    /// A table with one write under way, of `edge`.
    fn writing() -> Due {
        let mut due = Due::default();
        due.extend([gateway("edge")]);
        assert_eq!(due.next(), Some(gateway("edge")));
        due.begin(gateway("edge"));
        due
    }

    #[test]
    fn a_change_during_a_write_is_looked_at_when_the_write_has_ended() {
        for outcome in [Outcome::Written, Outcome::Conflict, Outcome::Failed("no answer".to_owned())] {
            let mut due = writing();
            // The event of the write comes before its answer, and with it another change.
            due.extend([gateway("edge")]);
            assert_eq!(due.next(), None, "two writes of one object at once would undo each other");
            assert!(due.is_empty(), "the loop would not sleep");
            due.end(gateway("edge"), &outcome);
            assert_eq!(due.next(), Some(gateway("edge")), "{outcome:?}");
            assert_eq!(due.next(), None);
        }
    }

    #[test]
    fn a_conflict_waits_for_the_watch_and_no_longer() {
        let mut due = writing();
        due.end(gateway("edge"), &Outcome::Conflict);
        assert_eq!(due.next(), None, "the same write would conflict again");
        // What the watch brings.
        due.extend([gateway("edge")]);
        assert_eq!(due.next(), Some(gateway("edge")));
    }

    #[test]
    fn what_failed_is_tried_again_later() {
        let mut due = writing();
        due.end(gateway("edge"), &Outcome::Failed("no answer".to_owned()));
        assert_eq!(due.next(), None);
        due.try_again();
        assert_eq!(due.next(), Some(gateway("edge")));
        due.begin(gateway("edge"));
        due.end(gateway("edge"), &Outcome::Written);
        due.try_again();
        assert_eq!(due.next(), None);
    }

    #[test]
    fn others_are_not_held_up_by_one_that_is_being_written() {
        let mut due = writing();
        due.extend([gateway("edge"), gateway("far")]);
        assert_eq!(due.next(), Some(gateway("far")));
        assert_eq!(due.next(), None);
    }
}
