//! Tokens that a worker knows: what the right ones say, and which ones are wrong. The tables are bounded, and no token can be read back from
//! them: their keys are keyed hashes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use telemetry::Reason;

use super::Verified;
use super::budget::Budget;
use crate::auth::tag::Tag;

/// Right tokens that a worker remembers, and wrong ones. The oldest makes room for a new one.
const TOKENS_MAX: usize = 4096;

/// Bytes of what is remembered of one: 4 MiB in all. A token with more is verified each time.
const TOKEN_BYTES_MAX: usize = 1024;

/// The tokens that one worker remembers.
#[derive(Default)]
pub(crate) struct Tokens {
    right: RefCell<Table<Rc<Verified>>>,
    /// Wrong ones have a table of their own: whoever makes them up must not push right ones out.
    wrong: RefCell<Table<Wrong>>,
    pub(super) budget: Budget,
}

/// A token whose signature was looked at, and that stays wrong as long as the keys are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) reason: Reason,
    /// A newer set of keys may have the one that signed it.
    pub(super) asks: bool,
}

struct Table<V> {
    entries: HashMap<Tag, Entry<V>>,
    /// In the order in which they came, each with its number. It may have entries that have been replaced.
    order: VecDeque<(Tag, u64)>,
    last: u64,
}

struct Entry<V> {
    value: V,
    /// The set of keys by which it was verified. With another one, it must be verified again.
    keys: u64,
    number: u64,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new(), last: 0 }
    }
}

impl<V: Clone> Table<V> {
    fn find(&self, tag: &Tag, keys: u64) -> Option<V> {
        self.entries.get(tag).filter(|entry| entry.keys == keys).map(|entry| entry.value.clone())
    }

    fn put(&mut self, tag: Tag, keys: u64, value: V) {
        let Self { entries, order, last } = self;
        while order.len() >= TOKENS_MAX {
            let Some((tag, number)) = order.pop_front() else { break };
            // A token that was verified again is younger than that.
            if entries.get(&tag).is_some_and(|entry| entry.number == number) {
                entries.remove(&tag);
            }
        }
        *last += 1;
        entries.insert(tag, Entry { value, keys, number: *last });
        order.push_back((tag, *last));
    }
}

impl Tokens {
    /// What the token said, if the same keys are in use. Its times must still be checked.
    pub(super) fn find(&self, tag: &Tag, keys: u64) -> Option<Rc<Verified>> {
        self.right.borrow().find(tag, keys)
    }

    pub(super) fn put(&self, tag: Tag, keys: u64, verified: &Rc<Verified>) {
        if verified.bytes() <= TOKEN_BYTES_MAX {
            self.right.borrow_mut().put(tag, keys, verified.clone());
        }
    }

    /// Why the token is wrong, if it is known to be, and the same keys are in use.
    pub(super) fn find_wrong(&self, tag: &Tag, keys: u64) -> Option<Wrong> {
        self.wrong.borrow().find(tag, keys)
    }

    pub(super) fn put_wrong(&self, tag: Tag, keys: u64, wrong: Wrong) {
        self.wrong.borrow_mut().put(tag, keys, wrong);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(bytes: usize) -> Rc<Verified> {
        let fields = [("x-user".into(), "a".repeat(bytes).into())].into();
        Rc::new(Verified { claims: Box::default(), fields, not_before_s: 0.0, ends_s: 1.0 })
    }

    fn tag(number: usize) -> Tag {
        Tag::of(&[&number.to_le_bytes()]).unwrap()
    }

    #[test]
    fn they_are_bounded_and_belong_to_their_keys() {
        let tokens = Tokens::default();
        let is_known = |number: usize, keys: u64| tokens.find(&tag(number), keys).is_some();
        tokens.put(tag(0), 7, &verified(1));
        assert!(is_known(0, 7) && !is_known(0, 8) && !is_known(1, 7));
        (1..TOKENS_MAX).for_each(|number| tokens.put(tag(number), 7, &verified(1)));
        // Verified again with other keys, it is younger than the others.
        tokens.put(tag(0), 8, &verified(1));
        assert!(is_known(0, 8) && !is_known(0, 7) && is_known(1, 7));
        tokens.put(tag(TOKENS_MAX), 7, &verified(1));
        assert!(is_known(0, 8) && !is_known(1, 7));
        let table = tokens.right.borrow();
        assert!(table.entries.len() <= TOKENS_MAX && table.order.len() == TOKENS_MAX);
        drop(table);
        tokens.put(tag(TOKENS_MAX + 1), 7, &verified(TOKEN_BYTES_MAX));
        assert!(!is_known(TOKENS_MAX + 1, 7));
    }

    #[test]
    fn wrong_ones_push_no_right_ones_out() {
        let tokens = Tokens::default();
        tokens.put(tag(0), 7, &verified(1));
        let wrong = Wrong { reason: Reason::CredentialsInvalid, asks: false };
        (0..2 * TOKENS_MAX).for_each(|number| tokens.put_wrong(tag(number), 7, wrong));
        assert!(tokens.find(&tag(0), 7).is_some());
        assert_eq!(tokens.find_wrong(&tag(2 * TOKENS_MAX - 1), 7), Some(wrong));
        assert_eq!((tokens.find_wrong(&tag(2 * TOKENS_MAX - 1), 8), tokens.find_wrong(&tag(0), 7)), (None, None));
        assert_eq!(tokens.wrong.borrow().entries.len(), TOKENS_MAX);
    }
}
