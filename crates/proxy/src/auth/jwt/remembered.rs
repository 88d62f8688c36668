//! Tokens that were right, by worker. The table is bounded, and no token can be read back from it: its keys are keyed hashes.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use super::Verified;
use crate::auth::tag::Tag;

/// Tokens that a worker remembers. The oldest makes room for a new one.
const TOKENS_MAX: usize = 4096;

/// Bytes of what is remembered of one: 4 MiB in all. A token with more is verified each time.
const TOKEN_BYTES_MAX: usize = 1024;

/// The tokens that one worker remembers.
#[derive(Default)]
pub(crate) struct Tokens(RefCell<Table>);

#[derive(Default)]
struct Table {
    entries: HashMap<Tag, Entry>,
    /// In the order in which they came, each with its number. It may have entries that have been replaced.
    order: VecDeque<(Tag, u64)>,
    last: u64,
}

struct Entry {
    verified: Rc<Verified>,
    /// The set of keys by which it was verified. With another one, it must be verified again.
    keys: u64,
    number: u64,
}

impl Tokens {
    /// What the token said, if the same keys are in use. Its times must still be checked.
    pub(super) fn find(&self, tag: &Tag, keys: u64) -> Option<Rc<Verified>> {
        let table = self.0.borrow();
        table.entries.get(tag).filter(|entry| entry.keys == keys).map(|entry| entry.verified.clone())
    }

    pub(super) fn put(&self, tag: Tag, keys: u64, verified: &Rc<Verified>) {
        if verified.bytes() > TOKEN_BYTES_MAX {
            return;
        }
        let Table { entries, order, last } = &mut *self.0.borrow_mut();
        while order.len() >= TOKENS_MAX {
            let Some((tag, number)) = order.pop_front() else { break };
            // A token that was verified again is younger than that.
            if entries.get(&tag).is_some_and(|entry| entry.number == number) {
                entries.remove(&tag);
            }
        }
        *last += 1;
        entries.insert(tag, Entry { verified: verified.clone(), keys, number: *last });
        order.push_back((tag, *last));
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
        let table = tokens.0.borrow();
        assert!(table.entries.len() <= TOKENS_MAX && table.order.len() == TOKENS_MAX);
        drop(table);
        tokens.put(tag(TOKENS_MAX + 1), 7, &verified(TOKEN_BYTES_MAX));
        assert!(!is_known(TOKENS_MAX + 1, 7));
    }
}
