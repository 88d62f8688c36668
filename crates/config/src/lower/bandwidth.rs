//! Bandwidths.

use std::time::Duration;

use model::{Bandwidth, ResponseBandwidth};

use super::positive;
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong};
use crate::raw::{RawBandwidth, RawRoute};
use crate::read::Located;
use crate::text::size_text;

/// A narrower bandwidth would keep a response for longer than clients wait.
const BYTES_PER_SECOND_MIN: u64 = 1024;

/// Timers are met a few milliseconds late, and the burst makes up for that.
const BURST_MIN: Duration = Duration::from_millis(100);

/// Returns `None` if there is none, or a required key is missing; the report says so.
pub fn bandwidth(written: &Option<Located<RawBandwidth>>, report: &mut Report) -> Option<Bandwidth> {
    let Located { location, value: raw } = written.as_ref()?;
    let (bytes, per) = (raw.bytes.as_ref()?.value.0, positive(&raw.per, defaults::BANDWIDTH_PER));
    let each_second = each_second(bytes, per, *location, report);
    let least = in_time(bytes, per, BURST_MIN);
    let burst = match &raw.burst {
        Some(burst) => {
            if burst.value.0 < least {
                let wrong =
                    Wrong::new(format!("`burst` is less than what a tenth of a second allows ({})", size_text(least)));
                report.add(burst.location, wrong.hint("raise it: clients would not get the bandwidth"));
            }
            burst.value.0
        }
        None => each_second.max(defaults::BANDWIDTH_BURST_BYTES_MIN),
    };
    Some(Bandwidth { bytes, per, burst })
}

/// How fast each response of a route goes to its client. Returns `None` if there is no limit, or a required key is missing; the report says so.
pub fn of_responses(route: &RawRoute, report: &mut Report) -> Option<ResponseBandwidth> {
    let Located { location, value: raw } = route.response_bandwidth.as_ref()?;
    if route.redirect.is_some() || route.respond.is_some() {
        let wrong = Wrong::new("`response_bandwidth` has no effect: only responses of endpoints are slowed down");
        report.add(*location, wrong.hint("remove it"));
    }
    let (bytes, per) = (raw.bytes.as_ref()?.value.0, positive(&raw.per, defaults::BANDWIDTH_PER));
    let each_second = each_second(bytes, per, *location, report);
    Some(ResponseBandwidth { bytes, per, after: raw.after.as_ref().map_or(each_second, |after| after.value.0) })
}

/// What a bandwidth allows in a second. Reports one that is too narrow.
fn each_second(bytes: u64, per: Duration, location: Location, report: &mut Report) -> u64 {
    let each_second = in_time(bytes, per, Duration::from_secs(1));
    if each_second < BYTES_PER_SECOND_MIN {
        let wrong = Wrong::new(format!("a bandwidth of {} in a second is less than 1KiB", size_text(each_second)));
        report.add(location, wrong.hint("raise `bytes`, or shorten `per`"));
    }
    each_second
}

fn in_time(bytes: u64, per: Duration, time: Duration) -> u64 {
    let bytes = u128::from(bytes) * time.as_nanos() / per.as_nanos().max(1);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
