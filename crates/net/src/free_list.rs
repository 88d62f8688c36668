//! Free lists: boxed values that are kept for reuse. The values of a burst are kept no longer than the burst.

use crate::memory;

/// A free list of boxed values of one kind.
#[derive(Debug)]
pub struct FreeList<T: ?Sized> {
    items: Vec<Box<T>>,
    /// The shortest length since [`FreeList::trim`]: this many values were not needed.
    least: usize,
}

impl<T: ?Sized> FreeList<T> {
    /// An empty list.
    pub const fn new() -> Self {
        Self { items: Vec::new(), least: 0 }
    }

    /// Takes the most recently used value, whose bytes are most likely in the cache, or makes a new one if the list is empty.
    pub fn take_or(&mut self, make: impl FnOnce() -> Box<T>) -> Box<T> {
        let item = self.items.pop();
        self.least = self.least.min(self.items.len());
        item.unwrap_or_else(|| {
            let made = make();
            memory::note_allocated(size_of_val(&*made));
            made
        })
    }

    /// Keeps a value for reuse, or frees it if the list already has `items_max`.
    pub fn put(&mut self, item: Box<T>, items_max: usize) {
        if self.items.len() < items_max {
            self.items.push(item);
        } else {
            memory::note_freed(size_of_val(&*item));
        }
    }

    /// Frees half of the values that were not needed since the last call. Called ten times a second, it frees the values of a burst within
    /// a second or two.
    pub fn trim(&mut self) {
        let surplus = self.least.min(self.items.len()).div_ceil(2);
        // The oldest are at the front.
        self.items.drain(..surplus).for_each(|item| memory::note_freed(size_of_val(&*item)));
        self.least = self.items.len();
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<T: ?Sized> Default for FreeList<T> {
    fn default() -> Self {
        Self::new()
    }
}
