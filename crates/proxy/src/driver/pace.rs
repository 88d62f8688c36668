//! Makes a connection wait for the bandwidth of its client (`policy/bandwidth`).

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use net::clock;
use net::timer::Timer;
use telemetry::ListenerCounters;

use crate::exchange::transfer::Transfer;
use crate::policy::bandwidth::{Direction, Share};

/// A shorter wait is not worth a timer. It is not lost: the next wait is longer.
const WAIT_US_MIN: u64 = 1000;

/// The pace of one direction of an exchange.
pub(super) struct Pace {
    share: Share,
    timer: Timer,
    counters: Arc<ListenerCounters>,
    /// Bytes of the message that were charged to the client.
    charged: u64,
    /// When more may move, in microseconds.
    until_us: u64,
    is_waiting: bool,
}

impl Pace {
    /// `charged`: bytes of the message that were charged before.
    pub(super) fn new(share: Share, timer: Timer, counters: Arc<ListenerCounters>, charged: u64) -> Self {
        let now_us = clock::now_us();
        // What other messages of the client have moved may be too much for now.
        let until_us = now_us.saturating_add(share.charge(0, now_us));
        Self { share, timer, counters, charged, until_us, is_waiting: false }
    }

    /// Records what has moved of the message, on the side of the client.
    pub(super) fn note(&mut self, transfer: &Transfer) {
        let moved = match self.share.direction {
            Direction::Request => transfer.received(),
            Direction::Response => transfer.sent(),
        };
        let more = moved.saturating_sub(self.charged);
        if more > 0 {
            self.charged = moved;
            let now_us = clock::now_us();
            self.until_us = now_us.saturating_add(self.share.charge(more, now_us));
        }
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

    /// When the present wait is over, in milliseconds; `None` if it does not wait.
    pub(super) fn waits_until_ms(&self) -> Option<u64> {
        self.is_waiting.then(|| self.until_us.div_ceil(1000))
    }
}
