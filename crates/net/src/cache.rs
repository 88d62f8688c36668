//! Prefetching tells the processor which memory will be used soon.

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Lines that are prefetched at once. No processor fetches more at a time.
const LINES_MAX: usize = 24;

/// The cache lines of a value. This only points to them and never reads them.
#[derive(Clone, Copy, Debug)]
pub struct CacheLines {
    start: *const u8,
    bytes: usize,
}

impl CacheLines {
    /// The lines that `value` occupies now.
    pub fn of<T>(value: &T) -> Self {
        Self { start: std::ptr::from_ref(value).cast(), bytes: size_of::<T>() }
    }

    /// Prefetches the lines, or at least the first of them, into the nearest cache. The value may have moved or been freed by now; then
    /// this costs a little time and has no other effect. It does nothing on architectures other than x86-64, because stable Rust has no
    /// prefetch there.
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..self.bytes.div_ceil(LINE_BYTES).min(LINES_MAX) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.start.wrapping_add(line * LINE_BYTES);
            // SAFETY: this is a hint. It has no observable effect, and does not fault at any address (Intel SDM volume 2B, PREFETCHh; AMD64
            // APM volume 3, PREFETCHlevel).
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_where_and_as_large_as_what_lies_there() {
        let value = [0_u8; 10_000];
        let lines = CacheLines::of(&value);
        assert_eq!((lines.start, lines.bytes), (value.as_ptr(), 10_000));
        assert_eq!(CacheLines::of(&()).bytes, 0);
    }

    /// A load from such an address would end the process; a prefetch must not.
    #[test]
    fn a_place_that_is_not_mapped_may_be_asked_for() {
        let page = std::ptr::without_provenance::<u8>(4096);
        CacheLines { start: page, bytes: 1 << 20 }.prefetch();
        let mut value = [1_u64; 100];
        CacheLines::of(&value).prefetch();
        value[99] += 1;
        assert_eq!((value[0], value[99]), (1, 2), "prefetching changes no value");
    }
}
