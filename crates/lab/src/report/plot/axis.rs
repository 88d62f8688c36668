//! An axis: it maps values to positions, and places its ticks.

use crate::report::number;

/// How an axis scales its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::report) enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By their logarithm. Values that are not above 0 have no position.
    Log,
    /// Percentiles by the logarithm of the share above them: 90, 99 and 99.9 at equal distances.
    Tail,
}

/// An axis between two places.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from_px: f64,
    to_px: f64,
}

/// The approximate number of ticks of an axis.
const TICKS: f64 = 5.0;

impl Axis {
    /// For all of `values`, from `from_px` for the minimum to `to_px` for the maximum; None if there is nothing to show.
    pub(super) fn new(scale: Scale, values: impl Iterator<Item = f64>, from_px: f64, to_px: f64) -> Option<Self> {
        let placed = values.filter(|value| value.is_finite()).filter_map(|value| scale.place(value));
        let (mut low, mut high) =
            placed.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return None;
        }
        if scale == Scale::Linear {
            low = low.min(0.0);
            // The greatest mark must not be cut off, and a single 0 must not fill the plot.
            high = if high > low { high + (high - low) * 0.04 } else { low + 1.0 };
        } else if high - low < 0.3 {
            // A factor of at least two; otherwise noise looks large.
            (low, high) = (low - 0.15, high + 0.15);
        }
        Some(Self { scale, low, high, from_px, to_px })
    }

    /// The position of `value`; None if the scale has none.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        let share = (self.scale.place(value)? - self.low) / (self.high - self.low);
        Some(self.from_px + share * (self.to_px - self.from_px))
    }

    /// Positions and texts of the ticks.
    pub(super) fn ticks(&self, show: fn(f64) -> String) -> Vec<(f64, String)> {
        let values = match self.scale {
            Scale::Linear => self.linear_ticks(),
            Scale::Log => self.log_ticks(),
            Scale::Tail => vec![50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99],
        };
        // Rounding to three digits would turn 99.99 into 100.
        let show = if self.scale == Scale::Tail { |percent: f64| percent.to_string() } else { show };
        let inside = |value: &f64| {
            self.scale.place(*value).is_some_and(|place| place >= self.low - 1e-9 && place <= self.high + 1e-9)
        };
        values.into_iter().filter(inside).filter_map(|value| Some((self.at(value)?, show(value)))).collect()
    }

    fn linear_ticks(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / TICKS;
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(magnitude);
        let first = (self.low / step).ceil();
        (0..=10).map(|count| (first + f64::from(count)) * step).take_while(|value| *value <= self.high).collect()
    }

    /// Decades; with few of them, also ticks in between.
    fn log_ticks(&self) -> Vec<f64> {
        let factors: &[f64] = match self.high - self.low {
            decades if decades < 0.7 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            decades if decades < 2.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let decades = self.low.floor() as i32..=self.high.ceil() as i32;
        decades.flat_map(|decade| factors.iter().map(move |factor| factor * 10f64.powi(decade))).collect()
    }
}

impl Scale {
    fn place(self, value: f64) -> Option<f64> {
        match self {
            Self::Linear => Some(value),
            Self::Log => (value > 0.0).then(|| value.log10()),
            Self::Tail => (value < 100.0).then(|| -(1.0 - value / 100.0).log10()),
        }
    }
}

/// `1.2k`, `35M`: for ticks, where there is little room.
pub(in crate::report) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = if scaled.fract().abs() < 1e-9 { format!("{scaled:.0}") } else { trim(&number::plain(scaled)) };
    format!("{digits}{suffix}")
}

/// A tick in microseconds, in a suitable unit: `50 µs`, `2 ms`.
pub(in crate::report) fn short_micros(us: f64) -> String {
    let (scaled, unit) = match us.abs() {
        size if size >= 1e6 => (us / 1e6, "s"),
        size if size >= 1e3 => (us / 1e3, "ms"),
        _ => (us, "µs"),
    };
    format!("{} {unit}", trim(&number::plain(scaled)))
}

fn trim(text: &str) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(scale: Scale, values: &[f64], expect: &[&str]) {
        let axis = Axis::new(scale, values.iter().copied(), 0.0, 100.0).unwrap();
        let ticks: Vec<String> = axis.ticks(short).into_iter().map(|(_, text)| text).collect();
        assert_eq!(ticks, expect);
        for value in values.iter().filter(|value| value.is_finite()) {
            assert!((0.0..=100.0).contains(&axis.at(*value).unwrap()), "{value}");
        }
    }

    #[test]
    fn ticks_are_round_and_values_inside() {
        check(Scale::Linear, &[3.0, 47.0, f64::NAN], &["0", "10", "20", "30", "40"]);
        check(Scale::Linear, &[12_000.0, 1_200.0], &["0", "5k", "10k"]);
        check(Scale::Linear, &[0.0], &["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        check(Scale::Log, &[40.0, 900.0], &["50", "100", "200", "500"]);
        check(Scale::Log, &[40.0, 90_000.0], &["100", "1k", "10k"]);
        check(Scale::Log, &[60.0, 130.0], &["70", "100"]);
        check(Scale::Log, &[100.0], &["100"]);
        check(Scale::Tail, &[50.0, 99.99], &["50", "75", "90", "95", "99", "99.9", "99.99"]);
        assert_eq!([50.0, 2_000.0, 1_500_000.0].map(short_micros), ["50 µs", "2 ms", "1.5 s"]);
    }

    #[test]
    fn what_has_no_place() {
        assert_eq!(Axis::new(Scale::Linear, std::iter::empty(), 0.0, 1.0), None);
        assert_eq!(Axis::new(Scale::Log, [0.0, -1.0].into_iter(), 0.0, 1.0), None);
        let axis = Axis::new(Scale::Tail, [50.0, 99.0].into_iter(), 0.0, 1.0).unwrap();
        assert_eq!(axis.at(100.0), None);
    }
}
