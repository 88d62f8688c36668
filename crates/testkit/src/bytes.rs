//! Makes bytes visible in the notation of the scripts: invisible bytes become escapes.

use std::fmt::Write;

/// Longer data is cut in the middle, because a failure must fit on a screen.
const SHOWN_BYTES_MAX: usize = 4096;

/// Uses `\r`, `\n`, `\t`, `\0`, `\\`, and `\xNN` for everything else that is not printable ASCII. A line break follows
/// each `\n`.
pub fn escape(bytes: &[u8]) -> String {
    if bytes.len() > SHOWN_BYTES_MAX {
        let half = SHOWN_BYTES_MAX / 2;
        let (head, tail) = (&bytes[..half], &bytes[bytes.len() - half..]);
        let left_out = bytes.len() - SHOWN_BYTES_MAX;
        return format!("{}\n... {left_out} bytes more ...\n{}", escape(head), escape(tail));
    }
    let mut out = String::with_capacity(bytes.len() + bytes.len() / 8);
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n\n"),
            b'\t' => out.push_str("\\t"),
            0 => out.push_str("\\0"),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(out, "\\x{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_invisible_is_written_out() {
        let check = |bytes: &[u8], expect: &str| assert_eq!(escape(bytes), expect);
        check(b"GET /\r\n", "GET /\\r\\n\n");
        check(b"a\tb\0c\\", "a\\tb\\0c\\\\");
        check(&[0x7f, 0xff, 0x0b], "\\x7f\\xff\\x0b");
    }

    #[test]
    fn a_flood_is_cut_in_the_middle() {
        let shown = escape(&[b'a'; 10_000]);
        assert!(shown.contains("... 5904 bytes more ..."), "{shown}");
        assert!(shown.len() < 5000);
    }
}
