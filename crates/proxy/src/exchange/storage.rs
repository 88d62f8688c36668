//! Free lists of exchanges and responses: the next request reuses what the last one has used. And what heads were read as.

use std::cell::{Cell, RefCell};

use net::free_list::FreeList;
use net::memory;
use wire::h1::{RequestMemo, ResponseMemo};
use wire::message::{RequestHead, ResponseHead};

use super::Exchange;
use super::faults::{self, InjectedFault};
use super::transfer::Transfer;
use crate::tcp::upgrade::Upgrade;
use crate::trace::Ids;

/// A request's head.
#[derive(Default)]
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    /// The bytes that the head points into.
    pub(crate) bytes: Vec<u8>,
    /// Path and query with the path in its normal form, if the client wrote it in another form.
    pub(crate) normal_target: Option<Vec<u8>>,
    /// The protocol that the client requests instead of HTTP, if the endpoint is asked for it.
    pub(crate) upgrade: Option<Box<Upgrade>>,
}

/// A response: its head, and its transfer to the client. It is separate from [`Exchange`], and taken only when the response arrives:
/// hundreds of requests wait while responses pass one by one, so few of these are in use, and those are in the nearest caches.
#[derive(Default)]
pub(crate) struct Response {
    pub(crate) head: ResponseHead,
    /// The bytes that the head points into.
    pub(crate) bytes: Vec<u8>,
    pub(crate) download: Transfer,
    /// Taken by [`Storage::response`].
    is_awaited: bool,
}

impl Request {
    /// Path and query as routes see them.
    pub(crate) fn target(&self) -> &[u8] {
        self.normal_target.as_deref().unwrap_or(self.head.path.get(&self.bytes))
    }

    /// Whether a 101 switches to what the client asked for.
    pub(crate) fn agrees_to(&self, response: &Response) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_agreed(&response.head, &response.bytes))
    }

    pub(super) fn clear(&mut self) {
        self.normal_target = None;
        self.upgrade = None;
        shrink(&mut self.bytes);
    }
}

/// A larger head buffer, in bytes, is not kept.
const HEAD_BYTES_KEPT_MAX: usize = 4096;

fn shrink(bytes: &mut Vec<u8>) {
    bytes.clear();
    if bytes.capacity() > HEAD_BYTES_KEPT_MAX {
        *bytes = Vec::new();
    }
}

/// The unused exchanges and responses of one worker.
#[derive(Default)]
pub(crate) struct Storage {
    exchanges: RefCell<FreeList<Exchange>>,
    responses: RefCell<FreeList<Response>>,
    /// Exchanges without a response that [`memory::note_promised`] does not include yet: `-WAITING_UNTOLD_MAX < waiting <
    /// WAITING_UNTOLD_MAX`.
    waiting: Cell<i64>,
    /// What heads of HTTP/1 were read as.
    pub(crate) request_memo: RefCell<RequestMemo>,
    pub(crate) response_memo: RefCell<ResponseMemo>,
    /// For traces.
    pub(crate) ids: Ids,
}

/// The minimum that the response to a request needs: its head and state, and a little buffer. Measured: 4.7 KiB for an exchange that waits,
/// 12.7 KiB for one whose client does not read while memory is full.
const RESPONSE_BYTES: i64 = 8 * 1024;

/// The process-wide count is updated once for this many exchanges, since all workers write to it.
const WAITING_UNTOLD_MAX: i64 = 16;

/// Free objects kept of each kind. Those that were not needed for a while are freed. What the allocator returns to the system is a separate
/// question: with four times as many, a burst left 2 MiB resident.
const FREE_MAX: usize = 256;

impl Storage {
    pub(crate) fn exchange(&self) -> Box<Exchange> {
        self.wait(1);
        self.exchanges.borrow_mut().take_or(Box::default)
    }

    /// For an endpoint's response that has arrived.
    pub(crate) fn response(&self) -> Box<Response> {
        self.wait(-1);
        let mut response = self.responses.borrow_mut().take_or(Box::default);
        response.is_awaited = true;
        response
    }

    /// Returns a response that did not arrive, or is over.
    pub(crate) fn give_back_response(&self, response: Box<Response>) {
        if response.is_awaited && !faults::is_injected(InjectedFault::LeaksResponse) {
            self.wait(1);
        }
        self.put_response(response);
    }

    fn put_response(&self, mut response: Box<Response>) {
        response.is_awaited = false;
        shrink(&mut response.bytes);
        self.responses.borrow_mut().put(response, FREE_MAX);
    }

    /// Counts exchanges that wait for their response.
    fn wait(&self, more: i64) {
        let waiting = self.waiting.get() + more;
        let is_told = waiting.abs() >= WAITING_UNTOLD_MAX;
        self.waiting.set(if is_told { 0 } else { waiting });
        if is_told {
            memory::note_promised(waiting * RESPONSE_BYTES);
        }
    }

    /// Returns an exchange that is over.
    pub(crate) fn give_back(&self, mut exchange: Box<Exchange>) {
        let response = exchange.clear();
        if !response.as_ref().is_some_and(|response| response.is_awaited) {
            self.wait(-1);
        }
        if let Some(mut response) = response {
            response.download.clear();
            self.put_response(response);
        }
        self.exchanges.borrow_mut().put(exchange, FREE_MAX);
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> i64 {
        self.waiting.get()
    }

    /// Frees unneeded ones ([`FreeList::trim`]).
    pub(crate) fn trim(&self) {
        self.exchanges.borrow_mut().trim();
        self.responses.borrow_mut().trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchanges_wait_from_their_beginning_to_their_response_or_end() {
        let storage = Storage::default();
        let check = |expect| assert_eq!(storage.waiting.get(), expect);
        let mut served = storage.exchange();
        let (mut refused, unanswered) = (storage.exchange(), storage.exchange());
        check(3);
        // It was expected and not there, then it was there.
        storage.give_back_response(storage.response());
        check(3);
        served.response = Some(storage.response());
        check(2);
        // Our own response.
        refused.response = Some(storage.response());
        storage.give_back(refused);
        check(1);
        storage.give_back(unanswered);
        check(0);
        storage.give_back(served);
        check(0);
        // A reused response was not awaited before it is taken.
        assert!(!storage.responses.borrow_mut().take_or(Box::default).is_awaited);
        (1..WAITING_UNTOLD_MAX).for_each(|_| drop(storage.exchange()));
        check(WAITING_UNTOLD_MAX - 1);
        drop(storage.exchange());
        check(0);
        // What this test has taken and not returned.
        memory::note_promised(-WAITING_UNTOLD_MAX * RESPONSE_BYTES);
    }
}
