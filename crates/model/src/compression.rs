//! Content codings: the compression of responses.

/// How responses of a route are compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compression {
    /// The codings that may be used. Among those that a client likes best, the first one here is used. At least one.
    pub encodings: Vec<Encoding>,
    /// 1 (fast) to 9 (small).
    pub level: u8,
    /// The types of responses that are compressed, in lower case.
    pub types: Vec<MediaRange>,
    /// A response that says that it is shorter than this is not compressed.
    pub bytes_min: u64,
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Encoding {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// Its name in `Content-Encoding`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// One media type, or all subtypes of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediaRange {
    /// In lower case: `text`.
    pub top: String,
    /// In lower case: `html`. `None` means all.
    pub sub: Option<String>,
}

impl MediaRange {
    /// Whether the value of a `Content-Type` is in this range.
    pub fn contains(&self, content_type: &[u8]) -> bool {
        let end = content_type.iter().position(|byte| *byte == b';').unwrap_or(content_type.len());
        let essence = content_type.get(..end).unwrap_or_default().trim_ascii();
        let Some(slash) = essence.iter().position(|byte| *byte == b'/') else { return false };
        let (top, sub) = (essence.get(..slash).unwrap_or_default(), essence.get(slash + 1..).unwrap_or_default());
        let is_sub = self.sub.as_ref().is_none_or(|wanted| sub.eq_ignore_ascii_case(wanted.as_bytes()));
        is_sub && top.eq_ignore_ascii_case(self.top.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_in_their_ranges() {
        let check = |range: &str, value: &str, expect| {
            let (top, sub) = range.split_once('/').unwrap();
            let range = MediaRange { top: top.into(), sub: (sub != "*").then(|| sub.into()) };
            assert_eq!(range.contains(value.as_bytes()), expect, "{value:?}");
        };
        check("text/html", "text/html", true);
        check("text/html", "Text/HTML ; charset=utf-8", true);
        check("text/*", "text/css", true);
        check("text/*", "textual/css", false);
        for other in ["", "text", "text/", "text/htmlx", "application/html", "/html", ";text/html"] {
            check("text/html", other, false);
        }
    }
}
