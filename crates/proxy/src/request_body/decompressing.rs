//! A body of a request that is being decompressed, piece by piece, and the limits that a compression bomb meets.

use std::sync::Arc;

use model::Decompression;
use telemetry::BodyCounters;
use wire::message::Field;

use super::decoder::{Decoder, STEP_BYTES_MAX};
use super::{Invalid, Permit};
use crate::compression::Trailers;
use crate::exchange::faults::{self, InjectedFault};

/// So much may come out of any body, whatever its ratio: the ratio of short bodies says nothing.
const RATIO_FREE_BYTES: u64 = 64 * 1024;

/// Larger capacity that is empty is not kept.
const PENDING_KEPT_BYTES_MAX: usize = 16 * 1024;

/// The body of a request that is being decompressed.
pub(crate) struct Decompressing {
    decoder: Decoder,
    /// What was taken of the body and is not decoded: a slice, or what was held back before. `0 <= at <= pending.len()`
    pending: Vec<u8>,
    at: usize,
    /// The body has ended, with these trailers.
    end: Option<Trailers>,
    /// What the decoder gave last.
    decoded: Vec<u8>,
    taken: u64,
    given: u64,
    bytes_max: u64,
    ratio_max: u64,
    counters: Arc<BodyCounters>,
    _permit: Permit,
}

/// Why a body cannot be decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// It is not what its encoding says, or is cut off.
    Invalid,
    /// It becomes larger than allowed.
    TooLarge,
}

impl From<Invalid> for Undecoded {
    fn from(_: Invalid) -> Self {
        Self::Invalid
    }
}

impl Decompressing {
    pub(super) fn new(decoder: Decoder, policy: &Decompression, counters: Arc<BodyCounters>, permit: Permit) -> Self {
        let Decompression { bytes_max, ratio_max, .. } = *policy;
        Self {
            decoder,
            pending: Vec::new(),
            at: 0,
            end: None,
            decoded: Vec::new(),
            taken: 0,
            given: 0,
            bytes_max,
            ratio_max,
            counters,
            _permit: permit,
        }
    }

    /// Takes a piece of the body. It is decoded by [`Decompressing::step`].
    pub(crate) fn put(&mut self, piece: &[u8]) {
        if self.at == self.pending.len() {
            self.at = 0;
            if self.pending.capacity() > PENDING_KEPT_BYTES_MAX {
                self.pending = Vec::new();
            }
            self.pending.clear();
        }
        self.pending.extend_from_slice(piece);
        self.counters.bytes_in.add(piece.len() as u64);
    }

    /// Records that the body has ended.
    pub(crate) fn handle_end(&mut self, fields: &[Field], section: &[u8]) {
        self.end = Some(Trailers { fields: fields.to_vec(), section: section.to_vec() });
    }

    /// Whether there is something to decode.
    pub(crate) fn has_more(&self) -> bool {
        self.at < self.pending.len() || self.decoder.has_more()
    }

    /// Whether everything is decoded, and only the end is left.
    pub(crate) fn is_over(&self) -> bool {
        self.end.is_some() && (!self.has_more() || faults::is_injected(InjectedFault::EndsDecodedEarly))
    }

    /// Decodes some of what was taken.
    ///
    /// # Errors
    /// It is not what its encoding says, or becomes larger than allowed.
    pub(crate) fn step(&mut self) -> Result<&[u8], Undecoded> {
        self.decoded.clear();
        let pending = self.pending.get(self.at..).unwrap_or_default();
        let taken = self.decoder.step(pending, &mut self.decoded)?;
        self.at += taken;
        self.taken += taken as u64;
        self.given += self.decoded.len() as u64;
        self.counters.bytes_out.add(self.decoded.len() as u64);
        let allowed = self.taken.saturating_mul(self.ratio_max).max(RATIO_FREE_BYTES);
        if self.given > self.bytes_max.min(allowed) {
            return Err(Undecoded::TooLarge);
        }
        Ok(&self.decoded)
    }

    /// The trailers, once everything is decoded.
    ///
    /// # Errors
    /// The body ends in the middle.
    pub(crate) fn take_end(&mut self) -> Result<Option<Trailers>, Undecoded> {
        let is_over = !self.has_more();
        match self.end.take_if(|_| is_over || faults::is_injected(InjectedFault::EndsDecodedEarly)) {
            // A client may say that nothing at all is compressed.
            Some(_) if self.taken > 0 && !self.decoder.is_complete() && is_over => Err(Undecoded::Invalid),
            end => Ok(end),
        }
    }

    /// Counts the CPU time of some of this.
    pub(crate) fn count_cpu(&self, ns: u64) {
        self.counters.cpu_ns.add(ns);
    }
}

/// A step gives no more than this.
const _: () = assert!(STEP_BYTES_MAX <= RATIO_FREE_BYTES as usize);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::Encoding;

    use super::super::Bodies;
    use super::*;
    use crate::compression::Encoder;

    fn decompressing(encoding: Encoding, bytes_max: u64, ratio_max: u64) -> Decompressing {
        let policy = Decompression { encodings: Encoding::ALL.into(), bytes_max, ratio_max };
        let bodies = Bodies::new(Arc::default(), 0);
        let permit = Permit::take(&bodies.decompressing, std::net::Ipv4Addr::LOCALHOST.into()).unwrap();
        Decompressing::new(Decoder::new(encoding).unwrap(), &policy, Arc::default(), permit)
    }

    fn coded(encoding: Encoding, body: &[u8]) -> Vec<u8> {
        let mut encoder = Encoder::new(encoding, 3, None).unwrap();
        let mut out = Vec::new();
        body.chunks(16 * 1024).for_each(|piece| encoder.put(piece, &mut out).unwrap());
        encoder.finish(&mut out).unwrap();
        out
    }

    /// What comes out of a body that arrives in pieces of this size.
    fn decoded(mut of: Decompressing, bytes: &[u8], piece: usize) -> Result<Vec<u8>, Undecoded> {
        let mut out = Vec::new();
        for piece in bytes.chunks(piece) {
            of.put(piece);
            while of.has_more() {
                let step = of.step()?;
                assert!(step.len() <= STEP_BYTES_MAX);
                out.extend_from_slice(step);
            }
        }
        of.handle_end(&[], &[]);
        assert!(of.is_over());
        of.take_end().map(|_| out)
    }

    fn check(encoding: Encoding, bytes: &[u8], expect: Result<&[u8], Undecoded>) {
        for piece in [1, 7, 4096, 1 << 20] {
            let got = decoded(decompressing(encoding, 1 << 30, 1000), bytes, piece);
            assert!(got.as_deref() == expect.as_ref().map(|body| *body), "{encoding:?} in pieces of {piece}");
        }
    }

    #[test]
    fn bodies_come_out_as_they_went_in() {
        for encoding in Encoding::ALL {
            for length in [0, 1, 18, 5_000, 300_000] {
                let body: Vec<u8> = (0..length).map(|at: usize| (at * at / 7) as u8).collect();
                check(encoding, &coded(encoding, &body), Ok(&body));
            }
        }
    }

    #[test]
    fn what_is_cut_off_or_followed_by_something_else_is_invalid() {
        for encoding in Encoding::ALL {
            let whole = coded(encoding, &b"hello, hello, hello, hello".repeat(100));
            check(encoding, &[], Ok(b""));
            for cut in [1, whole.len() / 2, whole.len() - 1] {
                check(encoding, &whole[..cut], Err(Undecoded::Invalid));
            }
            check(encoding, b"this is no such body, whatever it says", Err(Undecoded::Invalid));
            check(encoding, &[&whole[..], b"garbage that follows"].concat(), Err(Undecoded::Invalid));
        }
    }

    #[test]
    fn members_and_frames_follow_each_other() {
        for encoding in [Encoding::Gzip, Encoding::Zstd] {
            let both = [coded(encoding, b"one, "), coded(encoding, b"two")].concat();
            check(encoding, &both, Ok(b"one, two"));
        }
        let both = [coded(Encoding::Brotli, b"one, "), coded(Encoding::Brotli, b"two")].concat();
        check(Encoding::Brotli, &both, Err(Undecoded::Invalid));
        let member = coded(Encoding::Gzip, b"");
        check(Encoding::Gzip, &member.repeat(1000), Ok(b""));
        check(Encoding::Gzip, &member.repeat(1001), Err(Undecoded::Invalid));
        // An empty frame, and one that is skipped.
        for nothing in [coded(Encoding::Zstd, b""), b"\x50\x2a\x4d\x18\0\0\0\0".to_vec()] {
            check(Encoding::Zstd, &nothing.repeat(1000), Ok(b""));
            check(Encoding::Zstd, &nothing.repeat(1002), Err(Undecoded::Invalid));
        }
        let frame = coded(Encoding::Zstd, b"x");
        check(Encoding::Zstd, &frame.repeat(3000), Ok(&b"x".repeat(3000)));
    }

    #[test]
    fn bombs_do_not_go_off() {
        for encoding in Encoding::ALL {
            let bomb = coded(encoding, &vec![0; 20_000_000]);
            let got = |bytes_max, ratio_max| {
                let mut of = decompressing(encoding, bytes_max, ratio_max);
                of.put(&bomb);
                let mut given = 0;
                loop {
                    match of.step() {
                        Ok(step) => given += step.len() as u64,
                        Err(why) => return (why, given),
                    }
                }
            };
            let (why, given) = got(1_000_000, 1_000_000);
            assert!(why == Undecoded::TooLarge && given <= 1_000_000, "{encoding:?}: {why:?} after {given}");
            let (why, given) = got(1 << 40, 1);
            // The ratio is that of what was taken, which zstd and Brotli collect first.
            assert!(why == Undecoded::TooLarge && given < 2_000_000, "{encoding:?}: {why:?} after {given}");
        }
    }

    #[test]
    fn short_bodies_may_have_any_ratio() {
        for encoding in Encoding::ALL {
            let body = vec![b'a'; RATIO_FREE_BYTES as usize];
            let got = decoded(decompressing(encoding, 1 << 20, 1), &coded(encoding, &body), 4096);
            assert_eq!(got.as_deref(), Ok(&body[..]), "{encoding:?}");
            let got = decoded(decompressing(encoding, 1 << 20, 1), &coded(encoding, &[&body[..], b"a"].concat()), 4096);
            assert_eq!(got.err(), Some(Undecoded::TooLarge), "{encoding:?}");
        }
    }

    #[test]
    fn a_zstd_window_above_8_mib_is_refused() {
        // A frame header without a content size, and a window descriptor: exponent 13 is 8 MiB, 14 is 16 MiB (RFC 8878 section 3.1.1.1.2). The last
        // block is raw and empty.
        let frame = |exponent: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, 1, 0, 0];
        check(Encoding::Zstd, &frame(13), Ok(b""));
        check(Encoding::Zstd, &frame(14), Err(Undecoded::Invalid));
    }
}
