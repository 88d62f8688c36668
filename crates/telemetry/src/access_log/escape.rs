//! Makes untrusted text fit for one field of one line.

use std::io::Write;

/// Without quotes if it consists only of letters, digits and harmless signs; otherwise quoted and escaped. Empty text becomes `-`.
pub(super) fn value(out: &mut Vec<u8>, text: &[u8]) {
    let bare = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
    match text {
        b"" => out.push(b'-'),
        // Quoted, so that it is not taken for the empty text.
        b"-" => out.extend_from_slice(b"\"-\""),
        text if text.iter().all(bare) => out.extend_from_slice(text),
        text => {
            out.push(b'"');
            quoted(out, text);
            out.push(b'"');
        }
    }
}

/// As [`value`], and also quoted if one of these characters is in it.
pub(super) fn between(out: &mut Vec<u8>, text: &[u8], beside: &[Option<char>; 2]) {
    let has = |c: &char| {
        let mut bytes = [0; 4];
        contains(text, c.encode_utf8(&mut bytes).as_bytes())
    };
    match text {
        b"" | b"-" => value(out, text),
        text if beside.iter().flatten().any(has) => {
            out.push(b'"');
            quoted(out, text);
            out.push(b'"');
        }
        text => value(out, text),
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// A PARAM-VALUE of structured data (RFC 5424 section 6.3.3): `"`, `\` and `]` after a `\`; what the text format escapes is escaped as there
/// before.
pub(super) fn structured(out: &mut Vec<u8>, text: &[u8]) {
    each(text, |part| match part {
        Part::Char(c @ ('"' | '\\' | ']')) => out.extend_from_slice(&[b'\\', c as u8]),
        Part::Char(c) if c.is_ascii() && hidden(c) => put(out, format_args!("\\\\x{:02x}", u32::from(c))),
        Part::Char(c) if hidden(c) => put(out, format_args!("\\\\u{{{:x}}}", u32::from(c))),
        Part::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        Part::Byte(byte) => put(out, format_args!("\\\\x{byte:02x}")),
    });
}

/// The inside of quotes in the text format: `"` and `\` after a `\`, bytes that are not UTF-8 as `\xff`, and characters that are invisible
/// or move others as `\u{202e}`.
pub(super) fn quoted(out: &mut Vec<u8>, text: &[u8]) {
    each(text, |part| match part {
        Part::Char(c @ ('"' | '\\')) => out.extend_from_slice(&[b'\\', c as u8]),
        Part::Char(c) if c.is_ascii() && hidden(c) => put(out, format_args!("\\x{:02x}", u32::from(c))),
        Part::Char(c) if hidden(c) => put(out, format_args!("\\u{{{:x}}}", u32::from(c))),
        Part::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        Part::Byte(byte) => put(out, format_args!("\\x{byte:02x}")),
    });
}

/// A JSON string (RFC 8259 section 7) with its quotes. A byte that is not UTF-8 becomes the four characters `\xff`.
pub(super) fn json(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    each(text, |part| match part {
        Part::Char(c @ ('"' | '\\')) => out.extend_from_slice(&[b'\\', c as u8]),
        // All hidden characters are below U+10000, so one escape is enough, without surrogates.
        Part::Char(c) if hidden(c) => put(out, format_args!("\\u{:04x}", u32::from(c))),
        Part::Char(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        Part::Byte(byte) => put(out, format_args!("\\\\x{byte:02x}")),
    });
    out.push(b'"');
}

enum Part {
    Char(char),
    Byte(u8),
}

fn each(text: &[u8], mut part: impl FnMut(Part)) {
    for chunk in text.utf8_chunks() {
        chunk.valid().chars().for_each(|c| part(Part::Char(c)));
        chunk.invalid().iter().for_each(|byte| part(Part::Byte(*byte)));
    }
}

/// Controls (C0, DEL, C1), characters that some readers take for the end of a line, those that change the direction of the text around them
/// (CVE-2021-42574), and those without a width.
fn hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn put(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a Vec does not fail.
    let _ = out.write_fmt(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(write: fn(&mut Vec<u8>, &[u8]), text: &[u8], expect: &str) {
        let mut out = Vec::new();
        write(&mut out, text);
        assert_eq!(String::from_utf8(out).unwrap(), expect, "{}", text.escape_ascii());
    }

    #[test]
    fn values() {
        check(value, b"shop.example.com:80", "shop.example.com:80");
        check(value, b"[::1]:80", "[::1]:80");
        check(value, b"", "-");
        check(value, b"-", "\"-\"");
        check(value, b"a status=500", "\"a status=500\"");
        check(value, b"a=b", "\"a=b\"");
        check(value, b"a\nb", "\"a\\x0ab\"");
        check(value, "ü".as_bytes(), "\"ü\"");
    }

    #[test]
    fn quotes() {
        check(quoted, b"/a?b=\"c\"\\", "/a?b=\\\"c\\\"\\\\");
        check(quoted, b"/\r\n\0\x1b[0m\x7f", "/\\x0d\\x0a\\x00\\x1b[0m\\x7f");
        check(quoted, b"/\xff\xc3", "/\\xff\\xc3");
        check(quoted, "/ü\u{85}\u{202e}\u{2028}".as_bytes(), "/ü\\u{85}\\u{202e}\\u{2028}");
        check(quoted, "/\u{61c}\u{200b}\u{2066}\u{feff}".as_bytes(), "/\\u{61c}\\u{200b}\\u{2066}\\u{feff}");
    }

    #[test]
    fn values_between_characters() {
        let check = |text: &[u8], beside, expect: &str| {
            let mut out = Vec::new();
            between(&mut out, text, &beside);
            assert_eq!(String::from_utf8(out).unwrap(), expect, "{}", text.escape_ascii());
        };
        check(b"a|b", [None, None], "a|b");
        check(b"a|b", [None, Some('|')], "\"a|b\"");
        check(b"a[b", [Some('['), Some(']')], "\"a[b\"");
        check("a\u{2192}b".as_bytes(), [Some('\u{2192}'), None], "\"a\u{2192}b\"");
        check(b"", [Some('|'), None], "-");
        check(b"-", [Some('-'), None], "\"-\"");
    }

    #[test]
    fn parameters() {
        check(structured, b"a\"b]c\\d e=f", "a\\\"b\\]c\\\\d e=f");
        check(structured, b"\r\n\x1b\xff", "\\\\x0d\\\\x0a\\\\x1b\\\\xff");
        check(structured, "\u{fc}\u{2028}".as_bytes(), "\u{fc}\\\\u{2028}");
    }

    #[test]
    fn json_strings() {
        check(json, b"/a \"b\" \\", "\"/a \\\"b\\\" \\\\\"");
        check(json, b"\r\n\0", "\"\\u000d\\u000a\\u0000\"");
        check(json, b"\xff", "\"\\\\xff\"");
        check(json, "ü\u{2028}\u{1f600}".as_bytes(), "\"ü\\u2028\u{1f600}\"");
    }
}
