//! The stage at which the body of a request is held back ([`Action::HoldBody`]): the beginning of it for a service that is asked about the
//! request (`authorize`), or all of it (`body`).

use std::time::Duration;

use super::authorize::Authorizing;
use super::body::Collecting;
use super::min_rate::MinRateTimer;
use super::*;
use crate::request_body::Room;

/// What is held back has room for this part of it in addition, and at least for [`STEP_BYTES_MIN`]: each byte of a large body is copied some eight
/// times in the worst case, and large vectors are moved by the kernel without a copy.
const STEP_PART: usize = 8;
const STEP_BYTES_MIN: usize = 4 * 1024;

/// What a body is held back for.
pub(crate) enum Holding {
    /// A service has to allow the request, and gets the body.
    Authorization(Box<Authorizing>),
    /// An endpoint gets all of it at once.
    Endpoint(Collecting),
}

/// The beginning of a request's body that was held back.
pub(crate) struct HeldBody {
    pub(super) data: Vec<u8>,
    pub(super) bytes_max: usize,
    rate_timer: MinRateTimer,
    /// The worker's room for it, if it counts there.
    room: Option<Room>,
}

impl HeldBody {
    pub(super) fn new(bytes_max: usize, received: u64, room: Option<Room>) -> Self {
        Self { data: Vec::new(), bytes_max, rate_timer: MinRateTimer::new(received), room }
    }

    /// Whether there is room for what has arrived.
    fn has_room(&mut self) -> bool {
        let bytes = self.data.capacity();
        self.room.as_mut().is_none_or(|room| room.grow(bytes))
    }

    /// Adds a piece to what was held back. A vector would grow by doubling, and could hold half of a worker's room for nothing.
    pub(crate) fn add(data: &mut Vec<u8>, piece: &[u8]) {
        let needed = data.len() + piece.len();
        if needed > data.capacity() {
            let step = (needed / STEP_PART).max(STEP_BYTES_MIN);
            data.reserve_exact(piece.len() + step);
        }
        data.extend_from_slice(piece);
    }

    pub(super) fn take_room(&mut self) -> Option<Room> {
        self.room.take()
    }
}

impl Holding {
    /// The index of the route in the listener.
    fn number(&self) -> usize {
        match self {
            Self::Authorization(authorizing) => authorizing.number,
            Self::Endpoint(collecting) => collecting.number,
        }
    }
}

impl Exchange {
    /// Begins to hold back the body, which `upload` reads.
    pub(super) fn hold(&mut self, env: &Env<'_>, held: HeldBody, holding: Holding) {
        self.held = Some(Box::new(held));
        let number = holding.number();
        self.phase = Phase::HoldBody(Box::new(holding));
        self.deadline_ms = Some(self.hold_until_ms(env, number));
    }

    /// How long the client may be silent while its body is held back.
    fn hold_until_ms(&mut self, env: &Env<'_>, number: usize) -> u64 {
        let ends_ms = env.route(number).and_then(|route| self.ends_ms(route)).unwrap_or(u64::MAX);
        let (limits, now_ms, received) = (&env.http.limits, env.now_ms(), self.upload.received());
        let Some(HeldBody { rate_timer, .. }) = self.held.as_deref_mut() else { return now_ms };
        // A client that has to wait for its bandwidth is not slow.
        let paced_ms = self.paced_until_ms.map(|until_ms| until_ms.saturating_sub(now_ms));
        let waits_for_client = paced_ms.is_none();
        let stall_timeout = limits.stall_timeout.saturating_add(Duration::from_millis(paced_ms.unwrap_or_default()));
        let wait_ms = rate_timer.wait_ms(limits, limits.min_rate, stall_timeout, now_ms, received, waits_for_client);
        now_ms.saturating_add(wait_ms).min(ends_ms)
    }

    /// What arrives of the body, where to put it, and how much of it. Only with [`Action::HoldBody`].
    pub(crate) fn held(&mut self) -> Option<(&mut Transfer, &mut Vec<u8>, usize)> {
        let HeldBody { data, bytes_max, .. } = self.held.as_deref_mut()?;
        Some((&mut self.upload, data, *bytes_max))
    }

    /// Whether the client waits for a 100 before it sends its body. The caller sends it.
    pub(crate) fn take_expectation(&mut self) -> bool {
        std::mem::take(&mut self.request.head.expect_continue)
    }

    /// More of the body was held back. `held`: `Some(true)` if that was all of it, `Some(false)` if there is more than is held back.
    pub(crate) fn handle_held(&mut self, env: &Env<'_>, held: Result<Option<bool>, TransferError>) {
        let Phase::HoldBody(holding) = &self.phase else { return };
        let number = holding.number();
        if !self.held.as_deref_mut().is_some_and(HeldBody::has_room) {
            return self.fail(env, Error::internal(Reason::BuffersFull));
        }
        let is_whole = match held {
            Err(failure) => return self.fail(env, failure.of_request()),
            Ok(Some(is_whole)) => is_whole || faults::is_injected(InjectedFault::BuffersTooMuch),
            Ok(None) => {
                self.deadline_ms = Some(self.hold_until_ms(env, number));
                return;
            }
        };
        let Phase::HoldBody(holding) = std::mem::take(&mut self.phase) else { return };
        match *holding {
            Holding::Authorization(authorizing) if is_whole || authorizing.takes_a_part() => {
                self.ask_for_authorization(env, authorizing);
            }
            Holding::Endpoint(collecting) if is_whole => self.collected(env, collecting),
            Holding::Authorization(_) | Holding::Endpoint(_) => self.fail(env, Error::downstream(Reason::BodyTooLarge)),
        }
    }

    /// The wait for the body has taken too long.
    pub(super) fn handle_hold_timeout(&mut self, env: &Env<'_>) {
        let Phase::HoldBody(holding) = &self.phase else { return };
        let ends_ms = env.route(holding.number()).and_then(|route| self.ends_ms(route));
        let is_too_slow = self.held.as_ref().is_some_and(|held| held.rate_timer.is_over(env.now_ms()));
        let timeout = match ends_ms {
            Some(ends_ms) if ends_ms <= env.now_ms() => Error::internal(Reason::RequestTimeout),
            _ if is_too_slow => Error::downstream(Reason::BodyTooSlow),
            _ => Error::downstream(Reason::BodyTimeout),
        };
        self.fail(env, timeout);
    }
}
