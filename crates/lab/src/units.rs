//! Durations, sizes and addresses on the command line.

use std::net::SocketAddr;
use std::time::Duration;

/// Parses `200ms`, `1.5s`, `2m`, `250us`: a number and a unit, or several, larger units first, such as `1m30s`. For clap.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (mut rest, mut seconds, mut unit_before) = (text, 0.0, f64::INFINITY);
    loop {
        let (number, behind) = split(rest);
        let unit_ends = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_ends);
        let seconds_per_unit = match unit {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err(format!("a duration needs a unit: write {text}s or {text}ms")),
            _ => return Err(format!("unknown unit {unit:?}; use us, ms, s, m or h")),
        };
        if seconds_per_unit >= unit_before {
            return Err(format!("{text:?} is not a duration; write larger units first, like 1m30s"));
        }
        let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
        seconds += number * seconds_per_unit;
        if behind.is_empty() {
            return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
        }
        (rest, unit_before) = (behind, seconds_per_unit);
    }
}

/// Parses `18`, `64KiB`, `1.5GiB`, `10kB` to a number of bytes, for clap.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let bytes_per_unit: u64 = match unit {
        "" | "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(format!("unknown unit {unit:?}; use B, kB, MB, GB, KiB, MiB or GiB")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(bytes_per_unit).ok_or_else(|| format!("{text} is more than 2^64 bytes"));
    }
    let fraction: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    let bytes = fraction * bytes_per_unit as f64;
    // 2^53: above it an f64 no longer represents every whole number.
    if !(0.0..9_007_199_254_740_992.0).contains(&bytes) {
        return Err(format!("{text} is not a size"));
    }
    Ok(bytes as u64)
}

/// Parses `127.0.0.1:9001`, `[::1]:9001`, or `:9001` for every IPv4 address of the host, for clap.
pub(crate) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let whole = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    whole.parse().map_err(|_| format!("{text:?} is not an address and port; write it like 127.0.0.1:9001 or :9001"))
}

fn split(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(at)
}

/// A share as in `3%` or `0.5`.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.strip_suffix('%').unwrap_or(text).trim().parse().map_err(|_| format!("{text:?} is not a percentage"))?;
    if (0.0..=1000.0).contains(&number) {
        Ok(number / 100.0)
    } else {
        Err("write a percentage from 0 to 1000 %".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: PartialEq + std::fmt::Debug>(parse: fn(&str) -> Result<T, String>, input: &str, expect: Option<T>) {
        assert_eq!(parse(input).ok(), expect, "{input:?}");
    }

    #[test]
    fn durations() {
        check(duration, "200ms", Some(Duration::from_millis(200)));
        check(duration, "1.5s", Some(Duration::from_millis(1500)));
        check(duration, "250us", Some(Duration::from_micros(250)));
        check(duration, "2m", Some(Duration::from_secs(120)));
        check(duration, "1m30s", Some(Duration::from_secs(90)));
        check(duration, "1h0.5m10s", Some(Duration::from_secs(3640)));
        for bad in [
            "",
            "5",
            "s",
            "5 s",
            "-1s",
            "1.2.3s",
            "5days",
            "1e9s",
            "30s1m",
            "1s1s",
            "1m30",
            "1m30x",
            "99999999999999999999999h",
        ] {
            check(duration, bad, None);
        }
    }

    #[test]
    fn sizes() {
        check(size, "18", Some(18));
        check(size, "64KiB", Some(65_536));
        check(size, "10kB", Some(10_000));
        check(size, "1.5GiB", Some(1_610_612_736));
        check(size, "18446744073709551615", Some(u64::MAX));
        for bad in ["", "KiB", "-1", "1K", "18446744073709551615KiB", "1.5.5MB", "99999999999999999999.5GB"] {
            check(size, bad, None);
        }
    }

    #[test]
    fn listen_addresses() {
        check(listen_address, ":9001", Some(([0, 0, 0, 0], 9001).into()));
        check(listen_address, "127.0.0.1:0", Some(([127, 0, 0, 1], 0).into()));
        for bad in ["9001", "localhost:9001", ":", ":70000"] {
            check(listen_address, bad, None);
        }
    }

    #[test]
    fn percentages() {
        for (text, expect) in [("3%", Some(0.03)), ("0.5", Some(0.005)), ("-1%", None), ("x", None)] {
            assert_eq!(percent(text).ok(), expect, "{text}");
        }
    }
}
