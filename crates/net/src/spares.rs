//! Spare rooms, for use again: those of a burst are kept no longer than the burst.

use crate::memory;

/// Spare rooms of one kind.
#[derive(Debug)]
pub struct Spares<T: ?Sized> {
    rooms: Vec<Box<T>>,
    /// The fewest that lay here since [`Spares::trim`]: so many nobody has needed.
    least: usize,
}

impl<T: ?Sized> Spares<T> {
    /// None yet.
    pub const fn new() -> Self {
        Self { rooms: Vec::new(), least: 0 }
    }

    /// The one that was used last, whose bytes are nearest; a new one if there is none.
    pub fn take_or(&mut self, make: impl FnOnce() -> Box<T>) -> Box<T> {
        let room = self.rooms.pop();
        self.least = self.least.min(self.rooms.len());
        room.unwrap_or_else(|| {
            let made = make();
            memory::note_allocated(size_of_val(&*made));
            made
        })
    }

    /// Keeps a room, unless so many are there already.
    pub fn put(&mut self, room: Box<T>, spares_max: usize) {
        if self.rooms.len() < spares_max {
            self.rooms.push(room);
        } else {
            memory::note_freed(size_of_val(&*room));
        }
    }

    /// Drops half of those that nobody needed since the last call: called ten times a second, a burst is forgotten within a second or two.
    pub fn trim(&mut self) {
        let surplus = self.least.min(self.rooms.len()).div_ceil(2);
        // The oldest, which lie at the bottom.
        self.rooms.drain(..surplus).for_each(|room| memory::note_freed(size_of_val(&*room)));
        self.least = self.rooms.len();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }
}

impl<T: ?Sized> Default for Spares<T> {
    fn default() -> Self {
        Self::new()
    }
}
