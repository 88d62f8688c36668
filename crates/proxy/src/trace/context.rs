//! `traceparent` and `tracestate` (W3C Trace Context, level 2): read, judged and written. What is not valid counts as missing, and then a new
//! trace begins.

use wire::message::Field;

pub(crate) const PARENT: &[u8] = b"traceparent";
pub(crate) const STATE: &[u8] = b"tracestate";

/// Bytes of a `traceparent` of version 00: two, 32, 16 and two digits, with dashes between them.
pub(crate) const PARENT_BYTES: usize = 55;

/// Whoever sent it may have recorded the request.
pub(crate) const SAMPLED: u8 = 0x01;
/// At least the last 7 bytes of the trace's id are random.
pub(crate) const RANDOM: u8 = 0x02;

/// Entries of a `tracestate` (section 3.3.1.1).
const STATE_ENTRIES_MAX: usize = 32;
/// Bytes of a `tracestate` that are passed on (section 3.3.1.5). Of a longer one, the largest entries go first, then the last ones.
const STATE_BYTES_MAX: usize = 512;
/// Entries that are longer go first.
const LARGE_ENTRY_BYTES: usize = 128;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub(crate) trace_id: [u8; 16],
    pub(crate) span_id: [u8; 8],
    /// Only those that are known.
    pub(crate) flags: u8,
}

impl Parent {
    /// That of a request; `None` if it has none, several, or one that is not valid (section 3.2).
    pub(crate) fn of(fields: &[Field], buffer: &[u8]) -> Option<Self> {
        let mut found = fields.iter().filter(|field| field.name.get(buffer).eq_ignore_ascii_case(PARENT));
        let value = found.next().filter(|_| found.next().is_none())?.value.get(buffer);
        Self::parse(value)
    }

    /// A version that is not known is read as far as version 00 goes. Only dashes may separate that from the rest.
    fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(PARENT_BYTES)?;
        let mut parts = known.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let (trace_id, span_id) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let [flags] = hex(parts.next()?)?;
        let is_known_length = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.first() == Some(&b'-'),
        };
        let is_valid = is_known_length && parts.next().is_none() && trace_id != [0; 16] && span_id != [0; 8];
        is_valid.then_some(Self { trace_id, span_id, flags: flags & (SAMPLED | RANDOM) })
    }

    /// Writes it with version 00.
    pub(crate) fn write(&self) -> [u8; PARENT_BYTES] {
        let mut out = [b'-'; PARENT_BYTES];
        let flags = [self.flags];
        let mut digits = [&[0][..], &self.trace_id, &self.span_id, &flags].into_iter();
        let ends = [2, 35, 52, PARENT_BYTES];
        let mut start = 0;
        for end in ends {
            let bytes = digits.next().unwrap_or_default();
            let places = out.get_mut(start..end).unwrap_or_default().chunks_mut(2);
            for (place, byte) in places.zip(bytes) {
                place.copy_from_slice(&[digit(byte >> 4), digit(byte & 0xf)]);
            }
            start = end + 1;
        }
        out
    }
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

/// Lower case alone is allowed.
fn hex<const BYTES: usize>(text: &[u8]) -> Option<[u8; BYTES]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if text.len() != BYTES * 2 {
        return None;
    }
    let mut out = [0; BYTES];
    for (place, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *place = value(high)? << 4 | value(low)?;
    }
    Some(out)
}

/// The `tracestate` of a request, its fields joined in their order; empty if it has none, or one that is not valid.
pub(crate) fn state(fields: &[Field], buffer: &[u8]) -> String {
    let mut entries: Vec<&str> = Vec::new();
    let values = fields.iter().filter(|field| field.name.get(buffer).eq_ignore_ascii_case(STATE));
    for value in values.map(|field| field.value.get(buffer)) {
        let Ok(value) = std::str::from_utf8(value) else { return String::new() };
        for entry in value.split(',').map(|entry| entry.trim_matches([' ', '\t'])).filter(|entry| !entry.is_empty()) {
            let is_twice = entries.iter().any(|other| key(other) == key(entry));
            if entries.len() == STATE_ENTRIES_MAX || is_twice || !is_entry(entry) {
                return String::new();
            }
            entries.push(entry);
        }
    }
    let length = |entries: &[&str]| entries.iter().map(|entry| entry.len() + 1).sum::<usize>().saturating_sub(1);
    while length(&entries) > STATE_BYTES_MAX {
        match entries.iter().rposition(|entry| entry.len() > LARGE_ENTRY_BYTES) {
            Some(large) => drop(entries.remove(large)),
            None => drop(entries.pop()),
        }
    }
    entries.join(",")
}

fn key(entry: &str) -> Option<&str> {
    entry.split_once('=').map(|(key, _)| key)
}

/// Section 3.3.1.3.
fn is_entry(entry: &str) -> bool {
    let Some((key, value)) = entry.split_once('=') else { return false };
    let of_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
    let of_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    let begins = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    begins
        && key.len() <= 256
        && key.bytes().all(of_key)
        && key.bytes().filter(|byte| *byte == b'@').count() <= 1
        && (1..=256).contains(&value.len())
        && value.bytes().all(of_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn parents() {
        let check = |text: &str, expect: Option<u8>| {
            let parent = Parent::parse(text.as_bytes());
            assert_eq!(parent.map(|parent| parent.flags), expect, "{text}");
            if let Some(parent) = parent {
                let text = String::from_utf8(parent.write().into()).unwrap();
                assert_eq!(text, format!("00-{TRACE}-{SPAN}-{:02x}", parent.flags));
            }
        };
        let of = |version: &str, rest: &str| format!("{version}-{TRACE}-{SPAN}-{rest}");
        check(&of("00", "00"), Some(0));
        check(&of("00", "01"), Some(1));
        check(&of("00", "02"), Some(2));
        check(&of("00", "ff"), Some(3));
        // Later versions: the part that is known.
        check(&of("01", "01"), Some(1));
        check(&of("cc", "01-what-the-future-will-be-like"), Some(1));
        check(&of("cc", "01-"), Some(1));
        check(&of("cc", "01.what"), None);
        check(&of("cc", "010"), None);
        check(&of("00", "01-"), None);
        check(&of("00", "01-x"), None);
        check(&of("ff", "01"), None);
        for wrong in ["", "0-", "zz", "0A", "+1"] {
            check(&of(wrong, "01"), None);
            check(&of("00", wrong), None);
        }
        check(&of("00", "01").to_uppercase(), None);
        check(&of("00", "01").replace('-', "_"), None);
        check(&of("00", "01").replacen("4", "g", 1), None);
        check(&format!("00-{}-{SPAN}-01", "0".repeat(32)), None);
        check(&format!("00-{TRACE}-{}-01", "0".repeat(16)), None);
        check(&format!("00-{}-{SPAN}0-01", &TRACE[1..]), None);
        check(&format!(" {}", of("00", "01")), None);
    }

    fn request(lines: &str) -> (wire::message::RequestHead, String) {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        (crate::http::headers::testing::request(&text), text)
    }

    #[test]
    fn one_parent_counts() {
        let check = |lines: &str, expect| {
            let (head, text) = request(lines);
            assert_eq!(Parent::of(&head.fields, text.as_bytes()).is_some(), expect, "{lines}");
        };
        let line = format!("00-{TRACE}-{SPAN}-01\r\n");
        check(&format!("traceparent: {line}"), true);
        check(&format!("TraceParent: {line}"), true);
        check(&format!("trace-parent: {line}"), false);
        check(&format!("traceparent: {line}traceparent: {line}"), false);
    }

    #[test]
    fn states() {
        let check = |lines: &str, expect: &str| {
            let (head, text) = request(lines);
            assert_eq!(state(&head.fields, text.as_bytes()), expect, "{lines}");
        };
        check("", "");
        check("tracestate: a=1,b=2\r\n", "a=1,b=2");
        check("tracestate: a=1 , ,b=2\t\r\nTraceState: c=3\r\n", "a=1,b=2,c=3");
        check("tracestate: \r\ntracestate: a=1\r\n", "a=1");
        check("tracestate: 0t@sys*/_-=a b~!\r\n", "0t@sys*/_-=a b~!");
        for wrong in ["a", "a=", "=1", "A=1", "a=1=2", "_a=1", "a b=1", "a=1,a=2", "a@b@c=1", "a=\u{e9}"] {
            check(&format!("tracestate: b=1\r\ntracestate: {wrong}\r\n"), "");
        }
        let many = |count: usize| (0..count).map(|at| format!("k{at}=1")).collect::<Vec<_>>().join(",");
        check(&format!("tracestate: {}\r\n", many(32)), &many(32));
        check(&format!("tracestate: {}\r\n", many(33)), "");
        // 512 bytes fit; of more, long entries go first, and then the last.
        let long = |name: &str, bytes: usize| format!("{name}={}", "v".repeat(bytes - name.len() - 1));
        let four: Vec<String> = ["a", "b", "c", "d"].iter().map(|name| long(name, 127)).collect();
        let short = four.join(",");
        check(&format!("tracestate: {short}\r\n"), &short);
        check(&format!("tracestate: {short},e=1\r\n"), &short);
        let large = long("large", 200);
        check(&format!("tracestate: {large},{short}\r\n"), &short);
        check(&format!("tracestate: {},x=1\r\n", long("k", 258)), &format!("{},x=1", long("k", 258)));
        check(&format!("tracestate: {}\r\n", long("k", 259)), "");
    }
}
