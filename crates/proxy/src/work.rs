//! What an exchange works on, in rooms that are used again.

use std::cell::{Cell, RefCell};

use net::memory;
use net::spares::Spares;
use wire::message::{Body, RequestHead, ResponseHead};

use crate::body::{Framing, Pump};
use crate::policy::mirror::Copies;
use crate::upgrade::Upgrade;

/// What a request is kept in until its exchange is over. Pooled by the worker: heads and buffers keep their room.
#[derive(Default)]
pub(crate) struct Work {
    pub(crate) request: RequestHead,
    /// What the request's head points into, if it came over HTTP/2. Of HTTP/1 that is the connection's input.
    pub(crate) request_bytes: Vec<u8>,
    /// Path and query with the path in its normal form, where that is not what the client wrote.
    pub(crate) normal_target: Option<Vec<u8>>,
    /// What the client asks for in place of HTTP, as far as the endpoint is asked for it.
    pub(crate) upgrade: Option<Box<Upgrade>>,
    pub(crate) upload: Pump,
    pub(crate) reply: Option<Box<Reply>>,
    pub(crate) scratch: Vec<u8>,
    /// Copies for mirrors that wait for the request's body.
    pub(crate) mirror: Option<Box<Copies>>,
}

/// What a response is kept in. Apart from [`Work`], and taken only when the response comes: requests wait by the hundred and responses pass
/// one by one, so that few of these are in use, and those are in the nearest caches.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) head: ResponseHead,
    /// What the head points into, if it came over HTTP/2. Of HTTP/1 that is the connection's input.
    pub(crate) bytes: Vec<u8>,
    pub(crate) download: Pump,
    /// Taken by [`Rooms::reply`], for a response of an endpoint.
    is_awaited: bool,
}

impl Work {
    /// Path and query as routes see them. `head` is what the request's head points into.
    pub(crate) fn target<'w>(&'w self, head: &'w [u8]) -> &'w [u8] {
        self.normal_target.as_deref().unwrap_or(self.request.path.get(head))
    }

    /// The response; a blank one where none has come.
    pub(crate) fn reply(&mut self) -> &mut Reply {
        self.reply.get_or_insert_default()
    }

    /// The status of the response; 0: none has come.
    pub(crate) fn status(&self) -> u16 {
        self.reply.as_ref().map_or(0, |reply| reply.head.status)
    }

    /// Bytes of a response that went to the client, head and all.
    pub(crate) fn sent(&self) -> u64 {
        self.reply.as_ref().map_or(0, |reply| reply.download.sent)
    }

    /// Sends the copies for mirrors on their way, if the request's body is whole.
    pub(crate) fn mirror(&mut self) {
        self.mirror = self.mirror.take().and_then(|copies| copies.send_if_whole(&mut self.upload));
    }

    /// Leaves nothing of the request to the next: now, since all of it is at hand, and not when the next comes.
    fn clear(&mut self) {
        self.upload.leave(Framing::H1(Body::None));
        // What still waits waits for a body that will not be whole.
        self.mirror = None;
        self.normal_target = None;
        self.upgrade = None;
    }
}

/// Rooms of one worker that no exchange is in.
#[derive(Default)]
pub(crate) struct Rooms {
    work: RefCell<Spares<Work>>,
    replies: RefCell<Spares<Reply>>,
    /// Exchanges without a response that [`memory::note_promised`] has not heard of: `-WAITING_UNTOLD_MAX < waiting < WAITING_UNTOLD_MAX`.
    waiting: Cell<i64>,
}

/// What the response to a request takes at least: its head and state, and a little buffer. Measured: 4.7 KiB for an exchange that waits, 12.7 KiB
/// for one whose client does not read while memory is full.
const RESPONSE_BYTES: i64 = 8 * 1024;

/// Not each exchange is told, since all workers write to the same place.
const WAITING_UNTOLD_MAX: i64 = 16;

/// Spares kept of each: as many as are in use at once, up to this. Those that were not needed for a while are given back; what the allocator gives
/// back of them to the system is another matter: of four times as many a burst left 2 MiB resident.
const SPARES_MAX: usize = 256;

impl Rooms {
    /// For a request.
    pub(crate) fn work(&self) -> Box<Work> {
        self.wait(1);
        self.work.borrow_mut().take_or(Box::default)
    }

    /// For a response.
    pub(crate) fn reply(&self) -> Box<Reply> {
        self.wait(-1);
        let mut reply = self.replies.borrow_mut().take_or(Box::default);
        reply.is_awaited = true;
        reply
    }

    /// A response that did not come.
    pub(crate) fn give_back_reply(&self, reply: Box<Reply>) {
        if reply.is_awaited {
            self.wait(1);
        }
        self.put_reply(reply);
    }

    fn put_reply(&self, mut reply: Box<Reply>) {
        reply.is_awaited = false;
        self.replies.borrow_mut().put(reply, SPARES_MAX);
    }

    /// So many exchanges more wait for their response.
    fn wait(&self, more: i64) {
        let waiting = self.waiting.get() + more;
        let is_told = waiting.abs() >= WAITING_UNTOLD_MAX;
        self.waiting.set(if is_told { 0 } else { waiting });
        if is_told {
            memory::note_promised(waiting * RESPONSE_BYTES);
        }
    }

    /// An exchange is over.
    pub(crate) fn give_back(&self, mut work: Box<Work>) {
        let reply = work.reply.take();
        if !reply.as_ref().is_some_and(|reply| reply.is_awaited) {
            self.wait(-1);
        }
        if let Some(mut reply) = reply {
            reply.head.status = 0;
            reply.download.leave(Framing::H1(Body::None));
            self.put_reply(reply);
        }
        work.clear();
        self.work.borrow_mut().put(work, SPARES_MAX);
    }

    /// Drops spares that nobody needs ([`Spares::trim`]).
    pub(crate) fn trim(&self) {
        self.work.borrow_mut().trim();
        self.replies.borrow_mut().trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_wait_from_their_beginning_to_their_response_or_end() {
        let rooms = Rooms::default();
        let check = |expect| assert_eq!(rooms.waiting.get(), expect);
        let mut served = rooms.work();
        let (mut refused, unanswered) = (rooms.work(), rooms.work());
        check(3);
        // Asked for and not there, then there.
        rooms.give_back_reply(rooms.reply());
        check(3);
        served.reply = Some(rooms.reply());
        check(2);
        // An answer of this side.
        refused.reply();
        rooms.give_back(refused);
        check(1);
        rooms.give_back(unanswered);
        check(0);
        rooms.give_back(served);
        check(0);
        // A reply that is used again was not awaited before it is taken.
        assert!(!rooms.replies.borrow_mut().take_or(Box::default).is_awaited);
        (1..WAITING_UNTOLD_MAX).for_each(|_| drop(rooms.work()));
        check(WAITING_UNTOLD_MAX - 1);
        drop(rooms.work());
        check(0);
        // What this test has taken and not given back.
        memory::note_promised(-WAITING_UNTOLD_MAX * RESPONSE_BYTES);
    }
}
