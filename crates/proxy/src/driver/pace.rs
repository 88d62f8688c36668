//! Makes a message wait for the bandwidth of its client, and a response for its own (`policy/bandwidth`).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use net::buffer;
use net::clock;
use net::timer::Timer;
use telemetry::ListenerCounters;

use crate::exchange::transfer::Transfer;
use crate::policy::bandwidth::{Direction, ResponsePace, Share};

/// A shorter wait is not worth a timer. It is not lost: the next wait is longer.
const WAIT_US_MIN: u64 = 1000;

/// The pace of one direction of an exchange.
pub(super) struct Pace {
    /// That of the client, if the listener limits it.
    share: Option<Share>,
    /// That of the response, if the route limits it.
    response: Option<ResponsePace>,
    timer: Timer,
    counters: Arc<ListenerCounters>,
    /// Bytes of the message that were charged.
    charged: u64,
    /// When more may move, in microseconds.
    until_us: u64,
    is_waiting: bool,
}

impl Pace {
    /// `charged`: bytes of the message that were charged to the client before.
    pub(super) fn new(
        share: Option<Share>,
        response: Option<ResponsePace>,
        timer: Timer,
        counters: Arc<ListenerCounters>,
        charged: u64,
    ) -> Self {
        let now_us = clock::now_us();
        // What other messages of the client have moved may be too much for now.
        let until_us = share.as_ref().map_or(0, |share| now_us.saturating_add(share.charge(0, now_us)));
        Self { share, response, timer, counters, charged, until_us, is_waiting: false }
    }

    /// Records what has moved of the message, on the side of the client.
    pub(super) fn note(&mut self, transfer: &Transfer) {
        // Requests have no other bandwidth than that of their client.
        let moved = match self.share.as_ref().map_or(Direction::Response, |share| share.direction) {
            Direction::Request => transfer.received(),
            Direction::Response => transfer.sent(),
        };
        let more = moved.saturating_sub(self.charged);
        if more > 0 {
            self.charged = moved;
            let now_us = clock::now_us();
            let of_client = self.share.as_ref().map_or(0, |share| now_us.saturating_add(share.charge(more, now_us)));
            let of_response = self.response.as_ref().map_or(0, |response| response.due_us(moved));
            self.until_us = of_client.max(of_response);
        }
    }

    /// How much to read of the message at once.
    pub(super) fn piece_bytes(&self) -> usize {
        self.response
            .as_ref()
            .map_or_else(buffer::piece_bytes, |response| buffer::piece_bytes_within(response.piece_bytes()))
    }

    /// Ready when more may move.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_waiting {
            if self.until_us < clock::last_us().saturating_add(WAIT_US_MIN) {
                return Poll::Ready(());
            }
            self.is_waiting = true;
            self.counters.bandwidth_waits.inc();
            self.timer.set(self.until_us.div_ceil(1000));
        }
        ready!(self.timer.poll_elapsed(cx));
        self.is_waiting = false;
        self.until_us = 0;
        Poll::Ready(())
    }

    /// Ready when more may move, with how much of these bytes may be sent then. What was read for the bandwidth of a client is sent without a
    /// wait; a response has a pace of its own, in smaller steps than an endpoint may send.
    pub(super) fn poll_piece(&mut self, cx: &mut Context<'_>, count: usize) -> Poll<usize> {
        let Some(piece_bytes) = self.response.as_ref().map(ResponsePace::piece_bytes) else {
            return Poll::Ready(count);
        };
        ready!(self.poll(cx));
        Poll::Ready(count.min(piece_bytes))
    }

    /// When the present wait is over, in milliseconds; `None` if it does not wait.
    pub(super) fn waits_until_ms(&self) -> Option<u64> {
        self.is_waiting.then(|| self.until_us.div_ceil(1000))
    }
}
