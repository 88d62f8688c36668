//! What an exchange works on, in rooms that are used again.

use std::cell::RefCell;

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
}

/// Spares kept of each: as many as are in use at once, up to this. Those that were not needed for a while are given back; what the allocator gives
/// back of them to the system is another matter: of four times as many a burst left 2 MiB resident.
const SPARES_MAX: usize = 256;

impl Rooms {
    /// For a request.
    pub(crate) fn work(&self) -> Box<Work> {
        self.work.borrow_mut().take().unwrap_or_default()
    }

    /// For a response.
    pub(crate) fn reply(&self) -> Box<Reply> {
        self.replies.borrow_mut().take().unwrap_or_default()
    }

    /// A response that did not come.
    pub(crate) fn give_back_reply(&self, reply: Box<Reply>) {
        self.replies.borrow_mut().put(reply, SPARES_MAX);
    }

    /// An exchange is over.
    pub(crate) fn give_back(&self, mut work: Box<Work>) {
        if let Some(mut reply) = work.reply.take() {
            reply.head.status = 0;
            reply.download.leave(Framing::H1(Body::None));
            self.replies.borrow_mut().put(reply, SPARES_MAX);
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
