//! The streams of a connection: their states (RFC 9113 section 5.1), and which ones are over.

use std::collections::VecDeque;

use super::frame;
use super::output::Output;

/// Streams that are over and still remembered. A frame for a stream that this side reset may still be on its way, and is ignored. A frame
/// for a stream that its sender ended is an error (section 5.1). For streams that are no longer remembered, the two are not distinguished.
const DEPARTED_MAX: usize = 256;

/// No stream is recorded here.
const NO_SLOT: u32 = u32::MAX;

/// Places per slot for finding a stream by its id. Ids of streams that are open at once are mostly close together, but a few may be old.
const BY_ID_FACTOR: usize = 2;

/// How the owner refers to a stream. It is safe to keep: once the stream is over and another uses its slot, calls with the old key do
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The stream id of the protocol.
    pub id: u32,
    /// The slot of the stream's state. It is below twice `Limits::streams_max`, so the owner can keep its own state in a table of the same
    /// shape.
    pub slot: u32,
}

/// The state of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Its head has not arrived (a client waits for the response; a server has not answered).
    Head,
    /// DATA, then perhaps trailers.
    Body,
    /// Ended by END_STREAM.
    Ended,
    /// Ended by RST_STREAM, from either side.
    Reset,
}

impl Half {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Head | Self::Body)
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Both directions ended, or the other side reset it.
    Theirs,
    /// This side reset it.
    Ours,
}

/// One stream, in one cache line.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Stream {
    /// 0 if the slot is free.
    pub(super) id: u32,
    pub(super) recv: Half,
    pub(super) send: Half,
    /// It answers HEAD, so a response has no body.
    pub(super) is_head: bool,
    /// The final response's status allows no body: DATA must be empty.
    pub(super) is_bodiless: bool,
    /// It waits in one of the queues for [`Event::Writable`](super::Event::Writable).
    pub(super) is_queued: bool,
    /// It waits for its own window.
    pub(super) is_starved: bool,
    /// Bytes that may be sent; negative after the other side made its window smaller (section 6.9.2).
    pub(super) send_window: i64,
    /// Bytes that may be received.
    pub(super) recv_window: i64,
    /// Bytes that were received and passed to the owner, which has not released them.
    pub(super) unreleased: u32,
    /// Bytes that were released and not yet returned to the other side.
    pub(super) released: u32,
    /// DATA that is still missing according to `content-length`.
    pub(super) content_left: Option<u64>,
    /// Its turn among the waiting streams: the lowest goes first. It gets a new turn after it has sent something.
    pub(super) turn: u64,
}

impl Stream {
    /// Whether both directions are over. The id is never reused; the slot is free once the owner lets go.
    pub(super) fn is_over(&self) -> bool {
        !self.recv.is_open() && !self.send.is_open()
    }

    /// Returns released bytes to the other side, half a window at a time.
    pub(super) fn tell_released(&mut self, key: StreamKey, window: u32, output: &mut Output) {
        if self.released > 0 && self.released >= window / 2 {
            frame::write_window_update(output.bytes(), key.id, self.released);
            self.recv_window += i64::from(self.released);
            self.released = 0;
        }
    }

    /// Call this after the stream's window was opened. Returns whether the stream was waiting for that, and now has to be queued.
    pub(super) fn feed(&mut self) -> bool {
        let is_fed = self.is_starved && self.send_window > 0;
        self.is_starved &= !is_fed;
        is_fed && !self.is_queued
    }
}

impl Default for Stream {
    /// A stream without id, windows or any message so far.
    fn default() -> Self {
        Self {
            id: 0,
            recv: Half::Head,
            send: Half::Head,
            is_head: false,
            is_bodiless: false,
            is_queued: false,
            is_starved: false,
            send_window: 0,
            recv_window: 0,
            unreleased: 0,
            released: 0,
            content_left: None,
            turn: 0,
        }
    }
}

/// Streams that wait for a shared resource, each once.
///
/// All of them may be woken before the first has taken what is available. Those that come too late keep their turn, and are first in the
/// queue the next time, so every stream gets its turn.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In ascending order of turns.
    waiting: VecDeque<(u64, StreamKey)>,
}

impl Queue {
    /// Inserts a stream by its turn.
    pub(super) fn push(&mut self, key: StreamKey, stream: &mut Stream) {
        stream.is_queued = true;
        let at = self.waiting.partition_point(|(turn, _)| *turn <= stream.turn);
        self.waiting.insert(at, (stream.turn, key));
    }

    pub(super) fn pop(&mut self) -> Option<StreamKey> {
        self.waiting.pop_front().map(|(_, key)| key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn remove(&mut self, key: StreamKey) {
        self.waiting.retain(|(_, waiting)| *waiting != key);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<(u64, StreamKey)>()
    }
}

/// All streams of a connection.
#[derive(Debug)]
pub(super) struct Streams {
    slots: Vec<Stream>,
    free: Vec<u32>,
    /// Slots by id: the index is half the id, modulo the length, which is a power of two and at least twice the length of `slots`. The ids
    /// of one side rise by two, so streams that are open at once hardly ever collide. An entry may be outdated, so the stream's id is
    /// compared.
    by_id: Vec<u32>,
    /// A stream that is not over may have lost its place in `by_id`. Only then is a search through all slots worthwhile.
    is_crowded: bool,
    /// Streams that are not over.
    open: usize,
    departed: VecDeque<(u32, Departure)>,
    slots_max: usize,
}

impl Streams {
    pub(super) fn new(slots_max: usize) -> Self {
        let (slots, free, by_id, departed) = Default::default();
        Self { slots, free, by_id, is_crowded: false, open: 0, departed, slots_max }
    }

    /// The number of streams that are not over.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// The number of streams that the owner holds, over or not.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.held() >= self.slots_max
    }

    /// `None` if there is no free slot.
    pub(super) fn insert(&mut self, stream: Stream) -> Option<StreamKey> {
        let id = stream.id;
        let slot = match self.free.pop() {
            Some(slot) => {
                *self.slots.get_mut(slot as usize)? = stream;
                slot
            }
            None if self.is_full() => return None,
            None => {
                self.slots.push(stream);
                self.widen();
                self.slots.len() as u32 - 1
            }
        };
        self.open += 1;
        self.note(id, slot);
        Some(StreamKey { id, slot })
    }

    /// A stream that the owner holds, over or not.
    pub(super) fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot as usize).filter(|stream| stream.id == key.id && key.id != 0)
    }

    /// Finds a stream that is not over.
    pub(super) fn find(&mut self, id: u32) -> Option<(StreamKey, &mut Stream)> {
        let is_it = |stream: &Stream| stream.id == id && !stream.is_over() && id != 0;
        let mut slot = self.by_id.get(self.place(id)).copied()?;
        if !self.slots.get(slot as usize).is_some_and(is_it) {
            if !self.is_crowded {
                return None;
            }
            slot = self.slots.iter().position(is_it)? as u32;
            self.note(id, slot);
        }
        self.slots.get_mut(slot as usize).map(|stream| (StreamKey { id, slot }, stream))
    }

    /// Removes a stream that has just ended from the protocol's view. The owner still holds it.
    pub(super) fn depart(&mut self, id: u32, how: Departure) {
        debug_assert!(self.open > 0, "a stream departs once");
        self.open = self.open.saturating_sub(1);
        self.is_crowded &= self.open > 0;
        self.remember(id, how);
    }

    /// Remembers that a stream is over which was never held.
    pub(super) fn remember(&mut self, id: u32, how: Departure) {
        if self.departed.len() >= DEPARTED_MAX {
            self.departed.pop_front();
        }
        self.departed.push_back((id, how));
    }

    /// How a stream ended, if that is still known.
    pub(super) fn departure(&self, id: u32) -> Option<Departure> {
        self.departed.iter().rev().find(|(departed, _)| *departed == id).map(|(_, how)| *how)
    }

    /// Frees the slot when the owner lets go.
    pub(super) fn remove(&mut self, key: StreamKey) {
        if let Some(stream) = self.get(key) {
            stream.id = 0;
            self.free.push(key.slot);
        }
    }

    fn place(&self, id: u32) -> usize {
        (id as usize / 2) & self.by_id.len().wrapping_sub(1)
    }

    /// Records a stream's slot in `by_id`.
    fn note(&mut self, id: u32, slot: u32) {
        let place = self.place(id);
        let Some(noted) = self.by_id.get_mut(place) else { return };
        let before = std::mem::replace(noted, slot);
        let other = self.slots.get(before as usize).filter(|stream| before != slot && !stream.is_over());
        self.is_crowded |= other.is_some_and(|stream| stream.id != 0 && self.place(stream.id) == place);
    }

    /// Adjusts `by_id` after a slot was added.
    fn widen(&mut self) {
        let wanted = BY_ID_FACTOR * self.slots.len().next_power_of_two();
        if wanted > self.by_id.len() {
            self.by_id = vec![NO_SLOT; wanted];
            self.is_crowded = false;
            for slot in 0..self.slots.len() as u32 {
                self.note(self.slots.get(slot as usize).map_or(0, |stream| stream.id), slot);
            }
        }
    }

    /// All streams that the owner holds.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (StreamKey, &mut Stream)> {
        let held = self.slots.iter_mut().enumerate().filter(|(_, stream)| stream.id != 0);
        held.map(|(slot, stream)| (StreamKey { id: stream.id, slot: slot as u32 }, stream))
    }

    /// Bytes of memory that it holds.
    pub(super) fn memory_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Stream>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_id.capacity() * size_of::<u32>()
            + self.departed.capacity() * size_of::<(u32, Departure)>()
    }
}

/// The maximum of [`Streams::memory_bytes`].
pub(super) fn memory_bytes_max(slots_max: usize) -> usize {
    let slots = slots_max.next_power_of_two().max(8);
    // In addition to the streams: two queues for Writable and one for events, each of at most twice the slots.
    let queues = 3 * 2 * slots * size_of::<super::Event<'static>>();
    slots * (size_of::<Stream>() + size_of::<u32>() + BY_ID_FACTOR * size_of::<u32>())
        + DEPARTED_MAX * size_of::<(u32, Departure)>()
        + queues
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(id: u32) -> Stream {
        Stream { id, recv: Half::Body, send: Half::Head, ..Stream::default() }
    }

    fn close(streams: &mut Streams, key: StreamKey) {
        let stream = streams.get(key).unwrap();
        (stream.recv, stream.send) = (Half::Ended, Half::Reset);
        streams.depart(key.id, Departure::Ours);
    }

    #[test]
    fn keys_of_streams_that_are_gone_lead_nowhere() {
        let mut streams = Streams::new(2);
        let first = streams.insert(stream(1)).unwrap();
        let second = streams.insert(stream(3)).unwrap();
        assert!(streams.insert(stream(5)).is_none());
        close(&mut streams, first);
        assert_eq!((streams.open(), streams.held()), (1, 2));
        assert!(streams.find(1).is_none() && streams.get(first).is_some());
        streams.remove(first);
        streams.remove(first);
        let third = streams.insert(stream(5)).unwrap();
        assert_eq!(third.slot, first.slot);
        assert!(streams.get(first).is_none() && streams.get(second).is_some());
        assert_eq!((streams.departure(1), streams.departure(3)), (Some(Departure::Ours), None));
        assert!(streams.get(StreamKey { id: 0, slot: 0 }).is_none());
        assert_eq!(streams.iter_mut().map(|(key, _)| key).collect::<Vec<_>>(), [third, second]);
    }

    /// A client can choose such ids: they all have the same place in `by_id`, and then one belongs to no stream.
    #[test]
    fn streams_whose_ids_meet_are_found() {
        let mut streams = Streams::new(20);
        for round in 0..3 {
            let id = |at: u32| 1 + 2 * 64 * (20 * round + at);
            let keys: Vec<_> = (0..20).map(|at| streams.insert(stream(id(at))).unwrap()).collect();
            for key in keys.iter().chain(keys.iter().rev()) {
                assert_eq!(streams.find(key.id).map(|(found, _)| found), Some(*key), "{round}");
            }
            assert!(streams.find(id(20)).is_none() && streams.find(0).is_none());
            for (at, key) in keys.iter().enumerate() {
                close(&mut streams, *key);
                assert!(streams.find(key.id).is_none());
                assert_eq!(streams.open(), 19 - at);
                let last = keys.last().filter(|last| *last != key);
                assert_eq!(last.and_then(|last| streams.find(last.id)).map(|(found, _)| found), last.copied());
            }
            keys.into_iter().for_each(|key| streams.remove(key));
        }
    }

    #[test]
    fn memory_is_bounded() {
        let mut streams = Streams::new(200);
        for round in 0..1000_u32 {
            let ids = (0..200).map(|at| 2 * (round * 200 + at) + 1);
            let keys: Vec<_> = ids.map(|id| streams.insert(stream(id)).unwrap()).collect();
            for key in keys {
                close(&mut streams, key);
                streams.remove(key);
            }
        }
        assert!(streams.memory_bytes() <= memory_bytes_max(200), "{}", streams.memory_bytes());
        assert_eq!(streams.departed.len(), DEPARTED_MAX);
        assert!(size_of::<Stream>() <= 64, "{}", size_of::<Stream>());
    }
}
