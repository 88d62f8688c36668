//! Numbers with units: durations, sizes and percentages.

use std::time::Duration;

use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// The longest duration. A longer one most likely has the wrong unit. The limit also keeps clock arithmetic from
/// overflowing.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Nanoseconds of each unit of time, the smallest first.
const TIMES: &[(&str, u128)] = &[
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
    ("d", 24 * 3600 * 1_000_000_000),
];

/// Bytes of each unit of size. Units with an `i` are powers of 1024 (IEC 80000-13), the others are powers of 1000.
const SIZES: &[(&str, u128)] = &[
    ("B", 1),
    ("kB", 1000),
    ("KB", 1000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
];

/// A duration that may be zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait(pub Duration);

/// A duration above zero. A timeout of zero could only mean "always too late".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positive(pub Duration);

/// Bytes, from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize<const MIN: u64, const MAX: u64>(pub u64);

/// A share, 0.0 to 1.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(pub f64);

/// A duration that may be zero: `30s`, `1m30s`, `0s`.
///
/// # Errors
/// What is wrong with the text, and what would be right.
pub fn parse_wait(text: &str) -> Result<Duration, String> {
    match <Wait as Formed>::parse(text) {
        Ok(Wait(duration)) => Ok(duration),
        Err(wrong) => Err(wrong.to_string()),
    }
}

const DURATION: Form =
    Form { noun: "a duration", example: "30s", pattern: Some(r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$") };

impl Formed for Wait {
    const FORM: Form = DURATION;

    fn parse(text: &str) -> Result<Self, Wrong> {
        let nanos = duration_nanos(text)?;
        let max = DURATION_MAX.as_nanos();
        match u64::try_from(nanos) {
            Ok(nanos) if u128::from(nanos) <= max => Ok(Self(Duration::from_nanos(nanos))),
            _ => Err(Wrong::new(format!("{} is too long", quoted(text))).hint("the longest is 365d")),
        }
    }
}

impl Formed for Positive {
    const FORM: Form = DURATION;

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Wait(duration) = <Wait as Formed>::parse(text)?;
        if duration.is_zero() {
            return Err(Wrong::new(format!("{} would expire at once", quoted(text))).hint("write more than zero"));
        }
        Ok(Self(duration))
    }
}

impl<const MIN: u64, const MAX: u64> Formed for ByteSize<MIN, MAX> {
    const FORM: Form = Form {
        noun: "a size",
        example: "64KiB",
        pattern: Some(r"^[0-9]+(\.[0-9]+)?(B|kB|KB|KiB|MB|MiB|GB|GiB|TB|TiB)$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let bytes = with_unit(text, "a size", SIZES, "B")?;
        match u64::try_from(bytes) {
            Ok(bytes) if (MIN..=MAX).contains(&bytes) => Ok(Self(bytes)),
            _ => {
                let hint = format!("write {} to {}", size_text(MIN), size_text(MAX));
                Err(Wrong::new(format!("{} is out of range", quoted(text))).hint(hint))
            }
        }
    }
}

impl Formed for Percent {
    const FORM: Form = Form { noun: "a percentage", example: "50%", pattern: Some(r"^[0-9]+(\.[0-9]+)?%$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        // In millionths: with fewer than three digits before the point, this is exact to four digits after it.
        let parts = with_unit(text, "a percentage", &[("%", 1_000_000)], "%")?;
        if parts > 100_000_000 {
            return Err(Wrong::new(format!("{} is more than 100%", quoted(text))));
        }
        Ok(Self(parts as f64 / 100_000_000.0))
    }
}

/// One number and its unit, or several of them from the larger unit to the smaller: `1m30s`.
fn duration_nanos(text: &str) -> Result<u128, Wrong> {
    let parts = parts(text);
    let ([_, _, ..], true) = (parts.as_slice(), text.starts_with(|c: char| c.is_ascii_digit())) else {
        return with_unit(text, "a duration", TIMES, "s");
    };
    let mut sum = 0_u128;
    let mut smallest = usize::MAX;
    for part in parts {
        // A wrong duration is quoted whole, because the operator could not find a part of it in the file.
        let not_one = || Wrong::new(format!("{} is not a duration", quoted(text)));
        let nanos = with_unit(part, "a duration", TIMES, "s").map_err(|_| not_one().hint("write it like 1m30s"))?;
        let unit = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let location = TIMES.iter().position(|(name, _)| *name == unit).unwrap_or(usize::MAX);
        if location >= smallest {
            return Err(not_one().hint("write each unit once, larger units first, like 1m30s"));
        }
        smallest = location;
        sum = sum.saturating_add(nanos);
    }
    Ok(sum)
}

/// Splits the text where a number begins after a unit.
fn parts(text: &str) -> Vec<&str> {
    let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let mut parts = Vec::new();
    let mut begin = 0;
    for (at, pair) in text.as_bytes().windows(2).enumerate() {
        if let [before, after] = pair
            && !is_number(*before)
            && is_number(*after)
        {
            parts.extend(text.get(begin..=at));
            begin = at + 1;
        }
    }
    parts.extend(text.get(begin..));
    parts
}

/// Parses a decimal number and its unit, and returns it in the smallest parts of that unit. Finer digits are cut off.
fn with_unit(text: &str, noun: &str, units: &[(&str, u128)], usual: &str) -> Result<u128, Wrong> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let known = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let not_one = || Wrong::new(format!("{} is not {noun}", quoted(text)));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(not_one().hint(format!("write a number and a unit ({})", known())));
    }
    if unit.is_empty() {
        let hint = match units {
            [_] => format!("write {number}{usual}"),
            _ => format!("write {number}{usual}, or another unit ({})", known()),
        };
        return Err(Wrong::new(format!("{} has no unit", quoted(text))).hint(hint));
    }
    let Some((_, parts)) = units.iter().find(|(name, _)| *name == unit) else {
        let hint = match units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)) {
            Some((name, _)) => format!("write {number}{name}"),
            None => format!("the units are {}", known()),
        };
        return Err(not_one().hint(hint));
    };
    // Nine digits after the point are as fine as any unit here.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10u128.pow(fraction.len() as u32);
    let too_large = || Wrong::new(format!("{} is too large", quoted(text)));
    let whole: u128 = whole.parse().map_err(|_| too_large())?;
    let fraction: u128 = fraction.parse().map_err(|_| not_one())?;
    let whole = whole.checked_mul(*parts).ok_or_else(too_large)?;
    whole.checked_add(fraction * parts / scale).ok_or_else(too_large)
}

/// Formats a duration as a file would have it, in the largest unit that gives a whole number. Anything finer than a
/// millisecond is cut off.
pub fn duration_text(duration: Duration) -> String {
    text_in(duration.as_nanos(), TIMES, "0s")
}

/// Formats a size as a file would have it, in the largest power of 1024 that gives a whole number.
pub fn size_text(bytes: u64) -> String {
    let binary: Vec<_> = SIZES.iter().copied().filter(|(name, _)| *name == "B" || name.contains('i')).collect();
    text_in(u128::from(bytes), &binary, "0B")
}

/// Formats a share as a file would have it.
pub fn percent_text(share: f64) -> String {
    // Rounded, because 0.3 * 100.0 is not 30.0.
    format!("{}%", (share * 1e8).round() / 1e6)
}

fn text_in(amount: u128, units: &[(&str, u128)], zero: &str) -> String {
    if amount == 0 {
        return zero.to_owned();
    }
    let whole = units.iter().rev().find(|(_, parts)| amount.is_multiple_of(*parts));
    match whole.or(units.first()) {
        Some((name, parts)) => format!("{}{name}", amount / parts),
        None => zero.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The parsed value, or the error in one line.
    fn check<T: Formed + std::fmt::Debug>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        let found = T::parse(text).map_or_else(|wrong| wrong.to_string(), show);
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn durations() {
        let check = |text, expect| check(text, expect, |Wait(duration)| duration_text(duration));
        check("30s", "30s");
        check("1.5s", "1500ms");
        check("0.25h", "15m");
        check("90m", "90m");
        check("365d", "365d");
        check("0ms", "0s");
        check("30", r#""30" has no unit; write 30s, or another unit (ms, s, m, h, d)"#);
        check("0", r#""0" has no unit; write 0s, or another unit (ms, s, m, h, d)"#);
        check("30S", r#""30S" is not a duration; write 30s"#);
        check("30sec", r#""30sec" is not a duration; the units are ms, s, m, h, d"#);
        check("1m30s", "90s");
        check("1h30m", "90m");
        check("1d12h30m15s500ms", "131415500ms");
        check("1.5m30s", "2m");
        check("30s1m", r#""30s1m" is not a duration; write each unit once, larger units first, like 1m30s"#);
        check("1m1m", r#""1m1m" is not a duration; write each unit once, larger units first, like 1m30s"#);
        check("1m30", r#""1m30" is not a duration; write it like 1m30s"#);
        check("1m30x", r#""1m30x" is not a duration; write it like 1m30s"#);
        check("300d66d", r#""300d66d" is not a duration; write each unit once, larger units first, like 1m30s"#);
        check("365d1s", r#""365d1s" is too long; the longest is 365d"#);
        check("-1s", r#""-1s" is not a duration; write a number and a unit (ms, s, m, h, d)"#);
        check(".5s", r#"".5s" is not a duration; write a number and a unit (ms, s, m, h, d)"#);
        check("1.2.3s", r#""1.2.3s" is not a duration; write a number and a unit (ms, s, m, h, d)"#);
        check("366d", r#""366d" is too long; the longest is 365d"#);
        check(
            "99999999999999999999999999999999999999999d",
            r#""99999999999999999999999999999999999999999d" is too large"#,
        );
        check("٣s", r#""٣s" is not a duration; write a number and a unit (ms, s, m, h, d)"#);
    }

    #[test]
    fn timeouts_are_not_zero() {
        let check = |text, expect| check(text, expect, |Positive(duration)| duration_text(duration));
        check("1ms", "1ms");
        check("0s", r#""0s" would expire at once; write more than zero"#);
    }

    #[test]
    fn sizes() {
        let narrow = |text, expect| check(text, expect, |ByteSize::<1024, 1_048_576>(bytes)| bytes.to_string());
        narrow("1KiB", "1024");
        narrow("1MiB", "1048576");
        narrow("1kB", r#""1kB" is out of range; write 1KiB to 1MiB"#);
        let check = |text, expect| check(text, expect, |ByteSize::<0, { u64::MAX }>(bytes)| bytes.to_string());
        check("512B", "512");
        check("64KiB", "65536");
        check("10MB", "10000000");
        check("5GiB", "5368709120");
        check("1.5kB", "1500");
        check("64", r#""64" has no unit; write 64B, or another unit (B, kB, KB, KiB, MB, MiB, GB, GiB, TB, TiB)"#);
        check("64kib", r#""64kib" is not a size; write 64KiB"#);
        check("99999999TiB", r#""99999999TiB" is out of range; write 0B to 18446744073709551615B"#);
    }

    #[test]
    fn percentages() {
        let check = |text, expect| check(text, expect, |Percent(share)| percent_text(share));
        check("50%", "50%");
        check("0.5%", "0.5%");
        check("30%", "30%");
        check("100%", "100%");
        check("100.1%", r#""100.1%" is more than 100%"#);
        check("50", r#""50" has no unit; write 50%"#);
        check("half", r#""half" is not a percentage; write a number and a unit (%)"#);
    }

    proptest! {
        #![proptest_config(crate::tests::seeded(256))]

        #[test]
        fn what_we_write_we_read(millis in 0u64..365 * 24 * 3600 * 1000, bytes: u64, parts in 0u32..=1_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(<Wait as Formed>::parse(&duration_text(duration)), Ok(Wait(duration)));
            prop_assert_eq!(<ByteSize<0, { u64::MAX }> as Formed>::parse(&size_text(bytes)), Ok(ByteSize(bytes)));
            let share = f64::from(parts) / 1e6;
            prop_assert_eq!(<Percent as Formed>::parse(&percent_text(share)), Ok(Percent(share)));
        }

        #[test]
        fn no_text_panics(text in "[0-9.]{0,50}[a-zA-Z%µ]{0,4}|.*") {
            let _ = <Wait as Formed>::parse(&text);
            let _ = <ByteSize<0, 1> as Formed>::parse(&text);
            let _ = <Percent as Formed>::parse(&text);
        }
    }
}
