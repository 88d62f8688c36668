//! The Huffman code of RFC 7541 appendix B.
//!
//! The code is canonical: among codes of one length, the larger symbol has the larger code, and a longer code is the larger one. So the
//! lengths are the whole table. The codes and the decoding tables are computed from the lengths at compile time.

use super::HpackError;

/// The length in bits of each byte's code, indexed by byte. EOS, the 257th symbol, is thirty ones and must never appear (section 5.2).
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
     6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
     5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
    13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
     7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
    15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
     6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The length of the longest code.
const BITS_MAX: usize = 30;

/// A code of up to this many bits is found by one lookup in [`SHORT`]. All letters and digits have such codes.
const SHORT_BITS: u32 = 8;

/// Instead of a length: the code has more than [`SHORT_BITS`]. No code has this many bits.
const LONGER: u16 = 0xff;

#[derive(Clone, Copy, Default)]
struct Code {
    bits: u32,
    length: u8,
}

/// The codes of one length, for decoding.
#[derive(Clone, Copy)]
struct Class {
    /// The first of them, aligned to the left end of 32 bits.
    first: u32,
    /// One past the last of them, aligned the same way. It has 64 bits because the last class ends near `1 << 32`.
    end: u64,
    /// The index of its first symbol in `SORTED`.
    offset: u16,
}

static CODES: [Code; 256] = CODE_BOOK.codes;
static SORTED: [u8; 256] = CODE_BOOK.sorted;
static CLASSES: [Class; BITS_MAX + 1] = CODE_BOOK.classes;
/// Indexed by the next eight bits: the symbol, and in the low byte the length of its code, or [`LONGER`].
static SHORT: [u16; 1 << SHORT_BITS] = CODE_BOOK.short;

struct CodeBook {
    codes: [Code; 256],
    sorted: [u8; 256],
    classes: [Class; BITS_MAX + 1],
    short: [u16; 1 << SHORT_BITS],
}

const CODE_BOOK: CodeBook = code_book();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn code_book() -> CodeBook {
    let mut book = CodeBook {
        codes: [Code { bits: 0, length: 0 }; 256],
        sorted: [0; 256],
        classes: [Class { first: 0, end: 0, offset: 0 }; BITS_MAX + 1],
        short: [LONGER; 1 << SHORT_BITS],
    };
    let (mut code, mut count, mut length) = (0_u32, 0_usize, 1_usize);
    while length <= BITS_MAX {
        let shift = 32 - length;
        book.classes[length].first = code << shift;
        book.classes[length].offset = count as u16;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                book.codes[symbol] = Code { bits: code, length: length as u8 };
                book.sorted[count] = symbol as u8;
                if length <= SHORT_BITS as usize {
                    let from = (code as usize) << (SHORT_BITS as usize - length);
                    let mut at = 0;
                    while at < 1 << (SHORT_BITS as usize - length) {
                        book.short[from + at] = (symbol as u16) << 8 | length as u16;
                        at += 1;
                    }
                }
                count += 1;
                code += 1;
            }
            symbol += 1;
        }
        book.classes[length].end = (code as u64) << shift;
        code <<= 1;
        length += 1;
    }
    book
}

/// The length of `text` in bytes when coded.
pub(super) fn encoded_len(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|byte| usize::from(code(*byte).length)).sum();
    bits.div_ceil(8)
}

/// Appends `text`, coded and padded with ones (section 5.2).
pub(super) fn encode(text: &[u8], out: &mut Vec<u8>) {
    let mut bits = 0_u64;
    let mut count = 0_u32;
    for byte in text {
        let Code { bits: code, length } = code(*byte);
        bits = bits << length | u64::from(code);
        count += u32::from(length);
        // It holds at most 31 + 30 bits at any time.
        if count >= 32 {
            count -= 32;
            out.extend_from_slice(&((bits >> count) as u32).to_be_bytes());
        }
    }
    while count >= 8 {
        count -= 8;
        out.push((bits >> count) as u8);
    }
    if count > 0 {
        out.push((bits << (8 - count)) as u8 | 0xff >> count);
    }
}

fn code(byte: u8) -> Code {
    CODES.get(usize::from(byte)).copied().unwrap_or_default()
}

/// Appends the decoded text, which has at most 8/5 as many bytes. After an error, it appends nothing.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let from = out.len();
    // No code is shorter than five bits.
    out.resize(from + coded.len() * 8 / 5, 0);
    let decoded = decode_into(coded, out.get_mut(from..).unwrap_or_default());
    out.truncate(from + decoded.unwrap_or_default());
    decoded.map(|_| ())
}

/// Writes the decoded text to the beginning of `room`, which is large enough, and returns its length.
fn decode_into(coded: &[u8], room: &mut [u8]) -> Result<usize, HpackError> {
    let mut rest = coded;
    let room_bytes = room.len();
    let mut places = room.iter_mut();
    // The next bits, aligned to the left end and followed by zeros.
    let mut bits = 0_u64;
    let mut count = 0_u32;
    loop {
        // Ensures that no code is longer than the available bits, except at the end.
        if count < 32 {
            if let Some((four, behind)) = rest.split_first_chunk::<4>() {
                bits |= u64::from(u32::from_be_bytes(*four)) << (32 - count);
                count += 32;
                rest = behind;
            } else {
                for byte in std::mem::take(&mut rest) {
                    bits |= u64::from(*byte) << (56 - count);
                    count += 8;
                }
            }
        }
        // Nearly all codes are short.
        loop {
            let [length, symbol] = short(bits).to_le_bytes();
            if u32::from(length) > count {
                break;
            }
            places.next().into_iter().for_each(|place| *place = symbol);
            bits <<= length;
            count -= u32::from(length);
        }
        if count < 32 && !rest.is_empty() {
            continue;
        }
        // If more bits are left than a short code has, this is a longer code.
        let long = if count > SHORT_BITS { long_code((bits >> 32) as u32) } else { None };
        match long {
            Some((symbol, length)) if u32::from(length) <= count => {
                places.next().into_iter().for_each(|place| *place = symbol);
                bits <<= length;
                count -= u32::from(length);
            }
            // Less than a code is left: the padding of ones, fewer than eight (section 5.2).
            _ if count < 8 && bits.leading_ones() == count => return Ok(room_bytes - places.len()),
            _ => return Err(HpackError::Huffman),
        }
    }
}

fn short(bits: u64) -> u16 {
    SHORT.get((bits >> (64 - SHORT_BITS)) as usize).copied().unwrap_or_default()
}

/// `None` for thirty ones, which is EOS.
fn long_code(next: u32) -> Option<(u8, u8)> {
    let longer = CLASSES.iter().enumerate().skip(SHORT_BITS as usize + 1);
    let (length, class) = longer.into_iter().find(|(_, class)| u64::from(next) < class.end)?;
    let at = usize::from(class.offset) + ((next - class.first) >> (32 - length)) as usize;
    Some((*SORTED.get(at)?, length as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(text, &mut out);
        assert_eq!(out.len(), encoded_len(text));
        out
    }

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = Vec::new();
        decode(coded, &mut out).map(|()| out)
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        // Some rows of appendix B, one or more of each length.
        let check = |byte: u8, bits, length| {
            let code = code(byte);
            assert_eq!((code.bits, code.length), (bits, length), "{byte}");
        };
        check(b'0', 0x0, 5);
        check(b't', 0x9, 5);
        check(b' ', 0x14, 6);
        check(b':', 0x5c, 7);
        check(b'z', 0x7b, 7);
        check(b'&', 0xf8, 8);
        check(b'!', 0x3f8, 10);
        check(b'|', 0x7fc, 11);
        check(b'#', 0xffa, 12);
        check(0, 0x1ff8, 13);
        check(b'{', 0x7ffe, 15);
        check(b'\\', 0x7fff0, 19);
        check(128, 0xfffe6, 20);
        check(9, 0x00ff_ffea, 24);
        check(249, 0x0fff_fffe, 28);
        check(22, 0x3fff_fffe, 30);
    }

    #[test]
    fn every_byte_and_every_pair_comes_back() {
        for first in 0..=255 {
            assert_eq!(decoded(&coded(&[first])).unwrap(), [first]);
            for second in 0..=255 {
                assert_eq!(decoded(&coded(&[first, second])).unwrap(), [first, second]);
            }
        }
    }

    #[test]
    fn padding_is_ones_and_fewer_than_eight() {
        let check = |coded: &[u8], expect: Result<&[u8], HpackError>| {
            assert_eq!(decoded(coded).as_deref(), expect.as_ref().map(|text| *text), "{coded:x?}");
        };
        check(&[], Ok(b""));
        check(&[0x07], Ok(b"0"));
        check(&[0x00], Err(HpackError::Huffman));
        check(&[0x06], Err(HpackError::Huffman));
        check(&[0xff], Err(HpackError::Huffman));
        check(&[0x07, 0xff], Err(HpackError::Huffman));
        // `&` has eight bits: without padding, and then with a byte of it.
        check(&[0xf8], Ok(b"&"));
        check(&[0xf8, 0xff], Err(HpackError::Huffman));
        // EOS, and EOS followed by more.
        check(&[0xff, 0xff, 0xff, 0xff], Err(HpackError::Huffman));
        check(&[0xff, 0xff, 0xff, 0xfc, 0x07], Err(HpackError::Huffman));
    }
}
