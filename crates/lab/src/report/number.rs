//! Figures for people: three significant digits, then the unit, then the interval.

use crate::record::Verdict;
use crate::stats::{Estimate, ROUNDS_MIN};

/// `1234567.8` as `1,234,568`; three significant digits below 100.
pub(crate) fn plain(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if size >= 100.0 {
        thousands(value)
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 || size == 0.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

/// `1,234,567`.
pub(crate) fn count(count: u64) -> String {
    thousands(count as f64)
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    if value < 0.0 {
        text.push('-');
    }
    for (place, digit) in digits.char_indices() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds in a suitable unit: `87.0 µs`, `1.52 ms`, `3.10 s`.
pub(crate) fn micros(us: f64) -> String {
    let size = us.abs();
    if size < 1e3 {
        format!("{} µs", plain(us))
    } else if size < 1e6 {
        format!("{} ms", plain(us / 1e3))
    } else {
        format!("{} s", plain(us / 1e6))
    }
}

/// A share as per cent.
pub(crate) fn per_cent(share: f64) -> String {
    let per_cent = share * 100.0;
    if per_cent.abs() < 10.0 { format!("{per_cent:.1} %") } else { format!("{per_cent:.0} %") }
}

/// A share as a change, with its sign.
pub(crate) fn change(share: f64) -> String {
    let text = per_cent(share);
    if share > 0.0 { format!("+{text}") } else { text }
}

/// A median with its interval: `12.3 [12.1, 12.6]`, or with the range of the rounds and their number, all in two digits, if there are too few
/// of them for 95 %. The figure of a single round has no interval: see [`of_rounds`].
pub(crate) fn with_interval(estimate: &Estimate, show: fn(f64) -> String) -> String {
    let all = [estimate.median, estimate.low, estimate.high];
    match (estimate.rounds, estimate.is_sure()) {
        (1, _) => of_rounds(estimate.median, 1, show),
        (_, true) => {
            let [median, low, high] = all.map(show);
            format!("{median} [{low}, {high}]")
        }
        (rounds, false) => {
            let [median, low, high] = all.map(|value| in_two_digits(value, show));
            format!("{median} ({low}–{high}, n={rounds})")
        }
    }
}

/// A median without its interval. Few rounds do not show how far the next would differ, so their figure has two digits and a mark: `15,000
/// (n=1)`, `1.5 ms (n=3)`.
pub(crate) fn of_rounds(value: f64, rounds: usize, show: impl Fn(f64) -> String) -> String {
    if rounds < ROUNDS_MIN { format!("{} (n={rounds})", in_two_digits(value, show)) } else { show(value) }
}

/// The same for a metric that may not have been measured, which gives a dash.
pub(crate) fn median(estimate: Option<Estimate>, show: impl Fn(f64) -> String) -> String {
    estimate.map_or("-".to_owned(), |estimate| of_rounds(estimate.median, estimate.rounds, show))
}

/// A figure rounded to two digits, for cells in which several figures share one mark.
pub(crate) fn in_two_digits(value: f64, show: impl Fn(f64) -> String) -> String {
    let coarse: f64 = format!("{value:.1e}").parse().unwrap_or(value);
    without_zeros(&show(coarse))
}

/// Removes the zeros after the decimal point that `show` adds beyond two digits.
fn without_zeros(text: &str) -> String {
    let begin = text.find(|c: char| c.is_ascii_digit()).unwrap_or(text.len());
    let (before, rest) = text.split_at(begin);
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(rest.len());
    let (number, unit) = rest.split_at(end);
    let mut number = number.to_owned();
    let digits =
        |number: &str| number.chars().filter(char::is_ascii_digit).collect::<String>().trim_start_matches('0').len();
    while number.contains('.') && (number.ends_with('.') || (number.ends_with('0') && digits(&number) > 2)) {
        number.pop();
    }
    format!("{before}{number}{unit}")
}

/// A ratio: `×1.23 [1.20, 1.27]`.
pub(crate) fn ratio(estimate: &Estimate) -> String {
    let digits = |value: f64| match value {
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    let text = with_interval(estimate, digits);
    format!("×{text}")
}

/// Verdicts with their names in tables, the most serious last.
const VERDICTS: [(Verdict, &str); 8] = [
    (Verdict::LbSaturated, "lb-saturated"),
    (Verdict::GeneratorSaturated, "generator-saturated"),
    (Verdict::BackendSaturated, "backend-saturated"),
    (Verdict::ConcurrencyLimited, "concurrency-limited"),
    (Verdict::BelowCapacity, "below-capacity"),
    (Verdict::CapBound, "cap-bound"),
    (Verdict::Disturbed, "disturbed"),
    (Verdict::Invalid, "invalid"),
];

pub(crate) fn verdict(verdict: Verdict) -> &'static str {
    VERDICTS.iter().find(|(known, _)| *known == verdict).map_or("", |(_, name)| name)
}

/// The verdict with this name.
pub(crate) fn verdict_of(name: &str) -> Option<Verdict> {
    VERDICTS.iter().find(|(_, known)| *known == name).map(|(verdict, _)| *verdict)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_matter() {
        let check = |value, expect: &str| assert_eq!(plain(value), expect);
        check(1_234_567.8, "1,234,568");
        check(-1234.0, "-1,234");
        check(999.6, "1,000");
        check(100.0, "100");
        check(45.67, "45.7");
        check(4.567, "4.57");
        check(0.0456, "0.046");
        check(0.0, "0.00");
        check(f64::NAN, "-");
    }

    #[test]
    fn times_and_shares() {
        for (us, expect) in [(870.4, "870 µs"), (1_520.0, "1.52 ms"), (3_100_000.0, "3.10 s"), (-12.0, "-12.0 µs")] {
            assert_eq!(micros(us), expect);
        }
        assert_eq!(
            [per_cent(0.0123), per_cent(0.456), change(0.02), change(-0.5)],
            ["1.2 %", "46 %", "+2.0 %", "-50 %"]
        );
    }

    #[test]
    fn an_interval_says_what_it_is_worth() {
        let of = |rounds, confidence| Estimate { median: 10.0, low: 9.0, high: 12.0, rounds, confidence };
        assert_eq!(with_interval(&of(10, 0.97), plain), "10.0 [9.00, 12.0]");
        assert_eq!(with_interval(&of(3, 0.75), plain), "10 (9.0–12, n=3)");
        assert_eq!(of_rounds(14_758.0, 3, plain), "15,000 (n=3)");
        assert_eq!(of_rounds(14_758.0, 6, plain), "14,758");
        assert_eq!(with_interval(&of(1, 0.0), plain), "10 (n=1)");
        let one = |median: f64, show: fn(f64) -> String| with_interval(&Estimate { median, ..of(1, 0.0) }, show);
        assert_eq!(one(14_758.0, plain), "15,000 (n=1)");
        assert_eq!(one(1_523.0, micros), "1.5 ms (n=1)");
        assert_eq!(one(98.76, micros), "99 µs (n=1)");
        assert_eq!(one(0.04567, plain), "0.046 (n=1)");
        assert_eq!(one(0.0, plain), "0.00 (n=1)");
        assert_eq!(ratio(&Estimate { median: 1.234, ..of(1, 0.0) }), "×1.2 (n=1)");
        assert_eq!(ratio(&of(10, 0.97)), "×10.0 [9.00, 12.0]");
    }
}
