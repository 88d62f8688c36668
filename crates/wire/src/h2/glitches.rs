//! The budget for things that cost work and achieve nothing: floods of frames, each of which is valid.
//!
//! Rapid reset (CVE-2023-44487), made-you-reset (CVE-2025-8671), PING, SETTINGS and PRIORITY floods, empty DATA, and errors that each end
//! one stream all use one budget, so mixing them gains nothing. Real work pays back. So does time, slowly: a connection that lives for
//! months with a PING every ten seconds never runs out.

use super::error::{Fault, Reason};

/// The things that use the budget.
#[derive(Clone, Copy, Debug)]
pub(super) enum Glitch {
    /// A frame of an unknown type, PRIORITY, WINDOW_UPDATE, an acknowledgement, or something for a stream that is over.
    Idle,
    /// PING. Clients that measure the bandwidth (gRPC) send one with every second piece of DATA.
    Ping,
    /// A stream that its client cancels before it was answered, or that is beyond the limit.
    Reset,
    /// An informational response. An endpoint may send several, but not hundreds.
    Interim,
    /// DATA of no bytes that does not end a stream, or a CONTINUATION of no bytes.
    Empty,
    /// SETTINGS.
    Settings,
    /// An error that ends one stream, because the other side makes us reset it.
    StreamError,
}

impl Glitch {
    fn cost(self) -> u32 {
        match self {
            Self::Idle => 1,
            Self::Ping => 2,
            Self::Reset | Self::Empty | Self::Interim => 4,
            Self::Settings => 10,
            Self::StreamError => 20,
        }
    }
}

/// Paid back for a request and its response that both completed.
const MESSAGE_PAYS: u32 = 4;
/// Paid back for a piece of DATA, received or sent, in addition to one for each KiB. A reader may open two windows for every few KiB.
const DATA_PAYS: u32 = 2;
/// Paid back for each tenth of a second.
const TENTH_SECOND_PAYS: u64 = 10;

#[derive(Debug)]
pub(super) struct Glitches {
    /// `0 <= left <= max`.
    left: u32,
    max: u32,
    /// When time last paid back, in tenths of a second.
    tenth: u64,
}

impl Glitches {
    pub(super) fn new(max: u32) -> Self {
        Self { left: max, max, tenth: 0 }
    }

    pub(super) fn at(&mut self, now_ms: u64) {
        let tenth = now_ms / 100;
        if tenth > self.tenth {
            let paid = (tenth - self.tenth).saturating_mul(TENTH_SECOND_PAYS).min(u64::from(self.max));
            self.pay(paid as u32);
            self.tenth = tenth;
        }
    }

    pub(super) fn charge(&mut self, glitch: Glitch) -> Result<(), Fault> {
        self.left = self.left.checked_sub(glitch.cost()).ok_or(Fault::connection(Reason::Glitches))?;
        Ok(())
    }

    pub(super) fn message(&mut self) {
        self.pay(MESSAGE_PAYS);
    }

    pub(super) fn data(&mut self, bytes: u32) {
        self.pay(DATA_PAYS + bytes / 1024);
    }

    fn pay(&mut self, amount: u32) {
        self.left = self.left.saturating_add(amount).min(self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_and_paid_back() {
        let mut budget = Glitches::new(100);
        let flood = |budget: &mut Glitches, glitch| (0..1000).take_while(|_| budget.charge(glitch).is_ok()).count();
        assert_eq!(flood(&mut budget, Glitch::Reset), 25);
        assert_eq!(flood(&mut budget, Glitch::Idle), 0);
        budget.message();
        assert_eq!(flood(&mut budget, Glitch::Ping), 2);
        budget.data(1023);
        assert_eq!(flood(&mut budget, Glitch::Idle), 2);
        budget.at(99);
        assert_eq!(flood(&mut budget, Glitch::Idle), 0);
        budget.at(100);
        assert_eq!(flood(&mut budget, Glitch::Idle), 10);
        budget.at(u64::MAX);
        assert_eq!(flood(&mut budget, Glitch::StreamError), 5);
        // Time that goes back pays nothing.
        budget.at(0);
        assert_eq!(flood(&mut budget, Glitch::Idle), 0);
    }
}
