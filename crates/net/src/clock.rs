//! The monotonic clock as plain numbers, which the pure crates take as arguments.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static LAST_US: Cell<u64> = const { Cell::new(0) };
    /// The second since 1970 for which the text was written.
    static LAST_DATE: Cell<(u64, HttpDate)> = const { Cell::new((0, EPOCH)) };
}

/// A date as HTTP writes it (RFC 9110 section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`.
pub type HttpDate = [u8; 29];

const EPOCH: HttpDate = *b"Thu, 01 Jan 1970 00:00:00 GMT";

/// Microseconds of CLOCK_MONOTONIC. A call takes about 25 ns where the kernel serves it without a system call.
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let now_us = time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000;
    LAST_US.set(now_us);
    now_us
}

/// The last result of [`now_us`] on this thread; 0 if there is none. It is for work that runs right after a call of that function, and in
/// large numbers.
pub fn last_us() -> u64 {
    LAST_US.get()
}

/// Milliseconds of the same clock.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// The CPU time that this thread has used, in nanoseconds. This is a system call of some 200 ns.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Milliseconds since 1970, for times that people read. The value may jump.
pub fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// Microseconds since 1970, for times that are compared with those of other hosts. The value may jump.
pub fn unix_us() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// The current date. Each thread formats it once a second.
pub fn http_date() -> HttpDate {
    let now_s = clock_gettime(ClockId::RealtimeCoarse).tv_sec as u64;
    let (second, date) = LAST_DATE.get();
    if second == now_s {
        return date;
    }
    let date = written(now_s);
    LAST_DATE.set((now_s, date));
    date
}

fn written(unix_s: u64) -> HttpDate {
    let (year, month, day) = civil(unix_s / 86_400);
    // 1 January 1970 was a Thursday.
    let weekday = (unix_s / 86_400 + 4) % 7;
    let name = |names: &'static [u8], at: u64| names.chunks(3).nth(at as usize).unwrap_or_default();
    let mut out = EPOCH;
    let mut put = |at: usize, text: &[u8]| {
        out.iter_mut().skip(at).zip(text).for_each(|(to, from)| *to = *from);
    };
    let two = |number: u64| [b'0' + (number / 10 % 10) as u8, b'0' + (number % 10) as u8];
    put(0, name(b"SunMonTueWedThuFriSat", weekday));
    put(5, &two(day));
    put(8, name(b"JanFebMarAprMayJunJulAugSepOctNovDec", month - 1));
    put(12, &two(year / 100));
    put(14, &two(year % 100));
    put(17, &two(unix_s / 3600 % 24));
    put(20, &two(unix_s / 60 % 60));
    put(23, &two(unix_s % 60));
    out
}

/// Converts days since 1970 into year, month and day of the Gregorian calendar; month and day count from 1. Years are counted from March,
/// so that the leap day is the last of its year, and in eras of 400 years, which all have the same length.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let check = |unix_s, expect: &str| assert_eq!(std::str::from_utf8(&written(unix_s)), Ok(expect), "{unix_s}");
        // As `date -u -R -d @N` prints them.
        check(0, "Thu, 01 Jan 1970 00:00:00 GMT");
        check(784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT");
        check(951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT");
        check(951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT");
        check(1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT");
        check(1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT");
        check(4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT");
    }

    #[test]
    fn the_date_is_that_of_now() {
        let before = unix_ms() / 1000;
        let date = http_date();
        let after = unix_ms() / 1000;
        assert!((before..=after).any(|second| written(second) == date));
        assert_eq!(LAST_DATE.get().1, date);
    }
}
