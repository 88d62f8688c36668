//! The normal form of a request's path (RFC 3986 section 6.2.2), so that a rule about a path holds for every way of writing it.
//!
//! Escapes of unreserved characters are decoded, the digits of other escapes are changed to upper case, and dot segments are removed.
//! Repeated slashes are merged if the caller asks for it. Nothing is decoded twice, and an escape of a reserved character stays: `%2F`
//! within a segment is not the `/` between two. A `%` that does not begin an escape is written as `%25`, so that the normal form of a
//! normal form is itself.

/// Something that can be read in two ways, so that this hop and an endpoint may see different paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ambiguity {
    /// `%2F`. Here it is a slash within a segment; a reader that decodes before it splits sees two segments.
    Slash,
    /// `\` or `%5C`, which some readers take for a slash.
    Backslash,
    /// `%00` to `%1F` or `%7F`. Some readers end the path there, or drop it.
    Control,
    /// A `%` without two hexadecimal digits.
    Escape,
    /// `..;x`. A reader that first removes parameters from a segment sees a dot segment.
    DotParameter,
    /// `//..`. It removes the empty segment, or the segment before that if the reader merges slashes first.
    EmptySegment,
}

/// Splits a target into path and query. An empty path is `/` (RFC 9112 section 3.2.1). The query is empty, or begins with `?`.
pub fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    let (path, query) = target.split_at(memchr::memchr(b'?', target).unwrap_or(target.len()));
    (if path.is_empty() { b"/" } else { path }, query)
}

/// The normal form of a path without its query. `None` means that it already has that form, as nearly every path does. `*` is not a path,
/// and stays.
pub fn normalize(path: &[u8], merge_slashes: bool) -> Option<Vec<u8>> {
    if is_normal(path, merge_slashes) {
        return None;
    }
    let decoded = decode(path);
    let mut out: Vec<u8> = Vec::with_capacity(decoded.len());
    let mut segments = decoded.strip_prefix(b"/").unwrap_or(&decoded).split(|byte| *byte == b'/').peekable();
    // `out` ends before the slash in front of the next segment.
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            // If the last segment is removed, its slash stays: `/a/.` is the folder `/a/`.
            b"." if is_last => out.push(b'/'),
            b"." => {}
            b".." => {
                out.truncate(memchr::memrchr(b'/', &out).unwrap_or(0));
                if is_last {
                    out.push(b'/');
                }
            }
            b"" if merge_slashes && !is_last => {}
            segment => {
                out.push(b'/');
                out.extend_from_slice(segment);
            }
        }
    }
    Some(out)
}

/// Looks at each byte once.
fn is_normal(path: &[u8], merge_slashes: bool) -> bool {
    if path == b"*" {
        return true;
    }
    let mut rest = path;
    while let [byte, behind @ ..] = rest {
        let is_normal = match byte {
            b'/' => !(merge_slashes && behind.first() == Some(&b'/') || begins_with_dots(behind)),
            b'%' => matches!(behind, [high, low, ..] if is_normal_escape(*high, *low)),
            _ => true,
        };
        if !is_normal {
            return false;
        }
        rest = behind;
    }
    path.first() == Some(&b'/')
}

/// Whether the text after a slash begins with the segment `.` or `..`. Escaped dots are found as escapes.
fn begins_with_dots(text: &[u8]) -> bool {
    let text = text.strip_prefix(b".").map(|text| text.strip_prefix(b".").unwrap_or(text));
    text.is_some_and(|behind| matches!(behind.first(), None | Some(b'/')))
}

/// Whether an escape is in upper case, and of a byte that has to be escaped.
fn is_normal_escape(high: u8, low: u8) -> bool {
    let is_upper = |digit: u8| matches!(digit, b'0'..=b'9' | b'A'..=b'F');
    is_upper(high) && is_upper(low) && value(high, low).is_some_and(|byte| !is_unreserved(byte))
}

/// Decodes escapes of unreserved characters, and writes the others in one form.
fn decode(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len() + 8);
    let mut rest = path;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        match escape(behind) {
            Some((value, behind)) => {
                rest = behind;
                if is_unreserved(value) {
                    out.push(value);
                } else {
                    push_escape(&mut out, value);
                }
            }
            None => push_escape(&mut out, b'%'),
        }
    }
    out
}

fn push_escape(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.push(b'%');
    out.extend([byte >> 4, byte & 15].iter().filter_map(|digit| DIGITS.get(usize::from(*digit))));
}

/// The byte that the two digits after a `%` stand for, and what follows them.
fn escape(behind: &[u8]) -> Option<(u8, &[u8])> {
    let [high, low, rest @ ..] = behind else { return None };
    Some((value(*high, *low)?, rest))
}

fn value(high: u8, low: u8) -> Option<u8> {
    let digit = |digit: u8| (digit as char).to_digit(16).map(|value| value as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

/// RFC 3986 section 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Whether a segment of a path is `.` or `..`, in any spelling.
pub fn has_dot_segment(path: &[u8]) -> bool {
    decode(path).split(|byte| *byte == b'/').any(|segment| matches!(segment, b"." | b".."))
}

/// The first ambiguity that is found in a path, as the client wrote it, without its query.
pub fn ambiguity(path: &[u8]) -> Option<Ambiguity> {
    let mut rest = path;
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        let (byte, is_escape) = match (byte, escape(behind)) {
            (b'%', None) => return Some(Ambiguity::Escape),
            (b'%', Some((value, behind))) => {
                rest = behind;
                (value, true)
            }
            (byte, _) => (*byte, false),
        };
        match byte {
            b'/' if is_escape => return Some(Ambiguity::Slash),
            b'\\' => return Some(Ambiguity::Backslash),
            0..=0x1f | 0x7f => return Some(Ambiguity::Control),
            _ => {}
        }
    }
    // `..;` in any spelling: only the dots and the semicolon matter here, and decoding makes no slashes.
    if has_dot_parameter(path) {
        return Some(Ambiguity::DotParameter);
    }
    removes_empty_segment(path).then_some(Ambiguity::EmptySegment)
}

/// Whether merging slashes before or after removing dot segments gives two different paths.
fn removes_empty_segment(path: &[u8]) -> bool {
    if memchr::memmem::find(path, b"//").is_none() {
        return false;
    }
    let normal = |path: &[u8], merge_slashes| normalize(path, merge_slashes).unwrap_or_else(|| path.to_vec());
    normal(&normal(path, false), true) != normal(path, true)
}

fn has_dot_parameter(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|segment| {
        let (mut dots, mut rest) = (0, segment);
        loop {
            let (byte, behind) = match rest {
                [b'%', behind @ ..] => match escape(behind) {
                    Some(escaped) => escaped,
                    None => return false,
                },
                [byte, behind @ ..] => (*byte, behind),
                [] => return false,
            };
            match byte {
                b'.' if dots < 2 => dots += 1,
                b';' => return dots > 0,
                _ => return false,
            }
            rest = behind;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_with(path: &str, merge_slashes: bool, expect: &str) {
        let normal = normalize(path.as_bytes(), merge_slashes);
        let text = normal.as_deref().unwrap_or(path.as_bytes());
        assert_eq!(std::str::from_utf8(text).unwrap(), expect, "{path}");
        assert_eq!(normal.is_none(), path == expect, "{path}: a path in normal form is not copied");
        assert_eq!(normalize(text, merge_slashes), None, "{path}: the normal form of {expect} is itself");
    }

    #[track_caller]
    fn check(path: &str, expect: &str) {
        check_with(path, true, expect);
    }

    #[test]
    fn escapes_have_one_form() {
        check("/%61dmin", "/admin");
        check("/%41%5a%7E%2d%5F", "/AZ~-_");
        check("/a%2fb%3a", "/a%2Fb%3A");
        check("/caf%c3%a9/%20", "/caf%C3%A9/%20");
        check("/a%20b%2F", "/a%20b%2F");
        // Decoded once, not twice.
        check("/%2561dmin", "/%2561dmin");
        check("/100%", "/100%25");
        check("/%4", "/%254");
        check("/%zz%4x", "/%25zz%254x");
        // Decoded in one pass, and the result is never part of a new escape.
        check("/%%34%31", "/%2541");
        check("/!$&'()*+,;=:@[]|\\^\"<>", "/!$&'()*+,;=:@[]|\\^\"<>");
    }

    #[test]
    fn dot_segments_go() {
        check("/./admin", "/admin");
        check("/x/../admin", "/admin");
        check("/../../admin", "/admin");
        check("/x/%2e%2E/admin", "/admin");
        check("/x/.%2e/admin/%2e", "/admin/");
        check("/a/b/..", "/a/");
        check("/a/..", "/");
        check("/..", "/");
        check("/.", "/");
        check("/a/./", "/a/");
        check("/a/b/../../c/d", "/c/d");
        // RFC 3986 section 5.2.4.
        check("/a/b/c/./../../g", "/a/g");
        for same in ["/.well-known/x", "/..a", "/a..", "/...", "/a.b/.c.", "/a/..;/b", "/", "/a/", "/a?"] {
            check(same, same);
        }
    }

    #[test]
    fn slashes_are_merged_where_that_is_asked_for() {
        check("//admin", "/admin");
        check("///a////b//", "/a/b/");
        check("//", "/");
        check("/a//../b", "/b");
        check("/a/.//b", "/a/b");
        check_with("//admin", false, "//admin");
        check_with("/a//../b", false, "/a/b");
        check_with("/a//%61", false, "/a//a");
        check_with("//..//x", false, "//x");
    }

    #[test]
    fn what_is_no_path_stays() {
        check("*", "*");
        assert_eq!(split_target(b""), (&b"/"[..], &b""[..]));
        assert_eq!(split_target(b"?a"), (&b"/"[..], &b"?a"[..]));
        assert_eq!(split_target(b"/a?b?c"), (&b"/a"[..], &b"?b?c"[..]));
    }

    #[test]
    fn dot_segments_are_found_in_any_spelling() {
        for path in ["/..", "/a/../b", "/.", "/%2e/", "/a/%2E.", "/.%2e/x", "../x"] {
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in ["/", "/...", "/a..", "/..a/b", "/%252e/", "/a/.b", "/..;x/"] {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_told() {
        let check = |path: &str, expect| assert_eq!(ambiguity(path.as_bytes()), expect, "{path}");
        check("/a%2fb", Some(Ambiguity::Slash));
        check("/a%2Fb", Some(Ambiguity::Slash));
        check("/a\\b", Some(Ambiguity::Backslash));
        check("/a%5cb", Some(Ambiguity::Backslash));
        check("/a%00", Some(Ambiguity::Control));
        check("/a%0d%0a", Some(Ambiguity::Control));
        check("/a%7f", Some(Ambiguity::Control));
        check("/a%", Some(Ambiguity::Escape));
        check("/a%2", Some(Ambiguity::Escape));
        check("/a%g0", Some(Ambiguity::Escape));
        check("/a/..;/b", Some(Ambiguity::DotParameter));
        check("/a/%2e.;x=y/b", Some(Ambiguity::DotParameter));
        check("/.;/b", Some(Ambiguity::DotParameter));
        check("/.%3b", Some(Ambiguity::DotParameter));
        check("/x//../admin", Some(Ambiguity::EmptySegment));
        check("/x//./%2e%2E/admin", Some(Ambiguity::EmptySegment));
        check("//..", None);
        check("/x/..//admin//", None);
        for good in ["/", "*", "/a;v=1/..", "/a..;b", "/...;", "/;", "/a%20b%25", "//x", "/%61"] {
            check(good, None);
        }
    }

    proptest::proptest! {
        #[test]
        fn the_normal_form_is_stable(path in "(/|\\.|%|%2e|%2f|[0-9a-fA-F]|;|z){0,30}", merge_slashes: bool) {
            let path = format!("/{path}").into_bytes();
            let normal = normalize(&path, merge_slashes).unwrap_or(path);
            proptest::prop_assert_eq!(normalize(&normal, merge_slashes), None, "{:?}", String::from_utf8_lossy(&normal));
            proptest::prop_assert_eq!(normal.first(), Some(&b'/'));
        }
    }
}
