//! The static table (RFC 7541 appendix A), and the way from a name to it.

use super::Kind;
use super::encoder::hash;
use crate::message::FieldId;

/// Entries. Index 1 is the first; index 62 is the first of the dynamic table.
pub(super) const LENGTH: usize = 61;

/// By index, from 1 on.
pub(super) const ENTRIES: [(&str, &str); LENGTH] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// The entry with this index and what kind of field it is; `None` beyond the static table, and for 0.
pub(super) fn entry(index: usize) -> Option<(Kind, &'static str, &'static str)> {
    let at = index.checked_sub(1)?;
    let (name, value) = ENTRIES.get(at)?;
    Some((kind(at), name, value))
}

/// As [`Kind::of`] would say; a `match`, because each request asks several times.
fn kind(at: usize) -> Kind {
    match at + 1 {
        1 => Kind::Authority,
        2 | 3 => Kind::Method,
        4 | 5 => Kind::Path,
        6 | 7 => Kind::Scheme,
        8..=14 => Kind::Status,
        28 => Kind::Field(FieldId::ContentLength),
        32 => Kind::Field(FieldId::Cookie),
        35 => Kind::Field(FieldId::Expect),
        38 => Kind::Field(FieldId::Host),
        48 => Kind::Field(FieldId::ProxyAuthenticate),
        49 => Kind::Field(FieldId::ProxyAuthorization),
        57 => Kind::Field(FieldId::TransferEncoding),
        _ => Kind::Field(FieldId::Other),
    }
}

/// The first index with this name, by the name's [`hash`].
pub(super) fn find_name(name: &[u8], name_hash: u32) -> Option<usize> {
    let mut at = name_hash as usize;
    loop {
        // Ends: more than half of the slots are free.
        let index = usize::from(*BY_NAME.get(at % SLOTS)?);
        let (_, text, _) = entry(index)?;
        if text.as_bytes() == name {
            return Some(index);
        }
        at += 1;
    }
}

/// The index with this name and value. `first` is the first index with the name.
pub(super) fn find_value(first: usize, name: &[u8], value: &[u8]) -> Option<usize> {
    let same_name = ENTRIES.iter().enumerate().skip(first - 1).take_while(|(_, entry)| entry.0.as_bytes() == name);
    let mut same = same_name.filter(|(_, entry)| !entry.1.is_empty() && entry.1.as_bytes() == value);
    same.next().map(|(at, _)| at + 1)
}

const SLOTS: usize = 256;

/// Open addressing by [`hash`] of the name; 0: free.
static BY_NAME: [u8; SLOTS] = by_name();

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn by_name() -> [u8; SLOTS] {
    let mut slots = [0; SLOTS];
    let mut index = 1;
    while index <= LENGTH {
        let name = ENTRIES[index - 1].0.as_bytes();
        let is_first = index == 1 || !same(name, ENTRIES[index - 2].0.as_bytes());
        if is_first {
            let mut at = hash(0, name) as usize % SLOTS;
            while slots[at] != 0 {
                at = (at + 1) % SLOTS;
            }
            slots[at] = index as u8;
        }
        index += 1;
    }
    slots
}

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() != right.len() {
        return false;
    }
    let mut at = 0;
    while at < left.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_name_and_by_value() {
        for (at, (name, value)) in ENTRIES.iter().enumerate() {
            let first = ENTRIES.iter().position(|entry| entry.0 == *name).unwrap() + 1;
            assert_eq!(find_name(name.as_bytes(), hash(0, name.as_bytes())), Some(first), "{name}");
            let expect = (!value.is_empty()).then_some(at + 1);
            assert_eq!(find_value(first, name.as_bytes(), value.as_bytes()), expect, "{name}: {value}");
            assert_eq!(entry(at + 1), Some((Kind::of(name.as_bytes(), value.as_bytes()), *name, *value)));
        }
        assert_eq!(find_name(b"x-request-id", hash(0, b"x-request-id")), None);
        assert_eq!(find_value(2, b":method", b"PUT"), None);
        assert_eq!((entry(0), entry(62)), (None, None));
    }
}
