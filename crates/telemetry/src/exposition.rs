//! The formats of metrics, and which of them a scraper gets.

/// A format of metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exposition {
    /// Prometheus text 0.0.4, for everything that does not ask for another.
    #[default]
    Text,
    /// OpenMetrics 1.0.0, which has exemplars.
    OpenMetrics,
    /// Prometheus's protobuf, which has native histograms. Prometheus asks for it if it stores these.
    Protobuf,
}

/// Ranges of an `Accept` that are read; no scraper sends as many.
const RANGES_MAX: usize = 32;

impl Exposition {
    /// What a scraper gets for its `Accept` (RFC 9110 section 12.5.1); `None` if it sends none.
    pub fn negotiate(accept: Option<&str>) -> Self {
        let ranges = || accept.unwrap_or("*/*").split(',').take(RANGES_MAX);
        let quality = |format: Self| {
            let found = ranges().filter_map(|range| format.quality(range));
            // The most specific range counts.
            found.max_by(|(one, _), (other, _)| one.cmp(other)).map_or(0.0, |(_, quality)| quality)
        };
        // Who has no preference gets what everybody got when there was one format.
        let better = |best: Self, other: Self| if quality(other) > quality(best) { other } else { best };
        better(better(Self::Text, Self::OpenMetrics), Self::Protobuf)
    }

    /// The value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
            }
        }
    }

    /// How specific a range of an `Accept` is, and its quality, if this format is in it.
    fn quality(self, range: &str) -> Option<(u8, f64)> {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next()?.to_ascii_lowercase();
        let (whole, family, version) = match self {
            Self::Text => ("text/plain", "text/*", "0.0.4"),
            Self::OpenMetrics => ("application/openmetrics-text", "application/*", "1.0.0"),
            Self::Protobuf => ("application/vnd.google.protobuf", "-", "-"),
        };
        let mut specific = match kind.as_str() {
            kind if kind == whole => 2,
            kind if kind == family => 1,
            // Nobody gets protobuf without naming it.
            "*/*" if self != Self::Protobuf => 0,
            _ => return None,
        };
        let mut quality = 1.0;
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.parse::<f64>().ok().filter(|quality| (0.0..=1.0).contains(quality))?,
                "proto" if value != "io.prometheus.client.MetricFamily" => return None,
                "encoding" if value != "delimited" => return None,
                "version" if value == version => specific = 3,
                // Another version of the same format.
                "version" => return None,
                _ => {}
            }
        }
        Some((specific, quality))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_scrapers_get() {
        let check = |accept: &str, expect| assert_eq!(Exposition::negotiate(Some(accept)), expect, "{accept}");
        use Exposition::{OpenMetrics, Protobuf, Text};
        assert_eq!(Exposition::negotiate(None), Text);
        // Prometheus 2.42, 2.53 and 3.5; with native histograms.
        check(
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            OpenMetrics,
        );
        check(
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,\
             */*;q=0.2",
            OpenMetrics,
        );
        check(
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OpenMetrics,
        );
        check(
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,\
             application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            Protobuf,
        );
        check("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=text, */*;q=0.1", Text);
        // A browser, curl, and what prefers text.
        check("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Text);
        check("*/*", Text);
        check("text/plain", Text);
        check("application/openmetrics-text;q=0.2, text/plain", Text);
        check("application/openmetrics-text; version=1.0.0; q=0, */*", Text);
        check("application/openmetrics-text; version=0.0.1", Text);
        check("application/json", Text);
        check("application/openmetrics-text;q=2, a;;=,;", Text);
        check("APPLICATION/OpenMetrics-Text; Version=\"1.0.0\"", OpenMetrics);
        check("application/*, text/*;q=0.1", OpenMetrics);
    }
}
