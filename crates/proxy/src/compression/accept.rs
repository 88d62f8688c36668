//! What a client says about encodings: `Accept-Encoding` (RFC 9110 section 12.5.3).

use model::Encoding;
use wire::message::{Field, list};

/// A weight, in thousandths.
const WHOLE: u16 = 1000;

/// The encoding that the client likes best, and of those that it likes alike the first of `offered`. `None` if it accepts none of them, or
/// prefers no encoding.
pub(super) fn choose(fields: &[Field], buffer: &[u8], offered: &[Encoding]) -> Option<Encoding> {
    // In the order of `Encoding::ALL`.
    let mut weights: [Option<u16>; Encoding::ALL.len()] = [None; Encoding::ALL.len()];
    let (mut identity, mut any): (Option<u16>, Option<u16>) = (None, None);
    let is_it = |field: &&Field| field.name.get(buffer).eq_ignore_ascii_case(b"accept-encoding");
    for element in fields.iter().filter(is_it).flat_map(|field| list(field.value.get(buffer))) {
        let (name, weight) = weighted(element);
        let slot = match name {
            b"*" => &mut any,
            name if name.eq_ignore_ascii_case(b"identity") => &mut identity,
            name => {
                // RFC 9110 section 8.4.1.3: `x-gzip` is the same.
                let name = if name.eq_ignore_ascii_case(b"x-gzip") { b"gzip" } else { name };
                let known = Encoding::ALL.iter().position(|known| name.eq_ignore_ascii_case(known.name().as_bytes()));
                let Some(slot) = known.and_then(|known| weights.get_mut(known)) else { continue };
                slot
            }
        };
        // Whoever names one twice gets what it likes less.
        *slot = Some(slot.map_or(weight, |before| before.min(weight)));
    }
    let weight = |encoding: &Encoding| weights.get(*encoding as usize).copied().flatten().or(any).unwrap_or(0);
    let best = offered.iter().map(weight).max().filter(|best| *best > 0)?;
    // No encoding is acceptable unless it is excluded, but it is preferred only if the client says so.
    if identity.is_some_and(|identity| identity > best) {
        return None;
    }
    offered.iter().find(|encoding| weight(encoding) == best).copied()
}

/// The name in an element, and its weight. An invalid weight counts as 0: what a client may not understand must not be sent.
fn weighted(element: &[u8]) -> (&[u8], u16) {
    let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let name = parts.next().unwrap_or_default();
    let weight = parts.find_map(|part| match part {
        [b'q' | b'Q', rest @ ..] => rest.trim_ascii_start().strip_prefix(b"="),
        _ => None,
    });
    (name, weight.map_or(WHOLE, |text| thousandths(text.trim_ascii()).unwrap_or(0)))
}

/// `0`, `0.5`, `1.000` (RFC 9110 section 12.4.2).
fn thousandths(text: &[u8]) -> Option<u16> {
    let (whole, digits) = match text {
        [whole] => (whole, &[][..]),
        [whole, b'.', digits @ ..] if digits.len() <= 3 => (whole, digits),
        _ => return None,
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let part = digits.iter().chain(b"000").take(3).fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match whole {
        b'0' => Some(part),
        b'1' if part == 0 => Some(WHOLE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::testing::request;

    #[track_caller]
    fn check(lines: &[&str], expect: &str) {
        let fields: String = lines.iter().map(|line| format!("Accept-Encoding: {line}\r\n")).collect();
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let head = request(&text);
        let chosen = choose(&head.fields, text.as_bytes(), &Encoding::ALL).map_or("", Encoding::name);
        assert_eq!(chosen, expect, "{lines:?}");
    }

    #[test]
    fn clients_get_what_they_like_best() {
        check(&[], "");
        check(&[""], "");
        check(&["gzip"], "gzip");
        check(&["GZIP"], "gzip");
        check(&["x-gzip"], "gzip");
        check(&["gzip, deflate, br, zstd"], "zstd");
        check(&["gzip, deflate, br"], "br");
        check(&["gzip", "br"], "br");
        check(&["br;q=0.5, gzip;q=0.8"], "gzip");
        check(&["br ; Q = 0.5 , gzip;q=0.501"], "gzip");
        check(&["*"], "zstd");
        check(&["*;q=0.1, zstd;q=0"], "br");
        check(&["gzip, *;q=0"], "gzip");
        check(&["deflate, compress"], "");
    }

    #[test]
    fn what_they_do_not_like_they_do_not_get() {
        check(&["identity"], "");
        check(&["gzip;q=0"], "");
        check(&["gzip;q=0.000"], "");
        check(&["*;q=0"], "");
        check(&["identity;q=1, gzip;q=0.5"], "");
        check(&["identity;q=0.5, gzip;q=0.5"], "gzip");
        check(&["identity;q=0, gzip;q=0.5"], "gzip");
        // Nothing else is left, and no answer would be worse.
        check(&["identity;q=0"], "");
        for odd in
            ["gzip;q=2", "gzip;q=1.001", "gzip;q=abc", "gzip;q=", "gzip;q=0.1234", "gzip;q=-1", "gzip;q=1e3", "gzip;q"]
        {
            let expect = if odd == "gzip;q" { "gzip" } else { "" };
            check(&[odd], expect);
        }
        check(&["gzip;q=0, gzip"], "");
        check(&["gzipp, zst, b"], "");
    }

    #[test]
    fn a_long_value_is_read_once() {
        let long = "x;q=0.1,".repeat(1250);
        check(&[&format!("{long}br")], "br");
        check(&[&long], "");
    }
}
