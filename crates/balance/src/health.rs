//! Turns single probes into a verdict, and schedules probes.

use crate::rng::Rng;

/// The first probe of an endpoint is sent within this time, however long the interval is, because until then its health is an assumption.
pub const FIRST_PROBE_WITHIN_MS_MAX: u64 = 1000;

/// The active probes of one endpoint: how many results in a row make a verdict.
///
/// When the process starts, endpoints count as healthy, because otherwise nothing would be served until the first probes have ended. This
/// is an assumption and not a verdict, so the first result decides alone, whichever it is. Only after that do `unhealthy_after` and
/// `healthy_after` count.
#[derive(Clone, Debug)]
pub struct HealthMachine {
    healthy: bool,
    /// Results in a row that contradict `healthy`; below the number that would change it.
    against: u32,
    assumed: bool,
    unhealthy_after: u32,
    healthy_after: u32,
}

impl HealthMachine {
    /// `initially` is the assumption until the first result.
    pub fn new(check: &model::HealthCheck, initially: bool) -> Self {
        Self {
            healthy: initially,
            against: 0,
            assumed: true,
            unhealthy_after: check.unhealthy_after.max(1),
            healthy_after: check.healthy_after.max(1),
        }
    }

    /// Records that a probe has succeeded or failed. Returns the new verdict if it differs from the last one.
    pub fn on_result(&mut self, success: bool) -> Option<bool> {
        let assumed = std::mem::replace(&mut self.assumed, false);
        if success == self.healthy {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if self.healthy { self.unhealthy_after } else { self.healthy_after };
        if !assumed && self.against < enough {
            return None;
        }
        self.healthy = success;
        self.against = 0;
        Some(success)
    }

    /// The verdict, or the assumption before the first result.
    pub fn healthy(&self) -> bool {
        self.healthy
    }
}

/// The delay of the first probe of an endpoint: spread over the interval, so that a start with a thousand endpoints causes no burst, but
/// within [`FIRST_PROBE_WITHIN_MS_MAX`].
pub fn first_probe_delay_ms(interval_ms: u64, rng: &mut Rng) -> u64 {
    rng.below(interval_ms.min(FIRST_PROBE_WITHIN_MS_MAX))
}

/// The time from the start of one probe to the start of the next: the interval plus or minus a tenth, so that probes from many Steelyards
/// do not synchronise.
pub fn next_probe_delay_ms(interval_ms: u64, rng: &mut Rng) -> u64 {
    let tenth = interval_ms / 10;
    (interval_ms - tenth).saturating_add(rng.below(tenth.saturating_mul(2).saturating_add(1))).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+` is a success, `-` a failure. Expected after each: `.` no change, `U` up, `D` down.
    fn check(initially: bool, results: &str, expect: &str) {
        let mut check = model::HealthCheck::new(model::Probe::Tcp);
        (check.unhealthy_after, check.healthy_after) = (3, 2);
        let mut machine = HealthMachine::new(&check, initially);
        let got: String = results
            .chars()
            .map(|result| match machine.on_result(result == '+') {
                None => '.',
                Some(true) => 'U',
                Some(false) => 'D',
            })
            .collect();
        assert_eq!(got, expect, "{results} from {initially}");
    }

    #[test]
    fn verdicts() {
        // The first result alone decides.
        check(true, "-", "D");
        check(true, "+", ".");
        check(false, "+", "U");
        check(false, "-", ".");
        // After that, three to go down, two to come up, in a row.
        check(true, "+---", "...D");
        check(true, "+--+--+---", ".........D");
        check(true, "-++", "D.U");
        check(true, "-+-+-++", "D.....U");
        check(true, "+-----", "...D..");
        check(true, "+---+++---", "...D.U...D");
    }

    #[test]
    fn delays_stay_in_their_bounds_and_use_them() {
        for (interval, low, high) in [(2000, 1800, 2200), (10, 9, 11), (1, 1, 1), (0, 1, 1)] {
            let mut rng = Rng::new(3);
            let delays: Vec<u64> = (0..20_000).map(|_| next_probe_delay_ms(interval, &mut rng)).collect();
            assert_eq!((delays.iter().min(), delays.iter().max()), (Some(&low), Some(&high)), "{interval}");
        }
        let mut rng = Rng::new(3);
        for (interval, bound) in [(60_000, FIRST_PROBE_WITHIN_MS_MAX), (300, 300)] {
            let latest = (0..20_000).map(|_| first_probe_delay_ms(interval, &mut rng)).max();
            assert_eq!(latest, Some(bound - 1), "{interval}");
        }
        assert_eq!(first_probe_delay_ms(0, &mut rng), 0);
    }
}
