//! `grpc-timeout`: how long the client of a call waits ("gRPC over HTTP2", section "Requests").

use std::time::Duration;

use wire::h1;

/// The most digits of a value.
const DIGITS_MAX: usize = 8;

/// The largest number with this many digits.
const NUMBER_MAX: u64 = 99_999_999;

/// The time in a `grpc-timeout`: one to eight digits and a unit. `None` if the value is invalid, which means no timeout.
pub(crate) fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Writes the rest of a call's time as a `grpc-timeout`, in the finest unit that can hold it. It is rounded down, so that the endpoint does
/// not wait longer than the client. It is never zero, which some endpoints take for no limit.
pub(crate) fn write_timeout(out: &mut Vec<u8>, left_ms: u64) {
    let seconds = left_ms / 1000;
    let (number, unit) = match left_ms {
        0..=NUMBER_MAX => (left_ms.max(1), b'm'),
        _ if seconds <= NUMBER_MAX => (seconds, b'S'),
        _ if seconds / 60 <= NUMBER_MAX => (seconds / 60, b'M'),
        _ => ((seconds / 3600).min(NUMBER_MAX), b'H'),
    };
    h1::decimal(out, number);
    out.push(unit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        let check = |text: &str, expect| assert_eq!(parse_timeout(text.as_bytes()), expect, "{text:?}");
        check("1H", Some(Duration::from_secs(3600)));
        check("2M", Some(Duration::from_secs(120)));
        check("3S", Some(Duration::from_secs(3)));
        check("4m", Some(Duration::from_millis(4)));
        check("5u", Some(Duration::from_micros(5)));
        check("6n", Some(Duration::from_nanos(6)));
        check("0m", Some(Duration::ZERO));
        check("00000001S", Some(Duration::from_secs(1)));
        check("99999999H", Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "S", "1", "1s", "1h", "123456789S", "-1S", "+1S", "1.5S", "1 S", " 1S", "1S "] {
            check(bad, None);
        }
    }

    #[test]
    fn what_is_written_is_read_as_no_more() {
        let check = |left_ms, expect: &str| {
            let mut out = Vec::new();
            write_timeout(&mut out, left_ms);
            assert_eq!(std::str::from_utf8(&out).unwrap(), expect);
            let read = parse_timeout(&out).unwrap();
            assert!(read <= Duration::from_millis(left_ms.max(1)), "{expect}");
        };
        check(0, "1m");
        check(1999, "1999m");
        check(99_999_999, "99999999m");
        check(100_000_999, "100000S");
        check(99_999_999_999, "99999999S");
        check(100_000_000_000, "1666666M");
        check(6_000_000_000_000, "1666666H");
        check(u64::MAX, "99999999H");
    }
}
