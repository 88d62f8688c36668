//! The streams of a connection: where each stands (RFC 9113 section 5.1), and which are over.

use std::collections::VecDeque;

use super::frame;
use super::output::Output;

/// Streams that are over and remembered as such. A frame for a stream that this side reset may still be on its way, and is ignored;
/// one for a stream that its sender ended is an error (section 5.1); behind the last that is remembered the two are not told apart.
const DEPARTED_MAX: usize = 256;

/// No stream was noted there.
const NO_SLOT: u32 = u32::MAX;

/// Places to find a stream by its id, for each slot. Ids of streams that are open at once are mostly not far apart, but a few may be old.
const BY_ID_FACTOR: usize = 2;

/// A stream, as the owner names it. Copy it freely: when the stream is over and its slot has another, calls with it do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The id on the wire.
    pub id: u32,
    /// Where the stream's state lies: below twice `Limits::streams_max`, so that the owner can keep its own state in a table of the same
    /// shape.
    pub slot: u32,
}

/// Where one direction of a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Its head has not come (a client waits for its response; a server has not answered).
    Head,
    /// DATA, then perhaps trailers.
    Body,
    /// Ended by END_STREAM.
    Ended,
    /// Cut off by RST_STREAM, of either side.
    Reset,
}

impl Half {
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Head | Self::Body)
    }
}

/// How a stream came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    /// Both directions ended, or the other side reset it.
    Theirs,
    /// This side reset it.
    Ours,
}

/// One stream, in one line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Stream {
    /// 0: the slot is free.
    pub(super) id: u32,
    pub(super) recv: Half,
    pub(super) send: Half,
    /// A response to it has no body: it answers HEAD.
    pub(super) is_head: bool,
    /// The final response's status allows no body: DATA must be empty.
    pub(super) is_bodiless: bool,
    /// Waits in one of the queues for [`Event::Writable`](super::Event::Writable).
    pub(super) is_queued: bool,
    /// Waits for its own window.
    pub(super) is_starved: bool,
    /// What may be sent; below zero after the other side made its window smaller (section 6.9.2).
    pub(super) send_window: i64,
    /// What may be received.
    pub(super) recv_window: i64,
    /// Received and handed to the owner, who has not released it.
    pub(super) unreleased: u32,
    /// Released and not yet told to the other side.
    pub(super) released: u32,
    /// DATA that `content-length` still promises.
    pub(super) content_left: Option<u64>,
    /// Its place among those that wait: it is the turn of the lowest. A new one is drawn when something was sent.
    pub(super) turn: u64,
}

impl Stream {
    /// Both directions are over: the id is free for nobody, the slot when the owner lets go.
    pub(super) fn is_over(&self) -> bool {
        !self.recv.is_open() && !self.send.is_open()
    }

    /// Tells the other side what was released, half a window at a time.
    pub(super) fn tell_released(&mut self, key: StreamKey, window: u32, output: &mut Output) {
        if self.released > 0 && self.released >= window / 2 {
            frame::write_window_update(output.bytes(), key.id, self.released);
            self.recv_window += i64::from(self.released);
            self.released = 0;
        }
    }

    /// The stream's window was opened. Whether it was waiting for that, and now has to be queued.
    pub(super) fn feed(&mut self) -> bool {
        let is_fed = self.is_starved && self.send_window > 0;
        self.is_starved &= !is_fed;
        is_fed && !self.is_queued
    }
}

impl Default for Stream {
    /// With an id and its windows, a stream of which nothing was said.
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

/// Streams that wait for something all of them share, each once.
///
/// All of them may be woken before the first has taken what there is. Those who came too late keep their turn, and stand in front of it
/// the next time: so everyone's turn comes.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By turns, rising.
    waiting: VecDeque<(u64, StreamKey)>,
}

impl Queue {
    /// Puts a stream into its place.
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
    /// Slots by id: the id's half, modulo the length, which is a power of two and at least twice that of `slots`. One side's ids rise by two:
    /// so streams that are open at once hardly ever meet in one place. What is found here may be out of date, and is compared.
    by_id: Vec<u32>,
    /// Of streams that are not over one may have lost its place in `by_id`: only then is it worth while to look at all slots.
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

    /// Streams that are not over.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Streams that the owner holds, over or not.
    pub(super) fn held(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.held() >= self.slots_max
    }

    /// `None`: there is no slot.
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

    /// The owner's stream, over or not.
    pub(super) fn get(&mut self, key: StreamKey) -> Option<&mut Stream> {
        self.slots.get_mut(key.slot as usize).filter(|stream| stream.id == key.id && key.id != 0)
    }

    /// A stream that is not over.
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

    /// Takes a stream, which has just come to be over, off the wire's books. The owner still holds it.
    pub(super) fn depart(&mut self, id: u32, how: Departure) {
        debug_assert!(self.open > 0, "a stream departs once");
        self.open = self.open.saturating_sub(1);
        self.is_crowded &= self.open > 0;
        self.remember(id, how);
    }

    /// Notes that a stream is over that was never held.
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

    /// The owner lets go.
    pub(super) fn remove(&mut self, key: StreamKey) {
        if let Some(stream) = self.get(key) {
            stream.id = 0;
            self.free.push(key.slot);
        }
    }

    fn place(&self, id: u32) -> usize {
        (id as usize / 2) & self.by_id.len().wrapping_sub(1)
    }

    /// Gives a stream its place in `by_id`.
    fn note(&mut self, id: u32, slot: u32) {
        let place = self.place(id);
        let Some(noted) = self.by_id.get_mut(place) else { return };
        let before = std::mem::replace(noted, slot);
        let other = self.slots.get(before as usize).filter(|stream| before != slot && !stream.is_over());
        self.is_crowded |= other.is_some_and(|stream| stream.id != 0 && self.place(stream.id) == place);
    }

    /// There is one slot more.
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

    /// All that the owner holds.
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

/// What [`Streams::memory_bytes`] can come to.
pub(super) fn memory_bytes_max(slots_max: usize) -> usize {
    let slots = slots_max.next_power_of_two().max(8);
    // Besides the streams: two queues for Writable and one for events, each of at most twice the slots.
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

    /// Ids as a client may choose them: all of one place in `by_id`, and then one that is of no stream.
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
