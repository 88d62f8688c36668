//! Remembers the fields that an encoder wrote last, in case the same list is written again.
//!
//! A connection sends nearly the same fields with each request, and with each response. Comparing the whole list costs less than finding
//! each of its fields in the tables. The pseudo-header fields are not part of the list, so requests for different paths have the same.

/// Maximum bytes of a list that is kept.
const LIST_BYTES_MAX: usize = 1024;
/// Maximum bytes of what it was written as.
const WRITTEN_BYTES_MAX: usize = 256;
/// After this many misses in a row, only one list in as many is kept, because keeping one costs copies.
const MISSES_MAX: u32 = 8;

/// The maximum of [`SentList::memory_bytes`], before vectors round up.
pub(super) const MEMORY_BYTES_MAX: usize = LIST_BYTES_MAX + WRITTEN_BYTES_MAX;

/// A list, and what it was written as.
#[derive(Debug, Default)]
pub(super) struct SentList {
    /// Whatever identifies the list. Empty if nothing is kept.
    list: Vec<u8>,
    written: Vec<u8>,
    /// The version of the table that `written` refers to.
    version: u64,
    /// Number of misses in a row.
    misses: u32,
}

impl SentList {
    /// What this list was written as, if that means the same with a table of this version.
    #[inline]
    pub(super) fn recall(&mut self, list: &[u8], version: u64) -> Option<&[u8]> {
        if self.version != version || self.list != list || list.is_empty() {
            self.misses = self.misses.wrapping_add(1);
            return None;
        }
        self.misses = 0;
        Some(&self.written)
    }

    /// Keeps a list that [`Self::recall`] did not know, and that would be written in the same way again.
    pub(super) fn note(&mut self, list: &[u8], written: &[u8], version: u64) {
        let is_small = list.len() <= LIST_BYTES_MAX && written.len() <= WRITTEN_BYTES_MAX;
        if !is_small || self.misses > MISSES_MAX && !self.misses.is_multiple_of(MISSES_MAX) {
            return;
        }
        self.list.clear();
        self.list.extend_from_slice(list);
        self.written.clear();
        self.written.extend_from_slice(written);
        self.version = version;
    }

    /// Bytes of memory that it holds besides its own struct.
    pub(super) fn memory_bytes(&self) -> usize {
        self.list.capacity() + self.written.capacity()
    }
}
