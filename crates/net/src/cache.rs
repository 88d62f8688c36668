//! Telling the processor what will be looked at soon.

/// Bytes of a line of the cache.
const LINE_BYTES: usize = 64;

/// Lines that are asked for at once: no processor fetches more at a time.
const LINES_MAX: usize = 24;

/// A place in memory that is only pointed to, and never read.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    start: *const u8,
    bytes: usize,
}

impl Place {
    /// Where `value` lies now.
    pub fn of<T>(value: &T) -> Self {
        Self { start: std::ptr::from_ref(value).cast(), bytes: size_of::<T>() }
    }

    /// Has it fetched into the nearest cache while something else is done, its first lines at least. What lay there may be gone by now; that
    /// costs a little time and nothing else. Does nothing where the language offers no way to ask (other than x86-64).
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..self.bytes.div_ceil(LINE_BYTES).min(LINES_MAX) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.start.wrapping_add(line * LINE_BYTES);
            // SAFETY: a hint. It reads nothing that could be seen, and does not fault whatever the address is (Intel SDM volume 2B,
            // PREFETCHh; AMD64 APM volume 3, PREFETCHlevel).
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
        let place = Place::of(&value);
        assert_eq!((place.start, place.bytes), (value.as_ptr(), 10_000));
        assert_eq!(Place::of(&()).bytes, 0);
    }

    /// A load from such an address would end the process; a hint must not.
    #[test]
    fn a_place_that_is_not_mapped_may_be_asked_for() {
        let page = std::ptr::without_provenance::<u8>(4096);
        Place { start: page, bytes: 1 << 20 }.prefetch();
        let mut value = [1_u64; 100];
        Place::of(&value).prefetch();
        value[99] += 1;
        assert_eq!((value[0], value[99]), (1, 2), "what was asked for is not changed");
    }
}
