//! How an encoder finds a field in its tables: by the field that it follows, by its name and value, or by its name alone.
//!
//! Each lookup returns a [`FieldPosition`], and the caller compares the field there. A wrong or outdated position only costs compression.

use super::{FIELD_OVERHEAD_BYTES, TABLE_BYTES_MAX, static_table};

/// The position of a field in the tables: 0 for none, an index of the static table, or, with [`DYNAMIC`], the number of a field of the
/// dynamic table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FieldPosition(u16);

const DYNAMIC: u16 = 1 << 15;
/// The most fields that the dynamic table can hold at once. Their numbers modulo this are all different.
const FIELDS_MAX: u16 = (TABLE_BYTES_MAX / FIELD_OVERHEAD_BYTES) as u16;

impl FieldPosition {
    pub(super) fn of_static(index: usize) -> Self {
        Self(index as u16)
    }

    /// The index in the static table.
    pub(super) fn static_index(self) -> Option<usize> {
        (self.0 & DYNAMIC == 0).then_some(usize::from(self.0))
    }

    /// The index under which its successor is remembered.
    fn step(self) -> u8 {
        if self.0 & DYNAMIC == 0 { self.0 as u8 } else { FIRST_DYNAMIC + (self.0 % FIELDS_MAX) as u8 }
    }
}

// Steps are the indexes of `after`. They are the static table's indexes, from 1 on, and:

/// The beginning of a head.
const HEAD: u8 = 0;
/// The beginning of trailers.
const TRAILERS: u8 = static_table::LENGTH as u8 + 1;
/// The fields of the dynamic table.
const FIRST_DYNAMIC: u8 = 64;
/// Literals that entered no table, by the hash of their names.
const FIRST_LITERAL: u8 = FIRST_DYNAMIC + FIELDS_MAX as u8;
const LITERALS: u32 = 256 - FIRST_LITERAL as u32;

const _: () = assert!(TRAILERS < FIRST_DYNAMIC && LITERALS == 64);

/// Few of the dynamic table's at most 128 fields share a bucket.
const VALUE_BUCKETS: usize = 256;
/// Fields of one bucket that are looked at. More collide only if someone chooses them to.
const BUCKET_STEPS_MAX: usize = 8;
/// Indexed by the hash of a name alone.
const NAME_SLOTS: usize = 64;
/// Fields remembered as seen once. Their hash selects one of these sets, and each set holds this many. With one per set, two fields that
/// collide would look new for ever, and every request would contain them as literals.
const SEEN_EACH: usize = 4;
const SEEN_SETS: usize = 32;

/// The positions of fields that an encoder remembers.
#[derive(Debug)]
pub(super) struct FieldPositions {
    /// The number of fields that ever entered the dynamic table, modulo [`DYNAMIC`].
    inserted: u16,
    /// The step before the next field.
    at: u8,
    /// For each step, what followed it the last time. A connection sends the same things in the same order; fields that differ each time
    /// (`:path`, an identifier) are steps, too.
    after: [FieldPosition; 256],
    /// The newest field of each bucket.
    by_value: [FieldPosition; VALUE_BUCKETS],
    /// The next older field of the same bucket, by number modulo [`FIELDS_MAX`]. So no two fields push each other out.
    older: [FieldPosition; FIELDS_MAX as usize],
    by_name: [FieldPosition; NAME_SLOTS],
    /// Parts of hashes, the newest of each set first.
    seen: [[u16; SEEN_EACH]; SEEN_SETS],
}

impl Default for FieldPositions {
    fn default() -> Self {
        Self {
            inserted: 0,
            at: HEAD,
            after: [FieldPosition::default(); 256],
            by_value: [FieldPosition::default(); VALUE_BUCKETS],
            older: [FieldPosition::default(); FIELDS_MAX as usize],
            by_name: [FieldPosition::default(); NAME_SLOTS],
            seen: [[0; SEEN_EACH]; SEEN_SETS],
        }
    }
}

impl FieldPositions {
    /// The next field is the first one of a head.
    pub(super) fn begin(&mut self) {
        self.at = HEAD;
    }

    /// The next field is the first one of trailers.
    pub(super) fn begin_trailers(&mut self) {
        self.at = TRAILERS;
    }

    /// Whether the next field is the first one of trailers.
    pub(super) fn is_at_trailers(&self) -> bool {
        self.at == TRAILERS
    }

    /// The position of the next field, if everything is like the last time.
    pub(super) fn expected(&self) -> FieldPosition {
        self.after.get(usize::from(self.at)).copied().unwrap_or_default()
    }

    /// Records that the field was the expected one.
    pub(super) fn go_on(&mut self, position: FieldPosition) {
        self.at = position.step();
    }

    /// Records that the field was another one, at this position.
    pub(super) fn go_to(&mut self, position: FieldPosition) {
        if let Some(next) = self.after.get_mut(usize::from(self.at)) {
            *next = position;
        }
        self.at = position.step();
    }

    /// Records that the field was a literal that entered no table.
    pub(super) fn pass(&mut self, name_hash: u32) {
        self.at = FIRST_LITERAL + (name_hash % LITERALS) as u8;
    }

    /// Fields of the dynamic table that may have this name and value, the newest first.
    pub(super) fn with_value(&self, value_hash: u32) -> impl Iterator<Item = FieldPosition> {
        let first = self.by_value.get(value_hash as usize % VALUE_BUCKETS).copied();
        let older = |position: &FieldPosition| self.older.get(usize::from(position.0 % FIELDS_MAX)).copied();
        std::iter::successors(first, older).take(BUCKET_STEPS_MAX)
    }

    /// A field of the dynamic table that may have this name.
    pub(super) fn with_name(&self, name_hash: u32) -> FieldPosition {
        self.by_name.get(name_hash as usize % NAME_SLOTS).copied().unwrap_or_default()
    }

    /// Records that a field has entered the dynamic table.
    pub(super) fn insert(&mut self, name_hash: u32, value_hash: u32) -> FieldPosition {
        self.inserted = (self.inserted + 1) % DYNAMIC;
        let position = FieldPosition(DYNAMIC | self.inserted);
        if let (Some(youngest), Some(older)) = (
            self.by_value.get_mut(value_hash as usize % VALUE_BUCKETS),
            self.older.get_mut(usize::from(position.0 % FIELDS_MAX)),
        ) {
            *older = std::mem::replace(youngest, position);
        }
        if let Some(slot) = self.by_name.get_mut(name_hash as usize % NAME_SLOTS) {
            *slot = position;
        }
        position
    }

    /// How many fields entered the dynamic table after the one at this position; `None` if it is not in that table. After 2^15 fields, a
    /// number may be from an earlier round.
    pub(super) fn age(&self, position: FieldPosition) -> Option<usize> {
        (position.0 & DYNAMIC != 0).then(|| usize::from(self.inserted.wrapping_sub(position.0) % DYNAMIC))
    }

    /// Whether the field was sent before, as far as is known. Remembers it.
    pub(super) fn is_seen(&mut self, value_hash: u32) -> bool {
        let Some(set) = self.seen.get_mut(value_hash as usize % SEEN_SETS) else { return false };
        let mark = (value_hash >> 16) as u16 | 1;
        let is_seen = set.contains(&mark);
        if !is_seen {
            let [first, second, third, _] = *set;
            *set = [mark, first, second, third];
        }
        is_seen
    }
}
