//! Keyed hashes of secrets. The key is made when the process starts, so nobody can compute a hash outside of it, and how long it takes to
//! compare or look up hashes tells nothing about the secrets.

use std::sync::LazyLock;

use aws_lc_rs::hmac;

/// The first half of an HMAC-SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Tag([u64; 2]);

/// `None` if there were no random numbers. Then there are no tags, and nothing is right.
static KEY: LazyLock<Option<hmac::Key>> = LazyLock::new(|| {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).ok().map(|()| hmac::Key::new(hmac::HMAC_SHA256, &bytes))
});

impl Tag {
    /// The hash of these parts.
    pub(crate) fn of(parts: &[&[u8]]) -> Option<Self> {
        let mut context = hmac::Context::with_key(KEY.as_ref()?);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let signed = context.sign();
        let half = |at: usize| Some(u64::from_le_bytes(*signed.as_ref().get(at..)?.first_chunk()?));
        Some(Self([half(0)?, half(8)?]))
    }

    pub(crate) fn halves(self) -> [u64; 2] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let parts: [&[&[u8]]; 4] = [&[b"ab", b"c"], &[b"a", b"bc"], &[b"abc"], &[]];
        let tags = parts.map(|parts| Tag::of(parts).unwrap());
        for (at, tag) in tags.iter().enumerate() {
            assert!(!tags.iter().skip(at + 1).any(|other| other == tag));
        }
        assert!(tags[0] == Tag::of(parts[0]).unwrap());
    }
}
