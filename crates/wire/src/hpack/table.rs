//! The dynamic table (RFC 7541 section 2.3.2).

use std::collections::VecDeque;

use super::{FIELD_OVERHEAD_BYTES, Kind, TABLE_BYTES_MAX};

/// Fields in the order of insertion; the oldest are removed when room is needed.
///
/// Names and values are stored one after the other in one buffer, each field in one piece. The space of removed fields is reclaimed when
/// the buffer would grow beyond twice the table: then the rest moves to the beginning, at most once per `TABLE_BYTES_MAX` inserted.
#[derive(Debug)]
pub(super) struct DynamicTable {
    bytes: Vec<u8>,
    /// The oldest first.
    entries: VecDeque<TableEntry>,
    /// As the standard counts: `size <= size_max <= TABLE_BYTES_MAX`.
    size: usize,
    size_max: usize,
    /// Number of changes: as long as it is the same, so is what each index stands for.
    version: u64,
}

/// Fields that a table got one after another, to insert them again.
#[derive(Debug, Default)]
pub(crate) struct TableRun {
    /// Each `start` counts from the first byte of `bytes`.
    entries: Vec<TableEntry>,
    bytes: Vec<u8>,
    /// As the standard counts.
    size: usize,
}

impl TableRun {
    /// Bytes of memory that it holds.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }
}

#[derive(Clone, Copy, Debug)]
struct TableEntry {
    kind: Kind,
    /// `start + name_len + value_len <= bytes.len() <= 2 * TABLE_BYTES_MAX`.
    start: u16,
    name_len: u16,
    value_len: u16,
}

impl TableEntry {
    fn size(self) -> usize {
        usize::from(self.name_len) + usize::from(self.value_len) + FIELD_OVERHEAD_BYTES
    }
}

impl Default for DynamicTable {
    fn default() -> Self {
        Self { bytes: Vec::new(), entries: VecDeque::new(), size: 0, size_max: TABLE_BYTES_MAX, version: 0 }
    }
}

impl DynamicTable {
    /// The number of fields.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn size_max(&self) -> usize {
        self.size_max
    }

    /// The field that was inserted `age` fields ago; 0 is the last.
    #[inline]
    pub(super) fn field(&self, age: usize) -> Option<(Kind, &[u8], &[u8])> {
        let (kind, text, name_len) = self.text(age)?;
        let (name, value) = text.split_at_checked(name_len)?;
        Some((kind, name, value))
    }

    /// The same field as its kind, its name and value in one piece, and the length of its name.
    #[inline]
    pub(super) fn text(&self, age: usize) -> Option<(Kind, &[u8], usize)> {
        let entry = self.entries.get(self.entries.len().checked_sub(age + 1)?)?;
        let from = usize::from(entry.start);
        let length = usize::from(entry.name_len) + usize::from(entry.value_len);
        Some((entry.kind, self.bytes.get(from..from + length)?, usize::from(entry.name_len)))
    }

    /// Adds a field and returns true. A field larger than the table empties the table (section 4.4), is not added, and the result is false.
    pub(super) fn insert(&mut self, kind: Kind, name: &[u8], value: &[u8]) -> bool {
        let length = name.len() + value.len();
        let size = length + FIELD_OVERHEAD_BYTES;
        self.version += 1;
        self.shrink_to(self.size_max.saturating_sub(size));
        if size > self.size_max {
            return false;
        }
        self.reserve(length);
        let start = self.bytes.len() as u16;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.entries.push_back(TableEntry { kind, start, name_len: name.len() as u16, value_len: value.len() as u16 });
        self.size += size;
        true
    }

    /// A number that is another one after each change.
    #[inline]
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Copies the last `count` fields. False: there are not as many.
    pub(super) fn copy_last(&self, count: usize, run: &mut TableRun) -> bool {
        run.entries.clear();
        run.bytes.clear();
        run.size = 0;
        let Some(skipped) = self.entries.len().checked_sub(count) else { return false };
        let mut from = None;
        for entry in self.entries.iter().skip(skipped) {
            let from = *from.get_or_insert(entry.start);
            run.entries.push(TableEntry { start: entry.start - from, ..*entry });
            run.size += entry.size();
        }
        // The last field ends where the buffer does, and there is nothing between two fields.
        run.bytes.extend_from_slice(from.and_then(|from| self.bytes.get(usize::from(from)..)).unwrap_or_default());
        true
    }

    /// Adds fields as [`Self::insert`] would add them one after another. False: they do not all fit, and nothing has changed.
    pub(super) fn insert_run(&mut self, run: &TableRun) -> bool {
        if run.size > self.size_max {
            return false;
        }
        if run.entries.is_empty() {
            return true;
        }
        self.version += 1;
        // The oldest make room whether the new ones come together or one by one.
        self.shrink_to(self.size_max - run.size);
        self.reserve(run.bytes.len());
        let from = self.bytes.len() as u16;
        self.bytes.extend_from_slice(&run.bytes);
        self.entries.extend(run.entries.iter().map(|entry| TableEntry { start: from + entry.start, ..*entry }));
        self.size += run.size;
        true
    }

    /// Makes room for a field, or several, of `length <= TABLE_BYTES_MAX` bytes in all.
    #[inline]
    fn reserve(&mut self, length: usize) {
        if self.bytes.len() + length > 2 * TABLE_BYTES_MAX {
            self.compact();
        }
        // By powers of two, so that the last one is the limit.
        let needed = self.bytes.len() + length;
        if needed > self.bytes.capacity() {
            self.bytes.reserve_exact(needed.next_power_of_two() - self.bytes.len());
        }
    }

    /// Changes the table's size (section 4.3). `size_max <= TABLE_BYTES_MAX`.
    pub(super) fn set_size_max(&mut self, size_max: usize) {
        self.version += 1;
        self.size_max = size_max.min(TABLE_BYTES_MAX);
        self.shrink_to(self.size_max);
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<TableEntry>()
    }

    fn shrink_to(&mut self, size: usize) {
        while self.size > size {
            let Some(oldest) = self.entries.pop_front() else { break };
            self.size -= oldest.size();
        }
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    fn compact(&mut self) {
        let from = self.entries.front().map_or(self.bytes.len(), |oldest| usize::from(oldest.start));
        self.bytes.drain(..from);
        for entry in &mut self.entries {
            entry.start -= from as u16;
        }
    }
}

/// The maximum memory of a table. The buffer doubles up to its limit, and so do the entries.
pub(super) const MEMORY_BYTES_MAX: usize =
    2 * TABLE_BYTES_MAX + (TABLE_BYTES_MAX / FIELD_OVERHEAD_BYTES) * size_of::<TableEntry>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_the_memory_is_bounded() {
        let mut table = DynamicTable::default();
        let kind = Kind::Path;
        for number in 0..10_000_usize {
            let value = vec![b'v'; number % 700];
            let name = number.to_string();
            assert!(table.insert(kind, name.as_bytes(), &value));
            assert!(table.size <= TABLE_BYTES_MAX);
            for age in 0..table.len() {
                let (_, name, value) = table.field(age).unwrap();
                assert_eq!(name, (number - age).to_string().as_bytes());
                assert_eq!(value.len(), (number - age) % 700);
            }
            assert!(table.field(table.len()).is_none());
            assert!(table.memory_bytes() <= MEMORY_BYTES_MAX, "{}", table.memory_bytes());
        }
    }

    #[test]
    fn a_field_that_is_too_large_empties_the_table() {
        let mut table = DynamicTable::default();
        assert!(table.insert(Kind::Path, b"a", b"b"));
        assert!(!table.insert(Kind::Path, b"a", &vec![b'x'; TABLE_BYTES_MAX - 32]));
        assert_eq!((table.len(), table.size), (0, 0));
        assert!(table.insert(Kind::Path, b"a", &vec![b'x'; TABLE_BYTES_MAX - 33]));
        table.set_size_max(100);
        assert_eq!((table.len(), table.size), (0, 0));
        assert!(!table.insert(Kind::Path, b"a", &[b'x'; 70]));
        assert!(table.insert(Kind::Path, b"a", &[b'x'; 60]));
    }

    #[test]
    fn empty_fields_fill_the_table_to_its_count() {
        let mut table = DynamicTable::default();
        for _ in 0..1000 {
            assert!(table.insert(Kind::Path, b"", b""));
        }
        assert_eq!(table.len(), TABLE_BYTES_MAX / FIELD_OVERHEAD_BYTES);
    }
}
