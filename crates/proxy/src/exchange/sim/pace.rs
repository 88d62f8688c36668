//! Responses whose bandwidth is limited, in place of `driver::pace`.

use model::ResponseBandwidth;

use super::drive::Upstream;
use super::pump::Side;
use super::{Event, World};
use crate::exchange::transfer::Transfer;
use crate::exchange::{Exchange, TransferError};

/// The head, and what the framing of a piece takes.
const HEAD_BYTES_MAX: u64 = 2_000;

impl World {
    /// Moves the response as far as its bandwidth allows, and wakes the client when it allows more.
    pub(super) fn pump_response(
        &mut self,
        index: usize,
        exchange: &mut Exchange,
        upstream: &mut Upstream,
    ) -> Result<(), TransferError> {
        let (from, to) = (upstream.side(), Side::Client(index));
        let Some(pace) = exchange.response_pace().copied() else {
            return self.pump(index, exchange.download(), &mut upstream.input, from, to).map(drop);
        };
        let now_us = self.now_us;
        self.clients[index].paced_from_us.get_or_insert(now_us);
        loop {
            exchange.set_paced(None);
            let Some(sent) = exchange.download().map(|download| download.sent()) else { return Ok(()) };
            let due_us = pace.due_us(sent);
            if due_us > now_us {
                exchange.set_paced(Some(due_us.div_ceil(1000)));
                if self.clients[index].paced_until_us != due_us {
                    self.clients[index].paced_until_us = due_us;
                    self.at(due_us, Event::Client(index));
                }
                return Ok(());
            }
            let room = self.clients[index].room;
            let piece = room.min(pace.piece_bytes());
            self.clients[index].room = piece;
            let pumped = self.pump(index, exchange.download(), &mut upstream.input, from, to);
            self.clients[index].room += room - piece;
            let sent_now = exchange.download().map(|download: &mut Transfer| download.sent());
            self.check_pace(index, sent_now.unwrap_or(sent), pace.piece_bytes() as u64);
            pumped?;
            if sent_now.is_none_or(|sent_now| sent_now == sent) {
                return Ok(());
            }
        }
    }

    /// No response is ahead of its bandwidth by more than a piece.
    fn check_pace(&self, index: usize, sent: u64, piece: u64) {
        let (seed, client) = (self.seed, &self.clients[index]);
        let Some(model::Protocol::Http(http)) = client.view.as_ref().map(|view| &view.plan.policy.protocol) else {
            return;
        };
        let limit = http.routes[0].policy.response_bandwidth.expect("a limit");
        let ResponseBandwidth { bytes, per, after } = limit;
        let elapsed_us = self.now_us - client.paced_from_us.unwrap_or(self.now_us);
        let allowed = after + bytes * elapsed_us / per.as_micros() as u64 + piece + HEAD_BYTES_MAX;
        assert!(sent <= allowed, "seed {seed}: client {index} got {sent} bytes within {elapsed_us} us, not {allowed}");
    }
}
