//! Searches the bytes of heads eight at a time, without a branch per byte.

const ONES: u64 = u64::from_le_bytes([1; 8]);
const HIGHEST: u64 = ONES << 7;

/// Sets the highest bit of the first byte of `word` that equals `byte`, and of no byte below it. The bytes above it have no meaning. The
/// first byte is the lowest one, as in `u64::from_le_bytes`.
pub(crate) const fn equal(word: u64, byte: u8) -> u64 {
    // A byte that is now 0 borrows from its own highest bit, which it does not have.
    let differs = word ^ (ONES * byte as u64);
    differs.wrapping_sub(ONES) & !differs & HIGHEST
}

/// As [`equal`], for the first control character.
pub(crate) const fn control(word: u64) -> u64 {
    let below_space = word.wrapping_sub(ONES * 0x20) & !word & HIGHEST;
    below_space | equal(word, 0x7f)
}

/// Sets the highest bit of each byte of `word` that is neither a letter nor a digit nor `-`. The bytes are below 0x80.
pub(crate) const fn special(word: u64) -> u64 {
    // A sum has the highest bit if the byte is at least this large. None of them reaches the next byte.
    const fn at_least(word: u64, byte: u8) -> u64 {
        word.wrapping_add(ONES * (0x80 - byte) as u64)
    }
    // Letters become lower case. Digits and `-` stay, and no other byte of a name becomes one of them.
    let lower = word | (ONES * 0x20);
    let is_letter = at_least(lower, b'a') & !at_least(lower, b'z' + 1);
    let is_digit = at_least(lower, b'0') & !at_least(lower, b'9' + 1);
    let is_dash = !at_least(lower ^ (ONES * b'-' as u64), 1);
    !(is_letter | is_digit | is_dash) & HIGHEST
}

/// Whether `is_in` is true for any eight bytes of `bytes`. A shorter slice is filled up with spaces.
#[inline]
pub(crate) fn any(bytes: &[u8], is_in: impl Fn(u64) -> bool) -> bool {
    let mut rest = bytes;
    while let Some((word, behind)) = rest.split_first_chunk() {
        if is_in(u64::from_le_bytes(*word)) {
            return true;
        }
        rest = behind;
    }
    match bytes.last_chunk() {
        // Some of these bytes are tested a second time, which does no harm.
        Some(word) => !rest.is_empty() && is_in(u64::from_le_bytes(*word)),
        None => is_in(rest.iter().rev().fold(ONES * 0x20, |word, byte| word << 8 | u64::from(*byte))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_found_wherever_it_stands() {
        for byte in 0..=255_u8 {
            for at in 0..8 {
                // The bytes above it match, too.
                let mut bytes = [byte; 8];
                bytes[..at].fill(b'a');
                let first = |found: u64| found.trailing_zeros() as usize / 8;
                let expect = if byte.is_ascii_control() { at } else { 8 };
                assert_eq!(first(control(u64::from_le_bytes(bytes))), expect, "{byte:#x} at {at}");
                let expect = if byte == b'a' { 0 } else { at };
                assert_eq!(first(equal(u64::from_le_bytes(bytes), byte)), expect, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn special_bytes_are_told_from_letters_and_digits() {
        for byte in 0x21..0x7f_u8 {
            for at in 0..8 {
                let mut bytes = [if at % 2 == 0 { b'Z' } else { b'0' }; 8];
                bytes[at] = byte;
                let is_special = !byte.is_ascii_alphanumeric() && byte != b'-';
                let expect = if is_special { 0x80 << (8 * at) } else { 0 };
                assert_eq!(special(u64::from_le_bytes(bytes)), expect, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn every_byte_is_looked_at() {
        for length in 0..40 {
            for at in 0..=length {
                let mut bytes = vec![b'a'; length];
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = b'_');
                assert_eq!(any(&bytes, |word| equal(word, b'_') != 0), at < length, "{at} of {length}");
                assert!(!any(&bytes, |word| control(word) != 0), "{at} of {length}");
            }
        }
    }
}
