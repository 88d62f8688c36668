//! Tracks which statuses may have to be written, which are being written, and which must be checked again.
//!
//! It makes sure that no change is forgotten: an object that changes while its status is being written is checked again as soon as that
//! write has ended. It does not know what is written, or the API server.

use std::collections::{BTreeMap, BTreeSet};

use crate::index::{Kind, Name};

/// An object that has a status.
type About = (Kind, Name);

/// How a write of a status ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The API server accepted it.
    Written,
    /// The object has changed since the state that the write was made from (409). The watch brings the new state, or has already brought
    /// it.
    Conflict,
    /// Any other failure, in a sentence. The state at the API server is unknown.
    Failed(String),
}

/// Statuses by what has to be done about them.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// To be checked.
    waiting: BTreeSet<About>,
    /// Being written. True means that the object or its wanted status may have changed since the write was made.
    under_way: BTreeMap<About, bool>,
    /// Statuses whose last write failed.
    failed: BTreeSet<About>,
}

impl Due {
    /// Adds objects to check.
    pub(super) fn extend(&mut self, objects: impl IntoIterator<Item = About>) {
        self.waiting.extend(objects);
    }

    /// Whether there is nothing to check.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next object to check. An object whose status is being written waits until the write has ended.
    pub(super) fn next(&mut self) -> Option<About> {
        loop {
            let about = self.waiting.pop_first()?;
            match self.under_way.get_mut(&about) {
                Some(changed) => *changed = true,
                None => return Some(about),
            }
        }
    }

    /// Records that a write has begun.
    pub(super) fn begin(&mut self, about: About) {
        self.under_way.insert(about, false);
    }

    /// Records that a write has ended.
    pub(super) fn end(&mut self, about: About, outcome: &Outcome) {
        if self.under_way.remove(&about) == Some(true) {
            self.waiting.insert(about);
            return;
        }
        match outcome {
            Outcome::Written => {}
            // After a conflict the watch makes the object due. It still counts as failed, because a watch may be broken.
            Outcome::Conflict | Outcome::Failed(_) => drop(self.failed.insert(about)),
        }
    }

    /// Puts off the object that [`Self::next`] returned until [`Self::try_again`].
    pub(super) fn postpone(&mut self, about: About) {
        self.failed.insert(about);
    }

    /// Makes failed statuses due again.
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
