//! The times in access logs and HAR files.

/// A moment that a file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Nanoseconds since 1970, UTC. Times without a zone are taken as UTC: only differences matter.
    pub ns: u64,
    /// The file gives seconds and no fraction.
    pub is_whole_second: bool,
}

const SECOND_NS: u64 = 1_000_000_000;

/// Later years do not fit into nanoseconds of 64 bits.
const YEARS: std::ops::RangeInclusive<u64> = 1970..=2500;

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

impl Stamp {
    fn new(seconds: u64, fraction_ns: Option<u64>) -> Self {
        Self { ns: seconds * SECOND_NS + fraction_ns.unwrap_or(0), is_whole_second: fraction_ns.is_none() }
    }
}

/// `24/Nov/2026:10:00:00 +0100` of Apache's Common Log Format, and `24/Nov/2026:10:00:00.655` of HAProxy.
pub(super) fn clf(text: &str) -> Option<Stamp> {
    let (date, clock) = text.split_once(':')?;
    let mut parts = date.split('/');
    let (day, month, year) = (parts.next()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let (clock, zone) = clock.split_once(' ').unwrap_or((clock, ""));
    moment((number(year)?, month, number(day)?), clock, zone)
}

/// `Tue, 24 Nov 2026 10:00:00 GMT` (RFC 9110 section 5.6.7), and `Tue, 24-Nov-26 10:00:00 GMT` of older cookies. A year that has no place in a
/// [`Stamp`] becomes the first or the last one that has.
pub fn http_date(text: &str) -> Option<Stamp> {
    let (_, date) = text.split_once(',')?;
    let mut parts = date.split([' ', '-']).filter(|part| !part.is_empty());
    let (day, month, year, clock) = (parts.next()?, parts.next()?, number(parts.next()?)?, parts.next()?);
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(month))? as u64 + 1;
    // RFC 6265 section 5.1.1.
    let year = match year {
        0..=69 => year + 2000,
        70..=99 => year + 1900,
        year => year.clamp(*YEARS.start(), *YEARS.end()),
    };
    moment((year, month, number(day)?), clock, "")
}

/// `2026-11-24T10:00:00.123+01:00` (RFC 3339), also with a space instead of the `T`.
pub(super) fn iso(text: &str) -> Option<Stamp> {
    let (date, clock) = text.split_once(['T', 't', ' '])?;
    let mut parts = date.split('-');
    let date = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    let zone_at = clock.find(['Z', 'z', '+', '-', ' ']).unwrap_or(clock.len());
    let (clock, zone) = clock.split_at(zone_at);
    moment(date, clock, zone.trim())
}

/// Seconds since 1970, or milliseconds, microseconds or nanoseconds: a number of each is in another range for the years in use.
pub(super) fn unix(number: f64) -> Option<Stamp> {
    let units = [(1e11, 1e9), (1e14, 1e6), (1e17, 1e3), (1.6e19, 1.0)];
    let (_, ns) = units.into_iter().find(|(less_than, _)| number < *less_than).filter(|_| number >= 0.0)?;
    // Seconds without a fraction are those of a coarse clock.
    // A number with a fraction has microseconds: the digits behind are noise.
    let ns_of = (number * ns / 1e3).round() as u64 * 1_000;
    Some(Stamp { ns: ns_of, is_whole_second: ns == 1e9 && number.fract() == 0.0 })
}

fn moment((year, month, day): (u64, u64, u64), clock: &str, zone: &str) -> Option<Stamp> {
    let (clock, fraction) = match clock.split_once(['.', ',']) {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (clock, None),
    };
    let mut parts = clock.split(':');
    let (hour, minute, second) = (number(parts.next()?)?, number(parts.next()?)?, number(parts.next()?)?);
    let is_date = YEARS.contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    // A leap second is 60.
    if !is_date || hour > 23 || minute > 59 || second > 60 || parts.next().is_some() {
        return None;
    }
    let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    let seconds = seconds.checked_add_signed(-offset(zone)?)?;
    let fraction_ns = match fraction {
        Some(digits) => Some(nanoseconds(digits)?),
        None => None,
    };
    Some(Stamp::new(seconds, fraction_ns))
}

/// Digits behind the point.
fn nanoseconds(digits: &str) -> Option<u64> {
    let digits = digits.get(..9).unwrap_or(digits);
    let scale = 10_u64.pow(9_u32.checked_sub(u32::try_from(digits.len()).ok()?)?);
    Some(number(digits)? * scale)
}

/// Seconds east of UTC: of `+0100`, `+01:00`, `Z`, or nothing.
fn offset(zone: &str) -> Option<i64> {
    let Some(sign) = zone.chars().next().filter(|sign| !matches!(sign, 'Z' | 'z')) else { return Some(0) };
    let digits: String = zone.chars().skip(1).filter(|c| *c != ':').collect();
    let (hours, minutes) = (number(digits.get(..2)?)?, number(digits.get(2..)?)?);
    let seconds = i64::try_from(hours * 3_600 + minutes * 60).ok().filter(|seconds| *seconds <= 86_400)?;
    match sign {
        '+' => Some(seconds),
        '-' => Some(-seconds),
        _ => None,
    }
}

/// A number of at most nine digits, without a sign.
fn number(text: &str) -> Option<u64> {
    let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { text.parse().ok() } else { None }
}

/// Days from 1970 to a date of the Gregorian calendar. The year begins in March, so that the leap day is its last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let of_year = (153 * month + 2) / 5 + day - 1;
    let all = 365 * year + year / 4 - year / 100 + year / 400 + of_year;
    // From March of the year 0 to 1970.
    all - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_every_form() {
        let check = |found: Option<Stamp>, ms: u64, is_whole_second: bool| {
            assert_eq!(found, Some(Stamp { ns: ms * 1_000_000, is_whole_second }));
        };
        // The seconds are those of `date -u -d`.
        check(clf("24/Nov/2026:10:00:00 +0000"), 1_795_514_400_000, true);
        check(clf("24/Nov/2026:10:00:00 -0130"), 1_795_519_800_000, true);
        check(clf("06/Feb/2009:12:14:14.655"), 1_233_922_454_655, false);
        check(clf("01/Jan/1970:01:00:00 +0100"), 0, true);
        check(http_date("Tue, 24 Nov 2026 10:00:00 GMT"), 1_795_514_400_000, true);
        check(http_date("tue, 24-nov-26 10:00:00 gmt"), 1_795_514_400_000, true);
        check(http_date("Thu, 01-Jan-1970 00:00:01 GMT"), 1_000, true);
        check(http_date("Fri, 31 Dec 9999 23:59:59 GMT"), 16_756_761_599_000, true);
        check(http_date("Mon, 01 Jan 1601 00:00:00 GMT"), 0, true);
        check(iso("2024-02-29T23:59:59.5Z"), 1_709_251_199_500, false);
        check(iso("2026-11-24T10:00:00.123+01:00"), 1_795_510_800_123, false);
        check(iso("2026-11-24 10:00:00"), 1_795_514_400_000, true);
        check(unix(1_795_514_400.25), 1_795_514_400_250, false);
        check(unix(1_795_514_400.0), 1_795_514_400_000, true);
        check(unix(1_795_514_400_123.0), 1_795_514_400_123, false);
    }

    #[test]
    fn what_is_no_time() {
        for text in [
            "",
            "x",
            "24/Nov/2026",
            "24/Nov/2026:10:00",
            "24/Foo/2026:10:00:00 +0000",
            "24/Nov/2026:24:00:00 +0000",
            "24/Nov/1969:10:00:00 +0000",
            "24/Nov/9999:10:00:00 +0000",
            "01/Jan/1970:00:00:00 +0100",
            "24/Nov/2026:10:00:00 +9999",
            "24/Nov/2026:10:00:00 \u{e9}100",
            "24/Nov/2026:10:00:00.\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
            "-1/Nov/2026:10:00:00 +0000",
            "99999999999999999999/Nov/2026:10:00:00 +0000",
        ] {
            assert_eq!(clf(text), None, "{text}");
        }
        assert_eq!((iso("2026-13-01T00:00:00Z"), iso("2026-11-24T10:00:00 x")), (None, None));
        assert_eq!((unix(-1.0), unix(f64::NAN), unix(f64::INFINITY), unix(1e30)), (None, None, None, None));
    }
}
