//! The time limit of a request.

/// A time on the worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    Never,
    /// In milliseconds.
    At(u64),
}

impl Deadline {
    pub(crate) fn is_over(self, now_ms: u64) -> bool {
        matches!(self, Self::At(at_ms) if now_ms >= at_ms)
    }

    /// The earlier of this and `at_ms`, in milliseconds.
    pub(crate) fn limit(self, at_ms: u64) -> u64 {
        match self {
            Self::Never => at_ms,
            Self::At(end_ms) => at_ms.min(end_ms),
        }
    }

    /// This deadline, or a time in milliseconds if that is earlier.
    pub(crate) fn or_earlier(self, at_ms: Option<u64>) -> Self {
        at_ms.map_or(self, |at_ms| Self::At(self.limit(at_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::Deadline::{At, Never};

    #[test]
    fn the_earlier_counts() {
        assert_eq!((Never.limit(5), At(7).limit(5), At(3).limit(5)), (5, 5, 3));
        assert_eq!(
            (Never.or_earlier(None), Never.or_earlier(Some(5)), At(3).or_earlier(Some(5))),
            (Never, At(5), At(3))
        );
        assert_eq!((Never.is_over(u64::MAX), At(5).is_over(4), At(5).is_over(5)), (false, false, true));
    }
}
