//! How an origin behaves apart from its answers: slowly, not at all for a while, or with use of CPU time.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clap::Args;

use crate::alarm::Alarms;
use crate::load::burn;
use crate::percentiles::Percentiles;
use crate::stats::Rng;
use crate::units;

/// The arguments that all origins share.
#[derive(Clone, Debug, Default, Args)]
pub struct MannerArgs {
    /// Time before each answer, by percentile, as in 50=5ms,99=10ms, with a straight line between them
    #[arg(long, value_name = "P=TIME,...", value_parser = Percentiles::exact)]
    pub delay_percentiles: Option<Percentiles>,

    /// Answer nothing for this long, once. How a load handles that distinguishes closed loops from open ones
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub stall: Option<Duration>,

    /// When the stall begins, counted from the first request
    #[arg(long, value_name = "TIME", value_parser = units::duration, requires = "stall")]
    pub stall_after: Option<Duration>,

    /// CPU time to use for each answer, for an origin that saturates on purpose
    #[arg(long, value_name = "TIME", value_parser = units::duration, hide = true)]
    pub work: Option<Duration>,

    /// Address at which to report as JSON, over HTTP, what was served so far; not reported by default
    #[arg(long, value_name = "ADDR", value_parser = units::listen_address)]
    pub stats: Option<SocketAddr>,
}

/// The manner in use.
#[derive(Debug, Default)]
pub(super) struct Manner {
    delay: Delay,
    /// When it begins, counted from the first request, and how long it lasts.
    stall: Option<(Duration, Duration)>,
    work: Duration,
    first_request: OnceLock<Instant>,
}

#[derive(Debug, Default)]
enum Delay {
    #[default]
    None,
    Fixed(Duration),
    Drawn(Percentiles),
}

impl Manner {
    /// `delay` is a single duration; percentiles take precedence over it.
    pub(super) fn new(delay: Option<Duration>, args: &MannerArgs) -> Self {
        let delay = match (&args.delay_percentiles, delay) {
            (Some(percentiles), _) => Delay::Drawn(percentiles.clone()),
            (None, Some(delay)) => Delay::Fixed(delay),
            (None, None) => Delay::None,
        };
        Self {
            delay,
            stall: args.stall.map(|length| (args.stall_after.unwrap_or_default(), length)),
            work: args.work.unwrap_or_default(),
            first_request: OnceLock::new(),
        }
    }

    /// The time until which the answer to a request that arrives now must wait, if the request itself asks for a wait of `asked`; `None`
    /// for no wait. Uses the CPU time that each answer costs.
    pub(super) fn wait(&self, asked: Duration, rng: &mut Rng) -> Option<Instant> {
        burn(self.work);
        let delay = asked
            + match &self.delay {
                Delay::None => Duration::ZERO,
                Delay::Fixed(delay) => *delay,
                Delay::Drawn(percentiles) => percentiles.draw(rng),
            };
        if delay.is_zero() && self.stall.is_none() {
            return None;
        }
        let now = Instant::now();
        let answer = now + delay;
        let stalled = self.stall.and_then(|(after, length)| {
            let begin = *self.first_request.get_or_init(|| now) + after;
            let end = begin + length;
            (answer >= begin && answer < end).then_some(end)
        });
        stalled.or(Some(answer)).filter(|&until| until > now)
    }

    /// Waits until the time that [`Manner::wait`] returns.
    pub(super) async fn hold(&self, asked: Duration, rng: &mut Rng, alarms: &Alarms) {
        if let Some(until) = self.wait(asked, rng) {
            alarms.sleep_until(until).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[track_caller]
    fn check(delay: Option<Duration>, args: &MannerArgs, asked: Duration, expect: Option<Duration>) {
        let manner = Manner::new(delay, args);
        let before = Instant::now();
        let until = manner.wait(asked, &mut Rng::new(1));
        let after = Instant::now();
        match (until, expect) {
            (None, None) => {}
            (Some(until), Some(wait)) => assert!(until >= before + wait && until <= after + wait, "{until:?}"),
            _ => panic!("{until:?} instead of {expect:?}"),
        }
    }

    #[test]
    fn waits() {
        let none = MannerArgs::default();
        check(None, &none, Duration::ZERO, None);
        check(Some(SECOND), &none, Duration::ZERO, Some(SECOND));
        check(Some(SECOND), &none, SECOND, Some(SECOND * 2));
        let drawn = MannerArgs { delay_percentiles: Percentiles::exact("100=3s").ok(), ..none.clone() };
        check(Some(SECOND), &drawn, Duration::ZERO, Some(SECOND * 3));
        let stalled = MannerArgs { stall: Some(SECOND * 5), ..none.clone() };
        check(None, &stalled, Duration::ZERO, Some(SECOND * 5));
        check(Some(SECOND), &stalled, Duration::ZERO, Some(SECOND * 5));
        check(Some(SECOND * 6), &stalled, Duration::ZERO, Some(SECOND * 6));
        let later = MannerArgs { stall_after: Some(SECOND), ..stalled };
        check(None, &later, Duration::ZERO, None);
        check(None, &later, SECOND, Some(SECOND * 6));
    }
}
